//! What a dry run prints for people.

use std::fmt::Write as _;
use std::time::Duration;

use paceline_config::{Money, Upstream};
use paceline_providers::table::Scope;

use super::Plan;
use crate::budget;
use crate::job::holds;
use crate::progress::oracle;
use crate::run::kept;
use crate::run_args::RunArgs;
use crate::stops::alike::Kind;
use crate::{text, upstream};

/// Scopes that are shown one by one.
const SHOWN: usize = 10;

/// How tokens in are estimated before an answer has reported any.
const GUESS: &str =
    "tokens in are estimated: one for each 4 letters, one for each Chinese character; the first answers tell more";

/// What has to be left of the budgets.
#[derive(Clone, Copy)]
pub(super) struct Needed {
    pub(super) tokens: u64,
    pub(super) cost: Option<Money>,
}

/// Where all calls go, also where the user named no upstream; nothing where each line says so.
fn goes_to(upstream: &Upstream) -> String {
    let address = upstream.base_url.as_deref().filter(|_| upstream.dialect.scope() != Scope::Host);
    address.map_or_else(String::new, |url| format!("; calls go to {} ({})", text::printable(url), upstream.name))
}

impl Plan {
    pub(super) fn text(&self, args: &RunArgs, upstream: &Upstream) -> String {
        let pending = self.pending();
        let mut text = format!("{}: {}", args.input().display(), text::counted(self.items, "item"));
        if pending < self.items {
            let ended = self.items - pending - self.left_out;
            text += &format!(", {} ended, {} to do", text::count(ended), text::count(pending));
        }
        if self.left_out > 0 {
            text += &format!(", {} of other hosts", text::count(self.left_out));
        }
        text.push('\n');
        let again = self.again();
        let mut line = |content: String| writeln!(text, "  {content}").expect("a string takes everything");
        again.into_iter().for_each(&mut line);
        self.largest_scopes().into_iter().for_each(&mut line);
        if pending > 0 && self.tokens().0 > 0 {
            line(match self.answers {
                0 => GUESS.to_owned(),
                answers => format!("tokens in are estimated, by {} of this job", text::counted(answers, "answer")),
            });
        }
        // A sum that is told can be a budget: it has room for what it is told of.
        if let Some(cost) = self.cost.map(Money::rounded_up) {
            line(match (self.unbounded, self.tokens().1) {
                (0, _) if self.untold > 0 => format!("about {cost} at the configured prices, as far as requests tell"),
                (0, _) if self.others_answer() => {
                    format!("about {cost} at the configured prices, if the models answer that are asked for")
                }
                (0, _) => format!("at most about {cost} at the configured prices, with {}", self.as_long()),
                (_, 0) => format!("at least {cost} at the configured prices, for the prompts alone"),
                _ => format!("about {cost} at the configured prices, as far as requests set a bound"),
            });
            let cached = "with each prompt that is to be kept (cache_control) written into the cache: what is read from it costs less";
            if self.writes {
                line(cached.to_owned());
            }
            let says_more = |so_far: &Money| self.unbounded > 0 || self.others_answer() || *so_far <= cost;
            let so_far = self.as_so_far.filter(says_more);
            so_far.into_iter().for_each(|so_far| line(format!("as answers so far cost: about {so_far}")));
        }
        if !upstream.prices.is_empty() {
            line(kept::describe_prices(&upstream.prices));
        }
        let models = || self.models.iter().map(|model| &**model);
        budget::one_price(&upstream.prices, models()).into_iter().for_each(&mut line);
        budget::unpriced(&upstream.prices, models()).into_iter().for_each(&mut line);
        self.unbounded().into_iter().for_each(&mut line);
        self.untold().into_iter().for_each(&mut line);
        if let Some((first, why)) = &self.too_large.first {
            let items = text::counted(self.too_large.items, "item");
            let [line_number, cost, limit] = [*first, why.cost, why.limit].map(text::count);
            line(format!(
                "{items} can never start under a limit of {limit} {}: the first, in line {line_number}, counts as {cost}",
                why.dimension
            ));
        }
        line(self.time(upstream));
        self.held().into_iter().for_each(&mut line);
        self.bounds(args).into_iter().for_each(&mut line);
        self.budget().into_iter().for_each(&mut line);
        if self.unread {
            line("the input was not read to its end: there may be more items".to_owned());
        }
        if self.done_unknown {
            line("answers that --done would take over are not counted".to_owned());
        }
        line(format!("nothing was sent{}", goes_to(upstream)));
        text
    }

