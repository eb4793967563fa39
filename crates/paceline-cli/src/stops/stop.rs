//! Why a run ends before its items do. All of it can be continued by the same command.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::Timestamp;
use paceline_http::NoAnswer;
use paceline_providers::Dialect;
use paceline_providers::table::Scope;
use paceline_store::DiskFull;

use crate::budget::{BudgetKind, Exceeded};
use crate::stops::fail_fast::{EXPECTED, STILL};
use crate::text;
use crate::upstream::Destination;

/// Of many hosts and other scopes no more are named.
const NAMED: usize = 3;

/// What a stop for a full disk is called in files.
pub(crate) const DISK_FULL: &str = "disk_full";

/// What to do once the cause is mended.
pub(crate) const AGAIN: &str = "then run the same command again";

/// What to put right where the requests are wrong.
pub(crate) const CORRECT_REQUESTS: &str = "correct the requests";

/// The reason to stop early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// Ctrl-C or SIGTERM.
    Interrupted,
    /// The program that the run is a part of ended it.
    Asked,
    /// The next call could start only after `--max-wait`.
    MaxWait {
        /// When it could start.
        until: Timestamp,
        /// This run has sent nothing, and waits for a configured limit: other runs have used it up.
        by_others: bool,
    },
    /// Another run had its turn on the shared limits, and did not pass it on within `--max-wait`.
    OtherHasTurn,
    /// The run had no share of the limits of its fleet for `--max-wait`.
    NoShare,
    /// The store of a job on many hosts was away for `--max-wait`.
    StoreAway {
        /// For how long.
        waited: Duration,
    },
    /// Scopes whose server failed for `--max-wait`, or refused all calls, are given up, and nothing else is left.
    ServerFails {
        /// Those scopes, where the job has others.
        scopes: Vec<Arc<str>>,
        /// For how long nothing of them succeeded.
        waited: Duration,
        /// They do not fail, and refuse all calls.
        refuses: bool,
    },
    /// The run has begun as many items as it may.
    MaxItems,
    /// The next call might use more than is left to the run, or to the job.
    Budget(Exceeded),
    /// The run has taken as long as it may.
    MaxDuration,
    /// The key, the account or its credit: a person must act.
    Account {
        /// What refuses: the provider, the gateway in between, or a rule of the user.
        by: Cow<'static, str>,
        /// Its message.
        message: String,
        /// What to look at.
        fix: String,
    },
    /// Items all failed the same way, so the rest would too.
    SameFailure {
        /// The scope of which all of them are, where the job has others.
        scope: Option<Arc<str>>,
        /// Which: the first of the run or of the scope, or its last.
        which: &'static str,
        /// How many.
        count: usize,
        /// The status that all of them got.
        status: Option<u16>,
        /// What to put right.
        advice: &'static str,
        /// The provider's message.
        message: String,
    },
    /// No server answers at the address.
    Unreachable {
        /// The upstream's address.
        address: String,
        /// The last error, and what to check.
        message: String,
    },
    /// No server answers at hosts that lines name.
    HostsUnreachable {
        /// Those that were given up, the first one first.
        hosts: Vec<Arc<str>>,
        /// The last error of the operating system at one of them.
        message: String,
    },
    /// The disk was full for `--max-wait`, or before the first call.
    DiskFull {
        /// Which disk.
        message: String,
    },
    /// Something broke under way.
    Error {
        /// What, and what to do.
        message: String,
    },
    /// The server and the configuration do not trust each other.
    Tls {
        /// The upstream's address.
        address: String,
        /// Why, and what to do.
        message: String,
    },
    /// The proxy refuses the calls.
    Proxy {
        /// The upstream's address, and the proxy.
        address: String,
        /// Why, and what to do.
        message: String,
    },
    /// The input is not what it was when the job was loaded.
    Input {
        /// Which line, and why.
        message: String,
    },
}

/// For which of the items that wait at the end of a run the API stayed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StayedDown {
    /// For none: the run ended by its own bounds, or as a person or the configuration has it.
    Nothing,
    /// For those of scopes that are held, stopped or given up.
    ClosedScopes,
    /// For all.
    Everything,
}

