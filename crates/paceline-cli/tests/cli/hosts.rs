//! Lines for many hosts, each of which is paced by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_store::work::{NewItem, State};
use serde_json::json;

use crate::bounded::BoundedOutput;
use crate::support::{Arrival, Job, Reply, Server, finish};
use crate::tasks_run::{Store, ran};

/// Pages of two servers in turn.
pub(crate) fn pages(servers: [&Server; 2], count: usize) -> String {
    let line = |n: usize| {
        let url = format!("{}/page/{n}", servers[n % 2].url());
        json!({"custom_id": format!("item-{n}"), "method": "GET", "url": url}).to_string() + "\n"
    };
    (0..count).map(line).collect()
}

#[test]
fn a_host_that_asks_for_hours_holds_up_no_other() {
    let busy = Server::new(|_| Reply::error(429, "slow down").with_header("retry-after", 7_200));
    let other = Server::new(|_| Reply::ok());
    let job = Job::with_input(&pages([&busy, &other], 20));
    let flags = ["--scope", "host", "--max-wait", "1m", "--concurrency", "1"];
    let (code, log) = finish(job.run(&other).args(flags));
    let summary = job.summary();
    assert_eq!((code, &summary["succeeded"], &summary["deferred"]), (3, &json!(10), &json!(10)), "{log}");
    assert_eq!((busy.count(), other.count()), (1, 10), "{log}");
    assert!(log.contains("held: 127.0.0.1:"), "{log}");
}

