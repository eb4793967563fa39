//! What people and scripts are told of a budget: what has been used, why the next call does not fit, what would be enough.

use std::sync::atomic::Ordering;

use paceline_config::{Money, Price, Prices};
use serde_json::{Value, json};

use super::{Budget, BudgetKind, Exceeded, Expected, Ledger, Left, Sum};
use crate::text;

/// What has been used of what there is, for people and scripts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Used {
    /// Tokens of the job, and how many it may use.
    pub(crate) tokens: Option<(u64, u64)>,
    /// Money of the job where prices are known, and how much it may use.
    pub(crate) cost: Option<(Money, Option<Money>)>,
    /// Calls that all the purses are still good for, if they use what calls have used so far.
    pub(crate) calls_left: Option<u64>,
    /// A call waits until others have given back what they did not use.
    pub(crate) holds_back: bool,
    /// Tokens of the job, in and out.
    pub(crate) usage: (u64, u64),
    /// Those of them that answers reported, where that is known.
    pub(crate) reported: Option<(u64, u64)>,
    /// The price of all of them, where there is only one.
    pub(crate) price: Option<Price>,
    /// Calls that went to a model or upstream of which no price is known, in place of the one that was asked for.
    pub(crate) unpriced: u64,
    /// What of the cost is that of answers, and what of that only a total told with the prompt.
    pub(crate) cost_out: Money,
    pub(crate) divided_out: Money,
    /// Of many calls of the job no answer told of input that came from a cache.
    pub(crate) lacks_cached: bool,
}

impl Used {
    /// Null where nothing is bounded and no price is known.
    pub(crate) fn json(&self) -> Value {
        if self.tokens.is_none() && self.cost.is_none() {
            return Value::Null;
        }
        let more = self.more();
        let tokens = more.map(|more| more.0 + more.1);
        let cost = self.estimated_cost().map(Money::as_f64);
        json!({
            "tokens": self.tokens.map(|(used, of)| json!({ "used": used, "limit": of, "estimated": tokens })),
            "cost": self.cost.map(|(used, of)| {
                json!({ "used": used.as_f64(), "limit": of.map(Money::as_f64), "estimated": cost, "unpriced": self.unpriced })
            }),
        })
    }

    /// The same beside what answers reported of it.
    pub(crate) const fn beside(self, reported: (u64, u64)) -> Self {
        Self { reported: Some(reported), ..self }
    }

    /// In one line; none where nothing is bounded and no price is known.
    pub(crate) fn in_one_line(&self) -> Option<String> {
        let mut words = self.describe().collect::<Vec<_>>().join(", ");
        self.estimated().into_iter().for_each(|estimated| words += &format!("; {estimated}"));
        if self.cost.is_some() && self.unpriced > 0 {
            let calls = text::counted(self.unpriced, "call");
            words += &format!("; {calls} went to another model or upstream than asked for, of which no price is known");
        }
        if self.cost.is_some() && self.lacks_cached && self.price.is_some_and(|price| price.cached().is_some()) {
            words += "; no answer told of input read from a cache, so cached= changes nothing";
        }
        match self {
            Self { tokens: None, cost: None, .. } => None,
            Self { tokens: None, cost: Some((_, None)), .. } => Some(words),
            _ => Some(format!("budget: {words}")),
        }
    }

    /// The tokens in and out that no answer reported.
    fn more(&self) -> Option<(u64, u64)> {
        let reported = self.reported?;
        Some((self.usage.0.saturating_sub(reported.0), self.usage.1.saturating_sub(reported.1)))
    }

    /// What these cost, and what counts as answer of totals. Of several prices each has its share of them, as of all.
    fn estimated_cost(&self) -> Option<Money> {
        let (more, (cost, _)) = (self.more()?, self.cost?);
        if let Some(price) = self.price {
            return Some(price.of(more.0, more.1).and(self.divided_out));
        }
        let share = |cost: u64, more: u64, of: u64| u128::from(cost) * u128::from(more) / u128::from(of.max(1));
        let cost_in = cost.units().saturating_sub(self.cost_out.units());
        let all = share(cost_in, more.0, self.usage.0) + share(self.cost_out.units(), more.1, self.usage.1);
        Some(Money::from_units(u64::try_from(all).unwrap_or(u64::MAX)).and(self.divided_out))
    }

