//! What people are shown of an upstream beside what its limiter knows. It is bounded, and forgotten with the process.

mod decisions;
mod history;
mod lines;
mod outage;
mod spending;

use std::borrow::Cow;

use paceline::{BackingOff, Class, NextAction, Retry};
use paceline_core::format_duration;
use paceline_providers::Reading;

pub(crate) use self::decisions::Decisions;
pub(crate) use self::history::{History, STEP, until_next};
pub(crate) use self::lines::{Kind, Lines};
pub(crate) use self::outage::{OutageNews, Outages, Sign, Why, in_tens};
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

/// In characters.
const LONGEST_TEXT: usize = 400;

/// Cuts what is noted or logged of a text that is longer: servers and clients say what they like.
pub(crate) fn cut(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_TEXT) {
        text.truncate(end);
        text.push('…');
    }
}

/// Why a call did not succeed, for all that use the upstream; nothing of one that did. What the provider says may repeat the
/// prompt of a client with a key, and is for that alone: `status` is that of an answer to one. Of others all read what is said.
pub(crate) fn words_for_all(reading: &Reading, status: Option<u16>) -> Cow<'_, str> {
    match (status, reading.class, reading.code.as_deref()) {
        (_, Class::Success, _) => "".into(),
        (None, ..) => reading.reason(),
        (Some(status), Class::Account, _) => {
            format!("the provider refused the key or the account ({status}); its message is in the log of the gateway")
                .into()
        }
        (_, _, Some(code)) if is_machine_code(code) => code.into(),
        (Some(status), ..) => format!("status {status}").into(),
    }
}

/// The longest machine code that others are told.
const LONGEST_CODE: usize = 64;

/// Whether that is a name for programs, and no text that may repeat a prompt.
fn is_machine_code(code: &str) -> bool {
    code.len() <= LONGEST_CODE && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
}

/// What follows a call that did not succeed for that reason, in a line that all clients read.
pub(crate) fn decision(reading: &Reading, reason: &str, retry: &Retry, action: &NextAction) -> String {
    let class = reading.class;
    match action {
        // Sent again after a person acted: nothing is to be said of tries.
        _ if class == Class::Account => format!("{}: {reason}", class.description()),
        // Few requests may wait so long: the client of another has its answer already.
        NextAction::Retry { delay, .. } if class == Class::QuotaExhausted => {
            format!("{}, no calls for {}: {reason}", class.description(), format_duration(*delay))
        }
        NextAction::Retry { next, delay } | NextAction::Resend { next, delay } => {
            let retry = Retry { max_retries: next.max_retries.unwrap_or(retry.max_retries), ..retry.clone() };
            format!("{}: {reason}", BackingOff::new(class, next, &retry, *delay))
        }
        NextAction::GiveUp { reason: end, .. } => format!("{}, {end}: {reason}", class.description()),
        _ => format!("{}: {reason}", class.description()),
    }
}
