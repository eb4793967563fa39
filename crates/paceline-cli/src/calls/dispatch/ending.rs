//! When a run ends before its items do, and how it waits for what is in flight then.

use std::sync::atomic::Ordering;
use std::time::Duration;

use paceline::{PauseCause, ScopeSnapshot, ScopeState};
use paceline_core::{Instant, WaitCause};

use super::{Dispatcher, LONGEST_BLIND, LOOKS_TAKE, TICK};
use crate::calls::item::{Context, Phase};
use crate::stops::stop::StopReason;
use crate::text;

/// How long calls in flight may go on after an interruption.
const PATIENCE: Duration = Duration::from_secs(30);

impl Dispatcher {
    pub(super) fn tick(&mut self) {
        let now = self.parts.context.limiter.now();
        if self.abandon_at.is_some_and(|at| at <= now) {
            self.parts.phase.send_replace(Phase::Abandoning);
        }
        self.watch_the_disk(now);
        if now < self.look_again {
            return;
        }
        self.look_after();
        if self.give_up_on_failing_scopes(now) {
            self.look_after();
        }
        if self.stop.is_none() && self.parts.context.in_flight.load(Ordering::Relaxed) == 0 {
            self.end_with(self.parts.recorder.is_gone(now));
        }
        let next = self.parts.max_wait.zip(self.next_start());
        let impatient = next.filter(|(max_wait, start)| *start + slack(*max_wait) >= now + *max_wait);
        self.look_elsewhere(now, impatient.is_some());
        if let Some((max_wait, start)) = impatient.filter(|_| self.stop.is_none() && self.gets_none()) {
            let given_up: Vec<_> = self.parts.recorder.holds.given_up().cloned().collect();
            self.end_with(Some(match (self.parts.recorder.unreached(), given_up.is_empty()) {
                (Some(unreachable), _) => unreachable,
                (None, true) if self.waits_for(|cause| matches!(cause, WaitCause::Turn)) => StopReason::OtherHasTurn,
                (None, true)
                    if self.waits_for(|cause| matches!(cause, WaitCause::Share { .. })) && !self.share_has_a_time() =>
                {
                    StopReason::NoShare
                }
                (None, true) => {
                    let sends = self.limits.latest().map_or(0, |view| view.account.totals.sends);
                    let by_others = sends == 0 && self.waits_for(|cause| matches!(cause, WaitCause::Quota { .. }));
                    StopReason::MaxWait { until: self.parts.context.timestamp(start), by_others }
                }
                (None, false) => {
                    let is_given_up = |scope: &&ScopeSnapshot| given_up.contains(&scope.name);
                    let mut tried = self.limits.scopes().iter().filter(is_given_up);
                    let refuses = tried.all(|scope| scope.refused_since.is_some() && scope.no_success_since.is_none());
                    let scopes = if self.limits.scopes().len() > 1 { given_up } else { Vec::new() };
                    StopReason::ServerFails { scopes, waited: max_wait, refuses }
                }
            }));
        }
        let took = self.parts.context.limiter.now() - now;
        self.look_again = now + took + (took * LOOKS_TAKE).min(LONGEST_BLIND);
    }

    pub(super) fn watch_the_disk(&mut self, now: Instant) {
        if self.stop.is_none() {
            let stop = self.disk_watch.check(self.parts.journal.disk_full(), now);
            self.end_with(stop.map(StopReason::from));
        } else if self.tasks.is_empty() {
            self.parts.journal.fail_when_disk_full();
        }
    }

    /// Asks for what was recorded to be on the disk, by a claim of nothing that comes behind it.
    pub(super) fn flush(&mut self) {
        self.parts.journal.claim_items(Vec::new(), self.on_their_way.claims());
        self.flushed = true;
    }

