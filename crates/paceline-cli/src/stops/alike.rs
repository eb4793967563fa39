//! Whether the first items to end all fail alike: then not the items are wrong, but the job. Whether those of one scope do, or
//! all of late: then its server may have banned the caller. `run` and `tasks run` watch by the same rules.

mod addresses;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::addresses::{Addresses, tells_of_itself};

/// What makes failures alike: status and code.
pub(crate) type Kind = (Option<u16>, Option<String>);

/// A watch over the first items of a run, until one of them ends otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Alike {
    limit: usize,
    watching: bool,
    stopped: bool,
    kind: Option<Kind>,
    items: usize,
}

/// What a failure shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shows {
    /// Not everything fails alike, or nothing is watched.
    Nothing,
    /// It is like all so far, which are too few to tell.
    TooFew,
    /// As many as are looked at failed alike: the run has to stop.
    Stop,
    /// The run stops already.
    Stopped,
}

impl Alike {
    /// `more`: there are more items than the number looked at. A `limit` of 0 switches it off.
    pub(crate) const fn new(limit: usize, more: bool) -> Self {
        Self { limit, watching: limit > 0 && more, stopped: false, kind: None, items: 0 }
    }

    /// Whether nothing has ended otherwise yet.
    pub(crate) const fn is_watching(&self) -> bool {
        self.watching
    }

    /// How many more must fail alike; none when not all do.
    pub(crate) fn undecided(&self) -> Option<usize> {
        self.watching.then(|| self.limit.saturating_sub(self.items))
    }

    /// An item failed for good, or its first answer that does not match the schema came: each item is counted once.
    pub(crate) fn failed(&mut self, kind: Kind) -> Shows {
        if !self.watching || self.stopped {
            return if self.stopped { Shows::Stopped } else { Shows::Nothing };
        }
        if *self.kind.get_or_insert_with(|| kind.clone()) != kind {
            self.disarm();
            return Shows::Nothing;
        }
        self.items += 1;
        self.stopped = self.items >= self.limit;
        if self.stopped { Shows::Stop } else { Shows::TooFew }
    }

    /// An item ended otherwise.
    pub(crate) fn disarm(&mut self) {
        self.watching = self.stopped;
    }
}

/// A failure of an item, as far as it may be like others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Alikeness {
    pub(crate) kind: Kind,
    /// The server answered, and not as the user expects: a page to log in, where JSON is expected.
    pub(crate) unexpected: bool,
}

impl Alikeness {
    /// Whether a server may say so that it keeps the caller out.
    const fn is_like_a_ban(&self) -> bool {
        self.unexpected || matches!(self.kind.0, Some(401 | 403))
    }

    /// Whether it is of the address, whatever the item is: that has moved, is gone, or is shut to this caller.
    const fn is_of_the_address(&self, has_answered: bool) -> bool {
        matches!((self.kind.0, has_answered), (Some(300..=399 | 401 | 403), _) | (Some(410), true))
    }
}

/// Other failures than those of a ban have to be so many times as many in a row before they stop a host that has answered: they
/// may be of items.
const LESS_LIKE_A_BAN: usize = 5;

/// So many items in a row that one address of a host refuses like that are no bad items: a ban of a host with few items must not
/// fail all that are left.
const AT_ONE_ADDRESS: usize = 3;

/// What stands in an address in place of the item's own key: the rest is that of its host's other items too.
pub(crate) const ITS_KEY: &str = "{key}";

/// Watches each scope by itself, such as a host: another that answers says nothing about it.
#[derive(Clone, Debug)]
pub(crate) struct AlikeByScope<Item> {
    enough: Enough,
    scopes: BTreeMap<Arc<str>, Row<Item>>,
}

/// How many items of a scope have to fail alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enough {
    limit: usize,
    /// Each scope is a host: its first items may be wrong alone, and later any answer may be that of a ban.
    are_hosts: bool,
    /// Where items go to several addresses of a host, what one of them refuses stops that one alone.
    by_address: bool,
}

/// What has to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stops {
    /// The scope, for so many items.
    Scope(usize),
    /// The address of the last item alone, which is one of several.
    Address,
}

/// The last items of a scope that failed alike, in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(deserialize = "Item: Ord + Deserialize<'de>"))]
pub(crate) struct Row<Item> {
    /// Items ended otherwise before.
    is_mixed: bool,
    /// Of those, some that ended otherwise came after refusals like those of a ban: it refuses some items and takes others.
    is_of_items: bool,
    alike: Option<Alikeness>,
    /// Where all of them went; none where that is not known, or not one address.
    address: Option<Box<str>>,
    items: BTreeSet<Item>,
    /// The addresses of a host, each by itself.
    #[serde(default)]
    addresses: Addresses<Item>,
    /// These are few: before long they stop their host, or are followed by another end.
    #[serde(skip)]
    decides_soon: bool,
    /// Items whose answers were not as expected before another ended otherwise: their next tries show nothing of the server.
    #[serde(skip)]
    known: Vec<(Alikeness, BTreeSet<Item>)>,
}

