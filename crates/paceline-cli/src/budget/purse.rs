//! The purses: bounds on what calls use, and that the next call does not fit into one.

use paceline_config::Money;

use super::Sum;
use crate::text;

/// A bound on what calls use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetKind {
    /// `--max-tokens`: of this run.
    RunTokens,
    /// `--budget-tokens`: of the job, over all its runs.
    JobTokens,
    /// `--budget-cost`: likewise, in money.
    JobCost,
}

impl BudgetKind {
    /// The flag that sets it.
    pub(crate) const fn flag(self) -> &'static str {
        match self {
            Self::RunTokens => "--max-tokens",
            Self::JobTokens => "--budget-tokens",
            Self::JobCost => "--budget-cost",
        }
    }

    /// So many of its units, for people.
    pub(super) fn amount(self, units: u64) -> String {
        match self {
            Self::RunTokens | Self::JobTokens => text::count(units),
            Self::JobCost => Money::from_units(units).to_string(),
        }
    }
}

/// What is asked of the purses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    tokens: u64,
    cost: Money,
}

impl From<Sum> for Amount {
    fn from(Sum { usage, cost }: Sum) -> Self {
        Self { tokens: usage.total(), cost }
    }
}

impl Amount {
    /// In the units of a purse.
    pub(super) const fn of(&self, purse: BudgetKind) -> u64 {
        match purse {
            BudgetKind::RunTokens | BudgetKind::JobTokens => self.tokens,
            BudgetKind::JobCost => self.cost.units(),
        }
    }

    pub(super) fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        self.tokens = with(self.tokens, other.tokens);
        self.cost = Money::from_units(with(self.cost.units(), other.cost.units()));
    }
}

/// A purse that the next call does not fit into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    pub(crate) purse: BudgetKind,
    /// How large it is.
    pub(super) limit: u64,
    /// What had been used of it.
    pub(super) used: u64,
    /// What that call would reserve.
    pub(super) next: Amount,
    /// What it will hardly exceed, if its answer comes as long as others.
    pub(super) likely: Amount,
    /// What it would reserve once a prompt like its own was answered.
    pub(super) once_known: Amount,
    /// There is room for what other calls ask for.
    pub(super) others_fit: bool,
    /// The bytes of the line of its item.
    pub(super) bytes: u64,
    /// The line of its item in the input, once that is known.
    pub(super) line: Option<u64>,
}

impl Exceeded {
    /// The flag that sets it, with its value.
    pub(crate) fn flag(self) -> String {
        format!("{} {}", self.purse.flag(), self.purse.amount(self.limit))
    }

    /// What that call would reserve, in the units of the purse.
    pub(super) const fn next(&self) -> u64 {
        self.next.of(self.purse)
    }

    /// Whether the call would not even fit into the purse of a run that has used nothing.
    pub(crate) fn never_fits(&self) -> bool {
        self.purse == BudgetKind::RunTokens && self.next() > self.limit
    }

    /// What that call may use, and what is left of the purse.
    pub(crate) fn next_and_left(&self) -> [String; 2] {
        let [next, left] = [self.next(), self.limit.saturating_sub(self.used)];
        match self.purse {
            BudgetKind::JobCost => Money::from_units(next).apart(Money::from_units(left)),
            BudgetKind::RunTokens | BudgetKind::JobTokens => [next, left].map(text::count),
        }
    }

    /// Nothing was left of it.
    pub(crate) const fn is_all_used(&self) -> bool {
        self.used >= self.limit
    }

    /// The same, with the line of the call's item.
    pub(crate) const fn at_line(self, line: u64) -> Self {
        Self { line: Some(line), ..self }
    }
}

/// How large the purses are; none has no end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) run_tokens: Option<u64>,
    pub(crate) job_tokens: Option<u64>,
    pub(crate) job_cost: Option<Money>,
}

impl Limits {
    /// Whether they hold over all runs of the job, so that a kill must not lose what a call reserved.
    pub(crate) const fn are_of_job(self) -> bool {
        self.job_tokens.is_some() || self.job_cost.is_some()
    }

    pub(super) fn all(self) -> impl Iterator<Item = (BudgetKind, u64)> {
        let tokens = [(BudgetKind::RunTokens, self.run_tokens), (BudgetKind::JobTokens, self.job_tokens)];
        let cost = (BudgetKind::JobCost, self.job_cost.map(Money::units));
        tokens.into_iter().chain([cost]).filter_map(|(purse, limit)| Some((purse, limit?)))
    }
}
