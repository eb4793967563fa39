//! Answers of another model than the one that was asked for: they count with its price, and it may cost more.

use std::sync::Arc;

use paceline_config::{CountedAs, Prices};
use paceline_providers::Usage;

use super::{Budget, Ledger, Reserved};
use crate::text;

/// Who answered in place of what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnsweredBy {
    /// This model.
    Model(String),
    /// An upstream by the fallback of a gateway, with this model or the one that was asked for.
    Upstream(String, Option<String>),
}

/// So many models that answer in place of others are told.
const MOST_TOLD: usize = 10;

/// A model that answered in place of the one that was asked for.
#[derive(Clone, Debug)]
pub(super) struct InPlace {
    pub(super) model: Arc<str>,
    /// It has a price of its own.
    pub(super) is_priced: bool,
    /// The upstream, where that is another, and its price is not known.
    pub(super) upstream: Option<String>,
}

impl Reserved<'_> {
    /// The server says that another model may have answered, or a gateway that another upstream has.
    pub(crate) fn answered_by(mut self, by: Option<AnsweredBy>) -> Self {
        self.answered = by.and_then(|by| self.in_place(by));
        self
    }

    /// What that is in place of; none where it is what was asked for.
    pub(super) fn in_place(&self, by: AnsweredBy) -> Option<InPlace> {
        let asked = &self.expected.model;
        let of = |model: Arc<str>, is_priced| Some(InPlace { model, is_priced, upstream: None });
        match by {
            AnsweredBy::Upstream(upstream, model) => {
                let named = model.as_deref().unwrap_or(asked);
                if let Some(name) = self.budget.prices.counted_at(&upstream, named) {
                    return of(name.into(), true);
                }
                let name = Prices::name_at(&upstream, named);
                let is_own = *upstream == *self.budget.upstream;
                let other = model.and_then(|model| self.in_place(AnsweredBy::Model(model)));
                // The same model may cost something else there.
                other.or_else(|| {
                    (!is_own).then(|| InPlace { model: name.into(), is_priced: false, upstream: Some(upstream) })
                })
            }
            AnsweredBy::Model(model) => match self.budget.prices.counted_as(asked, &model) {
                CountedAs::Asked => None,
                CountedAs::Priced(name) => of(name.into(), true),
                // Of a request that names no model none has taken its place.
                CountedAs::Unpriced(_) if asked.is_empty() => None,
                CountedAs::Unpriced(name) => of(name.into(), false),
            },
        }
    }

    /// Whether something is known of its price; of a model without one a table says nothing: often it is another name of the one
    /// that was asked for.
    pub(super) fn counts(&self, answered: &InPlace) -> bool {
        answered.is_priced
            || answered.upstream.is_some()
            || self.budget.prices.knows(&answered.model)
            || self.budget.prices.is_empty()
    }

    /// The model that usage counts with: the one that answered, where it has a price of its own, else the dearer of it and the
    /// one that was asked for.
    pub(super) fn counts_as(&self, usage: &Usage) -> Arc<str> {
        let asked = &self.expected.model;
        match self.answered.as_ref().filter(|answered| self.counts(answered)) {
            Some(InPlace { model, is_priced: true, .. }) => Arc::clone(model),
            Some(InPlace { model, .. }) => self.budget.dearest(asked, Some(model), usage),
            None => Arc::clone(asked),
        }
    }

    /// Keeps for the calls to come that a dearer model answers, and tells once of each that it does.
    pub(super) fn note_answered(&self, ledger: &mut Ledger, answered: &InPlace, usage: &Usage) -> bool {
        let (budget, asked, model) = (self.budget, &self.expected.model, &answered.model);
        budget.tell_answered(ledger, asked, answered, &self.counts_as(usage));
        if !answered.is_priced && !budget.prices.knows(model) {
            return false;
        }
        let dearer = ledger.models.get(asked).and_then(|answers| answers.dearer.clone());
        let reserved = budget.dearest(asked, dearer.as_ref(), usage);
        let dearest = budget.dearest(&reserved, Some(model), usage);
        let is_new = budget.cost(&dearest, usage) > budget.cost(&reserved, usage);
        if is_new && let Some(answers) = ledger.models.get_mut(asked) {
            answers.dearer = Some(dearest);
        }
        is_new
    }
}

impl Budget {
    /// Which of both costs more for that use; the other one where they cost the same.
    pub(super) fn dearest(&self, model: &Arc<str>, other: Option<&Arc<str>>, usage: &Usage) -> Arc<str> {
        let dearer = other.filter(|other| self.cost(other, usage) >= self.cost(model, usage));
        Arc::clone(dearer.unwrap_or(model))
    }

