//! Export and restore of one scope: its state goes on in the same scope of another pacer.

use alloc::string::ToString;
use core::time::Duration;

use super::Scope;
use crate::config::Pace;
use crate::server_limits::{Carrier, ServerLimits};
use crate::state::{Announcement, LevelState, PauseState, WindowState};
use crate::time::Instant;

impl Scope {
    /// The state without limits and pauses that have ended by `now`, and without what the pacer knows of its answers.
    pub(crate) fn export(&self, now: Instant) -> LevelState {
        let announced = self.announced.iter().filter(|limit| !limit.is_over(now));
        let idle = self.idle.map_or(Duration::ZERO, |since| now - since);
        let learnt = (self.pace == Pace::Auto).then(|| self.learnt.export(idle)).flatten();
        let closed =
            self.gate.closed_until(now).map(|until| PauseState { left: until - now, cause: self.gate.cause() });
        LevelState {
            name: self.name.to_string(),
            windows: self.quotas.export(now),
            announced: announced.map(|limit| limit.announcement(now, self.spent.get(&limit.dimension))).collect(),
            learnt,
            beyond_bounds: None,
            failing: self.breaker.all().is_failing(),
            held: self.hold.export(now),
            closed,
            stopped: self.hold.stopped().map(ToString::to_string),
        }
    }

    /// Restores all but holds and stops, which the pacer sets.
    pub(crate) fn restore(&mut self, now: Instant, level: &LevelState, since: Duration) {
        self.quotas.restore(now, &level.windows, since);
        level.announced.iter().for_each(|known| self.announce(now, known, since));
        if let Some(learnt) = &level.learnt {
            self.learnt.restore(learnt, since);
        }
        if level.failing && self.last == 0 {
            self.breaker.all_mut().expect_failures(now);
        }
        if let Some((left, closed)) = level.closed.and_then(|closed| Some((closed.after(since)?, closed))) {
            self.expect_canary(now + left, closed.cause);
        }
    }

    /// Counts the units that other pacers exported so long ago for the same scope.
    pub(crate) fn share(&mut self, now: Instant, others: &[(&[WindowState], Duration)]) {
        self.quotas.share(now, others);
    }

    /// Restores a server limit, unless a response to this pacer has announced one already.
    fn announce(&mut self, now: Instant, known: &Announcement, since: Duration) {
        let dimension = &known.report.dimension;
        let spent = self.spent.get(dimension);
        let sent = now.saturating_sub(known.ago.saturating_add(since));
        let Some(announced) = ServerLimits::new(&known.report, Carrier { number: 0, sent, spent }) else { return };
        if self.announced.iter().all(|limit| limit.dimension != *dimension) {
            self.spent.set(dimension.clone(), spent.saturating_add(known.spent_since));
            self.announced.push(announced);
        }
    }
}
