//! One job of the real binary: its input, its command line, and what must be true of the files it leaves.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use paceline::clock::Clock;
use serde_json::{Value, json};

use crate::bounded::BoundedOutput;

/// A job in a folder of its own.
pub(crate) struct Job {
    folder: tempfile::TempDir,
    items: usize,
    base_url: String,
    flags: Vec<String>,
    environment: Vec<(&'static str, OsString)>,
    joins: bool,
}

/// How a job ended.
pub(crate) struct Ended {
    pub(crate) output: Output,
    pub(crate) summary: Value,
    pub(crate) seconds: f64,
}

/// The key in each call; nginx and HAProxy limit by it, and leave calls without one alone.
pub(crate) const KEY: &str = "peer-key-0001";

/// Far above what any job here takes; a job that hangs must fail and not block the suite.
const PATIENCE_SECONDS: &str = "900";

impl Job {
    /// `items` chat requests for the API at `base_url`, with further command-line `flags`.
    pub(crate) fn new(items: usize, base_url: &str, flags: &[&str]) -> Self {
        Self::with_long_lines(items, 0, base_url, flags)
    }

    /// The same with lines of at least `length` bytes each.
    pub(crate) fn with_long_lines(items: usize, length: usize, base_url: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let input = File::create(folder.path().join("requests.jsonl")).expect("a new file");
        write_lines(BufWriter::new(input), items, length).expect("writing the input");
        let flags = flags.iter().map(ToString::to_string).collect();
        Self { folder, items, base_url: base_url.to_owned(), flags, environment: Vec::new(), joins: false }
    }

