//! What every engine does with items that have ended.

use std::time::Duration;

use paceline_core::retry::Counted;
use paceline_store::work::{
    Added, Amend, ClaimOutcome, Failure, Filter, NewItem, Pruned, PrunedKeys, RecordStatus, Said, State, Transition,
};

use crate::support::{Bench, LEASE, S, START, again, item, keys, of_group, outcome};

pub(crate) async fn a_person_retries_what_has_ended(on: Bench) {
    on.add([item("failed"), item("fell back"), item("done"), item("waits")]).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 4).await;
    let [failed, fell_back, done, waits] = &claim.items[..] else { panic!("four were claimed") };
    let outcomes = vec![
        outcome(failed, Counted::Attempt, Transition::Failed, "fail"),
        outcome(fell_back, Counted::Attempt, Transition::FellBack, "fallback"),
        ClaimOutcome::success(done),
        again(waits, S * 3_600),
    ];
    on.store.record(outcomes, Vec::new()).await.unwrap();
    let filter = Filter::keys(["failed", "fell back", "done", "waits", "unknown"]);
    assert_eq!(on.store.amend(filter, Amend::Retry).await.unwrap(), 3);
    let claim = on.claim(worker, 9).await;
    assert_eq!(keys(&claim.items), ["failed", "fell back", "waits"]);
    let again = &claim.items[0].item;
    assert_eq!((again.attempts, again.forgiven.attempts, again.ended), (1, 1, None));
}

pub(crate) async fn what_ended_long_ago_is_removed(on: Bench) {
    on.add([item("failed"), item("done"), item("waits"), of_group("other", "g")]).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 4).await;
    for claimed in &claim.items {
        match &*claimed.item.key {
            "failed" => on.record(outcome(claimed, Counted::Attempt, Transition::Failed, "fail")).await,
            "waits" => on.record(again(claimed, S * 3_600)).await,
            "done" => on.record(ClaimOutcome::success(claimed)).await,
            _ => on.record(outcome(claimed, Counted::Attempt, Transition::FellBack, "fallback")).await,
        };
    }
    let prune = async |states: &[State], group: Option<&str>, older_than: u32| {
        let filter = Filter { states: states.to_vec(), group: group.map(str::to_owned), keys: Vec::new() };
        on.store.prune(filter, S * older_than, PrunedKeys::Keep).await.unwrap().items
    };
    assert_eq!(prune(&[], None, 60).await, 0, "all of it is new");
    on.forward(S * 60).await;
    assert_eq!(prune(&[], None, 61).await, 0);
    assert_eq!(prune(&[State::Waiting], None, 0).await, 0, "it has not ended");
    assert_eq!(prune(&[], Some("g"), 60).await, 1);
    assert_eq!(prune(&[State::Failed], None, 60).await, 1);
    assert_eq!(prune(&[], None, 0).await, 1);
    assert_eq!(on.store.list(Filter::default(), 0, 9).await.unwrap().len(), 1, "what waits");
    // Each key is added once, whatever became of its item, until it is forgotten.
    let known = on.store.insert(vec![item("failed"), item("other")]).await.unwrap();
    assert_eq!(known, [Added::Known(State::Failed), Added::Known(State::FellBack)]);
    let forget = |filter: Filter, older_than: u32| on.store.prune(filter, S * older_than, PrunedKeys::Forget);
    let of_group = Filter { group: Some("g".to_owned()), ..Filter::default() };
    assert_eq!(forget(of_group, 0).await.unwrap(), Pruned::default(), "of a kept key no group is known");
    assert_eq!(forget(Filter::default(), 61).await.unwrap(), Pruned::default());
    let failed = Filter { states: vec![State::Failed], ..Filter::default() };
    assert_eq!(forget(failed, 60).await.unwrap(), Pruned { keys: 1, ..Pruned::default() });
    let known = on.store.insert(vec![item("failed"), item("other")]).await.unwrap();
    assert_eq!(known, [Added::New, Added::Known(State::FellBack)]);
    assert_eq!(on.store.amend(Filter::keys(["failed"]), Amend::Cancel).await.unwrap(), 1);
    assert_eq!(forget(Filter::default(), 0).await.unwrap(), Pruned { items: 1, keys: 2, under_way: 0 });
    // What a worker still says of the one before is not taken.
    on.add([item("failed"), item("other")]).await;
    let stale = claim.items.iter().find(|claimed| claimed.item.key == "other").expect("claimed");
    assert_eq!(on.record(ClaimOutcome::success(stale)).await, RecordStatus::Lost);
    assert_eq!(on.claim(worker, 9).await.items.len(), 2);
}

