//! BSD calls on our stack, through scripts; the knobs, through what they change.

use super::knobs::set_knob;
use super::*;
use crate::dialect::Dialect;
use crate::report::ScriptVerdict;
use crate::{Invocation, On, prepare};

fn outcome(text: &str) -> ScriptOutcome {
    let prepared = prepare(text.as_bytes(), &Invocation::default()).expect("a script");
    prepared.run(On::Stack)
}

fn passes(text: &str) {
    let outcome = outcome(text);
    assert_eq!(outcome.verdict, ScriptVerdict::Passed, "{text}");
}

/// A connection that a client opened, 100 ms long.
const OPENED: &str = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 bind(3, ..., ...) = 0\n\
     +0 listen(3, 1) = 0\n+0 < S 0:0(0) win 32792 <mss 1000>\n+0 > S. 0:0(0) ack 1 <...>\n\
     +.1 < . 1:1(0) ack 1 win 32792\n+0 accept(3, ..., ...) = 4\n";

#[test]
fn wrong_descriptors_and_states_have_the_errors_of_the_man_pages() {
    passes(
        "0 listen(-1, 1) = -1 EBADF\n+0 socket(..., SOCK_STREAM, 0) = 3\n\
         +0 accept(3, ..., ...) = -1 EINVAL\n+0 read(3, ..., 1) = -1 ENOTCONN\n\
         +0 write(3, ..., 1) = -1 EPIPE\n+0 shutdown(3, SHUT_WR) = -1 ENOTCONN\n\
         +0 bind(3, ..., ...) = 0\n+0 bind(3, ..., ...) = -1 EINVAL\n+0 listen(3, 1) = 0\n\
         +0 socket(..., SOCK_STREAM, 0) = 4\n+0 bind(4, ..., ...) = -1 EADDRINUSE\n\
         +0 close(4) = 0\n+0 close(3) = 0\n",
    );
}

#[test]
fn reads_wait_for_bytes_and_end_with_the_peer() {
    let text = "+0...0.1 read(4, ..., 100) = 7\n+.1 < P. 1:8(7) ack 1 win 9\n* > . 1:1(0) ack 8\n\
                +0 fcntl(4, F_SETFL, O_RDWR|O_NONBLOCK) = 0\n+0 read(4, ..., 9) = -1 EAGAIN\n\
                +0 < F. 8:8(0) ack 1 win 9\n* > . 1:1(0) ack 9\n+0 read(4, ..., 9) = 0\n\
                +0 read(4, ..., 9) = 0\n";
    passes(&format!("{OPENED}{text}"));
}

#[test]
fn a_reset_is_an_error_once_and_then_the_end() {
    let text = "+0 < R. 1:1(0) ack 1 win 0\n+0 read(4, ..., 9) = -1 ECONNRESET\n\
                +0 read(4, ..., 9) = 0\n+0 write(4, ..., 9) = -1 EPIPE\n";
    passes(&format!("{OPENED}{text}"));
}

#[test]
fn part_of_what_came_can_be_read_and_looked_at() {
    let text = "+0 < P. 1:8(7) ack 1 win 9\n+0 ioctl(4, SIOCINQ, [7]) = 0\n\
                +0 recv(4, ..., 3, MSG_PEEK) = 3\n+0 read(4, ..., 3) = 3\n\
                +0 ioctl(4, FIONREAD, [4]) = 0\n+0 read(4, ..., 30) = 4\n";
    passes(&format!("{OPENED}{text}"));
}

#[test]
fn poll_and_epoll_see_what_is_ready() {
    let text = "+0 poll([{fd=4, events=POLLIN|POLLOUT, revents=POLLOUT}], 1, 0) = 1\n\
                +0 epoll_create(1) = 5\n\
                +0 epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLIN|EPOLLET, fd=4}) = 0\n\
                +0 epoll_wait(5, {}, 1, 0) = 0\n\
                +0...0.05 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 1000) = 1\n\
                +.05 < P. 1:8(7) ack 1 win 9\n+0 epoll_wait(5, {}, 1, 0) = 0\n\
                +0...0.02 poll([{fd=4, events=POLLPRI}], 1, 20) = 0\n\
                +.02 < F. 8:8(0) ack 1 win 9\n\
                +0 poll([{fd=4, events=POLLRDHUP, revents=POLLRDHUP}], 1, 0) = 1\n";
    passes(&format!("{OPENED}{text}"));
}

