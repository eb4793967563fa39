//! A rate-limited API in the memory of a test.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use paceline_core::{Cost, Instant, Rng};
use paceline_model::{Admission, Cause, Hints, ProviderConfig, ProviderError, ProviderModel, Refusal};
use tokio::sync::Notify;

use super::Recorder;
use crate::clock::Clock;

/// A rate-limited API in the memory of a test: it admits, refuses, takes its time and fails as its
/// [configuration](ProviderConfig) says, with the same answers each time. Its clones are the same API.
///
/// A success is a 200 with the body `{}`. A refusal is a 429, or a 503 where the service is overloaded, with the `Retry-After`
/// that its [hints](Self::with_hints) allow; a failure of the service is a 500. [`answer_next`](Self::answer_next) has other
/// answers. A quota becomes an API with that one limit, whose calls take 50 to 500 ms.
#[derive(Clone, Debug)]
pub struct MockApi {
    shared: Arc<Shared>,
    hints: Hints,
    calls: Recorder,
}

#[derive(Debug)]
struct Shared {
    /// Made by the first call: that is inside the runtime whose time counts.
    clock: OnceLock<Clock>,
    state: Mutex<State>,
    /// A call came or went, which changes when the others are done in a service that shares its capacity.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    model: ProviderModel,
    scripted: VecDeque<MockAnswer>,
    rng: Rng,
}

impl MockApi {
    /// An API that no call has reached.
    ///
    /// # Errors
    /// The part of the configuration that is invalid.
    pub fn new(config: impl Into<ProviderConfig>) -> Result<Self, ProviderError> {
        let model = ProviderModel::new(config.into(), 1)?;
        let state = Mutex::new(State { model, scripted: VecDeque::new(), rng: Rng::new(1) });
        let shared = Arc::new(Shared { clock: OnceLock::new(), state, changed: Notify::new() });
        Ok(Self { shared, hints: Hints::Honest, calls: Recorder::new() })
    }

    /// The same API with other waits in its refusals. Default: [`Hints::Honest`], the exact wait, rounded up to whole seconds as
    /// `Retry-After` has them. No header announces a limit, whatever the hints are.
    #[must_use]
    pub fn with_hints(self, hints: Hints) -> Self {
        Self { hints, ..self }
    }

    /// The next calls get these answers, in this order, whatever the limits say. They use up none of the limits.
    pub fn answer_next(&self, answers: impl IntoIterator<Item = MockAnswer>) {
        self.shared.lock().scripted.extend(answers);
    }

    /// Makes a call that counts as one request.
    ///
    /// # Errors
    /// What a connection that breaks gives, where an answer of the script is [`MockAnswer::reset`].
    pub async fn call(&self) -> io::Result<Response<String>> {
        self.call_costing(&Cost::request()).await
    }

    /// Makes a call of that cost, which the limits count.
    ///
    /// # Errors
    /// As those of [`call`](Self::call).
    pub async fn call_costing(&self, cost: &Cost) -> io::Result<Response<String>> {
        self.calls.record();
        let scripted = self.shared.lock().scripted.pop_front();
        if let Some(answer) = scripted {
            return answer.give().await;
        }
        let arrived = self.shared.lock().model.arrive(self.shared.now(), cost);
        let answer = match arrived {
            Admission::Refused(refusal) => self.refusal(&refusal),
            Admission::Admitted(service) => {
                self.shared.changed.notify_waiters();
                let _place = Place(&self.shared);
                self.shared.serve(&service).await;
                if service.fault { MockAnswer::status(500) } else { MockAnswer::status(200).body("{}") }
            }
        };
        answer.give().await
    }

    /// The calls that have reached the API.
    pub const fn calls(&self) -> &Recorder {
        &self.calls
    }

    fn refusal(&self, refusal: &Refusal) -> MockAnswer {
        let (status, wait) = match refusal.cause {
            Cause::Chance { status } => (status, refusal.wait.map(|wait| wait.as_secs_f64())),
            Cause::Overloaded => (503, self.told(refusal)),
            Cause::TooLarge { .. } => (429, None),
            Cause::Limit { .. } | Cause::Concurrency { .. } => (429, self.told(refusal)),
        };
        let answer = MockAnswer::status(status);
        match wait {
            Some(seconds) => answer.header("retry-after", &seconds.ceil().to_string()),
            None => answer,
        }
    }

    fn told(&self, refusal: &Refusal) -> Option<f64> {
        self.hints.wait(refusal.wait, &mut self.shared.lock().rng).map(|told| told.wait.as_secs_f64())
    }
}

impl Shared {
    fn now(&self) -> Instant {
        self.clock.get_or_init(Clock::new).now()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self, service: &paceline_model::Service) {
        loop {
            let changed = self.changed.notified();
            let left = self.lock().model.due(service, 1.0) - self.now();
            if left.is_zero() {
                return;
            }
            // Either may come first; a timeout that is cut short is asked for anew.
            let _ = tokio::time::timeout(left, changed).await;
        }
    }
}

/// A call in service. A caller that drops it leaves the service.
struct Place<'a>(&'a Shared);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.lock().model.finish(self.0.now());
        self.0.changed.notify_waiters();
    }
}

/// An answer of a script.
#[derive(Clone, Debug)]
pub struct MockAnswer {
    after: Duration,
    given: Given,
}

#[derive(Clone, Debug)]
enum Given {
    Response(Response<String>),
    Reset,
    Never,
}

impl MockAnswer {
    /// An answer with that status and an empty body, at once.
    ///
    /// # Panics
    /// Where no answer has such a status: 100 to 999.
    #[track_caller]
    pub fn status(status: u16) -> Self {
        let status = StatusCode::from_u16(status).expect("a status from 100 to 999");
        let mut response = Response::new(String::new());
        *response.status_mut() = status;
        Self { after: Duration::ZERO, given: Given::Response(response) }
    }

    /// The connection breaks: the call ends with [`io::ErrorKind::ConnectionReset`].
    pub const fn reset() -> Self {
        Self { after: Duration::ZERO, given: Given::Reset }
    }

    /// No answer ever comes.
    pub const fn never() -> Self {
        Self { after: Duration::ZERO, given: Given::Never }
    }

    /// The same answer with a header more. An answer without a response has none.
    ///
    /// # Panics
    /// Where it is no valid header.
    #[must_use]
    #[track_caller]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Given::Response(response) = &mut self.given {
            let name: HeaderName = name.parse().expect("a name of a header");
            response.headers_mut().append(name, value.parse::<HeaderValue>().expect("a value of a header"));
        }
        self
    }

    /// The same answer with that body, of type `application/json` where no header says another. An answer without a response has
    /// none.
    #[must_use]
    pub fn body(mut self, body: &str) -> Self {
        if let Given::Response(response) = &mut self.given {
            body.clone_into(response.body_mut());
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().entry(header::CONTENT_TYPE).or_insert(json);
        }
        self
    }

    /// The same answer, so much later.
    #[must_use]
    pub const fn after(mut self, delay: Duration) -> Self {
        self.after = delay;
        self
    }

    async fn give(self) -> io::Result<Response<String>> {
        if !self.after.is_zero() {
            tokio::time::sleep(self.after).await;
        }
        match self.given {
            Given::Response(response) => Ok(response),
            Given::Reset => Err(io::ErrorKind::ConnectionReset.into()),
            Given::Never => std::future::pending().await,
        }
    }
}
