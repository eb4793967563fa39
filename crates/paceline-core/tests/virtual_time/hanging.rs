//! Places for calls in flight, where some hosts accept calls and never answer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use crate::job::{at, seconds};
use paceline_core::{
    Admit, Class, Concurrency, Cost, Event, Instant, Outcome, Pace, Pacer, PacerConfig, Request, ScopeAnswers, Ticket,
};

const S: Duration = Duration::from_secs(1);

/// Far beyond the end of every job here.
const NEVER: Duration = Duration::from_secs(600);

/// A host, its calls, and how long it takes for one.
#[derive(Clone, Copy)]
struct Host {
    latency: Duration,
    calls: usize,
    /// It answers no call that leaves after so many seconds.
    hangs_from: f64,
    /// After so long a call without an answer fails.
    timeout: Duration,
}

impl Host {
    const fn new(millis: u64, calls: usize) -> Self {
        Self { latency: Duration::from_millis(millis), calls, hangs_from: f64::INFINITY, timeout: NEVER }
    }
}

/// What became of the calls of a host.
#[derive(Clone, Copy, Default)]
struct Served {
    answered: usize,
    /// When the last one was, in seconds.
    last: f64,
    in_flight: u32,
    /// The most that were in flight.
    peak: u32,
}

/// The calls of all hosts in turn.
fn in_turn(hosts: &[Host]) -> Vec<usize> {
    let rounds = hosts.iter().map(|host| host.calls).max().unwrap_or(0);
    (0..rounds).flat_map(|round| (0..hosts.len()).filter(move |host| round < hosts[*host].calls)).collect()
}

