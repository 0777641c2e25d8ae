//! The `local` back end: our own TCP/IP stack in this process, over a link of its own.
//!
//! [`Local`] is a [`Driver`] around another one. What is TCP or UDP goes to the stack; files,
//! pipes, UNIX sockets, signals and timers go on to the kernel's driver, and one wait covers both.
//! The stack runs inside `dispatch` (placement `inline`): [`megapipe_service::Server`] is turned
//! when no completion is left to hand out.
//!
//! Read first: `kernel/mod.rs` for what a driver owes, `megapipe_service::Server` for a turn. Then
//! `turn.rs` (waiting), `stream.rs`, `listener.rs`, `datagram.rs`, `memory.rs`, `repair.rs`,
//! `ports.rs`.
//!
//! Invariants
//! - The kernel's driver is epoll: the ring of io_uring would take all receive buffers for itself.
//! - A slot of kind `Tcp`, `Udp` or `Listener` without a descriptor is the stack's
//!   ([`is_stacks`]); every other slot is the kernel driver's.
//! - `conns[index]` names the slot of a connection that the stack still knows; when the stack says
//!   `Closed`, or the slot leaves, the entry is cleared.
//! - Payload that the stack has not let go of is in `Memory`, never in a slot.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use megapipe_service::Clock;
use megapipe_stack::{ConnId, DatagramId, Instant, ListenerId};

use crate::buffer::ReadBuf;
use crate::config::{Config, DriverChoice};
use crate::error::{CreateError, DispatchError, OpError};
use crate::handle::Handle;
use crate::kernel::epoll::Epoll;
use crate::kernel::{Driver, Rest, create_epoll};
use crate::options::OpenOptions;
use crate::ready::Whose;
use crate::report::DriverReport;
use crate::slot::{End, FileJob, Kind, Phase, Receiving, Slot, Target};
use crate::state::State;

mod beside;
pub(crate) mod datagram;
mod heap;
mod lent;
mod listener;
mod memory;
mod network;
mod numbers;
mod open;
mod options;
mod placed;
mod placement;
mod ports;
mod prefixed;
mod repair;
mod stream;
mod turn;

pub use network::{LocalNetwork, NetworkError};
use placed::Placed;
pub use prefixed::{Prefixed, PrefixedError};

const NO_SLOT: u32 = u32::MAX;

/// Whose a connection, listener or endpoint of the stack is.
#[derive(Debug, Clone, Copy)]
struct Owner {
    slot: u32,
    generation: u32,
    /// A connection that ends with a RST when its handle leaves.
    resets_on_close: bool,
    /// The program waits until the peer of a connection has everything.
    awaits_delivery: bool,
}

const NOBODY: Owner =
    Owner { slot: NO_SLOT, generation: 0, resets_on_close: false, awaits_delivery: false };

/// The driver: a stack beside the kernel.
pub(crate) struct Local {
    /// What is not the stack's.
    kernel: Epoll,
    server: Placed,
    /// Where it runs, in words.
    place: String,
    clock: Clock,
    /// The time of the turn.
    now: Instant,
    /// The same moment by the clock of the channel's timers and by the stack's.
    began: (std::time::Instant, Instant),
    /// By the stack's index.
    conns: Vec<Owner>,
    listeners: Vec<listener::Listening>,
    endpoints: Vec<Owner>,
    /// Handles of connections, which are lwsockets all.
    lwsockets_open: u32,
    /// Connections that the server may still offer, for all listeners.
    credit_out: u32,
    /// Operations that wait for the next transmit.
    gathered: u32,
    /// When the kernel's driver was last asked.
    kernel_asked: Instant,
    /// It was given something since.
    kernel_given: bool,
    /// What the stack does for listening sockets of the program's.
    registered_ports: Vec<ports::RegisteredPort>,
    /// The last connection that was to become the kernel's and did not, and why.
    refused_move: Option<(Handle, String)>,
}

