//! The columns of an item, which both databases have and read in the same order.

/// What a statement selects to read an item from; what it selects besides stands [`after_item`].
macro_rules! item_columns {
    () => {
        "item.id, item.key, lane.grp, lane.priority, item.state, item.not_before_ms, item.delay_ms, item.attempts, \
         item.deferrals, item.abandoned, item.forgiven_attempts, item.forgiven_deferrals, item.crashes, \
         item.created_ms, item.first_ms, item.ended_ms, item.deadline_ms, item.last_class, item.last_status, \
         item.last_code, item.last_words, item.reason, item.sent, item.sent_for_ms, item.delivered_ms, item.tests, \
         item.in_doubt"
    };
}
pub(super) use item_columns;

/// The place of the `n`th column behind those of an item.
pub(super) const fn after_item(n: usize) -> usize {
    27 + n
}
