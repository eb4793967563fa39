//! The store of a fleet's ledger: it may be away, lose what it was told, and have its clock set.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_core::fleet::{
    AHEAD, ByeRequest, FleetLimit, Ledger, MemberId, MemberInput, MemberRequest, Note, Quiet, SyncRequest,
};
use paceline_core::{Instant, TakenState};

use super::network::Message;

/// When what a member holds that fell silent is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// A window after its lease has ended: the rule.
    ByLease,
    /// A window after it was heard last. It looks right, for all that it had reported has left the window by then, and is wrong:
    /// the member went on until its lease ended.
    ByLastReport,
}

/// A store with a ledger.
#[derive(Clone)]
pub(crate) struct Store {
    ledger: Ledger,
    limits: Vec<FleetLimit>,
    lease: Duration,
    run: u64,
    /// Until when it is away.
    back: Instant,
    /// When its run began, by its clock, where it has told that no member yet.
    began: Option<Instant>,
    /// Its clock is so many nanoseconds ahead.
    step: i64,
    fencing: Fencing,
    /// When each member was heard, and what it held.
    heard: BTreeMap<MemberId, (Instant, Vec<u64>)>,
}

impl Store {
    /// Its ledger gives at once.
    pub(crate) fn new(limits: &[FleetLimit], lease: Duration, fencing: Fencing) -> Self {
        let (ledger, limits) = (Ledger::found(limits, lease, 1), limits.to_vec());
        Self {
            ledger,
            limits,
            lease,
            run: 1,
            back: Instant::ZERO,
            began: None,
            step: 0,
            fencing,
            heard: BTreeMap::new(),
        }
    }

    /// It has lost all without noticing.
    pub(super) fn is_flushed(&mut self) {
        self.ledger = Ledger::new(&self.limits, self.lease);
    }

    /// Begins a new run with what it had kept, or nothing.
    pub(super) fn restarts(&mut self, now: Instant, kept: Option<Self>, up: Instant) {
        self.ledger = kept.map_or_else(|| Ledger::new(&self.limits, self.lease), |kept| kept.ledger);
        self.run += 1;
        (self.began, self.back) = (Some(self.clock(now)), up);
    }

    /// Its clock is set.
    pub(super) const fn set_clock(&mut self, by: i64) {
        self.step += by;
    }

    pub(super) const fn run(&self) -> u64 {
        self.run
    }

    /// It is away before that.
    pub(super) const fn back(&self) -> Instant {
        self.back
    }

    /// What a member is told that has reached it.
    pub(super) fn linked(&mut self, now: Instant) -> MemberInput {
        let asked = self.clock(now);
        MemberInput::Linked { run: self.run, quiet: self.began.take().map(|since| Quiet { since, asked }) }
    }

    /// What it answers, whom a hint would help, and what all are to be told.
    pub(super) fn takes(
        &mut self,
        now: Instant,
        request: &MemberRequest,
    ) -> (Option<Message>, Vec<MemberId>, Option<Note>) {
        let clock = self.clock(now);
        if self.fencing == Fencing::ByLastReport {
            self.free_by_last_report(clock);
        }
        let mut told = None;
        let reply = match request {
            MemberRequest::Sync(request) => self.ledger.sync(clock, request).map(|reply| {
                self.note(clock, request, reply.grants.iter().map(|grant| grant.has).collect());
                Message::Reply(request.seq, Some(reply))
            }),
            MemberRequest::Bye(request) => {
                self.heard.remove(&request.member);
                self.ledger.bye(clock, request);
                Some(Message::Reply(request.seq, None))
            }
            MemberRequest::Board(request) => {
                let (reply, note) = self.ledger.board(clock, request);
                told = note;
                Some(Message::Answered(reply))
            }
        };
        (reply, std::iter::from_fn(|| self.ledger.poll_wake()).collect(), told)
    }

    fn note(&mut self, clock: Instant, request: &SyncRequest, has: Vec<u64>) {
        if self.fencing == Fencing::ByLastReport {
            self.heard.insert(request.member, (clock, has));
        }
    }

    /// As if each member that fell silent had left when it was heard last.
    fn free_by_last_report(&mut self, clock: Instant) {
        let lasts = self.lease + AHEAD;
        let gone = |heard: Instant| heard + lasts <= clock;
        for (member, (heard, has)) in self.heard.iter().filter(|(_, (heard, _))| gone(*heard)) {
            let taken = |units: &u64| vec![TakenState { ago: clock - *heard, units: *units }];
            let taken = has.iter().map(taken).collect();
            // A step earlier, for the ledger ends a lease before it listens.
            let before = clock.saturating_sub(clock - *heard - lasts + Duration::from_micros(1));
            self.ledger.bye(before, &ByeRequest { member: *member, seq: u64::MAX, elapsed: Duration::ZERO, taken });
        }
        self.heard.retain(|_, (heard, _)| !gone(*heard));
    }

    fn clock(&self, now: Instant) -> Instant {
        Instant::from_nanos(now.as_nanos().saturating_add_signed(self.step))
    }
}
