//! Every ceiling of this crate, by name, and how they hang together.

use std::time::Duration;

/// Most frames that a poll takes from the link: its share, so that applications get theirs
/// [ETA 4.2].
pub const RX_FRAMES_PER_POLL: usize = 64;
/// Most frames that a poll hands to the link.
pub const TX_FRAMES_PER_POLL: usize = 256;
/// Frames to the stack's own addresses that wait to be received; each poll receives them all.
pub const LOOPED_FRAMES_MAX: usize = RX_FRAMES_PER_POLL;
/// Memory that must be left beside the tables of a shard at its start: the small allocations that
/// follow end the process where there is none.
pub(crate) const SERVER_SPARE_BYTES: usize = 8 << 20;
/// A link that has had no room for so long no longer holds up frames to the stack's own addresses.
/// Frames for the link are dropped then, as by a full device queue: more than the shortest time to
/// a retransmission, so that a peer that merely waits for a core loses nothing.
pub const LINK_STUCK_AFTER: Duration = Duration::from_millis(250);
/// How long a server spins after the last work before it sleeps, unless told otherwise.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(50);
/// Bytes of payload that a connection or a datagram counts for where the cost of work is measured.
pub const UNIT_WORK: u64 = 256;
/// Longest time to spin that may be asked for.
pub const SPIN_MAX: Duration = Duration::from_secs(1);
/// Shares of [`RX_FRAMES_PER_POLL`] that are taken before a connection moves: a window of 4 MiB in
/// frames of 1,500 bytes.
pub const DRAIN_SHARES_MAX: usize = 45;
/// Lines about clients that a daemon writes in a period, and the period.
pub const CLIENT_LINES_PER_PERIOD: u32 = 100;
/// See [`CLIENT_LINES_PER_PERIOD`].
pub const CLIENT_LINES_PERIOD: Duration = Duration::from_secs(60);
/// The ports that connections and listeners get when they ask for none, first and last: Linux's.
pub const EPHEMERAL_PORTS: (u16, u16) = (32_768, 60_999);
/// The ports that connections leave from where the host's address is shared, first and last: above
/// those that Linux picks from. Each that is used is reserved by a socket of the kernel's.
pub const SHARED_CLIENT_PORTS: (u16, u16) = (61_000, 61_511);
/// Ports of that range that are reserved at a time, so that a few connections cost few descriptors.
pub const CLIENT_PORTS_PER_BLOCK: u16 = 32;
/// How often a busy server asks what has changed in a host's network.
pub const HOST_LOOK_PERIOD: Duration = Duration::from_millis(1);
/// How often it is asked whether the connections that moved are still there.
pub const MOVED_LOOK_PERIOD: Duration = Duration::from_millis(250);
/// Most of them that are asked for at once.
pub const MOVED_LOOKS: usize = 64;
/// Most routes that are kept of a host's interface.
pub const HOST_ROUTES_MAX: usize = 64;
/// Most acceptors of one listener.
pub const ACCEPTORS_MAX: usize = 1 << 10;
/// Most acceptors of one session at a listener that several share.
pub const ACCEPTORS_OF_SESSION_MAX: usize = 1 << 4;
/// Connections that an application has claimed, and that its program has not accepted yet: while
/// there are so many it claims no more. The first for programs that are slow with them, the second
/// for those that are done with so many within [`CLAIM_PACE`].
pub const CLAIMS_SLOW_MAX: usize = 1 << 4;
/// See [`CLAIMS_SLOW_MAX`].
pub const CLAIMS_MAX: usize = 1 << 6;
/// Less than half of the usual claim time.
pub const CLAIM_PACE: Duration = Duration::from_millis(2);

