//! The state of a gateway as one JSON document, and whether the gateway is ready.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use paceline::{Dimension, Instant, QuotaSnapshot, ScopeSnapshot, ScopeState, Snapshot, Timestamp, clock, scope_json};
use paceline_core::{Explanation, Trouble};
use serde_json::{Map, Value, json};

use crate::backend::Backend;
use crate::clients::{Clients, number_of};
use crate::closing::Phase;
use crate::notes::{ClientSpending, STEP, until_next};
use crate::payload::add;
use crate::record::{PRIORITIES, priority_name};
use crate::server::Gateway;
use crate::tls::Validity;

/// Times in texts of a scope that is at work are not older than that.
const OLDEST: Duration = Duration::from_secs(15);

/// A shorter wait that no call waits for is not shown.
const FELT: Duration = Duration::from_secs(1);

/// The most decisions and clients of a document, over all upstreams.
const MOST_ROWS: usize = 100;

impl Gateway {
    /// Whether requests are welcome: not while the gateway ends, nor when no upstream would take one.
    /// What is amiss all the same stands in the text.
    pub(crate) fn readiness(&self) -> Result<String, String> {
        if self.closing.phase() != Phase::Serves {
            return Err("the gateway ends".to_owned());
        }
        let (mut closed, mut wait_for_a_store) = (Vec::new(), false);
        for upstream in self.upstreams().iter() {
            closed.push(match why_stopped(upstream) {
                Some(reason) => format!("{}: {reason}", upstream.name()),
                None => {
                    let Some(why) = upstream.without_share() else { return Ok(self.amiss()) };
                    wait_for_a_store = true;
                    format!("{}: {}", upstream.name(), why.words)
                }
            });
        }
        let what = if wait_for_a_store { "nothing leaves" } else { "every upstream is stopped until a person acts" };
        Err(format!("{what}: {}", closed.join("; ")))
    }

    /// How long the certificate is valid still that clients are shown.
    pub fn certificate_validity(&self, now: Timestamp) -> Validity {
        self.tls().map_or(Validity::Long, |tls| tls.validity(now))
    }

    /// A line for each upstream that is stopped or does not answer, and for what is amiss with the program. All may read it.
    fn amiss(&self) -> String {
        let kinds: [fn(&Backend) -> Option<String>; 4] = [
            |upstream| Some(format!("stopped until a person acts: {}", why_stopped(upstream)?)),
            Backend::outage,
            |upstream| Some(upstream.longest_silence()?.to_string()),
            |upstream| Some(upstream.limiter().fleet()?.problem?.to_string()),
        ];
        let upstreams = self.upstreams();
        let line = |what: fn(&Backend) -> Option<String>| {
            let told = move |upstream: &Arc<Backend>| Some(format!("{}: {}\n", upstream.name(), what(upstream)?));
            upstreams.iter().filter_map(told)
        };
        let amiss = kinds.into_iter().flat_map(line);
        let certificate = match self.certificate_validity(clock::wall()) {
            Validity::Long => String::new(),
            Validity::EndsSoon(until) => format!("the certificate that clients are shown ends at {until}\n"),
            Validity::Ended(until) => format!("the certificate that clients are shown has ended at {until}\n"),
        };
        amiss.collect::<String>() + &certificate + &self.conditions().amiss()
    }

    pub(crate) fn looks(&self) -> Vec<Look> {
        let clients = self.clients();
        self.upstreams()
            .iter()
            .map(|upstream| Look { held: HeldByKeys::of(upstream, &clients), ..Look::at(upstream) })
            .collect()
    }

    /// The document of `/api/state`, scope by scope: as one value it would take ten times the memory of its text.
    pub(crate) fn document(&self, looks: &[Look]) -> Bytes {
        let mut text = Vec::new();
        let member = |text: &mut Vec<u8>, name: &str, value: &Value| add(text, format!("{name:?}:{value},").as_bytes());
        add(&mut text, b"{");
        self.head().as_object().into_iter().flatten().for_each(|(name, value)| member(&mut text, name, value));
        self.parts(looks).iter().for_each(|(name, part)| member(&mut text, name, part));
        add(&mut text, b"\"upstreams\":[");
        for (place, look) in looks.iter().enumerate() {
            add(&mut text, if place == 0 { b"" } else { b"," });
            look.write(&mut text);
        }
        add(&mut text, b"]}");
        text.into()
    }

    /// What every document begins with.
    pub(crate) fn head(&self) -> Value {
        json!({
            "at": clock::wall().to_string(),
            "version": env!("CARGO_PKG_VERSION"),
            "draining": self.closing.phase() != Phase::Serves,
        })
    }

