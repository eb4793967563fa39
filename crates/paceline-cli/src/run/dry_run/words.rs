//! What a dry run prints for people.

use std::fmt::Write as _;
use std::time::Duration;

use paceline_config::{Money, Upstream};

use super::Plan;
use crate::run::args::RunArgs;
use crate::run::calls::budget;
use crate::run::job::holds;
use crate::run::kept;
use crate::run::progress::oracle;
use crate::{text, upstream};

/// Scopes that are shown one by one.
const SHOWN: usize = 10;

/// How tokens in are estimated before an answer has reported any.
const INPUT_ESTIMATE: &str = "tokens in are estimated: one for 4 characters of a request, its JSON and parameters included; short prompts use fewer";

impl Plan {
    pub(super) fn text(&self, args: &RunArgs, upstream: &Upstream) -> String {
        let pending = self.pending();
        let mut text = format!("{}: {}", args.input.display(), text::counted(self.items, "item"));
        if pending < self.items {
            text += &format!(", {} ended, {} to do", text::count(self.items - pending), text::count(pending));
        }
        text.push('\n');
        let mut line = |content: String| writeln!(text, "  {content}").expect("a string takes everything");
        self.largest_scopes().into_iter().for_each(&mut line);
        if pending > 0 && self.tokens().0 > 0 {
            line(INPUT_ESTIMATE.to_owned());
        }
        if let Some(cost) = self.cost {
            line(match (self.unbounded, self.tokens().1) {
                (0, _) => format!("up to about {cost} at the configured prices, with each answer as long as its bound"),
                (_, 0) => format!("at least {cost} at the configured prices, for the prompts alone"),
                _ => format!("about {cost} at the configured prices, as far as requests set a bound"),
            });
        }
        if !upstream.prices.is_empty() {
            line(kept::words(&upstream.prices));
        }
        let models = || self.models.iter().map(|model| &**model);
        budget::one_price(&upstream.prices, models()).into_iter().for_each(&mut line);
        budget::unpriced(&upstream.prices, models()).into_iter().for_each(&mut line);
        if self.unbounded > 0 {
            let items = text::counted(self.unbounded, "item");
            let set = if self.unbounded == 1 {
                "sets no bound on its answer, which comes"
            } else {
                "set no bound on their answers, which come"
            };
            let doubt = if self.budget_is_enough().is_none() { ": this budget may not be enough" } else { "" };
            line(format!("{items} {set} on top{doubt}"));
        }
        if let Some((first, why)) = &self.too_large.first {
            let items = text::counted(self.too_large.items, "item");
            let [line_number, cost, limit] = [*first, why.cost, why.limit].map(text::count);
            line(format!(
                "{items} can never start under a limit of {limit} {}: the first, in line {line_number}, counts as {cost}",
                why.dimension
            ));
        }
        line(self.time(upstream));
        bounds(args).into_iter().for_each(&mut line);
        if self.has_budget() {
            let used = self.used.describe().collect::<Vec<_>>().join(", ");
            let most = if self.under_way > 0 { "up to " } else { "" };
            line(format!("budget of the job, over all its runs: {most}{used}"));
        }
        if self.under_way > 0 {
            let calls = text::counted(self.under_way, "call");
            line(format!("{calls} left without a recorded answer; each counts with the tokens that it reserved"));
        }
        self.missing().into_iter().for_each(&mut line);
        if self.has_budget() && pending > 0 && self.budget_is_enough() == Some(true) {
            line("this budget is enough for one call for each item; retries cost extra".to_owned());
        }
        if self.has_budget() && self.tokens().1 > 0 {
            line("the budget counts on the bounds that requests set on their answers (such as max_tokens)".to_owned());
        }
        if self.unread {
            line("the input was not read to its end: there may be more items".to_owned());
        }
        if self.done_unknown {
            line("answers that --done would take over are not counted".to_owned());
        }
        line("nothing was sent".to_owned());
        text
    }

