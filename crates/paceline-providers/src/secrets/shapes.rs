//! What looks like a secret, by its name or its shape, where the secret itself is not known.

use std::borrow::Cow;
use std::sync::{LazyLock, OnceLock};

use regex::{Captures, Regex};

/// What stands in place of a secret, in files, logs and messages.
pub const SECRET: &str = "[key]";

/// What names of headers, variables and settings call a secret, as a word of theirs.
const NAMES: [&str; 17] = [
    "auth",
    "authorization",
    "cookie",
    "credential",
    "hmac",
    "jwt",
    "key",
    "pass",
    "passphrase",
    "passwd",
    "password",
    "pwd",
    "secret",
    "session",
    "sig",
    "signature",
    "token",
];

/// A shape that secrets have. The groups of its pattern are kept around them.
struct Shape {
    /// A text has this shape only if it has one of each of these, in any case. Most texts have not, and a pattern that no text
    /// needs is never compiled, which takes longer than all else that a start of the program does.
    marks: &'static [&'static [&'static str]],
    pattern: String,
    compiled: OnceLock<Regex>,
}

impl Shape {
    fn new(marks: &'static [&'static [&'static str]], pattern: impl Into<String>) -> Self {
        Self { marks, pattern: pattern.into(), compiled: OnceLock::new() }
    }

    fn may_be_in(&self, lower_case: &str) -> bool {
        self.marks.iter().all(|one_of| one_of.iter().any(|mark| lower_case.contains(mark)))
    }

    fn hide_in(&self, text: &str) -> Option<String> {
        let regex = self.compiled.get_or_init(|| Regex::new(&self.pattern).expect("a constant pattern"));
        let kept = |found: &Captures<'_>, group| found.get(group).map_or("", |kept| kept.as_str()).to_owned();
        match regex.replace_all(text, |found: &Captures<'_>| kept(found, 1) + SECRET + &kept(found, 2)) {
            Cow::Owned(without) => Some(without),
            Cow::Borrowed(_) => None,
        }
    }
}

/// What stands between a name and its value.
const ASSIGNS: &[&str] = &[":", "="];

/// What looks like a secret. Letters and word boundaries are of ASCII, as secrets are: those of Unicode take four times as long
/// to compile.
static SHAPES: LazyLock<Vec<Shape>> = LazyLock::new(|| {
    let name = format!("(?:{})s?", NAMES.join("|"));
    // `api_key=`, `"password": `, also where JSON stands in JSON. Before a colon some of the names may be words of a sentence,
    // as in `auth: try again`; in the name of a header, as in `X-Auth: ...`, they are not.
    let clear = r#"(?:key|token|secret|password|passwd|signature|credential)s?[\\"']*\s*[:=]"#;
    let header = format!(r#"(?-u:\b)x-(?:[a-z0-9]+[-_])*{name}(?:[-_][a-z0-9]+)*[\\"']*\s*[:=]"#);
    let named = format!(r#"(?i)((?:{clear}|(?-u:\b){name}=|{header})\s*"#);
    let assigned: &[&[&str]] = &[&NAMES, ASSIGNS];
    vec![
        // Keys and certificates.
        Shape::new(&[&["-----begin "]], r"(?s)-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\z)"),
        // JSON Web Tokens.
        Shape::new(&[&["eyj"]], r"(?-u:\b)eyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){1,2}"),
        Shape::new(&[&["cookie"], ASSIGNS], r#"(?i)(cookie[\\"']*\s*[:=]\s*)[^\r\n"']+"#),
        Shape::new(
            &[&["authorization"], ASSIGNS],
            r#"(?i)(authorization[\\"']*\s*[:=]\s*[\\"']*)(?:digest\s[^\r\n]+|(?:[a-z]+\s+)?[^\s"',;\\]+)"#,
        ),
        Shape::new(&[&["bearer", "basic"]], r#"(?i)((?-u:\b)(?:bearer|basic)\s+)[^\s"',;\[]{4,}"#),
        // In quotes up to their end, else to the next space.
        Shape::new(assigned, format!(r#"{named}\\*")[^"\\]+"#)),
        Shape::new(assigned, format!(r#"{named}')[^']+"#)),
        Shape::new(assigned, format!(r#"{named})[^\s"',;&\\\[][^\s"',;&\\]*"#)),
        Shape::new(&[&["-u ", "-u=", "--user ", "--user="]], r"((?:^|\s)(?:-u|--user)[ =])\S+"),
        // Names and passwords in addresses, and their queries.
        Shape::new(&[&["://"], &["@"]], r"(://)[^\s/?#]+(@)"),
        Shape::new(&[&["://hooks.slack.com/"]], r"(://hooks\.slack\.com/)\S+"),
        Shape::new(&[&["://"], &["?"]], r#"(://[^\s?"']+\?)[^\s"']+"#),
        // The keys of well-known services begin so. Those of others may go on in Base64.
        Shape::new(
            &[&["sk", "pk", "rk", "gh", "github_pat", "glpat", "xox", "hf", "dop_v1"], &["-", "_"]],
            r"(?-u:\b)(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[a-z]|hf|gsk|dop_v1)[-_][A-Za-z0-9_-]{12,}(?:[+/=][A-Za-z0-9+/=_-]*)?",
        ),
        // Those of clients of our own gateway.
        Shape::new(&[&["pl_"]], r"(?-u:\b)pl_[0-9a-f]{12,}"),
        Shape::new(&[&["akia", "asia", "aiza"]], r"(?-u:\b)(?:AKIA|ASIA|AIza)[A-Za-z0-9_-]{12,}"),
        Shape::new(&[&["sk-", "pk-", "rk-"]], r"(?-u:\b)(?:sk|pk|rk)-[A-Za-z0-9_-]{4,}(?:[+/=][A-Za-z0-9+/=_-]*)?"),
    ]
});

/// A text with [`SECRET`] in place of what looks like a secret: values whose name says so, credentials and queries in
/// addresses, and texts in the shape of well-known keys. A password that is an English word stays.
///
/// ```
/// use paceline_providers::secrets::hidden;
/// assert_eq!(hidden("api_key = \"hunter2\""), "api_key = \"[key]\"");
/// assert_eq!(hidden("wrong key sk-abcdefghijklmnop"), "wrong key [key]");
/// assert_eq!(hidden("the server is busy"), "the server is busy");
/// ```
pub fn hidden(text: &str) -> Cow<'_, str> {
    let lower_case = text.to_ascii_lowercase();
    let mut text = Cow::Borrowed(text);
    for shape in SHAPES.iter().filter(|shape| shape.may_be_in(&lower_case)) {
        if let Some(without) = shape.hide_in(&text) {
            text = Cow::Owned(without);
        }
    }
    text
}

/// Whether a text has the shape of a secret.
pub fn looks_secret(text: &str) -> bool {
    matches!(hidden(text), Cow::Owned(_))
}

/// Whether a text is one long word of letters and digits, such as a key of a service that nothing is known of, or an id.
///
/// ```
/// use paceline_providers::secrets::looks_random;
/// assert!(looks_random("Zm9vMARK0123456789abcdef+0123456789/AAAA=="));
/// assert!(!looks_random("application/vnd.example.v3+json") && !looks_random("2024-10-15"));
/// ```
pub fn looks_random(text: &str) -> bool {
    let is_of_key = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=_-".contains(&byte);
    text.len() >= SHORTEST_RANDOM
        && text.bytes().all(is_of_key)
        && text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// 128 bits in hexadecimal digits.
const SHORTEST_RANDOM: usize = 32;

/// Whether the name of a header, a variable or a setting says that its value is a secret: `X-API-Key`, `auth_token`.
///
/// ```
/// use paceline_providers::secrets::is_secret_name;
/// assert!(is_secret_name("X-API-Key") && is_secret_name("apikey") && is_secret_name("X-Hub-Signature-256"));
/// assert!(!is_secret_name("X-Author") && !is_secret_name("X-Passenger"));
/// ```
pub fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| {
        let one = word.strip_suffix('s').unwrap_or(word);
        NAMES.contains(&word) || NAMES.contains(&one) || one.ends_with("key") || one.ends_with("token")
    })
}

/// Whether the value of a header is a secret, by the name of the header or by its own shape.
///
/// ```
/// use paceline_providers::secrets::is_secret_header;
/// assert!(is_secret_header("Cookie", "a=1") && is_secret_header("X-Thing", "0123456789abcdef0123456789abcdefAA"));
/// assert!(!is_secret_header("X-Thing", "scraper-7"));
/// ```
pub fn is_secret_header(name: &str, value: &str) -> bool {
    is_secret_name(name) || looks_secret(value) || looks_random(value.trim())
}

/// A header as users write it, `Name: value` or `Name=value`, with [`SECRET`] in place of a value that is [a
/// secret](is_secret_header). The scheme of `Authorization: Bearer ...` stays, and so does `Bearer` or `Basic` in others.
pub fn hidden_header(line: &str) -> Cow<'_, str> {
    let is_secret = |end: &usize| is_secret_header(&line[..*end], &line[end + 1..]);
    let Some(end) = line.find([':', '=']).filter(is_secret) else { return hidden(line) };
    let (name, value) = line.split_at(end + 1);
    let is_scheme = |word: &str| {
        name.to_ascii_lowercase().contains("authorization")
            || ["bearer", "basic"].contains(&&*word.to_ascii_lowercase())
    };
    let scheme = value.trim().split_once(' ').map(|(scheme, _)| scheme).filter(|scheme| is_scheme(scheme));
    let scheme = scheme.map(|scheme| format!("{scheme} ")).unwrap_or_default();
    Cow::Owned(format!("{name} {scheme}{SECRET}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of these a text of any shape can be made, and many that are almost of one.
    const PIECES: [&str; 32] = [
        "Authorization",
        "cookie",
        ":",
        "=",
        " ",
        "\"",
        "Bearer ",
        "basic ",
        "digest ",
        "x-",
        "Key",
        "token",
        "Sig",
        "session",
        "-u ",
        "--user=",
        "http://",
        "@",
        "?",
        "/",
        "hooks.slack.com/",
        "sk-",
        "ghp_",
        "xoxb-",
        "AKIA",
        "eyJ",
        "abcdefghijklmn",
        ".",
        "-----BEGIN KEY-----",
        "\n",
        "-----END KEY-----",
        "[key]",
    ];

    proptest! {
        #[test]
        fn a_text_without_the_marks_of_a_shape_has_no_such_secret(parts in prop::collection::vec(0..PIECES.len(), 1..12)) {
            let text: String = parts.into_iter().map(|part| PIECES[part]).collect();
            let mut by_every_pattern = text.clone();
            for shape in SHAPES.iter() {
                by_every_pattern = shape.hide_in(&by_every_pattern).unwrap_or(by_every_pattern);
            }
            prop_assert_eq!(hidden(&text), by_every_pattern);
        }
    }

    #[test]
    fn the_words_of_an_ordinary_command_line_need_no_pattern() {
        for word in
            ["run", "requests.jsonl", "--upstream", "--base-url", "http://127.0.0.1:8080/v1", "--limit", "500rpm"]
        {
            let asked = SHAPES.iter().filter(|shape| shape.may_be_in(word)).map(|shape| &*shape.pattern);
            assert_eq!(asked.collect::<Vec<_>>(), Vec::<&str>::new(), "{word}");
        }
    }

    #[test]
    fn names_of_secrets_are_known_by_their_whole_words() {
        for name in [
            "X-Auth",
            "X-Sig",
            "X-Session",
            "X-Pass",
            "X-Shopify-Hmac-Sha256",
            "X-Hub-Signature-256",
            "Cookie",
            "MY_KEYS",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["X-Passenger", "X-Author", "X-Signal", "X-Sessional", "X-Design", "Accept", "X-Request-Id"] {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn secrets_are_hidden_and_words_stay() {
        for (text, expected) in [
            ("server is busy, try again in 20 s", "server is busy, try again in 20 s"),
            ("Incorrect API key provided: sk-proj-abcdefghijkl1234.", "Incorrect API key provided: [key]."),
            ("Authorization: Bearer abc.def-ghi", "Authorization: [key]"),
            ("Proxy-Authorization: Negotiate YIIg, no", "Proxy-Authorization: [key], no"),
            (r#"Authorization: Digest username="u", response="6629fa"; no"#, "Authorization: [key]"),
            ("Cookie: a=1; session=x9\nno such page", "Cookie: [key]\nno such page"),
            (r#"said {\"api_key\":\"hunter22ZZ\",\"n\":1}"#, r#"said {\"api_key\":\"[key]\",\"n\":1}"#),
            (r#"password = "two words" is wrong"#, r#"password = "[key]" is wrong"#),
            ("secret = 'two words' is wrong", "secret = '[key]' is wrong"),
            ("X-Auth: a1 and X-Hub-Signature-256: sha256=b2", "X-Auth: [key] and X-Hub-Signature-256: [key]"),
            (r#"{"x-sig": "a1", "x-passenger": "me"}"#, r#"{"x-sig": "[key]", "x-passenger": "me"}"#),
            ("session=a1 ended, session: 2 of 3", "session=[key] ended, session: 2 of 3"),
            ("pwd=a1&auth=b2 failed, auth: try again", "pwd=[key]&auth=[key] failed, auth: try again"),
            ("curl -u me:pw https://u@ex.org:PASS@host/", "curl -u [key] https://[key]@host/"),
            ("POST https://hooks.slack.com/services/T0/B0/x1 failed", "POST https://hooks.slack.com/[key] failed"),
            ("key sk-abc123 is no good", "key [key] is no good"),
            ("basic dXNlcjpwYXNz is wrong", "basic [key] is wrong"),
            (r#"{"api_key":"hunter22","model":"m"}"#, r#"{"api_key":"[key]","model":"m"}"#),
            ("password=hunter2&user=x", "password=[key]&user=x"),
            ("GET https://me:pw@host/a?sig=12&b=3 failed", "GET https://[key]@host/a?[key] failed"),
            ("jwt eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl expired", "jwt [key] expired"),
            ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- no", "[key] no"),
            ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", "[key]"),
            ("AKIAIOSFODNN7EXAMPLE is not authorized", "[key] is not authorized"),
            ("no sk-MARK-abcdefghijkl/secret+more/AA== there", "no [key] there"),
            ("skip_the_next_item and hfabcdefghijklmnop", "skip_the_next_item and hfabcdefghijklmnop"),
        ] {
            assert_eq!(hidden(text), expected);
            assert_eq!(hidden(expected), expected, "once is enough");
            assert_eq!(looks_secret(text), text != expected);
        }
    }
}