const _: () = assert!(RX_FRAMES_PER_POLL <= TX_FRAMES_PER_POLL, "each frame may ask for one");
const _: () = assert!(
    (SHARED_CLIENT_PORTS.1 - SHARED_CLIENT_PORTS.0 + 1).is_multiple_of(CLIENT_PORTS_PER_BLOCK)
);
const _: () = assert!(SHARED_CLIENT_PORTS.0 > EPHEMERAL_PORTS.1, "the kernel picks none of them");
/// Most shards of one network.
pub const SHARDS_MAX: u16 = 256;
/// Most addresses, port and all, that shards listen at.
pub const BOUND_ADDRESSES_MAX: usize = 1 << 12;
/// How long after a change of listeners a connection may be on its way from one shard to another:
/// what a shard that is not polled for longer holds is answered by a RST.
pub const HANDOVER_LASTS: Duration = Duration::from_secs(1);
/// Most shards that are remembered to have served a home of a listener's address, for the
/// connections that began there.
pub const FORMER_SHARDS_MAX: usize = 8;
/// Most datagrams whose fragments are followed to one shard.
pub const FRAGMENTED_MAX: usize = 1 << 10;
/// Most fragments that wait for the first of their datagram.
pub const FRAGMENTS_HELD_MAX: usize = 64;
/// Records of a ring of frames from a queue to a shard.
pub const STEERED_FRAMES_MAX: u32 = 1 << 10;
/// Bytes of frames that wait in such a ring, where frames are of the usual size.
pub const STEERED_BYTES: usize = 512 << 10;
/// The same where the link merges frames.
pub const STEERED_MERGED_BYTES: usize = 4 << 20;
/// How long a shard sleeps at most while another one is awake and looks after the link: that one's
/// application may be busy.
pub const WATCH_PERIOD: Duration = Duration::from_micros(500);
/// So often a shard without work looks at another's queue and finds that none of its shards reads
/// it, before it reads it: some microseconds. A shard that has slept does not look again.
pub const LOOKS_BEFORE_READING: u32 = 16;
/// How often a queue that another shard has is tried before its frames wait for the next poll.
pub const LOCK_TRIES: u32 = 256;

/// The same after a while in which nothing came.
pub const WATCH_PERIOD_MAX: Duration = Duration::from_millis(4);

const _: () = assert!(WATCH_PERIOD_MAX.as_secs() == 0, "a timer's nanoseconds alone");
/// Records of the ring of ops from an application to a remote server.
pub const OPS_MAX: u32 = 1 << 12;
/// Records of the ring of events back. Half of it is kept for answers.
pub const COMPLETIONS_MAX: u32 = 1 << 14;
/// Most ops that a shard takes in a poll, of all its sessions together.
pub const OPS_PER_POLL: u32 = 1 << 12;
/// As many of each session even if it has many.
pub const OPS_SHARE_MIN: u32 = 1 << 4;
/// So many sessions are active even if they submit nothing.
pub const ACTIVE_ALWAYS: usize = 8;
/// A shard that does not sleep looks at the doorbells of idle sessions once in so many polls.
pub const LOOK_POLLS: u32 = 64;
/// How long a shard that has work puts off waking an application that sleeps on the same core.
pub const WAKE_DELAY_MAX: Duration = Duration::from_micros(100);
/// How long a shard sleeps at most while an application on its core, which it has given something
/// to do, is awake and need not ring.
pub const BRIEF_SLEEP_MAX: Duration = Duration::from_micros(500);
/// A shard's CPU time is charged to its sessions at most this often.
pub const CPU_SAMPLE_PERIOD: Duration = Duration::from_millis(10);
/// A shard that sleeps while events wait for room looks for room after this time.
pub const ROOM_WAIT: Duration = Duration::from_micros(250);
/// So often that time doubles while there is none.
pub const ROOM_DOUBLINGS_MAX: u32 = 7;
/// Closed connections that a shard looks at, at once, where a user has reached a quota.
pub const RECOUNT_MAX: usize = 1 << 12;
/// Most sessions of a shard, and one: the number 0 is the shard itself.
pub const SESSIONS_MAX: usize = 1 << 11;
/// Most copies of sends in the server's own memory that a session has at once.
pub const COPIES_MAX: u32 = 1 << 16;
/// Their bytes.
pub const COPY_BYTES_MAX: usize = 64 << 20;
/// Most connections that the acceptors of a session take in advance: the sum of all sessions of a
/// listener fits 32 bits.
pub const SESSION_CREDIT_MAX: u32 = 1 << 20;
/// Most events that wait for a session that does not read: more than its connections can have.
pub const PARKED_MAX: usize = 1 << 20;
/// Events that may wait for a session on a shard beside the quota of its user: a channel that reads
/// is not harmed by others of its user that do not.
pub const WAITING_ALWAYS: usize = 1 << 9;
/// A queue of waiting events that had room for more gives its memory back when it is empty.
pub const WAITING_KEPT: usize = 1 << 10;
/// Datagrams among them.
pub const DATAGRAMS_PARKED_MAX: usize = 1 << 9;
/// Time in which the connections of a session that has ended send what was handed over.
pub const DRAIN_TIME_DEFAULT: Duration = Duration::from_secs(60);
/// Bytes that they may still have to send.
pub const DRAIN_BYTES_DEFAULT: u64 = 64 << 20;

