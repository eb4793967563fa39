//! The journal's record of a call: the item's sends, the counters, and the line.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderName, LAST_MODIFIED, LINK, LOCATION};
use http::{Response, StatusCode};
use paceline_core::{Class, GiveUp, NextAction, Request, Timestamp};
use paceline_http::{Exchange, NoAnswer, gateway};
use paceline_providers::secrets::hidden;
use paceline_providers::{GATEWAY, Reading, model_of_answer};
use paceline_store::{CallTotals, ClaimedItem, End, Finished, LastAnswer, ResultBody, Tally};
use serde_json::value::{RawValue, to_raw_value};

use crate::budget::AnsweredBy;
use crate::calls::item::Sent;
use crate::stops::fail_fast::Failed;

/// The header fields that a result line keeps. The last two say what a body is that is kept as it came: compressed in a way
/// that was not asked for, and so not unpacked, or no text.
static KEPT: [HeaderName; 7] =
    [LINK, ETAG, LOCATION, LAST_MODIFIED, HeaderName::from_static(gateway::FALLBACK), CONTENT_ENCODING, CONTENT_TYPE];

/// A longer value is left out: half an address is none.
const LONGEST_HEADER: usize = 4 << 10;

/// A longer name of a model is none.
const LONGEST_MODEL: usize = 200;

/// Who made an answer that tells what it used, as its server names the model, or a gateway whose fallback answered: of that also
/// where nothing tells it.
pub(crate) fn answered_by(exchange: &Exchange) -> Option<AnsweredBy> {
    match (exchange.used().map(|used| used.total()), &exchange.steps.answered) {
        (Some(0), _) | (None, None) => None,
        (_, Some(step)) => by_step(step),
        (Some(_), None) => {
            let model = exchange.answer.as_ref().ok().and_then(|answer| model_of_answer(answer.body()));
            model.filter(|model| model.len() <= LONGEST_MODEL).map(AnsweredBy::Model)
        }
    }
}

/// Who may have made the answers that a gateway lost.
pub(crate) fn lost_at(exchange: &Exchange) -> Vec<AnsweredBy> {
    exchange.steps.unknown_at.iter().filter_map(|step| by_step(step)).collect()
}

/// Who answers at a step of a gateway's fallback; none for a file.
fn by_step(step: &str) -> Option<AnsweredBy> {
    match step.split_once('/') {
        Some((upstream, model)) => Some(AnsweredBy::Upstream(upstream.to_owned(), Some(model.to_owned()))),
        None => (step != STATIC).then(|| AnsweredBy::Upstream(step.to_owned(), None)),
    }
}

/// The step of a gateway's fallback that is a file.
const STATIC: &str = "static";

/// Whether a gateway answered with a file of its own, in place of any API: that costs nothing but what it says it used.
pub(crate) fn is_static(exchange: &Exchange) -> bool {
    exchange.steps.answered.as_deref() == Some(STATIC)
}

/// What a call adds to the counters of the job.
pub(crate) fn added(item: &ClaimedItem, sent: &Sent) -> CallTotals {
    let calls = u64::from(sent.exchange.calls);
    let last = item.tally.last.as_ref();
    // What a gateway put off was no call.
    let put_off = item.tally.attempts == 0 && last.is_some_and(|last| last.error_type.as_deref() == Some(GATEWAY));
    let first = item.tally.sends() == 0 || put_off;
    let after_failure =
        item.tally.last.as_ref().is_some_and(|last| matches!(last.class, Class::Transient | Class::Overloaded));
    CallTotals {
        calls,
        resends: calls.saturating_sub(first.into()),
        // After a failure, here or in a gateway.
        retries: u64::from(sent.exchange.retried) + u64::from(!first && after_failure && calls > 0),
        throttled: u64::from(sent.exchange.reading.class == Class::Throttled),
        abandoned: u64::from(is_given_up(sent)),
    }
}

