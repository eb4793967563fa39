//! A job as a whole: its figures and its scopes, in words and as JSON.

use std::fmt::Write as _;
use std::path::Path;

use paceline_core::{Class, Timestamp};
use paceline_store::Counts;
use serde_json::{Value, json};

use crate::text;

/// Scopes that are shown; of the others only how many do what.
const SHOWN: usize = 10;

/// Calls in flight and items that wait. The journal counts claimed items, most of which wait for a permit; the snapshot
/// knows the calls, but a crash leaves it behind.
fn under_way(counts: &Counts, snapshot: &Value) -> (u64, u64) {
    let calls = snapshot["in_flight"].as_u64().unwrap_or(counts.in_flight).min(counts.in_flight);
    (calls, counts.waiting + counts.in_flight - calls)
}

/// The snapshot, with the figures that the journal itself knows better.
pub(super) fn json(counts: &Counts, snapshot: Value) -> Value {
    let (in_flight, waiting) = under_way(counts, &snapshot);
    let known = json!({
        "input": counts.input(),
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "cancelled": counts.cancelled,
        "waiting": waiting,
        "in_flight": in_flight,
        "calls": counts.totals.calls,
        "resends": counts.totals.resends,
        "retries": counts.totals.retries,
        "throttled": counts.totals.throttled,
        "abandoned": counts.totals.abandoned,
        "tokens_in": counts.tokens_in,
        "tokens_out": counts.tokens_out,
    });
    let (Value::Object(snapshot), Value::Object(mut all)) = (snapshot, known.clone()) else { return known };
    // The figures first: the scopes may be thousands.
    snapshot.into_iter().for_each(|(key, value)| {
        all.entry(key).or_insert(value);
    });
    Value::Object(all)
}

/// The same for people. A few lines, however many scopes there are.
pub(super) fn words(counts: &Counts, snapshot: &Value, path: &Path) -> String {
    let number = text::count;
    let (in_flight, waiting) = under_way(counts, snapshot);
    let mut words = format!("{}\n", path.display());
    let mut line = |line: String| writeln!(words, "  {line}").expect("a string takes everything");
    line(format!(
        "{}: {} succeeded, {} failed, {} skipped, {} in flight, {} waiting",
        text::counted(counts.input(), "item"),
        number(counts.succeeded),
        number(counts.failed),
        number(counts.skipped),
        number(in_flight),
        number(waiting),
    ));
    let used_up = &snapshot["account"]["totals"]["by_class"][Class::QuotaExhausted.as_str()];
    let details = text::call_details(&counts.totals, used_up.as_u64().unwrap_or(0));
    let colon = if details.is_empty() { "" } else { ": " };
    line(format!("{}{colon}{details}", text::counted(counts.totals.calls, "call")));
    line(format!("{} tokens in, {} out", number(counts.tokens_in), number(counts.tokens_out)));
    snapshot.get("account").into_iter().for_each(|account| line(scope_words(account)));
    let mut scopes: Vec<&Value> = snapshot["scopes"].as_array().into_iter().flatten().collect();
    scopes.sort_by_key(|scope| urgency(scope));
    for scope in scopes.iter().take(SHOWN) {
        line(scope_words(scope));
        belief_words(scope).into_iter().for_each(&mut line);
    }
    if let Some(rest) = scopes.get(SHOWN..).filter(|rest| !rest.is_empty()) {
        line(rest_words(rest));
    }
    if let Some(at) = time(&snapshot["at"]) {
        let stopped = snapshot["stopped"].as_str().map(|why| format!(", stopped: {why}")).unwrap_or_default();
        line(format!("as of {}{stopped}", text::moment(at)));
    }
    words
}

/// Scopes that need somebody come first, then those that are held, then the busiest.
fn urgency(scope: &Value) -> impl Ord + use<> {
    let number = |value: &Value| std::cmp::Reverse(value.as_u64().unwrap_or(0));
    let state = match state(scope) {
        "stopped" => 0,
        "held" => 1,
        _ => 2,
    };
    (state, number(&scope["concurrency"]["in_flight"]), number(&scope["waiting"]), number(&scope["totals"]["sends"]))
}

