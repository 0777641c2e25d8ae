//! The `local` back end: our own TCP/IP stack in this process, over a link of its own.
//!
//! [`Local`] is a driver ([`crate::driver::Driver`]) around another one. TCP and UDP go to the
//! stack; files, pipes, UNIX sockets, signals and timers go to the kernel's driver, and one wait
//! covers both. The stack runs where the placement has it: `Local` is generic over
//! [`StackHandle`], with an implementation per placement in `inline.rs`, `shared_thread.rs` and
//! `remote.rs`. The back end `service` is the last one over a session of a daemon (`service.rs`).
//!
//! ```text
//!  read  -> credit --> stack                      write -> queue of the connection --> stack
//!  frame -> server's poll -> stack: event -> next_answer (direct) or on_event (queued completion)
//! ```
//!
//! Read first: [`crate::driver`] for what a driver owes, `stack_handle.rs` for what a stack does.
//! Then `local/driver.rs` (the driver's calls, with the wait), `poll.rs` (events, kernel, sleep),
//! `stream.rs`, `listener.rs`, `datagram.rs`, `memory.rs`, `migration.rs`, `ports.rs`.
//!
//! Invariants
//! - The kernel's driver is epoll: the ring of io_uring would take all receive buffers for itself.
//! - A slot of kind `Tcp`, `Udp` or `Listener` without a descriptor is the stack's
//!   ([`is_stacks`]); every other slot is the kernel driver's.
//! - `conns[index]` names the slot of a connection that the stack still knows; when the stack says
//!   `Closed`, or the slot leaves, the entry is cleared.
//! - Payload that the stack has not let go of is in `Memory`, never in a slot.

use std::os::fd::OwnedFd;

use megapipe_service::Clock;
use megapipe_stack::{CloseReason, ConnId, DatagramId, Instant, ListenerId};

use crate::config::{Config, DriverChoice};
use crate::error::CreateError;
use crate::handle::Handle;
use crate::kernel::create_epoll;
use crate::kernel::epoll::Epoll;
use crate::report::DriverReport;
use crate::slot::{Kind, Receiving, Slot, Target};
use crate::state::State;

mod buffer_ids;
mod cores;
mod daemon;
mod daemon_session;
mod datagram;
mod driver;
mod inline;
mod listener;
mod memory;
mod migration;
mod network;
mod open;
mod options;
mod overflow_buffers;
mod pieces;
mod poll;
mod ports;
mod prefixed;
mod remote;
mod server_calls;
mod service;
mod service_address;
mod shared_datagrams;
mod shared_listeners;
mod shared_pool_view;
mod shared_thread;
mod sharing;
mod stack_handle;
mod stream;

use cores::{on_core, own_core, own_shard_core};
pub use daemon::{Daemon, DaemonError};
pub(crate) use inline::Inline;
pub use network::{LocalNetwork, NetworkError};
pub use prefixed::{Prefixed, PrefixedError};
pub(crate) use remote::Remote;
pub use service_address::ServiceAddress;
pub use shared_datagrams::AdoptedDatagramSocket;
pub(crate) use shared_thread::SharedThread;
pub(crate) use sharing::is_connecting;
use stack_handle::ServerParts;
pub(crate) use stack_handle::StackHandle;

const NO_SLOT: u32 = u32::MAX;

/// The owner of a connection, listener or endpoint of the stack.
#[derive(Debug, Clone, Copy)]
struct SlotOwner {
    slot: u32,
    generation: u32,
    /// A connection that ends with a RST when its handle leaves.
    resets_on_close: bool,
    /// Writes wait from as many unsent bytes on as its slot says.
    has_mark: bool,
    /// The connection is over, and bytes of it are left in the stack.
    broken: Option<Broken>,
}

/// How a connection has ended of which bytes are left.
#[derive(Debug, Clone, Copy)]
struct Broken {
    reason: CloseReason,
    /// None of the peer's bytes are missing.
    is_whole: bool,
}

const _: () = assert!(size_of::<SlotOwner>() == 12, "an idle connection has 512 bytes in all");

