//! Gates of a fleet: a pause that one process was asked for holds for all, and of all of them one sends the call that tests
//! whether it is over.
//!
//! What a server tells one process, the others are told by the board of the ledger, with how long it lasts: no clocks are
//! compared. Where a process has no lease its gates are its own.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::Pacer;
use crate::admit::{Admit, PauseCause, WaitCause};
use crate::fleet::{BoardStep, Member, Note};
use crate::outcome::Hint;
use crate::request::{Event, ScopeId};
use crate::time::Instant;

/// A process that comes so long after the end of a pause hears of it: the call that tests it may still be under way.
const TOLD_AFTER: Duration = Duration::from_secs(60);

/// A canary without an answer after this is replaced by that of another process.
const CANARY: Duration = Duration::from_secs(10);

/// A scope whose name is longer keeps its gate for itself.
const LONGEST_NAME: usize = 190;

/// Pauses that end so little apart are one.
const ALIKE: Duration = Duration::from_millis(100);

/// What is told of a gate, as a number.
const OPENED: u64 = 0;
const CLOSED: u64 = 1;
const HELD: u64 = 2;

/// Who sends the call that goes first through a closed gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Canary {
    /// Not decided: the first that has a call asks for it.
    Open,
    /// This process has asked, and asks again then.
    Asked(Instant),
    /// This process, until then.
    Ours(Instant),
    /// Another one, until then.
    Others(Instant),
}

/// What the other processes of a fleet know of the gates of a pacer.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedGates {
    /// The closed ones, by the names of their scopes.
    closed: BTreeMap<Arc<str>, Canary>,
    /// What is to be said, by topic.
    news: Vec<(String, BoardStep)>,
    /// The ends of pauses that all have been told, by topic.
    told: BTreeMap<String, Instant>,
}

impl SharedGates {
    pub(super) fn say(&mut self, topic: String, step: BoardStep) {
        self.news.push((topic, step));
    }

    /// Whether all have been told of a pause until then, or of one that ends a little earlier: many calls in flight are refused
    /// together, at many processes. Else they are from now on.
    fn is_told(&mut self, now: Instant, topic: &str, until: Instant) -> bool {
        self.told.retain(|_, until| *until > now);
        let is_told = self.told.get(topic).is_some_and(|told| until <= *told + ALIKE);
        if !is_told {
            self.told.insert(topic.into(), until);
        }
        is_told
    }

    fn release(&mut self, scope: &str) {
        self.say(canary_topic(scope), BoardStep::Release);
    }
}

impl Pacer {
    /// Whether there is anything to be done after an input: an [event](Self::poll_event), something [short](Self::take_short), or
    /// [news](Self::has_news).
    #[inline(always)]
    pub fn has_output(&self) -> bool {
        !self.events.is_empty() || self.is_short() || self.has_news()
    }

    /// Whether something is to be said to the fleet, which does not wait.
    pub const fn has_news(&self) -> bool {
        !self.gates.news.is_empty() || self.paces.is_news()
    }

    /// A server asked for a pause of the scope, or of the account when `None`, or a canary was refused.
    pub(super) fn tell_closed(&mut self, now: Instant, scope: Option<&ScopeId>, until: Instant, cause: PauseCause) {
        self.tell(now, scope, CLOSED, until, cause);
    }

    /// A quota is used up until then.
    pub(super) fn tell_held(&mut self, now: Instant, scope: Option<&ScopeId>, until: Instant, cause: PauseCause) {
        self.tell(now, scope, HELD, until, cause);
    }

    fn tell(&mut self, now: Instant, scope: Option<&ScopeId>, what: u64, until: Instant, cause: PauseCause) {
        let name = scope.map(|id| self.scopes[id].name.clone());
        if !self.divided.is_on() || until <= now || !name.as_deref().is_none_or(may_be_told) {
            return;
        }
        let topic = gate_topic(name.as_deref());
        if self.gates.is_told(now, &topic, until) {
            return;
        }
        let code = PauseCause::ALL.iter().position(|known| *known == cause).unwrap_or_default();
        let lasts = until - now + TOLD_AFTER;
        self.gates.say(topic, BoardStep::Post { values: vec![what, code as u64], lasts });
        self.share_gates(name.as_deref());
        if let Some(name) = name {
            self.gates.release(&name);
        }
    }

    /// Whether the others know that the gate of this scope is closed.
    pub(super) fn is_shared(&self, scope: &ScopeId) -> bool {
        self.gates.closed.contains_key(&scope.name)
    }

    /// Notes that the others know of the closed gates of that scope, or of all.
    fn share_gates(&mut self, name: Option<&str>) {
        let closed = self.scopes.iter().map(|(_, scope)| scope).filter(|scope| scope.is_closed());
        for scope in closed.filter(|scope| name.is_none_or(|name| *scope.name == *name) && may_be_told(&scope.name)) {
            self.gates.closed.insert(scope.name.clone(), Canary::Open);
        }
    }

    /// Tells the others that the gate of a scope is open again, where they know that it was closed.
    #[inline]
    pub(super) fn note_opened(&mut self, place: u32) {
        if !self.gates.closed.is_empty() && !self.scopes[place].is_closed() {
            self.tell_opened(place);
        }
    }

    fn tell_opened(&mut self, place: u32) {
        let name = self.scopes[place].name.clone();
        if self.gates.closed.remove(&name).is_some() {
            let opened = BoardStep::Post { values: vec![OPENED, 0], lasts: TOLD_AFTER };
            self.gates.say(gate_topic(Some(&name)), opened);
            self.gates.release(&name);
        }
    }

