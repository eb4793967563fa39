//! The numbers of a gateway in the text format of Prometheus. What a limiter knows is read from its snapshot when the page is
//! asked for; counted here is only what no limiter knows: requests of clients, how long they waited, and tokens.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use paceline::{Class, Clock, FleetShare, Instant, QuotaSnapshot, ScopeSnapshot, Snapshot, Timestamp};
use paceline_core::Silence;
use paceline_providers::Usage;
use paceline_providers::escape::printable;
use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry, TEXT_FORMAT, TextEncoder,
};

use crate::backend::{Backend, OTHER};
use crate::clients::Clients;
use crate::conditions::{Conditions, VALID_FROM, VALID_UNTIL};
use crate::record::{BATCH, PRIORITIES, priority_name};
use crate::state::Look;

mod fleet;
mod turned_away;

use self::fleet::FleetGauges;
pub(crate) use self::turned_away::TurnedAway;
use self::turned_away::refusals;

/// The type of the page, for its header field.
pub(crate) const CONTENT_TYPE: &str = TEXT_FORMAT;

/// So many scopes of an upstream have series of their own: clients choose the names, and each series costs Prometheus memory.
const MOST_SCOPES: usize = 200;

/// What a request that the gateway itself refused counts as, beside the classes of answers.
pub(crate) const REFUSED: &str = "refused";

/// From a request that waits for nothing to the longest deadline that is usual, in seconds.
const WAITS: [f64; 12] = [0.005, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 240.0, 600.0];

/// From a list of models to a long thought, in seconds; 600 s is the default bound.
const ANSWERS: [f64; 12] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0];

/// What is counted for one upstream.
pub(crate) struct Metrics {
    requests: IntCounterVec,
    refusals: IntCounterVec,
    tokens: IntCounterVec,
    estimated: IntCounterVec,
    waits: HistogramVec,
    /// Those of each priority, which cost a request no search by its label.
    waits_of: [prometheus::Histogram; PRIORITIES.len()],
    answers: prometheus::Histogram,
    /// Few, so that a name is found by less than its hash costs.
    scopes: RwLock<BTreeMap<Arc<str>, Arc<ScopeMetrics>>>,
    /// For how long answers are awaited: an upstream that is configured anew has other clocks.
    pub(crate) clock: Clock,
}

/// The counters of one scope, which cost a request no search by labels.
pub(crate) struct ScopeMetrics {
    label: Arc<str>,
    requests: [IntCounter; Class::ALL.len()],
    refused: IntCounter,
    tokens: [IntCounter; 2],
    estimated: [IntCounter; 2],
    silence: Mutex<Silence>,
}

impl ScopeMetrics {
    /// Its calls that wait for their answers.
    pub(crate) fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its name, safe on a screen.
    pub(crate) fn label(&self) -> &str {
        &self.label
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its last call ended so, or the client went away before.
    Answered(Class),
    /// The gateway refused it, with that code.
    Refused(&'static str),
}

impl Ending {
    /// The value of the label `class`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Answered(class) => class.as_str(),
            Self::Refused(_) => REFUSED,
        }
    }
}

impl Metrics {
    pub(crate) fn new(upstream: &str) -> Self {
        let of = |name: &str, help: &str| Opts::new(name, help).const_label("upstream", upstream);
        let counters = |name, help, labels: &[&str]| {
            IntCounterVec::new(of(name, help), labels).expect("the names are those of the source")
        };
        let histogram =
            |name, help, buckets: &[f64]| HistogramOpts { common_opts: of(name, help), buckets: buckets.to_vec() };
        let waits = histogram(
            "paceline_wait_seconds",
            "How long a request waited in the gateway for its turn, all its tries together",
            &WAITS,
        );
        let answers = histogram(
            "paceline_upstream_seconds",
            "How long the upstream took from a call to the head of its answer",
            &ANSWERS,
        );
        let waits = HistogramVec::new(waits, &["priority"]).expect("the names are those of the source");
        Self {
            requests: counters(
                "paceline_requests_total",
                "Requests of clients that ended, by the class of the answer that they got; refused: by the gateway itself",
                &["scope", "class"],
            ),
            refusals: refusals(upstream),
            tokens: counters(
                "paceline_tokens_total",
                "Tokens that answers reported, in (of prompts) and out (of answers)",
                &["scope", "direction"],
            ),
            estimated: counters(
                "paceline_tokens_estimated_total",
                "Tokens that calls count with beside those that answers reported",
                &["scope", "direction"],
            ),
            waits_of: PRIORITIES.map(|priority| waits.with_label_values(&[priority_name(priority)])),
            waits,
            answers: prometheus::Histogram::with_opts(answers).expect("the names are those of the source"),
            scopes: RwLock::default(),
            clock: Clock::new(),
        }
    }