    /// A scope of which calls fail, or are refused by a server that names no time, and none has succeeded for `--max-wait`, is
    /// held for the rest of this run, so that the run ends when nothing else is left. The hold is not stored: the next run
    /// looks for itself whether the server is back. It is short, for `stats` shows it after the run too, and so renewed for as
    /// long as other scopes go on. Says whether there was one.
    fn give_up_on_failing_scopes(&mut self, now: Instant) -> bool {
        let Some(max_wait) = self.parts.max_wait else { return false };
        let (limiter, recorder) = (&self.parts.context.limiter, &mut self.parts.recorder);
        let lasts = 2 * max_wait.max(TICK + LONGEST_BLIND);
        let mut any = false;
        for scope in self.limits.scopes() {
            let is_given_up = recorder.holds.has_given_up(&scope.name);
            let mut since = [scope.no_success_since, scope.refused_since].into_iter().flatten();
            let fails = since.any(|since| since + max_wait <= now);
            let is_due = match scope.state {
                ScopeState::Stopped { .. } => false,
                ScopeState::Held { until, .. } => is_given_up && until <= now + lasts / 2,
                // A host where no server is there is given up by the next call that finds none.
                _ => is_given_up || fails && !recorder.finds_no_server(&scope.name),
            };
            if !is_due {
                continue;
            }
            if !is_given_up {
                tracing::info!(
                    scope = &*scope.name,
                    "no call succeeded for {} (--max-wait): this run makes no more calls there",
                    text::duration(max_wait)
                );
            }
            any = true;
            let until = now + lasts;
            recorder.holds.give_up(&scope.name, self.parts.context.timestamp(until));
            limiter.hold_for(Some(&limiter.scope(&scope.name)), until, PauseCause::ServerFails);
        }
        if any {
            // What the journal has of them is due later than was known.
            self.look_at_journal();
        }
        any
    }

    /// The earliest moment at which a call can start; none while calls are in flight or when it is not known.
    pub(super) fn next_start(&self) -> Option<Instant> {
        if self.parts.context.in_flight.load(Ordering::Relaxed) > 0 || self.on_their_way.is_claiming() {
            return None;
        }
        let stored = self.next_due.filter(|_| !self.crowded).map(|due| self.parts.context.instant(due));
        let waiting = self.limits.scopes().iter().filter(|scope| scope.waiting > 0);
        let wait_for_permits: u64 = waiting.clone().map(|scope| scope.waiting).sum();
        if self.tasks.len() as u64 > wait_for_permits && !self.parts.context.budget.has_an_end() {
            // Some are on their way to their permit, or from it.
            return None;
        }
        let starts = waiting.map(|scope| scope.waits_for.as_ref().and_then(|(_, at)| *at));
        let mut earliest = stored;
        for start in starts {
            let start = start?;
            earliest = Some(earliest.map_or(start, |known| known.min(start)));
        }
        earliest
    }

    /// Whether nothing but `such` a wait for other processes keeps the next call back. When that ends is not known.
    fn waits_for(&self, such: impl Fn(&WaitCause) -> bool) -> bool {
        let waiting = self.limits.scopes().iter().filter(|scope| scope.waiting > 0);
        let is_such = |scope: &ScopeSnapshot| scope.waits_for.as_ref().is_some_and(|(cause, _)| such(cause));
        let mut causes = waiting.map(is_such).peekable();
        causes.peek().is_some() && causes.all(|is_such| is_such)
    }

    /// Whether the store of the fleet says by when it gives a share at the latest.
    fn share_has_a_time(&self) -> bool {
        let fleet = self.limits.latest().and_then(|view| view.account.fleet.as_deref());
        fleet.and_then(|fleet| fleet.without_share()).is_some_and(|why| why.until.is_some())
    }

    pub(super) fn end_with(&mut self, stop: Option<StopReason>) {
        let Some(stop) = stop.filter(|_| self.stop.is_none()) else { return };
        match &self.parts.context.guest {
            None => stop.announce(Some(self.parts.context.in_flight.load(Ordering::Relaxed))),
            // The batch tells what it waits for, or that its time is over.
            Some(_) => tracing::debug!("the run ends: {stop}"),
        }
        self.stop = Some(stop);
        self.parts
            .phase
            .send_if_modified(|phase| std::mem::replace(phase, (*phase).max(Phase::Draining)) < Phase::Draining);
    }

    pub(super) fn interrupt(&mut self) {
        if self.abandon_at.is_some() {
            self.parts.phase.send_replace(Phase::Abandoning);
            return;
        }
        if self.stop.is_some() && self.parts.context.in_flight.load(Ordering::Relaxed) > 0 {
            tracing::info!("interrupted: waiting up to 30s for the calls in flight (Ctrl-C again abandons them)");
        }
        self.end_at_last(self.parts.interruptions.reason());
    }

    /// Sends nothing more, and waits for calls in flight only so long.
    pub(super) fn end_at_last(&mut self, stop: StopReason) {
        self.abandon_at.get_or_insert(self.parts.context.limiter.now() + PATIENCE);
        self.abort_fallbacks();
        self.end_with(Some(stop));
    }

    /// Until `--max-duration` is over; none once the run ends anyway.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let bound = self.parts.max_duration.filter(|_| self.stop.is_none())?;
        let Context { began, limiter, .. } = &*self.parts.context;
        Some((*began + bound) - limiter.now())
    }
}

/// A server that says "in an hour" means `--max-wait 1h`, although a moment of it has passed when nothing is in flight any more.
fn slack(max_wait: Duration) -> Duration {
    max_wait / 50
}
