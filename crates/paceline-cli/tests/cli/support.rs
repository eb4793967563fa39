//! A server that counts, a job in a folder of its own, and the binary run on it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use crate::bounded::{BoundedOutput, TestBound};

/// A request that reached the server.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// What the item's body calls itself.
    pub(crate) item: String,
    /// Arrivals of the same item before this one.
    pub(crate) before: usize,
    pub(crate) method: http::Method,
    pub(crate) path: String,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

/// What the server answers.
#[derive(Clone)]
pub(crate) struct Reply {
    status: u16,
    content_type: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    after: Option<Duration>,
}

impl Reply {
    pub(crate) fn new(status: u16, body: &Value) -> Self {
        Self::text(status, "application/json", body.to_string())
    }

    /// A body of any kind.
    pub(crate) fn text(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status, content_type, headers: Vec::new(), body: body.into(), after: Some(Duration::ZERO) }
    }

    /// A usable answer.
    pub(crate) fn ok() -> Self {
        Self::new(200, &json!({"object": "chat.completion", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}))
    }

    /// An error in the shape of OpenAI's.
    pub(crate) fn error(status: u16, code: &str) -> Self {
        Self::new(status, &json!({"error": {"message": format!("it is {code}"), "type": "some_error", "code": code}}))
    }

    pub(crate) fn with_header(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    /// Answered only after that long.
    pub(crate) fn after(mut self, latency: Duration) -> Self {
        self.after = Some(latency);
        self
    }

    /// Never answered.
    pub(crate) fn never(mut self) -> Self {
        self.after = None;
        self
    }
}

#[derive(Default)]
struct Seen {
    arrivals: Mutex<Vec<Arrival>>,
    changed: Condvar,
}

/// How a server answers. It is one type for all tests, so that what serves HTTP is compiled once, and not for each of them.
type Answer = Arc<dyn Fn(&Arrival) -> Reply + Send + Sync>;

/// A server on a free port of this machine.
pub(crate) struct Server {
    seen: Arc<Seen>,
    port: u16,
    /// It speaks TLS, and is called by its name.
    tls: bool,
    runtime: Option<Runtime>,
}

impl Server {
    /// Answers every request as `answer` says.
    pub(crate) fn new(answer: impl Fn(&Arrival) -> Reply + Send + Sync + 'static) -> Self {
        Self::of(None, Arc::new(answer))
    }

    /// The same over TLS.
    pub(crate) fn tls(
        config: Arc<rustls::ServerConfig>,
        answer: impl Fn(&Arrival) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::of(Some(TlsAcceptor::from(config)), Arc::new(answer))
    }

