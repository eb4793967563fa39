//! How the reserved cost of a call is settled with its answer.

use paceline_core::{Class, Cost, Dimension};

use super::Answer;
use super::charge::{has_tokens, with_tokens};
use super::reading::leaves_open;
use super::table::{Charge, Counts};
use super::units::Units;
use super::unreported::{tokens_in, tokens_of, tokens_of_texts};
use super::untold::larger;
use super::usage::Usage;

/// How the reserved cost of a call is settled with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The call cost nothing. A refused one still was a call.
    free: bool,
    /// Reserved units that were not used are refunded.
    refunds: bool,
    counts: Counts,
    /// So often an output token counts.
    output_weight: u32,
    units: Option<Units>,
    /// The tokens of an answer that reports none, by its length.
    came: u64,
    /// An answer has tokens of a model at that endpoint.
    has_answer: bool,
    /// The server refused the call, and did none of it.
    refused: bool,
}

impl Default for Settlement {
    /// The usage replaces what was reserved.
    fn default() -> Self {
        Self {
            free: false,
            refunds: true,
            counts: Counts::All,
            output_weight: 1,
            units: None,
            came: 0,
            has_answer: true,
            refused: false,
        }
    }
}

impl Settlement {
    /// As the charge of a provider says for a call of that path with such an answer.
    pub(super) fn of(charge: &Charge, path: &str, status: u16, class: Class) -> Self {
        Self {
            free: charge.free.iter().any(|free| free.includes(status, class)),
            refunds: charge.refunds,
            counts: charge.counts,
            output_weight: charge.output_weight(path),
            units: charge.units,
            came: 0,
            has_answer: has_tokens(path),
            refused: is_refusal(status, class),
        }
    }

    /// Of an answer that reports no usage: the length of its texts says how many tokens it has.
    pub(super) fn with_unreported(self, answer: &Answer<'_>) -> Self {
        Self { came: if has_tokens(answer.path) { tokens_of(answer) } else { 0 }, ..self }
    }

    /// Of an answer that reports a prompt alone: what is no text of an answer counts nothing, such as numbers.
    pub(super) fn with_texts(self, answer: &Answer<'_>) -> Self {
        let has_texts = has_tokens(answer.path) && !self.refused;
        Self { came: if has_texts { tokens_of_texts(answer) } else { 0 }, ..self }
    }

    /// Of an answer whose texts have so many tokens.
    pub(super) fn with_texts_of(self, path: &str, tokens: u64) -> Self {
        Self { came: if has_tokens(path) { tokens } else { 0 }, ..self }
    }

    /// Of an answer of so many bytes that was too long to be kept and read.
    pub(super) fn with_length(self, path: &str, bytes: u64) -> Self {
        Self { came: if has_tokens(path) { tokens_in(bytes) } else { 0 }, ..self }
    }

    /// What the call used, whatever its provider counts: prompt and answer, and what was reserved and not used comes back, as do
    /// all tokens of one that was refused. An answer of a model that tells no usage has used `untold` at the least.
    pub(super) fn used(self, reserved: &Cost, untold: &Cost, usage: Option<Usage>, class: Class) -> Option<Cost> {
        let usage = usage.map(|usage| self.with_both_halves(usage.with_all_input(), untold, class));
        if self.refused && usage.is_none() {
            return Some(with_tokens(reserved.clone(), 0, Usage::default()));
        }
        let used = Self { refunds: true, counts: Counts::All, ..self }.cost(reserved, usage, class);
        if self.free || usage.is_some() || !may_be_made(class) {
            return used;
        }
        Some(used.map_or_else(|| untold.clone(), |used| larger(used, untold)))
    }

    /// A usage of which one half cannot be read, or is nothing: that of a prompt counts as where nothing is told. So does that of
    /// an answer, with the length of its texts at the least; an answer of no tokens has that length alone.
    fn with_both_halves(self, usage: Usage, untold: &Cost, class: Class) -> Usage {
        let usage = self.with_unread(usage, untold, class);
        if usage.lacks_output() {
            return Usage { output_tokens: self.came, ..usage };
        }
        let lacks_input = usage.input_tokens == 0 && usage.output_tokens > 0 && !usage.undivided;
        let input_tokens = if lacks_input { untold.get(&Dimension::InputTokens) } else { usage.input_tokens };
        Usage { input_tokens, ..usage }
    }

