//! Inputs that are no requests yet: tables and lists of prompts become request bodies, one JSON object a line.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use paceline_providers::Provider;
use paceline_providers::secrets::hidden;
use serde_json::{Map, Value};

use crate::exit::Failure;
use crate::lines::asked::{Additions, Shape};
use crate::lines::columns;
use crate::lines::doubts::{FirstLines, Gaps, one_line};
use crate::lines::format::speaks_for_bodies;
use crate::lines::table::{self, Error, Place};
use crate::lines::template::Template;
use crate::run_args::FormatFlag;
use crate::run_args::RunArgs;

/// The longest answer where the API insists on a bound, in tokens.
const LONGEST_ANSWER: u64 = 1_024;

/// So many letters of a flag's value are told.
const LONGEST_QUOTE: usize = 60;

/// Requests have the bound in themselves.
const BOUND_WITHOUT_MODEL: &str = "--max-output-tokens is for prompts, which need a --model too; where lines are requests, put max_tokens, \
                                   or the key that the API has for it, into them";

const ID_COLUMN_WITHOUT_ROWS: &str = "--id-column names a column of a table (--format csv), with --prompt-template a key of JSON objects, or is \
                                      url for a list of web addresses; requests have a custom_id of their own";

/// What takes prompts.
const ENDPOINTS_OF_PROMPTS: &str = "name the API with --upstream (such as openai or anthropic), which has its endpoint and key, or expected \
                                    an --endpoint that ends in chat/completions, messages or responses";

/// The column that is the prompt where there is no template.
const PROMPT: &str = "prompt";

/// The key of a line that stands for a row of which no request can be made; its value says why. So such rows are listed, skipped
/// and counted like all other lines that cannot be sent.
pub(super) const INVALID_ROW: &str = "paceline:invalid_row";
/// Makes requests of rows.
pub(crate) struct Converter {
    rows: Rows,
    /// Neither a flag nor the name of the input says what a row is.
    guessed: bool,
    /// The column that names a row.
    id_column: Option<String>,
    requests: Requests,
}

/// What is made of a row.
enum Requests {
    /// A prompt is asked.
    Prompts(Box<Prompts>),
    /// The row is the body.
    Bodies,
    /// A column `url` makes it a line of the batch form; without one it is the body, for which the API has an endpoint or not.
    Lines { takes_bodies: bool },
    /// The address of a page to get.
    Pages,
}

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    /// A record below a header.
    Csv,
    /// A line that is a prompt.
    Text,
    /// A line that is a JSON object.
    Json,
}

/// Requests for answers to prompts.
struct Prompts {
    model: String,
    shape: Shape,
    /// The key of the body that bounds an answer, in tokens, and the bound.
    answer_bound: (&'static str, Option<u64>),
    /// None: the column `prompt` is the prompt.
    template: Option<Template>,
    additions: Additions,
}

impl Converter {
    /// The converter that the flags and the name of the input ask for; none for requests.
    ///
    /// # Errors
    /// Refuses flags that do not go together, an endpoint that takes no prompts, and a template that is none.
    pub(crate) fn of(args: &RunArgs, provider: Provider) -> Result<Option<Self>, Failure> {
        let requests = Self::requests(args, provider)?;
        let takes = |column: &String| match &requests {
            // Its lines have an address and nothing else.
            Some((_, Requests::Pages)) => column == "url",
            Some((rows, _)) => *rows != Rows::Text,
            None => false,
        };
        if !args.id_column.as_ref().is_none_or(takes) {
            return Err(Failure::refused(ID_COLUMN_WITHOUT_ROWS));
        }
        let is_named_so = matches!(kind(args.input()).as_deref(), Some("jsonl" | "json" | "ndjson"));
        let guessed = args.format == FormatFlag::Auto && !is_named_so;
        Ok(requests.map(|(rows, requests)| Self { rows, guessed, id_column: args.id_column.clone(), requests }))
    }

