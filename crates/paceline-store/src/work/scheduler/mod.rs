//! The scheduler: claims due items, runs the work on them, and records the outcomes.
//!
//! An item that waits is a row in the store: it holds no task, no thread and no place among the running ones. One timer is set to
//! the earliest time at which something is to be done.

mod run;
mod summary;
mod window;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use paceline_core::{ConfigError, Timestamp};

use super::clock::WorkClock;
use super::config::SchedulerConfig;
use super::error::WorkError;
use super::item::{Claimed, DecisionRecord, Failure, Said, WorkItem};
use super::judge::Judge;
use super::store::WorkStore;
use crate::scope::ScopeRow;
pub use summary::{EndReason, Status, Summary};

/// Works through the items of a store, within the bounds of a [`SchedulerConfig`].
///
/// ```
/// use std::sync::Arc;
/// use paceline_core::Class;
/// use paceline_store::work::{WorkClock, Failure, NewItem, SchedulerConfig, Scheduler, SqliteStore, Status, WorkStore};
///
/// # async fn renew(_: &str) -> Result<(), std::io::Error> { Ok(()) }
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("certificates.db");
/// let clock = WorkClock::system();
/// let store = Arc::new(SqliteStore::open(file, clock.clone())?);
/// store.insert(vec![NewItem::new("example.org", r#"{"days":90}"#)]).await?;
/// let scheduler = Scheduler::new(store, SchedulerConfig::default(), clock)?;
/// let summary = scheduler
///     .run(|task| async move {
///         renew(task.key()).await.map_err(|error| Failure::new(Class::Transient, error.to_string()))
///     })
///     .await?;
/// assert_eq!(summary.status(), Status::Success);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Scheduler {
    store: Arc<dyn WorkStore>,
    config: SchedulerConfig,
    clock: WorkClock,
    name: String,
    judge: Option<Arc<dyn Judge>>,
    fallback: Option<Fallback>,
    observer: Option<Observer>,
}

