//! What a pacer is told about its limits, it may use, and no more than that.

use std::time::Duration;

use paceline_core::{
    Class, Cost, Dimension, Event, Instant, Limits, Outcome, Pace, Pacer, PacerConfig, Quota, Request, Ticket,
};

use crate::job::at;

const S: Duration = Duration::from_secs(1);

fn fixed(quotas: Vec<Quota>) -> Pacer {
    let config = PacerConfig { limits: Limits { quotas, burst: None }, pace: Pace::Fixed, ..PacerConfig::default() };
    Pacer::new(config, 1, Instant::ZERO).expect("sensible")
}

fn granted(pacer: &mut Pacer) -> Vec<Ticket> {
    let granted = |event| match event {
        Event::Granted { ticket, .. } => Some(ticket),
        _ => None,
    };
    std::iter::from_fn(|| pacer.poll_event()).filter_map(granted).collect()
}

/// Calls that pass within a moment when each ends at once with that usage.
fn passes(quotas: Vec<Quota>, reserved: &Cost, usage: &Cost) -> usize {
    let mut pacer = fixed(quotas);
    let scope = pacer.scope("a");
    for sent in 0..1_000 {
        let ticket = pacer.enqueue(at(1.0), Request::new(&scope, reserved.clone())).expect("fits");
        if granted(&mut pacer).is_empty() {
            return sent;
        }
        pacer.complete(at(1.0), ticket, Outcome::new(Class::Success).with_usage(usage.clone()));
    }
    1_000
}

#[test]
fn usage_that_names_tokens_only_gives_no_request_back() {
    let hourly = Quota::sliding(Dimension::Requests, 100, 3_600 * S);
    let points = Dimension::Named("points".into());
    let reserved = Cost::request().with(Dimension::Tokens, 200).with(points.clone(), 2);
    let tokens = Cost::zero().with(Dimension::Tokens, 120);
    assert_eq!(passes(vec![hourly.clone()], &reserved, &tokens), 100);
    assert_eq!(passes(vec![Quota { dimension: points.clone(), ..hourly.clone() }], &reserved, &tokens), 50);
    let of_tokens = Quota { dimension: Dimension::Tokens, limit: 1_000, ..hourly };
    assert_eq!(passes(vec![of_tokens], &reserved, &tokens), 7, "7 used 840, and 200 do not fit");
}

#[test]
fn what_usage_names_as_zero_is_given_back() {
    let hourly = Quota::sliding(Dimension::Requests, 100, 3_600 * S);
    let reserved = Cost::request().with(Dimension::Tokens, 200);
    let no_call = Cost::zero().with(Dimension::Requests, 0);
    assert_eq!(passes(vec![hourly.clone()], &reserved, &no_call), 1_000);
    let tokens = Quota { dimension: Dimension::Tokens, ..hourly };
    let more = Quota { limit: 1_000, ..tokens };
    assert_eq!(passes(vec![more.clone()], &reserved, &no_call), 5, "of tokens it says nothing");
    assert_eq!(passes(vec![more], &reserved, &reserved.free()), 1_000);
}
