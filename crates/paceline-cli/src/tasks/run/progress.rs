//! The progress of a run on the screen and in the log: the first items that fail, one line now and then for the others and for
//! all that are tried again, and how far the run has come.

mod failed;
mod groups;
mod retried;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use paceline::Limiter;
use paceline_core::Instant;
use paceline_store::work::{
    DecisionRecord, EndReason, Idle, SchedulerConfig, SchedulerEvent, State, StateCounts, WorkClock, WorkItem,
    WorkStore,
};
use terminal_size::{Width, terminal_size_of};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use self::failed::FailedItem;
use super::fail_fast::FailFast;
use super::stopped_scopes::tried_again;
use crate::job_line::JobLine;
use crate::logging;
use crate::progress::failures::Failures;
use crate::progress::resends::Resends;
use crate::text;

/// How often the line on a terminal is redrawn.
const DRAW_EVERY: Duration = Duration::from_millis(250);

/// How often a log line is written, where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// How often a worker that stays writes one though nothing has changed.
const QUIET_LINE_EVERY: Duration = Duration::from_secs(600);

/// For so long a failure may be that of a whole host or group before it is told as one of its item, ...
const LONGEST_OPEN: Duration = Duration::from_secs(5);

/// ... which is looked at so often.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Characters of what went wrong in a log line.
const LONGEST_CAUSE: usize = 200;

/// Where all items that failed stand.
const ALL_FAILURES: &str = "`paceline tasks list --state failed` names them";

/// Takes in the events of a run. Clones share their state.
#[derive(Clone)]
pub(super) struct Progress(Arc<Inner>);

struct Inner {
    quiet: bool,
    stays: bool,
    max_retries: u32,
    max_deferrals: Option<u32>,
    concurrency: usize,
    clock: WorkClock,
    shutdown: Mutex<Figures>,
}

/// Whether an item that has failed waits all the same, by its key, if that is known.
type Waits<'a> = &'a dyn Fn(&String) -> Option<bool>;

/// How far the run has come.
#[derive(Debug, Default)]
struct Figures {
    /// Items in the store, as it was read last.
    items: u64,
    /// When that was.
    counted: Option<Instant>,
    ended: u64,
    failed: u64,
    fell_back: u64,
    retries: u64,
    /// What is tried again, until the log is told.
    resends: Resends,
    in_flight: BTreeSet<u64>,
    begun: bool,
    ending: bool,
    /// Failed, and it is not known yet whether they wait all the same.
    untold: VecDeque<FailedItem>,
    failures: Failures,
    /// Why groups were stopped.
    causes: BTreeSet<String>,
    /// Which knows what stops its account.
    limiter: Option<Limiter>,
    /// Until when nothing begins, and why where it is no due time.
    waits: Option<(Instant, Option<String>)>,
}

impl Figures {
    /// Takes over what the store has.
    fn count(&mut self, counts: &StateCounts, now: Instant) {
        (self.items, self.counted) = (counts.total(), Some(now));
        self.ended = State::ALL.into_iter().filter(|state| state.is_final()).map(|state| counts.of(state)).sum();
        (self.failed, self.fell_back) = (counts.of(State::Failed), counts.of(State::FellBack));
    }
}

impl Progress {
    pub(super) fn new(quiet: bool, before: &StateCounts, policy: &SchedulerConfig, clock: WorkClock) -> Self {
        let mut figures = Figures { failures: Failures::new(quiet, ALL_FAILURES), ..Figures::default() };
        figures.count(before, clock.now());
        let (max_retries, max_deferrals) = (policy.max_retries, policy.max_deferrals);
        let (concurrency, shutdown) = (policy.concurrency, Mutex::new(figures));
        let stays = policy.idle == Idle::Stay;
        Self(Arc::new(Inner { quiet, stays, max_retries, max_deferrals, concurrency, clock, shutdown }))
    }

