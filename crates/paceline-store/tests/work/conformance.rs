//! What every engine promises.

use std::time::Duration;

use paceline_core::retry::Counted;
use paceline_core::{Class, Timestamp};
use paceline_store::work::{
    Added, Amend, ClaimOutcome, ClaimRequest, DecisionRecord, Failure, Filter, ItemTime, NewItem, RecordStatus, State,
    Transition, WorkError,
};
use paceline_store::{ACCOUNT, ScopeRow, ScopeStatus};

use crate::ended::*;
use crate::limiter_state::*;
use crate::lost_workers::*;
use crate::support::{Bench, LEASE, S, START, again, held, item, keys, of_group, outcome, stopped};
use crate::turns::*;

/// One test for each engine and promise.
macro_rules! conformance {
    ($($promise:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test] async fn $promise() { super::$promise(crate::support::memory().await).await; })*
        }
        #[cfg(feature = "postgres-tests")]
        mod postgres {
            $(#[tokio::test] async fn $promise() { super::$promise(crate::cluster::bench().await).await; })*
        }
        mod sqlite {
            $(#[tokio::test] async fn $promise() { super::$promise(crate::support::sqlite().await).await; })*
        }
    };
}

conformance!(
    a_key_is_added_once,
    what_is_too_long_is_refused_with_its_batch,
    what_not_every_store_can_hold_is_refused_with_its_batch,
    words_of_others_are_recorded_whatever_they_hold,
    high_priorities_then_due_tries_then_new_items,
    new_items_and_due_tries_take_turns,
    groups_take_turns,
    an_item_waits_as_long_as_was_chosen,
    what_is_due_soon_is_handed_out_ahead_of_its_time,
    the_last_five_decisions_come_with_a_claim,
    a_held_group_waits_and_its_deadlines_with_it,
    a_stopped_group_is_tried_by_the_next_run,
    a_persons_retry_opens_the_stopped_group_of_what_it_means,
    the_account_stops_every_group,
    a_worker_that_lost_its_lease_records_nothing,
    who_leaves_puts_back_and_who_dies_too,
    a_call_that_was_cut_off_may_be_done,
    an_item_is_in_doubt_until_a_server_has_looked_at_a_later_call,
    outcomes_are_taken_once,
    what_is_added_again_with_another_payload_is_told,
    who_adds_what_was_in_another_store_sends_for_it,
    calls_that_only_tested_a_failing_server_are_counted_apart,
    a_cancelled_item_takes_no_outcome,
    a_try_counts_whose_item_was_cancelled_meanwhile,
    what_a_server_said_to_the_last_try_is_kept,
    what_succeeded_begins_once_more,
    what_is_sent_once_more_has_succeeded_all_the_same,
    what_failed_and_is_sent_as_new_was_known_by_another_time,
    a_person_retries_what_has_ended,
    what_ended_long_ago_is_removed,
    what_was_cancelled_during_its_call_is_removed_once_that_has_ended,
    what_was_cancelled_during_its_call_may_be_done_unless_its_answer_says_otherwise,
    what_waited_for_a_pause_that_is_over_is_due_and_keeps_its_bounds,
    what_is_left_to_the_next_run_begins_it,
    the_deadline_of_what_is_left_to_the_next_run_counts_from_its_first_try,
    after_the_year_9999_is_never,
    items_are_listed_in_pages,
    a_change_wakes_every_caller_that_waits_for_it,
    who_lost_its_lease_goes_on_in_the_same_run,
    an_hour_back_lengthens_no_wait,
    an_hour_forward_makes_due,
    time_begins_with_the_first_send,
    the_last_saved_limiter_state_counts,
    what_is_known_of_answers_outlives_a_worker_and_reaches_the_others,
    notes_about_scopes_are_changed_one_after_the_other,
);

async fn a_key_is_added_once(on: Bench) {
    let first = on.store.insert(vec![item("a"), item("b"), item("a")]).await.unwrap();
    assert_eq!(first, [Added::New, Added::New, Added::Known(State::Waiting)]);
    let worker = on.register().await;
    let claim = on.claim(worker, 9).await;
    assert_eq!(keys(&claim.items), ["a", "b"]);
    assert_eq!(on.record(ClaimOutcome::success(&claim.items[1])).await, RecordStatus::Recorded);
    let second = on.store.insert(vec![NewItem::new("a", "other"), item("b")]).await.unwrap();
    assert_eq!(second, [Added::Differs(State::InFlight), Added::Known(State::Succeeded)]);
    let (found, payload, events) = on.store.show("a").await.unwrap().unwrap();
    assert_eq!((found.state, payload.as_str(), events.len()), (State::InFlight, "{\"of\":\"a\"}", 0));
    assert_eq!(on.store.show("c").await.unwrap(), None);
    let counts = on.store.counts().await.unwrap();
    assert_eq!((counts.total(), counts.of(State::InFlight), counts.of(State::Succeeded)), (2, 1, 1));
}