    fn of(tls: Option<TlsAcceptor>, answer: Answer) -> Self {
        let is_tls = tls.is_some();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let seen = Arc::new(Seen::default());
        let all = Arc::clone(&seen);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, answer) = (Arc::clone(&all), Arc::clone(&answer));
                let service = service_fn(move |request| respond(request, Arc::clone(&seen), Arc::clone(&answer)));
                let tls = tls.clone();
                tokio::spawn(async move {
                    let http = hyper::server::conn::http1::Builder::new();
                    // What becomes of a connection is seen by the client.
                    let _ = match tls {
                        None => http.serve_connection(TokioIo::new(stream), service).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => http.serve_connection(TokioIo::new(stream), service).await,
                            Err(_) => Ok(()),
                        },
                    };
                });
            }
        });
        Self { seen, port, tls: is_tls, runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        if self.tls { format!("https://localhost:{}", self.port) } else { format!("http://127.0.0.1:{}", self.port) }
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.seen.arrivals.lock().expect("no panic").clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.arrivals.lock().expect("no panic").len()
    }

    /// How often each item arrived.
    pub(crate) fn by_item(&self) -> BTreeMap<String, usize> {
        let mut items = BTreeMap::new();
        for arrival in self.arrivals() {
            *items.entry(arrival.item).or_default() += 1;
        }
        items
    }

    /// Waits until so many requests have arrived.
    pub(crate) fn wait_for(&self, count: usize) {
        self.wait_until(|seen| seen.len() >= count);
    }

    /// Gives so many requests that should not come the time to.
    pub(crate) fn may_come(&self, count: usize, time: Duration) {
        let arrivals = self.seen.arrivals.lock().expect("no panic");
        drop(self.seen.changed.wait_timeout_while(arrivals, time, |seen| seen.len() < count));
    }

    /// Waits until what has arrived is that.
    pub(crate) fn wait_until(&self, is: impl Fn(&[Arrival]) -> bool) {
        let arrivals = self.seen.arrivals.lock().expect("no panic");
        let limit = Duration::from_secs(20);
        let (arrivals, waited) =
            self.seen.changed.wait_timeout_while(arrivals, limit, |seen| !is(seen)).expect("no panic");
        assert!(!waited.timed_out(), "only {} requests arrived", arrivals.len());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn respond(
    request: Request<Incoming>,
    seen: Arc<Seen>,
    answer: Answer,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let read: Value = serde_json::from_slice(&body).unwrap_or_default();
    let item = read["item"].as_str().unwrap_or_default().to_owned();
    let arrival = {
        let mut arrivals = seen.arrivals.lock().expect("no panic");
        let before = arrivals.iter().filter(|arrival| arrival.item == item).count();
        let path = head.uri.to_string();
        let arrival = Arrival { item, before, method: head.method, path, headers: head.headers, body };
        arrivals.push(arrival.clone());
        seen.changed.notify_all();
        arrival
    };
    let reply = answer(&arrival);
    match reply.after {
        Some(Duration::ZERO) => {}
        Some(latency) => tokio::time::sleep(latency).await,
        None => std::future::pending().await,
    }
    let mut response = Response::builder().status(reply.status).header("content-type", reply.content_type);
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    Ok(response.body(Full::new(reply.body)).expect("a response"))
}

/// The folder of a job, with its input.
pub(crate) struct Job {
    folder: TempDir,
    _bound: TestBound,
}

impl Job {
    /// `items` requests, called item-0, item-1, ...
    pub(crate) fn new(items: usize) -> Self {
        let lines: Vec<String> = (0..items).map(|n| line(&format!("item-{n}"))).collect();
        Self::with_input(&(lines.join("\n") + "\n"))
    }

    pub(crate) fn with_input(text: &str) -> Self {
        let job = Self { folder: tempfile::tempdir().expect("a temporary folder"), _bound: TestBound::new() };
        std::fs::write(job.path("in.jsonl"), text).expect("writable");
        job
    }

    /// In memory, where the system has such a folder: its files are as fast on a machine whose disk is busy.
    pub(crate) fn in_memory() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self { folder: folder.expect("a temporary folder"), _bound: TestBound::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `paceline` in the job's folder, with nothing of this process's environment that configures it.
    pub(crate) fn paceline(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.current_dir(self.folder.path()).env_clear().env("HOME", self.folder.path());
        command
    }

    /// `paceline run` on the job, against `server` as a generic API with short delays between tries.
    pub(crate) fn run(&self, server: &Server) -> Command {
        let mut command = self.paceline();
        command.args(["run", "in.jsonl", "-o", "out.jsonl", "--summary", "summary.json", "--seed", "1"]);
        command.args(["--base-url", &server.url()]);
        for upstream in ["GENERIC", "OPENAI"] {
            command.env(format!("PACELINE_UPSTREAM__{upstream}__RETRY__BASE"), "1ms");
            command.env(format!("PACELINE_UPSTREAM__{upstream}__RETRY__CAP"), "5ms");
        }
        command
    }

    /// A file of the job.
    pub(crate) fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// The lines of a file of the job; none if there is no such file.
    pub(crate) fn lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect()
    }

    pub(crate) fn summary(&self) -> Value {
        let text = std::fs::read_to_string(self.path("summary.json")).expect("a summary");
        serde_json::from_str(&text).expect("JSON")
    }

    /// The ids in results and errors, sorted. Panics when one appears twice.
    pub(crate) fn ended_ids(&self) -> Vec<String> {
        let lines = self.lines("out.jsonl").into_iter().chain(self.lines("out.errors.jsonl"));
        let mut ids: Vec<String> = lines.map(|line| line["custom_id"].to_string()).collect();
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), all, "an id appears twice");
        ids
    }

    /// What the summary says must be what the files hold.
    pub(crate) fn assert_adds_up(&self, items: usize) {
        let summary = self.summary();
        let number = |key: &str| summary[key].as_u64().expect(key) as usize;
        assert_eq!(number("input"), items);
        assert_eq!(number("succeeded") + number("fallback"), self.lines("out.jsonl").len());
        assert_eq!(number("failed") + number("skipped") + number("cancelled"), self.lines("out.errors.jsonl").len());
        assert_eq!(self.ended_ids().len(), items - number("deferred"));
    }
}

/// A request whose custom_id and body say `item`.
pub(crate) fn line(item: &str) -> String {
    let body = json!({"model": "m", "item": item});
    json!({"custom_id": item, "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
}

/// The end of a process: its exit code, and what it wrote to standard error.
pub(crate) fn finish(command: &mut Command) -> (i32, String) {
    let Output { status, stderr, .. } = command.ended_with_output();
    (status.code().expect("an exit code"), String::from_utf8_lossy(&stderr).into_owned())
}

/// The binary at work, silent.
pub(crate) fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs")
}
