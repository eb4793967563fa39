//! A host of a job on many hosts, all of whose lines are stopped, or held for longer than `--max-wait`: it looks for others that
//! it can send, and ends once there are none for it.

use std::time::Duration;

use paceline_core::Instant;

use super::Dispatcher;

/// Other hosts that have recorded nothing for so long wait for this one. They tell of what they record every few seconds.
const STANDS_STILL: Duration = Duration::from_secs(15);

/// What is known of the lines that other hosts have, or none.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// Since when nothing can be sent of what is here.
    idle_since: Option<Instant>,
    /// The lines of the job that had ended, and since when they are so many.
    ended: Option<(u64, Instant)>,
}

impl Elsewhere {
    /// There are lines to send.
    pub(super) const fn goes_on(&mut self) {
        self.idle_since = None;
    }

    fn note(&mut self, is_idle: bool, ended: u64, now: Instant) {
        self.idle_since = self.idle_since.or(Some(now)).filter(|_| is_idle);
        if self.ended.is_none_or(|(known, _)| known != ended) {
            self.ended = Some((ended, now));
        }
    }
}

impl Dispatcher {
    /// Notes whether something can be sent of what is here; `impatient`: not before `--max-wait` is over.
    pub(super) fn look_elsewhere(&mut self, now: Instant, impatient: bool) {
        let Some(hosts) = &self.parts.hosts else { return };
        let ended = hosts.borrow().whole.as_ref().map_or(0, |whole| whole.ended());
        let has_some = self.parts.recorder.figures().pending() > 0;
        self.elsewhere.note(has_some && (impatient || self.next_due.is_none() && self.is_quiet()), ended, now);
        let is_last = !self.parts.context.others.have_lines();
        let stands_still = self.elsewhere.ended.is_some_and(|(_, since)| since + STANDS_STILL <= now);
        if self.gets_none() && self.parts.recorder.holds_back() && (is_last || stands_still) {
            self.parts.recorder.record_held_back(&self.parts.context);
            self.elsewhere.goes_on();
        }
    }

    /// Whether there are no other lines for this host, as far as it has looked since it could send nothing, or none came within
    /// `--max-wait`. A run alone has none. Those of a host that is lost come free once its lease is over.
    pub(super) fn gets_none(&self) -> bool {
        let (Some(hosts), now) = (&self.parts.hosts, self.parts.context.limiter.now()) else { return true };
        self.elsewhere.idle_since.is_some_and(|since| {
            let is_over = self.parts.max_wait.is_some_and(|max_wait| since + max_wait <= now);
            is_over || hosts.borrow().found_none.is_some_and(|known| known > since)
        })
    }

    /// Whether a host of many has lines, and none that a call can leave for in this run. Failures that are held back are decided
    /// first.
    pub(super) fn has_only_what_is_stopped(&self) -> bool {
        self.gets_none() && !self.parts.recorder.holds_back()
    }
}
