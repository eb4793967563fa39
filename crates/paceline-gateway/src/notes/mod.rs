//! What people are shown of an upstream beside what its limiter knows. It is bounded, and forgotten with the process.

mod decisions;
mod history;
mod lines;
mod outage;
mod spending;

use paceline::{BackingOff, Class, NextAction, Retry};
use paceline_providers::Reading;

pub(crate) use self::decisions::Decisions;
pub(crate) use self::history::{History, STEP, until_next};
pub(crate) use self::lines::{Kind, Lines};
pub(crate) use self::outage::{Outages, Sign, Told, Why};
pub(crate) use self::spending::{ClientSpending, Spending};

/// What is noted of one upstream.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) history: History,
    pub(crate) decisions: Decisions,
    pub(crate) spending: Spending,
    pub(crate) outages: Outages,
    pub(crate) lines: Lines,
}

/// Why the account of an upstream is refused, for all that call it: the provider's own words are for the client that asked.
pub(crate) fn words_for_all(status: u16) -> String {
    format!("the provider refused the key or the account ({status}); who runs the gateway finds its words in the log")
}

/// What follows a call that did not succeed, and why, in a line. All clients with keys read it: `has_key`: what a server says of
/// the request of one of them, which may repeat its prompt, is none of theirs.
pub(crate) fn decision(reading: &Reading, retry: &Retry, action: &NextAction, has_key: bool) -> String {
    let class = reading.class;
    let reason = match class {
        Class::Account | Class::Invalid | Class::Filtered | Class::Transient if has_key => {
            reading.code.as_deref().unwrap_or("what the server says goes to its client alone").into()
        }
        _ => reading.reason(),
    };
    match action {
        // Sent again after a person acted: nothing is to be said of tries.
        _ if class == Class::Account => format!("{}: {reason}", class.description()),
        NextAction::Retry { next, delay } | NextAction::Resend { next, delay } => {
            let retry = Retry { max_retries: next.max_retries.unwrap_or(retry.max_retries), ..retry.clone() };
            format!("{}: {reason}", BackingOff::new(class, next, &retry, *delay))
        }
        NextAction::GiveUp { reason: end, .. } => format!("{}, {end}: {reason}", class.description()),
        _ => format!("{}: {reason}", class.description()),
    }
}
