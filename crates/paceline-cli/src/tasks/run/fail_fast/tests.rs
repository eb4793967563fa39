use paceline::{Limiter, PacerConfig};
use paceline_store::work::{MemoryStore, NewItem, WorkClock};

use super::*;
use crate::tasks::run::stopped_scopes::{StoppedScopes, Why};

fn decided(failure: Failure, action: &'static str) -> DecisionRecord {
    DecisionRecord { failure, action, reason: None, by: "rules".to_owned(), stayed_down: false }
}

async fn items(groups: &[&str]) -> (MemoryStore, Vec<WorkItem>) {
    let store = MemoryStore::new(WorkClock::system());
    let item = |(n, group): (usize, &&str)| NewItem {
        group: (*group).to_owned(),
        ..NewItem::new(format!("{group}-{n}"), "1")
    };
    store.insert(groups.iter().enumerate().map(item).collect()).await.expect("room");
    let items = store.list(Filter::default(), 0, groups.len()).await.expect("a memory");
    (store, items)
}

fn refused(status: u16) -> Failure {
    Failure::new(Class::Invalid, "no").with_status(status)
}

#[tokio::test]
async fn items_that_wait_again_open_no_group_that_is_stopped_for_another_reason() {
    let (store, items) = items(&["acme", "zeta"]).await;
    let watch = FailFast::new(2, true, false, false);
    for item in &items {
        let decided = decided(refused(404), "fail");
        watch.observe(&SchedulerEvent::Decided { item, decided: &decided, wait: None });
    }
    let keys = [items[0].key.clone()];
    store.amend(Filter::keys(keys), Amend::Cancel).await.expect("a memory");
    let stopped = ScopeStatus::Stopped { reason: "the key is refused".to_owned() };
    let row = ScopeRow { name: "acme".into(), state: stopped.clone() };
    store.record(Vec::new(), vec![row]).await.expect("a memory");
    let same = watch.put_back(&store).await.expect("a memory").expect("the run stopped");
    assert_eq!((same.items, same.which), (2, "first"));
    let rows = store.scopes().await.expect("a memory");
    assert!(rows.iter().any(|row| *row.name == *"acme" && row.state == stopped), "{rows:?}");
    let item = &store.list(Filter::default(), 0, 1).await.expect("a memory")[0];
    assert_eq!(item.state, State::Cancelled, "a person has decided");
}

#[tokio::test]
async fn what_is_in_flight_when_a_group_stops_waits_again_whatever_others_do() {
    let (_, items) = items(&["acme", "acme", "acme", "zeta"]).await;
    let watch = FailFast::new(2, true, false, false);
    let fails = |item| {
        let decided = decided(refused(404), "fail");
        watch.observe(&SchedulerEvent::Decided { item, decided: &decided, wait: None })
    };
    assert_eq!([fails(&items[0]), fails(&items[1])], [None, None]);
    assert!(watch.keeps_back(&items[2]).is_some());
    watch.observe(&SchedulerEvent::Succeeded(&items[3]));
    fails(&items[2]);
    assert_eq!(watch.watch().put_back.len(), 3);
    assert_eq!(watch.keeps_back(&items[0]), None, "a person sent for an item that had ended");
    assert_eq!(watch.keeps_back(&items[2]), None, "and with it for its group");
}

#[tokio::test]
async fn a_command_in_flight_when_its_group_stops_waits_again_whatever_others_do() {
    let (_, items) = items(&["acme", "acme", "acme", "zeta"]).await;
    let watch = FailFast::new(2, true, true, false);
    let fails = |item: &WorkItem| {
        watch.only_failed(item);
        let decided = decided(Failure::new(Class::Transient, "exit code 1"), "fail");
        watch.observe(&SchedulerEvent::Decided { item, decided: &decided, wait: None })
    };
    assert_eq!([fails(&items[0]), fails(&items[1])], [None, None]);
    watch.observe(&SchedulerEvent::Succeeded(&items[3]));
    fails(&items[2]);
    assert_eq!(watch.watch().put_back.len(), 3);
}

const HOST: &str = "hooks.example";

/// An item of the host ends.
fn ends(watch: &FailFast, item: &WorkItem, failure: Option<Failure>) -> Option<Stops> {
    watch.begins(item, HOST, "https://hooks.example/in");
    match failure {
        None => watch.observe(&SchedulerEvent::Succeeded(item)),
        Some(failure) => {
            let decided = decided(failure, "fail");
            watch.observe(&SchedulerEvent::Decided { item, decided: &decided, wait: None })
        }
    }
}

