//! What each client of an upstream has used since the gateway began, and how many of its requests wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_config::Money;
use paceline_providers::Usage;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::bodies::BodiesOfClient;
use crate::bounds::Held;

/// So many clients are told apart; those that were there first go together as `others` once there are more.
const MOST: usize = 500;

/// The clients of an upstream.
#[derive(Debug, Default)]
pub(crate) struct Spending(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By their numbers.
    clients: BTreeMap<u64, Arc<ClientSpending>>,
    /// The order in which they came last.
    clock: u64,
    others: ClientSpending,
}

/// What one client uses.
#[derive(Debug, Default)]
pub(crate) struct ClientSpending {
    /// The name of its key, else the number that the log has.
    name: Arc<str>,
    came: AtomicU64,
    waiting: AtomicU64,
    /// Those of them that wait for a limit of its key, or for its share of the calls in flight.
    held: AtomicU64,
    /// Its requests that have a place in the queue, also those under way that are not answered yet.
    pub(crate) queued: Held,
    /// Its calls in flight, and when one of them has ended.
    pub(crate) in_flight: Held,
    pub(crate) place_is_free: Notify,
    /// Of one without a key: a client with a key has them in common for all upstreams.
    pub(crate) bodies: BodiesOfClient,
    requests: AtomicU64,
    tokens_in: AtomicU64,
    tokens_out: AtomicU64,
    /// In the smallest units of money.
    cost: AtomicU64,
    /// What of these no answer told.
    tokens_estimated: AtomicU64,
    cost_estimated: AtomicU64,
}

/// A request that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waits {
    client: Arc<ClientSpending>,
    /// It counts among all of them, and among those that are held.
    waiting: u64,
    held: u64,
}

impl Spending {
    /// The client of that number, which sends a request.
    pub(crate) fn comes(&self, number: u64, name: Option<&Arc<str>>) -> Arc<ClientSpending> {
        let known = &mut *self.known();
        known.clock += 1;
        let client = match known.clients.get(&number) {
            Some(client) => Arc::clone(client),
            None => {
                known.make_room();
                let name = name.map_or_else(|| format!("{number:016x}").into(), Arc::clone);
                let client = Arc::new(ClientSpending { name, ..ClientSpending::default() });
                known.clients.insert(number, Arc::clone(&client));
                client
            }
        };
        client.came.store(known.clock, Ordering::Relaxed);
        client.requests.fetch_add(1, Ordering::Relaxed);
        client
    }

    /// All that have used or wait for something. A cost is null where no price is known.
    pub(crate) fn json(&self, upstream: &str, has_prices: bool) -> Vec<Value> {
        let known = self.known();
        let used = |client: &&ClientSpending| client.requests.load(Ordering::Relaxed) > 0;
        let all = known.clients.values().map(|client| &**client).chain([&known.others]);
        all.filter(used).map(|client| client.json(upstream, has_prices)).collect()
    }

