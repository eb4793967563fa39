//! What a request costs: units in any number of dimensions.

mod money;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

pub use self::money::TokenPrice;
use self::money::money;
use crate::units::{format_money, format_window};

/// What a limit counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Dimension {
    /// Calls.
    Requests,
    /// Tokens in and out together.
    Tokens,
    /// Tokens of the prompt.
    InputTokens,
    /// Tokens of the answer.
    OutputTokens,
    /// Tokens under a limit of the project, below the organization's.
    ProjectTokens,
    /// Bytes of the request body.
    Bytes,
    /// What tokens cost, in billionths of the currency of their [prices](TokenPrice).
    Money,
    /// Anything else: query points, capacity units.
    Named(Arc<str>),
}

/// Dimensions with a place of their own in a [`Cost`], in the order of [`Dimension::index`].
const PLACES: [Dimension; BUILT_IN] = [
    Dimension::Requests,
    Dimension::Tokens,
    Dimension::InputTokens,
    Dimension::OutputTokens,
    Dimension::ProjectTokens,
    Dimension::Bytes,
];

const BUILT_IN: usize = 6;

/// Many costs are of the first ones alone: requests and tokens.
const FIRST: usize = 2;

/// The units of money in one of its currency.
const ONE_OF_MONEY: f64 = 1e9;

impl Dimension {
    /// Whether it counts tokens of a model, of whichever kind, or what they cost.
    pub const fn is_of_tokens(&self) -> bool {
        matches!(self, Self::Tokens | Self::InputTokens | Self::OutputTokens | Self::ProjectTokens | Self::Money)
    }

    /// The name used in files, logs and JSON.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
            Self::ProjectTokens => "project_tokens",
            Self::Bytes => "bytes",
            Self::Money => "money",
            Self::Named(name) => name,
        }
    }

    /// The dimension of that name; every unknown name is one of the user's own.
    pub fn from_name(name: &str) -> Self {
        match name {
            "requests" => Self::Requests,
            "tokens" => Self::Tokens,
            "input_tokens" => Self::InputTokens,
            "output_tokens" => Self::OutputTokens,
            "project_tokens" => Self::ProjectTokens,
            "bytes" => Self::Bytes,
            "money" => Self::Money,
            other => Self::Named(other.into()),
        }
    }

    /// So many units of it in a window, in words.
    ///
    /// ```
    /// use core::time::Duration;
    /// use paceline_core::Dimension;
    ///
    /// let hour = Duration::from_secs(3_600);
    /// assert_eq!(Dimension::Requests.per(1, hour), "1 request per 1h");
    /// assert_eq!(Dimension::Tokens.per(2_000, hour), "2000 tokens per 1h");
    /// assert_eq!(Dimension::Money.per(2_500_000_000, hour), "2.50 money per 1h");
    /// ```
    pub fn per(&self, units: u64, window: Duration) -> String {
        let is_one = units == 1 && !matches!(self, Self::Named(_));
        let name = if is_one { self.as_str().trim_end_matches('s') } else { self.as_str() };
        format!("{} {name} per {}", self.amount(units), format_window(window))
    }

    /// So many units of it as a number for people: money in units of its currency.
    pub fn amount(&self, units: u64) -> String {
        match self {
            Self::Money => format_money(self.number(units)),
            _ => format!("{units}"),
        }
    }

    /// The same as a number for programs.
    pub fn number(&self, units: u64) -> f64 {
        let of_one = if let Self::Money = self { ONE_OF_MONEY } else { 1.0 };
        units as f64 / of_one
    }

    const fn index(&self) -> Option<usize> {
        match self {
            Self::Requests => Some(0),
            Self::Tokens => Some(1),
            Self::InputTokens => Some(2),
            Self::OutputTokens => Some(3),
            Self::ProjectTokens => Some(4),
            Self::Bytes => Some(5),
            Self::Money | Self::Named(_) => None,
        }
    }
}

