//! Says what became of every domain, to people and to programs.

use std::fmt::Write as _;

use jiff::Timestamp;
use paceline_providers::escape::{markdown, printable};
use paceline_store::work::{State, StateCounts, Status, WorkItem};
use serde::Serialize;

use crate::planner::{Due, Kind, Left};

/// What a run did.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// SUCCESS, PARTIAL, FAILED or DEFERRED; PLANNED for a dry run.
    pub(crate) status: &'static str,
    /// When it began.
    pub(crate) started: Timestamp,
    /// How long it took.
    pub(crate) seconds: f64,
    /// Calls to the CA, all of them.
    pub(crate) calls: u64,
    /// Of these, those that asked for an order.
    pub(crate) order_calls: u64,
    /// Why it ended before everything was done, where it did.
    pub(crate) ended: Option<String>,
    /// What became of everything in the folder.
    pub(crate) domains: Vec<Row>,
    #[serde(skip)]
    exit_code: u8,
}

/// What became of one domain.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// The domain, or the file's name.
    pub(crate) domain: String,
    /// `renewed`, `failed`, `deferred`, `due` (dry run), `not_due`, `unusable` or `other`.
    pub(crate) state: &'static str,
    /// Why.
    pub(crate) reason: String,
    /// When the certificate that was found ends.
    pub(crate) not_after: Option<Timestamp>,
    /// When it is tried again, where a time is known.
    pub(crate) not_before: Option<Timestamp>,
    /// Tries that counted.
    pub(crate) attempts: u32,
    /// Tries that were put off by the CA.
    pub(crate) deferrals: u32,
    /// The class of the last error.
    pub(crate) class: Option<&'static str>,
    /// The CA's code for it.
    pub(crate) code: Option<String>,
    /// The CA's error message.
    #[serde(rename = "words")]
    pub(crate) message: Option<String>,
}

/// How a run went, beside its items.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunFigures {
    /// When it began.
    pub(crate) started: Timestamp,
    /// How long it took.
    pub(crate) seconds: f64,
    /// See [`Report::calls`] and [`Report::order_calls`].
    pub(crate) calls: (u64, u64),
    /// See [`Report::ended`].
    pub(crate) ended: Option<String>,
}

impl Report {
    /// The report of a run: its items are those of the plan, in its order.
    pub(crate) fn of_run(course: RunFigures, due: &[(Due, WorkItem)], left: &[Left]) -> Self {
        let renewed = due.iter().map(|(due, item)| of_item(due, item, course.ended.as_deref()));
        let domains: Vec<Row> = renewed.chain(left.iter().map(of_left)).collect();
        let mut counts = StateCounts::default();
        for row in &domains {
            let state = match row.state {
                "renewed" | "not_due" => State::Succeeded,
                "failed" | "unusable" => State::Failed,
                "deferred" => State::Deferred,
                _ => continue,
            };
            counts.by_state[state as usize] += 1;
        }
        let status = Status::of(&counts);
        Self::new(course, status.as_str(), status.exit_code(), domains)
    }

    /// The report of a dry run.
    pub(crate) fn of_plan(started: Timestamp, due: &[Due], left: &[Left]) -> Self {
        let row = |due: &Due| Row { not_after: due.not_after, ..Row::new(&due.domain, "due", due.reason.clone()) };
        let domains = due.iter().map(row).chain(left.iter().map(of_left)).collect();
        Self::new(RunFigures { started, ..RunFigures::default() }, "PLANNED", 0, domains)
    }

    fn new(course: RunFigures, status: &'static str, exit_code: u8, domains: Vec<Row>) -> Self {
        let RunFigures { started, seconds, calls: (calls, order_calls), ended } = course;
        Self { status, started, seconds, calls, order_calls, ended, domains, exit_code }
    }

    /// The exit code that goes with the status.
    pub(crate) const fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// One line: `PARTIAL: 19 renewed, 1 failed`.
    pub(crate) fn summary(&self) -> String {
        let count = |state| self.domains.iter().filter(|row| row.state == state).count();
        let parts: Vec<String> = ["renewed", "due", "failed", "deferred", "unusable", "not_due"]
            .into_iter()
            .map(|state| (count(state), state.replace('_', " ")))
            .filter(|(count, _)| *count > 0)
            .map(|(count, state)| format!("{count} {state}"))
            .collect();
        let parts = if parts.is_empty() { "no certificates".to_owned() } else { parts.join(", ") };
        let why = self.ended.as_ref().map_or_else(String::new, |why| format!(" ({})", printable(why)));
        format!("{}: {parts}{why}", self.status)
    }

    /// For a terminal: the summary, and a line for each domain that the user may ask about.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for row in self.domains.iter().filter(|row| row.state != "not_due") {
            let _ = writeln!(text, "{:<9} {}: {}", row.state, printable(&row.domain), printable(&row.explanation()));
        }
        text + &self.summary() + "\n"
    }

    /// As Markdown: the summary and a table of everything.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("# Certificates, {:.0}\n\n{}\n\n", self.started, markdown(&self.summary()));
        text += "| domain | state | ends | tries | why |\n|---|---|---|---|---|\n";
        for row in &self.domains {
            let ends = row.not_after.map_or_else(|| "-".to_owned(), |time| format!("{time:.0}"));
            let tries = row.attempts + row.deferrals;
            let [domain, explanation] = [&row.domain, &row.explanation()].map(|text| markdown(text));
            let _ = writeln!(text, "| {domain} | {} | {ends} | {tries} | {explanation} |", row.state);
        }
        text
    }
}

