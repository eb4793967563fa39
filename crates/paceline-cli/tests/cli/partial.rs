//! Batches that are accepted in part.

use serde_json::{Value, json};

use crate::support::{Job, Reply, Server, finish};

fn batch(id: &str) -> String {
    let body = json!({"item": id, "RequestItems": {"t": {"Keys": ["a", "b"]}}, "ReturnConsumedCapacity": "TOTAL"});
    json!({"custom_id": id, "method": "POST", "url": "/", "body": body}).to_string()
}

#[test]
fn the_rest_of_a_batch_and_only_it_is_sent_again_and_the_answers_are_joined() {
    let server = Server::new(|arrival| {
        let body: Value = serde_json::from_slice(&arrival.body).expect("JSON");
        let (first, rest) = (json!({"t": {"Keys": ["a", "b"]}}), json!({"t": {"Keys": ["b"]}}));
        match (arrival.before, &body["RequestItems"]) {
            (0, keys) if *keys == first => {
                Reply::new(200, &json!({"Responses": {"t": ["A"]}, "UnprocessedKeys": rest}))
            }
            (1, keys) if *keys == rest => Reply::error(503, "busy"),
            (2, keys) if *keys == rest => Reply::new(200, &json!({"Responses": {"t": ["B"]}, "UnprocessedKeys": {}})),
            _ => Reply::error(400, "the_wrong_part"),
        }
    });
    let job = Job::with_input(&format!("{}\n{}\n", batch("one"), batch("two")));
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 0, "{log}");
    for line in job.lines("out.jsonl") {
        assert_eq!(line["response"]["body"], json!({"Responses": {"t": ["A", "B"]}, "UnprocessedKeys": {}}), "{line}");
    }
    for arrival in server.arrivals() {
        let body: Value = serde_json::from_slice(&arrival.body).expect("JSON");
        assert_eq!(body["ReturnConsumedCapacity"], "TOTAL", "the other members stay");
    }
    assert_eq!(server.by_item(), [("one".to_owned(), 3), ("two".to_owned(), 3)].into());
    job.assert_adds_up(2);
}