/// Makes the driver: the stack on the network's next queue, and epoll for what is the kernel's.
///
/// # Errors
/// [`CreateError`]: io_uring was forced, no queue is left, or a setting does not fit the link.
pub(crate) fn create(
    network: &LocalNetwork,
    config: &Config,
    state: &mut State,
    wake: &OwnedFd,
) -> Result<(Local, DriverReport), CreateError> {
    if config.driver == DriverChoice::Uring {
        let reason = "the local back end serves what is the kernel's by epoll".to_owned();
        return Err(CreateError::DriverUnavailable { driver: "uring", reason });
    }
    let (kernel, report) = create_epoll(state, wake)?;
    let frames = network.take().ok_or(CreateError::NoQueue)?;
    let mut settings = network.settings().clone();
    settings.tcp.nagle = config.nagle;
    let clock = settings.clock.clone();
    let (server, place) = placement::place(frames, settings, config, (state, kernel.descriptor()))?;
    let network = network.description();
    let reason = format!("TCP and UDP by our own stack on {network}; it runs {place}");
    let ours = Some(place.clone());
    let report = DriverReport { backend: "local", place: ours, ..report.chosen(&reason) };
    Ok((Local::new(kernel, server, place, clock), report))
}

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

impl Local {
    fn new(kernel: Epoll, server: Placed, place: String, clock: Clock) -> Self {
        let now = clock.now();
        Self {
            kernel,
            server,
            place,
            clock,
            now,
            began: (std::time::Instant::now(), now),
            conns: Vec::new(),
            listeners: Vec::new(),
            endpoints: Vec::new(),
            lwsockets_open: 0,
            credit_out: 0,
            gathered: 0,
            kernel_asked: now,
            kernel_given: false,
            registered_ports: Vec::new(),
            refused_move: None,
        }
    }

    /// The time of the turn by the clock of the channel's timers.
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

    /// The slot of a connection, if somebody still has it.
    fn slot_of(&self, conn: ConnId) -> Option<u32> {
        let owner = self.conns.get(conn.index as usize)?;
        (owner.slot != NO_SLOT && owner.generation == conn.generation).then_some(owner.slot)
    }

    fn own(&mut self, conn: ConnId, slot: u32) {
        let index = conn.index as usize;
        if self.conns.len() <= index {
            self.conns.resize(index + 1, NOBODY);
        }
        self.conns[index] = Owner { slot, generation: conn.generation, ..NOBODY };
    }

    fn disown(&mut self, conn: ConnId) {
        if self.slot_of(conn).is_some() {
            self.conns[conn.index as usize] = NOBODY;
        }
    }

    /// The program asked for something: it goes out when the batch is full, or at the next wait.
    fn ask(&mut self, state: &mut State) {
        self.gathered += 1;
        if self.gathered >= state.config.batch {
            self.gathered = 0;
            // An error of the link is told by the next wait, which meets it too.
            let _ = self.server.transmit(self.now);
        }
    }

    fn kernels(&mut self) -> &mut Epoll {
        self.kernel_given = true;
        &mut self.kernel
    }
}

impl Driver for Local {
    fn attach(&mut self, state: &mut State, slot: u32) -> io::Result<()> {
        if is_stacks(state.peek(slot)) {
            return Ok(());
        }
        self.kernels().attach(state, slot)
    }

