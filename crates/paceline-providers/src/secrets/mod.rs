//! A key must reach no file, no log and no screen: neither one that is known, in whatever spelling a server repeats it, nor what
//! only looks like one.

mod cut;
mod parts;
mod shapes;
mod spelling;

use std::fmt;
use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::memmem::Finder;

use cut::{Key, Spelling};
pub use shapes::{SECRET, hidden, hidden_header, is_secret_header, is_secret_name, looks_random, looks_secret};
use spelling::Escapes;

/// A shorter key is no secret, and taking it out would spoil answers that have nothing to do with it.
const SHORTEST: usize = 8;

/// Where a text has a key in one of its spellings.
type Find<'a> = dyn Fn(&Spelling, &[u8]) -> Option<Range<usize>> + 'a;

/// The keys that calls carry in their headers, to be taken out of what a server says: the values, of `Bearer KEY` only KEY,
/// of `Basic ...` also what it encodes and the password in it. They are found as they are, with the escapes of JSON, also of
/// JSON within JSON, with those of HTML, percent-encoded, in base64, in hexadecimal, and in UTF-16 and UTF-32, also where a key
/// holds what looks like an escape, such as `%3D`: then with and without it. [`SECRET`] takes their place, and that of a key that
/// is cut off, from half of it and 12 letters on, of a login from 12 letters of its password on. Keys below 8 bytes are words,
/// and stay.
#[derive(Clone, Default)]
pub struct Secrets {
    /// The longest first, so that a part does not spoil the whole.
    keys: Vec<Spelling>,
    /// In small letters, as they stand in the name of a header field.
    in_names: Vec<Finder<'static>>,
    escapes: Escapes,
}