    /// A request of a client has ended. Without a scope it ended before it had one.
    pub(crate) fn ended(&self, scope: Option<&Arc<str>>, priority: i32, waited: Duration, ending: Ending) {
        self.waits_of[usize::from(priority <= BATCH)].observe(waited.as_secs_f64());
        if let Ending::Refused(code) = ending {
            self.refusals.with_label_values(&[code]).inc();
        }
        match (scope.map(|scope| self.of_scope(scope)), ending) {
            (Some(scope), Ending::Answered(class)) => scope.requests[class as usize].inc(),
            (Some(scope), Ending::Refused(_)) => scope.refused.inc(),
            (None, ending) => self.requests.with_label_values(&["", ending.as_str()]).inc(),
        }
    }

    /// The head of an answer came, or nothing did.
    pub(crate) fn answered(&self, took: Duration) {
        self.answers.observe(took.as_secs_f64());
    }

    /// An answer reported its tokens.
    pub(crate) fn used(&self, scope: &Arc<str>, usage: &Usage) {
        add(&self.of_scope(scope).tokens, usage);
    }

    /// An answer reported none, or less than counts: it seems to have had so many more.
    pub(crate) fn estimated(&self, scope: &Arc<str>, usage: &Usage) {
        add(&self.of_scope(scope).estimated, usage);
    }

    /// What `found` finds of each scope, at present.
    pub(crate) fn silences<T>(&self, found: impl Fn(&mut Silence, Instant) -> Option<T>) -> Vec<(Arc<str>, T)> {
        let (now, scopes) = (self.clock.now(), self.scopes.read().unwrap_or_else(PoisonError::into_inner));
        let found = |scope: &ScopeMetrics| Some((Arc::clone(&scope.label), found(&mut scope.silence(), now)?));
        scopes.values().filter_map(|scope| found(scope)).collect()
    }

    /// What is counted for a scope.
    pub(crate) fn of_scope(&self, scope: &Arc<str>) -> Arc<ScopeMetrics> {
        if let Some(known) = self.scopes.read().unwrap_or_else(PoisonError::into_inner).get(scope) {
            return Arc::clone(known);
        }
        let mut scopes = self.scopes.write().unwrap_or_else(PoisonError::into_inner);
        let name = if scopes.len() < MOST_SCOPES { Arc::clone(scope) } else { OTHER.into() };
        if let Some(known) = scopes.get(&name) {
            return Arc::clone(known);
        }
        // A terminal would follow what a client put into the name of a model.
        let label: Arc<str> = printable(&name).into();
        let made = Arc::new(ScopeMetrics {
            requests: Class::ALL.map(|class| self.requests.with_label_values(&[&*label, class.as_str()])),
            refused: self.requests.with_label_values(&[&*label, REFUSED]),
            tokens: ["in", "out"].map(|direction| self.tokens.with_label_values(&[&*label, direction])),
            estimated: ["in", "out"].map(|direction| self.estimated.with_label_values(&[&*label, direction])),
            label,
            silence: Mutex::default(),
        });
        scopes.insert(name, Arc::clone(&made));
        made
    }

    fn collectors(&self) -> [Box<dyn Collector>; 6] {
        [
            Box::new(self.requests.clone()),
            Box::new(self.refusals.clone()),
            Box::new(self.tokens.clone()),
            Box::new(self.estimated.clone()),
            Box::new(self.waits.clone()),
            Box::new(self.answers.clone()),
        ]
    }
}

fn add([input, output]: &[IntCounter; 2], usage: &Usage) {
    input.inc_by(usage.prompt_tokens());
    output.inc_by(usage.output_tokens);
}

