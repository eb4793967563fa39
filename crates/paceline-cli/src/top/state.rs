//! The state of a gateway, kept up to date by what it tells.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline::clock;
use paceline_core::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::history::History;
use crate::text;

/// What the gateway tells; a part that is not there has not changed.
#[derive(Debug, Deserialize)]
pub(super) struct Changes {
    at: String,
    version: String,
    first: bool,
    gone: Vec<(String, String)>,
    scopes: Vec<Scope>,
    decisions: Option<Vec<NotedDecision>>,
    clients: Option<Vec<Client>>,
    jobs: Option<Vec<Job>>,
    batches: Option<Vec<Batch>>,
}

/// A scope; one without a name is the account of its upstream.
#[derive(Debug, Deserialize)]
pub(super) struct Scope {
    pub(super) upstream: String,
    pub(super) name: String,
    state: String,
    /// None of an earlier version.
    word: Option<String>,
    pub(super) trouble: u8,
    pub(super) waiting: u64,
    why: Option<Why>,
    pub(super) concurrency: Places,
    pub(super) last_minute: LastMinute,
    pub(super) belief: Option<LearntRate>,
    pub(super) quotas: Vec<Quota>,
    pub(super) announced: Vec<Quota>,
    pub(super) totals: Totals,
    waiting_by_priority: BTreeMap<String, u64>,
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
    pub(super) current_limit: u64,
}

/// A limit, and what is left of it.
#[derive(Debug, Deserialize)]
pub(super) struct Quota {
    dimension: String,
    limit: u64,
    pub(super) remaining: u64,
    window_s: Option<f64>,
    pub(super) next_free: Option<String>,
}

impl Quota {
    /// As in `500 requests per minute`.
    pub(super) fn describe(&self) -> String {
        let window = self.window_s.map(|seconds| match seconds as u64 {
            1 => "second".to_owned(),
            60 => "minute".to_owned(),
            3_600 => "hour".to_owned(),
            86_400 => "day".to_owned(),
            _ => text::duration(Duration::try_from_secs_f64(seconds).unwrap_or_default()),
        });
        let window = window.map_or_else(String::new, |window| format!(" per {window}"));
        format!("{} {}{window}", text::count(self.limit), self.dimension)
    }
}

/// Calls since the gateway began.
#[derive(Debug, Deserialize)]
pub(super) struct Totals {
    pub(super) sends: u64,
    by_class: BTreeMap<String, u64>,
}

impl Totals {
    /// Those that were answered with 429.
    pub(super) fn refused(&self) -> u64 {
        self.of("throttled") + self.of("quota_exhausted")
    }

    /// The same with 503.
    pub(super) fn overloaded(&self) -> u64 {
        self.of("overloaded")
    }

    fn of(&self, class: &str) -> u64 {
        self.by_class.get(class).copied().unwrap_or_default()
    }
}

/// What a client has used of an upstream since the gateway began.
#[derive(Debug, Deserialize)]
pub(super) struct Client {
    pub(super) client: String,
    pub(super) upstream: String,
    pub(super) waiting: u64,
    pub(super) requests: u64,
    pub(super) tokens_in: u64,
    pub(super) tokens_out: u64,
    /// None without prices.
    pub(super) cost: Option<f64>,
    pub(super) waits_for: Option<String>,
    pub(super) until: Option<String>,
}

/// A job of `run` or `tasks`, as it tells of itself.
#[derive(Debug, Deserialize)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) upstream: String,
    pub(super) state: String,
    pub(super) done: u64,
    pub(super) total: u64,
    pub(super) failed: u64,
    pub(super) left_ms: Option<u64>,
    pub(super) waits: Option<String>,
}

/// A batch of the gateway's own.
#[derive(Debug, Deserialize)]
pub(super) struct Batch {
    pub(super) id: String,
    pub(super) upstream: String,
    pub(super) status: String,
    pub(super) done: u64,
    pub(super) total: u64,
    pub(super) failed: u64,
    pub(super) waits_for: Option<String>,
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
pub(super) struct NotedDecision {
    at: String,
    pub(super) upstream: String,
    pub(super) scope: Option<String>,
    pub(super) text: String,
    pub(super) times: u64,
}

impl NotedDecision {
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

    /// Why its next call waits, and what is believed of its limit.
    pub(super) fn about(&self, now: Timestamp) -> String {
        let belief = self.belief.as_ref().map(|belief| format!("; {}", text::printable(&belief.text)));
        self.sentence(now) + &belief.unwrap_or_default()
    }

    /// A scope is mostly a path and a model: what tells it from others stands first.
    pub(super) fn name_parts(&self) -> [String; 2] {
        let upstream = text::printable(&self.upstream);
        if self.name.is_empty() {
            return [upstream.into_owned(), "the whole account".to_owned()];
        }
        let name = text::printable(&self.name);
        match name.rsplit_once(' ') {
            Some((path, model)) => [model.to_owned(), format!("{upstream} {path}")],
            None => [name.into_owned(), upstream.into_owned()],
        }
    }

    /// Its name, for people.
    pub(super) fn title(&self) -> String {
        self.name_parts().join(" ")
    }

    /// Interactive requests that wait, and those of batches.
    pub(super) fn waiting_by_priority(&self) -> [u64; 2] {
        ["interactive", "batch"].map(|priority| self.waiting_by_priority.get(priority).copied().unwrap_or_default())
    }

    /// Where its gateway stands in its fleet, at that time.
    pub(super) fn fleet(&self, now: Timestamp) -> Option<String> {
        text::fleet(&self.fleet, now)
    }

    /// The word for its state.
    pub(super) fn state(&self) -> &str {
        self.word.as_deref().unwrap_or(&self.state)
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
pub(super) fn shortly(left: Duration) -> String {
    match left.as_secs() {
        0 => "less than 1s".to_owned(),
        1..10 => text::duration(left),
        _ => text::duration(Duration::from_secs(left.as_millis().div_ceil(1_000) as u64)),
    }
}

/// The upstream and the name of a scope.
pub(super) type Place = (String, String);

/// What is known of the gateway.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) scopes: BTreeMap<Place, Scope>,
    pub(super) decisions: Vec<NotedDecision>,
    pub(super) clients: Vec<Client>,
    pub(super) jobs: Vec<Job>,
    pub(super) batches: Vec<Batch>,
    pub(super) version: String,
    /// Of the scope that was asked for last.
    history: Option<(Place, History)>,
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
        self.clients = changes.clients.unwrap_or(std::mem::take(&mut self.clients));
        self.jobs = changes.jobs.unwrap_or(std::mem::take(&mut self.jobs));
        self.batches = changes.batches.unwrap_or(std::mem::take(&mut self.batches));
    }

    /// Takes the last quarter of an hour of a scope, where one is kept.
    pub(super) fn take_history(&mut self, of: Place, history: Option<History>) {
        self.history = history.map(|history| (of, history));
    }

    /// That of a scope, where it is known.
    pub(super) fn history_of(&self, scope: &Scope) -> Option<&History> {
        let (of, history) = self.history.as_ref()?;
        (of.0 == scope.upstream && of.1 == scope.name).then_some(history)
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

    /// The account that a scope is a part of.
    pub(super) fn account_of(&self, scope: &Scope) -> Option<&Scope> {
        self.scopes.get(&(scope.upstream.clone(), String::new()))
    }

    /// The account of each upstream.
    pub(super) fn accounts(&self) -> impl Iterator<Item = &Scope> {
        self.scopes.values().filter(|scope| scope.name.is_empty())
    }
}
