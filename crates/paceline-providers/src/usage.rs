//! The usage that an answer reports, in tokens.

use super::outline::Asked;
use super::prompt::Prompt;

mod budgeted;

use self::budgeted::Texts;
pub use self::budgeted::{PromptSize, PromptTokens};

/// More tokens than any call can have: a larger number is no count, and sums of smaller ones never overflow.
pub(super) const MOST: u64 = 1 << 32;

/// Tokens of one call, in whatever dialect they were reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt that count against a limit, cache writes included.
    pub input_tokens: u64,
    /// Tokens of the prompt beside these: the provider read them from its cache, and counts them against no limit.
    pub uncounted_tokens: u64,
    /// How many hundredths of a token of input more, or fewer, the prompt costs than it has, because a provider's cache was read
    /// or written, or its bill has other tokens.
    pub cache_price: i64,
    /// Tokens that were written into the cache, where the answer does not say for how long: they count with the lesser price.
    pub unsplit_writes: u64,
    /// Tokens of the prompt that the provider read from its cache.
    pub cached_tokens: u64,
    /// What of `cache_price` is theirs: nothing where their price is not known here, so that they count with that of input.
    pub cached_price: i64,
    /// Tokens of the prompt that the provider wrote into its cache.
    pub written_tokens: u64,
    /// What of `cache_price` is theirs.
    pub written_price: i64,
    /// Tokens of the answer.
    pub output_tokens: u64,
    /// Units of the provider's own: capacity units, query points.
    pub units: u64,
    /// Only a total was reported: all of it is in `input_tokens`, or it was [divided](Self::divided) by an estimate.
    pub undivided: bool,
    /// The answer does not tell all tokens of the prompt, or not in numbers.
    pub unread_input: bool,
    /// The same of those of the answer.
    pub unread_output: bool,
}

impl Usage {
    /// That of a call which is not known: each token of its prompt may cost so many percent of the price of input, more than 100
    /// where it may be written into the provider's cache.
    pub fn reserved(input_tokens: u64, output_tokens: u64, percent: u32) -> Self {
        let more = input_tokens.saturating_mul(percent.saturating_sub(100).into());
        let more = more.min(u64::MAX >> 1).cast_signed();
        let written_tokens = if more > 0 { input_tokens } else { 0 };
        Self { input_tokens, output_tokens, cache_price: more, written_tokens, written_price: more, ..Self::default() }
    }

    /// All tokens of the prompt, also those that no limit counts.
    pub const fn prompt_tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.uncounted_tokens)
    }

    /// The same where its provider's limits are not asked: what the provider's cache held counts as input, too.
    #[must_use]
    pub const fn with_all_input(self) -> Self {
        Self { input_tokens: self.prompt_tokens(), uncounted_tokens: 0, ..self }
    }

    /// Whether it tells neither tokens nor units.
    pub(super) const fn is_nothing(&self) -> bool {
        self.total() == 0 && self.units == 0
    }

    /// Whether it tells tokens of a prompt, and none of an answer.
    pub(super) const fn lacks_output(&self) -> bool {
        self.output_tokens == 0 && self.total() > 0 && !self.undivided
    }

    /// So many tokens of input cost as much as the prompt, rounded up.
    pub const fn priced_input(&self) -> u64 {
        self.prompt_tokens().saturating_add_signed(-(-self.cache_price).div_euclid(100))
    }

    /// With a total divided, where nothing else was reported: by an estimate, and so that it is rather too dear. The answer has
    /// what is above the texts of the prompt, and no less than its own texts say, or than the `longest` one that its request
    /// allows where those are fewer; where that is 0, all is the prompt.
    #[must_use]
    pub fn divided(self, ratio: &TokenRatio, longest: Option<u64>, request: &[u8], answer: &[u8]) -> Self {
        if !self.undivided || longest == Some(0) {
            return Self { undivided: false, ..self };
        }
        let (total, prompt) = (self.total(), ratio.by_script(Prompt::of(request)));
        let least = ratio.by_script(Prompt::of(answer)).min(longest.unwrap_or(MOST));
        let output_tokens = total.saturating_sub(prompt).max(least).min(total);
        Self { input_tokens: total - output_tokens, output_tokens, ..self }
    }

    /// Both together.
    pub const fn total(self) -> u64 {
        self.prompt_tokens().saturating_add(self.output_tokens)
    }
}

