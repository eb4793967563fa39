//! The house keeps its own rules: what a program can see of them, this one checks.

mod circles;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The longest file of source, in lines.
const LONGEST: usize = 500;

/// The widest line, in characters.
const WIDEST: usize = 130;

/// Files that stand for their folder, or for a whole crate.
const ROOTS: [&str; 4] = ["lib", "main", "mod", "tests"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace is two folders up").to_path_buf()
}

/// Every file below a folder that ends so, but for what is built.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found = Vec::new();
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        let name = path.file_name().expect("a name").to_string_lossy();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&path, ending));
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The sources of the crates with their names below the root, and their texts.
fn sources() -> Vec<(String, String)> {
    let root = root();
    let named = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source is text");
        (path.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned(), text)
    };
    files(&root.join("crates"), ".rs").into_iter().map(named).collect()
}

/// The lines of the map about each crate.
fn map() -> BTreeMap<String, String> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the map");
    let map = text.split("```").nth(1).expect("the first block of code is the map").to_owned();
    let mut crates: BTreeMap<String, String> = BTreeMap::new();
    let mut present = None;
    for line in map.lines() {
        let name = line.strip_prefix("  ").filter(|line| line.starts_with("paceline"));
        let ended = !line.starts_with("  ");
        present = name.and_then(|line| line.split('/').next()).map(str::to_owned).or(present.filter(|_| !ended));
        if let Some(name) = &present {
            let about = crates.entry(name.clone()).or_default();
            about.push_str(line);
            about.push('\n');
        }
    }
    crates
}

/// Whether a text names a file or a folder, as a word of its own.
fn names(text: &str, name: &str) -> bool {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')).any(|word| word == name)
}

#[test]
fn no_file_is_too_long_and_no_line_too_wide() {
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        let lines = text.lines().count();
        if lines > LONGEST {
            wrong.push(format!("{name}: {lines} lines, at most {LONGEST}"));
        }
        let wide = text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.trim_start().starts_with("//") && line.chars().count() > WIDEST);
        wrong.extend(wide.map(|(line, _)| format!("{name}:{}: a comment wider than {WIDEST} characters", line + 1)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn comments_name_the_actor() {
    let vague = ["whoever", "somebody", "nobody", "anybody", "everybody"];
    let mut found = Vec::new();
    for (name, text) in sources() {
        for (line, text) in text.lines().enumerate() {
            let comment = text.split_once("//").map_or("", |(_, comment)| comment).to_lowercase();
            let word = comment.split(|c: char| !c.is_alphanumeric()).find(|word| vague.contains(word));
            found.extend(word.map(|word| format!("{name}:{}: {word}", line + 1)));
        }
    }
    assert!(found.is_empty(), "name the caller, worker, server ... instead:\n{}", found.join("\n"));
}

#[test]
fn the_map_names_every_module_or_its_folder() {
    let map = map();
    let missing: Vec<String> = sources()
        .into_iter()
        .filter_map(|(name, _)| {
            let (_, within) = name.split_once("crates/").expect("all are there");
            let (of, module) = within.split_once("/src/")?;
            let about = map.get(of).map_or("", String::as_str);
            let stem = module.trim_end_matches(".rs");
            let known = stem.split('/').any(|part| ROOTS.contains(&part) && !stem.contains('/') || names(about, part));
            (!known).then_some(name)
        })
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md does not name\n{}", missing.join("\n"));
}

#[test]
fn what_the_map_names_is_there() {
    let crates = root().join("crates");
    let is_there = |of: &str, name: &str| {
        let below = format!("/{}", name.trim_end_matches('/'));
        name == format!("{of}/")
            || files(&crates.join(of), "").iter().any(|path| {
                let path = path.to_string_lossy();
                path.ends_with(&below) || path.contains(&format!("{below}/"))
            })
    };
    let mut stale = Vec::new();
    for (of, about) in map() {
        let words =
            about.split(|c: char| c.is_whitespace() || c == ',' || c == ';' || c == '(' || c == ')' || c == ':');
        let paths = words.filter(|word| (word.ends_with(".rs") || word.ends_with('/')) && !word.contains('`'));
        stale.extend(paths.filter(|path| !is_there(&of, path)).map(|path| format!("{of}: {path}")));
    }
    assert!(stale.is_empty(), "ARCHITECTURE.md names what is not there:\n{}", stale.join("\n"));
}

/// Rows such as: rule | `crate/src/a.rs`, `b.rs`: `one`, `other`; `crate/src/c.rs`: `third`
#[test]
fn each_rule_is_decided_where_the_map_says() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the map");
    let (_, table) = text.split_once("## Where each rule is decided").expect("the table of the rules");
    let rows = table.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).skip(2);
    let mut wrong = Vec::new();
    for place in rows.flat_map(|row| row.split('|').nth(2).expect("two columns").split(';')) {
        let (paths, functions) = place.split_once("`: `").unwrap_or_else(|| panic!("{place}: no function is named"));
        let mut folder = PathBuf::new();
        let quoted =
            |text: &str| text.replace('`', "").split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>();
        for path in quoted(paths) {
            let path = if path.contains('/') { PathBuf::from(path) } else { folder.join(path) };
            folder = path.parent().expect("a folder").to_owned();
            let source = fs::read_to_string(root().join("crates").join(&path)).unwrap_or_default();
            let missing = quoted(functions).into_iter().filter(|name| !source.contains(&format!("fn {name}")));
            wrong.extend(missing.map(|name| format!("{}: {name}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md names functions that are not there:\n{}", wrong.join("\n"));
}

#[test]
fn no_public_type_has_the_name_of_another() {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, text) in sources() {
        if !name.contains("/src/") || name.contains("/paceline-cli/") {
            continue;
        }
        for line in text.lines() {
            let Some(rest) = ["pub struct ", "pub enum ", "pub trait "].iter().find_map(|kind| line.strip_prefix(kind))
            else {
                continue;
            };
            let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
            seen.entry(rest[..end].to_owned()).or_default().insert(name.clone());
        }
    }
    let twice = seen.into_iter().filter(|(_, files)| files.len() > 1);
    let twice: Vec<String> =
        twice.map(|(name, files)| format!("{name}: {}", files.into_iter().collect::<Vec<_>>().join(", "))).collect();
    assert!(twice.is_empty(), "{}", twice.join("\n"));
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = root();
    let mut broken = Vec::new();
    for path in files(&root, ".md") {
        let text = fs::read_to_string(&path).expect("a document is text");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or(link);
            let local = !target.is_empty() && !target.contains("://") && !target.contains(' ');
            if local && !path.parent().expect("a folder").join(target).exists() {
                broken.push(format!("{}: {link}", path.strip_prefix(&root).expect("below the root").display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}
