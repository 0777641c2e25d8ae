//! Partitioned listeners under load: channels that come, leave and change their cores while
//! clients connect, and not one connection is lost.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use megapipe::{
    Accept, Accepted, Channel, Config, Connection, CpuMask, Event, Handle, ListenError,
    ListenOptions, OpError, Waker,
};

use crate::scene::{Case, PATIENCE, Scene, on_kernel_drivers, receive, send};

on_kernel_drivers![
    listeners_that_leave_under_load_lose_no_connection,
    channels_that_are_dropped_under_load_lose_no_connection,
    masks_that_change_under_load_lose_no_connection,
    registered_listeners_that_leave_under_load_lose_no_connection,
    connections_waiting_in_a_leaving_listeners_queue_go_to_a_sibling,
    connections_accepted_ahead_go_to_a_sibling,
    exact_accepts_take_no_more_than_they_ask_for,
    connections_before_the_first_channel_are_accepted,
    a_mask_sends_a_cores_connections_to_its_channel,
    the_last_listener_to_leave_frees_the_address,
    listen_only_this_process_excludes_other_processes,
];

const LOAD_THREADS: usize = 3;
const ROUNDS: usize = 20;
/// Connections between two changes of the group.
const STEP: u64 = 100;

/// Clients that connect, echo and close in a loop, and count.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(address: SocketAddr) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..LOAD_THREADS)
            .map(|_| {
                let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
                thread::spawn(move || {
                    let mut failures = Vec::new();
                    // Relaxed: the flag and the count order nothing but themselves.
                    while !stop.load(Ordering::Relaxed) {
                        if let Err(error) = transaction(address) {
                            failures.push(error.to_string());
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    failures
                })
            })
            .collect();
        Self { stop, done, threads }
    }

    /// Waits until some more connections were served.
    #[track_caller]
    fn go_on(&self, step: u64) {
        let (start, from) = (Instant::now(), self.done.load(Ordering::Relaxed));
        while self.done.load(Ordering::Relaxed) < from + step {
            assert!(start.elapsed() < PATIENCE, "the load stands still");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[track_caller]
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let failures: Vec<_> =
            self.threads.into_iter().flat_map(|it| it.join().expect("a client ends")).collect();
        let done = self.done.load(Ordering::Relaxed);
        assert!(failures.is_empty(), "{} of {done} failed: {:?}", failures.len(), failures.first());
        done
    }
}

fn transaction(address: SocketAddr) -> std::io::Result<()> {
    let mut client = TcpStream::connect(address)?;
    client.set_read_timeout(Some(PATIENCE))?;
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO))?;
    client.write_all(b"there and back")?;
    let mut back = [0; 14];
    client.read_exact(&mut back)?;
    assert_eq!(&back, b"there and back");
    Ok(())
}

/// What a server thread is asked to do.
enum Ask {
    /// Unregister the listener, and go on serving what it had.
    Leave,
    /// Drop the channel as it is.
    Drop,
    /// Take these cores, and tell when it is done.
    Mask(CpuMask, mpsc::Sender<()>),
}

/// A thread with a channel that echoes.
struct Server {
    ask: mpsc::Sender<Ask>,
    waker: Waker,
    thread: JoinHandle<u64>,
}

impl Server {
    /// Starts one; `join` puts the listener into the channel.
    fn start(config: Config, join: impl FnOnce(&mut Channel) -> Handle + Send + 'static) -> Self {
        let (ask, asked) = mpsc::channel();
        let (ready, waker) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut channel = Channel::create(config).expect("the driver works");
            let listener = join(&mut channel);
            let accept = Accept::lwsocket(u32::MAX).first_read(64);
            channel.accept(listener, accept).expect("a listener");
            channel.flush().expect("flushes");
            ready.send(channel.waker()).expect("the test waits for it");
            serve(channel, listener, &asked)
        });
        let waker = waker.recv().expect("the server starts");
        Self { ask, waker, thread }
    }

    fn ask(&self, what: Ask) {
        self.ask.send(what).expect("the server runs");
        self.waker.wake();
    }

    /// Lets it go and returns how many connections it accepted.
    fn end(self, how: Ask) -> u64 {
        self.ask(how);
        self.thread.join().expect("the server ends well")
    }
}

