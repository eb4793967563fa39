//! An item in memory, and what happens to it.

use crate::state::{Forgiven, State};
use std::time::Duration;

use paceline_core::retry::Counted;
use paceline_core::{Class, Timestamp};

use crate::work::item::{
    AGAIN, ClaimOutcome, Claimed, DecisionRecord, EVENTS, Failure, HISTORY, HistoryEntry, LEFT, PERSON, Said,
    Transition, WorkItem, WorkerId,
};
use crate::work::lanes::EARLIEST;
use crate::work::outcome::LastTry;

#[derive(Debug)]
pub(super) struct Row {
    pub(super) item: WorkItem,
    pub(super) payload: String,
    pub(super) fence: i64,
    pub(super) worker: Option<i64>,
    /// A call that must not be made twice has left under the present claim.
    pub(super) is_under_way: bool,
    /// It was cancelled during a try of that worker, of which no outcome has come yet.
    pub(super) cancelled_at: Option<i64>,
    /// A call of it had been cut off before that.
    pub(super) was_cut_off: bool,
    pub(super) events: Vec<HistoryEntry>,
}

/// Where an item stands in its lane: tries whose time comes before new items, then by due time, then behind after crashes.
pub(super) type Place = (bool, Timestamp, u32, u64);

impl Row {
    pub(super) fn place(&self) -> Place {
        let due = self.item.not_before;
        (due.is_none(), due.unwrap_or(EARLIEST), self.item.crashes, self.item.id)
    }

    pub(super) fn take(&mut self, worker: WorkerId, now: Timestamp) {
        self.worker = Some(worker.0);
        self.item.state = State::InFlight;
        self.item.first.get_or_insert(now);
    }

    pub(super) fn note_sent(&mut self) {
        (self.is_under_way, self.item.may_be_done) = (true, true);
    }

    pub(super) fn hand_out(&mut self, now: Timestamp) -> Claimed {
        let due_in = self.item.not_before.map_or(Duration::ZERO, |at| at.saturating_since(now));
        if let Some(event) = self.events.last_mut().filter(|event| event.not_before.is_some()) {
            event.waited.get_or_insert((now + due_in).saturating_since(event.decided));
        }
        let history = self.events[self.events.len().saturating_sub(HISTORY)..].to_vec();
        let (item, payload) = (self.item.clone(), self.payload.clone());
        let age = item.first.map_or(Duration::ZERO, |first| now.saturating_since(first));
        Claimed { item, payload, fence: self.fence, at: now, due_in, age, history }
    }

    pub(super) fn put_back(&mut self, crashes: u32) {
        self.item.state = State::Waiting;
        self.item.crashes += crashes;
        self.item.in_doubt |= self.is_under_way;
        self.item.abandoned += u32::from(std::mem::take(&mut self.is_under_way));
    }

    pub(super) fn record(&mut self, outcome: ClaimOutcome, now: Timestamp) {
        let is_cut_off = self.is_under_way && outcome.next == Transition::Release;
        self.item.in_doubt = outcome.in_doubt().unwrap_or(self.item.in_doubt || is_cut_off);
        self.is_under_way = false;
        self.count(&outcome);
        let item = &mut self.item;
        let forgiven = item.forgiven.attempts + item.forgiven.deferrals;
        let counts = outcome.counted == Counted::Abandoned || item.attempts + item.deferrals > forgiven;
        item.first = item.first.filter(|_| outcome.time.goes_on(counts));
        item.state = outcome.next.state();
        match outcome.next {
            Transition::Release => {}
            Transition::Retry(delay) => (item.not_before, item.delay) = (Some(now + delay), delay),
            Transition::Succeeded
            | Transition::Failed
            | Transition::Skipped
            | Transition::FellBack
            | Transition::NextRun => {
                (item.not_before, item.delay) = (None, Duration::ZERO);
                item.ended = outcome.next.state().is_final().then_some(now);
            }
        }
        if outcome.next != Transition::Release {
            (item.reason, item.may_be_done) = (outcome.reason().map(str::to_owned), false);
        }
        let Some(DecisionRecord { action, reason, by, .. }) = outcome.decided else { return };
        let Some(failure) = item.last.clone() else { return };
        item.reason = reason.clone();
        let (send, not_before) =
            (item.sends(), item.not_before.filter(|_| matches!(outcome.next, Transition::Retry(_))));
        let action = action.to_owned();
        let (waited, created) = (None, None);
        self.push(HistoryEntry { decided: now, send, failure, action, reason, by, not_before, waited, created });
    }

