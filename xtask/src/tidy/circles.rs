//! Circles between the modules of a crate: modules that reach each other by the paths they name.
//!
//! An edge goes from the module that names a path to the module that defines what the path names,
//! through re-exports. Edges between a module and one inside it do not count: a module and its
//! parts are one unit. Tests do not count.
//!
//! `xtask/circles.txt` lists the modules that may be in a circle today. A module that is missing
//! there is a finding, and so is one that is listed without being in a circle.

use std::collections::{BTreeMap, BTreeSet};

use super::tokens::Token;
use super::tree::File;
use super::{Finding, Tree};

/// The allow-list: a line for each module, `CRATE a::b`.
const ALLOWED: &str = "xtask/circles.txt";
/// Re-exports that are followed one after the other.
const REEXPORTS_MAX: usize = 4;

/// A module's path below its crate.
type Module = Vec<String>;

/// A crate's modules outside tests.
struct Crate<'a> {
    /// The folder that holds `src`.
    name: String,
    modules: BTreeMap<Module, &'a File>,
    /// The paths that each module's `use` declarations name.
    uses: BTreeMap<Module, Vec<Vec<String>>>,
}

/// Modules in circles that the list does not allow, and list entries without a circle.
pub(super) fn circles(tree: &Tree) -> Vec<Finding> {
    let mut listed: BTreeMap<&str, usize> =
        tree.entries(ALLOWED).map(|(line, entry)| (entry, line)).collect();
    let mut found = Vec::new();
    for root in crates(tree) {
        for circle in root.circles() {
            let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
            for (module, name) in circle.iter().zip(&names) {
                let entry = format!("{} {name}", root.name);
                if listed.remove(&*entry).is_none() {
                    let others = names.iter().filter(|other| *other != name);
                    let others = others.cloned().collect::<Vec<_>>().join(", ");
                    let text = format!("in a circle with {others}: move what they share below");
                    found.push(Finding::new(&root.modules[module].path, 0, text));
                }
            }
        }
    }
    for (entry, line) in listed {
        let text = format!("{entry} is in no circle: remove the line");
        found.push(Finding::new(ALLOWED, line, text));
    }
    found
}

/// The crates of the tree: each folder with `src/lib.rs` or `src/main.rs`.
fn crates(tree: &Tree) -> Vec<Crate<'_>> {
    let mut found: BTreeMap<String, Crate<'_>> = BTreeMap::new();
    for file in tree.rust().filter(|file| !file.is_test()) {
        let Some((name, inside)) = file.path.split_once("/src/") else { continue };
        let module = module_of(inside);
        let root = found.entry(name.to_owned()).or_insert_with(|| Crate {
            name: name.rsplit('/').next().unwrap_or(name).to_owned(),
            modules: BTreeMap::new(),
            uses: BTreeMap::new(),
        });
        root.uses.insert(module.clone(), used_paths(file.tokens()));
        root.modules.insert(module, file);
    }
    found.into_values().collect()
}

fn module_of(inside: &str) -> Module {
    let mut parts: Module = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

impl Crate<'_> {
    /// Sets of modules that reach each other, each sorted.
    fn circles(&self) -> Vec<Vec<Module>> {
        let edges: BTreeMap<&Module, BTreeSet<&Module>> =
            self.modules.iter().map(|(module, file)| (module, self.edges(module, file))).collect();
        let reach: BTreeMap<&Module, BTreeSet<&Module>> =
            edges.keys().map(|module| (*module, reachable(module, &edges))).collect();
        let mut found: Vec<Vec<Module>> = Vec::new();
        for (module, reached) in &reach {
            let is_known = found.iter().flatten().any(|known| known == *module);
            if is_known || !reached.contains(*module) {
                continue;
            }
            let both = reached.iter().filter(|other| reach[*other].contains(*module));
            found.push(both.map(|other| (*other).clone()).collect());
        }
        found
    }

    /// The other modules that a module's paths lead to.
    fn edges(&self, module: &Module, file: &File) -> BTreeSet<&Module> {
        paths(file.tokens())
            .iter()
            .filter_map(|path| self.target(module, path, REEXPORTS_MAX))
            .filter(|to| !to.starts_with(module) && !module.starts_with(to))
            .collect()
    }

    /// The module that defines what `path` names in `module`; `None`: another crate's.
    fn target(&self, module: &Module, path: &[String], hops: usize) -> Option<&Module> {
        let mut at = match path.first()?.as_str() {
            "crate" => Module::new(),
            "self" => module.clone(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            child => {
                let inner = [module.as_slice(), &[child.to_owned()]].concat();
                self.modules.contains_key(&inner).then_some(inner)?
            }
        };
        let mut rest = &path[1..];
        while let Some((next, after)) = rest.split_first() {
            if next == "super" {
                at.pop()?;
            } else {
                at.push(next.clone());
                if !self.modules.contains_key(&at) {
                    at.pop();
                    break;
                }
            }
            rest = after;
        }
        let (known, _) = self.modules.get_key_value(&at)?;
        let (Some(item), Some(hops)) = (rest.first(), hops.checked_sub(1)) else {
            return Some(known);
        };
        // An item that the module only passes on is where it comes from.
        let passed = self.uses[known].iter().find(|used| used.last() == Some(item));
        passed.and_then(|used| self.target(known, used, hops)).or(Some(known))
    }
}

fn reachable<'a>(
    from: &Module,
    edges: &BTreeMap<&'a Module, BTreeSet<&'a Module>>,
) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&Module> = edges[from].iter().copied().collect();
    while let Some(module) = open.pop() {
        if let Some((known, next)) = edges.get_key_value(module)
            && found.insert(*known)
        {
            open.extend(next.iter().copied());
        }
    }
    found
}