    /// What rows are, and what is made of them.
    fn requests(args: &RunArgs, provider: Provider) -> Result<Option<(Rows, Requests)>, Failure> {
        let RunArgs { model, prompt_template, max_output_tokens, .. } = args;
        if model.is_none() && max_output_tokens.is_some() {
            return Err(Failure::refused(BOUND_WITHOUT_MODEL));
        }
        let rows = match (args.format, kind(args.input()).as_deref()) {
            // A table with tabs has a header that says what is wrong.
            (FormatFlag::Csv, _) | (FormatFlag::Auto, Some("csv" | "tsv")) => Rows::Csv,
            (FormatFlag::Text, _) | (FormatFlag::Auto, Some("txt")) => Rows::Text,
            _ if prompt_template.is_some() => Rows::Json,
            _ if model.is_some() => {
                return Err(Failure::refused(
                    "--model makes requests from prompts: add --prompt-template, or use an input of --format csv or text",
                ));
            }
            _ => return Ok(None),
        };
        let Some(model) = model.clone() else {
            let takes_bodies = provider.endpoint().is_some();
            return match (rows, prompt_template) {
                (Rows::Csv, None) if args.endpoint.is_some() => Ok(Some((rows, Requests::Bodies))),
                (Rows::Csv, None) => Ok(Some((rows, Requests::Lines { takes_bodies }))),
                (Rows::Text, None) if args.endpoint.is_none() => Ok(Some((rows, Requests::Pages))),
                _ => Err(Failure::refused("prompts need a model: name it with --model")),
            };
        };
        let endpoint = args.endpoint.as_deref().or_else(|| provider.endpoint()).unwrap_or_default();
        let shape = Shape::of(endpoint).ok_or_else(|| {
            Failure::refused(format!(
                "--model makes requests from prompts, but how {} takes a prompt is unknown: {}",
                if endpoint.is_empty() {
                    "an API without an endpoint of its own".to_owned()
                } else {
                    format!("{endpoint:?}")
                },
                ENDPOINTS_OF_PROMPTS
            ))
        })?;
        let template = prompt_template.as_deref().map(Template::read).transpose().map_err(Failure::refused)?;
        let answer_bound = match shape {
            Shape::Chat => (provider.answer_bound(), args.max_output_tokens),
            Shape::Messages => ("max_tokens", args.max_output_tokens.or(Some(LONGEST_ANSWER))),
            Shape::Responses => ("max_output_tokens", args.max_output_tokens),
        };
        let bounds = max_output_tokens.map_or(&[][..], |_| shape.keys_of_bound());
        let bounds = bounds.iter().map(|key| (*key, "--max-output-tokens"));
        let system =
            args.system_prompt.as_ref().and_then(|_| shape.key_of_system()).map(|key| (key, "--system-prompt"));
        let taken = [("model", "--model"), (shape.key_of_prompt(), "the prompt")];
        let taken: Vec<_> = taken.into_iter().chain(bounds).chain(system).collect();
        let additions = Additions::of(args, &taken)?;
        let prompts = Prompts { model, shape, answer_bound, template, additions };
        Ok(Some((rows, Requests::Prompts(Box::new(prompts)))))
    }

    /// What a copy depends on beside its source.
    pub(crate) fn known_by(&self) -> String {
        let requests = match &self.requests {
            Requests::Prompts(prompts) => {
                let Prompts { model, shape, answer_bound, template, additions } = &**prompts;
                let template = template.as_ref().map(Template::text);
                format!("{model:?} {shape:?} {answer_bound:?} {template:?}{}", additions.known_by())
            }
            Requests::Bodies => "bodies".to_owned(),
            Requests::Lines { .. } => "lines".to_owned(),
            Requests::Pages => "pages".to_owned(),
        };
        let ids = self.id_column.as_ref().map(|column| format!(" named by {column:?}")).unwrap_or_default();
        blake3::hash(format!("{:?} {requests}{ids}", self.rows).as_bytes()).to_hex().to_string()
    }

    /// The flags that decide what a request is, for people.
    pub(crate) fn made_by(&self) -> BTreeMap<String, String> {
        let rows = match self.rows {
            Rows::Csv => "csv",
            Rows::Text => "text",
            Rows::Json => "JSON objects",
        };
        let of_prompts = match &self.requests {
            Requests::Prompts(prompts) => prompts.made_by(),
            Requests::Bodies => vec![("--endpoint", Some("set: rows are bodies".to_owned()))],
            Requests::Lines { .. } | Requests::Pages => Vec::new(),
        };
        let of_rows = [("--format", Some(rows.to_owned())), ("--id-column", self.id_column.as_deref().map(quoted))];
        let given = of_rows.into_iter().chain(of_prompts).filter_map(|(flag, value)| Some((flag.to_owned(), value?)));
        given.collect()
    }

