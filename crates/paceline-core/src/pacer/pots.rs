//! Limits that a server announced to one process of a fleet: its account is that of all processes, so what is left is for all of
//! them together. They draw of it from the board of the ledger before their calls leave.
//!
//! What a process draws beyond its next call is as much as it has used up lately, and goes back where it is not used. Where a
//! process has no lease, or the ledger knows of no such limit, what its own answers announce is all it goes by.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::Pacer;
use super::gates::{SharedGates, is_short};
use crate::admit::{Admit, WaitCause};
use crate::background::Ask;
use crate::cost::{Cost, Dimension};
use crate::fleet::{BoardStep, Draw, Note};
use crate::queue::Place;
use crate::scope::Scope;
use crate::time::Instant;

/// An answer does not come later.
const ASKED: Duration = Duration::from_millis(600);

/// After so many requests without an answer the ledger is away.
const SILENT: u32 = 2;

/// How fast a process draws is known over so long.
const ALONE: Duration = Duration::from_secs(5);

/// How soon a process that got nothing asks again, at the least and at the most: others may give back what they do not use.
const ASKS_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What was drawn goes back once no call has left for so long.
const IDLE: Duration = Duration::from_secs(1);

/// So much is drawn ahead as was used within this: what is drawn does not come back at the server while it waits here.
const AHEAD: Duration = Duration::from_millis(100);

/// What is not known to be paid is told again after this.
const PAID_AFTER: Duration = Duration::from_secs(1);

/// For so long processes that come later are told that there is such a limit.
const KNOWN: Duration = Duration::from_mins(10);

/// Requests that wait are looked at up to so many, where more is drawn.
const LOOKED_AT: usize = 64;

/// The most that is drawn ahead, in units.
const MOST: u64 = 1 << 40;

/// A limit whose scope has a longer name is not shared.
const LONGEST_NAME: usize = 150;

/// The announced limits of a pacer that it shares, by the names of their scopes.
#[derive(Clone, Debug, Default)]
pub(super) struct Pots {
    of: BTreeMap<Arc<str>, Vec<Pot>>,
    /// When there is something to say by itself.
    due: Option<Instant>,
}

/// What this process has of one such limit.
#[derive(Clone, Debug)]
struct Pot {
    dimension: Dimension,
    /// The whole limit, for people.
    limit: u64,
    /// Drawn and not used; less than nothing where calls cost more than was thought.
    drawn: i64,
    /// Until when it may be used.
    until: Instant,
    /// Of calls that left before this process knew of the limit; and that the ledger is being told.
    unpaid: u64,
    paying: u64,
    /// Drawn, and to be used from then on.
    later: u64,
    from: Instant,
    /// How much is drawn at once.
    step: u64,
    /// How much was asked for, when, and until when there may be an answer.
    asked: Option<(u64, Instant)>,
    /// How often there was none, since the last.
    unanswered: u32,
    /// How many units a second this process drew, what it has got since then, and what is left of a unit.
    rate: f64,
    began: Instant,
    got: u64,
    rest: f64,
    said: Instant,
    /// There is nothing to be drawn before.
    dry: Instant,
    /// The ledger knows of no such limit: until then none is shared.
    unknown: Instant,
    /// The call whose answer brought what the ledger was told last.
    told: u64,
    used: Instant,
}

impl Pots {
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A call leaves.
    #[inline(always)]
    pub(super) fn take(&mut self, now: Instant, scope: &Arc<str>, cost: &Cost) {
        if !self.of.is_empty() {
            self.take_of(now, scope, cost);
        }
    }

    fn take_of(&mut self, now: Instant, scope: &Arc<str>, cost: &Cost) {
        for pot in self.of_scope(scope).filter(|pot| pot.unknown <= now) {
            pot.ripen(now);
            pot.drawn = pot.drawn.saturating_sub_unsigned(cost.get(&pot.dimension));
            pot.used = now;
        }
    }

