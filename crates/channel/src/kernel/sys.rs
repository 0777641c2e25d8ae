//! System calls that no crate wraps in a safe function, and sockets made for a channel.

use std::alloc::{self, Layout};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::address::Address;
use crate::address::sockaddr::RawAddress;
use crate::error::{ConnectError, Limit, ListenError, OpError};
use crate::kind::Kind;
use crate::limits;
use crate::options::{ConnectOptions, ListenOptions, OpenOptions};

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `len` bytes of zeros, for the kernel to read into; the allocator's fresh pages are not touched.
///
/// # Errors
/// `NOMEM` if the memory is not to be had.
pub(crate) fn zeroed(len: usize) -> Result<Vec<u8>, Errno> {
    let layout = Layout::array::<u8>(len).map_err(|_| Errno::NOMEM)?;
    if len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: the layout's size is `len`, which is not 0.
    let memory = unsafe { alloc::alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: the global allocator gave this memory for `len` bytes of alignment 1, and all of
    // them are initialised.
    Ok(unsafe { Vec::from_raw_parts(memory, len, len) })
}

/// What a descriptor is, or the name of what cannot be registered.
pub(crate) fn kind_of(fd: BorrowedFd<'_>) -> io::Result<Result<Kind, &'static str>> {
    let stat = fstat(fd)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Socket => return socket_kind(fd),
        FileType::Fifo => Ok(Kind::Pipe),
        FileType::CharacterDevice => Ok(Kind::CharDevice),
        FileType::RegularFile => Ok(Kind::File),
        FileType::BlockDevice => Ok(Kind::File),
        FileType::Directory => Err("directory"),
        FileType::Symlink => Err("symbolic link"),
        FileType::Unknown => Ok(Kind::Anonymous),
    })
}

fn socket_kind(fd: BorrowedFd<'_>) -> io::Result<Result<Kind, &'static str>> {
    if sockopt::socket_acceptconn(fd)? {
        return Ok(Ok(Kind::Listener));
    }
    connection_kind(fd)
}

/// What a socket is, or what the connections of a listening socket are.
pub(crate) fn connection_kind(fd: BorrowedFd<'_>) -> io::Result<Result<Kind, &'static str>> {
    let family = sockopt::socket_domain(fd)?;
    let socket_type = sockopt::socket_type(fd)?;
    let is_inet = matches!(family, AddressFamily::INET | AddressFamily::INET6);
    let is_unix = family == AddressFamily::UNIX;
    Ok(match socket_type {
        SocketType::STREAM if is_inet => Ok(Kind::Tcp),
        SocketType::DGRAM if is_inet => Ok(Kind::Udp),
        SocketType::STREAM if is_unix => Ok(Kind::UnixStream),
        SocketType::DGRAM if is_unix => Ok(Kind::UnixDatagram),
        SocketType::SEQPACKET if is_unix => Ok(Kind::UnixSeqpacket),
        _ => Err("socket of this family or type"),
    })
}

fn family_of(address: &Address) -> AddressFamily {
    match address {
        Address::Inet(std::net::SocketAddr::V4(_)) => AddressFamily::INET,
        Address::Inet(std::net::SocketAddr::V6(_)) => AddressFamily::INET6,
        Address::Unix(_) => AddressFamily::UNIX,
    }
}

/// A close-on-exec socket of the address's family.
pub(crate) fn stream_socket(address: &Address, nonblocking: bool) -> io::Result<OwnedFd> {
    socket(family_of(address), SocketType::STREAM, nonblocking)
}

/// A close-on-exec socket.
pub(crate) fn socket(
    family: AddressFamily,
    socket_type: SocketType,
    nonblocking: bool,
) -> io::Result<OwnedFd> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, nonblocking);
    Ok(rustix::net::socket_with(family, socket_type, flags, None)?)
}

/// bind(2).
pub(crate) fn bind(fd: BorrowedFd<'_>, address: &Address) -> io::Result<()> {
    let raw = RawAddress::new(address);
    // SAFETY: the pointer and length describe `raw`, which outlives the call; the kernel only
    // reads it.
    check(unsafe { libc::bind(fd.as_raw_fd(), raw.bytes.as_ptr().cast(), raw.len) })
}

/// connect(2) on a non-blocking socket.
pub(crate) fn connect(fd: BorrowedFd<'_>, raw: &RawAddress) -> io::Result<()> {
    // SAFETY: as in `bind`.
    check(unsafe { libc::connect(fd.as_raw_fd(), raw.bytes.as_ptr().cast(), raw.len) })
}

/// getsockname(2).
pub(crate) fn local_address(fd: BorrowedFd<'_>) -> io::Result<Option<Address>> {
    name(fd, libc::getsockname)
}

/// getpeername(2).
pub(crate) fn peer_address(fd: BorrowedFd<'_>) -> io::Result<Option<Address>> {
    name(fd, libc::getpeername)
}

