//! An upstream made for the test, a gateway before it, and a client.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::HeaderValue;
use paceline::Limiter;
use paceline_config::{Config, Environment, Overrides, pacer_of};
use paceline_gateway::{Backend, BackendError, Bounds, ClientConfig, Clients, Gateway, KeyHash, listen};
use tokio::sync::{Semaphore, oneshot};

/// The key that the upstream wants.
pub(crate) const KEY: &str = "Bearer a3f8c9d2e1b04711";

/// A gateway to one upstream, `generic` or another.
pub(crate) struct Served {
    pub(crate) url: String,
    pub(crate) client: reqwest::Client,
    pub(crate) limiter: Limiter,
    pub(crate) gateway: Arc<Gateway>,
    ends: Option<oneshot::Sender<()>>,
    pub(crate) ended: tokio::task::JoinHandle<u64>,
}

/// A client whose key is `pk-NAME`, with these limits.
pub(crate) fn client(name: &str, limits: &[&str]) -> ClientConfig {
    let limits: Vec<_> = limits.iter().map(|limit| limit.parse().expect("a limit")).collect();
    ClientConfig {
        name: name.to_owned(),
        key: KeyHash::of(&format!("pk-{name}")),
        limits: (!limits.is_empty()).then(|| pacer_of(&limits).expect("limits")),
        models: Vec::new(),
        paths: Vec::new(),
        is_batch: false,
        former: None,
    }
}

/// From now on these clients alone may call, each with its key.
pub(crate) fn serve_to(served: &Served, clients: Vec<ClientConfig>) {
    served.gateway.replace_clients(Clients::with_keys(clients, &Clients::OfThisMachine).expect("limits"));
}

/// A server whose answers the test makes.
pub(crate) async fn upstream<F, Answer>(answer: F) -> SocketAddr
where
    F: Fn(Request) -> Answer + Clone + Send + Sync + 'static,
    Answer: Future<Output = Response> + Send + 'static,
{
    listens(Router::new().fallback(answer))
}

/// Apart from the above, which is compiled anew for each of its answers.
fn listens(router: Router) -> SocketAddr {
    let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
    let address = listener.local_addr().expect("it listens");
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// The same, with an answer by the number of the call, and the count of calls.
pub(crate) async fn counted<F>(answer: F) -> (SocketAddr, Calls)
where
    F: Fn(usize) -> Response + Clone + Send + Sync + 'static,
{
    let calls = Calls::default();
    let seen = calls.clone();
    let address = upstream(move |_| std::future::ready(answer(seen.next()))).await;
    (address, calls)
}

/// A setting of an upstream without a key of its own.
pub(crate) const NO_KEY: &str = "# its clients have keys";

/// A setting of an upstream whose key has signs that encoders escape.
pub(crate) const KEY_WITH_SIGNS: &str = "# Bearer a3f8/c9d2+e1b04711";

/// Settings of an upstream that is called with TLS.
pub(crate) const HTTPS: &str = "# https\n";

/// An upstream as the gateway serves it: of OpenAI's form, unless the settings say otherwise.
pub(crate) fn backend(name: &str, at: SocketAddr, settings: &str, bounds: &Bounds) -> Result<Backend, BackendError> {
    let provider = if settings.contains("provider") { "" } else { "provider = \"openai\"" };
    let scheme = if settings.contains(HTTPS) { "https" } else { "http" };
    let text = format!("[upstream.{name}]\n{provider}\nbase_url = \"{scheme}://{at}/v1\"\n{settings}");
    let config = Config::parse("test.toml".as_ref(), &text, Environment::default(), Overrides::default());
    let mut configured = config.and_then(|config| config.upstream()).expect("a right configuration");
    configured.pacer.background = configured.background;
    let mut key = HeaderValue::from_static(if settings.contains(KEY_WITH_SIGNS) { &KEY_WITH_SIGNS[2..] } else { KEY });
    key.set_sensitive(true);
    let has_key = !settings.contains(NO_KEY);
    let headers = has_key.then_some((http::header::AUTHORIZATION, key)).into_iter().collect();
    let limiter = Limiter::with_seed(configured.pacer.clone(), 1).expect("a right configuration");
    Backend::new(configured, headers, limiter, bounds)
}

impl Served {
    /// With these settings of the upstream, in TOML.
    pub(crate) fn new(upstream: SocketAddr, settings: &str, bounds: Bounds) -> Self {
        Self::all(&[("api", upstream, settings)], bounds)
    }

    /// Several upstreams by name; the client and the limiter are those of the first.
    pub(crate) fn all(upstreams: &[(&str, SocketAddr, &str)], bounds: Bounds) -> Self {
        let backends: Vec<_> = upstreams
            .iter()
            .map(|(name, at, settings)| backend(name, *at, settings, &bounds).expect("it is right"))
            .collect();
        let limiter = backends[0].limiter().clone();
        let gateway = Gateway::new(backends, bounds).expect("right fallbacks");
        let listener = listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let url = format!("http://{}/{}", listener.local_addr().expect("it listens"), upstreams[0].0);
        let (ends, told) = oneshot::channel();
        let serving = Arc::clone(&gateway);
        let ended = tokio::spawn(async move { serving.serve(listener, async { drop(told.await) }).await });
        let client = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { url, client, limiter, gateway, ends: Some(ends), ended }
    }

    /// The address of the gateway, without the upstream's name.
    pub(crate) fn origin(&self) -> String {
        self.url.trim_end_matches("/api").to_owned()
    }

    /// A prompt.
    pub(crate) fn post(&self) -> reqwest::RequestBuilder {
        let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
        self.client.post(format!("{}/v1/chat/completions", self.url)).body(body)
    }

    /// Asks the gateway to end.
    pub(crate) fn end(&mut self) {
        drop(self.ends.take());
    }
}

/// Counts what the upstream sees.
#[derive(Clone, Default)]
pub(crate) struct Calls(Arc<AtomicUsize>);

impl Calls {
    /// One more; returns how many there were before.
    fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Tells when a future or a body is dropped.
pub(crate) struct OnDrop(pub(crate) Arc<Semaphore>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

/// An answer.
pub(crate) fn answer(status: u16, headers: &[(&str, &str)], body: impl Into<Body>) -> Response {
    let builder =
        headers.iter().fold(Response::builder().status(status), |builder, (name, value)| builder.header(*name, *value));
    builder.body(body.into()).expect("an answer")
}
