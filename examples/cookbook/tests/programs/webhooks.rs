//! Deliveries to endpoints in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use cookbook::webhooks::{Delivery, deliver, limiter};
use futures_util::future::join_all;
use http::{Request, Response};
use paceline::Quota;
use paceline::testing::{MockAnswer, MockApi, block_on};

#[test]
fn an_endpoint_that_is_down_holds_up_no_other_and_an_event_keeps_its_id() {
    let names = ["https://a.example/hook", "https://b.example/hook", "https://gone.example/hook"];
    let endpoints = BTreeMap::from(names.map(|name| (name, MockApi::new(Quota::per_second(1_000)).expect("a limit"))));
    endpoints[names[1]].answer_next((0..100).map(|_| MockAnswer::status(503)));
    endpoints[names[2]].answer_next([MockAnswer::status(410)]);
    let deliveries: Vec<_> = (0..41)
        .map(|n| Delivery {
            id: format!("event-{n}"),
            endpoint: names[if n == 40 { 2 } else { n % 2 }].into(),
            body: "{}".into(),
        })
        .collect();
    let arrived = Mutex::new(BTreeMap::<String, BTreeSet<String>>::new());
    block_on(async {
        let limiter = limiter().expect("valid");
        let began = limiter.now();
        let post = async |request: Request<String>| -> io::Result<Response<String>> {
            let endpoint = request.uri().to_string();
            let answer = endpoints[&*endpoint].call().await?;
            if answer.status() == 200 {
                let id = request.headers()["webhook-id"].to_str().expect("text").to_owned();
                assert!(arrived.lock().expect("no panic").entry(endpoint).or_default().insert(id), "delivered twice");
            }
            Ok(answer)
        };
        let ends = join_all(deliveries.iter().map(async |delivery| {
            let end = deliver(&limiter, delivery, &post).await.expect("an answer").status().as_u16();
            (delivery.endpoint.as_str(), end, limiter.now() - began)
        }))
        .await;
        for (endpoint, status, after) in ends {
            assert_eq!(status, if endpoint == names[2] { 410 } else { 200 });
            assert!(endpoint != names[0] || after < Duration::from_secs(1), "{after:?}");
        }
    });
    let arrived = arrived.into_inner().expect("no panic");
    assert_eq!((arrived[names[0]].len(), arrived[names[1]].len()), (20, 20));
    assert_eq!(endpoints[names[2]].calls().count(), 1);
}
