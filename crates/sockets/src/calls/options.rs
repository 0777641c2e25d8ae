//! setsockopt(2) and getsockopt(2), on the kernel and on our own stack.
//!
//! Read first: `options.rs`; socket(7), tcp(7).

use std::os::fd::{AsFd, BorrowedFd};

use megapipe::{ConnInfo, Handle, TcpState};

use crate::control_data::TCP_INQ;
use crate::descriptors::Fd;
use crate::error::Error;
use crate::flags::Events;
use crate::kernel;
use crate::kernel_options::{asks_for_stream_control, holds_pointers};
use crate::options::{SocketOptions, SocketRole, Value};
use crate::polled_channel::PolledChannel;
use crate::stream::{Blank, StreamSocket};
use crate::table::{ObjectKind, Sockets};
use crate::transport::{ListenerTransport, ObjectTransport, StreamTransport};

const LOW_WATER: (i32, i32) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);
/// What a stream does by itself on the kernel too, because bytes that have come lie here.
fn is_of_reads(at: (i32, i32)) -> bool {
    at == LOW_WATER || at == (libc::IPPROTO_TCP, TCP_INQ)
}

/// The bytes of `struct tcp_info` that have been there from the beginning.
const TCP_INFO_BYTES: usize = 104;
/// The number that Linux gives to the state of a listener.
const TCP_LISTEN: u8 = 10;

/// A socket as options see it.
struct OptionTarget<'a> {
    options: &'a mut SocketOptions,
    handle: Handle,
    role: SocketRole,
    /// The kernel's socket, where it is not in the channel yet.
    blank: Option<BorrowedFd<'a>>,
}

impl OptionTarget<'_> {
    /// The kernel's socket, wherever it is.
    fn kernel_socket<'fd>(
        &'fd self,
        channel: &'fd PolledChannel,
    ) -> Result<BorrowedFd<'fd>, Error> {
        let registered = || channel.kernel_socket(self.handle);
        self.blank.or_else(registered).ok_or(Error::InvalidArgument)
    }
}

fn target(
    sockets: &mut Sockets,
    object: u32,
) -> Result<(OptionTarget<'_>, &mut PolledChannel), Error> {
    let Sockets { objects, channel, .. } = sockets;
    let entry = objects.get_mut(object).ok_or(Error::BadDescriptor)?;
    let stream = SocketRole { is_v6: false, is_stream: true, is_listener: false, is_bound: false };
    let target = match &mut entry.kind {
        ObjectKind::Stream(it) => OptionTarget {
            options: &mut it.options,
            handle: it.handle,
            role: SocketRole {
                is_v6: it.is_v6,
                is_bound: it.bound.is_some() || it.handle != Handle::NONE,
                ..stream
            },
            blank: match &it.blank {
                Blank::Kernel(fd) => Some(fd.as_fd()),
                Blank::Local | Blank::Used => None,
            },
        },
        ObjectKind::Listener(it) => OptionTarget {
            handle: it.handle(),
            options: &mut it.options,
            role: SocketRole { is_v6: it.is_v6, is_listener: true, is_bound: true, ..stream },
            blank: None,
        },
        ObjectKind::Datagram(socket) => {
            let it = &mut **socket;
            OptionTarget {
                handle: it.handle(),
                options: &mut it.options,
                role: SocketRole {
                    is_v6: it.is_v6,
                    is_stream: false,
                    is_bound: it.bound.is_some(),
                    ..stream
                },
                blank: None,
            }
        }
        _ => return Err(Error::NotASocket),
    };
    Ok((target, channel))
}

/// setsockopt(2).
pub(super) fn set(
    sockets: &mut Sockets,
    fd: Fd,
    at: (i32, i32),
    value: &[u8],
) -> Result<(), Error> {
    let object = sockets.descriptors.object(fd)?;
    if sockets.is_local() {
        set_on_stack(sockets, object, at, value)
    } else {
        set_on_kernel(sockets, object, at, value)
    }
}

