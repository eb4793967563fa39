//! Numbers that no sensible caller or server gives: nothing panics, and nothing that must wait is let through.

use std::time::Duration;

use paceline_core::{
    Announcement, Class, Cost, Dimension, Event, Instant, LearntState, LevelState, LimitReport, LimitScope, Limits,
    Outcome, Pace, Pacer, PacerConfig, PacerState, PauseCause, PauseState, Quota, QuotaShape, RefillMode, Request, Rng,
    ScopeId, TakenState, Ticket, WindowState,
};

const PACES: [Pace; 4] = [Pace::Auto, Pace::Fixed, Pace::Aimd, Pace::None];

struct Attack {
    pacer: Pacer,
    rng: Rng,
    now: Instant,
    scopes: Vec<ScopeId>,
    out: Vec<Ticket>,
    waiting: Vec<Ticket>,
}

impl Attack {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let config = config(&mut rng);
        let mut pacer = Pacer::new(config, seed, Instant::ZERO).expect("a configuration that can be");
        let scopes = ["a", "b"].map(|name| pacer.scope(name)).to_vec();
        Self { pacer, rng, now: Instant::ZERO, scopes, out: Vec::new(), waiting: Vec::new() }
    }

    fn step(&mut self) {
        let scope = self.scopes[self.rng.next_u64() as usize % 2].clone();
        let one = (!self.rng.next_u64().is_multiple_of(3)).then_some(&scope);
        match self.rng.next_u64() % 12 {
            0..=4 => self.enqueue(&scope),
            5..=7 => self.complete(),
            8 => {
                let at = instant(&mut self.rng, self.now);
                self.pacer.hold_for(self.now, one, at, PauseCause::QuotaUsedUp);
                self.pacer.resume(self.now, one);
            }
            9 => {
                let announced = Announcement {
                    report: report(&mut self.rng),
                    ago: duration(&mut self.rng),
                    spent_since: units(&mut self.rng),
                };
                let state = self.state(&scope, announced);
                let since = duration(&mut self.rng);
                self.pacer.restore(self.now, &state, since).expect("the present version");
            }
            10 => {
                let config = config(&mut self.rng);
                self.pacer.reconfigure(self.now, config).expect("a configuration that can be");
            }
            _ => self.pass(),
        }
        self.drain();
        self.pacer.snapshot(self.now);
    }

    /// What a file may say that another program wrote.
    fn state(&mut self, scope: &ScopeId, announced: Announcement) -> PacerState {
        let rng = &mut self.rng;
        let rates = [f64::MIN_POSITIVE, 1e-9, 1e300, f64::MAX, 0.0, -1.0, f64::NAN, f64::INFINITY];
        let rate = rates[rng.next_u64() as usize % rates.len()];
        let tokens = Some(rates[rng.next_u64() as usize % rates.len()]);
        let learnt = Some(LearntState { rate, tokens, cap: Some(rng.next_u64() as u32), ago: duration(rng) });
        let shape = [QuotaShape::Sliding, QuotaShape::Fixed, QuotaShape::Bucket { burst: units(rng) }]
            [rng.next_u64() as usize % 3];
        let quota = Quota { dimension: Dimension::Requests, limit: units(rng), window: duration(rng), shape };
        let taken = (0..3).map(|_| TakenState { ago: duration(rng), units: units(rng) }).collect();
        let windows = vec![WindowState { quota, taken }];
        let closed =
            Some(PauseState { left: duration(rng).min(Duration::from_secs(1)), cause: PauseCause::ServerFails });
        let name = scope.name().to_string();
        let level = LevelState { name, windows, announced: vec![announced], learnt, closed, ..LevelState::default() };
        PacerState { account: level.clone(), scopes: vec![level], ..PacerState::default() }
    }

    fn enqueue(&mut self, scope: &ScopeId) {
        let rng = &mut self.rng;
        let cost = Cost::zero()
            .with(Dimension::Requests, units(rng))
            .with(Dimension::Tokens, units(rng))
            .with(Dimension::Named("points".into()), units(rng));
        let mut request = Request::new(scope, cost);
        request.deadline = (rng.next_u64().is_multiple_of(3)).then(|| instant(rng, self.now));
        request.not_before = (rng.next_u64().is_multiple_of(4)).then(|| instant(rng, self.now));
        request.priority = [i32::MIN, 0, i32::MAX][rng.next_u64() as usize % 3];
        request.arrival = (rng.next_u64().is_multiple_of(5)).then(|| units(rng));
        let asked = self.pacer.admit(self.now, &request);
        assert_eq!(asked, self.pacer.admit(self.now, &request), "a question changes nothing");
        if let Ok(ticket) = self.pacer.enqueue(self.now, request) {
            self.waiting.push(ticket);
        }
    }

    fn complete(&mut self) {
        let Some(ticket) = self.out.pop().or_else(|| self.waiting.pop()) else { return };
        let rng = &mut self.rng;
        if rng.next_u64().is_multiple_of(4) {
            self.pacer.cancel(self.now, ticket);
            return;
        }
        let mut outcome = Outcome::new(Class::ALL[rng.next_u64() as usize % Class::ALL.len()]);
        outcome.reach = [LimitScope::Item, LimitScope::Scope, LimitScope::Account][rng.next_u64() as usize % 3];
        if rng.next_u64().is_multiple_of(2) {
            outcome = outcome.with_hint(duration(rng), rng.next_u64().is_multiple_of(2));
        }
        outcome.long_period = rng.next_u64().is_multiple_of(4);
        outcome.limits = (0..rng.next_u64() % 3).map(|_| report(rng)).collect();
        outcome.usage = Some(Cost::zero().with(Dimension::Requests, units(rng)).with(Dimension::Tokens, units(rng)));
        self.pacer.complete(self.now, ticket, outcome);
        // It may have waited, as a ticket that is answered by mistake.
        self.pacer.cancel(self.now, ticket);
    }

    fn pass(&mut self) {
        self.now = match self.rng.next_u64() % 3 {
            // What is due in centuries never happens.
            0 => self.pacer.poll_timeout().filter(|due| due.as_nanos() < 1 << 62).unwrap_or(self.now).max(self.now),
            1 => self.now + Duration::from_millis(self.rng.next_u64() % 10_000),
            _ => self.now + Duration::from_secs(self.rng.next_u64() % 100_000),
        };
        self.pacer.handle_timeout(self.now);
    }

    fn drain(&mut self) {
        let mut events = 0;
        while let Some(event) = self.pacer.poll_event() {
            events += 1;
            assert!(events < 10_000, "no end of events");
            if let Event::Granted { ticket, .. } = event {
                self.out.push(ticket);
            }
        }
        let due = self.pacer.poll_timeout();
        self.pacer.handle_timeout(self.now);
        assert_eq!(self.pacer.poll_timeout(), due, "looking again changes nothing");
    }
}

