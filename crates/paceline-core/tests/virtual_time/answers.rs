//! Calls whose answers have no bound, or one that their server ignores, under limits that count their tokens: nothing is known of
//! the first answers, and the first may lie about all others. And calls whose prompts are an estimate.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use paceline_core::{
    Admit, Class, Cost, Dimension, Event, Instant, Limits, NextAction, Outcome, Pace, Pacer, PacerConfig, Quota,
    Request, WaitCause,
};

const MINUTE: Duration = Duration::from_secs(60);
const LIMIT: u64 = 10_000;
const PROMPT: u64 = 10;

/// A call as its server saw it: when it came, when it was answered, and how many tokens it took.
#[derive(Clone, Copy, Debug)]
struct Seen {
    sent: Instant,
    answered: Instant,
    tokens: u64,
}

fn pacer(dimension: Dimension) -> Pacer {
    let limits = Limits { quotas: vec![Quota::sliding(dimension, LIMIT, MINUTE)], burst: None };
    Pacer::new(PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() }, 1, Instant::ZERO).expect("sensible")
}

fn tokens(input: u64, output: u64) -> Cost {
    Cost::request()
        .with(Dimension::Tokens, input + output)
        .with(Dimension::InputTokens, input)
        .with(Dimension::OutputTokens, output)
}

fn unbounded() -> Cost {
    tokens(PROMPT, 0).open_ended()
}

/// Sends so many calls, which all wait from the first moment on; an answer says how long it took and how many tokens it has.
fn send(pacer: &mut Pacer, calls: u64, answer: impl FnMut(u64) -> (Duration, Option<u64>)) -> Vec<Seen> {
    send_all(pacer, &unbounded(), calls, answer)
}

/// The same of calls of that cost.
fn send_all(
    pacer: &mut Pacer,
    cost: &Cost,
    calls: u64,
    mut answer: impl FnMut(u64) -> (Duration, Option<u64>),
) -> Vec<Seen> {
    let scope = pacer.scope("model");
    for _ in 0..calls {
        let _ = pacer.enqueue(Instant::ZERO, Request::new(&scope, cost.clone())).expect("fits");
    }
    let (mut under_way, mut left, mut seen, mut now) = (BinaryHeap::new(), BTreeMap::new(), Vec::new(), Instant::ZERO);
    loop {
        while let Some(event) = pacer.poll_event() {
            let Event::Granted { ticket, .. } = event else { panic!("{event:?}") };
            let (took, output) = answer(left.len() as u64);
            left.insert(ticket, (now, output));
            under_way.push(Reverse((now + took, ticket)));
        }
        let answered = under_way.peek().map(|Reverse((at, _))| *at);
        let Some(next) = [answered, pacer.poll_timeout()].into_iter().flatten().min() else { return seen };
        now = now.max(next);
        if answered.is_none_or(|at| at > now) {
            pacer.handle_timeout(now);
            continue;
        }
        let Reverse((_, ticket)) = under_way.pop().expect("it was there");
        let (sent, output) = left[&ticket];
        let usage = output.map(|output| tokens(PROMPT, output));
        let action = pacer.complete(now, ticket, Outcome { usage, ..Outcome::new(Class::Success) });
        assert_eq!(action, NextAction::Done);
        seen.push(Seen { sent, answered: now, tokens: PROMPT + output.unwrap_or(0) });
    }
}

/// The most tokens that the server counted in any minute.
fn most(seen: &[Seen], when: impl Fn(&Seen) -> Instant) -> u64 {
    let within = |from: Instant, call: &Seen| when(call) >= from && when(call) - from < MINUTE;
    let of = |from: Instant| seen.iter().filter(|call| within(from, call)).map(|call| call.tokens).sum();
    seen.iter().map(|first| of(when(first))).max().unwrap_or(0)
}

/// Few tokens at first, then at random: mostly short, some long, a few that take nearly half of the limit.
fn hostile(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut random = seed;
    move |number| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match (number, (random >> 33) % 100) {
            (..3, _) => 2,
            (_, ..80) => 40,
            (_, ..95) => 1_000,
            _ => LONGEST,
        }
    }
}

const LONGEST: u64 = 4_000;

