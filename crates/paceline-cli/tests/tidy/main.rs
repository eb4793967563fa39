//! The house keeps its own rules: what a program can see of them, this one checks.

mod circles;
mod documents;
mod map;
mod rooms;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The longest file of source, in lines.
const LONGEST_FILE: usize = 500;

/// The longest function, in lines from its name to its end.
const LONGEST_FUNCTION: usize = 70;

/// The widest line, in characters.
const WIDEST: usize = 130;

/// Folders that hold no text of ours: what is built, what is installed, and what another program wrote.
const FOREIGN: [&str; 4] = ["target", "node_modules", "__pycache__", "venv"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace is two folders up").to_path_buf()
}

/// Every file below a folder that ends so.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_dir() && !FOREIGN.contains(&&*name) && !name.starts_with('.') {
            found.extend(files(&path, ending));
        } else if path.is_file() && name.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The texts below the root that end so, with their names.
fn texts(ending: &str) -> Vec<(String, String)> {
    let root = root();
    let named = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned(), text)
    };
    files(&root, ending).into_iter().map(named).collect()
}

/// The sources of the crates.
fn sources() -> Vec<(String, String)> {
    texts(".rs").into_iter().filter(|(name, _)| name.starts_with("crates/")).collect()
}

/// Ends the test with what was found, a line each.
fn assert_none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

/// The word of a text that begins with it: a name of Rust.
fn identifier(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}

#[test]
fn no_file_is_too_long_and_no_comment_too_wide() {
    let mut found = Vec::new();
    for (name, text) in texts(".rs") {
        let lines = text.lines().count();
        if lines > LONGEST_FILE {
            found.push(format!("{name}: {lines} lines"));
        }
        let wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > WIDEST;
        let wide = text.lines().enumerate().filter(|(_, line)| wide(line));
        found.extend(wide.map(|(line, _)| format!("{name}:{}: a wide comment", line + 1)));
    }
    assert_none(&format!("at most {LONGEST_FILE} lines a file, {WIDEST} characters a comment"), &found);
}

/// As rustfmt writes it, a function ends at the first brace that stands as far to the left as its beginning.
#[test]
fn no_function_is_too_long() {
    let mut found = Vec::new();
    for (name, text) in texts(".rs") {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some((before, rest)) = line.split_once("fn ") else { continue };
            let left = before.len() - before.trim_start().len();
            let begins = before.split_whitespace().all(|word| {
                word.starts_with("pub") || word.starts_with("in") || ["const", "async", "unsafe"].contains(&word)
            });
            let ends = |line: &&&str| line.len() - line.trim_start().len() == left && line.trim() == "}";
            let is_one_line = line.ends_with('}') || line.ends_with(';');
            let length = lines[at..].iter().position(|line| ends(&line)).map_or(1, |end| end + 1);
            if begins && !is_one_line && length > LONGEST_FUNCTION {
                found.push(format!("{name}:{}: {}, {length} lines", at + 1, identifier(rest)));
            }
        }
    }
    assert_none(&format!("at most {LONGEST_FUNCTION} lines a function"), &found);
}

#[test]
fn comments_name_the_actor() {
    let mut found = Vec::new();
    for (name, text) in texts(".rs") {
        for (line, text) in text.lines().enumerate() {
            let comment = text.split_once("//").map_or("", |(_, comment)| comment);
            found.extend(documents::vague(comment).map(|word| format!("{name}:{}: {word}", line + 1)));
        }
    }
    assert_none("name the caller, worker, server ... instead", &found);
}

/// Help texts of the command line are comments too, and end without a full stop, as is usual there.
#[test]
fn comments_are_sentences() {
    let mut found = Vec::new();
    for (name, text) in sources().into_iter().filter(|(_, text)| !text.contains("clap::")) {
        let comment = |line: &str| {
            line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']).trim().to_owned())
        };
        let mut lines = text.lines().enumerate().peekable();
        while let Some((at, line)) = lines.next() {
            let goes_on = lines.peek().is_some_and(|(_, next)| comment(next).is_some());
            let Some(said) = comment(line).filter(|said| !goes_on && !said.is_empty()) else { continue };
            if !said.ends_with(['.', ':', ';', '?', '!', ')', '|', '`']) && !said.starts_with("[`") {
                found.push(format!("{name}:{}: {said}", at + 1));
            }
        }
    }
    assert_none("a comment ends as a sentence does", &found);
}

/// Of a library, and of the program what its modules show each other.
#[test]
fn no_public_type_has_the_name_of_another() {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, text) in sources().into_iter().filter(|(name, _)| name.contains("/src/")) {
        for line in text.lines() {
            let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
            if let Some(rest) = kinds.iter().find_map(|kind| line.trim_start().strip_prefix(kind)) {
                seen.entry(identifier(rest).to_owned()).or_default().insert(name.clone());
            }
        }
    }
    let twice = seen.into_iter().filter(|(_, files)| files.len() > 1);
    let twice: Vec<String> =
        twice.map(|(name, files)| format!("{name}: {}", files.into_iter().collect::<Vec<_>>().join(", "))).collect();
    assert_none("one name for one thing", &twice);
}

/// What the workspace says of the oldest Rust and of lints is true of each crate, and no lint is switched off: `expect` ends
/// with its reason. A library begins with its README, whose example is so one of its tests.
#[test]
fn every_crate_keeps_the_lints_and_the_oldest_rust_of_the_workspace_and_has_a_readme() {
    let members = files(&root().join("crates"), "Cargo.toml");
    let mut found = Vec::new();
    for path in members {
        let text = fs::read_to_string(&path).expect("a manifest is text");
        for setting in ["rust-version.workspace = true", "[lints]\nworkspace = true", "readme = \"README.md\""] {
            if !text.contains(setting) {
                found.push(format!("{}: no {setting:?}", path.display()));
            }
        }
    }
    for (name, text) in sources() {
        if text.lines().any(|line| ["#[allow(", "#![allow("].iter().any(|allow| line.trim_start().starts_with(allow))) {
            found.push(format!("{name}: allows what a lint forbids"));
        }
        if name.ends_with("/src/lib.rs") && !text.starts_with("#![doc = include_str!(\"../README.md\")]") {
            found.push(format!("{name}: does not begin with its README"));
        }
    }
    assert_none("one set of rules for all crates", &found);
}
