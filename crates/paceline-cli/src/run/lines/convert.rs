//! Inputs that are no requests yet: tables and lists of prompts become request bodies, one JSON object a line.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;

use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use paceline_providers::Provider;
use serde_json::{Map, Value, json};

use crate::exit::Failure;
use crate::run::args::FormatFlag;
use crate::run::args::RunArgs;

/// The longest answer where the API insists on a bound, in tokens.
const LONGEST_ANSWER: u64 = 1_024;

/// The one template of an environment.
const PROMPT: &str = "prompt";

/// Makes requests of rows.
pub(crate) struct Converter {
    rows: Rows,
    /// None: a row is the body.
    prompts: Option<Box<Prompts>>,
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
    /// None: the column `prompt` is the prompt.
    template: Option<Template>,
}

struct Template {
    text: String,
    environment: Environment<'static>,
}

/// How a prompt is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Chat,
    Messages,
    Responses,
}

impl Converter {
    /// The converter that the flags and the name of the input ask for; none for requests.
    ///
    /// # Errors
    /// Refuses flags that do not go together, an endpoint that takes no prompts, and a template that is none.
    pub(crate) fn of(args: &RunArgs, provider: Provider) -> Result<Option<Self>, Failure> {
        let RunArgs { model, prompt_template, .. } = args;
        let rows = match (args.format, kind(&args.input)) {
            (FormatFlag::Csv, _) | (FormatFlag::Auto, Some("csv")) => Rows::Csv,
            (FormatFlag::Text, _) | (FormatFlag::Auto, Some("txt")) => Rows::Text,
            _ if prompt_template.is_some() => Rows::Json,
            _ if model.is_some() => {
                return Err(Failure::refused(
                    "--model makes requests of prompts: expected --prompt-template beside it, or an input of --format csv or text",
                ));
            }
            _ => return Ok(None),
        };
        let Some(model) = model.clone() else {
            return match (rows, prompt_template) {
                (Rows::Csv, None) => Ok(Some(Self { rows, prompts: None })),
                _ => Err(Failure::refused("prompts need a model: name it with --model")),
            };
        };
        let endpoint = args.endpoint.as_deref().or_else(|| provider.endpoint()).unwrap_or_default();
        let shape = Shape::of(endpoint).ok_or_else(|| {
            Failure::refused(format!(
                "--model makes requests for prompts, and it is not known how {endpoint:?} takes them: expected an --endpoint that \
                 ends in chat/completions, messages or responses"
            ))
        })?;
        let template = prompt_template.as_deref().map(Template::read).transpose().map_err(Failure::refused)?;
        Ok(Some(Self { rows, prompts: Some(Box::new(Prompts { model, shape, template })) }))
    }

    /// What a copy depends on beside its source.
    pub(crate) fn known_by(&self) -> String {
        let prompts = self
            .prompts
            .as_ref()
            .map(|prompts| (&prompts.model, prompts.shape, prompts.template.as_ref().map(|template| &template.text)));
        blake3::hash(format!("{:?} {prompts:?}", self.rows).as_bytes()).to_hex().to_string()
    }

    /// Writes the requests of all rows.
    ///
    /// # Errors
    /// What the file system says of either side, or a message about a row.
    pub(crate) fn copy(&self, from: impl Read, mut to: impl Write) -> Result<u64, Error> {
        let mut copied = 0;
        let mut put = |place: Place, row: Map<String, Value>| {
            let request = self.request(row).map_err(|message| Error::Row(format!("{place}: {message}")))?;
            let mut line = serde_json::to_vec(&request).expect("it was made of JSON");
            line.push(b'\n');
            copied += line.len() as u64;
            to.write_all(&line).map_err(Error::Write)
        };
        match self.rows {
            Rows::Csv => each_record(from, put)?,
            Rows::Text => each_line(from, |number, line| {
                put(Place { row: number, line: None }, Map::from_iter([(PROMPT.to_owned(), line.into())]))
            })?,
            Rows::Json => each_line(from, |number, line| {
                let row = serde_json::from_str(line);
                let row = row.map_err(|error| Error::Row(format!("row {number}: expected a JSON object: {error}")))?;
                put(Place { row: number, line: None }, row)
            })?,
        }
        Ok(copied)
    }

