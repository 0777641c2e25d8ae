//! How findings read, and that the project itself has none.

use super::*;

#[test]
fn a_finding_reads_like_a_compiler_message() {
    assert_eq!(Finding::new("a.rs", 3, "too long").to_string(), "a.rs:3: too long");
    assert_eq!(Finding::new("a.rs", 0, "too long").to_string(), "a.rs: too long");
}

#[test]
fn sources_that_are_no_rust_are_found() {
    let tree = Tree::of(&[("crates/a/src/lib.rs", "//! A.\nfn ( {")]);
    assert_eq!(tree.unreadable().len(), 1);
    let tree = Tree::of(&[("crates/a/src/lib.rs", "//! A.\nfn a() {}\n")]);
    assert_eq!(tree.unreadable(), []);
}
