//! A full disk: a small one of its own, which the test fills and empties.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bounded::BoundedOutput;
use crate::support::{Arrival, Job, Reply, Server};

/// What stands in the way of the answers, in KiB, on a disk of 8 MiB.
const FILLER: u32 = 6_400;

/// Runs a script in a folder `disk`, which is a disk of 8 MiB with a file that fills most of it, and the input. The script calls
/// `job`, or `tasks` and `requests`. What is on the disk at the end is copied to `kept`.
fn on_a_small_disk(job: &Job, flags: &str, script: &str, server: &Server) -> (Output, Vec<Value>) {
    for folder in ["disk", "kept"] {
        std::fs::create_dir(job.path(folder)).expect("a folder");
    }
    let paceline = env!("CARGO_BIN_EXE_paceline");
    let url = server.url();
    let script = format!(
        "mount -t tmpfs -o size=8m tmpfs disk || exit 99
         head -c {FILLER}k /dev/zero > disk/filler
         job() {{ {paceline} run in.jsonl -o disk/out.jsonl --base-url {url} --pace none {flags} \"$@\"; }}
         tasks() {{ {paceline} tasks \"$@\" --store disk/work.db; }}
         requests() {{ tasks run --http --base-url {url} --concurrency 4 --pace none -o disk/out.jsonl \"$@\"; }}
         job_that_frees() {{
             mkfifo told
             while read -r line; do
                 echo \"$line\" >> seen
                 case \"$line\" in *\"is full\"*)
                     for form in --json -q; do {paceline} stats disk/out.jsonl $form >> stats; done
                     rm \"$1\";;
                 esac
             done < told &
             job 2> told; code=$?; wait
         }}
         {script}
         cp disk/out* kept/
         exit $code"
    );
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", &script]).current_dir(job.path("")).env_clear();
    command.env("HOME", job.path("")).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let output = command.stdout(Stdio::null()).ended_with_output();
    (output, job.lines("kept/out.jsonl"))
}

fn large_answers() -> Server {
    Server::new(|_| Reply::new(200, &json!({"text": "x".repeat(40_000)})))
}

/// A server whose answers come once the script has seen all requests in the file `left`, and has filled the disk.
fn slow_answers(job: &Job) -> Server {
    let left = job.path("left");
    Server::new(move |_| {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&left).expect("writable");
        writeln!(file, "one").expect("writable");
        Reply::ok().after(Duration::from_secs(1))
    })
}

/// Every item has its line, and none was paid for twice.
fn assert_done(items: usize, results: &[Value], server: &Server) {
    assert_eq!(results.len(), items);
    assert!(server.by_item().values().all(|calls| *calls == 1), "{:?}", server.by_item());
}

#[test]
fn answers_wait_in_memory_until_there_is_room() {
    const ITEMS: usize = 60;
    let (server, job) = (large_answers(), Job::new(ITEMS));
    let (output, results) = on_a_small_disk(&job, "--concurrency 4", "job_that_frees disk/filler", &server);
    let log = std::fs::read_to_string(job.path("seen")).unwrap_or_default();
    assert_eq!(output.status.code(), Some(0), "{log} {output:?}");
    assert!(log.contains("nothing new starts") && log.contains("has space again"), "{log}");
    let stats = job.text("stats");
    let (figures, words) = stats.split_once('\n').expect("both forms");
    let figures: Value = serde_json::from_str(figures).expect("JSON");
    let disk = job.path("disk").canonicalize().expect("it is there");
    assert_eq!(figures["waits_for"], format!("room on the disk of {}", disk.display()), "{figures}");
    assert!(words.contains(" room on the disk of "), "{words}");
    assert_done(ITEMS, &results, &server);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_disk_that_stays_full_ends_the_run_with_its_summary_and_the_same_command_goes_on() {
    const ITEMS: usize = 60;
    let (server, job) = (large_answers(), Job::new(ITEMS));
    let script = "job --summary kept/first.json 2> kept/first; test $? = 3 || exit 98
        rm disk/filler; job 2> kept/second; code=$?";
    let (output, results) = on_a_small_disk(&job, "--concurrency 4 --max-wait 300ms", script, &server);
    let log = std::fs::read_to_string(job.path("kept/first")).unwrap_or_default();
    let second = std::fs::read_to_string(job.path("kept/second")).unwrap_or_default();
    assert_eq!(output.status.code(), Some(0), "{log} {second} {output:?}");
    for expected in ["is full", "DEFERRED", "continue with:"] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    let first: Value =
        serde_json::from_slice(&std::fs::read(job.path("kept/first.json")).expect("told")).expect("JSON");
    assert_eq!(first["stopped"], "disk_full");
    let ended = first["succeeded"].as_u64().expect("a number") as usize;
    assert!((1..ITEMS).contains(&ended), "{first}");
    assert!(second.contains("continuing after a full disk, which ended the run before"), "{second}");
    assert_eq!(results.len(), ITEMS);
    assert_eq!(server.count(), ITEMS, "what waited in memory took the room left for the end: {log} {second} {first}");
}

/// Neither a new job, nor one that has begun, nor a store's work can begin: that ends like any other run on a full disk, and
/// nothing is wrong with the input.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_run_that_finds_a_full_disk_waits_for_room_and_ends_after_max_wait() {
    let (server, job) = (large_answers(), Job::new(3));
    let script = r#"tasks add --key a '{"url": "/a"}' || exit 97
        fill() { head -c 8m /dev/zero > disk/more; }
        fill; job --max-wait 300ms --summary kept/new.json 2> kept/new; test $? = 3 || exit 98
        rm disk/more; job --max-items 1 2> kept/begun; test $? = 3 || exit 96
        fill; job --max-wait 300ms --summary kept/again.json 2> kept/again; test $? = 3 || exit 95
        requests --max-wait 300ms --summary kept/tasks.json 2> kept/tasks; test $? = 3 || exit 94
        job_that_frees disk/more
        fill; job --max-wait 300ms || exit 93
        job --max-wait 300ms --ordered --extract /text --summary kept/values.json 2> kept/values; test $? = 3 || exit 92"#;
    let (output, results) = on_a_small_disk(&job, "--concurrency 1", script, &server);
    let log = |name: &str| std::fs::read_to_string(job.path(name)).unwrap_or_default();
    let all = ["kept/new", "kept/begun", "kept/again", "kept/tasks", "seen"].map(log);
    assert_eq!(output.status.code(), Some(0), "{all:?} {output:?}");
    let [new, _, again, tasks, seen] = all;
    let summary: Value =
        serde_json::from_slice(&std::fs::read(job.path("kept/tasks.json")).expect("told")).expect("JSON");
    assert_eq!((&summary["status"], &summary["stopped"]), (&json!("DEFERRED"), &json!("disk_full")), "{summary}");
    assert!(new.contains("  nothing was begun\n") && !new.contains("there may be more items"), "{new}");
    for (log, ends) in [(new, "stopped early: "), (again, "stopped early: "), (tasks, "error: ")] {
        assert!(log.contains("free some space within 300ms"), "{log}");
        assert!(log.contains(&format!("{ends}the disk of {} is full", job.path("disk").display())), "{log}");
        assert!(log.contains("free some space, then run the same command again"), "{log}");
    }
    for (file, counted) in [("new", json!([0, 0, true])), ("again", json!([3, 1, false]))] {
        let summary: Value = serde_json::from_str(&log(&format!("kept/{file}.json"))).expect("JSON");
        assert_eq!(json!([summary["input"], summary["calls"], summary["unread"]]), counted, "{summary}");
        assert_eq!((&summary["status"], &summary["stopped"]), (&json!("DEFERRED"), &json!("disk_full")));
    }
    // All items have ended, and what else was asked for is not done.
    let (values, told) = (log("kept/values.json"), log("kept/values"));
    let summary: Value = serde_json::from_str(&values).expect("JSON");
    assert_eq!((&summary["status"], &summary["stopped"]), (&json!("DEFERRED"), &json!("disk_full")), "{told}");
    for expected in ["out.flat.jsonl was not written (--extract)", "(--ordered)", "continue with: "] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    assert!(seen.contains("has space again"), "{seen}");
    assert_done(3, &results, &server);
}

/// A worker that stays waits for room as long as it takes, but no longer than it may run, nor once it is told to end.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_worker_that_finds_a_full_disk_ends_when_it_is_told_and_after_max_duration() {
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(1));
    let (paceline, url) = (env!("CARGO_BIN_EXE_paceline"), server.url());
    let script = format!(
        r#"tasks add --key a '{{"url": "/a"}}' || exit 97
        head -c 8m /dev/zero > disk/more
        requests --stay --max-duration 300ms --summary kept/over.json 2> kept/over; test $? = 3 || exit 98
        {paceline} tasks run --store disk/work.db --http --base-url {url} --stay --summary kept/told.json 2> kept/told & run=$!
        until grep -q "is full" kept/told; do :; done
        kill -TERM $run; wait $run; code=$?"#
    );
    let (output, _) = on_a_small_disk(&job, "", &script, &server);
    let read = |name: &str| std::fs::read_to_string(job.path(name)).unwrap_or_default();
    let (over, told) = (read("kept/over"), read("kept/told"));
    assert_eq!(output.status.code(), Some(3), "{over} {told} {output:?}");
    for (file, log, stopped) in [("over", over, "max_duration"), ("told", told, "interrupted")] {
        assert!(log.contains("and nothing began, for the disk was full; free some space"), "{log}");
        let summary: Value = serde_json::from_str(&read(&format!("kept/{file}.json"))).expect("JSON");
        assert_eq!((&summary["status"], &summary["stopped"]), (&json!("DEFERRED"), &json!(stopped)));
    }
    assert_eq!(server.count(), 0);
}

/// The journal of so many items has no room, and neither has the report about them.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_disk_that_fills_up_before_the_first_call_or_at_the_end_takes_no_summary_away() {
    const ITEMS: usize = 20_000;
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(ITEMS));
    let script = "job --summary kept/first.json 2> kept/first; test $? = 3 || exit 98
        truncate -s 2500k disk/filler; job --max-items 1 --summary kept/second.json 2> kept/second; code=$?";
    let (output, _) = on_a_small_disk(&job, "--max-wait 300ms --extract /nothing", script, &server);
    let read = |name: &str| std::fs::read_to_string(job.path(name)).unwrap_or_default();
    let (first, second) = (read("kept/first"), read("kept/second"));
    assert_eq!(output.status.code(), Some(3), "{first} {second} {output:?}");
    let told = format!(
        "stopped early: cannot load the journal: database or disk is full (in {}); results and journal are kept as they are: free \
         some space, then run the same command again",
        job.path("disk").display()
    );
    assert!(first.contains(&told), "{first}");
    assert!(first.contains("continue with: ") && !first.contains("without a journal"), "{first}");
    assert!(second.contains("cannot write the report: No space left"), "{second}");
    for (file, stopped) in [("first", "disk_full"), ("second", "max_items")] {
        let summary: Value = serde_json::from_str(&read(&format!("kept/{file}.json"))).expect("JSON");
        assert_eq!((&summary["status"], &summary["stopped"]), (&json!("DEFERRED"), &json!(stopped)));
    }
}

/// It has room for bytes, which is all that can be asked for before they are written, and for no other file.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_disk_without_room_for_another_file_takes_the_errors_of_a_run_and_begins_none() {
    const ITEMS: usize = 20;
    let job = Job::new(ITEMS);
    let left = job.path("left");
    let server = Server::new(move |arrival| match arrival.item.as_str() {
        "item-9" => {
            std::fs::write(&left, "one").expect("writable");
            Reply::error(400, "bad").after(Duration::from_secs(1))
        }
        _ => Reply::ok(),
    });
    let script = "mount -t tmpfs -o size=8m,nr_inodes=40 tmpfs disk
        job --summary kept/first.json 2> kept/first & run=$!
        until test -s left; do :; done
        until ! touch disk/more-$((n += 1)) 2> /dev/null; do :; done
        wait $run; test $? = 1 || exit 98
        mount -t tmpfs -o size=8m,nr_inodes=1 tmpfs disk
        job --summary kept/none.json 2> kept/none; test $? = 3 || exit 97
        umount disk; rm disk/more-*; job --summary kept/second.json 2> kept/second; code=$?";
    let (output, _) = on_a_small_disk(&job, "--concurrency 1 --stop-after-same 0", script, &server);
    let read = |name: &str| std::fs::read_to_string(job.path(name)).unwrap_or_default();
    let (first, second) = (read("kept/first"), read("kept/second"));
    assert_eq!(output.status.code(), Some(1), "{first} {second} {output:?}");
    let of = |file: &str| serde_json::from_str::<Value>(&read(&format!("kept/{file}.json"))).expect("JSON");
    let (kept, none) = (of("first"), of("none"));
    assert_eq!((&kept["status"], &kept["failed"]), (&json!("PARTIAL"), &json!(1)), "its place was kept: {first}");
    assert_eq!((&none["status"], &none["stopped"]), (&json!("DEFERRED"), &json!("disk_full")));
    let told = read("kept/none");
    assert!(told.contains("DEFERRED") && told.contains("free some space, then run the same command again"), "{told}");
    let summary: Value = serde_json::from_str(&read("kept/second.json")).expect("JSON");
    assert_eq!((&summary["succeeded"], &summary["failed"]), (&json!(ITEMS - 1), &json!(1)), "{second}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn calls_whose_answers_a_full_disk_does_not_take_are_counted() {
    const ITEMS: usize = 20;
    let job = Job::new(ITEMS);
    let server = slow_answers(&job);
    let paceline = env!("CARGO_BIN_EXE_paceline");
    let script = format!(
        "rm disk/filler; job --summary kept/first.json 2> kept/first & run=$!
        until test -s left && test $(wc -l < left) = {ITEMS}; do :; done
        cat /dev/zero > disk/more
        wait $run; test $? = 3 || exit 98
        {paceline} stats --json disk/out.jsonl > kept/stats; job --summary kept/still.json 2> kept/still; test $? = 3 || exit 97
        rm disk/more; job --summary kept/second.json 2> kept/second; code=$?"
    );
    let (output, results) = on_a_small_disk(&job, "--concurrency 20 --max-wait 300ms", &script, &server);
    let read = |name: &str| std::fs::read_to_string(job.path(name)).unwrap_or_default();
    let (first, second) = (read("kept/first"), read("kept/second"));
    assert_eq!(output.status.code(), Some(0), "{first} {second} {output:?}");
    let summary: Value = serde_json::from_str(&read("kept/first.json")).expect("JSON");
    assert_eq!((&summary["stopped"], &summary["calls"]), (&json!("disk_full"), &json!(ITEMS)), "{first}");
    let lost = summary["abandoned"].as_u64().expect("a number");
    assert!(lost > 0 && first.contains(&format!("{lost} answers could not be written")), "{first}");
    assert!(first.contains(&format!("not finished: {lost} whose answers could not be written")), "{first}");
    let stats: Value = serde_json::from_str(&read("kept/stats")).expect("JSON");
    assert_eq!((&stats["in_flight"], &stats["waiting"]), (&json!(0), &json!(lost)), "{stats}");
    let (still, words): (Value, _) =
        (serde_json::from_str(&read("kept/still.json")).expect("JSON"), read("kept/still"));
    let [at_rest, told] =
        [&stats, &still].map(|figures| json!([figures["calls"], figures["calls_unsure"], figures["calls_at_least"]]));
    assert_eq!((&at_rest, words.contains("  up to ")), (&told, told[1] != 0 && told[2] == false), "{words}");
    assert!(!second.contains("killed") && !second.contains("before a kill)"), "{second}");
    let summary: Value = serde_json::from_str(&read("kept/second.json")).expect("JSON");
    let exact = summary["calls"] == json!(server.count());
    assert!(exact || summary["calls_at_least"] == true, "notes that the disk did not take: {summary}");
    assert_eq!((results.len(), server.count()), (ITEMS, ITEMS + lost as usize), "{second}");
}

/// Calls that wait for their notes behind an answer that the disk does not take have not left, and the run ends all the same.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_run_with_a_budget_ends_on_a_full_disk_and_counts_no_call_that_has_not_left() {
    const ITEMS: usize = 1_000;
    let calls = AtomicUsize::new(0);
    // The disk has room for none such.
    let large = move || calls.fetch_add(1, Ordering::Relaxed) == 200;
    let reply = move |_: &Arrival| match large() {
        true => Reply::new(200, &json!({"text": "x".repeat(5_000_000)})),
        false => Reply::ok(),
    };
    let (server, job) = (Server::new(reply), Job::new(ITEMS));
    let (paceline, url) = (env!("CARGO_BIN_EXE_paceline"), server.url());
    let script = format!(
        "rm disk/filler
         bounded() {{ timeout -s KILL 60 {paceline} run in.jsonl -o disk/out.jsonl --base-url {url} --pace none --concurrency 20 \
             --budget-tokens 900000000 --max-wait 300ms --summary kept/$1.json 2> kept/$1; }}
         bounded first; test $? = 3 || exit 98
         bounded second; code=$?"
    );
    let (output, results) = on_a_small_disk(&job, "", &script, &server);
    let read = |name: &str| std::fs::read_to_string(job.path(name)).unwrap_or_default();
    let [first, second] = ["kept/first", "kept/second"].map(read);
    assert_eq!(output.status.code(), Some(0), "{first} {second} {output:?}");
    let [before, after] =
        ["kept/first.json", "kept/second.json"].map(|name| serde_json::from_str::<Value>(&read(name)).expect("JSON"));
    assert_eq!(before["stopped"], "disk_full", "{first}");
    assert_eq!((results.len(), &after["calls"]), (ITEMS, &json!(server.count())), "{first} {second}");
}

