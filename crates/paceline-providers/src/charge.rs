//! The charge of a call: what it reserves before it is sent, and how that is settled with its answer.

use paceline_core::{Class, Cost, Dimension};

use super::address::path_before;
use super::cost;
use super::outline::{Asked, Outline, is_of_prompt, outline};
use super::prompt::Prompt;
use super::settlement::Settlement;
use super::table::{Charge, Reserves};
use super::unreported::{is_silent_stream, tokens_so_far, told_so_far};
use super::usage::{ExpectedTokens, TokenRatio, Usage};
use super::{Answer, Dialect};

/// Endpoints whose calls are no text for a model: no token limit counts them.
const WITHOUT_TOKENS: [&str; 5] = ["/audio/", "/batches", "/files", "/images/", "/models"];

/// Endpoints that answer with no tokens, wherever they stand in a path.
const WITHOUT_ANSWERS: [&str; 8] =
    ["embed", "embeddings", "moderations", "rerank", "count_tokens", "input_tokens", "tokenize", "detokenize"];

/// The same behind the colon of the last part, as Google's servers have it.
const ACTIONS_WITHOUT_ANSWERS: [&str; 4] = ["embedContent", "batchEmbedContents", "countTokens", "computeTokens"];

/// Models with such answers, at endpoints that others have too: `predict` of Vertex and `invoke` of Bedrock.
const MODELS_WITHOUT_ANSWERS: [&str; 2] = ["embed", "rerank"];

/// What a call has used whose answer was given up.
#[derive(Clone, Debug, PartialEq)]
pub struct SoFar {
    /// At the least.
    pub used: Cost,
    /// It is a stream of which no text has come: its server may have worked on it all the time.
    pub is_silent: bool,
    /// Its server told how long the prompt was, with all that it added.
    pub tells_prompt: bool,
}

impl Dialect {
    /// What a request is expected to cost before it is sent: one request, its bytes, its tokens, and units of the provider's
    /// own. Where the provider reserves the tokens of the answer, so many are reserved as the request itself allows, or, where
    /// it sets no bound, as answers had so far.
    pub fn charge(&self, path: &str, body: &[u8], ratio: &TokenRatio) -> Cost {
        self.charge_as_asked(path, body, &Asked::of(body), ratio)
    }

    /// The same where its body was read already.
    pub fn charge_as_asked(&self, path: &str, body: &[u8], asked: &Asked, ratio: &TokenRatio) -> Cost {
        charge(&self.table().charge, path, body, asked, ratio)
    }

    /// The same of a body of so many bytes that is not read, as it is too large to be held: limits on tokens hold for it too.
    pub fn charge_unread(&self, path: &str, bytes: u64, ratio: &TokenRatio) -> Cost {
        let cost = Cost::request().with(Dimension::Bytes, bytes);
        if !takes_tokens(path) {
            return cost;
        }
        let (input, output_tokens) = (ratio.expected_of(Prompt::of_unread(bytes)), ratio.output_tokens());
        let usage = Usage { input_tokens: input.all, output_tokens, ..Usage::default() };
        with_tokens(cost, input.all.saturating_add(output_tokens), usage).with_learnt(input.learnt).open_ended()
    }

    /// What a call that reserves that at its provider takes of a limit that is none of the provider's, such as the budget of a
    /// client: prompt and answer both count there. Answers for which the provider reserves nothing, and which it counts in the
    /// end, are guessed, and the bound of a request is believed once an answer kept to it. What a prompt has that holds more than
    /// text, such as pictures, is known by answers alone; and none has fewer tokens than the shortest that was answered.
    #[must_use]
    pub fn charge_elsewhere(
        &self,
        path: &str,
        body: &[u8],
        asked: &Asked,
        reserved: &Cost,
        ratio: &TokenRatio,
    ) -> Cost {
        let model = &self.table().charge;
        let reserved = &with_prompt(reserved, ratio.fewest_tokens());
        let is_mixed = reserved.get(&Dimension::InputTokens) > 0 && asked.prompt(body).parts > 0;
        let cost = if is_mixed { reserved.clone().mixed() } else { reserved.clone() };
        if is_without_answer(path, body) {
            return cost;
        }
        let part = |dimension| reserved.get(&dimension);
        let cost = match model.reserves {
            Reserves::Larger => {
                let both = part(Dimension::InputTokens).saturating_add(part(Dimension::OutputTokens));
                cost.with(Dimension::Tokens, both).with(Dimension::ProjectTokens, both)
            }
            Reserves::Input | Reserves::InputAndOutput => cost,
        };
        if model.reserves == Reserves::Input || reserved.is_open_ended() { cost.open_ended() } else { cost.unproven() }
    }

