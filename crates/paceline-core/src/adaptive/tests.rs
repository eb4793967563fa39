//! Random operations on the learnt policies and their gate, and what must hold whatever happens.

use alloc::vec::Vec;

use super::*;
use proptest::test_runner::{Config, TestRunner};

use super::evidence::Event;
use super::rate::{AHEAD, FEW, PAY, Rate};
use crate::cost::Cost;
use crate::time::LATE;

/// What a scope does with its policies, without everything else that it has.
struct Machine {
    gate: Gate,
    learnt: AdaptiveRate,
    rng: Rng,
    now: Instant,
    last: u64,
    out: Vec<Flight>,
    /// The end of every wait of more than a second that the server asked for.
    hinted_until: Instant,
}

impl Machine {
    fn new(seed: u64, origin: Instant) -> Self {
        let mut gate = Gate::new();
        gate.begins(origin);
        Self {
            gate,
            learnt: AdaptiveRate::new(Start::Slow, Duration::from_secs(60)),
            rng: Rng::new(seed),
            now: origin,
            last: 0,
            out: Vec::new(),
            hinted_until: Instant::ZERO,
        }
    }

    /// In whole nanoseconds, so that a shift of time changes nothing.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        if let Some(reopening) = self.gate.silent(self.now, self.learnt.silence()) {
            self.learnt.reopened(self.now, &reopening);
        }
    }

    fn admit(&self) -> Admit {
        let in_flight = u32::try_from(self.out.len()).expect("few calls");
        let gate = self.gate.admit(self.now, Some(self.learnt.silence()));
        gate.strictest(self.learnt.admit(self.now, &self.gate, in_flight))
    }

    fn send(&mut self, tokens: u64) {
        self.last += 1;
        let in_flight = u32::try_from(self.out.len() + 1).expect("few calls");
        let canary = self.gate.sent(self.now, self.last);
        let (number, sent, spent) = (self.last, self.now, Cost::zero());
        let mut flight = Flight {
            number,
            era: 0,
            sent,
            probe: false,
            in_flight,
            tokens,
            spent,
            server_limited: false,
            item: self.last,
            caller: None,
            is_first: true,
            ..Flight::default()
        };
        flight.era = self.learnt.sent(self.now, &self.gate, &flight, canary);
        self.out.push(flight);
    }

    fn succeed(&mut self, index: usize) {
        let flight = self.out.swap_remove(index);
        self.learnt.succeeded(self.now, &flight);
        if let Some(reopening) = self.gate.passed(self.now, flight.number) {
            self.learnt.reopened(self.now, &reopening);
        }
    }

    fn refuse(&mut self, index: usize, refusal: Refusal, hint: Option<Duration>) {
        let flight = self.out.swap_remove(index);
        self.learnt.refused(self.now, &mut self.gate, &flight, self.last, refusal, &mut self.rng);
        if let Some(hint) = hint {
            self.gate.close_for_hint(self.now, hint);
            self.hinted_until = self.hinted_until.max(self.now + hint);
        }
    }

    /// When the rate lets the next call leave, and how long after the last that is.
    fn due(&self) -> Instant {
        self.learnt.schedule.due(self.learnt.decision.rate.gaps(), Instant::ZERO)
    }

    fn pause(&self) -> Duration {
        self.learnt.schedule.pause(self.learnt.decision.rate.gaps())
    }

    fn x(&self) -> f64 {
        self.learnt.decision.rate.per_second()
    }

    /// The rate in what the limit is believed to count.
    fn flow(&self) -> f64 {
        self.flow_of(self.x())
    }

    fn flow_of(&self, rate: f64) -> f64 {
        self.learnt.decision.unit.tokens(rate).unwrap_or(rate)
    }
}

/// A machine under random operations; every step checks the rules. Gives what was decided, for comparison.
fn run(seed: u64, origin: Instant, steps: u32) -> Vec<u64> {
    let mut machine = Machine::new(seed, origin);
    let mut dice = Rng::new(seed ^ 0xD1CE);
    // How long this server takes, how often it refuses: something different for each seed.
    let trip = 1 + dice.next_u64() % 300_000_000;
    let refuses = dice.unit() * 0.4;
    let mut decided = Vec::new();
    for _ in 0..steps {
        step(&mut machine, &mut dice, trip, refuses);
        sound(&machine);
        decided.push(machine.x().to_bits());
        decided.push(match machine.admit() {
            Admit::Now => 0,
            Admit::At { at, .. } => {
                assert!(at > machine.now, "an answer lies in the future");
                at.as_nanos() - origin.as_nanos()
            }
            Admit::OnRelease { .. } => {
                assert!(!machine.out.is_empty(), "nothing to wait for");
                1
            }
        });
    }
    decided
}