const NO_OWNER: SlotOwner = SlotOwner {
    slot: NO_SLOT,
    generation: 0,
    resets_on_close: false,
    has_mark: false,
    broken: None,
};

/// The driver: our own stack, with the kernel for files and other sockets.
pub(crate) struct Local<H: StackHandle + ?Sized> {
    /// What is not the stack's.
    kernel: Epoll,
    /// Where it runs, in words.
    place: String,
    clock: Clock,
    /// The time of the poll.
    now: Instant,
    /// The same moment by the clock of the channel's timers and by the stack's.
    began: (std::time::Instant, Instant),
    /// By the stack's index.
    conns: Vec<SlotOwner>,
    listeners: Vec<listener::Listening>,
    endpoints: Vec<SlotOwner>,
    /// Handles of connections, which are lwsockets all.
    lwsockets_open: u32,
    /// Connections that the server may still offer, for all listeners.
    credit_out: u32,
    /// Connections are held until the table of lwsockets has room.
    holds_back: bool,
    /// Operations that wait for the next transmit.
    gathered: u32,
    /// When the kernel's driver was last asked.
    kernel_asked: Instant,
    /// It was given something since.
    kernel_given: bool,
    /// What the stack does for listening sockets of the program's.
    registered_ports: Vec<ports::RegisteredPort>,
    /// Reads are not submitted to the service: the process is about to fork.
    withholds: bool,
    /// The last connection that was to become the kernel's and did not, and why.
    refused_move: Option<(Handle, String)>,
    /// Last, so that a driver of any placement is also a `Local<dyn StackHandle>`.
    server: H,
}

/// A driver of any placement, for calls that are not on the path of a message.
pub(crate) type AnyLocal = Local<dyn StackHandle>;

/// The slot is the stack's.
pub(crate) const fn is_stacks(slot: &Slot) -> bool {
    match slot.target {
        Target::Stack(_) => true,
        Target::None => {
            slot.fd.is_none() && matches!(slot.kind, Kind::Tcp | Kind::Udp | Kind::Listener)
        }
        Target::Fd(_) | Target::Direct(_) => false,
    }
}

impl<H: StackHandle> Local<H> {
    /// Makes the driver: the stack on the network's next queue, with its server on `server_core` if
    /// the placement has a thread for it, and epoll for what is the kernel's.
    ///
    /// # Errors
    /// [`CreateError`]: io_uring was forced, no queue is left, or a setting does not fit the link.
    pub(crate) fn create(
        network: &LocalNetwork,
        config: &Config,
        server_core: Option<usize>,
        state: &mut State,
        wake: &OwnedFd,
    ) -> Result<(Self, DriverReport), CreateError> {
        if config.driver == DriverChoice::Uring {
            let reason = "the local back end serves what is the kernel's by epoll".to_owned();
            return Err(CreateError::DriverUnavailable { driver: "uring", reason });
        }
        let (kernel, report) = create_epoll(state, wake)?;
        let frames = network.take().ok_or(CreateError::NoQueue)?;
        let mut settings = network.settings().clone();
        settings.tcp.nagle = config.nagle;
        let own_core = own_core();
        let (mut server, mut place) = H::start(ServerParts {
            frames,
            settings: &settings,
            config,
            state,
            kernel: kernel.descriptor(),
            own_core,
            server_core,
        })?;
        if let Some((shard, shards)) = server.shard() {
            server.set_core(own_shard_core());
            place = format!("{place}; shard {shard} of {shards} {}", on_core(own_core));
        }
        let network = network.description();
        let reason = format!("TCP and UDP by our own stack on {network}; it runs {place}");
        let ours = Some(place.clone());
        let report = DriverReport { backend: "local", place: ours, ..report.chosen(&reason) };
        let mut driver = Self::new(kernel, server, place, settings.clock);
        // Room costs memory only where it is used; without it the tables grow, and leave their
        // former memory behind.
        let _ = driver.conns.try_reserve_exact(settings.connections as usize);
        state.reserve_slots(settings.connections as usize);
        Ok((driver, report))
    }

