//! The types of the work store: an item, a claim, what a person changes.

use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::{Class, Timestamp, UnknownOutcome};

pub use super::outcome::{ClaimOutcome, DecisionRecord, ItemTime, RecordStatus, Transition};
use crate::state::{Forgiven, State};
use serde_json::{Value, json};

/// An item to be put into a store. No text of it may hold a NUL character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewItem {
    /// The key of the item; unique in a store, at most 512 bytes.
    pub key: String,
    /// The input of the work, usually JSON; at most 16 MiB.
    pub payload: String,
    /// Among due items, higher goes first. Default 0.
    pub priority: i16,
    /// How long after its first try the item is given up; time in a held or stopped group does not count. Default: that of
    /// the run.
    pub deadline: Option<Duration>,
    /// Items of one group are held and stopped together, and groups take turns. Default `default`.
    pub group: String,
    /// Not before that time. Default: at once.
    pub not_before: Option<Timestamp>,
    /// When it was added to the store that it was in before: who moves it [sends](WorkItem::sent_for) for it. Default: now.
    pub created: Option<Timestamp>,
    /// It was in another store before, where its work was or may have been done.
    pub may_be_done: bool,
}

impl NewItem {
    /// An item of the default group and priority.
    pub fn new(key: impl Into<String>, payload: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            payload: payload.into(),
            priority: 0,
            deadline: None,
            group: DEFAULT_GROUP.to_owned(),
            not_before: None,
            created: None,
            may_be_done: false,
        }
    }

    /// The time for which it waits in a store; none where it is due at once. After [`HORIZON`] all times are one, which never
    /// comes.
    pub(crate) fn waits_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.not_before.filter(|at| *at > now).map(|at| at.min(HORIZON + Duration::from_millis(1)))
    }
}

/// The end of the year 9999 in UTC. What is due later has no place in any run.
pub(crate) const HORIZON: Timestamp = Timestamp::from_millis(253_402_300_799_999);

/// The group of items that name none.
pub const DEFAULT_GROUP: &str = "default";

/// The result of adding an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It is in the store now.
    New,
    /// An item of this key was there already, in this state, and stays as it is.
    Known(State),
    /// The same, and its payload is another one.
    Differs(State),
}

impl Added {
    pub(crate) const fn known(state: State, is_same: bool) -> Self {
        if is_same { Self::Known(state) } else { Self::Differs(state) }
    }
}

/// An item as a store knows it, without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkItem {
    /// The number that the store gave it: items that were added later have higher ones.
    pub id: u64,
    /// Its key.
    pub key: String,
    /// Its group.
    pub group: Arc<str>,
    /// Higher goes first.
    pub priority: i16,
    /// Its state.
    pub state: State,
    /// Sends that count against the bound of retries.
    pub attempts: u32,
    /// Sends answered with a throttle, an exhausted quota or an error of the account.
    pub deferrals: u32,
    /// Sends that were abandoned.
    pub abandoned: u32,
    /// Calls that only tested a failing server: they count against no bound, and are no sends.
    pub tests: u32,
    /// Of its attempts and deferrals, those of earlier runs and before a person's retry: they count against no bound.
    pub forgiven: Forgiven,
    /// Times that its worker died or lost its lease meanwhile, since its bounds began.
    pub crashes: u32,
    /// A call of it [was sent](super::WorkStore::note_sent), and no outcome is recorded, or it was cancelled during a try that
    /// succeeded: it may have been done.
    pub may_be_done: bool,
    /// A call of it was sent and nothing told whether it was done: it had no answer, or one of a gateway that gave up, or it was
    /// [noted](super::WorkStore::note_sent) and its worker died. So it stays until the server has looked at a later call, which
    /// a throttle and overload do not show. Unlike [`may_be_done`](Self::may_be_done) it keeps no later try back.
    pub in_doubt: bool,
    /// When it may start; none when it waits for nothing.
    pub not_before: Option<Timestamp>,
    /// The wait that was chosen last.
    pub delay: Duration,
    /// When it was added.
    pub created: Timestamp,
    /// When it was claimed for its first send, moved on by the time that its group was held or stopped.
    pub first: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// When a person sent for it last ([`Amend::Retry`]), or [moved](NewItem::created) it, by the clock of the store.
    pub sent_for: Option<Timestamp>,
    /// When it succeeded, where a person has sent for it once more since ([`Amend::Again`]).
    pub delivered: Option<Timestamp>,
    /// How long after `first` it is given up.
    pub deadline: Option<Duration>,
    /// What went wrong last; none once a later try has succeeded and its server's words are known.
    pub last: Option<Failure>,
    /// What the server said to the last try, which succeeded.
    pub answered: Option<Said>,
    /// Why it ended, is deferred or waits, in a word or a sentence.
    pub reason: Option<String>,
}

