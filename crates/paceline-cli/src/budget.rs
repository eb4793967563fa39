//! What calls may use: tokens of one run, and tokens and money of the job over all its runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_config::{Money, Prices};
use paceline_core::Alike;
use paceline_providers::{PromptSize, PromptTokens, Usage};
use paceline_store::ModelUsage;
use tokio::sync::Notify;

use crate::text;

mod alike;
mod answered;
mod left_out;
mod longer;
mod purse;
mod recent;
mod reserved;
mod words;

use self::alike::{Answers, Kind, longest};
pub(crate) use self::answered::AnsweredBy;
use self::left_out::LeftOut;
use self::longer::Longer;
use self::purse::Amount;
pub(crate) use self::purse::{BudgetKind, Exceeded, Limits};
pub(crate) use self::recent::Left;
use self::recent::{ByModel, Call, Recent};
pub(crate) use self::reserved::Reserved;
pub(crate) use self::words::{Enough, Used, one_price, unpriced};

/// What a call is expected to use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// The model that its price is of; empty when it names none.
    pub(crate) model: Arc<str>,
    pub(crate) usage: Usage,
    /// What is known of its prompt, where a budget asks, and what that may have by the answers so far.
    pub(crate) size: Option<PromptSize>,
    pub(crate) prompt: PromptTokens,
    /// Its request tells nothing of what it costs, as one for pictures.
    pub(crate) is_untold: bool,
    /// The bytes of its line in the input.
    pub(crate) bytes: u64,
    /// The most tokens that the request allows for its answer.
    pub(crate) bound: Option<u64>,
    /// It asks for a stream, which tells its usage only where that is asked for too.
    pub(crate) streams: bool,
    /// What a token of its prompt may cost more than the price of input, in percent: it may be written into a provider's cache.
    pub(crate) dearer: u32,
    /// A dearer model that has answered in place of its own.
    pub(crate) dearer_model: Option<Arc<str>>,
}

impl Expected {
    /// With as much as calls use here on average: a guess for an answer without a bound of its own, and for a prompt that holds
    /// more than text. Of others more is known.
    fn usual(&self, mean: Usage) -> Usage {
        if self.is_untold {
            return self.usage;
        }
        let input_tokens = if self.prompt.greatest.is_some() { 0 } else { mean.input_tokens };
        let output_tokens = if self.bound.is_some() { 0 } else { mean.output_tokens };
        larger(self.usage, Usage { input_tokens, output_tokens, ..Usage::default() })
    }

    /// Whether nothing tells what it costs: neither its request, nor an answer so far.
    fn counts_nothing(&self) -> bool {
        self.is_untold && self.usage.total() == 0
    }

    /// How much its request tells of what it costs.
    fn kind(&self) -> Kind {
        match self.prompt.greatest {
            _ if self.is_untold => Kind::Untold,
            None if self.size.is_some() => Kind::Mixed,
            _ => Kind::Text,
        }
    }

    /// What it costs with that, where its whole prompt is written into a provider's cache if it may be.
    fn priced(&self, Usage { input_tokens, output_tokens, .. }: Usage) -> Usage {
        Usage::reserved(input_tokens, output_tokens, self.dearer.saturating_add(100))
    }
}

/// So many calls say whether answers tell of a cache.
const SAYS_MUCH: u64 = 20;

