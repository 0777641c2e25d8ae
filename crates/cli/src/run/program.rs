//! The program of `megapipe run`: its file, whether it can be preloaded, and what it imports.
//!
//! The dynamic loader ignores LD_PRELOAD for some programs, mostly without a message. Read first:
//! `megapipe_preload::elf`.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use megapipe_preload::elf::{Elf, SCRIPTS_MAX, interpreter_of_script, refusal};

/// Most bytes of a program that are read.
const PROGRAM_BYTES_MAX: u64 = 1 << 30;

/// Why a program cannot be preloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("{name}: not found")]
    NotFound { name: String },
    #[error("{path}: {source}")]
    Unreadable { path: String, source: io::Error },
    #[error("{path} cannot be preloaded: {reason}")]
    Refused { path: String, reason: &'static str },
}

/// A program, and what its file says.
#[derive(Debug)]
pub(crate) struct Program {
    /// The file that the command names.
    pub(crate) path: PathBuf,
    /// The interpreter of a script.
    pub(crate) script: Option<PathBuf>,
    bytes: Vec<u8>,
    /// Of the file that the loader loads.
    mode: u32,
    has_capabilities: bool,
}

impl Program {
    /// Finds a command as execvp(3) does, and follows `#!`.
    pub(crate) fn find(name: &OsStr) -> Result<Self, ProgramError> {
        let not_found = || ProgramError::NotFound { name: name.to_string_lossy().into_owned() };
        let path = match name.as_bytes().contains(&b'/') {
            true => Some(PathBuf::from(name)).filter(|path| path.exists()),
            false => {
                let folders = std::env::var_os("PATH").unwrap_or_default();
                let paths = std::env::split_paths(&folders).map(|folder| folder.join(name));
                paths.into_iter().find(|path| is_executable(path))
            }
        };
        let path = path.ok_or_else(not_found)?;
        let mut loaded = path.clone();
        for _ in 0..SCRIPTS_MAX {
            let bytes = read(&loaded)?;
            let Some(interpreter) = interpreter_of_script(&bytes) else {
                let script = (loaded != path).then(|| loaded.clone());
                let mode = fs::metadata(&loaded).map_or(0, |it| it.permissions().mode());
                let mut room = [0; 64];
                let attribute = rustix::fs::getxattr(&loaded, "security.capability", &mut room);
                return Ok(Self { path, script, bytes, mode, has_capabilities: attribute.is_ok() });
            };
            loaded = PathBuf::from(OsStr::from_bytes(interpreter));
        }
        let reason = "its scripts name each other";
        Err(ProgramError::Refused { path: path.display().to_string(), reason })
    }

    /// The file that the loader loads.
    fn loaded(&self) -> &Path {
        self.script.as_ref().unwrap_or(&self.path)
    }

    /// Checks that the loader takes the library.
    pub(crate) fn check(&self) -> Result<(), ProgramError> {
        match refusal(&self.bytes, self.mode, self.has_capabilities) {
            None => Ok(()),
            Some(reason) => {
                Err(ProgramError::Refused { path: self.loaded().display().to_string(), reason })
            }
        }
    }

    /// Returns the files of the program and of the libraries that the loader would load with it, as
    /// the loader lists them, with the names that each imports.
    pub(crate) fn imports(&self) -> Result<Vec<(PathBuf, Vec<String>)>, ProgramError> {
        let mut files = vec![(self.loaded().to_owned(), imports_of(&self.bytes))];
        for library in self.libraries() {
            let bytes = read(&library)?;
            files.push((library, imports_of(&bytes)));
        }
        Ok(files)
    }

    /// The runtime of AddressSanitizer that the program was linked with.
    pub(super) fn address_sanitizer(&self) -> Option<PathBuf> {
        // The loader is asked about few programs.
        let uses_it = imports_of(&self.bytes).iter().any(|name| name == "__asan_init");
        let libraries = if uses_it { self.libraries() } else { Vec::new() };
        libraries.into_iter().find(|path| is_address_sanitizer(path))
    }

    /// The loader lists libraries without running the program.
    fn libraries(&self) -> Vec<PathBuf> {
        let loader = Elf::of(&self.bytes).and_then(|elf| elf.loader());
        let Some(loader) = loader.map(OsStr::from_bytes) else { return Vec::new() };
        let mut command = Command::new(loader);
        command.arg("--list").arg(self.loaded()).env_remove("LD_PRELOAD");
        // A library that is missing is the loader's to refuse.
        let text = command.output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().filter_map(path_of_library).collect()
    }
}

/// How the file name of AddressSanitizer's runtime begins.
const ASAN: &str = "libasan.so";

pub(super) fn is_address_sanitizer(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_bytes().starts_with(ASAN.as_bytes()))
}

/// The path in a line of the loader: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)`.
fn path_of_library(line: &str) -> Option<PathBuf> {
    let line = line.split_once(" => ").map_or(line, |(_, path)| path).trim();
    let path = line.rsplit_once(" (").map_or(line, |(path, _)| path);
    path.starts_with('/').then(|| PathBuf::from(path))
}

fn imports_of(bytes: &[u8]) -> Vec<String> {
    let imports = Elf::of(bytes).map(|elf| elf.imports()).unwrap_or_default();
    imports.into_iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

fn read(path: &Path) -> Result<Vec<u8>, ProgramError> {
    let unreadable = |source| ProgramError::Unreadable { path: path.display().to_string(), source };
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(PROGRAM_BYTES_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_executable_and_its_libraries_are_read() {
        let program = Program::find(std::env::current_exe().unwrap().as_os_str()).unwrap();
        program.check().unwrap();
        let files = program.imports().unwrap();
        assert!(files[0].1.iter().any(|name| name == "write"), "{:?}", files[0]);
        assert!(files.iter().any(|(path, _)| path.to_string_lossy().contains("libc.so")));
    }

    #[test]
    fn runtime_of_address_sanitizer_is_known_by_its_name() {
        let is = |path: &str| is_address_sanitizer(Path::new(path));
        assert!(is("libasan.so.8") && is("/usr/lib/x86_64-linux-gnu/libasan.so.8"));
        assert!(!is("/usr/lib/libjemalloc.so.2") && !is("/libasan.so.8/other.so"));
        let program = Program::find(std::env::current_exe().unwrap().as_os_str()).unwrap();
        assert_eq!(program.address_sanitizer(), None);
    }

    #[test]
    fn lines_of_the_loader_are_parsed() {
        for (line, path) in [
            ("\tlinux-vdso.so.1 (0x00007ffc)", None),
            ("\tlibc.so.6 => /lib/libc.so.6 (0x00007f)", Some("/lib/libc.so.6")),
            ("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)", Some("/lib64/ld-linux-x86-64.so.2")),
            ("\tlibx.so => not found", None),
        ] {
            assert_eq!(path_of_library(line), path.map(PathBuf::from), "{line}");
        }
    }
}
