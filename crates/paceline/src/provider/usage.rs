//! Tokens that an answer says it cost.

use paceline_core::{Cost, Dimension};
use serde_json::Value;

use super::api::Provider;
use super::body::Body;
use super::outline::{Outline, outline};
use super::table::CachedInput;

/// More tokens than any call can have: a larger number is no count, and sums of smaller ones never overflow.
const MOST: u64 = 1 << 32;

/// Tokens of one call, in whatever dialect they were reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt that count against a limit, cache writes included.
    pub input_tokens: u64,
    /// Tokens of the answer.
    pub output_tokens: u64,
}

impl Usage {
    /// The `usage` object of chat completions, responses, embeddings or messages. Only numbers count, and one of them
    /// must be there; one above 2^32 is none.
    pub fn read(usage: &Value) -> Option<Self> {
        // Cohere has its counts one level deeper.
        let usage = usage.get("tokens").filter(|tokens| tokens.is_object()).unwrap_or(usage);
        let number = |key: &str| usage.get(key)?.as_f64().filter(|tokens| (0.0..=MOST as f64).contains(tokens));
        let first = |keys: &[&str]| keys.iter().find_map(|key| number(key)).map(|tokens| tokens as u64);
        let number = |key: &str| first(&[key]);
        let input = first(&["prompt_tokens", "input_tokens", "inputTokens", "promptTokenCount"]);
        let output = first(&["completion_tokens", "output_tokens", "outputTokens", "candidatesTokenCount"]);
        let output = match (output, number("thoughtsTokenCount")) {
            (output, Some(thought)) => Some(output.unwrap_or(0).saturating_add(thought)),
            (output, None) => output,
        };
        let (input, output) = match (input, output, first(&["total_tokens", "totalTokens", "totalTokenCount"])) {
            (None, None, total) => (total?, 0),
            (None, Some(output), Some(total)) => (total.saturating_sub(output), output),
            (input, output, _) => (input.unwrap_or(0), output.unwrap_or(0)),
        };
        let written = first(&["cache_creation_input_tokens", "cacheWriteInputTokens"]).unwrap_or(0);
        Some(Self { input_tokens: input.saturating_add(written), output_tokens: output })
    }

    /// Without the input that the provider had in its cache, where that is free.
    fn without_cached(self, usage: &Value) -> Self {
        let cached = ["/prompt_tokens_details/cached_tokens", "/input_tokens_details/cached_tokens"]
            .into_iter()
            .find_map(|place| usage.pointer(place)?.as_u64())
            .unwrap_or(0);
        Self { input_tokens: self.input_tokens.saturating_sub(cached), ..self }
    }

    /// Both together.
    pub const fn total(self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// The cost that was reserved, with its tokens replaced by these.
    #[must_use]
    pub fn settle(self, reserved: Cost) -> Cost {
        reserved
            .with(Dimension::Tokens, self.total())
            .with(Dimension::ProjectTokens, self.total())
            .with(Dimension::InputTokens, self.input_tokens)
            .with(Dimension::OutputTokens, self.output_tokens)
    }

    /// After a later event of the same stream: its counts are totals, and what it does not name stays.
    pub(super) fn updated(self, later: Self) -> Self {
        let last = |before: u64, after: u64| if after > 0 { after } else { before };
        Self {
            input_tokens: last(self.input_tokens, later.input_tokens),
            output_tokens: last(self.output_tokens, later.output_tokens),
        }
    }
}

/// What an answer says it cost, as far as it counts.
pub(super) fn of(body: &Body<'_>, cached: CachedInput) -> Option<Usage> {
    if let Some(stream) = &body.stream {
        return stream.usage;
    }
    let places = ["usage", "usageMetadata", "meta"].into_iter().filter_map(|key| body.root.get(key));
    let (usage, read) = places.filter_map(|usage| Some((usage, Usage::read(usage)?))).next()?;
    Some(match cached {
        CachedInput::Counts => read,
        CachedInput::Free => read.without_cached(usage),
    })
}

/// Tokens per character of a request body, a quarter at first, then what answers report; and the mean length of the
/// answers. Keep one per model, because each has its own tokenizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenRatio {
    tokens_per_char: f64,
    answers: u32,
    output_tokens: f64,
}

impl Default for TokenRatio {
    /// Four characters a token, and nothing known about answers.
    fn default() -> Self {
        Self { tokens_per_char: 0.25, answers: 0, output_tokens: 0.0 }
    }
}

/// The last answers weigh in with at least this share, so that a changed kind of text is learnt.
const LEAST_WEIGHT: f64 = 0.1;

impl TokenRatio {
    /// Tokens per character, between 1/64 and 4.
    pub const fn tokens_per_char(&self) -> f64 {
        self.tokens_per_char
    }

    /// The tokens to expect of an answer to a request that sets no bound, rounded up: the mean of those that came, 0 before
    /// the first.
    pub fn output_tokens(&self) -> u64 {
        self.output_tokens.ceil() as u64
    }