/// What a person has cancelled stays until it is known how its call ended, so that a person who moves items elsewhere loses none.
pub(crate) async fn what_was_cancelled_during_its_call_is_removed_once_that_has_ended(on: Bench) {
    on.add(["waits", "done", "slow", "gone"].map(item)).await;
    let (worker, other) = (on.register().await, on.register().await);
    let claim = on.claim(worker, 2).await;
    let slow = on.claim(worker, 1).await;
    on.claim(other, 1).await;
    assert_eq!(on.store.amend(Filter::default(), Amend::Cancel).await.unwrap(), 4);
    let prune = || on.store.prune(Filter::states([State::Cancelled]), Duration::ZERO, PrunedKeys::Forget);
    assert_eq!(prune().await.unwrap(), Pruned { under_way: 4, ..Pruned::default() });
    let ends = [ClaimOutcome::success(&claim.items[0]), ClaimOutcome::back(&claim.items[1])];
    for outcome in ends {
        assert_eq!(on.record(outcome).await, RecordStatus::Lost);
    }
    assert_eq!(prune().await.unwrap(), Pruned { items: 2, keys: 0, under_way: 2 });
    assert_eq!(on.store.insert(vec![item("slow")]).await.unwrap(), [Added::Known(State::Cancelled)]);
    on.store.deregister(other).await.unwrap();
    assert_eq!(prune().await.unwrap(), Pruned { items: 1, keys: 0, under_way: 1 });
    on.record(ClaimOutcome::success(&slow.items[0])).await;
    assert_eq!(prune().await.unwrap(), Pruned { items: 1, keys: 0, under_way: 0 });
    // Its worker is killed: nothing of it is under way once its lease is over.
    on.add([item("killed")]).await;
    on.claim(worker, 1).await;
    on.store.amend(Filter::default(), Amend::Cancel).await.unwrap();
    assert_eq!(prune().await.unwrap().under_way, 1);
    on.forward(LEASE).await;
    assert_eq!(prune().await.unwrap(), Pruned { items: 1, keys: 0, under_way: 0 });
}

/// What a server may have done is known as that where its item goes elsewhere: its call was cut off, or had no answer.
pub(crate) async fn what_was_cancelled_during_its_call_may_be_done_unless_its_answer_says_otherwise(on: Bench) {
    on.add(["done", "refused", "silent", "unsent", "back", "killed"].map(item)).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 6).await;
    assert_eq!(on.store.amend(Filter::default(), Amend::Cancel).await.unwrap(), 6);
    let failed = |place: usize, change: fn(&mut Failure)| {
        let mut outcome = outcome(&claim.items[place], Counted::Attempt, Transition::Failed, "fail");
        change(&mut outcome.decided.as_mut().unwrap().failure);
        outcome
    };
    let outcomes = [
        ClaimOutcome::success(&claim.items[0]),
        failed(1, |failure| failure.status = Some(503)),
        failed(2, |failure| failure.status = None),
        failed(3, |failure| (failure.status, failure.unsent) = (None, true)),
        ClaimOutcome::back(&claim.items[4]),
    ];
    for outcome in outcomes {
        assert_eq!(on.record(outcome).await, RecordStatus::Lost);
    }
    let items = on.store.list(Filter::default(), 0, 9).await.unwrap();
    let may_be_done = items.iter().filter(|item| item.may_be_done).map(|item| &*item.key).collect::<Vec<_>>();
    assert_eq!(may_be_done, ["done", "silent", "killed"]);
}

