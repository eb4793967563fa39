//! What a call counts with under a limit that is none of its provider's, such as the budget of a client, where nothing tells what
//! it used: a client must not get rid of a limit by asking for no usage, or by giving up its calls.

use std::time::Duration;

use paceline_core::{Cost, Dimension};

use super::Dialect;
use super::charge::{prompts_of, with_more};
use super::outline::Asked;

/// An answer without a bound has so many tokens in each of its choices: to so many chats were bounded for long, and a model that
/// thinks writes them in less than a minute.
const UNBOUNDED: u64 = 4_096;

/// A model writes so many tokens a second: more than most do for one answer.
const PER_SECOND: u64 = 200;

/// The tokens of output that a call counts with where nothing tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Untold {
    /// Where its answer came, or was given up: the bound of its request, or so many as answers without one have.
    least: u64,
    /// Its time in flight tells of no more.
    most: u64,
    /// The tokens of a prompt to which the server adds what the request names.
    context: u64,
}

impl Dialect {
    /// That of a call which takes `reserved` of such a limit.
    pub fn untold(&self, path: &str, body: &[u8], asked: &Asked, reserved: &Cost) -> Untold {
        // The cost says all, such as that of a list of models.
        if !reserved.is_open_ended() && !reserved.is_unproven() {
            return Untold::default();
        }
        let prompts = prompts_of(path, body);
        let usual = UNBOUNDED.saturating_mul(asked.choices()).saturating_mul(prompts);
        match asked.bound(path).map(|bound| bound.saturating_mul(prompts)) {
            None => Untold { least: usual, most: u64::MAX, context: 0 },
            // Where no bound is reserved, a large one says little of the answer.
            Some(bound) => Untold { least: bound.min(usual), most: bound.max(usual), context: 0 },
        }
    }
}

impl Untold {
    /// The same of a call with that body, which names what its server adds to the prompt, of so many tokens.
    #[must_use]
    pub const fn with_context(self, body: &[u8], context: u64) -> Self {
        Self { context: context.saturating_add(body.len() as u64 / 4), ..self }
    }

    /// What counts of a call that reserved that, and whose answer came and told no usage, beside what its server adds to the
    /// prompt.
    #[must_use]
    pub fn made(&self, reserved: &Cost) -> Cost {
        with_more(reserved, self.least, 0)
    }

    /// That cost with what the server adds to the prompt, where it told nothing of that.
    #[must_use]
    pub fn with_its_prompt(&self, cost: &Cost) -> Cost {
        with_more(cost, 0, self.context)
    }

    /// The same of a call of which nothing came for so long.
    #[must_use]
    pub fn in_flight_for(&self, took: Duration, reserved: &Cost) -> Cost {
        with_more(reserved, tokens_written(took).min(self.most), 0)
    }
}

/// The tokens that a model may have written in that time: 200 a second.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(paceline_providers::tokens_written(Duration::from_millis(2_500)), 500);
/// ```
pub fn tokens_written(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX).saturating_mul(PER_SECOND) / 1_000
}

/// The larger of two costs, by each dimension that counts tokens.
pub(super) fn larger(one: Cost, other: &Cost) -> Cost {
    let all = [Dimension::Tokens, Dimension::ProjectTokens, Dimension::InputTokens, Dimension::OutputTokens];
    all.into_iter().fold(one, |cost, dimension| match other.get(&dimension) {
        units if units > cost.get(&dimension) => cost.with(dimension, units),
        _ => cost,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Provider;
    use super::super::usage::TokenRatio;
    use super::*;

    const CHAT: &str = "/v1/chat/completions";

    /// The tokens of output that count where an answer came, and where nothing came for a minute.
    fn counted(provider: Provider, path: &str, body: &str) -> [u64; 2] {
        let (dialect, body) = (Dialect::from(provider), body.as_bytes());
        let reserved = dialect.charge(path, body, &TokenRatio::default());
        let reserved = dialect.charge_elsewhere(path, body, &Asked::of(body), &reserved, &TokenRatio::default());
        let untold = dialect.untold(path, body, &Asked::of(body), &reserved);
        [untold.made(&reserved), untold.in_flight_for(Duration::from_secs(60), &reserved)].map(|cost| {
            let output = cost.get(&Dimension::OutputTokens);
            let prompt = reserved.get(&Dimension::Tokens) - reserved.get(&Dimension::OutputTokens);
            assert_eq!(cost.get(&Dimension::Tokens) - prompt, output, "{path}");
            output
        })
    }

    #[test]
    fn a_call_that_tells_nothing_counts_with_its_bound_or_as_long_answers_do() {
        let of = |provider, body| counted(provider, CHAT, body);
        assert_eq!(of(Provider::OpenAi, r#"{"messages":[]}"#), [4_096, 12_000]);
        assert_eq!(of(Provider::OpenAi, r#"{"messages":[],"n":2}"#), [8_192, 12_000]);
        assert_eq!(of(Provider::OpenAi, r#"{"messages":[],"max_tokens":9}"#), [9, 4_096], "a minute of a bound of 9");
        assert_eq!(of(Provider::OpenAi, r#"{"messages":[],"max_tokens":9000}"#), [9_000, 12_000 - 3_000]);
        assert_eq!(counted(Provider::OpenAi, "/v1/completions", r#"{"prompt":["a","b"]}"#), [8_192, 12_000]);
        let messages = |body| counted(Provider::Anthropic, "/v1/messages", body);
        assert_eq!(messages(r#"{"messages":[],"max_tokens":64000}"#), [4_096, 12_000], "it reserves no bound");
        assert_eq!(messages(r#"{"messages":[],"max_tokens":9}"#), [9, 4_096]);
    }

    #[test]
    fn a_call_without_an_answer_of_a_model_counts_with_what_it_reserved() {
        for (provider, path, body) in [
            (Provider::OpenAi, "/v1/embeddings", r#"{"input":"a"}"#),
            (Provider::OpenAi, "/v1/models", ""),
            (Provider::OpenAi, "/v1/responses/input_tokens", r#"{"input":"a"}"#),
            (Provider::Anthropic, "/v1/messages/count_tokens", r#"{"messages":[]}"#),
            (Provider::Generic, "/tokenize", r#"{"content":"a"}"#),
        ] {
            assert_eq!(counted(provider, path, body), [0, 0], "{path}");
        }
    }
}
