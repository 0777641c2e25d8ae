//! Readiness: from what is known of a socket to the bits of poll(2) and epoll(7).
//!
//! Read first: tcp(7), poll(2); for what each bit means on a TCP socket, RFC 9293 §3.3.2 beside it.
//!
//! Pure: facts go in, bits come out. Which watchers are notified, and how often, is decided by
//! `epoll_set.rs` and `table/watching.rs`.
//!
//! Invariant: Linux and this function give the same bits for the same history; the tests that
//! compare them are in `tests/`.

use crate::flags::Events;

/// How far a stream socket is, as far as readiness depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectProgress {
    /// Not begun, or over (CLOSED; TIME-WAIT and what comes before it count as shut down instead).
    Closed,
    /// Connecting (SYN-SENT).
    Connecting,
    /// Connected, also where one direction or both are shut down.
    Connected,
}

/// Which directions have ended, for whatever reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shut {
    /// The peer sends no more, or the program reads no more.
    pub(crate) receive: bool,
    /// We send no more.
    pub(crate) send: bool,
}

impl Shut {
    pub(crate) const BOTH: Self = Self { receive: true, send: true };
}

/// What readiness of a stream socket depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamStatus {
    pub(crate) progress: ConnectProgress,
    pub(crate) shut: Shut,
    /// As many bytes as the low-water mark asks for can be read.
    pub(crate) has_data: bool,
    /// More can be written.
    pub(crate) has_room: bool,
    /// The next byte to be read is urgent, or an urgent byte was not taken yet.
    pub(crate) is_urgent: bool,
    /// An error is pending.
    pub(crate) has_error: bool,
}

/// The bits of a stream socket that is no listener.
#[inline]
pub(crate) const fn of_stream(status: StreamStatus) -> Events {
    let StreamStatus { progress, shut, has_data, has_room, is_urgent, has_error } = status;
    let mut events = Events::empty();
    // What nearly all are, nearly always.
    if matches!(progress, ConnectProgress::Connected) && !(shut.receive || shut.send || has_error) {
        if has_data {
            events = events.union(Events::READABLE);
        }
        if has_room {
            events = events.union(Events::WRITABLE);
        }
        return if is_urgent { events.union(Events::PRI) } else { events };
    }
    if (shut.receive && shut.send) || matches!(progress, ConnectProgress::Closed) {
        events = events.union(Events::HUP);
    }
    if shut.receive {
        events = events.union(Events::READABLE).union(Events::RDHUP);
    }
    if !matches!(progress, ConnectProgress::Connecting) {
        if has_data {
            events = events.union(Events::READABLE);
        }
        // A closed direction is "writable": the write answers at once.
        if has_room || shut.send {
            events = events.union(Events::WRITABLE);
        }
        if is_urgent {
            events = events.union(Events::PRI);
        }
    }
    if has_error {
        events = events.union(Events::ERR);
    }
    events
}

/// The bits of a listening socket.
pub(crate) const fn of_listener(has_connection: bool) -> Events {
    if has_connection { Events::READABLE } else { Events::empty() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: StreamStatus = StreamStatus {
        progress: ConnectProgress::Closed,
        shut: Shut { receive: false, send: false },
        has_data: false,
        has_room: true,
        is_urgent: false,
        has_error: false,
    };
    const OPEN: StreamStatus = StreamStatus { progress: ConnectProgress::Connected, ..FRESH };
    const RECEIVE_SHUT: Shut = Shut { receive: true, send: false };
    const SEND_SHUT: Shut = Shut { receive: false, send: true };

    #[test]
    fn each_situation_of_a_stream_has_linuxs_bits() {
        let ended = Events::READABLE | Events::RDHUP;
        let over = ended | Events::WRITABLE | Events::HUP;
        let table = [
            ("fresh", FRESH, Events::HUP | Events::WRITABLE),
            (
                "connecting",
                StreamStatus { progress: ConnectProgress::Connecting, ..FRESH },
                Events::empty(),
            ),
            (
                "connecting, receive direction shut",
                StreamStatus { progress: ConnectProgress::Connecting, shut: RECEIVE_SHUT, ..FRESH },
                ended,
            ),
            ("open", OPEN, Events::WRITABLE),
            ("open and full", StreamStatus { has_room: false, ..OPEN }, Events::empty()),
            ("data", StreamStatus { has_data: true, ..OPEN }, Events::READABLE | Events::WRITABLE),
            (
                "urgent data",
                StreamStatus { is_urgent: true, ..OPEN },
                Events::PRI | Events::WRITABLE,
            ),
            (
                "the peer closed",
                StreamStatus { shut: RECEIVE_SHUT, ..OPEN },
                ended | Events::WRITABLE,
            ),
            (
                "the peer closed, and we are full",
                StreamStatus { shut: RECEIVE_SHUT, has_room: false, ..OPEN },
                ended,
            ),
            (
                "we closed",
                StreamStatus { shut: SEND_SHUT, has_room: false, ..OPEN },
                Events::WRITABLE,
            ),
            ("both closed", StreamStatus { shut: Shut::BOTH, ..OPEN }, over),
            (
                "reset",
                StreamStatus {
                    progress: ConnectProgress::Closed,
                    shut: Shut::BOTH,
                    has_error: true,
                    ..FRESH
                },
                over | Events::ERR,
            ),
            (
                "refused, and the error is taken",
                StreamStatus { progress: ConnectProgress::Closed, shut: Shut::BOTH, ..FRESH },
                over,
            ),
        ];
        for (name, status, expected) in table {
            assert_eq!(of_stream(status), expected, "{name}");
        }
    }

    #[test]
    fn a_listener_is_readable_while_a_connection_waits() {
        assert_eq!(of_listener(true), Events::IN | Events::RDNORM);
        assert_eq!(of_listener(false), Events::empty());
    }
}
