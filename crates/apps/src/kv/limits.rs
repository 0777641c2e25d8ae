//! Every bound of the key-value server, in one place, and how they relate.
//!
//! Read first: memcached's `protocol.txt` for the bounds that a client can see.

/// Longest key, in bytes; for a base64 key both its text and what it stands for.
pub const KEY_BYTES_MAX: usize = 250;

/// Largest item: value, key and the fixed costs below. memcached's `item_size_max`.
pub const ITEM_BYTES_MAX: usize = 1 << 20;

/// What memcached adds to key and value before it compares with [`ITEM_BYTES_MAX`]: its header,
/// the cas unique, the key's NUL and the value's CR LF. Kept, so that the same value is too large
/// for both servers.
pub const ITEM_FIXED_BYTES: usize = 48 + 8 + 1 + 2;

/// And this much more when the client flags are not zero.
pub const ITEM_FLAGS_BYTES: usize = 4;

/// Longest command line before its line feed, except get and gets, whose keys are taken one by one.
pub const LINE_BYTES_MAX: usize = 2048;

/// Longest first word that is looked up to tell what a connection speaks.
pub const COMMAND_BYTES_MAX: usize = 32;

/// Words in a meta command's line: command, key, data length and flags.
pub const META_WORDS_MAX: usize = 22;

/// Longest opaque of a meta command, its letter `O` included.
pub const OPAQUE_BYTES_MAX: usize = 32;

/// Arguments of one command in RESP, as for Redis.
pub const RESP_ARGUMENTS_MAX: u32 = 1 << 20;

/// Longest argument that is passed over if it cannot be stored, as Redis's `proto-max-bulk-len`.
pub const RESP_BULK_BYTES_MAX: usize = 512 << 20;

/// A length or a count in RESP, with its sign, its digits and its CR LF.
pub const RESP_HEADER_BYTES_MAX: usize = 32;

/// A connection stops parsing while this many bytes of responses wait to be written. One more item
/// may follow, so a connection never holds more than this plus [`ITEM_BYTES_MAX`].
pub const OUTPUT_BYTES_MAX: usize = 256 << 10;

/// Smallest `--memory`.
pub const MEMORY_BYTES_MIN: usize = 8 << 20;

/// Largest `--memory`: what the shards' 32-bit places can address.
pub const MEMORY_BYTES_MAX: usize = SHARDS_MAX * SHARD_BYTES_MAX;

/// A shard is never smaller, so that one item cannot push out more than a small part of it.
pub const SHARD_BYTES_MIN: usize = 8 << 20;

/// A place is a 32-bit count of [`UNIT_BYTES`].
pub const SHARD_BYTES_MAX: usize = UNIT_BYTES << 31;

/// More shards would not make two cores meet less often, and cost memory at their edges.
pub const SHARDS_MAX: usize = 256;

/// Records start at multiples of this.
pub const UNIT_BYTES: usize = 8;

/// Memory behind one head of the hash table. An item of this size gives one item per chain.
pub const BYTES_PER_HEAD: usize = 128;

/// Records that one store may carry from the log's tail to its head instead of evicting them.
pub const MOVES_PER_STORE_MAX: u32 = 256;

/// Bytes that one store may carry so, beyond its own size. It bounds how long a shard's lock is
/// held: about ten microseconds.
pub const MOVED_BYTES_PER_STORE_MAX: usize = 128 << 10;

/// Values in arrival per shard: each holds memory that cannot be evicted.
pub const RESERVATIONS_PER_SHARD_MAX: usize = 4096;

/// Share of a shard that values in arrival may hold, as a divisor.
pub const RESERVED_SHARE: usize = 2;

/// While more than one part in this many of the log is dead, its live records are carried over, so
/// that rewriting some items does not push out others.
pub const DEAD_SHARE: usize = 8;

/// Longest relative expiry time: 30 days. A larger number is a Unix time.
pub const RELATIVE_EXPIRY_S_MAX: i64 = 60 * 60 * 24 * 30;

/// Room for responses to begin with: one buffer of a channel's pool, a value of 1 KiB and more.
pub const RESPONSE_BYTES: usize = 4 << 10;

/// How often connections are looked at for timeouts, in milliseconds.
pub const SWEEP_MS: u64 = 500;

/// With all connections taken, one that has been idle for so many milliseconds gives way to one
/// that waits, also if it never sent a byte.
pub const CROWDED_IDLE_MS: u64 = 1_000;

/// Time that the peer has to close its side after ours, in milliseconds. `--stall-timeout` counts
/// if it is shorter.
pub const LINGER_MS: u64 = 5_000;

/// Default of `--memory`, as in memcached.
pub const MEMORY_BYTES_DEFAULT: usize = 64 << 20;

/// Default of `--stall-timeout`, in seconds.
pub const STALL_TIMEOUT_S_DEFAULT: u32 = 60;

/// Largest timeout, in seconds: a day.
pub const TIMEOUT_S_MAX: u32 = 86_400;

const _: () = assert!(SHARD_BYTES_MIN >= 4 * ITEM_BYTES_MAX);
const _: () = assert!(MEMORY_BYTES_MIN >= SHARD_BYTES_MIN);
const _: () = assert!(SHARDS_MAX.is_power_of_two() && UNIT_BYTES.is_power_of_two());
const _: () = assert!(LINE_BYTES_MAX > KEY_BYTES_MAX + 128 && LINE_BYTES_MAX > COMMAND_BYTES_MAX);
const _: () = assert!(LINE_BYTES_MAX > 2 * KEY_BYTES_MAX + 4 * RESP_HEADER_BYTES_MAX);
