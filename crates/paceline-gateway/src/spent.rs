//! What one call takes of the limits of its client, and counts with in what is shown of that, until its end is known.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline::{Class, Cost, Dimension, Instant, Outcome, Permit};
use paceline_config::Price;
use paceline_http::Call;
use paceline_providers::{Asked, SoFar, Untold, Usage};

use crate::backend::Backend;
use crate::notes::ClientSpending;
use crate::uses::Uses;

/// What a call takes of its client's limits, if that has any: what it reserved, and once that is known what it used. One that
/// was never sent takes nothing. What nothing tells of its use counts the same in what is shown.
pub(crate) struct Spent {
    of_limits: Option<OfLimits>,
    call: Mutex<Sent>,
    reserved: Cost,
    /// The tokens that count where nothing tells them.
    untold: Untold,
}

/// What it takes of limits.
struct OfLimits {
    permit: Permit,
    /// The tokens that its prompt was expected to have, and what the call was to cost.
    expected: [u64; 2],
    number: u64,
    /// The hash of the key of its client, in hexadecimal digits.
    key: Arc<str>,
    uses: Arc<Uses>,
}

/// The call, as far as it went.
#[derive(Default)]
struct Sent {
    /// Where it went.
    to: Option<SentTo>,
    /// It left then, by the stopwatch of its upstream, and its end is not known.
    out: Option<Instant>,
    /// What had come of its answer where that was given up or broke off.
    cut_off: Option<SoFar>,
    /// It was answered.
    answered: Option<Answered>,
    /// What it told of its use, which is shown already.
    told: Usage,
}

/// Where a call went, and for whom.
pub(crate) struct SentTo {
    pub(crate) upstream: Arc<Backend>,
    pub(crate) scope: Arc<str>,
    pub(crate) client: Arc<ClientSpending>,
    pub(crate) call: Arc<Call>,
    pub(crate) asked: Arc<Asked>,
    /// What its tokens cost, where a limit of its client is in money.
    pub(crate) price: Option<Price>,
}

/// A call that was answered.
struct Answered {
    /// What it used, where that is known.
    used: Option<Cost>,
    /// What was asked for came: it shows how long answers are.
    succeeded: bool,
}

impl Spent {
    /// What that permit of its client's limiter reserved, where so much was `expected`.
    pub(crate) fn new(permit: Permit, expected: &Cost, untold: Untold, key: Arc<str>, uses: Arc<Uses>) -> Self {
        let reserved = permit.request().cost;
        uses.waits(&key, permit.ticket());
        let of_limits = OfLimits { permit, expected: expectation(expected), number: uses.number(), key, uses };
        Self { of_limits: Some(of_limits), call: Mutex::default(), reserved, untold }
    }

    /// The same of a client that has no limits.
    pub(crate) fn without_limits(reserved: Cost, untold: Untold) -> Self {
        Self { of_limits: None, call: Mutex::default(), reserved, untold }
    }

    /// Whether it takes something of limits.
    pub(crate) const fn is_limited(&self) -> bool {
        self.of_limits.is_some()
    }

    /// When it arrived among those of its client.
    pub(crate) fn arrival(&self) -> Option<u64> {
        self.of_limits.as_ref()?.permit.request().arrival
    }

    /// Whether its prompt has more tokens than was expected, or costs more, where `now` is what is.
    pub(crate) fn is_outgrown_by(&self, now: &Cost) -> bool {
        let more = |expected: [u64; 2]| expectation(now).into_iter().zip(expected).any(|(now, before)| now > before);
        self.of_limits.as_ref().is_some_and(|of_limits| more(of_limits.expected))
    }

    /// Whether the call may leave now, and counts from now on: while it waited for its upstream, others of its client may have
    /// left in its place.
    pub(crate) fn may_leave(&self) -> bool {
        self.of_limits.as_ref().is_none_or(|of_limits| of_limits.permit.leaves())
    }

    /// The call leaves: from now on a kill does not forget it.
    pub(crate) fn leaves(&self, to: SentTo) {
        if let Some(OfLimits { permit, key, uses, .. }) = &self.of_limits
            && uses.waits_no_more(key, permit.ticket())
        {
            uses.more(key, &self.reserved);
        }
        let mut call = self.call();
        call.out = Some(to.upstream.stopwatch.now());
        call.to = Some(to);
    }

    /// What it reserved.
    pub(crate) const fn reserved(&self) -> &Cost {
        &self.reserved
    }

    /// Its answer goes on, and has used so much at the least.
    pub(crate) fn goes_on(&self, used: &Cost) {
        let Some(OfLimits { number, key, uses, .. }) = &self.of_limits else { return };
        beyond(&self.reserved, used).into_iter().for_each(|beyond| uses.goes_on(*number, key, beyond));
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
        self.call().cut_off = Some(SoFar { used: used.clone(), ..so_far });
        used
    }