/// Called with each event of a run.
pub type Observer = Arc<dyn Fn(&SchedulerEvent<'_>) + Send + Sync>;

/// Does the work of an item some other way, after its last failure. With an error the item fails, as without it.
pub type Fallback =
    Arc<dyn Fn(Task, DecisionRecord) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync>;

/// An event of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SchedulerEvent<'a> {
    /// The work on an item begins.
    Started(&'a WorkItem),
    /// Its success is recorded.
    Succeeded(&'a WorkItem),
    /// A decision about its failure is recorded.
    Decided {
        /// The item, with the sends before this one.
        item: &'a WorkItem,
        /// What was decided.
        decided: &'a DecisionRecord,
        /// The wait that follows, if it is tried again.
        wait: Option<Duration>,
    },
    /// The item was left to the next run without a try: [`StartDecision::Left`].
    Left(&'a WorkItem),
    /// The item belongs to another worker: its outcome here is not recorded.
    Lost(&'a WorkItem),
    /// So many items wait again that other workers had, which ended without a word or did not reach the store: up to so many of
    /// their calls were cut off.
    TakenOver(u64),
    /// A person cancelled the item during its work: the outcome is not recorded.
    Cancelled {
        /// The item, as it was claimed.
        item: &'a WorkItem,
        /// The work was done.
        succeeded: bool,
    },
    /// A group was held or stopped; or it is open, because a user opened it that this run had stopped.
    Scope(&'a ScopeRow),
    /// The judge gave no answer in time; the rules decide.
    JudgeTimedOut(&'a WorkItem),
    /// No item begins for a while.
    Waiting {
        /// How long, as far as is known.
        wait: Duration,
        /// What for; none where it is the due time of the next item.
        why: Option<&'a str>,
    },
    /// No item begins any more; those in flight may end.
    Ending(EndReason),
}

/// Whether a due item begins.
#[derive(Debug)]
pub enum StartDecision<F> {
    /// It begins.
    Now(F),
    /// Others may go first. It holds no place, and nothing is counted.
    Later(StartDelay),
    /// It can never begin: what follows is decided as about a failed try, but no try is counted.
    Never(Failure),
    /// It is left to the next run for this reason, a word or a sentence, without a decision about it: what holds it back concerns
    /// more than this item, and is told there.
    Left {
        /// The reason.
        why: Arc<str>,
        /// Its deadline begins anew with its next try: a person has to act first, and the item is not to blame.
        time_stands_still: bool,
    },
    /// A person has to act first, for this reason: its group is stopped, and keeps it.
    Stopped(String),
}

/// Why an item does not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartDelay {
    /// For how long at least; none = until something that is in flight ends.
    pub after: Option<Duration>,
    /// The reason, for people.
    pub why: Arc<str>,
    /// What waits in the same way, by any name: a host say. Scopes take turns.
    pub scope: Arc<str>,
    /// No other item may begin before that either, so none is asked about.
    pub for_all: bool,
    /// Where it waits for what is in flight: it is at hand when something ends. Otherwise it waits in the store, from where such
    /// items come again one after the other.
    pub at_hand: bool,
    /// The run waits for it, however short its [`max_wait`](SchedulerConfig::max_wait) is: it lets others go first for a moment,
    /// and begins then.
    pub in_this_run: bool,
}

/// An item to be worked on.
#[derive(Clone, Debug)]
pub struct Task(Arc<Claimed>, Arc<OnceLock<Said>>);

impl Task {
    /// Key of the item.
    pub fn key(&self) -> &str {
        &self.0.item.key
    }

    /// Its payload.
    pub fn payload(&self) -> &str {
        &self.0.payload
    }

    /// Its group.
    pub fn group(&self) -> &str {
        &self.0.item.group
    }

    /// Which send this is, from 1.
    pub fn attempt(&self) -> u32 {
        self.0.item.sends().saturating_add(1)
    }

    /// When the store handed it out, by its clock.
    pub fn claimed_at(&self) -> Timestamp {
        self.0.at
    }

    /// The fencing token of its claim, for [`WorkStore::note_sent`].
    pub fn fence(&self) -> i64 {
        self.0.fence
    }

    /// Notes what the server said to this try, which is kept where the try succeeds. The first words count.
    pub fn answered(&self, said: Said) {
        let _ = self.1.set(said);
    }

    /// The item with its counts.
    pub fn item(&self) -> &WorkItem {
        &self.0.item
    }
}

impl Scheduler {
    /// A scheduler of that store. The clock decides only how long is waited here; the store decides what is due.
    ///
    /// # Errors
    /// When a setting makes no sense; see [`SchedulerConfig::check`].
    pub fn new(store: Arc<dyn WorkStore>, config: SchedulerConfig, clock: WorkClock) -> Result<Self, ConfigError> {
        config.check()?;
        let name = format!("process {}", std::process::id());
        Ok(Self { store, config, clock, name, judge: None, fallback: None, observer: None })
    }

    /// With a judge in place of the rules.
    #[must_use]
    pub fn with_judge(mut self, judge: Arc<dyn Judge>) -> Self {
        self.judge = Some(judge);
        self
    }

    /// With a fallback for items that would fail because what they call stayed down
    /// ([`GiveUp::stayed_down`](paceline_core::GiveUp::stayed_down)): where it succeeds they end as
    /// [`State::FellBack`](crate::State::FellBack). An item stays in flight meanwhile. Where the run has to end it fails.
    #[must_use]
    pub fn with_fallback(mut self, fallback: Fallback) -> Self {
        self.fallback = Some(fallback);
        self
    }

    /// With an observer, which is called with each event. It must not block.
    #[must_use]
    pub fn with_observer(mut self, observer: Observer) -> Self {
        self.observer = Some(observer);
        self
    }

    /// With a name by which other workers know this one. Default: the process id.
    #[must_use]
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Works until everything has ended, or nothing can be done for longer than `max_wait`.
    ///
    /// # Errors
    /// When the store cannot be read or written. What is recorded stays; items that were in flight are tried again by the next
    /// run.
    pub async fn run<W, F>(&self, work: W) -> Result<Summary, WorkError>
    where
        W: Fn(Task) -> F,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.run_until(work, std::future::pending()).await
    }

    /// The same, but begins nothing more once `stop` is ready: items in flight have [`SchedulerConfig::grace`] to end, and are
    /// then given up.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_until<W, F, S>(&self, work: W, stop: S) -> Result<Summary, WorkError>
    where
        W: Fn(Task) -> F,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
        S: Future<Output = ()>,
    {
        self.run_paced(move |task| StartDecision::Now(work(task)), stop).await
    }

    /// The same with work that may be declined: `work` is asked when an item is due and there is a place for it, and takes
    /// then what a call needs, a permit say. An item that has to wait for more than a second goes back into the store.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_paced<W, F, S>(&self, work: W, stop: S) -> Result<Summary, WorkError>
    where
        W: Fn(Task) -> StartDecision<F>,
        F: Future<Output = Result<(), Failure>> + Send + 'static,
        S: Future<Output = ()>,
    {
        run::Run::begin(self, work).await?.until(stop).await
    }

    /// The same without an async runtime: the work is called on threads of its own, at most `concurrency` at a time.
    ///
    /// # Errors
    /// As [`run`](Self::run), and when the threads cannot be started.
    pub fn run_blocking<W>(&self, work: W) -> Result<Summary, WorkError>
    where
        W: Fn(Task) -> Result<(), Failure> + Send + Sync + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(self.config.concurrency)
            .build()
            .map_err(crate::JournalError::io("start the threads of", "the scheduler".as_ref()))?;
        let work = Arc::new(work);
        runtime.block_on(self.run(move |task| {
            let work = work.clone();
            async move {
                let done = tokio::task::spawn_blocking(move || work(task)).await;
                done.unwrap_or_else(|error| Err(run::panicked(&error)))
            }
        }))
    }

    fn notify(&self, note: &SchedulerEvent<'_>) {
        if let Some(observer) = &self.observer {
            observer(note);
        }
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler").field("name", &self.name).field("config", &self.config).finish_non_exhaustive()
    }
}
