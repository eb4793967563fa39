//! Which items a run is for: those of some hosts, and of those that failed those with a status or a code.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};

use paceline_config::Upstream;
use paceline_providers::table::Scope;
use paceline_store::LastFailure;

use crate::exit::Failure;
use crate::text;
pub(crate) use crate::upstream::is_host;

/// Its flags.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Only {
    /// With --retry-failed: only items whose last answer had one of these statuses, or that failed with one of these codes,
    /// such as 403,5xx,timeout. With the word not_held none that may have been done, and waits for you
    #[arg(long, value_name = "STATUS|CODE,...", value_delimiter = ',', value_parser = kind)]
    only_status: Vec<Kind>,
    /// With --scope host: only items of these hosts; the others wait for a later run. Of items that failed those of the host that
    /// failed, also where their lines name another one now
    #[arg(long, value_name = "HOST,...", value_delimiter = ',')]
    only_host: Vec<String>,
    /// Where items are sent again that failed at these hosts.
    #[arg(skip)]
    sent_again: Arc<Mutex<BTreeSet<String>>>,
    /// Where those failed.
    #[arg(skip)]
    failed_at: Arc<Mutex<BTreeSet<String>>>,
    /// The items that failed, by status, or by the code where there was no answer.
    #[arg(skip)]
    found: Arc<Mutex<BTreeMap<String, u64>>>,
}

/// How an item failed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Status(RangeInclusive<u16>),
    /// The code of its last failure, such as `timeout`.
    Code(String),
    /// However it failed, if it is not held.
    NotHeld,
}

/// So many kinds of failures are named.
const SHOWN: usize = 6;

/// The word for items that are not held.
pub(crate) const NOT_HELD: &str = "not_held";

impl Only {
    /// Whether an item that failed is meant.
    pub(crate) fn means(&self, failure: &LastFailure<'_>) -> bool {
        if !self.takes_all() {
            let kind = failure.status.map(|status| status.to_string()).or_else(|| failure.code.map(str::to_owned));
            let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            *found.entry(kind.unwrap_or_else(|| "no answer".to_owned())).or_default() += 1;
        }
        let is_kind = |kind: &Kind| match kind {
            Kind::Status(statuses) => has_status(std::slice::from_ref(statuses), failure.status),
            Kind::Code(code) => failure.code == Some(code),
            Kind::NotHeld => false,
        };
        let names_none = self.only_status.iter().all(|kind| *kind == Kind::NotHeld);
        let is_meant = !(failure.is_held && self.spares_held())
            && (names_none || self.only_status.iter().any(is_kind))
            && (self.is_of(failure.scope) || failure.failed_in.is_some_and(|scope| self.is_of(scope)));
        if is_meant && !self.is_of(failure.scope) {
            self.sent_again.lock().unwrap_or_else(PoisonError::into_inner).insert(failure.scope.to_owned());
            let failed_at = failure.failed_in.map(ToOwned::to_owned);
            self.failed_at.lock().unwrap_or_else(PoisonError::into_inner).extend(failed_at);
        }
        is_meant
    }

    /// Whether items of a scope are sent that have not ended.
    pub(crate) fn sends_of(&self, scope: &str) -> bool {
        self.is_of(scope) || self.sent_again.lock().unwrap_or_else(PoisonError::into_inner).contains(scope)
    }

    /// Tells that no item that failed is meant: a status or a code may be mistyped.
    pub(crate) fn tell_none(&self) {
        if self.takes_all() {
            return;
        }
        let flags = [(!self.only_status.is_empty(), "--only-status"), (self.names_hosts(), "--only-host")];
        let flags: Vec<_> = flags.iter().filter(|(is_given, _)| *is_given).map(|(_, flag)| *flag).collect();
        let name = if flags.len() == 1 { "names" } else { "name" };
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kinds: Vec<_> = found.iter().collect();
        kinds.sort_by_key(|(_, items)| Reverse(**items));
        let told = |(kind, items): &(&String, &u64)| format!("{} ({})", text::printable(kind), text::count(**items));
        let kinds: Vec<_> = kinds.iter().take(SHOWN).map(told).collect();
        let have = if kinds.is_empty() { String::new() } else { format!("; failed items have {}", kinds.join(", ")) };
        tracing::warn!("no failed item is what {} {name}, and none is sent again{have}", flags.join(" and "));
    }

