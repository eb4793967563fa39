//! JSON as short as it can be, with every number and text as the user wrote it.

use serde_json::value::RawValue;

/// The text without blanks between its parts.
///
/// # Errors
/// When it is no JSON.
pub(super) fn compact(text: &str) -> Result<String, serde_json::Error> {
    let text: &RawValue = serde_json::from_str(text)?;
    Ok(of_raw(text))
}

/// The same of what is known to be JSON.
pub(super) fn of_raw(text: &RawValue) -> String {
    let (mut is_text, mut is_escaped) = (false, false);
    let keep = |c: &char| {
        let keeps = is_text || !c.is_ascii_whitespace();
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => is_text = !is_text,
            _ => {}
        }
        keeps
    };
    text.get().chars().filter(keep).collect()
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
            assert!(compact(text).is_err(), "{text}");
        }
    }
}