fn serve(mut channel: Channel, listener: Handle, asked: &mpsc::Receiver<Ask>) -> u64 {
    let (mut open, mut leaving) = (0, false);
    loop {
        if leaving && open == 0 {
            return channel.counters().accepted;
        }
        let done = channel.dispatch(Some(PATIENCE)).expect("dispatches").expect("something comes");
        match done.event {
            Event::Wake => match asked.try_recv() {
                Ok(Ask::Leave) => {
                    leaving = true;
                    drop(channel.unregister(listener).expect("registered"));
                    channel.flush().expect("flushes");
                }
                // What was accepted and not served would be lost with the channel: it is served
                // first, but the listener stays until the channel is dropped.
                Ok(Ask::Drop) if open == 0 => return channel.counters().accepted,
                Ok(Ask::Drop) => return drop_when_idle(channel, open),
                Ok(Ask::Mask(mask, told)) => {
                    channel.set_cpu_mask(listener, mask).expect("disjoint");
                    told.send(()).expect("the test waits for it");
                }
                Err(_) => {}
            },
            event => open = open.wrapping_add_signed(echo(&mut channel, done.handle, event)),
        }
    }
}

/// One step of an echo; by how much the number of open connections changes.
fn echo(channel: &mut Channel, handle: Handle, event: Event) -> isize {
    match event {
        Event::Accept(Ok(accepted)) => {
            assert!(matches!(accepted.connection, Connection::Lwsocket(_)));
            1
        }
        Event::Read(Ok(bytes)) if !bytes.is_empty() => {
            channel.write(handle, bytes).expect("open");
            0
        }
        Event::Write(Ok(_)) => {
            channel.read(handle, 64).expect("open");
            0
        }
        Event::Read(Ok(_) | Err(OpError::Reset)) | Event::Write(Err(_)) => {
            // Both directions may fail; only the first finds the handle.
            -isize::from(channel.unregister(handle).is_ok())
        }
        other => panic!("{other:?}"),
    }
}

/// Serves on until no connection is open at that moment, then drops the channel with its
/// listener, whose queue may hold connections.
fn drop_when_idle(mut channel: Channel, mut open: usize) -> u64 {
    let mut spare = Vec::new();
    loop {
        channel.dispatch_many(&mut spare, 64, Some(PATIENCE)).expect("dispatches");
        for done in spare.drain(..) {
            open = open.wrapping_add_signed(echo(&mut channel, done.handle, done.event));
        }
        if open == 0 {
            return channel.counters().accepted;
        }
    }
}

fn listens_on(address: SocketAddr, options: ListenOptions) -> impl FnOnce(&mut Channel) -> Handle {
    move |channel| channel.listen(&address.into(), &options, 0).expect("listens")
}

/// A free port, which stays reserved by a socket that does not listen.
fn reserved() -> (rustix::fd::OwnedFd, SocketAddr) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    sockopt::set_socket_reuseport(&socket, true).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    (socket, address)
}

/// Servers leave one after another, each after its successor joined, while clients connect.
fn rotate(case: &Case, how: fn() -> Ask) {
    let (_reserved, address) = reserved();
    let start = || Server::start(case.config(), listens_on(address, ListenOptions::default()));
    let mut servers: Vec<_> = (0..3).map(|_| start()).collect();
    let load = Load::start(address);
    let mut accepted = 0;
    for _ in 0..ROUNDS {
        load.go_on(STEP);
        accepted += servers.remove(0).end(how());
        load.go_on(STEP);
        servers.push(start());
    }
    let done = load.end();
    for server in servers {
        accepted += server.end(Ask::Leave);
    }
    assert!(accepted >= done, "{accepted} accepted, {done} served");
}

fn listeners_that_leave_under_load_lose_no_connection(case: &Case) {
    rotate(case, || Ask::Leave);
}

fn channels_that_are_dropped_under_load_lose_no_connection(case: &Case) {
    rotate(case, || Ask::Drop);
}

