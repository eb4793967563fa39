//! Since when a server refuses all calls, and does not say when it takes them: it has banned the caller, or another one uses up
//! its limit.

use crate::time::Instant;

/// The refusals since the last call that was not refused. They may all be of one item, which goes first again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refused {
    since: Option<Instant>,
    calls: u32,
}

impl Refused {
    /// A call was refused.
    pub(crate) fn add(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        self.calls = self.calls.saturating_add(1);
    }

    /// Since when, if so many calls were refused: fewer may be bad luck.
    pub(crate) fn since(&self, enough: u32) -> Option<Instant> {
        self.since.filter(|_| self.calls >= enough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn a_server_that_refuses_several_calls_and_takes_none_is_known_to() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut refused = Refused::default();
        for n in 3..7 {
            refused.add(at(n));
        }
        assert_eq!(refused.since(5), None, "4 are not 5");
        refused.add(at(50));
        assert_eq!(refused.since(5), Some(at(3)));
    }
}
