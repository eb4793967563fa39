//! The keys of clients in their file: what is kept of each, and who may call the gateway by it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use paceline::{Timestamp, clock};
use paceline_config::{Limit, LimitError, pacer_of};
use paceline_core::{Dimension, PacerConfig, format_window};
use paceline_gateway::{ClientConfig, Clients, KeyHash};
use paceline_http::warn_if_exposed;
use serde::{Deserialize, Serialize};

use super::args::Flags;
use super::{state, whole_file};
use crate::exit::Failure;
use crate::files;

/// The file in the state folder.
const FILE: &str = "client-keys.json";

/// Which requests of a client go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Priority {
    /// As each request says.
    #[default]
    Interactive,
    /// All of them wait behind interactive ones.
    Batch,
}

/// A client's key: what it may do, and no key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) sha256: String,
    /// When, in RFC 3339.
    pub(super) made: String,
    #[serde(default)]
    pub(super) limits: Vec<String>,
    /// How many requests may leave at once after idling; none: the usual number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) burst: Option<u64>,
    #[serde(default)]
    pub(super) models: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) paths: Vec<String>,
    #[serde(default)]
    pub(super) priority: Priority,
    /// The key that it had before. An earlier version refuses a file that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) former: Option<Former>,
}

/// A key that is good for a while beside the one that took its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Former {
    pub(super) sha256: String,
    /// When it ends, in milliseconds since 1970.
    pub(super) until_ms: i64,
}

impl Former {
    /// When it ends.
    pub(super) const fn until(&self) -> Timestamp {
        Timestamp::from_millis(self.until_ms)
    }
}

/// What is said of a version after the present one.
const LATER: &str = "expected 1, the latest that this program knows";

/// All keys of a gateway.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyFile {
    version: Version,
    pub(super) keys: Vec<Record>,
}

/// The version of the file, 1.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
struct Version;

impl From<Version> for u32 {
    fn from(_: Version) -> Self {
        1
    }
}

impl TryFrom<u32> for Version {
    type Error = String;

    fn try_from(version: u32) -> Result<Self, String> {
        match version {
            1 => Ok(Self),
            0 => Err("version 0 is not known: expected 1".to_owned()),
            later => Err(format!("version {later} is not known: {LATER}")),
        }
    }
}

impl KeyFile {
    /// Where it is: where the flag says, else in the state folder, which need not be there; none where there is no such folder.
    pub(super) fn path(asked_for: Option<&Path>, folder: Option<&Path>) -> Option<PathBuf> {
        asked_for.map(Path::to_owned).or_else(|| state::place(folder).ok().map(|folder| folder.join(FILE)))
    }

