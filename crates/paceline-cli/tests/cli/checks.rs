//! Checked before the first call: each thing that can be wrong has its own words, exit code 2, no call, and leaves every
//! file as it was.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::process::Command;
use std::time::{Duration, SystemTime};

use flate2::write::GzEncoder;
use flate2::{Compression, Crc};
use serde_json::{Value, json};

use crate::bounded::Bounded as _;
use crate::support::{Job, Reply, Server, finish, line};

/// Something wrong, and what is said about it.
struct Case {
    what: &'static str,
    /// Makes it so, in a job with three good lines.
    given: fn(&Job),
    input: &'static str,
    flags: &'static [&'static str],
    /// Standard error, less `error: `.
    message: &'static str,
}

const fn case(what: &'static str, given: fn(&Job), message: &'static str) -> Case {
    Case { what, given, input: "in.jsonl", flags: &[], message }
}

const fn flags(what: &'static str, flags: &'static [&'static str], message: &'static str) -> Case {
    Case { what, given: |_| {}, input: "in.jsonl", flags, message }
}

/// An input of another name.
const fn from(input: &'static str, what: &'static str, given: fn(&Job), message: &'static str) -> Case {
    Case { what, given, input, flags: &[], message }
}

/// The job is done, and `paceline` was told so.
fn done(job: &Job) {
    let (code, log) = finish(job.paceline().args(["run", "in.jsonl", "-o", "out.jsonl", "--upstream", "mock"]));
    assert_eq!(code, 0, "{log}");
}

/// The compressed form of three good lines.
fn compressed(job: &Job) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&fs::read(job.path("in.jsonl")).expect("an input")).expect("memory");
    encoder.finish().expect("memory")
}

pub(crate) fn touch(job: &Job, name: &str, seconds: u64) {
    let file = File::options().write(true).open(job.path(name)).expect("it is there");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("files have times");
}

pub(crate) fn input(job: &Job, bytes: &[u8]) {
    fs::write(job.path("in.jsonl"), bytes).expect("writable");
}

/// Two lines of which the second is `bad`.
pub(crate) fn second(job: &Job, bad: &str) {
    input(job, format!("{}\n{bad}\n", line("good")).as_bytes());
}

