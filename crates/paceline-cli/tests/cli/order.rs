//! One lane, one order: items are sent in the order of the input.

use std::time::Duration;

use crate::bounded::Bounded;
use crate::support::{Arrival, Job, Reply, Server, finish, start};

const ITEMS: usize = 40;

fn number(arrival: &Arrival) -> usize {
    arrival.item.strip_prefix("item-").and_then(|n| n.parse().ok()).expect("an item of the job")
}

/// That a run sent these, each right after the one before it in the input.
fn assert_in_order(arrivals: &[Arrival], what: &str) {
    let sent: Vec<usize> = arrivals.iter().map(number).collect();
    assert!(sent.windows(2).all(|pair| pair[1] == pair[0] + 1), "{what}: {sent:?}");
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn one_at_a_time_sends_in_the_order_of_the_input() {
    for round in 0..40 {
        let server = Server::new(|_| Reply::ok());
        let job = Job::new(ITEMS);
        let (code, log) = finish(job.run(&server).args(["--concurrency", "1", "--pace", "fixed"]));
        assert_eq!(code, 0, "{log}");
        assert_in_order(&server.arrivals(), &format!("round {round}"));
    }
}

#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn one_at_a_time_goes_on_in_the_order_of_the_input_after_a_kill() {
    for round in 0..20 {
        let server = Server::new(|_| Reply::ok().after(Duration::from_millis(1)));
        let job = Job::new(ITEMS);
        let run = || {
            let mut command = job.run(&server);
            command.args(["--concurrency", "1", "--pace", "fixed"]);
            command
        };
        let mut child = start(&mut run());
        server.wait_for(1 + round);
        child.kill().expect("it runs");
        child.ended();
        let before = server.count();
        let (code, log) = finish(&mut run());
        assert_eq!(code, 0, "{log}");
        let arrivals = server.arrivals();
        // What was on its way when the process died arrives among the others or not at all.
        assert_in_order(&arrivals[..before], &format!("round {round}, killed"));
        assert_in_order(&arrivals[before..], &format!("round {round}, resumed"));
        assert_eq!(server.by_item().len(), ITEMS);
    }
}

/// Its time comes while a thousand others, all claimed before, wait for their permits.
#[test]
#[cfg_attr(not(feature = "peers"), ignore = "takes seconds: scripts/test runs it")]
fn what_is_due_again_leaves_before_what_is_new() {
    let server = Server::new(|arrival| match (number(arrival), arrival.before) {
        (0, 0) => Reply::error(503, "unavailable").with_header("retry-after", 1),
        _ => Reply::ok(),
    });
    let job = Job::new(1_500);
    let mut child = start(job.run(&server).args(["--limit", "60 per 1s"]));
    server.wait_until(|seen| seen.iter().any(|arrival| arrival.before == 1));
    child.kill().expect("it runs");
    child.ended();
    // One quarter of the thousand had to leave first.
    assert!(server.count() < 200, "{}", server.count());
}

/// The items of a job of which the first so many are never answered, so that what they leave of `--concurrency` is one place.
const STUCK: usize = 3;

#[test]
fn several_at_a_time_go_on_in_the_order_of_the_input_also_after_a_kill() {
    let server = Server::new(|arrival| match number(arrival) {
        0..STUCK => Reply::ok().never(),
        _ => Reply::ok(),
    });
    let job = Job::new(ITEMS);
    let run = || {
        let mut command = job.run(&server);
        command.args(["--concurrency", &(STUCK + 1).to_string(), "--pace", "fixed"]);
        start(&mut command)
    };
    let all_arrived = |seen: &[Arrival]| seen.iter().any(|arrival| number(arrival) == ITEMS - 1);
    let mut child = run();
    server.wait_for(ITEMS / 2);
    child.kill().expect("it runs");
    child.ended();
    let before = server.count();
    let mut child = run();
    server.wait_until(|seen| all_arrived(&seen[before..]));
    child.kill().expect("it runs");
    child.ended();
    let arrivals = server.arrivals();
    // Which of the first arrives first is up to the network; behind them one call leaves when the one before it has ended.
    let behind = |seen: &[Arrival]| seen.iter().filter(|arrival| number(arrival) >= STUCK).cloned().collect::<Vec<_>>();
    let (killed, resumed) = (behind(&arrivals[..before]), behind(&arrivals[before..]));
    assert_in_order(&killed, "killed");
    assert_in_order(&resumed, "resumed");
    assert_eq!(number(&killed[0]), STUCK);
    assert!(number(&resumed[0]) <= STUCK + killed.len(), "none is left out");
}
