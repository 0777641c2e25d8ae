//! Signals while a call waits: which calls end with EINTR, and which go on, as in signal(7).
//!
//! The same calls wait on Linux's sockets and on ours, on a thread of their own. It gets a signal
//! while it sleeps, and then what the call waits for: a call that goes on answers that.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use megapipe::Clock;
use megapipe_sockets::{
    Bsd, Config, Context, Driving, EpollEvent, EpollOp, Error, Events, FdSet, MsgFlags, OpenFlags,
    PollFd, SharedContext, SignalMask,
};

use crate::linux::signal_set;
use crate::threads::is_asleep;
use crate::world::{STACK_IPS, StackPlace, stack_configs};

/// Handlers are the process's: one test at a time has them.
static HANDLERS: Mutex<()> = Mutex::new(());
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(_signal: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// Installs the handler of SIGUSR1.
fn handle(flags: libc::c_int) {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all zeroes are a `sigaction` without handler, mask and flags.
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = count as *const () as libc::sighandler_t;
    action.sa_flags = flags;
    // SAFETY: `action` is whole, and its handler does what a handler may: it counts.
    let installed = unsafe { libc::sigaction(libc::SIGUSR1, action, std::ptr::null_mut()) };
    assert_eq!(installed, 0);
}

/// What waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Recv,
    /// With SO_RCVTIMEO.
    RecvInTime,
    /// MSG_WAITALL, with one byte there.
    RecvAll,
    RecvFrom,
    Accept,
    EpollWait,
    /// With a time-out.
    EpollWaitInTime,
    Poll,
    Select,
    /// On a set with a pipe of the process in it.
    EpollWaitMixed,
    PollMixed,
    /// With a mask that blocks the signal.
    EpollPwaitBlocked,
    PpollBlocked,
    PselectBlocked,
    /// The thread blocks the signal, and the call's mask lets it in.
    EpollPwaitLetIn,
    PpollLetIn,
    PselectLetIn,
}

impl Call {
    /// The call's own mask, as the kernel has it.
    fn mask(self) -> Option<u64> {
        match self {
            Self::EpollPwaitBlocked | Self::PpollBlocked | Self::PselectBlocked => {
                Some(1 << (libc::SIGUSR1 - 1))
            }
            Self::EpollPwaitLetIn | Self::PpollLetIn | Self::PselectLetIn => Some(0),
            _ => None,
        }
    }

    /// Blocks the signal on the calling thread, if the call is to let it in.
    fn prepare(self) {
        if self.mask() == Some(0) {
            let set = signal_set(1 << (libc::SIGUSR1 - 1));
            let (how, none) = (libc::SIG_BLOCK, std::ptr::null_mut());
            // SAFETY: the set outlives the call, and the old one is not asked for.
            assert_eq!(unsafe { libc::pthread_sigmask(how, &raw const set, none) }, 0);
        }
    }
}

const CALLS: [Call; 17] = [
    Call::Recv,
    Call::RecvInTime,
    Call::RecvAll,
    Call::RecvFrom,
    Call::Accept,
    Call::EpollWait,
    Call::EpollWaitInTime,
    Call::Poll,
    Call::Select,
    Call::EpollWaitMixed,
    Call::PollMixed,
    Call::EpollPwaitBlocked,
    Call::PpollBlocked,
    Call::PselectBlocked,
    Call::EpollPwaitLetIn,
    Call::PpollLetIn,
    Call::PselectLetIn,
];

/// Longer than any test.
const LONG: Duration = Duration::from_secs(30);

/// What a call answered: a count, or an error number.
type Answer = Result<usize, i32>;

/// Where a program runs: it makes what a call needs, and calls.
trait Place {
    /// Begins the call, after telling that all is ready. What brings its event is called once the
    /// signal has been handled.
    fn run(&self, call: Call, ready: &dyn Fn(SocketAddr)) -> Answer;
    /// Brings what the call waits for, unless the call is over before that.
    fn bring(&self, call: Call, address: SocketAddr, is_over: &dyn Fn() -> bool);
}

/// As SO_RCVTIMEO and SO_SNDTIMEO have it.
pub(crate) fn timeval(time: Duration) -> Vec<u8> {
    [(time.as_secs() as i64).to_ne_bytes(), i64::from(time.subsec_micros()).to_ne_bytes()].concat()
}

