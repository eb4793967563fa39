//! What a call holds of a budget until its answer tells what it used.

use std::sync::Arc;
use std::time::Duration;

use paceline_config::Money;
use paceline_core::Alike;
use paceline_providers::{PromptSize, PromptTokens, Usage, tokens_written};
use paceline_store::ModelUsage;

use super::alike::longest;
use super::answered::InPlace;
use super::{AnsweredBy, Budget, Call, Expected, Sum, cost_of, larger, unpriced_of, usage_of};

/// What a call has taken from the budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    pub(super) budget: &'a Budget,
    pub(super) expected: Expected,
    /// What it is expected to use.
    pub(super) sum: Sum,
    /// What nothing else may use meanwhile.
    pub(super) held: Sum,
    /// Its answer was cut off, and tells its prompt at most.
    is_cut: bool,
    /// It may have been executed, and has no answer: a model may have written so many tokens of one meanwhile.
    lost: Option<u64>,
    /// Another model that answered.
    pub(super) answered: Option<InPlace>,
}

impl<'a> Reserved<'a> {
    /// What nothing of is known yet.
    pub(super) const fn new(budget: &'a Budget, expected: Expected, sum: Sum, held: Sum) -> Self {
        Self { budget, expected, sum, held, is_cut: false, lost: None, answered: None }
    }
}

