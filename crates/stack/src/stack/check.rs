//! Validation of configurations.
//!
//! Invariant: addresses and routes are checked where they are read; everything else is here.

use core::time::Duration;

use crate::config::{Config, TcpConfig};
use crate::error::ConfigError;
use crate::frame::Medium;
use crate::limits::{
    BUFFER_BYTES_MAX, CONNECTIONS_MAX, DATAGRAM_ENDPOINTS_MAX, DELAYED_ACK_MS_MAX, LISTENERS_MAX,
    MSS_MIN, MTU_MIN, WINDOW_SCALE_MAX,
};
use crate::wire::ethernet;

/// Checks every setting against its range, and those that hang together.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let refuse = |setting, why| Err(ConfigError { setting, why });
    if config.mtu < MTU_MIN {
        return refuse("mtu", "less than 576");
    }
    let link_bytes = match config.medium {
        Medium::Ip => 0,
        Medium::Ethernet(mac) if ethernet::is_group(mac) || mac == [0; 6] => {
            return refuse(
                "medium",
                "its hardware address is zeros (the loopback interface has none) or a group's",
            );
        }
        Medium::Ethernet(_) => {
            ethernet::HEADER_BYTES + config.vlan.map_or(0, |_| ethernet::TAG_BYTES)
        }
    };
    if (config.tx_frame_bytes as usize) < link_bytes + usize::from(config.mtu) {
        return refuse("tx_frame_bytes", "less than a packet of mtu bytes in its frame");
    }
    if config.tso && !config.tx_checksum {
        return refuse("tso", "a link that cuts frames fills in their checksums (tx_checksum)");
    }
    match config.vlan {
        Some(_) if config.medium == Medium::Ip => return refuse("vlan", "the medium has no tags"),
        Some(vlan) if !(1..=4094).contains(&vlan) => return refuse("vlan", "not 1 to 4094"),
        _ => {}
    }
    if !(1..=CONNECTIONS_MAX).contains(&config.connections) {
        return refuse("connections", "none, or more than 4,194,304");
    }
    if config.time_waits > CONNECTIONS_MAX {
        return refuse("time_waits", "more than 4,194,304");
    }
    if config.listeners > LISTENERS_MAX {
        return refuse("listeners", "more than 4,096");
    }
    if config.datagram_endpoints > DATAGRAM_ENDPOINTS_MAX {
        return refuse("datagram_endpoints", "more than 4,096");
    }
    let (first, last) = config.ephemeral_ports;
    if first == 0 || first > last {
        return refuse("ephemeral_ports", "port 0, or the first after the last");
    }
    check_tcp(&config.tcp)
}

fn check_tcp(tcp: &TcpConfig) -> Result<(), ConfigError> {
    let refuse = |setting, why| Err(ConfigError { setting, why });
    let buffers = [
        ("tcp.receive_buffer", tcp.receive_buffer, tcp.receive_buffer_max),
        ("tcp.send_buffer", tcp.send_buffer, tcp.send_buffer_max),
    ];
    for (setting, bytes, max) in buffers {
        if bytes == 0 || bytes > max || max > BUFFER_BYTES_MAX {
            return refuse(setting, "none, more than its maximum, or that is more than 1 GiB");
        }
    }
    if tcp.unowned_receive_buffer == 0 {
        return refuse("tcp.unowned_receive_buffer", "none");
    }
    if tcp.window_scale.is_some_and(|shift| shift > WINDOW_SCALE_MAX) {
        return refuse("tcp.window_scale", "more than 14");
    }
    if tcp.mss.is_some_and(|mss| mss < MSS_MIN) {
        return refuse("tcp.mss", "less than 88");
    }
    if tcp.initial_window == 0 {
        return refuse("tcp.initial_window", "none");
    }
    if tcp.rto_min.is_zero() || tcp.rto_min > tcp.rto_initial || tcp.rto_initial > tcp.rto_max {
        return refuse("tcp.rto_initial", "not between rto_min, which is not zero, and rto_max");
    }
    if tcp.delayed_ack > Duration::from_millis(DELAYED_ACK_MS_MAX) {
        return refuse("tcp.delayed_ack", "more than 500 ms");
    }
    if tcp.keepalive_idle.is_some() && tcp.keepalive_interval.is_zero() {
        return refuse("tcp.keepalive_interval", "zero");
    }
    if tcp.user_timeout.is_some_and(|timeout| timeout.is_zero()) {
        return refuse("tcp.user_timeout", "zero");
    }
    if tcp.awaited_listeners.len() > LISTENERS_MAX as usize {
        return refuse("tcp.awaited_listeners", "more than 4,096");
    }
    Ok(())
}
