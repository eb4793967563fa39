//! A reading for people, in 80 columns.

use std::fmt::Write as _;
use std::time::Duration;

use paceline::{Class, LimitReport, LimitScope};
use paceline_providers::{Action, Provider, Reading};

use super::answer::Saved;
use super::json;
use super::together::Together;
use crate::text::{cell, count, exact, padded, printable, width, wrapped};

/// Where the second and the third column begin.
const VALUE: usize = 9;
const MEANING: usize = 26;

/// The verdict, how it came about, and the limits that the answer announced.
pub(super) fn of(provider: Provider, saved: &Saved, reading: &Reading, together: &Together) -> String {
    let mut text = String::new();
    line(&mut text, "answer", &format!("{} from {provider}", saved.status), "");
    line(&mut text, "class", reading.class.as_str(), class(reading));
    line(&mut text, "action", reading.action().as_str(), action(reading.action(), reading.class));
    line(&mut text, "scope", json::scope(reading.reach), scope(reading, together));
    let (wait, from) = wait(saved, reading);
    line(&mut text, "wait", &wait, &from);
    match (&reading.code, &reading.error_type) {
        (Some(code), Some(kind)) if code != kind => line(&mut text, "code", &format!("{code}, type {kind}"), ""),
        (Some(code), _) => line(&mut text, "code", code, ""),
        (None, Some(kind)) => line(&mut text, "type", kind, ""),
        (None, None) => {}
    }
    if let Some(usage) = reading.usage {
        let tokens = format!("{} in, {} out", count(usage.prompt_tokens()), count(usage.output_tokens));
        line(&mut text, "tokens", &tokens, "");
    }
    if let Some(message) = &reading.message {
        line(&mut text, "message", message, "");
    }
    let limits_of_upstream = together.limits();
    if !limits_of_upstream.is_empty() {
        line(&mut text, "limits", &limits_of_upstream.join("; "), "");
    }
    text.push_str("\nHow it was decided\n");
    for (index, step) in reading.steps.iter().enumerate() {
        wrapped(&mut text, &format!("  {}. ", index + 1), step);
    }
    if !reading.limits.is_empty() {
        limits(&mut text, &reading.limits);
    }
    text
}

fn line(text: &mut String, name: &str, value: &str, meaning: &str) {
    let name = format!("{name:VALUE$}");
    if meaning.is_empty() {
        return wrapped(text, &name, value);
    }
    let value = format!("{name}{}", padded(&printable(value), MEANING - VALUE));
    let pad = if width(&value) > MEANING { " " } else { "" };
    wrapped(text, &format!("{value}{pad}"), meaning);
}

const fn class(reading: &Reading) -> &'static str {
    match reading.class {
        Class::Success => "a usable answer, or one that Paceline does not judge",
        Class::Throttled => "a rate limit refused the call; it refills soon",
        Class::Overloaded => "the provider lacks capacity; your quota is not the cause",
        Class::Transient => "a failure that may pass",
        Class::QuotaExhausted if reading.unnamed => "a wait so long that it counts as a used-up quota",
        Class::QuotaExhausted => "a quota of a long window, or a spending cap, is used up",
        Class::Account => "key, permission or bill: a person must act",
        Class::Invalid => "this request can never pass",
        Class::Filtered => "the content of this request was refused",
        Class::Partial => "a part of the batch was accepted",
        Class::Abandoned => "the caller abandoned the call",
    }
}

const fn action(action: Action, class: Class) -> &'static str {
    match (action, class) {
        (Action::Record, _) => "keep the result",
        (Action::Retry, Class::Throttled) => "send it again after the wait; no attempt is used up",
        (Action::Retry, _) => "send it again after the wait; one attempt is used up",
        (Action::RetryRemainder, _) => "send again what was not accepted, and only that",
        (Action::Pause, _) => "hold the scope until then; keep the items",
        (Action::StopKey, _) => {
            "stop; items stay pending until the problem is fixed; where no key is sent, the item may fail alone"
        }
        (Action::FailItem, _) => "fail this item alone; sending it again would not help",
        _ => "nothing",
    }
}

