//! Why a budget was exceeded: calls that used more than was reserved for them.

use paceline_config::Money;

use super::{BudgetKind, Sum};
use crate::text;

/// Prompts and answers that had more tokens than reserved for them, and what a cache made of the price of prompts.
#[derive(Debug, Default)]
pub(super) struct Longer {
    prompts: Beyond,
    answers: Beyond,
    /// Money that writes into a provider's cache cost more than was reserved for their prompts.
    written: Sum,
    /// Money that the models which answered cost more than those that were reserved for.
    dearer: Sum,
}

/// Tokens that were used, and that had been reserved for the same, and what came on top.
#[derive(Clone, Copy, Debug, Default)]
struct Beyond {
    used: u64,
    reserved: u64,
    excess: Sum,
}

impl Beyond {
    fn add(&mut self, [used, reserved]: [u64; 2], excess: &Sum) {
        if used > reserved {
            self.used = self.used.saturating_add(used);
            self.reserved = self.reserved.saturating_add(reserved);
            self.excess.combine(excess, u64::saturating_add);
        }
    }
}

/// Less than this share of what came on top names no cause: a thirtieth.
const SMALL: u64 = 30;

impl Longer {
    /// Takes a call: the tokens that its prompt and its answer used and had reserved, what came on top of each, and what the
    /// cache and another model cost on top.
    pub(super) fn add(&mut self, prompt: [u64; 2], more_in: &Sum, answer: [u64; 2], more_out: &Sum, money: [Money; 2]) {
        self.prompts.add(prompt, more_in);
        self.answers.add(answer, more_out);
        let [written, dearer] = money.map(|cost| Sum { cost, ..Sum::default() });
        self.written.combine(&written, u64::saturating_add);
        self.dearer.combine(&dearer, u64::saturating_add);
    }

    /// What used more than was reserved for it, the largest part first; where it is several, each with its share.
    pub(super) fn describe(&self, purse: BudgetKind) -> String {
        let figures = |what: &str, Beyond { used, reserved, .. }: Beyond| {
            format!("{what} ({} tokens where {} were reserved)", text::count(used), text::count(reserved))
        };
        let mut causes = [
            (self.prompts.excess.of(purse), figures("prompts that had more tokens than estimated", self.prompts)),
            (self.answers.excess.of(purse), figures("answers that came longer than reserved for them", self.answers)),
            (self.written.of(purse), "writes into the provider's cache, which cost more than input".to_owned()),
            (self.dearer.of(purse), "answers of a dearer model than the one that was asked for".to_owned()),
        ];
        let all: u64 = causes.iter().map(|(excess, _)| excess).sum();
        causes.sort_by_key(|(excess, _)| std::cmp::Reverse(*excess));
        let named = || causes.iter().filter(|(excess, _)| *excess > all / SMALL);
        let share = |excess: u64| excess.saturating_mul(100) / all.max(1);
        let words: Vec<_> = match named().count() {
            1 => named().map(|(_, words)| words.clone()).collect(),
            _ => named().map(|(excess, words)| format!("{words}, {} % of it", share(*excess))).collect(),
        };
        match words.split_last() {
            None => "calls that used more than they had reserved".to_owned(),
            Some((last, [])) => last.clone(),
            Some((last, first)) => format!("{} and {last}", first.join("; ")),
        }
    }
}
