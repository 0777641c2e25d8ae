//! Requests that need memory of their own until their last answer: reads of messages, pipes and
//! files, work at an offset, opening, polling.
//!
//! Invariants
//! - An entry of the table lives from the request to its answer, in a box that does not move.
//! - A slot of a message or plain kind has at most one read with the kernel (`flags.reading`).

use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};

use super::{Tag, Uring, on_target};
use crate::address::sockaddr::RawAddress;
use crate::buffer::{Payload, ReadBuf};
use crate::completion::{Datagram, Event};
use crate::error::{Limit, OpError};
use crate::kernel::pool::UnsharedBytes;
use crate::kernel::sys;
use crate::limits::CONTROL_WORDS;
use crate::options::OpenOptions;
use crate::slot::{FileJob, Kind, SlotPhase, Target};
use crate::state::State;

/// The file's own position.
const CURRENT_POSITION: u64 = u64::MAX;

pub(super) struct Request {
    slot: u32,
    what: UringRequest,
}

pub(super) enum UringRequest {
    /// The head of the slot's reads, from a plain descriptor.
    Read {
        buffer: UnsharedBytes,
    },
    /// The head of the slot's reads, a message.
    Message {
        message: Box<Message>,
        buffer: UnsharedBytes,
        with_sender: bool,
    },
    ReadAt {
        buffer: UnsharedBytes,
    },
    WriteAt {
        offset: u64,
        data: Payload,
        done: usize,
    },
    Fsync,
    Open {
        path: CString,
    },
    Convert {
        direct: u32,
    },
}

/// What recvmsg writes.
pub(super) struct Message {
    header: libc::msghdr,
    part: libc::iovec,
    sender: RawAddress,
    control: [u64; CONTROL_WORDS],
}

// SAFETY: its pointers are for the kernel, which writes through them until its answer; here nothing
// goes through them. They point into `self`, behind a box, and to the buffer that its request
// keeps, which moves with it.
unsafe impl Send for Message {}

impl Message {
    /// Control data is asked for of UDP alone: of UNIX sockets it would be descriptors.
    fn new(buffer: &mut [u8], is_udp: bool) -> Result<Box<Self>, Limit> {
        let part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        // SAFETY: msghdr is plain data for which all zeros (null pointers, length 0) are valid.
        let header: libc::msghdr = unsafe { std::mem::zeroed() };
        let control = [0; CONTROL_WORDS];
        let sender = RawAddress::EMPTY;
        let mut message = sys::try_box(Self { header, part, sender, control })?;
        message.header.msg_iov = &raw mut message.part;
        message.header.msg_iovlen = 1;
        message.header.msg_name = message.sender.bytes.as_mut_ptr().cast();
        message.header.msg_namelen = message.sender.len;
        if is_udp {
            message.header.msg_control = message.control.as_mut_ptr().cast();
            message.header.msg_controllen = size_of_val(&message.control);
        }
        Ok(message)
    }

    fn sender(&mut self) -> Option<crate::Address> {
        self.sender.len = self.header.msg_namelen;
        if self.sender.len == 0 { None } else { self.sender.to_address() }
    }
}

/// The requests that are with the kernel.
pub(super) struct RequestTable {
    entries: Vec<Option<Box<Request>>>,
    free: Vec<u32>,
}

impl RequestTable {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }

    /// Makes room for one more request, now and when its entry is free again.
    fn reserve_one(&mut self) -> bool {
        let count = self.entries.len();
        let reserved = self.entries.try_reserve(usize::from(self.free.is_empty()));
        reserved.is_ok() && self.free.try_reserve(count + 1 - self.free.len()).is_ok()
    }

    /// Adds a request, for which there is room.
    fn insert(&mut self, request: Box<Request>) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = Some(request);
                index
            }
            None => {
                self.entries.push(Some(request));
                (self.entries.len() - 1) as u32
            }
        }
    }

    fn remove(&mut self, index: u32) -> Option<Box<Request>> {
        let request = self.entries.get_mut(index as usize)?.take();
        if request.is_some() {
            self.free.push(index);
        }
        request
    }
}

