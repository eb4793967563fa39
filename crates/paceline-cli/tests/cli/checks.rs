//! Checked before the first call: each thing that can be wrong has its own words, exit code 2, no call, and leaves every
//! file as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::process::Command;
use std::time::{Duration, SystemTime};

use flate2::write::GzEncoder;
use flate2::{Compression, Crc};
use serde_json::{Value, json};

use crate::support::{Job, Reply, Server, finish, line};

/// Something wrong, and what is said about it.
struct Case {
    what: &'static str,
    /// Makes it so, in a job with three good lines.
    given: fn(&Job),
    input: &'static str,
    flags: &'static [&'static str],
    /// Standard error, less `error: `.
    words: &'static str,
}

const fn case(what: &'static str, given: fn(&Job), words: &'static str) -> Case {
    Case { what, given, input: "in.jsonl", flags: &[], words }
}

const fn flags(what: &'static str, flags: &'static [&'static str], words: &'static str) -> Case {
    Case { what, given: |_| {}, input: "in.jsonl", flags, words }
}

/// An input of another name.
const fn from(input: &'static str, what: &'static str, given: fn(&Job), words: &'static str) -> Case {
    Case { what, given, input, flags: &[], words }
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

fn touch(job: &Job, name: &str, seconds: u64) {
    let file = File::options().write(true).open(job.path(name)).expect("it is there");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("files have times");
}

fn input(job: &Job, bytes: &[u8]) {
    fs::write(job.path("in.jsonl"), bytes).expect("writable");
}

/// Two lines of which the second is `bad`.
fn second(job: &Job, bad: &str) {
    input(job, format!("{}\n{bad}\n", line("good")).as_bytes());
}

const INPUT: &[Case] = &[
    case(
        "a malformed line",
        |job| second(job, r#"{"custom_id":"a","url":"/x","body":{"a":}}"#),
        "1 line of in.jsonl cannot be sent, so nothing was:\n  \
         line 2: invalid_json_line: expected value at column 41",
    ),
    case(
        "no object",
        |job| second(job, "[]"),
        "1 line of in.jsonl cannot be sent, so nothing was:\n  \
         line 2: invalid_json_line: an array: expected one request object a line (jq -c '.[]' makes them of an array)",
    ),
    case(
        "not UTF-8",
        |job| input(job, b"{\"custom_id\":\"caf\xe9\",\"url\":\"/x\",\"body\":{}}"),
        "1 line of in.jsonl cannot be sent, so nothing was:\n  \
         line 1: invalid_json_line: not UTF-8 at column 18",
    ),
    case(
        "UTF-16",
        |job| input(job, b"\xff\xfe{\0}\0"),
        "1 line of in.jsonl cannot be sent, so nothing was:\n  \
         line 1: invalid_json_line: not UTF-8 at column 1",
    ),
    Case {
        what: "a body that is no object, for an API that takes nothing else",
        given: |job| second(job, r#"{"custom_id":"a","url":"/x","body":[1]}"#),
        input: "in.jsonl",
        flags: &["--upstream", "openai"],
        words: "1 line of in.jsonl cannot be sent, so nothing was:\n  \
                line 2: invalid_body: body: missing or no object: expected the request body as for the live endpoint",
    },
    case(
        "a key that is twice",
        |job| second(job, r#"{"custom_id":"a","url":"/x","body":{},"custom_id":"b"}"#),
        "1 line of in.jsonl cannot be sent, so nothing was:\n  \
         line 2: invalid_json_line: duplicate key `custom_id`",
    ),
    case(
        "no custom_id",
        |job| second(job, r#"{"url":"/x","body":{}}"#),
        "1 line of in.jsonl cannot be sent, so nothing was:\n  \
         line 2: missing_custom_id: custom_id: missing or empty: every line needs its own custom_id",
    ),
    case(
        "the address of another host",
        |job| second(job, r#"{"custom_id":"a","url":"https://elsewhere.example/v1","body":{}}"#),
        "1 line of in.jsonl cannot be sent, so nothing was:\n  \
         line 2: invalid_url: url: `https://elsewhere.example/v1` is not below the upstream's address {server}: \
         expected a path such as /v1/chat/completions; the address itself is set with --base-url or in paceline.toml; with --scope host lines may name any host, which gets no key",
    ),
    case(
        "ids that repeat, also as a number",
        |job| {
            let ids = ["\"7\"", "\"b\"", "7", "\"b\""];
            let lines = ids.map(|id| format!(r#"{{"custom_id":{id},"url":"/x","body":{{}}}}"#));
            input(job, lines.join("\n").as_bytes());
        },
        "2 lines of in.jsonl cannot be sent, so nothing was:\n  \
         line 3: duplicate_custom_id: custom_id: the same as in line 1: each line needs its own\n  \
         line 4: duplicate_custom_id: custom_id: the same as in line 2: each line needs its own",
    ),
    case(
        "a repeated id after a bad line",
        |job| input(job, [&line("a"), "{", &line("a")].join("\n").as_bytes()),
        "2 lines of in.jsonl cannot be sent, so nothing was:\n  \
         line 2: invalid_json_line: EOF while parsing an object at column 1\n  \
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
        "1 line of in.jsonl cannot be sent, so nothing was:\n  \
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
        "cannot unpack in.jsonl.gz: it is no gzip file, or cut, damaged or followed by something else (incomplete deflate \
         stream); compress it again",
    ),
    from(
        "in.jsonl.gz",
        "gzip with something behind it",
        |job| {
            fs::write(job.path("in.jsonl.gz"), [&*compressed(job), b"and then some more"].concat()).expect("writable")
        },
        "cannot unpack in.jsonl.gz: it is no gzip file, or cut, damaged or followed by something else (invalid gzip \
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
        "cannot unpack in.jsonl.gz: it is no gzip file, or cut, damaged or followed by something else (corrupt gzip \
         stream does not have a matching checksum); compress it again",
    ),
    from(
        "in.jsonl.gz",
        "a bad line in a gzip",
        |job| {
            input(job, b"{");
            fs::write(job.path("in.jsonl.gz"), compressed(job)).expect("writable");
        },
        "1 line of in.jsonl.gz cannot be sent, so nothing was:\n  \
         line 1: invalid_json_line: EOF while parsing an object at column 1",
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
        "out.jsonl exists, but there is no journal out.journal that says what is done; move the results away or name \
         another output; --overwrite removes what is there",
    ),
    case(
        "a report without a journal",
        |job| fs::write(job.path("out.report.jsonl"), "{}\n").expect("writable"),
        "out.report.jsonl exists, but there is no journal out.journal that says what is done; move the results away or \
         name another output; --overwrite removes what is there",
    ),
    Case {
        what: "something else where the journal belongs, even with --overwrite",
        given: |job| fs::write(job.path("diary"), "a diary".repeat(100)).expect("writable"),
        input: "in.jsonl",
        flags: &["--overwrite", "--journal", "diary"],
        words: "diary is not a journal of paceline; move it away or name another journal",
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
         error 2); make it or name another",
    ),
    flags(
        "an output below a file",
        &["-o", "in.jsonl/out.jsonl"],
        "cannot write in.jsonl/out.jsonl: in.jsonl is no folder; make it or name another",
    ),
    flags(
        "a folder that no user can write in, not even root",
        &["-o", "/sys/out.jsonl"],
        "cannot write in the folder /sys: Permission denied (os error 13)",
    ),
    flags("a folder as output", &["-o", "."], "-o . is no file: name one, the journal is kept beside it"),
    flags(
        "a device as the journal",
        &["--journal", "/dev/zero"],
        "--journal /dev/zero is no file: name one, or leave it out: it is kept beside -o",
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
        "a journal whose results are gone",
        |job| {
            done(job);
            fs::remove_file(job.path("out.jsonl")).expect("it was there");
        },
        "out.jsonl is gone, but its journal out.journal covers {covered} bytes of it; put it back, or delete the journal \
         to start anew; --overwrite removes what is left",
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
        "the journal is damaged (database disk image is malformed); put back a copy of it, or move it and its results away \
         to start anew; a job with another output takes over its answers with --done RESULTS; --overwrite removes what is \
         left",
    ),
    case(
        "results that were changed",
        |job| {
            done(job);
            let results = fs::read_to_string(job.path("out.jsonl")).expect("there");
            fs::write(job.path("out.jsonl"), results.replacen("item-0", "item-9", 1)).expect("writable");
        },
        "out.jsonl is damaged at byte 0: its lines are whole, but not those that its journal recorded; put it back as it \
         was, or move it and its journal away to start anew; a job with another output takes over its answers with --done \
         RESULTS; --overwrite removes what is left",
    ),
    case(
        "an input of another length",
        |job| {
            done(job);
            second(job, &line("b"));
        },
        "the length of in.jsonl changed since this job began (was 315 bytes, is 196 bytes); put the input back as it was, \
         or give the new input an output of its own; --accept-changed-input goes on with it where that can be done",
    ),
    case(
        "an input that was written again",
        |job| {
            touch(job, "in.jsonl", 1_000_000_000);
            done(job);
            touch(job, "in.jsonl", 1_000_000_001);
        },
        "the time of change of in.jsonl changed since this job began (was 2001-09-09T01:46:40.000Z, is \
         2001-09-09T01:46:41.000Z); put the input back as it was, or give the new input an output of its own; --accept-changed-input goes on with it where that can be done",
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
        "in.jsonl.gz is not what this job began with, which stands in out.input; --accept-changed-input goes on with it \
         where that can be done",
    ),
];

#[test]
fn a_job_that_does_not_fit_any_more_is_refused_in_its_own_words() {
    refuse(RESUMED);
}

#[test]
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
    for Case { what, given, input, flags, words } in cases {
        let job = Job::new(3);
        given(&job);
        let before = files(&job);
        let mut command = job.paceline();
        command.args(["run", input, "--base-url", &server.url(), "--summary", "summary.json"]).args(*flags);
        if !flags.contains(&"-o") {
            command.args(["-o", "out.jsonl"]);
        }
        let (code, log) = finish(&mut command);
        if without_size(&log.replace(&server.url(), "{server}")) != format!("error: {words}\n") {
            wrong.push(format!("{what}\n is {log} not {words}"));
        }
        assert_eq!(code, 2, "{what}: {log}");
        assert_eq!(files(&job), before, "{what}: files changed");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(server.count(), 0);
}

/// The words without the one figure that differs from run to run: answers carry times and random ids.
fn without_size(log: &str) -> String {
    match log.split_once(" covers ").and_then(|(start, rest)| Some((start, rest.split_once(" bytes")?.1))) {
        Some((start, end)) => format!("{start} covers {{covered}} bytes{end}"),
        None => log.to_owned(),
    }
}

/// The files of a job with their length and the checksum of their beginning.
fn files(job: &Job) -> BTreeMap<String, (u64, u32)> {
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

#[test]
fn overwriting_begins_anew_and_only_with_an_input_that_can_be_sent() {
    let server = Server::new(|arrival| if arrival.item == "c" { Reply::error(400, "no") } else { Reply::ok() });
    let job = Job::with_input(&[line("a"), line("b"), line("c")].join("\n"));
    assert_eq!(finish(&mut job.run(&server)).0, 1);
    let before = files(&job);

    second(&job, "{");
    let (code, log) = finish(job.run(&server).arg("--overwrite"));
    assert_eq!((code, server.count()), (2, 3), "{log}");
    let mut after = files(&job);
    after.insert("in.jsonl".to_owned(), before["in.jsonl"]);
    assert_eq!(after, before, "what was paid for stays");

    second(&job, &line("d"));
    for calls in [5, 7] {
        let (code, log) = finish(job.run(&server).arg("--overwrite"));
        assert_eq!((code, server.count()), (0, calls), "{log}");
        job.assert_adds_up(2);
    }
    assert!(!job.path("out.errors.jsonl").exists() && !job.path("out.journal.new").exists());
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (0, 7), "the new job goes on by itself: {log}");
}

#[test]
fn bad_lines_are_skipped_when_asked_and_count_as_failed() {
    for flag in ["--skip-bad-lines", "--no-check"] {
        let server = Server::new(|_| Reply::ok());
        let bad_url = r#"{"custom_id":"x","url":"nowhere","body":{}}"#;
        let job = Job::with_input(&[&line("a"), "{", &line("b"), &line("a"), bad_url, &line("x")].join("\n"));
        let run = || finish(job.run(&server).arg(flag));
        let (code, log) = run();
        assert_eq!((code, server.count()), (1, 2), "{log}");
        assert_eq!(log.contains("line 4: duplicate_custom_id"), flag == "--skip-bad-lines", "{log}");
        let errors = job.lines("out.errors.jsonl");
        let told: Vec<_> = errors.iter().map(|line| (&line["custom_id"], &line["error"]["code"])).collect();
        assert_eq!(
            told,
            [
                (&Value::Null, &json!("invalid_json_line")),
                (&Value::Null, &json!("duplicate_custom_id")),
                (&json!("x"), &json!("invalid_url")),
                (&Value::Null, &json!("duplicate_custom_id")),
            ]
        );
        assert!(errors.iter().all(|line| line["response"].is_null()));
        assert_eq!(
            errors[1]["error"],
            json!({"code": "duplicate_custom_id", "message": "the same custom_id as in line 1", "line": 4})
        );
        let rows = job.lines("out.report.jsonl");
        assert_eq!((&rows[0]["custom_id"], &rows[0]["class"]), (&Value::Null, &json!("invalid")));
        assert_eq!((rows.len(), &rows[2]["attempts"], &rows[2]["reason"]), (4, &json!(0), &json!("invalid")));
        let summary = job.summary();
        assert_eq!([&summary["input"], &summary["succeeded"], &summary["failed"]], [6, 2, 4]);

        let (code, log) = run();
        assert_eq!((code, server.count()), (1, 2), "{log}");
        assert_eq!(job.lines("out.errors.jsonl"), errors, "nothing twice");
        let (code, log) = finish(job.run(&server).args([flag, "--retry-failed"]));
        assert_eq!((code, server.count()), (1, 2), "what cannot be sent is no failed call: {log}");
        assert_eq!(job.lines("out.errors.jsonl"), errors);
    }
}

#[test]
fn without_a_check_calls_leave_while_the_input_is_read() {
    const LINES: usize = 6_200;
    let lines: Vec<_> = (0..LINES)
        .map(|n| match n % 100 {
            0 => line(&format!("item-{n}")),
            1 => line("item-0"),
            _ => "{".to_owned(),
        })
        .collect();
    let good = LINES / 100;
    let (server, job) = (Server::new(|_| Reply::ok()), Job::with_input(&lines.join("\n")));
    let (code, log) = finish(job.run(&server).args(["--no-check", "--max-items", "1"]));
    assert_eq!((code, server.count()), (3, 1), "{log}");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count()), (1, good), "a run reads on without being told again: {log}");
    let summary = job.summary();
    assert_eq!(
        [&summary["input"], &summary["succeeded"], &summary["unread"]],
        [&json!(LINES), &json!(good), &json!(false)]
    );
    let errors = job.lines("out.errors.jsonl");
    let told: BTreeSet<_> = errors.iter().map(|error| error["error"]["line"].as_u64()).collect();
    assert_eq!((errors.len(), told.len()), (LINES - good, LINES - good), "each once");
    let repeated = errors.iter().filter(|error| error["error"]["code"] == "duplicate_custom_id").count();
    assert_eq!(repeated, good);
    let (code, log) = finish(job.run(&server).arg("--no-check"));
    assert_eq!((code, server.count()), (1, good), "{log}");
}

#[test]
fn skipped_lines_are_no_sign_that_everything_fails() {
    let server = Server::new(|_| Reply::error(400, "no"));
    let good: Vec<_> = (0..25).map(|n| line(&format!("item-{n}"))).collect();
    let job = Job::with_input(&("{\n".repeat(30) + &good.join("\n")));
    let (code, log) = finish(job.run(&server).args(["--skip-bad-lines", "--concurrency", "1"]));
    assert_eq!(code, 3, "the twenty that were sent are: {log}");
    let summary = job.summary();
    assert_eq!([&summary["failed"], &summary["deferred"], &summary["calls"]], [30, 25, 20]);
}

#[test]
fn a_changed_input_is_taken_up_when_asked_and_nothing_that_ended_is_lost() {
    let server = Server::new(|arrival| match (arrival.item.as_str(), arrival.before) {
        ("c", 0) => Reply::error(401, "invalid_api_key"),
        ("b", _) => Reply::error(400, "no"),
        _ => Reply::ok(),
    });
    let input_of = |items: &[&str]| items.iter().map(|item| line(item)).collect::<Vec<_>>().join("\n");
    let job = Job::with_input(&input_of(&["a", "b", "c", "d"]));
    let run = || {
        let mut command = job.run(&server);
        command.args(["--accept-changed-input", "--concurrency", "1", "--pace", "fixed"]);
        command
    };
    // In the order of the input, so that a and b have ended when the key is refused at c.
    for max in ["1", "1", "1"] {
        finish(run().args(["--max-items", max]));
    }
    assert_eq!((job.lines("out.jsonl").len(), job.lines("out.errors.jsonl").len()), (1, 1));

    let other_a = line("a").replace("\"m\"", "\"n\"");
    for (text, words) in [
        (input_of(&["x", "a", "c"]), "  the id of the former line 2 is gone\n"),
        (
            format!("{}\n{}\n{other_a}", line("b"), line("c")),
            "  line 3: another request has the id of the former line 1\n",
        ),
    ] {
        input(&job, text.as_bytes());
        let before = files(&job);
        let (code, log) = finish(&mut run());
        assert_eq!(code, 2, "{log}");
        assert!(log.contains(words), "{log}");
        assert_eq!(files(&job)["out.jsonl"], before["out.jsonl"]);
    }

    // d is gone, e is new, c has another body, and everything stands elsewhere.
    let other_c = line("c").replace("\"m\"", "\"n\"");
    input(&job, format!("{}\n{other_c}\n\n{}\n{}\n", line("e"), line("b"), line("a")).as_bytes());
    let calls = server.count();
    let (code, log) = finish(&mut run());
    assert_eq!((code, server.count() - calls), (1, 2), "{log}");
    job.assert_adds_up(4);
    assert_eq!(job.ended_ids(), ["\"a\"", "\"b\"", "\"c\"", "\"e\""]);
    let rows = job.lines("out.report.jsonl");
    assert!(rows.iter().any(|row| row["custom_id"] == "b" && row["state"] == "failed"), "{rows:?}");
    let (code, log) = finish(&mut job.run(&server));
    assert_eq!((code, server.count() - calls), (1, 2), "it is the job's input now: {log}");
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
            "error: the journal stopped: cannot write out.jsonl: File too large (os error 27); what is recorded is safe: \
             fix this, then run the same command again"
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
            "error: cannot load the journal: disk I/O error; make sure that the disk has room and the folder can be \
             written\n"
        )
    );
    assert_eq!((files(&job), server.count()), (before, 0));
}

#[test]
fn what_editors_and_other_systems_leave_in_a_file_is_accepted() {
    let server = Server::new(|_| Reply::ok());
    let (a, b) = (line("a"), line("b"));
    for text in
        [format!("\u{feff}{a}\n{b}\n"), format!("{a}\r\n{b}\r\n"), format!("\n\n{a}\n  \n{b}\n\n"), format!("{a}\n{b}")]
    {
        let job = Job::with_input(&text);
        let (code, log) = finish(&mut job.run(&server));
        assert_eq!(code, 0, "{text:?}: {log}");
        job.assert_adds_up(2);
    }
    assert_eq!(server.count(), 8);
}
