//! What can be typed after `paceline tasks run`, and the bounds that follow from it.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use paceline_config::{EffectiveValue, Overrides, Source, Upstream, pace_names, scope_names, upstream_names};
use paceline_core::{Backoff, Concurrency, Dimension, Growth, Jitter};
use paceline_store::work::{Idle, OverBound, SchedulerConfig};

use super::shutdown::GRACE;
use crate::args::{
    AccessArgs, Everywhere, Expect, LimitArgs, Offered, PACE, UPSTREAM, ViaArgs, as_flags, count, duration, some_time,
};
use crate::exit::Failure;
use crate::fallback::FallbackArgs;
use crate::process::KILL_AFTER;
use crate::tasks::judge::{ANSWER_WITHIN, JudgeArgs};
use crate::tasks::store::StoreArgs;
use crate::upstream;

const WORK: &str = "Work";
const RETRIES: &str = "Retries";
const BOUNDS: &str = "Bounds of this run";

/// Items in flight at once where no flag says how many: no more than so many.
const PLACES: u32 = 10;

fn places(text: &str) -> Result<NonZeroUsize, String> {
    count::<usize>(text).and_then(|places| NonZeroUsize::new(places).ok_or_else(|| "expected at least 1".to_owned()))
}

/// `paceline tasks run`.
#[derive(Debug, clap::Args)]
#[command(after_help = CONTRACT, override_usage = "paceline tasks run --store <STORE> [OPTIONS] -- <COMMAND>...
       paceline tasks run --store <STORE> [OPTIONS] --http --base-url <URL>")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// Command that works on one item, with its arguments; it runs without a shell
    #[arg(value_name = "COMMAND", last = true, required_unless_present = "http", conflicts_with = "http")]
    pub(super) command: Vec<OsString>,
    /// Send each payload as a request instead: a line of `paceline run`, whose custom_id may be missing
    #[arg(help_heading = WORK, long)]
    pub(super) http: bool,
    /// Append the answers of successful requests to a file, as result lines of `paceline run`; without it they are discarded
    #[arg(help_heading = WORK, long, short, value_name = "OUT")]
    pub(super) output: Option<PathBuf>,
    /// Most items in flight at once [default: 10, or what the configuration allows if that is fewer]
    #[arg(help_heading = WORK, long, visible_alias = "workers", value_name = "N", value_parser = places)]
    concurrency: Option<NonZeroUsize>,
    /// How long one try may take
    #[arg(help_heading = WORK, long, value_name = "DURATION", default_value = "600s", value_parser = some_time)]
    #[arg(allow_hyphen_values = true)]
    pub(super) timeout: Duration,
    #[command(flatten)]
    pub(super) judge: JudgeArgs,
    #[command(flatten, next_help_heading = RETRIES)]
    pub(super) fallback: FallbackArgs,
    /// Tries of an item after the first
    #[arg(help_heading = RETRIES, long, value_name = "N", default_value_t = 3)]
    max_retries: u32,
    /// How often rate-limit answers may put off an item, a bound of --over-bound [default: no bound]
    #[arg(help_heading = RETRIES, long, value_name = "N")]
    max_deferrals: Option<u32>,
    /// How often this program may crash while it works on an item, a bound of --over-bound [default: no bound]
    #[arg(help_heading = RETRIES, long, value_name = "N")]
    max_crashes: Option<u32>,
    /// Wait before an item's first retry
    #[arg(help_heading = RETRIES, long, value_name = "DURATION", default_value = "5s", value_parser = some_time)]
    #[arg(allow_hyphen_values = true)]
    first_delay: Duration,
    /// Factor by which each further wait of an item is longer
    #[arg(help_heading = RETRIES, long, value_name = "F", default_value_t = 2.0)]
    multiplier: f64,
    /// Longest wait that the backoff chooses; a server may ask for longer
    #[arg(help_heading = RETRIES, long, value_name = "DURATION", default_value = "300s", value_parser = some_time)]
    #[arg(allow_hyphen_values = true)]
    cap: Duration,
    /// How waits are spread: none, full (0 to the wait) or equal (half of it to the whole)
    #[arg(help_heading = RETRIES, long, value_name = "JITTER", value_enum, default_value_t)]
    jitter: JitterFlag,
    /// How long an item may take from its first try, unless it has a deadline of its own
    #[arg(help_heading = RETRIES, long, value_name = "DURATION", default_value = "24h", value_parser = some_time)]
    #[arg(allow_hyphen_values = true)]
    deadline: Duration,
    /// What to do with an item that exceeds a bound: it fails, or it waits for the next run
    #[arg(help_heading = RETRIES, long, value_name = "WHAT", value_enum, default_value_t)]
    over_bound: OverBoundFlag,
    /// Start nothing after this long; items in flight get up to 30s
    #[arg(help_heading = BOUNDS, long, value_name = "DURATION", value_parser = some_time, allow_hyphen_values = true)]
    pub(super) max_duration: Option<Duration>,
    /// End the run when nothing can start for this long; the same command continues it
    #[arg(help_heading = BOUNDS, long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    #[arg(allow_hyphen_values = true)]
    max_wait: Duration,
    /// Stop when the first N items all fail the same way and nothing has succeeded: the group or host that all of them are
    /// of, else the run; 0 never stops
    #[arg(help_heading = BOUNDS, long, value_name = "N", default_value_t = 20)]
    pub(super) stop_after_same: usize,
    /// Start a run every DURATION, until Ctrl-C
    #[arg(help_heading = BOUNDS, long, value_name = "DURATION", value_parser = some_time, allow_hyphen_values = true)]
    pub(super) every: Option<Duration>,
    /// Wait for more work when everything has ended, until Ctrl-C
    #[arg(help_heading = BOUNDS, long, conflicts_with_all = ["every", "max_wait"])]
    pub(super) stay: bool,
    #[command(flatten)]
    limits: LimitArgs,
    /// Calls that share a pace: those of a model, an endpoint (one path), a host (payloads may name any host; others get no key),
    /// a group (of the item), a table, or all [default: what the provider limits together, for a generic API the group,
    /// without one the first part of the path]
    #[arg(help_heading = PACE, long, value_name = "WHAT", value_parser = Offered(scope_names), hide_possible_values = true)]
    scope: Option<String>,
    /// Tries that may start at once after a pause [default: the limit per second, rounded up]
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    burst: Option<String>,
    /// How the pace of tries is chosen: auto, fixed, aimd, ... [default: aimd for a command, auto with --http]
    #[arg(help_heading = PACE, long, value_name = "PACE", value_parser = Offered(pace_names), hide_possible_values = true)]
    pace: Option<String>,
    /// Upstream whose address, dialect, limits and key are used; a command uses only its limits
    #[arg(help_heading = PACE, long, value_name = "NAME", value_parser = Offered(upstream_names), hide_possible_values = true)]
    upstream: Option<String>,
    #[command(flatten)]
    through: ViaArgs,
    #[command(flatten)]
    access: AccessArgs,
    /// Endpoint of payloads that are bare request bodies [default: /v1/chat/completions, for anthropic /v1/messages, others none]
    #[arg(help_heading = UPSTREAM, long, value_name = "PATH")]
    pub(super) endpoint: Option<String>,
    /// Require answers to be JSON (json), or to match the JSON schema in a file; any other 200 answer is retried like a server
    /// error
    #[arg(help_heading = UPSTREAM, long, value_name = "json|FILE")]
    expect: Option<Expect>,
    /// Write the summary to a file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) summary: Option<PathBuf>,
    /// Print the summary as JSON on standard output
    #[arg(long)]
    pub(super) json: bool,
}

