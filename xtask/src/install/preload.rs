//! `libmegapipe-preload.so`, below `lib/megapipe`.
//!
//! Cargo makes a static library, whose functions have the names `mp_preload_read` and so on. Here
//! they get libc's names, and the library's own references to libc's `read` get the name of its
//! own function for it, `mp_inner_read` (docs/decisions/0049-interposition-by-renaming.md). Then
//! the linker makes the shared library, with libc's names alone visible and without a version.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{SYSTEM_LIBRARIES, built, replace};
use crate::error::ToolError;
use crate::process;

const FILE: &str = "libmegapipe-preload.so";
const ARCHIVE: &str = "libmegapipe_preload.a";
/// Prefix of the functions that the program calls.
const OUTER: &str = "mp_preload_";
/// Prefix of the functions that the library calls.
const INNER: &str = "mp_inner_";

pub(super) fn install(
    root: &Path,
    folder: &Path,
    profile: &str,
    keeps_symbols: bool,
) -> Result<(), ToolError> {
    let mut cargo = process::cargo(root);
    cargo.args(["rustc", "--lib", "--package=megapipe-preload", "--message-format=json"]);
    cargo.args(["--crate-type=staticlib", "--features=library"]);
    let archive = built(cargo.arg(format!("--profile={profile}")), ARCHIVE)?;
    fs::create_dir_all(folder).map_err(ToolError::file(folder))?;
    let text = process::output_of(Command::new("nm").arg("--defined-only").arg(&archive))?;
    let names = names(&text);
    replace(&folder.join(FILE), |path| {
        // Beside a name that is this process's own: others may install at the same time.
        let beside = |extension: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(extension);
            PathBuf::from(name)
        };
        let (renames, script, renamed) = (beside(".names"), beside(".map"), beside(".a"));
        let write =
            |path: &Path, text: String| fs::write(path, text).map_err(ToolError::file(path));
        write(&renames, names.iter().map(|name| rename(name)).collect())?;
        write(&script, version_script(&names))?;
        let made = link(&archive, (&renames, &script, &renamed), path, keeps_symbols);
        for file in [renames, script, renamed] {
            // One that was not made needs no removal.
            let _ = fs::remove_file(file);
        }
        made
    })
}

fn link(
    archive: &Path,
    (renames, script, renamed): (&Path, &Path, &Path),
    path: &Path,
    keeps_symbols: bool,
) -> Result<(), ToolError> {
    let mut objcopy = Command::new("objcopy");
    objcopy.arg(format!("--redefine-syms={}", renames.display())).arg(archive).arg(renamed);
    process::output_of(&mut objcopy)?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-o"]).arg(path).arg(format!("-Wl,-soname,{FILE}"));
    cc.arg(format!("-Wl,--version-script={}", script.display()));
    cc.args(["-Wl,--gc-sections,--as-needed,-z,relro,-z,now,-z,defs", "-Wl,--whole-archive"]);
    if !keeps_symbols {
        cc.arg("-Wl,--strip-all");
    }
    cc.arg(renamed).arg("-Wl,--no-whole-archive").args(SYSTEM_LIBRARIES);
    process::output_of(&mut cc).map(drop)
}

/// The functions that a static library interposes, from what nm(1) prints.
fn names(text: &str) -> BTreeSet<&str> {
    let symbols = text.lines().filter_map(|line| line.split_whitespace().last());
    symbols.filter_map(|symbol| symbol.strip_prefix(OUTER)).collect()
}

/// The lines of objcopy(1) for a function.
fn rename(name: &str) -> String {
    format!("{OUTER}{name} {name}\n{name} {INNER}{name}\n")
}

/// Only the names of libc are visible.
fn version_script(names: &BTreeSet<&str>) -> String {
    let visible: String = names.iter().map(|name| format!("  {name};\n")).collect();
    format!("{{\nglobal:\n{visible}local:\n  *;\n}};\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_symbols_of_the_library() {
        let text =
            "\nx.o:\n0000 T mp_preload_read\n0000 T mp_inner_read\n0010 T mp_preload__exit\n";
        let found = names(text);
        assert_eq!(found.iter().copied().collect::<Vec<_>>(), ["_exit", "read"]);
        assert_eq!(rename("read"), "mp_preload_read read\nread mp_inner_read\n");
        assert!(version_script(&found).contains("global:\n  _exit;\n  read;\nlocal:\n  *;"));
    }
}
