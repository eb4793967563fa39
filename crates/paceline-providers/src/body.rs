//! The body of an answer, reduced to the places that a decision may look at.
//!
//! A body may be JSON, JSON in a one-element array, a stream of server-sent events, HTML from an edge, text or nothing.
//! None of that is an error: what cannot be read decides nothing.

use std::borrow::Cow;
use std::cell::OnceCell;

use serde::de::IgnoredAny;
use serde_json::Value;

use super::address::path_before;
use super::collect;
use super::frames;
use super::outline::{Outline, Root, outline};
use super::stream::{self, Stream};

/// Top-level keys of an error that some step reads.
const OF_REFUSALS: Outline = Outline {
    kept: &[
        "CancellationReasons",
        "Message",
        "ThrottlingReasons",
        "__type",
        "base_resp",
        "code",
        "detail",
        "error",
        "errors",
        "extensions",
        "message",
        "object",
        "ok",
        "retry_after",
        "status",
        "title",
        "type",
        "usage",
    ],
    pruned: &[],
    arrays: false,
};

/// Top-level keys of a success that some step reads. All others, such as the vectors of an embedding, are skipped
/// unparsed, and of its choices only why they ended and what failed in them is kept.
const OF_SUCCESSES: Outline = Outline {
    kept: &[
        "ConsumedCapacity",
        "UnprocessedItems",
        "UnprocessedKeys",
        "amazon-bedrock-invocationMetrics",
        "base_resp",
        "error",
        "errors",
        "extensions",
        "generation_token_count",
        "incomplete_details",
        "inputTextTokenCount",
        "meta",
        "object",
        "ok",
        "promptFeedback",
        "prompt_token_count",
        "retry_after",
        "status",
        "stop_reason",
        "usage",
        "usageMetadata",
    ],
    pruned: &["candidates", "choices", "predictions", "results"],
    arrays: false,
};

/// Of a page so many bytes are looked at for what it says.
const LONGEST_PAGE: usize = 16 << 10;

/// In so many bytes a rule looks for a text.
const SEARCHED: usize = 64 << 10;

/// So much of a text that is no JSON is kept.
const TEXT: usize = 2_000;
/// The longest quote of a page, in bytes: most of it is no message.
const LONGEST_QUOTE: usize = 120;
/// The longest message for people, in bytes.
const LONGEST_MESSAGE: usize = 300;

/// What a body is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// No byte but blanks.
    #[default]
    Nothing,
    /// One JSON object, whatever its keys.
    Object,
    /// Server-sent events.
    Stream,
    /// Anything else: a page, half an object, bytes.
    Text,
    /// Of a success in which nothing that counts can be.
    Unread,
}

/// What an answer said.
#[derive(Debug, Default)]
pub(super) struct Body<'a> {
    pub(super) kind: Kind,
    /// The kept keys of a JSON object; of a stream, its error.
    pub(super) root: Root,
    /// The beginning of a body that is not JSON.
    pub(super) text: String,
    /// The body was a stream of events.
    pub(super) stream: Option<Stream>,
    /// As it came.
    bytes: &'a [u8],
    /// Parsed to the last, once a rule or a schema asks for what is not kept; none where it is no JSON.
    whole: OnceCell<Option<Value>>,
}

/// What is looked for in a success.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'t> {
    /// Keys without which it need not be read; `None`: it is read.
    pub(super) keys: Option<&'t [String]>,
    /// An array may be a stream of objects.
    pub(super) arrays: bool,
}

impl Kind {
    /// For a person who follows the decision.
    pub(super) const fn step(self) -> &'static str {
        match self {
            Self::Nothing => "body: empty",
            Self::Object => "body: JSON",
            Self::Stream => "body: event stream",
            Self::Text => "body: text",
            Self::Unread => "body: not needed for the decision, not read",
        }
    }
}

impl Body<'_> {
    /// The same, where a rule or a schema may have asked for more of it.
    pub(super) fn step(&self) -> &'static str {
        match self.whole.get().filter(|_| matches!(self.kind, Kind::Unread)) {
            Some(Some(_)) => "body: JSON, read to the end",
            Some(None) => "body: no JSON",
            None => self.kind.step(),
        }
    }
}

impl<'a> Body<'a> {
    /// Reads the body of an error.
    pub(super) fn of_refusal(bytes: &'a [u8], content_type: &str) -> Self {
        Self::parse(bytes, content_type, &OF_REFUSALS)
    }

    /// Reads the body of a success as far as it can matter.
    pub(super) fn of_success(bytes: &'a [u8], content_type: &str, wanted: Wanted<'_>) -> Self {
        match wanted.keys {
            Some(keys) if !bytes.is_empty() && !stream::is_stream(bytes, content_type) && !mentions(bytes, keys) => {
                Self { kind: Kind::Unread, bytes: without_mark(bytes), ..Self::default() }
            }
            _ => Self::parse(bytes, content_type, &Outline { arrays: wanted.arrays, ..OF_SUCCESSES })
                .with_error_of_choices(),
        }
    }

