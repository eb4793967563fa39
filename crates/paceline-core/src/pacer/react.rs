//! How the pace reacts to the outcome of a call.

use core::time::Duration;

use super::Pacer;
use crate::adaptive::{LONGEST_CLOSURE, Reaction, Refusal};
use crate::admit::PauseCause;
use crate::breaker::Change;
use crate::config::Pace;
use crate::flight::Flight;
use crate::outcome::{Class, Hint, LimitScope, Outcome};
use crate::places::Held;
use crate::request::{Event, NextAction, Request, ScopeId};
use crate::retry::{self, Then, Tried, is_failure};
use crate::scope::Scope;
use crate::time::Instant;

/// So many other items test a closed gate before one that failed there.
const OTHERS_FIRST: usize = 5;

/// A request is told so often to wait for a second or less before that looks like a limit of its own.
const TOLD_OFTEN: u32 = 4;

impl Pacer {
    /// Releases a call's places, and replaces its estimated cost by the actual one. What its scope holds is noted once it is
    /// known whether it answers.
    pub(super) fn settle(&mut self, now: Instant, request: &Request, flight: &Flight, outcome: &Outcome) {
        let scope = &mut self.scopes[request.scope.place];
        scope.ended(request, flight);
        self.in_flight.release(request.is_background());
        self.active.note(now, request.scope.place, scope.is_mute());
        self.out.subtract(&request.cost);
        scope.totals.by_class[outcome.class as usize] += 1;
        self.totals.by_class[outcome.class as usize] += 1;
        self.answers.learn(request.scope.place, &request.cost, outcome);
        let actual = outcome.usage.as_ref().map(|usage| request.cost.settled(usage));
        if let Some(actual) = &actual {
            scope.settle(now, flight, &request.cost, actual);
            self.quotas.settle(now, flight.counted, &request.cost, actual);
        }
        self.pots.end(&scope.name, &request.cost, actual.as_ref().unwrap_or(&request.cost));
        scope.learn(flight, &request.cost, outcome);
    }

    /// Where scopes are accounts of their own, an answer reaches its scope at most.
    pub(super) fn limit_reach(&self, outcome: &mut Outcome) {
        if outcome.reach == LimitScope::Account && self.config.per_scope.is_some() {
            outcome.reach = LimitScope::Scope;
        }
    }

    /// A limit of a day that refuses again right after the wait that it asked for is used up.
    pub(super) fn drop_vain_hint(&mut self, now: Instant, id: &ScopeId, sent: Instant, outcome: &mut Outcome) {
        let wait = outcome.hint.filter(|_| outcome.class == Class::Throttled && outcome.long_period);
        let Some(Hint { wait, .. }) = wait else { return };
        let hold = match reach(id, outcome.reach) {
            Some(id) => &mut self.scopes[id].hold,
            None => &mut self.hold,
        };
        if hold.is_in_vain(now, sent, wait) {
            (outcome.class, outcome.hint) = (Class::QuotaExhausted, None);
        }
    }

    /// Applies the outcome to the pace. `held`: what the scope held until this call ended.
    pub(super) fn react(&mut self, now: Instant, request: &Request, flight: &Flight, outcome: &Outcome, held: Held) {
        let scope = &mut self.scopes[request.scope.place];
        let item = request.number();
        let change = match outcome.class {
            Class::Success => {
                self.hold.passed();
                self.untested = false;
                scope.speed_up(flight.number, &mut self.rng);
                let (opened, change) = scope.passed(now, flight, item);
                if opened {
                    self.quotas.forget_burst(now);
                }
                change
            }
            Class::Abandoned => {
                scope.lost(flight);
                None
            }
            Class::Overloaded | Class::Transient if !outcome.server_works => {
                if self.active.expects() {
                    scope.waited(now, flight);
                }
                scope.failed(now, flight, item, outcome.unsent)
            }
            Class::Overloaded
            | Class::Transient
            | Class::Throttled
            | Class::QuotaExhausted
            | Class::Account
            | Class::Invalid
            | Class::Filtered
            | Class::Partial => scope.answered(now, flight, item),
        };
        let holds = scope.held_places();
        self.active.hold(held, holds);
        self.report_breaker(now, &request.scope, change);
        match outcome.class {
            Class::Throttled | Class::Partial | Class::Overloaded => self.slow_down(now, request, flight, outcome),
            Class::QuotaExhausted => self.exhaust(now, &request.scope, outcome),
            Class::Account => {
                let reason = outcome.reason.clone().unwrap_or_else(|| "the account was refused".into());
                self.stop_for(now, reach(&request.scope, outcome.reach).cloned(), reason);
            }
            Class::Invalid | Class::Filtered => self.scopes[&request.scope].took_a_call(),
            Class::Success | Class::Transient | Class::Abandoned => {}
        }
    }

