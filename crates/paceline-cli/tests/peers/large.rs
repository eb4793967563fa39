//! Large inputs: how long until the first call, how much memory, and how soon a killed job goes on. The long form takes
//! a million lines of 600 bytes to their end, and begins ten million short ones: memory does not grow with the input.

use std::fs;
use std::process::Child;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::counting::Counting;
use super::job::Job;
use super::measure;
use crate::bounded::{Bounded, TestBound};

const SERVICE: Duration = Duration::from_millis(2);

/// Loading ten million lines takes a minute.
const PATIENCE: Duration = Duration::from_secs(600);

/// What was seen of one job.
struct Seen {
    first_call: Duration,
    resumed: Duration,
    /// The most resident memory of the run that was killed, in KiB.
    peak: u64,
}

#[test]
fn a_large_input_takes_little_time_and_memory() {
    let _bound = TestBound::new();
    let (many, more) = if measure::soak() { (1_000_000, 10_000_000) } else { (5_000, 20_000) };
    let counting = Counting::start(SERVICE);
    let base_url = format!("http://{}/v1", counting.address());
    let job = Job::with_long_lines(many, 600, &base_url, &["--concurrency", "64"]);
    let long = begin_kill_and_resume(&job, &counting);
    let mut process = job.spawn();
    let peak = Peak::of(&process).wait();
    assert!(process.ended().success());
    job.assert_one_line_each();
    say("600 bytes a line", many, &long);
    let ended = job.run();
    assert_eq!((ended.count("succeeded"), ended.count("deferred")), (many as u64, 0));
    measure::say(&format!("large input to its end: items={many} peak_kib={peak} {}", bar(peak, 120 << 10)));
    drop(job);

    let job = Job::with_long_lines(more, 0, &base_url, &["--concurrency", "64"]);
    let short = begin_kill_and_resume(&job, &counting);
    say("short lines", more, &short);
    let bound = long.peak.max(peak) * 11 / 10;
    measure::say(&format!("memory at ten times the items: peak_kib={} {}", short.peak, bar(short.peak, bound)));
}

fn begin_kill_and_resume(job: &Job, counting: &Counting) -> Seen {
    // Enough for its memory to be what it will be.
    let calls = if measure::soak() { 20_000 } else { 5_000 };
    let (first_call, peak) = run_and_kill(job, counting, calls);
    let (resumed, _) = run_and_kill(job, counting, 1);
    Seen { first_call, resumed, peak }
}

/// How long the first event took to come; the run is killed after so many.
fn run_and_kill(job: &Job, counting: &Counting, events: u64) -> (Duration, u64) {
    let (before, began) = (counting.events(), counting.now());
    let mut process = job.spawn();
    let peak = Peak::of(&process);
    assert!(counting.wait_for_events(before + 1, PATIENCE), "no call came");
    let first = counting.now().saturating_since(began);
    assert!(counting.wait_for_events(before + events, PATIENCE), "the job stands still");
    process.kill().expect("SIGKILL");
    process.ended();
    counting.wait_until_idle();
    (first, peak.wait())
}

fn say(name: &str, items: usize, seen: &Seen) {
    let Seen { first_call, resumed, peak } = seen;
    let millis = |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    // The bars are for a million lines.
    let (first_bar, resumed_bar) = if items == 1_000_000 {
        (bar(millis(first_call), 8_000), bar(millis(resumed), 500))
    } else {
        (String::new(), String::new())
    };
    measure::say(&format!(
        "large input, {name}: items={items} first_call_ms={} {first_bar} resumed_ms={} {resumed_bar} peak_kib={peak} {}",
        millis(first_call),
        millis(resumed),
        bar(*peak, 120 << 10)
    ));
}

fn bar(value: u64, most: u64) -> String {
    let verdict = if value <= most || !measure::soak() { "met" } else { "MISSED" };
    format!("bar={most} {verdict}")
}

/// Follows the memory of a process until it ends.
struct Peak(mpsc::Receiver<u64>);

impl Peak {
    fn of(process: &Child) -> Self {
        let (status, (sender, receiver)) = (format!("/proc/{}/status", process.id()), mpsc::channel());
        thread::spawn(move || {
            let (_open, tick) = mpsc::channel::<()>();
            let mut peak = 0;
            while let Some(kib) = high_water(&status) {
                peak = kib;
                assert_eq!(tick.recv_timeout(Duration::from_millis(20)), Err(RecvTimeoutError::Timeout));
            }
            // A test that has failed meanwhile does not wait for it.
            let _ = sender.send(peak);
        });
        Self(receiver)
    }

    fn wait(self) -> u64 {
        // The test has a bound of its own.
        self.0.recv().expect("the process ends")
    }
}

/// The most resident memory so far, in KiB; none once the process has ended, also before its parent collects it.
fn high_water(status: &str) -> Option<u64> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}
