//! A pacer whose configured limits are divided among several: what it may use of them, and what it could use.
//!
//! Its windows count its own calls up to an allowance, which the member of a [`fleet`](crate::fleet) sets and which may be
//! below what is used. What is certain is judged by the whole limits: a request is too large, or a deadline is missed, where
//! even they leave no room; an allowance may grow at any moment.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::Pacer;
use super::gates::SharedGates;
use super::paces::OFFICE_OF;
use super::pots::Pots;
use super::turn::SHORT;
use crate::admit::{Admit, WaitCause};
use crate::concurrency::InFlight;
use crate::config::{Limits, Pace, PacerConfig, Quota, QuotaShape};
use crate::cost::{Cost, Dimension};
use crate::divided::DividedLimit;
use crate::error::ConfigError;
use crate::fleet::{
    FleetShare, FleetSnapshot, LONGEST_CALL, Member, MemberChange, MemberInput, MemberState, MemberView,
};
use crate::quota::Quotas;
use crate::request::{Request, Ticket};
use crate::scope::Scope;
use crate::state::TakenState;
use crate::time::Instant;

/// How long calls wait for the first lease where no limit is divided.
const FIRST_LEASE: Duration = Duration::from_secs(1);

/// A caller that does not stay in the queue asks for its share again after so long: the ledger may give more at any moment.
const ASKS_AGAIN: Duration = Duration::from_millis(100);

/// What such a caller could use is wanted until it has not asked for so long.
const GONE: Duration = Duration::from_secs(2);

/// What the calls of a pacer use of a divided limit, and could use, in its units.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    /// What the window counts.
    used: u64,
    /// What the requests cost that are due and wait where nothing is closed.
    waiting: u64,
    /// What the first of them costs.
    next: u64,
}

/// The limits of a pacer, as they are divided.
#[derive(Clone, Debug)]
pub(super) struct Divided {
    /// Until then calls leave, as far as the allowances go: what each call asks.
    open_until: Instant,
    /// Each with what may be used of it and until when; none where nothing is divided.
    parts: Option<Vec<(DividedLimit, u64, Instant)>>,
    /// Since when there is no lease.
    alone_since: Option<Instant>,
    /// Where no limit is divided: until then calls wait for the first lease, so that many processes do not begin each by itself.
    begins: Option<Instant>,
    /// What the member said last of its fleet.
    fleet: Option<MemberView>,
    /// A request waits for more of a limit.
    short: bool,
    /// The place of the scope and the cost of the last request that was turned away, and until when that is wanted.
    turned_away: Option<(u32, Cost, Instant)>,
}

impl Default for Divided {
    fn default() -> Self {
        Self {
            open_until: Instant::MAX,
            parts: None,
            alone_since: None,
            begins: None,
            fleet: None,
            short: false,
            turned_away: None,
        }
    }
}

impl Divided {
    /// Without an allowance that lasts nothing leaves. When there will be one is not known: the estimate is that it takes as long
    /// again as it has taken, as for a turn, so that a caller which bounds its wait does not wait for ever for a lost ledger.
    #[inline(always)]
    pub(super) fn admit(&self, now: Instant) -> Admit {
        if now < self.open_until { Admit::Now } else { self.admit_part(now) }
    }

    /// Notes until when calls leave, after each change of what that depends on.
    fn note_open(&mut self) {
        let lacks = self.alone_since.is_some() && self.lacking().is_some();
        self.open_until = if self.begins.is_some() || lacks { Instant::ZERO } else { self.until() };
    }

    fn lacking(&self) -> Option<&DividedLimit> {
        DividedLimit::lacking(self.parts.iter().flatten().map(|(limit, units, _)| (limit, *units)))
    }