    /// Decides what follows for the item, and makes the request of its next try.
    pub(super) fn decide(&mut self, now: Instant, request: &mut Request, probe: bool, outcome: &Outcome) -> NextAction {
        if retry::is_done(outcome) {
            return NextAction::Done;
        }
        let tried = self.tried(now, request, probe, outcome);
        let decision = retry::decide(&self.config.retry, self.config.pace, &tried, outcome, &mut self.rng);
        request.count(&decision);
        // What waits elsewhere meanwhile has its time after that; a queue's clock knows by itself which time does not count.
        let aside = match decision.then {
            Then::Again(delay) if tried.stands_still && request.sets_aside(delay) => {
                outcome.hint.as_ref().map_or(delay, |hint| hint.wait.min(delay))
            }
            _ => Duration::ZERO,
        };
        let action = request.follow(now, outcome.class, decision.then, aside);
        if matches!(action, NextAction::Retry { .. } | NextAction::Resend { .. }) {
            for totals in [&mut self.scopes[request.scope.place].totals, &mut self.totals] {
                match is_failure(outcome.class) {
                    true => totals.retries += 1,
                    false => totals.deferrals += 1,
                }
            }
        }
        action
    }

    /// The history of an item whose call has ended.
    fn tried(&self, now: Instant, request: &Request, probe: bool, outcome: &Outcome) -> Tried {
        let scope = &self.scopes[request.scope.place];
        Tried {
            attempts: request.attempts,
            max_retries: request.max_retries,
            deferrals: request.deferrals,
            quotas: 0,
            free: request.unsent,
            left: request.deadline.map(|deadline| deadline - now),
            // The quota holds its scope.
            stands_still: outcome.class == Class::QuotaExhausted || asks_to_set_aside(request, outcome),
            // It sits out the next round of tests, so that one item that always fails cannot keep the others out.
            probe: probe
                .then(|| scope.passes_from(now, request.caller))
                .flatten()
                .map(|at| 2 * (at - now))
                .filter(|wait| !wait.is_zero()),
            chosen: self.guessed(now, &request.scope, outcome),
            at_least: self.others_first(now, scope, probe, request, outcome),
        }
    }

    /// What remains of the hold for a quota with an unknown end: calls that were in flight together share one guess.
    fn guessed(&self, now: Instant, scope: &ScopeId, outcome: &Outcome) -> Option<Duration> {
        if outcome.class != Class::QuotaExhausted || outcome.hint.is_some() || outcome.reach == LimitScope::Item {
            return None;
        }
        let hold = reach(scope, outcome.reach).map_or(&self.hold, |id| &self.scopes[id].hold);
        hold.until().map(|(until, _)| until - now)
    }

    /// A closed gate is tested with several other items before one that failed there, and with another one before one that was
    /// told to wait again: only others show whether the server or the item is at fault.
    fn others_first(&self, now: Instant, scope: &Scope, probe: bool, request: &Request, outcome: &Outcome) -> Duration {
        if probe || self.config.pace != Pace::Auto || !scope.is_closed() {
            return Duration::ZERO;
        }
        let others = match outcome.class {
            class if is_failure(class) => OTHERS_FIRST,
            _ if request.deferrals > 0 && names_a_time(request, outcome) => 2,
            _ => 0,
        };
        let Some(after_the_first) = (scope.queue.len().min(others) as u32).checked_sub(1) else {
            return Duration::ZERO;
        };
        let wait = scope.closed_until(now).unwrap_or(now) - now;
        // The server's own wait counts once: each failed test after it closes the gate for a wait of our choice.
        wait + after_the_first * wait.min(LONGEST_CLOSURE)
    }

    fn report_breaker(&mut self, now: Instant, scope: &ScopeId, change: Option<Change>) {
        match change {
            Some(Change::Opened { until }) => {
                self.events.push_back(Event::BreakerOpened { scope: scope.clone(), until });
            }
            Some(Change::Closed) => {
                self.scopes[scope].forget_burst(now);
                self.quotas.forget_burst(now);
                self.events.push_back(Event::BreakerClosed { scope: scope.clone() });
            }
            None => {}
        }
    }

