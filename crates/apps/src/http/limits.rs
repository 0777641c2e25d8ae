//! The HTTP server's limits. Options change those that end in `_DEFAULT`; the others are fixed.
//!
//! Invariant: whatever a peer sends, a connection holds at most [`CONNECTION_BYTES_MAX`] of memory
//! beside two files that it keeps in memory while it takes them, which the cache may have dropped.
//! That is why only files up to [`CACHE_FILE_BYTES_DEFAULT`] are read whole unless told otherwise.

use std::mem::size_of;

/// Bytes of a request head, from the request line to the empty line.
pub(crate) const HEAD_BYTES_DEFAULT: usize = 16 * 1024;
/// What `--max-head-bytes` accepts at most.
pub(crate) const HEAD_BYTES_MAX: usize = 256 * 1024;
/// Bytes of a request target; a longer one is answered 414.
pub(crate) const TARGET_BYTES_MAX: usize = 8 * 1024;
/// Header fields of a request; more are answered 431.
pub(crate) const FIELDS_MAX: usize = 100;
/// Bytes of request content that are read and thrown away; more are answered 413.
pub(crate) const CONTENT_BYTES_DEFAULT: u64 = 1024 * 1024;
/// Bytes of chunk sizes, chunk extensions and trailers, for all of one content.
pub(crate) const CHUNK_OVERHEAD_BYTES_MAX: u32 = 16 * 1024;
/// Ranges of one request; with more the whole file is sent.
pub(crate) const RANGES_MAX: usize = 16;
/// Preconditions are compared against this many entity tags; what follows is not looked at.
pub(crate) const ENTITY_TAGS_MAX: usize = 1024;

/// Bytes of one read on a connection.
pub(crate) const READ_BYTES: usize = 4096;
/// A connection takes no further request while this much of its answers is not written.
pub(crate) const UNWRITTEN_BYTES_HIGH: usize = 64 * 1024;
/// A body up to this size is copied behind its head, so that both leave in one write.
pub(crate) const INLINE_BODY_BYTES_MAX: usize = 16 * 1024;
/// The longest body that is passed to the channel whole; a longer one is sent in chunks.
pub(crate) const WRITE_BYTES_MAX: usize = 128 * 1024;
/// Bytes of a chunk: what one read of a large file takes, and one write of a long body.
pub(crate) const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes read and thrown away after the server has half-closed.
pub(crate) const LINGER_BYTES_MAX: usize = 1024 * 1024;

/// Cached file content of one channel.
pub(crate) const CACHE_BYTES_DEFAULT: usize = 64 * 1024 * 1024;
/// The largest file that is cached.
pub(crate) const CACHE_FILE_BYTES_DEFAULT: usize = WRITE_BYTES_MAX;
/// What `--cache-file-bytes` accepts at most: reading such a file blocks the channel's thread.
pub(crate) const CACHE_FILE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Files in the cache of one channel.
pub(crate) const CACHE_ENTRIES_DEFAULT: usize = 16 * 1024;

/// With all connections taken, one that has been idle this long gives way to one that waits, also
/// if it never sent a byte.
pub(crate) const CROWDED_IDLE_MS: u64 = 1_000;

/// Time for a request head, from its first byte (of the first request: from the accept).
pub(crate) const HEAD_TIMEOUT_S_DEFAULT: u32 = 15;
/// Time for the content of a request, all of it.
pub(crate) const CONTENT_TIMEOUT_S_DEFAULT: u32 = 30;
/// Time that a connection may wait between two requests.
pub(crate) const IDLE_TIMEOUT_S_DEFAULT: u32 = 60;
/// Time for one write. What is written at once is a chunk or two, a body of up to
/// [`WRITE_BYTES_MAX`], or a batch of small answers.
pub(crate) const WRITE_TIMEOUT_S_DEFAULT: u32 = 60;
/// Time to wait for the peer's end of the connection after ours.
pub(crate) const LINGER_TIMEOUT_S_DEFAULT: u32 = 5;
/// Deadlines are looked at this often: a time-out is up to so much late.
pub(crate) const SWEEP_MS: u64 = 500;
/// What the time-out options accept at most: a day.
pub(crate) const TIMEOUT_S_MAX: u32 = 86_400;

/// A file that changed less than this before it was read may change again within one tick of its
/// time stamp: its validators are weak and its cached bytes are read again at the next check.
pub(crate) const RACY_S: i64 = 2;

/// What one connection can make the server hold: a head that is not complete, one read behind it,
/// answers up to the high mark and one answer beyond it, and two chunks of a large file.
pub(crate) const CONNECTION_BYTES_MAX: usize = HEAD_BYTES_MAX
    + READ_BYTES
    + UNWRITTEN_BYTES_HIGH
    + INLINE_BODY_BYTES_MAX
    + 2 * CHUNK_BYTES
    + 64 * size_of::<usize>();

const _: () = {
    assert!(TARGET_BYTES_MAX < HEAD_BYTES_DEFAULT && HEAD_BYTES_DEFAULT <= HEAD_BYTES_MAX);
    assert!(CACHE_FILE_BYTES_DEFAULT <= CACHE_FILE_BYTES_MAX);
    assert!(CACHE_FILE_BYTES_DEFAULT <= CACHE_BYTES_DEFAULT);
    assert!(INLINE_BODY_BYTES_MAX < UNWRITTEN_BYTES_HIGH);
    assert!(CHUNK_BYTES <= WRITE_BYTES_MAX);
    assert!(CONNECTION_BYTES_MAX <= 1 << 20);
};
