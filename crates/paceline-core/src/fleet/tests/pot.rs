//! What members draw of a limit that a server has announced: together never more than it has.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::time::Duration;

use crate::fleet::{Announced, BoardReply, BoardRequest, BoardStep, Draw, FleetLimit, Ledger, MemberId};
use crate::rng::Rng;
use crate::time::Instant;

const S: Duration = Duration::from_secs(1);

fn at(millis: u64) -> Instant {
    Instant::ZERO + 1_000 * S + Duration::from_millis(millis)
}

/// The server resets it to 100 every ten seconds, next in four.
const AT_ONCE: Announced = Announced {
    limit: 100,
    remaining: 30,
    missing: 70,
    left: Duration::from_secs(4),
    gradually: false,
    window: Duration::from_secs(10),
};

/// Twenty a second come back.
const GRADUALLY: Announced = Announced {
    limit: 100,
    remaining: 30,
    missing: 70,
    left: Duration::from_millis(3_500),
    gradually: true,
    window: S,
};

struct Board {
    ledger: Ledger,
    seq: u64,
}

impl Board {
    fn new() -> Self {
        let limits: [FleetLimit; 0] = [];
        Self { ledger: Ledger::found(&limits, 30 * S, 1), seq: 0 }
    }

    fn draw(&mut self, now: Instant, draw: Draw) -> BoardReply {
        self.seq += 1;
        let (member, topic, step) = (MemberId(1), "left requests a".to_string(), BoardStep::Draw(draw));
        self.ledger.board(now, &BoardRequest { member, seq: self.seq, topic, step }).0
    }

    fn units(&mut self, now: Instant, units: u64, announced: Option<Announced>) -> BoardReply {
        self.draw(now, Draw { units, lump: 1, announced, ..Draw::default() })
    }
}

#[test]
fn of_a_window_no_more_is_drawn_than_is_left_and_in_the_next_no_more_than_the_limit() {
    let (mut board, mut rng) = (Board::new(), Rng::new(1));
    let mut drawn = [0, 0, 0];
    assert_eq!(board.units(at(0), 5, None), BoardReply { seq: 1, ..BoardReply::default() }, "no such limit is known");
    for step in 0..240 {
        let now = at(step * 100);
        let reply = board.units(now, 1 + rng.next_u64() % 5, (step == 0).then_some(AT_ONCE));
        drawn[((step + 60) / 100) as usize] += reply.units;
        assert!(reply.waits > Duration::ZERO && reply.after.is_zero(), "{reply:?}");
        assert!(
            now + reply.waits
                <= at(if step < 40 {
                    4_000
                } else if step < 140 {
                    14_000
                } else {
                    24_000
                }),
            "until its end"
        );
    }
    assert_eq!(drawn, [30, 100, 100]);
}

#[test]
fn of_a_limit_that_refills_bit_by_bit_no_more_may_be_used_than_has_come_back() {
    let (mut board, mut rng) = (Board::new(), Rng::new(2));
    let mut usable: Vec<(Instant, u64)> = Vec::new();
    for step in 0..600 {
        let now = at(step * 20);
        let reply = board.units(now, 1 + rng.next_u64() % 3, (step == 0).then_some(GRADUALLY));
        usable.push((now + reply.after, reply.units));
    }
    usable.sort();
    let mut sum = 0;
    for (from, units) in &usable {
        sum += units;
        let back = 20.0 * (*from - at(0)).as_secs_f64();
        assert!(sum as f64 <= 30.0 + back + 0.001, "{sum} after {back}");
    }
    assert!(sum >= 30 + 20 * 11, "it is used: {sum}");
}

#[test]
fn who_wants_much_leaves_as_much_to_each_other_member_and_gets_back_what_others_return() {
    let mut board = Board::new();
    for member in 0..4 {
        let (quiet, elapsed, stakes) = (None, Duration::ZERO, Vec::new());
        let sync = crate::fleet::SyncRequest {
            member: MemberId(member),
            seq: 1,
            run: 1,
            quiet,
            weight: 1,
            elapsed,
            heard: 0,
            stakes,
        };
        board.ledger.sync(at(0), &sync).expect("it is the first");
    }
    assert_eq!(board.units(at(1), 1_000, Some(AT_ONCE)).units, 30 / 4);
    while board.units(at(2), 1_000, None).units > 0 {}
    board.draw(at(3), Draw { back: 6, lump: 1, ..Draw::default() });
    assert_eq!(board.draw(at(4), Draw { units: 6, lump: 6, ..Draw::default() }).units, 6);
}

/// Calls that had left before their member knew of the limit, and what others use that are no members.
#[test]
fn what_left_before_is_paid_and_a_later_announcement_takes_away() {
    let mut board = Board::new();
    board.draw(at(0), Draw { unpaid: 25, lump: 1, announced: Some(AT_ONCE), ..Draw::default() });
    assert_eq!(board.units(at(1), 100, None).units, 5);
    assert_eq!(board.units(at(5_000), 1, None).units, 1);
    let less = Announced { remaining: 2, left: 9 * S, ..AT_ONCE };
    assert_eq!(board.units(at(5_001), 10, Some(less)).units, 2);
    let more = Announced { remaining: 50, left: 9 * S, ..AT_ONCE };
    assert_eq!(board.units(at(5_002), 10, Some(more)).units, 0, "it is older than what was drawn");
}

/// Of 48.5 that are left 48 are told, which come back in 30 ms: that is no 67 a second.
#[test]
fn a_report_of_little_that_is_missing_says_nothing_about_the_rate() {
    let mut board = Board::new();
    board.units(at(0), 1, Some(GRADUALLY));
    let rounded = Announced { remaining: 48, missing: 2, left: Duration::from_millis(30), ..GRADUALLY };
    while board.units(at(1), 1_000, Some(rounded)).after.is_zero() {}
    let reply = board.units(at(2), 1, None);
    assert!((reply.after.as_millis().abs_diff(100)) <= 2, "the second of twenty a second: {reply:?}");
}
