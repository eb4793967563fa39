//! A job as a whole: its figures and its scopes, as text and as JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::{Class, Timestamp};
use paceline_store::{ACCOUNT, JobCounts, ScopeItems, ScopeRow, ScopeStatus};
use serde_json::{Value, json};

use super::age_snapshot::{end_hold, time};
use crate::account::OthersTurn;
use crate::budget::Used;
use crate::job::holds;
use crate::progress::snapshot::GIVEN_UP;
use crate::text;

/// Scopes that are shown; of the others only how many do what.
const SHOWN: usize = 10;

/// A snapshot that is older says so: a run writes one twice a second, less often where there are many scopes.
const OLD: Duration = Duration::from_secs(2);

/// What went wrong with calls.
fn call_details(counts: &JobCounts, snapshot: &Value) -> String {
    let of_run = &snapshot["account"]["totals"];
    let used_up = &of_run["by_class"][Class::QuotaExhausted.as_str()];
    // The limiter counts the calls of its run alone.
    let is_all = of_run["sends"].as_u64().is_none_or(|sends| sends >= counts.totals.calls);
    let run = if is_all { "" } else { "in the last run " };
    text::call_details(&counts.totals, used_up.as_u64().unwrap_or(0), run)
}

/// Calls in flight and items that wait. The journal counts claimed items, most of which wait for a permit; the snapshot
/// knows the calls, but a crash leaves it behind. Before the first one all calls that were noted are in flight.
fn under_way(counts: &JobCounts, snapshot: &Value, running: bool) -> (u64, u64) {
    let known = snapshot["in_flight"].as_u64().unwrap_or(counts.totals.calls);
    let calls = if running { known.min(counts.in_flight) } else { 0 };
    (calls, counts.waiting + counts.in_flight - calls)
}

/// The snapshot, with the more recent figures of the journal, and whether a run works on the job.
pub(super) fn json(counts: &JobCounts, snapshot: Value, running: bool, budget: &Used) -> Value {
    let (in_flight, waiting) = under_way(counts, &snapshot, running);
    let known = json!({
        "input": counts.input(),
        "succeeded": counts.succeeded,
        "fallback": counts.fallback,
        "failed": counts.failed,
        "held": counts.held,
        "skipped": counts.skipped,
        "cancelled": counts.cancelled,
        "waiting": waiting,
        "in_flight": in_flight,
        "calls": counts.totals.calls,
        "calls_at_least": counts.calls_lost,
        "calls_unsure": counts.calls_unsure,
        "resends": counts.totals.resends,
        "retries": counts.totals.retries,
        "throttled": counts.totals.throttled,
        "abandoned": counts.totals.abandoned,
        "tokens_in": counts.tokens_in,
        "tokens_out": counts.tokens_out,
        "budget": budget.json(),
        "running": running,
        "waits_for": snapshot["waits_for"],
        "last_answer": snapshot["last_answer"],
    });
    let (Value::Object(snapshot), Value::Object(mut all)) = (snapshot, known.clone()) else { return known };
    // The figures first: the scopes may be thousands.
    snapshot.into_iter().for_each(|(key, value)| {
        all.entry(key).or_insert(value);
    });
    Value::Object(all)
}

/// Updates the snapshot from the journal: which scopes are held or stopped. A run writes that down when it
/// happens, and the snapshot now and then; and a hold ends without a run.
pub(super) fn put_right(snapshot: &mut Value, rows: Vec<ScopeRow>, now: Timestamp) {
    let rows: BTreeMap<Arc<str>, ScopeStatus> = rows.into_iter().map(|row| (row.name, row.state)).collect();
    let put_right = |scope: &mut Value, name: &str| {
        let (state, until, reason) = match rows.get(name) {
            Some(ScopeStatus::Held { until, reason }) if *until > now => {
                ("held", Some(until.to_string()), Some(reason))
            }
            Some(ScopeStatus::Stopped { reason }) => ("stopped", None, Some(reason)),
            _ => return end_hold(scope, now),
        };
        (scope["state"], scope["until"], scope["reason"]) = (state.into(), until.into(), reason.cloned().into());
    };
    if let Some(account) = snapshot.get_mut("account").filter(|account| account.is_object()) {
        put_right(account, ACCOUNT);
    }
    for scope in snapshot.get_mut("scopes").and_then(Value::as_array_mut).into_iter().flatten() {
        let name = scope["name"].as_str().unwrap_or_default().to_owned();
        put_right(scope, &name);
    }
}

