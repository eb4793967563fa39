//! Calls that a kill cut off: no run has their answers, and the provider may bill them.

use paceline_store::{Journal, JournalError, ModelUsage, StoredSnapshot};
use serde_json::Value;

/// Counts the calls in flight when the run before was killed with what calls of this job use. How many there were is known
/// as of its last snapshot; of `interrupted` items most may have waited for their permits.
pub(crate) fn count(
    journal: &Journal,
    interrupted: u64,
    snapshot: Option<&StoredSnapshot>,
) -> Result<(), JournalError> {
    let job: Value = snapshot.and_then(|snapshot| serde_json::from_str(&snapshot.job).ok()).unwrap_or_default();
    let lost = interrupted.min(job["in_flight"].as_u64().unwrap_or(0));
    if lost == 0 {
        return Ok(());
    }
    let before = journal.usage()?;
    let calls = before.iter().map(|usage| usage.calls).sum::<u64>().max(1);
    let each = |of: fn(&ModelUsage) -> u64| before.iter().map(of).sum::<u64>() / calls * lost;
    let (tokens_in, tokens_out) = (each(|usage| usage.tokens_in), each(|usage| usage.tokens_out));
    journal.add_usage(ModelUsage { calls: lost, tokens_in, tokens_out, ..ModelUsage::default() })
}
