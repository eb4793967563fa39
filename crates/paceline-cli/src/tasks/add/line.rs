//! One line of a file of items.

use std::borrow::Cow;

use paceline_core::Timestamp;
use paceline_providers::Provider;
use paceline_store::work::{DEFAULT_GROUP, NewItem};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{When, group, name};
use crate::args::duration;
use crate::lines::address::{self, Addresses};
use crate::lines::format::Format;
use crate::lines::headers;
use crate::lines::line::FLAGS_FOR_OTHERS;
use crate::lines::members::Members;
use crate::text::instant;

/// As the user wrote it. An unknown key is a mistake that would cost an item its deadline.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    key: &'a RawValue,
    #[serde(borrow)]
    payload: &'a RawValue,
    #[serde(borrow, default)]
    priority: Option<&'a RawValue>,
    #[serde(borrow, default)]
    deadline: Option<&'a RawValue>,
    #[serde(borrow, default)]
    group: Option<&'a RawValue>,
    #[serde(borrow, default)]
    not_before: Option<&'a RawValue>,
    #[serde(borrow, default)]
    created: Option<&'a RawValue>,
    #[serde(borrow, default)]
    may_be_done: Option<&'a RawValue>,
}

/// The value of a member; an error names it.
fn value<'a, T: Deserialize<'a>>(name: &str, text: &'a RawValue, expected: &str) -> Result<T, String> {
    serde_json::from_str(text.get()).map_err(|_| format!("{name}: expected {expected}"))
}

/// A time as on a flag, or in seconds.
#[derive(Deserialize)]
#[serde(untagged)]
enum Span {
    Text(String),
    Seconds(serde_json::Number),
}

impl Span {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Seconds(seconds) => seconds.to_string(),
        }
    }
}

/// The form of a line, and what a shell user does about another.
const NO_ITEM: &str = r#"expected a JSON object, {"key":"k1","payload":{...}}; jq -c . FILE puts each object on one line, jq -Rc '{key:"k\(input_line_number)",payload:.}' FILE makes an item of each line"#;

/// The item of a line.
///
/// # Errors
/// What is wrong with it.
pub(super) fn read(text: &str, now: Timestamp) -> Result<NewItem, String> {
    if !text.starts_with('{') {
        return Err(NO_ITEM.to_owned());
    }
    let line: Line<'_> = serde_json::from_str(text).map_err(|error| match is_request(text) {
        true => {
            "this is a request line of `paceline run`, not an item: jq -c '{key: .custom_id, payload: .}' makes an \
            item of each line"
                .to_owned()
        }
        // It may be one that goes on in the next line.
        false if error.is_eof() => Members::read(text).err().map_or_else(|| message_of(&error), |cut| cut.to_string()),
        false => message_of(&error),
    })?;
    item_of(&line, now)
}

fn item_of(line: &Line<'_>, now: Timestamp) -> Result<NewItem, String> {
    refuse_keys(line.payload.get()).map_err(|why| format!("payload: {why}"))?;
    let text = |name: &str, text: &RawValue| value::<String>(name, text, "a string");
    let span = |name: &str, text, such_as: &str| value::<Span>(name, text, such_as).map(Span::into_text);
    let deadline = line.deadline.map(|text| {
        let span = span("deadline", text, "a duration such as 2h, or seconds")?;
        duration(&span).map_err(|error| format!("deadline: {error}"))
    });
    let not_before = line.not_before.map(|text| {
        let span = span("not_before", text, "an instant, or a duration such as 2h")?;
        When::parse(&span).map(|when| when.from(now)).map_err(|error| format!("not_before: {error}"))
    });
    let created = line.created.map(|created| {
        let created = text("created", created)?;
        instant(&created).ok_or_else(|| "created: expected an instant such as 2027-01-31T12:00:00Z".to_owned())
    });
    let own = line.group.map(|own| text("group", own)).transpose()?;
    let priority = line.priority.map(|text| value("priority", text, "a whole number from -32768 to 32767"));
    let may_be_done = line.may_be_done.map(|text| value("may_be_done", text, "true or false"));
    let item = NewItem {
        key: name(&text("key", line.key)?).map_err(|error| format!("key: {error}"))?,
        payload: line.payload.get().to_owned(),
        priority: priority.transpose()?.unwrap_or(0),
        deadline: deadline.transpose()?,
        group: group(own.as_deref().unwrap_or(DEFAULT_GROUP)).map_err(|error| format!("group: {error}"))?,
        not_before: not_before.transpose()?,
        created: created.transpose()?,
        may_be_done: may_be_done.transpose()?.unwrap_or(false),
    };
    item.check().map_err(|error| error.to_string())?;
    Ok(item)
}

