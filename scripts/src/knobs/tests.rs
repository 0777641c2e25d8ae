//! Tests of the commands that published scripts contain.

use super::*;

fn pairs(text: &str) -> Vec<(String, String)> {
    command(text).knobs.into_iter().map(|knob| (knob.name, knob.value)).collect()
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[test]
fn sysctl_sets_knobs_with_and_without_switches_and_quotes() {
    let expected = vec![pair("net.ipv4.tcp_ecn", "1")];
    for text in [
        "sysctl -w net.ipv4.tcp_ecn=1",
        "sysctl -q net.ipv4.tcp_ecn=1",
        "\n sysctl net/ipv4/tcp_ecn=1 # on\n",
    ] {
        assert_eq!(pairs(text), expected, "{text}");
    }
    let expected = vec![pair("net.ipv4.tcp_rmem", "4096 50000 4194304")];
    assert_eq!(pairs("sysctl -q net.ipv4.tcp_rmem=\"4096 50000 4194304\""), expected);
    assert_eq!(
        pairs("../common/set_sysctls.py /proc/sys/net/ipv4/tcp_rmem=\"4096 50000 4194304\""),
        expected
    );
    assert_eq!(
        pairs("sysctl -q net.ipv4.tcp_rmem=\"4096 50000 $((4*1024*1024))\""),
        [pair("net.ipv4.tcp_rmem", "4096 50000 4194304")]
    );
    assert_eq!(pairs("echo 4096 50000 4194304 > /proc/sys/net/ipv4/tcp_rmem"), expected);
}

#[test]
fn freebsd_names_become_ours() {
    assert_eq!(pairs("sysctl -w net.inet.tcp.ecn.enable=2"), [pair("net.ipv4.tcp_ecn", "2")]);
    assert_eq!(
        pairs("sysctl net.inet.tcp.rfc1323=0"),
        [pair("net.ipv4.tcp_window_scaling", "0"), pair("net.ipv4.tcp_timestamps", "0")]
    );
    assert_eq!(
        pairs("sysctl net.inet.tcp.keepidle=7200000"),
        [pair("net.ipv4.tcp_keepalive_time", "7200")]
    );
    assert_eq!(
        pairs("sysctl net.inet.tcp.cc.algorithm=newreno"),
        [pair("net.ipv4.tcp_congestion_control", "reno")]
    );
}

#[test]
fn several_commands_in_one_text_are_all_followed() {
    let both = "./defaults.sh\nsysctl -q net.ipv4.tcp_sack=0 ; ip tcp_metrics flush all";
    let command = command(both);
    assert_eq!(command.knobs.len(), LINUX_DEFAULTS.len() + 1);
    assert_eq!(command.notes, ["ip tcp_metrics flush all"]);
}

#[test]
fn features_of_the_device_are_knobs() {
    let pairs = pairs("ethtool -K tun0 tso off gso off");
    assert_eq!(pairs, [pair("device.tso", "off"), pair("device.gso", "off")]);
}

#[test]
fn other_commands_are_noted_and_nothing_else() {
    let command = command("kldload cc_cubic && rm -rf /");
    assert_eq!(command.knobs, []);
    assert_eq!(command.notes, ["kldload cc_cubic", "rm -rf /"]);
}

#[test]
fn routes_say_what_their_connections_begin_with() {
    let route =
        "ip route change 192.0.2.1 via 192.168.0.2 dev tun0 initcwnd 4 rto_min 30ms mtu lock 640";
    let expected = [pair("stack.initial_window_segments", "4"), pair("stack.rto_min_ms", "30")];
    assert_eq!(pairs(route), expected);
    assert_eq!(pairs("ip ro add default dev tun0 advmss 600"), [pair("stack.mss", "600")]);
    assert_eq!(command("ip route flush cache").notes, ["ip route flush cache"]);
}