    /// That of a call that waits, by the answers that have come since: its prompt may have more tokens than was expected.
    #[must_use]
    pub fn charge_anew(&self, charged: &Cost, body: &[u8], asked: &Asked, ratio: &TokenRatio) -> Cost {
        let expected = ratio.expected_of(asked.prompt(body)).all;
        with_prompt(charged, expected.max(ratio.fewest_tokens()))
    }

    /// What a call that reserved that has used where its answer was given up after so many bytes, of which its body is a part:
    /// for a limit that is none of the provider's. What its server told once all had come counts; before, the server may charge
    /// all that came, and the prompt that it told at the beginning, and as much as was reserved at the least.
    pub fn used_so_far(&self, reserved: &Cost, answer: &Answer<'_>, came: u64) -> SoFar {
        let charge = &self.table().charge;
        if !(self.is_prompt(answer.path) && takes_tokens(answer.path)) {
            return SoFar { used: reserved.clone(), is_silent: false, tells_prompt: true };
        }
        let (told, is_all) = told_so_far(answer).unwrap_or_default();
        let told = cost::counted(told, charge).with_all_input();
        if is_all {
            let settlement = Settlement::of(charge, answer.path, answer.status, Class::Success);
            let settlement = settlement.with_texts_of(answer.path, tokens_so_far(answer, came));
            let used = settlement.used(reserved, reserved, Some(told), Class::Success);
            let used = used.unwrap_or_else(|| reserved.clone());
            return SoFar { used, is_silent: false, tells_prompt: true };
        }
        let output = tokens_so_far(answer, came).max(told.output_tokens);
        let used = with_more(reserved, output, told.input_tokens);
        SoFar { used, is_silent: is_silent_stream(answer), tells_prompt: told.input_tokens > 0 && !told.unread_input }
    }

    /// What a stream has told that was cut off: of its prompt, and of its answer once it told all of that.
    pub fn told_so_far(&self, answer: &Answer<'_>) -> Option<Usage> {
        let (told, is_all) = told_so_far(answer)?;
        let told = cost::counted(told, &self.table().charge);
        Some(if is_all { told } else { Usage { output_tokens: 0, ..told } })
    }

    /// What a token of the prompt costs at most, in percent of the price of input: more than 100 where the request asks for it to
    /// be kept in the provider's cache, also where the table has no price for that: then the one at Anthropic.
    ///
    /// ```
    /// use paceline_providers::{Dialect, Provider};
    /// let body = br#"{"system":[{"type":"text","text":"...","cache_control":{"type":"ephemeral","ttl":"1h"}}]}"#;
    /// assert_eq!(Dialect::from(Provider::Anthropic).dearest_input(body), 200);
    /// assert_eq!(Dialect::from(Provider::OpenRouter).dearest_input(body), 200);
    /// assert_eq!(Dialect::from(Provider::OpenAi).dearest_input(b"{}"), 100);
    /// ```
    pub fn dearest_input(&self, body: &[u8]) -> u32 {
        self.table().charge.cache_percent.dearest(body)
    }

    /// The usage of an answer to that body, with writes into the provider's cache at the price of as long as it asks for, where
    /// the answer does not tell how long they stay.
    #[must_use]
    pub fn with_writes_as_asked(&self, usage: Usage, body: &[u8]) -> Usage {
        self.table().charge.cache_percent.as_asked(usage, body)
    }

    /// Whether a request has no tokens by its path, so that only its answer tells what it costs, as of pictures that are made.
    ///
    /// ```
    /// use paceline_providers::{Dialect, Provider};
    /// let dialect = Dialect::from(Provider::OpenAi);
    /// assert!(dialect.tells_no_tokens("/v1/images/generations", b"{}") && !dialect.tells_no_tokens("/v1/models", b""));
    /// assert!(!dialect.tells_no_tokens("/v1/chat/completions", b"{}"));
    /// ```
    pub fn tells_no_tokens(&self, path: &str, body: &[u8]) -> bool {
        !body.is_empty() && !takes_tokens(path)
    }

