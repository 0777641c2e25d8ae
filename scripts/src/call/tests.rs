//! Calls of scripts, resolved and judged.

use super::*;
use crate::dialect::Dialect;
use crate::parse::{Definitions, parse};
use crate::script::ScriptAction;
use crate::system::{CallOutput, Returned};

fn line(text: &str) -> CallLine {
    let text = format!("0 {text}");
    let script = parse(text.as_bytes(), &mut Definitions::default()).expect("a script");
    match script.events.into_iter().next().map(|event| event.action) {
        Some(ScriptAction::Call(line)) => line,
        other => panic!("{text} is {other:?}"),
    }
}

/// With 3 and 4 open, as 103 and 104.
fn prepared(text: &str) -> Result<Call, ScriptCallError> {
    let mut descriptors = ScriptDescriptors::default();
    descriptors.open(3, 103);
    descriptors.open(4, 104);
    let settings = ScriptSettings::new(&[], Dialect::Linux).expect("defaults");
    prepare(&line(text), &descriptors, &settings)
}

fn judged(text: &str, returned: &Returned) -> Option<String> {
    verdict(&line(text), returned, 4000).expect("a verdict")
}

#[test]
fn ellipses_stand_for_the_settings() {
    let socket = prepared("socket(..., SOCK_STREAM|SOCK_NONBLOCK, IPPROTO_TCP) = 3");
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
    assert_eq!(socket, Ok(Call::Socket { domain: libc::AF_INET, kind, protocol: 6 }));
    let address = "192.168.0.1:8080".parse().expect("an address");
    assert_eq!(prepared("bind(3, ..., ...) = 0"), Ok(Call::Bind { fd: 103, address }));
    let address = "192.0.2.1:8080".parse().ok();
    assert_eq!(prepared("connect(3, ..., ...) = 0"), Ok(Call::Connect { fd: 103, address }));
}

#[test]
fn addresses_can_be_written_out() {
    let text = "connect(3, {sa_family = AF_INET, sin_port = htons(80), \
                sin_addr = inet_addr(\"1.2.3.4\")}, ...) = 0";
    let address = "1.2.3.4:80".parse().ok();
    assert_eq!(prepared(text), Ok(Call::Connect { fd: 103, address }));
    let text = "connect(3, {sa_family = AF_UNSPEC}, ...) = 0";
    assert_eq!(prepared(text), Ok(Call::Connect { fd: 103, address: None }));
}

#[test]
fn option_values_have_the_width_of_the_call() {
    let value = |text: &str| match prepared(text) {
        Ok(Call::SetOption { value, .. }) => value,
        other => panic!("{text} is {other:?}"),
    };
    assert_eq!(value("setsockopt(3, SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0"), 1_i32.to_ne_bytes());
    assert_eq!(value("setsockopt(3, SOL_IP, IP_TOS, [4], 1) = 0"), [4]);
    let linger = value("setsockopt(3, SOL_SOCKET, SO_LINGER, {onoff=1, linger=2}, 8) = 0");
    assert_eq!(linger, [1_i32.to_ne_bytes(), 2_i32.to_ne_bytes()].concat());
    let name = value("setsockopt(3, SOL_TCP, TCP_CONGESTION, \"reno\", 4) = 0");
    assert_eq!(name, b"reno");
    let mask = value("setsockopt(3, SOL_TCP, TCP_NOTSENT_LOWAT, [0xffffffff], 4) = 0");
    assert_eq!(mask, [0xff; 4]);
}

#[test]
fn buffers_can_be_many_and_named() {
    let read = prepared("readv(4, [{..., 10}, {iov_base = ..., iov_len = 20}], 2) = 30");
    let form = Form::Vector;
    let sizes = vec![10, 20];
    let expected = Call::Receive { fd: 104, sizes, flags: 0, form, takes_control: false };
    assert_eq!(read, Ok(expected));
    let Ok(Call::Send { parts, to, .. }) =
        prepared("sendto(4, \"ab\", 3, MSG_FASTOPEN, ..., ...) = 3")
    else {
        panic!("no send")
    };
    assert_eq!((parts, to), (vec![b"ab\0".to_vec()], "192.0.2.1:8080".parse().ok()));
}

#[test]
fn unknown_names_are_reported() {
    let error = prepared("mmap(0, 1, 2) = 0").expect_err("no call");
    assert_eq!(error, ScriptCallError::UnknownCall("mmap".to_owned()));
    let error = prepared("setsockopt(3, IPPROTO_TCP, TCP_NO_SUCH_OPTION, [1], 4) = 0");
    assert_eq!(error, Err(ScriptCallError::UnknownName("TCP_NO_SUCH_OPTION".to_owned())));
    assert_eq!(prepared("close(9) = -1 EBADF"), Ok(Call::Close { fd: -1 }));
    let error = prepared("read(4, ..., 99999999999) = 0").expect_err("too much");
    assert_eq!(error, ScriptCallError::Unsupported("a call with more than 64 MiB"));
}

#[test]
fn results_and_errors_are_compared() {
    let connect = "connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)";
    assert_eq!(judged(connect, &Returned::failure(libc::EINPROGRESS)), None);
    let refused = judged(connect, &Returned::failure(libc::ECONNREFUSED)).expect("a difference");
    assert_eq!(refused, "connect returned -1 ECONNREFUSED, expected -1 EINPROGRESS");
    assert!(judged(connect, &Returned::success(0)).is_some());
    assert_eq!(judged("socket(..., SOCK_STREAM, 6) = 3", &Returned::success(17)), None);
    assert!(judged("read(4, ..., 10) = 10", &Returned::success(9)).is_some());
}

#[test]
fn outputs_are_compared_unless_they_may_be_any() {
    let option = |value: i32| Returned {
        output: CallOutput::Bytes(value.to_ne_bytes().to_vec()),
        ..Returned::success(0)
    };
    let text = "getsockopt(3, SOL_SOCKET, SO_ERROR, [ETIMEDOUT], [4]) = 0";
    assert_eq!(judged(text, &option(libc::ETIMEDOUT)), None);
    assert!(judged(text, &option(0)).is_some());
    assert_eq!(judged("getsockopt(3, SOL_SOCKET, SO_ERROR, ..., [4]) = 0", &option(9)), None);
    let text = "poll([{fd=4, events=POLLIN, revents=POLLIN}], 1, 0) = 1";
    let ready =
        |revents| Returned { output: CallOutput::Ready(vec![revents]), ..Returned::success(1) };
    assert_eq!(judged(text, &ready(libc::POLLIN)), None);
    assert!(judged(text, &ready(libc::POLLHUP)).is_some());
    let text = "epoll_wait(5, {events=EPOLLOUT, fd=4}, 1, 0) = 1";
    let event = |data| Returned {
        output: CallOutput::Events(vec![(libc::EPOLLOUT.cast_unsigned(), data)]),
        ..Returned::success(1)
    };
    assert_eq!(judged(text, &event(4)), None);
    assert!(judged(text, &event(5)).is_some());
}
