//! What must not leave the machine: keys, and what an error repeats of the payload.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};
use serde_json::Value;

/// Shorter texts of a payload are words that an error may have of its own.
const SHORTEST: usize = 6;

/// More texts of a payload are not looked for: an error repeats one of them, not thousands.
const MOST: usize = 10_000;

/// What looks like a secret, and what stands there instead. The first group of a pattern is kept.
static PATTERNS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let patterns = [
        // Keys and certificates.
        r"(?s)-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\z)",
        // JSON Web Tokens.
        r"\beyJ[\w-]+(?:\.[\w-]+){1,2}",
        // `Authorization: Bearer ...`, `api_key=...`, `"password": "..."`.
        r#"(?i)(cookie[\\"']*\s*[:=]\s*)[^\r\n"']+"#,
        r#"(?i)(authorization[\\"']*\s*[:=]\s*[\\"']*)(?:digest\s[^\r\n]+|(?:[a-z]+\s+)?[^\s"',;\\]+)"#,
        r#"(?i)(\b(?:bearer|basic)\s+)[^\s"',;]{4,}"#,
        // In quotes up to their end, also where JSON stands in JSON; else to the next space.
        r#"(?i)((?:(?:key|token|secret|password|passwd|signature|credential)s?[\\"']*\s*[:=]|\b(?:pwd|pass|auth)=)\s*)(?:\\*"[^"\\]*|'[^']*|[^\s"',;&\\]+)"#,
        r"((?:^|\s)(?:-u|--user)[ =])\S+",
        // Names and passwords in addresses, and their queries.
        r"(://)[^\s/?#]+@",
        r"(://hooks\.slack\.com/)\S+",
        r#"(://[^\s?"']+\?)[^\s"']+"#,
        // The keys of well-known services begin so.
        r"\b(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[a-z]|AKIA|ASIA|AIza|hf|gsk|dop_v1)[-_]?[\w-]{12,}",
        r"\b(?:sk|pk|rk)-[\w-]{4,}",
        // Addresses of people.
        r"[\w.+-]+@[\w-]+\.[\w.-]+",
        // Anything long without a space: hashes, tokens, encoded payloads.
        r"[A-Za-z0-9+/=_-]{40,}",
    ];
    patterns.iter().map(|pattern| Regex::new(pattern).expect("a constant pattern")).collect()
});

/// A text without what looks like a secret, and without the texts of `payload` that it repeats.
///
/// Patterns cannot know every secret: a password that is an English word stays. What is shown to a judge should be an
/// error's words, not an answer's body.
///
/// ```
/// let words = "user alice-4711: wrong key sk-abcdefghijklmnop";
/// assert_eq!(paceline_judge::redacted(words, r#"{"user":"alice-4711"}"#), "user [payload]: wrong key [redacted]");
/// ```
pub fn redacted(text: &str, payload: &str) -> String {
    Redactor::of(payload).redacted(text)
}

/// What is taken out of everything that a judge is told about one item.
#[derive(Debug)]
pub(crate) struct Redactor {
    /// The longest first, so that a part does not spoil the whole.
    payload: Vec<String>,
}

impl Redactor {
    pub(crate) fn of(payload: &str) -> Self {
        let mut texts = Vec::new();
        match serde_json::from_str(payload) {
            Ok(value) => gather(&value, &mut texts),
            Err(_) => texts.push(payload.trim().to_owned()),
        }
        texts.retain(|text| text.len() >= SHORTEST);
        texts.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        Self { payload: texts }
    }

