//! Who is slowed down hears to what.

use crate::job::at;
use paceline_core::{Class, Concurrency, Cost, Event, Instant, Outcome, Pace, Pacer, PacerConfig, Request};

#[test]
fn a_refusal_tells_what_is_believed_now() {
    for (pace, learns) in [(Pace::Auto, true), (Pace::Aimd, false)] {
        let config = PacerConfig { pace, concurrency: Concurrency::AIMD, ..PacerConfig::default() };
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sound");
        let scope = pacer.scope("model");
        let fits = pacer.enqueue(Instant::ZERO, Request::new(&scope, Cost::request()));
        fits.expect("no limit is too small for it");
        let Some(Event::Granted { ticket, .. }) = pacer.poll_event() else { panic!("nothing stands in its way") };
        pacer.complete(at(0.1), ticket, Outcome::new(Class::Throttled));
        let snapshot = pacer.snapshot(at(0.1)).scopes.swap_remove(0);
        let rate = snapshot.estimate.map(|estimate| estimate.rate);
        let limit = snapshot.concurrency.current_limit;
        assert_eq!(rate.is_some(), learns);
        assert_eq!(pacer.poll_event(), Some(Event::LimitDecreased { scope: scope.clone(), limit, rate }), "{pace:?}");
    }
}
