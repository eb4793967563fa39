//! The template of prompts, in the language of Jinja. What it does for a row is bounded, in time and in memory.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::merge_maps;
use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

use crate::lines::{columns, filters};

/// The one template of an environment.
const PROMPT: &str = "prompt";

/// What a template may do for a row: so many steps, or [`BYTES_OF_STEP`] that it builds in place of each. Four times the longest
/// line fits.
const STEPS: u64 = 4 << 20;

/// What the engine takes for a step, in bytes.
const BYTES_OF_STEP: u64 = 64;

/// After so many rows for which it does too much, the template is at fault, and not its rows.
const ROWS_TOO_MUCH: usize = 20;

/// The template of `--prompt-template`.
pub(super) struct Template {
    text: String,
    /// The columns that it names.
    names: BTreeSet<String>,
    environment: Environment<'static>,
    /// Rows for which it did too much.
    too_much: AtomicUsize,
}

impl Template {
    /// From a file, or as it stands where it holds `{{`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(given: &str) -> Result<Self, String> {
        let text = text_of(given)?;
        if !text.contains("{{") && !text.contains("{%") {
            return Err(format!(
                "--prompt-template {given}: it has no {{{{ name }}}}, so that all prompts would be the same; write a column's name so, \
                 as in 'Translate: {{{{ text }}}}'"
            ));
        }
        let mut environment = Environment::new();
        environment.set_fuel(Some(STEPS));
        environment.add_filter("truncate", filters::truncate);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        let added = environment.add_template_owned(PROMPT, text.clone());
        added.map_err(|error| {
            let advice = match text.matches("{{").count() > text.matches("}}").count() {
                true => "}} is missing",
                false => {
                    "write a column whose name is not a plain word (letters a to z, digits and _) as {{ row[\"its name\"] }}"
                }
            };
            format!("--prompt-template: {error}; {advice}")
        })?;
        refuse_without_a_row(&environment)?;
        let names = columns::named(&environment.get_template(PROMPT).expect("it was added"));
        Ok(Self { text, names, environment, too_much: AtomicUsize::new(0) })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// A column that it names in which a row has null or an empty text. What a template does on a condition is its own concern.
    pub(super) fn gap<'a>(&self, row: &'a Map<String, Value>) -> Option<&'a str> {
        let is_gap =
            |(name, cell): &(&String, &Value)| (cell.is_null() || *cell == "") && self.names.contains(name.as_str());
        let gap = (!self.text.contains("{%")).then(|| row.iter().find(is_gap)).flatten();
        gap.map(|(name, _)| name.as_str())
    }

    /// The prompt of a row.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn prompt(&self, row: &Map<String, Value>) -> Result<String, String> {
        let template = self.environment.get_template(PROMPT).expect("it was added");
        let names = minijinja::Value::from(minijinja::value::Serde(row));
        let whole = minijinja::Value::from_pairs([(columns::ROW, names.clone())]);
        template.render(merge_maps([names, whole])).map_err(|error| {
            let line = at_line(&error);
            if error.kind() == ErrorKind::OutOfFuel {
                self.too_much.fetch_add(1, Ordering::Relaxed);
                return format!("--prompt-template{line}: for this row {}", too_much());
            }
            let missing = columns::missing(&template, &error, row);
            let why =
                if missing.is_empty() { error.to_string() } else { format!("no value for {}", missing.join(", ")) };
            format!("--prompt-template{line}: {why}; the row's {}", columns::listed(row))
        })
    }

    /// Refuses one that did too much for many rows: each of them takes its time, and none makes a prompt.
    ///
    /// # Errors
    /// How many they are.
    pub(super) fn refuse_too_much(&self) -> Result<(), String> {
        match self.too_much.load(Ordering::Relaxed) {
            ..ROWS_TOO_MUCH => Ok(()),
            rows => Err(format!("--prompt-template: for {rows} rows {}", too_much())),
        }
    }
}