/// Serves the calls of hosts, in that order, for 500 s.
fn run(pace: Pace, places: u32, hosts: &[Host], order: &[usize]) -> Vec<Served> {
    let concurrency = Concurrency::Fixed { max: places };
    let config = PacerConfig { concurrency, pace, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let mut calls: BTreeMap<Ticket, usize> = BTreeMap::new();
    for host in order {
        let scope = pacer.scope(&host.to_string());
        calls.insert(pacer.enqueue(Instant::ZERO, Request::new(&scope, Cost::request())).expect("fits"), *host);
    }
    let mut ends: BinaryHeap<Reverse<(Instant, Ticket)>> = BinaryHeap::new();
    let mut served = vec![Served::default(); hosts.len()];
    let mut now = Instant::ZERO;
    while now < at(500.0) {
        while let Some(event) = pacer.poll_event() {
            if let Event::Granted { ticket, .. } = event {
                let (host, served) = (hosts[calls[&ticket]], &mut served[calls[&ticket]]);
                served.in_flight += 1;
                served.peak = served.peak.max(served.in_flight);
                let latency = if now < at(host.hangs_from.min(500.0)) { host.latency } else { host.timeout };
                ends.push(Reverse((now + latency, ticket)));
            }
        }
        let end = ends.peek().map(|Reverse((end, _))| *end);
        let Some(next) = pacer.poll_timeout().into_iter().chain(end).min() else { break };
        now = now.max(next);
        match ends.peek().copied().filter(|Reverse((end, _))| *end <= now) {
            Some(Reverse((_, ticket))) => {
                ends.pop();
                let hangs = hosts[calls[&ticket]].hangs_from == 0.0;
                let class = if hangs { Class::Transient } else { Class::Success };
                let _ = pacer.complete(now, ticket, Outcome::new(class));
                let host = &mut served[calls[&ticket]];
                (host.in_flight, host.answered, host.last) = (host.in_flight - 1, host.answered + 1, seconds(now));
            }
            None => pacer.handle_timeout(now),
        }
    }
    served
}

/// Seconds until all calls of these hosts were answered.
fn last(served: &[Served], hosts: &[Host]) -> f64 {
    let end =
        |(served, host): (&Served, &Host)| if served.answered == host.calls { served.last } else { f64::INFINITY };
    served.iter().zip(hosts).map(end).fold(0.0, f64::max)
}

/// Three of twenty hosts never answer, or stop answering. The others have the places that these leave, as if there were five.
#[test]
fn hosts_that_hang_leave_places_to_the_others() {
    let hosts: Vec<Host> = (0..20).map(|n| Host::new(100 + 10 * n, 100)).collect();
    for (pace, hangs_from) in [(Pace::Auto, 0.0), (Pace::None, 0.0), (Pace::Auto, 5.0), (Pace::None, 5.0)] {
        let alone = run(pace, 5, &hosts[3..], &in_turn(&hosts[3..]));
        let mut hosts = hosts.clone();
        hosts[..3].iter_mut().for_each(|host| host.hangs_from = hangs_from);
        let beside = run(pace, 8, &hosts, &in_turn(&hosts));
        let (beside, alone) = (last(&beside[3..], &hosts[3..]), last(&alone, &hosts[3..]));
        assert!(beside <= 1.3 * alone, "{pace:?} {hangs_from}: {beside} s beside three that hang, {alone} s alone");
    }
}

/// Twelve hosts that hang take all ten places once. Then they are tested, and the others have their places.
#[test]
fn hosts_whose_calls_ended_in_vain_take_few_places_together() {
    let (works, silent) = (Host::new(200, 100), Host { hangs_from: 0.0, timeout: 10 * S, ..Host::new(0, 40) });
    let hosts: Vec<Host> = [silent; 12].into_iter().chain([works; 10]).collect();
    for pace in [Pace::Auto, Pace::None] {
        let served = run(pace, 10, &hosts, &in_turn(&hosts));
        let end = last(&served[12..], &hosts[12..]);
        assert!(end < 60.0, "{pace:?}: 1,000 calls of 200 ms with six places after the first 10 s, and not {end} s");
        let tested = served[..12].iter().filter(|host| host.answered > 1).count();
        assert_eq!(tested, 12, "{pace:?}: each is tested, and all have the places when the others have ended");
    }
}

/// The calls of the host that hangs come first. The rate of a new scope grows with its answers, so the others come in time.
#[test]
fn a_host_that_hangs_and_comes_first_leaves_places_to_the_others() {
    let mut hosts: Vec<Host> = (0..20).map(|n| Host::new(100 + 10 * n, 100)).collect();
    hosts[0].hangs_from = 0.0;
    let host_by_host: Vec<usize> = (0..20 * 100).map(|n| n / 100).collect();
    let served = run(Pace::Auto, 4, &hosts, &host_by_host);
    assert!(last(&served[1..], &hosts[1..]) < 150.0, "19 x 100 calls of 200 ms with three places are 127 s");
    assert_eq!(served[0].peak, 4, "when the others have ended");
}

#[test]
fn a_scope_alone_uses_all_places_before_its_first_answer() {
    let hosts = [Host::new(60_000, 300)];
    assert_eq!(run(Pace::None, 64, &hosts, &in_turn(&hosts))[0].last, 300.0, "five rounds of a minute");
}

#[test]
fn a_slow_model_beside_a_fast_one_loses_a_part_of_one_round() {
    let hosts = [Host::new(60_000, 250), Host::new(200, 2_000)];
    for pace in [Pace::Auto, Pace::None] {
        let alone = run(pace, 50, &hosts[1..], &in_turn(&hosts[1..]))[0].last;
        let served = run(pace, 64, &hosts, &in_turn(&hosts));
        assert!(served[1].last < 1.1 * alone, "{pace:?}: the fast one takes {} s, alone {alone} s", served[1].last);
        assert!(served[0].answered == 250 && served[0].last < 260.0, "{pace:?}: the slow one {} s", served[0].last);
    }
}

#[test]
fn scopes_that_answer_share_all_places() {
    let hosts = [Host::new(200, 400), Host::new(200, 400), Host::new(200, 400)];
    let served = run(Pace::None, 12, &hosts, &in_turn(&hosts));
    assert!(last(&served, &hosts) < 20.5, "1,200 calls of 200 ms with 12 places are 20 s");
}

/// A caller that keeps its own queue, as the scheduler of durable work does, asks for one call at a time and tries another scope
/// when it gets none.
#[test]
fn a_caller_with_a_queue_of_its_own_gives_a_scope_that_hangs_no_place_of_the_others() {
    let concurrency = Concurrency::Fixed { max: 2 };
    let config = PacerConfig { concurrency, pace: Pace::None, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let (hangs, works) = (pacer.scope("hangs"), pacer.scope("works"));
    let mut ask = |scope| pacer.enqueue(Instant::ZERO, Request::new(scope, Cost::request())).expect("fits");
    let (_, mut working) = (ask(&hangs), ask(&works));
    assert!(pacer.poll_event().is_some() && pacer.poll_event().is_some());
    for n in 1..20 {
        let now = at(0.1 * f64::from(n));
        pacer.complete(now, working, Outcome::new(Class::Success));
        let first = pacer.enqueue(now, Request::new(&hangs, Cost::request())).expect("fits");
        assert_eq!(pacer.poll_event(), None, "a call of the other ended a moment ago");
        assert!(matches!(pacer.admit(now, &Request::new(&works, Cost::request())), Admit::Now));
        pacer.cancel(now, first);
        working = pacer.enqueue(now, Request::new(&works, Cost::request())).expect("fits");
        assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket: working, probe: false }));
    }
    pacer.complete(at(2.0), working, Outcome::new(Class::Success));
    let ticket = pacer.enqueue(at(2.0), Request::new(&hangs, Cost::request())).expect("fits");
    assert_eq!((pacer.poll_event(), pacer.poll_timeout()), (None, Some(at(4.0))), "two seconds after the other");
    pacer.handle_timeout(at(4.0));
    assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket, probe: false }));
}

