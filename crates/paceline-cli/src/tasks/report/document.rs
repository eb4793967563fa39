//! The report as a text: its figures first, then its rows. They are from one reading of the store.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Seek as _, Write};

use paceline_store::work::{Filter, State, WorkItem, WorkStore};
use serde_json::{Map, Value, json};
use tempfile::SpooledTempFile;

use super::Form;
use super::by_group::ByGroup;
use super::store_summary::StoreSummary;
use super::worker::Worker;
use crate::exit::Failure;
use crate::tasks::groups::Groups;
use crate::tasks::pages::Pages;
use crate::tasks::row::{HEAD, MARKDOWN_HEAD, Row};
use crate::text;

/// Rows that people are shown.
const SHOWN: usize = 20;

/// Rows in memory before they go to a temporary file.
const IN_MEMORY: usize = 4 << 20;

/// What a report is of.
pub(super) struct Of<'a> {
    /// Items of this group alone.
    pub(super) group: Option<&'a str>,
    pub(super) form: Form,
    /// Where the items of each group are counted.
    pub(super) by_group: Option<ByGroup>,
}

/// A report that is complete and adds up.
pub(super) struct Document {
    form: Form,
    by_group: Option<ByGroup>,
    /// What a command line calls the store.
    shown: String,
    standing: StoreSummary,
    worker: Worker,
    calls: Calls,
    rows: Rows,
}

/// The calls that items remember.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    all: u64,
    resends: u64,
    deferrals: u64,
    /// Calls that only tested a failing server.
    tests: u64,
    abandoned: u64,
    /// Those of an item that its worker may have begun before that died, beside what the item remembers.
    crashes: u64,
}

impl Document {
    /// Reads all items, a page at a time: the rows wait in a file, since the figures stand before them.
    ///
    /// # Errors
    /// The store cannot be read, or what was counted one by one is not what it counts.
    pub(super) async fn read(
        groups: Groups,
        (store, shown): (&dyn WorkStore, String),
        worker: Worker,
        Of { group, form, by_group }: Of<'_>,
    ) -> Result<Self, Failure> {
        let of_group = Filter { group: group.map(str::to_owned), ..Filter::default() };
        let mut standing = StoreSummary::before_the_first(groups, store).await.map_err(Failure::interrupted)?;
        standing.retain_of(store, &of_group).await.map_err(Failure::interrupted)?;
        let (calls, rows) = (Calls::default(), Rows::default());
        let mut document = Self { form, by_group, shown, standing, worker, calls, rows };
        let before = store.counts().await.map_err(Failure::interrupted)?.total();
        let mut pages = Pages::of(store, of_group, None);
        while let Some(items) = pages.next().await.map_err(Failure::interrupted)? {
            for item in &items {
                document.take(item).map_err(|error| Failure::interrupted(format!("cannot keep the rows: {error}")))?;
            }
        }
        let after = store.counts().await.map_err(Failure::interrupted)?.total();
        if group.is_none() {
            document.check(before, after)?;
        }
        Ok(document)
    }

    fn take(&mut self, item: &WorkItem) -> io::Result<()> {
        self.standing.count(item);
        self.by_group.iter_mut().for_each(|groups| groups.count(item));
        let calls = u64::from(item.calls());
        self.calls.all += calls;
        self.calls.tests += u64::from(item.tests);
        self.calls.resends += calls.saturating_sub(1);
        self.calls.deferrals += u64::from(item.deferrals);
        self.calls.abandoned += u64::from(item.abandoned);
        self.calls.crashes += u64::from(item.crashes.saturating_sub(item.abandoned));
        if item.state == State::Succeeded && calls <= 1 {
            return Ok(());
        }
        self.rows.add(self.form, &Row::reported(item, self.standing.groups()), item.state == State::Succeeded)
    }

    /// Items are added while a report is read, and others are pruned.
    fn check(&self, before: u64, after: u64) -> Result<(), Failure> {
        let counted = self.standing.total();
        if adds_up(counted, before, after) {
            return Ok(());
        }
        Err(Failure::interrupted(format!(
            "the report does not add up: the store has {after} items, but {counted} were read: it may be damaged"
        )))
    }

    /// Writes it.
    pub(super) fn write(&mut self, out: &mut dyn Write) -> io::Result<()> {
        match self.form {
            Form::Text => out.write_all(self.text().as_bytes()),
            Form::Json => self.write_json(out),
            Form::Markdown => self.write_markdown(out),
        }
    }

