//! Files of programs (ELF, `#!`): whether the dynamic loader preloads them, and what they import.
//!
//! Pure: bytes in, names out. Read first: elf(5), ld.so(8) on secure execution, execve(2).
//!
//! Invariant: offsets that lie outside the bytes are `None`; a damaged file is no panic.

const PT_INTERP: u32 = 3;
const SHT_DYNSYM: u32 = 11;
const CLASS_64: u8 = 2;
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
/// Bytes of a line `#!`.
const LINE_BYTES: usize = 256;

/// Bytes at the beginning of a file that decide whether it can be preloaded.
pub const HEAD_BYTES: usize = 4096;

/// Scripts that name each other, as in the kernel.
pub const SCRIPTS_MAX: usize = 4;

/// The machine that this library is made for (`e_machine`).
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

/// Returns the interpreter of a script, from the line `#!`.
#[must_use]
pub fn interpreter_of_script(bytes: &[u8]) -> Option<&[u8]> {
    let line = bytes.strip_prefix(b"#!")?;
    let line = &line[..line.len().min(LINE_BYTES)];
    let line = line.split(|byte| *byte == b'\n').next()?;
    line.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty())
}

/// Returns why the dynamic loader does not preload a program, from the first [`HEAD_BYTES`] of its
/// file, its mode, and whether the file has capabilities.
#[must_use]
pub fn refusal(head: &[u8], mode: u32, has_capabilities: bool) -> Option<&'static str> {
    let Some(elf) = Elf::of(head) else { return Some("it is no ELF program of 64 bits") };
    if elf.machine() != Some(MACHINE) {
        return Some("it is made for another machine");
    }
    let Some(loader) = elf.loader() else {
        return Some("it is linked statically (as Go programs are), without a loader");
    };
    if !loader.windows(8).any(|part| part == b"ld-linux") {
        return Some("its C library is not glibc");
    }
    match () {
        () if mode & SETUID != 0 => Some("it is set-user-ID"),
        () if mode & SETGID != 0 => Some("it is set-group-ID"),
        () if has_capabilities => Some("its file has capabilities"),
        () => None,
    }
}

/// An ELF file of 64 bits, little-endian.
#[derive(Debug, Clone, Copy)]
pub struct Elf<'a>(&'a [u8]);

impl<'a> Elf<'a> {
    /// Returns the file, if it is one.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
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

    /// Returns the path of the dynamic loader, without its NUL.
    #[must_use]
    pub fn loader(&self) -> Option<&'a [u8]> {
        let (table, size, count) =
            (self.number::<8>(32)?, self.number::<2>(54)?, self.number::<2>(56)?);
        (0..count).find_map(|index| {
            let header = table.checked_add(size * index)?;
            (self.number::<4>(header)? == u64::from(PT_INTERP)).then_some(())?;
            let offset = self.number::<8>(header.checked_add(8)?)?;
            let path = self.part(offset, self.number::<8>(header.checked_add(32)?)?)?;
            path.split(|byte| *byte == 0).next()
        })
    }

    /// Returns the names that the dynamic loader resolves in other libraries.
    #[must_use]
    pub fn imports(&self) -> Vec<&'a [u8]> {
        self.try_imports().unwrap_or_default()
    }

    fn try_imports(&self) -> Option<Vec<&'a [u8]>> {
        let (table, size, count) =
            (self.number::<8>(40)?, self.number::<2>(58)?, self.number::<2>(60)?);
        let section = |index: u64| table.checked_add(size.checked_mul(index)?);
        let of = |header: u64, offset: u64| self.number::<8>(header.checked_add(offset)?);
        let symbols = (0..count).filter_map(section).find(|header| {
            header.checked_add(4).and_then(|at| self.number::<4>(at)) == Some(SHT_DYNSYM.into())
        })?;
        let texts = section(self.number::<4>(symbols.checked_add(40)?)?)?;
        let texts = self.part(of(texts, 24)?, of(texts, 32)?)?;
        let (first, bytes) = (of(symbols, 24)?, of(symbols, 32)?);
        // A symbol has 24 bytes; one without a section is another library's.
        let symbols = self.part(first, bytes)?.chunks_exact(24);
        let name = |symbol: &[u8]| {
            let at = u32::from_le_bytes(symbol.get(..4)?.try_into().ok()?) as usize;
            (symbol.get(6..8)? == [0, 0]).then_some(())?;
            let text = texts.get(at..)?.split(|byte| *byte == 0).next()?;
            (!text.is_empty()).then_some(text)
        };
        Some(symbols.filter_map(name).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn own_executable_can_be_preloaded() {
        let bytes = own();
        assert_eq!(refusal(&bytes[..HEAD_BYTES], 0o755, false), None);
        let imports = Elf::of(&bytes).unwrap().imports();
        assert!(imports.contains(&&b"write"[..]) && !imports.contains(&&b"no_such_name"[..]));
    }

    #[test]
    fn unsuitable_programs_are_refused_with_the_reason() {
        let own = own()[..HEAD_BYTES].to_vec();
        let mut other_machine = own.clone();
        other_machine[18] = 3;
        let mut of_32_bits = own.clone();
        of_32_bits[4] = 1;
        let mut static_program = own.clone();
        static_program[56..58].fill(0);
        let mut musl = own.clone();
        let loader = musl.windows(8).position(|part| part == b"ld-linux").unwrap();
        musl[loader..][..8].copy_from_slice(b"ld-muslx");
        for (bytes, mode, has_capabilities, reason) in [
            (&b"text"[..], 0o755, false, "no ELF program"),
            (&of_32_bits, 0o755, false, "no ELF program of 64 bits"),
            (&other_machine, 0o755, false, "another machine"),
            (&static_program, 0o755, false, "linked statically"),
            (&musl, 0o755, false, "not glibc"),
            (&own, 0o4755, false, "set-user-ID"),
            (&own, 0o2755, false, "set-group-ID"),
            (&own, 0o755, true, "capabilities"),
        ] {
            let found = refusal(bytes, mode, has_capabilities).expect(reason);
            assert!(found.contains(reason), "{found}");
        }
    }

    #[test]
    fn damaged_program_is_no_panic() {
        let own = own();
        for place in 4..64 {
            for value in [0xff, 0x7f, 0] {
                let mut bytes = own[..HEAD_BYTES].to_vec();
                bytes[place] = value;
                let _ = (refusal(&bytes, 0, false), Elf::of(&bytes).map(|elf| elf.imports()));
            }
        }
    }

    #[test]
    fn scripts_are_followed() {
        assert_eq!(interpreter_of_script(b"#! /bin/sh -e\nx"), Some(&b"/bin/sh"[..]));
        assert_eq!(interpreter_of_script(b"#!\n"), None);
        assert_eq!(interpreter_of_script(b"\x7fELF"), None);
    }
}
