//! Connections to an upstream: straight to it, or through a proxy.

use std::error::Error;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::PROXY_AUTHORIZATION;
use http::uri::Scheme;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{
    CaptureConnection, Connected, Connection, HttpConnector, capture_connection,
};
use hyper_util::client::proxy::matcher::Intercept;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;

/// Makes connections to an upstream within a time: its TLS over what leads to it. The client copies it for each request, also
/// where it has a connection: so it is one pointer.
#[derive(Clone)]
pub(crate) struct Connector(Arc<Making>);

/// How connections are made.
struct Making {
    connector: HttpsConnector<Way>,
    longest: Duration,
}

/// What leads to an upstream.
#[derive(Clone)]
pub(crate) enum Way {
    Straight(HttpConnector),
    Through(Proxy),
}

/// A proxy, which may be reached by TLS itself.
#[derive(Clone)]
pub(crate) struct Proxy {
    address: Intercept,
    connector: HttpsConnector<HttpConnector>,
}

/// Bytes to and from an upstream or a proxy.
pub(crate) enum Stream {
    Straight(TokioIo<TcpStream>),
    /// The proxy passes all bytes on.
    Tunnel(Box<MaybeHttpsStream<TokioIo<TcpStream>>>),
    /// The proxy reads requests, which name the whole address, and makes its own.
    Forward(Box<MaybeHttpsStream<TokioIo<TcpStream>>>),
}

type Connecting<Stream> = Pin<Box<dyn Future<Output = Result<Stream, Box<dyn Error + Send + Sync>>> + Send>>;

/// Makes connections over `connector`, to an upstream or to its proxy. None takes longer, also where a handshake hangs: then no
/// call was sent.
pub(crate) fn connector(
    mut connector: HttpConnector,
    proxy: Option<Intercept>,
    tls: ClientConfig,
    longest: Duration,
) -> Connector {
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(longest));
    let way = match proxy {
        None => Way::Straight(connector),
        Some(address) => {
            let builder = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http().enable_http1();
            Way::Through(Proxy { address, connector: builder.wrap_connector(connector) })
        }
    };
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_all_versions();
    Connector(Arc::new(Making { connector: builder.wrap_connector(way), longest }))
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<Stream>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Connecting<Self::Response>;

    /// What makes the connection is asked for that by the call.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (mut connector, longest) = (self.0.connector.clone(), self.0.longest);
        Box::pin(async move {
            let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {longest:?}"));
            let connecting = async {
                poll_fn(|context| connector.poll_ready(context)).await?;
                connector.call(to).await
            };
            timeout(longest, connecting).await.map_err(|_| late())?
        })
    }
}

/// The connection that a call takes, where it may have to carry no other: behind an answer that has no body, or that came before
/// the body of its request, a server may send bytes at any time, and nothing tells them from the next answer.
pub(crate) struct Taken {
    connection: CaptureConnection,
    method: Method,
    is_stream: bool,
}

impl Taken {
    /// By that request, whose body goes on as it comes (`is_stream`) or is held.
    pub(crate) fn by<Body>(request: &mut Request<Body>, is_stream: bool) -> Self {
        Self { connection: capture_connection(request), method: request.method().clone(), is_stream }
    }

    /// An answer of that status has begun.
    pub(crate) fn answered(self, status: StatusCode) {
        let has_no_body = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if !(has_no_body || self.is_stream || self.method == Method::HEAD) {
            return;
        }
        let connected = self.connection.connection_metadata();
        // HTTP/2 says of each byte which answer it is of.
        connected.iter().filter(|connected| !connected.is_negotiated_h2()).for_each(Connected::poison);
    }
}

/// The header fields by which a proxy that reads the requests knows the caller.
pub(crate) fn for_proxy(proxy: Option<&Intercept>, is_plain: bool) -> HeaderMap {
    let caller = proxy.filter(|_| is_plain).and_then(Intercept::basic_auth);
    caller.map(|caller| (PROXY_AUTHORIZATION, caller.clone())).into_iter().collect()
}

impl Service<Uri> for Way {
    type Response = Stream;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Connecting<Stream>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        match self {
            Self::Straight(connector) => connector.poll_ready(context).map_err(Into::into),
            Self::Through(proxy) => proxy.connector.poll_ready(context),
        }
    }

    fn call(&mut self, to: Uri) -> Connecting<Stream> {
        match self {
            Self::Straight(connector) => {
                let connecting = connector.call(to);
                Box::pin(async move { Ok(Stream::Straight(connecting.await?)) })
            }
            Self::Through(Proxy { address, connector }) if to.scheme() == Some(&Scheme::HTTPS) => {
                let mut tunnel = Tunnel::new(address.uri().clone(), connector.clone());
                if let Some(caller) = address.basic_auth() {
                    tunnel = tunnel.with_auth(caller.clone());
                }
                let connecting = tunnel.call(to);
                Box::pin(async move { Ok(Stream::Tunnel(Box::new(connecting.await?))) })
            }
            Self::Through(Proxy { address, connector }) => {
                let connecting = connector.call(address.uri().clone());
                Box::pin(async move { Ok(Stream::Forward(Box::new(connecting.await?))) })
            }
        }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            // Not with its addresses, which would come with each answer, and which the gateway does not ask for.
            Self::Straight(_) => Connected::new(),
            Self::Tunnel(stream) => stream.connected(),
            Self::Forward(stream) => stream.connected().proxy(true),
        }
    }
}

/// Does the same with the bytes of either.
macro_rules! with_stream {
    ($self:expr, $stream:ident => $do:expr) => {
        match $self.get_mut() {
            Stream::Straight(stream) => {
                let $stream = Pin::new(stream);
                $do
            }
            Stream::Tunnel(stream) | Stream::Forward(stream) => {
                let $stream = Pin::new(&mut **stream);
                $do
            }
        }
    };
}

impl Read for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_read(context, into))
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => stream.poll_shutdown(context))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Straight(stream) => stream.is_write_vectored(),
            Self::Tunnel(stream) | Self::Forward(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => stream.poll_write_vectored(context, bytes))
    }
}
