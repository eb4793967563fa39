//! A call that waits for the beginning of its answer: with it an upstream is known to be silent, whether its clients wait for
//! long or give up soon. A head alone is no beginning, where a body has to come.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::{AwaitedCall, Silent, format_duration};
use paceline_http::NoAnswer;

use crate::backend::Backend;
use crate::metrics::{Metrics, ScopeMetrics};
use crate::notes::Kind;

/// Until its answer begins. Dropped before, the call was given up.
#[derive(Default)]
pub(crate) struct AwaitedAnswer(Option<Awaited>);

struct Awaited {
    metrics: Arc<Metrics>,
    scope: Arc<ScopeMetrics>,
    call: AwaitedCall,
}

impl AwaitedAnswer {
    /// That of a call of the scope, which leaves now.
    pub(crate) fn of_call(metrics: &Arc<Metrics>, scope: &Arc<str>) -> Self {
        let scope = metrics.of_scope(scope);
        let call = scope.silence().sent(metrics.clock.now());
        Self(Some(Awaited { metrics: Arc::clone(metrics), scope, call }))
    }

    /// Its answer begins.
    pub(crate) fn begins(&mut self, upstream: &Backend) {
        let Some(Awaited { metrics, scope, call }) = self.0.take() else { return };
        let silent = scope.silence().answered(metrics.clock.now(), call);
        upstream.tell_end_of_silence(scope.label(), silent);
    }

    /// There is none. After the timeout that says no more than before.
    pub(crate) fn fails(&mut self, error: &NoAnswer) {
        if matches!(error, NoAnswer::Timeout(_)) {
            return self.is_given_up();
        }
        let Some(Awaited { metrics, scope, call }) = self.0.take() else { return };
        scope.silence().failed(metrics.clock.now(), call);
    }

    fn is_given_up(&mut self) {
        if let Some(Awaited { metrics, scope, call }) = self.0.take() {
            scope.silence().given_up(metrics.clock.now(), call);
        }
    }
}

impl Drop for AwaitedAnswer {
    fn drop(&mut self) {
        self.is_given_up();
    }
}

impl Backend {
    /// Logs that its calls are not answered, where that is news: to be asked now and then.
    pub(crate) fn tell_silence(&self) {
        for (scope, silent) in self.metrics().silences(|silence, now| silence.tell(now)) {
            if self.may_tell(Kind::Down) {
                tracing::warn!(upstream = self.name(), scope = &*scope, "{silent}");
            }
        }
    }

    /// Of an outage that is told too, its own end is.
    fn tell_end_of_silence(&self, scope: &str, silent: Option<Duration>) {
        let is_of = |place: Option<Arc<str>>| place.is_none_or(|place| &*place == scope);
        let is_outage = || self.notes().outages.down(self.limiter().now()).into_iter().any(|down| is_of(down.scope));
        let Some(silent) = silent.filter(|_| !is_outage() && self.may_tell(Kind::Back)) else { return };
        let silent = format_duration(silent);
        tracing::info!(upstream = self.name(), scope, "the upstream answers again, after {silent}");
    }

    /// That of its scopes whose calls have had no answer for the longest time.
    pub(crate) fn longest_silence(&self) -> Option<Silent> {
        let silences = self.metrics().silences(|silence, now| silence.silent(now));
        silences.into_iter().map(|(_, silent)| silent).max_by_key(|silent| silent.waited)
    }
}