/// Keeps what calls use within the purses. A call reserves what it is expected to use before it waits for its permit, and
/// its answer replaces that by the actual usage.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limits: Limits,
    prices: Prices,
    /// A configured limit counts answers: calls without a bound are told.
    is_limited: bool,
    /// The name of its upstream, as a gateway's fallback may name it too.
    upstream: Box<str>,
    ledger: Mutex<Ledger>,
    settled: Notify,
    /// An answer was longer than all before that exceeded their bounds.
    outgrew: Notify,
    /// Calls that wait until others have given back what they did not use.
    waiting: AtomicU64,
    /// Answers that report no whole usage were told, and those that report a total alone.
    told_unreported: AtomicBool,
    told_divided: AtomicBool,
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
    /// What the last calls of this run had to find room for.
    asked: Recent,
    left_out: LeftOut,
    /// What the last of these used.
    recent: Recent,
    by_model: ByModel,
    /// Calls that used more than they had reserved, of those that ended after the last that found room.
    longer: Longer,
    /// Of each model what the runs before have shown.
    models_before: BTreeMap<Arc<str>, Before>,
    /// Calls that hold something.
    open: u64,
    models: BTreeMap<Arc<str>, Answers>,
    /// That several models have one price was told.
    told_models: bool,
    /// Models that answered in place of others, as far as that was told.
    told_answered: BTreeSet<Arc<str>>,
    /// Calls that went to a model or upstream of which no price is known, in place of another.
    unpriced: u64,
    /// What all answers cost, in the units of money, and what of that only a total told with the prompt.
    job_out: u64,
    divided_out: u64,
    /// Tokens of prompts that a cache was read for, over all runs, as far as it is known.
    cached: u64,
}

/// What the runs before have shown of a model.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    /// What a call used on average.
    usual: Usage,
    /// The longest answer that exceeded its bound.
    beyond: u64,
}

/// Tokens, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    usage: Usage,
    cost: Money,
}

impl Sum {
    fn of_usage(used: &ModelUsage, prices: &Prices) -> Self {
        let usage = Usage { input_tokens: used.tokens_in, output_tokens: used.tokens_out, ..Usage::default() };
        Self { usage, cost: cost_of(used, prices) }
    }

    /// In the units of a purse.
    fn of(&self, purse: BudgetKind) -> u64 {
        Amount::from(*self).of(purse)
    }

    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        self.usage.input_tokens = with(self.usage.input_tokens, other.usage.input_tokens);
        self.usage.output_tokens = with(self.usage.output_tokens, other.usage.output_tokens);
        self.cost = Money::from_units(with(self.cost.units(), other.cost.units()));
    }
}

/// What calls of a model cost at these prices.
pub(crate) fn cost_of(used: &ModelUsage, prices: &Prices) -> Money {
    prices.of(&used.model).of_usage(&usage_of(used))
}

/// Those of the calls that went to another model or upstream than asked for, and have no known price: what has one by now, and
/// had none, is no more without.
fn unpriced_of(used: &ModelUsage, prices: &Prices) -> u64 {
    let in_place = if prices.has_own(&used.model) { 0 } else { used.calls_in_place };
    used.calls_unpriced.saturating_add(in_place)
}

fn usage_of(used: &ModelUsage) -> Usage {
    Usage {
        input_tokens: used.tokens_in,
        output_tokens: used.tokens_out,
        cache_price: used.cache_price.saturating_add(used.cached_price),
        cached_tokens: used.cached_tokens,
        cached_price: used.cached_price,
        written_tokens: used.written_tokens,
        written_price: used.written_price,
        ..Usage::default()
    }
}

impl Ledger {
    fn used(&self, purse: BudgetKind) -> u64 {
        match purse {
            BudgetKind::RunTokens => self.run.of(purse),
            BudgetKind::JobTokens | BudgetKind::JobCost => self.job.of(purse),
        }
    }

    fn add_answers(&mut self, used: &ModelUsage, prices: &Prices) {
        let cost = |tokens_out| prices.of(&used.model).of(0, tokens_out).units();
        self.job_out += cost(used.tokens_out);
        self.divided_out += cost(used.divided_out);
    }

    /// What is known of the answers of a model.
    fn answers_of(&self, model: &str) -> Answers {
        let new = || Answers { beyond: self.before_of(model).beyond, ..Answers::default() };
        self.models.get(model).cloned().unwrap_or_else(new)
    }

    fn before_of(&self, model: &str) -> Before {
        self.models_before.get(model).copied().unwrap_or_default()
    }

