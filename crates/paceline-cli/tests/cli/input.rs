//! What is sent, and what is refused before anything is.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::bounded::{Bounded, BoundedOutput};
use crate::support::{Job, Reply, Server, finish, line, start};

#[test]
fn bad_lines_are_named_and_nothing_is_sent() {
    let server = Server::new(|_| Reply::ok());
    let twice = [line("a"), line("b"), line("a")].join("\n");
    for (input, expected) in [
        ("{\"custom_id\": \"a\"\n", &["line 1: invalid_json_line"][..]),
        ("", &["empty_file"]),
        ("\n\n", &["empty_file"]),
        (twice.as_str(), &["duplicate_custom_id", "line 3", "line 1"]),
        (
            r#"{"custom_id":"a","url":"https://elsewhere.example/v1","body":{}}"#,
            &["invalid_url", "upstream's address", "--scope host"],
        ),
        ("[]\n{}\n", &["line 1: invalid_json_line: an array", "jq -c '.[]'", "line 2: missing_custom_id", "2 lines"]),
        (r#"{"custom_id":"a","url":"/x#part","body":{}}"#, &["line 1: invalid_url", "has a fragment"]),
    ] {
        let job = Job::with_input(input);
        let (code, log) = finish(&mut job.run(&server));
        assert_eq!(code, 2, "{log}");
        assert!(expected.iter().all(|word| log.contains(word)), "{expected:?} in {log}");
        assert!(!job.path("out.jsonl").exists() && !job.path("out.journal").exists());
    }
    assert_eq!(server.count(), 0);
}

#[test]
fn wrong_knobs_are_named_before_any_call() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    for (flags, variables, expected) in [
        (&["--burst", "0"][..], &[][..], &["--burst", "\"0\""][..]),
        (&["--limit", "-5rpm"], &[], &["--limit", "-5rpm"]),
        (&["--limit", "ten rpm"], &[], &["--limit", "ten rpm"]),
        (&["--concurrency", "0"], &[], &["--concurrency", "\"0\""]),
        (&["--max-retries", "NaN"], &[], &["--max-retries", "NaN"]),
        (&["--timeout", "ten"], &[], &["--timeout", "ten"]),
        (&["--timeout", "0"], &[], &["--timeout", "above 0"]),
        (&["--timeout", "-1s"], &[], &["--timeout", "-1s"]),
        (&["--bogus"], &[], &["--bogus"]),
        (&["--upstream", "nobody"], &[], &["nobody", "mock"]),
        (&["--upstream", "openai"], &[("OPENAI_BURST_LIMIT", "0")], &["OPENAI_BURST_LIMIT", "\"0\"", "environment"]),
        (&["--upstream", "openai"], &[("OPENAI_REQUESTS_PER_MINUTE", "NaN")], &["OPENAI_REQUESTS_PER_MINUTE", "NaN"]),
        (&[], &[("PACELINE_UPSTREAM__GENERIC__RETRY__BASE", "90s")], &["PACELINE_UPSTREAM__GENERIC__RETRY__BASE"]),
        (&[], &[("PACELINE_UPSTREAM__GENERIC__RPMM", "1")], &["PACELINE_UPSTREAM__GENERIC__RPMM"]),
        (&[], &[("PACELINE_UPSTREAM__TYPO__RPM", "5")], &["PACELINE_UPSTREAM__TYPO__RPM", "\"5\"", "acme, generic"]),
        (&["--api-key-env", "NOT_SET"], &[], &["NOT_SET"]),
    ] {
        let (code, log) = finish(job.run(&server).args(flags).envs(variables.iter().copied()));
        assert_eq!(code, 2, "{flags:?} {variables:?}: {log}");
        assert!(expected.iter().all(|word| log.contains(word)), "{expected:?} in {log}");
    }
    assert_eq!(server.count(), 0);
    assert!(!job.path("out.journal").exists());
}

#[test]
fn nothing_that_was_paid_for_or_given_is_overwritten() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    let input = std::fs::read(job.path("in.jsonl")).expect("the input");
    for (flags, expected) in [
        (["--summary", "in.jsonl"], ["summary", "input"]),
        (["--summary", "out.jsonl"], ["results", "summary"]),
        (["--summary", "out.journal"], ["journal", "summary"]),
        (["--journal", "out.report.jsonl"], ["report", "journal"]),
        (["--journal", "./out.errors.jsonl"], ["errors", "journal"]),
        (["--summary", "missing/summary.json"], ["cannot write", "missing/summary.json"]),
        (["--summary", "out.input"], ["the summary", "a file of the job"]),
        (["--summary", "out.journal-wal"], ["the summary", "a file of the job"]),
        (["--summary", "out.jsonl.new"], ["the summary", "a file of the job"]),
        (["--journal", "out.input"], ["the journal", "a file of the job"]),
        (["--done", "out.errors.jsonl.new"], ["--done", "a file of the job"]),
    ] {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url()]);
        let (code, log) = finish(command.args(flags));
        assert_eq!(code, 2, "{flags:?}: {log}");
        assert!(expected.iter().all(|word| log.contains(word)), "{expected:?} in {log}");
    }
    assert_eq!(std::fs::read(job.path("in.jsonl")).expect("the input"), input);
    assert_eq!(server.count(), 0);
}

