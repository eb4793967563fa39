//! One bad domain, limits, an account that a person must see to, and a CA that is down.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use super::agent::{Agent, certificate, domain};
use super::front::{Front, Mood};
use super::pebble::Pebble;

/// How many domains the program works on at a time: so many calls may be on their way when one of them is refused.
const AT_A_TIME: usize = 10;

#[test]
fn a_domain_that_answers_wrongly_fails_alone_and_in_the_words_of_the_ca() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 20, &[]);
    let wrong = TcpListener::bind(("127.0.0.2", pebble.http_port)).expect("another address of this machine");
    std::thread::spawn(move || {
        for mut stream in wrong.incoming().flatten() {
            let _ = stream.read(&mut [0; 4_096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\nnonsense");
        }
    });
    pebble.lead(&domain(7), "127.0.0.2");
    let ended = agent.run();
    ended.assert(1, "PARTIAL");
    assert_eq!((ended.count("renewed"), ended.count("failed")), (19, 1), "{}", ended.text);
    let row = ended.row(7);
    assert_eq!((row["state"].as_str(), row["code"].as_str()), (Some("failed"), Some("unauthorized")), "{row}");
    let message = row["words"].as_str().expect("the CA's words");
    assert!(message.contains("did not match") && message.contains("nonsense"), "{message}");
    let markdown = fs::read_to_string(agent.folder.path().join("report.md")).expect("a report");
    assert!(markdown.contains(&domain(7)) && markdown.contains("did not match"), "{markdown}");
    assert_eq!(front.orders(), 20, "the wrong domain is not tried again in this run");

    pebble.lead(&domain(7), "127.0.0.1");
    let ended = agent.run();
    ended.assert(0, "SUCCESS");
    assert_eq!((ended.count("renewed"), front.orders()), (1, 21), "the next run tries what failed, and only that");
    agent.connect(&pebble, 7).expect("a good certificate");
}

#[test]
fn no_order_is_sent_in_the_time_that_the_ca_asks_for() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 20, &["--first-delay", "1s"]);
    let detail = "too many new orders (300) from this account in the last 3h0m0s";
    front.set(Mood::RefusesOneOrder { detail, retry_after: 5 });
    let ended = agent.run();
    ended.assert(0, "SUCCESS");
    assert_eq!(ended.count("renewed"), 20);
    let calls = front.order_calls();
    let refused = calls.iter().position(|call| call.status == Some(429)).expect("the refusal");
    let until = calls[refused].at + Duration::from_secs(5);
    // What was on its way, and was sent again for a stale nonce before the refusal was read, arrives at once.
    let read = calls[refused].at + Duration::from_secs(1);
    let early = calls.iter().filter(|call| call.at >= read && call.at < until).count();
    assert_eq!(early, 0, "orders that came in the five seconds");
    assert!(front.orders() == 20, "{} orders", front.orders());
}

#[test]
fn the_time_that_the_ca_asks_for_outlives_the_program() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 20, &["--first-delay", "1s"]);
    let detail = "too many new orders (300) from this account in the last 3h0m0s";
    front.set(Mood::RefusesOneOrder { detail, retry_after: 8 });
    let mut process = agent.spawn();
    let log = BufReader::new(process.stderr.take().expect("piped"));
    assert!(log.lines().map_while(Result::ok).any(|line| line.contains("is held")), "it says so");
    agent.kill(process);
    assert!(front.wait_for_hang_ups(Duration::from_secs(60)), "what it had sent arrived");
    let before = front.order_calls();
    let refused = before.iter().find(|call| call.status == Some(429)).expect("the refusal");
    agent.run().assert(0, "SUCCESS");
    let next = front.order_calls()[before.len()].at;
    assert!(next >= refused.at + Duration::from_secs(8), "{:?} after the refusal", next.saturating_since(refused.at));
}

#[test]
fn a_limit_of_one_name_holds_up_no_other_domain() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 20, &["--first-delay", "1s"]);
    let detail = "too many failed authorizations (5) for \"a.example.org\" in the last 1h0m0s";
    front.set(Mood::RefusesOneOrder { detail, retry_after: 5 });
    let ended = agent.run();
    ended.assert(0, "SUCCESS");
    let put_off: Vec<usize> = (1..=20).filter(|&number| ended.row(number)["deferrals"] != 0).collect();
    assert_eq!(put_off.len(), 1, "{}", ended.text);
    assert!(!ended.text.contains("is held"), "it waits alone: {}", ended.text);
    let name = domain(put_off[0]);
    let asked: Vec<_> = front.order_calls().into_iter().filter(|call| call.domain.as_ref() == Some(&name)).collect();
    assert!(asked[1].at >= asked[0].at + Duration::from_secs(5), "{asked:?}");
}

