//! `paceline collect` on Postgres: what a job has, in the order of its input, each line once.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use paceline_store::blocks::{BlockStore, Held, HostId, Joined, NewBlock, Offer, Settings};
use serde_json::Value;

use crate::bounded::{BoundedOutput, TestBound};
use crate::postgres_server::PostgresServer;

/// A job of so many lines in blocks of ten, and a worker on it.
struct OnJob {
    store: BlockStore,
    id: i64,
    worker: HostId,
    /// The claims, in the order of the input.
    held: Vec<Held>,
}

impl OnJob {
    async fn new(postgres: &PostgresServer, name: &str, lines: u64) -> Self {
        let store = BlockStore::open(&postgres.url()).await.expect("it is there");
        let Joined::Job(job) = store.join(name, &Settings::new()).await.expect("made") else { panic!("no other") };
        for first in (0..lines).step_by(10) {
            let block = NewBlock { lines: 10.min(lines - first), body: b"{}".to_vec() };
            store.append(job.id, first, vec![block]).await.expect("kept");
        }
        assert!(store.complete(job.id, lines).await.expect("kept"));
        let worker = store.register(job.id, "host-a", Duration::from_secs(60)).await.expect("kept").expect("a job");
        let claim = store.claim(worker, 1_000).await.expect("kept").expect("its lease goes on");
        let held = claim.blocks.iter().map(|block| block.held).collect();
        Self { store, id: job.id, worker, held }
    }

    /// The lines succeed; those that end in 7 fail.
    async fn end(&self, lines: impl IntoIterator<Item = u64>) {
        let offer = |line: u64| {
            let body = format!("{{\"custom_id\":\"line-{line}\"}}").into_bytes();
            Offer { held: self.held[(line / 10) as usize], line, ok: line % 10 != 7, body }
        };
        self.store.offer(self.id, lines.into_iter().map(offer).collect()).await.expect("kept");
    }
}

fn ended(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.ended_with_output();
    let [out, log] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (output.status.code(), out, log)
}

fn lines_of(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).expect("it was written");
    let number = |line: &str| line.trim_start_matches("{\"custom_id\":\"line-").trim_end_matches("\"}").parse();
    text.lines().map(|line| number(line).expect("a number")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn results_are_collected_in_the_order_of_the_input_each_once() {
    let _bound = TestBound::new();
    let postgres = PostgresServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let out = path("all.jsonl").display().to_string();
    assert_eq!(ended(&mut postgres.command(&["collect"], &[])).1, "no jobs\n");

    let job = OnJob::new(&postgres, "requests.jsonl", 95).await;
    job.end((0..40).rev()).await;
    // While the job is at work: what is there, in order, and how many are not.
    let (code, summary, log) = ended(&mut postgres.command(&["collect"], &["-o", &out, "--json"]));
    assert_eq!(code, Some(3), "{log}");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    assert_eq!((&summary["status"], &summary["missing"]), (&"DEFERRED".into(), &55.into()));
    assert_eq!(lines_of(Path::new(&out)), (0..40).filter(|line| line % 10 != 7).collect::<Vec<_>>());
    assert_eq!(lines_of(&path("all.errors.jsonl")), [7, 17, 27, 37]);
    let (_, table, _) = ended(&mut postgres.command(&["collect"], &[]));
    assert!(table.contains("requests.jsonl") && table.contains("host-a: at work since"), "{table}");
    assert!(table.lines().nth(1).is_some_and(|row| row.ends_with("95         36          4         55")), "{table}");

    // Of the lines that a lost host may have sent the whole job tells.
    assert_eq!(summary["maybe_twice"], 0, "{summary}");
    job.store.again(job.id, &[3, 5]).await.expect("kept");
    for more in [&["-o", &out, "--overwrite"][..], &[]] {
        let (_, words, log) = ended(&mut postgres.command(&["collect"], more));
        assert!((words + &log).contains("2 lines of the job may have been called twice"), "{log}");
    }

    // What was collected is replaced on demand alone.
    job.end(30..95).await;
    let (code, _, log) = ended(&mut postgres.command(&["collect"], &["-o", &out]));
    assert!(code == Some(2) && log.contains("--overwrite"), "{log}");
    let (code, _, log) = ended(&mut postgres.command(&["collect"], &["-o", &out, "--overwrite", "--forget"]));
    assert!(code == Some(2) && log.contains("host-a"), "nothing is removed under a worker: {log}");
    assert_eq!(lines_of(Path::new(&out)).len(), 86);
    job.store.deregister(job.worker).await.expect("kept");
    let packed = path("packed.jsonl.gz").display().to_string();
    let (code, _, log) = ended(&mut postgres.command(&["collect"], &["-o", &packed, "--forget"]));
    assert_eq!(code, Some(1), "{log}");
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(fs::File::open(packed).expect("written"))
        .read_to_string(&mut text)
        .expect("gzip");
    assert_eq!(text, fs::read_to_string(&out).expect("it is there"));
    assert_eq!(lines_of(&path("packed.errors.jsonl")), (0..9).map(|ten| ten * 10 + 7).collect::<Vec<_>>());
    let left: Vec<_> =
        fs::read_dir(folder.path()).expect("a folder").map(|file| file.expect("a file").file_name()).collect();
    assert_eq!(left.len(), 4, "no file is left half made: {left:?}");
    assert_eq!(ended(&mut postgres.command(&["collect"], &[])).1, "no jobs\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_named_where_there_are_several() {
    let _bound = TestBound::new();
    let postgres = PostgresServer::start();
    let (one, other) = (OnJob::new(&postgres, "one", 3).await, OnJob::new(&postgres, "other", 3).await);
    one.end(0..3).await;
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("one.jsonl").display().to_string();
    for (more, word) in [
        (&["-o", &*out][..], "one, other"),
        (&["-o", &out, "--job", "on"], "has no job on; it has one, other"),
        (&["--forget"], "--job"),
        (&["--forget", "--job", "other"], "host-a"),
    ] {
        let (code, _, log) = ended(&mut postgres.command(&["collect"], more));
        assert!(code == Some(2) && log.contains(word), "{log}");
    }
    // Files of a run on this machine are not taken for collected ones.
    fs::write(folder.path().join("one.journal"), "").expect("writable");
    let (code, _, log) = ended(&mut postgres.command(&["collect"], &["-o", &out, "--job", "one", "--overwrite"]));
    assert!(code == Some(2) && log.contains("one.journal"), "{log}");
    fs::remove_file(folder.path().join("one.journal")).expect("it is there");
    assert_eq!(ended(&mut postgres.command(&["collect"], &["-o", &out, "--job", "one"])).0, Some(0));
    other.store.deregister(other.worker).await.expect("kept");
    assert_eq!(ended(&mut postgres.command(&["collect"], &["--forget", "--job", "other"])).0, Some(0));
    let (_, jobs, _) = ended(&mut postgres.command(&["collect"], &["--json"]));
    let jobs: Value = serde_json::from_str(&jobs).expect("one line");
    assert_eq!((&jobs["job"], &jobs["workers"][0]["name"]), (&"one".into(), &"host-a".into()));
}