/// The due time of what was left to a run: before all others. The statements of the databases have it as 1.
pub(crate) const LEFT_FIRST: Timestamp = Timestamp::from_millis(1);

impl WorkItem {
    /// All sends of the item that were answered or given up.
    pub const fn sends(&self) -> u32 {
        self.attempts.saturating_add(self.deferrals).saturating_add(self.abandoned)
    }

    /// All calls of it that are known: its sends, and those that only tested a failing server.
    pub const fn calls(&self) -> u32 {
        self.sends().saturating_add(self.tests)
    }

    /// Whether something may have been decided about it.
    pub(crate) const fn has_history(&self) -> bool {
        self.last.is_some() || self.answered.is_some() || self.delivered.is_some()
    }

    /// Whether it was left to the next run, and waits because a worker has begun one: no person has sent for it.
    pub fn was_left_to_a_run(&self) -> bool {
        self.not_before == Some(LEFT_FIRST)
    }
}

/// What a server said to a try that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
    /// The beginning of its words; more than 400 characters are cut off.
    pub message: String,
}

impl Said {
    /// The status of an answer, and the beginning of its body, if that is text.
    pub fn of(status: u16, body: &[u8]) -> Self {
        let start = &body[..body.len().min(4 * MESSAGE_CHARS)];
        let text = match std::str::from_utf8(start) {
            Ok(text) => text,
            // A character may be cut there.
            Err(error) if error.error_len().is_none() && start.len() < body.len() => {
                std::str::from_utf8(&start[..error.valid_up_to()]).unwrap_or_default()
            }
            Err(_) => "",
        };
        Self { status: Some(status), message: shortened(text.trim()) }
    }

    /// The last try as a database keeps it: what went wrong, or what was said of a success.
    pub(crate) fn apart(last: Option<Failure>) -> (Option<Failure>, Option<Self>) {
        match last {
            Some(Failure { class: Class::Success, status, message, .. }) => (None, Some(Self { status, message })),
            last => (last, None),
        }
    }
}

/// What went wrong with a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its class; the rules decide by this alone.
    pub class: Class,
    /// The HTTP status or the exit code, if there was one.
    pub status: Option<u16>,
    /// The machine-readable code, if there was one.
    pub code: Option<String>,
    /// The error message; more than 400 characters are cut off.
    pub message: String,
    /// The wait that the server asked for. It is not stored: the due time is.
    pub retry_after: Option<Duration>,
    /// Set where the try only tested a server that had been failing, while nothing else was counted: so long the item sits out if
    /// the server still fails, so that others test it too. Such a failure is no fault of the item, and counts against no bound
    /// of retries. It is not stored.
    pub probe: Option<Duration>,
    /// No server received the try: see [`Outcome::unsent`](paceline_core::Outcome::unsent). Such a failure counts against no
    /// bound of retries. It is not stored.
    pub unsent: bool,
    /// Retries that were made for the try elsewhere, and count beside it: see
    /// [`Outcome::retried`](paceline_core::Outcome::retried). It is not stored: the counts of the item are.
    pub retried: u32,
    /// What follows instead of a retry if it is unknown whether the work was done, and it must not be done twice: see
    /// [`Outcome::unknown`](paceline_core::Outcome::unknown). No judge is asked. It is not stored.
    pub unknown: UnknownOutcome,
    /// Whether the whole group has to wait if the item has, as it has for a used-up quota unless that is one of fewer items.
    /// It is not stored: the held group is.
    pub is_for_group: bool,
    /// The failure concerns only some items of the group, such as those of one host: the item is left to the next run, instead of
    /// a stop of the group for an error of the account, and of its own end for a refusal. Default false. It is not stored.
    pub spares_group: bool,
    /// Whether nothing tells if the try did its work: it was sent and had no answer, or one of a gateway that gave up. Default
    /// none: a transient failure without a status counts as one. It is not stored: that the item is
    /// [in doubt](WorkItem::in_doubt) is.
    pub unanswered: Option<bool>,
    /// The server answered, and not as the user expects: the class alone does not tell that from a server that is failing. It is
    /// not stored.
    pub unexpected: bool,
}

