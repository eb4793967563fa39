//! Calls that leave, told before they do.

use std::sync::{Arc, PoisonError, RwLock};

use paceline_core::Request;

use super::permit::Permit;

/// Hears of the request of each call that leaves.
type Note = dyn Fn(&Request) + Send + Sync;

/// What hears of the calls of a limiter, if anything does.
#[derive(Default)]
pub(crate) struct Departures(RwLock<Option<Arc<Note>>>);

impl Departures {
    pub(crate) fn name(&self, note: Arc<Note>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(note);
    }

    fn note(&self) -> Option<Arc<Note>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Permit {
    /// The caller goes on later: it waits for something else first, such as a permit of another limiter, and asks
    /// [`leaves`](Self::leaves) as it goes on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use paceline::{Limiter, Quota};
    ///
    /// let (of_tenant, of_api) = (Limiter::new(Quota::per_minute(60))?, Limiter::new(Quota::per_minute(1_000))?);
    /// let permits = loop {
    ///     let tenant = of_tenant.acquire(of_tenant.scope("tenant")).await?;
    ///     tenant.leaves_later();
    ///     let api = of_api.acquire(of_api.scope("chat")).await?;
    ///     if tenant.leaves() {
    ///         break (tenant, api);
    ///     }
    ///     tenant.withdraw();
    ///     api.withdraw();
    /// };
    /// # drop(permits);
    /// # Ok(())
    /// # }
    /// ```
    pub fn leaves_later(&self) {
        self.driver().act(|pacer, _| pacer.take_later(self.ticket()));
    }

    /// The call of a permit that [leaves later](Self::leaves_later) leaves now: sliding windows count it from now on, so that no
    /// window holds more than its limit however long the caller waited. Returns whether it may leave: where its units counted no
    /// longer and others have left in its place, it may not. Then [withdraw](Self::withdraw) it and acquire a permit again, with
    /// its [request](Self::request), which has its place in the queue.
    #[must_use = "the call may have to wait again"]
    pub fn leaves(&self) -> bool {
        self.driver().act(|pacer, now| pacer.leaves(now, self.ticket()))
    }

    /// The call leaves now: what [`Limiter::note_departures`](crate::Limiter::note_departures) has named hears of it, before this
    /// returns. For those who send; a call that leaves without it is in no note.
    pub fn departs(&self) {
        if let Some(note) = self.driver().departures.note() {
            note(&self.request());
        }
    }
}
