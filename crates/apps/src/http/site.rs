//! What a server serves, as the connections see it: names in, files out.

use std::rc::Rc;

use super::cache::Entry;
use super::connection::Now;
use super::representation::Representation;

/// What a path names.
#[derive(Debug)]
pub(crate) enum Found<F> {
    /// A file in memory.
    Held(Rc<Entry>),
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

/// The tree of files: [`Files`](super::files::Files), or a table in tests.
pub(crate) trait Site {
    /// An open file.
    type File;

    /// What the path of a request target names; `raw` is still encoded and has no query.
    fn find(&mut self, raw: &[u8], now: &Now) -> Found<Self::File>;
}
