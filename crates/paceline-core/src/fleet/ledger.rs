//! The ledger: who holds how much of each limit.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use super::board::Board;
use super::level::{Part, divide};
use super::message::{BoardReply, BoardRequest, ByeRequest, Grant, MemberId, Note, Stake, SyncReply, SyncRequest};
use super::settled::{Room, Settled, Sums};
use super::{AHEAD, FleetLimit};
use crate::time::Instant;

/// A sync ends at most so many leases, so that it takes a bounded time; the next ones end the others.
const EXPIRIES: usize = 16;

/// So many members are woken at once at most.
const WOKEN: usize = 16;

/// So many where another one has not enough for one call, those included that lend it some.
const WOKEN_TO_LEND: usize = 64;

/// Divides the limits of one key among its members, and fences those that fell silent. It holds no policy of pace.
///
/// Inputs are [`sync`](Self::sync), [`bye`](Self::bye) and [`board`](Self::board), each one atomic step; after the first two
/// [`poll_wake`](Self::poll_wake) says which members a hint would help. The time is that of the store's clock, which may be set
/// forward and back.
///
/// With the feature `serde` it can be kept in a store between two inputs; then it has to be told the wakes before it is written.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ledger {
    lease: Duration,
    run: Option<u64>,
    clock: Clock,
    recovers_until: Option<Instant>,
    books: Vec<Book>,
    members: BTreeMap<MemberId, Entry>,
    #[cfg_attr(feature = "serde", serde(default))]
    board: Board,
    #[cfg_attr(feature = "serde", serde(skip))]
    wakes: VecDeque<MemberId>,
    /// The rule that looks right and is wrong, for the test that shows it.
    #[cfg(test)]
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(super) trusts_last_report: bool,
}

#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Entry {
    seq: u64,
    /// When the request came that it was last heard by.
    heard: Instant,
    weight: u64,
    parts: Vec<Part>,
}

/// One limit.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Book {
    limit: FleetLimit,
    /// What no member may have, and until when.
    quarantine: Vec<(Instant, u64)>,
    divided: Option<Instant>,
    /// What that stands on, if it does.
    #[cfg_attr(feature = "serde", serde(default))]
    settled: Option<Settled>,
    contended: bool,
    line: u64,
}

/// A clock that never goes back, and that can be set back by what its members know.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct Clock {
    now: Instant,
    /// Added to the store's time, in nanoseconds.
    shift: i128,
}

impl Clock {
    /// The time for what no lease depends on: it notices no step of the store's clock, and so it moves nothing.
    fn peek(&self, store: Instant) -> Instant {
        let shifted = i128::from(store.as_nanos()) + self.shift;
        self.now.max(Instant::from_nanos(u64::try_from(shifted).unwrap_or(0)))
    }

    /// `known`: the time by a member's clock, where one is known.
    fn read(&mut self, store: Instant, known: Option<Instant>) -> Instant {
        let shifted = i128::from(store.as_nanos()) + self.shift;
        let known = known.map(|known| i128::from(known.as_nanos()));
        let set_forward = known.filter(|known| shifted > known + AHEAD.as_nanos() as i128);
        let next = set_forward.unwrap_or(shifted).max(i128::from(self.now.as_nanos()));
        self.shift += next - shifted;
        self.now = Instant::from_nanos(u64::try_from(next).unwrap_or(u64::MAX));
        self.now
    }
}

impl Ledger {
    /// A ledger whose state was lost, or that is not known to be the first: it recovers for one lease from the first sync on.
    pub fn new(limits: &[FleetLimit], lease: Duration) -> Self {
        let books = limits.iter().map(|limit| Book::new(*limit, Vec::new())).collect();
        let clock = Clock::default();
        let (members, wakes) = (BTreeMap::new(), VecDeque::new());
        Self {
            lease,
            run: None,
            clock,
            recovers_until: None,
            books,
            members,
            board: Board::default(),
            wakes,
            #[cfg(test)]
            trusts_last_report: false,
        }
    }

    /// A ledger of a key that no member of an earlier one holds anything of, in that run of a store: it gives at once.
    pub fn found(limits: &[FleetLimit], lease: Duration, run: u64) -> Self {
        Self { run: Some(run), ..Self::new(limits, lease) }
    }

