//! The last decisions about calls that did not simply succeed, with their reasons, for people.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::{Timestamp, clock};
use serde_json::{Value, json};

use super::cut;

/// So many are kept of an upstream.
const MOST: usize = 100;

/// What comes again within that time is one row.
const CLOSELY: Duration = Duration::from_secs(60);

/// The last decisions of an upstream.
#[derive(Debug, Default)]
pub(crate) struct Decisions(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    last: VecDeque<NotedDecision>,
    /// All that there were.
    count: u64,
}

#[derive(Debug)]
struct NotedDecision {
    at: Timestamp,
    scope: Option<Arc<str>>,
    /// A class, or the code of a refusal.
    kind: &'static str,
    text: String,
    /// How many like it there were, one closely after the other.
    times: u64,
}

impl Decisions {
    /// Notes one. Those of one kind in one scope that follow each other closely are one, with the last text.
    pub(crate) fn note(&self, scope: Option<&Arc<str>>, kind: &'static str, mut text: String) {
        cut(&mut text);
        let (kept, at) = (&mut *self.kept(), clock::wall());
        kept.count += 1;
        let same = |last: &NotedDecision| {
            last.kind == kind && last.scope.as_ref() == scope && at.saturating_since(last.at) < CLOSELY
        };
        let before = kept.last.iter().rposition(same).and_then(|place| kept.last.remove(place));
        if kept.last.len() == MOST {
            kept.last.pop_front();
        }
        let times = before.map_or(1, |before| before.times + 1);
        kept.last.push_back(NotedDecision { at, scope: scope.map(Arc::clone), kind, text, times });
    }

    /// How many there were: it changes with each.
    pub(crate) fn count(&self) -> u64 {
        self.kept().count
    }

    /// Those that are kept, the last first.
    pub(crate) fn json(&self, upstream: &str) -> Vec<Value> {
        let decision = |decision: &NotedDecision| {
            let NotedDecision { at, scope, kind, text, times } = decision;
            json!({
                "at": at.to_string(),
                "upstream": upstream,
                "scope": scope.as_deref(),
                "kind": kind,
                "text": text,
                "times": times,
            })
        };
        self.kept().last.iter().rev().map(decision).collect()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::LONGEST_TEXT;

    #[test]
    fn the_last_are_kept_and_a_row_of_the_same_is_one() {
        let decisions = Decisions::default();
        let scope: Arc<str> = "m".into();
        decisions.note(Some(&scope), "throttled", "try 0".into());
        decisions.note(None, "throttled", "x".repeat(1_000));
        (1..3).for_each(|n| decisions.note(Some(&scope), "throttled", format!("try {n}")));
        let json = decisions.json("api");
        assert_eq!((json.len(), decisions.count()), (2, 4));
        assert_eq!((&json[0]["times"], &json[0]["text"], &json[0]["scope"]), (&3.into(), &"try 2".into(), &"m".into()));
        assert_eq!(json[1]["text"].as_str().map(|text| text.chars().count()), Some(LONGEST_TEXT + 1));
        (0..500).for_each(|n| decisions.note(Some(&n.to_string().into()), "failed", String::new()));
        let json = decisions.json("api");
        assert_eq!((json.len(), &json[0]["scope"]), (MOST, &"499".into()));
    }
}
