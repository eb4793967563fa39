//! A member: what one process may use of the limits, and when it speaks to the ledger.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::interface::{LimitView, MemberChange, MemberConfig, MemberState, MemberView, OnLoss};
use super::message::{
    BoardReply, BoardStep, ByeRequest, MemberId, MemberRequest, Note, Quiet, Stake, SyncReply, SyncRequest,
};
use super::share::Share;
use super::talk::Talk;
use super::{AHEAD, LEASE, LimitKind};
use crate::rng::Rng;
use crate::state::TakenState;
use crate::time::Instant;

/// A request without an answer is given up after this.
const GIVEN_UP: Duration = Duration::from_millis(500);

/// A connection on which no request was answered in time for so long is of no use: what comes late on it would come late for ever
/// where a reply was lost, for it is taken for that to an earlier request.
const UNANSWERED: Duration = Duration::from_secs(2);

/// The shortest time between two requests, and between two that only give back or fetch what is due.
const GAP: Duration = Duration::from_millis(50);

/// The longest time between two requests that give back what others wait for.
const GIVE_BACK: Duration = Duration::from_millis(500);

/// The longest time between two requests for what the ledger owes.
const FETCH: Duration = Duration::from_secs(1);

/// Members that are linked at the same time speak within this; those that begin with a limit, within a quarter of it.
const JOIN: Duration = Duration::from_millis(200);

/// For so long a member that has just begun, and has got nothing, asks every 100 ms: the first units are to come at once.
const NEW: Duration = Duration::from_secs(1);

/// A bye without an answer is sent so many times: what it would free comes back with the lease anyway.
const BYES: u32 = 3;

/// One process of a fleet, without IO: it says what to send, and what its calls may use.
///
/// - *Inputs*: [`demand`](Self::demand), [`reply`](Self::reply), [`lost`](Self::lost), [`notice`](Self::notice),
///   [`linked`](Self::linked), [`unlinked`](Self::unlinked), [`leave`](Self::leave), [`bye_done`](Self::bye_done),
///   [`say`](Self::say), [`told`](Self::told), [`answered`](Self::answered),
///   [`handle_timeout`](Self::handle_timeout). The clock has to go on while the host is suspended.
/// - *Outputs*, after any input: [`poll_change`](Self::poll_change) first, for what a member gives back must be out of use
///   before it is told; then [`poll_request`](Self::poll_request), to be sent at once; and
///   [`poll_timeout`](Self::poll_timeout).
///
/// Before `handle_timeout` the demand has to be up to date: windows free units without an event.
#[derive(Clone, Debug)]
pub struct Member {
    config: MemberConfig,
    rng: Rng,
    state: MemberState,
    run: Option<u64>,
    quiet: Option<Quiet>,
    seq: u64,
    shares: Vec<Share>,
    /// What is under way, and when it was sent.
    under_way: Option<(u64, Instant)>,
    /// When the last request for its shares that was answered was sent.
    answered_from: Option<Instant>,
    /// When the first request on this connection was sent of those since the last that was answered in time.
    unanswered_from: Option<Instant>,
    members: u64,
    /// How long the ledger's last reply said that a lease lasts.
    lease: Duration,
    lease_ends: Instant,
    /// When it got its lease.
    joined: Instant,
    /// When the last request was sent, and when the next may be.
    spoke: Instant,
    next: Instant,
    hinted: bool,
    other_limits: bool,
    /// Why the ledger does not answer, since it did the last time.
    problem: Option<Arc<str>>,
    bye: Option<(Vec<Vec<TakenState>>, u32)>,
    talk: Talk,
    /// When its pacer has something to say by itself.
    speaks: Option<Instant>,
    wake: Option<Instant>,
    requests: VecDeque<MemberRequest>,
    changes: VecDeque<MemberChange>,
}

impl Member {
    /// A member that knows of no ledger yet. The seed spreads its requests among those of the others.
    pub fn new(config: MemberConfig, seed: u64, now: Instant) -> Self {
        let alone = config.alone_share.iter().copied().chain(core::iter::repeat(0));
        let shares = config.limits.iter().zip(alone).map(|(limit, alone)| Share::new(limit, alone, now)).collect();
        let mut member = Self {
            config,
            rng: Rng::new(seed),
            state: MemberState::Out,
            run: None,
            quiet: None,
            seq: 0,
            shares,
            under_way: None,
            answered_from: None,
            unanswered_from: None,
            members: 0,
            lease: LEASE,
            lease_ends: now,
            joined: now,
            spoke: now,
            next: now,
            hinted: false,
            other_limits: false,
            problem: None,
            bye: None,
            talk: Talk::default(),
            speaks: None,
            wake: None,
            requests: VecDeque::new(),
            changes: VecDeque::new(),
        };
        member.pump(now);
        member
    }

