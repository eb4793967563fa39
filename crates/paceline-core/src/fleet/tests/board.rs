//! The board of a ledger, and what a member says and hears of it.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use crate::fleet::{
    BoardReply, BoardRequest, BoardStep, FleetLimit, Ledger, LimitKind, Member, MemberChange, MemberConfig, MemberId,
    MemberRequest, Note, OnLoss, SyncRequest,
};
use crate::time::Instant;

const S: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);

fn at(millis: u64) -> Instant {
    Instant::ZERO + 1_000 * S + Duration::from_millis(millis)
}

fn limits() -> Vec<FleetLimit> {
    vec![FleetLimit { units: 100, kind: LimitKind::Window(60 * S) }]
}

fn ask(member: u64, seq: u64, topic: &str, step: BoardStep) -> BoardRequest {
    BoardRequest { member: MemberId(member), seq, topic: topic.into(), step }
}

fn post(value: u64, lasts: Duration) -> BoardStep {
    BoardStep::Post { values: vec![value], lasts }
}

fn sync(ledger: &mut Ledger, now: Instant, heard: u64) -> (u64, Vec<(String, Vec<u64>)>) {
    let (member, quiet, elapsed) = (MemberId(9), None, Duration::ZERO);
    let seq = now.as_nanos();
    let request = SyncRequest {
        member,
        seq,
        run: 1,
        quiet,
        weight: 1,
        elapsed,
        heard,
        stakes: vec![crate::fleet::Stake::default()],
    };
    let reply = ledger.sync(now, &request).expect("none has overtaken it");
    (reply.newest, reply.notes.into_iter().map(|note| (note.topic, note.values)).collect())
}

#[test]
fn a_note_is_told_to_all_and_later_to_those_that_have_not_heard_it() {
    let mut ledger = Ledger::found(&limits(), LEASE, 1);
    let (_, first) = ledger.board(at(0), &ask(1, 5, "a", post(1, 10 * S)));
    let first = first.expect("it is new");
    assert_eq!((first.number, first.left, &*first.values), (1, 10 * S, &[1][..]));
    assert_eq!(ledger.board(at(1), &ask(1, 4, "a", post(7, S))).1, None, "a later word has overtaken it");
    ledger.board(at(2), &ask(2, 1, "b", post(2, S))).1.expect("it is new");
    let all = vec![("a".into(), vec![1]), ("b".into(), vec![2])];
    assert_eq!(sync(&mut ledger, at(3), 0), (2, all.clone()));
    assert_eq!(sync(&mut ledger, at(4), 1), (2, all[1..].to_vec()));
    assert_eq!(sync(&mut ledger, at(5), 2), (2, Vec::new()));
    assert_eq!(sync(&mut ledger, at(6), 8), (2, all.clone()), "it has heard another ledger");
    ledger.board(at(7), &ask(2, 2, "a", post(3, 10 * S))).1.expect("another member says it");
    assert_eq!(sync(&mut ledger, at(2_000), 0), (3, vec![("a".into(), vec![3])]), "one is over");
}

#[test]
fn one_member_has_a_topic_until_it_gives_it_back_or_its_time_is_over() {
    let mut ledger = Ledger::found(&limits(), LEASE, 1);
    let mut take = |now, member, step| ledger.board(now, &ask(member, now.as_nanos(), "canary", step)).0.waits;
    let lasts = || BoardStep::Take { lasts: 10 * S };
    assert_eq!(take(at(0), 1, lasts()), Duration::ZERO);
    assert_eq!(take(at(4_000), 2, lasts()), 6 * S);
    assert_eq!(take(at(5_000), 1, lasts()), Duration::ZERO, "it keeps it");
    take(at(5_001), 2, BoardStep::Release);
    assert_eq!(take(at(14_000), 2, lasts()), S, "only its own member gives it back");
    take(at(14_001), 1, BoardStep::Release);
    assert_eq!(take(at(14_002), 2, lasts()), Duration::ZERO);
    assert_eq!(take(at(24_002), 1, lasts()), Duration::ZERO, "its time is over");
    assert_eq!(take(at(25_002), 2, lasts()), 9 * S, "from now on it is the other's");
}

