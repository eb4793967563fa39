//! An agent that never forgets.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use paceline::{Class, Cost, Dimension, Limiter, Limits, Outcome, PacerConfig, Quota, Request};
use paceline_store::work::{
    Failure, Filter, NewItem, OverBound, Scheduler, SchedulerConfig, SchedulerEvent, SqliteStore, Task, WorkClock,
    WorkStore,
};

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let clock = WorkClock::system();
    let store = Arc::new(SqliteStore::open("agent.db", clock.clone())?);
    let cities = ["Berlin", "Lima", "Tokyo", "Atlantis"];
    store.insert(cities.map(|city| NewItem::new(city, "")).to_vec()).await?;

    // Never more than two calls in any second, whatever is due.
    let quota = Quota::sliding(Dimension::Requests, 2, Duration::from_secs(1));
    let limits = Limits { quotas: vec![quota], burst: None };
    let limiter = Limiter::new(PacerConfig { limits, ..PacerConfig::default() })?;

    let config = SchedulerConfig { max_retries: 1, over_bound: OverBound::NextRun, ..SchedulerConfig::default() };
    let scheduler = Scheduler::new(store.clone(), config, clock)?.with_observer(Arc::new(tell));
    let summary = scheduler.run(|task| paced(limiter.clone(), task)).await?;

    for item in store.list(Filter::default(), 0, 100).await? {
        let words = item.last.map_or_else(String::new, |failure| format!(" after {:?}", failure.message));
        println!("{:9} {}, tries: {}{words}", item.key, item.state.as_str(), item.attempts + item.deferrals);
    }
    println!("{}", summary.status().as_str());
    Ok(ExitCode::from(summary.status().exit_code()))
}

/// The same try with a permit, which hears how it ended.
async fn paced(limiter: Limiter, task: Task) -> Result<(), Failure> {
    let request = Request::new(limiter.scope("weather"), Cost::request());
    let permit = limiter.acquire(request).await.map_err(|error| Failure::new(Class::Abandoned, error.to_string()))?;
    let done = fetch(task).await;
    permit.complete(Outcome::new(done.as_ref().map_or_else(|failure| failure.class, |()| Class::Success)));
    done
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
