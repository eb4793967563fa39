//! The memory that all answers of a sender take together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// 256 MiB: eight of the largest answers, and thousands of completions.
pub(crate) const MOST_OF_ANSWERS: usize = 256 << 20;

/// The bytes that answers may take. One answer at a time is read to its end beyond them, so that half-read ones do not wait for
/// each other.
#[derive(Debug)]
pub(crate) struct Memory {
    bytes: Arc<Semaphore>,
    beyond: Arc<Semaphore>,
}

/// The memory of one answer, given back when this is dropped.
#[derive(Debug, Default)]
pub struct AnswerMemory {
    bytes: Option<OwnedSemaphorePermit>,
    beyond: Option<OwnedSemaphorePermit>,
}

impl Memory {
    pub(crate) fn of(bytes: usize) -> Self {
        Self { bytes: Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS))), beyond: Arc::new(Semaphore::new(1)) }
    }

    /// Waits until an answer may take so many bytes more.
    pub(crate) async fn take(&self, held: &mut AnswerMemory, bytes: usize) {
        if held.beyond.is_some() {
            return;
        }
        let more = Arc::clone(&self.bytes).acquire_many_owned(u32::try_from(bytes).unwrap_or(u32::MAX));
        let turn = Arc::clone(&self.beyond).acquire_owned();
        tokio::select! {
            biased;
            more = more => match (&mut held.bytes, more.expect(OPEN)) {
                (Some(held), more) => held.merge(more),
                (none, more) => *none = Some(more),
            },
            turn = turn => held.beyond = Some(turn.expect(OPEN)),
        }
    }
}

const OPEN: &str = "neither is ever closed";

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::ready;

    /// Whether there is memory at once.
    async fn takes(memory: &Memory, held: &mut AnswerMemory, bytes: usize) -> bool {
        tokio::select! {
            biased;
            () = memory.take(held, bytes) => true,
            () = ready(()) => false,
        }
    }

    #[tokio::test]
    async fn one_answer_is_read_beyond_the_bound_and_the_others_wait_for_memory() {
        let memory = Memory::of(100);
        let [mut a, mut b, mut c] = [(); 3].map(|()| AnswerMemory::default());
        assert!(takes(&memory, &mut a, 60).await && takes(&memory, &mut b, 40).await);
        assert!(takes(&memory, &mut a, 1).await && takes(&memory, &mut a, 1_000_000).await, "to its end");
        assert!(!takes(&memory, &mut b, 1).await && !takes(&memory, &mut c, 1).await);
        drop(b);
        assert!(takes(&memory, &mut c, 40).await && !takes(&memory, &mut AnswerMemory::default(), 1).await);
        drop(a);
        assert!(takes(&memory, &mut c, 60).await && takes(&memory, &mut c, 200).await, "however large it is");
    }
}