async fn what_is_too_long_is_refused_with_its_batch(on: Bench) {
    let refused = on.store.insert(vec![item("a"), item(&"k".repeat(513))]).await;
    assert!(matches!(refused, Err(WorkError::TooLong { what: "key", bytes: 513, most: 512, .. })), "{refused:?}");
    assert_eq!(on.store.counts().await.unwrap().total(), 0);
}

async fn what_not_every_store_can_hold_is_refused_with_its_batch(on: Bench) {
    for (new, of) in [
        (item("a\0b"), "key"),
        (of_group("a", "a\0"), "group"),
        (NewItem { payload: "\0".to_owned(), ..item("a") }, "payload"),
    ] {
        let refused = on.store.insert(vec![item("before"), new]).await;
        assert!(matches!(&refused, Err(WorkError::Nul { what, .. }) if *what == of), "{refused:?}");
    }
    assert_eq!(on.store.counts().await.unwrap().total(), 0);
}

async fn words_of_others_are_recorded_whatever_they_hold(on: Bench) {
    on.add([item("a")]).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 1).await;
    let broken = "an answer in \u{1b}bytes\0\u{202e}".to_owned();
    let failure = Failure { code: Some(broken.clone()), ..Failure::new(Class::Transient, &broken) };
    let decided = DecisionRecord {
        failure,
        action: "fail",
        reason: Some(broken.clone()),
        stayed_down: false,
        by: broken.clone(),
    };
    let (counted, next) = (Counted::Attempt, Transition::Failed);
    let outcome = ClaimOutcome { counted, next, decided: Some(decided), ..ClaimOutcome::back(&claim.items[0]) };
    let reason = broken.clone();
    let scope = ScopeRow { name: "default".into(), state: ScopeStatus::Stopped { reason } };
    assert_eq!(on.store.record(vec![outcome], vec![scope]).await.unwrap(), [RecordStatus::Recorded]);
    let kept = broken.replace('\0', "\u{fffd}");
    let (found, _, events) = on.store.show("a").await.unwrap().unwrap();
    let last = found.last.unwrap();
    assert_eq!((last.message, last.code.unwrap(), found.reason.unwrap()), (kept.clone(), kept.clone(), kept.clone()));
    assert_eq!((&events[0].by, events[0].reason.as_ref()), (&kept, Some(&kept)));
    assert_eq!(on.store.scopes().await.unwrap()[0].state, ScopeStatus::Stopped { reason: kept });
}

async fn an_item_waits_as_long_as_was_chosen(on: Bench) {
    on.add([item("a")]).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 1).await;
    assert_eq!((claim.next_due, claim.others), (None, false));
    assert_eq!(on.record(again(&claim.items[0], S * 60)).await, RecordStatus::Recorded);
    on.forward(S * 60 - Duration::from_millis(1)).await;
    let claim = on.claim(worker, 1).await;
    assert_eq!((claim.items.len(), claim.next_due), (0, Some(Duration::from_millis(1))));
    on.forward(Duration::from_millis(1)).await;
    let claim = on.claim(worker, 1).await;
    let claimed = &claim.items[0];
    assert_eq!(claimed.item.not_before, Some(START + S * 60));
    assert_eq!((claimed.item.attempts, claimed.item.delay, claimed.due_in), (1, S * 60, Duration::ZERO));
    assert_eq!(
        claimed.item.last.as_ref().map(|last| (last.message.as_str(), last.status)),
        Some(("no luck", Some(503)))
    );
    assert_eq!(claimed.history.len(), 1);
    let event = &claimed.history[0];
    assert_eq!((event.decided, event.not_before, event.waited), (START, Some(START + S * 60), Some(S * 60)));
    assert_eq!((event.send, event.action.as_str(), event.by.as_str()), (1, "retry", "rules"));
}

