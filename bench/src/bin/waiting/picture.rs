//! The picture of the page.

use std::time::Duration;

use paceline_chart::{Axis, Figure, Ink, Panel, Series};

use crate::SIZES;
use crate::ways::{Seen, WAYS};

/// The items of a job done over time, for the middle size; and by size, how long the worker was blocked and the job took.
pub(crate) fn figure(seen: &[[Seen; WAYS.len()]; SIZES.len()]) -> Figure {
    Figure::new("Where a retry waits")
        .note("One worker, calls of half a second; every tenth item fails once and waits 60 s. Virtual time.")
        .row(340, vec![over_time(&seen[1])])
        .row(
            320,
            vec![
                by_size(seen, "Worker blocked", "s", |seen| seen.blocked),
                by_size(seen, "Job done", "s", Seen::makespan),
            ],
        )
}

fn over_time(seen: &[Seen; WAYS.len()]) -> Panel {
    let end = seen.iter().map(|seen| seen.makespan().as_secs_f64()).fold(0.0, f64::max);
    let title = format!("A job of {}", SIZES[1]);
    let panel = Panel::new(
        &title,
        Axis::linear("time in s", 0.0, end),
        Axis::linear("items done", 0.0, SIZES[1] as f64).whole(),
    );
    each(panel, |way| {
        let mut points = vec![(0.0, 0.0)];
        for (before, at) in seen[way].ended.iter().enumerate() {
            points.extend([(at.as_secs_f64(), before as f64), (at.as_secs_f64(), before as f64 + 1.0)]);
        }
        points
    })
}

fn by_size(
    seen: &[[Seen; WAYS.len()]; SIZES.len()],
    title: &str,
    label: &str,
    figure: impl Fn(&Seen) -> Duration,
) -> Panel {
    let most = seen.iter().flatten().map(|seen| figure(seen).as_secs_f64()).fold(1.0, f64::max);
    let x = Axis::log_with_zero("items", SIZES[0] as f64, SIZES[SIZES.len() - 1] as f64);
    let panel = Panel::new(title, x, Axis::log_with_zero(label, 1.0, most));
    each(panel, |way| {
        let at = |(size, ways): (&usize, &[Seen; WAYS.len()])| (*size as f64, figure(&ways[way]).as_secs_f64());
        SIZES.iter().zip(seen).map(at).collect()
    })
}

/// A line for each way, as its number says.
fn each(panel: Panel, points: impl Fn(usize) -> Vec<(f64, f64)>) -> Panel {
    WAYS.iter().enumerate().fold(panel, |panel, (way, (name, _))| {
        let points = points(way);
        panel.with(match way {
            0 => Series::dashed(name, Ink::Vermillion, points),
            1 => Series::dotted(name, Ink::Purple, points),
            _ => Series::line(name, Ink::Blue, points),
        })
    })
}
