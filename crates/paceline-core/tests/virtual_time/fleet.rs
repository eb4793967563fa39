//! Processes with a pacer and a member each, and the ledger between them: messages arrive at once, but for who is cut off.

use std::collections::VecDeque;
use std::time::Duration;

use paceline_core::fleet::{
    BoardRequest, BoardStep, FleetLimit, LEASE, Ledger, LimitKind, Member, MemberConfig, MemberId, MemberInput,
    MemberRequest, Note, OnLoss,
};
use paceline_core::{
    Cost, Dimension, Event, Instant, Limits, NextAction, Outcome, Pace, Pacer, PacerConfig, Quota, Request,
    ScopeSnapshot, Ticket,
};

pub(crate) const S: Duration = Duration::from_secs(1);

pub(crate) const MS: Duration = Duration::from_millis(1);

/// All share this limit, which is more than they use.
const LIMIT: u64 = 6_000;

/// What each may use of a limit without the ledger.
const ALONE: u64 = 10;

pub(crate) struct Process {
    pub(crate) pacer: Pacer,
    pub(crate) member: Member,
    /// It hears no other process, and no other hears it.
    pub(crate) is_cut: bool,
    /// Its calls that left and were not answered yet, in order.
    pub(crate) left: VecDeque<Ticket>,
    /// What else its pacer said.
    pub(crate) events: Vec<Event>,
}

pub(crate) struct Fleet {
    pub(crate) now: Instant,
    pub(crate) ledger: Ledger,
    pub(crate) processes: Vec<Process>,
    /// What was asked of the board, by whom.
    pub(crate) asked: Vec<BoardRequest>,
    told: u64,
    limits: Vec<Quota>,
    pace: Pace,
}

impl Fleet {
    /// So many processes with a large limit and no pace of their own.
    pub(crate) fn of(processes: usize) -> Self {
        Self::with(processes, vec![Quota::sliding(Dimension::Requests, LIMIT, 60 * S)], Pace::Fixed)
    }

    /// So many processes that learn their pace, and share no limit.
    pub(crate) fn that_learns(processes: usize) -> Self {
        Self::with(processes, Vec::new(), Pace::Auto)
    }

    pub(crate) fn with(processes: usize, limits: Vec<Quota>, pace: Pace) -> Self {
        let now = Instant::ZERO + 1_000 * S;
        let shared: Vec<_> = limits.iter().map(fleet_limit).collect();
        let ledger = Ledger::found(&shared, LEASE, 1);
        let mut fleet = Self { now, ledger, processes: Vec::new(), asked: Vec::new(), told: 0, limits, pace };
        for _ in 0..processes {
            fleet.join();
        }
        fleet.run(S);
        fleet
    }

    /// One more process; returns its place.
    pub(crate) fn join(&mut self) -> usize {
        let (place, now) = (self.processes.len(), self.now);
        let limits = Limits { quotas: self.limits.clone(), burst: None };
        let config = PacerConfig { limits, pace: self.pace, ..PacerConfig::default() };
        let mut pacer = Pacer::new(config, place as u64, now).expect("sensible");
        pacer.divide(now).expect("sliding windows, or none");
        let limits: Vec<_> = self.limits.iter().map(fleet_limit).collect();
        let (on_loss, alone_share) = (OnLoss::Strict, vec![ALONE; limits.len()]);
        let config = MemberConfig { id: MemberId(1 + place as u64), weight: 1, limits, on_loss, alone_share };
        // It has been there for long enough to use that.
        let member = Member::new(config, 1 + place as u64, now.saturating_sub(60 * S));
        self.processes.push(Process { pacer, member, is_cut: false, left: VecDeque::new(), events: Vec::new() });
        self.hear(place, MemberInput::Linked { run: 1, quiet: None });
        place
    }

    pub(crate) fn hear(&mut self, place: usize, input: MemberInput) {
        let process = &mut self.processes[place];
        drop(process.pacer.hear(self.now, &mut process.member, input));
        self.note(place);
    }

    /// Another process, which is not there, says this to that process.
    pub(crate) fn tell(&mut self, place: usize, topic: &str, left: Duration, values: &[u64]) {
        let posts = self.asked.iter().filter(|request| is_post(&request.step)).count() as u64;
        self.told += 1;
        let number = posts + self.told;
        let note = Note { number, from: MemberId(999), topic: topic.into(), left, values: values.into() };
        self.hear(place, MemberInput::Told(note));
        self.exchange();
    }

