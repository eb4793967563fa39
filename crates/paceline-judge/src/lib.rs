//! Judges outside the process: they decide about failures in place of the rules, within the rules' bounds.
//!
//! A judge sees what went wrong, never what was sent. It answers with one of three actions, and whatever it answers costs at
//! most one item: delays are capped, retries are counted, errors of the account never come before it. A judge that is slow,
//! down, rate-limited itself or answers nonsense leaves the case to the rules.

mod llm;
mod redact;

pub use llm::{LlmConfig, LlmError, LlmJudge};
pub use redact::redacted;