    /// Reads it; none where there is no such file. Warns of one that other users can read or change.
    ///
    /// # Errors
    /// A file that cannot be read, or is none of these.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, Failure> {
        let refused = |error: String| Failure::refused(format!("the keys of clients in {}: {error}", path.display()));
        let read = || -> io::Result<String> {
            whole_file::check(path)?;
            let (mut file, mut text) = (File::open(path)?, String::new());
            file.read_to_string(&mut text)?;
            warn_if_exposed("the file with the keys of clients", &file, &path.display().to_string());
            Ok(text)
        };
        let damaged = |why: String| {
            if why.contains(LATER) {
                return refused(format!(
                    "a later version of paceline wrote them: {why}; put that program back, or the file of before"
                ));
            }
            refused(format!(
                "the file is damaged: {why}; put back a copy of it, or move it away and make new keys (`paceline serve keys add`)"
            ))
        };
        match files::with_spare(read) {
            Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| damaged(why_unread(&error))),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(damaged("it is no text in UTF-8".to_owned()))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(refused(error.to_string())),
        }
    }

    /// Why a gateway whose keys are to be in that file does not begin without it, if so: the file was named (`is_named`), or
    /// keys were made there once.
    pub(super) fn missed(path: &Path, is_named: bool) -> Option<String> {
        let (file, mark) = (path.display(), Self::mark(path));
        if is_named {
            return Some(format!(
                "--client-keys {file}: there is no such file; `paceline serve keys add NAME --client-keys {file}` makes it with a \
                 first key"
            ));
        }
        mark.metadata().is_ok_and(|found| found.len() > 0).then(|| {
            format!(
                "the keys of clients are gone: keys were made in {file}, and there is no such file now; put it back, or make a new \
                 one (`paceline serve keys add NAME`); without {} too the gateway begins without keys",
                mark.display()
            )
        })
    }

    /// The file beside it that is locked while keys change, and says from the first key on that there were some.
    pub(super) fn mark(path: &Path) -> PathBuf {
        path.with_extension("lock")
    }

    /// The clients that it means.
    ///
    /// # Errors
    /// A hash or a limit that is none; two clients of one name or of one key, of which one would count for both.
    pub(super) fn clients(&self) -> Result<Vec<ClientConfig>, String> {
        let clients = self.keys.iter().map(Record::client).collect::<Result<Vec<_>, _>>()?;
        let mut known: BTreeMap<KeyHash, &str> = BTreeMap::new();
        for (place, ClientConfig { name, key, former, .. }) in clients.iter().enumerate() {
            if clients[..place].iter().any(|other| other.name == *name) {
                return Err(format!("two keys have the name {name}: expected one name for each"));
            }
            for key in [*key].into_iter().chain(former.map(|(key, _)| key)) {
                if let Some(other) = known.insert(key, name) {
                    return Err(format!("{other} and {name} have the same key: expected one for each"));
                }
            }
        }
        Ok(clients)
    }

    /// Writes it: whole at every moment, and readable for its owner alone.
    ///
    /// # Errors
    /// An error of the operating system.
    pub(super) fn write(&self, path: &Path) -> std::io::Result<()> {
        whole_file::replace_durably_on_a_full_disk(path, format!("{:#}\n", serde_json::to_value(self)?).as_bytes())
    }
}

/// Why a file of keys is none, in words.
fn why_unread(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Eof => format!("it is cut off in line {}", error.line()),
        serde_json::error::Category::Data => format!("it has no keys as `paceline serve keys` writes them: {error}"),
        _ => format!("it is no JSON: {error}"),
    }
}

impl Record {
    /// What it may do, for people.
    pub(super) fn described(&self) -> String {
        let all = |list: &[String], none: &str| if list.is_empty() { none.to_owned() } else { list.join(", ") };
        let (limits, models) = (all(&self.limits, "none"), all(&self.models, "all"));
        let priority = match self.priority {
            Priority::Interactive => "interactive",
            Priority::Batch => "batch",
        };
        let burst = self.burst.map(|burst| format!(", burst {burst}")).unwrap_or_default();
        let paths = if self.paths.is_empty() { String::new() } else { format!("  paths: {}", self.paths.join(", ")) };
        // One that has ended is kept to tell whose it was.
        let former = self.former_in_force().map(|former| format!("  former key until {}", former.until()));
        format!("limits: {limits}{burst}  models: {models}{paths}  priority: {priority}{}", former.unwrap_or_default())
    }

    /// The same with its limits in full: `1M/day` counts requests.
    pub(super) fn understood(&self) -> String {
        let client = self.client().ok();
        let quotas = client.iter().filter_map(|client| client.limits.as_ref()).flat_map(|pacer| &pacer.limits.quotas);
        let told: Vec<_> = quotas.map(|quota| quota.dimension.per(quota.limit, quota.window)).collect();
        let described = self.described();
        if told.is_empty() { described } else { format!("{described}  which means: {}", told.join(", ")) }
    }

    /// Its former key, unless that has ended.
    pub(super) fn former_in_force(&self) -> Option<&Former> {
        self.former.as_ref().filter(|former| former.until() > clock::wall())
    }