fn step(machine: &mut Machine, dice: &mut Rng, trip: u64, refuses: f64) {
    match dice.next_u64() % 8 {
        0 => machine.pass(Duration::from_nanos(dice.next_u64() % (4 * trip))),
        1 if dice.unit() < 0.01 => idle(machine),
        2..=4 => send(machine, dice),
        _ if machine.out.is_empty() => machine.pass(Duration::from_nanos(trip)),
        _ => {
            machine.pass(Duration::from_nanos(trip / 8));
            let index = (dice.next_u64() % machine.out.len() as u64) as usize;
            if dice.unit() >= refuses {
                return succeed(machine, index);
            }
            // Some servers refuse what is large.
            let largest = (0..machine.out.len()).max_by_key(|index| machine.out[*index].tokens);
            refuse(machine, dice, largest.filter(|_| trip.is_multiple_of(2)).unwrap_or(index));
        }
    }
}

/// Lets time pass until a call may leave, and sends it.
fn send(machine: &mut Machine, dice: &mut Rng) {
    let late = if dice.unit() < 0.1 { dice.next_u64() % 3_000_000 } else { 0 };
    while let Admit::At { at, .. } = machine.admit() {
        machine.pass(at - machine.now + Duration::from_nanos(late));
    }
    if !machine.admit().is_now() {
        return succeed(machine, 0);
    }
    let (before, usual) = ((machine.x(), machine.due(), machine.flow()), machine.flow_of(1.0));
    let start_ended = machine.learnt.decision.refusals.as_ref().is_some_and(|refusals| refusals.out.is_some());
    let (standing, was_tried) = (machine.learnt.decision.rate.standing(), machine.learnt.decision.rate.is_tried());
    let most = (core::f64::consts::LN_2 / 0.02).max(10.0 * 0.2 * before.0 / machine.learnt.decision.rate.payment());
    assert_eq!(machine.admit(), machine.admit(), "asking changes nothing");
    assert!(machine.now >= machine.hinted_until, "a call left in a pause that the server asked for");
    let open = machine.gate.is_open();
    assert!(!open || machine.now >= before.1, "before the rate allows it");
    // Large calls and small ones, but now and then for a while only one kind.
    let tokens = if machine.last / 512 % 4 == 3 { 7 } else { dice.next_u64() % 1_000 };
    machine.send(tokens);
    assert!(
        machine.learnt.decision.cap.limit().is_none_or(|cap| machine.out.len() <= cap.max(1) as usize) || !open,
        "more in flight than the cap"
    );
    // A call of few tokens makes the average call cheaper, so that more of them pass than at the lowest rate.
    let cheaper = usual / machine.flow_of(1.0);
    let clamped = machine.x() <= cheaper.max(1.0) / 60.0 + 1e-12;
    let is_tried = machine.learnt.decision.rate.is_tried();
    let trial_ended =
        was_tried && (!is_tried || machine.learnt.decision.rate.standing() < standing || machine.x() < before.0);
    if start_ended && (machine.x() < before.0 || machine.flow() < before.2) {
        // What was admitted when the start ended bounds the rate to come back to.
    } else if trial_ended {
        let most = (standing.max(before.0) + most) * cheaper.max(1.0);
        assert!(machine.x() <= most + 1e-9 || clamped, "a trial raised the rate to {}, not {most}", machine.x());
    } else {
        let grown = machine.flow() / before.2;
        assert!(grown >= 1.0 - 1e-9 || clamped, "a call that leaves slows down, to {grown}");
        let most = 1.0 + most / before.0;
        assert!(grown <= most + 1e-9 || clamped, "a call raised the rate by {grown} and not {most}");
    }
    let (next, pause) = (machine.due(), machine.pause());
    assert!(pause <= Duration::from_secs(60), "longer than every wait of our own choice");
    assert!(!open || next + LATE >= machine.now + pause, "late calls come in a burst");
}

