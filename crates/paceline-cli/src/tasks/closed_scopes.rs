//! Scopes that may not send, smaller than the groups of their items, such as hosts: what the store keeps of them, for the next
//! run and for people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paceline_core::{PauseCause, Timestamp};
use paceline_store::work::{WorkError, WorkStore};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::shared_text;
use crate::text;

/// Under this name the store keeps them.
const NAME: &str = "closed scopes";

/// The form of what is kept.
const VERSION: u32 = 1;

/// Scopes that are named to people.
const SHOWN: usize = 5;

/// What kind of thing stopped a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Why {
    /// A refused key, a certificate that is not trusted: a person must act.
    Account,
    /// Its first items all failed the same way.
    SameFailure,
    /// No server is there.
    Unreachable,
    /// Its calls fail or are not answered: it is not stopped, but tested by one call at a time.
    Failing,
}

impl Why {
    /// The name used in JSON.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::SameFailure => "same_failure",
            Self::Unreachable => "unreachable",
            Self::Failing => "failing",
        }
    }
}

/// A scope that may not send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClosedScope {
    pub(crate) name: String,
    /// What stopped it; none where it is held until a time.
    pub(crate) why: Option<Why>,
    /// Until when it is held, by the clock of the store: in milliseconds since 1970.
    pub(crate) until_ms: Option<i64>,
    /// When that was noted, by the same clock: it is held for the time between the two, also where the clock was wrong then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) noted_ms: Option<i64>,
    /// The same for people.
    pub(crate) reason: String,
    /// What they can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
    /// Of one that does not answer: the places that its calls have at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) places: Option<u32>,
    #[serde(flatten)]
    pub(crate) refusals: Refusals,
}

/// What was refused where something is stopped for refusals.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Refusals {
    /// Of an address that is stopped alone: its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host: Option<String>,
    /// The one address of a stopped host that refused them all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) address: Option<String>,
    /// The item that was refused last: others test first whether the host takes items again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<String>,
    /// Since when it is stopped, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since_ms: Option<i64>,
}

impl Refusals {
    /// A reason, with where and what that was.
    pub(crate) fn told_with(&self, reason: &str) -> String {
        let at = self.address.as_ref().map(|address| format!("all at {address}"));
        let last = self.last.as_ref().map(|last| format!("the last was {last}"));
        match (at, last) {
            (Some(at), Some(last)) => format!("{reason} ({at}; {last})"),
            (Some(one), None) | (None, Some(one)) => format!("{reason} ({one})"),
            (None, None) => reason.to_owned(),
        }
    }
}

/// Those of a store, at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClosedScopes(pub(crate) Vec<ClosedScope>);

#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    scopes: Vec<ClosedScope>,
}

/// Those of a store, as a worker reads them.
pub(crate) struct Read {
    pub(crate) scopes: ClosedScopes,
    /// The text that the store has of them.
    pub(crate) text: Option<String>,
    /// The time by the clock of the store.
    pub(crate) now: Timestamp,
}

/// Below this the clock of the store is being corrected.
const STEP_MS: i64 = 1_000;

/// As the store keeps them.
pub(crate) fn encode(scopes: Vec<ClosedScope>) -> String {
    serde_json::to_string(&Kept { version: VERSION, scopes }).expect("texts and numbers are always JSON")
}

/// Keeps them, in place of those that were read [before](ClosedScopes::read). Returns whether these were still there: else
/// another worker has kept its own meanwhile.
///
/// # Errors
/// An error of the store.
pub(crate) async fn replace(store: &dyn WorkStore, before: Option<&str>, encoded: &str) -> Result<bool, WorkError> {
    store.replace_state(NAME, before, encoded).await
}

/// How the words end about a scope whose calls fail too seldom for a test of it by one of them, ...
pub(crate) const BY_EACH: &str = "each item is tried again after its own wait";