/// A tier has its limits for each host, and what one host asks for holds up no other.
#[test]
fn a_tier_over_many_hosts_divides_them_too() {
    let busy = Server::new(|_| Reply::error(429, "slow down").with_header("retry-after", 7_200));
    let other = Server::new(|_| Reply::ok());
    let pages = pages([&busy, &other], 20).replace("\"method\"", "\"metadata\":{\"label\":\"slow\"},\"method\"");
    let job = Job::with_input(&pages);
    let tier = "[[upstream.generic.tier]]\nlabel = 'slow'\nlimits = ['900 rps']\n";
    std::fs::write(job.path("paceline.toml"), tier).expect("writable");
    let flags = ["--scope", "host", "--max-wait", "1m", "--concurrency", "1"];
    let mut dry = job.paceline();
    dry.args(["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &other.url(), "--dry-run"]);
    let dry = dry.args(flags).ended_with_output();
    let [busy_host, other_host] = [&busy, &other].map(|server| server.url().replace("http://", ""));
    let told = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(told.contains(&format!("tier label=slow at {busy_host}: 10 items")), "{told}");
    let (code, log) = finish(job.run(&other).args(flags));
    let summary = job.summary();
    assert_eq!((code, &summary["succeeded"], &summary["deferred"]), (3, &json!(10), &json!(10)), "{log}");
    assert_eq!((busy.count(), other.count()), (1, 10), "{log}");
    assert!(log.contains(&format!("held: tier label=slow at {busy_host}")), "{log}");
    assert!(!log.contains("do not act") && !log.contains(&format!("held: tier label=slow at {other_host}")), "{log}");
}

/// A page to log in comes as a success: a rule by its text stops its host, and no other page.
#[test]
fn a_rule_by_text_stops_the_host_that_shows_it() {
    let page = |text: &'static str| Reply::text(200, "text/html", text);
    let out = Server::new(move |arrival| match arrival.before {
        0..3 => page("<title>A page</title>"),
        _ => page("<title>Shop</title><h1>Please log in</h1>"),
    });
    let other = Server::new(move |_| page("<title>please log in, says this page in other letters</title>"));
    let job = Job::with_input(&pages([&out, &other], 40));
    let rule =
        "[[upstream.generic.rule]]\nmatch = { status = 200, contains = \"Please log in\" }\nclass = \"account\"\n";
    std::fs::write(job.path("paceline.toml"), rule.to_owned() + "scope = \"host\"\n").expect("writable");
    let (code, log) = finish(job.run(&other).args(["--scope", "host", "--concurrency", "1"]));
    let summary = job.summary();
    assert_eq!((code, &summary["succeeded"], &summary["deferred"]), (3, &json!(23), &json!(17)), "{log}");
    assert_eq!((out.count(), other.count()), (4, 20), "{log}");
    assert!(log.contains("paceline.toml, line 3)"), "{log}");
}

/// "At most two connections for each site": the slow host has two calls of ours at once, and the other is not held up by it.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_tier_bounds_the_calls_in_flight_of_each_host() {
    let slow = Server::new(|_| Reply::ok().after(Duration::from_millis(100)));
    let other = Server::new(|_| Reply::ok());
    let job = Job::with_input(&pages([&slow, &other], 60));
    let tier = "[[upstream.generic.tier]]\nmatch = '/'\nlimits = ['2 concurrent']\n";
    std::fs::write(job.path("paceline.toml"), tier).expect("writable");
    let (code, log) = finish(job.run(&other).args(["--scope", "host"]));
    assert_eq!((code, slow.count(), other.count()), (0, 30, 30), "{log}");
    let summary = job.summary();
    let host = slow.url().replace("http://", "");
    let scopes = summary["scopes"].as_array().expect("both");
    let scope = scopes.iter().find(|scope| scope["name"] == format!("tier / at {host}")).expect("the slow host");
    assert_eq!(scope["concurrency"]["peak_active"], 2, "{summary}");
}

/// The key goes to the host of `--base-url`: there a 401 is about the key, elsewhere about the page.
#[test]
fn a_page_that_wants_a_key_fails_alone_where_none_is_sent() {
    let locked = |arrival: &Arrival| match arrival.path.as_str() {
        "/page/2" | "/page/3" => Reply::error(if arrival.path.ends_with('2') { 401 } else { 403 }, "locked"),
        _ => Reply::ok(),
    };
    let (ours, other) = (Server::new(|_| Reply::ok()), Server::new(locked));
    let job = Job::with_input(&pages([&other, &other], 10));
    let flags = ["--scope", "host", "--api-key-env", "KEY", "--concurrency", "1"];
    let (code, log) = finish(job.run(&ours).args(flags).env("KEY", "of-ours-alone"));
    assert_eq!((code, other.count()), (1, 10), "{log}");
    job.assert_adds_up(10);
    let told = "item failed: 401 Unauthorized, answer \"it is locked\" (the call carried no key)";
    assert!(log.contains(told) && log.contains("item=\"item-2\"") && log.contains("status=401"), "{log}");

    let job = Job::with_input(&pages([&other, &other], 10));
    let (code, log) = finish(job.run(&other).args(flags).env("KEY", "refused"));
    assert_eq!((code, &job.summary()["deferred"]), (3, &json!(8)), "{log}");
    assert!(log.contains(": it is locked (401: the key is refused); fix the cause"), "{log}");
    assert!(log.contains("401 it is locked (item item-2, by the rule \"401: the key is refused\")"), "{log}");
}

/// Headers whose names say that they are secret, by a whole word of theirs.
#[test]
fn a_secret_header_goes_to_the_host_of_the_base_url_alone_and_is_not_shown() {
    const SECRET: [&str; 7] =
        ["X-Auth", "X-Hub-Signature-256", "X-Sig", "X-Session", "X-Pass", "X-Shopify-Hmac-Sha256", "X-Api-Token"];
    let [ours, other] = [(); 2].map(|()| {
        Server::new(|arrival: &Arrival| match arrival.path.as_str() {
            "/page/0" => Reply::error(429, "slow down").with_header("retry-after", 7_200),
            _ => Reply::ok(),
        })
    });
    let job = Job::with_input(&pages([&ours, &other], 2));
    let mut command = job.run(&ours);
    command.args(["--scope", "host", "--max-wait", "1s", "--header", "X-Passenger: open sesame"]);
    for name in SECRET {
        command.args(["--header", &format!("{name}: sha256=tell-nobody")]);
    }
    let (code, log) = finish(&mut command);
    assert_eq!((code, ours.count(), other.count()), (3, 1, 1), "{log}");
    assert_eq!(other.arrivals()[0].headers["x-passenger"], "open sesame");
    for name in SECRET {
        assert_eq!(ours.arrivals()[0].headers[name], "sha256=tell-nobody", "{name}");
        assert!(!other.arrivals()[0].headers.contains_key(name), "{name}");
    }
    assert!(log.contains("X-Passenger: open sesame") && !log.contains("tell-nobody"), "{log}");
    let told = |line: &&str| {
        line.contains(", x-auth, x-hub-signature-256, ")
            && line.contains(&format!(" go to {} alone", ours.url().replace("http://", "")))
    };
    assert_eq!(log.lines().filter(told).count(), 1, "{log}");
    for file in ["out.journal", "out.report.jsonl", "summary.json"] {
        let bytes = std::fs::read(job.path(file)).expect("written");
        assert!(!String::from_utf8_lossy(&bytes).contains("tell-nobody"), "{file}");
    }
}

/// Pages of one server, of which one asks for two hours.
#[test]
fn one_page_that_holds_up_all_others_is_told_with_the_flag_that_lets_them_go() {
    for (flags, succeeded, is_shown) in [(&[][..], 0, true), (&["--scope", "endpoint"], 9, false)] {
        let server = Server::new(|arrival| match arrival.path.as_str() {
            "/page/0" => Reply::error(429, "slow down").with_header("retry-after", 7_200),
            _ => Reply::ok(),
        });
        let job = Job::with_input(&pages([&server, &server], 10));
        let (code, log) = finish(job.run(&server).args(["--max-wait", "1m", "--concurrency", "1"]).args(flags));
        assert_eq!((code, &job.summary()["succeeded"]), (3, &json!(succeeded)), "{log}");
        let log_line = "because all calls are one scope; only if the API limits each path by itself, --scope endpoint";
        assert_eq!(log.contains(log_line), is_shown, "{log}");
    }
}

#[test]
fn items_of_a_store_go_to_many_hosts_and_the_key_to_one() {
    let busy = Server::new(|_| Reply::error(429, "slow down").with_header("retry-after", 7_200));
    let ours = Server::new(|_| Reply::ok());
    let other = Server::new(|_| Reply::ok());
    let store = Store::new();
    let to = |server: &Server, n: usize| {
        NewItem::new(format!("item-{n}"), json!({"method": "GET", "url": format!("{}/{n}", server.url())}).to_string())
    };
    let servers = [&busy, &ours, &other];
    store.put((0..12).map(|n| to(servers[n % 3], n)).collect());
    let flags = ["--http", "--base-url", &ours.url(), "--api-key-env", "KEY", "--max-wait", "1m", "--concurrency", "1"];
    let run = ran(store.command().args(flags).args(["--scope", "host"]).env("KEY", "of-ours-alone"));
    assert_eq!((run.code, &run.summary["succeeded"]), (3, &json!(8)), "{}", run.log);
    assert_eq!((store.item("item-0").state, busy.count()), (State::Waiting, 1), "{}", run.log);
    assert!(ours.arrivals().iter().all(|arrival| arrival.headers.contains_key("authorization")));
    assert!(
        other.arrivals().iter().chain(&busy.arrivals()).all(|arrival| !arrival.headers.contains_key("authorization"))
    );
}

#[test]
fn items_for_many_hosts_are_added_with_the_flag_that_takes_them() {
    let (ours, other) = (Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    let line = |n: usize, server: &Server| {
        let payload = json!({"method": "GET", "url": format!("{}/{n}", server.url())});
        json!({"key": format!("item-{n}"), "payload": payload}).to_string() + "\n"
    };
    let store = Store::new();
    std::fs::write(store.job.path("items.jsonl"), line(0, &ours) + &line(1, &other)).expect("writable");
    let (code, log) =
        finish(store.job.paceline().args(["tasks", "add", "--store", "work.db", "--from", "items.jsonl"]));
    assert!(code == 0 && log.contains("calls all of them with --scope host"), "{log}");
    let run = ran(store.command().args(["--http", "--base-url", &ours.url()]));
    assert_eq!((run.code, other.count()), (3, 0), "{}", run.log);
    assert!(run.log.contains("add --scope host"), "a log line is cut behind it: {}", run.log);
    let told = store.item("item-1").last.expect("a failure").message;
    assert!(told.contains("add --scope host to call several hosts"), "{told}");
}

#[test]
fn without_that_scope_another_host_is_refused_with_the_flag_that_takes_it() {
    let (ours, other) = (Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    let job = Job::with_input(&pages([&ours, &other], 2));
    let (code, log) = finish(&mut job.run(&ours));
    assert!(code == 2 && log.contains("add --scope host to call several hosts"), "{log}");
    assert_eq!((ours.count(), other.count()), (0, 0));
}

#[test]
fn a_host_that_is_not_there_is_named() {
    let server = Server::new(|_| Reply::ok());
    let host = crate::outage::nowhere().replace("http://", "");
    let job =
        Job::with_input(&json!({"custom_id": "a", "method": "GET", "url": format!("http://{host}/")}).to_string());
    let (code, log) = finish(job.run(&server).args(["--scope", "host", "--max-wait", "300ms"]));
    let told = format!("stopping: no server answers at {host}: ");
    assert!(code == 3 && log.contains(&told) && !log.contains("(--base-url)"), "{log}");
}

/// Some of its calls are in flight when the dead host is given up, and others leave later.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_is_not_there_ends_no_call_to_another() {
    let server = Server::new(|_| Reply::ok().after(Duration::from_secs(1)));
    let dead = crate::outage::nowhere();
    let line = |n: usize| {
        let url = format!("{}/{n}", if n < 40 { dead.clone() } else { server.url() });
        json!({"custom_id": n.to_string(), "method": "GET", "url": url}).to_string() + "\n"
    };
    let job = Job::with_input(&(0..52).map(line).collect::<String>());
    let (code, log) = finish(job.run(&server).args(["--scope", "host", "--max-wait", "1s", "--concurrency", "4"]));
    assert_eq!((code, &job.summary()["succeeded"], server.count()), (3, &json!(12), 12), "{log}");
    let told = format!("stopping: no server answers at {}: ", dead.replace("http://", ""));
    assert!(log.contains(&told) && log.contains(" makes no more calls"), "{log}");
    assert_eq!(job.summary()["stopped"], "unreachable");
}

#[test]
fn a_host_that_is_not_there_uses_up_the_items_of_the_run_with_a_word() {
    let server = Server::new(|_| Reply::ok());
    let dead = crate::outage::nowhere();
    let line = |n: usize| {
        let url = format!("{}/{n}", if n < 10 { dead.clone() } else { server.url() });
        json!({"custom_id": n.to_string(), "method": "GET", "url": url}).to_string() + "\n"
    };
    let job = Job::with_input(&(0..30).map(line).collect::<String>());
    let flags = ["--scope", "host", "--max-wait", "300ms", "--concurrency", "1", "--max-items", "1"];
    let (code, log) = finish(job.run(&server).args(flags));
    let summary = job.summary();
    assert_eq!((code, &summary["succeeded"], &summary["stopped"]), (3, &json!(0), &json!("unreachable")), "{log}");
    assert!(log.contains("--max-items is reached: it counts each item that was begun"), "{log}");
}

#[test]
fn an_address_with_a_port_that_cannot_be_is_refused_before_the_first_call() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::with_input(&json!({"custom_id": "a", "method": "GET", "url": "http://h:99999/"}).to_string());
    let (code, log) = finish(job.run(&server).args(["--scope", "host"]));
    assert!(code == 2 && log.contains("is not a web address: invalid port number"), "{log}");
}

/// The journal knows that it failed.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_was_given_up_is_tested_by_one_call_at_a_time_in_the_next_run() {
    let (broken, other) = (Server::new(|_| Reply::error(500, "broken")), Server::new(|_| Reply::ok()));
    let job = Job::with_input(&pages([&broken, &other], 120));
    let run = || {
        let flags = ["--scope", "host", "--max-wait", "1s", "--max-retries", "1000"];
        let mut command = job.run(&other);
        command.env("PACELINE_UPSTREAM__GENERIC__BREAKER__OPEN", "900ms");
        finish(command.args(flags))
    };
    let (code, log) = run();
    let before = broken.count();
    assert!(code == 3 && before >= 20, "{before} calls: {log}");
    let (code, log) = run();
    assert!(code == 3 && broken.count() - before <= 3, "{} calls: {log}", broken.count() - before);
}

