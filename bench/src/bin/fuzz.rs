//! Answers that nobody sends: `cargo run --release -p paceline-bench --bin fuzz -- SECONDS [SEED]`.
//!
//! Every recorded answer of the provider tests is changed at random, in its status, its headers and its body, and read as
//! every provider's. No reading may panic, ask for a wait above 366 days, or take longer than its size can explain: a
//! long body is made of a short one again and again, so that anything quadratic shows. The corpus is the recordings; the
//! seed repeats a run.

use std::fs;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use paceline::Clock;
use paceline::provider::{Answer, Dialect, Provider, TokenRatio, collect, joined, read, remainder};
use paceline_core::{Rng, Timestamp};

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/paceline/src/provider/fixtures");
const LONGEST_WAIT: Duration = Duration::from_secs(366 * 86_400);
/// A megabyte may take so long on a busy machine; something quadratic takes minutes.
const LONGEST_TIME: Duration = Duration::from_secs(5);

/// What is put where it does not belong.
const SCRAPS: [&str; 24] = [
    "retry after ",
    "try again in ",
    "limit 1",
    "requested 9",
    "limit: 0",
    "1e999",
    "-1",
    "18446744073709551616",
    "NaN",
    "null",
    "{\"error\":",
    "[[[[[[[[",
    "\"code\":",
    "data: ",
    "event: error\n",
    "\n\n",
    "\u{0}",
    "2026-11-20 12:00:00 UTC",
    "9999999999999999999s",
    "h1m",
    "\\u0000",
    "\"details\":[",
    "}",
    ";w=1,\"",
];

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("SECONDS and SEED are numbers"));
    let (seconds, seed) = (args.next().unwrap_or(10), args.next().unwrap_or(1));
    let (corpus, mut rng, clock) = (corpus(), Rng::new(seed), Clock::new());
    let (start, mut count, mut slowest) = (clock.now(), 0_u64, Duration::ZERO);
    while clock.now() - start < Duration::from_secs(seconds) {
        let base = &corpus[below(&mut rng, corpus.len())];
        let answer = base.changed(&mut rng, count.is_multiple_of(500));
        let before = clock.now();
        answer.check(&mut rng);
        let took = clock.now() - before;
        assert!(took < LONGEST_TIME, "{took:?} for {} bytes: {answer:?}", answer.body.len());
        slowest = slowest.max(took);
        count += 1;
    }
    println!(
        "{count} answers from {} recordings, seed {seed}, in {seconds} s; the slowest took {slowest:?}",
        corpus.len()
    );
}

#[derive(Clone, Debug)]
struct Changed {
    status: u16,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

impl Changed {
    fn changed(&self, rng: &mut Rng, long: bool) -> Self {
        let mut answer = self.clone();
        if below(rng, 4) == 0 {
            answer.status = 100 + below(rng, 600) as u16;
        }
        for _ in 0..below(rng, 4) {
            if let Some(index) = (!answer.headers.is_empty()).then(|| below(rng, answer.headers.len())) {
                let mut value = answer.headers[index].1.clone();
                mutate(rng, &mut value);
                let name = answer.headers[below(rng, self.headers.len())].0.clone();
                answer.headers.push((name, value));
            }
        }
        for _ in 0..below(rng, 6) {
            mutate(rng, &mut answer.body);
        }
        if long && !answer.body.is_empty() {
            let from = below(rng, answer.body.len());
            let part = answer.body[from..].to_vec();
            while answer.body.len() < 1 << 20 {
                answer.body.extend(&part);
            }
        }
        answer
    }

    fn check(&self, rng: &mut Rng) {
        let field = |(name, value): &(String, Vec<u8>)| {
            Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_bytes(value).ok()?))
        };
        let mut headers = HeaderMap::new();
        for (name, value) in self.headers.iter().filter_map(field) {
            headers.append(name, value);
        }
        let provider = Provider::ALL[below(rng, Provider::ALL.len())];
        let now = Timestamp::from_millis(rng.next_u64() as i64);
        let answer = Answer { status: self.status, headers: &headers, body: &self.body, path: "/v1/messages" };
        let reading = read(provider, &answer, now);
        assert!(reading.wait.is_none_or(|wait| wait <= LONGEST_WAIT), "{self:?}\n{reading:?}");
        let words = reading.words.as_deref().unwrap_or_default();
        assert!(words.len() < 1_000 && !words.contains(char::is_control), "{self:?}\n{reading:?}");
        reading.outcome();
        collect(&answer);
        Dialect::from(provider).charge(answer.path, &self.body, &TokenRatio::default());
        let _ = (remainder(&self.body, &self.body), joined(&self.body, &self.body));
    }
}

fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = below(rng, bytes.len() + 1);
    match below(rng, 6) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, rng.next_u64() as u8),
        2 => {
            bytes.splice(at..at, SCRAPS[below(rng, SCRAPS.len())].bytes());
        }
        3 if at < bytes.len() => bytes[at] ^= 1 << below(rng, 8),
        4 if at < bytes.len() => {
            bytes.remove(at);
        }
        _ => {
            let part = bytes[at..bytes.len().min(at + 40)].to_vec();
            bytes.splice(at..at, part);
        }
    }
}

fn below(rng: &mut Rng, most: usize) -> usize {
    (rng.next_u64() % most.max(1) as u64) as usize
}

/// Status, headers and body of every recording.
fn corpus() -> Vec<Changed> {
    let files = fs::read_dir(CORPUS).expect("the recordings are in the repository");
    let mut paths: Vec<_> = files.map(|file| file.expect("readable").path()).collect();
    paths.sort();
    let texts: Vec<String> = paths.iter().map(|path| fs::read_to_string(path).expect("text")).collect();
    texts.iter().flat_map(|text| text.split("example: ").skip(1)).map(recording).collect()
}

fn recording(text: &str) -> Changed {
    let text = text.rsplit_once("\n=> ").map_or(text, |(answer, _)| answer);
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines().skip(1);
    let status = lines.next().and_then(|status| status.parse().ok()).expect("a status");
    let fields = lines.filter_map(|line| line.split_once(": "));
    let headers = fields.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec())).collect();
    Changed { status, headers, body: body.as_bytes().to_vec() }
}
