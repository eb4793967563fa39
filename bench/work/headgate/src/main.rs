//! So many empty jobs on headgate-sqlite: `work-headgate FILE JOBS AT_A_TIME` prints the seconds until all were added, and
//! from then until the last was called.
//!
//! What headgate still has to record then does not count against it.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use headgate::{BackoffConfig, JobCtx, Registry, Worker, WorkerConfig};
use headgate_core::{CodecError, Envelope, Task};
use headgate_sqlite::SqliteStore;
use tokio::sync::Notify;

struct Empty(String);

impl Task for Empty {
    const TYPE: &'static str = "bench:empty";

    fn encode(&self) -> Result<Vec<u8>, CodecError> {
        Ok(self.0.clone().into_bytes())
    }

    fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        Ok(Self(String::from_utf8_lossy(bytes).into_owned()))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, jobs, at_a_time] = &arguments[..] else { return Err("work-headgate FILE JOBS AT_A_TIME".into()) };
    let (jobs, at_a_time): (usize, u32) = (jobs.parse()?, at_a_time.parse()?);
    let store = Arc::new(SqliteStore::open(file).await?);

    let began = Instant::now();
    for from in (0..jobs).step_by(1_000) {
        let batch = (from..jobs.min(from + 1_000)).map(envelope).collect::<Result<Vec<_>, _>>()?;
        store.enqueue(&batch).await?;
    }
    let added = began.elapsed();

    let (called, all) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let mut registry = Registry::new();
    {
        let (called, all) = (called.clone(), all.clone());
        registry.register::<Empty, _, _>(move |_: JobCtx, _: Empty| {
            if called.fetch_add(1, Ordering::SeqCst) + 1 == jobs {
                all.notify_one();
            }
            std::future::ready(Ok(()))
        })?;
    }
    let poll = BackoffConfig { floor: Duration::from_millis(1), ..BackoffConfig::default() };
    let config =
        WorkerConfig { capacity: at_a_time, quantum: i64::from(at_a_time), poll, ..WorkerConfig::default() };
    let began = Instant::now();
    let (worker, _handle) = Worker::new(store, registry, config);
    tokio::select! {
        ended = worker.run() => ended?,
        () = all.notified() => {}
    }
    println!("{:.6} {:.6}", added.as_secs_f64(), began.elapsed().as_secs_f64());
    Ok(())
}

fn envelope(n: usize) -> Result<Envelope, Box<dyn Error + Send + Sync>> {
    headgate::prepare_envelope(Envelope {
        id: format!("job-{n}"),
        kind: Empty::TYPE.into(),
        payload: n.to_string().into_bytes(),
        queue: "default".into(),
        scheduled_at_ms: 1,
        max_attempts: 3,
        ..Envelope::default()
    })
}
