//! What failures that are alike stop.

use super::*;
use paceline_store::End;

const NOT_JSON: &str = "not_json";

fn of(scope: &str, ordinal: u64, status: u16, code: Option<&str>) -> Failed {
    Failed {
        finished: Finished::new(ordinal, End::Failed, Vec::new()),
        item: ordinal.to_string(),
        scope: scope.into(),
        class: Class::Invalid,
        status: Some(status),
        code: code.map(ToOwned::to_owned),
        message: "no".to_owned(),
        unexpected: code == Some(NOT_JSON),
        address: None,
        down: None,
        known: Timestamp::from_millis(100),
        overtaken: false,
    }
}

fn refused(watch: &mut FailFast, ordinal: u64, status: u16) -> FailFastDecision {
    watch.failed(of("a", ordinal, status, None), || false, || true)
}

fn mismatched(watch: &mut FailFast, ordinal: u64) -> FailFastDecision {
    watch.mismatched(&of("a", ordinal, 200, Some(NOT_JSON)).failure(), || false, || true)
}

#[test]
fn twenty_alike_stop_and_stay_held_back() {
    let mut watch = FailFast::new(20, 21);
    for ordinal in 0..19 {
        assert!(matches!(refused(&mut watch, ordinal, 400), FailFastDecision::HeldBack));
    }
    assert!(matches!(
        refused(&mut watch, 19, 400),
        FailFastDecision::Stop(StopReason::SameFailure { count: 20, scope: None, .. })
    ));
    let in_flight = refused(&mut watch, 20, 404);
    assert!(matches!(in_flight, FailFastDecision::HeldBack), "in flight when the run stopped");
    assert!(watch.disarm().is_empty());
    assert_eq!(watch.take_held_back().len(), 21);
}

#[test]
fn one_that_differs_lets_all_be_recorded() {
    let mut watch = FailFast::new(20, 1_000);
    assert!(matches!(refused(&mut watch, 0, 400), FailFastDecision::HeldBack));
    assert!(matches!(refused(&mut watch, 1, 404), FailFastDecision::Record(all) if all.len() == 2));
    assert!(matches!(refused(&mut watch, 2, 400), FailFastDecision::Record(all) if all.len() == 1));

    let mut watch = FailFast::new(20, 1_000);
    assert!(matches!(refused(&mut watch, 0, 400), FailFastDecision::HeldBack));
    assert_eq!(watch.disarm().len(), 1);
    for ordinal in 1..40 {
        assert!(matches!(refused(&mut watch, ordinal, 400), FailFastDecision::Record(_)));
    }
}

#[test]
fn items_whose_answers_match_no_schema_are_counted_once_with_their_first_answer_or_their_last() {
    let mut watch = FailFast::new(20, 21);
    for ordinal in 0..19 {
        assert!(matches!(mismatched(&mut watch, ordinal), FailFastDecision::HeldBack));
    }
    for _ in 0..3 {
        assert!(matches!(mismatched(&mut watch, 7), FailFastDecision::HeldBack), "it is tried again");
    }
    let last = watch.failed(of("a", 7, 200, Some(NOT_JSON)), || false, || true);
    assert!(matches!(last, FailFastDecision::HeldBack), "its retries are used up");
    assert_eq!(watch.undecided(), Some(1));
    assert!(matches!(mismatched(&mut watch.clone(), 19), FailFastDecision::Stop(_)));
    let without_retries = watch.clone().failed(of("a", 19, 200, Some(NOT_JSON)), || false, || true);
    assert!(matches!(without_retries, FailFastDecision::Stop(_)));
    assert_eq!(watch.ended_otherwise(&"a".into(), None, || true).len(), 1, "one matched");
    assert!(matches!(mismatched(&mut watch, 20), FailFastDecision::Record(all) if all.is_empty()));
}

#[test]
fn a_scope_of_several_is_stopped_alone() {
    let forbidden =
        |watch: &mut FailFast, scope, ordinal| watch.failed(of(scope, ordinal, 403, None), || true, || true);
    let mut watch = FailFast::new(20, 100);
    for ordinal in 0..19 {
        assert!(matches!(forbidden(&mut watch, "a", ordinal), FailFastDecision::HeldBack));
    }
    let FailFastDecision::PutBack { items, stop: Some(stop) } = forbidden(&mut watch, "a", 19) else {
        panic!("the scope stops")
    };
    assert_eq!(items.len(), 20);
    assert!(stop.to_string().starts_with("the first 20 items of a all failed the same way"), "{stop}");
    let in_flight = forbidden(&mut watch, "a", 20);
    assert!(matches!(in_flight, FailFastDecision::PutBack { items, stop: None } if items.len() == 1));
    for ordinal in 21..40 {
        assert!(matches!(forbidden(&mut watch, "b", ordinal), FailFastDecision::HeldBack), "the watch begins anew");
    }
    let of_two = forbidden(&mut watch, "c", 40);
    assert!(matches!(of_two, FailFastDecision::Stop(StopReason::SameFailure { scope: None, .. })));
}

