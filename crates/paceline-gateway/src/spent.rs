//! What one request takes of the limits of its client, until its end is known.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline::{Class, Cost, Dimension, Instant, Outcome, Permit};
use paceline_providers::{SoFar, Untold};

use crate::backend::Backend;
use crate::uses::Uses;

/// What a request takes of its client's limits: what it reserved, and once that is known what its last call used. A request
/// that was never sent takes nothing.
pub(crate) struct Spent {
    permit: Option<Permit>,
    number: u64,
    calls: Mutex<Calls>,
    /// The hash of the key of its client, in hexadecimal digits.
    key: Arc<str>,
    reserved: Cost,
    /// The tokens that count where nothing tells them.
    untold: Untold,
    uses: Arc<Uses>,
}

/// The calls of one request.
#[derive(Default)]
struct Calls {
    /// One has left then, by the stopwatch of its upstream, and its end is not known.
    out: Option<(Arc<Backend>, Instant)>,
    /// What had come of its answer where that was given up or broke off.
    cut_off: Option<SoFar>,
    /// The last one that was answered.
    answered: Option<Answered>,
}

/// A call that was answered.
struct Answered {
    /// What it used, where that is known.
    used: Option<Cost>,
    /// What was asked for came: it shows how long answers are.
    succeeded: bool,
}

impl Spent {
    /// What that permit of its client's limiter reserved.
    pub(crate) fn new(permit: Permit, untold: Untold, key: Arc<str>, uses: Arc<Uses>) -> Self {
        let reserved = permit.request().cost;
        uses.waits(&key, permit.ticket());
        Self { permit: Some(permit), number: uses.number(), calls: Mutex::default(), key, reserved, untold, uses }
    }

    /// A call leaves to that upstream: from now on a kill does not forget it.
    pub(crate) fn leaves(&self, upstream: &Arc<Backend>) {
        if self.permit.as_ref().is_some_and(|permit| self.uses.waits_no_more(&self.key, permit.ticket())) {
            self.uses.more(&self.key, &self.reserved);
        }
        self.calls().out = Some((Arc::clone(upstream), upstream.stopwatch.now()));
    }

    /// What it reserved.
    pub(crate) const fn reserved(&self) -> &Cost {
        &self.reserved
    }

    /// Its answer goes on, and has used so much at the least.
    pub(crate) fn goes_on(&self, used: &Cost) {
        beyond(&self.reserved, used).into_iter().for_each(|beyond| self.uses.goes_on(self.number, &self.key, beyond));
    }

    /// What it counts with where its answer comes and tells no usage, ...
    pub(crate) fn untold(&self) -> Cost {
        self.untold.with_its_prompt(&self.made())
    }

    /// ... beside what its server adds to the prompt.
    pub(crate) fn made(&self) -> Cost {
        self.untold.made(&self.reserved)
    }

    /// The answer was given up by its client before its end, or broke off, when so much had come. Returns what it counts with.
    pub(crate) fn was_cut_off(&self, so_far: SoFar) -> Cost {
        let used = if so_far.tells_prompt { so_far.used } else { self.untold.with_its_prompt(&so_far.used) };
        self.calls().cut_off = Some(SoFar { used: used.clone(), ..so_far });
        used
    }

    /// It ended by no doing of its client, and nothing tells whether it was done.
    pub(crate) fn was_lost(&self) {
        let used = self.lost(false);
        self.calls().cut_off = used.map(|used| SoFar { used, is_silent: false, tells_prompt: true });
    }

    /// What a call counts with that is out, and whose end nothing tells. What its client gave up it may ask for again and again.
    fn lost(&self, by_its_client: bool) -> Option<Cost> {
        let calls = self.calls();
        let (upstream, left) = calls.out.as_ref()?;
        let took = upstream.stopwatch.now().saturating_since(*left);
        match &calls.cut_off {
            Some(SoFar { used, is_silent: false, .. }) => Some(used.clone()),
            Some(SoFar { used, is_silent: true, .. }) => Some(self.untold.in_flight_for(took, used)),
            None if by_its_client => Some(self.untold.in_flight_for(took, &self.untold())),
            None => Some(self.untold.in_flight_for(took, &self.reserved)),
        }
    }

    /// It ended, and used so much. `succeeded`: what was asked for came.
    pub(crate) fn answered(&self, used: Option<Cost>, succeeded: bool) {
        *self.calls() = Calls { answered: Some(Answered { used, succeeded }), ..Calls::default() };
    }

    /// It ended, and no server got it.
    pub(crate) fn was_not_sent(&self) {
        self.calls().out = None;
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        let given_up = self.lost(true);
        let Calls { answered, .. } = std::mem::take(&mut *self.calls());
        let Some(permit) = self.permit.take() else { return };
        let ticket = permit.ticket();
        // Whatever the server said: the limits of a client count what it asks for, and slow down for no failure.
        let (class, usage) = match answered {
            // It may have been done, and nothing tells what it cost.
            _ if given_up.is_some() => (Class::Abandoned, given_up),
            Some(Answered { used, succeeded: true }) => (Class::Success, used),
            Some(Answered { used, succeeded: false }) => (Class::Invalid, used),
            None => {
                permit.withdraw();
                self.uses.waits_no_more(&self.key, ticket);
                return self.uses.ends(self.number);
            }
        };
        let beyond = usage.as_ref().and_then(|used| beyond(&self.reserved, used));
        beyond.into_iter().for_each(|beyond| self.uses.more(&self.key, &beyond));
        drop(permit.complete(Outcome { usage, ..Outcome::new(class) }));
        self.uses.ends(self.number);
    }
}

/// What a call used beyond what it had reserved, if anything.
fn beyond(reserved: &Cost, used: &Cost) -> Option<Cost> {
    let mut beyond = None;
    for dimension in [Dimension::Tokens, Dimension::InputTokens, Dimension::OutputTokens] {
        let more = used.get(&dimension).saturating_sub(reserved.get(&dimension));
        if more > 0 {
            beyond.get_or_insert(Cost::zero()).set(dimension, more);
        }
    }
    beyond
}
