//! Pacers that share a limit through a ledger: whatever happens to them and to their messages, no window of all their calls holds
//! more than the limit, and what is certain is judged by the whole of it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use paceline_core::fleet::{
    FleetLimit, LEASE, Ledger, LimitKind, Member, MemberConfig, MemberId, MemberInput, MemberRequest, MemberState,
    OnLoss, SyncReply,
};
use paceline_core::{
    Admit, Class, Cost, Dimension, Event, Instant, Limits, Outcome, Pace, Pacer, PacerConfig, Quota, Request, Rng,
    ScopeId, Trouble, WaitCause,
};

const S: Duration = Duration::from_secs(1);

const STEP: Duration = Duration::from_millis(20);

const WINDOW: Duration = Duration::from_secs(5);

const LIMIT: u64 = 100;

fn quota() -> Quota {
    Quota::sliding(Dimension::Tokens, LIMIT, WINDOW)
}

fn limits() -> Vec<FleetLimit> {
    vec![FleetLimit { units: LIMIT, kind: LimitKind::Window(WINDOW) }]
}

fn tokens(tokens: u64) -> Cost {
    Cost::request().with(Dimension::Tokens, tokens)
}

fn pacer(now: Instant) -> Pacer {
    let limits = Limits { quotas: vec![quota()], burst: None };
    let mut pacer =
        Pacer::new(PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() }, 1, now).expect("a limit");
    pacer.divide(now).expect("a limit");
    pacer
}

fn member(id: u64, now: Instant) -> Member {
    let (limits, on_loss, alone_share) = (limits(), OnLoss::Strict, Vec::new());
    Member::new(MemberConfig { id: MemberId(id), weight: 1, limits, on_loss, alone_share }, id, now)
}

/// A process: its callers keep some requests waiting, each of the same cost.
struct Process {
    id: MemberId,
    pacer: Pacer,
    member: Member,
    scope: ScopeId,
    cost: u64,
    waiting: u64,
    callers: u64,
    sent: u64,
    cut_until: Instant,
    away_until: Instant,
    dead: bool,
}

struct World {
    now: Instant,
    rng: Rng,
    ledger: Ledger,
    processes: Vec<Process>,
    messages: BTreeMap<(Instant, u64), (usize, Message)>,
    count: u64,
    delay: Duration,
    starts: VecDeque<(Instant, u64)>,
    in_window: u64,
    worst: u64,
}