/// A person cancels items during their tries, and sends for them again: all that their servers got counts.
pub(crate) async fn a_try_counts_whose_item_was_cancelled_meanwhile(on: Bench) {
    on.add(["done", "refused", "slow", "back"].map(item)).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 4).await;
    on.store.amend(Filter::default(), Amend::Cancel).await.unwrap();
    let said = Said { status: Some(200), message: "ok".to_owned() };
    let done = ClaimOutcome { answered: Some(said.clone()), ..ClaimOutcome::success(&claim.items[0]) };
    let refused = outcome(&claim.items[1], Counted::Deferral, Transition::Failed, "fail");
    for _ in 0..2 {
        for ended in [done.clone(), refused.clone(), ClaimOutcome::back(&claim.items[3])] {
            assert_eq!(on.record(ended).await, RecordStatus::Lost);
        }
    }
    let sends = async |key: &str| {
        let item = on.store.show(key).await.unwrap().unwrap().0;
        (item.attempts, item.deferrals, item.abandoned)
    };
    assert_eq!(on.store.show("done").await.unwrap().unwrap().0.answered, Some(said));
    assert_eq!([sends("done").await, sends("refused").await, sends("slow").await], [(1, 0, 0), (0, 1, 0), (0, 0, 0)]);
    on.store.amend(Filter::default(), Amend::Retry).await.unwrap();
    assert_eq!(sends("slow").await, (0, 0, 1), "its outcome is not known");
    on.record(ClaimOutcome::success(&claim.items[2])).await;
    for claimed in &on.claim(worker, 4).await.items {
        on.record(ClaimOutcome::success(claimed)).await;
    }
    assert_eq!([sends("done").await, sends("refused").await], [(2, 0, 0), (1, 1, 0)]);
    assert_eq!([sends("slow").await, sends("back").await], [(1, 0, 1), (1, 0, 0)]);
}

pub(crate) async fn what_a_server_said_to_the_last_try_is_kept(on: Bench) {
    on.add([item("a")]).await;
    let worker = on.register().await;
    let last = async || {
        let item = on.store.show("a").await.unwrap().unwrap().0;
        (item.last.map(|last| last.message), item.answered.map(|said| said.message))
    };
    let said = Some(Said { status: Some(202), message: "a\0b".to_owned() });
    on.record(again(&on.claim(worker, 1).await.items[0], Duration::ZERO)).await;
    assert_eq!(last().await, (Some("no luck".to_owned()), None));
    let claim = on.claim(worker, 1).await;
    on.record(ClaimOutcome { answered: said, ..ClaimOutcome::success(&claim.items[0]) }).await;
    assert_eq!(last().await, (None, Some("a\u{fffd}b".to_owned())));
}

/// A person sends once more for what succeeded, whatever became of its calls.
pub(crate) async fn what_succeeded_begins_once_more(on: Bench) {
    on.add(["a", "b", "c"].map(item)).await;
    let worker = on.register().await;
    on.record(ClaimOutcome::abandoned(&on.claim(worker, 1).await.items[0])).await;
    for claimed in &on.claim(worker, 2).await.items {
        on.record(ClaimOutcome::success(claimed)).await;
    }
    on.forward(S).await;
    let before = on.store.show("a").await.unwrap().unwrap().0;
    for as_new in [false, true] {
        let again = Amend::Again { as_new };
        assert_eq!(on.store.amend(Filter::keys(["a"]), again).await.unwrap(), 1);
        let item = on.store.show("a").await.unwrap().unwrap().0;
        assert_eq!((item.state, item.attempts, item.abandoned, item.forgiven.attempts), (State::Waiting, 2, 0, 2));
        assert_eq!((item.created > before.created, item.sent_for > Some(before.created)), (as_new, true));
        assert_eq!((item.ended, item.first, item.crashes, item.may_be_done), (None, None, 0, false));
    }
    assert_eq!(on.keys(worker, 1).await, ["a"]);
}

/// It fails then, and is sent for as if it were new: that it had succeeded is told all the same.
pub(crate) async fn what_is_sent_once_more_has_succeeded_all_the_same(on: Bench) {
    on.add(["a"].map(item)).await;
    let worker = on.register().await;
    let said = Some(Said { status: Some(202), message: "ok".to_owned() });
    on.forward(S).await;
    on.record(ClaimOutcome { answered: said, ..ClaimOutcome::success(&on.claim(worker, 1).await.items[0]) }).await;
    on.forward(S).await;
    let first = on.store.show("a").await.unwrap().unwrap().0;
    assert_eq!((first.delivered, first.ended), (None, Some(first.created + S)));
    for as_new in [false, true] {
        assert_eq!(on.store.amend(Filter::keys(["a"]), Amend::Again { as_new }).await.unwrap(), 1);
        let claimed = on.claim(worker, 1).await.items.remove(0);
        on.record(outcome(&claimed, Counted::Attempt, Transition::Failed, "fail")).await;
        let (item, _, events) = on.store.show("a").await.unwrap().unwrap();
        assert_eq!((item.state, item.delivered), (State::Failed, first.ended));
        let [delivered, .., failed] = &events[..] else { panic!("{events:?}") };
        assert_eq!((&*failed.action, failed.created), ("fail", None));
        assert_eq!((&*delivered.action, &*delivered.by, delivered.send), ("again", "a person", 1));
        assert_eq!((Some(delivered.decided), delivered.created), (first.ended, Some(first.created)));
        let said = &delivered.failure;
        assert_eq!((said.class.as_str(), said.status, &*said.message), ("success", Some(202), "ok"));
    }
    let events = on.store.show("a").await.unwrap().unwrap().2;
    assert_eq!(events.iter().filter(|event| event.is_delivery()).count(), 1, "it succeeded once");
}