/// An item's sends with this one, as the pacer counted it, if it did.
pub(crate) fn tally(item: &ClaimedItem, sent: &Sent, counted: Option<&Request>) -> Tally {
    let mut tally = item.tally.clone();
    match counted {
        Some(counted) => {
            tally.attempts = item.forgiven.attempts.saturating_add(counted.attempts);
            tally.deferrals = item.forgiven.deferrals.saturating_add(counted.deferrals);
            tally.unsent = counted.unsent;
        }
        None if is_given_up(sent) => {}
        None => tally.attempts = tally.attempts.saturating_add(sent.exchange.calls),
    }
    tally.abandoned += u32::from(is_given_up(sent));
    let usage = sent.exchange.reading.usage.unwrap_or_default();
    tally.tokens_in = tally.tokens_in.saturating_add(usage.prompt_tokens());
    tally.tokens_out = tally.tokens_out.saturating_add(usage.output_tokens);
    tally.first = tally.first.or(Some(sent.at));
    tally.deadline = Some(sent.deadline);
    if !is_given_up(sent) {
        tally.last = Some(LastAnswer {
            class: sent.exchange.reading.class,
            status: sent.exchange.status(),
            code: sent.exchange.reading.code.clone(),
            error_type: sent.exchange.reading.error_type.clone(),
            message: (sent.exchange.reading.class != Class::Success).then(|| error_message(sent)),
        });
    }
    tally
}

/// An item that ends without success, which is `known` then.
pub(crate) fn failed(
    item: &ClaimedItem,
    sent: &Sent,
    reason: GiveUp,
    request: &Request,
    adds: CallTotals,
    known: Timestamp,
) -> Failed {
    let tally = tally(item, sent, Some(request));
    // An answer that is not what the user expects is an answer.
    let unexpected = sent.exchange.reading.unexpected;
    let stayed_down = !unexpected && reason.stayed_down(sent.exchange.reading.class);
    let message = error_message(sent);
    let line = sent.echo.line(item.ordinal, tally.sends(), End::Failed, &line_answer(sent, &message));
    let mut finished = Finished::new(item.ordinal, End::Failed, line);
    (finished.tally, finished.adds, finished.usage) = (tally, adds, sent.usage.clone());
    finished.reason = Some(reason.as_str().to_owned());
    Failed {
        finished,
        item: sent.echo.custom_id.to_string(),
        scope: Arc::clone(&item.scope),
        class: sent.exchange.reading.class,
        status: sent.exchange.status(),
        code: sent.exchange.reading.code.clone(),
        message,
        unexpected,
        address: Some(Arc::clone(&sent.address)),
        down: stayed_down.then(|| item.clone()),
        known,
        overtaken: false,
    }
}

/// The line of an answer that `--expect` refused, whatever becomes of its item.
pub(crate) fn refused_answer(item: &ClaimedItem, sent: &Sent) -> Vec<u8> {
    let counted = match &sent.exchange.action {
        NextAction::Retry { next: counted, .. }
        | NextAction::Resend { next: counted, .. }
        | NextAction::GiveUp { request: counted, .. } => Some(&**counted),
        _ => None,
    };
    let call = tally(item, sent, counted).sends();
    sent.echo.refused_answer(item.ordinal, call, &line_answer(sent, &error_message(sent)))
}

/// What a call that is sent again met with, for people.
pub(crate) fn kind(sent: &Sent) -> &'static str {
    match sent.exchange.reading.unexpected {
        true => "refused by --expect (each retry may be billed)",
        false => sent.exchange.reading.reported_class().description(),
    }
}

/// The run ended before there was an answer.
fn is_given_up(sent: &Sent) -> bool {
    sent.exchange.answer.as_ref().is_err_and(NoAnswer::is_given_up)
}

