//! The best schedule: one dispatcher that sees the provider's state and sends each item as soon as it would be admitted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_core::{Dimension, Instant};
use paceline_model::{Admission, Cause, ProviderConfig, ProviderError, ProviderModel};

use crate::scenario::{Item, Scenario};

/// Capacities that change are looked at so often.
const LOOK: Duration = Duration::from_millis(50);

/// A provider that admits nothing for so long beyond its longest window never will.
const PATIENCE: Duration = Duration::from_hours(24 * 7);

/// What the best schedule achieves.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Ideal {
    /// When its calls were admitted, in ascending order.
    pub(crate) admitted: Vec<Instant>,
    /// When it had its last answer.
    pub(crate) finished: Instant,
    /// The tokens of its calls up to each.
    pub(crate) tokens: Vec<u64>,
    /// How long the provider held it back, and how long there was nothing to do.
    pub(crate) held: Duration,
    pub(crate) idle: Duration,
}

impl Ideal {
    /// Dispatches the items in order with the workers of so many clients, until all are sent or all clients stop. It meets
    /// the same strangers as every run with that seed and leaves their demand alone, and none of its calls fails. What is
    /// turned away by chance it sends again at once: no client could foresee the dice. It means nothing once `stop` is
    /// true.
    pub(crate) fn of(
        scenario: &Scenario,
        items: &[Item],
        clients: u32,
        seed: u64,
        stop: &AtomicBool,
    ) -> Result<Self, ProviderError> {
        let config = ProviderConfig { fault: 0.0, ..scenario.provider.clone() };
        let mut dispatcher = Dispatcher {
            scenario,
            provider: ProviderModel::new(config, seed)?,
            clients,
            departures: BinaryHeap::new(),
            turned_away: BinaryHeap::new(),
            now: Instant::ZERO,
            held: Duration::ZERO,
            idle: Duration::ZERO,
        };
        let mut ideal = Self { admitted: Vec::with_capacity(items.len()), ..Self::default() };
        let mut tokens = 0;
        let end = scenario.until.map_or(Instant::MAX, |until| Instant::ZERO + until);
        for item in items {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let Some(departure) = dispatcher.send(item, end)? else { break };
            tokens += item.cost.get(&Dimension::Tokens);
            ideal.admitted.push(dispatcher.now);
            ideal.tokens.push(tokens);
            ideal.finished = ideal.finished.max(departure);
        }
        (ideal.held, ideal.idle) = (dispatcher.held, dispatcher.idle);
        Ok(ideal)
    }
}

struct Dispatcher<'a> {
    scenario: &'a Scenario,
    provider: ProviderModel,
    clients: u32,
    departures: BinaryHeap<Reverse<Instant>>,
    /// When the answers of calls are there that were turned away by chance: until then they keep a worker each.
    turned_away: BinaryHeap<Reverse<Instant>>,
    now: Instant,
    held: Duration,
    idle: Duration,
}

impl Dispatcher<'_> {
    /// Lets time pass until the item is admitted; says when its answer is there. None when that is after the end.
    fn send(&mut self, item: &Item, end: Instant) -> Result<Option<Instant>, ProviderError> {
        let since = self.now;
        let changes = self.scenario.provider.changes() || self.scenario.workers.len() > 1;
        let windows = self.scenario.provider.limits.iter().map(|limit| limit.quota.window);
        let patience = PATIENCE + windows.max().unwrap_or_default();
        loop {
            if self.now - since > patience {
                return Err(ProviderError::Never);
            }
            if self.now > end {
                return Ok(None);
            }
            self.depart();
            let opens = self.scenario.duty.map_or(self.now, |duty| duty.opens(self.now));
            if opens > self.now {
                self.idle += opens - self.now;
                self.now = opens;
                continue;
            }
            let places = self.provider.places(self.now);
            let in_service = self.provider.in_service();
            let at_work = in_service.saturating_add(u32::try_from(self.turned_away.len()).unwrap_or(u32::MAX));
            let full = in_service >= places || at_work >= self.bound();
            let wait = if full { Duration::MAX } else { self.provider.polite_wait(self.now, &item.cost) };
            if wait.is_zero() {
                match self.provider.arrive_with(self.now, &item.cost, item.service) {
                    Admission::Admitted(_) => break,
                    Admission::Refused(refusal) => {
                        debug_assert!(matches!(refusal.cause, Cause::Chance { .. }), "{refusal:?}");
                        let answered = self.now + self.scenario.refuse + self.scenario.net;
                        self.turned_away.push(Reverse(answered.max(self.now + Duration::from_nanos(1))));
                        continue;
                    }
                }
            }
            let wait = if changes { wait.min(LOOK) } else { wait };
            let first =
                [self.departures.peek(), self.turned_away.peek()].into_iter().flatten().map(|Reverse(at)| *at).min();
            let freed = first.filter(|_| full).unwrap_or(Instant::MAX);
            let since = self.now;
            self.now = (since + wait).min(freed);
            self.held += if full && self.bound() < places { Duration::ZERO } else { self.now - since };
        }
        let departure = self.now + item.service + self.scenario.net;
        self.departures.push(Reverse(departure));
        Ok(Some(departure))
    }

    fn bound(&self) -> u32 {
        self.scenario.workers(self.now).saturating_mul(self.clients)
    }

    fn depart(&mut self) {
        while let Some(Reverse(at)) = self.departures.peek().copied()
            && at <= self.now
        {
            self.departures.pop();
            self.provider.finish(at);
        }
        while self.turned_away.peek().is_some_and(|Reverse(at)| *at <= self.now) {
            self.turned_away.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::Cost;
    use paceline_model::Job;

    fn ideal(name: &str) -> (Scenario, Vec<Item>, Ideal) {
        let scenario = Scenario::named(name).expect("built in").with_at_most(6_000);
        let items = scenario.draw_items(3);
        let ideal = Ideal::of(&scenario, &items, u32::MAX, 3, &AtomicBool::new(false)).expect("a sound provider");
        (scenario, items, ideal)
    }

    #[test]
    fn it_agrees_with_the_closed_forms() {
        for name in ["tb-1s", "tb-slow", "fw-60s", "fw-short", "conc"] {
            let (scenario, items, ideal) = ideal(name);
            let calls = items.len() as u64;
            let total: Duration = items.iter().map(|item| item.service).sum();
            let job = Job {
                calls,
                cost: Cost::zero().with(Dimension::Requests, calls),
                mean_latency: total / items.len() as u32 + scenario.net,
                median_latency: Duration::ZERO,
            };
            let quotas: Vec<_> = scenario.provider.limits.iter().map(|limit| limit.quota.clone()).collect();
            let closed = job.finish_time(&quotas, scenario.provider.concurrency).as_secs_f64();
            let last = (ideal.admitted[items.len() - 1] - Instant::ZERO).as_secs_f64();
            assert!((last - closed).abs() <= 0.02 * closed + 1.0, "{name}: {last} s, closed form {closed} s");
        }
    }

    #[test]
    fn it_leaves_strangers_their_share_and_pauses_with_the_work() {
        let (_, items, ideal_tenants) = ideal("tenants");
        let last = (ideal_tenants.admitted[items.len() - 1] - Instant::ZERO).as_secs_f64();
        // 60 a second less 26.7 on average.
        assert!((150.0..220.0).contains(&last), "{last} s");
        let (duty, _, ideal) = ideal("duty");
        let duty = duty.duty.expect("a duty cycle");
        assert!(ideal.admitted.iter().all(|at| duty.opens(*at) == *at));
    }
}
