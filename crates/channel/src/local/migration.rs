//! An established connection moves between our stack and the kernel, in the middle of whatever it
//! does.
//!
//! Read first: `megapipe_link::migration` (the kernel's side), `megapipe_stack::Snapshot` (ours),
//! `megapipe_service`'s `migration.rs` (whose the frames are).
//!
//! ```text
//!  to the kernel                                 from the kernel
//!    check     state, privilege, room              take       the link brings its frames
//!    drain     the stack takes what has arrived    freeze     the kernel's socket is deaf
//!    export    the stack knows it no more          import     the stack knows it
//!    prepare   a deaf socket knows it              end        the kernel's socket is gone
//!    release   the link leaves its frames
//!    start     the socket hears and sends
//! ```
//!
//! On the way to the kernel, segments that arrive between drain and start are dropped: the peer
//! retransmits them. On the way from the kernel they wait in the link's queue. Nothing answers
//! them with a reset.
//!
//! Invariants
//! - What can be refused is checked before the export: what came out of order and the state of loss
//!   recovery are lost with it. A refusal leaves the connection untouched.
//! - A step that fails undoes those before it: the connection goes on where it was.
//! - Bytes that were received and not handed to the program move too, in order.

use std::os::fd::{AsFd, OwnedFd};

use megapipe_link::FlowTuple;
use megapipe_link::migration::{Predecessor, RepairError, Successor, trial};
use megapipe_service::{NotShared, check_established, checkpoint_of, snapshot_of, tcp_flow};
use megapipe_stack::{ConnId, ConnectError, Memory, PoolId, Snapshot};

use super::{Local, StackHandle, set_receiving};
use crate::buffer::{Payload, ReadBuf};
use crate::channel::Channel;
use crate::error::{Limit, Misuse, MoveError, OpError};
use crate::handle::Handle;
use crate::slot::{Kind, StreamEnd, Target};
use crate::state::State;

/// Why nothing of a link can move that has an address of its own.
const OWN_ADDRESS: &str = "the stack has an address of its own on this link, which no kernel \
                           socket can have: connections move on packet and xdp";
const NO_INTERFACE: &str = "no interface is configured that the link shares its address with";
const APART: &str = "the stack runs on a thread of its own: connections move with placement inline";
const OTHER_SHARD: &str = "the connection's frames come to another shard: take it over in the \
                           channel of that one";
const LOOPED: &str = "both its ends are in our own stack, where the kernel cannot reach the other";
const DATAGRAMS: &str = "a UDP socket of our own stack has nothing that a kernel socket could take";

impl<T> Channel<T> {
    /// Refuses to make a descriptor of what can never become one: it is the stack's, on a link that
    /// shares no address, or a datagram endpoint.
    pub(crate) fn check_way_to_kernel(&mut self, index: u32) -> Result<(), Misuse> {
        let (entry, handle) = (self.state.peek(index), self.state.handle(index));
        if !super::is_stacks(entry) {
            return Ok(());
        }
        let is_datagrams = entry.kind == Kind::Udp;
        let Some(local) = self.driver.local() else { return Ok(()) };
        let why = match local.server.shared_interface() {
            _ if is_datagrams => DATAGRAMS,
            Ok(_) => return Ok(()),
            Err(NotShared::OwnAddress) => OWN_ADDRESS,
            Err(NotShared::OtherThread) => APART,
            Err(NotShared::NoInterface | NotShared::OtherShard) => NO_INTERFACE,
        };
        local.refused_move = Some((handle, why.to_owned()));
        Err(Misuse::CannotMove { why })
    }

    /// Why a handle did not become a descriptor when it was asked to, if that was the last that was
    /// refused.
    pub(crate) fn refused_move(&mut self, handle: Handle) -> Option<String> {
        let (refused, why) = self.driver.local()?.refused_move.as_ref()?;
        (*refused == handle).then(|| format!("it did not move to the kernel: {why}"))
    }

