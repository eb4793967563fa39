//! Limits that answers announce: those of all, and those of one path or of one client alone.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use paceline_core::{Dimension, LimitReport, RefillMode, WaitCause};

use super::told::SHORT;

/// What is known of the limits that answers announce.
#[derive(Debug, Default)]
pub(super) struct Announced {
    of_paths: OfPaths,
    of_scopes: BTreeMap<Arc<str>, BTreeMap<u64, Limits>>,
}

/// The limits that a client was told last, by what they count, and which of several of that they are.
type Limits = BTreeMap<(Dimension, usize), Known>;

/// A limit of which a client was told.
#[derive(Clone, Copy, Debug)]
struct Known {
    limit: u64,
    /// An answer said that something of it was left.
    was_left: bool,
}

/// A limit of a client's own of which nothing is left.
#[derive(Debug)]
pub(crate) struct UsedUp {
    /// Until there is some again.
    pub(super) wait: Duration,
    pub(super) cause: WaitCause,
    /// It may be that of all, for longer than a minute, and no other client was told that any of it was left.
    pub(super) may_be_of_all: bool,
}

/// So many paths or scopes are kept: clients choose them. Of other paths it is not known that they have never answered.
pub(super) const MOST_PATHS: usize = 1_000;

/// So many clients of a scope are kept.
const MOST_CLIENTS: usize = 1_000;

/// A limit of which others have told one so many times as large is none of theirs. Some servers move their limits a little.
const FEWER: u64 = 2;

impl Announced {
    /// Leaves out the limits that are those of one client's calls alone: where half of the others in that scope were told
    /// much larger ones, or more, and those that are used up for longer than a minute, where no other was told that some of it
    /// was left. `tells`: the answer is of a kind that announces them. Returns what the client itself is to wait for.
    pub(super) fn of_client(
        &mut self,
        scope: &Arc<str>,
        client: u64,
        limits: &mut Vec<LimitReport>,
        tells: bool,
    ) -> Option<UsedUp> {
        if self.of_scopes.len() >= MOST_PATHS && !self.of_scopes.contains_key(scope) {
            return None;
        }
        let clients = self.of_scopes.entry(Arc::clone(scope)).or_default();
        let (mut told, mut own, mut may_be_of_all) = (Limits::new(), Vec::new(), false);
        let before = clients.get(&client);
        limits.retain(|report| {
            // One kind may have several, such as of a minute and of a day.
            let nth = { told.keys() }.filter(|(dimension, _)| *dimension == report.dimension).count();
            let (what, Some(limit)) = ((report.dimension.clone(), nth), report.limit) else { return true };
            let others = clients.iter().filter(|(other, _)| **other != client);
            let of_others: Vec<_> = others.map(|(_, limits)| limits.get(&what)).collect();
            let is_left = report.remaining != Some(0);
            let was_left = before.and_then(|limits| limits.get(&what)).is_some_and(|known| known.was_left);
            told.insert(what, Known { limit, was_left: is_left || was_left });
            // A client that is told none has as many as it likes.
            let is_larger = |other: &&Option<&Known>| other.is_none_or(|other| other.limit / FEWER >= limit.max(1));
            let larger = of_others.iter().filter(is_larger).count();
            let is_its_own = larger > 0 && 2 * larger >= of_others.len();
            let is_known = of_others.iter().flatten().any(|other| other.was_left);
            // One of a kind that is not known holds no one for so long.
            let is_long = until_some(report).is_some_and(|wait| wait > SHORT && report.restores != RefillMode::Unknown);
            let is_untested = !is_its_own && is_long && !is_known;
            may_be_of_all |= is_untested;
            own.extend((is_its_own || is_untested).then(|| report.clone()));
            !is_its_own && !is_untested
        });
        if tells && (clients.len() < MOST_CLIENTS || clients.contains_key(&client)) {
            clients.insert(client, told);
        }
        used_up(&own, may_be_of_all)
    }

    /// The same where many paths are one scope: what a path announces for longer than a minute, and for less where other paths
    /// announce something else: the server may mean that path, or what that client asks for, and what it refuses the others it
    /// tells them.
    pub(super) fn of_path(&mut self, path: &str, limits: &mut Vec<LimitReport>, tells: bool) -> Option<UsedUp> {
        let is_long = |limit: &LimitReport| limit.reset.is_some_and(|reset| reset > SHORT);
        let mut hasher = DefaultHasher::new();
        { limits.iter() }.filter(|limit| !is_long(limit)).for_each(|limit| {
            (limit.dimension.as_str(), limit.limit).hash(&mut hasher);
        });
        if tells {
            self.of_paths.note(hash_of(path), hasher.finish());
        }
        let are_of_all = self.of_paths.are_of_all(hasher.finish());
        let is_its_own = |limit: &LimitReport| !are_of_all || is_long(limit);
        let (own, of_all): (Vec<_>, Vec<_>) = limits.drain(..).partition(is_its_own);
        *limits = of_all;
        used_up(&own, false)
    }
}

/// Of a path without its query.
pub(super) fn hash_of(path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.split(['?', '#']).next().hash(&mut hasher);
    hasher.finish()
}

