//! The figures of the pace `auto` beside what it has to reach, one line each; ends with an error when one is missed.
//!
//! `learnt [SEEDS]`: medians over that many seeds, 5 without it, then means over the scenarios. Refusals per success are
//! the waste. Retries have no bound and the breaker is off, so that the pace alone is seen; "as shipped" stand the same
//! with both as they are configured by default.

use std::error::Error;
use std::process::ExitCode;

use paceline_core::{Concurrency, Pace, PacerConfig};
use paceline_sim::{Measures, Median, Scenario, Setup, compare, medians};

/// Calls in flight of a process, where the user configures no other number.
const IN_FLIGHT: u32 = 512;

/// Providers drawn at random.
const RANDOM: u64 = 500;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let seeds = std::env::args().nth(1).map_or(Ok(5), |seeds| seeds.parse())?;
    let mut judge = Judge { seeds, missed: false };
    let long: Vec<_> = Scenario::development().map(Scenario::named).collect::<Result<_, _>>()?;
    let short: Vec<_> = Scenario::short_jobs().map(Scenario::named).collect::<Result<_, _>>()?;
    let one = Setup::new("auto");
    let shared = Setup { clients: 16, share: true, ..one.clone() };
    let apart = Setup { share: false, ..shared.clone() };
    let hinted = |hints: &str| Setup { hints: hints.to_owned(), ..one.clone() };

    let unhinted = judge.figures(&long, &one)?;
    judge.group("1 client, nothing told", &unhinted, 0.972, 0.0095);
    let of_shared = judge.figures(&long, &shared)?;
    judge.group("16 processes, one shared controller", &of_shared, 0.972, 0.0108);
    judge.at_least("the same: Jain", mean(&of_shared, |run| run.jain), 0.99);
    let of_apart = judge.figures(&long, &apart)?;
    judge.group("16 independent processes", &of_apart, 0.935, 0.022);
    judge.at_least("the same: Jain", mean(&of_apart, |run| run.jain), 0.73);
    judge.shipped("1 client, nothing told", &long, &one)?;
    judge.shipped("16 processes, one shared controller", &long, &shared)?;
    judge.shipped("16 independent processes", &long, &apart)?;
    judge.shipped("short jobs, 1 client", &short, &one)?;
    let jobs = judge.figures(&short, &one)?;
    judge.group("short jobs, 1 client", &jobs, 0.91, 0.045);
    judge.at_most("the same: makespan", mean(&jobs, |run| run.makespan), 1.16);
    for hints in ["hdr", "llm"] {
        let figures = judge.figures(&long, &hinted(hints))?;
        judge.group(&format!("truthful headers ({hints})"), &figures, 0.975, 0.004);
    }
    for hints in ["hdr-lie", "ra-ceil", "ra-lie-1"] {
        let figures = judge.figures(&long, &hinted(hints))?;
        let goodput = mean(&unhinted, |run| run.goodput) - 0.005;
        judge.group(&format!("lying or rounded hints ({hints})"), &figures, goodput, 0.009 + 0.005);
    }
    let lied = judge.figures(&long, &hinted("ra-lie-60"))?;
    judge.at_least("a false Retry-After of 60 s, obeyed: goodput", mean(&lied, |run| run.goodput), 0.48);
    for (name, runs) in [("1 client", &unhinted), ("16 shared", &of_shared)] {
        let worst = runs.iter().min_by(|a, b| a.goodput.total_cmp(&b.goodput)).ok_or("no scenario")?;
        judge.at_least(&format!("worst of {name} ({}): goodput", worst.scenario), worst.goodput, 0.88);
    }
    judge.questions(&one)?;
    judge.random(&one)?;
    Ok(if judge.missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Judge {
    seeds: u64,
    missed: bool,
}

impl Judge {
    fn figures(&self, scenarios: &[Scenario], setup: &Setup) -> Result<Vec<Median>, Box<dyn Error>> {
        Ok(medians(&compare(scenarios, std::slice::from_ref(setup), self.seeds, 2, |_| {})?))
    }

    fn group(&mut self, name: &str, runs: &[Median], goodput: f64, waste: f64) {
        for Median { scenario, too_good, .. } in runs {
            let Some(why) = too_good else { continue };
            println!("measure learnt: {name}: {scenario}: {why} MISSED");
            self.missed = true;
        }
        self.at_least(&format!("{name}: goodput"), mean(runs, |run| run.goodput), goodput);
        self.at_most(&format!("{name}: waste"), mean(runs, |run| run.waste), waste);
        self.at_most(&format!("{name}: lost"), mean(runs, |run| run.lost), 0.0);
    }

    /// Without a bar: what a user gets who configures nothing.
    fn shipped(&mut self, name: &str, scenarios: &[Scenario], setup: &Setup) -> Result<(), Box<dyn Error>> {
        let concurrency = Concurrency::Fixed { max: IN_FLIGHT };
        let pacer = PacerConfig { pace: Pace::Auto, concurrency, ..PacerConfig::default() };
        let runs = self.figures(scenarios, &Setup { pacer: Some(pacer), ..setup.clone() })?;
        let [goodput, waste] = [mean(&runs, |run| run.goodput), mean(&runs, |run| run.waste)];
        let [lost, jain, makespan] =
            [mean(&runs, |run| run.lost), mean(&runs, |run| run.jain), mean(&runs, |run| run.makespan)];
        println!(
            "measure learnt: as shipped, {name}: goodput={goodput:.4} waste={waste:.4} lost={lost:.6} jain={jain:.4} \
             makespan={makespan:.4} no bar"
        );
        for run in runs.iter().filter(|run| run.lost > 0.0) {
            println!("measure learnt: as shipped, {name}: {} lost={:.6}", run.scenario, run.lost);
        }
        Ok(())
    }

    fn questions(&mut self, setup: &Setup) -> Result<(), Box<dyn Error>> {
        let scenarios: Vec<_> = Scenario::questions().map(Scenario::named).collect::<Result<_, _>>()?;
        for run in self.figures(&scenarios, setup)? {
            match run.scenario.as_str() {
                "step-5x" => {
                    self.at_most("a limit five times as high: seconds until it is used", run.up_s.unwrap_or(1e3), 28.0);
                    self.at_most("back again: seconds until 5 % is refused", run.down_s.unwrap_or(1e3), 5.0);
                }
                "w6-50" => self.at_most("60 per 6 s, 300 items: refused per item", run.waste, 0.1),
                "c5-500" => self.at_most("cold start at 5 in flight, 500 calls: refused per item", run.waste, 0.06),
                "b10-1" => self.at_most("10 per second, nothing stored, 300 calls: refused per item", run.waste, 0.05),
                "tpm-wide" => self.at_least("tokens alone, over two decades: goodput", run.goodput, 0.97),
                "tpm-thrice" => self.at_least("the same, then thrice as many: goodput", run.goodput, 0.97),
                "rpm-wide" => self.at_least("calls alone, of such tokens: goodput", run.goodput, 0.99),
                other => println!("measure learnt: {other}: goodput={:.3} waste={:.4} no bar", run.goodput, run.waste),
            }
        }
        Ok(())
    }

    fn random(&mut self, setup: &Setup) -> Result<(), Box<dyn Error>> {
        let named = |seed| Scenario::named(&format!("random-{seed}"));
        let scenarios: Vec<_> = (1..=RANDOM).map(named).collect::<Result<_, _>>()?;
        let runs = compare(&scenarios, std::slice::from_ref(setup), 1, 2, |_| {})?;
        let mean = |of: fn(&Measures) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
        self.at_least("random providers: goodput", mean(|run| run.goodput), 0.93);
        self.at_most("random providers: waste", mean(|run| run.waste), 0.015);
        self.at_most("random providers: lost", mean(|run| run.lost), 0.0);
        for (run, scenario) in runs.iter().zip(&scenarios).filter(|(run, _)| run.goodput < 0.5 || run.undone > 0.0) {
            let Measures { scenario: name, goodput, waste, undone, .. } = run;
            println!(
                "measure learnt: {name}, {}: goodput={goodput:.3} waste={waste:.4} undone={undone:.3}",
                scenario.about
            );
        }
        Ok(())
    }

    fn at_least(&mut self, name: &str, value: f64, bar: f64) {
        self.verdict(name, value, bar, value >= bar, "at least");
    }

    fn at_most(&mut self, name: &str, value: f64, bar: f64) {
        self.verdict(name, value, bar, value <= bar, "at most");
    }

    fn verdict(&mut self, name: &str, value: f64, bar: f64, met: bool, how: &str) {
        self.missed |= !met;
        let verdict = if met { "met" } else { "MISSED" };
        println!("measure learnt: {name}={value:.4} bar: {how} {bar:.4} {verdict}");
    }
}

fn mean(runs: &[Median], of: fn(&Median) -> f64) -> f64 {
    runs.iter().map(of).sum::<f64>() / runs.len() as f64
}
