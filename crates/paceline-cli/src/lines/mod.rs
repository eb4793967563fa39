//! The input: its file, its lines, and the request of each.

pub(crate) mod address;
mod asked;
mod columns;
pub(crate) mod convert;
mod doubts;
pub(crate) mod error;
mod filters;
pub(crate) mod format;
pub(crate) mod headers;
pub(crate) mod input;
pub(crate) mod line;
pub(crate) mod members;
pub(crate) mod not_sent;
pub(crate) mod spool;
mod table;
mod template;
pub(crate) mod wrong;
