//! Lines that cannot be sent: the first of them by line and code, the others counted.

use paceline_store::{Conflict, Conflicts, Duplicates};

use super::error::ASKED_ANEW;
use crate::lines::line::LineError;
use crate::text;

/// What is wrong with an input.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    /// In the order of their first lines.
    named: Vec<Alike>,
    count: u64,
}

/// Lines with the same error.
#[derive(Debug)]
struct Alike {
    /// That of the first line.
    error: LineError,
    /// The lines that are named.
    lines: Vec<u64>,
    count: u64,
}

impl Alike {
    fn of(error: LineError) -> Self {
        Self { lines: vec![error.line], count: 1, error }
    }

    /// Whether another line is wrong in the same way; where in its table a row stands makes no difference.
    fn is_like(&self, other: &LineError) -> bool {
        fn what(error: &LineError) -> (&str, Option<&str>, &str) {
            (error.code, error.param, without_row(&error.message))
        }
        what(other) == what(&self.error)
    }

    fn add(&mut self, other: &LineError) {
        self.error.message = without_row(&self.error.message).to_owned();
        self.count += 1;
        if self.lines.len() < Wrong::LINES {
            self.lines.push(other.line);
        }
    }

    /// `line 7`, `lines 7, 9`, `lines 7, 8, 9 and 2,997 more`.
    fn place(&self) -> String {
        let lines: Vec<_> = self.lines.iter().map(u64::to_string).collect();
        let (noun, lines, more) =
            (if self.count == 1 { "line" } else { "lines" }, lines.join(", "), self.count - self.lines.len() as u64);
        if more > 0 { format!("{noun} {lines} and {} more", text::count(more)) } else { format!("{noun} {lines}") }
    }
}

/// What is wrong with a row, without its number.
fn without_row(message: &str) -> &str {
    let numbered = message.strip_prefix("row ").and_then(|rest| rest.split_once(": "));
    numbered.filter(|(row, _)| row.bytes().all(|byte| byte.is_ascii_digit())).map_or(message, |(_, rest)| rest)
}

impl Wrong {
    /// Errors that are named.
    pub(crate) const NAMED: usize = 20;

    /// Lines that are named for each.
    const LINES: usize = 3;

    /// The code of a line with a repeated id.
    pub(crate) const REPEATED: &str = "duplicate_custom_id";

    /// Takes a line that comes after those before.
    pub(crate) fn add(&mut self, error: LineError) {
        self.count += 1;
        if let Some(alike) = self.named.iter_mut().find(|alike| alike.is_like(&error)) {
            alike.add(&error);
        } else if self.named.len() < Self::NAMED {
            self.named.push(Alike::of(error));
        }
    }

    /// Adds the lines with repeated ids.
    pub(crate) fn add_repeated(&mut self, repeated: &Duplicates) {
        self.count += repeated.count;
        self.named.extend(repeated.first.iter().map(|repeat| {
            Alike::of(LineError {
                line: repeat.line,
                code: Self::REPEATED,
                param: Some("custom_id"),
                message: format!("the same as in line {}: each line needs its own", repeat.first_line),
            })
        }));
        self.named.sort_by_key(|alike| alike.error.line);
        self.named.truncate(Self::NAMED);
    }

    /// How many there are.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// That they count as failed, and how they are sent after all.
    pub(crate) fn count_as_failed(&self, input: &str) -> String {
        let (count, they_are, them) =
            if self.count == 1 { ("counts", "it is", "it") } else { ("count", "they are", "them") };
        let lines = self.count_words(input);
        format!("{lines} and {count} as failed; once {they_are} corrected, --retry-failed sends {them}")
    }

    /// How many lines of `input` it is, as the beginning of a sentence.
    pub(crate) fn count_words(&self, input: &str) -> String {
        format!("{} of {input} cannot be sent", text::counted(self.count, "line"))
    }

    /// Those that are named, each line with its error, in the order of the lines.
    pub(crate) fn errors(&self) -> Vec<LineError> {
        let of_line = |alike: &Alike, line: u64| LineError { line, ..alike.error.clone() };
        let mut errors: Vec<_> =
            self.named.iter().flat_map(|alike| alike.lines.iter().map(move |line| of_line(alike, *line))).collect();
        errors.sort_by_key(|error| error.line);
        errors
    }

    /// Those that are named, each error on a line of its own.
    pub(crate) fn list(&self) -> String {
        let mut list = String::new();
        for alike in &self.named {
            list += &format!("\n  {}: {}", alike.place(), text::printable(&alike.error.what()));
        }
        let more = self.count - self.named.iter().map(|alike| alike.count).sum::<u64>();
        if more > 0 {
            list += &format!("\n  and {more} more");
        }
        list
    }
}

/// What can be done where the input is not the one that the job began with.
pub(crate) const OTHER_INPUT: &str = "to send failed items as their lines stand now, use --retry-failed; to continue with the \
                                      new input, use --accept-changed-input (items that ended must be unchanged)";