#[test]
fn no_window_holds_more_than_its_limit_and_the_error_of_one_answer() {
    let (mut full, mut above) = (0.0, 0);
    for seed in 0..40 {
        let mut answer = hostile(seed);
        let seen = send(&mut pacer(Dimension::Tokens), 300, |number| {
            (Duration::from_secs(3 + number % 20), Some(answer(number)))
        });
        assert_eq!(seen.len(), 300, "none is forgotten");
        // Of what comes after three short answers nothing is known: the first long ones may come together.
        let worst = most(&seen, |call| call.sent).max(most(&seen, |call| call.answered));
        assert!(worst <= LIMIT + 2 * LONGEST, "{seed}: {worst}");
        above += worst.saturating_sub(LIMIT);
        let all: u64 = seen.iter().map(|call| call.tokens).sum();
        let last = seen.iter().map(|call| call.answered).max().expect("some");
        full += all as f64 / LIMIT as f64 / (last - Instant::ZERO).as_secs_f64() * 60.0;
    }
    assert!(
        above / 40 < LONGEST,
        "the worst minute of a job is over its limit by less than one answer: {}",
        above / 40
    );
    assert!(full / 40.0 > 0.45, "nearly half of the limit is used: {:.2}", full / 40.0);
}

#[test]
fn the_first_leaves_alone_and_then_as_many_as_were_answered() {
    let mut pacer = pacer(Dimension::Tokens);
    let (scope, now) = (pacer.scope("model"), Instant::ZERO);
    let enqueue = |pacer: &mut Pacer, cost| pacer.enqueue(now, Request::new(&scope, cost)).expect("fits");
    let first = enqueue(&mut pacer, unbounded());
    let others: Vec<_> = (0..6).map(|_| enqueue(&mut pacer, unbounded())).collect();
    let granted = |pacer: &mut Pacer| std::iter::from_fn(|| pacer.poll_event()).count();
    assert_eq!(granted(&mut pacer), 1);
    let waits = pacer.admit(now, &Request::new("another model", unbounded()));
    assert!(waits.is_now(), "each scope learns by itself: {waits:?}");
    // A bound is a bound: such calls need no answer of others.
    let _ = pacer.enqueue(now, Request::new("bounded", tokens(PROMPT, 100))).expect("fits");
    assert_eq!(granted(&mut pacer), 1);
    // A refusal tells nothing.
    let _ = pacer.complete(now, first, Outcome::new(Class::Invalid));
    assert_eq!(granted(&mut pacer), 1);
    let told = |output| Outcome { usage: Some(tokens(PROMPT, output)), ..Outcome::new(Class::Success) };
    let _ = pacer.complete(now, others[0], told(100));
    assert_eq!(granted(&mut pacer), 1);
    let used: u64 = pacer.snapshot(now).account.quotas.iter().map(|quota| quota.limit - quota.remaining).sum();
    // The refused one as it was, the bounded one, the answered one, and one alone with the mean.
    assert_eq!(used, PROMPT + (PROMPT + 100) + (PROMPT + 100) + (PROMPT + 101));
    // One that is never sent teaches nothing, and takes no place.
    pacer.cancel(now, others[1]);
    assert_eq!(granted(&mut pacer), 1);
}

#[test]
fn answers_that_tell_no_usage_hold_up_no_one_and_without_such_a_limit_nothing_is_learnt_first() {
    let seen = send(&mut pacer(Dimension::Tokens), 40, |_| (Duration::from_secs(1), None));
    let last = seen.iter().map(|call| call.answered).max().expect("some");
    assert!(last - Instant::ZERO <= Duration::from_secs(7), "1, 1, 2, 4, 8, 16 and the rest: {last:?}");
    let mut requests = pacer(Dimension::Requests);
    let seen = send(&mut requests, 40, |_| (Duration::from_secs(1), Some(1_000)));
    assert!(seen.iter().all(|call| call.sent == Instant::ZERO));
}

#[test]
fn an_answer_longer_than_the_limit_leaves_alone_and_stops_nothing() {
    let seen = send(&mut pacer(Dimension::Tokens), 5, |_| (Duration::from_secs(1), Some(3 * LIMIT)));
    assert_eq!(seen.len(), 5);
    let mut pacer = pacer(Dimension::Tokens);
    let scope = pacer.scope("model");
    let first = pacer.enqueue(Instant::ZERO, Request::new(&scope, unbounded())).expect("fits");
    let _ = pacer.enqueue(Instant::ZERO, Request::new(&scope, unbounded())).expect("fits");
    let waits = pacer.admit(Instant::ZERO, &Request::new("model", unbounded()));
    assert!(matches!(waits, Admit::OnRelease { cause: WaitCause::Answers | WaitCause::Queue }), "{waits:?}");
    let usage = Some(tokens(PROMPT, 3 * LIMIT));
    let _ = pacer.complete(Instant::ZERO, first, Outcome { usage, ..Outcome::new(Class::Success) });
    assert!(pacer.enqueue(Instant::ZERO, Request::new(&scope, unbounded())).is_ok(), "it is no error, however long");
}

