//! The screen: what stands where, and what keys do.

use std::cmp::Reverse;
use std::time::Duration;

use paceline_core::Timestamp;
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::state::{Scope, State};
use crate::text;

/// Lines of a scope: its figures, and why it waits; one more on a screen with fewer columns for the reason, for that matters
/// most.
const ROW: usize = 2;
const NARROW: usize = 60;

/// Lines of decisions at most, with their title.
const MOST_DECISIONS: usize = 9;

/// Lines about fleets at most.
const MOST_FLEETS: usize = 4;

/// Lines about the chosen scope, on a screen of so many lines at least.
const DETAILS: u16 = 3;
const ROOMY: usize = 16;

/// The columns of figures, with the width of each.
const FIGURES: [(&str, usize); 6] =
    [("waiting", 9), ("429/min", 9), ("503/min", 9), ("answers/min", 13), ("in flight", 11), ("p95", 8)];

/// The least columns of a name.
const LEAST_NAME: usize = 24;

/// The columns of a state.
const STATE: usize = 9;

/// What the scopes are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sort {
    #[default]
    Trouble,
    Waiting,
    Rate,
    Refused,
    Name,
}

impl Sort {
    const fn next(self) -> Self {
        match self {
            Self::Trouble => Self::Waiting,
            Self::Waiting => Self::Rate,
            Self::Rate => Self::Refused,
            Self::Refused => Self::Name,
            Self::Name => Self::Trouble,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Trouble => "trouble",
            Self::Waiting => "waiting",
            Self::Rate => "answers",
            Self::Refused => "429 and 503",
            Self::Name => "name",
        }
    }

    fn key(self, scope: &Scope) -> impl Ord + use<> {
        let most = match self {
            Self::Trouble => [scope.trouble.into(), scope.waiting, scope.refused(), scope.answers()],
            Self::Waiting => [scope.waiting, 0, 0, 0],
            Self::Rate => [scope.answers(), 0, 0, 0],
            Self::Refused => [scope.refused(), 0, 0, 0],
            Self::Name => [0; 4],
        };
        Reverse(most)
    }
}

/// A gateway on the screen.
pub(super) struct Screen {
    pub(super) state: State,
    /// It is printed, and takes no keys.
    pub(super) is_picture: bool,
    address: String,
    sort: Sort,
    /// Only scopes with these words are shown.
    search: String,
    is_typing: bool,
    /// The chosen row, and the first that is shown.
    chosen: usize,
    first: usize,
    /// The rows that had room last.
    room: usize,
}

impl Screen {
    /// That of the gateway at an address.
    pub(super) fn new(address: String) -> Self {
        let (state, sort, search) = (State::default(), Sort::default(), String::new());
        let (chosen, first, room) = (0, 0, 1);
        Self { state, is_picture: false, address, sort, search, is_typing: false, chosen, first, room }
    }

    /// Whether letters are a part of what is searched.
    pub(super) const fn is_searching(&self) -> bool {
        self.is_typing
    }

    /// The lines that show everything in so many columns.
    pub(super) fn wanted_height(&self, width: u16) -> u16 {
        let lines = 3
            + self.fleets(width.into()).len()
            + lines_of_row(width.into()) * self.rows().len().max(1)
            + self.decision_lines(usize::MAX);
        u16::try_from(lines).unwrap_or(u16::MAX)
    }

    /// Does what a key asks for.
    pub(super) fn key(&mut self, key: KeyCode) {
        let last = self.rows().len().saturating_sub(1);
        match key {
            KeyCode::Esc => {
                self.search.clear();
                self.is_typing = false;
            }
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Backspace if self.is_typing => drop(self.search.pop()),
            KeyCode::Char(letter) if self.is_typing => {
                self.search.push(letter);
                self.chosen = 0;
            }
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Up | KeyCode::Char('k') => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.chosen += 1,
            KeyCode::PageUp => self.chosen = self.chosen.saturating_sub(self.room),
            KeyCode::PageDown => self.chosen += self.room,
            KeyCode::Home => self.chosen = 0,
            KeyCode::End => self.chosen = last,
            _ => {}
        }
        self.chosen = self.chosen.min(last);
    }

    /// The scopes that are shown, in order; an account only where it is in trouble itself, or has no scope yet.
    fn rows(&self) -> Vec<&Scope> {
        let words: Vec<_> = self.search.split_whitespace().map(str::to_lowercase).collect();
        let is_alone = |scope: &Scope| {
            let mut scopes = self.state.scopes.values();
            scopes.all(|other| other.upstream != scope.upstream || other.name.is_empty())
        };
        let is_row = |scope: &&Scope| {
            let name = format!("{} {} {}", scope.upstream, scope.name, scope.state()).to_lowercase();
            let is_shown = !scope.name.is_empty() || scope.trouble >= 2 || is_alone(scope);
            is_shown && words.iter().all(|word| name.contains(word))
        };
        let mut rows: Vec<_> = self.state.scopes.values().filter(is_row).collect();
        rows.sort_by_cached_key(|scope| self.sort.key(scope));
        rows
    }

