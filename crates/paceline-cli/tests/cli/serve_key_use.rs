//! What clients have used of their limits, as those who run `paceline serve` see it.

use rustix::process::Signal;

use crate::serve::{Gateway, send, serve};
use crate::serve_keys::{keys, post_with, told};
use crate::support::{Job, Reply, Server};

#[test]
fn what_a_client_has_used_is_listed_while_the_gateway_runs_and_after_it() {
    let (job, server) = (Job::new(0), Server::new(|_| Reply::ok()));
    let key = told(&mut keys(&job, &["add", "a", "--limit", "5 per 1h,40 per 24h"]));
    told(&mut keys(&job, &["add", "free"]));
    let used = |times: u64| format!("used: {times} of 5 requests per 1h, {times} of 40 requests per 24h (as of 20");
    let listed = || told(&mut keys(&job, &["list"]));
    assert!(!listed().contains("used"), "{}", listed());
    let mut gateway = Gateway::start(&mut serve(&job, &server, &["--state", "state"]));
    (0..2).for_each(|_| assert_eq!(post_with(&gateway.url, &key).0, 200));
    // What a call takes is noted before it leaves.
    assert!(listed().contains(&used(2)), "{}", listed());
    let reader = told(&mut keys(&job, &["add", "prometheus", "--paths", "/healthz"]));
    gateway.signal(Signal::HUP);
    while post_with(&gateway.url, &reader).0 != 403 {
        std::thread::yield_now();
    }
    let metrics = send(&format!("{}/metrics", gateway.url), |client, url| client.get(url).bearer_auth(&reader)).1;
    assert!(
        metrics.contains(
            "paceline_client_limit_remaining{client=\"a\",dimension=\"requests\",window_seconds=\"3600\"} 3\n"
        ),
        "{metrics}"
    );
    gateway.signal(Signal::TERM);
    assert_eq!(gateway.ended(), Some(0));
    assert!(listed().contains(&used(2)) && listed().matches("used").count() == 1, "{}", listed());
}
