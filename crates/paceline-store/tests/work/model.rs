//! Long random histories: every engine answers as the one in memory does.

use std::time::Duration;

use paceline_core::Rng;
use paceline_core::retry::Counted;
use paceline_store::work::{Amend, Claim, ClaimOutcome, ClaimRequest, Filter, NewItem, State, Transition, WorkerId};
use paceline_store::{ScopeRow, ScopeStatus};

use crate::support::{Bench, S, START, item, memory, outcome, sqlite};

#[tokio::test]
async fn sqlite_does_as_memory_does() {
    for seed in 0..40 {
        same(sqlite().await, seed).await;
    }
}

pub(crate) async fn same(engine: Bench, seed: u64) {
    let mut pair = Pair { model: memory().await, engine, workers: Vec::new(), held: Vec::new(), now: Duration::ZERO };
    let mut rng = Rng::new(seed);
    for step in 0..250 {
        pair.step(&mut rng, &format!("seed {seed}, step {step}")).await;
    }
}

/// A claimed item as the model and as the engine gave it out.
type Held = (paceline_store::work::Claimed, paceline_store::work::Claimed);

struct Pair {
    model: Bench,
    engine: Bench,
    workers: Vec<(WorkerId, WorkerId)>,
    held: Vec<Held>,
    now: Duration,
}

impl Pair {
    async fn step(&mut self, rng: &mut Rng, at: &str) {
        let pick = |rng: &mut Rng, n: u64| rng.next_u64() % n;
        match pick(rng, 12) {
            0 | 1 => self.insert(rng, at).await,
            2 => {
                let lease = S * (20 + pick(rng, 40) as u32);
                let (model, engine) = (&self.model.store, &self.engine.store);
                let both = if rng.next_u64().is_multiple_of(3) {
                    (model.reregister("w", lease).await.unwrap(), engine.reregister("w", lease).await.unwrap())
                } else {
                    (model.register("w", lease).await.unwrap(), engine.register("w", lease).await.unwrap())
                };
                self.workers.push(both);
            }
            3..=5 => self.claim(rng, at).await,
            6..=8 => self.record(rng, at).await,
            9 => {
                let by = Duration::from_millis(pick(rng, 15_000));
                self.now += by;
                self.model.forward(by).await;
                self.engine.forward(by).await;
            }
            10 => {
                let Some((model, engine)) = self.workers.get(pick(rng, 1 + self.workers.len() as u64) as usize) else {
                    return;
                };
                let (model, engine) =
                    (self.model.store.heartbeat(*model).await, self.engine.store.heartbeat(*engine).await);
                assert_eq!(model.unwrap(), engine.unwrap(), "{at}");
            }
            _ => self.amend(rng, at).await,
        }
        self.compare(at).await;
    }

    async fn insert(&self, rng: &mut Rng, at: &str) {
        let items: Vec<NewItem> = (0..3)
            .map(|_| NewItem {
                priority: (rng.next_u64() % 3) as i16,
                group: format!("g{}", rng.next_u64() % 3),
                not_before: rng
                    .next_u64()
                    .is_multiple_of(3)
                    .then(|| START + self.now + S * (rng.next_u64() % 20) as u32),
                created: rng.next_u64().is_multiple_of(4).then_some(START),
                may_be_done: rng.next_u64().is_multiple_of(5),
                ..item(&format!("item-{}", rng.next_u64() % 60))
            })
            .collect();
        let model = self.model.store.insert(items.clone()).await.unwrap();
        assert_eq!(model, self.engine.store.insert(items).await.unwrap(), "{at}");
    }

    async fn claim(&mut self, rng: &mut Rng, at: &str) {
        let Some(worker) = self.workers.get((rng.next_u64() % (1 + self.workers.len() as u64)) as usize) else {
            return;
        };
        let ask = ClaimRequest { limit: (rng.next_u64() % 5) as usize, ahead: S * (rng.next_u64() % 3) as u32 };
        let model = self.model.store.claim(worker.0, ask).await.unwrap();
        let engine = self.engine.store.claim(worker.1, ask).await.unwrap();
        let told = |claim: &Claim| {
            let items: Vec<_> = claim
                .items
                .iter()
                .map(|claimed| {
                    (
                        claimed.item.clone(),
                        claimed.payload.clone(),
                        (claimed.due_in, claimed.age),
                        claimed.history.clone(),
                    )
                })
                .collect();
            (items, claim.next_due, claim.others)
        };
        assert_eq!(told(&model), told(&engine), "{at}");
        self.held.extend(model.items.into_iter().zip(engine.items));
    }