impl StopReason {
    /// The reason to stop where calls find no server: at the upstream's address, or at the host that the line names. None where
    /// the call has found one.
    pub(crate) fn unreached(answer: &NoAnswer, dialect: &Dialect, scope: &str, to: &Destination) -> Option<Self> {
        let message = answer.unreached()?;
        if dialect.scope() != Scope::Host {
            let message = match answer {
                NoAnswer::Connect(why) if to.proxy().is_some() => {
                    format!("{why}; check the proxy (--proxy), the address (--base-url) and the network")
                }
                _ => message,
            };
            return Some(Self::Unreachable { address: to.to_string(), message });
        }
        let proxy = to.proxy().map(|proxy| format!("{proxy}; check the proxy (--proxy)")).unwrap_or_default();
        let message = if let NoAnswer::Connect(why) = answer { format!("{why}{proxy}") } else { message };
        Some(Self::HostsUnreachable { hosts: vec![scope.into()], message })
    }

    /// For which items the API stayed down where a run ends so. A proxy or a certificate that is refused is a mistake of the
    /// configuration, and a wait for a limit or for another run is none of the API's.
    pub(crate) const fn stayed_down(&self) -> StayedDown {
        match self {
            Self::Unreachable { .. } => StayedDown::Everything,
            Self::Account { .. }
            | Self::MaxWait { .. }
            | Self::ServerFails { .. }
            | Self::HostsUnreachable { .. }
            | Self::SameFailure { scope: Some(_), .. } => StayedDown::ClosedScopes,
            Self::Interrupted
            | Self::Asked
            | Self::OtherHasTurn
            | Self::NoShare
            | Self::StoreAway { .. }
            | Self::MaxItems
            | Self::Budget(_)
            | Self::MaxDuration
            | Self::SameFailure { scope: None, .. }
            | Self::DiskFull { .. }
            | Self::Error { .. }
            | Self::Tls { .. }
            | Self::Proxy { .. }
            | Self::Input { .. } => StayedDown::Nothing,
        }
    }

    /// The budget of the job that the next call would exceed, or the bound of a run that no call fits into.
    pub(crate) fn exceeded_budget(&self) -> Option<Exceeded> {
        match self {
            Self::Budget(exceeded) if exceeded.purse != BudgetKind::RunTokens || exceeded.never_fits() => {
                Some(*exceeded)
            }
            _ => None,
        }
    }

    /// Whether answers came that nothing but `--expect` refused.
    pub(crate) fn is_of_expect(&self) -> bool {
        matches!(self, Self::SameFailure { advice, .. } if *advice == EXPECTED)
    }

