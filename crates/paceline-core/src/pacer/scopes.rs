//! The scopes of a pacer, by place and by name, and which of them are to be looked at.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::request::ScopeId;
use crate::scope::Scope;

/// All scopes, and where the one of a name is. Whatever an input may have changed is noted, so that the pacer looks at
/// that and at nothing else.
#[derive(Clone, Debug, Default)]
pub(super) struct Scopes {
    all: Vec<Kept>,
    names: BTreeMap<Arc<str>, u32>,
    /// Places of scopes that were forgotten.
    free: Vec<u32>,
    touched: Vec<u32>,
    /// Those that have changed since the changes were told.
    changed: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Kept {
    scope: Option<Scope>,
    touched: bool,
    changed: bool,
}

impl Scopes {
    /// The handle of the scope of that name, if there is one.
    pub(super) fn named(&self, name: &str) -> Option<ScopeId> {
        let (name, place) = self.names.get_key_value(name)?;
        Some(ScopeId { name: name.clone(), place: *place })
    }

    /// Where the scope of a handle is, if there is one of that name.
    pub(super) fn find(&self, id: &ScopeId) -> Option<u32> {
        // The handle keeps its name alive, so no other name can have the same address.
        let known = self.all.get(id.place as usize).and_then(|kept| kept.scope.as_ref());
        if known.is_some_and(|scope| Arc::ptr_eq(&scope.name, &id.name)) {
            return Some(id.place);
        }
        self.names.get(&id.name).copied()
    }

    /// The handle of the scope in that place.
    pub(super) fn id(&self, place: u32) -> ScopeId {
        ScopeId { name: self[place].name.clone(), place }
    }

    pub(super) fn insert(&mut self, scope: Scope) -> ScopeId {
        let id = ScopeId { name: scope.name.clone(), place: self.free_place() };
        self.names.insert(id.name.clone(), id.place);
        self.all[id.place as usize].scope = Some(scope);
        self.touch(id.place);
        self.note_changed(id.place);
        id
    }

    /// Takes a scope out that is not to be looked at.
    pub(super) fn remove(&mut self, place: u32) {
        let scope = self.all[place as usize].scope.take().expect("a scope that is kept");
        self.names.remove(&scope.name);
        self.free.push(place);
    }

    /// All of them, with their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Scope)> {
        (0..).zip(&self.all).filter_map(|(place, kept)| Some((place, kept.scope.as_ref()?)))
    }

    /// All of them, to be changed: that costs as much as there are.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Scope> {
        for (place, kept) in (0..).zip(&mut self.all) {
            if kept.scope.is_some() && !core::mem::replace(&mut kept.touched, true) {
                self.touched.push(place);
            }
        }
        self.all.iter_mut().filter_map(|kept| kept.scope.as_mut())
    }

    /// Has the pacer look at the scope.
    pub(super) fn touch(&mut self, place: u32) {
        let kept = &mut self.all[place as usize];
        if !core::mem::replace(&mut kept.touched, true) {
            self.touched.push(place);
        }
    }

    /// The scopes to be looked at, in order.
    pub(super) fn take_touched(&mut self) -> Vec<u32> {
        let mut touched = core::mem::take(&mut self.touched);
        touched.sort_unstable();
        for place in &touched {
            self.all[*place as usize].touched = false;
        }
        touched
    }

    /// Takes the memory of [`take_touched`](Self::take_touched) back.
    pub(super) fn done(&mut self, mut touched: Vec<u32>) {
        if self.touched.is_empty() {
            touched.clear();
            self.touched = touched;
        }
    }

    /// The scope is among the next that are told as changed.
    pub(super) fn note_changed(&mut self, place: u32) {
        let kept = &mut self.all[place as usize];
        if !core::mem::replace(&mut kept.changed, true) {
            self.changed.push(place);
        }
    }

    /// The scopes that have changed since this was asked last, in order.
    pub(super) fn take_changed(&mut self) -> Vec<u32> {
        let mut changed = core::mem::take(&mut self.changed);
        changed.sort_unstable();
        changed.iter().for_each(|place| self.all[*place as usize].changed = false);
        changed.retain(|place| self.all[*place as usize].scope.is_some());
        changed
    }

    fn free_place(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.all.push(Kept { scope: None, touched: false, changed: false });
            u32::try_from(self.all.len() - 1).expect("fewer than 2^32 scopes")
        })
    }
}

/// By place, for the pacer itself: nothing is noted.
impl Index<u32> for Scopes {
    type Output = Scope;

    fn index(&self, place: u32) -> &Scope {
        self.all[place as usize].scope.as_ref().expect("a scope that is kept")
    }
}

impl IndexMut<u32> for Scopes {
    fn index_mut(&mut self, place: u32) -> &mut Scope {
        self.all[place as usize].scope.as_mut().expect("a scope that is kept")
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