/// The page, for these upstreams and clients, and from when on and until when the certificate is valid that clients are shown.
///
/// # Errors
/// The encoder's, which names a series.
pub(crate) fn page(
    upstreams: &[Arc<Backend>],
    turned_away: &TurnedAway,
    valid: Option<(Timestamp, Timestamp)>,
    clients: &Clients,
    conditions: &Conditions,
) -> Result<String, prometheus::Error> {
    let (registry, gauges) = (Registry::new(), Gauges::new()?);
    let build = Opts::new("paceline_build_info", "Always 1; the version of the gateway is a label");
    let build = Gauge::with_opts(build.const_label("version", env!("CARGO_PKG_VERSION")))?;
    build.set(1.0);
    registry.register(Box::new(build))?;
    registry.register(Box::new(turned_away.0.clone()))?;
    conditions.register(&registry)?;
    if let Some((from, until)) = valid {
        let from =
            (VALID_FROM, "From when on the certificate is valid that clients are shown: seconds since 1970", from);
        let until =
            (VALID_UNTIL, "Until when the certificate is valid that clients are shown: seconds since 1970", until);
        for (name, help, at) in [from, until] {
            let gauge = Gauge::new(name, help)?;
            gauge.set((at.as_millis() / 1_000) as f64);
            registry.register(Box::new(gauge))?;
        }
    }
    for upstream in upstreams {
        gauges.look_at(upstream);
        upstream.metrics().collectors().into_iter().try_for_each(|collector| registry.register(collector))?;
    }
    gauges.look_at_clients(clients);
    gauges.all().try_for_each(|gauge| registry.register(Box::new(gauge.clone())))?;
    TextEncoder::new().encode_to_string(&registry.gather())
}

/// What limiters know, made for one page: what is gone leaves no series behind.
struct Gauges {
    waiting: GaugeVec,
    held: GaugeVec,
    in_flight: GaugeVec,
    oldest: GaugeVec,
    silent: GaugeVec,
    failing: GaugeVec,
    limit: GaugeVec,
    remaining: GaugeVec,
    state: GaugeVec,
    fleet: FleetGauges,
    of_client: GaugeVec,
    left_to_client: GaugeVec,
}

impl Gauges {
    fn new() -> Result<Self, prometheus::Error> {
        let gauge = |name, help: &str, labels: &[&str]| GaugeVec::new(Opts::new(name, help), labels);
        let of_limit = ["upstream", "scope", "dimension", "origin", "window_seconds"];
        Ok(Self {
            waiting: gauge(
                "paceline_waiting",
                "Requests that wait for their turn",
                &["upstream", "scope", "priority"],
            )?,
            held: gauge(
                "paceline_waiting_for_key",
                "Requests that wait for a limit of their client's key or its share of the calls in flight, and are in \
                 paceline_waiting only afterwards",
                &["upstream", "client"],
            )?,
            in_flight: gauge("paceline_in_flight", "Calls under way", &["upstream", "scope"])?,
            oldest: gauge(
                "paceline_unanswered_seconds",
                "For how long the oldest call waits for the beginning of its answer; 0 where none waits",
                &["upstream", "scope"],
            )?,
            silent: gauge(
                "paceline_silent_seconds",
                "Where the server is silent: for how long calls have waited since the last answer began, those that clients gave \
                 up included; else 0",
                &["upstream", "scope"],
            )?,
            failing: gauge(
                "paceline_failing_seconds",
                "For how long calls have failed, had no connection or were all refused (429), for all clients, and none was \
                 answered: a series for each scope that does so, and one with an empty scope, which is 0 while anything answers",
                &["upstream", "scope"],
            )?,
            limit: gauge(
                "paceline_limit",
                "Units that a limit allows in its window (dimension concurrency: at once); the scope of a limit on the whole \
                 account is empty; a learnt one is the present estimate, a share what this process of a fleet may use, alone what \
                 it may without the store, quarantine what none of them may yet",
                &of_limit,
            )?,
            remaining: gauge("paceline_limit_remaining", "Units that are left of a limit now", &of_limit)?,
            state: gauge(
                "paceline_scope_state",
                "1 for the state in force, else 0: open, paced (it waits for a limit), held (until a known time), closed (nothing \
                 leaves for a while, or its server fails or is silent), stopped (until a person acts), down (its server has \
                 answered no call for five minutes); what closes an account closes its scopes; the account has an empty scope; in \
                 the scope other: the number of scopes",
                &["upstream", "scope", "state"],
            )?,
            fleet: FleetGauges::new()?,
            of_client: gauge(
                "paceline_client_limit",
                "Units that a limit of a client's key allows in its window",
                &["client", "dimension", "window_seconds"],
            )?,
            left_to_client: gauge(
                "paceline_client_limit_remaining",
                "Units that are left of a limit of a client's key now",
                &["client", "dimension", "window_seconds"],
            )?,
        })
    }

