//! What a try needs before its call leaves: its part of the budget, a permit, and room for the answer.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use paceline::{MaxWait, Permit, Within};
use paceline_core::{Admit, Instant, Level, LimitScope, PauseCause, Request, WaitCause, WaitReason};
use paceline_gateway::QueuePlace;
use paceline_store::Room;

use crate::budget::{Expected, Reserved};
use crate::calls::handed::Place;
use crate::calls::impossible::Impossible;
use crate::calls::item::{Context, Pause, Phase, TryEnd};
use crate::calls::permit_queue::PermitTurn;
use crate::text;

/// A longer pause of its scope or of the account an item spends in the journal. Only so many items are tried at once: those of a
/// few throttled models would keep out all others. Limits are waited for here, where they serve the items in order.
const LONGEST_PAUSE: MaxWait = MaxWait::Pause(Duration::from_secs(1));

/// How often a full disk is checked.
const FULL: Duration = Duration::from_millis(100);

/// A call that may leave.
pub(super) struct Admitted<'a> {
    pub(super) budgeted: Reserved<'a>,
    pub(super) permit: Permit,
    pub(super) room: Room,
    /// Where others use the limiter too.
    pub(super) place: Option<QueuePlace>,
    /// At a gateway that holds calls back.
    pub(super) handed: Option<Place>,
}