async fn what_is_due_soon_is_handed_out_ahead_of_its_time(on: Bench) {
    let worker = on.register().await;
    on.add([item("soon")]).await;
    on.fail_once(worker, Duration::from_millis(700)).await;
    on.add([item("later")]).await;
    on.fail_once(worker, S * 2).await;
    on.add([NewItem { priority: -5, ..item("now") }]).await;
    let claim = on.store.claim(worker, ClaimRequest { limit: 9, ahead: S }).await.unwrap();
    assert_eq!(keys(&claim.items), ["now", "soon"], "what is due goes before what is not, whatever its priority");
    assert_eq!(claim.items[1].due_in, Duration::from_millis(700));
    assert_eq!(claim.items[1].history[0].waited, Some(Duration::from_millis(700)));
    assert_eq!(claim.next_due, Some(S * 2));
}

async fn the_last_five_decisions_come_with_a_claim(on: Bench) {
    on.add([item("a")]).await;
    let worker = on.register().await;
    for _ in 0..7 {
        on.fail_once(worker, S).await;
        on.forward(S).await;
    }
    let claim = on.claim(worker, 1).await;
    let sends: Vec<u32> = claim.items[0].history.iter().map(|event| event.send).collect();
    assert_eq!(sends, [3, 4, 5, 6, 7]);
    assert_eq!(on.store.show("a").await.unwrap().unwrap().2.len(), 7);
}

async fn a_held_group_waits_and_its_deadlines_with_it(on: Bench) {
    on.add([of_group("a", "g"), of_group("b", "g"), of_group("other", "h")]).await;
    let worker = on.register().await;
    let claim = on.store.claim(worker, ClaimRequest { limit: 1, ahead: Duration::ZERO }).await.unwrap();
    assert_eq!(keys(&claim.items), ["a"]);
    on.forward(S * 10).await;
    let until = START + S * 110;
    let kept = on.store.record(vec![again(&claim.items[0], S * 5)], vec![held("g", until)]).await.unwrap();
    assert_eq!(kept, [RecordStatus::Recorded]);
    let claim = on.claim(worker, 9).await;
    assert_eq!((keys(&claim.items), claim.next_due), (vec!["other".to_owned()], Some(S * 100)));
    assert_eq!(on.store.scopes().await.unwrap(), [held("g", until)]);
    on.forward(S * 100).await;
    let claim = on.claim(worker, 9).await;
    assert_eq!(keys(&claim.items), ["a", "b"]);
    assert_eq!(claim.items[0].item.first, Some(START + S * 100), "the hold does not count against the deadline");
    assert_eq!(on.store.scopes().await.unwrap(), []);
}

async fn a_stopped_group_is_tried_by_the_next_run(on: Bench) {
    on.add([of_group("a", "g"), of_group("b", "h")]).await;
    let worker = on.register().await;
    on.store.record(Vec::new(), vec![stopped("g")]).await.unwrap();
    let claim = on.claim(worker, 9).await;
    assert_eq!((keys(&claim.items), claim.next_due), (vec!["b".to_owned()], None));
    on.record(ClaimOutcome::success(&claim.items[0])).await;
    let worker = on.register().await;
    assert_eq!(on.keys(worker, 9).await, ["a"]);
}

async fn a_persons_retry_opens_the_stopped_group_of_what_it_means(on: Bench) {
    on.add([of_group("a", "theirs"), of_group("b", "ours"), of_group("c", "held")]).await;
    let worker = on.register().await;
    let all = vec![stopped("theirs"), stopped("ours"), held("held", START + S * 60), stopped("*")];
    on.store.record(Vec::new(), all).await.unwrap();
    on.forward(S).await;
    on.store.amend(Filter::keys(["unknown"]), Amend::Retry).await.unwrap();
    on.store.amend(Filter::keys(["b"]), Amend::Cancel).await.unwrap();
    assert_eq!(on.store.scopes().await.unwrap().len(), 4);
    assert!(on.keys(worker, 9).await.is_empty());
    on.store.amend(Filter::keys(["a", "c"]), Amend::Retry).await.unwrap();
    let left: Vec<_> = on.store.scopes().await.unwrap().into_iter().map(|row| row.name.to_string()).collect();
    assert_eq!(left, ["held", "ours"]);
    assert_eq!(on.keys(worker, 9).await, ["a"]);
}

async fn the_account_stops_every_group(on: Bench) {
    on.add([of_group("a", "g"), of_group("b", "h")]).await;
    let worker = on.register().await;
    on.store.record(Vec::new(), vec![held(ACCOUNT, START + S * 9), held("g", START + S * 5)]).await.unwrap();
    let claim = on.claim(worker, 9).await;
    assert_eq!((claim.items.len(), claim.next_due), (0, Some(S * 9)));
    on.store.record(Vec::new(), vec![ScopeRow { name: ACCOUNT.into(), state: ScopeStatus::Open }]).await.unwrap();
    assert_eq!(on.keys(worker, 9).await, ["b"]);
}