fn set_on_stack(
    sockets: &mut Sockets,
    object: u32,
    at: (i32, i32),
    value: &[u8],
) -> Result<(), Error> {
    let defaults = sockets.defaults;
    let (OptionTarget { options, handle, role, .. }, channel) = target(sockets, object)?;
    let is_late = match at {
        // A connection has no listener's options.
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => !role.is_listener,
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT) => true,
        _ => false,
    };
    if is_late && handle != Handle::NONE {
        return Err(Error::InvalidArgument);
    }
    let reset_before = options.resets_on_close();
    let heard = options.set(at, value, role, &defaults)?;
    let resets = options.resets_on_close();
    if resets != reset_before && role.is_stream && !role.is_listener && handle != Handle::NONE {
        channel.set_reset_on_close(handle, resets);
    }
    if let Some(option) = heard.filter(|_| handle != Handle::NONE && !role.is_listener) {
        // A connection that is over has nothing to be set; Linux sets it all the same.
        channel.set_option(handle, option);
    }
    match at {
        LOW_WATER => notify_lowered(sockets, object),
        (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT) => {
            share_address(sockets, object);
        }
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => set_fast_open(sockets, object),
        (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => {
            sockets.on_stream(object, StreamSocket::on_mark_set);
        }
        (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
            let on = value.iter().take(4).any(|byte| *byte != 0);
            if let Some((socket, channel)) = sockets.datagram_mut(object) {
                socket.queue_errors(on, channel);
            }
        }
        _ => {}
    }
    Ok(())
}

fn set_on_kernel(
    sockets: &mut Sockets,
    object: u32,
    at: (i32, i32),
    value: &[u8],
) -> Result<(), Error> {
    let defaults = sockets.defaults;
    let (target, channel) = target(sockets, object)?;
    if target.role.is_stream && is_of_reads(at) {
        // The kernel's socket must not have the low-water mark of a stream: the bytes that count
        // towards it lie here, and the kernel would hold back those that are missing.
        target.options.set(at, value, target.role, &defaults)?;
        if at == LOW_WATER {
            notify_lowered(sockets, object);
        }
        return Ok(());
    }
    let asks = value.iter().any(|byte| *byte != 0);
    let is_lost = target.role.is_stream && asks_for_stream_control(at.0, at.1) && asks;
    if is_lost || holds_pointers(at.0, at.1) {
        return Err(Error::NoSuchOption);
    }
    let socket = target.kernel_socket(channel)?;
    kernel::set_option(socket, at.0, at.1, value)?;
    target.options.note(at.0, at.1, value);
    if at == LOW_WATER {
        notify_lowered(sockets, object);
    }
    Ok(())
}

/// SO_REUSEADDR or SO_REUSEPORT has changed: how a socket that is bound shares its address.
#[cold]
fn share_address(sockets: &mut Sockets, object: u32) {
    let Sockets { objects, ports, .. } = sockets;
    let (bound, sharing) = match objects.get(object).map(|entry| &entry.kind) {
        Some(ObjectKind::Stream(it)) => (it.bound, it.options.sharing),
        Some(ObjectKind::Listener(it)) => (it.bound, it.options.sharing),
        Some(ObjectKind::Datagram(it)) => (it.bound, it.options.sharing),
        _ => return,
    };
    if let Some(bound) = bound {
        ports.share(bound, sharing);
    }
}

/// TCP_FASTOPEN was set on a listening socket.
#[cold]
fn set_fast_open(sockets: &mut Sockets, object: u32) {
    let Some(listener) = sockets.listener(object) else { return };
    let (groups, pending_max) = (listener.groups(), listener.options.fast_open());
    for group in groups {
        let handle = sockets.groups.handle(group);
        ListenerTransport::set_fast_open(&mut sockets.channel, handle, pending_max);
    }
}

/// The low-water mark of a stream was set: what waits may be enough now, as Linux looks then, or
/// too little.
#[cold]
fn notify_lowered(sockets: &mut Sockets, object: u32) {
    if let Some((stream, channel)) = sockets.stream_mut(object) {
        // A higher mark may need more than was taken ahead so far.
        stream.post_read(channel);
    }
    if sockets.readiness(object).contains(Events::READABLE) {
        sockets.notify(object, Events::ARRIVED);
    }
}

