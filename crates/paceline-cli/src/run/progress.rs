//! What a person sees while a job runs: a bar on a terminal, a plain line every few seconds elsewhere.

use std::collections::VecDeque;
use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use paceline::{Instant, Snapshot};
use paceline_core::Timestamp;

use super::figures::Figures;
use super::stop::Stop;
use crate::logging;
use crate::text;

/// Between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The rate shown is that of the last so long.
const RATE_OVER: Duration = Duration::from_secs(30);

/// Shows how a job goes.
#[derive(Debug)]
pub(crate) struct Progress {
    face: Face,
    /// Items ended in this run, at the last moments.
    recent: VecDeque<(Instant, u64)>,
}

#[derive(Debug)]
enum Face {
    Bar(ProgressBar),
    Lines { last: Option<Instant> },
    Silent,
}

/// A job at one moment.
pub(crate) struct View<'a> {
    pub(crate) now: Instant,
    pub(crate) figures: &'a Figures,
    pub(crate) limits: &'a Snapshot,
    pub(crate) in_flight: u64,
    pub(crate) stop: Option<&'a Stop>,
    /// When the next item in the journal becomes due, and the wall clock's time now.
    pub(crate) next_due: Option<(Timestamp, Timestamp)>,
}

impl Progress {
    /// A bar when standard error is a terminal; nothing when `quiet`.
    pub(crate) fn new(quiet: bool, items: u64) -> Self {
        let face = if quiet {
            Face::Silent
        } else if std::io::stderr().is_terminal() {
            let style =
                ProgressStyle::with_template("{bar:24} {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            Face::Bar(logging::bars().add(ProgressBar::new(items).with_style(style)))
        } else {
            Face::Lines { last: None }
        };
        Self { face, recent: VecDeque::new() }
    }

    /// Shows the present.
    pub(crate) fn show(&mut self, view: &View<'_>) {
        self.recent.push_back((view.now, view.figures.ended_now));
        while self.recent.len() > 2 && self.recent.front().is_some_and(|(at, _)| *at + RATE_OVER < view.now) {
            self.recent.pop_front();
        }
        let rate = self.rate();
        match &mut self.face {
            Face::Silent => {}
            Face::Bar(bar) => {
                bar.set_position(view.figures.ended());
                bar.set_message(line(view, rate));
            }
            Face::Lines { last } if last.is_none_or(|last| last + LINE_EVERY <= view.now) => {
                // The first line of a job that is about to end says nothing that its summary does not.
                if last.is_some() {
                    tracing::info!("{}", line(view, rate));
                }
                *last = Some(view.now);
            }
            Face::Lines { .. } => {}
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Face::Bar(bar) = &self.face {
            bar.finish_and_clear();
        }
    }

    fn rate(&self) -> f64 {
        let (Some(first), Some(last)) = (self.recent.front(), self.recent.back()) else { return 0.0 };
        let seconds = (last.0 - first.0).as_secs_f64();
        if seconds > 0.0 { (last.1 - first.1) as f64 / seconds } else { 0.0 }
    }
}

fn line(view: &View<'_>, rate: f64) -> String {
    let figures = view.figures;
    let left = figures.input.saturating_sub(figures.ended());
    let mut line = format!(
        "{}/{} done, {} in flight, {} waiting, {rate:.1}/s, {} tokens, {} x 429",
        text::count(figures.ended()),
        text::count(figures.input),
        view.in_flight,
        text::count(left.saturating_sub(view.in_flight)),
        text::count(figures.tokens_in + figures.tokens_out),
        text::count(figures.totals.throttled),
    );
    if figures.failed > 0 {
        line += &format!(", {} failed", text::count(figures.failed));
    }
    if rate > 0.0 && left > 0 {
        line += &format!(", ETA {}", text::duration(Duration::from_secs((left as f64 / rate) as u64)));
    }
    match waits_for(view) {
        Some(wait) => line + "; " + &wait,
        None => line,
    }
}

/// The one thing that the next call waits for, with the time that is left.
fn waits_for(view: &View<'_>) -> Option<String> {
    if view.stop.is_some() {
        return Some(format!("ending; waiting for {}", text::counted(view.in_flight, "call")));
    }
    let waiting = view.limits.scopes.iter().filter(|scope| scope.waiting > 0);
    let next = waiting.filter_map(|scope| scope.waits_for.as_ref()).min_by_key(|(_, at)| at.unwrap_or(Instant::MAX));
    match (next, view.next_due) {
        (Some((policy, Some(at))), _) => Some(format!("waiting for {policy}, {}", text::duration(*at - view.now))),
        (Some((policy, None)), _) => Some(format!("waiting for {policy}")),
        (None, Some((due, now))) if due > now && view.in_flight == 0 => {
            Some(format!("waiting for the next retry, {}", text::duration(due.saturating_since(now))))
        }
        _ => None,
    }
}