    fn push(&mut self, event: HistoryEntry) {
        if self.events.len() == EVENTS {
            self.events.remove(0);
        }
        self.events.push(event);
    }

    fn count(&mut self, outcome: &ClaimOutcome) {
        let item = &mut self.item;
        let (attempts, deferrals, abandoned) = outcome.sends();
        item.attempts = item.attempts.saturating_add(attempts);
        item.deferrals += deferrals;
        item.abandoned += abandoned;
        item.tests = item.tests.saturating_add(outcome.tests());
        if let Some(last) = outcome.last() {
            let LastTry { class, status, code, message } = last;
            let last = Failure { status, code: code.map(str::to_owned), ..Failure::new(class, message) };
            (item.last, item.answered) = Said::apart(Some(Failure { is_for_group: false, ..last }));
        }
    }

    /// The try of an item that was cancelled meanwhile: it is counted, once. After a success a retry would do it once more.
    pub(super) fn though_cancelled(&mut self, outcome: &ClaimOutcome) {
        if self.cancelled_at.take().is_some() {
            self.item.may_be_done = self.was_cut_off || outcome.may_be_done();
            self.item.in_doubt |= outcome.may_be_done();
            self.count(outcome);
        }
    }

    pub(super) fn cancel(&mut self, worker: Option<i64>, now: Timestamp) {
        self.cancelled_at = worker.filter(|_| self.item.state == State::InFlight);
        self.was_cut_off = self.item.may_be_done;
        self.item.may_be_done |= self.cancelled_at.is_some();
        self.item.state = State::Cancelled;
        (self.item.not_before, self.item.delay) = (None, Duration::ZERO);
        (self.item.ended, self.item.reason) = (Some(now), Some("cancelled".to_owned()));
    }

    /// What was left to the next run begins with it. Its time goes on, unless that was ended when it was left.
    pub(super) fn begin_run(&mut self, not_before: Timestamp) {
        let first = self.item.first;
        self.begin_anew(Some(not_before));
        self.item.first = first;
    }

    pub(super) fn leave_to_next_run(&mut self) {
        let item = &mut self.item;
        item.in_doubt |= item.may_be_done;
        (item.state, item.may_be_done, self.is_under_way) = (State::Deferred, false, false);
        (item.not_before, item.delay, item.ended) = (None, Duration::ZERO, None);
        item.reason = Some(LEFT.to_owned());
    }

    /// All of its calls are of the past, whatever became of them.
    pub(super) fn begin_again(&mut self, as_new: bool, now: Timestamp) {
        self.keep_what_was(as_new, now);
        let item = &mut self.item;
        item.abandoned += u32::from(self.cancelled_at.take().is_some());
        item.attempts += std::mem::take(&mut item.abandoned);
        item.created = if as_new { now } else { item.created };
        item.sent_for = Some(now);
        self.begin_anew(None);
    }

    /// That it has succeeded is not forgotten, nor what its server said then; of one that has not, when it was added, by which
    /// its calls were known.
    fn keep_what_was(&mut self, as_new: bool, now: Timestamp) {
        let item = &mut self.item;
        let succeeded = item.state == State::Succeeded;
        if !(succeeded || as_new && item.last.is_some()) {
            return;
        }
        item.delivered = if succeeded { item.ended } else { item.delivered };
        let said = item.answered.clone().filter(|_| succeeded);
        let (status, message) = said.map_or((None, String::new()), |said| (said.status, said.message));
        let class = if succeeded { Class::Success } else { Class::Abandoned };
        let failure = Failure { status, ..Failure::new(class, message) };
        let (send, decided, created) = (item.sends(), item.ended.unwrap_or(now), Some(item.created));
        let (action, by) = (AGAIN.to_owned(), PERSON.to_owned());
        self.push(HistoryEntry {
            decided,
            send,
            failure,
            action,
            reason: None,
            by,
            not_before: None,
            waited: None,
            created,
        });
    }

    pub(super) fn begin_anew(&mut self, not_before: Option<Timestamp>) {
        let item = &mut self.item;
        // Of what was cancelled during a try no outcome may have come yet: that was cut off.
        item.abandoned += u32::from(self.cancelled_at.take().is_some());
        item.in_doubt |= item.may_be_done;
        item.state = State::Waiting;
        item.forgiven = Forgiven { attempts: item.attempts, deferrals: item.deferrals };
        (item.crashes, item.may_be_done, self.is_under_way) = (0, false, false);
        (item.not_before, item.delay) = (not_before, Duration::ZERO);
        (item.first, item.ended, item.reason) = (None, None, None);
    }
}
