//! The usage that an answer reports, before the table says what of it counts, and what it costs.

use http::HeaderMap;
use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;

use super::usage::{MOST, Usage};

mod members;
#[cfg(test)]
mod tests;

use self::members::{Known, Members, count_of, is_garbled};

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

/// That of a message that begins.
const OF_BEGINNING: &str = "/message/usage";

/// The count of Titan's models.
const OF_TITAN: &str = "/inputTextTokenCount";

/// Places of what an answer tells of itself: their names say nothing of counts, and what is no object there has none.
const OF_ANY: [&str; 2] = ["/meta", "/response/meta"];

/// Places of a count, and of no object.
const ALONE: [&str; 2] = ["/prompt_token_count", OF_TITAN];

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

/// Those beside them: what tools of Gemini and searches of Perplexity added; and of bills alone Cohere's pictures.
const BESIDE_PROMPT: [&str; 3] = ["toolUsePromptTokenCount", "citation_tokens", "image_tokens"];

/// Those that were read from a cache, and written into it.
const READ: [&str; 3] = ["cache_read_input_tokens", "cacheReadInputTokens", "cacheReadInputTokenCount"];
const WRITTEN: [&str; 3] = ["cache_creation_input_tokens", "cacheWriteInputTokens", "cacheWriteInputTokenCount"];

/// All of it.
const TOTAL: [&str; 3] = ["total_tokens", "totalTokens", "totalTokenCount"];

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
    /// Whether the tokens of the prompt are all told, ...
    input_is: Known,
    /// ... and those of the answer.
    output_is: Known,
    /// Only a total was reported, which is in the input.
    undivided: bool,
    /// Tokens of the prompt that the bill has, where that is said beside those that it has.
    billed: Option<u64>,
}