#[test]
fn a_proxy_is_not_asked_for_this_machine() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    let mut command = job.run(&server);
    command.envs([("HTTP_PROXY", "http://127.0.0.1:9"), ("http_proxy", "http://127.0.0.1:9")]);
    assert_eq!(finish(&mut command).0, 0);
    assert_eq!(server.count(), 3);
}

#[test]
fn a_summary_that_could_not_be_written_is_no_success_and_is_told_by_the_same_command() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    for to_file in [false, true] {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &server.url()]);
        if to_file {
            command.args(["--summary", "/dev/full"]);
        } else {
            let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
            command.arg("--json").stdout(full.expect("a device that is always full"));
        }
        let ended = command.stderr(Stdio::piped()).ended_with_output();
        let log = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.code() == Some(3) && log.contains("No space left on device"), "{log}");
    }
    // A reader who has read enough of it knows that.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    assert_eq!(job.run(&server).arg("--json").stdout(writer).ended().code(), Some(0));
    assert_eq!(server.count(), 3);
}

#[test]
fn bodies_paths_and_idempotency_keys_arrive_as_they_should() {
    let server = Server::new(|arrival| match arrival.before {
        0 => Reply::error(500, "oops"),
        _ => Reply::ok(),
    });
    let job = Job::new(2);
    let url = format!("{}/v1", server.url());
    let (code, log) =
        finish(job.run(&server).args(["--upstream", "openai", "--base-url"]).arg(url).env("OPENAI_API_KEY", "k"));
    // The flag was given twice: the last one would be a guess.
    assert_eq!(code, 2, "{log}");

    let mut command = job.paceline();
    command.args([
        "run",
        "in.jsonl",
        "-o",
        "out.jsonl",
        "--upstream",
        "openai",
        "--base-url",
        &format!("{}/v1", server.url()),
    ]);
    let (code, log) = finish(command.env("PACELINE_UPSTREAM__OPENAI__RETRY__BASE", "1ms"));
    assert_eq!(code, 0, "{log}");
    let arrivals = server.arrivals();
    assert_eq!(arrivals.len(), 4);
    assert!(arrivals.iter().all(|arrival| arrival.path == "/v1/chat/completions"));
    let key = |item: &str| {
        let mut keys: Vec<_> = arrivals
            .iter()
            .filter(|arrival| arrival.item == item)
            .map(|arrival| arrival.headers["idempotency-key"].to_str().expect("text").to_owned())
            .collect();
        keys.dedup();
        assert_eq!(keys.len(), 1, "one key for all tries");
        keys.remove(0)
    };
    assert_ne!(key("item-0"), key("item-1"));
    assert!(key("item-1").ends_with("-1"));
}

#[test]
fn ids_may_be_numbers_and_come_back_as_such() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::with_input(r#"{"custom_id":7,"url":"/x","body":{"item":"seven"}}"#);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 0, "{log}");
    assert_eq!(job.lines("out.jsonl")[0]["custom_id"], json!(7));
}

#[test]
fn standard_input_is_kept_so_that_the_job_can_go_on() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(0);
    let run = |text: &str| {
        let mut command = job.paceline();
        command.args(["run", "-", "-o", "out.jsonl", "--base-url", &server.url(), "--summary", "summary.json"]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary runs");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(text.as_bytes()).expect("it reads");
        drop(stdin);
        child.ended().code()
    };
    let text = [line("a"), line("b")].join("\n");
    assert_eq!(run(&text), Some(0));
    assert_eq!(run(&text), Some(0));
    assert_eq!(run(""), Some(0));
    assert_eq!(server.count(), 2);
    assert_eq!(run(&line("c")), Some(2));
    job.assert_adds_up(2);
}