/// The items of a host that hangs come first, and so many that the caller sees no other before it has looked for a while.
#[test]
fn a_scope_that_hangs_and_is_the_only_known_one_leaves_places_where_others_may_come() {
    let concurrency = Concurrency::Fixed { max: 8 };
    let config = PacerConfig { concurrency, pace: Pace::None, ..PacerConfig::default() };
    let in_flight = |expects: bool, other_at: f64| {
        let mut pacer = Pacer::new(config.clone(), 1, Instant::ZERO).expect("sensible");
        if expects {
            pacer.expect_scopes();
        }
        let (hangs, works) = (pacer.scope("hangs"), pacer.scope("works"));
        let mut working = 0;
        // The first call leaves after three seconds: none was due before.
        for tenth in 30..90 {
            let now = at(0.1 * f64::from(tenth));
            let mut leaves = |scope| {
                let ticket = pacer.enqueue(now, Request::new(scope, Cost::request())).expect("fits");
                let granted = pacer.poll_event().is_some();
                if !granted {
                    pacer.cancel(now, ticket);
                }
                granted
            };
            for _ in 0..8 {
                leaves(&hangs);
            }
            working += u32::from(0.1 * f64::from(tenth) >= other_at && leaves(&works));
        }
        (working, pacer.snapshot(at(9.0)).account.concurrency.in_flight)
    };
    assert_eq!(in_flight(false, 4.5), (0, 8), "it took all places at once");
    let (working, _) = in_flight(true, 4.5);
    assert!(working > 0, "the other has places when it comes");
    assert_eq!(in_flight(true, 100.0), (0, 4), "and where none comes, half of the places wait for one that answers");
}

/// Calls of a caller that keeps its own queue, as the scheduler of durable work does: whenever a place is free it asks for one
/// call of each host in turn. The host, when the call came, and when it left; of those that left within 300 s.
fn kept_outside(hosts: &[Host], arrivals: &[(f64, usize)]) -> Vec<(usize, f64, f64)> {
    kept_after(hosts, arrivals, |_| ScopeAnswers::Unknown)
}

