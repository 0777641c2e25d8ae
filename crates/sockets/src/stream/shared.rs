//! Streams that other processes have, too, by the service that shares the connection.
//!
//! Read first: `fork_sharing.rs`; decision 0055.
//!
//! A connection that is being established is shared as an established one is, and each process
//! learns how the attempt ends. Of one that is over nothing is shared: a child has a copy of its
//! pending error.

use megapipe::{Handle, SharedConn};

use super::{Blank, Connecting, StreamSocket, SynData};
use crate::error::Error;
use crate::options::SocketOptions;
use crate::readiness::{ConnectProgress, Shut};
use crate::transport::StreamTransport;

/// A connection, as a child process inherits it.
#[derive(Debug, Clone)]
pub struct InheritedStream {
    connection: InheritedConnection,
    is_v6: bool,
    is_nonblocking: bool,
    connecting: Connecting,
    has_shut: Shut,
    options: SocketOptions,
}

/// What there is of the connection.
#[derive(Debug, Clone, Copy)]
enum InheritedConnection {
    /// The service has it. `None`: the token alone names it.
    Shared(Option<SharedConn>),
    /// There is none: it is over. `is_blank`: the socket can be connected.
    Over { error: Option<Error>, is_blank: bool },
}

impl InheritedStream {
    /// One of which nothing but its token is known.
    pub(crate) const fn passed(is_v6: bool, is_nonblocking: bool) -> Self {
        Self {
            connection: InheritedConnection::Shared(None),
            is_v6,
            is_nonblocking,
            connecting: Connecting::Done,
            has_shut: Shut { receive: false, send: false },
            options: SocketOptions::DEFAULT,
        }
    }

    /// The same, of which the attempt to connect has failed.
    pub(crate) fn not_connected(&self, error: Error) -> Self {
        Self { connecting: Connecting::Begun, ..self.ended(error) }
    }

    /// The same, whose connection has ended.
    pub(crate) fn ended(&self, error: Error) -> Self {
        let connection = InheritedConnection::Over { error: Some(error), is_blank: false };
        Self { connection, ..self.clone() }
    }

    pub(crate) const fn is_nonblocking(&self) -> bool {
        self.is_nonblocking
    }

    /// The connection's name at the service, for a child.
    pub(crate) const fn shared_name(&self) -> Option<SharedConn> {
        match self.connection {
            InheritedConnection::Shared(name) => name,
            InheritedConnection::Over { .. } => None,
        }
    }
}

impl StreamSocket {
    /// What another process can have of the socket. `None`: nothing.
    fn connection_to_share(&self) -> Option<InheritedConnection> {
        match self.progress {
            // Its first bytes are this process's to write.
            _ if self.syn_data == SynData::Awaited => None,
            ConnectProgress::Connecting | ConnectProgress::Connected => {
                Some(InheritedConnection::Shared(None))
            }
            ConnectProgress::Closed => {
                let is_blank = matches!(self.blank, Blank::Local);
                let is_kernels = matches!(self.blank, Blank::Kernel(_));
                // The port of an address that was bound is this process's.
                let is_own = is_kernels || is_blank && self.bound.is_some();
                (!is_own).then_some(InheritedConnection::Over { error: self.error, is_blank })
            }
        }
    }

    /// Whether a child inherits the socket, if the service shares its connection.
    pub(crate) fn may_be_inherited(&self) -> bool {
        self.connection_to_share().is_some()
    }

    /// Whether the service has the socket's connection, and another process can have it.
    pub(crate) fn has_connection_to_share(&self) -> bool {
        matches!(self.connection_to_share(), Some(InheritedConnection::Shared(_)))
    }

    /// The socket for a child process, by the name of its connection. `None`: the child cannot have
    /// it.
    pub(crate) fn for_child(
        &self,
        is_nonblocking: bool,
        name_of: impl FnOnce(Handle) -> Option<SharedConn>,
    ) -> Option<InheritedStream> {
        let connection = match self.connection_to_share()? {
            InheritedConnection::Shared(_) => {
                InheritedConnection::Shared(Some(name_of(self.handle)?))
            }
            over => over,
        };
        let Self { is_v6, connecting, shut: has_shut, options, .. } = *self;
        Some(InheritedStream { connection, is_v6, is_nonblocking, connecting, has_shut, options })
    }

    /// A connection that another process has accepted or begun. Nothing is read ahead before the
    /// program looks: the bytes are also those of the other owners.
    pub(crate) fn inherited<T: StreamTransport>(
        from: &InheritedStream,
        (handle, is_connecting): (Handle, bool),
        transport: &mut T,
    ) -> Self {
        let accepted = Self::accepted(handle, from.is_v6, from.options, transport);
        let mut stream = accepted.not_reading(from.has_shut);
        (stream.withheld, stream.shared) = (true, true);
        stream.connecting = from.connecting;
        if is_connecting {
            (stream.progress, stream.connecting) = (ConnectProgress::Connecting, Connecting::Begun);
        }
        stream
    }

    /// One without a connection.
    pub(crate) const fn inherited_over(from: &InheritedStream) -> Self {
        let (error, is_blank) = match from.connection {
            InheritedConnection::Over { error, is_blank } => (error, is_blank),
            InheritedConnection::Shared(_) => (None, false),
        };
        let mut stream = Self::new(if is_blank { Blank::Local } else { Blank::Used }, from.is_v6);
        (stream.error, stream.connecting, stream.options) = (error, from.connecting, from.options);
        if !is_blank {
            stream.shut = Shut::BOTH;
        }
        stream
    }

    /// Takes out what was read ahead, which the process that reads next gets.
    pub(crate) fn withhold(&mut self) -> Vec<u8> {
        let mut seen = Vec::with_capacity(self.unread());
        self.inbox.take(usize::MAX, &mut |bytes| seen.extend_from_slice(bytes));
        self.forget_end();
        (self.withheld, self.shared) = (true, true);
        seen
    }

    /// Reads ahead again, after a fork.
    #[cold]
    pub(crate) fn resume<T: StreamTransport>(&mut self, transport: &mut T) {
        if std::mem::take(&mut self.withheld) {
            transport.resume(self.handle);
            self.post_read(transport);
        }
    }
}
