//! Twenty domains, renewed while three of ten nonces are refused.

use std::fs;

use super::agent::{Agent, certificate, domain};
use super::front::Front;
use super::pebble::Pebble;

#[test]
fn twenty_domains_are_renewed_with_an_order_each() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 20, &[]);
    assert!(agent.connect(&pebble, 1).is_err(), "what it began with is good for nothing");
    let ended = agent.run();
    ended.assert(0, "SUCCESS");
    assert_eq!(ended.count("renewed"), 20, "{}", ended.text);
    assert_eq!(front.orders(), 20);
    for number in 1..=20 {
        agent.connect(&pebble, number).unwrap_or_else(|why| panic!("d{number:02}: {why}"));
        assert_eq!(ended.row(number)["attempts"], 1, "a stale nonce is no try: {}", ended.text);
    }
    agent.assert_whole();
    let calls = front.calls().len();
    let again = agent.run();
    again.assert(0, "SUCCESS");
    assert_eq!((again.count("not_due"), front.calls().len()), (20, calls), "nothing is due, so no server is called");
}

#[test]
fn files_with_the_longest_names_are_renewed_too() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, 0, &[]);
    let certs = agent.folder.path().join("certs");
    for (number, length) in [(1, 242), (2, 243), (3, 251)] {
        let content = certificate(&domain(number), 2019, (2020, 1));
        fs::write(certs.join("x".repeat(length) + ".pem"), content).expect("writes");
    }
    let ended = agent.run();
    ended.assert(0, "SUCCESS");
    assert_eq!((ended.count("renewed"), front.orders()), (3, 3), "{}", ended.text);
    agent.assert_whole();
    assert_eq!(fs::read_dir(&certs).expect("the folder").count(), 6, "each with its old version");
}
