//! A job that is open, up to the end of its items: for `paceline run`, and for the batches of the gateway.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use paceline::{Limiter, clock};
use paceline_config::Upstream;
use paceline_core::Timestamp;
use paceline_gateway::Guest;
use paceline_http::Sender;
use paceline_providers::OF_EXPECTATION;
use paceline_providers::table::Scope;
use paceline_store::{InputCursor, JobCounts, Journal, JournalError};
use tokio::sync::{mpsc, watch};

use crate::account::TurnWait;
use crate::budget::Budget;
use crate::calls::dispatch::{Dispatcher, Parts};
use crate::calls::fallback::Fallbacks;
use crate::calls::feed;
use crate::calls::handed::Gateway;
use crate::calls::held_up::HeldUp;
use crate::calls::item::{Context, Phase};
use crate::calls::record::{About, KeyAdvice, Recorder};
use crate::calls::tested::Tested;
use crate::calls::unheard::Unheard;
use crate::fallback::Fallback;
use crate::hosts::Hosts;
use crate::job::acknowledge::Acknowledge;
use crate::job::refused;
use crate::job_settings::Bounds;
use crate::lines::format::Format;
use crate::lines::input::Input;
use crate::progress::counters::Counters;
use crate::progress::display::Progress;
use crate::progress::extract::FirstLook;
use crate::signals::Interruptions;
use crate::stops::alike::Kind;
use crate::stops::fail_fast::FailFast;
use crate::upstream;

/// What earlier runs left.
#[derive(Default)]
pub(crate) struct Restored {
    /// The scopes that one of them stopped.
    pub(crate) stopped: Vec<Arc<str>>,
    /// Items that this run is not for.
    pub(crate) left_out: u64,
}

/// A job that is open, and what its calls need.
pub(crate) struct OpenJob<'a> {
    pub(crate) input: Input,
    pub(crate) format: Format,
    pub(crate) upstream: &'a Upstream,
    pub(crate) journal: &'a Journal,
    /// Where the input is to be read on meanwhile.
    pub(crate) input_cursor: Option<InputCursor>,
    pub(crate) limiter: Limiter,
    /// Where others use the limiter too, the place of this job among them.
    pub(crate) guest: Option<Arc<Guest>>,
    pub(crate) sender: Arc<Sender>,
    pub(crate) fallback: Option<Arc<Fallback>>,
    /// What is to be taken out of each answer.
    pub(crate) extract: Option<String>,
    pub(crate) bounds: Bounds,
    pub(crate) progress: Progress,
    pub(crate) interruptions: Interruptions,
    /// The lock file of the job, where it has one that others look at.
    pub(crate) lock: Option<PathBuf>,
    /// Where it is said that the run waits for the turn of another process.
    pub(crate) turn_wait: TurnWait,
    /// Where the lines come from, where this run is one host of many.
    pub(crate) hosts: Option<Hosts>,
}

impl OpenJob<'_> {
    /// Takes up what earlier runs left, the limiter's state by `restore`, and sets up the run. Waits for the journal.
    ///
    /// # Errors
    /// An error of the journal.
    pub(crate) fn set_up(
        self,
        restore: impl FnOnce(Timestamp, &Acknowledge) -> Result<Restored, JournalError>,
    ) -> Result<(Arc<Context>, Dispatcher), JournalError> {
        let (phase, phase_seen) = watch::channel(Phase::Running);
        let (broken_sender, broken) = mpsc::unbounded_channel();
        let acknowledge = Acknowledge::new(broken_sender);
        let (began, epoch) = (self.limiter.now(), clock::wall());
        refused::settle(self.journal, &self.input, self.format.results(), &acknowledge)?;
        let mut stopped = BTreeMap::new();
        let restored = restore(epoch, &acknowledge)?;
        for scope in restored.stopped {
            stopped.extend(self.journal.refused_last(&scope, &OF_EXPECTATION)?.map(|kind| (scope, kind)));
        }
        let tested = Tested::of(stopped.keys());
        let mut about = self.about(&self.journal.sums()?, stopped);
        about.figures.left_out = restored.left_out;
        let (others, told, worker) = match self.hosts {
            Some(Hosts { worker, others, told, .. }) => (others, Some(told), Some(worker)),
            None => Default::default(),
        };
        let Self { input, format, upstream, journal, input_cursor, limiter, guest, sender, fallback, bounds, .. } =
            self;
        let budget = budget_of(upstream, &bounds, journal)?;
        let context = Arc::new(Context {
            gateway: Gateway::of(&sender, &budget),
            input,
            format,
            limiter,
            guest,
            sender,
            deadline: upstream.deadline,
            budget,
            phase: phase_seen,
            journal: journal.clone(),
            unanswered: journal.unanswered()?.into_iter().map(|call| (call.ordinal, call.moved)).collect(),
            others,
            tested,
            in_flight: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
            unheard: Unheard::new(about.same.undecided()),
            epoch,
            began,
        });
        let (read, calls, acknowledged) = (journal.clone(), Arc::clone(&context), acknowledge.clone());
        let reading = match (worker, input_cursor) {
            (Some(worker), _) => Some(worker.start(calls, upstream.clone(), acknowledged)),
            (None, Some(from)) => Some(feed::start(read, calls, upstream.clone(), acknowledged, from)),
            (None, None) => None,
        };
        let dispatcher = Dispatcher::new(Parts {
            reading,
            context: Arc::clone(&context),
            journal: journal.clone(),
            progress: self.progress,
            fallbacks: Fallbacks::new(fallback),
            recorder: Recorder::new(journal.clone(), acknowledge, about),
            phase,
            broken,
            interruptions: self.interruptions,
            max_wait: bounds.max_wait,
            max_items: bounds.max_items,
            max_duration: bounds.max_duration,
            concurrency: upstream.pacer.concurrency.max() as usize,
            lock: self.lock,
            turn_wait: self.turn_wait,
            hosts: told,
        });
        Ok((context, dispatcher))
    }

    /// What the recorder needs to know of the job.
    fn about(&self, counts: &JobCounts, stopped: BTreeMap<Arc<str>, Kind>) -> About {
        let figures = Counters::at_start(counts);
        About {
            same: FailFast::new(
                self.bounds.stop_after_same,
                figures.pending().max(self.hosts.as_ref().map_or(0, |hosts| hosts.left)),
            )
            .by_host(self.upstream.dialect.scope() == Scope::Host)
            .after(stopped),
            retry: self.upstream.pacer.retry.clone(),
            address: upstream::destination(self.upstream),
            guest: self.guest.clone(),
            key: KeyAdvice {
                refused: upstream::advice_on_key(self.upstream, 401),
                forbidden: upstream::advice_on_key(self.upstream, 403),
            },
            by_host: self.upstream.dialect.scope() == Scope::Host,
            figures,
            max_wait: self.bounds.max_wait,
            falls_back: self.fallback.is_some(),
            extract: self.extract.clone().map(FirstLook::at),
            // Lines without a url of their own go to one path, which nothing divides.
            held_up: (self.upstream.is_one_scope_by_default() && self.format.endpoint().is_empty())
                .then(HeldUp::default),
        }
    }
}

/// What calls may use, by what the runs before used.
fn budget_of(upstream: &Upstream, bounds: &Bounds, journal: &Journal) -> Result<Budget, JournalError> {
    let (used, is_limited) = (journal.usage()?, upstream::limits_answers(upstream));
    Ok(Budget::new(bounds.budgets, upstream.prices.clone(), &used, is_limited).of_upstream(&upstream.name))
}
