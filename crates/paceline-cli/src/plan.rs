//! `paceline plan`: how long the retries of an item and of a run may take. Arithmetic alone: nothing is sent or simulated.

use std::fmt::Write as _;
use std::time::Duration;

use paceline_core::{Backoff, Growth, Jitter};
use serde_json::{Value, json};

use crate::args::{as_flags, count, duration};
use crate::exit::{Failure, Status};
use crate::{output, text};

/// `paceline plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = DIFFERS)]
pub(crate) struct Args {
    /// Retries of an item after failures, so at most 1 + N tries
    #[arg(long, value_name = "N", default_value_t = 3)]
    max_retries: u32,
    /// The wait before the first retry
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    first_delay: Duration,
    /// Factor by which each wait is longer than the one before
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    multiplier: f64,
    /// The longest wait
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = duration)]
    cap: Duration,
    /// Items, each of which fails every time
    #[arg(long, value_name = "N", default_value = "1", value_parser = count::<u64>)]
    items: u64,
    /// Time available for the run, such as the days until certificates expire
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    window: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const DIFFERS: &str = "\
The defaults are those of `paceline tasks`. For a job under an API's rate limits see `paceline sim plan`.";

/// More retries than this rarely help an item, and make its failure known late.
const MANY_RETRIES: u32 = 5;

/// Attempts that are listed, in text and JSON alike.
const LISTED: u32 = 1_000;

/// Attempts that people are shown.
const SHOWN: usize = 20;

/// Prints the attempts, the worst case, and what is to be thought about.
///
/// # Errors
/// Refuses delays that make no sense together.
pub(crate) fn command(args: &Args) -> Result<Status, Failure> {
    let plan = Plan::of(args)?;
    output::print(|out| match args.json {
        true => writeln!(out, "{}", plan.json()),
        false => out.write_all(plan.text(args).as_bytes()),
    })?;
    Ok(Status::Success)
}

/// The worst case: every try fails at once, and every wait has its full length.
#[derive(Debug, PartialEq)]
struct Plan {
    attempts: Vec<Attempt>,
    /// Attempts that are not listed.
    unlisted: u32,
    item: Duration,
    run: Duration,
    warnings: Vec<String>,
}

/// A try, and the wait before it.
#[derive(Debug, PartialEq)]
struct Attempt {
    number: u64,
    delay: Duration,
    cumulative: Duration,
}

impl Plan {
    fn of(args: &Args) -> Result<Self, Failure> {
        let Args { max_retries, first_delay, multiplier, cap, items, window, .. } = *args;
        let backoff =
            Backoff { growth: Growth::Exponential { base: first_delay, multiplier, cap }, jitter: Jitter::None };
        backoff.check().map_err(|error| Failure::refused(as_flags(&error)))?;
        let listed = max_retries.min(LISTED);
        let mut item = Duration::ZERO;
        let mut attempts = vec![Attempt { number: 1, delay: Duration::ZERO, cumulative: item }];
        for retry in 0..listed {
            let delay = backoff.capped(retry);
            item = item.saturating_add(delay);
            attempts.push(Attempt { number: u64::from(retry) + 2, delay, cumulative: item });
        }
        let unlisted = max_retries - listed;
        item = item.saturating_add(sum(&backoff, listed, max_retries));
        let run = times(item, items);
        let warnings = warnings(max_retries, item, run, window);
        Ok(Self { attempts, unlisted, item, run, warnings })
    }

    fn json(&self) -> Value {
        let attempts: Vec<Value> = self
            .attempts
            .iter()
            .map(|Attempt { number, delay, cumulative }| {
                json!({ "attempt": number, "delay_s": seconds(*delay), "cumulative_s": seconds(*cumulative) })
            })
            .collect();
        json!({
            "attempts": attempts,
            "attempts_unlisted": self.unlisted,
            "worst_case_item_s": seconds(self.item),
            "worst_case_run_s": seconds(self.run),
            "worst_case_run_together_s": seconds(self.item),
            "warnings": self.warnings,
        })
    }

    fn text(&self, args: &Args) -> String {
        let mut text = "attempt       delay  cumulative\n".to_owned();
        let row = |attempt: &Attempt| {
            let Attempt { number, delay, cumulative } = attempt;
            let time = |time: Duration| if time.is_zero() { "-".to_owned() } else { text::duration(time) };
            format!("{number:>7} {:>11} {:>11}\n", time(*delay), time(*cumulative))
        };
        self.attempts.iter().take(SHOWN).for_each(|attempt| text += &row(attempt));
        let more = self.attempts.len().saturating_sub(SHOWN) as u64 + u64::from(self.unlisted);
        if more > 0 {
            writeln!(text, "    ... and {}", text::counted(more, "more attempt")).expect("a string takes everything");
        }
        text += &format!("\nat worst  {} for an item\n", text::spans(self.item));
        if args.items > 1 {
            let items = text::counted(args.items, "item");
            text += &format!("          {} for {items}, one after the other\n", text::spans(self.run));
            text += &format!("          {} if other items run while one waits\n", text::spans(self.item));
        }
        self.warnings.iter().for_each(|warning| text::wrapped(&mut text, "warning: ", warning));
        text
    }
}