    fn note(&mut self, place: usize) {
        let process = &mut self.processes[place];
        while let Some(event) = process.pacer.poll_event() {
            match event {
                Event::Granted { ticket, .. } => process.left.push_back(ticket),
                other => process.events.push(other),
            }
        }
    }

    /// So many callers of that process want to call.
    pub(crate) fn call(&mut self, place: usize, scope: &str, calls: usize) {
        let process = &mut self.processes[place];
        let scope = process.pacer.scope(scope);
        for _ in 0..calls {
            process.pacer.enqueue(self.now, Request::new(&scope, Cost::request())).expect("small enough");
        }
        self.settle(place);
    }

    /// The first of its calls that left is answered.
    pub(crate) fn answer(&mut self, place: usize, outcome: Outcome) -> NextAction {
        let process = &mut self.processes[place];
        let ticket = process.left.pop_front().expect("a call is in flight");
        let next = process.pacer.complete(self.now, ticket, outcome);
        self.settle(place);
        next
    }

    fn settle(&mut self, place: usize) {
        if self.processes[place].pacer.take_short() {
            self.hear(place, MemberInput::Time);
        }
        self.note(place);
        self.exchange();
    }

    /// Everything that is to be said is said and heard.
    pub(crate) fn exchange(&mut self) {
        loop {
            let mut is_quiet = true;
            for place in 0..self.processes.len() {
                if self.processes[place].pacer.has_news() {
                    self.hear(place, MemberInput::Time);
                }
                while let Some(request) = self.processes[place].member.poll_request() {
                    if !self.processes[place].is_cut {
                        is_quiet = false;
                        self.deliver(place, request);
                    }
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    fn deliver(&mut self, place: usize, request: MemberRequest) {
        match request {
            MemberRequest::Sync(request) => {
                let reply = self.ledger.sync(self.now, &request).expect("in order");
                self.hear(place, MemberInput::Reply(reply));
            }
            MemberRequest::Bye(request) => {
                self.ledger.bye(self.now, &request);
                self.hear(place, MemberInput::ByeDone(request.seq));
            }
            MemberRequest::Board(request) => {
                let (reply, note) = self.ledger.board(self.now, &request);
                self.asked.push(request);
                self.hear(place, MemberInput::Answered(reply));
                if let Some(note) = note {
                    let all: Vec<_> = (0..self.processes.len()).filter(|to| !self.processes[*to].is_cut).collect();
                    all.into_iter().for_each(|to| self.hear(to, MemberInput::Told(note.clone())));
                }
            }
        }
    }

    /// Lets that much time pass.
    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let dues = self.processes.iter().flat_map(|it| [it.pacer.poll_timeout(), it.member.poll_timeout()]);
            let due = dues.flatten().min().unwrap_or(end);
            self.now = due.max(self.now + MS).min(end);
            for place in 0..self.processes.len() {
                let process = &mut self.processes[place];
                process.pacer.handle_timeout(self.now);
                let is_due = process.member.poll_timeout().is_some_and(|due| due <= self.now);
                if process.pacer.take_short() || is_due {
                    self.hear(place, MemberInput::Time);
                }
                self.note(place);
            }
            self.exchange();
        }
    }

    /// What a scope of that process tells people.
    pub(crate) fn snapshot(&mut self, place: usize, scope: &str) -> ScopeSnapshot {
        let pacer = &mut self.processes[place].pacer;
        let scope = pacer.scope(scope);
        pacer.scope_snapshot(self.now, &scope).expect("it is known")
    }

    /// How many calls of each process left that were not answered.
    pub(crate) fn left(&self) -> Vec<usize> {
        self.processes.iter().map(|process| process.left.len()).collect()
    }

    /// How often something of that topic was asked of the board that is so.
    pub(crate) fn count(&self, topic: &str, is_it: fn(&BoardStep) -> bool) -> usize {
        self.asked.iter().filter(|request| request.topic == topic && is_it(&request.step)).count()
    }
}

fn fleet_limit(quota: &Quota) -> FleetLimit {
    FleetLimit { units: quota.limit, kind: LimitKind::Window(quota.window) }
}

pub(crate) const fn is_post(step: &BoardStep) -> bool {
    matches!(step, BoardStep::Post { .. })
}

pub(crate) const fn is_take(step: &BoardStep) -> bool {
    matches!(step, BoardStep::Take { .. })
}

pub(crate) const fn is_release(step: &BoardStep) -> bool {
    matches!(step, BoardStep::Release)
}
