//! What a client with limits or models may not send, for a server could find more in it than was read here.

use std::io::Write as _;
use std::sync::Arc;

use axum::extract::Request;
use flate2::Compression;
use flate2::write::GzEncoder;
use paceline_gateway::{Bounds, ClientConfig, Clients, KeyHash};
use tokio::sync::Mutex;

use crate::support::{KEY_WITH_SIGNS, NO_KEY, Served, answer, client, counted, serve_to, upstream};
use crate::{OK, bounds};

const LARGEST: usize = 20_000;

/// What the upstream saw of a request: its header fields.
type Seen = Arc<Mutex<Vec<http::HeaderMap>>>;

async fn served(settings: &str) -> (Served, Seen) {
    let seen = Seen::default();
    let sees = Arc::clone(&seen);
    let api = upstream(move |request: Request| {
        let sees = Arc::clone(&sees);
        async move {
            sees.lock().await.push(request.headers().clone());
            answer(200, &[], OK)
        }
    });
    let served = Served::new(api.await, settings, bounds(|bounds| bounds.largest_body = LARGEST));
    let clients = vec![
        client("tokens", &["900k tokens per 1h"]),
        ClientConfig { models: vec!["m".to_owned()], ..client("models", &[]) },
        client("calls", &["600rpm"]),
        client("free", &[]),
    ];
    served.gateway.replace_clients(Clients::with_keys(clients, &Clients::OfThisMachine).expect("limits"));
    (served, seen)
}

async fn status(
    served: &Served,
    key: &str,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: Vec<u8>,
) -> (u16, String) {
    let request = served.client.request(method.parse().expect("a method"), served.url.clone() + path);
    let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let got = request.header("x-paceline-key", format!("pk-{key}")).body(body).send().await.expect("an answer");
    (got.status().as_u16(), got.text().await.expect("a text"))
}

/// Header fields of a request.
type Fields<'a> = &'a [(&'a str, &'a str)];

/// Keys, path, header fields and body of a request.
type Sent<'a> = (&'a str, &'a str, Fields<'a>, Vec<u8>);

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const FORM: &[(&str, &str)] = &[("content-type", "multipart/form-data; boundary=x")];
const ASKS: &str = r#"{"model":"m","input":"hi","background":true}"#;
const ASKS_NOTHING: &str = r#"{"model":"m","input":"hi"}"#;

