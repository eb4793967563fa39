//! What becomes of the items of a worker that leaves or is lost.

use std::time::Duration;

use paceline_core::Class;
use paceline_core::retry::Counted;
use paceline_store::work::{Amend, ClaimOutcome, Claimed, DecisionRecord, Failure, Filter, NewItem, Transition};

use crate::support::{Bench, LEASE, S, again, item, keys, outcome};

pub(crate) async fn a_call_that_was_cut_off_may_be_done(on: Bench) {
    on.add([item("sent"), item("waits"), item("done"), NewItem { may_be_done: true, ..item("moved") }]).await;
    let dies = on.store.register("dies", S).await.unwrap();
    let claim = on.claim(dies, 9).await;
    let [sent, _, done, moved] = &claim.items[..] else { panic!("four were claimed") };
    assert!(moved.item.may_be_done && !sent.item.may_be_done);
    for claimed in [sent, done] {
        assert!(on.store.note_sent(claimed.item.id, claimed.fence).await.unwrap());
    }
    assert!(!on.store.note_sent(sent.item.id, sent.fence + 1).await.unwrap(), "of another claim");
    on.record(again(done, S)).await;
    assert!(!on.store.note_sent(done.item.id, done.fence).await.unwrap(), "the claim is over");
    on.forward(S * 60).await;
    for abandoned in [1, 1] {
        let worker = on.store.register("dies too", S).await.unwrap();
        let store = &on.store;
        let found = |key| async move { store.show(key).await.unwrap().unwrap().0 };
        let sent = found("sent").await;
        assert_eq!((sent.may_be_done, sent.abandoned), (true, abandoned), "counted once");
        assert!(found("moved").await.may_be_done);
        assert!(!found("waits").await.may_be_done && !found("done").await.may_be_done);
        on.claim(worker, 9).await;
        on.forward(S * 60).await;
    }
    on.store.amend(Filter::keys(["sent"]), Amend::Retry).await.unwrap();
    on.register().await;
    on.store.amend(Filter::keys(["sent"]), Amend::Retry).await.unwrap();
    assert!(!on.store.show("sent").await.unwrap().unwrap().0.may_be_done, "a person has looked");
}

pub(crate) async fn an_item_is_in_doubt_until_a_server_has_looked_at_a_later_call(on: Bench) {
    on.add([item("a"), NewItem { may_be_done: true, ..item("moved") }]).await;
    let worker = on.store.register("w", LEASE).await.unwrap();
    let failed = |class, status: Option<u16>, unanswered| {
        let failure = Failure { status, unanswered, ..Failure::new(class, "no luck") };
        move |claimed: &Claimed, counted| {
            let again = outcome(claimed, counted, Transition::Retry(Duration::ZERO), "retry");
            let decided = again.decided.map(|decided| DecisionRecord { failure: failure.clone(), ..decided });
            ClaimOutcome { decided, ..again }
        }
    };
    use Class::{Overloaded, Throttled, Transient};
    use Counted::{Attempt, Deferral, Nothing};
    for (class, status, unanswered, counted, expected) in [
        (Transient, Some(500), Some(false), Attempt, [false, false]),
        (Transient, None, Some(true), Attempt, [true, true]),
        // None of these has looked at it.
        (Throttled, Some(429), Some(false), Deferral, [true, true]),
        (Overloaded, Some(503), Some(false), Attempt, [true, true]),
        (Transient, None, Some(true), Nothing, [true, true]),
        (Transient, Some(500), Some(false), Attempt, [false, false]),
        (Transient, Some(504), Some(true), Attempt, [true, true]),
        (Class::Invalid, Some(410), Some(false), Attempt, [false, false]),
        (Transient, None, None, Nothing, [false, false]),
    ] {
        let fails = failed(class, status, unanswered);
        for claimed in on.claim(worker, 9).await.items {
            on.record(fails(&claimed, counted)).await;
        }
        let store = &on.store;
        let in_doubt = |key| async move { store.show(key).await.unwrap().unwrap().0.in_doubt };
        assert_eq!([in_doubt("a").await, in_doubt("moved").await], expected, "{class} {status:?}");
    }
    for claimed in on.claim(worker, 9).await.items.iter().filter(|claimed| claimed.item.key == "a") {
        assert!(on.store.note_sent(claimed.item.id, claimed.fence).await.unwrap());
    }
    on.forward(LEASE).await;
    on.register().await;
    assert!(on.store.show("a").await.unwrap().unwrap().0.in_doubt, "its worker died");
    assert!(!on.store.show("moved").await.unwrap().unwrap().0.in_doubt, "it was not sent");
    on.store.amend(Filter::keys(["a"]), Amend::Retry).await.unwrap();
    assert!(on.store.show("a").await.unwrap().unwrap().0.in_doubt, "a person does not know it either");
}

pub(crate) async fn who_leaves_puts_back_and_who_dies_too(on: Bench) {
    on.add([item("a"), item("b"), item("c")]).await;
    let leaves = on.store.register("leaves", S).await.unwrap();
    let dies = on.store.register("dies", S).await.unwrap();
    let lives = on.store.register("lives", LEASE).await.unwrap();
    assert_eq!(on.keys(dies, 1).await, ["a"]);
    assert_eq!(on.keys(leaves, 1).await, ["b"]);
    assert!(on.claim(lives, 0).await.others);
    on.store.deregister(leaves).await.unwrap();
    on.forward(S).await;
    on.store.heartbeat(lives).await.unwrap();
    let claim = on.claim(lives, 9).await;
    assert_eq!(keys(&claim.items), ["b", "c", "a"], "what a crash interrupted goes behind");
    let crashes: Vec<u32> = claim.items.iter().map(|claimed| claimed.item.crashes).collect();
    assert_eq!((crashes, claim.others), (vec![0, 0, 1], false));
    on.record(outcome(&claim.items[2], Counted::Nothing, Transition::Failed, "fail")).await;
    on.store.amend(Filter::keys(["a"]), Amend::Retry).await.unwrap();
    assert_eq!(on.store.show("a").await.unwrap().unwrap().0.crashes, 0, "its bounds begin anew");
}
