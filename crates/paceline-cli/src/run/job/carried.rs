//! What a run learnt about limits, for the next one: the snapshot in the journal tells it. It is at most half a second old
//! when a run is killed, and exact when it ends.
//!
//! A configured limit holds over runs: what its windows still counted is counted on. What the server's headers announced
//! goes on from where it stood, with its age, until the first answer says more. What was learnt from refusals is where the
//! next run begins, the more carefully the longer ago that was.

use std::time::Duration;

use paceline::Limiter;
use paceline_core::{Announcement, Dimension, LimitReport, Restores, Timestamp};
use paceline_store::Snapshot;
use serde::{Deserialize, Serialize};

use crate::run::seen::snapshot::STARTING;

#[derive(Deserialize)]
struct Carried {
    at: jiff::Timestamp,
    account: Level,
    /// An older version wrote all scopes here.
    #[serde(default)]
    scopes: Vec<Level>,
}

/// The same moment by two clocks, when the run before wrote its state last: holds are stored by the second.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Clocks {
    /// The wall clock.
    at: jiff::Timestamp,
    /// The clock of that run, which stepped with nothing.
    run_clock: jiff::Timestamp,
}

impl Clocks {
    /// Those of a snapshot; none in one of an older version.
    pub(crate) fn of(snapshot: &Snapshot) -> Option<Self> {
        serde_json::from_str(&snapshot.job).ok()
    }

    /// How long a hold that was stored then still lasts: neither longer because the clock was set back, nor shorter because it
    /// was set forward during that run.
    pub(crate) fn left(&self, until: Timestamp, now: Timestamp) -> Duration {
        let [at, run_clock] = [self.at, self.run_clock].map(|clock| Timestamp::from_millis(clock.as_millisecond()));
        until.saturating_since(run_clock).saturating_sub(now.saturating_since(at))
    }
}

#[derive(Deserialize)]
struct Level {
    name: String,
    /// When it was written, if not with the job.
    at: Option<jiff::Timestamp>,
    quotas: Vec<Counted>,
    announced: Vec<Counted>,
    belief: Option<Believed>,
}

#[derive(Deserialize)]
struct Believed {
    rate: f64,
    trend: String,
    cap: Option<u32>,
}

#[derive(Deserialize)]
struct Counted {
    dimension: String,
    window_s: Option<f64>,
    /// Milliseconds before `at`, and units.
    taken: Vec<(u64, u64)>,
    announced: Option<Told>,
}

/// What the server's headers said last about a limit, as it stands in the snapshot.
#[derive(Deserialize, Serialize)]
pub(crate) struct Told {
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_ms: Option<u64>,
    #[serde(with = "Restored")]
    restores: Restores,
    ago_ms: u64,
    spent_since: u64,
}

/// The words for how a limit comes back.
#[derive(Deserialize, Serialize)]
#[serde(remote = "Restores", rename_all = "snake_case")]
enum Restored {
    Unknown,
    AtOnce,
    Gradually,
}

impl Told {
    /// For the snapshot.
    pub(crate) fn of(told: &Announcement) -> Self {
        let Announcement { report, ago, spent_since } = told;
        Self {
            limit: report.limit,
            remaining: report.remaining,
            reset_ms: report.reset.map(millis),
            restores: report.restores,
            ago_ms: millis(*ago),
            spent_since: *spent_since,
        }
    }