    /// Writes the requests of all rows.
    ///
    /// # Errors
    /// What the file system says of either side, or a message about the whole table.
    pub(crate) fn copy(&self, from: impl Read, mut to: impl Write) -> Result<u64, Error> {
        let (mut copied, mut lines) = (0, 0);
        let (mut gaps, mut first_lines) = (Gaps::default(), FirstLines::default());
        let mut put = |place: Place, row: Result<Map<String, Value>, String>| {
            let gap = match (&row, &self.requests) {
                (Ok(row), Requests::Prompts(prompts)) => {
                    prompts.template.as_ref().and_then(|template| template.gap(row)).map(str::to_owned)
                }
                _ => None,
            };
            let request = self.request(place, row);
            self.refuse_too_much()?;
            // One that cannot be asked is told by itself.
            gaps.see(place, gap.filter(|_| !request.contains_key(INVALID_ROW)));
            // Blank lines are nothing. With them a request stands in the line of its row, by which errors and ids name it.
            let mut line = vec![b'\n'; usize::try_from(place.line.saturating_sub(lines + 1)).unwrap_or_default()];
            serde_json::to_writer(&mut line, &request).expect("it was made of JSON");
            line.push(b'\n');
            (copied, lines) = (copied + line.len() as u64, place.line);
            to.write_all(&line).map_err(Error::Write)
        };
        match self.rows {
            Rows::Csv => table::each_record(from, |names| self.check_header(names), put)?,
            Rows::Text => each_line(from, |line, text| {
                let row = |text: &str| Map::from_iter([(PROMPT.to_owned(), text.into())]);
                put(Place { row: None, line }, text.and_then(one_line).map(row))
            })?,
            Rows::Json => each_line(from, |line, text| {
                if self.guessed {
                    first_lines.see(&text)?;
                }
                let row = |text| {
                    serde_json::from_str(text).map_err(|error: serde_json::Error| {
                        // The line is told beside it, and this one would be its only one.
                        let why = error.to_string();
                        let why = why.split(" at line ").next().unwrap_or_default();
                        format!("expected a JSON object: {why} at column {}", error.column())
                    })
                };
                put(Place { row: None, line }, text.and_then(row))
            })?,
        }
        first_lines.check()?;
        gaps.tell();
        Ok(copied)
    }

    /// Refuses a template that does too much for many rows: each of them takes its time, and none makes a prompt.
    fn refuse_too_much(&self) -> Result<(), Error> {
        let Requests::Prompts(prompts) = &self.requests else { return Ok(()) };
        prompts.template.as_ref().map_or(Ok(()), Template::refuse_too_much).map_err(Error::Table)
    }

    /// What an input that has no rows should hold.
    pub(crate) const fn expected(&self) -> &'static str {
        match self.rows {
            Rows::Csv => "a header, and below it a row for each request",
            Rows::Text => "one prompt or web address a line",
            Rows::Json => "one JSON object a line",
        }
    }

    /// Refuses a header without the columns that requests need. Programs for tables write `URL` too.
    fn check_header(&self, names: &mut [String]) -> Result<(), Error> {
        let columns = names.join(", ");
        self.check_columns(names)?;
        let is_named = |id: &str| names.iter().any(|name| name == id || *name == id.to_ascii_lowercase());
        match &self.id_column {
            Some(column) if !is_named(column) => {
                let message =
                    format!("it has no column {column:?}, which --id-column names; its columns are {columns}");
                Err(Error::Table(message))
            }
            _ => Ok(()),
        }
    }

    fn check_columns(&self, names: &mut [String]) -> Result<(), Error> {
        let Requests::Lines { takes_bodies } = self.requests else { return Ok(()) };
        if names.iter().any(|name| name == "url") {
            return Ok(());
        }
        if names.iter().any(|name| name.eq_ignore_ascii_case("url")) {
            names.iter_mut().for_each(|name| name.make_ascii_lowercase());
        } else if !(takes_bodies && names.iter().any(|name| speaks_for_bodies(name))) {
            return Err(Error::Table(format!(
                "its header, line 1, is {:?}: expected a column url (and method, headers, body, metadata, custom_id, as needed), \
                 --endpoint PATH for rows that are bodies, or for prompts --model, and --prompt-template where no column is \
                 called prompt",
                names.join(",")
            )));
        }
        Ok(())
    }

