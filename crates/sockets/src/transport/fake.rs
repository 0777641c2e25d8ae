//! A transport for unit tests: records the operations that an object submits, and answers its
//! queries from fields that a test sets.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, OwnedFd};

use megapipe::{
    Address, ConnOption, ConnectOptions, Datagram, DatagramSharing, Disconnect, Handle, Holder,
    ListenOptions,
};

use super::{
    DatagramRoute, DatagramTransport, ListenerTransport, ObjectTransport, StreamTransport,
};
use crate::error::Error;
use crate::gather::SendPieces;
use crate::ports::Beneath;

/// An operation, as it was submitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SubmittedOperation {
    Connect(SocketAddr),
    Read,
    AwaitEnd,
    AwaitDelivery,
    AwaitUnsentBelow(u32),
    Write(Vec<u8>),
    ReportLastWrite,
    Disconnect(Disconnect),
    Option(ConnOption),
    ResetOnClose(bool),
    SetCookie(u64),
    Unregister,
    Listen(SocketAddr),
    Accept(u32),
    BindDatagram(SocketAddr),
    ConnectDatagram(Option<SocketAddr>),
    Receive,
    Send(SocketAddr, Vec<u8>),
    QuoteErrors(bool),
}

/// The transport.
#[derive(Debug, Default)]
pub(crate) struct FakeTransport {
    pub(crate) submitted: Vec<SubmittedOperation>,
    pub(crate) handles: u64,
    pub(crate) is_local: bool,
    /// What the channel has not sent.
    pub(crate) unsent_bytes: usize,
    /// What a SYN that waits has room for.
    pub(crate) syn_room: Option<usize>,
    /// What a write may begin with below a mark.
    pub(crate) room_below: usize,
    /// The error that each disconnect returns; none of them is recorded.
    pub(crate) disconnect_error: Option<Error>,
    /// The error that each read and receive returns; none of them is recorded.
    pub(crate) read_error: Option<Error>,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: Option<SocketAddr>,
    /// Datagrams that wait for the owners of a shared socket.
    pub(crate) shared: VecDeque<Vec<u8>>,
    /// How often they were taken or asked for.
    pub(crate) shared_calls: u32,
    /// No other process has it any more.
    pub(crate) is_unshared: bool,
}

impl FakeTransport {
    /// Of objects on our own stack.
    pub(crate) fn local() -> Self {
        Self { is_local: true, ..Self::default() }
    }

    /// The operations that were submitted since this was last called.
    pub(crate) fn take(&mut self) -> Vec<SubmittedOperation> {
        std::mem::take(&mut self.submitted)
    }

    fn record(&mut self, operation: SubmittedOperation) {
        self.submitted.push(operation);
    }

    fn new_handle(&mut self) -> Handle {
        self.handles += 1;
        Handle::from_bits(self.handles)
    }

    fn waiting(&self) -> u32 {
        self.shared.front().map_or(0, |datagram| datagram.len() as u32 + 1)
    }

    fn gathered(from: &mut SendPieces<'_>, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        from.take(len, |part| bytes.extend_from_slice(part));
        bytes
    }
}

impl ObjectTransport for FakeTransport {
    fn is_local(&self) -> bool {
        self.is_local
    }

    fn set_cookie(&mut self, _: Handle, cookie: u64) -> bool {
        self.record(SubmittedOperation::SetCookie(cookie));
        true
    }

    fn unregister(&mut self, _: Handle) {
        self.record(SubmittedOperation::Unregister);
    }

    fn register(&mut self, _: OwnedFd, _: u64) -> Result<Handle, Error> {
        Ok(self.new_handle())
    }

    fn kernel_socket(&self, _: Handle) -> Option<BorrowedFd<'_>> {
        None
    }

    fn local_address(&mut self, _: Handle) -> Option<SocketAddr> {
        self.local
    }

    fn unsent_bytes(&self, _: Handle) -> Result<usize, Error> {
        Ok(self.unsent_bytes)
    }
}

impl Beneath for FakeTransport {
    fn holders(&mut self, _: RangeInclusive<u16>) -> BTreeSet<Holder> {
        BTreeSet::new()
    }

    fn port_without_connections(&mut self, ports: RangeInclusive<u16>, from: u16) -> Option<u16> {
        Some(from.clamp(*ports.start(), *ports.end()))
    }
}

impl StreamTransport for FakeTransport {
    fn connect(&mut self, to: SocketAddr, _: &ConnectOptions, _: u64) -> Result<Handle, Error> {
        self.record(SubmittedOperation::Connect(to));
        Ok(self.new_handle())
    }

    fn connect_socket(
        &mut self,
        _: &mut Option<OwnedFd>,
        to: SocketAddr,
        _: u64,
    ) -> Result<Handle, Error> {
        self.record(SubmittedOperation::Connect(to));
        Ok(self.new_handle())
    }

    fn hand_back(&mut self, _: Handle, _: &[u8]) -> bool {
        false
    }

    fn peer_address(&mut self, _: Handle) -> Result<Option<SocketAddr>, Error> {
        Ok(self.peer)
    }

    fn read(&mut self, _: Handle) -> Result<(), Error> {
        if let Some(error) = self.read_error {
            return Err(error);
        }
        self.record(SubmittedOperation::Read);
        Ok(())
    }

    fn await_end(&mut self, _: Handle) {
        self.record(SubmittedOperation::AwaitEnd);
    }

    fn await_delivery(&mut self, _: Handle) -> bool {
        self.record(SubmittedOperation::AwaitDelivery);
        true
    }

