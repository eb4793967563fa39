//! An input that changed since the job began: taken up, or begun anew.

use crate::checks::{files, input, second, touch};
use crate::support::{Job, Reply, Server, finish, line};

#[test]
fn overwriting_begins_anew_and_only_with_an_input_that_can_be_sent() {
    let server = Server::new(|arrival| if arrival.item == "c" { Reply::error(400, "no") } else { Reply::ok() });
    let job = Job::with_input(&[line("a"), line("b"), line("c")].join("\n"));
    assert_eq!(finish(&mut job.run(&server)).0, 1);
    let before = files(&job);

    second(&job, "{");
    let (code, log) = finish(job.run(&server).arg("--overwrite"));
    assert_eq!((code, server.count()), (2, 3), "{log}");
    let mut after = files(&job);
    after.insert("in.jsonl".to_owned(), before["in.jsonl"]);
    assert_eq!(after, before, "what was paid for stays");

    second(&job, &line("d"));
    for calls in [5, 7] {
        let (code, log) = finish(job.run(&server).arg("--overwrite"));
        assert_eq!((code, server.count()), (0, calls), "{log}");
        job.assert_adds_up(2);
    }
    assert!(!job.path("out.errors.jsonl").exists() && !job.path("out.journal.new").exists());
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (0, 7), "the new job goes on by itself: {log}");
}

#[test]
fn a_changed_input_is_taken_up_when_asked_and_nothing_that_ended_is_lost() {
    let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("c", 0) => Reply::error(401, "invalid_api_key"),
        ("b", _) => Reply::error(400, "no"),
        _ => Reply::ok(),
    });
    let input_of = |items: &[&str]| items.iter().map(|item| line(item)).collect::<Vec<_>>().join("\n");
    let job = Job::with_input(&input_of(&["a", "b", "c", "d"]));
    let run = || {
        let mut command = job.run(&server);
        command.args(["--accept-changed-input", "--concurrency", "1", "--pace", "fixed"]);
        command
    };
    // In the order of the input, so that a and b have ended when the key is refused at c.
    for max in ["1", "1", "1"] {
        finish(run().args(["--max-items", max]));
    }
    assert_eq!((job.lines("out.jsonl").len(), job.lines("out.errors.jsonl").len()), (1, 1));

    let other_a = line("a").replace("\"m\"", "\"n\"");
    for (text, expected) in [
        (input_of(&["x", "a", "c"]), "  the id of the former line 2 is gone\n"),
        (
            format!("{}\n{}\n{other_a}", line("b"), line("c")),
            "  line 3: another request had its id before, in line 1\n",
        ),
    ] {
        input(&job, text.as_bytes());
        let before = files(&job);
        let (code, log) = finish(&mut run());
        assert_eq!(code, 2, "{log}");
        assert!(log.contains(expected), "{log}");
        assert_eq!(files(&job)["out.jsonl"], before["out.jsonl"]);
    }

    // d is gone, e is new, c has another body, and everything stands elsewhere.
    let other_c = line("c").replace("\"m\"", "\"n\"");
    input(&job, format!("{}\n{other_c}\n\n{}\n{}\n", line("e"), line("b"), line("a")).as_bytes());
    let calls = server.count();
    let (code, log) = finish(&mut run());
    assert_eq!((code, server.count() - calls), (1, 2), "{log}");
    job.assert_adds_up(4);
    assert_eq!(job.ended_ids(), ["\"a\"", "\"b\"", "\"c\"", "\"e\""]);
    let rows = job.lines("out.report.jsonl");
    assert!(rows.iter().any(|row| row["custom_id"] == "b" && row["state"] == "failed"), "{rows:?}");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count() - calls), (1, 2), "it is the job's input now: {log}");
}

#[test]
fn a_restored_input_goes_on_and_one_that_only_looks_restored_does_not() {
    let server = Server::new(|_| Reply::ok());
    // Longer than what is hashed of the beginning.
    let lines = || (0..700).map(|n| line(&format!("item-{n}")));
    let text = lines().collect::<Vec<_>>().join("\n");
    assert!(text.len() > 64 * 1024, "{}", text.len());
    let job = Job::with_input(&text);
    let written = |text: &str, time: u64| {
        input(&job, text.as_bytes());
        touch(&job, "in.jsonl", time);
    };
    let key = || server.arrivals().last().and_then(|arrival| arrival.headers.get("idempotency-key").cloned());
    let run = || finish(job.run(&server).args(["--max-items", "20", "--idempotency-header", "Idempotency-Key"]));
    written(&text, 1_000_000_000);
    let (code, log) = run();
    assert_eq!((code, server.count()), (3, 20), "{log}");
    let id = std::str::from_utf8(key().expect("a key").as_bytes()).expect("text")[..16].to_owned();

    written(&text, 1_000_000_001);
    let (code, log) = run();
    assert_eq!((code, server.count()), (3, 40), "{log}");
    let again = key().expect("a key");
    assert!(again.to_str().expect("text").starts_with(&id), "the keys of the items stay theirs: {again:?}");
    assert!(log.contains("in.jsonl has another time of change, and the same lines: the job goes on"), "{log}");

    let last = line("item-699");
    let other = text.replace(&last, &last.replace("\"m\"", "\"n\""));
    written(&other, 1_000_000_002);
    let (code, log) = run();
    assert_eq!((code, server.count()), (2, 40), "{log}");
    for expected in
        ["1 line of in.jsonl changed since this job began", "line 700: the request changed", "--accept-changed-input"]
    {
        assert!(log.contains(expected), "{expected} in {log}");
    }
    let (code, log) = finish(job.run(&server).args(["--accept-changed-input", "--max-items", "20"]));
    assert_eq!((code, server.count()), (3, 60), "{log}");
}

#[test]
fn corrected_requests_are_sent_by_the_command_that_the_run_names() {
    let server = Server::new(|arrival| match String::from_utf8_lossy(&arrival.body).contains("gtp-4o") {
        true => Reply::error(404, "model_not_found"),
        false => Reply::ok(),
    });
    let good = (0..40).map(|n| line(&format!("item-{n}"))).collect::<Vec<_>>().join("\n");
    let job = Job::with_input(&good.replace("\"m\"", "\"gtp-4o\""));
    let (code, log) = finish(&mut job.run(&server));
    let again = log.lines().find_map(|line| line.trim().strip_prefix("continue with: ")).expect("a command");
    assert!(code == 3 && again.ends_with(" --accept-changed-input"), "{log}");
    input(&job, good.as_bytes());
    let (code, log) = finish(job.run(&server).arg("--accept-changed-input"));
    assert_eq!(code, 0, "{log}");
    job.assert_adds_up(40);
}