/// The server's error message, or why there is no answer.
pub(crate) fn error_message(sent: &Sent) -> String {
    match &sent.exchange.answer {
        Err(error) => error.to_string(),
        Ok(answer) => {
            let reading = &sent.exchange.reading;
            reading.message.clone().unwrap_or_else(|| without_message(answer.status(), reading))
        }
    }
}

/// A failure without a message. Where the status is none of a failure, the rule says what failed.
pub(crate) fn without_message(status: StatusCode, reading: &Reading) -> String {
    match reading.rule() {
        rule if status.is_success() && !rule.is_empty() => {
            format!("status {status}, which is a failure by the rule \"{rule}\"")
        }
        _ => format!("status {status}"),
    }
}

pub(crate) fn line_answer<'a>(sent: &'a Sent, message: &'a str) -> ResultBody<'a> {
    match &sent.exchange.answer {
        Ok(answer) => match recorded(answer, &sent.exchange.reading, sent.headers.as_deref()) {
            // The status of any other failure says what it is, and so does the server's error.
            ResultBody::Response { status, request_id, headers, body }
                if sent.exchange.reading.class != Class::Success && status < 400 =>
            {
                let reading = &sent.exchange.reading;
                let code = reading.code.as_deref().unwrap_or_else(|| reading.class.as_str());
                ResultBody::Unusable { status, request_id, headers, body, code, message }
            }
            answer => answer,
        },
        Err(_) => ResultBody::Error { code: sent.exchange.reading.code.as_deref().unwrap_or("no_response"), message },
    }
}

/// The body of a result line for an answer.
pub(crate) fn recorded<'a>(
    answer: &'a Response<Bytes>,
    reading: &'a Reading,
    headers: Option<&'a RawValue>,
) -> ResultBody<'a> {
    ResultBody::Response {
        status: answer.status().as_u16(),
        request_id: reading.request_id.as_deref().unwrap_or_default(),
        headers,
        body: answer.body(),
    }
}

/// The fields that a later call may need, such as the next page and the state of a resource; none where the answer has none. They
/// are listed by name, so that no cookie and no key ever stands among them.
pub(crate) fn kept_headers(answer: &Response<Bytes>) -> Option<Box<RawValue>> {
    let is_text = std::str::from_utf8(answer.body()).is_ok() && !names_another_charset(answer);
    let fields: BTreeMap<&str, String> = KEPT
        .iter()
        .filter(|name| !is_text || **name != CONTENT_TYPE)
        .filter_map(|name| {
            // Some servers write UTF-8 into a `Location`.
            let values: Vec<_> =
                answer.headers().get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
            let mut value = values.join(", ");
            if answer.status().is_redirection() && name == LOCATION {
                value = hidden_target(&value);
            }
            (!value.is_empty() && value.len() <= LONGEST_HEADER).then_some((name.as_str(), value))
        })
        .collect();
    (!fields.is_empty()).then(|| to_raw_value(&fields).expect("names and texts are always JSON"))
}

/// Whether the body is in another charset than UTF-8: its bytes may be UTF-8 all the same, as those of UTF-16 without a mark.
fn names_another_charset(answer: &Response<Bytes>) -> bool {
    let content_type = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parameters = content_type.split(';').filter_map(|parameter| parameter.split_once('='));
    let charset = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"));
    let is_known =
        |charset: &str| ["utf-8", "utf8", "us-ascii"].iter().any(|known| charset.eq_ignore_ascii_case(known));
    charset.is_some_and(|(_, charset)| !is_known(charset.trim().trim_matches('"')))
}

/// The target of a redirect without what looks like a secret, as the message about it has it. What is no secret in a query stays.
fn hidden_target(location: &str) -> String {
    let authority = location.find("://").map_or(0, |at| at + "://".len());
    let path = match location[authority..].find(['/', '?', '#']) {
        _ if authority == 0 => 0,
        Some(at) => authority + at,
        None => location.len(),
    };
    format!("{}{}", hidden(&location[..path]), hidden(&location[path..]))
}