    /// Who it is.
    pub const fn id(&self) -> MemberId {
        self.config.id
    }

    /// Its part among members that want more than there is.
    pub const fn weight(&self) -> u64 {
        self.config.weight
    }

    /// Where it stands.
    pub const fn state(&self) -> MemberState {
        self.state
    }

    /// What it knows of the fleet.
    pub fn view(&self) -> MemberView {
        let limits = self.shares.iter().zip(&self.config.limits).map(|(share, limit)| LimitView {
            alone: share.alone,
            quarantine: share.quarantine,
            // What the ledger has lost it sets aside once each member may have claimed, and then for as long as it may count.
            back_by: share.lost_since.map(|since| since + self.lease + AHEAD + limit.quarantine()),
        });
        MemberView {
            id: self.config.id,
            weight: self.config.weight,
            state: self.state,
            members: self.members,
            lease_ends: (self.state == MemberState::Live).then_some(self.lease_ends),
            limits: limits.collect(),
            other_limits: self.other_limits,
            problem: self.problem.clone(),
        }
    }

    /// What its calls use of a limit: what the window counts, what waits, and what the next waiting call costs. It acts with
    /// the next [`handle_timeout`](Self::handle_timeout), where all limits are known.
    pub fn demand(&mut self, limit: usize, used: u64, waiting: u64, lump: u64) {
        let share = &mut self.shares[limit];
        (share.used, share.waiting, share.lump) = (used, waiting, lump.max(1));
    }

    /// The ledger has answered. A reply to a request that was given up changes nothing.
    pub fn reply(&mut self, now: Instant, reply: &SyncReply) {
        let Some((_, sent)) = self.under_way.filter(|(seq, _)| *seq == reply.seq && self.bye.is_none()) else { return };
        self.under_way = None;
        (self.answered_from, self.unanswered_from) = (Some(sent), None);
        (self.members, self.other_limits) = (reply.members, false);
        self.lease = reply.lease;
        self.lease_ends = sent + reply.lease.mul_f64(0.99);
        if self.state != MemberState::Live {
            (self.state, self.joined) = (MemberState::Live, now);
            self.changes.push_back(MemberChange::Joined);
        }
        self.problem = None;
        for ((share, limit), grant) in self.shares.iter_mut().zip(&self.config.limits).zip(&reply.grants) {
            share.lowered |= grant.target < grant.has.min(share.target);
            (share.has, share.target, share.contended) = (grant.has, grant.target, grant.contended);
            share.quarantine = grant.quarantine;
            share.lost_since = (grant.quarantine >= limit.units).then(|| share.lost_since.unwrap_or(now));
        }
        if reply.newest < self.talk.heard() {
            self.talk.forget();
        }
        for note in &reply.notes {
            self.hear(note);
        }
        self.talk.heard_all(reply.newest);
        self.pump(now);
    }

    /// Another member told something to all.
    pub fn told(&mut self, now: Instant, note: &Note) {
        let missed = self.hear(note);
        self.hinted |= missed && self.state == MemberState::Live;
        self.pump(now);
    }

    /// Returns whether a note before it was missed.
    fn hear(&mut self, note: &Note) -> bool {
        let (is_new, missed) = self.talk.hear(note);
        if is_new && note.from != self.config.id {
            self.changes.push_back(MemberChange::Told(note.clone()));
        }
        missed
    }

    /// It tells something to all others, takes a topic of the board or gives it back: while it has a lease, until the ledger
    /// has answered. It acts with the next [`handle_timeout`](Self::handle_timeout).
    pub fn say(&mut self, now: Instant, topic: String, step: BoardStep) {
        self.talk.say(now, topic, step);
    }

    /// Its pacer has something to say then, if nothing happens before: it asks to be woken.
    pub(crate) const fn speaks_again(&mut self, at: Option<Instant>) {
        self.speaks = at;
    }

    /// The ledger has answered what it said.
    pub fn answered(&mut self, now: Instant, reply: BoardReply) {
        self.changes.extend(self.talk.answered(reply, GIVEN_UP));
        self.pump(now);
    }

    /// That request failed, or will not be answered.
    pub fn lost(&mut self, now: Instant, seq: u64) {
        if self.under_way.is_some_and(|(under_way, _)| under_way == seq) {
            self.give_up(now);
        }
        self.talk.lost(Some(seq));
        self.pump(now);
    }

    /// A hint of the ledger: to sync is of use.
    pub fn notice(&mut self, now: Instant) {
        self.hinted = true;
        self.pump(now);
    }

