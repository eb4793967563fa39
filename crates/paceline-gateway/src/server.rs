//! The listener: connections of clients, and the routes of their requests.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::backend::{Backend, BackendError};
use crate::bounds::{Bounds, Held};
use crate::fallback;
use crate::forward::{AnswerBody, forward, whole_body};
use crate::headers;
use crate::own_routes::OwnRoutes;
use crate::refusal::Refusal;
use crate::route::Target;

/// Connections that the system keeps until they are accepted.
const BACKLOG: u32 = 4_096;

/// How long a client may take to send the head of a request.
const SLOWEST_HEAD: Duration = Duration::from_secs(30);

/// How long accepting pauses where the process has no file left.
const NO_FILES: Duration = Duration::from_millis(50);

/// Upstreams behind one address.
pub struct Gateway {
    upstreams: Vec<Arc<Backend>>,
    own: Option<Box<dyn OwnRoutes>>,
    bounds: Bounds,
    held: Held,
}

/// Listens on an address.
///
/// # Errors
/// An error of the operating system, such as a port that is taken.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl Gateway {
    /// A gateway to these upstreams, whose names differ.
    ///
    /// # Errors
    /// A fallback that is no upstream here, or one that takes calls of another form.
    pub fn new(
        upstreams: impl IntoIterator<Item = impl Into<Arc<Backend>>>,
        bounds: Bounds,
    ) -> Result<Arc<Self>, BackendError> {
        Self::of(upstreams, None, bounds)
    }

    /// The same with paths that the program answers itself, where no upstream has their name.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_own_routes(
        upstreams: impl IntoIterator<Item = impl Into<Arc<Backend>>>,
        own: impl OwnRoutes + 'static,
        bounds: Bounds,
    ) -> Result<Arc<Self>, BackendError> {
        Self::of(upstreams, Some(Box::new(own)), bounds)
    }

    fn of(
        upstreams: impl IntoIterator<Item = impl Into<Arc<Backend>>>,
        own: Option<Box<dyn OwnRoutes>>,
        bounds: Bounds,
    ) -> Result<Arc<Self>, BackendError> {
        let upstreams: Vec<_> = upstreams.into_iter().map(Into::into).collect();
        fallback::check(&upstreams)?;
        Ok(Arc::new(Self { upstreams, own, bounds, held: Held::default() }))
    }

    /// Its upstreams.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.upstreams.iter()
    }

    /// Serves until `ends` is ready; then answers what is under way, for as long as the bounds say.
    pub async fn serve(self: &Arc<Self>, listener: TcpListener, ends: impl Future<Output = ()>) {
        let (mut ends, graceful, mut accepts) = (pin!(ends), GracefulShutdown::new(), true);
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = &mut ends => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    accepts = true;
                    self.connected(stream, &graceful);
                }
                Err(error) => {
                    // Once until it passes: the next is tried at once.
                    if std::mem::replace(&mut accepts, false) {
                        tracing::warn!(
                            "connections cannot be accepted: {error}; raise `ulimit -n` if clients are many"
                        );
                    }
                    tokio::time::sleep(NO_FILES).await;
                }
            }
        }
        drop(listener);
        if tokio::time::timeout(self.bounds.drain, graceful.shutdown()).await.is_err() {
            tracing::warn!("requests were cut off, because their answers took longer than {:?}", self.bounds.drain);
        }
    }

    fn connected(self: &Arc<Self>, stream: TcpStream, graceful: &GracefulShutdown) {
        // Streams come in small pieces; without this each would wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let gateway = Arc::clone(self);
        let service = service_fn(move |request| {
            let gateway = Arc::clone(&gateway);
            async move { Ok::<_, Infallible>(gateway.answer(request).await) }
        });
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(SLOWEST_HEAD);
        builder.http2().timer(TokioTimer::new()).max_header_list_size(64 << 10);
        let watcher = graceful.watcher();
        tokio::spawn(async move {
            // What sends nothing at all is no client: its file is wanted.
            if !matches!(tokio::time::timeout(SLOWEST_HEAD, stream.readable()).await, Ok(Ok(()))) {
                return;
            }
            let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
            if let Err(error) = watcher.watch(connection).await {
                tracing::debug!("a client's connection ended: {error}");
            }
        });
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<AnswerBody> {
        let uri = request.uri().clone();
        if headers::is_of_a_page(&uri, request.headers()) {
            let message = "the gateway answers programs that name this machine, and no page of the web: its Host, Origin or \
                           Sec-Fetch-Site is that of another place";
            return refused(Refusal::new(StatusCode::FORBIDDEN, "foreign_page", message));
        }
        let Some(target) = Target::of(&uri) else {
            return refused(Refusal::bad_request("the path leaves the folder of its upstream"));
        };
        let own = self.own.as_ref().filter(|own| own.has(uri.path()));
        match (self.upstreams.iter().find(|upstream| upstream.name() == target.name), own) {
            (Some(upstream), _) => {
                let path =
                    if target.path.starts_with('/') { target.path.to_owned() } else { format!("/{}", target.path) };
                forward(&self.upstreams, upstream, path, request, &self.bounds, &self.held).await
            }
            (None, Some(own)) => own.answer(request).await.map(Either::Left),
            (None, None) if matches!(target.name, "healthz" | "readyz") => Response::new(whole_body("ok\n")),
            (None, None) => refused(self.unknown_route()),
        }
    }

    fn unknown_route(&self) -> Refusal {
        let names: Vec<_> = self.upstreams.iter().map(|upstream| format!("/{}/...", upstream.name())).collect();
        let message = format!("no upstream has this path; those here are {}", names.join(", "));
        Refusal::new(StatusCode::NOT_FOUND, "unknown_route", message)
    }
}

fn refused(refusal: Refusal) -> Response<AnswerBody> {
    refusal.into_response().map(whole_body)
}
