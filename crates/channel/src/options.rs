//! The arguments of the calls that have several.

use std::time::Duration;

use crate::address::Address;
use crate::cpu_mask::CpuMask;
use crate::limits;
use crate::setters::const_setters;

/// The form of accepted connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptAs {
    /// A handle of this channel without a file descriptor [MP 3.4.2].
    Lwsocket,
    /// A file descriptor of the process.
    Fd,
}

/// The arguments of an accept. Start from [`Accept::lwsocket`] or [`Accept::fd`].
///
/// # Examples
/// ```
/// use megapipe::Accept;
///
/// // All connections, each with a first read of up to 4 KiB.
/// let all = Accept::lwsocket(u32::MAX).first_read(4096).cookie(1);
/// assert_eq!((all.first_read, all.cookie), (Some(4096), 1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Accept {
    /// Number of connections; `u32::MAX`: no limit.
    pub count: u32,
    /// Form of the connections.
    pub kind: AcceptAs,
    /// The initial cookie of new lwsockets.
    pub cookie: u64,
    /// Queue a read of so many bytes on each new lwsocket, so that data which follows the handshake
    /// is delivered without another call.
    pub first_read: Option<usize>,
    /// Accept no connection from the kernel's queue beyond `count`. Default: off: with io_uring
    /// some are accepted ahead, in addition to those in the backlog. On, it costs a request for
    /// each connection there; epoll and our own stack never accept ahead.
    pub exactly: bool,
}

impl Accept {
    /// `count` connections as lwsockets.
    #[must_use]
    pub const fn lwsocket(count: u32) -> Self {
        Self { count, kind: AcceptAs::Lwsocket, cookie: 0, first_read: None, exactly: false }
    }

    /// `count` connections as file descriptors.
    #[must_use]
    pub const fn fd(count: u32) -> Self {
        Self { count, kind: AcceptAs::Fd, cookie: 0, first_read: None, exactly: false }
    }

    /// Sets [`Accept::cookie`].
    #[must_use]
    pub const fn cookie(mut self, cookie: u64) -> Self {
        self.cookie = cookie;
        self
    }

    /// Sets [`Accept::first_read`].
    #[must_use]
    pub const fn first_read(mut self, len: usize) -> Self {
        self.first_read = Some(len);
        self
    }

    /// Sets [`Accept::exactly`].
    #[must_use]
    pub const fn exactly(mut self) -> Self {
        self.exactly = true;
        self
    }
}

/// How `disconnect` ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disconnect {
    /// Both directions, after the writes that are queued.
    Both,
    /// The sending direction, after the writes that are queued; reading goes on.
    Write,
    /// At once, with a reset; queued writes are cancelled. TCP only: elsewhere like `Both`.
    Reset,
}

/// The options of a listener.
///
/// # Examples
/// ```
/// use megapipe::{Channel, Config, CpuMask, ListenOptions};
///
/// let mut channel = Channel::create(Config::default())?;
/// // Connections that arrive on cores 0 and 1, with a short queue.
/// let options = ListenOptions::default().backlog(16).cpu_mask(CpuMask::cpus([0, 1]));
/// channel.listen(&"127.0.0.1:0".parse()?, &options, 0)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenOptions {
    /// Connections that may wait in the kernel's accept queue (at most `somaxconn`), or in our own
    /// stack's in addition to those that accepts wait for; one more does. While the queue is full,
    /// SYNs are dropped, and the client retransmits them.
    pub backlog: u32,
    /// The cores whose connections this channel accepts; `None`: those of cores that no mask names.
    pub cpu_mask: Option<CpuMask>,
    /// Several channels, threads or processes may listen on the address. Default: on; off if the
    /// configuration disables partitioning.
    pub share: bool,
    /// Only channels of this process listen on the address: if a socket of another process does,
    /// the call fails. Of two processes that call at the same moment one fails. Default: off; our
    /// own stack's addresses are never shared with other processes.
    pub only_this_process: bool,
    /// An IPv6 socket accepts IPv6 only. Default: off, as in the kernel.
    pub only_v6: bool,
    /// On our own stack, the address-sharing option of the listener's connections
    /// ([`crate::Channel::holders`]). Default: none.
    #[cfg(feature = "local")]
    pub reuse: megapipe_stack::Reuse,
    /// Connections that may begin with the data of a SYN and not be established yet (TCP Fast Open,
    /// RFC 7413), TCP only. They are accepted before the peer has proved its address, and their
    /// data arrives twice if the network duplicates the SYN: use it for idempotent requests.
    /// Default: 0, no Fast Open. On the kernel this is TCP_FASTOPEN, which `net.ipv4.tcp_fastopen`
    /// may forbid.
    pub fast_open: u32,
    /// Limit of the unsent bytes of a connection, beyond which writes wait (TCP_NOTSENT_LOWAT), TCP
    /// only; up to 64 KiB of a write that has begun are accepted in any case. For programs that
    /// decide late what to send. Default: 0, the send buffer is the limit.
    pub notsent_lowat: u32,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            backlog: limits::BACKLOG_DEFAULT,
            cpu_mask: None,
            share: true,
            only_this_process: false,
            only_v6: false,
            #[cfg(feature = "local")]
            reuse: megapipe_stack::Reuse::default(),
            fast_open: 0,
            notsent_lowat: 0,
        }
    }
}

