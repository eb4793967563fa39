//! What the next call of a pacer waits for, and how long.

use std::mem::discriminant;
use std::time::Duration;

use paceline_core::{Instant, WaitCause};
use serde::Serialize;

/// What calls wait for, and how long.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wait {
    /// The rule, for people.
    #[serde(rename = "for")]
    pub reason: String,
    /// How long, in seconds.
    pub seconds: f64,
}

/// Time, shared out among the rules that made a call wait.
#[derive(Debug, Default)]
pub(super) struct Waits {
    rows: Vec<(Option<WaitCause>, Duration)>,
    /// Since when it is waited, and the row of the rule.
    since: Option<(Instant, usize)>,
    last_sent: Option<Instant>,
    longest: Duration,
}

impl Waits {
    /// A call left.
    pub(super) fn sent(&mut self, now: Instant) {
        self.until(now);
        let last = self.last_sent.replace(now).unwrap_or(Instant::ZERO);
        self.longest = self.longest.max(now - last);
    }

    /// From now on the next call waits for that rule; for none of them when there is none left to send.
    pub(super) fn wait(&mut self, now: Instant, rule: Option<WaitCause>) {
        self.until(now);
        let row = self.rows.iter().position(|(known, _)| same(known, &rule)).unwrap_or_else(|| {
            self.rows.push((rule, Duration::ZERO));
            self.rows.len() - 1
        });
        self.since = Some((now, row));
    }

    /// The longest time between two calls.
    pub(super) const fn longest(&self) -> Duration {
        self.longest
    }

    /// All of the time up to now, longest wait first.
    pub(super) fn rows(&mut self, now: Instant) -> Vec<Wait> {
        self.until(now);
        let mut rows: Vec<_> = self.rows.iter().filter(|(_, time)| !time.is_zero()).collect();
        rows.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        rows.into_iter().map(|(rule, time)| Wait { reason: reason(rule), seconds: time.as_secs_f64() }).collect()
    }

    fn until(&mut self, now: Instant) {
        if let Some((since, row)) = self.since.take() {
            self.rows[row].1 += now - since;
        }
    }
}

/// The name of a rule: limits differ from each other; their remaining units and the present value of a learnt delay or rate do
/// not matter.
fn same(a: &Option<WaitCause>, b: &Option<WaitCause>) -> bool {
    match (a, b) {
        (Some(a @ WaitCause::Quota { .. }), Some(b)) => a == b,
        (
            Some(WaitCause::ServerLimit { dimension: a, limit, .. }),
            Some(WaitCause::ServerLimit { dimension: b, limit: other, .. }),
        ) => (a, limit) == (b, other),
        (Some(a), Some(b)) => discriminant(a) == discriminant(b),
        (None, None) => true,
        _ => false,
    }
}

fn reason(rule: &Option<WaitCause>) -> String {
    match rule {
        None => "the last answers".to_owned(),
        Some(WaitCause::NotBefore) => "the delay before a retry".to_owned(),
        Some(WaitCause::Spacing { .. }) => "the delay between calls".to_owned(),
        Some(WaitCause::Rate { .. }) => "the learnt rate".to_owned(),
        Some(WaitCause::ServerLimit { dimension, limit, .. }) => format!("the server's limit of {limit} {dimension}"),
        Some(rule) => rule.to_string(),
    }
}
