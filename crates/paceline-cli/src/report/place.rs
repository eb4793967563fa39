//! Where the page may be written: it takes the place of an earlier page, and of no other file.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use paceline_store::{Paths, is_same_file};

use super::page::TITLE;
use crate::exit::Failure;
use crate::stats;

/// The title of a page stands within so many bytes of its beginning.
const HEAD: u64 = 4_096;

/// Refuses a place that is a file of the job or its input, and one where something else than a page is.
///
/// # Errors
/// What is there, and what to do.
pub(super) fn check(html: &Path, results: Option<&Path>, journal: &Path, input: &Path) -> Result<(), Failure> {
    let files = stats::results_of(journal).flat_map(|results| files(&results, journal)).collect::<Vec<_>>();
    let named = files.iter().map(|(what, file)| (*what, &**file)).chain([("the input", input)]);
    let own =
        named.into_iter().find(|(_, file)| is_same_file(file, html)).map(|(what, _)| format!("{what} of the job"));
    let what = match own {
        Some(own) => own,
        None if holds_something_else(html) => "no page of `paceline report`".to_owned(),
        None => return Ok(()),
    };
    // A user who takes --html for a switch names the results behind it.
    let is_of_a_job = Paths::beside(html).journal.is_some_and(|journal| journal.exists());
    let advice = match results {
        None if is_of_a_job => {
            let (results, page) = (html.display(), html.with_extension("html"));
            format!("for the page of this job: paceline report {results} --html {}", page.display())
        }
        _ => {
            let page = journal.with_extension("html");
            format!("choose a file for the page, such as --html {}", page.display())
        }
    };
    Err(Failure::refused(format!("--html {} would be overwritten, and is {what}: {advice}", html.display())))
}

/// The files of a job, whether or not they are there.
fn files(results: &Path, journal: &Path) -> Vec<(&'static str, PathBuf)> {
    let paths = Paths::beside(results).with_journal(journal.to_owned());
    let passing = paths.temporary_files();
    let packed = paths.packed();
    let named = [
        ("the journal", journal.to_owned()),
        ("the results", paths.output),
        ("the compressed results", packed),
        ("the errors", paths.errors),
        ("the refused answers", paths.refused_answers),
        ("the report", paths.report),
        ("the lock", paths.lock),
        ("the copy of the input", paths.input),
    ];
    named.into_iter().chain(passing.into_iter().map(|file| ("a file", file))).collect()
}

/// Whether a file is there that has a content, and is no page. What is no file, such as a pipe, holds nothing.
fn holds_something_else(path: &Path) -> bool {
    if !path.metadata().is_ok_and(|about| about.is_file() && about.len() > 0) {
        return false;
    }
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    let is_page =
        head.starts_with(b"<!doctype html>") && head.windows(TITLE.len()).any(|part| part == TITLE.as_bytes());
    read.is_err() || !is_page
}