#[test]
fn a_host_that_fails_for_long_is_given_up_with_its_last_failure() {
    let (broken, other) = (Server::new(|_| Reply::error(500, "broken")), Server::new(|_| Reply::ok()));
    let job = Job::with_input(&pages([&broken, &other], 60));
    let flags = ["--scope", "host", "--max-wait", "300ms", "--max-retries", "1000"];
    let mut command = job.run(&other);
    // Short enough that the next call is never later than the longest wait.
    for key in ["OPEN", "OPEN_MAX"] {
        command.env(format!("PACELINE_UPSTREAM__GENERIC__BREAKER__{key}"), "20ms");
    }
    let (code, log) = finish(command.args(flags));
    assert!(code == 3 && log.contains("the server is failing (last: it is broken)"), "{log}");
}

/// The other host still answers when a hold of twice `--max-wait` would be over.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn a_host_that_was_given_up_gets_no_call_later_in_the_run() {
    let broken = Server::new(|_| Reply::error(500, "broken"));
    let other = Server::new(|_| Reply::ok().after(Duration::from_secs(1)));
    let job = Job::with_input(&pages([&broken, &other], 60));
    let mut command = job.run(&other);
    for key in ["OPEN", "OPEN_MAX"] {
        command.env(format!("PACELINE_UPSTREAM__GENERIC__BREAKER__{key}"), "20ms");
    }
    let flags = ["--scope", "host", "--max-wait", "300ms", "--max-retries", "1000", "--concurrency", "12"];
    let (code, log) = finish(command.args(flags));
    assert_eq!((code, &job.summary()["succeeded"]), (3, &json!(30)), "{log}");
    assert_eq!(log.matches("this run makes no more calls there").count(), 1, "{log}");
    assert!(!log.contains("no calls for "), "{log}");
    let host = broken.url().replace("http://", "");
    let told =
        format!("stopping: no call of {host} succeeded for 300ms (--max-wait), and nothing else can be sent now");
    assert!(log.contains(&told), "the other host succeeded meanwhile: {log}");
    let stats = |more: &[&str]| {
        let told = job.paceline().arg("stats").args(more).ended_with_output().stdout;
        String::from_utf8_lossy(&told).into_owned()
    };
    let given_up = "given up in the last run, for no call succeeded (--max-wait); the same command tries it again";
    assert!(stats(&[]).contains(&format!("{host}: {given_up}\n")), "{}", stats(&[]));
    assert!(stats(&["--by-host"]).contains(&format!("{given_up}; last failure: ")), "{}", stats(&["--by-host"]));
}