#[tokio::test]
async fn a_body_that_is_not_read_as_every_server_reads_it_reaches_no_model() {
    let (served, seen) = served("").await;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(ASKS.as_bytes()).expect("in memory");
    let gzip = gzip.finish().expect("in memory");
    let utf_16 = ASKS.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>();
    let marked = [b"\xEF\xBB\xBF", ASKS.as_bytes()].concat();
    let long = ASKS.replace("hi", &"hi".repeat(LARGEST));
    let deep = format!(r#"{{"model":"m","a":{}{{"model":"gpt-5"}}{}}}"#, "[".repeat(90), "]".repeat(90));
    let gzipped: &[(&str, &str)] = &[("content-type", "application/json"), ("content-encoding", "gzip")];
    let utf_7: &[(&str, &str)] = &[("content-type", "application/json; charset=utf-7")];
    let cases: Vec<Sent<'_>> = vec![
        ("tokens models", "/v1/responses", JSON, marked),
        ("tokens models", "/v1/responses", JSON, utf_16),
        ("tokens models", "/v1/responses", gzipped, gzip),
        ("tokens models", "/v1/responses", utf_7, ASKS_NOTHING.into()),
        ("tokens models", "/v1/responses", JSON, long.into()),
        ("tokens models", "/v1/responses", JSON, ASKS.replace("true", "NaN").into()),
        ("tokens models", "/v1/responses", JSON, format!("{ASKS_NOTHING}{ASKS}").into()),
        ("models", "/v1/responses", JSON, deep.into()),
        (
            "tokens models",
            "/v1/completions",
            &[("content-type", "application/x-www-form-urlencoded")],
            br#"{"model":"m","prompt":"&model=gpt-5&background=true&"}"#.to_vec(),
        ),
        ("tokens", "/v1/completions", JSON, br#"{"model":"m","prompt":"","max_tokens":9000,"max_tokens":1}"#.into()),
        ("tokens", "/v1/chat/completions", JSON, br#"{"model":"m","max_tokens":1,"Max_Tokens":9000}"#.into()),
        ("tokens", "/v1/chat/completions", JSON, br#"{"model":"m","max_tokens":1,"n":"100"}"#.into()),
        ("tokens", "/models/m:generateContent", JSON, br#"{"generationConfig":{"candidateCount":9},"N":1}"#.into()),
        ("tokens", "/v1/responses", JSON, ASKS.into()),
        ("tokens", "/v1/responses", JSON, ASKS.replace("true", "true,\"background\":false").into()),
        ("tokens", "/v1/responses", JSON, ASKS.replace("true", "false,\"background\":true").into()),
        ("tokens", "/v1/responses", JSON, ASKS.replace("background", "BackGround").into()),
        ("tokens", "/v1/responses?background=true", JSON, ASKS_NOTHING.into()),
        ("tokens", "/v1/responses?x=1;%2542ackground=1", JSON, ASKS_NOTHING.into()),
        (
            "tokens",
            "/v1/responses",
            FORM,
            b"--x\r\ncontent-disposition: form-data; name=\"background\"\r\n\r\ntrue\r\n--x--".to_vec(),
        ),
        (
            "tokens",
            "/v1/responses",
            &[("content-type", "application/x-www-form-urlencoded")],
            b"background=true".to_vec(),
        ),
    ];
    for (keys, path, fields, body) in cases {
        for key in keys.split(' ') {
            let (status, text) = status(&served, key, "POST", path, fields, body.clone()).await;
            let shown = String::from_utf8_lossy(&body[..body.len().min(80)]);
            assert_eq!(status, 403, "{key} {path} {fields:?} {shown}: {text}");
            assert!(text.contains("client_key") && (text.contains("the key ")), "{text}");
        }
    }
    assert!(seen.lock().await.is_empty(), "no server saw them");
}

#[tokio::test]
async fn what_is_usual_still_passes() {
    let (served, seen) = served("").await;
    let (form, long) = (b"--x\r\n\r\na picture\r\n--x--".to_vec(), vec![b'x'; 2 * LARGEST]);
    let long_form = [b"--x\r\n".to_vec(), long].concat();
    let cases: [Sent<'_>; 11] = [
        ("tokens models", "/v1/responses", JSON, ASKS_NOTHING.into()),
        ("tokens models", "/v1/responses", &[], ASKS_NOTHING.into()),
        ("tokens", "/v1/responses?background=false", JSON, ASKS_NOTHING.into()),
        ("tokens", "/v1/audio/transcriptions", FORM, form.clone()),
        ("tokens", "/v1/audio/transcriptions", FORM, long_form.clone()),
        ("tokens", "/openai/deployments/d/audio/translations", FORM, form.clone()),
        ("tokens", "/v1/images/edits", FORM, long_form),
        ("tokens", "/v1/images/generations", JSON, br#"{"background":"transparent"}"#.to_vec()),
        ("calls free", "/v1/responses", JSON, ASKS.into()),
        ("calls models free", "/v1/chat/completions", JSON, br#"{"model":"m","n":"2","n":2}"#.into()),
        ("free", "/v1/things", FORM, form),
    ];
    let count = cases.iter().map(|case| case.0.split(' ').count()).sum::<usize>();
    for (keys, path, fields, body) in cases {
        for key in keys.split(' ') {
            let (status, text) = status(&served, key, "POST", path, fields, body.clone()).await;
            assert_eq!(status, 200, "{key} {path}: {text}");
        }
    }
    for key in ["tokens", "models"] {
        assert_eq!(status(&served, key, "GET", "/v1/models", &[], Vec::new()).await.0, 200, "{key}");
    }
    assert_eq!(seen.lock().await.len(), count + 2);
}

#[tokio::test]
async fn a_client_with_limits_sends_prompts_and_reads_and_does_nothing_else_at_a_provider_of_models() {
    let (served, _) = served("").await;
    for (key, method, path, expected) in [
        ("calls", "POST", "/v1/organization/admin_api_keys", 403),
        ("calls", "POST", "/v1/chat/completions/c_1", 403),
        ("calls", "POST", "/v1/vector_stores", 403),
        ("calls", "POST", "/v1/containers", 403),
        ("tokens", "POST", "/v1/responses/r/cancel", 403),
        ("free", "POST", "/v1/vector_stores", 200),
        ("calls", "COPY", "/v1/x", 403),
        ("calls", "PURGE", "/v1/x", 403),
        ("calls", "TRACE", "/v1/chat/completions", 403),
        ("calls", "post", "/v1/chat/completions", 403),
        ("calls", "HEAD", "/v1/models", 200),
        ("free", "COPY", "/v1/x", 200),
        ("tokens", "DELETE", "/v1/responses/resp_1", 403),
        ("calls", "DELETE", "/v1/conversations/c", 403),
        ("calls", "DELETE", "/v1/files/f", 403),
        ("calls", "delete", "/v1/responses/resp_1", 403),
        ("models", "DELETE", "/v1/responses/resp_1", 403),
        ("calls", "PATCH", "/v1/conversations/c", 403),
        ("calls", "GET", "/v1/responses/resp_1", 200),
        ("free", "DELETE", "/v1/responses/resp_1", 200),
    ] {
        let (status, text) = status(&served, key, method, path, &[], Vec::new()).await;
        assert_eq!(status, expected, "{key} {method} {path}: {text}");
    }
}

#[tokio::test]
async fn no_field_makes_a_server_take_a_request_for_another_one() {
    let names = [
        "x-http-method",
        "X-HTTP-Method-Override",
        "x_http_method_override",
        "x-method.override",
        "http-method-override",
        "x_original_url",
        "X-Original-URL",
        "x-original_uri",
        "x_rewrite_url",
        "x_forwarded_for",
        "x-forwarded-path",
        "forwarded",
        "x-envoy-original-path",
        "x-override-url",
        "x-request-uri",
    ];
    let stays = ["x-request-id", "openai-beta", "x-stainless-lang", "idempotency-key", "anthropic-version"];
    let (with_key, seen) = served("").await;
    let fields: Vec<_> = names.iter().chain(&stays).map(|name| (*name, "DELETE")).collect();
    assert_eq!(status(&with_key, "free", "GET", "/v1/models", &fields, Vec::new()).await.0, 200);
    let seen = seen.lock().await.pop().expect("one");
    assert_eq!(names.iter().filter(|name| seen.contains_key(**name)).collect::<Vec<_>>(), Vec::<&&str>::new());
    assert!(stays.iter().all(|name| seen.contains_key(*name)), "{seen:?}");
    // Where they go on, what they make of a request counts.
    let (without, _) = served(NO_KEY).await;
    for name in ["x-http-method", "x_http_method_override", "http-method-override"] {
        let fields = [(name, "POST")];
        let (status, text) =
            status(&without, "models", "GET", "/v1beta/models/gpt-5:generateContent", &fields, Vec::new()).await;
        assert_eq!(status, 403, "{name}: {text}");
    }
}

#[tokio::test]
async fn a_client_with_paths_calls_no_other() {
    let (served, _) = served("").await;
    let own = ["/api/v1/chat", "/api/v1/models"].map(str::to_owned).to_vec();
    serve_to(&served, vec![ClientConfig { paths: own, ..client("paths", &[]) }]);
    for (method, path, expected) in [
        ("POST", "/v1/chat/completions", 200),
        ("POST", "/v1/%63hat/completions?x=1", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/v1/models/m", 200),
        ("GET", "/v1/models2", 403),
        ("POST", "/v1/chatter", 403),
        ("POST", "/v1/Chat/completions", 403),
        ("POST", "/v1//chat/completions", 403),
        ("POST", "//v1/chat/completions", 403),
        ("GET", "/v1/files", 403),
        ("POST", "/v1/embeddings?x=/api/v1/chat", 403),
        ("POST", "/v1/chat/%2e%2e/files", 403),
    ] {
        let (status, text) = status(&served, "paths", method, path, &[], Vec::new()).await;
        assert_eq!(status, expected, "{method} {path}: {text}");
        assert!(
            status != 403 || text.contains("the key paths is for /api/v1/chat, /api/v1/models and what is below"),
            "{text}"
        );
    }
    // A path that says more than an upstream and a version is allowed as the operator wrote it.
    let own = ["/api/v1", "/api/v1/vector_stores"].map(str::to_owned).to_vec();
    serve_to(&served, vec![ClientConfig { paths: own, ..client("named", &[]) }]);
    for (method, path, expected) in [
        ("POST", "/v1/vector_stores", 200),
        ("POST", "/v1/vector_stores/v/search", 200),
        ("POST", "/v1/vector_stores/v/file_batches", 403),
        ("DELETE", "/v1/vector_stores/v", 403),
        ("POST", "/v1/containers", 403),
        ("POST", "/v1/embeddings", 200),
    ] {
        let (status, text) = status(&served, "named", method, path, &[], Vec::new()).await;
        assert_eq!(status, expected, "{method} {path}: {text}");
    }
    serve_to(&served, vec![ClientConfig { paths: vec!["/api/v1/chat".to_owned()], ..client("paths", &[]) }]);
    let own_files = served.client.get(served.origin() + "/v1/files").header("x-paceline-key", "pk-paths");
    assert_eq!(own_files.send().await.expect("an answer").status().as_u16(), 404);
}

/// A server that compresses although that was not asked for, and repeats the fields of the request.
#[tokio::test]
async fn a_compressed_success_is_read_and_repeats_no_key() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(br#"{"choices":[],"you":"Bearer a3f8c9d2e1b04711"}"#).expect("in memory");
    let gzip = gzip.finish().expect("in memory");
    let api = upstream(move |_: Request| {
        let gzip = gzip.clone();
        async move { answer(200, &[("content-encoding", "gzip"), ("content-type", "application/json")], gzip) }
    })
    .await;
    let served = Served::new(api, "", bounds(|_| {}));
    let got = served.post().header("x-paceline-retries", "0").send().await.expect("an answer");
    assert_eq!((got.status().as_u16(), got.headers().get("content-encoding")), (200, None));
    assert_eq!(got.headers().get("x-paceline-retries"), None, "the gateway did not give up");
    assert_eq!(got.text().await.expect("whole"), r#"{"choices":[],"you":"Bearer [key]"}"#);
    assert_eq!(served.limiter.snapshot().account.totals.by_class[0], 1, "it is a success");
    let head = served.client.head(format!("{}/v1/models", served.url)).send().await.expect("an answer");
    assert_eq!(head.status().as_u16(), 200, "a head has no body to be read");
}

/// One of this machine has the key already, and gets a stream as it comes.
#[tokio::test]
async fn a_compressed_stream_or_part_is_read_for_a_client_with_a_key() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(b"data: Bearer a3f8c9d2e1b04711\n\n").expect("in memory");
    let gzip = gzip.finish().expect("in memory");
    let api = upstream(move |request: Request| {
        let (gzip, is_part) = (gzip.clone(), request.uri().path().ends_with("part"));
        let status = if is_part { 206 } else { 200 };
        async move { answer(status, &[("content-encoding", "gzip"), ("content-type", "text/event-stream")], gzip) }
    })
    .await;
    let served = Served::new(api, "", bounds(|_| {}));
    let got = served.client.get(format!("{}/v1/stream", served.url)).send().await.expect("an answer");
    assert_eq!(got.text().await.expect("whole"), "data: Bearer a3f8c9d2e1b04711\n\n", "the client unpacks it");
    serve_to(&served, vec![client("free", &[])]);
    for path in ["/v1/stream", "/v1/part"] {
        let (_, text) = status(&served, "free", "GET", path, &[], Vec::new()).await;
        assert_eq!(text, "data: Bearer [key]\n\n", "{path}");
    }
}

/// In such a coding the key could not be found.
#[tokio::test]
async fn a_success_in_a_coding_that_is_not_known_goes_to_no_client_with_a_key() {
    let api = upstream(|request: Request| async move {
        let coding = request.headers()["x-coding"].to_str().expect("a word").to_owned();
        answer(200, &[("content-encoding", &coding), ("content-type", "application/json")], "Bearer a3f8c9d2e1b04711")
    })
    .await;
    let served = Served::new(api, "", bounds(|_| {}));
    let unknown = served.post().header("x-coding", "deflate").send().await.expect("an answer");
    assert_eq!(unknown.status().as_u16(), 200, "one of this machine has the key already");
    serve_to(&served, vec![client("free", &[])]);
    for (coding, expected) in
        [("deflate", 502), ("br", 502), ("gzip, gzip", 502), ("foo", 502), ("identity", 200), ("", 200), ("UTF-8", 200)]
    {
        let fields = [("x-coding", coding)];
        let (code, text) = status(&served, "free", "GET", "/v1/models", &fields, Vec::new()).await;
        assert_eq!((code, text.contains("\"unreadable\"")), (expected, expected == 502), "{coding}: {text}");
        assert!(!text.contains("a3f8c9d2e1b04711"), "{coding}: {text}");
    }
}

/// The server did its work: it is not asked again, and nothing speaks against it.
#[tokio::test]
async fn a_compressed_success_that_is_damaged_is_not_asked_for_again() {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(br#"{"choices":[],"you":"Bearer a3f8c9d2e1b04711"}"#).expect("in memory");
    let gzip = gzip.finish().expect("in memory");
    let (api, calls) = counted(move |_| {
        let cut = gzip[..gzip.len() - 9].to_vec();
        answer(200, &[("content-encoding", "gzip"), ("content-type", "application/json")], cut)
    })
    .await;
    let served = Served::new(api, "", bounds(|_| {}));
    let got = served.post().send().await.expect("an answer");
    let unknown = got.headers().get("x-paceline-unknown").cloned();
    let (status, text) = (got.status().as_u16(), got.text().await.expect("a text"));
    assert_eq!((status, calls.count()), (502, 1), "{text}");
    assert_eq!(
        unknown.as_ref().map(|calls| calls.as_bytes()),
        Some(&b"1"[..]),
        "it was done, and the gateway does not know what it used"
    );
    assert!(text.contains("\"unreadable\"") && !text.contains("a3f8c9d2e1b04711"), "{text}");
    assert_eq!(served.limiter.snapshot().account.totals.by_class[0], 1, "it is a success");
}

#[tokio::test]
async fn a_key_in_two_pieces_of_a_stream_is_found_and_no_range_cuts_it_in_two() {
    let api = upstream(|request: Request| async move {
        let range = request.headers().contains_key("range") || request.headers().contains_key("if-range");
        let pieces = [format!("data: {range} a3f8c9d2"), "e1b0".to_owned(), "4711 a3f8\n\n".to_owned()];
        let pieces = futures_util::stream::iter(pieces.map(Ok::<_, std::io::Error>));
        answer(200, &[("content-type", "text/event-stream")], axum::body::Body::from_stream(pieces))
    })
    .await;
    let served = Served::new(api, "", bounds(|_| {}));
    serve_to(&served, vec![client("free", &[])]);
    let fields = [("range", "bytes=0-7"), ("if-range", "\"x\"")];
    let (code, text) = status(&served, "free", "GET", "/v1/models", &fields, Vec::new()).await;
    assert_eq!((code, &*text), (200, "data: false [key]*********** a3f8\n\n"));
}

/// A key in the spellings of encoders, each of which a server may cut at any byte.
#[tokio::test]
async fn an_escaped_key_in_two_pieces_of_a_success_is_found() {
    for said in [
        r"a3f8\/c9d2+e1b04711",
        r"\u00613f8\\/c9d2\u002Be1b04711",
        "a3f8%2Fc9d2%252Be1b04711",
        "a3f8&#x2F;c9d2&plus;e1b04711",
        r"YTNmOC9jOWQyK2UxYjA0NzEx",
    ] {
        let api = upstream(move |request: Request| async move {
            let at: usize = request.uri().query().and_then(|at| at.parse().ok()).expect("a number");
            let pieces = [format!("data: is {}", &said[..at]), format!("{}\n\n", &said[at..])];
            let pieces = futures_util::stream::iter(pieces.map(Ok::<_, std::io::Error>));
            answer(200, &[("content-type", "text/event-stream")], axum::body::Body::from_stream(pieces))
        });
        let served = Served::new(api.await, KEY_WITH_SIGNS, bounds(|_| {}));
        serve_to(&served, vec![client("free", &[])]);
        let expected = format!("data: is [key]{}\n\n", "*".repeat(said.len() - 5));
        for at in 1..said.len() {
            let got = status(&served, "free", "GET", &format!("/v1/models?{at}"), &[], Vec::new()).await;
            assert_eq!(got, (200, expected.clone()), "{said} cut at {at}");
        }
    }
}

#[tokio::test]
async fn a_key_with_limits_names_nothing_that_the_provider_keeps_for_others() {
    let served = Served::new(upstream(|_| async { answer(200, &[], OK) }).await, "", Bounds::default());
    let paths = ["/api/v1", "/api/v1/conversations", "/api/v1/mcp"].map(str::to_owned).to_vec();
    let named = ClientConfig { paths, ..client("named", &[]) };
    serve_to(&served, vec![client("calls", &["100 per 1h"]), client("free", &[]), named]);
    let all = [
        ("conversations", r#""conversation":"conv_1""#),
        ("conversations", r#""conversation":{"id":"conv_1"}"#),
        ("vector_stores", r#""tools":[{"type":"file_search","vector_store_ids":["vs_1"]}]"#),
        ("containers", r#""tools":[{"type":"code_interpreter","container":"cntr_1"}]"#),
        ("mcp", r#""tools":[{"type":"mcp","server_url":"https://x"}]"#),
    ];
    for (folder, member) in all {
        let body = format!(r#"{{"model":"m","input":"x",{member}}}"#).into_bytes();
        for (key, expected) in [
            ("calls", 403),
            ("free", 200),
            ("named", if ["vector_stores", "containers"].contains(&folder) { 403 } else { 200 }),
        ] {
            let (status, text) = status(&served, key, "POST", "/v1/responses", &[], body.clone()).await;
            assert_eq!(status, expected, "{key} {member}: {text}");
            assert!(status == 200 || text.contains(folder), "{text}");
        }
    }
    let auto = r#"{"model":"m","input":"x","previous_response_id":"resp_1","tools":[{"type":"code_interpreter","container":{"type":"auto"}}]}"#;
    assert_eq!(status(&served, "calls", "POST", "/v1/responses", &[], auto.into()).await.0, 200);
}

#[tokio::test]
async fn a_key_that_makes_no_call_tells_of_no_jobs() {
    let served = Served::new(upstream(|_| async { answer(200, &[], OK) }).await, "", Bounds::default());
    let of = |name, path: &str| ClientConfig { paths: vec![path.to_owned()], ..client(name, &[]) };
    serve_to(&served, vec![of("prometheus", "/healthz"), of("runs", "/api/v1/chat"), client("free", &[])]);
    let job = r#"{"id":"x","name":"n","upstream":"api","state":"running","done":1,"total":2,"failed":0}"#;
    for (key, expected) in [("prometheus", 403), ("runs", 204), ("free", 204)] {
        let request = served.client.post(served.origin() + "/api/jobs").header("x-paceline-key", format!("pk-{key}"));
        let got = request.header("content-type", "application/json").body(job).send().await.expect("an answer");
        assert_eq!(got.status().as_u16(), expected, "{key}");
    }
}

/// A key of a client goes to no provider as the name of a model, whichever form that has.
#[tokio::test]
async fn a_key_is_no_name_of_a_model_in_a_form_either() {
    let (api, calls) = counted(|_| answer(200, &[], OK)).await;
    let key = format!("pl_{}", "0f".repeat(32));
    let generic = format!("provider = \"generic\"\n{NO_KEY}");
    let served = Served::all(&[("api", api, ""), ("any", api, &generic)], Bounds::default());
    serve_to(&served, vec![ClientConfig { key: KeyHash::of(&key), ..client("ci", &[]) }]);
    let form = |model: &str| {
        let part = |name: &str, value: &str| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        format!("{}{}--b--", part("model", model), part("file", "RIFF"))
    };
    let sent = async |path: &str, kind: &str, body: String| {
        let post = served.client.post(served.origin() + path).header("x-paceline-key", &key);
        post.header("content-type", kind).body(body).send().await.unwrap().status().as_u16()
    };
    let (multipart, urlencoded) = ("multipart/form-data; boundary=b", "application/x-www-form-urlencoded");
    for (path, kind, body) in [
        ("/api/v1/audio/transcriptions", multipart, form(&key)),
        ("/any/v1/x", multipart, form(&key)),
        ("/any/v1/x", urlencoded, format!("a=1&model={key}")),
        ("/api/v1/chat/completions", "application/json", format!(r#"{{"model":"m","Model":"{key}"}}"#)),
        ("/api/v1/chat/completions", "text/plain", format!(r#"{{"model":["{key}"]}}"#)),
    ] {
        assert_eq!(sent(path, kind, body.clone()).await, 400, "{path} {body}");
    }
    assert_eq!(calls.count(), 0);
    for (path, kind, body) in [
        ("/api/v1/audio/transcriptions", multipart, form("whisper-1")),
        ("/any/v1/x", "text/plain", format!("a text with {key}")),
        ("/api/v1/chat/completions", "application/json", format!(r#"{{"model":"m","input":"{key}"}}"#)),
    ] {
        assert_eq!(sent(path, kind, body.clone()).await, 200, "{path} {body}");
    }
}
