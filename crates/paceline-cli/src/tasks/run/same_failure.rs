//! That all items of a run, a group or a scope failed alike, for people.

use std::fmt;

/// Why a run ended, or nothing of a scope begins any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SameFailure {
    pub(super) which: &'static str,
    pub(super) items: usize,
    /// How many of them may have been done, so that they do not wait again.
    pub(super) held: usize,
    pub(super) advice: &'static str,
    pub(super) message: String,
}

impl fmt::Display for SameFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause(), self.advice())
    }
}

impl SameFailure {
    /// What happened.
    pub(super) fn cause(&self) -> String {
        let Self { which, items, held, message, .. } = self;
        let stay = match *held {
            0 => ", and wait (none is marked as failed)",
            held if held == *items => " (they may have been done, so they stay failed)",
            _ => " (those that may have been done stay failed, and the others wait)",
        };
        format!("the {which} {items} items all failed the same way{stay}: {message}")
    }

    /// What a person can do.
    pub(super) fn advice(&self) -> String {
        format!("{}, or let them fail with --stop-after-same 0", self.advice)
    }
}

/// What follows where a redirect leads.
const REDIRECTS: &str = "; redirects are not followed";

pub(super) fn is_redirect(status: Option<u16>) -> bool {
    status.is_some_and(|status| (300..400).contains(&status))
}

/// The failure as it is told of many items: its status, and of a redirect where it leads, without the advice for callers of one
/// address.
pub(super) fn describe(status: Option<u16>, message: &str) -> String {
    let to = message.split_once(REDIRECTS).filter(|_| is_redirect(status)).map_or(message, |(to, _)| to);
    match status.filter(|status| !to.contains(&status.to_string())) {
        Some(status) => format!("{status}: {to}"),
        None => to.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_items_the_status_is_told_and_where_a_redirect_leads() {
        let moved = "answered with a redirect to https://new.example/in; redirects are not followed, for the key would go there; ...";
        assert_eq!(describe(Some(301), moved), "301: answered with a redirect to https://new.example/in");
        assert_eq!(describe(Some(410), "gone"), "410: gone");
        assert_eq!(describe(Some(410), "status 410, no message"), "status 410, no message");
        assert_eq!(describe(None, "exit code 1"), "exit code 1");
    }
}
