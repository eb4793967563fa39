//! What calls may use: tokens of one run, and tokens and money of the job over all its runs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_config::{Money, Prices};
use paceline_providers::Usage;
use paceline_store::ModelUsage;
use tokio::sync::Notify;

use crate::text;

mod longer;
mod purse;
mod recent;
mod words;

use self::longer::Longer;
pub(crate) use self::purse::{BudgetKind, Exceeded, Limits};
use self::recent::Recent;
pub(crate) use self::words::{Enough, Used, one_price, unpriced};

/// What a call is expected to use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// The model that its price is of; empty when it names none.
    pub(crate) model: Arc<str>,
    pub(crate) usage: Usage,
    /// The most tokens that its prompt can have: more than expected while no answer has told how long prompts are.
    pub(crate) longest_input: u64,
    /// The request sets a bound on its answer.
    pub(crate) bounded: bool,
    /// What a token of its prompt may cost more than the price of input, in percent: it may be written into a provider's cache.
    pub(crate) dearer: u32,
}

impl Expected {
    /// So many tokens of input cost as much as a prompt of that many.
    fn priced(&self, tokens: u64) -> u64 {
        tokens.saturating_add(self.dearer_by(tokens))
    }

    /// How many more that are than it has. Rounded up.
    fn dearer_by(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.dearer.into()).div_ceil(100)
    }
}

/// Keeps what calls use within the purses. A call reserves what it is expected to use before it waits for its permit, and
/// its answer replaces that by the actual usage.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limits: Limits,
    prices: Prices,
    /// A configured limit counts answers: calls without a bound are told.
    is_limited: bool,
    ledger: Mutex<Ledger>,
    settled: Notify,
    /// An answer was longer than all before that exceeded their bounds.
    outgrew: Notify,
    /// Calls that wait until others have given back what they did not use.
    waiting: AtomicU64,
    /// Answers that report no whole usage were told.
    told_unreported: AtomicBool,
    /// That more was used than there is was told.
    told_exceeded: AtomicBool,
}

#[derive(Debug, Default)]
struct Ledger {
    run: Sum,
    /// Over all runs.
    job: Sum,
    /// In the runs before.
    before: Sum,
    /// Calls of the job that used something, or may have.
    calls: u64,
    /// Calls that have ended, and told what calls use here if any does.
    known: u64,
    reserved: Sum,
    /// What the last of these used.
    recent: Recent,
    /// Calls that used more than they had reserved, of those that ended after the last that found room.
    longer: Longer,
    /// Calls that hold something.
    open: u64,
    models: BTreeMap<Arc<str>, Answers>,
    /// That several models have one price was told.
    told_models: bool,
}

/// What this run knows of the answers of a model.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    /// As in the ledger.
    known: u64,
    open: u64,
    /// The tokens of the longest one that exceeded the bound of its request; 0 where all kept to theirs.
    beyond: u64,
}

/// Tokens, and what they cost.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    usage: Usage,
    cost: Money,
}

impl Sum {
    fn of_usage(used: &ModelUsage, prices: &Prices) -> Self {
        let usage = Usage { input_tokens: used.tokens_in, output_tokens: used.tokens_out, ..Usage::default() };
        Self { usage, cost: prices.of(&used.model).of(used.priced_in(), used.tokens_out) }
    }

    /// In the units of a purse.
    const fn of(&self, purse: BudgetKind) -> u64 {
        match purse {
            BudgetKind::RunTokens | BudgetKind::JobTokens => self.usage.total(),
            BudgetKind::JobCost => self.cost.units(),
        }
    }

    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        self.usage.input_tokens = with(self.usage.input_tokens, other.usage.input_tokens);
        self.usage.output_tokens = with(self.usage.output_tokens, other.usage.output_tokens);
        self.cost = Money::from_units(with(self.cost.units(), other.cost.units()));
    }
}

impl Ledger {
    const fn used(&self, purse: BudgetKind) -> u64 {
        match purse {
            BudgetKind::RunTokens => self.run.of(purse),
            BudgetKind::JobTokens | BudgetKind::JobCost => self.job.of(purse),
        }
    }

    /// What a call has used so far on average: the guess for one whose answer has no bound of its own.
    fn mean(&self) -> Usage {
        let Usage { input_tokens, output_tokens, .. } = self.job.usage;
        let mean = |tokens: u64| tokens.checked_div(self.calls).unwrap_or(0);
        Usage { input_tokens: mean(input_tokens), output_tokens: mean(output_tokens), ..Usage::default() }
    }
}