    /// What names a row; none where its line does, or its address.
    fn id_of(&self, row: &mut Map<String, Value>) -> Result<Option<Value>, String> {
        let is_page = matches!(self.requests, Requests::Pages);
        let Some(column) = self.id_column.as_ref().filter(|_| !is_page) else {
            return Ok(row.remove("custom_id").or_else(|| row.get("id").cloned()).filter(|id| id != ""));
        };
        // The header may have been written in capitals.
        let cell = row.get(column).or_else(|| row.get(&column.to_ascii_lowercase()));
        let id = cell.cloned().filter(|id| !id.is_null() && id != "");
        id.map(Some).ok_or_else(|| format!("nothing in {column}, the column that names it (--id-column)"))
    }

    /// The line of a row: its request, or what is wrong with it.
    fn request(&self, place: Place, row: Result<Map<String, Value>, String>) -> Map<String, Value> {
        let mut id = None;
        let request = row.and_then(|mut row| {
            if matches!(self.requests, Requests::Lines { .. }) {
                trim_cells(&mut row);
            }
            id = self.id_of(&mut row)?;
            let metadata = row.remove("metadata").filter(|metadata| metadata != "");
            let metadata =
                metadata.map(|cell| if self.rows == Rows::Csv { as_json(cell, Value::is_object) } else { cell });
            let mut request = match &self.requests {
                Requests::Prompts(prompts) => prompts.request(&row)?,
                Requests::Lines { .. } if row.contains_key("url") => batch_line(row),
                Requests::Bodies | Requests::Lines { .. } => row,
                Requests::Pages => {
                    let page = page(&row)?;
                    id = self.id_column.as_ref().and_then(|column| page.get(column)).cloned();
                    page
                }
            };
            request.extend(metadata.map(|metadata| ("metadata".to_owned(), metadata)));
            Ok(request)
        });
        // A row above a bad one of a table may get another line, and it is repaired as what it was called.
        let name = match place.row.filter(|_| request.is_err()) {
            Some(row) => format!("row-{row}"),
            None => format!("line-{}", place.line),
        };
        let mut line = request.unwrap_or_else(|message| {
            let message = place.row.map_or_else(|| message.clone(), |row| format!("row {row}: {message}"));
            Map::from_iter([(INVALID_ROW.to_owned(), message.into())])
        });
        line.insert("custom_id".to_owned(), id.unwrap_or_else(|| name.into()));
        line
    }
}

/// No address and no method has blanks at its ends.
fn trim_cells(row: &mut Map<String, Value>) {
    for name in ["url", "method"] {
        if let Some(Value::String(cell)) = row.get_mut(name) {
            *cell = cell.trim().to_owned();
        }
    }
}

/// A row as a line of the batch form: an empty cell is no value, and what can be JSON is JSON. Without a column for either, a
/// request has no body, and so it is a GET.
fn batch_line(row: Map<String, Value>) -> Map<String, Value> {
    let is_get = !row.contains_key("method") && !row.contains_key("body");
    let cells = row.into_iter().filter(|(_, cell)| cell != "").map(|(name, cell)| {
        let cell = if matches!(&*name, "headers" | "body") { as_json(cell, |_| true) } else { cell };
        (name, cell)
    });
    cells.chain(is_get.then(|| ("method".to_owned(), "GET".into()))).collect()
}