fn succeed(machine: &mut Machine, index: usize) {
    let (x, canary) = (machine.x(), !machine.gate.is_open());
    machine.succeed(index);
    assert!(machine.x() == x || canary, "a success changed the rate");
}

fn refuse(machine: &mut Machine, dice: &mut Rng, index: usize) {
    let (x, cap, was_open) = (machine.x(), machine.learnt.decision.cap.limit(), machine.gate.is_open());
    let standing = machine.learnt.decision.rate.standing();
    let sampled = machine.learnt.decision.sampled;
    let old = machine.out[index].era != machine.learnt.era();
    let hint = (dice.unit() < 0.02).then(|| Duration::from_millis(1_001 + dice.next_u64() % 5_000));
    let refusal = match dice.unit() {
        unit if unit < 0.2 => Refusal::Overloaded,
        unit if unit < 0.3 => Refusal::Again,
        _ => Refusal::Throttled,
    };
    machine.refuse(index, refusal, hint);
    let switched = cap.is_none() && machine.learnt.decision.cap.limit().is_some();
    assert!(!old || machine.x() == x, "a refusal of a past epoch changed the rate");
    // One that ends a trial without a verdict goes back to the rate from before it, and cuts that.
    assert!(switched || machine.learnt.decision.rate.standing() <= standing, "a refusal raised the rate");
    // A rate far ahead of what is really admitted is brought back in one go.
    let least = 0.2 * really(machine, sampled).map_or(x, |really| x.min(AHEAD * really)) - 1e-12;
    assert!(machine.x() >= least || machine.x() == 1.0 / 60.0, "cut too far: {x} to {}", machine.x());
    assert!(was_open || !machine.gate.is_open(), "a refusal opened the gate");
}

/// What a refusal found to be really admitted a second, if it looked.
fn really(machine: &Machine, before: Option<(u64, Instant)>) -> Option<f64> {
    let (new, old) = (machine.learnt.decision.sampled?, before?);
    (new.1 > old.1).then(|| (new.0 - old.0) as f64 / (new.1 - old.1).as_secs_f64())
}

/// An hour without work raises nothing.
fn idle(machine: &mut Machine) {
    while !machine.out.is_empty() {
        succeed(machine, 0);
    }
    machine.pass(Duration::from_hours(1));
    let x = machine.x();
    if machine.gate.is_open() {
        // A trial that ends now goes on at the rate tried or goes back to the one from before it.
        let flow = machine.flow_of(machine.learnt.decision.rate.standing().max(x));
        machine.send(1);
        assert!(machine.flow() <= flow * (1.0 + 1e-9) || machine.x() == x, "idle time raised the rate");
    }
}

fn sound(machine: &Machine) {
    let x = machine.x();
    assert!(x.is_finite() && x >= 1.0 / 60.0, "rate {x}");
    let payment = machine.learnt.decision.rate.payment();
    assert!(payment > 0.0 && payment <= 4.0 * PAY, "payment {payment}");
    assert!(machine.learnt.decision.cap.limit().is_none_or(|cap| cap >= 1));
    machine.learnt.evidence.check(machine.last);
}

/// `PROPTEST_CASES` sets the number of seeds; one that fails is printed.
#[test]
fn whatever_happens_the_rules_hold() {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let checked = runner.run(&proptest::num::u64::ANY, |seed| {
        run(seed, Instant::ZERO, 1_000);
        Ok(())
    });
    checked.expect("the seed above replays it");
}

/// The start ends at a call of few tokens: calls become cheaper, and what was admitted bounds them in the same step.
#[test]
fn a_start_that_ends_where_tokens_count_bounds_the_tokens() {
    run(14_175_738_082_581_763_138, Instant::ZERO, 1_000);
}

/// A deeper trial ends at the lowest rate, at a call that makes the average call cheaper.
#[test]
fn a_trial_at_the_lowest_rate_goes_no_deeper() {
    run(16_054_139_662_053_598_990, Instant::ZERO, 1_000);
}

/// A trial goes back to a rate from before it that dearer calls have brought below the lowest.
#[test]
fn a_trial_goes_back_to_no_less_than_the_lowest_rate() {
    run(13_499_870_310_614_913_930, Instant::ZERO, 1_000);
}

