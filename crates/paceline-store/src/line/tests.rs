use crate::state::State;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn line(body: &[u8]) -> String {
    let answer = ResultBody::Response { status: 200, request_id: "req_1", headers: None, body };
    String::from_utf8(encode_line(7, 2, &"a\"b".into(), &answer)).unwrap()
}

#[test]
fn shape_of_a_response() {
    let body = b"{\n  \"x\": 1.50,\r\n\t\"y\": \"two  \\\" words\"\n}\n";
    let crc = crc32fast::hash(br#"{"x":1.50,"y":"two  \" words"}"#);
    assert_eq!(
        line(body),
        format!(
            "{{\"id\":\"pl-7-2-{crc:08x}\",\"custom_id\":\"a\\\"b\",\"response\":{{\"status_code\":200,\
             \"request_id\":\"req_1\",\"body\":{{\"x\":1.50,\"y\":\"two  \\\" words\"}}}},\"error\":null}}\n"
        )
    );
}

#[test]
fn headers_stand_in_the_response_where_some_are_kept_and_the_checksum_is_of_them_too() {
    let headers = RawValue::from_string(r#"{"etag":"\"7\""}"#.to_owned()).unwrap();
    let answer = ResultBody::Response { status: 200, request_id: "r", headers: Some(&headers), body: b"{}" };
    let line = encode_line(7, 2, &"a".into(), &answer);
    let crc = crc32fast::hash(br#"{}{"etag":"\"7\""}"#);
    assert_eq!(
        String::from_utf8_lossy(&line),
        format!(
            "{{\"id\":\"pl-7-2-{crc:08x}\",\"custom_id\":\"a\",\"response\":{{\"status_code\":200,\"request_id\":\"r\",\
             \"headers\":{{\"etag\":\"\\\"7\\\"\"}},\"body\":{{}}}},\"error\":null}}\n"
        )
    );
    assert!(line.starts_with(BEGINNING));
    assert_eq!(verify_line(&line).map(|proof| proof.ordinal), Some(7));
    assert_eq!(
        anthropic(End::Succeeded, &answer),
        anthropic(End::Succeeded, &ResultBody::Response { status: 200, request_id: "r", headers: None, body: b"{}" }),
        "that form stays as it is"
    );
}

#[test]
fn shape_of_a_failure_without_a_response() {
    let answer = ResultBody::Error { code: "timeout", message: "no answer\nwithin 600 s" };
    let line = encode_line(0, 8, &CustomId::Number(7.into()), &answer);
    let read: serde_json::Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(read["custom_id"], 7);
    assert!(read["response"].is_null());
    assert_eq!(read["error"]["code"], "timeout");
    let proof = verify_line(&line).unwrap();
    assert_eq!((proof.ordinal, proof.call, proof.unsuccessful), (0, 8, State::Failed));
    assert_eq!(proof.message.as_deref(), Some("no answer\nwithin 600 s"));
}

#[test]
fn bodies_that_are_no_json_become_strings() {
    for (body, expected) in
        [(&b"<html>\n502</html>"[..], "<html>\n502</html>"), (b"", ""), (b"{\"torn\":", "{\"torn\":")]
    {
        let line = line(body);
        assert_eq!(line.matches('\n').count(), 1, "one line for {body:?}");
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["response"]["body"], expected);
        assert!(verify_line(line.as_bytes()).is_some());
    }
}

#[test]
fn a_byte_order_mark_before_json_is_no_part_of_it() {
    for (body, expected) in
        [("\u{feff}{\"a\": 1}", serde_json::json!({"a": 1})), ("\u{feff}torn", "\u{feff}torn".into())]
    {
        let line = line(body.as_bytes());
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["response"]["body"], expected);
        assert!(verify_line(line.as_bytes()).is_some());
    }
}

#[test]
fn bodies_that_are_no_text_are_kept_whole() {
    let line = line(b"\xff\xfe\0bin");
    let read: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(read["response"]["body"]["base64"], "//4AYmlu");
    assert!(verify_line(line.as_bytes()).is_some());
}

/// A program that cannot read one line loses those behind it.
#[test]
fn bodies_that_some_programs_do_not_read_are_written_so_that_they_do() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(101), "}".repeat(101));
    let brackets = format!(r#"{{"a":"{}"}}"#, "[".repeat(5_000));
    for (body, is) in [
        (nested(100), None),
        (brackets, None),
        (nested(101), Some(json!(nested(101)))),
        (nested(5_000), Some(json!(nested(5_000)))),
        (objects.clone(), Some(json!(objects))),
        (r#"{"a":"\ud83d\ude00 \u2028","\u00e9":"\\ud800 \"[\\"}"#.into(), None),
        (r#"{"a": "odd \ud83d end"}"#.into(), Some(json!({"a": "odd \u{fffd} end"}))),
        (r#"["\udE00\ud83d\ud83D\ude00", 1]"#.into(), Some(json!(["\u{fffd}\u{fffd}\u{1f600}", 1]))),
        (r#"{"\ud83d":"\\ud83d \u00e9 \ud83d"}"#.into(), Some(json!({"\u{fffd}": "\\ud83d \u{e9} \u{fffd}"}))),
    ] {
        let line = line(body.as_bytes());
        let read: Value = serde_json::from_str(&line).expect("each program reads it");
        let is = is.unwrap_or_else(|| serde_json::from_str(&body).expect("JSON"));
        assert_eq!(read["response"]["body"], is);
        assert!(verify_line(line.as_bytes()).is_some(), "{body}");
    }
}

#[test]
fn a_proof_carries_what_providers_say() {
    let answer = ResultBody::Response {
        status: 400,
        request_id: "", headers: None,
        body: br#"{"error":{"code":null,"type":"invalid_request_error","message":"no"},"usage":{"input_tokens":3,"output_tokens":4}}"#,
    };
    let proof = verify_line(&encode_line(1, 1, &"a".into(), &answer)).unwrap();
    assert_eq!((proof.status, proof.code, proof.tokens_in, proof.tokens_out), (Some(400), None, 3, 4));
    assert_eq!(proof.error_type.as_deref(), Some("invalid_request_error"));
    assert_eq!(proof.key, CustomId::from("a").key());
}

fn anthropic(end: End, answer: &ResultBody<'_>) -> Vec<u8> {
    let custom_id = CustomId::from("a");
    ResultLine { ordinal: 3, call: 2, custom_id: &custom_id, metadata: None, form: LineForm::Anthropic }
        .encode(end, answer)
}

fn refused(status: u16, body: &[u8]) -> Value {
    let line = anthropic(End::Failed, &ResultBody::Response { status, request_id: "req_9", headers: None, body });
    assert!(verify_line(&line).is_some_and(|proof| proof.message.is_some()), "{}", String::from_utf8_lossy(&line));
    let mut line: Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(line["result"]["type"], "errored");
    line["result"]["error"].take()
}

#[test]
fn shape_of_a_message() {
    let body = br#"{"type":"message", "content":[],"usage":{"input_tokens":3,"output_tokens":4}}"#;
    let line =
        anthropic(End::Succeeded, &ResultBody::Response { status: 200, request_id: "req_1", headers: None, body });
    let message = r#"{"type":"message","content":[],"usage":{"input_tokens":3,"output_tokens":4}}"#;
    let crc = crc32fast::hash(message.as_bytes());
    let expected = format!(
        "{{\"id\":\"pl-3-2-{crc:08x}\",\"custom_id\":\"a\",\"result\":{{\"type\":\"succeeded\",\"message\":{message}}}}}\n"
    );
    assert_eq!(String::from_utf8_lossy(&line), expected);
    let proof = verify_line(&line).unwrap();
    assert_eq!((proof.ordinal, proof.call, proof.tokens_in, proof.tokens_out), (3, 2, 3, 4));
}

#[test]
fn anthropics_own_errors_stay_as_they_are_and_others_are_put_into_one() {
    let own =
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": "r"});
    assert_eq!(refused(529, own.to_string().as_bytes()), own);
    let wrapped = |kind: &str, message: &str, body: Value| {
        let error = json!({"type": kind, "message": message});
        json!({"type": "error", "error": error, "request_id": "req_9", "body": body})
    };
    assert_eq!(refused(502, b"<html>"), wrapped("api_error", "status 502", json!("<html>")));
    assert_eq!(
        refused(429, br#"{"error":"slow"}"#),
        wrapped("rate_limit_error", "status 429", json!({"error": "slow"}))
    );
    let odd = json!({"type": "error", "error": "text"});
    assert_eq!(refused(400, odd.to_string().as_bytes()), wrapped("invalid_request_error", "status 400", odd));
    let filtered = json!({"type": "message", "stop_reason": "refusal"});
    assert_eq!(refused(200, filtered.to_string().as_bytes())["body"], filtered, "it was paid for");
}

#[test]
fn a_failure_without_a_response_keeps_its_code_in_both_forms() {
    for (code, state) in [("timeout", State::Failed), ("skipped", State::Skipped), ("cancelled", State::Cancelled)] {
        let answer = ResultBody::Error { code, message: "why" };
        for line in [encode_line(3, 2, &"a".into(), &answer), anthropic(End::Failed, &answer)] {
            let proof = verify_line(&line).unwrap();
            assert_eq!((proof.code.as_deref(), proof.unsuccessful), (Some(code), state));
            assert_eq!((proof.message.as_deref(), proof.status), (Some("why"), None));
        }
    }
    let line: Value =
        serde_json::from_slice(&anthropic(End::Failed, &ResultBody::Error { code: "timeout", message: "why" }))
            .unwrap();
    assert_eq!(
        line["result"],
        json!({"type": "errored", "error": {"type": "error", "error": {"type": "api_error", "code": "timeout", "message": "why"}, "request_id": null}})
    );
}

/// Both forms, with and without metadata.
fn heads<'a>(custom_id: &'a CustomId, metadata: &'a RawValue) -> impl Iterator<Item = ResultLine<'a>> {
    [LineForm::OpenAi, LineForm::Anthropic].into_iter().flat_map(move |form| {
        [None, Some(metadata)].map(|metadata| ResultLine { ordinal: 3, call: 1, custom_id, metadata, form })
    })
}

fn text(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).unwrap()
}

proptest! {
    #[test]
    fn every_body_proves_itself_in_one_line(body in prop::collection::vec(any::<u8>(), 0..200), id in ".*", note in ".*") {
        let (custom_id, metadata) = (CustomId::from(id.as_str()), text(&note));
        for (head, end) in heads(&custom_id, &metadata).flat_map(|head| [(head, End::Succeeded), (head, End::Failed)]) {
            let line = head.encode(end, &ResultBody::Response { status: 200, request_id: "", headers: None, body: &body });
            prop_assert_eq!(memchr::memchr_iter(b'\n', &line).count(), 1);
            prop_assert_eq!(verify_line(&line).map(|proof| proof.key), Some(custom_id.key()));
            let read: Value = serde_json::from_slice(&line).unwrap();
            prop_assert_eq!(read.get("metadata").and_then(Value::as_str), head.metadata.map(|_| note.as_str()));
        }
    }

    #[test]
    fn no_change_and_no_cut_goes_unnoticed(
            body in "[a-z ]{1,40}", note in "[A-Z]{1,9}", link in "[0-9]{1,9}", at in any::<prop::sample::Index>(),
        ) {
        let (custom_id, metadata) = (CustomId::Number(7.into()), text(&note));
        for head in heads(&custom_id, &metadata) {
            let (json, kept) = (text(&body), text(&link));
            let headers = Some(&*kept);
            let answer = ResultBody::Response { status: 200, request_id: "", headers, body: json.get().as_bytes() };
            let whole = head.encode(End::Succeeded, &answer);
            let link = (head.form == LineForm::OpenAi).then_some(&link);
            prop_assert!(verify_line(&whole[..at.index(whole.len())]).is_none());
            for part in [Some(&body), head.metadata.map(|_| &note), link].into_iter().flatten() {
                let from = memchr::memmem::rfind(&whole, text(part).get().as_bytes()).unwrap() + 1;
                let mut changed = whole.clone();
                changed[from + at.index(part.len())] ^= 1;
                prop_assert!(verify_line(&changed).is_none(), "{}", String::from_utf8_lossy(&changed));
            }
        }
    }
}

#[test]
fn the_result_of_a_fallback_is_marked_and_pretends_no_answer() {
    let answer = ResultBody::Fallback { code: "max_retries", message: "it is down", output: b"{\"kind\": \"letter\"}" };
    for (form, place) in [(LineForm::OpenAi, "/error/code"), (LineForm::Anthropic, "/result/error/error/code")] {
        let metadata = RawValue::from_string(r#"{"page":7}"#.to_owned()).unwrap();
        let custom_id = CustomId::from("a");
        let line = ResultLine { ordinal: 3, call: 2, custom_id: &custom_id, metadata: Some(&metadata), form };
        let line = line.encode(End::FellBack, &answer);
        assert!(line.starts_with(BEGINNING));
        let read: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((&read["source"], &read["output"]), (&json!("fallback"), &json!({"kind": "letter"})));
        assert_eq!(read.pointer(place), Some(&json!("max_retries")));
        assert!(read["response"].is_null() && read.pointer("/result/message").is_none());
        let proof = verify_line(&line).unwrap();
        assert_eq!((proof.ordinal, proof.call, proof.fell_back, proof.status), (3, 2, true, None));
        assert_eq!(proof.code.as_deref(), Some("max_retries"));
        let null = ResultBody::Fallback { code: "max_retries", message: "down", output: b"null" };
        let head = ResultLine { ordinal: 3, call: 2, custom_id: &custom_id, metadata: None, form };
        assert!(verify_line(&head.encode(End::FellBack, &null)).unwrap().fell_back);
        for part in ["letter", "it is down", "page", "fallback\""] {
            let at = line.windows(part.len()).position(|window| window == part.as_bytes()).unwrap();
            let mut changed = line.clone();
            changed[at] = b'X';
            assert_eq!(verify_line(&changed), None, "{part}");
        }
    }
}