impl Dimension {
    /// Whether it counts tokens of answers.
    pub(crate) const fn counts_answers(&self) -> bool {
        matches!(self, Self::Tokens | Self::ProjectTokens | Self::OutputTokens)
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Units that a request takes from each dimension.
///
/// A dimension that was never set costs 0 in a reservation. In a usage ([`Outcome::usage`](crate::Outcome::usage)) it is
/// unknown and stays as reserved; only one that was set to 0 gives its units back. Two costs that differ in this are not
/// equal.
///
/// ```
/// use paceline_core::{Cost, Dimension};
/// let cost = Cost::request().with(Dimension::Tokens, 1_200);
/// assert_eq!(cost.get(&Dimension::Requests), 1);
/// assert_eq!(cost.get(&Dimension::Tokens), 1_200);
/// assert_eq!(cost.get(&Dimension::Bytes), 0);
/// assert!(cost.units().eq([(Dimension::Requests, 1), (Dimension::Tokens, 1_200)]));
///
/// let usage = Cost::zero().with(Dimension::Tokens, 900);
/// assert_eq!(cost.settled(&usage), Cost::request().with(Dimension::Tokens, 900));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    built_in: [u64; BUILT_IN],
    /// Which of those were set, a bit for each.
    set: u8,
    answer: Bound,
    /// Only its answer tells how many input tokens it has.
    mixed: bool,
    /// So many of its input tokens only earlier answers speak for. No prompt has more than fit here.
    learnt: u32,
    /// In a box, which takes a word in place of many: most costs have none, and costs are copied with each call.
    apart: Option<Box<Apart>>,
}

/// What is known of the length of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Bound {
    /// It has no more tokens than the cost says.
    #[default]
    Kept,
    /// It is said to have no more.
    Unproven,
    /// It may have any number: the cost has a guess.
    None,
}

/// What few costs have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Apart {
    /// Units by the user's own names.
    named: Vec<(Arc<str>, u64)>,
    /// Where it was set.
    money: Option<u64>,
    price: TokenPrice,
}

impl Cost {
    /// No units; as a usage, every dimension is unknown.
    pub const fn zero() -> Self {
        Self { built_in: [0; BUILT_IN], set: 0, answer: Bound::Kept, mixed: false, learnt: 0, apart: None }
    }

    /// One request and nothing else.
    pub const fn request() -> Self {
        let mut cost = Self::zero();
        cost.built_in[0] = 1;
        cost.set = 1;
        cost
    }

    /// With `units` of a dimension, replacing what was there.
    #[must_use]
    pub fn with(mut self, dimension: Dimension, units: u64) -> Self {
        self.set(dimension, units);
        self
    }

    /// Of a call whose answer has no bound of its own, such as `max_tokens`: its output tokens, which are part of its tokens, are
    /// a guess. Under a limit that counts them the pacer replaces the guess by what the answers of the scope have shown, and
    /// before it knows any it sends such calls one at a time.
    #[must_use]
    pub const fn open_ended(mut self) -> Self {
        self.answer = Bound::None;
        self
    }

    /// Whether its answer has no bound of its own.
    pub const fn is_open_ended(&self) -> bool {
        matches!(self.answer, Bound::None)
    }

    /// Of a call whose answer has a bound that its server may ignore: its output tokens, which are part of its tokens. Under a
    /// limit that counts them no more such calls of a scope are under way than have kept to their bounds, at least one, or one
    /// for each 16,384 tokens of the limit. Once an answer was longer than its bound that begins anew with one, and they reserve
    /// what those answers have shown.
    #[must_use]
    pub const fn unproven(mut self) -> Self {
        self.answer = Bound::Unproven;
        self
    }

    /// Whether its answer has a bound that its server may ignore.
    pub const fn is_unproven(&self) -> bool {
        matches!(self.answer, Bound::Unproven)
    }

    /// Of its input tokens, which are part of its tokens, so many are an estimate for which only earlier answers speak, and
    /// nothing that the request itself shows. No such estimate makes a call impossible: where it exceeds a limit, the call
    /// reserves all of that, and leaves alone.
    #[must_use]
    pub const fn with_learnt(mut self, tokens: u64) -> Self {
        self.learnt = if tokens > u32::MAX as u64 { u32::MAX } else { tokens as u32 };
        self
    }

