//! Hosts that refuse everything, or begin to: they stop, and keep their items.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;

use crate::bounded::{Bounded, BoundedOutput};
use crate::hosts::pages;
use crate::support::{Job, Reply, Server, finish, line, start};
use crate::tls::Authority;

/// The first lines are all of one host, which wants none of them.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_refuses_everything_alike_is_stopped_alone() {
    let slow = Reply::ok().after(Duration::from_secs(1));
    let (forbids, other) = (Server::new(|_| Reply::error(404, "gone")), Server::new(move |_| slow.clone()));
    let line = |n: usize| {
        let server = if n < 40 { &forbids } else { &other };
        let url = format!("{}/page/{n}", server.url());
        json!({"custom_id": format!("item-{n}"), "method": "GET", "url": url}).to_string() + "\n"
    };
    let job = Job::with_input(&(0..60).map(line).collect::<String>());
    let (code, log) = finish(job.run(&other).args(["--scope", "host"]));
    let summary = job.summary();
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (3, &json!(20), &json!(0)), "{log}");
    assert_eq!(other.count(), 20, "{log}");
    let host = forbids.url().replace("http://", "");
    let told = format!("the first 20 items of {host} all failed the same way with status 404: it is gone");
    assert!(log.contains(&format!(" makes no more calls: {told}")), "{log}");

    assert!(!log.contains(&format!("stopped: {host}")), "told once: {log}");
    // What succeeded in the run before says nothing about this one.
    let before = forbids.count();
    let (code, log) = finish(job.run(&other).args(["--scope", "host"]));
    assert_eq!((code, &job.summary()["failed"]), (3, &json!(0)), "{log}");
    assert!(log.contains(&format!("{host} still answers as in the run before, with status 404: it is gone")), "{log}");
    assert!(log.contains("or send to it anyway with --stop-after-same 0"), "{log}");
    assert_eq!(forbids.count(), before + 1, "one call shows it: {log}");
    let (code, log) = finish(job.run(&other).args(["--scope", "host", "--stop-after-same", "0"]));
    assert_eq!((code, &job.summary()["failed"], other.count()), (1, &json!(40), 20), "{log}");
}

/// A ban for an hour: told by 403 after a while, or from the first call on while others answer.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_bans_the_caller_keeps_what_it_has_not_been_asked() {
    for (pages_before, told) in [(10, "the last 20 items of "), (0, "the first 20 items of ")] {
        let bans = Server::new(move |arrival| {
            let page: usize = arrival.path.rsplit('/').next().and_then(|page| page.parse().ok()).expect("a number");
            if page / 2 < pages_before { Reply::ok() } else { Reply::text(403, "text/html", "<h1>banned</h1>") }
        });
        let other = Server::new(|_| Reply::ok());
        // The other host is the first to answer.
        let job = Job::with_input(
            &pages([&other, &bans], 200)
                .replace(&format!("{}/page/1\"", bans.url()), &{ format!("{}/page/1\"", other.url()) }),
        );
        let flags = ["--scope", "host", "--concurrency", "1", "--max-wait", "1m"];
        let (code, log) = finish(job.run(&other).args(flags));
        let summary = job.summary();
        assert_eq!((code, &summary["failed"], &summary["stopped"]), (3, &json!(0), &json!("same_failure")), "{log}");
        assert!(summary["deferred"].as_u64().is_some_and(|waiting| waiting >= 80), "{log}");
        assert!(log.contains(told) && log.contains("keep this machine out"), "{log}");
    }
    // Pages that are gone stop no host that has others.
    let server = Server::new(|arrival| match arrival.path.as_str() {
        "/page/0" => Reply::ok(),
        _ => Reply::error(404, "gone"),
    });
    let job = Job::with_input(&pages([&server, &server], 60));
    let (code, log) = finish(job.run(&server).args(["--scope", "host", "--concurrency", "1"]));
    assert_eq!((code, &job.summary()["failed"]), (1, &json!(59)), "{log}");
}