/// 1,500 items write their pages into the log of the database many times over.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn the_log_of_the_journal_does_not_fill_a_small_disk() {
    const ITEMS: usize = 1_500;
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(ITEMS));
    let script = "rm disk/filler; job 2> kept/first; code=$?";
    let (output, results) = on_a_small_disk(&job, "--concurrency 4 --max-wait 2s", script, &server);
    let log = std::fs::read_to_string(job.path("kept/first")).unwrap_or_default();
    assert_eq!(output.status.code(), Some(0), "{log} {output:?}");
    assert_done(ITEMS, &results, &server);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn no_call_leaves_whose_answer_will_have_no_room() {
    const ITEMS: usize = 60;
    let (server, job) = (large_answers(), Job::new(ITEMS));
    // All would leave at once.
    let script = "job --summary kept/first.json 2> kept/first; test $? = 3 || exit 98
        rm disk/filler; job 2> kept/second; code=$?";
    let (output, results) = on_a_small_disk(&job, "--concurrency 60 --max-wait 300ms", script, &server);
    let log = std::fs::read_to_string(job.path("kept/first")).unwrap_or_default();
    assert_eq!(output.status.code(), Some(0), "{log} {output:?}");
    assert!(log.contains("is full"), "{log}");
    assert_done(ITEMS, &results, &server);
}