/// What waits is told as soon as an answer shows that the window has no room for it, also behind the first.
#[test]
fn what_does_not_fit_any_more_is_put_off_when_the_answer_comes() {
    let mut pacer = pacer(Dimension::Tokens);
    let (scope, now) = (pacer.scope("model"), Instant::ZERO);
    let request = || Request { max_wait: Some(Duration::from_secs(5).into()), ..Request::new(&scope, unbounded()) };
    let first = pacer.enqueue(now, request()).expect("fits");
    for _ in 0..9 {
        let _ = pacer.enqueue(now, request()).expect("fits");
    }
    assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket: first, probe: false }));
    let usage = Some(tokens(PROMPT, LIMIT / 2));
    let _ = pacer.complete(now, first, Outcome { usage, ..Outcome::new(Class::Success) });
    let put_off = std::iter::from_fn(|| pacer.poll_event()).filter(|event| matches!(event, Event::Deferred { .. }));
    assert_eq!(put_off.count(), 9);
    let waits = pacer.admit(now, &Request::new(&scope, unbounded()));
    assert!(matches!(waits, Admit::At { cause: WaitCause::Quota { .. }, .. }), "{waits:?}");
}

#[test]
fn where_a_server_ignores_bounds_no_window_holds_more_than_its_limit() {
    let cost = tokens(PROMPT, 1).unproven();
    let seen = send_all(&mut pacer(Dimension::Tokens), &cost, 20, |_| (Duration::from_millis(1_500), Some(900)));
    assert_eq!(seen.len(), 20, "none is forgotten");
    let worst = most(&seen, |call| call.sent).max(most(&seen, |call| call.answered));
    assert!((LIMIT / 2..=LIMIT).contains(&worst), "{worst}");
    // One that is said to have a bound, and is believed from the first.
    let seen = send_all(&mut pacer(Dimension::Tokens), &tokens(PROMPT, 1), 20, |_| (Duration::from_secs(1), Some(900)));
    assert!(most(&seen, |call| call.sent) > LIMIT);
}

#[test]
fn where_a_server_keeps_to_bounds_at_first_no_more_answers_exceed_theirs_than_kept_to_them() {
    let cost = tokens(PROMPT, 1).unproven();
    let seen = send_all(&mut pacer(Dimension::Tokens), &cost, 40, |number| {
        (Duration::from_millis(1_500), Some(if number < 5 { 1 } else { LONGEST }))
    });
    assert_eq!(seen.len(), 40, "none is forgotten");
    let first = seen.iter().map(|call| call.sent).find(|sent| *sent > Instant::ZERO + Duration::from_secs(4));
    let at_once = seen.iter().filter(|call| Some(call.sent) == first).count();
    assert!(at_once <= 5, "a call for each that was answered: {at_once}");
    let worst = most(&seen, |call| call.sent);
    assert!(worst <= LIMIT + 5 * LONGEST, "thirty-five would be 140,000 tokens: {worst}");
}

#[test]
fn what_answers_without_a_bound_have_is_reserved_by_no_call_that_has_one_or_no_answer_of_tokens() {
    let mut pacer = pacer(Dimension::Tokens);
    let (scope, now) = (pacer.scope("model"), Instant::ZERO);
    let first = pacer.enqueue(now, Request::new(&scope, unbounded())).expect("fits");
    let usage = Some(tokens(PROMPT, LIMIT - 500));
    let _ = pacer.complete(now, first, Outcome { usage, ..Outcome::new(Class::Success) });
    for cost in [Cost::request(), tokens(PROMPT, 100), tokens(PROMPT, 100).unproven()] {
        let ticket = pacer.enqueue(now, Request::new(&scope, cost.clone())).expect("fits");
        let granted = std::iter::from_fn(|| pacer.poll_event()).last();
        assert_eq!(granted, Some(Event::Granted { ticket, probe: false }), "{cost:?}");
    }
}

