//! The counters of a job while it runs.

use std::time::Duration;

use paceline::Instant;
use paceline_providers::Usage;
use paceline_store::{Appended, CallTotals, JobCounts};

/// The counters of a job: those of the journal at the start of the run, and what has happened since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Items of the input.
    pub(crate) input: u64,
    pub(crate) succeeded: u64,
    /// Items without an answer, for which the fallback stands in.
    pub(crate) fallback: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) cancelled: u64,
    /// Over all runs of the job.
    pub(crate) totals: CallTotals,
    /// Calls of the runs before this one.
    pub(crate) calls_before: u64,
    /// As answers reported, over all runs of the job.
    pub(crate) tokens_in: u64,
    pub(crate) tokens_out: u64,
    /// Items that wait for a later run, as those of hosts that this one is not for.
    pub(crate) left_out: u64,
    /// Items that ended in this run.
    pub(crate) ended_now: u64,
    /// Answers of this run that ended at the limit on their tokens.
    pub(crate) cut_now: u64,
    /// When a server last answered a call of this run.
    pub(crate) last_answer: Option<Instant>,
    /// How long the successful calls of this run took, in milliseconds. A sample: it stops growing when it is large.
    latencies_ms: Vec<u32>,
}

/// Enough for a median that does not move any more.
const LATENCIES: usize = 65_536;

impl Counters {
    /// The figures at the start of a run.
    pub(crate) fn at_start(counts: &JobCounts) -> Self {
        Self {
            input: counts.input(),
            succeeded: counts.succeeded,
            fallback: counts.fallback,
            failed: counts.failed,
            skipped: counts.skipped,
            cancelled: counts.cancelled,
            totals: counts.totals,
            calls_before: counts.totals.calls,
            tokens_in: counts.tokens_in,
            tokens_out: counts.tokens_out,
            left_out: 0,
            ended_now: 0,
            cut_now: 0,
            last_answer: None,
            latencies_ms: Vec::new(),
        }
    }

    /// Items that have ended, however.
    pub(crate) const fn ended(&self) -> u64 {
        self.succeeded + self.fallback + self.failed + self.skipped + self.cancelled
    }

    /// Items that have not.
    pub(crate) const fn pending(&self) -> u64 {
        self.input.saturating_sub(self.ended())
    }

    /// Items came that were not known at the start.
    pub(crate) const fn grow(&mut self, taken: Appended) {
        self.input += taken.items;
        self.failed += taken.refused;
    }

    /// Items that waited are sent elsewhere.
    pub(crate) const fn shrink(&mut self, items: u64) {
        self.input = self.input.saturating_sub(items);
    }

    /// A call is over.
    pub(crate) const fn add(&mut self, adds: &CallTotals, usage: Usage) {
        self.tokens_in += usage.prompt_tokens();
        self.tokens_out += usage.output_tokens;
        self.totals.calls += adds.calls;
        self.totals.resends += adds.resends;
        self.totals.retries += adds.retries;
        self.totals.throttled += adds.throttled;
        self.totals.abandoned += adds.abandoned;
    }

    /// Adds the calls of this run whose answers the journal could not take, as those that were cut off; returns how many.
    pub(crate) const fn add_unwritten(&self, counts: &mut JobCounts) -> u64 {
        let unwritten = self.totals.calls.saturating_sub(counts.totals.calls);
        if unwritten > 0 {
            counts.totals = CallTotals { abandoned: counts.totals.abandoned + unwritten, ..self.totals };
            (counts.tokens_in, counts.tokens_out) = (self.tokens_in, self.tokens_out);
        }
        unwritten
    }

    pub(crate) fn succeeded(&mut self, latency: Duration) {
        self.succeeded += 1;
        self.ended_now += 1;
        if self.latencies_ms.len() < LATENCIES {
            self.latencies_ms.push(u32::try_from(latency.as_millis()).unwrap_or(u32::MAX));
        }
    }

    pub(crate) const fn fell_back(&mut self) {
        self.fallback += 1;
        self.ended_now += 1;
    }

    pub(crate) const fn failed(&mut self) {
        self.failed += 1;
        self.ended_now += 1;
    }

    /// The mean and the median time of a successful call of this run; none before the first.
    pub(crate) fn latency(&self) -> Option<(Duration, Duration)> {
        let mut sorted = self.latencies_ms.clone();
        sorted.sort_unstable();
        let median = *sorted.get(sorted.len() / 2)?;
        let sum: u64 = sorted.iter().map(|latency| u64::from(*latency)).sum();
        Some((Duration::from_millis(sum / sorted.len() as u64), Duration::from_millis(u64::from(median))))
    }
}