    /// Takes a member's claims and wants, and says what it holds from now on. None for a request that a later one of the
    /// member has overtaken, or that names another number of limits: then nothing has changed.
    pub fn sync(&mut self, now: Instant, request: &SyncRequest) -> Option<SyncReply> {
        if self.is_stale(request.member, request.seq) || request.stakes.len() != self.books.len() {
            return None;
        }
        self.wakes.clear();
        let quiet =
            request.quiet.filter(|quiet| quiet.asked <= now).map(|quiet| (now - quiet.since, now - quiet.asked));
        let now = self.read_clock(now, request.member, request.elapsed);
        if self.run != Some(request.run) {
            self.recover(now, request.run);
        }
        if let Some((quiet, asked)) = quiet {
            self.shorten_recovery(now, quiet, asked);
        }
        self.end_leases(now, request.member);
        let known = self.members.remove(&request.member);
        // While it recovers, a member is believed once what it holds, as far as that is not taken; at other times never.
        let believed = self.recovers_until.is_some() && known.is_none();
        let weighed = known.as_ref().map(|entry| entry.weight);
        let parts = known.map_or_else(|| alloc::vec![Part::default(); self.books.len()], |entry| entry.parts);
        let (seq, weight) = (request.seq, request.weight.clamp(1, 16));
        let mut entry = Entry { seq, heard: now, weight, parts };
        for (place, stake) in request.stakes.iter().enumerate() {
            let unclaimed = if believed { self.pooled(place) } else { 0 };
            let others = self.members.values().map(|entry| &entry.parts[place]);
            let others = Sums::of(others.map(|part| (part.stake, part.target)));
            let stake = Stake { has: stake.has.min(entry.parts[place].stake.has + unclaimed), ..*stake };
            self.books[place].hear(&mut entry.parts[place], stake, (weighed, weight), others);
        }
        self.members.insert(request.member, entry);
        let grants = (0..self.books.len()).map(|place| self.grant(now, place, request.member)).collect();
        let (newest, notes) = (self.board.newest(), self.board.after(now, request.heard));
        Some(SyncReply { seq, lease: self.lease, members: self.members.len() as u64, grants, newest, notes })
    }

    /// Does a member's step on the board; returns the answer, and a note that every member has to be told at once. A note may be
    /// lost: the next reply to a member has it.
    pub fn board(&mut self, now: Instant, request: &BoardRequest) -> (BoardReply, Option<Note>) {
        self.board.takes(self.clock.peek(now), request, self.members.len())
    }

    /// A member leaves: what it has not used goes back at once, what it has used once it counts no longer.
    pub fn bye(&mut self, now: Instant, request: &ByeRequest) {
        // Of one that is not known nothing is to be freed, and its clock says nothing.
        let known = self.members.contains_key(&request.member);
        if !known || self.is_stale(request.member, request.seq) || request.taken.len() != self.books.len() {
            return;
        }
        let now = self.read_clock(now, request.member, request.elapsed);
        self.end_leases(now, request.member);
        if self.members.remove(&request.member).is_none() {
            return;
        }
        for (book, taken) in self.books.iter_mut().zip(&request.taken) {
            taken.iter().for_each(|taken| book.set_aside(now.saturating_sub(taken.ago), taken.units));
            book.loses_member();
        }
    }

    /// Divides other limits from now on, each with its place among the former ones, where no member but this one lives: what was
    /// given counts under those that stay, however many units they have now. Nothing is given of a new one before its window is
    /// over, or the longest that stays, for nothing that was given before counts after that. One that goes must not be the
    /// longest: who brought it back would have all of it once more. Returns whether that is so.
    pub fn adopt(
        &mut self,
        now: Instant,
        (limits, from): (&[FleetLimit], &[Option<usize>]),
        lease: Duration,
        member: MemberId,
    ) -> bool {
        let now = self.clock.peek(now);
        let mut others = self.members.iter().filter(|(id, _)| **id != member);
        let is_alone = !others.any(|(_, entry)| entry.heard + self.lease + AHEAD > now);
        let former = |place: &usize| self.books.get(*place);
        let mut pairs = limits.iter().zip(from).filter_map(|(limit, place)| Some((limit, place.as_ref()?)));
        let are_alike = limits.len() == from.len()
            && pairs.all(|(limit, place)| former(place).is_some_and(|book| book.limit.kind == limit.kind));
        let stay = from.iter().flatten().filter_map(former).map(|book| book.limit.quarantine());
        let Some(longest) = stay.max().filter(|_| is_alone && are_alike && self.lease == lease) else { return false };
        let is_same = from.len() == self.books.len() && from.iter().enumerate().all(|(n, place)| *place == Some(n));
        let mut gone = self.books.iter().enumerate().filter(|(place, _)| !from.contains(&Some(*place)));
        let recovers = self.recovers_until.is_some_and(|until| until > now);
        if !is_same && (recovers || gone.any(|(_, book)| book.limit.quarantine() > longest)) {
            return false;
        }
        let book = |(limit, place): (&FleetLimit, &Option<usize>)| {
            let aside = (now + limit.quarantine().min(longest), limit.units);
            let new = || Book::new(*limit, alloc::vec![aside]);
            place.map_or_else(new, |place| Book {
                limit: *limit,
                divided: None,
                settled: None,
                ..self.books[place].clone()
            })
        };
        self.books = limits.iter().zip(from).map(book).collect();
        for entry in self.members.values_mut() {
            let part = |place: &Option<usize>| place.map_or_else(Part::default, |place| entry.parts[place].clone());
            entry.parts = from.iter().map(part).collect();
        }
        true
    }

