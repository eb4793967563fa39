//! The model that an answer is of, beside the one that its request asked for.

use super::outline::{Outline, outline};

/// The model that the body of an answer names; none where it is no object, or names none.
///
/// ```
/// use paceline_providers::model_of_answer;
/// assert_eq!(model_of_answer(br#"{"model":"gpt-4o-2024-08-06","choices":[]}"#).as_deref(), Some("gpt-4o-2024-08-06"));
/// assert_eq!(model_of_answer(br#"{"candidates":[],"modelVersion":"gemini-2.5-pro"}"#).as_deref(), Some("gemini-2.5-pro"));
/// assert_eq!(model_of_answer(b"a page"), None);
/// ```
pub fn model_of_answer(body: &[u8]) -> Option<String> {
    const NAMES: &[&str] = &["model", "modelVersion"];
    let members = outline(body, &Outline { kept: NAMES, pruned: &[], arrays: false })?;
    let named = NAMES.iter().find_map(|key| members.get(key)?.as_str());
    named.filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Whether a name is that of a model, or of one of its dated or numbered versions, with or without the name of who serves it.
///
/// ```
/// use paceline_providers::is_version_of;
/// assert!(is_version_of("gpt-4o-mini-2024-07-18", "gpt-4o-mini") && is_version_of("gpt-4o", "openai/gpt-4o"));
/// assert!(!is_version_of("gpt-4o-mini", "gpt-4o") && !is_version_of("claude-opus-4-5", "claude-opus-4"));
/// ```
pub fn is_version_of(name: &str, model: &str) -> bool {
    let (name, model) = (plain(name), plain(model));
    let Some(rest) = name.strip_prefix(&model).filter(|_| !model.is_empty()) else { return false };
    let Some(version) = rest.strip_prefix(['-', '@', ':']) else { return rest.is_empty() };
    let first = version.split('-').next().unwrap_or_default();
    // A year, a month with its day, or a number of three digits: a single digit makes another model.
    first.len() >= LEAST_DIGITS && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

/// The digits with which a version begins.
const LEAST_DIGITS: usize = 3;

/// Without who serves it, and without words for the newest version of it.
fn plain(name: &str) -> String {
    let name = name.trim().to_ascii_lowercase();
    let last = name.rsplit('/').next().unwrap_or_default();
    let newest = ["-latest", ":latest", "@latest", "-0"].iter().find_map(|end| last.strip_suffix(end));
    newest.unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_model_and_other_models() {
        for (name, model) in [
            ("gpt-4o", "GPT-4o"),
            ("gpt-4-0613", "gpt-4"),
            ("o3-mini-2025-01-31", "o3-mini"),
            ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
            ("claude-3-5-haiku-20241022", "claude-3-5-haiku-latest"),
            ("claude-opus-4-20250514", "claude-opus-4-0"),
            ("models/gemini-1.5-flash-002", "gemini-1.5-flash"),
            ("mistral-large-2411", "mistral-large-latest"),
            ("llama3:latest", "llama3"),
        ] {
            assert!(is_version_of(name, model), "{name} of {model}");
        }
        for (name, model) in [
            ("gpt-4o-mini", "gpt-4o"),
            ("gpt-4o", "gpt-4o-mini"),
            ("o1-pro", "o1"),
            ("gpt-4.1", "gpt-4"),
            ("gpt-4o-audio-preview-2024-12-17", "gpt-4o"),
            ("claude-opus-4-1-20250805", "claude-opus-4"),
            ("x", ""),
        ] {
            assert!(!is_version_of(name, model), "{name} of {model}");
        }
    }
}
