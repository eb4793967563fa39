//! A job in a folder of its own, and what every test wants to know about its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use paceline_core::{Class, Timestamp};
use paceline_store::{
    CallTotals, ClaimedItems, CustomId, End, FinishStatus, Finished, InputFingerprint, Journal, JournalError,
    LastAnswer, LoadedLine, ModelUsage, Opened, Options, Paths, Recovery, Rescheduled, ResultBody, Tally, encode_line,
};
use tempfile::TempDir;

/// The wall clock of all tests.
pub(crate) const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

pub(crate) fn later(seconds: u64) -> Timestamp {
    NOW + Duration::from_secs(seconds)
}

pub(crate) struct Job {
    _folder: Option<TempDir>,
    pub(crate) folder: PathBuf,
    pub(crate) paths: Paths,
}

impl Job {
    pub(crate) fn new() -> Self {
        // In memory where the system has such a folder: the tests sync thousands of times, and none can cut the power.
        let temporary = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let folder = temporary.path().to_owned();
        fs::write(folder.join("requests.jsonl"), "the input\n".repeat(100)).unwrap();
        let paths = Paths::beside(&folder.join("results.jsonl"));
        Self { _folder: Some(temporary), folder, paths }
    }

    /// The files as they are at this moment, as a dead process would leave them.
    pub(crate) fn copy(&self) -> Self {
        let mut copy = Self::new();
        for entry in fs::read_dir(&self.folder).unwrap() {
            let from = entry.unwrap().path();
            let shared = from.extension().is_some_and(|end| end == "journal-shm");
            if !shared && from != self.paths.lock {
                copy_with_times(&from, &copy.folder.join(from.file_name().unwrap()));
            }
        }
        copy.paths = Paths::beside(&copy.folder.join("results.jsonl"));
        copy
    }

    pub(crate) fn options(&self) -> Options {
        Options::new(self.paths.clone(), InputFingerprint::of(&self.folder.join("requests.jsonl")).unwrap(), NOW)
    }

    pub(crate) fn open(&self) -> Result<Opened, JournalError> {
        Journal::open(self.options())
    }

    pub(crate) fn start(&self, items: u64) -> Journal {
        self.start_in(items, |_| "chat")
    }

    pub(crate) fn start_in(&self, items: u64, scope: impl Fn(u64) -> &'static str) -> Journal {
        let Opened::New(mut loader) = self.open().unwrap() else { panic!("there was a job already") };
        for ordinal in 0..items {
            let custom_id = id(ordinal);
            let body = format!("body {ordinal}");
            let item = LoadedLine {
                custom_id: &custom_id,
                line: ordinal + 1,
                src_off: ordinal * 10,
                src_len: 9,
                body: body.as_bytes(),
                scope: scope(ordinal),
            };
            assert_eq!(loader.add(&item).unwrap(), ordinal);
        }
        loader.finish().unwrap()
    }

    pub(crate) fn resume(&self) -> (Journal, Recovery) {
        match self.open().unwrap() {
            Opened::Resumed { journal, recovery } => (journal, recovery),
            Opened::New(_) | Opened::Changed { .. } => panic!("the job was forgotten"),
        }
    }

    /// Gives every item that is not done a result, as a run without failures would.
    pub(crate) fn complete(&self, journal: &Journal) {
        loop {
            let claim = journal.claim_now(later(1_000_000), 7).unwrap();
            if claim.items.is_empty() {
                return;
            }
            for item in claim.items {
                journal.finish(success(item.ordinal, 9), |kept| assert_eq!(kept.unwrap(), FinishStatus::Recorded));
            }
            journal.flush().unwrap();
        }
    }

    /// The ids in results and errors, sorted. Every line is read as JSON.
    pub(crate) fn ids(&self) -> Vec<String> {
        let mut ids = Vec::new();
        for path in [&self.paths.output, &self.paths.errors] {
            for line in read(path).lines() {
                let line: serde_json::Value = serde_json::from_str(line).expect("whole lines only");
                ids.push(line["custom_id"].as_str().unwrap().to_owned());
            }
        }
        ids.sort_unstable();
        ids
    }

    pub(crate) fn assert_each_once(&self, items: u64) {
        let mut expected: Vec<_> = (0..items).map(|ordinal| id(ordinal).to_string()).collect();
        expected.sort_unstable();
        assert_eq!(self.ids(), expected);
    }
}

/// Keeps the time of change, by which an input is recognized.
fn copy_with_times(from: &Path, to: &Path) {
    fs::copy(from, to).unwrap();
    let changed = fs::metadata(from).unwrap().modified().unwrap();
    fs::File::options().write(true).open(to).unwrap().set_modified(changed).unwrap();
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

pub(crate) fn id(ordinal: u64) -> CustomId {
    CustomId::from(format!("item-{ordinal}").as_str())
}

pub(crate) fn success(ordinal: u64, call: u32) -> Finished {
    let body = format!("{{\"answer\": \"{ordinal} by call {call}\", \"usage\": {{\"prompt_tokens\": 5}}}}");
    let answer = ResultBody::Response { status: 200, request_id: "r", headers: None, body: body.as_bytes() };
    let mut finished = Finished::new(ordinal, End::Succeeded, encode_line(ordinal, call, &id(ordinal), &answer));
    finished.tally = tally(call, Class::Success);
    finished.tally.tokens_in = 5;
    finished.adds = CallTotals { calls: 1, ..CallTotals::default() };
    finished.usage = vec![usage("m", 5, 0)];
    finished
}

pub(crate) fn failure(ordinal: u64) -> Finished {
    let body = br#"{"error":{"code":"bad_model","type":"invalid_request_error","message":"no such model"}}"#;
    let answer = ResultBody::Response { status: 404, request_id: "r", headers: None, body };
    let mut finished = Finished::new(ordinal, End::Failed, encode_line(ordinal, 1, &id(ordinal), &answer));
    finished.tally = tally(1, Class::Invalid);
    finished
}

pub(crate) fn tally(attempts: u32, class: Class) -> Tally {
    Tally { attempts, first: Some(NOW), last: Some(LastAnswer::new(class)), ..Tally::default() }
}

/// One call of a model.
pub(crate) fn usage(model: &str, tokens_in: u64, tokens_out: u64) -> ModelUsage {
    ModelUsage { model: model.into(), calls: 1, tokens_in, tokens_out, ..ModelUsage::default() }
}

pub(crate) fn retry(ordinal: u64, seconds: u64) -> Rescheduled {
    let delay = Duration::from_secs(seconds);
    Rescheduled {
        ordinal,
        not_before: NOW + delay,
        delay,
        tally: tally(1, Class::Transient),
        adds: CallTotals { calls: 1, ..CallTotals::default() },
        usage: vec![usage("m", 5, 0)],
    }
}

pub(crate) fn finish(journal: &Journal, finished: Finished) -> FinishStatus {
    wait(|reply| journal.finish(finished, reply)).unwrap()
}

pub(crate) fn reschedule(journal: &Journal, next: Rescheduled) -> FinishStatus {
    wait(|reply| journal.reschedule(next, reply)).unwrap()
}

pub(crate) fn wait<T: Send + 'static>(
    send: impl FnOnce(Box<dyn FnOnce(Result<T, JournalError>) + Send>),
) -> Result<T, JournalError> {
    let (sender, receiver) = mpsc::channel();
    send(Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv().unwrap()
}

pub(crate) fn ordinals(claim: &ClaimedItems) -> Vec<u64> {
    claim.items.iter().map(|item| item.ordinal).collect()
}