/// ... and about one whose calls fail at one or two of its addresses: an item to another address tests nothing of theirs.
pub(crate) const APART: &str = "one item of each is tried at a time, and the others of the host go on";

/// What is told of a scope that a person has opened.
const OPENED: &str = "a person has opened it, and the next call tests it";

/// Ends the holds of scopes that a person opens. They stay among the others until a call has succeeded, for until then items wait
/// for the end of the hold.
///
/// # Errors
/// An error of the store.
pub(crate) async fn open(store: &dyn WorkStore, scopes: &[String]) -> Result<(), WorkError> {
    let now = store.now().await?;
    shared_text::change(store, NAME, |before| {
        let mut kept = ClosedScopes::parse(before, now);
        let opened = kept.0.iter_mut().filter(|scope| scope.why.is_none() && scopes.contains(&scope.name));
        opened.for_each(|scope| scope.reason = OPENED.to_owned());
        kept.encode()
    })
    .await
}

impl ClosedScopes {
    /// Those that a run left, less the holds that are over. What a later version wrote is passed over.
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn of(store: &dyn WorkStore) -> Result<Self, WorkError> {
        Self::at(store, store.now().await?).await
    }

    /// The same at [that time](super::store::StoreArgs::now).
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn at(store: &dyn WorkStore, now: Timestamp) -> Result<Self, WorkError> {
        Ok(Self::parse(store.load_state(NAME).await?.as_deref(), now))
    }

    /// The same, for a worker: holds that were noted by a clock which was wrong are noted anew.
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn read(store: &dyn WorkStore) -> Result<Read, WorkError> {
        loop {
            let text = store.load_state(NAME).await?;
            let now = store.now().await?;
            let (scopes, begun_anew) = Self::parsed(text.as_deref(), now);
            if begun_anew == 0 {
                return Ok(Read { scopes, text, now });
            }
            replace(store, text.as_deref(), &scopes.encode()).await?;
        }
    }

    fn parse(text: Option<&str>, now: Timestamp) -> Self {
        Self::parsed(text, now).0
    }

    /// With how many holds begin at present.
    fn parsed(text: Option<&str>, now: Timestamp) -> (Self, usize) {
        let kept = text.and_then(|text| serde_json::from_str::<Kept>(text).ok());
        let mut scopes = kept.filter(|kept| kept.version == VERSION).map(|kept| kept.scopes).unwrap_or_default();
        let now = now.as_millis();
        let begun_anew = scopes.iter_mut().filter_map(|scope| scope.begin_anew(now)).count();
        scopes.retain(|scope| scope.why.is_some() || scope.until_ms.is_some_and(|until| until > now));
        (Self(scopes), begun_anew)
    }

    /// All that they are, by name.
    pub(crate) fn by_name(&self) -> BTreeMap<&str, &ClosedScope> {
        self.0.iter().map(|scope| (&*scope.name, scope)).collect()
    }

    /// These, as the store keeps them for all workers, after one of them tells its own: what it told before is its own too, and
    /// no longer so; the rest are those of others. Of two words on one scope the stricter counts, and the later end of a hold.
    /// `open`: scopes that are open for all, as this worker has found.
    pub(crate) fn with(&self, told: &Self, own: &Self, open: &BTreeSet<Arc<str>>) -> Self {
        let (told, mut others) = (told.by_name(), self.by_name());
        others.retain(|name, scope| told.get(name) != Some(scope) && !open.contains(*name));
        let mut all = own.0.clone();
        for scope in &mut all {
            if let Some(other) = others.remove(&*scope.name).filter(|other| other.strictness() > scope.strictness()) {
                *scope = other.clone();
            }
        }
        all.extend(others.into_values().cloned());
        Self(all)
    }

    /// As the store keeps them.
    pub(crate) fn encode(&self) -> String {
        encode(self.0.clone())
    }