    /// Draws it.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let height = usize::from(area.height);
        let decisions = self.decision_lines(height / 3);
        let details = if self.is_picture || height < ROOMY { 0 } else { DETAILS };
        let fleets = self.fleets(if height < ROOMY && !self.is_picture { 0 } else { area.width.into() });
        let parts = [
            Constraint::Length(2),
            Constraint::Length(u16::try_from(fleets.len()).unwrap_or(u16::MAX)),
            Constraint::Min(1),
            Constraint::Length(details),
            Constraint::Length(u16::try_from(decisions).unwrap_or(u16::MAX)),
            Constraint::Length(if self.is_picture { 0 } else { 1 }),
        ];
        let [head, shares, scopes, chosen, below, foot] = Layout::vertical(parts).areas(area);
        frame.render_widget(Paragraph::new(self.head(usize::from(area.width))), head);
        frame.render_widget(Paragraph::new(fleets), shares);
        let lines = self.scopes(scopes);
        frame.render_widget(Paragraph::new(lines), scopes);
        frame.render_widget(Paragraph::new(self.details()).wrap(Wrap { trim: true }), chosen);
        frame.render_widget(Paragraph::new(self.decisions(decisions, usize::from(area.width))), below);
        frame.render_widget(Paragraph::new(self.foot()), foot);
    }

    fn head(&self, width: usize) -> Vec<Line<'static>> {
        let accounts = || self.state.accounts();
        let in_flight: u64 = accounts().map(|account| account.concurrency.in_flight).sum();
        let waiting: u64 = accounts().map(|account| account.waiting).sum();
        let answers: u64 = accounts().map(Scope::answers).sum();
        let failed = match accounts().map(Scope::failed).sum() {
            0 => String::new(),
            failed => format!(", {} failed", text::count(failed)),
        };
        let first = format!(
            "Paceline {} at {}: {} in flight, {} waiting, {} in the last minute{failed}",
            self.state.version,
            self.address,
            text::count(in_flight),
            text::count(waiting),
            text::counted(answers, "answer")
        );
        let second = match &self.state.lost {
            Some((since, why)) => {
                let words = format!("What is shown is old, since {}: {why}", text::moment(*since));
                Line::styled(text::cut(&words, width), style(3))
            }
            None => self.troubles(width),
        };
        vec![Line::styled(text::cut(&first, width), Modifier::BOLD), second]
    }

    /// Where the gateway stands in the fleet of each upstream.
    fn fleets(&self, width: usize) -> Vec<Line<'static>> {
        let line = |account: &Scope| {
            let words =
                format!("fleet of {}: {}", text::printable(&account.upstream), account.fleet(self.state.now())?);
            Some(Line::raw(text::cut(&words, width)))
        };
        self.state.accounts().filter(|_| width > 0).filter_map(line).take(MOST_FLEETS).collect()
    }

    fn troubles(&self, width: usize) -> Line<'static> {
        let count = |level: u8| {
            let named =
                self.state.scopes.values().filter(|scope| !scope.name.is_empty() && scope.trouble == level).count();
            named.max(self.state.accounts().filter(|account| account.trouble == level).count()) as u64
        };
        let troubles = [
            (4, "down for minutes"),
            (3, "stopped until a person acts"),
            (2, "held or closed for a while"),
            (1, "waiting"),
        ];
        let mut worst = 0;
        let parts: Vec<_> = troubles
            .into_iter()
            .filter(|(level, _)| count(*level) > 0)
            .map(|(level, words)| {
                worst = worst.max(level);
                format!("{} {words}", text::counted(count(level), "scope"))
            })
            .collect();
        let words = if parts.is_empty() { "all is well: no call waits".to_owned() } else { parts.join(", ") };
        Line::styled(text::cut(&words, width), style(worst))
    }

    fn scopes(&mut self, area: Rect) -> Vec<Line<'static>> {
        let width = usize::from(area.width);
        let reason = width.saturating_sub(STATE);
        let row = lines_of_row(width);
        self.room = (usize::from(area.height).saturating_sub(1) / row).max(1);
        let count = self.rows().len();
        self.chosen = self.chosen.min(count.saturating_sub(1));
        self.first = self.first.min(self.chosen).max((self.chosen + 1).saturating_sub(self.room));
        let figures = figures(width);
        let name = name_width(width, figures);
        let mut title =
            text::cell("state", STATE) + &text::cell(&format!("scope ({})", text::count(count as u64)), name);
        for (column, width) in &FIGURES[..figures] {
            title += &format!("{column:>width$}");
        }
        let mut lines = vec![Line::styled(title, Style::new().fg(Color::Gray).add_modifier(Modifier::UNDERLINED))];
        let now = self.state.now();
        for (place, scope) in self.rows().into_iter().enumerate().skip(self.first).take(self.room) {
            let chosen = if place == self.chosen && !self.is_picture { Modifier::REVERSED } else { Modifier::empty() };
            let [own, rest] = name_parts(scope);
            let own = text::cut(&own, name);
            let rest = text::cell(&format!(" {rest}"), name.saturating_sub(text::width(&own)));
            lines.push(Line::from(vec![
                Span::styled(text::cell(scope.state(), STATE), style(scope.trouble).add_modifier(chosen)),
                Span::styled(own, Style::new().add_modifier(Modifier::BOLD | chosen)),
                Span::styled(rest, Style::new().fg(Color::Gray)),
                Span::raw(figures_of(scope, figures)),
            ]));
            let (sentence, all) = (scope.sentence(now), about(scope, now));
            // What is believed of the limit cuts no reason off.
            let words = if text::width(&all) <= reason { all } else { sentence };
            let parts = text::in_lines(&words, reason, row - 1);
            lines.extend(parts.into_iter().map(|part| Line::raw(format!("{:STATE$}{part}", ""))));
        }
        if count == 0 {
            let words = if self.search.is_empty() { "no call has come yet" } else { "no scope has these words" };
            lines.push(Line::raw(words));
        }
        lines
    }

    /// All that is said of the chosen scope.
    fn details(&self) -> Line<'static> {
        let Some(scope) = self.rows().get(self.chosen).copied() else { return Line::default() };
        let [own, rest] = name_parts(scope);
        let name = Span::styled(format!("{own} {rest}"), Modifier::BOLD);
        Line::from(vec![name, Span::raw(format!(": {}", about(scope, self.state.now())))])
    }

    /// The lines of decisions that there are, with a title and at most so many; none where the title alone has room.
    fn decision_lines(&self, most: usize) -> usize {
        match self.state.decisions.len() {
            0 => 0,
            _ if most < 2 => 0,
            count => (count + 1).min(MOST_DECISIONS).min(most),
        }
    }

    fn decisions(&self, lines: usize, width: usize) -> Vec<Line<'static>> {
        let title = Line::styled("recent decisions", Style::new().fg(Color::Gray).add_modifier(Modifier::UNDERLINED));
        let decisions = self.state.decisions.iter().map(|decision| {
            let at = decision.at().map(text::clock).unwrap_or_default();
            let of = decision.scope.as_deref().unwrap_or(&decision.upstream);
            let times =
                if decision.times > 1 { format!(" ({} times)", text::count(decision.times)) } else { String::new() };
            let words = format!("{at} {}{times} {}", short_name(of), decision.text);
            Line::raw(text::cut(&text::printable(&words), width))
        });
        [title].into_iter().chain(decisions).take(lines).collect()
    }

    fn foot(&self) -> Line<'static> {
        if self.is_typing {
            return Line::raw(format!("search: {}_  (Enter keeps, Esc shows all)", self.search));
        }
        let search = if self.search.is_empty() { "/ search".to_owned() } else { format!("/ search: {}", self.search) };
        let words = format!("q end  s sort: {}  {search}  arrows choose", self.sort.name());
        Line::styled(words, Style::new().fg(Color::Gray))
    }
}

