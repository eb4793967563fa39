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
/// see the old file or the new one.
///
/// # Errors
/// An error of the file system.
pub(crate) fn write(paths: &Paths, pointer: &str) -> io::Result<()> {
    let path = path(paths);
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = Path::new(&fresh);
    let written = create_in_place_of(&path, fresh).and_then(|file| fill(file, paths, pointer));
    let written = written.and_then(|()| std::fs::rename(fresh, &path));
    if written.is_err() {
        // What is left of it is overwritten by the next.
        let _ = std::fs::remove_file(fresh);
    }
    written
}

fn fill(file: File, paths: &Paths, pointer: &str) -> io::Result<()> {
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
        let value = answer.as_ref().and_then(|answer| answer.pointer(pointer)).unwrap_or(&Value::Null);
        serde_json::to_writer(&mut flat, &json!({ "custom_id": custom_id, "value": value }))?;
        flat.write_all(b"\n")?;
    }
    flat.flush()
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