impl Secrets {
    /// The keys of these values.
    pub fn of<'a>(values: impl IntoIterator<Item = &'a HeaderValue>) -> Self {
        let keys = values.into_iter().flat_map(|value| keys_in(value.as_bytes()));
        let keys = keys.flat_map(|key| key.decoded().into_iter().chain([key]));
        let keys = keys.filter(|key| key.text.len() >= SHORTEST);
        let spelled = |key: Key| {
            let encoded = spelling::in_base64(&key.text).chain(spelling::in_hexadecimal(&key.text));
            let encoded = encoded.chain(spelling::in_wide_letters(&key.text));
            encoded.map(|text| key.spelled(text)).collect::<Vec<_>>().into_iter().chain([key])
        };
        let mut all: Vec<Key> = keys.flat_map(spelled).collect();
        // Of one that is a login and a key by itself all is secret.
        all.sort_unstable_by(|a, b| {
            b.text.len().cmp(&a.text.len()).then_with(|| (&a.text, a.name).cmp(&(&b.text, b.name)))
        });
        all.dedup_by(|a, b| a.text == b.text);
        let in_names = all.iter().map(|key| Finder::new(&key.text.to_ascii_lowercase()).into_owned()).collect();
        let keys = all.iter().map(Spelling::of).collect();
        Self { keys, in_names, escapes: Escapes::of(all.iter().flat_map(|key| &key.text).copied()) }
    }

    /// A body without them. JSON stays JSON, where the key is not a number.
    pub fn removed_from(&self, body: Bytes) -> Bytes {
        self.replaced_in(body, true, |_, kept| kept.extend_from_slice(SECRET.as_bytes()))
    }

    /// A body of several texts, such as the events of a stream or lines of JSON, without a key that comes in parts, each in
    /// another text. One that stands in a single text is for [`removed_from`](Self::removed_from).
    pub fn removed_from_parts(&self, body: Bytes) -> Bytes {
        parts::without(body, |text| {
            let whole = self.keys.iter().flat_map(|key| all(text, |rest| as_it_is(&key.whole, rest)));
            let spelled = self.keys.iter().filter(|_| self.escapes.are_in(text));
            whole.chain(spelled.flat_map(|key| all(text, |rest| spelling::find(key.whole.needle(), rest)))).collect()
        })
    }

    /// A part of a body, or its last, of the same length without them: [`SECRET`] and asterisks take their place. For a body
    /// whose length is told already.
    pub fn masked_in(&self, part: Bytes, is_last: bool) -> Bytes {
        self.replaced_in(part, is_last, |len, kept| {
            kept.extend(SECRET.bytes().chain(std::iter::repeat(b'*')).take(len));
        })
    }

    /// How many bytes at the end of a part may be the beginning of a key, as it is or in escapes, whose rest is in the next part.
    pub fn begun_in(&self, part: &[u8]) -> usize {
        let begun = |key: &[u8]| {
            let longest = part.len().min(key.len().saturating_sub(1));
            (1..=longest).rev().find(|len| part.last() == Some(&key[len - 1]) && part.ends_with(&key[..*len]))
        };
        let keys = || self.keys.iter().map(|key| key.whole.needle());
        let as_it_is = keys().filter_map(begun).max().unwrap_or(0);
        let longest = self.keys.first().map_or(0, |key| spelling::longest_spelling(key.whole.needle().len()));
        let end = &part[part.len() - part.len().min(longest)..];
        if !self.escapes.may_be_in(end) {
            return as_it_is;
        }
        keys().map(|key| spelling::begun_in(key, end)).max().unwrap_or(0).max(as_it_is)
    }

    /// A body in which `mark` writes something for so many bytes of a key. Keys that are cut off come after the whole ones: one
    /// key may begin as another. What may go on in the next part is not cut off.
    fn replaced_in(&self, body: Bytes, is_last: bool, mark: impl Fn(usize, &mut Vec<u8>) + Copy) -> Bytes {
        if body.len() < self.shortest() {
            return body;
        }
        let (keys, is_begun) = (&self.keys, self.keys.iter().any(|key| key.head.find(&body).is_some()));
        let each =
            |body, find: &Find<'_>| keys.iter().fold(body, |body, key| without(body, |text| find(key, text), mark));
        let mut body = if is_begun { each(body, &|key, text| as_it_is(&key.whole, text)) } else { body };
        let is_spelled = |key: &Spelling| spelling::find(key.head.needle(), &body).is_some();
        if self.escapes.are_in(&body) && keys.iter().any(is_spelled) {
            body = each(body, &|key, text| spelling::find(key.whole.needle(), text));
            let begun = if is_last { 0 } else { self.begun_in(&body) };
            body = each(body, &|key, text| before(begun, text, key.cut_in_escapes(text, is_last)));
        }
        let begun = if is_last || !is_begun { 0 } else { self.begun_in(&body) };
        if is_begun { each(body, &|key, text| before(begun, text, key.cut_in(text, is_last))) } else { body }
    }

    /// The fewest bytes that are hidden.
    fn shortest(&self) -> usize {
        self.keys.iter().map(|key| key.head.needle().len()).min().unwrap_or(usize::MAX)
    }

    /// A text without them.
    pub fn removed_from_text(&self, text: String) -> String {
        String::from_utf8_lossy(&self.removed_from(text.into())).into_owned()
    }

    /// Headers without them. A field that has one in its name is left out.
    pub fn remove_from_headers(&self, headers: &mut HeaderMap) {
        // Most names are shorter than every key.
        let shortest = self.shortest();
        let has_one = |name: &&HeaderName| self.in_names.iter().any(|key| key.find(name.as_str().as_bytes()).is_some());
        let may_be = |name: &&HeaderName| name.as_str().len() >= shortest;
        let with_one: Vec<_> = headers.keys().filter(may_be).filter(has_one).cloned().collect();
        with_one.iter().for_each(|name| drop(headers.remove(name)));
        let may_have_one =
            |text: &[u8]| self.keys.iter().any(|key| key.head.find(text).is_some()) || self.escapes.are_in(text);
        for value in headers.values_mut().filter(|value| value.len() >= shortest && may_have_one(value.as_bytes())) {
            let said = Bytes::copy_from_slice(value.as_bytes());
            let kept = self.removed_from(said.clone());
            if kept != said {
                // What a header carried may be carried in parts, and so may the mark.
                *value = HeaderValue::from_maybe_shared(kept).unwrap_or(HeaderValue::from_static(SECRET));
            }
        }
    }
}

/// How many spellings there are, and none of them.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").field("spellings", &self.keys.len()).finish_non_exhaustive()
    }
}

/// What of a place stands before the last bytes of a text, so many of which may go on in the next part.
fn before(begun: usize, text: &[u8], place: Option<Range<usize>>) -> Option<Range<usize>> {
    let end = text.len().saturating_sub(begun);
    place.filter(|place| place.start < end).map(|place| place.start..place.end.min(end))
}

