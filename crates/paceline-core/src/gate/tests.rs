//! Closures, and how they end.

use super::*;

const SILENCE: Duration = Duration::from_millis(300);

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

#[test]
fn one_canary_goes_first_and_its_success_opens() {
    let mut gate = Gate::new();
    gate.hold_for_canary(at(10));
    assert_eq!(
        gate.admit(at(3), None),
        Admit::At { at: at(10), cause: WaitCause::Gate { cause: PauseCause::Program } }
    );
    assert!(gate.admit(at(10), None).is_now());
    assert!(gate.sent(at(10), 7), "the canary");
    assert_eq!(gate.admit(at(11), None), Admit::OnRelease { cause: WaitCause::Canary });
    assert_eq!(gate.passed(at(11), 6), None, "an older call is no canary");
    assert!(gate.passed(at(11), 7).is_some());
    assert!(gate.admit(at(11), None).is_now());
}

#[test]
fn where_refusals_are_fast_silence_opens_too() {
    let mut gate = Gate::new();
    gate.hold_for_canary(at(10));
    gate.sent(at(10), 1);
    assert_eq!(gate.admit(at(10), Some(SILENCE)), Admit::At { at: at(10) + SILENCE, cause: WaitCause::Canary });
    assert_eq!(gate.silent(at(10), SILENCE), None, "not yet");
    assert_eq!(gate.silent(at(11), SILENCE).map(|it| (it.canary, it.opened)), Some((at(10), at(10) + SILENCE)));
    assert!(gate.is_open());
}

#[test]
fn a_refusal_may_take_longer_than_usual_by_a_part_of_the_closure() {
    let usual = Duration::from_millis(2);
    for (closed, patience) in [(8, 2), (40, 5), (160, 20), (450, 30), (4_000, 30)] {
        let mut gate = Gate::new();
        let (closed, patience) = (Duration::from_millis(closed), Duration::from_millis(patience));
        gate.begins(at(0));
        gate.close(at(0), closed, Duration::from_secs(5), 1.0, None);
        let sent = at(0) + closed;
        gate.sent(sent, 1);
        assert!(gate.reopens(sent));
        let passes = sent + patience;
        assert_eq!(gate.admit(sent, Some(usual)), Admit::At { at: passes, cause: WaitCause::Canary });
        assert_eq!(gate.next_change(Some(usual)), Some(passes));
        assert_eq!(gate.silent(sent + patience.mul_f64(0.99), usual), None, "it may still be refused");
        assert_eq!(gate.silent(passes, usual).map(|it| (it.canary, it.opened)), Some((sent, passes)));
    }
}

/// Also where nothing was ever admitted: no call has begun it then, and the clock of a process does not begin at 0.
#[test]
fn closures_in_a_row_last_as_long_as_all_before_them_up_to_the_longest() {
    for (from, begins) in [(0, true), (34_560_000, false)] {
        let mut gate = Gate::new();
        let mut now = at(from);
        if begins {
            gate.begins(now);
        }
        for expected in [1, 1, 2, 4, 5, 5] {
            gate.close(now, Duration::from_secs(1), Duration::from_secs(5), 1.0, Some(at(from + 600)));
            assert_eq!(gate.closed_until(now), Some(now + Duration::from_secs(expected)));
            now += Duration::from_secs(expected);
            gate.sent(now, 1);
        }
        assert_eq!(gate.passed(now, 1).map(|opened| opened.closed), Some(Duration::from_secs(18)));
    }
}

#[test]
fn a_gate_that_was_opened_by_a_late_refusal_has_been_closed_all_the_time() {
    let mut gate = Gate::new();
    let all_refused = |gate: &mut Gate, now| {
        gate.all_refused(now, at(0), Duration::from_secs(60), || 1.0);
        gate.closed_until(now).map(|until| until.saturating_since(now))
    };
    assert_eq!(all_refused(&mut gate, at(120)), None, "not for long");
    assert_eq!(all_refused(&mut gate, at(400)), Some(Duration::from_secs(50)));
    gate.sent(at(450), 1);
    assert_eq!(gate.silent(at(454), SILENCE), None, "a refusal may be late by 5 s then");
    assert!(gate.silent(at(455), SILENCE).is_some() && gate.is_open());
    assert_eq!(all_refused(&mut gate, at(480)), Some(Duration::from_secs(60)));
    assert!(!gate.is_open());
}

