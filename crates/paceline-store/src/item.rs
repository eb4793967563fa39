//! The types of the journal: an item, its outcomes, its counters.

use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::{Class, Timestamp};

use crate::line::CustomId;
use crate::state::{Forgiven, State};

/// Tokens that the calls of one model used. A call whose answer did not report its usage counts with what its run expected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelUsage {
    /// The model as the requests name it; empty where it is not known.
    pub model: Arc<str>,
    /// Calls that used tokens.
    pub calls: u64,
    /// Tokens of the prompts.
    pub tokens_in: u64,
    /// Tokens of the answers.
    pub tokens_out: u64,
    /// How many hundredths of a token of input more the prompts cost than they have, because a cache was written. Of
    /// `calls_of_older` with what reads of it made of the price.
    pub cache_price: i64,
    /// Tokens of the prompts that a cache was read for.
    pub cached_tokens: u64,
    /// How many hundredths of a token of input more, or fewer, these cost than they are, where the price of input from the cache
    /// is not given.
    pub cached_price: i64,
    /// Tokens of the prompts that were written into a cache.
    pub written_tokens: u64,
    /// What of `cache_price` is theirs.
    pub written_price: i64,
    /// Calls of an older version, which did not keep how many tokens a cache was read for.
    pub calls_of_older: u64,
    /// Calls that another model answered than they had asked for, of which no price was known, and which count as this one.
    pub calls_unpriced: u64,
    /// Calls that this model answered in place of the one that they had asked for.
    pub calls_in_place: u64,
    /// Tokens of the answers that told a total alone, as far as an estimate counts that as answer.
    pub divided_out: u64,
    /// Tokens of the longest answer that had more than its request allows; 0 where all kept to it.
    pub beyond_bound: u64,
}

impl AddAssign<&Self> for ModelUsage {
    /// Of the same model.
    fn add_assign(&mut self, more: &Self) {
        self.calls += more.calls;
        self.tokens_in += more.tokens_in;
        self.tokens_out += more.tokens_out;
        self.cache_price += more.cache_price;
        self.cached_tokens += more.cached_tokens;
        self.cached_price += more.cached_price;
        self.written_tokens += more.written_tokens;
        self.written_price += more.written_price;
        self.calls_of_older += more.calls_of_older;
        self.calls_unpriced += more.calls_unpriced;
        self.calls_in_place += more.calls_in_place;
        self.divided_out += more.divided_out;
        self.beyond_bound = self.beyond_bound.max(more.beyond_bound);
    }
}

/// A call that is about to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The item.
    pub ordinal: u64,
    /// What the call may use: it counts with that if no process records its outcome.
    pub reserved: ModelUsage,
    /// It must not be made twice: the record has to outlast a power cut.
    pub durable: bool,
}

/// A call that left in an earlier run, which ended before it recorded the outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CutOff {
    /// The item.
    pub ordinal: u64,
    /// The input changed since, and the item that was called is known by its body alone: its id was that of its place. What is
    /// sent now has another idempotency key.
    pub moved: bool,
}

/// How an item ends. It decides the file of its line: [`End::Succeeded`] and [`End::FellBack`] go to the results, the rest to
/// the errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A usable answer.
    Succeeded,
    /// No answer, because the API stayed down: a fallback's result stands in its place. [`Finished::reason`] says why, and tells
    /// such an item from one that has its answer.
    FellBack,
    /// Given up.
    Failed,
    /// Never sent, by decision.
    Skipped,
    /// Ended by a person.
    Cancelled,
}

impl End {
    /// The state that an item has from then on.
    pub const fn state(self) -> State {
        match self {
            Self::Succeeded | Self::FellBack => State::Succeeded,
            Self::Failed => State::Failed,
            Self::Skipped => State::Skipped,
            Self::Cancelled => State::Cancelled,
        }
    }
}

/// An item as the loader takes it from the input.
#[derive(Clone, Copy, Debug)]
pub struct LoadedLine<'a> {
    /// The id that the user gave; unique in the input.
    pub custom_id: &'a CustomId,
    /// The line in the input, from 1, for messages.
    pub line: u64,
    /// Byte offset of the line in the input.
    pub src_off: u64,
    /// Length of the line in bytes, without its line end.
    pub src_len: u64,
    /// What is hashed to notice that the line changed later: the raw bytes of the request's body, or of the line.
    pub body: &'a [u8],
    /// The scope (model, endpoint family) that will pace it.
    pub scope: &'a str,
}

/// A line of the input that cannot be sent, as the loader takes it.
#[derive(Clone, Copy, Debug)]
pub struct RefusedLine<'a> {
    /// The id that the user gave, if it can be read.
    pub custom_id: Option<&'a CustomId>,
    /// The line in the input, from 1.
    pub line: u64,
    /// Byte offset of the line in the input.
    pub src_off: u64,
    /// Length of the line in bytes, without its line end.
    pub src_len: u64,
    /// The line, or its beginning.
    pub bytes: &'a [u8],
    /// The error code.
    pub code: &'a str,
    /// The error message.
    pub message: &'a str,
}

/// The sends of an item so far. Absolute figures, not differences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Sends that count against the bound of retries.
    pub attempts: u32,
    /// Sends answered with a throttle or an exhausted quota.
    pub deferrals: u32,
    /// Sends that no server took.
    pub unsent: u32,
    /// Sends that were abandoned.
    pub abandoned: u32,
    /// Tokens of the prompts of its calls, as their answers reported.
    pub tokens_in: u64,
    /// Tokens of those answers.
    pub tokens_out: u64,
    /// When it was first sent.
    pub first: Option<Timestamp>,
    /// When it is given up, where the runner has decided that.
    pub deadline: Option<Timestamp>,
    /// The last answer.
    pub last: Option<LastAnswer>,
}

