//! An item as a row: of JSON, of a table in 80 columns, of Markdown.

use std::io::{self, IsTerminal as _};

use paceline_core::{Class, LONGEST_DURATION, Timestamp};
use paceline_store::work::{State, WorkItem};
use serde::Serialize;

use super::groups::{Groups, Waits};
use crate::text;

/// The shown fields of an item.
#[derive(Debug, Serialize)]
pub(crate) struct Row<'a> {
    key: &'a str,
    group: &'a str,
    priority: i16,
    pub(crate) state: &'static str,
    class: Option<&'static str>,
    code: Option<&'a str>,
    status_code: Option<u16>,
    /// A person must act on the key, the account or the item.
    fatal: bool,
    retryable: bool,
    rate_limited: bool,
    attempts: u32,
    deferrals: u32,
    abandoned: u32,
    tests: u32,
    crashes: u32,
    retry_not_before: Option<String>,
    /// Its work was done, or nothing tells whether it was.
    may_be_done: bool,
    /// When it succeeded, where a person has sent for it once more since.
    delivered_at: Option<String>,
    last_error: Option<&'a str>,
    pub(crate) reason: Option<&'a str>,
    /// Why an item has its due time, where more is known of that: its host asked for a pause, say.
    pub(crate) waits_for: Option<&'a str>,
    #[serde(skip)]
    due: Option<(Timestamp, Timestamp)>,
    #[serde(skip)]
    sends: u32,
}

impl<'a> Row<'a> {
    /// The item as the store has it.
    pub(crate) fn of(item: &'a WorkItem, groups: &Groups) -> Self {
        let last = item.last.as_ref().filter(|_| item.state != State::Succeeded);
        let class = last.map(|last| last.class);
        let fatal = matches!(class, Some(Class::Account | Class::Invalid | Class::Filtered));
        let due = groups.due(item);
        Self {
            key: &item.key,
            group: &item.group,
            priority: item.priority,
            state: item.state.as_str(),
            class: class.map(Class::as_str),
            code: last.and_then(|last| last.code.as_deref()),
            status_code: last.and_then(|last| last.status),
            fatal,
            retryable: item.state != State::Succeeded && !fatal,
            rate_limited: matches!(class, Some(Class::Throttled | Class::QuotaExhausted)),
            attempts: item.attempts,
            deferrals: item.deferrals,
            abandoned: item.abandoned,
            tests: item.tests,
            crashes: item.crashes,
            retry_not_before: due.map(|at| at.to_string()),
            may_be_done: groups.may_be_done(item),
            delivered_at: item.delivered.map(|at| at.to_string()),
            last_error: last.map(|last| last.message.as_str()).filter(|value| !value.is_empty()),
            reason: groups.waits(item).map(Waits::as_str).or(item.reason.as_deref()),
            waits_for: match groups.waits(item) {
                Some(Waits::NotBefore) => item.reason.as_deref(),
                _ => groups.waits_for_place(item),
            },
            due: due.map(|at| (at, groups.now())),
            sends: item.sends(),
        }
    }

    /// The same as a report has it: what has not ended is deferred.
    pub(crate) fn reported(item: &'a WorkItem, groups: &Groups) -> Self {
        let state = if item.state.is_final() { item.state } else { State::Deferred };
        Self { state: state.as_str(), ..Self::of(item, groups) }
    }

    /// A line, of at most 80 columns where it is for a terminal: a file or a letter of cron has room for the whole error.
    pub(crate) fn line(&self) -> String {
        let room = if io::stdout().is_terminal() { 23 } else { LONGEST_ERROR };
        let cell = |value: &str, width| text::cell(&text::printable(value), width);
        let why = self.wait().unwrap_or_else(|| self.reason.unwrap_or_default().to_owned());
        let answer = self.answer().map(|answer| answer + " ").unwrap_or_default();
        let last = format!("{answer}{}", self.last_error.or(self.class).unwrap_or_default());
        let error = match self.waits_for {
            Some(waits_for) if last.is_empty() => format!("waits for {waits_for}"),
            Some(waits_for) => format!("waits for {waits_for}; last: {last}"),
            None => last,
        };
        let error = match &self.delivered_at {
            Some(_) if self.state != State::Succeeded.as_str() && error.is_empty() => "succeeded before".to_owned(),
            Some(_) if self.state != State::Succeeded.as_str() => format!("succeeded before; {error}"),
            _ => error,
        };
        let line = format!(
            "{} {:<9} {:>5}  {}  {}",
            cell(self.key, 24),
            self.state,
            self.sends,
            cell(&why, 13),
            text::cut(&text::printable(&error), room),
        );
        line.trim_end().to_owned()
    }

    /// A row under [`MARKDOWN_HEAD`].
    pub(crate) fn markdown(&self) -> String {
        let answer = self.answer().map(|answer| text::markdown(&answer)).unwrap_or_default();
        let cells = [
            &text::markdown(self.key),
            self.state,
            self.class.unwrap_or_default(),
            &answer,
            &self.sends.to_string(),
            self.retry_not_before.as_deref().unwrap_or_default(),
            &text::markdown(self.reason.unwrap_or_default()),
            &text::markdown(self.last_error.unwrap_or_default()),
        ];
        format!("| {} |", cells.join(" | "))
    }

    /// The status of the last answer; of a command the `code` that it gave, else its exit code.
    fn answer(&self) -> Option<String> {
        let status = self.status_code?;
        let code = self.code.filter(|_| status < LOWEST_STATUS);
        Some(code.map_or_else(|| status.to_string(), str::to_owned))
    }

    fn wait(&self) -> Option<String> {
        let (at, now) = self.due.filter(|_| self.reason == Some(Waits::NotBefore.as_str()))?;
        let wait = at.saturating_since(now);
        // One that is further away is shown with its date.
        Some(match wait > LONGEST_DURATION {
            true => at.to_string().chars().take(DATE).collect(),
            false => format!("in {}", text::duration(wait)),
        })
    }
}

/// The columns of an error where there is no terminal.
const LONGEST_ERROR: usize = 300;

/// Lower numbers are exit codes. Higher ones may be too, but commands seldom use them.
const LOWEST_STATUS: u16 = 100;

/// The characters of a date at the beginning of an instant.
const DATE: usize = "2027-01-31".len();

/// Above lines of rows.
pub(crate) const HEAD: &str = "KEY                      STATE     SENDS  DUE, WHY       LAST ERROR";

/// Above rows of Markdown.
pub(crate) const MARKDOWN_HEAD: &str = "\
| key | state | class | status | sends | not before | why | last error |
|---|---|---|---:|---:|---|---|---|";