    /// The client that it means.
    ///
    /// # Errors
    /// A hash or a limit that is none.
    pub(super) fn client(&self) -> Result<ClientConfig, String> {
        let wrong = |error: LimitError| format!("{}: {error}", self.name);
        let limits = self.limits.iter().map(|limit| limit.parse()).collect::<Result<Vec<Limit>, _>>().map_err(wrong)?;
        let mut limits = if limits.is_empty() { None } else { Some(pacer_of(&limits).map_err(wrong)?) };
        if let Some(burst) = self.burst {
            self.set_burst(limits.as_mut(), burst)?;
        }
        let mut counted = limits.iter().flat_map(|pacer| &pacer.limits.quotas).map(|quota| &quota.dimension);
        if let Some(other) = counted.find(|dimension| matches!(dimension, Dimension::Named(_))) {
            return Err(format!(
                "{}: nothing counts {other} for a client: expected requests, tokens, money, bytes or calls in flight, such as 60rpm, \
                 '1M tokens per 24h', '5.00 money per 24h' (in the currency of the prices) or '5 concurrent'",
                self.name
            ));
        }
        let hash = |digits: &str| {
            KeyHash::from_hex(digits).ok_or_else(|| format!("{}: sha256: expected 64 hexadecimal digits", self.name))
        };
        let former = self.former_in_force().map(|former| Ok::<_, String>((hash(&former.sha256)?, former.until())));
        Ok(ClientConfig {
            name: self.name.clone(),
            key: hash(&self.sha256)?,
            former: former.transpose()?,
            limits,
            models: self.models.clone(),
            paths: self.paths.iter().map(|path| path.trim_end_matches('/').to_owned()).collect(),
            is_batch: self.priority == Priority::Batch,
        })
    }

    /// As for the limits of an upstream, of which no window holds more than it may.
    fn set_burst(&self, pacer: Option<&mut PacerConfig>, burst: u64) -> Result<(), String> {
        let spaced = pacer.as_ref().and_then(|pacer| pacer.limits.spacing()).map(|(quota, _)| quota.clone());
        let quotas = pacer.iter().flat_map(|pacer| &pacer.limits.quotas);
        let longer = { quotas }.find(|quota| quota.dimension == Dimension::Requests);
        let found = longer.map(|quota| format!("{} is longer", format_window(quota.window)));
        let (Some(pacer), Some(quota)) = (pacer, spaced) else {
            let found = found.unwrap_or_else(|| "there is none".to_owned());
            return Err(format!(
                "{}: a burst of {burst} needs a limit on requests over at most 60s, such as --limit 60rpm; {found}",
                self.name
            ));
        };
        if burst == 0 || burst > quota.limit {
            let limit = quota.dimension.per(quota.limit, quota.window);
            return Err(format!("{}: a burst of {burst}: expected 1 to {}, for {limit}", self.name, quota.limit));
        }
        pacer.limits.burst = Some(burst);
        Ok(())
    }
}

/// A line for each key that is another now, by its name.
fn changes(before: &[Record], now: &[Record]) -> Vec<String> {
    let named = |keys: &'_ [Record], name: &str| keys.iter().find(|key| key.name == name).cloned();
    let told = |key: &Record| match named(before, &key.name) {
        None => Some(format!("new: {}", key.name)),
        Some(known) if known == *key => None,
        Some(known) if known.sha256 != key.sha256 => {
            let former = key.former_in_force().map(|former| format!("; the former one ends at {}", former.until()));
            let former = former.unwrap_or_default();
            Some(format!("another key: {}, which goes on with what it has used{former}", key.name))
        }
        Some(_) => Some(format!("changed: {}, {}", key.name, key.described())),
    };
    let gone = before.iter().filter(|key| named(now, &key.name).is_none());
    now.iter().filter_map(told).chain(gone.map(|key| format!("revoked: {}", key.name))).collect()
}

/// Who may call a gateway on an address.
pub(super) struct Admission {
    path: Option<PathBuf>,
    /// By the flag --client-keys.
    is_named: bool,
    /// As --state names it.
    state: Option<PathBuf>,
    address: SocketAddr,
    allow_anyone: bool,
    /// By the flag --require-client-keys.
    requires_keys: bool,
    /// The keys as they were read last.
    known: Mutex<Option<Vec<Record>>>,
}

