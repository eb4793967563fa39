//! What answers mean that are no plain success and no plain error.

use serde_json::json;

use crate::support::{Job, Reply, Server, finish};

#[test]
fn a_200_that_is_no_answer_is_tried_again_and_never_a_result() {
    let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("item-0", 0) => Reply::text(200, "text/html", "<html>we are being updated</html>"),
        ("item-1", 0) => Reply::text(200, "application/json", "{not json"),
        ("item-2", 0) => Reply::text(200, "application/json", ""),
        ("item-3", 0) => Reply::error(200, "server_error"),
        ("item-4", _) => Reply::text(200, "text/plain", "upstream connect error"),
        ("item-5", _) => Reply::new(200, &json!({"error": {"message": "m", "type": "invalid_request_error"}})),
        _ => Reply::ok(),
    });
    let job = Job::new(6);
    let (code, log) = finish(job.run(&server).args(["--upstream", "openai", "--max-retries", "1"]));
    assert_eq!(code, 1, "{log}");
    assert_eq!(server.by_item().into_values().collect::<Vec<_>>(), [2, 2, 2, 2, 2, 1]);
    assert_eq!(job.lines("out.jsonl").len(), 4);
    job.assert_adds_up(6);
    let rows = job.lines("out.report.jsonl");
    let row = |item: &str| rows.iter().find(|row| row["custom_id"] == item).expect("a row");
    assert_eq!(
        (&row("item-4")["code"], &row("item-4")["class"], &row("item-4")["last_error"]),
        (&json!("not_json"), &json!("transient"), &json!("the answer is not JSON: upstream connect error"))
    );
    assert_eq!(row("item-5")["class"], "invalid");
}
