//! Figures of simulations for people, in 80 columns.

use std::fmt::Write as _;

use paceline_sim::{Measures, Median};

/// The figures of one run, a line each.
pub(crate) fn of_one(run: &Measures) -> String {
    let seconds = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.1} s"));
    let clients = if run.clients == 1 { "1 client".to_owned() } else { format!("{} clients", run.clients) };
    format!(
        "{} under {}, {clients}, hints {}, seed {}\n  \
         goodput   {:.3}  of what the oracle got admitted in the same time\n  \
         waste     {:.4}  refused calls per success\n  \
         lost      {:.3}  of the items given up, {:.3} not done at the cut-off\n  \
         makespan  {:.2}  times the oracle's, p99 of an item {:.1} s\n  \
         Jain      {:.3}  1 is equal shares\n  \
         capacity up {}, down {}\n",
        run.scenario,
        run.policy,
        run.hints,
        run.seed,
        run.goodput,
        run.waste,
        run.lost,
        run.undone,
        run.makespan,
        run.p99_s,
        run.jain,
        seconds(run.up_s),
        seconds(run.down_s),
    )
}

/// The figures of a row.
type Figures = [f64; 6];

/// A row for each policy with the means over the scenarios, and with `each` one for each scenario before it.
pub(crate) fn of_many(medians: &[Median], policies: &[String], each: bool, markdown: bool) -> String {
    let mut table = head(markdown);
    for policy in policies {
        let of_policy: Vec<&Median> = medians.iter().filter(|median| median.policy == *policy).collect();
        if each {
            of_policy.iter().for_each(|median| table += &row(policy, &median.scenario, figures(median), markdown));
        }
        let count = of_policy.len().max(1) as f64;
        let mut mean = Figures::default();
        for median in of_policy {
            mean.iter_mut().zip(figures(median)).for_each(|(sum, figure)| *sum += figure / count);
        }
        table += &row(policy, "mean", mean, markdown);
    }
    table
}

fn figures(median: &Median) -> Figures {
    [median.goodput, median.waste, median.lost, median.undone, median.makespan, median.jain]
}

fn head(markdown: bool) -> String {
    match markdown {
        true => "| policy | scenario | goodput | waste | lost | undone | makespan | Jain |\n\
                 |---|---|---:|---:|---:|---:|---:|---:|\n"
            .to_owned(),
        false => format!(
            "{:12} {:11} {:>8} {:>9} {:>6} {:>6} {:>9} {:>6}\n",
            "policy", "scenario", "goodput", "waste", "lost", "undone", "makespan", "Jain"
        ),
    }
}

fn row(policy: &str, scenario: &str, figures: Figures, markdown: bool) -> String {
    let [goodput, waste, lost, undone, makespan, jain] = figures;
    let mut row = String::new();
    let written = if markdown {
        writeln!(
            row,
            "| {policy} | {scenario} | {goodput:.3} | {waste:.4} | {lost:.3} | {undone:.3} | {makespan:.2} | {jain:.3} |"
        )
    } else {
        writeln!(
            row,
            "{policy:12} {scenario:11} {goodput:8.3} {waste:9.4} {lost:6.3} {undone:6.3} {makespan:9.2} {jain:6.3}"
        )
    };
    written.expect("a string takes everything");
    row
}
