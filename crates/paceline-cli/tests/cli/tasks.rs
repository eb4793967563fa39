//! `tasks`: items into a store, and what a person sees and does there.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Job, finish};

/// `paceline tasks COMMAND --store s.db ...`.
fn tasks(job: &Job, command: &str, more: &[&str]) -> Command {
    let mut tasks = job.paceline();
    tasks.args(["tasks", command, "--store", "s.db"]).args(more);
    tasks
}

/// What it prints when it succeeds.
fn told(command: &mut Command) -> String {
    let output = command.output().expect("the binary runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn add(job: &Job, more: &[&str]) -> String {
    told(&mut tasks(job, "add", more))
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
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("a code"), text(output.stdout), text(output.stderr))
}

#[test]
fn an_item_without_a_key_gets_one_and_one_with_a_key_is_added_once() {
    let job = Job::new(0);
    let (first, second) = (add(&job, &["{\"n\": 1}"]), add(&job, &["{\"n\": 1}"]));
    assert!(first.len() == 37 && first < second, "keys in the order of time: {first}{second}");
    assert_eq!(add(&job, &["--key", "a", "1"]), "1 added\n");
    assert_eq!(add(&job, &["--key", "a", "2"]), "0 added, 1 was there already (1 waiting)\n");
    let json: Value = serde_json::from_str(&add(&job, &["--json", "1"])).expect("JSON");
    assert_eq!((&json["added"], json["key"].as_str().map(str::len)), (&1.into(), Some(36)));
}

#[test]
fn a_file_may_be_added_again_and_is_added_whole_or_not_at_all() {
    let job = Job::new(0);
    let lines: String = (0..2_500).map(|n| format!("{}\n", json!({"key": format!("k{n}"), "payload": n}))).collect();
    let (code, told, _) = add_from(&job, &format!("\u{feff}{lines}\r\n\n"));
    assert_eq!((code, told.as_str()), (0, "2,500 added\n"));
    let (code, told, _) = add_from(&job, &(lines.clone() + "{\"key\":\"new\",\"payload\":null}"));
    assert_eq!((code, told.as_str()), (0, "1 added, 2,500 were there already (2,500 waiting)\n"));

    let job = Job::new(0);
    let wrong = "{\"key\":\"k1\",\"payload\":0}\n{\"kay\":1}\n".to_owned() + &"nonsense\n".repeat(30);
    let (code, told, log) = add_from(&job, &(lines + &wrong));
    assert_eq!((code, told.as_str()), (2, ""));
    for words in [
        "nothing was added, because of lines of standard input:\n",
        "\n  line 2501: the key \"k1\" stands in line 2 already\n",
        "\n  line 2502: unknown field `kay`",
        "\n  line 2503: expected a JSON object\n",
        "\n  and 12 more\n",
    ] {
        assert!(log.contains(words), "{words} in {log}");
    }
    assert!(!job.path("s.db").exists());
}

#[test]
fn what_is_no_item_and_no_store_is_refused() {
    let job = Job::new(0);
    std::fs::write(job.path("text"), "not a store, but a text that somebody needs\n".repeat(100)).expect("writable");
    for (more, words) in [
        (&["--store", "s.db", "text"][..], "the payload is no JSON"),
        (&["--store", "s.db", "--key", "", "1"], "at least one character"),
        (&["--store", "s.db", "--group", "", "1"], "at least one character"),
        (&["--store", "s.db", "--priority", "99999", "1"], "99999"),
        (&["--store", "s.db", "--not-before", "soon", "1"], "an instant such as"),
        (&["--store", "s.db", "--from", "missing.jsonl"], "cannot read missing.jsonl"),
        (&["--store", "text", "1"], "text is not a store of paceline"),
        (&["--store", "postgres://127.0.0.1:1/none", "1"], "127.0.0.1"),
        (&["1"], "--store"),
    ] {
        let (code, log) = finish(job.paceline().args(["tasks", "add"]).args(more));
        assert!(code == 2 && log.contains(words), "{more:?}: {code} {log}");
    }
}
