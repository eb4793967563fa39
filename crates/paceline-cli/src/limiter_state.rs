//! A limiter's state for the next process: `run` saves it in its journal, `tasks run` in its store.
//!
//! It is at most half a second old when a process is killed, and exact when it ends. A configured limit holds over starts, what
//! headers announced keeps its age, and the learnt pace is where the next one begins, the more carefully
//! the longer ago that was.

use std::sync::Arc;

use paceline::{LevelState, Limiter, LimiterState, PacerState, Snapshot};
use paceline_store::ACCOUNT;

use crate::account::SharedLimits;

/// Encodes the state of the account and of the scopes that have changed, each as one text that can be restored by itself.
pub(crate) fn encode_parts(limiter: &Limiter, changed: &Snapshot) -> Vec<(Arc<str>, String)> {
    let names = changed.scopes.iter().map(|scope| &*scope.name);
    let LimiterState { at, pacer: PacerState { account, scopes, .. } } = limiter.export_of(names);
    let part = |name: &str, pacer| (name.into(), encode(&LimiterState { at, pacer }));
    let account = part(ACCOUNT, PacerState { account, ..PacerState::default() });
    let scopes = scopes.into_iter().map(|scope| {
        let name = scope.name.clone();
        part(&name, PacerState { scopes: vec![scope], ..PacerState::default() })
    });
    std::iter::once(account).chain(scopes).collect()
}

/// Encodes a state as JSON.
pub(crate) fn encode(state: &LimiterState) -> String {
    serde_json::to_string(state).expect("numbers and words")
}

/// Restores states from such texts. One that cannot be read, or is of a later version, is skipped with a log line.
///
/// Holds, pauses and stops are left out: journal and store have them in tables of their own, from the moment when they begin, and
/// without those that a person has ended.
pub(crate) fn restore<'a>(limiter: &Limiter, shared: &SharedLimits, texts: impl IntoIterator<Item = &'a str>) {
    if let Err(error) = restore_as(limiter, shared.know_earlier_runs(), texts, without_holds) {
        tracing::warn!("limits start from zero, as if nothing had been sent before: {error}");
    }
}

/// Restores states from such texts, of each level what `kept` leaves.
///
/// The counts of windows are left out where `windows_are_known`: the runs of the account are known to have sent what still
/// counts, and among them are those that saved these texts.
///
/// # Errors
/// A text that cannot be read, or is of a later version: nothing of it and of those behind it is restored.
pub(crate) fn restore_as<'a>(
    limiter: &Limiter,
    windows_are_known: bool,
    texts: impl IntoIterator<Item = &'a str>,
    kept: fn(LevelState) -> LevelState,
) -> Result<(), String> {
    let kept = |mut level: LevelState| {
        if windows_are_known {
            level.windows.clear();
        }
        kept(level)
    };
    texts.into_iter().try_for_each(|text| {
        let mut state: LimiterState = serde_json::from_str(text).map_err(|error| error.to_string())?;
        state.pacer.account = kept(state.pacer.account);
        state.pacer.scopes = state.pacer.scopes.into_iter().map(&kept).collect();
        limiter.restore(&state).map_err(|error| error.to_string())
    })
}

pub(crate) fn without_holds(level: LevelState) -> LevelState {
    LevelState { held: None, closed: None, stopped: None, ..level }
}