#[derive(Clone)]
enum Message {
    Request(MemberRequest),
    Reply(u64, Option<SyncReply>),
    Hint,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            now: Instant::ZERO + 1_000 * S,
            rng: Rng::new(seed),
            ledger: Ledger::found(&limits(), LEASE, 1),
            processes: Vec::new(),
            messages: BTreeMap::new(),
            count: 0,
            delay: Duration::from_millis(4),
            starts: VecDeque::new(),
            in_window: 0,
            worst: 0,
        }
    }

    fn join(&mut self, cost: u64, callers: u64) {
        let (id, now) = (self.rng.next_u64(), self.now);
        let mut pacer = pacer(now);
        let scope = pacer.scope("calls");
        let (cut_until, away_until) = (now, now);
        let member = member(id, now);
        let process = Process {
            id: MemberId(id),
            pacer,
            member,
            scope,
            cost,
            waiting: 0,
            callers,
            sent: 0,
            cut_until,
            away_until,
            dead: false,
        };
        self.processes.push(process);
        self.hear(self.processes.len() - 1, MemberInput::Linked { run: 1, quiet: None });
    }

    fn hear(&mut self, place: usize, input: MemberInput) {
        let process = &mut self.processes[place];
        drop(process.pacer.hear(self.now, &mut process.member, input));
        while let Some(request) = self.processes[place].member.poll_request() {
            self.send(place, Message::Request(request));
        }
        self.leave(place);
    }

    /// What the pacer lets leave is answered at once.
    fn leave(&mut self, place: usize) {
        let process = &mut self.processes[place];
        while let Some(event) = process.pacer.poll_event() {
            let Event::Granted { ticket, .. } = event else { panic!("{event:?}") };
            self.starts.push_back((self.now, process.cost));
            self.in_window += process.cost;
            (process.waiting, process.sent) = (process.waiting - 1, process.sent + process.cost);
            process.pacer.complete(self.now, ticket, Outcome::new(Class::Success));
        }
        while let Some((_, units)) = self.starts.front().filter(|(at, _)| *at + WINDOW <= self.now) {
            self.in_window -= units;
            self.starts.pop_front();
        }
        self.worst = self.worst.max(self.in_window);
    }

    fn send(&mut self, place: usize, message: Message) {
        if self.processes[place].cut_until > self.now {
            return;
        }
        let due = self.now + self.delay.mul_f64(self.rng.unit());
        self.count += 1;
        self.messages.insert((due, self.count), (place, message));
    }

    fn deliver(&mut self, place: usize, message: Message) {
        let process = &self.processes[place];
        if process.cut_until > self.now || (process.dead && !matches!(message, Message::Request(_))) {
            return;
        }
        match message {
            Message::Request(MemberRequest::Sync(request)) => {
                let reply = self.ledger.sync(self.now, &request);
                self.send(place, Message::Reply(request.seq, reply));
            }
            Message::Request(MemberRequest::Bye(request)) => {
                self.ledger.bye(self.now, &request);
                self.send(place, Message::Reply(request.seq, None));
            }
            Message::Request(MemberRequest::Board(request)) => unreachable!("no server asked for a pause: {request:?}"),
            Message::Reply(_, Some(reply)) => self.hear(place, MemberInput::Reply(reply)),
            Message::Reply(seq, None) => self.hear(place, MemberInput::ByeDone(seq)),
            Message::Hint => self.hear(place, MemberInput::Notice),
        }
        while let Some(woken) = self.ledger.poll_wake() {
            if let Some(place) = self.processes.iter().position(|process| process.id == woken) {
                self.send(place, Message::Hint);
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            while let Some(message) = self.messages.first_entry().filter(|message| message.key().0 <= self.now) {
                let (place, message) = message.remove();
                self.deliver(place, message);
            }
            for place in 0..self.processes.len() {
                let process = &mut self.processes[place];
                if process.dead || process.away_until > self.now {
                    continue;
                }
                // Calls come first, also after a suspension: before the member hears of the time.
                while process.waiting < process.callers {
                    let request = Request::new(&process.scope, tokens(process.cost));
                    process.pacer.enqueue(self.now, request).expect("it may fit");
                    process.waiting += 1;
                }
                process.pacer.handle_timeout(self.now);
                self.leave(place);
                let process = &mut self.processes[place];
                let is_due = process.member.poll_timeout().is_some_and(|due| due <= self.now);
                if process.pacer.take_short() || is_due {
                    self.hear(place, MemberInput::Time);
                }
            }
        }
    }

    fn sent(&self) -> u64 {
        self.processes.iter().map(|process| process.sent).sum()
    }

    /// How much of the limit is used in the next windows.
    fn used(&mut self, windows: u32) -> f64 {
        let before = self.sent();
        self.run(windows * WINDOW);
        (self.sent() - before) as f64 / (LIMIT * u64::from(windows)) as f64
    }
}

#[test]
fn pacers_share_a_limit_and_use_it() {
    for (processes, cost) in [(1, 1), (3, 1), (8, 7), (30, 1)] {
        let mut world = World::new(processes);
        (0..processes).for_each(|_| world.join(cost, 20));
        world.run(3 * WINDOW);
        let used = world.used(6);
        assert!(used >= 0.9 && world.worst <= LIMIT, "{processes}: {used}, {}", world.worst);
    }
}

