//! What the calls that are left cost if other models answer them than those that they ask for, as some have.

use std::sync::Arc;

use paceline_config::{Money, Prices};
use paceline_store::ModelUsage;

/// A model that has answered, and what all costs if it answers wherever the one that is asked for costs less.
pub(super) struct Answerer {
    pub(super) model: Arc<str>,
    pub(super) cost: Money,
    /// If each prompt has as many tokens as it can.
    pub(super) most: Money,
}

/// So many are looked at.
const MOST: usize = 20;

impl Answerer {
    /// All that have answered, also those that were asked for; those of another upstream where one answered in place of one here.
    pub(super) fn all(usage: &[ModelUsage], prices: &Prices) -> Vec<Self> {
        let answers = |used: &&ModelUsage| used.calls_in_place > 0 || !prices.is_at_other(&used.model);
        let named = usage.iter().filter(|used| !used.model.is_empty());
        let named = named.filter(answers).map(|used| Arc::clone(&used.model));
        let [cost, most] = [Money::default(); 2];
        named.map(|model| Self { model, cost, most }).take(MOST).collect()
    }

    /// Adds a call: what it costs, and at most, at the price of the model that it asks for, and `at` that of another.
    pub(super) fn add(&mut self, asked: [Money; 2], at: impl FnOnce(&str) -> [Money; 2]) {
        let here = at(&self.model);
        self.cost = self.cost.and(asked[0].max(here[0]));
        self.most = self.most.and(asked[1].max(here[1]));
    }
}