impl Failure {
    /// Whether its try was sent, and nothing tells if that did its work.
    pub(crate) fn leaves_in_doubt(&self) -> bool {
        let is_transient = matches!(self.class, Class::Transient | Class::Overloaded);
        !self.unsent && self.unanswered.unwrap_or(is_transient && self.status.is_none())
    }

    /// A failure of that class.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self {
            class,
            status: None,
            code: None,
            message: message.into(),
            retry_after: None,
            probe: None,
            unsent: false,
            retried: 0,
            unanswered: None,
            unknown: UnknownOutcome::Resend,
            is_for_group: class == Class::QuotaExhausted,
            spares_group: false,
            unexpected: false,
        }
    }

    /// The caller gave the try up, and the item goes again as if it had not been tried.
    pub(crate) fn is_given_up(&self) -> bool {
        self.class == Class::Abandoned && self.retry_after.is_none() && self.unknown == UnknownOutcome::Resend
    }

    /// Its words, after the status where they do not have it: the words alone may be no more than `ok`.
    pub(crate) fn with_its_status(&self) -> String {
        match self.status {
            Some(status) if !self.message.contains(&status.to_string()) => format!("{status}: {}", self.message),
            _ => self.message.clone(),
        }
    }

    /// With a status.
    #[must_use]
    pub const fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Of a try that tested whether a failing server is back, if `sits_out` says how long its item sits out otherwise.
    #[must_use]
    pub const fn of_probe(mut self, sits_out: Option<Duration>) -> Self {
        self.probe = sits_out;
        self
    }

    /// With a wait that the server asked for.
    #[must_use]
    pub const fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

/// A decision about a failed try, and the wait that followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// When it was decided.
    pub decided: Timestamp,
    /// Which send of the item it was, from 1.
    pub send: u32,
    /// What had gone wrong.
    pub failure: Failure,
    /// What was decided: `retry`, `defer`, `fail`, `fallback`, `skip`, `abort` or `next_run`; `again` where a person sent for it
    /// once more though it had succeeded, or as a new one.
    pub action: String,
    /// Why, if there is a reason to show.
    pub reason: Option<String>,
    /// Who decided: `rules`, or the name of a judge.
    pub by: String,
    /// When the item was to start again; none where it was not to.
    pub not_before: Option<Timestamp>,
    /// How long it then waited until it was claimed again.
    pub waited: Option<Duration>,
    /// Of an item that a person sent for once more: when it was added before that, by which its receiver knows those calls.
    pub created: Option<Timestamp>,
}

impl HistoryEntry {
    /// Whether it is that the item had succeeded when a person sent for it once more.
    pub fn is_delivery(&self) -> bool {
        self.created.is_some() && self.failure.class == Class::Success
    }

    /// As `paceline tasks show --json` lists it, and as a judge gets it.
    pub fn to_json(&self) -> Value {
        json!({
            "decided_at": self.decided.to_string(),
            "send": self.send,
            "class": self.failure.class.as_str(),
            "status": self.failure.status,
            "code": self.failure.code,
            "words": self.failure.message,
            "action": self.action,
            "reason": self.reason,
            "by": self.by,
            "not_before": self.not_before.map(|at| at.to_string()),
            "waited_s": self.waited.map(|waited| waited.as_secs_f64()),
        })
    }
}

/// A worker that a store gives work to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WorkerId(pub(crate) i64);

/// What a worker wants to claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimRequest {
    /// At most that many items.
    pub limit: usize,
    /// Items that are due within this time too, so that they can start to the millisecond.
    pub ahead: Duration,
}

