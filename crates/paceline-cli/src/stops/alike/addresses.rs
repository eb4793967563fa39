//! The addresses of one host, which may be those of several customers: what one of them refuses stops that address alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{AT_ONE_ADDRESS, Alikeness, ITS_KEY};

/// So many addresses of a host that refuse items are watched, those that did last.
const MOST: usize = 100;

/// What is known of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "Item: Ord + Deserialize<'de>"))]
pub(super) struct Addresses<Item> {
    /// The first address that an item went to.
    first: Option<Box<str>>,
    /// Items went to others too.
    are_several: bool,
    /// Those that refused their last items alike, and these items.
    refusing: BTreeMap<Box<str>, (Alikeness, BTreeSet<Item>)>,
}

impl<Item> Default for Addresses<Item> {
    fn default() -> Self {
        Self { first: None, are_several: false, refusing: BTreeMap::new() }
    }
}

impl<Item: Ord + Clone> Addresses<Item> {
    pub(super) const fn are_several(&self) -> bool {
        self.are_several
    }

    /// An item of the address failed. True where the address has refused as many in a row as stop it, which are no more than
    /// `limit`.
    pub(super) fn failed(&mut self, address: &str, item: &Item, alike: &Alikeness, limit: usize, counts: bool) -> bool {
        self.meet(address);
        if !counts {
            self.refusing.remove(address);
            return false;
        }
        if self.refusing.len() >= MOST && !self.refusing.contains_key(address) {
            self.refusing.pop_first();
        }
        let (known, items) = self.refusing.entry(address.into()).or_insert_with(|| (alike.clone(), BTreeSet::new()));
        if known != alike {
            (*known, *items) = (alike.clone(), BTreeSet::new());
        }
        let enough = limit.min(AT_ONE_ADDRESS);
        let is_new = items.len() < enough && items.insert(item.clone());
        is_new && items.len() == enough && self.are_several
    }

    /// An item of the address ended otherwise.
    pub(super) fn ended_otherwise(&mut self, address: &str) {
        self.meet(address);
        self.refusing.remove(address);
    }

    /// The items that an address refused last, which are forgotten.
    pub(super) fn take(&mut self, address: &str) -> BTreeSet<Item> {
        self.refusing.remove(address).map(|(_, items)| items).unwrap_or_default()
    }

    /// All items that were refused are forgotten.
    pub(super) fn clear(&mut self) {
        self.refusing.clear();
    }

    pub(super) fn items(&self) -> impl Iterator<Item = &Item> {
        self.refusing.values().flat_map(|(_, items)| items)
    }

    fn meet(&mut self, address: &str) {
        let first = self.first.get_or_insert_with(|| address.into());
        self.are_several |= **first != *address;
    }
}

/// Whether an address says so of itself, whatever the item is, where its host refuses some items and takes others (`of_items`).
pub(super) fn tells_of_itself(address: &str, of_items: bool) -> bool {
    !(of_items && address.contains(ITS_KEY))
}