    /// Where every choice failed, and the answer has no error of its own, the first one's stands for the answer.
    fn with_error_of_choices(mut self) -> Self {
        let choices =
            self.root.get("choices").and_then(Value::as_array).filter(|_| self.error().is_none_or(Value::is_null));
        let failed = |choice: &Value| choice["error"].is_object();
        if let Some([first, rest @ ..]) = choices.map(Vec::as_slice)
            && failed(first)
            && rest.iter().all(failed)
        {
            let error = first["error"].clone();
            self.root.set("error".into(), error);
        }
        self
    }

    fn parse(bytes: &'a [u8], content_type: &str, keys: &Outline) -> Self {
        let bytes = if content_type.starts_with(frames::MEDIA_TYPE) { bytes } else { without_mark(bytes) };
        if let Some(stream) = stream::read_any(bytes, content_type) {
            return Self::of_stream(stream, bytes);
        }
        match outline(bytes, keys) {
            Some(root) => Self { kind: Kind::Object, root, bytes, ..Self::default() },
            None => Self {
                kind: if bytes.is_empty() { Kind::Nothing } else { Kind::Text },
                text: beginning(&String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT)]), TEXT),
                bytes,
                ..Self::default()
            },
        }
    }

    fn of_stream(mut stream: Stream, bytes: &'a [u8]) -> Self {
        let root = std::mem::take(&mut stream.error).into();
        Self { kind: Kind::Stream, root, stream: Some(stream), bytes, ..Self::default() }
    }

    /// The value at a JSON pointer, as far as its key is kept.
    pub(super) fn in_root(&self, pointer: &str) -> Option<&Value> {
        let path = pointer.strip_prefix('/')?;
        let (key, rest) = path.split_at(path_before(path, b"/").len());
        self.root.get(key)?.pointer(rest)
    }

    /// The value at a JSON pointer, wherever it is.
    pub(super) fn at(&self, pointer: &str) -> Option<&Value> {
        self.in_root(pointer).or_else(|| self.whole()?.pointer(pointer))
    }

    /// Whether all of it is one JSON value, or the events of a stream.
    pub(super) fn is_json(&self) -> bool {
        self.stream.is_some() || serde_json::from_slice::<IgnoredAny>(self.bytes).is_ok()
    }

    /// Whether a text stands in its beginning.
    pub(super) fn contains(&self, text: &str) -> bool {
        let searched = &self.bytes[..self.bytes.len().min(SEARCHED)];
        memchr::memmem::find(searched, text.as_bytes()).is_some()
    }

    /// All of it as JSON: a stream is the object that its events add up to.
    pub(super) fn value(&self) -> Option<Cow<'_, Value>> {
        match &self.stream {
            Some(_) => collect::object_of(self.bytes).map(Cow::Owned),
            None => self.whole().map(Cow::Borrowed),
        }
    }

    fn whole(&self) -> Option<&Value> {
        self.whole.get_or_init(|| serde_json::from_slice(self.bytes).ok()).as_ref()
    }

    pub(super) fn error(&self) -> Option<&Value> {
        self.root.get("error")
    }

    /// A value inside `error`.
    pub(super) fn in_error(&self, pointer: &str) -> Option<&Value> {
        self.error()?.pointer(pointer)
    }

    /// The places where a code that decides alone may stand.
    pub(super) fn codes(&self) -> impl Iterator<Item = &str> {
        let inside = ["/type", "/code", "/details/error_code", "/innererror/code"];
        let details = self.in_error("/details").and_then(Value::as_array).into_iter().flatten();
        inside
            .into_iter()
            .filter_map(|pointer| self.in_error(pointer)?.as_str())
            .chain(self.error().and_then(Value::as_str))
            .chain(details.filter_map(|detail| detail["reason"].as_str()))
            .chain(self.problem())
    }

    /// The last part of the address that names a problem of RFC 9457: `out-of-credit`.
    fn problem(&self) -> Option<&str> {
        let address = self.root.get("type")?.as_str().filter(|address| address.contains("://"))?;
        address.rsplit(['/', '#']).next()
    }

    /// The first code that is one of those known.
    pub(super) fn code_of(&self, known: &[String]) -> Option<&str> {
        self.codes().find(|code| known.iter().any(|known| known == code))
    }

    pub(super) fn has_code(&self, known: &[String]) -> bool {
        self.code_of(known).is_some()
    }

    /// The code to report: the error's own, else the body's.
    pub(super) fn code(&self) -> Option<String> {
        let details = || self.in_error("/details/error_code");
        let base = || self.in_root("/base_resp/status_code").filter(|code| **code != 0);
        let code = self.in_error("/code").filter(|code| !code.is_null()).or_else(details);
        let code = code.or_else(|| self.root.get("code")).or_else(base);
        printed(code?).or_else(|| self.error()?.as_str().map(str::to_owned))
    }

    /// The type of the error.
    pub(super) fn error_type(&self) -> Option<String> {
        self.in_error("/type").or_else(|| self.in_error("/status")).and_then(printed)
    }

    /// The error message, wherever it stands; empty when there is none.
    pub(super) fn message(&self) -> &str {
        let top = |key: &str| self.root.get(key).and_then(Value::as_str);
        let at = |place: &str| self.in_root(place).and_then(Value::as_str);
        let inside = at("/error/message").or_else(|| at("/errors/0/message")).or_else(|| at("/base_resp/status_msg"));
        let places = [
            inside,
            self.error().and_then(Value::as_str),
            top("message"),
            top("Message"),
            top("detail"),
            top("errors"),
            top("title"),
        ];
        places.into_iter().flatten().next().unwrap_or(&self.text)
    }

    /// The message for people, as [`plain`] text; nothing for HTML.
    pub(super) fn shown_message(&self) -> Option<String> {
        let message = self.message().trim();
        let says_something = !message.is_empty() && !message.starts_with('<');
        says_something.then(|| plain(message))
    }

    /// What a page of HTML says, as [`plain`] text and shorter: its title and what follows.
    pub(super) fn shown_page(&self) -> Option<String> {
        // What is not needed for the decision has not been read.
        let unread = self.bytes.strip_prefix(b"<").filter(|_| self.text.is_empty());
        let text = match unread {
            Some(_) => String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(LONGEST_PAGE)]),
            None => Cow::Borrowed(&*self.text),
        };
        let words = plain(&without_tags(&text));
        (!words.is_empty()).then(|| beginning(&words, LONGEST_QUOTE))
    }
}

