//! The usage that an answer reports, before the table says what of it counts, and what it costs.

use http::HeaderMap;
use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;

use super::usage::{MOST, Usage};

/// What a provider's cache makes of the price of a prompt, in percent of the price of its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CachePercent {
    /// For a token that was read from it.
    pub read: u32,
    /// For a token that was written into it.
    pub write: u32,
    /// For a token that was written into it to stay for an hour.
    pub write_for_an_hour: u32,
}

impl CachePercent {
    /// What writes cost that a request asks for of an API whose table says nothing of them: what they cost at Anthropic and
    /// Amazon, whose models stand behind it then.
    const ASKED_FOR: Self = Self { read: 100, write: 125, write_for_an_hour: 200 };

    /// Whether the table says what writes cost.
    const fn knows_writes(self) -> bool {
        self.write != 100
    }

    /// What a call costs where its answer does not say for how long it wrote into the cache: as long as its request asks for.
    pub(super) fn as_asked(self, usage: Usage, request: &[u8]) -> Usage {
        if usage.unsplit_writes == 0 {
            return usage;
        }
        // A write that no request asked for is none the less billed, such as where a proxy asks for it.
        let known = if self.knows_writes() { self } else { Self::ASKED_FOR };
        let dearest = self.dearest(request).max(known.write);
        let more = u64::from(dearest.saturating_sub(self.write)) * usage.unsplit_writes;
        let [cache_price, written_price] =
            [usage.cache_price, usage.written_price].map(|price| price.saturating_add_unsigned(more));
        Usage { cache_price, written_price, unsplit_writes: 0, ..usage }
    }

    /// What a token of the prompt costs at most, in percent of the price of input, where the request asks for it to be kept.
    pub(super) fn dearest(self, request: &[u8]) -> u32 {
        let marks =
            MARKS.iter().flat_map(|mark| memmem::find_iter(request, *mark).map(|at| &request[at + mark.len()..]));
        let known = if self.knows_writes() { self } else { Self::ASKED_FOR };
        let written = marks.filter_map(|rest| {
            let mark = rest.trim_ascii_start().strip_prefix(b":")?;
            let mark = serde_json::Deserializer::from_slice(mark).into_iter::<Value>().next()?.ok()?;
            Some(if *mark.get("ttl").unwrap_or(&Value::Null) == "1h" { known.write_for_an_hour } else { known.write })
                .filter(|_| mark.is_object())
        });
        written.fold(100, u32::max)
    }
}

