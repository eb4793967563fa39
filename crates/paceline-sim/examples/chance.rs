//! The pace `auto` where calls fail by chance, whatever its rate: one table for each status.
//!
//! `chance [SEEDS]`: goodput, means over that many seeds, 3 without it. Rows are what stands under the dice, columns the
//! share that is turned away by chance. The waste counts only refusals that a slower rate would have prevented.

use std::error::Error;

use paceline_sim::{Measures, Scenario, Setup, compare};

const UNDER: [&str; 6] = ["n50", "n500", "b20", "w60", "c8", "tpm"];
const SHARES: [&str; 6] = ["0.003", "0.01", "0.02", "0.05", "0.10", "0.20"];

fn main() -> Result<(), Box<dyn Error>> {
    let seeds = std::env::args().nth(1).map_or(Ok(3), |seeds| seeds.parse())?;
    let under = std::env::args().nth(2);
    let under: Vec<_> = UNDER.iter().filter(|name| under.as_deref().is_none_or(|only| only.contains(**name))).collect();
    let run = |names: &[String]| -> Result<Vec<Measures>, Box<dyn Error>> {
        let scenarios: Vec<_> = names.iter().map(|name| Scenario::named(name)).collect::<Result<_, _>>()?;
        Ok(compare(&scenarios, std::slice::from_ref(&Setup::new("auto")), seeds, 2, |_| {})?)
    };
    let mean = |runs: &[Measures], name: &str, of: fn(&Measures) -> f64| {
        let of_it: Vec<f64> = runs.iter().filter(|run| run.scenario == name).map(of).collect();
        of_it.iter().sum::<f64>() / of_it.len() as f64
    };
    for (status, suffix) in [(503, ""), (429, ""), (503, "-told"), (429, "-told")] {
        println!("{status}{suffix:6} {}", SHARES.map(|share| format!("{share:>15}")).concat());
        for under in under
            .iter()
            .filter(|_| suffix.is_empty())
            .chain(under.iter().filter(|name| !suffix.is_empty() && name.starts_with('n')))
        {
            let name = |share: &str| format!("noise-{status}-{share}-{under}{suffix}");
            let names: Vec<_> = SHARES.iter().map(|share| name(share)).collect();
            let runs = run(&names)?;
            let cell = |name: &String| {
                format!("{:>8.3}/{:.4}", mean(&runs, name, |run| run.goodput), mean(&runs, name, |run| run.waste))
            };
            println!("{under:9} {}", names.iter().map(cell).collect::<String>());
        }
    }
    let jobs =
        ["job-503-0", "job-503-0.005", "job-503-0.02", "job-503-0.05", "job-503-0.20", "job-429-0.01", "job-429-0.02"];
    let firsts =
        ["first-429-0", "first-503-1", "first-503-2", "first-503-5", "first-429-1", "first-429-2", "first-429-5"];
    for names in [jobs, firsts] {
        let runs = run(&names.map(str::to_owned))?;
        let clean = mean(&runs, names[0], |run| run.makespan);
        for name in names {
            println!("{name:15} {:.2} times the clean time", mean(&runs, name, |run| run.makespan) / clean);
        }
    }
    let bursts = ["burst-503-n500", "burst-503-b20", "burst-503-c8", "burst-429-b20"].map(str::to_owned);
    let runs = run(&bursts)?;
    for name in bursts {
        println!("{name:15} {:.3}", mean(&runs, &name, |run| run.goodput));
    }
    Ok(())
}
