//! Filters of Jinja in templates of prompts that the engine leaves to its users.

use minijinja::value::Kwargs;
use minijinja::{Error, Value};

/// What `truncate` keeps without a number.
const LENGTH: usize = 255;

/// A text that is that much longer stays whole.
const LEEWAY: usize = 5;

/// `{{ text | truncate(200) }}`: so many characters, the last of them `...`, and no part of a word unless `killwords` says so.
pub(super) fn truncate(
    text: &Value,
    length: Option<usize>,
    killwords: Option<bool>,
    end: Option<&str>,
    options: Kwargs,
) -> Result<String, Error> {
    let length = length.or(options.get("length")?).unwrap_or(LENGTH);
    let killwords = killwords.or(options.get("killwords")?).unwrap_or(false);
    let end = end.or(options.get("end")?).unwrap_or("...");
    let leeway = options.get::<Option<usize>>("leeway")?.unwrap_or(LEEWAY);
    options.assert_all_used()?;
    let text = text.to_string();
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let mut kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    if let Some(word) = kept.rfind(' ').filter(|_| !killwords) {
        kept.truncate(word);
    }
    Ok(kept + end)
}

#[cfg(test)]
mod tests {
    use minijinja::{Environment, context};

    #[test]
    fn a_text_is_cut_as_in_jinja() {
        let mut environment = Environment::new();
        environment.add_filter("truncate", super::truncate);
        let cut = |filter: &str| {
            let template = format!("{{{{ text | truncate{filter} }}}}");
            environment.render_str(&template, context!(text => "foo bar b\u{e9}z qux"))
        };
        for (filter, expected) in [
            ("(9)", "foo..."),
            ("(9, true)", "foo ba..."),
            ("(9, killwords=true, end='')", "foo bar b"),
            ("(11)", "foo bar b\u{e9}z qux"),
            ("(11, leeway=0)", "foo bar..."),
            ("", "foo bar b\u{e9}z qux"),
        ] {
            assert_eq!(cut(filter).expect("it renders"), expected, "{filter}");
        }
        assert!(cut("(9, words=1)").is_err());
    }
}
