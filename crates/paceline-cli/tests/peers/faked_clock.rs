//! The system clock is not ours to set: it may be an hour off, and step in the middle of a run. Waits are of real time,
//! and what is written down for the next run is a time that the next run's clock can reach.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::counting::Counting;
use super::job::Job;
use super::measure;
use crate::bounded::{Bounded, TestBound};

/// libfaketime changes what the wall clock shows and leaves the monotonic clock alone, as an administrator does.
pub(crate) struct Clock {
    folder: tempfile::TempDir,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let clock = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        clock.shift("+0");
        clock
    }

    /// Sets the clock that far off, in words of faketime: `-1h`.
    pub(crate) fn shift(&self, offset: &str) {
        let new = self.folder.path().join("new");
        fs::write(&new, offset).expect("writable");
        fs::rename(new, self.file()).expect("the same folder");
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    pub(crate) fn environment(&self) -> [(&'static str, OsString); 4] {
        [
            ("LD_PRELOAD", library().into()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().into()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }
}

fn library() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("a Debian system");
    let library = |folder: fs::DirEntry| folder.path().join("faketime/libfaketimeMT.so.1");
    folders.flatten().map(library).find(|path| Path::exists(path)).expect("faketime is installed; scripts/test does it")
}

#[test]
fn a_hint_of_an_hour_defers_until_then_and_no_longer() {
    let _bound = TestBound::new();
    const ITEMS: usize = 40;
    let (clock, counting) = (Clock::new(), Counting::start(Duration::from_millis(5)));
    let job =
        Job::new(ITEMS, &format!("http://{}/v1", counting.address()), &["--concurrency", "4", "--max-wait", "10m"]);
    let job = job.with_environment(&clock.environment());
    counting.use_up(Some(3_600));
    let ended = job.run();
    assert_eq!((ended.output.status.code(), ended.count("deferred")), (Some(3), ITEMS as u64));
    let stderr = String::from_utf8_lossy(&ended.output.stderr).into_owned();
    assert!(stderr.contains("the next call can start only at"), "{stderr}");
    let sends = counting.arrivals();
    assert!(sends <= 4, "{sends} calls into a quota that is used up");

    clock.shift("+40m");
    assert_eq!(job.run().output.status.code(), Some(3), "started early");
    assert_eq!(counting.arrivals(), sends, "started early it sends nothing");

    clock.shift("+61m");
    counting.use_up(None);
    let ended = job.run();
    measure::say(&format!("hint of an hour: items={ITEMS} sends_before={sends} seconds={:.2}", ended.seconds));
    job.assert_complete(&ended);
}

/// A machine without a battery for its clock starts in the past.
#[test]
fn a_clock_that_is_set_back_between_two_runs_makes_no_hold_longer() {
    let _bound = TestBound::new();
    const ITEMS: usize = 10;
    let (clock, counting) = (Clock::new(), Counting::start(Duration::from_millis(5)));
    let flags = ["--concurrency", "1", "--max-wait", "10m"];
    let job = Job::new(ITEMS, &format!("http://{}/v1", counting.address()), &flags);
    let job = job.with_environment(&clock.environment());
    counting.use_up(Some(3_600));
    assert_eq!(job.run().output.status.code(), Some(3));
    for offset in ["-48h", "-48h", "-100h"] {
        clock.shift(offset);
        let ended = job.run();
        let stderr = String::from_utf8_lossy(&ended.output.stderr).into_owned();
        // Some of the hour has passed.
        let is_an_hour = stderr.contains(", in 1h 00m: ") || stderr.contains(", in 59m ");
        assert!(ended.output.status.code() == Some(3) && is_an_hour, "{offset}: {stderr}");
    }
    clock.shift("-98h");
    counting.use_up(None);
    job.assert_complete(&job.run());
}

#[test]
fn a_clock_that_steps_in_the_middle_changes_nothing() {
    let _bound = TestBound::new();
    let (items, rate) = (measure::items() / 2, 50);
    let (clock, counting) = (Clock::new(), Counting::start(Duration::from_millis(5)));
    let limit = format!("{rate} rps");
    let flags = ["--limit", &limit, "--max-wait", "10m"];
    let job = Job::new(items, &format!("http://{}/v1", counting.address()), &flags);
    let job = job.with_environment(&clock.environment());
    let mut process = job.spawn();
    let third = 2 * items as u64 / 3;
    assert!(counting.wait_for_events(third, Duration::from_secs(60)), "it runs");
    counting.use_up(Some(2));
    clock.shift("-1h");
    assert!(counting.wait_for_events(third + 2, Duration::from_secs(60)), "a call is refused");
    counting.use_up(None);
    assert!(counting.wait_for_events(2 * third, Duration::from_secs(60)), "it goes on after two seconds, not an hour");
    clock.shift("+1h");
    assert!(process.ended().success());
    let sends = counting.arrivals();
    let ended = job.run();
    measure::say(&format!("clock stepped by 1 h and 2 h: items={items} sends={sends}"));
    job.assert_complete(&ended);
    assert_eq!(counting.arrivals(), sends, "a rerun of a finished job sends nothing");
    assert!(sends <= items as u64 + 50, "{sends} calls: those in flight when the quota was used up");
}
