//! What an outcome means for its item: done, again, or never.

use alloc::boxed::Box;
use core::time::Duration;

use crate::config::{Pace, PacerConfig};
use crate::hold::FIRST_GUESS;
use crate::outcome::{Class, Outcome, Reach};
use crate::request::{GiveUp, Request, Verdict};
use crate::rng::Rng;
use crate::scope::Scope;
use crate::time::Instant;

/// The longest that the pacer itself lets a throttled item wait under the automatic and the responsive
/// pace.
const LONGEST_OWN_WAIT: Duration = Duration::from_secs(5);

/// A closed gate is tested with so many other items before one that failed there: only several tell whose fault it is.
const OTHERS_FIRST: usize = 5;

/// Counts the send that has ended and decides about the next one.
pub(crate) fn judge(
    config: &PacerConfig,
    now: Instant,
    mut request: Request,
    probe: bool,
    outcome: &Outcome,
    scope: &mut Scope,
    rng: &mut Rng,
) -> Verdict {
    let tried = request.clone();
    match outcome.class {
        Class::Success => return Verdict::Done,
        Class::Abandoned => return Verdict::Done,
        Class::Overloaded | Class::Transient if probe => request.probes += 1,
        Class::Overloaded | Class::Transient | Class::Invalid | Class::Filtered => request.attempts += 1,
        Class::Throttled | Class::QuotaExhausted | Class::Account | Class::Partial => request.deferrals += 1,
    }
    let retry = &config.retry;
    let bound = match outcome.class {
        Class::Invalid | Class::Filtered => Some(GiveUp::Refused(outcome.class)),
        Class::Overloaded | Class::Transient => (request.attempts > retry.max_retries).then_some(GiveUp::Retries),
        Class::Account => None,
        _ => retry.max_deferrals.filter(|max| request.deferrals > *max).map(|_| GiveUp::Deferrals),
    };
    if let Some(reason) = bound {
        return Verdict::GiveUp { reason, request: Box::new(request) };
    }
    let failed = matches!(outcome.class, Class::Overloaded | Class::Transient);
    // It sits out the next round of tests, so that one item that always fails cannot keep the others out.
    let delay = if probe && failed {
        2 * (scope.next_probe(now) - now)
    } else if failed && config.pace == Pace::Auto && scope.is_shut() {
        let others = scope.queue.len().min(OTHERS_FIRST) as u32;
        delay(config, &tried, outcome, rng).max(others * (scope.closed_until(now).unwrap_or(now) - now))
    } else {
        delay(config, &tried, outcome, rng)
    };
    let not_before = now + delay;
    let held = matches!(outcome.class, Class::QuotaExhausted | Class::Account);
    if !held && request.deadline.is_some_and(|deadline| deadline <= not_before) {
        return Verdict::GiveUp { reason: GiveUp::Deadline, request: Box::new(request) };
    }
    match outcome.class {
        Class::Overloaded | Class::Transient => scope.totals.retries += 1,
        _ => scope.totals.deferrals += 1,
    }
    let next = Box::new(Request { not_before: (!delay.is_zero()).then_some(not_before), ..request });
    match outcome.class {
        Class::Partial => Verdict::Resend { next, delay },
        _ => Verdict::Retry { next, delay },
    }
}

/// The wait of the item itself. The server's word is taken as it is; without one it is the backoff at the index of
/// what has been tried.
fn delay(config: &PacerConfig, tried: &Request, outcome: &Outcome, rng: &mut Rng) -> Duration {
    let backoff = &config.retry.backoff;
    let at_once = |hint: Duration| hint.is_zero() && outcome.class != Class::Transient;
    match outcome.hint {
        Some(hint) if !at_once(hint.wait) => return hint.wait,
        _ => {}
    }
    match outcome.class {
        Class::QuotaExhausted if outcome.reach == Reach::Item => FIRST_GUESS,
        Class::Account | Class::QuotaExhausted => Duration::ZERO,
        Class::Throttled | Class::Partial => {
            let delay = backoff.delay(tried.deferrals, rng);
            match config.pace {
                // The scope waits for all its items. Whoever is refused again lets others go first: one item that is always
                // refused would look like a limit that lets nothing pass.
                Pace::Auto if tried.deferrals == 0 && outcome.reach != Reach::Item => Duration::ZERO,
                Pace::Responsive => delay.min(LONGEST_OWN_WAIT),
                _ => delay,
            }
        }
        _ => backoff.delay(tried.attempts, rng),
    }
}
