//! Programs that a preloaded process starts: the report lists those that are not preloaded.
//!
//! Read first: `elf.rs`.
//!
//! Invariant: everything here is a system call by number on memory of the stack, because it runs in
//! children of vfork(2), which have their parent's memory and descriptors of their own.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::mem::MaybeUninit;

use crate::elf::{HEAD_BYTES, SCRIPTS_MAX, interpreter_of_script, refusal};
use crate::raw::system_call;
use crate::report::{self, COUNTS};

/// Longest path, with its NUL.
const PATH_BYTES: usize = libc::PATH_MAX as usize;
/// Where execvp(3) looks without the variable PATH.
const DEFAULT_PATH: &[u8] = b"/bin:/usr/bin";

/// The reason for a program that the kernel executes and this process cannot read.
const UNREADABLE: &str = "its file cannot be read";

/// A path with its NUL.
type PathRoom = [u8; PATH_BYTES];

/// The path of a program that is named by a descriptor, or relative to one.
pub(crate) struct ProgramPath(PathRoom);

impl ProgramPath {
    /// The file `name` in the folder `at`, or the file `at` itself if the name is empty. One that
    /// is too long is empty, and no program.
    pub(crate) fn at(at: c_int, name: &[u8]) -> Self {
        let mut folder = [0; 32];
        let mut rest = &mut folder[..];
        // There is room for a number.
        let _ = write!(rest, "/proc/self/fd/{at}");
        let free = rest.len();
        let folder = &folder[..folder.len() - free];
        let mut path = [0; PATH_BYTES];
        match name {
            b"" => join(&mut path, b"", folder),
            name => join(&mut path, folder, name),
        };
        Self(path)
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// Notes a program that cannot be preloaded, or may not be. `folders` is the value of PATH, for
/// execvp(3). Returns whether there is such a program.
///
/// # Safety
/// `name` is null or a C string.
pub(crate) unsafe fn note_program(name: *const c_char, folders: Option<&[u8]>) -> bool {
    if !report::is_on() {
        return false;
    }
    // SAFETY: the caller promises the string.
    let Some(checked) = (unsafe { check_program(name, folders) }) else { return false };
    if let Err(reason) = checked {
        // SAFETY: the same; one that was checked is not null.
        let path = unsafe { CStr::from_ptr(name) }.to_bytes().escape_ascii();
        report::count(&COUNTS.not_preloaded);
        let verdict = if reason == UNREADABLE { "maybe not preloaded" } else { "not preloaded" };
        report::note(format_args!("program {path}: {verdict} ({reason})"));
    }
    true
}

/// Why the loader does not preload a program, or that it does. `None`: its file is not found, or
/// cannot be executed.
///
/// # Safety
/// As [`note_program`].
pub(crate) unsafe fn check_program(
    name: *const c_char,
    folders: Option<&[u8]>,
) -> Option<Result<(), &'static str>> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller promises the string.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let mut path = [0; PATH_BYTES];
    let is_found = match folders {
        Some(folders) if !name.contains(&b'/') => {
            let mut folders = folders.split(|byte| *byte == b':');
            folders.any(|folder| join(&mut path, folder, name) && is_executable(&path))
        }
        _ => join(&mut path, b"", name),
    };
    is_found.then(|| check(&mut path)).flatten()
}

/// The folders of execvp(3), from the value of PATH.
pub(crate) fn folders(variable: Option<&[u8]>) -> &[u8] {
    variable.unwrap_or(DEFAULT_PATH)
}

/// Notes a program that is started without the library, because its environment lacks it.
pub(crate) fn note_without_library() {
    report::count(&COUNTS.not_preloaded);
    report::note(format_args!("a program: not preloaded (--no-follow, and a new environment)"));
}

/// Writes `folder/name`. Returns whether there is room.
fn join(room: &mut PathRoom, folder: &[u8], name: &[u8]) -> bool {
    let separator: &[u8] = if folder.is_empty() { b"" } else { b"/" };
    let len = folder.len() + separator.len() + name.len();
    if len >= PATH_BYTES {
        return false;
    }
    let bytes = folder.iter().chain(separator).chain(name).chain(b"\0");
    room.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    true
}

fn is_executable(path: &PathRoom) -> bool {
    let at = libc::AT_FDCWD as usize;
    let arguments = [at, path.as_ptr() as usize, libc::X_OK as usize, 0, 0, 0];
    // SAFETY: the path ends with a NUL.
    unsafe { system_call(libc::SYS_faccessat, arguments) == 0 }
}

/// Why the loader does not preload a program. `None`: the kernel refuses its file.
fn check(path: &mut PathRoom) -> Option<Result<(), &'static str>> {
    let mut head = [0; HEAD_BYTES];
    for _ in 0..SCRIPTS_MAX {
        let (len, mode) = match read_head(path, &mut head) {
            Ok(read) => read,
            Err(libc::EACCES) if is_executable(path) => return Some(Err(UNREADABLE)),
            Err(_) => return None,
        };
        let head = &head[..len];
        let Some(interpreter) = interpreter_of_script(head) else {
            return Some(refusal(head, mode, has_capabilities(path)).map_or(Ok(()), Err));
        };
        let mut next = [0; PATH_BYTES];
        if !join(&mut next, b"", interpreter) {
            return None;
        }
        *path = next;
    }
    None
}