    #[cold]
    fn admit_part(&self, now: Instant) -> Admit {
        if let Some(begins) = self.begins {
            return Admit::at(begins, now, || WaitCause::Rate { gap: FIRST_LEASE });
        }
        let mut parts = self.parts.iter().flatten();
        let ended = parts.find(|(.., until)| *until <= now).map(|(limit, _, until)| (limit, *until));
        let lacking = || Some((self.lacking()?, self.alone_since?));
        let Some((limit, since)) = ended.or_else(lacking) else { return Admit::Now };
        Admit::At { at: as_long_again(now, self.alone_since.unwrap_or(since)), cause: limit.cause() }
    }

    pub(super) const fn is_on(&self) -> bool {
        self.parts.is_some()
    }

    /// Whether the ledger is there.
    pub(super) const fn has_lease(&self) -> bool {
        self.is_on() && self.alone_since.is_none()
    }

    /// Until when what is allowed now may be used.
    pub(super) fn until(&self) -> Instant {
        self.parts.iter().flatten().map(|(_, _, until)| *until).fold(Instant::MAX, Instant::min)
    }

    pub(super) fn snapshot(&self, now: Instant) -> Option<FleetSnapshot> {
        let MemberView { id: member, weight, state, members, lease_ends, limits, other_limits, problem } =
            self.fleet.clone()?;
        let shares = self.parts.iter().flatten().zip(limits).map(|((limit, units, until), view)| FleetShare {
            limit: limit.clone(),
            units: if *until > now { *units } else { 0 },
            alone: view.alone,
            quarantine: view.quarantine,
            back_by: view.back_by,
        });
        let shares = shares.collect();
        let (reader, reads) = (None, 0);
        Some(FleetSnapshot { member, weight, state, members, lease_ends, other_limits, problem, shares, reader, reads })
    }

    /// An answer to a request that waits for a share, with the time by which there is one at the latest, where that is known; of
    /// a tier without a lease, by the same estimate as in [`admit`](Self::admit).
    pub(super) fn dated(&self, now: Instant, answer: Admit) -> Admit {
        let Admit::OnRelease { cause: cause @ WaitCause::Share { .. } } = answer else { return answer };
        if let Some(since) = self.alone_since {
            return Admit::At { at: as_long_again(now, since), cause };
        }
        let views = self.fleet.iter().filter(|_| self.has_lease()).flat_map(|fleet| &fleet.limits);
        let mut empty = self.parts.iter().flatten().zip(views).filter(|((_, units, _), _)| *units == 0);
        let known = empty.find_map(|((limit, ..), view)| view.back_by.filter(|at| *at > now && limit.cause() == cause));
        match known {
            Some(at) => Admit::At { at, cause },
            None => Admit::OnRelease { cause },
        }
    }

    /// Sets what may be used of the limits of a level.
    pub(super) fn allow(&self, tier: Option<&str>, quotas: &mut Quotas, in_flight: &mut InFlight) {
        let views = self.fleet.iter().flat_map(|fleet| &fleet.limits).map(Some).chain(core::iter::repeat(None));
        let parts = self.parts.iter().flatten().zip(views);
        for ((limit, units, _), view) in parts.filter(|((limit, ..), _)| limit.tier.as_deref() == tier) {
            let grows = self.has_lease() && view.is_some_and(|view| view.back_by.is_none());
            match limit.in_flight {
                true => in_flight.set_share(*units, grows, limit),
                false => quotas.set_allowance(limit.place, *units),
            }
        }
    }
}

/// When what has been lost since then may be back.
fn as_long_again(now: Instant, since: Instant) -> Instant {
    now + (now - since).max(SHORT)
}

impl Pacer {
    /// From now on this pacer shares its configured limits with others, and nothing leaves before it is allowed.
    ///
    /// # Errors
    /// Where there is no configured limit, or one that cannot be divided exactly: only a sliding window can.
    pub fn divide(&mut self, now: Instant) -> Result<(), ConfigError> {
        let now = self.advance(now);
        let limits = divided(&self.config)?;
        self.divided.parts = Some(limits.into_iter().map(|limit| (limit, 0, now)).collect());
        self.divided.alone_since = Some(now);
        self.divided.begins = self.divided.parts.as_ref().is_some_and(Vec::is_empty).then_some(now + FIRST_LEASE);
        self.divided.note_open();
        self.apply_allowances();
        self.pump(now);
        Ok(())
    }

