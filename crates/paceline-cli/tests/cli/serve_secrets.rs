//! Marked keys wherever a client or an upstream can put one, a gateway that logs everything, and a search over all that it
//! wrote, served or printed.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use http::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bounded::{BoundedOutput, reading};
use crate::serve::{Gateway, get, send};
use crate::support::{Job, Reply, Server};
use crate::tls::Authority;

/// The key of the upstream.
const OURS: &str = "sk-MARKED-upstream/7f3a+9b";

/// Keys that clients show which the gateway does not know, in fields, targets and lines that are none.
const SHOWN: [&str; 7] =
    ["MARKED-bearer", "MARKED-field", "MARKED-query", "MARKED-cookie", "MARKED-line", "MARKED-proxy", "MARKED-h2"];

/// A server that repeats all that it is sent, in its head and its body.
fn echo() -> Server {
    Server::new(|arrival| {
        let shown: Vec<_> =
            arrival.headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap_or("?"))).collect();
        let key = arrival.headers.get("authorization").map_or("", |value| value.to_str().unwrap_or("?")).to_owned();
        let status = arrival.path.rsplit('/').next().and_then(|status| status.get(..3)?.parse().ok()).unwrap_or(200);
        let message = format!("you sent {} to {}", shown.join(", "), arrival.path);
        let body = serde_json::json!({ "error": { "message": message, "code": key }, "choices": [] });
        Reply::new(status, &body).with_header("x-request-id", key)
    })
}

/// All that a client gets for these bytes.
fn raw(gateway: &Gateway, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(gateway.url.strip_prefix("http://").expect("an address")).expect("it listens");
    stream.write_all(bytes).expect("it reads");
    let mut all = Vec::new();
    // It may reset the connection after its answer.
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// Every file below a folder, as text.
fn files(folder: &Path) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for path in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            all.extend(files(&path));
        } else if path.file_name().is_some_and(|name| name != "paceline.toml") {
            let text = String::from_utf8_lossy(&std::fs::read(&path).expect("a file")).into_owned();
            all.push((path.display().to_string(), text));
        }
    }
    all
}

/// An upstream that repeats what it is sent, one without a key of ours, two whose certificates are not trusted, and one that is
/// not there. Returns the servers of the certificates.
fn configure(job: &Job, server: &Server) -> [Server; 2] {
    let (known, other) = (Authority::new(), Authority::new());
    let untrusted = Server::tls(other.server("localhost", false), |_| Reply::ok());
    let elsewhere = Server::tls(known.server("elsewhere.example", false), |_| Reply::ok());
    std::fs::write(job.path("ca.pem"), &known.pem).expect("writable");
    let upstream = |name: &str, url: &str, more: &str| {
        format!("[upstream.{name}]\nprovider = \"openai\"\nbase_url = \"{url}/v1\"\n{more}\n")
    };
    let key = "api_key_env = \"KEY\"\nretry = { max_retries = 1, base = \"1ms\" }";
    let config = [
        upstream("echo", &server.url(), key),
        upstream("open", &server.url(), "headers = { x-none = \"1\" }"),
        upstream("untrusted", &untrusted.url(), &format!("{key}\nca_file = \"ca.pem\"")),
        upstream("elsewhere", &elsewhere.url(), &format!("{key}\nca_file = \"ca.pem\"")),
        upstream("gone", "http://127.0.0.1:1", key),
    ];
    std::fs::write(job.path("paceline.toml"), config.concat()).expect("writable");
    [untrusted, elsewhere]
}