    /// The same job with further environment variables.
    pub(crate) fn with_environment(mut self, environment: &[(&'static str, OsString)]) -> Self {
        self.environment = environment.to_vec();
        self
    }

    /// The same without the input: a host that joins the job of that name.
    pub(crate) fn without_input(mut self) -> Self {
        self.joins = true;
        self
    }

    /// The same with further flags.
    pub(crate) fn with_flags(mut self, flags: &[&str]) -> Self {
        self.flags.extend(flags.iter().map(ToString::to_string));
        self
    }

    /// Starts the job, or goes on with it, and returns at once.
    pub(crate) fn spawn(&self) -> Child {
        let log = File::create(self.folder.path().join("log")).expect("a new file");
        self.command(env!("CARGO_BIN_EXE_paceline"), &[]).stderr(log).spawn().expect("the binary starts")
    }

    /// What the latest process of [`spawn`](Self::spawn) has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// How many items it has.
    pub(crate) const fn items(&self) -> usize {
        self.items
    }

    /// A counter of the summary that its latest process has left.
    pub(crate) fn summed(&self, key: &str) -> u64 {
        let summary = fs::read(self.folder.path().join("summary.json")).expect("it has ended");
        let summary: Value = serde_json::from_slice(&summary).expect("JSON");
        summary.get(key).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {key} in {summary}"))
    }

    /// Starts the job, or goes on with it, until it ends.
    pub(crate) fn run(&self) -> Ended {
        let clock = Clock::new();
        let began = clock.now();
        let wrapper = ["--signal=KILL", PATIENCE_SECONDS, env!("CARGO_BIN_EXE_paceline")];
        let output = self.command("timeout", &wrapper).ended_with_output();
        let seconds = clock.now().saturating_since(began).as_secs_f64();
        let summary = fs::read(self.folder.path().join("summary.json")).unwrap_or_default();
        Ended { output, summary: serde_json::from_slice(&summary).unwrap_or_default(), seconds }
    }

    /// The names of items whose line stands complete in the results file.
    pub(crate) fn recorded(&self) -> Vec<String> {
        let text = fs::read_to_string(self.results()).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        whole.lines().map(|line| text_at(&parse(line), "/custom_id").to_owned()).collect()
    }

    /// Every item succeeded, and each line carries the answer to its own question, as the counting server gives it.
    ///
    /// # Panics
    /// With what is missing, doubled or mixed up.
    pub(crate) fn assert_complete(&self, ended: &Ended) {
        for (id, line) in self.assert_all_succeeded(ended) {
            assert_eq!(text_at(&line, "/response/body/choices/0/message/content"), id, "the answer of another item");
        }
    }

    /// Every item succeeded and has exactly one line, and the summary says so. Returns the lines by item.
    ///
    /// # Panics
    /// With what is missing or doubled.
    pub(crate) fn assert_all_succeeded(&self, ended: &Ended) -> BTreeMap<String, Value> {
        let stderr = String::from_utf8_lossy(&ended.output.stderr);
        assert_eq!(ended.output.status.code(), Some(0), "exit code; stderr: {stderr}; summary: {}", ended.summary);
        assert!(!self.folder.path().join("results.errors.jsonl").exists(), "no item may fail here: {stderr}");
        let text = fs::read_to_string(self.results()).expect("a results file");
        let mut lines = BTreeMap::new();
        for line in text.lines().map(parse) {
            let id = text_at(&line, "/custom_id").to_owned();
            assert_eq!(line.pointer("/response/status_code"), Some(&json!(200)), "status of {id}");
            assert!(lines.insert(id, line.clone()).is_none(), "a second line for an item: {line}");
        }
        let missing: Vec<String> = (0..self.items).map(name).filter(|item| !lines.contains_key(item)).collect();
        assert!(missing.is_empty(), "no line for {missing:?}");
        assert_eq!(lines.len(), self.items, "lines of items that were never asked for");
        for (key, value) in [("input", self.items), ("succeeded", self.items), ("failed", 0), ("deferred", 0)] {
            assert_eq!(ended.count(key), value as u64, "summary {key}: {}", ended.summary);
        }
        assert_eq!(ended.summary.get("status"), Some(&json!("SUCCESS")));
        lines
    }

    /// Every item has exactly one line in the results, without holding them in memory.
    ///
    /// # Panics
    /// With how many have another number of lines.
    pub(crate) fn assert_one_line_each(&self) {
        let mut lines = vec![0_u8; self.items];
        for line in BufReader::new(File::open(self.results()).expect("a results file")).lines() {
            let line = parse(&line.expect("lines of text"));
            let item = text_at(&line, "/custom_id").trim_start_matches("item-").parse::<usize>().expect("a number");
            lines[item] = lines[item].saturating_add(1);
        }
        let wrong = lines.iter().filter(|lines| **lines != 1).count();
        assert_eq!(wrong, 0, "items with no line, or with more than one");
    }

    /// Leaves what a crash of the system may leave at the end of the results: zeros, or a part of a line; every third time
    /// nothing.
    pub(crate) fn tear(&self, index: usize) {
        let text = fs::read(self.results()).expect("a results file");
        let last = text.trim_ascii_end().rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let torn = match index % 3 {
            0 => vec![0; 512],
            1 => last[..last.len() * (index % 7) / 7].to_vec(),
            _ => return,
        };
        fs::write(self.results(), [text, torn].concat()).expect("writing the results");
    }

    /// Bytes of the results file; 0 without one.
    pub(crate) fn length_of_results(&self) -> u64 {
        fs::metadata(self.results()).map_or(0, |about| about.len())
    }

    /// Bytes of the file that is to replace the results; none if there is no such file.
    pub(crate) fn length_of_ordered_results(&self) -> Option<u64> {
        fs::metadata(self.folder.path().join("results.jsonl.new")).ok().map(|about| about.len())
    }

    /// The results stand in the order of the input.
    ///
    /// # Panics
    /// With the first line that does not.
    pub(crate) fn assert_ordered(&self) {
        for (item, recorded) in self.recorded().into_iter().enumerate() {
            assert_eq!(recorded, name(item), "line {} of the results", item + 1);
        }
    }

    fn results(&self) -> PathBuf {
        self.folder.path().join("results.jsonl")
    }

    /// A bare environment: no proxy, no configuration and no limit of the user who runs the tests may reach the job.
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let folder: &Path = self.folder.path();
        let mut command = Command::new(program);
        let input: &[&str] = if self.joins { &["--job", "requests.jsonl"] } else { &["requests.jsonl"] };
        let files = ["-o", "results.jsonl", "--summary", "summary.json"];
        command.args(arguments).arg("run").args(input).args(files);
        command.args(["--base-url", &self.base_url, "--api-key-env", "PEER_KEY"]).args(&self.flags).current_dir(folder);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("HOME", folder).env("PEER_KEY", KEY).envs(self.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }
}

impl Ended {
    /// A counter of the summary.
    ///
    /// # Panics
    /// When the summary has no such number.
    pub(crate) fn count(&self, key: &str) -> u64 {
        let number = self.summary.get(key).and_then(Value::as_u64);
        number.unwrap_or_else(|| {
            panic!("no {key} in summary {}; stderr: {}", self.summary, String::from_utf8_lossy(&self.output.stderr))
        })
    }
}

/// Sends `burst` calls at once, one connection each, and counts the answers by status: what a limit does to a client
/// that knows nothing of it.
pub(crate) fn burst(url: &str, burst: usize) -> BTreeMap<u16, usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let calls: Vec<_> = (0..burst).map(|_| tokio::spawn(call(url.to_owned()))).collect();
        let mut answers = BTreeMap::new();
        for call in calls {
            *answers.entry(call.await.expect("a call does not panic")).or_default() += 1;
        }
        answers
    })
}

async fn call(url: String) -> u16 {
    use hyper::header::{AUTHORIZATION, HOST};
    let authority = url.strip_prefix("http://").expect("a plain URL").to_owned();
    let stream = tokio::net::TcpStream::connect(&authority).await.expect("the peer listens");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.expect("HTTP/1.1");
    tokio::spawn(connection);
    let request = hyper::Request::post("/v1/chat/completions").header(HOST, authority).header(AUTHORIZATION, KEY);
    let request = request.body("{}".to_owned()).expect("a well-formed request");
    sender.send_request(request).await.expect("an answer").status().as_u16()
}

fn write_lines(mut input: BufWriter<File>, items: usize, length: usize) -> io::Result<()> {
    for item in 0..items {
        let line = |padding: &str| {
            let body = json!({"model": "peer", "user": name(item), "max_tokens": 8,
                              "messages": [{"role": "user", "content": format!("Say the number {item}{padding}.")}]});
            json!({"custom_id": name(item), "method": "POST", "url": "/v1/chat/completions", "body": body}).to_string()
        };
        let short = line("");
        let padded = if short.len() < length { line(&"x".repeat(length - short.len())) } else { short };
        writeln!(input, "{padded}")?;
    }
    input.flush()
}

pub(crate) fn name(item: usize) -> String {
    format!("item-{item:05}")
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("a result line is not JSON ({error}): {line}"))
}

fn text_at<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}
