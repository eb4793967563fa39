//! An agent that never forgets.

use std::sync::Arc;

use paceline_store::work::{Failure, NewItem, Scheduler, SchedulerConfig, SqliteStore, Task, WorkClock, WorkStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = WorkClock::system();
    let store = Arc::new(SqliteStore::open("agent.db", clock.clone())?);
    let cities = ["Berlin", "Lima", "Tokyo", "Atlantis"];
    store.insert(cities.map(|city| NewItem::new(city, "")).to_vec()).await?;

    let scheduler = Scheduler::new(store, SchedulerConfig::default(), clock)?;
    let summary = scheduler.run(fetch).await?;
    println!("{}", summary.status().as_str());
    Ok(())
}

/// One try for one city. A real agent would call an API here.
async fn fetch(task: Task) -> Result<(), Failure> {
    println!("{}: fetched", task.key());
    Ok(())
}