    /// Whether no call of this run found a server any more.
    pub(crate) const fn found_no_server(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::HostsUnreachable { .. })
    }

    /// From when on the next run goes on, before its command; empty where it may at once.
    pub(crate) fn goes_on(&self) -> String {
        let Self::MaxWait { until, .. } = self else { return String::new() };
        format!("after {} ", text::moment(*until))
    }

    /// Whether its cure is another input. One host of many stops no command that goes on with the others.
    pub(crate) fn asks_for_corrected_requests(&self) -> bool {
        matches!(self, Self::SameFailure { scope: None, advice, .. } if *advice == CORRECT_REQUESTS)
    }

    /// The name used in JSON.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Interrupted | Self::Asked => "interrupted",
            Self::MaxWait { .. } | Self::OtherHasTurn | Self::NoShare => "max_wait",
            Self::StoreAway { .. } => "store_away",
            Self::ServerFails { .. } => "server_fails",
            Self::MaxItems => "max_items",
            Self::Budget(Exceeded { purse: BudgetKind::RunTokens, .. }) => "max_tokens",
            Self::Budget(_) => "budget",
            Self::MaxDuration => "max_duration",
            Self::Account { .. } => "account",
            Self::SameFailure { .. } => "same_failure",
            Self::Unreachable { .. } | Self::HostsUnreachable { .. } => "unreachable",
            Self::DiskFull { .. } => DISK_FULL,
            Self::Error { .. } => "error",
            Self::Tls { .. } => "tls",
            Self::Proxy { .. } => "proxy",
            Self::Input { .. } => "input_changed",
        }
    }

    /// Whether a name from [`as_str`](Self::as_str) means that a run ended at a bound of its own.
    pub(crate) fn is_word_of_bound(word: &str) -> bool {
        matches!(word, "max_items" | "max_tokens" | "budget" | "max_duration")
    }

    /// Whether the run ended because it had taken what it was allowed.
    pub(crate) fn is_bound(&self) -> bool {
        Self::is_word_of_bound(self.as_str())
    }

    /// The same, with all of these hosts where it is that no server answers there.
    pub(crate) fn naming(self, unreachable: &[Arc<str>]) -> Self {
        match self {
            Self::HostsUnreachable { message, .. } if !unreachable.is_empty() => {
                Self::HostsUnreachable { hosts: unreachable.to_vec(), message }
            }
            stop => stop,
        }
    }

    /// Whether the account is stopped: by the provider, or because nothing can be sent to it.
    pub(crate) const fn is_account(&self) -> bool {
        matches!(self, Self::Account { .. } | Self::Tls { .. } | Self::Proxy { .. })
    }

    /// Whether the run cannot go on before a person has put something right.
    pub(crate) const fn needs_a_person(&self) -> bool {
        matches!(
            self,
            Self::Account { .. }
                | Self::SameFailure { .. }
                | Self::Unreachable { .. }
                | Self::HostsUnreachable { .. }
                | Self::DiskFull { .. }
                | Self::Error { .. }
                | Self::Tls { .. }
                | Self::Proxy { .. }
                | Self::Input { .. }
        )
    }

    /// Tells the log at the moment of stopping; as an error, which `-q` shows too, where a person has to put something right.
    /// `in_flight`: calls that are waited for, if it is known.
    pub(crate) fn announce(&self, in_flight: Option<u64>) {
        let announcement = self.announcement(in_flight);
        if self.needs_a_person() {
            tracing::error!("{announcement}");
        } else {
            tracing::info!("{announcement}");
        }
    }

    /// Why a run ends. What stops single hosts ends a run only once there is nothing else.
    pub(crate) fn at_end(&self) -> String {
        if self.is_of_scopes() { format!("{self}; nothing else can be sent now") } else { self.to_string() }
    }

    /// Whether it stops single scopes, such as hosts.
    pub(crate) const fn is_of_scopes(&self) -> bool {
        matches!(self, Self::HostsUnreachable { .. } | Self::SameFailure { scope: Some(_), .. })
    }

    fn announcement(&self, in_flight: Option<u64>) -> String {
        match self {
            Self::Interrupted if in_flight == Some(0) => "interrupted: no call is in flight".to_owned(),
            Self::Interrupted => format!(
                "interrupted: no new call starts; waiting up to 30s for {} in flight (Ctrl-C again abandons them)",
                calls(in_flight)
            ),
            Self::MaxDuration | Self::Asked if in_flight != Some(0) => {
                format!("stopping: {self}; waiting up to 30s for {} in flight", calls(in_flight))
            }
            other => text::printable(&format!("stopping: {}", other.at_end())).into_owned(),
        }
    }
}

impl From<DiskFull> for StopReason {
    fn from(disk_full: DiskFull) -> Self {
        Self::DiskFull { message: disk_full.to_string() }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupted => f.write_str("interrupted"),
            Self::Asked => f.write_str("no new call starts"),
            Self::MaxWait { until, by_others } => {
                let wait = until.saturating_since(paceline::clock::wall());
                let why = if *by_others { "other runs have used up the configured limits, and " } else { "" };
                write!(
                    f,
                    "{why}the next call can start only at {}, later than --max-wait allows; --max-wait {} would wait",
                    text::moment(*until),
                    enough(wait)
                )
            }
            Self::OtherHasTurn => f.write_str(
                "another run with the same key holds the shared limits, and did not pass its turn on within --max-wait: let it \
                 continue, or end it (its process id stands in the log)",
            ),
            Self::NoShare => f.write_str(
                "the run had no share of the limits of its fleet for --max-wait: the log says whether the store (--fleet) can be \
                 asked",
            ),
            Self::StoreAway { waited } => write!(f, "the store has not answered for {} (--max-wait)", text::duration(*waited)),
            Self::ServerFails { scopes, waited, refuses } => {
                let waited = text::duration(*waited);
                if scopes.is_empty() && *refuses {
                    write!(f, "the server refuses all calls: none succeeded for {waited} (--max-wait)")?;
                } else if scopes.is_empty() {
                    write!(f, "the server is failing: no call succeeded for {waited} (--max-wait)")?;
                } else {
                    write!(f, "no call of {} succeeded for {waited} (--max-wait), and nothing else can be sent now", first_few(scopes))?;
                }
                f.write_str("; the report has the last failure of each item")
            }
            Self::MaxItems => f.write_str("--max-items is reached"),
            Self::Budget(exceeded @ Exceeded { purse: BudgetKind::RunTokens, .. }) => {
                let [next, left] = exceeded.next_and_left();
                write!(f, "the next call might exceed {}: it may use {next}, and {left} are left to this run", exceeded.flag())
            }
            Self::Budget(exceeded) if exceeded.is_all_used() => {
                write!(f, "{}, the budget of all runs of this job, is used up", exceeded.flag())
            }
            Self::Budget(exceeded) => {
                write!(f, "the next call might exceed {}, the budget of all runs of this job", exceeded.flag())
            }
            Self::MaxDuration => f.write_str("--max-duration is over"),
            Self::Account { by, message, fix } => write!(f, "{by}: {message}; {fix}"),
            Self::SameFailure { .. } => self.same_failure(f),
            Self::Unreachable { address, message } => write!(f, "no server answers at {address}: {message}"),
            Self::HostsUnreachable { hosts, message } => {
                let named = first_few(hosts);
                // A server is there, and the call never left.
                let what = if message.starts_with("tls handshake") { "no server speaks TLS at" } else { "no server answers at" };
                write!(f, "{what} {named}: {message}; check these addresses in the input and the network")
            }
            Self::Error { message } => f.write_str(message),
            Self::DiskFull { message } => write!(f, "{message}; results and journal are kept as they are: free some space, {AGAIN}"),
            Self::Tls { address, message } | Self::Proxy { address, message } => write!(f, "cannot call {address}: {message}"),
            Self::Input { message } => write!(f, "{message}; restore the input"),
        }
    }
}