/// The limit has as many calls for an hour as the job has items: none is left for the rest, if a call that never left counts.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn calls_that_a_full_disk_keeps_back_count_in_no_limit() {
    const ITEMS: usize = 60;
    let (server, job) = (large_answers(), Job::new(ITEMS));
    let (paceline, url) = (env!("CARGO_BIN_EXE_paceline"), server.url());
    let script = format!(
        "limited() {{ {paceline} run in.jsonl -o disk/out.jsonl --base-url {url} --limit '{ITEMS} per 1h' --max-wait 300ms; }}
        limited 2> kept/first; test $? = 3 || exit 98
        rm disk/filler; limited 2> kept/second; code=$?"
    );
    let (output, results) = on_a_small_disk(&job, "", &script, &server);
    let read = |name: &str| std::fs::read_to_string(job.path(name)).unwrap_or_default();
    let (first, second) = (read("kept/first"), read("kept/second"));
    assert!(first.contains("is full"), "{first}");
    assert_eq!(output.status.code(), Some(0), "{first} {second} {output:?}");
    assert_done(ITEMS, &results, &server);
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn durable_requests_wait_for_room_and_lose_no_answer() {
    const ITEMS: usize = 60;
    let (server, job) = (large_answers(), Job::new(ITEMS));
    let lines =
        job.lines("in.jsonl").into_iter().map(|line| json!({"key": line["custom_id"], "payload": line}).to_string());
    std::fs::write(job.path("tasks.jsonl"), lines.collect::<Vec<_>>().join("\n")).expect("a file");
    let script = "tasks add --from tasks.jsonl || exit 97
        requests --max-wait 1s --summary kept/first.json 2> kept/first; test $? = 3 || exit 98
        cp disk/out.jsonl kept/first.jsonl; rm disk/filler; requests 2> kept/second; code=$?";
    let (output, results) = on_a_small_disk(&job, "", script, &server);
    let log = std::fs::read_to_string(job.path("kept/first")).unwrap_or_default();
    let second = std::fs::read_to_string(job.path("kept/second")).unwrap_or_default();
    assert_eq!(output.status.code(), Some(0), "{log} {second} {output:?}");
    assert!(log.contains("is full") && log.contains("nothing new starts") && log.contains("continue with:"), "{log}");
    let summary: Value =
        serde_json::from_slice(&std::fs::read(job.path("kept/first.json")).expect("told")).expect("JSON");
    assert_eq!(summary["stopped"], "disk_full");
    let first = job.lines("kept/first.jsonl").len();
    assert!((1..ITEMS).contains(&first), "{first}: {log}");
    assert_done(ITEMS, &results, &server);
}