    /// Which of the items that failed are sent again.
    fn again(&self) -> Option<String> {
        let all: u64 = self.again.values().sum();
        let mut by_status: Vec<_> = self.again.iter().map(|(kind, items)| (kind, *items)).collect();
        by_status.sort_by_key(|(_, items)| std::cmp::Reverse(*items));
        let with = |(kind, items): &(&Kind, u64)| match kind {
            (Some(status), _) => format!("{} with status {status}", text::count(*items)),
            (None, Some(code)) => format!("{} with {}", text::count(*items), text::printable(code)),
            (None, None) => format!("{} without an answer", text::count(*items)),
        };
        let named: Vec<String> = by_status.iter().take(SHOWN).map(with).collect();
        let named = if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) };
        let failed = text::counted(all + self.stay_failed, "item");
        let are = if all == 1 { "is" } else { "are" };
        self.retry_failed.then(|| format!("{} of {failed} that failed {are} sent again{named}", text::count(all)))
    }

    /// How long answers are taken to be.
    const fn as_long(&self) -> &'static str {
        match (self.beyond.answers, self.others_answer()) {
            (0, false) => "each answer as long as its bound",
            (0, true) => "each answer as long as its bound and of the dearest model that has answered",
            (_, false) => "answers as long as so far",
            (_, true) => "answers as long as so far and of the dearest model that has answered",
        }
    }

    /// The items that set no bound on their answers, and what follows.
    fn unbounded(&self) -> Vec<String> {
        if self.unbounded == 0 {
            return Vec::new();
        }
        let items = text::counted(self.unbounded, "item");
        let set = if self.unbounded == 1 {
            "sets no bound on its answer, which comes"
        } else {
            "set no bound on their answers, which come"
        };
        let so_far = match self.unbounded_tokens {
            0 => String::new(),
            tokens => format!(" (about {} tokens, if as long as so far)", text::count(tokens)),
        };
        let doubt = if self.budget_is_enough().is_none() { ": this budget may not be enough" } else { "" };
        let told = format!("{items} {set} on top{so_far}{doubt}");
        [told].into_iter().chain(self.bound_that_fits()).collect()
    }

    /// The items of which answers alone tell what they cost.
    fn untold(&self) -> Option<String> {
        let items = text::counted(self.untold, "item");
        let holds = if self.untold == 1 { "has or asks for" } else { "have or ask for" };
        (self.untold > 0).then(|| {
            format!(
                "{items} {holds} more than text, such as pictures, sound or files, or what a tool finds: only the answers tell what that \
                 costs"
            )
        })
    }

    /// What is used of the budgets, and whether they are enough.
    fn budget(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.has_budget() {
            let used = self.used.describe().collect::<Vec<_>>().join(", ");
            let about = if self.under_way > 0 { "about " } else { "" };
            lines.push(format!("budget of the job, over all its runs: {about}{used}"));
        }
        if self.under_way > 0 {
            let calls = text::counted(self.under_way, "call");
            lines.push(format!("{calls} left without a recorded answer; each counts with the tokens that it reserved"));
        }
        let [missing, of_dearest] = [self.needed(), self.needed_by_dearest()].map(|needed| self.missing(needed));
        lines.extend(of_dearest.iter().cloned());
        if self.has_budget() && self.pending() > 0 && missing.is_empty() && self.unbounded == 0 {
            let doubt = match self.budget_is_enough() {
                Some(true) => "this budget is enough for one call for each item",
                None if !of_dearest.is_empty() => {
                    "this budget is enough for one call for each item only if the models answer that are asked for"
                }
                None if self.beyond.answers > 0 => {
                    "this budget is enough for one call for each item if answers are no longer than so far"
                }
                None if self.untold > 0 => {
                    "it is not known whether this budget is enough for one call for each item: see what has or asks for more than text"
                }
                _ => "this budget is enough for one call for each item if the prompts have as many tokens as estimated",
            };
            lines.push(format!("{doubt}; retries cost extra"));
        }
        if self.beyond.answers > 0 {
            let [beyond, all, longest] = [self.beyond.answers, self.answers, self.beyond.longest].map(text::count);
            lines.push(format!(
                "{beyond} of {all} answers were longer than their requests allow (the longest {longest} tokens): bounds protect no budget here"
            ));
        } else if self.has_budget() && self.tokens().1 > 0 {
            lines.push(
                "the budget holds only if the server keeps to the bounds that requests set on their answers (such as \
                 --max-output-tokens, or max_tokens), and if prompts under way have no more tokens for a byte than those before them"
                    .to_owned(),
            );
        }
        lines
    }

    /// What the budgets of the job do not cover of that, as far as requests set a bound.
    pub(super) fn missing(&self, needed: Needed) -> Vec<String> {
        let tokens = self.used.tokens.and_then(|(used, of)| {
            let left = of.saturating_sub(used);
            let [needed_text, left_text] = [needed.tokens, left].map(text::count);
            let enough = format!("--budget-tokens {}", used.saturating_add(needed.tokens));
            (needed.tokens > left).then(|| (enough, format!("{needed_text} tokens"), left_text))
        });
        let cost = self.used.cost.zip(needed.cost).and_then(|((used, of), needed)| {
            let left = Money::from_units(of?.units().saturating_sub(used.units()));
            let all = Money::from_units(used.units().saturating_add(needed.units())).rounded_up();
            (needed > left).then(|| (format!("--budget-cost {all}"), needed.rounded_up().to_string(), left.to_string()))
        });
        let words = |(enough, needed, left): (String, _, _)| {
            let flag = enough.split(' ').next().unwrap_or_default();
            match (self.unbounded, self.tokens().1) {
                (0, _) => format!(
                    "{flag} may be too small: about {needed} can be needed, with {}, and {left} are left; {enough} has room for that",
                    self.as_long()
                ),
                (_, 0) => format!(
                    "{flag} is too small: the prompts alone take about {needed}, and {left} are left; answers come on top: take more \
                     than {enough}"
                ),
                _ => format!(
                    "{flag} is too small: prompts and the answers that have a bound take about {needed}, and {left} are left; other \
                     answers come on top: take more than {enough}"
                ),
            }
        };
        [tokens, cost].into_iter().flatten().map(words).collect()
    }

    /// The bound on answers with which the budgets would be enough, where one can be said.
    fn bound_that_fits(&self) -> Option<String> {
        let needed = self.needed();
        let more = self.tokens_of_bounds;
        let tokens = self.used.tokens.map(|(used, of)| of.saturating_sub(used).saturating_sub(needed.tokens + more));
        let cost = self.used.cost.zip(needed.cost).and_then(|((used, of), needed)| {
            let price = self.used.price?;
            let needed = needed.and(price.of(more, 0));
            let left = of?.units().saturating_sub(used.units()).saturating_sub(needed.units());
            let of_million = price.of(0, 1_000_000).units();
            u64::try_from(u128::from(left) * 1_000_000 / u128::from(of_million.max(1))).ok()
        });
        let each = tokens.into_iter().chain(cost).min()? / self.unbounded.max(1);
        // No answer has a million tokens: such a price is none.
        (1..1_000_000).contains(&each).then(|| {
            format!("with --max-output-tokens {each} or less this budget would be enough for one call for each item, as estimated")
        })
    }

    fn bounds(&self, args: &RunArgs) -> Vec<String> {
        let mut bounds = Vec::new();
        bounds.extend(args.max_items.map(|items| format!("this run begins at most {}", text::counted(items, "item"))));
        bounds.extend(args.max_tokens.map(|tokens| match self.smallest.filter(|smallest| *smallest > tokens) {
            Some(smallest) => format!(
                "--max-tokens {tokens} is for all calls of a run, and the smallest of them may use {}: nothing would be sent \
                 (--max-output-tokens bounds each answer)",
                text::counted(smallest, "token")
            ),
            None => format!("this run uses at most {}", text::counted(tokens, "token")),
        }));
        bounds.extend(args.max_duration.map(|time| format!("this run sends nothing after {}", text::duration(time))));
        bounds
    }

    /// Of what is to do, what a pause keeps back.
    fn held(&self) -> Option<String> {
        let (until, are) = (self.held_until?, if self.held == 1 { "is" } else { "are" });
        let held = text::counted(self.held, "item");
        (self.held > 0)
            .then(|| format!("{held} of these {are} held, by a pause that ends {} at the latest", text::end(until)))
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

/// None where nothing has tokens, such as calls for pages.
fn tokens(tokens_in: u64, tokens_out: u64) -> Option<String> {
    let out = if tokens_out > 0 {
        format!(", up to {} out where requests set a bound", text::count(tokens_out))
    } else {
        String::new()
    };
    (tokens_in + tokens_out > 0).then(|| format!("about {} tokens in{out}", text::count(tokens_in)))
}