/// The members that ask for the prompt before them to be kept: a quote within a text is none, for it stands behind a backslash.
const MARKS: [&[u8]; 2] = [br#""cache_control""#, br#""cachePoint""#];

impl Default for CachePercent {
    /// Nothing is known: the full price.
    fn default() -> Self {
        Self { read: 100, write: 100, write_for_an_hour: 100 }
    }
}

/// Where an answer tells its usage, and an event of one that comes in parts: each API has some of these. Of an array (`*`) each
/// element tells its own.
pub(super) const PLACES: [&str; 13] = [
    "/usage",
    // Of Messages and of Responses, at their beginning and their end.
    "/message/usage",
    "/response/usage",
    // Of Gemini, and of its interactions.
    "/usageMetadata",
    "/interaction/usage",
    // Of Groq's streams.
    "/x_groq/usage",
    // Of Cohere: its embeddings and its older chat, the end of a stream of that, and of one of the newer.
    "/meta",
    "/response/meta",
    "/delta/usage",
    // Of Bedrock: the end of every stream, and whole answers and events of Llama and of Titan.
    "/amazon-bedrock-invocationMetrics",
    "/prompt_token_count",
    "/inputTextTokenCount",
    // Of Vertex: embeddings.
    "/predictions/*/embeddings/statistics",
];

/// What stands beside a count that is a place itself: the tokens of the answer.
const BESIDE: [&str; 2] = ["/generation_token_count", "/results/*/tokenCount"];

/// Header fields of Bedrock, for models whose answers do not tell it: the prompt, what was read of a cache and written into it,
/// the answer.
const FIELDS: [&str; 4] = [
    "x-amzn-bedrock-input-token-count",
    "x-amzn-bedrock-cache-read-input-token-count",
    "x-amzn-bedrock-cache-write-input-token-count",
    "x-amzn-bedrock-output-token-count",
];

/// The members that hold the tokens of a prompt: all of them, or those beside what a cache was read for.
const INPUT: [&str; 7] = [
    "prompt_tokens",
    "promptTokenCount",
    "input_tokens",
    "inputTokens",
    "inputTokenCount",
    "token_count",
    "total_input_tokens",
];

/// Those of an answer.
const OUTPUT: [&str; 6] = [
    "completion_tokens",
    "output_tokens",
    "outputTokens",
    "candidatesTokenCount",
    "outputTokenCount",
    "total_output_tokens",
];

/// Those that were read from a cache, and written into it.
const READ: [&str; 3] = ["cache_read_input_tokens", "cacheReadInputTokens", "cacheReadInputTokenCount"];
const WRITTEN: [&str; 3] = ["cache_creation_input_tokens", "cacheWriteInputTokens", "cacheWriteInputTokenCount"];

/// The objects that divide these.
const DETAILS: [&str; 2] = ["prompt_tokens_details", "input_tokens_details"];

/// The usage as an answer reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reported {
    /// Tokens of the prompt.
    input: u64,
    /// Tokens that were read from a cache.
    read: u64,
    /// Tokens that were written into it.
    written: u64,
    /// Those of them that stay for an hour; none where the answer does not say it.
    written_for_an_hour: Option<u64>,
    /// What was read and written is none of the input.
    apart: bool,
    output: u64,
    /// Only a total was reported, which is in the input.
    undivided: bool,
    /// Tokens of the prompt that the bill has, where that is said beside those that it has.
    billed: Option<u64>,
}

