//! What is taken from `cargo metadata`, on a small answer of its shape.

use serde_json::json;

use super::*;

#[test]
fn only_dependencies_inside_the_workspace_are_kept() {
    let metadata = json!({"packages": [
        {"name": "a", "dependencies": [{"name": "b"}, {"name": "libc"}], "features": {}},
        {"name": "b", "dependencies": [], "features": {"default": ["x"], "x": []}},
    ]});
    let packages = parse(&metadata);
    assert_eq!(packages[0].depends_on, ["b"]);
    assert_eq!(packages[1].depends_on, Vec::<String>::new());
    assert_eq!(packages[1].features, ["x"]);
}

#[test]
fn the_root_holds_the_workspace_manifest() {
    let root = root().expect("a workspace");
    assert!(root.join("Cargo.toml").is_file());
    assert!(root.join("xtask").is_dir());
}