/// What the whole job waits for keeps each scope back that is open. There may be no snapshot yet.
pub(super) fn wait_for(snapshot: &mut Value, what: &str) {
    snapshot["waits_for"] = what.into();
    let wait = |scope: &mut Value| {
        if !is_closed(scope) {
            (scope["waits_for"], scope["waits_until"]) = (what.into(), Value::Null);
        }
    };
    snapshot.get_mut("account").into_iter().for_each(wait);
    snapshot.get_mut("scopes").and_then(Value::as_array_mut).into_iter().flatten().for_each(wait);
}

/// Where no run works nothing is in flight, whatever the last snapshot says.
pub(super) fn rest(snapshot: &mut Value) {
    let set = |value: &mut Value, key: &str| {
        if let Some(figure) = value.get_mut(key) {
            *figure = 0.into();
        }
    };
    let rest = |scope: &mut Value| {
        set(scope, "waiting");
        scope.get_mut("concurrency").into_iter().for_each(|places| set(places, "in_flight"));
    };
    snapshot.get_mut("account").into_iter().for_each(rest);
    snapshot.get_mut("scopes").and_then(Value::as_array_mut).into_iter().flatten().for_each(rest);
}

/// How many items each scope has left.
pub(super) fn note_left(snapshot: &mut Value, by_scope: &[ScopeItems]) {
    let left: BTreeMap<&str, u64> = by_scope.iter().map(|items| (&*items.scope.name, items.left)).collect();
    for scope in snapshot.get_mut("scopes").and_then(Value::as_array_mut).into_iter().flatten() {
        let of_scope = scope["name"].as_str().and_then(|name| left.get(name)).copied();
        of_scope.into_iter().for_each(|left| scope["left"] = left.into());
    }
}

/// The same for people. A few lines, however many scopes there are.
pub(super) fn describe(
    counts: &JobCounts,
    snapshot: &Value,
    path: &Path,
    now: Timestamp,
    running: bool,
    budget: &Used,
) -> String {
    let number = text::count;
    let (in_flight, waiting) = under_way(counts, snapshot, running);
    let mut text = format!("{}\n", path.display());
    let mut line = |line: String| writeln!(text, "  {line}").expect("a string takes everything");
    line(format!(
        "{}: {} succeeded, {}{} failed, {} skipped, {} in flight, {} waiting",
        text::counted(counts.input(), "item"),
        number(counts.succeeded),
        text::fell_back(counts.fallback),
        number(counts.failed),
        number(counts.skipped),
        number(in_flight),
        number(waiting),
    ));
    let details = call_details(counts, snapshot);
    let colon = if details.is_empty() { "" } else { ": " };
    let calls = text::calls(counts, None);
    line(format!("{calls}{colon}{details}"));
    if counts.tokens_in + counts.tokens_out > 0 {
        line(format!("{} tokens in, {} out", number(counts.tokens_in), number(counts.tokens_out)));
    }
    budget.in_one_line().into_iter().for_each(&mut line);
    text::held(counts.held, "--retry-failed", counts.failed - counts.held).into_iter().for_each(&mut line);
    let is_over = counts.waiting + counts.in_flight == 0;
    // Where nothing is left to send, nothing of it can be in flight, wait or be held; where no run works, it can be held.
    let is_history = |scope: &Value| is_over || (!running && !is_closed(scope));
    let scope_words = |scope: &Value| match () {
        () if is_history(scope) => sent_words(scope),
        () if is_given_up(scope) => given_up_words(scope, running),
        () if has_nothing_left(scope) => format!("{}, and nothing is left", sent_words(scope)),
        () => scope_words(scope, now, waiting),
    };
    let mut scopes: Vec<&Value> = snapshot["scopes"].as_array().into_iter().flatten().collect();
    // What the line of the only scope says is not said twice.
    let says_more = |account: &Value| {
        let has_limits = account["quotas"].as_array().is_some_and(|quotas| !quotas.is_empty());
        is_closed(account) || has_limits && !is_history(account)
    };
    let account = snapshot.get("account").filter(|account| scopes.len() != 1 || says_more(account));
    account.into_iter().for_each(|account| line(scope_words(account)));
    let waits = snapshot["waits_for"].as_str().filter(|_| scopes.is_empty());
    waits.into_iter().for_each(|what| line(format!("waits for {}", text::printable(what))));
    let fleet = text::fleet(&snapshot["account"]["fleet"], now);
    fleet.filter(|_| running && !is_over).into_iter().for_each(|words| line(format!("fleet: {words}")));
    turn_words(&snapshot["turn"], now).filter(|_| running).into_iter().for_each(&mut line);
    scopes.sort_by_cached_key(|scope| urgency(scope));
    for scope in scopes.iter().take(SHOWN) {
        line(scope_words(scope));
        belief_words(scope).into_iter().for_each(&mut line);
    }
    if let Some(rest) = scopes.get(SHOWN..).filter(|rest| !rest.is_empty()) {
        line(rest_words(rest));
    }
    if let Some(at) = time(&snapshot["at"]) {
        let stopped = snapshot["stopped"].as_str().map(|why| format!(", stopped: {why}")).unwrap_or_default();
        let ago = now.saturating_since(at);
        let ago = if ago > OLD { format!(", {} ago", text::duration(ago)) } else { String::new() };
        line(format!("as of {}{ago}{stopped}", text::moment(at)));
    }
    text
}

