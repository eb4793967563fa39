//! Providers drawn from a seed: every kind of limit, over three decades of rates.

use std::fmt::Write as _;

use paceline_core::Rng;
use paceline_model::lognormal;

use super::draw::Draw;
use super::noise;

/// What a job may take at the provider's rate, in seconds.
const SECONDS: (f64, f64) = (300.0, 3_000.0);

/// The most items, unless they are done before the shortest job is: what is worth seeing happens before.
const MOST_ITEMS: f64 = 100_000.0;

/// The scenario `random-SEED`, as a file; `noisy-SEED` is the same provider, which also turns calls away by chance.
pub(super) fn text(seed: u64, noisy: bool) -> String {
    let mut draw = Draw(Rng::new(seed ^ 0x5EED_0F50_1EAD_ED01));
    let rate = draw.between(2.0, 2_000.0);
    let p50 = draw.between(0.003, 2.0);
    let p99 = p50 * draw.between(1.5, 10.0);
    let sigma = lognormal::sigma(p50, p99);
    let mean = p50 * libm::exp(sigma * sigma / 2.0);
    let kind = draw.one_of(&["bucket", "fixed", "sliding", "punishing", "places", "overload", "tokens", "mixed"]);
    let items = (rate * draw.between(SECONDS.0, SECONDS.1)).min(MOST_ITEMS.max(rate * SECONDS.0));
    // Few enough to be met, and at least one is left when the schedule takes most of them away.
    let places = (rate * mean).clamp(5.0, 400.0);

    let mut limits = String::new();
    let mut provider = String::new();
    let period = draw.between(1.0, 60.0);
    let mut limit = |shape: &str, counts: &str, per: f64, limit: f64, more: &str| {
        let limit = limit.max(1.0);
        write!(
            limits,
            "\n[[limit]]\nshape = \"{shape}\"\ncounts = \"{counts}\"\nlimit = {limit:.0}\nper = {per:.3}\n{more}"
        )
        .expect("a string takes everything");
    };
    let stored = |of: f64| format!("burst = {:.0}\n", of.max(1.0));
    match kind {
        "bucket" => limit("bucket", "requests", 60.0, 60.0 * rate, &stored(rate * draw.between(0.1, 60.0))),
        "fixed" => limit("fixed", "requests", period, rate * period, "phase = 0\n"),
        "sliding" => limit("sliding", "requests", period, rate * period, ""),
        "punishing" => limit("sliding", "requests", period, rate * period, "counts_refused = true\n"),
        "places" => provider = format!("concurrency = {places:.0}\n"),
        "overload" => {
            let queue = draw.between(1.2, 3.0);
            provider = format!("overload = {{ capacity = {places:.0}, queue = {queue:.2}, degrade = 0.15 }}\n");
        }
        "tokens" => {
            let tokens = 1_200.0 * rate;
            limit("bucket", "tokens", 60.0, 60.0 * tokens, &stored(tokens * draw.between(10.0, 60.0)));
        }
        _ => {
            limit("bucket", "requests", 60.0, 60.0 * rate, &stored(rate * draw.between(0.5, 20.0)));
            provider = format!("concurrency = {:.0}\n", places * draw.between(0.7, 2.0) + 1.0);
        }
    }
    if kind == "tokens" {
        provider.push_str("cost = { p50 = 800, p99 = 4000 }\n");
    }
    let changes = draw.one_of(&["steady", "steady", "steady", "steps", "sine", "tenants"]);
    let change = change(changes, &mut draw, items / rate);
    if changes == "tenants" && !limits.is_empty() {
        let base = rate * draw.between(0.05, 0.3);
        writeln!(provider, "tenants = {{ base = {base:.3}, burst = {base:.3}, on = 30, period = 90 }}")
            .expect("a string takes everything");
    }
    let (name, chance) = if noisy { ("noisy", noise::drawn(&mut draw)) } else { ("random", String::new()) };
    format!(
        "name = \"{name}-{seed}\"\nabout = \"{kind}, {changes}, about {rate:.3} calls a second\"\nitems = {items:.0}\n\
         service = {{ p50 = {p50:.4}, p99 = {p99:.4}, cap = {:.3} }}\n{provider}{limits}{change}{chance}",
        8.0 * p99
    )
}

/// How the limits change in a job of so many seconds.
fn change(kind: &str, draw: &mut Draw, seconds: f64) -> String {
    match kind {
        "steps" => {
            let (first, second) = (draw.between(0.4, 2.5), draw.between(0.4, 2.5));
            let (third, rest) = (seconds / 3.0, 2.0 * seconds / 3.0);
            let steps =
                format!("{{ at = {third:.0}, factor = {first:.2} }}, {{ at = {rest:.0}, factor = {second:.2} }}");
            format!("\n[schedule]\nsteps = [{steps}]\n")
        }
        "sine" => {
            format!("\n[schedule]\nsine = {{ amplitude = 0.5, period = {:.0} }}\n", draw.between(60.0, 300.0))
        }
        _ => String::new(),
    }
}