    fn request(&self, mut row: Map<String, Value>) -> Result<Map<String, Value>, String> {
        let id = row.remove("custom_id").or_else(|| row.get("id").cloned());
        let metadata = row.remove("metadata");
        let mut request = match &self.prompts {
            None => row,
            Some(prompts) => {
                let prompt = prompts.prompt(&row)?;
                if prompt.trim().is_empty() {
                    return Err("its prompt is empty".to_owned());
                }
                prompts.shape.request(&prompts.model, &prompt)
            }
        };
        request.extend(id.map(|id| ("custom_id".to_owned(), id)));
        request.extend(metadata.map(|metadata| ("metadata".to_owned(), metadata)));
        Ok(request)
    }
}

/// The position of a row.
#[derive(Clone, Copy)]
struct Place {
    /// From 1, a header left out.
    row: u64,
    /// Of a table, whose records may have several: that in which it begins.
    line: Option<u64>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {}", self.row)?;
        self.line.map_or(Ok(()), |line| write!(f, " (line {line})"))
    }
}

/// Why a copy was not made.
#[derive(Debug)]
pub(crate) enum Error {
    /// The source cannot be read.
    Read(std::io::Error),
    /// The copy cannot be written.
    Write(std::io::Error),
    /// A row is wrong.
    Row(String),
}

impl Shape {
    fn of(endpoint: &str) -> Option<Self> {
        let path = endpoint.split(['?', '#']).next().unwrap_or_default();
        let ends = [("chat/completions", Self::Chat), ("messages", Self::Messages), ("responses", Self::Responses)];
        ends.into_iter().find_map(|(end, shape)| path.ends_with(end).then_some(shape))
    }

    fn request(self, model: &str, prompt: &str) -> Map<String, Value> {
        let messages = json!([{"role": "user", "content": prompt}]);
        let request = match self {
            Self::Chat => json!({"model": model, "messages": messages}),
            Self::Messages => json!({"model": model, "max_tokens": LONGEST_ANSWER, "messages": messages}),
            Self::Responses => json!({"model": model, "input": prompt}),
        };
        let Value::Object(request) = request else { unreachable!("each is an object") };
        request
    }
}

/// What follows the last dot of a file's name, `.gz` left out.
fn kind(input: &Path) -> Option<&str> {
    let stem = input.file_stem().map(Path::new).filter(|_| input.extension().is_some_and(|end| end == "gz"));
    stem.unwrap_or(input).extension()?.to_str()
}

impl Template {
    /// From a file, or as it stands where it holds `{{`.
    fn read(given: &str) -> Result<Self, String> {
        let text = match std::fs::read_to_string(given) {
            Ok(text) => text,
            Err(_) if given.contains("{{") => given.to_owned(),
            Err(error) => {
                return Err(format!(
                    "--prompt-template {given}: expected a file, or a text such as 'Translate: {{{{ text }}}}' ({error})"
                ));
            }
        };
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        let added = environment.add_template_owned(PROMPT, text.clone());
        added.map_err(|error| format!("--prompt-template: {error}"))?;
        Ok(Self { text, environment })
    }
}

impl Prompts {
    fn prompt(&self, row: &Map<String, Value>) -> Result<String, String> {
        let columns = || row.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let Some(template) = &self.template else {
            let prompt = row.get(PROMPT).and_then(Value::as_str);
            return prompt.map(str::to_owned).ok_or_else(|| {
                format!("no text in a column prompt: name one with --prompt-template; it has {}", columns())
            });
        };
        let template = template.environment.get_template(PROMPT).expect("it was added");
        template.render(minijinja::value::Serde(row)).map_err(|error| {
            let missing = missing(&template, &error, row);
            let why =
                if missing.is_empty() { error.to_string() } else { format!("no value for {}", missing.join(", ")) };
            let line = error.line().map_or_else(String::new, |line| format!(" line {line}"));
            format!("--prompt-template{line}: {why}; the row has {}", columns())
        })
    }
}

/// The names in the line that could not be rendered for which the row has no value, as `{{ name }}`: the engine does not report
/// them.
fn missing(template: &minijinja::Template<'_, '_>, error: &minijinja::Error, row: &Map<String, Value>) -> Vec<String> {
    if error.kind() != ErrorKind::UndefinedError {
        return Vec::new();
    }
    let line = error.line().and_then(|line| template.source().lines().nth(line.checked_sub(1)?)).unwrap_or_default();
    let is_missing = |name: &String| {
        let mut parts = name.split('.');
        let first = parts.next().and_then(|first| row.get(first));
        line.contains(name.as_str()) && parts.try_fold(first, |value, part| Some(value?.get(part))).flatten().is_none()
    };
    let names: BTreeSet<String> = template.undeclared_variables(true).into_iter().filter(is_missing).collect();
    names.into_iter().map(|name| format!("{{{{ {name} }}}}")).collect()
}