    /// Of a call whose prompt holds more than text, as pictures: its input tokens, which are part of its tokens, are a guess.
    /// Under a limit on tokens no more such calls of a scope are under way than were answered, at least one, and each reserves as
    /// many as the longest of these prompts had.
    #[must_use]
    pub const fn mixed(mut self) -> Self {
        self.mixed = true;
        self
    }

    /// Whether its prompt holds more than text.
    pub const fn is_mixed(&self) -> bool {
        self.mixed
    }

    /// The units of a dimension without those for which [only earlier answers speak](Self::with_learnt).
    pub fn stated(&self, dimension: &Dimension) -> u64 {
        let (units, learnt) = (self.get(dimension), u64::from(self.learnt));
        match dimension {
            Dimension::InputTokens => units.saturating_sub(learnt),
            // Where the larger of prompt and answer counts, the answer alone may be all of them.
            Dimension::Tokens | Dimension::ProjectTokens if learnt > 0 => {
                units.saturating_sub(learnt).max(self.get(&Dimension::OutputTokens)).min(units)
            }
            Dimension::Money => units.saturating_sub(money(learnt, self.price_of(&Dimension::InputTokens))),
            _ => units,
        }
    }

    /// Whether answers change what such a call reserves.
    pub(crate) const fn is_guess(&self) -> bool {
        !matches!(self.answer, Bound::Kept) || self.learnt > 0 || self.mixed
    }

    /// Reduces what only answers speak for to what a limit lets through at once, by its dimension.
    pub(crate) fn fit_learnt(&mut self, most: impl Fn(&Dimension) -> Option<u64>) {
        if self.learnt == 0 {
            return;
        }
        let guess = if self.is_open_ended() { self.get(&Dimension::OutputTokens) } else { 0 };
        for dimension in [Dimension::Tokens, Dimension::ProjectTokens, Dimension::InputTokens, Dimension::Money] {
            let guess = match dimension {
                Dimension::InputTokens => 0,
                Dimension::Money => money(guess, self.price_of(&Dimension::OutputTokens)),
                _ => guess,
            };
            let (units, stated) = (self.get(&dimension), self.stated(&dimension));
            if let Some(most) = most(&dimension)
                && units.saturating_sub(guess) > most
            {
                self.set(dimension, most.max(stated.saturating_sub(guess)).saturating_add(guess));
            }
        }
    }

    /// Replaces the guess of how long the answer is. What counts the answer among other tokens follows.
    pub(crate) fn guess_answer(&mut self, output_tokens: u64) {
        let output = self.get(&Dimension::OutputTokens);
        for dimension in [Dimension::Tokens, Dimension::ProjectTokens] {
            let input = self.get(&dimension).saturating_sub(output);
            self.set(dimension, input.saturating_add(output_tokens));
        }
        self.set(Dimension::OutputTokens, output_tokens);
    }

    /// Has the prompt so many tokens at the least. What counts it among other tokens follows.
    pub(crate) fn guess_prompt(&mut self, input_tokens: u64) {
        let more = input_tokens.saturating_sub(self.get(&Dimension::InputTokens));
        for dimension in [Dimension::Tokens, Dimension::ProjectTokens, Dimension::InputTokens] {
            self.set(dimension.clone(), self.get(&dimension).saturating_add(more));
        }
    }