/// The run in between is for the other host, and sends nothing to the one that was stopped.
#[test]
fn a_stopped_host_is_asked_once_more_by_the_next_run_that_is_for_it() {
    let (forbids, other) = (Server::new(|_| Reply::error(404, "gone")), Server::new(|_| Reply::ok()));
    let job = Job::with_input(&pages([&forbids, &other], 120));
    let run = |flags: &[&str]| finish(job.run(&other).args(["--scope", "host", "--concurrency", "1"]).args(flags));
    let (code, log) = run(&["--max-items", "70"]);
    assert_eq!((code, &job.summary()["failed"]), (3, &json!(0)), "{log}");
    let (before, other_host) = (forbids.count(), other.url().replace("http://", ""));
    assert!(log.contains(" makes no more calls: "), "{log}");
    let (code, log) = run(&["--only-host", &other_host]);
    assert_eq!((code, other.count(), forbids.count()), (3, 60, before), "{log}");
    let (code, log) = run(&[]);
    assert_eq!((code, forbids.count()), (3, before + 1), "one call shows that nothing has changed: {log}");
    assert!(log.contains("still answers as in the run before, with status 404"), "{log}");
}

/// Each run is refused once, by another host.
#[test]
fn refusals_for_a_long_time_are_those_of_one_run_and_are_told_as_that() {
    let busy = || Server::new(|_| Reply::error(429, "slow_down").with_header("retry-after", 7_200));
    let (one, two) = (busy(), busy());
    let job = Job::with_input(&pages([&one, &two], 4));
    let run = |server: &Server| {
        let host = server.url().replace("http://", "");
        let flags = ["--scope", "host", "--only-host", &host, "--concurrency", "1", "--max-wait", "1s"];
        finish(job.run(&one).args(flags)).1
    };
    let stats = || {
        let output = job.paceline().args(["stats", "out.jsonl"]).ended_with_output();
        String::from_utf8(output.stdout).expect("text")
    };
    let log = run(&one);
    assert!(log.contains("1 call: 1 put off until much later; "), "{log}");
    assert!(stats().contains("1 call: 1 put off until much later\n"), "{}", stats());
    let log = run(&two);
    assert!(log.contains("2 calls, 1 of them in this run: in this run 1 put off until much later; "), "{log}");
    assert!(stats().contains("2 calls: in the last run 1 put off until much later\n"), "{}", stats());
}

/// The other host is asked first, and its certificate is not to blame.
#[test]
fn a_certificate_that_is_not_trusted_is_told_with_its_host() {
    let authority = Authority::new();
    let unknown = Server::tls(authority.server("localhost", false), |_| Reply::ok());
    let other = Server::new(|_| Reply::ok());
    let job = Job::with_input(&pages([&other, &unknown], 4));
    let (code, log) = finish(job.run(&other).args(["--scope", "host", "--concurrency", "1"]));
    assert_eq!((code, unknown.count()), (3, 0), "{log}");
    assert!(log.contains(&format!("cannot call {}: ", unknown.url())) && log.contains("ca_file"), "{log}");
}

/// Its pages are tried again, as answers that --expect refuses are, and the other host answers meanwhile.
#[test]
fn a_host_that_answers_with_login_pages_alone_is_stopped_alone() {
    let (asks, other) = (Server::new(|_| Reply::text(200, "text/html", "log in")), Server::new(|_| Reply::ok()));
    let job = Job::with_input(&pages([&other, &asks], 120));
    let flags = ["--scope", "host", "--concurrency", "1", "--expect", "json", "--max-retries", "1"];
    let (code, log) = finish(job.run(&other).args(flags));
    let summary = job.summary();
    assert_eq!((code, &summary["succeeded"], &summary["stopped"]), (3, &json!(60), &json!("same_failure")), "{log}");
    // The first page of the twentieth item stops it: two of each of the nineteen before at the most, and that one.
    assert!((20..=39).contains(&asks.count()), "{} calls: {log}", asks.count());
    assert!(log.contains("correct what --expect asks for, the requests, or the key and its header"), "{log}");
}

