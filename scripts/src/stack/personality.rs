//! What the stack is made with before a script says anything: as the system is that the script was
//! written for.
//!
//! Read first: `Dialect`; tcp(7) and tcp(4) for the values.
//!
//! Invariant: only settings that any program could choose; nothing here knows of scripts.

use std::time::Duration;

use megapipe_stack::TcpConfig;

use crate::dialect::Dialect;

/// FreeBSD's `net.inet.tcp.recvspace` and `sendspace`.
const FREEBSD_RECEIVE_BYTES: u32 = 65_536;
const FREEBSD_SEND_BYTES: u32 = 32_768;
/// Its `kern.ipc.maxsockbuf`: the window scale follows from it.
const FREEBSD_BUFFER_BYTES_MAX: u32 = 2 << 20;
/// Its TCP_MAXRXTSHIFT.
const FREEBSD_RETRIES: u8 = 12;
/// Its TCPTV_REXMTMAX.
const FREEBSD_RTO_MAX: Duration = Duration::from_secs(64);
/// Its `net.inet.tcp.rexmit_min` and `rexmit_slop` together.
const FREEBSD_RTO_MIN: Duration = Duration::from_millis(230);

/// TCP as a system has it by default.
pub(super) fn of(dialect: Dialect) -> TcpConfig {
    // Neither system looks for black holes unless it is enabled.
    let default = TcpConfig { black_hole_detection: false, ..TcpConfig::default() };
    match dialect {
        // The defaults are Linux's, but for a few in which it is bolder or more careful.
        Dialect::Linux => TcpConfig { delay_fin_ack: true, slow_start_limits: false, ..default },
        Dialect::FreeBsd => TcpConfig {
            receive_buffer: FREEBSD_RECEIVE_BYTES,
            receive_buffer_max: FREEBSD_BUFFER_BYTES_MAX,
            send_buffer: FREEBSD_SEND_BYTES,
            send_buffer_max: FREEBSD_BUFFER_BYTES_MAX,
            // Three duplicates are a loss, and nothing else but the timer.
            rack: false,
            tail_loss_probes: false,
            quick_acks: 0,
            rto_min: FREEBSD_RTO_MIN,
            rto_max: FREEBSD_RTO_MAX,
            syn_retries: FREEBSD_RETRIES,
            retries: FREEBSD_RETRIES,
            ..default
        },
    }
}
