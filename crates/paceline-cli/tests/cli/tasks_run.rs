//! `paceline tasks run` with commands: what each end of one means, and what becomes of the item.

use std::io::{BufReader, Read as _};
use std::pin::Pin;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::Arc;

use paceline_store::ScopeRow;
use paceline_store::work::{NewItem, SqliteStore, State, WorkClock, WorkItem, WorkStore as _};
use serde_json::{Value, json};

use crate::bounded::{Bounded, BoundedOutput, read_line, reading};
use crate::support::Job;

/// A store in a folder of its own, and a log that commands write to.
pub(crate) struct Store {
    pub(crate) job: Job,
}

/// How a run ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) summary: Value,
    pub(crate) log: String,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { job: Job::with_input("") }
    }

    /// Where syncs take no time.
    pub(crate) fn in_memory() -> Self {
        Self { job: Job::in_memory() }
    }

    /// With items of these keys, their payload the key as JSON.
    pub(crate) fn of(keys: &[&str]) -> Self {
        let store = Self::new();
        keys.iter().for_each(|key| store.add(key, &json!(key)));
        store
    }

    pub(crate) fn add(&self, key: &str, payload: &Value) {
        self.put(vec![NewItem::new(key, payload.to_string())]);
    }

    pub(crate) fn put(&self, items: Vec<NewItem>) {
        self.with(|store| Box::pin(async move { store.insert(items).await.expect("room") }));
    }

    /// An item as the store knows it.
    pub(crate) fn item(&self, key: &str) -> WorkItem {
        let key = key.to_owned();
        self.with(|store| Box::pin(async move { store.show(&key).await.expect("readable").expect("an item").0 }))
    }

    fn with<T>(&self, act: impl FnOnce(Arc<SqliteStore>) -> Pin<Box<dyn Future<Output = T>>>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let store = SqliteStore::open(self.job.path("work.db"), WorkClock::system()).expect("a store");
            act(Arc::new(store)).await
        })
    }

    /// The groups that are held or stopped.
    pub(crate) fn scopes(&self) -> Vec<ScopeRow> {
        self.with(|store| Box::pin(async move { store.scopes().await.expect("readable") }))
    }

    /// `paceline tasks run`, with short waits between tries.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.job.paceline();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.args(["tasks", "run", "--store", "work.db", "--first-delay", "1ms", "--cap", "5ms", "--json"]);
        command
    }

    /// Runs a shell script for each item.
    pub(crate) fn run(&self, flags: &[&str], script: &str) -> Ran {
        ran(self.command().args(flags).args(["--", "sh", "-c", script]))
    }

    /// The lines that scripts wrote to `log`.
    fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.job.path("log")).unwrap_or_default();
        text.lines().map(ToOwned::to_owned).collect()
    }

    /// Waits until a script wrote so many lines.
    fn wait_for(&self, lines: usize) {
        until(|| self.log().len() >= lines);
    }
}

pub(crate) fn ran(command: &mut Command) -> Ran {
    ended(command.ended_with_output())
}

fn ended(Output { status, stdout, stderr }: Output) -> Ran {
    let summary = serde_json::from_slice(&stdout).unwrap_or_default();
    Ran { code: status.code().expect("an exit code"), summary, log: String::from_utf8_lossy(&stderr).into_owned() }
}

/// Looks again and again, for 20 s at most.
pub(crate) fn until(holds: impl Fn() -> bool) {
    let clock = paceline::Clock::new();
    let began = clock.now();
    while !holds() {
        assert!((clock.now() - began).as_secs() < 20, "it never happened");
        std::thread::yield_now();
    }
}

