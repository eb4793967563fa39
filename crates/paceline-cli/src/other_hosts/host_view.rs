//! What a host knows of the whole job, and people are told.

use std::time::Duration;

use paceline::Instant;
use paceline_store::blocks::JobStatus;
use serde_json::{Value, json};

use crate::exit::Status;
use crate::other_hosts::pulse::LEASE;
use crate::text;

/// The whole job at one moment, over all hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) name: String,
    /// Lines of the input, as far as they are in the store.
    pub(crate) lines: u64,
    /// Whether these are all.
    pub(crate) complete: bool,
    pub(crate) ok: u64,
    pub(crate) failed: u64,
    /// Lines that were sent though a lost host may have sent them.
    pub(crate) again: u64,
    /// Hosts that work on it.
    pub(crate) hosts: u64,
}

impl Whole {
    pub(crate) fn of(status: &JobStatus) -> Self {
        Self {
            name: status.name.clone(),
            lines: status.lines,
            complete: status.complete,
            ok: status.ok,
            failed: status.failed,
            again: status.again,
            hosts: status.workers.iter().filter(|worker| worker.lease.is_some()).count() as u64,
        }
    }

    /// Lines with a result.
    pub(crate) const fn ended(&self) -> u64 {
        self.ok + self.failed
    }

    /// Lines without one.
    pub(crate) const fn left(&self) -> u64 {
        self.lines.saturating_sub(self.ended())
    }

    /// Whether others have some, or will have, where so many are at this host.
    pub(crate) const fn has_more_than(&self, here: u64) -> bool {
        !self.complete || self.left() > here
    }

    const fn has_ended(&self) -> bool {
        self.complete && self.left() == 0
    }

    /// How far all hosts are, for a status line.
    pub(crate) fn progress(&self) -> String {
        let [ended, lines] = [self.ended(), self.lines].map(text::count);
        format!("{ended}/{lines} done on {}", text::counted(self.hosts, "host"))
    }

    /// What a host without a line of its own waits for.
    pub(crate) fn wait(&self) -> String {
        if !self.complete {
            return format!(
                "waiting for the rest of the input: {} are in the store; the host that has it goes on with it",
                text::counted(self.lines, "line")
            );
        }
        match self.hosts.saturating_sub(1) {
            0 => format!(
                "waiting for {} of hosts that do not answer: this one takes them after {} s of that",
                text::counted(self.left(), "line"),
                LEASE.as_secs()
            ),
            others => {
                let lines = text::counted(self.left(), "line");
                format!("waiting for {lines} at {}", text::counted(others, "other host"))
            }
        }
    }
}

/// How a host left its job.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobEnd {
    /// As it was heard last.
    pub(crate) whole: Whole,
    /// Lines of which this run's result was kept.
    pub(crate) kept: u64,
    /// Results stand in the journal that are not known to be in the store.
    pub(crate) unsent: bool,
}

impl JobEnd {
    /// How the whole job stands.
    pub(crate) const fn status(&self) -> Status {
        Status::of(self.is_left(), self.whole.failed, self.whole.ok)
    }

    /// Whether any host has something to do.
    pub(crate) const fn is_left(&self) -> bool {
        !self.whole.has_ended() || self.unsent
    }

    /// For people: how the job stands, and what became of the work of this host. `here`: the lines that have ended on it.
    pub(crate) fn lines(&self, here: u64) -> Vec<String> {
        let whole = &self.whole;
        let mut lines = vec![format!("this host: {} of {}", text::count(here), text::counted(whole.lines, "line"))];
        if !whole.complete {
            lines.push(format!(
                "the input is not all in the store: {} are; the same command with the input goes on with it",
                text::counted(whole.lines, "line")
            ));
        }
        lines.extend(twice(whole.again));
        if whole.failed > 0 && !self.is_left() {
            lines.push(format!(
                "{} of the job failed, on this host or another, and collect tells why; once the cause is fixed, the same command with \
                 --retry-failed on one host sends {} again",
                text::counted(whole.failed, "line"),
                if whole.failed == 1 { "it" } else { "them" },
            ));
        }
        if self.unsent {
            lines.push(
                "results of this host are in its journal and not in the store yet: the same command hands them in"
                    .to_owned(),
            );
        }
        lines.push(format!(
            "all results, in the order of the input: paceline collect --store URL --job {} -o all.jsonl",
            text::shell_word(&whole.name)
        ));
        lines
    }

    /// For people: the first line.
    pub(crate) fn headline(&self) -> String {
        let Whole { name, lines, ok, failed, .. } = &self.whole;
        format!(
            "{}  job {}, {}: {} succeeded, {} failed, {} not finished\n",
            self.status(),
            text::printable(name),
            text::counted(*lines, "line"),
            text::count(*ok),
            text::count(*failed),
            text::count(self.whole.left()),
        )
    }

    /// For scripts.
    pub(crate) fn json(&self) -> Value {
        let whole = &self.whole;
        json!({
            "name": whole.name,
            "lines": whole.lines,
            "complete": whole.complete,
            "succeeded": whole.ok,
            "failed": whole.failed,
            "left": whole.left(),
            "hosts": whole.hosts,
            "kept": self.kept,
            "unsent": self.unsent,
            "maybe_twice": whole.again,
        })
    }
}

/// How many lines of a job may have been called twice, if any.
pub(crate) fn twice(lines: u64) -> Option<String> {
    (lines > 0).then(|| {
        format!(
            "at most {} of the job may have been called twice, and be billed twice: a host was lost that had begun with them, or with their block",
            text::counted(lines, "line")
        )
    })
}

/// What the status line of a host says of the store and of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostView {
    pub(crate) whole: Option<Whole>,
    /// For how long the store has not answered, where that can be felt.
    pub(crate) away: Option<Duration>,
    /// When this host began to look for lines that it could send, and found none; by the clock of its limiter.
    pub(crate) found_none: Option<Instant>,
}

impl HostView {
    /// What a host waits for that has so many lines at hand: none of its own, or the store.
    pub(crate) fn wait(&self, pending: u64) -> Option<String> {
        if let Some(away) = self.away {
            let calls = if away < LEASE { "" } else { "no call leaves before it does, and " };
            let away = text::duration(Duration::from_secs(away.as_secs()));
            return Some(format!("the store has not answered for {away}: {calls}results wait in the journal"));
        }
        self.whole.as_ref().filter(|whole| pending == 0 && !whole.has_ended()).map(Whole::wait)
    }
}