/// They begin after a while, and all lines are for one host.
#[test]
fn a_server_that_turns_to_login_pages_keeps_what_it_has_not_been_asked() {
    let server = Server::new(|arrival| match arrival.path.as_str() {
        "/page/0" | "/page/1" => Reply::ok(),
        _ => Reply::text(200, "text/html", "log in"),
    });
    let job = Job::with_input(&pages([&server, &server], 60));
    let flags = ["--concurrency", "1", "--expect", "json", "--max-retries", "0"];
    let (code, log) = finish(job.run(&server).args(flags));
    let summary = job.summary();
    let figures = (&summary["succeeded"], &summary["failed"], &summary["deferred"], &summary["stopped"]);
    assert_eq!((code, figures), (3, (&json!(2), &json!(20), &json!(38), &json!("same_failure"))), "{log}");
    assert!(log.contains("stopping: the last 20 items all failed the same way with status 200: "), "{log}");
    assert!(log.contains("the host may keep this machine out for a while"), "{log}");
}

/// As on a machine whose disk is busy: the run asks the journal whether there are other scopes before it stops, and another
/// process has the journal for as long as calls might leave meanwhile.
#[test]
fn no_call_leaves_between_the_last_refusal_and_the_stop_that_follows_from_it() {
    const REFUSALS: usize = 20;
    let job = Job::with_input(&(0..60).map(|n| line(&format!("item-{n}")) + "\n").collect::<String>());
    let (journal, taken) = (job.path("out.journal"), Arc::new(Mutex::new(None)));
    let holder = Arc::clone(&taken);
    let server = Server::new(move |arrival| {
        // One call at a time: this is the last that is refused.
        let calls = arrival.item.strip_prefix("item-").and_then(|n| n.parse::<usize>().ok()).expect("a number") + 1;
        if calls == REFUSALS + 2 {
            let other = Connection::open(&journal).expect("a database");
            other.busy_timeout(Duration::from_secs(20)).expect("a bound");
            other.execute_batch("BEGIN IMMEDIATE").expect("its turn comes");
            *holder.lock().expect("no panic") = Some(other);
        }
        if calls <= 2 { Reply::ok() } else { Reply::text(200, "text/html", "log in") }
    });
    let flags = ["--concurrency", "1", "--expect", "json", "--max-retries", "0"];
    let mut run = start(job.run(&server).args(flags));
    server.wait_for(REFUSALS + 2);
    server.may_come(REFUSALS + 6, Duration::from_millis(500));
    drop(taken.lock().expect("no panic").take());
    assert_eq!((run.ended().code(), server.count()), (Some(3), REFUSALS + 2));
    let summary = job.summary();
    assert_eq!((&summary["stopped"], &summary["calls"]), (&json!("same_failure"), &json!(REFUSALS + 2)));
}

/// Two hosts move, which slower calls do not mend, and each is told of where only warnings are looked at.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn each_host_that_has_moved_is_warned_of_with_what_to_do() {
    let to = || Reply::error(301, "moved").with_header("location", "http://new.example/");
    let moves = || Server::new(move |arrival| if arrival.before < 3 { Reply::ok() } else { to() });
    let (one, two) = (moves(), moves());
    let job = Job::with_input(&pages([&one, &two], 500));
    let (_, log) = finish(job.run(&one).args(["--scope", "host"]));
    for host in [&one, &two] {
        let line = format!("{} makes no more calls", host.url().replace("http://", ""));
        assert!(log.lines().any(|told| told.contains(" WARN ") && told.contains(&line)), "{line}: {log}");
    }
    assert!(log.contains("put the address that the redirect names") && log.contains("else into --base-url"), "{log}");
    assert!(!log.contains("--limit 1rps"), "{log}");
}