pub(crate) fn begin(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

pub(crate) fn signal(name: &str, pid: u32) {
    // It fails when the process has ended meanwhile.
    let _ = Command::new("kill").args([name, &pid.to_string()]).ended_with_output();
}

const NOTE: &str = "echo $PACELINE_KEY $PACELINE_ATTEMPT >> log; ";

#[test]
fn a_command_gets_its_item_and_nothing_else() {
    let store = Store::of(&["a key"]);
    let script = "echo \"$PACELINE_KEY|$PACELINE_ATTEMPT|$PACELINE_GROUP|$(cat)\" >> log; test $PACELINE_ATTEMPT = 2";
    let Ran { code, summary, log } = store.run(&["-v"], script);
    assert_eq!(code, 0, "{log}");
    assert_eq!(store.log(), ["a key|1|default|\"a key\"", "a key|2|default|\"a key\""]);
    assert_eq!((&summary["status"], &summary["calls"], &summary["resends"]), (&json!("SUCCESS"), &json!(2), &json!(1)));
    assert!(log.contains("transient failure (try 1 of at most 4), next try in 1ms"), "{log}");
}

#[test]
fn a_hold_says_which_command_failed_and_how() {
    let store = Store::of(&["k"]);
    let script = r#"echo busy >&2; echo '{"class":"throttled","retry_after_s":7200}'; exit 1"#;
    let Ran { code, log, .. } = store.run(&["--max-wait", "1s"], script);
    assert_eq!(code, 3, "{log}");
    let held = log.lines().find(|line| line.contains("the group is held until ")).expect(&log);
    assert!(held.contains("in 2h 00m: sh: exit code 1, reported as throttled for 2h 00m: busy"), "{held}");
}

#[test]
fn each_end_of_a_command_means_something() {
    for (script, tries, expected) in [
        ("exit 65", 1, "failed: invalid item=\"k\" class=\"invalid\" cause=\"exit code 65\""),
        ("echo no such host >&2; exit 75", 2, "cause=\"exit code 75: no such host\""),
        ("exit 1", 2, "cause=\"exit code 1\""),
        ("kill -9 $$", 2, "code=\"SIGKILL\" cause=\"killed by SIGKILL\""),
        (
            r#"echo '{"class":"filtered","code":"nsfw","message":"not that"}'; exit 9"#,
            1,
            "code=\"nsfw\" cause=\"not that\"",
        ),
        (
            r#"echo '{"class":"overloaded","retry_after_s":0.002}'; exit 1"#,
            2,
            "server overloaded (try 1 of at most 2), next try in 2ms",
        ),
        (r#"echo '{"class":"great"}'; exit 1"#, 2, "unknown class \\\"great\\\", taken as transient"),
        ("head -c 2000000 /dev/zero; exit 65", 1, "more than 1 MB on standard output"),
        ("echo '{\"class\"'; exit 1", 2, "the last line of standard output is no JSON"),
    ] {
        let store = Store::of(&["k"]);
        let Ran { code, summary, log } = store.run(&["-v", "--max-retries", "1"], &format!("{NOTE}{script}"));
        assert_eq!((code, &summary["status"], store.log().len()), (1, &json!("FAILED"), tries), "{script}: {log}");
        assert!(log.contains(expected), "{script}: {log}");
    }
}

#[test]
fn a_success_may_say_what_it_likes_and_need_not_read() {
    let store = Store::new();
    store.add("large", &json!("x".repeat(1 << 20)));
    let Ran { code, log, .. } = store.run(&[], "head -c 3000000 /dev/zero; echo trouble >&2");
    assert_eq!(code, 0, "{log}");
}

#[test]
fn a_permanent_failure_is_tried_once_more_than_its_retries() {
    for max_retries in [1, 2, 3, 10] {
        let store = Store::of(&["bad", "good", "fine"]);
        let script = format!("{NOTE} test $PACELINE_KEY != bad");
        let Ran { code, summary, log } = store.run(&["--max-retries", &max_retries.to_string()], &script);
        assert_eq!((code, &summary["status"], &summary["failed"]), (1, &json!("PARTIAL"), &json!(1)), "{log}");
        let bad = store.log().iter().filter(|line| line.starts_with("bad")).count();
        assert_eq!((bad, store.log().len()), (max_retries + 1, max_retries + 3));
    }
}

#[test]
fn a_finished_store_begins_nothing_and_exits_as_before() {
    let store = Store::of(&["bad", "good"]);
    let script = format!("{NOTE} test $PACELINE_KEY != bad || exit 65");
    for _ in 0..2 {
        let Ran { code, summary, log } = store.run(&[], &script);
        assert_eq!((code, &summary["status"], store.log().len()), (1, &json!("PARTIAL"), 2), "{log}");
    }
}

#[test]
fn a_bad_account_stops_its_group_alone_until_the_next_run() {
    let store = Store::new();
    for (group, number) in [("bad", 1), ("bad", 2), ("bad", 3), ("good", 1), ("good", 2)] {
        let item = NewItem::new(format!("{group}-{number}"), "1");
        store.put(vec![NewItem { group: group.to_owned(), ..item }]);
    }
    let script = format!("{NOTE} test $PACELINE_GROUP = good || exit 77");
    let Ran { code, summary, log } = store.run(&["--concurrency", "1"], &script);
    assert_eq!((code, &summary["succeeded"], &summary["deferred"]), (3, &json!(2), &json!(3)), "{log}");
    assert_eq!(summary["stopped"], "account");
    assert!(log.contains("the group is stopped, and its items wait"), "{log}");
    let bad = store.log().iter().filter(|line| line.starts_with("bad")).count();
    assert_eq!(bad, 1, "nothing of the group began once it was known");
    let Ran { code, log, .. } = store.run(&[], "true");
    assert_eq!(code, 0, "{log}");
}

#[test]
fn a_limit_that_is_used_up_ends_the_run_and_counts_no_try() {
    let store = Store::of(&["a", "b", "c", "d", "e"]);
    let Ran { code, summary, log } = store.run(&["--limit", "2 per 2h"], NOTE);
    assert_eq!((code, &summary["stopped"], store.log().len()), (3, &json!("max_wait"), 2), "{log}");
    assert_eq!((&summary["calls"], &summary["deferred"]), (&json!(2), &json!(3)));
}

#[test]
fn a_configured_limit_holds_over_runs() {
    let store = Store::of(&["a", "b", "c", "d", "e", "f", "g"]);
    let bounds = ["--max-wait", "1s", "--limit"];
    for (limit, left) in [("5 per 1h", 5), ("5 per 1h", 5), ("6 per 2h", 6)] {
        let Ran { code, log, .. } = store.run(&[&bounds[..], &[limit]].concat(), NOTE);
        assert_eq!((code, store.log().len()), (3, left), "{limit}: no run buys another five: {log}");
    }
}

#[test]
fn many_bad_items_close_no_way_for_good_ones() {
    let keys: Vec<String> = (0..50).map(|n| format!("k{n:02}")).collect();
    let store = Store::of(&keys.iter().map(String::as_str).collect::<Vec<_>>());
    let ran = store.run(
        &["--stop-after-same", "0", "--concurrency", "1", "--max-retries", "1"],
        &format!("{NOTE} test $PACELINE_KEY '>' k39"),
    );
    let text = ["succeeded", "failed", "calls"].map(|key| ran.summary[key].as_u64().expect("a number"));
    assert_eq!((ran.code, text), (1, [10, 40, 90]), "{}", ran.log);
}

#[test]
fn an_item_that_takes_the_program_with_it_each_time_is_given_up() {
    let store = Store::of(&["a", "b"]);
    let script = "echo $PACELINE_KEY >> log; test $PACELINE_KEY = b || kill -9 $PPID";
    for _ in 0..2 {
        let ended = store.command().args(["--concurrency", "1", "--", "sh", "-c", script]).ended_with_output();
        assert_eq!(ended.status.code(), None, "it was killed");
    }
    let ran = store.run(&["--max-crashes", "1"], script);
    assert_eq!(ran.code, 1, "{}", ran.log);
    assert_eq!((&ran.summary["succeeded"], &ran.summary["failed"]), (&json!(1), &json!(1)));
    assert_eq!(store.log(), ["a", "b", "a"]);
    let given_up = store.item("a");
    assert_eq!(given_up.reason.as_deref(), Some("max_crashes"));
    assert_eq!(given_up.last.expect("a failure").message, "its worker died 2 times while it had this item");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_try_that_takes_too_long_is_killed_with_all_that_it_began() {
    let store = Store::of(&["k"]);
    let script = "trap '' TERM; sleep 600 & echo $! >> log; echo $$ >> log; wait; wait";
    let Ran { code, summary, log } = store.run(&["--timeout", "300ms", "--max-retries", "0"], script);
    assert_eq!((code, &summary["failed"]), (1, &json!(1)), "{log}");
    assert!(log.contains("killed: it did not end within 300ms"), "{log}");
    for pid in store.log() {
        until(|| !is_alive(&pid));
    }
}

/// Whether there is such a process, and it is no zombie.
fn is_alive(pid: &str) -> bool {
    let ps = Command::new("ps").args(["-o", "stat=", "-p", pid]).ended_with_output();
    let state = String::from_utf8_lossy(&ps.stdout).trim().to_owned();
    !state.is_empty() && !state.starts_with('Z')
}

#[test]
fn an_interruption_lets_end_what_is_in_flight() {
    let store = Store::of(&["a", "b", "c"]);
    let fifo = store.job.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).ended().success());
    let script = format!("{NOTE} read line < fifo");
    let run = begin(store.command().args(["--concurrency", "1", "--", "sh", "-c", &script]));
    store.wait_for(1);
    signal("-INT", run.id());
    std::fs::write(&fifo, "go on\n").expect("the script reads");
    let Ran { code, summary, log } = ended(run.ended_with_output());
    assert_eq!((code, &summary["stopped"]), (3, &json!("interrupted")), "{log}");
    assert_eq!((&summary["succeeded"], &summary["deferred"], &summary["abandoned"]), (&json!(1), &json!(2), &json!(0)));
    assert!(summary["resume"].as_str().is_some_and(|line| line.contains("tasks run --store work.db")), "{summary}");
    let Ran { code, log, .. } = store.run(&[], "true");
    assert_eq!(code, 0, "{log}");
}

#[test]
fn a_terminal_that_is_closed_lets_end_what_is_in_flight() {
    let store = Store::of(&["a", "b"]);
    let fifo = store.job.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).ended().success());
    let terminal = rustix_openpty::openpty(None, None).expect("a terminal");
    let end = || Stdio::from(terminal.user.try_clone().expect("a handle"));
    let program = store.command();
    // The tests themselves may be run by nohup.
    let mut owned = Command::new("env");
    owned
        .args(["--default-signal=HUP", "setsid", "--ctty"])
        .arg(program.get_program())
        .args(program.get_args())
        .current_dir(store.job.path(""));
    owned.args(["--summary", "summary.json", "--concurrency", "1", "--", "sh", "-c"]);
    owned.arg(format!("{NOTE} read line < fifo")).stdin(end()).stdout(end()).stderr(end());
    let mut run = owned.spawn().expect("the binary runs");
    owned.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    store.wait_for(1);
    drop(terminal);
    std::fs::write(&fifo, "go on\n").expect("the script reads");
    run.ended();
    let summary = std::fs::read(store.job.path("summary.json")).expect("a summary");
    let summary: Value = serde_json::from_slice(&summary).expect("JSON");
    assert_eq!((&summary["stopped"], &summary["succeeded"]), (&json!("interrupted"), &json!(1)));
}

