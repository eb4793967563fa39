//! Calls that only answers tell the cost of: what this run knows of those that were answered.

use std::sync::Arc;

use paceline_core::Alike;
use paceline_providers::Usage;

/// How much a request tells of what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All: its text, and a bound on its answer or how long answers are.
    Text,
    /// Its prompt holds more than text.
    Mixed,
    /// Nothing.
    Untold,
}

/// What this run knows of the answers of a model.
#[derive(Clone, Debug, Default)]
pub(super) struct Answers {
    /// As in the ledger.
    pub(super) known: u64,
    pub(super) open: u64,
    /// The same of those to prompts that hold more than text, and of calls whose requests tell nothing of what they cost.
    pub(super) mixed: Alike,
    pub(super) untold: Alike,
    /// The tokens of the longest one that exceeded the bound of its request; 0 where all kept to theirs.
    pub(super) beyond: u64,
    /// The dearest model that answered in its place, where that costs more.
    pub(super) dearer: Option<Arc<str>>,
}

/// The most tokens that a prompt and an answer of them had.
pub(super) fn longest(alike: &Alike) -> Usage {
    Usage { input_tokens: alike.longest_input(), output_tokens: alike.longest_output(), ..Usage::default() }
}

impl Answers {
    pub(super) fn alike(&self, kind: Kind) -> Alike {
        match kind {
            Kind::Text => Alike::default(),
            Kind::Mixed => self.mixed,
            Kind::Untold => self.untold,
        }
    }

    pub(super) const fn alike_mut(&mut self, kind: Kind) -> Option<&mut Alike> {
        match kind {
            Kind::Text => None,
            Kind::Mixed => Some(&mut self.mixed),
            Kind::Untold => Some(&mut self.untold),
        }
    }
}