/// getsockopt(2): how many bytes of `value` were filled.
pub(super) fn get(
    sockets: &mut Sockets,
    fd: Fd,
    at: (i32, i32),
    value: &mut [u8],
) -> Result<usize, Error> {
    let object = sockets.descriptors.object(fd)?;
    if at == (libc::SOL_SOCKET, libc::SO_ERROR) {
        let mut error = take_error(sockets, object)?;
        if error.is_none() {
            // It may have come. A link that is gone is reported by calls that transfer data.
            let _ = sockets.take_in();
            error = take_error(sockets, object)?;
        }
        if let Some(error) = error {
            return Ok(Value::Int(error.raw_os_error()).write(value));
        }
    }
    let (is_local, mut defaults) = (sockets.is_local(), sockets.defaults);
    let (target, channel) = target(sockets, object)?;
    let is_ours = is_local || (target.role.is_stream && is_of_reads(at));
    if !is_ours {
        let socket = target.kernel_socket(channel)?;
        if holds_pointers(at.0, at.1) {
            return Err(Error::NoSuchOption);
        }
        return kernel::option(socket, at.0, at.1, value);
    }
    // A daemon is asked for it, and waited for.
    let info = is_of_connection(at).then(|| channel.conn_info(target.handle).ok()).flatten();
    match (at, info) {
        ((libc::SOL_SOCKET, libc::SO_ERROR), _) => return Ok(Value::Int(0).write(value)),
        ((libc::IPPROTO_TCP, libc::TCP_INFO), info) if target.role.is_stream => {
            let bytes = tcp_info(info.as_ref(), target.role.is_listener);
            let len = bytes.len().min(value.len());
            value[..len].copy_from_slice(&bytes[..len]);
            return Ok(len);
        }
        (_, Some(info)) => {
            defaults.receive_buffer = info.receive_buffer_bytes;
            defaults.send_buffer = info.send_buffer_bytes;
            defaults.mss = info.mss.into();
        }
        (_, None) => {}
    }
    Ok(target.options.value(at, target.role, &defaults)?.write(value))
}

/// Whether an option's value is the connection's, and not the socket's alone.
const fn is_of_connection(at: (i32, i32)) -> bool {
    matches!(
        at,
        (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF)
            | (libc::IPPROTO_TCP, libc::TCP_INFO | libc::TCP_MAXSEG)
    )
}

/// Takes the pending error.
fn take_error(sockets: &mut Sockets, object: u32) -> Result<Option<Error>, Error> {
    let entry = sockets.object_mut(object).ok_or(Error::BadDescriptor)?;
    Ok(match &mut entry.kind {
        ObjectKind::Stream(stream) => stream.error.take(),
        ObjectKind::Listener(listener) => listener.error.take(),
        ObjectKind::Datagram(socket) => socket.error.take(),
        _ => return Err(Error::NotASocket),
    })
}

/// `struct tcp_info` of Linux, as far as there is something to be told; times in microseconds, but
/// for those that the kernel tells in milliseconds.
fn tcp_info(info: Option<&ConnInfo>, is_listener: bool) -> [u8; TCP_INFO_BYTES] {
    let mut bytes = [0; TCP_INFO_BYTES];
    let Some(info) = info else {
        bytes[0] = if is_listener { TCP_LISTEN } else { TcpState::Closed.linux_number() };
        return bytes;
    };
    bytes[0] = info.state.linux_number();
    let bit = |on: bool, place: u8| u8::from(on) << place;
    let scaled = info.window_scale.is_some();
    let (theirs, ours) = info.window_scale.unwrap_or_default();
    bytes[2] = info.timeouts;
    bytes[5] = bit(info.timestamps, 0)
        | bit(info.sack, 1)
        | bit(scaled, 2)
        | bit(info.ecn, 3)
        | bit(info.syn_data, 5);
    bytes[6] = (theirs & 0xf) | ours << 4;
    let micros = |time: std::time::Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    let mss = u32::from(info.mss).max(1);
    let words = [
        (8, micros(info.rto)),
        (16, mss),
        (20, mss),
        (24, info.flight_bytes.div_ceil(mss)),
        (28, info.sacked_bytes.div_ceil(mss)),
        (32, info.lost_bytes.div_ceil(mss)),
        (68, info.srtt.map_or(0, micros)),
        (72, micros(info.rttvar)),
        (76, info.ssthresh.map_or(0x7fff_ffff, |bytes| bytes / mss)),
        (80, info.cwnd / mss),
        (84, mss),
        (88, 3),
        (96, info.receive_buffer_bytes),
        (100, info.segments_retransmitted),
    ];
    for (place, word) in words {
        bytes[place..place + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