/// Waits that are longer together are for a server that may be away for hours.
const HOURS: Duration = Duration::from_secs(6 * 3_600);

/// How long `tasks run` tries an item by default.
const A_DAY: Duration = Duration::from_secs(86_400);

fn warnings(max_retries: u32, item: Duration, run: Duration, window: Option<Duration>) -> Vec<String> {
    let mut warnings = Vec::new();
    // Receivers of webhooks, say, may be away for a day.
    if max_retries > MANY_RETRIES && item < HOURS {
        warnings.push(format!(
            "{max_retries} retries are more than {MANY_RETRIES}: an item that still fails by then seldom succeeds, and \
             you learn of it late"
        ));
    }
    if item > A_DAY {
        let days = item.as_secs().div_ceil(A_DAY.as_secs());
        warnings.push(format!(
            "`tasks run` gives an item up 24 h after its first try, unless --deadline {days}d says otherwise"
        ));
    }
    let Some(window) = window else { return warnings };
    let end = text::duration(window);
    if item > window {
        warnings.push(format!("an item may take {}, but the window ends after {end}", text::duration(item)));
    } else if run > window {
        warnings.push(format!(
            "one after the other the items may take {}, but the window ends after {end}; in a store, waiting items do \
             not hold up others",
            text::duration(run)
        ));
    }
    warnings
}

/// The waits before retries `from` to `to`: from the cap on all of them are the same.
fn sum(backoff: &Backoff, from: u32, to: u32) -> Duration {
    let mut sum = Duration::ZERO;
    for retry in from..to {
        let delay = backoff.capped(retry);
        if delay == backoff.cap() || delay == backoff.capped(retry.saturating_add(1)) {
            return sum.saturating_add(times(delay, u64::from(to - retry)));
        }
        sum = sum.saturating_add(delay);
    }
    sum
}

fn times(duration: Duration, times: u64) -> Duration {
    let nanos = duration.as_nanos().saturating_mul(u128::from(times));
    u64::try_from(nanos / 1_000_000_000)
        .map_or(Duration::MAX, |seconds| Duration::new(seconds, (nanos % 1_000_000_000) as u32))
}

/// Milliseconds are enough, and a whole number is shown as one.
fn seconds(duration: Duration) -> Value {
    match duration.subsec_millis() {
        0 => duration.as_secs().into(),
        _ => ((duration.as_secs_f64() * 1e3).round() / 1e3).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        <Line as clap::Parser>::parse_from(std::iter::once("plan").chain(line.split_whitespace())).args
    }

    fn plan(line: &str) -> Plan {
        Plan::of(&args(line)).expect(line)
    }

    #[test]
    fn ten_retries_from_a_minute_are_2520_s_for_an_item_and_7_h_for_ten() {
        let ten = plan("--max-retries 10 --first-delay 60s --multiplier 2 --cap 300s --items 10 --window 30d");
        let delays: Vec<u64> = ten.attempts.iter().map(|attempt| attempt.delay.as_secs()).collect();
        assert_eq!(delays, [0, 60, 120, 240, 300, 300, 300, 300, 300, 300, 300]);
        assert_eq!((ten.item.as_secs(), ten.run.as_secs()), (2_520, 7 * 3_600));
        assert_eq!(ten.attempts.last().map(|attempt| attempt.cumulative), Some(ten.item));
        assert_eq!(ten.warnings.len(), 1, "{:?}", ten.warnings);
        assert_eq!(plan("--max-retries 3 --first-delay 60s").item.as_secs(), 420);
        assert_eq!(plan("").item.as_secs(), 5 + 10 + 20);
    }

    #[test]
    fn the_window_is_compared_with_the_item_and_with_the_run() {
        let warnings = |line: &str| plan(line).warnings.join("; ");
        assert_eq!(warnings("--items 10 --window 350s"), "");
        assert!(warnings("--items 10 --window 349s").starts_with("one after the other the items may take 5m 50s, "));
        assert!(warnings("--items 10 --window 34s").starts_with("an item may take 35s, but the window ends after 34s"));
        assert!(warnings("--max-retries 6").starts_with("6 retries are more than 5"));
    }

    #[test]
    fn huge_numbers_are_added_up_all_the_same() {
        let max = u32::MAX;
        let huge = plan(&format!("--max-retries {max} --cap 366d --items {}", 1_000_000_000_000_000_u64));
        assert_eq!((huge.attempts.len(), huge.unlisted), (1_001, max - 1_000));
        assert!(huge.item > Duration::from_secs(u64::from(max) * 86_400), "{:?}", huge.item);
        assert_eq!(huge.run, Duration::MAX);
        let same = plan(&format!("--max-retries {max} --multiplier 1 --first-delay 2s"));
        assert_eq!(same.item.as_secs(), 2 * u64::from(max));
        let text = huge.text(&args("--items 7"));
        assert!(text.lines().count() < 30 && text.lines().all(|line| line.len() <= 80), "{text}");
    }

    #[test]
    fn delays_that_make_no_sense_are_refused() {
        for line in ["--first-delay 0s", "--first-delay 10m", "--multiplier 0.5", "--multiplier NaN"] {
            assert!(Plan::of(&args(line)).is_err(), "{line}");
        }
    }
}