#[test]
fn refused_without_a_hint_a_domain_orders_no_more_often_than_it_may() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 2, &["--max-retries", "2", "--first-delay", "200ms"]);
    let detail = "too many new orders recently";
    front.set(Mood::RefusesOrders { status: 429, kind: "rateLimited", detail, retry_after: None });
    let ended = agent.run();
    ended.assert(3, "DEFERRED");
    assert_eq!(front.order_calls().len(), 2 * (1 + 2), "{}", ended.text);
    assert_eq!(ended.row(1)["words"], detail);
    front.set(Mood::Fair);
    agent.run().assert(0, "SUCCESS");
}

#[test]
fn an_account_that_a_person_must_see_to_stops_the_ca_and_keeps_everything() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 20, &[]);
    for (kind, detail) in [
        ("userActionRequired", "Terms of service have changed"),
        ("unauthorized", "Account is not valid, has status \"deactivated\""),
    ] {
        let before = front.order_calls().len();
        front.set(Mood::RefusesOrders { status: 403, kind, detail, retry_after: None });
        let ended = agent.run();
        ended.assert(3, "DEFERRED");
        assert_eq!(ended.count("deferred"), 20, "{}", ended.text);
        let why = ended.report["ended"].as_str().expect("a reason");
        assert!(why.contains(detail), "{why}");
        let asked = front.order_calls().len() - before;
        assert!(asked <= AT_A_TIME, "{asked} orders were asked for");
    }
    front.set(Mood::Fair);
    let ended = agent.run();
    ended.assert(0, "SUCCESS");
    assert_eq!(ended.count("renewed"), 20);
}

#[test]
fn an_order_in_progress_is_asked_about_when_the_ca_says() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 5, &[]);
    front.set(Mood::TakesItsTime);
    let ended = agent.run();
    ended.assert(0, "SUCCESS");
    let delayed = front.delayed();
    assert_eq!(delayed.len(), 5);
    for path in delayed {
        let calls: Vec<_> = front.calls().into_iter().filter(|call| call.path == path).collect();
        let patient = calls.windows(2).any(|pair| pair[1].at.saturating_since(pair[0].at) >= Duration::from_secs(2));
        assert!(patient, "{calls:?}");
    }
    assert_eq!(ended.row(1)["attempts"], 1, "waiting for an order is no failure");
}

#[test]
fn a_ca_that_is_down_for_a_while_is_tested_by_one_call_at_a_time() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    // Slow enough that it goes down in the middle.
    let agent = Agent::new(&pebble, &front, 20, &["--rate", "40 per 1s", "--first-delay", "2s"]);
    let process = agent.spawn();
    assert!(front.wait_for_orders(8, Duration::from_secs(60)), "orders are made");
    front.set(Mood::Down);
    let down = front.calls().len();
    // All that were on their way have failed by then, and the program knows.
    front.wait_for_calls(usize::MAX, Duration::from_secs(4));
    front.most_in_service();
    front.wait_for_calls(usize::MAX, Duration::from_secs(16));
    assert!(front.most_in_service() <= 1, "one call at a time tests it");
    let meanwhile = front.calls().len() - down;
    front.set(Mood::Fair);
    let ended = agent.ended(process);
    assert!(meanwhile <= 2 * AT_A_TIME, "{meanwhile} calls while it was down");
    ended.assert(0, "SUCCESS");
    assert_eq!((ended.count("renewed"), front.orders()), (20, 20), "{}", ended.text);
}

#[test]
fn a_ca_that_is_down_all_along_loses_nothing() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 20, &["--max-outage", "3s", "--first-delay", "1s"]);
    front.set(Mood::Down);
    let ended = agent.run();
    ended.assert(3, "DEFERRED");
    assert_eq!(ended.count("deferred"), 20, "{}", ended.text);
    assert!(ended.report["ended"].as_str().is_some_and(|why| why.contains("failing for 3s")), "{}", ended.report);
    // More urgent than all others, but these were there before.
    agent.expire(0..=0);
    front.set(Mood::Fair);
    let ended = agent.run();
    ended.assert(0, "SUCCESS");
    assert_eq!(ended.count("renewed"), 21, "{}", ended.text);
    let mut asked: Vec<String> = Vec::new();
    for name in front.order_calls().into_iter().filter_map(|call| call.domain) {
        if !asked.contains(&name) {
            asked.push(name);
        }
    }
    let place = asked.iter().position(|name| *name == domain(0)).expect("it is renewed");
    assert!(place >= AT_A_TIME, "{asked:?}");
}

