//! Servers and programs that once made a learnt pace refuse to learn: much slower than the limit, or refused again and again.

use std::collections::VecDeque;
use std::time::Duration;

use paceline_core::{Class, Cost, Event, Instant, NextAction, Outcome, Pacer, PacerConfig, Request, Ticket};

use crate::learning::{Client, passes};

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// The call behind the canary keeps the distance of the rate too: it would be refused, and each refusal would slow the rate down
/// and take a whole wait.
#[test]
fn a_server_that_asks_for_more_than_its_spacing_gets_calls_at_its_spacing() {
    for (spacing, wait) in [(500, 2), (500, 3), (500, 10), (500, 60), (1_000, 3), (2_000, 5), (100, 3), (10_000, 60)] {
        let (spacing, wait) = (spacing * MS, wait * S);
        let (mut client, mut passed, mut refused) = (Client::new(), None, 0);
        let left = client.calls(400, |now, _| {
            if passed.is_some_and(|last| now < last + spacing) {
                refused += 1;
                return (10 * MS, Outcome::new(Class::Throttled).with_hint(wait, false));
            }
            passed = Some(now);
            passes(now, 0)
        });
        let took = *left.last().expect("calls left") - left[0];
        let least = 400 * spacing + refused * wait;
        assert!(refused <= 40 && took <= 2 * least, "{spacing:?}, {wait:?}: {refused} refused, {took:?}");
    }
}

/// A program with one thread and 32 calls at once, at a server that answers within a millisecond and lets fifty a second pass,
/// ten at once. A call that leaves beside others takes `work` of the thread, and answers are read when nothing is to be sent.
/// Gives how long 400 items take, and how many calls were refused.
fn one_busy_thread(work: Duration) -> (Duration, usize) {
    let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    let (mut now, mut room, mut filled) = (Instant::ZERO, 10.0_f64, Instant::ZERO);
    let (mut passed, mut refused) = (0, 0);
    let mut under_way: VecDeque<(Instant, Ticket, bool)> = VecDeque::new();
    for _ in 0..32 {
        pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("no limit is configured");
    }
    while passed < 400 {
        pacer.handle_timeout(now);
        let granted: Vec<_> = core::iter::from_fn(|| pacer.poll_event()).filter_map(granted).collect();
        now += if under_way.is_empty() && granted.len() == 1 { 100 * US } else { work * granted.len() as u32 };
        for ticket in &granted {
            now += 300 * US;
            room = (room + 50.0 * (now - filled).as_secs_f64()).min(10.0);
            filled = now;
            let passes = room >= 1.0;
            room -= f64::from(u8::from(passes));
            under_way.push_back((now + MS, *ticket, passes));
        }
        if !granted.is_empty() {
            continue;
        }
        let next = [under_way.front().map(|(at, ..)| *at), pacer.poll_timeout()].into_iter().flatten().min();
        now = now.max(next.expect("something happens"));
        while let Some((_, ticket, passes)) = under_way.pop_front_if(|(at, ..)| *at <= now) {
            now += MS;
            (passed, refused) = (passed + usize::from(passes), refused + usize::from(!passes));
            let class = if passes { Class::Success } else { Class::Throttled };
            let next = match pacer.complete(now, ticket, Outcome::new(class)) {
                NextAction::Retry { next, .. } => *next,
                _ => Request::new(&scope, Cost::request()),
            };
            pacer.enqueue(now, next).expect("no limit is configured");
        }
    }
    (now - Instant::ZERO, refused)
}

fn granted(event: Event) -> Option<Ticket> {
    match event {
        Event::Granted { ticket, .. } => Some(ticket),
        _ => None,
    }
}

/// Where answers are read late, a refusal seems to take long, and calls that have succeeded do not count as admitted yet. They
/// show all the same that the limit is not closed: the rate falls, where it would stay and the gate would close again and again.
/// And the start does not send thirty calls before the first refusal is read.
#[test]
fn a_program_that_reads_answers_late_learns_the_rate_too() {
    for work in [500, 1_000, 1_500, 2_000, 3_000, 6_000, 10_000] {
        let (took, refused) = one_busy_thread(work * US);
        assert!(took <= 9 * S && refused <= 25, "{work} us: {refused} refused, {took:?}");
    }
}
