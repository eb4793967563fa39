//! Which scopes, such as hosts, items go to: the store knows no addresses, so their payloads are looked at.

use std::collections::BTreeSet;

use paceline_store::work::{Filter, State, WorkError, WorkStore};

use super::add::host_and_address_of;
use super::closed_scopes::ClosedScopes;
use super::pages::Pages;

/// So many items are looked at.
const MOST: usize = 2_000;

/// The states of items that have not ended.
pub(crate) const UNFINISHED: [State; 3] = [State::Waiting, State::InFlight, State::Deferred];

impl ClosedScopes {
    /// Keeps the scopes that items of the filter go to, or are the group of. All stay where one of the payloads names no host, or
    /// too many items would have to be looked at.
    ///
    /// # Errors
    /// An error of the store.
    pub(crate) async fn retain_of(&mut self, store: &dyn WorkStore, filter: Filter) -> Result<(), WorkError> {
        let mut sought: BTreeSet<String> = self.names().map(str::to_owned).collect();
        let (mut looked_at, mut pages) = (0, Pages::of(store, filter, None));
        while !sought.is_empty()
            && let Some(items) = pages.next().await?
        {
            for item in items {
                sought.remove(&*item.group);
                let payload = store.show(&item.key).await?.map(|(_, payload, _)| payload);
                let known = payload.as_deref().and_then(|payload| host_and_address_of(payload, &item.key));
                let Some((host, address)) = known.filter(|_| looked_at < MOST) else {
                    return Ok(());
                };
                looked_at += 1;
                sought.remove(&host);
                sought.remove(&address);
                if sought.is_empty() {
                    return Ok(());
                }
            }
        }
        self.retain(|name| !sought.contains(name));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use paceline_store::work::{MemoryStore, NewItem, WorkClock};

    use super::super::closed_scopes::{self, ClosedScope, Why};
    use super::*;

    #[tokio::test]
    async fn scopes_of_which_no_item_is_left_are_not_kept() {
        let store = MemoryStore::new(WorkClock::system());
        let item = |host: &str| NewItem::new(host, format!(r#"{{"url":"https://{host}/in","body":{{}}}}"#));
        store.insert(vec![item("a.example"), item("b.example:81")]).await.expect("room");
        let scope = |name: &str| ClosedScope { name: name.into(), why: Some(Why::SameFailure), ..Default::default() };
        let all = ["a.example", "https://b.example:81", "c.example"].map(scope).to_vec();
        closed_scopes::replace(&store, None, &closed_scopes::encode(all)).await.expect("a memory");
        let kept = async |filter: Filter| {
            let mut scopes = ClosedScopes::of(&store).await.expect("a memory");
            scopes.retain_of(&store, filter).await.expect("a memory");
            scopes.names().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(kept(Filter::states(UNFINISHED)).await, ["a.example", "https://b.example:81"]);
        assert_eq!(kept(Filter::keys(["b.example:81"])).await, ["https://b.example:81"]);
        store.insert(vec![NewItem::new("no request", "7")]).await.expect("room");
        assert_eq!(kept(Filter::states(UNFINISHED)).await.len(), 3, "it may go anywhere");
    }
}
