//! The outcome of a claimed item: what its try counts as, what follows, and what was decided.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::Class;
use paceline_core::retry::Counted;

use super::item::{Claimed, Failure, Said, shortened};
use crate::state::State;

/// What follows for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// It ends.
    Succeeded,
    /// It ends.
    Failed,
    /// It ends.
    Skipped,
    /// It ends: the result of a fallback stands in.
    FellBack,
    /// It waits that long and is tried again.
    Retry(Duration),
    /// It is left to the next run.
    NextRun,
    /// It is put back as it was before its claim.
    Release,
}

impl Transition {
    pub(crate) const fn state(self) -> State {
        match self {
            Self::Succeeded => State::Succeeded,
            Self::Failed => State::Failed,
            Self::Skipped => State::Skipped,
            Self::FellBack => State::FellBack,
            Self::Retry(_) | Self::Release => State::Waiting,
            Self::NextRun => State::Deferred,
        }
    }
}

/// The outcome of a claimed item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimOutcome {
    /// The item.
    pub id: u64,
    /// As the claim gave it.
    pub fence: i64,
    /// What the try counts as.
    pub counted: Counted,
    /// So many retries count beside it.
    pub retried: u32,
    /// What follows.
    pub next: Transition,
    /// What becomes of the time since the item's first try, by which its deadline counts.
    pub time: ItemTime,
    /// What it waits for, where that is decided elsewhere: [`StartDelay::why`](super::StartDelay::why).
    pub waits_for: Option<Arc<str>>,
    /// What went wrong and what was decided; none after a success and for what did not begin.
    pub decided: Option<DecisionRecord>,
    /// What the server said to a try that succeeded, where that is known.
    pub answered: Option<Said>,
}

/// How a try ended, as the databases keep it of the last one.
pub(crate) struct LastTry<'a> {
    pub(crate) class: Class,
    pub(crate) status: Option<u16>,
    pub(crate) code: Option<&'a str>,
    pub(crate) message: String,
}

/// What becomes of the time since an item's first try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemTime {
    /// It began with this claim: it goes on if a try was counted, and has not begun otherwise.
    OfThisTry,
    /// It had begun before, and goes on.
    GoesOn,
    /// It begins with the next try: the bounds of the item begin anew.
    Anew,
}

impl ItemTime {
    /// Of a claim whose bounds go on.
    pub(crate) const fn of(claimed: &Claimed) -> Self {
        if claimed.age.is_zero() { Self::OfThisTry } else { Self::GoesOn }
    }

    /// Whether it goes on, `counted` being the tries of the item that count since its bounds began.
    pub(crate) const fn goes_on(self, counted: bool) -> bool {
        match self {
            Self::OfThisTry => counted,
            Self::GoesOn => true,
            Self::Anew => false,
        }
    }

    /// The number in the statements of the databases.
    pub(crate) const fn code(self) -> i16 {
        self as i16
    }
}

impl ClaimOutcome {
    /// Why the item is where it is, for people.
    pub(crate) fn reason(&self) -> Option<&str> {
        let decided = self.decided.as_ref().and_then(|decided| decided.reason.as_deref());
        decided.or(self.waits_for.as_deref())
    }

    /// How its try ended; none where that is not known, and what was known of the try before stays.
    pub(crate) fn last(&self) -> Option<LastTry<'_>> {
        let failed = self.decided.as_ref().map(|decided| {
            let Failure { class, status, code, message, .. } = &decided.failure;
            LastTry { class: *class, status: *status, code: code.as_deref(), message: shortened(message) }
        });
        failed.or_else(|| {
            let Said { status, message } = self.answered.as_ref()?;
            Some(LastTry { class: Class::Success, status: *status, code: None, message: shortened(message) })
        })
    }

    /// What it adds to the attempts, the deferrals and the abandoned tries of its item.
    pub(crate) fn sends(&self) -> (u32, u32, u32) {
        let counts = |counted: Counted| u32::from(self.counted == counted);
        let attempts = counts(Counted::Attempt).saturating_add(self.retried);
        (attempts, counts(Counted::Deferral), counts(Counted::Abandoned))
    }

    /// The calls that only tested a failing server: what it did with them counts for nothing else.
    pub(crate) fn tests(&self) -> u32 {
        let is_test = |decided: &DecisionRecord| decided.failure.probe.is_some() && !decided.failure.unsent;
        (matches!(self.counted, Counted::Nothing | Counted::Unsent) && self.decided.as_ref().is_some_and(is_test))
            .into()
    }

    /// Whether what it called may have done it: it succeeded, or nothing tells.
    pub(crate) fn may_be_done(&self) -> bool {
        self.next == Transition::Succeeded || self.in_doubt() == Some(true)
    }

    /// Whether its call was sent and nothing tells what became of it; none where the item is
    /// [in doubt](super::WorkItem::in_doubt) as it was. A server that looks at a call would say that it had done it before.
    pub(crate) fn in_doubt(&self) -> Option<bool> {
        let was_sent = matches!(self.counted, Counted::Attempt | Counted::Deferral) || self.tests() > 0;
        match &self.decided {
            _ if self.counted == Counted::Abandoned => Some(true),
            Some(decided) if was_sent && decided.failure.leaves_in_doubt() => Some(true),
            Some(decided) if decided.failure.class == Class::Overloaded => None,
            _ => (self.counted == Counted::Attempt).then_some(false),
        }
    }

    /// The end of an item that succeeded.
    pub const fn success(claimed: &Claimed) -> Self {
        let (id, fence, time) = (claimed.item.id, claimed.fence, ItemTime::of(claimed));
        Self {
            id,
            fence,
            counted: Counted::Attempt,
            retried: 0,
            next: Transition::Succeeded,
            time,
            waits_for: None,
            decided: None,
            answered: None,
        }
    }

    /// An item whose try was given up because the run had to end; it goes back.
    pub fn abandoned(claimed: &Claimed) -> Self {
        Self { counted: Counted::Abandoned, ..Self::back(claimed) }
    }

    /// An item whose try was given up before anything was sent; it goes back, and no call of it is noted any longer.
    pub fn never_sent(claimed: &Claimed) -> Self {
        Self { counted: Counted::Unsent, next: Transition::Retry(Duration::ZERO), ..Self::back(claimed) }
    }

    /// An item that is left to the next run without a try, and for what. Its last failure stays what it was.
    pub(crate) fn left(claimed: &Claimed, why: Arc<str>, time_stands_still: bool) -> Self {
        let time = if time_stands_still { ItemTime::Anew } else { ItemTime::of(claimed) };
        Self { next: Transition::NextRun, waits_for: Some(why), time, ..Self::back(claimed) }
    }

    /// An item that goes back untouched.
    pub const fn back(claimed: &Claimed) -> Self {
        Self {
            id: claimed.item.id,
            fence: claimed.fence,
            counted: Counted::Nothing,
            retried: 0,
            next: Transition::Release,
            time: ItemTime::of(claimed),
            waits_for: None,
            decided: None,
            answered: None,
        }
    }
}

/// A decision, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRecord {
    /// What had gone wrong.
    pub failure: Failure,
    /// See [`HistoryEntry::action`](super::HistoryEntry::action).
    pub action: &'static str,
    /// Why.
    pub reason: Option<String>,
    /// Who decided.
    pub by: String,
    /// The item ends because what it calls stayed down, so that a fallback may stand in. It is not stored.
    pub stayed_down: bool,
}

/// Whether an outcome was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordStatus {
    /// It is recorded, and outlasts a power cut.
    Recorded,
    /// The item is not this worker's any more: its lease ran out, or a person ended the item. Nothing was changed.
    Lost,
}
