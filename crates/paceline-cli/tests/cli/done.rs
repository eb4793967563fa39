//! Answers that a hosted batch has given already.

use std::collections::BTreeSet;

use serde_json::json;

use crate::support::{Job, Reply, Server, finish};

fn openai(item: usize, status: u16) -> String {
    let body = json!({"id": "chatcmpl", "usage": {"prompt_tokens": 7, "completion_tokens": 1}, "hosted": item});
    let response = json!({"status_code": status, "request_id": "req-h", "body": body});
    json!({"id": "batch_req_1", "custom_id": format!("item-{item}"), "response": response, "error": null}).to_string()
}

fn anthropic(item: usize, kind: &str) -> String {
    let message = json!({"type": "message", "usage": {"input_tokens": 7, "output_tokens": 1}, "hosted": item});
    json!({"custom_id": format!("item-{item}"), "result": {"type": kind, "message": message}}).to_string()
}

#[test]
fn answers_of_a_hosted_batch_are_taken_over_once() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(10);
    let expired = json!({"id": "b", "custom_id": "item-4", "response": null, "error": {"code": "batch_expired"}});
    let lines = [
        openai(0, 200),
        openai(1, 200),
        openai(2, 500),
        openai(99, 200),
        openai(98, 500),
        openai(0, 200),
        expired.to_string(),
    ];
    std::fs::write(job.path("output.jsonl"), lines.join("\n")).expect("writable");
    let lines = [anthropic(5, "succeeded"), anthropic(6, "expired")];
    std::fs::write(job.path("results.jsonl"), lines.join("\n")).expect("writable");
    let run = || {
        let mut command = job.run(&server);
        command.args(["--done", "output.jsonl", "--done", "results.jsonl"]);
        command
    };
    let (code, log) = finish(&mut run());
    assert_eq!((code, server.count()), (0, 7), "{log}");
    assert!(
        log.contains(
            "2 answers taken over from output.jsonl; 2 lines without a success, so that the item is sent; 1 line \
             more for the same items; 2 lines with an id that the input does not have"
        ),
        "{log}"
    );
    job.assert_adds_up(10);
    let arrived: BTreeSet<_> = server.by_item().into_keys().collect();
    assert!(["item-0", "item-1", "item-5"].iter().all(|item| !arrived.contains(*item)));
    let summary = job.summary();
    assert_eq!((&summary["calls"], &summary["tokens_in"]), (&json!(7), &json!(3 * 7 + 7 * 3)));
    let results = job.lines("out.jsonl");
    let hosted = results.iter().find(|line| line["custom_id"] == "item-5").expect("a line");
    assert_eq!(hosted["response"]["body"]["hosted"], 5);
    assert!(hosted["id"].as_str().expect("text").starts_with("pl-5-0-"), "{hosted}");

    let before = std::fs::read(job.path("out.jsonl")).expect("there");
    let (code, log) = finish(&mut run());
    assert_eq!((code, server.count()), (0, 7), "{log}");
    assert_eq!(std::fs::read(job.path("out.jsonl")).expect("there"), before);
}

#[test]
fn a_last_line_that_is_cut_off_is_left_out() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    let lines = [openai(0, 200), openai(1, 200), openai(2, 200)].join("\n");
    std::fs::write(job.path("old.jsonl"), &lines[..lines.len() - 9]).expect("writable");
    let (code, log) = finish(job.run(&server).args(["--done", "old.jsonl"]));
    assert_eq!((code, server.count()), (0, 1), "{log}");
    let notice = "2 answers taken over from old.jsonl; 1 line cut off at the end of the file, so that the item is sent";
    assert!(log.contains(notice), "{log}");
    job.assert_adds_up(3);

    let job = Job::new(3);
    let broken = [openai(0, 200), openai(1, 200)[..20].to_owned(), openai(2, 200)].join("\n");
    std::fs::write(job.path("old.jsonl"), broken).expect("writable");
    let (code, log) = finish(job.run(&server).args(["--done", "old.jsonl"]));
    assert!(code == 2 && log.contains("--done old.jsonl: line 2 is not a line of a hosted batch's output"), "{log}");
}

