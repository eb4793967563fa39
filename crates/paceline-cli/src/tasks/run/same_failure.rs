//! That all items of a run, a group or a scope failed alike, for people.

use std::fmt;

use paceline_store::work::Failure;

use crate::stops::fail_fast::{self, BANNED};

/// Why a run ended, or nothing of a scope begins any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SameFailure {
    pub(super) which: &'static str,
    pub(super) items: usize,
    /// How many of them may have been done, so that they do not wait again.
    pub(super) held: usize,
    pub(super) advice: String,
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

/// What can be done where requests all fail so: the first of their run or scope, or the last.
pub(super) fn advice(failure: &Failure, stays: bool, are_first: bool) -> String {
    let Failure { status, code, unexpected, .. } = failure;
    let banned = if stays { WHILE_STAYING } else { UNTIL_NEXT_RUN };
    match fail_fast::advice(*status, code.as_deref(), *unexpected, are_first) {
        _ if *status == Some(GONE) => GONE_FOR_GOOD.to_owned(),
        _ if is_redirect(*status) => MOVED.to_owned(),
        BANNED if is_shut_to_caller(*status) => format!("{SIGN_ANEW}; if the host keeps this machine out, {banned}"),
        BANNED => format!("the host may keep this machine out for a while: {banned}"),
        advice => advice.to_owned(),
    }
}

/// A host says that a thing is gone for good.
const GONE: u16 = 410;

/// What can be done then.
const GONE_FOR_GOOD: &str = "if that address is gone for good, end its items by `paceline tasks cancel`";

/// Where a redirect leads is told beside it. An item keeps its address.
const MOVED: &str = "have the address that redirects put right; or move the items to the one that it names: `paceline tasks cancel` them, `export` \
                     them, `prune --forget-keys`, and `add` the lines with that address";

/// What can be done where a host refuses all that it took before, and the items wait for the next run, ...
const UNTIL_NEXT_RUN: &str = "run the same command again later (before it `paceline tasks retry`, if items have failed), and slower \
                              (--limit 1rps for all hosts together, or a tier with its `host` in paceline.toml)";

/// ... and where a worker stays.
const WHILE_STAYING: &str = "wait, give that host a lower limit (a tier with its `host` in paceline.toml), then `paceline tasks retry KEY`, or \
                             --group, for its items";

/// A receiver that no longer knows a signature answers as one that bans its caller.
const SIGN_ANEW: &str = "if a signature or a secret has changed, sign the items anew (docs/webhooks.md)";

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

/// Whether a host may say so that it keeps the caller out: its items wait, each by itself.
pub(super) const fn is_shut_to_caller(status: Option<u16>) -> bool {
    matches!(status, Some(401 | 403))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_commands_that_there_are() {
        let failed = |status| Failure { status: Some(status), ..Failure::new(paceline_core::Class::Invalid, "no") };
        for (status, stays, named) in [
            (403, false, "run the same command again later (before it `paceline tasks retry`"),
            (404, false, "run the same command again later (before it `paceline tasks retry`"),
            (403, false, "if a signature or a secret has changed, sign the items anew (docs/webhooks.md); if the host"),
            (401, true, "if a signature or a secret has changed, sign the items anew (docs/webhooks.md); if the host"),
            (403, true, "then `paceline tasks retry KEY`, or --group, for its items"),
            (404, true, "the host may keep this machine out for a while: wait, give that host a lower limit"),
            (308, false, "`paceline tasks cancel` them, `export` them"),
            (410, true, "end its items by `paceline tasks cancel`"),
        ] {
            let advice = advice(&failed(status), stays, false);
            assert!(advice.contains(named) && !advice.contains("--retry-failed"), "{status}: {advice}");
        }
    }

    #[test]
    fn of_many_items_the_status_is_told_and_where_a_redirect_leads() {
        let moved = "answered with a redirect to https://new.example/in; redirects are not followed, for the key would go there; ...";
        assert_eq!(describe(Some(301), moved), "301: answered with a redirect to https://new.example/in");
        assert_eq!(describe(Some(410), "gone"), "410: gone");
        assert_eq!(describe(Some(410), "status 410, no message"), "status 410, no message");
        assert_eq!(describe(None, "exit code 1"), "exit code 1");
    }
}