fn state(scope: &Value) -> &str {
    scope["state"].as_str().unwrap_or_default()
}

fn scope_words(scope: &Value) -> String {
    let name = scope["name"].as_str().filter(|name| !name.is_empty()).unwrap_or("account");
    let mut words = format!("{}: {}", text::printable(name), state(scope));
    if let Some(until) = time(&scope["until"]) {
        words += &format!(" until {}", text::moment(until));
    }
    if let Some(reason) = scope["reason"].as_str() {
        words += &format!(" ({})", text::printable(reason));
    }
    words += &format!(
        ", {} in flight of {}, {} waiting",
        scope["concurrency"]["in_flight"], scope["concurrency"]["current_limit"], scope["waiting"],
    );
    if let Some(policy) = scope["waits_for"].as_str() {
        words += &format!(", the next for {}", text::printable(policy));
    }
    for quota in ["quotas", "announced"].iter().flat_map(|kind| scope[*kind].as_array().into_iter().flatten()) {
        let per = quota["window_s"].as_f64().map(|window| format!(" per {window}s")).unwrap_or_default();
        let dimension = quota["dimension"].as_str().unwrap_or_default();
        words += &format!(", {} of {} {}{per} used", quota["used"], quota["limit"], text::printable(dimension));
    }
    words
}

/// What a scope that has sent something believes of its limit.
fn belief_words(scope: &Value) -> Option<String> {
    let sends = scope["totals"]["sends"].as_u64().unwrap_or(0);
    let text = scope["belief"]["text"].as_str().filter(|_| sends > 0)?;
    Some(format!("  {}", text::printable(text)))
}

fn rest_words(rest: &[&Value]) -> String {
    let groups: Vec<(&str, usize)> = ["stopped", "held", "paced", "open"]
        .into_iter()
        .map(|name| (name, rest.iter().filter(|scope| state(scope) == name).count()))
        .filter(|(_, scopes)| *scopes > 0)
        .collect();
    let more = text::counted(rest.len() as u64, "more scope");
    match groups.as_slice() {
        [(only, _)] => format!("and {more}, all {only}"),
        groups => {
            let groups: Vec<String> =
                groups.iter().map(|(name, scopes)| format!("{} {name}", text::count(*scopes as u64))).collect();
            format!("and {more}: {}", groups.join(", "))
        }
    }
}

fn time(value: &Value) -> Option<Timestamp> {
    text::instant(value.as_str()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(name: &str, state: &str, in_flight: u64) -> Value {
        json!({"name": name, "state": state, "waiting": 0,
               "concurrency": {"in_flight": in_flight, "current_limit": 10}, "totals": {"sends": 1}})
    }

    fn shown(scopes: Vec<Value>) -> Vec<String> {
        let snapshot = json!({"account": scope("", "open", 3), "scopes": scopes});
        let words = words(&Counts::default(), &snapshot, Path::new("x.journal"));
        words.lines().skip(4).map(str::to_owned).collect()
    }

    #[test]
    fn three_thousand_scopes_are_a_few_lines_with_those_that_matter() {
        let mut scopes: Vec<Value> = (0..2_998).map(|n| scope(&format!("quiet-{n}"), "open", 0)).collect();
        scopes.insert(1_500, scope("busy", "paced", 3));
        scopes.push(scope("full", "held", 0));
        let lines = shown(scopes.clone());
        assert_eq!(lines.len(), 12);
        assert!(lines[0].starts_with("  account: open, 3 in flight of 10"));
        assert!(lines[1].starts_with("  full: held") && lines[2].starts_with("  busy: paced"));
        assert_eq!(lines[11], "  and 2,990 more scopes, all open");
        scopes.extend((0..20).map(|n| scope(&format!("held-{n}"), "held", 0)));
        assert_eq!(shown(scopes)[11], "  and 3,010 more scopes: 11 held, 1 paced, 2,998 open");
    }
}
