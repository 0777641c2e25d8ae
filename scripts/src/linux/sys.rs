//! System calls that have no safe wrapper with the freedom that a script needs: any socket option,
//! any request of an int, the TUN device.
//!
//! Invariants: each function checks the result and gives the error number; no memory is kept by the
//! kernel beyond a call.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::system::{CONTROL_BYTES, ControlMessage};

/// A timestamp of the last packet in two 64-bit words (Linux 5.1).
const SIOCGSTAMPNS_NEW: libc::Ioctl = 0x8010_8907_u32 as libc::Ioctl;
/// Lowest real-time priority: enough to come before everything that is not real-time.
const REAL_TIME_PRIORITY: libc::c_int = 1;

/// Space for control messages, in words.
const CONTROL_WORDS: usize = CONTROL_BYTES / 8;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn socket_length(bytes: usize) -> io::Result<libc::socklen_t> {
    libc::socklen_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// setsockopt(2) with any option.
pub(super) fn set_option(fd: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let len = socket_length(value.len())?;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads at most `len` bytes from the pointer, which is to a slice of `len`
    // bytes that lives across the call; it keeps none of it.
    let result = unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) };
    checked(result).map(|_| ())
}

/// getsockopt(2) with any option; the number of bytes written to `value`.
pub(super) fn get_option(
    fd: impl AsFd,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut len = socket_length(value.len())?;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes to the pointer, which is to a slice of `len`
    // bytes that nothing else uses, and the new length to `len`; both live across the call.
    let result = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) };
    checked(result)?;
    Ok(usize::try_from(len).unwrap_or(0).min(value.len()))
}

/// recvmsg(2) into all of `buffers`: how many bytes came, the message's flags and its control
/// messages.
pub(super) fn receive_message(
    fd: impl AsFd,
    buffers: &mut [Vec<u8>],
    flags: i32,
) -> io::Result<(usize, i32, Vec<ControlMessage>)> {
    let mut parts: Vec<libc::iovec> = buffers
        .iter_mut()
        .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() })
        .collect();
    // Of words, so that it is aligned as a header of a control message is.
    let mut control = [0_u64; CONTROL_WORDS];
    let mut message = libc::msghdr {
        msg_name: std::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: parts.as_mut_ptr(),
        msg_iovlen: parts.len(),
        msg_control: control.as_mut_ptr().cast(),
        msg_controllen: size_of_val(&control),
        msg_flags: 0,
    };
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the kernel reads the header and the parts, and writes at most `iov_len` bytes to each
    // part and `msg_controllen` to the control words; all of them are locals or the caller's, with
    // nothing else using them, and live across the call.
    let len = unsafe { libc::recvmsg(fd, &raw mut message, flags) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let told = message.msg_controllen.min(bytes.len());
    Ok((len, message.msg_flags, ControlMessage::parse(&bytes[..told])))
}

/// The requests that scripts make of sockets, all with a pointer to an int.
pub(super) fn ioctl_int(fd: impl AsFd, request: i64, argument: i32) -> io::Result<i32> {
    let allowed = [libc::FIONREAD, libc::FIONBIO, libc::TIOCOUTQ];
    let request = allowed.into_iter().find(|&known| known as i64 == request).or_else(|| {
        const SIOCOUTQNSD: libc::Ioctl = 0x894b;
        (request == SIOCOUTQNSD as i64).then_some(SIOCOUTQNSD)
    });
    let request = request.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTTY))?;
    let mut argument: libc::c_int = argument;
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: each of the requests that get here reads or writes one int through the pointer, which
    // is to a local that lives across the call.
    let result = unsafe { libc::ioctl(fd, request, &mut argument) };
    checked(result)?;
    Ok(argument)
}

/// Moves the calling thread into a new network namespace.
pub(super) fn unshare_network() -> io::Result<()> {
    // SAFETY: CLONE_NEWNET changes which network the thread sees and touches no memory; open
    // descriptors keep the network that they came from.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    checked(result).map(|_| ())
}

/// Makes an open `/dev/net/tun` the TUN device of this name, with a virtio-net header before each
/// packet and the offloads of `offloads`.
pub(super) fn attach_tun(fd: impl AsFd, name: &str, offloads: libc::c_uint) -> io::Result<()> {
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags as libc::c_short },
    };
    // The last byte stays zero, so that the name ends.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let raw_fd = fd.as_fd().as_raw_fd();
    // SAFETY: TUNSETIFF reads an `ifreq` through the pointer and writes the name back to it; it is
    // to a local that lives across the call.
    let result = unsafe { libc::ioctl(raw_fd, libc::TUNSETIFF, &mut request) };
    checked(result)?;
    set_offloads(fd, offloads)
}

/// What the kernel may leave to the TUN device to do.
pub(super) fn set_offloads(fd: impl AsFd, offloads: libc::c_uint) -> io::Result<()> {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: TUNSETOFFLOAD takes its argument by value.
    let result = unsafe { libc::ioctl(fd, libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads)) };
    checked(result).map(|_| ())
}

/// When the packet that was read last from a packet socket was sent: seconds and nanoseconds since
/// 1970. The first call makes the kernel keep such times, and finds none yet.
pub(super) fn packet_time(fd: impl AsFd) -> io::Result<(i64, i64)> {
    let mut time = [0_i64; 2];
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: SIOCGSTAMPNS_NEW writes two 64-bit words through the pointer, which is to a local of
    // that size that lives across the call.
    let result = unsafe { libc::ioctl(fd, SIOCGSTAMPNS_NEW, time.as_mut_ptr()) };
    checked(result)?;
    Ok((time[0], time[1]))
}

/// Lets the calling thread run before all that is not real-time.
pub(super) fn take_real_time_priority() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: REAL_TIME_PRIORITY };
    // SAFETY: the kernel reads the parameters through the pointer, which is to a local that lives
    // across the call; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &parameters) };
    checked(result).map(|_| ())
}
