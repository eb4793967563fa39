//! The rules of a ledger and of a member one by one.

use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::fleet::{
    ByeRequest, FleetLimit, Ledger, LimitKind, Member, MemberChange, MemberConfig, MemberId, MemberRequest,
    MemberState, OnLoss, Quiet, Stake, SyncReply, SyncRequest,
};
use crate::state::TakenState;
use crate::time::Instant;

const S: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

fn at(seconds: u32) -> Instant {
    Instant::ZERO + 1_000 * S + seconds * S
}

fn limit(kind: LimitKind) -> [FleetLimit; 1] {
    [FleetLimit { units: 100, kind }]
}

fn request(member: u64, seq: u64, has: u64, want: u64) -> SyncRequest {
    let stakes = vec![Stake { has, want, lump: 1 }];
    SyncRequest {
        member: MemberId(member),
        seq,
        run: 1,
        quiet: None,
        weight: 1,
        elapsed: Duration::ZERO,
        heard: 0,
        stakes,
    }
}

fn sync(ledger: &mut Ledger, now: Instant, request: &SyncRequest) -> u64 {
    ledger.sync(now, request).expect("no later one was there").grants[0].has
}

#[test]
fn what_a_silent_member_held_comes_back_once_it_cannot_count_any_more() {
    // A second more than the lease, for a clock that was set forward by less than is noticed.
    for (kind, back) in [(LimitKind::Window(60 * S), 91), (LimitKind::Places(120 * S), 151), (LimitKind::Rate, 31)] {
        let mut ledger = Ledger::found(&limit(kind), LEASE, 1);
        assert_eq!(sync(&mut ledger, at(0), &request(1, 1, 0, 100)), 100);
        assert_eq!(sync(&mut ledger, at(back - 1), &request(2, 1, 0, 100)), 0, "{kind:?}");
        assert_eq!(sync(&mut ledger, at(back), &request(2, 2, 0, 100)), 100, "{kind:?}");
    }
}

#[test]
fn a_bye_frees_what_was_not_used_at_once_and_the_rest_with_its_window() {
    let mut ledger = Ledger::found(&limit(LimitKind::Window(60 * S)), LEASE, 1);
    assert_eq!(sync(&mut ledger, at(0), &request(1, 1, 0, 100)), 100);
    let taken = vec![vec![TakenState { ago: 50 * S, units: 10 }, TakenState { ago: S, units: 20 }]];
    let bye = |seq| ByeRequest { member: MemberId(1), seq, elapsed: S, taken: taken.clone() };
    ledger.bye(at(1), &bye(1));
    assert_eq!(ledger.pooled(0), 0, "a later request has overtaken it");
    ledger.bye(at(1), &bye(2));
    assert_eq!(sync(&mut ledger, at(1), &request(2, 1, 0, 100)), 70);
    assert_eq!(sync(&mut ledger, at(11), &request(2, 2, 70, 100)), 80);
    assert_eq!(sync(&mut ledger, at(30), &request(2, 3, 80, 100)), 80);
    assert_eq!(sync(&mut ledger, at(60), &request(2, 4, 80, 100)), 100);
}

#[test]
fn a_request_that_was_overtaken_changes_nothing_and_no_claim_is_more_than_was_given() {
    let mut ledger = Ledger::found(&limit(LimitKind::Window(S)), LEASE, 1);
    assert_eq!(sync(&mut ledger, at(0), &request(1, 2, 100, 40)), 50, "the claim of an unknown member is nothing");
    assert_eq!(ledger.sync(at(0), &request(1, 1, 0, 0)), None);
    assert_eq!(ledger.sync(at(0), &request(1, 2, 0, 0)), None);
    assert_eq!(ledger.pooled(0), 50);
    assert_eq!(sync(&mut ledger, at(0), &request(1, 3, 90, 40)), 50);
}

