//! Documents of the gateway's own on their way to clients: one that is not read holds its memory until then, so few may.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Either};
use paceline::{Clock, Instant};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;

use crate::bounds::{Held, Room, Turn, share};
use crate::clients::Client;
use crate::forward::AnswerBody;
use crate::refusal::{LEAST, Refusal};
use crate::server::Gateway;

/// Documents that are under way at once to clients with keys, and to programs without: who reads the metrics at an address of
/// their own takes none from those.
const MOST: u64 = 32;

/// Of one client with a key at the most so many, ...
const MOST_OF_ONE: u64 = 8;

/// ... and so many times as many as are left: several together leave some to the others.
const SHARE: u64 = 1;

/// Once a document was made for a client, its next one is made after so many times as long: one client takes a quarter of a
/// processor for them.
const REST: u32 = 3;

/// It rests no longer: the machine may have slept while one was made.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Of a document so much is handed on at a time: what is left of it is known not to be taken yet.
const PIECE: usize = 64 << 10;

/// Those that are under way.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    clock: Clock,
    to_clients: Held,
    to_others: Held,
    turn_of_others: Turn,
}

/// A document is made until this is dropped.
pub(crate) struct Making<'a> {
    turn: Option<OwnedSemaphorePermit>,
    clock: &'a Clock,
    began: Instant,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let (took, turn) = (self.clock.now() - self.began, self.turn.take());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                sleep((took * REST).min(LONGEST_REST)).await;
                drop(turn);
            });
        }
    }
}

/// A document, in pieces. The room is free once the last is taken.
struct Pieces {
    left: Bytes,
    _room: (Option<Room>, Room),
}

impl Gateway {
    /// Returns once it is that client's turn to have a document made.
    pub(crate) async fn document_turn(&self, client: Option<&Arc<Client>>) -> Making<'_> {
        let turn = client.map_or(&self.documents.turn_of_others, |client| &client.document_turn);
        // No one closes it.
        let turn = Arc::clone(&turn.0).acquire_owned().await.ok();
        Making { turn, clock: &self.documents.clock, began: self.documents.clock.now() }
    }

    /// A document that `make` makes for that client, unless too many are under way.
    ///
    /// # Errors
    /// They are, or it cannot be made.
    pub(crate) fn document_for(
        &self,
        client: Option<&Arc<Client>>,
        make: impl FnOnce() -> Result<Response<Bytes>, Refusal>,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let full = |message: String| Refusal::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).after(LEAST);
        let all = if client.is_some() { &self.documents.to_clients } else { &self.documents.to_others };
        let own = client.map(|client| {
            let most = share(all.count(), MOST, SHARE).min(MOST_OF_ONE);
            client.documents.take(1, most).ok_or_else(|| {
                full("as many answers of this kind as one key may have are not taken yet; read them first".to_owned())
            })
        });
        let own = own.transpose()?;
        let of_all = all.take(1, MOST).ok_or_else(|| {
            full(format!("{MOST} answers of this kind are not taken by their clients yet; ask again later"))
        })?;
        Ok(make()?.map(|left| {
            Either::Left(Pieces { left, _room: (own, of_all) }.map_err(|never| match never {}).boxed_unsync())
        }))
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.left.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::backend::Backend;
    use crate::bounds::Bounds;
    use crate::clients::{Clients, KeyHash};

    fn served(names: &[&str]) -> (Arc<Gateway>, BTreeMap<KeyHash, Arc<Client>>) {
        let gateway = Gateway::new(Vec::<Arc<Backend>>::new(), Bounds::default()).expect("no fallbacks");
        let keys: Vec<_> = names.iter().map(|name| (*name, *name)).collect();
        (gateway, Clients::of_keys(&keys))
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_holds_few_documents_and_others_get_theirs() {
        let (gateway, clients) = served(&["greedy", "other", "a", "b", "c", "d", "e"]);
        let [greedy, other] = ["greedy", "other"].map(|name| &clients[&KeyHash::of(name)]);
        let text = Bytes::from(vec![b'x'; 3 * PIECE + 1]);
        let ask = |client| gateway.document_for(client, || Ok(Response::new(text.clone())));
        let mut held: Vec<_> = (0..MOST_OF_ONE).map(|_| ask(Some(greedy)).expect("few")).collect();
        assert_eq!(ask(Some(greedy)).map(drop).map_err(|refusal| refusal.code()), Err("queue_full"));
        for _ in 0..2 {
            let whole = ask(Some(other)).expect("it reads").into_body().collect().await.expect("whole").to_bytes();
            assert_eq!(whole, text);
        }
        held[0].body_mut().frame().await.expect("a piece").expect("no error");
        assert!(ask(Some(greedy)).is_err(), "the rest of it is not taken");
        held.remove(0);
        held.push(ask(Some(greedy)).expect("one has ended"));
        held.extend((0..MOST).map(|_| ask(None).expect("few")));
        assert!(ask(None).is_err() && ask(Some(other)).is_ok(), "who has no key takes none from those who have");
        let others = clients.values().filter(|client| **client.name() != *"other");
        held.extend(others.flat_map(|client| (0..MOST).map_while(|_| ask(Some(client)).ok()).collect::<Vec<_>>()));
        assert!(ask(Some(other)).is_ok(), "all others together leave some");
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_has_few_documents_made_and_others_do_not_wait_for_it() {
        let (gateway, clients) = served(&["greedy", "other"]);
        let [greedy, other] = ["greedy", "other"].map(|name| &clients[&KeyHash::of(name)]);
        let making = gateway.document_turn(Some(greedy)).await;
        tokio::time::advance(Duration::from_millis(10)).await;
        drop(making);
        let clock = Clock::new();
        let began = clock.now();
        drop(gateway.document_turn(Some(other)).await);
        drop(gateway.document_turn(None).await);
        assert_eq!(clock.now() - began, Duration::ZERO);
        drop(gateway.document_turn(Some(greedy)).await);
        assert!(clock.now() - began >= Duration::from_millis(30), "{:?}", clock.now() - began);
    }

    #[tokio::test(start_paused = true)]
    async fn the_sleep_of_a_machine_while_a_document_is_made_puts_off_the_next_by_a_second() {
        let (gateway, clock) = (served(&[]).0, Clock::new());
        let making = gateway.document_turn(None).await;
        tokio::time::advance(Duration::from_secs(28_800)).await;
        drop(making);
        let began = clock.now();
        drop(gateway.document_turn(None).await);
        assert!(clock.now() - began <= 2 * LONGEST_REST, "{:?}", clock.now() - began);
    }
}
