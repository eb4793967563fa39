//! What stands below the scopes: recent decisions, clients, jobs and batches, and the chosen scope with its limits and its last
//! quarter of an hour. As much of them as there is room for.

use std::time::Duration;

use paceline_core::Timestamp;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;

use super::state::{Client, Quota, Scope, State, shortly};
use crate::text;

/// A part of the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pane {
    #[default]
    Decisions,
    Clients,
    Jobs,
    Scope,
}

/// As they follow each other.
const ALL: [Pane; 4] = [Pane::Decisions, Pane::Clients, Pane::Jobs, Pane::Scope];

/// The lines that one has, with its title, before another gets some.
const SHARE: usize = 9;

/// Fewer lines, a title alone, tell nothing.
const LEAST: usize = 2;

/// The columns of a figure, of the name of a client or a job, and of an upstream.
const FIGURE: usize = 11;
const NAME: usize = 24;
const UPSTREAM: usize = 14;

/// What a person looks at.
pub(super) struct Seen<'a> {
    pub(super) state: &'a State,
    pub(super) scope: Option<&'a Scope>,
    pub(super) width: usize,
    /// Why the chosen scope waits stands elsewhere already.
    pub(super) has_reason: bool,
}

/// The panes in so many lines, that one first.
pub(super) fn below(first: Pane, seen: &Seen<'_>, room: usize) -> Vec<Line<'static>> {
    let order = ALL.iter().cycle().skip_while(|pane| **pane != first).take(ALL.len());
    let all: Vec<_> = order.map(|pane| pane.lines(seen, *pane == first)).collect();
    let mut left = room;
    let mut shares: Vec<usize> = all.iter().map(|lines| fits(lines.len().min(SHARE), &mut left)).collect();
    // What is left goes to those that have more to tell.
    for (share, lines) in shares.iter_mut().zip(&all).filter(|(share, _)| **share > 0) {
        let more = (lines.len() - *share).min(left);
        (*share, left) = (*share + more, left - more);
    }
    all.into_iter().zip(shares).flat_map(|(lines, share)| lines.into_iter().take(share)).collect()
}

/// So many of the lines that are left, or none.
fn fits(wanted: usize, left: &mut usize) -> usize {
    let taken = wanted.min(*left);
    if taken < LEAST {
        return 0;
    }
    *left -= taken;
    taken
}

impl Pane {
    pub(super) fn next(self) -> Self {
        let place = ALL.iter().position(|pane| *pane == self).unwrap_or_default();
        ALL[(place + 1) % ALL.len()]
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Decisions => "decisions",
            Self::Clients => "clients",
            Self::Jobs => "jobs",
            Self::Scope => "the scope",
        }
    }

    /// A title and what it is over; none where there is nothing, unless a person asked for it.
    fn lines(self, seen: &Seen<'_>, is_asked_for: bool) -> Vec<Line<'static>> {
        let (title, rows, none) = match self {
            Self::Decisions => {
                ("recent decisions".to_owned(), decisions(seen), "none: no call was refused, failed or sent again")
            }
            Self::Clients => (clients_title(seen), clients(seen), "no client has sent a request yet"),
            Self::Jobs => (jobs_title(seen), jobs(seen), "no job and no batch"),
            Self::Scope => (seen.scope.map(Scope::title).unwrap_or_default(), scope(seen), "no call has come yet"),
        };
        if rows.is_empty() && !is_asked_for {
            return Vec::new();
        }
        let title = text::cut(&text::printable(&title), seen.width);
        let title = Line::styled(title, Style::new().fg(Color::Gray).add_modifier(Modifier::UNDERLINED));
        let rows = if rows.is_empty() { vec![none.to_owned()] } else { rows };
        let row = |row: String| Line::raw(text::cut(&text::printable(&row), seen.width));
        [title].into_iter().chain(rows.into_iter().map(row)).collect()
    }
}

fn decisions(seen: &Seen<'_>) -> Vec<String> {
    let line = |decision: &super::state::NotedDecision| {
        let at = decision.at().map(text::clock).unwrap_or_default();
        let of = decision.scope.as_deref().unwrap_or(&decision.upstream);
        let times =
            if decision.times > 1 { format!(" ({} times)", text::count(decision.times)) } else { String::new() };
        let model = of.rsplit_once(' ').map_or(of, |(_, model)| model);
        format!("{at} {model}{times} {}", decision.text)
    };
    seen.state.decisions.iter().map(line).collect()
}

/// The columns of clients and of jobs: a name and an upstream that may take what the figures leave.
fn columns(width: usize, figures: usize) -> [usize; 2] {
    let left = width.saturating_sub(figures * FIGURE);
    let name = (left * NAME / (NAME + UPSTREAM)).min(2 * NAME);
    [name, left.saturating_sub(name).min(2 * UPSTREAM)]
}

fn figures<const N: usize>(figures: [String; N]) -> String {
    figures.iter().map(|figure| format!("{figure:>FIGURE$}")).collect()
}

fn clients_title(seen: &Seen<'_>) -> String {
    let [name, upstream] = columns(seen.width, 5);
    let count = format!("clients ({})", text::count(seen.state.clients.len() as u64));
    let titles = ["waiting", "requests", "tokens in", "tokens out", "cost"].map(str::to_owned);
    text::cell(&count, name) + &text::cell("upstream", upstream) + &figures(titles)
}

/// Each with what it has used since the gateway began, and below it what its requests wait for.
fn clients(seen: &Seen<'_>) -> Vec<String> {
    let [name, upstream] = columns(seen.width, 5);
    let rows = |client: &Client| {
        let numbers = [client.waiting, client.requests, client.tokens_in, client.tokens_out].map(text::count);
        let [waiting, requests, input, output] = numbers;
        let row = text::cell(&text::printable(&client.client), name)
            + &text::cell(&text::printable(&client.upstream), upstream)
            + &figures([waiting, requests, input, output, cost(client)]);
        let until = client.until.as_deref().and_then(text::instant).map(text::clock);
        let until = until.map_or_else(String::new, |until| format!(", until {until}"));
        [Some(row), client.waits_for.as_ref().map(|limit| format!("  waits for {limit}{until}"))]
    };
    seen.state.clients.iter().flat_map(rows).flatten().collect()
}

/// More digits where it is small; what is estimated of it stands beside it on the page alone.
fn cost(client: &Client) -> String {
    match client.cost {
        None => "no price".to_owned(),
        Some(cost) if cost == 0.0 || cost >= 0.1 => format!("{cost:.2}"),
        Some(cost) if cost < 0.000_1 => format!("{cost:.6}"),
        Some(cost) => format!("{cost:.4}"),
    }
}

fn jobs_title(seen: &Seen<'_>) -> String {
    let [name, upstream] = columns(seen.width, 4);
    let count = (seen.state.jobs.len() + seen.state.batches.len()) as u64;
    let titles = ["state", "done", "failed", "left"].map(str::to_owned);
    text::cell(&format!("jobs and batches ({})", text::count(count)), name)
        + &text::cell("upstream", upstream)
        + &figures(titles)
}

/// Jobs, then batches, each with what it waits for below it.
fn jobs(seen: &Seen<'_>) -> Vec<String> {
    let [name, upstream] = columns(seen.width, 4);
    let rows = |called: &str,
                of: &str,
                state: String,
                [done, total, failed]: [u64; 3],
                left: String,
                waits: Option<&String>| {
        let percent = (done.min(total) * 100).checked_div(total);
        let percent = percent.map(|percent| format!("{percent} %")).unwrap_or_default();
        let row = text::cell(&text::printable(called), name)
            + &text::cell(&text::printable(of), upstream)
            + &figures([text::cut(&state, FIGURE - 1), percent, text::count(failed), left]);
        let sums = (total > 0).then(|| format!("{} of {} done", text::count(done), text::count(total)));
        let words: Vec<_> = sums.into_iter().chain(waits.map(|waits| format!("waits: {waits}"))).collect();
        [Some(row), Some(format!("  {}", words.join("; "))).filter(|_| !words.is_empty())]
    };
    let of_jobs = seen.state.jobs.iter().flat_map(|job| {
        let left = job.left_ms.map(Duration::from_millis).map(text::duration);
        let is_unknown = job.state == "runs" && job.done < job.total;
        let left = left.unwrap_or_else(|| if is_unknown { "not known".to_owned() } else { String::new() });
        let counts = [job.done, job.total, job.failed];
        rows(&job.name, &job.upstream, job.state.clone(), counts, left, job.waits.as_ref())
    });
    let of_batches = seen.state.batches.iter().flat_map(|batch| {
        let counts = [batch.done, batch.total, batch.failed];
        rows(
            &batch.id,
            &batch.upstream,
            batch.status.replace('_', " "),
            counts,
            String::new(),
            batch.waits_for.as_ref(),
        )
    });
    of_jobs.chain(of_batches).flatten().collect()
}

/// Why the next call of the chosen scope waits, what has become of its calls, its limits, and its last quarter of an hour.
fn scope(seen: &Seen<'_>) -> Vec<String> {
    let Some(scope) = seen.scope else { return Vec::new() };
    let now = seen.state.now();
    let mut lines = if seen.has_reason { Vec::new() } else { text::in_lines(&scope.about(now), seen.width, 3) };
    let [interactive, batch] = scope.waiting_by_priority().map(text::count);
    lines.push(format!(
        "{} of {} in flight; {interactive} interactive and {batch} batch waiting; {} in all, {} with 429, {} with 503",
        text::count(scope.concurrency.in_flight),
        text::count(scope.concurrency.current_limit),
        text::counted(scope.totals.sends, "call"),
        text::count(scope.totals.refused()),
        text::count(scope.totals.overloaded()),
    ));
    let account = seen.state.account_of(scope).filter(|_| !scope.name.is_empty());
    let limits = scope.quotas.iter().map(|quota| limit(quota, "configured", now));
    let of_account =
        account.into_iter().flat_map(|account| &account.quotas).map(|quota| limit(quota, "configured, account", now));
    let announced = scope.announced.iter().map(|quota| limit(quota, "announced", now));
    lines.extend(limits.chain(of_account).chain(announced));
    lines.extend(seen.state.history_of(scope).map(|history| history.lines(seen.width)).unwrap_or_default());
    lines
}

fn limit(quota: &Quota, origin: &str, now: Timestamp) -> String {
    let again = quota.next_free.as_deref().and_then(text::instant).map(|free| free.saturating_since(now));
    let again = again.filter(|left| quota.remaining == 0 && !left.is_zero()).map(shortly);
    let again = again.map_or_else(String::new, |left| format!(", room again in {left}"));
    format!("limit {} ({origin}): {} left{again}", quota.describe(), text::count(quota.remaining))
}
