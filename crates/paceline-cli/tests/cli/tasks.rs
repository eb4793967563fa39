//! `tasks`: items into a store, and what a person sees and does there.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use paceline_core::{Backoff, Class, Growth, Jitter};
use paceline_store::work::{Failure, OverBound, Scheduler, SchedulerConfig, SqliteStore, WorkClock};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr as _;

use crate::bounded::{Bounded, BoundedOutput, output_of, reading};
use crate::support::{Job, finish};

/// `paceline tasks COMMAND --store s.db ...`.
fn tasks(job: &Job, command: &str, more: &[&str]) -> Command {
    let mut tasks = job.paceline();
    tasks.args(["tasks", command, "--store", "s.db"]).args(more);
    tasks
}

/// What it prints when it succeeds.
fn stdout_of(command: &mut Command) -> String {
    let output = command.ended_with_output();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn add(job: &Job, more: &[&str]) -> String {
    stdout_of(&mut tasks(job, "add", more))
}

/// The same with `input` on its standard input.
fn add_from(job: &Job, input: &str) -> (i32, String, String) {
    let mut child = tasks(job, "add", &["--from", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it is read");
    let output = child.ended_with_output();
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("a code"), text(output.stdout), text(output.stderr))
}

/// Works on the store until nothing can be done for a minute. The payload of an item is the class of what becomes of it;
/// with a `?` before it, of its first try only.
fn work(job: &Job, over_bound: OverBound) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let clock = WorkClock::system();
    let store = SqliteStore::open(job.path("s.db"), clock.clone()).expect("a store");
    let delay = Duration::from_millis(1);
    let backoff = Backoff { growth: Growth::Constant { delay }, jitter: Jitter::None };
    let policy =
        SchedulerConfig { backoff, over_bound, max_wait: Duration::from_secs(60), ..SchedulerConfig::default() };
    let scheduler = Scheduler::new(Arc::new(store), policy, clock).expect("makes sense");
    let run = scheduler.run(|task| async move {
        let says: String = serde_json::from_str(task.payload()).expect("a text");
        let class = match says.strip_prefix('?') {
            Some(_) if task.attempt() > 1 => None,
            Some(class) => Class::from_name(class),
            None => Class::from_name(&says),
        };
        match class {
            None => Ok(()),
            Some(class) => Err(Failure::new(class, format!("it is\u{1b}[31m {class} | <b>")).with_status(503)),
        }
    });
    runtime.block_on(run).expect("a disk");
}

/// A store with an item for each end, and as many as `more` that simply succeed.
fn worked(more: usize) -> Job {
    let job = Job::new(0);
    let mut lines: Vec<Value> = (0..more).map(|n| json!({"key": format!("fine-{n}"), "payload": "fine"})).collect();
    lines.extend([
        json!({"key": "wrong", "payload": "invalid"}),
        json!({"key": "broken", "payload": "transient"}),
        json!({"key": "again", "payload": "?transient"}),
        json!({"key": "later", "payload": "fine", "not_before": "100d"}),
        json!({"key": "never", "payload": "fine", "not_before": "9999-12-30T00:00:00Z"}),
        json!({"key": "keyless", "payload": "account", "group": "locked"}),
    ]);
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(add_from(&job, &lines).0, 0);
    work(&job, OverBound::Fail);
    job
}

fn json_of(job: &Job, command: &str, more: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(tasks(job, command, more).arg("--json"))).expect("JSON")
}

