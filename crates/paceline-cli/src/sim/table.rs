//! Figures of simulations for people, in 80 columns.

use std::fmt::Write as _;

use paceline_sim::{Figures, Measures, Median, Phase, Setup};

use crate::text;

/// The figures of one run, a line each.
pub(crate) fn of_one(run: &Measures) -> String {
    let mut table = figures_of_one(run);
    if let Some(why) = run.too_good {
        writeln!(table, "  too good: {why}").expect("a string takes everything");
    }
    if !run.phases.is_empty() {
        table += "\n   seconds  workers  capacity  admitted  refused  used  80 % after  worst second\n";
        run.phases.iter().for_each(|phase| table += &of_phase(phase));
    }
    table
}

fn of_phase(phase: &Phase) -> String {
    let Phase { from_s, to_s, workers, capacity, admitted, refused, used, worst_second, reached_s } = phase;
    let seconds = format!("{from_s}-{to_s}");
    let reached = reached_s.map_or("-".to_owned(), |seconds| format!("{seconds} s"));
    format!(
        "{seconds:>10} {workers:8} {capacity:>7.0}/s {admitted:9} {refused:8} {used:5.2} {reached:>11} {worst_second:>13}\n"
    )
}

fn figures_of_one(run: &Measures) -> String {
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
        text::printable(&run.scenario),
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

/// The means of a policy over the scenarios, with so many clients.
#[derive(Clone, Debug)]
pub(crate) struct Mean {
    pub(crate) policy: String,
    pub(crate) clients: u32,
    pub(crate) figures: Figures,
}

impl Mean {
    /// One for each setup of which there is a run, in their order.
    pub(crate) fn of_each(setups: &[Setup], medians: &[Median]) -> Vec<Self> {
        setups.iter().filter_map(|setup| Self::of(setup, medians)).collect()
    }

    fn of(setup: &Setup, medians: &[Median]) -> Option<Self> {
        let Setup { policy, clients, .. } = setup;
        let of_setup = |median: &&Median| median.policy == *policy && median.clients == *clients;
        let figures = Figures::mean(medians.iter().filter(of_setup))?;
        Some(Self { policy: policy.clone(), clients: *clients, figures })
    }
}

/// A row for each policy and number of clients with the means over the scenarios, and with `each` one for each scenario
/// before it.
pub(crate) fn of_many(medians: &[Median], means: &[Mean], each: bool, markdown: bool) -> String {
    let mut table = String::new();
    for of_clients in means.chunk_by(|a, b| a.clients == b.clients) {
        table += if table.is_empty() { "" } else { "\n" };
        table += &head(of_clients[0].clients, markdown);
        for mean in of_clients {
            let Mean { policy, clients, .. } = mean;
            let rows = medians.iter().filter(|one| each && one.policy == *policy && one.clients == *clients);
            rows.for_each(|median| table += &row(policy, &text::printable(&median.scenario), median.into(), markdown));
            table += &row(policy, "mean", mean.figures, markdown);
        }
    }
    table
}

/// A line for each result that is too good to be true.
pub(crate) fn too_good(medians: &[Median]) -> String {
    let found = medians.iter().filter_map(|median| {
        let Median { scenario, policy, clients, too_good, .. } = median;
        let clients = text::counted(u64::from(*clients), "client");
        Some(format!("{policy} in {}, {clients}, is too good: {}\n", text::printable(scenario), (*too_good)?))
    });
    found.collect()
}

fn head(clients: u32, markdown: bool) -> String {
    let clients = text::counted(u64::from(clients), "client");
    match markdown {
        true => format!(
            "| policy, {clients} | scenario | goodput | waste | lost | undone | makespan | Jain |\n\
             |---|---|---:|---:|---:|---:|---:|---:|\n"
        ),
        false => format!(
            "{clients}\n{:18} {:11} {:>8} {:>9} {:>5} {:>6} {:>8} {:>6}\n",
            "policy", "scenario", "goodput", "waste", "lost", "undone", "makespan", "Jain"
        ),
    }
}

fn row(policy: &str, scenario: &str, figures: Figures, markdown: bool) -> String {
    let Figures { goodput, waste, lost, undone, makespan, jain } = figures;
    let mut row = String::new();
    let written = if markdown {
        writeln!(
            row,
            "| {policy} | {scenario} | {goodput:.3} | {waste:.4} | {lost:.3} | {undone:.3} | {makespan:.2} | {jain:.3} |"
        )
    } else {
        writeln!(
            row,
            "{policy:18} {scenario:11} {goodput:8.3} {waste:9.4} {lost:5.3} {undone:6.3} {makespan:8.2} {jain:6.3}"
        )
    };
    written.expect("a string takes everything");
    row
}
