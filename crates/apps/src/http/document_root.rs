//! The document root as connections use it: a request path in, a file or an error out.

use std::rc::Rc;

use super::cache::CachedFile;
use super::date::Now;
use super::representation::Representation;

/// What a path names.
#[derive(Debug)]
pub(crate) enum PathLookup<F> {
    /// A file in memory.
    Held(Rc<CachedFile>),
    /// A file too large for that, open.
    Open(Box<Representation>, F),
    /// A directory, named without its slash at the end; the normalised path with it.
    Directory(Vec<u8>),
    /// Nothing, or nothing that may be known to exist.
    Missing,
    /// Something that is not served: no permission, no regular file, outside the root.
    Forbidden,
    /// The path cannot be decoded or climbs above the root.
    Malformed,
    /// No descriptors or memory left; later it may work.
    Exhausted,
    /// Reading failed.
    Failed,
}

/// The tree of files: [`ServedFiles`](super::files::ServedFiles), or a table in tests.
pub(crate) trait DocumentRoot {
    /// An open file.
    type File;

    /// What the path of a request target names; `raw` is still encoded and has no query.
    fn find(&mut self, raw: &[u8], now: &Now) -> PathLookup<Self::File>;
}