/// The first words of each line of a table.
fn columns(table: &str, count: usize) -> Vec<String> {
    table.lines().map(|line| line.split_whitespace().take(count).collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn list_says_where_each_item_stands_with_the_whole_error_where_there_is_no_terminal() {
    let job = worked(1);
    let table = stdout_of(&mut tasks(&job, "list", &[]));
    assert_eq!(
        columns(&table, 6),
        [
            "KEY STATE SENDS DUE, WHY LAST",
            "fine-0 succeeded 1",
            "wrong failed 1 invalid 503 it",
            "broken failed 4 max_retries 503 it",
            "again succeeded 2",
            "later waiting 0 in 100d 0h",
            "never waiting 0 9999-12-30",
            "keyless waiting 1 scope_stopped 503 it",
        ]
    );
    assert!(table.lines().any(|line| line.ends_with("transient | <b>")) && !table.contains('\u{1b}'), "{table}");
    let chosen =
        stdout_of(&mut tasks(&job, "list", &["--state", "failed", "--state", "waiting", "--group", "default"]));
    assert_eq!(columns(&chosen, 1), ["KEY", "wrong", "broken", "later", "never"]);
    assert_eq!(columns(&stdout_of(&mut tasks(&job, "list", &["--limit", "2"])), 1), ["KEY", "fine-0", "wrong"]);
    assert_eq!(stdout_of(&mut tasks(&job, "list", &["--state", "skipped"])), "no such items\n");
    assert_eq!(stdout_of(&mut tasks(&job, "list", &["--state", "skipped", "--json"])), "");
}

/// Chinese letters are two columns wide, accents that join a letter none, and a family is one letter.
#[test]
fn wide_letters_keep_tables_in_their_columns() {
    let job = Job::new(0);
    let keys = ["订单".repeat(20), "e\u{301}".repeat(9), "e\u{301}".repeat(30), "👩\u{200d}👩\u{200d}👧 7".to_owned()];
    let payload = "服务器太忙,请稍后再试。".repeat(9);
    let lines = keys.iter().map(|key| format!("{}\n", json!({"key": key, "payload": payload, "not_before": "2h"})));
    assert_eq!(add_from(&job, &lines.collect::<String>()).0, 0);
    let (list, report) = (stdout_of(&mut tasks(&job, "list", &[])), stdout_of(&mut tasks(&job, "report", &[])));
    let rows = |table: &str, state: &str| -> Vec<usize> {
        let columns = table.lines().filter_map(|line| Some(line.split_once(&format!(" {state} "))?.0.width()));
        columns.collect()
    };
    assert_eq!((rows(&list, "waiting"), rows(&report, "deferred")), (vec![24; 4], vec![24; 4]), "{list}{report}");
    let shown = stdout_of(&mut tasks(&job, "show", &[&keys[0]]));
    assert!((list + &report + &shown).lines().all(|line| line.width() <= 80), "{shown}");
    assert!(shown.replace("\n            ", "").contains(&payload), "{shown}");
}

#[test]
fn list_goes_on_beyond_its_first_page_until_its_reader_is_gone() {
    let job = Job::new(0);
    let lines: String = (0..2_500).map(|n| format!("{}\n", json!({"key": format!("k{n}"), "payload": n}))).collect();
    assert_eq!(add_from(&job, &lines).0, 0);
    let all = stdout_of(tasks(&job, "list", &["--json", "--limit", "2300"]).stdin(Stdio::null()));
    let keys: Vec<Value> =
        all.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["key"].clone()).collect();
    assert_eq!(keys, (0..2_300).map(|n| Value::from(format!("k{n}"))).collect::<Vec<_>>());
    let mut reader = tasks(&job, "list", &[]).stdout(Stdio::piped()).spawn().expect("the binary runs");
    drop(reader.stdout.take());
    assert!(reader.ended().success());
}

#[test]
fn show_tells_the_payload_and_every_decision() {
    let job = worked(0);
    let shown = json_of(&job, "show", &["broken"]);
    assert_eq!(
        (&shown["payload"], &shown["state"], &shown["attempts"]),
        (&"transient".into(), &"failed".into(), &4.into())
    );
    let decisions = shown["decisions"].as_array().expect("decisions");
    let actions: Vec<_> = decisions.iter().map(|decision| (&decision["send"], &decision["action"])).collect();
    assert_eq!(json!(actions), json!([[1, "retry"], [2, "retry"], [3, "retry"], [4, "fail"]]));
    assert!(decisions[..3].iter().all(|decision| decision["waited_s"].as_f64() >= Some(0.001)), "{decisions:?}");
    assert!(decisions[0]["not_before"].is_string() && decisions[3]["not_before"].is_null());
    let text = stdout_of(&mut tasks(&job, "show", &["keyless"]));
    assert!(
        text.starts_with("keyless\n  state     waiting (scope_stopped)\n  group     locked, priority 0\n"),
        "{text}"
    );
    assert!(text.contains("decided: stop the group\n") && !text.contains('\u{1b}'), "{text}");
    let (code, log) = finish(&mut tasks(&job, "show", &["nobody"]));
    assert!(code == 2 && log.contains("no item is called \"nobody\""), "{log}");
}

#[test]
fn report_adds_up_and_has_a_row_for_each_item_that_did_not_simply_succeed() {
    let job = worked(40);
    let report = json_of(&job, "report", &[]);
    let number = |key: &str| report[key].as_u64().expect(key);
    let ends = ["succeeded", "failed", "skipped", "cancelled", "deferred"].map(number);
    assert_eq!(ends, [41, 2, 0, 0, 3]);
    assert_eq!((number("input"), ends.iter().sum::<u64>()), (46, 46));
    assert_eq!((number("calls"), number("resends"), &report["status"]), (48, 4, &"DEFERRED".into()));
    assert_eq!(report["reasons"]["deferred"], json!({"not_before": 2, "scope_stopped": 1}));
    assert_eq!((&report["groups"][0]["name"], &report["groups"][0]["state"]), (&"locked".into(), &"stopped".into()));
    let rows = report["items"].as_array().expect("rows");
    let mut keys: Vec<_> = rows.iter().map(|row| row["key"].as_str().expect("a key")).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["again", "broken", "keyless", "later", "never", "wrong"]);
    let row = |key: &str| rows.iter().find(|row| row["key"] == key).expect("a row");
    assert_eq!((&row("wrong")["fatal"], &row("wrong")["retryable"]), (&true.into(), &false.into()));
    assert_eq!((&row("keyless")["state"], &row("keyless")["class"]), (&"deferred".into(), &"account".into()));
    assert!(row("later")["retry_not_before"].is_string());
}