#[test]
fn of_the_hosts_of_a_store_the_one_that_is_not_there_is_named() {
    let server = Server::new(|_| Reply::ok());
    let dead = crate::outage::nowhere();
    let store = Store::new();
    let to = |n: usize, url: &str| {
        NewItem::new(format!("item-{n}"), json!({"method": "GET", "url": format!("{url}/{n}")}).to_string())
    };
    let url = server.url();
    store.put((0..6).map(|n| to(n, if n == 3 { &dead } else { &url })).collect());
    let run = ran(store.command().args(["--http", "--base-url", &url, "--scope", "host", "--max-wait", "300ms"]));
    assert_eq!((run.code, &run.summary["stopped"]), (3, &json!("unreachable")), "{}", run.log);
    // A busy machine may begin nothing for so long either; what was not sent then waits, and nothing has failed.
    assert_eq!(
        (run.summary["succeeded"].as_u64(), run.summary["failed"].as_u64()),
        (Some(server.count() as u64), Some(0))
    );
    let told = format!("no server answers at {}: ", dead.replace("http://", ""));
    assert!(run.log.contains(&told) && run.log.contains("check these addresses in the input"), "{}", run.log);
    assert!(!run.log.contains("the hosts of the input") && !run.log.contains("--base-url"), "{}", run.log);
}