/// Each run of the same command made 20 more items of each of them fail.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn hosts_that_refuse_everything_cost_one_call_in_each_later_run_and_no_item() {
    let open = Arc::new(AtomicBool::new(false));
    let is_open = Arc::clone(&open);
    // Slower than a run that shares its processors and its disk needs to record an answer.
    let late = |reply: Reply| reply.after(Duration::from_millis(200));
    let bans = Server::new(move |_| match is_open.load(Ordering::Relaxed) {
        true => Reply::ok(),
        false => late(Reply::text(403, "text/html", "<h1>banned</h1>")),
    });
    let (moved, good) = (Server::new(move |_| late(Reply::error(404, "gone"))), Server::new(|_| Reply::ok()));
    let line = |n: usize| {
        let url = format!("{}/page/{n}", [&good, &bans, &moved][n % 3].url());
        json!({"custom_id": format!("item-{n}"), "method": "GET", "url": url}).to_string() + "\n"
    };
    let job = Job::with_input(&(0..180).map(line).collect::<String>());
    let run = || {
        let before = [bans.count(), moved.count()];
        let (code, log) = finish(job.run(&good).args(["--scope", "host", "--concurrency", "4"]));
        let summary = job.summary();
        let calls = [bans.count() - before[0], moved.count() - before[1]];
        (code, calls, summary["succeeded"].clone(), summary["failed"].clone(), log)
    };
    let (code, calls, succeeded, failed, log) = run();
    assert_eq!((code, succeeded, failed), (3, json!(60), json!(0)), "{log}");
    assert!(calls.iter().all(|calls| (20..=24).contains(calls)), "{calls:?}: {log}");
    for _ in 0..2 {
        let (code, calls, _, failed, log) = run();
        assert_eq!((code, calls, failed), (3, [1, 1], json!(0)), "{log}");
        assert!(log.contains("still answers as in the run before: 403 Forbidden"), "{log}");
        assert!(!log.contains("fix the cause, then run the same command again"), "told already: {log}");
        let again = log.lines().find_map(|line| line.trim().strip_prefix("continue with: ")).expect("a command");
        assert!(!again.contains("--retry-failed") && !again.contains("--accept-changed-input"), "{again}");
    }
    open.store(true, Ordering::Relaxed);
    let (code, calls, succeeded, _, log) = run();
    assert_eq!((code, calls, succeeded), (3, [60, 1], json!(120)), "{log}");
}

/// A host of few pages is done with the last of them, and what failed there is recorded at once.
#[test]
fn pages_that_are_gone_of_small_hosts_fail() {
    let (gone, good) = (Server::new(|_| Reply::error(404, "gone")), Server::new(|_| Reply::ok()));
    let job = Job::with_input(&pages([&good, &gone], 20));
    let (code, log) = finish(job.run(&good).args(["--scope", "host"]));
    let summary = job.summary();
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (1, &json!(10), &json!(10)), "{log}");
}

/// Its address is the id of each page, so that no id stays as it was.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn pages_of_a_host_that_has_moved_are_sent_to_the_new_one() {
    let to = || Reply::error(301, "moved").with_header("location", "http://new.example/");
    let (old, new, other) = (Server::new(move |_| to()), Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    let list = |moved: &Server| {
        let line = |n: usize| format!("{}/page/{n}\n", if n.is_multiple_of(2) { other.url() } else { moved.url() });
        (0..60).map(line).collect::<String>()
    };
    let job = Job::with_input("");
    std::fs::write(job.path("pages.txt"), list(&old)).expect("writable");
    let command = |flags: &[&str]| {
        let mut command = job.paceline();
        command.args(["run", "pages.txt", "-o", "out.jsonl", "--base-url", &other.url(), "--id-column", "url"]);
        command.args(["--scope", "host"]).args(flags);
        command
    };
    let run = |flags: &[&str]| finish(command(flags).args(["--summary", "summary.json"]));
    // All of them fail, as in a run of an earlier version.
    let (code, log) = run(&["--stop-after-same", "0"]);
    assert_eq!((code, &job.summary()["failed"]), (1, &json!(30)), "{log}");
    std::fs::write(job.path("pages.txt"), list(&new)).expect("writable");
    let host = |server: &Server| server.url().replace("http://", "");
    // The host that failed names them, and so does the one that their lines name now.
    for named in [&old, &new] {
        let dry = command(&["--retry-failed", "--only-host", &host(named), "--dry-run"]).ended_with_output();
        let text = String::from_utf8_lossy(&dry.stdout);
        assert!(text.contains("30 of 30 items that failed are sent again: 30 with status 301"), "{text}");
    }
    let (code, log) = run(&["--retry-failed", "--only-host", &host(&old)]);
    assert_eq!((code, &job.summary()["succeeded"], new.count(), old.count()), (0, &json!(60), 30, 30), "{log}");
}

