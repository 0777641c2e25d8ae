//! Kinds of handles: what a descriptor, or an object of our own stack, can be.

/// What a handle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    UnixStream,
    Udp,
    UnixDatagram,
    UnixSeqpacket,
    Listener,
    Pipe,
    CharDevice,
    /// eventfd, timerfd, signalfd and whatever else the kernel makes without a file type.
    Anonymous,
    File,
    Timer,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP connection",
            Self::UnixStream => "UNIX stream connection",
            Self::Udp => "UDP socket",
            Self::UnixDatagram => "UNIX datagram socket",
            Self::UnixSeqpacket => "UNIX seqpacket socket",
            Self::Listener => "listening socket",
            Self::Pipe => "pipe",
            Self::CharDevice => "character device",
            Self::Anonymous => "event descriptor",
            Self::File => "disk file",
            Self::Timer => "timer",
        }
    }

    /// A connected byte stream: received ahead, sent in order.
    pub(crate) const fn is_stream(self) -> bool {
        matches!(self, Self::Tcp | Self::UnixStream)
    }

    /// Message boundaries are kept.
    pub(crate) const fn is_message(self) -> bool {
        matches!(self, Self::Udp | Self::UnixDatagram | Self::UnixSeqpacket)
    }

    /// A socket with a connection or messages (not a listener).
    pub(crate) const fn is_socket(self) -> bool {
        self.is_stream() || self.is_message()
    }

    /// Bytes go in and out by `read(2)` and `write(2)`, one request at a time.
    pub(crate) const fn is_plain(self) -> bool {
        matches!(self, Self::Pipe | Self::CharDevice | Self::Anonymous | Self::File)
    }
}
