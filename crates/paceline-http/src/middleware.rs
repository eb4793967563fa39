//! A middleware of `reqwest-middleware`: each request of a client is one `Limiter::run`.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Extensions, Response};
use paceline::{AnswerReader, Attempt, ByHead, Class, Classify, Describe, Limiter, Outcome};
use reqwest::{Body, Request, ResponseBuilderExt as _, Url};
use reqwest_middleware::{Error, Middleware, Next};
use tokio::sync::Mutex;

use crate::gateway::{Link, Passed};
use crate::no_answer::NoAnswer;
use crate::receive::{LARGEST_ANSWER, receive};

/// Paces the requests of a client, and makes those again that may succeed later.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use paceline::{Limiter, Quota};
/// use paceline_http::{PaceMiddleware, client_to};
/// use reqwest_middleware::ClientBuilder;
///
/// let limiter = Limiter::new(Quota::per_second(50))?;
/// let url = "https://api.example.com/things";
/// let client = ClientBuilder::new(client_to(url).build()?).with(PaceMiddleware::new(limiter)).build();
/// let answer = client.get(url).send().await?;
/// println!("{}", answer.status());
/// # Ok(())
/// # }
/// ```
///
/// The answer to the last try comes back, whatever its status. A success is read by its head, and its body is left to the
/// caller: it may be a stream ([`whole`](Self::whole) reads it). Every other answer is read whole, up to [`LARGEST_ANSWER`]
/// bytes, because its body may say what it means.
///
/// A middleware behind this one sees every try, one before it the whole. A request whose body is a stream cannot be sent a second
/// time: it fails with [`NoAnswer::Streamed`] before it is sent. Whatever its method is, a request may be sent again that the
/// server has done and not answered: one that must not be done twice carries a key by which the server recognizes it.
#[derive(Clone)]
pub struct PaceMiddleware<Described = ()> {
    limiter: Limiter,
    described: Described,
    whole: bool,
    gateway: Option<Arc<Link>>,
}

impl PaceMiddleware {
    /// Each request costs one request in the scope named "default".
    pub const fn new(limiter: Limiter) -> Self {
        Self { limiter, described: (), whole: false, gateway: None }
    }
}

impl<Described> PaceMiddleware<Described> {
    /// The scope, cost, priority and bounds of each request.
    ///
    /// ```
    /// # use paceline::{Cost, Limiter, Quota, Request};
    /// # use paceline_http::PaceMiddleware;
    /// # fn pace(limiter: Limiter) {
    /// let pace = PaceMiddleware::new(limiter).describe(|limiter, request: &reqwest::Request| {
    ///     Request::new(limiter.scope(request.url().path()), Cost::request())
    /// });
    /// # let _ = pace;
    /// # }
    /// ```
    pub fn describe<F: Fn(&Limiter, &Request) -> paceline::Request>(self, described: F) -> PaceMiddleware<F> {
        let Self { limiter, whole, gateway, .. } = self;
        PaceMiddleware { limiter, described, whole, gateway }
    }

    /// Reads successes whole as well, up to [`LARGEST_ANSWER`] bytes. So a refusal inside a 200 is one, and the usage in an
    /// answer replaces what its request reserved, where the provider counts so. Not for a client that streams: an answer comes
    /// back when it has ended.
    #[must_use]
    pub fn whole(self) -> Self {
        Self { whole: true, ..self }
    }

    /// The client calls a gateway, `paceline serve`: each request says how many retries are left to it, and those that the
    /// gateway spends count here. So both together retry no more often than one alone.
    #[must_use]
    pub fn through_gateway(self) -> Self {
        Self { gateway: Some(Arc::default()), ..self }
    }
}

impl<Described> fmt::Debug for PaceMiddleware<Described> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaceMiddleware").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

#[async_trait]
impl<Described: Describe<Request> + Send + Sync + 'static> Middleware for PaceMiddleware<Described> {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<reqwest::Response, Error> {
        let wanted = self.described.describe(&self.limiter, &request);
        // One try at a time: no call waits for it.
        let extensions = Mutex::new(extensions);
        let send = || async {
            let mut copy = request.try_clone().ok_or_else(|| Error::middleware(NoAnswer::Streamed))?;
            if let Some(gateway) = &self.gateway {
                gateway.tell(copy.headers_mut(), self.limiter.retries_left().unwrap_or_default(), None);
            }
            let mut extensions = extensions.lock().await;
            let response = next.clone().run(copy, &mut extensions).await?;
            Answer::of(response, self.whole).await.map_err(Error::middleware)
        };
        let reader = ByAnswer { through: self.gateway.is_some() };
        let answer = self.limiter.run(send).read_by(reader).request(wanted).await;
        answer.map(Answer::into_response).map_err(|error| match error.into_operation() {
            Ok(error) => error,
            Err(error) => Error::middleware(error),
        })
    }
}

/// An answer with as much of it as was read.
enum Answer {
    Head(reqwest::Response),
    Whole(Url, Response<Bytes>),
}

impl Answer {
    async fn of(response: reqwest::Response, whole: bool) -> Result<Self, NoAnswer> {
        if response.status().is_success() && !whole {
            return Ok(Self::Head(response));
        }
        let url = response.url().clone();
        Ok(Self::Whole(url, receive(response, LARGEST_ANSWER).await?))
    }

    fn into_response(self) -> reqwest::Response {
        match self {
            Self::Head(response) => response,
            Self::Whole(url, whole) => {
                let (with_url, ()) = Response::builder().url(url).body(()).expect("nothing invalid").into_parts();
                let mut whole = whole.map(Body::from);
                whole.extensions_mut().extend(with_url.extensions);
                whole.into()
            }
        }
    }
}

/// Reads what there is of an answer.
#[derive(Clone, Copy)]
struct ByAnswer {
    /// It comes through a gateway.
    through: bool,
}

impl AnswerReader<Result<Answer, Error>> for ByAnswer {
    fn outcome(&self, result: &Result<Answer, Error>, attempt: &Attempt<'_>) -> Outcome {
        match result {
            Ok(Answer::Head(response)) => {
                let mut head = Response::new(());
                *head.status_mut() = response.status();
                head.headers_mut().clone_from(response.headers());
                ByHead.outcome(&Ok::<_, NoAnswer>(head), attempt)
            }
            Ok(Answer::Whole(_, whole)) => {
                let passed = if self.through { Passed::of(whole.headers()) } else { Passed::STRAIGHT };
                Outcome { retried: passed.retried, ..whole.outcome(attempt) }
            }
            Err(Error::Reqwest(error)) => NoAnswer::of(error).outcome(attempt),
            Err(Error::Middleware(error)) => match error.downcast_ref::<NoAnswer>() {
                Some(none) => none.outcome(attempt),
                None => Outcome { reason: Some(error.to_string().into()), ..Outcome::new(Class::Transient) },
            },
        }
    }
}
