//! The cause of the pause or the hold that a waiting request reports.

use std::time::Duration;

use paceline_core::{
    Admit, Class, Cost, Event, Instant, LimitScope, Limits, Outcome, Pace, Pacer, PacerConfig, PauseCause, Request,
    ScopeAnswers, ScopeId, ScopeState, Ticket, WaitCause,
};

use crate::job::at;

const S: Duration = Duration::from_secs(1);

fn pacer(pace: Pace) -> (Pacer, ScopeId) {
    let mut pacer = Pacer::new(PacerConfig { pace, ..PacerConfig::default() }, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    (pacer, scope)
}

fn request(scope: &ScopeId) -> Request {
    Request::new(scope, Cost::request())
}

/// Sends one call at that time, which must be free to leave.
fn send(pacer: &mut Pacer, now: Instant, scope: &ScopeId) -> Ticket {
    let ticket = pacer.enqueue(now, request(scope)).expect("fits");
    while let Some(event) = pacer.poll_event() {
        if event == (Event::Granted { ticket, probe: false }) {
            return ticket;
        }
    }
    panic!("it waits");
}

/// The wait of a request after that answer, and whether it is a hold; the snapshot must agree.
fn cause_after(outcome: Outcome) -> (PauseCause, bool) {
    let (mut pacer, scope) = pacer(Pace::Auto);
    let ticket = send(&mut pacer, at(0.0), &scope);
    // Six overloaded answers in a row are an outage; a single one is taken for chance.
    let row = if outcome.class == Class::Overloaded { 6 } else { 1 };
    let mut now = at(0.0);
    let mut tickets = vec![ticket];
    (1..row).for_each(|_| tickets.push(sent(&mut pacer, &mut now, &scope)));
    now += S / 10;
    tickets.into_iter().for_each(|ticket| _ = pacer.complete(now, ticket, outcome.clone()));
    let Admit::At { at: until, cause } = pacer.admit(now, &request(&scope)) else { panic!("{outcome:?}") };
    let snapshot = pacer.snapshot(now).scopes.remove(0);
    assert_eq!(snapshot.waits_for, Some((cause.clone(), Some(until))));
    match cause {
        WaitCause::Held { cause } => {
            assert_eq!(snapshot.state, ScopeState::Held { until, cause });
            (cause, true)
        }
        WaitCause::Gate { cause } => {
            assert_eq!((snapshot.closed_until, snapshot.closed_for), (Some(until), Some(cause)));
            (cause, false)
        }
        cause => panic!("{outcome:?}: {cause}"),
    }
}

/// Sends the next call as soon as it may leave.
fn sent(pacer: &mut Pacer, now: &mut Instant, scope: &ScopeId) -> Ticket {
    let ticket = pacer.enqueue(*now, request(scope)).expect("fits");
    loop {
        while let Some(event) = pacer.poll_event() {
            if event == (Event::Granted { ticket, probe: false }) {
                return ticket;
            }
        }
        *now = pacer.poll_timeout().expect("a matter of time");
        pacer.handle_timeout(*now);
    }
}

#[test]
fn a_hold_names_its_cause() {
    let throttled = || Outcome::new(Class::Throttled);
    let overloaded = || Outcome::new(Class::Overloaded);
    let used_up = || Outcome::new(Class::QuotaExhausted);
    for (outcome, cause, held, text) in [
        (
            throttled().with_hint(60 * S, false),
            PauseCause::Throttled { asked: true },
            false,
            "the end of a pause that the server asked for (rate limit)",
        ),
        (
            throttled().with_hint(60 * S, false).with_reach(LimitScope::Account),
            PauseCause::Throttled { asked: true },
            false,
            "the end of a pause that the server asked for (rate limit)",
        ),
        (throttled(), PauseCause::Throttled { asked: false }, false, "the end of a pause after a rate limit was hit"),
        (
            overloaded().with_hint(60 * S, true),
            PauseCause::Overloaded { asked: true },
            false,
            "the end of a pause that the overloaded server asked for",
        ),
        (
            overloaded(),
            PauseCause::Overloaded { asked: false },
            false,
            "the end of a pause after the server was overloaded",
        ),
        (used_up(), PauseCause::QuotaUsedUp, true, "a used-up quota to refill"),
        (used_up().with_hint(7_200 * S, true), PauseCause::QuotaUsedUp, true, "a used-up quota to refill"),
        // The gate of the scope, which lets one call go first then, says it before the account.
        (used_up().with_reach(LimitScope::Account), PauseCause::QuotaUsedUp, false, "a used-up quota to refill"),
    ] {
        assert_eq!(cause_after(outcome), (cause, held));
        assert_eq!(cause.to_string(), text);
        assert_eq!(PauseCause::from_text(text), Some(cause), "as a program has stored it");
    }
}

#[test]
fn a_hold_of_the_program_has_that_cause_or_the_given_one() {
    for (cause, text) in [
        (None, "the end of a pause that this program set"),
        (Some(PauseCause::ServerFails), "a failing server to recover"),
        (Some(PauseCause::Overloaded { asked: true }), "the end of a pause that the overloaded server asked for"),
    ] {
        for whole in [false, true] {
            let (mut pacer, scope) = pacer(Pace::Fixed);
            let held = (!whole).then_some(&scope);
            match cause {
                None => pacer.hold(at(0.0), held, at(9.0)),
                Some(cause) => pacer.hold_for(at(0.0), held, at(9.0), cause),
            }
            let Admit::At { cause, .. } = pacer.admit(at(1.0), &request(&scope)) else { panic!("it is held") };
            assert_eq!(cause.to_string(), text);
        }
    }
}

#[test]
fn the_closure_that_ends_last_is_the_one_that_is_named() {
    let (mut pacer, scope) = pacer(Pace::Fixed);
    let [first, second, third] = [(); 3].map(|()| send(&mut pacer, at(0.0), &scope));
    let named = |pacer: &Pacer| match pacer.admit(at(1.0), &request(&scope)) {
        Admit::At { at, cause: WaitCause::Gate { cause } | WaitCause::Held { cause } } => (at, cause),
        other => panic!("{other:?}"),
    };
    pacer.complete(at(1.0), first, Outcome::new(Class::Overloaded).with_hint(60 * S, true));
    pacer.complete(at(1.0), second, Outcome::new(Class::Throttled).with_hint(30 * S, true));
    assert_eq!(named(&pacer), (at(61.0), PauseCause::Overloaded { asked: true }));
    pacer.complete(at(1.0), third, Outcome::new(Class::QuotaExhausted).with_hint(90 * S, true));
    pacer.hold(at(1.0), Some(&scope), at(80.0));
    assert_eq!(named(&pacer), (at(91.0), PauseCause::QuotaUsedUp));
    pacer.hold(at(1.0), Some(&scope), at(100.0));
    assert_eq!(named(&pacer), (at(100.0), PauseCause::Program));
}

#[test]
fn a_stop_says_why() {
    let (mut pacer, scope) = pacer(Pace::Fixed);
    let ticket = send(&mut pacer, at(0.0), &scope);
    let reason = Some("the key was revoked".into());
    pacer.complete(at(1.0), ticket, Outcome { reason, ..Outcome::new(Class::Account) });
    let Admit::OnRelease { cause } = pacer.admit(at(1.0), &request(&scope)) else { panic!("it is stopped") };
    assert_eq!(cause.to_string(), "a person to act (the key was revoked)");
}

#[test]
fn a_tier_whose_calls_in_flight_are_all_out_says_how_many_they_are() {
    for (places, said) in
        [(2, "one of its 2 slots (concurrency), which are all in use"), (1, "the end of its one call in flight")]
    {
        let config = PacerConfig { pace: Pace::Fixed, ..PacerConfig::default() };
        let config = config.with_tier("a", Limits::default()).with_tier_places("a", places).with_in_flight(40);
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
        let scope = pacer.scope("a");
        (0..places).for_each(|_| _ = send(&mut pacer, at(0.0), &scope));
        let Admit::OnRelease { cause } = pacer.admit(at(1.0), &request(&scope)) else { panic!("all are out") };
        assert_eq!(cause.to_string(), said);
    }
}

/// A scope leaves places to others while they have calls in flight, and for two seconds after the last one.
#[test]
fn a_scope_without_answers_says_that_it_leaves_places_to_others() {
    for known in [ScopeAnswers::Unknown, ScopeAnswers::Missing] {
        let config = PacerConfig { pace: Pace::Fixed, ..PacerConfig::default() }.with_in_flight(8);
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
        let [silent, other] = ["silent", "other"].map(|name| pacer.scope(name));
        pacer.recall_answers(at(0.0), &silent, known);
        let call = send(&mut pacer, at(0.5), &other);
        // It holds two: for a third more than four free places are needed for each of them.
        let calls = [(); 2].map(|()| send(&mut pacer, at(0.5), &silent));
        let waits = |pacer: &Pacer, now: f64| match pacer.admit(at(now), &request(&silent)) {
            Admit::Now => None,
            Admit::At { at, cause } => Some((Some(at), cause)),
            Admit::OnRelease { cause } => Some((None, cause)),
        };
        // Of one whose last call waited in vain it is known from the start; the other one is only late so far.
        let until = (known == ScopeAnswers::Missing).then(|| at(2.5));
        assert_eq!(waits(&pacer, 0.5), Some((until, WaitCause::Silence)), "{known:?}: the other has a call in flight");
        pacer.complete(at(1.0), call, Outcome::new(Class::Success));
        let (until, cause) = waits(&pacer, 1.0).expect("the other had one a moment ago");
        assert_eq!((until, &cause), (Some(at(3.0)), &WaitCause::Silence), "{known:?}");
        assert_eq!(cause.to_string(), "an answer: it has had none for a while, and leaves free slots to others");
        assert_eq!(waits(&pacer, 3.0), None, "{known:?}: the other has had none for two seconds");
        pacer.complete(at(1.5), calls[0], Outcome::new(Class::Success));
        assert_eq!(waits(&pacer, 1.5), None, "{known:?}: it has answered");
    }
}