/// Refuses a request that carries a key or a password: a store is no place for either, and no run sends it.
///
/// # Errors
/// What it carries, and where that belongs.
pub(super) fn refuse_keys(payload: &str) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Request<'a> {
        #[serde(borrow)]
        url: Cow<'a, str>,
        #[serde(borrow, default)]
        headers: Option<&'a RawValue>,
    }
    // Anything else is for a command, which may take what it likes.
    let Ok(Request { url, headers }) = serde_json::from_str(payload) else { return Ok(()) };
    address::refuse_password(&url).map_err(|why| format!("url: {why}"))?;
    headers.map_or(Ok(()), |headers| headers::refuse_keys(headers).map_err(|why| format!("headers: {why}")))
}

/// Refuses what `tasks run --http` could not send: a payload that is no request, or goes to no web address. Where it may go is
/// known to the run alone. Returns the first key of it that is not sent.
///
/// # Errors
/// What is wrong with it.
pub(super) fn refuse_no_request(payload: &str) -> Result<Option<String>, String> {
    let anywhere = Addresses { base: "http://localhost".to_owned(), api: None, hosts: true };
    let read = Format::of_one(payload.as_bytes(), "item", None, Provider::Generic, &anywhere)
        .and_then(|format| format.read(payload.as_bytes(), 1).map(|line| line.stray).map_err(|error| error.reason()));
    // It knows no such flags.
    read.map_err(|why| why.replace(FLAGS_FOR_OTHERS, ""))
}

/// Whether it is a line of `paceline run`, or of a hosted batch.
fn is_request(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow, rename = "custom_id")]
        _custom_id: &'a RawValue,
    }
    serde_json::from_str::<Named<'_>>(text).is_ok()
}