    /// `counted`: the model with whose price its answers count.
    fn tell_answered(&self, ledger: &mut Ledger, asked: &str, answered: &InPlace, counted: &str) {
        let InPlace { model, is_priced, upstream } = answered;
        let is_told = self.limits.job_cost.is_none()
            || ledger.told_answered.len() >= MOST_TOLD
            || !ledger.told_answered.insert(Arc::clone(model));
        if is_told {
            return;
        }
        let price = self.prices.of(counted);
        let cure = match upstream {
            Some(upstream) => format!("`price` of [upstream.{}]", text::printable(upstream)),
            None => "`price`".to_owned(),
        };
        let counts = if *is_priced {
            format!("its answers count with its own price, {price} for a million tokens")
        } else {
            let same = if self.prices.is_one_for_all() { ", the one price for all models" } else { "" };
            format!(
                "its price is not known: its answers count with {price} for a million tokens{same}, and the bill may exceed \
                 --budget-cost; {cure} in paceline.toml can have one for each model"
            )
        };
        if let Some(upstream) = upstream {
            tracing::warn!("{} answers by the gateway's fallback: {counts}", text::printable(upstream));
            return;
        }
        let last = ledger.told_answered.len() >= MOST_TOLD;
        let counts = if last { counts + "; of more models this is not told" } else { counts };
        let [name, asked] = [&**model, asked].map(text::printable);
        let asked = if asked.is_empty() { String::new() } else { format!(" in place of {asked}") };
        tracing::warn!("{name} answers{asked}: {counts}");
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use paceline_config::Money;
    use paceline_providers::PromptTokens;
    use paceline_store::ModelUsage;

    use super::super::tests::{bounded, left, table, tokens};
    use super::super::{Limits, cost_of};
    use super::*;

    /// OpenRouter's `models`, a gateway's fallback: the answers are billed with the price of the model that made them.
    #[test]
    fn answers_of_another_model_count_with_its_price() {
        let prices = table(&[("m", "in=62500,out=62500"), ("dear", "in=1000000,out=1000000")]);
        let limits = Limits { job_cost: "10000".parse().ok(), ..Limits::default() };
        let answered = |prices: &Prices, model: &str| {
            let budget = Budget::new(limits, prices.clone(), &[], false);
            let call = budget.reserve(bounded(10, 10)).now_or_never().expect("at once").expect("fits");
            let counted =
                call.answered_by(Some(AnsweredBy::Model(model.to_owned()))).settle(Some(tokens(10, 10)), || 0);
            let told = budget.used().in_one_line().expect("money");
            assert_eq!(cost_of(&counted, prices), budget.used().cost.expect("money").0, "a later run counts the same");
            (counted.model.to_string(), told)
        };
        let told = |model: &str, spent: &str| (model.to_owned(), format!("budget: {spent} of 10000.00 spent"));
        assert_eq!(answered(&prices, "dear"), told("dear", "20.00"));
        assert_eq!(answered(&prices, "dear-2024-08-06"), told("dear", "20.00"));
        assert_eq!(answered(&prices, "m-2024-08-06"), told("m", "1.25"));
        let unpriced = "; 1 call went to another model or upstream than asked for, of which no price is known";
        let (model, words) = told("m", "1.25");
        assert_eq!(answered(&prices, "other"), (model, words + unpriced), "it may be another name of the same");
        let with_cheap = table(&[("m", "in=62500,out=62500"), ("*", "in=31250,out=31250")]);
        let (model, words) = told("m", "1.25");
        assert_eq!(answered(&with_cheap, "other"), (model, words + unpriced), "the dearer of both");
        let one = table(&[("*", "in=62500,out=62500")]);
        let (model, words) = told("other", "1.25");
        assert_eq!(answered(&one, "other"), (model, words + unpriced));
    }

    #[test]
    fn calls_without_a_model_are_named_where_no_price_is_known() {
        let words = super::super::unpriced(&table(&[("m", "in=2.5,out=10")]), ["", "other"].into_iter());
        let expected = "no price for calls that name no model, other: counted with the dearest, in=2.5,out=10 for a million tokens";
        assert_eq!(words.as_deref(), Some(expected));
    }

    #[test]
    fn calls_reserve_the_price_of_the_dearest_model_that_has_answered_for_theirs() {
        let prices = table(&[("m", "in=62500,out=62500"), ("dear", "in=1000000,out=1000000")]);
        let limits = Limits { job_cost: "62.5".parse().ok(), ..Limits::default() };
        let budget = Budget::new(limits, prices, &[], false);
        let reserve = || budget.reserve(bounded(10, 10)).now_or_never();
        let first = reserve().expect("at once").expect("1.25 of 62.50");
        first.answered_by(Some(AnsweredBy::Model("m".to_owned()))).settle(Some(tokens(10, 10)), || 0);
        let second = reserve().expect("known").expect("1.25 of 61.25");
        let third = reserve().expect("known").expect("1.25 of 60");
        assert!(third.is_outgrown(PromptTokens::default).now_or_never().is_none());
        second.answered_by(Some(AnsweredBy::Model("dear".to_owned()))).settle(Some(tokens(10, 10)), || 0);
        third.is_outgrown(PromptTokens::default).now_or_never().expect("it reserves anew, before it leaves");
        drop(third);
        let third = reserve().expect("at once").expect("20 of 41.25");
        let fourth = reserve().expect("at once").expect("20 of 21.25 left");
        assert!(reserve().is_none(), "1.25 is left");
        assert_eq!(&*third.settle(None, || 0).model, "dear", "an unknown end counts as the dearer");
        fourth.answered_by(Some(AnsweredBy::Model("m".to_owned()))).settle(Some(tokens(10, 10)), || 0);
        let exceeded = reserve().expect("at once").expect("20 of 20").settle(Some(tokens(10, 10)), || 0);
        assert_eq!(&*exceeded.model, "m");
    }

    /// The same model at another upstream of the gateway, dearer or not.
    #[test]
    fn another_upstream_counts_with_its_own_price_where_that_is_known() {
        let own = table(&[("m", "in=62500,out=62500")]);
        let dear: paceline_config::Price = "in=1000000,out=1000000".parse().expect("a price");
        let limits = Limits { job_cost: "1000".parse().ok(), ..Limits::default() };
        let counted = |prices: &Prices, upstream: &str, model: Option<&str>| {
            let budget = Budget::new(limits, prices.clone(), &[], false).of_upstream("first");
            let call = budget.reserve(bounded(10, 10)).now_or_never().expect("at once").expect("fits");
            let by = AnsweredBy::Upstream(upstream.to_owned(), model.map(ToOwned::to_owned));
            let counted = call.answered_by(Some(by)).settle(Some(tokens(10, 10)), || 0);
            let used = budget.used();
            let later = Budget::new(limits, prices.clone(), std::slice::from_ref(&counted), false).used();
            assert_eq!((later.cost, later.unpriced), (used.cost, used.unpriced), "a later run counts the same");
            assert_eq!(used.json()["cost"]["unpriced"], used.unpriced);
            (counted.model.to_string(), used.cost.expect("money").0.to_string(), used.unpriced)
        };
        let is = |model: &str, cost: &str, unpriced| (model.to_owned(), cost.to_owned(), unpriced);
        let known = own.clone().with_others([("second:m".to_owned(), dear)]);
        for model in [None, Some("m"), Some("m-2024-08-06")] {
            assert_eq!(counted(&known, "second", model), is("second:m", "20.00", 0), "{model:?}");
            assert_eq!(counted(&own, "second", model).2, 1, "{model:?}: nothing tells what it costs there");
            assert_eq!(counted(&own, "second", model).1, "1.25");
        }
        assert_eq!(
            counted(&own, "first", Some("m-2024-08-06")),
            is("m", "1.25", 0),
            "another model of the same upstream"
        );
        assert_eq!(counted(&own, "second", Some("other")), is("m", "1.25", 1));
    }

    /// A gateway whose fallback loses calls: nothing but the name of the step says what they may cost.
    #[test]
    fn what_a_gateway_lost_counts_with_the_dearest_that_may_have_answered() {
        let prices = table(&[("m", "in=62500,out=62500"), ("dear", "in=1000000,out=1000000"), ("mini", "in=1,out=1")]);
        let by = |model: &str| AnsweredBy::Model(model.to_owned());
        let spent = |calls, at: Vec<AnsweredBy>, answered: Option<&str>| {
            let limits = Limits { job_cost: "1000".parse().ok(), ..Limits::default() };
            let budget = Budget::new(limits, prices.clone(), &[], false);
            let call = budget.reserve(bounded(10, 10)).now_or_never().expect("at once").expect("fits");
            let lost = call.lost(calls, at);
            let ended = call.answered_by(answered.map(by)).settle(answered.map(|_| tokens(10, 10)), || 0);
            let cost = lost.iter().chain([&ended]).map(|used| cost_of(used, &prices).units()).sum();
            assert_eq!(Money::from_units(cost), budget.used().cost.expect("money").0, "a later run counts the same");
            let next = budget.reserve(bounded(10, 10)).now_or_never().expect("at once").expect("fits");
            (budget.used().in_one_line().expect("money"), next.expected().model.to_string())
        };
        let told = |spent: &str, next: &str| (format!("budget: {spent} of 1000.00 spent"), next.to_owned());
        assert_eq!(spent(1, vec![by("dear")], Some("m")), told("21.25", "dear"));
        assert_eq!(spent(2, vec![by("mini"), by("dear")], Some("mini")), told("40.00", "dear"));
        assert_eq!(spent(1, Vec::new(), Some("mini")), told("1.25", "m"), "the first upstream lost it");
        assert_eq!(spent(0, Vec::new(), None), told("1.25", "m"));
        let (words, _) = spent(1, vec![AnsweredBy::Upstream("second".to_owned(), None)], Some("m"));
        assert!(
            words.ends_with("; 1 call went to another model or upstream than asked for, of which no price is known")
        );
    }

    /// An answer of a step that breaks off.
    #[test]
    fn an_answer_whose_use_is_not_known_counts_with_the_dearer_of_both() {
        let prices = table(&[("m", "in=62500,out=62500"), ("dear", "in=1000000,out=1000000"), ("mini", "in=1,out=1")]);
        for (model, expected) in [("dear", "dear"), ("mini", "m")] {
            let budget = Budget::new(Limits::default(), prices.clone(), &[], false);
            let call = budget.reserve(bounded(10, 10)).now_or_never().expect("at once").expect("no end");
            let counted = call.answered_by(Some(AnsweredBy::Model(model.to_owned()))).settle(None, || 0);
            assert_eq!((&*counted.model, counted.tokens_in), (expected, 10));
        }
    }

    #[test]
    fn a_dearer_model_is_named_as_the_cause() {
        let prices = table(&[("m", "in=62500,out=62500"), ("dear", "in=1000000,out=1000000")]);
        let limits = Limits { job_cost: "12.5".parse().ok(), ..Limits::default() };
        let budget = Budget::new(limits, prices, &[], false);
        let call = budget.reserve(bounded(10, 10)).now_or_never().expect("at once").expect("fits");
        call.answered_by(Some(AnsweredBy::Model("dear".to_owned()))).settle(Some(tokens(10, 10)), || 0);
        let exceeded = budget.reserve(bounded(10, 10)).now_or_never().expect("at once").expect_err("nothing is left");
        let words = budget.enough(exceeded, &left(1)).words;
        let expected =
            "the budget is exceeded, by answers of a dearer model than the one that was asked for: 20.00 of 12.50 used";
        assert!(words.starts_with(expected), "{words}");
    }

    #[test]
    fn later_runs_tell_of_answers_whose_price_was_not_known() {
        let one = table(&[("*", "in=62500,out=62500")]);
        let unpriced = "; 1 call went to another model or upstream than asked for, of which no price is known";
        let second = AnsweredBy::Upstream("second".to_owned(), None);
        for by in [AnsweredBy::Model("dear".to_owned()), second.clone()] {
            let budget = Budget::new(Limits::default(), one.clone(), &[], false);
            let call = budget.reserve(bounded(10, 10)).now_or_never().expect("at once").expect("no end");
            let counted = call.answered_by(Some(by.clone())).settle(Some(tokens(10, 10)), || 0);
            let words = |prices: &Prices| {
                Budget::new(Limits::default(), prices.clone(), std::slice::from_ref(&counted), false)
                    .used()
                    .in_one_line()
            };
            assert_eq!(words(&one), Some(format!("1.25 spent{unpriced}")), "{by:?}");
            let known = table(&[("m", "in=62500,out=62500"), ("dear", "in=1000000,out=1000000")]);
            if by == second {
                assert_eq!(words(&known), Some(format!("1.25 spent{unpriced}")), "that of the model here is another");
            }
            let known =
                known.with_others([("second:*".to_owned(), "in=1000000,out=1000000".parse().expect("a price"))]);
            assert_eq!(words(&known).as_deref(), Some("20.00 spent"), "it has a price now: {by:?}");
        }
    }

    #[test]
    fn what_is_estimated_is_told_with_several_prices_too() {
        let prices = table(&[("m", "in=100000,out=200000"), ("dear", "in=1000000,out=1000000")]);
        let of = |model: &str, tokens_in, tokens_out| ModelUsage {
            model: model.into(),
            calls: 1,
            tokens_in,
            tokens_out,
            ..ModelUsage::default()
        };
        // 10 and 20 for m, 100 and 100 for dear.
        let used = Budget::new(Limits::default(), prices, &[of("m", 100, 100), of("dear", 100, 100)], false).used();
        let told = used.beside((150, 200));
        assert_eq!(told.json()["cost"]["estimated"], 27.5, "a quarter of the 110 for input");
        let words = "230.00 spent; about 27.50 of it is estimated, for calls whose use is not known";
        assert_eq!(told.in_one_line().as_deref(), Some(words));
        assert_eq!(used.beside((200, 200)).json()["cost"]["estimated"], 0.0);
    }
}
