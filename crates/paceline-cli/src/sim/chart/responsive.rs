//! The responsive delay request by request, and what its knobs change.

use std::time::Duration;

use paceline_chart::{Axis, Figure, Ink, Panel, Series, Shape};
use paceline_core::{ConfigError, ResponsiveConfig};
use paceline_sim::{Course, Paced};

use crate::sim::responsive::Trial;
use crate::text;

/// The delay before each request, and the same with other values of three knobs.
///
/// # Errors
/// Knobs that cannot be.
pub(crate) fn figure(trial: &Trial, course: &Course) -> Result<Figure, ConfigError> {
    let rule = if trial.config.compat { "the classic rule" } else { "the default rule" };
    let figure = Figure::new(&format!("Responsive delay, {rule}: the wait before each of {}", requests(course)));
    let figure = caption(course).iter().fold(figure, |figure, line| figure.note(line));
    let main = delays(course, highest([course]), ["Delay", "ms"])
        .with(of_kind(course, "succeeded", Ink::Blue, Shape::Circle, true))
        .with(of_kind(course, "failed", Ink::Vermillion, Shape::Triangle, false))
        .with(required(course));
    Ok(figure.row(300, vec![main]).row(250, knobs(trial)?))
}

fn requests(course: &Course) -> String {
    text::counted(course.requests.len() as u64, "request")
}

/// What there is to see.
fn caption(course: &Course) -> Vec<String> {
    let counters = &course.counters;
    let climb = match (course.climbed_to(), course.requests.last()) {
        (Some(top), Some(last)) => {
            let (top, gap) = (tenths(top), text::millis(last.required));
            format!("The climb ends at {top}; later delays above {gap} succeed.")
        }
        _ => "No delay was long enough.".to_owned(),
    };
    let (succeeded, failed) = (course.succeeded(), course.requests.len() - course.succeeded());
    let sums = format!(
        "{succeeded} succeeded, {failed} failed; {} steps up, {} down; {} of waiting in all.",
        counters.went_up,
        counters.went_down,
        text::millis(counters.sleep_time)
    );
    vec![climb, sums]
}

fn tenths(time: Duration) -> String {
    format!("{:.1} ms", millis(time))
}

/// Values of the configured knob, and two beside it.
fn knobs(trial: &Trial) -> Result<Vec<Panel>, ConfigError> {
    let config = trial.config;
    let with = |change: &dyn Fn(&mut ResponsiveConfig)| {
        let mut config = trial.config;
        change(&mut config);
        Trial { config, ..*trial }.course()
    };
    let downs = beside(config.down, [0.4, 0.6, 0.9]);
    let thresholds = beside(f64::from(config.threshold), [2.0, 5.0, 10.0]);
    let shares = beside(config.randomization, [0.0, 0.2, 0.4]);
    let courses = |values: [f64; 3], change: &dyn Fn(&mut ResponsiveConfig, f64)| {
        let courses = values.map(|value| with(&|config| change(config, value)).map(|course| (value, course)));
        courses.into_iter().collect::<Result<Vec<_>, _>>()
    };
    Ok(vec![
        knob("down", &courses(downs, &|config, value| config.down = value)?),
        knob("threshold", &courses(thresholds, &|config, value| config.threshold = value as u32)?),
        knob("randomization", &courses(shares, &|config, value| config.randomization = value)?),
    ])
}

/// The usual values, the nearest of them replaced by the configured one.
fn beside(configured: f64, mut usual: [f64; 3]) -> [f64; 3] {
    let distance = |value: &&mut f64| (**value - configured).abs();
    if let Some(nearest) = usual.iter_mut().min_by(|a, b| distance(a).total_cmp(&distance(b))) {
        *nearest = configured;
    }
    usual
}

/// One knob's courses on the same axes, with the share of requests that fail.
fn knob(name: &str, courses: &[(f64, Course)]) -> Panel {
    let first = &courses[0].1;
    let highest = highest(courses.iter().map(|(_, course)| course));
    let panel = delays(first, highest, [&format!("Effect of {name}"), "delay in ms"]).with(required(first));
    courses.iter().zip([Ink::Green, Ink::Blue, Ink::Purple]).fold(panel, |panel, ((value, course), ink)| {
        let requests = course.requests.len() as f64;
        let failed = 100.0 * (1.0 - course.succeeded() as f64 / requests);
        let points = course.requests.iter().enumerate().map(|(index, request)| at(index, request)).collect();
        let line = if ink == Ink::Purple { Series::dotted } else { Series::line };
        panel.with(line(&format!("{value}: {failed:.0} % fail"), ink, points).thin())
    })
}

/// Empty axes.
fn delays(course: &Course, highest: f64, [title, unit]: [&str; 2]) -> Panel {
    let requests = course.requests.len() as f64;
    Panel::new(title, Axis::linear("request", 0.0, requests + 1.0).whole(), Axis::linear(unit, 0.0, highest))
}

/// What the server asks for, over each request.
fn required(course: &Course) -> Series {
    let points = course.requests.iter().enumerate().flat_map(|(index, request)| {
        let (index, required) = (index as f64, millis(request.required));
        [(index + 0.5, required), (index + 1.5, required)]
    });
    Series::dashed("required", Ink::Black, points.collect())
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn highest<'a>(courses: impl IntoIterator<Item = &'a Course>) -> f64 {
    let delays = courses.into_iter().flat_map(|course| &course.requests);
    let highest = delays.map(|request| request.delay.max(request.required)).max().unwrap_or_default();
    millis(highest) * 1.05
}

fn of_kind(course: &Course, name: &str, ink: Ink, shape: Shape, succeeded: bool) -> Series {
    let requests = course.requests.iter().enumerate().filter(|(_, request)| request.succeeded == succeeded);
    Series::points(name, ink, shape, requests.map(|(index, request)| at(index, request)).collect())
}

fn at(index: usize, request: &Paced) -> (f64, f64) {
    (index as f64 + 1.0, millis(request.delay))
}
