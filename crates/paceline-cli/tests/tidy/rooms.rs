//! The rooms of the program, which are the modules of its root: what several commands use stands beside them, and no two need
//! each other.

use std::collections::{BTreeMap, BTreeSet};

use super::circles::{Module, all_circles, imports, module};
use super::{assert_none, sources};

/// The room whose only door is its command: `main` calls it, and no other file names what is in it.
const CLOSED: &str = "run";

/// The files of the program, by their modules.
fn program() -> BTreeMap<Module, String> {
    let files = sources().into_iter();
    files.filter_map(|(name, text)| Some((module(name.strip_prefix("crates/paceline-cli/src/")?), text))).collect()
}

/// What each file imports, without `main`, which knows every room.
fn imported(files: &BTreeMap<Module, String>) -> BTreeMap<Module, BTreeSet<Module>> {
    let own = files.iter().filter(|(module, _)| !module.is_empty());
    own.map(|(module, text)| (module.clone(), imports(module, text, files))).collect()
}

#[test]
fn no_other_room_reaches_into_run() {
    let files = program();
    let is_within = |module: &Module| module.first().is_some_and(|room| room == CLOSED);
    let reaches =
        imported(&files).into_iter().filter(|(module, needs)| !is_within(module) && needs.iter().any(is_within));
    let mut found: BTreeSet<String> = reaches.map(|(module, _)| module.join("::")).collect();
    // Its tests and its macros too.
    let named = format!("crate::{CLOSED}::");
    let names = files.iter().filter(|(module, text)| !is_within(module) && text.contains(&named));
    found.extend(names.map(|(module, _)| module.join("::")));
    assert_none(
        "these reach into `run`: what they share with it is a room of its own",
        &found.into_iter().collect::<Vec<_>>(),
    );
}

#[test]
fn no_rooms_need_each_other() {
    let mut rooms: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, needs) in imported(&program()) {
        let room = |module: &Module| module[..1].to_vec();
        let others =
            needs.iter().filter(|needed| !needed.is_empty()).map(room).filter(|needed| *needed != room(&module));
        rooms.entry(room(&module)).or_default().extend(others);
    }
    assert!(rooms.len() > 20, "the rooms are found");
    let circles = all_circles(&rooms);
    let named = |circle: &BTreeSet<Module>| circle.iter().map(|room| room.join("::")).collect::<Vec<_>>().join(", ");
    assert_none("these rooms need each other, directly or around", &circles.iter().map(named).collect::<Vec<_>>());
}
