//! Policies beside each other: what they get done against what they waste.

use paceline_chart::{Axis, Figure, Ink, Panel, Series, Shape};
use paceline_sim::policy;

use crate::sim::table::Mean;
use crate::text;

/// A policy that gives up a larger share of the items is marked: a job that drops work has less to do.
const KEEPS_ALL: f64 = 0.001;

/// One point for each policy, and a panel for each number of clients.
pub(crate) fn figure(means: &[Mean], scenarios: usize, hints: &str) -> Figure {
    let by_clients: Vec<&[Mean]> = means.chunk_by(|a, b| a.clients == b.clients).collect();
    let clients = |means: &[Mean]| text::counted(u64::from(means[0].clients), "client");
    let all: Vec<String> = by_clients.iter().map(|means| clients(means)).collect();
    let scenarios = text::counted(scenarios as u64, "scenario");
    let figure = Figure::new("What policies get done, and what they waste").note(&format!(
        "Means over {scenarios}, {}, hints: {hints}. The best place is at the upper left.",
        all.join(" and ")
    ));
    by_clients.iter().zip(&all).fold(figure, |figure, (means, clients)| {
        let title = if all.len() == 1 { "Goodput".to_owned() } else { format!("Goodput, {clients}") };
        figure.row(520, vec![panel(means, &title)])
    })
}

fn panel(means: &[Mean], title: &str) -> Panel {
    let [ours, others, losing] = [Kind::Ours, Kind::Other, Kind::Losing].map(|kind| {
        let of_kind = means.iter().filter(|mean| Kind::of(mean) == kind);
        of_kind.map(|mean| (mean.figures.waste, mean.figures.goodput, name(mean))).collect::<Vec<_>>()
    });
    let wastes = means.iter().map(|mean| mean.figures.waste).filter(|waste| *waste > 0.0);
    let (least, most) = wastes.fold((1e-2, 1.0), |(least, most), waste| (waste.min(least), waste.max(most)));
    let best = means.iter().map(|mean| mean.figures.goodput).fold(1.0, f64::max);
    let x = Axis::log_with_zero("waste: refused calls per success", f64::max(least, 1e-4), most);
    let y = Axis::linear("of what the oracle got admitted in the same time", 0.0, best * 1.05);
    let mut panel = Panel::new(title, x, y);
    for (series, ink, shape, points) in [
        ("this project", Ink::Blue, Shape::Circle, ours),
        ("others", Ink::Grey, Shape::Triangle, others),
        ("leave items undone", Ink::Vermillion, Shape::Cross, losing),
    ] {
        if !points.is_empty() {
            panel = panel.with(Series::named(series, ink, shape, points));
        }
    }
    panel
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
            mean if mean.figures.lost + mean.figures.undone > KEEPS_ALL => Self::Losing,
            mean if policy::OURS.contains(&mean.policy.as_str()) => Self::Ours,
            _ => Self::Other,
        }
    }
}

fn name(mean: &Mean) -> String {
    match (mean.figures.lost + mean.figures.undone) * 100.0 {
        share if share > 100.0 * KEEPS_ALL => format!("{} ({share:.0} % not done)", mean.policy),
        _ => mean.policy.clone(),
    }
}