/// A closure ends in a trial, so that the rate that it goes back to was measured.
#[test]
fn a_trial_goes_back_to_what_was_measured_since() {
    run(13_351_572_498_276_071_437, Instant::ZERO, 1_000);
}

/// The gate opens in an hour without work, so that the next call may leave at once: the rate held nothing back.
#[test]
fn a_gate_that_opens_in_idle_time_raises_nothing() {
    run(5_609_830_417_854_778_117, Instant::ZERO, 1_000);
}

#[test]
fn the_rules_are_met_while_tokens_count_too() {
    let in_tokens = |seed| {
        let mut machine = Machine::new(seed, Instant::ZERO);
        let mut dice = Rng::new(seed);
        let of_steps = (0..1_000).filter(|_| {
            step(&mut machine, &mut dice, 20_000_000, 0.2);
            machine.learnt.decision.unit.tokens(1.0).is_some()
        });
        of_steps.count()
    };
    let steps: Vec<usize> = (0..20).map(in_tokens).collect();
    let often = steps.iter().filter(|steps| **steps > 100).count();
    assert!(often > 10, "{steps:?}");
}

#[test]
fn the_same_inputs_give_the_same_answers_at_any_hour() {
    for seed in 0..8 {
        let one = run(seed, Instant::ZERO, 2_000);
        assert!(one == run(seed, Instant::ZERO, 2_000), "seed {seed}");
        let later = Instant::ZERO + Duration::from_hours(1_000);
        assert!(one == run(seed, later, 2_000), "seed {seed}, later");
    }
}

/// A server that lets `window` calls pass and then asks for ten seconds, met at a thousand a second.
fn rate_after_hint(window: u64, wait: Duration) -> f64 {
    let mut machine = Machine::new(1, Instant::ZERO);
    machine.learnt.decision.rate = Rate::new(Start::At(1_000.0), Duration::from_secs(60));
    let mut dice = Rng::new(1);
    while machine.last < window {
        machine.pass(Duration::from_millis(1));
        send(&mut machine, &mut dice);
        succeed(&mut machine, 0);
    }
    machine.pass(Duration::from_secs(1));
    machine.send(1);
    machine.pass(Duration::from_millis(1));
    machine.refuse(0, Refusal::Throttled, Some(wait));
    machine.pass(wait);
    machine.send(1);
    machine.succeed(0);
    machine.x()
}

#[test]
fn a_short_first_hint_gives_the_rate_that_a_window_sustains_and_a_long_one_nothing() {
    let sustained = rate_after_hint(200, Duration::from_secs(10));
    assert!((17.0..19.0).contains(&sustained), "{sustained}");
    assert!(rate_after_hint(200, Duration::from_mins(1)) > 100.0);
    assert!(rate_after_hint(20, Duration::from_secs(10)) > 100.0, "too few to say");
}

#[test]
fn a_call_that_left_before_an_epoch_says_nothing_about_it() {
    let mut evidence = Evidence::new();
    let at = |ms| Instant::ZERO + Duration::from_millis(ms);
    for number in 1..=5 {
        evidence.sent(at(0), number, true);
    }
    let before = evidence.era();
    evidence.was_refused(at(1), 1, at(0));
    assert_eq!(evidence.refused(before, 4), Event::Opens { run: 0 });
    evidence.sent(at(2), 6, true);
    evidence.sent(at(2), 7, true);
    let during = evidence.era();
    evidence.was_refused(at(500), 7, at(2));
    assert_eq!(evidence.refused(before, 5), Event::Belongs { all_refused: false });
    assert_eq!(evidence.refused(during, 0), Event::Opens { run: 1 });
    assert_eq!(evidence.admitted(), 5);
}

#[test]
fn a_window_admits_the_same_number_at_another_rate() {
    let learnt = AdaptiveRate::new(Start::At(10.0), Duration::from_secs(60));
    let few = FEW - 1.0;
    for (n, before, is_window) in [
        (100.0, (100.0, 20.0), true),
        (109.0, (100.0, 20.0), true),
        (92.0, (100.0, 5.0), true),
        (111.0, (100.0, 20.0), false),
        (90.0, (100.0, 20.0), false),
        (100.0, (100.0, 11.0), false),
        (100.0, (100.0, 9.0), false),
        (few, (few, 20.0), false),
    ] {
        assert_eq!(learnt.decision.is_window(n, before), is_window, "{n} after {before:?}");
    }
}
