//! How the failure of a call is told of its item.

use http::StatusCode;
use paceline_config::Upstream;
use paceline_core::{Class, UnknownOutcome};
use paceline_http::{Exchange, HasAnswered};
use paceline_providers::Reading;
use paceline_providers::secrets::Secrets;
use paceline_store::work::{Failure, Task};

use crate::calls::entry;
use crate::{text, upstream};

/// The decision about an item whose call may have been executed, and must not be made twice.
pub(super) fn held_as_killed(unknown: UnknownOutcome, task: &Task) -> Failure {
    let message = match task.item().crashes {
        0 => "its call may have been executed: it was so in the store that the item was exported from",
        _ => "its call may have been executed: its worker was killed during it",
    };
    Failure { code: Some("killed".to_owned()), unknown, ..Failure::new(Class::Transient, message) }
}

/// A refusal of the key or the account that names its item and the key: the limiter stops other groups for it, and tells them
/// no more.
pub(super) fn of_item(task: &Task, status: StatusCode, reading: Reading, upstream: &Upstream) -> Reading {
    let (item, group) = (task.key(), task.group());
    let refused = (status == StatusCode::UNAUTHORIZED).then(|| match upstream::key_sent(upstream) {
        Ok(_) if reading.is_of_gateway() => format!("{}: ", upstream::KEY_AT_GATEWAY),
        Ok(key) => format!("{key} is refused: "),
        Err(unsent) => format!("{unsent}: "),
    });
    let (refused, said, status) = (refused.unwrap_or_default(), reading.said(), status.as_u16());
    let message = format!("{refused}{said} (the answer to item {item} of group {group}, status {status})");
    Reading { message: Some(message), ..reading }
}

/// What went wrong with a call to a server that may have answered before.
pub(super) fn failure(exchange: Exchange, server: &HasAnswered, secrets: &Secrets) -> Failure {
    let status = exchange.status();
    let unanswered = Some(paceline_http::is_unknown(&exchange.answer, &exchange.reading));
    let Exchange { answer, reading, unknown, retried, .. } = exchange;
    let message = match answer {
        _ if reading.class == Class::Account => reading.reason().into_owned(),
        Ok(answer) => reading.message.clone().unwrap_or_else(|| {
            let wait = reading.wait.map(|wait| format!(", asked to wait {}", text::duration(wait)));
            entry::without_message(answer.status(), &reading) + &wait.unwrap_or_default()
        }),
        Err(error) if error.is_given_up() => "abandoned: the run had to end".to_owned(),
        Err(error) => server.explain(error).to_string(),
    };
    Failure {
        status,
        code: reading.code,
        retry_after: reading.wait,
        unsent: reading.unsent,
        retried,
        unknown,
        unanswered,
        unexpected: reading.unexpected,
        ..Failure::new(reading.class, secrets.removed_from_text(message))
    }
}
