//! One lane, one order: items are sent in the order of the input.

use std::time::Duration;

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
        child.wait().expect("it ends");
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
