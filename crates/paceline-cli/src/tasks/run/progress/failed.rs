//! An item that has failed, until it is told.

use paceline_core::{Class, GiveUp, Instant, Timestamp};
use paceline_store::work::{DecisionRecord, WorkClock, WorkItem};

use super::LONGEST_CAUSE;
use crate::progress::failures::Failures;
use crate::text;

/// An item that has failed, unless all of its host or its group do.
#[derive(Debug)]
pub(super) struct FailedItem {
    pub(super) key: String,
    pub(super) at: Instant,
    /// The same for people.
    time: Timestamp,
    is_told: bool,
    class: Class,
    status: Option<u16>,
    code: Option<String>,
    cause: String,
    reason: String,
}

impl FailedItem {
    pub(super) fn of(item: &WorkItem, decided: &DecisionRecord, clock: &WorkClock) -> Self {
        let DecisionRecord { failure, reason, .. } = decided;
        let cause = text::cut(&text::printable(&failure.message), LONGEST_CAUSE);
        Self {
            key: item.key.clone(),
            at: clock.now(),
            time: clock.wall(),
            is_told: false,
            class: failure.class,
            status: failure.status,
            code: failure.code.clone(),
            cause,
            reason: text::printable(reason.as_deref().unwrap_or(failure.class.as_str())).into_owned()
                + &too_late(decided),
        }
    }

    /// Tells of it once it is known whether it waits after all, or `is_late`, among the `failures` of the run. Returns whether
    /// it is known.
    pub(super) fn tell(&mut self, failures: &mut Failures, waits: Option<bool>, is_late: bool) -> bool {
        let Self { key, class, status, code, cause, reason, time, .. } = self;
        match waits {
            Some(true) if self.is_told => {
                tracing::info!(item = key, "it waits after all: the others of its host or group failed as it did");
            }
            Some(true) => {
                tracing::debug!(item = key, cause, "waits: all of its host or group failed so, and that is stopped");
            }
            None if !is_late => {}
            _ if self.is_told => {}
            _ => {
                let (at, class_name) = (is_late.then(|| text::moment(*time)), class.as_str());
                let shown = status.filter(|status| !cause.contains(&status.to_string()));
                macro_rules! tell {
                    ($level:ident) => {
                        tracing::$level!(
                            item = key,
                            class = class_name,
                            status = shown,
                            code,
                            cause,
                            at,
                            "failed: {reason}"
                        )
                    };
                }
                if failures.add(*class, *status, cause) {
                    tell!(error)
                } else {
                    tell!(debug)
                }
                self.is_told = true;
            }
        }
        waits.is_some()
    }
}

/// Of an item whose server asks for more time than it has: for how much.
fn too_late(decided: &DecisionRecord) -> String {
    let DecisionRecord { failure, reason, .. } = decided;
    let is_asked = matches!(failure.class, Class::Throttled | Class::QuotaExhausted)
        && reason.as_deref() == Some(GiveUp::Deadline.as_str());
    let wait = failure.retry_after.filter(|_| is_asked);
    wait.map(|wait| {
        format!(", which comes before the end of the wait that its server asks for ({})", text::duration(wait))
    })
    .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use paceline_store::work::{
        Failure, Filter, MemoryStore, NewItem, SchedulerConfig, SchedulerEvent, WorkStore as _,
    };

    use super::super::Progress;
    use super::*;
    use crate::tasks::run::fail_fast::FailFast;

    /// Two of three that stop a host, in a worker that stays for hours, and a third one later.
    #[tokio::test(start_paused = true)]
    async fn a_failure_is_told_within_ten_seconds_also_while_its_host_may_be_stopped_for_it() {
        let clock = WorkClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
        let store = Arc::new(MemoryStore::new(clock.clone()));
        store.insert(["a", "b", "c"].map(|key| NewItem::new(key, "1")).into()).await.expect("room");
        let items = store.list(Filter::default(), 0, 3).await.expect("a memory");
        let counts = store.counts().await.expect("a memory");
        let progress = Progress::new(false, &counts, &SchedulerConfig::default(), clock);
        let watch = FailFast::new(3, true, false, true);
        let fails = |item: &WorkItem| {
            let failure = Failure::new(Class::Invalid, "not found").with_status(404);
            let (action, by) = ("fail", "rules".to_owned());
            let decided = DecisionRecord { failure, action, reason: None, by, stayed_down: false };
            let event = SchedulerEvent::Decided { item, decided: &decided, wait: None };
            watch.begins(item, "hooks.example", "https://hooks.example/in");
            watch.observe(&event);
            progress.observe(&event, &|key| watch.waits(key));
        };
        let told = || progress.figures().untold.iter().map(|failed| failed.is_told).collect::<Vec<_>>();
        let drawing = progress.draw_regularly(store.clone(), &watch);
        fails(&items[0]);
        fails(&items[1]);
        assert_eq!(told(), [false; 2], "they may wait");
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(told(), [true; 2]);
        fails(&items[2]);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(told(), [false; 0], "it is known that they wait");
        drop(drawing);
    }

    /// A `Retry-After` of eleven days, and a deadline of three.
    #[test]
    fn a_wait_that_a_server_asks_for_beyond_the_deadline_is_told() {
        let told = |failure: Failure, reason: &str| {
            let (action, by, reason) = ("fail", "rules".to_owned(), Some(reason.to_owned()));
            too_late(&DecisionRecord { failure, action, reason, by, stayed_down: true })
        };
        let asked = || Failure::new(Class::QuotaExhausted, "no").with_retry_after(Duration::from_secs(11 * 86_400));
        assert!(told(asked(), "deadline").contains("the wait that its server asks for (11d"));
        assert_eq!([told(asked(), "max_deferrals"), told(Failure::new(Class::Throttled, "no"), "deadline")], ["", ""]);
    }
}