    /// The tokens to expect of a body, rounded up.
    pub fn tokens(&self, body: &[u8]) -> u64 {
        (characters(body) as f64 * self.tokens_per_char).ceil() as u64
    }

    /// Learns from an answer: the request's body and the usage that was reported for it. The first answer replaces the
    /// guess, later ones are averaged.
    pub fn settle(&mut self, body: &[u8], usage: &Usage) {
        let characters = characters(body);
        if characters == 0 || usage.input_tokens == 0 {
            return;
        }
        let seen = (usage.input_tokens as f64 / characters as f64).clamp(1.0 / 64.0, 4.0);
        self.answers = self.answers.saturating_add(1);
        let weight = (1.0 / f64::from(self.answers)).max(LEAST_WEIGHT);
        self.tokens_per_char += (seen - self.tokens_per_char) * weight;
        self.output_tokens += (usage.output_tokens as f64 - self.output_tokens) * weight;
    }
}

/// Characters of a UTF-8 text, every byte that does not continue one, without the data of `data:` URLs: a picture costs
/// its tokens by size and not by its encoding.
fn characters(body: &[u8]) -> usize {
    let quotes = body.iter().filter(|byte| **byte == b'"').count();
    let strings = body.split(|byte| *byte == b'"').filter(|string| !is_data_url(string));
    quotes + strings.flatten().filter(|byte| **byte & 0xC0 != 0x80).count()
}

fn is_data_url(string: &[u8]) -> bool {
    const MARK: &[u8] = b";base64,";
    string.starts_with(b"data:") && string[..string.len().min(100)].windows(MARK.len()).any(|part| part == MARK)
}

/// Endpoints whose calls are no text for a model: no token limit counts them.
const WITHOUT_TOKENS: [&str; 5] = ["/audio/", "/batches", "/files", "/images/", "/models"];

/// What a request is expected to cost before it is sent: one request, its bytes and its tokens. The tokens of the answer
/// are reserved up to the request's own bound where the provider does so too; where there is no bound, as many as answers had
/// so far.
pub fn charge(provider: Provider, path: &str, body: &[u8], ratio: &TokenRatio) -> Cost {
    let cost = Cost::request().with(Dimension::Bytes, u64::try_from(body.len()).unwrap_or(u64::MAX));
    let path = path.strip_prefix("/v1").unwrap_or(path);
    // Gemini's prompts go to a model, and are not about models.
    let generates = path.contains(":generateContent") || path.contains(":streamGenerateContent");
    if !generates && WITHOUT_TOKENS.iter().any(|prefix| path.starts_with(prefix)) {
        return cost;
    }
    let input_tokens = ratio.tokens(body);
    let output_tokens = match provider.table().charge.reserves_output {
        true => longest_answer(body).unwrap_or_else(|| ratio.output_tokens()),
        false => 0,
    };
    Usage { input_tokens, output_tokens }.settle(cost)
}