    /// What the budgets of the job do not cover, as far as requests set a bound.
    pub(super) fn missing(&self) -> Vec<String> {
        let (tokens_in, tokens_out) = self.tokens();
        let tokens = self.used.tokens.and_then(|(used, of)| {
            let (needed, left) = (tokens_in + tokens_out, of.saturating_sub(used));
            let [needed_text, left_text] = [needed, left].map(text::count);
            (needed > left).then(|| ("--budget-tokens", format!("{needed_text} tokens"), left_text))
        });
        let cost = self.used.cost.zip(self.cost).and_then(|((used, of), needed)| {
            let left = Money::from_units(of?.units().saturating_sub(used.units()));
            (needed > left).then(|| ("--budget-cost", needed.to_string(), left.to_string()))
        });
        let words = |(flag, needed, left)| match self.unbounded {
            0 => format!(
                "{flag} may be too small: up to about {needed} can be needed, with each answer as long as its bound, and {left} are left"
            ),
            _ => format!(
                "{flag} is too small: about {needed} are needed as far as requests set a bound, and {left} are left"
            ),
        };
        [tokens, cost].into_iter().flatten().map(words).collect()
    }

    /// How long it takes, as far as limits are known.
    fn time(&self, upstream: &Upstream) -> String {
        let limits = upstream::limits(upstream);
        match (self.seconds, &upstream.via) {
            (Some(Duration::ZERO), _) => format!("nothing has to wait under {limits}"),
            (Some(least), _) => format!("takes at least {} under {limits}", text::duration(least)),
            (None, Some(via)) => {
                format!("the gateway {} keeps the limits: the run goes as fast as it permits", via.gateway)
            }
            (None, None) => format!("{}: the run goes as fast as the provider permits", no_limit(upstream)),
        }
    }

    /// What the scopes with the most items take, and all together.
    fn largest_scopes(&self) -> Vec<String> {
        let mut scopes: Vec<_> = self.scopes.iter().collect();
        scopes.sort_by_key(|(name, part)| (std::cmp::Reverse(part.items), *name));
        let mut lines = Vec::new();
        for (name, part) in scopes.iter().take(SHOWN) {
            let tokens =
                tokens(part.tokens_in, part.tokens_out).map(|tokens| format!(", {tokens}")).unwrap_or_default();
            lines.push(format!("{}: {}{tokens}", holds::name(name), text::counted(part.items, "item")));
        }
        let rest: u64 = scopes.iter().skip(SHOWN).map(|(_, part)| part.items).sum();
        if rest > 0 {
            let more = text::counted((scopes.len() - SHOWN) as u64, "more scope");
            lines.push(format!("and {more}: {}", text::counted(rest, "item")));
        }
        if scopes.len() > 1 {
            let (tokens_in, tokens_out) = self.tokens();
            lines.extend(tokens(tokens_in, tokens_out).map(|tokens| format!("together {tokens}")));
        }
        lines
    }
}

/// Why no configured limit acts on the items.
fn no_limit(upstream: &Upstream) -> String {
    let limited = upstream.pacer.tiers.iter().filter(|(_, limits)| !oracle::quotas(limits).is_empty());
    let tiers: Vec<_> = limited.map(|(name, _)| text::printable(name)).collect();
    if tiers.is_empty() {
        "no limit is configured (with one, such as --limit 500rpm, the least time is told here)".to_owned()
    } else {
        format!("no configured limit acts, for no item belongs to {}", tiers.join(", "))
    }
}

fn bounds(args: &RunArgs) -> Vec<String> {
    let mut bounds = Vec::new();
    bounds.extend(args.max_items.map(|items| format!("this run begins at most {}", text::counted(items, "item"))));
    bounds.extend(args.max_tokens.map(|tokens| format!("this run uses at most {}", text::counted(tokens, "token"))));
    bounds.extend(args.max_duration.map(|time| format!("this run sends nothing after {}", text::duration(time))));
    bounds
}

/// None where nothing has tokens, such as calls for pages.
fn tokens(tokens_in: u64, tokens_out: u64) -> Option<String> {
    let out = if tokens_out > 0 {
        format!(", up to {} out where requests set a bound", text::count(tokens_out))
    } else {
        String::new()
    };
    (tokens_in + tokens_out > 0).then(|| format!("about {} tokens in{out}", text::count(tokens_in)))
}
