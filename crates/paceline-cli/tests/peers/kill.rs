//! `kill -9` at random instants of a job, counted by a server outside the process: nothing is lost, nothing doubled,
//! and nothing is paid twice but what no journal can know about.

use std::collections::BTreeSet;
use std::time::Duration;

use paceline_core::Rng;

use super::counting::Counting;
use super::job::Job;
use super::measure;

const SERVICE: Duration = Duration::from_millis(30);

/// An answer this old must be in the results file: many times what a group sync takes on a loaded machine.
const SYNCED_WITHIN: Duration = Duration::from_secs(2);

/// How long a resumed job may take to go on before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn killed_at_random_instants_a_job_loses_and_doubles_nothing() {
    let (items, kills) = (measure::items(), if measure::soak() { 10 } else { 3 });
    let seed = seed();
    let counting = Counting::start(SERVICE);
    let job = Job::new(items, &format!("http://{}/v1", counting.address()), &["--concurrency", "16"]);
    let started = counting.now();
    let mut unrecorded = 0;
    for instant in instants(items, kills, seed) {
        unrecorded += kill_at(&job, &counting, instant);
    }
    let ended = job.run();
    let sends = counting.arrivals();
    let (extra, retries) = (sends - items as u64, ended.count("retries"));
    measure::say(&format!(
        "kill -9: items={items} kills={kills} seed={seed} sends={sends} repeated={extra} \
         unrecorded_at_kills={unrecorded} retries={retries} seconds={:.2}",
        counting.now().saturating_since(started).as_secs_f64()
    ));
    job.assert_complete(&ended);
    assert!(extra <= unrecorded + retries, "{extra} calls repeated, {unrecorded} unrecorded at kills, seed {seed}");
    let again = job.run();
    job.assert_complete(&again);
    assert_eq!(counting.arrivals(), sends, "a rerun of a finished job sends nothing");
}

/// Kills the job when the server has counted `instant` arrivals and answers. Returns how many items this start had sent
/// that have no line in the results file: what the next start may send again.
fn kill_at(job: &Job, counting: &Counting, instant: u64) -> u64 {
    let before = counting.items();
    let mut process = job.spawn();
    let reached = counting.wait_for_events(instant, PATIENCE);
    process.kill().expect("SIGKILL");
    let killed = counting.now();
    process.wait().expect("the killed process");
    assert!(reached, "the job stands still before event {instant}");
    counting.wait_until_idle();
    let recorded: BTreeSet<String> = job.recorded().into_iter().collect();
    let mut unrecorded = 0;
    for (item, seen) in counting.items() {
        let sent_now = before.get(&item).is_none_or(|before| before.arrivals < seen.arrivals);
        if !sent_now || recorded.contains(&item) {
            continue;
        }
        let age = seen.answered.map_or(Duration::ZERO, |answered| killed.saturating_since(answered));
        assert!(age <= SYNCED_WITHIN, "{item} was answered {age:?} before the kill and is not in the results");
        unrecorded += 1;
    }
    unrecorded
}

/// Increasing counts of arrivals and answers at which to kill, spread at random over the job.
fn instants(items: usize, kills: usize, seed: u64) -> BTreeSet<u64> {
    let mut rng = Rng::new(seed);
    let mut instants = BTreeSet::new();
    while instants.len() < kills {
        instants.insert(1 + rng.next_u64() % (2 * items as u64 - 2));
    }
    instants
}

/// Another one in each run, printed with the figures; `PACELINE_SEED` repeats one.
fn seed() -> u64 {
    let given = std::env::var("PACELINE_SEED").ok().map(|seed| seed.parse().expect("PACELINE_SEED is a number"));
    given.unwrap_or_else(|| paceline::clock::wall().as_millis().unsigned_abs())
}
