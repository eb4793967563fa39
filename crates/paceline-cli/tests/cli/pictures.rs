//! The pictures in `docs/images` are what the commands in the documentation draw, to the byte.
//!
//! `UPDATE_PICTURES=1 cargo test -p paceline-cli --features charts --test cli pictures` draws them anew; look at what changed.

use std::path::Path;

use crate::support::{Job, finish};

/// The commands of a document that draw a picture, word by word, and the pictures.
fn drawing_commands(document: &str) -> Vec<(Vec<String>, String)> {
    let text = document.replace("\\\n", " ");
    let commands = text.lines().filter_map(|line| line.strip_prefix("$ paceline "));
    let words = commands.map(|command| command.split_whitespace().map(ToOwned::to_owned).collect::<Vec<_>>());
    let with_picture = |words: Vec<String>| {
        let picture = words.iter().find(|word| word.starts_with("docs/images/"))?.clone();
        Some((words, picture))
    };
    words.filter_map(with_picture).collect()
}

#[test]
fn are_drawn_by_the_commands_beside_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let document = read("docs/simulator.md");
    let (_, scenario) =
        read("docs/changing.toml").split_once('\n').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("lines");
    assert!(document.contains(&scenario), "the scenario in the document is the one that is drawn");
    let commands = drawing_commands(&document);
    assert_eq!(commands.len(), 10, "{commands:?}");
    let job = Job::new(0);
    std::fs::create_dir_all(job.path("docs/images")).expect("a folder");
    std::fs::copy(root.join("docs/changing.toml"), job.path("docs/changing.toml")).expect("a copy");
    let update = std::env::var_os("UPDATE_PICTURES").is_some();
    let mut different = Vec::new();
    for (words, picture) in commands {
        let (code, log) = finish(job.paceline().args(&words));
        assert_eq!(code, 0, "{words:?}: {log}");
        let drawn = std::fs::read(job.path(&picture)).expect("a picture");
        if update {
            std::fs::write(root.join(&picture), drawn).expect("it can be written");
        } else if std::fs::read(root.join(&picture)).ok().as_deref() != Some(&drawn) {
            different.push(picture);
        }
    }
    assert!(different.is_empty(), "{different:?} are drawn otherwise now; look at them with UPDATE_PICTURES=1");
}

#[test]
fn stand_in_the_documents_that_draw_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let document: String = ["simulator.md", "waiting.md", "../README.md"]
        .map(|name| std::fs::read_to_string(root.join(name)).expect("a document"))
        .concat();
    for image in std::fs::read_dir(root.join("images")).expect("a folder") {
        let name = image.expect("an entry").file_name().into_string().expect("text");
        assert!(document.contains(&format!("images/{name})")), "no page shows {name}");
    }
}
