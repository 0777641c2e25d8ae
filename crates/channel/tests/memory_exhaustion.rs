//! Calls that submit operations, set up handles and dispatch, with each of their allocations
//! refused in turn.
//!
//! The allocator of this test program refuses the Nth request for memory inside [`submitting`].
//! Every N runs in a process of its own, because an allocation that expects memory ends the
//! process: the failure then names N.
//!
//! Expected: the call returns [`Limit::Memory`] (or ENOMEM, or goes on without the memory, as
//! `dispatch` may), the same call succeeds when it is repeated, and every byte that was accepted
//! arrives once, in order.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use megapipe::{
    Accept, Address, Channel, Config, ConnectError, ConnectOptions, Disconnect, DispatchError,
    DriverChoice, Event, Handle, Limit, ListenError, ListenOptions, OpError, Payload,
    RegisterError, SubmitError,
};

/// Which request is refused, in a process that runs one scenario.
const REFUSED: &str = "MEGAPIPE_TEST_REFUSED_ALLOCATION";
/// If it is set, a process that refuses prints where.
const TRACE: &str = "MEGAPIPE_TEST_TRACE";
/// Printed where all requests were granted.
const ALL_GRANTED: &str = "every allocation was granted";
/// More than the tables of a new channel have room for.
const OPERATIONS: usize = 240;
const PATIENCE: Duration = Duration::from_secs(20);

struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

thread_local! {
    /// Requests inside [`submitting`] that are granted before one is refused.
    static GRANTED: Cell<Option<usize>> = const { Cell::new(None) };
    static SUBMITTING: Cell<bool> = const { Cell::new(false) };
    /// The refused request was one of `dispatch`, or of another call that may go on without it.
    static GOES_ON: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: memory comes from the system's allocator, or is refused with a null pointer.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if SUBMITTING.get() {
            match GRANTED.get() {
                Some(0) => {
                    GRANTED.set(None);
                    if std::env::var_os(TRACE).is_some() {
                        SUBMITTING.set(false);
                        eprintln!("{}", std::backtrace::Backtrace::force_capture());
                        SUBMITTING.set(true);
                    }
                    return std::ptr::null_mut();
                }
                granted => GRANTED.set(granted.map(|count| count - 1)),
            }
        }
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory came from `System` by `alloc`.
        unsafe { System.dealloc(memory, layout) };
    }
}

fn submitting<T>(call: impl FnOnce() -> T) -> T {
    SUBMITTING.set(true);
    let result = call();
    SUBMITTING.set(false);
    result
}

/// Submits; once more if there was no memory. Says how often there was none.
fn submit(mut call: impl FnMut() -> Result<(), SubmitError>) -> usize {
    match submitting(&mut call) {
        Ok(()) => 0,
        Err(SubmitError::Limit(Limit::Memory)) => {
            assert_eq!(submitting(call), Ok(()), "the second try has memory");
            1
        }
        Err(other) => panic!("{other}"),
    }
}

fn is_no_memory(error: &RegisterError) -> bool {
    match error {
        RegisterError::Limit(limit) => *limit == Limit::Memory,
        RegisterError::Kernel { source, .. } => {
            source.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error())
        }
        _ => false,
    }
}

fn register(channel: &mut Channel) -> (Handle, UnixStream, usize) {
    let (ours, peer) = UnixStream::pair().expect("a socket pair");
    let again = ours.try_clone().expect("a descriptor");
    match submitting(|| channel.register(OwnedFd::from(ours), 0, None)) {
        Ok(handle) => (handle, peer, 0),
        Err(error) if is_no_memory(&error) => {
            let handle = channel.register(OwnedFd::from(again), 0, None).expect("memory again");
            (handle, peer, 1)
        }
        Err(other) => panic!("{other}"),
    }
}

/// Reads and writes in every shape on one connection, with its tables growing meanwhile.
fn stream(driver: DriverChoice) -> usize {
    let mut channel = Channel::create(Config::default().driver(driver)).expect("a channel");
    let (handle, mut peer, mut refused) = register(&mut channel);
    let piece = |round: usize| [round as u8; 10];
    for round in 0..OPERATIONS {
        refused += submit(|| channel.read(handle, 10));
        refused += match round % 3 {
            0 => submit(|| channel.write(handle, Payload::Static(b"0123456789"))),
            1 => submit(|| channel.write_copied(handle, &piece(round)).map(drop)),
            _ => submit(|| channel.writev(handle, ["01234".into(), "01234".into()])),
        };
    }
    refused += submit(|| channel.disconnect(handle, Disconnect::Write));
    for _ in 0..OPERATIONS / 2 {
        use std::io::Write;
        peer.write_all(b"abcdefghij").expect("room in the socket");
    }
    refused + drop_writes(&mut channel, &mut peer)
}