    /// What all answers of the job used.
    const fn answers(&self) -> Sum {
        let usage = Usage { input_tokens: 0, ..self.job.usage };
        Sum { usage, cost: Money::from_units(self.job_out) }
    }
}

impl Budget {
    /// A budget of a job whose runs before used `before`. `is_limited`: a configured limit counts answers too.
    pub(crate) fn new(limits: Limits, prices: Prices, before: &[ModelUsage], is_limited: bool) -> Self {
        let mut ledger = Ledger::default();
        for used in before {
            let sum = Sum::of_usage(used, &prices);
            ledger.job.combine(&sum, u64::saturating_add);
            ledger.by_model.add(&used.model, used.calls, &sum);
            ledger.calls += used.calls;
            ledger.cached += used.cached_tokens + used.calls_of_older;
            ledger.add_answers(used, &prices);
            ledger.unpriced += unpriced_of(used, &prices);
            ledger.known += if used.tokens_out > 0 { used.calls } else { 0 };
            let before = Before { usual: mean(&usage_of(used), used.calls), beyond: used.beyond_bound };
            ledger.models_before.insert(Arc::clone(&used.model), before);
        }
        ledger.before = ledger.job;
        Self { limits, prices, is_limited, ledger: Mutex::new(ledger), ..Self::default() }
    }

    /// The same, of jobs of that upstream.
    pub(crate) fn of_upstream(self, name: &str) -> Self {
        Self { upstream: name.into(), ..self }
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

    /// Takes what a call may use, waiting while calls under way hold so much that it might not fit; alone it leaves if what it
    /// likely uses fits. Until an answer has shown what calls use here, those whose answers have no bound leave one by one,
    /// and then no more of them are under way than were answered, lest a short first answer speak for all. The
    /// first call of a model leaves alone in any case: it shows whether the server keeps to the bounds of requests.
    /// Where it does not, calls reserve as much as the longest answer had, and leave like those without a bound; from the
    /// first one of a later run on.
    /// Of prompts that hold more than text, as pictures, no more of a model are under way than were answered, and each may be as
    /// long as the longest of them. The same holds for calls whose requests tell nothing of their cost, such as for pictures.
    /// What is expected of it is asked for anew whenever others have ended: their answers tell more.
    ///
    /// # Errors
    /// The purse that it does not fit in any more: what has been used stays used.
    pub(crate) async fn reserve_as_known(&self, expected: impl Fn() -> Expected) -> Result<Reserved<'_>, Exceeded> {
        if !self.has_an_end() {
            return Ok(Reserved::new(self, expected(), Sum::default(), Sum::default()));
        }
        loop {
            let mut expected = expected();
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            {
                let mut ledger = self.ledger();
                let answers = ledger.answers_of(&expected.model);
                expected.dearer_model = answers.dearer.clone();
                expected.usage.output_tokens = expected.usage.output_tokens.max(answers.beyond);
                let (kind, alike) = (expected.kind(), answers.alike(expected.kind()));
                if kind == Kind::Untold {
                    let before = ledger.before_of(&expected.model);
                    expected.usage = larger(larger(expected.usage, before.usual), longest(&alike));
                }
                let sum = self.expected(&expected, expected.usual(ledger.mean()));
                let with = |sum: &Sum, input_tokens| larger(sum.usage, Usage { input_tokens, ..Usage::default() });
                let asked = self.expected(&expected, with(&sum, expected.prompt.likely));
                let held = self.expected(&expected, with(&asked, expected.prompt.most.max(alike.longest_input())));
                let is_new = ledger.known < ledger.open;
                let is_first = answers.known == 0 && answers.open > 0 || !alike.may_leave();
                let mut waits = is_first || (expected.bound.is_none() || answers.beyond > 0) && is_new;
                for (purse, limit) in self.limits.all() {
                    let used = ledger.used(purse);
                    let free = limit.saturating_sub(used);
                    if asked.of(purse) > free || free == 0 {
                        let [likely, once_known] = self.likely(&ledger, &expected, &asked).map(Amount::from);
                        let next = asked.into();
                        let (others_fit, bytes, line) = (ledger.has_room(purse, free), expected.bytes, None);
                        return Err(Exceeded { purse, limit, used, next, likely, once_known, others_fit, bytes, line });
                    }
                    waits |= ledger.open > 0 && ledger.reserved.of(purse).saturating_add(held.of(purse)) > free;
                }
                if !waits {
                    ledger.longer = Longer::default();
                    ledger.reserved.combine(&held, u64::saturating_add);
                    ledger.asked.add(Call { all: asked, ..Call::default() });
                    ledger.open += 1;
                    let is_new = !ledger.models.contains_key(&expected.model);
                    let answers = ledger.models.entry(Arc::clone(&expected.model)).or_insert(answers);
                    answers.open += 1;
                    answers.alike_mut(kind).into_iter().for_each(Alike::sent);
                    if is_new {
                        self.tell_models(&mut ledger, &expected.model);
                    }
                    return Ok(Reserved::new(self, expected, sum, held));
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
            unpriced: ledger.unpriced,
            cost_out: Money::from_units(ledger.job_out),
            divided_out: Money::from_units(ledger.divided_out),
            lacks_cached: ledger.calls >= SAYS_MUCH && ledger.cached == 0,
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
    fn exceeded_bound(&self, asked: &Arc<str>, counted: &ModelUsage, bound: u64) {
        let mut ledger = self.ledger();
        let answers = ledger.models.entry(Arc::clone(asked)).or_default();
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
                "{model} exceeded the bound of {bound} tokens of its request (an answer had {tokens}): from now on each of its calls \
                 reserves {tokens} tokens of the budget, or more where longer answers come"
            );
        }
    }

    /// Says once that a total has to be divided.
    fn tell_divided(&self) {
        if self.limits.job_cost.is_some() && !self.told_divided.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "an answer tells a total of tokens alone: what that has above the text of the prompt counts as answer, and the bill may \
                 differ"
            );
        }
    }

