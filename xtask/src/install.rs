//! `cargo xtask install`: below a prefix the commands `megapipe` and `megapiped` with their manual
//! and completions, and the C library with its headers, manual and pkg-config file.
//!
//! Cargo makes the static library. The shared one is linked from it here, because its symbols have
//! versions: `rustc` hands the linker a version script of its own for a `cdylib`, in which every
//! symbol is without a version, and no linker lets a second script change that.
//!
//! Invariants: nothing outside the prefix (and `target/`) is written; what is there is replaced,
//! each file in one step: a program that has the library mapped, or is being linked meanwhile, has
//! the old one or the new one, and never half of one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::error::ToolError;
use crate::process;

mod preload;

/// The package whose version the library has.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The number that changes when programs must be compiled again.
const ABI: &str = "0";
/// System libraries that Rust's standard library needs, from `rustc --print native-static-libs`.
const SYSTEM_LIBRARIES: [&str; 7] =
    ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

/// The profile whose library and command keep their symbols: for debuggers, and for the tests
/// under valgrind.
const PROFILE_WITH_SYMBOLS: &str = "dev";

/// Each shell, and where its completions are looked for below a prefix.
const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "share/bash-completion/completions", "megapipe"),
    ("zsh", "share/zsh/site-functions", "_megapipe"),
    ("fish", "share/fish/vendor_completions.d", "megapipe.fish"),
];

/// Parts that can be installed separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum InstallPart {
    /// The commands with their manual and completions.
    Command,
    /// The C library with its headers, manual and examples.
    Library,
}

/// Builds with a cargo profile and installs both parts below `prefix`, or `only` one; always
/// `true`.
pub(crate) fn run(
    root: &Path,
    prefix: &Path,
    profile: &str,
    only: Option<InstallPart>,
) -> Result<bool, ToolError> {
    let prefix = absolute(prefix)?;
    if only != Some(InstallPart::Library) {
        let keeps_symbols = profile == PROFILE_WITH_SYMBOLS;
        install_command(&build_command(root, profile, "megapipe")?, &prefix, keeps_symbols)?;
        install_daemon(&build_command(root, profile, "megapiped")?, &prefix, keeps_symbols)?;
        println!("installed megapipe and megapiped {VERSION} below {}", prefix.display());
    }
    if only != Some(InstallPart::Command) {
        install_library(root, &prefix, profile)?;
        let (prefix, lib) = (prefix.display(), prefix.join("lib"));
        let lib = lib.display();
        println!("installed libmegapipe {VERSION} below {prefix}");
        println!(
            "  compile with PKG_CONFIG_PATH={lib}/pkgconfig and pkg-config --cflags --libs \
             megapipe;"
        );
        println!("  programs find the library by ldconfig, where {lib} is among its directories,");
        println!("  else by LD_LIBRARY_PATH={lib}, or linked with -Wl,-rpath,{lib}");
    }
    Ok(true)
}

/// The command, its manual pages and its completions, which it prints itself.
fn install_command(megapipe: &Path, prefix: &Path, keeps_symbols: bool) -> Result<(), ToolError> {
    install_program(megapipe, prefix, keeps_symbols)?;
    process::output_of(Command::new(megapipe).arg("manual").arg(prefix.join("share/man/man1")))?;
    for (shell, folder, name) in COMPLETIONS {
        let text = process::output_of(Command::new(megapipe).args(["completions", shell]))?;
        let folder = prefix.join(folder);
        fs::create_dir_all(&folder).map_err(ToolError::file(&folder))?;
        replace(&folder.join(name), |path| fs::write(path, text).map_err(ToolError::file(path)))?;
    }
    Ok(())
}

/// The daemon and its manual page, which it prints itself.
fn install_daemon(megapiped: &Path, prefix: &Path, keeps_symbols: bool) -> Result<(), ToolError> {
    install_program(megapiped, prefix, keeps_symbols)?;
    let folder = prefix.join("share/man/man8");
    process::output_of(Command::new(megapiped).arg("manual").arg(folder)).map(drop)
}

fn install_program(program: &Path, prefix: &Path, keeps_symbols: bool) -> Result<(), ToolError> {
    match keeps_symbols {
        true => copy(program, &prefix.join("bin")),
        false => copy_stripped(program, &prefix.join("bin")),
    }
}

/// The C library with what a C program is built with.
fn install_library(root: &Path, prefix: &Path, profile: &str) -> Result<(), ToolError> {
    let capi = root.join("crates/capi");
    let archive = build_library(root, profile)?;
    let lib = prefix.join("lib");
    for header in files_in(&capi.join("include"))? {
        copy(&header, &prefix.join("include"))?;
    }
    copy(&archive, &lib)?;
    let keeps_symbols = profile == PROFILE_WITH_SYMBOLS;
    preload::install(root, &lib.join("megapipe"), profile, keeps_symbols)?;
    link(&archive, &capi.join("megapipe.map"), &lib, keeps_symbols)?;
    write_pkg_config(&capi.join("megapipe.pc.in"), prefix)?;
    for page in files_in(&capi.join("man"))? {
        let section = page.extension().unwrap_or_default().to_string_lossy();
        copy(&page, &prefix.join("share/man").join(format!("man{section}")))?;
    }
    for example in files_in(&capi.join("examples"))? {
        copy(&example, &prefix.join("share/doc/megapipe/examples"))?;
    }
    Ok(())
}