fn units(rng: &mut Rng) -> u64 {
    [0, 1, 1, 1, 2, 1 << 47, u64::MAX / 2, u64::MAX][rng.next_u64() as usize % 8]
}

fn duration(rng: &mut Rng) -> Duration {
    let some = [0, 1, 1_000, 1_000_000_000, 60_000_000_000, u64::MAX];
    match rng.next_u64() as usize % 7 {
        6 => Duration::MAX,
        n => Duration::from_nanos(some[n]),
    }
}

fn instant(rng: &mut Rng, now: Instant) -> Instant {
    match rng.next_u64() % 4 {
        0 => Instant::ZERO,
        1 => Instant::from_nanos(u64::MAX),
        2 => now,
        _ => now + duration(rng),
    }
}

fn report(rng: &mut Rng) -> LimitReport {
    let dimension = [Dimension::Requests, Dimension::Tokens, Dimension::Named("points".into())]
        [rng.next_u64() as usize % 3]
        .clone();
    LimitReport {
        dimension,
        limit: Some(units(rng)),
        remaining: Some(units(rng)),
        reset: Some(duration(rng)),
        window: rng.next_u64().is_multiple_of(2).then(|| duration(rng)),
        restores: [RefillMode::AtOnce, RefillMode::Gradually, RefillMode::Unknown][rng.next_u64() as usize % 3],
    }
}

fn config(rng: &mut Rng) -> PacerConfig {
    let quotas = (0..rng.next_u64() % 3)
        .map(|_| {
            let limit = [1, 2, 1 << 48][rng.next_u64() as usize % 3];
            let window = [1, 1_000_000_000, 3_600_000_000_000, 366 * 86_400_000_000_000][rng.next_u64() as usize % 4];
            let dimension = [Dimension::Requests, Dimension::Tokens][rng.next_u64() as usize % 2].clone();
            let quota = Quota::sliding(dimension, limit, Duration::from_nanos(window));
            let shape = [QuotaShape::Sliding, QuotaShape::Fixed, QuotaShape::Bucket { burst: limit }]
                [rng.next_u64() as usize % 3];
            Quota { shape, ..quota }
        })
        .collect();
    let pace = PACES[rng.next_u64() as usize % PACES.len()];
    PacerConfig { limits: Limits { quotas, burst: None }, pace, ..PacerConfig::default() }
}

#[test]
fn no_number_breaks_the_pacer() {
    for seed in 0..60 {
        let mut attack = Attack::new(seed);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (0..300).for_each(|_| attack.step())));
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn a_start_is_more_than_0_and_at_most_a_million_calls_a_second() {
    for (start, fits) in [(0.0, false), (-1.0, false), (f64::NAN, false), (1e-9, true), (1e6, true), (1e6 + 1.0, false)]
    {
        let config = PacerConfig { start: Some(start), ..PacerConfig::default() };
        assert_eq!(Pacer::new(config, 1, Instant::ZERO).is_ok(), fits, "{start}");
    }
}

#[test]
fn no_call_in_flight_at_all_is_refused_by_the_name_of_its_setting() {
    let at_least_1 = "a whole number of at least 1";
    let config = PacerConfig::default;
    for (config, said) in [
        (config().with_places(0), ("places", "0", at_least_1)),
        (config().with_tier_places("chat", 1).with_tier_places("a/b", 0), ("places of a/b", "0", at_least_1)),
        (config().with_longest_call(Duration::ZERO), ("longest_call", "0s", "a duration of more than 0")),
    ] {
        let error = Pacer::new(config.clone(), 1, Instant::ZERO).expect_err("it cannot be");
        assert_eq!((&*error.key, &*error.value, error.expected), said);
        let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
        assert_eq!(pacer.reconfigure(Instant::ZERO, config), Err(error));
    }
}
