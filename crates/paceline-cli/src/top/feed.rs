//! What a gateway tells of its state: all of it at first, then what changes.

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use http::HeaderValue;
use paceline_http::{NoAnswer, client_trusting};
use paceline_providers::secrets::hidden;
use reqwest::{Client, RequestBuilder, StatusCode, Url};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::history::History;
use super::state::{Changes, Place};
use crate::exit::Failure;

/// A gateway that is gone is asked again after that time.
const AGAIN: Duration = Duration::from_secs(2);

/// A gateway where nothing changes sends a comment every 15 s.
const SILENT: Duration = Duration::from_secs(40);

/// Between two looks at the last quarter of an hour, whose steps are as long.
const HISTORY: Duration = Duration::from_secs(10);

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);

/// What came.
pub(super) enum FeedEvent {
    /// A part of the state.
    Changes(Box<Changes>),
    /// No gateway answers there.
    Lost(String),
    /// It answers, and not with its state.
    Refused(String),
    /// The last quarter of an hour of a scope, where one is kept.
    History(Place, Option<Box<History>>),
}

/// Follows one gateway.
#[derive(Clone)]
pub(super) struct Feed {
    client: Client,
    address: String,
    key: Option<HeaderValue>,
}

impl Feed {
    /// The gateway at that address, to which that key is shown, and whose certificate may be one of those authorities.
    pub(super) fn new(url: &str, key: Option<String>, ca_file: Option<&Path>) -> Result<Self, Failure> {
        let address = url.trim_end_matches('/').to_owned();
        // A key may stand where the address should, or in it.
        let wrong = |why: &str| {
            let shown = hidden(url);
            Failure::refused(format!(
                "{shown:?} is no address of a gateway: {why}expected one such as http://127.0.0.1:4747"
            ))
        };
        let parsed: reqwest::Url = address.parse().map_err(|error| wrong(&format!("{error}; ")))?;
        let has_more = parsed.query().is_some() || !parsed.username().is_empty() || parsed.password().is_some();
        if has_more || parsed.fragment().is_some() {
            return Err(Failure::refused(
                "the address of a gateway has no user, password, query or fragment: expected one such as http://127.0.0.1:4747, \
                 and the key in the variable that --api-key-env names",
            ));
        }
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(wrong(""));
        }
        let key = key.map(|key| HeaderValue::from_str(&key)).transpose();
        let mut key = key.map_err(|_| Failure::refused("the key of --api-key-env is no value of a header field"))?;
        key.iter_mut().for_each(|key| key.set_sensitive(true));
        let client = client_trusting(&address, ca_file).map_err(Failure::refused)?;
        let client = client.connect_timeout(CONNECT).build().map_err(Failure::refused)?;
        Ok(Self { client, address, key })
    }

    /// Where it is.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// All that it tells, for as long as that is taken.
    pub(super) fn follow(self) -> mpsc::Receiver<FeedEvent> {
        let (sender, told) = mpsc::channel(4);
        tokio::spawn(async move {
            loop {
                let Err(ended) = self.once(&sender).await else { return };
                if sender.send(ended).await.is_err() {
                    return;
                }
                sleep(AGAIN).await;
            }
        });
        told
    }

    /// Tells the last quarter of an hour of the scope that is looked at, now and then.
    pub(super) fn tell_history(self, mut looked_at: watch::Receiver<Option<Place>>) -> mpsc::Receiver<FeedEvent> {
        let (sender, told) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let place = looked_at.borrow_and_update().clone();
                if let Some(place) = place {
                    let history = self.history(&place).await.map(Box::new);
                    if sender.send(FeedEvent::History(place, history)).await.is_err() {
                        return;
                    }
                }
                // Whether the screen is gone.
                if let Ok(Err(_)) = timeout(HISTORY, looked_at.changed()).await {
                    return;
                }
            }
        });
        told
    }

    /// That of one scope; none where none is kept, or the gateway is gone, which its events tell.
    pub(super) async fn history(&self, (upstream, scope): &Place) -> Option<History> {
        let place = [("upstream", upstream), ("scope", scope)];
        let url = Url::parse_with_params(&format!("{}/api/history", self.address), place).ok()?;
        let answer = timeout(CONNECT, self.asked(url.as_str()).send()).await.ok()?.ok()?;
        let body = timeout(CONNECT, answer.error_for_status().ok()?.bytes()).await.ok()?.ok()?;
        serde_json::from_slice(&body).ok()
    }

    /// A page of the gateway, with the key.
    fn asked(&self, url: &str) -> RequestBuilder {
        let request = self.client.get(url);
        match &self.key {
            Some(key) => request.header("x-paceline-key", key),
            None => request,
        }
    }

    /// One connection, up to its end; fine once nothing is taken any more.
    async fn once(&self, sender: &mpsc::Sender<FeedEvent>) -> Result<(), FeedEvent> {
        let address = &self.address;
        let lost = |error: &dyn std::error::Error| {
            let mut cause = error;
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            FeedEvent::Lost(format!("no gateway answers at {address}: {cause}; `paceline serve` starts one"))
        };
        let answer = match timeout(SILENT, self.asked(&format!("{address}/api/events?changes")).send()).await {
            Ok(answer) => answer.map_err(|error| match NoAnswer::of_client(&error, error.is_connect(), false) {
                NoAnswer::Tls(why) => FeedEvent::Lost(format!("no safe connection to the gateway at {address}: {why}")),
                _ => lost(&error),
            })?,
            Err(error) => return Err(lost(&error)),
        };
        let kind = answer.headers().get(http::header::CONTENT_TYPE).cloned();
        if answer.status() != StatusCode::OK || kind.is_none_or(|kind| kind != "text/event-stream") {
            return Err(self.refusal(answer).await);
        }
        let mut events = Events::default();
        let mut body = answer.bytes_stream();
        loop {
            let piece = match timeout(SILENT, body.next()).await {
                Ok(Some(piece)) => piece.map_err(|error| lost(&error))?,
                Ok(None) => return Err(FeedEvent::Lost(format!("the gateway at {address} has ended"))),
                Err(_) => return Err(FeedEvent::Lost(format!("the gateway at {address} says nothing any more"))),
            };
            for event in events.take(&piece) {
                let changes = serde_json::from_slice(&event).map_err(|error| {
                    FeedEvent::Refused(format!("{address} tells its state as another version does: {error}"))
                })?;
                if sender.send(FeedEvent::Changes(changes)).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    async fn refusal(&self, answer: reqwest::Response) -> FeedEvent {
        let (address, status) = (&self.address, answer.status());
        let body = answer.bytes().await.unwrap_or_default();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let ours = Some(&body["error"]).filter(|error| error["type"] == "paceline");
        FeedEvent::Refused(match ours.and_then(|error| error["message"].as_str()) {
            Some(_) if status == StatusCode::UNAUTHORIZED && self.key.is_none() => format!(
                "{address}: this gateway asks for a key; put one that `paceline serve keys add` printed into an environment \
                 variable, and name that with --api-key-env VARIABLE"
            ),
            Some(message) if status == StatusCode::UNAUTHORIZED => {
                format!("{address}: the variable of --api-key-env has no key that this gateway takes: {message}")
            }
            Some(message) => format!("{address}: {message}"),
            None => format!("{address} answers with status {status}, and not as a gateway of this version does"),
        })
    }
}

/// The data of server-sent events, from pieces.
#[derive(Default)]
struct Events(Vec<u8>);

impl Events {
    fn take(&mut self, piece: &[u8]) -> Vec<Vec<u8>> {
        self.0.extend_from_slice(piece);
        let mut found = Vec::new();
        while let Some(end) = memchr::memmem::find(&self.0, b"\n\n") {
            let event: Vec<u8> = self.0.drain(..end + 2).collect();
            if let Some(at) = memchr::memmem::find(&event, b"data: ") {
                found.push(event[at + 6..event.len() - 2].to_vec());
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_put_together_and_comments_left_out() {
        let mut events = Events::default();
        assert!(events.take(b"event: changes\nda").is_empty());
        assert_eq!(
            events.take(b"ta: {\"a\":1}\n\n: no change\n\nevent: changes\ndata: {}\n\nev"),
            [&b"{\"a\":1}"[..], b"{}"]
        );
        assert_eq!(events.take(b"ent: changes\ndata: 2\n\n"), [b"2"]);
    }
}