impl Reported {
    /// What an answer tells, or one event of it, by the values at its pointers; of several places the first that tells something.
    pub(super) fn of<'v>(at: impl Fn(&str) -> Option<&'v Value> + Copy) -> Option<Self> {
        PLACES.iter().find_map(|place| Self::in_place(place, at).filter(Self::tells))
    }

    /// Whether it tells something that can be read.
    pub(super) fn tells(&self) -> bool {
        let told = self.input.max(self.read).max(self.written).max(self.output);
        told > 0 || self.input_is == Known::Told || self.output_is == Known::Told
    }

    /// What one place tells.
    pub(super) fn in_place<'v>(place: &str, at: impl Fn(&str) -> Option<&'v Value> + Copy) -> Option<Self> {
        if let Some((array, rest)) = place.split_once("/*") {
            let all = at(array)?.as_array()?.iter().filter_map(|one| Self::read(one.pointer(rest)?));
            // Embeddings have no answer.
            return all.reduce(Self::plus).map(|all| Self { output_is: all.output_is.updated(Known::Told), ..all });
        }
        let value = at(place)?;
        if value.is_object() {
            let told = Self::read(value)?;
            // The beginning of a message tells as much of its answer as there is by then.
            let is_begun = *place == *OF_BEGINNING && told.output_is == Known::Told;
            return Some(if is_begun { Self { output_is: Known::Untold, ..told } } else { told });
        }
        match value {
            Value::Null => None,
            _ if OF_ANY.contains(&place) => None,
            _ if ALONE.contains(&place) => Some(Self::beside(place, value, at)),
            _ => Some(Self { input_is: Known::Garbled, output_is: Known::Garbled, ..Self::default() }),
        }
    }

    /// What a count tells that is a place itself, with what stands beside it.
    fn beside<'v>(place: &str, input: &Value, at: impl Fn(&str) -> Option<&'v Value> + Copy) -> Self {
        let counts = |place: &str| match place.split_once("/*") {
            Some((array, rest)) => Some(at(array)?.as_array()?.iter().map(|one| one.pointer(rest)).collect()),
            None => at(place).map(|count| vec![Some(count)]),
        };
        let answer: Option<Vec<_>> = BESIDE.iter().find_map(|place| counts(place).filter(|all| !all.is_empty()));
        let tokens = |count: &Option<&Value>| (*count).and_then(count_of);
        let output = answer.iter().flatten().filter_map(tokens).sum();
        // Titan's embeddings have the first alone, and its texts stand in `results`, or in events.
        let is_embedding = *place == *OF_TITAN && ["/results", "/outputText"].iter().all(|text| at(text).is_none());
        let is_there = is_embedding || answer.as_ref().is_some_and(|all| all.iter().all(|one| tokens(one).is_some()));
        let is_wrong = answer.iter().flatten().flatten().any(|one| is_garbled(one));
        Self {
            input: count_of(input).unwrap_or(0),
            output,
            input_is: Known::of(true, is_garbled(input)),
            output_is: Known::of(is_there, is_wrong),
            ..Self::default()
        }
    }

    /// What the head of an answer tells.
    pub(super) fn in_head(headers: &HeaderMap) -> Option<Self> {
        let [input, read, written, output] = FIELDS.map(|name| {
            let tokens: Option<u64> = headers.get(name)?.to_str().ok()?.trim().parse().ok();
            tokens.filter(|tokens| *tokens <= MOST)
        });
        input.or(output)?;
        let is_wrong = |at: usize, told: Option<u64>| told.is_none() && headers.contains_key(FIELDS[at]);
        let input_is = Known::of(input.is_some(), is_wrong(0, input) || is_wrong(1, read) || is_wrong(2, written));
        let output_is = Known::of(output.is_some(), is_wrong(3, output));
        let [input, read, written, output] = [input, read, written, output].map(Option::unwrap_or_default);
        Some(Self { input, read, written, apart: true, output, input_is, output_is, ..Self::default() })
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
            input_is: self.input_is.and(other.input_is),
            output_is: self.output_is.and(other.output_is),
            undivided: self.undivided && other.undivided,
            billed: None,
        }
    }

    /// The larger of each count. What one of them does not tell, the other does.
    fn larger(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            read: self.read.max(other.read),
            written: self.written.max(other.written),
            written_for_an_hour: self.written_for_an_hour.max(other.written_for_an_hour),
            output: self.output.max(other.output),
            input_is: self.input_is.or(other.input_is),
            output_is: self.output_is.or(other.output_is),
            undivided: self.undivided && other.undivided,
            ..self
        }
    }

    /// Of the choices of one answer: each has its own tokens, and all have the prompt.
    pub(super) fn beside_choice(self, other: Self) -> Self {
        let output = self.output.saturating_add(other.output);
        Self { output, output_is: self.output_is.and(other.output_is), ..self.larger(other) }
    }

    /// The `usage` object of chat completions, responses, embeddings or messages. Only whole numbers count, and one above 2^32 is
    /// none. What stands in the place of a count and is none tells that there is one.
    pub(super) fn read(usage: &Value) -> Option<Self> {
        // Cohere has its counts one level deeper, beside those that it bills, and of embeddings these alone.
        let deeper = |key: &str| usage.get(key).filter(|counts| counts.is_object());
        let billed = deeper("billed_units");
        let billed_input =
            billed.filter(|_| deeper("tokens").is_some()).and_then(|units| count_of(units.get("input_tokens")?));
        let billed = billed.filter(|_| deeper("tokens").is_none());
        let usage = deeper("tokens").or(billed).unwrap_or(usage);
        let members = Members(usage.as_object()?);
        // What a search added to the prompt stands beside it, of Gemini's own tools and of Perplexity, as do Cohere's pictures.
        let beside: &[&str] = if billed.is_some() { &BESIDE_PROMPT } else { &BESIDE_PROMPT[..2] };
        let more = members.sum(beside);
        let input = members.first(&INPUT).or((more > 0).then_some(0)).map(|input| input.saturating_add(more));
        let (answered, thought) = (members.first(&OUTPUT), members.first(thought_of(members)));
        let output = answered.or(thought.map(|_| 0)).map(|tokens| tokens.saturating_add(thought.unwrap_or(0)));
        let undivided = input.is_none() && output.is_none();
        let wrong_input = members.is_garbled(&INPUT) || members.is_garbled(beside);
        let wrong_output = members.is_garbled(&OUTPUT) || members.is_garbled(thought_of(members));
        // A total says nothing beside a number that no prompt can have.
        let says_nothing = (input.is_none() && wrong_input) || (undivided && wrong_output);
        let total = members.first(&TOTAL).filter(|_| !says_nothing);
        let output_is = Known::of(answered.or(total).is_some(), wrong_output);
        let input_is = Known::of(input.or(total).is_some(), wrong_input || is_cache_garbled(members));
        let (input, output) = match (input, output, total) {
            (None, None, None) if input_is == output_is && input_is == Known::Untold => return None,
            (None, None, total) => (total.unwrap_or(0), 0),
            (None, Some(output), Some(total)) => (total.saturating_sub(output), output),
            (input, output, _) => (input.unwrap_or(0), output.unwrap_or(0)),
        };
        let of_details = |key: &str| DETAILS.iter().find_map(|object| members.inside(object, key));
        // DeepSeek's, and Moonshot's, stand beside the other counts.
        let within = of_details("cached_tokens")
            .or_else(|| members.first(&["cachedContentTokenCount", "prompt_cache_hit_tokens", "cached_tokens"]));
        let read = within.or_else(|| members.first(&READ));
        let written = of_details("cache_write_tokens").or_else(|| members.first(&WRITTEN));
        let (read, written) = (read.unwrap_or(0), written.unwrap_or(0));
        // More than all of it can be no part of it.
        let apart = within.is_none() && members.get("prompt_tokens").is_none() || read > input;
        let prompt = if apart { input.saturating_add(read).saturating_add(written) } else { input };
        // Some count what a model thinks beside its answer, in the total alone, and bill it like that.
        let output = total.map_or(output, |total| output.max(total.saturating_sub(prompt)));
        let all = Self {
            input,
            read,
            written,
            written_for_an_hour: members.inside("cache_creation", "ephemeral_1h_input_tokens"),
            apart,
            output,
            input_is,
            output_is,
            undivided,
            billed: billed_input,
        };
        // Anthropic's calls of several rounds: the sum may lack those that summed up the conversation.
        let rounds = members.get("iterations").and_then(Value::as_array).into_iter().flatten();
        Some(rounds.filter_map(Self::read).reduce(Self::plus).map_or(all, |rounds| all.larger(rounds)))
    }

    /// After a later event of the same stream: its counts are totals, which grow, and what it does not name stays.
    pub(super) fn updated(self, later: Self) -> Self {
        let last = |before: u64, after: u64| if after > 0 { after } else { before };
        let all = Self {
            input: last(self.input, later.input),
            read: last(self.read, later.read),
            written: last(self.written, later.written),
            written_for_an_hour: later.written_for_an_hour.filter(|tokens| *tokens > 0).or(self.written_for_an_hour),
            apart: self.apart && later.apart,
            output: self.output.max(later.output),
            input_is: self.input_is.updated(later.input_is),
            output_is: self.output_is.updated(later.output_is),
            undivided: later.undivided,
            billed: later.billed.or(self.billed),
        };
        // Of two prompts the longer, with what a cache held of it.
        let is_longer = !self.undivided && self.prompt() > all.prompt();
        if is_longer {
            let Self { output, input_is, output_is, undivided, .. } = all;
            return Self { output, input_is, output_is, undivided, ..self };
        }
        all
    }

    /// All tokens of the prompt.
    const fn prompt(&self) -> u64 {
        let cached = if self.apart { self.read.saturating_add(self.written) } else { 0 };
        self.input.saturating_add(cached)
    }

    /// What of it counts against limits, where what was read from a cache does not if it `is_free`, and what it costs.
    pub(super) fn counted(self, is_free: bool, percent: CachePercent) -> Usage {
        let input = self.prompt();
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
            unread_input: self.input_is != Known::Told,
            unread_output: self.output_is != Known::Told,
        }
    }
}

/// What is thought beside the answer. Others that name it as Perplexity does count it in the answer.
fn thought_of(members: Members<'_>) -> &'static [&'static str] {
    const THOUGHT: [&str; 2] = ["thoughtsTokenCount", "reasoning_tokens"];
    if members.get("citation_tokens").is_some() { &THOUGHT } else { &THOUGHT[..1] }
}

/// Whether what a cache held of the prompt, beside its other tokens, cannot be read.
fn is_cache_garbled(members: Members<'_>) -> bool {
    members.get("prompt_tokens").is_none() && (members.is_garbled(&READ) || members.is_garbled(&WRITTEN))
}
