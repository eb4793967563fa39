//! A server on this machine that gives prepared answers, and calls to it.

use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use paceline::{Limiter, Pace, PacerConfig};
use paceline_http::{Call, Exchange, Sender, SenderConfig, client_to};
use paceline_providers::Provider;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What the server got to see of a call.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// How many came before.
    pub(crate) before: usize,
}

type Script = dyn Fn(&Arrival) -> Option<Response<Full<Bytes>>> + Send + Sync;

/// A server, and what arrived there.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) url: String,
    arrivals: Arc<Mutex<Vec<Arrival>>>,
    script: Arc<Script>,
}

impl Server {
    /// Answers as the script says, and not at all where it says nothing.
    pub(crate) async fn new(
        script: impl Fn(&Arrival) -> Option<Response<Full<Bytes>>> + Send + Sync + 'static,
    ) -> Self {
        Self::listen(None, script).await
    }

    /// The same, behind TLS.
    pub(crate) async fn tls(acceptor: TlsAcceptor) -> Self {
        Self::listen(Some(acceptor), |_| Some(ok("{}"))).await
    }

    async fn listen(
        acceptor: Option<TlsAcceptor>,
        script: impl Fn(&Arrival) -> Option<Response<Full<Bytes>>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let scheme = if acceptor.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://localhost:{}", listener.local_addr().unwrap().port());
        let server = Self { url, arrivals: Arc::default(), script: Arc::new(script) };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, acceptor) = (serving.clone(), acceptor.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => server.serve(stream).await,
                        Some(acceptor) => {
                            // A client that distrusts the server hangs up.
                            let Ok(stream) = acceptor.accept(stream).await else { return };
                            server.serve(stream).await;
                        }
                    }
                });
            }
        });
        server
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = service_fn(|request: Request<hyper::body::Incoming>| {
            let server = self.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let path = head.uri.to_string();
                let arrival = {
                    let mut all = server.arrivals.lock().unwrap();
                    let before = all.len();
                    all.push(Arrival { method: head.method, path, headers: head.headers, body, before });
                    all[before].clone()
                };
                match (server.script)(&arrival) {
                    Some(answer) => Ok::<_, Infallible>(answer),
                    None => pending().await,
                }
            }
        });
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // A caller that gives up hangs up.
        let _ = connection.await;
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.arrivals.lock().unwrap().clone()
    }

    /// How a sender to this server is set up.
    pub(crate) fn config(&self, provider: Provider) -> SenderConfig {
        SenderConfig::new(&self.url, provider)
    }

    /// A sender to this server.
    pub(crate) fn sender(&self, provider: Provider) -> Sender {
        sender(self.config(provider))
    }
}

pub(crate) fn sender(config: SenderConfig) -> Sender {
    Sender::new(client_to(&config.base_url), config).unwrap()
}

pub(crate) fn ok(body: &str) -> Response<Full<Bytes>> {
    answer(200, body)
}

pub(crate) fn answer(status: u16, body: &str) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap()
}

pub(crate) fn with(mut answer: Response<Full<Bytes>>, name: &'static str, value: &str) -> Response<Full<Bytes>> {
    answer.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
    answer
}

pub(crate) fn post(url: &str, body: &str) -> Call {
    Call { method: Method::POST, url: url.to_owned(), body: Bytes::copy_from_slice(body.as_bytes()), ..Call::default() }
}

/// A limiter that holds nothing back.
pub(crate) fn limiter() -> Limiter {
    Limiter::new(PacerConfig { pace: Pace::None, ..PacerConfig::default() }).unwrap()
}

/// Sends a call for an item under a permit of its own.
pub(crate) async fn send(sender: &Sender, item: u64, call: &Call) -> Exchange {
    let limiter = limiter();
    let cost = sender.charge("chat", call);
    let request = paceline::Request { item: Some(item), ..paceline::Request::new(limiter.scope("chat"), cost) };
    sender.send(limiter.acquire(request).await.unwrap(), call, pending()).await
}
