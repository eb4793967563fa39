//! How far a run has come to its end: it goes on, it lets end what is in flight, it gives that up.

use std::io;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::run::calls::signals::Signals;

/// What is in flight when a run has to end may take so long; the same as in `paceline run`.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// How often the process was told to end.
#[derive(Clone, Debug)]
pub(super) struct Told(watch::Receiver<u32>);

impl Told {
    /// Listens from now on.
    ///
    /// # Errors
    /// What the operating system says.
    pub(super) fn listen() -> io::Result<Self> {
        let mut signals = Signals::new()?;
        let (sender, receiver) = watch::channel(0);
        tokio::spawn(async move {
            while !sender.is_closed() {
                signals.next().await;
                sender.send_modify(|times| *times += 1);
            }
        });
        Ok(Self(receiver))
    }

    /// Whether it was told at all.
    pub(super) fn at_all(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Waits until it was told.
    pub(super) async fn once(&self) {
        self.reaches(1).await;
    }

    /// Waits until it was told again.
    pub(super) async fn twice(&self) {
        self.reaches(2).await;
    }

    async fn reaches(&self, times: u32) {
        if self.0.clone().wait_for(|told| *told >= times).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    Ending,
    GivingUp,
}

/// The course of one run. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Course {
    phase: watch::Sender<Phase>,
    told: Told,
}

impl Course {
    /// Of a run that begins now. The guard ends what watches over it.
    pub(super) fn begin(told: Told) -> (Self, Watching) {
        let course = Self { phase: watch::Sender::new(Phase::Running), told };
        let watched = course.clone();
        let watching = tokio::spawn(async move {
            tokio::select! {
                () = watched.told.once() => watched.ends(),
                () = watched.reaches(Phase::Ending) => {}
            }
            tokio::select! {
                () = watched.told.twice() => {}
                () = tokio::time::sleep(GRACE) => {}
            }
            watched.come_to(Phase::GivingUp);
        });
        (course, Watching(watching))
    }

    /// Nothing begins any more.
    pub(super) fn ends(&self) {
        self.come_to(Phase::Ending);
    }

    /// Waits until nothing is to begin any more.
    pub(super) async fn is_ending(&self) {
        self.reaches(Phase::Ending).await;
    }

    /// Waits until what is in flight is to be given up.
    pub(super) async fn gives_up(&self) {
        self.reaches(Phase::GivingUp).await;
    }

    fn come_to(&self, phase: Phase) {
        self.phase.send_modify(|now| *now = phase.max(*now));
    }

    async fn reaches(&self, phase: Phase) {
        // This sender outlives the wait.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }
}

/// Watches over a course for as long as it lives.
#[derive(Debug)]
pub(super) struct Watching(JoinHandle<()>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}