/// The next completion; how often there was no memory for it.
fn next(channel: &mut Channel, refused: &mut usize) -> Event {
    loop {
        let before = GRANTED.get();
        let done = submitting(|| channel.dispatch(Some(PATIENCE)));
        if before.is_some() && GRANTED.get().is_none() {
            GOES_ON.set(true);
        }
        match done {
            Ok(done) => return done.expect("in time").event,
            Err(DispatchError::Kernel(source)) if no_memory(&source) => *refused += 1,
            Err(other) => panic!("{other}"),
        }
    }
}

fn drop_writes(channel: &mut Channel, peer: &mut UnixStream) -> usize {
    let (mut reads, mut ended, mut refused) = (0, false, 0);
    while reads < OPERATIONS / 2 || !ended {
        match next(channel, &mut refused) {
            Event::Read(Ok(bytes)) => reads += usize::from(bytes.len() == 10),
            Event::Disconnect(Ok(())) => ended = true,
            Event::Write(Ok(10)) => {}
            other => panic!("{other:?}"),
        }
    }
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).expect("the peer reads");
    assert_eq!(bytes.len(), OPERATIONS * 10);
    for (round, piece) in bytes.chunks(10).enumerate() {
        match round % 3 {
            0 => assert_eq!(piece, b"0123456789"),
            1 => assert_eq!(piece, [round as u8; 10]),
            _ => assert_eq!(piece, b"0123401234"),
        }
    }
    refused
}

fn no_memory(source: &std::io::Error) -> bool {
    source.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error())
}

