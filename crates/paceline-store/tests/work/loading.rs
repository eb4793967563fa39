//! How the lines of a job come into the store.

use std::time::Duration;

use paceline_store::blocks::{BlockStore, Joined, NewBlock};

use crate::blocks::{Bench, load, more, settings};

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn hosts_that_load_one_input_together_append_each_line_once() {
    let on = Bench::new(0, 1).await;
    let (one, other) = (on.another().await, on.another().await);
    let name = |store: BlockStore| async move {
        let Joined::Job(job) = store.join("both", &settings()).await.unwrap() else { panic!("the same settings") };
        load(&store, job.id, 100, 7).await;
        job.id
    };
    let (first, second) = tokio::join!(tokio::spawn(name(one)), tokio::spawn(name(other)));
    let job = first.unwrap();
    assert_eq!(job, second.unwrap());
    let worker = on.store.register(job, "a", LEASE).await.unwrap().unwrap();
    let claim = on.store.claim(worker, 100).await.unwrap().unwrap();
    let found: Vec<(u64, String)> =
        claim.blocks.iter().map(|block| (block.held.first, String::from_utf8(block.body.clone()).unwrap())).collect();
    let expected: Vec<(u64, String)> =
        (0..15).map(|n| (n * 7, format!("{}+{}", n * 7, if n == 14 { 2 } else { 7 }))).collect();
    assert_eq!(found, expected);
    assert!(on.store.append(job, 100, more()).await.unwrap() == Some(100), "a complete job grows no more");
}

#[tokio::test]
async fn blocks_are_appended_together_or_not_at_all() {
    let on = Bench::new(0, 1).await;
    let Joined::Job(job) = on.store.join("many", &settings()).await.unwrap() else { panic!("the same settings") };
    let blocks = |lines: &[u64]| -> Vec<NewBlock> {
        lines.iter().map(|lines| NewBlock { lines: *lines, body: lines.to_string().into() }).collect()
    };
    assert_eq!(on.store.append(job.id, 0, blocks(&[3, 1, 2])).await.unwrap(), Some(6));
    assert_eq!(on.store.append(job.id, 3, blocks(&[1, 2])).await.unwrap(), Some(6), "they are there");
    assert_eq!(on.store.append(job.id, 6, blocks(&[4])).await.unwrap(), Some(10));
    let worker = on.store.register(job.id, "a", LEASE).await.unwrap().unwrap();
    let claim = on.store.claim(worker, 9).await.unwrap().unwrap();
    let found: Vec<(u64, u64, &[u8])> =
        claim.blocks.iter().map(|block| (block.held.first, block.lines, &*block.body)).collect();
    assert_eq!(found, [(0, 3, &b"3"[..]), (3, 1, b"1"), (4, 2, b"2"), (6, 4, b"4")]);
}
