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
