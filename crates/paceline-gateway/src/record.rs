//! What became of a client's request: told once it is over, to the metrics, and to the log where that is asked for.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use paceline::{Class, Clock};
use paceline_core::Instant;
use tracing::Level;

use crate::backend::Backend;
use crate::metrics::{Ending, REFUSED};
use crate::notes::cut;

/// Behind all that wait interactively.
pub(crate) const BATCH: i32 = -1;

/// The priorities of requests.
pub(crate) const PRIORITIES: [i32; 2] = [0, BATCH];

/// The name of a priority, for people and labels.
pub(crate) const fn priority_name(priority: i32) -> &'static str {
    if priority <= BATCH { "batch" } else { "interactive" }
}

/// The target of their log lines, which no usual filter lets pass.
const LOG: &str = "requests";

/// A first part of a path that is longer is not logged: a key may be there.
const LONGEST_PART: usize = 24;

/// The methods that are [registered](https://www.iana.org/assignments/http-methods).
const METHODS: &str = "ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL LINK LOCK MERGE MKACTIVITY \
                       MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST PROPFIND PROPPATCH PUT QUERY \
                       REBIND REPORT SEARCH TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE UPDATEREDIRECTREF VERSION-CONTROL";

/// A method as it is logged: any other may be a key, or as long as a head may be.
fn method_name(method: &Method) -> &'static str {
    METHODS.split(' ').find(|known| *known == method.as_str()).unwrap_or("other")
}

/// What is logged of a request that no upstream gets.
pub(crate) struct Visit(Option<Visited>);

struct Visited {
    method: &'static str,
    /// The first part of its path: a client that is not known may have put a key anywhere.
    path: String,
    peer: Option<SocketAddr>,
    clock: Clock,
    began: Instant,
}

impl Visit {
    /// That of a request which has just come from that address.
    pub(crate) fn new<Body>(request: &Request<Body>, peer: Option<SocketAddr>) -> Self {
        Self(tracing::enabled!(target: LOG, Level::INFO).then(|| {
            let part = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or_default();
            let path = format!("/{}", if part.len() > LONGEST_PART { "..." } else { part });
            let clock = Clock::new();
            Visited { method: method_name(request.method()), path, peer, began: clock.now(), clock }
        }))
    }

    /// It has got its answer, and where that refuses it with a code.
    pub(crate) fn ended(self, status: StatusCode, client: Option<&str>, code: Option<&'static str>) {
        let Some(Visited { method, path, peer, clock, began }) = self.0 else { return };
        tracing::info!(
            target: LOG,
            client,
            peer = peer.map(tracing::field::display),
            method,
            path,
            status = status.as_u16(),
            class = if code.is_some() { REFUSED } else { "own" },
            code,
            took_ms = clock.now().saturating_since(began).as_millis() as u64,
            "request"
        );
    }
}

/// A request on its way. It ends when this is dropped: with its answer, or because its client went away.
pub(crate) struct Record {
    upstream: Arc<Backend>,
    began: Instant,
    /// The method and the path, which is logged without its query: it may carry a key.
    of: Option<(&'static str, String)>,
    pub(crate) client: u64,
    /// Of a client with a key of the gateway's.
    pub(crate) client_name: Option<Arc<str>>,
    pub(crate) scope: Option<Arc<str>>,
    pub(crate) priority: i32,
    pub(crate) waited: Duration,
    pub(crate) calls: u32,
    /// Those of them that have ended, and of which nothing tells whether they were executed.
    pub(crate) unknown: u32,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) status: Option<StatusCode>,
    /// None before an answer.
    pub(crate) ending: Option<Ending>,
}

impl Record {
    /// That of a request which has just come.
    pub(crate) fn new(upstream: &Arc<Backend>, method: &Method, path: &str) -> Self {
        let is_logged = tracing::enabled!(target: LOG, Level::INFO);
        let logged = |path: &str| {
            let mut path = path.split('?').next().unwrap_or_default().to_owned();
            cut(&mut path);
            path
        };
        Self {
            upstream: Arc::clone(upstream),
            began: upstream.stopwatch.now(),
            of: is_logged.then(|| (method_name(method), logged(path))),
            client: 0,
            client_name: None,
            scope: None,
            priority: 0,
            waited: Duration::ZERO,
            calls: 0,
            unknown: 0,
            bytes_in: 0,
            bytes_out: 0,
            status: None,
            ending: None,
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let ending = self.ending.unwrap_or(Ending::Answered(Class::Abandoned));
        self.upstream.metrics().ended(self.scope.as_ref(), self.priority, self.waited, ending);
        let Some((method, path)) = self.of.take() else { return };
        tracing::info!(
            target: LOG,
            upstream = self.upstream.name(),
            scope = self.scope.as_deref(),
            client = self.client_name.as_deref().map_or_else(|| format!("{:016x}", self.client).into(), Cow::Borrowed).as_ref(),
            priority = priority_name(self.priority),
            method,
            path,
            status = self.status.map(|status| status.as_u16()),
            class = ending.as_str(),
            code = if let Ending::Refused(code) = ending { Some(code) } else { None },
            waited_ms = self.waited.as_millis() as u64,
            took_ms = (self.upstream.stopwatch.now() - self.began).as_millis() as u64,
            attempts = self.calls,
            bytes_in = self.bytes_in,
            bytes_out = self.bytes_out,
            "request"
        );
    }
}
