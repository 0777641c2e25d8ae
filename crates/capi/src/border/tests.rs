//! Tests of calls while no memory is left, and of calls from inside malloc(3).
//!
//! The allocator of the test program fails on demand of the running thread. Code that expects
//! memory then ends the process, and with it the test.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::ptr;
use std::time::Duration;

use libc::{iovec, sockaddr, sockaddr_in};

use crate::abi::{mp_cmd, mp_driver, mp_event, mp_handle_t};
use crate::calls::completions::mp_dispatch;
use crate::calls::inspection::mp_last_error;
use crate::calls::lifecycle::{defaults, mp_create, mp_destroy};
use crate::calls::membership::{mp_register, mp_unregister};
use crate::calls::operations::{mp_read, mp_sendto, mp_write, mp_write_quiet, mp_writev};
use crate::object::mp_channel_t;

/// More than a buffer of the channel's pool holds.
const LARGE: usize = 5000;
const SECONDS: i64 = 1_000_000_000;

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

thread_local! {
    /// Whether allocations fail.
    static REFUSING: Cell<bool> = const { Cell::new(false) };
    /// Allocations and deallocations since it was set to 0.
    static CALLS: Cell<usize> = const { Cell::new(0) };
    /// The next allocation is interrupted by a write to this handle.
    static INTERRUPTED: Cell<mp_handle_t> = const { Cell::new(0) };
    /// The result of that write, and its errno.
    static ANSWER: Cell<(c_int, c_int)> = const { Cell::new((0, 0)) };
}

// SAFETY: memory comes from the system's allocator, or the allocation fails with a null pointer.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        let handle = INTERRUPTED.replace(0);
        if handle != 0 {
            write_inside_malloc(handle);
        }
        match REFUSING.get() {
            true => ptr::null_mut(),
            // SAFETY: the caller keeps the contract.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        // SAFETY: the memory came from `System` by `alloc`.
        unsafe { System.dealloc(memory, layout) };
    }
}

/// A signal handler that interrupts a call while it allocates.
fn write_inside_malloc(handle: mp_handle_t) {
    CALLS.set(0);
    // SAFETY: the byte is readable.
    let written = unsafe { mp_write(handle, b"x".as_ptr().cast(), 1) };
    assert_eq!(CALLS.get(), 0, "an error answer uses malloc(3)");
    ANSWER.set((written, errno()));
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

fn last_error() -> &'static str {
    // SAFETY: the text ends with a NUL and stays for as long as the thread makes no other call.
    unsafe { CStr::from_ptr(mp_last_error()) }.to_str().expect("UTF-8")
}

fn without_memory<T>(work: impl FnOnce() -> T) -> T {
    REFUSING.set(true);
    let result = work();
    REFUSING.set(false);
    result
}

struct Scene(*mut mp_channel_t);

impl Scene {
    /// A channel on a driver; `None` if the kernel has none.
    fn new(driver: mp_driver) -> Option<Self> {
        let mut config = defaults(size_of::<crate::abi::mp_config>());
        config.driver = driver as u32;
        // SAFETY: the record is whole.
        let channel = unsafe { mp_create(&raw const config) };
        (!channel.is_null()).then_some(Self(channel))
    }

    fn register(&self, fd: impl IntoRawFd) -> mp_handle_t {
        // SAFETY: the channel is live.
        let handle = unsafe { mp_register(self.0, fd.into_raw_fd(), ptr::null_mut(), 0) };
        assert_ne!(handle, 0, "{}", last_error());
        handle
    }

    fn next(&self) -> mp_event {
        let mut event = mp_event::new(mp_cmd::MP_WAKE, 0, 0);
        // SAFETY: the channel is live, and the event writable.
        let count = unsafe { mp_dispatch(self.0, &raw mut event, 20 * SECONDS) };
        assert_eq!(count, 1, "{}", last_error());
        event
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // SAFETY: the channel is live, and not used any more.
        unsafe { mp_destroy(self.0) };
    }
}

fn on_each_driver(test: impl Fn(&Scene)) {
    for driver in [mp_driver::MP_DRIVER_URING, mp_driver::MP_DRIVER_EPOLL] {
        match Scene::new(driver) {
            Some(scene) => test(&scene),
            None => println!("skipped: a kernel driver: {}", last_error()),
        }
    }
}

fn pair(scene: &Scene) -> (mp_handle_t, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    theirs.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    (scene.register(ours), theirs)
}

/// Makes each call once while memory is available, so that the tables have their size.
fn warm_up(scene: &Scene, handle: mp_handle_t, peer: &mut UnixStream) {
    let bytes = [1_u8; LARGE];
    for _ in 0..8 {
        // SAFETY: the bytes are readable.
        assert_eq!(unsafe { mp_write(handle, bytes.as_ptr().cast(), LARGE) }, 0);
        assert_eq!(scene.next().error, 0);
        peer.read_exact(&mut [0; LARGE]).expect("it arrives");
    }
}

#[track_caller]
fn expect_no_memory(call: &str, result: c_int) {
    assert_eq!((result, errno()), (-1, libc::ENOMEM), "{call}");
    assert!(last_error().starts_with(&format!("{call}: ")), "{}", last_error());
}

