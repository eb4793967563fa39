//! `--extract`: one value of each answer, beside the whole answers.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use paceline_store::{Paths, create_in_place_of};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

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
    let Values { answers, found } = written?;
    match (answers, found) {
        (1.., 0) => {
            tracing::warn!("no answer has a value at {pointer} (--extract): {} has null for each", path.display())
        }
        _ => tracing::info!("{} has the values at {pointer}", path.display()),
    }
    Ok(())
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
        let value = answer.as_ref().and_then(|answer| answer.pointer(pointer));
        values.answers += 1;
        values.found += u64::from(value.is_some());
        serde_json::to_writer(&mut flat, &json!({ "custom_id": custom_id, "value": value }))?;
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
    response: Option<Response>,
    result: Option<Batch>,
    /// `fallback`, where it is no answer.
    source: Option<String>,
    /// What a fallback made of the item: it has the form that its author gave it, and so no pointer.
    output: Option<Value>,
}

#[derive(Deserialize)]
struct Response {
    body: Value,
}

#[derive(Deserialize)]
struct Batch {
    message: Option<Value>,
}