    /// A call has ended, for which so much was reserved.
    #[inline(always)]
    pub(super) fn end(&mut self, scope: &Arc<str>, reserved: &Cost, actual: &Cost) {
        if !self.of.is_empty() {
            self.end_of(scope, reserved, actual);
        }
    }

    fn end_of(&mut self, scope: &Arc<str>, reserved: &Cost, actual: &Cost) {
        for pot in self.of_scope(scope) {
            let (reserved, actual) = (reserved.get(&pot.dimension), actual.get(&pot.dimension));
            pot.drawn = pot.drawn.saturating_add_unsigned(reserved).saturating_sub_unsigned(actual);
        }
    }

    fn of_scope(&mut self, scope: &Arc<str>) -> impl Iterator<Item = &mut Pot> {
        self.of.get_mut(scope).into_iter().flatten()
    }
}

impl Pot {
    fn new(now: Instant, dimension: Dimension, limit: u64, unpaid: u64) -> Self {
        let never = Instant::ZERO;
        Self {
            dimension,
            limit,
            drawn: 0,
            until: never,
            unpaid,
            paying: 0,
            later: 0,
            from: never,
            step: 1,
            asked: None,
            unanswered: 0,
            rate: 0.0,
            began: now,
            got: 0,
            rest: 0.0,
            said: never,
            dry: never,
            unknown: never,
            told: 0,
            used: now,
        }
    }

    /// What may leave without another word.
    fn has(&self, now: Instant) -> u64 {
        let drawn = if self.until > now { self.drawn } else { self.drawn.min(0) };
        let later = if self.from <= now { self.later } else { 0 };
        u64::try_from(drawn.saturating_add_unsigned(later)).unwrap_or(0)
    }

    /// What was for later may be used by now.
    fn ripen(&mut self, now: Instant) {
        if self.until <= now {
            self.drawn = self.drawn.min(0);
        }
        if self.from <= now {
            self.drawn = self.drawn.saturating_add_unsigned(core::mem::take(&mut self.later));
        }
    }

    fn is_asking(&self, now: Instant) -> bool {
        self.asked.is_some_and(|(_, until)| until > now)
    }

    /// Where the ledger does not answer, this process goes on as fast as it drew before, and pays for that later.
    fn note_silence(&mut self, now: Instant) {
        if self.asked.take_if(|(_, until)| *until <= now).is_none() {
            return;
        }
        self.unanswered += 1;
        if self.unanswered >= SILENT {
            let units = (self.rate * (now - self.said).as_secs_f64() + self.rest).min(MOST as f64);
            self.rest = units % 1.0;
            self.ripen(now);
            self.drawn = self.drawn.saturating_add_unsigned(units as u64);
            self.unpaid += units as u64;
            self.until = self.until.max(now + ALONE);
        }
    }

    /// Notes what was drawn, for that.
    fn note_drawn(&mut self, now: Instant, units: u64) {
        self.got += units;
        let since = now - self.began;
        if since >= ALONE {
            self.rate = if since < 2 * ALONE { self.got as f64 / since.as_secs_f64() } else { 0.0 };
            (self.got, self.began) = (0, now);
        }
    }

    fn admit(&self, now: Instant, units: u64) -> Admit {
        let remaining = self.has(now);
        if units <= remaining || self.unknown > now {
            return Admit::Now;
        }
        let cause = || WaitCause::ServerLimit { dimension: self.dimension.clone(), limit: self.limit, remaining };
        match self.asked.filter(|(_, until)| *until > now) {
            Some((_, until)) => Admit::at(until, now, cause),
            None if self.later > 0 => Admit::at(self.from, now, cause),
            None if self.dry > now => Admit::at(self.dry, now, cause),
            None => Admit::OnRelease { cause: cause() },
        }
    }

