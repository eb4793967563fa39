//! `paceline sim responsive`: one worker under the responsive delay.

use paceline_core::{ConfigError, ResponsiveConfig};
use paceline_sim::{Course, Requirement};
use serde_json::json;

use super::args::ResponsiveArgs;
#[cfg(feature = "charts")]
use super::chart;
use super::files::{self, Picture};
use crate::exit::Failure;
use crate::output;
use crate::text;

/// What one worker does under a delay, against one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) config: ResponsiveConfig,
    pub(super) requirement: Requirement,
    pub(super) requests: usize,
    pub(super) seed: u64,
}

impl Trial {
    pub(super) fn course(&self) -> Result<Course, ConfigError> {
        Course::of(self.config, self.requirement, self.requests, self.seed)
    }
}

/// Runs it, writes the files that are asked for and prints a summary.
pub(super) fn command(args: &ResponsiveArgs) -> Result<(), Failure> {
    let pictures = || args.svg.iter().chain(&args.png);
    files::expect_places(args.csv.as_deref().into_iter().chain(pictures().map(Picture::path)))?;
    let trial = trial(args);
    let course = trial.course().map_err(Failure::refused)?;
    if let Some(path) = &args.csv {
        let rows = course.requests.iter().enumerate().map(|(index, request)| {
            [index + 1, nanos(request.delay), usize::from(request.succeeded)].map(|number| number.to_string())
        });
        files::table(path, ["request", "delay_ns", "succeeded"], rows)?;
    }
    #[cfg(feature = "charts")]
    if pictures().next().is_some() {
        let figure = chart::responsive::figure(&trial, &course).map_err(Failure::refused)?;
        pictures().try_for_each(|picture| picture.save(&figure))?;
    }
    output::print(|out| match args.json {
        true => writeln!(out, "{}", summary(&course)),
        false => out.write_all(describe(&course).as_bytes()),
    })
}

fn trial(args: &ResponsiveArgs) -> Trial {
    let config = ResponsiveConfig {
        initial: args.initial,
        max: args.max,
        max_randomization: args.max_randomization,
        up: args.up,
        down: args.down,
        randomization: args.randomization,
        threshold: args.threshold,
        compat: args.compat,
        ..ResponsiveConfig::default()
    };
    Trial { config, requirement: args.require, requests: args.requests as usize, seed: args.seed }
}

fn nanos(time: std::time::Duration) -> usize {
    usize::try_from(time.as_nanos()).unwrap_or(usize::MAX)
}

fn summary(course: &Course) -> serde_json::Value {
    let millis = |time: std::time::Duration| time.as_nanos() as f64 / 1e6;
    let counters = &course.counters;
    json!({
        "requests": course.requests.len(),
        "succeeded": course.succeeded(),
        "went_up": counters.went_up,
        "went_down": counters.went_down,
        "sleep_ms": millis(counters.sleep_time),
        "climbed_to_ms": course.climbed_to().map(millis),
        "spacing_ms": course.spacing().map(millis),
        "current_delay_ms": millis(counters.current_delay),
    })
}

fn describe(course: &Course) -> String {
    let counters = &course.counters;
    let (requests, succeeded) = (course.requests.len() as u64, course.succeeded() as u64);
    let or_never = |time: Option<std::time::Duration>| time.map_or("-".to_owned(), text::millis);
    format!(
        "{} of {} succeeded\n  \
         went_up    {:>12}  one for each failure\n  \
         went_down  {:>12}\n  \
         waits      {:>12}  all together, the one after the last request included\n  \
         spacing    {:>12}  waits before requests, per success\n  \
         climb      {:>12}  the delay of the first success\n",
        text::count(succeeded),
        text::counted(requests, "request"),
        text::count(counters.went_up),
        text::count(counters.went_down),
        text::millis(counters.sleep_time),
        or_never(course.spacing()),
        or_never(course.climbed_to()),
    )
}