    /// Those that are stopped.
    pub(crate) fn into_stopped(self) -> impl Iterator<Item = (Why, ClosedScope)> {
        let stopped = self.0.into_iter().filter(|scope| scope.why != Some(Why::Failing));
        stopped.filter_map(|scope| Some((scope.why?, scope)))
    }

    /// Their names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|scope| scope.name.as_str())
    }

    /// Those that are held until a time.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &ClosedScope> {
        self.0.iter().filter(|scope| scope.until_ms.is_some())
    }

    /// Keeps those whose names are such.
    pub(crate) fn retain(&mut self, mut is_such: impl FnMut(&str) -> bool) {
        self.0.retain(|scope| is_such(&scope.name));
    }

    /// The one that keeps items of that host and address back, if one is stopped.
    pub(crate) fn stopped_for(&self, host: &str, address: &str) -> Option<&ClosedScope> {
        let is_stopped = |scope: &&ClosedScope| scope.why.is_some_and(|why| why != Why::Failing);
        self.0.iter().filter(is_stopped).find(|scope| match &scope.refusals.host {
            Some(of) => of == host && scope.name == address,
            None => scope.name == host,
        })
    }

    /// A line for each of the first few causes, followed by what to do about it, then how many more there are.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut causes: Vec<Vec<&ClosedScope>> = Vec::new();
        for scope in &self.0 {
            match causes.iter_mut().find(|alike| alike[0].is_like(scope)) {
                Some(alike) => alike.push(scope),
                None => causes.push(vec![scope]),
            }
        }
        let mut lines = Vec::new();
        for alike in causes.iter().take(SHOWN) {
            lines.push(line(alike));
            lines.extend(alike[0].advice.as_deref().map(|advice| format!("  {}", text::printable(advice))));
        }
        let more: usize = causes.iter().skip(SHOWN).map(Vec::len).sum();
        lines.extend((more > 0).then(|| format!("and {}", text::counted(more as u64, "more scope"))));
        let is_stopped = |scope: &ClosedScope| scope.why.is_some_and(|why| why != Why::Failing);
        lines.extend(self.0.iter().any(is_stopped).then(|| TESTED.to_owned()));
        lines
    }

    /// All of them, for scripts.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.0.iter().map(as_json).collect()
    }
}

impl ClosedScope {
    /// A hold that was noted in what is the future by now begins now: the clock was wrong then.
    fn begin_anew(&mut self, now_ms: i64) -> Option<()> {
        let noted = self.noted_ms.filter(|noted| *noted > now_ms.saturating_add(STEP_MS))?;
        self.until_ms = Some(now_ms.saturating_add(self.until_ms?.saturating_sub(noted)));
        self.noted_ms = Some(now_ms);
        Some(())
    }

    /// Why an item of it waits: `a.example is stopped since ...: ...`.
    pub(crate) fn describe(&self) -> String {
        let since =
            self.refusals.since_ms.map(|since| format!(" since {}", text::moment(Timestamp::from_millis(since))));
        let reason = self.refusals.told_with(&self.reason);
        format!("{} is stopped{}: {reason}", self.name, since.unwrap_or_default())
    }

    /// For scripts.
    pub(crate) fn json(&self) -> Value {
        as_json(self)
    }

    /// More where less may leave, and for longer.
    fn strictness(&self) -> (bool, Option<i64>) {
        (self.why.is_some_and(|why| why != Why::Failing), self.until_ms)
    }

    /// What holds it, unless a person has opened it.
    pub(crate) fn cause(&self) -> Option<PauseCause> {
        PauseCause::ALL.into_iter().find(|cause| cause.explanation() == self.reason)
    }

    /// Whether another differs by its name and its places alone.
    fn is_like(&self, other: &Self) -> bool {
        let of = |scope: &Self| (scope.why, scope.until_ms, scope.refusals.host.is_some());
        of(self) == of(other) && self.reason == other.reason && self.advice == other.advice
    }
}

