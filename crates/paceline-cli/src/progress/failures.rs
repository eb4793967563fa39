//! Items that have failed for good: of each kind the first few have a line of their own in the log, the others one for all, now
//! and then.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline::Instant;
use paceline_core::Class;

use super::resends::{EVERY, kinds};
use crate::text;

/// After that long the next ones of each kind have lines of their own again: a worker may stay for weeks.
const ANEW: Duration = Duration::from_secs(3_600);

/// So many of each kind have a line of their own.
const TOLD: u64 = 10;

/// So many of all under `--quiet`.
const TOLD_WHEN_QUIET: u64 = 5;

/// Characters of a message in the line for the others.
const LONGEST_CAUSE: usize = 120;

/// The failures of a run, as far as the log is concerned.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    is_quiet: bool,
    are_commands: bool,
    /// Where all of them stand.
    place: &'static str,
    /// When the counts of those that have a line of their own began anew.
    began: Option<Instant>,
    failed: u64,
    /// How many have a line of their own, by kind.
    told: BTreeMap<String, u64>,
    /// Those that no line has told of yet.
    untold: BTreeMap<String, u64>,
    /// The message of the last of them.
    last: String,
    reported: Option<Instant>,
}

impl Failures {
    pub(crate) const fn new(is_quiet: bool, place: &'static str) -> Self {
        Self {
            is_quiet,
            are_commands: false,
            place,
            began: None,
            failed: 0,
            told: BTreeMap::new(),
            untold: BTreeMap::new(),
            last: String::new(),
            reported: None,
        }
    }

    /// They are those of commands: no request was made, and a status is an exit code.
    pub(crate) fn are_of_commands(&mut self) {
        self.are_commands = true;
    }

    /// An item has failed. Returns whether it has a line of its own.
    pub(crate) fn add(&mut self, class: Class, status: Option<u16>, message: &str) -> bool {
        self.failed += 1;
        let (what, of) =
            if self.are_commands { (class.as_str(), "exit code") } else { (class.description(), "status") };
        let kind = status.map_or_else(|| what.to_owned(), |status| format!("{what}, {of} {status}"));
        let told = self.told.entry(kind.clone()).or_default();
        if *told < TOLD && (!self.is_quiet || self.failed <= TOLD_WHEN_QUIET) {
            *told += 1;
            return true;
        }
        *self.untold.entry(kind).or_default() += 1;
        self.last = text::cut(&text::printable(message), LONGEST_CAUSE);
        false
    }

    /// The line for the others, when it is time for one; under `--quiet` as the counts begin anew.
    pub(crate) fn line(&mut self, now: Instant) -> Option<String> {
        let begins_anew = now >= *self.began.get_or_insert(now) + ANEW;
        if begins_anew {
            (self.began, self.failed) = (Some(now), 0);
            self.told.clear();
        }
        if (self.is_quiet && !begins_anew) || self.reported.is_some_and(|reported| now < reported + EVERY) {
            return None;
        }
        let line = self.last_line();
        if line.is_some() {
            self.reported = Some(now);
        }
        line
    }

    /// The line for those that no line has told of, at the end of a run.
    pub(crate) fn last_line(&mut self) -> Option<String> {
        let untold = std::mem::take(&mut self.untold);
        (!untold.is_empty()).then(|| {
            format!(
                "{} failed; {}: {}; the last one: {} (-v shows each)",
                text::counted(untold.values().sum(), "more item"),
                self.place,
                kinds(&untold),
                self.last
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_of_each_kind_are_told_and_one_line_in_ten_seconds_counts_the_others() {
        let mut failures = Failures::new(false, "all stand there");
        let mut told =
            |status, times| (0..times).filter(|_| failures.add(Class::Invalid, status, "no\x1b page")).count();
        assert_eq!([told(Some(404), 1_200), told(Some(410), 3), told(None, 12)], [10, 3, 10]);
        let line = failures.line(at(0)).expect("the first");
        assert!(
            line.starts_with(
                "1,192 more items failed; all stand there: request refused (2), request refused, status 404 (1,190); the last one: no"
            ),
            "{line}"
        );
        assert!(!line.contains('\x1b'), "{line:?}");
        assert_eq!(failures.line(at(60)), None, "nothing failed since");
        assert!(!failures.add(Class::Invalid, Some(404), "no page"));
        assert!(failures.line(at(61)).is_some_and(|line| line.starts_with("1 more item failed; ")));
        assert!(!failures.add(Class::Invalid, Some(404), "no page"));
        assert_eq!(failures.line(at(62)), None, "it is too early");
        assert!(
            failures
                .last_line()
                .is_some_and(|line| line.contains(": request refused, status 404; the last one: no page"))
        );
        assert_eq!(failures.last_line(), None, "they are told");
        assert_eq!(failures.line(at(3_600)), None);
        assert!(failures.add(Class::Invalid, Some(404), "no page"), "an hour later");
    }

    #[test]
    fn of_commands_the_class_and_the_exit_code_are_told() {
        let mut failures = Failures::new(true, "all stand there");
        failures.are_of_commands();
        for _ in 0..6 {
            failures.add(Class::Invalid, Some(1), "no such customer");
        }
        let line = failures.last_line().expect("one has no line of its own");
        assert!(line.contains(": invalid, exit code 1; the last one: no such customer"), "{line}");
    }

    #[test]
    fn under_quiet_five_of_all_are_told_and_the_others_at_the_end() {
        let mut failures = Failures::new(true, "all stand there");
        let kinds = [Some(404), Some(410)].into_iter().cycle().take(8);
        assert_eq!(kinds.filter(|status| failures.add(Class::Invalid, *status, "no page")).count(), 5);
        assert_eq!(failures.line(at(60)), None);
        assert!(failures.line(at(3_660)).is_some_and(|line| line.starts_with("3 more items failed; ")));
        let kinds = [Some(404), Some(410)].into_iter().cycle().take(8);
        assert_eq!(kinds.filter(|status| failures.add(Class::Invalid, *status, "no page")).count(), 5, "an hour later");
        assert!(failures.last_line().is_some_and(|line| line.starts_with("3 more items failed; ")));
    }
}
