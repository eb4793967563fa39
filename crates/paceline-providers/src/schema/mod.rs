//! A JSON schema, where the build has one.

#[cfg(feature = "schema")]
mod boon;
#[cfg(not(feature = "schema"))]
mod none;

#[cfg(feature = "schema")]
pub use boon::{Schema, SchemaError};
#[cfg(not(feature = "schema"))]
pub use none::NoSchema as Schema;