/// Without the blanks and the byte order mark that some servers begin a text with.
fn without_mark(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.trim_ascii_start();
    bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes)
}

/// A page without its tags, scripts and styles.
fn without_tags(page: &str) -> String {
    let (mut text, mut rest) = (String::new(), page);
    while let Some((before, tag)) = rest.split_once('<') {
        text.push_str(before);
        text.push(' ');
        let hidden = ["script", "style", "!--"].into_iter().find(|name| {
            let (tag, name) = (tag.as_bytes(), name.as_bytes());
            tag.len() >= name.len() && tag[..name.len()].eq_ignore_ascii_case(name)
        });
        let end = match hidden {
            Some("!--") => "-->",
            Some("script") => "</script>",
            Some(_) => "</style>",
            None => ">",
        };
        rest = tag.split_once(end).map_or("", |(_, after)| after);
    }
    text + rest
}

/// A server's message for people: short, on one line, without anything that looks like a key.
pub(super) fn plain(text: &str) -> String {
    let words: Vec<_> = text.split_whitespace().map(without_key).collect();
    // It reaches terminals and logs: it must not move their cursors or set their titles.
    let plain: String = words.join(" ").chars().filter(|c| !c.is_control()).collect();
    beginning(&plain, LONGEST_MESSAGE)
}

/// Whether a text holds one of the keys in quotes.
fn mentions(bytes: &[u8], keys: &[String]) -> bool {
    !keys.is_empty()
        && memchr::memchr_iter(b'"', bytes).any(|at| {
            let rest = &bytes[at + 1..];
            let is_here =
                |key: &[u8]| rest.first() == key.first() && rest.starts_with(key) && rest.get(key.len()) == Some(&b'"');
            keys.iter().any(|key| is_here(key.as_bytes()))
        })
}

/// Some servers repeat the key that they refuse. What ends its sentence stays.
fn without_key(word: &str) -> Cow<'_, str> {
    let key = word.trim_start_matches(['"', '\'', '`', '(']);
    if !["sk-", "sk_", "gsk_", "xai-", "AIza"].into_iter().any(|prefix| key.starts_with(prefix)) {
        return word.into();
    }
    let key = word.trim_end_matches(['.', ',', ';', ':', '!', '?']);
    format!("[key]{}", &word[key.len()..]).into()
}