async fn a_worker_that_lost_its_lease_records_nothing(on: Bench) {
    on.add([item("a"), item("b")]).await;
    let frozen = on.store.register("frozen", S * 30).await.unwrap();
    let other = on.store.register("other", LEASE).await.unwrap();
    let before = on.claim(frozen, 2).await;
    on.forward(S * 29).await;
    assert!(on.store.heartbeat(frozen).await.unwrap());
    on.forward(S * 29).await;
    assert!(on.store.heartbeat(other).await.unwrap());
    assert!(on.claim(other, 9).await.items.is_empty(), "the lease was renewed");
    on.forward(S).await;
    assert!(on.store.heartbeat(other).await.unwrap());
    let after = on.claim(other, 1).await;
    assert_eq!(keys(&after.items), ["a"]);
    let outcomes = before.items.iter().map(ClaimOutcome::success).collect();
    assert_eq!(on.store.record(outcomes, Vec::new()).await.unwrap(), [RecordStatus::Lost, RecordStatus::Lost]);
    assert!(!on.store.heartbeat(frozen).await.unwrap());
    assert!(on.claim(frozen, 9).await.items.is_empty(), "who lost its lease gets no more work");
    assert_eq!(on.record(ClaimOutcome::success(&after.items[0])).await, RecordStatus::Recorded);
    let counts = on.store.counts().await.unwrap();
    assert_eq!((counts.of(State::Succeeded), counts.of(State::Waiting)), (1, 1));
    assert_eq!(on.store.show("b").await.unwrap().unwrap().0.crashes, 1);
}

async fn outcomes_are_taken_once(on: Bench) {
    on.add([item("a"), item("b")]).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 2).await;
    let (a, b) = (&claim.items[0], &claim.items[1]);
    let both = vec![
        ClaimOutcome::success(a),
        ClaimOutcome { retried: 2, ..outcome(b, Counted::Deferral, Transition::Failed, "fail") },
        ClaimOutcome::success(b),
    ];
    assert_eq!(
        on.store.record(both, Vec::new()).await.unwrap(),
        [RecordStatus::Recorded, RecordStatus::Recorded, RecordStatus::Lost]
    );
    assert_eq!(on.record(again(a, S)).await, RecordStatus::Lost);
    assert_eq!(on.record(ClaimOutcome::back(a)).await, RecordStatus::Lost);
    let found = on.store.show("b").await.unwrap().unwrap().0;
    assert_eq!((found.state, found.attempts, found.deferrals, found.ended), (State::Failed, 2, 1, Some(START)));
    assert_eq!(found.reason.as_deref(), Some("because"));
    assert!(on.claim(worker, 9).await.items.is_empty());
}

async fn a_cancelled_item_takes_no_outcome(on: Bench) {
    on.add([item("a"), item("b"), item("c")]).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 2).await;
    on.record(ClaimOutcome::success(&claim.items[1])).await;
    assert_eq!(on.store.amend(Filter::default(), Amend::Cancel).await.unwrap(), 2, "what ended stays");
    assert_eq!(on.record(ClaimOutcome::success(&claim.items[0])).await, RecordStatus::Lost);
    let counts = on.store.counts().await.unwrap();
    assert_eq!((counts.of(State::Cancelled), counts.of(State::Succeeded)), (2, 1));
    let may_be_done = async |key: &str| on.store.show(key).await.unwrap().unwrap().0.may_be_done;
    assert_eq!([may_be_done("a").await, may_be_done("c").await], [true, false], "a retry would do it once more");
    assert_eq!(on.store.amend(Filter::keys(["a"]), Amend::Retry).await.unwrap(), 1);
    assert_eq!(on.record(ClaimOutcome::success(&claim.items[0])).await, RecordStatus::Lost);
    assert!(!may_be_done("a").await, "a person has decided");
}

async fn what_is_left_to_the_next_run_begins_it(on: Bench) {
    on.add([item("a"), item("b")]).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 1).await;
    on.record(outcome(&claim.items[0], Counted::Attempt, Transition::NextRun, "next_run")).await;
    assert_eq!(on.store.counts().await.unwrap().of(State::Deferred), 1);
    assert_eq!(on.keys(worker, 9).await, ["b"]);
    on.add([item("c")]).await;
    on.store.deregister(worker).await.unwrap();
    let worker = on.register().await;
    let claim = on.claim(worker, 9).await;
    assert_eq!(keys(&claim.items), ["a", "b", "c"]);
    assert_eq!((claim.items[0].item.attempts, claim.items[0].item.forgiven.attempts), (1, 1));
}

