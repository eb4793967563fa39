//! The scopes of a pacer, by place and by name.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

use crate::request::ScopeId;
use crate::scope::Scope;

/// All scopes, and where the one of a name is.
#[derive(Clone, Debug, Default)]
pub(super) struct Scopes {
    all: Vec<Scope>,
    names: BTreeMap<Arc<str>, u32>,
}

impl Scopes {
    /// The handle of the scope of that name, if there is one.
    pub(super) fn named(&self, name: &str) -> Option<ScopeId> {
        let (name, place) = self.names.get_key_value(name)?;
        Some(ScopeId { name: name.clone(), place: *place })
    }

    /// Where the scope of a handle is, if there is one of that name.
    pub(super) fn find(&self, id: &ScopeId) -> Option<usize> {
        let place = id.place as usize;
        // The handle keeps its name alive, so no other name can have the same address.
        if self.all.get(place).is_some_and(|scope| Arc::ptr_eq(&scope.name, &id.name)) {
            return Some(place);
        }
        self.names.get(&id.name).map(|place| *place as usize)
    }

    /// The handle of the scope in that place.
    pub(super) fn id(&self, place: usize) -> ScopeId {
        ScopeId { name: self.all[place].name.clone(), place: u32::try_from(place).expect("fewer than 2^32 scopes") }
    }

    pub(super) fn insert(&mut self, scope: Scope) -> ScopeId {
        self.all.push(scope);
        let id = self.id(self.all.len() - 1);
        self.names.insert(id.name.clone(), id.place);
        id
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Scope> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Scope> {
        self.all.iter_mut()
    }
}

impl Index<usize> for Scopes {
    type Output = Scope;

    fn index(&self, place: usize) -> &Scope {
        &self.all[place]
    }
}

impl IndexMut<usize> for Scopes {
    fn index_mut(&mut self, place: usize) -> &mut Scope {
        &mut self.all[place]
    }
}

/// The scope of a request that the pacer keeps: it is there for as long as the request is.
impl Index<&ScopeId> for Scopes {
    type Output = Scope;

    fn index(&self, id: &ScopeId) -> &Scope {
        &self[self.find(id).expect("the scope of a request that is kept")]
    }
}

impl IndexMut<&ScopeId> for Scopes {
    fn index_mut(&mut self, id: &ScopeId) -> &mut Scope {
        let place = self.find(id).expect("the scope of a request that is kept");
        &mut self[place]
    }
}