fn masks_that_change_under_load_lose_no_connection(case: &Case) {
    let (_reserved, address) = reserved();
    let masks = [CpuMask::cpu(0), CpuMask::cpu(1)];
    let join = |mask| listens_on(address, ListenOptions::default().cpu_mask(mask));
    let servers = masks.map(|mask| Server::start(case.config(), join(mask)));
    let load = Load::start(address);
    // Cores move from one channel to the other and back, through masks that never overlap.
    for turn in 0..ROUNDS {
        load.go_on(STEP);
        let (first, second) = match turn % 3 {
            0 => (CpuMask::cpus([5]), CpuMask::cpus([1, 0])),
            1 => (CpuMask::cpus([5, 6]), CpuMask::cpus([0])),
            _ => (CpuMask::cpus([1, 5]), CpuMask::cpus([0, 7])),
        };
        // The first gives up its cores before the second takes them.
        let give_up = CpuMask::cpu(8 + turn);
        for (server, mask) in [(0, give_up), (1, second), (0, first)] {
            let (told, done) = mpsc::channel();
            servers[server].ask(Ask::Mask(mask, told));
            done.recv_timeout(PATIENCE).expect("the mask is changed in time");
            load.go_on(5);
        }
    }
    load.end();
    for server in servers {
        server.end(Ask::Leave);
    }
}

fn registered_listeners_that_leave_under_load_lose_no_connection(case: &Case) {
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listening.local_addr().unwrap();
    let start = |core| {
        let fd = listening.try_clone().unwrap().into();
        let mask = Some(CpuMask::cpu(core));
        Server::start(case.config(), move |channel| channel.register(fd, 0, mask).expect("joins"))
    };
    let mut servers = vec![start(0), start(1)];
    let load = Load::start(address);
    for turn in 0..ROUNDS {
        load.go_on(STEP);
        servers.remove(0).end(Ask::Leave);
        servers.push(start(turn % 2));
    }
    load.end();
    for server in servers {
        server.end(Ask::Leave);
    }
}