    /// The clients of which requests wait for a limit of their key, and how many.
    pub(crate) fn held(&self) -> Vec<(Arc<str>, u64)> {
        let known = self.known();
        let held = known.clients.values().map(|client| (&client.name, client.held.load(Ordering::Relaxed)));
        held.filter(|(_, held)| *held > 0).map(|(name, held)| (Arc::clone(name), held)).collect()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn make_room(&mut self) {
        if self.clients.len() < MOST {
            return;
        }
        // One that has a request here is counted on.
        let idle = self.clients.iter().filter(|(_, client)| Arc::strong_count(client) == 1);
        let longest = idle.min_by_key(|(_, client)| client.came.load(Ordering::Relaxed)).map(|(number, _)| *number);
        if let Some(client) = longest.and_then(|number| self.clients.remove(&number)) {
            if self.others.name.is_empty() {
                self.others.name = "others".into();
            }
            for (sum, part) in self.others.figures().into_iter().zip(client.figures()) {
                sum.fetch_add(part.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }
}

impl ClientSpending {
    /// The name of its key, else the number that the log has.
    pub(crate) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// A request waits from now on.
    pub(crate) fn waits(self: &Arc<Self>) -> Waits {
        self.begins_to_wait(1, 0)
    }

    /// The same for a limit of its key.
    pub(crate) fn waits_for_its_key(self: &Arc<Self>) -> Waits {
        self.begins_to_wait(1, 1)
    }

    /// A request that waits does so for its share of the calls in flight.
    pub(crate) fn waits_for_its_share(self: &Arc<Self>) -> Waits {
        self.begins_to_wait(0, 1)
    }

    fn begins_to_wait(self: &Arc<Self>, waiting: u64, held: u64) -> Waits {
        self.waiting.fetch_add(waiting, Ordering::Relaxed);
        self.held.fetch_add(held, Ordering::Relaxed);
        Waits { client: Arc::clone(self), waiting, held }
    }

    /// A call was answered.
    pub(crate) fn used(&self, usage: &Usage, cost: Money) {
        self.tokens_in.fetch_add(usage.prompt_tokens(), Ordering::Relaxed);
        self.tokens_out.fetch_add(usage.output_tokens, Ordering::Relaxed);
        self.cost.fetch_add(cost.units(), Ordering::Relaxed);
    }

    /// What is not told of a call counts with that.
    pub(crate) fn seems_to_have_used(&self, usage: &Usage, cost: Money) {
        self.used(usage, cost);
        self.tokens_estimated.fetch_add(usage.total(), Ordering::Relaxed);
        self.cost_estimated.fetch_add(cost.units(), Ordering::Relaxed);
    }

    /// The row of a client that has sent nothing through any upstream. `has_prices`: one of these has some.
    pub(crate) fn idle(name: &str, has_prices: bool) -> Value {
        Self { name: name.into(), ..Self::default() }.json("", has_prices)
    }

    const fn figures(&self) -> [&AtomicU64; 6] {
        let Self { requests, tokens_in, tokens_out, cost, tokens_estimated, cost_estimated, .. } = self;
        [requests, tokens_in, tokens_out, cost, tokens_estimated, cost_estimated]
    }

    fn json(&self, upstream: &str, has_prices: bool) -> Value {
        let figure = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        let cost = |of: &AtomicU64| has_prices.then(|| Money::from_units(figure(of)).as_f64());
        json!({
            "client": &*self.name,
            "upstream": upstream,
            "waiting": figure(&self.waiting),
            "held": figure(&self.held),
            "requests": figure(&self.requests),
            "tokens_in": figure(&self.tokens_in),
            "tokens_out": figure(&self.tokens_out),
            "tokens_estimated": figure(&self.tokens_estimated),
            "cost": cost(&self.cost),
            "cost_estimated": cost(&self.cost_estimated),
        })
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.client.waiting.fetch_sub(self.waiting, Ordering::Relaxed);
        self.client.held.fetch_sub(self.held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_known_by_its_key_and_those_that_left_long_ago_go_together() {
        let spending = Spending::default();
        let ci = spending.comes(7, Some(&"ci".into()));
        let (waits, held) = (ci.waits(), ci.waits_for_its_key());
        assert_eq!(
            (spending.json("api", true)[0]["waiting"].clone(), spending.held()),
            (2.into(), vec![("ci".into(), 1)])
        );
        drop(held);
        assert_eq!(spending.held(), []);
        ci.used(&Usage { input_tokens: 3, output_tokens: 5, ..Usage::default() }, Money::from_units(2_500_000_000_000));
        drop(spending.comes(7, None));
        let json = &spending.json("api", true)[0];
        assert_eq!((&json["client"], &json["requests"], &json["waiting"]), (&"ci".into(), &2.into(), &1.into()));
        assert_eq!((&json["tokens_out"], &json["cost"]), (&5.into(), &2.5.into()));
        drop(waits);
        assert_eq!(spending.json("api", false)[0]["waiting"], 0);
        assert!(spending.json("api", false)[0]["cost"].is_null());
        // This one has a request here, so it stays.
        (100..100 + 2 * MOST as u64).for_each(|number| drop(spending.comes(number, None)));
        let all = spending.json("api", true);
        let requests: u64 = all.iter().filter_map(|client| client["requests"].as_u64()).sum();
        assert_eq!((all.len(), requests), (MOST + 1, 2 + 2 * MOST as u64), "none is lost");
        assert!(all.iter().any(|client| client["client"] == "ci") && all[MOST]["client"] == "others");
    }
}