/// Reads the beginning of a file. Returns its bytes and the file's mode.
///
/// # Errors
/// As open(2) and read(2); EISDIR: it is no file.
fn read_head(path: &PathRoom, head: &mut [u8; HEAD_BYTES]) -> Result<(usize, u32), c_int> {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0];
    // SAFETY: the path ends with a NUL.
    let fd = unsafe { system_call(libc::SYS_openat, arguments) };
    let fd = usize::try_from(fd).map_err(|_| -fd as c_int)?;
    // SAFETY: zeros are a record, too.
    let mut facts: libc::stat = unsafe { MaybeUninit::zeroed().assume_init() };
    let arguments = [fd, (&raw mut facts) as usize, 0, 0, 0, 0];
    // SAFETY: the record is a local.
    let known = unsafe { system_call(libc::SYS_fstat, arguments) };
    let is_file = known == 0 && facts.st_mode & libc::S_IFMT == libc::S_IFREG;
    let arguments = [fd, head.as_mut_ptr() as usize, HEAD_BYTES, 0, 0, 0];
    // SAFETY: the room is a local of the caller.
    let read = || unsafe { system_call(libc::SYS_read, arguments) };
    let len = if is_file { read() } else { -libc::EISDIR as isize };
    // SAFETY: the descriptor was opened above.
    unsafe { system_call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    let len = usize::try_from(len).map_err(|_| -len as c_int)?;
    Ok((len, facts.st_mode))
}

fn has_capabilities(path: &PathRoom) -> bool {
    let name = c"security.capability".as_ptr() as usize;
    let arguments = [path.as_ptr() as usize, name, 0, 0, 0, 0];
    // SAFETY: both are C strings; without room the size is returned.
    let size: c_int = unsafe { system_call(libc::SYS_getxattr, arguments) } as c_int;
    size > 0
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn checked(path: &str) -> Option<Result<(), &'static str>> {
        let mut room = [0; PATH_BYTES];
        assert!(join(&mut room, b"", path.as_bytes()));
        check(&mut room)
    }

    #[test]
    fn programs_are_checked_by_their_files() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(checked(own.to_str().unwrap()), Some(Ok(())));
        assert_eq!(checked("/nonexistent/program"), None);
        let script = std::env::temp_dir().join(format!("mp-script-{}", std::process::id()));
        let text = format!("{}.text", script.display());
        std::fs::write(&text, "text").unwrap();
        std::fs::write(&script, format!("#!{text}\n")).unwrap();
        let reason = "it is no ELF program of 64 bits";
        assert_eq!(checked(script.to_str().unwrap()), Some(Err(reason)));
        std::fs::remove_file(script).unwrap();
        std::fs::remove_file(text).unwrap();
    }

    #[test]
    fn programs_at_descriptors_are_checked() {
        let own = std::env::current_exe().unwrap();
        let folder = std::fs::File::open(own.parent().unwrap()).unwrap();
        let file = std::fs::File::open(&own).unwrap();
        let checked = |at: c_int, name: &[u8]| {
            let path = ProgramPath::at(at, name);
            // SAFETY: it ends with a NUL.
            unsafe { check_program(path.as_ptr(), None) }
        };
        let name = own.file_name().unwrap().as_encoded_bytes();
        assert_eq!(checked(folder.as_raw_fd(), name), Some(Ok(())));
        assert_eq!(checked(file.as_raw_fd(), b""), Some(Ok(())));
        assert_eq!(checked(folder.as_raw_fd(), b"nonexistent"), None);
        assert_eq!(checked(file.as_raw_fd(), &[b'x'; PATH_BYTES]), None);
    }

    #[test]
    fn program_without_read_permission_is_named() {
        let program = std::env::temp_dir().join(format!("mp-unread-{}", std::process::id()));
        std::fs::write(&program, "text").unwrap();
        let path = program.to_str().unwrap().to_owned();
        let with_mode = |mode| {
            std::fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
            let path = path.clone();
            // A thread of its own: root may read everything up to then.
            let thread = std::thread::spawn(move || {
                // SAFETY: takes integers, and changes this thread alone.
                unsafe { system_call(libc::SYS_setfsuid, [65_534, 0, 0, 0, 0, 0]) };
                checked(&path)
            });
            thread.join().unwrap()
        };
        assert_eq!(with_mode(0o111), Some(Err(UNREADABLE)));
        // The kernel executes it for no user.
        assert_eq!(with_mode(0o000), None);
        std::fs::remove_file(&program).unwrap();
    }

    #[test]
    fn path_too_long_is_rejected() {
        assert!(!join(&mut [0; PATH_BYTES], b"x", &[b'x'; PATH_BYTES - 2]));
        assert!(join(&mut [0; PATH_BYTES], b"x", &[b'x'; PATH_BYTES - 3]));
    }
}
