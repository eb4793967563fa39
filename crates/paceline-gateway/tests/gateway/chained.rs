//! Gateways behind one another: the bounds of a request hold for them together.

use std::sync::{Arc, Mutex};

use axum::extract::Request;
use paceline_gateway::Bounds;

use crate::OK;
use crate::support::{Served, answer, counted, upstream};

const BACKOFF: &str = "retry = { base = \"1ms\", cap = \"2ms\" }";

#[tokio::test]
async fn gateways_behind_one_another_share_one_bound_on_retries() {
    let (api, calls) = counted(move |_| answer(500, &[], "broken")).await;
    let behind = Served::all(&[("v1", api, BACKOFF)], Bounds::default());
    let at = behind.url.trim_start_matches("http://").trim_end_matches("/v1").parse().unwrap();
    let served = Served::new(at, BACKOFF, Bounds::default());
    // The first call finds out what answers there, and counts what was spent there all the same.
    for (asked, expected) in [("7", 8), ("2", 3), ("0", 1)] {
        let before = calls.count();
        let got = served.post().header("x-paceline-retries", asked).send().await.unwrap();
        let header = |name: &str| got.headers()[name].to_str().unwrap().to_owned();
        assert_eq!((got.status().as_u16(), header("x-should-retry")), (500, "false".to_owned()));
        assert_eq!((calls.count() - before, header("x-paceline-retries")), (expected, (expected - 1).to_string()));
        [&served, &behind].iter().for_each(|served| served.limiter.resume(None));
    }
}

#[tokio::test]
async fn a_gateway_tells_the_one_behind_it_what_a_request_may_still_take() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let api = {
        let told = Arc::clone(&told);
        upstream(move |request: Request| {
            let field = |name| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
            let mut told = told.lock().unwrap();
            told.push((field("x-paceline-deadline"), field("x-paceline-retries")));
            // The third is that of another server.
            let made = if told.len() < 3 { "x-paceline-attempts" } else { "x-other" };
            let answer = answer(200, &[(made, "1")], OK);
            async move { answer }
        })
        .await
    };
    let served = Served::new(api, "", Bounds::default());
    for _ in 0..4 {
        let got = served.post().header("x-paceline-deadline", "5s").header("x-paceline-retries", "3");
        assert_eq!(got.send().await.unwrap().status(), 200);
    }
    let told = told.lock().unwrap();
    let [(None, None), (Some(deadline), Some(retries)), (Some(_), Some(_)), (None, None)] = &told[..] else {
        panic!("{told:?}")
    };
    let millis: u64 = deadline.trim_end_matches("ms").parse().unwrap();
    assert!((1..=5_000).contains(&millis) && deadline.ends_with("ms"), "{deadline}");
    assert_eq!(retries, "3");
}
