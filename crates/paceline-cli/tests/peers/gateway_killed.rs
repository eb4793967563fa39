//! `paceline serve` is killed twice while it holds 500 requests before HAProxy, which counts in windows of its own: the next
//! gateway goes on where the killed one was, or HAProxy would refuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use paceline::Clock;
use reqwest::Client;
use tokio::sync::{Notify, watch};

use super::counting::Counting;
use super::gateway::{BODY, Gateway};
use super::haproxy::{self, Haproxy};
use super::measure;
use crate::bounded::TestBound;

const REQUESTS: usize = 500;

/// As all that is told of HAProxy's limit.
const TOLD: &str = "192 per 10s";

/// The gateway is killed once so many are answered: in the middle of a window, and where one is used up.
const KILLS: [usize; 2] = [100, 384];

const SERVICE: Duration = Duration::from_millis(30);

/// The calls in flight that a kill may cut off, of which a client knows nothing.
const CUT: u64 = 64;

#[test]
fn haproxy_refuses_almost_nothing_where_a_gateway_that_holds_500_requests_is_killed() {
    let _bound = TestBound::new();
    let counting = Counting::start(SERVICE);
    let proxy = Haproxy::start(&counting, 10);
    let mut gateway = Gateway::start(&proxy.base_url(), &format!("[upstream.first]\nlimits = [\"{TOLD}\"]\n"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (clock, answered) = (Clock::new(), Arc::new(Answered::default()));
    let began = clock.now();
    let client = paceline_http::client_to(&gateway.url).pool_max_idle_per_host(0).build().expect("a client");
    runtime.block_on(async {
        let (begins, begun) = watch::channel(0);
        let asked: Vec<_> = (0..REQUESTS)
            .map(|_| tokio::spawn(ask(client.clone(), gateway.url.clone(), Arc::clone(&answered), begun.clone())))
            .collect();
        for kill in KILLS {
            answered.reaches(kill).await;
            gateway.kill_and_begin();
            begins.send_modify(|gateways| *gateways += 1);
        }
        for asked in asked {
            assert_eq!(asked.await.expect("no panic"), 200, "every request is answered");
        }
    });
    let (sends, refused) = proxy.counts();
    let seconds = (clock.now() - began).as_secs_f64();
    let name = "gateway killed twice before haproxy, told";
    measure::pace(name, REQUESTS, sends, refused, seconds, haproxy::oracle(REQUESTS), None);
    measure::assert_few_refused(sends, refused);
    let most = REQUESTS as u64 + CUT * KILLS.len() as u64;
    assert!((REQUESTS as u64..=most).contains(&counting.arrivals()), "{} arrived", counting.arrivals());
}

/// How many requests are answered.
#[derive(Default)]
struct Answered {
    count: AtomicUsize,
    more: Notify,
}

impl Answered {
    fn add(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.more.notify_one();
    }

    async fn reaches(&self, count: usize) {
        while self.count.load(Ordering::Relaxed) < count {
            self.more.notified().await;
        }
    }
}

/// Asks until there is an answer, each gateway once: a request whose gateway is gone goes to the next one.
async fn ask(client: Client, url: String, answered: Arc<Answered>, mut begun: watch::Receiver<usize>) -> u16 {
    let url = format!("{url}/first/v1/chat/completions");
    loop {
        let gateway = *begun.borrow_and_update();
        match client.post(&url).body(BODY).send().await {
            Ok(answer) => {
                answered.add();
                return answer.status().as_u16();
            }
            Err(_) => drop(begun.wait_for(|next| *next > gateway).await.expect("one more begins")),
        }
    }
}
