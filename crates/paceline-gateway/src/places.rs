//! Places among the calls in flight at an upstream, which clients share.

use std::sync::Arc;
use std::time::Duration;

use paceline::{Class, Permit, WaitCause};
use tokio::time::timeout;

use crate::backend::Backend;
use crate::bounds::{Room, share};
use crate::clients::Client;
use crate::notes::ClientSpending;
use crate::queue::{NotSent, hold, too_long};

/// A client may have so many times as many calls in flight as places are free: one alone leaves an eighth to the others.
const IN_FLIGHT: u64 = 7;

/// A client that has all that it may have is let in again at the latest so long after another one has left a place.
const ASKS_AGAIN: Duration = Duration::from_secs(1);

/// That of one call, among those that its client may have.
pub(crate) struct Place {
    rooms: Option<[Room; 2]>,
    client: Arc<ClientSpending>,
}

impl Place {
    fn take(upstream: &Backend, client: &Arc<ClientSpending>) -> Option<Self> {
        let most = u64::from(upstream.config().pacer.concurrency.max());
        // Of few places there is no part to leave.
        let own = client.in_flight.take(1, share(upstream.in_flight.count(), most, IN_FLIGHT).max(1))?;
        let of_all = upstream.in_flight.take(1, u64::MAX)?;
        Some(Self { rooms: Some([own, of_all]), client: Arc::clone(client) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.rooms.take());
        self.client.place_is_free.notify_one();
    }
}

/// A permit, as [`hold`] has it, for a client that has a place: where there are others with keys, of those that it may have.
pub(crate) async fn hold_a_place(
    upstream: &Backend,
    request: paceline::Request,
    left: impl Fn() -> Duration,
    last: Option<Class>,
    (known, client): (Option<&Client>, &Arc<ClientSpending>),
) -> Result<(Permit, Option<Place>), NotSent> {
    if !known.is_some_and(Client::has_others) {
        return Ok((hold(upstream, request, left, last).await?, None));
    }
    loop {
        let permit = hold(upstream, request.clone(), &left, last).await?;
        let is_free = client.place_is_free.notified();
        if let Some(place) = Place::take(upstream, client) {
            return Ok((permit, Some(place)));
        }
        // Its place is for the others; the next of them may leave at once.
        permit.withdraw();
        let wait = left();
        if wait.is_zero() {
            return Err(too_long(upstream, &request.cost, &WaitCause::Reserve, None, wait).into());
        }
        let _is_held = client.waits_for_its_share();
        let _ = timeout(wait.min(ASKS_AGAIN), is_free).await;
    }
}
