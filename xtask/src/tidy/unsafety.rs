//! Where `unsafe` may stand. `docs/UNSAFE.md` gives the reason for each place.

use super::tokens;
use super::{Finding, Tree};

/// The places. Everything else in the workspace is safe Rust.
const ALLOWED: &[&str] = &[
    "crates/channel/src/kernel/",
    "crates/sockets/src/kernel.rs",
    "crates/sockets/tests/",
    "crates/channel/tests/",
    "crates/capi/",
    "crates/marshal/",
    "crates/packetdrill/",
    "crates/preload/",
    "crates/shm/",
    "crates/link/",
    "bench/src/baseline/",
    "scripts/src/linux/sys.rs",
];

/// No `unsafe` outside the list.
pub(super) fn allow_list(tree: &Tree) -> Vec<Finding> {
    let outside =
        tree.rust().filter(|file| !ALLOWED.iter().any(|path| file.path.starts_with(path)));
    outside
        .flat_map(|file| {
            let tokens = file.tokens();
            tokens::find(tokens, &["unsafe"]).map(|index| {
                let text = "unsafe outside the places that docs/UNSAFE.md lists";
                Finding::new(&file.path, tokens[index].line, text)
            })
        })
        .collect()
}

/// A crate with no entry in the list forbids it, so that the compiler reports it first.
pub(super) fn forbidden_elsewhere(tree: &Tree) -> Vec<Finding> {
    let is_root = |path: &str| path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
    let in_safe_crate = |path: &str| {
        let folder = path.rsplit_once("src/").map_or(path, |(folder, _)| folder);
        !ALLOWED.iter().any(|allowed| allowed.starts_with(folder))
    };
    tree.rust()
        .filter(|file| is_root(&file.path) && in_safe_crate(&file.path))
        .filter(|file| {
            let forbids = ["#", "!", "[", "forbid", "(", "unsafe_code"];
            tokens::find(file.tokens(), &forbids).next().is_none()
        })
        .map(|file| Finding::new(&file.path, 0, "add #![forbid(unsafe_code)]"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_outside_the_list_is_found() {
        let source = "fn a() { unsafe { b() } }";
        assert_eq!(allow_list(&Tree::of(&[("crates/apps/src/kv.rs", source)])).len(), 1);
        assert_eq!(allow_list(&Tree::of(&[("crates/channel/src/buf.rs", source)])).len(), 1);
        assert_eq!(allow_list(&Tree::of(&[("crates/channel/src/kernel/ring.rs", source)])), []);
        let words = "// unsafe\nconst A: &str = \"unsafe\"; fn unsafe_b() {}";
        assert_eq!(allow_list(&Tree::of(&[("crates/apps/src/kv.rs", words)])), []);
    }

    #[test]
    fn a_safe_crate_must_say_so() {
        let quiet = "//! A.\nfn a() {}";
        let found = forbidden_elsewhere(&Tree::of(&[("crates/apps/src/lib.rs", quiet)]));
        assert_eq!(found.len(), 1);
        let said = "//! A.\n#![forbid(unsafe_code)]\n";
        assert_eq!(forbidden_elsewhere(&Tree::of(&[("crates/apps/src/lib.rs", said)])), []);
        assert_eq!(forbidden_elsewhere(&Tree::of(&[("crates/channel/src/lib.rs", quiet)])), []);
        assert_eq!(forbidden_elsewhere(&Tree::of(&[("bench/src/lib.rs", quiet)])), []);
    }
}
