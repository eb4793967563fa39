//! One call tests a scope that was stopped: no other of it leaves before it is known how that one ended.

use std::sync::Arc;

use paceline_core::WaitCause;
use paceline_store::work::StartDelay;

use super::StoppedScopes;

/// The call that tests a scope, until it is dropped. It has to be kept until its end has been [heard](StoppedScopes::heard), and
/// what follows from that for its scope has been said.
#[derive(Debug)]
pub(in crate::tasks::run) struct TestCall {
    stopped: StoppedScopes,
    scope: Arc<str>,
}

impl StoppedScopes {
    /// A call of the scope is to leave: none where nothing has to be tested, else the test, while no other is under way.
    ///
    /// # Errors
    /// What the call waits for.
    pub(in crate::tasks::run) fn test(&self, scope: &str) -> Result<Option<TestCall>, StartDelay> {
        let mut stopped = self.lock();
        let Some((scope, _)) = stopped.suspects.get_key_value(scope) else { return Ok(None) };
        let scope = Arc::clone(scope);
        if !stopped.in_test.insert(Arc::clone(&scope)) {
            let why = WaitCause::Canary.to_string().into();
            return Err(StartDelay { after: None, why, for_all: false, at_hand: true });
        }
        Ok(Some(TestCall { stopped: self.clone(), scope }))
    }
}

impl Drop for TestCall {
    fn drop(&mut self) {
        self.stopped.lock().in_test.remove(&self.scope);
    }
}
