//! One call tests a scope that was stopped: no other of it leaves before it is known how that one ended.

use std::sync::Arc;

use paceline_core::WaitCause;
use paceline_core::retry::{RefusedBefore, sits_out_test};
use paceline_store::work::{StartDelay, WorkItem};

use super::StoppedScopes;

/// The call that tests a scope, until it is dropped. It has to be kept until its end has been [heard](StoppedScopes::heard), and
/// what follows from that for its scope has been said.
#[derive(Debug)]
pub(in crate::tasks::run) struct TestCall {
    stopped: StoppedScopes,
    scope: Arc<str>,
    item: String,
}

impl StoppedScopes {
    /// A call of the scope, or of a stopped address, is to leave: none where nothing has to be tested, else the test, while no
    /// other is under way. An item that was refused lets others go first, once in each run.
    ///
    /// # Errors
    /// What the call waits for.
    pub(in crate::tasks::run) fn test(
        &self,
        scope: &str,
        item: &WorkItem,
        address: &str,
    ) -> Result<Option<TestCall>, StartDelay> {
        let mut stopped = self.lock();
        // A run that ends with the first wait tests it too.
        let later = |after| {
            let why = WaitCause::Canary.to_string().into();
            StartDelay { after, why, scope: scope.into(), for_all: false, at_hand: true, in_this_run: true }
        };
        if stopped.in_test.contains(scope) {
            return Err(later(None));
        }
        let Some((known, stop)) = stopped.suspects.get_key_value(scope) else { return Ok(None) };
        let refused = match &stop.refusals {
            refusals if refusals.last.as_deref() == Some(&*item.key) => RefusedBefore::Last,
            _ if item.last.as_ref().is_some_and(|last| last.class.is_final() || last.unexpected) => {
                RefusedBefore::Itself
            }
            refusals if refusals.address.as_deref() == Some(address) => RefusedBefore::OthersOfItsAddress,
            _ => RefusedBefore::No,
        };
        let name = Arc::clone(known);
        let Some(stop) = stopped.suspects.get_mut(&name) else { return Ok(None) };
        if let Some(after) = sits_out_test(refused)
            && stop.sat_out.insert(item.key.clone())
        {
            return Err(later(Some(after)));
        }
        stopped.in_test.insert(Arc::clone(&name));
        Ok(Some(TestCall { stopped: self.clone(), scope: name, item: item.key.clone() }))
    }
}

impl TestCall {
    /// The call leaves: the next test is one of another item.
    pub(in crate::tasks::run) fn leaves(&self) {
        if let Some(stop) = self.stopped.lock().suspects.get_mut(&self.scope) {
            stop.refusals.last = Some(self.item.clone());
        }
    }
}

impl Drop for TestCall {
    fn drop(&mut self) {
        self.stopped.lock().in_test.remove(&self.scope);
    }
}
