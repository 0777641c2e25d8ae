//! Byte streams: connecting, receiving for the life of a connection, sending one batch at a time,
//! disconnecting.

use std::os::fd::OwnedFd;

use io_uring::squeue::Flags;
use io_uring::{opcode, types};

use super::ring::BUFFER_GROUP;
use super::{Tag, Uring, on_target};
use crate::address::Address;
use crate::address::sockaddr::RawAddress;
use crate::buffer::ReadBuf;
use crate::completion::Event;
use crate::error::OpError;
use crate::kernel::sys;
use crate::limits::GATHER_PARTS_MAX;
use crate::options::Disconnect;
use crate::slot::{Awaited, Body, Extra, Kind, Receiving, SlotPhase, Target, WriteOp};
use crate::state::State;

/// Sends that are answered only if not all of their bytes went out, oldest first.
pub(super) struct SilentSends {
    list: Vec<SilentSend>,
    /// How many of them the kernel has taken.
    pub(super) submitted: usize,
}

struct SilentSend {
    bytes: ReadBuf,
    slot: u32,
}

/// Silent sends that there is room for from the start.
const FIRST_SILENT_SENDS: usize = 64;

/// In place of a silent send's slot: it was answered.
const ANSWERED: u32 = u32::MAX;

impl SilentSends {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether there is room for one more. Without memory for it, sends have answers.
    #[inline(always)]
    pub(super) const fn has_room(&self) -> bool {
        self.list.len() < self.list.capacity()
    }

    /// Adds a send, for which there is room.
    #[inline(always)]
    fn push(&mut self, slot: u32, bytes: ReadBuf) {
        let len = self.list.len();
        let Some(place) = self.list.spare_capacity_mut().first_mut() else { return };
        place.write(SilentSend { bytes, slot });
        // SAFETY: the element after the last one was written just now, inside the capacity.
        unsafe { self.list.set_len(len + 1) };
        if !self.has_room() {
            self.grow();
        }
    }

    /// Room for twice as many, if there is memory: there is one for each connection at most.
    #[cold]
    fn grow(&mut self) {
        let _ = self.list.try_reserve(self.list.len());
    }

    pub(super) fn new() -> Self {
        Self { list: Vec::with_capacity(FIRST_SILENT_SENDS), submitted: 0 }
    }

    /// The submission queue is empty: all of them were submitted.
    pub(super) fn note_submitted(&mut self) {
        self.submitted = self.list.len();
    }

    /// Takes the send of `slot` out, which was answered.
    fn strike(&mut self, slot: u32) -> Option<ReadBuf> {
        let send = self.list.iter_mut().find(|send| send.slot == slot)?;
        send.slot = ANSWERED;
        Some(std::mem::replace(&mut send.bytes, ReadBuf::END))
    }

    /// Forgets the oldest `count`, which were submitted.
    fn drop_first(&mut self, count: usize) {
        if count == self.list.len() {
            self.list.clear();
        } else {
            self.list.drain(..count);
        }
        self.submitted -= count;
    }
}

/// The vector of a send: header and parts. Must stay until it is submitted.
pub(super) struct Gather {
    header: libc::msghdr,
    parts: [libc::iovec; GATHER_PARTS_MAX],
    address: RawAddress,
}

// SAFETY: its pointers are numbers for the kernel, which reads them at a submission; here nothing
// goes through them. What they point to is the channel's and moves with it (`WriteOp`,
// `Payload`), or is in `self`, behind a box.
unsafe impl Send for Gather {}

impl Gather {
    /// `None`: there is no memory for it.
    pub(super) fn new() -> Option<Box<Self>> {
        // SAFETY: msghdr and iovec are plain data for which all zeros (null pointers, length 0)
        // are valid.
        sys::try_box(unsafe { std::mem::zeroed() }).ok()
    }

    /// Takes what is unsent of `writes`, as far as there is room. Returns the bytes.
    pub(super) fn fill<'a>(&mut self, writes: impl Iterator<Item = &'a WriteOp>) -> usize {
        let (mut count, mut bytes) = (0, 0);
        for rest in writes.take_while(|write| write.is_data()).flat_map(WriteOp::unsent) {
            if count == GATHER_PARTS_MAX {
                break;
            }
            let iov_base = rest.as_ptr().cast_mut().cast();
            self.parts[count] = libc::iovec { iov_base, iov_len: rest.len() };
            count += 1;
            bytes += rest.len();
        }
        self.header.msg_iov = self.parts.as_mut_ptr();
        self.header.msg_iovlen = count;
        self.address(None);
        bytes
    }

    /// Whom a message goes to; `None`: the connected peer.
    pub(super) fn address(&mut self, to: Option<&Address>) {
        let (name, len) = match to {
            None => (std::ptr::null_mut(), 0),
            Some(to) => {
                self.address = RawAddress::new(to);
                (self.address.bytes.as_mut_ptr().cast(), self.address.len)
            }
        };
        self.header.msg_name = name;
        self.header.msg_namelen = len;
    }

    pub(super) fn header(&self) -> *const libc::msghdr {
        &raw const self.header
    }

    /// The parts that are filled, for writev.
    pub(super) fn parts(&self) -> (*const libc::iovec, u32) {
        (self.parts.as_ptr(), self.header.msg_iovlen as u32)
    }
}