#[test]
fn a_report_replaces_a_file_and_nothing_else() {
    let job = worked(0);
    std::fs::write(job.path("real.txt"), "an old one").expect("room");
    std::os::unix::fs::symlink("real.txt", job.path("link.txt")).expect("a link");
    stdout_of(&mut tasks(&job, "report", &["-o", "link.txt"]));
    assert!(std::fs::read_to_string(job.path("real.txt")).expect("a report").starts_with("DEFERRED"));
    assert!(job.path("link.txt").is_symlink());
    // A pipe, whose place root could take like that of /dev/null.
    assert!(Command::new("mkfifo").arg(job.path("pipe")).ended().success());
    let mut reader = Command::new("cat").arg(job.path("pipe")).stdout(Stdio::piped()).spawn().expect("cat");
    stdout_of(&mut tasks(&job, "report", &["-o", "pipe"]));
    let mut read = String::new();
    let mut pipe = reader.stdout.take().expect("a pipe");
    reading(&reader, "the report", || pipe.read_to_string(&mut read)).expect("a report");
    assert!(read.starts_with("DEFERRED"), "{read}");
    assert!(reader.ended().success());
}

#[test]
fn report_is_words_or_markdown_for_people() {
    let job = worked(0);
    let text = stdout_of(&mut tasks(&job, "report", &[]));
    assert!(
        text.starts_with(
            "DEFERRED  6 items: 1 succeeded, 2 failed, 0 skipped, 0 cancelled, 3 not finished\n  8 calls, 4 of them repeated\n  \
             no worker is at work on the store\n  failed: 1 (invalid), 1 (max_retries)\n"
        ),
        "{text}"
    );
    assert!(
        text.contains("\n  stopped: group locked: it is") && text.contains("fix the cause, and the next"),
        "{text}"
    );
    assert!(!text.contains('…') && !text.contains('\u{1b}'), "{text}");
    stdout_of(&mut tasks(&job, "report", &["--format", "markdown", "-o", "report.md"]));
    let markdown = std::fs::read_to_string(job.path("report.md")).expect("a report");
    assert!(markdown.contains("\n| broken | failed | transient | 503 | 4 |  | max\\_retries | it is"), "{markdown}");
    assert!(markdown.contains(" transient \\| \\<b\\> |\n"), "{markdown}");

    let lines: String = (0..30).map(|n| format!("{}\n", json!({"key": format!("k{n}"), "payload": n}))).collect();
    assert_eq!(add_from(&job, &lines).0, 0);
    let text = stdout_of(&mut tasks(&job, "report", &[]));
    assert!(text.ends_with("\n... and 16 more rows; --json has all of them\n"), "{text}");
}

