//! The figures of a fleet beside what it has to reach, one line each; ends with an error when one is missed.
//!
//! `fleet [STORIES]`: that many stories of faults, 10,000 without it.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use paceline_sim::{Demand, Fencing, FleetJob, fleet_story, fleet_story_of_places, fleet_use};

/// Stories that the wrong way to free a share is tried with.
const WRONG: u64 = 200;

fn main() -> Result<ExitCode, std::num::ParseIntError> {
    let stories = std::env::args().nth(1).map_or(Ok(10_000), |stories| stories.parse())?;
    let mut judge = Judge { missed: false };
    for (name, story) in [("", fleet_story as Story), (" under a limit on the calls in flight", fleet_story_of_places)]
    {
        let (broken, worst) = broken(stories, story, Fencing::ByLease);
        let name = format!("{stories} stories of faults{name}: broken");
        judge.verdict(&name, broken as f64, "0", broken == 0 && worst == 0);
    }
    let (wrong, worst) = broken(WRONG, fleet_story, Fencing::ByLastReport);
    let name = format!("{WRONG} with shares freed by the last report (by up to {worst} units): broken");
    judge.verdict(&name, wrong as f64, "at least 1", wrong > 0);
    for (units, seconds, every, bar) in
        [(600, 60, 30, 0.97), (100, 10, 30, 0.97), (100, 2, 30, 0.9), (100, 1, 30, 0.9), (100, 1, 5, 0.9)]
    {
        let demand = Demand::Moves { every: Duration::from_secs(every) };
        let time = Duration::from_secs(240);
        let job = FleetJob { units, window: Duration::from_secs(seconds), members: 20, weights: &[1], demand, time };
        judge.uses(&format!("demand that moves every {every} s"), &job, bar);
    }
    let alike: &[u64] = &[1];
    for (units, seconds, members, weights, bar) in [
        (600, 60, 10, alike, 0.99),
        (600, 60, 50, alike, 0.99),
        (100, 1, 20, alike, 0.99),
        (60, 60, 40, alike, 0.97),
        (20, 1, 30, alike, 0.97),
        (600, 60, 12, &[1, 2, 4], 0.99),
        (100, 1, 20, &[1, 16], 0.99),
    ] {
        let window = Duration::from_secs(seconds);
        let time = if units < members as u64 * 2 { 20 * window } else { 3 * window };
        let job = FleetJob { units, window, members, weights, demand: Demand::Equal, time };
        judge.shares(&job, bar);
    }
    Ok(if judge.missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

type Story = fn(u64, Fencing) -> u64;

/// How many stories broke the limit, and by how many units at most.
fn broken(stories: u64, story: Story, fencing: Fencing) -> (u64, u64) {
    let (next, broken, worst) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let tell = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= stories {
                return;
            }
            let over = story(seed, fencing);
            if over > 0 {
                if fencing == Fencing::ByLease {
                    println!("story {seed} exceeds the limit by {over}");
                }
                broken.fetch_add(1, Ordering::Relaxed);
                worst.fetch_max(over, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(tell);
        tell();
    });
    (broken.into_inner(), worst.into_inner())
}

struct Judge {
    missed: bool,
}

impl Judge {
    fn uses(&mut self, name: &str, job: &FleetJob, bar: f64) {
        let figures = fleet_use(job, 1);
        let name = format!("{name}, {} per {:?}, {} members: used", job.units, job.window, job.members);
        self.verdict(&name, figures.used, &format!("at least {bar}"), figures.used >= bar && figures.over == 0);
    }

    fn shares(&mut self, job: &FleetJob, bar: f64) {
        let figures = fleet_use(job, 1);
        let FleetJob { units, window, members, weights, .. } = job;
        let name = format!("equal demand, {units} per {window:?}, {members} members of weights {weights:?}");
        self.verdict(&format!("{name}: jain"), figures.jain, &format!("at least {bar}"), figures.jain >= bar);
        println!("measure fleet: {name}: used={:.4} no bar", figures.used);
        self.missed |= figures.over > 0;
    }

    fn verdict(&mut self, name: &str, value: f64, bar: &str, met: bool) {
        self.missed |= !met;
        let verdict = if met { "met" } else { "MISSED" };
        println!("measure fleet: {name}={value:.4} bar: {bar} {verdict}");
    }
}
