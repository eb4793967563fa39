//! The tokens of a prompt that a budget has to find room for, by what answers have shown.

use super::super::prompt::Prompt;
use super::{AT_FIRST, Mean, TokenRatio};

/// The tokens of a prompt that a budget has to find room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// As answers to prompts about as long have shown, or by its script where its texts are much longer than these.
    pub expected: u64,
    /// The same, where each of its texts is as dense as that of the densest prompt about as long as the longest: without so many
    /// left no call should leave.
    pub likely: u64,
    /// What should be left while other calls are under way: one token for each byte, as no tokenizer makes more of a text, while
    /// no prompt about as long or longer was answered; then as many as the densest of all had, but no fewer than its script says.
    pub most: u64,
    /// It never has more: a token for each byte, and what servers added at most; none where a part of it is no text.
    pub greatest: Option<u64>,
}

impl PromptTokens {
    /// No fewer than in another estimate of the same prompt.
    #[must_use]
    pub fn at_least(self, other: Self) -> Self {
        Self {
            expected: self.expected.max(other.expected),
            likely: self.likely.max(other.likely),
            most: self.most.max(other.most),
            ..self
        }
    }
}

/// What is read of the body of a request to estimate its prompt, now or once more answers have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptSize(Prompt);

impl PromptSize {
    /// That of a body.
    pub fn of(body: &[u8]) -> Self {
        Self(Prompt::of(body))
    }
}

/// What answers to prompts of text alone have shown of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Texts {
    /// The guess for the texts of the longest of these prompts, as one was much longer than those before.
    longest: f64,
    /// The most tokens for each one of such a guess that a prompt about as long has shown.
    densest: f64,
    /// The fewest tokens that one of these prompts had; 0 before the first.
    fewest: u64,
    /// How many more than bytes one of them had at most: the server added them.
    added: u64,
}

/// A prompt with texts so many times as long as those of another is of another kind: a short one says little of its density.
const LONGER: f64 = 2.0;

/// The guess for the texts of a prompt: the form around them is a large part of a short one, and has hardly any tokens.
fn guess_of_texts(prompt: Prompt) -> f64 {
    prompt.of_texts as f64 * AT_FIRST
}

impl Texts {
    /// Learns from an answer to that prompt, which had so many tokens.
    pub(super) fn settle(&mut self, prompt: Prompt, tokens: u64) {
        self.added = self.added.max(tokens.saturating_sub(prompt.bytes));
        self.fewest = if self.fewest == 0 { tokens } else { self.fewest.min(tokens) };
        let texts = guess_of_texts(prompt);
        let density = (tokens as f64 / texts).clamp(1.0 / 16.0, 16.0);
        if texts > self.longest * LONGER {
            (self.longest, self.densest) = (texts, density);
        } else if texts * LONGER >= self.longest {
            self.densest = self.densest.max(density);
        }
    }
}

impl TokenRatio {
    /// The tokens of a prompt that a budget has to find room for.
    pub fn budgeted(&self, PromptSize(prompt): PromptSize) -> PromptTokens {
        let greatest = (prompt.parts == 0).then(|| prompt.bytes.saturating_add(self.texts.added));
        let texts = guess_of_texts(prompt);
        let is_known = texts <= self.texts.longest * LONGER;
        let expected = self.at_least(if is_known { 0.0 } else { 1.0 }, prompt);
        let dense = ((texts * self.texts.densest).ceil() as u64).saturating_add(self.of_parts(prompt));
        let likely = expected.max(dense).max(self.texts.fewest);
        let most = if is_known { None } else { greatest }.unwrap_or_else(|| self.at_densest(prompt)).max(likely);
        let [expected, likely, most] =
            [expected, likely, most].map(|tokens| greatest.map_or(tokens, |greatest| tokens.min(greatest)));
        PromptTokens { expected, likely, most, greatest }
    }

    /// The fewest that a prompt of text alone had: what the server adds to each is in them. 0 before the first answer.
    pub(crate) const fn fewest_tokens(&self) -> u64 {
        self.texts.fewest
    }

    /// The tokens to expect, where each one of the guess stands for so many at least.
    fn at_least(&self, least: f64, prompt: Prompt) -> u64 {
        let guessed = Mean { value: self.guessed.value.max(least), ..self.guessed };
        Self { guessed, ..*self }.expected_of(prompt).all
    }

