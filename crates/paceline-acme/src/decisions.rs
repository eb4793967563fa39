//! One failure, one decision, for the agent too: it tells the durable scheduler of the failures that all faces are given
//! (`paceline-cli/tests/decisions`), and its domains go on as the items of `run` and `tasks`, but for the cases below.

use std::collections::BTreeMap;
use std::time::Duration;

use instant_acme::Error;

use self::cases::{Seen, by_pacer, by_scheduler, cases};
use crate::client::CallError;
use crate::errors::failure;

#[path = "../../paceline-cli/tests/decisions/cases.rs"]
mod cases;

/// A CA that takes no calls is given up for all domains together, after `--max-outage`. Before that a domain is over its retries,
/// and is left to the next run, which counts anew.
const UNREACHED: &str = "a domain has its retries in each run, whether its CA can be reached or not";

/// A request is signed for one nonce, so it counts once, and no flag of the agent says otherwise.
const SENT_ONCE: &str = "each request may be sent again";

/// No domain asks the CA for an order before the account may have one, and what waits for that has no deadline meanwhile.
const OF_THE_ACCOUNT: &str = "a limit of the account with a time is a used-up quota, which holds the CA";

/// The failures of which the agent decides otherwise: what it decides, and why.
fn otherwise() -> BTreeMap<&'static str, (Seen, &'static str)> {
    let seen = |counts, then: Result<u64, &str>, why| {
        (Seen { counts, then: then.map(Duration::from_secs).map_err(str::to_owned) }, why)
    };
    BTreeMap::from([
        ("no server took it", seen((1, 0), Ok(2), UNREACHED)),
        ("no server took it, retries used up", seen((4, 0), Err("max_retries"), UNREACHED)),
        ("no server took it, and its deadline comes first", seen((1, 0), Err("deadline"), UNREACHED)),
        ("a person decides about an unknown outcome", seen((1, 0), Ok(2), SENT_ONCE)),
        ("an unknown outcome fails for good", seen((1, 0), Ok(2), SENT_ONCE)),
        ("429, its hint ends after the deadline", seen((0, 1), Ok(12), OF_THE_ACCOUNT)),
    ])
}

#[tokio::test(start_paused = true)]
async fn the_agent_decides_as_run_and_tasks_do_but_for_these() {
    let mut otherwise = otherwise();
    let mut wrong = Vec::new();
    for case in &cases() {
        let reading = Box::new(case.reading.clone());
        let failed = failure(Error::Other(Box::new(CallError::Failed { status: None, reading })));
        let (agent, run) = (by_scheduler(case, failed).await, by_pacer(case));
        let is_known = match otherwise.remove(case.name) {
            Some((expected, why)) => (agent == expected && agent != run).then_some(()).ok_or(why),
            None => (agent == run).then_some(()).ok_or("no reason is known"),
        };
        if let Err(why) = is_known {
            wrong.push(format!("{} ({why}):\n  run   {run:?}\n  agent {agent:?}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(otherwise.is_empty(), "there are no such cases: {:?}", otherwise.keys());
}
