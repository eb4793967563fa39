//! The listener: connections of clients, and the routes of their requests.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use std::{fmt, io};

use http::header::CONNECTION;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::Either;
use paceline::{Clock, Repeats};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::backend::{Backend, BackendError};
use crate::bounds::{Bounds, Held, Taken};
use crate::clients::{Client, Clients, revoked};
use crate::closing::{Closing, Phase};
use crate::connection::Connections;
use crate::documents::Documents;
use crate::events::Latest;
use crate::files::Left;
use crate::forward::{AnswerBody, forward, whole_body};
use crate::jobs::{self, Jobs};
use crate::metrics::TurnedAway;
use crate::own_routes::{BodyInTime, OwnRoutes};
use crate::pages::{is_document, is_public, page};
use crate::record::Visit;
use crate::refusal::Refusal;
use crate::request_body::RequestBody;
use crate::route::{Target, upstream_of_host};
use crate::tls::ClientTls;
use crate::{browsers, fallback, files, head};

/// Connections that the system keeps until they are accepted.
const BACKLOG: u32 = 4_096;

/// How long accepting pauses where the process has no file left.
const NO_FILES: Duration = Duration::from_millis(50);

/// So often it does for a connection that would leave too few to others: a second, after which fewer are enough for them.
const LONGEST_WAIT_FOR_ROOM: u32 = 20;

/// The answer to a request.
enum Routed {
    /// A page of the gateway's, or what an upstream got, which is logged once it has ended.
    Answered(Response<AnswerBody>),
    /// The gateway's program answered it, for that client.
    Own(Response<AnswerBody>, Option<Arc<Client>>),
}

