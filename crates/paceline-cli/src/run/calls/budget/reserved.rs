//! What a call holds of a budget until its answer tells what it used.

use std::sync::Arc;

use paceline_config::Money;
use paceline_providers::Usage;
use paceline_store::ModelUsage;

use super::{Budget, Expected, Ledger, Sum, cost_of, larger, priced_in};

/// What a call has taken from the budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    pub(super) budget: &'a Budget,
    pub(super) expected: Expected,
    /// What it is expected to use.
    pub(super) sum: Sum,
    /// What nothing else may use meanwhile.
    pub(super) held: Sum,
    /// Calls before it of which nothing is known.
    unknown: u64,
    /// Its answer was cut off, and tells its prompt at most.
    is_cut: bool,
    /// Another model that answered, and whether it has a price of its own.
    pub(super) answered: Option<(Arc<str>, bool)>,
}

impl<'a> Reserved<'a> {
    /// What nothing of is known yet.
    pub(super) const fn new(budget: &'a Budget, expected: Expected, sum: Sum, held: Sum) -> Self {
        Self { budget, expected, sum, held, unknown: 0, is_cut: false, answered: None }
    }
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
            let answers = self.budget.ledger().models.get(&self.expected.model).cloned().unwrap_or_default();
            if answers.beyond > self.expected.usage.output_tokens || answers.dearer != self.expected.dearer_model {
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
        let usage = Usage { cache_price: dearer.cast_signed(), ..usage };
        let model = self.budget.dearest(&self.expected.model, self.expected.dearer_model.as_ref(), &usage);
        ModelUsage { model, ..self.usage(usage, 1) }
    }

    /// A gateway made so many calls before this one, and of none of them it is known what it used: they count as expected.
    pub(crate) fn after(mut self, unknown: u32) -> Self {
        self.unknown = unknown.into();
        self
    }

    /// Its answer may have been cut off after it had told its prompt: of the rest as much as expected counts.
    pub(crate) fn cut_off(mut self, is_cut: bool) -> Self {
        self.is_cut = is_cut;
        self
    }

    /// The call is over and used that. Of what it does not tell of an answer of tokens that `came`, or with `None`, as much as
    /// expected counts, and where the request set no bound no less than what came. Returns what the call counts with.
    pub(crate) fn settle(self, used: Option<Usage>, came: impl FnOnce() -> u64) -> ModelUsage {
        let Expected { usage: Usage { output_tokens: bound, .. }, bounded, .. } = self.expected;
        let has_answer = !bounded || bound > 0;
        let expected = self.expected();
        let answer = |came: u64| if bounded { expected.tokens_out } else { expected.tokens_out.max(came) };
        let counted = match used {
            Some(used) if used.prompt_tokens() > 0 && (used.output_tokens > 0 || !has_answer) => self.usage(used, 1),
            Some(used) if self.is_cut && used.prompt_tokens() > 0 => {
                self.usage(Usage { output_tokens: answer(came()), ..used }, 1)
            }
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
            self.budget.exceeded_bound(&self.expected.model, &counted, bound);
        }
        let (tokens_in, tokens_out) = (counted.tokens_in, counted.tokens_out);
        let one = counted.clone();
        let also = |tokens: u64, expected: u64| tokens.saturating_add(expected.saturating_mul(self.unknown));
        let dearer = expected.cache_price.saturating_mul(self.unknown.try_into().unwrap_or(i64::MAX));
        let counted = ModelUsage {
            calls: counted.calls + self.unknown,
            tokens_in: also(tokens_in, expected.tokens_in),
            tokens_out: also(tokens_out, expected.tokens_out),
            cache_price: counted.cache_price.saturating_add(dearer),
            ..counted
        };
        let sum = Sum::of_usage(&counted, &self.budget.prices);
        let mut ledger = self.budget.ledger();
        self.note_longer(&mut ledger, &one, &expected);
        if counted.calls > 0 {
            ledger.recent.add(Sum::of_usage(&one, &self.budget.prices));
        }
        ledger.run.combine(&sum, u64::saturating_add);
        ledger.job.combine(&sum, u64::saturating_add);
        ledger.calls += counted.calls;
        ledger.cached += counted.cached_tokens;
        ledger.job_out += self.budget.prices.of(&counted.model).of(0, counted.tokens_out).units();
        ledger.known += counted.calls;
        if let Some(answers) = ledger.models.get_mut(&self.expected.model) {
            answers.known += counted.calls;
        }
        let is_dearer = used.is_some_and(|used| self.note_answered(&mut ledger, &used));
        self.budget.tell_exceeded(&ledger, &sum);
        drop(ledger);
        if is_dearer {
            self.budget.outgrew.notify_waiters();
        }
        counted
    }

    /// Keeps what of the use exceeds what was reserved for it.
    fn note_longer(&self, ledger: &mut Ledger, used: &ModelUsage, reserved: &ModelUsage) {
        let prices = &self.budget.prices;
        let more = |input_tokens, output_tokens| {
            self.budget.sum(&reserved.model, Usage { input_tokens, output_tokens, ..Usage::default() })
        };
        let more_in = more(used.tokens_in.saturating_sub(reserved.tokens_in), 0);
        let more_out = more(0, used.tokens_out.saturating_sub(reserved.tokens_out));
        // A price of the cache is money alone.
        let price = prices.of(&reserved.model);
        let written = priced_in(used, &price).saturating_sub(used.tokens_in);
        let written = written.saturating_sub(u64::try_from(reserved.cache_price).unwrap_or(0));
        let at_reserved = ModelUsage { model: Arc::clone(&reserved.model), ..used.clone() };
        let dearer = cost_of(used, prices).units().saturating_sub(cost_of(&at_reserved, prices).units());
        let money = [more(written, 0).cost, Money::from_units(dearer)];
        let (prompt, answer) = ([used.tokens_in, reserved.tokens_in], [used.tokens_out, reserved.tokens_out]);
        ledger.longer.add(prompt, &more_in, answer, &more_out, money);
    }

    fn usage(&self, usage: Usage, calls: u64) -> ModelUsage {
        ModelUsage {
            model: self.counts_as(&usage),
            calls,
            tokens_in: usage.prompt_tokens(),
            tokens_out: usage.output_tokens,
            cache_price: usage.cache_price.saturating_sub(usage.cached_price),
            cached_tokens: usage.cached_tokens,
            cached_price: usage.cached_price,
            calls_of_older: 0,
            calls_unpriced: u64::from(calls > 0 && self.is_unpriced()),
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
