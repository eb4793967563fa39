//! Rounds of two candidates in turn, and a row for them.

use std::sync::{Arc, Barrier};

use paceline::Clock;

const ROUNDS: usize = 9;

/// What a row may show at most.
pub(crate) enum Bar {
    /// Of the peer's time.
    Ratio(f64),
    /// Nanoseconds of Paceline itself.
    Nanos(f64),
    /// Of a figure that has no peer.
    Most(f64),
    None,
}

pub(crate) fn heading() {
    println!(
        "{:<52}{:>10}{:>10}{:>12}{:>8}",
        "ns per call, medians of rounds", "governor", "Paceline", "x governor", "bar"
    );
}

/// Measures both in turn.
pub(crate) fn row(name: &str, bar: Bar, peer: impl Fn() -> f64, own: impl Fn() -> f64) {
    let rounds: Vec<_> = (0..ROUNDS).map(|_| (peer(), own())).collect();
    let median = |figure: fn(&(f64, f64)) -> f64| {
        let mut figures: Vec<_> = rounds.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures[ROUNDS / 2]
    };
    line(name, Some(median(|round| round.0)), median(|round| round.1), Some(median(|round| round.1 / round.0)), bar);
}

pub(crate) fn line(name: &str, peer: Option<f64>, own: f64, ratio: Option<f64>, bar: Bar) {
    let shown = |figure: Option<f64>| figure.map_or(String::new(), |figure| format!("{figure:.2}"));
    let bar = match bar {
        Bar::Ratio(most) => verdict(ratio.unwrap_or(f64::NAN), most, "x"),
        Bar::Nanos(most) => verdict(own, most, " ns"),
        Bar::Most(most) => verdict(own, most, ""),
        Bar::None => String::new(),
    };
    println!("{name:<52}{:>10}{:>10}{:>12}  {bar}", shown(peer), shown(Some(own)), shown(ratio));
}

fn verdict(figure: f64, most: f64, unit: &str) -> String {
    format!("{most}{unit} {}", if figure <= most { "met" } else { "MISSED" })
}

/// Nanoseconds per call, of so many calls of what `prepare` returns.
pub(crate) fn timed<Work: Fn(u64)>(calls: u64, prepare: impl Fn() -> Work) -> impl Fn() -> f64 {
    move || {
        let work = prepare();
        let clock = Clock::new();
        let start = clock.now();
        work(calls);
        (clock.now() - start).as_nanos() as f64 / calls as f64
    }
}

/// Wall time per call when so many threads share the calls: from the first call of any thread to the last of any.
pub(crate) fn shared<Work>(threads: u64, calls: u64, prepare: impl Fn() -> Work) -> impl Fn() -> f64
where
    Work: Fn(u64) + Send + Sync + 'static,
{
    move || {
        let (work, barrier) = (Arc::new(prepare()), Arc::new(Barrier::new(threads as usize)));
        let clock = Arc::new(Clock::new());
        let start = || {
            let (work, barrier, clock) = (work.clone(), barrier.clone(), clock.clone());
            std::thread::spawn(move || {
                barrier.wait();
                let start = clock.now();
                work(calls / threads);
                (start, clock.now())
            })
        };
        let workers: Vec<_> = (0..threads).map(|_| start()).collect();
        let times: Vec<_> = workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect();
        let (start, end) = (times.iter().map(|time| time.0).min(), times.iter().map(|time| time.1).max());
        let lasted = end.expect("some threads") - start.expect("some threads");
        lasted.as_nanos() as f64 / (calls / threads * threads) as f64
    }
}

/// Bytes of memory that the process has written, counted page by page: the sum in `statm` may be late by half a megabyte, and has
/// pages of the program itself.
pub(crate) fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap_or_default();
    1_024 * line.trim().trim_end_matches("kB").trim().parse().unwrap_or(0)
}