/// Nothing tells whether a charge of a lost worker was made: those that were claimed and never left would be held.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_disk_that_another_program_fills_holds_no_request_of_a_store() {
    const ITEMS: usize = 300;
    let (server, job) = (Server::new(|_| Reply::ok().after(Duration::from_millis(10))), Job::new(0));
    let charge =
        |n: usize| json!({"key": n.to_string(), "payload": {"url": "/charges", "body": {"item": n.to_string()}}});
    let lines: Vec<_> = (0..ITEMS).map(|n| charge(n).to_string()).collect();
    std::fs::write(job.path("tasks.jsonl"), lines.join("\n")).expect("a file");
    let script = r#"rm disk/filler; tasks add --from tasks.jsonl || exit 97
        requests 2> kept/first & run=$!
        until test -s disk/out.jsonl; do :; done
        cat /dev/zero > disk/more
        until grep -qE "is full|exit code|disk" kept/first; do :; done
        rm disk/more; wait $run; code=$?; requests 2> kept/second"#;
    let (output, results) = on_a_small_disk(&job, "", script, &server);
    let log = |name: &str| std::fs::read_to_string(job.path(name)).unwrap_or_default();
    let (first, second) = (log("kept/first"), log("kept/second"));
    assert_eq!(output.status.code(), Some(0), "{first} {second} {output:?}");
    assert!(first.contains("nothing new starts") && !second.contains("held"), "{first} {second}");
    assert_done(ITEMS, &results, &server);
}

