//! The model that the path of a call names.

use std::borrow::Cow;
use std::iter::once;

use percent_encoding::percent_decode_str;

use crate::address::path_before;

/// Parts of paths before the name of a model: Gemini's /v1beta/models/NAME:generateContent, Azure's
/// /openai/deployments/NAME/chat/completions, Bedrock's /model/NAME/invoke. Those servers heed no model in the body.
const BEFORE_MODEL: [&str; 4] = ["models", "deployments", "model", "engines"];

/// The parts of a path that name models by their place, and what else is asked to do something there as a model is: Gemini's
/// /v1beta/tunedModels/NAME:generateContent. They are as they stand, with what is to be done.
pub fn models_in_path(path: &str) -> impl Iterator<Item = &str> {
    // Many servers take several slashes for one.
    let parts = || path.split('/').filter(|part| !part.is_empty());
    let pairs = once("").chain(parts()).zip(parts());
    let is_named = |before: &str, part: &str| {
        BEFORE_MODEL.iter().any(|known| before.eq_ignore_ascii_case(known)) || has_action(part)
    };
    pairs.filter(move |(before, part)| is_named(before, part)).map(|(_, part)| part)
}

/// The model that the path of an address names, by its name alone; none where no part of the path is one by its place.
///
/// ```
/// use paceline_providers::model_of_path;
/// let model = |url| model_of_path(url);
/// assert_eq!(model("/v1beta/models/gemini-2.5-pro:generateContent?key=x").as_deref(), Some("gemini-2.5-pro"));
/// assert_eq!(model("https://host/model/anthropic.claude-v2%3A1/converse").as_deref(), Some("anthropic.claude-v2:1"));
/// assert_eq!(model("/openai/deployments/prod-chat/chat/completions").as_deref(), Some("prod-chat"));
/// assert_eq!(model("https://host:8080/v1/chat/completions"), None);
/// ```
pub fn model_of_path(url: &str) -> Option<String> {
    let url = path_before(url, b"?#");
    let path = url.split_once("://").map_or(url, |(_, rest)| rest.split_once('/').map_or("", |(_, path)| path));
    let part = percent_decode_str(models_in_path(path).next()?).decode_utf8_lossy();
    let name = match part.split_once(':') {
        Some((name, action)) if !action.contains(':') && has_action(&part) => name,
        _ => &part,
    };
    Some(name.to_owned())
}

/// The model that a call is billed as: that which its body names, else that of its path.
pub fn billed_model<'a>(named: Option<&'a str>, url: &str) -> Option<Cow<'a, str>> {
    named.map(Cow::Borrowed).or_else(|| model_of_path(url).map(Cow::Owned))
}

/// Whether behind a colon stands what is to be done, and no version.
fn has_action(part: &str) -> bool {
    part.rsplit_once(':').is_some_and(|(_, action)| action.starts_with(|c: char| c.is_ascii_alphabetic()))
}