/// A line of a list as a request for the page at that address, which comes back with its result.
fn page(row: &Map<String, Value>) -> Result<Map<String, Value>, String> {
    let url = row.get(PROMPT).and_then(Value::as_str).unwrap_or_default().trim();
    // Without the line, so that all such lines count as one mistake.
    let wrong = match url {
        _ if url.contains("://") => None,
        _ if url.starts_with('#') => Some("a list of web addresses has no comments: remove the line"),
        _ if url.starts_with('/') => Some("a path is no whole address: write https:// and the host before it"),
        _ if url.contains('.') && !url.contains(char::is_whitespace) => {
            Some("a web address begins with http:// or https://: write that before it")
        }
        _ => Some("this is no web address such as https://example.com/x (for prompts, name a model with --model)"),
    };
    if let Some(wrong) = wrong {
        return Err(wrong.to_owned());
    }
    let metadata = Map::from_iter([("url".to_owned(), url.into())]);
    let members = [("url", url.into()), ("method", "GET".into()), ("metadata", metadata.into())];
    Ok(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// A cell as the JSON that it holds, where that is what the column takes; else its text.
fn as_json(cell: Value, takes: fn(&Value) -> bool) -> Value {
    let json = cell.as_str().and_then(|text| serde_json::from_str(text).ok());
    json.filter(takes).unwrap_or(cell)
}

/// What follows the last dot of a file's name, `.gz` left out, in small letters.
fn kind(input: &Path) -> Option<String> {
    let stem = input.file_stem().map(Path::new).filter(|_| input.extension().is_some_and(|end| end == "gz"));
    Some(stem.unwrap_or(input).extension()?.to_str()?.to_ascii_lowercase())
}

/// A value of a flag without what looks like a secret, of a long text its beginning; then with what tells it from others.
fn quoted(text: &str) -> String {
    let shown = hidden(text);
    let hash = || blake3::hash(text.as_bytes()).to_hex()[..8].to_owned();
    match shown.char_indices().nth(LONGEST_QUOTE) {
        None if shown == text => format!("{text:?}"),
        None => format!("{shown:?} (hash {})", hash()),
        Some((end, _)) => format!("{:?}... (hash {})", &shown[..end], hash()),
    }
}

impl Prompts {
    /// As of [`Converter::made_by`].
    fn made_by(&self) -> Vec<(&'static str, Option<String>)> {
        let Self { model, shape, answer_bound: (key, bound), template, additions } = self;
        let members: Map<String, Value> = additions.members().collect();
        vec![
            ("--model", Some(quoted(model))),
            ("--prompt-template", template.as_ref().map(|template| quoted(template.text()))),
            ("--max-output-tokens", bound.map(|bound| bound.to_string())),
            ("--body", (!members.is_empty()).then(|| quoted(&Value::from(members).to_string()))),
            ("--system-prompt", additions.system.as_deref().map(quoted)),
            ("the form of a request (by --upstream and --endpoint)", Some(format!("{shape:?} with {key}"))),
        ]
    }

    fn request(&self, row: &Map<String, Value>) -> Result<Map<String, Value>, String> {
        let prompt = self.prompt(row)?;
        if prompt.trim().is_empty() {
            Err("its prompt is empty".to_owned())
        } else {
            let model = ("model".to_owned(), self.model.as_str().into());
            let (key, bound) = self.answer_bound;
            let bound = bound.map(|bound| (key.to_owned(), bound.into()));
            let asked = self.shape.prompt(&prompt, self.additions.system.as_deref());
            // What --body says of the bound stands above the usual one.
            Ok([model].into_iter().chain(bound).chain(self.additions.members()).chain(asked).collect())
        }
    }

    fn prompt(&self, row: &Map<String, Value>) -> Result<String, String> {
        if let Some(template) = &self.template {
            return template.prompt(row);
        }
        let prompt = row.get(PROMPT).and_then(Value::as_str);
        prompt.map(str::to_owned).ok_or_else(|| {
            let (columns, what) =
                (columns::listed(row), if row.contains_key(PROMPT) { "no text in the" } else { "there is no" });
            format!("{what} column `prompt`, and no --prompt-template; the {columns}")
        })
    }
}

/// What to do with a list in another encoding.
const AS_UTF_8: &str = "save the list as UTF-8 (iconv -f latin1 -t utf-8)";

/// Lines that are not blank, counted with those that are; of one that is no text, what is wrong with it.
fn each_line(
    from: impl Read,
    mut see: impl FnMut(u64, Result<&str, String>) -> Result<(), Error>,
) -> Result<(), Error> {
    for (number, line) in (1..).zip(BufReader::new(from).split(b'\n')) {
        let line = line.map_err(Error::Read)?;
        match str::from_utf8(&line) {
            Err(_) => see(number, Err(format!("not UTF-8; {AS_UTF_8}")))?,
            Ok(line) => {
                let line = line.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(line).trim_end();
                if !line.is_empty() {
                    see(number, Ok(line))?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_told_without_a_key_that_stands_in_it() {
        let quotes = ["sk-proj-abcdefghijklmnopqrstuvwxyz0123456789", "sk-proj-zyxwvutsrqponmlkjihgfedcba9876543210"]
            .map(|key| quoted(&format!("user = {key}")));
        assert!(quotes.iter().all(|quote| !quote.contains("mnop") && !quote.contains("ponm")), "{quotes:?}");
        assert_ne!(quotes[0], quotes[1], "that it changed is told");
        assert_eq!(quoted("brief"), "\"brief\"");
    }
}