#[test]
fn a_ledger_in_another_run_believes_claims_and_gives_nothing_until_the_rest_cannot_count() {
    let mut ledger = Ledger::found(&limit(LimitKind::Window(60 * S)), LEASE, 1);
    let in_run_two = |request| SyncRequest { run: 2, ..request };
    assert_eq!(sync(&mut ledger, at(0), &in_run_two(request(1, 1, 60, 100))), 60);
    assert_eq!(sync(&mut ledger, at(1), &in_run_two(request(2, 1, 60, 100))), 40, "no more than is left");
    assert_eq!(sync(&mut ledger, at(2), &in_run_two(request(2, 2, 0, 0))), 0);
    assert_eq!(sync(&mut ledger, at(25), &in_run_two(request(1, 2, 60, 100))), 60);
    assert_eq!(sync(&mut ledger, at(50), &in_run_two(request(1, 3, 60, 100))), 60);
    assert_eq!(sync(&mut ledger, at(75), &in_run_two(request(1, 4, 60, 100))), 60);
    assert_eq!(sync(&mut ledger, at(91), &in_run_two(request(1, 5, 60, 100))), 100);
}

#[test]
fn a_run_that_has_given_nothing_for_a_lease_and_a_window_gives_at_once_to_the_member_that_heard_it() {
    // It began at 0; how late the member asks, how late it is heard, and when all is given.
    for (asked, heard, given) in [(0, 0, 91), (60, 60, 91), (91, 91, 91), (91, 120, 120), (91, 121, 121 + 91)] {
        let mut ledger = Ledger::new(&limit(LimitKind::Window(60 * S)), LEASE);
        let quiet = Some(Quiet { since: at(0), asked: at(asked) });
        let first = |seq| SyncRequest { quiet: quiet.filter(|_| seq == 1), ..request(1, seq, 0, 100) };
        assert_eq!(sync(&mut ledger, at(heard), &first(1)), if given <= heard { 100 } else { 0 });
        let mut seq = 1;
        let comes = (heard..).find(|second| {
            seq += 1;
            sync(&mut ledger, at(*second), &first(seq)) == 100
        });
        assert_eq!(comes, Some(given.max(heard)), "{asked} {heard}");
    }
}

/// They all ask the store before the first of them speaks to the ledger, and one of them alone hears that it has given nothing.
#[test]
fn members_that_begin_at_once_wait_for_nothing_whichever_of_them_speaks_first() {
    for place in 0..4 {
        let mut ledger = Ledger::new(&limit(LimitKind::Window(60 * S)), LEASE);
        let quiet = Quiet { since: at(0), asked: at(91) };
        for member in 0..4 {
            let quiet = (member == place).then_some(quiet);
            sync(&mut ledger, at(92), &SyncRequest { quiet, ..request(member, 1, 0, 20) });
        }
        for member in 0..4 {
            assert_eq!(
                sync(&mut ledger, at(93), &request(member, 2, 0, 20)),
                25,
                "{member}, where {place} has heard it"
            );
        }
    }
}

#[test]
fn the_member_that_heard_that_nothing_was_given_speaks_first() {
    let mut member = member(OnLoss::Strict);
    member.linked(at(0), 1, Some(Quiet { since: at(0), asked: at(91) }));
    assert!(matches!(member.poll_request(), Some(MemberRequest::Sync(SyncRequest { quiet: Some(_), .. }))));
}

#[test]
fn a_recovery_that_began_before_a_member_asked_goes_on() {
    for (asked, given) in [(91, 100), (92, 0)] {
        let mut ledger = Ledger::new(&limit(LimitKind::Window(60 * S)), LEASE);
        assert_eq!(sync(&mut ledger, at(91), &request(1, 1, 40, 40)), 40, "it holds that of a ledger that was lost");
        let quiet = Some(Quiet { since: at(0), asked: at(asked) });
        let second = |seq| SyncRequest { quiet: quiet.filter(|_| seq == 1), ..request(2, seq, 0, 100) };
        assert_eq!(sync(&mut ledger, at(93), &second(1)), given * 6 / 10, "asked at {asked}");
    }
}

#[test]
fn a_call_ends_sixteen_leases_and_that_of_the_member_that_speaks() {
    let mut ledger = Ledger::found(&limit(LimitKind::Rate), LEASE, 1);
    (0..40).for_each(|member| assert!(sync(&mut ledger, at(0), &request(member, 1, 0, 2)) >= 2));
    assert_eq!(sync(&mut ledger, at(60), &request(39, 2, 2, 0)), 0);
    assert_eq!(ledger.pooled(0), 20 + 16 * 2);
}

