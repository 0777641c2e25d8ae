//! Root and packages of the workspace, from cargo.

use std::env;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::ToolError;
use crate::process;

/// One package of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Package {
    /// The package's name.
    pub(crate) name: String,
    /// Names of the workspace's packages that it depends on, of any dependency kind.
    pub(crate) depends_on: Vec<String>,
    /// Its features, `default` left out.
    pub(crate) features: Vec<String>,
    /// The manifest does not forbid to publish it.
    pub(crate) is_public: bool,
    /// Fields of [`PUBLIC_FIELDS`] that the manifest lacks.
    pub(crate) missing: Vec<&'static str>,
    /// The folder of its manifest.
    pub(crate) folder: PathBuf,
}

/// What the manifest of a public package has.
const PUBLIC_FIELDS: [&str; 8] = [
    "description",
    "license",
    "rust_version",
    "repository",
    "documentation",
    "readme",
    "keywords",
    "categories",
];

/// The workspace's root folder.
pub(crate) fn root() -> Result<PathBuf, ToolError> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf();
    let xtask = manifest.filter(|path| path.ends_with("xtask")).unwrap_or(here);
    let root = xtask.parent().unwrap_or(&xtask);
    root.canonicalize().map_err(ToolError::file(root))
}

/// Cargo's folder for what it builds, from its settings and `CARGO_TARGET_DIR`.
pub(crate) fn target_folder(root: &Path) -> Result<PathBuf, ToolError> {
    let metadata = metadata(root)?;
    let folder = metadata["target_directory"].as_str().map(PathBuf::from);
    folder.ok_or_else(|| ToolError::Wrong("cargo metadata has no target_directory".to_owned()))
}

/// The workspace's packages by `cargo metadata`.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>, ToolError> {
    Ok(parse(&metadata(root)?))
}

fn metadata(root: &Path) -> Result<Value, ToolError> {
    let mut cargo = process::cargo(root);
    cargo.args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
    Ok(serde_json::from_str(&process::output_of(&mut cargo)?)?)
}

pub(crate) fn parse(metadata: &Value) -> Vec<Package> {
    let empty = Vec::new();
    let all = metadata["packages"].as_array().unwrap_or(&empty);
    let names: Vec<&str> = all.iter().filter_map(|package| package["name"].as_str()).collect();
    let strings = |value: &Value, field: &str| -> Vec<String> {
        let list = value.as_array().unwrap_or(&empty);
        list.iter().filter_map(|entry| entry[field].as_str()).map(str::to_owned).collect()
    };
    let package = |value: &Value| Package {
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        depends_on: strings(&value["dependencies"], "name")
            .into_iter()
            .filter(|name| names.contains(&name.as_str()))
            .collect(),
        features: value["features"]
            .as_object()
            .map(|features| features.keys().filter(|name| *name != "default").cloned().collect())
            .unwrap_or_default(),
        is_public: value["publish"].is_null(),
        missing: PUBLIC_FIELDS.into_iter().filter(|field| is_empty(&value[field])).collect(),
        folder: folder_of(value["manifest_path"].as_str().unwrap_or_default()),
    };
    all.iter().map(package).collect()
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn folder_of(manifest: &str) -> PathBuf {
    Path::new(manifest).parent().map(Path::to_path_buf).unwrap_or_default()
}

#[cfg(test)]
mod tests;