impl Reported {
    /// What an answer tells, or one event of it, by the values at its pointers; of several places the first.
    pub(super) fn of<'v>(at: impl Fn(&str) -> Option<&'v Value> + Copy) -> Option<Self> {
        PLACES.iter().find_map(|place| Self::in_place(place, at))
    }

    /// What one place tells.
    pub(super) fn in_place<'v>(place: &str, at: impl Fn(&str) -> Option<&'v Value> + Copy) -> Option<Self> {
        if let Some((array, rest)) = place.split_once("/*") {
            let all = at(array)?.as_array()?.iter().filter_map(|one| Self::read(one.pointer(rest)?));
            return all.reduce(Self::plus);
        }
        let value = at(place)?;
        if value.is_object() {
            return Self::read(value);
        }
        let beside = |place: &str| match place.split_once("/*") {
            Some((array, rest)) => {
                Some(at(array)?.as_array()?.iter().filter_map(|one| count(one.pointer(rest)?)).sum())
            }
            None => count(at(place)?),
        };
        let output = BESIDE.iter().find_map(|place| beside(place)).unwrap_or(0);
        Some(Self { input: count(value)?, output, ..Self::default() })
    }

    /// What the head of an answer tells.
    pub(super) fn in_head(headers: &HeaderMap) -> Option<Self> {
        let [input, read, written, output] = FIELDS.map(|name| {
            let tokens: Option<u64> = headers.get(name)?.to_str().ok()?.trim().parse().ok();
            tokens.filter(|tokens| *tokens <= MOST)
        });
        input.or(output)?;
        let [input, read, written, output] = [input, read, written, output].map(Option::unwrap_or_default);
        Some(Self { input, read, written, apart: true, output, ..Self::default() })
    }

    /// Both together.
    fn plus(self, other: Self) -> Self {
        let for_an_hour = [self.written_for_an_hour, other.written_for_an_hour].into_iter().flatten();
        Self {
            input: self.input.saturating_add(other.input),
            read: self.read.saturating_add(other.read),
            written: self.written.saturating_add(other.written),
            written_for_an_hour: for_an_hour.reduce(u64::saturating_add),
            apart: self.apart && other.apart,
            output: self.output.saturating_add(other.output),
            undivided: self.undivided && other.undivided,
            billed: None,
        }
    }

    /// The larger of each count.
    fn larger(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            read: self.read.max(other.read),
            written: self.written.max(other.written),
            written_for_an_hour: self.written_for_an_hour.max(other.written_for_an_hour),
            output: self.output.max(other.output),
            undivided: self.undivided && other.undivided,
            ..self
        }
    }

    /// Of the choices of one answer: each has its own tokens, and all have the prompt.
    pub(super) fn beside_choice(self, other: Self) -> Self {
        let output = self.output.saturating_add(other.output);
        Self { output, ..self.larger(other) }
    }

    /// The `usage` object of chat completions, responses, embeddings or messages. Only numbers count, and one of them
    /// must be there; one above 2^32 is none.
    pub(super) fn read(usage: &Value) -> Option<Self> {
        // Cohere has its counts one level deeper, beside those that it bills, and of embeddings these alone.
        let deeper = |key: &str| usage.get(key).filter(|counts| counts.is_object());
        let billed = deeper("billed_units");
        let billed_input =
            billed.filter(|_| deeper("tokens").is_some()).and_then(|units| count(units.get("input_tokens")?));
        let billed = billed.filter(|_| deeper("tokens").is_none());
        let usage = deeper("tokens").or(billed).unwrap_or(usage);
        // So few are found faster one by one than by their hashes.
        let members = usage.as_object()?;
        let member = |key: &str| members.iter().find(|(name, _)| *name == key).map(|(_, value)| value);
        let first = |keys: &[&str]| keys.iter().find_map(|key| count(member(key)?));
        let inside = |object: &str, key: &str| count(member(object)?.get(key)?);
        // What a search added to the prompt stands beside it, of Gemini's own tools and of Perplexity, as do Cohere's pictures.
        let beside = ["toolUsePromptTokenCount", "citation_tokens"].into_iter();
        let beside = beside.chain(billed.map(|_| "image_tokens"));
        let beside = beside.filter_map(|key| count(member(key)?)).fold(0, u64::saturating_add);
        let input = first(&INPUT).or((beside > 0).then_some(0)).map(|input| input.saturating_add(beside));
        // What is thought beside the answer. Others that name it so count it in the answer.
        let thought = first(&["thoughtsTokenCount"]);
        let thought = thought.or_else(|| first(&["reasoning_tokens"]).filter(|_| member("citation_tokens").is_some()));
        let output = match (first(&OUTPUT), thought) {
            (output, Some(thought)) => Some(output.unwrap_or(0).saturating_add(thought)),
            (output, None) => output,
        };
        let undivided = input.is_none() && output.is_none();
        // A total says nothing beside a number that no prompt can have.
        let is_wrong = input.is_none() && INPUT.iter().any(|key| member(key).is_some_and(Value::is_number));
        let total = first(&["total_tokens", "totalTokens", "totalTokenCount"]).filter(|_| !is_wrong);
        let (input, output) = match (input, output, total) {
            (None, None, total) => (total?, 0),
            (None, Some(output), Some(total)) => (total.saturating_sub(output), output),
            (input, output, _) => (input.unwrap_or(0), output.unwrap_or(0)),
        };
        let of_details = |key: &str| DETAILS.iter().find_map(|object| inside(object, key));
        // DeepSeek's, and Moonshot's, stand beside the other counts.
        let within = of_details("cached_tokens")
            .or_else(|| first(&["cachedContentTokenCount", "prompt_cache_hit_tokens", "cached_tokens"]));
        let read = within.or_else(|| first(&READ));
        let written = of_details("cache_write_tokens").or_else(|| first(&WRITTEN));
        let (read, written) = (read.unwrap_or(0), written.unwrap_or(0));
        // More than all of it can be no part of it.
        let apart = within.is_none() && member("prompt_tokens").is_none() || read > input;
        let prompt = if apart { input.saturating_add(read).saturating_add(written) } else { input };
        // Some count what a model thinks beside its answer, in the total alone, and bill it like that.
        let output = total.map_or(output, |total| output.max(total.saturating_sub(prompt)));
        let all = Self {
            input,
            read,
            written,
            written_for_an_hour: inside("cache_creation", "ephemeral_1h_input_tokens"),
            apart,
            output,
            undivided,
            billed: billed_input,
        };
        // Anthropic's calls of several rounds: the sum may lack those that summed up the conversation.
        let rounds = member("iterations").and_then(Value::as_array).into_iter().flatten();
        Some(rounds.filter_map(Self::read).reduce(Self::plus).map_or(all, |rounds| all.larger(rounds)))
    }

    /// After a later event of the same stream: its counts are totals, and what it does not name stays.
    pub(super) fn updated(self, later: Self) -> Self {
        let last = |before: u64, after: u64| if after > 0 { after } else { before };
        Self {
            input: last(self.input, later.input),
            read: last(self.read, later.read),
            written: last(self.written, later.written),
            written_for_an_hour: later.written_for_an_hour.filter(|tokens| *tokens > 0).or(self.written_for_an_hour),
            apart: self.apart && later.apart,
            output: last(self.output, later.output),
            undivided: later.undivided,
            billed: later.billed.or(self.billed),
        }
    }

    /// What of it counts against limits, where what was read from a cache does not if it `is_free`, and what it costs.
    pub(super) fn counted(self, is_free: bool, percent: CachePercent) -> Usage {
        let cached = if self.apart { self.read.saturating_add(self.written) } else { 0 };
        let input = self.input.saturating_add(cached);
        let read = self.read.min(input);
        let written = self.written.min(input - read);
        let for_an_hour = self.written_for_an_hour.unwrap_or(0).min(written);
        let uncounted_tokens = if is_free { read } else { 0 };
        let CachePercent { read: of_read, write, write_for_an_hour } = percent;
        let more = |tokens: u64, percent: u32| tokens as i64 * (i64::from(percent) - 100);
        let cached_price = more(read, of_read);
        let written_price = more(written - for_an_hour, write) + more(for_an_hour, write_for_an_hour);
        // Both are at most a few times 2^32.
        let unbilled = self.billed.map_or(0, |billed| (billed.cast_signed() - input.cast_signed()) * 100);
        Usage {
            input_tokens: input - uncounted_tokens,
            uncounted_tokens,
            cache_price: cached_price + written_price + unbilled,
            unsplit_writes: if self.written_for_an_hour.is_none() || write == 100 { written } else { 0 },
            cached_tokens: read,
            cached_price,
            written_tokens: written,
            written_price,
            output_tokens: self.output,
            units: 0,
            undivided: self.undivided,
        }
    }
}

