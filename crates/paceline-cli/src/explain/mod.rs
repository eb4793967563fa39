//! `paceline explain`: what one answer means, and why.

mod answer;
mod json;
mod text;
mod together;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use paceline::clock;
use paceline_config::{Config, Environment, Overrides, SettingError, Upstream, upstream_names};
use paceline_core::Timestamp;
use paceline_providers::{Dialect, Provider, Reading};

use self::answer::Saved;
use self::together::Together;
use crate::args::{Everywhere, Offered};
use crate::exit::{Failure, Status};
use crate::output;

/// More than any answer that `run` takes.
const LARGEST: u64 = 64 << 20;

/// `paceline explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub(crate) struct Args {
    /// The answer: status line, headers, body, as `curl -i` prints them [default: standard input]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Who answered: a provider, or an upstream of paceline.toml, whose rules then apply
    #[arg(long, visible_alias = "provider", value_name = "NAME", default_value = "generic", value_parser = Offered(upstream_names), hide_possible_values = true)]
    upstream: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// FILE has one answer a line, {"provider","status","headers","body"}; prints one JSON object for each
    #[arg(long)]
    jsonl: bool,
    /// The local clock, for saved answers without a Date of their own: RFC 3339 [default: now]
    #[arg(long, value_name = "TIME", value_parser = rfc3339)]
    now: Option<Timestamp>,
}

const EXAMPLE: &str = "\
  curl -si https://api.openai.com/v1/chat/completions ... | paceline explain --upstream openai";

/// Reads saved answers and prints what each means; sends nothing.
///
/// # Errors
/// Refuses an unknown provider, and what is no answer, naming the line.
pub(crate) fn command(args: &Args, everywhere: &Everywhere) -> Result<Status, Failure> {
    let reader = Reader::named(&args.upstream, everywhere)?;
    let now = args.now.unwrap_or_else(clock::wall);
    let name = args.file.as_deref().filter(|path| *path != Path::new("-"));
    let input: Box<dyn Read> = match name {
        None => Box::new(io::stdin()),
        Some(path) => Box::new(File::open(path).map_err(|error| unreadable(name, &error))?),
    };
    if args.jsonl {
        return lines(&reader, name, input, now);
    }
    let mut bytes = Vec::new();
    input.take(LARGEST + 1).read_to_end(&mut bytes).map_err(|error| unreadable(name, &error))?;
    if bytes.len() as u64 > LARGEST {
        return Err(Failure::refused(format!("{}: an answer of more than {} MiB", shown(name), LARGEST >> 20)));
    }
    let saved = Saved::parse(&bytes).map_err(|error| Failure::refused(format!("{}, {error}", shown(name))))?;
    let reading = reader.read(&saved, now);
    output::print(|out| match args.json {
        true => writeln!(out, "{}", json::of(&reading, &reader.together())),
        false => {
            let text = text::of(reader.dialect.provider(), &saved, &reading, &reader.together());
            out.write_all(text.as_bytes())
        }
    })?;
    Ok(Status::Success)
}

/// One JSON object for each line, as the lines come.
fn lines(reader: &Reader, name: Option<&Path>, input: Box<dyn Read>, now: Timestamp) -> Result<Status, Failure> {
    let mut input = BufReader::new(input);
    let mut failure = None;
    output::print(|out| {
        for number in 1_u64.. {
            let mut line = Vec::new();
            let wrong = |error: &dyn std::fmt::Display| {
                Some(Failure::refused(format!("{}, line {number}: {error}", shown(name))))
            };
            match input.by_ref().take(LARGEST).read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) if line.trim_ascii().is_empty() => continue,
                Ok(_) => {}
                Err(error) => {
                    failure = wrong(&error);
                    break;
                }
            }
            match answer::Line::parse(&line) {
                Ok(line) => {
                    let own = line.provider.as_deref().map(|name| reader.called(name));
                    let reader = own.as_ref().unwrap_or(reader);
                    writeln!(out, "{}", json::of(&reader.read(&line.saved, now), &reader.together()))?;
                }
                Err(error) => {
                    failure = wrong(&error);
                    break;
                }
            }
        }
        Ok(())
    })?;
    failure.map_or(Ok(Status::Success), Err)
}

/// Who answered, and what the configuration says about it.
#[derive(Clone)]
struct Reader {
    /// As the user calls it.
    name: String,
    dialect: Dialect,
    /// None for a provider that the configuration does not name.
    upstream: Option<Box<Upstream>>,
}

/// The address of an upstream that has none: an answer is read without a call.
const NOT_CALLED: &str = "http://127.0.0.1";

impl Reader {
    /// An upstream of the configuration, else a provider.
    fn named(name: &str, everywhere: &Everywhere) -> Result<Self, Failure> {
        let load = |base_url: Option<&str>| {
            let (config, base_url) = (everywhere.config.clone(), base_url.map(ToOwned::to_owned));
            let overrides = Overrides { config, base_url, upstream: Some(name.to_owned()), ..Overrides::default() };
            Config::load(Environment::from_iter(std::env::vars_os()), overrides)
        };
        let config = load(None).map_err(Failure::refused)?;
        if config.names().contains(&name) {
            let upstream = match config.upstream() {
                Err(SettingError::Missing { .. }) => load(Some(NOT_CALLED)).and_then(|config| config.upstream()),
                read => read,
            };
            let upstream = upstream.map_err(Failure::refused)?;
            let (dialect, upstream) = (upstream.dialect.clone(), Some(Box::new(upstream)));
            return Ok(Self { name: name.to_owned(), dialect, upstream });
        }
        let known = || Provider::ALL.map(Provider::as_str).join(", ");
        let provider = Provider::from_name(name).ok_or_else(|| {
            Failure::refused(format!(
                "--provider {name:?}: expected an upstream of paceline.toml or one of {}",
                known()
            ))
        })?;
        Ok(Self { name: name.to_owned(), dialect: provider.into(), upstream: None })
    }

    /// The same for a line that names its provider; an unknown one is as good as any.
    fn called(&self, name: &str) -> Self {
        match Provider::from_name(name) {
            _ if name == self.name => self.clone(),
            provider => Self { name: name.to_owned(), dialect: provider.unwrap_or_default().into(), upstream: None },
        }
    }

    /// Which calls wait together, and under which limits.
    fn together(&self) -> Together {
        Together::of(&self.dialect, self.upstream.as_deref())
    }

    fn read(&self, saved: &Saved, now: Timestamp) -> Reading {
        self.dialect.read(&saved.answer(), now)
    }
}

fn rfc3339(text: &str) -> Result<Timestamp, String> {
    crate::text::instant(text).ok_or_else(|| "expected a time such as 2026-11-20T12:00:00Z".to_owned())
}

fn shown(name: Option<&Path>) -> String {
    name.map_or_else(|| "standard input".to_owned(), |path| path.display().to_string())
}

fn unreadable(name: Option<&Path>, error: &io::Error) -> Failure {
    Failure::refused(format!("{} cannot be read: {error}", shown(name)))
}
