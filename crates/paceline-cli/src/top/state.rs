//! The state of a gateway, kept up to date by what it tells.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline::clock;
use paceline_core::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::text;

/// What the gateway tells; a part that is not there has not changed.
#[derive(Debug, Deserialize)]
pub(super) struct Changes {
    at: String,
    version: String,
    first: bool,
    gone: Vec<(String, String)>,
    scopes: Vec<Scope>,
    decisions: Option<Vec<Decision>>,
}

/// A scope; one without a name is the account of its upstream.
#[derive(Debug, Deserialize)]
pub(super) struct Scope {
    pub(super) upstream: String,
    pub(super) name: String,
    state: String,
    pub(super) trouble: u8,
    pub(super) waiting: u64,
    why: Option<Why>,
    pub(super) concurrency: Places,
    pub(super) last_minute: LastMinute,
    pub(super) belief: Option<LearntRate>,
    /// Of an account in a fleet: where this process stands there.
    #[serde(default)]
    fleet: Value,
}

#[derive(Debug, Deserialize)]
struct Why {
    before: String,
    until: Option<String>,
    after: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Places {
    pub(super) in_flight: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct LastMinute {
    succeeded: u64,
    pub(super) throttled: u64,
    pub(super) overloaded: u64,
    failed: u64,
    pub(super) p95_ms: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct LearntRate {
    pub(super) text: String,
}

/// A decision about a call that did not simply succeed.
#[derive(Debug, Deserialize)]
pub(super) struct Decision {
    at: String,
    pub(super) upstream: String,
    pub(super) scope: Option<String>,
    pub(super) text: String,
    pub(super) times: u64,
}

impl Decision {
    /// When it was made.
    pub(super) fn at(&self) -> Option<Timestamp> {
        text::instant(&self.at)
    }
}

impl Scope {
    /// The one sentence why its next call waits, at that time.
    pub(super) fn sentence(&self, now: Timestamp) -> String {
        let until = |why: &Why| why.until.as_deref().map(|until| text::instant(until).unwrap_or(now));
        let left = self.why.as_ref().and_then(until).map(|until| until.saturating_since(now));
        match &self.why {
            Some(Why { before, after, .. }) if left != Some(Duration::ZERO) => {
                text::printable(&format!("{before}{}{after}", left.map_or_else(String::new, shortly))).into_owned()
            }
            _ if self.waiting > 0 => "the next call leaves now".to_owned(),
            _ if self.concurrency.in_flight > 0 => "calls leave as they come".to_owned(),
            _ => "ready; no call waits".to_owned(),
        }
    }

    /// Where its gateway stands in its fleet, at that time.
    pub(super) fn fleet(&self, now: Timestamp) -> Option<String> {
        text::fleet(&self.fleet, now)
    }

    /// The word for its state.
    pub(super) fn state(&self) -> &str {
        match self.trouble {
            4 => "down",
            3 => "stopped",
            2 if self.state != "held" => "closed",
            1 => "waits",
            _ => &self.state,
        }
    }

    /// Answers of the last minute: successes and refusals.
    pub(super) const fn answers(&self) -> u64 {
        self.last_minute.succeeded + self.refused()
    }

    /// Calls of the last minute that failed, be it that there was no server.
    pub(super) const fn failed(&self) -> u64 {
        self.last_minute.failed
    }

    /// Those of them that are 429 or 503.
    pub(super) const fn refused(&self) -> u64 {
        self.last_minute.throttled + self.last_minute.overloaded
    }
}

/// A time as a person reads it who looks for a moment: tenths that run are read by no person.
fn shortly(left: Duration) -> String {
    match left.as_secs() {
        0 => "less than 1s".to_owned(),
        1..10 => text::duration(left),
        _ => text::duration(Duration::from_secs(left.as_millis().div_ceil(1_000) as u64)),
    }
}

/// What is known of the gateway.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) scopes: BTreeMap<(String, String), Scope>,
    pub(super) decisions: Vec<Decision>,
    pub(super) version: String,
    /// The gateway's clock when it spoke last, and this one's.
    heard: Option<(Timestamp, Timestamp)>,
    /// Why nothing comes from it, and since when.
    pub(super) lost: Option<(Timestamp, String)>,
}

impl State {
    /// Takes what it tells.
    pub(super) fn take(&mut self, changes: Changes) {
        self.heard = text::instant(&changes.at).map(|at| (at, clock::wall()));
        self.lost = None;
        self.version = changes.version;
        if changes.first {
            self.scopes.clear();
        }
        changes.gone.iter().for_each(|place| drop(self.scopes.remove(place)));
        for scope in changes.scopes {
            self.scopes.insert((scope.upstream.clone(), scope.name.clone()), scope);
        }
        if let Some(decisions) = changes.decisions {
            self.decisions = decisions;
        }
    }

    /// Nothing comes from it any more.
    pub(super) fn lost(&mut self, why: String) {
        let since = self.lost.take().map_or_else(clock::wall, |(since, _)| since);
        self.lost = Some((since, why));
    }

    /// The present time by the gateway's clock.
    pub(super) fn now(&self) -> Timestamp {
        let now = clock::wall();
        self.heard.map_or(now, |(theirs, ours)| theirs + now.saturating_since(ours))
    }

    /// The account of each upstream.
    pub(super) fn accounts(&self) -> impl Iterator<Item = &Scope> {
        self.scopes.values().filter(|scope| scope.name.is_empty())
    }
}