#[test]
fn compressed_input_is_unpacked_once_and_goes_on_after_a_kill() {
    let calls = AtomicUsize::new(0);
    let server = Server::new(move |_| match calls.fetch_add(1, Ordering::SeqCst) {
        4 => Reply::ok().never(),
        _ => Reply::ok(),
    });
    let job = Job::new(6);
    let plain = std::fs::read(job.path("in.jsonl")).expect("the input");
    let (first, second) = plain.split_at(200);
    // Two members, as `cat a.gz b.gz` makes them.
    let members = [first, second].map(|part| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(part).expect("memory");
        encoder.finish().expect("memory")
    });
    std::fs::write(job.path("in.jsonl.gz"), members.concat()).expect("writable");
    let run = || {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl.gz", "-o", "out.jsonl", "--base-url", &server.url(), "--concurrency", "1"]);
        command.args(["--summary", "summary.json"]);
        command
    };
    let mut child = start(&mut run());
    server.wait_for(5);
    child.kill().expect("it runs");
    child.ended();
    assert_eq!(std::fs::read(job.path("out.input")).expect("a copy"), plain);

    // Its time of change says nothing.
    let file = std::fs::File::options().write(true).open(job.path("in.jsonl.gz")).expect("it is there");
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("files have times");
    let (code, log) = finish(&mut run());
    assert_eq!(code, 0, "{log}");
    job.assert_adds_up(6);
}

/// Archives and copies often give all their files one time of change.
#[test]
fn compressed_inputs_of_one_time_are_not_taken_for_each_other() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(0);
    for item in ["a", "b", "c"] {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(line(item).as_bytes()).expect("memory");
        let path = job.path(&format!("{item}.jsonl.gz"));
        std::fs::write(&path, encoder.finish().expect("memory")).expect("writable");
        let file = std::fs::File::options().write(true).open(path).expect("it is there");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("files have times");
    }
    let run = |item: &str, flags: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", &format!("{item}.jsonl.gz"), "-o", "out.jsonl", "--base-url", &server.url()]);
        finish(command.args(flags))
    };
    let sent = || server.arrivals().into_iter().map(|arrival| arrival.item).collect::<Vec<_>>();
    assert_eq!((run("a", &[]).0, sent()), (0, vec!["a".to_owned()]));
    let (code, log) = run("b", &[]);
    assert_eq!((code, sent().len()), (2, 1), "{log}");
    assert!(log.contains("b.jsonl.gz is not the input that this job began with"), "{log}");
    assert_eq!((run("b", &["--overwrite"]).0, sent()), (0, vec!["a".to_owned(), "b".to_owned()]));
    for file in ["out.jsonl", "out.journal"] {
        std::fs::remove_file(job.path(file)).expect("it was there");
    }
    let (code, log) = run("c", &[]);
    assert_eq!((code, sent().last().map(String::as_str)), (0, Some("c")), "{log}");
}

#[test]
fn an_old_copy_is_no_input_of_a_new_job() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(0);
    std::fs::write(job.path("out.input"), line("old")).expect("writable");
    let mut command = job.paceline();
    command.args(["run", "-", "-o", "out.jsonl", "--base-url", &server.url()]).stdin(Stdio::null());
    let (code, log) = finish(&mut command);
    assert_eq!((code, server.count()), (2, 0), "{log}");
    assert!(log.contains("empty_file"), "{log}");
}

#[test]
fn what_came_through_a_pipe_need_not_come_again() {
    let server = Server::new(|arrival| match arrival.before {
        0 => Reply::error(401, "invalid_api_key"),
        _ => Reply::ok(),
    });
    let job = Job::new(0);
    let run = |input: &str| {
        let script = format!("printf '%s\\n' '{input}' | \"$0\" \"$@\"");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", if input.is_empty() { "\"$0\" \"$@\" < /dev/null" } else { &script }]);
        command.arg(env!("CARGO_BIN_EXE_paceline")).args(["run", "/dev/stdin", "-o", "out.jsonl"]);
        command.args(["--base-url", &server.url(), "--summary", "summary.json"]);
        finish(command.current_dir(job.path("")).env("HOME", job.path("")).env_remove("XDG_STATE_HOME"))
    };
    let (code, log) = run(&line("a"));
    assert_eq!(code, 3, "{log}");
    let (code, log) = run("");
    assert_eq!((code, server.count()), (0, 2), "{log}");
    job.assert_adds_up(1);
}

#[test]
fn an_input_that_changed_is_refused() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    assert_eq!(finish(&mut job.run(&server)).0, 0);
    std::fs::write(job.path("in.jsonl"), line("other")).expect("writable");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("changed"), "{log}");
    assert_eq!(server.count(), 3);
}

#[test]
fn results_without_a_journal_are_not_overwritten() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(1);
    std::fs::write(job.path("out.jsonl"), "{}\n").expect("writable");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 2, "{log}");
    assert_eq!(std::fs::read_to_string(job.path("out.jsonl")).expect("still there"), "{}\n");
}
