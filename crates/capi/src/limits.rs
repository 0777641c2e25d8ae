//! Limits of the C interface. Those of the channel itself are in the channel's own `limits`.

/// Bytes of the text of `mp_last_error()`, its NUL included.
pub(crate) const LAST_ERROR_BYTES: usize = 512;

/// Bytes of the text of one error number of the kernel, its NUL included.
pub(crate) const KERNEL_TEXT_BYTES: usize = 128;

/// Most completions that one `mp_dispatch_many()` returns.
pub(crate) const DISPATCH_MANY_MAX: usize = 1024;

/// Parts of one `mp_readv()` or `mp_writev()`, as `IOV_MAX` of Linux.
pub(crate) use marshal::limits::PARTS_MAX;

/// Words of 64 bits in the largest CPU mask.
pub(crate) const MASK_WORDS_MAX: usize = channel::limits::CPUS_MAX / 64;

/// Links of the library's own stack that are kept for later channels.
pub(crate) const NETWORKS_MAX: usize = 64;

/// Connections of a stack beyond those that the program may have handles of: in its listeners'
/// queues, or closing.
pub(crate) const SLOTS_BESIDE_CONNECTIONS: u32 = 1024;

/// Channel tags: a handle carries 12 bits that identify its channel in the process.
pub(crate) const CHANNEL_TAGS: usize = 1 << 12;

const _: () = assert!(PARTS_MAX <= channel::limits::WRITE_PARTS_MAX);

/// `mp_unsent_bytes()` returns a sum over outstanding writes, plus one write past the queue; it
/// must not become negative.
const UNSENT_BYTES_MAX: usize =
    (channel::limits::OPERATIONS_MAX + 1) * channel::limits::WRITE_LEN_MAX;
const _: () = assert!(UNSENT_BYTES_MAX <= libc::ssize_t::MAX as usize);

/// Contexts of mTCP's API in a process, one for each core.
pub(crate) const MTCP_CONTEXTS_MAX: usize = 256;

/// Descriptors of a context in addition to `max_concurrency` connections: listeners, sets, pipes.
pub(crate) const MTCP_DESCRIPTORS_BESIDE: u32 = 1024;

/// Most events that one `mtcp_epoll_wait()` returns, whatever `maxevents` is.
pub(crate) const MTCP_EVENTS_MAX: usize = 1 << 16;

/// Receive buffers of a context: `max_num_buffers`, a power of two between these.
pub(crate) const MTCP_BUFFERS_MIN: u16 = 64;
/// As above.
pub(crate) const MTCP_BUFFERS_MAX: u16 = 4096;

/// Bytes of the longest configuration file.
pub(crate) const MTCP_FILE_BYTES_MAX: u64 = 1 << 20;

/// The first descriptor of BSD sockets; smaller numbers belong to the process.
pub(crate) const BSD_FIRST: i32 = 1 << 30;
/// The same if descriptors have to fit into an fd_set of 1,024.
pub(crate) const BSD_FIRST_FOR_SELECT: i32 = 512;
/// Most descriptors in that case.
pub(crate) const BSD_DESCRIPTORS_FOR_SELECT: u32 = 512;
/// Distance between the first descriptors of two threads.
pub(crate) const BSD_NUMBERS: i32 = sockets::limits::DESCRIPTORS_MAX as i32;
/// Threads that have sockets of their own.
pub(crate) const BSD_THREADS_MAX: usize = 1023;
/// Most events that a wait returns, whatever `maxevents` is.
pub(crate) const BSD_EVENTS_MAX: usize = 1 << 16;
/// Entries of one poll().
pub(crate) const BSD_POLL_MAX: usize = 1 << 20;

const _: () = assert!(
    BSD_FIRST as i64 + (BSD_THREADS_MAX as i64 - 1) * BSD_NUMBERS as i64
        <= sockets::limits::FIRST_DESCRIPTOR_MAX as i64
);
const _: () = assert!(BSD_FIRST_FOR_SELECT as usize + BSD_DESCRIPTORS_FOR_SELECT as usize <= 1024);
