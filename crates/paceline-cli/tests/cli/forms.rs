//! The forms that an input may have, as they arrive at the server and come back in the results.

use serde_json::json;

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
