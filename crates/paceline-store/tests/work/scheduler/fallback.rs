//! A fallback for items whose API stayed down.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_core::Class;
use paceline_store::work::{DecisionRecord, Failure, OverBound, SchedulerConfig, State, Status, Task, WorkStore};

use super::{World, unavailable};
use crate::support::{S, item};

type Asked = Arc<Mutex<Vec<(String, Option<String>)>>>;

fn config() -> SchedulerConfig {
    SchedulerConfig { concurrency: 9, max_retries: 1, ..SchedulerConfig::default() }
}

/// The fallback of a scheduler, which works for all items but `neither`, and what it was asked.
fn fallback(takes: Duration) -> (paceline_store::work::Fallback, Asked) {
    let asked = Asked::default();
    let heard = asked.clone();
    let fallback = Arc::new(move |task: Task, decided: DecisionRecord| {
        heard.lock().unwrap().push((task.key().to_owned(), decided.reason));
        let answer = if task.key() == "neither" { Err("it knows nothing".to_owned()) } else { Ok(()) };
        let work = async move {
            tokio::time::sleep(takes).await;
            answer
        };
        Box::pin(work) as std::pin::Pin<Box<dyn Future<Output = Result<(), String>> + Send>>
    });
    (fallback, asked)
}

fn answer(task: &Task) -> Result<(), Failure> {
    match task.key() {
        "works" => Ok(()),
        "bad" => Err(Failure::new(Class::Invalid, "no such thing").with_status(400)),
        _ => Err(unavailable()),
    }
}

#[tokio::test(start_paused = true)]
async fn it_stands_in_where_the_api_stayed_down_and_nowhere_else() {
    let world = World::of(["works", "bad", "down", "neither"].map(item)).await;
    let (fallback, asked) = fallback(S);
    let summary = world.run(&world.scheduler(config()).with_fallback(fallback), S, answer).await;
    let mut asked = asked.lock().unwrap().clone();
    asked.sort();
    assert_eq!(asked, ["down", "neither"].map(|key| (key.to_owned(), Some("max_retries".to_owned()))));
    assert_eq!(world.times("down").len(), 2, "the API was asked as often as without a fallback");
    assert_eq!(world.state("down").await, (State::FellBack, Some("max_retries".to_owned())));
    assert_eq!(world.state("neither").await, (State::Failed, Some("max_retries".to_owned())));
    assert_eq!(world.state("bad").await.0, State::Failed);
    let counts = summary.counts;
    assert_eq!((counts.of(State::Succeeded), counts.of(State::FellBack), counts.of(State::Failed)), (1, 1, 2));
    assert_eq!((summary.status(), summary.calls, summary.abandoned), (Status::Partial, 6, 0));
    let (_, _, events) = world.store.show("down").await.unwrap().unwrap();
    assert_eq!((&*events[1].action, events[1].failure.status), ("fallback", Some(503)));
}

#[tokio::test(start_paused = true)]
async fn a_run_of_fallbacks_alone_is_partial_and_what_waits_for_the_next_run_needs_none() {
    let world = World::of([item("down")]).await;
    let (fallback, _) = fallback(S);
    let scheduler = world.scheduler(config()).with_fallback(fallback.clone());
    assert_eq!(world.run(&scheduler, S, answer).await.status(), Status::Partial);
    let world = World::of([item("down")]).await;
    let waits = SchedulerConfig { over_bound: OverBound::NextRun, ..config() };
    let summary = world.run(&world.scheduler(waits).with_fallback(fallback), S, answer).await;
    assert_eq!((summary.status(), world.state("down").await.0), (Status::Deferred, State::Deferred));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_has_to_end_waits_for_no_fallback() {
    let world = World::of([item("down")]).await;
    let (fallback, asked) = fallback(S * 3_600);
    let scheduler = world.scheduler(config()).with_fallback(fallback);
    let summary = scheduler.run_until(world.work(S, answer), tokio::time::sleep(S * 60)).await.unwrap();
    assert_eq!(asked.lock().unwrap().len(), 1);
    assert_eq!(world.state("down").await, (State::Failed, Some("max_retries".to_owned())));
    assert_eq!((summary.abandoned, summary.status()), (0, Status::Failed));
}
