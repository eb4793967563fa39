//! What the tokens of a call cost, for limits in money.

use super::{Apart, Cost, Dimension};

/// What a million tokens cost, in billionths of a currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenPrice {
    /// Of the prompt.
    pub input: u64,
    /// Of the answer.
    pub output: u64,
}

/// A price is that of so many tokens.
const PRICED: u128 = 1_000_000;

impl TokenPrice {
    /// The price of the prompt, or of the answer; 0 of anything else.
    const fn of(self, dimension: &Dimension) -> u64 {
        match dimension {
            Dimension::InputTokens => self.input,
            Dimension::OutputTokens => self.output,
            _ => 0,
        }
    }
}

/// What so many tokens cost at that price, rounded up.
pub(super) const fn money(tokens: u64, price: u64) -> u64 {
    let units = (tokens as u128 * price as u128).div_ceil(PRICED);
    if units > u64::MAX as u128 { u64::MAX } else { units as u64 }
}

impl Cost {
    /// Of a call whose tokens have that price: its money is what they cost, and follows as they change.
    #[must_use]
    pub fn priced(mut self, price: TokenPrice) -> Self {
        let of = |dimension: Dimension| money(self.get(&dimension), price.of(&dimension));
        let all = of(Dimension::InputTokens).saturating_add(of(Dimension::OutputTokens));
        let apart = self.apart.get_or_insert_default();
        (apart.money, apart.price) = (Some(all), price);
        self
    }

    pub(super) fn price_of(&self, dimension: &Dimension) -> u64 {
        self.price().of(dimension)
    }

    fn price(&self) -> TokenPrice {
        self.apart.as_ref().map(|apart| apart.price).unwrap_or_default()
    }

    /// The tokens that a limit leaves to the prompt of such a call, or to its answer, beside what the rest of it takes; none
    /// where it counts no answers.
    pub(crate) fn tokens_within(&self, part: &Dimension, limited: &Dimension, most: u64) -> Option<u64> {
        let (tokens, price) = (self.get(part), self.price_of(part));
        if let Dimension::Money = limited {
            let rest = self.get(limited).saturating_sub(money(tokens, price));
            return tokens_for(most.saturating_sub(rest), price);
        }
        let rest = match part {
            Dimension::OutputTokens => self.get(&Dimension::Tokens).saturating_sub(tokens),
            _ => self.get(&Dimension::OutputTokens),
        };
        limited.counts_answers().then(|| most.saturating_sub(rest))
    }

    /// The tokens for which a limit has room that counts those of answers: under one in money at the dearer price.
    pub(crate) fn most_within(&self, limited: &Dimension, most: u64) -> Option<u64> {
        match limited {
            Dimension::Money => tokens_for(most, self.price().input.max(self.price().output)),
            _ => limited.counts_answers().then_some(most),
        }
    }
}

/// So many tokens cost no more at that price; none where they cost nothing.
fn tokens_for(money: u64, price: u64) -> Option<u64> {
    let tokens = (u128::from(money) * PRICED).checked_div(price.into())?;
    Some(u64::try_from(tokens).unwrap_or(u64::MAX))
}

impl Apart {
    /// So many tokens take the place of those before.
    pub(super) fn reprice(&mut self, dimension: &Dimension, before: u64, now: u64) {
        let price = self.price.of(dimension);
        if let (1.., Some(all)) = (price, &mut self.money) {
            *all = all.saturating_sub(money(before, price)).saturating_add(money(now, price));
        }
    }

    pub(super) fn set_to_0(&mut self) {
        self.named.iter_mut().for_each(|(_, units)| *units = 0);
        (self.money, self.price) = (self.money.map(|_| 0), TokenPrice::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(input: u64, output: u64) -> Cost {
        let cost = Cost::request().with(Dimension::Tokens, input + output).with(Dimension::InputTokens, input);
        cost.with(Dimension::OutputTokens, output).priced(TokenPrice { input: 2_500_000_000, output: 10_000_000_000 })
    }

    #[test]
    fn money_follows_the_tokens_of_a_priced_call_in_every_way_they_change() {
        let money = |cost: &Cost| cost.get(&Dimension::Money);
        let mut cost = call(1_000, 100).open_ended();
        assert_eq!(money(&cost), 1_000 * 2_500 + 100 * 10_000);
        cost.guess_answer(300);
        assert_eq!(money(&cost), 1_000 * 2_500 + 300 * 10_000);
        cost.guess_prompt(2_000);
        assert_eq!(money(&cost), 2_000 * 2_500 + 300 * 10_000);
        let usage = Cost::zero().with(Dimension::InputTokens, 10).with(Dimension::OutputTokens, 1);
        assert_eq!(money(&cost.settled(&usage)), 10 * 2_500 + 10_000);
        assert_eq!(money(&cost.settled(&usage.with(Dimension::Money, 7))), 7, "what is told counts");
        assert_eq!(money(&cost.settled(&Cost::zero())), money(&cost), "nothing is known");
        assert_eq!(money(&cost.settled(&cost.free())), 0);
        let mut sum = Cost::zero();
        sum.add(&cost);
        sum.add(&call(1, 0));
        sum.subtract(&cost);
        assert_eq!(money(&sum), 2_500);
        let learnt = call(1_000, 0).with_learnt(900);
        assert_eq!(learnt.stated(&Dimension::Money), 100 * 2_500);
    }

    #[test]
    fn a_limit_in_money_leaves_as_many_tokens_as_it_pays_for() {
        let cost = call(1_000, 100);
        let left = |part, limited, most| cost.tokens_within(part, limited, most);
        assert_eq!(left(&Dimension::OutputTokens, &Dimension::Money, 2_500_000 + 10_000 * 7), Some(7));
        assert_eq!(left(&Dimension::InputTokens, &Dimension::Money, 1_000_000 + 2_500 * 9), Some(9));
        assert_eq!(left(&Dimension::OutputTokens, &Dimension::Tokens, 1_050), Some(50));
        assert_eq!(left(&Dimension::InputTokens, &Dimension::Tokens, 1_050), Some(950));
        assert_eq!(left(&Dimension::InputTokens, &Dimension::Requests, 10), None);
        let most = |cost: &Cost, most| cost.most_within(&Dimension::Money, most);
        assert_eq!((most(&cost, 1_000_000), most(&Cost::request(), 1_000_000)), (Some(100), None));
    }
}