    /// Whether anything has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.figures().begun
    }

    /// Takes in an event; it does not block.
    pub(super) fn observe(&self, note: &SchedulerEvent<'_>, waits: Waits<'_>) {
        match note {
            SchedulerEvent::Started(item) => {
                let mut figures = self.figures();
                figures.in_flight.insert(item.id);
                figures.retries += u64::from(item.calls() > 0);
                (figures.begun, figures.waits) = (true, None);
            }
            SchedulerEvent::Succeeded(item) => {
                let mut figures = self.figures();
                figures.in_flight.remove(&item.id);
                figures.ended += 1;
            }
            SchedulerEvent::Decided { item, decided, wait } => self.decided(item, decided, *wait, waits),
            SchedulerEvent::Lost(item) => {
                self.figures().in_flight.remove(&item.id);
                tracing::warn!(
                    item = item.key,
                    "the item was removed or sent for anew, or another worker has taken it: its result here is not recorded"
                );
            }
            SchedulerEvent::Cancelled { item, succeeded } => {
                self.figures().in_flight.remove(&item.id);
                let result = if *succeeded { "success" } else { "failure" };
                tracing::warn!(item = item.key, "cancelled during its try, whose {result} is not recorded");
            }
            SchedulerEvent::Scope(row) => self.tell_group(row),
            SchedulerEvent::Waiting { wait, why } => {
                let until = self.0.clock.now() + *wait;
                self.figures().waits = Some((until, why.map(str::to_owned)));
            }
            SchedulerEvent::Ending(why) => {
                let mut figures = self.figures();
                figures.ending = true;
                let calls = self.in_flight(&figures);
                if *why == EndReason::Interrupted && calls > 0 {
                    let calls = text::counted(calls, "item");
                    tracing::info!("ending: waiting up to 30s for {calls} in flight; a second Ctrl-C abandons them");
                }
            }
            _ => {}
        }
    }

    fn decided(&self, item: &WorkItem, decided: &DecisionRecord, wait: Option<Duration>, waits: Waits<'_>) {
        let mut figures = self.figures();
        figures.in_flight.remove(&item.id);
        let class = decided.failure.class;
        let cause = text::printable(&decided.failure.message);
        let (cause, code) = (text::cut(&cause, LONGEST_CAUSE), decided.failure.code.as_deref());
        let status = decided.failure.status.filter(|status| !cause.contains(&status.to_string()));
        match (decided.action, wait) {
            ("retry" | "defer", Some(wait)) => {
                figures.resends.add(class.description(), &cause);
                self.log_retry(item, decided, wait, status, &cause);
            }
            ("fail", _) => {
                (figures.ended, figures.failed) = (figures.ended + 1, figures.failed + 1);
                let mut failed = FailedItem::of(item, decided, &self.0.clock);
                if !failed.tell(&mut figures.failures, waits(&item.key), false) {
                    figures.untold.push_back(failed);
                }
            }
            ("fallback", _) => {
                (figures.ended, figures.fell_back) = (figures.ended + 1, figures.fell_back + 1);
                let reason = text::printable(decided.reason.as_deref().unwrap_or(class.as_str()));
                tracing::warn!(
                    item = item.key,
                    class = class.as_str(),
                    status,
                    code,
                    cause,
                    "the fallback stands in: {reason}"
                );
            }
            ("skip", _) => {
                figures.ended += 1;
                let reason = text::printable(decided.reason.as_deref().unwrap_or("no reason given"));
                tracing::warn!(item = item.key, class = class.as_str(), status, code, cause, "skipped: {reason}");
            }
            ("next_run", _) => {
                // That a scope is stopped, or a flag is missing, is told once for each cause.
                let is_told = decided.failure.spares_group && !figures.causes.insert(decided.failure.message.clone());
                left_to_next_run(item, decided, is_told, self.0.stays);
            }
            // The reason of a stop is shown with its group.
            _ => {}
        }
    }

    /// Tells what it is time for, and at the end all that is left: how many are tried again, and which items have failed, as soon
    /// as it is known that they do not wait after all. For at most so long that is left open.
    pub(super) fn tell(&self, waits: Waits<'_>, at_the_end: bool) {
        let now = self.0.clock.now();
        let mut figures = self.figures();
        let Figures { untold, failures, .. } = &mut *figures;
        untold.retain_mut(|failed| {
            let is_late = at_the_end || now.saturating_since(failed.at) >= LONGEST_OPEN;
            !failed.tell(failures, waits(&failed.key), is_late) && !at_the_end
        });
        let line = if at_the_end { failures.last_line() } else { failures.line(now) };
        drop(figures);
        if let Some(line) = line {
            tracing::error!("{line}");
        }
        self.tell_retried(now, at_the_end);
    }

    /// Shows how far the run has come, for as long as the guard lives: on a terminal as a line that is redrawn, elsewhere
    /// as a log line now and then.
    pub(super) fn draw_regularly(&self, store: Arc<dyn WorkStore>, fail_fast: &FailFast) -> Drawing {
        let bar = logging::draws(self.0.quiet).then(|| {
            let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            logging::bars().add(ProgressBar::no_length().with_style(style))
        });
        let (progress, screen, fail_fast) = (self.clone(), bar.clone(), fail_fast.clone());
        let task = tokio::spawn(async move {
            let mut moments = tokio::time::interval(if screen.is_some() { DRAW_EVERY } else { LINE_EVERY });
            // Where the store was away for long, one line is enough.
            moments.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut told = None;
            // The first is at once, and redundant in a short run.
            moments.tick().await;
            let mut tellings = tokio::time::interval(TELL_EVERY);
            loop {
                tokio::select! {
                    _ = moments.tick() => {}
                    _ = tellings.tick() => {
                        progress.tell(&|key| fail_fast.waits(key), false);
                        continue;
                    }
                }
                progress.count_again(&*store).await;
                let line = progress.line();
                match &screen {
                    Some(bar) => {
                        let width = terminal_size_of(std::io::stderr()).map_or(80, |(Width(width), _)| width);
                        let (bar, line) = (bar.clone(), text::cut(&line, width.into()));
                        logging::draw(move || bar.with_message(line).tick());
                    }
                    None if progress.is_news(&mut told) => tracing::info!("{line}"),
                    None => {}
                }
            }
        });
        Drawing { task, bar }
    }

    /// Whether the log is told how far the run has come: while a worker stays, where that has changed since, or long ago.
    fn is_news(&self, told: &mut Option<([u64; 4], Instant)>) -> bool {
        let now = self.0.clock.now();
        let figures = self.figures();
        let standing = [figures.ended, figures.items, figures.fell_back, figures.failed];
        let is_known = told.is_some_and(|(known, at)| known == standing && now < at + QUIET_LINE_EVERY);
        if self.0.stays && is_known {
            return false;
        }
        *told = Some((standing, now));
        true
    }

    /// Others add and remove items meanwhile.
    async fn count_again(&self, store: &dyn WorkStore) {
        let now = self.0.clock.now();
        if self.figures().counted.is_some_and(|at| now < at + LINE_EVERY / 2) {
            return;
        }
        // A store that cannot be read ends the run by itself.
        if let Ok(counts) = store.counts().await {
            self.figures().count(&counts, now);
        }
    }

    /// How far the run has come, for the gateway that its calls go through.
    pub(super) fn job_line(&self) -> JobLine {
        let (figures, now) = (self.figures(), self.0.clock.now());
        let waits = self.waits(&figures, now);
        let (done, total) = (figures.ended, figures.items.max(figures.ended));
        JobLine { done, total, failed: figures.failed, left_ms: None, waits }
    }

    fn line(&self) -> String {
        let (figures, now) = (self.figures(), self.0.clock.now());
        let in_flight = self.in_flight(&figures);
        let items = text::count(figures.items.max(figures.ended));
        let mut line = format!("{} of {items} ended", text::count(figures.ended));
        for (number, what) in [
            (in_flight, "in flight"),
            (figures.retries, "retried"),
            (figures.fell_back, "by the fallback"),
            (figures.failed, "failed"),
        ] {
            if number > 0 {
                line += &format!(", {} {what}", text::count(number));
            }
        }
        match self.waits(&figures, now) {
            Some(waits) => line + "; " + &waits,
            None => line,
        }
    }

    fn waits(&self, figures: &Figures, now: Instant) -> Option<String> {
        // What was to be over long ago is no wait: what waited may be left to the next run.
        let waits = figures.waits.as_ref().filter(|(until, _)| *until + LINE_EVERY > now);
        let left = waits.map(|(until, why)| (until.saturating_since(now), why));
        match left {
            _ if figures.ending => Some("ending".to_owned()),
            Some((wait, Some(why))) => {
                let whose = if self.in_flight(figures) == 0 { "waiting for" } else { "some wait for" };
                Some(format!("{whose} {}{}", text::printable(why), countdown(wait)))
            }
            Some((wait, None)) if !wait.is_zero() && self.in_flight(figures) == 0 => {
                Some(format!("the next is due in {}", whole(wait)))
            }
            _ => None,
        }
    }

    /// What has ended and is not recorded yet is in flight no more.
    fn in_flight(&self, figures: &Figures) -> u64 {
        figures.in_flight.len().min(self.0.concurrency) as u64
    }

    fn figures(&self) -> MutexGuard<'_, Figures> {
        self.0.shutdown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn left_to_next_run(item: &WorkItem, decided: &DecisionRecord, is_told: bool, stays: bool) {
    let DecisionRecord { failure, reason, .. } = decided;
    if is_told {
        let reason = text::printable(reason.as_deref().unwrap_or(&failure.message));
        tracing::debug!(item = item.key, "waits, as others: {reason}");
        return;
    }
    let (class, code) = (failure.class.as_str(), failure.code.as_deref());
    // Where the failure itself is the reason, it stands there once.
    let cause = reason.as_ref().filter(|reason| **reason != failure.message).map(|_| text::printable(&failure.message));
    let cause = cause.as_deref().map(|cause| text::cut(cause, LONGEST_CAUSE));
    let reason = text::printable(reason.as_deref().unwrap_or(class));
    if stays {
        let when = tried_again(stays);
        tracing::warn!(item = item.key, class, code, cause, "waits: {reason}; tried again {when}");
    } else {
        tracing::warn!(item = item.key, class, code, cause, "waits for the next run: {reason}");
    }
}