impl Context {
    /// All that a call needs, or why it does not leave.
    pub(super) async fn admitted(
        &self,
        mut request: Request,
        expected: Expected,
        turn: PermitTurn,
    ) -> Result<Admitted<'_>, TryEnd> {
        let began = self.limiter.now();
        let (mut turn, mut place) = (Some(turn), None);
        let scope = Arc::clone(request.scope.name());
        // Answers that come while it waits tell more of its prompt; where its answer may be of any length, not that it needs
        // less.
        let expected = || {
            let known = expected.size.map_or(expected.prompt, |size| self.sender.ratio(&scope).budgeted(size));
            let prompt = if expected.bound.is_some() { known } else { known.at_least(expected.prompt) };
            Expected { prompt, ..expected.clone() }
        };
        loop {
            let budgeted = tokio::select! {
                biased;
                () = self.reached(Phase::Draining) => return Err(TryEnd::Withheld),
                reserved = async {
                    if let Some(turn) = &mut turn {
                        turn.comes().await;
                    }
                    self.budget.reserve_as_known(expected).await
                } => reserved.map_err(TryEnd::OverBudget)?,
            };
            // As it asks for the first time: its turn among the others stays.
            if place.is_none() {
                place = self.guest.as_ref().map(|guest| guest.place());
                request.arrival = place.as_ref().map(QueuePlace::number).or(request.arrival);
            }
            let mut asking = pin!(self.permit_to_hand_over(request.clone(), began));
            let asking = async {
                match turn.take() {
                    Some(turn) => turn.ask(asking.as_mut()).await,
                    None => asking.await,
                }
            };
            tokio::select! {
                biased;
                () = self.reached(Phase::Draining) => return Err(TryEnd::Withheld),
                admitted = asking => {
                    let (permit, room, handed) = admitted?;
                    let guest = self.guest.as_ref();
                    let away = guest.and_then(|guest| guest.not_before(request.scope.name()));
                    if away.is_some() || guest.is_some_and(|guest| !guest.may_leave()) {
                        permit.withdraw();
                        return Err(away.map_or(TryEnd::Withheld, |until| self.stays_away(until)));
                    }
                    return Ok(Admitted { budgeted, permit, room, place, handed });
                }
                // It gives back what it reserved, and takes as much as calls may use by now, as soon as that is there.
                () = budgeted.is_outgrown(|| expected().prompt) => {}
            }
        }
    }

    /// The same once the gateway, if there is one, has a place for it. What waits for that keeps its turn among its like.
    async fn permit_to_hand_over(
        &self,
        request: Request,
        began: Instant,
    ) -> Result<(Permit, Room, Option<Place>), TryEnd> {
        let handed = match &self.gateway {
            Some(gateway) => Some(gateway.place(request.scope.name()).await),
            None => None,
        };
        let (permit, room) = self.permit_with_room(request, began).await?;
        Ok((permit, room, handed))
    }

    /// A permit, and room for the answer, or why there is no permit. A call without room, and one before which refusals have to
    /// be heard of that may stop its scope, gives its permit back before it waits: a permit that is kept counts in every limit,
    /// for other runs too, a disk may stay full, and a scope that has stopped grants none again.
    async fn permit_with_room(&self, request: Request, began: Instant) -> Result<(Permit, Room), TryEnd> {
        loop {
            let permit = self.permit(request.clone(), began).await?;
            let scope = request.scope.name();
            let may_leave = self.unheard.may_leave(scope);
            if let Some(room) = self.journal.room_for_answer().filter(|_| may_leave) {
                return Ok((permit, room));
            }
            permit.withdraw();
            if may_leave { self.has_room().await } else { self.unheard.enough_heard(scope).await }
        }
    }

    /// The client of this job alone was told to wait.
    fn stays_away(&self, until: Instant) -> TryEnd {
        let cause = PauseCause::Throttled { asked: true };
        TryEnd::PutOff(Pause { until: self.timestamp(until), cause, level: Level::Scope })
    }

    /// A permit, or why there is none. The item waits since `began`.
    async fn permit(&self, request: Request, began: Instant) -> Result<Permit, TryEnd> {
        let own_scope = Arc::clone(request.scope.name());
        if let Some(until) = self.guest.as_ref().and_then(|guest| guest.not_before(&own_scope)) {
            return Err(self.stays_away(until));
        }
        let none = |error| match error {
            paceline::Error::TooLarge(too_large) => TryEnd::Impossible(too_large.into()),
            paceline::Error::DeadlineExceeded { needed, .. } => {
                TryEnd::Impossible(Impossible::Deadline { waited: self.limiter.now() - began, needed })
            }
            // In a run of its own the answer that stops a scope says so itself.
            paceline::Error::Stopped { scope, reason } if self.guest.is_some() => {
                let reach = if scope == own_scope { LimitScope::Scope } else { LimitScope::Account };
                TryEnd::Stopped { reach, reason }
            }
            _ => TryEnd::Withheld,
        };
        if tracing::enabled!(tracing::Level::TRACE) {
            self.trace_wait(&request);
        }
        let (until, WaitReason { level, cause }) =
            match self.limiter.acquire_within(request.clone(), LONGEST_PAUSE).await.map_err(none)? {
                Within::Granted(permit) => return Ok(permit),
                Within::Deferred { until, reason } => (until, reason),
            };
        match cause {
            // The next run checks for itself whether the server is back, so it is not in the journal.
            WaitCause::Held { cause: PauseCause::ServerFails } => self.limiter.acquire(request).await.map_err(none),
            WaitCause::Held { cause } | WaitCause::Gate { cause } => {
                Err(TryEnd::PutOff(Pause { until: self.timestamp(until), cause, level }))
            }
            policy => unreachable!("{policy} is no pause"),
        }
    }

    /// Logs what a call waits for as it asks for its permit.
    fn trace_wait(&self, request: &Request) {
        let (wait, cause) = match self.limiter.admit(request) {
            Admit::Now => return,
            Admit::At { at, cause } => (format!(" ({})", text::exact(at - self.limiter.now())), cause),
            Admit::OnRelease { cause } => (String::new(), cause),
        };
        tracing::trace!(scope = &**request.scope.name(), ordinal = request.item, "waits for {cause}{wait}");
    }

    async fn has_room(&self) {
        while self.journal.room_for_answer().is_none() {
            tokio::time::sleep(FULL).await;
        }
    }

    /// Waits until the run ends and a full disk keeps back what is to be recorded.
    pub(super) async fn ends_on_full_disk(&self) {
        self.reached(Phase::Draining).await;
        while self.journal.disk_full().is_none() {
            tokio::time::sleep(FULL).await;
        }
    }
}

/// Counts a call for as long as it lives, also when its task is cancelled.
pub(super) struct InFlight<'a>(&'a AtomicU64);

impl<'a> InFlight<'a> {
    pub(super) fn new(counter: &'a AtomicU64) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