    /// Asks for so many units, and tells what is to be told.
    fn say(&mut self, now: Instant, scope: &Scope, gates: &mut SharedGates, units: u64, lump: u64, back: u64) {
        self.ripen(now);
        // Calls that cost more than was drawn for them are paid for now.
        let debt = u64::try_from(-self.drawn).unwrap_or(0);
        self.drawn = self.drawn.max(0).saturating_sub_unsigned(back);
        self.paying += core::mem::take(&mut self.unpaid) + debt;
        let news = scope.announces(now, &self.dimension).filter(|(number, _)| *number > self.told);
        self.told = news.map_or(self.told, |(number, _)| number);
        let announced = news.map(|(_, announced)| announced);
        (self.asked, self.said) = (Some((units, now + ASKED)), now);
        let draw = Draw { units, lump: lump.max(1), back, unpaid: self.paying, announced };
        gates.say(topic(&scope.name, &self.dimension), BoardStep::Draw(draw));
    }
}

impl Pacer {
    /// Whether what has been drawn of limits that a server announced lets a call leave.
    #[inline(always)]
    pub(super) fn admit_pots(&self, now: Instant, place: u32, ask: &Ask<'_>) -> Admit {
        if self.pots.of.is_empty() { Admit::Now } else { self.admit_drawn(now, place, ask) }
    }

    fn admit_drawn(&self, now: Instant, place: u32, ask: &Ask<'_>) -> Admit {
        let mut strictest = Admit::Now;
        if !self.divided.has_lease() {
            return strictest;
        }
        for pot in self.pots.of.get(&self.scopes[place].name).into_iter().flatten() {
            strictest.tighten(pot.admit(now, ask.cost.get(&pot.dimension)));
        }
        strictest
    }

    /// An answer has announced limits: all processes share them from now on.
    #[inline]
    pub(super) fn note_announced(&mut self, now: Instant, place: u32) {
        if self.divided.has_lease() {
            self.share_announced(now, place);
        }
    }

    fn share_announced(&mut self, now: Instant, place: u32) {
        let scope = &self.scopes[place];
        if !scope.learns() || !is_short(&scope.name, LONGEST_NAME) {
            return;
        }
        for dimension in scope.announced_dimensions().filter(|dimension| !dimension.as_str().contains(' ')) {
            let Some((_, announced)) = scope.announces(now, dimension) else { continue };
            let pots = self.pots.of.entry(scope.name.clone()).or_default();
            match pots.iter_mut().find(|pot| pot.dimension == *dimension) {
                Some(pot) => pot.limit = announced.limit,
                None => {
                    let mut pot = Pot::new(now, dimension.clone(), announced.limit, scope.reserved(dimension));
                    pot.say(now, scope, &mut self.gates, 0, 1, 0);
                    pots.push(pot);
                    let known = BoardStep::Post { values: vec![announced.limit], lasts: KNOWN };
                    self.gates.say(topic(&scope.name, dimension), known);
                }
            }
        }
    }

    /// Another process knows of a limit that a server announced.
    pub(super) fn hear_limit(&mut self, now: Instant, note: &Note) {
        let (Some((dimension, name)), [limit, ..]) = (of_topic(&note.topic), &note.values[..]) else { return };
        let id = self.scope(name);
        let scope = &self.scopes[&id];
        if !scope.learns() {
            return;
        }
        let pots = self.pots.of.entry(scope.name.clone()).or_default();
        if !pots.iter().any(|pot| pot.dimension == dimension) {
            let mut pot = Pot::new(now, dimension.clone(), *limit, scope.reserved(&dimension));
            pot.say(now, scope, &mut self.gates, 0, 1, 0);
            pots.push(pot);
            self.scopes.touch(id.place);
        }
    }