impl Uring {
    /// Asks for bytes, once for the life of the connection.
    pub(super) fn arm_receive(&mut self, state: &mut State, slot: u32) {
        if state.slot(slot).receiving != Receiving::No {
            return;
        }
        let target = state.slot(slot).target;
        let receive = on_target!(target, fd => opcode::RecvMulti::new(fd, BUFFER_GROUP).build());
        let Some(receive) = receive else { return };
        state.slot(slot).receiving = Receiving::Yes;
        self.ask(state, slot, receive.user_data(Tag::Receive.on(slot)));
    }

    /// Ends receiving; the last answer says when.
    pub(super) fn stop_receive(&mut self, state: &mut State, slot: u32) {
        if state.slot(slot).receiving != Receiving::Yes {
            return;
        }
        state.slot(slot).receiving = Receiving::Stopping;
        let cancel = opcode::AsyncCancel::new(Tag::Receive.on(slot))
            .build()
            .flags(Flags::SKIP_SUCCESS)
            .user_data(Tag::Ignore.on(0));
        self.push(state, cancel);
    }

    /// Does what is at the head of the slot's writes.
    pub(super) fn next_write(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        if entry.flags.writing || entry.phase == SlotPhase::Starting {
            return;
        }
        let (queue, kind) = (entry.writes, entry.kind);
        let Some(head) = state.writes.front(queue) else { return };
        match &head.body {
            Body::Disconnect(how) => {
                let how = *how;
                self.ask_shutdown(state, slot, how);
            }
            Body::ToFd => self.begin_move(state, slot),
            Body::One(_) | Body::Many(_) if kind.is_stream() => self.send_stream(state, slot),
            Body::One(_) | Body::Many(_) => self.ask_write(state, slot),
        }
    }

    fn send_stream(&mut self, state: &mut State, slot: u32) {
        const FLAGS: i32 = libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let (queue, target) = (state.slot(slot).writes, state.slot(slot).target);
        let (first, second) = {
            let mut waiting = state.writes.iter(queue);
            (waiting.next(), waiting.next())
        };
        let entry = match (first, second) {
            // One write of one part: no vector.
            (Some(WriteOp { body: Body::One(payload), done, .. }), None) => {
                let rest = &payload.as_slice()[*done..];
                let (pointer, len) = (rest.as_ptr(), rest.len() as u32);
                on_target!(target, fd => opcode::Send::new(fd, pointer, len).flags(FLAGS).build())
            }
            _ => match self.take_gather() {
                Some(mut gather) => {
                    gather.fill(state.writes.iter(queue));
                    let header = gather.header();
                    self.used_gathers.push(gather);
                    on_target!(target, fd => {
                        opcode::SendMsg::new(fd, header).flags(FLAGS as u32).build()
                    })
                }
                // Without memory for a vector the first part goes alone.
                None => {
                    let Some(rest) = first.and_then(|head| head.unsent().next()) else { return };
                    let (pointer, len) = (rest.as_ptr(), rest.len() as u32);
                    on_target!(target, fd => {
                        opcode::Send::new(fd, pointer, len).flags(FLAGS).build()
                    })
                }
            },
        };
        let Some(entry) = entry else { return };
        state.slot(slot).flags.writing = true;
        self.ask(state, slot, entry.user_data(Tag::Send.on(slot)));
    }

    /// A vector, with room for it in both lists that it will be in. `None`: there is no memory.
    pub(super) fn take_gather(&mut self) -> Option<Box<Gather>> {
        self.used_gathers.try_reserve(1).ok()?;
        self.free_gathers.try_reserve(self.used_gathers.len() + 1).ok()?;
        self.free_gathers.pop().or_else(Gather::new)
    }

    /// Queues a send that is over when it is submitted: it does not wait for room, and gives an
    /// answer only if not all of it went out.
    #[inline(always)]
    pub(super) fn ask_silent_send(&mut self, state: &mut State, slot: u32, bytes: ReadBuf) {
        const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
        let (pointer, len) = (bytes.as_ptr(), bytes.len() as u32);
        let entry = state.slot(slot);
        let send = on_target!(entry.target, fd => {
            opcode::Send::new(fd, pointer, len).flags(FLAGS).build()
        });
        let Some(send) = send else { return };
        entry.silent_bytes = len;
        entry.flags.writing = true;
        entry.kernel_requests += 1;
        let send = send.flags(Flags::SKIP_SUCCESS).user_data(Tag::Send.on(slot));
        self.enqueue(state, &send);
        self.silent_sends.push(slot, bytes);
        self.submit_full_batch(state);
    }

