//! The screen: what stands where, and what keys do.

use std::cmp::Reverse;
use std::time::Duration;

use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::panes::{Pane, Seen, below};
use super::state::{Place, Places, Scope, State};
use crate::text;

/// Lines of a scope: its figures, and why it waits; one more on a screen with fewer columns for the reason, for that matters
/// most.
const ROW: usize = 2;
const NARROW: usize = 60;

/// Lines about fleets at most, and about upstreams.
const MOST_FLEETS: usize = 4;
const MOST_UPSTREAMS: usize = 6;

/// A screen of so many lines has half of them for what stands below the scopes, a smaller one a third.
const TALL: usize = 40;

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
    /// What stands first below the scopes.
    pane: Pane,
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
        let (chosen, first, room, pane) = (0, 0, 1, Pane::default());
        Self { state, is_picture: false, address, sort, search, is_typing: false, pane, chosen, first, room }
    }

    /// Whether letters are a part of what is searched.
    pub(super) const fn is_searching(&self) -> bool {
        self.is_typing
    }

    /// The lines that show everything in so many columns.
    pub(super) fn wanted_height(&self, width: u16) -> u16 {
        let (width, rows) = (usize::from(width), self.rows().len().max(1));
        let about = self.upstreams(width, usize::MAX).len() + self.fleets(width).len();
        let lines = 3 + about + lines_of_row(width) * rows + self.below(width, usize::MAX).len();
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
            KeyCode::Tab => self.pane = self.pane.next(),
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
        let width = usize::from(area.width);
        let is_roomy = height >= ROOMY || self.is_picture;
        let details = if self.has_details(height) { DETAILS } else { 0 };
        let upstreams = self.upstreams(width, height);
        let fleets = self.fleets(if is_roomy { width } else { 0 });
        let room = if self.is_picture { usize::MAX } else { height / if height < TALL { 3 } else { 2 } };
        let below = if room < 2 { Vec::new() } else { self.below(width, room) };
        let length = |lines: &[Line<'_>]| Constraint::Length(u16::try_from(lines.len()).unwrap_or(u16::MAX));
        let parts = [
            Constraint::Length(2),
            length(&upstreams),
            length(&fleets),
            Constraint::Min(1),
            Constraint::Length(details),
            length(&below),
            Constraint::Length(if self.is_picture { 0 } else { 1 }),
        ];
        let [head, accounts, shares, scopes, chosen, under, foot] = Layout::vertical(parts).areas(area);
        frame.render_widget(Paragraph::new(self.head(width)), head);
        frame.render_widget(Paragraph::new(upstreams), accounts);
        frame.render_widget(Paragraph::new(fleets), shares);
        let lines = self.scopes(scopes);
        frame.render_widget(Paragraph::new(lines), scopes);
        frame.render_widget(Paragraph::new(self.details()).wrap(Wrap { trim: true }), chosen);
        frame.render_widget(Paragraph::new(below), under);
        frame.render_widget(Paragraph::new(self.foot()), foot);
    }

    /// What stands below the scopes, in so many lines at most.
    fn below(&self, width: usize, room: usize) -> Vec<Line<'static>> {
        let rows = self.rows();
        let scope = rows.get(self.chosen).or(rows.first()).copied();
        let has_reason = self.pane != Pane::Scope && !self.is_picture;
        below(self.pane, &Seen { state: &self.state, scope, width, has_reason }, room)
    }

    const fn has_details(&self, height: usize) -> bool {
        !self.is_picture && height >= ROOMY && !matches!(self.pane, Pane::Scope)
    }

    /// The scope whose last quarter of an hour is shown.
    pub(super) fn subject(&self) -> Option<Place> {
        let rows = self.rows();
        rows.get(self.chosen).or(rows.first()).map(|scope| (scope.upstream.clone(), scope.name.clone()))
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

    /// How each upstream fares, where there are several or there is room.
    fn upstreams(&self, width: usize, height: usize) -> Vec<Line<'static>> {
        let mut accounts: Vec<_> = self.state.accounts().collect();
        let is_shown = self.is_picture || height >= if accounts.len() > 1 { ROOMY } else { TALL };
        let most = if self.is_picture { usize::MAX } else { MOST_UPSTREAMS };
        accounts.sort_by_key(|account| Reverse(account.trouble));
        let line = |account: &Scope| {
            let Places { in_flight, current_limit } = account.concurrency;
            let answers = text::counted(account.answers(), "answer");
            let [throttled, overloaded] =
                [account.last_minute.throttled, account.last_minute.overloaded].map(text::count);
            let words = format!(
                "{}: {} of {} in flight, {} waiting; last minute: {answers}, {throttled} with 429, {overloaded} with 503, {} failed",
                text::printable(&account.upstream),
                text::count(in_flight),
                text::count(current_limit),
                text::count(account.waiting),
                text::count(account.failed()),
            );
            let state = Span::styled(text::cell(account.state(), STATE), style(account.trouble));
            Line::from(vec![state, Span::raw(text::cut(&words, width.saturating_sub(STATE)))])
        };
        accounts.into_iter().filter(|_| is_shown).take(most).map(line).collect()
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
            (2, "where nothing leaves for a while"),
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
            let [own, rest] = scope.name_parts();
            let own = text::cut(&own, name);
            let rest = text::cell(&format!(" {rest}"), name.saturating_sub(text::width(&own)));
            lines.push(Line::from(vec![
                Span::styled(text::cell(scope.state(), STATE), style(scope.trouble).add_modifier(chosen)),
                Span::styled(own, Style::new().add_modifier(Modifier::BOLD | chosen)),
                Span::styled(rest, Style::new().fg(Color::Gray)),
                Span::raw(figures_of(scope, figures)),
            ]));
            let (sentence, all) = (scope.sentence(now), scope.about(now));
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
        let name = Span::styled(scope.title(), Modifier::BOLD);
        Line::from(vec![name, Span::raw(format!(": {}", scope.about(self.state.now())))])
    }

    fn foot(&self) -> Line<'static> {
        if self.is_typing {
            return Line::raw(format!("search: {}_  (Enter keeps, Esc shows all)", self.search));
        }
        let search = if self.search.is_empty() { "/ search".to_owned() } else { format!("/ search: {}", self.search) };
        let words =
            format!("q end  s sort: {}  {search}  arrows choose  Tab below: {}", self.sort.name(), self.pane.name());
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

fn style(trouble: u8) -> Style {
    Style::new().fg(match trouble {
        3.. => Color::Red,
        2 => Color::Yellow,
        1 => Color::Cyan,
        _ => Color::Green,
    })
}