    /// There is a connection to that run of the store, and what that said when it was asked just now.
    pub fn linked(&mut self, now: Instant, run: u64, quiet: Option<Quiet>) {
        if self.run.replace(run).is_none_or(|known| known != run) {
            self.talk.forget();
        }
        (self.quiet, self.hinted) = (quiet, true);
        (self.under_way, self.unanswered_from) = (None, None);
        // What one of those that begin at once has heard shortens the wait of all: it speaks first.
        let begins = self.state == MemberState::Out && !self.config.limits.is_empty();
        let within = if begins { JOIN / 4 } else { JOIN };
        self.next = if quiet.is_some() { now } else { now + within.mul_f64(self.rng.unit()) };
        if self.state == MemberState::Out {
            self.state = MemberState::Joining;
        }
        self.pump(now);
    }

    /// The connection is gone, and with it what was under way.
    pub fn unlinked(&mut self, now: Instant) {
        (self.run, self.under_way, self.other_limits) = (None, None, false);
        self.talk.lost(None);
        self.pump(now);
    }

    /// The ledger was asked, and did not answer: for people, until it does.
    pub fn is_away(&mut self, why: Arc<str>) {
        self.problem = Some(why);
    }

    /// The ledger was asked, and divides the limits of others: for people, until it answers or is away.
    pub const fn has_other_limits(&mut self) {
        self.other_limits = true;
    }

    /// No more calls leave, and the ledger is told. `taken`: what the window of each limit counts, with its age; for places
    /// in flight those that are taken, with no age.
    pub fn leave(&mut self, now: Instant, taken: Vec<Vec<TakenState>>) {
        let known = self.run.is_some() && self.seq > 0;
        self.state = MemberState::Leaving;
        self.shares.iter_mut().for_each(|share| share.target = 0);
        (self.under_way, self.bye, self.next) = (None, Some((taken, BYES)), now);
        if !known {
            self.out();
        }
        self.pump(now);
    }

    /// The ledger has taken the bye.
    pub fn bye_done(&mut self, now: Instant, seq: u64) {
        if self.bye.is_some() && self.under_way.is_some_and(|(under_way, _)| under_way == seq) {
            self.out();
        }
        self.pump(now);
    }

