//! What a job that has begun tells of the calls that it has left.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline::clock;
use paceline_config::Upstream;
use paceline_core::{Cost, Dimension};
use paceline_http::TokenRatios;
use paceline_providers::{PromptSize, PromptTokens, TokenRatio, Usage};
use paceline_store::{Reader, Rows, State, Tally};

use super::Plan;
use crate::lines::format::Format;
use crate::lines::input::{Input, Span};
use crate::progress::report::ReportError;

/// The tokens of a prompt of a call that reserves so much: as expected, and as many as it can have by what is known. Whether it
/// holds more than text, such as pictures, so that only its answer tells how many it has.
pub(super) fn prompt_tokens(ratio: &TokenRatio, charge: &Cost, body: &[u8]) -> (u64, u64, bool) {
    let charged = charge.get(&Dimension::InputTokens);
    if charged == 0 {
        return (0, 0, false);
    }
    let PromptTokens { expected, most, greatest, .. } = ratio.budgeted(PromptSize::of(body));
    let expected = charged.min(greatest.unwrap_or(u64::MAX)).max(expected);
    (expected, most.max(expected), greatest.is_none())
}

/// What a prompt is expected to have more where its request sets a bound on its answer: the body is what is counted.
pub(super) fn tokens_of_bound(ratio: &TokenRatio, body: &[u8]) -> u64 {
    const BOUND: &[u8] = br#""max_completion_tokens":100000,"#;
    let tokens = |body: &[u8]| ratio.budgeted(PromptSize::of(body)).expected;
    let bounded = [&body[..1.min(body.len())], BOUND, &body[1.min(body.len())..]].concat();
    tokens(&bounded).saturating_sub(tokens(body))
}

/// Answers that were longer than their requests allow: then bounds tell little of how long others will be.
#[derive(Default)]
pub(super) struct Beyond {
    pub(super) answers: u64,
    pub(super) longest: u64,
    /// What all answers of a scope had that has such ones: how many, and their tokens.
    scopes: BTreeMap<Arc<str>, (u64, u64)>,
}

impl Beyond {
    /// The tokens that an answer of that scope has on average, rounded up; 0 where all kept to their bounds.
    pub(super) fn mean(&self, scope: &str) -> u64 {
        self.scopes.get(scope).map_or(0, |(answers, tokens)| tokens.div_ceil(*answers))
    }
}

impl Plan {
    /// A line that is left asks for that model.
    pub(super) fn asks_for(&mut self, model: &str) {
        if !self.models.contains(model) {
            self.models.insert(model.to_owned());
            self.asked.insert(model.to_owned());
        }
    }

    /// What the answers that the job has told of its prompts, by scope: of items that were answered at their first call.
    pub(super) fn learn(
        &mut self,
        reader: &Reader,
        input: &Input,
        format: &Format,
        upstream: &Upstream,
    ) -> Result<TokenRatios, ReportError> {
        let (ratios, mut answered) = (TokenRatios::default(), BTreeMap::<_, (u64, u64, u64)>::new());
        reader.report(clock::wall(), Rows::All, |row| -> Result<(), ReportError> {
            let Tally { tokens_in, tokens_out, .. } = row.tally;
            if row.state == State::Succeeded && row.tally.sends() == 1 && tokens_in > 0 {
                let bytes = input.read(Span { offset: row.src_off, len: row.src_len })?;
                let line = format.read(&bytes, row.line).map_err(std::io::Error::other)?;
                let usage = Usage { input_tokens: tokens_in, output_tokens: tokens_out, ..Usage::default() };
                if let Some(model) = line.billed_model().filter(|model| !self.asked.contains(&**model)) {
                    self.asked.insert(model.into_owned());
                }
                ratios.settle(Arc::clone(&row.scope), line.body.as_bytes(), &usage);
                self.answers += 1;
                let bound = upstream.dialect.longest_answer(&line.url, line.body.as_bytes());
                let is_beyond = bound.is_some_and(|bound| bound > 0 && tokens_out > bound);
                let (answers, tokens, beyond) = answered.entry(Arc::clone(&row.scope)).or_default();
                (*answers, *tokens, *beyond) = (*answers + 1, *tokens + tokens_out, *beyond + u64::from(is_beyond));
                if is_beyond {
                    self.beyond.longest = self.beyond.longest.max(tokens_out);
                }
            }
            Ok(())
        })?;
        self.beyond.answers = answered.values().map(|(.., beyond)| beyond).sum();
        let broken = answered.into_iter().filter(|(_, (.., beyond))| *beyond > 0);
        self.beyond.scopes = broken.map(|(scope, (answers, tokens, _))| (scope, (answers, tokens))).collect();
        Ok(ratios)
    }
}