    fn new(kernel: Epoll, server: H, place: String, clock: Clock) -> Self {
        let now = clock.now();
        Self {
            kernel,
            place,
            clock,
            now,
            began: (std::time::Instant::now(), now),
            conns: Vec::new(),
            listeners: Vec::new(),
            endpoints: Vec::new(),
            lwsockets_open: 0,
            credit_out: 0,
            holds_back: false,
            gathered: 0,
            kernel_asked: now,
            kernel_given: false,
            registered_ports: Vec::new(),
            withholds: false,
            refused_move: None,
            server,
        }
    }
}

impl<H: StackHandle + ?Sized> Local<H> {
    /// The time of the poll by the clock of the channel's timers.
    fn instant(&self) -> std::time::Instant {
        let (timers, stack) = self.began;
        timers + self.now.since(stack)
    }

    /// The connection behind a slot.
    fn conn(&self, state: &State, slot: u32) -> Option<ConnId> {
        let (Target::Stack(index), kind) = (state.peek(slot).target, state.peek(slot).kind) else {
            return None;
        };
        let owner = self.conns.get(index as usize)?;
        (kind == Kind::Tcp && owner.slot == slot)
            .then_some(ConnId { index, generation: owner.generation })
    }

    fn endpoint(&self, state: &State, slot: u32) -> Option<DatagramId> {
        let (Target::Stack(index), kind) = (state.peek(slot).target, state.peek(slot).kind) else {
            return None;
        };
        let owner = self.endpoints.get(index as usize)?;
        (kind == Kind::Udp && owner.slot == slot)
            .then_some(DatagramId { index, generation: owner.generation })
    }

    fn listener(&self, state: &State, slot: u32) -> Option<ListenerId> {
        let (Target::Stack(index), kind) = (state.peek(slot).target, state.peek(slot).kind) else {
            return None;
        };
        let listening = self.listeners.get(index as usize)?;
        (kind == Kind::Listener && listening.owner.slot == slot)
            .then_some(ListenerId { index, generation: listening.owner.generation })
    }

    /// The slot of a connection, if it still has one.
    fn slot_of(&self, conn: ConnId) -> Option<u32> {
        let owner = self.conns.get(conn.index as usize)?;
        (owner.slot != NO_SLOT && owner.generation == conn.generation).then_some(owner.slot)
    }

    /// Memory for the record of one more listener. `false`: there is none.
    fn reserve_listener(&mut self) -> bool {
        self.listeners.try_reserve(1).is_ok()
    }

    /// Memory for the owner of a connection. `false`: there is none.
    fn reserve_owner(&mut self, conn: ConnId) -> bool {
        let missing = (conn.index as usize + 1).saturating_sub(self.conns.len());
        self.conns.try_reserve(missing).is_ok()
    }

    fn own(&mut self, conn: ConnId, slot: u32) {
        let index = conn.index as usize;
        if self.conns.len() <= index {
            self.conns.resize(index + 1, NO_OWNER);
        }
        self.conns[index] = SlotOwner { slot, generation: conn.generation, ..NO_OWNER };
    }

    fn disown(&mut self, conn: ConnId) {
        if self.slot_of(conn).is_some() {
            self.conns[conn.index as usize] = NO_OWNER;
        }
    }

    /// The program asked for something: it goes out when the batch is full, or at the next wait.
    fn ask(&mut self, state: &mut State) {
        self.gathered += 1;
        if self.gathered >= state.config.batch {
            self.gathered = 0;
            // An error of the link is returned by the next wait, which meets it too.
            let _ = self.server.transmit(self.now);
        }
    }

    fn kernels(&mut self) -> &mut Epoll {
        self.kernel_given = true;
        &mut self.kernel
    }
}

/// The read that waits is with the stack, or is not any more.
fn set_receiving(state: &mut State, slot: u32, receiving: bool) {
    state.slot(slot).receiving = if receiving { Receiving::Yes } else { Receiving::No };
}