    /// Whether the tokens of an answer must have room before the call leaves.
    pub fn reserves_answers(&self) -> bool {
        self.table().charge.reserves != Reserves::Input
    }

    /// The most tokens that the answer to a request can have, over all the answers that it asks for; `None` where it sets no
    /// bound on them.
    pub fn longest_answer(&self, path: &str, body: &[u8]) -> Option<u64> {
        longest_answer(path, body)
    }
}

/// What a request is expected to cost before it is sent. What its body asks for is read where that counts.
fn charge(model: &Charge, path: &str, body: &[u8], asked: &Asked, ratio: &TokenRatio) -> Cost {
    let mut cost = Cost::request().with(Dimension::Bytes, u64::try_from(body.len()).unwrap_or(u64::MAX));
    if let Some(units) = model.units {
        cost.set(units.dimension(), units.reserved(path, body, ratio));
    }
    if !takes_tokens(path) {
        return cost;
    }
    let ExpectedTokens { all: input, learnt } = ratio.expected_of(asked.prompt(body));
    let every = |bound: u64| bound.saturating_mul(prompts_of(path, body));
    let bound = match model.reserves {
        Reserves::Input => Some(0),
        Reserves::InputAndOutput | Reserves::Larger => asked.bound(path).map(every),
    };
    let bound = bound.or_else(|| is_without_answer(path, body).then_some(0));
    let output = bound.unwrap_or_else(|| ratio.output_tokens());
    let tokens = match (model.reserves, bound) {
        (Reserves::Larger, Some(output)) => input.max(output),
        _ => input.saturating_add(output),
    };
    let usage = Usage { input_tokens: input, output_tokens: output, ..Usage::default() };
    let cost = with_tokens(cost, tokens, usage).with_learnt(learnt);
    if bound.is_none() { cost.open_ended() } else { cost }
}

/// That cost with so many tokens of the prompt at the least, for which only answers speak; where it has some at all.
fn with_prompt(cost: &Cost, tokens: u64) -> Cost {
    let (input, stated) = (cost.get(&Dimension::InputTokens), cost.stated(&Dimension::InputTokens));
    match input {
        0 => cost.clone(),
        _ => with_more(cost, 0, tokens).with_learnt(tokens.max(input) - stated),
    }
}

/// That cost with so many tokens of the answer and of the prompt at the least.
pub(super) fn with_more(cost: &Cost, output: u64, input: u64) -> Cost {
    let part = |dimension, used: u64| used.saturating_sub(cost.get(&dimension));
    let (output, input) = (part(Dimension::OutputTokens, output), part(Dimension::InputTokens, input));
    let both = output.saturating_add(input);
    let more = [
        (Dimension::Tokens, both),
        (Dimension::ProjectTokens, both),
        (Dimension::OutputTokens, output),
        (Dimension::InputTokens, input),
    ];
    more.into_iter().filter(|(_, more)| *more > 0).fold(cost.clone(), |cost, (dimension, more)| {
        let units = cost.get(&dimension).saturating_add(more);
        cost.with(dimension, units)
    })
}

/// Whether the answer has no tokens of a model: by its endpoint, or because nothing is asked.
fn is_without_answer(path: &str, body: &[u8]) -> bool {
    body.is_empty() || !has_tokens(path)
}

/// Whether an answer at that endpoint has tokens of a model.
pub(super) fn has_tokens(path: &str) -> bool {
    takes_tokens(path) && !is_without_answers(path)
}

fn is_without_answers(path: &str) -> bool {
    let path = path_before(path, b"?#");
    if path.as_bytes().split(|byte| *byte == b'/').any(|part| WITHOUT_ANSWERS.iter().any(|is| is.as_bytes() == part)) {
        return true;
    }
    let (before, last) = path.rsplit_once('/').unwrap_or(("", path));
    let action = last.rsplit_once(':').map_or("", |(_, action)| action);
    let model = match (action, last) {
        ("predict", _) => last,
        (_, "invoke") => before.rsplit_once('/').map_or(before, |(_, model)| model),
        _ => return ACTIONS_WITHOUT_ANSWERS.contains(&action),
    };
    MODELS_WITHOUT_ANSWERS.iter().any(|known| model.contains(known))
}

