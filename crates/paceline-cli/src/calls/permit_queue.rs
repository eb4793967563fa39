//! A queue in which claimed items ask for their permits: one after the other, as they were claimed.
//!
//! Their tries are tasks, which start in any order, and who asks first goes first. Reading lines, sending and answers stay
//! side by side.

use std::future::poll_fn;
use std::pin::Pin;

use tokio::sync::oneshot;

/// The queue of tries.
#[derive(Debug, Default)]
pub(crate) struct PermitQueue {
    /// Ends when the last of them has asked.
    last: Option<oneshot::Receiver<()>>,
}

/// A place in the queue. Dropping it lets the next one ask.
#[derive(Debug)]
pub(crate) struct PermitTurn {
    before: Option<oneshot::Receiver<()>>,
    _asking: oneshot::Sender<()>,
}

impl PermitQueue {
    /// The next place.
    pub(crate) fn enqueue(&mut self) -> PermitTurn {
        let (asking, asked) = oneshot::channel();
        PermitTurn { before: self.last.replace(asked), _asking: asking }
    }
}

impl PermitTurn {
    /// Waits until all before it have asked.
    pub(crate) async fn comes(&mut self) {
        if let Some(before) = &mut self.before {
            // Nothing is ever sent: the other side is dropped when it has asked.
            let _ = before.await;
        }
        self.before = None;
    }

    /// Asks, and lets the next one ask, whether there is an answer yet or not.
    pub(crate) async fn ask<Asking: Future>(self, mut asking: Pin<&mut Asking>) -> Asking::Output {
        let mut turn = Some(self);
        poll_fn(|context| {
            let answer = asking.as_mut().poll(context);
            turn = None;
            answer
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::Mutex;
    use std::task::{Context, Waker};

    #[tokio::test]
    async fn permits_are_asked_for_in_the_order_of_the_claim() {
        let (mut lane, asked) = (PermitQueue::default(), Mutex::new(Vec::new()));
        let tries = (0..50).map(|item| (item, lane.enqueue())).collect::<Vec<_>>();
        let tries = tries.into_iter().rev().map(|(item, mut turn)| {
            let asked = &asked;
            async move {
                turn.comes().await;
                // The tenth gives up when it is its turn; the others get their permits when all have asked.
                if item != 10 {
                    let waits = async {
                        asked.lock().expect("no panic").push(item);
                        tokio::task::yield_now().await;
                    };
                    turn.ask(pin!(waits)).await;
                }
            }
        });
        futures_util::future::join_all(tries).await;
        let in_order: Vec<i32> = (0..50).filter(|item| *item != 10).collect();
        assert_eq!(*asked.lock().expect("no panic"), in_order);
    }

    #[tokio::test]
    async fn the_next_one_asks_before_the_one_ahead_has_its_answer() {
        let mut lane = PermitQueue::default();
        let (first, mut second) = (lane.enqueue(), lane.enqueue());
        let asking = pin!(std::future::pending::<()>());
        let mut waits = pin!(first.ask(asking));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        second.comes().await;
    }
}
