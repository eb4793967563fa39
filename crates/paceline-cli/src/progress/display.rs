//! What a person sees while a job runs: three lines that are redrawn on a terminal, one log line now and then elsewhere.

use std::collections::VecDeque;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use paceline::{Instant, Snapshot};
use paceline_core::{Class, Timestamp};
use paceline_store::DiskFull;
use terminal_size::{Width, terminal_size_of};
use tokio::sync::watch;

use crate::account::OthersTurn;
use crate::budget::Used;
use crate::job::holds::SHORT;
use crate::job_line::JobLine;
use crate::logging;
use crate::other_hosts::host_view::{HostView, Whole};
use crate::progress::counters::Counters;
use crate::progress::time_left::{self, Rest, TimeLeft};
use crate::progress::wait_line::Wait;
use crate::stops::stop::StopReason;
use crate::text;

/// Between two log lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The rate shown is that of the last so long.
const RATE_OVER: Duration = Duration::from_secs(30);

/// How fast it goes is taken from the last [`ENOUGH`] items, at least the last [`RATE_OVER`] and at most so long.
const PACE_OVER: Duration = Duration::from_mins(5);
const ENOUGH: u64 = 20;

/// So few items in that time tell nothing about the others: most of what is left waits for something else.
const FEW: u64 = 5;

/// Shows how a job goes.
#[derive(Debug)]
pub(crate) struct Progress {
    face: Face,
    /// Items ended in this run, at the last moments.
    recent: VecDeque<(Instant, u64)>,
    began: Option<Instant>,
    /// Items ended in a second, when some could last.
    pace: f64,
    /// Too few do to tell how long the rest takes.
    is_slow: bool,
    /// Where gateways are told how far it is.
    told: Option<watch::Sender<Option<JobLine>>>,
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
    pub(crate) figures: &'a Counters,
    pub(crate) limits: &'a Snapshot,
    pub(crate) in_flight: u64,
    pub(crate) stop: Option<&'a StopReason>,
    /// When the next item in the journal becomes due, and the wall clock's time now.
    pub(crate) next_due: Option<(Timestamp, Timestamp)>,
    /// The scope of that item, where it is known.
    pub(crate) next_scope: Option<&'a str>,
    /// When the next call can start; none while calls are in flight, or where it is not known.
    pub(crate) next_start: Option<Instant>,
    pub(crate) budget: Used,
    /// Scopes of which this run tries nothing any more; `limits` has none of them.
    pub(crate) given_up: u64,
    /// The run ends where nothing can start for longer (`--max-wait`).
    pub(crate) max_wait: Option<Duration>,
    /// The disk that answers wait for.
    pub(crate) disk_full: Option<&'a DiskFull>,
    /// The turn of another process, for which the run has waited so long.
    pub(crate) waited: Option<(OthersTurn, Duration)>,
    /// Calls go through a gateway.
    pub(crate) by_gateway: bool,
    /// What is known of the whole job, where this run is one host of many.
    pub(crate) hosts: Option<&'a HostView>,
}

