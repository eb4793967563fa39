//! One run over time: what the provider admitted and refused beside what it could have admitted.

use paceline_chart::{Axis, Figure, Ink, Panel, Series};
use paceline_sim::{Measures, Scenario, Span, Trace};

use crate::text;

/// Points of a line, at most: spans are put together until they are no more.
const POINTS: usize = 240;

/// Arrivals above so many times the capacity are cut off, so that what lies below can be seen.
const HIGHEST: f64 = 4.0;

/// Calls per second, calls under way, and the way to the end.
pub(crate) fn figure(scenario: &Scenario, measures: &Measures, trace: &Trace) -> Figure {
    let bins = bins(trace);
    let (calls, beyond) = calls(&bins);
    let clients = text::counted(u64::from(measures.clients), "client");
    let title = format!("{} under {}, {clients}", measures.scenario, measures.policy);
    let provider = if scenario.about.is_empty() { "of no description" } else { &scenario.about };
    let calls_of = scenario.until.map_or_else(
        || text::counted(u64::from(scenario.items), "call"),
        |until| format!("Calls for {}", text::duration(until)),
    );
    let job = format!("{calls_of} to a provider: {provider}");
    let figure = Figure::new(&title).note(&job).note(&figures(measures));
    let figure = match beyond {
        Some(most) => figure.note(&format!("Higher than drawn: up to {most:.0} calls a second arrived.")),
        None => figure,
    };
    figure.row(290, vec![calls]).row(170, vec![in_flight(&bins)]).row(200, vec![progress(&bins)])
}

fn figures(measures: &Measures) -> String {
    let Measures { goodput, waste, lost, undone, makespan, .. } = measures;
    let mut title = format!("goodput {goodput:.3}, waste {waste:.4}, makespan {makespan:.2}");
    if *lost > 0.0 {
        title += &format!(", {:.0} % given up", lost * 100.0);
    }
    if *undone > 0.0 {
        title += &format!(", {:.0} % not done at the cut-off", undone * 100.0);
    }
    title
}

/// Spans put together.
struct Bin {
    start: f64,
    end: f64,
    /// Per second.
    admitted: f64,
    refused: f64,
    /// At its start.
    capacity: f64,
    /// The most.
    in_flight: f64,
    /// At its end.
    last: Span,
    /// Sums since the beginning.
    admitted_so_far: f64,
    oracle_so_far: f64,
}

fn bins(trace: &Trace) -> Vec<Bin> {
    let together = together(trace);
    let (mut admitted_so_far, mut oracle_so_far) = (0.0, 0.0);
    let bin = |spans: &[Span]| {
        let sum = |of: fn(&Span) -> u32| spans.iter().map(of).map(f64::from).sum::<f64>();
        let (admitted, refused) = (sum(|span| span.admitted), sum(|span| span.refused));
        admitted_so_far += admitted;
        oracle_so_far += sum(|span| span.oracle);
        let seconds = trace.step.as_secs_f64() * spans.len() as f64;
        let start = spans[0].start.as_nanos() as f64 * 1e-9;
        let last = spans[spans.len() - 1].clone();
        let in_flight = f64::from(spans.iter().map(|span| span.in_flight).max().unwrap_or_default());
        let (admitted, refused) = (admitted / seconds, refused / seconds);
        let (end, capacity) = (start + seconds, spans[0].capacity);
        Bin { start, end, admitted, refused, capacity, in_flight, last, admitted_so_far, oracle_so_far }
    };
    trace.spans.chunks(together).map(bin).collect()
}

/// How many spans are put together: few points in all, and some calls in each.
fn together(trace: &Trace) -> usize {
    const CALLS: f64 = 4.0;
    const LEAST_POINTS: usize = 40;
    let spans = trace.spans.len();
    let capacity = trace.spans.iter().map(|span| span.capacity).fold(0.0, f64::max);
    let filled = (CALLS / (capacity * trace.step.as_secs_f64())).ceil() as usize;
    filled.min(spans / LEAST_POINTS).max(spans.div_ceil(POINTS)).max(1)
}

