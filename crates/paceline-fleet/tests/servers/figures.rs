//! What a request costs the stores, printed as `measure` lines. It depends on the machine, so there is no bar here.

use std::io::Write as _;
use std::time::Duration;

use paceline::{Class, Clock, Cost, Dimension, Hint, Limiter, Limits, Outcome, Pace, PacerConfig, Quota, Request};
use paceline_core::fleet::{FleetLimit, LEASE, LimitKind, MemberId, MemberRequest, Stake, SyncRequest};
use paceline_fleet::conformance::{LedgerName, Link, PostgresLedger, RedisLedger};
use paceline_fleet::{Fleet, FleetConfig};

use crate::postgres_server::PostgresServer;
use crate::redis_server::RedisServer;

fn name(account: &str) -> LedgerName {
    let limits = vec![FleetLimit { units: 60_000, kind: LimitKind::Window(Duration::from_secs(60)) }];
    LedgerName { account: account.to_owned(), words: "60,000 a minute".to_owned(), limits, lease: LEASE }
}

fn requests() -> u64 {
    if std::env::var_os("PACELINE_SOAK").is_some_and(|value| value == "1") { 20_000 } else { 500 }
}

/// So many members ask in turns, one after the other on one connection; all want more than there is.
async fn ask(link: &Link, run: u64, members: u64, requests: u64) -> f64 {
    let clock = Clock::new();
    let mut begun = clock.now();
    let mut held = vec![0; usize::try_from(members).expect("few")];
    for n in 0..members + requests {
        if n == members {
            begun = clock.now();
        }
        let place = usize::try_from(n % members).expect("few");
        let stakes = vec![Stake { has: held[place], want: 1_000 + n % 7, lump: 1 }];
        let (member, seq, elapsed) = (MemberId(n % members), n / members + 1, Duration::ZERO);
        let sync = SyncRequest { member, seq, run, quiet: None, weight: 1, elapsed, heard: 0, stakes };
        let answer = link.ask(&MemberRequest::Sync(sync)).await.expect("it answers");
        held[place] = answer.reply.expect("none was overtaken").grants[0].has;
    }
    requests as f64 / (clock.now() - begun).as_secs_f64()
}

fn say(line: &str) {
    writeln!(std::io::stderr(), "measure {line}").expect("standard error is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_request_costs() {
    let server = RedisServer::start(&[]);
    for members in [16, 100, 1_000] {
        let store = RedisLedger::open(&server.url(), name(&format!("of {members}"))).expect("an address");
        let link = store.link().await.expect("it is there");
        server.command(&["CONFIG", "RESETSTAT"]);
        let rate = ask(&link, 1, members, requests()).await;
        let stats = server.ask(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha")).expect("it was asked");
        let micros = line.split(',').find_map(|part| part.strip_prefix("usec_per_call=")).expect("it is counted");
        say(&format!("redis: members={members} requests_per_s={rate:.0} server_us_per_request={micros}"));
    }
    let server = PostgresServer::start();
    for members in [16, 100] {
        let store = PostgresLedger::open(&server.url(), name(&format!("of {members}"))).expect("an address");
        let (link, run) = store.link_with_run().await.expect("it is there");
        let rate = ask(&link, run, members, requests() / 5).await;
        say(&format!("postgres: members={members} requests_per_s={rate:.0}"));
    }
}

/// How long after one process is told of a pause the others obey it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn how_soon_a_pause_reaches_all() {
    let (server, members) = (RedisServer::start(&[]), 100);
    let mut limiters = Vec::new();
    let limits =
        Limits { quotas: vec![Quota::sliding(Dimension::Requests, 10_000, Duration::from_secs(10))], burst: None };
    for _ in 0..members {
        let config = PacerConfig { limits: limits.clone(), pace: Pace::Fixed, ..PacerConfig::default() };
        let limiter = Limiter::new(config).expect("a limit");
        let mut config = FleetConfig::new(server.url(), "pause");
        config.lease = Duration::from_secs(3);
        let fleet = Fleet::join(&limiter, config).await.expect("it joins");
        limiters.push((limiter, fleet));
    }
    let request = |limiter: &Limiter| Request::new(limiter.scope("calls"), Cost::request());
    let mut obeyed = Vec::new();
    for (limiter, _) in &limiters {
        limiter.acquire(request(limiter)).await.expect("it is open").complete(Outcome::new(Class::Success));
    }
    for round in 0..10 {
        let told = &limiters[round * 7].0;
        let permit = told.acquire(request(told)).await.expect("it is open");
        let clock = Clock::new();
        let began = clock.now();
        permit.complete(Outcome {
            hint: Some(Hint::new(Duration::from_millis(1_200), false)),
            ..Outcome::new(Class::Throttled)
        });
        let mut open: Vec<_> = limiters.iter().map(|(limiter, _)| limiter).collect();
        while !open.is_empty() && clock.now() - began < Duration::from_secs(1) {
            open.retain(|limiter| {
                let is_open = limiter.snapshot().scopes.iter().all(|scope| scope.closed_until.is_none());
                if !is_open {
                    obeyed.push(clock.now() - began);
                }
                is_open
            });
            tokio::task::yield_now().await;
        }
        assert!(open.is_empty(), "{} do not obey", open.len());
        for (limiter, _) in &limiters {
            limiter.acquire(request(limiter)).await.expect("it opens").complete(Outcome::new(Class::Success));
        }
    }
    obeyed.sort_unstable();
    let ms = |part: usize| obeyed[(obeyed.len() - 1) * part / 100].as_secs_f64() * 1e3;
    say(&format!("redis: a pause told to one of {members} is obeyed after p50_ms={:.2} p99_ms={:.2}", ms(50), ms(99)));
}