impl Progress {
    /// Drawn when standard error is a terminal that can redraw lines; nothing when `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        let face = if quiet {
            Face::Silent
        } else if logging::draws(quiet) {
            let style = ProgressStyle::with_template("{msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
            Face::Screen(logging::bars().add(ProgressBar::no_length().with_style(style)))
        } else {
            Face::Lines { last: None }
        };
        Self { face, recent: VecDeque::new(), began: None, pace: 0.0, is_slow: false, told: None }
    }

    /// The same, which is told to gateways too.
    pub(crate) fn told_to(mut self, told: watch::Sender<Option<JobLine>>) -> Self {
        self.told = Some(told);
        self
    }

    /// Shows the present.
    pub(crate) fn show(&mut self, view: &View<'_>) {
        self.began.get_or_insert(view.now);
        self.recent.push_back((view.now, view.figures.ended_now));
        while self.recent.len() > 2 && self.recent.front().is_some_and(|(at, _)| *at + PACE_OVER < view.now) {
            self.recent.pop_front();
        }
        let rate = self.rate(|at, _| at + RATE_OVER >= view.now);
        // What is held teaches nothing about how fast it goes after that.
        let waits = view.next_start.is_some_and(|start| start > view.now + SHORT);
        if !waits && time_left::until_any(view.now, view.limits).is_none() {
            let enough = view.figures.ended_now.saturating_sub(ENOUGH);
            self.pace = self.rate(|at, ended| at + RATE_OVER >= view.now || ended >= enough);
            self.is_slow = self.began.is_some_and(|began| began + RATE_OVER < view.now) && self.has_few(view);
        }
        let pace = if self.is_slow { 0.0 } else { self.pace };
        if let Some(told) = &self.told {
            told.send_replace(Some(job_line(view, pace)));
        }
        match &mut self.face {
            Face::Silent => {}
            Face::Screen(bar) => {
                let width = terminal_size_of(std::io::stderr()).map_or(80, |(Width(width), _)| usize::from(width));
                let (bar, text) = (bar.clone(), StatusText::of(view, rate, pace, self.is_slow).screen(width));
                // Setting the message alone draws nothing, so each moment is drawn once.
                logging::draw(move || bar.with_message(text).tick());
            }
            Face::Lines { last } if last.is_none_or(|last| last + LINE_EVERY <= view.now) => {
                // The first line of a job that is about to end is redundant beside its summary.
                if last.is_some() {
                    tracing::info!("{}", StatusText::of(view, rate, pace, self.is_slow).line());
                }
                *last = Some(view.now);
            }
            Face::Lines { .. } => {}
        }
    }

    /// Whether only a few items have ended within [`PACE_OVER`], and of what is left most waits for something else.
    fn has_few(&self, view: &View<'_>) -> bool {
        let (first, last) = (self.recent.front(), self.recent.back());
        let ended = first.zip(last).map_or(0, |(first, last)| last.1 - first.1);
        ended < FEW && view.figures.pending() > ended + view.in_flight
    }

    /// Items that ended in a second since the first moment that is meant.
    fn rate(&self, is_meant: impl Fn(Instant, u64) -> bool) -> f64 {
        let first = self.recent.iter().find(|(at, ended)| is_meant(*at, *ended));
        let (Some(first), Some(last)) = (first, self.recent.back()) else { return 0.0 };
        let seconds = (last.0 - first.0).as_secs_f64();
        if seconds > 0.0 { (last.1 - first.1) as f64 / seconds } else { 0.0 }
    }
}

impl Drop for Progress {
    /// Leaves the screen to the summary, also when the run breaks off.
    fn drop(&mut self) {
        if let Face::Screen(bar) = &self.face {
            let bar = bar.clone();
            logging::draw(move || bar.finish_and_clear());
        }
    }
}

/// A shorter bound below the time left is none.
const TELLING: Duration = Duration::from_mins(1);

/// The text of one status update, each list with the most important first.
#[derive(Debug, Default)]
struct StatusText {
    share: f64,
    course: Vec<String>,
    figures: Vec<String>,
    wait: Option<Wait>,
}

impl StatusText {
    /// `rate`: items that ended in a second. `pace`: the same while some could.
    fn of(view: &View<'_>, rate: f64, pace: f64, is_slow: bool) -> Self {
        let (figures, left) = (view.figures, view.figures.pending());
        let time_left = time_left(view, pace);
        let whole = whole(view);
        let mut course = match whole {
            Some(whole) => vec![whole.progress(figures.ended()), format!("{rate:.1}/s here")],
            None => vec![
                format!("{}/{} done", text::count(figures.ended()), text::count(figures.input)),
                format!("{rate:.1}/s"),
            ],
        };
        // A short bound says nothing: it ends with the pauses that are known now.
        let says_something = |left: &TimeLeft| !left.at_least || left.time >= TELLING;
        if let Some(left) = time_left.filter(says_something) {
            course.push(left.words());
        } else if is_slow && left > 0 && view.stop.is_none() {
            course.push("ETA unknown: few items end".to_owned());
        }
        let mut details = vec![
            format!("{} in flight", text::count(view.in_flight)),
            format!("{} waiting", text::count(left.saturating_sub(view.in_flight))),
        ];
        if figures.totals.throttled > 0 {
            details.push(format!("{} so far", text::counted(figures.totals.throttled, "refusal")));
        }
        let for_long = view.limits.account.totals.of(Class::QuotaExhausted);
        if for_long > 0 {
            details.push(format!("{} put off until much later", text::count(for_long)));
        }
        if figures.totals.retries > 0 {
            details.push(format!("{} sent again after errors", text::count(figures.totals.retries)));
        }
        if figures.fallback > 0 {
            details.push(format!("{} by the fallback", text::count(figures.fallback)));
        }
        if figures.failed > 0 {
            details.push(format!("{} failed", text::count(figures.failed)));
        }
        if view.given_up > 0 {
            details.push(format!("{} given up for this run (--max-wait)", text::counted(view.given_up, "scope")));
        }
        let tokens = figures.tokens_in + figures.tokens_out;
        if view.budget.tokens.is_none() && tokens > 0 {
            details.push(format!("{} tokens", text::count(tokens)));
        }
        details.extend(view.budget.describe());
        details.extend(whole.map(|_| format!("{} done here", text::count(figures.ended()))));
        let (done, all) =
            whole.map_or((figures.ended(), figures.input), |whole| (whole.ended_with(figures.ended()), whole.lines));
        let share = done as f64 / all.max(1) as f64;
        Self { share, course, figures: details, wait: Wait::of(view) }
    }