    /// This pacer shares its limits with no other any more: all of them are its own.
    pub fn undivide(&mut self, now: Instant) {
        let now = self.advance(now);
        for (limit, units, until) in self.divided.parts.iter_mut().flatten() {
            (*units, *until) = (limit.quota.limit, Instant::MAX);
        }
        self.apply_allowances();
        (self.divided.parts, self.divided.fleet, self.divided.begins) = (None, None, None);
        self.divided.note_open();
        self.in_flight.end_share();
        self.scopes.iter_mut().for_each(|scope| scope.in_flight.end_share());
        (self.gates, self.pots) = (SharedGates::default(), Pots::default());
        self.leave_paces(now);
        // Each of them is looked at again.
        self.scopes.iter_mut().for_each(drop);
        self.pump(now);
    }

    /// The limits that this pacer shares, those of the account first; empty where it shares none.
    pub fn divided_limits(&self) -> Vec<DividedLimit> {
        self.divided.parts.iter().flatten().map(|(limit, ..)| limit.clone()).collect()
    }

    /// Tells a member what happened, with the demand of this pacer, and takes what it allows: all at one instant, so that what
    /// it tells the ledger is what may be used. Returns its other changes; what it has to send is left in it.
    pub fn hear(&mut self, now: Instant, member: &mut Member, input: MemberInput) -> Vec<MemberChange> {
        let now = self.advance(now);
        for (limit, Demand { used, waiting, next }) in self.demand(now).into_iter().enumerate() {
            member.demand(limit, used, waiting, next);
        }
        self.say_limits(now);
        self.say_news(now, member);
        self.say_paces(now, member);
        match input {
            MemberInput::Time => member.handle_timeout(now),
            MemberInput::Linked { run, quiet } => member.linked(now, run, quiet),
            MemberInput::Unlinked => member.unlinked(now),
            MemberInput::Away(why) => member.is_away(why),
            MemberInput::OtherLimits => member.has_other_limits(),
            MemberInput::Notice => member.notice(now),
            MemberInput::Reply(reply) => member.reply(now, &reply),
            MemberInput::Lost(seq) => member.lost(now, seq),
            MemberInput::Leave => member.leave(now, self.taken(now)),
            MemberInput::ByeDone(seq) => member.bye_done(now, seq),
            MemberInput::Told(note) => member.told(now, &note),
            MemberInput::Answered(reply) => member.answered(now, reply),
        }
        let mut others = Vec::new();
        while let Some(change) = member.poll_change() {
            match change {
                MemberChange::Allow { limit, units, until } => self.allow(limit, units, until),
                MemberChange::Told(note) => {
                    self.hear_gate(now, &note);
                    self.hear_pace(now, member, &note);
                    self.hear_limit(now, &note);
                }
                MemberChange::Drawn { topic, units, after, waits, since } => {
                    self.drawn(now, &topic, units, (after, waits), since);
                }
                MemberChange::Taken { topic, waits } if topic.starts_with(OFFICE_OF) => {
                    self.office_taken(now, &topic, waits);
                }
                MemberChange::Taken { topic, waits } => self.canary_taken(now, &topic, waits),
                other => others.push(other),
            }
        }
        self.divided.alone_since = match member.state() {
            MemberState::Live => None,
            _ => self.divided.alone_since.or(Some(now)),
        };
        if self.divided.has_lease() {
            self.divided.begins = None;
        }
        self.divided.note_open();
        // There is something to say as soon as there is a lease, and no more once there is none.
        self.paces.notice_lease(self.divided.has_lease());
        self.divided.fleet = Some(member.view());
        self.apply_allowances();
        self.pump(now);
        others
    }

