//! The place of an upstream in a fleet, as numbers.

use paceline::{FleetSnapshot, Instant, ScopeSnapshot};
use prometheus::{GaugeVec, Opts};

/// A series for each upstream in a fleet.
pub(super) struct FleetGauges {
    away: GaugeVec,
    members: GaugeVec,
    lease: GaugeVec,
    reads: GaugeVec,
}

impl FleetGauges {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let gauge = |name, help: &str| GaugeVec::new(Opts::new(name, help), &["upstream"]);
        Ok(Self {
            away: gauge(
                "paceline_fleet_away",
                "Of an upstream in a fleet: 1 while nothing leaves because the store of the fleet gives no share: it does not answer, \
                 divides other limits, or does not know yet what was sent before; else 0",
            )?,
            members: gauge(
                "paceline_fleet_members",
                "Of an upstream in a fleet: the processes that the store knew last, this one included",
            )?,
            lease: gauge(
                "paceline_fleet_lease_seconds",
                "Of an upstream in a fleet: for how long this process may go on without the store; 0 without a lease",
            )?,
            reads: gauge(
                "paceline_fleet_reads",
                "Of an upstream in a fleet: the scopes whose learnt rate this process reads, that is, decides for all; 0 where \
                 another does",
            )?,
        })
    }

    pub(super) fn all(&self) -> [&GaugeVec; 4] {
        let Self { away, members, lease, reads } = self;
        [away, members, lease, reads]
    }

    pub(super) fn look_at(&self, upstream: &str, account: &ScopeSnapshot, now: Instant) {
        let Some(FleetSnapshot { members, lease_ends, reads, .. }) = account.fleet.as_deref() else { return };
        let set = |gauge: &GaugeVec, value: f64| gauge.with_label_values(&[upstream]).set(value);
        set(&self.away, if account.lacks_its_share() { 1.0 } else { 0.0 });
        set(&self.members, *members as f64);
        set(&self.lease, lease_ends.map_or(0.0, |ends| ends.saturating_since(now).as_secs_f64()));
        set(&self.reads, *reads as f64);
    }
}
