//! The failures that every face of the house is given, and what the pacer and the durable scheduler decide about them. The ACME
//! agent, which has tests within its program alone, includes this file too.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use paceline_core::retry::Counted;
use paceline_core::{
    Backoff, Class, Cost, Event, Growth, Instant, Jitter, NextAction, Outcome, Pace, Pacer, PacerConfig, Request,
    Retry, ScopeId, Timestamp, UnknownOutcome,
};
use paceline_providers::{Answer, NoResponse, Provider, Reading, no_response, read};
use paceline_store::work::{
    ClaimOutcome, ClaimRequest, Claimed, DecisionRecord, Failure, MemoryStore, NewItem, Observer, OverBound, Scheduler,
    SchedulerConfig, SchedulerEvent, Task, Transition, WorkClock, WorkStore,
};

const S: Duration = Duration::from_secs(1);
pub(crate) const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// The same bounds for all; without jitter, so that waits can be compared.
pub(crate) const RETRIES: u32 = 3;
const DEFERRALS: u32 = 5;
const GROWTH: Growth =
    Growth::Exponential { base: Duration::from_secs(2), multiplier: 2.0, cap: Duration::from_secs(20) };
const BACKOFF: Backoff = Backoff { growth: GROWTH, jitter: Jitter::None };

/// What was decided about one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// What the item's attempts and deferrals are then.
    pub(crate) counts: (u32, u32),
    /// The wait before the next send, or the bound that ends the item.
    pub(crate) then: Result<Duration, String>,
}

/// A failure, and the item that it happens to.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) reading: Reading,
    pub(crate) attempts: u32,
    pub(crate) deferrals: u32,
    /// How long after its first send the item is given up.
    pub(crate) deadline: Option<Duration>,
    /// How long ago its first send was.
    pub(crate) age: Duration,
    /// It only tested a failing server, and sits out for so long.
    pub(crate) probe: Option<Duration>,
    /// What follows where it may have been done.
    pub(crate) unknown: UnknownOutcome,
}

impl Case {
    pub(crate) fn of(name: &'static str, reading: Reading) -> Self {
        Self {
            name,
            reading,
            attempts: 0,
            deferrals: 0,
            deadline: None,
            age: Duration::ZERO,
            probe: None,
            unknown: UnknownOutcome::Resend,
        }
    }

    pub(crate) fn after(self, attempts: u32, deferrals: u32) -> Self {
        Self { attempts, deferrals, ..self }
    }

    fn unknown(self, unknown: UnknownOutcome) -> Self {
        Self { unknown, ..self }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        Outcome { unknown: self.unknown, ..self.reading.outcome() }
    }

