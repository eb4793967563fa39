//! Which of the items that failed are sent again: by the status of their last answer, and by their host.

use std::ops::RangeInclusive;

use paceline_config::Upstream;
use paceline_providers::table::Scope;

use crate::exit::Failure;

/// The flags beside `--retry-failed`.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Only {
    /// With --retry-failed: only items whose last answer had one of these statuses, such as 403,5xx
    #[arg(long, value_name = "STATUS,...", value_delimiter = ',', value_parser = statuses, requires = "retry_failed")]
    only_status: Vec<RangeInclusive<u16>>,
    /// With --retry-failed and --scope host: only items of these hosts
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', requires = "retry_failed")]
    only_host: Vec<String>,
}

impl Only {
    /// Whether an item is meant that failed so, in that scope.
    pub(crate) fn takes(&self, status: Option<u16>, scope: &str) -> bool {
        has_status(&self.only_status, status)
            && (self.only_host.is_empty() || self.only_host.iter().any(|host| is_host(scope, host)))
    }

    /// Whether all that failed are meant.
    pub(crate) const fn takes_all(&self) -> bool {
        self.only_status.is_empty() && !self.names_hosts()
    }

    /// Whether those of some hosts are meant.
    pub(crate) const fn names_hosts(&self) -> bool {
        !self.only_host.is_empty()
    }

    /// # Errors
    /// Refuses hosts where none is a scope of its own.
    pub(crate) fn check(&self, upstream: &Upstream) -> Result<(), Failure> {
        match self.only_host.is_empty() || upstream.dialect.scope() == Scope::Host {
            true => Ok(()),
            false => Err(Failure::refused("--only-host: which host an item went to is known with --scope host alone")),
        }
    }
}

/// Whether a status is among those, if any are named.
pub(crate) fn has_status(statuses: &[RangeInclusive<u16>], status: Option<u16>) -> bool {
    statuses.is_empty() || status.is_some_and(|status| statuses.iter().any(|range| range.contains(&status)))
}

/// Whether a scope is a host, which may be named without its port.
pub(crate) fn is_host(scope: &str, named: &str) -> bool {
    let bare = |name: &str| {
        // A part of a tier, or a tier of one host.
        let name = name.strip_prefix("tier ").map_or(name, |tier| {
            tier.rsplit_once(" at ").map_or_else(|| tier.trim_start_matches("host="), |(_, host)| host)
        });
        let rest = ["https://", "http://"].iter().find_map(|scheme| name.strip_prefix(scheme)).unwrap_or(name);
        rest.trim_end_matches('/').to_ascii_lowercase()
    };
    scope == named
        || bare(scope).strip_prefix(&bare(named)).is_some_and(|port| port.is_empty() || port.starts_with(':'))
}

/// Reads `403`, `5xx` or `500-599`.
pub(crate) fn statuses(text: &str) -> Result<RangeInclusive<u16>, String> {
    let number = |text: &str| text.parse::<u16>().ok().filter(|status| (100..=999).contains(status));
    let range = match (text.split_once('-'), text.to_ascii_lowercase().strip_suffix("xx")) {
        (Some((from, to)), _) => {
            number(from).zip(number(to)).filter(|(from, to)| from <= to).map(|(from, to)| from..=to)
        }
        (None, Some(hundreds)) => number(&format!("{hundreds}00")).map(|from| from..=from + 99),
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
    }

    #[test]
    fn a_host_may_be_named_without_its_port_and_its_scheme() {
        for host in ["a.example", "A.example:80", "http://a.example:80", "http://a.example/"] {
            assert!(is_host("http://a.example:80", host), "{host}");
        }
        for tier in ["tier / at a.example:80", "tier host=a.example", "tier label=slow at a.example"] {
            assert!(is_host(tier, "a.example"), "{tier}");
        }
        assert!(!is_host("http://a.example:80", "example") && !is_host("a.example.org", "a.example"));
        let only = Only { only_status: vec![403..=403, 500..=599], only_host: vec!["a".to_owned()] };
        let takes = [
            only.takes(Some(503), "a:1"),
            only.takes(Some(404), "a:1"),
            only.takes(None, "a"),
            only.takes(Some(403), "b"),
        ];
        assert_eq!(takes, [true, false, false, false]);
        assert!(Only::default().takes(None, ""));
    }
}
