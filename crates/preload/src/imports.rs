//! Functions of libc that programs import: interposed, passed through, or refused, with the reason.
//!
//! `megapipe run --check` prints them. A test compares the lists with what programs import.

/// Functions of libc that take or return descriptors, are not interposed, and why that is right.
pub const NOT_INTERPOSED: &[(&[&str], &str)] = &[
    (
        &["pread", "pread64", "pwrite", "pwrite64", "preadv", "pwritev", "preadv64", "pwritev64"],
        "the placeholder of a socket has no position (ESPIPE), as a socket of Linux",
    ),
    (&["preadv2", "pwritev2", "preadv64v2", "pwritev64v2", "__pread_chk"], "the same"),
    (&["__pread64_chk", "lseek", "lseek64"], "the same"),
    (
        &["fstat", "fstat64", "__fxstat", "__fxstat64", "fstatat", "fstatat64", "statx"],
        "the placeholder is a socket (S_IFSOCK)",
    ),
    (&["isatty", "ttyname", "ttyname_r", "tcgetattr", "tcsetattr"], "a socket is no terminal"),
    (&["tcgetpgrp", "tcsetpgrp", "tcflush", "tcsendbreak", "tcflow", "tcdrain"], "the same"),
    (&["openpty", "forkpty", "posix_openpt", "grantpt", "unlockpt", "ptsname_r"], "terminals"),
    (
        &["fsync", "fdatasync", "ftruncate", "ftruncate64", "fallocate", "fallocate64", "flock"],
        "a placeholder refuses them, as a socket of Linux",
    ),
    (&["posix_fallocate", "posix_fallocate64", "posix_fadvise", "posix_fadvise64"], "the same"),
    (&["fchmod", "fchown", "fchdir", "futimens", "futimes", "lockf", "lockf64"], "the same"),
    (&["mmap", "mmap64", "sync_file_range", "syncfs", "readahead", "fstatfs"], "the same"),
    (&["fstatfs64", "fstatvfs", "fstatvfs64", "fpathconf", "getdents64"], "the same"),
    (&["fgetxattr", "fsetxattr", "flistxattr", "fremovexattr"], "the same"),
    (&["tee", "vmsplice", "copy_file_range"], "a placeholder refuses them, as a socket of Linux"),
    (&["isfdtype", "fdopendir"], "a placeholder is a socket"),
    (&["daemon"], "pthread_atfork(3)"),
    (&["fopen", "fopen64", "freopen", "freopen64", "tmpfile", "tmpfile64"], "streams"),
    (&["opendir", "mkstemp", "mkstemp64", "mkostemp", "mkostemp64", "mkstemps"], "files"),
    (&["mkstemps64", "mkostemps", "shm_open", "mq_open", "pidfd_open", "dirfd"], "files"),
    (&["dlopen", "aio_read", "aio_write"], "no descriptor of a socket"),
    (&["inotify_add_watch", "inotify_rm_watch", "timerfd_settime", "timerfd_gettime"], "files"),
    (&["eventfd_read", "eventfd_write", "fanotify_init", "fanotify_mark"], "files"),
    (&["openat2", "linkat", "unlinkat", "renameat", "mkdirat", "readlinkat", "faccessat"], "files"),
    (&["fchmodat", "fchownat", "utimensat", "symlinkat", "mknodat", "mkfifoat"], "files"),
    (&["res_nclose", "__res_nclose", "__res_iclose"], "names go by the kernel"),
    (&["backtrace_symbols_fd"], "libc writes to a file or standard error"),
];

/// Interposed functions that refuse some calls on sockets of the stack, with what is refused.
const PARTS_REFUSED: &[(&[&str], &str)] = &[
    (&["ioctl"], "FIOASYNC on a socket of the stack: ENOTTY"),
    (&["fcntl", "fcntl64"], "F_SETOWN on a socket of the stack: EINVAL"),
    (&["sendmsg", "sendmmsg"], "SCM_RIGHTS with a connection of the stack: EOPNOTSUPP"),
    (&["syscall"], "io_uring_setup: ENOSYS"),
];

/// Beginnings of names of functions that are of no use on sockets of the stack.
const REFUSED: &[(&str, &str)] = &[
    ("io_uring_", "io_uring_setup is ENOSYS: a ring would not reach the sockets of the stack"),
    ("sctp_", "the stack has no SCTP: its sockets are the kernel's"),
];

/// The path of the calls of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportFate {
    /// The library has it. With what it refuses.
    Interposed(Option<&'static str>),
    /// libc has it, for this reason.
    PassedThrough(&'static str),
    /// It fails, for this reason.
    Refused(&'static str),
}

/// Returns the path of the calls of a function. `None`: it takes no descriptor.
#[must_use]
pub fn fate_of(name: &str) -> Option<ImportFate> {
    let in_list = |list: &[(&[&str], &'static str)]| {
        list.iter().find(|(names, _)| names.contains(&name)).map(|(_, reason)| *reason)
    };
    if crate::interposed_names().any(|known| known == name) {
        return Some(ImportFate::Interposed(in_list(PARTS_REFUSED)));
    }
    if let Some((_, reason)) = REFUSED.iter().find(|(start, _)| name.starts_with(start)) {
        return Some(ImportFate::Refused(reason));
    }
    let place = NOT_INTERPOSED.iter().position(|(names, _)| names.contains(&name))?;
    // A reason "the same" is that of the line before.
    let reasons = NOT_INTERPOSED[..=place].iter().rev().map(|(_, reason)| *reason);
    let mut own = reasons.skip_while(|reason| *reason == "the same");
    own.next().map(ImportFate::PassedThrough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_have_one_of_three_fates() {
        assert_eq!(fate_of("read"), Some(ImportFate::Interposed(None)));
        assert!(matches!(fate_of("fcntl"), Some(ImportFate::Interposed(Some(_)))));
        let position = fate_of("pread");
        assert!(matches!(position, Some(ImportFate::PassedThrough(_))));
        assert_eq!((fate_of("lseek"), fate_of("preadv2")), (position, position));
        assert!(matches!(fate_of("io_uring_queue_init"), Some(ImportFate::Refused(_))));
        assert_eq!(fate_of("strlen"), None);
        let partly = PARTS_REFUSED.iter().flat_map(|(names, _)| names.iter());
        for name in partly {
            assert!(crate::interposed_names().any(|known| known == *name), "{name}");
        }
    }
}
