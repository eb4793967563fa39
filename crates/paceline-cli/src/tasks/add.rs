//! `paceline tasks add`: items into a store.

use paceline_store::work::{Added, Clock, NewItem};

use super::store::StoreArgs;
use crate::exit::{Failure, Status};

/// `paceline tasks add`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// What the item is called; unique in its store
    #[arg(long, value_name = "KEY")]
    key: String,
    /// What the work needs to know
    #[arg(value_name = "PAYLOAD_JSON")]
    payload: String,
}

/// Adds one item.
///
/// # Errors
/// When the store cannot take it.
pub(crate) async fn command(args: Args) -> Result<Status, Failure> {
    let store = args.store.open_or_make(&Clock::system()).await?;
    let added = store.insert(vec![NewItem::new(args.key, args.payload)]).await.map_err(Failure::refused)?;
    if let Some(Added::Known(state)) = added.first() {
        tracing::warn!("it is there already: {}", state.as_str());
    }
    Ok(Status::Success)
}
