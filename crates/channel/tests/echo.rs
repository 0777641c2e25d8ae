//! The smallest whole: accept, echo, end of stream, over both drivers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use megapipe::{Accept, Channel, Config, DriverChoice, Event, ListenOptions};

fn echo(driver: DriverChoice) {
    let mut channel = match Channel::create(Config::default().driver(driver)) {
        Ok(channel) => channel,
        Err(error) => return eprintln!("skipped: an echo on {driver:?}: {error}"),
    };
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = channel.listen(&address, &ListenOptions::default(), 1).unwrap();
    let address = channel.local_address(listener).unwrap().as_inet().unwrap();
    channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(4096).cookie(2)).unwrap();
    let client = thread::spawn(move || {
        for round in 0..50u8 {
            let mut stream = TcpStream::connect(address).unwrap();
            for message in 0..20u8 {
                let sent = [round ^ message; 64];
                let mut got = [0; 64];
                stream.write_all(&sent).unwrap();
                stream.read_exact(&mut got).unwrap();
                assert_eq!(sent, got);
            }
        }
    });
    let mut ended = 0;
    while ended < 50 {
        let done = channel.dispatch(None).unwrap().unwrap();
        match done.event {
            Event::Accept(Ok(_)) => assert_eq!(done.cookie, 1),
            Event::Read(Ok(data)) if data.is_empty() => {
                channel.unregister(done.handle).unwrap();
                ended += 1;
            }
            Event::Read(Ok(data)) => {
                assert_eq!(done.cookie, 2);
                channel.write(done.handle, data).unwrap();
            }
            Event::Write(Ok(64)) => channel.read(done.handle, 4096).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    client.join().unwrap();
    assert_eq!(channel.counters().stray_answers, 0);
}

#[test]
fn uring_echoes() {
    echo(DriverChoice::Uring);
}

#[test]
fn epoll_echoes() {
    echo(DriverChoice::Epoll);
}