    /// What is no upstream's alone.
    pub(crate) fn parts(&self, looks: &[Look]) -> [(&'static str, Value); 4] {
        let of_all =
            |rows: &dyn Fn(&Backend) -> Vec<Value>| looks.iter().flat_map(|look| rows(&look.upstream)).collect();
        let mut decisions: Vec<Value> = of_all(&|upstream| upstream.notes().decisions.json(upstream.name()));
        decisions.sort_by(|a, b| b["at"].as_str().cmp(&a["at"].as_str()));
        decisions.truncate(MOST_ROWS);
        let mut clients: Vec<Value> = of_all(&|upstream| {
            let has_prices = !upstream.config().prices.is_empty();
            upstream.notes().spending.json(upstream.name(), has_prices)
        });
        let known = self.clients();
        let mut limits: BTreeMap<&str, Value> =
            known.with_limits().map(|(name, limits)| (name, limits_json(&limits))).collect();
        let mut seen = BTreeSet::new();
        for row in &mut clients {
            if let Some((name, limits)) = row["client"].as_str().and_then(|name| limits.get_key_value(name)) {
                seen.insert(*name);
                row["limits"] = limits.clone();
            }
        }
        limits.retain(|name, _| !seen.contains(name));
        let has_prices = looks.iter().any(|look| !look.upstream.config().prices.is_empty());
        clients.extend(limits.into_iter().map(|(name, limits)| {
            let mut row = ClientSpending::idle(name, has_prices);
            row["limits"] = limits;
            row
        }));
        let failing = failing_alone(looks);
        for row in &mut clients {
            let whose = row["upstream"].as_str().zip(row["client"].as_str());
            if let Some(scope) = whose.and_then(|(upstream, name)| failing.get(&(upstream, number_of(name)))) {
                row["waits_for"] = format!("{scope}, where its calls alone fail").into();
            }
        }
        for row in clients.iter_mut().filter(|row| row["held"].as_u64() > Some(0)) {
            let Some((limit, wait)) = row["client"].as_str().and_then(|name| known.wait_of(name)) else { continue };
            row["waits_for"] = limit.into();
            row["until"] = wait.map(|wait| (clock::wall() + wait).to_string()).into();
        }
        let busiest = |client: &Value| ["waiting", "requests"].map(|figure| client[figure].as_u64());
        clients.sort_by_key(|client| std::cmp::Reverse(busiest(client)));
        clients.truncate(MOST_ROWS);
        let (batches, jobs) = (self.batches(), self.jobs.json());
        [("clients", clients.into()), ("decisions", decisions.into()), ("batches", batches), ("jobs", jobs)]
    }

    /// The last quarter of an hour of a scope, or of an upstream's account where `scope` is empty; none where it is not known.
    pub(crate) fn history(&self, upstream: &str, scope: &str) -> Option<Value> {
        let upstreams = self.upstreams();
        let found = upstreams.iter().find(|each| each.name() == upstream)?;
        let Look { now, .. } = Look::at(found);
        let mut columns = found.notes().history.columns(scope, now)?;
        columns["upstream"] = upstream.into();
        columns["scope"] = scope.into();
        // The end of the last step, which lies ahead.
        columns["until"] = (clock::wall() + until_next(now)).to_string().into();
        Some(columns)
    }

    /// Takes what has happened in each step of the history, for as long as it is polled.
    pub(crate) async fn keep_history(&self) {
        loop {
            // Each limiter has a clock of its own.
            let next = |upstream: &Arc<Backend>| {
                let Look { now, .. } = Look::at(upstream);
                upstream.tell_silence();
                upstream.notes().lines.tell_left_out(upstream.name(), now);
                until_next(now)
            };
            let next = self.upstreams().iter().map(next).min();
            tokio::time::sleep(next.unwrap_or(STEP)).await;
        }
    }
}

/// Why nothing leaves to the upstream until a person acts.
fn why_stopped(upstream: &Backend) -> Option<Arc<str>> {
    match upstream.limiter().account_state() {
        ScopeState::Stopped { reason } => Some(reason),
        _ => None,
    }
}

/// Each client whose calls alone fail, by its upstream and its number, and a scope where they do.
fn failing_alone(looks: &[Look]) -> BTreeMap<(&str, u64), &Arc<str>> {
    let mut failing = BTreeMap::new();
    for look in looks {
        for scope in &look.snapshot.scopes {
            failing.extend(scope.fails_for.iter().map(|client| ((look.upstream.name(), *client), &scope.name)));
        }
    }
    failing
}

/// One upstream at one instant.
pub(crate) struct Look {
    pub(crate) upstream: Arc<Backend>,
    pub(crate) now: Instant,
    pub(crate) snapshot: Snapshot,
    held: Option<HeldByKeys>,
}

/// Requests that wait for limits of their clients' keys, and for nothing of the upstream yet.
struct HeldByKeys {
    count: u64,
    /// For what, and until when as far as is known.
    words: String,
    wait: Option<Duration>,
}

impl HeldByKeys {
    fn of(upstream: &Backend, clients: &Clients) -> Option<Self> {
        let held = upstream.notes().spending.held();
        let (name, _) = held.first()?;
        let (limit, wait) =
            clients.wait_of(name).unwrap_or_else(|| ("its share of the calls in flight".to_owned(), None));
        let count = held.iter().map(|(_, count)| count).sum();
        let others = if held.len() > 1 { format!(" and {} other keys", held.len() - 1) } else { String::new() };
        Some(Self { count, words: format!("requests of the key {name}{others} wait for {limit}"), wait })
    }
}

impl Look {
    pub(crate) fn at(upstream: &Arc<Backend>) -> Self {
        let (mut snapshot, now) = (upstream.limiter().snapshot(), upstream.limiter().now());
        upstream.notes().history.sample(now, &snapshot);
        for (name, silent) in upstream.metrics().silences(|silence, now| silence.silent(now)) {
            let of_name = |scope: &&mut ScopeSnapshot| *upstream.metrics().of_scope(&scope.name).label() == *name;
            snapshot.scopes.iter_mut().filter(of_name).for_each(|scope| scope.silent = Some(silent));
        }
        let faults = upstream.notes().outages.faults(now);
        let of_all = faults.get(&None).cloned();
        for scope in snapshot.scopes.iter_mut().filter(|_| !faults.is_empty()) {
            scope.fault = faults.get(&Some(Arc::clone(&scope.name))).or(of_all.as_ref()).cloned();
        }
        snapshot.account.fault = of_all;
        Self { upstream: Arc::clone(upstream), now, snapshot, held: None }
    }

