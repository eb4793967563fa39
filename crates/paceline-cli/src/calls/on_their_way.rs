//! The items on their way: claimed from the journal, and not recorded yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_store::{ClaimedItem, ClaimedItems, JournalError};
use tokio::sync::oneshot;

use crate::exit::Failure;

type Claim = Result<ClaimedItems, JournalError>;

/// They are those that are tried, and those of a claim that is under way.
#[derive(Debug, Default)]
pub(crate) struct OnTheirWay {
    by_scope: BTreeMap<Arc<str>, usize>,
    claiming: Option<oneshot::Receiver<Claim>>,
    /// The answer to the last claim, where it was looked at before its items are tried.
    claimed: Option<Claim>,
}

impl OnTheirWay {
    /// A claim begins: its answer goes there.
    pub(crate) fn claims(&mut self) -> impl FnOnce(Claim) + Send + use<> {
        let (reply, answer) = oneshot::channel();
        self.claiming = Some(answer);
        // The answer has no receiver any more only when the run has failed.
        move |claim| drop(reply.send(claim))
    }

    pub(crate) const fn is_claiming(&self) -> bool {
        self.claiming.is_some() || self.claimed.is_some()
    }

    /// The answer to the claim under way; never where there is none.
    ///
    /// # Errors
    /// The journal broke.
    pub(crate) async fn answered(&mut self) -> Result<ClaimedItems, Failure> {
        let claim = match (self.claimed.take(), &mut self.claiming) {
            (Some(claim), _) => claim,
            (None, Some(answer)) => answer.await.map_err(|_| Failure::interrupted("the journal went away"))?,
            (None, None) => std::future::pending().await,
        };
        self.claiming = None;
        match claim {
            // The run has ended for that, and looks for nothing more.
            Err(JournalError::DiskFull(_)) => Ok(ClaimedItems::default()),
            claim => claim.map_err(|error| failure_of(&error)),
        }
    }

    pub(crate) fn begins(&mut self, item: &ClaimedItem) {
        *self.by_scope.entry(Arc::clone(&item.scope)).or_default() += 1;
    }

    /// Only scopes of which something is tried are kept: each claim looks at all of these.
    pub(crate) fn ended(&mut self, item: &ClaimedItem) {
        if let Some(count) = self.by_scope.get_mut(&item.scope) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_scope.remove(&item.scope);
            }
        }
    }

    /// How many of each scope are tried.
    pub(crate) const fn tried(&self) -> &BTreeMap<Arc<str>, usize> {
        &self.by_scope
    }

    /// Whether others of that scope have not ended, of which `waits` says whether the journal has some. A claim may take the last
    /// of those just before it is asked: then its answer is there.
    pub(crate) fn are_more(&mut self, scope: &str, waits: impl FnOnce() -> bool) -> bool {
        if self.by_scope.contains_key(scope) || waits() {
            return true;
        }
        if let Some(Ok(claim)) = self.claiming.as_mut().map(oneshot::Receiver::try_recv) {
            (self.claimed, self.claiming) = (Some(claim), None);
        }
        let claimed = self.claimed.iter().flatten().flat_map(|claim| &claim.items);
        claimed.into_iter().any(|item| *item.scope == *scope)
    }
}

/// How a run ends whose journal broke.
pub(crate) fn failure_of(error: &JournalError) -> Failure {
    if error.is_output_taken() {
        let advice =
            "put it back as it was, then run the same command again; without it no run can go on with this job";
        return Failure::Lost(format!(
            "{error}: {advice}, and deleting the journal too starts it again from the first line"
        ));
    }
    if error.is_journal_taken() {
        return Failure::Lost(error.to_string());
    }
    // Not every full disk is seen before it is written to: it may have no room for another file alone.
    if error.is_disk_full() { Failure::DiskFull(error.to_string()) } else { Failure::interrupted(error) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use paceline_core::Timestamp;
    use paceline_store::{Forgiven, JournalItem, Tally};

    use super::*;

    fn of(scope: &str) -> ClaimedItem {
        let item = JournalItem {
            ordinal: 0,
            line: 1,
            src_off: 0,
            src_len: 0,
            scope: scope.into(),
            tally: Tally::default(),
            forgiven: Forgiven::default(),
            crash_attempts: 0,
            not_before: Timestamp::from_millis(0),
            delay: Duration::ZERO,
        };
        ClaimedItem { item, body_hash: [0; 16], key_number: 0 }
    }

    /// Calls that have ended and are not recorded count as well: nothing else knows of them any more.
    #[test]
    fn what_is_tried_has_not_ended_before_it_is_recorded() {
        let mut way = OnTheirWay::default();
        [of("a"), of("a")].iter().for_each(|item| way.begins(item));
        for more in [true, false] {
            way.ended(&of("a"));
            assert_eq!(way.are_more("a", || false), more);
        }
        assert!(way.are_more("a", || true), "the journal has some");
    }

    #[tokio::test]
    async fn what_is_claimed_while_the_journal_is_asked_has_not_ended() {
        let mut way = OnTheirWay::default();
        let reply = Cell::new(Some(way.claims()));
        let claim = ClaimedItems { items: vec![of("a")], ..ClaimedItems::default() };
        let answers_first = || {
            reply.take().into_iter().for_each(|reply| reply(Ok(claim.clone())));
            false
        };
        assert!(way.are_more("a", answers_first), "the claim took the last one that waited");
        assert!(!way.are_more("b", || false) && way.is_claiming());
        assert_eq!(way.answered().await.map(|claim| claim.items.len()).ok(), Some(1), "they are tried all the same");
        assert!(!way.is_claiming() && !way.are_more("a", || false));
    }
}