    /// Of all processes one sends the canary.
    #[inline(always)]
    pub(super) fn admit_canary(&self, now: Instant, place: u32) -> Admit {
        match self.canary(now, place) {
            None => Admit::Now,
            Some(Canary::Ours(until)) if until > now => Admit::Now,
            Some(Canary::Asked(until) | Canary::Others(until)) => Admit::at(until, now, || WaitCause::Canary),
            Some(Canary::Open | Canary::Ours(_)) => Admit::OnRelease { cause: WaitCause::Canary },
        }
    }

    /// Whose canary a gate waits for that may be tested now; none where this process need not ask.
    #[inline(always)]
    fn canary(&self, now: Instant, place: u32) -> Option<Canary> {
        if self.gates.closed.is_empty() { None } else { self.known_canary(now, place) }
    }

    fn known_canary(&self, now: Instant, place: u32) -> Option<Canary> {
        if !self.divided.has_lease() {
            return None;
        }
        let scope = &self.scopes[place];
        self.gates.closed.get(&scope.name).copied().filter(|_| scope.awaits_canary(now))
    }

    /// A call waits at a gate that may be tested now: this process asks whether it may.
    pub(super) fn ask_for_canary(&mut self, now: Instant, place: u32) {
        let asks = self.canary(now, place).is_some_and(|canary| match canary {
            Canary::Open => true,
            Canary::Asked(until) | Canary::Ours(until) | Canary::Others(until) => until <= now,
        });
        if asks {
            let name = self.scopes[place].name.clone();
            self.gates.say(canary_topic(&name), BoardStep::Take { lasts: CANARY });
            self.gates.closed.insert(name, Canary::Asked(now + CANARY));
        }
    }

    /// Says what is to be said.
    pub(super) fn say_news(&mut self, now: Instant, member: &mut Member) {
        self.gates.news.drain(..).for_each(|(topic, step)| member.say(now, topic, step));
    }

    /// The ledger has said for how long another process may send the canary; zero: this one does.
    pub(super) fn canary_taken(&mut self, now: Instant, topic: &str, waits: Duration) {
        let scope = topic.strip_prefix(CANARY_OF).and_then(|name| self.scopes.named(name));
        let Some(id) = scope.filter(|id| self.is_shared(id)) else {
            // The gate was opened meanwhile.
            if waits.is_zero() {
                self.gates.say(topic.into(), BoardStep::Release);
            }
            return;
        };
        let canary = if waits.is_zero() { Canary::Ours(now + CANARY) } else { Canary::Others(now + waits) };
        self.gates.closed.insert(id.name.clone(), canary);
        self.scopes.touch(id.place);
    }

    /// Another process was told something, or its canary has opened a gate.
    pub(super) fn hear_gate(&mut self, now: Instant, note: &Note) {
        let (Some(name), [what, code, ..]) = (note.topic.strip_prefix(GATE_OF), &note.values[..]) else { return };
        let cause = usize::try_from(*code).ok().and_then(|code| PauseCause::ALL.get(code)).copied();
        let scope = name.strip_prefix(' ').map(|name| self.scope(name));
        let until = now + note.left.saturating_sub(TOLD_AFTER);
        if *what != OPENED && until > now {
            self.gates.is_told(now, &note.topic, until);
        }
        match (*what, cause) {
            (OPENED, _) => scope.iter().for_each(|id| self.opened_elsewhere(now, id)),
            (CLOSED, Some(cause)) if until > now => self.closed_elsewhere(now, scope.as_ref(), until, cause),
            (HELD, Some(cause)) if until > now => self.hold_until(now, scope.clone(), until, cause),
            // It was over when this process heard of it, or a later version has told it.
            _ => return,
        }
        self.give_back_canaries(now, scope.as_ref().map(|id| &*id.name));
        self.share_gates(scope.as_ref().map(|id| &*id.name));
    }

    /// A gate is closed for longer, or open: where this process was to send the call that tests it, another may be the next.
    fn give_back_canaries(&mut self, now: Instant, name: Option<&str>) {
        let ours = |(_, canary): &(&Arc<str>, &Canary)| matches!(canary, Canary::Ours(until) if *until > now);
        let closed = self.gates.closed.iter().filter(ours).map(|(name, _)| name.clone());
        for ours in closed.filter(|ours| name.is_none_or(|name| **ours == *name)).collect::<Vec<_>>() {
            self.gates.release(&ours);
        }
    }

    fn closed_elsewhere(&mut self, now: Instant, scope: Option<&ScopeId>, until: Instant, cause: PauseCause) {
        let places: Vec<u32> = match scope {
            Some(id) => vec![id.place],
            None => self.scopes.iter().map(|(place, _)| place).collect(),
        };
        for place in places {
            self.scopes.touch(place);
            self.scopes[place].obey_for_others(now, Hint::new(until - now, true), cause);
            self.events.push_back(Event::GateClosed { scope: self.scopes.id(place), until });
        }
    }

    /// What this process was told itself may last longer.
    fn opened_elsewhere(&mut self, now: Instant, id: &ScopeId) {
        if self.is_shared(id) && self.scopes[id].opened_elsewhere(now) {
            self.gates.closed.remove(&id.name);
            self.quotas.forget_burst(now);
        }
    }
}

const GATE_OF: &str = "gate";

const CANARY_OF: &str = "canary ";

fn gate_topic(scope: Option<&str>) -> String {
    scope.map_or_else(|| GATE_OF.into(), |name| format!("{GATE_OF} {name}"))
}

fn canary_topic(scope: &str) -> String {
    format!("{CANARY_OF}{scope}")
}

fn may_be_told(name: &str) -> bool {
    is_short(name, LONGEST_NAME)
}

/// Whether a topic may have the name of a scope in it: a store keeps short texts.
pub(super) fn is_short(name: &str, longest: usize) -> bool {
    name.len() <= longest && !name.chars().any(char::is_control)
}