/// Each line is a text of its own, so that "line 1" would mislead.
fn message_of(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    match message.strip_suffix(&place) {
        Some(what) => format!("{what} at column {}", error.column()),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_says_what_flags_say() {
        let now = Timestamp::from_millis(1_700_000_000_000);
        let full = r#"{"key":"a","payload":{"n": 1.0},"priority":-3,"deadline":"2h","group":"g","not_before":"90s"}"#;
        let item = read(full, now).expect("a line");
        let expected = NewItem {
            priority: -3,
            deadline: Some(Duration::from_secs(7_200)),
            group: "g".to_owned(),
            not_before: Some(now + Duration::from_secs(90)),
            ..NewItem::new("a", r#"{"n": 1.0}"#)
        };
        assert_eq!(item, expected);
        for same in [
            r#"{"payload":"x","key":"b"}"#,
            r#"{"key":"b","payload":"x","priority":null,"deadline":null,"group":null,"not_before":null}"#,
        ] {
            assert_eq!(read(same, now), Ok(NewItem::new("b", r#""x""#)), "{same}");
        }
        let moved = read(r#"{"key":"a","payload":1,"created":"2023-11-14T22:13:20.005Z","may_be_done":true}"#, now);
        let created = Some(now + Duration::from_millis(5));
        assert_eq!(moved, Ok(NewItem { created, may_be_done: true, ..NewItem::new("a", "1") }));
        let seconds = read(r#"{"key":"a","payload":1,"deadline":0.5,"not_before":"2023-11-14T22:13:21Z"}"#, now);
        let seconds = seconds.expect("a line");
        assert_eq!(seconds.deadline, Some(Duration::from_millis(500)));
        assert_eq!(seconds.not_before, Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn what_no_run_could_send_is_refused_where_that_is_asked_for() {
        for payload in
            [r#"{"url":"https://a.example/in","body":{}}"#, r#"{"url":"/in","body":"x","headers":{"X-A":"1"}}"#]
        {
            assert_eq!(refuse_no_request(payload), Ok(None), "{payload}");
        }
        let mistyped = r#"{"url":"https://a.example/in","header":{"X-A":"1"},"body":{}}"#;
        assert_eq!(refuse_no_request(mistyped), Ok(Some("header".to_owned())));
        for payload in [
            r#""just text""#,
            "7",
            r#"{"URL":"https://a.example/in"}"#,
            r#"{"url":"ftp://a.example/in","body":{}}"#,
            r#"{"url":"https://a.example/in it","body":{}}"#,
            r#"{"url":"a.example/in","body":{}}"#,
            r#"{"url":"https://a.example:99999/in","body":{}}"#,
            r#"{"url":"https://a.example/in","body":{},"headers":{"Host":"b.example"}}"#,
        ] {
            assert!(refuse_no_request(payload).is_err_and(|why| !why.is_empty()), "{payload}");
        }
    }

    #[test]
    fn what_is_no_item_is_told() {
        let now = Timestamp::from_millis(0);
        for (line, message) in [
            ("{", "the line ends inside an object; each object stands on one line"),
            (r#"{"key":"a","payload":"b}"#, "inside the string that begins at column 22"),
            (r#"["a",1,0,null,null,null]"#, r#"expected a JSON object, {"key":"k1","payload":{...}}; jq -c . FILE"#),
            (r#"{"key":"a"}"#, "missing field `payload`"),
            (r#"{"payload":1}"#, "missing field `key`"),
            (r#"{"key":7,"payload":1}"#, "key: expected a string"),
            (r#"{"key":"a","payload":1,"group":7}"#, "group: expected a string"),
            (r#"{"key":"a","payload":1,"deadline":[1]}"#, "deadline: expected a duration such as 2h, or seconds"),
            (r#"{"key":"","payload":1}"#, "key: expected at least one character"),
            (r#"{"key":"a","payload":1,"group":""}"#, "group: expected"),
            (r#"{"key":"a","payload":1,"group":"*"}"#, "group: * stands for all groups"),
            (r#"{"key":"a\u0000b","payload":1}"#, r#"the key of item "a\0b" holds a NUL character"#),
            (r#"{"key":"a","payload":1,"group":"g\u0000"}"#, r#"the group of item "a" holds a NUL character"#),
            (r#"{"key":"a","payload":1,"prio":1}"#, "unknown field `prio`"),
            (r#"{"key":"a","payload":1,"priority":40000}"#, "priority: expected a whole number from -32768 to 32767"),
            (r#"{"key":"a","payload":1,"deadline":"soon"}"#, "deadline: "),
            (r#"{"key":"a","payload":1,"deadline":-1}"#, "deadline: "),
            (r#"{"key":"a","payload":1,"not_before":"tomorrow"}"#, "not_before: expected an instant"),
            (r#"{"key":"a","payload":1,"created":"5m"}"#, "created: expected an instant"),
            (r#"{"key":"a","payload":1,"may_be_done":1}"#, "may_be_done: expected true or false"),
            (r#"{"key":"a","key":"b","payload":1}"#, "duplicate field `key`"),
            (r#"{"custom_id":"a","url":"/x","body":{}}"#, "jq -c '{key: .custom_id, payload: .}'"),
            (r#"{"key":"a","payload":1} x"#, "trailing characters"),
            (
                r#"{"key":"a","payload":{"url":"https://a.example","headers":{"Authorization":"Bearer stolen"}}}"#,
                "payload: headers: `Authorization` cannot be set for one line",
            ),
            (
                r#"{"key":"a","payload":{"url":"https://me:stolen@a.example/x"}}"#,
                "payload: url: `https://[key]@a.example/x` has a name and a password",
            ),
        ] {
            let error = read(line, now).expect_err(line);
            assert!(error.contains(message) && !error.contains("stolen"), "{line}: {error}");
        }
        let long = format!(r#"{{"key":"{}","payload":1}}"#, "x".repeat(600));
        assert!(read(&long, now).is_err_and(|error| error.contains("too long: 600 bytes")));
    }
}
