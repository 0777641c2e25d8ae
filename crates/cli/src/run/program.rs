//! Whether a program can be preloaded: the dynamic loader ignores LD_PRELOAD for some, mostly
//! without a message.
//!
//! Read first: elf(5), ld.so(8) on secure execution, execve(2) on `#!`.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Scripts that name each other, as in the kernel.
const SCRIPTS_MAX: usize = 4;
/// Most bytes of a program that are read.
const PROGRAM_BYTES_MAX: u64 = 1 << 30;
/// Bytes of a line `#!`.
const LINE_BYTES: usize = 256;

const PT_INTERP: u32 = 3;
const SHT_DYNSYM: u32 = 11;
const CLASS_64: u8 = 2;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;

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
            loaded = interpreter;
        }
        let reason = "its scripts name each other";
        Err(ProgramError::Refused { path: path.display().to_string(), reason })
    }

    /// Checks that the loader takes the library.
    pub(crate) fn check(&self) -> Result<(), ProgramError> {
        let loaded = self.script.as_ref().unwrap_or(&self.path);
        let refuse =
            |reason| Err(ProgramError::Refused { path: loaded.display().to_string(), reason });
        let Some(elf) = Elf::of(&self.bytes) else {
            return refuse("it is no ELF program of 64 bits");
        };
        if elf.machine() != Some(MACHINE) {
            return refuse("it is made for another machine");
        }
        let Some(interpreter) = elf.interpreter() else {
            return refuse("it is linked statically (as Go programs are), without a loader");
        };
        if !String::from_utf8_lossy(interpreter).contains("ld-linux") {
            return refuse("its C library is not glibc");
        }
        match () {
            () if self.mode & SETUID != 0 => refuse("it is set-user-ID"),
            () if self.mode & SETGID != 0 => refuse("it is set-group-ID"),
            () if self.has_capabilities => refuse("its file has capabilities"),
            () => Ok(()),
        }
    }

    /// Returns which of these functions the program itself imports.
    pub(crate) fn imports_among<'a>(&self, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
        let imported = Elf::of(&self.bytes).map(|elf| elf.imports()).unwrap_or_default();
        names.filter(|name| imported.contains(&name.as_bytes())).collect()
    }
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

fn interpreter_of_script(bytes: &[u8]) -> Option<PathBuf> {
    let line = bytes.strip_prefix(b"#!")?;
    let line = &line[..line.len().min(LINE_BYTES)];
    let line = line.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    Some(PathBuf::from(OsStr::from_bytes(words.next()?)))
}

/// The machine that this command is made for (`e_machine`).
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// An ELF file of 64 bits, little-endian. Offsets that lie outside are `None`.
struct Elf<'a>(&'a [u8]);

impl<'a> Elf<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        let is_elf = bytes.starts_with(b"\x7fELF") && bytes.get(4) == Some(&CLASS_64);
        is_elf.then_some(Self(bytes))
    }

    fn number<const LEN: usize>(&self, at: u64) -> Option<u64> {
        let at = usize::try_from(at).ok()?;
        let bytes = self.0.get(at..at.checked_add(LEN)?)?;
        Some(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn machine(&self) -> Option<u16> {
        self.number::<2>(18).map(|machine| machine as u16)
    }

    fn part(&self, offset: u64, len: u64) -> Option<&'a [u8]> {
        let offset = usize::try_from(offset).ok()?;
        self.0.get(offset..offset.checked_add(usize::try_from(len).ok()?)?)
    }

    /// The path of the dynamic loader.
    fn interpreter(&self) -> Option<&'a [u8]> {
        let (table, size, count) =
            (self.number::<8>(32)?, self.number::<2>(54)?, self.number::<2>(56)?);
        (0..count).find_map(|index| {
            let header = table.checked_add(size * index)?;
            (self.number::<4>(header)? == u64::from(PT_INTERP)).then_some(())?;
            self.part(self.number::<8>(header + 8)?, self.number::<8>(header + 32)?)
        })
    }

    /// The names that the dynamic loader resolves in other libraries.
    fn imports(&self) -> Vec<&'a [u8]> {
        self.try_imports().unwrap_or_default()
    }

    fn try_imports(&self) -> Option<Vec<&'a [u8]>> {
        let (table, size, count) =
            (self.number::<8>(40)?, self.number::<2>(58)?, self.number::<2>(60)?);
        let section = |index: u64| table.checked_add(size * index);
        let symbols = (0..count).filter_map(section).find(|header| {
            header.checked_add(4).and_then(|at| self.number::<4>(at)) == Some(SHT_DYNSYM.into())
        })?;
        let texts = section(self.number::<4>(symbols + 40)?)?;
        let texts = self.part(self.number::<8>(texts + 24)?, self.number::<8>(texts + 32)?)?;
        let (first, bytes) = (self.number::<8>(symbols + 24)?, self.number::<8>(symbols + 32)?);
        let name = |index: u64| {
            let symbol = first.checked_add(index * 24)?;
            (self.number::<2>(symbol + 6)? == 0).then_some(())?;
            let at = usize::try_from(self.number::<4>(symbol)?).ok()?;
            texts.get(at..)?.split(|byte| *byte == 0).next()
        };
        Some((0..bytes / 24).filter_map(name).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_executable_can_be_preloaded() {
        let program = Program::find(std::env::current_exe().unwrap().as_os_str()).unwrap();
        program.check().unwrap();
        assert!(
            program.imports_among(["write", "no_such_function"].into_iter()).contains(&"write")
        );
    }

    #[test]
    fn unsuitable_programs_are_refused_with_the_reason() {
        let own = Program::find(std::env::current_exe().unwrap().as_os_str()).unwrap();
        let with = |bytes: Vec<u8>, mode, has_capabilities| Program {
            path: PathBuf::from("/x"),
            script: None,
            bytes,
            mode,
            has_capabilities,
        };
        let mut other_machine = own.bytes.clone();
        other_machine[18] = 3;
        let mut of_32_bits = own.bytes.clone();
        of_32_bits[4] = 1;
        let mut static_program = own.bytes.clone();
        static_program[56..58].fill(0);
        for (program, reason) in [
            (with(b"text".to_vec(), 0o755, false), "no ELF program"),
            (with(of_32_bits, 0o755, false), "no ELF program of 64 bits"),
            (with(other_machine, 0o755, false), "another machine"),
            (with(static_program, 0o755, false), "linked statically"),
            (with(own.bytes.clone(), 0o4755, false), "set-user-ID"),
            (with(own.bytes.clone(), 0o2755, false), "set-group-ID"),
            (with(own.bytes.clone(), 0o755, true), "capabilities"),
        ] {
            let error = program.check().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn damaged_program_is_refused_without_a_panic() {
        let own = Program::find(std::env::current_exe().unwrap().as_os_str()).unwrap();
        for place in 4..64 {
            let mut bytes = own.bytes[..4096.min(own.bytes.len())].to_vec();
            bytes[place] = 0xff;
            let program = Program {
                path: PathBuf::from("/x"),
                script: None,
                bytes,
                mode: 0,
                has_capabilities: false,
            };
            let _ = (program.check(), program.imports_among(["read"].into_iter()));
        }
    }

    #[test]
    fn scripts_are_followed() {
        assert_eq!(interpreter_of_script(b"#! /bin/sh -e\nx"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(interpreter_of_script(b"#!\n"), None);
        assert_eq!(interpreter_of_script(b"\x7fELF"), None);
    }
}
