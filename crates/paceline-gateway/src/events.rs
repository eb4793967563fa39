//! The state of a gateway as server-sent events: the whole document each time that it changes, or what has changed of it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt as _, Either};
use paceline::{Clock, Instant};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::clients::Client;
use crate::closing::Phase;
use crate::forward::AnswerBody;
use crate::refusal::Refusal;
use crate::server::Gateway;
use crate::state::Look;

/// Between two events of a stream, at least.
const EVERY: Duration = Duration::from_millis(250);

/// A stream without an event for so long gets a comment, so that a client that went away is noticed.
const ALIVE: Duration = Duration::from_secs(15);

/// The most streams of events at once.
pub(crate) const MOST_STREAMS: u64 = 32;

/// Of them those of one client with a key: the others stay for those who watch the gateway.
const MOST_OF_ONE: u64 = 8;

/// What streams share: however many there are, it is made once for all.
#[derive(Debug, Default)]
pub(crate) struct Latest {
    clock: Clock,
    document: Mutex<Option<(Made, Document)>>,
    picture: Mutex<Option<(Made, Arc<Picture>)>>,
}

/// When something was made, and how long that took.
#[derive(Clone, Copy, Debug)]
struct Made {
    at: Instant,
    took: Duration,
}

/// A document of more bytes is large: those of several who do not read them would be the memory of the machine.
const LARGE: usize = 1 << 20;

/// What is made takes at most one part in so many of a processor, however many scopes clients have made.
const SHARE: u32 = 4;

impl Made {
    fn is_fresh(self, now: Instant) -> bool {
        now - self.at < EVERY.max(self.took * SHARE)
    }
}

/// The whole document.
#[derive(Clone, Debug)]
struct Document {
    /// Equal as long as nothing has changed but ages.
    print: u64,
    text: Bytes,
}

