//! Files below the root directory: finding them without ever leaving it, and reading small ones.
//!
//! Read first: openat2(2) (`RESOLVE_BENEATH`, `RESOLVE_NO_MAGICLINKS`), symlink(7).
//!
//! Paths arrive normalised, so what is left to guard against is symbolic links, and directories
//! that are moved while a path is being resolved. `openat2` with `RESOLVE_BENEATH` lets the kernel
//! guard against both. Where there is no `openat2` (before Linux 5.6, or forbidden by a sandbox),
//! `path_resolver.rs` resolves one component at a time.
//!
//! Opening a file and reading a small one block the thread for as long as the page cache or the
//! disk takes; how much is read at once is bounded by `--cache-file-bytes`. Larger files are read
//! by the channel.
//!
//! Invariants
//! - Unless links may leave the root, no descriptor opened here refers to anything outside of it.
//! - Only regular files are read. Opening never waits for a FIFO's writer.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::cache::{Cache, CachedFile, CachedPath};
use super::date::Now;
use super::document_root::{DocumentRoot, PathLookup};
use super::media_type;
use super::path::{self, PathError};
use super::path_resolver;
use super::representation::{FileStamp, Representation};
use super::response::PreparedFile;

/// How often a file that shrinks while it is read is tried, and a resolution that lost a race.
const TRIES: usize = 3;

const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// How paths are resolved.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum Resolution {
    /// By the kernel (RESOLVE_BENEATH).
    Openat2,
    /// Component by component, without the kernel's check.
    Stepwise,
    /// By the kernel; symbolic links may lead out of the root.
    Unrestricted,
}

impl Resolution {
    /// Returns a notice for the user if the kernel does not restrict paths to the root.
    pub(crate) fn notice(self) -> Option<&'static str> {
        match self {
            Self::Openat2 => None,
            Self::Stepwise => {
                Some("http: no openat2(2) here; paths are resolved one component at a time")
            }
            Self::Unrestricted => Some("http: symbolic links may lead out of the root"),
        }
    }
}

/// What is served, and how.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FilesOptions<'a> {
    /// The directory.
    pub(crate) root: &'a Path,
    /// Whether symbolic links may lead out of it.
    pub(crate) follow_links: bool,
    /// Names of the files that stand for their directories, in order.
    pub(crate) index_names: &'a [String],
    /// Files up to this length are read whole.
    pub(crate) held_bytes_max: u64,
    /// Value of `Cache-Control: max-age`, in seconds.
    pub(crate) max_age_s: Option<u32>,
}

/// The files of one channel.
#[derive(Debug)]
pub(crate) struct ServedFiles {
    root: OwnedFd,
    resolution: Resolution,
    index_names: Rc<[String]>,
    held_bytes_max: u64,
    max_age_s: Option<u32>,
    cache: Cache,
    /// The path being looked for; kept for its memory.
    path: Vec<u8>,
}

impl ServedFiles {
    /// The files that `options` describe, with an empty `cache`.
    ///
    /// # Errors
    /// The root cannot be opened or is no directory.
    pub(crate) fn new(options: &FilesOptions<'_>, cache: Cache) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(options.root, flags, Mode::empty())?;
        let resolution =
            if options.follow_links { Resolution::Unrestricted } else { probe(&root)? };
        Ok(Self {
            root,
            resolution,
            index_names: options.index_names.into(),
            held_bytes_max: options.held_bytes_max,
            max_age_s: options.max_age_s,
            cache,
            path: Vec::new(),
        })
    }

    pub(crate) fn resolution(&self) -> Resolution {
        self.resolution
    }

    /// Whether the root has an index file: without one `/` is forbidden.
    pub(crate) fn has_index(&self) -> bool {
        self.open(b"/").is_ok()
    }

    /// What `path`, which is normalised, names, by what the cache or else the file system says.
    fn look_up(&mut self, path: &[u8], now: &Now) -> PathLookup<OwnedFd> {
        let known = match self.cache.get(path, now.unix_s) {
            CachedPath::Fresh(entry) => return PathLookup::Held(entry),
            CachedPath::Stale(stamp) => Some(stamp),
            CachedPath::Absent => None,
        };
        let found = match self.open(path) {
            Ok(opened) => self.load(path, opened, known, now),
            Err(not_opened) => not_opened,
        };
        if known.is_some() && !matches!(found, PathLookup::Held(_)) {
            self.cache.remove(path);
        }
        found
    }

    /// Opens the regular file that `path` names, with its stamp and media type.
    fn open(&self, path: &[u8]) -> Result<(OwnedFd, FileStamp, &'static str), PathLookup<OwnedFd>> {
        let below = path::below_root(path);
        if !path.ends_with(b"/") {
            let fd = self.resolve(below, READ).map_err(refusal)?;
            return match identify(&fd).map_err(refusal)? {
                (FileType::RegularFile, stamp) => Ok((fd, stamp, media_type::of_path(path))),
                (FileType::Directory, _) => Err(PathLookup::Directory([path, b"/"].concat())),
                _ => Err(PathLookup::Forbidden),
            };
        }
        let below = if below == b"." { &[][..] } else { below };
        for name in self.index_names.iter() {
            let index = [below, name.as_bytes()].concat();
            let fd = match self.resolve(&index, READ) {
                Ok(fd) => fd,
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(refusal(error)),
            };
            if let (FileType::RegularFile, stamp) = identify(&fd).map_err(refusal)? {
                return Ok((fd, stamp, media_type::of_path(name.as_bytes())));
            }
        }
        // There is no list of what is in a directory; that there is one is no secret.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.resolve(path::below_root(path), flags).map_err(refusal)?;
        Err(PathLookup::Forbidden)
    }

