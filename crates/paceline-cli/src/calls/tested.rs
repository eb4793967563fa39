//! Scopes that an earlier run stopped: one call goes first, and no other before what follows from its end is known.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Those of which it is not known yet whether they take calls, and whether one is on its way.
#[derive(Debug, Default)]
pub(crate) struct Tested(Mutex<BTreeMap<Arc<str>, bool>>);

/// What a call is to such a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// The scope is none of these.
    None,
    /// It tests the scope.
    First,
    /// Another one does.
    Behind,
}

impl Tested {
    /// These scopes.
    pub(crate) fn of<'a>(scopes: impl Iterator<Item = &'a Arc<str>>) -> Self {
        Self(Mutex::new(scopes.map(|scope| (Arc::clone(scope), false)).collect()))
    }

    /// A call to the scope begins.
    pub(crate) fn begin(&self, scope: &str) -> Test {
        match self.scopes().get_mut(scope) {
            None => Test::None,
            Some(true) => Test::Behind,
            Some(is_under_way) => {
                *is_under_way = true;
                Test::First
            }
        }
    }

    /// The call has ended. If its answer says nothing of the scope, another one tests that.
    pub(crate) fn ended(&self, scope: &str, is_known: bool) {
        let mut scopes = self.scopes();
        if is_known {
            scopes.remove(scope);
        } else if let Some(is_under_way) = scopes.get_mut(scope) {
            *is_under_way = false;
        }
    }

    /// Whether more than one call to the scope has to wait.
    pub(crate) fn has(&self, scope: &str) -> bool {
        self.scopes().contains_key(scope)
    }

    fn scopes(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_at_a_time_until_one_has_told() {
        let tested = Tested::of([Arc::from("a")].iter());
        assert_eq!([tested.begin("a"), tested.begin("a"), tested.begin("b")], [Test::First, Test::Behind, Test::None]);
        tested.ended("a", false);
        assert_eq!([tested.begin("a"), tested.begin("a")], [Test::First, Test::Behind], "it never left");
        tested.ended("a", true);
        assert!(!tested.has("a") && tested.begin("a") == Test::None);
    }
}