    fn all(&self) -> impl Iterator<Item = &GaugeVec> {
        let Self { waiting, held, in_flight, oldest, silent, failing, limit, remaining, state, .. } = self;
        let own = [waiting, held, in_flight, oldest, silent, failing, limit, remaining, state];
        own.into_iter().chain(self.fleet.all()).chain([&self.of_client, &self.left_to_client])
    }

    /// A series for each limit of each key: keys are the operator's.
    fn look_at_clients(&self, clients: &Clients) {
        for (client, quotas) in clients.with_limits() {
            for QuotaSnapshot { dimension, limit, remaining, window, .. } in quotas {
                let labels = [client, dimension.as_str(), &seconds(window)];
                self.of_client.with_label_values(&labels).set(dimension.number(limit));
                self.left_to_client.with_label_values(&labels).set(dimension.number(remaining));
            }
        }
    }

    fn look_at(&self, upstream: &Arc<Backend>) {
        let (name, look) = (upstream.name(), Look::at(upstream));
        let (snapshot, now) = (&look.snapshot, look.now);
        for (client, held) in upstream.notes().spending.held() {
            self.held.with_label_values(&[name, &client]).set(held as f64);
        }
        for (scope, (oldest, silent)) in upstream.metrics().silences(|silence, now| {
            let silent = silence.silent(now).map(|silent| silent.waited).unwrap_or_default();
            Some((silence.oldest(now).as_secs_f64(), silent.as_secs_f64()))
        }) {
            self.oldest.with_label_values(&[name, &*scope]).set(oldest);
            self.silent.with_label_values(&[name, &*scope]).set(silent);
        }
        self.fleet.look_at(name, &snapshot.account, now);
        self.failing.with_label_values(&[name, ""]).set(0.0);
        for down in upstream.notes().outages.down(now) {
            let label =
                down.scope.map(|scope| Arc::clone(&upstream.metrics().of_scope(&scope).label)).unwrap_or_default();
            self.failing.with_label_values(&[name, &*label]).set(now.saturating_since(down.since).as_secs_f64());
        }
        self.limits(name, "", &snapshot.account);
        self.states([name, ""], look.word(&snapshot.account));
        let places = f64::from(snapshot.account.concurrency.current_limit);
        self.limit.with_label_values(&[name, "", "concurrency", "configured", ""]).set(places);
        for scope in &snapshot.scopes {
            let label = &*upstream.metrics().of_scope(&scope.name).label;
            let waits = |priority: i32| {
                let of_name = |(each, _): &&(i32, u64)| priority_name(*each) == priority_name(priority);
                scope.waiting_by_priority.iter().filter(of_name).map(|(_, count)| *count).sum::<u64>()
            };
            for priority in PRIORITIES {
                self.waiting.with_label_values(&[name, label, priority_name(priority)]).add(waits(priority) as f64);
            }
            let in_flight = f64::from(scope.concurrency.in_flight);
            self.in_flight.with_label_values(&[name, label]).add(in_flight);
            self.states([name, label], look.word(scope));
            // Limits of several scopes have no sum.
            if label != OTHER {
                self.limits(name, label, scope);
            }
        }
    }