    /// Whether it is for some hosts alone.
    pub(crate) const fn names_hosts(&self) -> bool {
        !self.only_host.is_empty()
    }

    /// Whether a scope is one of the hosts that it names.
    pub(crate) fn is_of(&self, scope: &str) -> bool {
        self.only_host.is_empty() || self.only_host.iter().any(|host| is_host(scope, host))
    }

    /// The hosts among these that no scope is of, and at which no item has failed that is sent again.
    pub(crate) fn unknown_hosts<'a>(&'a self, scopes: impl Iterator<Item = &'a str> + Clone) -> Vec<&'a str> {
        let failed_at = self.failed_at.lock().unwrap_or_else(PoisonError::into_inner);
        let has_failed = |host: &str| failed_at.iter().any(|scope| is_host(scope, host));
        let is_known = |host: &&str| !has_failed(host) && !scopes.clone().any(|scope| is_host(scope, host));
        self.only_host.iter().map(String::as_str).filter(is_known).collect()
    }

    /// Whether items stay that may have been done, and wait for a person.
    pub(crate) fn spares_held(&self) -> bool {
        self.only_status.contains(&Kind::NotHeld)
    }

    /// Whether all that failed are meant.
    pub(crate) const fn takes_all(&self) -> bool {
        self.only_status.is_empty() && !self.names_hosts()
    }

    /// # Errors
    /// Refuses hosts where none is a scope of its own, and kinds of failures where no item that failed is sent.
    pub(crate) fn check(&self, upstream: &Upstream, retry_failed: bool) -> Result<(), Failure> {
        if !self.only_status.is_empty() && !retry_failed {
            return Err(Failure::refused("--only-status is for items that failed: add --retry-failed"));
        }
        if self.names_hosts() && upstream.dialect.scope() != Scope::Host {
            return Err(Failure::refused("--only-host: which host an item went to is known with --scope host alone"));
        }
        if self.only_host.iter().any(|host| host.trim().is_empty()) {
            return Err(Failure::refused("--only-host: expected hosts, separated by one comma each"));
        }
        Ok(())
    }

    /// Tells of hosts that the job has not: their names may be mistyped.
    pub(crate) fn tell_unknown<'a>(&'a self, scopes: impl Iterator<Item = &'a str> + Clone) {
        let unknown = self.unknown_hosts(scopes);
        if !unknown.is_empty() {
            let hosts: Vec<_> = unknown.into_iter().map(text::printable).collect();
            tracing::warn!("--only-host: no line of the job is of {}", hosts.join(", "));
        }
    }
}

/// Reads a status as [`statuses`] does, or the word of a code.
fn kind(text: &str) -> Result<Kind, String> {
    let text = text.trim();
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    match statuses(text) {
        Ok(range) => Ok(Kind::Status(range)),
        Err(_) if text.to_ascii_lowercase().replace('-', "_") == NOT_HELD => Ok(Kind::NotHeld),
        Err(_) if ["held", "unknown_outcome_held"].contains(&text) => Err(format!(
            "items that are held are chosen by the status or code of their last call, such as timeout; {NOT_HELD} chooses all others"
        )),
        Err(_) if is_word && !text.to_ascii_lowercase().ends_with("xx") => Ok(Kind::Code(text.to_owned())),
        Err(_) => {
            Err("expected a status such as 403, 5xx or 500-599, or the code of a failure such as timeout".to_owned())
        }
    }
}

/// Whether a status is among those, if any are named.
pub(crate) fn has_status(statuses: &[RangeInclusive<u16>], status: Option<u16>) -> bool {
    statuses.is_empty() || status.is_some_and(|status| statuses.iter().any(|range| range.contains(&status)))
}

