//! Every ceiling of this crate, by name, and how they hang together.

use std::time::Duration;

/// Most frames that a turn takes from the link: its share, so that applications get theirs
/// [ETA 4.2].
pub const RX_FRAMES_PER_TURN: usize = 64;
/// Most frames that a turn hands to the link.
pub const TX_FRAMES_PER_TURN: usize = 256;
/// How long a server spins after the last work before it sleeps, unless told otherwise.
pub const SPIN_DEFAULT: Duration = Duration::from_micros(50);
/// Longest time to spin that may be asked for.
pub const SPIN_MAX: Duration = Duration::from_secs(1);
/// The ports that connections and listeners get when they ask for none, first and last: Linux's.
pub const EPHEMERAL_PORTS: (u16, u16) = (32_768, 60_999);
/// The ports that connections leave from where the host's address is shared, first and last: above
/// those that Linux picks from. Each is reserved by a socket of the kernel's.
pub const SHARED_CLIENT_PORTS: (u16, u16) = (61_000, 61_511);
/// How often a busy server asks what has changed in a host's network.
pub const HOST_LOOK_PERIOD: Duration = Duration::from_millis(1);
/// How often it is asked whether the connections that moved are still there.
pub const MOVED_LOOK_PERIOD: Duration = Duration::from_millis(250);
/// Most of them that are asked for at once.
pub const MOVED_LOOKS: usize = 64;
/// Most routes that are kept of a host's interface.
pub const HOST_ROUTES_MAX: usize = 64;
/// Most acceptors of one listener.
pub const ACCEPTORS_MAX: usize = 1 << 10;

const _: () = assert!(RX_FRAMES_PER_TURN <= TX_FRAMES_PER_TURN, "each frame may ask for one");
const _: () = assert!(SHARED_CLIENT_PORTS.0 > EPHEMERAL_PORTS.1, "the kernel picks none of them");
