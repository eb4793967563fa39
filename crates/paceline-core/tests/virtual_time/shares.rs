//! What a process of a fleet tells people of its share, and how long it says that it waits for one.

use std::time::Duration;

use paceline_core::fleet::{
    FleetLimit, LEASE, Ledger, LimitKind, Member, MemberConfig, MemberId, MemberInput, MemberRequest, OnLoss,
};
use paceline_core::{
    Admit, Cost, Dimension, Instant, Limits, Pace, Pacer, PacerConfig, Quota, Request, ScopeId, WaitCause,
};

const S: Duration = Duration::from_secs(1);

const PLACES: u32 = 20;

struct Process {
    now: Instant,
    pacer: Pacer,
    member: Member,
    ledger: Ledger,
}

fn config(rpm: u64, places: Option<u32>) -> PacerConfig {
    let quotas = vec![Quota::sliding(Dimension::Requests, rpm, 60 * S)];
    let limits = Limits { quotas, burst: Some(rpm) };
    PacerConfig { limits, places, longest_call: Some(S), pace: Pace::Fixed, ..PacerConfig::default() }
}

impl Process {
    /// The only one of its fleet, long after its clock began.
    fn joined(places: Option<u32>) -> Self {
        let now = Instant::ZERO + 10_000 * S;
        let mut pacer = Pacer::new(config(600, places), 1, now).expect("limits");
        pacer.divide(now).expect("they can be divided");
        let limit = |units, kind| FleetLimit { units, kind };
        let window = limit(600, LimitKind::Window(60 * S));
        let places = places.map(|places| limit(u64::from(places), LimitKind::Places(S)));
        let limits: Vec<_> = [window].into_iter().chain(places).collect();
        let ledger = Ledger::found(&limits, LEASE, 1);
        let (on_loss, alone_share) = (OnLoss::Strict, Vec::new());
        let settings = MemberConfig { id: MemberId(1), weight: 1, limits, on_loss, alone_share };
        let member = Member::new(settings, 1, now);
        let mut process = Self { now, pacer, member, ledger };
        process.hear(MemberInput::Linked { run: 1, quiet: None });
        process.run(S);
        process
    }

    fn hear(&mut self, input: MemberInput) {
        drop(self.pacer.hear(self.now, &mut self.member, input));
        while let Some(MemberRequest::Sync(request)) = self.member.poll_request() {
            let reply = self.ledger.sync(self.now, &request).expect("in order");
            drop(self.pacer.hear(self.now, &mut self.member, MemberInput::Reply(reply)));
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(50);
            self.pacer.handle_timeout(self.now);
            self.hear(MemberInput::Time);
        }
    }

    fn scope(&mut self) -> ScopeId {
        self.pacer.scope("calls")
    }

    fn places(&self) -> (u32, u64) {
        let account = self.pacer.snapshot(self.now).account;
        let shares = account.fleet.expect("it is in one").shares;
        (account.concurrency.current_limit, shares.last().expect("the places").units)
    }
}

#[test]
fn a_process_that_has_given_its_places_back_says_how_many_calls_it_may_make() {
    let mut process = Process::joined(Some(PLACES));
    assert_eq!(process.places(), (PLACES, 0), "it has no call");
    let scope = process.scope();
    for _ in 0..3 {
        process.pacer.enqueue(process.now, Request::new(&scope, Cost::request())).expect("it fits");
    }
    let waits = process.places();
    assert_eq!(waits, (0, 0), "none may leave before the ledger has answered");
    process.run(S);
    let (most, share) = process.places();
    assert!(u64::from(most) == share && share >= 3, "its share: {most}, {share}");
}

#[test]
fn the_wait_for_a_share_of_new_limits_is_counted_from_when_they_came() {
    let mut process = Process::joined(None);
    process.pacer.reconfigure(process.now, config(300, None)).expect("limits");
    process.now += 2 * S;
    let scope = process.scope();
    let call = Request::new(&scope, Cost::request());
    let Admit::At { at, cause: WaitCause::Share { .. } } = process.pacer.admit(process.now, &call) else {
        panic!("no ledger divides them yet")
    };
    assert_eq!(at - process.now, 2 * S);
}
