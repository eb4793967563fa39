//! What a host knows of the whole job, and people are told.

use std::time::Duration;

use paceline::Instant;
use paceline_store::blocks::JobStatus;
use serde_json::{Value, json};

use crate::exit::Status;
use crate::other_hosts::pulse::{BEAT, LEASE};
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
    /// For how long each other host has said nothing that has blocks which are not over: the longest first.
    pub(crate) silences: Vec<Duration>,
}

impl Whole {
    /// As the host of that name sees it.
    pub(crate) fn of(status: &JobStatus, me: &str) -> Self {
        let at_work = status.workers.iter().filter(|worker| worker.blocks > 0 && worker.name != me);
        let mut silences: Vec<_> = at_work.map(|worker| worker.silence).collect();
        silences.sort_unstable_by(|a, b| b.cmp(a));
        Self {
            silences,
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

    /// The same, where so many have ended here, of which the store may not know yet.
    pub(crate) fn ended_with(&self, here: u64) -> u64 {
        self.ended().max(here)
    }

    /// How far all hosts are, for a status line.
    pub(crate) fn progress(&self, here: u64) -> String {
        let [ended, lines] = [self.ended_with(here), self.lines].map(text::count);
        format!("{ended}/{lines} done on {}", text::counted(self.hosts, "worker"))
    }

    /// What a host without a line of its own waits for.
    pub(crate) fn wait(&self) -> String {
        if !self.complete {
            return format!(
                "waiting for the rest of the input: {} are in the store; the worker that has it goes on with it",
                text::counted(self.lines, "line")
            );
        }
        match self.hosts.saturating_sub(1) {
            0 => format!(
                "waiting for {} of workers that do not answer: this one takes them after {} s of that",
                text::counted(self.left(), "line"),
                LEASE.as_secs()
            ),
            others => {
                let lines = text::counted(self.left(), "line");
                format!("waiting for {lines} at {}", text::counted(others, "other worker"))
            }
        }
    }
}

/// How a host left its job.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobEnd {
    /// The address of the store, as a word of a command.
    pub(crate) store: String,
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
        let mut lines = vec![format!("this worker: {} of {}", text::count(here), text::counted(whole.lines, "line"))];
        if !whole.complete {
            lines.push(format!(
                "the input is not all in the store: {} are; the same command with the input goes on with it",
                text::counted(whole.lines, "line")
            ));
        }
        lines.extend(twice(whole.again));
        if whole.failed > 0 && !self.is_left() {
            lines.push(format!(
                "{} of the job failed, at this worker or another, and collect tells why; once the cause is fixed, the same command with \
                 --retry-failed at one worker sends {} again",
                text::counted(whole.failed, "line"),
                if whole.failed == 1 { "it" } else { "them" },
            ));
        }
        if self.unsent {
            lines.push(
                "results of this worker are in its journal and not in the store yet: the same command hands them in"
                    .to_owned(),
            );
        }
        lines.push(format!(
            "all results, in the order of the input: paceline collect --store {} --job {} -o all.jsonl",
            self.store,
            text::shell_word(&whole.name)
        ));
        lines
    }

    /// For people: the lines without a result that are not this host's, which has so many itself.
    pub(crate) fn elsewhere(&self, here: u64) -> Option<String> {
        let lines = self.whole.left().saturating_sub(here);
        if lines == 0 || self.unsent || !self.whole.complete {
            return None;
        }
        let silences = &self.whole.silences;
        let lease = LEASE.as_secs();
        let heard = |silence: &Duration| {
            let silence = text::duration(Duration::from_secs(silence.as_secs()));
            format!("last heard of {silence} ago: a worker takes its lines once it has waited {lease} s for a word")
        };
        let at = match silences.first().map(heard) {
            None => "at no worker: the next run takes them".to_owned(),
            Some(heard) if silences.len() == 1 => format!("at another worker, {heard}"),
            Some(heard) => format!("at {} other workers, one of them {heard}", silences.len()),
        };
        Some(format!("not finished: {} {at}", text::count(lines)))
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
            "at most {} of the job may have been called twice, and be billed twice: a worker was lost that had begun with them, or with their block",
            text::counted(lines, "line")
        )
    })
}

/// Whether a host that has said nothing for so long may be lost: it speaks every few seconds.
fn is_long(silence: Duration) -> bool {
    silence >= 2 * BEAT
}

/// What the status line of a host says of the store and of the job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostView {
    pub(crate) whole: Option<Whole>,
    /// For how long the store has not answered, where that can be felt.
    pub(crate) away: Option<Duration>,
    /// Until when it is known that there are no lines for this host: it looked after that, and all others that have some have
    /// spoken after it; by the clock of its limiter.
    pub(crate) found_none: Option<Instant>,
    /// Where it found none, for how long one of the others that have some has said nothing.
    pub(crate) silence: Option<Duration>,
}

impl HostView {
    /// What a host waits for that has so many lines at hand: none of its own, those of another that may be lost where it
    /// `may_take` them at once, or the store.
    pub(crate) fn wait(&self, pending: u64, may_take: bool) -> Option<String> {
        if let Some(away) = self.away {
            let calls = if away < LEASE { "" } else { "no call leaves before it does, and " };
            let away = text::duration(Duration::from_secs(away.as_secs()));
            return Some(format!("the store has not answered for {away}: {calls}results wait in the journal"));
        }
        if let Some(silence) = self.silence.filter(|silence| may_take && is_long(*silence)) {
            let silence = text::duration(Duration::from_secs(silence.as_secs()));
            return Some(format!(
                "waiting for the lines of a worker that has said nothing for {silence}: this one takes them once it has waited {} s for a word",
                LEASE.as_secs()
            ));
        }
        self.whole.as_ref().filter(|whole| pending == 0 && !whole.has_ended()).map(Whole::wait)
    }
}