    fn write(&self, text: &mut Vec<u8>) {
        let mut json = self.overview();
        json["explain"] = self.snapshot.explain(self.now).into();
        json["account"] = self.scope(&self.snapshot.account);
        let json = json.to_string();
        add(text, json.strip_suffix('}').unwrap_or(&json).as_bytes());
        add(text, b",\"scopes\":[");
        for (place, scope) in self.snapshot.scopes.iter().enumerate() {
            add(text, if place == 0 { b"" } else { b"," });
            add(text, self.scope(scope).to_string().as_bytes());
        }
        add(text, b"]}");
    }

    /// The upstream without its scopes.
    pub(crate) fn overview(&self) -> Value {
        json!({
            "name": self.upstream.name(),
            "subject": &*self.snapshot.subject(self.now).name,
            "requests": self.upstream.waiting.count(),
        })
    }

    /// A scope, or the account.
    pub(crate) fn scope(&self, scope: &ScopeSnapshot) -> Value {
        let wall = clock::wall();
        // What has passed is told as the present: a limit that has room now has it since then.
        let at = |at: Instant| wall + at.saturating_since(self.now);
        let mut json = scope_json(scope, &at);
        let holder = self.snapshot.holder(scope, self.now);
        json["explain"] = Some(holder.explain(self.now)).filter(|text| !text.is_empty()).into();
        json["why"] = self.why(scope).map_or(Value::Null, |parts| {
            let until = parts.until.map(|until| at(until).to_string());
            json!({ "before": parts.before, "until": until, "after": parts.after })
        });
        let mut trouble = holder.trouble(self.now);
        json["silent"] = scope
            .silent
            .map_or(Value::Null, |silent| json!({ "calls": silent.calls, "waited_s": silent.waited.as_secs_f64() }));
        json["waiting_by_priority"] = by_priority(scope);
        json["last_minute"] = self.upstream.notes().history.last_minute(&scope.name, self.now).json();
        if let Some(held) = self.held.as_ref().filter(|_| scope.name.is_empty()) {
            json["waiting"] = (scope.waiting + held.count).into();
            json["held_by_keys"] = held.count.into();
            if json["why"].is_null() {
                let until = held.wait.map(|wait| (wall + wait).to_string());
                let before = if until.is_some() { format!("{} until ", held.words) } else { held.words.clone() };
                json["explain"] = held.words.clone().into();
                json["why"] = json!({ "before": before, "until": until, "after": "" });
                trouble = trouble.max(Trouble::Waits);
            }
        }
        json["trouble"] = (trouble as u8).into();
        json["word"] = if trouble == Trouble::Waits { "waits" } else { self.word(scope) }.into();
        json
    }

