//! What the epoll driver alone has to get right: descriptors that stay blocking, what epoll
//! refuses or never tells of, a sandbox without io_uring, a fork. What both drivers share is
//! tested over both in `tests/`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl};

use crate::{
    Accept, Address, Channel, Completion, Config, ConnectOptions, Connection, Disconnect,
    DriverChoice, DriverKind, Event, Handle, ListenOptions, OpError, OpenOptions, SocketKind,
};

const PATIENCE: Duration = Duration::from_secs(10);

fn channel() -> Channel {
    let config = Config::default().driver(DriverChoice::Epoll).unsent_bytes_max(usize::MAX);
    Channel::create(config).unwrap()
}

fn next(channel: &mut Channel) -> Completion {
    channel.dispatch(Some(PATIENCE)).unwrap().expect("a completion in time")
}

fn nothing(channel: &mut Channel) {
    let done = channel.dispatch(Some(Duration::from_millis(30))).unwrap();
    assert!(done.is_none(), "{done:?}");
}

fn next_read(channel: &mut Channel) -> Result<Vec<u8>, OpError> {
    match next(channel).event {
        Event::Read(result) => result.map(|data| data.to_vec()),
        other => panic!("{other:?}"),
    }
}

fn next_write(channel: &mut Channel) -> Result<usize, OpError> {
    match next(channel).event {
        Event::Write(result) => result,
        other => panic!("{other:?}"),
    }
}