    /// Ends the silent sends that were submitted and have given no answer.
    pub(super) fn settle_sends(&mut self, state: &mut State) {
        if self.silent_sends.submitted == 0 {
            return;
        }
        // Those that failed have answered by now, and are struck off the list.
        self.fetch_all(state);
        state.silence_awaited = false;
        let count = self.silent_sends.submitted;
        for position in 0..count {
            let slot = self.silent_sends.list[position].slot;
            if slot == ANSWERED {
                continue;
            }
            let entry = state.slot(slot);
            entry.silent_bytes = 0;
            entry.flags.writing = false;
            let is_awaited = !entry.writes.is_empty() || entry.flags.awaited.has(Awaited::DRAINED);
            if entry.phase == SlotPhase::Open && !is_awaited && entry.kernel_requests > 0 {
                // Nearly always: nothing waited for it.
                entry.kernel_requests -= 1;
            } else {
                self.go_on_after_silence(state, slot);
            }
        }
        self.silent_sends.drop_first(count);
    }

    #[inline(never)]
    fn go_on_after_silence(&mut self, state: &mut State, slot: u32) {
        state.tell_drained(slot);
        if self.count_down(state, slot) && !state.slot(slot).writes.is_empty() {
            self.next_write(state, slot);
        }
    }

    /// A silent send was answered, so it did not go out whole: it becomes a write like others, and
    /// the answer says how far it came.
    #[cold]
    pub(super) fn on_silence_broken(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        entry.silent_bytes = 0;
        entry.flags.broken_silence = true;
        if let Some(bytes) = self.silent_sends.strike(slot) {
            let len = bytes.len();
            let write = WriteOp { quiet: true, ..WriteOp::new(Body::One(bytes.into()), len) };
            state.queue_write_first(slot, write);
        }
    }

    fn ask_shutdown(&mut self, state: &mut State, slot: u32, how: Disconnect) {
        let how = if how == Disconnect::Write { libc::SHUT_WR } else { libc::SHUT_RDWR };
        let target = state.slot(slot).target;
        let entry = on_target!(target, fd => opcode::Shutdown::new(fd, how).build());
        let Some(entry) = entry else { return };
        state.slot(slot).flags.writing = true;
        self.ask(state, slot, entry.user_data(Tag::Disconnect.on(slot)));
    }

    /// Resets the connection: connecting to no address dissolves it with an RST.
    pub(super) fn ask_reset(&mut self, state: &mut State, slot: u32) {
        static NOWHERE: RawAddress = RawAddress::UNSPECIFIED;
        let target = state.slot(slot).target;
        let (address, len) = (NOWHERE.bytes.as_ptr().cast(), NOWHERE.len);
        let entry = on_target!(target, fd => opcode::Connect::new(fd, address, len).build());
        let Some(entry) = entry else { return };
        self.ask(state, slot, entry.user_data(Tag::Disconnect.on(slot)));
    }

    pub(super) fn on_disconnected(&mut self, state: &mut State, slot: u32, result: i32) {
        let result = match result {
            // Already closed by the peer: what was asked for is so.
            0.. => Ok(()),
            error if error == -libc::ENOTCONN => Ok(()),
            error => Err(OpError::from_raw_os_error(-error)),
        };
        let entry = state.slot(slot);
        if entry.phase == SlotPhase::Closing {
            return;
        }
        let queue = entry.writes;
        let ordered = entry.flags.writing
            && state
                .writes
                .front(queue)
                .is_some_and(|write| matches!(write.body, Body::Disconnect(_)));
        if ordered {
            state.slot(slot).flags.writing = false;
            state.pop_control(slot);
        } else if !state.slot(slot).flags.writing {
            // A reset: what was queued will never go out. If a send is with the kernel, its own
            // answer fails it and what is behind it: until then its memory has to stay.
            state.on_send_failed(slot, OpError::Cancelled);
        }
        state.complete(slot, Event::Disconnect(result));
        self.next_write(state, slot);
    }

    /// `to_fd`: first no more bytes may arrive here.
    fn begin_move(&mut self, state: &mut State, slot: u32) {
        state.slot(slot).flags.writing = true;
        match state.slot(slot).receiving {
            Receiving::Yes => self.stop_receive(state, slot),
            Receiving::Stopping => {}
            Receiving::No | Receiving::Starved => self.finish_move(state, slot),
            // Of the service alone.
            #[cfg(feature = "local")]
            Receiving::Withheld => {}
        }
    }