/// Its receiver may have seen the calls, and knows them by the time at which it was added.
pub(crate) async fn what_failed_and_is_sent_as_new_was_known_by_another_time(on: Bench) {
    on.add(["a", "untried"].map(item)).await;
    let worker = on.register().await;
    let added = on.store.show("a").await.unwrap().unwrap().0.created;
    let claimed = on.claim(worker, 1).await.items.remove(0);
    on.record(outcome(&claimed, Counted::Attempt, Transition::Failed, "fail")).await;
    on.forward(S).await;
    for (as_new, entries) in [(false, 0), (true, 1), (true, 2)] {
        on.store.amend(Filter::keys(["a", "untried"]), Amend::Again { as_new }).await.unwrap();
        let (item, _, events) = on.store.show("a").await.unwrap().unwrap();
        let before: Vec<_> = events.iter().filter(|event| event.created.is_some()).collect();
        assert_eq!((before.len(), item.delivered), (entries, None), "{as_new}");
        if let Some(first) = before.first() {
            assert_eq!((first.created, &*first.action, first.is_delivery()), (Some(added), "again", false));
        }
    }
    assert!(on.store.show("untried").await.unwrap().unwrap().2.is_empty(), "no call had its id");
}

pub(crate) async fn calls_that_only_tested_a_failing_server_are_counted_apart(on: Bench) {
    on.add([item("a")]).await;
    let worker = on.register().await;
    for unsent in [false, true, false] {
        // As the scheduler decides it: against no bound.
        let claimed = on.claim(worker, 1).await.items.pop().expect("it is due");
        let mut test = outcome(&claimed, Counted::Unsent, Transition::Retry(Duration::ZERO), "retry");
        let decided = test.decided.as_mut().expect("a decision");
        (decided.failure.probe, decided.failure.unsent) = (Some(S), unsent);
        assert_eq!(on.record(test).await, RecordStatus::Recorded);
    }
    let (found, ..) = on.store.show("a").await.unwrap().unwrap();
    assert_eq!((found.sends(), found.tests), (0, 2));
}

pub(crate) async fn what_is_added_again_with_another_payload_is_told(on: Bench) {
    let changed = |key: &str| NewItem { payload: "other".to_owned(), ..item(key) };
    let added = on.store.insert(vec![item("a"), changed("a"), item("a"), changed("b")]).await.unwrap();
    let waiting = State::Waiting;
    assert_eq!(added, [Added::New, Added::Differs(waiting), Added::Known(waiting), Added::New]);
    let added = on.store.insert(vec![changed("a"), item("a"), item("b"), item("c")]).await.unwrap();
    assert_eq!(added, [Added::Differs(waiting), Added::Known(waiting), Added::Differs(waiting), Added::New]);
}

pub(crate) async fn who_adds_what_was_in_another_store_sends_for_it(on: Bench) {
    let moved = NewItem { created: Some(START), ..item("moved") };
    on.forward(S).await;
    on.add([item("new"), moved]).await;
    let sent_for = async |key| on.store.show(key).await.unwrap().unwrap().0.sent_for;
    assert_eq!(sent_for("new").await, None);
    assert!(sent_for("moved").await > Some(START), "by the clock of the store");
}

pub(crate) async fn what_waited_for_a_pause_that_is_over_is_due_and_keeps_its_bounds(on: Bench) {
    on.add([item("a"), item("b")]).await;
    let worker = on.register().await;
    let claim = on.claim(worker, 2).await;
    on.record(outcome(&claim.items[0], Counted::Attempt, Transition::Retry(S * 1_000), "retry")).await;
    assert_eq!(on.store.amend(Filter::default(), Amend::Due).await.unwrap(), 1, "b is in flight");
    let due = on.claim(worker, 9).await;
    assert_eq!(keys(&due.items), ["a"]);
    let due = &due.items[0].item;
    assert_eq!((due.attempts, due.forgiven.attempts, due.sent_for), (1, 0, None));
}
