//! The pages for `man`.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Job, finish};

fn pages() -> BTreeMap<String, String> {
    let job = Job::new(0);
    let (code, log) = finish(job.paceline().args(["man", "pages", "--date", "2026-11-25"]));
    assert_eq!(code, 0, "{log}");
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).expect("a page is text"))
    };
    std::fs::read_dir(job.path("pages")).expect("the folder is made").map(read).collect()
}

/// What a page names as `paceline-run(1)`, without the escapes of roff.
fn named(page: &str) -> BTreeSet<String> {
    let text = page.replace("\\-", "-").replace(" (1)", "(1)");
    text.split_whitespace().filter_map(|word| word.strip_suffix("(1)")).map(|name| format!("{name}.1")).collect()
}

#[test]
fn each_command_has_a_page_and_no_page_names_one_that_is_not_there() {
    let pages = pages();
    let all: BTreeSet<String> = pages.keys().cloned().collect();
    let found: BTreeSet<String> = pages.values().flat_map(|page| named(page)).collect();
    assert_eq!(found, all, "every page is named by another");
    assert!(all.contains("paceline-tasks-add.1") && !all.contains("paceline-man.1"), "{all:?}");
}

#[test]
fn a_page_has_the_usage_the_flags_and_what_stands_below_them() {
    let page = pages().remove("paceline-run.1").expect("a page").replace("\\-", "-");
    for expected in ["--max-wait", "--quiet", "results.journal", "Exit codes: 0 all succeeded", ".SH \"SEE ALSO\""] {
        assert!(page.contains(expected), "{expected} in {page}");
    }
    let synopsis = page.split(".SH").find(|part| part.starts_with(" SYNOPSIS")).expect("a synopsis");
    assert!(!synopsis.contains("--max-wait"), "the flags stand below: {synopsis}");
}
