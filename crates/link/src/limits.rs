//! Every bound of this crate.

/// Local addresses that an [`Ownership`](crate::Ownership) may name.
pub const OWNED_ADDRESSES_MAX: usize = 16;
/// Disjoint ranges of ports for each protocol.
pub const OWNED_PORT_RANGES_MAX: usize = 64;
/// Single flows, taken and released ones counted separately.
pub const OWNED_FLOWS_MAX: usize = 256;

/// An Ethernet header with one VLAN tag.
pub const ETHERNET_HEADER_BYTES: usize = 18;
/// The largest frame of a link that segments: an IP packet of the greatest length, rounded up to
/// whole cache lines with its Ethernet header.
pub const OFFLOAD_FRAME_BYTES: usize = 65_535_usize.next_multiple_of(128) + 64;
/// Frames that wait in one direction of a pair.
pub const PAIR_FRAMES_MAX: usize = 1 << 16;

const _: () = assert!(OFFLOAD_FRAME_BYTES >= 65_535 + ETHERNET_HEADER_BYTES);
const _: () = assert!(PAIR_FRAMES_MAX.is_power_of_two());
/// Memory that must be left when a link is opened, beside what its driver maps.
pub(crate) const OPEN_SPARE_BYTES: usize = 8 << 20;

/// How long the directory of a UNIX socket's path may stay locked, in milliseconds: longer than a
/// bind, and than the removal of a socket that a dead server left behind.
pub const UNIX_PATH_LOCK_MS: u64 = 1_000;
/// Queues of one TAP device (the kernel's own bound is 256).
pub const TAP_QUEUES_MAX: usize = 64;
/// What a capture gathers before it is written to its file.
pub const CAPTURE_BUFFER_BYTES: usize = 256 * 1024;
/// Bytes of a program's capture file, if its user sets no limit.
pub const CAPTURE_BYTES_MAX_DEFAULT: u64 = 256 << 20;
/// The smallest limit of a capture file: the head and some frames.
pub const CAPTURE_BYTES_MAX_MIN: u64 = 4_096;
/// Interfaces of one section of a capture that is read.
pub const CAPTURE_INTERFACES_MAX: usize = 1_024;
/// memif: rings in one direction, and so links, of one connection.
pub const MEMIF_QUEUE_COUNT_MAX: u16 = 64;
/// The largest ring, as a power of two: head and tail are 16 bits and must tell full from empty.
pub const MEMIF_RING_SIZE_LOG2_MAX: u8 = 14;
/// The smallest ring, as a power of two.
pub const MEMIF_RING_SIZE_LOG2_MIN: u8 = 1;
/// Regions that one client may add.
pub const MEMIF_REGION_COUNT_MAX: usize = 64;
/// Bytes in a region: a descriptor's offset has 32 bits.
pub const MEMIF_REGION_BYTES_MAX: u64 = 1 << 32;
/// The smallest buffer in bytes that one descriptor may point at.
pub const MEMIF_BUFFER_BYTES_MIN: u32 = 64;
/// The largest buffer in bytes.
pub const MEMIF_BUFFER_BYTES_MAX: u32 = 1 << 16;
/// Frames longer than this are dropped, however many descriptors they came in.
pub const MEMIF_FRAME_BYTES_MAX: usize = 1 << 16;
/// Polls without a frame, or without room, between two looks at the control channel.
pub const MEMIF_POLLS_PER_CONTROL_LOOK: u32 = 4096;
/// How long to sleep at most while the ring to the peer is full: the protocol has no interrupt for
/// room, so a timer stands in for it.
pub const MEMIF_FULL_SLEEP_US: u32 = 100;
/// Turns to wait before the last look ahead of a sleep; see `Memif::arm`.
pub const MEMIF_SPINS_BEFORE_SLEEP: u32 = 64;
/// Peers that one look of a link without a peer leaves at most.
pub const MEMIF_PEERS_PER_LOOK: usize = 8;

/// Milliseconds between the first two attempts of a client without a server, and at most.
pub const MEMIF_RETRY_MIN_MS: u64 = 10;
/// See [`MEMIF_RETRY_MIN_MS`].
pub const MEMIF_RETRY_MAX_MS: u64 = 500;

/// Milliseconds that a client which is to start without its server waits for one that is there.
pub const MEMIF_PRESENT_WAIT_MS: u64 = 50;
/// How long a peer may take over one message of the control channel, in milliseconds.
pub const MEMIF_MESSAGE_TIMEOUT_MS: u64 = 2_000;
/// Messages of one client until it is connected: INIT, its regions and rings, CONNECT, and some
/// unsolicited ACKs.
pub const MEMIF_HANDSHAKE_MESSAGES_MAX: u32 =
    2 + MEMIF_REGION_COUNT_MAX as u32 + 2 * MEMIF_QUEUE_COUNT_MAX as u32 + 8;
