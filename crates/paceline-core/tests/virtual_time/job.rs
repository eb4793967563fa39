//! A job in virtual time: items, a server that is a function, and the pacer between them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use paceline_core::{Cost, Event, Instant, MaxWait, NextAction, Outcome, Pacer, PacerConfig, Request, Ticket};

/// One call as the server saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) at: Instant,
    pub(crate) item: u64,
}

/// What became of a job.
#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) succeeded: Vec<(u64, Instant)>,
    pub(crate) failed: Vec<(u64, Instant)>,
    /// Items that still waited when nothing was left to do.
    pub(crate) waiting: usize,
}

impl Job {
    /// Seconds until the last success.
    pub(crate) fn makespan(&self) -> f64 {
        self.succeeded.iter().map(|(_, at)| seconds(*at)).fold(0.0, f64::max)
    }

    pub(crate) fn arrivals_of(&self, item: u64) -> usize {
        self.arrivals.iter().filter(|arrival| arrival.item == item).count()
    }

    /// The most calls that arrived in any half-open window.
    pub(crate) fn most_in(&self, window: Duration) -> usize {
        let within =
            |first: &Arrival| self.arrivals.iter().filter(|a| a.at >= first.at && a.at - first.at < window).count();
        self.arrivals.iter().map(within).max().unwrap_or(0)
    }
}

pub(crate) fn seconds(at: Instant) -> f64 {
    Duration::from_nanos(at.as_nanos()).as_secs_f64()
}

pub(crate) fn at(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

/// Runs items 0 to `items` against `server`, which says how long a call takes and how it ends. Stops at `until`.
pub(crate) fn run(
    config: PacerConfig,
    items: u64,
    until: Instant,
    server: impl FnMut(Instant, u64) -> (Duration, Outcome),
) -> Job {
    run_models(config, items, until, |_| "model", server)
}

/// The same with items of several models, each a scope of its own.
pub(crate) fn run_models(
    config: PacerConfig,
    items: u64,
    until: Instant,
    model: impl Fn(u64) -> &'static str,
    server: impl FnMut(Instant, u64) -> (Duration, Outcome),
) -> Job {
    drive(config, items, until, model, server, None)
}

/// The same with items of one scope that spend pauses and the waits before their retries in a journal, as those of `paceline run`
/// do. When a pause is over, they ask one after the other: those that left before first.
pub(crate) fn run_with_journal(
    config: PacerConfig,
    items: u64,
    until: Instant,
    server: impl FnMut(Instant, u64) -> (Duration, Outcome),
) -> Job {
    drive(config, items, until, |_| "model", server, Some(Journal::default()))
}

/// Requests that wait outside the pacer, by whether they never left, due time and item.
#[derive(Default)]
struct Journal {
    waiting: BTreeMap<(bool, Instant, u64), Request>,
    held_until: Instant,
}

impl Journal {
    const LONGEST_PAUSE: MaxWait = MaxWait::Pause(Duration::from_secs(1));

    fn add(&mut self, request: Request) {
        let due = request.not_before.unwrap_or(Instant::ZERO);
        let item = request.item.expect("each has one");
        self.waiting.insert((request.deferrals + request.attempts == 0, due, item), request);
    }

    fn next_due(&self) -> Option<Instant> {
        self.waiting.keys().map(|(_, due, _)| self.held_until.max(*due)).min()
    }

    fn take_due(&mut self, now: Instant) -> Option<Request> {
        let due = *self.waiting.keys().find(|(_, due, _)| self.held_until.max(*due) <= now)?;
        self.waiting.remove(&due)
    }
}

/// Each item waits, in the pacer or in a journal; returns those in the pacer.
fn begin(
    pacer: &mut Pacer,
    mut journal: Option<&mut Journal>,
    items: u64,
    model: impl Fn(u64) -> &'static str,
) -> BTreeMap<Ticket, u64> {
    let mut tickets = BTreeMap::new();
    for item in 0..items {
        let request = Request { item: Some(item), ..Request::new(pacer.scope(model(item)), Cost::request()) };
        if let Some(journal) = &mut journal {
            journal.add(Request { max_wait: Some(Journal::LONGEST_PAUSE), ..request });
            continue;
        }
        tickets.insert(pacer.enqueue(Instant::ZERO, request).expect("it fits"), item);
    }
    tickets
}

fn drive(
    config: PacerConfig,
    items: u64,
    until: Instant,
    model: impl Fn(u64) -> &'static str,
    mut server: impl FnMut(Instant, u64) -> (Duration, Outcome),
    mut journal: Option<Journal>,
) -> Job {
    let mut pacer = Pacer::new(config, 7, Instant::ZERO).expect("a sensible configuration");
    let mut job = Job::default();
    let mut answers: BinaryHeap<Reverse<(Instant, Ticket)>> = BinaryHeap::new();
    let mut outcomes = BTreeMap::new();
    let mut tickets = begin(&mut pacer, journal.as_mut(), items, model);
    let mut now = Instant::ZERO;
    loop {
        while let Some(event) = pacer.poll_event() {
            let ticket = match (event, &mut journal) {
                (Event::Granted { ticket, .. }, _) => ticket,
                (Event::Deferred { ticket, request, until, .. }, Some(journal)) => {
                    tickets.remove(&ticket);
                    journal.held_until = until;
                    journal.add(*request);
                    continue;
                }
                _ => continue,
            };
            let item = tickets[&ticket];
            job.arrivals.push(Arrival { at: now, item });
            let (latency, outcome) = server(now, item);
            answers.push(Reverse((now + latency, ticket)));
            outcomes.insert(ticket, outcome);
        }
        if let Some(request) = journal.as_mut().and_then(|journal| journal.take_due(now)) {
            let item = request.item.expect("each has one");
            tickets.insert(pacer.enqueue(now, request).expect("it fits"), item);
            continue;
        }
        let answered = answers.peek().map(|Reverse((at, _))| *at);
        let due = journal.as_ref().and_then(Journal::next_due);
        let next = [answered, pacer.poll_timeout(), due].into_iter().flatten().min();
        match next {
            Some(at) if at <= until => now = now.max(at),
            _ => break,
        }
        if answered.is_some_and(|at| at <= now) {
            let Reverse((_, ticket)) = answers.pop().expect("it was there");
            let item = tickets.remove(&ticket).expect("in flight");
            match pacer.complete(now, ticket, outcomes.remove(&ticket).expect("answered once")) {
                NextAction::Done => job.succeeded.push((item, now)),
                NextAction::Retry { next, .. } | NextAction::Resend { next, .. } => {
                    if let Some(journal) = &mut journal {
                        journal.add(*next);
                        continue;
                    }
                    tickets.insert(pacer.enqueue(now, *next).expect("it fitted before"), item);
                }
                NextAction::GiveUp { .. } => job.failed.push((item, now)),
                other => panic!("unexpected action {other:?}"),
            }
        } else {
            pacer.handle_timeout(now);
        }
    }
    job.waiting = tickets.len() + journal.map_or(0, |journal| journal.waiting.len());
    assert_eq!(job.succeeded.len() + job.failed.len() + job.waiting, items as usize, "every item is somewhere");
    job
}
