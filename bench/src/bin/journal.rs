//! How fast the journal records outcomes, and how long one waits for its acknowledgement: `scripts/journal-speed`, which
//! runs this with 10 ms added to every sync.
//!
//! First as many as it takes, with a fixed number under way as calls of a run would be; then at a steady rate. An outcome
//! is acknowledged once its line would survive a power cut.

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use paceline::Clock;
use paceline_core::Class;
use paceline_store::{
    CallTotals, CustomId, End, FinishStatus, Finished, InputFingerprint, Journal, LastAnswer, LoadedLine, Opened,
    Options, Paths, ResultBody, Tally, encode_line,
};

const ITEMS: u64 = 200_000;
/// Outcomes under way at most: as many as a run has calls in flight, unless a flag sets another number.
const WINDOW: usize = 512;
/// Outcomes a second: the bar with 10 ms added to every sync, and the steady rate, a fifth above it.
const BAR: u64 = 10_000;
const STEADY: u64 = 12_000;
/// The bar of the acknowledgement at the steady rate.
const P99: Duration = Duration::from_millis(50);

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let clock = Arc::new(Clock::new());
    let sync = millis(time_of_a_sync(folder.path(), &clock)?);
    let journal = load(folder.path())?;
    let (most, _) = record(&journal, &clock, WINDOW, None)?;
    let verdict = |met| if met { "met" } else { "MISSED" };
    println!(
        "measure journal, most: items={} under_way={WINDOW} sync_ms={sync:.1} per_second={most:.0} bar={BAR} {}",
        ITEMS / 2,
        verdict(most >= BAR as f64),
    );
    let (rate, waits) = record(&journal, &clock, usize::MAX, Some(Duration::from_secs(1) / STEADY as u32))?;
    journal.close()?;
    let quantile = |share: usize| waits[(waits.len() - 1) * share / 100];
    println!(
        "measure journal, steady: items={} sync_ms={sync:.1} per_second={rate:.0} ack_p50_ms={:.1} ack_max_ms={:.1} \
         ack_p99_ms={:.1} bar=50 {}",
        ITEMS / 2,
        millis(quantile(50)),
        millis(quantile(100)),
        millis(quantile(99)),
        verdict(quantile(99) <= P99 && rate >= BAR as f64),
    );
    Ok(())
}

/// What one sync of a file costs here: shows that the delay is really there.
fn time_of_a_sync(folder: &Path, clock: &Clock) -> std::io::Result<Duration> {
    let mut file = std::fs::File::create(folder.join("sync"))?;
    std::io::Write::write_all(&mut file, b"something to sync")?;
    let began = clock.now();
    file.sync_data()?;
    Ok(clock.now() - began)
}

fn load(folder: &Path) -> Result<Journal, Box<dyn Error>> {
    let input = folder.join("requests.jsonl");
    std::fs::write(&input, "{}\n")?;
    let paths = Paths::beside(&folder.join("results.jsonl"));
    let options = Options::new(paths, InputFingerprint::of(&input)?, paceline::clock::wall());
    let Opened::New(mut loader) = Journal::open(options)? else { return Err("the folder is not empty".into()) };
    for ordinal in 0..ITEMS {
        let item = LoadedLine {
            custom_id: &id(ordinal),
            line: ordinal + 1,
            src_off: 0,
            src_len: 2,
            body: b"{}",
            scope: "chat",
        };
        loader.add(&item)?;
    }
    Ok(loader.finish()?)
}

/// Lets half of the items succeed, `window` of them under way at most and `spacing` apart; returns how many that were a
/// second, and how long each waited for its acknowledgement, sorted.
fn record(
    journal: &Journal,
    clock: &Arc<Clock>,
    window: usize,
    spacing: Option<Duration>,
) -> Result<(f64, Vec<Duration>), Box<dyn Error>> {
    let items = (ITEMS / 2) as usize;
    let claimed = journal.claim_now(paceline::clock::wall(), items)?.items;
    let (acknowledge, acknowledged) = mpsc::channel::<Duration>();
    let (began, mut due) = (clock.now(), clock.now());
    let mut waits = Vec::with_capacity(items);
    for (sent, item) in claimed.iter().enumerate() {
        if sent - waits.len() >= window {
            waits.push(acknowledged.recv()?);
        }
        waits.extend(acknowledged.try_iter());
        // An outcome that comes late because this loop was late has waited since it was due.
        due = spacing.map_or_else(|| clock.now(), |spacing| due + spacing);
        std::thread::sleep(due.saturating_since(clock.now()));
        let (acknowledge, clock, due) = (acknowledge.clone(), Arc::clone(clock), due);
        journal.finish(success(item.ordinal), move |kept| {
            assert_eq!(kept.expect("the disk takes it"), FinishStatus::Recorded);
            acknowledge.send(clock.now() - due).expect("the receiver waits for all");
        });
    }
    drop(acknowledge);
    waits.extend(acknowledged);
    let seconds = (clock.now() - began).as_secs_f64();
    waits.sort_unstable();
    Ok((items as f64 / seconds, waits))
}

fn success(ordinal: u64) -> Finished {
    let body = format!("{{\"choices\":[{{\"message\":{{\"content\":\"{}\"}}}}]}}", "an answer ".repeat(50));
    let answer = ResultBody::Response { status: 200, request_id: "req_1", headers: None, body: body.as_bytes() };
    let mut finished = Finished::new(ordinal, End::Succeeded, encode_line(ordinal, 1, &id(ordinal), &answer));
    finished.tally = Tally { attempts: 1, last: Some(LastAnswer::new(Class::Success)), ..Tally::default() };
    finished.adds = CallTotals { calls: 1, ..CallTotals::default() };
    finished
}

fn id(ordinal: u64) -> CustomId {
    CustomId::from(format!("item-{ordinal}").as_str())
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