/// The path of a command, from cargo.
fn build_command(root: &Path, profile: &str, name: &str) -> Result<PathBuf, ToolError> {
    let mut cargo = process::cargo(root);
    cargo.args(["build", "--package=megapipe-cli", "--message-format=json"]);
    built(cargo.arg(format!("--bin={name}")).arg(format!("--profile={profile}")), name)
}

/// The path of the static library, from cargo.
fn build_library(root: &Path, profile: &str) -> Result<PathBuf, ToolError> {
    let mut cargo = process::cargo(root);
    cargo.args(["rustc", "--lib", "--package=megapipe-capi", "--message-format=json"]);
    cargo.arg("--crate-type=staticlib").arg(format!("--profile={profile}"));
    built(&mut cargo, "libmegapipe.a")
}

/// The file of this name that a run of cargo has made.
fn built(cargo: &mut Command, name: &str) -> Result<PathBuf, ToolError> {
    let messages = process::output_of(cargo)?;
    file_in(&messages, name).ok_or_else(|| ToolError::Failed {
        command: process::describe(cargo),
        output: format!("cargo named no {name}"),
    })
}

/// The file of this name among those that cargo's messages name.
fn file_in(messages: &str, name: &str) -> Option<PathBuf> {
    let parsed = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = parsed.flat_map(|message| message["filenames"].as_array().cloned());
    let names = files.flatten().filter_map(|name| name.as_str().map(PathBuf::from));
    names.into_iter().find(|path| path.file_name().is_some_and(|found| found == name))
}

/// The shared library with its links, and only the calls visible in it.
fn link(archive: &Path, versions: &Path, lib: &Path, keeps_symbols: bool) -> Result<(), ToolError> {
    let (soname, file) = (format!("libmegapipe.so.{ABI}"), format!("libmegapipe.so.{VERSION}"));
    replace(&lib.join(&file), |path| {
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-o"]).arg(path);
        cc.arg(format!("-Wl,-soname,{soname}"));
        cc.arg(format!("-Wl,--version-script={}", versions.display()));
        cc.args(["-Wl,--gc-sections,--as-needed,-z,relro,-z,now,-z,defs", "-Wl,--whole-archive"]);
        if !keeps_symbols {
            cc.arg("-Wl,--strip-all");
        }
        cc.arg(archive).arg("-Wl,--no-whole-archive").args(SYSTEM_LIBRARIES);
        process::output_of(&mut cc).map(drop)
    })?;
    point(&lib.join(&soname), &file)?;
    point(&lib.join("libmegapipe.so"), &soname)
}

/// Makes `path` a symbolic link to its neighbour `target`.
fn point(path: &Path, target: &str) -> Result<(), ToolError> {
    replace(path, |path| symlink(target, path).map_err(ToolError::file(path)))
}

/// Makes a file under another name, and puts it in the place of `path` when it is whole.
fn replace(
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), ToolError>,
) -> Result<(), ToolError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let made = make(&new).and_then(|()| fs::rename(&new, path).map_err(ToolError::file(path)));
    if made.is_err() {
        // The file may not exist; the original error is reported.
        let _ = fs::remove_file(&new);
    }
    made
}

fn write_pkg_config(template: &Path, prefix: &Path) -> Result<(), ToolError> {
    let text = fs::read_to_string(template).map_err(ToolError::file(template))?;
    let text = text.replace("@PREFIX@", &prefix.to_string_lossy()).replace("@VERSION@", VERSION);
    let folder = prefix.join("lib/pkgconfig");
    fs::create_dir_all(&folder).map_err(ToolError::file(&folder))?;
    let path = folder.join("megapipe.pc");
    replace(&path, |path| fs::write(path, text).map_err(ToolError::file(path)))
}

/// Copies a file into a folder, which is made if it is missing.
fn copy(file: &Path, folder: &Path) -> Result<(), ToolError> {
    fs::create_dir_all(folder).map_err(ToolError::file(folder))?;
    let target = folder.join(file.file_name().unwrap_or_default());
    replace(&target, |target| fs::copy(file, target).map(drop).map_err(ToolError::file(file)))
}

/// Copies a program into a folder without its symbols. A machine without strip(1) gets them all.
fn copy_stripped(program: &Path, folder: &Path) -> Result<(), ToolError> {
    if Command::new("strip").arg("--version").output().is_err() {
        println!("strip is missing: {} keeps its symbols", program.display());
        return copy(program, folder);
    }
    fs::create_dir_all(folder).map_err(ToolError::file(folder))?;
    let target = folder.join(program.file_name().unwrap_or_default());
    replace(&target, |target| {
        let mut strip = Command::new("strip");
        strip.args(["--strip-all", "-o"]).arg(target).arg(program);
        process::output_of(&mut strip).map(drop)
    })
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>, ToolError> {
    let entries = fs::read_dir(folder).map_err(ToolError::file(folder))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    paths.collect::<Result<_, _>>().map_err(ToolError::file(folder))
}

fn absolute(path: &Path) -> Result<PathBuf, ToolError> {
    std::path::absolute(path).map_err(ToolError::file(path))
}

#[cfg(test)]
mod tests;