impl Tally {
    /// All sends of the item.
    pub const fn sends(&self) -> u32 {
        self.attempts.saturating_add(self.deferrals).saturating_add(self.unsent).saturating_add(self.abandoned)
    }
}

/// The last answer to an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastAnswer {
    /// Its class.
    pub class: Class,
    /// The HTTP status, if there was one.
    pub status: Option<u16>,
    /// The provider's code.
    pub code: Option<String>,
    /// The provider's type of error.
    pub error_type: Option<String>,
    /// The error message; more than 400 characters are cut off.
    pub message: Option<String>,
}

impl LastAnswer {
    /// An answer of which only the class is known.
    pub const fn new(class: Class) -> Self {
        Self { class, status: None, code: None, error_type: None, message: None }
    }
}

/// The end of an item, to be recorded once.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The item.
    pub ordinal: u64,
    /// How it ended.
    pub end: End,
    /// Its line, as [`encode_line`](crate::encode_line) made it.
    pub line: Vec<u8>,
    /// Its sends, the last one included.
    pub tally: Tally,
    /// Why it was given up, as a code (`max_retries`, `deadline`); none for an answer.
    pub reason: Option<String>,
    /// What to add to the run's totals.
    pub adds: CallTotals,
    /// The tokens that the call used, and those that a gateway lost.
    pub usage: Vec<ModelUsage>,
}

impl Finished {
    /// The end of an item, with nothing else known.
    pub fn new(ordinal: u64, end: End, line: Vec<u8>) -> Self {
        let (tally, adds) = (Tally::default(), CallTotals::default());
        Self { ordinal, end, line, tally, reason: None, adds, usage: Vec::new() }
    }
}

/// Another try of an item, later.
#[derive(Clone, Debug)]
pub struct Rescheduled {
    /// The item.
    pub ordinal: u64,
    /// When it may start, by the wall clock.
    pub not_before: Timestamp,
    /// The wait that was chosen: after a step of the wall clock the item waits no longer than this.
    pub delay: Duration,
    /// Its sends, the last one included.
    pub tally: Tally,
    /// What to add to the run's totals.
    pub adds: CallTotals,
    /// What the call used, and those that a gateway lost.
    pub usage: Vec<ModelUsage>,
}

/// A call that was given up, or whose answer is not kept: its item waits again as before.
#[derive(Clone, Debug)]
pub struct Unanswered {
    /// The item's sends, the last one included.
    pub tally: Tally,
    /// What to add to the run's totals.
    pub adds: CallTotals,
    /// What the call used, and those that a gateway lost.
    pub usage: Vec<ModelUsage>,
}

/// Counters of the whole job, over all its runs. Recorded with the outcome that caused them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTotals {
    /// Requests sent.
    pub calls: u64,
    /// Calls after an item's first.
    pub resends: u64,
    /// Calls repeated after a transient or overloaded answer.
    pub retries: u64,
    /// Answers of class throttled.
    pub throttled: u64,
    /// Calls that were abandoned.
    pub abandoned: u64,
}

/// A waiting or running item in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalItem {
    /// The place in the input, from 0; also the arrival number.
    pub ordinal: u64,
    /// The line in the input, from 1.
    pub line: u64,
    /// Byte offset of the line in the input.
    pub src_off: u64,
    /// Length of the line in bytes.
    pub src_len: u64,
    /// The scope that paces it.
    pub scope: Arc<str>,
    /// Its sends so far.
    pub tally: Tally,
    /// Attempts and deferrals that no longer count against their bounds.
    pub forgiven: Forgiven,
    /// Times that a run died while it was in flight.
    pub crash_attempts: u32,
    /// When it may start; 1970 for an item that waits for nothing.
    pub not_before: Timestamp,
    /// The wait that was chosen. Wait `min(not_before - now, delay)`.
    pub delay: Duration,
}

impl JournalItem {
    /// Whether its line cannot be sent: it is never handed out, and [`Tally::last`] has the error.
    pub fn is_refused(&self) -> bool {
        self.scope.is_empty()
    }
}

/// An item handed out to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedItem {
    /// The item.
    pub item: JournalItem,
    /// [`hash`](crate::hash) of the body at the time of loading.
    pub body_hash: [u8; 16],
    /// The item's own number in its job, for its idempotency key: with another input too it stays the same while id and body do,
    /// and no other request of the job ever has it.
    pub key_number: u64,
}

impl std::ops::Deref for ClaimedItem {
    type Target = JournalItem;

    fn deref(&self) -> &JournalItem {
        &self.item
    }
}

impl ClaimedItem {
    /// Whether these are the bytes that were loaded.
    pub fn body_unchanged(&self, body: &[u8]) -> bool {
        crate::hash(body) == self.body_hash
    }
}

/// Scopes of which enough items are with the caller already.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimExcept {
    /// Of these nothing more is handed out.
    pub all: Vec<Arc<str>>,
    /// Of these nothing new: only tries that are due again, which come before what is new.
    pub new: Vec<Arc<str>>,
}

/// The answer to a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimedItems {
    /// Due items, in the order to start them: retries by due time, then new items by place in the input, then those
    /// that a crash interrupted.
    pub items: Vec<ClaimedItem>,
    /// When the next item that is still waiting may start: its own time, and that of its held scope. None when nothing
    /// waits but items of stopped scopes. A time in the past means that more were due than asked for.
    pub next_due: Option<Timestamp>,
    /// The scope of that item.
    pub next_scope: Option<Arc<str>>,
}

/// Whether an outcome was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishStatus {
    /// It is recorded. An end outlasts a power cut; a later try outlasts the process, and a power cut may at worst
    /// make it early.
    Recorded,
    /// The item had ended before: the first result stays, this one left no trace.
    AlreadyEnded,
}