const CONTRACT: &str = "\
A command gets the payload on standard input, and PACELINE_KEY, PACELINE_ATTEMPT (from 1) and PACELINE_GROUP in its environment.
Exit code 0 is success. Otherwise the last line of standard output decides, if it is JSON:
  {\"class\":\"throttled\",\"code\":\"slow_down\",\"message\":\"...\",\"retry_after_s\":30}
Classes: transient, overloaded, throttled, quota_exhausted, account, invalid, filtered, partial.
Without such a line the exit code decides: 65 is invalid, 77 account, any other transient.

Exit codes: 0 all succeeded, 1 some failed, 2 nothing was started, 3 not finished: run the same command again.";

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum JitterFlag {
    #[default]
    None,
    Full,
    Equal,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum OverBoundFlag {
    #[default]
    Fail,
    NextRun,
}

/// The flags of `tasks run` with a default of their own. Those are not the defaults of an upstream, nor does a file set them.
pub(crate) fn defaults() -> Vec<EffectiveValue> {
    let command = <Args as clap::Args>::augment_args(clap::Command::new("run"));
    let default = |arg: &clap::Arg| {
        let value = arg.get_default_values().first()?.to_string_lossy().into_owned();
        Some(EffectiveValue { key: format!("--{}", arg.get_long()?), value, source: Source::Default })
    };
    command.get_arguments().filter_map(default).collect()
}

impl Args {
    /// What acts on requests alone is refused beside a command: clap takes a flag that needs `--http` for one that does not,
    /// because a command excludes that.
    fn refuse_idle(&self) -> Result<(), Failure> {
        let flags = [
            (self.endpoint.is_some(), "--endpoint"),
            (self.expect.is_some(), "--expect"),
            (self.output.is_some(), "--output"),
            (self.through.via.is_some(), "--via"),
            (self.through.fleet.is_some(), "--fleet"),
            (self.scope.is_some(), "--scope"),
        ];
        let given = flags.into_iter().find_map(|(given, flag)| given.then_some(flag));
        match self.access.given().or(given).filter(|_| !self.http) {
            Some(flag) => Err(Failure::refused(format!("{flag} applies to requests only: add --http"))),
            None => Ok(()),
        }
    }

    /// For how long the server may not be there; none where the run waits for whatever may come.
    pub(super) fn longest_outage(&self) -> Option<Duration> {
        (!self.stay).then_some(self.max_wait)
    }

    /// The bounds of a run.
    ///
    /// # Errors
    /// Names a knob that makes no sense.
    pub(super) fn policy(&self) -> Result<SchedulerConfig, Failure> {
        self.refuse_idle()?;
        let growth = Growth::Exponential { base: self.first_delay, multiplier: self.multiplier, cap: self.cap };
        let jitter = match self.jitter {
            JitterFlag::None => Jitter::None,
            JitterFlag::Full => Jitter::Full,
            JitterFlag::Equal => Jitter::Equal,
        };
        let policy = SchedulerConfig {
            concurrency: self.concurrency.map_or(PLACES as usize, NonZeroUsize::get),
            max_retries: self.max_retries,
            max_deferrals: self.max_deferrals,
            max_crashes: self.max_crashes,
            backoff: Backoff { growth, jitter },
            deadline: self.deadline,
            over_bound: match self.over_bound {
                OverBoundFlag::Fail => OverBound::Fail,
                OverBoundFlag::NextRun => OverBound::NextRun,
            },
            max_run_duration: self.max_duration,
            max_wait: self.max_wait,
            judge_timeout: ANSWER_WITHIN + Duration::from_secs(1),
            idle: if self.stay { Idle::Stay } else { Idle::End },
            // What is in flight is given up a little before, so that it can say so.
            grace: GRACE + KILL_AFTER + Duration::from_secs(1),
            ..SchedulerConfig::default()
        };
        if self.first_delay > self.cap {
            return Err(Failure::refused("--first-delay is more than --cap: expected at most the cap"));
        }
        policy.check().map_err(|error| Failure::refused(as_flags(&error)))?;
        Ok(policy)
    }

    /// The pace of a run, and where its requests go.
    ///
    /// # Errors
    /// Refuses the first value that cannot be, and what cannot act.
    pub(super) fn upstream(&self, everywhere: &Everywhere) -> Result<Upstream, Failure> {
        let overrides = Overrides {
            upstream: self.upstream.clone(),
            via: self.through.via.clone(),
            fleet: self.through.fleet.clone(),
            scope: self.scope.clone(),
            burst: self.burst.clone(),
            concurrency: self.concurrency.map(|places| places.to_string()),
            pace: self.pace.clone(),
            ..Overrides::default()
        };
        let overrides = self.access.clone().over(self.limits.clone().over(overrides));
        let mut upstream = if self.http {
            let upstream = upstream::configured(overrides, everywhere)?;
            match &self.expect {
                Some(expect) => expect.of(upstream)?,
                None => upstream,
            }
        } else {
            self.pace_of_a_command(overrides, everywhere)?
        };
        if self.concurrency.is_none() {
            upstream.pacer.concurrency = upstream.pacer.concurrency.at_most(PLACES);
        }
        Ok(upstream)
    }

    fn pace_of_a_command(&self, mut overrides: Overrides, everywhere: &Everywhere) -> Result<Upstream, Failure> {
        // A command is no call of ours: no gateway paces it.
        overrides.via = Some("none".to_owned());
        overrides.fleet = Some("none".to_owned());
        let own = overrides.upstream.is_none();
        if own {
            // No call of ours goes anywhere, so the address is never used.
            overrides.upstream = Some("generic".to_owned());
            overrides.base_url = Some("http://localhost".to_owned());
            overrides.pace.get_or_insert_with(|| "aimd".to_owned());
        }
        let mut upstream = upstream::configured(overrides, everywhere)?;
        if own && self.pace.is_none() {
            // All may begin at once until one is throttled.
            let max = upstream.pacer.concurrency.max();
            upstream.pacer.concurrency = Concurrency::Aimd { floor: 1, start: max, max };
        }
        let costs_more = |dimension: &Dimension| *dimension != Dimension::Requests;
        if let Some(quota) = upstream.pacer.limits.quotas.iter().find(|quota| costs_more(&quota.dimension)) {
            let (limit, dimension) = (quota.limit, &quota.dimension);
            return Err(Failure::refused(format!(
                "a limit of {limit} {dimension} cannot apply to a command: expected a limit on requests, such as 10rpm"
            )));
        }
        Ok(upstream)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Typed {
        #[command(flatten)]
        args: Args,
        #[command(flatten)]
        everywhere: Everywhere,
    }

    #[test]
    fn the_calls_in_flight_that_a_limit_allows_are_those_of_the_worker() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let of = |file: &str, flags: &[&str]| {
            let path = folder.path().join("paceline.toml");
            let upstream = format!("[upstream.a]\nbase_url = 'http://localhost:1'\n{file}\n");
            std::fs::write(&path, upstream).expect("a file");
            let here = ["run", "--store", "w.db", "--http", "--config", path.to_str().expect("text")];
            let Typed { args, everywhere } = Typed::try_parse_from(here.iter().chain(flags)).expect("flags");
            let upstream = args.upstream(&everywhere).map(|upstream| upstream.pacer.concurrency.max());
            (upstream, args.policy().expect("sensible").concurrency)
        };
        for (file, flags, calls, places) in [
            ("", &[][..], 10, 10),
            ("limits = ['3 concurrent']", &[], 3, 10),
            ("concurrency = 4", &[], 4, 10),
            ("limits = ['64 concurrent']", &[], 10, 10),
            ("limits = ['3 concurrent']", &["--concurrency", "5"], 5, 5),
            ("", &["--limit", "8 concurrent"], 8, 10),
            ("", &["--concurrency", "1000"], 1000, 1000),
        ] {
            let (upstream, worker) = of(file, flags);
            assert_eq!((upstream.ok(), worker), (Some(calls), places), "{file} {flags:?}");
        }
        let (twice, _) = of("", &["--limit", "8 concurrent", "--concurrency", "9"]);
        assert!(twice.is_err(), "two numbers for one thing");
    }

    #[test]
    fn limits_are_told_as_to_a_run() {
        let url = ["run", "--store", "w.db", "--http", "--base-url", "http://localhost:1"];
        let of = |flags: &[&str]| {
            let Typed { args, everywhere } = Typed::try_parse_from(url.iter().chain(flags)).expect("flags");
            let upstream = args.upstream(&everywhere).expect("limits");
            (upstream.pacer.limits.quotas.clone(), args.policy().expect("sensible").concurrency)
        };
        let told = of(&["--limit", "500rpm", "--limit", "200k tpm", "--concurrency", "7"]);
        assert_eq!((told.0.len(), told.1), (2, 7));
        assert_eq!(of(&["--rpm", "500", "--tpm", "200k", "--workers", "7"]), told);
    }
}