/// How a stopped scope opens again.
const TESTED: &str =
    "what is stopped is tested by one call when a run starts; with --stay also after `paceline tasks retry KEY`";

/// The line for scopes that are alike.
fn line(scopes: &[&ClosedScope]) -> String {
    let ClosedScope { why, until_ms, reason, refusals, .. } = scopes[0];
    let named: Vec<_> = scopes.iter().take(SHOWN).map(|scope| text::printable(&scope.name)).collect();
    let reason = if scopes.len() == 1 { refusals.told_with(reason) } else { reason.clone() };
    let (mut names, reason) = (named.join(", "), text::printable(&reason));
    if scopes.len() > SHOWN {
        names += &format!(" and {} more", text::count((scopes.len() - SHOWN) as u64));
    }
    let places: u32 = scopes.iter().filter_map(|scope| scope.places).sum();
    match until_ms {
        Some(until) => {
            let (until, opens) =
                (text::end(Timestamp::from_millis(*until)), if scopes.len() == 1 { "it opens" } else { "they open" });
            format!("held: {names} until {until}: {reason}; {opens} again by itself")
        }
        None if *why == Some(Why::Failing) && places > 0 => {
            let hold = if scopes.len() == 1 { "it holds" } else { "they hold" };
            format!("failing: {names}: {reason}; {hold} {}", text::counted(places.into(), "place"))
        }
        None if *why == Some(Why::Failing) => format!("failing: {names}: {reason}"),
        None => format!("stopped: {names}: {reason}"),
    }
}

fn as_json(scope: &ClosedScope) -> Value {
    let ClosedScope { name, why, until_ms, reason, advice, places, refusals, noted_ms: _ } = scope;
    let Refusals { host, address, last, since_ms } = refusals;
    let state = match why {
        Some(Why::Failing) => "failing",
        Some(_) => "stopped",
        None => "held",
    };
    let until = until_ms.map(|until| Timestamp::from_millis(until).to_string());
    let why = why.map(Why::as_str);
    let since = since_ms.map(|since| Timestamp::from_millis(since).to_string());
    json!({
        "name": name, "state": state, "why": why, "until": until, "since": since, "reason": reason, "advice": advice,
        "places": places, "host": host, "address": address, "last_refused": last
    })
}

#[cfg(test)]
mod tests {
    use paceline_store::work::{MemoryStore, WorkClock};

    use super::*;

    #[test]
    fn scopes_with_one_cause_are_one_line_and_advice_is_given_once() {
        let scope = |name: String, why, advice: Option<&str>, places| ClosedScope {
            name,
            why: Some(why),
            reason: "no".into(),
            advice: advice.map(Into::into),
            places,
            ..ClosedScope::default()
        };
        let gone = (0..25).map(|n| scope(format!("gone{n:02}"), Why::SameFailure, Some("let it go"), None));
        let hangs = (0..12).map(|n| scope(format!("hangs{n:02}"), Why::Failing, None, Some(u32::from(n < 2))));
        assert_eq!(
            ClosedScopes(gone.chain(hangs).collect()).lines(),
            [
                "stopped: gone00, gone01, gone02, gone03, gone04 and 20 more: no",
                "  let it go",
                "failing: hangs00, hangs01, hangs02, hangs03, hangs04 and 7 more: no; they hold 2 places",
                TESTED,
            ]
        );
    }

    const NOW: i64 = 1_700_000_000_000;

    /// A store whose clock shows that.
    fn store_at(ms: i64) -> MemoryStore {
        MemoryStore::new(WorkClock::new(|| paceline_core::Instant::ZERO, move || Timestamp::from_millis(ms)))
    }

    /// What is read of a text then.
    async fn read_at(ms: i64, text: &str) -> ClosedScopes {
        let store = store_at(ms);
        assert!(replace(&store, None, text).await.expect("a memory"));
        ClosedScopes::of(&store).await.expect("a memory")
    }