    fn announcement(&self, dimension: Dimension, window: Option<Duration>, since: Duration) -> Announcement {
        let report = LimitReport {
            dimension,
            limit: self.limit,
            remaining: self.remaining,
            reset: self.reset_ms.map(Duration::from_millis),
            window,
            restores: self.restores,
        };
        Announcement { report, ago: since + Duration::from_millis(self.ago_ms), spent_since: self.spent_since }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Gives the limiter what a snapshot tells. One of an older version tells nothing.
pub(crate) fn restore(snapshot: &Snapshot, limiter: &Limiter, now: Timestamp) {
    let Ok(carried) = serde_json::from_str::<Carried>(&snapshot.job) else { return };
    let since = |at: jiff::Timestamp| now.saturating_since(Timestamp::from_millis(at.as_millisecond()));
    for quota in &carried.account.quotas {
        charge(limiter, None, quota, since(carried.at));
    }
    let scopes = snapshot.scopes.iter().filter_map(|text| serde_json::from_str::<Level>(text).ok());
    for level in carried.scopes.into_iter().chain(scopes) {
        let since = since(level.at.unwrap_or(carried.at));
        level.quotas.iter().for_each(|quota| charge(limiter, Some(&level.name), quota, since));
        // A scope that was never refused has learnt nothing, and begins anew: a start finds its way faster.
        if let Some(belief) = level.belief.as_ref().filter(|belief| belief.trend != STARTING) {
            limiter.believe(&limiter.scope(&level.name), belief.rate, belief.cap, since);
        }
        for quota in &level.announced {
            let Some(told) = &quota.announced else { continue };
            let told = told.announcement(quota.dimension(), quota.window(), since);
            limiter.announce(&limiter.scope(&level.name), &told);
        }
    }
}

fn charge(limiter: &Limiter, scope: Option<&str>, quota: &Counted, since: Duration) {
    let Some(window) = quota.window() else { return };
    let taken: Vec<(Duration, u64)> =
        quota.taken.iter().map(|(ago, units)| (since + Duration::from_millis(*ago), *units)).collect();
    limiter.charge(scope.map(|name| limiter.scope(name)).as_ref(), &quota.dimension(), window, &taken);
}

impl Counted {
    fn dimension(&self) -> Dimension {
        Dimension::from_name(&self.dimension)
    }

    fn window(&self) -> Option<Duration> {
        self.window_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

#[cfg(test)]
mod tests {
    use paceline::{Belief, PacerConfig, Trend};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_795_176_000_000);

    #[test]
    fn a_hold_lasts_as_long_whatever_the_wall_clock_does() {
        let hours = |number: i64| NOW.as_millis() + number * 3_600_000;
        let left = |until: i64, run_clock: i64, at: i64, now: i64| {
            let moment = |hour| jiff::Timestamp::from_millisecond(hours(hour)).expect("a time");
            let clocks = Clocks { at: moment(at), run_clock: moment(run_clock) };
            clocks.left(Timestamp::from_millis(hours(until)), Timestamp::from_millis(hours(now))).as_secs() / 3_600
        };
        assert_eq!(left(5, 1, 1, 2), 3, "an hour later");
        assert_eq!(left(5, 1, 1, 9), 0, "long over");
        assert_eq!(left(5, 1, 1, -48), 4, "two days were set back between the runs");
        assert_eq!(left(53, 49, 1, 2), 3, "two days were set back during the run");
        assert_eq!(left(5, 1, 49, 50), 3, "it was set forward during the run");
    }

    /// What a limiter believes that is given a snapshot in which the scope was written so long ago, by this version or one that
    /// wrote all at once.
    fn restored(belief: &str, ago: Duration) -> Option<Belief> {
        let at = Timestamp::from_millis(NOW.as_millis() - i64::try_from(millis(ago)).expect("not long ago"));
        let scope = |at: &str| format!(r#"{{"name":"a model","quotas":[],"announced":[]{belief}{at}}}"#);
        let job = |at: Timestamp, scopes: &str| {
            let account = r#"{"name":"","quotas":[],"announced":[],"belief":null}"#;
            format!(r#"{{"at":"{at}","account":{account}{scopes}}}"#)
        };
        let at_once = Snapshot { job: job(at, &format!(r#","scopes":[{}]"#, scope(""))), scopes: vec![] };
        let parts = Snapshot { job: job(NOW, ""), scopes: vec![scope(&format!(r#","at":"{at}""#))] };
        let [at_once, parts] = [at_once, parts].map(|snapshot| {
            let limiter = Limiter::with_seed(PacerConfig::default(), 1).expect("the defaults");
            restore(&snapshot, &limiter, NOW);
            limiter.snapshot().scopes.into_iter().next()?.belief
        });
        assert_eq!(at_once, parts);
        parts
    }

    #[test]
    fn a_belief_goes_on_and_an_old_one_is_tried_carefully() {
        let learnt = r#","belief":{"rate":1000.0,"trend":"growing","cap":8}"#;
        let fresh = restored(learnt, Duration::from_secs(5)).expect("restored");
        assert!((500.0..=1_000.0).contains(&fresh.rate) && fresh.cap == Some(8), "{fresh}");
        let old = restored(learnt, Duration::from_secs(3_600)).expect("restored");
        assert!((2.0..100.0).contains(&old.rate) && old.cap.is_none(), "{old}");
        assert_eq!(old.trend, Trend::Returning, "it comes back fast where that is right");
        let ancient = restored(learnt, Duration::from_secs(86_400)).expect("the scope is known");
        assert_eq!((ancient.rate, ancient.trend), (2.0, Trend::Starting));
    }

    #[test]
    fn what_says_nothing_about_a_limit_is_not_restored() {
        let never_refused = r#","belief":{"rate":64.0,"trend":"starting","cap":null}"#;
        for belief in ["", r#","belief":null"#, never_refused] {
            assert_eq!(restored(belief, Duration::ZERO), None, "{belief}");
        }
    }
}