impl StopReason {
    fn same_failure(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameFailure { scope: Some(scope), which: STILL, status, advice, message, .. } => {
                let told = with_status(",", *status, message);
                write!(
                    f,
                    "{scope} still answers as in the run before{told}; {advice}, or send to it anyway with --stop-after-same 0"
                )
            }
            Self::SameFailure { scope, which, count, status, advice, message } => {
                let of = scope.as_ref().map(|scope| format!(" of {scope}")).unwrap_or_default();
                let told = with_status("", *status, message);
                write!(
                    f,
                    "the {which} {count} items{of} all failed the same way{told}; {advice}, or continue anyway with --stop-after-same 0"
                )
            }
            _ => Ok(()),
        }
    }
}

/// With which status and message, behind that. One that has no message of its own, or names the status in it, is told once.
fn with_status(behind: &str, status: Option<u16>, message: &str) -> String {
    let is_named =
        |status: &u16| message.split(|c: char| !c.is_ascii_digit()).any(|number| number == status.to_string());
    match status {
        Some(status) if message.starts_with(&format!("status {status}")) => format!("{behind} with {message}"),
        Some(status) if is_named(&status) => format!(": {message}"),
        Some(status) => format!("{behind} with status {status}: {message}"),
        None => format!(": {message}"),
    }
}

fn calls(in_flight: Option<u64>) -> String {
    in_flight.map_or_else(|| "the calls".to_owned(), |calls| text::counted(calls, "call"))
}

/// A round time that is longer, to be typed.
fn enough(wait: Duration) -> String {
    match wait.as_secs() {
        seconds @ 0..50 => format!("{}s", (seconds / 10 + 1) * 10),
        seconds @ 50..3_000 => format!("{}m", (seconds + 10) / 60 + 1),
        seconds => format!("{}h", (seconds + 60) / 3_600 + 1),
    }
}

fn first_few(scopes: &[Arc<str>]) -> String {
    let named = scopes[..scopes.len().min(NAMED)].join(", ");
    match scopes.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_that_would_be_enough_is_a_round_time_above_it() {
        for (seconds, expected) in
            [(0, "10s"), (7, "10s"), (49, "50s"), (50, "2m"), (290, "6m"), (3_000, "1h"), (7_195, "3h")]
        {
            assert_eq!(enough(Duration::from_secs(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn of_many_hosts_three_are_named() {
        let told = |hosts: &[&str]| {
            let hosts = hosts.iter().map(|host| Arc::from(*host)).collect();
            StopReason::HostsUnreachable { hosts, message: "refused".to_owned() }.to_string()
        };
        assert!(told(&["a"]).starts_with("no server answers at a: refused; check these"));
        let stop =
            StopReason::HostsUnreachable { hosts: vec!["https://a".into()], message: "tls handshake eof".into() };
        assert!(stop.to_string().starts_with("no server speaks TLS at https://a: tls handshake eof; check these"));
        assert!(stop.announcement(None).ends_with("; nothing else can be sent now"), "{}", stop.announcement(None));
        assert!(told(&["a", "b", "c"]).starts_with("no server answers at a, b, c: refused"));
        assert!(told(&["a", "b", "c", "d", "e"]).starts_with("no server answers at a, b, c and 2 more: refused"));
    }
}
