//! The tutorial, word for word: its listings are the programs here, and they print what it says.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use paceline::{Backoff, Growth, Jitter, Rng};

const TUTORIAL: &str = include_str!("../../../docs/tutorial.md");
const RETRIES: &str = include_str!("../../../docs/retries.md");

const STEPS: [(&str, &str); 3] = [
    (env!("CARGO_BIN_EXE_step1"), include_str!("../src/bin/step1.rs")),
    (env!("CARGO_BIN_EXE_step2"), include_str!("../src/bin/step2.rs")),
    (env!("CARGO_BIN_EXE_step3"), include_str!("../src/bin/step3.rs")),
];

#[test]
fn the_listings_are_the_programs() {
    let listings = blocks("rust");
    assert_eq!(listings.len(), STEPS.len());
    for (listing, (_, program)) in listings.iter().zip(STEPS) {
        assert_eq!(listing, program);
    }
}

/// All parts side by side: they wait more than they work.
#[test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
fn the_programs_print_what_it_says() {
    let parts: [fn(&Path); 4] = [
        |folder| {
            assert_eq!(run(0, folder), told(0));
            assert_eq!(run(0, folder), told(1), "a list is worked through once");
        },
        |folder| assert_eq!(run(1, folder), told(2)),
        |folder| {
            let mut agent = Command::new(STEPS[1].0);
            let mut agent = agent.current_dir(folder).stdout(Stdio::piped()).spawn().expect("the program");
            let output = BufReader::new(agent.stdout.take().expect("piped"));
            let put_off_twice = "Lima: 502 Bad Gateway: retry in 10s";
            assert!(output.lines().map_while(Result::ok).any(|line| line == put_off_twice));
            agent.kill().expect("SIGKILL");
            agent.wait().expect("the killed process");
            assert_eq!(run(1, folder), told(3), "a killed agent goes on");
        },
        |folder| {
            assert_eq!(run(2, folder), told(4));
            assert_eq!(run(2, folder), told(5), "what is left over is done by the next run");
        },
    ];
    std::thread::scope(|scope| {
        for part in parts {
            scope.spawn(move || part(tempfile::tempdir().expect("a folder").path()));
        }
    });
}

#[test]
fn the_table_of_worst_cases_is_right() {
    let rows = RETRIES.lines().skip_while(|line| !line.starts_with("| retries |")).skip(2);
    let mut checked = 0;
    for row in rows.take_while(|line| line.starts_with('|')) {
        let numbers = row.split('|').filter_map(|cell| cell.trim().replace(',', "").parse::<u64>().ok());
        let numbers: Vec<u64> = numbers.collect();
        for (base, worst) in [5, 30, 60].into_iter().zip(&numbers[1..]) {
            let (base, cap) = (Duration::from_secs(base), Duration::from_secs(300));
            let growth = Growth::Exponential { base, multiplier: 2.0, cap };
            let backoff = Backoff { growth, jitter: Jitter::None };
            let retries = u32::try_from(numbers[0]).expect("few");
            let waits: Duration = (0..retries).map(|retry| backoff.delay(retry, &mut Rng::new(0))).sum();
            assert_eq!(waits.as_secs(), *worst, "{retries} retries from {base:?}");
            checked += 1;
        }
    }
    assert_eq!(checked, 18);
}

/// The lines that a step prints, sorted: cities are worked on side by side.
fn run(step: usize, folder: &Path) -> Vec<String> {
    let output = Command::new(STEPS[step].0).current_dir(folder).output().expect("the program");
    sorted(&String::from_utf8(output.stdout).expect("text"))
}

/// What the tutorial says that they are.
fn told(block: usize) -> Vec<String> {
    sorted(&blocks("text")[block])
}

fn sorted(lines: &str) -> Vec<String> {
    let mut lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The tutorial's blocks in that language.
fn blocks(language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    TUTORIAL.split(&begin).skip(1).map(|rest| rest.split("```").next().unwrap_or_default().to_owned()).collect()
}
