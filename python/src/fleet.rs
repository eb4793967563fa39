//! A limiter's place in a fleet: the member of the core and the words of `paceline-fleet`, for a client that is written in Python
//! and carries them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use paceline_config::{account_host, account_name, alone_shares};
use paceline_core::fleet::{Member as CoreMember, MemberChange, MemberConfig, MemberId, MemberInput, MemberRequest};
use paceline_core::{AloneShare, ConfigError, Instant};
use paceline_fleet::wire::{LedgerName, Notice, Reconnect, RedisAnswer, RedisCommand, RedisScript};
use paceline_fleet::{FleetConfig, FleetError as Refused, OnLoss};
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::FleetError;
use crate::engine::{Engine, tell};
use crate::given::{given, span, text, whole};

/// `Member(engine, account, server, weight, on_loss, lease, alone_share, id, seed)`: from now on the limiter shares its
/// configured limits with all members of that account's fleet, and nothing leaves before the ledger has given it a share.
/// `server`: the store for people.
///
/// Its driver says the `greeting` on each new connection, then the `preparation`, and tells what came of the greeting
/// (`linked`); after each input it asks (`poll`) what to say and when to ask again.
#[pyclass(frozen, module = "paceline._engine")]
pub(crate) struct Member {
    engine: Py<Engine>,
    script: RedisScript,
    server: String,
    id: MemberId,
    part: Mutex<Part>,
}

struct Part {
    member: CoreMember,
    /// What was said and has no answer.
    asked: BTreeMap<u64, MemberRequest>,
    /// What the driver has not been told of.
    changes: Vec<&'static str>,
    reconnect: Reconnect,
    /// The store was asked, or found to be away: it is waited for from then on.
    has_joined: bool,
}

/// What a member says now, each with its number; the seconds until it is to be asked again; and what has changed.
type Polled = (Vec<(u64, RedisCommand)>, Option<f64>, Vec<&'static str>);

impl Member {
    fn part(&self) -> MutexGuard<'_, Part> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the member and the pacer what happened, in one step, and then looks at the member.
    fn hear<T>(slf: &Bound<'_, Self>, input: MemberInput, look: impl FnOnce(&mut Part, Instant) -> T) -> T {
        let member = slf.get();
        let (result, news) = member.engine.get().change(|state, now| {
            let mut part = member.part();
            for change in state.hear(now, &mut part.member, input) {
                match change {
                    MemberChange::Joined => part.changes.push("joined"),
                    MemberChange::Alone => part.changes.push("alone"),
                    MemberChange::Unanswered => part.changes.push("unanswered"),
                    MemberChange::Left => part.changes.push("left"),
                    // The pacer has taken it.
                    MemberChange::Allow { .. }
                    | MemberChange::Told(_)
                    | MemberChange::Taken { .. }
                    | MemberChange::Drawn { .. } => {}
                }
            }
            look(&mut part, now)
        });
        tell(member.engine.bind(slf.py()), news);
        result
    }
}

#[pymethods]
impl Member {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the keywords of `paceline.fleet.join`")]
    fn new(
        engine: &Bound<'_, Engine>,
        account: &str,
        server: String,
        weight: &Bound<'_, PyAny>,
        on_loss: &Bound<'_, PyAny>,
        lease: &Bound<'_, PyAny>,
        alone_share: &Bound<'_, PyAny>,
        id: u64,
        seed: u64,
    ) -> PyResult<Self> {
        let mut config = FleetConfig::new("", account);
        config.weight = whole("weight", weight)?;
        config.lease = span("lease", lease)?;
        config.on_loss = match given::<String>("on_loss", on_loss, LOSSES)?.as_str() {
            STRICT => OnLoss::Strict,
            KEEP => OnLoss::Keep,
            other => return Err(PyValueError::new_err(format!("on_loss={other:?}: expected {LOSSES}"))),
        };
        let alone_share = text("alone_share", alone_share)?;
        config.alone_share = alone_shares(alone_share)
            .map_err(|_| PyValueError::new_err(format!("alone_share={alone_share:?}: expected {SHARES}")))?;
        config.check().map_err(wrong)?;
        let (divided, news) = engine.get().change(|state, now| state.divide(now));
        tell(engine, news);
        let divided = divided.map_err(wrong)?;
        let alone_share = AloneShare::of_each(&divided, &config.alone_share).map_err(wrong)?;
        let name = LedgerName::new(account, &divided, config.lease);
        let script = RedisScript::new(name);
        let settings = MemberConfig {
            id: MemberId(id),
            weight: config.weight,
            limits: script.limits().to_vec(),
            on_loss: config.on_loss,
            alone_share,
        };
        let member = CoreMember::new(settings, seed, engine.get().clock.get().awake());
        let (asked, reconnect) = (BTreeMap::new(), Reconnect::new());
        let part = Part { member, asked, changes: Vec::new(), reconnect, has_joined: false };
        Ok(Self { engine: engine.clone().unbind(), script, server, id: MemberId(id), part: Mutex::new(part) })
    }

    /// What to say on a new connection, as one transaction.
    fn greeting(&self) -> Vec<RedisCommand> {
        self.script.greeting().into()
    }

    /// What to say after that.
    fn preparation(&self) -> Vec<RedisCommand> {
        self.script.preparation().into()
    }

    /// What to say where the server has forgotten the script.
    fn load(&self) -> RedisCommand {
        self.script.load()
    }

    /// The channel on which the ledger speaks by itself.
    fn channel(&self) -> String {
        self.script.channel()
    }

    /// There is a connection: what was answered to the greeting. A `ValueError`: that is no answer to it.
    fn linked(slf: &Bound<'_, Self>, answers: &Bound<'_, PyAny>) -> PyResult<()> {
        let (run, quiet) = slf.get().script.greeted(&answer(answers)?).map_err(PyValueError::new_err)?;
        Self::hear(slf, MemberInput::Linked { run, quiet }, |_, _| ());
        Ok(())
    }

    /// The ledger spoke by itself.
    fn noticed(slf: &Bound<'_, Self>, words: &Bound<'_, PyAny>) -> PyResult<()> {
        let RedisAnswer::Text(words) = answer(words)? else { return Ok(()) };
        for input in Notice::all(&words).into_iter().filter_map(|notice| notice.input(slf.get().id)) {
            Self::hear(slf, input, |_, _| ());
        }
        Ok(())
    }

    /// The answer to what was said under that number. A `ValueError`: that is none.
    fn answered(slf: &Bound<'_, Self>, number: u64, answered: &Bound<'_, PyAny>) -> PyResult<()> {
        let member = slf.get();
        let Some(request) = member.part().asked.remove(&number) else { return Ok(()) };
        let answered = member.script.answer(&answer(answered)?, &request).map_err(PyValueError::new_err)?;
        Self::hear(slf, answered.input(&request), |part, _| {
            part.has_joined = true;
            part.reconnect.answered();
        });
        Ok(())
    }

    /// The connection is of no use: why, and the first word of the server's error where it is one. Returns what to tell people,
    /// and the seconds before the next try.
    fn failed(slf: &Bound<'_, Self>, why: &str, code: Option<&str>, is_away: bool) -> PyResult<(String, f64)> {
        let (member, server) = (slf.get(), slf.get().server.clone());
        let error = match is_away {
            true => Refused::Away { server, why: why.to_owned() },
            false => member.script.error(&server, code, why),
        };
        let text = error.to_string();
        if !error.may_pass() && !member.part().has_joined {
            return Err(FleetError::new_err(text));
        }
        let pause = Self::hear(slf, MemberInput::Unlinked, |part, _| {
            part.has_joined = true;
            part.asked.clear();
            part.reconnect.failed()
        });
        Ok((text, pause.as_secs_f64()))
    }

    /// Nothing leaves any more, and the others are told what was not used.
    fn leave(slf: &Bound<'_, Self>) {
        Self::hear(slf, MemberInput::Leave, |_, _| ());
    }

    /// What is due.
    fn poll(slf: &Bound<'_, Self>) -> Polled {
        slf.get().engine.get().clock.get().awake();
        Self::hear(slf, MemberInput::Time, |part, now| {
            let mut said = Vec::new();
            while let Some(request) = part.member.poll_request() {
                said.push((request.seq(), slf.get().script.request(&request)));
                part.asked.insert(request.seq(), request);
            }
            let wait = part.member.poll_timeout().map(|at| (at - now).as_secs_f64());
            (said, wait, std::mem::take(&mut part.changes))
        })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.engine)
    }
}