/// Our sockets, one context for the call and one for who brings its event.
fn run_on<C: Bsd>(
    context: &mut C,
    ip: SocketAddr,
    call: Call,
    ready: &dyn Fn(SocketAddr),
) -> Answer {
    let kind = if call == Call::RecvFrom { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    let fd = context.socket(libc::AF_INET, kind, 0).unwrap();
    context.bind(fd, ip).unwrap();
    let address = context.getsockname(fd).unwrap();
    if call == Call::RecvFrom {
        ready(address);
        return told(context.recv(fd, &mut [0; 8], MsgFlags::empty()));
    }
    context.listen(fd, 4).unwrap();
    if call == Call::Accept {
        ready(address);
        return told(context.accept4(fd, OpenFlags::empty()).map(|_| 0));
    }
    // The thread that brings the event connects first, and sends its byte later.
    ready(address);
    let fd = context.accept4(fd, OpenFlags::empty()).unwrap();
    match call {
        Call::RecvInTime => {
            let value = timeval(LONG);
            context.setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &value).unwrap();
        }
        Call::RecvAll => {
            let flags = MsgFlags::PEEK;
            assert_eq!(context.recv(fd, &mut [0; 1], flags), Ok(1));
        }
        _ => {}
    }
    let set = context.epoll_create1(OpenFlags::empty()).unwrap();
    let event = EpollEvent { events: Events::IN, data: 0 };
    context.epoll_ctl(set, EpollOp::Add(event), fd).unwrap();
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    if call == Call::EpollWaitMixed {
        context.epoll_ctl(set, EpollOp::Add(event), &reader).unwrap();
    }
    call.prepare();
    ready(address);
    let mut events = [EpollEvent::default(); 1];
    let mask = call.mask().map(SignalMask::from_bits);
    let mut sets: [FdSet; 3] = [vec![1 << fd], vec![0], vec![0]];
    told(match call {
        Call::Recv | Call::RecvInTime => context.read(fd, &mut [0; 8]),
        Call::RecvAll => context.recv(fd, &mut [0; 2], MsgFlags::WAITALL),
        Call::EpollWait | Call::EpollWaitMixed => context.epoll_wait(set, &mut events, None),
        Call::EpollWaitInTime => context.epoll_wait(set, &mut events, Some(LONG)),
        Call::EpollPwaitBlocked | Call::EpollPwaitLetIn => {
            context.epoll_pwait(set, &mut events, None, mask)
        }
        Call::Poll => context.poll(&mut [PollFd::new(fd, Events::IN)], None),
        Call::PollMixed => {
            let pipe = PollFd::new(&reader, Events::IN);
            context.poll(&mut [PollFd::new(fd, Events::IN), pipe], None)
        }
        Call::PpollBlocked | Call::PpollLetIn => {
            context.ppoll(&mut [PollFd::new(fd, Events::IN)], None, mask)
        }
        Call::Select => context.select(&mut sets, None),
        _ => context.pselect(&mut sets, None, mask),
    })
}

fn told(result: Result<usize, Error>) -> Answer {
    result.map_err(Error::raw_os_error)
}