/// Whether a call of that path has tokens of a model.
pub(super) fn takes_tokens(path: &str) -> bool {
    // Prompts of Gemini, and those under Azure's `/models/chat/completions`, go to a model and are not about models.
    is_of_prompt(path)
        || is_without_answers(path)
        || !WITHOUT_TOKENS.iter().any(|prefix| relative(path).starts_with(prefix))
}

fn relative(path: &str) -> &str {
    path.strip_prefix("/v1").unwrap_or(path)
}

/// The most tokens that an answer can have; none where the request sets no bound.
fn longest_answer(path: &str, body: &[u8]) -> Option<u64> {
    if !has_tokens(path) {
        Some(0)
    } else {
        Asked::of(body).bound(path).map(|bound| bound.saturating_mul(prompts_of(path, body)))
    }
}

pub(super) fn with_tokens(cost: Cost, tokens: u64, usage: Usage) -> Cost {
    cost.with(Dimension::Tokens, tokens)
        .with(Dimension::ProjectTokens, tokens)
        .with(Dimension::InputTokens, usage.input_tokens)
        .with(Dimension::OutputTokens, usage.output_tokens)
}

/// The prompts of a request, each of which is answered: the older completions take a list of texts or of lists of tokens.
pub(super) fn prompts_of(path: &str, body: &[u8]) -> u64 {
    const KEYS: Outline = Outline { kept: &["prompt"], pruned: &[], arrays: false };
    let path = path_before(path, b"?");
    if !path.ends_with("/completions") || path.ends_with("/chat/completions") {
        return 1;
    }
    let request = outline(body, &KEYS).unwrap_or_default();
    let prompts = request.get("prompt").and_then(|prompt| prompt.as_array()).into_iter().flatten();
    prompts.filter(|prompt| !prompt.is_number()).count().max(1) as u64
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Provider;
    use super::*;

    fn charge(provider: Provider, path: &str, body: &[u8], ratio: &TokenRatio) -> Cost {
        Dialect::from(provider).charge(path, body, ratio)
    }

    #[test]
    fn the_answers_bound_is_reserved_where_the_provider_reserves_it() {
        let body = br#"{"max_tokens":100,"n":3,"messages":[{"content":"n"}]}"#;
        let tokens =
            |provider| charge(provider, "/v1/completions", body, &TokenRatio::default()).get(&Dimension::Tokens);
        let input = u64::try_from(body.len().div_ceil(4)).expect("small");
        assert_eq!(tokens(Provider::OpenAi), 300, "whichever is more");
        assert_eq!(tokens(Provider::Mistral), input + 300);
        assert_eq!(tokens(Provider::Anthropic), input);
        let cost = charge(Provider::Azure, "/openai/deployments/d/completions", body, &TokenRatio::default());
        assert_eq!(cost.get(&Dimension::Requests), 1);
        assert_eq!(cost.get(&Dimension::Bytes), body.len() as u64);
        assert_eq!((cost.get(&Dimension::InputTokens), cost.get(&Dimension::OutputTokens)), (input, 300));
        let image = charge(Provider::OpenAi, "/v1/images/generations", body, &TokenRatio::default());
        assert_eq!((image.get(&Dimension::Tokens), image.get(&Dimension::Bytes)), (0, body.len() as u64));
        let of_models = charge(Provider::Azure, "/models/chat/completions?api-version=x", body, &TokenRatio::default());
        assert_eq!(of_models.get(&Dimension::OutputTokens), 300, "a prompt, whatever its folder is called");
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
        let longest = |path, body| Dialect::from(Provider::OpenAi).longest_answer(path, body);
        assert_eq!(longest("/v1/chat/completions", body), None);
        assert_eq!(longest("/v1/chat/completions", br#"{"max_tokens":7,"n":2}"#), Some(14));
        for (prompt, most) in [(r#""a""#, 7), (r#"["a","b","c"]"#, 21), ("[1,2,3]", 7), ("[[1,2],[3]]", 14), ("[]", 7)]
        {
            let body = format!(r#"{{"max_tokens":7,"prompt":{prompt}}}"#).into_bytes();
            assert_eq!(longest_answer("/v1/completions", &body), Some(most), "{prompt}");
            assert_eq!(longest_answer("/v1/chat/completions", &body), Some(7), "{prompt}");
        }
        assert_eq!((longest("/v1/embeddings", body), longest("/v1/files", body)), (Some(0), Some(0)));
        for path in [
            "/v1beta/models/gemini-embedding-001:embedContent",
            "/v1beta/models/gemini-embedding-001:batchEmbedContents",
            "/v1/projects/p/publishers/google/models/text-embedding-005:predict",
            "/model/amazon.titan-embed-text-v2:0/invoke",
            "/model/cohere.embed-english-v3/invoke",
            "/v2/rerank",
        ] {
            assert_eq!(longest(path, body), Some(0), "{path}: its answer is vectors or scores");
        }
        for path in [
            "/openai/deployments/embed-or-chat/chat/completions",
            "/v1beta/models/gemini-2.5-pro:generateContent",
            "/v1/projects/p/publishers/google/models/imagen-4:predict",
            "/model/amazon.titan-text-express-v1/invoke",
        ] {
            assert_eq!(longest(path, body), None, "{path}");
        }
        for output_tokens in [100, 300] {
            ratio.settle(body, &Usage { input_tokens: 8, output_tokens, ..Usage::default() });
        }
        assert_eq!(output(&ratio, body), 200);
        assert_eq!(output(&ratio, br#"{"max_tokens":7}"#), 7, "a bound is a bound");
        let bedrock = charge(Provider::Bedrock, "/model/m/converse", br#"{"inferenceConfig":{"maxTokens":9}}"#, &ratio);
        assert_eq!(bedrock.get(&Dimension::OutputTokens), 9);
        assert_eq!(output(&ratio, br#"{"inferenceConfig":{"maxTokens":9}}"#), 200, "none of that path");
        let free = charge(Provider::Anthropic, "/v1/messages", body, &ratio);
        assert_eq!(free.get(&Dimension::OutputTokens), 0, "nothing is reserved there");
    }

    #[test]
    fn answers_without_a_bound_are_guesses_and_count_by_their_length_where_they_tell_nothing() {
        let ratio = TokenRatio::default();
        let (chat, prompt, body) = ("/v1/chat/completions", "/v1/messages", &br#"{"messages":[{"content":"n"}]}"#[..]);
        let is_open = |provider, path, body| charge(provider, path, body, &ratio).is_open_ended();
        let bounded = br#"{"max_tokens":7,"messages":[]}"#;
        assert!(is_open(Provider::OpenAi, chat, body) && !is_open(Provider::OpenAi, chat, bounded));
        assert!(!is_open(Provider::OpenAi, "/v1/embeddings", body) && !is_open(Provider::OpenAi, "/v1/models", b""));
        for path in ["/openai/deployments/d/embeddings?api-version=x", "/models/embeddings", "/openai/v1/embeddings"] {
            let cost = charge(Provider::Azure, path, body, &ratio);
            assert!(
                !cost.is_open_ended() && cost.get(&Dimension::InputTokens) > 0,
                "a prompt without an answer: {path}"
            );
        }
        assert!(!is_open(Provider::Anthropic, prompt, body) && !is_open(Provider::Gemini, prompt, body));
        let elsewhere = |provider, path, body| {
            let reserved = charge(provider, path, body, &ratio);
            Dialect::from(provider).charge_elsewhere(path, body, &Asked::of(body), &reserved, &TokenRatio::default())
        };
        let is_open_elsewhere = |provider, path, body| elsewhere(provider, path, body).is_open_ended();
        for (provider, path) in [
            (Provider::Anthropic, prompt),
            (Provider::Gemini, "/v1beta/models/m:generateContent"),
            (Provider::OpenAi, chat),
        ] {
            assert!(is_open_elsewhere(provider, path, body), "{provider}: its answers count");
        }
        assert!(!is_open_elsewhere(Provider::OpenAi, chat, bounded));
        let cost = elsewhere(Provider::OpenAi, chat, bounded);
        let input = u64::try_from(bounded.len().div_ceil(4)).expect("small");
        assert!(cost.is_unproven() && cost.get(&Dimension::Tokens) == input + 7, "prompt and answer count: {cost:?}");
        assert!(!elsewhere(Provider::OpenAi, "/v1/embeddings", body).is_unproven(), "it has no answer");

        let answer = |kind: &str, body: &[u8], reserved: &Cost| {
            let headers = http::HeaderMap::from_iter([(http::header::CONTENT_TYPE, kind.parse().expect("a type"))]);
            let answer = Answer { status: 200, headers: &headers, body, path: chat };
            let reading = Dialect::from(Provider::OpenAi).read(&answer, paceline_core::Timestamp::from_millis(0));
            reading.outcome_of(reserved).usage.map(|usage| usage.get(&Dimension::OutputTokens))
        };
        let first = json!({"choices": [{"index": 0, "delta": {"content": "word ".repeat(400)}}]});
        let last = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        let stream = format!("data: {first}\n\ndata: {last}\n\ndata: [DONE]\n\n");
        let open = charge(Provider::OpenAi, chat, body, &ratio);
        let seen = answer("text/event-stream", stream.as_bytes(), &open).expect("it is estimated");
        assert_eq!(seen, 500, "2,000 characters");
        let reserved = charge(Provider::OpenAi, chat, bounded, &ratio);
        assert_eq!(answer("text/event-stream", stream.as_bytes(), &reserved), Some(500), "it was not heeded");
        let kept_to = br#"{"max_tokens":400,"messages":[]}"#;
        let reserved = charge(Provider::OpenAi, chat, kept_to, &ratio);
        assert_eq!(answer("text/event-stream", stream.as_bytes(), &reserved), None, "as reserved");
        let short = json!({"id": "chatcmpl-0123456789", "object": "chat.completion", "created": 1_700_000_000, "model": "gpt-4o",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello there."}, "finish_reason": "stop"}]});
        let few = charge(Provider::OpenAi, chat, br#"{"max_tokens":3,"messages":[]}"#, &ratio);
        assert_eq!(answer("application/json", short.to_string().as_bytes(), &few), None, "its form is no text");
        let long = short.to_string().replace("Hello", &"word ".repeat(400));
        assert_eq!(answer("application/json", long.as_bytes(), &few), Some(502));
        let told = br#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":90,"total_tokens":93}}"#;
        assert_eq!(answer("application/json", told, &open), Some(90));
    }

    #[test]
    fn an_answer_that_is_given_up_counts_with_what_came_of_it() {
        let (chat, ratio) = ("/v1/chat/completions", TokenRatio::default());
        let first = json!({"choices": [{"index": 0, "delta": {"content": "word ".repeat(400)}}]});
        let open = charge(Provider::OpenAi, chat, br#"{"messages":[{"content":"n"}]}"#, &ratio);
        let so_far = |kind: &str, body: &[u8], came: u64, reserved: &Cost| {
            let headers = http::HeaderMap::from_iter([(http::header::CONTENT_TYPE, kind.parse().expect("a type"))]);
            let used = Dialect::from(Provider::OpenAi).used_so_far(
                reserved,
                &Answer { status: 200, headers: &headers, body, path: chat },
                came,
            );
            let used = used.used;
            let prompt = reserved.get(&Dimension::Tokens) - reserved.get(&Dimension::OutputTokens);
            assert_eq!(used.get(&Dimension::Tokens) - prompt, used.get(&Dimension::OutputTokens));
            used.get(&Dimension::OutputTokens)
        };
        let cut = format!("data: {first}\n\ndata: {{\"choi");
        assert_eq!(so_far("text/event-stream", cut.as_bytes(), 0, &open), 500, "the events around it are none of it");
        let long = 3 * cut.len() as u64;
        assert_eq!(so_far("text/event-stream", cut.as_bytes(), long, &open), 1_500, "a third of it was kept");
        assert_eq!(so_far("application/json", b"", 400, &open), 100, "none was");
        let block = br#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"four"}}"#;
        assert_eq!(so_far("text/event-stream", &[&block[..], b"\n\n"].concat(), 0, &open), 1);
        let bounded = br#"{"max_tokens":7,"messages":[]}"#;
        let bound = charge(Provider::OpenAi, chat, bounded, &ratio);
        let bound = Dialect::from(Provider::OpenAi).charge_elsewhere(
            chat,
            bounded,
            &Asked::of(bounded),
            &bound,
            &TokenRatio::default(),
        );
        assert_eq!(so_far("text/event-stream", b"", 0, &bound), 7, "as reserved");
        assert_eq!(so_far("application/json", &[b'x'; 400], 0, &bound), 100);
    }
}