const STRICT: &str = "strict";
const KEEP: &str = "keep";
const SHARES: &str = "limits, such as \"6rpm, 2k tpm\"";
const LOSSES: &str = "\"strict\" or \"keep\"";

/// The fleet that the file of a limiter names: its store, the weight, what is done without it, the lease in seconds, and what the
/// process may use without a lease.
#[pyfunction]
pub(crate) fn fleet_of(engine: &Bound<'_, Engine>) -> Option<(String, u64, &'static str, f64, String)> {
    let fleet = engine.get().upstream.fleet.as_ref()?;
    let on_loss = if fleet.on_loss == OnLoss::Keep { KEEP } else { STRICT };
    let alone_share: Vec<_> = fleet.alone_share.iter().map(AloneShare::to_string).collect();
    Some((fleet.url.clone(), fleet.weight, on_loss, fleet.lease.as_secs_f64(), alone_share.join(", ")))
}

/// The name of the account at that address with that key, which is sent as the provider of the limiter takes it: the same that
/// the program gives it.
#[pyfunction]
#[pyo3(signature = (engine, address, key=None))]
pub(crate) fn account_of(engine: &Bound<'_, Engine>, address: &str, key: Option<&str>) -> PyResult<String> {
    let headers = engine.get().upstream.access.headers(key.map(str::trim));
    let headers = headers.map_err(|error| PyValueError::new_err(format!("the key {error}")))?;
    Ok(account_name(&account_host(address), &headers))
}

fn wrong(error: ConfigError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// What a client of Python has read.
fn answer(value: &Bound<'_, PyAny>) -> PyResult<RedisAnswer> {
    if let Ok(text) = value.cast::<PyBytes>() {
        return Ok(RedisAnswer::Text(String::from_utf8_lossy(text.as_bytes()).into_owned()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(RedisAnswer::Text(text.to_cow()?.into_owned()));
    }
    if let Ok(list) = value.cast::<PyList>() {
        return list.iter().map(|each| answer(&each)).collect::<PyResult<_>>().map(RedisAnswer::List);
    }
    Ok(value.extract().map_or(RedisAnswer::Nothing, RedisAnswer::Number))
}