fn member(on_loss: OnLoss) -> Member {
    member_of(LimitKind::Window(60 * S), on_loss)
}

fn member_of(kind: LimitKind, on_loss: OnLoss) -> Member {
    let limits = limit(kind).to_vec();
    let config = MemberConfig { id: MemberId(1), weight: 1, limits, on_loss, alone_share: vec![3] };
    let mut member = Member::new(config, 1, at(0).saturating_sub(120 * S));
    member.handle_timeout(at(0));
    member
}

/// It may be started in the place of one that was killed a moment ago, and had used the same share.
#[test]
fn what_was_set_aside_may_be_used_a_window_after_the_start_until_the_member_leaves() {
    let config = MemberConfig {
        id: MemberId(1),
        weight: 1,
        limits: limit(LimitKind::Window(60 * S)).to_vec(),
        on_loss: OnLoss::Strict,
        alone_share: vec![3],
    };
    let mut member = Member::new(config, 1, at(0));
    assert_eq!((allowed(&mut member), member.poll_timeout()), (Some((0, Instant::MAX)), Some(at(60))));
    member.handle_timeout(at(60));
    assert_eq!((allowed(&mut member), member.poll_timeout()), (Some((3, Instant::MAX)), None));
    member.leave(at(61), vec![Vec::new()]);
    assert_eq!((member.state(), allowed(&mut member)), (MemberState::Out, Some((0, Instant::MAX))));
}

/// What the calls may use after all changes, and until when.
fn allowed(member: &mut Member) -> Option<(u64, Instant)> {
    let changes: Vec<_> = core::iter::from_fn(|| member.poll_change()).collect();
    changes.into_iter().rev().find_map(|change| match change {
        MemberChange::Allow { units, until, .. } => Some((units, until)),
        _ => None,
    })
}

fn join(member: &mut Member, ledger: &mut Ledger) -> Instant {
    member.demand(0, 0, 100, 1);
    member.linked(at(0), 1, None);
    let now = member.poll_timeout().expect("it joins");
    assert!(now <= at(0) + S / 5, "a fleet that is linked at once speaks within 200 ms");
    member.handle_timeout(now);
    let reply = answer(member, ledger, now);
    member.reply(now + S / 10, &reply);
    now
}