/// What happens to a call that waits when a signal comes.
fn interrupt(place: &(dyn Place + Sync), call: Call) -> Answer {
    let before = HANDLED.load(Ordering::SeqCst);
    let (sender, addresses) = mpsc::channel();
    std::thread::scope(|scope| {
        let caller = scope.spawn(move || {
            let sender = sender;
            let thread = rustix::thread::gettid();
            // SAFETY: the calling thread's own handle.
            let handle = unsafe { libc::pthread_self() } as usize;
            place.run(call, &|address| sender.send((address, thread, handle)).unwrap())
        });
        let is_over = || caller.is_finished();
        let (mut address, mut thread, mut handle) = addresses.recv().unwrap();
        let is_stream = !matches!(call, Call::RecvFrom | Call::Accept);
        if is_stream {
            place.bring(Call::Accept, address, &is_over);
            if call == Call::RecvAll {
                place.bring(Call::Recv, address, &is_over);
            }
            (address, thread, handle) = addresses.recv().unwrap();
        }
        let start = Instant::now();
        let wait = |done: &dyn Fn() -> bool| {
            while !done() && start.elapsed() < LONG {
                std::thread::sleep(Duration::from_millis(1));
            }
            done()
        };
        // It may sleep for something else on its way; then it is soon awake again.
        std::thread::sleep(Duration::from_millis(5));
        let slept = wait(&|| is_asleep(thread));
        // SAFETY: the thread has not been joined, so its handle is valid.
        let sent = unsafe { libc::pthread_kill(handle as libc::pthread_t, libc::SIGUSR1) };
        assert_eq!(sent, 0);
        let is_blocked = call.mask() == Some(1 << (libc::SIGUSR1 - 1));
        let handled = is_blocked || wait(&|| HANDLED.load(Ordering::SeqCst) > before);
        std::thread::sleep(Duration::from_millis(5));
        let woke = wait(&|| is_over() || is_asleep(thread));
        // Whatever has become of it so far, it ends.
        place.bring(if is_stream { Call::Recv } else { call }, address, &is_over);
        let answer = caller.join().unwrap();
        assert!(slept && handled && woke, "{call:?}: {slept}, {handled}, {woke}");
        answer
    })
}

/// Linux's peers, by what they are connected to.
#[derive(Default)]
struct Peers {
    streams: Mutex<BTreeMap<SocketAddr, std::net::TcpStream>>,
}

impl Peers {
    fn bring(&self, call: Call, address: SocketAddr) {
        use std::io::Write;
        let mut streams = self.streams.lock().unwrap();
        match call {
            Call::RecvFrom => {
                let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.send_to(b"x", address).unwrap();
            }
            Call::Accept => {
                // Who was interrupted may be gone.
                if let Ok(stream) = std::net::TcpStream::connect(address) {
                    streams.insert(address, stream);
                }
            }
            _ => {
                // Who was interrupted may be gone.
                let _ = streams.get_mut(&address).unwrap().write_all(b"x");
            }
        }
    }
}

fn checked(answer: libc::ssize_t) -> Answer {
    match usize::try_from(answer) {
        Ok(count) => Ok(count),
        Err(_) => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

fn receive(fd: i32, len: usize, flags: i32, bytes: &mut [u8; 8]) -> Answer {
    assert!(len <= bytes.len());
    // SAFETY: `len` is at most the array's.
    checked(unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), len, flags) })
}

/// The call, on a connection, a set with it in, and the end of a pipe.
fn wait_on_linux(call: Call, fd: i32, set: BorrowedFd<'_>, reader: BorrowedFd<'_>) -> Answer {
    let mut bytes = [0_u8; 8];
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let mask = call.mask().map(signal_set);
    let mask = mask.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let wait = |timeout_ms, event: *mut libc::epoll_event| {
        let set = set.as_raw_fd();
        // SAFETY: there is room for one event, and the mask is null or a signal set.
        checked(unsafe { libc::epoll_pwait(set, event, 1, timeout_ms, mask) } as isize)
    };
    let none: *mut libc::c_void = std::ptr::null_mut();
    match call {
        Call::Recv | Call::RecvInTime => receive(fd, 8, 0, &mut bytes),
        Call::RecvAll => receive(fd, 2, libc::MSG_WAITALL, &mut bytes),
        Call::EpollWait
        | Call::EpollWaitMixed
        | Call::EpollPwaitBlocked
        | Call::EpollPwaitLetIn => wait(-1, &raw mut event),
        Call::EpollWaitInTime => wait(LONG.as_millis() as i32, &raw mut event),
        Call::Poll | Call::PollMixed | Call::PpollBlocked | Call::PpollLetIn => {
            let asked = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut polled = [asked(fd), asked(reader.as_raw_fd())];
            let count = if call == Call::PollMixed { 2 } else { 1 };
            // SAFETY: no more than two entries, which outlive the call, as does the mask.
            checked(unsafe { libc::ppoll(polled.as_mut_ptr(), count, none.cast(), mask) } as _)
        }
        _ => {
            let mut readers = MaybeUninit::<libc::fd_set>::zeroed();
            // SAFETY: all zeroes are the empty set, and the descriptor is below its size.
            unsafe { libc::FD_SET(fd, readers.as_mut_ptr()) };
            let readers = readers.as_mut_ptr();
            let (none, no_time) = (none.cast(), none.cast::<libc::timespec>());
            // SAFETY: the set and the mask outlive the call.
            let count = unsafe { libc::pselect(fd + 1, readers, none, none, no_time, mask) };
            checked(count as isize)
        }
    }
}