/// Tokens of a prompt: at first a guess by its scripts, a quarter for an ASCII character, a half, one or two for others by their
/// length in UTF-8; then that guess times what answers to prompts of text alone have shown. Beside it the mean tokens of a part
/// that is no text, such as a picture, and the mean length of the answers. Keep one per model, because each has its own
/// tokenizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenRatio {
    /// Tokens for each one of the guess, by answers to prompts of text alone.
    guessed: Mean,
    /// The most of these that an answer has shown.
    densest: f64,
    /// What budgets know of them.
    texts: Texts,
    /// Tokens of a part that is no text.
    part: Mean,
    output_tokens: Mean,
    units: Mean,
}

/// The tokens that a prompt is expected to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpectedTokens {
    /// All of them.
    pub(super) all: u64,
    /// Those of them that its script or answers to other prompts speak for, and not the count of its characters: of these it has
    /// a quarter for each, or less where answers said so.
    pub(super) learnt: u64,
}

/// A mean in which the last values weigh at least [`LEAST_WEIGHT`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mean {
    count: u32,
    value: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count = self.count.saturating_add(1);
        self.value += (value - self.value) * (1.0 / f64::from(self.count)).max(LEAST_WEIGHT);
    }
}

impl Default for TokenRatio {
    /// The guess as it is, and nothing known about answers.
    fn default() -> Self {
        Self {
            guessed: Mean { count: 0, value: 1.0 },
            densest: 0.0,
            texts: Texts::default(),
            part: Mean { count: 0, value: PART_AT_FIRST },
            output_tokens: Mean::default(),
            units: Mean::default(),
        }
    }
}

/// Four characters a token.
const AT_FIRST: f64 = 0.25;

/// A picture has from 85 to 1,600 tokens, a page of a document up to 3,000.
const PART_AT_FIRST: f64 = 1_000.0;

/// The last answers weigh in with at least this share, so that a changed kind of text is learnt.
const LEAST_WEIGHT: f64 = 0.1;

impl TokenRatio {
    /// Tokens per ASCII character, between 1/64 and 4.
    pub const fn tokens_per_char(&self) -> f64 {
        self.guessed.value * AT_FIRST
    }

    /// The tokens to expect of an answer to a request that sets no bound, rounded up: the mean of those that came, 0 before
    /// the first.
    pub fn output_tokens(&self) -> u64 {
        self.output_tokens.value.ceil() as u64
    }

    /// The units of the provider's own to expect of a call, rounded up: the mean of those that were charged, 0 before the first.
    pub fn units(&self) -> u64 {
        self.units.value.ceil() as u64
    }

    /// The tokens to expect of the body of a request, rounded up: of its text, and of each part that is no text. What such parts
    /// had in other prompts changes nothing for one of text alone.
    pub fn tokens(&self, body: &[u8]) -> u64 {
        self.expected(body).all
    }

    /// The same, and how much of that only answers speak for.
    pub(super) fn expected(&self, body: &[u8]) -> ExpectedTokens {
        self.expected_of(Prompt::of(body))
    }

    /// The same of what a body holds.
    pub(super) fn expected_of(&self, prompt: Prompt) -> ExpectedTokens {
        let of_parts = self.of_parts(prompt);
        let (of_text, at_least) = (self.of_text(prompt), (prompt.characters as f64 * AT_FIRST).ceil() as u64);
        let all = of_text.saturating_add(of_parts);
        ExpectedTokens { all, learnt: all - of_text.min(at_least) }
    }

    /// The tokens that the body of an answer seems to have, rounded up: it is all text.
    pub fn answer_tokens(&self, body: &[u8]) -> u64 {
        self.of_text(Prompt::of(body))
    }

    /// The tokens of a body by the script of its texts and by the number of its other parts, whatever answers have shown of
    /// texts.
    fn by_script(&self, prompt: Prompt) -> u64 {
        prompt.of_texts.div_ceil(4).saturating_add(self.of_parts(prompt))
    }

    /// The tokens to expect of the parts of a body that are no text, rounded up.
    fn of_parts(&self, prompt: Prompt) -> u64 {
        (prompt.parts as f64 * self.part.value).ceil() as u64
    }

    /// The tokens to expect of the text of a body, rounded up.
    fn of_text(&self, prompt: Prompt) -> u64 {
        (prompt.quarters as f64 * AT_FIRST * self.guessed.value).ceil() as u64
    }

    /// The most tokens that a body can have: before the first answer to a prompt of its kind one for each byte, as no tokenizer
    /// makes more of a text; then as many as are expected, but no fewer than guessed: of short prompts the form around them is a
    /// large part, which has hardly any tokens.
    pub fn most_tokens(&self, body: &[u8]) -> u64 {
        self.most_of(Prompt::of(body))
    }