fn next_accept(channel: &mut Channel) -> Handle {
    match next(channel).event {
        Event::Accept(Ok(accepted)) => match accepted.connection {
            Connection::Lwsocket(handle) => handle,
            Connection::Fd(fd) => panic!("{fd:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn is_blocking(fd: impl AsFd) -> bool {
    !fcntl_getfl(fd).unwrap().contains(OFlags::NONBLOCK)
}

fn scratch(name: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("megapipe-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn make_fifo(path: &std::path::Path) {
    let mode = rustix::fs::Mode::from_bits_retain(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn a_blocking_listener_never_blocks_and_is_blocking_again_afterwards() {
    let mut channel = channel();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let shared = listener.try_clone().unwrap();
    let handle = channel.register(listener.into(), 1, None).unwrap();
    assert!(!is_blocking(&shared));
    channel.accept(handle, Accept::lwsocket(2)).unwrap();
    nothing(&mut channel);
    let clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    next_accept(&mut channel);
    next_accept(&mut channel);
    nothing(&mut channel);
    let left = channel.unregister(handle).unwrap();
    assert!(is_blocking(&shared) && left.connections.is_empty());
    // The third was never accepted: it still waits in the queue.
    let (_, peer) = shared.accept().unwrap();
    assert_eq!(peer, clients[2].local_addr().unwrap());
}

#[test]
fn two_channels_share_a_listener_within_their_credit() {
    let (mut first, mut second) = (channel(), channel());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let one = first.register(listener.try_clone().unwrap().into(), 0, None).unwrap();
    let two = second.register(listener.into(), 0, None).unwrap();
    first.accept(one, Accept::lwsocket(1)).unwrap();
    nothing(&mut first);
    let _clients: Vec<_> = (0..2).map(|_| TcpStream::connect(address).unwrap()).collect();
    next_accept(&mut first);
    nothing(&mut first);
    second.accept(two, Accept::lwsocket(1)).unwrap();
    next_accept(&mut second);
    first.accept(one, Accept::lwsocket(1)).unwrap();
    nothing(&mut first);
}

#[test]
fn blocking_pipes_are_read_and_written_without_blocking() {
    let mut channel = channel();
    let (mut theirs, ours) = io::pipe().unwrap();
    let (reader, mut writer) = io::pipe().unwrap();
    let reading = channel.register(reader.into(), 1, None).unwrap();
    let writing = channel.register(ours.into(), 2, None).unwrap();
    channel.read(reading, 4096).unwrap();
    channel.write(writing, vec![7; 1 << 20]).unwrap();
    nothing(&mut channel);
    let drain = std::thread::spawn(move || {
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).unwrap();
        all
    });
    assert_eq!(next_write(&mut channel), Ok(1 << 20));
    writer.write_all(b"hello").unwrap();
    assert_eq!(next_read(&mut channel), Ok(b"hello".to_vec()));
    let writing = channel.unregister(writing).unwrap().fd.unwrap();
    assert!(is_blocking(&writing));
    drop(writing);
    assert_eq!(drain.join().unwrap().len(), 1 << 20);
    channel.read(reading, 10).unwrap();
    drop(writer);
    assert_eq!(next_read(&mut channel), Ok(vec![]));
}

#[test]
fn a_fifo_without_nowait_blocks_no_other_file() {
    let path = scratch("fifo");
    make_fifo(&path);
    let mut channel = channel();
    let both = File::options().read(true).write(true).open(&path).unwrap();
    let mut peer = both.try_clone().unwrap();
    let handle = channel.register(both.into(), 0, None).unwrap();
    channel.read(handle, 100).unwrap();
    nothing(&mut channel);
    peer.write_all(b"abc").unwrap();
    assert_eq!(next_read(&mut channel), Ok(b"abc".to_vec()));
    // More than the FIFO holds: the rest goes out when a reader reads.
    channel.write(handle, vec![1; 200_000]).unwrap();
    nothing(&mut channel);
    let mut seen = vec![0; 200_000];
    let drain = std::thread::spawn(move || peer.read_exact(&mut seen).map(|()| seen));
    assert_eq!(next_write(&mut channel), Ok(200_000));
    assert!(drain.join().unwrap().unwrap().iter().all(|&byte| byte == 1));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_terminal_takes_more_than_it_holds() {
    let mut channel = channel();
    let (mut master, mut slave) = (0, 0);
    let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: both numbers outlive the call; the other arguments may be null.
    let made = unsafe { libc::openpty(&raw mut master, &raw mut slave, name, settings, size) };
    assert_eq!(made, 0);
    // SAFETY: openpty has just made it for us.
    let mut master = File::from(unsafe { OwnedFd::from_raw_fd(master) });
    // SAFETY: as above.
    let slave = unsafe { OwnedFd::from_raw_fd(slave) };
    let handle = channel.register(slave, 0, None).unwrap();
    channel.read(handle, 100).unwrap();
    nothing(&mut channel);
    master.write_all(b"line\n").unwrap();
    assert_eq!(next_read(&mut channel), Ok(b"line\n".to_vec()));
    channel.write(handle, vec![b'x'; 100_000]).unwrap();
    nothing(&mut channel);
    let drain = std::thread::spawn(move || {
        let (mut count, mut piece) = (0, [0; 4096]);
        while count < 100_000 {
            let got = master.read(&mut piece).unwrap();
            count += piece[..got].iter().filter(|&&byte| byte == b'x').count();
        }
        count
    });
    assert_eq!(next_write(&mut channel), Ok(100_000));
    assert_eq!(drain.join().unwrap(), 100_000);
}

#[test]
fn devices_that_epoll_refuses_are_served_all_the_same() {
    let mut channel = channel();
    let zero = channel.register(File::open("/dev/zero").unwrap().into(), 0, None).unwrap();
    channel.read(zero, 1000).unwrap();
    assert_eq!(next_read(&mut channel), Ok(vec![0; 1000]));
    let null = File::options().write(true).open("/dev/null").unwrap();
    let null = channel.register(null.into(), 0, None).unwrap();
    channel.write(null, vec![1; 5000]).unwrap();
    channel.write(null, b"more").unwrap();
    assert_eq!(next_write(&mut channel), Ok(5000));
    assert_eq!(next_write(&mut channel), Ok(4));
    channel.read(null, 10).unwrap();
    assert_eq!(next_read(&mut channel), Err(OpError::BadDescriptor));
}

#[test]
fn a_file_is_written_and_read_in_order_and_at_offsets() {
    let path = scratch("file");
    let mut channel = channel();
    let options = OpenOptions::write();
    let file = channel.open(&path, &options, 0).unwrap();
    assert!(matches!(next(&mut channel).event, Event::Open(Ok(()))));
    for piece in 0..50u8 {
        channel.write(file, vec![piece; 1000]).unwrap();
    }
    for _ in 0..50 {
        assert_eq!(next_write(&mut channel), Ok(1000));
    }
    channel.write_at(file, 500, vec![200; 1000]).unwrap();
    assert_eq!(next_write(&mut channel), Ok(1000));
    channel.fsync(file).unwrap();
    assert!(matches!(next(&mut channel).event, Event::Fsync(Ok(()))));
    channel.read_at(file, 0, 1 << 20).unwrap();
    let all = next_read(&mut channel).unwrap();
    assert_eq!(all.len(), 50_000);
    assert_eq!((all[499], all[500], all[1499], all[1500], all[49_999]), (0, 200, 200, 1, 49));
    channel.read_at(file, 49_990, 100).unwrap();
    assert_eq!(next_read(&mut channel).unwrap().len(), 10);
    channel.read_at(file, 50_000, 100).unwrap();
    assert_eq!(next_read(&mut channel), Ok(vec![]));
    // The file's own position is behind the last sequential write.
    channel.read(file, 100).unwrap();
    assert_eq!(next_read(&mut channel), Ok(vec![]));
    channel.unregister(file).unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn sequential_reads_of_a_file_are_in_order_and_end() {
    let path = scratch("sequence");
    let content: Vec<u8> = (0..40_000u32).map(|at| (at / 100) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let mut channel = channel();
    let handle = channel.register(File::open(&path).unwrap().into(), 0, None).unwrap();
    for _ in 0..6 {
        channel.read(handle, 9000).unwrap();
    }
    let mut got = Vec::new();
    for len in [9000, 9000, 9000, 9000, 4000, 0] {
        let piece = next_read(&mut channel).unwrap();
        assert_eq!(piece.len(), len);
        got.extend(piece);
    }
    assert_eq!(got, content);
    assert!(channel.unregister(handle).unwrap().fd.is_some());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn files_that_cannot_be_opened_or_written_say_why() {
    let mut channel = channel();
    let path = scratch("absent");
    let file = channel.open(&path, &OpenOptions::read(), 0).unwrap();
    assert!(matches!(next(&mut channel).event, Event::Open(Err(OpError::NotFound))));
    // Nothing can be asked of it: no thread is bothered.
    assert!(channel.read_at(file, 0, 10).is_err());
    assert!(channel.write(file, b"x").is_err());
    let full = File::options().write(true).open("/dev/full").unwrap();
    let full = channel.register(full.into(), 0, None).unwrap();
    channel.write(full, b"x").unwrap();
    assert_eq!(next_write(&mut channel), Err(OpError::NoSpace));
}

#[test]
fn a_channel_ends_while_an_open_hangs() {
    let path = scratch("hang");
    make_fifo(&path);
    let mut hanging = channel();
    // There is no writer: open(2) of the FIFO does not return.
    let file = hanging.open(&path, &OpenOptions::read(), 0).unwrap();
    nothing(&mut hanging);
    hanging.unregister(file).unwrap();
    let begun = Instant::now();
    drop(hanging);
    assert!(begun.elapsed() < Duration::from_secs(2));
    // Lets the thread go.
    drop(File::options().read(true).write(true).open(&path).unwrap());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn connecting_to_a_full_unix_listener_waits_for_room() {
    let path = scratch("full");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _first = UnixStream::connect(&path).unwrap();
    let mut channel = channel();
    let address = Address::unix(&path).unwrap();
    let handle = channel.connect(&address, &ConnectOptions::default(), 5).unwrap();
    nothing(&mut channel);
    listener.accept().unwrap();
    let done = next(&mut channel);
    assert_eq!(done.handle, handle);
    assert!(matches!(done.event, Event::Connect(Ok(()))), "{done:?}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn datagrams_to_a_full_unix_socket_wait_for_room() {
    let path = scratch("dgram");
    let receiver = UnixDatagram::bind(&path).unwrap();
    let mut channel = channel();
    let handle = channel.socket(SocketKind::UnixDatagram, None, 0).unwrap();
    let to = Address::unix(&path).unwrap();
    const COUNT: usize = 2000;
    for _ in 0..COUNT {
        channel.sendto(handle, vec![3; 100], &to).unwrap();
    }
    let drain = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        let mut message = [0; 200];
        (0..COUNT).all(|_| receiver.recv(&mut message).is_ok_and(|len| len == 100))
    });
    for _ in 0..COUNT {
        let event = next(&mut channel).event;
        assert!(matches!(event, Event::SendTo(Ok(100))), "{event:?}");
    }
    assert!(drain.join().unwrap());
    std::fs::remove_file(path).unwrap();
}

fn pair(channel: &mut Channel) -> (Handle, TcpStream) {
    let listener =
        channel.listen(&"127.0.0.1:0".parse().unwrap(), &ListenOptions::default(), 0).unwrap();
    let address = channel.local_address(listener).unwrap().as_inet().unwrap();
    channel.accept(listener, Accept::lwsocket(1)).unwrap();
    let client = TcpStream::connect(address).unwrap();
    (next_accept(channel), client)
}

#[test]
fn bytes_behind_urgent_data_are_not_forgotten() {
    let mut channel = channel();
    let (handle, mut client) = pair(&mut channel);
    channel.read(handle, 4096).unwrap();
    nothing(&mut channel);
    client.write_all(b"before").unwrap();
    rustix::net::send(&client, b"!", rustix::net::SendFlags::OOB).unwrap();
    client.write_all(b"behind").unwrap();
    let mut got = Vec::new();
    while got.len() < 12 {
        got.extend(next_read(&mut channel).unwrap());
        channel.read(handle, 4096).unwrap();
    }
    assert_eq!(got, b"beforebehind");
    drop(client);
    assert_eq!(next_read(&mut channel), Ok(vec![]));
}

#[test]
fn a_reset_that_a_send_met_is_not_the_end_of_the_stream() {
    let mut channel = channel();
    let (handle, client) = pair(&mut channel);
    crate::kernel::sys::set_reset_on_close(client.as_fd()).unwrap();
    drop(client);
    channel.write(handle, b"into the void").unwrap();
    assert_eq!(next_write(&mut channel), Err(OpError::Reset));
    channel.read(handle, 100).unwrap();
    assert_eq!(next_read(&mut channel), Err(OpError::Reset));
}

#[test]
fn a_write_larger_than_the_socket_holds_goes_on_when_there_is_room() {
    let mut channel = channel();
    let (handle, mut client) = pair(&mut channel);
    const LEN: usize = 32 << 20;
    channel.write(handle, vec![9; LEN]).unwrap();
    channel.writev(handle, (0..100).map(|_| b"tail".into())).unwrap();
    channel.disconnect(handle, Disconnect::Write).unwrap();
    nothing(&mut channel);
    let drain = std::thread::spawn(move || {
        let mut all = Vec::new();
        client.read_to_end(&mut all).map(|_| all)
    });
    assert_eq!(next_write(&mut channel), Ok(LEN));
    assert_eq!(next_write(&mut channel), Ok(400));
    assert!(matches!(next(&mut channel).event, Event::Disconnect(Ok(()))));
    assert_eq!(drain.join().unwrap().unwrap().len(), LEN + 400);
}

#[test]
fn an_empty_buffer_pool_stops_no_handle() {
    let config = Config::default().driver(DriverChoice::Epoll).buffer_len(64).buffer_count(4);
    let mut channel = Channel::create(config).unwrap();
    let (handle, mut client) = pair(&mut channel);
    client.write_all(&[5; 64 * 20]).unwrap();
    let mut kept = Vec::new();
    for _ in 0..20 {
        channel.read(handle, 1000).unwrap();
        match next(&mut channel).event {
            Event::Read(Ok(data)) => kept.push(data),
            other => panic!("{other:?}"),
        }
    }
    assert!(kept.iter().all(|data| data.len() == 64));
    assert_eq!(channel.counters().buffers_exhausted, 16);
}

#[test]
fn short_waits_are_exact_where_the_kernel_can() {
    let mut channel = channel();
    let begun = Instant::now();
    assert!(channel.dispatch(Some(Duration::from_micros(300))).unwrap().is_none());
    assert!(begun.elapsed() >= Duration::from_micros(300));
    channel.timer(Duration::from_millis(5), None, 3).unwrap();
    assert!(matches!(next(&mut channel).event, Event::Timer { expirations: 1 }));
    assert!(begun.elapsed() >= Duration::from_millis(5));
}

#[test]
fn a_first_read_is_for_messages_too() {
    let path = scratch("seqpacket");
    let family = rustix::net::AddressFamily::UNIX;
    let kind = rustix::net::SocketType::SEQPACKET;
    let listener = crate::kernel::sys::socket(family, kind, false).unwrap();
    let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 5).unwrap();
    let mut channel = channel();
    let listener = channel.register(listener, 0, None).unwrap();
    channel.accept(listener, Accept::lwsocket(1).first_read(100)).unwrap();
    let client = crate::kernel::sys::socket(family, kind, false).unwrap();
    rustix::net::connect(&client, &address).unwrap();
    next_accept(&mut channel);
    rustix::io::write(&client, b"one message").unwrap();
    assert_eq!(next_read(&mut channel), Ok(b"one message".to_vec()));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_event_for_a_descriptor_that_left_is_dropped() {
    let mut channel = channel();
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let copy = ours.try_clone().unwrap();
    let handle = channel.register(ours.into(), 0, None).unwrap();
    channel.read(handle, 10).unwrap();
    nothing(&mut channel);
    let left = channel.unregister(handle).unwrap();
    drop(left);
    let (again, _peer) = UnixStream::pair().unwrap();
    let again = channel.register(again.into(), 0, None).unwrap();
    channel.read(again, 10).unwrap();
    theirs.write_all(b"late").unwrap();
    nothing(&mut channel);
    assert_eq!(channel.counters().stray_answers, 0);
    drop(copy);
}

#[test]
fn a_fork_leaves_the_parents_channel_alone() {
    let mut channel = channel();
    let (handle, mut client) = pair(&mut channel);
    channel.read(handle, 100).unwrap();
    nothing(&mut channel);
    // SAFETY: the child only uses and drops the channel and leaves by _exit; glibc keeps its own
    // locks usable in the child.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = channel.dispatch(Some(Duration::ZERO)).is_err();
        drop(channel);
        // SAFETY: ends the child at once, without running the parent's exit handlers.
        unsafe { libc::_exit(if refused { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, libc::WEXITSTATUS(status)), (child, 7));
    client.write_all(b"still here").unwrap();
    assert_eq!(next_read(&mut channel), Ok(b"still here".to_vec()));
}

/// Says to the process itself, started again, that it is to run inside the filter.
const INSIDE: &str = "MEGAPIPE_TEST_WITHOUT_IO_URING";

/// From now on io_uring_setup(2) is "not permitted" for this thread, as in many containers.
fn forbid_io_uring() {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut steps = [
        // The number of the call is the first word of seccomp_data.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: takes numbers only.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(done, 0);
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program and its steps outlive the call, which copies them.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    assert_eq!(done, 0);
}

#[test]
fn without_io_uring_the_channel_reports_its_fallback() {
    if std::env::var_os(INSIDE).is_none() {
        let name = "kernel::epoll::tests::without_io_uring_the_channel_reports_its_fallback";
        let inside = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&inside.stdout).into_owned();
        assert!(inside.status.success(), "{said}{}", String::from_utf8_lossy(&inside.stderr));
        assert!(said.contains("1 passed"), "{said}");
        return;
    }
    forbid_io_uring();
    let mut channel = Channel::create(Config::default()).unwrap();
    let report = channel.report().clone();
    assert_eq!(report.driver, DriverKind::Epoll);
    assert_eq!(report.fallen_back_from, Some(DriverKind::Uring));
    assert!(report.reason.contains("io_uring is forbidden here"), "{report}");
    assert!(Channel::create(Config::default().driver(DriverChoice::Uring)).is_err());
    let (handle, mut client) = pair(&mut channel);
    client.write_all(b"echo").unwrap();
    channel.read(handle, 100).unwrap();
    let Event::Read(Ok(data)) = next(&mut channel).event else { panic!("a read") };
    channel.write(handle, data).unwrap();
    assert_eq!(next_write(&mut channel), Ok(4));
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"echo");
}
