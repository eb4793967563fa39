//! The configured limits of an account hold over all runs of a user, one after the other and at the same time.
//!
//! In a fleet each process has a share of them. Without one, runs at the same time take turns of about a tenth of a second. The
//! one that has the turn knows what all have sent, and sends what the windows have room for; before it passes the turn on it
//! writes what it has counted. So no window ever holds more than its limit, large requests find their room, and a run that has
//! nothing to send costs the others nothing but time.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline::{Clock, Instant, Limiter, LimiterState, Pace, PacerConfig, Repeats, clock};
use paceline_config::FleetSettings;
use paceline_core::Timestamp;
use paceline_gateway::Conditions;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::departed::Departed;
use super::fleet::FleetPlace;
use super::ledger::{Entry, Ledger};
use super::turn_wait::{OthersTurn, TurnWait};
use super::{Account, NEXT, TURN, folder, lock, prune};
use crate::exit::Failure;

/// How long a turn lasts, and how often a run that is alone writes what it has counted, on average. Turns differ in length, so
/// that no run always has the turn when a window opens.
pub(crate) const TURN_LASTS: Duration = Duration::from_millis(100);

/// A run whose next call waits for room keeps its turn until that call has left, if that is no longer.
const KEPT_FOR_ROOM: Duration = Duration::from_mins(1);

/// How often a run that waits for its turn checks.
const CHECKED: Duration = Duration::from_millis(10);

/// How long a run that cannot use the files of its account goes on alone, before it tries again.
const ALONE: Duration = Duration::from_secs(1);

/// How long a run that has ended waits for its turn, to write what its last calls really used.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// From then on a wait for the turn is told.
const TOLD_AFTER: Duration = Duration::from_secs(1);

/// The part of a run in the limits of its account.
#[derive(Debug)]
pub(crate) struct SharedLimits {
    limiter: Limiter,
    /// None where no limit is configured, or the user's folder cannot be used.
    account: Option<SharedAccount>,
    /// Processes on other hosts have the other shares; then no turns are taken.
    fleet: Option<FleetPlace>,
    turn_wait: TurnWait,
}

#[derive(Debug)]
struct SharedAccount {
    host: String,
    /// What another process that calls it has in common, for people.
    with: &'static str,
    /// The path of the account's files, without an extension.
    files: PathBuf,
    ledger: Ledger,
    /// What left since that was written.
    departed: Departed,
    /// The name of this run in the ledger.
    run: String,
    /// What this run has counted, once that is anything.
    own: Option<Entry>,
    others: Vec<Entry>,
    /// Held while this run has the turn.
    turn: Option<File>,
    /// The ledger does not have all of `own`.
    outdated: bool,
    /// Another run was reported, ...
    reported: bool,
    /// ... and that the ledger cannot be written.
    trouble: Repeats,
    clock: Clock,
    turn_wait: TurnWait,
    /// Where a gateway tells whether the ledger can be written.
    conditions: Option<Conditions>,
}

impl SharedLimits {
    /// For a limiter that has granted nothing yet. `fleet`: that of its upstream. One that `stays` waits until it is taken in.
    ///
    /// # Errors
    /// The fleet cannot be joined: its store refuses, or its processes share other limits.
    pub(crate) async fn open(
        account: Option<&Account>,
        fleet: Option<&FleetSettings>,
        config: &PacerConfig,
        limiter: Limiter,
        stays: bool,
    ) -> Result<Self, Failure> {
        match (account, fleet) {
            (Some(account), Some(fleet)) => {
                let fleet = FleetPlace::join(fleet, account, &limiter, stays).await?;
                Ok(Self { limiter, account: None, fleet: Some(fleet), turn_wait: TurnWait::default() })
            }
            (None, Some(_)) => {
                tracing::warn!("the fleet is not joined: no other process calls the mock in this one");
                Ok(Self::of_this_user(None, config, limiter))
            }
            (account, None) => Ok(Self::of_this_user(account, config, limiter)),
        }
    }

    /// The limits are shared with the runs of this user alone.
    pub(crate) fn of_this_user(account: Option<&Account>, config: &PacerConfig, limiter: Limiter) -> Self {
        let turn_wait = TurnWait::default();
        let account = account.filter(|_| Self::is_for(config)).and_then(|account| {
            let folder = folder().map_err(|error| warn_alone(&error, "")).ok()?;
            prune::unused(&folder);
            Some(SharedAccount::new(&folder, account, &limiter, turn_wait.clone()))
        });
        Self { limiter, account, fleet: None, turn_wait }
    }

    /// Tells there, too, whether what was sent can be written.
    pub(crate) fn tell(&mut self, conditions: &Conditions) {
        self.account.iter_mut().for_each(|account| account.conditions = Some(conditions.clone()));
    }

    /// Where it says that it waits for the turn of another process.
    pub(crate) fn turn_wait(&self) -> TurnWait {
        self.turn_wait.clone()
    }

    /// Whether that configuration has limits that may be shared.
    pub(crate) fn is_for(config: &PacerConfig) -> bool {
        let mut limits = std::iter::once(&config.limits).chain(config.tiers.iter().map(|(_, limits)| limits));
        config.pace != Pace::None && limits.any(|limits| !limits.quotas.is_empty())
    }

