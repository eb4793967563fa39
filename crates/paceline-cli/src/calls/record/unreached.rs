//! Where calls find no server: a host of many is given up alone, and the run where no host answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use paceline::Instant;
use paceline_providers::table::Scope;
use paceline_store::ClaimedItem;

use super::{Recorded, Recorder, stop_scope};
use crate::calls::item::{Context, Sent};
use crate::calls::reachability::Reachability;
use crate::stops::stop::StopReason;

impl Recorder {
    /// Why nothing more can be sent, where no call has found a server since the last answer.
    pub(crate) fn unreached(&self) -> Option<StopReason> {
        let is_failing = self.reachability.as_ref().is_some_and(Reachability::is_failing);
        self.last_unreached.clone().filter(|_| is_failing)
    }

    /// Why nothing more is sent, once no server seems to be there: no call has to find that out again.
    pub(crate) fn is_gone(&self, now: Instant) -> Option<StopReason> {
        let gone = self.reachability.as_ref().is_some_and(|known| known.never_answered(now));
        self.unreached().filter(|_| gone).map(|stop| self.with_all_hosts(stop))
    }

    /// Whether no call to that host has found a server since its last answer.
    pub(crate) fn finds_no_server(&self, host: &str) -> bool {
        self.hosts.get(host).is_some_and(Reachability::is_failing)
    }

    /// Watches whether servers are there. One host of many that is gone is given up alone; the run ends where no host has
    /// answered, and none is being asked.
    pub(super) fn reached(&mut self, context: &Context, item: &ClaimedItem, sent: &Sent) -> Recorded {
        let (answer, now) = (&sent.exchange.answer, context.limiter.now());
        let Some(reachability) = &mut self.reachability else { return Recorded::default() };
        let gone = reachability.gone(answer, now);
        let has_answered = reachability.has_answered();
        let dialect = &context.sender.config().dialect;
        let by_host = dialect.scope() == Scope::Host;
        let host_gone = by_host && {
            let known = self.hosts.entry(Arc::clone(&item.scope)).or_insert_with(|| reachability.of_another());
            known.gone(answer, now)
        };
        let stop = answer.as_ref().err();
        let stop = stop.and_then(|why| StopReason::unreached(why, dialect, &item.scope, &self.address));
        let Some(stop) = stop else { return Recorded::default() };
        self.last_unreached = Some(stop.clone());
        if !by_host {
            return Recorded { stop: gone.then_some(stop), ..Recorded::default() };
        }
        let mut recorded = Recorded::default();
        if host_gone && !self.unreachable.contains(&item.scope) {
            self.unreachable.push(Arc::clone(&item.scope));
            recorded = stop_scope(context, &item.scope, stop.clone());
        }
        let in_flight = context.in_flight.load(Ordering::Relaxed);
        recorded.stop = (gone && !has_answered && in_flight == 0).then(|| self.with_all_hosts(stop));
        recorded
    }

    /// With all hosts that were given up, where the reason is one of them.
    pub(crate) fn with_all_hosts(&self, stop: StopReason) -> StopReason {
        stop.naming(&self.unreachable)
    }
}
