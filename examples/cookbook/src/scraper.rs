//! Pages of many hosts. Each host is a scope with the crawl delay of its robots.txt, and one that is down holds up no other.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http::{Response, Uri};
use paceline::{ConfigError, Dimension, Limiter, PacerConfig, Quota, RunError};
use texting_robots::Robot;

const AGENT: &str = "paceline-cookbook";

/// Between two calls to a host that asks for nothing.
const POLITE: Duration = Duration::from_secs(1);

/// The answer to a page, or why there is none.
pub type Fetched = Result<Response<String>, RunError<io::Error>>;

/// A limiter of so many hosts, each with its robots.txt. At most 64 calls are in flight over all of them.
pub fn limiter(robots: &BTreeMap<String, Robot>) -> Result<Limiter, ConfigError> {
    let mut config = PacerConfig::default().with_in_flight(64).with_max_retries(2);
    for (host, robot) in robots {
        let delay = robot.delay.and_then(|delay| Duration::try_from_secs_f32(delay).ok());
        let delay = delay.filter(|delay| !delay.is_zero()).unwrap_or(POLITE);
        config = config.with_tier(host.as_str(), Quota::sliding(Dimension::Requests, 1, delay));
    }
    Limiter::new(config)
}

/// The rules of one host for us.
pub fn robot(robots_txt: &str) -> Robot {
    Robot::new(AGENT, robots_txt.as_bytes()).expect("any text is a robots.txt")
}

/// Fetches the pages that robots.txt allows. `get` sends one request, with a client of your choice.
pub async fn fetch(
    limiter: &Limiter,
    robots: &BTreeMap<String, Robot>,
    pages: Vec<Uri>,
    get: impl AsyncFn(&Uri) -> io::Result<Response<String>>,
) -> Vec<(Uri, Fetched)> {
    let allowed =
        |page: &Uri| page.host().and_then(|host| robots.get(host)).is_some_and(|robot| robot.allowed(page.path()));
    let fetch = async |page: Uri| {
        let fetched = limiter.run(|| get(&page)).scope(page.host().unwrap_or_default()).await;
        (page, fetched)
    };
    stream::iter(pages)
        .filter(|page| std::future::ready(allowed(page)))
        .map(fetch)
        .buffer_unordered(1_000)
        .collect()
        .await
}
