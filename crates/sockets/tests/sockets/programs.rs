//! Whole programs as they are written for Linux: an echo server by edge-triggered epoll, a proxy by
//! select, a chat by poll. How much one call moves differs between systems; what each end has
//! in the end is not.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use crate::host::{Answer, Ctl, Fd};
use crate::world::{Client, Server, Side, World, compare};

/// Rounds in which a program has to be done.
const ROUNDS_MAX: usize = 3000;
const EDGE: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET) as u32;

/// What goes one way through a program: bytes, and then the end.
#[derive(Debug, Default)]
struct Flow {
    waiting: VecDeque<u8>,
    has_ended: bool,
    /// The end has been handed on.
    is_done: bool,
}

impl Flow {
    /// Reads until there is nothing more for now. `Err`: the connection broke.
    fn fill(&mut self, world: &mut World, (side, fd): (Side, Fd)) -> Answer<()> {
        while !self.has_ended {
            match world.host(side).read(fd, 4096) {
                Ok(bytes) if bytes.is_empty() => self.has_ended = true,
                Ok(bytes) => self.waiting.extend(bytes),
                Err(libc::EAGAIN) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes until there is no more room, and hands on the end after the last byte.
    fn drain(&mut self, world: &mut World, (side, fd): (Side, Fd)) -> Answer<()> {
        while !self.waiting.is_empty() {
            let (front, _) = self.waiting.as_slices();
            let piece = &front[..front.len().min(10_000)];
            match world.host(side).send(fd, piece, libc::MSG_NOSIGNAL) {
                Ok(sent) => drop(self.waiting.drain(..sent)),
                Err(libc::EAGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if self.has_ended && !self.is_done {
            world.host(side).shutdown(fd, libc::SHUT_WR)?;
            self.is_done = true;
        }
        Ok(())
    }
}

/// Bytes that are not all alike.
fn text(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|index| (index * 31 % 251) as u8 ^ seed).collect()
}

/// A client that sends all at once, ends, and reads until the other end does.
struct Talker {
    fd: Fd,
    said: Vec<u8>,
    out: Flow,
    heard: Flow,
}

impl Talker {
    fn dial(world: &mut World, to: SocketAddr, said: Vec<u8>) -> Self {
        let fd = world.tcp(Client);
        assert_eq!(world.host(Client).connect(fd, Some(to)), Err(libc::EINPROGRESS));
        let out =
            Flow { waiting: said.iter().copied().collect(), has_ended: true, ..Flow::default() };
        Self { fd, said, out, heard: Flow::default() }
    }

    fn go_on(&mut self, world: &mut World) {
        let ready = world.host(Client).poll(&[(self.fd, libc::POLLOUT)]).expect("it is open");
        if ready[0] & libc::POLLOUT != 0 {
            self.out.drain(world, (Client, self.fd)).expect("the server listens");
            self.heard.fill(world, (Client, self.fd)).expect("the server answers");
        }
    }

    fn is_over(&self) -> bool {
        self.out.is_done && self.heard.has_ended
    }
}

/// Steps both sides until the talkers have heard the end; what each of them heard, in words.
fn talk(world: &mut World, talkers: &mut [Talker], mut step: impl FnMut(&mut World)) {
    for _ in 0..ROUNDS_MAX {
        talkers.iter_mut().for_each(|talker| talker.go_on(world));
        step(world);
        if talkers.iter().all(Talker::is_over) {
            break;
        }
        world.settle();
    }
    for talker in talkers {
        let is_all = talker.heard.waiting.iter().eq(&talker.said);
        world.note("heard what was said", &(talker.is_over(), is_all));
        world.host(Client).close(talker.fd).expect("it is open");
    }
}

/// Events come once for each change: a program that stops before EAGAIN gets no more.
struct EchoServer {
    listener: Fd,
    epoll: Fd,
    echoes: BTreeMap<Fd, Flow>,
    served: usize,
}

impl EchoServer {
    fn new(world: &mut World) -> (Self, SocketAddr) {
        let (listener, address) = world.listener(Server, 64);
        let epoll = world.watch(Server, listener, libc::EPOLLIN | libc::EPOLLET);
        let event = (EDGE & !(libc::EPOLLOUT as u32), listener as u64);
        world.host(Server).epoll_ctl(epoll, Ctl::Modify, listener, event).expect("it is there");
        (Self { listener, epoll, echoes: BTreeMap::new(), served: 0 }, address)
    }

    /// One turn of the loop. Few events at a time, so that many are left for the next one.
    fn poll(&mut self, world: &mut World) {
        let events = world.host(Server).epoll_wait(self.epoll, 3).expect("it is a set");
        for (_, data) in events {
            if data == self.listener as u64 {
                self.accept_all(world);
                continue;
            }
            let fd = data as Fd;
            let Some(echo) = self.echoes.get_mut(&fd) else { continue };
            echo.fill(world, (Server, fd)).expect("no reset");
            echo.drain(world, (Server, fd)).expect("no reset");
            if echo.is_done {
                self.echoes.remove(&fd);
                world.host(Server).close(fd).expect("it is open");
            }
        }
    }

    fn accept_all(&mut self, world: &mut World) {
        loop {
            let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            match world.host(Server).accept4(self.listener, flags) {
                Ok(fd) => {
                    let event = (EDGE, fd as u64);
                    world.host(Server).epoll_ctl(self.epoll, Ctl::Add, fd, event).expect("new");
                    self.echoes.insert(fd, Flow::default());
                    self.served += 1;
                }
                Err(libc::EAGAIN) => return,
                Err(error) => panic!("accept4: {error}"),
            }
        }
    }
}

#[test]
fn an_echo_server_by_edges_answers_every_client_to_the_end() {
    compare(|world| {
        let (mut server, address) = EchoServer::new(world);
        let lens = [0, 1, 4096, 100_000, 5, 300_000, 8192, 70_000, 2, 40_960];
        let talker = |(seed, len): (u8, usize)| Talker::dial(world, address, text(len, seed));
        let mut talkers: Vec<_> = (0..).zip(lens).map(talker).collect();
        talk(world, &mut talkers, |world| server.poll(world));
        world.note("served, and still open", &(server.served, server.echoes.len()));
    });
}

/// Two connections that are one for the programs at their ends.
struct Relay {
    ends: [(Side, Fd); 2],
    flows: [Flow; 2],
    /// How it broke.
    broken: Option<i32>,
}

impl Relay {
    fn poll(&mut self, world: &mut World) {
        if self.broken.is_some() || self.flows.iter().all(|flow| flow.is_done) {
            return;
        }
        let fds = self.ends.map(|(_, fd)| fd);
        let [readable, writable] = world.host(Server).select(&fds, &fds).expect("both are open");
        for from in 0..2 {
            let to = 1 - from;
            let mut result = Ok(());
            if readable.contains(&from) {
                result = self.flows[from].fill(world, self.ends[from]);
            }
            if writable.contains(&to) && result.is_ok() {
                result = self.flows[from].drain(world, self.ends[to]);
            }
            if let Err(error) = result {
                self.broken = Some(error);
                return reset(world, self.ends[to]);
            }
        }
    }
}

/// Closes with a reset.
fn reset(world: &mut World, (side, fd): (Side, Fd)) {
    let linger = [1_i32.to_ne_bytes(), 0_i32.to_ne_bytes()].concat();
    let set = world.host(side).setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
    set.expect("any connection takes it");
    world.host(side).close(fd).expect("it is open");
}

/// A connection through the proxy: who dialed, the relay, and who was dialed.
fn relayed(world: &mut World, said: Vec<u8>) -> (Talker, Relay, Fd) {
    let (front, front_address) = world.listener(Server, 8);
    let (back, back_address) = world.listener(Client, 8);
    let talker = Talker::dial(world, front_address, said);
    let near = world.accept(front);
    let far = world.tcp(Server);
    assert_eq!(world.host(Server).connect(far, Some(back_address)), Err(libc::EINPROGRESS));
    let origin = loop {
        world.settle();
        match world.host(Client).accept4(back, libc::SOCK_NONBLOCK) {
            Ok(fd) => break fd,
            Err(error) => assert_eq!(error, libc::EAGAIN),
        }
    };
    let ends = [(Server, near), (Server, far)];
    (talker, Relay { ends, flows: Default::default(), broken: None }, origin)
}

#[test]
fn a_proxy_by_select_hands_on_bytes_and_each_direction_s_end() {
    compare(|world| {
        let (talker, mut relay, origin) = relayed(world, text(200_000, 9));
        let mut echo = Flow::default();
        talk(world, &mut [talker], |world| {
            relay.poll(world);
            // What was dialed answers only when it has heard all.
            echo.fill(world, (Client, origin)).expect("no reset");
            if echo.has_ended {
                echo.drain(world, (Client, origin)).expect("no reset");
            }
        });
        world.note("both ways ended", &relay.flows.each_ref().map(|flow| flow.is_done));
    });
}

#[test]
fn a_proxy_by_select_hands_on_a_reset() {
    compare(|world| {
        let (mut talker, mut relay, origin) = relayed(world, text(5000, 3));
        let mut heard = Flow::default();
        for _ in 0..ROUNDS_MAX {
            talker.go_on(world);
            relay.poll(world);
            heard.fill(world, (Client, origin)).expect("no reset yet");
            if heard.has_ended {
                break;
            }
            world.settle();
        }
        world.note("heard", &heard.waiting.iter().eq(&talker.said));
        // It answers, and who asked is gone.
        world.host(Client).write(origin, b"answer").expect("it is open");
        reset(world, (Client, talker.fd));
        for _ in 0..20 {
            world.settle();
            relay.poll(world);
        }
        world.note("the proxy broke by", &relay.broken);
        world.note_send("more", Client, origin, b"more", libc::MSG_NOSIGNAL);
    });
}

/// Each client gets what all others send; a client that does not keep up is closed.
#[derive(Default)]
struct Chat {
    /// Each with what it has still to be told.
    guests: BTreeMap<Fd, VecDeque<u8>>,
    left: Vec<String>,
}

impl Chat {
    const BACKLOG_MAX: usize = 1 << 20;

    fn poll(&mut self, world: &mut World, listener: Fd) {
        let mut asked = vec![(listener, libc::POLLIN)];
        asked.extend(self.guests.iter().map(|(fd, waiting)| {
            (*fd, if waiting.is_empty() { libc::POLLIN } else { libc::POLLIN | libc::POLLOUT })
        }));
        let told = world.host(Server).poll(&asked).expect("all are open");
        for (&(fd, _), told) in asked.iter().zip(told).skip(1) {
            if told & (libc::POLLIN | libc::POLLERR | libc::POLLHUP) != 0 {
                self.hear(world, fd);
            }
            if told & libc::POLLOUT != 0 {
                self.tell(world, fd);
            }
        }
        while let Ok(fd) = world.host(Server).accept4(listener, libc::SOCK_NONBLOCK) {
            self.guests.insert(fd, VecDeque::new());
        }
    }

    fn hear(&mut self, world: &mut World, fd: Fd) {
        match world.host(Server).recv(fd, 65_536, 0) {
            Ok(bytes) if !bytes.is_empty() => {
                for (_, waiting) in self.guests.iter_mut().filter(|(other, _)| **other != fd) {
                    waiting.extend(&bytes);
                }
            }
            Err(libc::EAGAIN) => {}
            end => self.show_out(world, fd, format!("{:?}", end.map(|bytes| bytes.len()))),
        }
    }

    fn tell(&mut self, world: &mut World, fd: Fd) {
        let Some(waiting) = self.guests.get_mut(&fd) else { return };
        let bytes = waiting.make_contiguous();
        match world.host(Server).send(fd, bytes, libc::MSG_NOSIGNAL) {
            Ok(sent) => drop(waiting.drain(..sent)),
            Err(libc::EAGAIN) => {}
            Err(error) => return self.show_out(world, fd, format!("tell: {error}")),
        }
        if self.guests[&fd].len() > Self::BACKLOG_MAX {
            self.show_out(world, fd, "deaf".to_owned());
        }
    }

    fn show_out(&mut self, world: &mut World, fd: Fd, why: String) {
        self.guests.remove(&fd);
        self.left.push(why);
        reset(world, (Server, fd));
    }
}

#[test]
fn a_chat_by_poll_reaches_all_and_closes_slow_readers() {
    compare(|world| {
        let (listener, address) = world.listener(Server, 8);
        let mut chat = Chat::default();
        let fds: Vec<Fd> = (0..4).map(|_| world.tcp(Client)).collect();
        let mut heard: Vec<VecDeque<u8>> = vec![VecDeque::new(); 4];
        for (place, fd) in fds.iter().enumerate() {
            assert_eq!(world.host(Client).connect(*fd, Some(address)), Err(libc::EINPROGRESS));
            for _ in 0..ROUNDS_MAX {
                world.settle();
                chat.poll(world, listener);
                if chat.guests.len() > place {
                    break;
                }
            }
        }
        // The last one never reads; the others are heard by all.
        let line = text(100_000, 1);
        let mut speech: VecDeque<u8> = line.iter().copied().cycle().take(9_000_000).collect();
        let mut said = 0;
        let mut has_ended = false;
        for _ in 0..ROUNDS_MAX {
            // A guest that reads never falls so far behind that it seems deaf.
            let heard_by_both = heard[1].len().min(heard[2].len());
            if !speech.is_empty() && said - heard_by_both < Chat::BACKLOG_MAX / 2 {
                let piece: Vec<u8> = speech.iter().copied().take(60_000).collect();
                if let Ok(sent) = world.host(Client).send(fds[0], &piece, 0) {
                    said += sent;
                    drop(speech.drain(..sent));
                }
            }
            chat.poll(world, listener);
            for place in [1, 2] {
                while let Ok(bytes) = world.host(Client).recv(fds[place], 65_536, 0) {
                    if bytes.is_empty() {
                        has_ended = true;
                        break;
                    }
                    heard[place].extend(bytes);
                }
            }
            let is_whole = heard[1].len() == 9_000_000 && heard[2].len() == 9_000_000;
            if is_whole || has_ended {
                break;
            }
            world.settle();
        }
        let whole: VecDeque<u8> = line.iter().copied().cycle().take(9_000_000).collect();
        world.note("heard all", &[1, 2].map(|place: usize| heard[place] == whole));
        world.note("shown out", &chat.left);
        // One leaves, and one breaks off.
        world.host(Client).close(fds[1]).expect("it is open");
        reset(world, (Client, fds[2]));
        for _ in 0..20 {
            world.settle();
            chat.poll(world, listener);
        }
        chat.left.sort();
        world.note("left", &(&chat.left, chat.guests.len()));
    });
}