/// A list that grows each day, some of whose pages have moved meanwhile.
#[test]
fn pages_that_have_moved_are_replaced_and_new_ones_added_by_one_command() {
    let moved = Server::new(|_| Reply::error(301, "moved").with_header("location", "http://new.example/"));
    let good = Server::new(|_| Reply::ok());
    let list = |of: &Server, more: usize| {
        let page = |n: usize| format!("{}/page/{n}\n", if n.is_multiple_of(4) { of.url() } else { good.url() });
        (0..20).map(page).chain((20..20 + more).map(|n| format!("{}/new/{n}\n", good.url()))).collect::<String>()
    };
    let job = Job::with_input("");
    let run = |text: String, flags: &[&str]| {
        std::fs::write(job.path("pages.txt"), text).expect("writable");
        let mut command = job.paceline();
        command.args(["run", "pages.txt", "-o", "out.jsonl", "--base-url", &good.url(), "--id-column", "url"]);
        finish(command.args(["--scope", "host", "--summary", "summary.json", "--stop-after-same", "0"]).args(flags))
    };
    let (code, log) = run(list(&moved, 0), &[]);
    assert_eq!((code, &job.summary()["failed"]), (1, &json!(5)), "{log}");
    let (code, log) = run(list(&good, 1), &["--accept-changed-input", "--retry-failed"]);
    assert_eq!((code, &job.summary()["succeeded"], moved.count(), good.count()), (0, &json!(21), 5, 21), "{log}");
}

/// "The next run tries again" was said of a host that no run calls any more.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn of_a_host_whose_pages_have_all_failed_the_summary_says_what_sends_them() {
    let bad = Server::new(|_| Reply::error(500, "broken"));
    let asks = Server::new(|_| Reply::error(429, "slow_down").with_header("retry-after", 7_200));
    let slow = Server::new(|_| Reply::ok().after(Duration::from_secs(1)));
    let of = |server: &Server, pages: usize| {
        let line = |n: usize| {
            let url = format!("{}/page/{n}", server.url());
            json!({"custom_id": url, "method": "GET", "url": url}).to_string() + "\n"
        };
        (0..pages).map(line).collect::<String>()
    };
    let job = Job::with_input(&(of(&bad, 8) + &of(&asks, 2) + &of(&slow, 4)));
    let flags = ["--scope", "host", "--max-retries", "0", "--max-wait", "1s", "--concurrency", "2"];
    let (code, log) = finish(job.run(&slow).args(flags));
    assert_eq!((code, &job.summary()["succeeded"]), (3, &json!(4)), "{log}");
    let line = log.lines().find(|line| line.contains("no more calls in this run: ")).expect("it is told");
    assert!(line.contains(&bad.url().replace("http://", "")), "{log}");
    assert!(line.ends_with("; its items have failed: --retry-failed sends them again"), "{log}");
}