    /// Does what is due. To be called at [`poll_timeout`](Self::poll_timeout) or later, and when the demand has changed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.pump(now);
    }

    /// What changes for the calls, oldest first.
    pub fn poll_change(&mut self) -> Option<MemberChange> {
        self.changes.pop_front()
    }

    /// What is to be sent now, on the connection of the last [`linked`](Self::linked).
    pub fn poll_request(&mut self) -> Option<MemberRequest> {
        self.requests.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due; `None`: not before the next input.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        self.wake
    }

    fn pump(&mut self, now: Instant) {
        if self.state == MemberState::Live && self.lease_ends <= now {
            self.state = MemberState::Alone;
            self.changes.push_back(MemberChange::Alone);
        }
        if self.state == MemberState::Alone && self.config.on_loss == OnLoss::Strict {
            // What was used still counts, and the ledger may not have noticed: it stays claimed, until others may have it.
            for (share, limit) in self.shares.iter_mut().zip(&self.config.limits) {
                share.target = 0;
                share.has = if self.lease_ends + limit.quarantine() > now { share.has } else { 0 };
            }
        }
        if self.under_way.is_some_and(|(_, sent)| sent + GIVEN_UP <= now) {
            self.give_up(now);
        }
        let due = self.due(now);
        if let Some(run) = self.run
            && due.is_some_and(|due| due <= now)
        {
            self.speak(now, run);
        }
        let talks = self.run.is_some() && self.state == MemberState::Live;
        if talks && self.talk.due(now).is_some_and(|due| due <= now) {
            let requests = self.talk.requests(now, self.config.id, &mut self.seq, GIVEN_UP);
            self.requests.extend(requests.into_iter().map(MemberRequest::Board));
        }
        self.allow(now);
        let given_up = self.under_way.map(|(_, sent)| sent + GIVEN_UP);
        let lease_ends = (self.state == MemberState::Live).then_some(self.lease_ends);
        let again = self.talk.due(now).filter(|_| talks);
        let alone = self.shares.iter().filter(|share| share.alone > 0 && share.alone_from > now);
        let alone = alone.map(|share| share.alone_from).min();
        self.wake = [self.due(now), given_up, lease_ends, again, self.speaks, alone].into_iter().flatten().min();
    }

    /// When the next request is due, by what is known now.
    fn due(&self, now: Instant) -> Option<Instant> {
        if self.run.is_none() || self.under_way.is_some() || self.state == MemberState::Out {
            return None;
        }
        if self.bye.is_some() || self.hinted {
            return Some(self.next);
        }
        let pairs = self.shares.iter().zip(&self.config.limits);
        let due = pairs.map(|(share, limit)| {
            let window = match limit.kind {
                LimitKind::Window(window) => window,
                LimitKind::Places(_) | LimitKind::Rate => LEASE,
            };
            if share.grows(limit) {
                return self.next;
            }
            // In virtual time and in real time alike: what frees units is no input, so it is looked for.
            let gives_back = share.needs(limit) < share.has;
            let late = |every: Duration| (self.spoke + every).max(self.next);
            let back = late((window / 64).clamp(GAP, GIVE_BACK));
            let pressed = share.contended || share.target < share.has;
            let urgent = match () {
                () if pressed && gives_back && share.lowered => self.next,
                () if pressed && gives_back => back,
                () if pressed && share.has > share.keeps(limit) => back.max(now + GAP),
                () if pressed && share.waiting == 0 && share.has > 0 => back.max(now + GAP),
                () if share.runs_short(limit) => back,
                () => Instant::MAX,
            };
            let owed = share.has < share.target.min(share.want(limit));
            let fetch = match () {
                () if share.begins() && now < self.joined + NEW => late(2 * GAP),
                () if owed => late((window / 16).clamp(GAP, FETCH)),
                () => Instant::MAX,
            };
            let active = if share.is_idle() { LEASE } else { window };
            let usual = late((active / 4).clamp(Duration::from_millis(250), LEASE / 3).min(self.lease / 3));
            usual.min(urgent).min(fetch)
        });
        // Without a limit it only says that it is there.
        due.min().or_else(|| Some((self.spoke + (LEASE / 3).min(self.lease / 3)).max(self.next)))
    }

    /// Sends a sync or a bye. What is given back is out of use before.
    fn speak(&mut self, now: Instant, run: u64) {
        self.seq += 1;
        (self.under_way, self.spoke, self.hinted) = (Some((self.seq, now)), now, false);
        self.unanswered_from.get_or_insert(now);
        self.next = now + GAP.mul_f64(1.0 + self.rng.unit() / 2.0);
        let (member, seq) = (self.config.id, self.seq);
        let elapsed = self.answered_from.map_or(Duration::ZERO, |answered| now - answered);
        if let Some((taken, _)) = &self.bye {
            self.requests.push_back(MemberRequest::Bye(ByeRequest { member, seq, elapsed, taken: taken.clone() }));
            return;
        }
        let stakes = self.shares.iter_mut().zip(&self.config.limits).map(|(share, limit)| {
            let needs = share.needs(limit);
            share.lowered &= needs == share.has;
            share.has = needs;
            share.told = share.want(limit);
            Stake { has: share.has, want: share.told, lump: share.lump }
        });
        let stakes = stakes.collect();
        let (quiet, weight, heard) = (self.quiet.take(), self.config.weight, self.talk.heard());
        let request = SyncRequest { member, seq, run, quiet, weight, elapsed, heard, stakes };
        self.requests.push_back(MemberRequest::Sync(request));
    }

    /// The ledger may have heard it or not. It is asked again, a little later each time at random.
    fn give_up(&mut self, now: Instant) {
        self.under_way = None;
        self.hinted = true;
        self.next = now + GAP.mul_f64(1.0 + self.rng.unit());
        if self.unanswered_from.is_some_and(|first| first + UNANSWERED <= now) {
            self.unanswered_from = None;
            self.changes.push_back(MemberChange::Unanswered);
        }
        if let Some((_, tries)) = &mut self.bye {
            *tries -= 1;
            if *tries == 0 {
                self.out();
            }
        }
    }

    fn out(&mut self) {
        self.shares.iter_mut().for_each(|share| share.alone = 0);
        (self.under_way, self.bye, self.state) = (None, None, MemberState::Out);
        self.changes.push_back(MemberChange::Left);
    }

    /// Says what the calls may use, where that has changed.
    fn allow(&mut self, now: Instant) {
        let (state, kept) = (self.state, self.config.on_loss == OnLoss::Keep);
        for (limit, share) in self.shares.iter_mut().enumerate() {
            let alone = if share.alone_from <= now { share.alone } else { 0 };
            let mine = share.has.min(share.target);
            let allowed = match state {
                MemberState::Live if kept => (mine.max(alone), Instant::MAX),
                MemberState::Live => (mine.max(alone), self.lease_ends),
                MemberState::Alone if kept => (mine.max(alone), Instant::MAX),
                MemberState::Leaving => (0, Instant::MAX),
                MemberState::Out | MemberState::Joining | MemberState::Alone => (alone, Instant::MAX),
            };
            if allowed != share.allowed {
                share.allowed = allowed;
                let (units, until) = allowed;
                self.changes.push_back(MemberChange::Allow { limit, units, until });
            }
        }
    }
}
