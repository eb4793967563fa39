//! The forms that an input may have, as they arrive at the server and come back in the results.

use serde_json::{Value, json};

use crate::support::{Job, Reply, Server, finish};

#[test]
fn any_method_with_headers_of_its_own_for_any_http_api() {
    let server = Server::new(|_| Reply::ok());
    let lines = [
        json!({"custom_id": "get", "method": "GET", "url": "/v2/rates?day=7", "headers": {"Accept": "text/csv"}}),
        json!({"custom_id": "put", "method": "PUT", "url": "/v2/rates/7", "body": [1, 2]}),
        json!({"custom_id": "delete", "method": "DELETE", "url": "/v2/rates/8"}),
        json!({"custom_id": "form", "url": "/v2/form", "body": "a=1&b=2",
               "headers": {"content-type": "application/x-www-form-urlencoded"}}),
        json!({"custom_id": "whole", "url": format!("{}/v2/whole", server.url()), "body": {}}),
    ];
    let job = Job::with_input(&lines.map(|line| line.to_string()).join("\n"));
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 0, "{log}");
    let arrivals = server.arrivals();
    let at = |path: &str| arrivals.iter().find(|arrival| arrival.path == path).expect(path);
    let header = |path: &str, name: &str| at(path).headers.get(name).map(|value| value.to_str().expect("text"));
    let got = at("/v2/rates?day=7");
    assert_eq!((got.method.as_str(), got.body.len()), ("GET", 0));
    assert_eq!(header("/v2/rates?day=7", "accept"), Some("text/csv"));
    assert_eq!(header("/v2/rates?day=7", "content-type"), None);
    let put = at("/v2/rates/7");
    assert_eq!((put.method.as_str(), &*put.body), ("PUT", &b"[1,2]"[..]));
    assert_eq!(header("/v2/rates/7", "content-type"), Some("application/json"));
    assert_eq!(at("/v2/rates/8").method, "DELETE");
    assert_eq!(&*at("/v2/form").body, b"a=1&b=2");
    assert_eq!(header("/v2/form", "content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(at("/v2/whole").method, "POST");
    job.assert_adds_up(5);
}

#[test]
fn no_line_sets_the_key_or_reads_it_elsewhere() {
    let (server, thief) = (Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    for line in [
        json!({"custom_id": "a", "url": "/x", "body": {}, "headers": {"Authorization": "Bearer mine"}}),
        json!({"custom_id": "a", "url": "/x", "body": {}, "headers": {"Host": "elsewhere.example"}}),
        json!({"custom_id": "a", "url": format!("{}/x", thief.url()), "body": {}}),
    ] {
        let job = Job::with_input(&line.to_string());
        let (code, log) = finish(job.run(&server).args(["--api-key-env", "KEY"]).env("KEY", "secret"));
        assert_eq!(code, 2, "{log}");
        assert!(!log.contains("secret") && !log.contains("mine"), "{log}");
    }
    assert_eq!((server.count(), thief.count()), (0, 0));
}

#[test]
fn metadata_comes_back_and_is_not_sent() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "bad" => Reply::error(400, "never"),
        _ => Reply::ok(),
    });
    let line = |item: &str| json!({"custom_id": item, "url": "/x", "body": {"item": item}, "metadata": {"row": item, "x": [1.5]}});
    let plain = json!({"custom_id": "plain", "url": "/x", "body": {"item": "plain"}, "metadata": null});
    let job = Job::with_input(&[line("good"), line("bad"), plain].map(|line| line.to_string()).join("\n"));
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 1, "{log}");
    for line in job.lines("out.jsonl").iter().chain(&job.lines("out.errors.jsonl")) {
        match line["custom_id"].as_str() {
            Some("plain") => assert!(line.get("metadata").is_none()),
            id => assert_eq!(line["metadata"], json!({"row": id, "x": [1.5]})),
        }
    }
    assert!(server.arrivals().iter().all(|arrival| !arrival.body.windows(3).any(|part| part == b"row")));
}

