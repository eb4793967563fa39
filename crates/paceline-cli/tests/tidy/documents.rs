//! What documents and comments name is there, and they name the actor.

use std::collections::BTreeMap;
use std::path::Path;

use super::{assert_none, root, texts};

/// Folders at the root: a path that begins with one of them leads somewhere.
const FOLDERS: [&str; 7] = ["docs/", "scripts/", "bench/", "crates/", "examples/", "contrib/", "proofs/"];

/// Words for an actor without a name.
const VAGUE: [&str; 8] = ["whoever", "somebody", "nobody", "anybody", "everybody", "someone", "anyone", "everyone"];

/// The words of a text that name no actor. A flag such as `--allow-anyone` is a name.
pub(crate) fn vague(text: &str) -> impl Iterator<Item = String> + use<> {
    let lower = text.to_lowercase();
    let words: Vec<String> = lower.split(|c: char| !c.is_alphanumeric() && c != '-').map(str::to_owned).collect();
    words.into_iter().filter(|word| VAGUE.contains(&word.as_str()))
}

/// Every text that people read, but for sources in Rust.
fn documents() -> impl Iterator<Item = (String, String)> {
    [".md", ".py", ".toml", ".yml", ".js", ".html"].into_iter().flat_map(texts)
}

#[test]
fn documents_name_the_actor() {
    let mut found = Vec::new();
    for (name, text) in documents() {
        for (line, text) in text.lines().enumerate() {
            found.extend(vague(text).map(|word| format!("{name}:{}: {word}", line + 1)));
        }
    }
    assert_none("name the caller, worker, server ... instead", &found);
}

/// The name under which a heading can be linked to.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The headings of a document, but for lines of code that look like one.
fn headings(text: &str) -> Vec<String> {
    let prose = text.split("\n```").step_by(2);
    prose
        .flat_map(str::lines)
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = root();
    let documents: BTreeMap<String, String> = texts(".md").into_iter().collect();
    let mut broken = Vec::new();
    for (name, text) in &documents {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (target, section) = link.split_once('#').unwrap_or((link, ""));
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            let folder = Path::new(name).parent().expect("a folder");
            let path = if target.is_empty() { root.join(name) } else { root.join(folder).join(target) };
            let is_there = path.exists() && {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                section.is_empty() || headings(&text).iter().any(|heading| heading == section)
            };
            if !is_there {
                broken.push(format!("{name}: {link}"));
            }
        }
    }
    assert_none("these links lead nowhere", &broken);
}

#[test]
fn what_documents_and_comments_name_is_there() {
    let root = root();
    let mut missing = Vec::new();
    for (name, text) in documents().chain(texts(".rs")) {
        let words = text.split(|c: char| !(c.is_alphanumeric() || "_-./".contains(c)));
        for path in words.filter(|word| FOLDERS.iter().any(|folder| word.starts_with(folder))) {
            let path = path.trim_end_matches(['.', '-']);
            if !root.join(path).exists() {
                missing.push(format!("{name}: {path}"));
            }
        }
    }
    assert_none("these paths lead nowhere", &missing);
}
