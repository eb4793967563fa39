//! Decides what is to be renewed, and in which order.

use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};

use crate::scanner::{Entry, Found};

/// What is to be done about a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// What is due, the most urgent first.
    pub(crate) due: Vec<Due>,
    /// What is left alone.
    pub(crate) left: Vec<Left>,
}

/// A domain whose certificate is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The domain.
    pub(crate) domain: String,
    /// All names that the certificate is for.
    pub(crate) names: Vec<String>,
    /// Where it belongs.
    pub(crate) path: PathBuf,
    /// When the present one ends; none when there is none.
    pub(crate) not_after: Option<Timestamp>,
    /// Why.
    pub(crate) reason: String,
}

/// What is left alone, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// The domain, or the file's name.
    pub(crate) domain: String,
    /// Whether a person has to see to it.
    pub(crate) kind: Kind,
    /// When the certificate ends, where there is one.
    pub(crate) not_after: Option<Timestamp>,
    /// Why.
    pub(crate) reason: String,
}

/// Whether a person has to see to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A certificate that is good for longer.
    NotDue,
    /// A certificate that should be there and cannot be used: a person has to look.
    Unusable,
    /// A file that is no certificate.
    Other,
}

/// What is due at `now`, when a certificate is to be renewed `days` before it ends.
pub(crate) fn plan(entries: Vec<Entry>, now: Timestamp, days: u32) -> Plan {
    let mut plan = Plan::default();
    for Entry { domain, path, found } in entries {
        let left = |domain, kind, not_after, reason| Left { domain, kind, not_after, reason };
        match found {
            Found::Other(why) => plan.left.push(left(domain, Kind::Other, None, why.to_owned())),
            Found::Unusable(why) => plan.left.push(left(domain, Kind::Unusable, None, why)),
            Found::Empty => {
                let names = vec![domain.to_ascii_lowercase()];
                let reason = "has no certificate yet".to_owned();
                plan.due.push(Due { domain, names, path, not_after: None, reason });
            }
            Found::Certificate(found) if found.not_before > now => {
                // Renewing it would not help where the clock is wrong, and would be tried for every domain at every run.
                let reason = format!("is not valid before {}; is the clock right?", found.not_before);
                plan.left.push(left(domain, Kind::Unusable, Some(found.not_after), reason));
            }
            Found::Certificate(found) => {
                let not_after = Some(found.not_after);
                let remaining = found.not_after.duration_since(now);
                let reason = match remaining.as_secs() / DAY {
                    _ if remaining <= SignedDuration::ZERO => format!("expired on {}", found.not_after),
                    1 => "1 day left".to_owned(),
                    days => format!("{days} days left"),
                };
                if remaining.as_secs() < i64::from(days) * DAY {
                    let half = found.not_after.duration_since(found.not_before) / 2;
                    let reason = match remaining > half {
                        // It will be so again after every renewal, and the CA counts them.
                        true => format!("{reason}, more than half of its life; is --days too large?"),
                        false => reason,
                    };
                    plan.due.push(Due { domain, names: found.names, path, not_after, reason });
                } else {
                    plan.left.push(left(domain, Kind::NotDue, not_after, reason));
                }
            }
        }
    }
    // First the domains without any certificate, which serve no visitor now; then whatever ends first.
    plan.due.sort_by(|a, b| (a.not_after, &a.domain).cmp(&(b.not_after, &b.domain)));
    plan
}

const DAY: i64 = 86_400;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scanner::Certificate;

    const NOW: i64 = 1_795_176_000;

    fn at(days: i64) -> Timestamp {
        Timestamp::from_second(NOW + days * DAY).unwrap()
    }

    fn entry(domain: &str, found: Found) -> Entry {
        Entry { domain: domain.to_owned(), path: PathBuf::from(format!("{domain}.pem")), found }
    }

    fn valid(domain: &str, from: i64, until: i64) -> Entry {
        let names = vec![domain.to_owned()];
        entry(domain, Found::Certificate(Certificate { names, not_before: at(from), not_after: at(until) }))
    }

    #[test]
    fn the_most_urgent_goes_first_and_everything_has_a_reason() {
        let entries = vec![
            valid("fresh.org", -1, 89),
            valid("soon.org", -70, 20),
            valid("edge.org", -60, 30),
            valid("last.org", -89, 1),
            valid("short.org", -1, 6),
            valid("over.org", -91, -1),
            valid("future.org", 1, 91),
            entry("new.org", Found::Empty),
            entry("bad.org", Found::Unusable("is a folder".to_owned())),
            entry("notes.txt", Found::Other("no")),
        ];
        let plan = plan(entries, at(0), 30);
        let due: Vec<_> = plan.due.iter().map(|due| format!("{}: {}", due.domain, due.reason)).collect();
        assert_eq!(
            due,
            [
                "new.org: has no certificate yet".to_owned(),
                format!("over.org: expired on {}", at(-1)),
                "last.org: 1 day left".to_owned(),
                "short.org: 6 days left, more than half of its life; is --days too large?".to_owned(),
                "soon.org: 20 days left".to_owned(),
            ]
        );
        let left: Vec<_> = plan.left.iter().map(|left| (left.domain.as_str(), left.kind)).collect();
        assert_eq!(
            left,
            [
                ("fresh.org", Kind::NotDue),
                ("edge.org", Kind::NotDue),
                ("future.org", Kind::Unusable),
                ("bad.org", Kind::Unusable),
                ("notes.txt", Kind::Other),
            ]
        );
    }
}