const _: () = assert!(SESSION_CREDIT_MAX as u64 * (SESSIONS_MAX as u64) <= u32::MAX as u64);
/// So many frames wake an application that shares the server's core, even if more come.
pub const FRAMES_PER_WAKE: usize = 4_096;
/// How often a busy server beside looks at the descriptor of an application that sleeps.
pub const WATCHED_PERIOD: Duration = Duration::from_micros(100);
/// Bursts of frames that a server beside takes before it sends again.
pub const BURSTS_PER_POLL: usize = 4;
/// Most polls of a server that ends, to send its last frames.
pub const SHUTDOWN_POLLS_MAX: usize = 16;
/// How long a shard that ends waits for room in its ring to a link server, and such a server for
/// room on its link.
pub const SHUTDOWN_ROOM_WAIT: Duration = Duration::from_millis(100);
/// Buffers that small messages are copied into on their way to a remote server.
pub const SMALL_SENDS: u32 = 1 << 13;
/// Their size in bytes.
pub const SMALL_SEND_BYTES: usize = 256;
/// Buffers that longer ones are copied into.
pub const LARGE_SENDS: u32 = 1 << 9;
/// Their size in bytes: the longest datagram fits.
pub const LARGE_SEND_BYTES: usize = 64 << 10;
/// Bytes of a session's call buffer: those of the longest list or text in a call or its answer.
pub const CALL_BYTES: usize = 64 << 10;
/// Most events that an application keeps aside while it waits for an answer or for room: a server
/// that sends more is at fault.
pub const EVENTS_ASIDE_MAX: usize = 1 << 20;
/// Records without an event for the program that an application takes in one call: those of a full
/// ring and of the backlog beside it.
pub const SKIPPED_RECORDS_MAX: u32 = 2 * COMPLETIONS_MAX;
/// Numbers of cores that a listener may name are below this.
pub const CORES_MAX: u32 = 1 << 10;
/// Most bytes that an application puts before the unread ones of a connection that it hands over.
pub const PREPENDED_BYTES_MAX: usize = 64 << 20;
/// Destinations of datagrams that an application remembers as checked by the server.
pub const CHECKED_WAYS_MAX: usize = 1 << 8;
/// Most receive buffers of one session.
pub const RECEIVE_BUFFERS_MAX: u32 = 1 << 20;
/// Records of a session's ring of ops, least and most.
pub const SESSION_OPS: (u32, u32) = (1 << 6, OPS_MAX);
/// Records of its ring of events, least and most.
pub const SESSION_EVENTS: (u32, u32) = (1 << 7, COMPLETIONS_MAX);
/// Most lanes of a session, and so most shards of a daemon: a message carries so many descriptors
/// and one more (SCM_MAX_FD is 253).
pub const LANES_MAX: u16 = 1 << 7;
/// Events that a channel takes of one lane before it looks at the next.
pub const LANE_EVENTS_PER_TURN: u32 = 1 << 6;
/// Ports that are tried before none is found that all lanes have free.
pub const FREE_PORT_TRIES: u32 = 1 << 6;
/// Receive buffers of a lane at least, where there are so many: the others are divided.
pub const LANE_RECEIVES_MIN: u32 = 1 << 6;
/// Records of the ring of ops that a daemon gives a session at most. Its memory stays in use once
/// it was used, so a session of a daemon has less than one that has its server to itself.
pub const LANE_OPS: u32 = 1 << 10;
/// Records of its ring of events.
pub const LANE_EVENTS: u32 = 1 << 12;
/// Bytes of a session's first receive buffers that are touched, with the rings, when it is created.
pub const FIRST_BUFFER_BYTES: usize = 64 << 10;
/// Most connections of a session.
pub const CONNECTIONS_OF_SESSION_MAX: u32 = 1 << 20;
/// Longest message of a handshake in bytes.
pub const MESSAGE_BYTES_MAX: usize = 8 << 10;
/// Copies of a token that its holders have made, and that processes hold.
pub const TOKEN_COPIES_MAX: usize = 256;
/// Requests over a token and its copies that shards have not carried out.
pub const TOKEN_REQUESTS_MAX: u32 = 1 << 10;
/// Requests that a shard carries out before it looks at its link again.
pub const REQUESTS_AT_ONCE: u32 = 32;
/// Connections and endpoints that the tokens of a user own on a shard, each counted once for each
/// token.
pub const HOLDS_MAX: usize = 1 << 18;
/// Datagrams that wait for the owners of an endpoint with several of them.
pub const SHARED_DATAGRAMS_MAX: usize = 256;
/// Cookies of descriptors that a session may have passed and not forgotten.
pub const PASSED_MAX: usize = 8;
/// Descriptors of one of them.
pub const PASSED_SOCKETS_MAX: usize = 8;
/// Descriptors that a daemon has given and that no answer to a call has named.
pub const GIVEN_MAX: usize = 16;
/// Longest time in which a daemon checks descriptors.
pub const PASS_TIME: Duration = Duration::from_secs(2);
/// Longest sentence about descriptors that were refused, in bytes.
pub const PASS_SENTENCE_BYTES_MAX: usize = 512;
/// Longest time of a handshake.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(1);
/// Most handshakes in progress.
pub const HANDSHAKES_MAX: usize = 64;
/// Most of them of one user.
pub const HANDSHAKES_OF_USER_MAX: usize = 16;
/// Time that a daemon with tokens stays when nothing uses it.
pub const UNUSED_TIME: Duration = Duration::from_millis(500);
/// Longest sleep of a daemon's control thread: it looks whether its shards run.
pub const CONTROL_LOOK_PERIOD: Duration = Duration::from_secs(1);
/// Endpoints for datagrams of a shard, and of a program with a stack of its own.
pub const ENDPOINTS_OF_SHARD: u32 = 1 << 10;
/// Most bytes of a session's receive buffers in a daemon.
pub const SESSION_RECEIVE_BYTES_MAX: u32 = 64 << 20;
/// Bytes of a buffer of a shard's own memory.
pub const PRIVATE_BUFFER_BYTES: usize = 2_048;
/// Buffers of a shard's own memory.
pub const PRIVATE_BUFFERS: u32 = 4_096;
/// Receive buffer of a connection that no session has accepted. The first window of a peer fits
/// (RFC 6928: ten segments).
pub const UNOWNED_RECEIVE_BYTES: u32 = 16 << 10;
/// Longest time in which a client attaches. Longer than a handshake: the first attempt may be
/// refused because there are too many.
pub const ATTACH_TIME: Duration = Duration::from_millis(1_500);
/// Time between two attempts of a client.
pub const ATTACH_RETRY: Duration = Duration::from_millis(20);
/// Clients that wait to be accepted by a daemon.
pub const CONTROL_BACKLOG: i32 = 256;
/// Clients that a daemon accepts before it looks at the others.
pub const ACCEPTS_PER_WAIT: usize = 64;
/// How long a daemon accepts no client after its descriptors have run out.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest answer to a query in bytes.
pub const ANSWER_BYTES_MAX: usize = 60 << 10;
/// Places of a shard's tables that are looked at for a page of an answer.
pub const PLACES_PER_PAGE: u32 = 1 << 12;
/// Sockets of a page, and of one where each comes with TCP_INFO.
pub const SOCKETS_PER_PAGE: (usize, usize) = (256, 96);
/// Listeners of a page of a connection manager.
pub const MANAGED_LISTENERS_PER_PAGE: usize = 12;
/// Users of a page.
pub const USERS_PER_PAGE: usize = 64;
/// Sessions of a page.
pub const SESSIONS_PER_PAGE: usize = 64;
/// Listeners of a page.
pub const LISTENERS_PER_PAGE: usize = 16;
/// Acceptors that are listed of a listener.
pub const ACCEPTORS_LISTED_MAX: usize = 64;
/// Picks that are remembered of a listener that several sessions share.
pub const PICKS_REMEMBERED: usize = 8;
/// Notes of a link that are shown, and bytes of each.
pub const NOTES_SHOWN: (usize, usize) = (16, 400);
/// Addresses of a link that are shown.
pub const ADDRESSES_SHOWN: usize = 64;
/// Queries in progress: processes that ask, of all users but root and the daemon's own.
pub const QUERIERS_MAX: usize = 16;
/// Most of them of one user.
pub const QUERIERS_OF_USER_MAX: usize = 4;
/// Most of root and the daemon's own user.
pub const QUERIERS_OF_OWNER_MAX: usize = 16;
/// Longest time of a process that asks.
pub const QUERY_TIME: Duration = Duration::from_secs(10);
/// The same of root and the daemon's own user: a million connections take more than ten seconds.
pub const QUERY_TIME_OF_OWNER: Duration = Duration::from_secs(60);
/// Most pages of a listing that a process reads: a daemon that sends more is at fault.
pub const PAGES_READ_MAX: u32 = 1 << 16;
/// Pages that are answered at once after a while without queries.
pub const PAGES_AT_ONCE: u32 = 128;
/// Beyond these, a page is answered in so much time. A page costs its shard a few tens of
/// microseconds.
pub const PAGE_PERIOD: Duration = Duration::from_millis(1);
/// Most bytes of a session's region.
pub const SESSION_BYTES_MAX: usize = 1 << 34;

