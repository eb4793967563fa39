//! Who is to blame for a failure: the item, the model, the key, the server or the way to it.

use serde_json::json;

use crate::support::{Job, Reply, Server, finish};

/// Words that mean much elsewhere, in places where they mean nothing.
#[test]
fn what_only_looks_like_another_failure_is_tried_again() {
    for (name, first) in [
        (
            "a 503 whose words speak of keys and quotas",
            Reply::error(503, "overloaded").with_header("x-request-id", "req-unauthorized-insufficient_quota-429"),
        ),
        ("a 503 of text", Reply::text(503, "text/plain", "unauthorized: insufficient_quota 429")),
        ("a 503 of HTML", Reply::text(503, "text/html", "<html><h1>401 unauthorized</h1></html>")),
        ("a 429 without a body", Reply::text(429, "text/plain", "").with_header("retry-after-ms", "1")),
    ] {
        let server = Server::new(move |arrival| match arrival.before {
            0 => first.clone(),
            _ => Reply::ok(),
        });
        let job = Job::new(3);
        let (code, log) = finish(&mut job.run(&server));
        assert_eq!(code, 0, "{name}: {log}");
        assert_eq!(server.count(), 6, "{name}");
        job.assert_adds_up(3);
    }
}

/// A limit of one table of DynamoDB's, which throttles with a 400, holds neither other tables nor batches over them.
#[test]
fn a_throttled_table_holds_no_other() {
    let server = Server::new(|arrival| match arrival.item.starts_with("hot") {
        true => Reply::new(
            400,
            &json!({"__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
                "message": "The level of configured provisioned throughput for the table was exceeded."}),
        )
        .with_header("x-amz-retry-after", 1_800_000),
        false => Reply::new(200, &json!({})),
    });
    let line = |id: String, mut body: serde_json::Value| {
        body["item"] = json!(id);
        json!({"custom_id": id, "url": "/", "body": body}).to_string() + "\n"
    };
    let hot = (0..10).map(|n| line(format!("hot-{n}"), json!({"TableName": "hot", "Item": {}})));
    let cold = (0..10).map(|n| line(format!("cold-{n}"), json!({"TableName": "cold", "Item": {}})));
    let batches = (0..10).map(|n| line(format!("batch-{n}"), json!({"RequestItems": {"cold": [], "other": []}})));
    let job = Job::with_input(&hot.chain(cold).chain(batches).collect::<String>());
    let mut command = job.run(&server);
    command.args(["--upstream", "dynamodb", "--concurrency", "1", "--max-wait", "1s"]);
    let (code, log) = finish(&mut command);
    assert_eq!((code, job.lines("out.jsonl").len()), (3, 20), "{log}");
    let summary = job.summary();
    let scopes: Vec<&str> =
        summary["scopes"].as_array().expect("scopes").iter().filter_map(|scope| scope["name"].as_str()).collect();
    for scope in ["table hot", "table cold", "tables cold, other"] {
        assert!(scopes.contains(&scope), "{scope}: {scopes:?}");
    }
    job.assert_adds_up(30);
}

/// A way that is shut may open, and no item is to blame: refused connections, unknown names.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_way_that_is_shut_costs_no_retries() {
    for address in ["http://127.0.0.1:1", "http://nowhere.invalid"] {
        let job = Job::new(2);
        let mut command = job.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json", "--max-retries", "0"]);
        command.args(["--base-url", address, "--max-wait", "2s"]);
        let (code, log) = finish(&mut command);
        assert_eq!((code, &job.summary()["deferred"]), (3, &json!(2)), "{address}: {log}");
        let calls = job.summary()["calls"].as_u64().expect("a number");
        assert!((2..30).contains(&calls), "the backoff grows: {calls} calls, {log}");
        job.assert_adds_up(2);
    }
}

/// Nothing passes a second time that is not there, and a server that says so is not down.
#[test]
fn not_found_everywhere_ends_the_run_without_a_retry() {
    let server = Server::new(|_| Reply::error(404, "model_not_found"));
    let job = Job::new(100);
    let (code, log) = finish(job.run(&server).args(["--concurrency", "2"]));
    let summary = job.summary();
    assert_eq!(code, 3, "{log}");
    assert_eq!(
        (&summary["retries"], &summary["resends"], &summary["stopped"]),
        (&json!(0), &json!(0), &json!("same_failure"))
    );
    assert!(server.count() < 25, "{} calls", server.count());
    let scopes = summary["scopes"].as_array().expect("scopes");
    assert!(scopes.iter().all(|scope| scope["breaker"] != "open"), "{summary}");
}

#[test]
fn a_403_about_an_item_fails_that_item_and_one_about_the_key_stops_the_key() {
    let moderated = json!({"error": {"code": 403, "message": "flagged", "metadata": {"reasons": ["hate"]}}});
    let server = Server::new(move |arrival| match arrival.item.as_str() {
        "item-1" => Reply::new(403, &moderated),
        _ => Reply::ok(),
    });
    let job = Job::new(5);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 1, "{log}");
    let summary = job.summary();
    assert_eq!((&summary["succeeded"], &summary["failed"]), (&json!(4), &json!(1)));
    assert_eq!(job.lines("out.report.jsonl")[0]["class"], "filtered");

    // A page says nothing of a key where none was sent.
    let server = Server::new(|arrival| match arrival.item.as_str() {
        "item-1" => Reply::new(403, &json!({"message": "for members"})),
        _ => Reply::ok(),
    });
    let job = Job::new(5);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, &job.summary()["failed"], server.count()), (1, &json!(1), 5), "{log}");

    let server = Server::new(|_| Reply::error(403, "account_deactivated"));
    let job = Job::new(5);
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 3, "{log}");
    let summary = job.summary();
    assert_eq!(
        (&summary["deferred"], &summary["failed"], &summary["stopped"]),
        (&json!(5), &json!(0), &json!("account"))
    );
}