    fn await_unsent_below(&mut self, _: Handle, bytes: u32) -> bool {
        self.record(SubmittedOperation::AwaitUnsentBelow(bytes));
        true
    }

    fn write(&mut self, _: Handle, from: &mut SendPieces<'_>, len: usize) -> Result<(), Error> {
        let bytes = Self::gathered(from, len);
        self.record(SubmittedOperation::Write(bytes));
        Ok(())
    }

    fn write_copied(&mut self, _: Handle, bytes: &[u8]) -> Option<usize> {
        self.record(SubmittedOperation::Write(bytes.to_vec()));
        Some(self.unsent_bytes)
    }

    fn report_last_write(&mut self, _: Handle) -> Result<bool, Error> {
        self.record(SubmittedOperation::ReportLastWrite);
        Ok(self.unsent_bytes > 0)
    }

    fn disconnect(&mut self, _: Handle, how: Disconnect) -> Result<(), Error> {
        if let Some(error) = self.disconnect_error {
            return Err(error);
        }
        self.record(SubmittedOperation::Disconnect(how));
        Ok(())
    }

    fn set_option(&mut self, _: Handle, option: ConnOption) -> bool {
        self.record(SubmittedOperation::Option(option));
        true
    }

    fn set_reset_on_close(&mut self, _: Handle, on: bool) {
        self.record(SubmittedOperation::ResetOnClose(on));
    }

    fn unread_in_channel(&self, _: Handle) -> usize {
        0
    }

    fn unread_in_stack(&mut self, _: Handle) -> usize {
        0
    }

    fn unsent_in_stack(&mut self, _: Handle) -> usize {
        0
    }

    fn queued_in_stack(&mut self, _: Handle) -> usize {
        0
    }

    fn syn_room(&mut self, _: Handle) -> Option<usize> {
        self.syn_room
    }

    fn room_below(&mut self, _: Handle, _: u32) -> Option<usize> {
        Some(self.room_below)
    }

    fn is_unsent_at(&mut self, _: Handle, _: u32) -> bool {
        self.room_below == 0
    }
}

impl ListenerTransport for FakeTransport {
    fn listen(&mut self, local: SocketAddr, _: &ListenOptions, _: u64) -> Result<Handle, Error> {
        self.record(SubmittedOperation::Listen(local));
        Ok(self.new_handle())
    }

    fn accept(&mut self, _: Handle, count: u32, _: u64) -> Result<(), Error> {
        self.record(SubmittedOperation::Accept(count));
        Ok(())
    }

    fn accepts_left(&mut self, _: Handle) -> usize {
        0
    }

    fn set_fast_open(&mut self, _: Handle, _: u32) {}

    fn addresses(&mut self, connection: Handle) -> (Option<SocketAddr>, Option<SocketAddr>) {
        // Each connection has a port of its own, as peers have.
        let port = connection.to_bits() as u16;
        (self.local, Some(SocketAddr::new(IpAddr::from([10, 0, 0, 9]), port)))
    }
}

impl DatagramTransport for FakeTransport {
    fn bind_datagram(
        &mut self,
        local: SocketAddr,
        _: DatagramSharing,
        _: u64,
    ) -> Result<Handle, Error> {
        self.record(SubmittedOperation::BindDatagram(local));
        Ok(self.new_handle())
    }

    fn connect_datagram(
        &mut self,
        _: Handle,
        peer: Option<SocketAddr>,
    ) -> Result<SocketAddr, Error> {
        self.record(SubmittedOperation::ConnectDatagram(peer));
        self.local.ok_or(Error::NetworkUnreachable)
    }

    fn receive_datagram(&mut self, _: Handle) -> Result<(), Error> {
        if let Some(error) = self.read_error {
            return Err(error);
        }
        self.record(SubmittedOperation::Receive);
        Ok(())
    }

    fn take_shared_datagram(&mut self, _: Handle, keeps: bool) -> Option<Option<(Datagram, u32)>> {
        self.shared_calls += 1;
        if self.is_unshared {
            return None;
        }
        let Some(first) = self.shared.front().cloned() else { return Some(None) };
        if !keeps {
            self.shared.pop_front();
        }
        let from = Some(Address::Inet(([10, 0, 0, 2], 9).into()));
        let (data, control) = (first.into(), Box::default());
        let datagram = Datagram { data, from, truncated: false, arrival: None, control };
        Some(Some((datagram, self.waiting())))
    }

    fn await_shared_datagram(&mut self, _: Handle) -> Option<u32> {
        self.shared_calls += 1;
        (!self.is_unshared).then(|| self.waiting())
    }

    fn send_by_kernel(
        &mut self,
        _: Handle,
        from: &mut SendPieces<'_>,
        to: SocketAddr,
    ) -> Result<(), Error> {
        let bytes = Self::gathered(from, from.left());
        self.record(SubmittedOperation::Send(to, bytes));
        Ok(())
    }

    fn send_by_stack(
        &mut self,
        _: Handle,
        from: &mut SendPieces<'_>,
        route: &DatagramRoute,
    ) -> Result<(), Error> {
        let bytes = Self::gathered(from, from.left());
        self.record(SubmittedOperation::Send(route.to, bytes));
        Ok(())
    }

    fn quote_errors(&mut self, _: Handle, on: bool) {
        self.record(SubmittedOperation::QuoteErrors(on));
    }

    fn packet_bytes_max(&mut self, _: IpAddr) -> Option<u16> {
        Some(1500)
    }
}