#[test]
fn write_without_memory_returns_enomem() {
    on_each_driver(|scene| {
        let (handle, mut peer) = pair(scene);
        warm_up(scene, handle, &mut peer);
        let bytes = vec![7_u8; 2 << 20];
        let at = bytes.as_ptr().cast::<c_void>();
        for size in [LARGE, 100_000, 1 << 20, 2 << 20] {
            // SAFETY: the bytes are readable.
            let written = without_memory(|| unsafe { mp_write(handle, at, size) });
            expect_no_memory("mp_write", written);
            // SAFETY: the same.
            let written = without_memory(|| unsafe { mp_write_quiet(handle, at, size) });
            expect_no_memory("mp_write_quiet", written);
            let part = iovec { iov_base: at.cast_mut(), iov_len: size / 2 };
            // SAFETY: the parts are readable.
            let written = without_memory(|| unsafe { mp_writev(handle, [part; 2].as_ptr(), 2) });
            expect_no_memory("mp_writev", written);
        }
        // Bytes that fit into the channel's own memory are still sent, and nothing else.
        // SAFETY: the bytes are readable.
        assert_eq!(without_memory(|| unsafe { mp_write(handle, at, 100) }), 0);
        assert_eq!(scene.next().size, 100);
        // SAFETY: nothing else uses the handle.
        unsafe { mp_unregister(handle, ptr::null_mut()) };
        let mut all = Vec::new();
        peer.set_nonblocking(true).expect("a socket");
        let _ = peer.read_to_end(&mut all);
        assert_eq!(all, [7; 100]);
    });
}

#[test]
fn sendto_without_memory_returns_enomem() {
    on_each_driver(|scene| {
        let peer = UdpSocket::bind("127.0.0.1:0").expect("binds");
        let SocketAddr::V4(address) = peer.local_addr().expect("bound") else { return };
        let to = sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: address.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
            sin_zero: [0; 8],
        };
        let handle = scene.register(UdpSocket::bind("127.0.0.1:0").expect("binds"));
        let bytes = [7_u8; LARGE];
        let send = |size| {
            let to = (&raw const to).cast::<sockaddr>();
            // SAFETY: bytes and address are readable.
            unsafe { mp_sendto(handle, bytes.as_ptr().cast(), size, to, 16) }
        };
        assert_eq!((send(10), scene.next().error), (0, 0));
        expect_no_memory("mp_sendto", without_memory(|| send(LARGE)));
        // The bytes fit into the channel's memory, the address does not.
        assert_eq!(without_memory(|| send(10)), 0);
        assert_eq!(scene.next().error, libc::ENOMEM);
        assert_eq!((send(10), scene.next().error), (0, 0));
    });
}

#[test]
fn read_without_memory_completes_with_enomem() {
    on_each_driver(|scene| {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let handle = scene.register(reader);
        let mut room = vec![0_u8; 1 << 20];
        let at = room.as_mut_ptr().cast::<c_void>();
        let read = |writer: &mut dyn Write| {
            writer.write_all(b"hello").expect("a write to the pipe");
            // SAFETY: the memory is writable until the event.
            unsafe { mp_read(handle, at, 1 << 20) }
        };
        let mut writer = writer;
        assert_eq!((read(&mut writer), scene.next().size), (0, 5));
        let event = without_memory(|| {
            assert_eq!(read(&mut writer), 0);
            scene.next()
        });
        assert_eq!(event.error, libc::ENOMEM);
        assert_eq!((read(&mut writer), scene.next().size), (0, 10));
    });
}

#[test]
fn call_inside_malloc_returns_edeadlk_without_malloc() {
    on_each_driver(|scene| {
        let (handle, mut peer) = pair(scene);
        warm_up(scene, handle, &mut peer);
        let bytes = [7_u8; LARGE];
        INTERRUPTED.set(handle);
        // SAFETY: the bytes are readable.
        assert_eq!(unsafe { mp_write(handle, bytes.as_ptr().cast(), LARGE) }, 0);
        assert_eq!(INTERRUPTED.get(), 0, "the write allocates");
        assert_eq!(ANSWER.get(), (-1, libc::EDEADLK));
        assert_eq!(scene.next().size, LARGE);
    });
}

#[test]
fn error_answers_do_not_allocate() {
    on_each_driver(|scene| {
        let (handle, _peer) = pair(scene);
        let (stale, _other) = pair(scene);
        // SAFETY: the handle is not used any more, except to check that it is stale.
        assert_eq!(unsafe { mp_unregister(stale, ptr::null_mut()) }, 0);
        let x = b"x".as_ptr().cast();
        CALLS.set(0);
        // SAFETY: the byte is readable, and invalid memory is rejected.
        let write = |handle, at, size| unsafe { mp_write(handle, at, size) };
        // SAFETY: null is rejected.
        let writev = || unsafe { mp_writev(handle, ptr::null(), 3) };
        // SAFETY: the channel is live, and null is rejected.
        let dispatch = || unsafe { mp_dispatch(scene.0, ptr::null_mut(), 0) };
        let answers = without_memory(|| {
            [
                (write(stale, x, 1), errno()),
                (write(0, x, 1), errno()),
                (write(handle, ptr::null(), 1), errno()),
                (write(handle, x, usize::MAX), errno()),
                (write(handle, x, 0), errno()),
                (writev(), errno()),
                (dispatch(), errno()),
            ]
        });
        assert_eq!(CALLS.get(), 0);
        let expected = [
            libc::EBADF,
            libc::EBADF,
            libc::EFAULT,
            libc::EINVAL,
            libc::EINVAL,
            libc::EFAULT,
            libc::EFAULT,
        ];
        assert_eq!(answers, expected.map(|errno| (-1, errno)));
        // The kernel's own errors have a text as well.
        let directory = File::open("/").expect("there is a root");
        // SAFETY: the channel is live.
        let refused = unsafe { mp_register(scene.0, directory.into_raw_fd(), ptr::null_mut(), 0) };
        assert_eq!(refused, 0);
        CALLS.set(0);
        let error = std::io::Error::from_raw_os_error(libc::ENOMEM);
        crate::error::set_last("mp_dispatch", &error.into());
        assert_eq!(CALLS.get(), 0);
        assert_eq!(last_error(), "mp_dispatch: Cannot allocate memory (os error 12)");
    });
}