#[test]
fn under_a_large_limit_bounds_are_believed_of_as_many_calls_as_take_little_of_it() {
    let large = |limit| {
        let limits = Limits { quotas: vec![Quota::sliding(Dimension::Tokens, limit, MINUTE)], burst: None };
        let config = PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() };
        Pacer::new(config, 1, Instant::ZERO).expect("sensible")
    };
    let cost = tokens(PROMPT, 1).unproven();
    for (limit, expected) in [(10_000, 1), (32_768, 2), (1_000_000, 61)] {
        let seen = send_all(&mut large(limit), &cost, 200, |_| (Duration::from_secs(60), Some(LONGEST)));
        let at_once: Vec<_> = seen.iter().filter(|call| call.sent == Instant::ZERO).collect();
        assert_eq!(at_once.len(), expected, "{limit}");
        let tokens: u64 = at_once.iter().map(|call| call.tokens).sum();
        assert!(tokens <= (limit / 4).max(LONGEST + PROMPT), "{limit}: {tokens}");
        assert!(most(&seen, |call| call.sent) <= limit.max(LONGEST + PROMPT) + limit / 4, "{limit}");
    }
}

#[test]
fn each_answer_shows_once_that_bounds_are_kept_to_and_a_refusal_does_not() {
    let mut pacer = pacer(Dimension::Tokens);
    let (scope, now) = (pacer.scope("model"), Instant::ZERO);
    let enqueue =
        |pacer: &mut Pacer| pacer.enqueue(now, Request::new(&scope, tokens(PROMPT, 100).unproven())).expect("fits");
    let all: Vec<_> = (0..20).map(|_| enqueue(&mut pacer)).collect();
    let granted = |pacer: &mut Pacer| std::iter::from_fn(|| pacer.poll_event()).count();
    assert_eq!(granted(&mut pacer), 1);
    let waits = pacer.admit(now, &Request::new("model", tokens(PROMPT, 100).unproven()));
    assert!(matches!(waits, Admit::OnRelease { .. }), "{waits:?}");
    let _ = pacer.complete(now, all[0], Outcome::new(Class::Invalid));
    assert_eq!(granted(&mut pacer), 1, "a refusal");
    pacer.cancel(now, all[1]);
    assert_eq!(granted(&mut pacer), 1, "never sent");
    let usage = Some(tokens(PROMPT, 100));
    let answered = |pacer: &mut Pacer, number: usize, class| {
        let _ = pacer.complete(now, all[number], Outcome { usage: usage.clone(), ..Outcome::new(class) });
    };
    answered(&mut pacer, 2, Class::Abandoned);
    assert_eq!(granted(&mut pacer), 1, "what is counted for an answer that was given up shows nothing");
    for number in 3..10 {
        answered(&mut pacer, number, Class::Success);
    }
    assert_eq!(granted(&mut pacer), 13, "seven are under way, and seven were answered");
    let usage = Some(tokens(PROMPT, 101));
    let _ = pacer.complete(now, all[10], Outcome { usage, ..Outcome::new(Class::Success) });
    for number in 11..14 {
        answered(&mut pacer, number, Class::Success);
    }
    assert_eq!(granted(&mut pacer), 0, "three have kept to theirs since, and three are under way");
    answered(&mut pacer, 14, Class::Success);
    assert_eq!(granted(&mut pacer), 2);
    let another = pacer.admit(now, &Request::new("another model", tokens(PROMPT, 100).unproven()));
    assert!(another.is_now(), "each scope has a first call: {another:?}");
    // Without a limit on tokens there is nothing to be proven.
    let mut requests = self::pacer(Dimension::Requests);
    let seen = send_all(&mut requests, &tokens(PROMPT, 1).unproven(), 40, |_| (Duration::from_secs(1), Some(1_000)));
    assert!(seen.iter().all(|call| call.sent == Instant::ZERO));
}