    /// The word for how it fares, with what calls have met: a limiter knows of no silence and no fault.
    pub(crate) fn word(&self, scope: &ScopeSnapshot) -> &'static str {
        self.snapshot.word(scope, self.now)
    }

    /// Why its next call does not leave at once, unless it is a moment that no call waits for.
    fn why(&self, scope: &ScopeSnapshot) -> Option<Explanation> {
        let holder = self.snapshot.holder(scope, self.now);
        let is_moment = |until: Instant| until.saturating_since(self.now) < FELT;
        let is_felt = |parts: &Explanation| parts.until.is_none_or(|until| !is_moment(until));
        let waits = scope.waiting > 0 || holder.trouble(self.now) > Trouble::None;
        holder.explanation().filter(|parts| waits || is_felt(parts))
    }

    /// The same for a screen: without what is only of use to compute with.
    pub(crate) fn shown(&self, scope: &ScopeSnapshot) -> Value {
        let mut json = self.scope(scope);
        if let Some(fields) = json.as_object_mut() {
            ["windows", "responsive", "next_due", "waits_until"].into_iter().for_each(|name| drop(fields.remove(name)));
        }
        for quota in json["quotas"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            quota.remove("taken");
        }
        if let Some(places) = json["concurrency"].as_object_mut() {
            places.remove("limit_history");
        }
        json["upstream"] = self.upstream.name().into();
        json
    }

    /// A print of what people would call a change of the scope: no ages, and nothing that only moves on with the time.
    pub(crate) fn print(&self, scope: &ScopeSnapshot) -> u64 {
        let mut print = DefaultHasher::new();
        (&scope.name, scope.state.as_str(), scope.totals.sends, scope.totals.by_class).hash(&mut print);
        (&scope.waiting_by_priority, scope.concurrency.in_flight, scope.closed_until).hash(&mut print);
        let limit = |quota: &QuotaSnapshot| (quota.limit, quota.remaining).hash(&mut print);
        scope.quotas.iter().chain(&scope.announced).for_each(limit);
        scope.estimate.as_ref().map(|estimate| estimate.rate.to_bits()).hash(&mut print);
        if let Some(fleet) = &scope.fleet {
            (fleet.to_string(), fleet.lease_ends.map(|ends| ends.as_nanos() / OLDEST.as_nanos() as u64))
                .hash(&mut print);
        }
        if let Some(held) = self.held.as_ref().filter(|_| scope.name.is_empty()) {
            (held.count, &held.words).hash(&mut print);
        }
        print.finish()
    }

    /// The same of what [`shown`](Self::shown) says.
    pub(crate) fn shown_print(&self, scope: &ScopeSnapshot) -> u64 {
        let mut print = DefaultHasher::new();
        self.print(scope).hash(&mut print);
        self.upstream.notes().history.last_minute(&scope.name, self.now).print().hash(&mut print);
        let tenths = |until: Instant| until.as_nanos() / 100_000_000;
        (self.snapshot.holder(scope, self.now).trouble(self.now), self.word(scope)).hash(&mut print);
        self.why(scope).map(|parts| (parts.before, parts.until.map(tenths), parts.after)).hash(&mut print);
        let is_at_work = scope.waiting > 0 || scope.concurrency.in_flight > 0;
        is_at_work.then(|| self.now.as_nanos() / OLDEST.as_nanos() as u64).hash(&mut print);
        print.finish()
    }
}

/// What is left of the limits of a client.
fn limits_json(limits: &[QuotaSnapshot]) -> Value {
    limits.iter().map(|quota| limit_json(quota, "remaining", quota.remaining)).collect()
}

/// A limit, with some of its units under that name: money in its currency, all else in units.
pub fn limit_json(quota: &QuotaSnapshot, name: &str, units: u64) -> Value {
    let amount = |units: u64| match quota.dimension {
        Dimension::Money => json!(quota.dimension.number(units)),
        _ => json!(units),
    };
    json!({
        "dimension": quota.dimension.as_str(),
        "limit": amount(quota.limit),
        name: amount(units),
        "window_s": quota.window.map(|window| window.as_secs_f64()),
    })
}

fn by_priority(scope: &ScopeSnapshot) -> Value {
    let mut counts: Map<String, Value> =
        PRIORITIES.map(|priority| (priority_name(priority).to_owned(), 0.into())).into_iter().collect();
    for (priority, count) in &scope.waiting_by_priority {
        let sum = &mut counts[priority_name(*priority)];
        *sum = (sum.as_u64().unwrap_or_default() + count).into();
    }
    counts.into()
}
