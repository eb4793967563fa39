//! The columns that a template names: `{{ text }}`, and in the whole row `{{ row.text }}` and `{{ row["text"] }}`.

use std::collections::BTreeSet;

use minijinja::{Error, ErrorKind, Template};
use serde_json::{Map, Value};

/// The whole row, for columns whose names are no plain words; a column of that name comes first.
pub(super) const ROW: &str = "row";

/// The columns that a template names.
pub(super) fn named(template: &Template<'_, '_>) -> BTreeSet<String> {
    let plain = template.undeclared_variables(false).into_iter().filter(|name| name != ROW);
    plain.chain(in_row(template.source()).map(|(_, name)| name.to_owned())).collect()
}

/// The names in the line that could not be rendered for which the row has no value, as they stand there: the engine does not
/// report them.
pub(super) fn missing(template: &Template<'_, '_>, error: &Error, row: &Map<String, Value>) -> Vec<String> {
    if error.kind() != ErrorKind::UndefinedError {
        return Vec::new();
    }
    let line = error.line().and_then(|line| template.source().lines().nth(line.checked_sub(1)?)).unwrap_or_default();
    let is_missing = |name: &String| {
        let mut parts = name.split('.');
        let first = parts.next();
        let value = first.and_then(|first| row.get(first));
        (first != Some(ROW) || row.contains_key(ROW))
            && line.contains(name.as_str())
            && parts.try_fold(value, |value, part| Some(value?.get(part))).flatten().is_none()
    };
    let plain = template.undeclared_variables(true).into_iter().filter(is_missing);
    let of_row = in_row(line)
        .filter(|(_, name)| !row.contains_key(ROW) && !row.contains_key(*name))
        .map(|(written, _)| written.to_owned());
    let names: BTreeSet<String> = plain.chain(of_row).collect();
    names.into_iter().map(|name| format!("{{{{ {name} }}}}")).collect()
}

/// The columns of a row, for a message about it.
pub(super) fn listed(row: &Map<String, Value>) -> String {
    let are = if row.len() == 1 { "only column is" } else { "columns are" };
    format!("{are} {}", row.keys().map(String::as_str).collect::<Vec<_>>().join(", "))
}

/// The columns that a text takes of the whole row, each as it is written and by its name.
fn in_row(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    text.match_indices(ROW).filter_map(move |(at, _)| {
        if text[..at].ends_with(|before: char| is_of_name(before) || before == '.') {
            return None;
        }
        let rest = &text[at + ROW.len()..];
        let (skipped, name) = match rest.strip_prefix('.') {
            Some(name) => (1, &name[..name.find(|letter| !is_of_name(letter)).unwrap_or(name.len())]),
            None => {
                let inside = rest.strip_prefix('[')?.trim_start();
                let quote = inside.chars().next().filter(|quote| matches!(quote, '"' | '\''))?;
                let name = &inside[1..];
                (0, &name[..name.find(quote)?])
            }
        };
        let end = match skipped {
            0 => at + ROW.len() + rest.find(']')? + 1,
            _ => at + ROW.len() + skipped + name.len(),
        };
        Some((&text[at..end], name)).filter(|(_, name)| !name.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_the_whole_row_are_known_however_they_are_written() {
        for (text, expected) in [
            (
                r#"{{ row["my col"] }} {{ row['评论']|trim }}"#,
                &[(r#"row["my col"]"#, "my col"), ("row['评论']", "评论")][..],
            ),
            ("{{ row.text }}, {{ row.a.b }}", &[("row.text", "text"), ("row.a", "a")]),
            (r#"{{ row[ "a" ] }}"#, &[(r#"row[ "a" ]"#, "a")]),
            ("{{ row }} {{ arrow.x }} {{ x.row.y }} {{ row[name] }} row", &[]),
            (r#"{{ row["a }}"#, &[]),
        ] {
            assert_eq!(in_row(text).collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
