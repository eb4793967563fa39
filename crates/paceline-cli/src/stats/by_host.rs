//! `paceline stats --by-host`: how far each host of a job is, or whatever else is paced by itself, those in trouble first.

use paceline::clock;
use paceline_core::Timestamp;
use paceline_store::{Reader, ScopeItems, ScopeStatus};
use serde_json::{Value, json};

use super::age_snapshot::time;
use super::job::{given_up_in, is_given_up};
use crate::exit::Failure;
use crate::job::holds;
use crate::output::print as written;
use crate::text;
use crate::upstream::host_of;

/// Prints all of them: as a table, or one object a line.
///
/// # Errors
/// The journal cannot be read.
pub(super) fn print(reader: &Reader, snapshot: &Value, running: bool, as_json: bool) -> Result<(), Failure> {
    let hosts = hosts(reader, snapshot, running)?;
    written(|out| {
        if as_json {
            return hosts.iter().try_for_each(|host| writeln!(out, "{}", host.json()));
        }
        writeln!(out, "{:<32} {:>9} {:>8} {:>12} {:>8}  WHY", "HOST", "SUCCEEDED", "FAILED", "NOT FINISHED", "CALLS")?;
        hosts.iter().try_for_each(|host| writeln!(out, "{}", host.line()))
    })
}

/// The same for a page.
///
/// # Errors
/// The journal cannot be read.
pub(super) fn json(reader: &Reader, snapshot: &Value, running: bool) -> Result<Vec<Value>, Failure> {
    Ok(hosts(reader, snapshot, running)?.iter().map(Host::json).collect())
}

fn hosts(reader: &Reader, snapshot: &Value, running: bool) -> Result<Vec<Host>, Failure> {
    let now = clock::wall();
    let by_scope = reader.by_scope().map_err(Failure::refused)?;
    let mut hosts: Vec<Host> = by_scope.into_iter().map(|items| Host::of(items, snapshot, running, now)).collect();
    hosts.sort_by_key(|host| (host.trouble, std::cmp::Reverse(host.items.left)));
    Ok(hosts)
}

/// What keeps it from its end. In the order in which people look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    Stopped,
    Held,
    Failing,
    Failed,
    None,
}

impl Trouble {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Held => "held",
            Self::Failing => "failing",
            Self::Failed => "failed",
            Self::None => "none",
        }
    }
}

struct Host {
    items: ScopeItems,
    trouble: Trouble,
    /// Why it waits, or what failed there.
    why: String,
}

impl Host {
    fn of(items: ScopeItems, snapshot: &Value, running: bool, now: Timestamp) -> Self {
        let scopes = snapshot["scopes"].as_array().into_iter().flatten();
        let known = scopes.into_iter().find(|scope| scope["name"] == *items.scope.name);
        let failure = items.last_failure.as_ref().map(|(status, message)| {
            let message = text::printable(message);
            // A failure without words is told by its status already.
            let status = status.map(|status| status.to_string()).filter(|status| !message.contains(status));
            short(&format!("last failure: {}{message}", status.map(|status| status + " ").unwrap_or_default()))
        });
        let (trouble, why) = match &items.scope.state {
            ScopeStatus::Stopped { reason } if items.left > 0 => {
                (Trouble::Stopped, short(&format!("stopped: {}", holds::why(reason))))
            }
            ScopeStatus::Held { until, reason } if items.left > 0 && *until > now => {
                (Trouble::Held, format!("held until {}: {}", text::end(*until), holds::why(reason)))
            }
            _ if items.left > 0 && known.is_some_and(is_given_up) => {
                let given_up = given_up_in(running);
                (Trouble::Failing, failure.map_or_else(|| given_up.to_owned(), |why| format!("{given_up}; {why}")))
            }
            _ if items.left > 0 && failure.is_some() => (Trouble::Failing, failure.unwrap_or_default()),
            _ if items.failed > 0 => (Trouble::Failed, failure.unwrap_or_default()),
            _ => (Trouble::None, String::new()),
        };
        let waits = known.and_then(|scope| scope["waits_for"].as_str()).filter(|_| running && items.left > 0);
        let until = known.and_then(|scope| time(&scope["waits_until"])).filter(|until| *until > now + holds::SHORT);
        let until = until.map(|until| format!(" until {}", text::end(until))).unwrap_or_default();
        // A run that has given it up waits no more for it.
        let waits =
            waits.filter(|_| matches!(trouble, Trouble::None | Trouble::Failing) && !known.is_some_and(is_given_up));
        let waits = waits.map(|what| format!("waits{until} for {}", text::printable(what)));
        let why = [waits.unwrap_or_default(), why].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
        Self { items, trouble, why: why.join("; ") }
    }

    fn line(&self) -> String {
        let ScopeItems { scope, left, done, failed, calls, .. } = &self.items;
        let [done, failed, left, calls] = [done, failed, left, calls].map(|number| text::count(*number));
        let name = text::padded(&holds::name(host_of(&scope.name)), 32);
        format!("{name} {done:>9} {failed:>8} {left:>12} {calls:>8}  {}", self.why).trim_end().to_owned()
    }

    fn json(&self) -> Value {
        let ScopeItems { scope, left, done, failed, never_sent, calls, last_failure } = &self.items;
        json!({
            "name": *scope.name,
            "host": host_of(&scope.name),
            "trouble": self.trouble.as_str(),
            "done": done,
            "failed": failed,
            "left": left,
            "never_sent": never_sent,
            "calls": calls,
            "why": self.why,
            "last_status": last_failure.as_ref().and_then(|(status, _)| *status),
            "last_error": last_failure.as_ref().map(|(_, message)| message),
        })
    }
}

/// The longest reason that is shown, in columns; JSON has all of a failure.
const LONGEST_REASON: usize = 120;

fn short(reason: &str) -> String {
    text::cut(reason, LONGEST_REASON)
}