    /// Gives an established connection of the kernel's to the stack.
    pub(crate) fn take_over_on_stack(
        &mut self,
        fd: OwnedFd,
        cookie: u64,
    ) -> Result<Handle, (OwnedFd, MoveError)> {
        let Self { driver, state, .. } = self;
        let Some(local) = driver.local() else { return Err((fd, MoveError::NoStack)) };
        if local.lwsockets_open >= state.config.max_lwsockets {
            return Err((fd, Limit::Handles.into()));
        }
        let index = match state.allocate(Kind::Tcp, cookie) {
            Ok(index) => index,
            Err(misuse) => return Err((fd, misuse.into())),
        };
        match local.take_over(state, index, fd) {
            Ok(()) => Ok(state.handle(index)),
            Err(refused) => {
                state.retire(index);
                state.release(index);
                Err(refused)
            }
        }
    }
}

/// A connection between the two, with what the program has not seen yet.
struct Leaving {
    snapshot: Snapshot,
    ahead: Vec<ReadBuf>,
}

/// To the kernel.
impl<H: StackHandle + ?Sized> Local<H> {
    /// The move at the head of a connection's writes.
    pub(super) fn move_to_kernel(&mut self, state: &mut State, slot: u32) {
        state.pop_control(slot);
        let moved = match self.conn(state, slot) {
            Some(conn) => self.moved_to_kernel(state, slot, conn),
            None => Err(in_state("CLOSED")),
        };
        match moved {
            Ok(fd) => {
                self.lwsockets_open = self.lwsockets_open.saturating_sub(1);
                set_receiving(state, slot, false);
                state.on_moved(slot, Ok(fd));
                state.slot(slot).end = HAS_MOVED;
                self.accept_with_room(state);
            }
            Err(error) => {
                self.refused_move = Some((state.handle(slot), error.to_string()));
                state.on_moved(slot, Err(error.into_op_error()));
            }
        }
    }

    fn moved_to_kernel(
        &mut self,
        state: &mut State,
        slot: u32,
        conn: ConnId,
    ) -> Result<OwnedFd, MoveError> {
        if self.server.is_session() {
            return self.moved_by_daemon(state, slot, conn);
        }
        self.prepare_to_leave(conn)?;
        let resets_on_close = self.resets_on_close(conn);
        let ahead = state.take_unread(slot);
        let leaving = self.leave_stack(state, conn, ahead)?;
        self.disown(conn);
        state.slot(slot).target = Target::None;
        let entered = self.enter_kernel(&leaving);
        match entered {
            Ok(_) => self.let_go(&leaving.snapshot),
            Err(_) => {
                if let Some(conn) = self.come_back(&leaving.snapshot) {
                    self.own(conn, slot);
                    self.heed_mark(state, conn);
                    self.conns[conn.index as usize].resets_on_close = resets_on_close;
                    state.slot(slot).target = Target::Stack(conn.index);
                }
                for bytes in leaving.ahead {
                    state.on_received(slot, bytes);
                }
                if state.wants_data(slot) {
                    self.receive(state, slot);
                }
            }
        }
        entered
    }

    /// As `moved_to_kernel`, by the daemon that has the stack. A connection that has left it and
    /// does not get to the kernel was reset.
    fn moved_by_daemon(
        &mut self,
        state: &mut State,
        slot: u32,
        conn: ConnId,
    ) -> Result<OwnedFd, MoveError> {
        self.server.lanes().and_then(|it| it.move_out(conn)).map_err(MoveError::Service)?;
        self.settle_events(state);
        let ahead = state.take_unread(slot);
        let unread: Vec<u8> = ahead.iter().flat_map(|bytes| bytes.iter().copied()).collect();
        let moved = self.server.lanes().and_then(|it| it.finish_move(conn, &unread));
        self.server.forget_moved(conn);
        self.disown(conn);
        state.slot(slot).target = Target::None;
        if moved.is_err() {
            self.end_stream(state, slot, Some(OpError::Reset));
        }
        moved.map_err(MoveError::Service)
    }