    /// Whether several calls hold more than there is by now.
    fn has_too_little(&self) -> bool {
        let ledger = self.ledger();
        let is_over =
            |(purse, limit): (BudgetKind, u64)| ledger.used(purse).saturating_add(ledger.reserved.of(purse)) > limit;
        ledger.open > 1 && self.limits.all().any(is_over)
    }

    /// What a call costs that is expected to use that.
    fn expected(&self, call: &Expected, usage: Usage) -> Sum {
        let priced = call.priced(usage);
        let model = self.dearest(&call.model, call.dearer_model.as_ref(), &priced);
        Sum { usage, cost: self.cost(&model, &priced) }
    }

    /// What so many tokens of a model cost.
    fn cost(&self, model: &str, usage: &Usage) -> Money {
        self.prices.of(model).of_usage(usage)
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

/// Whether a request asks for a stream, as bodies are written: in a text of a prompt these quotes are escaped.
pub(crate) fn asks_for_stream(body: &[u8]) -> bool {
    let body = str::from_utf8(body).unwrap_or_default();
    ["\"stream\":true", "\"stream\": true"].iter().any(|member| body.contains(member))
}

/// What each of so many calls used on average.
fn mean(used: &Usage, calls: u64) -> Usage {
    let [input_tokens, output_tokens] =
        [used.input_tokens, used.output_tokens].map(|tokens| tokens.checked_div(calls).unwrap_or(0));
    Usage { input_tokens, output_tokens, ..Usage::default() }
}

fn larger(a: Usage, b: Usage) -> Usage {
    let (input_tokens, output_tokens) = (a.input_tokens.max(b.input_tokens), a.output_tokens.max(b.output_tokens));
    Usage { input_tokens, output_tokens, ..Usage::default() }
}

#[cfg(test)]
mod tests;
