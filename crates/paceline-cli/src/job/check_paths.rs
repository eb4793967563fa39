//! Where a run reads and writes: checked before anything is opened, so that nothing that was paid for is overwritten.

use std::path::Path;

use paceline_config::Upstream;
use paceline_store::{Paths, is_same_file};

use crate::args::{Everywhere, Expect};
use crate::exit::Failure;
use crate::run_args::RunArgs;
use crate::upstream;

/// Refuses certificates that cannot be used, places that are the same file, outputs that are no files, and folders that are
/// none. Warns of results that are called a table.
///
/// # Errors
/// The paths, and what to do.
pub(crate) fn check(
    args: &RunArgs,
    paths: &Paths,
    upstream: &Upstream,
    everywhere: &Everywhere,
) -> Result<(), Failure> {
    upstream::check_access(upstream)?;
    args.only.check(upstream, args.retry_failed)?;
    if is_special(&paths.output) {
        let output = paths.output.display();
        return Err(Failure::refused(format!("-o {output} is not a file: name one; the journal is written beside it")));
    }
    if let Some(journal) = paths.journal.as_deref().filter(|journal| is_special(journal)) {
        let journal = journal.display();
        return Err(Failure::refused(format!(
            "--journal {journal} is not a file: name one, or leave the flag out to keep the journal beside -o"
        )));
    }
    for (what, path) in
        [("errors", &paths.errors), ("refused answers", &paths.refused_answers), ("report", &paths.report)]
    {
        if is_special(path) {
            let path = path.display();
            return Err(Failure::refused(format!(
                "{path}, where the {what} of this job belong, is not a file: move it away, or name another -o"
            )));
        }
    }
    let places = places(args, paths);
    refuse_shared(&places)?;
    let read_before: Vec<_> = places.iter().filter(|(_, path)| *path != paths.refused_answers).copied().collect();
    for done in &args.done {
        // Two of them may be the same: the second changes nothing. Refused answers are read before the first call adds to them.
        refuse_among(&read_before, "--done", done)?;
    }
    for (name, read) in also_read(args, upstream, everywhere) {
        // One file may be read for two purposes.
        refuse_among(&places, name, read)?;
    }
    refuse_own(args, paths)?;
    for path in std::iter::once(&paths.output).chain(&paths.journal) {
        let folder = folder_of(path);
        let problem = match folder.metadata() {
            Ok(about) if about.is_dir() => continue,
            Ok(_) => format!("{} is not a folder", folder.display()),
            Err(error) => format!("its folder {} cannot be found: {error}", folder.display()),
        };
        return Err(Failure::refused(format!(
            "cannot write {}: {problem}; create the folder, or choose another place",
            path.display()
        )));
    }
    warn_of_name(&args.output);
    Ok(())
}

/// Warns of results whose name promises a table: they are lines of JSON.
fn warn_of_name(output: &Path) {
    let ending = output.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    if ["csv", "tsv", "xlsx", "parquet"].iter().any(|table| ending.eq_ignore_ascii_case(table)) {
        tracing::warn!(
            "-o {} will hold lines of JSON, and no table: a name that ends in .jsonl says so",
            output.display()
        );
    }
}

fn places<'a>(args: &'a RunArgs, paths: &'a Paths) -> Vec<(&'static str, &'a Path)> {
    let mut places = vec![
        ("the results", paths.output.as_path()),
        ("the errors", &paths.errors),
        ("the refused answers", &paths.refused_answers),
        ("the report", &paths.report),
        ("the lock", &paths.lock),
    ];
    places.extend(paths.journal.as_deref().map(|journal| ("the journal", journal)));
    places.extend(args.summary.as_deref().map(|summary| ("the summary", summary)));
    if paths.compress {
        places.push(("the compressed results", &args.output));
    }
    if args.input() != Path::new("-") {
        places.push(("the input", args.input()));
    }
    places
}

/// Files beside the input that a run reads, and would destroy if it wrote there.
fn also_read<'a>(
    args: &'a RunArgs,
    upstream: &'a Upstream,
    everywhere: &'a Everywhere,
) -> impl Iterator<Item = (&'static str, &'a Path)> {
    let template = args.prompt_template.as_deref().map(Path::new);
    let schema = args.expect.as_ref().and_then(|expect| match expect {
        Expect::Schema(path) => Some(path.as_path()),
        Expect::Json => None,
    });
    let configuration = everywhere.config.as_deref().unwrap_or(Path::new("paceline.toml"));
    let named = [("--prompt-template", template), ("--expect", schema), ("the configuration", Some(configuration))];
    let named = named.into_iter().filter_map(|(name, path)| Some((name, path?)));
    named.chain(upstream.files().map(|path| ("a key or a certificate", path.as_path())))
}

fn refuse_shared(places: &[(&str, &Path)]) -> Result<(), Failure> {
    places.iter().enumerate().try_for_each(|(index, (name, path))| refuse_among(&places[..index], name, path))
}

fn refuse_among(places: &[(&str, &Path)], name: &str, path: &Path) -> Result<(), Failure> {
    let Some((other, _)) = places.iter().find(|(_, known)| is_same_file(known, path)) else { return Ok(()) };
    let path = path.display();
    Err(Failure::refused(format!("{other} and {name} are the same file, {path}: choose another")))
}

/// Refuses what has the name of a file that the job makes by itself.
fn refuse_own(args: &RunArgs, paths: &Paths) -> Result<(), Failure> {
    let passing = paths.temporary_files();
    let given = args
        .input
        .iter()
        .map(|input| ("the input", input))
        .chain(args.done.iter().map(|done| ("--done", done)))
        .chain(args.summary.iter().map(|summary| ("the summary", summary)))
        .chain(args.journal.iter().map(|journal| ("the journal", journal)));
    for (name, path) in given {
        // The copy of an earlier input is a plain file of requests: to read it changes nothing.
        let is_copy = *path != args.input() && is_same_file(path, &paths.input);
        if is_copy || passing.iter().any(|own| is_same_file(path, own)) {
            let path = path.display();
            return Err(Failure::refused(format!(
                "{name} and a file of the job are the same file, {path}: choose another"
            )));
        }
    }
    Ok(())
}

/// A terminal, a device, a pipe or a folder.
fn is_special(path: &Path) -> bool {
    path == Path::new("-") || path.metadata().is_ok_and(|meta| !meta.is_file())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
