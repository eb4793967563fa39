//! Learnt paces of a fleet: for each scope one process decides for all, and tells them by the board of the ledger.
//!
//! Where a process has no lease it decides for itself.

use alloc::collections::BTreeSet;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::time::Duration;

use super::Pacer;
use super::gates::is_short;
use crate::adaptive::{Belief, OFFICE, Reaction, Report, Word};
use crate::admit::PauseCause;
use crate::fleet::{BoardStep, Member, MemberId, Note};
use crate::request::{Event, ScopeId};
use crate::time::{Instant, earlier};

/// A process that comes later goes on from what was believed so long ago at most.
const BELIEVED: Duration = Duration::from_mins(10);

/// A report is of no use any more after this.
const REPORTED: Duration = Duration::from_secs(5);

/// A scope whose name is longer keeps its pace for itself.
const LONGEST_NAME: usize = 170;

/// The scopes of a pacer whose pace one process decides for all.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedPaces {
    /// Those of which there is something to say, now or later.
    names: BTreeSet<Arc<str>>,
    /// When there is something to say by itself.
    due: Option<Instant>,
    /// There is something to say now.
    is_news: bool,
    /// There was a lease when something was last said.
    had_lease: bool,
    /// Who decided then for the scopes in use, and for how many of them this one did.
    readers: BTreeSet<MemberId>,
    reads: u64,
}

impl SharedPaces {
    pub(super) const fn is_news(&self) -> bool {
        self.is_news
    }

    /// Who decides, where that is one process for all scopes in use; and for how many this one does.
    pub(super) fn readers(&self) -> (Option<MemberId>, u64) {
        let one = self.readers.first().filter(|_| self.readers.len() == 1);
        (one.copied(), self.reads)
    }

    /// There is something to say where that has changed.
    pub(super) const fn notice_lease(&mut self, has_lease: bool) {
        self.is_news |= has_lease != self.had_lease;
    }
}

impl Pacer {
    /// A call of a scope left or waits.
    #[inline]
    pub(super) fn note_pace(&mut self, place: u32) {
        if self.divided.has_lease() {
            self.share_pace(place);
        }
    }

    fn share_pace(&mut self, place: u32) {
        if self.scopes[place].learns() {
            let known = self.paces.due.is_some() && self.paces.names.contains(&self.scopes[place].name);
            self.paces.is_news |= !known && self.joins(place);
        }
    }

    /// A call of a scope was refused, which those that share its pace hear at once.
    pub(super) fn note_refusal(&mut self, place: u32) {
        self.paces.is_news |= self.scopes[place].shares_pace() && self.joins(place);
    }

    fn joins(&mut self, place: u32) -> bool {
        let name = &self.scopes[place].name;
        let may_join = is_short(name, LONGEST_NAME);
        if may_join && !self.paces.names.contains(name) {
            self.paces.names.insert(name.clone());
        }
        may_join
    }

    /// Tells the member what is to be said of the learnt paces, and when there is more to say.
    pub(super) fn say_paces(&mut self, now: Instant, member: &mut Member) {
        self.paces.is_news = false;
        let has_lease = self.divided.has_lease();
        if !has_lease {
            if core::mem::replace(&mut self.paces.had_lease, false) {
                self.leave_paces(now);
            }
            return member.speaks_again(None);
        }
        if !core::mem::replace(&mut self.paces.had_lease, true) {
            let waiting = self.scopes.iter().filter(|(_, scope)| scope.learns() && scope.queue.len() > 0);
            for place in waiting.map(|(place, _)| place).collect::<alloc::vec::Vec<_>>() {
                self.joins(place);
            }
        }
        let (id, weight, members) = (member.id(), member.weight(), member.view().members);
        let mut due = None;
        (self.paces.readers, self.paces.reads) = (BTreeSet::new(), 0);
        for name in self.paces.names.clone() {
            let Some(scope) = self.scopes.named(&name).filter(|id| self.scopes[id].learns()) else {
                self.paces.names.remove(&name);
                continue;
            };
            self.scopes.touch(scope.place);
            let scope = &mut self.scopes[scope.place];
            scope.share_pace(now, id, weight);
            let (words, again) = scope.words(now, members);
            let reader = scope.reader();
            self.paces.readers.extend(reader);
            self.paces.reads += u64::from(reader == Some(id));
            for word in words.into_iter().flatten() {
                let (topic, step) = said(&name, id, &word);
                member.say(now, topic, step);
            }
            if again.is_none() {
                // Until its next call, or until it hears of one.
                self.paces.names.remove(&name);
            }
            due = earlier(due, again);
        }
        self.paces.due = due;
        member.speaks_again(earlier(due, self.pots.due()));
    }

