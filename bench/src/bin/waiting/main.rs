//! Three ways to wait for a retry, in virtual time: what each blocks, and when the job is done.
//!
//! Prints the table of `docs/waiting.md`; with a file name, draws its picture there.

mod picture;
mod ways;

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use ways::{Job, Seen, WAYS};

/// The items of the jobs that are compared.
const SIZES: [usize; 3] = [10, 100, 1_000];

fn main() -> Result<(), Box<dyn Error>> {
    let seen = SIZES.map(|items| WAYS.map(|(_, way)| way(Job::of(items))));
    print!("{}", table(&seen));
    if let Some(path) = std::env::args_os().nth(1) {
        std::fs::write(path, picture::figure(&seen).svg()?)?;
    }
    Ok(())
}

/// Every way at every size, in Markdown.
fn table(seen: &[[Seen; WAYS.len()]]) -> String {
    let mut table = "| Items | Way | Worker blocked | Job done | Others done before the first retry |\n".to_owned();
    table += "| ---: | --- | ---: | ---: | ---: |\n";
    for (items, ways) in SIZES.iter().zip(seen) {
        for ((name, _), seen) in WAYS.iter().zip(ways) {
            let others = format!("{} of {}", seen.before_first_retry, items - Job::of(*items).failing());
            let (blocked, done) = (seconds(seen.blocked), seconds(seen.makespan()));
            writeln!(table, "| {items} | {name} | {blocked} | {done} | {others} |").expect("a string takes everything");
        }
    }
    table
}

fn seconds(time: Duration) -> String {
    let tenths = time.as_millis() / 100;
    match tenths % 10 {
        0 => format!("{} s", tenths / 10),
        rest => format!("{}.{rest} s", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> [[Seen; WAYS.len()]; SIZES.len()] {
        SIZES.map(|items| WAYS.map(|(_, way)| way(Job::of(items))))
    }

    #[test]
    fn a_stored_due_time_blocks_nobody() {
        let [_, hundred, _] = seen();
        let [in_line, rounds, stored] = hundred;
        assert_eq!(in_line.blocked, Duration::from_secs(600));
        assert_eq!(rounds.blocked, rounds.makespan() - Duration::from_secs(55), "110 calls of half a second");
        assert_eq!(stored.blocked, Duration::ZERO);
        assert_eq!(stored.before_first_retry, 90);
        let all = [in_line, rounds, stored].map(|seen| seen.ended.len());
        assert_eq!(all, [100; 3], "none of them loses an item");
    }

    #[test]
    fn the_page_shows_what_is_measured() {
        let page = include_str!("../../../../docs/waiting.md");
        let seen = seen();
        assert!(page.contains(&table(&seen)), "docs/waiting.md has another table than\n{}", table(&seen));
        let picture = include_str!("../../../../docs/images/waiting.svg");
        let drawn = picture::figure(&seen).svg().expect("a picture");
        assert!(picture == drawn, "run this program with docs/images/waiting.svg, and look at it");
    }
}
