//! The items that wait, by lanes.

use crate::state::State;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use paceline_core::Timestamp;

use super::Closed;
use super::row::{Place, Row};
use crate::schema::ACCOUNT;
use crate::scope::ScopeStatus;
use crate::work::fair_share::Lane;
use crate::work::lanes::{Asked, EARLIEST, Lanes};

/// The items that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) lanes: Lanes,
    /// The number of each lane.
    pub(super) ids: HashMap<(Arc<str>, i16), i64>,
    /// What waits in it.
    pub(super) places: Vec<BTreeSet<Place>>,
}

impl Queue {
    /// Puts an item into its lane, if it waits.
    pub(super) fn insert(&mut self, row: &Row) {
        if row.item.state == State::Waiting {
            let lane = self.lane(row);
            self.places[lane as usize].insert(row.place());
            self.lanes.set(lane, first(&self.places[lane as usize]));
        }
    }

    pub(super) fn remove(&mut self, row: &Row) {
        let lane = self.lane(row);
        if self.places[lane as usize].remove(&row.place()) {
            self.lanes.set(lane, first(&self.places[lane as usize]));
        }
    }

    pub(super) fn lane(&mut self, row: &Row) -> i64 {
        let (group, priority) = (&row.item.group, row.item.priority);
        *self.ids.entry((group.clone(), priority)).or_insert_with(|| {
            let id = self.places.len() as i64;
            self.places.push(BTreeSet::new());
            self.lanes.add(Lane { id, group: group.clone(), priority }, None);
            id
        })
    }
}

/// The first places of a lane that are due by a time: those that neither tries nor new items need are for the others.
pub(super) fn due(places: &BTreeSet<Place>, Asked { until, limit, new, .. }: &Asked) -> Vec<Place> {
    let tries = places.range(..=(false, *until, u32::MAX, u64::MAX)).take(*limit);
    let mut taken: Vec<Place> = tries.copied().collect();
    let new = places.range((true, EARLIEST, 0, 0)..).take((*new).max(limit - taken.len()));
    let new: Vec<Place> = new.copied().collect();
    taken.truncate(limit - new.len());
    taken.extend(new);
    taken
}

/// When the first item of a lane is due.
pub(super) fn first(places: &BTreeSet<Place>) -> Option<Timestamp> {
    let new = places.last().filter(|place| place.0);
    new.or(places.first()).map(|place| place.1)
}

/// When a group may send again; none while it is stopped.
pub(super) fn opens(scopes: &BTreeMap<Arc<str>, Closed>) -> impl Fn(&str) -> Option<Timestamp> {
    move |group| {
        let mut opens = EARLIEST;
        for scope in [group, ACCOUNT] {
            match scopes.get(scope).map(|closed| &closed.state) {
                Some(ScopeStatus::Stopped { .. }) => return None,
                Some(ScopeStatus::Held { until, .. }) => opens = opens.max(*until),
                Some(ScopeStatus::Open) | None => {}
            }
        }
        Some(opens)
    }
}
