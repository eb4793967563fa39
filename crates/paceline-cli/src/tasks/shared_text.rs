//! A text that the workers of a store, and people, change together: under one name, and no change is lost.

use paceline_store::work::{WorkError, WorkStore};

/// Changes the text of that name, of which none is there before the first time. Begins anew where another was faster.
///
/// # Errors
/// An error of the store.
pub(super) async fn change(
    store: &dyn WorkStore,
    name: &str,
    change: impl Fn(Option<&str>) -> String,
) -> Result<(), WorkError> {
    loop {
        let before = store.load_state(name).await?;
        if store.replace_state(name, before.as_deref(), &change(before.as_deref())).await? {
            return Ok(());
        }
    }
}
