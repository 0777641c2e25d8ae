//! The error queue of a TCP socket: that the memory of a send is its owner's again (MSG_ZEROCOPY),
//! and when the last byte of a send left and was acknowledged (SO_TIMESTAMPING).
//!
//! In: sends, and how far the connection has come with them. Out: messages for recvmsg(2) with
//! MSG_ERRQUEUE. Read first: linux/errqueue.h and linux/net_tstamp.h for the numbers.
//!
//! The stack copies what it is given, so a send is done with the program's memory when it returns:
//! that is what its message says, with SO_EE_CODE_ZEROCOPY_COPIED. There is no queue between the
//! stack and the wire, so a byte leaves its scheduler and its device at the same time.
//!
//! Invariants
//! - Messages come in the order of what they tell; at most `ERROR_MESSAGES_MAX` wait, later ones
//!   are lost, as in a kernel whose memory for them is used up.

use std::collections::VecDeque;

use crate::limits::ERROR_MESSAGES_MAX;
use crate::symbols::{
    SCM_TSTAMP_ACK, SCM_TSTAMP_SCHED, SCM_TSTAMP_SND, SO_EE_CODE_ZEROCOPY_COPIED,
    SO_EE_ORIGIN_TIMESTAMPING, SO_EE_ORIGIN_ZEROCOPY, SOF_TIMESTAMPING_OPT_ID,
    SOF_TIMESTAMPING_SOFTWARE, SOF_TIMESTAMPING_TX_ACK, SOF_TIMESTAMPING_TX_SCHED,
    SOF_TIMESTAMPING_TX_SOFTWARE,
};
use crate::system::Control;

/// The flags that ask for a time, and what a message calls that time.
const SENT: [(i64, u32); 2] =
    [(SOF_TIMESTAMPING_TX_SCHED, SCM_TSTAMP_SCHED), (SOF_TIMESTAMPING_TX_SOFTWARE, SCM_TSTAMP_SND)];

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// The sends of these numbers were copied.
    Copied { first: u32, last: u32 },
    /// What happened at a time to the byte of this number.
    Stamp { kind: u32, byte: u32, at_us: i64 },
}

/// A byte whose times are asked for.
#[derive(Clone, Copy, Debug)]
struct Watched {
    /// How many bytes of the connection there are up to it, itself included.
    end: u64,
    /// Its number in messages.
    byte: u32,
    flags: i64,
    has_left: bool,
}

/// The queue of one socket.
#[derive(Clone, Debug, Default)]
pub(super) struct ErrorQueue {
    messages: VecDeque<Message>,
    watched: VecDeque<Watched>,
    /// The number of the next send with MSG_ZEROCOPY.
    next_copy: u32,
    /// Bytes that the program has sent, and how many it had when numbers began.
    written: u64,
    numbers_from: u64,
    /// How often a message came: it only ever grows.
    pub(super) arrivals: u64,
}