/// Nothing for less than a second.
fn countdown(wait: Duration) -> String {
    if wait.as_secs() == 0 { String::new() } else { format!(", {}", whole(wait)) }
}

/// In whole seconds, rounded up: a countdown never shows zero.
fn whole(wait: Duration) -> String {
    text::duration(Duration::from_secs(wait.as_secs() + 1))
}

/// Draws for as long as it lives, and leaves the screen to the summary.
#[derive(Debug)]
pub(super) struct Drawing {
    task: JoinHandle<()>,
    bar: Option<ProgressBar>,
}

impl Drop for Drawing {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(bar) = self.bar.take() {
            logging::draw(move || bar.finish_and_clear());
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::Timestamp;
    use paceline_store::work::{Amend, ClaimOutcome, ClaimRequest, Filter, MemoryStore, NewItem, Transition};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_failed_and_is_retried_counts_as_failed_no_more() {
        let clock = WorkClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
        let store = Arc::new(MemoryStore::new(clock.clone()));
        store.insert(vec![NewItem::new("a", "1")]).await.expect("room");
        let worker = store.register("w", Duration::from_secs(600)).await.expect("a memory");
        let claim = store.claim(worker, ClaimRequest { limit: 1, ahead: Duration::ZERO }).await.expect("a memory");
        let failed = ClaimOutcome { next: Transition::Failed, ..ClaimOutcome::back(&claim.items[0]) };
        store.record(vec![failed], Vec::new()).await.expect("a memory");
        let before = store.counts().await.expect("a memory");
        let progress = Progress::new(false, &before, &SchedulerConfig::default(), clock);
        assert_eq!(progress.line(), "1 of 1 ended, 1 failed");
        store.amend(Filter::default(), Amend::Retry).await.expect("a memory");
        let drawing = progress.draw_regularly(store.clone(), &FailFast::new(0, false, false, false));
        tokio::time::sleep(LINE_EVERY + DRAW_EVERY).await;
        drop(drawing);
        assert_eq!(progress.line(), "0 of 1 ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_was_over_long_ago_is_told_no_more() {
        let clock = WorkClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
        let progress = Progress::new(false, &StateCounts::default(), &SchedulerConfig::default(), clock);
        let waits = SchedulerEvent::Waiting { wait: Duration::from_secs(2), why: Some("the learnt rate") };
        progress.observe(&waits, &|_| None);
        assert!(progress.line().contains("waiting for the learnt rate"), "{}", progress.line());
        tokio::time::sleep(Duration::from_secs(2) + LINE_EVERY).await;
        assert!(!progress.line().contains("waiting"), "{}", progress.line());
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_stays_writes_a_line_on_a_change_and_seldom_else() {
        let lines = async |idle| {
            let clock = WorkClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
            let policy = SchedulerConfig { idle, ..SchedulerConfig::default() };
            let progress = Progress::new(false, &StateCounts::default(), &policy, clock);
            let mut told = None;
            let mut lines = 0;
            for n in 0..120 {
                progress.figures().ended += u64::from(n == 30);
                lines += u32::from(progress.is_news(&mut told));
                tokio::time::sleep(LINE_EVERY).await;
            }
            lines
        };
        assert_eq!((lines(Idle::End).await, lines(Idle::Stay).await), (120, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn items_that_come_during_a_run_are_counted_too() {
        let clock = WorkClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let add = |keys: [&'static str; 2]| store.insert(keys.map(|key| NewItem::new(key, "1")).into());
        add(["a", "b"]).await.expect("room");
        let before = store.counts().await.expect("a memory");
        let progress = Progress::new(false, &before, &SchedulerConfig::default(), clock);
        add(["c", "d"]).await.expect("room");
        assert_eq!(progress.line(), "0 of 2 ended");
        let drawing = progress.draw_regularly(store.clone(), &FailFast::new(0, false, false, false));
        tokio::time::sleep(LINE_EVERY + DRAW_EVERY).await;
        drop(drawing);
        assert_eq!(progress.line(), "0 of 4 ended");
    }
}