/// Scopes that a user must act on come first, then those that are held, then the busiest. What has nothing left comes last.
fn urgency(scope: &Value) -> impl Ord + use<> {
    let number = |value: &Value| std::cmp::Reverse(value.as_u64().unwrap_or(0));
    let state = match state(scope) {
        "stopped" => 0,
        "held" => 1,
        _ => 2,
    };
    let until = scope["until"].as_str().unwrap_or_default().to_owned();
    (
        has_nothing_left(scope),
        state,
        until,
        number(&scope["concurrency"]["in_flight"]),
        number(&scope["waiting"]),
        number(&scope["totals"]["sends"]),
    )
}

/// All of its items have ended.
fn has_nothing_left(scope: &Value) -> bool {
    scope["left"] == 0
}

/// The run tries nothing of it any more.
pub(super) fn is_given_up(scope: &Value) -> bool {
    scope[GIVEN_UP] == true
}

/// For the scope of a run that works, or of the last one.
pub(super) const fn given_up_in(running: bool) -> &'static str {
    match running {
        true => "given up for this run, for no call succeeded (--max-wait); the same command tries it again",
        false => "given up in the last run, for no call succeeded (--max-wait); the same command tries it again",
    }
}

fn given_up_words(scope: &Value, running: bool) -> String {
    format!("{}: {}", name(scope), given_up_in(running))
}

/// Nothing of it is sent for now.
fn is_closed(scope: &Value) -> bool {
    matches!(state(scope), "held" | "stopped")
}

fn state(scope: &Value) -> &str {
    scope["state"].as_str().unwrap_or_default()
}

fn name(scope: &Value) -> Cow<'_, str> {
    match scope["name"].as_str().filter(|name| !name.is_empty()) {
        None => "account".into(),
        Some(name) => holds::name(name),
    }
}

/// A scope of a job that is over, or that no run works on.
fn sent_words(scope: &Value) -> String {
    let calls = text::counted(scope["totals"]["sends"].as_u64().unwrap_or(0), "call");
    // The account has the calls of all scopes, such as hosts, some of which saw no key of it.
    let of = if scope["name"].as_str().is_none_or(str::is_empty) { "all together".into() } else { name(scope) };
    format!("{of}: {calls} in the last run")
}

/// `waiting`: the items that wait now, of which the snapshot may know more: it is older.
fn scope_words(scope: &Value, now: Timestamp, waiting: u64) -> String {
    let mut text = format!("{}: {}", name(scope), state(scope));
    if let Some(until) = time(&scope["until"]) {
        text += &format!(" until {}", text::end(until));
    }
    if let Some(reason) = scope["reason"].as_str() {
        text += &format!(" ({})", holds::why(reason));
    }
    // Items of a closed scope wait in the journal, and nothing of it is to be in flight.
    let is_closed = is_closed(scope);
    let number = |value: &Value| text::count(value.as_u64().unwrap_or(0));
    let in_flight = &scope["concurrency"]["in_flight"];
    if !is_closed || in_flight.as_u64() > Some(0) {
        let limit = number(&scope["concurrency"]["current_limit"]);
        text += &format!(", {} of {limit} calls in flight", number(in_flight));
    }
    if !is_closed {
        let for_a_permit = scope["waiting"].as_u64().unwrap_or(0).min(waiting);
        text += &format!(", {} waiting for a permit", text::count(for_a_permit));
        text += &waits_for(scope, now).unwrap_or_default();
    }
    for quota in ["quotas", "announced"].iter().flat_map(|kind| scope[*kind].as_array().into_iter().flatten()) {
        let per = quota["window_s"].as_f64().map(|window| format!(" per {window}s")).unwrap_or_default();
        let dimension = quota["dimension"].as_str().unwrap_or_default();
        let (used, limit) = (number(&quota["used"]), number(&quota["limit"]));
        text += &format!(", {used} of {limit} {}{per} used", text::printable(dimension));
    }
    text
}