const _: () = assert!(1u32 << MEMIF_RING_SIZE_LOG2_MAX <= (u16::MAX as u32).div_ceil(2));
const _: () = assert!(MEMIF_RING_SIZE_LOG2_MIN < MEMIF_RING_SIZE_LOG2_MAX);
const _: () = assert!(MEMIF_BUFFER_BYTES_MIN <= MEMIF_BUFFER_BYTES_MAX);
const _: () = assert!(MEMIF_BUFFER_BYTES_MAX as usize <= MEMIF_FRAME_BYTES_MAX);
const _: () = assert!(ETHERNET_HEADER_BYTES < MEMIF_FRAME_BYTES_MAX);
/// Instructions of a socket filter (`BPF_MAXINSNS`).
pub const PACKET_FILTER_INSTRUCTIONS_MAX: usize = 4_096;
/// Frames that a packet link hands over in one system call.
pub const PACKET_BATCH_MAX: usize = 32;
/// What may wait in a packet socket before we take it.
pub const PACKET_SOCKET_BUFFER_BYTES: i32 = 8 << 20;
/// Ports of one link that the kernel is kept silent on, each by a socket.
pub const RESERVATIONS_MAX: usize = 4_096;
/// Bytes that a moved connection's queue is filled with in one call.
pub const REPAIR_CHUNK_BYTES_MAX: usize = 64 << 10;
/// The same, where the kernel has no memory for as many.
pub const REPAIR_CHUNK_BYTES_MIN: usize = 1 << 10;
/// Bytes that fit into a kernel queue of default size.
pub const REPAIR_PLAIN_BYTES: usize = 8 << 10;
/// Room beside twice the bytes in a queue that has to be made larger.
pub const REPAIR_ROOM_BYTES: usize = 64 << 10;
const _: () = assert!(REPAIR_CHUNK_BYTES_MIN <= REPAIR_PLAIN_BYTES);
const _: () = assert!(REPAIR_CHUNK_BYTES_MAX.is_power_of_two());
/// Time without a peer after which a memif reports that it waits for one, in milliseconds.
pub const MEMIF_NOTICE_AFTER_MS: u64 = 1_000;
/// How long opening a described memif waits for its peer if the description has no `wait`, in
/// seconds.
pub const MEMIF_WAIT_S: u32 = 30;
/// Queues of one interface that may have an AF_XDP socket.
pub const XDP_QUEUES_MAX: u32 = 64;
/// The longest key of a device's receive hash, in bytes: the devices of today have 40 or 52.
pub const RSS_KEY_BYTES_MAX: usize = 256;
/// Entries of a device's indirection table: those of today have 2,048 at most.
pub const RSS_TABLE_ENTRIES_MAX: usize = 1 << 12;
const _: () = assert!(RSS_TABLE_ENTRIES_MAX.is_power_of_two());
/// The longest netlink datagram that is read; the kernel writes 32 KiB at most.
pub const NETLINK_BUFFER_BYTES: usize = 64 * 1024;
/// Number of attempts to read a list that changes while it is read.
pub const NETLINK_LISTINGS_MAX: usize = 8;
/// How long the kernel may take for an answer, in milliseconds.
pub const NETLINK_TIMEOUT_MS: u64 = 5_000;
/// Frames of one direction that a faulty link holds back.
pub const FAULT_DELAYED_FRAMES: usize = 1_024;
/// How long a described link holds a frame back for others to overtake it, in microseconds.
pub const FAULT_REORDERING_DELAY_US: u64 = 3_000;
/// The smallest ring of an AF_XDP socket: a burst of 32 in each direction and one more.
pub const XDP_RING_SIZE_MIN: u32 = 64;
/// The largest ring of an AF_XDP socket: 64 MiB of frames of 4,096 bytes for both directions.
pub const XDP_RING_SIZE_MAX: u32 = 8_192;
/// Bytes of an AF_XDP frame that the kernel keeps free before a received packet.
pub const XDP_HEADROOM_BYTES: usize = 256;
/// Pieces of one frame (multi-buffer): as many as fit the kernel's packet beside its first
/// (`MAX_SKB_FRAGS`, 17 unless the kernel was built otherwise).
pub const XDP_PIECES_MAX: usize = 16;
/// How long an interface or a queue may stay busy after the last program or socket on it was
/// closed, in milliseconds.
pub const XDP_BUSY_PATIENCE_MS: u64 = 500;
/// Frames that the kernel sends for one wake-up where it copies (`TX_BATCH_SIZE`).
pub const XDP_FRAMES_PER_KICK: usize = 32;
/// Bursts that found nothing to do between two looks at what happened to the socket.
pub const XDP_POLLS_PER_LOOK: u32 = 4_096;
const _: () = assert!(XDP_RING_SIZE_MIN.is_power_of_two() && XDP_RING_SIZE_MAX.is_power_of_two());
const _: () = assert!(XDP_RING_SIZE_MIN as usize >= 2 * XDP_FRAMES_PER_KICK);
const _: () = assert!(XDP_RING_SIZE_MIN as usize >= 2 * XDP_PIECES_MAX);
