//! Reads the results of a job page by page: ten million lines take the memory of one page.

use indicatif::{ProgressBar, ProgressStyle};
use paceline_store::blocks::BlockStore;

use super::files::Files;
use crate::exit::Failure;
use crate::{logging, text};

/// Results that are asked for at once, where they are short.
const PAGE: u32 = 5_000;

/// What was found, counted line by line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gathered {
    /// Lines of the input, as far as they are loaded.
    pub(super) lines: u64,
    /// Whether these are all.
    pub(super) complete: bool,
    pub(super) succeeded: u64,
    pub(super) failed: u64,
    /// Lines that may have been called twice.
    pub(super) again: u64,
}

impl Gathered {
    /// Lines that have no result, or had none when their turn came.
    pub(super) const fn missing(&self) -> u64 {
        let known = self.succeeded + self.failed;
        // Of an input that is not loaded whole one line is missing at the least.
        let unloaded = if self.complete { 0 } else { 1 };
        self.lines.saturating_sub(known) + unloaded
    }
}

/// Writes the results to the files.
pub(super) async fn gather(
    store: &BlockStore,
    name: &str,
    files: &mut Files,
    quiet: bool,
) -> Result<Gathered, Failure> {
    let gone = || Failure::interrupted(format!("the job {} was removed from the store", text::printable(name)));
    let job = store.find(name).await.map_err(Failure::interrupted)?.ok_or_else(gone)?;
    let bar = if logging::draws(quiet) { bar(job.loaded) } else { ProgressBar::hidden() };
    let mut found = Gathered { lines: 0, complete: false, succeeded: 0, failed: 0, again: 0 };
    let mut from = 0;
    loop {
        let page = store.results(job.id, from, PAGE).await.map_err(Failure::interrupted)?;
        let Some(last) = page.last() else { break };
        from = last.line + 1;
        for result in &page {
            files.write(result).map_err(Failure::interrupted)?;
            *(if result.ok { &mut found.succeeded } else { &mut found.failed }) += 1;
        }
        bar.set_position(from);
    }
    bar.finish_and_clear();
    // Afterwards: lines that were loaded meanwhile may have results that were written.
    let job = store.status(job.id).await.map_err(Failure::interrupted)?.ok_or_else(gone)?;
    (found.lines, found.complete, found.again) = (job.lines, job.complete, job.again);
    Ok(found)
}

fn bar(lines: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("collecting {bar:30} {human_pos}/{human_len} lines, {eta} left");
    let bar = logging::bars().add(ProgressBar::new(lines));
    bar.with_style(style.expect("the template is valid"))
}