/// The document in parts, each with a print that is equal as long as it has not changed.
#[derive(Debug)]
struct Picture {
    head: Value,
    /// By upstream and name; the account of an upstream has an empty one.
    scopes: BTreeMap<(Arc<str>, Arc<str>), Part>,
    parts: Vec<(&'static str, Part)>,
}

#[derive(Clone, Debug)]
struct Part {
    print: u64,
    text: Arc<str>,
}

/// What a stream has been told.
#[derive(Debug, Default)]
struct SentState {
    has_begun: bool,
    scopes: BTreeMap<(Arc<str>, Arc<str>), u64>,
    parts: BTreeMap<&'static str, u64>,
}

/// Makes the next event of one stream; none where nothing has changed.
type Next = Box<dyn FnMut(&Gateway) -> Option<Bytes> + Send>;

impl Gateway {
    /// Server-sent events: the document now, and whenever it changes; with `changes` only what has changed of it. The stream ends
    /// with the gateway, and once its client is welcome no more.
    pub(crate) fn events(
        self: &Arc<Self>,
        changes: bool,
        of: Option<Arc<Client>>,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let full = |message: String| Refusal::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).after(ALIVE);
        let share = of.as_ref().map(|client| {
            let message =
                || format!("{MOST_OF_ONE} programs with this key follow the state already; ask for /api/state");
            client.streams.take(1, MOST_OF_ONE).ok_or_else(|| full(message()))
        });
        let share = share.transpose()?;
        let room = self.streams.take(1, MOST_STREAMS).ok_or_else(|| {
            full(format!("{MOST_STREAMS} programs follow the state already, the most that may; ask for /api/state"))
        })?;
        let mut next: Next = if changes {
            let mut told = SentState::default();
            Box::new(move |gateway| told.next(&gateway.picture()))
        } else {
            let mut last = None;
            Box::new(move |gateway| {
                let document = gateway.latest();
                (last.replace(document.print) != Some(document.print)).then(|| event("state", &document.text))
            })
        };
        let (mut sender, body) = Channel::<Bytes, Infallible>::new(1);
        let gateway = Arc::clone(self);
        tokio::spawn(async move {
            let _room = (share, room);
            let mut silent = Duration::ZERO;
            let is_welcome = |gateway: &Self| gateway.clients().still_welcome(of.as_deref());
            while gateway.closing.phase() == Phase::Serves && is_welcome(&gateway) {
                let event = next(&gateway);
                let event = event.or_else(|| (silent >= ALIVE).then(|| Bytes::from_static(b": no change\n\n")));
                if let Some(event) = event {
                    silent = Duration::ZERO;
                    if sender.send_data(event).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    () = sleep(EVERY) => silent += EVERY,
                    () = gateway.closing.reaches(Phase::Drains) => {}
                }
            }
        });
        let mut response = Response::new(Either::Left(body.map_err(|never| match never {}).boxed_unsync()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }

    /// The document as it is now. One that is large is that of all who ask for it meanwhile.
    pub(crate) fn state(&self) -> Bytes {
        let is_for_all = |made: &Made, known: &Document, now| known.text.len() > LARGE && made.is_fresh(now);
        self.latest_as(is_for_all).text
    }

    /// The document, as old at most as the time between two events.
    fn latest(&self) -> Document {
        self.latest_as(|made, _, now| made.is_fresh(now))
    }

    /// The last document, where that is wanted, else a new one.
    fn latest_as(&self, is_wanted: impl Fn(&Made, &Document, Instant) -> bool) -> Document {
        let mut latest = self.latest.document.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.latest.clock.now();
        match &*latest {
            Some((made, known)) if is_wanted(made, known, now) => known.clone(),
            _ => {
                let looks = self.looks();
                let document = Document { print: self.print(&looks), text: self.document(&looks) };
                let at = self.latest.clock.now();
                latest.insert((Made { at, took: at - now }, document)).1.clone()
            }
        }
    }

    fn print(&self, looks: &[Look]) -> u64 {
        let mut print = DefaultHasher::new();
        (self.closing.phase() != Phase::Serves).hash(&mut print);
        (self.batches().to_string(), self.jobs.json().to_string()).hash(&mut print);
        for look in looks {
            let (upstream, notes) = (&look.upstream, look.upstream.notes());
            (upstream.name(), upstream.waiting.count(), notes.decisions.count()).hash(&mut print);
            for scope in [&look.snapshot.account].into_iter().chain(&look.snapshot.scopes) {
                look.print(scope).hash(&mut print);
            }
        }
        print.finish()
    }

    /// The document in parts, likewise. What has not changed is not written anew.
    fn picture(&self) -> Arc<Picture> {
        let mut latest = self.latest.picture.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.latest.clock.now();
        match &*latest {
            Some((made, known)) if made.is_fresh(now) => Arc::clone(known),
            _ => {
                let picture = Arc::new(self.drawn(latest.as_ref().map(|(_, before)| &**before)));
                let at = self.latest.clock.now();
                Arc::clone(&latest.insert((Made { at, took: at - now }, picture)).1)
            }
        }
    }

    fn drawn(&self, before: Option<&Picture>) -> Picture {
        let looks = self.looks();
        let mut scopes = BTreeMap::new();
        for look in &looks {
            let upstream: Arc<str> = look.upstream.name().into();
            for scope in [&look.snapshot.account].into_iter().chain(&look.snapshot.scopes) {
                let (place, print) = ((Arc::clone(&upstream), Arc::clone(&scope.name)), look.shown_print(scope));
                let known = before.and_then(|before| before.scopes.get(&place)).filter(|known| known.print == print);
                let part = known.cloned().unwrap_or_else(|| Part { print, text: look.shown(scope).to_string().into() });
                scopes.insert(place, part);
            }
        }
        let upstreams = ("upstreams", looks.iter().map(Look::overview).collect());
        let parts = [upstreams].into_iter().chain(self.parts(&looks)).map(|(name, value): (_, Value)| {
            let (mut print, text) = (DefaultHasher::new(), value.to_string());
            text.hash(&mut print);
            (name, Part { print: print.finish(), text: text.into() })
        });
        Picture { head: self.head(), scopes, parts: parts.collect() }
    }
}

impl SentState {
    /// What the picture has that is not told yet; what is gone is told by its upstream and name.
    fn next(&mut self, picture: &Picture) -> Option<Bytes> {
        let mut fields = Vec::new();
        for (name, part) in &picture.parts {
            if self.parts.insert(name, part.print) != Some(part.print) {
                fields.push(format!("{name:?}:{}", part.text));
            }
        }
        let mut scopes = Vec::new();
        for (place, part) in &picture.scopes {
            if self.scopes.get(place) != Some(&part.print) {
                self.scopes.insert(place.clone(), part.print);
                scopes.push(&*part.text);
            }
        }
        let mut gone = Vec::new();
        self.scopes.retain(|place, _| {
            let is_there = picture.scopes.contains_key(place);
            if !is_there {
                gone.push(json!([&*place.0, &*place.1]));
            }
            is_there
        });
        if fields.is_empty() && scopes.is_empty() && gone.is_empty() {
            return None;
        }
        let gone = Value::from(gone);
        let first = !std::mem::replace(&mut self.has_begun, true);
        let head = picture.head.as_object().into_iter().flatten().map(|(name, value)| format!("{name:?}:{value}"));
        fields.extend(head);
        fields.push(format!("\"first\":{first},\"gone\":{gone},\"scopes\":[{}]", scopes.join(",")));
        Some(event("changes", format!("{{{}}}", fields.join(",")).as_bytes()))
    }
}

fn event(name: &str, data: &[u8]) -> Bytes {
    [b"event: ", name.as_bytes(), b"\ndata: ", data, b"\n\n"].concat().into()
}