#[test]
fn no_key_is_written_served_or_printed_at_any_level_of_the_log() {
    let (job, server) = (Job::new(0), echo());
    let _untrusted = configure(&job, &server);
    let mut add = job.paceline();
    let printed = add.args(["serve", "keys", "add", "ci", "--state", "state"]).ended_with_output();
    let theirs = String::from_utf8(printed.stdout).expect("text").trim().to_owned();
    let log = File::create(job.path("log")).expect("writable");
    let mut command: Command = job.paceline();
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--state", "state", "--log-requests"])
        .env("KEY", OURS)
        .env("RUST_LOG", "trace");
    let mut gateway = Gateway::logging(&mut command, log);
    let mut got = http_1(&gateway, &theirs);
    got.extend(http_2(&gateway, &theirs));
    for endpoint in ["/v1/200", "/v1/400"] {
        got.extend(batch(&gateway, &theirs, endpoint));
    }
    got.extend(what_people_look_at(&gateway, &theirs));
    got.extend(printed_by(&job, &gateway, &theirs));
    assert_eq!(get(&format!("{}/healthz", gateway.url)).0, 200);
    gateway.signal(Signal::HUP);
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    let mut rest = String::new();
    reading(&gateway.child, "what it prints", || gateway.stdout.read_to_string(&mut rest)).expect("text");
    got.push(rest);

    let in_text = |text: &str, key: &str| text.contains(key) || text.contains(&key.replace('/', "\\/"));
    for text in &got {
        assert!(!in_text(text, OURS) && !text.contains(&theirs), "{text}");
    }
    // What the client itself showed may come back to it, and is written nowhere.
    let written = files(&job.path("."));
    assert!(
        written
            .iter()
            .any(|(name, text)| name.ends_with("log") && text.contains("TRACE") && text.contains("elsewhere"))
    );
    for (name, text) in &written {
        for key in SHOWN.iter().copied().chain([OURS, &*theirs]) {
            let line = text.lines().find(|line| in_text(line, key));
            assert!(line.is_none(), "{name} has {key}: {line:?}");
        }
    }
    for arrival in server.arrivals() {
        let shown: Vec<_> =
            arrival.headers.values().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect();
        assert!(
            !shown.concat().contains(&theirs) && !arrival.path.contains(&theirs),
            "the key of a client went on: {shown:?}"
        );
    }
}

/// Else a client that has no key fills the disk, and a key that stands for the method is read by all who read the log.
#[test]
fn what_a_client_writes_into_the_log_is_bounded() {
    let (job, server) = (Job::new(0), echo());
    let _untrusted = configure(&job, &server);
    let printed = job.paceline().args(["serve", "keys", "add", "ci", "--state", "state"]).ended_with_output();
    let theirs = String::from_utf8(printed.stdout).expect("text").trim().to_owned();
    let mut command: Command = job.paceline();
    command.args(["serve", "--listen", "127.0.0.1:0", "--state", "state", "--log-requests"]).env("KEY", OURS);
    let gateway = Gateway::logging(&mut command, File::create(job.path("log")).expect("writable"));
    let (shows, none) = (format!("x-paceline-key: {theirs}\r\n"), String::new());
    let (long, path) = ("M".repeat(50_000), format!("/echo/v1/{}/200", "q".repeat(50_000)));
    let cases = [
        (&*theirs, "/echo/v1/200", &none, 400, "other"),
        (&theirs, "/echo/v1/200", &shows, 400, "other"),
        (&long, "/echo/v1/200", &none, 401, "other"),
        (&long, "/echo/v1/200", &shows, 200, "other"),
        ("PROPFIND", &path, &shows, 200, "PROPFIND"),
    ];
    for (method, path, shown, status, _) in &cases {
        let head = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{shown}\r\n");
        let got = raw(&gateway, head.as_bytes());
        assert!(got.starts_with(&format!("HTTP/1.1 {status}")), "{method:.20}: {got:.300}");
    }
    let lines: Vec<_> = loop {
        let log = std::fs::read_to_string(job.path("log")).expect("a log");
        let lines: Vec<_> = log.lines().filter(|line| line.contains("method=")).map(str::to_owned).collect();
        if lines.len() >= cases.len() {
            break lines;
        }
        std::thread::yield_now();
    };
    for (line, (.., logged)) in lines.iter().zip(cases) {
        let is_told = line.contains(&format!("method=\"{logged}\""));
        assert!(is_told && line.len() < 1_000 && !line.contains(&theirs), "{line:.1000}");
    }
    assert!(server.arrivals().iter().all(|arrival| arrival.method != *theirs), "no key went on");
}