/// Others answer meanwhile.
#[test]
fn a_few_failures_of_each_host_are_held_back_until_it_stops_or_ends_otherwise() {
    let mut watch = FailFast::new(3, 100).by_host(true);
    let failed = |watch: &mut FailFast, scope, ordinal, status, more: bool| {
        watch.failed(of(scope, ordinal, status, None), || true, move || more)
    };
    assert!(watch.ended_otherwise(&"good".into(), None, || true).is_empty());
    let recorded = |decision| match decision {
        FailFastDecision::Record(all) => all.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(recorded(failed(&mut watch, "a", 0, 404, true)), 0);
    assert_eq!(recorded(failed(&mut watch, "b", 10, 403, true)), 0);
    assert_eq!(recorded(failed(&mut watch, "a", 1, 404, true)), 0);
    assert_eq!(recorded(failed(&mut watch, "a", 2, 403, true)), 2, "of another kind");
    assert_eq!(watch.ended_otherwise(&"a".into(), None, || true).len(), 1);
    assert_eq!(recorded(failed(&mut watch, "a", 3, 404, true)), 1, "it has pages, and some are gone");
    assert_eq!(recorded(failed(&mut watch, "a", 4, 403, true)), 0, "it may keep this machine out");
    assert_eq!(recorded(failed(&mut watch, "b", 11, 403, true)), 0);
    let FailFastDecision::StopScope { failed: none, waits, .. } = failed(&mut watch, "b", 12, 403, true) else {
        panic!("the host stops")
    };
    assert_eq!((none.len(), waits.len()), (0, 3));
    assert_eq!(recorded(failed(&mut watch, "c", 20, 404, true)), 0);
    assert_eq!(recorded(failed(&mut watch, "c", 21, 404, false)), 2, "it has no more pages");
    assert_eq!(watch.take_held_back().len(), 1, "of a");
}

/// Many calls are in flight when a ban begins, and their answers come in any order.
#[test]
fn a_success_whose_call_left_before_a_refusal_was_known_tells_nothing_of_it() {
    let forbidden = |watch: &mut FailFast, ordinal| watch.failed(of("a", ordinal, 403, None), || true, || true);
    let succeeded = |watch: &mut FailFast, left| {
        watch.ended_otherwise(&"a".into(), Some(Timestamp::from_millis(left)), || true).len()
    };
    let mut watch = FailFast::new(3, 100).by_host(true);
    assert_eq!(succeeded(&mut watch, 0), 0);
    assert!(matches!(forbidden(&mut watch, 0), FailFastDecision::Record(all) if all.is_empty()));
    assert_eq!(succeeded(&mut watch, 100), 0, "it left before");
    for ordinal in 1..3 {
        assert!(matches!(forbidden(&mut watch, ordinal), FailFastDecision::Record(all) if all.is_empty()));
    }
    let mut opens = watch.clone();
    assert_eq!(succeeded(&mut opens, 101), 3, "the host lets pages pass");
    let mut other = watch.clone();
    let gone = other.failed(of("a", 3, 404, None), || true, || true);
    assert!(matches!(gone, FailFastDecision::Record(all) if all.len() == 4), "it tells of its pages");
    let mut last = watch.clone();
    let no_more = last.failed(of("a", 3, 403, None), || true, || false);
    assert!(matches!(no_more, FailFastDecision::Record(all) if all.len() == 4), "none are left");
    let ends = watch.clone().ended_otherwise(&"a".into(), Some(Timestamp::from_millis(0)), || false);
    assert_eq!(ends.len(), 3, "the last one of its host");
    let mut mixed = FailFast::new(3, 100).by_host(true);
    let gone = |watch: &mut FailFast, ordinal, more| watch.failed(of("a", ordinal, 404, None), || true, move || more);
    assert_eq!(mixed.ended_otherwise(&"good".into(), None, || true).len(), 0);
    assert!(matches!(gone(&mut mixed, 0, true), FailFastDecision::Record(all) if all.is_empty()));
    assert_eq!(succeeded(&mut mixed, 0), 0, "it left before");
    assert!(
        matches!(gone(&mut mixed, 1, false), FailFastDecision::Record(all) if all.len() == 2),
        "the last one fails"
    );
    let FailFastDecision::StopScope { failed, waits, .. } = forbidden(&mut watch, 3) else { panic!("the host stops") };
    assert_eq!((failed.len(), waits.len()), (0, 4));
}

#[test]
fn one_call_tests_a_host_that_an_earlier_run_stopped() {
    let stopped = || [("a".into(), (Some(403), None))].into();
    let watch = || FailFast::new(20, 100).by_host(true).after(stopped());
    let mut same = watch();
    let FailFastDecision::PutBack { items, stop: Some(stop) } = same.failed(of("a", 0, 403, None), || true, || true)
    else {
        panic!("it stops again")
    };
    assert_eq!((items.len(), same.has_stopped("a")), (1, true));
    assert!(stop.to_string().starts_with("a still answers as in the run before, with status 403: no; "), "{stop}");
    let mut tried = of("a", 0, 403, None);
    tried.finished.tally.attempts = TESTS_OF_AN_ITEM + 1;
    let tested = watch().failed(tried, || true, || true);
    let FailFastDecision::StopScope { failed, waits, .. } = tested else { panic!("it stops again") };
    assert_eq!((failed.len(), waits.len()), (1, 0), "others are to be asked for, too");
    let mut other = watch();
    assert!(matches!(other.failed(of("a", 0, 404, None), || true, || true), FailFastDecision::HeldBack));
    assert!(matches!(other.failed(of("a", 1, 403, None), || true, || true), FailFastDecision::Record(_)));
    let mut open = watch();
    open.ended_otherwise(&"a".into(), None, || true);
    assert!(!matches!(open.failed(of("a", 0, 403, None), || true, || true), FailFastDecision::PutBack { .. }));
}

#[test]
fn one_call_tests_a_host_that_an_earlier_run_stopped_for_its_answers_were_not_as_expected() {
    let mut watch =
        FailFast::new(20, 100).by_host(true).after([("a".into(), (Some(200), Some(NOT_JSON.into())))].into());
    let FailFastDecision::PutBack { items, stop: Some(stop) } = mismatched(&mut watch, 0) else {
        panic!("it stops again")
    };
    assert_eq!((items.len(), watch.has_stopped("a")), (0, true), "its item is tried again in the next run");
    assert!(stop.to_string().starts_with("a still answers as in the run before, with status 200"), "{stop}");
}

#[test]
fn pages_that_are_gone_at_several_hosts_stop_neither_the_run_nor_a_host() {
    let mut watch = FailFast::new(3, 100).by_host(true);
    let failed = |watch: &mut FailFast, scope, ordinal| watch.failed(of(scope, ordinal, 404, None), || true, || true);
    assert!(matches!(failed(&mut watch, "a", 0), FailFastDecision::HeldBack));
    assert!(matches!(failed(&mut watch, "b", 1), FailFastDecision::HeldBack));
    assert!(matches!(failed(&mut watch, "c", 2), FailFastDecision::Record(_)));
    assert_eq!(watch.undecided(), None);
    assert!(matches!(failed(&mut watch, "a", 3), FailFastDecision::Record(_)));
    let FailFastDecision::StopScope { stop, .. } = failed(&mut watch, "a", 4) else { panic!("that host alone") };
    assert!(stop.to_string().starts_with("the first 3 items of a all failed the same way"), "{stop}");
}

#[test]
fn small_and_unwatched_jobs_record_at_once() {
    for mut watch in [FailFast::new(20, 20), FailFast::new(0, 1_000)] {
        assert!(matches!(refused(&mut watch, 0, 400), FailFastDecision::Record(_)));
    }
}

/// Items that keep failing come together at the end of a good job.
#[test]
fn the_next_try_of_an_item_that_failed_before_a_success_shows_nothing_of_the_server() {
    let mut watch = FailFast::new(20, 500);
    let succeeds = |watch: &mut FailFast| watch.ended_otherwise(&"a".into(), None, || true);
    succeeds(&mut watch);
    for ordinal in 0..40 {
        assert!(matches!(mismatched(&mut watch, ordinal), FailFastDecision::Record(_)));
        if ordinal % 10 == 9 {
            succeeds(&mut watch);
        }
    }
    for ordinal in (0..40).chain(0..40) {
        assert!(matches!(mismatched(&mut watch, ordinal), FailFastDecision::Record(_)), "{ordinal}");
    }
    let last = watch.failed(of("a", 7, 200, Some(NOT_JSON)), || false, || true);
    assert!(matches!(last, FailFastDecision::Record(_)), "its retries are used up");
    for ordinal in 100..119 {
        assert!(matches!(mismatched(&mut watch, ordinal), FailFastDecision::Record(_)), "{ordinal} is new");
    }
    assert!(matches!(mismatched(&mut watch, 119), FailFastDecision::StopScope { .. }), "a page to log in for all");
}
