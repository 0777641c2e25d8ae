//! Orphaned Rust files: a file that no module names is not built.

use super::tokens;
use super::tree::File;
use super::{Finding, Tree};

/// Files below `src` or `tests` that no other file declares as a module.
pub(super) fn orphans(tree: &Tree) -> Vec<Finding> {
    tree.rust()
        .filter(|file| !is_root(&file.path))
        .filter(|file| !is_declared(tree, &file.path))
        .map(|file| Finding::new(&file.path, 0, "no module names this file"))
        .collect()
}

/// What cargo finds by itself: libraries, binaries, and each file directly in the folders of tests,
/// examples and benches; and fuzz targets, which their manifest names.
fn is_root(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let name = parts.next().unwrap_or(path);
    let folder = parts.next().unwrap_or("");
    match folder {
        "src" => name == "lib.rs" || name == "main.rs",
        // `crates/x/src/tests/…` is a folder of modules, not of test programs.
        "tests" | "examples" | "benches" => parts.next() != Some("src"),
        "bin" | "fuzz_targets" => true,
        _ => name == "build.rs" || name == "main.rs",
    }
}

fn is_declared(tree: &Tree, path: &str) -> bool {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let module = name.trim_end_matches(".rs");
    let (folder, module) = match (module, folder.rsplit_once('/')) {
        ("mod", Some((outer, inner))) => (outer, inner),
        _ => (folder, module),
    };
    // Modules of a crate's root, and of a `mod.rs`, are in the folder of the file that names them.
    let is_beside = |file: &&File| {
        let (place, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        place == folder && (is_root(&file.path) || name == "mod.rs")
    };
    let declares = |file: &File| {
        let tokens = file.tokens();
        tokens::find(tokens, &["mod", module, ";"]).next().is_some()
    };
    tree.get(&format!("{folder}.rs")).is_some_and(declares)
        || tree.rust().filter(is_beside).any(declares)
        || tree.rust().any(|file| names_path(file, path))
}

/// `#[path = "…"] mod x;` anywhere, resolved from the declaring file's folder.
fn names_path(file: &File, path: &str) -> bool {
    let tokens = file.tokens();
    let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    tokens::find(tokens, &["[", "path", "="]).any(|index| {
        let literal = tokens.get(index + 3).map_or("", |token| token.text.trim_matches('"'));
        super::markdown::resolve(folder, literal).as_deref() == Some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_no_module_names_is_found() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "//! A.\nmod b;"),
            ("crates/a/src/b.rs", "//! B.\npub mod c;"),
            ("crates/a/src/b/c.rs", "//! C."),
            ("crates/a/src/b/d.rs", "//! D."),
        ]);
        let found: Vec<String> = orphans(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, ["crates/a/src/b/d.rs"]);
    }

    #[test]
    fn roots_and_folders_with_mod_rs_are_known() {
        let tree = Tree::of(&[
            ("crates/a/src/main.rs", "//! A.\nmod b;\nmod tests;"),
            ("crates/a/src/b/mod.rs", "//! B."),
            ("crates/a/src/bin/c.rs", "//! C."),
            ("fuzz/fuzz_targets/f.rs", "//! F."),
            ("crates/a/tests/d.rs", "//! D.\nmod peer;"),
            ("crates/a/tests/peer/mod.rs", "//! Peer."),
            ("crates/a/src/tests.rs", "//! T.\nmod e;"),
            ("crates/a/src/tests/e.rs", "//! E."),
        ]);
        assert_eq!(orphans(&tree), []);
    }

    #[test]
    fn a_path_attribute_names_a_file() {
        let tree = Tree::of(&[
            ("crates/a/tests/d.rs", "//! D.\n#[path = \"../shared/peer.rs\"]\nmod peer;"),
            ("crates/a/shared/peer.rs", "//! Peer."),
        ]);
        assert_eq!(orphans(&tree), []);
    }
}
