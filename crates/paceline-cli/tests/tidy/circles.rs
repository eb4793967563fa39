//! Which files of a crate import each other: a file that needs only what lies below it can be read, tested and moved alone.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Path, UseTree};

/// A module that has a file, by its path from the root of its crate.
pub(super) type Module = Vec<String>;

/// Which modules each module imports from.
pub(super) type Imports = BTreeMap<Module, BTreeSet<Module>>;

#[test]
fn no_files_of_different_folders_import_each_other() {
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    for (name, text) in super::sources() {
        let Some((of, file)) = name.trim_start_matches("crates/").split_once("/src/") else { continue };
        crates.entry(of.to_owned()).or_default().insert(module(file), text);
    }
    let mut circles = Vec::new();
    for (of, files) in crates {
        let imports = files.iter().map(|(module, text)| (module.clone(), imports(module, text, &files))).collect();
        circles.extend(all_circles(&imports).into_iter().filter(|circle| !is_in_one_folder(circle)).map(|circle| {
            let files: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
            format!("{of}: {}", files.join(", "))
        }));
    }
    assert!(circles.is_empty(), "these import each other, directly or around:\n{}", circles.join("\n"));
}

/// Whether the files stand in one folder, to which the one that it is named after belongs.
fn is_in_one_folder(circle: &BTreeSet<Module>) -> bool {
    let folder = |module: &Module| module[..module.len().saturating_sub(1)].to_vec();
    let folders: BTreeSet<Module> = circle.iter().map(folder).chain(circle.first().cloned()).collect();
    folders.iter().any(|within| circle.iter().all(|module| module == within || folder(module) == *within))
}

/// `a/b.rs` and `a/b/mod.rs` are `a::b`; `lib.rs` and `main.rs` are the root.
pub(super) fn module(file: &str) -> Module {
    let mut path: Module = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if ["mod", "lib", "main"].contains(&path.last().expect("a file has a name").as_str()) {
        path.pop();
    }
    path
}

/// The other files that a file imports from, but for its tests.
pub(super) fn imports(module: &Module, text: &str, files: &BTreeMap<Module, String>) -> BTreeSet<Module> {
    let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", module.join("::")));
    let mut finder = Finder { within: module.clone(), found: BTreeSet::new() };
    if !is_for_tests(&file.attrs) && module.last().is_none_or(|name| name != "tests") {
        finder.visit_file(&file);
    }
    let file_of =
        |path: Module| (0..=path.len()).rev().map(|end| path[..end].to_vec()).find(|path| files.contains_key(path));
    finder.found.into_iter().filter_map(file_of).filter(|found| found != module).collect()
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let test = |attribute: &Attribute| {
        attribute.path().is_ident("cfg") && attribute.parse_args::<Path>().is_ok_and(|path| path.is_ident("test"))
    };
    attributes.iter().any(test)
}

/// Collects paths that begin with `crate` or `super`, from the root of the crate.
struct Finder {
    within: Module,
    found: BTreeSet<Module>,
}

impl Finder {
    fn note(&mut self, path: &[String]) {
        let mut whole = self.within.clone();
        for (at, part) in path.iter().enumerate() {
            match part.as_str() {
                "crate" if at == 0 => whole.clear(),
                "super" => drop(whole.pop()),
                "self" => {}
                _ if at == 0 => return,
                name => whole.push(name.to_owned()),
            }
        }
        self.found.insert(whole);
    }

    fn note_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.note_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.note(&with(&name.ident)),
            UseTree::Rename(rename) => self.note(&with(&rename.ident)),
            UseTree::Glob(_) => self.note(before),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if is_for_tests(&module.attrs) || module.content.is_none() {
            return;
        }
        self.within.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.within.pop();
    }

    fn visit_item_use(&mut self, import: &'ast ItemUse) {
        self.note_tree(&[], &import.tree);
    }

    /// What may see an item is no import.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'ast Path) {
        self.note(&path.segments.iter().map(|part| part.ident.to_string()).collect::<Vec<_>>());
        visit::visit_path(self, path);
    }
}

/// Files each of which reaches all the others: the strongly connected components of more than one (Tarjan 1972).
pub(super) fn all_circles(imports: &Imports) -> Vec<BTreeSet<Module>> {
    let mut search = Search { imports, order: BTreeMap::new(), stack: Vec::new(), circles: Vec::new() };
    for module in imports.keys() {
        search.visit(module);
    }
    search.circles
}

struct Search<'a> {
    imports: &'a Imports,
    /// When each was met, and whether it is on the stack.
    order: BTreeMap<&'a Module, (usize, bool)>,
    stack: Vec<&'a Module>,
    circles: Vec<BTreeSet<Module>>,
}

impl<'a> Search<'a> {
    /// The earliest that this one reaches.
    fn visit(&mut self, module: &'a Module) -> usize {
        if let Some((met, on_stack)) = self.order.get(module) {
            return if *on_stack { *met } else { usize::MAX };
        }
        let met = self.order.len();
        self.order.insert(module, (met, true));
        self.stack.push(module);
        let earliest = self.imports[module].iter().map(|next| self.visit(next)).min().unwrap_or(met).min(met);
        if earliest == met {
            let at = self.stack.iter().position(|other| *other == module).expect("it is on the stack");
            let circle = self.stack.split_off(at);
            circle.iter().for_each(|module| self.order.get_mut(module).expect("it was met").1 = false);
            if circle.len() > 1 {
                self.circles.push(circle.into_iter().cloned().collect());
            }
        }
        earliest
    }
}
