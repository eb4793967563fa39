#![doc = include_str!("../README.md")]
//!
//! A [`Batch`] sends what an answer left undone, until nothing is left.
//!
//! # Why it is no part of the client
//!
//! An interceptor and a retry classifier of the SDK cannot wait, and its HTTP client sends what was signed before: after a wait
//! of five minutes the signature has expired. Around the whole call the permit comes first, and each try is signed anew.

mod batch;
mod reader;

pub use batch::{Batch, BatchError};
pub use reader::Aws;