#[test]
fn what_a_person_retries_or_cancels_is_said_and_done() {
    let job = worked(2);
    let changed = |command: &str, more: &[&str]| stdout_of(&mut tasks(&job, command, more));
    assert_eq!(changed("retry", &["broken", "wrong", "fine-1"]), "2 items are due again\n");
    assert_eq!(
        changed("retry", &["fine-1"]),
        "nothing to retry: items that succeeded or are in flight stay as they are (KEY --again sends those that succeeded once more)\n"
    );
    assert_eq!(changed("cancel", &["--group", "locked"]), "1 item cancelled\n");
    assert_eq!(changed("cancel", &["later", "wrong"]), "2 items cancelled\n");
    assert_eq!(changed("cancel", &["later"]), "nothing to cancel: items that have ended stay as they are\n");
    let unknown = "no item is of the group \"lokced\" (there are default, locked)\n";
    for (command, words) in [("cancel", "nothing to cancel: "), ("retry", "nothing to retry: "), ("list", "")] {
        assert_eq!(changed(command, &["--group", "lokced"]), format!("{words}{unknown}"));
    }
    assert_eq!(
        changed("retry", &["--state", "failed,cancelled", "--group", "default"]),
        "2 items are due again (cancelled before)\n"
    );
    assert_eq!(
        changed("retry", &["--all", "--json"]),
        "{\"changed\":5,\"cancelled\":1,\"may_be_done\":0,\"left_out\":0}\n"
    );
    assert_eq!(json_of(&job, "report", &[])["reasons"]["deferred"], json!({"not_started": 2, "run_bound": 3}));
    for (more, expected) in [
        (&["retry"][..], "name the items: KEY ..., --state, --group, or --all"),
        (&["retry", "--only-status", "410"], "--only-status narrows a choice: add --all, --group, --state or KEY"),
        (&["cancel"], "or --all"),
        (&["cancel", "later", "nobody"], "no item is called \"nobody\", and nothing was changed"),
        (&["retry", "--state", "done"], "expected one of waiting, in_flight, succeeded"),
        (&["retry", "--all", "later"], "cannot be used with"),
    ] {
        let (code, log) = finish(&mut tasks(&job, more[0], &more[1..]));
        assert!(code == 2 && log.contains(expected), "{more:?}: {code} {log}");
    }
    assert_eq!(json_of(&job, "show", &["later"])["state"], "waiting");
}

#[test]
fn a_store_that_is_not_there_is_not_made_by_looking() {
    let job = Job::new(0);
    for (command, more) in [("list", &[][..]), ("show", &["a"]), ("report", &[]), ("retry", &["a"]), ("cancel", &["a"])]
    {
        let (code, log) = finish(&mut tasks(&job, command, more));
        assert!(code == 2 && log.contains("there is no store s.db; `paceline tasks add --store s.db"), "{log}");
    }
    assert!(!job.path("s.db").exists());
}

#[test]
fn an_item_without_a_key_gets_one_and_one_with_a_key_is_added_once() {
    let job = Job::new(0);
    let (first, second) = (add(&job, &["{\"n\": 1}"]), add(&job, &["{\"n\": 1}"]));
    assert!(first.len() == 37 && first < second, "keys in the order of time: {first}{second}");
    assert_eq!(add(&job, &["--key", "a", "1"]), "1 added\n");
    assert_eq!(add(&job, &["--key", "a", "1"]), "0 added, 1 was there already (1 waiting)\n");
    let other = "0 added, 1 was there already (1 waiting), with another payload, which stays as it is\n";
    assert_eq!(add(&job, &["--key", "a", "2"]), other);
    let json: Value = serde_json::from_str(&add(&job, &["--json", "1"])).expect("JSON");
    assert_eq!((&json["added"], json["key"].as_str().map(str::len)), (&1.into(), Some(36)));
}

#[test]
fn a_file_may_be_added_again_and_is_added_whole_or_not_at_all() {
    let job = Job::new(0);
    let lines: String = (0..2_500).map(|n| format!("{}\n", json!({"key": format!("k{n}"), "payload": n}))).collect();
    let (code, stdout, _) = add_from(&job, &format!("\u{feff}{lines}\r\n\n"));
    assert_eq!((code, stdout.as_str()), (0, "2,500 added\n"));
    let (code, stdout, _) = add_from(&job, &(lines.clone() + "{\"key\":\"new\",\"payload\":null}"));
    assert_eq!((code, stdout.as_str()), (0, "1 added, 2,500 were there already (2,500 waiting)\n"));

    let job = Job::new(0);
    let wrong = "{\"key\":\"k1\",\"payload\":0}\n{\"kay\":1}\n{\"key\":\"\\u0000\",\"payload\":0}\n".to_owned()
        + &"nonsense\n".repeat(30);
    let (code, stdout, log) = add_from(&job, &(lines + &wrong));
    assert_eq!((code, stdout.as_str()), (2, ""));
    for expected in [
        "nothing was added, because lines of standard input are wrong:\n",
        "\n  line 2501: line 2 has the same key, \"k1\"\n",
        "\n  line 2502: unknown field `kay`",
        "\n  line 2503: the key of item \"\\0\" holds a NUL character, which neither ",
        "\n  line 2504: expected a JSON object, {\"key\":",
        "\n  and 13 more\n",
    ] {
        assert!(log.contains(expected), "{expected} in {log}");
    }
    assert!(!job.path("s.db").exists());
}

