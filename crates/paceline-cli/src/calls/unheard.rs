//! Refusals that have come and of which the dispatcher has not heard: it may wait for the journal meanwhile. No call leaves while
//! they are so many that they may stop the run, or the call's scope.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// What calls and the dispatcher know of them together.
#[derive(Debug)]
pub(crate) struct Unheard(watch::Sender<Known>);

#[derive(Debug, Default)]
struct Known {
    all: Refusals,
    /// Those scopes alone of which something has ended.
    scopes: BTreeMap<Arc<str>, Refusals>,
}

/// Of the run, or of a scope.
#[derive(Debug, Default)]
struct Refusals {
    unheard: usize,
    /// So few may stop it, as far as the dispatcher has heard; none where no number does.
    enough: Option<usize>,
}

impl Refusals {
    /// A single one is heard of at any time, so that no call waits without an end.
    fn may_stop(&self) -> bool {
        self.enough.is_some_and(|enough| self.unheard >= enough.max(1))
    }
}

impl Known {
    fn may_leave(&self, scope: &str) -> bool {
        !self.all.may_stop() && !self.scopes.get(scope).is_some_and(Refusals::may_stop)
    }
}

impl Unheard {
    /// None yet; `enough`: so few may stop the run.
    pub(crate) fn new(enough: Option<usize>) -> Self {
        Self(watch::Sender::new(Known { all: Refusals { unheard: 0, enough }, ..Known::default() }))
    }

    /// A call was refused. It is told before the call's place is free for another.
    pub(crate) fn refused(&self, scope: &Arc<str>) {
        self.0.send_modify(|known| {
            known.all.unheard += 1;
            known.scopes.entry(Arc::clone(scope)).or_default().unheard += 1;
        });
    }

    /// The dispatcher has done what follows from a call that has ended. `left`: so few more may stop the run, and the scope.
    pub(crate) fn heard(&self, scope: &Arc<str>, was_refused: bool, left: (Option<usize>, Option<usize>)) {
        self.0.send_modify(|known| {
            let of_scope = known.scopes.entry(Arc::clone(scope)).or_default();
            for (refusals, left) in [(&mut known.all, left.0), (of_scope, left.1)] {
                refusals.unheard -= usize::from(was_refused);
                refusals.enough = left;
            }
        });
    }

    /// Whether a call to the scope may leave.
    pub(crate) fn may_leave(&self, scope: &str) -> bool {
        self.0.borrow().may_leave(scope)
    }

    /// Waits until it may.
    pub(crate) async fn enough_heard(&self, scope: &str) {
        // The sender is this one.
        let _ = self.0.subscribe().wait_for(|known| known.may_leave(scope)).await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_call_waits_while_what_was_refused_and_not_heard_of_may_stop_it() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let unheard = Unheard::new(Some(3));
        [&a, &a].iter().for_each(|scope| unheard.refused(scope));
        assert!(unheard.may_leave("a"), "two of three");
        unheard.heard(&a, true, (Some(2), Some(2)));
        assert!(unheard.may_leave("a"), "one of two");
        unheard.refused(&b);
        assert!(!unheard.may_leave("a") && !unheard.may_leave("b"), "the run may end");
        assert!(unheard.enough_heard("a").now_or_never().is_none());
        unheard.heard(&b, true, (None, Some(2)));
        assert!(unheard.enough_heard("a").now_or_never().is_some(), "they are not alike");
        unheard.refused(&a);
        assert!(!unheard.may_leave("a") && unheard.may_leave("b"), "this scope may stop");
        unheard.heard(&a, true, (None, Some(0)));
        unheard.heard(&a, true, (None, Some(0)));
        assert!(unheard.may_leave("a"), "all is heard of");
    }
}