    /// A usage in which what cannot be read counts with `bound`: of an answer that was not made to its end what came of it. What
    /// was refused has none of that.
    fn with_unread(self, usage: Usage, bound: &Cost, class: Class) -> Usage {
        let mut all = Usage { unread_input: false, unread_output: false, ..usage };
        if usage.unread_input && !self.refused {
            all.input_tokens = all.input_tokens.max(bound.get(&Dimension::InputTokens));
        }
        if usage.unread_output && self.has_answer && !self.refused {
            let bound = if may_be_made(class) { bound.get(&Dimension::OutputTokens) } else { 0 };
            all.output_tokens = all.output_tokens.max(bound).max(self.came);
        }
        all
    }

    /// What the call cost; `None` where nothing is known but what was reserved.
    pub(super) fn cost(&self, reserved: &Cost, usage: Option<Usage>, class: Class) -> Option<Cost> {
        if self.free {
            let calls = if class == Class::Success { 0 } else { reserved.get(&Dimension::Requests) };
            let mut cost = reserved.free().with(Dimension::Requests, calls);
            if let Some(units) = self.units {
                cost.set(units.dimension(), 0);
            }
            return Some(cost);
        }
        let usage = usage.map(|usage| self.with_unread(usage, reserved, class)).or_else(|| self.estimated(reserved))?;
        let mut cost = reserved.clone();
        if let Some(units) = self.units.filter(|_| usage.units > 0) {
            cost.set(units.dimension(), usage.units);
        }
        if usage.total() == 0 && usage.units > 0 {
            return Some(cost);
        }
        let tokens = match self.counts {
            Counts::Input => usage.input_tokens,
            Counts::All => {
                usage.input_tokens.saturating_add(usage.output_tokens.saturating_mul(u64::from(self.output_weight)))
            }
        };
        // What was a guess here is none of the provider's.
        let is_refunded = self.refunds || reserved.is_open_ended();
        let tokens = if is_refunded { tokens } else { tokens.max(reserved.stated(&Dimension::Tokens)) };
        Some(with_tokens(cost, tokens, usage))
    }

    /// The usage of a call whose answer reports none, such as a stream that was not asked for it. With a bound it counts as
    /// reserved, unless so much text came that the server did not heed the bound: what a text is worth is known to a half.
    fn estimated(&self, reserved: &Cost) -> Option<Usage> {
        let (input_tokens, bound) = (reserved.get(&Dimension::InputTokens), reserved.get(&Dimension::OutputTokens));
        let is_heeded = self.came <= bound.saturating_add(bound / 2);
        let is_guess = if reserved.is_open_ended() { self.came > 0 } else { input_tokens > 0 && !is_heeded };
        is_guess.then(|| Usage { input_tokens, output_tokens: self.came, ..Usage::default() })
    }
}

/// Whether an answer of that class may have been made to its end.
const fn may_be_made(class: Class) -> bool {
    matches!(class, Class::Success | Class::Filtered | Class::Partial)
}

/// Whether the server did nothing of a call that it answered so. One that failed, or a gateway that gave up, may have.
fn is_refusal(status: u16, class: Class) -> bool {
    let is_one = matches!(
        class,
        Class::Invalid
            | Class::Filtered
            | Class::Throttled
            | Class::Overloaded
            | Class::QuotaExhausted
            | Class::Account
    );
    is_one && status >= 400 && !leaves_open(status)
}

#[cfg(test)]
mod tests {
    use super::super::outline::Asked;
    use super::super::usage::TokenRatio;
    use super::super::{Dialect, Provider};
    use super::*;

    fn charge(provider: Provider, path: &str, body: &[u8], ratio: &TokenRatio) -> Cost {
        Dialect::from(provider).charge(path, body, ratio)
    }

    /// What a provider charges for a call whose answer had 90 tokens of input and 10 of output, and what it had reserved.
    fn charged(provider: Provider, path: &str, body: &[u8], status: u16, class: Class) -> (u64, Option<u64>) {
        let reserved = charge(provider, path, body, &TokenRatio::default());
        let usage = Usage { input_tokens: 90, output_tokens: 10, ..Usage::default() };
        let usage = (class == Class::Success).then_some(usage);
        let settlement = Settlement::of(&provider.table().charge, path, status, class);
        let tokens = |cost: &Cost| cost.get(&Dimension::Tokens);
        (tokens(&reserved), settlement.cost(&reserved, usage, class).map(|cost| tokens(&cost)))
    }

