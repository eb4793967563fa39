//! The words of the interface, which scripts rely on.

use crate::bounded::BoundedOutput;
use crate::support::{Job, finish};

fn help(command: &[&str]) -> String {
    let output = Job::new(0).paceline().args(command).arg("--help").env("COLUMNS", "120").ended_with_output();
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn of_every_command() {
    insta::assert_snapshot!("paceline", help(&[]));
    for command in
        ["run", "collect", "tasks", "plan", "check", "stats", "explain", "mock", "sim", "completions", "top", "report"]
    {
        insta::assert_snapshot!(command, help(&[command]));
    }
    for command in ["add", "run", "list", "show", "retry", "cancel", "report"] {
        insta::assert_snapshot!(format!("tasks_{command}"), help(&["tasks", command]));
    }
    insta::assert_snapshot!("sim_plan", help(&["sim", "plan"]));
}

/// What a user sees who gets it wrong: each message says what happened and what to do, and the program exits with 2.
#[test]
fn of_every_wrong_turn() {
    let job = Job::new(1);
    let run = ["run", "in.jsonl", "-o", "out.jsonl"];
    let mut output_text = String::new();
    for more in [
        &["run", "in.jsonl"][..],
        &run,
        &[&run[..], &["--upstream", "nowhere"]].concat(),
        &[&run[..], &["--upstream", "openai"]].concat(),
        &[&run[..], &["--upstream", "mock", "--limit", "ten"]].concat(),
        &[&run[..], &["--upstream", "mock", "--max-items", "0"]].concat(),
        &[&run[..], &["--upstream", "mock", "--max-duration", "soon"]].concat(),
        &[&run[..], &["--upstream", "mock", "--max-item", "5"]].concat(),
        &[&run[..], &["--upstream", "mock", "-x"]].concat(),
        &[&run[..], &["--base-url", "http://127.0.0.1:9", "--header", "bad name: 1"]].concat(),
        &["tasks", "add", "--store", "s.db", "no JSON"],
        &["tasks", "run", "--store", "s.db", "--concurrency", "0", "--", "true"],
        &["stats"],
        &["stats", "missing.jsonl"],
        &["stats", "--items", "--history"],
        &["completions", "tcsh"],
    ] {
        let (code, log) = finish(job.paceline().args(more).env("COLUMNS", "120"));
        assert_eq!(code, 2, "{log}");
        output_text += &format!("$ paceline {}\n{log}\n", more.join(" "));
    }
    insta::assert_snapshot!("wrong_turns", output_text);
}
