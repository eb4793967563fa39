//! What members say that stand still costs the server little.

use std::time::Duration;

use paceline_core::Instant;
use paceline_core::fleet::{FleetLimit, LEASE, LimitKind, MemberId, MemberRequest, Quiet, Stake, SyncRequest};
use paceline_fleet::conformance::{LedgerName, RedisLedger};

use crate::redis_server::RedisServer;

/// A division reads all members, and nothing else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_divided_again_while_its_members_stand_still() {
    let (server, members) = (RedisServer::start(&[]), 100);
    let client = redis::Client::open(server.url()).expect("an address");
    let mut clock = client.get_multiplexed_async_connection().await.expect("it is there");
    // More than all want, something less than all want and would have to spare, and less than all want.
    for (units, is_short) in [(60_000, false), (2_500, false), (1_000, true)] {
        let limits = vec![FleetLimit { units, kind: LimitKind::Window(Duration::from_secs(60)) }];
        let name = LedgerName { account: format!("of-{units}"), words: "a limit".to_owned(), limits, lease: LEASE };
        let store = RedisLedger::open(&server.url(), name).expect("an address");
        let link = store.with_clock_of_test().link().await.expect("it is there");
        let (mut held, mut divisions) = (vec![0; members], 0);
        for n in 0..10 * members {
            let (round, place) = (n / members, n % members);
            if place == 0 {
                server.command(&["CONFIG", "RESETSTAT"]);
            }
            let turn =
                redis::cmd("HSET").arg("clock").arg(&[("s", 1_000 + n / 10), ("us", n % 10 * 100_000)]).to_owned();
            turn.query_async::<()>(&mut clock).await.expect("it is turned");
            // One wants a little more in the end. Where the others have lent all that is left, they would have to give way.
            let want = 20 + place as u64 % 7 + u64::from(place == 0 && round == 9 && units != 2_500);
            let stakes = vec![Stake { has: held[place], want, lump: 1 }];
            let (member, seq) = (MemberId(place as u64), round as u64 + 1);
            let (elapsed, heard) = (Duration::ZERO, 0);
            let asked = Instant::ZERO + Duration::from_secs(1_000);
            let quiet = (n == 0).then_some(Quiet { since: Instant::ZERO, asked });
            let sync = SyncRequest { member, seq, run: 1, quiet, weight: 1, elapsed, heard, stakes };
            let answer = link.ask(&MemberRequest::Sync(sync)).await.expect("it answers");
            let grant = answer.reply.expect("none was overtaken").grants[0];
            held[place] = grant.has.min(grant.target);
            assert!(round < 9 || grant.has == if is_short { 10 } else { grant.has.max(want) }, "{place}: {grant:?}");
            if place == members - 1 {
                let stats = server.ask(&["INFO", "commandstats"]);
                divisions = stats.lines().filter(|line| line.starts_with("cmdstat_hgetall")).count();
            }
        }
        assert_eq!(divisions, 0, "of {units} units");
    }
}
