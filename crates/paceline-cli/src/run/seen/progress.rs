//! What a person sees while a job runs: three lines that are redrawn on a terminal, one log line now and then elsewhere.

use std::collections::VecDeque;
use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use paceline::{Belief, Instant, ScopeSnapshot, Snapshot};
use paceline_core::{Class, Policy, Timestamp};
use terminal_size::{Width, terminal_size_of};

use crate::logging;
use crate::run::calls::stop::Stop;
use crate::run::seen::figures::Figures;
use crate::text;

/// Between two log lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

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
    Screen(ProgressBar),
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
    /// Drawn when standard error is a terminal that can redraw lines; nothing when `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        let redraws = std::env::var_os("TERM").is_some_and(|kind| kind != "dumb");
        let face = if quiet {
            Face::Silent
        } else if redraws && std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            Face::Screen(logging::bars().add(ProgressBar::no_length().with_style(style)))
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
            Face::Screen(bar) => {
                let width = terminal_size_of(std::io::stderr()).map_or(80, |(Width(width), _)| usize::from(width));
                // Setting the message alone draws nothing, so each moment is drawn once.
                bar.clone().with_message(Words::of(view, rate).screen(width)).tick();
            }
            Face::Lines { last } if last.is_none_or(|last| last + LINE_EVERY <= view.now) => {
                // The first line of a job that is about to end says nothing that its summary does not.
                if last.is_some() {
                    tracing::info!("{}", Words::of(view, rate).line());
                }
                *last = Some(view.now);
            }
            Face::Lines { .. } => {}
        }
    }

    fn rate(&self) -> f64 {
        let (Some(first), Some(last)) = (self.recent.front(), self.recent.back()) else { return 0.0 };
        let seconds = (last.0 - first.0).as_secs_f64();
        if seconds > 0.0 { (last.1 - first.1) as f64 / seconds } else { 0.0 }
    }
}

impl Drop for Progress {
    /// Leaves the screen to what is said at the end, also when the run breaks off.
    fn drop(&mut self) {
        if let Face::Screen(bar) = &self.face {
            bar.finish_and_clear();
        }
    }
}

/// A moment in words, each list with the weightiest first.
#[derive(Debug, Default)]
struct Words {
    share: f64,
    course: Vec<String>,
    figures: Vec<String>,
    wait: Option<String>,
}

impl Words {
    fn of(view: &View<'_>, rate: f64) -> Self {
        let (figures, left) = (view.figures, view.figures.pending());
        let mut course = vec![
            format!("{}/{} done", text::count(figures.ended()), text::count(figures.input)),
            format!("{rate:.1}/s"),
        ];
        if rate > 0.0 && left > 0 && view.stop.is_none() {
            let seconds = (left as f64 / rate).ceil() as u64;
            course.push(format!("ETA {}", text::duration(Duration::from_secs(seconds))));
        }
        let mut details = vec![
            format!("{} in flight", text::count(view.in_flight)),
            format!("{} waiting", text::count(left.saturating_sub(view.in_flight))),
        ];
        if figures.totals.throttled > 0 {
            details.push(format!("{} rate-limited", text::count(figures.totals.throttled)));
        }
        let used_up = view.limits.account.totals.of(Class::QuotaExhausted);
        if used_up > 0 {
            details.push(format!("{} with a quota used up", text::count(used_up)));
        }
        if figures.failed > 0 {
            details.push(format!("{} failed", text::count(figures.failed)));
        }
        details.push(format!("{} tokens", text::count(figures.tokens_in + figures.tokens_out)));
        let share = figures.ended() as f64 / figures.input.max(1) as f64;
        Self { share, course, figures: details, wait: waits_for(view) }
    }

    /// One line for a log.
    fn line(&self) -> String {
        let mut parts = self.course.clone();
        parts.extend(self.figures.iter().cloned());
        let line = parts.join(", ");
        match &self.wait {
            Some(wait) => line + "; " + wait,
            None => line,
        }
    }

    /// Three lines of at most `width` columns. Always three, so that nothing below them moves.
    fn screen(&self, width: usize) -> String {
        let bar = match width {
            ..40 => 0,
            40..80 => 10,
            80.. => 30,
        };
        let full = ((self.share * bar as f64) as usize).min(bar);
        let mut first = "█".repeat(full) + &"░".repeat(bar - full);
        if bar > 0 {
            first.push(' ');
        }
        let rest = width.saturating_sub(first.chars().count());
        first += &fitting(&self.course, rest);
        let wait = self.wait.as_deref().unwrap_or(" ");
        format!("{first}\n{}\n{}", fitting(&self.figures, width), text::cut(wait, width))
    }
}

/// As many parts as have room.
fn fitting(parts: &[String], width: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let comma = if line.is_empty() { "" } else { ", " };
        if line.chars().count() + comma.len() + part.chars().count() > width {
            break;
        }
        line += comma;
        line += part;
    }
    line
}

