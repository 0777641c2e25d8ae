//! Every limit of the benchmark, named.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

/// What a peer may send a baseline server ahead of the replies it has taken.
pub(crate) const AHEAD_BYTES_MAX: usize = 1 << 20;

/// Backlog of the baselines' listeners; the kernel caps it at `net.core.somaxconn`.
pub(crate) const LISTEN_BACKLOG: i32 = 4096;

/// The epoll baselines' receive buffer, one per thread.
pub(crate) const EPOLL_BUFFER_BYTES: usize = 64 << 10;
/// Memory that has to be left when all threads of a server have started.
pub(crate) const BASELINE_SPARE_BYTES: usize = 4 << 20;

/// Events taken by one `epoll_wait`.
pub(crate) const EPOLL_EVENTS: usize = 512;

/// Submission queue entries of the io_uring baseline.
pub(crate) const RING_SUBMISSION_ENTRIES: u32 = 2048;

/// Completion queue entries: several for each submission, since multishot operations post many.
pub(crate) const RING_COMPLETION_ENTRIES: u32 = 4 * RING_SUBMISSION_ENTRIES;

/// Direct descriptors of one ring: the connections one thread of the io_uring baseline can hold.
pub(crate) const RING_CONNECTIONS_MAX: u32 = 32 << 10;

/// Receive buffers of one ring, a power of two.
pub(crate) const RING_BUFFERS: u16 = 512;

/// A receive buffer of the io_uring baseline.
pub(crate) const RING_BUFFER_BYTES: usize = 2048;

/// How long cancelling everything in flight may take at a stop.
pub(crate) const RING_CANCEL_MAX: Duration = Duration::from_secs(1);

/// Runs of one point that `--runs` takes.
pub(crate) const RUNS_MAX: usize = 1_000;

/// Cores that a list of cores may name.
pub(crate) const CPUS_MAX: usize = 1024;

/// How long a server may take to accept its first connection.
pub(crate) const SERVER_READY_MAX: Duration = Duration::from_secs(30);

const _: () = assert!(RING_BUFFERS.is_power_of_two());
const _: () = assert!(RING_COMPLETION_ENTRIES >= 2 * RING_BUFFERS as u32);

/// Interval of checks of a child process.
pub(crate) const CHILD_POLL: Duration = Duration::from_millis(5);

/// Longest time for a child to end after a signal.
pub(crate) const CHILD_STOP_MAX: Duration = Duration::from_secs(2);

/// How long a server that is asked to end waits for its peers, which have gone.
pub(crate) const SERVER_DRAIN: Duration = Duration::from_secs(1);

const _: () = assert!(SERVER_DRAIN.as_millis() < CHILD_STOP_MAX.as_millis());

/// What is kept of a child's output.
pub(crate) const OUTPUT_BYTES_MAX: u64 = 8 << 20;

/// How long the load runs before anything counts.
pub(crate) const LOAD_WARM_UP: Duration = Duration::from_millis(500);

/// How long the load may take to connect, to fill a cache, and to end.
pub(crate) const LOAD_REST_MAX: Duration = Duration::from_secs(30);

/// Observation time of the machine before a benchmark.
pub(crate) const QUIET_CHECK: Duration = Duration::from_millis(500);

/// A machine that is busier than this before a benchmark begins is not quiet.
pub(crate) const QUIET_BUSY_SHARE_MAX: f64 = 0.1;

/// A side that is idle for less than this share of the time is called saturated.
pub(crate) const SATURATED_IDLE_SHARE_MAX: f64 = 0.03;

/// Lines of a failed child's output that an error quotes.
pub(crate) const LOG_LINES_SHOWN: usize = 4;

/// The first port used inside a namespace of our own.
pub(crate) const PORT_FIRST: u16 = 7100;

/// Connections that nginx and memcached are configured for.
pub(crate) const COMPARED_CONNECTIONS_MAX: usize = 16_384;

/// The size of a value in the key-value experiments [MP 5.2].
pub(crate) const KV_VALUE_BYTES: u64 = 1024;

/// How often progress is reported where there is no terminal.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// How often two threads wake each other to measure what that costs.
pub(crate) const WAKE_ROUNDS: usize = 500;

/// What one response of a bulk stream carries: as much as the protocol allows.
pub(crate) const BULK_BYTES: u64 = 1 << 20;

/// Connections that the two sides of the accept benchmark have room for.
pub(crate) const ACCEPT_CONNECTIONS_MAX: u32 = 16_384;