impl Budget {
    /// A budget of a job whose runs before used `before`. `is_limited`: a configured limit counts answers too.
    pub(crate) fn new(limits: Limits, prices: Prices, before: &[ModelUsage], is_limited: bool) -> Self {
        let mut ledger = Ledger::default();
        for used in before {
            ledger.job.combine(&Sum::of_usage(used, &prices), u64::saturating_add);
            ledger.calls += used.calls;
            ledger.known += if used.tokens_out > 0 { used.calls } else { 0 };
        }
        ledger.before = ledger.job;
        Self { limits, prices, is_limited, ledger: Mutex::new(ledger), ..Self::default() }
    }

    /// Whether calls are counted against anything.
    pub(crate) fn has_an_end(&self) -> bool {
        self.limits.all().next().is_some()
    }

    /// Whether a configured limit counts answers, whose length the pacer learns.
    pub(crate) const fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Whether it [is of the job](Limits::are_of_job).
    pub(crate) const fn is_of_job(&self) -> bool {
        self.limits.are_of_job()
    }

    /// Takes what a call may use, waiting while calls under way hold so much that it might not fit; alone it leaves if what it is
    /// expected to use fits. Until an answer has shown what calls use here, those whose answers have no bound leave one by one,
    /// and then no more of them are under way than were answered, lest a short first answer speak for all. The
    /// first call of a model leaves alone in any case: it shows whether the server keeps to the bounds of requests.
    /// Where it does not, calls reserve as much as the longest answer had, and leave like those without a bound.
    ///
    /// # Errors
    /// The purse that it does not fit in any more: what has been used stays used.
    pub(crate) async fn reserve(&self, mut expected: Expected) -> Result<Reserved<'_>, Exceeded> {
        if !self.has_an_end() {
            return Ok(Reserved { budget: self, expected, sum: Sum::default(), held: Sum::default(), unknown: 0 });
        }
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            {
                let mut ledger = self.ledger();
                let answers = ledger.models.get(&expected.model).copied().unwrap_or_default();
                expected.usage.output_tokens = expected.usage.output_tokens.max(answers.beyond);
                let sum = self.expected(&expected, larger(expected.usage, ledger.mean()));
                let longest = Usage { input_tokens: expected.longest_input, ..Usage::default() };
                let held = self.expected(&expected, larger(sum.usage, longest));
                let is_new = ledger.known < ledger.open;
                let is_first = answers.known == 0 && answers.open > 0;
                let mut waits = is_first || (!expected.bounded || answers.beyond > 0) && is_new;
                for (purse, limit) in self.limits.all() {
                    let (next, used) = (sum.of(purse), ledger.used(purse));
                    let free = limit.saturating_sub(used);
                    if next > free || free == 0 {
                        return Err(Exceeded { purse, limit, used, next, line: None });
                    }
                    waits |= ledger.open > 0 && ledger.reserved.of(purse).saturating_add(held.of(purse)) > free;
                }
                if !waits {
                    ledger.longer = Longer::default();
                    ledger.reserved.combine(&held, u64::saturating_add);
                    ledger.open += 1;
                    let is_new = !ledger.models.contains_key(&expected.model);
                    ledger.models.entry(Arc::clone(&expected.model)).or_default().open += 1;
                    if is_new {
                        self.tell_models(&mut ledger, &expected.model);
                    }
                    return Ok(Reserved { budget: self, expected, sum, held, unknown: 0 });
                }
            }
            let _waiting = Waiting::among(&self.waiting);
            settled.await;
        }
    }

    /// What has been used.
    pub(crate) fn used(&self) -> Used {
        let ledger = self.ledger();
        let mean = self.limits.all().map(|(purse, limit)| {
            let used = ledger.used(purse);
            // Of this run alone it is not known how many calls there were; a call uses what those of the job use.
            let mean = ledger.job.of(purse).checked_div(ledger.calls).filter(|mean| *mean > 0)?;
            Some(limit.saturating_sub(used) / mean)
        });
        Used {
            tokens: self.limits.job_tokens.map(|limit| (ledger.job.usage.total(), limit)),
            cost: (!self.prices.is_empty()).then_some((ledger.job.cost, self.limits.job_cost)),
            calls_left: mean.flatten().min(),
            holds_back: self.waiting.load(Ordering::Relaxed) > 0,
            usage: (ledger.job.usage.input_tokens, ledger.job.usage.output_tokens),
            reported: None,
            price: self.prices.only(),
        }
    }

    /// Says of a new model that the table has no price for it, and once that one price is taken for several.
    fn tell_models(&self, ledger: &mut Ledger, new: &str) {
        if self.limits.job_cost.is_none() {
            return;
        }
        unpriced(&self.prices, std::iter::once(new)).into_iter().for_each(|words| tracing::warn!("{words}"));
        if ledger.models.len() < 2 || ledger.told_models {
            return;
        }
        ledger.told_models = true;
        if let Some(words) = one_price(&self.prices, ledger.models.keys().map(|model| &**model)) {
            tracing::warn!("{words}");
        }
    }

    /// An answer of a model is longer than its request allows: from now on each is expected to be as long.
    fn exceeded_bound(&self, counted: &ModelUsage, bound: u64) {
        let mut ledger = self.ledger();
        let answers = ledger.models.entry(Arc::clone(&counted.model)).or_default();
        let first = answers.beyond == 0;
        let is_longest = counted.tokens_out > answers.beyond;
        answers.beyond = answers.beyond.max(counted.tokens_out);
        drop(ledger);
        if is_longest {
            self.outgrew.notify_waiters();
        }
        if first && self.has_an_end() {
            let model = if counted.model.is_empty() { "the server".into() } else { text::printable(&counted.model) };
            let [tokens, bound] = [counted.tokens_out, bound].map(text::count);
            tracing::warn!(
                "{model} answered with {tokens} tokens although its request allows {bound} (such as max_tokens): the budget now \
                 counts with {tokens}, or more where longer answers come"
            );
        }
    }

    /// Says once that what an answer used has to be estimated.
    fn tell_unreported(&self) {
        if self.has_an_end() && !self.told_unreported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "a successful answer does not say how many tokens it used, or says 0, as streams and web pages do: the budget counts what is \
                 estimated for such answers, and the bill may differ"
            );
        }
    }

    /// What a call costs that is expected to use that.
    fn expected(&self, call: &Expected, usage: Usage) -> Sum {
        let cost = self.prices.of(&call.model).of(call.priced(usage.input_tokens), usage.output_tokens);
        Sum { usage, cost }
    }

    fn sum(&self, model: &str, usage: Usage) -> Sum {
        Sum { usage, cost: self.prices.of(model).of(usage.input_tokens, usage.output_tokens) }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of those that wait, until dropped.
struct Waiting<'a>(&'a AtomicU64);

