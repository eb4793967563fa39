//! The job, and the ways to work on it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline_core::{Backoff, Class, Growth, Jitter, Timestamp};
use paceline_store::work::{
    Failure, MemoryStore, NewItem, Scheduler, SchedulerConfig, SchedulerEvent, Task, WorkClock, WorkStore as _,
};

/// How long a call takes.
const CALL: Duration = Duration::from_millis(500);
/// What an item waits after its failure.
const WAIT: Duration = Duration::from_secs(60);
/// Every tenth item fails, once: a certificate whose order is refused, a document that is locked.
const FAILS: usize = 10;

/// A job for one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    items: usize,
}

impl Job {
    pub(crate) const fn of(items: usize) -> Self {
        Self { items }
    }

    /// How many of its items fail once.
    pub(crate) const fn failing(self) -> usize {
        self.items.div_ceil(FAILS)
    }
}

/// How a job went.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Time that the worker could do nothing because it, or its place, was waiting.
    pub(crate) blocked: Duration,
    /// When each item was done, in that order.
    pub(crate) ended: Vec<Duration>,
    /// Items done before anything was tried again, of those that never fail.
    pub(crate) before_first_retry: usize,
}

impl Seen {
    pub(crate) fn makespan(&self) -> Duration {
        self.ended.last().copied().unwrap_or_default()
    }
}

/// A way to work on a job.
pub(crate) type Way = fn(Job) -> Seen;

/// All of them, with their names.
pub(crate) const WAYS: [(&str, Way); 3] =
    [("sleep in line", in_line), ("a waiting step", rounds), ("a stored due time", stored)];

/// The worker that met the failure sleeps, and tries again.
fn in_line(job: Job) -> Seen {
    virtually(async move {
        let mut diary = Diary::new();
        for item in 0..job.items {
            if diary.call(item).await.is_err() {
                diary.block(WAIT).await;
                diary.call(item).await.expect("an item fails once");
            }
            diary.end();
        }
        diary.seen
    })
}

/// All items are tried; then a step of its own waits until every one that failed may be tried again.
fn rounds(job: Job) -> Seen {
    virtually(async move {
        let mut diary = Diary::new();
        let mut round: Vec<usize> = (0..job.items).collect();
        while !round.is_empty() {
            let mut failed = Vec::new();
            for item in round {
                match diary.call(item).await {
                    Ok(()) => diary.end(),
                    Err(_) => failed.push((item, diary.clock.now() + WAIT)),
                }
            }
            if let Some((_, last)) = failed.last() {
                diary.block(last.saturating_since(diary.clock.now())).await;
            }
            round = failed.into_iter().map(|(item, _)| item).collect();
        }
        diary.seen
    })
}

/// This project's scheduler: the due time is in the store, and the worker goes on.
fn stored(job: Job) -> Seen {
    virtually(async move {
        let clock = WorkClock::starting_at(Timestamp::from_millis(1_800_000_000_000));
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let items = (0..job.items).map(|item| NewItem::new(item.to_string(), "")).collect();
        store.insert(items).await.expect("memory takes everything");
        let growth = Growth::Exponential { base: WAIT, multiplier: 2.0, cap: WAIT };
        let policy = SchedulerConfig {
            concurrency: 1,
            backoff: Backoff { growth, jitter: Jitter::None },
            ..SchedulerConfig::default()
        };
        let diary = Arc::new(Mutex::new(Diary { clock: clock.clone(), ..Diary::new() }));
        let observer = {
            let diary = diary.clone();
            move |note: &SchedulerEvent<'_>| diary.lock().unwrap_or_else(PoisonError::into_inner).hear(note)
        };
        let scheduler = Scheduler::new(store, policy, clock).expect("the knobs are right");
        let summary = scheduler.with_observer(Arc::new(observer)).run(call).await.expect("memory never fails");
        assert_eq!(summary.calls as usize, job.items + job.failing());
        std::mem::take(&mut diary.lock().unwrap_or_else(PoisonError::into_inner).seen)
    })
}

fn call(task: Task) -> Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>> {
    Box::pin(async move {
        tokio::time::sleep(CALL).await;
        let number: usize = task.key().parse().expect("a number");
        answer(number, task.attempt() > 1)
    })
}

fn answer(item: usize, again: bool) -> Result<(), Failure> {
    if item.is_multiple_of(FAILS) && !again {
        return Err(Failure::new(Class::Transient, "not now"));
    }
    Ok(())
}

/// Writes down what happens to a worker.
struct Diary {
    clock: WorkClock,
    seen: Seen,
    tried: BTreeMap<usize, Duration>,
    retried: bool,
}

impl Diary {
    fn new() -> Self {
        let clock = WorkClock::starting_at(Timestamp::from_millis(0));
        Self { clock, seen: Seen::default(), tried: BTreeMap::new(), retried: false }
    }

    fn passed(&self) -> Duration {
        self.clock.now().saturating_since(paceline_core::Instant::ZERO)
    }

    fn begin(&mut self, item: usize) -> bool {
        let again = self.tried.insert(item, self.passed()).is_some();
        self.retried |= again;
        again
    }

    async fn call(&mut self, item: usize) -> Result<(), Failure> {
        let again = self.begin(item);
        tokio::time::sleep(CALL).await;
        answer(item, again)
    }

    async fn block(&mut self, wait: Duration) {
        self.seen.blocked += wait;
        tokio::time::sleep(wait).await;
    }

    fn end(&mut self) {
        self.seen.ended.push(self.passed());
        self.seen.before_first_retry += usize::from(!self.retried);
    }

    /// A place that is held longer than a call takes is blocked.
    fn hear(&mut self, note: &SchedulerEvent<'_>) {
        let number = |key: &str| key.parse::<usize>().expect("a number");
        let item = match note {
            SchedulerEvent::Started(item) => {
                self.begin(number(&item.key));
                return;
            }
            SchedulerEvent::Succeeded(item) => {
                self.end();
                item
            }
            SchedulerEvent::Decided { item, .. } => item,
            _ => return,
        };
        let held = self.passed().saturating_sub(self.tried[&number(&item.key)]);
        self.seen.blocked += held.saturating_sub(CALL);
    }
}

/// Tokio's clock stands still while anything is to be done, and leaps to the next timer.
fn virtually<F: Future>(work: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without IO").block_on(work)
}