/// A key where it stands letter by letter. A backslash before it is part of an escape.
fn as_it_is(key: &Finder<'_>, text: &[u8]) -> Option<Range<usize>> {
    let at = key.find(text)?;
    Some(before_backslashes(text, at)..at + key.needle().len())
}

/// Where the backslashes before a place begin.
fn before_backslashes(text: &[u8], at: usize) -> usize {
    text[..at].iter().rposition(|byte| *byte != b'\\').map_or(0, |before| before + 1)
}

/// All that `find` finds in a text, again and again.
fn all(text: &[u8], find: impl Fn(&[u8]) -> Option<Range<usize>>) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let found = find(&text[from..])?;
        let found = from + found.start..from + found.end;
        from = found.end;
        Some(found)
    })
}

/// A body in which `mark` takes the place of what `find` finds in it, again and again.
fn without(body: Bytes, find: impl Fn(&[u8]) -> Option<Range<usize>>, mark: impl Fn(usize, &mut Vec<u8>)) -> Bytes {
    let mut found = all(&body, find).peekable();
    if found.peek().is_none() {
        drop(found);
        return body;
    }
    let (mut kept, mut end) = (Vec::with_capacity(body.len()), 0);
    for key in found {
        kept.extend_from_slice(&body[end..key.start]);
        mark(key.len(), &mut kept);
        end = key.end;
    }
    kept.extend_from_slice(&body[end..]);
    kept.into()
}