impl<Item> Default for Row<Item> {
    fn default() -> Self {
        Self {
            is_mixed: false,
            is_of_items: false,
            alike: None,
            address: None,
            items: BTreeSet::new(),
            addresses: Addresses::default(),
            decides_soon: false,
            known: Vec::new(),
        }
    }
}

impl<Item: Ord + Clone> Row<Item> {
    /// The next row, after something that is not like this one; `otherwise`: which was no refusal.
    fn next(&mut self, otherwise: bool) -> Self {
        let refused = otherwise && !self.items.is_empty() && self.alike.as_ref().is_some_and(Alikeness::is_like_a_ban);
        if let Some(alike) = self.alike.take().filter(|alike| otherwise && alike.unexpected) {
            let items = std::mem::take(&mut self.items);
            match self.known.iter_mut().find(|(known, _)| *known == alike) {
                Some((_, known)) => known.extend(items),
                None => self.known.push((alike, items)),
            }
        }
        let (addresses, known) = (std::mem::take(&mut self.addresses), std::mem::take(&mut self.known));
        Self { is_mixed: true, is_of_items: self.is_of_items || refused, addresses, known, ..Self::default() }
    }

    /// Whether the item failed alike before, and another ended otherwise since.
    fn knows(&self, item: &Item, alike: &Alikeness) -> bool {
        self.known.iter().any(|(known, items)| known == alike && items.contains(item))
    }

    /// An item failed; see [`AlikeByScope::failed`].
    pub(crate) fn failed(
        &mut self,
        enough: Enough,
        item: Item,
        alike: Alikeness,
        address: Option<&str>,
    ) -> Option<Stops> {
        let Enough { limit, are_hosts, by_address } = enough;
        if self.knows(&item, &alike) {
            return None;
        }
        if self.alike.as_ref().is_some_and(|known| *known != alike) {
            *self = self.next(false);
        }
        if self.items.is_empty() {
            self.address = address.map(Box::from);
        } else if self.address.as_deref() != address {
            self.address = None;
        }
        let of_one = address.filter(|_| are_hosts && by_address).is_some_and(|address| {
            let counts = alike.is_of_the_address(self.is_mixed) && tells_of_itself(address, self.is_of_items);
            self.addresses.failed(address, &item, &alike, limit, counts)
        });
        let enough = self.enough(enough, &alike);
        self.alike = Some(alike);
        self.decides_soon = are_hosts && enough.is_some_and(|enough| enough <= limit);
        let is_new = enough.is_some_and(|enough| self.items.len() < enough) && self.items.insert(item);
        match enough.filter(|enough| is_new && self.items.len() == *enough) {
            Some(_) if self.address.is_some() && self.addresses.are_several() => Some(Stops::Address),
            Some(enough) => Some(Stops::Scope(enough)),
            None => of_one.then_some(Stops::Address),
        }
    }

    /// How many that fail like that in a row stop the scope; none where no number does.
    fn enough(&self, Enough { limit, are_hosts, .. }: Enough, alike: &Alikeness) -> Option<usize> {
        match (alike.is_like_a_ban(), are_hosts) {
            _ if are_hosts && self.is_of_the_address(alike) => Some(limit.min(AT_ONE_ADDRESS)),
            (true, _) => Some(limit),
            (false, true) if self.is_mixed && !self.leads_nowhere(alike) => Some(limit * LESS_LIKE_A_BAN),
            (false, true) => Some(limit),
            (false, false) => None,
        }
    }

    /// How few more items that fail may stop the scope: those to come like the last ones, or all alike in another way.
    fn left(&self, enough: Enough) -> usize {
        let anew = if enough.are_hosts { enough.limit.min(AT_ONE_ADDRESS) } else { enough.limit };
        let in_row = self.alike.as_ref().and_then(|alike| self.enough(enough, alike));
        in_row.map_or(anew, |in_row| anew.min(in_row.saturating_sub(self.items.len())))
    }

    /// An item ended otherwise.
    pub(crate) fn ended_otherwise(&mut self, address: Option<&str>) {
        *self = self.next(true);
        address.into_iter().for_each(|address| self.addresses.ended_otherwise(address));
    }

    /// The items that failed alike last, which are forgotten; of an `address` those alone that it refused.
    pub(crate) fn take(&mut self, address: Option<&str>) -> BTreeSet<Item> {
        match address {
            None => {
                self.addresses.clear();
                std::mem::take(&mut self.items)
            }
            Some(address) if self.address.as_deref() == Some(address) => {
                let mut items = self.addresses.take(address);
                items.append(&mut self.items);
                items
            }
            Some(address) => {
                let items = self.addresses.take(address);
                self.items.retain(|item| !items.contains(item));
                items
            }
        }
    }

    /// The items that another row does not have.
    pub(crate) fn not_in(&self, other: &Self) -> BTreeSet<Item> {
        self.all().filter(|item| !other.has(item)).cloned().collect()
    }

