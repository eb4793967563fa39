//! `--retry-failed` at one host: lines of the job that failed wait again, on whichever host they failed.

use paceline_store::blocks::{BlockStore, SharedJob};
use serde_json::Value;

use crate::database::not_begun;
use crate::exit::Failure;
use crate::run::args::{FormatFlag, RunArgs};
use crate::run::hosts::settings;
use crate::text;

/// Failures that are asked for at once, where they are short.
const PAGE: u32 = 5_000;

/// # Errors
/// Refuses to choose by a status that the failures do not have; the store cannot be asked.
pub(super) async fn put_back(args: &RunArgs, store: &BlockStore, job: &SharedJob) -> Result<(), Failure> {
    if !args.retry_failed {
        return Ok(());
    }
    let failed = if args.only.takes_all() {
        store.retry_failed(job.id, None).await.map_err(not_begun)?
    } else if settings::form(job).0 == FormatFlag::Anthropic {
        return Err(Failure::refused(
            "--only-status cannot be used with --store where the lines are in Anthropic's form: the errors of that have no status",
        ));
    } else {
        let mut lines = Vec::new();
        let mut from = 0;
        loop {
            let page = store.failures(job.id, from, PAGE).await.map_err(not_begun)?;
            let Some(last) = page.last() else { break };
            from = last.line + 1;
            let is_meant = |body: &[u8]| args.only.takes(status(body), "");
            lines.extend(page.iter().filter(|failure| is_meant(&failure.body)).map(|failure| failure.line));
        }
        store.retry_failed(job.id, Some(&lines)).await.map_err(not_begun)?
    };
    tracing::info!("{} of the job that failed before will be sent again", text::counted(failed, "line"));
    Ok(())
}

/// That of the last answer of a line that failed.
fn status(body: &[u8]) -> Option<u16> {
    let line: Value = serde_json::from_slice(body).ok()?;
    line.pointer("/response/status_code")?.as_u64()?.try_into().ok()
}
