//! Why a budget was exceeded: calls that used more than was reserved for them.

use super::{BudgetKind, Sum};
use crate::text;

/// Prompts and answers that had more tokens than reserved for them.
#[derive(Debug, Default)]
pub(super) struct Longer {
    prompts: Beyond,
    answers: Beyond,
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
    /// Takes a call: the tokens that its prompt and its answer used and had reserved, and what came on top of each.
    pub(super) fn add(&mut self, prompt: [u64; 2], more_in: &Sum, answer: [u64; 2], more_out: &Sum) {
        self.prompts.add(prompt, more_in);
        self.answers.add(answer, more_out);
    }

    /// What used more than was reserved for it.
    pub(super) fn words(&self, purse: BudgetKind) -> String {
        let [prompts, answers] = [self.prompts, self.answers].map(|beyond| beyond.excess.of(purse));
        let is_cause = |excess: u64| excess > (prompts + answers) / SMALL;
        let figures = |Beyond { used, reserved, .. }: Beyond| {
            format!("({} tokens where {} were reserved)", text::count(used), text::count(reserved))
        };
        let prompt = format!("prompts that had more tokens than estimated {}", figures(self.prompts));
        let answer = format!("answers that came longer than reserved for them {}", figures(self.answers));
        match (is_cause(prompts), is_cause(answers)) {
            (true, true) => format!("{prompt} and {answer}"),
            (true, false) => prompt,
            (false, true) => answer,
            (false, false) => "calls that used more than they had reserved".to_owned(),
        }
    }
}
