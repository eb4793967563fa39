//! What tokens cost, and sums of it, in whatever currency the prices are said in.

pub(crate) mod others;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use paceline_core::{TokenPrice, format_money, money_digits};
use paceline_providers::{Usage, is_version_of};

use super::effective::Ledger;
use super::error::SettingError;
use super::shapes::{EVERY_MODEL, Priced};
use super::units::number;

/// The most that a million tokens, or a budget, may cost.
const MOST: f64 = 1_000_000.0;

/// A sum of money. One token at a price of 0.000001 per million is the smallest that it knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Money(u64);

impl Money {
    /// The smallest units in one of the currency.
    const ONE: f64 = 1e12;

    /// The parts of such a unit in which prices are summed up, and what so many of them are, rounded up.
    const PARTS: u128 = 100_000;

    const fn of_parts(parts: u128) -> Self {
        let units = parts.div_ceil(Self::PARTS);
        Self(if units > u64::MAX as u128 { u64::MAX } else { units as u64 })
    }

    /// The smallest units.
    pub const fn units(self) -> u64 {
        self.0
    }

    /// The same in billionths of the currency, as limits count it, rounded up.
    pub const fn billionths(self) -> u64 {
        self.0.div_ceil(1_000)
    }

    /// So many of the smallest units.
    pub const fn from_units(units: u64) -> Self {
        Self(units)
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The next sum that its text shows exactly.
    #[must_use]
    pub const fn rounded_up(self) -> Self {
        let shown = 10_u64.pow(12 - money_digits(self.as_f64()));
        Self(self.0.div_ceil(shown).saturating_mul(shown))
    }

    /// The texts of two sums, with digits until they differ: of what does not fit, a text must not say that it does.
    #[must_use]
    pub fn apart(self, other: Self) -> [String; 2] {
        let least = money_digits(self.as_f64()).max(money_digits(other.as_f64()));
        let texts = |digits: u32| [self, other].map(|sum| format!("{:.*}", digits as usize, sum.as_f64()));
        let all = [self, other].map(|sum| sum.to_string());
        let differ = |texts: &[String; 2]| self == other || texts[0] != texts[1];
        Some(all).filter(differ).or_else(|| (least..12).map(texts).find(differ)).unwrap_or_else(|| texts(12))
    }

    /// In units of the currency.
    pub const fn as_f64(self) -> f64 {
        self.0 as f64 / Self::ONE
    }
}

/// Two digits behind the point, four below 1, six below 0.0001.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_money(self.as_f64()))
    }
}

/// A text that is no sum of money to spend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no sum of money: expected a number from 0.000001 to 1,000,000, such as 5.00")]
pub struct MoneyError(String);

impl FromStr for Money {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Self, MoneyError> {
        let amount = number(text).filter(|amount| (1e-6..=MOST).contains(amount));
        amount.map(|amount| Self((amount * 1e6).round() as u64 * 1_000_000)).ok_or_else(|| MoneyError(text.to_owned()))
    }
}

/// The price of a million tokens, in units of the currency.
///
/// ```
/// use paceline_config::Price;
/// let price: Price = "in=2.50,out=10".parse()?;
/// assert_eq!(price.of(1_000_000, 100_000).to_string(), "3.50");
/// # Ok::<(), paceline_config::PriceError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// In billionths.
    input: u64,
    output: u64,
    /// Of input that the provider read from its cache, where its answers say how much that was.
    cached: Option<u64>,
    /// Of input that it wrote into its cache, likewise.
    cached_write: Option<u64>,
}

/// A text that is no price.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no price: expected {}", self.expected())]
pub struct PriceError {
    text: String,
    /// The part that is at fault, where it is one.
    fault: Option<String>,
}

impl PriceError {
    /// What was expected, and what is at fault.
    fn expected(&self) -> String {
        let fault = self.fault.iter().map(|fault| format!("; {fault}"));
        [EXPECTED_PRICE.to_owned()].into_iter().chain(fault).collect()
    }
}

const EXPECTED_PRICE: &str = "prices of a million tokens, 0 to 1,000,000 and not all 0, such as in=2.50,out=10 (cached= and cached_write=, of input that \
     is read from the provider's cache and written into it, are optional)";

impl Price {
    /// What so many tokens cost.
    pub const fn of(&self, tokens_in: u64, tokens_out: u64) -> Money {
        let all = self.input as u128 * tokens_in as u128 + self.output as u128 * tokens_out as u128;
        Money::of_parts(all * 100)
    }