    /// Whether limits are shared at all, as yet.
    pub(crate) const fn is_shared(&self) -> bool {
        self.account.is_some() || self.fleet.is_some()
    }

    /// Whether they are shared in a fleet, whose ledger alone counts.
    pub(crate) const fn is_fleet(&self) -> bool {
        self.fleet.is_some()
    }

    /// Whether the ledger has earlier runs with calls that still count. Then the job's own copy of its counts is not used: the
    /// ledger includes it.
    pub(crate) fn know_earlier_runs(&self) -> bool {
        let in_turns = |account: &SharedAccount| account.ledger.knows_runs(|run| account.departed.of(run, None));
        self.fleet.is_some() || self.account.as_ref().is_some_and(in_turns)
    }

    /// Nothing leaves before [`keep`](Self::keep) has the turn. The counts of others are read at once, so that a wait for room
    /// is reported as that.
    pub(crate) fn begin(&mut self) {
        if let Some(account) = &mut self.account {
            account.others = account.of_others(account.ledger.read().unwrap_or_default());
            account.count(&self.limiter);
            self.limiter.yield_turn();
        }
    }

    /// Takes turns with other runs, and writes what this one has counted, for as long as the future is polled.
    pub(crate) async fn keep(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            fleet.keep(&self.limiter).await;
        }
        let Some(account) = &mut self.account else { return std::future::pending().await };
        let mut is_alone = false;
        loop {
            account.note_own(&self.limiter);
            if let Err(error) = account.take_turn().await {
                account.turn = None;
                account.departed.rest();
                if !std::mem::replace(&mut is_alone, true) {
                    warn_alone(&error, "; that is tried again each second");
                }
                // Better alone than not at all, beside what the others are known to have sent.
                account.count(&self.limiter);
                tokio::time::sleep(ALONE).await;
                self.limiter.yield_turn();
                continue;
            }
            if std::mem::take(&mut is_alone) {
                tracing::info!("the configured limits hold for all jobs on this host and key again");
            }
            account.count(&self.limiter);
            loop {
                tokio::time::sleep(length_of_turn()).await;
                if beside_others(|| account.passes_turn_on(&self.limiter)) {
                    break;
                }
            }
        }
    }

    /// After the last call: writes what the calls really used, and passes the turn on. A later [`begin`](Self::begin) goes on.
    pub(crate) async fn end(&mut self) {
        if let Some(fleet) = &mut self.fleet {
            fleet.leave().await;
        }
        let Some(account) = &mut self.account else { return };
        account.note_own(&self.limiter);
        if account.turn.is_none() && account.outdated {
            let _ = tokio::time::timeout(LAST_WAIT, account.take_turn()).await;
        }
        if account.turn.is_some() {
            account.note_own(&self.limiter);
            if account.write(false) {
                account.departed.clear();
            }
            account.turn = None;
        }
        account.departed.rest();
    }
}

impl SharedAccount {
    fn new(folder: &Path, account: &Account, limiter: &Limiter, turn_wait: TurnWait) -> Self {
        let files = folder.join(account.name());
        let departed = Departed::beside(&files, limiter.clone());
        let run = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        departed.follow(&run);
        Self {
            ledger: Ledger::new(folder, account.name()),
            departed,
            host: account.host.clone(),
            with: account.with(),
            files,
            run,
            own: None,
            others: Vec::new(),
            turn: None,
            outdated: false,
            reported: false,
            trouble: Repeats::new(),
            clock: Clock::new(),
            turn_wait,
            conditions: None,
        }
    }

    /// Waits for the turn, and reads what others have counted. One run waits for the turn, all others wait for that place: so a
    /// run that has just passed the turn on comes after those that wait.
    async fn take_turn(&mut self) -> io::Result<()> {
        let since = (self.clock.now(), clock::wall());
        let next = self.wait_for(NEXT, since).await?;
        self.turn = Some(self.wait_for(TURN, since).await?);
        self.turn_wait.set(None);
        drop(next);
        beside_others(|| {
            self.others =
                self.of_others(self.ledger.take_over(&self.run, |killed, until| self.departed.of(killed, until))?);
            // From now on the others know that this run goes on after what it has written.
            self.departed.begin();
            if self.write(true) {
                self.departed.clear();
            }
            Ok(())
        })
    }

    fn of_others(&self, mut runs: Vec<Entry>) -> Vec<Entry> {
        runs.retain(|entry| entry.run != self.run);
        runs
    }

    /// `since`: when the wait for the turn began, by both clocks.
    async fn wait_for(&mut self, what: &str, since: (Instant, Timestamp)) -> io::Result<File> {
        let mut told = since.0;
        loop {
            if let Some(file) = self.take(what)? {
                // It is only a name for people: a disk that is full keeps no turn back.
                let _ = lock::sign(&file, true);
                return Ok(file);
            }
            self.report_once(what);
            let now = self.clock.now();
            if now - told >= TOLD_AFTER {
                told = now;
                let pid = self.holder_of(TURN).or_else(|| self.holder_of(what));
                self.turn_wait.set(Some(OthersTurn { pid, since: since.1 }));
            }
            tokio::time::sleep(CHECKED).await;
        }
    }

