//! A server that refuses everything for a while and is well again: the rate that worked before is back soon.

use std::time::Duration;

use paceline_core::{
    Class, Cost, Event, Instant, Limits, Outcome, Pacer, PacerConfig, Quota, Request, ScopeId, Ticket,
};

use crate::job::{at, seconds};

const S: Duration = Duration::from_secs(1);

/// Three calls a second, each of which waits for 15 s at most and is answered after 50 ms.
struct Calls {
    pacer: Pacer,
    scope: ScopeId,
    asked: u32,
    out: Vec<(Instant, Ticket)>,
    now: Instant,
    refused: usize,
}

impl Calls {
    fn new(quotas: Vec<Quota>) -> Self {
        let config = PacerConfig { limits: Limits { quotas, burst: None }, ..PacerConfig::default() };
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
        let scope = pacer.scope("a");
        Self { pacer, scope, asked: 0, out: Vec::new(), now: at(0.0), refused: 0 }
    }

    /// Of 600 a minute, as configured.
    fn configured() -> Self {
        Self::new(vec![Quota::per_minute(600)])
    }

    /// Goes on for so many seconds. Gives the calls that pass.
    fn run(&mut self, time: f64, asks: impl Fn(f64) -> bool, mut refuses: impl FnMut() -> bool) -> usize {
        let (end, mut passed) = (seconds(self.now) + time, 0);
        while seconds(self.now) < end {
            let now = self.now;
            if now >= self.next_asked() {
                if asks(seconds(now)) {
                    let request = Request::new(&self.scope, Cost::request());
                    let _ = self.pacer.enqueue(now, Request { deadline: Some(now + 15 * S), ..request });
                }
                self.asked += 1;
            }
            let (answered, out) =
                std::mem::take(&mut self.out).into_iter().partition::<Vec<_>, _>(|(at, _)| *at <= now);
            self.out = out;
            for (_, ticket) in answered {
                let refuses = refuses();
                *(if refuses { &mut self.refused } else { &mut passed }) += 1;
                let class = if refuses { Class::Throttled } else { Class::Success };
                self.pacer.complete(now, ticket, Outcome::new(class));
            }
            self.pacer.handle_timeout(now);
            while let Some(event) = self.pacer.poll_event() {
                if let Event::Granted { ticket, .. } = event {
                    self.out.push((now + S / 20, ticket));
                }
            }
            let due = self.out.iter().map(|(at, _)| *at).chain(self.pacer.poll_timeout()).filter(|due| *due > now);
            self.now = due.chain([self.next_asked(), at(end)]).min().expect("one is due").max(now);
        }
        passed
    }

    fn next_asked(&self) -> Instant {
        at(f64::from(self.asked) / 3.0)
    }

    fn well(&mut self, time: f64) -> usize {
        self.run(time, |_| true, || false)
    }

    fn down(&mut self, time: f64) {
        assert_eq!(self.run(time, |_| true, || true), 0);
    }
}

/// 180 are asked for in that minute. After a long outage the call that tests the server leaves some seconds later.
#[test]
fn a_minute_after_an_outage_most_calls_pass() {
    for (well, down, least) in [
        (10.0, 90.0, 180),
        (30.0, 90.0, 180),
        (90.0, 40.0, 180),
        (90.0, 90.0, 180),
        (3_600.0, 90.0, 180),
        (3_600.0, 600.0, 140),
    ] {
        let mut calls = Calls::configured();
        calls.well(well);
        calls.down(down);
        let passed = calls.well(60.0);
        assert!(passed >= least, "{passed} after {well} and {down} s");
    }
}

#[test]
fn so_they_do_where_nothing_is_configured_and_the_rate_was_known_well() {
    for (well, down) in [(90.0, 40.0), (300.0, 100.0), (3_600.0, 90.0)] {
        let mut calls = Calls::new(Vec::new());
        calls.well(well);
        calls.down(down);
        let passed = calls.well(60.0);
        assert!(passed >= 150, "{passed} after {well} and {down} s");
    }
}

/// What passed in quiet hours is no measure of the rate that works.
#[test]
fn a_later_outage_after_quiet_hours_leaves_the_rate_too() {
    for hours in [1.0, 8.0] {
        let mut calls = Calls::configured();
        calls.well(90.0);
        calls.down(90.0);
        calls.well(60.0);
        calls.run(hours * 3_600.0, |now| now % 100.0 < 2.0, || false);
        calls.well(60.0);
        calls.down(90.0);
        let passed = calls.well(60.0);
        assert!(passed >= 150, "{passed} after {hours} quiet hours");
    }
}

/// The configured limit is far too high: a long window is used up, again and again.
#[test]
fn a_long_window_is_not_taken_for_an_outage_again_and_again() {
    let mut calls = Calls::configured();
    for hour in 0..8 {
        let mut left = 300;
        let passed = calls.run(
            3_600.0,
            |_| true,
            || {
                left -= 1;
                left < 0
            },
        );
        assert!(passed >= 290, "{passed} of 300 in hour {hour}");
    }
    assert!(calls.refused < 500, "{} of 2,400", calls.refused);
}

/// The next outage comes too soon to tell it from a window. A person can.
#[test]
fn a_person_who_opens_the_gate_says_that_the_rate_works_that_worked_before() {
    for opens_after in [0.0, 60.0] {
        let mut calls = Calls::new(Vec::new());
        calls.well(90.0);
        calls.down(40.0);
        calls.well(60.0);
        calls.down(90.0);
        calls.well(opens_after);
        calls.pacer.resume(calls.now, None);
        let passed = calls.well(60.0);
        assert!(passed >= 150, "{passed}, opened after {opens_after} s");
    }
}
