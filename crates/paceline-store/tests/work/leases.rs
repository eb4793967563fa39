//! Whose silence counts, and which lines of a lost worker are in doubt.

use paceline_store::blocks::{Departures, Held};

use crate::blocks::{Bench, offer};

fn leaving(held: Held, lines: &[u64]) -> Departures {
    Departures { leave: lines.iter().map(|line| (*line, held)).collect(), stay: Vec::new() }
}

#[tokio::test]
async fn silence_in_which_nobody_could_speak_is_nobodys() {
    let on = Bench::new(4, 2).await;
    on.stop_clock().await;
    let (one, other) = (on.worker("one").await, on.worker("other").await);
    let held = on.claim(one, 1).await[0].held;
    on.pass(30_000, other).await;
    assert_eq!(on.store.resume(one, &[held]).await.unwrap(), [], "one was silent while the other spoke");
    let one = on.worker("one again").await;
    assert_eq!(on.store.resume(one, &[held]).await.unwrap(), [held]);
    // The database is away for an hour.
    on.turn(3_600_000).await;
    assert!(on.store.heartbeat(other).await.unwrap().is_some());
    on.pass(29_000, other).await;
    assert_eq!(on.claim(other, 9).await.len(), 1, "the free one alone");
    assert!(on.store.lives(one).await.unwrap(), "it comes back last");
    on.pass(29_000, other).await;
    assert_eq!(on.store.heartbeat(one).await.unwrap(), Some(vec![held]));
    on.pass(30_000, other).await;
    assert!(!on.store.lives(one).await.unwrap(), "now it was silent alone");
    assert_eq!(on.claim(other, 9).await[0].held.first, held.first);
}

#[tokio::test]
async fn words_far_apart_are_no_speaking() {
    let on = Bench::new(1, 1).await;
    on.stop_clock().await;
    let (lost, next) = (on.worker("lost").await, on.worker("next").await);
    on.claim(lost, 1).await;
    for _ in 0..9 {
        on.turn(11_000).await;
        on.store.heartbeat(next).await.unwrap();
    }
    assert_eq!(on.claim(next, 1).await, []);
    on.pass(30_000, next).await;
    assert_eq!(on.claim(next, 1).await.len(), 1);
}

/// So long as one of them may be lost, what it has may come free.
#[tokio::test]
async fn a_claim_hears_for_how_long_others_with_lines_have_been_silent() {
    let on = Bench::new(2, 1).await;
    on.stop_clock().await;
    let (lost, next) = (on.worker("lost").await, on.worker("next").await);
    let silence = async || on.store.claim(next, 1).await.unwrap().unwrap().silence.as_millis();
    on.turn(5_000).await;
    assert_eq!(silence().await, 0, "no other has lines");
    on.store.heartbeat(lost).await.unwrap();
    on.claim(lost, 1).await;
    for heard in [5_000, 10_000] {
        on.pass(5_000, next).await;
        assert_eq!(silence().await, heard);
    }
    on.pass(20_000, next).await;
    let claim = on.store.claim(next, 1).await.unwrap().unwrap();
    assert_eq!((claim.silence.as_millis(), claim.blocks.len()), (0, 1), "it is lost");
}

#[tokio::test]
async fn a_word_waits_for_nothing_else_that_is_said() {
    let on = Bench::new(1, 1).await;
    let worker = on.worker("a").await;
    let held = on.claim(worker, 1).await[0].held;
    let lock = format!("BEGIN; SELECT FROM {}.block FOR UPDATE", on.schema);
    on.watch.batch_execute(&lock).await.unwrap();
    let results = [offer(held, 0, true, "done")];
    let mut hands_in = std::pin::pin!(on.offer(&results));
    tokio::select! {
        biased;
        _ = &mut hands_in => panic!("the block is locked"),
        lives = on.store.lives(worker) => assert!(lives.unwrap()),
    }
    on.watch.batch_execute("COMMIT").await.unwrap();
    assert_eq!(hands_in.await, 1);
}

#[tokio::test]
async fn lines_that_were_about_to_leave_are_in_doubt_and_no_others() {
    let on = Bench::new(6, 6).await;
    on.stop_clock().await;
    let (lost, next) = (on.worker("lost").await, on.worker("next").await);
    let held = on.claim(lost, 1).await[0].held;
    assert_eq!(on.store.depart(on.job, lost, &leaving(held, &[1, 2, 4])).await.unwrap(), [1, 2, 4]);
    let stays = Departures { leave: vec![(5, held)], stay: vec![(2, held)] };
    assert_eq!(on.store.depart(on.job, lost, &stays).await.unwrap(), [5]);
    assert!(on.store.in_doubt(lost).await.unwrap().is_empty(), "it knows itself");
    assert_eq!(on.offer(&[offer(held, 4, true, "done")]).await, 1);
    on.pass(30_000, next).await;
    let claim = on.store.claim(next, 1).await.unwrap().unwrap();
    assert_eq!((claim.in_doubt, claim.blocks[0].have.clone()), (vec![1, 5], vec![4]));
    assert_eq!(on.store.in_doubt(next).await.unwrap(), [1, 5], "also once it begins anew");
    let late = on.store.depart(on.job, lost, &leaving(held, &[0])).await.unwrap();
    assert!(late.is_empty(), "the block is another's");
    // Who sends failures again says that he knows what became of them.
    let now = claim.blocks[0].held;
    let failures: Vec<_> = [0, 1, 2].map(|line| offer(now, line, false, "unrecorded")).into();
    assert_eq!(on.offer(&failures).await, 3);
    assert_eq!(on.store.retry_failed(on.job, Some(&[1, 3])).await.unwrap(), 1, "line 3 has not failed");
    let claim = on.store.claim(next, 1).await.unwrap().unwrap();
    assert_eq!((claim.in_doubt, claim.blocks[0].have.clone()), (vec![5], vec![0, 2, 4]));
    let [status] = &on.store.jobs().await.unwrap()[..] else { panic!("one job") };
    assert_eq!((status.ok, status.failed, status.open), (1, 2, 1));
}

#[tokio::test]
async fn a_line_that_was_sent_again_counts_once_for_the_whole_job() {
    let on = Bench::new(6, 3).await;
    on.store.again(on.job, &[1, 2]).await.unwrap();
    on.store.again(on.job, &[2, 4]).await.unwrap();
    assert_eq!(on.store.jobs().await.unwrap()[0].again, 3);
    assert!(on.store.forget("requests").await.unwrap());
    on.store.again(on.job, &[2]).await.unwrap();
    let sql = format!("SELECT count(*) FROM {}.again", on.schema);
    assert_eq!(on.watch.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0), 0);
}