#[test]
fn what_is_no_item_and_no_store_is_refused() {
    let job = Job::new(0);
    std::fs::write(job.path("text"), "not a store, but a text that the user needs\n".repeat(100)).expect("writable");
    for (more, expected) in [
        (&["--store", "s.db", "text"][..], "the payload is not JSON"),
        (&["--store", "s.db", "--key", "", "1"], "at least one character"),
        (&["--store", "s.db", "--group", "", "1"], "at least one character"),
        (&["--store", "s.db", "--priority", "99999", "1"], "99999"),
        (&["--store", "s.db", "--not-before", "soon", "1"], "an instant such as"),
        (&["--store", "s.db", "--from", "missing.jsonl"], "cannot read missing.jsonl"),
        (&["--store", "text", "1"], "text is not a store of paceline"),
        (&["--store", "postgres://here:port/none", "1"], "no address of a Postgres database"),
        (&["1"], "--store"),
    ] {
        let (code, log) = finish(job.paceline().args(["tasks", "add"]).args(more));
        assert!(code == 2 && log.contains(expected), "{more:?}: {code} {log}");
    }
}

/// Where systemd is, it has read the samples. The commands that they name are replaced by such as are there.
#[cfg(unix)]
#[test]
fn the_samples_for_systemd_are_units() {
    let job = Job::new(0);
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = env!("CARGO_BIN_EXE_paceline");
    let units = [
        ("paceline-tasks.service", "/usr/local/bin/paceline", program),
        ("paceline-tasks.timer", "", ""),
        ("paceline-tasks-worker.service", "/usr/local/bin/paceline", program),
        ("paceline-run.service", "/usr/local/bin/paceline", program),
        ("paceline.service", "/usr/local/bin/paceline", program),
        ("paceline.socket", "", ""),
    ];
    for (name, from, to) in units {
        let unit = std::fs::read_to_string(root.join("docs/systemd").join(name)).expect("a sample");
        assert!(unit.contains(from), "{unit}");
        let is_open = unit.contains("[Service]") && !unit.contains("\nNoNewPrivileges=yes\n");
        assert!(!is_open && !unit.contains("--max-wait"), "it has what it needs and nothing else: {unit}");
        // A job or a group that a refused key stopped ends with 3: no unit calls that a success for good.
        let [has_key, takes_3, starts] =
            ["\nLoadCredential=", "\nSuccessExitStatus=3", "\nStartLimitBurst="].map(|line| unit.contains(line));
        let expected = match name {
            "paceline-tasks.service" => [true, false, false],
            "paceline-run.service" => [true, true, true],
            "paceline.service" => [true, false, false],
            _ => [false; 3],
        };
        assert_eq!([has_key, takes_3, starts], expected, "{name}");
        std::fs::write(job.path(name), unit.replace(from, to)).expect("writable");
    }
    let units = units.map(|(name, ..)| job.path(name));
    match output_of(Command::new("systemd-analyze").arg("verify").args(units)) {
        Ok(verified) => {
            let expected = String::from_utf8_lossy(&verified.stderr);
            assert!(verified.status.success() && !expected.contains("paceline"), "{expected}");
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
    }
}

#[test]
fn a_store_and_a_journal_are_told_apart() {
    let server = crate::support::Server::new(|_| crate::support::Reply::ok());
    let job = Job::new(1);
    assert_eq!(finish(&mut job.run(&server)).0, 0);
    let (code, log) = finish(job.paceline().args(["tasks", "add", "--store", "work.db", "--key", "a", "{}", "-q"]));
    assert_eq!((code, log.as_str()), (0, ""), "quiet says nothing");
    for (command, expected) in [
        (
            ["tasks", "list", "--store", "out.journal"].as_slice(),
            "out.journal is the journal of a run, not a store of tasks; `paceline stats out.journal` shows that run",
        ),
        (
            &["stats", "work.db"],
            "work.db is a store of tasks, not the journal of a run; `paceline tasks list --store work.db` shows it",
        ),
    ] {
        let (code, log) = finish(job.paceline().args(command));
        assert!(code == 2 && log.contains(expected), "{command:?}: {code} {log}");
    }
}
