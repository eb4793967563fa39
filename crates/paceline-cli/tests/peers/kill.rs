//! `kill -9` at random instants of a job, from the reading of its input to the ordering of its results, counted by a server
//! outside the process: nothing is lost, nothing doubled, and nothing is paid twice but what no journal can know about.

use std::collections::BTreeSet;
use std::process::Child;
use std::time::Duration;

use paceline_core::Rng;

use super::counting::Counting;
use super::job::Job;
use super::measure;
use crate::bounded::{Bounded, TestBound};

const SERVICE: Duration = Duration::from_millis(30);

/// An answer this old must be in the results file: many times what a group sync takes on a loaded machine.
const SYNCED_WITHIN: Duration = Duration::from_secs(2);

/// How long a resumed job may take to go on before the test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often to kill at each stage: 50 times in the long form, 8 times in the short one.
struct Kills {
    /// While the input is read, before the first call.
    ingest: usize,
    /// While calls come and go, spread over all of them.
    calls: usize,
    /// After each of so many of these, once more before the next call: while the journal recovers.
    recovery: usize,
    /// While the finished results are put in order.
    order: usize,
}

#[test]
fn killed_at_random_instants_a_job_loses_and_doubles_nothing() {
    let _bound = TestBound::new();
    let soak = measure::soak();
    let items = if soak { 5_000 } else { 300 };
    let kills = match soak {
        true => Kills { ingest: 8, calls: 24, recovery: 8, order: 10 },
        false => Kills { ingest: 1, calls: 4, recovery: 1, order: 2 },
    };
    let seed = seed();
    let mut rng = Rng::new(seed);
    let counting = Counting::start(SERVICE);
    let job = Job::new(items, &format!("http://{}/v1", counting.address()), &["--concurrency", "64", "--ordered"]);
    let started = counting.now();
    let mut unrecorded = 0;
    for _ in 0..kills.ingest {
        unrecorded += kill(&job, &counting, |_| before_the_next_call(&counting, &mut rng));
    }
    for (index, instant) in instants(items, kills.calls, &mut rng).into_iter().enumerate() {
        unrecorded += kill(&job, &counting, |_| {
            assert!(counting.wait_for_events(instant, PATIENCE), "the job stands still before event {instant}");
        });
        job.tear(index);
        if index < kills.recovery {
            unrecorded += kill(&job, &counting, |_| before_the_next_call(&counting, &mut rng));
        }
    }
    let mut in_order = 0;
    while in_order < kills.order {
        let mut ended = false;
        unrecorded += kill(&job, &counting, |process| ended = !in_the_ordered_pass(&job, process, &mut rng));
        if ended {
            break;
        }
        in_order += 1;
    }
    let ended = job.run();
    let sends = counting.arrivals();
    let (extra, retries) = (sends - items as u64, ended.count("retries"));
    measure::say(&format!(
        "kill -9: items={items} kills={} of_them_ordering={in_order} seed={seed} sends={sends} repeated={extra} \
         unrecorded_at_kills={unrecorded} retries={retries} seconds={:.2}",
        kills.ingest + kills.calls + kills.recovery + in_order,
        counting.now().saturating_since(started).as_secs_f64()
    ));
    job.assert_complete(&ended);
    job.assert_ordered();
    assert!(extra <= unrecorded + retries, "{extra} calls repeated, {unrecorded} unrecorded at kills, seed {seed}");
    assert!(in_order > 0, "no kill met the ordered pass, seed {seed}");
    let again = job.run();
    job.assert_complete(&again);
    assert_eq!(counting.arrivals(), sends, "a rerun of a finished job sends nothing");
}

/// Some moment before the next call arrives, or that call.
fn before_the_next_call(counting: &Counting, rng: &mut Rng) {
    let moment = Duration::from_micros(rng.next_u64() % 60_000);
    let _ = counting.wait_for_events(counting.events() + 1, moment);
}

/// Waits until the file that will be the ordered results has grown to some length; false if the process ended before.
fn in_the_ordered_pass(job: &Job, process: &mut Child, rng: &mut Rng) -> bool {
    let length = rng.next_u64() % job.length_of_results().max(1);
    while process.try_wait().expect("a child").is_none() {
        if job.length_of_ordered_results() > Some(length / 2) {
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// Starts the job and kills it once `reached` returns. Returns how many items this start had sent that have no line in the
/// results file: what the next start may send again.
fn kill(job: &Job, counting: &Counting, reached: impl FnOnce(&mut Child)) -> u64 {
    let before = counting.items();
    let mut process = job.spawn();
    reached(&mut process);
    process.kill().expect("SIGKILL");
    let killed = counting.now();
    process.ended();
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
fn instants(items: usize, kills: usize, rng: &mut Rng) -> BTreeSet<u64> {
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
