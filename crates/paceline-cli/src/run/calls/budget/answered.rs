//! Answers of another model than the one that was asked for: they count with its price, and it may cost more.

use std::sync::Arc;

use paceline_config::CountedAs;
use paceline_providers::Usage;

use super::{Budget, Ledger, Reserved};
use crate::text;

/// So many models that answer in place of others are told.
const MOST_TOLD: usize = 10;

impl Reserved<'_> {
    /// The server says that another model may have answered.
    pub(crate) fn answered_by(mut self, model: Option<String>) -> Self {
        let prices = &self.budget.prices;
        let asked = &self.expected.model;
        self.answered = model.and_then(|model| match prices.counted_as(asked, &model) {
            CountedAs::Asked => None,
            CountedAs::Priced(name) => Some((name.into(), true)),
            // Of a request that names no model none has taken its place.
            CountedAs::Unpriced(_) if asked.is_empty() => None,
            CountedAs::Unpriced(name) => Some((name.into(), false)),
        });
        self
    }

    /// The model that usage counts with: the one that answered, where it has a price of its own, else the dearer of it and the
    /// one that was asked for.
    pub(super) fn counts_as(&self, usage: &Usage) -> Arc<str> {
        match &self.answered {
            Some((model, true)) => Arc::clone(model),
            Some((model, false)) => self.budget.dearest(&self.expected.model, Some(model), usage),
            None => Arc::clone(&self.expected.model),
        }
    }

    /// Keeps for the calls to come that a dearer model answers, and tells once of each that it does.
    pub(super) fn note_answered(&self, ledger: &mut Ledger, usage: &Usage) -> bool {
        let Some((model, is_priced)) = &self.answered else { return false };
        let (budget, asked) = (self.budget, &self.expected.model);
        ledger.unpriced += u64::from(!is_priced);
        budget.tell_answered(ledger, asked, model, *is_priced);
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

    fn tell_answered(&self, ledger: &mut Ledger, asked: &str, model: &Arc<str>, is_priced: bool) {
        let is_told = self.limits.job_cost.is_none()
            || ledger.told_answered.len() >= MOST_TOLD
            || !ledger.told_answered.insert(Arc::clone(model));
        if is_told {
            return;
        }
        let price = self.prices.of(model);
        let [name, asked] = [&**model, asked].map(text::printable);
        let counts = if is_priced {
            format!("its answers count with its own price, {price} for a million tokens")
        } else if self.prices.is_one_for_all() {
            format!(
                "its price is not known: its answers count with the one of every model, {price} for a million tokens, and the bill may \
                 exceed --budget-cost; `price` in paceline.toml can have one for each"
            )
        } else {
            format!(
                "the table has no price for it: its answers count with {price} for a million tokens, or with the price of {asked} where \
                 that is more, and the bill may exceed --budget-cost"
            )
        };
        let asked = if asked.is_empty() { String::new() } else { format!(" in place of {asked}") };
        tracing::warn!("{name} answers{asked}: {counts}");
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use paceline_config::Prices;

    use super::super::tests::{bounded, table, tokens};
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
            let counted = call.answered_by(Some(model.to_owned())).settle(Some(tokens(10, 10)), || 0);
            let told = budget.used().words().expect("money");
            assert_eq!(cost_of(&counted, prices), budget.used().cost.expect("money").0, "a later run counts the same");
            (counted.model.to_string(), told)
        };
        let told = |model: &str, spent: &str| (model.to_owned(), format!("budget: {spent} of 10000.00 spent"));
        assert_eq!(answered(&prices, "dear"), told("dear", "20.00"));
        assert_eq!(answered(&prices, "dear-2024-08-06"), told("dear", "20.00"));
        assert_eq!(answered(&prices, "m-2024-08-06"), told("m", "1.25"));
        let unpriced = "; 1 answer came from another model than asked for, without a price of its own";
        let (model, words) = told("other", "20.00");
        assert_eq!(answered(&prices, "other"), (model, words + unpriced), "the dearest that there is");
        let with_cheap = table(&[("m", "in=62500,out=62500"), ("*", "in=31250,out=31250")]);
        let (model, words) = told("m", "1.25");
        assert_eq!(answered(&with_cheap, "other"), (model, words + unpriced), "the dearer of both");
        let one = table(&[("*", "in=62500,out=62500")]);
        let (model, words) = told("other", "1.25");
        assert_eq!(answered(&one, "other"), (model, words + unpriced));
    }

    #[test]
    fn calls_reserve_the_price_of_the_dearest_model_that_has_answered_for_theirs() {
        let prices = table(&[("m", "in=62500,out=62500"), ("dear", "in=1000000,out=1000000")]);
        let limits = Limits { job_cost: "62.5".parse().ok(), ..Limits::default() };
        let budget = Budget::new(limits, prices, &[], false);
        let reserve = || budget.reserve(bounded(10, 10)).now_or_never();
        let first = reserve().expect("at once").expect("1.25 of 62.50");
        first.answered_by(Some("m".to_owned())).settle(Some(tokens(10, 10)), || 0);
        let second = reserve().expect("known").expect("1.25 of 61.25");
        let third = reserve().expect("known").expect("1.25 of 60");
        assert!(third.is_outgrown().now_or_never().is_none());
        second.answered_by(Some("dear".to_owned())).settle(Some(tokens(10, 10)), || 0);
        third.is_outgrown().now_or_never().expect("it reserves anew, before it leaves");
        drop(third);
        let third = reserve().expect("at once").expect("20 of 41.25");
        let fourth = reserve().expect("at once").expect("20 of 21.25 left");
        assert!(reserve().is_none(), "1.25 is left");
        assert_eq!(&*third.settle(None, || 0).model, "dear", "an unknown end counts as the dearer");
        fourth.answered_by(Some("m".to_owned())).settle(Some(tokens(10, 10)), || 0);
        let exceeded = reserve().expect("at once").expect("20 of 20").settle(Some(tokens(10, 10)), || 0);
        assert_eq!(&*exceeded.model, "m");
    }

    #[test]
    fn a_dearer_model_is_named_as_the_cause() {
        let prices = table(&[("m", "in=62500,out=62500"), ("dear", "in=1000000,out=1000000")]);
        let limits = Limits { job_cost: "12.5".parse().ok(), ..Limits::default() };
        let budget = Budget::new(limits, prices, &[], false);
        let call = budget.reserve(bounded(10, 10)).now_or_never().expect("at once").expect("fits");
        call.answered_by(Some("dear".to_owned())).settle(Some(tokens(10, 10)), || 0);
        let exceeded = budget.reserve(bounded(10, 10)).now_or_never().expect("at once").expect_err("nothing is left");
        let words = budget.enough(exceeded, 1).words;
        let expected =
            "the budget is exceeded, by answers of a dearer model than the one that was asked for: 20.00 of 12.50 used";
        assert!(words.starts_with(expected), "{words}");
    }
}