    /// What of that is estimated.
    fn estimated(&self) -> Option<String> {
        let more = self.more()?;
        let of_cost = self.estimated_cost().filter(|cost| *cost > Money::default());
        let what = match (self.tokens, of_cost) {
            (Some(_), _) if more != (0, 0) => format!("{} of the tokens are", text::count(more.0 + more.1)),
            (_, Some(cost)) if self.price.is_some() => format!("{cost} of it is"),
            (_, Some(cost)) => format!("about {cost} of it is"),
            (_, None) => return None,
        };
        let calls = match (more, self.divided_out.units()) {
            (_, 0) => "calls whose use is not known",
            ((0, 0), _) => "calls that told a total of tokens alone",
            _ => "calls whose use is not known, or that told a total of tokens alone",
        };
        Some(format!("{what} estimated, for {calls}"))
    }

    /// `1,240 of 5,000 tokens`, `3.21 of 5.00 spent`.
    pub(crate) fn describe(&self) -> impl Iterator<Item = String> {
        let tokens = self.tokens.map(|(used, of)| {
            let over = if used > of { format!(", {} too many", text::count(used - of)) } else { String::new() };
            format!("{} of {} tokens{over}", text::count(used), text::count(of))
        });
        let cost = self.cost.map(|(used, of)| match of {
            Some(of) if used > of => {
                format!("{used} of {of} spent, {} too much", Money::from_units(used.units() - of.units()))
            }
            Some(of) => format!("{used} of {of} spent"),
            None => format!("{used} spent"),
        });
        tokens.into_iter().chain(cost)
    }
}

/// That a purse has no room for the next call, and how large it would have to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Enough {
    pub(crate) words: String,
    /// The flag that sets the purse.
    pub(crate) flag: &'static str,
    /// A value with which the job is likely to finish, as it looks now.
    pub(crate) amount: String,
}

/// What the rest may take more than the mean of calls says: a fiftieth.
const MARGIN: u64 = 50;

/// Means that differ by less than this part are one figure: a fifth.
pub(super) const ALIKE: u64 = 5;

impl Ledger {
    /// What a larger purse has beside the `needed`, so that prompts or answers above the mean leave no item over: at least room
    /// for one more call, as the last ones asked for it. Nothing where no items are left but those that did not fit.
    fn margin(&self, purse: BudgetKind, needed: u64, items: u64) -> u64 {
        if self.calls == 0 || items <= self.left_out.items.max(1) {
            return 0;
        }
        self.asked.mean(purse).unwrap_or(0).max(needed / MARGIN)
    }
}

impl Budget {
    /// What those that are left cost if they cost as the calls of the job so far; none before the first, or where no price is
    /// known.
    pub(crate) fn cost_of_rest(&self, left: &Left) -> Option<Money> {
        let [all, _] = self.ledger().of_rest(BudgetKind::JobCost, left)?;
        (!self.prices.is_empty()).then(|| Money::from_units(all))
    }

    /// Why the next call does not fit into the purse, and what seems to be enough for the items that are left.
    pub(crate) fn enough(&self, exceeded: Exceeded, left: &Left) -> Enough {
        let [least, most] = self.needed(exceeded, left);
        let Exceeded { purse, limit, line, .. } = exceeded;
        let (next, others) = (exceeded.next(), self.others_left_out(left.items));
        let ledger = self.ledger();
        let (used, before) = (ledger.used(purse), ledger.before.of(purse));
        let knows_calls = ledger.calls > 0;
        let margin = ledger.margin(purse, most, left.items);
        let cause = if before > limit { "the runs before".to_owned() } else { ledger.longer.describe(purse) };
        drop(ledger);
        let unit = if purse == BudgetKind::JobCost { "" } else { " tokens" };
        let [least, most, enough] = [least, most, most.saturating_add(margin)].map(|needed| {
            // The next run has all of what a run may use.
            let all = if purse == BudgetKind::RunTokens { needed } else { used.saturating_add(needed) };
            match purse {
                BudgetKind::JobCost => Money::from_units(all).rounded_up().to_string(),
                BudgetKind::RunTokens | BudgetKind::JobTokens => all.to_string(),
            }
        });
        let [used_text, of] = [used, limit].map(|units| purse.amount(units));
        let over = purse.amount(used.saturating_sub(limit));
        let flag = purse.flag();
        // What is left may be longer than what was answered.
        let line = line.map(|line| format!(" (line {line})")).unwrap_or_default();
        let state = if exceeded.never_fits() {
            format!(
                "the next call{line} may use {} tokens, and {flag} {of} is for all calls of a run (--max-output-tokens bounds each answer){others}",
                purse.amount(next)
            )
        } else if used > limit {
            format!("the budget is exceeded, by {cause}: {used_text} of {of}{unit} used, {over} too much")
        } else if used == limit {
            format!("the budget is used up ({used_text} of {of}{unit})")
        } else {
            let [next, left] = Exceeded { used, ..exceeded }.next_and_left();
            format!("{left} of {of}{unit} left, and the next call{line} may use {next}{others}")
        };
        let basis = match purse {
            BudgetKind::JobCost => "as the answers so far cost",
            BudgetKind::RunTokens | BudgetKind::JobTokens => "as calls so far used",
        };
        let more = if most == enough { "" } else { ", and a little more" };
        let about = match (knows_calls, least == most) {
            (false, _) => format!("about {flag} {enough}, if each call uses what this one may"),
            (true, true) => format!("about {flag} {enough}, {basis}{more}"),
            (true, false) => format!("about {least} to {most}, {basis}; take {flag} {enough}"),
        };
        Enough { words: format!("{state}. The whole job: {about}"), flag, amount: enough }
    }

