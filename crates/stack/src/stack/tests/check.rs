//! Invalid settings are rejected with their names.

use super::*;
use crate::config::AwaitedListener;

#[track_caller]
fn refused(setting: &str, change: impl FnOnce(&mut Config)) {
    let mut config = config();
    change(&mut config);
    let error = Stack::new(config, Instant::ZERO).err().map(|error| error.setting);
    assert_eq!(error, Some(setting));
}

#[test]
fn wrong_settings_are_named() {
    refused("mtu", |config| config.mtu = 575);
    refused("medium", |config| config.medium = Medium::Ethernet([1, 0, 0, 0, 0, 0]));
    refused("medium", |config| config.medium = Medium::Ethernet([0; 6]));
    refused("tx_frame_bytes", |config| config.tx_frame_bytes = 1513);
    refused("tx_frame_bytes", |config| {
        config.vlan = Some(9);
        config.tx_frame_bytes = 1517;
    });
    refused("tso", |config| config.tso = true);
    refused("vlan", |config| config.vlan = Some(0));
    refused("vlan", |config| config.vlan = Some(4095));
    refused("vlan", |config| {
        config.medium = Medium::Ip;
        config.vlan = Some(9);
    });
    refused("connections", |config| config.connections = 0);
    refused("connections", |config| config.connections = u32::MAX);
    refused("time_waits", |config| config.time_waits = u32::MAX);
    refused("listeners", |config| config.listeners = 5000);
    refused("tcp.awaited_listeners", |config| {
        let (local, has_successor) = ("10.0.0.1:80".parse().unwrap(), true);
        config.tcp.awaited_listeners = vec![AwaitedListener { local, has_successor }; 5000];
    });
    refused("datagram_endpoints", |config| config.datagram_endpoints = 5000);
    refused("ephemeral_ports", |config| config.ephemeral_ports = (0, 9));
    refused("ephemeral_ports", |config| config.ephemeral_ports = (9, 8));
    refused("addresses", |config| config.addresses[0].1 = 33);
    refused("routes", |config| config.routes[0].prefix_bits = 33);
}

#[test]
fn wrong_settings_of_tcp_are_named() {
    refused("tcp.receive_buffer", |config| config.tcp.receive_buffer = 0);
    refused("tcp.receive_buffer", |config| config.tcp.receive_buffer_max = 1);
    refused("tcp.send_buffer", |config| config.tcp.send_buffer_max = u32::MAX);
    refused("tcp.window_scale", |config| config.tcp.window_scale = Some(15));
    refused("tcp.mss", |config| config.tcp.mss = Some(87));
    refused("tcp.initial_window", |config| config.tcp.initial_window = 0);
    refused("tcp.rto_initial", |config| config.tcp.rto_min = Duration::ZERO);
    refused("tcp.rto_initial", |config| config.tcp.rto_max = Duration::from_millis(500));
    refused("tcp.delayed_ack", |config| config.tcp.delayed_ack = Duration::from_millis(501));
    refused("tcp.keepalive_interval", |config| {
        config.tcp.keepalive_idle = Some(Duration::from_secs(1));
        config.tcp.keepalive_interval = Duration::ZERO;
    });
    refused("tcp.user_timeout", |config| config.tcp.user_timeout = Some(Duration::ZERO));
}

#[test]
fn time_that_runs_backwards_stands_still() {
    let mut host = Host::new();
    let id = host.bind(53);
    host.send(id, peer(), b"x").unwrap();
    assert_eq!(host.frames().len(), 1, "a question");
    let next = host.stack.poll_timeout();
    let end = host.now;
    host.now = Instant::ZERO;
    host.stack.on_timeout(host.now, &mut host.memory);
    assert_eq!(host.frames().len(), 0);
    assert_eq!(host.stack.poll_timeout(), next);
    host.now = end + Duration::from_secs(1);
    host.stack.on_timeout(host.now, &mut host.memory);
    assert_eq!(host.frames().len(), 1);
}