    /// `to_fd` was begun, and waits for the last answer to what else is with the kernel.
    pub(super) fn is_move_waiting(state: &mut State, slot: u32) -> bool {
        let entry = state.slot(slot);
        let (begun, queue) =
            (entry.phase == SlotPhase::Moving && entry.flags.writing, entry.writes);
        begun && state.writes.front(queue).is_some_and(|head| matches!(head.body, Body::ToFd))
    }

    /// A request of the slot has had its last answer. Whether a move waited for it, and goes on.
    pub(super) fn moves_on(&mut self, state: &mut State, slot: u32) -> bool {
        let is_waiting = Self::is_move_waiting(state, slot);
        if is_waiting {
            self.finish_move(state, slot);
        }
        is_waiting
    }

    /// `to_fd`: no more bytes arrive here.
    pub(super) fn finish_move(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        if entry.kernel_requests > 0 {
            // A message read, a look for the end or a reset is still with the kernel, and would
            // be answered to the slot's next owner. The last answer brings us back here.
            self.cancel_all(state, slot);
            return;
        }
        match entry.target {
            Target::Direct(direct) => {
                let install = opcode::FixedFdInstall::new(types::Fixed(direct), 0).build();
                self.ask(state, slot, install.user_data(Tag::Install.on(slot)));
            }
            Target::Fd(_) | Target::Stack(_) | Target::None => {
                let fd = entry.fd.take();
                self.moved(state, slot, fd.ok_or(OpError::BadDescriptor));
            }
        }
    }

    pub(super) fn moved(&mut self, state: &mut State, slot: u32, result: Result<OwnedFd, OpError>) {
        state.slot(slot).flags.writing = false;
        state.pop_control(slot);
        if let (Ok(_), Target::Direct(direct)) = (&result, state.slot(slot).target) {
            self.close_direct(state, direct);
        }
        let failed = result.is_err();
        state.on_moved(slot, result);
        if failed {
            if state.wants_data(slot) {
                self.arm_receive(state, slot);
            }
            self.next_write(state, slot);
            if state.peek(slot).flags.awaited.has(Awaited::END) {
                self.ask_end(state, slot);
            }
        }
    }

    pub(super) fn ask_connect(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        let target = entry.target;
        let Some(Extra::Connecting { raw, .. }) = entry.extra.as_deref() else { return };
        // The address lies in the slot's box until the attempt has ended.
        let (address, len) = (raw.bytes.as_ptr().cast(), raw.len);
        let connect = on_target!(target, fd => opcode::Connect::new(fd, address, len).build());
        let Some(connect) = connect else { return };
        self.ask(state, slot, connect.user_data(Tag::Connect.on(slot)));
    }

    pub(super) fn on_connect_answer(&mut self, state: &mut State, slot: u32, result: i32) {
        let timed_out = matches!(
            state.slot(slot).extra.as_deref(),
            Some(Extra::Connecting { abandoned: true, .. })
        );
        let result = match result {
            0.. => Ok(()),
            _ if timed_out => Err(OpError::TimedOut),
            error => Err(OpError::from_raw_os_error(-error)),
        };
        state.on_connected(slot, result);
        if result.is_ok() && state.slot(slot).phase == SlotPhase::Open {
            if state.wants_data(slot) {
                self.arm_receive(state, slot);
            }
            self.next_write(state, slot);
        }
    }

    pub(super) fn give_up_connect(&mut self, state: &mut State, slot: u32) {
        if let Some(Extra::Connecting { abandoned, .. }) = state.slot(slot).extra.as_deref_mut() {
            *abandoned = true;
        }
        self.cancel_all(state, slot);
    }

    /// Slots that stopped for want of buffers try again when some have come back.
    pub(super) fn restart_starved(&mut self, state: &mut State) {
        if self.starved.is_empty() {
            return;
        }
        let wanted = usize::from(state.receive_pool.buffer_count() / 4).max(1);
        if state.receive_pool.free_count() < wanted {
            state.spill_unread(wanted);
        }
        if state.receive_pool.free_count() == 0 {
            return;
        }
        self.ring.lend_buffers(&state.receive_pool);
        for slot in std::mem::take(&mut self.starved) {
            if state.slot(slot).receiving != Receiving::Starved {
                continue;
            }
            state.slot(slot).receiving = Receiving::No;
            if state.wants_data(slot) {
                self.arm_receive(state, slot);
            }
        }
    }

    pub(super) fn note_starved(&mut self, state: &mut State, slot: u32) {
        state.starve(slot);
        self.starved.push(slot);
        debug_assert!(state.slot(slot).kind.is_stream() || state.slot(slot).kind == Kind::Tcp);
    }
}