    fn scope(name: &str, why: Option<Why>, until_ms: Option<i64>) -> ClosedScope {
        ClosedScope { name: name.into(), why, until_ms, reason: "no".into(), ..ClosedScope::default() }
    }

    #[tokio::test]
    async fn what_a_run_left_is_read_again_and_a_hold_that_is_over_is_none() {
        assert_eq!(ClosedScopes::of(&store_at(NOW)).await.expect("a memory"), ClosedScopes::default());
        let kept = encode(vec![scope("a", Some(Why::SameFailure), None), scope("b", None, Some(NOW + 1))]);
        let read = read_at(NOW, &kept).await;
        let json = Value::from(read.json());
        assert_eq!((&json[0]["state"], &json[0]["why"]), (&json!("stopped"), &json!("same_failure")));
        assert_eq!((&json[1]["state"], &json[1]["until"]), (&json!("held"), &json!("2023-11-14T22:13:20.001Z")));
        assert_eq!(read.lines().len(), 3);
        let lines = read_at(NOW + 1, &kept).await.lines();
        assert_eq!((lines.len(), &*lines[0]), (2, "stopped: a: no"));
        assert!(lines[1].contains("is tested by one call when a run starts"), "{lines:?}");
        let of_a_later_version =
            encode(vec![scope("a", Some(Why::Account), None)]).replace("\"version\":1", "\"version\":2");
        assert_eq!(read_at(NOW, &of_a_later_version).await.lines(), [""; 0]);
        let store = store_at(NOW);
        assert!(replace(&store, None, &kept).await.expect("a memory"));
        assert!(!replace(&store, None, "").await.expect("a memory"), "there are some already");
        assert!(replace(&store, Some(&kept), "").await.expect("a memory"));
    }

    /// A clock that was two days fast while a host asked for 20 seconds. Nothing but the length of that wait is known by it.
    #[tokio::test]
    async fn a_hold_lasts_as_long_as_was_asked_for_also_where_the_clock_was_wrong() {
        const DAYS: i64 = 2 * 86_400_000;
        let hold = |noted_ms: Option<i64>, until_ms| ClosedScope { noted_ms, ..scope("a", None, Some(until_ms)) };
        let until = async |ms, hold: ClosedScope| {
            read_at(ms, &encode(vec![hold])).await.0.first().and_then(|scope| scope.until_ms).map(|until| until - NOW)
        };
        assert_eq!(until(NOW, hold(Some(NOW + DAYS), NOW + DAYS + 20_000)).await, Some(20_000));
        assert_eq!(until(NOW, hold(Some(NOW - 5_000), NOW + 15_000)).await, Some(15_000));
        assert_eq!(until(NOW, hold(Some(NOW + 500), NOW + 20_500)).await, Some(20_500), "a clock that is corrected");
        assert_eq!(until(NOW, hold(None, NOW + 9)).await, Some(9), "as an earlier version notes it");

        // A worker that has followed the leap tells its hold at its end, as a report does then.
        let leapt = NOW + DAYS;
        let store = store_at(leapt);
        let text = encode(vec![hold(Some(leapt - 5_000), leapt + 15_000)]);
        assert!(replace(&store, None, &text).await.expect("a memory"));
        let told = ClosedScopes::at(&store, Timestamp::from_millis(NOW)).await.expect("a memory");
        assert_eq!(told.0[0].until_ms, Some(NOW + 20_000));

        let store = store_at(NOW);
        let text = encode(vec![hold(Some(NOW + DAYS), NOW + DAYS + 20_000)]);
        assert!(replace(&store, None, &text).await.expect("a memory"));
        ClosedScopes::read(&store).await.expect("a memory");
        let text = store.load_state(NAME).await.expect("a memory").expect("there is one");
        assert_eq!(
            until(NOW + 20_000, serde_json::from_str::<Kept>(&text).expect("JSON").scopes.remove(0)).await,
            None
        );
    }
}