    /// The same, where it stands for as many as the densest of the prompts had that were answered, and one at least.
    fn at_densest(&self, prompt: Prompt) -> u64 {
        let densest = Mean { value: self.guessed.value.max(self.densest), ..self.guessed };
        Self { guessed: densest, ..*self }.most_of(prompt)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Usage;
    use super::*;

    fn budgeted(ratio: &TokenRatio, body: &[u8]) -> PromptTokens {
        ratio.budgeted(PromptSize::of(body))
    }

    fn input(input_tokens: u64) -> Usage {
        Usage { input_tokens, output_tokens: 20, ..Usage::default() }
    }

    #[test]
    fn short_prompts_do_not_speak_for_one_that_is_much_longer() {
        let (short, long) = (vec![b'x'; 400], vec![b'x'; 40_000]);
        let mut ratio = TokenRatio::default();
        let found = |ratio: &TokenRatio, body: &[u8]| {
            let PromptTokens { expected, likely, most, greatest } = budgeted(ratio, body);
            assert_eq!(greatest, Some(body.len() as u64));
            [expected, likely, most]
        };
        assert_eq!(found(&ratio, &long), [10_000, 10_000, 40_000]);
        for tokens in [40, 36, 70, 36] {
            ratio.settle(&short, &input(tokens));
        }
        assert!(ratio.tokens(&long) < 5_000);
        assert_eq!(found(&ratio, &long), [10_000, 10_000, 40_000], "by its script, and it may be anything");
        assert_eq!(found(&ratio, &short), [ratio.tokens(&short), 70, 100], "as the densest of those about as long");
        ratio.settle(&long, &input(6_000));
        for _ in 0..20 {
            ratio.settle(&short, &input(36));
        }
        assert_eq!(found(&ratio, &long)[1..], [6_000, 10_000], "one as long has spoken");
        assert_eq!(found(&ratio, &short)[1..], [60, 100], "what is shorter is as dense");
    }

    fn chat(text: &str) -> Vec<u8> {
        json!({"model": "gpt-4o-mini", "max_tokens": 20, "messages": [{"role": "user", "content": text}]})
            .to_string()
            .into_bytes()
    }

    /// Two characters a token and seven around the prompt: the form is half of a short body, and nothing of a long one.
    #[test]
    fn short_dense_prompts_say_how_dense_the_texts_of_longer_ones_are() {
        let (dense, mut ratio) =
            (|chars: usize| (chat(&"f".repeat(chars)), chars as u64 / 2 + 7), TokenRatio::default());
        for chars in (0..360).map(|n| (50.0 * 1.015_f64.powi(n)) as usize) {
            let ((body, tokens), PromptTokens { likely, most, .. }) = (dense(chars), budgeted(&ratio, &dense(chars).0));
            if chars > 50 {
                assert!(likely >= tokens && most >= likely, "{likely} of {tokens} for {chars}");
            }
            assert!(likely <= tokens * 5 / 4, "{likely} of {tokens} for {chars}");
            ratio.settle(&body, &input(tokens));
        }
        let mut ratio = TokenRatio::default();
        let (short, tokens) = dense(104);
        ratio.settle(&short, &input(tokens));
        let (long, tokens) = dense(10_000);
        let found = budgeted(&ratio, &long);
        assert!(found.expected < tokens && found.likely >= tokens && found.likely < tokens * 5 / 4, "{found:?}");
        assert_eq!(found.most, long.len() as u64, "English before may be followed by what is dense");
    }

    /// Anthropic counts what its cache was read for against no limit, and bills it.
    #[test]
    fn a_budget_finds_room_for_what_a_cache_was_read_for() {
        let (body, mut ratio) = (vec![b'x'; 8_000], TokenRatio::default());
        for _ in 0..20 {
            ratio.settle(&body, &Usage { uncounted_tokens: 2_500, ..input(20) });
        }
        assert!(ratio.tokens(&body) < 200, "a limit counts little");
        assert_eq!(budgeted(&ratio, &body).likely, 2_520);
    }

    /// Line 1 has 60,000 characters, and line 2 a few.
    #[test]
    fn no_prompt_has_more_tokens_than_bytes_and_what_its_server_adds() {
        let (long, short) = (chat(&"word ".repeat(12_000)), chat(&"word ".repeat(28)));
        let mut ratio = TokenRatio::default();
        ratio.settle(&long, &input(15_007));
        let bytes = short.len() as u64;
        assert_eq!(
            budgeted(&ratio, &short),
            PromptTokens { expected: 56, likely: bytes, most: bytes, greatest: Some(bytes) }
        );
        ratio.settle(&short, &input(42));
        assert!(budgeted(&ratio, &short).likely < 60);
        // A prompt of the server's own.
        ratio.settle(&short, &input(1_000));
        assert_eq!(budgeted(&ratio, &short).greatest, Some(1_000));
        assert!(budgeted(&ratio, &chat("word")).likely >= 42, "none had fewer");
        assert_eq!(budgeted(&ratio, br#"{"type":"image_url","image_url":{"url":"https://x/a.png"}}"#).greatest, None);
    }
}
