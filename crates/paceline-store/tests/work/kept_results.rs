//! Which result of a line is kept, and how they are read.

use paceline_store::blocks::Offer;

use crate::blocks::{Bench, offer, successes};

/// Lines that a host was never heard of again with fail for another one where they must not be sent twice.
#[tokio::test]
async fn a_late_success_takes_the_place_of_a_failure_and_a_failure_that_of_none() {
    let on = Bench::new(4, 4).await;
    on.stop_clock().await;
    let lost = on.worker("lost").await;
    let block = on.claim(lost, 1).await.remove(0);
    let next = on.worker("next").await;
    on.pass(30_000, next).await;
    let again = on.claim(next, 1).await.remove(0);
    let failures: Vec<Offer> = (0..4).map(|line| offer(again.held, line, line == 3, "unrecorded")).collect();
    assert_eq!(on.offer(&failures).await, 4);
    let late: Vec<Offer> = [0, 0, 1, 3].map(|line| offer(block.held, line, true, "late")).into();
    assert_eq!(on.offer(&late).await, 2);
    assert_eq!(on.offer(&late).await, 0, "they may be said twice");
    assert_eq!(on.offer(&[offer(again.held, 0, false, "again")]).await, 0);
    let kept: Vec<(bool, Vec<u8>)> = on.results().await.into_iter().map(|result| (result.ok, result.body)).collect();
    let expected = [(true, "late"), (true, "late"), (false, "unrecorded"), (true, "unrecorded")];
    assert_eq!(kept, expected.map(|(ok, body)| (ok, body.as_bytes().to_vec())));
    let [status] = &on.store.jobs().await.unwrap()[..] else { panic!("one job") };
    assert_eq!((status.ok, status.failed, status.open), (3, 1, 0));
}

#[tokio::test]
async fn a_page_of_results_ends_where_they_are_long() {
    const LONG: usize = 3 << 20;
    let on = Bench::new(6, 6).await;
    let worker = on.worker("a").await;
    let block = on.claim(worker, 1).await.remove(0);
    for long in successes(&block, &"x".repeat(LONG)) {
        assert_eq!(on.offer(&[long]).await, 1);
    }
    let page = on.store.results(on.job, 0, 100).await.unwrap();
    assert_eq!(
        page.iter().map(|result| result.line).collect::<Vec<_>>(),
        [0, 1, 2],
        "eight megabytes and what began before"
    );
    on.assert_each_once(6).await;
}