#[test]
fn bare_bodies_are_known_by_their_lines_and_go_to_the_endpoint() {
    let server = Server::new(|_| Reply::ok());
    let lines = [
        json!({"model": "m", "item": "first", "messages": []}),
        json!({"model": "m", "item": "second", "messages": [], "metadata": {"row": 2}, "custom_id": "mine"}),
    ];
    let job = Job::with_input(&format!("\n{}\n\n{}\n", lines[0], lines[1]));
    let run = |flags: &[&str]| finish(job.run(&server).args(flags));
    let (code, log) = run(&[]);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("--endpoint") && log.contains("`model`"), "{log}");
    let (code, log) = run(&["--endpoint", "/v1/chat/completions"]);
    assert_eq!(code, 0, "{log}");
    for arrival in server.arrivals() {
        assert_eq!(arrival.path, "/v1/chat/completions");
        let body: Value = serde_json::from_slice(&arrival.body).expect("JSON");
        assert_eq!(body, json!({"model": "m", "item": arrival.item, "messages": []}));
    }
    let mut results = job.lines("out.jsonl");
    results.sort_by_key(|line| line["custom_id"].to_string());
    let ids: Vec<_> = results.iter().map(|line| (&line["custom_id"], line.get("metadata"))).collect();
    assert_eq!(ids, [(&json!("line-2"), None), (&json!("mine"), Some(&json!({"row": 2})))]);
    assert_eq!(run(&["--endpoint", "/v1/chat/completions"]).0, 0);
    let (code, log) = run(&["--format", "batch"]);
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("--format bare"), "{log}");
    assert_eq!(server.count(), 2);
}

#[test]
fn anthropic_requests_become_anthropic_results() {
    let message = json!({"type": "message", "content": [], "usage": {"input_tokens": 3, "output_tokens": 2}});
    let error =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}, "request_id": "r"});
    let (answer, refusal) = (message.clone(), error.clone());
    let server = Server::new(move |arrival| match arrival.item.as_str() {
        "bad" => Reply::new(400, &refusal),
        "lost" => Reply::ok().never(),
        _ => Reply::new(200, &answer),
    });
    let line = |item: &str| json!({"custom_id": item, "params": {"model": "m", "item": item}}).to_string();
    let job = Job::with_input(&["good", "bad", "lost"].map(line).join("\n"));
    let mut command = job.run(&server);
    command.args(["--upstream", "anthropic", "--timeout", "300ms", "--max-retries", "0"]);
    let (code, log) = finish(&mut command);
    assert_eq!(code, 1, "{log}");
    let of = |file: &str, id: &str| {
        let lines = job.lines(file);
        let line = lines.iter().find(|line| line["custom_id"] == id).expect(id);
        assert!(line["id"].as_str().is_some_and(|id| id.starts_with("pl-")));
        line["result"].clone()
    };
    assert_eq!(of("out.jsonl", "good"), json!({"type": "succeeded", "message": message}));
    assert_eq!(of("out.errors.jsonl", "bad"), json!({"type": "errored", "error": error}));
    let lost = of("out.errors.jsonl", "lost");
    assert_eq!((&lost["type"], &lost["error"]["error"]["type"]), (&json!("errored"), &json!("api_error")));
    assert_eq!(lost["error"]["error"]["message"], "no answer within 300ms");
    job.assert_adds_up(3);
    assert!(server.arrivals().iter().all(|arrival| arrival.path == "/v1/messages"));
    assert_eq!(server.arrivals()[0].headers["anthropic-version"], "2023-06-01");
}

#[test]
fn batch_lines_for_anthropic_stay_batch_lines() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::with_input(&json!({"custom_id": 1, "url": "/v1/messages", "body": {"model": "m"}}).to_string());
    let (code, log) = finish(job.run(&server).args(["--upstream", "anthropic"]));
    assert_eq!(code, 0, "{log}");
    assert_eq!(job.lines("out.jsonl")[0]["response"]["status_code"], 200);
}