type NameCall =
    unsafe extern "C" fn(libc::c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int;

fn name(fd: BorrowedFd<'_>, call: NameCall) -> io::Result<Option<Address>> {
    let mut raw = RawAddress::EMPTY;
    let address = raw.bytes.as_mut_ptr().cast();
    // SAFETY: `raw` has room for `raw.len` bytes and outlives the call.
    check(unsafe { call(fd.as_raw_fd(), address, &raw mut raw.len) })?;
    Ok(raw.to_address())
}

/// SO_ATTACH_REUSEPORT_CBPF: which socket of a group takes a new connection (socket(7)).
pub(crate) fn attach_reuseport_cbpf(
    fd: BorrowedFd<'_>,
    program: &mut [libc::sock_filter],
) -> io::Result<()> {
    let program =
        libc::sock_fprog { len: program.len() as libc::c_ushort, filter: program.as_mut_ptr() };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

/// SO_DETACH_REUSEPORT_BPF: back to spreading by hash.
pub(crate) fn detach_reuseport_bpf(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, &0i32)
}

/// SO_NETNS_COOKIE: tells network namespaces apart (Linux 5.14).
pub(crate) fn netns_cookie(fd: BorrowedFd<'_>) -> io::Result<u64> {
    get_option(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, 0u64)
}

/// SO_INCOMING_CPU: the core that last processed packets for this socket.
pub(crate) fn incoming_cpu(fd: BorrowedFd<'_>) -> io::Result<i32> {
    get_option(fd, libc::SOL_SOCKET, libc::SO_INCOMING_CPU, -1i32)
}

/// SO_LINGER with time 0: close resets.
pub(crate) fn set_reset_on_close(fd: BorrowedFd<'_>) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

/// Plain data without padding that the kernel reads or writes as a socket option.
trait OptionValue: Copy {}
impl OptionValue for i32 {}
impl OptionValue for u64 {}
impl OptionValue for libc::linger {}
impl OptionValue for libc::sock_fprog {}

fn set_option<T: OptionValue>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let pointer = std::ptr::from_ref(value).cast();
    // SAFETY: the pointer and length describe `value`; the kernel only reads it (and, for a
    // sock_fprog, the filter that it points to, which the caller borrows for the whole call).
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, len) })
}

fn get_option<T: OptionValue>(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    mut value: T,
) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let pointer = (&raw mut value).cast();
    // SAFETY: the pointer and length describe `value`, plain data of any bit pattern.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, pointer, &raw mut len) })?;
    Ok(value)
}

/// Lets the process use as many descriptors as it is allowed to; direct descriptors of a ring
/// are counted against the same limit. Returns the limit in force.
pub(crate) fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum {
        // Not being allowed to leaves the old limit, which is read back below.
        let _ = setrlimit(Resource::Nofile, raised);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Checks that the small allocations of a channel's start will succeed.
///
/// # Errors
/// ENOMEM if less than [`limits::SMALL_ALLOCATIONS_BYTES`] can be allocated now.
pub(crate) fn require_small_allocations() -> io::Result<()> {
    let reserved = Vec::<u8>::new().try_reserve_exact(limits::SMALL_ALLOCATIONS_BYTES);
    reserved.map_err(|_| Errno::NOMEM.into())
}

/// A value in memory of its own.
///
/// # Errors
/// [`Limit::Memory`]: there is none for it.
pub(crate) fn try_box<T>(value: T) -> Result<Box<T>, Limit> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(1).map_err(|_| Limit::Memory)?;
    memory.push(value);
    let one = Box::into_raw(memory.into_boxed_slice());
    // SAFETY: the slice has one element, pushed above, so its memory is that of a box of a `T`.
    Ok(unsafe { Box::from_raw(one.cast::<T>()) })
}

/// open(2)'s flags.
pub(crate) fn open_flags(options: &OpenOptions) -> i32 {
    let access = match (options.read, options.write || options.append) {
        (true, true) => libc::O_RDWR,
        (false, true) => libc::O_WRONLY,
        _ => libc::O_RDONLY,
    };
    let choose = |on, flag| if on { flag } else { 0 };
    access
        | libc::O_CLOEXEC
        | choose(options.create, libc::O_CREAT)
        | choose(options.create_new, libc::O_EXCL)
        | choose(options.truncate, libc::O_TRUNC)
        | choose(options.append, libc::O_APPEND)
}

/// Sets what a listening TCP socket has and its connections inherit.
pub(crate) fn set_listening_options(
    socket: BorrowedFd<'_>,
    options: &ListenOptions,
) -> io::Result<()> {
    if options.only_v6 {
        sockopt::set_ipv6_v6only(socket, true)?;
    }
    if options.fast_open > 0 {
        let pending_max = i32::try_from(options.fast_open).unwrap_or(i32::MAX);
        set_option(socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, &pending_max)?;
    }
    set_notsent_lowat(socket, options.notsent_lowat)?;
    // Small answers must not wait for acknowledgements.
    Ok(sockopt::set_tcp_nodelay(socket, true)?)
}