    pub(crate) fn redacted(&self, text: &str) -> String {
        let mut text = Cow::Borrowed(text);
        for pattern in PATTERNS.iter() {
            if let Cow::Owned(without) = pattern.replace_all(&text, |found: &Captures<'_>| {
                let kept = found.get(1).map_or("", |kept| kept.as_str());
                format!("{kept}[redacted]")
            }) {
                text = Cow::Owned(without);
            }
        }
        for part in self.payload.iter().filter(|part| part.len() <= text.len()).cloned().collect::<Vec<_>>() {
            if text.contains(&part) {
                text = Cow::Owned(text.replace(&part, "[payload]"));
            }
        }
        text.into_owned()
    }

    /// Every text of a JSON value.
    pub(crate) fn redact(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.redacted(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.redact(value)),
            Value::Object(members) => members.values_mut().for_each(|value| self.redact(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Texts and numbers of a payload.
fn gather(value: &Value, texts: &mut Vec<String>) {
    if texts.len() >= MOST {
        return;
    }
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Number(number) => texts.push(number.to_string()),
        Value::Array(values) => values.iter().for_each(|value| gather(value, texts)),
        Value::Object(members) => members.values().for_each(|value| gather(value, texts)),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_payloads_are_taken_out_and_words_stay() {
        for (text, expected) in [
            ("server is busy, try again in 20 s", "server is busy, try again in 20 s"),
            ("Incorrect API key provided: sk-proj-abcdefghijkl1234.", "Incorrect API key provided: [redacted]."),
            ("Authorization: Bearer abc.def-ghi", "Authorization: [redacted]"),
            ("Proxy-Authorization: Negotiate YIIg, no", "Proxy-Authorization: [redacted], no"),
            (r#"Authorization: Digest username="u", response="6629fa"; no"#, "Authorization: [redacted]"),
            ("Cookie: a=1; session=x9\nno such page", "Cookie: [redacted]\nno such page"),
            (r#"said {\"api_key\":\"hunter22ZZ\",\"n\":1}"#, r#"said {\"api_key\":[redacted]\",\"n\":1}"#),
            (r#"password = "two words" is wrong"#, r#"password = [redacted]" is wrong"#),
            ("pwd=a1&auth=b2 failed, auth: try again", "pwd=[redacted]&auth=[redacted] failed, auth: try again"),
            ("curl -u me:pw https://u@ex.org:PASS@host/", "curl -u [redacted] https://[redacted]host/"),
            ("POST https://hooks.slack.com/services/T0/B0/x1 failed", "POST https://hooks.slack.com/[redacted] failed"),
            ("key sk-abc123 is no good", "key [redacted] is no good"),
            ("basic dXNlcjpwYXNz is wrong", "basic [redacted] is wrong"),
            (r#"{"api_key":"hunter22","model":"m"}"#, r#"{"api_key":[redacted]","model":"m"}"#),
            ("password=hunter2&user=x", "password=[redacted]&user=x"),
            ("GET https://me:pw@host/a?sig=12&b=3 failed", "GET https://[redacted]host/a?[redacted] failed"),
            ("jwt eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl expired", "jwt [redacted] expired"),
            ("mail to ann.lee@example.org bounced", "mail to [redacted] bounced"),
            ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- no", "[redacted] no"),
            ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", "[redacted]"),
            ("AKIAIOSFODNN7EXAMPLE is not authorized", "[redacted] is not authorized"),
            ("hash 0123456789abcdef0123456789abcdef01234567 differs", "hash [redacted] differs"),
            ("invalid value 'a secret plan' in field notes", "invalid value '[payload]' in field notes"),
            ("order 90210777 is locked", "order [payload] is locked"),
            ("the number 7 stays", "the number 7 stays"),
        ] {
            let payload = r#"{"notes":["a secret plan","of"],"order":90210777,"n":7}"#;
            assert_eq!(redacted(text, payload), expected);
        }
        assert_eq!(redacted("bad line: not json at all", "not json at all"), "bad line: [payload]");
    }

    #[test]
    fn a_large_hostile_text_takes_no_time_that_grows_faster_than_it() {
        let text = "://a@".repeat(20_000) + &"key=".repeat(20_000);
        assert!(redacted(&text, &text).contains("[redacted]"));
    }
}
