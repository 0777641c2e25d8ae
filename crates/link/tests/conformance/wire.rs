//! A network namespace for one test, and a raw socket that plays the other end of an interface.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use megapipe_link::conformance::FarEnd;

/// Moves the calling thread, and those it starts, into a network namespace of its own, which goes
/// with them. Only IPv4 is on, so that nothing comes unasked.
pub(crate) fn enter_own_namespace() -> Result<(), String> {
    // SAFETY: `unshare` takes no pointer. The network namespace is the calling thread's alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(format!("no network namespace: {}", io::Error::last_os_error()));
    }
    for place in ["all", "default"] {
        let knob = format!("/proc/sys/net/ipv6/conf/{place}/disable_ipv6");
        std::fs::write(knob, "1").map_err(|error| format!("IPv6 stays on: {error}"))?;
    }
    Ok(())
}

/// Runs `ip` with arguments that hold no spaces.
pub(crate) fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.map_err(|error| format!("ip is not installed: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {said}")) }
}

/// Waits until the kernel passes frames on `interface`: some time after it was switched on.
pub(crate) fn until_active(interface: &str) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let output = Command::new("ip").args(["link", "show", interface]).output();
        let said = output.map_err(|error| format!("ip is not installed: {error}"))?.stdout;
        let said = String::from_utf8_lossy(&said);
        if said.contains("LOWER_UP")
            && !said.contains("qdisc noop ")
            && !said.contains("state DOWN")
        {
            return Ok(());
        }
        thread::yield_now();
    }
    Err(format!("{interface} does not come up"))
}

/// The last error of a system call that answered `value`.
pub(crate) fn checked(value: libc::c_int, what: &str) -> Result<libc::c_int, String> {
    if value < 0 { Err(format!("{what}: {}", io::Error::last_os_error())) } else { Ok(value) }
}

/// All frames of one interface, by a packet socket.
pub(crate) struct Wire {
    socket: OwnedFd,
    /// What to do when this end is to go.
    removal: String,
}

impl Wire {
    /// Listens on `interface`; `removal` has the arguments of `ip` when this end is dropped.
    pub(crate) fn open(interface: &str, removal: &str) -> Result<Self, String> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: `socket` takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        let fd = checked(fd, "packet socket")?;
        // SAFETY: the descriptor is new and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let one = 1;
        for (level, option, value) in [
            (libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, one),
            (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 16 << 20),
        ] {
            let pointer = (&raw const value).cast();
            // SAFETY: the options take an `int` of four bytes, which `value` is during the call.
            let done = unsafe { libc::setsockopt(fd, level, option, pointer, 4) };
            checked(done, "packet socket's option")?;
        }
        let name = std::ffi::CString::new(interface).map_err(|error| error.to_string())?;
        // SAFETY: the name is a C string and alive.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        // SAFETY: `sockaddr_ll` is plain memory; all zero is a value of it.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = i32::try_from(index).expect("an index");
        let pointer = (&raw const address).cast();
        // SAFETY: the address is alive during the call and of the length given.
        let done = unsafe { libc::bind(fd, pointer, size_of::<libc::sockaddr_ll>() as u32) };
        checked(done, "bind a packet socket")?;
        Ok(Self { socket, removal: removal.to_owned() })
    }
}

impl FarEnd for Wire {
    fn inject(&mut self, frame: &[u8]) -> bool {
        let sent = rustix::net::send(&self.socket, frame, rustix::net::SendFlags::empty());
        sent.is_ok_and(|bytes| bytes == frame.len())
    }

    fn capture(&mut self, deadline: Instant) -> Option<Vec<u8>> {
        let mut buffer = [0; 70_000];
        loop {
            let flags = libc::MSG_DONTWAIT;
            let fd = self.socket.as_raw_fd();
            let pointer = buffer.as_mut_ptr().cast();
            // SAFETY: the kernel writes at most the buffer's length into it, during the call.
            let bytes = unsafe { libc::recv(fd, pointer, buffer.len(), flags) };
            if let Ok(bytes) = usize::try_from(bytes) {
                return Some(buffer[..bytes].to_vec());
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
            let left_ms = i32::try_from(left.as_millis()).expect("seconds");
            // SAFETY: one entry is alive during the call.
            unsafe { libc::poll(fds.as_mut_ptr(), 1, left_ms) };
        }
    }

    fn leave(self: Box<Self>) {
        ip(&self.removal).expect("the interface goes");
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace of its own, in which a thread runs what it is given.
pub(crate) struct Elsewhere {
    thread: i32,
    jobs: mpsc::Sender<Job>,
}

impl Elsewhere {
    /// Starts the thread; the namespace goes with it.
    pub(crate) fn new() -> Result<Self, String> {
        let (jobs, to_do) = mpsc::channel::<Job>();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let entered = enter_own_namespace();
            // SAFETY: takes nothing and cannot fail.
            let thread = unsafe { libc::gettid() };
            if tell.send(entered.map(|()| thread)).is_ok() {
                to_do.into_iter().for_each(|job| job());
            }
        });
        let thread = told.recv().map_err(|error| error.to_string())??;
        Ok(Self { thread, jobs })
    }

    /// The thread's number, which names the namespace.
    pub(crate) fn thread(&self) -> i32 {
        self.thread
    }

    /// Runs `job` there and waits for its answer.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        let job = Box::new(move || {
            // The asker waits below.
            let _ = tell.send(job());
        });
        self.jobs.send(job).expect("the thread runs until the sender goes");
        told.recv().expect("the job does not panic")
    }
}
