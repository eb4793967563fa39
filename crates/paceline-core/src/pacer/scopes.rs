//! The scopes of a pacer, by place and by name, and which of them an input has touched.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::request::ScopeId;
use crate::scope::Scope;

/// All scopes, indexed by place and by name. It notes which scopes an input may have changed: the pacer processes only those.
#[derive(Clone, Debug, Default)]
pub(super) struct Scopes {
    all: Vec<Option<Scope>>,
    names: BTreeMap<Arc<str>, u32>,
    /// Places of evicted scopes.
    free: Vec<u32>,
    /// Scopes that the pacer has to process.
    touched: Noted,
    /// Scopes that have changed since the last call of [`Scopes::take_changed`].
    changed: Noted,
}

/// Places, each at most once.
#[derive(Clone, Debug, Default)]
struct Noted {
    places: Vec<u32>,
    /// Whether a place is among them.
    is_noted: Vec<bool>,
}

impl Noted {
    #[inline]
    fn note(&mut self, place: u32) {
        match self.is_noted.get_mut(place as usize) {
            Some(true) => {}
            Some(is_noted) => {
                *is_noted = true;
                self.places.push(place);
            }
            None => self.note_first(place),
        }
    }

    #[cold]
    fn note_first(&mut self, place: u32) {
        self.is_noted.resize(place as usize + 1, false);
        self.note(place);
    }

    /// All of them, in order; none is noted then.
    fn take(&mut self) -> Vec<u32> {
        let mut places = core::mem::take(&mut self.places);
        places.sort_unstable();
        places.iter().for_each(|place| self.is_noted[*place as usize] = false);
        places
    }
}

impl Scopes {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// The handle of the scope of that name, if there is one.
    pub(super) fn named(&self, name: &str) -> Option<ScopeId> {
        let (name, place) = self.names.get_key_value(name)?;
        Some(ScopeId { name: name.clone(), place: *place })
    }

    /// Where the scope of a handle is, if there is one of that name.
    pub(super) fn find(&self, id: &ScopeId) -> Option<u32> {
        if self.is_own(id) { Some(id.place) } else { self.names.get(&id.name).copied() }
    }

    /// Whether the handle is one of these scopes' own, with its present place.
    pub(super) fn is_own(&self, id: &ScopeId) -> bool {
        // The handle keeps its name alive, so no other name can have the same address.
        let known = self.all.get(id.place as usize).and_then(Option::as_ref);
        known.is_some_and(|scope| Arc::ptr_eq(&scope.name, &id.name))
    }

    /// The handle of the scope in that place.
    pub(super) fn id(&self, place: u32) -> ScopeId {
        ScopeId { name: self[place].name.clone(), place }
    }

    pub(super) fn insert(&mut self, scope: Scope) -> ScopeId {
        let id = ScopeId { name: scope.name.clone(), place: self.free_place() };
        self.names.insert(id.name.clone(), id.place);
        self.all[id.place as usize] = Some(scope);
        self.touch(id.place);
        self.note_changed(id.place);
        id
    }

    /// Removes a scope that is not among the touched ones.
    pub(super) fn remove(&mut self, place: u32) -> Scope {
        let scope = self.all[place as usize].take().expect("a scope that is kept");
        self.names.remove(&scope.name);
        self.free.push(place);
        scope
    }

    /// The scope in that place, if there is one.
    pub(super) fn get(&self, place: u32) -> Option<&Scope> {
        self.all.get(place as usize)?.as_ref()
    }

    /// All of them, with their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Scope)> {
        (0..).zip(&self.all).filter_map(|(place, scope)| Some((place, scope.as_ref()?)))
    }

    /// All of them, to be changed: linear in their number, and each counts as touched.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Scope> {
        for (place, _) in (0..).zip(&self.all).filter(|(_, scope)| scope.is_some()) {
            self.touched.note(place);
        }
        self.all.iter_mut().filter_map(Option::as_mut)
    }

    /// Marks the scope for processing.
    #[inline]
    pub(super) fn touch(&mut self, place: u32) {
        self.touched.note(place);
    }

    /// Whether an input has touched a scope that is not processed yet.
    pub(super) const fn are_touched(&self) -> bool {
        !self.touched.places.is_empty()
    }

    /// The scopes to be processed, in order.
    pub(super) fn take_touched(&mut self) -> Vec<u32> {
        self.touched.take()
    }

    /// Returns the buffer of [`take_touched`](Self::take_touched) for reuse.
    pub(super) fn done(&mut self, mut touched: Vec<u32>) {
        if self.touched.places.is_empty() {
            touched.clear();
            self.touched.places = touched;
        }
    }

    /// Marks the scope as changed.
    #[inline]
    pub(super) fn note_changed(&mut self, place: u32) {
        self.changed.note(place);
    }

    /// The scopes that have changed since the last call, in order.
    pub(super) fn take_changed(&mut self) -> Vec<u32> {
        let mut changed = self.changed.take();
        changed.retain(|place| self.all[*place as usize].is_some());
        changed
    }

    fn free_place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            u32::try_from(self.all.len() - 1).expect("fewer than 2^32 scopes")
        })
    }
}

/// By place, for the pacer itself: nothing is noted.
impl Index<u32> for Scopes {
    type Output = Scope;

    #[inline(always)]
    fn index(&self, place: u32) -> &Scope {
        self.all[place as usize].as_ref().expect("a scope that is kept")
    }
}

impl IndexMut<u32> for Scopes {
    #[inline]
    fn index_mut(&mut self, place: u32) -> &mut Scope {
        self.all[place as usize].as_mut().expect("a scope that is kept")
    }
}

/// By handle, for inputs. The scope of a request is there for as long as the request is.
impl Index<&ScopeId> for Scopes {
    type Output = Scope;

    fn index(&self, id: &ScopeId) -> &Scope {
        &self[self.find(id).expect("the scope of a request that is kept")]
    }
}

impl IndexMut<&ScopeId> for Scopes {
    fn index_mut(&mut self, id: &ScopeId) -> &mut Scope {
        let place = self.find(id).expect("the scope of a request that is kept");
        self.touch(place);
        &mut self[place]
    }
}
