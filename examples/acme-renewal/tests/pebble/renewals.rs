//! Twenty domains, renewed while three of ten nonces are refused.

use super::agent::Agent;
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
        assert_eq!(ended.row(number)["attempts"], 1, "a stale nonce is no try");
    }
    agent.assert_whole();
    let calls = front.calls().len();
    let again = agent.run();
    again.assert(0, "SUCCESS");
    assert_eq!((again.count("not_due"), front.calls().len()), (20, calls), "nothing is due, so nobody is called");
}
