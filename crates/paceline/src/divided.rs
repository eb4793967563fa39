//! A limiter whose configured limits are divided among processes: what a fleet needs of it.

use paceline_core::fleet::{Member, MemberChange, MemberInput};
use paceline_core::{ConfigError, DividedLimit, Pacer};

use crate::limiter::Limiter;

impl Limiter {
    /// From now on this limiter shares its configured limits with those of other processes, and nothing leaves before a fleet
    /// gives it a share: `paceline_fleet::Fleet::join` does all of this.
    ///
    /// # Errors
    /// Where there is no configured limit, or one that cannot be divided exactly: only a sliding window can.
    pub fn divide(&self) -> Result<(), ConfigError> {
        self.driver().divide()
    }

    /// This limiter shares its limits with no other process any more: all of them are its own.
    pub fn undivide(&self) {
        self.driver().act(Pacer::undivide);
    }

    /// The limits that this limiter shares, those of the account first; empty where it shares none.
    pub fn divided_limits(&self) -> Vec<DividedLimit> {
        self.driver().look(|state, _| state.pacer.divided_limits())
    }

    /// Tells the member of a fleet what happened and what the calls need, and takes what it allows, in one step: see
    /// [`Pacer::hear`](paceline_core::Pacer::hear). Returns the other changes.
    pub fn hear(&self, member: &mut Member, input: MemberInput) -> Vec<MemberChange> {
        self.driver().act(|pacer, now| pacer.hear(now, member, input))
    }

    /// Until a call waits that more of a divided limit would let leave. For one task.
    pub async fn wants_more(&self) {
        self.driver().short.notified().await;
    }

    /// Until there is something to tell the other processes that does not wait, such as a pause that the server asked for. For
    /// one task.
    pub async fn has_news(&self) {
        self.driver().news.notified().await;
    }
}