const _: () = assert!(LANE_OPS >= SESSION_OPS.0 && LANE_OPS <= SESSION_OPS.1);
const _: () = assert!(LANE_EVENTS >= SESSION_EVENTS.0 && LANE_EVENTS <= SESSION_EVENTS.1);
const _: () = assert!(OPS_PER_POLL <= COMPLETIONS_MAX / 2, "each op may have an answer");
const _: () = assert!(LARGE_SEND_BYTES <= CALL_BYTES, "a copy goes over in one call");
const _: () = assert!(SMALL_SEND_BYTES < LARGE_SEND_BYTES && LARGE_SEND_BYTES > u16::MAX as usize);

/// Time in which an offered connection is claimed unless the listener has another one. Well above a
/// scheduler's slice (about 3 ms): a program that waits for a core keeps its connections.
pub const CLAIM_TIME_DEFAULT: Duration = Duration::from_millis(5);
/// The claim times that a listener may have, shortest and longest.
pub const CLAIM_TIMES: (Duration, Duration) = (Duration::from_micros(100), Duration::from_secs(1));
/// How often the claim time of a listener doubles at most, while the same connections are taken
/// back again: by default up to 80 ms.
pub const CLAIM_TIME_DOUBLINGS_MAX: u32 = 4;
/// A doubling of the claim time lasts so long after the last repeated take-back.
pub const CLAIM_TIME_CALM: Duration = Duration::from_secs(1);
/// Connections that wait for an acceptor at one connection manager unless the listener says so.
pub const WAITING_DEFAULT: usize = 1 << 12;
/// Most connections that may wait there.
pub const WAITING_MAX: usize = 1 << 16;
/// Service times of which a moving median or mean is taken [PIKA 5.3].
pub const ESTIMATE_WINDOW_DEFAULT: u16 = 128;
/// Most of them.
pub const ESTIMATE_WINDOW_MAX: u16 = 1 << 10;
/// Interval of the samples of service time [PIKA 5.3].
pub const ESTIMATE_PERIOD_DEFAULT: Duration = Duration::from_micros(500);
/// Longest interval of the samples.
pub const ESTIMATE_PERIOD_MAX: Duration = Duration::from_millis(100);
/// Shortest interval of a connection manager's offers [PIKA 3.3].
pub const OFFER_INTERVAL_DEFAULT: Duration = Duration::from_micros(50);
/// The intervals of offers that may be configured, shortest and longest.
pub const OFFER_INTERVALS: (Duration, Duration) =
    (Duration::from_micros(1), Duration::from_millis(100));
