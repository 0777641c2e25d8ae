//! Whether every public package can be published: its manifest is complete, it depends on public
//! packages alone, it has the texts of its licences, it includes no file from outside of its
//! folder, and `cargo package` takes all of them in the order of their dependencies.
//!
//! The packages are not compiled again: their sources are those that the other steps compile.
//! Before a release, `cargo publish --dry-run --workspace` does that, too.

use std::fs;
use std::path::{Component, Path, PathBuf};

use super::{Display, StepOutcome, command};
use crate::error::ToolError;
use crate::process;
use crate::workspace::{self, Package};

/// Macros that read a file when the package is compiled.
const INCLUDES: [&str; 3] = ["include_str!(\"", "include_bytes!(\"", "include!(\""];

/// The files with the texts of the licences that the manifests name.
const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];

pub(super) fn check(root: &Path, display: &mut Display) -> Result<StepOutcome, ToolError> {
    let packages = workspace::packages(root)?;
    let mut findings = faults(&packages);
    findings.extend(missing_licences(&packages));
    for package in packages.iter().filter(|package| package.is_public) {
        includes_from_outside(&package.folder, &package.folder.join("src"), &mut findings)?;
    }
    let (order, cycle) = publishing_order(&packages);
    if !cycle.is_empty() {
        findings.push(format!("these depend on each other: {}", cycle.join(", ")));
    }
    if !findings.is_empty() {
        return Ok(StepOutcome::check("package", false, findings));
    }
    let mut cargo = process::cargo(root);
    cargo.args(["package", "--no-verify", "--allow-dirty", "--offline"]);
    for name in order {
        cargo.args(["--package", name]);
    }
    command(&mut cargo, display)
}

/// What keeps public packages from being published, by their manifests.
fn faults(packages: &[Package]) -> Vec<String> {
    let is_private = |name: &String| packages.iter().any(|one| one.name == *name && !one.is_public);
    let mut found = Vec::new();
    for package in packages.iter().filter(|package| package.is_public) {
        let name = &package.name;
        if !package.missing.is_empty() {
            found.push(format!("{name}: the manifest lacks {}", package.missing.join(", ")));
        }
        for other in package.depends_on.iter().filter(|other| is_private(other)) {
            found.push(format!("{name} depends on {other}, which is not published"));
        }
    }
    found
}

/// Public packages whose folder lacks the text of a licence: a package has its own files only.
fn missing_licences(packages: &[Package]) -> Vec<String> {
    let public = packages.iter().filter(|package| package.is_public);
    let lacks = |package: &Package, name: &str| !package.folder.join(name).is_file();
    public
        .flat_map(|package| LICENCES.map(|name| (package, name)))
        .filter(|(package, name)| lacks(package, name))
        .map(|(package, name)| format!("{}: its folder lacks {name}", package.name))
        .collect()
}

/// The public packages, each after those that it depends on, and what is left because of a cycle.
fn publishing_order(packages: &[Package]) -> (Vec<&str>, Vec<&str>) {
    let mut order: Vec<&str> = Vec::new();
    let mut left: Vec<&Package> = packages.iter().filter(|package| package.is_public).collect();
    loop {
        let is_ready = |package: &&Package| {
            let mut others = package.depends_on.iter().map(String::as_str);
            others.all(|other| other == package.name || order.contains(&other))
        };
        let (ready, waiting): (Vec<_>, Vec<_>) = left.into_iter().partition(is_ready);
        if ready.is_empty() {
            return (order, waiting.iter().map(|package| package.name.as_str()).collect());
        }
        order.extend(ready.iter().map(|package| package.name.as_str()));
        left = waiting;
    }
}