    fn limits(&self, upstream: &str, label: &str, scope: &ScopeSnapshot) {
        let quotas = scope.quotas.iter().map(|quota| ("configured", quota));
        for (origin, quota) in quotas.chain(scope.announced.iter().map(|quota| ("announced", quota))) {
            let QuotaSnapshot { dimension, limit, remaining, window, .. } = quota;
            let labels = [upstream, label, dimension.as_str(), origin, &seconds(*window)];
            self.limit.with_label_values(&labels).set(*limit as f64);
            self.remaining.with_label_values(&labels).set(*remaining as f64);
        }
        for FleetShare { limit, units, alone, quarantine, .. } in scope.fleet.iter().flat_map(|fleet| &fleet.shares) {
            let label = limit.tier.as_deref().map_or("", |tier| tier);
            let window = if limit.in_flight { None } else { Some(limit.quota.window) };
            let window = seconds(window);
            for (origin, units) in [("share", units), ("alone", alone), ("quarantine", quarantine)] {
                let labels = [upstream, label, limit.dimension(), origin, &window];
                self.limit.with_label_values(&labels).set(*units as f64);
            }
        }
        let Some(estimate) = &scope.estimate else { return };
        let learnt = |dimension: &str, window: &str, value: f64| {
            self.limit.with_label_values(&[upstream, label, dimension, "learnt", window]).set(value);
        };
        learnt("requests", "1", estimate.rate);
        estimate.tokens.into_iter().for_each(|rate| learnt("tokens", "1", rate));
        estimate.cap.into_iter().for_each(|cap| learnt("concurrency", "", f64::from(cap)));
        if let Some(share) = estimate.shared.and_then(|shared| shared.share) {
            self.limit.with_label_values(&[upstream, label, "requests", "share", "1"]).set(share);
        }
    }

    fn states(&self, [upstream, label]: [&str; 2], in_force: &str) {
        for state in Snapshot::WORDS {
            let is_in_force = if state == in_force { 1.0 } else { 0.0 };
            self.state.with_label_values(&[upstream, label, state]).add(is_in_force);
        }
    }
}

/// The value of the label of a window.
fn seconds(window: Option<Duration>) -> String {
    window.map_or_else(String::new, |window| window.as_secs_f64().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_beyond_the_bound_share_one_series() {
        let metrics = Metrics::new("api");
        let name = |n: usize| Arc::from(format!("model-{n}"));
        for n in 0..2 * MOST_SCOPES {
            metrics.ended(Some(&name(n)), 0, Duration::ZERO, Ending::Answered(Class::Success));
        }
        metrics.ended(Some(&name(MOST_SCOPES)), 0, Duration::ZERO, Ending::Refused("too_large"));
        assert_eq!(metrics.scopes.read().expect("no panic").len(), MOST_SCOPES + 1);
        let count = |scope: &str, class: &str| metrics.requests.with_label_values(&[scope, class]).get();
        assert_eq!((count("model-0", "success"), count(OTHER, "success")), (1, MOST_SCOPES as u64));
        assert_eq!(count(OTHER, REFUSED), 1);
    }

    #[test]
    fn the_page_says_when_the_certificate_ends() {
        let page = |valid| {
            page(&[], &TurnedAway::default(), valid, &Clients::OfThisMachine, &Conditions::default()).expect("a page")
        };
        let [from, until] = [1_759_795_200_000, 1_767_571_200_000].map(Timestamp::from_millis);
        let made = page(Some((from, until)));
        for line in ["from_seconds 1759795200", "until_seconds 1767571200"] {
            assert!(made.contains(&format!("\npaceline_certificate_valid_{line}\n")), "{made}");
        }
        assert!(!page(None).contains("certificate"));
    }
    #[test]
    fn names_that_clients_choose_have_no_controls_of_a_terminal() {
        let metrics = Metrics::new("api");
        let scopes = ["m\u{1b}]0;owned\u{7}", "m\u{9b}2J\r\nx"].map(Arc::<str>::from);
        scopes.iter().for_each(|scope| metrics.ended(Some(scope), 0, Duration::ZERO, Ending::Answered(Class::Success)));
        let registry = Registry::new();
        metrics.collectors().into_iter().for_each(|collector| registry.register(collector).expect("once"));
        let page = TextEncoder::new().encode_to_string(&registry.gather()).expect("a page");
        assert!(page.contains("m\u{fffd}]0;owned\u{fffd}") && page.contains("m\u{fffd}2J  x"), "{page}");
        assert!(page.chars().all(|c| c == '\n' || !c.is_control()), "{page:?}");
    }
}