    /// A limit that is not divided, because the configuration has changed, is ignored.
    fn allow(&mut self, limit: usize, units: u64, until: Instant) {
        if let Some(part) = self.divided.parts.as_mut().and_then(|parts| parts.get_mut(limit)) {
            (part.1, part.2) = (units, until);
        }
    }

    /// Removes a request that waits, for a caller that does not: it asks again. Its share of divided limits grows all the same,
    /// and it is told to ask for that again soon. Returns the request, and when it could start.
    pub fn turn_away(&mut self, now: Instant, ticket: Ticket) -> Option<(Request, Admit)> {
        let now = self.advance(now);
        let request = self.cancel(now, ticket)?;
        if self.divided.is_on() {
            self.divided.turned_away = Some((request.scope.place, request.cost.clone(), now + GONE));
        }
        let admit = match self.admit(now, &request) {
            Admit::At { at, cause: cause @ WaitCause::Share { .. } } if self.divided.has_lease() => {
                Admit::At { at: at.min(now + ASKS_AGAIN), cause }
            }
            Admit::OnRelease { cause: cause @ WaitCause::Share { .. } } => Admit::At { at: now + ASKS_AGAIN, cause },
            other => other,
        };
        Some((request, admit))
    }

    /// What the calls of this pacer use of each divided limit, and could use. The cost is linear in the requests that wait.
    fn demand(&self, now: Instant) -> Vec<Demand> {
        let level = |(limit, ..): &(DividedLimit, u64, Instant)| {
            let own = limit.tier.as_ref().map(|tier| self.scopes.named(tier).map(|id| id.place));
            let used = match self.level_of(limit) {
                None => 0,
                Some((_, in_flight)) if limit.in_flight => u64::from(in_flight.now()),
                Some((quotas, _)) => quotas.used(now, limit.place),
            };
            let of = |cost: &Cost| if limit.in_flight { 1 } else { cost.get(&limit.quota.dimension) };
            let (mut first, mut demand) = (None, Demand { used, ..Demand::default() });
            let scopes = self
                .scopes
                .iter()
                .filter(|(place, _)| own.is_none_or(|own| own == Some(*place)) && !self.hold.is_active());
            // Through a closed gate one call leaves, once it may be tested.
            let most = |scope: &Scope| match scope.is_open() {
                true => usize::MAX,
                false => usize::from(scope.awaits_canary(now)),
            };
            for place_in_queue in scopes.flat_map(|(_, scope)| scope.queue.ready().take(most(scope))) {
                let units = of(&self.slots.at(place_in_queue.2).request.cost);
                demand.waiting = demand.waiting.saturating_add(units);
                if first.is_none_or(|first| place_in_queue < first) {
                    (first, demand.next) = (Some(place_in_queue), units);
                }
            }
            let turned_away = self.divided.turned_away.as_ref().filter(|(scope, _, until)| {
                *until > now && own.is_none_or(|own| own == Some(*scope)) && !self.hold.is_active()
            });
            if let Some((_, cost, _)) = turned_away {
                // How much such a caller could use is not known, for it asks for one call after the other: its fair part.
                demand.waiting = demand.waiting.max(limit.quota.limit);
                demand.next = if first.is_none() { of(cost) } else { demand.next };
            }
            demand
        };
        self.divided.parts.iter().flatten().map(level).collect()
    }

    /// What counts at the level of a divided limit; none of a tier without a call.
    fn level_of(&self, limit: &DividedLimit) -> Option<(&Quotas, &InFlight)> {
        let Some(tier) = &limit.tier else { return Some((&self.quotas, &self.in_flight)) };
        let scope = &self.scopes[self.scopes.named(tier)?.place];
        Some((scope.quotas(), &scope.in_flight))
    }

