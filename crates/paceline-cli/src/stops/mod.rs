//! Why a run ends before its items do, and how that is seen from failures that are all alike.

pub(crate) mod alike;
pub(crate) mod fail_fast;
pub(crate) mod stop;