    /// Slows down after a refusal: fewer calls in flight, and a pause where the server asked for one or refuses everything.
    fn slow_down(&mut self, now: Instant, request: &Request, flight: &Flight, outcome: &Outcome) {
        let id = &request.scope;
        if outcome.reach == LimitScope::Item || self.scopes[id].fails_alone(request.caller) {
            return;
        }
        match outcome.class {
            Class::Throttled => self.scopes[id].was_throttled(now, outcome.hint.as_ref()),
            Class::Partial => self.scopes[id].took_a_call(),
            _ => {}
        }
        let refusal = match outcome.class {
            Class::Overloaded if request.attempts >= 2 && self.is_bad(request) => Refusal::OverloadedItem,
            Class::Overloaded => Refusal::Overloaded,
            _ if request.deferrals >= 2 && names_a_time(request, outcome) => Refusal::AgainHeld,
            _ if request.deferrals >= 2 => Refusal::Again,
            _ if names_a_time(request, outcome) => Refusal::ThrottledHeld,
            _ => Refusal::Throttled,
        };
        let scope = &mut self.scopes[id];
        let was_closed = scope.is_closed();
        match scope.refused(now, flight, refusal, &mut self.rng) {
            // It means one call, unless the server names a time.
            Reaction::Chance if !(outcome.class == Class::Overloaded && asks_for_long(outcome)) => return,
            Reaction::Chance | Reaction::Known => {}
            Reaction::Slower => {
                let (limit, rate) = scope.limits();
                self.events.push_back(Event::LimitDecreased { scope: id.clone(), limit, rate });
            }
        }
        if outcome.class != Class::Partial {
            scope.slow_down(now, flight.number, outcome.hint.map(|hint| hint.wait), &mut self.rng);
        }
        let closed = !was_closed && scope.is_closed();
        let (shared, reads) = (scope.shares_pace(), scope.reads());
        self.note_refusal(id.place);
        let (cause, reach) = (refusal.cause(true), reach(id, outcome.reach));
        let held = outcome.hint.is_some_and(|hint| self.obey(now, reach, hint, cause));
        self.scopes[id].was_refused(flight.item, refusal == Refusal::AgainHeld);
        match (outcome.hint.filter(|_| held), self.scopes[id].closed_until(now)) {
            (Some(hint), _) => self.tell_closed(now, reach, now + hint.wait, cause),
            // The process that decides says for how long the gate stays closed.
            (None, Some(_)) if shared && !reads => {}
            (None, Some(until)) if self.is_shared(id) || reads && closed => {
                self.tell_closed(now, Some(id), until, refusal.cause(false));
            }
            (None, _) => {}
        }
        if let Some(until) = self.scopes[id].closed_until(now)
            && (held || closed)
        {
            self.events.push_back(Event::GateClosed { scope: id.clone(), until });
        }
    }

    fn is_bad(&self, request: &Request) -> bool {
        self.scopes[&request.scope].is_bad(request.number(), request.caller)
    }

    /// Closes the gate of a scope, or of all of them, for as long as the server asked.
    fn obey(&mut self, now: Instant, scope: Option<&ScopeId>, hint: Hint, cause: PauseCause) -> bool {
        match scope {
            Some(id) => self.scopes[id].obey(now, hint, cause),
            None => self.scopes.iter_mut().fold(false, |held, scope| scope.obey(now, hint, cause) | held),
        }
    }

    fn exhaust(&mut self, now: Instant, id: &ScopeId, outcome: &Outcome) {
        if outcome.reach == LimitScope::Item {
            return;
        }
        let scope = reach(id, outcome.reach);
        let hold = match scope {
            Some(id) => &mut self.scopes[id].hold,
            None => &mut self.hold,
        };
        let wait = match outcome.hint {
            Some(hint) => hint.wait,
            // Calls that were in flight together make one guess.
            None if hold.is_active() => return,
            None => hold.guess(),
        };
        let cause = if outcome.unnamed { PauseCause::Throttled { asked: true } } else { PauseCause::QuotaUsedUp };
        self.hold_until(now, scope.cloned(), now + wait, cause);
        self.tell_held(now, scope, now + wait, cause);
    }
}

/// Whether the server asks for a pause for which the caller sets its requests aside.
fn asks_to_set_aside(request: &Request, outcome: &Outcome) -> bool {
    outcome.hint.as_ref().is_some_and(|hint| request.sets_aside(hint.wait))
}

/// Whether the server named a time that says something about the item: one that holds the scope, or one that it names to this
/// item again and again.
fn names_a_time(request: &Request, outcome: &Outcome) -> bool {
    outcome.hint.is_some_and(|hint| hint.is_long() || request.deferrals >= TOLD_OFTEN)
}

/// Whether the server asked for a longer wait than we would choose: it names a time, and does not refuse one call by chance.
fn asks_for_long(outcome: &Outcome) -> bool {
    outcome.hint.is_some_and(|hint| hint.wait > LONGEST_CLOSURE)
}

/// The scope itself, or `None` for the whole account.
const fn reach(scope: &ScopeId, reach: LimitScope) -> Option<&ScopeId> {
    match reach {
        LimitScope::Account => None,
        LimitScope::Scope | LimitScope::Item => Some(scope),
    }
}