/// Two hosts have mended what made their pages fail; of a third one pages are gone.
#[test]
fn of_items_that_failed_those_are_sent_again_that_are_named() {
    let mended = Arc::new(AtomicBool::new(false));
    let answers = |status| {
        let mended = Arc::clone(&mended);
        Server::new(move |_| if mended.load(Ordering::Relaxed) { Reply::ok() } else { Reply::error(status, "no") })
    };
    let (banned, gone) = (answers(403), answers(404));
    let job = Job::with_input(&pages([&banned, &gone], 10));
    let flags = ["--scope", "host", "--stop-after-same", "0"];
    let (code, log) = finish(job.run(&gone).args(flags));
    assert_eq!((code, &job.summary()["failed"]), (1, &json!(10)), "{log}");
    mended.store(true, Ordering::Relaxed);
    let host = gone.url().replace("http://", "");
    let dry = |more: &[&str]| {
        let words = ["run", "in.jsonl", "-o", "out.jsonl", "--base-url", &gone.url(), "--dry-run", "--retry-failed"];
        let dry = job.paceline().args(words).args(flags).args(more).ended_with_output();
        String::from_utf8_lossy(&[dry.stdout, dry.stderr].concat()).into_owned()
    };
    for (more, told) in [
        (&["--only-status", "5xx"][..], "0 of 10 items that failed are sent again\n"),
        (&["--only-status", "403,5xx"], "5 of 10 items that failed are sent again: 5 with status 403\n"),
        (&["--only-status", "not-held"], "10 of 10 items that failed are sent again: "),
        (&["--only-host", &host], "5 of 10 items that failed are sent again: 5 with status 404\n"),
        (&["--only-host", &host, "--only-status", "403"], "0 of 10 items that failed are sent again\n"),
    ] {
        assert!(dry(more).contains(told), "{more:?}: {}", dry(more));
    }
    let (code, log) = finish(job.run(&gone).args(["--retry-failed", "--only-host", &host]));
    assert!(code == 2 && log.contains("which host an item went to is known with --scope host alone"), "{log}");
    let (code, log) = finish(job.run(&gone).args(flags).args(["--retry-failed", "--only-status=403"]));
    let summary = job.summary();
    assert_eq!((code, &summary["succeeded"], &summary["failed"]), (1, &json!(5), &json!(5)), "{log}");
    assert_eq!((banned.count(), gone.count()), (10, 5), "{log}");
}