/// Why a job cannot be resumed with another input; `accepted`: with --accept-changed-input, `repaired`: with --retry-failed;
/// `flags`: those that make its requests and have other values than before, in words.
pub(crate) fn conflicts(
    conflicts: &Conflicts,
    input: &str,
    accepted: bool,
    repaired: bool,
    flags: Option<&str>,
) -> String {
    let (their, have) = if conflicts.count == 1 { ("its item", "has") } else { ("their items", "have") };
    let mut list = if accepted {
        let items = text::counted(conflicts.count, "item");
        format!("{items} that ended can no longer be found unchanged in {input}, so no request was sent:")
    } else {
        let of = if flags.is_some() { "the requests of " } else { "" };
        let lines = of.to_owned() + &text::counted(conflicts.count, "line");
        let unwanted = match repaired {
            true if conflicts.failed_gone => {
                "otherwise than --retry-failed allows (the line of a failed item may be corrected, and not \
                                              removed)"
                    .to_owned()
            }
            true => format!("although {their} {have} not failed"),
            false => "since this job began".to_owned(),
        };
        format!("{lines} of {input} changed {unwanted}, so no request was sent:")
    };
    for Conflict { line, before } in &conflicts.first {
        list += &match (line, before) {
            (Some(line), Some(before)) if line == before => {
                format!("\n  line {line}: the request changed, its id did not")
            }
            (Some(line), Some(before)) => {
                format!("\n  line {line}: another request had its id before, in line {before}")
            }
            (Some(line), None) => format!("\n  line {line}: its id is new"),
            (None, before) => format!("\n  the id of the former line {} is gone", before.unwrap_or_default()),
        };
    }
    let listed = |is_listed: fn(&&Conflict) -> bool| conflicts.first.iter().filter(is_listed).count();
    let moved = listed(|conflict| conflict.line.is_none()).min(listed(|conflict| conflict.before.is_none()));
    let more = conflicts.count.saturating_sub((conflicts.first.len() - moved) as u64);
    if more > 0 {
        list += &format!("\n  and {more} more");
    }
    if let Some(flags) = flags {
        let flags = text::printable(flags);
        list += &format!("\n{flags}, {ASKED_ANEW}");
        return list;
    }
    if conflicts.named_by_lines {
        list += "\nlines without an id are named by their numbers, so that all behind one that came or went count as others: keep their number, \
                 or give each an id (custom_id, a column id of a table, or --id-column)";
    }
    list += if conflicts.count == 1 { "\nrestore that line, " } else { "\nrestore those lines, " };
    if !repaired && !conflicts.failed_gone {
        list += &format!("add --retry-failed if {their} failed, ");
    }
    if !accepted && !conflicts.all_ended {
        list += &format!("add --accept-changed-input if {their} {have} not ended, ");
    }
    list + "or use another output for the new input"
}

#[cfg(test)]
mod tests {
    use paceline_store::Duplicate;

    use super::*;

    #[test]
    fn a_line_that_moved_is_listed_twice_and_counts_once() {
        let [gone, new] = [(None, Some(5)), (Some(3), None)].map(|(line, before)| Conflict { line, before });
        let found = |count, all_ended| Conflicts {
            first: vec![gone, new],
            count,
            named_by_lines: true,
            all_ended,
            failed_gone: false,
        };
        let told = |count| conflicts(&found(count, false), "in.csv", false, true, None);
        let once = told(1);
        assert!(once.contains("add --accept-changed-input if its item has not ended"), "{once}");
        let ended = conflicts(&found(1, true), "in.csv", false, false, None);
        assert!(ended.ends_with(
            "restore that line, add --retry-failed if its item failed, or use another output for the new input"
        ));
        assert!(once.starts_with("1 line of in.csv changed") && !once.contains(" more"), "{once}");
        assert!(once.contains("lines without an id are named by their numbers"), "{once}");
        assert!(told(4).contains("\n  and 3 more\n"), "{}", told(4));
    }

    #[test]
    fn the_first_twenty_errors_are_named_by_line_whatever_is_wrong() {
        let mut wrong = Wrong::default();
        for line in (2..=60).step_by(2) {
            wrong.add(LineError { line, code: "invalid_url", param: Some("url"), message: format!("no {line}") });
        }
        let first = (3..=41).step_by(2).map(|line| Duplicate { line, first_line: 1 }).collect();
        wrong.add_repeated(&Duplicates { first, count: 100 });
        assert_eq!(wrong.count_words("in.jsonl"), "130 lines of in.jsonl cannot be sent");
        let list = wrong.list();
        let lines: Vec<_> = list.lines().collect();
        assert_eq!(lines[1], "  line 2: invalid_url: url: no 2");
        assert_eq!(
            lines[2],
            "  line 3: duplicate_custom_id: custom_id: the same as in line 1: each line needs its own"
        );
        assert_eq!((lines[20].starts_with("  line 21: "), lines[21]), (true, "  and 110 more"));
        assert_eq!(lines.len(), 22);
    }

    #[test]
    fn lines_with_the_same_error_are_one_entry() {
        let mut wrong = Wrong::default();
        for line in 1..=3_000 {
            let message = if line == 2 || line == 4 { "other" } else { "missing" };
            wrong.add(LineError { line, code: "invalid_url", param: Some("url"), message: message.to_owned() });
        }
        let expected =
            "\n  lines 1, 3, 5 and 2,995 more: invalid_url: url: missing\n  lines 2, 4: invalid_url: url: other";
        assert_eq!(wrong.list(), expected);

        let mut wrong = Wrong::default();
        for row in 1..=20 {
            let message = format!("row {row}: no value for {{{{ cty }}}}");
            wrong.add(LineError { line: row + 1, code: "invalid_row", param: None, message });
        }
        assert_eq!(wrong.list(), "\n  lines 2, 3, 4 and 17 more: invalid_row: no value for {{ cty }}");
    }
}
