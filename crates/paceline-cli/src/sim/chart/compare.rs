//! Policies beside each other: what they get done against what they waste.

use paceline_chart::{Axis, Figure, Ink, Panel, Series, Shape};
use paceline_sim::policy;

use crate::sim::table::Mean;
use crate::text;

/// Who gives up more of the items than this is told apart: a job that drops work has less to do.
const KEEPS_ALL: f64 = 0.001;

/// One point for each policy.
pub(crate) fn figure(means: &[Mean], scenarios: usize, clients: u32, hints: &str) -> Figure {
    let [ours, others, losing] = [Kind::Ours, Kind::Other, Kind::Losing].map(|kind| {
        let of_kind = means.iter().filter(|mean| Kind::of(mean) == kind);
        of_kind.map(|mean| (mean.waste, mean.goodput, name(mean))).collect::<Vec<_>>()
    });
    let wastes = means.iter().map(|mean| mean.waste).filter(|waste| *waste > 0.0);
    let (least, most) = wastes.fold((1e-2, 1.0), |(least, most), waste| (waste.min(least), waste.max(most)));
    let best = means.iter().map(|mean| mean.goodput).fold(1.0, f64::max);
    let x = Axis::log_with_zero("waste: refused calls per success", f64::max(least, 1e-4), most);
    let y = Axis::linear("of what the oracle got admitted in the same time", 0.0, best * 1.05);
    let mut panel = Panel::new("Goodput", x, y);
    for (series, ink, shape, points) in [
        ("this project", Ink::Blue, Shape::Circle, ours),
        ("others", Ink::Grey, Shape::Triangle, others),
        ("leave items undone", Ink::Vermillion, Shape::Cross, losing),
    ] {
        if !points.is_empty() {
            panel = panel.with(Series::named(series, ink, shape, points));
        }
    }
    let clients = text::counted(u64::from(clients), "client");
    let scenarios = text::counted(scenarios as u64, "scenario");
    Figure::new("What policies get done, and what they waste")
        .note(&format!("Means over {scenarios}, {clients}, hints: {hints}. The best place is at the upper left."))
        .row(520, vec![panel])
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ours,
    Other,
    Losing,
}

impl Kind {
    fn of(mean: &Mean) -> Self {
        match mean {
            mean if mean.lost + mean.undone > KEEPS_ALL => Self::Losing,
            mean if policy::OURS.contains(&mean.policy.as_str()) => Self::Ours,
            _ => Self::Other,
        }
    }
}

fn name(mean: &Mean) -> String {
    match (mean.lost + mean.undone) * 100.0 {
        share if share > 100.0 * KEEPS_ALL => format!("{} ({share:.0} % not done)", mean.policy),
        _ => mean.policy.clone(),
    }
}
