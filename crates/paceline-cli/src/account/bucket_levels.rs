//! A bucket has one level, which runs hand on: of the levels of several runs the lowest counts. So what a killed run took after
//! it wrote its level comes on top of the lowest that is known.

use std::time::Duration;

use paceline::{LevelState, LimiterState, PacerState, Quota, QuotaShape, TakenState, WindowState};

use super::ledger::Entry;

/// What was noted, with the levels of buckets from which it was taken. There is a second state, and so on, where the runs had
/// buckets under several limits: what was taken of one was taken of all.
pub(super) fn handed_on(noted: LimiterState, runs: &[Entry]) -> Vec<LimiterState> {
    let mut states = vec![noted.clone()];
    let account = (None, &noted.pacer.account);
    for (name, level) in
        std::iter::once(account).chain(noted.pacer.scopes.iter().map(|level| (Some(&level.name), level)))
    {
        for window in level.windows.iter().filter(|window| is_bucket(&window.quota)) {
            let mut others = 1;
            for known in lowest(name, &window.quota, &noted, runs) {
                let place = if known.quota == window.quota { 0 } else { others };
                others += usize::from(place > 0);
                if place == states.len() {
                    states.push(LimiterState { at: noted.at, pacer: PacerState::default() });
                }
                add(&mut states[place], name, known, window);
            }
        }
    }
    states
}

const fn is_bucket(quota: &Quota) -> bool {
    matches!(quota.shape, QuotaShape::Bucket { .. })
}

/// The level of a state of that name; that of the account has none.
fn level<'a>(state: &'a LimiterState, name: Option<&String>) -> Option<&'a LevelState> {
    match name {
        None => Some(&state.pacer.account),
        Some(name) => state.pacer.scopes.iter().find(|level| level.name == *name),
    }
}

/// The lowest levels of the buckets on the dimension of `quota`, one for each limit, as of what was noted.
fn lowest(name: Option<&String>, quota: &Quota, noted: &LimiterState, runs: &[Entry]) -> Vec<WindowState> {
    let mut lowest: Vec<WindowState> = Vec::new();
    for run in runs {
        let since = noted.at.saturating_since(run.counted.at);
        let windows = level(&run.counted, name).into_iter().flat_map(|level| &level.windows);
        for window in windows.filter(|window| is_bucket(&window.quota) && window.quota.dimension == quota.dimension) {
            let aged = |taken: &TakenState| TakenState { ago: taken.ago.saturating_add(since), ..*taken };
            let aged = WindowState { quota: window.quota.clone(), taken: window.taken.iter().map(aged).collect() };
            match lowest.iter_mut().find(|known| known.quota == aged.quota) {
                Some(known) if full_in(known) < full_in(&aged) => *known = aged,
                Some(_) => {}
                None => lowest.push(aged),
            }
        }
    }
    lowest
}

/// How long after the state a bucket is full again, in nanoseconds.
fn full_in(window: &WindowState) -> i128 {
    let nanos = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
    let limit = i128::from(window.quota.limit.max(1));
    window.taken.iter().fold(i128::MIN, |full, taken| {
        let refill = i128::from(taken.units).saturating_mul(nanos(window.quota.window)) / limit;
        full.max(-nanos(taken.ago)).saturating_add(refill)
    })
}

/// Has the state count what was noted on top of a known level.
fn add(state: &mut LimiterState, name: Option<&String>, known: WindowState, noted: &WindowState) {
    let scopes = &mut state.pacer.scopes;
    let level = match name {
        None => &mut state.pacer.account,
        Some(name) => {
            let place = scopes.iter().position(|level| level.name == *name).unwrap_or_else(|| {
                scopes.push(LevelState { name: name.clone(), ..LevelState::default() });
                scopes.len() - 1
            });
            &mut scopes[place]
        }
    };
    level.windows.retain(|window| window.quota != known.quota);
    let taken = known.taken.into_iter().chain(noted.taken.iter().copied()).collect();
    level.windows.push(WindowState { quota: known.quota, taken });
}