fn answer(member: &mut Member, ledger: &mut Ledger, now: Instant) -> SyncReply {
    match member.poll_request() {
        Some(MemberRequest::Sync(request)) => ledger.sync(now, &request).expect("it is the latest"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_counts_from_before_the_request_and_its_end_leaves_what_was_set_aside_or_all() {
    for (on_loss, left) in [(OnLoss::Strict, 3), (OnLoss::Keep, 100)] {
        let mut ledger = Ledger::found(&limit(LimitKind::Window(60 * S)), LEASE, 1);
        let mut member = member(on_loss);
        assert_eq!(allowed(&mut member), Some((3, Instant::MAX)), "it was never joined");
        let sent = join(&mut member, &mut ledger);
        let ends = sent + LEASE.mul_f64(0.99);
        let until = if on_loss == OnLoss::Strict { ends } else { Instant::MAX };
        assert_eq!((member.state(), allowed(&mut member)), (MemberState::Live, Some((100, until))));
        member.unlinked(sent + S);
        assert_eq!((member.state(), member.poll_timeout()), (MemberState::Live, Some(ends)));
        member.handle_timeout(ends);
        let changed = (left != 100).then_some((left, Instant::MAX));
        assert_eq!((member.state(), allowed(&mut member)), (MemberState::Alone, changed));
    }
}

/// Its host was suspended, and it has not read the answers to its calls yet: to a ledger that was lost it says what it held, and
/// would be believed, though others have that long since.
#[test]
fn a_member_claims_nothing_of_a_lease_once_others_may_have_it() {
    for (kind, counts) in [(LimitKind::Window(60 * S), 60), (LimitKind::Places(120 * S), 120), (LimitKind::Rate, 0)] {
        let claim = |after: Duration| {
            let mut member = member_of(kind, OnLoss::Strict);
            let sent = join(&mut member, &mut Ledger::found(&limit(kind), LEASE, 1));
            member.demand(0, 40, 60, 1);
            let awake = sent + LEASE.mul_f64(0.99) + after;
            member.linked(awake, 2, None);
            member.handle_timeout(awake + S / 5);
            let last = core::iter::from_fn(|| member.poll_request()).last();
            let Some(MemberRequest::Sync(request)) = last else { panic!("{last:?}") };
            request.stakes[0].has
        };
        assert_eq!(claim((counts * S).saturating_sub(S)), if counts > 0 { 40 } else { 0 }, "{kind:?}");
        assert_eq!(claim(counts * S), 0, "{kind:?}");
    }
}

#[test]
fn a_request_is_given_up_after_500_ms_and_its_late_reply_changes_nothing() {
    let mut ledger = Ledger::found(&limit(LimitKind::Window(60 * S)), LEASE, 1);
    let mut member = member(OnLoss::Strict);
    member.demand(0, 0, 100, 1);
    member.linked(at(0), 1, None);
    let now = member.poll_timeout().expect("it joins");
    member.handle_timeout(now);
    let late = answer(&mut member, &mut ledger, now);
    assert_eq!((member.poll_request(), member.poll_timeout()), (None, Some(now + S / 2)));
    member.handle_timeout(now + S / 2);
    member.reply(now + S, &late);
    assert_eq!((member.state(), allowed(&mut member)), (MemberState::Joining, Some((3, Instant::MAX))));
    let again = member.poll_timeout().expect("it asks again");
    assert!(again - (now + S / 2) >= S / 20);
    member.handle_timeout(again.max(now + S));
    let reply = answer(&mut member, &mut ledger, now + S);
    member.reply(now + S, &reply);
    assert_eq!(
        allowed(&mut member).map(|(units, _)| units),
        Some(100),
        "it is told what the ledger kept, or gives again"
    );
}

#[test]
fn nothing_leaves_after_a_bye() {
    let mut ledger = Ledger::found(&limit(LimitKind::Window(60 * S)), LEASE, 1);
    let mut member = member(OnLoss::Strict);
    let sent = join(&mut member, &mut ledger);
    member.leave(sent + S, vec![vec![TakenState { ago: S, units: 7 }]]);
    assert_eq!(allowed(&mut member), Some((0, Instant::MAX)));
    let Some(MemberRequest::Bye(bye)) = member.poll_request() else { panic!("it says bye") };
    ledger.bye(sent + S, &bye);
    assert_eq!(ledger.pooled(0), 93);
    member.bye_done(sent + S, bye.seq);
    assert_eq!((member.state(), member.poll_timeout()), (MemberState::Out, None));
}

#[test]
fn a_member_keeps_a_short_lease_whether_it_has_something_or_not() {
    let (lease, kind) = (3 * S, LimitKind::Window(60 * S));
    for wants in [0, 40] {
        let mut ledger = Ledger::found(&limit(kind), lease, 1);
        let settings = MemberConfig {
            id: MemberId(1),
            weight: 1,
            limits: limit(kind).to_vec(),
            on_loss: OnLoss::Strict,
            alone_share: Vec::new(),
        };
        let mut member = Member::new(settings, 7, at(0));
        member.linked(at(0), 1, None);
        while let Some(now) = member.poll_timeout().filter(|now| *now < at(60)) {
            member.demand(0, wants, 0, 1);
            member.handle_timeout(now);
            while let Some(MemberRequest::Sync(request)) = member.poll_request() {
                let reply = ledger.sync(now, &request).expect("no later one was there");
                member.reply(now, &reply);
            }
            while let Some(change) = member.poll_change() {
                assert_ne!(change, MemberChange::Alone, "wants {wants}, at {now}");
            }
        }
        assert_eq!(member.state(), MemberState::Live);
    }
}

/// A reply that was lost on the way, and each that comes after it is taken for that to an earlier request.
#[test]
fn a_member_whose_requests_are_answered_too_late_for_two_seconds_wants_another_connection() {
    let mut ledger = Ledger::found(&limit(LimitKind::Window(S)), LEASE, 1);
    let mut member = member(OnLoss::Strict);
    let mut now = join(&mut member, &mut ledger);
    let (mut late, until) = (None, now + 20 * S);
    let mut unanswered = Vec::new();
    while now < until {
        member.demand(0, 0, 5, 1);
        member.handle_timeout(now);
        while let Some(MemberRequest::Sync(request)) = member.poll_request() {
            let answered = late.replace(ledger.sync(now, &request).expect("it is the latest"));
            if let Some(reply) = answered {
                member.reply(now, &reply);
            }
        }
        while let Some(change) = member.poll_change() {
            if change == MemberChange::Unanswered {
                unanswered.push(now);
            }
        }
        now = member.poll_timeout().expect("it asks again");
    }
    let pauses: Vec<_> = unanswered.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(unanswered.len(), 4, "{unanswered:?}");
    assert!(pauses.iter().all(|pause| (2 * S..3 * S).contains(pause)), "{pauses:?}");
    late = None;
    member.unlinked(now);
    member.linked(now, 1, None);
    while now < until + 10 * S {
        member.handle_timeout(now);
        while let Some(MemberRequest::Sync(request)) = member.poll_request() {
            member.reply(now, &ledger.sync(now, &request).expect("it is the latest"));
        }
        while let Some(change) = member.poll_change() {
            assert_ne!(change, MemberChange::Unanswered, "at {now}");
        }
        now = member.poll_timeout().expect("it speaks again");
    }
    assert_eq!((member.state(), late), (MemberState::Live, None));
}

#[test]
fn a_member_knows_that_others_have_other_limits_until_it_is_answered_or_the_ledger_is_away() {
    let limits = limit(LimitKind::Window(60 * S));
    let mut ledger = Ledger::found(&limits, LEASE, 1);
    let config = MemberConfig {
        id: MemberId(1),
        weight: 1,
        limits: limits.to_vec(),
        on_loss: OnLoss::Strict,
        alone_share: Vec::new(),
    };
    let mut member = Member::new(config, 1, at(0));
    for answered in [true, false] {
        member.linked(at(0), 1, None);
        member.has_other_limits();
        member.handle_timeout(at(1));
        assert!(member.view().other_limits, "as long as it asks");
        match (answered, member.poll_request()) {
            (true, Some(MemberRequest::Sync(request))) => {
                member.reply(at(1), &ledger.sync(at(1), &request).expect("it is the first"));
            }
            _ => member.unlinked(at(1)),
        }
        assert!(!member.view().other_limits, "answered: {answered}");
    }
}

/// Who changes limits must not wait for a window of a day, nor get a day's units twice.
#[test]
fn limits_come_and_go_where_no_other_member_lives_and_those_that_stay_count_on() {
    let window = |units, seconds: u32| FleetLimit { units, kind: LimitKind::Window(seconds * S) };
    let (day, ten) = (window(5_000, 86_400), window(40, 10));
    let one = MemberId(1);
    let asks = |seq, stakes: &[(u64, u64)]| SyncRequest {
        stakes: stakes.iter().map(|(has, want)| Stake { has: *has, want: *want, lump: 1 }).collect(),
        ..request(1, seq, 0, 0)
    };
    let grants = |ledger: &mut Ledger, second, request: &SyncRequest| -> Vec<u64> {
        let reply = ledger.sync(at(second), request).expect("no later one was there");
        reply.grants.iter().map(|grant| grant.has).collect()
    };
    let mut ledger = Ledger::found(&[day], LEASE, 1);
    let had = grants(&mut ledger, 0, &asks(1, &[(0, 4_000)]))[0];
    let added = (&[ten, day][..], &[None, Some(0)][..]);
    assert!(!ledger.adopt(at(1), added, LEASE, MemberId(2)), "another one lives");
    assert!(!ledger.adopt(at(1), (&[ten], &[None]), LEASE, one), "nothing of the former ones stays");
    assert!(ledger.adopt(at(1), added, LEASE, one));
    assert_eq!(grants(&mut ledger, 2, &asks(2, &[(0, 40), (had, 4_000)])), [0, had], "a new limit waits its window");
    assert_eq!(grants(&mut ledger, 11, &asks(3, &[(0, 40), (had, 4_000)])), [40, had]);
    let swapped = (&[day, window(20, 10)][..], &[Some(1), Some(0)][..]);
    assert!(ledger.adopt(at(12), swapped, LEASE, one), "in another order, with other units");
    assert_eq!(grants(&mut ledger, 13, &asks(4, &[(had, 4_000), (40, 20)])), [had, 40]);
    assert!(!ledger.adopt(at(14), (&[ten], &[Some(1)]), LEASE, one), "it would come back empty");
    assert!(ledger.adopt(at(14), (&[day], &[Some(0)]), LEASE, one), "the file is put back");
    assert_eq!(grants(&mut ledger, 15, &asks(5, &[(had, 4_000)])), [had]);

    let mut ledger = Ledger::found(&[ten], LEASE, 1);
    grants(&mut ledger, 0, &asks(1, &[(0, 40)]));
    assert!(ledger.adopt(at(1), (&[ten, day], &[Some(0), None]), LEASE, one));
    assert_eq!(grants(&mut ledger, 2, &asks(2, &[(40, 40), (0, 100)])), [40, 0]);
    assert_eq!(
        grants(&mut ledger, 11, &asks(3, &[(40, 40), (0, 100)])),
        [40, 125],
        "no longer than what stays, and with something to spare"
    );
}

/// Each gives what it is told to hold less at once. What each has over time, beside its part by weight.
#[test]
fn what_is_less_than_a_call_of_each_goes_round_by_weight() {
    for (units, weights) in [(10, &[1, 3, 5, 1, 3, 5][..]), (5, &[1, 3, 5, 1, 3, 5]), (13, &[16, 1, 1, 1, 16, 1, 1, 1])]
    {
        let kind = LimitKind::Window(10 * S);
        let mut ledger = Ledger::found(&[FleetLimit { units, kind }], LEASE, 1);
        let (mut has, mut held) = (vec![0; weights.len()], vec![0; weights.len()]);
        for second in 0..2_000 {
            for (place, weight) in weights.iter().enumerate() {
                let asks = request(place as u64, u64::from(second) + 1, has[place], 100);
                let reply =
                    ledger.sync(at(second), &SyncRequest { weight: *weight, ..asks }).expect("it is the latest");
                has[place] = reply.grants[0].has.min(reply.grants[0].target);
                held[place] += has[place];
            }
        }
        let all = held.iter().sum::<u64>() as f64;
        assert!(all >= 0.95 * 2_000.0 * units as f64, "{units}: {held:?}");
        for (held, weight) in held.iter().zip(weights) {
            let part = *weight as f64 / weights.iter().sum::<u64>() as f64;
            assert!((*held as f64 / all - part).abs() <= 0.1 * part, "{units} among {weights:?}: {held} of {all}");
        }
    }
}

#[test]
fn all_lend_a_newcomer_its_first_call_and_none_takes_it_before() {
    let mut ledger = Ledger::found(&limit(LimitKind::Window(60 * S)), LEASE, 1);
    let mut has = [0; 12];
    for second in 0..6 {
        for (member, has) in has.iter_mut().enumerate() {
            let asks = request(member as u64, u64::from(second) + 1, *has, 100);
            let grant = ledger.sync(at(second), &asks).expect("it is the latest").grants[0];
            *has = grant.has.min(grant.target);
        }
    }
    assert_eq!(has.iter().sum::<u64>(), 100);
    assert_eq!(sync(&mut ledger, at(10), &request(50, 1, 0, 100)), 0);
    assert_eq!(core::iter::from_fn(|| ledger.poll_wake()).count(), 12);
    for (member, has) in has.iter().enumerate() {
        let grant = ledger.sync(at(10), &request(member as u64, 7, *has, 100)).expect("it is the latest").grants[0];
        assert!(grant.has == *has && grant.target < *has, "{member}, that has {has}: {grant:?}");
    }
    assert_eq!(sync(&mut ledger, at(11), &request(0, 8, has[0] - 1, 100)), has[0] - 1);
    assert_eq!(sync(&mut ledger, at(11), &request(1, 8, has[1], 100)), has[1]);
    assert_eq!(sync(&mut ledger, at(11), &request(50, 2, 0, 100)), 1);
}
