//! What the targets begin with.

use std::fs;
use std::path::{Path, PathBuf};

const RECORDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/paceline-providers/src/fixtures");
const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");

/// Everything that targets begin with.
pub(crate) struct Corpus {
    /// Answers of the provider tests.
    pub(crate) answers: Vec<Recording>,
    /// Values of headers that hold a wait or a reset.
    pub(crate) times: Vec<Vec<u8>>,
    /// Values of the IETF's fields.
    pub(crate) rate_limits: Vec<Vec<u8>>,
    /// Messages of errors.
    pub(crate) messages: Vec<Vec<u8>>,
    /// Bodies of requests.
    pub(crate) requests: Vec<Vec<u8>>,
    /// Configuration files.
    pub(crate) configurations: Vec<Vec<u8>>,
}

/// Status, headers and body of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Corpus {
    /// Reads it from the repository.
    pub(crate) fn read() -> Self {
        let answers = files(RECORDINGS).iter().flat_map(|text| recordings(text)).collect();
        let lines = |name: &str| {
            let text = fs::read(Path::new(SEEDS).join(name)).expect("the corpus is in the repository");
            text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
        };
        Self {
            answers,
            times: lines("times.txt"),
            rate_limits: lines("rate_limits.txt"),
            messages: lines("messages.txt"),
            requests: lines("requests.jsonl"),
            configurations: files(&format!("{SEEDS}/configurations")).into_iter().map(String::into_bytes).collect(),
        }
    }
}

/// The texts of a folder, in alphabetical order.
fn files(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the corpus is in the repository");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).expect("text")).collect()
}

fn recordings(text: &str) -> Vec<Recording> {
    text.split("example: ").skip(1).map(recording).collect()
}

fn recording(text: &str) -> Recording {
    let text = text.rsplit_once("\n=> ").map_or(text, |(answer, _)| answer);
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines().skip(1);
    let status = lines.next().and_then(|status| status.parse().ok()).expect("a status");
    let fields = lines.filter_map(|line| line.split_once(": "));
    let headers = fields.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).collect();
    Recording { status, headers, body: body.as_bytes().to_vec() }
}