/// Upstreams behind one address.
pub struct Gateway {
    upstreams: RwLock<Arc<[Arc<Backend>]>>,
    own: Option<Box<dyn OwnRoutes>>,
    clients: watch::Sender<Arc<Clients>>,
    tls: RwLock<Option<ClientTls>>,
    pub(crate) bounds: Bounds,
    pub(crate) taken: Taken,
    pub(crate) closing: Closing,
    /// Requests of clients.
    pub(crate) under_way: Arc<AtomicU64>,
    pub(crate) streams: Held,
    pub(crate) documents: Documents,
    pub(crate) latest: Latest,
    pub(crate) jobs: Jobs,
    pub(crate) turned_away: TurnedAway,
    pub(crate) conditions: OnceLock<crate::conditions::Conditions>,
    /// The address of the metrics, where they have one of their own.
    metrics_at: OnceLock<SocketAddr>,
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
        let upstreams: Arc<[_]> = upstreams.into_iter().map(Into::into).collect();
        fallback::check(&upstreams)?;
        Ok(Arc::new(Self {
            upstreams: RwLock::new(upstreams),
            own,
            clients: watch::Sender::default(),
            tls: RwLock::default(),
            bounds,
            taken: Taken::default(),
            closing: Closing::default(),
            under_way: Arc::default(),
            streams: Held::default(),
            documents: Documents::default(),
            latest: Latest::default(),
            jobs: Jobs::default(),
            turned_away: TurnedAway::default(),
            conditions: OnceLock::new(),
            metrics_at: OnceLock::new(),
        }))
    }

    /// Its upstreams.
    pub fn upstreams(&self) -> Arc<[Arc<Backend>]> {
        Arc::clone(&self.upstreams.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What its program says of its batches.
    pub(crate) fn batches(&self) -> Value {
        self.own.as_ref().map_or_else(|| json!([]), |own| own.batches())
    }

    /// Who may call it. Default: programs of this machine.
    pub fn clients(&self) -> Arc<Clients> {
        Arc::clone(&self.clients.borrow())
    }

    /// These may call it from now on. Requests of others that wait are refused; those in flight are answered.
    pub fn replace_clients(&self, clients: Clients) {
        self.clients.send_replace(Arc::new(clients));
    }

    /// A wait of a request, which a gateway that closes ends, and one that revokes the key of its client.
    pub(crate) async fn bounds_wait<T, E: From<Refusal>>(
        &self,
        upstream: &str,
        client: Option<&Client>,
        wait: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let wait = self.closing.bounds(upstream, wait);
        let Some(client) = client else { return wait.await };
        let mut clients = self.clients.subscribe();
        tokio::select! {
            biased;
            _ = clients.wait_for(|clients| !clients.still_welcome(Some(client))) => Err(revoked().into()),
            () = client.key_ends() => Err(revoked().into()),
            ended = wait => ended,
        }
    }

    /// Shows this certificate to clients that connect from now on. Default: none, they connect without TLS. Returns whether it is
    /// another one than before.
    pub fn replace_tls(&self, tls: ClientTls) -> bool {
        let mut shown = self.tls.write().unwrap_or_else(PoisonError::into_inner);
        let is_another = shown.as_ref().is_none_or(|before| !before.is_same(&tls));
        *shown = Some(tls);
        is_another
    }

    pub(crate) fn tls(&self) -> Option<ClientTls> {
        self.tls.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Serves these from now on. A request that has begun ends with the upstream that it began with, and its present key.
    ///
    /// # Errors
    /// As [`new`](Self::new); the former ones stay then.
    pub fn replace_upstreams(&self, upstreams: impl IntoIterator<Item = Arc<Backend>>) -> Result<(), BackendError> {
        let upstreams: Arc<[_]> = upstreams.into_iter().collect();
        fallback::check(&upstreams)?;
        upstreams.iter().for_each(|upstream| upstream.shows_its_key());
        *self.upstreams.write().unwrap_or_else(PoisonError::into_inner) = upstreams;
        Ok(())
    }

    /// Serves until `ends` is ready. Then no connection is accepted any more, calls in flight are answered, and requests that
    /// are held go on waiting and are then refused, for as long as the bounds say. Returns how many requests were cut off then.
    pub async fn serve(self: &Arc<Self>, listener: TcpListener, ends: impl Future<Output = ()>) -> u64 {
        let connections = Connections::counted_in(Arc::clone(&self.under_way));
        let service = |gateway: Arc<Self>, peer, request| async move { gateway.answer(peer, request).await };
        tokio::select! {
            () = accept(listener, ends, &connections, |stream| {
                self.connected(stream, self.tls(), &connections, service);
            }) => {}
            () = self.keep_history() => unreachable!("it goes on for as long as it is polled"),
        }
        self.closing.enter(Phase::Drains);
        self.tell_what_is_left();
        let mut drained = pin!(connections.end());
        if timeout(self.bounds.drain_held, &mut drained).await.is_ok() {
            return 0;
        }
        self.closing.enter(Phase::Closes);
        let left = self.bounds.drain.saturating_sub(self.bounds.drain_held);
        timeout(left, drained).await.map_or_else(|_| self.cuts_off(), |()| 0)
    }

    /// Serves the metrics, and whether the gateway lives and is ready, on an address of their own, for as long as it is polled.
    /// The other address has no metrics then.
    pub async fn serve_metrics(self: &Arc<Self>, listener: TcpListener) {
        let _ = listener.local_addr().map(|address| self.metrics_at.set(address));
        let connections = Connections::default();
        let service = |gateway: Arc<Self>, _, request: Request<RequestBody>| async move {
            let uri = request.uri();
            let _making = if is_document(uri.path()) { Some(gateway.document_turn(None).await) } else { None };
            let is_here = matches!(uri.path(), "/metrics" | "/healthz" | "/readyz");
            let page = is_here.then(|| page(&gateway, request.method(), uri, None)).flatten();
            let message = "this address has /metrics, /healthz and /readyz; requests go to the address of --listen";
            page.unwrap_or_else(|| refused(Refusal::new(StatusCode::NOT_FOUND, "unknown_route", message)))
        };
        accept(listener, std::future::pending(), &connections, |stream| {
            self.connected(stream, None, &connections, service);
        })
        .await;
    }

    fn connected<Answer>(
        self: &Arc<Self>,
        stream: TcpStream,
        tls: Option<ClientTls>,
        connections: &Connections,
        answer: impl Fn(Arc<Self>, Option<SocketAddr>, Request<RequestBody>) -> Answer + Send + 'static,
    ) where
        Answer: Future<Output = Response<AnswerBody>> + Send + 'static,
    {
        // Streams come in small pieces; without this each would wait for the acknowledgement of the one before.
        let _ = stream.set_nodelay(true);
        let (gateway, peer) = (Arc::clone(self), stream.peer_addr().ok());
        let answering = Arc::clone(self);
        let answer = move |request| answer(Arc::clone(&answering), peer, request);
        let mut connection = connections.begin(&self.bounds);
        let slowest = self.bounds.slowest_head;
        tokio::spawn(async move {
            // What sends nothing at all is no client: its file is wanted.
            let first = tokio::select! {
                first = timeout(slowest, first_byte(&stream)) => first,
                () = connection.makes_room() => return,
            };
            let Ok(Ok(Some(first))) = first else { return };
            connection.begins_to_speak();
            let Some(tls) = tls else { return connection.serve(stream, answer).await };
            // HTTP begins with a word, and TLS never does.
            if first.is_ascii_alphabetic() {
                let refused = move |request| std::future::ready(gateway.wants_tls(peer, &request));
                return connection.serve(stream, refused).await;
            }
            let opened = tokio::select! {
                opened = timeout(slowest, TlsAcceptor::from(tls.config).accept(stream)) => opened,
                () = connection.makes_room() => return,
            };
            match opened {
                Ok(Ok(stream)) => connection.serve(stream, answer).await,
                Ok(Err(error)) => tracing::debug!("the TLS handshake with a client failed: {error}"),
                Err(_) => {}
            }
        });
    }

    async fn answer(self: &Arc<Self>, peer: Option<SocketAddr>, request: Request<RequestBody>) -> Response<AnswerBody> {
        let visit = Visit::new(&request, peer);
        if let Err(refusal) = head::check(&request) {
            return closing(&request, self.turn_away(visit, refusal));
        }
        match self.route(request).await {
            Ok(Routed::Answered(answer)) => answer,
            Ok(Routed::Own(answer, client)) => {
                visit.ended(answer.status(), client.as_ref().map(|client| &**client.name()), None);
                answer
            }
            Err(refusal) => self.turn_away(visit, refusal),
        }
    }

    /// The answer to a request that came without TLS to an address that has it.
    fn wants_tls(&self, peer: Option<SocketAddr>, request: &Request<RequestBody>) -> Response<AnswerBody> {
        let message = "this address speaks TLS, and the request came without: use https://";
        let refusal = Refusal::new(StatusCode::BAD_REQUEST, "tls_needed", message);
        closing(request, self.turn_away(Visit::new(request, peer), refusal))
    }

    /// The answer to a request that no upstream gets.
    fn turn_away(&self, visit: Visit, refusal: Refusal) -> Response<AnswerBody> {
        let (code, client) = (refusal.code(), refusal.client());
        self.turned_away.count(code);
        let answer = refused(refusal);
        visit.ended(answer.status(), client.as_deref(), Some(code));
        answer
    }

    async fn route(self: &Arc<Self>, mut request: Request<RequestBody>) -> Result<Routed, Refusal> {
        let (mut uri, upstreams) = (request.uri().clone(), self.upstreams());
        // There the whole path is the upstream's, and none is a page of the gateway.
        let at_host = upstream_of_host(&request, upstreams.iter().map(|upstream| upstream.name()));
        if at_host.is_none()
            && is_public(uri.path())
            && let Some(page) = page(self, request.method(), &uri, None)
        {
            return Ok(Routed::Answered(page));
        }
        let is_of_a_page = match &*self.clients() {
            Clients::OfThisMachine => browsers::is_of_a_page(&uri, request.headers(), || self.tls().is_some()),
            Clients::Anyone => browsers::is_of_another_site(&uri, request.headers(), || self.tls().is_some()),
            Clients::WithKeys(known) => {
                let client = Clients::admit(known, &mut request)?;
                // Without the client's key, which may stand in the query.
                uri.clone_from(request.uri());
                request.body_mut().counts_among(&client.files);
                request.extensions_mut().insert(client);
                // The key may stand in a link that a page of another site makes a browser follow.
                browsers::is_led(request.headers())
            }
        };
        if is_of_a_page {
            let message = "refused: Host, Origin or Sec-Fetch-Site says that a web page sent this; a program names this machine as \
                           the host, and a page of another origin needs a key (paceline serve keys add)";
            return Err(Refusal::new(StatusCode::FORBIDDEN, "foreign_page", message));
        }
        let client = request.extensions().get::<Arc<Client>>();
        let metrics_at = self.metrics_at.get().filter(|_| uri.path() == "/metrics");
        if at_host.is_none() {
            if uri.path() == "/api/jobs" && *request.method() == Method::POST {
                let names = upstreams.iter().map(|upstream| upstream.name());
                client.map_or(Ok(()), |client| client.may_have_jobs(names))?;
                return jobs::post(self, request).await.map(Routed::Answered);
            }
            let _making = if is_document(uri.path()) { Some(self.document_turn(client).await) } else { None };
            if let Some(page) = page(self, request.method(), &uri, client).filter(|_| metrics_at.is_none()) {
                // A stream that has ended leaves no connection open: its client is welcome no more.
                let is_stream = uri.path() == "/api/events";
                return Ok(Routed::Answered(if is_stream { closing(&request, page) } else { page }));
            }
        }
        let target = Target::of(&uri, at_host)
            .ok_or_else(|| Refusal::bad_request("the path leaves the folder of its upstream"))?;
        let own = self.own.as_ref().filter(|own| own.has(uri.path()));
        if let Some(upstream) = upstreams.iter().find(|upstream| upstream.name() == target.name) {
            let path = if target.path.starts_with('/') { target.path.to_owned() } else { format!("/{}", target.path) };
            let answer = forward(self, &upstreams, upstream, path, request).await;
            return Ok(Routed::Answered(answer));
        }
        let (own, client) = (own.ok_or_else(|| self.unknown_route(metrics_at))?, client.map(Arc::clone));
        client.as_ref().map_or(Ok(()), |client| client.may_have_work_done_later())?;
        let request = request.map(|body| BodyInTime::new(body, &self.bounds));
        Ok(Routed::Own(own.answer(request).await.map(Either::Left), client))
    }

    fn unknown_route(&self, metrics_at: Option<&SocketAddr>) -> Refusal {
        let metrics = metrics_at.map_or_else(String::new, |at| format!("; the metrics are at http://{at}/metrics"));
        let names: Vec<_> = self.upstreams().iter().map(|upstream| format!("/{}/...", upstream.name())).collect();
        let message = format!("no upstream has this path; those here are {}{metrics}", names.join(", "));
        Refusal::new(StatusCode::NOT_FOUND, "unknown_route", message)
    }
}

/// Accepts connections until `ends` is ready, and then those that the system has taken already: their clients know of no end.
async fn accept(
    listener: TcpListener,
    ends: impl Future<Output = ()>,
    connections: &Connections,
    mut connected: impl FnMut(TcpStream),
) {
    let (mut ends, mut shortage) = (pin!(ends), Shortage::new(connections));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut ends => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let mut is_over = false;
                if files::is_beyond(&stream) {
                    tokio::select! {
                        () = shortage.waits_for_room(&listener) => {}
                        () = &mut ends => is_over = true,
                    }
                } else {
                    shortage.is_over();
                }
                connected(stream);
                if is_over {
                    break;
                }
            }
            Err(error) => {
                shortage.goes_on(&error);
                sleep(NO_FILES).await;
            }
        }
    }
    // Tokio may not have been told of them yet.
    let Ok(listener) = listener.into_std() else { return };
    while let Ok((stream, _)) = listener.accept() {
        if let Ok(stream) = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)) {
            connected(stream);
        }
    }
}