/// Sources below `source` that read a file from outside of `folder` when they are compiled. Tests
/// may: they do not run from a package.
fn includes_from_outside(
    folder: &Path,
    source: &Path,
    found: &mut Vec<String>,
) -> Result<(), ToolError> {
    for entry in fs::read_dir(source).map_err(ToolError::file(source))? {
        let path = entry.map_err(ToolError::file(source))?.path();
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            includes_from_outside(folder, &path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).map_err(ToolError::file(&path))?;
            for include in included(&text) {
                if !plain(&source.join(include)).starts_with(folder) {
                    found.push(format!("{}: includes {include}", path.display()));
                }
            }
        }
    }
    Ok(())
}

/// The paths that a source includes.
fn included(text: &str) -> impl Iterator<Item = &str> {
    INCLUDES.into_iter().flat_map(move |call| {
        text.split(call).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0))
    })
}

/// A path without `..`, by its text alone.
fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
        plain
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, depends_on: &[&str], publish: serde_json::Value) -> serde_json::Value {
        let dependencies: Vec<_> = depends_on.iter().map(|name| json!({"name": name})).collect();
        json!({
            "name": name, "dependencies": dependencies, "features": {}, "publish": publish,
            "manifest_path": format!("/w/{name}/Cargo.toml"), "description": "d", "license": "l",
            "rust_version": "1", "repository": "r", "documentation": "d", "readme": "R",
            "keywords": ["k"], "categories": ["c"],
        })
    }

    #[test]
    fn incomplete_manifests_and_private_dependencies_are_found() {
        let mut bare = package("bare", &["tools"], json!(null));
        bare["keywords"] = json!([]);
        bare["readme"] = json!(null);
        let tools = package("tools", &[], json!([]));
        let packages = workspace::parse(&json!({"packages": [bare, tools]}));
        assert_eq!(
            faults(&packages),
            [
                "bare: the manifest lacks readme, keywords",
                "bare depends on tools, which is not published",
            ]
        );
    }

    #[test]
    fn missing_licences_are_found_in_public_packages() {
        let packages = workspace::parse(&json!({"packages": [
            package("public", &[], json!(null)),
            package("private", &[], json!([])),
        ]}));
        let expected =
            ["public: its folder lacks LICENSE-APACHE", "public: its folder lacks LICENSE-MIT"];
        assert_eq!(missing_licences(&packages), expected);
    }

    #[test]
    fn packages_are_published_after_their_dependencies() {
        let packages = |cycle: &[&str]| {
            workspace::parse(&json!({"packages": [
                package("top", &["middle", "base"], json!(null)),
                package("base", cycle, json!(null)),
                package("middle", &["base"], json!(null)),
                package("private", &["top"], json!([])),
            ]}))
        };
        assert_eq!(publishing_order(&packages(&[])), (vec!["base", "middle", "top"], vec![]));
        let (order, cycle) = (Vec::<&str>::new(), vec!["top", "base", "middle"]);
        assert_eq!(publishing_order(&packages(&["middle"])), (order, cycle));
    }

    #[test]
    fn includes_from_outside_of_the_folder_are_found() {
        let folder = std::env::temp_dir().join(format!("megapipe-package-{}", std::process::id()));
        let source = folder.join("crate/src");
        fs::create_dir_all(source.join("tests")).unwrap();
        let text = "const A: &str = include_str!(\"../README.md\");\n\
                    const B: &[u8] = include_bytes!(\"../../other/x.h\");\n";
        fs::write(source.join("lib.rs"), text).unwrap();
        fs::write(source.join("tests/data.rs"), text).unwrap();
        let mut found = Vec::new();
        includes_from_outside(&folder.join("crate"), &source, &mut found).unwrap();
        assert_eq!(found, [format!("{}/lib.rs: includes ../../other/x.h", source.display())]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn manifests_of_this_workspace_are_complete() {
        let packages = workspace::packages(&workspace::root().unwrap()).unwrap();
        assert_eq!(faults(&packages), Vec::<String>::new());
        assert_eq!(missing_licences(&packages), Vec::<String>::new());
        assert!(publishing_order(&packages).1.is_empty());
    }
}