/// The lines of a scope in so many columns.
const fn lines_of_row(width: usize) -> usize {
    if width < STATE + NARROW { ROW + 1 } else { ROW }
}

/// How many columns of figures have room.
fn figures(width: usize) -> usize {
    (0..=FIGURES.len()).rev().find(|count| name_width(width, *count) >= LEAST_NAME).unwrap_or_default()
}

fn name_width(width: usize, figures: usize) -> usize {
    let taken: usize = FIGURES[..figures].iter().map(|(_, width)| width).sum();
    width.saturating_sub(STATE + taken)
}

fn figures_of(scope: &Scope, figures: usize) -> String {
    let latency = scope.last_minute.p95_ms.map(|ms| text::duration(Duration::from_millis(ms as u64)));
    let all = [
        text::count(scope.waiting),
        text::count(scope.last_minute.throttled),
        text::count(scope.last_minute.overloaded),
        text::count(scope.answers()),
        text::count(scope.concurrency.in_flight),
        latency.unwrap_or_default(),
    ];
    all.iter().zip(FIGURES).take(figures).map(|(figure, (_, width))| format!("{figure:>width$}")).collect()
}

/// A scope is mostly a path and a model: what tells it from others stands first.
fn name_parts(scope: &Scope) -> [String; 2] {
    let upstream = text::printable(&scope.upstream);
    if scope.name.is_empty() {
        return [upstream.into_owned(), "the whole account".to_owned()];
    }
    let name = text::printable(&scope.name);
    match name.rsplit_once(' ') {
        Some((path, model)) => [model.to_owned(), format!("{upstream} {path}")],
        None => [name.into_owned(), upstream.into_owned()],
    }
}

/// Why its next call waits, and what is believed of its limit.
fn about(scope: &Scope, now: Timestamp) -> String {
    let belief = scope.belief.as_ref().map(|belief| format!("; {}", text::printable(&belief.text)));
    scope.sentence(now) + &belief.unwrap_or_default()
}

fn short_name(scope: &str) -> &str {
    scope.rsplit_once(' ').map_or(scope, |(_, model)| model)
}

fn style(trouble: u8) -> Style {
    Style::new().fg(match trouble {
        3.. => Color::Red,
        2 => Color::Yellow,
        1 => Color::Cyan,
        _ => Color::Green,
    })
}
