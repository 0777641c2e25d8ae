//! `libmegapipe-preload.so`: where it is, and the memory that it takes of each thread.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// Names the library, for `megapipe run`.
pub(crate) const VARIABLE: &str = "MEGAPIPE_PRELOAD";
/// The library below a prefix.
const FILE: &str = "lib/megapipe/libmegapipe-preload.so";
/// Type of the program header of static thread-local memory (ELF-64, `PT_TLS`).
const PT_TLS: u32 = 7;
/// Offset of `e_phoff`, `e_phentsize` and `e_phnum` in the header of an ELF-64 file.
const PROGRAM_HEADERS: usize = 32;
const ENTRY_BYTES: usize = 54;
const ENTRIES: usize = 56;
/// Offset of `p_memsz` in a program header.
const MEMORY_BYTES: usize = 40;

/// The installed library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PreloadLibrary(pub(crate) PathBuf);

impl PreloadLibrary {
    /// The one that `MEGAPIPE_PRELOAD` names, or that of the prefix of a `megapipe`, as
    /// `megapipe run` finds it; else why there is none.
    pub(crate) fn find(program: &Path) -> Result<Self, String> {
        let named = env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        let installed = || Some(program.parent()?.parent()?.join(FILE));
        let path = named.or_else(installed).unwrap_or_else(|| PathBuf::from(FILE));
        if path.is_file() {
            return Ok(Self(path));
        }
        let path = path.display();
        Err(format!("{path} is missing: `cargo xtask install`, or set {VARIABLE}"))
    }

    /// Bytes of static thread-local memory, of each thread of each program.
    pub(crate) fn static_tls_bytes(&self) -> io::Result<u64> {
        static_tls_bytes(&fs::read(&self.0)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The words of a preloaded command: options, then the program and its arguments.
pub(crate) fn run_words(options: Vec<String>, program: &Path, args: Vec<String>) -> Vec<String> {
    let program = ["--".to_owned(), program.to_string_lossy().into_owned()];
    ["run".to_owned()].into_iter().chain(options).chain(program).chain(args).collect()
}

/// Pure: the size of the TLS segment of an ELF-64 file with little-endian numbers, 0 without one;
/// `None` if it is no such file.
fn static_tls_bytes(file: &[u8]) -> Option<u64> {
    if file.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let short = |at: usize| Some(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?));
    let long = |at: usize| {
        let bytes = file.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let first = usize::try_from(long(PROGRAM_HEADERS)?).ok()?;
    let (size, count) = (usize::from(short(ENTRY_BYTES)?), usize::from(short(ENTRIES)?));
    for entry in 0..count {
        let at = first.checked_add(entry * size)?;
        let kind = u32::from_le_bytes(file.get(at..at.checked_add(4)?)?.try_into().ok()?);
        if kind == PT_TLS {
            return long(at + MEMORY_BYTES);
        }
    }
    Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_program_follow_two_dashes() {
        let words = run_words(vec!["--backend".to_owned()], Path::new("/x"), vec!["-y".to_owned()]);
        assert_eq!(words, ["run", "--backend", "--", "/x", "-y"]);
    }

    /// A file of a header and of two program headers, of which the second is this one.
    fn elf(kind: u32, memory: u64) -> Vec<u8> {
        let mut file = vec![0; 64 + 2 * 56];
        file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        file[PROGRAM_HEADERS] = 64;
        file[ENTRY_BYTES] = 56;
        file[ENTRIES] = 2;
        file[64 + 56..][..4].copy_from_slice(&kind.to_le_bytes());
        file[64 + 56 + MEMORY_BYTES..][..8].copy_from_slice(&memory.to_le_bytes());
        file
    }

    #[test]
    fn tls_segment_has_its_size_in_memory() {
        assert_eq!(static_tls_bytes(&elf(PT_TLS, 0x188)), Some(0x188));
        assert_eq!(static_tls_bytes(&elf(1, 0x188)), Some(0));
    }

    #[test]
    fn what_is_no_elf_file_has_no_size() {
        assert_eq!(static_tls_bytes(b"#!/bin/sh\n"), None);
        assert_eq!(static_tls_bytes(&[]), None);
        for bytes in 0..elf(PT_TLS, 1).len() - 8 {
            assert_eq!(static_tls_bytes(&elf(PT_TLS, 1)[..bytes]), None, "{bytes}");
        }
        let mut far = elf(PT_TLS, 1);
        far[PROGRAM_HEADERS..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(static_tls_bytes(&far), None);
    }

    #[test]
    fn this_program_is_an_elf_file() {
        let own = PreloadLibrary(env::current_exe().unwrap());
        assert!(own.static_tls_bytes().unwrap() < 1 << 20);
    }

    #[test]
    fn missing_library_is_named_with_its_path() {
        if env::var_os(VARIABLE).is_none() {
            let why = PreloadLibrary::find(Path::new("/nowhere/bin/megapipe")).unwrap_err();
            assert!(why.starts_with("/nowhere/lib/megapipe/libmegapipe-preload.so is missing"));
        }
    }
}