impl Reserved<'_> {
    /// Waits until answers have shown that the call may use more than was reserved for it, or that there is less than was
    /// reserved. `known`: what its prompt may have by the answers so far.
    pub(crate) async fn is_outgrown(&self, known: impl Fn() -> PromptTokens) {
        // Without an end nothing is reserved.
        if !self.budget.has_an_end() {
            return std::future::pending().await;
        }
        loop {
            let mut outgrew = std::pin::pin!(self.budget.outgrew.notified());
            outgrew.as_mut().enable();
            let answers = self.budget.ledger().models.get(&self.expected.model).cloned().unwrap_or_default();
            let may_use_more = answers.beyond > self.expected.usage.output_tokens
                || answers.dearer != self.expected.dearer_model
                || self.is_outgrown_by(longest(&answers.untold))
                || known().likely > self.expected.prompt.likely;
            if may_use_more || self.budget.has_too_little() {
                return;
            }
            outgrew.await;
        }
    }

    /// Whether it may use as much as that, and reserved less.
    fn is_outgrown_by(&self, longest: Usage) -> bool {
        let expected = self.expected.usage;
        self.expected.is_untold
            && (longest.input_tokens > expected.input_tokens || longest.output_tokens > expected.output_tokens)
    }

    /// What the call counts with while its use is not known.
    pub(crate) fn expected(&self) -> ModelUsage {
        self.as_expected(self.answered.as_slice())
    }

    /// The same before it was answered.
    fn reserved(&self) -> ModelUsage {
        self.as_expected(&[])
    }

    /// A call whose use is not known counts as if its prompt were written into the cache, where it may be, and with the dearest
    /// of the models that may have answered.
    fn as_expected(&self, answered: &[InPlace]) -> ModelUsage {
        let Expected { usage, prompt, bound, .. } = self.expected;
        let output_tokens = if bound.is_some() { 0 } else { self.lost.unwrap_or_default() };
        let seen = Usage { input_tokens: prompt.expected, output_tokens, ..Usage::default() };
        let usage = self.expected.priced(larger(larger(usage, seen), self.sum.usage));
        let priced = answered.iter().filter(|it| self.counts(it)).map(|it| &it.model);
        let models = self.expected.dearer_model.iter().chain(priced);
        let model = models
            .fold(Arc::clone(&self.expected.model), |model, other| self.budget.dearest(&model, Some(other), &usage));
        let usage = self.usage_as(Arc::clone(&model), usage, 1);
        let in_place = answered.iter().any(|it| it.model == model);
        let unpriced = answered.iter().any(|it| !it.is_priced && it.model != model);
        ModelUsage { calls_unpriced: unpriced.into(), calls_in_place: in_place.into(), ..usage }
    }

    /// A gateway made so many calls before this one of which it is not known what they used: they count as expected, with the
    /// dearest of the models that may have answered. Returns what they count with.
    pub(crate) fn lost(&self, calls: u32, at: Vec<AnsweredBy>) -> Option<ModelUsage> {
        let calls = u64::from(calls);
        (calls > 0).then(|| {
            let at: Vec<_> = at.into_iter().filter_map(|by| self.in_place(by)).collect();
            let one = self.as_expected(&at);
            let counted = ModelUsage {
                calls,
                tokens_in: one.tokens_in.saturating_mul(calls),
                tokens_out: one.tokens_out.saturating_mul(calls),
                cache_price: one.cache_price.saturating_mul(calls.try_into().unwrap_or(i64::MAX)),
                calls_unpriced: one.calls_unpriced * calls,
                calls_in_place: one.calls_in_place * calls,
                ..one.clone()
            };
            self.count(&counted, &one, &at, false);
            counted
        })
    }

    /// Its answer may have been cut off after it had told its prompt: of the rest as much as expected counts.
    pub(crate) fn cut_off(mut self, is_cut: bool) -> Self {
        self.is_cut = is_cut;
        self
    }

    /// Nothing tells what it used, though it may have been executed: its prompt counts as answers have shown by now, and its
    /// answer as a model may have written it in the time that the call took.
    pub(crate) fn lost_after(mut self, took: Duration, known: impl FnOnce(PromptSize) -> PromptTokens) -> Self {
        self.lost = Some(tokens_written(took));
        let known = self.expected.size.map(known).unwrap_or_default();
        self.expected.prompt = self.expected.prompt.at_least(known);
        self
    }

    /// The call is over and used that. Of what it does not tell of an answer of tokens that `came`, or with `None`, as much as
    /// expected counts, and where the request set no bound no less than what came. Returns what the call counts with.
    pub(crate) fn settle(self, used: Option<Usage>, came: impl FnOnce() -> u64) -> ModelUsage {
        let bound = self.expected.bound;
        let has_answer = bound != Some(0);
        let (expected, reserved) = (self.expected(), self.reserved());
        let answer = |came: u64| if bound.is_some() { expected.tokens_out } else { expected.tokens_out.max(came) };
        let mut counted = match used {
            Some(used) if used.prompt_tokens() > 0 && (used.output_tokens > 0 || !has_answer) => self.usage(used, 1),
            Some(used) if self.is_cut && used.prompt_tokens() > 0 => {
                self.usage(Usage { output_tokens: answer(came()), ..used }, 1)
            }
            Some(used) => match came() {
                0 => self.usage(used, u64::from(used.total() > 0)),
                came => {
                    self.budget.tell_unreported(&self.expected);
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
                if came > 0 || self.lost.is_some() && self.expected.counts_nothing() {
                    self.budget.tell_unreported(&self.expected);
                }
                ModelUsage { tokens_out: answer(came), ..expected.clone() }
            }
        };
        if used.is_some_and(|used| used.undivided) {
            self.budget.tell_divided();
        }
        // Where only a total was reported, a little more is no more than the error of an estimate.
        let exceeds =
            |used: Usage, bound: u64| used.output_tokens > if used.undivided { bound.saturating_mul(2) } else { bound };
        let heeded = bound.filter(|bound| *bound > 0 && !self.expected.is_untold);
        if let Some(bound) = heeded.filter(|bound| used.is_some_and(|used| exceeds(used, *bound))) {
            self.budget.exceeded_bound(&self.expected.model, &counted, bound);
            counted.beyond_bound = counted.tokens_out;
        }
        self.note_longer(&counted, &reserved);
        self.count(&counted, &counted, self.answered.as_slice(), self.lost.is_none());
        counted
    }

    /// Counts calls, each of which used as much as `one`; these models answered in place of the one that was asked for.
    /// `is_known`: answers told it, so that others need not go alone any more.
    fn count(&self, counted: &ModelUsage, one: &ModelUsage, answered: &[InPlace], is_known: bool) {
        let sum = Sum::of_usage(counted, &self.budget.prices);
        let mut ledger = self.budget.ledger();
        if counted.calls > 0 {
            let prices = &self.budget.prices;
            let answer =
                ModelUsage { tokens_out: one.tokens_out, model: Arc::clone(&one.model), ..ModelUsage::default() };
            let [all, answer] = [one, &answer].map(|used| Sum::of_usage(used, prices));
            ledger.recent.add(Call { all, answer, bytes: self.expected.bytes });
        }
        ledger.run.combine(&sum, u64::saturating_add);
        ledger.job.combine(&sum, u64::saturating_add);
        ledger.by_model.add(&self.expected.model, counted.calls, &sum);
        ledger.calls += counted.calls;
        ledger.cached += counted.cached_tokens;
        ledger.add_answers(counted, &self.budget.prices);
        let known = if is_known { counted.calls } else { 0 };
        ledger.known += known;
        ledger.unpriced += unpriced_of(counted, &self.budget.prices);
        let usage = Usage { input_tokens: one.tokens_in, output_tokens: one.tokens_out, ..Usage::default() };
        if let Some(answers) = ledger.models.get_mut(&self.expected.model) {
            answers.known += known;
            if let Some(alike) = answers.alike_mut(self.expected.kind()) {
                alike.answered(known, one.tokens_in, one.tokens_out);
            }
        }
        let dearer = answered.iter().filter(|it| self.note_answered(&mut ledger, it, &usage)).count();
        self.budget.tell_exceeded(&ledger, &sum);
        drop(ledger);
        if dearer > 0 || one.tokens_in > self.held.usage.input_tokens || self.is_outgrown_by(usage) {
            self.budget.outgrew.notify_waiters();
        }
    }

    /// Keeps what of the use exceeds what was reserved for it.
    fn note_longer(&self, used: &ModelUsage, reserved: &ModelUsage) {
        let prices = &self.budget.prices;
        let more = |input_tokens, output_tokens| {
            self.budget.sum(&reserved.model, Usage { input_tokens, output_tokens, ..Usage::default() })
        };
        let more_in = more(used.tokens_in.saturating_sub(reserved.tokens_in), 0);
        let more_out = more(0, used.tokens_out.saturating_sub(reserved.tokens_out));
        // A price of the cache is money alone.
        let price = prices.of(&reserved.model);
        let of_cache = |used: &ModelUsage| {
            price.of_usage(&usage_of(used)).units().saturating_sub(price.of(used.tokens_in, used.tokens_out).units())
        };
        let written = of_cache(used).saturating_sub(of_cache(reserved));
        let at_reserved = ModelUsage { model: Arc::clone(&reserved.model), ..used.clone() };
        let dearer = cost_of(used, prices).units().saturating_sub(cost_of(&at_reserved, prices).units());
        let money = [written, dearer].map(Money::from_units);
        let (prompt, answer) = ([used.tokens_in, reserved.tokens_in], [used.tokens_out, reserved.tokens_out]);
        self.budget.ledger().longer.add(prompt, &more_in, answer, &more_out, money);
    }

    fn usage(&self, usage: Usage, calls: u64) -> ModelUsage {
        let model = self.counts_as(&usage);
        let answered = self.answered.as_ref();
        let in_place = answered.is_some_and(|it| it.model == model);
        let unpriced = answered.is_some_and(|it| !it.is_priced && it.model != model);
        let [unpriced, in_place] = [unpriced, in_place].map(|is_so| if is_so { calls } else { 0 });
        ModelUsage { calls_unpriced: unpriced, calls_in_place: in_place, ..self.usage_as(model, usage, calls) }
    }

    fn usage_as(&self, model: Arc<str>, usage: Usage, calls: u64) -> ModelUsage {
        ModelUsage {
            model,
            calls,
            tokens_in: usage.prompt_tokens(),
            tokens_out: usage.output_tokens,
            cache_price: usage.cache_price.saturating_sub(usage.cached_price),
            cached_tokens: usage.cached_tokens,
            cached_price: usage.cached_price,
            written_tokens: usage.written_tokens,
            written_price: usage.written_price,
            divided_out: if usage.undivided { usage.output_tokens } else { 0 },
            ..ModelUsage::default()
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
                answers.alike_mut(self.expected.kind()).into_iter().for_each(Alike::ended);
            }
            drop(ledger);
            self.budget.settled.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use paceline_config::Prices;

    use super::super::Limits;
    use super::super::tests::{bounded, tokens};
    use super::*;

    /// A prompt had more tokens than its text says, while others wait for their permits.
    #[tokio::test]
    async fn calls_that_wait_for_their_permits_reserve_anew_once_less_is_left_than_they_hold() {
        let limits = Limits { job_tokens: Some(1_000), ..Limits::default() };
        let budget = Budget::new(limits, Prices::default(), &[], false);
        let prompt = PromptTokens { greatest: Some(100), ..PromptTokens::default() };
        let reserve = || budget.reserve(Expected { prompt, ..bounded(100, 20) }).now_or_never();
        reserve().expect("at once").expect("fits").settle(Some(tokens(100, 20)), || 0);
        let first = reserve().expect("at once").expect("fits");
        let waiting: Vec<_> = (0..5).map(|_| reserve().expect("at once").expect("fits")).collect();
        let mut outgrown = Box::pin(waiting[0].is_outgrown(PromptTokens::default));
        assert!(outgrown.as_mut().now_or_never().is_none());
        let longer = || PromptTokens { likely: 101, ..PromptTokens::default() };
        assert!(waiting[1].is_outgrown(longer).now_or_never().is_some(), "answers have shown that its own is longer");
        first.settle(Some(tokens(600, 20)), || 0);
        outgrown.as_mut().now_or_never().expect("it is woken");
        drop(outgrown);
        assert!(waiting.iter().all(|call| call.is_outgrown(PromptTokens::default).now_or_never().is_some()));
        drop(waiting);
        let left: Vec<_> = std::iter::from_fn(|| reserve()?.ok()).collect();
        assert_eq!(left.len(), 2, "of 260 tokens");
        assert!(left.iter().all(|call| call.is_outgrown(PromptTokens::default).now_or_never().is_none()));
    }

    /// Pictures after text: no answer has shown how long such a prompt is.
    #[tokio::test]
    async fn of_prompts_that_hold_more_than_text_no_more_are_under_way_than_were_answered() {
        let limits = Limits { job_tokens: Some(100_000), ..Limits::default() };
        let budget = Budget::new(limits, Prices::default(), &[], false);
        let reserve = |is_mixed: bool| {
            let prompt =
                PromptTokens { likely: 1_000, most: 1_000, greatest: (!is_mixed).then_some(1_000), expected: 1_000 };
            let expected = Expected { size: Some(PromptSize::default()), prompt, ..bounded(1_000, 20) };
            budget.reserve(expected).now_or_never()
        };
        let text = || reserve(false).expect("at once").expect("fits");
        text().settle(Some(tokens(1_000, 20)), || 0);
        let _meanwhile = [text(), text()];
        let picture = || reserve(true).map(|reserved| reserved.expect("there is room"));
        let first = picture().expect("one leaves");
        assert!(picture().is_none(), "nothing is known of it");
        first.settle(Some(tokens(25_000, 20)), || 0);
        let second = picture().expect("one was answered");
        assert!(picture().is_none());
        second.settle(Some(tokens(2_000, 20)), || 0);
        let two = [picture().expect("of 69,940 tokens"), picture().expect("two were answered")];
        drop(two);
        text().settle(Some(tokens(25_000, 20)), || 0);
        let _one = picture().expect("each holds as much as the longest had");
        assert!(picture().is_none(), "of 43,880 tokens");
    }

    /// Pictures that are made: their requests have no tokens and set no bound.
    #[tokio::test]
    async fn calls_whose_requests_tell_nothing_of_their_cost_reserve_what_the_dearest_of_them_cost() {
        let limits = Limits { job_tokens: Some(10_000), ..Limits::default() };
        let budget = Budget::new(limits, Prices::default(), &[], false);
        let reserve = || {
            let expected = Expected { is_untold: true, bound: Some(0), ..Expected::default() };
            budget.reserve(expected).now_or_never().map(|reserved| reserved.expect("there is room"))
        };
        reserve().expect("one leaves").settle(Some(tokens(11, 1_000)), || 0);
        let waits = reserve().expect("one was answered");
        assert!(reserve().is_none(), "no more than that");
        assert!(waits.is_outgrown(PromptTokens::default).now_or_never().is_none());
        waits.settle(Some(tokens(11, 4_000)), || 0);
        let (first, second) = (reserve().expect("two were answered"), reserve());
        assert!(second.is_none(), "4,011 of 4,978 tokens are held");
        assert_eq!(first.expected().tokens_out, 4_000, "it counts so, where its answer never comes");
        first.settle(None, || 0);
        assert!(budget.reserve(Expected { is_untold: true, bound: Some(0), ..Expected::default() }).await.is_err());
    }

    /// A model that thinks, behind a time-out that is too short: each call is made and billed.
    #[tokio::test]
    async fn calls_without_an_answer_count_with_their_time_in_flight_and_let_no_others_leave_beside_them() {
        let limits = Limits { job_tokens: Some(10_000), ..Limits::default() };
        let budget = Budget::new(limits, Prices::default(), &[], false);
        let unbounded = || Expected { usage: tokens(100, 0), ..Expected::default() };
        let lost = |call: Reserved<'_>, seconds| {
            let call = call.lost_after(Duration::from_secs(seconds), |_| PromptTokens::default());
            call.settle(None, || 0).tokens_out
        };
        let first = budget.reserve(unbounded()).await.expect("fits");
        assert_eq!(lost(first, 1), 200);
        let second = budget.reserve(unbounded()).now_or_never().expect("alone").expect("fits");
        assert!(budget.reserve(unbounded()).now_or_never().is_none(), "none was answered");
        assert_eq!(lost(second, 20), 4_000);
        let third = budget.reserve(unbounded()).now_or_never().expect("alone").expect("fits");
        third.settle(Some(tokens(100, 50)), || 0);
        let two =
            [(), ()].map(|()| budget.reserve(unbounded()).now_or_never().expect("one was answered").expect("fits"));
        assert!(budget.reserve(unbounded()).now_or_never().is_none(), "only one");
        drop(two);
        let bounded = budget.reserve(bounded(100, 20)).now_or_never().expect("at once").expect("fits");
        assert_eq!(lost(bounded, 20), 20, "by its bound");
    }

    #[tokio::test]
    async fn calls_without_an_answer_count_with_their_prompts_as_answers_have_shown_by_then() {
        let limits = Limits { job_tokens: Some(100_000), ..Limits::default() };
        let budget = Budget::new(limits, Prices::default(), &[], false);
        let shown = |expected| PromptTokens { expected, likely: expected, most: expected, greatest: Some(5_000) };
        let dense = || Expected { size: Some(PromptSize::default()), prompt: shown(2_000), ..bounded(1_250, 20) };
        let reserve = || budget.reserve(dense()).now_or_never().expect("at once").expect("fits");
        assert_eq!(reserve().expected().tokens_in, 2_000, "so a kill counts it");
        let lost = reserve().lost_after(Duration::from_secs(1), |_| shown(3_900));
        assert_eq!(lost.settle(None, || 0).tokens_in, 3_900);
    }

    /// The same command again, after a kill or a stop.
    #[tokio::test]
    async fn calls_whose_requests_tell_nothing_of_their_cost_reserve_what_the_runs_before_have_shown() {
        let limits = Limits { job_tokens: Some(10_000), ..Limits::default() };
        let of = |model: &str, calls, tokens_out| ModelUsage {
            model: model.into(),
            calls,
            tokens_out,
            ..ModelUsage::default()
        };
        let budget = Budget::new(limits, Prices::default(), &[of("m", 2, 8_319), of("other", 1, 9)], false);
        let untold = Expected { model: "m".into(), is_untold: true, bound: Some(0), ..Expected::default() };
        assert!(budget.reserve(untold).await.is_err(), "of 1,672 tokens that are left");
    }

    /// The server ignores the bounds of requests; a call that a kill cuts off counts with what it reserved.
    #[tokio::test]
    async fn the_first_call_of_a_later_run_reserves_what_exceeded_its_bound_before() {
        let limits = Limits { job_tokens: Some(30_000), ..Limits::default() };
        let first_run = Budget::new(limits, Prices::default(), &[], false);
        let settle =
            |used| first_run.reserve(bounded(100, 16)).map(move |call| call.expect("fits").settle(Some(used), || 0));
        let mut before = settle(tokens(100, 1_900)).await;
        before += &settle(tokens(100, 16)).await;
        let budget = Budget::new(limits, Prices::default(), &[before], false);
        let first = budget.reserve(bounded(100, 16)).await.expect("fits");
        assert_eq!(first.expected().tokens_out, 1_900, "as long as the longest");
        let within = Budget::new(limits, Prices::default(), &[first.settle(Some(tokens(100, 16)), || 0)], false);
        assert_eq!(within.reserve(bounded(100, 16)).await.expect("fits").expected().tokens_out, 16);
    }
}
