//! `paceline sim plan`: what a configuration would do with a job.

use std::fmt::Write as _;
use std::time::Duration;

use paceline_config::{CallNames, Upstream};
use paceline_core::{Cost, Dimension, Limits, Quota};
use paceline_model::{ModelLimit, ProviderConfig};
use paceline_sim::{Plan, Scenario, plan};
use serde_json::{Value, json};

use super::args::PlanArgs;
use crate::args::Everywhere;
use crate::exit::Failure;
use crate::progress::oracle;
use crate::upstream::is_of;
use crate::{output, text, upstream};

/// A run ends by itself when nothing can leave for so long.
const MAX_WAIT: Duration = Duration::from_secs(3_600);

/// Runs the job in virtual time and prints what happened.
///
/// # Errors
/// As for a run, before its first call; and an unknown scenario.
pub(crate) fn command(args: &PlanArgs, everywhere: &Everywhere) -> Result<(), Failure> {
    let upstream = upstream::resolve(&args.upstream, everywhere)?;
    let scope =
        upstream.scope_name(&CallNames { path: &args.endpoint, model: args.model.as_deref(), ..CallNames::default() });
    let quotas: Vec<Quota> = limits(&upstream, &scope).flat_map(|limits| limits.quotas.clone()).collect();
    let scenario = match &args.scenario {
        Some(name) => Scenario { items: args.items, ..super::scenario(name)? },
        None => {
            let limits = quotas.iter().cloned().map(ModelLimit::from).collect();
            let concurrency = Some(upstream.pacer.concurrency.max());
            Scenario::exact(
                args.items,
                ProviderConfig { limits, concurrency, ..ProviderConfig::default() },
                args.tokens,
            )
        }
    };
    let mut plan = plan(&scenario, &upstream.pacer, &scope, args.seed).map_err(Failure::refused)?;
    // Of the configured limits the least time is known, as `run --dry-run` tells it: their spacing is not the provider's.
    if let Some(least) = least(args, &upstream, &scope).filter(|_| args.scenario.is_none()) {
        plan.oracle_seconds = least.as_secs_f64();
    }
    let notes = notes(args, &plan, &quotas);
    output::print(|out| match args.json {
        true => writeln!(out, "{}", as_json(args, &upstream, &plan, &notes)),
        false => out.write_all(as_text(args, &upstream, &plan, &notes).as_bytes()),
    })
}

/// The limits that the calls are under: the account's, and those of their tier.
fn limits<'a>(upstream: &'a Upstream, scope: &str) -> impl Iterator<Item = &'a Limits> {
    let tier = upstream.pacer.tiers.iter().find(|(name, _)| is_of(scope, name)).map(|(_, limits)| limits);
    std::iter::once(&upstream.pacer.limits).chain(tier)
}

fn least(args: &PlanArgs, upstream: &Upstream, scope: &str) -> Option<Duration> {
    let items = u64::from(args.items);
    let tokens = items.saturating_mul(args.tokens);
    let cost = Cost::zero().with(Dimension::Requests, items).with(Dimension::Tokens, tokens);
    let of = |limits| oracle::least(limits, items, cost.clone());
    limits(upstream, scope).filter_map(of).max()
}

/// What the figures leave out.
fn notes(args: &PlanArgs, plan: &Plan, quotas: &[Quota]) -> Vec<String> {
    let mut notes = Vec::new();
    if plan.simulated < args.items {
        notes.push(format!(
            "{} were simulated; the rest is taken to go as the second half of those did",
            text::counted(u64::from(plan.simulated), "item")
        ));
    }
    let tokens = args.tokens > 0 || args.scenario.is_some();
    let counted = |quota: &&Quota| match quota.dimension {
        Dimension::Requests => true,
        Dimension::Tokens => tokens,
        _ => false,
    };
    if let Some(quota) = quotas.iter().find(|quota| !counted(quota)) {
        let how = if quota.dimension == Dimension::Tokens { "; --tokens N says what an item takes" } else { "" };
        notes.push(format!("limits on {} are not looked at{how}", quota.dimension));
    }
    if args.scenario.is_none() && quotas.is_empty() {
        notes.push("no limit is configured, so that nothing is ever refused; --scenario names a provider".to_owned());
    }
    if plan.longest_wait_s > MAX_WAIT.as_secs_f64() {
        let wait = text::duration(Duration::from_secs_f64(plan.longest_wait_s));
        notes.push(format!(
            "nothing leaves for {wait}: `paceline run` ends there with exit code 3, and the same command goes on; a \
             longer --max-wait stays"
        ));
    }
    if plan.probes > 0 {
        let calls = text::counted(plan.probes, "call");
        notes.push(format!("{calls} tested whether the failing server is back"));
    }
    if plan.unfinished > 0 {
        notes.push(format!("{} had not ended by then", text::counted(plan.unfinished, "item")));
    }
    notes
}

fn as_json(args: &PlanArgs, upstream: &Upstream, plan: &Plan, notes: &[String]) -> Value {
    let mut output = json!({
        "upstream": upstream.name,
        "acting": upstream.acting,
        "scenario": args.scenario,
        "items": args.items,
        "seed": args.seed,
    });
    let (into, figures) = (output.as_object_mut(), json!(plan));
    if let (Some(into), Value::Object(figures)) = (into, figures) {
        into.extend(figures);
        into.insert("notes".to_owned(), json!(notes));
    }
    output
}

fn as_text(args: &PlanArgs, upstream: &Upstream, plan: &Plan, notes: &[String]) -> String {
    let time = |seconds: f64| text::duration(Duration::from_secs_f64(seconds));
    let provider = args.scenario.as_ref().map_or_else(
        || "exactly the configured limits, answers after 50 to 500 ms".to_owned(),
        |name| format!("that of the scenario {name}"),
    );
    let mut output = format!("{} for upstream {}\n", text::counted(u64::from(args.items), "item"), upstream.name);
    text::wrapped(&mut output, "  pace      ", &upstream.acting);
    text::wrapped(&mut output, "  provider  ", &provider);
    output += &format!("  time      {}, at best {}\n", time(plan.seconds), time(plan.oracle_seconds));
    let mut items = format!("{} succeed", text::count(plan.succeeded));
    if plan.failed > 0 {
        write!(items, ", {} fail", text::count(plan.failed)).expect("a string takes everything");
    }
    let (resends, refused) = (text::count(plan.resends), text::count(plan.refused));
    output += &format!(
        "  items     {items}\n  calls     {}, {refused} of them refused, {resends} resends\n",
        text::count(plan.calls)
    );
    if plan.tokens > 0 {
        output += &format!("  tokens    {}\n", text::count(plan.tokens));
    }
    let mut head = "waits";
    let whole: f64 = plan.waits.iter().map(|wait| wait.seconds).sum();
    for wait in &plan.waits {
        let share = 100.0 * wait.seconds / whole;
        output += &format!("  {head:8}  {share:3.0} %  {:>7}  {}\n", time(wait.seconds), wait.reason);
        head = "";
    }
    notes.iter().for_each(|note| text::wrapped(&mut output, "note: ", note));
    output
}