    fn most_of(&self, prompt: Prompt) -> u64 {
        let is_known = if prompt.parts == 0 { self.guessed.count > 0 } else { self.part.count > 0 };
        let guessed = Mean { value: self.guessed.value.max(1.0), ..self.guessed };
        let expected = Self { guessed, ..*self }.expected_of(prompt).all;
        if is_known { expected } else { expected.max(prompt.bytes) }
    }

    /// Learns from an answer: the request's body and the usage that was reported for it. The first answer replaces the
    /// guess, later ones are averaged. Of a prompt with parts that are no text all is theirs that its text is not expected to
    /// have.
    pub fn settle(&mut self, body: &[u8], usage: &Usage) {
        self.settle_as_asked(body, &Asked::default(), usage);
    }

    /// The same where its body was read already.
    pub fn settle_as_asked(&mut self, body: &[u8], asked: &Asked, usage: &Usage) {
        if usage.units > 0 {
            self.units.add(usage.units as f64);
        }
        let prompt = asked.prompt(body);
        if prompt.quarters == 0 || usage.prompt_tokens() == 0 {
            return;
        }
        if !usage.unread_output {
            self.output_tokens.add(usage.output_tokens as f64);
        }
        if usage.unread_input {
            return;
        }
        // What an estimate divided says nothing of prompts.
        if usage.undivided && usage.output_tokens > 0 {
            return;
        }
        if prompt.parts > 0 {
            let rest = usage.input_tokens.saturating_sub(self.of_text(prompt));
            self.part.add(rest as f64 / prompt.parts as f64);
            return;
        }
        let guess = prompt.quarters as f64 * AT_FIRST;
        let of_guess = |tokens: u64| (tokens as f64 / guess).clamp(1.0 / 16.0, 16.0);
        self.guessed.add(of_guess(usage.input_tokens));
        // What a cache was read for is billed, too, where no limit counts it.
        self.densest = self.densest.max(of_guess(usage.prompt_tokens()));
        self.texts.settle(prompt, usage.prompt_tokens());
    }
}

#[cfg(test)]
mod tests {
    use super::super::reported::{CachePercent, Reported};
    use super::*;
    use serde_json::json;