#[test]
fn no_window_of_all_pacers_holds_more_than_the_limit_in_any_weather() {
    for seed in 0..12 {
        let mut world = World::new(seed);
        world.delay = [Duration::from_millis(4), Duration::from_millis(700)][(seed % 2) as usize];
        (0..2 + seed % 5).for_each(|_| world.join(1 + seed % 9, 20));
        for _ in 0..12 {
            world.run(3 * S);
            let place = (world.rng.next_u64() % world.processes.len() as u64) as usize;
            let until = world.now + (LEASE + WINDOW).mul_f64(1.5 * world.rng.unit());
            let cost = 1 + world.rng.next_u64() % 20;
            match world.rng.next_u64() % 6 {
                0 => world.processes[place].cut_until = until,
                1 => world.processes[place].away_until = until,
                2 => world.processes[place].dead = true,
                3 => (0..8).for_each(|_| world.join(cost, 20)),
                4 => {
                    world.hear(place, MemberInput::Leave);
                    world.processes[place].callers = 0;
                }
                _ => world.ledger = Ledger::new(&limits(), LEASE),
            }
        }
        assert!(world.worst <= LIMIT, "seed {seed}: {}", world.worst);
    }
}

#[test]
fn what_is_certain_is_judged_by_the_whole_limit_and_the_share_is_waited_for() {
    let mut world = World::new(1);
    world.join(60, 0);
    world.join(60, 0);
    world.run(S);
    let now = world.now;
    let Process { pacer, scope, .. } = &mut world.processes[0];
    let call = Request::new(&*scope, tokens(60));
    let Admit::OnRelease { cause } = pacer.admit(now, &call) else { panic!("its share is none yet") };
    assert_eq!(cause.to_string(), "the share of this process in the limit of 100 tokens per 5s");
    let too_large = pacer.enqueue(now, Request::new(&*scope, tokens(101))).unwrap_err();
    assert_eq!((too_large.cost, too_large.limit), (101, LIMIT));
    // No deadline is missed for certain, and no wait is known, before the share has come.
    let urgent = Request { deadline: Some(now + S), max_wait: Some(S.into()), ..call };
    pacer.enqueue(now, urgent).unwrap();
    assert_eq!(pacer.poll_event(), None);
    world.processes[0].waiting = 1;
    world.run(S);
    assert_eq!(world.sent(), 60, "it has come");
    let account = world.processes[0].pacer.snapshot(world.now).account;
    assert_eq!((account.fleet.as_ref().map(|fleet| fleet.members), account.lacks_its_share()), (Some(2), false));
}

#[test]
fn a_ledger_that_has_lost_what_it_knew_is_told_as_one_that_gives_nothing() {
    let mut world = World::new(1);
    world.ledger = Ledger::new(&limits(), LEASE);
    world.join(1, 1);
    let mut until = None;
    for seconds in [5, 29] {
        world.run(seconds * S);
        let account = world.processes[0].pacer.snapshot(world.now).account;
        assert_eq!((world.processes[0].member.state(), account.lacks_its_share()), (MemberState::Live, true));
        assert!(account.explain(world.now).contains("until then what was sent before may count"), "{account:?}");
        let told = account.explanation().and_then(|why| why.until).expect("it is known by when");
        assert_eq!((told, *until.get_or_insert(told) > world.now), (until.unwrap_or(told), true));
        // A caller that bounds its wait hears of it.
        let Some((WaitCause::Share { .. }, at)) = account.waits_for else { panic!("{account:?}") };
        assert_eq!(at, Some(told));
    }
    world.run(3 * S);
    assert!(until < Some(world.now + S), "{until:?}");
    assert!(world.sent() > 0 && !world.processes[0].pacer.snapshot(world.now).account.lacks_its_share());
}

/// It asks again and again, and no request of it stays in the queue.
#[test]
fn a_caller_that_does_not_wait_has_a_share_too() {
    for others in [0, 3] {
        let mut world = World::new(1);
        (0..=others).for_each(|other| world.join(1, if other == 0 { 0 } else { 20 }));
        let (end, mut again) = (world.now + 8 * WINDOW, world.now);
        while world.now < end {
            while again <= world.now {
                let process = &mut world.processes[0];
                let call = Request::new(&process.scope, tokens(1));
                let ticket = process.pacer.enqueue(world.now, call).expect("it may fit");
                process.waiting = 1;
                world.leave(0);
                let process = &mut world.processes[0];
                if std::mem::take(&mut process.waiting) == 1 {
                    let (_, wait) = process.pacer.turn_away(world.now, ticket).expect("it waits");
                    let Admit::At { at, .. } = wait else { panic!("{wait:?}") };
                    again = at;
                }
            }
            world.run(STEP);
        }
        let share = LIMIT * 8 / (others + 1);
        assert!(world.processes[0].sent >= share * 3 / 4, "{} of {share}", world.processes[0].sent);
        assert!(world.worst <= LIMIT, "{}", world.worst);
    }
}

