//! The ledger of the core, the script on Redis and the row in Postgres answer alike, reply by reply, whatever they are asked.

use std::time::Duration;

use paceline_core::fleet::{
    Announced, BoardRequest, BoardStep, ByeRequest, Draw, FleetLimit, Ledger, LimitKind, MemberId, MemberRequest,
    Quiet, Stake, SyncRequest,
};
use paceline_core::{Instant, Rng, TakenState};
use paceline_fleet::conformance::{LedgerAnswer, LedgerName, PostgresLedger, RedisLedger};

use crate::postgres_server::PostgresServer;
use crate::redis_server::RedisServer;

const LEASE: Duration = Duration::from_secs(3);

/// What may be asked, at random: nothing here is sensible, so that every rule is met.
struct Story {
    rng: Rng,
    /// In microseconds.
    now: u64,
    limits: Vec<FleetLimit>,
    members: Vec<Known>,
    run: u64,
    began: u64,
    /// Members want the same again, mostly.
    is_calm: bool,
}

/// What a member was told last.
struct Known {
    id: MemberId,
    seq: u64,
    has: Vec<u64>,
    /// What each wants, and what its next call costs.
    wants: Vec<(u64, u64)>,
    answered: u64,
    heard: u64,
}

impl Story {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let kind = |rng: &mut Rng| match rng.next_u64() % 6 {
            0 => LimitKind::Places(Duration::from_secs(5)),
            1 => LimitKind::Rate,
            2 => LimitKind::Window(Duration::from_secs(1)),
            _ => LimitKind::Window(Duration::from_secs(6)),
        };
        let units = |rng: &mut Rng| [3, 20, 100, 90_000, 1 << 40, 1 << 48][(rng.next_u64() % 6) as usize];
        let limits = (0..rng.next_u64() % 4).map(|_| FleetLimit { units: units(&mut rng), kind: kind(&mut rng) });
        let limits = limits.collect::<Vec<_>>();
        let now = 1_800_000_000_000_000;
        Self { rng, now, limits, members: Vec::new(), run: 1 + seed, began: now - 100_000_000, is_calm: seed % 2 == 1 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound.max(1)
    }

    fn pass_time(&mut self) {
        self.now += match self.below(40) {
            0 => self.below(12_000_000),
            1 => self.below(3_500_000),
            2 => return self.now -= self.below(8_000_000),
            _ => self.below(200_000),
        };
    }

    fn next(&mut self) -> MemberRequest {
        self.pass_time();
        if self.below(150) == 0 {
            (self.run, self.began) = (self.run + 1, self.now - self.below(20_000_000));
        }
        if self.members.len() < 2 || self.below(30) == 0 {
            let id = MemberId(self.rng.next_u64());
            self.members.push(Known {
                id,
                seq: 0,
                has: vec![0; self.limits.len()],
                wants: vec![(0, 1); self.limits.len()],
                answered: 0,
                heard: 0,
            });
        }
        let of = self.below(self.members.len() as u64) as usize;
        // Now and then the request of a member is an old one, or tells of more than it was given.
        let (old, wrong) = (self.below(20) == 0, self.below(10) == 0);
        let step = if old { 0 } else { 1 + self.below(2) };
        let known = &mut self.members[of];
        known.seq += step;
        let (member, seq, answered, held) = (known.id, known.seq, known.answered, known.has.clone());
        let heard = known.heard.saturating_sub(self.below(3)) + u64::from(self.below(20) == 0);
        if self.below(6) == 0 {
            return self.board(member, seq);
        }
        let elapsed = match (answered, self.below(4)) {
            (0, _) | (_, 0) => Duration::ZERO,
            _ => Duration::from_micros(self.now.saturating_sub(answered) + self.below(3_000)),
        };
        if self.below(25) == 0 {
            let taken = (0..self.limits.len()).map(|place| {
                let units = held[place] / 4;
                (0..self.below(4)).map(|n| TakenState { ago: Duration::from_micros(n * 700_000), units }).collect()
            });
            return MemberRequest::Bye(ByeRequest { member, seq, elapsed, taken: taken.collect() });
        }
        let stakes = (0..self.limits.len()).map(|place| {
            let units = self.limits[place].units;
            let has = if wrong { self.below(units) } else { held[place] - self.below(held[place] / 2 + 1) };
            let mut want =
                [0, units, has + self.below(units / 2 + 1), self.below(units / 4 + 1)][self.below(4) as usize];
            let mut lump = if self.below(3) == 0 { self.below(units / 3 + 2) } else { 1 };
            let is_same = self.is_calm && self.below(20) > 0;
            let wants = &mut self.members[of].wants[place];
            (want, lump) = if is_same { *wants } else { (want, lump) };
            *wants = (want, lump);
            Stake { has: if is_same { held[place] } else { has }, want, lump }
        });
        let stakes = stakes.collect();
        let at = |micros| Instant::ZERO + Duration::from_micros(micros);
        let asked = self.now - self.below(4_000_000);
        let quiet = (self.below(6) == 0).then(|| Quiet { since: at(self.began), asked: at(asked) });
        let weight = 1 + self.below(17);
        MemberRequest::Sync(SyncRequest { member, seq, run: self.run, quiet, weight, elapsed, heard, stakes })
    }

