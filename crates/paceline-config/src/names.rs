//! The accepted names of a value: what the readers take, and what the JSON Schema lists.

use paceline_core::{Class, Pace, RefillMode};
use paceline_providers::Provider;
use paceline_providers::table::{CachedInput, Counts, Reserves, Scope};

/// The upstream that needs no key and no network: the user who runs it supplies the address.
pub const MOCK: &str = "mock";

/// Values by the names that files give them.
pub(crate) type Names<T, const N: usize> = [(&'static str, T); N];

pub(crate) const SCOPES: Names<Scope, 7> = [
    ("model", Scope::Model),
    ("endpoint", Scope::Endpoint),
    ("host", Scope::Host),
    ("group", Scope::Group),
    ("table", Scope::Table),
    ("key", Scope::Key),
    ("all", Scope::Key),
];
pub(crate) const RESTORES: Names<RefillMode, 3> =
    [("gradually", RefillMode::Gradually), ("at_once", RefillMode::AtOnce), ("unknown", RefillMode::Unknown)];
pub(crate) const RESERVES: Names<Reserves, 3> =
    [("input_and_output", Reserves::InputAndOutput), ("larger", Reserves::Larger), ("input", Reserves::Input)];
pub(crate) const COUNTS: Names<Counts, 2> = [("all", Counts::All), ("input", Counts::Input)];
pub(crate) const CACHED_INPUT: Names<CachedInput, 2> = [("counts", CachedInput::Counts), ("free", CachedInput::Free)];

/// The names of a table of them.
pub(crate) fn names<T, const N: usize>(of: &Names<T, N>) -> Vec<&'static str> {
    of.iter().map(|(name, _)| *name).collect()
}

/// The names that `scope` takes.
pub fn scope_names() -> Vec<&'static str> {
    names(&SCOPES)
}

/// The names that `pace` takes.
pub fn pace_names() -> Vec<&'static str> {
    PACES.iter().map(|choice| choice.name).collect()
}

/// The upstreams that need no configuration.
pub fn upstream_names() -> Vec<&'static str> {
    Provider::ALL.map(Provider::as_str).into_iter().chain([MOCK]).collect()
}

/// The classes that an answer can have: it is never abandoned, and what was accepted of a batch is no rule's business.
pub(crate) fn class_names() -> Vec<&'static str> {
    let usable = |class: &Class| !matches!(class, Class::Abandoned | Class::Partial);
    Class::ALL.into_iter().filter(usable).map(Class::as_str).collect()
}

/// A pace by the name that stands for it.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct PaceChoice {
    pub(crate) name: &'static str,
    pub(crate) pace: Pace,
}

pub(crate) const PACES: [PaceChoice; 14] = [
    PaceChoice { name: "auto", pace: Pace::Auto },
    PaceChoice { name: "fixed", pace: Pace::Fixed },
    PaceChoice { name: "aimd", pace: Pace::Aimd },
    PaceChoice { name: "responsive", pace: Pace::Responsive },
    PaceChoice { name: "linear", pace: Pace::Linear },
    PaceChoice { name: "exponential", pace: Pace::Exponential },
    PaceChoice { name: "none", pace: Pace::None },
    PaceChoice { name: "conservative", pace: Pace::Fixed },
    PaceChoice { name: "moderate", pace: Pace::Fixed },
    PaceChoice { name: "aggressive", pace: Pace::Fixed },
    PaceChoice { name: "adaptive", pace: Pace::Auto },
    PaceChoice { name: "aimd-classic", pace: Pace::Aimd },
    PaceChoice { name: "responsive-classic", pace: Pace::Responsive },
    PaceChoice { name: OPENAI_APP, pace: Pace::Fixed },
];

/// The preset's name, which is also a pace.
pub(crate) const OPENAI_APP: &str = "openai-app";