/// Memory for the oldest read that waits, and whether its sender is wanted. Reads for which there
/// is no memory are answered with that.
fn read_buffer(state: &mut State, slot: u32) -> Option<(UnsharedBytes, bool)> {
    while let Some(read) = state.slot(slot).first_read {
        match UnsharedBytes::zeroed(read.len as usize) {
            Some(buffer) => return Some((buffer, read.with_sender)),
            None => state.answer_message(slot, read.with_sender, Err(OpError::NoMemory)),
        }
    }
    None
}

impl Uring {
    /// Keeps `what` and asks for the entry that `build` makes of it, at its final place. `false`:
    /// there is no memory for it, and nothing was asked for.
    #[must_use]
    pub(super) fn ask_request(
        &mut self,
        state: &mut State,
        slot: u32,
        what: UringRequest,
        build: impl FnOnce(&mut UringRequest) -> Option<Entry>,
    ) -> bool {
        if !self.requests.reserve_one() {
            return false;
        }
        let Ok(mut request) = sys::try_box(Request { slot, what }) else { return false };
        if let Some(entry) = build(&mut request.what) {
            let index = self.requests.insert(request);
            self.ask(state, slot, entry.user_data(Tag::Request.on(index)));
        }
        true
    }

    /// Asks for the read at the head of a message or plain descriptor.
    pub(super) fn ask_read(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        let (target, kind) = (entry.target, entry.kind);
        if entry.flags.reading || entry.phase != SlotPhase::Open {
            return;
        }
        // A read for which there is no memory is answered with that, and the next one is tried.
        while let Some((buffer, with_sender)) = read_buffer(state, slot) {
            state.slot(slot).flags.reading = true;
            if self.ask_head(state, slot, (target, kind), (buffer, with_sender)) {
                return;
            }
            state.slot(slot).flags.reading = false;
            state.answer_message(slot, with_sender, Err(OpError::NoMemory));
        }
    }

    /// Asks for the read at the head with its buffer. `false`: there is no memory for the request.
    fn ask_head(
        &mut self,
        state: &mut State,
        slot: u32,
        (target, kind): (Target, Kind),
        (mut buffer, with_sender): (UnsharedBytes, bool),
    ) -> bool {
        if !kind.is_message() {
            return self.ask_request(state, slot, UringRequest::Read { buffer }, |what| {
                let UringRequest::Read { buffer } = what else { return None };
                read_entry(target, buffer.bytes_mut(), CURRENT_POSITION)
            });
        }
        let Ok(message) = Message::new(buffer.bytes_mut(), kind == Kind::Udp) else { return false };
        let what = UringRequest::Message { message, buffer, with_sender };
        self.ask_request(state, slot, what, |what| {
            let UringRequest::Message { message, .. } = what else { return None };
            let header = &raw mut message.header;
            on_target!(target, fd => opcode::RecvMsg::new(fd, header).build())
        })
    }

    /// Asks for the write at the head of a message or plain descriptor.
    pub(super) fn ask_write(&mut self, state: &mut State, slot: u32) {
        let entry = state.slot(slot);
        let (queue, target, kind) = (entry.writes, entry.target, entry.kind);
        // Without memory for a vector it is tried again when the descriptor can be written to.
        let Some(mut gather) = self.take_gather() else {
            return self.ask_poll(state, slot, false);
        };
        let Some(write) = state.writes.front(queue) else { return };
        gather.fill(std::iter::once(write));
        gather.address(write.receiver());
        let (header, parts) = (gather.header(), gather.parts());
        self.used_gathers.push(gather);
        let entry = if kind.is_message() {
            let flags = libc::MSG_NOSIGNAL as u32;
            on_target!(target, fd => opcode::SendMsg::new(fd, header).flags(flags).build())
        } else {
            let (pointer, count) = parts;
            on_target!(target, fd => {
                opcode::Writev::new(fd, pointer, count).offset(CURRENT_POSITION).build()
            })
        };
        let Some(entry) = entry else { return };
        state.slot(slot).flags.writing = true;
        self.ask(state, slot, entry.user_data(Tag::Send.on(slot)));
    }

    pub(super) fn ask_poll(&mut self, state: &mut State, slot: u32, for_read: bool) {
        let target = state.slot(slot).target;
        if for_read {
            state.slot(slot).flags.reading = true;
        } else {
            state.slot(slot).flags.writing = true;
        }
        let (events, tag) = match for_read {
            true => (libc::POLLIN, Tag::CanRead),
            false => (libc::POLLOUT, Tag::CanWrite),
        };
        let poll = on_target!(target, fd => opcode::PollAdd::new(fd, events as u32).build());
        if let Some(poll) = poll {
            self.ask(state, slot, poll.user_data(tag.on(slot)));
        }
    }

