//! A busy connection in a set with a descriptor of the process: nothing is left behind in a queue
//! when the context goes to sleep beside the kernel.

use std::io::{Read, Write};

use megapipe_sockets::{
    Bsd, Config, Context, EpollEvent, EpollOp, Error, Events, Fd, OpenFlags, PollFd,
};

const LARGE: usize = 400_000;

/// Echoes what one connection sends, by a set that watches a descriptor of the process as well.
fn echo_beside_a_timer(context: &mut Context, listener: Fd) {
    let timer = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
    let epoll = context.epoll_create1(OpenFlags::empty()).unwrap();
    let event = |data| EpollOp::Add(EpollEvent { events: Events::IN | Events::EDGE, data });
    let fd = context.accept4(listener, OpenFlags::NONBLOCK).unwrap();
    context.epoll_ctl(epoll, event(0), &timer).unwrap();
    context.epoll_ctl(epoll, event(1), fd).unwrap();
    let (mut bytes, mut events) = ([0; 4096], [EpollEvent::default(); 4]);
    loop {
        assert_eq!(context.epoll_wait(epoll, &mut events, None), Ok(1));
        loop {
            let len = match context.read(fd, &mut bytes) {
                Ok(0) => return,
                Err(Error::WouldBlock) => break,
                len => len.unwrap(),
            };
            let mut left = &bytes[..len];
            while !left.is_empty() {
                match context.write(fd, left) {
                    Err(Error::WouldBlock) => {
                        let mut room = [PollFd::new(fd, Events::OUT)];
                        assert_eq!(context.poll(&mut room, None), Ok(1));
                    }
                    count => left = &left[count.unwrap()..],
                }
            }
        }
    }
}

#[test]
fn mixed_wait_flushes_writes_first() {
    let (tell, told) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let mut context = Context::create(Config::default()).unwrap();
        let listener = context.socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        context.bind(listener, "127.0.0.1:0".parse().unwrap()).unwrap();
        context.listen(listener, 8).unwrap();
        tell.send(context.getsockname(listener).unwrap()).unwrap();
        echo_beside_a_timer(&mut context, listener);
    });
    let mut stream = std::net::TcpStream::connect(told.recv().unwrap()).unwrap();
    stream.set_read_timeout(Some(std::time::Duration::from_secs(30))).unwrap();
    let sent: Vec<u8> = (0..LARGE).map(|index| (index % 251) as u8).collect();
    let (mut sender, bytes) = (stream.try_clone().unwrap(), sent.clone());
    let sending = std::thread::spawn(move || sender.write_all(&bytes).unwrap());
    let mut got = vec![0; LARGE];
    stream.read_exact(&mut got).unwrap();
    assert!(got == sent);
    sending.join().unwrap();
    drop(stream);
    server.join().unwrap();
}