    /// The other process that has that file.
    fn holder_of(&self, what: &str) -> Option<u32> {
        self.signer_of(what).filter(|pid| !is_this_process(Some(*pid)))
    }

    /// The process that signed that file last.
    fn signer_of(&self, what: &str) -> Option<u32> {
        lock::signed_by(&self.files.with_extension(what)).0
    }

    fn take(&self, what: &str) -> io::Result<Option<File>> {
        lock::take(&self.files.with_extension(what))
    }

    /// Names the other process, which has that file.
    fn report_once(&mut self, what: &str) {
        if self.reported {
            return;
        }
        let holder = self.signer_of(what);
        // A gateway that serves both upstreams names them.
        if !is_this_process(holder) {
            self.reported = true;
            let who = lock::named(holder);
            tracing::info!(
                "{who} is calling {}{}: both share the configured limits and take turns",
                self.host,
                self.with,
            );
        }
    }

    /// Writes what this run has counted, and ends the turn if another run waits for it. Without this count no other run may go
    /// on.
    fn passes_turn_on(&mut self, limiter: &Limiter) -> bool {
        if !self.save(limiter) {
            return false;
        }
        // An error here is reported when this run waits for a lock itself.
        let Ok(None) = self.take(NEXT) else { return false };
        self.report_once(NEXT);
        let keeps_it = || limiter.waits_for_room().is_some_and(|at| at - limiter.now() <= KEPT_FOR_ROOM);
        // Another upstream of this process has limits of its own, for which its calls need not wait.
        if !is_this_process(self.signer_of(NEXT)) && keeps_it() {
            return false;
        }
        limiter.yield_turn();
        self.note_own(limiter);
        let passes = self.write(false);
        match passes {
            true => {
                self.departed.rest();
                self.turn = None;
            }
            false => self.count(limiter),
        }
        passes
    }

    /// Grants calls, beside those of the others.
    fn count(&self, limiter: &Limiter) {
        let others: Vec<LimiterState> = self.others.iter().map(|entry| entry.counted.clone()).collect();
        limiter.take_turn(&others).expect("the ledger knows their version");
    }

    /// Notes what this run has counted, for the ledger.
    fn note_own(&mut self, limiter: &Limiter) {
        let noted_until = Some(clock::wall());
        if let Some(counted) = limiter.own_windows()
            && (self.own.is_some() || !counted.pacer.account.is_empty() || !counted.pacer.scopes.is_empty())
        {
            self.own = Some(Entry { run: self.run.clone(), noted_until, counted });
            self.outdated = true;
        }
    }

    /// Writes what this run has counted, if that has changed. Returns whether the ledger is up to date.
    fn save(&mut self, limiter: &Limiter) -> bool {
        self.departed.turn();
        self.note_own(limiter);
        let is_saved = !self.outdated || self.write(true);
        if is_saved {
            self.departed.forget();
        }
        is_saved
    }

    /// Writes what all runs have counted, and whether this one goes on. A failure is logged now and then, and the run goes on:
    /// its items are what matters.
    fn write(&mut self, goes_on: bool) -> bool {
        let runs = self.others.iter().chain(&self.own).cloned().collect();
        let written = self.ledger.write(runs, goes_on.then_some(&*self.run));
        self.conditions.iter().for_each(|conditions| conditions.wrote(&self.files, written.is_ok()));
        match &written {
            Err(error) => {
                if let Some(times) = self.trouble.came(self.clock.now()) {
                    tracing::warn!(
                        times = (times > 1).then_some(times),
                        "cannot save how much was sent, so other runs on this host and key may exceed the limits: {}: \
                         {error}",
                        self.files.display()
                    );
                }
            }
            Ok(()) if self.trouble.is_known() && self.trouble.went_well(self.clock.now()) => {
                tracing::info!("how much was sent is saved again");
            }
            Ok(()) => {}
        }
        self.outdated = written.is_err();
        !self.outdated
    }
}

/// Does what waits for the disk, while another thread goes on with what this one serves: where the disk is busy, to replace a
/// file takes many milliseconds.
fn beside_others<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(work),
        _ => work(),
    }
}

fn is_this_process(pid: Option<u32>) -> bool {
    pid == Some(std::process::id())
}

/// Why a file cannot be written whose folder can.
const OF_ANOTHER: &str =
    " (a file there may belong to another user, such as root after one run with sudo: ls -l shows whose it is)";

fn warn_alone(error: &io::Error, what_follows: &str) {
    let why = if error.kind() == io::ErrorKind::PermissionDenied { OF_ANOTHER } else { "" };
    tracing::warn!(
        "the configured limits hold for this job alone; other jobs on the same host and key cannot see its calls: \
         {error}{why}{what_follows}"
    );
}

/// From half to one and a half of it.
fn length_of_turn() -> Duration {
    TURN_LASTS / 2 + TURN_LASTS.mul_f64(RandomState::new().hash_one(0) as f64 / u64::MAX as f64)
}

#[cfg(test)]
mod tests;