#[test]
fn a_tier_of_one_host_behind_one_of_all_hosts_is_told_to_stand_first_and_hosts_are_shown_without_tiers() {
    let server = Server::new(|_| Reply::ok());
    let job = Job::with_input(&pages([&server, &server], 2));
    let tier = |name: &str| format!("[[upstream.generic.tier]]\n{name}\nlimits = ['900 rps']\n");
    let (all, one) = (tier("match = '/'"), tier("host = '127.0.0.1'"));
    let run = |tiers: &str| {
        std::fs::write(job.path("paceline.toml"), tiers).expect("writable");
        finish(job.run(&server).args(["--scope", "host", "--overwrite"])).1
    };
    let log = run(&format!("{all}{one}"));
    let told = "tier / stands before tier host=127.0.0.1 and takes its lines, so the limits there do not act: put tier host=127.0.0.1 first";
    assert!(log.contains(told), "{log}");
    let shown = || {
        let stats = job.paceline().args(["stats", "--by-host", "--json"]).ended_with_output();
        let host: serde_json::Value = serde_json::from_slice(&stats.stdout).expect("one line");
        host["host"].as_str().expect("a text").to_owned()
    };
    assert_eq!(shown(), server.url().replace("http://", ""));
    let log = run(&format!("{one}{all}"));
    assert!(log.contains("no line of the input matches tier /,") && !log.contains("stands before"), "{log}");
    assert_eq!(shown(), server.url().replace("http://", ""), "a server at a port of its own is one host of several");
}

/// They were said to go to the new one.
#[test]
fn another_base_url_takes_no_lines_that_name_their_host() {
    let (one, two) = (Server::new(|_| Reply::ok()), Server::new(|_| Reply::ok()));
    let job = Job::with_input(&pages([&one, &one], 4));
    let (code, log) = finish(job.run(&one).args(["--scope", "host", "--max-items", "2"]));
    assert_eq!(code, 3, "{log}");
    let (code, log) = finish(job.run(&two).args(["--scope", "host"]));
    assert_eq!((code, one.count(), two.count()), (0, 4, 0), "{log}");
    assert!(log.contains("the remaining items whose lines name no host of their own go to"), "{log}");
}

/// Twelve pages, each of which is refused more often than not: one limit may be over all of them.
#[test]
fn where_most_calls_of_many_scopes_are_refused_the_flag_that_makes_them_one_is_named() {
    let server = Server::new(|arrival| match server_calls(arrival) {
        0 | 1 => Reply::error(429, "slow down").with_header("retry-after-ms", 1),
        _ => Reply::ok(),
    });
    let line = |n: usize| {
        json!({"custom_id": format!("item-{n}"), "url": format!("/page/{n}"), "body": {"item": format!("item-{n}")}})
            .to_string()
            + "\n"
    };
    let job = Job::with_input(&(0..12).map(line).collect::<String>());
    let (code, log) = finish(job.run(&server).args(["--scope", "endpoint"]));
    assert_eq!(code, 0, "{log}");
    let told = "24 of 36 calls were rate-limited, in 12 scopes: if one limit is over all of them, --scope all paces them as one";
    assert!(log.contains(told), "{log}");
}

fn server_calls(arrival: &Arrival) -> usize {
    arrival.before
}