/// Room in the accept benchmark's load for each connection on its way: those before it may be
/// ending still.
pub(crate) const ACCEPT_LOAD_ROOM: u32 = 4;

/// Connections that may wait to be accepted there.
pub(crate) const ACCEPT_BACKLOG: u32 = 4096;

/// Idle connections that a server on our own stack is given.
pub(crate) const STACK_IDLE_CONNECTIONS: u32 = 1_000_000;
/// Connections that the server has room for.
pub(crate) const STACK_IDLE_ROOM: u32 = 1_010_000;
/// Transactions a second on all of them together.
pub(crate) const STACK_IDLE_RATE: u32 = 100;
/// How long they are held.
pub(crate) const STACK_IDLE_WINDOW: Duration = Duration::from_secs(2);
/// Addresses that they come from.
pub(crate) const STACK_IDLE_SOURCES: u8 = 40;
/// How long opening and holding them may take.
pub(crate) const STACK_IDLE_MAX: Duration = Duration::from_secs(120);

const _: () = assert!(STACK_IDLE_CONNECTIONS <= STACK_IDLE_ROOM);
// A source has the ports from 32,768 to 60,999.
const _: () = assert!(STACK_IDLE_CONNECTIONS / STACK_IDLE_SOURCES as u32 <= 28_000);

/// Idle connections over which the memory of one is averaged.
pub(crate) const IDLE_CONNECTIONS: usize = 10_000;

/// Connections and rounds of transactions that touch what is the channel's own first.
pub(crate) const IDLE_WARM_CONNECTIONS: usize = 128;
/// As above.
pub(crate) const IDLE_WARM_ROUNDS: usize = 40;

/// Descriptors needed beside those of idle connections.
pub(crate) const DESCRIPTORS_SPARE: u64 = 512;

/// How long compiling or running the C half of the comparison with C may take.
pub(crate) const C_HALF_MAX: Duration = Duration::from_secs(60);

/// Connections at once in mTCP's table 2.
pub(crate) const CROWD_CONNECTIONS: u64 = 8_000;
/// Bulk connections that share a server.
pub(crate) const FAIR_CONNECTIONS: u64 = 256;
/// What each of them asks for again and again.
pub(crate) const FAIR_RESPONSE_BYTES: u64 = 64 << 10;
/// Samples a second of a profile: not a divisor of the timer tick.
pub(crate) const PROFILE_HZ: u32 = 1_999;
/// How long after the load a profile may still be taken.
pub(crate) const PROFILE_MAX: Duration = Duration::from_secs(10);

/// Frames of a burst when steering is measured: what a turn takes from a link.
pub(crate) const STEERED_BURST: usize = megapipe_service::limits::RX_FRAMES_PER_POLL;
/// Bursts of a round.
pub(crate) const STEERED_BURSTS: usize = 200;
/// Bursts whose instructions are counted; enough that what comes once does not show.
pub(crate) const CARRIED_BURSTS: usize = 1_000;
/// How often a core that waits for the other looks before it lets others have it.
pub(crate) const STEERED_SPINS: u32 = 10_000;
/// Rounds, of which the median counts.
pub(crate) const STEERED_ROUNDS: usize = 15;
/// Connections in this process when it is looked at what a transaction consists of.
pub(crate) const SHAPE_CONNECTIONS: u32 = 256;
/// Transactions that are looked at.
pub(crate) const SHAPE_TRANSACTIONS: u64 = 20_000;
/// How long they may take.
pub(crate) const SHAPE_MAX: Duration = Duration::from_secs(30);

/// Cores on each side up to which is simulated.
pub(crate) const SIMULATED_CORES_MAX: u16 = 16;
/// Transactions of one simulated point.
pub(crate) const SIMULATED_TRANSACTIONS: u64 = 100_000;
/// One part of so many passes before anything counts.
pub(crate) const SIMULATED_WARM_UP_PARTS: u64 = 5;
/// How much more a side that is not to be the limit is given than it needs.
pub(crate) const SIMULATED_ROOM: f64 = 1.5;
/// The key of the hash that spreads simulated flows: any.
pub(crate) const SIMULATED_STEERING_KEY: [u8; 16] = *b"of no importance";
/// What simulated chance follows from.
pub(crate) const SIMULATED_SEED: u64 = 1;
/// The first of the addresses that simulated connections come from: 10.64.0.1.
pub(crate) const SIMULATED_PEERS: u32 = 0x0a40_0001;
/// Where they go.
pub(crate) const SIMULATED_SERVER: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 80);