    fn within(self, deadline: Duration, age: Duration) -> Self {
        Self { deadline: Some(deadline), age, ..self }
    }
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Reading {
    let pairs = headers
        .iter()
        .map(|(name, value)| (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap()));
    let headers: HeaderMap = pairs.collect();
    read(Provider::OpenAi, &Answer { status, headers: &headers, body: body.as_bytes(), path: "" }, START)
}

fn hinted(status: u16, value: &str) -> Reading {
    answer(status, &[("retry-after", value)], "")
}

/// A reading with a wait of zero that a rule of the configuration asks for.
fn at_once(reading: Reading) -> Reading {
    Reading { wait: Some(Duration::ZERO), ..reading }
}

/// As `run` and `tasks run --http` read it, which end by themselves what can never be reached.
fn unsent() -> Reading {
    Reading { unsent: true, ..no_response(NoResponse::Connect) }
}

pub(crate) fn cases() -> Vec<Case> {
    let quota = r#"{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}"#;
    let key = r#"{"error":{"code":"invalid_api_key","message":"Incorrect API key provided"}}"#;
    let of = Case::of;
    vec![
        of("500", answer(500, &[], "")),
        of("500, second try", answer(500, &[], "")).after(1, 0),
        of("500, deferred twice before", answer(500, &[], "")).after(0, 2),
        of("502, last retry", answer(502, &[], "")).after(2, 0),
        of("502, retries used up", answer(502, &[], "")).after(3, 0),
        of("500 with a short hint", hinted(500, "1")),
        of("500 with a hint above the backoff", hinted(500, "7")),
        of("500 with a short hint, third try", hinted(500, "1")).after(2, 0),
        of("a rule says: at once", at_once(answer(500, &[], ""))),
        of("503", answer(503, &[], "")),
        of("503 with a hint in milliseconds", answer(503, &[("retry-after-ms", "250")], "")),
        of("503 with a hint", hinted(503, "30")),
        of("503 with a hint of zero", hinted(503, "0")),
        of("503, retries used up, with a hint", hinted(503, "30")).after(3, 0),
        of("529", answer(529, &[], "")).after(1, 0),
        of("no connection", no_response(NoResponse::Connect)),
        of("no server took it", unsent()),
        of("no server took it, retries used up", unsent()).after(3, 0),
        of("no server took it, and its deadline comes first", unsent()).within(S, Duration::ZERO),
        of("timeout", no_response(NoResponse::Timeout)).after(1, 0),
        of("unknown outcome: the connection ended", no_response(NoResponse::Reset)),
        of("unknown outcome: the answer was cut", no_response(NoResponse::Truncated)).after(3, 0),
        of("a person decides about an unknown outcome", no_response(NoResponse::Reset)).unknown(UnknownOutcome::Hold),
        of("an unknown outcome fails for good", no_response(NoResponse::Timeout)).unknown(UnknownOutcome::Fail),
        of("429", answer(429, &[], "")),
        of("429 again", answer(429, &[], "")).after(0, 2),
        of("429 after retries", answer(429, &[], "")).after(3, 0),
        of("429, last deferral", answer(429, &[], "")).after(0, 4),
        of("429, deferrals used up", answer(429, &[], "")).after(0, 5),
        of("429 with a hint in milliseconds", answer(429, &[("retry-after-ms", "120")], "")),
        of("429 with a hint of a second", hinted(429, "1")),
        of("429 with a hint above a second", hinted(429, "12")),
        of("429 with a hint above a second, again", hinted(429, "12")).after(0, 1),
        of("429 with a hint that is over", hinted(429, "Tue, 14 Nov 2023 22:00:00 GMT")),
        of("429 with a hint above the longest pause", hinted(429, "7200")),
        of("quota used up, for an unknown time", Reading::new(Class::QuotaExhausted)),
        of("no credit left", answer(429, &[], quota)),
        of("quota used up, deferrals used up", hinted(429, "7200")).after(0, 5),
        of("part of a batch was accepted", Reading::new(Class::Partial)).after(0, 1),
        of("content refused", Reading::new(Class::Filtered)),
        of("bad key", answer(401, &[], key)),
        of("bad key, everything used up", answer(401, &[], key)).after(3, 5),
        of("a bad key that asks for a wait", Reading { wait: Some(30 * S), ..answer(401, &[], key) }),
        of("bad request", answer(400, &[], r#"{"error":{"message":"wrong"}}"#)),
        of("not found", answer(404, &[], "")).after(1, 1),
        of("503, its backoff ends before the deadline", answer(503, &[], "")).within(3 * S, Duration::ZERO),
        of("503, its backoff ends at the deadline", answer(503, &[], "")).after(1, 0).within(4 * S, Duration::ZERO),
        of("503, its backoff ends after the deadline", answer(503, &[], "")).after(2, 0).within(4 * S, Duration::ZERO),
        of("503, old", answer(503, &[], "")).after(1, 0).within(100 * S, 95 * S),
        of("503, too old", answer(503, &[], "")).after(1, 0).within(100 * S, 97 * S),
        of("429, its hint ends after the deadline", hinted(429, "12")).within(10 * S, Duration::ZERO),
        of("429, its backoff ends after the deadline", answer(429, &[], "")).within(S, Duration::ZERO),
        of("quota used up beyond the deadline", hinted(429, "7200")).within(3_600 * S, Duration::ZERO),
    ]
}

pub(crate) fn pacer_config() -> PacerConfig {
    let retry = Retry { max_retries: RETRIES, max_deferrals: Some(DEFERRALS), backoff: BACKOFF, deadline: None };
    PacerConfig { pace: Pace::Fixed, retry, ..PacerConfig::default() }
}

pub(crate) fn policy() -> SchedulerConfig {
    SchedulerConfig {
        max_retries: RETRIES,
        max_deferrals: Some(DEFERRALS),
        backoff: BACKOFF,
        deadline: YEAR,
        over_bound: OverBound::Fail,
        max_wait: YEAR,
        ..SchedulerConfig::default()
    }
}

pub(crate) fn request(case: &Case, scope: ScopeId, now: Instant) -> Request {
    Request {
        attempts: case.attempts,
        deferrals: case.deferrals,
        deadline: case.deadline.map(|deadline| now + (deadline - case.age)),
        ..Request::new(scope, Cost::request())
    }
}

pub(crate) fn of_action(action: NextAction) -> Seen {
    match action {
        NextAction::Retry { next, delay } | NextAction::Resend { next, delay } => {
            Seen { counts: (next.attempts, next.deferrals), then: Ok(delay) }
        }
        NextAction::GiveUp { reason, request } => {
            Seen { counts: (request.attempts, request.deferrals), then: Err(reason.as_str().to_owned()) }
        }
        other => panic!("{other:?} is no decision about a failure"),
    }
}

/// What `run` does.
pub(crate) fn by_pacer(case: &Case) -> Seen {
    let now = Instant::ZERO + case.age;
    let mut pacer = Pacer::new(pacer_config(), 1, now).unwrap();
    let scope = pacer.scope("chat");
    let ticket = pacer.enqueue(now, request(case, scope, now)).unwrap();
    assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket, probe: false }));
    of_action(pacer.complete(now, ticket, case.outcome()))
}

