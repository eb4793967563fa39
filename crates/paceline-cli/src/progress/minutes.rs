//! What happened in the present minute, until the journal has it.

use std::time::Duration;

use paceline::Snapshot;
use paceline_core::{Class, Dimension, Timestamp};
use paceline_providers::Usage;
use paceline_store::{CallTotals, Minute};

/// Gathers until it is taken, twice a second.
#[derive(Debug, Default)]
pub(crate) struct Minutes(Vec<Minute>);

impl Minutes {
    /// A call that left is over.
    pub(crate) fn called(&mut self, now: Timestamp, adds: &CallTotals, class: Class, usage: Usage) {
        let minute = self.at(now);
        let success = u64::from(class == Class::Success);
        minute.sends += adds.calls;
        minute.successes += success;
        minute.throttled += adds.throttled;
        minute.resends += adds.resends;
        minute.resends_succeeded += adds.resends.min(success);
        minute.tokens_in += usage.prompt_tokens();
        minute.tokens_out += usage.output_tokens;
    }

    /// An item is to go again after that long.
    pub(crate) fn delayed(&mut self, now: Timestamp, delay: Duration) {
        self.at(now).delayed(delay);
    }

    /// What has gathered, with the limit in force.
    pub(crate) fn take(&mut self, view: &Snapshot) -> Vec<Minute> {
        let mut minutes = std::mem::take(&mut self.0);
        if let Some(last) = minutes.last_mut() {
            last.limit = limit(view);
        }
        minutes
    }

    fn at(&mut self, now: Timestamp) -> &mut Minute {
        let minute = Minute::of(now);
        if self.0.last().is_none_or(|last| last.number != minute.number) {
            self.0.push(minute);
        }
        self.0.last_mut().expect("one was just pushed if there was none")
    }
}

/// What the busiest scope's server announced as its limit of requests; where it announced none, the rate that the scope has
/// learnt, or the calls in flight that all scopes together may have.
fn limit(view: &Snapshot) -> Option<(u64, String)> {
    let busiest = view.scopes.iter().max_by_key(|scope| scope.totals.sends)?;
    let announced = busiest.announced.iter().find(|quota| quota.dimension == Dimension::Requests);
    let learnt = busiest.estimate.as_ref().filter(|belief| belief.cap.is_none());
    Some(match (announced, learnt) {
        (Some(quota), _) => (quota.limit, "announced requests".to_owned()),
        (None, Some(belief)) => ((60.0 * belief.rate).round() as u64, "learnt calls per minute".to_owned()),
        (None, None) => {
            let places = view.scopes.iter().map(|scope| u64::from(scope.concurrency.current_limit)).sum();
            (places, "calls in flight".to_owned())
        }
    })
}
