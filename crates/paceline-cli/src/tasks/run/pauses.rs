//! Which scope kept items back, and for how long, where a user could have several.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::Instant;
use paceline_config::Upstream;
use paceline_core::{Level, Timestamp, WaitCause, WaitReason};
use paceline_providers::Provider;
use paceline_providers::table::Scope;

use crate::calls::held_up::{DIVIDE, HeldUp};
use crate::job::holds;

/// The pauses of each scope of a run, for which items waited.
#[derive(Debug)]
pub(super) struct Pauses {
    began: Instant,
    scopes: Mutex<BTreeMap<Arc<str>, OfScope>>,
}

/// Those of one scope.
#[derive(Debug, Default)]
struct OfScope {
    held_up: HeldUp,
    /// The last item that waited, and how many others did before it.
    last: Option<u64>,
    others: u64,
}

impl Pauses {
    /// None where the API, the configuration or a host says what belongs together.
    pub(super) fn of(upstream: &Upstream, began: Instant) -> Option<Arc<Self>> {
        let may_be_divided = upstream.provider == Provider::Generic
            && upstream.tiers.is_empty()
            && (upstream.dialect.is_one_scope() || upstream.dialect.scope() == Scope::Group);
        may_be_divided.then(|| Arc::new(Self { began, scopes: Mutex::default() }))
    }

    /// An item waits so long for its scope, because of that.
    pub(super) fn note(&self, scope: &Arc<str>, item: u64, reason: &WaitReason, now: Instant, wait: Duration) {
        let is_pause = matches!(reason.cause, WaitCause::Held { .. } | WaitCause::Gate { .. });
        if !is_pause || reason.level != Level::Scope || wait <= holds::SHORT {
            return;
        }
        let now = self.since(now);
        let mut scopes = self.scopes();
        let known = scopes.entry(Arc::clone(scope)).or_default();
        known.others += u64::from(known.last.replace(item).is_some_and(|last| last != item));
        known.held_up.note(now, now + wait, known.others + 1);
    }

    /// The scope that kept items back for longest, and what could be set. `waiting`: items that the run leaves.
    pub(super) fn describe(&self, now: Instant, waiting: u64) -> Option<String> {
        let now = self.since(now);
        let scopes = self.scopes();
        let (scope, longest) = scopes.iter().max_by_key(|(_, known)| known.held_up.waited(now))?;
        let how = longest.held_up.how(now).filter(|_| longest.others > 0 || waiting > 1)?;
        Some(format!(
            "held up: {}, {how}, because they are one scope; {DIVIDE} (--scope group and `tasks add --group`: each group)",
            match &**scope {
                "all" => "all items".to_owned(),
                scope => format!("the items of {}", holds::name(scope)),
            }
        ))
    }

    fn since(&self, now: Instant) -> Timestamp {
        Timestamp::from_millis(0) + now.saturating_since(self.began)
    }

    fn scopes(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, OfScope>> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