/// All paths outside tests, with the lists in braces written out.
fn paths(tokens: &[Token]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut index = 0;
    while index < tokens.len() {
        let starts = is_word(&tokens[index]) && !tokens[index].in_test;
        let mut end = index + 1;
        if starts && !follows_colons(tokens, index) {
            end = read_path(tokens, index, &[], &mut found);
        }
        index = end.max(index + 1);
    }
    found
}

/// The paths of `use` declarations outside tests.
fn used_paths(tokens: &[Token]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for index in super::tokens::find(tokens, &["use"]) {
        if !tokens[index].in_test {
            read_path(tokens, index + 1, &[], &mut found);
        }
    }
    found
}

/// Reads the path or the tree of paths at `index`, behind `prefix`; the index behind it.
fn read_path(
    tokens: &[Token],
    mut index: usize,
    prefix: &[String],
    found: &mut Vec<Vec<String>>,
) -> usize {
    let mut path = prefix.to_vec();
    while let Some(token) = tokens.get(index) {
        if token.text == "{" && has_colons(tokens, index.wrapping_sub(2)) {
            let depth = token.depth;
            index += 1;
            while tokens.get(index).is_some_and(|token| token.depth > depth) {
                index = read_path(tokens, index, &path, found).max(index + 1);
            }
            return index + 1;
        }
        if !is_word(token) {
            break;
        }
        path.push(token.text.clone());
        index += 1;
        if !has_colons(tokens, index) {
            break;
        }
        index += 2;
    }
    if path.len() > prefix.len() {
        found.push(path);
    }
    index
}

fn has_colons(tokens: &[Token], index: usize) -> bool {
    let is_colon = |index: usize| tokens.get(index).is_some_and(|token| token.text == ":");
    is_colon(index) && is_colon(index + 1)
}

fn follows_colons(tokens: &[Token], index: usize) -> bool {
    index >= 2 && has_colons(tokens, index - 2)
}

fn is_word(token: &Token) -> bool {
    token.text.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        circles(&Tree::of(files)).into_iter().map(|finding| finding.path).collect()
    }

    const ROOT: (&str, &str) = ("crates/a/src/lib.rs", "mod b;\nmod c;\npub use c::Item;");

    #[test]
    fn modules_that_name_each_other_are_found() {
        let b = ("crates/a/src/b.rs", "use crate::c::{self, Other};");
        let c = ("crates/a/src/c.rs", "fn f() { super::b::g(); }");
        assert_eq!(found(&[ROOT, b, c]), ["crates/a/src/b.rs", "crates/a/src/c.rs"]);
        assert_eq!(found(&[ROOT, b, ("crates/a/src/c.rs", "pub struct Item;")]), [""; 0]);
    }

    #[test]
    fn a_path_through_a_reexport_leads_to_the_definition() {
        let b = ("crates/a/src/b.rs", "use crate::Item;");
        let c = ("crates/a/src/c.rs", "use crate::b::g; pub struct Item;");
        assert_eq!(found(&[ROOT, b, c]).len(), 2);
    }

    #[test]
    fn parents_and_tests_do_not_count() {
        let b = ("crates/a/src/b.rs", "mod d;\nuse d::D;\n#[cfg(test)] mod t { use crate::c::X; }");
        let d = ("crates/a/src/b/d.rs", "use super::B;");
        let c = ("crates/a/src/c.rs", "use crate::b::B;");
        assert_eq!(found(&[ROOT, b, d, c]), [""; 0]);
    }

    #[test]
    fn listed_modules_are_allowed_while_they_are_in_a_circle() {
        let b = ("crates/a/src/b.rs", "use crate::c::X;");
        let c = ("crates/a/src/c.rs", "use crate::b::Y;");
        let list = |text| (ALLOWED, text);
        assert_eq!(found(&[ROOT, b, c, list("# Why.\na b\na c\n")]), [""; 0]);
        assert_eq!(found(&[ROOT, b, c, list("a b\na c\na d\n")]), [ALLOWED]);
        assert_eq!(found(&[ROOT, b, c, list("a b\n")]), ["crates/a/src/c.rs"]);
    }
}