const INPUT: &[Case] = &[
    case(
        "a malformed line",
        |job| second(job, r#"{"custom_id":"a","url":"/x","body":{"a":}}"#),
        "1 line of in.jsonl cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
         line 2: invalid_json_line: expected value at column 41",
    ),
    case(
        "no object",
        |job| second(job, "[]"),
        "1 line of in.jsonl cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
         line 2: invalid_json_line: an array: expected one request object a line (jq -c '.[]' makes them of an array)",
    ),
    case(
        "not UTF-8",
        |job| input(job, b"{\"custom_id\":\"caf\xe9\",\"url\":\"/x\",\"body\":{}}"),
        "1 line of in.jsonl cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
         line 1: invalid_json_line: not UTF-8 at column 18; save the file as UTF-8 (iconv -f latin1 -t utf-8)",
    ),
    case(
        "UTF-16",
        |job| input(job, b"\xff\xfe{\0}\0"),
        "cannot read in.jsonl: it is a text in UTF-16; save it as CSV UTF-8, comma delimited (lines as UTF-8), and name that file",
    ),
    Case {
        what: "a body that is no object, for an API that takes nothing else",
        given: |job| second(job, r#"{"custom_id":"a","url":"/x","body":[1]}"#),
        input: "in.jsonl",
        flags: &["--upstream", "openai"],
        message: "1 line of in.jsonl cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
                line 2: invalid_body: body: missing or not an object: expected the request body, as the endpoint takes it",
    },
    case(
        "a key that is twice",
        |job| second(job, r#"{"custom_id":"a","url":"/x","body":{},"custom_id":"b"}"#),
        "1 line of in.jsonl cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
         line 2: invalid_json_line: duplicate key `custom_id`",
    ),
    case(
        "no custom_id",
        |job| second(job, r#"{"url":"/x","body":{}}"#),
        "1 line of in.jsonl cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
         line 2: missing_custom_id: custom_id: missing or empty: every line needs its own custom_id",
    ),
    case(
        "the address of another host",
        |job| second(job, r#"{"custom_id":"a","url":"https://elsewhere.example/v1","body":{}}"#),
        "1 line of in.jsonl cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
         line 2: invalid_url: url: this url is of another host than the upstream's address {server}; add --scope host to call several hosts \
         (the others get no key)",
    ),
    case(
        "ids that repeat, also as a number",
        |job| {
            let ids = ["\"7\"", "\"b\"", "7", "\"b\""];
            let lines = ids.map(|id| format!(r#"{{"custom_id":{id},"url":"/x","body":{{}}}}"#));
            input(job, lines.join("\n").as_bytes());
        },
        "2 lines of in.jsonl cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
         line 3: duplicate_custom_id: custom_id: the same as in line 1: each line needs its own\n  \
         line 4: duplicate_custom_id: custom_id: the same as in line 2: each line needs its own",
    ),
    case(
        "a repeated id after a bad line",
        |job| input(job, [&line("a"), "{", &line("a")].join("\n").as_bytes()),
        "2 lines of in.jsonl cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
         line 2: invalid_json_line: the line ends inside an object; each object stands on one line, which jq -c . FILE makes \
         of one that does not\n  \
         line 3: duplicate_custom_id: custom_id: the same as in line 1: each line needs its own",
    ),
    case(
        "a line of 100 MB",
        |job| {
            let mut file = File::create(job.path("in.jsonl")).expect("writable");
            file.write_all(b"{\"custom_id\":\"").expect("writable");
            // A hole in the file: it takes no room on disk.
            file.set_len(100_000_000).expect("writable");
        },
        "1 line of in.jsonl cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
         line 1: line_too_long: 100,000,000 bytes, expected at most 64 MiB",
    ),
    case(
        "an empty file",
        |job| input(job, b""),
        "empty_file: in.jsonl holds no requests; expected one JSON object a line",
    ),
    case(
        "blank lines only",
        |job| input(job, b"\xef\xbb\xbf\n \r\n\n"),
        "empty_file: in.jsonl holds no requests; expected one JSON object a line",
    ),
    from(
        "-",
        "nothing on standard input",
        |_| {},
        "empty_file: standard input holds no requests; expected one JSON object a line",
    ),
    from(
        "in.jsonl.gz",
        "gzip that is cut",
        |job| fs::write(job.path("in.jsonl.gz"), &compressed(job)[..60]).expect("writable"),
        "cannot unpack in.jsonl.gz: it is not a gzip file, is cut off or damaged, or has other data behind it (incomplete deflate \
         stream); compress it again",
    ),
    from(
        "in.jsonl.gz",
        "gzip with something behind it",
        |job| {
            fs::write(job.path("in.jsonl.gz"), [&*compressed(job), b"and then some more"].concat()).expect("writable")
        },
        "cannot unpack in.jsonl.gz: it is not a gzip file, is cut off or damaged, or has other data behind it (invalid gzip \
         header); compress it again",
    ),
    from(
        "in.jsonl.gz",
        "a damaged gzip",
        |job| {
            let mut bytes = compressed(job);
            let crc = bytes.len() - 8;
            bytes[crc] ^= 1;
            fs::write(job.path("in.jsonl.gz"), bytes).expect("writable");
        },
        "cannot unpack in.jsonl.gz: it is not a gzip file, is cut off or damaged, or has other data behind it (corrupt gzip \
         stream does not have a matching checksum); compress it again",
    ),
    from(
        "in.jsonl.gz",
        "a bad line in a gzip",
        |job| {
            input(job, b"{");
            fs::write(job.path("in.jsonl.gz"), compressed(job)).expect("writable");
        },
        "1 line of in.jsonl.gz cannot be sent, so no request was sent; correct them, or send the others with --skip-bad-lines:\n  \
         line 1: invalid_json_line: the line ends inside an object; each object stands on one line, which jq -c . FILE makes \
         of one that does not",
    ),
    case(
        "no such file",
        |job| fs::remove_file(job.path("in.jsonl")).expect("it was there"),
        "cannot read in.jsonl: No such file or directory (os error 2)",
    ),
    case(
        "a folder",
        |job| {
            fs::remove_file(job.path("in.jsonl")).expect("it was there");
            fs::create_dir(job.path("in.jsonl")).expect("writable");
        },
        "cannot read in.jsonl: it is a folder; name a file of requests, one JSON object a line",
    ),
];

const PLACES: &[Case] = &[
    case(
        "results without a journal",
        |job| fs::write(job.path("out.jsonl"), "{}\n").expect("writable"),
        "out.jsonl exists, but its journal out.journal is missing or empty, so that nothing tells which items are done; move the \
         results away or use another output; a job with another output and --done RESULTS takes its answers \
         over; --overwrite deletes it and starts again; without the journal, what the job has spent of a budget is forgotten",
    ),
    case(
        "a report without a journal",
        |job| fs::write(job.path("out.report.jsonl"), "{}\n").expect("writable"),
        "out.report.jsonl exists, but its journal out.journal is missing or empty, so that nothing tells which items are done; \
         move the results away or use another output; a job with another output and --done RESULTS takes its answers over; \
         --overwrite deletes it and starts again; without the journal, \
         what the job has spent of a budget is forgotten",
    ),
    Case {
        what: "something else where the journal belongs, even with --overwrite",
        given: |job| fs::write(job.path("diary"), "a diary".repeat(100)).expect("writable"),
        input: "in.jsonl",
        flags: &["--overwrite", "--journal", "diary"],
        message: "diary is not a journal of paceline; move it away or name another journal",
    },
    case(
        "a folder where the configuration belongs",
        |job| fs::create_dir(job.path("paceline.toml")).expect("writable"),
        "paceline.toml: the configuration file cannot be read: Is a directory (os error 21)",
    ),
    case(
        "something else where the journal belongs",
        |job| fs::write(job.path("out.journal"), "a diary".repeat(100)).expect("writable"),
        "out.journal is not a journal of paceline; move it away or name another journal",
    ),
    flags(
        "an output in a folder that is missing",
        &["-o", "missing/deep/out.jsonl"],
        "cannot write missing/deep/out.jsonl: its folder missing/deep cannot be found: No such file or directory (os \
         error 2); create the folder, or choose another place",
    ),
    flags(
        "an output below a file",
        &["-o", "in.jsonl/out.jsonl"],
        "cannot write in.jsonl/out.jsonl: in.jsonl is not a folder; create the folder, or choose another place",
    ),
    flags(
        "a folder that no user can write in, not even root",
        &["-o", "/sys/out.jsonl"],
        "cannot write in the folder /sys: Permission denied (os error 13)",
    ),
    case(
        "a folder where the errors belong",
        |job| fs::create_dir(job.path("out.errors.jsonl")).expect("writable"),
        "out.errors.jsonl, where the errors of this job belong, is not a file: move it away, or name another -o",
    ),
    case(
        "a pipe where the refused answers belong",
        |job| assert!(Command::new("mkfifo").arg(job.path("out.refused.jsonl")).ended().success()),
        "out.refused.jsonl, where the refused answers of this job belong, is not a file: move it away, or name another -o",
    ),
    flags("a folder as output", &["-o", "."], "-o . is not a file: name one; the journal is written beside it"),
    flags(
        "a device as the journal",
        &["--journal", "/dev/zero"],
        "--journal /dev/zero is not a file: name one, or leave the flag out to keep the journal beside -o",
    ),
    flags(
        "a key that is missing",
        &["--api-key-env", "MISSING"],
        "no key for generic: MISSING is not set or empty; set it, or name another with --api-key-env or \
         --api-key-file (--upstream mock needs none)",
    ),
];

const RESUMED: &[Case] = &[
    case(
        "a pipe where the errors belong",
        |job| {
            done(job);
            assert!(Command::new("mkfifo").arg(job.path("out.errors.jsonl")).ended().success());
        },
        "out.errors.jsonl, where the errors of this job belong, is not a file: move it away, or name another -o",
    ),
    case(
        "a journal whose results are gone",
        |job| {
            done(job);
            fs::remove_file(job.path("out.jsonl")).expect("it was there");
        },
        "out.jsonl is missing, but its journal out.journal has recorded {covered} bytes of it; restore it, or start \
         again with --overwrite. Only the restored file keeps its answers: with --overwrite every item is sent \
         and paid for again, and what the job has spent of a budget is forgotten",
    ),
    case(
        "a journal of a newer version",
        |job| {
            done(job);
            let mut bytes = fs::read(job.path("out.journal")).expect("a journal");
            // PRAGMA user_version stands there in every SQLite file.
            bytes[60..64].copy_from_slice(&99_u32.to_be_bytes());
            fs::write(job.path("out.journal"), bytes).expect("writable");
        },
        "out.journal has format 99, this version knows up to 1; use a newer version of paceline",
    ),
    case(
        "a damaged journal",
        |job| {
            done(job);
            let mut bytes = fs::read(job.path("out.journal")).expect("a journal");
            // Behind the header.
            bytes[100..].fill(0xa5);
            fs::write(job.path("out.journal"), bytes).expect("writable");
        },
        "the journal is damaged (database disk image is malformed); restore a copy of it, or move it and its results \
         away to start again\n  to keep its answers, start a job with another output and --done RESULTS\n  to discard them, \
         use --overwrite\n  unless it is restored, what the job has spent of a budget is forgotten",
    ),
    case(
        "results that were changed",
        |job| {
            done(job);
            let results = fs::read_to_string(job.path("out.jsonl")).expect("there");
            fs::write(job.path("out.jsonl"), results.replacen("item-0", "item-9", 1)).expect("writable");
        },
        "out.jsonl is damaged at byte 0: its lines are whole, but not those that its journal recorded; restore it, or \
         move it and its journal away to start again\n  to keep its answers, start a job with another output and --done \
         out.jsonl\n  to discard them, use --overwrite\n  unless it is restored, what the job has spent of a budget is forgotten",
    ),
    case(
        "an input of another length",
        |job| {
            done(job);
            second(job, &line("b"));
        },
        "the length of in.jsonl changed since this job began (was 315 bytes, is 196 bytes); restore the input, or use \
         another output for the new one; to send failed items as their lines stand now, use --retry-failed; to continue \
         with the new input, use --accept-changed-input (items that ended must be unchanged)",
    ),
    from(
        "in.jsonl.gz",
        "another content in a gzip of the same time",
        |job| {
            fs::write(job.path("in.jsonl.gz"), compressed(job)).expect("writable");
            touch(job, "in.jsonl.gz", 1_000_000_001);
            let mut command = job.paceline();
            assert_eq!(finish(command.args(["run", "in.jsonl.gz", "-o", "out.jsonl", "--upstream", "mock"])).0, 0);
            second(job, &line("b"));
            fs::write(job.path("in.jsonl.gz"), compressed(job)).expect("writable");
            touch(job, "in.jsonl.gz", 1_000_000_001);
        },
        "in.jsonl.gz is not the input that this job began with, a copy of which is out.input; to send failed items as \
         their lines stand now, use --retry-failed; to continue with the new input, use --accept-changed-input (items that ended must be unchanged)",
    ),
];

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_job_that_does_not_fit_any_more_is_refused_in_its_own_words() {
    refuse(RESUMED);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_wrong_input_is_refused_in_its_own_words() {
    refuse(INPUT);
}

#[test]
fn wrong_places_are_refused_in_their_own_words() {
    refuse(PLACES);
}

fn refuse(cases: &[Case]) {
    let server = Server::new(|_| Reply::ok());
    let mut wrong = Vec::new();
    for Case { what, given, input, flags, message } in cases {
        let job = Job::new(3);
        given(&job);
        let before = files(&job);
        let mut command = job.paceline();
        command.args(["run", input, "--base-url", &server.url(), "--summary", "summary.json"]).args(*flags);
        if !flags.contains(&"-o") {
            command.args(["-o", "out.jsonl"]);
        }
        let (code, log) = finish(&mut command);
        if without_size(&log.replace(&server.url(), "{server}")) != format!("error: {message}\n") {
            wrong.push(format!("{what}\n is {log} not {message}"));
        }
        assert_eq!(code, 2, "{what}: {log}");
        assert_eq!(files(&job), before, "{what}: files changed");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(server.count(), 0);
}

/// The words without the one figure that differs from run to run: answers carry times and random ids.
fn without_size(log: &str) -> String {
    match log.split_once(" has recorded ").and_then(|(start, rest)| Some((start, rest.split_once(" bytes")?.1))) {
        Some((start, end)) => format!("{start} has recorded {{covered}} bytes{end}"),
        None => log.to_owned(),
    }
}

/// The files of a job with their length and the checksum of their beginning.
pub(crate) fn files(job: &Job) -> BTreeMap<String, (u64, u32)> {
    let entries = fs::read_dir(job.path("")).expect("a folder").map(|entry| entry.expect("an entry"));
    let about = entries.map(|entry| {
        let mut beginning = Vec::new();
        if entry.metadata().expect("a file").is_file() {
            let file = File::open(entry.path()).expect("readable");
            file.take(1 << 20).read_to_end(&mut beginning).expect("readable");
        }
        let mut crc = Crc::new();
        crc.update(&beginning);
        (entry.file_name().to_string_lossy().into_owned(), (entry.metadata().expect("a file").len(), crc.sum()))
    });
    about.collect()
}

/// The same command where no file may become larger than that: to a process it is a full disk.
fn with_room(kib: u64, command: &Command) -> Command {
    let mut limited = Command::new("sh");
    let script = format!("ulimit -f {}; exec \"$0\" \"$@\"", 2 * kib);
    limited.args(["-c", &script]).arg(command.get_program()).args(command.get_args());
    limited.current_dir(command.get_current_dir().expect("the job's folder")).env_clear();
    limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_full_disk_ends_a_run_and_loses_nothing() {
    const ITEMS: usize = 40;
    // Ten answers fill the file of results. However few of them each commit takes, the journal is smaller then.
    let server = Server::new(|_| Reply::new(200, &json!({"text": "x".repeat(100_000)})));
    let job = Job::new(ITEMS);
    let (code, log) = finish(&mut with_room(1_000, &job.run(&server)));
    assert_eq!(code, 3, "{log}");
    assert_eq!(
        log.lines().last(),
        Some(
            "error: the run stopped: cannot write out.jsonl: File too large (os error 27); the results so far are kept: \
             fix the cause, then run the same command again"
        )
    );
    let text = fs::read_to_string(job.path("out.jsonl")).expect("results");
    let whole = &text[..=text.rfind('\n').expect("something fits")];
    let paid: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect();

    let (code, log) = finish(&mut job.run(&server));
    assert_eq!(code, 0, "{log}");
    job.assert_adds_up(ITEMS);
    let calls = server.by_item();
    assert!(paid.iter().all(|line| calls[line["custom_id"].as_str().expect("an id")] == 1), "paid for twice");
    assert!((1..ITEMS).contains(&paid.len()), "{} lines fit", paid.len());
}

#[test]
fn a_disk_that_is_full_at_the_start_begins_nothing() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::new(3);
    let before = files(&job);
    let (code, log) = finish(&mut with_room(4, &job.run(&server)));
    assert_eq!(
        (code, &*log),
        (
            2,
            "error: cannot load the journal: disk I/O error; check that the disk has space and that the folder is \
             writable\n"
        )
    );
    assert_eq!((files(&job), server.count()), (before, 0));
}