/// Reads `403`, `5xx` or `500-599`.
pub(crate) fn statuses(text: &str) -> Result<RangeInclusive<u16>, String> {
    let number = |text: &str| text.parse::<u16>().ok().filter(|status| (100..=999).contains(status));
    let range = match (text.split_once('-'), text.to_ascii_lowercase().strip_suffix("xx")) {
        (Some((from, to)), _) => {
            number(from).zip(number(to)).filter(|(from, to)| from <= to).map(|(from, to)| from..=to)
        }
        // There are servers that answer 999, but no such classes.
        (None, Some(hundreds)) => {
            number(&format!("{hundreds}00")).filter(|from| *from < 600).map(|from| from..=from + 99)
        }
        (None, None) => number(text).map(|status| status..=status),
    };
    range.ok_or_else(|| "expected a status such as 403, 5xx or 500-599".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_named_one_by_one_by_the_hundred_and_as_a_range() {
        assert_eq!(
            [statuses("403"), statuses("5xx"), statuses("400-499")],
            [Ok(403..=403), Ok(500..=599), Ok(400..=499)]
        );
        for wrong in ["", "x", "xx", "40", "4x", "499-400", "1000", "-5", "0xx"] {
            assert!(statuses(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            ["timeout", " no_key_sent "].map(kind),
            ["timeout", "no_key_sent"].map(|code| Ok(Kind::Code(code.to_owned())))
        );
        assert!(["", "4x", "fxx", "a b"].iter().all(|wrong| kind(wrong).is_err()));
        assert!(["not_held", "not-held", "Not_Held"].iter().all(|word| kind(word) == Ok(Kind::NotHeld)));
        for word in ["held", "unknown_outcome_held"] {
            assert!(kind(word).is_err_and(|error| error.contains(NOT_HELD)), "{word}");
        }
    }

    #[test]
    fn a_host_may_be_named_without_its_port_and_its_scheme() {
        for host in ["a.example", "A.example:80", "http://a.example:80", "http://a.example/"] {
            assert!(is_host("http://a.example:80", host), "{host}");
        }
        assert!(is_host("[::1]:81", "[0:0:0:0:0:0:0:1]:81") && is_host("[::1]:81", "http://[0::1]"));
        for tier in ["tier / at a.example:80", "tier host=a.example", "tier label=slow at a.example"] {
            assert!(is_host(tier, "a.example"), "{tier}");
        }
        assert!(!is_host("http://a.example:80", "example") && !is_host("a.example.org", "a.example"));
        let kinds = ["403", "5xx", "timeout"].map(|text| kind(text).expect("a kind"));
        let only = Only { only_status: kinds.to_vec(), only_host: vec!["a".to_owned()], ..Only::default() };
        let failure = |status, code, scope| LastFailure { status, code, scope, ..LastFailure::default() };
        let takes = [
            only.means(&failure(Some(503), Some("busy"), "a:1")),
            only.means(&failure(None, Some("timeout"), "a:1")),
            only.means(&failure(Some(404), None, "a:1")),
            only.means(&failure(None, None, "a")),
            only.means(&failure(Some(403), None, "b")),
        ];
        assert_eq!(takes, [true, true, false, false, false]);
        assert!(Only::default().means(&LastFailure::default()));
        assert!(only.sends_of("a:1") && !only.sends_of("b"));
        assert!(only.means(&LastFailure { failed_in: Some("a:1"), ..failure(Some(403), None, "b") }), "it has moved");
        assert!(only.sends_of("b"));
        assert_eq!(only.unknown_hosts(["b", "c"].into_iter()), [""; 0], "items that failed there are sent to b");
        let only = Only { only_host: vec!["a".to_owned()], ..Only::default() };
        assert_eq!(only.unknown_hosts(["b", "c"].into_iter()), ["a"]);
    }

    #[test]
    fn one_word_leaves_out_what_is_held_of_all_or_of_some_kinds() {
        let failure = |code, is_held| LastFailure { code: Some(code), is_held, ..LastFailure::default() };
        let failures = [failure("reset", false), failure("timeout", false), failure("timeout", true)];
        for (words, meant) in
            [(&["not_held"][..], [true, true, false]), (&["not_held", "timeout"], [false, true, false])]
        {
            let only_status = words.iter().map(|word| kind(word).expect("a kind")).collect();
            let only = Only { only_status, ..Only::default() };
            assert_eq!(failures.map(|failure| only.means(&failure)), meant, "{words:?}");
            assert!(!only.takes_all());
        }
    }
}