#[test]
fn answers_that_expect_refuses_are_asked_again() {
    let text =
        |item: usize, body: &str| openai(item, 200).replace("\"hosted\":", &format!("\"rate\":{body},\"hosted\":"));
    let page = json!({"custom_id": "item-2", "response": {"status_code": 200, "body": "<html>"}, "error": null});
    for (expect, taken, refused) in [("json", 2, 1), ("schema.json", 1, 2)] {
        let server = Server::new(|_| Reply::new(200, &json!({"rate": 1})));
        let job = Job::new(3);
        std::fs::write(job.path("schema.json"), r#"{"properties": {"rate": {"type": "number"}}}"#).expect("writable");
        let lines = [text(0, "1.5"), text(1, "\"high\""), page.to_string()];
        std::fs::write(job.path("old.jsonl"), lines.join("\n")).expect("writable");
        let (code, log) = finish(job.run(&server).args(["--done", "old.jsonl", "--expect", expect]));
        assert_eq!((code, server.count()), (0, refused), "{log}");
        let answers = if taken == 1 { "1 answer" } else { "2 answers" };
        let lines = if refused == 1 { "1 line" } else { "2 lines" };
        let notice = format!(
            "{answers} taken over from old.jsonl; {lines} with an answer that --expect refuses, so that the item is \
             sent again"
        );
        assert!(log.contains(&notice), "{log}");
        job.assert_adds_up(3);
    }
}

#[test]
fn an_answer_taken_over_says_what_its_request_says() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::with_input("{\"custom_id\":7,\"metadata\":{\"row\":1},\"url\":\"/v1/embeddings\",\"body\":{}}\n");
    std::fs::write(job.path("output.jsonl"), openai(7, 200).replace("item-7", "7")).expect("writable");
    let (code, log) = finish(job.run(&server).args(["--done", "output.jsonl"]));
    assert_eq!((code, server.count()), (0, 0), "{log}");
    let lines = job.lines("out.jsonl");
    assert_eq!((&lines[0]["custom_id"], &lines[0]["metadata"]), (&json!(7), &json!({"row": 1})));
}

#[test]
fn a_file_that_is_no_batch_output_is_refused_before_anything_begins() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    std::fs::write(job.path("output.jsonl"), openai(0, 200) + "\n{\"custom_id\":\"item-1\"}\n").expect("writable");
    let (code, log) = finish(job.run(&server).args(["--done", "output.jsonl"]));
    assert_eq!((code, server.count()), (2, 0), "{log}");
    assert!(log.contains("--done output.jsonl: line 2 is not a line of a hosted batch's output"), "{log}");
    assert!(!job.path("out.journal").exists());
    for own in ["out.jsonl", "in.jsonl", "out.journal"] {
        let (code, log) = finish(job.run(&server).args(["--overwrite", "--done", own]));
        assert_eq!(code, 2, "{log}");
        assert!(log.contains(&format!("and --done are the same file, {own}")), "{log}");
    }
    let (code, log) = finish(job.run(&server).args(["--done", "missing.jsonl"]));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("cannot read missing.jsonl"), "{log}");
}

/// The user knows that the cause of a hold is gone, and no flag lifts it.
#[test]
fn a_job_that_takes_answers_over_takes_no_hold_over() {
    let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("item-1", 0) => Reply::error(429, "slow down").with_header("retry-after", 7_200),
        _ => Reply::ok(),
    });
    let job = Job::new(3);
    let flags = ["--concurrency", "1", "--max-wait", "10s"];
    for calls in [2, 2] {
        let (code, log) = finish(job.run(&server).args(flags));
        assert_eq!((code, server.count()), (3, calls), "{log}");
    }
    let mut other = job.paceline();
    other.args(["run", "in.jsonl", "-o", "more.jsonl", "--done", "out.jsonl", "--base-url", &server.url()]).args(flags);
    let (code, log) = finish(&mut other);
    assert_eq!((code, server.count(), job.lines("more.jsonl").len()), (0, 4, 3), "{log}");
}