    /// What the rest of the job seems to need beside what has been used, at least and at most: what the calls would use that did
    /// not fit, and for the other items of those that are left what calls use here, all of them or the last ones.
    pub(super) fn needed(&self, exceeded: Exceeded, left: &Left) -> [u64; 2] {
        let (ledger, purse, next) = (self.ledger(), exceeded.purse, exceeded.next());
        let mut left_out = ledger.left_out;
        if !left_out.has(&exceeded) {
            left_out.add(exceeded);
        }
        let others = Left {
            items: left.items.saturating_sub(left_out.items),
            bytes: left.bytes.saturating_sub(left_out.bytes),
            ..left.clone()
        };
        let [all, last] = ledger.of_rest(purse, &others).unwrap_or([next.saturating_mul(others.items); 2]);
        let (least, most) = (all.min(last), all.max(last));
        // What differs less is the same, as far as a mean can tell.
        let least = if most - least > most / ALIKE { least } else { most };
        [least, most].map(|rest| left_out.needs(purse).saturating_add(rest))
    }

    /// Says once that what an answer used has to be estimated, or cannot be. `expected`: what counts of it.
    pub(super) fn tell_unreported(&self, expected: &Expected) {
        if !self.has_an_end() || self.told_unreported.swap(true, Ordering::Relaxed) {
            return;
        }
        if expected.counts_nothing() {
            return tracing::warn!(
                "a call that has no tokens by its path, such as for pictures or sound, has no answer, or one that does not say how many \
                 tokens it used: nothing counts for such calls, and the budget does not bound them"
            );
        }
        let answer = match expected.bound {
            Some(bound) => format!("as the {} that its request allows", text::counted(bound, "token")),
            None => "by its text or as others were".to_owned(),
        };
        let of_streams = match expected.streams {
            true => {
                "; a stream has it where the request asks for that (OpenAI's form: \"stream_options\": {\"include_usage\": true})"
            }
            false => "",
        };
        tracing::warn!(
            "an answer has no usage that can be read, or one that is 0 or incomplete, so that what it costs is estimated: its prompt by its length, its answer {answer}; the \
             bill may differ{of_streams}"
        );
    }

    /// Says once that a call which used that has used more than there is.
    pub(super) fn tell_exceeded(&self, ledger: &Ledger, call: &Sum) {
        let exceeded = |(purse, limit): &(BudgetKind, u64)| {
            let used = ledger.used(*purse);
            used > *limit && used.saturating_sub(call.of(*purse)) <= *limit
        };
        let Some((purse, limit)) = self.limits.all().find(exceeded) else { return };
        if !self.told_exceeded.swap(true, Ordering::Relaxed) {
            let [used, limit] = [ledger.used(purse), limit].map(|units| purse.amount(units));
            let (flag, cause) = (purse.flag(), ledger.longer.describe(purse));
            tracing::warn!("{flag} {limit} is exceeded, by {cause}: {used} used, and what is in flight comes on top");
        }
    }
}

/// Of several models with one price so many are named.
const NAMED: usize = 4;

/// That one price is taken for all models, where these are several and it is.
pub(crate) fn one_price<'a>(prices: &Prices, models: impl Iterator<Item = &'a str>) -> Option<String> {
    let models: Vec<_> = models.filter(|model| !model.is_empty()).map(text::printable).collect();
    let is_one = models.len() > 1 && prices.is_one_for_all();
    is_one.then(|| {
        let named = models[..models.len().min(NAMED)].join(", ");
        format!("one price for all models, such as {named}; `price` in paceline.toml can have one for each")
    })
}

/// That a table has no price for these models, so that they count with its dearest.
pub(crate) fn unpriced<'a>(prices: &Prices, models: impl Iterator<Item = &'a str>) -> Option<String> {
    let name =
        |model: &'a str| if model.is_empty() { "calls that name no model".into() } else { text::printable(model) };
    let models: Vec<_> = models.filter(|model| !prices.is_empty() && !prices.knows(model)).map(name).collect();
    (!models.is_empty()).then(|| {
        let price = prices.of("");
        format!("no price for {}: counted with the dearest, {price} for a million tokens", models.join(", "))
    })
}