// The lower the burst, the more the clock that is read twice for each would cost.
const _: () = assert!(STEERED_BURST >= 32);

/// Cores that two shards and a core of the load for each need.
pub(crate) const SHARDS_CORES_MIN: usize = 4;
/// How long a program waits for another one's socket, and how often it looks.
pub(crate) const AWAITED_MAX: Duration = Duration::from_secs(40);
pub(crate) const AWAITED_POLL: Duration = Duration::from_millis(1);
/// Connections of an idle server with a core for its stack.
pub(crate) const SHARD_IDLE_CONNECTIONS: u32 = 256;
/// Connections of an idle daemon, and applications that are attached to it besides.
pub(crate) const DAEMON_IDLE_CONNECTIONS: u32 = 1_000;
pub(crate) const DAEMON_IDLE_SESSIONS: usize = 64;
/// How often an application attaches to be timed, and the first port that it listens on.
pub(crate) const ATTACHES: usize = 101;
pub(crate) const ATTACH_PORT_FIRST: u16 = 30_000;
/// Sessions whose memory is weighed together.
pub(crate) const ATTACHED_IDLE: usize = 64;
/// How long opening them may take.
pub(crate) const SHARD_IDLE_OPEN_MAX: Duration = Duration::from_secs(10);
/// How long nothing happens before it counts.
pub(crate) const SHARD_IDLE_SETTLE: Duration = Duration::from_millis(500);

/// How long anything in a scene of the daemon's bars may take, and how often it is looked at.
pub(crate) const SCENE_PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const SCENE_POLL: Duration = Duration::from_micros(500);
/// Connections that begin together, and of which a part is offered to a stopped program.
pub(crate) const BURST: u32 = 64;
/// In which time a program claims an offer: the daemon's default.
pub(crate) const CLAIM_TIME: Duration = Duration::from_millis(5);
/// Connections that are made beside a stopped program.
pub(crate) const STOPPED_CONNECTIONS: u64 = 10_000;
/// Connections that are offered one at a time, to acceptors that are awake and that sleep.
pub(crate) const CLAIMED_AWAKE: u64 = 20_000;
pub(crate) const CLAIMED_ASLEEP: u64 = 2_000;
/// Pause before a connection is offered to an acceptor that sleeps.
pub(crate) const CLAIM_PAUSE: Duration = Duration::from_millis(1);
/// How long others are measured beside a neighbour, and with --quick.
pub(crate) const HOSTILE_WINDOW: Duration = Duration::from_secs(3);
pub(crate) const HOSTILE_WINDOW_QUICK: Duration = Duration::from_secs(1);
/// Connections on which an honest neighbour exchanges messages.
pub(crate) const NEIGHBOUR_CONNECTIONS: u32 = 64;
/// Operations that a hostile neighbour submits between two looks at its session. As many connects
/// leave more events than its ring of events has room for.
pub(crate) const HOSTILE_OPERATIONS: u32 = 1 << 11;
/// Connections of a program that is killed.
pub(crate) const KILLED_CONNECTIONS: usize = 1_000;
/// Persistent connections of another program, and places at which it is connected to again and
/// again.
pub(crate) const OTHER_CONNECTIONS: usize = 32;
/// How long these are watched before the death and after it.
pub(crate) const DEATH_WATCH: Duration = Duration::from_secs(1);
/// Connections of a daemon that is killed, and the programs that have them.
pub(crate) const DAEMON_KILLED_CONNECTIONS: usize = 10_000;
pub(crate) const DAEMON_KILLED_PROGRAMS: usize = 4;
/// Connections over which the division among equal programs is measured, and how long that may
/// take.
pub(crate) const FAIR_SHARED: u64 = 100_000;
pub(crate) const BALANCE_MAX: Duration = Duration::from_secs(60);
/// Sleep of a slow program for each request.
pub(crate) const SLOW_SLEEP: Duration = Duration::from_millis(20);
/// Connections a second beside it, and most that wait.
pub(crate) const SLOW_RATE: u32 = 3_000;
pub(crate) const SLOW_PLACES: u32 = 16_384;
/// How long they are counted, and with --quick.
pub(crate) const SLOW_WINDOW: Duration = Duration::from_secs(3);
pub(crate) const SLOW_WINDOW_QUICK: Duration = Duration::from_secs(1);
/// How long connections come before they count.
pub(crate) const SLOW_WARM_UP: Duration = Duration::from_secs(1);
/// Connections on their way where they are accepted and reset, and how long they are counted.
pub(crate) const ACCEPTED_AT_ONCE: u32 = 256;
pub(crate) const ACCEPTED_WINDOW: Duration = Duration::from_secs(1);
/// Programs that accept, and idle channels besides.
pub(crate) const ACCEPTING: (usize, usize) = (8, 256);
/// Connections under strace, and how long they are used.
pub(crate) const TRACED_CONNECTIONS: u32 = 256;
pub(crate) const TRACED_WINDOW: Duration = Duration::from_secs(2);
/// Transactions of a short and a long run under callgrind.
pub(crate) const COUNTED_TRANSACTIONS: (u64, u64) = (20_000, 80_000);
/// Ports of idle connections, those of each, and what a program has room for.
pub(crate) const IDLE_PORTS: u16 = 2;
pub(crate) const IDLE_EACH: usize = 20_000;
pub(crate) const IDLE_ROOM: u32 = 24_000;
/// Connections that have been used before.
pub(crate) const IDLE_FIRST: usize = 1_000;
/// Connections that are opened at the same time.
pub(crate) const OPENED_AT_ONCE: usize = 64;