fn set_notsent_lowat(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    // Unsigned in the kernel.
    let bytes = bytes.cast_signed();
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &bytes)
}

/// A listening socket that belongs to no group.
pub(crate) fn listening_socket(
    address: &Address,
    options: &ListenOptions,
    nonblocking: bool,
) -> Result<OwnedFd, ListenError> {
    let kernel = |what| move |source: io::Error| ListenError::Kernel { what, source };
    let socket = stream_socket(address, nonblocking).map_err(kernel("make a socket"))?;
    if address.as_inet().is_some() {
        let set = || -> io::Result<()> {
            sockopt::set_socket_reuseaddr(&socket, true)?;
            set_listening_options(socket.as_fd(), options)
        };
        set().map_err(kernel("set the socket's options"))?;
    }
    bind(socket.as_fd(), address).map_err(kernel("bind"))?;
    let backlog = options.backlog.min(i32::MAX as u32) as i32;
    rustix::net::listen(&socket, backlog).map_err(|errno| kernel("listen")(errno.into()))?;
    Ok(socket)
}

/// A socket that is about to connect.
pub(crate) fn connecting_socket(
    address: &Address,
    options: &ConnectOptions,
    nonblocking: bool,
) -> Result<OwnedFd, ConnectError> {
    let kernel = |what| move |source: io::Error| ConnectError::Kernel { what, source };
    let socket = stream_socket(address, nonblocking).map_err(kernel("make a socket"))?;
    let set = || -> io::Result<()> {
        if address.as_inet().is_some() && options.nodelay {
            sockopt::set_tcp_nodelay(&socket, true)?;
        }
        if options.reset_on_close {
            set_reset_on_close(socket.as_fd())?;
        }
        if address.as_inet().is_some() && options.fast_open {
            set_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, &1_i32)?;
        }
        if address.as_inet().is_some() {
            set_notsent_lowat(socket.as_fd(), options.notsent_lowat)?;
        }
        Ok(())
    };
    set().map_err(kernel("set the socket's options"))?;
    if let Some(local) = &options.bind {
        bind(socket.as_fd(), local).map_err(kernel("bind"))?;
    }
    Ok(socket)
}

/// O_NONBLOCK, for all that share the open file. Returns whether this changed it.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>, on: bool) -> io::Result<bool> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    let mut wanted = flags;
    wanted.set(rustix::fs::OFlags::NONBLOCK, on);
    if wanted != flags {
        rustix::fs::fcntl_setfl(fd, wanted)?;
    }
    Ok(wanted != flags)
}

/// A connection that waits in the queue of a listening socket, which becomes non-blocking.
pub(crate) fn accept_waiting(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    fcntl_setfl(listener, fcntl_getfl(listener)? | OFlags::NONBLOCK)?;
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?)
}

/// How a connection ended; `None`: it has not, in one direction at least.
pub(crate) fn end_of(fd: BorrowedFd<'_>) -> Option<Result<(), OpError>> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::empty())];
    // It fails for no reason that concerns the connection; the error is found later then.
    poll(&mut polled, Some(&Timespec::default())).ok()?;
    if !polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
        return None;
    }
    Some(match sockopt::socket_error(fd) {
        Ok(Err(errno)) | Err(errno) => Err(errno.into()),
        Ok(Ok(())) => Ok(()),
    })
}

/// A duplicate of a descriptor, close-on-exec.
pub(crate) fn duplicate(fd: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, 0)?)
}

/// A datagram that was received, but for its bytes.
pub(crate) struct ReceivedDatagram {
    /// Its bytes, those too that there was no room for.
    pub(crate) len: usize,
    pub(crate) from: RawAddress,
    /// What the socket's options ask for, as cmsg(3) has it.
    pub(crate) control: Box<[u8]>,
}

/// Receives a datagram with its control data. Does not wait.
pub(crate) fn receive_datagram(
    fd: BorrowedFd<'_>,
    room: &mut [u8],
) -> Result<ReceivedDatagram, Errno> {
    let mut from = RawAddress::EMPTY;
    let mut control = [0_u64; limits::CONTROL_WORDS];
    let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    // SAFETY: msghdr is plain data for which all zeros (null pointers, length 0) are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_name = from.bytes.as_mut_ptr().cast();
    header.msg_namelen = from.len;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control);
    // A descriptor that came in a message would be ours to close; datagrams of UDP bring none.
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: the header points to `room`, `from` and `control`, with their lengths, and all of
    // them outlive the call.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, flags) };
    let len = usize::try_from(received)
        .map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))?;
    from.len = header.msg_namelen;
    Ok(ReceivedDatagram { len, from, control: control_bytes(&control, header.msg_controllen) })
}

/// The first bytes of the words that the kernel wrote control data to; none without memory for
/// them.
pub(crate) fn control_bytes(words: &[u64], len: usize) -> Box<[u8]> {
    let mut bytes = Vec::new();
    if bytes.try_reserve_exact(len.min(size_of_val(words))).is_ok() {
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()).take(len));
    }
    bytes.into_boxed_slice()
}