    /// A connection that was accepted as a descriptor, without a handle. If it cannot move
    /// it is reset.
    ///
    /// # Errors
    /// Why not, in the words of completions.
    pub(super) fn accepted_to_kernel(
        &mut self,
        state: &State,
        conn: ConnId,
    ) -> Result<OwnedFd, OpError> {
        if self.server.is_session() {
            let moved = self.server.lanes().and_then(|lanes| lanes.move_out(conn));
            let moved = match moved {
                Ok(()) => self.server.lanes().and_then(|lanes| lanes.finish_move(conn, &[])),
                Err(refusal) => {
                    self.server.abort(self.now, conn);
                    Err(refusal)
                }
            };
            self.server.forget_moved(conn);
            return moved.map_err(|error| MoveError::Service(error).into_op_error());
        }
        let moved = self.prepare_to_leave(conn).and_then(|()| {
            let leaving = self.leave_stack(state, conn, Vec::new())?;
            let entered = self.enter_kernel(&leaving);
            match entered {
                Ok(_) => self.let_go(&leaving.snapshot),
                Err(_) => {
                    if let Some(conn) = self.come_back(&leaving.snapshot) {
                        self.server.abort(self.now, conn);
                    }
                }
            }
            entered
        });
        // What has left the stack is not known by this name any more.
        moved.map_err(|error| {
            self.server.abort(self.now, conn);
            error.into_op_error()
        })
    }

    /// Checks what can be refused, and takes what has arrived. Nothing of the connection changes
    /// but by its own segments.
    fn prepare_to_leave(&mut self, conn: ConnId) -> Result<(), MoveError> {
        self.server.shared_interface().map_err(not_shared)?;
        self.check_established(conn)?;
        let (local, remote) = self.server.addresses(conn).ok_or_else(|| in_state("CLOSED"))?;
        let now = self.now;
        let server = self.server.migration_server().map_err(not_shared)?;
        if server.is_own(remote) {
            return Err(MoveError::NotShared(LOOPED));
        }
        server.check_release(tcp_flow(local, remote))?;
        trial()?;
        server.drain(now)?;
        // The peer may have closed with what was taken just now.
        self.check_established(conn)
    }

    fn check_established(&mut self, conn: ConnId) -> Result<(), MoveError> {
        let info = self.server.info(conn).ok_or_else(|| in_state("CLOSED"))?;
        check_established(info.state)?;
        Ok(())
    }

    /// Takes the connection out of the stack. `ahead` is what the channel holds of it already.
    fn leave_stack(
        &mut self,
        state: &State,
        conn: ConnId,
        mut ahead: Vec<ReadBuf>,
    ) -> Result<Leaving, MoveError> {
        let now = self.now;
        let (stack, memory) = self.server.migration_server().map_err(not_shared)?.parts();
        let mut snapshot = stack.export(now, conn, memory).map_err(|_| in_state("CLOSED"))?;
        for chunk in std::mem::take(&mut snapshot.unread) {
            let received = memory.received(chunk);
            ahead.extend(received.and_then(|it| it.into_bytes(state, chunk.len)));
        }
        Ok(Leaving { snapshot, ahead })
    }

    /// Makes a kernel socket of a connection that has left the stack.
    fn enter_kernel(&mut self, leaving: &Leaving) -> Result<OwnedFd, MoveError> {
        let interface = self.server.shared_interface().map_err(not_shared)?;
        let server = self.server.migration_server().map_err(not_shared)?;
        let (_, memory) = server.parts();
        let unread = leaving.ahead.iter().flat_map(|bytes| bytes.iter().copied()).collect();
        let checkpoint = checkpoint_of(&leaving.snapshot, unread, memory);
        let successor = Successor::prepare(checkpoint, interface)?;
        let flow = flow_of(&leaving.snapshot);
        server.release(flow)?;
        successor.start().map_err(|error| {
            // If not even this is possible the port decides, as before most moves.
            let _ = server.take(flow);
            error.into()
        })
    }

    /// The connection goes on in the stack. `None`: the stack does not take back what it had.
    fn come_back(&mut self, snapshot: &Snapshot) -> Option<ConnId> {
        let now = self.now;
        let (stack, memory) = self.server.migration_server().ok()?.parts();
        let back = stack.import(now, snapshot, (PoolId::default(), memory)).ok();
        debug_assert!(back.is_some(), "its place is free, and so are its nodes");
        if back.is_none() {
            self.let_go(snapshot);
        }
        back
    }

    /// Frees the chunks: their bytes were copied.
    fn let_go(&mut self, snapshot: &Snapshot) {
        let Ok(server) = self.server.migration_server() else { return };
        let (_, memory) = server.parts();
        for chunk in &snapshot.unacked {
            memory.free(chunk.buf);
        }
    }
}

