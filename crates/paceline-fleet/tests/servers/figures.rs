//! What a request costs the stores, printed as `measure` lines. It depends on the machine, so there is no bar here.

use std::io::Write as _;
use std::time::Duration;

use paceline::Clock;
use paceline_core::fleet::{FleetLimit, LEASE, LimitKind, MemberId, MemberRequest, Stake, SyncRequest};
use paceline_fleet::conformance::{LedgerName, Link, PostgresLedger, RedisLedger};

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
        let sync = SyncRequest { member, seq, run, quiet: None, weight: 1, elapsed, stakes };
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
