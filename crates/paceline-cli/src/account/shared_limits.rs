//! The configured limits of an account hold over all runs of a user, one after the other and at the same time.
//!
//! Runs at the same time take turns of about half a second. The one that has the turn knows all that has left, and may let as
//! much leave as the windows have room for; before it passes the turn on it writes what it has counted. So no window ever holds
//! more than its limit, large requests find their room, and a run that has nothing to send costs the others nothing but time.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use paceline::{Limiter, LimiterState, Pace, PacerConfig};

use super::ledger::{Entry, Ledger};
use super::lock::{self, Taken};
use super::{Account, folder, forget};

/// How often what has left is written, and how long a turn lasts, on average. Turns differ in length, so that no run always has
/// its turn when a window is full.
const TURN_LASTS: Duration = Duration::from_millis(500);

/// A run whose next call waits for room keeps its turn until that call has left, if that is no longer.
const KEPT_FOR_ROOM: Duration = Duration::from_mins(1);

/// How often a run that waits for its turn looks.
const LOOK: Duration = Duration::from_millis(10);

/// A run's part in the limits of its account.
#[derive(Debug)]
pub(crate) struct SharedLimits {
    limiter: Limiter,
    /// None where no limit is configured, or the user's folder cannot be used.
    account: Option<SharedAccount>,
}

#[derive(Debug)]
struct SharedAccount {
    host: String,
    name: String,
    folder: PathBuf,
    ledger: Ledger,
    /// This run, among those that the ledger knows.
    run: String,
    /// What this run has counted, once that is anything.
    own: Option<Entry>,
    others: Vec<Entry>,
    /// Held while it is the turn of this run.
    turn: Option<File>,
    /// The user was told that there is another run, ...
    told: bool,
    /// ... and that what leaves cannot be written.
    warned: bool,
}

impl SharedLimits {
    /// For a limiter that has been asked for nothing yet.
    pub(crate) fn open(account: Option<&Account>, config: &PacerConfig, limiter: Limiter) -> Self {
        let account = account.filter(|_| is_limited(config)).and_then(|account| {
            let folder = folder().map_err(|error| warn_alone(&error)).ok()?;
            forget::unused(&folder);
            Some(SharedAccount {
                ledger: Ledger::new(&folder, account.name()),
                host: account.host.clone(),
                name: account.name.clone(),
                folder,
                run: format!("{:016x}", RandomState::new().hash_one(std::process::id())),
                own: None,
                others: Vec::new(),
                turn: None,
                told: false,
                warned: false,
            })
        });
        Self { limiter, account }
    }

    /// Whether limits are shared at all.
    pub(crate) const fn is_shared(&self) -> bool {
        self.account.is_some()
    }

    /// Whether earlier runs are known to have sent what still counts. Then the job's own count of it is left alone: it is among
    /// these.
    pub(crate) fn know_earlier_runs(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.ledger.read().is_ok_and(|runs| !runs.is_empty()))
    }

    /// Lets nothing leave before [`keep`](Self::keep) has found out what others have sent.
    pub(crate) fn begin(&self) {
        if self.account.is_some() {
            self.limiter.yield_turn();
        }
    }

    /// Takes turns with other runs, and writes what has left, for as long as the future is polled.
    pub(crate) async fn keep(&mut self) {
        while let Some(account) = &mut self.account {
            if let Err(error) = account.take_turn(&self.limiter).await {
                // Better alone than not at all: the state of another run is no reason not to work.
                warn_alone(&error);
                self.account = None;
                self.limiter.take_turn(&[]).expect("there are no others");
                break;
            }
            loop {
                tokio::time::sleep(length_of_turn()).await;
                if account.passes_turn_on(&self.limiter) {
                    break;
                }
            }
        }
        std::future::pending().await
    }

    /// After the last call has left: writes what has, and lets others have the turn. A later [`begin`](Self::begin) goes on.
    pub(crate) fn end(&mut self) {
        if let Some(account) = &mut self.account
            && account.turn.is_some()
        {
            account.save(&self.limiter);
            account.turn = None;
        }
    }
}

