//! Pages of several hosts, each an API in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use cookbook::scraper::{fetch, limiter, robot};
use http::Uri;
use paceline::Quota;
use paceline::testing::{MockAnswer, MockApi, block_on};

#[test]
fn each_host_is_asked_as_often_as_it_allows_and_one_that_is_down_holds_up_no_other() {
    let delays = [("slow.example", 10), ("fast.example", 2), ("down.example", 2)];
    let apis = delays.map(|(host, _)| (host, MockApi::new(Quota::per_second(100)).expect("a limit")));
    apis[2].1.answer_next((0..60).map(|_| MockAnswer::status(503)));
    let robots: BTreeMap<_, _> = delays
        .map(|(host, delay)| {
            (host.to_owned(), robot(&format!("User-agent: *\nCrawl-delay: {delay}\nDisallow: /private")))
        })
        .into();
    let apis = BTreeMap::from(apis);
    let pages = delays.iter().flat_map(|(host, _)| {
        (0..20).map(move |n| format!("https://{host}/{n}")).chain([format!("https://{host}/private/1")])
    });
    let pages: Vec<Uri> = pages.map(|page| page.parse().expect("an address")).collect();
    block_on(async {
        let limiter = limiter(&robots).expect("valid");
        let began = limiter.now();
        let get = async |page: &Uri| {
            let answer = apis[page.host().expect("a host")].call().await;
            if page.host() == Some("fast.example") {
                assert!(limiter.now() - began < Duration::from_secs(45), "it waits for itself alone");
            }
            answer
        };
        let fetched = fetch(&limiter, &robots, pages, get).await;
        assert_eq!(fetched.len(), 60, "none of the private pages");
        for (page, fetched) in fetched {
            let down = page.host() == Some("down.example");
            assert_eq!(fetched.expect("an answer").status(), if down { 503 } else { 200 }, "{page}");
        }
    });
    for (host, delay) in delays {
        apis[host].calls().assert_at_most(1, Duration::from_secs(delay));
    }
    assert_eq!((apis["slow.example"].calls().count(), apis["fast.example"].calls().count()), (20, 20));
}
