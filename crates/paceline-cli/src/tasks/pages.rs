//! All items of a store, a page at a time: there may be millions.

use paceline_store::work::{Filter, WorkError, WorkItem, WorkStore};

/// Items read at a time.
const TOGETHER: usize = 1_000;

/// Reads items by their numbers.
pub(crate) struct Pages<'a> {
    store: &'a dyn WorkStore,
    filter: Filter,
    after: u64,
    left: u64,
}

impl<'a> Pages<'a> {
    /// At most `limit` items.
    pub(crate) fn of(store: &'a dyn WorkStore, filter: Filter, limit: Option<u64>) -> Self {
        Self { store, filter, after: 0, left: limit.unwrap_or(u64::MAX) }
    }

    /// The next items; none at the end.
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<WorkItem>>, WorkError> {
        let limit = usize::try_from(self.left).map_or(TOGETHER, |left| left.min(TOGETHER));
        if limit == 0 {
            return Ok(None);
        }
        let items = self.store.list(self.filter.clone(), self.after, limit).await?;
        let Some(last) = items.last() else { return Ok(None) };
        self.after = last.id;
        // A short page was the last one.
        self.left = if items.len() < limit { 0 } else { self.left - items.len() as u64 };
        Ok(Some(items))
    }
}