async fn the_deadline_of_what_is_left_to_the_next_run_counts_from_its_first_try(on: Bench) {
    on.add([item("a"), item("b"), item("c")]).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 3).await;
    on.record(outcome(&claim.items[0], Counted::Attempt, Transition::Failed, "fail")).await;
    let over_its_bound = outcome(&claim.items[1], Counted::Attempt, Transition::NextRun, "next_run");
    on.record(ClaimOutcome { time: ItemTime::Anew, ..over_its_bound }).await;
    on.record(outcome(&claim.items[2], Counted::Attempt, Transition::Failed, "fail")).await;
    on.store.amend(Filter::keys(["c"]), Amend::Retry).await.unwrap();
    on.store.amend(Filter::keys(["c"]), Amend::Cancel).await.unwrap();
    assert_eq!(on.store.amend(Filter::keys(["a", "c"]), Amend::LeaveToNextRun).await.unwrap(), 1, "c is cancelled");
    let left = on.store.show("a").await.unwrap().unwrap().0;
    assert_eq!((left.state, left.reason.as_deref(), left.ended), (State::Deferred, Some("same_failure"), None));
    assert!(on.keys(worker, 9).await.is_empty(), "nothing before the next run");
    on.forward(S * 100).await;
    assert_eq!(on.store.amend(Filter::keys(["a", "c"]), Amend::TakeUp).await.unwrap(), 1, "c is cancelled");
    let taken_up = on.claim(worker, 9).await.items.remove(0);
    assert_eq!((&*taken_up.item.key, taken_up.age.as_secs()), ("a", 100), "its time has gone on");
    assert!(taken_up.item.was_left_to_a_run(), "no person has sent for it");
    on.record(outcome(&taken_up, Counted::Nothing, Transition::NextRun, "next_run")).await;
    on.store.deregister(worker).await.unwrap();
    let worker = on.register().await;
    for _ in 0..2 {
        let claim = on.claim(worker, 9).await;
        assert_eq!(keys(&claim.items), ["a", "b"]);
        let [a, b] = [0, 1].map(|n| claim.items[n].age.as_secs());
        assert_eq!((a, b), (100, 0));
        assert_eq!(claim.items[0].item.attempts, claim.items[0].item.forgiven.attempts);
        for claimed in &claim.items {
            on.record(ClaimOutcome::back(claimed)).await;
        }
    }
    on.store.amend(Filter::keys(["a"]), Amend::Retry).await.unwrap();
    assert_eq!(on.claim(worker, 1).await.items[0].age, Duration::ZERO, "a person lets it begin anew");
}

async fn after_the_year_9999_is_never(on: Bench) {
    let never = Timestamp::from_millis(253_402_300_800_000);
    let before_1970 = Timestamp::from_millis(-5);
    on.add([
        NewItem { not_before: Some(never), ..item("never") },
        NewItem { not_before: Some(before_1970), ..item("nonsense") },
        NewItem { not_before: Some(START + S), ..item("soon") },
    ])
    .await;
    let worker = on.register().await;
    let claim = on.claim(worker, 9).await;
    assert_eq!((keys(&claim.items), claim.next_due), (vec!["nonsense".to_owned()], Some(S)));
    on.forward(S).await;
    let claim = on.claim(worker, 9).await;
    assert_eq!((keys(&claim.items), claim.next_due), (vec!["soon".to_owned()], None));
    assert!(on.store.show("never").await.unwrap().unwrap().0.not_before >= Some(never));
}

async fn items_are_listed_in_pages(on: Bench) {
    on.add((0..5).map(|n| of_group(&format!("item-{n}"), if n % 2 == 0 { "even" } else { "odd" }))).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 5).await;
    for claimed in claim.items.iter().filter(|claimed| claimed.item.key != "item-2") {
        on.record(ClaimOutcome::success(claimed)).await;
    }
    let page = on.store.list(Filter::default(), 0, 2).await.unwrap();
    assert_eq!(page.iter().map(|item| item.key.as_str()).collect::<Vec<_>>(), ["item-0", "item-1"]);
    let page = on.store.list(Filter::default(), page[1].id, 9).await.unwrap();
    assert_eq!(page.iter().map(|item| item.key.as_str()).collect::<Vec<_>>(), ["item-2", "item-3", "item-4"]);
    let even = Filter { group: Some("even".to_owned()), ..Filter::states([State::Succeeded]) };
    let keys: Vec<_> = on.store.list(even, 0, 9).await.unwrap().into_iter().map(|item| item.key).collect();
    assert_eq!(keys, ["item-0", "item-4"]);
    let injected = Filter { group: Some("' OR 1 --".to_owned()), ..Filter::keys(["item-0", "' OR 1 --"]) };
    assert!(on.store.list(injected, 0, 9).await.unwrap().is_empty());
}