#[test]
fn refused_connect_reports_econnrefused() {
    for (blocks, result) in [("...0.1", "-1 ECONNREFUSED"), ("", "-1 EINPROGRESS")] {
        let kind = if blocks.is_empty() { "SOCK_STREAM|SOCK_NONBLOCK" } else { "SOCK_STREAM" };
        let end = if blocks.is_empty() {
            "+0 getsockopt(3, SOL_SOCKET, SO_ERROR, [ECONNREFUSED], [4]) = 0\n"
        } else {
            ""
        };
        passes(&format!(
            "0 socket(..., {kind}, IPPROTO_TCP) = 3\n+0{blocks} connect(3, ..., ...) = {result}\n\
             +0 > S 0:0(0) <...>\n+.1 < R. 0:0(0) ack 1 win 0\n{end}"
        ));
    }
}

#[test]
fn a_knob_changes_what_the_stack_does_or_is_reported() {
    passes(&format!(
        "`sysctl -q net.ipv4.tcp_timestamps=0 net.ipv4.tcp_sack=0 net.ipv4.tcp_window_scaling=0`\n\
         {}",
        "0 socket(..., SOCK_STREAM|SOCK_NONBLOCK, 0) = 3\n\
         +0 connect(3, ..., ...) = -1 EINPROGRESS\n+0 > S 0:0(0) <mss 1460>\n"
    ));
    let ahead = outcome("`sysctl -q net.ipv4.tcp_mystery=3`\n0 socket(..., SOCK_STREAM, 0) = 3\n");
    assert_eq!(ahead.notes, ["no such knob here: net.ipv4.tcp_mystery=3"]);
    let foreign = outcome("`sysctl -q net.ipv4.tcp_ecn=3`\n0 socket(..., SOCK_STREAM, 0) = 3\n");
    let what = match foreign.verdict {
        ScriptVerdict::Unsupported { what, .. } => what,
        other => panic!("{other:?}"),
    };
    assert!(what.ends_with("net.ipv4.tcp_ecn=3: accurate ECN (RFC 9768)"), "{what}");
}

#[test]
fn a_null_pointer_is_nowhere() {
    passes(&format!(
        "{OPENED}+0 write(4, NULL, 10) = -1 EFAULT\n+0 read(4, NULL, 10) = -1 EFAULT\n\
         +0 recv(9, NULL, 10, 0) = -1 EBADF\n"
    ));
}

#[test]
fn every_knob_that_scripts_turn_is_known() {
    let mut config = Knobs { tcp: personality::of(Dialect::Linux), mtu: 1500 };
    let text = "tcp_ecn=1,tcp_sack=0,tcp_timestamps=0,tcp_window_scaling=0,tcp_rmem=1 2 3,\
                tcp_wmem=1 2 3,tcp_syncookies=2,tcp_congestion_control=reno,tcp_rto_min_us=5000,\
                initial_window_segments=4,window_scale=3,delayed_ack_ms=7,msl_ms=100,paws=0,\
                rto_initial_ms=50,rto_min_ms=60,net.inet.tcp.recvspace=9000,mss=500,\
                net.inet.tcp.msl=30,net.inet.tcp.delacktime=8,path_mtu_discovery=0";
    for knob in from_text(text) {
        assert_eq!(set_knob(&mut config, &knob), KnobResult::Done, "{knob:?}");
    }
    let tcp = &config.tcp;
    assert!(tcp.ecn && !tcp.sack && !tcp.timestamps && !tcp.paws && !tcp.path_mtu_discovery);
    assert_eq!((tcp.receive_buffer, tcp.initial_window), (9000, 4));
    assert_eq!((tcp.window_scale, tcp.mss), (Some(3), Some(500)));
    assert_eq!(tcp.msl.as_millis(), 30);
    assert_eq!(tcp.delayed_ack.as_millis(), 8);
    for wrong in ["tcp_ecn=9", "tcp_sack=maybe", "tcp_rmem=1 2", "nothing=1"] {
        for knob in from_text(wrong) {
            assert_eq!(set_knob(&mut config, &knob), KnobResult::Unknown, "{wrong}");
        }
    }
}