/// Listens, connects to it and sets timers, many times: what was refused works when it is repeated,
/// and nothing is left of it.
fn setup(driver: DriverChoice) -> usize {
    let mut channel = Channel::create(Config::default().driver(driver)).expect("a channel");
    let (mut refused, mut timers) = (0, 0);
    let connect_options = ConnectOptions::default().timeout(PATIENCE);
    for round in 0..OPERATIONS / 4 {
        let mut address: Address = "127.0.0.1:0".parse().expect("an address");
        if round % 4 == 0 {
            let (listener, failed) = listen(&mut channel, &address);
            refused += failed;
            address = channel.local_address(listener).expect("a listener has one");
            refused += submit(|| channel.accept(listener, Accept::lwsocket(2)));
            // Were a socket of the refused call left in the group, half of these would be its own.
            for _ in 0..2 {
                refused += connect(&mut channel, &address, &connect_options);
            }
            refused += meet(&mut channel, 2);
        }
        let after = Duration::from_micros(10 * round as u64);
        match submitting(|| channel.timer(after, None, TIMER)) {
            Ok(_) => timers += 1,
            Err(SubmitError::Limit(Limit::Memory)) => {
                refused += 1;
                channel.timer(after, None, TIMER).expect("memory again");
                timers += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    while timers > 0 {
        match next(&mut channel, &mut refused) {
            Event::Timer { .. } => timers -= 1,
            other => panic!("{other:?}"),
        }
    }
    refused
}

const TIMER: u64 = 7;

fn listen(channel: &mut Channel, address: &Address) -> (Handle, usize) {
    let options = ListenOptions::default();
    match submitting(|| channel.listen(address, &options, 0)) {
        Ok(handle) => (handle, 0),
        Err(
            ListenError::Limit(Limit::Memory)
            | ListenError::Register(RegisterError::Limit(Limit::Memory)),
        ) => (channel.listen(address, &options, 0).expect("memory again"), 1),
        Err(ListenError::Kernel { source, .. }) if no_memory(&source) => {
            (channel.listen(address, &options, 0).expect("memory again"), 1)
        }
        Err(other) => panic!("{other}"),
    }
}

fn connect(channel: &mut Channel, address: &Address, options: &ConnectOptions) -> usize {
    match submitting(|| channel.connect(address, options, 0)) {
        Ok(_) => 0,
        Err(ConnectError::Limit(Limit::Memory)) => {
            channel.connect(address, options, 0).expect("memory again");
            1
        }
        Err(ConnectError::Kernel { source, .. }) if no_memory(&source) => {
            channel.connect(address, options, 0).expect("memory again");
            1
        }
        Err(other) => panic!("{other}"),
    }
}

/// So many connections are made and accepted.
fn meet(channel: &mut Channel, count: usize) -> usize {
    let (mut connected, mut accepted) = (0, 0);
    let (mut early, mut refused) = (0, 0);
    while connected < count || accepted < count {
        match next(channel, &mut refused) {
            Event::Connect(Ok(())) => connected += 1,
            Event::Accept(Ok(_)) => accepted += 1,
            // Without memory for its record a connection is closed, and the program knows.
            Event::Accept(Err(OpError::NoMemory)) => {
                refused += 1;
                accepted += 1;
            }
            Event::Timer { .. } => early += 1,
            other => panic!("{other:?}"),
        }
    }
    // They are counted by the caller, too.
    for _ in 0..early {
        channel.timer(Duration::ZERO, None, TIMER).expect("memory");
    }
    refused
}

/// Runs `scenario` in processes of its own until no allocation is refused.
fn each_refused(name: &str, scenario: fn() -> usize) {
    if let Some(number) = std::env::var_os(REFUSED) {
        let number = number.to_str().and_then(|it| it.parse().ok()).expect("a number");
        GRANTED.set(Some(number));
        let refused = scenario();
        if GRANTED.get().is_some() {
            println!("{ALL_GRANTED}");
        } else {
            // `dispatch` has ways without the memory, such as one buffer instead of a vector.
            assert!(
                refused == 1 || (refused == 0 && GOES_ON.get()),
                "the call whose allocation was refused reports it: {refused}"
            );
        }
        return;
    }
    let this = std::env::current_exe().expect("a test has a path");
    for number in 0..1_000 {
        let mut command = Command::new(&this);
        command.args(["--exact", name, "--nocapture"]).env(REFUSED, number.to_string());
        let output = command.output().expect("a test can run itself");
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "allocation {number}: {}\n{text}", output.status);
        if text.contains(ALL_GRANTED) {
            assert!(number > 3, "the scenario allocates");
            return;
        }
    }
    panic!("{name}: more allocations than operations");
}

#[test]
fn epoll_operations_survive_each_failed_allocation() {
    each_refused("epoll_operations_survive_each_failed_allocation", || stream(DriverChoice::Epoll));
}

#[test]
fn uring_operations_survive_each_failed_allocation() {
    if let Err(error) = Channel::create(Config::default().driver(DriverChoice::Uring)) {
        return println!("skipped: uring_operations_survive_each_failed_allocation: {error}");
    }
    each_refused("uring_operations_survive_each_failed_allocation", || stream(DriverChoice::Uring));
}

#[test]
fn epoll_setup_calls_survive_each_failed_allocation() {
    each_refused("epoll_setup_calls_survive_each_failed_allocation", || setup(DriverChoice::Epoll));
}

#[test]
fn uring_setup_calls_survive_each_failed_allocation() {
    if let Err(error) = Channel::create(Config::default().driver(DriverChoice::Uring)) {
        return println!("skipped: uring_setup_calls_survive_each_failed_allocation: {error}");
    }
    each_refused("uring_setup_calls_survive_each_failed_allocation", || setup(DriverChoice::Uring));
}

/// Two channels on our own stack, at both ends of a memif.
#[cfg(feature = "local")]
mod local {
    use std::time::Instant;

    use megapipe::{Backend, LocalNetwork, Placement, ServerConfig};

    use super::*;

    fn network(role: &str, host: u8) -> LocalNetwork {
        let link = format!("memif:@mp-memory-{}{role}", std::process::id());
        let addresses = vec![([10, 9, 9, host].into(), 24)];
        let settings = ServerConfig { addresses, ..ServerConfig::default() };
        LocalNetwork::open(&link, settings).expect("a memif")
    }

    /// A server's channel, and a client's with the placement and few buffers.
    fn channels(placement: Placement) -> [Channel; 2] {
        let server = std::thread::spawn(|| network(",role=server", 1));
        let client = network("", 2);
        let few = Config::default().placement(placement).buffer_count(8).buffer_len(2048);
        [(server.join().expect("no panic"), Config::default()), (client, few)].map(
            |(network, config)| {
                let config = config.driver(DriverChoice::Epoll);
                Channel::create(config.backend(Backend::Local(network))).expect("a channel")
            },
        )
    }

    /// Completions of both channels until `is_over`; calls of the client's are refused memory.
    fn pump(
        [server, client]: &mut [Channel; 2],
        refused: &mut usize,
        mut is_over: impl FnMut(Option<Event>, Option<Event>) -> bool,
    ) {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "it stands still");
            let of_server = server.dispatch(Some(Duration::ZERO)).expect("it has memory");
            let before = GRANTED.get();
            let of_client = submitting(|| client.dispatch(Some(Duration::ZERO)));
            if before.is_some() && GRANTED.get().is_none() {
                GOES_ON.set(true);
            }
            let of_client = match of_client {
                Ok(done) => done,
                Err(DispatchError::Kernel(source)) if no_memory(&source) => {
                    *refused += 1;
                    None
                }
                Err(other) => panic!("{other}"),
            };
            if is_over(of_server.map(|it| it.event), of_client.map(|it| it.event)) {
                return;
            }
        }
    }

    /// Connects. Returns the two ends of the connection, the server's with a read of 4,096 bytes.
    fn connected(channels: &mut [Channel; 2], refused: &mut usize) -> [Handle; 2] {
        let address: Address = "10.9.9.1:80".parse().expect("an address");
        let listener = channels[0].listen(&address, &ListenOptions::default(), 0).expect("ours");
        channels[0].accept(listener, Accept::lwsocket(1).first_read(4096)).expect("a listener");
        let options = ConnectOptions::default();
        let connecting = submitting(|| channels[1].connect(&address, &options, 0));
        let mut handle = match connecting {
            Ok(handle) => handle,
            Err(ConnectError::Limit(Limit::Memory)) => {
                *refused += 1;
                channels[1].connect(&address, &options, 0).expect("memory again")
            }
            Err(other) => panic!("{other}"),
        };
        let mut connection = None;
        let (mut is_connected, mut is_refused) = (false, false);
        while !is_connected || connection.is_none() {
            pump(channels, refused, |of_server, of_client| {
                match of_server {
                    Some(Event::Accept(Ok(accepted))) => connection = Some(accepted.connection),
                    None => {}
                    other => panic!("{other:?}"),
                }
                match of_client {
                    Some(Event::Connect(Ok(()))) => is_connected = true,
                    Some(Event::Connect(Err(OpError::NoMemory))) => is_refused = true,
                    None => {}
                    other => panic!("{other:?}"),
                }
                is_refused || (is_connected && connection.is_some())
            });
            if std::mem::take(&mut is_refused) {
                *refused += 1;
                channels[1].unregister(handle).expect("it is there");
                handle = channels[1].connect(&address, &options, 0).expect("memory again");
            }
        }
        let Some(megapipe::Connection::Lwsocket(reader)) = connection else { panic!() };
        [reader, handle]
    }

    /// A message: its number, its length, and that many bytes that follow from the number.
    fn message(number: u32, len: usize) -> Vec<u8> {
        let mut bytes = [number.to_be_bytes(), (len as u32).to_be_bytes()].concat();
        bytes.extend((0..len).map(|place| (number as usize + place) as u8));
        bytes
    }

    /// The numbers of the messages that bytes consist of.
    fn numbers(mut bytes: &[u8]) -> Vec<u32> {
        let mut numbers = Vec::new();
        while let Some((head, rest)) = bytes.split_first_chunk::<8>() {
            let [number, len] = [0, 4]
                .map(|at| u32::from_be_bytes(*head[at..].first_chunk().expect("eight bytes")));
            let (body, rest) = rest.split_at(len as usize);
            assert_eq!(body, &message(number, body.len())[8..], "message {number}");
            numbers.push(number);
            bytes = rest;
        }
        numbers
    }

    /// Messages that the client writes, and their lengths: short ones, some longer than a buffer,
    /// and some that are sent in pieces.
    const LENS: [usize; 6] = [10, 500, 3000, 20, 70 << 10, 100];
    const MESSAGES: u32 = 18;
    const DATAGRAMS: u32 = 6;

    /// Connects; writes of memory of every kind arrive once and in order, or are refused.
    fn client(placement: Placement) -> usize {
        let mut channels = channels(placement);
        let mut refused = 0;
        let [reader, handle] = connected(&mut channels, &mut refused);
        let before = refused;
        let (mut got, mut want_bytes, mut failed) = (Vec::new(), 0, 0);
        let mut is_reading = true;
        for number in 0..MESSAGES {
            let len = LENS[number as usize % LENS.len()];
            let bytes = message(number, len);
            let client = &mut channels[1];
            let is_granted = GRANTED.get().is_some();
            refused += match number % 5 {
                0 => submit(|| client.write(handle, bytes.clone_granted())),
                1 => submit(|| client.write_copied(handle, &bytes).map(drop)),
                2 => {
                    let shared: std::sync::Arc<[u8]> = bytes.as_slice().into();
                    submit(|| client.write(handle, Payload::shared(shared.clone(), 0..len + 8)))
                }
                3 => {
                    let all: &'static [u8] = bytes.clone().leak();
                    submit(|| client.writev(handle, [all[..7].into(), all[7..].into()]))
                }
                _ => submit(|| client.write_quiet(handle, bytes.clone_granted()).map(drop)),
            };
            if is_granted && GRANTED.get().is_none() {
                // A write for which there is no memory may wait for an acknowledgment.
                GOES_ON.set(true);
            }
            want_bytes += len + 8;
            while got.len() < want_bytes {
                if !std::mem::replace(&mut is_reading, true) {
                    channels[0].read(reader, 4096).expect("a connection");
                }
                let mut is_failed = false;
                pump(&mut channels, &mut refused, |of_server, of_client| {
                    match of_client {
                        Some(Event::Write(Ok(_))) | None => {}
                        Some(Event::Write(Err(OpError::NoMemory))) => is_failed = true,
                        other => panic!("{other:?}"),
                    }
                    if let Some(event) = of_server {
                        let Event::Read(Ok(bytes)) = event else { panic!("{event:?}") };
                        got.extend_from_slice(&bytes);
                        is_reading = false;
                    }
                    !is_reading || is_failed
                });
                if is_failed {
                    failed += 1;
                    want_bytes -= len + 8;
                }
            }
        }
        let numbers = numbers(&got);
        assert!(numbers.is_sorted() && numbers.len() as u32 + failed == MESSAGES);
        before.max(refused) + failed as usize
    }

    /// More bytes arrive than the client has buffers for, and no read waits for them. All are there
    /// when they are read, in any pieces.
    fn unread(placement: Placement) -> usize {
        let mut channels = channels(placement);
        let mut refused = 0;
        let [writer, handle] = connected(&mut channels, &mut refused);
        let (mut want_bytes, mut written) = (0, 0);
        for number in 0..MESSAGES {
            let bytes = message(number, 900);
            want_bytes += bytes.len();
            channels[0].write(writer, bytes).expect("it has memory");
        }
        while written < MESSAGES {
            pump(&mut channels, &mut refused, |of_server, of_client| {
                assert!(of_client.is_none(), "{of_client:?}");
                match of_server {
                    Some(Event::Write(Ok(_))) => written += 1,
                    None => {}
                    other => panic!("{other:?}"),
                }
                written == MESSAGES
            });
        }
        let mut got = Vec::new();
        while got.len() < want_bytes {
            for _ in 0..3 {
                refused += submit(|| channels[1].read(handle, 700));
            }
            let mut reads = 3;
            while reads > 0 && got.len() < want_bytes {
                pump(&mut channels, &mut refused, |_, of_client| {
                    let Some(event) = of_client else { return false };
                    let Event::Read(Ok(bytes)) = event else { panic!("{event:?}") };
                    got.extend_from_slice(&bytes);
                    reads -= 1;
                    true
                });
            }
        }
        assert!(numbers(&got).into_iter().eq(0..MESSAGES));
        refused
    }

    /// Datagrams in both directions: each arrives whole, or not at all.
    fn datagrams(placement: Placement) -> usize {
        let mut channels = channels(placement);
        let mut refused = 0;
        let addresses: [Address; 2] =
            ["10.9.9.1:53", "10.9.9.2:53"].map(|it| it.parse().expect("an address"));
        let bind = |channel: &mut Channel, address| {
            channel.socket(megapipe::SocketKind::Udp4, Some(address), 0)
        };
        let server = bind(&mut channels[0], &addresses[0]).expect("it has memory");
        let client = match submitting(|| bind(&mut channels[1], &addresses[1])) {
            Ok(client) => client,
            Err(_) => {
                refused += 1;
                bind(&mut channels[1], &addresses[1]).expect("memory again")
            }
        };
        let (mut lost, mut got) = (0, [0, 0]);
        for number in 0..DATAGRAMS {
            let bytes = message(number, 500);
            channels[0].recvfrom(server, 2000).expect("a socket");
            refused += submit(|| channels[1].sendto(client, bytes.clone_granted(), &addresses[0]));
            channels[0].sendto(server, bytes, &addresses[1]).expect("it has memory");
            let (mut is_there, mut is_sent) = (false, false);
            pump(&mut channels, &mut refused, |of_server, of_client| {
                match of_client {
                    Some(Event::SendTo(Ok(_))) => is_sent = true,
                    Some(Event::SendTo(Err(OpError::NoMemory))) => {
                        lost += 1;
                        is_there = true;
                    }
                    None => {}
                    other => panic!("{other:?}"),
                }
                match of_server {
                    Some(Event::RecvFrom(Ok(datagram))) => {
                        assert_eq!(numbers(&datagram.data), [number]);
                        is_there = true;
                        got[0] += 1;
                    }
                    Some(Event::SendTo(Ok(_))) | None => {}
                    other => panic!("{other:?}"),
                }
                is_there
            });
            let _ = is_sent;
        }
        refused += lost as usize;
        let (mut next, mut refused_reads) = (0, 0);
        while got[1] < DATAGRAMS - 1 {
            refused += submit(|| channels[1].recvfrom(client, 2000));
            pump(&mut channels, &mut refused, |_, of_client| match of_client {
                Some(Event::RecvFrom(Ok(datagram))) => {
                    let numbers = numbers(&datagram.data);
                    assert!(numbers.len() == 1 && numbers[0] >= next, "{numbers:?} after {next}");
                    next = numbers[0] + 1;
                    got[1] += 1;
                    true
                }
                Some(Event::RecvFrom(Err(OpError::NoMemory))) => {
                    refused_reads += 1;
                    true
                }
                Some(Event::SendTo(_)) | None => false,
                other => panic!("{other:?}"),
            });
        }
        refused += refused_reads;
        // A datagram for which there is no memory is lost.
        GOES_ON.set(true);
        refused
    }

    trait CloneGranted {
        fn clone_granted(&self) -> Vec<u8>;
    }

    impl CloneGranted for Vec<u8> {
        /// The program's own copy is not refused.
        fn clone_granted(&self) -> Vec<u8> {
            let is_submitting = SUBMITTING.replace(false);
            let copy = self.clone();
            SUBMITTING.set(is_submitting);
            copy
        }
    }

    /// Listens at many ports; each call that is refused works when it is repeated.
    fn listener() -> usize {
        let [mut server, _client] = channels(Placement::Inline);
        let mut refused = 0;
        for port in 80..86 {
            let address: Address = format!("10.9.9.1:{port}").parse().expect("an address");
            let (listener, failed) = listen(&mut server, &address);
            refused += failed;
            let before = GRANTED.get();
            refused += submit(|| server.accept(listener, Accept::lwsocket(1)));
            if before.is_some() && GRANTED.get().is_none() {
                // Without memory for more than the backlog no more connections wait.
                GOES_ON.set(true);
            }
        }
        refused
    }

    #[test]
    fn local_listen_survives_each_failed_allocation() {
        each_refused("local::local_listen_survives_each_failed_allocation", listener);
    }

    macro_rules! scenarios {
        ($($name:ident: $scenario:ident, $placement:expr;)*) => {
            $(#[test]
            fn $name() {
                each_refused(concat!("local::", stringify!($name)), || $scenario($placement));
            })*
        };
    }

    scenarios! {
        inline_client_survives_each_failed_allocation: client, Placement::Inline;
        thread_client_survives_each_failed_allocation: client, Placement::Thread;
        core_client_survives_each_failed_allocation: client, Placement::Core(None);
        inline_unread_bytes_survive_each_failed_allocation: unread, Placement::Inline;
        thread_unread_bytes_survive_each_failed_allocation: unread, Placement::Thread;
        core_unread_bytes_survive_each_failed_allocation: unread, Placement::Core(None);
        inline_datagrams_survive_each_failed_allocation: datagrams, Placement::Inline;
        thread_datagrams_survive_each_failed_allocation: datagrams, Placement::Thread;
        core_datagrams_survive_each_failed_allocation: datagrams, Placement::Core(None);
    }
}
