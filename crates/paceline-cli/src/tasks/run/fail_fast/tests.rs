use paceline_store::work::{MemoryStore, NewItem, WorkClock};

use super::*;

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
