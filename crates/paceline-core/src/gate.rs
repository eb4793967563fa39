//! Closed until an instant, then opened by one canary.
//!
//! After a pause that the server asked for, or after it refused everything, one call goes first; the others follow if it was
//! not refused.

use core::time::Duration;

use crate::adaptive::LONGEST_CLOSURE;
use crate::admit::{Admit, PauseCause, WaitCause};
use crate::outcome::Hint;
use crate::time::{Instant, earlier};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Open,
    /// After `until`, one call may leave.
    HalfOpen,
    /// That call is under way.
    Canary {
        number: u64,
        sent: Instant,
    },
}

/// Why the gate was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closure {
    /// By our own choice, because everything was refused.
    Own,
    /// By a hint, the first since a closure of our own.
    Hint,
    /// By a hint that differs from the last one: it counts down to something.
    NewHint,
    /// By the same hint again, so many times: it does not show when the limit opens.
    SameHint { wait: Duration, times: u32 },
}

/// The gate is open again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reopening {
    /// From the call whose refusal began the closure until the canary was sent.
    pub(crate) closed: Duration,
    /// When the canary left.
    pub(crate) canary: Instant,
    /// When the gate opened, which is known later where nothing asked meanwhile.
    pub(crate) opened: Instant,
    pub(crate) closure: Closure,
    /// A canary was refused after a wait that the server asked for, and a later one opened the gate.
    pub(crate) in_vain: bool,
}

/// A gate that has been closed for longer, by our own choice, waits for no window of a minute: for one that may last hours, or
/// for the end of a ban, which calls may extend. ...
const UNUSUAL: Duration = Duration::from_secs(120);

/// ... Then the next call waits for this part of the time that it has been closed, ...
const PART: u32 = 8;

/// ... and no longer than so many times the longest wait of our own choice.
const MOST: u32 = 2;

/// Refusals do not all take the same time, and less so where little is sent. Where a canary is refused later than usual, others
/// must not have left behind it, and the closure must not begin anew: this part of the time that the gate has been closed is
/// waited, where that is longer, ...
const PATIENCE: u32 = 8;

/// ... and no longer than this: what a busy machine is late by.
const LATE: Duration = Duration::from_millis(30);

/// The gate of one scope.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    until: Instant,
    /// Why it is closed until then.
    cause: PauseCause,
    door: Door,
    /// When the call was sent whose refusal began the present closure, once there was one.
    since: Instant,
    has_begun: bool,
    /// The first hint in the present closure.
    asked: Option<Duration>,
    /// A canary was refused since it closed.
    is_in_vain: bool,
    was_in_vain: bool,
    /// That canary had been told to wait before.
    was_told: bool,
    /// The server names waits that say nothing about when it takes calls.
    rounds: bool,
    /// The one of the closure before, and how often it was repeated.
    before: Option<(Duration, u32)>,
    /// It was closed, and [`Gate::reopens`] has not reported its end yet.
    closed: bool,
}

impl Gate {
    pub(crate) const fn new() -> Self {
        Self {
            until: Instant::ZERO,
            cause: PauseCause::Program,
            door: Door::Open,
            since: Instant::ZERO,
            has_begun: false,
            asked: None,
            before: None,
            closed: false,
            is_in_vain: false,
            was_in_vain: false,
            was_told: false,
            rounds: false,
        }
    }

    /// `silence`: a canary that has not been refused for so long opens the gate by [`Gate::silent`], unless the gate has been
    /// closed for long.
    #[inline(always)]
    pub(crate) fn admit(&self, now: Instant, silence: Option<Duration>) -> Admit {
        match (self.door, silence) {
            (Door::Canary { sent, .. }, Some(silence)) => {
                Admit::at(self.passes_by_silence(sent, silence), now, || WaitCause::Canary)
            }
            (Door::Canary { .. }, None) => Admit::OnRelease { cause: WaitCause::Canary },
            (Door::Open | Door::HalfOpen, _) => Admit::at(self.until, now, || WaitCause::Gate { cause: self.cause }),
        }
    }

    /// Nothing leaves before `until`; the latest end wins.
    pub(crate) fn hold(&mut self, until: Instant) {
        self.until = self.until.max(until);
        self.closed = true;
    }