    #[test]
    fn under_a_limit_of_a_client_a_usage_that_tells_one_half_counts_the_other_half_too() {
        let (dialect, path) = (Dialect::from(Provider::OpenAi), "/v1/chat/completions");
        let body = [br#"{"max_tokens":50,"p":""#, &[b'x'; 376][..], b"\"}"].concat();
        let reserved = dialect.charge(path, &body, &TokenRatio::default());
        let reserved = dialect.charge_elsewhere(path, &body, &Asked::of(&body), &reserved, &TokenRatio::default());
        let (prompt, text) = (reserved.get(&Dimension::InputTokens), "x".repeat(8_000));
        assert!(prompt >= 100, "{prompt}");
        for (usage, expected) in [
            (r#"{"prompt_tokens":9,"completion_tokens":5}"#, 14),
            (r#"{"completion_tokens":5}"#, prompt + 5),
            (r#"{"prompt_tokens":null,"completion_tokens":5}"#, prompt + 5),
            (r#"{"prompt_tokens":-1,"completion_tokens":5}"#, prompt + 5),
            (r#"{"prompt_tokens":9}"#, 2_009),
            (r#"{"prompt_tokens":9,"completion_tokens":null}"#, 2_009),
            (r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#, prompt + 2_000),
        ] {
            let answer = format!(r#"{{"choices":[{{"message":{{"content":"{text}"}}}}],"usage":{usage}}}"#);
            let headers = http::HeaderMap::new();
            let answer = Answer { status: 200, headers: &headers, body: answer.as_bytes(), path };
            let reading = dialect.read(&answer, paceline_core::Timestamp::from_millis(0));
            let used = reading.used_of(&reserved, &reserved).expect("a usage").get(&Dimension::Tokens);
            assert_eq!(used, expected, "{usage}");
        }
        let numbers = r#"{"data":[{"embedding":[0.1,0.2]}],"usage":{"prompt_tokens":9,"total_tokens":9}}"#;
        let (path, headers) = ("/v1/embeddings", http::HeaderMap::new());
        let answer = Answer { status: 200, headers: &headers, body: numbers.as_bytes(), path };
        let reading = dialect.read(&answer, paceline_core::Timestamp::from_millis(0));
        assert_eq!(reading.used_of(&reserved, &reserved).expect("a usage").get(&Dimension::Tokens), 9);
    }

    #[test]
    fn each_provider_counts_in_its_own_way() {
        let body = &[br#"{"max_tokens":50,"p":""#, &[b'x'; 376][..], b"\"}"].concat()[..];
        assert_eq!(body.len(), 400, "100 tokens");
        let chat = "/v1/chat/completions";
        let sonnet = "/model/us.anthropic.claude-sonnet-4-5-20250929-v1:0/invoke";
        for (provider, path, reserved, settled) in [
            // On admission, and never refunded.
            (Provider::OpenAi, chat, 100, 100),
            (Provider::Azure, "/openai/deployments/d/chat/completions", 150, 150),
            // Estimated, then adjusted; the bound of the answer does not count.
            (Provider::Anthropic, "/v1/messages", 100, 100),
            // Input alone.
            (Provider::Gemini, "/v1beta/models/m:generateContent", 100, 90),
            // Both, then settled, with the output multiplied for some models.
            (Provider::Bedrock, sonnet, 150, 140),
            (Provider::Bedrock, "/model/amazon.nova-lite-v1:0/invoke", 150, 100),
            (Provider::Mistral, chat, 150, 100),
            (Provider::Groq, "/openai/v1/chat/completions", 150, 100),
            (Provider::Generic, chat, 150, 100),
        ] {
            let found = charged(provider, path, body, 200, Class::Success);
            assert_eq!(found, (reserved, Some(settled)), "{provider} {path}");
        }
        let path = "/v1beta/models/m:generateContent";
        let reserved = charge(Provider::Gemini, path, body, &TokenRatio::default());
        let settlement = Settlement::of(&Provider::Gemini.table().charge, path, 200, Class::Success);
        let usage = Usage { input_tokens: 90, output_tokens: 10, ..Usage::default() };
        let used = settlement.used(&reserved, &reserved, Some(usage), Class::Success);
        assert_eq!(used.map(|cost| cost.get(&Dimension::Tokens)), Some(100), "of a client's limit both");
        let reserved = charge(Provider::Anthropic, "/v1/messages", body, &TokenRatio::default());
        let settlement = Settlement::of(&Provider::Anthropic.table().charge, "/v1/messages", 200, Class::Success);
        let usage = Usage { input_tokens: 7, uncounted_tokens: 200_000, output_tokens: 10, ..Usage::default() };
        let used = settlement.used(&reserved, &reserved, Some(usage), Class::Success).expect("it told all");
        let counted = [Dimension::Tokens, Dimension::InputTokens].map(|dimension| used.get(&dimension));
        assert_eq!(counted, [200_017, 200_007], "of a client's limit what the cache held, too");
        let long = charged(Provider::OpenAi, chat, br#"{"max_tokens":4000,"p":"x"}"#, 200, Class::Success);
        assert_eq!(long, (4_000, Some(4_000)), "the larger of the two");
        for provider in [Provider::OpenAi, Provider::Azure, Provider::Gemini, Provider::Anthropic] {
            let (_, settled) = charged(provider, chat, body, 429, Class::Throttled);
            assert_eq!(settled, None, "{provider}: a refused call counts as reserved");
        }
        for (status, class, used) in [
            (400, Class::Invalid, Some(0)),
            (429, Class::Throttled, Some(0)),
            (503, Class::Overloaded, Some(0)),
            (500, Class::Transient, None),
            (504, Class::Overloaded, None),
            (200, Class::Filtered, Some(100)),
        ] {
            let reserved = charge(Provider::OpenAi, chat, body, &TokenRatio::default());
            let settlement = Settlement::of(&Provider::OpenAi.table().charge, chat, status, class);
            let found = settlement.used(&reserved, &reserved, None, class);
            assert_eq!(
                found.as_ref().map(|cost| cost.get(&Dimension::Tokens)),
                used,
                "of a client's limit: {status} {class:?}"
            );
            assert!(found.is_none_or(|cost| cost.get(&Dimension::Requests) == 1), "it was a call");
        }
    }

    #[test]
    fn free_answers_cost_nothing_but_the_call() {
        let requests = |provider: Provider, status, class| {
            let reserved = charge(provider, "/x", b"{}", &TokenRatio::default());
            let settlement = Settlement::of(&provider.table().charge, "/x", status, class);
            let cost = reserved.settled(&settlement.cost(&reserved, None, class)?);
            let units = provider.table().charge.units.map_or(0, |units| cost.get(&units.dimension()));
            Some((cost.get(&Dimension::Requests), units))
        };
        assert_eq!(
            requests(Provider::DynamoDb, 400, Class::Throttled),
            Some((1, 0)),
            "throttled calls consume nothing"
        );
        assert_eq!(requests(Provider::DynamoDb, 400, Class::Invalid), None);
        assert_eq!(requests(Provider::GitHub, 304, Class::Success), Some((0, 0)), "as if it had not been sent");
        assert_eq!(requests(Provider::GitHub, 200, Class::Success), None);
        assert_eq!(requests(Provider::Shopify, 200, Class::Throttled), Some((1, 0)));
    }

    #[test]
    fn units_are_reserved_and_settled_by_what_was_charged() {
        let units = |provider: Provider, path, body: &[u8], ratio: &TokenRatio| {
            let dimension = provider.table().charge.units.expect("units").dimension();
            charge(provider, path, body, ratio).get(&dimension)
        };
        let none = TokenRatio::default();
        assert_eq!(units(Provider::DynamoDb, "/", &[b' '; 2_500], &none), 3);
        assert_eq!(units(Provider::GitHub, "/repos/a/b/issues", b"", &none), 1);
        assert_eq!(units(Provider::GitHub, "/repos/a/b/issues", b"{}", &none), 5);
        assert_eq!(units(Provider::GitHub, "/graphql", br#"{"query":"query { viewer { login } }"}"#, &none), 1);
        assert_eq!(units(Provider::GitHub, "/graphql", br#"{"query":"mutation { x }"}"#, &none), 5);
        assert_eq!(units(Provider::Shopify, "/graphql.json", b"{}", &none), 1);
        let mut seen = none;
        seen.settle(b"{}", &Usage { units: 46, ..Usage::default() });
        assert_eq!(units(Provider::Shopify, "/graphql.json", b"{}", &seen), 46);
        let reserved = charge(Provider::Shopify, "/graphql.json", b"{}", &seen);
        let settlement = Settlement::of(&Provider::Shopify.table().charge, "", 200, Class::Success);
        let usage = Usage { units: 12, ..Usage::default() };
        let cost = settlement.cost(&reserved, Some(usage), Class::Success).expect("settled");
        assert_eq!(cost.get(&Units::Cost.dimension()), 12);
        assert_eq!(cost.get(&Dimension::Requests), 1);
    }
}
