//! How far a job is, told to the gateway that its calls go through, which shows it on its page.
//!
//! A gateway that does not want to know is told all the same: whether it lives is seen by the calls.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use paceline_config::Upstream;
use reqwest::{Client, Url};
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use uuid::Uuid;

use crate::exit::Failure;

/// Between two lines. The gateway forgets a job after a minute.
const EVERY: Duration = Duration::from_secs(2);

/// Between two looks for the first line.
const FIRST: Duration = Duration::from_millis(250);

/// How long a line may take.
const SLOWEST: Duration = Duration::from_secs(2);

/// How far a job is.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct JobLine {
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) failed: u64,
    /// The rest takes so long, where that is known.
    pub(crate) left_ms: Option<u64>,
    /// What the next call waits for.
    pub(crate) waits: Option<String>,
}

/// Tells the gateway of one job.
#[derive(Clone)]
pub(crate) struct JobTeller(Arc<Address>);

struct Address {
    client: Client,
    url: Url,
    headers: HeaderMap,
    id: String,
    name: String,
    upstream: String,
}

/// A job that is told of, until this is ended.
pub(crate) struct Telling {
    ends: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

#[derive(Serialize)]
struct JobMessage<'a> {
    id: &'a str,
    name: &'a str,
    upstream: &'a str,
    state: &'a str,
    #[serde(flatten)]
    line: JobLine,
}

impl JobTeller {
    /// For the job of that name; none where its calls go through no gateway. `headers` are those of its calls.
    ///
    /// # Errors
    /// Certificates that cannot be read.
    pub(crate) fn of(upstream: &Upstream, headers: &HeaderMap, name: String) -> Result<Option<Self>, Failure> {
        let Some(mut url) = upstream.via.as_ref().and_then(|via| via.gateway.parse::<Url>().ok()) else {
            return Ok(None);
        };
        url.set_path("/api/jobs");
        url.set_query(None);
        let builder = paceline_http::client(url.as_str(), &upstream.access).map_err(Failure::refused)?;
        let client = builder.timeout(SLOWEST).build().map_err(Failure::refused)?;
        let (headers, id) = (headers.clone(), Uuid::now_v7().simple().to_string());
        Ok(Some(Self(Arc::new(Address { client, url, headers, id, name, upstream: upstream.name.clone() }))))
    }

    /// Tells what `line` says now and then, once it says something.
    pub(crate) fn begin(&self, line: impl Fn() -> Option<JobLine> + Send + 'static) -> Telling {
        let address = Arc::clone(&self.0);
        let (ends, mut ended) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                let told = line();
                let wait = if told.is_some() { EVERY } else { FIRST };
                address.tell("runs", told).await;
                tokio::select! {
                    () = sleep(wait) => {}
                    _ = &mut ended => break,
                }
            }
            address.tell("ended", line()).await;
        });
        Telling { ends, task }
    }
}

impl Telling {
    /// Tells that the job has ended.
    pub(crate) async fn end(self) {
        drop(self.ends);
        if let Err(error) = self.task.await {
            tracing::debug!("the gateway may not know that the job has ended: {error}");
        }
    }
}

impl Address {
    async fn tell(&self, state: &str, line: Option<JobLine>) {
        let Some(line) = line else { return };
        let Self { id, name, upstream, .. } = self;
        let body =
            serde_json::to_vec(&JobMessage { id, name, upstream, state, line }).expect("texts and numbers are JSON");
        let request = self.client.post(self.url.clone()).headers(self.headers.clone());
        match request.header(CONTENT_TYPE, "application/json").body(body).send().await {
            Ok(answer) if !answer.status().is_success() => {
                tracing::debug!("the gateway does not show this job: status {}", answer.status());
            }
            Ok(_) => {}
            Err(error) => tracing::debug!("the gateway does not show this job: {}", error.without_url()),
        }
    }
}