fn refusal(text: &str) -> String {
    match outcome(text).verdict {
        ScriptVerdict::Unsupported { line, what } => format!("{line}: {what}"),
        other => panic!("{other:?}: {text}"),
    }
}

#[test]
fn fast_open_by_the_experimental_option_is_refused_before_anything_runs() {
    let name = "not supported on this system: TCP Fast Open by the experimental option";
    let socket = "0 socket(..., SOCK_STREAM, 0) = 3\n+0 bind(3, ..., ...) = 0\n";
    let packet = "+0 < S 0:0(0) win 9 <mss 1000,FOEXP,nop,nop>\n";
    assert_eq!(refusal(&format!("{socket}+0 listen(3, 1) = 0\n{packet}")), format!("4: {name}"));
}

#[test]
fn fast_open_cookies_are_those_of_linux_s_own_runner() {
    let script = |key: &str, cookie: &str| {
        format!(
            "`sysctl -q net.ipv4.tcp_fastopen=3 net.ipv4.tcp_fastopen_key={key}`\n\
             0 socket(..., SOCK_STREAM, 0) = 3\n+0 bind(3, ..., ...) = 0\n\
             +0 setsockopt(3, SOL_TCP, TCP_FASTOPEN, [1], 4) = 0\n+0 listen(3, 1) = 0\n\
             +0 < S 0:0(0) win 9000 <mss 1000,FO,nop,nop>\n\
             +0 > S. 0:0(0) ack 1 <mss 1460,FO {cookie},nop,nop>\n"
        )
    };
    let key = "a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4";
    let zero = "00000000-00000000-00000000-00000000";
    passes(&script(key, "TFO_COOKIE"));
    passes(&script(zero, "TFO_COOKIE_ZERO"));
    let addresses =
        "--ip_version=ipv6\n--local_ip=fd3d:a0b:17d6::1\n--remote_ip=fd3d:fa7b:d17d::1\n";
    let over_ipv6 = |text: String| format!("{addresses}{}", text.replace("1460", "1440"));
    passes(&over_ipv6(script(key, "TFO_COOKIE")));
    passes(&over_ipv6(script(zero, "TFO_COOKIE_ZERO")));
}

#[test]
fn an_option_that_the_sockets_do_not_have_is_refused_by_name() {
    let text =
        "0 socket(..., SOCK_STREAM, 0) = 3\n+0 setsockopt(3, SOL_TCP, TCP_MD5SIG, [1], 4) = 0\n";
    assert_eq!(refusal(text), "2: not supported on this system: TCP_MD5SIG");
    passes(
        &text
            .replace("= 0", "= -1 ENOPROTOOPT")
            .replace("(..., SOCK_STREAM, 0) = -1 ENOPROTOOPT", "(..., SOCK_STREAM, 0) = 3"),
    );
}

#[test]
fn a_route_s_mss_is_what_a_listener_offers() {
    passes(
        "`ip route add 192.0.2.0/24 dev tun0 advmss 900`\n0 socket(..., SOCK_STREAM, 0) = 3\n\
         +0 bind(3, ..., ...) = 0\n+0 listen(3, 1) = 0\n+0 < S 0:0(0) win 32792 <mss 1300>\n\
         +0 > S. 0:0(0) ack 1 <mss 900>\n+.1 < . 1:1(0) ack 1 win 32792\n\
         +0 accept(3, ..., ...) = 4\n+0 write(4, ..., 1000) = 1000\n+0 > P. 1:1001(1000) ack 1\n",
    );
}

#[test]
fn a_call_that_still_blocks_at_the_end_is_named() {
    let text = format!("{OPENED}+0...0.1 read(4, ..., 100) = 7\n");
    match outcome(&text).verdict {
        ScriptVerdict::Failed(failure) => assert_eq!(failure.what, "read still blocks"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn branches_of_other_systems_are_not_run() {
    passes(
        "#ifdef STANDARD\n0 listen(99, 1) = 0\n#else\n0 listen(99, 1) = -1 EBADF\n#endif\n\
         #ifdef FreeBSD\n+0 listen(98, 1) = 0\n#endif\n\
         #ifdef Linux\n+0 listen(97, 1) = -1 EBADF\n#endif\n",
    );
}