/// The usual form of a ban: nothing says when it ends.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_refuses_all_calls_for_max_wait_is_given_up_and_keeps_its_items() {
    let open = Arc::new(AtomicBool::new(false));
    let is_open = Arc::clone(&open);
    let bans = Server::new(move |_| match is_open.load(Ordering::Relaxed) {
        true => Reply::ok(),
        false => Reply::text(429, "text/html", "<h1>slow down</h1>"),
    });
    let good = Server::new(|_| Reply::ok());
    let job = Job::with_input(&pages([&good, &bans], 60));
    // Longer than a closure of our own choice, which the run would not wait for.
    let flags = ["--scope", "host", "--max-wait", "8s"];
    let run = |job: &Job| {
        let cap = ("PACELINE_UPSTREAM__GENERIC__RETRY__CAP", "1m");
        finish(job.run(&good).args(flags).env(cap.0, cap.1))
    };
    let (code, log) = run(&job);
    let summary = job.summary();
    let figures = (&summary["succeeded"], &summary["failed"], &summary["deferred"], &summary["stopped"]);
    assert_eq!((code, figures), (3, (&json!(30), &json!(0), &json!(30), &json!("server_fails"))), "{log}");
    let host = bans.url().replace("http://", "");
    let told = format!("stopping: no call of {host} succeeded for 8s (--max-wait), and nothing else can be sent now");
    assert!(log.contains(&told), "{log}");
    assert!(bans.count() < 40, "{} calls", bans.count());
    open.store(true, Ordering::Relaxed);
    let (code, log) = run(&job);
    assert_eq!((code, &job.summary()["succeeded"]), (0, &json!(60)), "{log}");
    // Of one that is alone the run says what it does.
    open.store(false, Ordering::Relaxed);
    let job = Job::with_input(&pages([&bans, &bans], 30));
    let (code, log) = finish(job.run(&bans).args(["--max-wait", "8s"]));
    assert_eq!((code, &job.summary()["failed"]), (3, &json!(0)), "{log}");
    assert!(log.contains("the server refuses all calls: none succeeded for 8s (--max-wait)"), "{log}");
}

#[test]
fn a_run_for_some_hosts_leaves_the_others_as_they_are() {
    let (one, two) = (Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    let job = Job::with_input(&pages([&one, &two], 20));
    let host = two.url().replace("http://", "");
    let flags = ["--scope", "host", "--only-host", &host];
    let mut dry = job.paceline();
    dry.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &one.url(), "--dry-run"]);
    let dry = dry.args(flags).ended_with_output();
    let text = String::from_utf8_lossy(&dry.stdout);
    assert!(text.contains("in.jsonl: 20 items, 0 ended, 10 to do, 10 of other hosts\n"), "{text}");
    let (code, log) = finish(job.run(&one).args(flags));
    let summary = job.summary();
    assert_eq!((code, &summary["succeeded"], &summary["deferred"]), (3, &json!(10), &json!(10)), "{log}");
    assert_eq!((one.count(), two.count()), (0, 10), "{log}");
    assert!(log.contains("--only-host: this run is not for 1 other host"), "{log}");
    assert!(!summary["resume"].as_str().expect("a command").contains("--only-host"), "{summary}");
    let (_, log) = finish(job.run(&one).args(["--scope", "host", "--only-host", "none.example"]));
    assert!(log.contains("--only-host: no line of the job is of none.example"), "{log}");
    let (code, log) = finish(job.run(&one).args(["--scope", "host"]));
    assert_eq!((code, one.count(), two.count()), (0, 10, 10), "{log}");
}