/// A value that holds for each bin, as a line of steps.
fn steps(bins: &[Bin], value: impl Fn(&Bin) -> f64) -> Vec<(f64, f64)> {
    bins.iter().flat_map(|bin| [(bin.start, value(bin)), (bin.end, value(bin))]).collect()
}

/// The same where not every bin has it: a line for each stretch that has, the first of them named.
fn stretches(panel: Panel, name: &str, bins: &[Bin], value: impl Fn(&Bin) -> Option<f64>) -> Panel {
    let known = bins.chunk_by(|a, b| value(a).is_some() == value(b).is_some());
    let lines = known.filter(|bins| value(&bins[0]).is_some());
    lines.zip(std::iter::once(name).chain(std::iter::repeat(""))).fold(panel, |panel, (bins, name)| {
        panel.with(Series::line(name, Ink::Purple, steps(bins, |bin| value(bin).unwrap_or_default())).thin())
    })
}

/// The panel of calls per second, and the most that arrived where that is more than it shows.
fn calls(bins: &[Bin]) -> (Panel, Option<f64>) {
    let most = |of: fn(&Bin) -> f64| bins.iter().map(of).fold(0.0, f64::max);
    let arrived = most(|bin| bin.admitted + bin.refused);
    let capacity = most(|bin| bin.capacity);
    // Where nothing limits the calls, their number does.
    let bounded = capacity > 0.0 && capacity.is_finite();
    let top = if bounded { (arrived * 1.05).clamp(capacity * 1.25, capacity * HIGHEST) } else { arrived * 1.05 };
    let admitted = steps(bins, |bin| bin.admitted);
    let all = steps(bins, |bin| bin.admitted + bin.refused);
    let ground = steps(bins, |_| 0.0);
    let panel = Panel::new("Calls", time(bins), Axis::linear("per second", 0.0, top))
        .with(Series::area("admitted", Ink::Blue, admitted.clone(), ground))
        .with(Series::area("refused", Ink::Vermillion, all, admitted));
    let panel = match bounded {
        true => panel.with(Series::dashed("capacity", Ink::Black, steps(bins, |bin| bin.capacity))),
        false => panel,
    };
    let panel = stretches(panel, "the policy's own rate", bins, |bin| rate(&bin.last));
    (panel, (arrived > top).then_some(arrived))
}

/// What a policy lets out per second; a delay lets one call out in its time.
fn rate(span: &Span) -> Option<f64> {
    span.pace.rate.or(span.pace.delay.map(|delay| 1.0 / delay.as_secs_f64()))
}

fn in_flight(bins: &[Bin]) -> Panel {
    let most = bins.iter().map(|bin| bin.in_flight).fold(4.0, f64::max);
    let top = most * 1.25;
    let in_flight = steps(bins, |bin| bin.in_flight);
    let panel = Panel::new("Calls under way", time(bins), Axis::linear("", 0.0, top).whole()).with(Series::area(
        "in flight",
        Ink::Blue,
        in_flight,
        steps(bins, |_| 0.0),
    ));
    // A limit that is never near need not be seen.
    let limit = |bin: &Bin| bin.last.pace.limit.map(f64::from).filter(|limit| *limit <= top);
    stretches(panel, "the policy's own limit", bins, limit)
}

fn progress(bins: &[Bin]) -> Panel {
    let line = |value: fn(&Bin) -> f64| {
        std::iter::once((0.0, 0.0)).chain(bins.iter().map(|bin| (bin.end, value(bin)))).collect::<Vec<_>>()
    };
    let top = bins.last().map_or(1.0, |bin| bin.admitted_so_far.max(bin.oracle_so_far));
    Panel::new("Admitted so far", time(bins).labelled("time in s"), Axis::linear("calls", 0.0, top * 1.05).whole())
        .with(Series::dashed("the oracle", Ink::Black, line(|bin| bin.oracle_so_far)))
        .with(Series::line("the policy", Ink::Blue, line(|bin| bin.admitted_so_far)))
}

fn time(bins: &[Bin]) -> Axis {
    Axis::linear("", 0.0, bins.last().map_or(1.0, |bin| bin.end))
}
