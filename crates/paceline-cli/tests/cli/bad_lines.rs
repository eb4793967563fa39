//! Lines that cannot be sent, when a run is asked to go on without them; and oddities of a file that are none.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Job, Reply, Server, finish, line};

#[test]
fn bad_lines_are_skipped_when_asked_and_count_as_failed() {
    for flag in ["--skip-bad-lines", "--no-check"] {
        let server = Server::new(|_| Reply::ok());
        let bad_url = r#"{"custom_id":"x","url":"nowhere","body":{}}"#;
        let job = Job::with_input(&[&line("a"), "{", &line("b"), &line("a"), bad_url, &line("x")].join("\n"));
        let run = || finish(job.run(&server).arg(flag));
        let (code, log) = run();
        assert_eq!((code, server.count()), (1, 2), "{log}");
        assert_eq!(log.contains("line 4: duplicate_custom_id"), flag == "--skip-bad-lines", "{log}");
        let errors = job.lines("out.errors.jsonl");
        let codes: Vec<_> = errors.iter().map(|line| (&line["custom_id"], &line["error"]["code"])).collect();
        assert_eq!(
            codes,
            [
                (&Value::Null, &json!("invalid_json_line")),
                (&Value::Null, &json!("duplicate_custom_id")),
                (&json!("x"), &json!("invalid_url")),
                (&Value::Null, &json!("duplicate_custom_id")),
            ]
        );
        assert!(errors.iter().all(|line| line["response"].is_null()));
        assert_eq!(
            errors[1]["error"],
            json!({"code": "duplicate_custom_id", "message": "the same custom_id as in line 1", "line": 4})
        );
        let rows = job.lines("out.report.jsonl");
        assert_eq!((&rows[0]["custom_id"], &rows[0]["class"]), (&Value::Null, &json!("invalid")));
        assert_eq!((rows.len(), &rows[2]["attempts"], &rows[2]["reason"]), (4, &json!(0), &json!("invalid")));
        let summary = job.summary();
        assert_eq!([&summary["input"], &summary["succeeded"], &summary["failed"]], [6, 2, 4]);

        let (code, log) = run();
        assert_eq!((code, server.count()), (1, 2), "{log}");
        assert_eq!(job.lines("out.errors.jsonl"), errors, "nothing twice");
        let (code, log) = finish(job.run(&server).args([flag, "--retry-failed"]));
        assert_eq!((code, server.count()), (1, 2), "what cannot be sent is no failed call: {log}");
        assert_eq!(job.lines("out.errors.jsonl"), errors);
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn without_a_check_calls_leave_while_the_input_is_read() {
    const LINES: usize = 6_200;
    let lines: Vec<_> = (0..LINES)
        .map(|n| match n % 100 {
            0 => line(&format!("item-{n}")),
            1 => line("item-0"),
            _ => "{".to_owned(),
        })
        .collect();
    let good = LINES / 100;
    let (server, job) = (Server::new(|_| Reply::ok()), Job::with_input(&lines.join("\n")));
    let (code, log) = finish(job.run(&server).args(["--no-check", "--max-items", "1"]));
    assert_eq!((code, server.count()), (3, 1), "{log}");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (1, good), "a run reads on without being told again: {log}");
    let summary = job.summary();
    assert_eq!(
        [&summary["input"], &summary["succeeded"], &summary["unread"]],
        [&json!(LINES), &json!(good), &json!(false)]
    );
    let errors = job.lines("out.errors.jsonl");
    let codes: BTreeSet<_> = errors.iter().map(|error| error["error"]["line"].as_u64()).collect();
    assert_eq!((errors.len(), codes.len()), (LINES - good, LINES - good), "each once");
    let repeated = errors.iter().filter(|error| error["error"]["code"] == "duplicate_custom_id").count();
    assert_eq!(repeated, good);
    let (code, log) = finish(job.run(&server).arg("--no-check"));
    assert_eq!((code, server.count()), (1, good), "{log}");
}

#[test]
fn skipped_lines_are_no_sign_that_everything_fails() {
    let server = Server::new(|_| Reply::error(400, "no"));
    let good: Vec<_> = (0..25).map(|n| line(&format!("item-{n}"))).collect();
    let job = Job::with_input(&("{\n".repeat(30) + &good.join("\n")));
    let (code, log) = finish(job.run(&server).args(["--skip-bad-lines", "--concurrency", "1"]));
    assert_eq!(code, 3, "the twenty that were sent are: {log}");
    let summary = job.summary();
    assert_eq!([&summary["failed"], &summary["deferred"], &summary["calls"]], [30, 25, 20]);
}

#[test]
fn what_editors_and_other_systems_leave_in_a_file_is_accepted() {
    let server = Server::new(|_| Reply::ok());
    let (a, b) = (line("a"), line("b"));
    for text in
        [format!("\u{feff}{a}\n{b}\n"), format!("{a}\r\n{b}\r\n"), format!("\n\n{a}\n  \n{b}\n\n"), format!("{a}\n{b}")]
    {
        let job = Job::with_input(&text);
        let (code, log) = finish(&mut job.run(&server));
        assert_eq!(code, 0, "{text:?}: {log}");
        job.assert_adds_up(2);
    }
    assert_eq!(server.count(), 8);
}

#[test]
fn a_line_with_an_id_of_another_name_says_which() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::with_input(&"{\"id\":1,\"url\":\"/x\",\"body\":{}}\n".repeat(30));
    let (code, log) = finish(&mut job.run(&server));
    let expected = "lines 1, 2, 3 and 27 more: missing_custom_id: custom_id: missing: rename \"id\" to \"custom_id\"\n";
    assert!(code == 2 && log.contains(expected), "{log}");
}