fn connections_waiting_in_a_leaving_listeners_queue_go_to_a_sibling(case: &Case) {
    let (mut first, mut second) = (case.scene(), case.scene());
    let (leaver, address) = first.listening("127.0.0.1:0");
    // Without an accept, all of these wait in the kernel's queue of the only listener.
    let mut clients: Vec<_> =
        (0..20).map(|_| TcpStream::connect(address.as_inet().unwrap()).unwrap()).collect();
    for (turn, client) in (0u8..).zip(&mut clients) {
        send(client, &[turn; 4]);
    }
    let heir = second.listen(&address, &ListenOptions::default(), 0).unwrap();
    second.channel.accept(heir, Accept::lwsocket(u32::MAX).first_read(4)).unwrap();
    second.flush().unwrap();
    first.unregister(leaver).unwrap();
    first.expect_silence();
    drop(first);
    let mut served = 0;
    while served < clients.len() {
        let done = second.next();
        match done.event {
            Event::Read(Ok(bytes)) => second.write(done.handle, bytes).unwrap(),
            Event::Write(Ok(4)) => served += 1,
            Event::Accept(Ok(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    for (turn, client) in (0u8..).zip(&mut clients) {
        assert_eq!(receive(client, 4), [turn; 4]);
    }
}

fn connections_accepted_ahead_go_to_a_sibling(case: &Case) {
    let (mut first, mut second) = (case.scene(), case.scene());
    let (leaver, address) = first.listening("127.0.0.1:0");
    // One is asked for, so that the channel may accept more than it hands out.
    first.channel.accept(leaver, Accept::lwsocket(1)).unwrap();
    first.flush().unwrap();
    let mut clients: Vec<_> =
        (0..10).map(|_| TcpStream::connect(address.as_inet().unwrap()).unwrap()).collect();
    let kept = first.accepted(leaver);
    first.expect_silence();
    let heir = second.listen(&address, &ListenOptions::default(), 0).unwrap();
    second.channel.accept(heir, Accept::lwsocket(u32::MAX)).unwrap();
    second.flush().unwrap();
    first.unregister(leaver).unwrap();
    first.expect_silence();
    for _ in 0..9 {
        let handle = second.accepted(heir);
        second.write(handle, "moved").unwrap();
        second.expect_written(handle, 5);
    }
    first.write(kept, "stays").unwrap();
    first.expect_written(kept, 5);
    let mut answers: Vec<_> = clients.iter_mut().map(|client| receive(client, 5)).collect();
    answers.sort();
    assert_eq!(answers.iter().filter(|answer| **answer == b"moved").count(), 9);
    assert_eq!(answers.last().unwrap(), b"stays");
    assert_eq!(second.counters().connections_dropped + first.counters().connections_dropped, 0);
}

fn exact_accepts_take_no_more_than_they_ask_for(case: &Case) {
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listening.local_addr().unwrap();
    let mut clients = Vec::new();
    let mut connect = |count: usize| {
        clients.extend((0..count).map(|_| TcpStream::connect(address).unwrap()));
    };
    let mut scene = case.scene();
    let ours = listening.try_clone().unwrap().into();
    let listener = scene.register(ours, 0, None).unwrap();
    listening.set_nonblocking(true).unwrap();
    let in_the_kernel = || (0..).take_while(|_| listening.accept().is_ok()).count();
    let accepts = |scene: &mut Scene, accept: Accept| {
        scene.channel.accept(listener, accept).unwrap();
        for _ in 0..accept.count {
            scene.accepted(listener);
        }
        scene.expect_silence();
    };
    let exactly = |count| Accept::lwsocket(count).exactly();
    connect(10);
    accepts(&mut scene, exactly(3));
    assert_eq!(in_the_kernel(), 7);
    // Some are taken ahead now, and used by the exact ones that follow.
    connect(10);
    accepts(&mut scene, Accept::lwsocket(1));
    accepts(&mut scene, exactly(2));
    let ahead = 7 - in_the_kernel();
    if ahead > 0 {
        accepts(&mut scene, exactly(ahead as u32));
    }
    // More than are asked of the kernel at once, and more than one accept.
    connect(100);
    scene.channel.accept(listener, exactly(20)).unwrap();
    scene.channel.accept(listener, exactly(50)).unwrap();
    for _ in 0..70 {
        scene.accepted(listener);
    }
    scene.expect_silence();
    assert_eq!(in_the_kernel(), 30);
    // It waits for what is still to come, as descriptors or not.
    scene.channel.accept(listener, Accept::fd(1).exactly()).unwrap();
    scene.channel.accept(listener, exactly(1)).unwrap();
    scene.expect_silence();
    connect(3);
    assert!(matches!(
        scene.next_of(listener),
        Event::Accept(Ok(Accepted { connection: Connection::Fd(_), .. }))
    ));
    scene.accepted(listener);
    scene.expect_silence();
    assert_eq!(in_the_kernel(), 1);
    assert_eq!(scene.counters().connections_dropped, 0);
}

fn connections_before_the_first_channel_are_accepted(case: &Case) {
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listening.local_addr().unwrap();
    let mut clients: Vec<_> = (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut scene = case.scene();
    let listener = scene.register(listening.into(), 0, Some(CpuMask::cpu(0))).unwrap();
    scene.channel.accept(listener, Accept::lwsocket(u32::MAX)).unwrap();
    for _ in 0..clients.len() {
        let handle = scene.accepted(listener);
        scene.write(handle, "hello").unwrap();
        scene.expect_written(handle, 5);
    }
    for client in &mut clients {
        assert_eq!(receive(client, 5), b"hello");
    }
    // The socket comes back as it was: it listens, and blocks.
    let listening = scene.unregister(listener).unwrap().fd.expect("it was registered");
    scene.expect_silence();
    let flags = rustix::fs::fcntl_getfl(&listening).unwrap();
    assert!(!flags.contains(rustix::fs::OFlags::NONBLOCK));
    let _client = TcpStream::connect(address).unwrap();
    std::net::TcpListener::from(listening).accept().unwrap();
}

fn a_mask_sends_a_cores_connections_to_its_channel(case: &Case) {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cores: Vec<usize> = (0..1024).filter(|&core| allowed.is_set(core)).take(2).collect();
    let [one, other] = cores[..] else {
        println!("skipped: {}: there is only one core", case.name);
        return;
    };
    let (_reserved, address) = reserved();
    let mut scenes = [case.scene(), case.scene()];
    let listeners = [0, 1].map(|turn| {
        let options = ListenOptions::default().cpu_mask(CpuMask::cpu(cores[turn]));
        let listener = scenes[turn].listen(&address.into(), &options, 0).unwrap();
        scenes[turn].channel.accept(listener, Accept::lwsocket(u32::MAX)).unwrap();
        scenes[turn].flush().unwrap();
        listener
    });
    let connect_from = |core: usize| {
        thread::spawn(move || {
            let mut set = rustix::thread::CpuSet::new();
            set.set(core);
            rustix::thread::sched_setaffinity(None, &set).unwrap();
            (0..20).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>()
        })
        .join()
        .unwrap()
    };
    // Over loopback a connection is processed on the core of the thread that connects.
    for swapped in [false, true] {
        for (turn, core) in [one, other].into_iter().enumerate() {
            let _clients = connect_from(core);
            let at = if swapped { 1 - turn } else { turn };
            for _ in 0..20 {
                scenes[at].accepted(listeners[at]);
            }
            scenes[1 - at].expect_silence();
        }
        let free = CpuMask::cpu(1000);
        for (at, mask) in [(0, free), (1, CpuMask::cpu(one)), (0, CpuMask::cpu(other))] {
            scenes[at].set_cpu_mask(listeners[at], mask).unwrap();
        }
    }
}

fn the_last_listener_to_leave_frees_the_address(case: &Case) {
    let (mut first, mut second) = (case.scene(), case.scene());
    let (one, address) = first.listening("127.0.0.1:0");
    let two = second.listen(&address, &ListenOptions::default(), 0).unwrap();
    first.unregister(one).unwrap();
    first.expect_silence();
    TcpStream::connect(address.as_inet().unwrap()).expect("the second still listens");
    second.unregister(two).unwrap();
    second.expect_silence();
    // The socket of the first may be drained for a moment more; then there is no listener.
    let start = Instant::now();
    while TcpStream::connect(address.as_inet().unwrap()).is_ok() {
        assert!(start.elapsed() < PATIENCE, "a listener is still there");
        first.dispatch(Some(Duration::from_millis(10))).unwrap();
        second.dispatch(Some(Duration::from_millis(10))).unwrap();
    }
}

/// A socket as another process would bind it: it shares the address if it can.
fn foreign(address: SocketAddr, shares: bool) -> rustix::fd::OwnedFd {
    use rustix::net::{AddressFamily, SocketType, sockopt};
    let socket =
        rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("a TCP socket");
    sockopt::set_socket_reuseport(&socket, shares).expect("a TCP socket");
    rustix::net::bind(&socket, &address).expect("nothing that listens excludes it");
    socket
}

fn listen_only_this_process_excludes_other_processes(case: &Case) {
    let (mut first, mut second) = (case.scene(), case.scene());
    let claiming = |mask| ListenOptions::default().only_this_process(true).cpu_mask(mask);
    let (no_core, all_cores) = (CpuMask::cpu(1_000), CpuMask::cpus(0..1_000));
    // Another process listens, and would share.
    let theirs = foreign("127.0.0.1:0".parse().unwrap(), true);
    rustix::net::listen(&theirs, 8).unwrap();
    let taken = SocketAddr::try_from(rustix::net::getsockname(&theirs).unwrap()).unwrap();
    let error = first.listen(&taken.into(), &claiming(all_cores), 0).unwrap_err();
    let ListenError::Kernel { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.kind(), std::io::ErrorKind::AddrInUse);

    // Another process has bound the address at the same moment, and has not listened yet.
    let (_reserved, address) = reserved();
    let theirs = foreign(address, false);
    let one = first.listen(&address.into(), &claiming(all_cores), 0).unwrap();
    assert_eq!(rustix::net::listen(&theirs, 8), Err(rustix::io::Errno::ADDRINUSE));
    drop(theirs);
    // The channels of this process share it, with their masks.
    first.set_cpu_mask(one, no_core).unwrap();
    let two = second.listen(&address.into(), &claiming(all_cores), 0).unwrap();
    second.channel.accept(two, Accept::lwsocket(u32::MAX)).unwrap();
    second.flush().unwrap();
    let _clients: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    for _ in 0..20 {
        second.accepted(two);
    }
    first.expect_silence();
}