    /// Closes by `close`, for that cause; an earlier closure that ends later keeps its own cause.
    pub(crate) fn close_for<T>(&mut self, cause: PauseCause, close: impl FnOnce(&mut Self) -> T) -> T {
        let before = self.until;
        let result = close(self);
        if self.until > before {
            self.cause = cause;
        }
        result
    }

    /// The end of the last closure.
    pub(crate) const fn until(&self) -> Instant {
        self.until
    }

    /// Whether no canary is needed or in flight.
    pub(crate) fn is_open(&self) -> bool {
        self.door == Door::Open
    }

    /// Whether that was so of the last closure that ended, or of one before it, if the server has asked for each since.
    pub(crate) const fn was_in_vain(&self) -> bool {
        self.was_in_vain
    }

    /// A call of an item passed that had been turned away: what is refused need not be so for good.
    pub(crate) const fn passed_again(&mut self) {
        self.was_in_vain = false;
    }

    /// Whether a canary was refused after a wait that the server asked for, of all calls or of that one again and again.
    pub(crate) const fn is_in_vain(&self) -> bool {
        self.is_in_vain && (self.asked.is_some() || self.was_told)
    }

    /// The server named that wait.
    pub(crate) fn was_asked(&mut self, hint: &Hint) {
        self.rounds = hint.is_rounding();
    }

    /// Whether the last wait that the server named says nothing about when it takes calls.
    pub(crate) const fn rounds(&self) -> bool {
        self.rounds
    }

    /// A call was refused, and the gate is closed; `again`: the server has told its item to wait before.
    pub(crate) const fn was_refused(&mut self, again: bool) {
        self.was_told |= self.is_in_vain && again;
    }

    /// Whether a closure has ended since the last call.
    pub(crate) fn reopens(&mut self, now: Instant) -> bool {
        let reopens = self.closed && self.until <= now;
        self.closed &= !reopens;
        reopens
    }

    /// When [`silent`](Self::silent) or [`reopens`](Self::reopens) has something to do next.
    #[inline(always)]
    pub(crate) fn next_change(&self, silence: Option<Duration>) -> Option<Instant> {
        let canary = match (self.door, silence) {
            (Door::Canary { sent, .. }, Some(silence)) => Some(self.passes_by_silence(sent, silence)),
            _ => None,
        };
        earlier(canary, self.closed.then_some(self.until))
    }

    /// Sets when the call was sent whose refusal may begin a closure.
    pub(crate) const fn begins(&mut self, sent: Instant) {
        (self.since, self.has_begun) = (sent, true);
    }

    /// When the present closure began: now, where nothing was admitted before its first refusal.
    fn began(&mut self, now: Instant) -> Instant {
        if !self.has_begun {
            self.begins(now);
        }
        self.since
    }

    /// Nothing leaves before `until`, and then one call goes first.
    pub(crate) fn hold_for_canary(&mut self, until: Instant) {
        self.hold(until);
        self.is_in_vain |= matches!(self.door, Door::Canary { .. });
        self.door = Door::HalfOpen;
    }

    /// Closes for the wait of a hint; one call goes first after it.
    pub(crate) fn close_for_hint(&mut self, now: Instant, wait: Duration) {
        self.asked.get_or_insert(wait);
        self.began(now);
        self.hold_for_canary(now + wait);
    }

    /// Closes because everything is refused: for `least` at first, then as long again as it has been closed, up to
    /// [`LONGEST_CLOSURE`] and `longest`, the longest wait of our own choice, which are no less. `spread`: a factor, since many
    /// processes must not come back together. Where everything may pass again at `likely`, the closure ends no later. Where
    /// nothing passes for [long](UNUSUAL), it lasts longer, whatever is likely.
    pub(crate) fn close(
        &mut self,
        now: Instant,
        least: Duration,
        longest: Duration,
        spread: f64,
        likely: Option<Instant>,
    ) {
        let since = self.began(now);
        let closed = if self.is_open() { Duration::ZERO } else { now.saturating_since(since) };
        if closed > UNUSUAL {
            return self.hold_for_canary(now + unusual(closed, longest).mul_f64(spread));
        }
        let until = now + closed.clamp(least, longest.min(LONGEST_CLOSURE)).mul_f64(spread);
        self.hold_for_canary(likely.map_or(until, |likely| likely.min(until)));
    }