impl ListenOptions {
    const_setters! {
        /// Sets [`ListenOptions::backlog`].
        backlog: u32;
        /// Sets [`ListenOptions::share`].
        share: bool;
        /// Sets [`ListenOptions::only_this_process`].
        only_this_process: bool;
        /// Sets [`ListenOptions::only_v6`].
        only_v6: bool;
        /// Sets [`ListenOptions::fast_open`].
        fast_open: u32;
        /// Sets [`ListenOptions::notsent_lowat`].
        notsent_lowat: u32;
        /// Sets [`ListenOptions::reuse`].
        #[cfg(feature = "local")]
        reuse: megapipe_stack::Reuse;
    }

    /// Sets [`ListenOptions::cpu_mask`].
    #[must_use]
    pub const fn cpu_mask(mut self, mask: CpuMask) -> Self {
        self.cpu_mask = Some(mask);
        self
    }
}

/// The options of a connection attempt.
///
/// # Examples
/// ```
/// use megapipe::ConnectOptions;
/// use std::time::Duration;
///
/// let options = ConnectOptions::default()
///     .timeout(Duration::from_secs(5))
///     .bind("127.0.0.1:0".parse()?)
///     .nodelay(false);
/// assert_eq!(options.timeout, Some(Duration::from_secs(5)));
/// # Ok::<(), megapipe::AddressError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The attempt fails after this time with `OpError::TimedOut`. `None`: the kernel's time-out
    /// (minutes).
    pub timeout: Option<Duration>,
    /// The local address. `None`: the kernel chooses.
    pub bind: Option<Address>,
    /// Send small segments at once (TCP_NODELAY). Default: on.
    pub nodelay: bool,
    /// `unregister` resets the connection instead of closing it in order (SO_LINGER 0). For load
    /// generators, which otherwise exhaust the ports with connections in TIME-WAIT.
    pub reset_on_close: bool,
    /// TCP Fast Open as a client (RFC 7413), TCP only: with a cookie of the peer, the SYN waits for
    /// the first write and carries its first bytes; without one, the handshake is the usual one and
    /// requests a cookie. Write without waiting for `Event::Connect`: on the kernel it comes before
    /// the SYN is sent, on our own stack when the handshake is complete, and no SYN is sent before
    /// a write. The data arrives twice if the network duplicates the SYN: use it for idempotent
    /// requests. Default: off. On the kernel this is TCP_FASTOPEN_CONNECT, which
    /// `net.ipv4.tcp_fastopen` may forbid.
    pub fast_open: bool,
    /// Limit of the unsent bytes, beyond which writes wait: as [`ListenOptions::notsent_lowat`].
    /// Default: 0, no limit.
    pub notsent_lowat: u32,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            timeout: None,
            bind: None,
            nodelay: true,
            reset_on_close: false,
            fast_open: false,
            notsent_lowat: 0,
        }
    }
}

impl ConnectOptions {
    const_setters! {
        /// Sets [`ConnectOptions::nodelay`].
        nodelay: bool;
        /// Sets [`ConnectOptions::reset_on_close`].
        reset_on_close: bool;
        /// Sets [`ConnectOptions::fast_open`].
        fast_open: bool;
        /// Sets [`ConnectOptions::notsent_lowat`].
        notsent_lowat: u32;
    }

    /// Sets [`ConnectOptions::timeout`].
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets [`ConnectOptions::bind`].
    #[must_use]
    pub fn bind(mut self, address: Address) -> Self {
        self.bind = Some(address);
        self
    }
}

/// Which datagram socket `socket` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// UDP on IPv4.
    Udp4,
    /// UDP on IPv6.
    Udp6,
    /// UNIX datagrams.
    UnixDatagram,
}

/// The options of opening a file. Start from [`OpenOptions::read`] or [`OpenOptions::write`].
///
/// # Examples
/// ```
/// use megapipe::OpenOptions;
///
/// let log = OpenOptions::write().append(true);
/// assert!(log.create && !log.truncate);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Make the file if it is missing (mode 0666 less the umask).
    pub create: bool,
    /// Fail if the file exists (with `create`).
    pub create_new: bool,
    /// Cut the file to nothing.
    pub truncate: bool,
    /// Each write goes to the end.
    pub append: bool,
}

impl OpenOptions {
    const_setters! {
        /// Sets [`OpenOptions::truncate`].
        truncate: bool;
        /// Sets [`OpenOptions::append`].
        append: bool;
    }

    /// For reading.
    #[must_use]
    pub const fn read() -> Self {
        Self {
            read: true,
            write: false,
            create: false,
            create_new: false,
            truncate: false,
            append: false,
        }
    }

    /// For reading and writing, made if missing.
    #[must_use]
    pub const fn write() -> Self {
        Self { write: true, create: true, ..Self::read() }
    }

    /// Sets [`OpenOptions::create_new`] and `create`.
    #[must_use]
    pub const fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self.create |= create_new;
        self
    }
}
