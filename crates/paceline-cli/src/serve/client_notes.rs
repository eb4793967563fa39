//! What clients have used since their counts were written last.

use paceline::{Limiter, LimiterState, Quota, TakenState, WindowState, clock};

use crate::call_notes::Note;

/// The counts of a client, by its keys, with what was noted after they were written; none where there is neither.
pub(super) fn with_notes(
    keys: [&String; 2],
    limiter: &Limiter,
    written: Option<LimiterState>,
    notes: &[Note],
) -> Option<LimiterState> {
    let written_at = written.as_ref().map(|state| state.at);
    let is_later = |note: &&Note| written_at.is_none_or(|at| note.at() >= at);
    let notes: Vec<_> = notes.iter().filter(|note| keys.contains(&&note.key)).filter(is_later).collect();
    if notes.is_empty() {
        return written;
    }
    let now = clock::wall();
    let mut state = written.unwrap_or_else(|| LimiterState { at: now, pacer: limiter.export().pacer });
    let since = now.saturating_since(state.at);
    state.at = now;
    let windows = &mut state.pacer.account.windows;
    windows
        .iter_mut()
        .flat_map(|window| &mut window.taken)
        .for_each(|taken| taken.ago = taken.ago.saturating_add(since));
    // A window that counted nothing is not written.
    for quota in limiter.snapshot().account.quotas {
        if let (true, Some(length)) =
            (windows.iter().all(|known| known.quota.dimension != quota.dimension), quota.window)
        {
            let quota = Quota::sliding(quota.dimension, quota.limit, length);
            windows.push(WindowState { quota, taken: Vec::new() });
        }
    }
    for window in windows {
        let units = |note: &&Note| note.units(&window.quota.dimension);
        let ago = |note: &Note| now.saturating_since(note.at());
        let noted = notes.iter().filter_map(|note| Some(TakenState { ago: ago(note), units: units(note)? }));
        window.taken.extend(noted);
    }
    Some(state)
}
