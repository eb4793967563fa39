//! A layer of `tower`: each call of a service is one [`Limiter::run`].

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use paceline_core::{Cost, Request};
use tower_layer::Layer;
use tower_service::Service;

use crate::classify::{AnswerReader, Classified};
use crate::error::RunError;
use crate::limiter::Limiter;

/// Paces the calls of a service, and makes those again that may succeed later.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let client = tower::service_fn(async |_: http::Request<String>| std::io::Result::Ok(http::Response::new("hello")));
/// use paceline::{Limiter, PaceLayer, Quota};
/// use tower::{ServiceBuilder, ServiceExt};
///
/// let limiter = Limiter::new(Quota::per_second(50).burst(100))?;
/// let service = ServiceBuilder::new().layer(PaceLayer::new(limiter).by_head()).service(client);
/// let response = service.oneshot(http::Request::new(String::new())).await?;
/// assert_eq!(response.status(), 200);
/// # Ok(())
/// # }
/// ```
///
/// The limiter is shared by all clones of the layer and of its services. The service is always ready: what a call waits for
/// depends on its request, so it waits in the call's future, and holds no place of the service inside meanwhile. That service is
/// cloned for each try, and the request is cloned: a body has to be one that can be sent again, such as `Full<Bytes>`.
///
/// Answers are read with their whole bodies. Where these are streams, as those of a client of hyper (`Incoming`) are, the layer
/// needs [`by_head`](Self::by_head).
///
/// The body of a request that comes in, such as that of `axum`, is a stream. For `Router::layer` it is read first, and errors
/// become answers: docs/cookbook.md has the lines for it.
#[derive(Clone)]
pub struct PaceLayer<Reader = Classified, Described = ()> {
    limiter: Limiter,
    reader: Reader,
    described: Described,
}

impl PaceLayer {
    /// Each call costs one request in the scope named "default", and its result is read by [`Classify`](crate::Classify).
    pub const fn new(limiter: Limiter) -> Self {
        Self { limiter, reader: Classified, described: () }
    }
}

impl<Reader, Described> PaceLayer<Reader, Described> {
    /// Reads results otherwise: with a function from a result to its [`Outcome`](crate::Outcome), as in
    /// [`Run::read`](crate::Run::read).
    pub fn read<R>(self, reader: R) -> PaceLayer<R, Described> {
        let Self { limiter, described, .. } = self;
        PaceLayer { limiter, reader, described }
    }

    /// Reads HTTP responses by status and headers, and leaves their bodies to the caller: see [`ByHead`](crate::ByHead).
    #[cfg(feature = "http")]
    pub fn by_head(self) -> PaceLayer<crate::ByHead, Described> {
        self.read(crate::ByHead)
    }

    /// The scope, cost, priority and bounds of each call, from its request.
    ///
    /// ```
    /// # use paceline::{Cost, Limiter, PaceLayer, Quota, Request};
    /// # fn layer(limiter: Limiter) {
    /// let layer = PaceLayer::new(limiter).describe(|limiter, request: &http::Request<String>| {
    ///     Request::new(limiter.scope(request.uri().path()), Cost::request())
    /// });
    /// # let _ = layer;
    /// # }
    /// ```
    pub fn describe<Req, F: Fn(&Limiter, &Req) -> Request>(self, described: F) -> PaceLayer<Reader, F> {
        let Self { limiter, reader, .. } = self;
        PaceLayer { limiter, reader, described }
    }
}

impl<Reader, Described> fmt::Debug for PaceLayer<Reader, Described> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaceLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

impl<S, Reader: Clone, Described: Clone> Layer<S> for PaceLayer<Reader, Described> {
    type Service = PacedService<S, Reader, Described>;

    fn layer(&self, service: S) -> Self::Service {
        PacedService { service, layer: Arc::new(self.clone()) }
    }
}

/// A service whose calls are paced, as [`PaceLayer`] makes it.
pub struct PacedService<S, Reader = Classified, Described = ()> {
    service: S,
    layer: Arc<PaceLayer<Reader, Described>>,
}

impl<S: Clone, Reader, Described> Clone for PacedService<S, Reader, Described> {
    fn clone(&self) -> Self {
        Self { service: self.service.clone(), layer: Arc::clone(&self.layer) }
    }
}

impl<S: fmt::Debug, Reader, Described> fmt::Debug for PacedService<S, Reader, Described> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacedService").field("service", &self.service).field("layer", &self.layer).finish()
    }
}

/// What the limiter is asked for, from the request of a call: a closure, or nothing.
pub trait Describe<Req> {
    /// The request for a permit.
    fn describe(&self, limiter: &Limiter, request: &Req) -> Request;
}

impl<Req> Describe<Req> for () {
    fn describe(&self, limiter: &Limiter, _: &Req) -> Request {
        Request::new(limiter.default_scope(), Cost::request())
    }
}

impl<Req, F: Fn(&Limiter, &Req) -> Request> Describe<Req> for F {
    fn describe(&self, limiter: &Limiter, request: &Req) -> Request {
        self(limiter, request)
    }
}

impl<S, Req, Reader, Described> Service<Req> for PacedService<S, Reader, Described>
where
    S: Service<Req, Future: Send, Response: Send, Error: Send> + Clone + Send + 'static,
    Req: Clone + Send + 'static,
    Reader: AnswerReader<Result<S::Response, S::Error>> + Clone + Send + Sync + 'static,
    Described: Describe<Req> + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = RunError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let (service, layer) = (self.service.clone(), Arc::clone(&self.layer));
        Box::pin(async move {
            let wanted = layer.described.describe(&layer.limiter, &request);
            let send = move || {
                let (mut service, request) = (service.clone(), request.clone());
                async move {
                    poll_fn(|context| service.poll_ready(context)).await?;
                    service.call(request).await
                }
            };
            layer.limiter.run(send).read_by(layer.reader.clone()).request(wanted).await
        })
    }
}
