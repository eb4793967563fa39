//! What one request takes of the limits of its client, until its end is known.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline::{Class, Cost, Dimension, Outcome, Permit};

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
    uses: Arc<Uses>,
}

/// The calls of one request.
#[derive(Default)]
struct Calls {
    /// One has left, and its end is not known.
    is_out: bool,
    /// What that has used at the least, where its client gave it up.
    given_up: Option<Cost>,
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
    pub(crate) fn new(permit: Permit, key: Arc<str>, uses: Arc<Uses>) -> Self {
        let reserved = permit.request().cost;
        uses.more(&key, &reserved);
        Self { permit: Some(permit), number: uses.number(), calls: Mutex::default(), key, reserved, uses }
    }

    /// A call leaves.
    pub(crate) fn leaves(&self) {
        self.calls().is_out = true;
    }

    /// What it reserved.
    pub(crate) const fn reserved(&self) -> &Cost {
        &self.reserved
    }

    /// Its answer goes on, and has used so much at the least.
    pub(crate) fn goes_on(&self, used: &Cost) {
        beyond(&self.reserved, used).into_iter().for_each(|beyond| self.uses.goes_on(self.number, &self.key, beyond));
    }

    /// The client gave up the answer before its end: it used so much at the least.
    pub(crate) fn was_given_up(&self, used: Cost) {
        self.calls().given_up = Some(used);
    }

    /// It ended, and used so much. `succeeded`: what was asked for came.
    pub(crate) fn answered(&self, used: Option<Cost>, succeeded: bool) {
        *self.calls() = Calls { answered: Some(Answered { used, succeeded }), ..Calls::default() };
    }

    /// It ended, and no server got it.
    pub(crate) fn was_not_sent(&self) {
        self.calls().is_out = false;
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        let Calls { is_out, given_up, answered } = std::mem::take(&mut *self.calls());
        let Some(permit) = self.permit.take() else { return };
        // Whatever the server said: the limits of a client count what it asks for, and slow down for no failure.
        let (class, usage) = match answered {
            // It may have been done, and nothing tells what it cost.
            _ if is_out => (Class::Abandoned, given_up),
            Some(Answered { used, succeeded: true }) => (Class::Success, used),
            Some(Answered { used, succeeded: false }) => (Class::Invalid, used),
            None => {
                permit.withdraw();
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
