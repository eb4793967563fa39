//! When the items come again that wait for a place in the store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::Instant;

use super::AHEAD;
use super::start::TICK;

/// Those of a scope come again one after the other, ...
const BETWEEN_TURNS: Duration = Duration::from_millis(100);

/// ... and one of each scope after the other, so that thousands are not claimed and put back each second, ...
const BETWEEN_SCOPES: Duration = Duration::from_millis(3);

/// ... but none later than that.
const LONGEST_TURN: Duration = Duration::from_secs(30);

/// The turns of scopes: however many items of others wait, one more comes no later for that.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// When the last item of each scope comes.
    last: HashMap<Arc<str>, Instant>,
    /// When those that had come were forgotten.
    tidied: Instant,
}

impl Turns {
    /// How long an item of that scope waits.
    pub(super) fn next(&mut self, now: Instant, scope: Arc<str>) -> Duration {
        if now >= self.tidied + AHEAD {
            self.last.retain(|_, last| *last > now);
            self.tidied = now;
        }
        let scopes = self.last.len() + usize::from(!self.last.contains_key(&scope));
        let between = BETWEEN_TURNS.max(BETWEEN_SCOPES * u32::try_from(scopes).unwrap_or(u32::MAX));
        let last = self.last.entry(scope).or_insert(now);
        *last = (*last + between).clamp(now + AHEAD + TICK, now + LONGEST_TURN);
        *last - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long the next items of these scopes wait, in tenths of a second.
    fn waits(turns: &mut Turns, now: Instant, scopes: &[&str]) -> Vec<u128> {
        scopes.iter().map(|scope| turns.next(now, (*scope).into()).as_millis() / 100).collect()
    }

    #[test]
    fn no_backlog_makes_an_item_of_another_scope_come_later() {
        let (mut turns, now) = (Turns::default(), Instant::from_nanos(7));
        assert_eq!(waits(&mut turns, now, &["old"; 3]), [10, 11, 12]);
        assert_eq!(waits(&mut turns, now, &["old"; 900])[899], 300);
        assert_eq!(waits(&mut turns, now, &["new", "old", "new", "newer"]), [10, 300, 11, 10]);
        assert_eq!(waits(&mut turns, now + Duration::from_secs(29), &["old", "new"]), [11, 10]);
    }

    #[test]
    fn of_many_scopes_a_few_hundred_items_come_a_second_and_each_within_half_a_minute() {
        let (mut turns, now) = (Turns::default(), Instant::from_nanos(7));
        for (scopes, longest) in [(10, 20), (1_000, 60), (9_000, 300)] {
            let waits = (0..scopes).map(|n| turns.next(now, n.to_string().into()).as_millis() / 100);
            let most = waits.max().unwrap_or_default();
            assert!(most <= longest, "{most} of {scopes}");
        }
        assert_eq!(turns.last.len(), 9_000);
        turns.next(now + LONGEST_TURN, "last".into());
        assert_eq!(turns.last.len(), 1, "what has come is forgotten");
    }
}