/// The one thing that the next call waits for, and for how long where that can be felt. Where that is what was learnt, or
/// nothing, what is believed of the limit.
fn waits_for(view: &View<'_>) -> Option<String> {
    if view.stop.is_some() {
        return Some(match view.in_flight {
            0 => "ending".to_owned(),
            calls => format!("ending; waiting for {}", text::counted(calls, "call")),
        });
    }
    let waiting = view.limits.scopes.iter().filter(|scope| scope.waiting > 0);
    let next = waiting
        .filter_map(|scope| scope.waits_for.as_ref().map(|(policy, at)| (scope, policy, at)))
        .min_by_key(|(_, _, at)| at.unwrap_or(Instant::MAX));
    match (next, view.next_due) {
        (Some((scope, policy, at)), _) => {
            let wait = at.map(|at| countdown(at - view.now)).unwrap_or_default();
            let learnt = scope.belief.as_ref().is_some_and(|belief| is_learnt(policy, &wait, belief));
            learnt.then(|| believed(view.limits)).flatten().or_else(|| {
                let of = name(view.limits, scope);
                Some(format!("{of}waiting for {}{wait}", text::printable(&policy.to_string())))
            })
        }
        (None, Some((due, now))) if due > now && view.in_flight == 0 => {
            Some(format!("waiting for the next retry{}", countdown(due.saturating_since(now))))
        }
        _ => believed(view.limits),
    }
}

/// Whether that wait is a matter of what was learnt, and too short to be told by itself.
fn is_learnt(policy: &Policy, wait: &str, belief: &Belief) -> bool {
    match policy {
        Policy::Rate { .. } | Policy::Canary => true,
        Policy::Gate { .. } => wait.is_empty(),
        Policy::Concurrency => belief.cap.is_some(),
        _ => false,
    }
}

/// What the busiest scope believes of its limit, under a pace that learns.
fn believed(limits: &Snapshot) -> Option<String> {
    let sending = limits.scopes.iter().filter(|scope| scope.totals.sends > 0);
    let busiest = sending.max_by_key(|scope| (scope.waiting > 0, scope.totals.sends))?;
    Some(format!("{}{}", name(limits, busiest), busiest.belief.as_ref()?))
}

/// A scope's name and a colon, where there are several.
fn name(limits: &Snapshot, scope: &ScopeSnapshot) -> String {
    if limits.scopes.len() > 1 { format!("{}: ", text::printable(&scope.name)) } else { String::new() }
}

/// The time that is left, in whole seconds; from a minute on with its end. Nothing for less than a second.
fn countdown(wait: Duration) -> String {
    match wait.as_secs() {
        0 => String::new(),
        seconds @ 1..60 => format!(", {seconds}s"),
        seconds => {
            let wait = Duration::from_secs(seconds);
            format!(", {}, until {}", text::duration(wait), text::moment(paceline::clock::wall() + wait))
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_core::{Cause, Cost, Pacer, PacerConfig, Request};

    use super::*;

    #[test]
    fn what_is_believed_is_told_where_nothing_else_holds_back() {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults");
        let scope = pacer.scope("a model");
        let told = |pacer: &Pacer| {
            let (now, figures, limits) = (Instant::ZERO, &Figures::default(), &pacer.snapshot(Instant::ZERO));
            waits_for(&View { now, figures, limits, in_flight: 1, stop: None, next_due: None })
        };
        assert_eq!(told(&pacer), None, "before the first call nothing is believed");
        for _ in 0..2 {
            pacer.enqueue(Instant::ZERO, Request::new(&scope, Cost::request())).expect("small enough");
        }
        let believed = pacer.snapshot(Instant::ZERO).scopes[0].belief.as_ref().expect("it learns").to_string();
        assert_eq!(told(&pacer).as_ref(), Some(&believed), "the second call waits for the learnt rate");
        let until = Instant::from_nanos(42_000_000_000);
        pacer.hold_for(Instant::ZERO, Some(&scope), until, Cause::QuotaUsedUp);
        assert_eq!(told(&pacer).as_deref(), Some("waiting for a used-up quota, 42s"));
        pacer.resume(Instant::ZERO, None);
        pacer.hold_for(Instant::ZERO, None, until, Cause::Overloaded { asked: true });
        let asked = "waiting for the end of a pause that the overloaded server asked for, 42s";
        assert_eq!(told(&pacer).as_deref(), Some(asked));
        pacer.scope("another");
        pacer.resume(Instant::ZERO, None);
        assert_eq!(told(&pacer).as_deref(), Some(&*format!("a model: {believed}")));
    }

    #[test]
    fn a_screen_never_exceeds_its_width_and_keeps_what_matters() {
        let words = Words {
            share: 0.5,
            course: vec!["1,234,567/2,469,134 done".into(), "151.3/s".into(), "ETA 2h 15m".into()],
            figures: vec!["512 in flight".into(), "1,234,055 waiting".into(), "17 rate-limited".into()],
            wait: Some("waiting for the server's limit of 500 requests, 0 left, 42s".into()),
        };
        for width in 0..200 {
            let screen = words.screen(width);
            assert_eq!(screen.lines().count(), 3, "{width}: {screen}");
            assert!(screen.lines().all(|line| line.chars().count() <= width.max(1)), "{width}: {screen}");
        }
        assert!(words.screen(80).starts_with("███████████████░░░░░░░░░░░░░░░ 1,234,567/2,469,134 done, 151.3/s, ETA"));
        assert!(words.screen(39).starts_with("1,234,567/2,469,134 done, 151.3/s\n512 in flight, "));
        assert!(words.screen(120).ends_with("500 requests, 0 left, 42s"));
    }
}