    /// What a call costs, with what the provider read from its cache and wrote into it at the prices of that; else at what is
    /// known of its provider. Tokens are not rounded: calls cost together what each of them costs.
    pub fn of_usage(&self, usage: &Usage) -> Money {
        let of = |tokens: u64, price: u64| i128::from(tokens) * i128::from(price) * 100;
        let hundredths = |of_input: i64| i128::from(of_input) * i128::from(self.input);
        // What is given takes the place of what is known.
        let instead = |given: Option<u64>, tokens, known| {
            given.map_or(0, |given| of(tokens, given) - of(tokens, self.input) - hundredths(known))
        };
        let all = of(usage.prompt_tokens(), self.input)
            + hundredths(usage.cache_price)
            + instead(self.cached, usage.cached_tokens, usage.cached_price)
            + instead(self.cached_write, usage.written_tokens, usage.written_price)
            + of(usage.output_tokens, self.output);
        Money::of_parts(u128::try_from(all).unwrap_or(0))
    }

    /// What a call costs at most by its tokens, each of whose prompt may cost so many percent of the price of input, for the
    /// limiter of a client.
    pub fn of_tokens(&self, percent: u32) -> TokenPrice {
        const MILLION: u64 = 1_000_000;
        let of = |input, output| self.of_usage(&Usage::reserved(input, output, percent)).billionths();
        TokenPrice { input: of(MILLION, 0), output: of(0, MILLION) }
    }

    /// What input costs that the provider read from its cache, in billionths; none where it costs what the rest does.
    pub const fn cached(&self) -> Option<u64> {
        self.cached
    }

    /// Why this can hardly be meant: it is below 0.001 or above 10,000. Nothing may cost nothing.
    pub fn doubt(&self) -> Option<&'static str> {
        let parts = [self.input, self.output, self.cached.unwrap_or(0), self.cached_write.unwrap_or(0)];
        if parts.iter().any(|part| (1..1_000_000).contains(part)) {
            return Some(
                "below 0.001: multiply a price per token by 1,000,000, and one per thousand tokens by 1,000; as it is, a budget may \
                 never stop the job",
            );
        }
        let is_high = parts.iter().any(|part| *part > 10_000_000_000_000);
        is_high.then_some("above 10,000: is it meant for more tokens?")
    }

    /// What costs no less than either.
    fn dearer(self, other: Self) -> Self {
        let dearer = |one: Option<u64>, other: Option<u64>| one.zip(other).map(|(one, other)| one.max(other));
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            cached: dearer(self.cached, other.cached),
            cached_write: dearer(self.cached_write, other.cached_write),
        }
    }
}

impl FromStr for Price {
    type Err = PriceError;

    fn from_str(text: &str) -> Result<Self, PriceError> {
        let parts: Vec<_> = text.split(',').filter_map(|part| part.split_once('=')).collect();
        let price = |name: &str| {
            let text = parts.iter().find(|(key, _)| key.trim() == name)?.1;
            number(text).filter(|price| *price <= MOST).map(billionths)
        };
        let both = price("in").zip(price("out")).filter(|(input, output)| input + output > 0);
        // Where nothing is gained it says less than is meant: a point is missing.
        let cached = price("cached").filter(|cached| both.is_none_or(|(input, _)| *cached <= input));
        let cached_write = price("cached_write");
        let number = 2 + [cached, cached_write].into_iter().flatten().count();
        match both {
            Some((input, output)) if parts.len() == number && text.matches(',').count() + 1 == number => {
                Ok(Self { input, output, cached, cached_write })
            }
            _ => Err(PriceError { text: text.to_owned(), fault: fault(&parts) }),
        }
    }
}

/// Which part of a price is at fault, where that can be told.
fn fault(parts: &[(&str, &str)]) -> Option<String> {
    let value = |name: &str| parts.iter().find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    let wrong = ["in", "cached", "cached_write", "out"].into_iter().find_map(|name| {
        let value = value(name).filter(|value| number(value).is_none())?;
        Some(format!("{name}={value} is no number such as 0.5"))
    });
    let missing: Vec<_> = ["in=", "out="].into_iter().filter(|name| value(&name[..name.len() - 1]).is_none()).collect();
    let are = if missing.len() == 1 { "is" } else { "are" };
    let missing = (!missing.is_empty()).then(|| format!("{} {are} missing", missing.join(" and ")));
    let [input, cached] = ["in", "cached"].map(|name| value(name).and_then(number));
    let above = input.zip(cached).filter(|(input, cached)| cached > input);
    let above = above.map(|(input, cached)| format!("cached={cached} is more than in={input}"));
    wrong.or(missing).or(above)
}

impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in={},out={}", self.input as f64 / 1e9, self.output as f64 / 1e9)?;
        let of_cache = [("cached", self.cached), ("cached_write", self.cached_write)];
        let mut given = of_cache.into_iter().filter_map(|(name, price)| Some((name, price?)));
        given.try_for_each(|(name, price)| write!(f, ",{name}={}", price as f64 / 1e9))
    }
}

/// What the models of an upstream cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prices {
    by_model: BTreeMap<String, Price>,
    /// Those of other upstreams, which a gateway's fallback may have answer: by their names [at](Self::name_at) them.
    of_others: BTreeMap<String, Price>,
}

