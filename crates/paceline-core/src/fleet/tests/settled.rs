//! A limit is not divided again where that would change nothing.

use alloc::vec::Vec;
use core::time::Duration;

use crate::fleet::{FleetLimit, Ledger, LimitKind, MemberId, Stake, SyncRequest};
use crate::rng::Rng;
use crate::time::Instant;

/// A member of a story: its weight, its want, what its next call costs, and what it holds.
struct Known {
    weight: u64,
    want: u64,
    lump: u64,
    has: u64,
}

/// Members that say what they hold and want, one after the other; now and then one wants something else, comes or falls silent.
#[test]
fn a_division_that_stands_would_come_out_the_same() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut below = |bound: u64| rng.next_u64() % bound;
        let limit = FleetLimit { units: 1 + below(200), kind: LimitKind::Window(Duration::from_secs(2)) };
        let mut ledger = Ledger::found(&[limit], Duration::from_secs(3), 1);
        let mut now = Instant::ZERO + Duration::from_secs(1_000);
        let mut members: Vec<Known> = Vec::new();
        for seq in 1..600 {
            now += Duration::from_millis(below(60));
            if members.len() < 2 || below(60) == 0 {
                members.push(Known { weight: 1 + below(3), want: 0, lump: 1, has: 0 });
            }
            // The first of many falls silent with time: it is asked no more.
            let place = below((members.len() as u64).min(12)) as usize;
            let place = members.len() - 1 - place;
            let known = &mut members[place];
            if below(8) == 0 {
                known.want = [0, below(10), below(limit.units + 1), limit.units][below(4) as usize];
            }
            if below(30) == 0 {
                known.lump = 1 + below(5);
            }
            let has = known.has - below(known.has / 2 + 1) * below(2);
            let stakes = [Stake { has, want: known.want, lump: known.lump }].to_vec();
            let (member, weight) = (MemberId(1 + place as u64), known.weight);
            let elapsed = Duration::ZERO;
            let request = SyncRequest { member, seq, run: 1, quiet: None, weight, elapsed, heard: 0, stakes };
            known.has = ledger.sync(now, &request).expect("none was overtaken").grants[0].has;
            assert!(!ledger.stands_wrongly(now, 0), "seed {seed}, request {seq}: {ledger:?}");
        }
    }
}