    /// All calls have been refused since then, and none is under way. Where that is [long](UNUSUAL), the gate has been closed
    /// since then, though a refusal that came late may have opened it meanwhile.
    pub(crate) fn all_refused(
        &mut self,
        now: Instant,
        since: Instant,
        longest: Duration,
        spread: impl FnOnce() -> f64,
    ) {
        let closed = now.saturating_since(since);
        if closed > UNUSUAL {
            self.begins(since);
            self.hold_for_canary(now + unusual(closed, longest).mul_f64(spread()));
        }
    }

    /// Call `number` is sent. Returns whether it is the canary.
    pub(crate) fn sent(&mut self, now: Instant, number: u64) -> bool {
        let canary = self.door == Door::HalfOpen;
        if canary {
            self.door = Door::Canary { number, sent: now };
        }
        canary
    }

    /// Call `number` was answered, and not refused. Returns the reopening if that opened the gate.
    pub(crate) fn passed(&mut self, now: Instant, number: u64) -> Option<Reopening> {
        match self.door {
            Door::Canary { number: canary, sent } if canary == number => Some(self.open(sent, now)),
            _ => None,
        }
    }

    /// Opens when the canary has not been refused for so long.
    pub(crate) fn silent(&mut self, now: Instant, silence: Duration) -> Option<Reopening> {
        match self.door {
            Door::Canary { sent, .. } => {
                let opened = self.passes_by_silence(sent, silence);
                (opened <= now).then(|| self.open(sent, opened))
            }
            Door::Open | Door::HalfOpen => None,
        }
    }

    /// When a canary that left then has passed, if it is not refused before: `silence` later, or a [part](PATIENCE) of the time
    /// for which the gate has been closed, [30 ms](LATE) at most. A refusal that comes a little late does not open it. After an
    /// [unusual](UNUSUAL) closure the longest wait of our own choice is as little of it.
    fn passes_by_silence(&self, sent: Instant, silence: Duration) -> Instant {
        let closed = sent.saturating_since(self.since);
        sent + silence.max(if closed > UNUSUAL { LONGEST_CLOSURE } else { (closed / PATIENCE).min(LATE) })
    }

    /// Opens because the canary of another process was not refused, where the closure is over and no own canary is under way.
    pub(crate) fn opened_elsewhere(&mut self, now: Instant) -> Option<Reopening> {
        self.awaits_canary(now).then(|| self.open(now, now))
    }

    /// Whether one call may leave now.
    pub(crate) fn awaits_canary(&self, now: Instant) -> bool {
        self.door == Door::HalfOpen && self.until <= now
    }

    fn open(&mut self, sent: Instant, opened: Instant) -> Reopening {
        self.was_in_vain = self.is_in_vain() || self.was_in_vain && self.asked.is_some();
        (self.door, self.is_in_vain, self.was_told) = (Door::Open, false, false);
        let (closure, times) = match (self.asked, self.before) {
            (None, _) => (Closure::Own, 0),
            (Some(_), None) => (Closure::Hint, 0),
            (Some(wait), Some((before, times))) if wait == before => {
                (Closure::SameHint { wait, times: times + 1 }, times + 1)
            }
            (Some(_), Some(_)) => (Closure::NewHint, 0),
        };
        self.before = self.asked.take().map(|wait| (wait, times));
        Reopening {
            closed: sent.saturating_since(self.since),
            canary: sent,
            opened,
            closure,
            in_vain: self.was_in_vain,
        }
    }

    /// A call ended without an answer that opens or closes the gate: the next one may be the canary.
    pub(crate) fn lost(&mut self, number: u64) {
        if matches!(self.door, Door::Canary { number: canary, .. } if canary == number) {
            self.door = Door::HalfOpen;
        }
    }

    /// Until when the gate is closed, if it is.
    pub(crate) fn closed_until(&self, now: Instant) -> Option<Instant> {
        (self.until > now).then_some(self.until)
    }

    /// The cause of the last closure.
    pub(crate) const fn cause(&self) -> PauseCause {
        self.cause
    }

    /// Why it is closed, if it is.
    pub(crate) fn closed_for(&self, now: Instant) -> Option<PauseCause> {
        (self.until > now).then_some(self.cause)
    }
}

/// For how long a gate stays closed that has been so for unusually long.
fn unusual(closed: Duration, longest: Duration) -> Duration {
    (closed / PART).min(longest * MOST).max(longest.min(LONGEST_CLOSURE))
}

#[cfg(test)]
mod tests;
