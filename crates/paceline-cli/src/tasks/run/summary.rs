//! The end of a run: what it did, and where all items stand.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use paceline_store::work::{self, Ended, State, Summary};
use serde_json::{Value, json};

use super::settings::Args;
use crate::exit::{Failure, Status};
use crate::run::seen::again;
use crate::text;

/// A run that is over.
pub(super) struct Ran {
    pub(super) summary: Summary,
    pub(super) elapsed: Duration,
}

/// A place for the summary that cannot be written is told before anything begins.
///
/// # Errors
/// What the file system says.
pub(super) fn try_file(path: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    let tried = std::fs::OpenOptions::new().create(true).append(true).open(path);
    tried.map(drop).map_err(|error| Failure::refused(format!("cannot write the summary {}: {error}", path.display())))
}

impl Ran {
    /// Prints it, and writes it where that is asked for.
    ///
    /// # Errors
    /// None yet: the work is done, whoever does not hear of it.
    pub(super) fn tell(&self, args: &Args, quiet: bool) -> Result<Status, Failure> {
        let json = self.json();
        // Whoever closed a stream early, or took the summary's place away, changes nothing about the items.
        if args.json {
            let _ = writeln!(std::io::stdout(), "{json}");
        } else if !quiet {
            let _ = write!(std::io::stderr(), "{}", self.text());
        }
        if let Some(path) = &args.summary
            && let Err(error) = std::fs::write(path, format!("{json}\n"))
        {
            tracing::error!("cannot write the summary {}: {error}", path.display());
        }
        Ok(self.status())
    }

    fn status(&self) -> Status {
        match self.summary.status() {
            work::Status::Success => Status::Success,
            work::Status::Partial => Status::Partial,
            work::Status::Failed => Status::Failed,
            work::Status::Deferred => Status::Deferred,
        }
    }

    fn deferred(&self) -> u64 {
        [State::Waiting, State::InFlight, State::Deferred].into_iter().map(|state| self.of(state)).sum()
    }

    const fn of(&self, state: State) -> u64 {
        self.summary.counts.of(state)
    }

    /// Why the run ended early, where it did.
    fn stopped(&self) -> Option<&'static str> {
        self.summary.ended.as_str().filter(|_| self.deferred() > 0)
    }

    fn again(&self) -> Option<String> {
        (self.deferred() > 0).then(|| again::command_line(std::env::args_os()))
    }

    fn json(&self) -> Value {
        let summary = &self.summary;
        json!({
            "status": self.status().as_str(),
            "input": summary.counts.total(),
            "succeeded": self.of(State::Succeeded),
            "failed": self.of(State::Failed),
            "skipped": self.of(State::Skipped),
            "cancelled": self.of(State::Cancelled),
            "deferred": self.deferred(),
            "calls": summary.calls,
            "resends": summary.resends,
            "abandoned": summary.abandoned,
            "lost": summary.lost,
            "stopped": self.stopped(),
            "resume": self.again(),
            "seconds": (self.elapsed.as_secs_f64() * 1_000.0).round() / 1_000.0,
        })
    }

    fn text(&self) -> String {
        let summary = &self.summary;
        let mut text = format!(
            "{}  {}: {} succeeded, {} failed, {} skipped, {} cancelled, {} deferred\n",
            self.status(),
            text::counted(summary.counts.total(), "item"),
            text::count(self.of(State::Succeeded)),
            text::count(self.of(State::Failed)),
            text::count(self.of(State::Skipped)),
            text::count(self.of(State::Cancelled)),
            text::count(self.deferred()),
        );
        let mut calls = format!("  {} in {}", tries(summary.calls), text::duration(self.elapsed));
        for (number, what) in [
            (summary.resends, "of items tried before"),
            (summary.abandoned, "given up by us"),
            (summary.lost, "not recorded, because the item was not ours any more"),
        ] {
            if number > 0 {
                calls += &format!(", {} {what}", text::count(number));
            }
        }
        text += &calls;
        text.push('\n');
        if self.deferred() > 0 {
            let why = match summary.ended {
                Ended::Done => "some items are left to the next run",
                Ended::GroupsStopped => "the rest belongs to groups that a person has to see to",
                Ended::MaxWait => "nothing more can begin for as long as --max-wait",
                Ended::MaxDuration => "--max-duration is over",
                Ended::Interrupted => "it was told to end",
            };
            text += &format!("  {why}; go on with:\n  {}\n", again::command_line(std::env::args_os()));
        }
        text
    }
}

fn tries(number: u64) -> String {
    if number == 1 { "1 try".to_owned() } else { format!("{} tries", text::count(number)) }
}
