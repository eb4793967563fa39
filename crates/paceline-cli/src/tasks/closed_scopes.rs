//! Scopes that may not send, smaller than the groups of their items, such as hosts: what the store keeps of them, for the next
//! run and for people.

use paceline_core::Timestamp;
use paceline_store::work::{WorkError, WorkStore};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClosedScope {
    pub(crate) name: String,
    /// What stopped it; none where it is held until a time.
    pub(crate) why: Option<Why>,
    /// Until when it is held, in milliseconds since 1970.
    pub(crate) until_ms: Option<i64>,
    /// The same for people.
    pub(crate) reason: String,
}

/// Those of a store, at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClosedScopes(Vec<ClosedScope>);

#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    scopes: Vec<ClosedScope>,
}

/// As the store keeps them.
pub(crate) fn encode(scopes: Vec<ClosedScope>) -> String {
    serde_json::to_string(&Kept { version: VERSION, scopes }).expect("texts and numbers are always JSON")
}

/// Keeps them, in place of those before.
///
/// # Errors
/// An error of the store.
pub(crate) async fn save(store: &dyn WorkStore, encoded: &str) -> Result<(), WorkError> {
    store.save_state(NAME, encoded).await
}

impl ClosedScopes {
    /// Those that a run left, less the holds that are over. What a later version wrote is passed over.
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn of(store: &dyn WorkStore, now: Timestamp) -> Result<Self, WorkError> {
        let kept = store.load_state(NAME).await?.and_then(|text| serde_json::from_str::<Kept>(&text).ok());
        let mut scopes = kept.filter(|kept| kept.version == VERSION).map(|kept| kept.scopes).unwrap_or_default();
        scopes.retain(|scope| scope.why.is_some() || scope.until_ms.is_some_and(|until| until > now.as_millis()));
        Ok(Self(scopes))
    }

    /// As the store keeps them.
    pub(crate) fn encode(&self) -> String {
        encode(self.0.clone())
    }

    /// Those that are stopped.
    pub(crate) fn into_stopped(self) -> impl Iterator<Item = (String, Why, String)> {
        let stopped = self.0.into_iter().filter(|scope| scope.why != Some(Why::Failing));
        stopped.filter_map(|scope| Some((scope.name, scope.why?, scope.reason)))
    }

    /// Those that are held until a time.
    pub(crate) fn holds(&self) -> impl Iterator<Item = &ClosedScope> {
        self.0.iter().filter(|scope| scope.until_ms.is_some())
    }

    /// A line for each of those that a server holds, which no retry opens.
    pub(crate) fn held(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|ClosedScope { name, until_ms, reason, .. }| {
            let until = text::end(Timestamp::from_millis((*until_ms)?));
            let line = format!(
                "still held: all items of {name} until {until} ({reason}); --open {name} tries them all the same"
            );
            Some(text::printable(&line).into_owned())
        })
    }

    /// Keeps those whose names are such.
    pub(crate) fn retain(&mut self, mut is_such: impl FnMut(&str) -> bool) {
        self.0.retain(|scope| is_such(&scope.name));
    }

    /// A line for each of the first few, then how many more.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.0.iter().take(SHOWN).map(line).collect();
        let more = self.0.len().saturating_sub(SHOWN);
        lines.extend((more > 0).then(|| format!("and {}", text::counted(more as u64, "more scope"))));
        lines
    }

    /// All of them, for scripts.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.0.iter().map(as_json).collect()
    }
}

fn line(scope: &ClosedScope) -> String {
    let (name, reason) = (text::printable(&scope.name), text::printable(&scope.reason));
    match scope.until_ms {
        Some(until) => {
            let until = text::end(Timestamp::from_millis(until));
            format!("held: {name} until {until}: {reason}; it opens again by itself")
        }
        None if scope.why == Some(Why::Failing) => format!("failing: {name}: {reason}"),
        None => format!(
            "stopped: {name}: {reason}; the next run tests it with one call, and in a worker that stays a new start or `paceline tasks \
             retry` of an item does"
        ),
    }
}

fn as_json(scope: &ClosedScope) -> Value {
    let ClosedScope { name, why, until_ms, reason } = scope;
    let state = match why {
        Some(Why::Failing) => "failing",
        Some(_) => "stopped",
        None => "held",
    };
    let until = until_ms.map(|until| Timestamp::from_millis(until).to_string());
    json!({ "name": name, "state": state, "why": why.map(Why::as_str), "until": until, "reason": reason })
}

#[cfg(test)]
mod tests {
    use paceline_store::work::{MemoryStore, WorkClock};

    use super::*;

    #[tokio::test]
    async fn what_a_run_left_is_read_again_and_a_hold_that_is_over_is_none() {
        let store = MemoryStore::new(WorkClock::system());
        let scope = |name: &str, why, until_ms| ClosedScope { name: name.into(), why, until_ms, reason: "no".into() };
        let now = Timestamp::from_millis(1_700_000_000_000);
        assert_eq!(ClosedScopes::of(&store, now).await.expect("a memory"), ClosedScopes::default());
        let later = now.as_millis() + 1;
        let kept = vec![scope("a", Some(Why::SameFailure), None), scope("b", None, Some(later))];
        save(&store, &encode(kept)).await.expect("a memory");
        let read = ClosedScopes::of(&store, now).await.expect("a memory");
        let json = Value::from(read.json());
        assert_eq!((&json[0]["state"], &json[0]["why"]), (&json!("stopped"), &json!("same_failure")));
        assert_eq!((&json[1]["state"], &json[1]["until"]), (&json!("held"), &json!("2023-11-14T22:13:20.001Z")));
        assert_eq!(read.lines().len(), 2);
        let read = ClosedScopes::of(&store, Timestamp::from_millis(later)).await.expect("a memory");
        let lines = read.lines();
        assert!(
            lines.len() == 1 && lines[0].starts_with("stopped: a: no; the next run tests it with one call"),
            "{lines:?}"
        );
        let of_a_later_version =
            encode(vec![scope("a", Some(Why::Account), None)]).replace("\"version\":1", "\"version\":2");
        save(&store, &of_a_later_version).await.expect("a memory");
        assert_eq!(ClosedScopes::of(&store, now).await.expect("a memory").lines(), [""; 0]);
    }
}