    /// The next member to which a hint to sync would be of use, after an input. A hint may be lost.
    pub fn poll_wake(&mut self) -> Option<MemberId> {
        self.wakes.pop_front()
    }

    /// What no member holds of a limit and none may have used, in units.
    pub fn pooled(&self, place: usize) -> u64 {
        self.books[place].limit.units.saturating_sub(self.held(place) + self.books[place].in_quarantine())
    }

    /// Whether by then nothing that it has given counts any more: no member has been heard for as long as anything is kept.
    pub fn is_over(&self, now: Instant) -> bool {
        let longest = self.books.iter().map(|book| book.limit.quarantine()).max().unwrap_or_default();
        let heard = self.members.values().map(|entry| entry.heard).max();
        let waited = heard.into_iter().chain(self.recovers_until).all(|at| at + self.lease + AHEAD + longest <= now);
        waited && self.books.iter().all(|book| book.quarantine.iter().all(|(until, _)| *until <= now))
    }

    fn is_stale(&self, member: MemberId, seq: u64) -> bool {
        self.members.get(&member).is_some_and(|entry| seq <= entry.seq)
    }

    /// The ledger's time. Where it has run ahead of a known member's clock, the store's clock was set.
    fn read_clock(&mut self, now: Instant, member: MemberId, elapsed: Duration) -> Instant {
        let known = self.members.get(&member).filter(|_| !elapsed.is_zero());
        self.clock.read(now, known.map(|entry| entry.heard + elapsed))
    }

    /// In another run of the store writes may be lost, and what is left may be wrong: only claims count. Within a lease every
    /// member has claimed or stopped.
    fn recover(&mut self, now: Instant, run: u64) {
        self.run = Some(run);
        self.recovers_until = Some(now + self.lease + AHEAD);
        self.members.clear();
        self.board.clear();
        for book in &mut self.books {
            book.quarantine.clear();
            book.settled = None;
        }
    }

    /// The recovery counts from when the run began, which is so long ago, where it had given nothing when a member `asked`, so
    /// long ago. Another member may have begun the recovery meanwhile. One that began before `asked`, or that is over, knows of
    /// what was given; and what a member heard longer than a lease ago says nothing.
    fn shorten_recovery(&mut self, now: Instant, quiet: Duration, asked: Duration) {
        let whole = now + self.lease + AHEAD;
        if let Some(until) = &mut self.recovers_until
            && asked < self.lease
            && *until >= whole.saturating_sub(asked)
        {
            *until = whole.saturating_sub(quiet).min(*until);
        }
    }

    /// Ends what has ended: leases, the quarantine, the recovery. That of the member which speaks now ends in any case.
    fn end_leases(&mut self, now: Instant, speaks: MemberId) {
        let lasts = self.lease + AHEAD;
        let mut ended: Vec<_> = self.members.iter().map(|(id, entry)| (entry.heard + lasts, *id)).collect();
        ended.retain(|(end, _)| *end <= now);
        ended.sort_by_key(|(end, id)| (*id != speaks, *end, *id));
        for (end, id) in ended.into_iter().take(EXPIRIES) {
            let entry = self.members.remove(&id).expect("it was there a moment ago");
            #[cfg(test)]
            let end = if self.trusts_last_report { entry.heard } else { end };
            for (book, part) in self.books.iter_mut().zip(entry.parts) {
                book.set_aside(end, part.stake.has);
                book.loses_member();
            }
        }
        if let Some(until) = self.recovers_until.filter(|until| *until <= now) {
            self.recovers_until = None;
            for place in 0..self.books.len() {
                let unclaimed = self.pooled(place);
                self.books[place].set_aside(until, unclaimed);
            }
        }
        for book in &mut self.books {
            book.quarantine.retain(|(until, _)| *until > now);
        }
    }