    /// Where all that failed alike last went, if that is one address.
    pub(crate) fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    fn all(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().chain(self.addresses.items())
    }

    fn has(&self, item: &Item) -> bool {
        self.items.contains(item) || self.addresses.items().any(|known| known == item)
    }

    /// Whether none ended otherwise.
    pub(crate) const fn are_first(&self) -> bool {
        !self.is_mixed
    }

    /// Whether all of its refusals are of their address, which is the only one.
    fn is_of_the_address(&self, alike: &Alikeness) -> bool {
        let is_shut = |address: &str| tells_of_itself(address, self.is_of_items);
        self.address.as_deref().is_some_and(is_shut)
            && !self.addresses.are_several()
            && alike.is_of_the_address(self.is_mixed)
    }
}

impl<Item> Row<Item> {
    /// Whether one address, in which no key of an item stands, is not found any more. An item that is not found is a bad item: so
    /// it takes as many in a row as for a ban.
    fn leads_nowhere(&self, alike: &Alikeness) -> bool {
        matches!(alike.kind.0, Some(404)) && self.address.as_deref().is_some_and(|address| !address.contains(ITS_KEY))
    }
}

impl<Item: Ord + Clone> AlikeByScope<Item> {
    /// A `limit` of 0 switches it off.
    pub(crate) const fn new(limit: usize, are_hosts: bool) -> Self {
        Self { enough: Enough { limit, are_hosts, by_address: false }, scopes: BTreeMap::new() }
    }

    /// Watches hosts of which an address can be stopped alone.
    pub(crate) const fn of_addresses(limit: usize) -> Self {
        Self { enough: Enough { limit, are_hosts: true, by_address: true }, scopes: BTreeMap::new() }
    }

    /// How many have to fail alike; none where that is switched off.
    pub(crate) fn enough(&self) -> Option<Enough> {
        (self.enough.limit > 0).then_some(self.enough)
    }

    /// Whether each scope is a host.
    pub(crate) const fn are_hosts(&self) -> bool {
        self.enough.are_hosts
    }

    /// What is known of a scope.
    pub(crate) fn row(&self, scope: &str) -> Option<&Row<Item>> {
        self.scopes.get(scope)
    }

    /// The same, to be changed.
    pub(crate) fn row_mut(&mut self, scope: &Arc<str>) -> &mut Row<Item> {
        self.scopes.entry(Arc::clone(scope)).or_default()
    }

    /// An item of the scope failed for good, or had an answer that is not what the user expects: each is counted once. The number
    /// of items once the scope has to be stopped: its first ones failed alike, or as many in a row as tell of a later ban.
    /// `address`: where the item's call went, with [`ITS_KEY`] for its own key.
    pub(crate) fn failed(
        &mut self,
        scope: &Arc<str>,
        item: Item,
        alike: Alikeness,
        address: Option<&str>,
    ) -> Option<Stops> {
        let enough = self.enough()?;
        self.row_mut(scope).failed(enough, item, alike, address)
    }

    /// How few more items of the scope that fail may stop it; none where that is switched off.
    pub(crate) fn left(&self, scope: &str) -> Option<usize> {
        let enough = self.enough()?;
        Some(self.row(scope).map_or_else(|| Row::<Item>::default().left(enough), |row| row.left(enough)))
    }

    /// The items of the scope that failed alike last, which are forgotten; of an `address` those alone that it refused.
    pub(crate) fn take(&mut self, scope: &str, address: Option<&str>) -> BTreeSet<Item> {
        self.scopes.get_mut(scope).map(|row| row.take(address)).unwrap_or_default()
    }

    /// Whether an item is among those of its host that failed alike last, and a few more such would stop that.
    pub(crate) fn decides(&self, scope: &str, item: &Item) -> bool {
        self.row(scope).is_some_and(|row| row.decides_soon && row.items.contains(item))
    }

    /// No more items of the scope come: nothing follows from those that failed.
    pub(crate) fn no_more_come(&mut self, scope: &str) {
        if let Some(row) = self.scopes.get_mut(scope) {
            row.decides_soon = false;
        }
    }

    /// Whether an item is among those of a scope that failed alike last.
    pub(crate) fn has(&self, item: &Item) -> bool {
        self.scopes.values().any(|row| row.has(item))
    }

    /// The scope is watched anew.
    pub(crate) fn forget(&mut self, scope: &str) {
        self.scopes.remove(scope);
    }

    /// An item of the scope ended otherwise.
    pub(crate) fn ended_otherwise(&mut self, scope: &Arc<str>, address: Option<&str>) {
        if self.enough().is_some() {
            self.row_mut(scope).ended_otherwise(address);
        }
    }

    /// Whether none of the scope's items of this run ended otherwise.
    pub(crate) fn are_first(&self, scope: &str) -> bool {
        self.scopes.get(scope).is_none_or(Row::are_first)
    }
}

#[cfg(test)]
mod tests;