    /// Draws what the head of a scope needs, and some of what comes behind it.
    pub(super) fn draw_for(&mut self, now: Instant, place: u32, head: Place) {
        if self.pots.of.is_empty() || !self.divided.has_lease() || !self.scopes[place].is_open() {
            return;
        }
        let (scope, head) = (&self.scopes[place], &self.slots.at(head.2).request.cost);
        for pot in self.pots.of.get_mut(&scope.name).into_iter().flatten() {
            pot.note_silence(now);
            let (need, has) = (head.get(&pot.dimension), pot.has(now));
            let lacks = has < need && pot.dry <= now;
            if need == 0 || pot.is_asking(now) || pot.from > now || pot.unknown > now || !(lacks || 2 * has < pot.step)
            {
                continue;
            }
            let ready = scope.queue.ready().take(LOOKED_AT);
            let wants: u64 = ready.map(|place| self.slots.at(place.2).request.cost.get(&pot.dimension)).sum();
            if !lacks && (wants <= has || pot.dry > now) {
                continue;
            }
            let is_used_up = pot.said + AHEAD > now;
            pot.step = if is_used_up { (2 * pot.step).min(MOST) } else { pot.step / 2 }.max(need);
            let units = wants.max(need).min(pot.step).saturating_sub(has);
            pot.say(now, scope, &mut self.gates, units.max(need.saturating_sub(has)), need.saturating_sub(has), 0);
        }
    }

    /// The ledger has answered.
    pub(super) fn drawn(
        &mut self,
        now: Instant,
        topic: &str,
        units: u64,
        (after, waits): (Duration, Duration),
        since: Instant,
    ) {
        let Some((dimension, name)) = of_topic(topic) else { return };
        let pots = self.pots.of.get_mut(name).into_iter().flatten();
        let Some(pot) = pots.into_iter().find(|pot| pot.dimension == dimension) else { return };
        let (asked, _) = pot.asked.take().unwrap_or_default();
        (pot.paying, pot.unanswered) = (0, 0);
        if waits.is_zero() {
            // Where the ledger was lost, it is told what this process knows.
            let knows = pot.told > 0;
            (pot.told, pot.drawn, pot.until) = (0, 0, Instant::ZERO);
            pot.unknown = if knows { now } else { now + ASKS_AGAIN.1 };
        } else if units > 0 {
            pot.ripen(now);
            pot.note_drawn(now, units);
            (pot.later, pot.from, pot.until) = (pot.later + units, now + after, since + after + waits);
        } else if asked > 0 {
            pot.dry = now + waits.clamp(ASKS_AGAIN.0, ASKS_AGAIN.1);
        }
        if let Some(id) = self.scopes.named(name) {
            self.scopes.touch(id.place);
        }
    }

    /// Gives back what is not used, and pays for what left before.
    pub(super) fn say_limits(&mut self, now: Instant) {
        if !self.divided.has_lease() {
            self.pots = Pots::default();
        }
        let mut due: Option<Instant> = None;
        for (name, pots) in &mut self.pots.of {
            let Some(id) = self.scopes.named(name) else { continue };
            let scope = &self.scopes[id.place];
            for pot in pots.iter_mut().filter(|pot| pot.unknown <= now) {
                let is_idle = scope.queue.len() == 0 && pot.has(now) > 0;
                let back = is_idle.then_some(pot.used + IDLE);
                let pays = (pot.unpaid + pot.paying > 0).then_some(pot.said + PAID_AFTER);
                let Some(at) = back.into_iter().chain(pays).min() else { continue };
                let at = pot.asked.map_or(at, |(_, until)| until.max(at));
                if at > now {
                    due = Some(due.map_or(at, |due| due.min(at)));
                    continue;
                }
                let back = if back.is_some_and(|at| at <= now) { pot.has(now) } else { 0 };
                pot.say(now, scope, &mut self.gates, 0, 1, back);
            }
        }
        self.pots.due = due;
    }
}

const LIMIT_OF: &str = "left ";

fn topic(scope: &str, dimension: &Dimension) -> String {
    format!("{LIMIT_OF}{} {scope}", dimension.as_str())
}

fn of_topic(topic: &str) -> Option<(Dimension, &str)> {
    let (dimension, scope) = topic.strip_prefix(LIMIT_OF)?.split_once(' ')?;
    Some((Dimension::from_name(dimension), scope))
}