    /// Gives a member what is due to it of one limit.
    fn grant(&mut self, now: Instant, place: usize, member: MemberId) -> Grant {
        if self.recovers_until.is_none() {
            self.divide(now, place, member);
        }
        let recovers = self.recovers_until.is_some();
        let mut pool = self.pooled(place);
        let (owed, lacking) = (self.owed(place, member), self.lacking(place, Some(member)));
        let part = &mut self.members.get_mut(&member).expect("it was just put there").parts[place];
        if !recovers {
            // What others lack for a call comes first, but for what it lacks itself.
            let due = part.missing().min(if part.lacks() > 0 { pool } else { pool.saturating_sub(lacking) });
            // What is not meant for another member is lent at once: the next division sees who holds it.
            let more = (part.stake.want.saturating_sub(part.stake.has + due)).min((pool - due).saturating_sub(owed));
            let had = part.stake.has;
            part.stake.has += due;
            if more > 0 && part.stake.has + more >= part.stake.lump {
                part.stake.has += more;
                if part.stake.has > part.target {
                    (part.target, self.books[place].settled) = (part.stake.has, None);
                }
            }
            pool -= part.stake.has - had;
        }
        part.told = match part.lends(lacking.saturating_sub(pool)) {
            _ if recovers => part.stake.has,
            0 => part.target,
            lent => part.stake.has - lent,
        };
        let (has, target, book) = (part.stake.has, part.told, &self.books[place]);
        let lost = if recovers { pool } else { 0 };
        Grant { has, target, quarantine: book.in_quarantine() + lost, contended: book.contended }
    }

    /// Divides a limit anew, if something has changed, and notes which members a hint would help.
    fn divide(&mut self, now: Instant, place: usize, member: MemberId) {
        let book = &self.books[place];
        if book.divided.is_some_and(|last| now - last < book.limit.divided_every()) {
            return;
        }
        let stands = book.settled.filter(|settled| settled.moves.is_none_or(|at| now < at));
        let helps = self.pooled(place) > 0 && self.owed(place, member) > 0;
        if stands.is_some_and(|settled| !settled.hints && !helps) {
            return;
        }
        let book = &mut self.books[place];
        book.divided = Some(now);
        let mut settled = stands.unwrap_or_else(|| {
            let parts = self.members.iter_mut().map(|(id, entry)| (*id, entry.weight, &mut entry.parts[place]));
            divide(now, book.capacity(), book.limit.turn(), &mut book.line, &mut parts.collect::<Vec<_>>())
        });
        let mut pool = self.pooled(place);
        let others = self.members.iter().filter(|(id, _)| **id != member);
        let mut changed: Vec<_> = others.map(|(id, entry)| (&entry.parts[place], *id)).collect();
        // Little less than a member knows of is worth a hint only where another one has not enough for one call.
        let least = if self.members.values().any(|entry| entry.parts[place].starves()) { u64::MAX } else { 16 };
        changed.retain(|(part, _)| {
            let told = part.told.abs_diff(part.target);
            part.stake.has < part.target || (part.stake.has > part.target && told.saturating_mul(least) > part.told)
        });
        changed.sort_by_key(|(part, id)| (core::cmp::Reverse(part.stake.has.abs_diff(part.target)), *id));
        let room = |part: &Part| {
            let missing = part.missing();
            let helps = missing == 0 || pool > 0;
            pool = pool.saturating_sub(missing);
            helps
        };
        let mut room = room;
        let woken = changed.into_iter().filter(|(part, _)| room(part)).map(|(_, id)| id).take(WOKEN);
        let before = self.wakes.len();
        self.wakes.extend(woken);
        self.wake_lenders(place, member);
        settled.hints = self.wakes.len() > before;
        let book = &mut self.books[place];
        (book.contended, book.settled) = (settled.room == Room::Short, Some(settled));
    }

