//! The items of a run for which the API stayed down go to the fallback: as they fail, and at the end those that still wait.

use std::sync::Arc;

use paceline::clock;
use paceline_store::{DeferReason, JournalError, Rows};

use super::Dispatcher;
use crate::calls::fallback::{Answered, Down, Without};
use crate::calls::on_their_way::failure_of;
use crate::exit::Failure;
use crate::stops::stop::{StayedDown, StopReason};

/// Items taken from the journal at a time.
const AT_A_TIME: usize = 256;

impl Dispatcher {
    /// Begins commands for the items that have come for them.
    pub(super) fn begin_fallbacks(&mut self) {
        let down = self.parts.recorder.take_down();
        self.parts.fallbacks.add(&self.parts.context, down);
    }

    pub(super) fn fell_back(&mut self, answered: Answered) {
        self.parts.recorder.fell_back(&self.parts.context, answered);
        self.begin_fallbacks();
    }

    /// Where a person or the time ends the run, items end as without a fallback.
    pub(super) fn abort_fallbacks(&mut self) {
        for down in self.parts.fallbacks.abort() {
            self.parts.recorder.without_fallback(down);
        }
    }

    /// At the end of a run: items that still wait because the API stayed down get the fallback's result.
    pub(super) async fn fall_back_for_the_rest(&mut self) -> Result<(), Failure> {
        let (mut left, reason) = match &self.stop {
            Some(stop) if self.parts.fallbacks.is_there() && self.abandon_at.is_none() => {
                (tokio::task::block_in_place(|| self.left_by(stop)).map_err(|error| failure_of(&error))?, stop.as_str())
            }
            _ => return Ok(()),
        };
        while !left.is_empty() && self.abandon_at.is_none() {
            let page = left.drain(..left.len().min(AT_A_TIME)).collect();
            self.parts.journal.claim_items(page, self.on_their_way.claims());
            let claim = self.on_their_way.answered().await?;
            let context = Arc::clone(&self.parts.context);
            let down: Vec<Down> =
                claim.items.into_iter().map(|item| Down { item, without: Without::Waits(reason) }).collect();
            let (done, down): (Vec<_>, Vec<_>) =
                down.into_iter().partition(|down| context.may_have_been_done(&down.item));
            done.into_iter().for_each(|down| self.parts.recorder.without_fallback(down));
            self.parts.fallbacks.add(&context, down);
            while !self.parts.fallbacks.is_empty() {
                tokio::select! {
                    ended = self.parts.fallbacks.next() => self.fell_back(ended),
                    () = self.parts.interruptions.next() => self.interrupt(),
                    Some(error) = self.parts.broken.recv() => return Err(failure_of(&error)),
                }
            }
        }
        Ok(())
    }

    /// The items that wait at the end of the run because the API stayed down.
    fn left_by(&self, stop: &StopReason) -> Result<Vec<u64>, JournalError> {
        let (whole, recorder) = (stop.stayed_down(), &self.parts.recorder);
        let mut left = Vec::new();
        if whole == StayedDown::Nothing {
            return Ok(left);
        }
        self.parts.journal.report(clock::wall(), Rows::NotSimplySucceeded, |row| -> Result<(), JournalError> {
            let is_closed = matches!(row.deferred, Some(DeferReason::ScopeStopped | DeferReason::ScopeHeld))
                || recorder.holds.has_given_up(&row.scope);
            let is_down = whole == StayedDown::Everything || is_closed && !recorder.is_alike(&row.scope);
            if row.deferred.is_some() && is_down && !row.is_refused() {
                left.push(row.ordinal);
            }
            Ok(())
        })?;
        Ok(left)
    }
}