/// Too few files for all who connect.
struct Shortage<'a> {
    connections: &'a Connections,
    repeats: Repeats,
    clock: Clock,
}

impl<'a> Shortage<'a> {
    fn new(connections: &'a Connections) -> Self {
        Self { connections, repeats: Repeats::new(), clock: Clock::new() }
    }

    fn is_over(&mut self) {
        if self.repeats.is_known() && self.repeats.went_well(self.clock.now()) {
            tracing::info!("connections are accepted again");
        }
    }

    /// Connections without a request make room, and those whose clients owe the bodies of theirs.
    fn goes_on(&mut self, why: &dyn fmt::Display) {
        if let Some(times) = self.repeats.came(self.clock.now()) {
            tracing::warn!(
                times = (times > 1).then_some(times),
                "connections wait to be accepted: {why}; raise `ulimit -n` (LimitNOFILE of a unit) if clients are many"
            );
        }
        self.connections.make_room();
    }

    /// Waits until the next connection leaves enough files to others. After a while half as many are enough: what holds the files
    /// may be busy.
    async fn waits_for_room(&mut self, listener: &TcpListener) {
        for round in 0u32.. {
            self.goes_on(&"nearly all files that this process may have open are in use");
            sleep(NO_FILES).await;
            let left = if round < LONGEST_WAIT_FOR_ROOM { Left::USUAL } else { Left::LEAST };
            if !files::would_be_beyond(listener, left) {
                return;
            }
        }
    }
}

/// What a client says first, which stays to be read; none where it has ended.
async fn first_byte(stream: &TcpStream) -> io::Result<Option<u8>> {
    let mut first = [0];
    Ok((stream.peek(&mut first).await? == 1).then_some(first[0]))
}

/// An answer after which nothing more is read of the connection: what follows may be part of the same request.
fn closing(request: &Request<RequestBody>, mut answer: Response<AnswerBody>) -> Response<AnswerBody> {
    if request.version() < Version::HTTP_2 {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

fn refused(refusal: Refusal) -> Response<AnswerBody> {
    refusal.into_response().map(whole_body)
}