#[test]
fn what_is_closed_for_long_waits_for_no_usual_window() {
    let mut gate = Gate::new();
    gate.begins(at(0));
    gate.close(at(0), SILENCE, SILENCE, 1.0, None);
    gate.close(at(400), SILENCE, Duration::from_secs(60), 1.0, Some(at(411)));
    assert_eq!(gate.closed_until(at(400)), Some(at(450)));
}

/// A ban for an hour, or one that each call extends.
#[test]
fn tests_of_a_gate_that_is_closed_for_long_grow_to_minutes() {
    let mut gate = Gate::new();
    let (mut now, mut tests, mut longest) = (at(0), 0, Duration::ZERO);
    gate.begins(now);
    while now < at(3_600) {
        gate.close(now, Duration::from_secs(1), Duration::from_secs(60), 1.0, None);
        let until = gate.closed_until(now).expect("closed");
        let wait = until.saturating_since(now);
        assert!(now > at(120) || wait <= Duration::from_secs(5), "{wait:?} at {now:?}");
        (now, tests, longest) = (until, tests + 1, longest.max(wait));
        gate.sent(now, 1);
    }
    assert_eq!(longest, Duration::from_secs(120));
    assert!((50..75).contains(&tests), "{tests} where every 5 s one are 720");
}

#[test]
fn a_closure_ends_no_later_than_all_may_pass_again() {
    let mut gate = Gate::new();
    let mut now = at(0);
    gate.begins(now);
    for expected in [1, 2, 4, 8, 11, 16] {
        gate.close(now, Duration::from_secs(1), Duration::from_secs(5), 1.0, (now < at(10)).then_some(at(11)));
        assert_eq!(gate.closed_until(now), Some(at(expected)));
        now = at(expected);
        gate.sent(now, 1);
    }
}

#[test]
fn the_latest_end_wins_and_a_lost_canary_is_replaced() {
    let mut gate = Gate::new();
    gate.hold_for_canary(at(10));
    gate.hold(at(5));
    assert_eq!(gate.closed_until(at(6)), Some(at(10)));
    gate.sent(at(10), 1);
    gate.lost(1);
    assert!(gate.admit(at(10), None).is_now());
}

#[test]
fn another_process_opens_what_waits_for_a_test_and_nothing_else() {
    let mut gate = Gate::new();
    assert_eq!(gate.opened_elsewhere(at(1)), None, "it is open");
    gate.begins(at(2));
    gate.hold_for_canary(at(10));
    assert_eq!(gate.opened_elsewhere(at(9)), None, "it was told to wait for longer");
    let opened = gate.opened_elsewhere(at(10)).map(|it| (it.closed, it.canary, it.opened));
    assert_eq!(opened, Some((Duration::from_secs(8), at(10), at(10))));
    assert!(gate.is_open());
    gate.hold_for_canary(at(20));
    gate.sent(at(20), 1);
    assert_eq!(gate.opened_elsewhere(at(21)), None, "its own test is under way");
}

#[test]
fn a_repeated_hint_is_counted() {
    let mut gate = Gate::new();
    let mut reopened = |wait: Option<u64>| {
        match wait {
            Some(wait) => gate.close_for_hint(at(0), Duration::from_secs(wait)),
            None => gate.close(at(0), SILENCE, SILENCE, 1.0, None),
        }
        gate.sent(at(100), 1);
        gate.passed(at(100), 1).map(|opened| opened.closure)
    };
    let again = |times| Some(Closure::SameHint { wait: Duration::from_secs(60), times });
    assert_eq!(reopened(Some(60)), Some(Closure::Hint));
    assert_eq!(reopened(Some(60)), again(1));
    assert_eq!(reopened(Some(60)), again(2));
    assert_eq!(reopened(Some(41)), Some(Closure::NewHint), "it counts down");
    assert_eq!(reopened(None), Some(Closure::Own));
    assert_eq!(reopened(Some(41)), Some(Closure::Hint), "the first again");
}
