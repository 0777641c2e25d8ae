//! Placement `inline`: the server is polled inside `dispatch` and called in place.
//!
//! Invariant: nothing is between a call and the server. Received and sent payload lies in the
//! channel's own buffers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use megapipe_link::{Caps, LinkError};
use megapipe_service::{
    AcceptorId, Clock, ConnectStart, Next, NotShared, PortError, RemoteEvent, Server, Sharing,
};
use megapipe_stack::{
    Arrival, BindError, Chunk, ConnId, ConnInfo, ConnOption, ConnectError, DatagramId,
    DatagramSharing, Departure, Holder, Instant, ListenError, ListenerId, Memory, Notice,
    OperationError, Stack,
};

use super::memory::{ChannelMemory, ReceivedMemory};
use super::pieces::{room_for_segments, settle_front, take_front};
use super::stack_handle::{NoBuffer, Polled, ServerParts, StackHandle};
use crate::buffer::{Payload, ReadBuf};
use crate::error::CreateError;
use crate::kernel::pool::HeldBuffer;

/// A server that this thread alone uses.
pub(crate) struct Inline(Server<ChannelMemory>);

impl Inline {
    #[inline]
    const fn stack(&mut self) -> &mut Stack {
        self.0.parts().0
    }

    #[inline]
    const fn memory(&mut self) -> &mut ChannelMemory {
        self.0.parts().1
    }

    /// Sends a chunk. Returns the payload behind it if the stack does not take it.
    #[inline]
    fn send_chunk(
        &mut self,
        now: Instant,
        conn: ConnId,
        chunk: Chunk,
    ) -> Result<(), (OperationError, Option<Payload>)> {
        let (stack, memory) = self.0.parts();
        stack.send(now, conn, chunk, memory).map_err(|error| (error, memory.give_back(chunk)))
    }
}

impl StackHandle for Inline {
    fn start(parts: ServerParts<'_>) -> Result<(Self, String), CreateError> {
        let ServerParts { frames, settings, state, .. } = parts;
        let memory = ChannelMemory::of(state);
        let server = Server::new(frames, settings, memory, settings.clock.now());
        Ok((Self(server.map_err(CreateError::Local)?), "inside dispatch".to_owned()))
    }

    fn poll(&mut self, now: Instant) -> Result<Polled, LinkError> {
        let has_worked = self.0.poll(now)?.worked();
        Ok(Polled { has_worked, has_event: self.stack().has_event() })
    }

    fn transmit(&mut self, now: Instant) -> Result<usize, LinkError> {
        self.0.transmit(now)
    }

    #[inline]
    fn next_event(&mut self) -> Option<RemoteEvent> {
        self.0.event().map(|(event, offer)| RemoteEvent::Event(event, offer))
    }

    fn after_poll(&mut self, has_worked: bool, now: Instant) -> Next {
        self.0.after_poll(has_worked, now)
    }

    fn arm(&mut self, now: Instant) -> Result<bool, LinkError> {
        self.0.arm(now)
    }

    fn patience(&self, now: Instant) -> Option<Duration> {
        self.0.patience(now)
    }