    /// Replaces the units of a dimension. The money of a call whose tokens have a [price](Self::priced) follows these.
    pub fn set(&mut self, dimension: Dimension, units: u64) {
        match (dimension.index(), dimension) {
            (Some(index), dimension) => {
                let before = core::mem::replace(&mut self.built_in[index], units);
                self.set |= 1 << index;
                if let Some(apart) = &mut self.apart {
                    apart.reprice(&dimension, before, units);
                }
            }
            (None, Dimension::Money) => self.apart.get_or_insert_default().money = Some(units),
            (None, Dimension::Named(name)) => {
                let named = &mut self.apart.get_or_insert_default().named;
                match named.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => *known = units,
                    None => named.push((name, units)),
                }
            }
            (None, _) => unreachable!("only money and named dimensions have no place of their own"),
        }
    }

    /// The actual cost of a call that reserved this and whose answer reported `usage`. A dimension that `usage` does not name
    /// stays as reserved.
    #[must_use]
    pub fn settled(&self, usage: &Self) -> Self {
        let mut actual = self.clone();
        for (index, units) in usage.built_in.iter().enumerate().filter(|(index, _)| usage.set & (1 << index) != 0) {
            actual.built_in[index] = *units;
            actual.set |= 1 << index;
        }
        for dimension in [Dimension::InputTokens, Dimension::OutputTokens] {
            let (before, now) = (self.get(&dimension), actual.get(&dimension));
            actual.apart.iter_mut().for_each(|apart| apart.reprice(&dimension, before, now));
        }
        for (dimension, units) in usage.apart() {
            actual.set(dimension, units);
        }
        actual
    }

    /// The usage of a call that reserved this and cost nothing: each dimension set to 0.
    #[must_use]
    pub fn free(&self) -> Self {
        let mut apart = self.apart.clone();
        apart.iter_mut().for_each(|apart| apart.set_to_0());
        Self { built_in: [0; BUILT_IN], set: (1 << BUILT_IN) - 1, answer: Bound::Kept, mixed: false, learnt: 0, apart }
    }

    /// The dimensions of which it takes units.
    pub fn units(&self) -> impl Iterator<Item = (Dimension, u64)> {
        let built_in = PLACES.into_iter().zip(self.built_in);
        built_in.chain(self.apart()).filter(|(_, units)| *units > 0)
    }

    /// The units that were set in dimensions without a place of their own.
    fn apart(&self) -> impl Iterator<Item = (Dimension, u64)> {
        let apart = self.apart.as_deref();
        let money = apart.and_then(|apart| Some((Dimension::Money, apart.money?)));
        let named = apart.into_iter().flat_map(|apart| &apart.named);
        named.map(|(name, units)| (Dimension::Named(name.clone()), *units)).chain(money)
    }

    /// Adds another cost, dimension by dimension.
    #[inline]
    pub(crate) fn add(&mut self, other: &Self) {
        self.change(other, u64::saturating_add);
    }

    /// Takes back what [`Cost::add`] added.
    #[inline]
    pub(crate) fn subtract(&mut self, other: &Self) {
        self.change(other, u64::saturating_sub);
    }

    #[inline(always)]
    fn change(&mut self, by: &Self, changed: fn(u64, u64) -> u64) {
        let (sums, more) = self.built_in.split_at_mut(FIRST);
        for (sum, units) in sums.iter_mut().zip(&by.built_in) {
            *sum = changed(*sum, *units);
        }
        if by.set >> FIRST != 0 {
            for (sum, units) in more.iter_mut().zip(&by.built_in[FIRST..]) {
                *sum = changed(*sum, *units);
            }
        }
        if by.apart.is_some() {
            self.change_apart(by, changed);
        }
    }

    #[cold]
    fn change_apart(&mut self, by: &Self, changed: fn(u64, u64) -> u64) {
        for (dimension, units) in by.apart() {
            let sum = changed(self.get(&dimension), units);
            self.set(dimension, sum);
        }
    }

    /// Units of a dimension.
    #[inline(always)]
    pub fn get(&self, dimension: &Dimension) -> u64 {
        match dimension.index() {
            Some(index) => self.built_in[index],
            None => self.get_apart(dimension),
        }
    }

    #[cold]
    fn get_apart(&self, dimension: &Dimension) -> u64 {
        let Some(apart) = &self.apart else { return 0 };
        match dimension {
            Dimension::Money => apart.money.unwrap_or(0),
            other => apart.named.iter().find(|(name, _)| **name == *other.as_str()).map_or(0, |(_, units)| *units),
        }
    }
}