impl<'a> Waiting<'a> {
    fn among(all: &'a AtomicU64) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn larger(a: Usage, b: Usage) -> Usage {
    let (input_tokens, output_tokens) = (a.input_tokens.max(b.input_tokens), a.output_tokens.max(b.output_tokens));
    Usage { input_tokens, output_tokens, ..Usage::default() }
}

/// What a call has taken from the budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    budget: &'a Budget,
    expected: Expected,
    /// What it is expected to use.
    sum: Sum,
    /// What nothing else may use meanwhile.
    held: Sum,
    /// Calls before it of which nothing is known.
    unknown: u64,
}

impl Reserved<'_> {
    /// Waits until an answer of its model has shown that the call may use more than was reserved for it.
    pub(crate) async fn is_outgrown(&self) {
        // Without an end nothing is reserved.
        if !self.budget.has_an_end() {
            return std::future::pending().await;
        }
        loop {
            let mut outgrew = std::pin::pin!(self.budget.outgrew.notified());
            outgrew.as_mut().enable();
            let beyond = self.budget.ledger().models.get(&self.expected.model).map_or(0, |answers| answers.beyond);
            if beyond > self.expected.usage.output_tokens {
                return;
            }
            outgrew.await;
        }
    }

    /// What the call counts with while its use is not known.
    pub(crate) fn expected(&self) -> ModelUsage {
        self.as_expected(larger(self.expected.usage, self.sum.usage))
    }

    /// A call whose use is not known counts as if its prompt were written into the cache, where it may be.
    fn as_expected(&self, usage: Usage) -> ModelUsage {
        let dearer = self.expected.dearer_by(usage.prompt_tokens()).min(u64::MAX >> 1);
        self.usage(Usage { cache_price: dearer.cast_signed(), ..usage }, 1)
    }

    /// A gateway made so many calls before this one, and of none of them it is known what it used: they count as expected.
    pub(crate) fn after(mut self, unknown: u32) -> Self {
        self.unknown = unknown.into();
        self
    }

    /// The call is over and used that. Of what it does not tell of an answer of tokens that `came`, or with `None`, as much as
    /// expected counts, and where the request set no bound no less than what came. Returns what the call counts with.
    pub(crate) fn settle(self, used: Option<Usage>, came: impl FnOnce() -> u64) -> ModelUsage {
        let Expected { usage: Usage { output_tokens: bound, .. }, bounded, .. } = self.expected;
        let has_answer = !bounded || bound > 0;
        let expected = self.expected();
        let (reserved_in, reserved_out) = (expected.tokens_in, expected.tokens_out);
        let answer = |came: u64| if bounded { expected.tokens_out } else { expected.tokens_out.max(came) };
        let counted = match used {
            Some(used) if used.prompt_tokens() > 0 && (used.output_tokens > 0 || !has_answer) => self.usage(used, 1),
            Some(used) => match came() {
                0 => self.usage(used, u64::from(used.total() > 0)),
                came => {
                    self.budget.tell_unreported();
                    let is_told = used.output_tokens > 0 || !has_answer;
                    let output_tokens = if is_told { used.output_tokens } else { answer(came) };
                    let told = self.usage(Usage { output_tokens, ..used }, 1);
                    match used.prompt_tokens() {
                        0 => ModelUsage { tokens_out: output_tokens, ..expected.clone() },
                        _ => told,
                    }
                }
            },
            None => {
                let came = came();
                if came > 0 {
                    self.budget.tell_unreported();
                }
                ModelUsage { tokens_out: answer(came), ..expected.clone() }
            }
        };
        // Where only a total was reported, a little more is no more than the error of an estimate.
        let exceeds = |used: Usage| used.output_tokens > if used.undivided { bound.saturating_mul(2) } else { bound };
        if bounded && bound > 0 && used.is_some_and(exceeds) {
            self.budget.exceeded_bound(&counted, bound);
        }
        let more = |input_tokens, output_tokens| {
            self.budget.sum(&counted.model, Usage { input_tokens, output_tokens, ..Usage::default() })
        };
        let more_in = more(counted.tokens_in.saturating_sub(reserved_in), 0);
        let more_out = more(0, counted.tokens_out.saturating_sub(reserved_out));
        // A price of the cache is money alone.
        let dearer = counted.cache_price.saturating_sub(expected.cache_price);
        let written = Sum { cost: more(u64::try_from(dearer).unwrap_or(0), 0).cost, ..Sum::default() };
        let (tokens_in, tokens_out) = (counted.tokens_in, counted.tokens_out);
        let one = Sum::of_usage(&counted, &self.budget.prices);
        let also = |tokens: u64, expected: u64| tokens.saturating_add(expected.saturating_mul(self.unknown));
        let dearer = expected.cache_price.saturating_mul(self.unknown.try_into().unwrap_or(i64::MAX));
        let counted = ModelUsage {
            calls: counted.calls + self.unknown,
            tokens_in: also(tokens_in, reserved_in),
            tokens_out: also(tokens_out, reserved_out),
            cache_price: counted.cache_price.saturating_add(dearer),
            ..counted
        };
        let sum = Sum::of_usage(&counted, &self.budget.prices);
        let mut ledger = self.budget.ledger();
        ledger.longer.add([tokens_in, reserved_in], &more_in, [tokens_out, reserved_out], &more_out, &written);
        if counted.calls > 0 {
            ledger.recent.add(one);
        }
        ledger.run.combine(&sum, u64::saturating_add);
        ledger.job.combine(&sum, u64::saturating_add);
        ledger.calls += counted.calls;
        ledger.known += counted.calls;
        if let Some(answers) = ledger.models.get_mut(&counted.model) {
            answers.known += counted.calls;
        }
        self.budget.tell_exceeded(&ledger, &sum);
        drop(ledger);
        counted
    }

    fn usage(&self, usage: Usage, calls: u64) -> ModelUsage {
        let price = self.budget.prices.of(&self.expected.model);
        ModelUsage {
            model: Arc::clone(&self.expected.model),
            calls,
            tokens_in: usage.prompt_tokens(),
            tokens_out: usage.output_tokens,
            cache_price: usage.cache_price.saturating_sub_unsigned(price.less_for_cached(&usage)),
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.budget.has_an_end() {
            let mut ledger = self.budget.ledger();
            ledger.reserved.combine(&self.held, u64::saturating_sub);
            ledger.open -= 1;
            if let Some(answers) = ledger.models.get_mut(&self.expected.model) {
                answers.open -= 1;
            }
            drop(ledger);
            self.budget.settled.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