/// From the kernel.
impl<H: StackHandle + ?Sized> Local<H> {
    fn take_over(
        &mut self,
        state: &mut State,
        slot: u32,
        fd: OwnedFd,
    ) -> Result<(), (OwnedFd, MoveError)> {
        self.now = self.clock.now();
        if let Err(error) = self.server.shared_interface() {
            return Err((fd, not_shared(error)));
        }
        if self.server.is_session() {
            return match self.server.polling_lanes().and_then(|lanes| lanes.take_over(fd.as_fd())) {
                Ok(entered) => {
                    self.adopt(state, slot, entered);
                    Ok(())
                }
                Err(refusal) => Err((fd, MoveError::Service(refusal))),
            };
        }
        let mut predecessor =
            Predecessor::new(fd).map_err(|(fd, error)| (fd, MoveError::from(error)))?;
        match self.enter_stack(&mut predecessor) {
            Ok(entered) => {
                predecessor.end();
                self.adopt(state, slot, entered);
                Ok(())
            }
            Err(error) => Err((predecessor.thaw(), error)),
        }
    }

    /// A slot has a connection that the stack has taken over, and the bytes that the kernel had
    /// received.
    fn adopt(&mut self, state: &mut State, slot: u32, (conn, unread): (ConnId, Vec<u8>)) {
        self.lwsockets_open += 1;
        self.own(conn, slot);
        state.slot(slot).target = Target::Stack(conn.index);
        if !unread.is_empty() {
            state.on_received(slot, ReadBuf::from_vec(unread));
        }
        self.ask(state);
    }

    /// Takes a kernel's connection into the stack; the bytes that wait to be read come along.
    fn enter_stack(
        &mut self,
        predecessor: &mut Predecessor,
    ) -> Result<(ConnId, Vec<u8>), MoveError> {
        let (local, remote) = predecessor.ends()?;
        let server = self.server.migration_server().map_err(not_shared)?;
        let interface = server.interface_of(local, remote).map_err(not_shared)?;
        let flow = tcp_flow(local, remote);
        trial()?;
        predecessor.stand_aside(interface)?;
        // First: what comes from now on waits for the stack, and is not lost.
        server.take(flow)?;
        self.import(predecessor).inspect_err(|_| {
            // The link let it be taken, so it can leave it again.
            let _ = self.server.migration_server().map(|server| server.release(flow));
        })
    }

    fn import(&mut self, predecessor: &mut Predecessor) -> Result<(ConnId, Vec<u8>), MoveError> {
        predecessor.freeze()?;
        let mut checkpoint = predecessor.checkpoint()?;
        let unread = std::mem::take(&mut checkpoint.unread);
        let now = self.now;
        let (stack, memory) = self.server.migration_server().map_err(not_shared)?.parts();
        let keep = |bytes| memory.keep(Payload::Vec(bytes)).ok();
        let snapshot = snapshot_of(checkpoint, keep).map_err(|kept| {
            kept.iter().for_each(|chunk| memory.free(chunk.buf));
            Limit::Memory
        })?;
        match stack.import(now, &snapshot, (PoolId::default(), memory)) {
            Ok(conn) => Ok((conn, unread)),
            Err(error) => {
                self.let_go(&snapshot);
                Err(not_imported(error))
            }
        }
    }
}

/// How a slot ended whose connection has moved away.
pub(super) const HAS_MOVED: StreamEnd = StreamEnd::Failed(OpError::Cancelled);

const fn in_state(state: &'static str) -> MoveError {
    MoveError::Repair(RepairError::WrongState(state))
}

const fn not_shared(error: NotShared) -> MoveError {
    MoveError::NotShared(match error {
        NotShared::OwnAddress => OWN_ADDRESS,
        NotShared::NoInterface => NO_INTERFACE,
        NotShared::OtherShard => OTHER_SHARD,
        NotShared::OtherThread => APART,
    })
}

const fn not_imported(error: ConnectError) -> MoveError {
    MoveError::Stack(match error {
        ConnectError::BadLocalAddress => "the connection's local address is not the stack's",
        ConnectError::BadRemoteAddress => "both ends of the connection are this host's",
        ConnectError::NoRoute => "no route leads to the peer over the stack's link",
        ConnectError::InUse => "the stack has a connection with the same addresses and ports",
        _ => "the stack's table of connections is full",
    })
}

const fn flow_of(snapshot: &Snapshot) -> FlowTuple {
    tcp_flow(snapshot.local, snapshot.remote)
}