/// Which process keeps the run waiting, and for how long it has.
fn turn_words(turn: &Value, now: Timestamp) -> Option<String> {
    let pid = turn["process"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let turn = OthersTurn { pid, since: time(&turn["waiting_since"])? };
    let (holder, waited) = (turn.holder(), text::duration(now.saturating_since(turn.since)));
    Some(format!("{holder} has the turn under the shared limits: this run has waited for it for {waited}"))
}

/// What the next call waits for, and until when where that can be felt.
fn waits_for(scope: &Value, now: Timestamp) -> Option<String> {
    let policy = text::printable(scope["waits_for"].as_str()?);
    let until = time(&scope["waits_until"]).filter(|until| *until > now + holds::SHORT);
    let until = until.map(|until| format!(" until {},", text::end(until))).unwrap_or_default();
    Some(format!(", the next call waits{until} for {policy}"))
}

/// What a scope believes of its limit of which calls have passed, and more may.
fn belief_words(scope: &Value) -> Option<String> {
    let passed = scope["totals"]["by_class"][Class::Success.as_str()].as_u64().unwrap_or(0);
    let text = scope["belief"]["text"].as_str().filter(|_| passed > 0 && !is_closed(scope))?;
    Some(format!("  {}", text::printable(text)))
}

/// The state of a scope that has nothing left.
const ENDED: &str = "with nothing left";

fn rest_words(rest: &[&Value]) -> String {
    let state = |scope: &Value| if has_nothing_left(scope) { ENDED } else { state(scope) }.to_owned();
    let groups: Vec<(&str, usize)> = ["stopped", "held", "paced", "open", ENDED]
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

#[cfg(test)]
mod tests {
    use paceline_core::PauseCause;

    use super::*;

    fn scope(name: &str, state: &str, in_flight: u64) -> Value {
        json!({"name": name, "state": state, "waiting": 0,
               "concurrency": {"in_flight": in_flight, "current_limit": 10}, "totals": {"sends": 1}})
    }

    fn shown(scopes: Vec<Value>) -> Vec<String> {
        let snapshot = json!({"account": scope("", "open", 3), "scopes": scopes});
        let text = describe(
            &JobCounts { waiting: 1, ..JobCounts::default() },
            &snapshot,
            Path::new("x.journal"),
            Timestamp::from_millis(0),
            true,
            &Used::default(),
        );
        text.lines().skip(3).map(str::to_owned).collect()
    }

    #[test]
    fn three_thousand_scopes_are_a_few_lines_with_those_that_matter() {
        let mut scopes: Vec<Value> = (0..2_998).map(|n| scope(&format!("quiet-{n}"), "open", 0)).collect();
        scopes.insert(1_500, scope("busy", "paced", 3));
        scopes.push(scope("full", "held", 0));
        let lines = shown(scopes.clone());
        assert_eq!(lines.len(), 12);
        assert!(lines[0].starts_with("  account: open, 3 of 10 calls in flight"));
        assert!(lines[1].starts_with("  full: held") && lines[2].starts_with("  busy: paced"));
        assert_eq!(lines[11], "  and 2,990 more scopes, all open");
        scopes.extend((0..20).map(|n| scope(&format!("held-{n}"), "held", 0)));
        assert_eq!(shown(scopes)[11], "  and 3,010 more scopes: 11 held, 1 paced, 2,998 open");
    }

    #[test]
    fn where_no_run_works_nothing_is_in_flight() {
        let mut snapshot = json!({"in_flight": 4, "account": scope("", "open", 4), "scopes": [scope("a", "open", 4)]});
        snapshot["scopes"][0]["waiting"] = 9.into();
        rest(&mut snapshot);
        let counts = JobCounts { waiting: 1, in_flight: 4, ..JobCounts::default() };
        let text =
            describe(&counts, &snapshot, Path::new("x.journal"), Timestamp::from_millis(0), false, &Used::default());
        assert!(text.contains(" 0 in flight, 5 waiting\n") && !text.contains(" 4 ") && !text.contains(" 9 "), "{text}");
        let figures = json(&counts, snapshot, false, &Used::default());
        assert_eq!((&figures["in_flight"], &figures["waiting"]), (&json!(0), &json!(5)));
    }

    #[test]
    fn a_wait_for_the_turn_names_the_process_and_says_for_how_long() {
        let since = Timestamp::from_millis(1_000);
        let turn = json!({"process": 27_749, "waiting_since": since.to_string()});
        let words = turn_words(&turn, since + Duration::from_secs(21));
        let expected = "process 27749 has the turn under the shared limits: this run has waited for it for 21s";
        assert_eq!((words.as_deref(), turn_words(&Value::Null, since)), (Some(expected), None));
    }

    #[test]
    fn a_run_in_a_fleet_says_where_it_stands_as_long_as_it_works() {
        let now = Timestamp::from_millis(1_000);
        let mut account = scope("", "open", 3);
        account["fleet"] = json!({"text": "live, 4 members known; here 15 of 60 requests per 60s",
                                  "lease_until": (now + Duration::from_secs(27)).to_string()});
        let snapshot = json!({"account": account, "scopes": [scope("a", "open", 3)]});
        let counts = JobCounts { waiting: 1, ..JobCounts::default() };
        let said = |running| describe(&counts, &snapshot, Path::new("j"), now, running, &Used::default());
        let line = "  fleet: live, 4 members known; here 15 of 60 requests per 60s; lease for 27s\n";
        assert!(said(true).contains(line) && !said(false).contains("fleet"), "{}", said(true));
    }

    #[test]
    fn a_held_scope_says_until_when_and_why_as_the_journal_knows_it() {
        let now = Timestamp::from_millis(paceline::clock::wall().as_millis() / 1_000 * 1_000);
        let until = |seconds: u64| now + Duration::from_secs(seconds);
        let held = |name: &str, seconds, cause: PauseCause| ScopeRow {
            name: name.into(),
            state: ScopeStatus::Held { until: until(seconds), reason: cause.to_string() },
        };
        let (throttled, busy) = (PauseCause::Throttled { asked: true }, PauseCause::Overloaded { asked: true });
        let rows = vec![held("a", 7_199, throttled), held("b", 1_800, busy), held("over", 0, throttled)];
        let mut over = scope("over", "held", 0);
        over["until"] = until(0).to_string().into();
        // As a run wrote it whose items wait in the journal.
        let scopes = vec![scope("a", "paced", 0), scope("b", "paced", 2), over, scope("c", "open", 1)];
        let mut snapshot = json!({"account": scope("", "open", 3), "scopes": scopes, "at": until(0).to_string()});
        put_right(&mut snapshot, rows, now);
        let text = describe(
            &JobCounts { waiting: 1, ..JobCounts::default() },
            &snapshot,
            Path::new("x.journal"),
            now + Duration::from_secs(44),
            true,
            &Used::default(),
        );
        let lines: Vec<&str> = text.lines().skip(4).collect();
        let end = |seconds| text::moment(until(seconds));
        let is_line = |n: usize, begin: String, end: &str| {
            assert!(lines[n].starts_with(&begin) && lines[n].ends_with(end), "{lines:?}");
        };
        is_line(
            0,
            format!("  b: held until {}, in ", end(1_800)),
            " (the overloaded server asked for a pause), 2 of 10 calls in flight",
        );
        is_line(
            1,
            format!("  a: held until {}, in ", end(7_199)),
            " (the server rate-limited a call and asked for a pause)",
        );
        is_line(2, "  c: open, 1 of 10 calls in flight, 0 waiting".to_owned(), "");
        is_line(3, "  over: open, 0 of 10 calls in flight, 0 waiting".to_owned(), "");
        is_line(4, "  as of ".to_owned(), ", 44s ago");
    }

    /// Ten hosts are shown of twenty: none whose items have all ended in place of one that has some.
    #[test]
    fn scopes_that_have_nothing_left_come_last_and_given_up_ones_are_said_so() {
        let host =
            |name: &str, left: u64| json!({"name": name, "state": "paced", "left": left, "totals": {"sends": 9}});
        let ended = (0..12).map(|n| host(&format!("ended{n}"), 0));
        let mut given_up = host("down", 3);
        (given_up["state"], given_up[GIVEN_UP]) = ("held".into(), true.into());
        let scopes: Vec<Value> = ended.chain([host("busy", 5), given_up]).collect();
        let counts = JobCounts { waiting: 8, ..JobCounts::default() };
        let snapshot = json!({ "scopes": scopes });
        let text = describe(&counts, &snapshot, "j".as_ref(), Timestamp::from_millis(0), true, &Used::default());
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let at = |start: &str| lines.iter().position(|line| line.starts_with(start)).unwrap_or(usize::MAX);
        assert!(at("down: given up for this run") < at("busy: paced") && at("busy: paced") < at("ended"), "{text}");
        assert!(text.contains("9 calls in the last run, and nothing is left\n"), "{text}");
        assert!(text.contains("and 4 more scopes, all with nothing left\n"), "{text}");
    }
}