/// Sends that this test makes up, so that an item has the counts of a case.
fn made_up(claimed: &Claimed, counted: Counted) -> ClaimOutcome {
    let failure = Failure::new(Class::Transient, "made up");
    let decided = DecisionRecord { failure, action: "retry", reason: None, by: "test".to_owned(), stayed_down: false };
    let next = Transition::Retry(Duration::ZERO);
    ClaimOutcome { counted, next, decided: Some(decided), ..ClaimOutcome::back(claimed) }
}

pub(crate) type Waits = Arc<Mutex<Vec<Result<Duration, String>>>>;

/// Each wait that is decided, or why there is none, and who hears of it.
pub(crate) fn waits() -> (Waits, Observer) {
    let waits = Waits::default();
    let heard = waits.clone();
    let observer: Observer = Arc::new(move |note: &SchedulerEvent<'_>| {
        if let SchedulerEvent::Decided { decided, wait, .. } = note {
            let reason = decided.reason.clone().unwrap_or_default();
            heard.lock().unwrap().push(wait.ok_or(reason));
        }
    });
    (waits, observer)
}

/// What the durable scheduler does with that failure of the case.
pub(crate) async fn by_scheduler(case: &Case, failure: Failure) -> Seen {
    let clock = WorkClock::starting_at(START);
    let store = Arc::new(MemoryStore::new(clock.clone()));
    store.insert(vec![NewItem { deadline: case.deadline, ..NewItem::new("item", "{}") }]).await.unwrap();
    let worker = store.register("before", YEAR).await.unwrap();
    let sends = (0..case.attempts).map(|_| Counted::Attempt).chain((0..case.deferrals).map(|_| Counted::Deferral));
    for sent in sends {
        let claim = store.claim(worker, ClaimRequest { limit: 1, ahead: Duration::ZERO }).await.unwrap();
        store.record(vec![made_up(&claim.items[0], sent)], Vec::new()).await.unwrap();
    }
    store.deregister(worker).await.unwrap();
    tokio::time::advance(case.age).await;
    let (waits, heard) = waits();
    let scheduler = Scheduler::new(store.clone(), policy(), clock).unwrap().with_observer(heard);
    let seen = waits.clone();
    let stop = async move {
        while seen.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let (failure, sends) = (failure.of_probe(case.probe), case.attempts + case.deferrals);
    let fails_once = move |task: Task| {
        let failed = failure.clone();
        async move { if task.attempt() == sends + 1 { Err(failed) } else { std::future::pending().await } }
    };
    scheduler.run_until(fails_once, stop).await.unwrap();
    let then = waits.lock().unwrap()[0].clone();
    let item = store.show("item").await.unwrap().unwrap().0;
    Seen { counts: (item.attempts, item.deferrals), then }
}