fn printed(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// At most `most` bytes from the beginning, whole characters.
fn beginning(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::proptest;

    fn body(text: &str) -> Body<'_> {
        Body::of_refusal(text.as_bytes(), "application/json")
    }

    #[test]
    fn errors_in_every_form_that_was_seen() {
        for (text, code, message) in [
            (r#"{"error":{"code":"a","message":"m"}}"#, Some("a"), "m"),
            ("\n\n{\"error\":{\"code\":429,\"message\":\"m\"}}", Some("429"), "m"),
            (r#"[{"error":{"code":null,"message":"m"}}]"#, None, "m"),
            (r#"{"error":"ratelimited"}"#, None, "ratelimited"),
            (r#"{"errors":"no"}"#, None, "no"),
            (r#"{"error":{"details":{"error_code":"b"}}}"#, Some("b"), ""),
            (r#"{"title":"t","detail":"d","status":429}"#, None, "d"),
            (r#"{"type":"rate_limited","code":"1300","message":"m"}"#, Some("1300"), "m"),
            (r#"{"base_resp":{"status_code":1002,"status_msg":"m"}}"#, Some("1002"), "m"),
            (r#"{"base_resp":{"status_code":0,"status_msg":"m"}}"#, None, "m"),
            ("error code: 1015", None, "error code: 1015"),
            ("[1, 2]", None, "[1, 2]"),
            ("\u{feff}{\"message\":\"m\"}", None, "m"),
            ("", None, ""),
        ] {
            let body = body(text);
            assert_eq!((body.code().as_deref(), body.message()), (code, message), "{text}");
        }
    }

    #[test]
    fn words_are_short_and_hold_no_key() {
        let message = |text: &str| body(text).shown_message();
        assert_eq!(
            message(r#"{"error":{"message":"Incorrect API key provided: sk-abc\nsorry"}}"#).as_deref(),
            Some("Incorrect API key provided: [key] sorry")
        );
        assert_eq!(
            message(r#"{"error":{"message":"Incorrect API key provided: sk-abc*def. It is shown once."}}"#).as_deref(),
            Some("Incorrect API key provided: [key]. It is shown once.")
        );
        assert_eq!(message("<html>no</html>"), None);
        assert_eq!(message(r#"{"error":{"message":"\u001b[31mred\u001b]0;x\u0007"}}"#).as_deref(), Some("[31mred]0;x"));
        let long = message(&format!("{}é", "a".repeat(LONGEST_MESSAGE - 1))).expect("a message");
        assert_eq!(long, "a".repeat(LONGEST_MESSAGE - 1));
    }

    #[test]
    fn a_page_is_quoted_without_its_markup() {
        for (page, words) in [
            (
                "<!doctype html><html><head><title>403</title><STYLE>p{x}</style></head>\n<body><!-- a > b --><h1>Access denied</h1>\
                 Your address is banned.<script>var a = '<b>';</script></body></html>",
                Some("403 Access denied Your address is banned."),
            ),
            ("<html><body></body></html>", None),
            ("<h1>cut o", Some("cut o")),
            ("<h1", None),
        ] {
            assert_eq!(body(page).shown_page().as_deref(), words, "{page}");
        }
    }

    #[test]
    fn values_that_no_step_reads_are_not_kept() {
        let wanted = Wanted { keys: None, arrays: false };
        let text = r#"{"data":[{"embedding":[0.1,0.2]}],"choices":[{"finish_reason":"stop","message":{"content":"x"}}],
            "usage":{"prompt_tokens":3}}"#;
        let root = Body::of_success(text.as_bytes(), "", wanted).root;
        assert_eq!(root.get("choices"), Some(&serde_json::json!([{"finish_reason": "stop"}])));
        assert!(root.contains_key("usage") && !root.contains_key("data"));
    }

    #[test]
    fn a_success_without_a_key_that_counts_is_not_read() {
        let keys = ["error".to_owned()];
        let kind = |text: &str| Body::of_success(text.as_bytes(), "", Wanted { keys: Some(&keys), arrays: false }).kind;
        assert_eq!(kind(r#"{"data":"error"#), Kind::Unread);
        assert_eq!(kind(r#"{"error":null}"#), Kind::Object);
        assert_eq!(kind(""), Kind::Nothing);
        assert_eq!(kind("data: {}\n\n"), Kind::Stream);
        for text in [r#"{"a":{"b":7}}"#, "\r\n\u{feff}{\"a\":{\"b\":7}}"] {
            let unread = Body::of_success(text.as_bytes(), "", Wanted { keys: Some(&keys), arrays: false });
            assert_eq!((unread.kind, unread.is_json()), (Kind::Unread, true), "{text}");
            assert_eq!(unread.at("/a/b"), Some(&serde_json::json!(7)), "unless a rule asks for it");
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>, json in r#"[\[{"errorcdmsag:,0-9}\]]{0,60}"#) {
            for bytes in [&bytes[..], json.as_bytes()] {
                let body = Body::of_refusal(bytes, "");
                Body::of_success(bytes, "", Wanted { keys: None, arrays: true });
                body.code();
                body.shown_message();
                body.codes().count();
            }
        }
    }
}
