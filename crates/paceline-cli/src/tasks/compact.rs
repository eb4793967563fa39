//! JSON on one line, with every number and text as the user wrote it.

use serde_json::value::RawValue;

/// The text without blanks between its parts: the same for two texts that differ in nothing else.
///
/// # Errors
/// When it is no JSON.
pub(super) fn compact(text: &str) -> Result<String, serde_json::Error> {
    without(text, char::is_ascii_whitespace)
}

/// The text byte for byte, for its bytes may be signed, but without line breaks between its parts.
///
/// # Errors
/// When it is no JSON.
pub(super) fn on_one_line(text: &str) -> Result<String, serde_json::Error> {
    without(text, |c| matches!(c, '\n' | '\r'))
}

fn without(text: &str, is_left_out: impl Fn(&char) -> bool) -> Result<String, serde_json::Error> {
    let text: &RawValue = serde_json::from_str(text)?;
    let (mut is_text, mut is_escaped) = (false, false);
    let keep = |c: &char| {
        let keeps = is_text || !is_left_out(c);
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_text = !is_text,
            _ => {}
        }
        keeps
    };
    Ok(text.get().chars().filter(keep).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stands_between_the_parts_goes() {
        for (text, expected) in [
            (" { \"a\" : 1.10 ,\n\t\"b c\": [ 1e400, -0 ] } ", r#"{"a":1.10,"b c":[1e400,-0]}"#),
            (r#" "a \" b \\" "#, r#""a \" b \\""#),
            (r#"{"a":1, "a":12345678901234567890123}"#, r#"{"a":1,"a":12345678901234567890123}"#),
            (" null ", "null"),
        ] {
            assert_eq!(compact(text).expect(text), expected);
        }
        for text in ["", "{", "text", "{} {}", "'a'"] {
            assert!(compact(text).is_err() && on_one_line(text).is_err(), "{text}");
        }
        let signed = " {\"a\" : 1.10 ,\r\n\t\"b c\\n\": [ 1e400, -0 ] } ";
        assert_eq!(on_one_line(signed).expect("JSON"), "{\"a\" : 1.10 ,\t\"b c\\n\": [ 1e400, -0 ] }");
    }
}
