//! Options of the kernel's sockets that are refused although the kernel has them.
//!
//! Read first: socket(7), tcp(7).

/// Options that ask for control data with a stream's bytes, or for word of when they are done with,
/// which a channel does not carry.
pub(crate) const fn asks_for_stream_control(level: i32, name: i32) -> bool {
    /// `SO_TIMESTAMP_NEW` and its two kin.
    const NEW_STAMPS: (i32, i32) = (63, 65);
    match level {
        libc::SOL_SOCKET => {
            matches!(
                name,
                libc::SO_TIMESTAMP
                    | libc::SO_TIMESTAMPNS
                    | libc::SO_TIMESTAMPING
                    | libc::SO_ZEROCOPY
            ) || (name >= NEW_STAMPS.0 && name <= NEW_STAMPS.1)
        }
        _ => false,
    }
}

/// Options whose values hold pointers are not passed to the kernel: a caller of this
/// crate gives bytes, not memory.
pub(crate) const fn holds_pointers(level: i32, name: i32) -> bool {
    const TCP_ZEROCOPY_RECEIVE: i32 = 35;
    match level {
        libc::SOL_SOCKET => matches!(name, libc::SO_ATTACH_FILTER | libc::SO_ATTACH_REUSEPORT_CBPF),
        libc::IPPROTO_TCP => name == TCP_ZEROCOPY_RECEIVE,
        // Netfilter's tables: of IPv4, of ARP, of bridges; of IPv6 among other options.
        libc::IPPROTO_IP => matches!(name, 64..=67 | 96..=99 | 128..=133),
        libc::IPPROTO_IPV6 => matches!(name, 64 | 65 | 68 | 69),
        _ => false,
    }
}