    /// One line for a log.
    fn line(&self) -> String {
        let mut parts = self.course.clone();
        parts.extend(self.figures.iter().cloned());
        let line = parts.join(", ");
        match &self.wait {
            Some(wait) => line + "; " + &wait.line(),
            None => line,
        }
    }

    /// Three lines of at most `width` columns. Always three, so that nothing below them moves.
    fn screen(&self, width: usize) -> String {
        // Where it would take the room of the time left, the bar is shorter.
        let course = self.course.iter().map(|part| part.chars().count() + 2).sum::<usize>();
        let bar = match width {
            ..40 => 0,
            80.. if course + 30 < width => 30,
            _ => 10,
        };
        let full = ((self.share * bar as f64) as usize).min(bar);
        let mut first = "█".repeat(full) + &"░".repeat(bar - full);
        if bar > 0 {
            first.push(' ');
        }
        let rest = width.saturating_sub(first.chars().count());
        first += &fitting(&self.course, rest);
        let wait = self.wait.as_ref().map_or_else(|| " ".to_owned(), |wait| wait.fitting(width.max(1)));
        format!("{first}\n{}\n{wait}", fitting(&self.figures, width))
    }
}

/// How long the rest takes; none where the run is ending, or waits for what may never come: space on a disk, a turn.
fn time_left(view: &View<'_>, pace: f64) -> Option<TimeLeft> {
    let figures = view.figures;
    let ended = figures.ended().max(1) as f64;
    let tokens = (figures.tokens_in + figures.tokens_out) as f64 / ended;
    // Before anything has ended, what was used says nothing of what calls use.
    let affordable = view.budget.calls_left.filter(|_| figures.ended() > 0);
    let next_start = view.next_start;
    let rest = Rest {
        items: figures.pending().saturating_sub(figures.left_out),
        tokens,
        rate: pace,
        affordable,
        is_near_budget: view.budget.holds_back,
        next_start,
        max_wait: view.max_wait,
    };
    // How fast other hosts are is not known.
    let may_end = view.hosts.is_none() && view.stop.is_none() && view.disk_full.is_none() && view.waited.is_none();
    rest.left(view.now, view.limits).filter(|_| may_end)
}

/// The whole job, where this run is one host of many.
fn whole<'a>(view: &View<'a>) -> Option<&'a Whole> {
    view.hosts?.whole.as_ref()
}