/// The tokens that the request allows its answer, over all the answers that it asks for; none when it names no bound.
fn longest_answer(body: &[u8]) -> Option<u64> {
    const KEYS: Outline<'_> = Outline {
        kept: &["max_completion_tokens", "max_output_tokens", "max_tokens", "n", "best_of", "inferenceConfig"],
        pruned: &[],
        arrays: false,
    };
    let request = outline(body, &KEYS).unwrap_or_default();
    let largest = |keys: &[&str]| keys.iter().filter_map(|key| request.get(key)?.as_u64()).max();
    let of_bedrock = || request.get("inferenceConfig")?.get("maxTokens")?.as_u64();
    let bound = largest(&KEYS.kept[..3]).or_else(of_bedrock)?;
    Some(bound.saturating_mul(largest(&KEYS.kept[3..5]).unwrap_or(1).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn usage_in_every_dialect() {
        for (usage, expected) in [
            (json!({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}), Some((9, 2))),
            (json!({"input_tokens": 4, "output_tokens": 3, "total_tokens": 7}), Some((4, 3))),
            (json!({"prompt_tokens": 8, "total_tokens": 8}), Some((8, 0))),
            (json!({"total_tokens": 8}), Some((8, 0))),
            (
                json!({"input_tokens": 10, "cache_creation_input_tokens": 90, "cache_read_input_tokens": 500, "output_tokens": 1}),
                Some((100, 1)),
            ),
            (json!({"output_tokens": 15}), Some((0, 15))),
            (
                json!({"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 20, "totalTokenCount": 30}),
                Some((7, 23)),
            ),
            (json!({"inputTokens": 5, "outputTokens": 6, "totalTokens": 11}), Some((5, 6))),
            (
                json!({"billed_units": {"input_tokens": 1}, "tokens": {"input_tokens": 71.0, "output_tokens": 2.0}}),
                Some((71, 2)),
            ),
            (json!({"prompt_tokens": "9"}), None),
            (json!({"prompt_tokens": i64::MAX, "completion_tokens": 1}), Some((0, 1))),
            (json!({"prompt_tokens": u64::MAX}), None),
            (json!({}), None),
            (json!(null), None),
        ] {
            let found = Usage::read(&usage).map(|usage| (usage.input_tokens, usage.output_tokens));
            assert_eq!(found, expected, "{usage}");
        }
    }

    #[test]
    fn a_quarter_of_the_characters_until_answers_say_otherwise() {
        let input = |input_tokens| Usage { input_tokens, output_tokens: 7 };
        let body = "é".repeat(400).into_bytes();
        let mut ratio = TokenRatio::default();
        assert_eq!(ratio.tokens(&body), 100);
        ratio.settle(&body, &input(200));
        assert_eq!(ratio.tokens(&body), 200);
        ratio.settle(&body, &input(0));
        ratio.settle(b"", &input(7));
        assert_eq!(ratio.tokens(&body), 200);
        for _ in 0..100 {
            ratio.settle(&body, &input(80));
        }
        assert_eq!(ratio.tokens(&body), 81, "80 and what rounding up leaves");
        ratio.settle(b"x", &input(u64::MAX));
        assert!(ratio.tokens_per_char() <= 4.0);
    }

    #[test]
    fn pictures_are_not_counted_as_text() {
        let body =
            |data: &str| format!(r#"{{"url":"data:image/png;base64,{data}","text":"what is this?"}}"#).into_bytes();
        let tokens = |data: &str| TokenRatio::default().tokens(&body(data));
        assert_eq!(tokens(&"iVBORw0KGgo".repeat(100_000)), tokens(""));
        assert!(tokens("") > 5);
    }

    #[test]
    fn the_answers_bound_is_reserved_where_the_provider_reserves_it() {
        let body = br#"{"max_tokens":100,"n":3,"messages":[{"content":"n"}]}"#;
        let tokens =
            |provider| charge(provider, "/v1/completions", body, &TokenRatio::default()).get(&Dimension::Tokens);
        let input = u64::try_from(body.len().div_ceil(4)).expect("small");
        assert_eq!(tokens(Provider::OpenAi), input + 300);
        assert_eq!(tokens(Provider::Anthropic), input);
        let cost = charge(Provider::Azure, "/openai/deployments/d/completions", body, &TokenRatio::default());
        assert_eq!(cost.get(&Dimension::Requests), 1);
        assert_eq!(cost.get(&Dimension::Bytes), body.len() as u64);
        assert_eq!((cost.get(&Dimension::InputTokens), cost.get(&Dimension::OutputTokens)), (input, 300));
        let image = charge(Provider::OpenAi, "/v1/images/generations", body, &TokenRatio::default());
        assert_eq!((image.get(&Dimension::Tokens), image.get(&Dimension::Bytes)), (0, body.len() as u64));
        let gemini = charge(Provider::Gemini, "/models/m:generateContent", body, &TokenRatio::default());
        assert_eq!(gemini.get(&Dimension::InputTokens), input);
    }

    #[test]
    fn without_a_bound_the_mean_of_the_answers_is_reserved() {
        let (body, mut ratio) = (br#"{"messages":[{"content":"n"}]}"#, TokenRatio::default());
        let output = |ratio: &TokenRatio, body: &[u8]| {
            charge(Provider::OpenAi, "/v1/chat/completions", body, ratio).get(&Dimension::OutputTokens)
        };
        assert_eq!(output(&ratio, body), 0, "nothing is known");
        for output_tokens in [100, 300] {
            ratio.settle(body, &Usage { input_tokens: 8, output_tokens });
        }
        assert_eq!(output(&ratio, body), 200);
        assert_eq!(output(&ratio, br#"{"max_tokens":7}"#), 7, "a bound is a bound");
        assert_eq!(output(&ratio, br#"{"inferenceConfig":{"maxTokens":9}}"#), 9);
        let free = charge(Provider::Anthropic, "/v1/messages", body, &ratio);
        assert_eq!(free.get(&Dimension::OutputTokens), 0, "nothing is reserved there");
    }

    #[test]
    fn cached_input_is_free_where_the_provider_says_so() {
        let body =
            br#"{"usage":{"prompt_tokens":90,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":64}}}"#;
        let body = Body::of_success(body, "", crate::provider::body::Wanted { keys: None, arrays: false });
        let input = |cached| of(&body, cached).expect("usage").input_tokens;
        assert_eq!((input(CachedInput::Counts), input(CachedInput::Free)), (90, 26));
    }

    #[test]
    fn settling_replaces_the_tokens_and_keeps_the_rest() {
        let reserved = charge(Provider::OpenAi, "/v1/completions", br#"{"max_tokens":100}"#, &TokenRatio::default());
        let settled = Usage { input_tokens: 9, output_tokens: 2 }.settle(reserved);
        assert_eq!(settled.get(&Dimension::Tokens), 11);
        assert_eq!(settled.get(&Dimension::Requests), 1);
        assert_eq!(settled.get(&Dimension::Bytes), 18);
    }
}