    /// Where a member has not enough for one call, others are asked for one of theirs, those first that have the most.
    fn wake_lenders(&mut self, place: usize, speaks: MemberId) {
        let lacking = self.lacking(place, None).saturating_sub(self.pooled(place));
        if lacking == 0 {
            return;
        }
        let others = self.members.iter().filter(|(id, _)| **id != speaks);
        let mut lenders: Vec<_> = others.map(|(id, entry)| (&entry.parts[place], *id)).collect();
        lenders.retain(|(part, _)| part.lends(lacking) > 0 && !part.is_lending());
        lenders.sort_by_key(|(part, id)| (core::cmp::Reverse(part.stake.has), *id));
        let most = WOKEN_TO_LEND.saturating_sub(self.wakes.len());
        self.wakes.extend(lenders.into_iter().map(|(_, id)| id).take(most));
    }

    /// What all lack for one call, or all but this member.
    fn lacking(&self, place: usize, but: Option<MemberId>) -> u64 {
        let members = self.members.iter().filter(|(id, _)| Some(**id) != but);
        members.map(|(_, entry)| entry.parts[place].lacks()).sum()
    }

    /// What all but this member are meant to hold and do not.
    fn owed(&self, place: usize, member: MemberId) -> u64 {
        let others = self.members.iter().filter(|(id, _)| **id != member);
        others.map(|(_, entry)| entry.parts[place].missing()).sum()
    }

    /// Whether a division that stands gives a member less than it should: where there is enough, less than it wants, or to all
    /// more than there is; else, what it would not get if that was done again.
    #[cfg(test)]
    pub(super) fn stands_wrongly(&self, now: Instant, place: usize) -> bool {
        let now = self.clock.peek(now);
        let mut again = self.clone();
        let stands = again.books[place].settled.take().filter(|settled| settled.moves.is_none_or(|at| now < at));
        again.books[place].divided = None;
        again.divide(now, place, MemberId(0));
        let parts = |ledger: &Self| ledger.members.values().map(|entry| entry.parts[place].clone()).collect::<Vec<_>>();
        let (parts, again) = (parts(self), parts(&again));
        let is_short = |(part, again): (&Part, &Part)| part.target != again.target;
        stands.is_some_and(|settled| match settled.room {
            Room::Short => parts.iter().zip(&again).any(is_short),
            _ => {
                parts.iter().any(|part| part.target < part.stake.want)
                    || parts.iter().map(|part| part.target).sum::<u64>() > self.books[place].capacity()
            }
        })
    }

    fn held(&self, place: usize) -> u64 {
        self.members.values().map(|entry| entry.parts[place].stake.has).sum()
    }
}

impl Book {
    const fn new(limit: FleetLimit, quarantine: Vec<(Instant, u64)>) -> Self {
        Self { limit, quarantine, divided: None, settled: None, contended: false, line: 0 }
    }

    /// Takes what a member says. Its weight: before, if it was known, and now.
    fn hear(&mut self, part: &mut Part, stake: Stake, (weighed, weight): (Option<u64>, u64), others: Sums) {
        let (units, before, target) = (self.limit.units, weighed.map(|weight| (weight, part.stake)), part.target);
        part.stake = Stake { has: stake.has, want: stake.want.min(units), lump: stake.lump.clamp(1, units) };
        part.target = target.min(Stake::ceiling(part.stake.want, self.contended, units));
        let Some(settled) = self.settled else { return };
        let (want, capacity) = (part.stake.want, self.capacity());
        let stands = match settled.room {
            Room::Short => part.target == target && settled.stands(capacity, weight, (before, part.stake)),
            room => {
                let spare = others.room_for(capacity, want, room);
                if let Some(spare) = spare {
                    // Of many that come at once, the last is to have what it wants.
                    part.gets(want + before.map_or(0, |_| spare));
                }
                spare.is_some()
            }
        };
        self.settled = stands.then_some(settled);
    }

    fn loses_member(&mut self) {
        self.settled = self.settled.filter(|settled| settled.room != Room::Short);
    }

    fn capacity(&self) -> u64 {
        self.limit.units.saturating_sub(self.in_quarantine())
    }

    /// No member may have that until it counts no longer.
    fn set_aside(&mut self, end: Instant, units: u64) {
        if units > 0 {
            self.quarantine.push((end + self.limit.quarantine(), units));
        }
    }

    fn in_quarantine(&self) -> u64 {
        self.quarantine.iter().map(|(_, units)| units).sum()
    }
}
