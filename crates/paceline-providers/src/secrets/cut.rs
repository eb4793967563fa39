//! A key that is cut off: its beginning, where the text, the field or the answer that holds it ends too soon. Providers show a
//! few letters of a key on purpose, and those stay, as does the user name of a login.

use std::ops::Range;

use memchr::memmem::Finder;

use super::{before_backslashes, looks_random, spelling};

/// A shorter beginning is what providers show of a key, so that a person knows it again.
const SHORTEST: usize = 12;

/// So many letters of a key of that length give it away: half of it, and no fewer than are shown on purpose.
fn least(len: usize) -> usize {
    len.div_ceil(2).max(SHORTEST).min(len)
}

/// A key, or one spelling of it.
pub(super) struct Key {
    pub(super) text: Vec<u8>,
    /// So many letters at its beginning are no secret: of a login the user name and the colon.
    pub(super) name: usize,
}

impl Key {
    /// One that is secret from its first letter on.
    pub(super) fn new(text: &[u8]) -> Self {
        Self { text: text.into(), name: 0 }
    }

    /// A login, and the password in it.
    pub(super) fn of_login(login: Vec<u8>) -> (Self, Option<Self>) {
        let Some(colon) = login.iter().position(|byte| *byte == b':') else { return (Self::new(&login), None) };
        let (name, password) = (&login[..colon], &login[colon + 1..]);
        // Some APIs have their key in the place of the name, before nothing or a word, such as `api_token`.
        let is_word = password.iter().all(|byte| byte.is_ascii_lowercase() || *byte == b'_');
        let is_name_secret =
            password.len() < super::SHORTEST || (is_word && str::from_utf8(name).is_ok_and(looks_random));
        let password = Self::new(password);
        (Self { name: if is_name_secret { 0 } else { colon + 1 }, text: login }, Some(password))
    }

    /// In another spelling, in which each letter takes as much as any other.
    pub(super) fn spelled(&self, text: Vec<u8>) -> Self {
        Self { name: (self.name * text.len()).div_ceil(self.text.len().max(1)), text }
    }

    /// One that holds percent-encoding without it.
    pub(super) fn decoded(&self) -> Option<Self> {
        let name = spelling::decoded(&self.text[..self.name]).map_or(self.name, |name| name.len());
        Some(Self { text: spelling::decoded(&self.text)?, name })
    }

    /// So many letters of it give it away: of a login as many of its password as are shown on purpose.
    fn least(&self) -> usize {
        let of_login = if self.name > 0 { self.name + SHORTEST } else { 0 };
        least(self.text.len()).max(of_login).min(self.text.len())
    }
}

/// One spelling of a key.
#[derive(Clone)]
pub(super) struct Spelling {
    pub(super) whole: Finder<'static>,
    /// The least of it that is hidden. It stands wherever the whole does, so a text without it needs no other search.
    pub(super) head: Finder<'static>,
}

impl Spelling {
    pub(super) fn of(key: &Key) -> Self {
        let finder = |text: &[u8]| Finder::new(text).into_owned();
        Self { whole: finder(&key.text), head: finder(&key.text[..key.least()]) }
    }

    /// The beginning of the key where it is cut off, letter by letter. The whole key is in the text no more.
    pub(super) fn cut_in(&self, text: &[u8], is_last: bool) -> Option<Range<usize>> {
        let mut from = 0;
        while let Some(at) = self.head.find(&text[from..]).map(|at| from + at) {
            let end =
                at + self.whole.needle().iter().zip(&text[at..]).take_while(|(of_key, byte)| of_key == byte).count();
            if is_end(text, end, is_last) {
                return Some(before_backslashes(text, at)..end);
            }
            from = at + 1;
        }
        None
    }

    /// The same in a text with escapes.
    pub(super) fn cut_in_escapes(&self, text: &[u8], is_last: bool) -> Option<Range<usize>> {
        let mut from = 0;
        while let Some(head) = spelling::find(self.head.needle(), &text[from..]) {
            let start = from + head.start;
            let end = start + spelling::begun_at(self.whole.needle(), &text[start..]);
            if is_end(text, end, is_last) {
                return Some(start..end);
            }
            from += head.end;
        }
        None
    }
}