fn each_record(
    from: impl Read,
    mut put: impl FnMut(Place, Map<String, Value>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut reader = csv::Reader::from_reader(Quotes::of(from));
    let names: Vec<String> = reader.headers().map_err(in_csv)?.iter().map(|name| name.trim().to_owned()).collect();
    let mut known = BTreeSet::new();
    if let Some(twice) = names.iter().find(|name| !known.insert(name.as_str())) {
        return Err(Error::Row(format!("its header names the column {twice:?} twice")));
    }
    for (number, record) in (1..).zip(reader.records()) {
        let record = record.map_err(in_csv)?;
        let values = record.iter().map(Value::from);
        let line = record.position().map(csv::Position::line);
        put(Place { row: number, line }, names.iter().cloned().zip(values).collect())?;
    }
    Ok(())
}

/// Passes a table on and follows its quotes: a parser that forgives a missing one makes one field of all rows behind it.
struct Quotes<R> {
    from: R,
    state: Quote,
    line: u64,
    /// The line in which the last quote was opened.
    opened: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quote {
    /// At the start of a field.
    Start,
    /// In a field without quotes.
    Bare,
    /// Behind a quote that is open.
    Open,
    /// Behind one that closes the field, or is the first of two that stand for one.
    Closed,
}

#[derive(Debug, thiserror::Error)]
enum WrongQuote {
    #[error("line {0}: a quote opens a field there and is never closed")]
    NeverClosed(u64),
    #[error(
        "line {line}: text behind a closing quote (it was opened in line {opened}); a quote in a field is written twice"
    )]
    TextBehind { line: u64, opened: u64 },
}

impl<R> Quotes<R> {
    const fn of(from: R) -> Self {
        Self { from, state: Quote::Start, line: 1, opened: 1 }
    }

    fn follow(&mut self, byte: u8) -> Result<(), WrongQuote> {
        self.state = match (self.state, byte) {
            (Quote::Open, b'"') => Quote::Closed,
            (Quote::Open, _) => Quote::Open,
            (Quote::Closed, b'"') => Quote::Open,
            (Quote::Start, b'"') => {
                self.opened = self.line;
                Quote::Open
            }
            (_, b',' | b'\n' | b'\r') => Quote::Start,
            (Quote::Closed, _) => return Err(WrongQuote::TextBehind { line: self.line, opened: self.opened }),
            // The mark at the front of a file that an editor has left is no text.
            (Quote::Start, 0xEF | 0xBB | 0xBF) if self.line == 1 => Quote::Start,
            (Quote::Start | Quote::Bare, _) => Quote::Bare,
        };
        self.line += u64::from(byte == b'\n');
        Ok(())
    }
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(buffer)?;
        if read == 0 && !buffer.is_empty() && self.state == Quote::Open {
            return Err(std::io::Error::other(WrongQuote::NeverClosed(self.opened)));
        }
        buffer[..read].iter().try_for_each(|byte| self.follow(*byte)).map_err(std::io::Error::other)?;
        Ok(read)
    }
}

fn in_csv(error: csv::Error) -> Error {
    let message = error.to_string();
    match error.into_kind() {
        csv::ErrorKind::Io(error) => match error.downcast::<WrongQuote>() {
            Ok(wrong) => Error::Row(wrong.to_string()),
            Err(error) => Error::Read(error),
        },
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            let line = pos.map_or(0, |pos| pos.line());
            Error::Row(format!("line {line}: expected {expected_len} columns, as the header has, and found {len}"))
        }
        csv::ErrorKind::Utf8 { pos, .. } => Error::Row(format!("line {}: no UTF-8", pos.map_or(0, |pos| pos.line()))),
        _ => Error::Row(message),
    }
}

/// Lines that are not blank, counted with those that are.
fn each_line(from: impl Read, mut see: impl FnMut(u64, &str) -> Result<(), Error>) -> Result<(), Error> {
    for (number, line) in (1..).zip(BufReader::new(from).lines()) {
        let line = line.map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => Error::Row(format!("row {number}: no UTF-8")),
            _ => Error::Read(error),
        })?;
        let line = line.strip_prefix('\u{feff}').filter(|_| number == 1).unwrap_or(&line).trim_end();
        if !line.is_empty() {
            see(number, line)?;
        }
    }
    Ok(())
}
