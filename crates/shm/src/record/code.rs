//! Codes in records: why something was refused, ended or not delivered.

use super::RecordFault;

/// An enum whose values have numbers that never change.
macro_rules! codes {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum $name { $($(#[$doc])* $variant = $code,)* }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            pub(super) fn from_code(code: u32) -> Result<Self, RecordFault> {
                match code {
                    $($code => Ok(Self::$variant),)*
                    _ => Err(RecordFault::Code { code }),
                }
            }
        }
    };
}

codes! {
    /// Why an op was not done.
    Refusal {
        /// The id is stale or never was.
        Unknown = 1,
        /// Not an address of this host.
        BadLocalAddress = 2,
        /// Not an address to connect or send to.
        BadRemoteAddress = 3,
        /// Port 0.
        BadPort = 4,
        /// The address and port are in use.
        InUse = 5,
        /// No route leads there.
        NoRoute = 6,
        /// Every usable port is in use.
        NoPort = 7,
        /// A table of the server is full.
        TooMany = 8,
        /// The connection is not established.
        NotConnected = 9,
        /// The direction was closed before.
        Closing = 10,
        /// The chunk is not within a buffer of the application's.
        BadChunk = 11,
        /// The send queue is full.
        QueueFull = 12,
        /// The datagram does not fit into the largest packet.
        TooLong = 13,
        /// The server's policy does not let this application.
        NotPermitted = 14,
        /// The host that the address is shared with keeps the port.
        Host = 15,
        /// Another shard has the address to itself.
        AddressTaken = 16,
        /// Another listener takes one of the cores, which the detail names.
        CoreTaken = 17,
        /// A mask names no core.
        NoCore = 18,
        /// The table of bound addresses is full.
        BindingsFull = 19,
        /// The address is not bound.
        NotBound = 20,
        /// The server's policy does not give the port, as the text says.
        PortDenied = 21,
        /// A quota of the server's policy is reached, which the text names.
        QuotaReached = 22,
    }
}

codes! {
    /// Why a connection ended.
    CloseCode {
        /// Both sides closed.
        Finished = 1,
        /// The peer reset it.
        ResetByPeer = 2,
        /// The peer refused it.
        Refused = 3,
        /// It was reset here.
        Aborted = 4,
        /// The peer stopped answering.
        TimedOut = 5,
        /// Keepalives got no answer.
        KeepaliveTimedOut = 6,
        /// The network says that the peer is unreachable.
        Unreachable = 7,
        /// No host on the link answers for the next hop.
        HostUnreachable = 8,
    }
}

codes! {
    /// Why a datagram did not get there.
    UndeliveredCode {
        /// There is no route to its network.
        NetworkUnreachable = 1,
        /// Its host does not answer.
        HostUnreachable = 2,
        /// Its host does not speak UDP.
        ProtocolUnreachable = 3,
        /// No socket has the port.
        PortUnreachable = 4,
        /// An administrator forbids it.
        Prohibited = 5,
        /// It was larger than the path takes.
        TooLong = 6,
        /// It ran out of hops, or its fragments did not all arrive.
        TimeExceeded = 7,
        /// A host on the path did not understand its header.
        ParameterProblem = 8,
    }
}