    async fn record(&mut self, rng: &mut Rng, at: &str) {
        let mut outcomes = (Vec::new(), Vec::new());
        for _ in 0..1 + rng.next_u64() % 2 {
            if self.held.is_empty() {
                break;
            }
            let index = (rng.next_u64() % self.held.len() as u64) as usize;
            // Some are kept, so that outcomes come twice and late.
            let (model, engine) =
                if rng.next_u64().is_multiple_of(4) { self.held[index].clone() } else { self.held.swap_remove(index) };
            if model.item.id.is_multiple_of(3) {
                let sent = self.model.store.note_sent(model.item.id, model.fence).await.unwrap();
                assert_eq!(sent, self.engine.store.note_sent(engine.item.id, engine.fence).await.unwrap(), "{at}");
            }
            let delay = S * (rng.next_u64() % 30) as u32;
            let make = |claimed: &paceline_store::work::Claimed, kind: u64| match kind {
                0 | 1 => ClaimOutcome::success(claimed),
                2 | 3 => outcome(claimed, Counted::Attempt, Transition::Retry(delay), "retry"),
                4 => outcome(claimed, Counted::Deferral, Transition::Retry(delay), "defer"),
                5 => outcome(claimed, Counted::Attempt, Transition::Failed, "fail"),
                6 => outcome(claimed, Counted::Attempt, Transition::Skipped, "skip"),
                7 => outcome(claimed, Counted::Attempt, Transition::NextRun, "next_run"),
                8 => ClaimOutcome { counted: Counted::Abandoned, ..ClaimOutcome::back(claimed) },
                _ => ClaimOutcome::back(claimed),
            };
            let kind = rng.next_u64() % 10;
            outcomes.0.push(make(&model, kind));
            outcomes.1.push(make(&engine, kind));
        }
        let scopes = self.scopes(rng);
        let model = self.model.store.record(outcomes.0, scopes.clone()).await.unwrap();
        assert_eq!(model, self.engine.store.record(outcomes.1, scopes).await.unwrap(), "{at}");
    }

    fn scopes(&self, rng: &mut Rng) -> Vec<ScopeRow> {
        let name = ["g0", "g1", "*"][(rng.next_u64() % 3) as usize].into();
        let reason = "a reason".to_owned();
        let state = match rng.next_u64() % 12 {
            0 | 1 => ScopeStatus::Held { until: START + self.now + S * (rng.next_u64() % 20) as u32, reason },
            2 => ScopeStatus::Stopped { reason },
            3..=5 => ScopeStatus::Open,
            _ => return Vec::new(),
        };
        vec![ScopeRow { name, state }]
    }

    async fn amend(&self, rng: &mut Rng, at: &str) {
        let keys: Vec<_> = (0..3).map(|_| format!("item-{}", rng.next_u64() % 60)).collect();
        let amend = match rng.next_u64() % 8 {
            0..=2 => Amend::Retry,
            3 => Amend::Again { as_new: rng.next_u64().is_multiple_of(2) },
            _ => Amend::Cancel,
        };
        let states = if rng.next_u64().is_multiple_of(2) { vec![State::Failed, State::Waiting] } else { Vec::new() };
        let filter = Filter { states, ..Filter::keys(keys) };
        let model = self.model.store.amend(filter.clone(), amend).await.unwrap();
        assert_eq!(model, self.engine.store.amend(filter, amend).await.unwrap(), "{at}");
    }

    async fn compare(&self, at: &str) {
        let model = self.model.store.list(Filter::default(), 0, 1_000).await.unwrap();
        let engine = self.engine.store.list(Filter::default(), 0, 1_000).await.unwrap();
        assert_eq!(model.len(), engine.len(), "{at}");
        model.iter().zip(&engine).for_each(|(model, engine)| assert_eq!(model, engine, "{at}"));
        let counts = (self.model.store.counts().await.unwrap(), self.engine.store.counts().await.unwrap());
        assert_eq!(counts.0, counts.1, "{at}");
        let scopes = (self.model.store.scopes().await.unwrap(), self.engine.store.scopes().await.unwrap());
        assert_eq!(scopes.0, scopes.1, "{at}");
    }
}
