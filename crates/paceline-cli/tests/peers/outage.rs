//! A server that is out of order for six seconds in the middle of a job: few calls are wasted on it, one at a time, no
//! item pays for it, and the job is back at its pace soon after.

use std::time::Duration;

use super::counting::Counting;
use super::job::Job;
use super::measure;
use crate::bounded::TestBound;

const ITEMS: usize = 6_000;
const OUTAGE: std::ops::Range<Duration> = Duration::from_secs(2)..Duration::from_secs(8);

/// Calls of the first moment: those in flight when it broke, and those that left before the breaker had seen enough.
const NOTICED_WITHIN: Duration = Duration::from_secs(1);

#[test]
fn an_outage_costs_few_calls_and_no_item() {
    let _bound = TestBound::new();
    let counting = Counting::with_outage(Duration::from_millis(20), OUTAGE);
    let flags = ["--concurrency", "20", "--max-retries", "1"];
    let job = Job::new(ITEMS, &format!("http://{}/v1", counting.address()), &flags);
    let ended = job.run();
    let refused = counting.refused();
    let back = back_at_full_rate(&counting.answers());
    let bar = if measure::soak() && back > Duration::from_secs(5) { "MISSED" } else { "met" };
    measure::say(&format!(
        "outage: items={ITEMS} sends={} during_outage={} full_rate_after={:.1}s bar=5s {bar} seconds={:.1}",
        counting.arrivals(),
        refused.len(),
        back.as_secs_f64(),
        ended.seconds,
    ));
    job.assert_complete(&ended);
    assert!(refused.len() <= 300, "{} calls during the outage", refused.len());
    let late: Vec<_> = refused.iter().filter(|call| call.at > NOTICED_WITHIN && call.others > 0).collect();
    assert!(late.is_empty(), "probes go one at a time: {late:?}");
}

/// How long after the outage the first second begins that has nine tenths of the answers of the second before it broke.
fn back_at_full_rate(answers: &[Duration]) -> Duration {
    let within =
        |from: Duration| answers.iter().filter(|at| (from..from + Duration::from_secs(1)).contains(*at)).count();
    let full = within(OUTAGE.start - Duration::from_secs(1));
    let mut seconds = (0..).map(|tenths| Duration::from_millis(100 * tenths));
    let back = |after: &Duration| within(OUTAGE.end + *after) * 10 >= full * 9;
    seconds.find(|after| back(after) || *after > Duration::from_secs(60)).unwrap_or_default()
}