/// An item handed out to be worked on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The item.
    pub item: WorkItem,
    /// Its payload.
    pub payload: String,
    /// The fencing token of this claim: no outcome is taken with it once another worker has the item.
    pub fence: i64,
    /// When it was handed out, by the clock of the store.
    pub at: Timestamp,
    /// How long to wait before it may start; zero for what is due.
    pub due_in: Duration,
    /// The time since its first try, less the time that its group was held or stopped.
    pub age: Duration,
    /// The last five decisions about it, the oldest first.
    pub history: Vec<HistoryEntry>,
}

/// The answer to a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// By priority; then tries whose time has come, by due time; then new items; then those that a crash interrupted.
    /// Groups take turns.
    pub items: Vec<Claimed>,
    /// How long until the next waiting item may start, its group permitting. None when nothing waits but items of stopped
    /// groups and such as are due after the year 9999; zero when more were due than asked for.
    pub next_due: Option<Duration>,
    /// Whether other workers have items: some may come back.
    pub others: bool,
    /// The store's time, by which groups are held.
    pub now: Timestamp,
    /// Nothing is handed out, because the worker's lease ran out: it has to [`reregister`](super::WorkStore::reregister).
    pub lost: bool,
}

/// How many items are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts {
    /// By the number of the state.
    pub by_state: [u64; State::ALL.len()],
}

impl StateCounts {
    /// Items in that state.
    pub const fn of(&self, state: State) -> u64 {
        self.by_state[state as usize]
    }

    /// All items.
    pub fn total(&self) -> u64 {
        self.by_state.iter().sum()
    }
}

/// Selects items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only in these states; in any when empty.
    pub states: Vec<State>,
    /// Only of this group.
    pub group: Option<String>,
    /// Only of these keys; of any when empty.
    pub keys: Vec<String>,
}

/// A change of items by a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amend {
    /// Items that failed, fell back, were skipped, cancelled or deferred wait again, and their bounds begin anew. Waiting ones
    /// are due at once.
    Retry,
    /// Likewise, and items that succeeded too: what they call gets them once more.
    Again {
        /// As if they were added only now: what is made of that time, such as the id by which a receiver knows an item, is
        /// another.
        as_new: bool,
    },
    /// Items that have not ended are cancelled; later outcomes of a worker are not recorded.
    Cancel,
    /// Items that failed or wait are left to the next run, for the fault is not theirs: then their bounds begin anew, but for
    /// their deadline, which counts from their first try. It opens no group.
    LeaveToNextRun,
    /// Items that were left to the next run wait again, as if it had begun: no person has sent for them.
    TakeUp,
    /// Waiting items are due at once, for what they waited for is over; their bounds go on.
    Due,
}

/// What becomes of the keys of items that are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrunedKeys {
    /// They are kept, with the state in which their items ended: each is added once.
    Keep,
    /// They may be added again, and so may those that were kept of items that ended as long ago.
    Forget,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Items.
    pub items: u64,
    /// Keys that were kept of items that had been removed before.
    pub keys: u64,
    /// Items that stay: they were cancelled during a call that is still under way, and what became of it is to be told.
    pub under_way: u64,
}

impl AddAssign for Pruned {
    fn add_assign(&mut self, more: Self) {
        self.items += more.items;
        self.keys += more.keys;
        self.under_way = more.under_way;
    }
}

impl PrunedKeys {
    /// Whether keys are forgotten that were kept earlier: of a kept one no group is known.
    pub(crate) const fn forget_kept(self, filter: &Filter) -> bool {
        matches!(self, Self::Forget) && filter.group.is_none() && filter.keys.is_empty()
    }
}

/// Who sends once more, and what that is called among decisions.
pub(crate) const PERSON: &str = "a person";
pub(crate) const AGAIN: &str = "again";

/// Why an item waits that was left to the next run by [`Amend::LeaveToNextRun`].
pub(crate) const LEFT: &str = "same_failure";

/// How many decisions about an item its claim contains.
pub(crate) const HISTORY: usize = 5;

/// How many decisions about an item are kept: an item that is throttled for days must not fill the disk.
pub(crate) const EVENTS: usize = 100;

/// The longest message that is kept, in characters: a line in a report, not the answer.
const MESSAGE_CHARS: usize = 400;

pub(crate) fn shortened(message: &str) -> String {
    message.chars().take(MESSAGE_CHARS).collect()
}