#[test]
fn garbage_in_the_folder_stops_no_domain() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 2, &[]);
    fs::write(agent.path(3), "").expect("an empty file");
    fs::write(agent.path(4), "garbage").expect("a file");
    fs::create_dir(agent.path(5)).expect("a folder");
    std::os::unix::fs::symlink("/nowhere/at/all", agent.path(6)).expect("a link that cannot be read");
    fs::write(agent.path(7), certificate(&domain(7), 2100, (2101, 1))).expect("a certificate of the future");
    fs::write(agent.path(8), certificate(&domain(8), 2019, (2100, 1))).expect("a certificate that is good for longer");
    let ended = agent.run();
    ended.assert(1, "PARTIAL");
    assert_eq!((ended.count("renewed"), ended.count("unusable"), ended.count("not_due")), (3, 4, 1), "{}", ended.text);
    agent.connect(&pebble, 3).expect("a first certificate");
    assert_eq!(fs::read(agent.path(4)).expect("still there"), b"garbage");
    for (number, why) in [(4, "no certificate"), (5, "a folder"), (6, "cannot be read"), (7, "not valid before")] {
        let row = ended.row(number);
        assert!(row["reason"].as_str().is_some_and(|reason| reason.contains(why)), "{row}");
    }
}

#[test]
fn words_of_others_stay_in_their_line() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 1, &["--max-retries", "0"]);
    let certs = agent.folder.path().join("certs");
    fs::write(certs.join("two\nlines \u{1b}[31m| `of` it.pem"), certificate(&domain(2), 2019, (2020, 1)))
        .expect("writes");
    fs::write(certs.join("notes\r\u{202e}of mine"), "").expect("writes");
    let detail = "no\r\nCAUTION: \u{1b}]0;title\u{7} | `run` this \u{202e}";
    front.set(Mood::RefusesOrders { status: 400, kind: "rejectedIdentifier", detail, retry_after: None });
    let ended = agent.run();
    ended.assert(1, "FAILED");
    let markdown = fs::read_to_string(agent.folder.path().join("report.md")).expect("a report");
    for text in [&ended.text, &markdown] {
        let obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!text.contains(obeyed), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("lines") || line.starts_with("CAUTION")), "{text:?}");
    }
    assert!(ended.text.contains("WARN two lines"), "the log has the whole name: {}", ended.text);
    let rows = markdown.lines().filter(|line| line.starts_with("| ")).collect::<Vec<_>>();
    let columns = |row: &&str| row.replace("\\|", "").matches('|').count();
    assert_eq!((rows.len(), rows.iter().map(columns).max()), (4, Some(6)), "{markdown}");
}

#[test]
fn a_password_in_the_address_of_the_ca_is_refused_before_anything_is_kept() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let address = front.directory().replace("://", "://me:hunter2@");
    let agent = Agent::new(&pebble, &front, 1, &["--directory", &address]);
    let ended = agent.run();
    assert_eq!(ended.code, Some(2), "{}", ended.text);
    assert!(ended.text.contains("--directory holds") && !ended.text.contains("hunter2"), "{}", ended.text);
    assert_eq!(front.calls().len(), 0);
    assert_eq!(fs::read_dir(agent.folder.path()).expect("a folder").count(), 1, "the certificates, and nothing else");
}

#[test]
fn a_ca_that_takes_no_nonce_is_not_asked_without_an_end() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 20, &["--max-retries", "1", "--first-delay", "1s"]);
    let detail = "JWS has no anti-replay nonce that we know";
    front.set(Mood::RefusesNonces { detail });
    let ended = agent.run();
    ended.assert(3, "DEFERRED");
    let row = ended.row(1);
    assert_eq!((row["state"].as_str(), row["words"].as_str()), (Some("deferred"), Some(detail)), "{row}");
    // Twelve to find out, and one for each try of a domain that was not the one that found out.
    let asked = front.calls().into_iter().filter(|call| call.method == http::Method::POST).count();
    println!("measure no nonce is taken: domains=20 tries=2 signed_calls={asked} calls={}", front.calls().len());
    assert!((12..=12 + 2 * 20).contains(&asked), "{asked} calls");
    front.set(Mood::Fair);
    let ended = agent.run();
    ended.assert(0, "SUCCESS");
    assert_eq!((ended.count("renewed"), front.orders()), (20, 20), "{}", ended.text);
}

#[test]
fn a_ca_that_has_taken_no_nonce_for_too_long_is_given_up() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent =
        Agent::new(&pebble, &front, 2, &["--max-outage", "2s", "--max-retries", "100", "--first-delay", "500ms"]);
    front.set(Mood::RefusesNonces { detail: "no" });
    let ended = agent.run();
    ended.assert(3, "DEFERRED");
    assert!(ended.report["ended"].as_str().is_some_and(|why| why.contains("failing for 2s")), "{}", ended.report);
}
