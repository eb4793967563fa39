//! What becomes of items that are tried for the first time.

/// The share is smoothed over about ten calls.
const SMOOTHING: f64 = 0.1;

/// Fewer calls show nothing.
const ENOUGH: u64 = 20;

/// If a larger share is refused, the server is to blame.
const MOST: f64 = 0.3;

/// The share of overloaded answers among the calls of items that have not failed before. Where a server lacks capacity, these are
/// refused like all others; where it is the items that fail, they show that it works.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstTries {
    calls: u64,
    refused: f64,
}

impl FirstTries {
    /// So many were admitted.
    pub(super) fn passed(&mut self, calls: u64) {
        self.calls = self.calls.saturating_add(calls);
        // After a hundred calls nothing is left of a share.
        (0..calls.min(100)).for_each(|_| self.refused -= SMOOTHING * self.refused);
    }

    /// One was refused.
    pub(super) fn refused(&mut self) {
        self.calls = self.calls.saturating_add(1);
        self.refused += SMOOTHING * (1.0 - self.refused);
    }

    /// Whether most of them pass.
    pub(super) fn pass(&self) -> bool {
        self.calls >= ENOUGH && self.refused <= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_pass_once_enough_of_them_did_and_until_a_third_is_refused() {
        let mut tries = FirstTries::default();
        tries.passed(ENOUGH - 1);
        assert!(!tries.pass(), "too few calls");
        tries.passed(1);
        assert!(tries.pass());
        (0..3).for_each(|_| tries.refused());
        assert!(tries.pass(), "three refusals in a row are 27 %");
        tries.refused();
        assert!(!tries.pass());
        tries.passed(1);
        assert!(!tries.pass());
        tries.passed(1);
        assert!(tries.pass());
        tries.passed(u64::MAX);
        assert!(tries.pass());
    }
}