#[test]
fn notes_and_topics_are_bounded() {
    let mut ledger = Ledger::found(&limits(), LEASE, 1);
    let topic = |n: u64| alloc::format!("{n}");
    let told = (0..300).filter(|n| ledger.board(at(0), &ask(1, *n + 1, &topic(*n), post(0, S))).1.is_some()).count();
    assert_eq!(told, 256);
    let mut take = |n| ledger.board(at(0), &ask(1, 1, &topic(n), BoardStep::Take { lasts: S })).0.waits;
    assert_eq!((0..300).filter(|n| take(*n).is_zero()).count(), 256);
    assert_eq!(take(3), Duration::ZERO, "it has that one");
    let later = ledger.board(at(1_000), &ask(1, 400, "more", post(0, S))).1;
    assert!(later.is_some(), "what is over leaves its room");
}

fn member(ledger: &mut Ledger) -> Member {
    let config =
        MemberConfig { id: MemberId(1), weight: 1, limits: limits(), on_loss: OnLoss::Strict, alone_share: Vec::new() };
    let mut member = Member::new(config, 1, at(0));
    member.linked(at(0), 1, None);
    member.handle_timeout(at(200));
    let Some(MemberRequest::Sync(request)) = member.poll_request() else { panic!("it joins") };
    let reply = ledger.sync(at(200), &request).expect("it is the first");
    member.reply(at(201), &reply);
    while member.poll_change().is_some() {}
    member
}

fn said(member: &mut Member, now: Instant) -> Vec<BoardRequest> {
    member.handle_timeout(now);
    let requests = core::iter::from_fn(|| member.poll_request());
    requests.filter_map(|request| if let MemberRequest::Board(said) = request { Some(said) } else { None }).collect()
}

#[test]
fn a_member_says_it_at_once_and_again_until_it_is_answered() {
    let mut ledger = Ledger::found(&limits(), LEASE, 1);
    let mut member = member(&mut ledger);
    member.say(at(300), "a".into(), post(1, 10 * S));
    member.say(at(300), "canary".into(), BoardStep::Take { lasts: 10 * S });
    let first = said(&mut member, at(300));
    assert_eq!(first.len(), 2);
    assert!(said(&mut member, at(700)).is_empty(), "the answers are awaited");
    member.answered(at(700), BoardReply { seq: first[1].seq, waits: 3 * S, ..BoardReply::default() });
    assert_eq!(member.poll_change(), Some(MemberChange::Taken { topic: "canary".into(), waits: 3 * S }));
    let again = said(&mut member, at(800));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].step, post(1, Duration::from_millis(9_500)), "half a second of it has passed");
    member.answered(at(801), BoardReply { seq: first[0].seq, ..BoardReply::default() });
    assert_eq!(said(&mut member, at(1_300)).len(), 1, "that was the answer to an earlier one");
    member.unlinked(at(1_400));
    assert!(said(&mut member, at(2_000)).is_empty());
    member.linked(at(2_000), 1, None);
    assert_eq!(said(&mut member, at(2_001)).len(), 1);
    assert!(said(&mut member, at(10_300)).is_empty(), "it is of no use any more");
}

#[test]
fn a_member_hears_each_note_of_others_once_and_asks_for_those_that_it_missed() {
    let mut ledger = Ledger::found(&limits(), LEASE, 1);
    let mut member = member(&mut ledger);
    let mut note =
        |from, value| ledger.board(at(300), &ask(from, value, "a", post(value, 10 * S))).1.expect("it is new");
    let notes: Vec<Note> = vec![note(2, 1), note(1, 2), note(2, 3), note(2, 4)];
    for heard in [&notes[0], &notes[0], &notes[1]] {
        member.told(at(301), heard);
    }
    assert_eq!(told(&mut member), [1], "twice the same, and one of its own");
    member.told(at(302), &notes[3]);
    assert_eq!(told(&mut member), [4]);
    member.handle_timeout(at(400));
    let Some(MemberRequest::Sync(request)) = member.poll_request() else { panic!("it asks at once") };
    assert_eq!(request.heard, 2);
    let reply = ledger.sync(at(400), &request).expect("it is the latest");
    assert_eq!((reply.newest, reply.notes.len()), (4, 1));
    member.reply(at(401), &reply);
    assert_eq!(told(&mut member), [4], "the last word counts");
    member.told(at(402), &notes[3]);
    assert!(told(&mut member).is_empty());
}

