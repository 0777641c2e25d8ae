//! Pipes, event counters, copies of descriptors, and poll.

use megapipe_sockets::{Bsd, Config, Context, Error, MsgFlags};

use crate::world::{Client, Server, World, compare};

const IN: u32 = libc::EPOLLIN as u32;

#[test]
fn pipes_carry_bytes_and_tell_of_their_ends() {
    compare(|world| {
        let [reader, writer] = world.host(Server).pipe2(libc::O_NONBLOCK).unwrap();
        let readers = world.watch(Server, reader, libc::EPOLLIN);
        let writers = world.watch(Server, writer, libc::EPOLLOUT);
        let note = |world: &mut World, what: &str| {
            world.note_events(what, Server, readers);
            world.note_events(what, Server, writers);
        };
        note(world, "empty");
        let answers = [
            world.host(Server).read(reader, 5).err(),
            world.host(Server).read(writer, 5).err(),
            world.host(Server).write(reader, b"x").err(),
            world.host(Server).recv(reader, 5, 0).err(),
            world.host(Server).setsockopt(reader, libc::SOL_SOCKET, 2, &[0; 4]).err(),
        ];
        world.note("answers", &answers);
        let answer = world.host(Server).write(writer, b"hello");
        world.note("write", &answer);
        note(world, "five bytes");
        let answer = world.host(Server).ioctl(reader, libc::FIONREAD, 0);
        world.note("unread", &answer);
        let answer = world.host(Server).read(reader, 3);
        world.note("read", &answer);
        let mut written = 2;
        while let Ok(count) = world.host(Server).write(writer, &[7; 4096]) {
            written += count;
            assert!(written < 1 << 20, "it takes everything");
        }
        note(world, "full");
        let answer = world.host(Server).write(writer, &[7; 4096]);
        world.note("no room", &answer);
        let mut read = 0;
        while let Ok(bytes) = world.host(Server).read(reader, 10_000) {
            read += bytes.len();
        }
        world.note("all read", &(read == written));
        note(world, "empty again");
        let answer = world.host(Server).write(writer, b"last");
        world.note("write", &answer);
        world.host(Server).close(writer).unwrap();
        world.note_events("closed", Server, readers);
        for _ in 0..3 {
            let answer = world.host(Server).read(reader, 3);
            world.note("read", &answer);
        }
        let [reader, writer] = world.host(Server).pipe2(libc::O_NONBLOCK).unwrap();
        let writers = world.watch(Server, writer, libc::EPOLLOUT);
        world.host(Server).close(reader).unwrap();
        world.note_events("no reader", Server, writers);
        let answer = world.host(Server).write(writer, b"x");
        world.note("write", &answer);
    });
}

#[test]
fn edge_of_a_pipes_writer_comes_when_a_full_pipe_has_room() {
    compare(|world| {
        let [reader, writer] = world.host(Server).pipe2(libc::O_NONBLOCK).unwrap();
        let writers = world.watch(Server, writer, libc::EPOLLOUT | libc::EPOLLET);
        world.note_events("at first", Server, writers);
        for len in [7, 1 << 16, 1 << 16] {
            let answer = world.host(Server).write(writer, &vec![0; len]);
            world.note("write", &answer);
            world.note_events("written", Server, writers);
            for room in [4096, 4096, 1 << 16] {
                let answer = world.host(Server).read(reader, room).map(|bytes| bytes.len());
                world.note("read", &answer);
                world.note_events("read", Server, writers);
            }
        }
    });
}

#[test]
fn counters_count() {
    for kind in [0, libc::EFD_SEMAPHORE] {
        compare(|world| {
            let fd = world.host(Server).eventfd(2, libc::EFD_NONBLOCK | kind).unwrap();
            let epoll = world.watch(Server, fd, libc::EPOLLIN | libc::EPOLLOUT);
            world.note_events("two", Server, epoll);
            for bytes in [1_u64, 5, 0, u64::MAX, u64::MAX - 1, u64::MAX - 10] {
                let answer = world.host(Server).write(fd, &bytes.to_ne_bytes());
                world.note(&format!("add {bytes}"), &answer);
                world.note_events("then", Server, epoll);
            }
            let answers = [
                world.host(Server).read(fd, 7),
                world.host(Server).read(fd, 8),
                world.host(Server).read(fd, 100),
            ];
            world.note("read", &answers);
            let short = world.host(Server).write(fd, &[0; 7]);
            world.note("short", &short);
            world.note_events("left", Server, epoll);
        });
    }
}

#[test]
fn copies_of_a_descriptor_are_one_socket() {
    compare(|world| {
        let (server, client) = world.connection();
        let copy = world.host(Server).dup(server).unwrap();
        let epoll = world.host(Server).epoll_create1(0).unwrap();
        let add = |world: &mut World, fd, data| {
            let answer = world.host(Server).epoll_ctl(epoll, crate::host::Ctl::Add, fd, (IN, data));
            world.note("add", &answer);
        };
        add(world, server, 1);
        add(world, copy, 2);
        add(world, copy, 2);
        world.note_send("send", Client, client, b"ab", 0);
        world.note_events("both names", Server, epoll);
        world.note_recv("by one", Server, copy, 1, 0);
        world.host(Server).close(server).unwrap();
        world.note_events("the other is there", Server, epoll);
        world.note_recv("by the other", Server, copy, 1, 0);
        world.note_recv("nothing", Server, copy, 1, 0);
        world.host(Server).close(copy).unwrap();
        world.note_events("none", Server, epoll);
        world.note_recv("closed", Client, client, 1, 0);
    });
}

#[test]
fn poll_and_epoll_report_the_same() {
    compare(|world| {
        let (server, client) = world.connection();
        let fresh = world.tcp(Server);
        let [reader, _writer] = world.host(Server).pipe2(0).unwrap();
        let (input, output) = (libc::POLLIN | libc::POLLRDHUP, libc::POLLOUT | libc::POLLRDNORM);
        let asked = [
            (server, input),
            (server, output),
            (fresh, input),
            (fresh, output),
            (reader, input),
            (-1, input),
            (server, 0),
        ];
        let answer = world.host(Server).poll(&asked);
        world.note("open", &answer);
        world.note_send("send", Client, client, b"ab", 0);
        world.settle();
        let answer = world.host(Server).poll(&asked);
        world.note("data", &answer);
        world.host(Client).close(client).unwrap();
        world.settle();
        let answer = world.host(Server).poll(&asked);
        world.note("the end", &answer);
        let answer = world.host(Server).poll(&[(9999, input)]);
        world.note("no such descriptor", &answer);
    });
}

#[test]
fn unsupported_send_flags_are_refused() {
    let mut context = Context::create(Config::default()).unwrap();
    let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    context.bind(listener, "127.0.0.1:0".parse().unwrap()).unwrap();
    context.listen(listener, 1).unwrap();
    let address = context.getsockname(listener).unwrap();
    let client = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
    context.connect(client, Some(address)).unwrap();
    assert_eq!(context.send(client, b"x", MsgFlags::OOB), Err(Error::NotSupported));
    assert_eq!(context.send(client, b"x", MsgFlags::NOSIGNAL), Ok(1));
}