    /// A descriptor can be read, or written to: what waits for that is tried again.
    pub(super) fn on_ready(&mut self, state: &mut State, slot: u32, for_read: bool) {
        if !self.count_down(state, slot) {
            return;
        }
        let flags = &mut state.slot(slot).flags;
        if for_read {
            flags.reading = false;
            self.read_on(state, slot);
        } else {
            flags.writing = false;
            self.next_write(state, slot);
        }
    }

    /// Asks to hear of a connection's changes, one of which is its end.
    pub(super) fn ask_end(&mut self, state: &mut State, slot: u32) {
        let target = state.slot(slot).target;
        let poll = on_target!(target, fd => opcode::PollAdd::new(fd, 0).multi(true).build());
        if let Some(poll) = poll {
            self.ask(state, slot, poll.user_data(Tag::End.on(slot)));
        }
    }

    pub(super) fn ask_job(&mut self, state: &mut State, slot: u32, job: FileJob) {
        let target = state.slot(slot).target;
        match job {
            FileJob::ReadAt { offset, len } => {
                let Some(buffer) = UnsharedBytes::zeroed(len) else {
                    return state.complete(slot, Event::Read(Err(OpError::NoMemory)));
                };
                let what = UringRequest::ReadAt { buffer };
                let is_asked = self.ask_request(state, slot, what, |what| {
                    let UringRequest::ReadAt { buffer } = what else { return None };
                    read_entry(target, buffer.bytes_mut(), offset)
                });
                if !is_asked {
                    state.complete(slot, Event::Read(Err(OpError::NoMemory)));
                }
            }
            FileJob::WriteAt { offset, data } => self.ask_write_at(state, slot, offset, data, 0),
            FileJob::Fsync => {
                let fsync = |_: &mut _| on_target!(target, fd => opcode::Fsync::new(fd).build());
                if !self.ask_request(state, slot, UringRequest::Fsync, fsync) {
                    state.complete(slot, Event::Fsync(Err(OpError::NoMemory)));
                }
            }
        }
    }

    fn ask_write_at(
        &mut self,
        state: &mut State,
        slot: u32,
        offset: u64,
        data: Payload,
        done: usize,
    ) {
        let target = state.slot(slot).target;
        let what = UringRequest::WriteAt { offset, data, done };
        let is_asked = self.ask_request(state, slot, what, |what| {
            let UringRequest::WriteAt { offset, data, done } = what else { return None };
            let rest = &data.as_slice()[*done..];
            let (pointer, len, at) = (rest.as_ptr(), rest.len() as u32, *offset + *done as u64);
            on_target!(target, fd => opcode::Write::new(fd, pointer, len).offset(at).build())
        });
        if !is_asked {
            state.complete(slot, Event::Write(Err(OpError::NoMemory)));
        }
    }

    pub(super) fn ask_open(
        &mut self,
        state: &mut State,
        slot: u32,
        path: PathBuf,
        options: OpenOptions,
    ) {
        // `Channel::open` has refused paths with NUL bytes.
        let path = CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
        let flags = sys::open_flags(&options);
        let is_asked = self.ask_request(state, slot, UringRequest::Open { path }, |what| {
            let UringRequest::Open { path } = what else { return None };
            let at = types::Fd(libc::AT_FDCWD);
            Some(opcode::OpenAt::new(at, path.as_ptr()).flags(flags).mode(0o666).build())
        });
        if !is_asked {
            state.on_opened(slot, Err(OpError::NoMemory));
        }
    }