/// What a client gets that speaks HTTP/1.1, at upstreams of all kinds, at none, and where its request is no request.
fn http_1(gateway: &Gateway, theirs: &str) -> Vec<String> {
    let mut got = Vec::new();
    let shows = format!("host: 127.0.0.1\r\nx-paceline-key: {theirs}\r\nconnection: close\r\n");
    let marked = "authorization: Bearer MARKED-bearer\r\nx-api-key: MARKED-field\r\ncookie: a=MARKED-cookie\r\nproxy-authorization: Basic MARKED-proxy\r\n";
    let body = r#"{"model":"m","messages":[]}"#;
    let length = body.len();
    for path in [
        "echo/v1/200",
        "echo/v1/400",
        "echo/v1/401",
        "echo/v1/404",
        "echo/v1/429",
        "echo/v1/500",
        "untrusted/v1/x",
        "elsewhere/v1/x",
        "gone/v1/x",
    ] {
        let head = format!(
            "POST /{path}?key=MARKED-query HTTP/1.1\r\n{shows}x-paceline-deadline: 300ms\r\n{marked}content-length: {length}\r\n\r\n"
        );
        got.push(raw(gateway, format!("{head}{body}").as_bytes()));
    }
    // An upstream without a key of its own gets the client's, and no other client is told.
    let open = raw(gateway, format!("GET /open/v1/401?key=MARKED-query HTTP/1.1\r\n{shows}{marked}\r\n").as_bytes());
    assert!(open.starts_with("HTTP/1.1 401"), "{open}");
    let field = |name: &str| format!("--b\r\ncontent-disposition: form-data; name={name}\r\n\r\n");
    let file = format!(
        "{}batch\r\n{}{{}}\r\n--b--\r\n",
        field("purpose"),
        field(&format!("file; filename=\"{theirs}.jsonl\""))
    );
    let framing = format!("content-type: multipart/form-data; boundary=b\r\ncontent-length: {}", file.len());
    let upload = raw(gateway, format!("POST /v1/files HTTP/1.1\r\n{shows}{framing}\r\n\r\n{file}").as_bytes());
    assert!(upload.starts_with("HTTP/1.1 400") && upload.contains("a key of a client stands in it"), "{upload}");
    for bytes in [
        format!("GET /nowhere?key=MARKED-query HTTP/1.1\r\n{shows}{marked}\r\n"),
        format!("GET /echo/../x?key=MARKED-query HTTP/1.1\r\n{shows}{marked}\r\n"),
        format!("GET /echo/v1/200 HTTP/1.1\r\n{shows}MARKED-line\r\n\r\n"),
        format!("MARKED-line( /echo HTTP/1.1\r\n{shows}\r\n"),
        format!("GET /echo/v1/200 HTTP/1.1\r\n{shows}x: MARKED-line\0\r\n\r\n"),
        format!("GET /echo/v1/200 HTTP/1.1\r\n{shows}x-paceline-deadline: soon\r\n{marked}\r\n"),
        format!("GET /echo/v1/200 HTTP/1.1\r\n{shows}transfer-encoding: x, chunked\r\n{marked}\r\n"),
        format!("GET /echo/v1/200?key=MARKED-query HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n{marked}\r\n"),
        format!("GET /metrics HTTP/1.1\r\n{shows}{marked}\r\n"),
        format!("GET /api/state HTTP/1.1\r\n{shows}{marked}\r\n"),
        format!("GET / HTTP/1.1\r\n{shows}{marked}\r\n"),
        format!("GET /v1/files/{theirs} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"),
        format!("{theirs} /echo/v1/200 HTTP/1.1\r\n{shows}\r\n"),
        format!("{theirs} /echo/v1/200 HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"),
    ] {
        got.push(raw(gateway, bytes.as_bytes()));
    }
    got
}

/// A request by reqwest, with the key of the client and keys that are marked.
fn asked(gateway: &Gateway, theirs: &str, method: Method, path: &str, body: (&str, String)) -> String {
    let (kind, body) = body;
    let (status, text) = send(&format!("{}{path}", gateway.url), |client, url| {
        let fields =
            [("x-paceline-key", theirs), ("authorization", "Bearer MARKED-bearer"), ("cookie", "MARKED-cookie")];
        let request = client.request(method, url).header("content-type", kind).body(body);
        fields.into_iter().fold(request, |request, (name, value)| request.header(name, value))
    });
    assert_eq!(status, 200, "{path}: {text}");
    text
}