/// An address that has moved answers with one redirect or another.
#[tokio::test]
async fn redirects_are_alike_whichever_they_are() {
    let (_, items) = items(&["default"; 3]).await;
    let stops = |refusals: [u16; 3]| {
        let watch = FailFast::new(3, true, false, true);
        let ends = |(item, status)| ends(&watch, item, Some(refused(status))).is_some();
        items.iter().zip(refusals).map(ends).collect::<Vec<_>>()
    };
    assert_eq!(stops([301, 302, 308]), [false, false, true]);
    assert_eq!(stops([404, 410, 301]), [false; 3]);
}

/// Its host was stopped all the time, so that no call of it was made.
#[tokio::test]
async fn what_is_over_its_deadline_while_its_host_is_stopped_waits_no_more() {
    let (_, items) = items(&["default"; 2]).await;
    let watch = FailFast::new(2, true, false, true);
    items.iter().for_each(|item| drop(ends(&watch, item, Some(refused(410)))));
    assert_eq!([0, 1].map(|n: usize| watch.waits(&items[n].key)), [Some(true); 2]);
    // As if the store had been told that it is left to the next run.
    watch.watch().put_back.remove(&items[1].key);
    watch.watch().left.insert(items[1].key.clone());
    for item in &items {
        let over = DecisionRecord { reason: Some("deadline".to_owned()), ..decided(refused(410), "fail") };
        watch.observe(&SchedulerEvent::Decided { item, decided: &over, wait: None });
        assert_eq!(watch.waits(&item.key), Some(false), "{} is told as failed", item.key);
    }
}

async fn stopped_scopes(store: &MemoryStore, limiter: &Limiter) -> StoppedScopes {
    let stopped = StoppedScopes::new(true);
    stopped.begin_run(store, limiter, true).await.expect("a memory");
    stopped
}

/// Each of two workers has 15 of the 30 events of a host that refuses all: less than stop it.
#[tokio::test]
async fn what_fails_in_two_workers_counts_together() {
    let (store, items) = items(&["default"; 30]).await;
    let limiter = Limiter::new(PacerConfig::default()).expect("sensible");
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push((FailFast::new(20, true, false, true), stopped_scopes(&store, &limiter).await));
    }
    for (n, item) in items.iter().enumerate() {
        assert_eq!(ends(&workers[n % 2].0, item, Some(refused(404))), None);
    }
    for _ in 0..3 {
        for (watch, stopped) in &workers {
            watch.share(&store, stopped).await.expect("a memory");
            watch.read(&store).await.expect("a memory");
            stopped.save(&store, &limiter).await.expect("a memory");
        }
    }
    let waits: BTreeSet<String> = workers.iter().flat_map(|(watch, _)| watch.watch().put_back.clone()).collect();
    assert_eq!(waits.len(), 30, "each of them waits");
    for (n, item) in items.iter().enumerate() {
        assert_eq!(workers[n % 2].0.waits(&item.key), Some(true), "and none is told as failed");
    }
    assert!(workers.iter().all(|(_, stopped)| stopped.why() == Some(Why::SameFailure)), "and both have stopped it");
}

/// A host that took events, and whose worker is started anew before and after it refuses them.
#[tokio::test]
async fn what_a_host_did_counts_after_a_new_start() {
    let (store, items) = items(&["default"; 6]).await;
    let limiter = Limiter::new(PacerConfig::default()).expect("sensible");
    let start = async |of_items: &[WorkItem], ok: usize| {
        let (watch, stopped) = (FailFast::new(20, true, false, true), stopped_scopes(&store, &limiter).await);
        watch.read(&store).await.expect("a memory");
        let stops = of_items.iter().enumerate().map(|(n, item)| ends(&watch, item, (n >= ok).then(|| refused(410))));
        let stops = stops.collect::<Vec<_>>();
        watch.share(&store, &stopped).await.expect("a memory");
        stops.into_iter().flatten().collect::<Vec<_>>()
    };
    assert_eq!(start(&items[..2], 2).await, []);
    assert_eq!(start(&items[2..4], 0).await, []);
    let stops = start(&items[4..], 0).await;
    let Some(Stops::Scope(scope, same, _, keys)) = stops.first() else { panic!("{stops:?}") };
    assert_eq!((&**scope, same.which, same.items), (HOST, "last", 3));
    assert_eq!(keys.len(), 1, "of this run; the others wait again, too");
    assert_eq!(store.notes(paceline_core::Timestamp::from_millis(0)).await.expect("a memory").len(), 1);
}
