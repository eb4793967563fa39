//! What a job keeps from run to run: its budgets, its prices where a run knows none, and what `--extract` takes out of answers.

use std::path::Path;

use paceline_config::{Money, Prices, Upstream};
use paceline_store::{ModelUsage, Paths, Reader};

use crate::budget::{Budget, Limits};
use crate::exit::Failure;
use crate::job::job_config::JobConfig;
use crate::progress::extract;
use crate::run::begin::begun;
use crate::run_args::RunArgs;
use crate::text;

/// Of a table of prices no more are told.
const SHOWN: usize = 4;

/// Takes up what the job keeps, and what the flags say of it. The price of the command line stands above those of the
/// configuration, and a budget in money needs one. Tells which prices are in force.
///
/// # Errors
/// A budget in money without a price, and a file that `--extract` would destroy.
pub(super) fn take_up(args: &mut RunArgs, paths: &Paths, upstream: &mut Upstream) -> Result<(), Failure> {
    let journal = begun(args, paths);
    let kept = journal.and_then(JobConfig::of_journal);
    if let Some(kept) = &kept {
        keep_budgets(args, kept, upstream);
        keep_extract(args, paths, kept);
    }
    if let Some(price) = args.price {
        upstream.prices = with_others_of(price.into(), &upstream.prices);
    }
    if let Some(cost) = args.budgets().job_cost.filter(|_| upstream.prices.is_empty()) {
        return Err(Failure::refused(format!(
            "--budget-cost {cost} (from the command line): expected the price of tokens as well: --price in=2.50,out=10 (for a \
             million), or price under [upstream.{}] in paceline.toml",
            upstream.name
        )));
    }
    if args.pointer().is_some() {
        let is_ours = args.overwrite || kept.as_ref().is_some_and(JobConfig::has_extracted);
        extract::refuse_other_file(paths, is_ours)?;
    }
    tell_prices(args, upstream);
    if let Some((journal, kept)) = journal.zip(kept) {
        upstream.prices = std::mem::take(&mut upstream.prices).after(&kept.prices(), kept.upstream(), &upstream.name);
        tell_new_prices(journal, &kept, upstream);
    }
    Ok(())
}

/// A budget is one of the job: what an earlier run was given holds on until this one is given another. So does the price of
/// that run, where none is known now.
fn keep_budgets(args: &mut RunArgs, kept: &JobConfig, upstream: &mut Upstream) {
    let flags = args.keep_budgets(kept.budgets());
    if args.price.is_none() && upstream.prices.is_empty() {
        upstream.prices = with_others_of(kept.prices(), &upstream.prices);
    }
    for (flag, value) in flags {
        tracing::info!("the budget of an earlier run of this job still holds: {flag} {value} ({flag} none lifts it)");
    }
}

/// The same, with the prices of other upstreams as configured.
fn with_others_of(prices: Prices, configured: &Prices) -> Prices {
    let others = configured.of_others().map(|(name, price)| (name.to_owned(), price));
    prices.with_others(others)
}

/// What an earlier run took out of the answers, this one takes out of them too, lest the file of values lack the new ones.
fn keep_extract(args: &mut RunArgs, paths: &Paths, kept: &JobConfig) {
    if args.extract.is_some() {
        return;
    }
    args.extract = kept.extract().map(str::to_owned);
    if let Some(pointer) = args.pointer() {
        let path = extract::path(paths);
        tracing::info!(
            "an earlier run of this job wrote {}, and this one writes it too: --extract {pointer} (--extract none ends that)",
            path.display()
        );
    }
}

/// Tells the prices that costs are counted with, and which of them can hardly be meant.
fn tell_prices(args: &RunArgs, upstream: &Upstream) {
    if !upstream.prices.is_empty() && !args.dry_run {
        tracing::info!("{}", describe_prices(&upstream.prices));
    }
    let doubts = upstream.prices.iter().filter_map(|(_, price)| price.doubt().map(|doubt| (price, doubt)));
    doubts.take(1).for_each(|(price, doubt)| tracing::warn!("the price {price} is of a million tokens, and {doubt}"));
}

/// The prices in one line.
pub(super) fn describe_prices(prices: &Prices) -> String {
    let named = |(model, price): (&str, _)| match prices.is_one_for_all() {
        true => format!("{price}"),
        false => format!("{} {price}", text::printable(model)),
    };
    let all: Vec<_> = prices.iter().map(named).collect();
    let more = all.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!("; and {}", text::counted(more as u64, "more model")) } else { String::new() };
    format!("price of a million tokens: {}{more}", all[..all.len().min(SHOWN)].join("; "))
}

/// A price that changed values anew what the runs before have used, as far as it is known.
fn tell_new_prices(journal: &Path, kept: &JobConfig, upstream: &Upstream) {
    let (before, now) = (&kept.prices(), &upstream.prices);
    if before == now || before.is_empty() || now.is_empty() {
        return;
    }
    // Of a journal that cannot be read the run tells why, as it opens it.
    let used = Reader::open(journal).and_then(|reader| reader.spent()).unwrap_or_default();
    let used_now = kept.used_at(upstream, used.clone());
    let [was, is] = [spent(before, &used), spent(now, &used_now)];
    let goes_elsewhere = kept.upstream() != upstream.name;
    let is_as_before = |(was, is): (&ModelUsage, &ModelUsage)| before.of(&was.model) == now.of(&is.model);
    let changes_nothing = goes_elsewhere || used.iter().zip(&used_now).all(is_as_before);
    if was.units() == 0 || changes_nothing && was == is {
        return;
    }
    let counts = if was == is {
        format!("at the new ones what was spent so far counts as {is}, as it did")
    } else {
        format!("at the new ones the {was} spent so far count as {is}")
    };
    let is_unlike = |(was, is): &(&ModelUsage, &ModelUsage)| prices_of_cached(before, was) != prices_of_cached(now, is);
    let older = used.iter().zip(&used_now).filter(is_unlike).map(|(was, _)| was.calls_of_older).sum();
    let older = if older > 0 {
        let calls = text::counted(older, "call");
        format!("; what {calls} of an older version read from the provider's cache was not kept, and counts as before")
    } else {
        String::new()
    };
    tracing::warn!("prices changed since the last run of this job: {counts}{older}");
}

fn prices_of_cached(prices: &Prices, used: &ModelUsage) -> Option<u64> {
    prices.of(&used.model).cached()
}

fn spent(prices: &Prices, used: &[ModelUsage]) -> Money {
    let spent = Budget::new(Limits::default(), prices.clone(), used, false).used().cost;
    spent.map_or_else(Money::default, |(spent, _)| spent)
}
