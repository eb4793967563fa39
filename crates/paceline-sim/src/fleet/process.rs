//! One process of a fleet: its pacer, its member, and the clock that both go by.

use std::time::Duration;

use paceline_core::fleet::{Member, MemberConfig, MemberId, MemberInput, MemberRequest};
use paceline_core::{Instant, Pacer, ScopeId};

/// Whether calls wait for more is looked at so often at most, as the task of a real member does.
const LOOKS: Duration = Duration::from_millis(10);

/// The next instant.
const SOON: Duration = Duration::from_nanos(1);

/// A clock that shows another time than the others, and may be a little fast or slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) offset: Duration,
    pub(crate) rate: f64,
}

impl Clock {
    /// What it shows.
    pub(crate) fn reads(self, now: Instant) -> Instant {
        let passed = Duration::from_nanos(now.as_nanos());
        Instant::ZERO + self.offset + if self.rate == 1.0 { passed } else { passed.mul_f64(self.rate) }
    }

    /// When it shows that.
    fn shows(self, reading: Instant) -> Instant {
        let passed = reading - (Instant::ZERO + self.offset);
        let exact = self.rate == 1.0;
        Instant::ZERO + if exact { passed } else { passed.div_f64(self.rate) + Duration::from_nanos(2) }
    }
}

/// A process of a fleet.
pub(crate) struct Process {
    pub(crate) pacer: Pacer,
    pub(crate) scope: ScopeId,
    member: Member,
    id: MemberId,
    /// The run of the store that it is connected to, as far as it knows.
    run: Option<u64>,
    clock: Clock,
    /// By its own clock.
    looked: Instant,
    short: bool,
    away_until: Instant,
    cut_until: Instant,
    is_dead: bool,
    /// When the member or the pacer has something to do.
    due: Option<Instant>,
}

impl Process {
    /// The pacer was made at the same instant, and its limits are divided.
    pub(crate) fn new(now: Instant, pacer: Pacer, scope: ScopeId, config: MemberConfig, clock: Clock) -> Self {
        let id = config.id;
        let member = Member::new(config, id.0, clock.reads(now));
        let (away_until, cut_until, looked) = (now, now, clock.reads(now));
        Self {
            pacer,
            scope,
            member,
            id,
            run: None,
            clock,
            looked,
            short: false,
            away_until,
            cut_until,
            is_dead: false,
            due: None,
        }
    }

    pub(crate) const fn id(&self) -> MemberId {
        self.id
    }

    /// Whether it is alive and not connected to that run of the store.
    pub(crate) fn misses(&self, run: u64) -> bool {
        !self.is_dead && self.run != Some(run)
    }

    /// It is connected to that run. Returns whether it was to another.
    pub(crate) const fn links_to(&mut self, run: u64) -> bool {
        self.run.replace(run).is_some()
    }

    /// Its connection is gone. Returns whether it had one.
    pub(crate) const fn unlinks(&mut self) -> bool {
        self.run.take().is_some()
    }

    /// The time by its clock.
    pub(crate) fn reads(&self, now: Instant) -> Instant {
        self.clock.reads(now)
    }

    /// When it has something to do.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_dead).map(|due| due.max(self.away_until))
    }

    /// It is killed: nothing of it is heard any more.
    pub(crate) const fn kill(&mut self) {
        self.is_dead = true;
    }

    pub(crate) const fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Whether it decides for all how fast calls leave.
    pub(crate) fn decides(&self, now: Instant) -> bool {
        let scopes = self.pacer.snapshot(self.reads(now)).scopes;
        scopes.iter().any(|scope| {
            scope.estimate.as_ref().and_then(|estimate| estimate.shared).is_some_and(|shared| shared.decides)
        })
    }

    /// Its host is suspended.
    pub(crate) const fn suspend(&mut self, until: Instant) {
        self.away_until = until;
    }

    /// Its messages reach no store, nor those of a store it.
    pub(crate) const fn cut_off(&mut self, until: Instant) {
        self.cut_until = until;
    }

    pub(crate) fn is_away(&self, now: Instant) -> bool {
        self.is_dead || self.away_until > now
    }

    pub(crate) const fn away_until(&self) -> Instant {
        self.away_until
    }

    pub(crate) fn is_cut(&self, now: Instant) -> bool {
        self.cut_until > now
    }

    /// Something happened: what it says then. Calls come first, also right after a suspension: before the member hears of the
    /// time.
    pub(crate) fn hear(&mut self, now: Instant, input: MemberInput) -> Vec<MemberRequest> {
        let local = self.reads(now);
        self.pacer.handle_timeout(local);
        self.short |= self.pacer.take_short();
        let looks = self.short && self.looked + LOOKS <= local;
        let is_due = self.member.poll_timeout().is_some_and(|due| due <= local);
        if input != MemberInput::Time || is_due || looks || self.pacer.has_news() {
            drop(self.pacer.hear(local, &mut self.member, input));
            (self.short, self.looked) = (false, local);
        }
        self.plan(now);
        std::iter::from_fn(|| self.member.poll_request()).collect()
    }

    /// Its pacer was asked something: when it is due may have changed.
    pub(crate) fn plan(&mut self, now: Instant) {
        self.short |= self.pacer.take_short();
        let looks = if self.pacer.has_news() { Some(Instant::ZERO) } else { self.short.then_some(self.looked + LOOKS) };
        let due = [self.pacer.poll_timeout(), self.member.poll_timeout(), looks].into_iter().flatten().min();
        self.due = due.map(|due| self.clock.shows(due).max(now + SOON));
    }
}
