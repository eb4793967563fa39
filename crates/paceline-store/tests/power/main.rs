//! Power cuts, replayed: `strace` records what a job writes, syncs and renames, and each replay leaves on a disk what a
//! cut at one moment may leave: everything that was synced, and any part of the rest. Nothing acknowledged may be missing.
//!
//! Two controls run on the same cuts and must lose answers, or the test could not see a loss: the same job whose results
//! were never synced, and a plain SQLite table at `synchronous = NORMAL`.
//!
//! Built with `--features strace` only, because it needs `strace` on the PATH. `PACELINE_SOAK=1` replays 1,000 cuts,
//! else 60; `PACELINE_SEED` repeats those of another run.
#![cfg(test)]

mod disk;
mod jobs;
mod trace;

use std::io::Write as _;

use disk::Disk;
use paceline_core::Rng;
use trace::{Act, Trace};

/// What became of the acknowledged answers over all cuts.
#[derive(Debug, Default)]
struct Losses {
    acknowledged: u64,
    lost: u64,
    /// Why the job could not even be opened after a cut; all that it had acknowledged counts as lost then.
    refused: Vec<String>,
}

#[test]
fn no_power_cut_takes_what_was_acknowledged() {
    let (seed, cuts) = (seed(), if soak() { 1_000 } else { 60 });
    let job = Trace::of("jobs::journaled");
    let sound = replay(&job, cuts, seed, |act| act, jobs::check_journaled);
    let unsynced = replay(&job, cuts, seed, without_syncs_of_results, jobs::check_journaled);
    let table = replay(&Trace::of("jobs::in_sqlite_alone"), cuts, seed, |act| act, jobs::check_sqlite_alone);
    // Past the test runner's capture, so that a passing test reports too.
    let _ = writeln!(
        std::io::stderr(),
        "measure power cuts: replayed={cuts} seed={seed} acknowledged={} lost={} refused={}; controls: without the sync \
         lost={} refused={}, SQLite alone lost={}",
        sound.acknowledged,
        sound.lost,
        sound.refused.len(),
        unsynced.lost,
        unsynced.refused.len(),
        table.lost,
    );
    assert!(sound.acknowledged > 10 * cuts, "cuts come before anything is acknowledged: {sound:?}");
    assert!(sound.lost == 0 && sound.refused.is_empty(), "seed {seed}: {sound:?}");
    assert!(unsynced.lost > 0, "without syncs nothing was lost: the test sees no losses");
    assert!(table.lost > 0, "a table without syncs lost nothing: the test sees no losses");
}

/// Cuts the power at random moments of a recorded job, and counts what `check` misses afterwards.
fn replay(
    trace: &Trace,
    cuts: u64,
    seed: u64,
    keep: impl Fn(Act) -> Act,
    check: impl Fn(&std::path::Path, &jobs::Acknowledged) -> Result<u64, String>,
) -> Losses {
    let mut rng = Rng::new(seed);
    let mut losses = Losses::default();
    for _ in 0..cuts {
        let moment = rng.next_u64() as usize % (trace.acts.len() + 1);
        let mut disk = Disk::default();
        let mut acknowledged = jobs::Acknowledged::default();
        for act in &trace.acts[..moment] {
            match act {
                Act::Acknowledge(words) => acknowledged.hear(words),
                act => disk.perform(keep(act.clone())),
            }
        }
        let after = trace.folder_as_it_began();
        disk.lose_power(&mut rng, after.path());
        losses.acknowledged += acknowledged.count();
        match check(after.path(), &acknowledged) {
            Ok(lost) => losses.lost += lost,
            Err(why) => {
                losses.lost += acknowledged.count();
                losses.refused.push(format!("cut at act {moment} of {}: {why}", trace.acts.len()));
            }
        }
    }
    losses
}

/// The same job, as if it had never synced its results and errors.
fn without_syncs_of_results(act: Act) -> Act {
    match act {
        Act::Sync { file } if file.contains(".jsonl") => Act::Nothing,
        act => act,
    }
}

fn soak() -> bool {
    std::env::var_os("PACELINE_SOAK").is_some_and(|value| value == "1")
}

fn seed() -> u64 {
    let given = std::env::var("PACELINE_SEED").ok().map(|seed| seed.parse().expect("PACELINE_SEED is a number"));
    given.unwrap_or_else(|| u64::from(std::process::id()))
}