/// The numbers of the notes that it has heard.
fn told(member: &mut Member) -> Vec<u64> {
    let changes = core::iter::from_fn(|| member.poll_change());
    changes.filter_map(|change| if let MemberChange::Told(note) = change { Some(note.number) } else { None }).collect()
}

#[test]
fn what_is_said_takes_the_place_of_what_was_said_before_of_that_topic_and_kind() {
    let mut ledger = Ledger::found(&limits(), LEASE, 1);
    let mut member = member(&mut ledger);
    let steps = [post(1, 10 * S), BoardStep::Take { lasts: 10 * S }, post(2, 10 * S), BoardStep::Release];
    steps.iter().for_each(|step| member.say(at(300), "a".into(), step.clone()));
    member.say(at(300), "b".into(), post(3, 10 * S));
    let steps: Vec<BoardStep> = said(&mut member, at(300)).into_iter().map(|request| request.step).collect();
    assert_eq!(steps, [post(2, 10 * S), BoardStep::Release, post(3, 10 * S)]);
}

#[test]
fn what_was_lost_is_said_again_at_once_and_nothing_else() {
    let mut ledger = Ledger::found(&limits(), LEASE, 1);
    let mut member = member(&mut ledger);
    ["a", "b"].iter().for_each(|topic| member.say(at(300), (*topic).into(), post(1, 10 * S)));
    let first = said(&mut member, at(300));
    member.lost(at(400), first[1].seq);
    let again: Vec<String> = said(&mut member, at(400)).into_iter().map(|request| request.topic).collect();
    assert_eq!(again, ["b"]);
    member.unlinked(at(450));
    member.linked(at(450), 1, None);
    assert_eq!(said(&mut member, at(460)).len(), 2, "and with a connection all that was under way");
}

#[test]
fn of_another_ledger_a_member_hears_every_note() {
    let mut ledger = Ledger::found(&limits(), LEASE, 1);
    let mut member = member(&mut ledger);
    for value in 1..4 {
        let note = ledger.board(at(300), &ask(2, value, "a", post(value, 10 * S))).1.expect("it is new");
        member.told(at(300), &note);
    }
    while member.poll_change().is_some() {}
    let sync = |member: &mut Member, now| {
        member.handle_timeout(now);
        let requests = core::iter::from_fn(|| member.poll_request());
        requests.filter_map(|request| if let MemberRequest::Sync(sync) = request { Some(sync) } else { None }).last()
    };
    member.notice(at(400));
    assert_eq!(sync(&mut member, at(500)).map(|request| (request.run, request.heard)), Some((1, 3)));
    // One that has lost all in the same run of its store, and one of another run.
    let mut lost = Ledger::found(&limits(), LEASE, 1);
    lost.board(at(600), &ask(2, 9, "a", post(7, 10 * S)));
    member.notice(at(600));
    member.linked(at(600), 1, None);
    let request = sync(&mut member, at(900)).expect("it is linked anew");
    member.reply(at(901), &lost.sync(at(900), &request).expect("the first"));
    let told = core::iter::from_fn(|| member.poll_change()).any(|change| matches!(change, MemberChange::Told(_)));
    assert!(told, "its first note has a number that was heard before");
    member.linked(at(2_000), 2, None);
    assert_eq!(sync(&mut member, at(2_300)).map(|request| (request.run, request.heard)), Some((2, 0)));
}

#[test]
fn in_another_run_of_the_store_the_board_is_empty() {
    let mut ledger = Ledger::found(&limits(), LEASE, 1);
    ledger.board(at(0), &ask(1, 1, "a", post(1, 10 * S))).1.expect("it is new");
    ledger.board(at(0), &ask(1, 2, "canary", BoardStep::Take { lasts: 10 * S }));
    let (member, seq, run, quiet, weight, elapsed, heard) = (MemberId(9), 1, 2, None, 1, Duration::ZERO, 0);
    let stakes = vec![crate::fleet::Stake::default()];
    let request = SyncRequest { member, seq, run, quiet, weight, elapsed, heard, stakes };
    let reply = ledger.sync(at(100), &request).expect("the first");
    assert_eq!((reply.newest, reply.notes.len()), (0, 0));
    let waits = ledger.board(at(200), &ask(2, 1, "canary", BoardStep::Take { lasts: S })).0.waits;
    assert_eq!(waits, Duration::ZERO);
}
