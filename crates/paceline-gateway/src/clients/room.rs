//! Room for a client's requests under the limits of its own.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use paceline::{Admit, Cost, Dimension, Error, Limiter, MaxWait, Quota, QuotaSnapshot, WaitCause, Within};
use paceline_core::format_duration;
use paceline_providers::Untold;
use tokio::time::timeout;

use super::Client;
use crate::refusal::{LEAST, Refusal, of_estimate};
use crate::spent::Spent;

/// The scope of all that a client sends, in the limiter of its own: whatever model and path it names, what answers had counts for
/// the next call.
const SCOPE: &str = "client";

impl Client {
    /// Whether one of its limits is in money.
    pub(crate) const fn counts_money(&self) -> bool {
        self.counts_money
    }

    /// Room under its own limits for a call that arrived then, once there is some; none where it has none.
    pub(crate) async fn room(
        &self,
        (cost, untold): (&Cost, Untold),
        arrival: Option<u64>,
        priority: i32,
        left: Duration,
    ) -> Result<Option<Arc<Spent>>, Refusal> {
        let Some(limiter) = &self.limiter else { return Ok(None) };
        let request = paceline::Request { arrival, ..request(limiter, cost, priority) };
        let too_long = |cause: &WaitCause, wait: Duration| self.too_long(cost, cause, wait);
        self.refuse_long_wait(limiter, &request, left)?;
        let refused = match timeout(left, limiter.acquire_within(request.clone(), MaxWait::Known(left))).await {
            Ok(Ok(Within::Granted(permit))) => {
                // It waits for its upstream.
                permit.leaves_later();
                let (key, uses) = (Arc::clone(&self.key), Arc::clone(&self.uses));
                return Ok(Some(Arc::new(Spent::new(permit, cost, untold, key, uses))));
            }
            Ok(Ok(Within::Deferred { until, reason })) => {
                let wait = until - limiter.now();
                too_long(&reason.cause, wait).known(wait)
            }
            Ok(Err(error @ Error::TooLarge(_))) => {
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("the key {}: {error}", self.name))
            }
            Ok(Err(error)) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "closed", error.to_string()),
            Err(_) => match limiter.admit(&request) {
                Admit::Now => too_long(&WaitCause::Queue, LEAST),
                Admit::At { at, cause } => too_long(&cause, at - limiter.now()),
                Admit::OnRelease { cause } => too_long(&cause, LEAST),
            },
        };
        Err(refused)
    }

    /// Whether a request of which nothing is known but that it is one would wait for its own limits no longer than is left.
    pub(crate) fn may_wait(&self, priority: i32, left: Duration) -> Result<(), Refusal> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        self.refuse_long_wait(limiter, &request(limiter, &Cost::request(), priority), left)
    }

    /// The requests ahead are no known wait, but how long they will take can be told, before this one is among them. What it
    /// would wait for ahead of them all is known. Of tokens those under way may give some back.
    fn refuse_long_wait(&self, limiter: &Limiter, request: &paceline::Request, left: Duration) -> Result<(), Refusal> {
        let Admit::At { at, cause } = limiter.admit(request) else { return Ok(()) };
        let now = limiter.now();
        if at - now <= left {
            return Ok(());
        }
        let first = paceline::Request { priority: i32::MAX, ..request.clone() };
        match limiter.admit(&first) {
            Admit::At { at, cause: cause @ WaitCause::Quota { .. } } if at - now > left => {
                if counts_tokens(&cause) && limiter.snapshot().account.concurrency.in_flight > 0 {
                    return Ok(());
                }
                Err(self.too_long(&request.cost, &cause, at - now).known(at - now))
            }
            _ => Err(self.too_long(&request.cost, &cause, at - now)),
        }
    }

    /// The limit that its next request waits for, and for how long, where that is known.
    pub(crate) fn waits_for(&self) -> Option<(String, Option<Duration>)> {
        let limiter = self.limiter.as_ref()?;
        let (cause, until) = limiter.snapshot().account.waits_for?;
        Some((self.limit(&cause), until.map(|until| until - limiter.now())))
    }

    /// What a request of its own waits for: of its limits the one that is named, else that of which the least is left.
    fn limit(&self, cause: &WaitCause) -> String {
        let mut quotas = self.limiter.iter().flat_map(|limiter| limiter.snapshot().account.quotas).collect::<Vec<_>>();
        let left = |quota: &QuotaSnapshot| quota.remaining as f64 / quota.limit.max(1) as f64;
        quotas.sort_by(|a, b| left(a).total_cmp(&left(b)));
        match (cause, &self.spaced, quotas.first()) {
            (WaitCause::Burst, Some((quota, _)), _) => self.own_limit(&quota.dimension, quota.limit, quota.window),
            (WaitCause::Queue, _, Some(QuotaSnapshot { dimension, limit, window: Some(window), .. }))
            | (WaitCause::Quota { dimension, limit, window }, ..) => self.own_limit(dimension, *limit, *window),
            _ => cause.to_string(),
        }
    }

    /// One of its limits, and how its requests are spaced under that: else the next one would seem to come too late.
    fn own_limit(&self, dimension: &Dimension, limit: u64, window: Duration) -> String {
        let is_it = |quota: &Quota| quota.dimension == *dimension && (quota.limit, quota.window) == (limit, window);
        let spaced = self.spaced.as_ref().filter(|(quota, burst)| is_it(quota) && *burst < limit);
        let gap = spaced.map(|_| format!(", one each {}", format_duration(window.div_f64(limit as f64))));
        format!("the limit of this key, {}{}", dimension.per(limit, window), gap.unwrap_or_default())
    }

    /// How much is used of a limit in money.
    fn spent_of(&self, cause: &WaitCause) -> String {
        let WaitCause::Quota { dimension: dimension @ Dimension::Money, limit, window } = cause else {
            return String::new();
        };
        let mut quotas = self.limiter.iter().flat_map(|limiter| limiter.snapshot().account.quotas);
        let is_it =
            |quota: &QuotaSnapshot| (&quota.dimension, quota.limit, quota.window) == (dimension, *limit, Some(*window));
        let used = quotas.find(is_it).map(|quota| dimension.amount(quota.used));
        used.map(|used| format!(" ({used} of it is used)")).unwrap_or_default()
    }

    fn too_long(&self, cost: &Cost, cause: &WaitCause, wait: Duration) -> Refusal {
        let (name, time, limit) = (&self.name, format_duration(wait), self.limit(cause));
        let (spent, estimate) = (self.spent_of(cause), of_estimate(cost, cause));
        let message = format!(
            "the key {name}: the request must wait {time} more for {limit}{spent}{estimate}, and its deadline is sooner; send it later, or \
             allow more time with the header x-paceline-deadline"
        );
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "wait_too_long", message).after(wait).for_limit(limit)
    }
}

fn request(limiter: &Limiter, cost: &Cost, priority: i32) -> paceline::Request {
    paceline::Request { priority, ..paceline::Request::new(limiter.scope(SCOPE), cost.clone()) }
}

/// Whether a call waits for a limit on tokens or in money, of which those under way may give some back.
const fn counts_tokens(cause: &WaitCause) -> bool {
    matches!(cause, WaitCause::Quota { dimension, .. } if dimension.is_of_tokens())
}