impl From<Price> for Prices {
    /// One price for every model.
    fn from(price: Price) -> Self {
        Self { by_model: [(EVERY_MODEL.to_owned(), price)].into(), ..Self::default() }
    }
}

impl FromIterator<(String, Price)> for Prices {
    /// A price for each model; `*` is every other one.
    fn from_iter<T: IntoIterator<Item = (String, Price)>>(prices: T) -> Self {
        Self { by_model: prices.into_iter().collect(), ..Self::default() }
    }
}

/// As which model an answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountedAs<'a> {
    /// As the one that was asked for: its server names it, or a version of it.
    Asked,
    /// As another one, which has a price of its own.
    Priced(&'a str),
    /// As another one, which has none.
    Unpriced(&'a str),
}

impl Prices {
    /// As which model an answer counts that says to be of `answered`, to a request for `asked`: a server may have another one
    /// answer.
    pub fn counted_as<'a>(&'a self, asked: &str, answered: &'a str) -> CountedAs<'a> {
        if self.by_model.contains_key(answered) {
            return if answered == asked { CountedAs::Asked } else { CountedAs::Priced(answered) };
        }
        if is_version_of(answered, asked) || is_version_of(asked, answered) {
            return CountedAs::Asked;
        }
        let named = self.by_model.keys().filter(|model| is_version_of(answered, model));
        match named.max_by_key(|model| model.len()) {
            Some(model) if model == asked => CountedAs::Asked,
            Some(model) => CountedAs::Priced(model),
            None => CountedAs::Unpriced(answered),
        }
    }

    /// No price is known.
    pub fn is_empty(&self) -> bool {
        self.by_model.is_empty()
    }

    /// The prices by model; `*` is every model without one of its own.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Price)> {
        self.by_model.iter().map(|(model, price)| (&**model, *price))
    }

    /// Whether every model has the same price, whichever it is.
    pub fn is_one_for_all(&self) -> bool {
        self.by_model.keys().eq([EVERY_MODEL])
    }

    /// The price of everything, where there is only one.
    pub fn only(&self) -> Option<Price> {
        let mut prices = self.by_model.values().copied();
        prices.next().filter(|_| prices.next().is_none())
    }

    /// Whether a model has a price of its own, or there is one for every model.
    pub fn knows(&self, model: &str) -> bool {
        self.by_model.contains_key(model) || self.by_model.contains_key(EVERY_MODEL)
    }

    /// Whether a model has a price of its own.
    pub fn has_own(&self, model: &str) -> bool {
        self.by_model.contains_key(model) || self.of_other(model).is_some()
    }

    /// The price of a model: its own, else that of `*`, else the dearest there is, so that no budget is exceeded for a model
    /// that was forgotten. A model of another upstream without a price has that of the same model here. Nothing costs anything
    /// where no price is known.
    pub fn of(&self, model: &str) -> Price {
        self.set_for(model).unwrap_or_else(|| self.by_model.values().copied().fold(Price::default(), Price::dearer))
    }

    /// The price that was set for a model: its own, else that of `*`.
    fn set_for(&self, model: &str) -> Option<Price> {
        let own = |model: &str| self.by_model.get(model).copied();
        let known = own(model).or_else(|| self.of_other(model));
        known.or_else(|| own(model.split_once(':')?.1)).or_else(|| own(EVERY_MODEL))
    }

    /// The dearest of the prices of several models, of which a call may be of any.
    ///
    /// # Errors
    /// The first of them for which none is set.
    pub fn dearest_of<'a>(&self, models: impl IntoIterator<Item = &'a str>) -> Result<Price, &'a str> {
        let mut prices = models.into_iter().map(|model| self.set_for(model).ok_or(model));
        let dearest = prices.try_fold(None, |dearest: Option<Price>, price| {
            let price = price?;
            Ok(Some(dearest.map_or(price, |dearest| dearest.dearer(price))))
        });
        dearest.map(Option::unwrap_or_default)
    }
}

/// Reads the prices of a section.
pub(crate) fn prices(section: Option<&Priced>, ledger: &mut Ledger) -> Result<Prices, SettingError> {
    let mut by_model = BTreeMap::new();
    for (model, setting) in section.map(|priced| &priced.0).into_iter().flatten() {
        let key = format!("price.{model}");
        let price: Price =
            setting.text.parse().map_err(|wrong: PriceError| setting.refuse(&ledger.name(&key), wrong.expected()))?;
        ledger.note(key, price.to_string(), setting.source().clone());
        by_model.insert(model.clone(), price);
    }
    Ok(Prices { by_model, ..Prices::default() })
}

/// Rounded: a price with more than nine digits behind the point is none.
fn billionths(amount: f64) -> u64 {
    (amount * 1e9).round() as u64
}

#[cfg(test)]
mod tests;