    fn wait_fd(&self) -> BorrowedFd<'_> {
        self.0.wait_fd()
    }

    fn host_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.host_fd()
    }

    fn shut_down(&mut self, clock: &Clock) -> Result<(), LinkError> {
        self.0.shut_down(clock)
    }

    fn caps(&self) -> &Caps {
        self.0.caps()
    }

    fn shard(&self) -> Option<(u16, u16)> {
        self.0.attachment().map(|place| (place.shard(), place.shards()))
    }

    fn set_core(&mut self, core: Option<u32>) {
        if let Some(place) = self.0.attachment() {
            place.set_core(core);
        }
    }

    #[inline]
    fn received(&mut self, chunk: Chunk) -> Option<ReceivedMemory> {
        self.memory().received(chunk)
    }

    #[inline]
    fn take_held(&mut self, number: u16) -> Option<HeldBuffer> {
        self.memory().take_held(number)
    }

    fn free_received(&mut self, chunk: Chunk) {
        self.memory().free(chunk.buf);
    }

    fn connect(
        &mut self,
        now: Instant,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        begin: ConnectStart,
    ) -> Result<ConnId, PortError<ConnectError>> {
        self.0.connect_as(now, (remote, local), begin)
    }

    #[inline]
    fn receive(&mut self, now: Instant, conn: ConnId) -> Result<(), OperationError> {
        self.stack().receive(now, conn)
    }

    #[inline]
    fn send_read(&mut self, now: Instant, conn: ConnId, bytes: ReadBuf) -> Option<Payload> {
        match self.memory().keep_read(bytes) {
            Ok(chunk) => self.send_chunk(now, conn, chunk).err()?.1,
            Err(payload) => Some(payload),
        }
    }

    #[inline]
    fn send_copy(
        &mut self,
        now: Instant,
        conn: ConnId,
        bytes: &[u8],
    ) -> Result<Option<Payload>, NoBuffer> {
        let chunk = self.memory().keep_copy(bytes).ok_or(NoBuffer)?;
        Ok(self.send_chunk(now, conn, chunk).err().and_then(|(_, refused)| refused))
    }

    fn send_front(
        &mut self,
        now: Instant,
        conn: ConnId,
        payload: &mut Payload,
    ) -> Result<usize, OperationError> {
        let front = take_front(payload, || self.0.stack().info(conn))?;
        let len = front.len();
        let sent = match self.memory().keep(front) {
            Ok(chunk) => self.send_chunk(now, conn, chunk),
            Err(front) => Err((OperationError::NoMemory, Some(front))),
        };
        settle_front(payload, len, sent)
    }

    fn await_acks(&mut self, conn: ConnId) -> Result<(), OperationError> {
        self.stack().await_acks(conn)
    }

    fn set_option(
        &mut self,
        now: Instant,
        conn: ConnId,
        option: ConnOption,
    ) -> Result<(), OperationError> {
        let (stack, memory) = self.0.parts();
        stack.set_option(now, conn, option, memory)
    }

    fn shutdown(&mut self, now: Instant, conn: ConnId) {
        let (stack, memory) = self.0.parts();
        // Closed by us before, or by the peer meanwhile.
        let _ = stack.shutdown(now, conn, memory);
    }

    fn close(&mut self, now: Instant, conn: ConnId) {
        let (stack, memory) = self.0.parts();
        // A connection that is over needs no end.
        let _ = stack.close(now, conn, memory);
    }

    fn abort(&mut self, now: Instant, conn: ConnId) {
        self.0.abort(now, conn);
    }

    fn info(&mut self, conn: ConnId) -> Option<ConnInfo> {
        self.0.stack().info(conn).ok()
    }

    fn addresses(&mut self, conn: ConnId) -> Option<(SocketAddr, SocketAddr)> {
        self.0.stack().addresses(conn).ok()
    }

    fn listen(
        &mut self,
        now: Instant,
        local: SocketAddr,
        backlog: u32,
        sharing: Sharing,
    ) -> Result<ListenerId, PortError<ListenError>> {
        self.0.listen(now, local, backlog, sharing)
    }

    fn share(
        &mut self,
        listener: ListenerId,
        sharing: Sharing,
    ) -> Result<(), PortError<ListenError>> {
        self.0.share(listener, sharing)
    }

    fn set_fast_open(
        &mut self,
        listener: ListenerId,
        pending_max: u32,
    ) -> Result<(), OperationError> {
        self.stack().set_listener_fast_open(listener, pending_max)
    }

    fn is_listening(&mut self, local: SocketAddr) -> bool {
        self.0.is_listening(local)
    }

    fn accept(
        &mut self,
        listener: ListenerId,
        acceptor: AcceptorId,
        count: u32,
    ) -> Result<(), OperationError> {
        self.0.accept(listener, acceptor, count)
    }

    fn unlisten(&mut self, now: Instant, listener: ListenerId) {
        self.0.unlisten(now, listener);
    }

    fn take_out(&mut self, now: Instant, conn: ConnId) -> bool {
        self.0.take_out(now, conn)
    }

    fn hand_over_taken(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) {
        self.0.prepend_unread(conn, bytes);
        self.0.hand_over_taken(now, conn);
    }

    fn hand_over_offered(&mut self, now: Instant, conn: ConnId) {
        self.0.hand_over_offered(now, conn);
    }

    fn bind(
        &mut self,
        local: SocketAddr,
        sharing: DatagramSharing,
    ) -> Result<DatagramId, PortError<BindError>> {
        self.0.bind(local, sharing)
    }

    fn connect_datagram(
        &mut self,
        endpoint: DatagramId,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, OperationError> {
        self.stack().connect_datagram(endpoint, peer)
    }

    fn close_datagram(&mut self, endpoint: DatagramId) {
        self.0.close_datagram(endpoint);
    }

    fn send_datagram(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        (to, departure): (SocketAddr, &Departure),
        payload: Payload,
    ) -> Result<(), OperationError> {
        let (stack, memory) = self.0.parts();
        let chunk = memory.keep(payload).map_err(|_| OperationError::NoMemory)?;
        let sent = stack.send_datagram_as(now, endpoint, (to, chunk, departure), memory);
        sent.inspect_err(|_| drop(memory.give_back(chunk)))
    }

    fn send_datagrams(
        &mut self,
        now: Instant,
        endpoint: DatagramId,
        destination: (SocketAddr, &Departure),
        (mut payload, segment_len): (Payload, usize),
    ) -> Result<(), OperationError> {
        let mut chunks = room_for_segments(payload.len(), segment_len)?;
        while !payload.is_empty() {
            let front = payload.front(segment_len).and_then(|it| self.memory().keep(it).ok());
            let Some(chunk) = front else {
                chunks.into_iter().for_each(|chunk| drop(self.memory().give_back(chunk)));
                return Err(OperationError::NoMemory);
            };
            chunks.push(chunk);
            payload.skip(segment_len);
        }
        self.0.make_datagram_room(now, endpoint, chunks.len());
        let sent = self.0.send_datagrams(now, endpoint, destination, &chunks);
        sent.inspect_err(|_| {
            for chunk in chunks {
                drop(self.memory().give_back(chunk));
            }
        })
    }

    fn last_arrival(&mut self) -> Option<Arrival> {
        Some(self.0.stack().last_arrival())
    }

    fn take_notice(&mut self) -> Option<Notice> {
        self.stack().take_notice()
    }

    fn quote_errors(&mut self, endpoint: DatagramId, on: bool) -> Result<(), OperationError> {
        self.stack().quote_errors(endpoint, on)
    }

    fn packet_bytes_max(&mut self, to: IpAddr) -> Option<u16> {
        Some(self.0.stack().packet_bytes_max(to))
    }

    fn datagram_address(&mut self, endpoint: DatagramId) -> Option<SocketAddr> {
        self.0.stack().datagram_address(endpoint).ok()
    }

    fn has_undelivered(&mut self) -> bool {
        self.0.stack().has_undelivered()
    }

    fn holders(&mut self, ports: RangeInclusive<u16>) -> BTreeSet<Holder> {
        self.0.stack().holders(ports)
    }

    fn port_without_connections(&mut self, ports: RangeInclusive<u16>, from: u16) -> Option<u16> {
        self.0.stack().port_without_connections(ports, from)
    }

    fn migration_server(&mut self) -> Result<&mut Server<ChannelMemory>, NotShared> {
        Ok(&mut self.0)
    }

    fn shared_interface(&self) -> Result<u32, NotShared> {
        self.0.shared_interface()
    }
}
