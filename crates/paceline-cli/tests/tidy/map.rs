//! ARCHITECTURE.md: its map names every file, and its table the functions that decide.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use super::{assert_none, files, identifier, root, sources};

/// Files that stand for a whole crate.
const ROOTS: [&str; 3] = ["lib", "main", "tests"];

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

/// The files (`claim.rs`) and folders (`work/`) that a text names, without their endings.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_alphanumeric() || "_-./".contains(c)));
    let paths = words.filter(|word| word.contains(".rs") || word.contains('/'));
    paths.flat_map(|path| path.trim_end_matches(['.', '/']).trim_end_matches(".rs").split('/')).collect()
}

#[test]
fn the_map_names_every_file_or_a_folder_that_it_is_in() {
    let map = map();
    let missing: Vec<String> = sources()
        .into_iter()
        .filter_map(|(name, _)| {
            let (_, within) = name.split_once("crates/").expect("all are there");
            let (of, module) = within.split_once("/src/")?;
            let known = named(map.get(of).map_or("", String::as_str));
            let module = module.trim_end_matches(".rs");
            let is_known = ROOTS.contains(&module) || module.split('/').any(|part| known.contains(part));
            (!is_known).then_some(name)
        })
        .collect();
    assert_none("ARCHITECTURE.md does not name", &missing);
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
    assert_none("ARCHITECTURE.md names what is not there", &stale);
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
            let (source, _) = source.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&source, ""));
            let has = |name: &str| source.split("fn ").skip(1).any(|rest| identifier(rest) == name);
            let missing = quoted(functions).into_iter().filter(|name| !has(name));
            wrong.extend(missing.map(|name| format!("{}: {name}", path.display())));
        }
    }
    assert_none("ARCHITECTURE.md names functions that are not there", &wrong);
}
