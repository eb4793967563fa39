//! The end of items that were left to a run, in a worker that stays.

use std::time::Duration;

use paceline_store::work::{Amend, Filter, State, WorkError, WorkItem, WorkStore};

use crate::tasks::pages::Pages;

/// Items that were left to a run, and whose deadlines have passed, come up, and end without a call.
///
/// # Errors
/// An error of the store.
pub(super) async fn end_late(store: &dyn WorkStore, deadline: Duration) -> Result<(), WorkError> {
    let now = store.now().await?;
    let is_late = |item: &WorkItem| item.first.is_some_and(|first| first + item.deadline.unwrap_or(deadline) <= now);
    let mut pages = Pages::of(store, Filter::states([State::Deferred]), None);
    while let Some(items) = pages.next().await? {
        let late: Vec<String> = items.into_iter().filter(is_late).map(|item| item.key).collect();
        if !late.is_empty() {
            store.amend(Filter::keys(late), Amend::TakeUp).await?;
        }
    }
    Ok(())
}