    fn resolve(&self, below: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = match self.resolution {
            Resolution::Openat2 => ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
            Resolution::Unrestricted => {
                return rustix::fs::openat(&self.root, below, flags, Mode::empty());
            }
            Resolution::Stepwise => return path_resolver::open(self.root.as_fd(), below, flags),
        };
        let mut tries = TRIES;
        loop {
            match rustix::fs::openat2(&self.root, below, flags, Mode::empty(), resolve) {
                // Something was renamed meanwhile, and the kernel cannot be sure.
                Err(Errno::AGAIN) if tries > 1 => tries -= 1,
                opened => return opened,
            }
        }
    }

    /// Takes an open file into memory, or hands it on if it is too large. A file that is `known`
    /// and has not changed is not read again.
    fn load(
        &mut self,
        path: &[u8],
        (fd, mut stamp, media_type): (OwnedFd, FileStamp, &'static str),
        known: Option<FileStamp>,
        now: &Now,
    ) -> PathLookup<OwnedFd> {
        if known == Some(stamp)
            && let Some(entry) = self.cache.confirm(path, now.unix_s)
        {
            return PathLookup::Held(entry);
        }
        for _ in 0..TRIES {
            let mut representation = Representation::new(stamp, media_type, now.unix_s);
            representation.max_age_s = self.max_age_s;
            if stamp.len > self.held_bytes_max {
                return PathLookup::Open(Box::new(representation), fd);
            }
            let mut body = vec![0; stamp.len as usize];
            match read_whole(&fd, &mut body) {
                Ok(true) => {
                    let prepared = PreparedFile::new(&representation, &body);
                    let entry = Rc::new(CachedFile { representation, prepared });
                    if path::is_plain(path) {
                        self.cache.insert(path, &entry, now.unix_s);
                    }
                    return PathLookup::Held(entry);
                }
                Ok(false) => match identify(&fd) {
                    Ok((_, changed)) => stamp = changed,
                    Err(error) => return refusal(error),
                },
                Err(error) => return refusal(error),
            }
        }
        PathLookup::Failed
    }
}

impl DocumentRoot for ServedFiles {
    type File = OwnedFd;

    fn find(&mut self, raw: &[u8], now: &Now) -> PathLookup<OwnedFd> {
        // What is in the cache is named by a path that is the same raw and normalised.
        if let CachedPath::Fresh(entry) = self.cache.get(raw, now.unix_s) {
            return PathLookup::Held(entry);
        }
        let mut path = std::mem::take(&mut self.path);
        let found = match path::normalize(raw, &mut path) {
            Ok(()) => self.look_up(&path, now),
            Err(PathError::Malformed | PathError::AboveRoot) => PathLookup::Malformed,
            Err(PathError::EncodedSlash) => PathLookup::Missing,
        };
        self.path = path;
        found
    }
}

/// Whether the kernel and the sandbox have `openat2`.
fn probe(root: &OwnedFd) -> Result<Resolution, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match rustix::fs::openat2(root, ".", flags, Mode::empty(), ResolveFlags::BENEATH) {
        Ok(_) => Ok(Resolution::Openat2),
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => Ok(Resolution::Stepwise),
        Err(error) => Err(error),
    }
}

/// Kind and version of an open file.
fn identify(fd: &OwnedFd) -> Result<(FileType, FileStamp), Errno> {
    let stat = rustix::fs::fstat(fd)?;
    let stamp = FileStamp {
        device: stat.st_dev,
        inode: stat.st_ino,
        len: stat.st_size.try_into().unwrap_or(0),
        modified_s: stat.st_mtime,
        modified_ns: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
    };
    Ok((FileType::from_raw_mode(stat.st_mode), stamp))
}

/// Fills `body` from the start of the file; false if the file is shorter.
fn read_whole(fd: &OwnedFd, body: &mut [u8]) -> Result<bool, Errno> {
    let mut filled = 0;
    while filled < body.len() {
        match rustix::io::pread(fd, &mut body[filled..], filled as u64) {
            Ok(0) => return Ok(false),
            Ok(len) => filled += len,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// What an error of the file system is to a peer.
fn refusal(error: Errno) -> PathLookup<OwnedFd> {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::INVAL => PathLookup::Missing,
        // XDEV: out of the root. LOOP: links in a circle. NXIO: a socket.
        Errno::ACCESS | Errno::PERM | Errno::XDEV | Errno::LOOP | Errno::NXIO => {
            PathLookup::Forbidden
        }
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => PathLookup::Exhausted,
        _ => PathLookup::Failed,
    }
}

#[cfg(test)]
mod tests;
