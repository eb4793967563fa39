//! `--extract`: one value of each answer, beside the whole answers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use paceline_store::{Paths, create_in_place_of};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::text;

/// Where the values are: `results.flat.jsonl` for `results.jsonl`.
pub(crate) fn path(paths: &Paths) -> PathBuf {
    let report = paths.report.as_os_str().to_string_lossy();
    PathBuf::from(report.strip_suffix("report.jsonl").unwrap_or(&report).to_owned() + "flat.jsonl")
}

/// Writes the value at `pointer` of each result's answer, null where it has none, and all of a fallback's result. Readers
/// see the old file or the new one. Warns where no answer has a value there, which a wrong pointer is the usual cause of.
///
/// # Errors
/// An error of the file system.
pub(crate) fn write(paths: &Paths, pointer: &str) -> io::Result<()> {
    let path = path(paths);
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = Path::new(&fresh);
    let written = create_in_place_of(&path, fresh).and_then(|file| fill(file, paths, pointer));
    let written = written.and_then(|values| std::fs::rename(fresh, &path).map(|()| values));
    if written.is_err() {
        // What is left of it is overwritten by the next.
        let _ = std::fs::remove_file(fresh);
    }
    let (Values { answers, found }, path) = (written?, path.display());
    match (answers, answers - found) {
        (0, _) => tracing::info!("{path} has no values: no item has an answer"),
        (_, 0) => tracing::info!("{path} has the values at {pointer}"),
        _ if found == 0 => tracing::warn!("no answer has a value at {pointer} (--extract): {path} has null for each"),
        (_, without) => {
            let [answers, without] = [answers, without].map(text::count);
            tracing::info!(
                "{path} has the values at {pointer}: of {answers} answers {without} have none there, and null"
            );
        }
    }
    Ok(())
}

/// Refuses to write the values over a file that is not of this job. `is_ours`: earlier runs of the job wrote them there, or the
/// user allows it.
///
/// # Errors
/// Names the file, and what to do.
pub(crate) fn refuse_other_file(paths: &Paths, is_ours: bool) -> Result<(), Failure> {
    let path = path(paths);
    let other =
        Paths::beside(&path).journal.filter(|journal| journal.exists() && paths.journal.as_ref() != Some(journal));
    let (path, why) = match other {
        Some(journal) => (path.display(), format!("the results of another job (its journal is {})", journal.display())),
        None if !is_ours && path.metadata().is_ok_and(|about| !about.is_file() || about.len() > 0) => {
            (path.display(), "none of this job's files".to_owned())
        }
        None => return Ok(()),
    };
    Err(Failure::refused(format!(
        "--extract would write {path} over, which is {why}: move that file, or choose another -o"
    )))
}

/// Whether the first answers of a run have a value at a pointer: a wrong one is told while it can be put right.
#[derive(Clone, Debug)]
pub(crate) struct FirstLook {
    pointer: String,
    /// Answers that are looked at, unless one of them has a value.
    left: u32,
}

impl FirstLook {
    /// So many are looked at.
    const ANSWERS: u32 = 20;

    /// Looks for that pointer.
    pub(crate) const fn at(pointer: String) -> Self {
        Self { pointer, left: Self::ANSWERS }
    }

    /// Warns at the last of the first answers where none has a value there.
    pub(crate) fn at_answer(&mut self, body: &[u8]) {
        if self.is_in_vain(body) {
            tracing::warn!(
                "none of the first {} answers has a value at {} (--extract); each run takes the values anew from all results, so the \
                 same command with another pointer needs no further calls",
                Self::ANSWERS,
                self.pointer
            );
        }
    }

    fn is_in_vain(&mut self, body: &[u8]) -> bool {
        if self.left == 0 {
            return false;
        }
        let answer = serde_json::from_slice::<&RawValue>(body).ok();
        let is_there = answer.and_then(|answer| at(answer, &self.pointer)).is_some();
        self.left = if is_there { 0 } else { self.left - 1 };
        self.left == 0 && !is_there
    }
}

/// How many answers there are, and how many of them have a value.
#[derive(Default)]
struct Values {
    answers: u64,
    found: u64,
}

fn fill(file: File, paths: &Paths, pointer: &str) -> io::Result<Values> {
    let mut values = Values::default();
    let packed = paths.packed();
    let results: Box<dyn BufRead> = if paths.compress && packed.exists() {
        Box::new(BufReader::new(MultiGzDecoder::new(File::open(packed)?)))
    } else {
        Box::new(BufReader::new(File::open(&paths.output)?))
    };
    let mut flat = BufWriter::new(file);
    for line in results.lines() {
        let line = line?;
        let ResultLine { custom_id, response, result, source, output } = serde_json::from_str(&line)?;
        if source.is_some() {
            let line = json!({ "custom_id": custom_id, "source": source, "value": output });
            serde_json::to_writer(&mut flat, &line)?;
            flat.write_all(b"\n")?;
            continue;
        }
        let answer = response.map(|response| response.body).or_else(|| result.and_then(|result| result.message));
        let value = answer.and_then(|answer| at(answer, pointer));
        values.answers += 1;
        values.found += u64::from(value.is_some());
        serde_json::to_writer(&mut flat, &FlatLine { custom_id, value })?;
        flat.write_all(b"\n")?;
    }
    flat.flush()?;
    Ok(values)
}

/// A line of the results, in OpenAI's form or in Anthropic's.
#[derive(Deserialize)]
struct ResultLine<'a> {
    #[serde(borrow)]
    custom_id: &'a RawValue,
    #[serde(borrow)]
    response: Option<Response<'a>>,
    #[serde(borrow)]
    result: Option<Batch<'a>>,
    /// `fallback`, where it is no answer.
    source: Option<String>,
    /// What a fallback made of the item: it has the form that its author gave it, and so no pointer.
    output: Option<Value>,
}

/// What is written for an answer.
#[derive(Serialize)]
struct FlatLine<'a> {
    custom_id: &'a RawValue,
    value: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    body: &'a RawValue,
}

#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

/// The value at a JSON pointer, as it is written. What stands beside it is not read: a line of an older version may hold what is
/// JSON and no text, such as half a pair of surrogates.
fn at<'a>(value: &'a RawValue, pointer: &str) -> Option<&'a RawValue> {
    let Some((token, rest)) = pointer.strip_prefix('/').map(|path| path.split_at(path.find('/').unwrap_or(path.len())))
    else {
        return pointer.is_empty().then_some(value);
    };
    let inner = if value.get().starts_with('[') {
        let index: usize = token.parse().ok().filter(|index: &usize| index.to_string() == token)?;
        serde_json::from_str::<Vec<&RawValue>>(value.get()).ok()?.get(index).copied()?
    } else {
        let name = token.replace("~1", "/").replace("~0", "~");
        serde_json::from_str::<HashMap<Cow<'_, str>, &RawValue>>(value.get()).ok()?.get(&*name).copied()?
    };
    at(inner, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_that_the_first_answers_lack_is_told_once() {
        let told = |bodies: &[&str]| {
            let mut look = FirstLook::at("/a/0".to_owned());
            let all = (0..60).map(|n| bodies[n % bodies.len()]);
            all.filter(|body| look.is_in_vain(body.as_bytes())).count()
        };
        assert_eq!(told(&[r#"{"b": 1}"#, "no JSON"]), 1);
        assert_eq!(told(&[r#"{"b": 1}"#, r#"{"a": [1]}"#]), 0);
    }
}