#[test]
fn nohup_keeps_a_run_from_hearing_of_its_terminal() {
    let store = Store::of(&["a", "b"]);
    let program = store.command();
    let mut nohup = Command::new("nohup");
    nohup.arg(program.get_program()).args(program.get_args()).current_dir(store.job.path(""));
    let ran = ran(nohup.args(["--concurrency", "1", "--", "sh", "-c", "kill -HUP $PPID"]));
    assert_eq!((ran.code, &ran.summary["succeeded"]), (0, &json!(2)), "{}", ran.log);
}

/// The second one counts when the first was heard. What is said after that is still to be read.
fn interrupt_twice(run: &mut Child) -> BufReader<ChildStderr> {
    signal("-INT", run.id());
    let mut heard = BufReader::new(run.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("a second Ctrl-C") {
        line.clear();
        assert!(read_line(run, &mut heard, &mut line) > 0, "it ended");
    }
    signal("-INT", run.id());
    heard
}

#[test]
fn a_second_interruption_gives_up_what_is_in_flight() {
    let store = Store::of(&["a"]);
    let script = format!("echo $$ >> pid; {NOTE} exec sleep 600");
    let mut run = begin(store.command().args(["--max-retries", "0", "--", "sh", "-c", &script]));
    store.wait_for(1);
    let pid = std::fs::read_to_string(store.job.path("pid")).expect("it began");
    let _heard = interrupt_twice(&mut run);
    let Ran { code, summary, .. } = ended(run.ended_with_output());
    assert_eq!((code, &summary["abandoned"], &summary["deferred"]), (3, &json!(1), &json!(1)));
    assert!(!is_alive(pid.trim()), "nothing is left behind");
    let Ran { code, log, .. } = store.run(&["--max-retries", "0"], &format!("{NOTE} test $PACELINE_ATTEMPT = 2"));
    assert_eq!(code, 0, "what was given up counts against no bound: {log}");
    let item = store.item("a");
    assert_eq!((item.state, item.attempts, item.abandoned), (State::Succeeded, 1, 1));
}

#[test]
fn a_judge_decides_instead_of_the_rules() {
    let store = Store::of(&["a", "b"]);
    std::fs::write(store.job.path("judge.sh"), r#"echo '{"action":"skip","reason":"not today"}'"#).expect("writable");
    let script = format!("{NOTE} test $PACELINE_KEY != a");
    let Ran { code, summary, log } = store.run(&["--judge", "sh judge.sh"], &script);
    assert_eq!((code, &summary["skipped"], store.log().len()), (1, &json!(1), 2), "{log}");
    assert!(log.contains("skipped: not today"), "{log}");
}

#[test]
fn what_is_over_its_bound_may_begin_the_next_run() {
    let store = Store::of(&["a", "b"]);
    let script = format!("{NOTE} test $PACELINE_KEY != a");
    let flags = ["--max-retries", "1", "--over-bound", "next-run"];
    let Ran { code, summary, log } = store.run(&flags, &script);
    assert_eq!((code, &summary["deferred"]), (3, &json!(1)), "{log}");
    assert!(log.contains("waits for the next run: max_retries"), "{log}");
    assert_eq!(store.run(&flags, "true").code, 0);
}

#[test]
fn a_run_may_begin_again_and_again() {
    let store = Store::of(&["a", "b"]);
    let script = format!("{NOTE} test $PACELINE_KEY = b || test $PACELINE_ATTEMPT -gt 3");
    let flags = ["--every", "50ms", "--max-retries", "0", "--over-bound", "next-run"];
    let run = begin(store.command().args(flags).args(["--", "sh", "-c", &script]));
    store.wait_for(5);
    signal("-TERM", run.id());
    let Output { status, stdout, .. } = run.ended_with_output();
    let statuses: Vec<Value> = String::from_utf8_lossy(&stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("a summary")["status"].clone())
        .collect();
    assert_eq!(statuses[..3], ["DEFERRED", "DEFERRED", "DEFERRED"], "one for each run");
    assert_eq!((statuses.last(), status.code()), (Some(&json!("SUCCESS")), Some(0)), "{statuses:?}");
}

#[test]
fn a_user_in_a_hurry_waits_for_no_judge() {
    let store = Store::of(&["a"]);
    let judge = "sh -c 'echo judge >> log; exec sleep 600'";
    let mut run = begin(store.command().args(["--judge", judge, "--", "sh", "-c", &format!("{NOTE} exit 1")]));
    store.wait_for(2);
    let mut heard = interrupt_twice(&mut run);
    let mut log = String::new();
    reading(&run, "its log", || heard.read_to_string(&mut log)).expect("text");
    let Ran { code, summary, .. } = ended(run.ended_with_output());
    assert_eq!((code, &summary["stopped"], &summary["deferred"]), (3, &json!("interrupted"), &json!(1)), "{log}");
    assert!(!log.contains("gave no answer"), "it was given no time: {log}");
    assert_eq!(store.item("a").attempts, 1, "the try counts");
}

#[test]
fn a_persons_retry_opens_a_stopped_group_while_a_worker_stays() {
    let store = Store::of(&["a", "b"]);
    let script = format!("{NOTE} test -e key || exit 77");
    let run = begin(store.command().args(["--stay", "--concurrency", "1", "--", "sh", "-c", &script]));
    store.wait_for(1);
    until(|| store.scopes().len() == 1);
    std::fs::write(store.job.path("key"), "a good one").expect("room");
    let (code, log) = crate::support::finish(store.job.paceline().args(["tasks", "retry", "--store", "work.db", "a"]));
    assert_eq!(code, 0, "{log}");
    store.wait_for(3);
    assert!(store.scopes().is_empty());
    signal("-INT", run.id());
    let Ran { code, log, .. } = ended(run.ended_with_output());
    assert!(code == 0 && log.contains("the group is open again"), "{log}");
}

#[test]
fn a_worker_may_wait_for_work() {
    let store = Store::of(&["a"]);
    let run = begin(store.command().args(["--stay", "--", "sh", "-c", NOTE]));
    store.wait_for(1);
    store.add("b", &json!(2));
    store.wait_for(2);
    signal("-INT", run.id());
    let Ran { code, summary, log } = ended(run.ended_with_output());
    assert_eq!((code, &summary["succeeded"]), (0, &json!(2)), "{log}");
}

#[test]
fn an_empty_store_is_told() {
    let store = Store::new();
    store.put(Vec::new());
    let Ran { code, log, .. } = ran(store.command().args(["--", "true"]));
    assert!(log.contains("there are no items in the store"), "{log}");
    assert_eq!(code, 0, "{log}");
}

#[test]
fn bad_usage_begins_nothing() {
    let store = Store::of(&["a"]);
    for (flags, expected) in [
        (&["--", "./no-such-command"][..], "cannot execute ./no-such-command"),
        (&["--", "/etc/passwd"], "cannot execute /etc/passwd"),
        (&[], "COMMAND"),
        (&["--http", "--", "true"], "cannot be used with"),
        (&["--base-url", "http://localhost:1", "--", "true"], "--http"),
        (&["-o", "out.jsonl", "--", "true"], "--http"),
        (&["--concurrency", "0", "--", "true"], "--concurrency"),
        (&["--first-delay", "10m", "--cap", "5m", "--", "true"], "--first-delay"),
        (&["--multiplier", "0.5", "--", "true"], "multiplier"),
        (&["--limit", "fast", "--", "true"], "fast"),
        (&["--tpm", "200k", "--", "true"], "cannot apply to a command"),
        (&["--workers", "0", "--", "true"], "--concurrency"),
        (&["--stay", "--every", "1h", "--", "true"], "cannot be used with"),
        (&["--judge", "./no-such-judge", "--", "true"], "./no-such-judge"),
        (&["--summary", "no/such/folder", "--", "true"], "no/such/folder"),
    ] {
        let Ran { code, log, .. } = ran(store.command().args(flags));
        assert_eq!(code, 2, "{flags:?}: {log}");
        assert!(log.contains(expected), "{flags:?}: {log}");
    }
}

#[test]
fn a_command_may_be_paceline_itself() {
    let store = Store::of(&["a"]);
    let paceline = env!("CARGO_BIN_EXE_paceline");
    let Ran { code, log, .. } = ran(store.command().args(["--", paceline, "check", "--upstream", "mock"]));
    assert_eq!(code, 0, "{log}");
}