    fn text(&self) -> String {
        let mut text = self.standing.headline() + "\n";
        let worker = self.worker.line(self.standing.deferred() > 0);
        for line in [self.calls.describe()].into_iter().chain(worker).chain(self.standing.lines(&self.shown)) {
            text::wrapped(&mut text, "  ", &line);
        }
        text += &self.by_group.as_ref().map(ByGroup::table).unwrap_or_default();
        if self.rows.count == 0 {
            return text;
        }
        writeln!(text, "\n{HEAD}").expect("a string takes everything");
        let shown: Vec<&String> = self.rows.failed.iter().chain(&self.rows.retried).take(SHOWN).collect();
        shown.iter().for_each(|row| text += &format!("{row}\n"));
        let more = self.rows.count - shown.len() as u64;
        if more > 0 {
            text += &format!("... and {}; --json has all of them\n", text::counted(more, "more row"));
        }
        text
    }

    fn write_json(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let mut figures = self.standing.json();
        let closed = ["groups", "scopes"].map(|key| (key.to_owned(), figures.remove(key).unwrap_or_default()));
        figures.extend(self.calls.json());
        figures.extend(self.by_group.iter().map(|groups| ("by_group".to_owned(), groups.json())));
        figures.insert("worker".to_owned(), self.worker.json());
        figures.extend(closed);
        let figures = Value::Object(figures).to_string();
        write!(out, "{},\"items\":[", figures.trim_end_matches('}'))?;
        self.rows.copy_to(out)?;
        writeln!(out, "{}]}}", if self.rows.count > 0 { "\n" } else { "" })
    }

    fn write_markdown(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let standing = &self.standing;
        writeln!(out, "# Report\n\n{}\n", standing.headline())?;
        writeln!(out, "- {}", self.calls.describe())?;
        for line in standing.lines(&self.shown) {
            writeln!(out, "- {}", text::markdown(&line))?;
        }
        if let Some(groups) = &self.by_group {
            writeln!(out, "\n{}", groups.markdown())?;
        }
        if self.rows.count > 0 {
            writeln!(out, "\n{MARKDOWN_HEAD}")?;
            self.rows.copy_to(out)?;
        }
        Ok(())
    }
}

impl Calls {
    fn describe(self) -> String {
        let mut line = text::counted(self.all, "call");
        for (calls, what) in [
            (self.resends, "of them repeated"),
            (self.abandoned, "cut off"),
            (self.tests, "tested a failing server alone"),
        ] {
            if calls > 0 {
                line += &format!(", {} {what}", text::count(calls));
            }
        }
        if self.crashes > 0 {
            line += &format!(", and up to {} more that a crash cut off", text::count(self.crashes));
        }
        line
    }

    fn json(self) -> Map<String, Value> {
        let Self { all, resends, deferrals, tests, abandoned, crashes } = self;
        let figures = json!({
            "calls": all,
            "resends": resends,
            "deferrals": deferrals,
            "abandoned": abandoned,
            "tests": tests,
            "crashes": crashes,
        });
        figures.as_object().cloned().unwrap_or_default()
    }
}

/// A row for each item that did not simply succeed.
struct Rows {
    count: u64,
    /// The first rows for people: of items that did not succeed, and of those that did in the end.
    failed: Vec<String>,
    retried: Vec<String>,
    /// All rows for scripts and Markdown.
    all: BufWriter<SpooledTempFile>,
}

impl Default for Rows {
    fn default() -> Self {
        let all = BufWriter::new(SpooledTempFile::new(IN_MEMORY));
        Self { count: 0, failed: Vec::new(), retried: Vec::new(), all }
    }
}

impl Rows {
    fn add(&mut self, form: Form, row: &Row<'_>, succeeded: bool) -> io::Result<()> {
        self.count += 1;
        match form {
            Form::Text => {
                let shown = if succeeded { &mut self.retried } else { &mut self.failed };
                if shown.len() < SHOWN {
                    shown.push(row.line());
                }
                Ok(())
            }
            Form::Json => {
                self.all.write_all(if self.count == 1 { b"\n" } else { b",\n" })?;
                Ok(serde_json::to_writer(&mut self.all, row)?)
            }
            Form::Markdown => writeln!(self.all, "{}", row.markdown()),
        }
    }

    fn copy_to(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.all.flush()?;
        let file = self.all.get_mut();
        file.rewind()?;
        io::copy(file, out).map(|_| ())
    }
}

/// Whether so many items may have been read one by one, where the store had so many before and after.
fn adds_up(counted: u64, before: u64, after: u64) -> bool {
    (before.min(after)..=before.max(after)).contains(&counted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_adds_up_also_while_items_are_added_or_pruned() {
        for (counted, before, after, may_be) in [
            (600, 600, 600, true),
            (599, 600, 600, false),
            (610, 600, 620, true),
            (600, 600, 0, true),
            (469, 600, 139, true),
            (100, 600, 139, false),
        ] {
            assert_eq!(adds_up(counted, before, after), may_be, "{counted} of {before}, then {after}");
        }
    }
}