    /// The answer to something in the table.
    pub(super) fn on_request(&mut self, state: &mut State, index: u32, result: i32) {
        let Some(request) = self.requests.remove(index) else {
            state.counters.stray_answers += 1;
            return;
        };
        let Request { slot, what } = *request;
        if let UringRequest::Convert { direct } = what {
            self.on_converted(state, slot, direct, result);
            self.count_down(state, slot);
            return;
        }
        if let UringRequest::Open { .. } = what
            && result >= 0
        {
            // SAFETY: the kernel has just made this descriptor for us; it has no other owner.
            let fd = unsafe { OwnedFd::from_raw_fd(result) };
            state.slot(slot).set_fd(fd);
        }
        if !self.count_down(state, slot) {
            return;
        }
        let error = OpError::from_raw_os_error(result.saturating_neg());
        match what {
            UringRequest::Read { buffer } => self.on_read(state, slot, buffer, result),
            UringRequest::Message { message, buffer, with_sender } => {
                let received = (message, buffer, with_sender);
                self.on_message(state, slot, received, result);
            }
            UringRequest::ReadAt { buffer } => {
                let count = usize::try_from(result).map_err(|_| error);
                let read = count.map(|count| ReadBuf::from_heap(buffer, count));
                state.complete(slot, Event::Read(read));
            }
            UringRequest::WriteAt { offset, data, done } => {
                self.on_written_at(state, slot, (offset, data, done), result);
            }
            UringRequest::Fsync => {
                let done = if result < 0 { Err(error) } else { Ok(()) };
                state.complete(slot, Event::Fsync(done));
            }
            UringRequest::Open { .. } => {
                state.on_opened(slot, if result < 0 { Err(error) } else { Ok(()) });
            }
            UringRequest::Convert { .. } => {}
        }
    }

    fn on_read(&mut self, state: &mut State, slot: u32, buffer: UnsharedBytes, result: i32) {
        state.slot(slot).flags.reading = false;
        match -result {
            libc::EAGAIN if state.slot(slot).phase != SlotPhase::Moving => {
                return self.ask_poll(state, slot, true);
            }
            libc::EAGAIN | libc::EINTR => {}
            errno if errno > 0 => {
                state.answer_one(slot, Err(OpError::from_raw_os_error(errno)));
            }
            _ => {
                let bytes = ReadBuf::from_heap(buffer, result as usize);
                state.answer_one(slot, Ok(bytes));
            }
        }
        self.read_on(state, slot);
    }

    fn on_message(
        &mut self,
        state: &mut State,
        slot: u32,
        (mut message, buffer, with_sender): (Box<Message>, UnsharedBytes, bool),
        result: i32,
    ) {
        state.slot(slot).flags.reading = false;
        let cancelled = result == -libc::ECANCELED && state.slot(slot).phase == SlotPhase::Moving;
        if !cancelled && result != -libc::EINTR {
            let received = if result < 0 {
                Err(OpError::from_raw_os_error(-result))
            } else {
                let truncated = message.header.msg_flags & libc::MSG_TRUNC != 0;
                let data = ReadBuf::from_heap(buffer, result as usize);
                let control = match message.header.msg_control.is_null() {
                    true => Box::default(),
                    false => sys::control_bytes(&message.control, message.header.msg_controllen),
                };
                let from = message.sender();
                Ok(Datagram { data, from, truncated, arrival: None, control })
            };
            state.answer_message(slot, with_sender, received);
        }
        self.read_on(state, slot);
    }

    /// After a read: the next one, or the move that waited for it.
    fn read_on(&mut self, state: &mut State, slot: u32) {
        if state.slot(slot).phase == SlotPhase::Moving {
            self.moves_on(state, slot);
            return;
        }
        self.ask_read(state, slot);
    }

    fn on_written_at(
        &mut self,
        state: &mut State,
        slot: u32,
        (offset, data, done): (u64, Payload, usize),
        result: i32,
    ) {
        let len = data.len();
        let done = done + result.max(0) as usize;
        match -result {
            errno if errno > 0 && errno != libc::EINTR => {
                let error = OpError::from_raw_os_error(errno);
                state.complete(slot, Event::Write(Err(error)));
            }
            0 if done < len => state.complete(slot, Event::Write(Err(OpError::NoSpace))),
            _ if done < len => self.ask_write_at(state, slot, offset, data, done),
            _ => state.complete(slot, Event::Write(Ok(len))),
        }
    }

    /// A send or write of a plain descriptor found no room and must not block.
    pub(super) fn must_poll(state: &mut State, slot: u32) -> bool {
        matches!(
            state.slot(slot).kind,
            Kind::Pipe | Kind::CharDevice | Kind::Anonymous | Kind::File
        )
    }
}

fn read_entry(target: Target, buffer: &mut [u8], offset: u64) -> Option<Entry> {
    let (pointer, len) = (buffer.as_mut_ptr(), buffer.len() as u32);
    on_target!(target, fd => opcode::Read::new(fd, pointer, len).offset(offset).build())
}
