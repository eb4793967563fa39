//! `--retry-failed` at one host: lines of the job that failed wait again, on whichever host they failed.

use http::{HeaderMap, Method};
use paceline::clock;
use paceline_config::Upstream;
use paceline_providers::{Answer, Dialect};
use paceline_store::LastFailure;
use paceline_store::blocks::{BlockStore, SharedJob};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::database::not_begun;
use crate::exit::Failure;
use crate::hosts::settings;
use crate::run_args::{FormatFlag, RunArgs};
use crate::text;

/// Failures that are asked for at once, where they are short.
const PAGE: u32 = 5_000;

/// # Errors
/// Refuses to choose by a status that the failures do not have; the store cannot be asked.
pub(super) async fn put_back(
    args: &RunArgs,
    upstream: &Upstream,
    store: &BlockStore,
    job: &SharedJob,
) -> Result<(), Failure> {
    if !args.retry_failed {
        return Ok(());
    }
    let failed = if args.only.takes_all() {
        store.retry_failed(job.id, None).await.map_err(not_begun)?
    } else if settings::form(job).0 == FormatFlag::Anthropic {
        return Err(Failure::refused(
            "--only-status cannot be used with --store where the lines are in Anthropic's form: the errors of that have no status",
        ));
    } else if args.only.spares_held() {
        return Err(Failure::refused(
            "--only-status not_held cannot be used with --store: the errors there do not say which items are held",
        ));
    } else {
        let mut lines = Vec::new();
        let mut from = 0;
        loop {
            let page = store.failures(job.id, from, PAGE).await.map_err(not_begun)?;
            let Some(last) = page.last() else { break };
            from = last.line + 1;
            let is_meant = |body: &[u8]| {
                let (status, code) = last_answer(body, &upstream.dialect);
                args.only.means(&LastFailure { status, code: code.as_deref(), ..LastFailure::default() })
            };
            lines.extend(page.iter().filter(|failure| is_meant(&failure.body)).map(|failure| failure.line));
        }
        store.retry_failed(job.id, Some(&lines)).await.map_err(not_begun)?
    };
    tracing::info!("{} of the job that failed before will be sent again", text::counted(failed, "line"));
    Ok(())
}

/// The line of a result, as far as it says how its item failed.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    response: Option<Answered<'a>>,
    error: Option<Coded>,
}

#[derive(Deserialize)]
struct Answered<'a> {
    status_code: u16,
    #[serde(borrow)]
    body: &'a RawValue,
}

#[derive(Deserialize)]
struct Coded {
    code: Option<String>,
}

/// The status and the code of the last answer of a line that failed, as a journal would have them.
fn last_answer(line: &[u8], dialect: &Dialect) -> (Option<u16>, Option<String>) {
    let Ok(Line { response, error }) = serde_json::from_slice(line) else { return (None, None) };
    let status = response.as_ref().map(|answered| answered.status_code);
    let code = error.and_then(|error| error.code).or_else(|| {
        let Answered { status_code: status, body } = response?;
        let answer = Answer { status, headers: &HeaderMap::new(), body: body.get().as_bytes(), path: "" };
        dialect.read_of(&Method::POST, &answer, clock::wall()).code
    });
    (status, code)
}

#[cfg(test)]
mod tests {
    use paceline_providers::Provider;

    use super::*;

    #[test]
    fn a_line_says_by_which_code_it_failed() {
        let dialect = Dialect::from(Provider::OpenAi);
        for (line, status, code) in [
            (r#"{"response":null,"error":{"code":"timeout","message":"m"}}"#, None, Some("timeout")),
            (
                r#"{"response":{"status_code":400,"body":{"error":{"code":"bad_prompt","message":"m"}}},"error":null}"#,
                Some(400),
                Some("bad_prompt"),
            ),
            (r#"{"response":{"status_code":500,"body":"no"},"error":null}"#, Some(500), None),
            ("{", None, None),
        ] {
            assert_eq!(last_answer(line.as_bytes(), &dialect), (status, code.map(str::to_owned)), "{line}");
        }
    }
}
