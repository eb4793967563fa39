//! The connection of a host to the store of its job, and what people are told while that does not answer.

use std::time::Duration;

use paceline::{Clock, Instant};
use paceline_store::JournalError;
use paceline_store::work::WorkError;
use tokio::sync::watch;

use crate::hosts::worker::ASK_AGAIN;
use crate::other_hosts::host_view::HostView;
use crate::text;

/// A store that has not answered for so long is away.
const FELT: Duration = Duration::from_secs(3);

/// The connection to the store, as people are told of it.
pub(super) struct Line {
    /// The run ends where the store is away for longer.
    pub(super) max_wait: Duration,
    pub(super) clock: Clock,
    /// Since when a question has no answer.
    pub(super) silent: Option<Instant>,
    /// It was away, and answers again.
    pub(super) came_back: bool,
    pub(super) told: watch::Sender<HostView>,
}

impl Line {
    pub(super) fn away(&self) -> Duration {
        self.silent.map_or(Duration::ZERO, |since| self.clock.now() - since)
    }

    /// The answer of the store; people are told while it stays away.
    pub(super) async fn answer<T>(&mut self, asked: impl Future<Output = Result<T, WorkError>>) -> Result<T, Broken> {
        let mut asked = std::pin::pin!(asked);
        self.silent = self.silent.or(Some(self.clock.now()));
        loop {
            let answer = tokio::select! {
                answer = &mut asked => Some(answer),
                () = tokio::time::sleep(ASK_AGAIN) => None,
            };
            if let Some(Ok(answer)) = answer {
                self.came_back |= self.away() >= FELT;
                self.silent = None;
                self.told.send_if_modified(|told| told.away.take().is_some());
                return Ok(answer);
            }
            let away = self.away();
            self.told.send_modify(|told| told.away = Some(away).filter(|away| *away >= FELT));
            match answer {
                Some(Err(error)) if !error.is_unreachable() => return Err(error.into()),
                _ if away >= self.max_wait => return Err(Broken::Away(away)),
                Some(Err(_)) => return Err(Broken::Again),
                _ => {}
            }
        }
    }
}

/// Why a host cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Store(#[from] WorkError),
    /// The store cannot be reached, and may be soon.
    #[error("the store cannot be reached")]
    Again,
    /// It could not be reached for `--max-wait`.
    #[error("the store has not answered for {}", text::duration(*.0))]
    Away(Duration),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{0}")]
    Job(String),
}