#[test]
fn a_file_has_one_form() {
    let server = Server::new(|_| Reply::ok());
    let batch = json!({"custom_id": "a", "url": "/x", "body": {}});
    let job = Job::with_input(&format!("{batch}\n{}\n", json!({"custom_id": "b", "params": {}})));
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("line 2: format_mismatch: `params`") && log.contains("first line has `url`"), "{log}");
    assert_eq!(server.count(), 0);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn one_value_of_each_answer_stands_beside_the_answers() {
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "item-1" => Reply::new(200, &json!({"object": "x"})),
        _ => Reply::new(200, &json!({"choices": [{"message": {"content": "h\u{e9}\n"}}]})),
    });
    let job = Job::new(2);
    let extract = ["--extract", "/choices/0/message/content"];
    let (code, log) = finish(job.run(&server).args(extract));
    assert_eq!(code, 0, "{log}");
    let mut lines = job.lines("out.flat.jsonl");
    lines.sort_by_key(|line| line["custom_id"].to_string());
    let expected = [("item-0", json!("h\u{e9}\n")), ("item-1", json!(null))];
    assert_eq!(lines, expected.map(|(id, value)| json!({"custom_id": id, "value": value})));
    assert!(log.contains("out.flat.jsonl has the values at /choices/0/message/content"), "{log}");
    let (code, log) = finish(job.run(&server).args(["--extract", "/choices/7/nope"]));
    let told = "no answer has a value at /choices/7/nope (--extract): out.flat.jsonl has null for each";
    assert!(code == 0 && log.contains(told), "{log}");
    // JSON may hold what is no text, such as half a pair of surrogates. It spoils no other value.
    let odd = Server::new(|arrival| match arrival.item.as_str() {
        "item-0" => Reply::text(200, "application/json", r#"{"bad": "\ud800", "a/b": [1, {"n": 1.50, "n": 1e400}]}"#),
        _ => Reply::new(200, &json!({"a/b": [0, {"n": 7}]})),
    });
    let job = Job::new(2);
    let (code, log) = finish(job.run(&odd).args(["--extract", "/a~1b/1/n"]));
    assert_eq!(code, 0, "{log}");
    let mut lines: Vec<String> = job.text("out.flat.jsonl").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, [r#"{"custom_id":"item-0","value":1e400}"#, r#"{"custom_id":"item-1","value":7}"#]);
    for pointer in ["/bad", "/a~1b/01/n", "/a~1b/7", "/a~1b/1/n/x", ""] {
        let (code, log) = finish(job.run(&odd).args(["--extract", pointer]));
        assert_eq!((code, job.text("out.flat.jsonl").lines().count()), (0, 2), "{pointer}: {log}");
    }
    let (code, log) = finish(job.run(&server).args(["--extract", "content"]));
    assert!(code == 2 && log.contains("expected a JSON pointer, such as /choices/0/message/content"), "{log}");
    let job = Job::new(2);
    let mut command = job.paceline();
    command.args(["run", "in.jsonl", "-o", "out.jsonl.gz", "--ordered", "--base-url", &server.url()]);
    assert_eq!(finish(command.args(extract)).0, 0);
    assert_eq!(job.lines("out.flat.jsonl").len(), 2);
}

/// The file of values may be the only copy of something else.
#[test]
fn extract_writes_over_no_file_of_others() {
    let server = Server::new(|_| Reply::new(200, &json!({"value": 1})));
    let job = Job::new(3);
    std::fs::write(job.path("out.flat.jsonl"), "my own notes\n").expect("writable");
    let (code, log) = finish(job.run(&server).args(["--extract", "/value"]));
    let told = "--extract would write out.flat.jsonl over, which is none of this job's files: move that file, or choose another -o";
    assert!(code == 2 && server.count() == 0 && log.contains(told), "{log}");
    // The results of another job, also where the user allows to overwrite this one.
    std::fs::remove_file(job.path("out.flat.jsonl")).expect("it is there");
    let other = || {
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.flat.jsonl", "--base-url", &server.url()]);
        finish(&mut command)
    };
    assert_eq!(other().0, 0);
    let (code, log) = finish(job.run(&server).args(["--extract", "/value", "--overwrite"]));
    assert!(code == 2 && server.count() == 3, "{log}");
    assert!(log.contains("which is the results of another job (its journal is out.flat.journal)"), "{log}");
    assert_eq!((other().0, server.count()), (0, 3), "it is whole");
}

#[test]
fn values_that_cannot_be_written_at_the_end_are_no_success() {
    let job = Job::new(2);
    let flat = job.path("out.flat.jsonl");
    let in_its_place = flat.clone();
    let server = Server::new(move |_| {
        // Made by the first call, and there at the second.
        let _ = std::fs::create_dir(&in_its_place);
        Reply::new(200, &json!({"value": 1}))
    });
    let run = || finish(job.run(&server).args(["--extract", "/value"]));
    let (code, log) = run();
    assert!(code == 3 && log.contains("out.flat.jsonl was not written (--extract)"), "{log}");
    let (status, ended) = (&job.summary()["status"], &job.summary()["succeeded"]);
    assert_eq!((status, ended), (&json!("DEFERRED"), &json!(2)), "{log}");
    std::fs::remove_dir(flat).expect("it is empty");
    let (code, log) = run();
    assert_eq!((code, server.count(), job.lines("out.flat.jsonl").len()), (0, 2, 2), "{log}");
}

#[test]
fn what_is_extracted_once_is_extracted_in_later_runs_too() {
    let server = Server::new(|_| Reply::new(200, &json!({"value": 1})));
    let job = Job::new(3);
    let run = |args: &[&str]| finish(job.run(&server).args(args)).1;
    let values = || job.lines("out.flat.jsonl").len();
    run(&["--max-items", "1", "--extract", "/value"]);
    let log = run(&["--max-items", "1"]);
    assert!(
        values() == 2 && log.contains("and this one writes it too: --extract /value (--extract none ends that)"),
        "{log}"
    );
    run(&["--max-items", "1", "--extract", "none"]);
    let log = run(&[]);
    assert!(values() == 2 && !log.contains("--extract"), "{log}");
    let log = run(&["--extract", "/other"]);
    assert!(values() == 3 && log.contains("no answer has a value at /other"), "it is this job's file: {log}");
}
