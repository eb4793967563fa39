//! In which order what is due is handed out.

use paceline_store::work::NewItem;

use crate::support::{Bench, S, again, item, of_group};

pub(crate) async fn high_priorities_then_due_tries_then_new_items(on: Bench) {
    let worker = on.register().await;
    for (key, delay) in [("late", 3), ("early", 1)] {
        on.add([item(key)]).await;
        on.fail_once(worker, S * delay).await;
    }
    on.add([item("new"), NewItem { priority: -1, ..item("low") }, NewItem { priority: 7, ..item("high") }]).await;
    on.forward(S * 5).await;
    assert_eq!(on.keys(worker, 9).await, ["high", "early", "late", "new", "low"]);
}

/// Tries that come again and again, such as of pages that are refused whatever the pace, keep no item from its first.
pub(crate) async fn new_items_and_due_tries_take_turns(on: Bench) {
    let worker = on.register().await;
    let tries: Vec<_> = (0..6).map(|n| format!("try-{n}")).collect();
    on.add(tries.iter().map(|key| item(key))).await;
    for (claimed, delay) in on.claim(worker, 6).await.items.iter().zip(1..) {
        on.record(again(claimed, S * delay)).await;
    }
    on.add((0..5).map(|n| item(&format!("new-{n}")))).await;
    on.forward(S * 9).await;
    assert_eq!(on.keys(worker, 4).await, ["try-0", "try-1", "new-0", "new-1"]);
    let each_alone = [on.keys(worker, 1).await, on.keys(worker, 1).await].concat();
    assert_eq!(each_alone, ["try-2", "new-2"]);
    assert_eq!(on.keys(worker, 9).await, ["try-3", "try-4", "try-5", "new-3", "new-4"]);
}

pub(crate) async fn groups_take_turns(on: Bench) {
    let worker = on.register().await;
    on.add((0..50).map(|n| of_group(&format!("many-{n}"), "many"))).await;
    on.add([of_group("few-0", "few"), of_group("few-1", "few")]).await;
    let mut first = on.keys(worker, 4).await;
    first.sort_unstable();
    assert_eq!(first, ["few-0", "few-1", "many-0", "many-1"]);
    assert_eq!(on.keys(worker, 3).await, ["many-2", "many-3", "many-4"]);
}