/// Linux's own sockets.
struct OnLinux(Peers);

impl Place for OnLinux {
    fn run(&self, call: Call, ready: &dyn Fn(SocketAddr)) -> Answer {
        let mut bytes = [0_u8; 8];
        if call == Call::RecvFrom {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            ready(socket.local_addr().unwrap());
            return receive(socket.as_raw_fd(), 8, 0, &mut bytes);
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        ready(address);
        let nowhere = std::ptr::null_mut();
        // SAFETY: no address is asked for.
        let accepted = unsafe { libc::accept(listener.as_raw_fd(), nowhere, nowhere.cast()) };
        let accepted = checked(accepted as libc::ssize_t)?;
        // SAFETY: the descriptor was made just now, and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(accepted as i32) };
        if call == Call::Accept {
            return Ok(0);
        }
        let fd = socket.as_raw_fd();
        match call {
            Call::RecvInTime => {
                let stream = std::net::TcpStream::from(socket.try_clone().unwrap());
                stream.set_read_timeout(Some(LONG)).unwrap();
            }
            Call::RecvAll => {
                assert_eq!(receive(fd, 1, libc::MSG_PEEK, &mut bytes), Ok(1));
            }
            _ => {}
        }
        // SAFETY: no pointer is given.
        let set = unsafe { libc::epoll_create1(0) };
        // SAFETY: as above.
        let set = unsafe { OwnedFd::from_raw_fd(set) };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: `event` outlives the call.
        let added =
            unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        assert_eq!(added, 0);
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        if call == Call::EpollWaitMixed {
            let data = rustix::event::epoll::EventData::new_u64(0);
            let events = rustix::event::epoll::EventFlags::IN;
            rustix::event::epoll::add(&set, &reader, data, events).unwrap();
        }
        call.prepare();
        ready(address);
        wait_on_linux(call, fd, set.as_fd(), reader.as_fd())
    }

    fn bring(&self, call: Call, address: SocketAddr, _: &dyn Fn() -> bool) {
        self.0.bring(call, address);
    }
}

/// A context of one thread on the kernel.
struct OnKernel(Peers, megapipe::DriverChoice);

impl Place for OnKernel {
    fn run(&self, call: Call, ready: &dyn Fn(SocketAddr)) -> Answer {
        let channel = megapipe::Config::default().driver(self.1);
        let mut context = Context::create(Config::default().channel(channel)).unwrap();
        run_on(&mut context, "127.0.0.1:0".parse().unwrap(), call, ready)
    }

    fn bring(&self, call: Call, address: SocketAddr, _: &dyn Fn() -> bool) {
        self.0.bring(call, address);
    }
}

/// A context that threads share, on the kernel; with a thread that waits already, or not.
struct Shared(Peers, SharedContext);

impl Shared {
    fn new() -> Self {
        let context = SharedContext::create(Config::default(), Driving::Callers).unwrap();
        Self(Peers::default(), context)
    }
}

impl Place for Shared {
    fn run(&self, call: Call, ready: &dyn Fn(SocketAddr)) -> Answer {
        let mut context = self.1.clone();
        run_on(&mut context, "127.0.0.1:0".parse().unwrap(), call, ready)
    }

    fn bring(&self, call: Call, address: SocketAddr, _: &dyn Fn() -> bool) {
        self.0.bring(call, address);
    }
}

/// A context of one thread on our own stack, and another one that brings the events.
struct OnStack {
    server: Mutex<Option<Config>>,
    client: Mutex<(SharedContext, BTreeMap<SocketAddr, i32>)>,
}

impl OnStack {
    fn new() -> Self {
        let [server, client] = stack_configs(&Clock::new(), StackPlace::INLINE);
        let client = SharedContext::create(client, Driving::Callers).unwrap();
        Self { server: Mutex::new(Some(server)), client: Mutex::new((client, BTreeMap::new())) }
    }
}

impl Place for OnStack {
    fn run(&self, call: Call, ready: &dyn Fn(SocketAddr)) -> Answer {
        let config = self.server.lock().unwrap().take().unwrap();
        let mut context = Context::create(config).unwrap();
        run_on(&mut context, SocketAddr::new(STACK_IPS[0].into(), 0), call, ready)
    }