impl Admission {
    /// As the flags say.
    pub(super) fn new(flags: &Flags, address: SocketAddr) -> Self {
        let path = KeyFile::path(flags.client_keys.as_deref(), flags.state.as_deref());
        Self {
            path,
            is_named: flags.client_keys.is_some(),
            state: flags.state.clone(),
            address,
            allow_anyone: flags.allow_anyone,
            requires_keys: flags.require_client_keys,
            known: Mutex::default(),
        }
    }

    /// The file of keys, which may not be there yet.
    pub(super) fn file(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// The clients as the file has them now. A file without keys lets no client pass: the last may just have been revoked. Nor
    /// does one that is gone let all pass where there were keys `before`, or by an earlier gateway.
    ///
    /// # Errors
    /// A file that is wrong, or gone, or was named and is not there; an address that others reach, without keys.
    pub(super) fn clients(&self, before: &Clients) -> Result<Clients, Failure> {
        let file = self.path.as_deref().map(KeyFile::read).transpose()?.flatten();
        match (file, self.address.ip().is_loopback()) {
            (Some(file), _) => {
                let clients =
                    file.clients().map_err(|error| Failure::refused(format!("the keys of clients: {error}")))?;
                let clients = Clients::with_keys(clients, before).map_err(Failure::refused)?;
                self.tell_changes(file.keys);
                Ok(clients)
            }
            (None, _) if matches!(before, Clients::WithKeys(_)) => Err(Failure::refused(
                "their file is gone, and still no program passes without a key; put the file back",
            )),
            (None, _) if let Some(missed) = self.missed() => Err(Failure::refused(missed)),
            (None, _) if self.requires_keys => Err(Failure::refused(self.lacking())),
            (None, true) => Ok(Clients::OfThisMachine),
            (None, false) if self.allow_anyone => Ok(Clients::Anyone),
            (None, false) => Err(Failure::refused(format!(
                "--listen {}: others could spend your key there; expected keys of clients (`paceline serve keys add NAME`), an \
                 address of this machine alone, such as 127.0.0.1:4747, or --allow-anyone",
                self.address
            ))),
        }
    }

    /// Logs that programs without a key may call no longer. The way back is a restart alone.
    pub(super) fn tell_closed(&self) {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let names: Vec<_> = known.iter().flatten().map(|key| &*key.name).collect();
        let keys = match names.len() {
            0 => "there is none yet".to_owned(),
            1 => format!("1 key: {}", names[0]),
            count => format!("{count} keys: {}", names.join(", ")),
        };
        tracing::warn!("from now on only programs with a key may call ({keys})");
    }

    /// Logs which keys are others than when they were read last.
    fn tell_changes(&self, keys: Vec<Record>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(changes) = known.as_deref().map(|before| changes(before, &keys)).filter(|text| !text.is_empty()) {
            tracing::info!("the keys of clients were read again: {}", changes.join("; "));
            if keys.is_empty() {
                tracing::warn!("from now on no program may call: no key is left");
            }
        }
        *known = Some(keys);
    }

    fn lacking(&self) -> String {
        let file = self.path.as_ref().map_or_else(|| FILE.to_owned(), |path| path.display().to_string());
        format!(
            "--require-client-keys: there are no keys of clients: {file} does not exist; if it existed before, check that its folder \
             is mounted; `{}` makes a first one",
            self.makes_a_key()
        )
    }

    /// What is wrong where these are the clients and none of them has a key.
    pub(super) fn lacks_keys(&self, clients: &Clients) -> Option<String> {
        let file = self.path.as_ref().filter(|_| matches!(clients, Clients::WithKeys(_)) && clients.count() == 0)?;
        Some(format!(
            "no program may call: there is no key of a client in {}; `{}` makes one, also while the gateway runs",
            file.display(),
            self.makes_a_key()
        ))
    }

    /// The command that makes a key of this gateway.
    fn makes_a_key(&self) -> String {
        let place = match (&self.path, &self.state) {
            (Some(file), _) if self.is_named => format!(" --client-keys {}", file.display()),
            (_, Some(state)) => format!(" --state {}", state.display()),
            (_, None) => String::new(),
        };
        format!("paceline serve keys add NAME{place}")
    }

    fn missed(&self) -> Option<String> {
        KeyFile::missed(self.path.as_deref()?, self.is_named)
    }
}