/// How long the first request must wait for a limit that is used up; none where something is left. How much is back earlier
/// than at the reset is known of requests alone: a call takes one of them.
fn until_some(limit: &LimitReport) -> Option<Duration> {
    let reset = limit.reset.filter(|_| limit.remaining == Some(0))?;
    let units = match (limit.restores, &limit.dimension) {
        (RefillMode::Gradually, Dimension::Requests) => limit.limit.unwrap_or(1),
        _ => 1,
    };
    Some(reset / u32::try_from(units.max(1)).unwrap_or(u32::MAX))
}

/// The one of them that is used up for the longest.
fn used_up(limits: &[LimitReport], may_be_of_all: bool) -> Option<UsedUp> {
    let waits = limits.iter().filter_map(|limit| Some((until_some(limit)?, limit)));
    let (wait, last) = waits.max_by_key(|(wait, _)| *wait)?;
    let (dimension, limit) = (last.dimension.clone(), last.limit.unwrap_or_default());
    Some(UsedUp { wait, cause: WaitCause::ServerLimit { dimension, limit, remaining: 0 }, may_be_of_all })
}

/// Which limits the paths announce that are one scope, by prints: no limits are one, too.
#[derive(Debug, Default)]
struct OfPaths {
    of_paths: BTreeMap<u64, u64>,
    paths_of: BTreeMap<u64, usize>,
}

impl OfPaths {
    /// A path announces these.
    fn note(&mut self, path: u64, limits: u64) {
        if self.of_paths.len() >= MOST_PATHS && !self.of_paths.contains_key(&path) {
            return;
        }
        if let Some(before) = self.of_paths.insert(path, limits)
            && let Some(paths) = self.paths_of.get_mut(&before)
        {
            *paths -= 1;
        }
        *self.paths_of.entry(limits).or_default() += 1;
        self.paths_of.retain(|_, paths| *paths > 0);
    }

    /// Whether more than half of the paths announce them: else they are those of a path.
    fn are_of_all(&self, limits: u64) -> bool {
        self.paths_of.get(&limits).is_some_and(|paths| 2 * paths > self.of_paths.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(dimension: Dimension, limit: u64, remaining: u64, reset: u64) -> LimitReport {
        let reset = Some(Duration::from_secs(reset));
        let (limit, remaining) = (Some(limit), Some(remaining));
        LimitReport { dimension, limit, remaining, reset, window: None, restores: RefillMode::AtOnce }
    }

    /// What is left of the limits of that answer, and for how long its client stays away, in seconds.
    fn told(announced: &mut Announced, client: u64, limits: &[LimitReport]) -> (usize, Option<u64>) {
        let mut limits = limits.to_vec();
        let away = announced.of_client(&Arc::from("m"), client, &mut limits, true);
        (limits.len(), away.map(|away| away.wait.as_secs()))
    }

    #[test]
    fn a_limit_that_is_much_smaller_than_what_others_are_told_is_that_of_its_client() {
        let mut announced = Announced::default();
        let usual = [report(Dimension::Requests, 10_000, 9_990, 1), report(Dimension::Tokens, 2_000_000, 1_000_000, 9)];
        let own = [report(Dimension::Requests, 3, 0, 59), usual[1].clone()];
        assert_eq!(told(&mut announced, 1, &own), (2, None), "nothing else is known");
        assert_eq!(told(&mut announced, 2, &usual), (2, None));
        assert_eq!(told(&mut announced, 1, &own), (1, Some(59)), "the other says that there is more");
        assert_eq!(told(&mut announced, 3, &own), (1, Some(59)), "one of two says so");
        assert_eq!(told(&mut announced, 4, &own), (2, None), "one of three does");
        assert_eq!(told(&mut announced, 5, &[]), (0, None));
        assert_eq!(told(&mut announced, 1, &own), (1, Some(59)), "two of four: one is told of no limit");
        assert_eq!(
            told(&mut announced, 2, &[report(Dimension::Requests, 10_000, 0, 59)]),
            (1, None),
            "used up for all"
        );
        assert_eq!(told(&mut announced, 1, &[report(Dimension::Requests, 6_000, 0, 59)]), (1, None), "it has moved");
    }

    #[test]
    fn a_limit_that_is_used_up_for_long_is_that_of_all_once_another_was_told_that_some_of_it_was_left() {
        let mut announced = Announced::default();
        let of = |remaining| [report(Dimension::Requests, 1_000, remaining, 3_600)];
        assert_eq!(told(&mut announced, 1, &of(900)), (1, None));
        assert_eq!(told(&mut announced, 1, &of(0)), (0, Some(3_600)), "by its own word");
        assert_eq!(told(&mut announced, 2, &of(0)), (1, None), "the first has used what is gone");
        assert_eq!(told(&mut announced, 1, &of(0)), (0, Some(3_600)), "the second never had any of it");
        let bit_by_bit = [LimitReport { restores: RefillMode::Gradually, ..of(0)[0].clone() }];
        assert_eq!(told(&mut announced, 1, &bit_by_bit), (1, None), "one is back after 3.6 s");
    }

    #[test]
    fn limits_of_one_kind_over_several_windows_are_told_apart() {
        let mut announced = Announced::default();
        let both = [report(Dimension::Requests, 60, 0, 9), report(Dimension::Requests, 10_000, 9_000, 80_000)];
        for client in 0..9 {
            assert_eq!(told(&mut announced, client, &both), (2, None), "{client}");
        }
    }
}