/// What is secret in the value of a header: the second of two words, if it is long enough for a key; else the whole value, and of
/// several words also what follows the first, which may be a scheme.
fn keys_in(value: &[u8]) -> Vec<Key> {
    let (first, rest) = match value.iter().position(|byte| *byte == b' ') {
        Some(blank) => (&value[..blank], &value[blank + 1..]),
        None => (value, &[][..]),
    };
    let is_key = rest.len() >= SHORTEST;
    let mut keys: Vec<Key> = is_key.then(|| Key::new(rest)).into_iter().collect();
    if !is_key || rest.contains(&b' ') {
        keys.push(Key::new(value));
    }
    if first.eq_ignore_ascii_case(b"basic")
        && let Ok(login) = STANDARD.decode(rest)
    {
        let (login, password) = Key::of_login(login);
        keys = keys.into_iter().map(|key| login.spelled(key.text)).chain(password).collect();
        keys.push(login);
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(header: &str, body: &str) -> String {
        let value = HeaderValue::from_str(header).unwrap();
        let kept = Secrets::of([&value]).removed_from(Bytes::copy_from_slice(body.as_bytes()));
        String::from_utf8(kept.to_vec()).unwrap()
    }

    #[test]
    fn a_key_is_taken_out_wherever_it_stands() {
        let body = r#"{"a":"sk-secret","b":"Bearer sk-secret","c":"sk-secresk-secret!"}"#;
        let clean = r#"{"a":"[key]","b":"Bearer [key]","c":"sk-secre[key]!"}"#;
        assert_eq!(removed("Bearer sk-secret", body), clean);
        assert_eq!(removed("sk-secret", body), clean);
        assert_eq!(removed("Bearer sk-other1", body), body);
        assert_eq!(removed("test", "a test"), "a test", "too short to be one");
        assert_eq!(removed("my own key", "it is my own key"), "it is [key]", "a key may have blanks");
        assert_eq!(removed("Key abcdefgh", "Key abcdefgh"), "Key [key]");
        let said = "no: correct horse battery";
        assert_eq!(removed("Bearer correct horse battery", said), "no: [key]", "also behind a scheme");
        assert_eq!(removed("correct horse battery", said), "no: [key]");
    }

    #[test]
    fn its_debug_form_has_no_key_in_letters_or_numbers() {
        let secrets = Secrets::of([&HeaderValue::from_static("Bearer sk-secret-of-mine")]);
        for printed in [format!("{secrets:?}"), format!("{secrets:#?}")] {
            let numbers = printed.split_whitespace().collect::<String>();
            assert!(printed.contains("spellings: "), "{printed}");
            assert!(!printed.contains("secret-of") && !numbers.contains("115,101,99"), "{printed}");
        }
    }

    #[test]
    fn a_key_is_taken_out_in_whatever_spelling_it_is_repeated() {
        let key = "Bearer abcd/efgh/SECRET+1234";
        for (said, kept) in [
            (r#"{"m":"no: abcd\/efgh\/SECRET+1234"}"#, r#"{"m":"no: [key]"}"#),
            (r#"{"m":"no: abcd/efgh\/SECRET\u002B1234\n"}"#, r#"{"m":"no: [key]\n"}"#),
            (r#"{"m":"\u0061bcd/efgh/\u0053ECRET+1234."}"#, r#"{"m":"[key]."}"#),
            (r#"{"m":"{\"k\":\"\\u0061bcd\\\/efgh\\\/SECRET+1234\"}"}"#, r#"{"m":"{\"k\":\"[key]\"}"}"#),
            (r#"{"m":"a\\abcd\/efgh/SECRET+1234"}"#, r#"{"m":"a[key]"}"#),
            ("GET /?key=abcd%2Fefgh%2fSECRET%2B1234&n=1", "GET /?key=[key]&n=1"),
            ("/login?next=%2F%3Fk%3Dabcd%252Fefgh%252FSECRET%252B1234", "/login?next=%2F%3Fk%3D[key]"),
            ("YWJjZC9lZmdoL1NFQ1JFVCsxMjM0", "[key]"),
            (r#"{"m":"0x616263642f656667682f5345435245542b31323334."}"#, r#"{"m":"0x[key]."}"#),
            ("616263642F656667682F5345435245542B313233340a", "[key]0a"),
            ("<p>abcd&#x2F;efgh&#047;SECRET&#43;1234 &amp; more</p>", "<p>[key] &amp; more</p>"),
            (r#"{"m":"abcd\u0026#x2F;efgh&sol;SECRET&plus;1234"}"#, r#"{"m":"[key]"}"#),
            ("abcd&amp;#x2f;efgh&amp;amp;sol;SECRET&#X2B;1234", "[key]"),
            ("abcd&#x2F;efgh&#x2F;SECRET&#xFFFFFFFF2B;1234", "[key]&#xFFFFFFFF2B;1234"),
            (r"aaaa\/abcd\/efgh\/SECRET+123", r"aaaa\/[key]"),
        ] {
            assert_eq!(removed(key, said), kept, "{said}");
        }
        for said in
            [r"back\slash-key1", r"back\\slash-key1", "back%5Cslash-key1", "back%5cslash%2dkey1", "back%255Cslash-key1"]
        {
            assert_eq!(removed(r"Bearer back\slash-key1", said), "[key]", "{said}");
        }
        for (login, word) in [("u:", "a"), ("us:", "b"), ("use:", "c")] {
            let said = STANDARD.encode(format!("{login}abcd/efgh/SECRET+1234{word}"));
            let kept = removed(key, &said.replace('/', r"\/"));
            assert!(kept.contains("[key]") && kept.len() < 16, "{login}: {kept}");
        }
    }

    #[test]
    fn a_key_that_holds_what_looks_like_an_escape_is_taken_out_in_whatever_spelling_it_is_repeated() {
        let percent = |text: &str| -> String {
            let encoded = text.bytes().map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' => char::from(byte).to_string(),
                _ => format!("%{byte:02X}"),
            });
            encoded.collect()
        };
        let json = |text: &str| {
            let quoted = serde_json::to_string(text).unwrap();
            quoted[1..quoted.len() - 1].to_owned()
        };
        let html = |text: &str| text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
        let numbered = |text: &str| text.replace('&', "&#38;").replace('%', "&#37;").replace('"', "&#x22;");
        let ascii = |text: &str| json(text).replace('&', r"\u0026").replace('%', r"\u0025").replace('"', r"\u0022");
        for key in [
            r#"sk-MARK8h-"abcdef%20"#,
            r#"sk-MARK8-"k/e+y%20"#,
            "sk-MARK8g-ab/c+dEf%3D%3D",
            "sk-MARK8c-abc%20def",
            "sk-MARK8i-abcdef%3D",
            r"sk-MARK8f-a\b\u0041c",
            r"sk-MARK8f-a\\b\x41c%5C",
            "sk-MARK8-a&quot;b&amp;c&#x22;",
            "%20%2520-secret-%25",
            r#"\"%22&quot;\u0022"#,
        ] {
            let spelled = [
                key.into(),
                json(key),
                json(key).replace('/', r"\/"),
                json(&json(key)),
                html(key),
                html(&html(key)),
                numbered(key),
                ascii(key),
                percent(key),
                percent(&percent(key)),
                percent(&json(key)),
                json(&percent(key)),
                json(&html(key)),
                html(&json(key)),
                numbered(&percent(key)),
                ascii(&percent(key)),
            ];
            for said in spelled {
                let kept = removed(key, &format!("it is ({said})!"));
                assert_eq!(kept, "it is ([key])!", "{key} as {said}");
            }
            // The last letters may stand for bytes behind it, too.
            assert!(removed(key, &STANDARD.encode(key)).len() <= "[key]A==".len(), "{key}");
        }
        assert_eq!(
            removed("sk-MARK8g-ab/c+dEf%3D%3D", "sk-MARK8g-ab\\/c+dEf=="),
            "[key]",
            "a server may decode what it is sent"
        );
        assert_eq!(
            removed("sk-abcdef%3D", "sk-abcdef%253d; sk-abcdef%25253D; sk-abcdef%2"),
            "[key]; [key]; sk-abcdef%2"
        );
    }

    #[test]
    fn of_basic_credentials_the_password_is_a_key() {
        let value = format!("Basic {}", STANDARD.encode("someone:open-sesame"));
        assert_eq!(removed(&value, "someone:open-sesame and open-sesame"), "[key] and [key]");
        assert_eq!(removed(&value, &value), "Basic [key]");
    }

    #[test]
    fn what_is_json_stays_json() {
        let keys = ["n/secret-key", "/secret-key/", "u0041secret", "\"quoted\"-key", r"back\slash-key"];
        for key in keys {
            let escaped: String = key.bytes().map(|byte| format!("\\u{byte:04x}")).collect();
            let spelled = serde_json::to_string(key).unwrap();
            let php = spelled.replace('/', r"\/");
            for text in [spelled, php, format!("\"{escaped}\""), serde_json::to_string(&format!("\n{key}\n")).unwrap()]
            {
                let kept = removed(key, &text);
                let read: String = serde_json::from_str(&kept).unwrap_or_else(|error| panic!("{kept}: {error}"));
                assert!(read.contains("[key]") && !read.contains("slash-key"), "{key} in {text}: {kept}");
            }
        }
    }

    #[test]
    fn headers_lose_them_too() {
        let (key, mut headers) = (HeaderValue::from_static("Bearer sk-secret"), HeaderMap::new());
        headers.insert("x-request-id", HeaderValue::from_static("of-sk-secret"));
        headers.insert("x-other", HeaderValue::from_static("7"));
        headers.insert("x-sk-secret-known", HeaderValue::from_static("yes"));
        Secrets::of([&key]).remove_from_headers(&mut headers);
        assert_eq!([&headers["x-request-id"], &headers["x-other"]], ["of-[key]", "7"]);
        assert_eq!(headers.len(), 2, "one with the key in its name");
        headers.insert("x-sk-aw3d9", HeaderValue::from_static("yes"));
        Secrets::of([&HeaderValue::from_static("sk-Aw3D9")]).remove_from_headers(&mut headers);
        assert_eq!(headers.len(), 2, "names have small letters alone");
    }

    #[test]
    fn a_key_is_taken_out_of_a_text_of_wide_letters() {
        let secrets = Secrets::of([&HeaderValue::from_static("Bearer sk-secret-1")]);
        let said = |key: &str| format!("{{\"m\":\"ü {key} used\"}}");
        let wide = |text: &str, make: fn(char) -> Vec<u8>| text.chars().flat_map(make).collect::<Vec<u8>>();
        let forms: [fn(char) -> Vec<u8>; 4] = [
            |letter| (letter as u16).to_le_bytes().into(),
            |letter| (letter as u16).to_be_bytes().into(),
            |letter| (letter as u32).to_le_bytes().into(),
            |letter| (letter as u32).to_be_bytes().into(),
        ];
        for make in forms {
            let text = Bytes::from(wide(&said("sk-secret-1"), make));
            let kept = secrets.masked_in(text.clone(), true);
            let (before, after) = (wide("{\"m\":\"ü ", make), wide(" used\"}", make));
            assert!(kept.starts_with(&before) && kept.ends_with(&after) && kept.len() == text.len());
            assert!(!kept.windows(2).any(|two| two == b"sk") && !kept.contains(&b'1'), "{kept:?}");
            let half = &text[..before.len() + 9];
            assert!(secrets.begun_in(half) >= 6, "its rest is in the next part");
        }
    }

    #[test]
    fn a_part_is_masked_at_its_length_and_its_end_may_be_the_beginning_of_a_key() {
        let secrets = Secrets::of([&HeaderValue::from_static("Bearer sk-secret-1")]);
        for (part, masked, begun) in [
            ("is sk-secret-1!", "is [key]******!", 0),
            ("{\"m\":\"\\u0073k-secret-1\"}", "{\"m\":\"[key]***********\"}", 0),
            ("no", "no", 0),
            ("is sk-sec", "is sk-sec", 6),
            ("is sk-secret-", "is sk-secret-", 10),
            ("kiosk", "kiosk", 2),
            ("s", "s", 1),
            ("is \\u0073k-sec", "is \\u0073k-sec", 11),
            ("is sk%2dsecret%2", "is sk%2dsecret%2", 13),
            ("sk-secret\\u", "sk-secret\\u", 11),
            ("is &#115", "is &#115", 5),
            ("is \\\\", "is \\\\", 2),
            ("sk-secret%2Da \\n", "sk-secret%2Da \\n", 0),
            ("a line\\nof words.", "a line\\nof words.", 0),
        ] {
            let kept = secrets.masked_in(Bytes::from_static(part.as_bytes()), false);
            assert_eq!((&*kept, kept.len()), (masked.as_bytes(), part.len()), "{part}");
            assert_eq!(secrets.begun_in(part.as_bytes()), begun, "{part}");
        }
        assert_eq!(Secrets::default().begun_in(b"s"), 0);
    }

    #[test]
    fn a_key_that_comes_in_parts_is_taken_out_of_each() {
        let value = HeaderValue::from_static("Bearer abcd/efgh/SECRET+1234");
        let removed = |body: &str| {
            let kept = Secrets::of([&value]).removed_from_parts(Bytes::copy_from_slice(body.as_bytes()));
            String::from_utf8(kept.to_vec()).unwrap()
        };
        for (body, kept) in [
            (
                "data: {\"x\":{\"text\":\"is abcd/ef\"}}\r\n\r\ndata:{\"x\": {\"text\" : \"gh/SEC\"},\"n\":\"RET\"}\n\ndata: {\"x\":{\"text\":\"RET+1234 ok\"}}\n\n",
                "data: {\"x\":{\"text\":\"is [key]\"}}\r\n\r\ndata:{\"x\": {\"text\" : \"\"},\"n\":\"RET\"}\n\ndata: {\"x\":{\"text\":\" ok\"}}\n\n",
            ),
            (
                "event: part\nid: 1\ndata: abcd/efgh/SEC\n\nevent: part\ndata: RET+1234\n\n",
                "event: part\nid: 1\ndata: [key]\n\nevent: part\ndata: \n\n",
            ),
            ("{\"t\":\"abcd\\/efgh\"}\n{\"t\":\"\\/SECRET\\u002b1234\"}\n", "{\"t\":\"[key]\"}\n{\"t\":\"\"}\n"),
            ("{\"t\":\"abcd/efgh\"}\n{\"t\":\"/SECRET \"}\n", "{\"t\":\"abcd/efgh\"}\n{\"t\":\"/SECRET \"}\n"),
            ("{\"t\":\"abcd/efgh/SECRET+12\n{\"t\":\"\\", "{\"t\":\"abcd/efgh/SECRET+12\n{\"t\":\"\\"),
        ] {
            assert_eq!(removed(body), kept, "{body}");
        }
    }

    #[test]
    fn a_hostile_body_takes_no_time_that_grows_faster_than_it() {
        for part in [
            r"\",
            "%25",
            r"abcd\\",
            r"\u0061bcd",
            r"\u005c",
            "a%2561",
            "amp;",
            "&amp;",
            "a&#x61;",
            "25",
            "%5C",
            r"\x5c",
            "abcd/efgh/SECx",
            r"abcd\/efgh\/SECx",
        ] {
            let body = part.repeat((1 << 15) / part.len());
            for key in ["abcd/efgh/SECRET+1234", "%25%2525%25/&amp;&amp;", r"\u005c\%5C%5C/u005c"] {
                assert_eq!(removed(key, &body).len(), body.len(), "{key} in {part}");
            }
        }
        let long = "abcdefghij".repeat(99) + "klmnopqrst";
        let body = r"\u0061".to_owned() + &format!("{}x", &long[..900]).repeat(36);
        assert_eq!(removed(&long, &body).len(), body.len());
    }
}
