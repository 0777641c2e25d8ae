//! What a channel counted since it was made. Plain numbers: one thread owns them.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals since the channel was made.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Each counter's name and value, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// Operations taken from the program.
    operations,
    /// Completions handed to the program.
    completions,
    /// System calls that submitted, waited or polled.
    system_calls,
    /// Requests handed to the kernel.
    kernel_requests,
    /// Answers taken from the kernel.
    kernel_answers,
    /// Connections accepted.
    accepted,
    /// Reads answered from bytes that had arrived before the read.
    reads_at_once,
    /// Times a receive found no free buffer.
    buffers_exhausted,
    /// Unread bytes moved out of pool buffers to make them free.
    spilled_bytes,
    /// Times receiving paused because a handle had too much unread.
    receive_paused,
    /// Times the completion queue overflowed into the kernel's list.
    completion_overflows,
    /// Times accepting stopped for want of descriptors.
    accept_exhausted,
    /// Connections handed to or taken from a sibling channel of the same listener.
    connections_passed,
    /// Writes refused because their handle had too many bytes unsent
    /// ([`crate::Config::unsent_bytes_max`]).
    writes_refused,
    /// Connections closed because no accept could take them.
    connections_dropped,
    /// Datagrams of our own stack that came while too many waited to be read.
    datagrams_dropped,
    /// Events that a server on a thread of its own has told.
    server_events,
    /// Times that they woke the channel: what `server_events` is divided by.
    server_wakeups,
    /// Answers of the kernel that named no live request (should stay 0).
    stray_answers,
}