const fn scope(reading: &Reading, together: &Together) -> &'static str {
    match (reading.reach, reading.class) {
        (LimitScope::Item, Class::Success) => "",
        (LimitScope::Item, _) => "other items are not affected",
        (LimitScope::Scope, _) => together.calls(),
        (LimitScope::Account, _) => "every call under this host and key",
    }
}

/// The wait, and the field that gave it with its value.
fn wait(saved: &Saved, reading: &Reading) -> (String, String) {
    let Some(wait) = reading.wait else {
        return match reading.wait_from {
            "policy" if reading.class == Class::QuotaExhausted => (
                "ours".to_owned(),
                "the answer names no usable wait: one call tests after 5 minutes, then at growing intervals".to_owned(),
            ),
            "policy" => {
                ("backoff".to_owned(), "the answer names no usable wait, so Paceline's backoff decides".to_owned())
            }
            _ => ("none".to_owned(), String::new()),
        };
    };
    let given = given_value(saved, reading.wait_from, wait);
    let from = given.map_or_else(|| reading.wait_from.to_owned(), |value| format!("{}: {value}", reading.wait_from));
    (exact(wait), format!("from {from}"))
}

/// The value of the field that gave the wait: of several equal fields not every one can be used.
fn given_value<'a>(saved: &'a Saved, field: &str, wait: Duration) -> Option<&'a str> {
    let mut values: Vec<&str> =
        saved.headers.get_all(field).into_iter().filter_map(|value| value.to_str().ok()).collect();
    let unit = if field.ends_with("-ms") { 1e-3 } else { 1.0 };
    let gives = |value: &&str| {
        let seconds = value.trim().parse().map(|number: f64| Duration::try_from_secs_f64(number * unit));
        matches!(seconds, Ok(Ok(seconds)) if seconds == wait)
    };
    if values.len() > 1 {
        values.retain(gives);
    }
    values.first().copied()
}

fn limits(text: &mut String, limits: &[LimitReport]) {
    let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), count);
    let time = |time: Option<Duration>| time.map_or_else(|| "?".to_owned(), exact);
    let _ = writeln!(text, "\n{:22}{:>15}{:>15}{:>14}{:>14}", "Limits", "limit", "left", "reset", "window");
    for limit in limits {
        let name = format!("  {}", printable(limit.dimension.as_str()));
        let (all, left) = (number(limit.limit), number(limit.remaining));
        let _ =
            writeln!(text, "{}{all:>15}{left:>15}{:>14}{:>14}", cell(&name, 22), time(limit.reset), time(limit.window));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::WIDTH;
    use paceline_core::Timestamp;
    use paceline_providers::read;

    fn explained(provider: Provider, answer: &str) -> String {
        let saved = Saved::parse(answer.as_bytes()).expect("an answer");
        let reading = read(provider, &saved.answer(), Timestamp::from_millis(1_795_176_000_000));
        of(provider, &saved, &reading, &Together::of(&provider.into(), None))
    }

    #[test]
    fn a_throttle_says_what_decided_and_what_was_learnt() {
        let text = explained(
            Provider::OpenAi,
            "HTTP/2 429\nretry-after: 2\nretry-after-ms: 1386\nx-ratelimit-limit-tokens: 30000\n\
             x-ratelimit-remaining-tokens: 2240\nx-ratelimit-reset-tokens: 55.52s\n\n\
             {\"error\":{\"message\":\"Rate limit reached for gpt-4o in organization org-abc on tokens per min (TPM): \
             Limit 30000, Used 27760, Requested 2933. Please try again in 1.386s.\",\"type\":\"tokens\",\
             \"code\":\"rate_limit_exceeded\"}}",
        );
        insta::assert_snapshot!(text);
        assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
    }

    #[test]
    fn nothing_is_wider_than_the_terminal_and_nothing_moves_its_cursor() {
        let long = "x".repeat(300);
        let answer = format!("HTTP/2 402\n\n{{\"error\":{{\"code\":\"{long}\",\"message\":\"{long} \\u001b[2J\"}}}}");
        let text = explained(Provider::Generic, &answer);
        assert!(text.lines().all(|line| width(line) <= WIDTH), "{text}");
        assert!(!text.contains('\u{1b}'));
    }
}
