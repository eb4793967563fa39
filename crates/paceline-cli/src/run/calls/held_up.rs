//! How many items one scope kept back, and for how long, where a user could have several.

use std::time::Duration;

use paceline_core::Timestamp;

use crate::text;

/// Shorter pauses together are no matter for the user.
const LONG: Duration = Duration::from_secs(60);

/// The pauses of a job of one scope.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldUp {
    /// The end of the last one.
    until: Timestamp,
    /// How long they were together, what they share counted once.
    total: Duration,
    /// The most items that waited for one of them.
    items: u64,
}

impl HeldUp {
    /// The scope of so many items that have not ended is closed from now on until then.
    pub(crate) fn note(&mut self, now: Timestamp, until: Timestamp, items: u64) {
        self.total += until.saturating_since(now.max(self.until));
        self.until = until.max(self.until);
        self.items = self.items.max(items);
    }

    /// What could be set, once that would have mattered.
    pub(crate) fn describe(&self) -> Option<String> {
        let (items, total) = (text::counted(self.items, "item"), text::duration(self.total));
        (self.items > 1 && self.total >= LONG).then(|| {
            format!(
                "held up: {items}, by pauses of {total} in all, because all calls are one scope; \
                 --scope endpoint paces each path by itself, --scope group each metadata.label"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pauses_share_is_counted_once_and_short_ones_are_not_told() {
        let at = |seconds: i64| Timestamp::from_millis(1_795_176_000_000 + seconds * 1_000);
        let mut held_up = HeldUp::default();
        held_up.note(at(0), at(30), 7);
        held_up.note(at(10), at(20), 6);
        held_up.note(at(20), at(40), 6);
        assert_eq!((held_up.total, held_up.describe()), (Duration::from_secs(40), None));
        held_up.note(at(100), at(240), 5);
        assert_eq!(held_up.total, Duration::from_secs(180));
        assert!(held_up.describe().is_some_and(|summary| summary.starts_with("held up: 7 items, by pauses of 3m ")));
        let mut last = HeldUp::default();
        last.note(at(0), at(600), 1);
        assert_eq!(last.describe(), None, "it held up nothing but itself");
    }
}