/// All that a client gets of a batch whose calls get that path's status: its objects, its files, and the lists.
fn batch(gateway: &Gateway, theirs: &str, endpoint: &str) -> Vec<String> {
    let ask = |path: &str| asked(gateway, theirs, Method::GET, path, ("text/plain", String::new()));
    let value = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let body = json!({ "model": "m", "messages": [] });
    let line = json!({ "custom_id": "a", "method": "POST", "url": endpoint, "body": body });
    let part = |head: &str, body: &str| format!("--b\r\ncontent-disposition: form-data; name={head}\r\n\r\n{body}\r\n");
    let form = part("purpose", "batch") + &part("file; filename=\"in.jsonl\"", &line.to_string()) + "--b--\r\n";
    let mut got = vec![asked(gateway, theirs, Method::POST, "/v1/files", ("multipart/form-data; boundary=b", form))];
    let order = json!({ "input_file_id": value(&got[0])["id"], "endpoint": endpoint, "completion_window": "24h" });
    let order = ("application/json", order.to_string());
    got.push(asked(gateway, theirs, Method::POST, "/v1/batches?upstream=echo", order));
    let id = value(&got[1])["id"].as_str().expect("an id").to_owned();
    let ended = loop {
        let text = ask(&format!("/v1/batches/{id}"));
        match value(&text)["status"].as_str() {
            Some("completed") => break text,
            Some("failed" | "expired" | "cancelled") => panic!("{text}"),
            _ => std::thread::yield_now(),
        }
    };
    let files = ["output_file_id", "error_file_id"].map(|which| value(&ended)[which].as_str().map(str::to_owned));
    let files: Vec<_> = files.into_iter().flatten().map(|id| ask(&format!("/v1/files/{id}/content"))).collect();
    assert!(files.iter().any(|text| text.contains("you sent ")), "what the upstream repeats is in them: {files:?}");
    got.extend(files);
    got.extend([ended, ask("/v1/batches"), ask("/v1/files")]);
    got
}

/// The page and what it asks for; of the streams of events the first event.
fn what_people_look_at(gateway: &Gateway, theirs: &str) -> Vec<String> {
    let mut got: Vec<_> =
        ["/", "/api/page/page.js", "/api/state", "/metrics", "/readyz", "/api/history?upstream=echo&scope="]
            .map(|path| asked(gateway, theirs, Method::GET, path, ("text/plain", String::new())))
            .into();
    for path in ["/api/events", "/api/events?changes"] {
        let mut stream = TcpStream::connect(gateway.url.trim_start_matches("http://")).expect("it listens");
        let head = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-paceline-key: {theirs}\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("it reads");
        let (mut text, mut part) = (String::new(), vec![0; 64 << 10]);
        while !text.rsplit_once("data: ").is_some_and(|(_, event)| event.contains("\n\n")) {
            let len = stream.read(&mut part).expect("it tells");
            assert!(len > 0, "{path} has ended: {text}");
            text += &String::from_utf8_lossy(&part[..len]);
        }
        assert!(text.contains("\"decisions\":") && text.contains("\"batches\":"), "{text}");
        got.push(text);
    }
    got
}

/// What commands print that look at the gateway or at its folder.
fn printed_by(job: &Job, gateway: &Gateway, theirs: &str) -> Vec<String> {
    let listen = ["--listen", "127.0.0.1:0", "--state", "state"];
    let check = [&["serve", "check"][..], &listen].concat();
    let top = ["top", &gateway.url, "--once", "--api-key-env", "THEIRS"];
    let list = ["serve", "keys", "list", "--state", "state"];
    let mut got = Vec::new();
    for (args, is_in) in [(&top[..], "in the last minute"), (&list, "ci"), (&check, "echo")] {
        let told = job.paceline().args(args).env("KEY", OURS).env("THEIRS", theirs).output().expect("the binary runs");
        let text = [told.stdout, told.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(text.contains(is_in), "{args:?}: {text}");
        got.push(text);
    }
    got
}

/// What a client gets that speaks HTTP/2, with a wrong key and with its own.
fn http_2(gateway: &Gateway, theirs: &str) -> Vec<String> {
    let mut got = Vec::new();
    for (field, status) in [("MARKED-h2", 401), (theirs, 200)] {
        let url = format!("{}/echo/v1/200?key=MARKED-query", gateway.url);
        let client = paceline_http::client_to(&url).http2_prior_knowledge().build().expect("a client");
        let (status_got, body) = send(&url, |_, url| {
            client.get(url).header("x-api-key", field).header("authorization", "Bearer MARKED-bearer")
        });
        assert_eq!(status_got == 401, status == 401, "{body}");
        got.push(body);
    }
    got
}