impl ErrorQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// SO_TIMESTAMPING was set: bytes are numbered from here on, if they are.
    pub(super) fn number_from_here(&mut self, before: i64, flags: i64) {
        if flags & !before & SOF_TIMESTAMPING_OPT_ID != 0 {
            self.numbers_from = self.written;
        }
    }

    /// The program has sent so many bytes in one call.
    pub(super) fn on_written(&mut self, bytes: usize, flags: i64) {
        self.written += bytes as u64;
        let asks = SOF_TIMESTAMPING_TX_ACK | SENT[0].0 | SENT[1].0;
        let is_told = flags & SOF_TIMESTAMPING_SOFTWARE != 0;
        if bytes > 0 && is_told && flags & asks != 0 && self.watched.len() < ERROR_MESSAGES_MAX {
            let has_number = flags & SOF_TIMESTAMPING_OPT_ID != 0;
            let byte = if has_number { self.written - self.numbers_from - 1 } else { 0 };
            // Numbers are of 32 bits, and wrap.
            let byte = (byte & u64::from(u32::MAX)) as u32;
            self.watched.push_back(Watched { end: self.written, byte, flags, has_left: false });
        }
    }

    /// A send with MSG_ZEROCOPY has taken bytes. Numbers that follow each other are one message.
    pub(super) fn on_copied(&mut self) {
        let number = self.next_copy;
        self.next_copy = number.wrapping_add(1);
        self.arrivals += 1;
        if let Some(Message::Copied { last, .. }) = self.messages.back_mut()
            && last.wrapping_add(1) == number
        {
            *last = number;
            return;
        }
        self.push(Message::Copied { first: number, last: number });
    }

    /// Of what was sent, so many bytes have not left yet, and so many are not acknowledged.
    pub(super) fn on_progress(&mut self, unsent: u32, unacked: u32, now_us: i64) {
        let left = self.written.saturating_sub(unsent.into());
        let acked = self.written.saturating_sub(unacked.into());
        // What an ACK lets go leaves after it.
        while let Some(mut watched) = self.watched.front().copied().filter(|it| it.end <= acked) {
            self.watched.pop_front();
            self.leaves(&mut watched, now_us);
            if watched.flags & SOF_TIMESTAMPING_TX_ACK != 0 {
                self.stamp(SCM_TSTAMP_ACK, watched.byte, now_us);
            }
        }
        for index in 0..self.watched.len() {
            let mut watched = self.watched[index];
            if watched.end <= left {
                self.leaves(&mut watched, now_us);
                self.watched[index] = watched;
            }
        }
    }

    fn leaves(&mut self, watched: &mut Watched, now_us: i64) {
        if std::mem::replace(&mut watched.has_left, true) {
            return;
        }
        for (flag, kind) in SENT {
            if watched.flags & flag != 0 {
                self.stamp(kind, watched.byte, now_us);
            }
        }
    }

    fn stamp(&mut self, kind: u32, byte: u32, at_us: i64) {
        self.arrivals += 1;
        self.push(Message::Stamp { kind, byte, at_us });
    }

    fn push(&mut self, message: Message) {
        if self.messages.len() < ERROR_MESSAGES_MAX {
            self.messages.push_back(message);
        }
    }

    /// The next message, as control messages of a socket of this domain; the flags of recvmsg(2).
    pub(super) fn take(&mut self, domain: i32) -> Option<(Vec<Control>, i32)> {
        Some(match self.messages.pop_front()? {
            Message::Copied { first, last } => {
                let kind = (SO_EE_ORIGIN_ZEROCOPY, SO_EE_CODE_ZEROCOPY_COPIED);
                (vec![extended_error(domain, 0, kind, (first, last))], libc::MSG_ERRQUEUE)
            }
            Message::Stamp { kind, byte, at_us } => {
                let origin = (SO_EE_ORIGIN_TIMESTAMPING, 0);
                let error = extended_error(domain, libc::ENOMSG, origin, (kind, byte));
                // The packet comes along, and a script never has room for it.
                (vec![stamps(at_us), error], libc::MSG_ERRQUEUE | libc::MSG_TRUNC)
            }
        })
    }
}

/// A `struct sock_extended_err`, with no offender.
fn extended_error(
    domain: i32,
    errno: i32,
    (origin, code): (u8, u8),
    (info, data): (u32, u32),
) -> Control {
    let (level, kind) = if domain == libc::AF_INET6 {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    } else {
        (libc::IPPROTO_IP, libc::IP_RECVERR)
    };
    let mut bytes = errno.to_ne_bytes().to_vec();
    bytes.extend([origin, 0, code, 0]);
    bytes.extend(info.to_ne_bytes());
    bytes.extend(data.to_ne_bytes());
    Control { level, kind, data: bytes }
}

/// A `struct scm_timestamping`: three times, of which software's is the first.
fn stamps(at_us: i64) -> Control {
    let (seconds, us) = (at_us.div_euclid(1_000_000), at_us.rem_euclid(1_000_000));
    let mut data = seconds.to_ne_bytes().to_vec();
    data.extend((us * 1000).to_ne_bytes());
    data.resize(48, 0);
    Control { level: libc::SOL_SOCKET, kind: libc::SCM_TIMESTAMPING, data }
}