impl Row {
    fn new(domain: &str, state: &'static str, reason: String) -> Self {
        Self {
            domain: domain.to_owned(),
            state,
            reason,
            not_after: None,
            not_before: None,
            attempts: 0,
            deferrals: 0,
            class: None,
            code: None,
            message: None,
        }
    }

    /// The reason, what went wrong last, and when it goes on.
    fn explanation(&self) -> String {
        let mut text = self.reason.clone();
        if let Some(message) = &self.message {
            let code = self.code.as_ref().map_or_else(String::new, |code| format!("{code}: "));
            let _ = write!(text, "; {code}{message}");
        }
        if let Some(time) = self.not_before {
            let _ = write!(text, "; not before {time:.0}");
        }
        text
    }
}

fn of_item(due: &Due, item: &WorkItem, ended: Option<&str>) -> Row {
    let (state, reason) = match item.state {
        State::Succeeded => ("renewed", due.reason.clone()),
        State::Failed | State::Skipped | State::Cancelled | State::FellBack => {
            ("failed", item.reason.clone().unwrap_or_else(|| due.reason.clone()))
        }
        State::Waiting | State::InFlight | State::Deferred => {
            let why = item.reason.as_deref().or(ended).unwrap_or("waits for another try");
            ("deferred", format!("{}; {why}", due.reason))
        }
    };
    let last = item.last.as_ref().filter(|_| state != "renewed");
    Row {
        not_after: due.not_after,
        not_before: item
            .not_before
            .filter(|_| item.state == State::Waiting)
            .and_then(|time| Timestamp::from_millisecond(time.as_millis()).ok()),
        attempts: item.attempts,
        deferrals: item.deferrals,
        class: last.map(|last| last.class.as_str()),
        code: last.and_then(|last| last.code.clone()),
        message: last.map(|last| last.message.clone()),
        ..Row::new(&due.domain, state, reason)
    }
}

fn of_left(left: &Left) -> Row {
    let state = match left.kind {
        Kind::NotDue => "not_due",
        Kind::Unusable => "unusable",
        Kind::Other => "other",
    };
    Row { not_after: left.not_after, ..Row::new(&left.domain, state, left.reason.clone()) }
}

#[cfg(test)]
mod tests {
    use paceline::Class;
    use paceline_store::work::{Failure, Forgiven};

    use super::*;

    fn row(domain: &str, state: State, message: Option<&str>) -> (Due, WorkItem) {
        let due = Due {
            domain: domain.to_owned(),
            names: vec![domain.to_owned()],
            path: domain.into(),
            not_after: None,
            reason: "3 days left".to_owned(),
        };
        let item = WorkItem {
            id: 1,
            key: domain.to_owned(),
            group: "ca".into(),
            priority: 0,
            state,
            attempts: 1,
            deferrals: 0,
            abandoned: 0,
            tests: 0,
            forgiven: Forgiven::default(),
            crashes: 0,
            may_be_done: false,
            in_doubt: false,
            not_before: None,
            delay: std::time::Duration::ZERO,
            created: paceline::Timestamp::from_millis(0),
            first: None,
            ended: None,
            deadline: None,
            sent_for: None,
            delivered: None,
            answered: None,
            last: message.map(|message| Failure::new(Class::Invalid, message)),
            reason: None,
        };
        (due, item)
    }

    fn left(kind: Kind) -> Left {
        Left { domain: "other.org".to_owned(), kind, not_after: None, reason: "why".to_owned() }
    }

    #[test]
    fn the_worst_decides_about_the_whole() {
        use State::{Deferred, Failed, Succeeded, Waiting};
        for (states, kinds, status, exit_code) in [
            (&[Succeeded, Succeeded][..], &[Kind::NotDue, Kind::Other][..], "SUCCESS", 0),
            (&[], &[], "SUCCESS", 0),
            (&[Succeeded, Failed], &[], "PARTIAL", 1),
            (&[Succeeded], &[Kind::Unusable], "PARTIAL", 1),
            (&[Failed], &[Kind::NotDue], "PARTIAL", 1),
            (&[Failed], &[Kind::Unusable], "FAILED", 1),
            (&[Succeeded, Failed, Deferred], &[], "DEFERRED", 3),
            (&[Succeeded, Waiting], &[Kind::Unusable], "DEFERRED", 3),
        ] {
            let due: Vec<_> = states.iter().map(|&state| row("a.org", state, None)).collect();
            let left: Vec<_> = kinds.iter().map(|&kind| left(kind)).collect();
            let report = Report::of_run(RunFigures::default(), &due, &left);
            assert_eq!((report.status, report.exit_code()), (status, exit_code), "{states:?} {kinds:?}");
        }
    }

    #[test]
    fn words_from_outside_break_no_table_and_move_no_cursor() {
        let due = [
            row("a.org", State::Failed, Some("it | `said`\n\u{1b}[31m\u{202e}no")),
            row("b\n| c.org", State::Succeeded, None),
        ];
        let ended = Some("a\nperson | must".to_owned());
        let report = Report::of_run(RunFigures { ended, ..RunFigures::default() }, &due, &[]);
        let markdown = report.markdown();
        assert!(markdown.contains("it \\| \\`said\\` \u{fffd}\\[31m\u{fffd}no |\n"), "{markdown}");
        assert!(markdown.contains("\n| b \\| c.org | renewed |"), "{markdown}");
        assert!(markdown.contains("(a person \\| must)\n"), "{markdown}");
        assert_eq!(report.text().lines().count(), 3, "{}", report.text());
        assert!(!report.text().contains(['\u{1b}', '\u{202e}']));
        assert_eq!(report.summary(), "PARTIAL: 1 renewed, 1 failed (a person | must)");
    }
}