    /// What each divided limit still counts, with its age.
    fn taken(&self, now: Instant) -> Vec<Vec<TakenState>> {
        let level = |(limit, ..): &(DividedLimit, u64, Instant)| match self.level_of(limit) {
            None => Vec::new(),
            Some((_, in_flight)) if limit.in_flight => {
                vec![TakenState { ago: Duration::ZERO, units: u64::from(in_flight.now()) }]
            }
            Some((quotas, _)) => quotas.taken(now, limit.place),
        };
        self.divided.parts.iter().flatten().map(level).collect()
    }

    /// Whether a request waited since the last call that more of a limit would let leave.
    pub const fn take_short(&mut self) -> bool {
        core::mem::replace(&mut self.divided.short, false)
    }

    pub(super) const fn is_short(&self) -> bool {
        self.divided.short
    }

    /// Notes that a request waits for this.
    pub(super) const fn note_short(&mut self, answer: &Admit) {
        use WaitCause::Share;
        if let Admit::At { cause: Share { .. }, .. } | Admit::OnRelease { cause: Share { .. } } = answer {
            self.divided.short = true;
        }
    }

    /// The account has no place free: where requests are ready, a larger share of those of all would let them leave.
    pub(super) fn note_short_of_places(&mut self) {
        self.divided.short |= self.in_flight.lacks_share() && self.agenda.ready().next().is_some();
    }

    /// New limits are divided anew: nothing leaves under them before it is allowed.
    pub(super) fn divide_anew(&mut self, now: Instant) {
        if let Some(parts) = &self.divided.parts {
            let limits = divided(&self.config).expect("it was checked");
            if !limits.iter().eq(parts.iter().map(|(limit, ..)| limit)) {
                self.divided.parts = Some(limits.into_iter().map(|limit| (limit, 0, now)).collect());
                self.divided.note_open();
            }
            self.apply_allowances();
        }
    }

    fn apply_allowances(&mut self) {
        self.divided.allow(None, &mut self.quotas, &mut self.in_flight);
        for tier in self.tiers.keys() {
            let Some(id) = self.scopes.named(tier) else { continue };
            let scope = &mut self.scopes[id.place];
            self.divided.allow(Some(tier), &mut scope.quotas, &mut scope.in_flight);
            self.scopes.touch(id.place);
        }
    }
}

/// The limits of a configuration that are divided.
///
/// # Errors
/// See [`Pacer::divide`].
pub(super) fn divided(config: &PacerConfig) -> Result<Vec<DividedLimit>, ConfigError> {
    let refuse = |value: &str, expected| Err(ConfigError { key: "fleet".into(), value: value.into(), expected });
    if config.per_scope.is_some() {
        return refuse("limits for each scope", "limits of the account or of a tier: others cannot be divided yet");
    }
    let account = super::limits(config);
    let tiers = config.tiers.iter().map(|(name, limits)| (Some(name.clone()), limits));
    let mut divided = Vec::new();
    for (tier, Limits { quotas, .. }) in core::iter::once((None, &account)).chain(tiers) {
        for (place, quota) in quotas.iter().enumerate() {
            if quota.shape != QuotaShape::Sliding {
                return refuse(
                    "a bucket or a fixed window",
                    "limits that are sliding windows: only they can be divided",
                );
            }
            divided.push(DividedLimit { tier: tier.clone(), quota: quota.clone(), in_flight: false, place });
        }
    }
    let places = config.tier_places.iter().map(|(tier, most)| (Some(tier.clone()), *most));
    let places = config.places.map(|most| (None, most)).into_iter().chain(places);
    for (tier, most) in places.filter(|_| config.pace != Pace::None) {
        let quota = Quota::sliding(Dimension::Requests, u64::from(most), config.longest_call.unwrap_or(LONGEST_CALL));
        divided.push(DividedLimit { tier, quota, in_flight: true, place: 0 });
    }
    match divided.is_empty() && config.pace != Pace::Auto {
        true => refuse("no limit", "a configured limit (rpm, tpm, limits), or the pace auto: a fleet shares those"),
        false => Ok(divided),
    }
}