    fn start_receive(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().start_receive(state, slot);
        }
        self.receive(state, slot);
    }

    fn start_read(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().start_read(state, slot);
        }
        self.read_datagrams(state, slot);
    }

    fn start_write(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().start_write(state, slot);
        }
        if state.peek(slot).kind == Kind::Udp {
            self.write_datagrams(state, slot);
        } else {
            self.write(state, slot);
        }
        self.ask(state);
    }

    #[inline]
    fn sends_silently(&self) -> bool {
        true
    }

    #[inline]
    fn send_silently(&mut self, state: &mut State, slot: u32, bytes: ReadBuf) {
        self.send_at_once(state, slot, bytes);
    }

    #[inline]
    fn send_copied(&mut self, state: &mut State, slot: u32, bytes: &[u8]) -> bool {
        self.send_copy_at_once(state, slot, bytes)
    }

    #[inline]
    fn next_read(&mut self, state: &mut State) -> Option<(Whose, ReadBuf)> {
        self.next_received(state)
    }

    fn start_connect(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().start_connect(state, slot);
        }
        // Our own connections are begun by `Channel::connect_on_stack`, with their options.
        debug_assert!(false, "a connection of the stack has no second start");
    }

    fn abandon_connect(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().abandon_connect(state, slot);
        }
        if state.peek(slot).phase == Phase::Starting {
            self.abort(state, slot);
            self.connected(state, slot, Err(OpError::TimedOut));
        }
    }

    fn start_open(&mut self, state: &mut State, slot: u32, path: PathBuf, options: OpenOptions) {
        self.kernels().start_open(state, slot, path, options);
    }

    fn start_job(&mut self, state: &mut State, slot: u32, job: FileJob) {
        self.kernels().start_job(state, slot, job);
    }

    fn start_accept(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            self.kernels().start_accept(state, slot);
            return self.accept_beside(state, slot);
        }
        self.accept(state, slot);
    }

    fn start_reset(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().start_reset(state, slot);
        }
        self.reset(state, slot);
        self.ask(state);
    }

    fn watch_end(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            return self.kernels().watch_end(state, slot);
        }
        // One that the stack does not know any more has ended.
        if self.conn(state, slot).is_none() && state.peek(slot).phase != Phase::Starting {
            let ended = match state.peek(slot).end {
                End::Failed(error) => Err(error),
                End::Not | End::Eof => Ok(()),
            };
            state.on_end(slot, ended);
        }
    }

    fn detach(&mut self, state: &mut State, slot: u32) {
        if !is_stacks(state.peek(slot)) {
            self.leave_port(state, slot);
            return self.kernels().detach(state, slot);
        }
        self.leave(state, slot);
        state.release(slot);
        self.accept_with_room(state);
        self.ask(state);
    }

    fn withdraw(&mut self, state: &mut State, slot: u32) -> Option<OwnedFd> {
        if !is_stacks(state.peek(slot)) {
            self.leave_port(state, slot);
            return self.kernels().withdraw(state, slot);
        }
        self.leave(state, slot);
        None
    }

    fn flush(&mut self, state: &mut State) -> Result<(), DispatchError> {
        self.gathered = 0;
        self.now = self.clock.now();
        self.server.transmit(self.now).map_err(turn::link_failed)?;
        self.kernel.flush(state)
    }

    fn harvest(&mut self, state: &mut State) {
        self.take_events(state);
        self.kernel.harvest(state);
    }

    /// The stack has been asked already, and has nothing more to say.
    fn harvest_rest(&mut self, state: &mut State) {
        self.kernel.harvest(state);
    }

    fn wait(&mut self, state: &mut State, timeout: Option<Duration>) -> Result<(), DispatchError> {
        self.turn_until_ready(state, timeout)
    }

    #[inline]
    fn turned_at(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.now.as_nanos()))
    }

    fn rest(&mut self, state: &mut State) -> Result<Rest, DispatchError> {
        self.turn_until_idle(state)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = vec![self.server.wait_fd()];
        all.extend(self.server.host_fd());
        all.extend(self.kernel.descriptors());
        all
    }

    fn install(&mut self, state: &mut State, direct: u32) -> Result<OwnedFd, OpError> {
        self.kernel.install(state, direct)
    }

    fn discard(&mut self, state: &mut State, direct: u32) {
        self.kernel.discard(state, direct);
    }

    fn abandon(&mut self) {
        self.server.abandon();
        self.kernel.abandon();
    }

    fn shut_down(&mut self, state: &mut State) {
        let mine: Vec<u32> =
            state.used_slots().filter(|slot| is_stacks(state.peek(*slot))).collect();
        for slot in mine {
            self.leave(state, slot);
        }
        self.say_goodbye();
        self.kernel.shut_down(state);
    }
}

/// The read that waits is with the stack, or is not any more.
fn set_receiving(state: &mut State, slot: u32, receiving: bool) {
    state.slot(slot).receiving = if receiving { Receiving::Yes } else { Receiving::No };
}
