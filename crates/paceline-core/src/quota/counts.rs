//! What the configured limits of one scope have counted, outside of a pacer.

use super::{Counter, Quotas};
use crate::admit::Admit;
use crate::background::Ask;
use crate::config::Limits;
use crate::cost::Cost;
use crate::error::ConfigError;
use crate::quota::BucketLevel;
use crate::time::Instant;

/// The configured limits of one scope and what they have counted, without a pacer: for a program with many keys, most of which
/// neither wait nor learn. A pacer goes on with them ([`Pacer::scope_from`](crate::Pacer::scope_from)).
#[derive(Clone, Debug)]
pub struct LimitCounts(pub(crate) Quotas);

impl LimitCounts {
    /// Nothing is counted yet.
    ///
    /// # Errors
    /// The first invalid limit.
    pub fn new(limits: &Limits) -> Result<Self, ConfigError> {
        Quotas::new(limits).map(Self)
    }

    /// Takes one request; if it does not fit yet, the answer says when, and nothing has changed.
    pub fn try_take(&mut self, now: Instant) -> Admit {
        let cost = Cost::request();
        let admit = self.0.admit(now, &Ask::of(&cost));
        if admit.is_now() {
            self.0.take(now, now, &cost);
        }
        admit
    }

    /// Whether no unit counts any more: the key can be forgotten.
    pub fn is_unused(&self, now: Instant) -> bool {
        self.0.is_unused(now)
    }

    /// The level of the bucket, where the limits are one; else of a full one.
    pub fn level(&self) -> BucketLevel {
        match &*self.0.counters {
            [(_, Counter::Bucket(bucket))] => bucket.level(),
            _ => BucketLevel::default(),
        }
    }

    /// Sets the level of the bucket, where the limits are one.
    #[must_use]
    pub fn with_level(mut self, level: BucketLevel) -> Self {
        if let [(_, Counter::Bucket(bucket))] = &mut *self.0.counters {
            bucket.set_level(level);
        }
        self
    }
}