/// The same after a start, where so much is known of each host.
fn kept_after(
    hosts: &[Host],
    arrivals: &[(f64, usize)],
    known: impl Fn(usize) -> ScopeAnswers,
) -> Vec<(usize, f64, f64)> {
    let config =
        PacerConfig { concurrency: Concurrency::Fixed { max: 10 }, pace: Pace::None, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    pacer.expect_scopes();
    for host in 0..hosts.len() {
        let scope = pacer.scope(&host.to_string());
        pacer.recall_answers(Instant::ZERO, &scope, known(host));
    }
    let mut waiting: Vec<std::collections::VecDeque<f64>> = vec![Default::default(); hosts.len()];
    let (mut left, mut in_flight, mut next) = (Vec::new(), Vec::new(), 0);
    for tenth in 0..3_000 {
        let now = 0.1 * f64::from(tenth);
        let came = arrivals.iter().filter(|(came, _)| (now - 0.05..now + 0.05).contains(came));
        came.for_each(|(came, host)| waiting[*host].push_back(*came));
        in_flight.retain(|(ticket, end, class): &(Ticket, f64, Class)| {
            let lasts = *end > now;
            if !lasts {
                let _ = pacer.complete(at(now), *ticket, Outcome::new(*class));
            }
            lasts
        });
        while pacer.poll_event().is_some() {}
        for _ in 0..2 * hosts.len() {
            next = (next + 1) % hosts.len();
            let Some(came) = waiting[next].front().copied() else { continue };
            let scope = pacer.scope(&next.to_string());
            let ticket = pacer.enqueue(at(now), Request::new(&scope, Cost::request())).expect("fits");
            if pacer.poll_event().is_none() {
                pacer.cancel(at(now), ticket);
                continue;
            }
            waiting[next].pop_front();
            left.push((next, came, now));
            let host = hosts[next];
            let (takes, class) =
                if host.hangs_from == 0.0 { (host.timeout, Class::Transient) } else { (host.latency, Class::Success) };
            in_flight.push((ticket, now + takes.as_secs_f64() - 0.01, class));
        }
    }
    left
}

/// Thirty hosts hang, and have been met. Calls of twenty that answer come once when none of these is known, and once when all
/// are.
#[test]
fn calls_of_hosts_that_answer_find_places_beside_hosts_that_hang() {
    let hangs = Host { hangs_from: 0.0, timeout: 10 * S, ..Host::new(0, 0) };
    let hosts: Vec<Host> = [hangs; 30].into_iter().chain([Host::new(300, 0); 20]).collect();
    let batch = |at: f64| (0..300).map(move |n| (at, 30 + n % 20));
    let hanging = (0..600).map(|n| (0.0, n % 30));
    let arrivals: Vec<(f64, usize)> = hanging.chain(batch(120.0)).chain(batch(180.0)).collect();
    let left = kept_outside(&hosts, &arrivals);
    for (at, latest) in [(120.0, 20.0), (180.0, 15.0)] {
        let of_batch = left.iter().filter(|(_, came, _)| *came == at);
        let waits: Vec<f64> = of_batch.map(|(_, came, left)| left - came).collect();
        let last = waits.iter().copied().fold(0.0, f64::max);
        assert_eq!(waits.len(), 300, "at {at} s");
        assert!(waits[0] < 0.05, "at {at} s: the first one waits {} s", waits[0]);
        assert!(
            last < latest,
            "at {at} s: 300 calls of 0.3 s in half of ten places or more, and the last waits {last} s"
        );
    }
    let tested = left.iter().filter(|(host, _, left)| *host < 30 && *left > 200.0).count();
    assert!(tested >= 10, "those that hang are tested: {tested} calls in 100 s");
}

/// Ten hosts never answer, and their calls fail after ten minutes. Five hosts have answered before.
#[test]
fn hosts_that_hang_for_the_whole_job_leave_half_of_the_places() {
    let hangs = Host { hangs_from: 0.0, ..Host::new(0, 0) };
    let hosts: Vec<Host> = [Host::new(100, 0); 5].into_iter().chain([hangs; 10]).collect();
    let known = (0..5).map(|host| (0.0, host));
    let arrivals: Vec<(f64, usize)> =
        known.chain((0..100).map(|n| (10.0, 5 + n % 10))).chain((0..500).map(|n| (20.0, n % 5))).collect();
    let left = kept_outside(&hosts, &arrivals);
    let answered = left.iter().filter(|(host, ..)| *host < 5);
    let last = answered.clone().map(|(_, came, left)| left - came).fold(0.0, f64::max);
    assert!(answered.count() == 505 && last < 12.0, "500 calls of 0.1 s in five places: {last} s");
    assert_eq!(left.iter().filter(|(host, ..)| *host >= 5).count(), 5, "each with one call in flight");
}

/// The longest wait of the calls of these hosts.
fn longest(left: &[(usize, f64, f64)], hosts: std::ops::Range<usize>) -> (usize, f64) {
    let waits = left.iter().filter(|(host, ..)| hosts.contains(host)).map(|(_, came, left)| left - came);
    waits.fold((0, 0.0), |(calls, longest), wait| (calls + 1, wait.max(longest)))
}

/// A host that answers after eight seconds has 150 calls; one of another host comes each second.
#[test]
fn a_slow_host_leaves_half_of_the_places_to_others() {
    let hosts: Vec<Host> = [Host::new(8_000, 0)].into_iter().chain([Host::new(300, 0); 10]).collect();
    let others = (0..200).map(|second| (f64::from(second), 1 + second as usize % 10));
    let arrivals: Vec<(f64, usize)> = (0..150).map(|_| (10.0, 0)).chain(others).collect();
    let known = |host: usize| ScopeAnswers::Came { slowest: hosts[host].latency };
    let left = kept_after(&hosts, &arrivals, known);
    let (calls, wait) = longest(&left, 1..11);
    assert!(calls == 200 && wait < 0.2, "{calls} calls, of which one waits for {wait} s");
    assert_eq!(longest(&left, 0..1).0, 150, "five at a time, and ten once no other has work");
}

/// Sixty hosts hang, each with ten calls, and a new start knows nothing but what it is told.
#[test]
fn after_a_start_hosts_that_are_known_to_answer_wait_for_none_that_hangs() {
    let hangs = Host { hangs_from: 0.0, timeout: 10 * S, ..Host::new(0, 0) };
    let hosts: Vec<Host> = [hangs; 60].into_iter().chain([Host::new(300, 0); 21]).collect();
    let arrivals: Vec<(f64, usize)> =
        (0..600).map(|n| (0.0, n % 60)).chain((0..105).map(|n| (2.0, 60 + n % 21))).collect();
    let told = |host: usize| match host {
        0..60 => ScopeAnswers::Missing,
        _ => ScopeAnswers::Came { slowest: Duration::from_millis(300) },
    };
    let (calls, last) = longest(&kept_after(&hosts, &arrivals, told), 60..81);
    assert!(calls == 105 && last < 10.0, "105 calls of 0.3 s in five places or more: {calls}, the last after {last} s");
    let of_those = |host: usize| if host < 60 { ScopeAnswers::Unknown } else { told(host) };
    let (calls, last) = longest(&kept_after(&hosts, &arrivals, of_those), 60..81);
    assert!(calls == 105 && last < 10.0, "none waits for a host of which nothing is known: {calls}, {last} s");
    let (calls, last) = longest(&kept_outside(&hosts, &arrivals), 60..81);
    let bound = 81.0 / 4.0 * 10.0;
    assert!(calls == 105 && last < bound, "81 unknown hosts in four of ten places, 10 s each: {calls}, {last} s");
}

/// What one worker learns counts for another that knows nothing; what it knows itself is not overruled.
#[test]
fn what_is_told_counts_where_nothing_is_known() {
    let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    let came = |seconds| ScopeAnswers::Came { slowest: Duration::from_secs(seconds) };
    for (told, known) in [(came(3), came(3)), (ScopeAnswers::Missing, came(3)), (ScopeAnswers::Unknown, came(3))] {
        pacer.recall_answers(at(1.0), &scope, told);
        assert_eq!(pacer.snapshot(at(1.0)).scopes[0].answers, known);
    }
}

/// Calls of a host in ten places, whose receivers are known apart.
struct Shared {
    pacer: Pacer,
    items: u64,
}

impl Shared {
    fn new() -> Self {
        let concurrency = Concurrency::Fixed { max: 10 };
        let config = PacerConfig { concurrency, pace: Pace::None, ..PacerConfig::default() };
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
        pacer.expect_scopes();
        Self { pacer, items: 0 }
    }

    /// A call for that receiver leaves, if one may.
    fn leaves(&mut self, second: f64, receiver: u64) -> Option<Ticket> {
        self.items += 1;
        let (scope, item) = (self.pacer.scope("host"), Some(self.items));
        let request = Request { caller: Some(receiver), item, ..Request::new(&scope, Cost::request()) };
        let is_now = self.pacer.admit(at(second), &request) == Admit::Now;
        is_now.then(|| self.pacer.enqueue(at(second), request).expect("fits"))
    }

    fn ends(&mut self, second: f64, call: Ticket, class: Class) {
        let _ = self.pacer.complete(at(second), call, Outcome::new(class));
    }
}

/// The endpoint of one customer hangs, and so does at last the whole host.
#[test]
fn a_receiver_that_hangs_has_one_place_and_the_others_of_its_host_go_on() {
    let mut host = Shared::new();
    let hang: Vec<Ticket> = std::iter::from_fn(|| host.leaves(0.0, 1)).collect();
    assert!(hang.len() >= 2, "nothing is known of it: {}", hang.len());
    hang.into_iter().for_each(|call| host.ends(10.0, call, Class::Transient));
    for second in [10.0, 20.0, 30.0] {
        let hangs = host.leaves(second, 1).expect("one place");
        assert_eq!(host.leaves(second, 1), None, "{second}");
        let others: Vec<Ticket> = (0..4).filter_map(|n| host.leaves(second, 2 + n)).collect();
        assert_eq!(others.len(), 4, "{second}: another receiver waits for none that hangs");
        others.into_iter().for_each(|call| host.ends(second + 0.1, call, Class::Success));
        assert_eq!(host.leaves(second + 0.1, 1), None, "{second}: answers to others are none to it");
        host.ends(second + 10.0, hangs, Class::Transient);
    }
    let all: Vec<Ticket> = (1..4).filter_map(|receiver| host.leaves(40.0, receiver)).collect();
    all.into_iter().for_each(|call| host.ends(50.0, call, Class::Transient));
    let tests: Vec<Ticket> = (1..9).filter_map(|receiver| host.leaves(50.0, receiver)).collect();
    assert_eq!(tests.len(), 1, "what hangs for three is the host");
    tests.into_iter().for_each(|call| host.ends(50.1, call, Class::Success));
    let well: Vec<Ticket> = (0..5).filter_map(|_| host.leaves(50.1, 1)).collect();
    assert_eq!(well.len(), 5, "it is answered again");
}