/// Else the command that goes on would call the hosts that the user had left out.
#[test]
fn the_command_that_goes_on_is_for_the_same_hosts_while_items_of_these_are_left() {
    let (one, two) = (Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    let job = Job::with_input(&pages([&one, &two], 40));
    let host = two.url().replace("http://", "");
    let flags = ["--scope", "host", "--only-host", &host, "--max-items", "8"];
    for left in [12, 4, 0] {
        let (code, log) = finish(job.run(&one).args(flags));
        let summary = job.summary();
        let resume = summary["resume"].as_str().expect("a command");
        assert_eq!((code, resume.contains("--only-host")), (3, left > 0), "{left}: {log}");
        let again = log.lines().find_map(|line| line.trim().strip_prefix("continue with: ")).expect("a command");
        assert_eq!(again.contains("--only-host"), left > 0, "{again}");
    }
    assert_eq!((one.count(), two.count()), (0, 20));
}

/// A person follows the advice: a tier for the host that refuses everything, or that asked for a wait.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_keeps_its_hold_and_its_stop_whatever_tier_it_has() {
    let forbids = || Server::new(|_| Reply::text(403, "text/html", "<h1>banned</h1>"));
    let asks = || Server::new(|_| Reply::error(429, "slow_down").with_header("retry-after", 7_200));
    for (bad, first) in [(forbids(), 20..=40), (asks(), 1..=4)] {
        let good = Server::new(|_| Reply::ok());
        let job = Job::with_input(&pages([&good, &bad], 80));
        let tier = |limits: &str| format!("[[upstream.generic.tier]]\nmatch = \"/page\"\nlimits = [{limits}]\n");
        let run = |config: &str| {
            std::fs::write(job.path("paceline.toml"), config).expect("writable");
            let before = bad.count();
            let (code, log) =
                finish(job.run(&good).args(["--scope", "host", "--concurrency", "2", "--max-wait", "1m"]));
            assert_eq!((code, &job.summary()["failed"]), (3, &json!(0)), "{log}");
            (bad.count() - before, log)
        };
        let (calls, log) = run("");
        assert!(first.contains(&calls), "{calls}: {log}");
        let at_most = usize::from(calls > 10);
        // Then it has none again.
        for config in [tier("\"1000 per 1s\""), String::new()] {
            let (calls, log) = run(&config);
            assert!(calls <= at_most, "{calls} with {config:?}: {log}");
            assert!(log.matches("held: ").count() <= 1, "{log}");
        }
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn failures_without_a_status_are_named_by_their_codes() {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let hangs = Server::new(move |arrival| match is_mended.load(Ordering::Relaxed) {
        false if arrival.path.ends_with('2') => Reply::ok().never(),
        false if arrival.path.ends_with('3') => Reply::error(404, "gone"),
        _ => Reply::ok(),
    });
    let job = Job::with_input(&pages([&hangs, &hangs], 20));
    let flags = ["--scope", "host", "--timeout", "3s", "--max-retries", "0"];
    let (code, log) = finish(job.run(&hangs).args(flags));
    assert_eq!((code, &job.summary()["failed"]), (1, &json!(4)), "{log}");
    let again = |kinds: &'static str| [&flags[..], &["--retry-failed", "--only-status", kinds]].concat();
    let mut dry = job.paceline();
    dry.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &hangs.url(), "--dry-run"]);
    let dry = dry.args(again("timeout,404")).ended_with_output();
    let text = String::from_utf8_lossy(&dry.stdout);
    assert!(text.contains("4 of 4 items that failed are sent again: 2 with timeout, 2 with status 404"), "{text}");
    let told =
        "no failed item is what --only-status names, and none is sent again; failed items have 404 (2), timeout (2)";
    let mut mistyped = job.paceline();
    mistyped.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &hangs.url(), "--dry-run"]);
    let (code, log) = finish(mistyped.args(again("tiemout")));
    assert!(code == 0 && log.contains(told), "{log}");
    let (_, log) = finish(job.run(&hangs).args(again("truncated")));
    assert!(log.contains(told), "{log}");
    mended.store(true, Ordering::Relaxed);
    let (code, log) = finish(job.run(&hangs).args(again("timeout")));
    assert_eq!((code, &job.summary()["failed"]), (1, &json!(2)), "{log}");
    let (code, log) = finish(job.run(&hangs).args(["--scope", "host", "--only-status", "404"]));
    assert!(code == 2 && log.contains("--only-status is for items that failed: add --retry-failed"), "{log}");
}
