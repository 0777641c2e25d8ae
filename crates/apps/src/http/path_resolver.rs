//! Resolves a path below a directory without openat2, one component at a time.
//!
//! Read first: openat2(2) on `RESOLVE_BENEATH`, whose meaning this has; path_resolution(7).
//!
//! Each component is opened relative to the directory before it and without following links; a link
//! is read and its target resolved in the same way. `..` returns to the previous directory,
//! which is kept open, and never asks the kernel for a parent: a process that moves directories
//! meanwhile cannot cause an escape. An absolute link is refused even if it leads inside.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// Links of one resolution, as in the kernel.
const LINKS_MAX: usize = 40;

/// Opens `path`, which is relative, below `root`.
///
/// # Errors
/// Those of openat2 with `RESOLVE_BENEATH`, `XDEV` among them where the path leads out.
pub(crate) fn open(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut entered: Vec<OwnedFd> = Vec::new();
    let mut pending = Vec::new();
    push_components(path, &mut pending)?;
    let mut links_left = LINKS_MAX;
    while let Some(name) = pending.pop() {
        match name.as_slice() {
            b"." => continue,
            b".." => {
                entered.pop().ok_or(Errno::XDEV)?;
                continue;
            }
            _ => {}
        }
        let directory = entered.last().map_or(root, AsFd::as_fd);
        let component = rustix::fs::openat(directory, &name, step, Mode::empty())?;
        match FileType::from_raw_mode(rustix::fs::fstat(&component)?.st_mode) {
            FileType::Symlink => {
                links_left = links_left.checked_sub(1).ok_or(Errno::LOOP)?;
                let target = rustix::fs::readlinkat(&component, "", Vec::new())?;
                push_components(target.as_bytes(), &mut pending)?;
            }
            FileType::Directory => entered.push(component),
            _ if pending.is_empty() => {
                // Whatever has taken its place since: not through a link.
                return rustix::fs::openat(
                    directory,
                    &name,
                    flags | OFlags::NOFOLLOW,
                    Mode::empty(),
                );
            }
            _ => return Err(Errno::NOTDIR),
        }
    }
    let directory = entered.last().map_or(root, AsFd::as_fd);
    rustix::fs::openat(directory, ".", flags | OFlags::NOFOLLOW, Mode::empty())
}

/// Puts the components of `path` in front of what is pending (which is in reverse).
fn push_components(path: &[u8], pending: &mut Vec<Vec<u8>>) -> Result<(), Errno> {
    match path {
        [] => return Err(Errno::NOENT),
        [b'/', ..] => return Err(Errno::XDEV),
        _ => {}
    }
    // A slash at the end wants a directory.
    if path.ends_with(b"/") {
        pending.push(b".".to_vec());
    }
    let components = path.rsplit(|&byte| byte == b'/').filter(|name| !name.is_empty());
    pending.extend(components.map(<[u8]>::to_vec));
    Ok(())
}
