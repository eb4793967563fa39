//! One batch of the writer thread: its result lines are written and synced, one transaction commits, then callers are answered.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::command::{Command, Query, Reply};
use crate::error::JournalError;
use crate::item::{CallTotals, FinishStatus, ModelUsage};
use crate::journal_db::JournalDb;
use crate::usage;

/// Executes a batch of commands and answers each. Lines are synced before the transaction commits, and the transaction commits
/// before any caller is answered. After an error the database must not be used again.
pub(crate) fn write_batch(db: &mut JournalDb, commands: Vec<Command>) -> Result<(), Arc<JournalError>> {
    let mut batch =
        WriteBatch { db: &mut *db, adds: CallTotals::default(), used: Vec::new(), failure: None, settles: Vec::new() };
    let mut queries = Vec::new();
    let durable =
        commands.iter().any(|command| matches!(command, Command::Leaves { departure, .. } if departure.durable));
    let ended: BTreeSet<u64> = commands.iter().filter_map(Command::outcome_of).collect();
    // A call that has ended meanwhile needs no note.
    let is_vain = |command: &Command| match command {
        Command::Leaves { departure, reply: None } => ended.contains(&departure.ordinal),
        _ => false,
    };
    batch.attempt(|db| db.begin(durable));
    for command in commands.into_iter().filter(|command| !is_vain(command)) {
        batch.execute(command, &mut queries);
    }
    let (adds, used) = (batch.adds, std::mem::take(&mut batch.used));
    batch.attempt(|db| used.iter().try_for_each(|usage| db.add_usage(usage)));
    batch.attempt(|db| db.commit(adds, durable));
    let WriteBatch { failure, settles, .. } = batch;
    for settle in settles {
        settle(failure.as_ref());
    }
    for query in queries {
        // It may change anything.
        db.forget_caches();
        match &failure {
            None => query(Ok(&mut *db)),
            Some(cause) => query(Err(JournalError::Stopped { cause: cause.clone() })),
        }
    }
    failure.map_or(Ok(()), Err)
}

/// Answers one command, with the failure of the turn if there was one.
type Settle = Box<dyn FnOnce(Option<&Arc<JournalError>>)>;

struct WriteBatch<'a> {
    db: &'a mut JournalDb,
    adds: CallTotals,
    /// One row for each model.
    used: Vec<ModelUsage>,
    failure: Option<Arc<JournalError>>,
    settles: Vec<Settle>,
}

impl WriteBatch<'_> {
    fn execute(&mut self, command: Command, queries: &mut Vec<Query>) {
        match command {
            Command::Finish(finished, reply) => {
                self.outcome(finished.adds, &finished.usage, reply, |db| db.finish(&finished));
            }
            Command::Refused { line, reply } => self.step(reply, |db| db.keep_refused(&line)),
            Command::Reschedule(next, reply) => {
                self.outcome(next.adds, &next.usage, reply, |db| db.reschedule(&next));
            }
            Command::Release { ordinal, sent: None, reply } => self.step(reply, |db| db.release(ordinal, None)),
            Command::Release { ordinal, sent: Some(sent), reply } => {
                self.outcome(sent.adds, &sent.usage, reply, |db| db.release(ordinal, Some(&sent.tally)));
            }
            Command::Leaves { departure, reply: Some(reply) } => self.step(reply, |db| db.leaves(&departure)),
            Command::Leaves { departure, reply: None } => _ = self.attempt(|db| db.leaves(&departure)),
            Command::Claim { now, limit, except, reply } => {
                self.step(reply, |db| db.claim(now, limit, &except));
            }
            Command::ClaimItems { ordinals, reply } => {
                self.step(reply, |db| db.claim_items(&ordinals));
            }
            Command::Scope { row, reply } => self.step(reply, |db| db.set_scope(row)),
            Command::HoldForThisRun { name, until } => self.db.hold_for_this_run(&name, until),
            Command::StandsStill { name, from, until } => {
                self.attempt(|db| db.stands_still(&name, from, until));
            }
            Command::Snapshot { update, reply } => self.step(reply, |db| db.write_snapshot(&update)),
            Command::History { minutes, reply } => {
                self.step(reply, |db| db.add_history(&minutes));
            }
            Command::Query(query) => queries.push(query),
        }
    }

    /// A step that ends a send. The totals count it even when the item had ended before: the send took place.
    fn outcome(
        &mut self,
        adds: CallTotals,
        usage: &[ModelUsage],
        reply: Reply<FinishStatus>,
        work: impl FnOnce(&mut JournalDb) -> Result<FinishStatus, JournalError>,
    ) {
        self.step(reply, work);
        for usage in usage {
            usage::add_to(&mut self.used, usage.clone());
        }
        self.adds.calls += adds.calls;
        self.adds.resends += adds.resends;
        self.adds.retries += adds.retries;
        self.adds.throttled += adds.throttled;
        self.adds.abandoned += adds.abandoned;
    }

    fn step<T: 'static>(&mut self, reply: Reply<T>, work: impl FnOnce(&mut JournalDb) -> Result<T, JournalError>) {
        let done = self.attempt(work);
        self.settles.push(Box::new(move |failure| {
            reply(match (done, failure) {
                (Some(value), None) => Ok(value),
                (_, Some(cause)) => Err(JournalError::Stopped { cause: cause.clone() }),
                (None, None) => Err(JournalError::Closed),
            });
        }));
    }

    /// Does it unless the turn has failed already.
    fn attempt<T>(&mut self, work: impl FnOnce(&mut JournalDb) -> Result<T, JournalError>) -> Option<T> {
        if self.failure.is_some() {
            return None;
        }
        match work(self.db) {
            Ok(value) => Some(value),
            Err(error) => {
                self.failure = Some(Arc::new(error));
                None
            }
        }
    }
}