    fn board(&mut self, member: MemberId, seq: u64) -> MemberRequest {
        let topic =
            ["gate", "calls 00000000000000a5 a model", "reader a model", "another"][self.below(4) as usize].to_owned();
        let lasts = Duration::from_micros(self.below(3_000_000));
        let step = match self.below(7) {
            0 => BoardStep::Take { lasts },
            1 => BoardStep::Release,
            2..=4 => BoardStep::Draw(self.draw()),
            _ => BoardStep::Post {
                values: (0..self.below(17)).map(|n| self.rng.next_u64() >> (11 + n)).collect(),
                lasts,
            },
        };
        MemberRequest::Board(BoardRequest { member, seq, topic, step })
    }

    fn draw(&mut self) -> Draw {
        let limit = 1 + self.below(100);
        let announced = (self.below(3) == 0).then(|| Announced {
            limit,
            remaining: self.below(limit + 1),
            missing: self.below(limit + 1),
            left: Duration::from_micros(self.below(5_000_000)),
            gradually: self.below(4) > 0,
            window: Duration::from_micros(1_000_000 + self.below(5_000_000)),
        });
        let (lump, back) = (1 + self.below(4), self.below(8) / 4);
        Draw { units: self.below(40), lump, back, unpaid: self.below(12) / 8, announced }
    }

    fn hear(&mut self, request: &MemberRequest, answer: &LedgerAnswer) {
        let id = match request {
            MemberRequest::Sync(request) => request.member,
            MemberRequest::Bye(request) => {
                return self.members.retain(|known| known.id != request.member);
            }
            MemberRequest::Board(_) => return,
        };
        let known = self.members.iter_mut().find(|known| known.id == id).expect("it asked");
        if let Some(reply) = &answer.reply {
            (known.has, known.answered) = (reply.grants.iter().map(|grant| grant.has).collect(), self.now);
            known.heard = reply.newest;
        }
    }
}

fn asked(ledger: &mut Ledger, now: u64, request: &MemberRequest) -> LedgerAnswer {
    let now = Instant::ZERO + Duration::from_micros(now);
    let reply = match request {
        MemberRequest::Sync(request) => ledger.sync(now, request),
        MemberRequest::Bye(request) => {
            ledger.bye(now, request);
            return LedgerAnswer::default();
        }
        MemberRequest::Board(request) => {
            let (reply, note) = ledger.board(now, request);
            return LedgerAnswer { board: Some(reply), note, ..LedgerAnswer::default() };
        }
    };
    LedgerAnswer {
        board: None,
        note: None,
        wakes: if reply.is_some() { std::iter::from_fn(|| ledger.poll_wake()).collect() } else { Vec::new() },
        reply,
    }
}

fn name(account: &str, story: &Story) -> LedgerName {
    let words = format!("{:?}", story.limits);
    LedgerName { account: account.to_owned(), limits: story.limits.clone(), words, lease: LEASE }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_on_redis_answers_like_the_ledger() {
    let server = RedisServer::start(&[]);
    let client = redis::Client::open(server.url()).expect("an address");
    let mut clock = client.get_multiplexed_async_connection().await.expect("it is there");
    for seed in 0..60 {
        let mut story = Story::new(seed);
        let store = RedisLedger::open(&server.url(), name(&format!("story-{seed}"), &story)).expect("an address");
        let link = store.with_clock_of_test().link().await.expect("it is there");
        let mut ledger = Ledger::new(&story.limits, LEASE);
        for step in 0..400 {
            let request = story.next();
            let (seconds, micros) = (story.now / 1_000_000, story.now % 1_000_000);
            let turn = redis::cmd("HSET").arg("clock").arg(&[("s", seconds), ("us", micros)]).to_owned();
            turn.query_async::<()>(&mut clock).await.expect("it is turned");
            let expected = asked(&mut ledger, story.now, &request);
            let answer = link.ask(&request).await.expect("it answers");
            assert_eq!(answer, expected, "seed {seed}, step {step}: {request:?}");
            story.hear(&request, &answer);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_row_in_postgres_answers_like_the_ledger() {
    let server = PostgresServer::start();
    let (clock, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("it is there");
    tokio::spawn(connection);
    clock.batch_execute("CREATE TABLE clock AS SELECT 0::bigint AS us").await.expect("a table");
    for seed in 0..12 {
        let mut story = Story::new(seed);
        let store = PostgresLedger::open(&server.url(), name(&format!("story-{seed}"), &story)).expect("an address");
        let store = store.with_clock_of_test();
        let (link, run) = store.link_with_run().await.expect("it is there");
        story.run = run;
        let mut ledger = Ledger::found(&story.limits, LEASE, run);
        for step in 0..200 {
            let request = story.next();
            clock.execute("UPDATE clock SET us = $1", &[&story.now.cast_signed()]).await.expect("it is turned");
            let expected = asked(&mut ledger, story.now, &request);
            let answer = link.ask(&request).await.expect("it answers");
            assert_eq!(answer, expected, "seed {seed}, step {step}: {request:?}");
            story.hear(&request, &answer);
        }
    }
}