/// An offer is repeated if its service time has changed by so many percent.
pub const OFFER_CHANGE_PERCENT_DEFAULT: u8 = 5;
/// An unchanged offer is repeated at this age while its connection manager is awake.
pub const OFFER_REFRESH_DEFAULT: Duration = Duration::from_millis(10);
/// An offer that is older does not count.
pub const OFFER_EXPIRY_DEFAULT: Duration = Duration::from_secs(1);
/// Longest time to the expiry of an offer.
pub const OFFER_EXPIRY_MAX: Duration = Duration::from_secs(60);
/// Factor that another connection manager's acceptor must be faster by [PIKA 5.2], in hundredths.
pub const TARIFF_DEFAULT: u32 = 200;
/// The tariffs that may be configured, in hundredths.
pub const TARIFFS: (u32, u32) = (100, 100_000);
/// An offer that has passed the filter passes it until its advantage is below this share of the
/// tariff, in percent.
pub const LOW_WATER_PERCENT_DEFAULT: u8 = 75;
/// Credit of an acceptor that its connection manager lends to each other one at most.
pub const LOAN_MAX: u32 = 16;
/// An acceptor with so much credit lends it without a limit: simulations have such.
pub const UNCOUNTED_CREDIT: u32 = 1 << 31;
/// Connections that a new acceptor may hold before its first answer, while others have answered.
pub const PROBE_CONNECTIONS_MAX: u32 = 4;

const _: () = assert!(OFFER_REFRESH_DEFAULT.as_millis() < OFFER_EXPIRY_DEFAULT.as_millis());
/// Records of the ring from one server of a daemon to another.
pub const MAIL_ENTRIES: u32 = 1 << 8;
/// Messages of another server that a poll takes.
pub const MAIL_PER_POLL: u32 = 1 << 7;
/// Messages that wait at a server for room in a ring.
pub const MAIL_WAITING_MAX: usize = 1 << 16;
/// Longest sleep of a server at which connections wait for an acceptor: what changes that without
/// waking it is looked at then.
pub const WAITING_LOOK_PERIOD: Duration = Duration::from_millis(1);
