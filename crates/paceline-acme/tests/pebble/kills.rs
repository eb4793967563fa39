//! `kill -9` at random instants: no order is made twice but what was in progress, and no file is ever half-written.

use std::time::Duration;

use paceline::Rng;

use super::agent::Agent;
use super::front::Front;
use super::pebble::Pebble;

/// How long the program may take to make its next call.
const PATIENCE: Duration = Duration::from_secs(60);

const DOMAINS: usize = 20;

#[test]
fn killed_on_the_way_it_goes_on_with_the_same_orders() {
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, DOMAINS, &["--first-delay", "1s"]);
    let renewed = || (1..=DOMAINS).filter(|&number| agent.connect(&pebble, number).is_ok()).count();
    let mut logs = String::new();
    for calls in [60, 140, 220] {
        let process = agent.spawn();
        assert!(front.wait_for_calls(calls, PATIENCE), "calls are made");
        logs += &agent.kill(process);
        agent.assert_whole();
    }
    let ended = agent.run();
    ended.assert(0, "SUCCESS");
    assert_eq!(renewed(), DOMAINS);
    logs += &ended.text;
    // The CA asked for the answer to a challenge while no process was there to give it: such an order is no good any more.
    let failed = logs.matches("a new one is made").count();
    // What the CA made and the program did not write down: its answer was on its way when the program died.
    let lost = front.abandoned();
    let made = front.orders();
    println!("measure kill -9: domains={DOMAINS} kills=3 orders={made} on_their_way={lost} failed_meanwhile={failed}");
    assert!(made <= DOMAINS + lost + failed, "{made} orders, {lost} on their way at kills, {failed} failed: {logs}");
}

#[test]
fn killed_at_random_instants_it_leaves_whole_files() {
    let kills = if std::env::var_os("PACELINE_SOAK").is_some() { 50 } else { 8 };
    let seed = paceline::clock::wall().as_millis().unsigned_abs();
    let mut rng = Rng::new(seed);
    let pebble = Pebble::start();
    let front = Front::start(&pebble);
    let agent = Agent::new(&pebble, &front, DOMAINS, &["--first-delay", "1s"]);
    let mut rounds = 1;
    for _ in 0..kills {
        let mut process = agent.spawn();
        let calls = usize::try_from(rng.next_u64() % 120).expect("few");
        front.wait_for_calls(front.calls().len() + calls, Duration::from_secs(5));
        front.wait_for_calls(usize::MAX, Duration::from_micros(rng.next_u64() % 20_000));
        let has_ended = process.try_wait().expect("a child").is_some();
        agent.kill(process);
        agent.assert_whole();
        if has_ended {
            // Everything is renewed: it begins anew with what has expired.
            agent.expire(1..=DOMAINS);
            rounds += 1;
        }
    }
    println!("measure kill -9 at random: kills={kills} rounds={rounds} orders={} seed={seed}", front.orders());
    agent.run().assert(0, "SUCCESS");
    agent.assert_whole();
}