/// Whether a word ends there: what goes on in letters of keys is another key, or one whose rest comes in the next part.
fn is_end(text: &[u8], at: usize, is_last: bool) -> bool {
    text.get(at).map_or(is_last, |next| !next.is_ascii_alphanumeric() && !matches!(next, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue};

    use crate::secrets::Secrets;

    /// 37 letters.
    const KEY: &str = "sk-UPSTREAMSECRET-oa-0123456789abcdef";

    fn secrets(key: &str) -> Secrets {
        Secrets::of([&HeaderValue::from_str(key).unwrap()])
    }

    fn removed(key: &str, text: &str) -> String {
        secrets(key).removed_from_text(text.to_owned())
    }

    #[test]
    fn half_of_a_key_and_no_less_is_taken_out_where_it_is_cut_off() {
        for (len, is_hidden) in [(8, false), (12, false), (18, false), (19, true), (30, true), (36, true), (37, true)] {
            let cut = &KEY[..len];
            for (before, behind) in
                [("", ""), ("{\"m\":\"you sent ", "\"}"), ("key=", "..."), ("'", "'"), ("\\n", "\\n")]
            {
                let expected = format!("{before}{}{behind}", if is_hidden { "[key]" } else { cut });
                assert_eq!(removed(KEY, &format!("{before}{cut}{behind}")), expected, "{len}");
            }
            let another = format!("{cut}x");
            assert_eq!(removed(KEY, &another), if len == 37 { "[key]x" } else { &another }, "another key begins so");
        }
        assert_eq!(
            removed("Bearer abcdefghijklmnop", "abcdefghijk; abcdefghijkl"),
            "abcdefghijk; [key]",
            "of 16 letters 12"
        );
        assert_eq!(removed("sk-secret-1", "sk-secret-"), "sk-secret-", "of 11 letters all");
        let twice = format!("{} {KEY} {}x {}", &KEY[..20], &KEY[..20], &KEY[..36]);
        assert_eq!(removed(KEY, &twice), format!("[key] [key] {}x [key]", &KEY[..20]));
    }

    #[test]
    fn so_is_one_in_another_spelling() {
        let key = "sk-abcd/efgh/ijkl/mnop/qrst";
        for cut in [
            r"sk-abcd\/efgh\/ijkl\/mn",
            r"sk-abcd/efgh/ijkl\/mn",
            "sk-abcd%2Fefgh%2Fijkl%2fmn",
            r"\u0073k-abcd/efgh/ijkl/mn",
            "736b2d616263642f656667682f696a6b6c2f6d6e",
            "c2stYWJjZC9lZmdoL2lqa2wv",
        ] {
            assert_eq!(removed(key, &format!("sent {cut}; no")), "sent [key]; no");
            assert_eq!(removed(key, cut), "[key]");
        }
        assert_eq!(removed(key, r"sk-abcd\/ef and sk-abcd\/efgh\/ijklm"), r"sk-abcd\/ef and sk-abcd\/efgh\/ijklm");
        let wide: Vec<u8> = KEY[..30].encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(secrets(KEY).removed_from(wide.into()), "[key]");
    }

    #[test]
    fn fields_lose_it_too() {
        let mut headers = HeaderMap::new();
        headers.insert("x-sent", HeaderValue::from_str(&format!("{}...", &KEY[..30])).unwrap());
        headers.insert("x-hint", HeaderValue::from_static("sk-UPSTR...cdef"));
        secrets(KEY).remove_from_headers(&mut headers);
        assert_eq!([&headers["x-sent"], &headers["x-hint"]], ["[key]...", "sk-UPSTR...cdef"]);
    }

    fn login(login: &str) -> String {
        format!("Basic {}", STANDARD.encode(login))
    }

    #[test]
    fn of_a_login_the_user_name_stays() {
        for (name, password) in [
            ("AC0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"),
            ("wordpress-administrator@example.com", "abcd EFGH 1234 ijkl MNOP 6789"),
            ("wordpress%2Dadministrator%40example.com", "abcd EFGH 1234 ijkl MNOP 6789"),
        ] {
            let header = login(&format!("{name}:{password}"));
            let hexadecimal: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
            for kept in [
                format!(r#"{{"account_sid":"{name}","uri":"\/Accounts\/{name}.json"}}"#),
                format!("{name}:"),
                format!("{name}:{}", &password[..11]),
                name.replace('@', "%40"),
                name.replace('-', r"\u002d").replace('0', r"\u0030"),
                STANDARD.encode(name),
                hexadecimal,
            ] {
                assert_eq!(removed(&header, &kept), kept);
            }
            for len in [12, 13, password.len()] {
                let cut = format!("{name}:{}", &password[..len]);
                assert_eq!(removed(&header, &format!("no: '{cut}'")), "no: '[key]'");
                assert_eq!(removed(&header, &cut.replace('a', r"\u0061").replace(':', r"\u003a")), "[key]");
                assert_eq!(removed(&header, &header[..6 + cut.len() * 4 / 3]), "Basic [key]");
            }
            assert_eq!(removed(&header, &format!("{name}, {password}")), format!("{name}, [key]"));
        }
    }

    #[test]
    fn of_one_with_the_key_as_its_name_the_name_goes() {
        for name in ["sk_live_0123456789abcdef01234567", "0123456789abcdef0123456789abcdef"] {
            for password in ["", "x", "api_tok", "api_token"] {
                let header = login(&format!("{name}:{password}"));
                for cut in [name, &name[..24]] {
                    assert_eq!(removed(&header, &format!("'{cut}' is wrong")), "'[key]' is wrong", "{password}");
                }
            }
        }
    }

    #[test]
    fn at_the_end_of_a_part_the_rest_may_come() {
        let (secrets, part) = (secrets(KEY), Bytes::from(format!("is {}", &KEY[..30])));
        assert_eq!(secrets.masked_in(part.clone(), false), part);
        assert_eq!(secrets.begun_in(&part), 30);
        assert_eq!(secrets.masked_in(part, true), format!("is [key]{}", "*".repeat(25)));
        let inside = Bytes::from(format!("is {}\n", &KEY[..30]));
        assert_eq!(secrets.masked_in(inside, false), format!("is [key]{}\n", "*".repeat(25)));
    }
}