#[test]
fn an_estimate_makes_no_call_impossible_and_what_it_states_does() {
    const OTHERS: u64 = 39_600;
    for dimension in [Dimension::Tokens, Dimension::InputTokens] {
        let mut pacer = pacer(dimension.clone());
        let (scope, now) = (pacer.scope("model"), Instant::ZERO);
        let request = |cost: Cost| Request::new(&scope, cost);
        let estimated = || tokens(40_000, 50).with_learnt(OTHERS);
        let first = pacer.enqueue(now, request(estimated())).expect("it is an estimate");
        let second = pacer.enqueue(now, request(estimated().open_ended())).expect("likewise");
        assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket: first, probe: false }), "the window is empty");
        assert_eq!(pacer.snapshot(now).account.quotas[0].remaining, 0, "it leaves alone");
        let usage = Some(tokens(400, 50));
        let _ = pacer.complete(now, first, Outcome { usage, ..Outcome::new(Class::Success) });
        assert!(pacer.snapshot(now).account.quotas[0].remaining >= LIMIT - 450);
        assert_eq!(pacer.poll_event(), None, "something counts there");
        // A configuration with less is no reason either.
        let limits = Limits { quotas: vec![Quota::sliding(dimension.clone(), LIMIT / 2, MINUTE)], burst: None };
        pacer.reconfigure(now, PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() }).expect("sensible");
        assert_eq!(pacer.poll_event(), None);
        let empty = pacer.poll_timeout().expect("it waits for the window");
        pacer.handle_timeout(empty);
        assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket: second, probe: false }));
        assert!(empty - now >= MINUTE, "{empty:?}");
        // Its own text, or the bound of its answer.
        let text = pacer.enqueue(empty, request(tokens(20_000, 50).with_learnt(14_999)));
        assert_eq!(text.map_err(|error| error.dimension), Err(dimension.clone()));
        let bound = pacer.enqueue(empty, request(tokens(40_000, 5_001).with_learnt(OTHERS)));
        assert_eq!(bound.is_err(), dimension == Dimension::Tokens);
    }
}

/// Short answers teach that answers are short; then very many long ones are asked for at once.
#[test]
fn what_callers_have_shown_reserves_for_few_calls_at_once_where_they_are_doubted() {
    let used = |doubts_answers: bool| {
        let limits = Limits { quotas: vec![Quota::sliding(Dimension::Tokens, 20_000, MINUTE)], burst: None };
        let config = PacerConfig { limits, pace: Pace::Fixed, doubts_answers, ..PacerConfig::default() };
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
        let seen = send(&mut pacer, 800, |call| match call {
            0..400 => (Duration::from_millis(1), Some(5)),
            _ => (Duration::from_secs(30), Some(8_000)),
        });
        seen.iter().filter(|call| call.sent < Instant::ZERO + MINUTE).map(|call| call.tokens).sum::<u64>()
    };
    let (doubted, believed) = (used(true), used(false));
    assert!(doubted <= 3 * 20_000, "{doubted}");
    assert!(believed > 20 * 20_000, "{believed}");
}

#[test]
fn a_restored_pacer_believes_no_server_that_ignored_bounds() {
    let cost = tokens(PROMPT, 1).unproven();
    let (now, mut before) = (Instant::ZERO, pacer(Dimension::Tokens));
    let first = before.enqueue(now, Request::new("model", cost.clone())).expect("fits");
    let outcome = |answer| Outcome { usage: Some(tokens(PROMPT, answer)), ..Outcome::new(Class::Success) };
    let _ = before.complete(now, first, outcome(900));
    let state = before.export(now);
    let mut after = pacer(Dimension::Tokens);
    after.restore(now, &state, Duration::ZERO).expect("known");
    let enqueue = |pacer: &mut Pacer| pacer.enqueue(now, Request::new("model", cost.clone())).expect("fits");
    let all = [enqueue(&mut after), enqueue(&mut after)];
    let granted = |pacer: &mut Pacer| std::iter::from_fn(|| pacer.poll_event()).collect::<Vec<_>>();
    assert_eq!(granted(&mut after), [Event::Granted { ticket: all[0], probe: false }], "one alone");
    let used = after.snapshot(now).account.quotas[0].used;
    assert!(used >= PROMPT + 900, "what the answers of the former one had: {used}");
    assert_eq!(after.export(now).scopes, state.scopes, "as it was");
    // One that it has seen itself keeps to them.
    let mut known = pacer(Dimension::Tokens);
    let ticket = enqueue(&mut known);
    let _ = known.complete(now, ticket, outcome(1));
    known.restore(now, &state, Duration::ZERO).expect("known");
    assert_eq!(known.export(now).scopes.iter().find_map(|scope| scope.beyond_bounds), None);
}