async fn a_change_wakes_every_caller_that_waits_for_it(on: Bench) {
    // Made before the change, waited for after it: nothing is missed in between.
    let changed = on.store.changed();
    on.add([item("a")]).await;
    changed.await.unwrap();
}

async fn who_lost_its_lease_goes_on_in_the_same_run(on: Bench) {
    on.add([of_group("deferred", "g"), of_group("new", "g"), of_group("closed", "h")]).await;
    let worker = on.store.register("freezes", S).await.unwrap();
    let claim = on.claim(worker, 1).await;
    let deferred = outcome(&claim.items[0], Counted::Attempt, Transition::NextRun, "next_run");
    on.store.record(vec![deferred], vec![stopped("h")]).await.unwrap();
    on.forward(S * 2).await;
    let other = on.store.reregister("other", LEASE).await.unwrap();
    assert!(!on.store.heartbeat(worker).await.unwrap(), "another worker noticed");
    let worker = on.store.reregister("freezes", LEASE).await.unwrap();
    assert_eq!(on.keys(worker, 9).await, ["new"]);
    assert_eq!(on.store.counts().await.unwrap().of(State::Deferred), 1);
    assert_eq!(on.store.scopes().await.unwrap(), [stopped("h")]);
    on.register().await;
    assert_eq!(on.keys(other, 9).await, ["deferred", "closed"], "the next run begins with them");
}

/// The clock steps in the middle of waits of ten minutes, an item's and a group's.
async fn in_the_middle_of_waits(on: &Bench) -> paceline_store::work::WorkerId {
    on.add([item("a"), of_group("b", "held")]).await;
    let worker = on.register().await;
    on.store.record(Vec::new(), vec![held("held", START + S * 600)]).await.unwrap();
    on.fail_once(worker, S * 600).await;
    on.forward(S * 300).await;
    assert!(on.store.heartbeat(worker).await.unwrap());
    worker
}

async fn an_hour_back_lengthens_no_wait(on: Bench) {
    let worker = in_the_middle_of_waits(&on).await;
    on.step(-3_600_000).await;
    let claim = on.claim(worker, 9).await;
    let wait = claim.next_due.expect("both still wait");
    assert!(claim.items.is_empty() && (S * 300..=S * 600).contains(&wait), "{wait:?}");
    on.forward(wait - Duration::from_millis(1)).await;
    assert!(on.claim(worker, 9).await.items.is_empty(), "never early");
    on.forward(Duration::from_millis(1)).await;
    let mut keys = on.keys(worker, 9).await;
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b"]);
    assert!(on.store.heartbeat(worker).await.unwrap(), "the lease goes on");
}

async fn an_hour_forward_makes_due(on: Bench) {
    let worker = in_the_middle_of_waits(&on).await;
    on.step(3_600_000).await;
    let mut keys = on.keys(worker, 9).await;
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b"]);
}

async fn time_begins_with_the_first_send(on: Bench) {
    on.store.insert(vec![item("a")]).await.unwrap();
    let worker = on.register().await;
    let first = async || on.store.show("a").await.unwrap().unwrap().0.first;
    for next in [Transition::Release, Transition::Retry(Duration::ZERO)] {
        let claimed = on.claim(worker, 1).await.items.remove(0);
        assert!(claimed.item.first.is_some());
        let nothing_sent = ClaimOutcome { next, ..ClaimOutcome::back(&claimed) };
        assert_eq!(on.record(nothing_sent).await, RecordStatus::Recorded);
        assert_eq!(first().await, None, "{next:?}");
    }
    let claimed = on.claim(worker, 1).await.items.remove(0);
    on.record(again(&claimed, Duration::ZERO)).await;
    let began = first().await;
    assert!(began.is_some());
    let claimed = on.claim(worker, 1).await.items.remove(0);
    on.record(ClaimOutcome::back(&claimed)).await;
    assert_eq!(first().await, began, "a later try that did not begin changes nothing");
}
