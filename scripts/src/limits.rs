//! Every bound of the interpreter, and how they relate.

use std::time::Duration;

/// The longest script that is read. The longest in the wild has about 60 KiB.
pub(crate) const SCRIPT_BYTES_MAX: usize = 1 << 20;

/// How deep expressions may nest, so that no script can exhaust the parser's stack.
pub(crate) const EXPRESSION_DEPTH_MAX: usize = 32;

/// The most elements of one list, structure or argument list.
pub(crate) const ELEMENTS_MAX: usize = 1024;

/// The bytes of TCP options that a header can hold (RFC 9293, section 3.1).
pub(crate) const TCP_OPTION_BYTES_MAX: usize = 40;

/// The largest IP packet.
pub(crate) const PACKET_BYTES_MAX: usize = 65_535;

/// The largest buffer of a script's call.
pub(crate) const CALL_BYTES_MAX: usize = 64 << 20;

/// The latest time in a script: a day.
pub(crate) const TIME_US_MAX: i64 = 86_400_000_000;

/// How long an outbound packet at time `*` is waited for. The longest back-off of a peer that is
/// still tested is 64 s.
pub(crate) const ANY_TIME_US: i64 = 130_000_000;

/// How much longer than its time and tolerance a packet is waited for, so that a late one is
/// reported as late and not as missing.
pub(crate) const LATE_US: i64 = 1_000_000;

/// How long a call that the script does not expect to block may take.
pub(crate) const CALL_US_MAX: i64 = 5_000_000;

/// How long the end of a blocking call is waited for after its latest time.
pub(crate) const BLOCKED_CALL_US: i64 = 2_000_000;

/// Descriptors and connections of the host under test.
pub(crate) const DESCRIPTORS: u32 = 4096;

/// Packets on their way to the stack under test, or from it; more are lost, and counted.
pub(crate) const PACKETS_MAX: usize = 4096;

/// Longest real time for a woken thread to return from its call.
pub(crate) const RETURN_TIME: Duration = Duration::from_secs(10);

/// Real time that a call that still blocks gets to end when the script is over.
pub(crate) const END_TIME: Duration = Duration::from_millis(100);

/// Interval of real time between two checks of a call in progress.
pub(crate) const LOOK_TIME: Duration = Duration::from_micros(50);

/// Looks at a shard's thread before the looker sleeps between two.
pub(crate) const LOOKS_WITHOUT_SLEEP: u32 = 200;

/// Rounds of a shard and its application for what happens at one time; each answers the other.
pub(crate) const ROUNDS_MAX: u32 = 64;

const _: () = assert!(LATE_US < ANY_TIME_US && CALL_US_MAX < ANY_TIME_US);
const _: () = assert!(PACKET_BYTES_MAX < CALL_BYTES_MAX);