fn text_of(given: &str) -> Result<String, String> {
    match std::fs::read_to_string(given) {
        Ok(text) => Ok(text),
        Err(_) if given.contains("{{") => Ok(given.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && given.contains(['{', ' ']) => Err(format!(
            "--prompt-template {given}: it is no file, and a text names a column in two braces, as in 'Translate: {{{{ text }}}}'"
        )),
        Err(error) => Err(format!(
            "--prompt-template {given}: expected a file, or a text such as 'Translate: {{{{ text }}}}' ({error})"
        )),
    }
}

/// Refuses a template with a filter, a test or a function that there is not: the engine looks for them only as it renders,
/// and each row would be told as wrong. And one that does too much whatever the row.
fn refuse_without_a_row(environment: &Environment<'static>) -> Result<(), String> {
    let mut without_a_row = environment.clone();
    without_a_row.set_undefined_behavior(UndefinedBehavior::Chainable);
    let Err(error) = without_a_row.get_template(PROMPT).and_then(|template| template.render(())) else { return Ok(()) };
    match error.kind() {
        ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
            Err(format!("--prompt-template: the template is wrong: {error}"))
        }
        ErrorKind::OutOfFuel => Err(format!("--prompt-template{}: whatever the row, {}", at_line(&error), too_much())),
        // What else is wrong may be so without a row alone.
        _ => Ok(()),
    }
}

/// Where in the template it went wrong.
fn at_line(error: &minijinja::Error) -> String {
    error.line().map_or_else(String::new, |line| format!(" line {line}"))
}

/// What a template does that has no steps left.
fn too_much() -> String {
    format!(
        "the template takes more than {} million steps, or builds more than {} MiB",
        STEPS / 1_000_000,
        (STEPS * BYTES_OF_STEP) >> 20
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(text: &str) -> Map<String, Value> {
        let Value::Object(row) = json!({"text": text, "count": 40}) else { unreachable!("it is one") };
        row
    }

    fn read(template: &str) -> Template {
        Template::read(template).map_err(|why| format!("{template}: {why}")).expect("a template")
    }

    const TOO_MUCH: &str = "the template takes more than 4 million steps, or builds more than 256 MiB";

    #[test]
    fn a_template_that_builds_a_gigabyte_or_does_not_end_is_stopped_at_its_line() {
        for template in [
            // A text that is doubled for each letter.
            "{% set of = namespace(all=text) %}\n{% for _ in range(count) %}{% set of.all = of.all ~ of.all %}{% endfor %}{{ of.all }}",
            "\n{{ text * 1000000000 }}",
            "\n{% for a in range(count * 200) %}{% for b in range(count * 200) %}{{ text }}{% endfor %}{% endfor %}",
            "\n{% set all %}{% for a in range(count * 200) %}{{ text * 100000 }}{% endfor %}{% endset %}{{ all | length }}",
            "\n{{ range(count * 200) | join(text * 10000000) }}",
        ] {
            let template = read(template);
            let why = template.prompt(&row("0123456789")).expect_err("it is stopped");
            assert_eq!(why, format!("--prompt-template line 2: for this row {TOO_MUCH}"));
            let few =
                template.prompt(&Map::from_iter([("text".to_owned(), "".into()), ("count".to_owned(), 0.into())]));
            assert!(few.is_ok(), "{few:?}");
        }
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}{{ text }}";
        let why = Template::read(endless).err().expect("it is refused");
        assert_eq!(why, format!("--prompt-template line 1: whatever the row, {TOO_MUCH}"));
    }

    #[test]
    fn the_longest_line_fits_and_many_rows_that_do_not_refuse_the_template() {
        let longest = "x".repeat(60 << 20);
        assert_eq!(read("{{ text | trim }}").prompt(&row(&longest)).map(|prompt| prompt.len()), Ok(60 << 20));

        let template = read("{% for _ in range(count * 200) %}{{ text * 100000 }}{% endfor %}");
        for number in 1..=ROWS_TOO_MUCH {
            assert!(template.prompt(&row("0123456789")).is_err());
            assert_eq!(template.refuse_too_much().is_err(), number == ROWS_TOO_MUCH, "{number}");
        }
        assert_eq!(template.refuse_too_much(), Err(format!("--prompt-template: for 20 rows {TOO_MUCH}")));
    }
}