    #[test]
    fn a_total_alone_is_divided_and_nothing_else_is() {
        let divided_of = |longest, usage: serde_json::Value| {
            let ratio = TokenRatio::default();
            let reported = Reported::read(&usage).expect("usage").counted(false, CachePercent::default());
            let usage = reported.divided(&ratio, longest, &[b'x'; 120], &[b'x'; 400]);
            (usage.input_tokens, usage.output_tokens)
        };
        let divided = |usage| divided_of(Some(40), usage);
        assert_eq!(divided(json!({"total_tokens": 100})), (30, 70));
        assert_eq!(divided(json!({"total_tokens": 60})), (20, 40), "as long as it may be, by its length");
        assert_eq!(divided(json!({"total_tokens": 20})), (0, 20));
        assert_eq!(divided_of(None, json!({"total_tokens": 110})), (10, 100));
        let (text, ratio) =
            (r#"{"model":"m","messages":[{"role":"user","content":"sixteen letters."}]}"#, TokenRatio::default());
        let usage = Usage { input_tokens: 30, undivided: true, ..Usage::default() };
        let found = usage.divided(&ratio, Some(5), text.as_bytes(), br#"{"content":"four"}"#);
        assert_eq!((found.input_tokens, found.output_tokens), (4, 26), "the form around a text is none of it");
        let mut ratio = ratio;
        ratio.settle(text.as_bytes(), &found);
        assert_eq!((ratio.tokens(text.as_bytes()), ratio.output_tokens()), (18, 26), "nothing was told of the prompt");
        assert_eq!(divided_of(Some(0), json!({"total_tokens": 110})), (110, 0), "its answer has no tokens");
        assert_eq!(divided(json!({"prompt_tokens": 8, "total_tokens": 8})), (8, 0));
        assert_eq!(divided(json!({"input_tokens": 4, "output_tokens": 3})), (4, 3));
    }

    #[test]
    fn a_guess_by_the_script_until_answers_say_otherwise() {
        let input = |input_tokens| Usage { input_tokens, output_tokens: 7, ..Usage::default() };
        let body = "é".repeat(400).into_bytes();
        let mut ratio = TokenRatio::default();
        assert_eq!((ratio.tokens(&body), ratio.most_tokens(&body)), (200, 800), "one for each byte");
        assert_eq!(
            ratio.expected(&body),
            ExpectedTokens { all: 200, learnt: 100 },
            "a quarter is stated by the text itself"
        );
        ratio.settle(&body, &input(200));
        assert_eq!((ratio.tokens(&body), ratio.most_tokens(&body)), (200, 200));
        ratio.settle(&body, &input(0));
        ratio.settle(b"", &input(7));
        assert_eq!(ratio.tokens(&body), 200);
        for _ in 0..100 {
            ratio.settle(&body, &input(80));
        }
        assert_eq!(ratio.tokens(&body), 81, "80 and what rounding up leaves");
        assert_eq!(
            (ratio.most_tokens(&body), ratio.budgeted(PromptSize::of(&body)).most),
            (200, 200),
            "no fewer than guessed"
        );
        ratio.settle(&body, &input(300));
        assert_eq!(
            (ratio.most_tokens(&body), ratio.budgeted(PromptSize::of(&body)).most),
            (200, 300),
            "the densest had 300"
        );
        assert_eq!(TokenRatio::default().budgeted(PromptSize::of(&body)).most, 800, "nothing is known");
        ratio.settle(b"x", &input(u64::MAX));
        assert!(ratio.tokens_per_char() <= 4.0);
    }

    /// A tokenizer that makes a token of four letters or of one Chinese character: answers to the ones speak for the others.
    #[test]
    fn prompts_of_two_scripts_are_estimated_by_answers_to_either() {
        let (english, chinese) = ("word ".repeat(80).into_bytes(), "服务".repeat(800).into_bytes());
        let input = |input_tokens| Usage { input_tokens, output_tokens: 3, ..Usage::default() };
        let mut ratio = TokenRatio::default();
        for round in 0..40 {
            assert_eq!((ratio.tokens(&english), ratio.tokens(&chinese)), (100, 1_600), "after {round}");
            if round < 20 { ratio.settle(&english, &input(100)) } else { ratio.settle(&chinese, &input(1_600)) }
        }
    }

    /// A prompt of a vision app, of which the server says that it has 1,100 tokens.
    const PICTURE: &[u8] = br#"{"content":[{"type":"image_url","image_url":{"url":"https://x/a.png"}}]}"#;

    #[test]
    fn what_prompts_with_pictures_have_changes_nothing_for_prompts_of_text() {
        let text = "Summarise this text please. ".repeat(60).into_bytes();
        let input = |input_tokens| Usage { input_tokens, output_tokens: 12, ..Usage::default() };
        let mut ratio = TokenRatio::default();
        let before = ratio.tokens(&text);
        assert!((1_000..1_100).contains(&ratio.tokens(PICTURE)), "before the first answer");
        for _ in 0..20 {
            ratio.settle(PICTURE, &input(1_100));
        }
        assert_eq!(ratio.tokens(&text), before);
        assert_eq!(ratio.expected(&text), ExpectedTokens { all: before, learnt: 0 });
        assert!((1_095..=1_101).contains(&ratio.tokens(PICTURE)), "{}", ratio.tokens(PICTURE));
        let stated = ratio.expected(PICTURE);
        assert_eq!(stated.all - stated.learnt, PICTURE.len().div_ceil(4) as u64, "its own text");
        // Nor do long texts make pictures dear, or the other way round.
        for _ in 0..20 {
            ratio.settle(&text, &input(text.len() as u64));
        }
        assert_eq!(ratio.expected(&text), ExpectedTokens { all: 1_680, learnt: 1_680 - before });
        for _ in 0..50 {
            ratio.settle(PICTURE, &input(1_100));
        }
        assert!((1_095..=1_101).contains(&ratio.tokens(PICTURE)), "{}", ratio.tokens(PICTURE));
        assert_eq!(ratio.tokens(&text), 1_680);
        assert_eq!(ratio.output_tokens(), 12, "of both kinds");
    }

    #[test]
    fn a_prompt_of_another_kind_than_those_that_were_answered_may_have_a_token_for_each_byte() {
        let (text, input) = (&[b'x'; 4_000][..], Usage { input_tokens: 900, ..Usage::default() });
        let mut ratio = TokenRatio::default();
        ratio.settle(text, &input);
        assert_eq!((ratio.most_tokens(text), ratio.tokens(text)), (1_000, 900), "no fewer than guessed");
        assert_eq!(ratio.most_tokens(PICTURE), PICTURE.len().div_ceil(4) as u64 + 1_000);
        let long = [PICTURE, text].concat();
        assert_eq!(ratio.most_tokens(&long), long.len() as u64);
        ratio.settle(PICTURE, &input);
        let (most, expected) = (ratio.most_tokens(&long), ratio.tokens(&long));
        assert!((expected + 100..expected + 103).contains(&most), "a tenth more for its text: {most}, {expected}");
    }
}
