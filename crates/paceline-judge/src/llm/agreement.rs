//! Agreement: when a model may stop a group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// For so many items of a group the answer must be the same, one after the other: the error of one item, which may have
/// been written to mislead, stops no other item.
const ITEMS: usize = 3;

/// The items with the answer to stop, by group, since the last other answer. Bounded by the groups and by [`ITEMS`].
#[derive(Debug, Default)]
pub(super) struct Agreement(BTreeMap<Arc<str>, BTreeSet<u64>>);

impl Agreement {
    /// Records an answer; true when it is to stop the group and enough others agree.
    pub(super) fn hear(&mut self, group: &Arc<str>, item: u64, abort: bool) -> bool {
        if !abort {
            self.0.remove(group);
            return false;
        }
        let items = self.0.entry(group.clone()).or_default();
        items.insert(item);
        let agreed = items.len() >= ITEMS;
        if agreed {
            self.0.remove(group);
        }
        agreed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_items_in_a_row_stop_their_group() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut agreement = Agreement::default();
        let heard = [(&a, 1, true), (&a, 1, true), (&a, 1, true), (&b, 9, true), (&a, 2, true), (&b, 8, false)];
        for (group, item, abort) in heard {
            assert!(!agreement.hear(group, item, abort));
        }
        assert!(agreement.hear(&a, 3, true), "1, 2 and 3");
        assert!(!agreement.hear(&a, 4, true), "they begin anew");
        assert!(!agreement.hear(&b, 7, true) && !agreement.hear(&b, 6, true), "8 said otherwise");
        assert!(agreement.hear(&b, 5, true));
    }
}
