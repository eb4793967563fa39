//! Input that no client sends: `cargo run --release -p paceline-bench --bin fuzz -- TARGET SECONDS [SEED]`.
//!
//! Each target takes entries of its corpus, changes them at random and hands them to one part of the reading of answers.
//! Nothing may panic; no wait may be above 366 days; nothing may take longer than its size can explain: every so often an
//! input is made long from a short one again and again, so that anything quadratic shows. `all` runs every target for that
//! long. The corpus is `bench/corpus` and the recordings of the provider tests; the seed repeats a run.

mod corpus;
mod explain;
mod mutate;
mod targets;

use std::process::ExitCode;
use std::time::Duration;

use paceline::Clock;
use paceline_core::Rng;

use crate::corpus::Corpus;
use crate::targets::{TARGETS, Target};

/// A megabyte may take so long on a busy machine; something quadratic takes minutes.
const LONGEST_TIME: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 2 });

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| args.get(index).map_or(Ok(default), |text| text.parse());
    let (Some(name), Ok(seconds), Ok(seed)) = (args.first(), number(1, 10), number(2, 1)) else { return usage() };
    let chosen: Vec<&Target> = TARGETS.iter().filter(|target| name == "all" || name == target.name).collect();
    if chosen.is_empty() {
        return usage();
    }
    let corpus = Corpus::read();
    for target in chosen {
        run(target, &corpus, Duration::from_secs(seconds), seed);
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    let names = TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    eprintln!("usage: fuzz TARGET SECONDS [SEED], where TARGET is all or one of {names}");
    ExitCode::from(2)
}

fn run(target: &Target, corpus: &Corpus, length: Duration, seed: u64) {
    let (mut rng, clock) = (Rng::new(seed), Clock::new());
    let (start, mut executions, mut slowest) = (clock.now(), 0_u64, (Duration::ZERO, 0));
    while clock.now() - start < length {
        let (took, bytes) = execute(target, corpus, executions, &mut rng);
        assert!(took < LONGEST_TIME, "{}: execution {executions} took {took:?} for {bytes} bytes", target.name);
        slowest = slowest.max((took, bytes));
        executions += 1;
    }
    let (took, bytes) = slowest;
    println!(
        "measure fuzz {:<13} {executions:>10} executions in {} s, seed {seed}; the slowest took {took:.1?} for {bytes} bytes",
        target.name,
        length.as_secs()
    );
}

/// One input; returns how long it took and how long it is.
fn execute(target: &Target, corpus: &Corpus, number: u64, rng: &mut Rng) -> (Duration, usize) {
    let clock = Clock::new();
    let input = (target.input)(corpus, rng, number.is_multiple_of(target.long_every));
    let before = clock.now();
    (target.execute)(&input, rng);
    (clock.now() - before, input.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The command is a target that needs its binary; its own tests hand it much that it has to refuse.
    #[test]
    fn every_target_in_this_process_takes_some_hundred_inputs() {
        let corpus = Corpus::read();
        for target in TARGETS.iter().filter(|target| target.name != "explain") {
            let mut rng = Rng::new(1);
            for number in 0..400 {
                execute(target, &corpus, number, &mut rng);
            }
        }
    }
}
