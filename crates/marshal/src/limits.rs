//! Limits of one call.

/// Parts of one readv(2) or writev(2), as `IOV_MAX` of Linux.
pub const PARTS_MAX: usize = 1024;

/// Pieces of memory that a call keeps on its stack; with more it allocates.
pub const PARTS_ON_STACK: usize = 8;

/// Most bytes that one call moves, as in Linux (read(2), Notes).
pub const MOVED_BYTES_MAX: usize = 0x7fff_f000;