#[test]
fn behind_calls_that_wait_for_the_share_no_wait_is_known() {
    let mut world = World::new(1);
    world.join(10, 0);
    let call = Request::new(&world.processes[0].scope, tokens(10));
    world.processes[0].pacer.enqueue(world.now, call.clone()).unwrap();
    world.processes[0].waiting = 1;
    world.run(S);
    assert_eq!(world.sent(), 10);
    let pacer = &mut world.processes[0].pacer;
    pacer.enqueue(world.now, call.clone()).unwrap();
    // Until what was sent leaves the window there are four seconds, but the ledger gives more at any moment.
    let behind = pacer.admit(world.now, &call);
    assert!(matches!(behind, Admit::OnRelease { cause: WaitCause::Queue }), "{behind:?}");
}

/// The guess is that it is away for as long again.
#[test]
fn while_the_ledger_is_away_a_wait_behind_others_is_guessed() {
    let mut world = World::new(1);
    world.join(10, 0);
    world.run(S);
    world.processes[0].cut_until = Instant::MAX;
    world.run(2 * LEASE);
    let call = Request::new(&world.processes[0].scope, tokens(10));
    let pacer = &mut world.processes[0].pacer;
    pacer.enqueue(world.now, call.clone()).unwrap();
    let behind = pacer.admit(world.now, &call);
    let Admit::At { at, .. } = behind else { panic!("{behind:?}") };
    assert!(at - world.now >= LEASE, "{behind:?}");
}

#[test]
fn a_ledger_that_does_not_answer_is_told_with_its_reason_until_it_does() {
    let mut world = World::new(1);
    let explained = |world: &World| world.processes[0].pacer.snapshot(world.now).account.explain(world.now);
    world.join(1, 1);
    let now = world.now;
    let Process { pacer, member, .. } = &mut world.processes[0];
    pacer.hear(now, member, MemberInput::Away("the store does not answer: WRONGPASS".into()));
    assert_eq!(explained(&world), "nothing leaves: the store does not answer: WRONGPASS");
    world.run(S);
    assert_eq!((explained(&world).contains("WRONGPASS"), world.sent() > 0), (false, true));
}

#[test]
fn nothing_leaves_once_the_lease_is_over_and_all_of_the_limit_once_it_is_not_divided_any_more() {
    let mut world = World::new(1);
    world.join(1, 1);
    world.run(S);
    assert_eq!(world.processes[0].member.state(), MemberState::Live);
    world.processes[0].cut_until = Instant::MAX;
    world.run(2 * LEASE);
    let before = world.sent();
    world.run(LEASE);
    assert_eq!(world.sent(), before);
    let Process { pacer, scope, .. } = &mut world.processes[0];
    // Its lease ended 61 s ago, and when it has another one is not known.
    let account = pacer.snapshot(world.now).account;
    assert!(account.lacks_its_share() && account.trouble(world.now) == Trouble::Closed);
    assert_eq!(
        account.explain(world.now),
        "nothing leaves before the store of the fleet gives this process a share",
        "no time is made up"
    );
    let waits = account.waits_for;
    let Some((WaitCause::Share { .. }, Some(at))) = waits else { panic!("{waits:?}") };
    assert!(at - world.now > 2 * LEASE && at - world.now < 2 * LEASE + 2 * S, "{waits:?}");
    pacer.undivide(world.now);
    assert!(pacer.admit(world.now, &Request::new(&*scope, tokens(LIMIT - 1))).is_now());
}