fn count(value: &Value) -> Option<u64> {
    value.as_f64().filter(|tokens| (0.0..=MOST as f64).contains(tokens)).map(|tokens| tokens as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_in_every_dialect() {
        for (usage, expected) in [
            (json!({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}), Some((9, 2))),
            (json!({"input_tokens": 4, "output_tokens": 3, "total_tokens": 7}), Some((4, 3))),
            (json!({"prompt_tokens": 8, "total_tokens": 8}), Some((8, 0))),
            (json!({"total_tokens": 8}), Some((8, 0))),
            (
                json!({"input_tokens": 10, "cache_creation_input_tokens": 90, "cache_read_input_tokens": 500, "output_tokens": 1}),
                Some((600, 1)),
            ),
            (
                json!({"input_tokens": 10, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 1}),
                Some((10, 1)),
            ),
            (
                json!({"prompt_tokens": 99, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 9}),
                Some((99, 0)),
            ),
            (json!({"promptTokenCount": 70, "cachedContentTokenCount": 60, "candidatesTokenCount": 3}), Some((70, 3))),
            (
                json!({"inputTokens": 5, "cacheReadInputTokens": 90, "cacheWriteInputTokens": 4, "outputTokens": 6}),
                Some((99, 6)),
            ),
            // Of proxies that leave what the cache held out of the prompt.
            (
                json!({"prompt_tokens": 60, "completion_tokens": 5, "total_tokens": 65, "prompt_tokens_details": {"cached_tokens": 2_000}}),
                Some((2_060, 5)),
            ),
            (json!({"output_tokens": 15}), Some((0, 15))),
            (
                json!({"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 20, "totalTokenCount": 30}),
                Some((7, 23)),
            ),
            (
                json!({"promptTokenCount": 7, "toolUsePromptTokenCount": 100, "candidatesTokenCount": 3, "totalTokenCount": 110}),
                Some((107, 3)),
            ),
            (json!({"inputTokens": 5, "outputTokens": 6, "totalTokens": 11}), Some((5, 6))),
            (
                json!({"inputTokens": 5, "cacheReadInputTokens": 90, "cacheWriteInputTokens": 4, "outputTokens": 6, "totalTokens": 105}),
                Some((99, 6)),
            ),
            // The reasoning of xAI's models is in the total alone.
            (
                json!({"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135,
                    "prompt_tokens_details": {"cached_tokens": 6}, "completion_tokens_details": {"reasoning_tokens": 94}}),
                Some((32, 103)),
            ),
            (json!({"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 40}), Some((50, 5))),
            (json!({"prompt_tokens": 50, "total_tokens": 80}), Some((50, 30))),
            (json!({"input_tokens": 4, "output_tokens": 3, "total_tokens": 30}), Some((4, 26))),
            (
                json!({"billed_units": {"input_tokens": 1}, "tokens": {"input_tokens": 71.0, "output_tokens": 2.0}}),
                Some((71, 2)),
            ),
            (json!({"billed_units": {"images": 1, "image_tokens": 40, "input_tokens": 2}}), Some((42, 0))),
            (json!({"input_tokens": 100, "image_tokens": 40, "output_tokens": 2}), Some((100, 2))),
            (json!({"prompt_tokens": "9"}), None),
            (json!({"prompt_tokens": i64::MAX, "completion_tokens": 1}), Some((0, 1))),
            (json!({"prompt_tokens": u64::MAX}), None),
            (json!({"prompt_tokens": u64::MAX, "completion_tokens": 5, "total_tokens": 7}), Some((0, 5))),
            (json!({"prompt_tokens": u64::MAX, "total_tokens": 7}), None),
            (json!({}), None),
            (json!(null), None),
        ] {
            let found = Reported::read(&usage).map(|usage| usage.counted(false, CachePercent::default()));
            let found = found.map(|usage| (usage.input_tokens, usage.output_tokens));
            assert_eq!(found, expected, "{usage}");
        }
    }

    #[test]
    fn a_prompt_that_is_to_be_kept_costs_what_its_write_costs() {
        let percent = CachePercent { read: 10, write: 125, write_for_an_hour: 200 };
        for (request, expected) in [
            (json!({"messages": [{"content": "x"}]}), 100),
            (json!({"system": [{"text": "x", "cache_control": {"type": "ephemeral"}}]}), 125),
            (json!({"cache_control": {"type": "ephemeral", "ttl": "5m"}}), 125),
            (json!({"tools": [{"cache_control": {"type": "ephemeral", "ttl": "1h"}}], "cache_control": {}}), 200),
            (json!({"system": [{"text": "x"}, {"cachePoint": {"type": "default"}}]}), 125),
            (json!({"system": [{"text": "x", "cache_control": null}]}), 100),
            (json!({"messages": [{"content": "{\"cache_control\": {\"ttl\": \"1h\"}}"}]}), 100),
        ] {
            for text in [request.to_string(), serde_json::to_string_pretty(&request).expect("JSON")] {
                assert_eq!(percent.dearest(text.as_bytes()), expected, "{text}");
            }
            let of_another = CachePercent::default().dearest(request.to_string().as_bytes());
            assert_eq!(of_another, expected, "whose table says nothing, asked for a model of the same");
        }
        assert_eq!(percent.dearest(br#"{"cache_control": {"type""#), 100, "half an object");
    }

    #[test]
    fn writes_of_unknown_length_stay_as_long_as_the_request_asks_for() {
        let percent = CachePercent { read: 10, write: 125, write_for_an_hour: 200 };
        let hour = json!({"system": [{"cache_control": {"ttl": "1h"}}, {"cache_control": {}}]}).to_string();
        let minutes = json!({"system": [{"cache_control": {"type": "ephemeral"}}]}).to_string();
        let unsplit = json!({"input_tokens": 20, "cache_creation_input_tokens": 1_000, "output_tokens": 1});
        let mut split = unsplit.clone();
        split["cache_creation"] = json!({"ephemeral_5m_input_tokens": 1_000, "ephemeral_1h_input_tokens": 0});
        for (usage, request, expected) in [
            (&unsplit, &hour, 2_020),
            (&unsplit, &minutes, 1_270),
            (&unsplit, &"{}".to_owned(), 1_270),
            (&split, &hour, 1_270),
        ] {
            let usage = Reported::read(usage).expect("usage").counted(true, percent);
            assert_eq!(percent.as_asked(usage, request.as_bytes()).priced_input(), expected, "{usage:?} {request}");
        }
    }

    /// As OpenRouter and LiteLLM tell of models that are Anthropic's; LiteLLM asks for them by itself where it is set up so.
    #[test]
    fn writes_of_an_api_in_the_form_of_openai_cost_more_whether_or_not_they_are_asked_for() {
        let (minutes, hour) = (r#"{"cache_control":{}}"#, r#"{"cache_control":{"ttl":"1h"}}"#);
        let openrouter = json!({"prompt_tokens": 2_060, "completion_tokens": 10, "total_tokens": 2_070,
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 2_000}});
        let litellm = json!({"prompt_tokens": 2_060, "completion_tokens": 10, "cache_creation_input_tokens": 2_000});
        let mut split = litellm.clone();
        split["cache_creation"] = json!({"ephemeral_5m_input_tokens": 2_000, "ephemeral_1h_input_tokens": 0});
        for (usage, request, expected) in [
            (&openrouter, minutes, 2_560),
            (&openrouter, hour, 4_060),
            (&openrouter, "{}", 2_560),
            (&litellm, "{}", 2_560),
            (&litellm, minutes, 2_560),
            (&split, hour, 4_060),
        ] {
            let counted = Reported::read(usage).expect("usage").counted(false, CachePercent::default());
            let counted = CachePercent::default().as_asked(counted, request.as_bytes());
            assert_eq!((counted.prompt_tokens(), counted.priced_input()), (2_060, expected), "{usage} {request}");
        }
    }

    #[test]
    fn what_a_cache_was_read_for_is_a_part_of_the_prompt_by_whatever_name() {
        for usage in [
            json!({"prompt_tokens": 90, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 64}}),
            json!({"prompt_tokens": 90, "completion_tokens": 5, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 26}),
            json!({"prompt_tokens": 90, "completion_tokens": 5, "cached_tokens": 64}),
        ] {
            let usage = Reported::read(&usage).expect("usage").counted(false, CachePercent::default());
            assert_eq!((usage.prompt_tokens(), usage.cached_tokens), (90, 64));
        }
    }

    #[test]
    fn the_last_event_of_a_stream_may_tell_the_prompt_again_without_its_cache() {
        let read = |usage| Reported::read(&usage).expect("usage");
        let first = read(json!({"input_tokens": 20, "cache_read_input_tokens": 2_000, "output_tokens": 1}));
        let last = read(json!({"input_tokens": 20, "output_tokens": 15}));
        let usage = first.updated(last).counted(false, CachePercent::default());
        assert_eq!((usage.prompt_tokens(), usage.output_tokens), (2_020, 15));
    }
}
