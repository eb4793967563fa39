//! How many items one scope kept back, and for how long, where a user could have several.

use std::time::Duration;

use paceline_core::Timestamp;

use crate::text;

/// Shorter pauses together are no matter for the user.
const LONG: Duration = Duration::from_secs(60);

/// What could be set.
pub(crate) const DIVIDE: &str = "only if the API limits each path by itself, --scope endpoint paces each by itself";

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

    /// What could be set, once that has mattered, or will. What is left of a pause has not been waited for.
    pub(crate) fn describe(&self, now: Timestamp) -> Option<String> {
        let how = self.how(now)?;
        let items = text::counted(self.items, "item");
        (self.items > 1).then(|| {
            format!(
                "held up: {items}, {how}, because all calls are one scope; {DIVIDE} (--scope group: each metadata.label)"
            )
        })
    }

    /// How long was waited for them.
    pub(crate) fn waited(&self, now: Timestamp) -> Duration {
        self.total.saturating_sub(self.until.saturating_since(now))
    }

    /// By what the scope was held up; none by pauses too short to matter.
    pub(crate) fn how(&self, now: Timestamp) -> Option<String> {
        let (left, waited) = (self.until.saturating_since(now), self.waited(now));
        if waited >= LONG {
            return Some(format!("by pauses of {} in all", text::duration(waited)));
        }
        // Until when stands beside it.
        Some("by a pause that goes on".to_owned()).filter(|_| left >= LONG)
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
        assert_eq!((held_up.total, held_up.describe(at(40))), (Duration::from_secs(40), None));
        held_up.note(at(100), at(240), 5);
        assert_eq!(held_up.total, Duration::from_secs(180));
        let told = |now| held_up.describe(now).unwrap_or_default();
        assert!(told(at(300)).starts_with("held up: 7 items, by pauses of 3m 00s in all"), "{}", told(at(300)));
        assert!(
            told(at(200)).starts_with("held up: 7 items, by pauses of 2m 20s in all"),
            "the run ended before its end"
        );
        assert!(
            told(at(110)).starts_with("held up: 7 items, by a pause that goes on, because"),
            "it waited for 50 s only"
        );
        assert_eq!(held_up.describe(at(240)).map(|told| told.contains("3m 00s in all")), Some(true));
        let mut last = HeldUp::default();
        last.note(at(0), at(600), 1);
        assert_eq!(last.describe(at(600)), None, "it held up nothing but itself");
    }
}