/// Connections of the load on an unmodified program.
pub(crate) const PRELOAD_CONNECTIONS: u64 = 64;
/// Size of redis's value.
pub(crate) const PRELOAD_REDIS_BYTES: u64 = 64;
/// Requests of the first run of redis-benchmark, by which the others are sized.
pub(crate) const PRELOAD_FIRST_REQUESTS: u64 = 20_000;
/// How long redis-benchmark may take.
pub(crate) const PRELOAD_LOAD_MAX: Duration = Duration::from_secs(60);
/// How often the server's core is looked at meanwhile.
pub(crate) const PRELOAD_WATCH: Duration = Duration::from_millis(50);
/// Interval of attempts to reach a program that may not listen yet.
pub(crate) const PRELOAD_RETRY: Duration = Duration::from_millis(100);
/// How often a program is started, preloaded and not, in each run.
pub(crate) const PRELOAD_STARTS: usize = 15;
/// Requests of ab at most.
pub(crate) const PRELOAD_AB_REQUESTS: u32 = 4_000_000;
/// Rounds of `accept_close.c`, of 32 connections each.
pub(crate) const PRELOAD_ACCEPT_ROUNDS: u32 = 500;
/// Connections of a process that forks.
pub(crate) const PRELOAD_FORK_CONNECTIONS: u32 = 10_000;
/// Calls of a round of reads from the null device, and rounds.
pub(crate) const NULL_READS: u32 = 1_000_000;
/// As above.
pub(crate) const NULL_READ_ROUNDS: u32 = 5;

/// Records of each ring over which messages are measured.
pub(crate) const MESSAGE_RING: u32 = 1 << 8;
/// Records of a burst, and most that are in flight.
pub(crate) const MESSAGE_BURST: u32 = 64;
/// Bursts of a round.
pub(crate) const MESSAGE_BURSTS: usize = 500;
/// Round trips of a round.
pub(crate) const MESSAGE_ROUND_TRIPS: u64 = 5_000;
/// Round trips that are timed together; the median of these spans counts.
pub(crate) const MESSAGE_SPAN: u64 = 100;
/// Calls of a connection manager in a round, and rounds of which the median counts.
pub(crate) const MANAGER_CALLS: u32 = 2_000;
/// As above.
pub(crate) const MANAGER_ROUNDS: usize = 15;
/// Connections in a table of offers while it is measured.
pub(crate) const TABLE_OPEN: u64 = 256;

const _: () = assert!(MESSAGE_BURST < MESSAGE_RING);
const _: () = assert!(MESSAGE_ROUND_TRIPS.is_multiple_of(MESSAGE_SPAN));

/// Rounds of messages and wake-ups of which the median counts, and with --quick.
pub(crate) const PIKA_ROUNDS: usize = 15;
/// As above.
pub(crate) const PIKA_ROUNDS_QUICK: usize = 3;
/// Clients of a closed loop: 48 processes with four connections each [PIKA 5.1].
pub(crate) const PIKA_CLIENTS: u32 = 192;
/// From the start of the first program of a measured imbalanced load to the load.
pub(crate) const SMALL_START: Duration = Duration::from_secs(4);
/// Connections a second of the imbalanced load [PIKA 5.3].
pub(crate) const PIKA_RATE: u32 = 30_000;
/// Work of each request of the imbalanced load, in microseconds.
pub(crate) const PIKA_WORK_US: u64 = 10;
