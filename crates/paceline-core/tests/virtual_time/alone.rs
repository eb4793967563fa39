//! A process that cannot reach the ledger of its fleet goes on at what was set aside for it.

use std::time::Duration;

use paceline_core::fleet::{FleetLimit, LimitKind, Member, MemberConfig, MemberId, MemberInput, OnLoss};
use paceline_core::{
    AloneShare, Cost, Dimension, Event, Instant, Limits, Pace, Pacer, PacerConfig, Quota, Request, Trouble, WaitCause,
};

const S: Duration = Duration::from_secs(1);

const MINUTE: Duration = Duration::from_mins(1);

fn limits(calls: u64) -> Limits {
    Limits { quotas: vec![Quota::sliding(Dimension::Requests, calls, MINUTE)], burst: Some(calls) }
}

fn divided(now: Instant) -> Pacer {
    let tiers = vec![("large".into(), limits(20))];
    let config = PacerConfig { limits: limits(100), tiers, pace: Pace::Fixed, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, now).expect("limits");
    pacer.divide(now).expect("sliding windows");
    pacer
}

fn member(pacer: &Pacer, alone: &[AloneShare], now: Instant) -> Member {
    let divided = pacer.divided_limits();
    let limit = |units| FleetLimit { units, kind: LimitKind::Window(MINUTE) };
    let limits = divided.iter().map(|divided| limit(divided.quota.limit)).collect();
    let alone_share = AloneShare::of_each(&divided, alone).expect("they are of its limits");
    let settings = MemberConfig { id: MemberId(1), weight: 1, limits, on_loss: OnLoss::Strict, alone_share };
    Member::new(settings, 1, now)
}

fn calls(units: u64) -> AloneShare {
    AloneShare { units, dimension: Dimension::Requests, window: Some(MINUTE) }
}

/// How many of ten calls of each scope leave within half a minute, where there was no ledger yet.
fn left(alone: &[AloneShare]) -> ((u64, u64), Trouble) {
    let now = Instant::ZERO + 1_000 * S;
    let mut pacer = divided(now);
    let mut member = member(&pacer, alone, now.saturating_sub(MINUTE));
    drop(pacer.hear(now, &mut member, MemberInput::Time));
    let scopes = [pacer.scope("large"), pacer.scope("small")];
    for scope in &scopes {
        for _ in 0..10 {
            pacer.enqueue(now, Request::new(scope, Cost::request())).expect("it may fit");
        }
    }
    // The calls are spaced.
    (0..30).for_each(|seconds| pacer.handle_timeout(now + seconds * S));
    let now = now + 30 * S;
    while let Some(event) = pacer.poll_event() {
        assert!(matches!(event, Event::Granted { .. }), "{event:?}");
    }
    let left = scopes.map(|scope| pacer.scope_snapshot(now, &scope).expect("it is known").totals.sends);
    let account = pacer.snapshot(now).account;
    assert_eq!(account.lacks_its_share(), alone.is_empty(), "{account:?}");
    assert!(account.explain(now).contains(if alone.is_empty() {
        "nothing leaves"
    } else {
        "goes on at what was set aside"
    }));
    ((left[0], left[1]), account.trouble(now))
}

#[test]
fn what_was_set_aside_leaves_without_the_ledger_but_for_a_tier_that_has_nothing() {
    assert_eq!(left(&[]), ((0, 0), Trouble::Closed));
    assert_eq!(left(&[calls(3)]).0, (0, 3));
}

/// A caller that bounds its wait does not wait for ever for a ledger that is lost.
#[test]
fn a_tier_without_a_share_is_told_to_wait_for_as_long_again_as_there_was_no_ledger() {
    let now = Instant::ZERO + 1_000 * S;
    for alone in [&[][..], &[calls(3)]] {
        let mut pacer = divided(now);
        let mut member = member(&pacer, alone, now.saturating_sub(MINUTE));
        drop(pacer.hear(now, &mut member, MemberInput::Time));
        let scope = pacer.scope("large");
        pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("it may fit");
        pacer.handle_timeout(now + 8 * S);
        let waits_for = pacer.scope_snapshot(now + 8 * S, &scope).expect("it is known").waits_for;
        let is_told = |(cause, until)| matches!(cause, WaitCause::Share { .. }) && until == Some(now + 16 * S);
        assert!(waits_for.clone().is_some_and(is_told), "{alone:?}: {waits_for:?}");
    }
}

#[test]
fn a_share_that_no_limit_has_or_that_is_more_than_it_is_refused() {
    let pacer = divided(Instant::ZERO);
    let refused = |shares: &[AloneShare]| AloneShare::of_each(&pacer.divided_limits(), shares).unwrap_err().to_string();
    let tokens = AloneShare { dimension: Dimension::Tokens, ..calls(5) };
    assert_eq!(
        refused(&[tokens]),
        "alone_share is 5 tokens per 60s, expected a limit of the account, by what it counts and its window"
    );
    let more = "alone_share is 101 requests per 60s, expected each limit once, with 1 to what the fleet divides of it";
    assert_eq!(refused(&[calls(101)]), more);
    assert!(refused(&[calls(1), calls(1)]).contains("each limit once"));
    assert!(refused(&[calls(0)]).contains("with 1 to"));
    let places = AloneShare { window: None, ..calls(1) };
    assert!(refused(&[places]).contains("alone_share is 1 concurrent, expected a limit of the account"));
}
