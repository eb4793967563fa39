//! How far a job is, told to the gateway that its calls go through, else to those that its user has on this machine: they
//! show it on their page.
//!
//! A gateway that does not want to know is told all the same: whether it lives is seen by the calls.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
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

use crate::account::gateways;
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

/// Tells gateways of one job.
#[derive(Clone)]
pub(crate) struct JobTeller(Arc<Job>);

struct Job {
    hears: Hears,
    id: String,
    name: String,
    upstream: String,
}

/// Who is told.
enum Hears {
    /// The gateway that its calls go through, with what these carry.
    Via { client: Client, url: Url, headers: HeaderMap },
    /// Those of its user, which get no header of a call: a key may be among them.
    Own { client: OnceLock<Option<Client>>, refused: Mutex<BTreeSet<String>> },
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
    /// For the job of that name. `headers` are those of its calls.
    ///
    /// # Errors
    /// Certificates that cannot be read.
    pub(crate) fn of(upstream: &Upstream, headers: &HeaderMap, name: String) -> Result<Self, Failure> {
        let Some(mut url) = upstream.via.as_ref().and_then(|via| via.gateway.parse::<Url>().ok()) else {
            return Ok(Self::of_own(&upstream.name, name));
        };
        url.set_path("/api/jobs");
        url.set_query(None);
        let builder = paceline_http::client(url.as_str(), &upstream.access).map_err(Failure::refused)?;
        let client = builder.timeout(SLOWEST).build().map_err(Failure::refused)?;
        Ok(Self::to(Hears::Via { client, url, headers: headers.clone() }, &upstream.name, name))
    }

    /// For a job whose calls go through no gateway.
    pub(crate) fn of_own(upstream: &str, name: String) -> Self {
        Self::to(Hears::Own { client: OnceLock::new(), refused: Mutex::default() }, upstream, name)
    }

    fn to(hears: Hears, upstream: &str, name: String) -> Self {
        let id = Uuid::now_v7().simple().to_string();
        Self(Arc::new(Job { hears, id, name, upstream: upstream.to_owned() }))
    }

    /// Tells what `line` says now and then, once it says something.
    pub(crate) fn begin(&self, line: impl Fn() -> Option<JobLine> + Send + 'static) -> Telling {
        let job = Arc::clone(&self.0);
        let (ends, mut ended) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                let told = line();
                let wait = if told.is_some() { EVERY } else { FIRST };
                job.tell("runs", told).await;
                tokio::select! {
                    () = sleep(wait) => {}
                    _ = &mut ended => break,
                }
            }
            job.tell("ended", line()).await;
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

impl Job {
    async fn tell(&self, state: &str, line: Option<JobLine>) {
        let Some(line) = line else { return };
        let Self { hears, id, name, upstream } = self;
        let body =
            serde_json::to_vec(&JobMessage { id, name, upstream, state, line }).expect("texts and numbers are JSON");
        match hears {
            Hears::Via { client, url, headers } => drop(post(client, url.clone(), headers.clone(), body).await),
            Hears::Own { client, refused } => {
                let is_new = |url: &String| !refused.lock().unwrap_or_else(PoisonError::into_inner).contains(url);
                for gateway in tokio::task::block_in_place(gateways::running).into_iter().filter(is_new) {
                    let client =
                        client.get_or_init(|| paceline_http::client_to(&gateway).timeout(SLOWEST).build().ok());
                    let (Some(client), Ok(url)) = (client, format!("{gateway}/api/jobs").parse::<Url>()) else {
                        continue;
                    };
                    // One that wants a key, or does not know of jobs, is told no more.
                    if post(client, url, HeaderMap::new(), body.clone()).await == Some(false) {
                        refused.lock().unwrap_or_else(PoisonError::into_inner).insert(gateway);
                    }
                }
            }
        }
    }
}

/// Whether the gateway takes the line; none where it does not answer.
async fn post(client: &Client, url: Url, headers: HeaderMap, body: Vec<u8>) -> Option<bool> {
    match client.post(url).headers(headers).header(CONTENT_TYPE, "application/json").body(body).send().await {
        Ok(answer) => {
            let takes = answer.status().is_success();
            if !takes {
                tracing::debug!("the gateway does not show this job: status {}", answer.status());
            }
            Some(takes)
        }
        Err(error) => {
            tracing::debug!("the gateway does not show this job: {}", error.without_url());
            None
        }
    }
}