fn job_line(view: &View<'_>, pace: f64) -> JobLine {
    let figures = view.figures;
    let here = (figures.ended(), figures.input, figures.failed);
    let (done, total, failed) = whole(view).map_or(here, |whole| (whole.ended(), whole.lines, whole.failed));
    JobLine {
        done,
        total,
        failed,
        // How long it is at least is no estimate.
        left_ms: time_left(view, pace).filter(|left| !left.at_least).map(|left| left.time.as_millis() as u64),
        waits: Wait::of(view).map(|wait| wait.line()),
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

#[cfg(test)]
mod tests {
    use paceline_core::{Pacer, PacerConfig};

    use paceline_config::Money;

    use super::*;

    fn limits() -> Snapshot {
        Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("the defaults").snapshot(Instant::ZERO)
    }

    fn view<'a>(figures: &'a Counters, limits: &'a Snapshot) -> View<'a> {
        View {
            now: Instant::ZERO,
            figures,
            limits,
            in_flight: 1,
            stop: None,
            next_due: None,
            next_scope: None,
            next_start: None,
            budget: Used::default(),
            given_up: 0,
            max_wait: None,
            disk_full: None,
            waited: None,
            by_gateway: false,
            hosts: None,
        }
    }

    #[test]
    fn the_line_counts_what_is_sent_again_and_shows_the_budget_used() {
        let (limits, mut figures) = (limits(), Counters::default());
        (figures.input, figures.succeeded, figures.totals.retries) = (50_000, 1_500, 96);
        (figures.tokens_in, figures.tokens_out) = (1_000, 240);
        let line = |view: &View<'_>| StatusText::of(view, 0.0, 0.0, false).line();
        let without = line(&view(&figures, &limits));
        assert!(without.contains("96 sent again after errors") && without.ends_with(", 1,240 tokens"), "{without}");
        let cost = Some((Money::from_units(3), Some(Money::from_units(5))));
        let budget = Used { tokens: Some((1_240, 5_000)), cost, ..Used::default() };
        let used: Vec<_> = budget.describe().collect();
        let with = line(&View { budget, ..view(&figures, &limits) });
        assert!(with.contains("1,240 of 5,000 tokens") && with.ends_with(&used.join(", ")), "{with}");
        assert!(used[1].ends_with(" spent"), "{with}");
    }

    /// One host of many is at work, and ends an item now and then: the time that is left would swing from hours to days.
    #[test]
    fn of_a_few_items_no_time_is_told() {
        let limits = limits();
        let mut progress = Progress::new(true);
        let mut at = |seconds: u64, ended: u64, given_up| {
            let mut figures = Counters::default();
            (figures.input, figures.succeeded, figures.ended_now) = (1_500, ended, ended);
            let now = Instant::ZERO + Duration::from_secs(seconds);
            let view = View { now, given_up, ..view(&figures, &limits) };
            progress.show(&view);
            let pace = if progress.is_slow { 0.0 } else { progress.pace };
            StatusText::of(&view, 0.0, pace, progress.is_slow).line()
        };
        (0..30).for_each(|second| drop(at(second, second * 10, 0)));
        assert!(at(30, 300, 0).contains("ETA 2m 00s"), "{}", at(30, 300, 0));
        for minute in 1..6 {
            at(30 + 60 * minute, 300 + minute / 3, 2);
        }
        let line = at(420, 302, 2);
        assert!(
            line.contains("ETA unknown: few items end") && line.contains("2 scopes given up for this run"),
            "{line}"
        );
        (0..30).for_each(|second| drop(at(421 + second, 302 + second, 2)));
        assert!(at(451, 332, 2).contains("ETA 19m"), "{}", at(451, 332, 2));
    }

    #[test]
    fn a_screen_never_exceeds_its_width_and_keeps_what_matters() {
        let status = StatusText {
            share: 0.5,
            course: vec!["1,234,567/2,469,134 done".into(), "151.3/s".into(), "ETA 2h 15m".into()],
            figures: vec!["512 in flight".into(), "1,234,055 waiting".into(), "17 refusals so far".into()],
            wait: Some(Wait::bare("waiting for the server's limit of 500 requests, 0 left, 42s".into())),
        };
        for width in 0..200 {
            let screen = status.screen(width);
            assert_eq!(screen.lines().count(), 3, "{width}: {screen}");
            assert!(screen.lines().all(|line| line.chars().count() <= width.max(1)), "{width}: {screen}");
        }
        assert!(status.screen(80).starts_with("███████████████░░░░░░░░░░░░░░░ 1,234,567/2,469,134 done, 151.3/s, ETA"));
        let course = ["1,234/20,000 done".into(), "151.3/s".into(), "ETA 1h 25m to the end of the budget".into()];
        let long = StatusText { share: 0.5, course: course.into(), ..StatusText::default() };
        assert!(long.screen(80).lines().next().is_some_and(|first| first.ends_with("budget")), "{}", long.screen(80));
        assert!(status.screen(39).starts_with("1,234,567/2,469,134 done, 151.3/s\n512 in flight, "));
        assert!(status.screen(120).ends_with("500 requests, 0 left, 42s"));
    }
}