    /// It ended by no doing of its client, and nothing tells whether it was done.
    pub(crate) fn was_lost(&self) {
        let used = self.lost(false);
        self.call().cut_off = used.map(|used| SoFar { used, is_silent: false, tells_prompt: true });
    }

    /// What a call counts with that is out, and whose end nothing tells. What its client gave up it may ask for again and again.
    fn lost(&self, by_its_client: bool) -> Option<Cost> {
        let call = self.call();
        let (to, left) = (call.to.as_ref()?, call.out?);
        let took = to.upstream.stopwatch.now().saturating_since(left);
        match &call.cut_off {
            Some(SoFar { used, is_silent: false, .. }) => Some(used.clone()),
            Some(SoFar { used, is_silent: true, .. }) => Some(self.untold.in_flight_for(took, used)),
            None if by_its_client => Some(self.untold.in_flight_for(took, &self.untold())),
            None => Some(self.untold.in_flight_for(took, &self.reserved)),
        }
    }

    /// Its answer told that much, which is shown.
    pub(crate) fn told(&self, usage: &Usage) {
        self.call().told = *usage;
    }

    /// It ended, and used so much. `succeeded`: what was asked for came.
    pub(crate) fn answered(&self, used: Option<Cost>, succeeded: bool) {
        let mut call = self.call();
        (call.out, call.cut_off, call.answered) = (None, None, Some(Answered { used, succeeded }));
    }

    /// It ended, and no server got it.
    pub(crate) fn was_not_sent(&self) {
        self.call().out = None;
    }

    fn call(&self) -> MutexGuard<'_, Sent> {
        self.call.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SentTo {
    /// Shows what counts of the call beyond what it told.
    fn show_estimated(&self, estimated: &Usage) {
        if estimated.input_tokens + estimated.output_tokens > 0 {
            self.upstream.metrics().estimated(&self.scope, estimated);
            self.client.seems_to_have_used(estimated, self.upstream.cost_of(&self.call.url, &self.asked, estimated));
        }
    }
}

/// What of a call's expected cost grows while it waits: the tokens of its prompt, and its money.
fn expectation(cost: &Cost) -> [u64; 2] {
    [Dimension::InputTokens, Dimension::Money].map(|dimension| cost.get(&dimension))
}

/// The tokens that count beyond those that an answer told.
fn estimated(counted: &Cost, told: &Usage) -> Usage {
    let part = |dimension, told: u64| counted.get(&dimension).saturating_sub(told);
    let input_tokens = part(Dimension::InputTokens, told.prompt_tokens());
    let output_tokens = part(Dimension::OutputTokens, told.output_tokens);
    Usage { input_tokens, output_tokens, ..Usage::default() }
}

impl Drop for Spent {
    fn drop(&mut self) {
        let given_up = self.lost(true);
        let Sent { to, answered, told, .. } = std::mem::take(&mut *self.call());
        // Whatever the server said: the limits of a client count what it asks for, and slow down for no failure.
        let mut ended = match answered {
            // It may have been done, and nothing tells what it cost.
            _ if given_up.is_some() => Some((Class::Abandoned, given_up)),
            Some(Answered { used, succeeded: true }) => Some((Class::Success, used)),
            Some(Answered { used, succeeded: false }) => Some((Class::Invalid, used)),
            None => None,
        };
        if let (Some(to), Some((_, used))) = (to, &mut ended) {
            let estimated = estimated(used.as_ref().unwrap_or(&self.reserved), &told);
            to.show_estimated(&estimated);
            // What was told costs what it does exactly, with what came from a cache.
            if let (Some(used), Some(price)) = (used, to.price) {
                let money = price.of_usage(&told).and(price.of_usage(&estimated));
                used.set(Dimension::Money, money.billionths());
            }
        }
        let Some(OfLimits { permit, number, key, uses, .. }) = self.of_limits.take() else { return };
        let Some((class, usage)) = ended else {
            let ticket = permit.ticket();
            permit.withdraw();
            uses.waits_no_more(&key, ticket);
            return uses.ends(number);
        };
        let beyond = usage.as_ref().and_then(|used| beyond(&self.reserved, used));
        beyond.into_iter().for_each(|beyond| uses.more(&key, &beyond));
        drop(permit.complete(Outcome { usage, ..Outcome::new(class) }));
        uses.ends(number);
    }
}

/// What a call used beyond what it had reserved, if anything.
fn beyond(reserved: &Cost, used: &Cost) -> Option<Cost> {
    let mut beyond = None;
    for dimension in [Dimension::Tokens, Dimension::InputTokens, Dimension::OutputTokens, Dimension::Money] {
        let more = used.get(&dimension).saturating_sub(reserved.get(&dimension));
        if more > 0 {
            beyond.get_or_insert(Cost::zero()).set(dimension, more);
        }
    }
    beyond
}
