#![doc = include_str!("../README.md")]

mod llm;
mod redact;

pub use llm::{LlmConfig, LlmError, LlmJudge};
pub use redact::redacted;