    /// Each scope goes on by itself.
    pub(super) fn leave_paces(&mut self, now: Instant) {
        self.scopes.iter_mut().for_each(|scope| scope.unshare_pace(now));
        self.paces = SharedPaces::default();
    }

    /// The ledger has said for how long another process decides.
    pub(super) fn office_taken(&mut self, now: Instant, topic: &str, waits: Duration) {
        let Some(id) = topic.strip_prefix(OFFICE_OF).and_then(|name| self.scopes.named(name)) else { return };
        self.scopes.touch(id.place);
        self.scopes[&id].office(now, waits);
        self.paces.is_news |= self.joins(id.place);
    }

    /// Another process tells what it believes, or what it has seen.
    pub(super) fn hear_pace(&mut self, now: Instant, member: &Member, note: &Note) {
        if let Some(name) = note.topic.strip_prefix(BELIEF_OF) {
            let Some(belief) = Belief::read(&note.values) else { return };
            let id = self.scope(name);
            if !self.scopes[&id].learns() {
                return;
            }
            self.scopes.touch(id.place);
            let late = BELIEVED.saturating_sub(note.left);
            let late = if late < HEARD_AT_ONCE { Duration::ZERO } else { late };
            self.scopes[&id].share_pace(now, member.id(), member.weight());
            self.scopes[&id].hears_belief(now, note.from, belief, late);
        } else if let Some((from, name)) = note.topic.strip_prefix(REPORT_OF).and_then(|of| of.split_once(' ')) {
            let Ok(from) = u64::from_str_radix(from, 16).map(MemberId) else { return };
            let (Some(report), Some(id)) = (Report::read(&note.values), self.scopes.named(name)) else { return };
            let was_closed = self.scopes[&id].closed_until(now);
            let Some(reaction) = self.scopes[&id].hears_report(now, from, report, &mut self.rng) else { return };
            self.scopes.touch(id.place);
            self.paces.is_news |= self.joins(id.place);
            self.note_reaction(now, &id, reaction, was_closed);
        }
    }

    /// This process decided after what another has seen.
    fn note_reaction(&mut self, now: Instant, id: &ScopeId, reaction: Reaction, was_closed: Option<Instant>) {
        if reaction == Reaction::Slower {
            let (limit, rate) = self.scopes[id].limits();
            self.events.push_back(Event::LimitDecreased { scope: id.clone(), limit, rate });
        }
        let until = self.scopes[id].closed_until(now).filter(|until| was_closed.is_none_or(|was| was < *until));
        if let Some(until) = until.filter(|_| self.scopes[id].is_closed()) {
            self.tell_closed(now, Some(id), until, PauseCause::Throttled { asked: false });
            self.events.push_back(Event::GateClosed { scope: id.clone(), until });
        }
    }
}

/// What was told so short a time ago comes from the one who told it, and not from the ledger.
const HEARD_AT_ONCE: Duration = Duration::from_millis(500);

pub(super) const OFFICE_OF: &str = "reader ";

const BELIEF_OF: &str = "pace ";

const REPORT_OF: &str = "calls ";

fn said(scope: &str, id: MemberId, word: &Word) -> (String, BoardStep) {
    match word {
        Word::Office => (format!("{OFFICE_OF}{scope}"), BoardStep::Take { lasts: OFFICE }),
        Word::Belief(belief) => {
            (format!("{BELIEF_OF}{scope}"), BoardStep::Post { values: belief.values(), lasts: BELIEVED })
        }
        Word::Report(report) => {
            let topic = format!("{REPORT_OF}{:016x} {scope}", id.0);
            (topic, BoardStep::Post { values: report.values(), lasts: REPORTED })
        }
    }
}