impl SharedAccount {
    /// Waits for the turn of this run, and learns what has left meanwhile. One run waits for the turn, the others wait for its
    /// place: so a run that has just passed the turn on comes behind those that wait.
    async fn take_turn(&mut self, limiter: &Limiter) -> io::Result<()> {
        let next = self.wait_for(super::NEXT).await?;
        self.turn = Some(self.wait_for(super::TURN).await?);
        drop(next);
        self.others = self.ledger.read_or_set_aside()?;
        self.others.retain(|entry| entry.run != self.run);
        self.count(limiter);
        Ok(())
    }

    async fn wait_for(&mut self, what: &str) -> io::Result<File> {
        loop {
            match self.take(what)? {
                Taken::Ours(file) => return Ok(file),
                Taken::Theirs { pid, .. } => self.tell_once(pid),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn take(&self, what: &str) -> io::Result<Taken> {
        lock::take(&self.folder, &format!("{}.{what}", self.name), true)
    }

    fn tell_once(&mut self, pid: Option<u32>) {
        if !std::mem::replace(&mut self.told, true) {
            tracing::info!(
                "{} is calling {} with the same key: the configured limits hold for both together, which take turns of half a second",
                lock::who(pid),
                self.host,
            );
        }
    }

    /// Writes what has left, and ends the turn if another run waits for it. Without its count no other run may go on.
    fn passes_turn_on(&mut self, limiter: &Limiter) -> bool {
        if !self.save(limiter) {
            return false;
        }
        // What keeps this run from looking is told when it waits itself.
        let Ok(Taken::Theirs { pid, .. }) = self.take(super::NEXT) else { return false };
        self.tell_once(pid);
        if limiter.waits_for_room().is_some_and(|at| at - limiter.now() <= KEPT_FOR_ROOM) {
            return false;
        }
        limiter.yield_turn();
        let passes = self.save(limiter);
        match passes {
            true => self.turn = None,
            false => self.count(limiter),
        }
        passes
    }

    /// Calls may leave, beside those of the others.
    fn count(&self, limiter: &Limiter) {
        let others: Vec<LimiterState> = self.others.iter().map(|entry| entry.counted.clone()).collect();
        limiter.take_turn(&others).expect("the ledger knows their version");
    }

    /// Writes what this run has counted, if that has changed. Says whether others can know it. A failure is logged once, and the
    /// run goes on: its items are what matters.
    fn save(&mut self, limiter: &Limiter) -> bool {
        if let Some(counted) = limiter.own_windows() {
            let pacer = &counted.pacer;
            if self.own.is_none() && pacer.account.is_empty() && pacer.scopes.is_empty() {
                return true;
            }
            self.own = Some(Entry { run: self.run.clone(), counted });
        } else if !self.warned {
            return true;
        }
        let runs = self.others.iter().chain(&self.own).cloned().collect();
        let written = self.ledger.write(runs);
        match (&written, self.warned) {
            (Err(error), false) => {
                tracing::warn!(
                    "what has left is not kept for other runs on this host and key, which may exceed its limits: {}: {error}",
                    self.folder.display()
                );
            }
            (Ok(()), true) => tracing::info!("what has left is kept for other runs again"),
            _ => {}
        }
        self.warned = written.is_err();
        written.is_ok()
    }
}

fn is_limited(config: &PacerConfig) -> bool {
    let mut limits = std::iter::once(&config.limits).chain(config.tiers.iter().map(|(_, limits)| limits));
    config.pace != Pace::None && limits.any(|limits| !limits.quotas.is_empty())
}

fn warn_alone(error: &io::Error) {
    tracing::warn!(
        "the configured limits hold for this job alone, and other jobs on the same host and key do not know what it sends: {error}"
    );
}

/// From half to one and a half of it.
fn length_of_turn() -> Duration {
    TURN_LASTS / 2 + TURN_LASTS.mul_f64(RandomState::new().hash_one(0) as f64 / u64::MAX as f64)
}
