//! Source packages of Debian, which apt fetches and verifies, and CMake builds.
//!
//! In: a package's name, and what to build of it. Out: the built program, below `target/programs`.
//!
//! Invariants
//! - Only `target/programs` is written: apt has its own list of sources and its own state there.
//! - What is fetched or built once stays, until `target/programs` is removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::FOLDER;
use crate::error::ToolError;
use crate::process;

/// Debian's public keys, which its sources are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const MIRROR: &str = "http://deb.debian.org/debian";

/// One program of a source package.
pub(super) struct DebianSource {
    pub(super) package: &'static str,
    /// Options of CMake.
    pub(super) options: &'static [&'static str],
    /// The target to build.
    pub(super) target: &'static str,
    /// Path of the program below the build folder.
    pub(super) program: &'static str,
    /// Changes of the sources before the build: file, text, new text.
    pub(super) changes: &'static [(&'static str, &'static str, &'static str)],
}

impl DebianSource {
    /// The built program.
    ///
    /// # Errors
    /// The machine is no Debian, its mirror does not answer, or the build fails.
    pub(super) fn program(&self, root: &Path) -> Result<PathBuf, ToolError> {
        let folder = root.join(FOLDER).join("debian");
        let source = folder.join(self.package);
        let build = folder.join(format!("{}-build", self.package));
        let program = build.join(self.program);
        if program.is_file() {
            return Ok(program);
        }
        if !source.is_dir() {
            self.fetch(&folder, &source)?;
        }
        println!("building {} of the source package {}", self.target, self.package);
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(&source).arg("-B").arg(&build).args(self.options);
        process::output_of(&mut configure)?;
        let mut make = Command::new("cmake");
        make.arg("--build").arg(&build).args(["--target", self.target, "--parallel", "2"]);
        process::output_of(&mut make)?;
        Ok(program)
    }

    fn fetch(&self, folder: &Path, source: &Path) -> Result<(), ToolError> {
        println!("fetching the source package {}", self.package);
        for folder in [folder.join("lists/partial"), folder.join("cache/archives/partial")] {
            fs::create_dir_all(&folder).map_err(ToolError::file(&folder))?;
        }
        let sources = folder.join("sources.list");
        let line = format!("deb-src [signed-by={KEYRING}] {MIRROR} {} main\n", codename()?);
        fs::write(&sources, line).map_err(ToolError::file(&sources))?;
        process::output_of(apt(folder).arg("update"))?;
        process::output_of(apt(folder).args(["source", "--download-only", self.package]))?;
        let prefix = format!("{}_", self.package);
        let description = find(folder, |name| name.starts_with(&prefix) && name.ends_with(".dsc"))?;
        // The folder has its name when it is whole.
        let new = folder.join(format!("{}.new", self.package));
        if new.is_dir() {
            fs::remove_dir_all(&new).map_err(ToolError::file(&new))?;
        }
        let mut unpack = Command::new("dpkg-source");
        unpack.args(["--no-check", "-x"]).arg(&description).arg(&new).current_dir(folder);
        process::output_of(&mut unpack)?;
        for (file, old, changed) in self.changes {
            let path = new.join(file);
            let text = fs::read_to_string(&path).map_err(ToolError::file(&path))?;
            if !text.contains(old) {
                return Err(ToolError::Wrong(format!("{}: no {old}", path.display())));
            }
            fs::write(&path, text.replace(old, changed)).map_err(ToolError::file(&path))?;
        }
        fs::rename(&new, source).map_err(ToolError::file(source))
    }
}

/// apt with the list of sources and the state of `folder` alone.
fn apt(folder: &Path) -> Command {
    let mut apt = Command::new("apt-get");
    let option = |name: &str, value: &Path| format!("-o{name}={}", value.display());
    apt.arg("-q").current_dir(folder);
    apt.arg(option("Dir::Etc::sourcelist", &folder.join("sources.list")));
    apt.arg(option("Dir::Etc::sourceparts", Path::new("/dev/null")));
    apt.arg(option("Dir::State::lists", &folder.join("lists")));
    apt.arg(option("Dir::Cache", &folder.join("cache")));
    apt
}

/// The name of the machine's Debian: its programs have these sources.
fn codename() -> Result<String, ToolError> {
    let path = Path::new("/etc/os-release");
    let text = fs::read_to_string(path).map_err(ToolError::file(path))?;
    let named = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let is_debian = text.lines().any(|line| line == "ID=debian");
    let wrong = || ToolError::Wrong("no Debian: its source packages cannot be had".to_owned());
    named.filter(|_| is_debian).map(str::to_owned).ok_or_else(wrong)
}

fn find(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Result<PathBuf, ToolError> {
    let entries = fs::read_dir(folder).map_err(ToolError::file(folder))?;
    let mut paths = entries.flatten().map(|entry| entry.path());
    let found =
        paths.find(|path| path.file_name().is_some_and(|name| is_wanted(&name.to_string_lossy())));
    found.ok_or_else(|| ToolError::Wrong(format!("{}: apt fetched nothing", folder.display())))
}