#[test]
fn a_store_on_a_full_disk_can_be_looked_at() {
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(0));
    let script = r#"tasks add --key a '{"url": "/a"}' || exit 97
        head -c 8m /dev/zero > disk/more
        for look in list report export "show a"; do tasks $look > "kept/$look" 2>> kept/log || exit 98; done; code=0"#;
    let (output, _) = on_a_small_disk(&job, "", script, &server);
    let kept = |name: &str| std::fs::read_to_string(job.path(&format!("kept/{name}"))).unwrap_or_default();
    assert_eq!(output.status.code(), Some(0), "{} {output:?}", kept("log"));
    for (look, shown) in [("list", "waiting"), ("report", "not_started"), ("show a", "waiting"), ("export", "\"/a\"")] {
        assert!(kept(look).contains(shown), "{look}: {}", kept(look));
    }
}

/// As many as had room are there, whole, and the same command adds the rest.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn items_that_find_no_room_are_told_and_the_same_command_adds_them() {
    const ITEMS: usize = 3_000;
    let (server, job) = (Server::new(|_| Reply::ok()), Job::new(0));
    let lines: Vec<_> =
        (0..ITEMS).map(|n| json!({"key": n.to_string(), "payload": "x".repeat(600)}).to_string()).collect();
    std::fs::write(job.path("items.jsonl"), lines.join("\n")).expect("a file");
    let script = r#"tasks add --from items.jsonl 2> kept/first; test $? = 3 || exit 98
        tasks list --json > kept/listed || exit 97
        rm disk/filler; tasks add --from items.jsonl > kept/second || exit 96
        head -c 8m /dev/zero > disk/more
        for payload in 1 2; do tasks add --key late-$payload 1 2>> kept/late; test $? = 3 || exit 95; done
        add_new() { PACELINE tasks add --store disk/new.db "$@" 2>> kept/new; test $? = 3 && test ! -e disk/new.db; }
        add_new 1 && add_new --from items.jsonl || exit 94
        mount -t tmpfs -o size=8m,nr_inodes=1 tmpfs disk; add_new 1 || exit 93
        umount disk; rm disk/more; tasks add --key late-1 1 > kept/third; code=$?"#;
    let script = script.replace("PACELINE", env!("CARGO_BIN_EXE_paceline"));
    let (output, _) = on_a_small_disk(&job, "", &script, &server);
    let read = |name: &str| std::fs::read_to_string(job.path(&format!("kept/{name}"))).unwrap_or_default();
    let all = ["first", "second", "late", "new", "third"].map(read);
    assert_eq!(output.status.code(), Some(0), "{all:?} {output:?}");
    let [first, second, late, new, third] = all;
    let added = read("listed").lines().count();
    assert!((1..ITEMS).contains(&added), "{added}");
    let count = |items: usize| match items {
        1_000.. => format!("{},{:03}", items / 1_000, items % 1_000),
        few => few.to_string(),
    };
    let told = format!(
        "error: {} of 3,000 items are in the store: cannot write the store: database or disk is full; make room on its disk, then run the same command again, which adds the rest",
        count(added)
    );
    assert!(first.contains(&told), "{told}: {first}");
    assert!(
        second.starts_with(&format!("{} added, {} were there already", count(ITEMS - added), count(added))),
        "{second}"
    );
    assert_eq!(late.matches("error: nothing was added: ").count(), 2, "{late}");
    assert_eq!(new.matches("error: nothing was added: ").count(), 3, "{new}");
    assert_eq!((late + &new).matches("then run the same command again").count(), 5);
    assert_eq!(third, "1 added\n");
}