    fn bring(&self, call: Call, address: SocketAddr, is_over: &dyn Fn() -> bool) {
        let mut client = self.client.lock().unwrap();
        let (context, streams) = &mut *client;
        match call {
            Call::RecvFrom => {
                let fd = context.socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
                context.connect(fd, Some(address)).unwrap();
                context.write(fd, b"x").unwrap();
            }
            Call::Accept => {
                let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
                let fd = context.socket(libc::AF_INET, kind, 0).unwrap();
                let begun = context.connect(fd, Some(address));
                assert_eq!(begun, Err(Error::InProgress));
                // Nothing else drives this side, and the thread that would answer may be late, or
                // gone.
                let mut room = [PollFd::new(fd, Events::OUT)];
                let mut poll = || context.poll(&mut room, Some(Duration::from_millis(20)));
                while poll() == Ok(0) && !is_over() {}
                streams.insert(address, fd);
            }
            _ => {
                // Who was interrupted may be gone.
                let _ = context.write(streams[&address], b"x");
            }
        }
    }
}

pub(crate) fn with_handlers(flags: libc::c_int, test: impl FnOnce()) {
    let _one_at_a_time = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
    handle(flags);
    test();
}

fn compare_signals(flags: libc::c_int) {
    with_handlers(flags, || {
        let linux: BTreeMap<Call, Answer> = CALLS
            .into_iter()
            .map(|call| (call, interrupt(&OnLinux(Peers::default()), call)))
            .collect();
        println!("Linux: {linux:?}");
        assert_eq!(linux[&Call::EpollWait], Err(libc::EINTR), "the signal came in time");
        let check = |place: &(dyn Place + Sync), name: &str, call: Call| {
            assert_eq!(interrupt(place, call), linux[&call], "{call:?}, {name}");
        };
        for call in CALLS {
            let kernel = |driver| OnKernel(Peers::default(), driver);
            check(&kernel(megapipe::DriverChoice::Epoll), "on the kernel by epoll", call);
            let probe = megapipe::Config::default().driver(megapipe::DriverChoice::Uring);
            if megapipe::Channel::create(probe).is_ok() {
                check(&kernel(megapipe::DriverChoice::Uring), "on the kernel by io_uring", call);
            }
            check(&Shared::new(), "in a context that threads share", call);
            check(&OnStack::new(), "on our own stack", call);
        }
    });
}

#[test]
fn a_handler_without_sa_restart_ends_calls_as_on_linux() {
    compare_signals(0);
}

#[test]
fn a_handler_with_sa_restart_ends_those_calls_that_linux_does_not_restart() {
    compare_signals(libc::SA_RESTART);
}

/// While another thread leads, who follows it sleeps on a futex of its own.
#[test]
fn followers_and_leaders_are_interrupted_and_no_other() {
    for (flags, goes_on) in [(0, false), (libc::SA_RESTART, true)] {
        with_handlers(flags, || {
            let place = Shared::new();
            let mut leader = place.1.clone();
            let set = leader.epoll_create1(OpenFlags::empty()).unwrap();
            std::thread::scope(|scope| {
                let leading = scope.spawn(move || {
                    let mut events = [EpollEvent::default(); 1];
                    leader.epoll_wait(set, &mut events, Some(Duration::from_secs(2)))
                });
                while place.1.sleeping() == 0 {
                    std::thread::yield_now();
                }
                let recv = if goes_on { Ok(1) } else { Err(libc::EINTR) };
                assert_eq!(interrupt(&place, Call::RecvFrom), recv);
                assert_eq!(interrupt(&place, Call::EpollWait), Err(libc::EINTR));
                assert_eq!(interrupt(&place, Call::EpollPwaitLetIn), Err(libc::EINTR));
                assert_eq!(interrupt(&place, Call::EpollPwaitBlocked), Ok(1));
                assert_eq!(leading.join().unwrap(), Ok(0), "the signal was not for it");
            });
        });
    }
}
