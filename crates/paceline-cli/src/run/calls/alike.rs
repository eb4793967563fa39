//! Whether the first items to end all fail alike: then not the items are wrong, but the job. Whether those of one host do, or
//! all of late are refused there: then it may have banned the caller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

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

/// Watches each host by itself, where each line names its own: another that answers says nothing about it.
#[derive(Clone, Debug)]
pub(crate) struct AlikeByHost {
    limit: usize,
    hosts: BTreeMap<Arc<str>, Row>,
}

/// The last items of a host that failed alike, in a row.
#[derive(Clone, Debug, Default)]
struct Row {
    /// Items ended otherwise before.
    is_mixed: bool,
    kind: Option<Kind>,
    items: BTreeSet<u64>,
}

impl AlikeByHost {
    /// A `limit` of 0 switches it off.
    pub(crate) const fn new(limit: usize) -> Self {
        Self { limit, hosts: BTreeMap::new() }
    }

    /// An item of the host failed for good, or had an answer that is not what the user expects: each is counted once. True once
    /// the host has to be stopped: its first items failed alike, or as many in a row were refused (401, 403), as by a ban that
    /// began later.
    pub(crate) fn failed(&mut self, host: &Arc<str>, item: u64, kind: Kind) -> bool {
        if self.limit == 0 {
            return false;
        }
        let row = self.hosts.entry(Arc::clone(host)).or_default();
        let is_refused = matches!(kind.0, Some(401 | 403));
        if row.kind.as_ref().is_some_and(|known| *known != kind) {
            *row = Row { is_mixed: true, ..Row::default() };
        }
        row.kind = Some(kind);
        let is_new = row.items.len() < self.limit && row.items.insert(item);
        is_new && row.items.len() == self.limit && (is_refused || !row.is_mixed)
    }

    /// An item of the host ended otherwise.
    pub(crate) fn ended_otherwise(&mut self, host: &Arc<str>) {
        if self.limit > 0 {
            self.hosts.insert(Arc::clone(host), Row { is_mixed: true, ..Row::default() });
        }
    }

    /// Whether none of the host's items of this run ended otherwise.
    pub(crate) fn are_first(&self, host: &str) -> bool {
        self.hosts.get(host).is_none_or(|row| !row.is_mixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_stops_at_its_first_items_and_later_at_refusals_alone() {
        let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
        let mut watch = AlikeByHost::new(3);
        let mut item = 0;
        let mut all = |watch: &mut AlikeByHost, host: &Arc<str>, statuses: &[u16]| -> Vec<bool> {
            let failed = statuses.iter().map(|status| {
                item += 1;
                watch.failed(host, item, (Some(*status), None))
            });
            failed.collect()
        };
        assert_eq!(all(&mut watch, &a, &[404, 404, 404, 404]), [false, false, true, false]);
        assert!(watch.are_first("a"));
        assert_eq!(all(&mut watch, &b, &[404]), [false], "each host by itself");
        watch.ended_otherwise(&a);
        let mixed = all(&mut watch, &a, &[404, 404, 404, 403, 403, 403]);
        assert_eq!(mixed, [false, false, false, false, false, true]);
        assert!(!watch.are_first("a"));
        assert_eq!(all(&mut AlikeByHost::new(0), &a, &[403; 40]), [false; 40]);
        let again = (0..9).any(|_| watch.failed(&b, 7, (Some(404), None)));
        assert!(!again, "one item that is tried again");
    }
}