#[test]
fn new_limits_are_divided_anew() {
    let mut world = World::new(1);
    world.join(1, 1);
    world.run(S);
    let Process { pacer, scope, .. } = &mut world.processes[0];
    let limits = Limits { quotas: vec![Quota { limit: 50, ..quota() }], burst: None };
    let config = PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() };
    pacer.reconfigure(world.now, config).unwrap();
    assert_eq!(pacer.divided_limits()[0].quota.limit, 50);
    assert!(!pacer.admit(world.now, &Request::new(&*scope, tokens(1))).is_now());
    let unlimited = PacerConfig { pace: Pace::Fixed, ..PacerConfig::default() };
    assert!(pacer.reconfigure(world.now, unlimited).unwrap_err().to_string().contains("configured limit"));
}

/// What a member tells the ledger first of a pacer with a limit of the account and one of the tier `a`.
fn stakes(act: impl Fn(&mut Pacer, Instant)) -> Vec<(u64, u64)> {
    let now = Instant::ZERO + 1_000 * S;
    let tiers = vec![("a".into(), Limits { quotas: vec![Quota { limit: 50, ..quota() }], burst: None })];
    let limits = Limits { quotas: vec![quota()], burst: None };
    let config = PacerConfig { limits, tiers, pace: Pace::Fixed, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, now).expect("limits");
    pacer.divide(now).expect("sliding windows");
    for (scope, cost) in [("b", 7), ("a", 30), ("b", 9)] {
        let _ = pacer.scope("a");
        let scope = pacer.scope(scope);
        pacer.enqueue(now, Request::new(&scope, tokens(cost))).expect("it may fit");
    }
    act(&mut pacer, now);
    let limits = vec![FleetLimit { units: LIMIT, kind: LimitKind::Window(WINDOW) }; 2];
    let (on_loss, alone_share) = (OnLoss::Strict, Vec::new());
    let config = MemberConfig { id: MemberId(1), weight: 1, limits, on_loss, alone_share };
    let mut member = Member::new(config, 1, now);
    drop(pacer.hear(now, &mut member, MemberInput::Linked { run: 1, quiet: None }));
    drop(pacer.hear(now + S, &mut member, MemberInput::Time));
    let Some(MemberRequest::Sync(request)) = member.poll_request() else { panic!("it joins") };
    request.stakes.iter().map(|stake| (stake.want, stake.lump)).collect()
}

#[test]
fn of_each_limit_a_pacer_wants_what_its_own_calls_could_use() {
    assert_eq!(stakes(|_, _| ()), [(46, 7), (30, 30)], "the one that came first leaves next, whatever its scope");
    let held = stakes(|pacer, now| pacer.hold(now, None, now + 60 * S));
    assert_eq!(held, [(0, 1), (0, 1)], "while the account is held nothing could leave");
    let one_held = stakes(|pacer, now| {
        let scope = pacer.scope("a");
        pacer.hold(now, Some(&scope), now + 60 * S);
    });
    assert_eq!(one_held, [(16, 7), (0, 1)]);
}

#[test]
fn a_share_and_the_calls_promised_of_it_end_with_the_lease() {
    let mut world = World::new(1);
    world.join(1, 0);
    let call = Request::new(&world.processes[0].scope, tokens(1));
    for _ in 0..20 {
        world.processes[0].pacer.enqueue(world.now, call.clone()).unwrap();
    }
    world.processes[0].waiting = 20;
    world.run(S);
    assert_eq!(world.sent(), 20);
    world.processes[0].cut_until = Instant::MAX;
    let Process { pacer, member, .. } = &mut world.processes[0];
    let ends = member.view().lease_ends.expect("it is live");
    let just_before = ends.saturating_sub(Duration::from_nanos(1));
    let units = |pacer: &Pacer, at| pacer.snapshot(at).account.fleet.expect("it is divided").shares[0].units;
    assert!(units(pacer, just_before) > 20 && units(pacer, ends) == 0, "a quarter more than it used");
    let lease = pacer.lease(just_before, &call).expect("some are left");
    assert_eq!(lease.until, ends);
    pacer.end_lease(just_before, &call, &lease, 0);
}
