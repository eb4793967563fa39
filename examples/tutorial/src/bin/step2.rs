//! An agent that never forgets.

use std::sync::Arc;
use std::time::Duration;

use paceline::Class;
use paceline_store::work::{
    Failure, NewItem, Scheduler, SchedulerConfig, SchedulerEvent, SqliteStore, Task, WorkClock, WorkStore,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = WorkClock::system();
    let store = Arc::new(SqliteStore::open("agent.db", clock.clone())?);
    let cities = ["Berlin", "Lima", "Tokyo", "Atlantis"];
    store.insert(cities.map(|city| NewItem::new(city, "")).to_vec()).await?;

    let scheduler = Scheduler::new(store, SchedulerConfig::default(), clock)?.with_observer(Arc::new(tell));
    let summary = scheduler.run(fetch).await?;
    println!("{}", summary.status().as_str());
    Ok(())
}

/// One try for one city. This API has a bad day: what it answers depends on the try.
async fn fetch(task: Task) -> Result<(), Failure> {
    let transient = Failure::new(Class::Transient, "502 Bad Gateway");
    let throttled = Failure::new(Class::Throttled, "429 Too Many Requests").with_retry_after(Duration::from_secs(12));
    let invalid = Failure::new(Class::Invalid, "404 no such city");
    match (task.key(), task.attempt()) {
        ("Lima", 1 | 2) => Err(transient),
        ("Tokyo", 1) => Err(throttled),
        ("Atlantis", _) => Err(invalid),
        (city, attempt) => {
            println!("{city}: fetched at try {attempt}");
            Ok(())
        }
    }
}

/// Says what was decided about a failure.
fn tell(note: &SchedulerEvent<'_>) {
    if let SchedulerEvent::Decided { item, decided, wait } = note {
        let wait = wait.map_or_else(String::new, |wait| format!(" in {wait:?}"));
        println!("{}: {}: {}{wait}", item.key, decided.failure.message, decided.action);
    }
}
