//! A program that asks for the service where no daemon serves it: an error that names the reason,
//! and the kernel in its place only with `--fall-back`.

use std::os::fd::{AsFd, OwnedFd};
use std::thread::JoinHandle;

use megapipe_service::attach::{RefusalCode, Refused};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    listen, recv, send, socket_with,
};

use super::*;

/// Listens at a path as a daemon that refuses each of so many programs with a sentence.
fn refusing_daemon(path: &str, sentence: &'static str, programs: usize) -> JoinHandle<()> {
    let kind = SocketType::SEQPACKET;
    let listener = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
    let listener = listener.expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a path");
    bind(&listener, &address).expect("the path is free");
    listen(&listener, 8).expect("it is bound");
    let refuse = move |client: OwnedFd| {
        let hello = recv(client.as_fd(), &mut [0_u8; 4_096][..], RecvFlags::empty());
        assert!(hello.expect("a HELLO").0 > 0);
        let refused = Refused::new(RefusalCode::Version, sentence).encode();
        send(client.as_fd(), &refused, SendFlags::empty()).expect("the program waits for it");
    };
    std::thread::spawn(move || {
        (0..programs).for_each(|_| refuse(accept(&listener).expect("a program")));
    })
}

/// A server of the service at a path.
fn server(path: &str, more: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_megapipe"));
    let line = "serve rpc --listen 127.0.0.1:0 --backend service --service";
    command.args(line.split_whitespace()).arg(path).args(more.split_whitespace());
    command
}

/// It fails, and names all of `why`.
#[track_caller]
fn assert_fails(path: &str, why: &[&str]) {
    let output = server(path, "").output().expect("it runs");
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in why {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// The kernel serves, and a warning names all of `why`.
#[track_caller]
fn assert_falls_back(path: &str, why: &[&str]) {
    let server = Running::start(server(path, "--fall-back")).until_ready("listening on");
    let address = server.ready.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
    let address = address.expect("its address").trim_end_matches(',').to_owned();
    std::net::TcpStream::connect(&*address).expect("the kernel serves");
    let text = server.end(Signal::TERM).1;
    let warning = text.lines().find(|line| line.contains("warning")).unwrap_or_default();
    for part in why.iter().chain(&["the kernel serves in place of the service"]) {
        assert!(warning.contains(part), "{part}: {text}");
    }
}

#[test]
fn service_is_replaced_by_the_kernel_only_with_fall_back() {
    let folder = Folder::new("fall-back");
    let nothing = folder.file("nothing");
    assert_fails(&nothing, &["no service at", &nothing]);
    assert_falls_back(&nothing, &["no service at", &nothing]);

    let other = folder.file("other");
    let sentence = "the program speaks versions 1 to 4 of the protocol, this daemon 7 to 9";
    let daemon = refusing_daemon(&other, sentence, 2);
    assert_fails(&other, &[&other, sentence]);
    assert_falls_back(&other, &[&other, sentence]);
    daemon.join().expect("no panic");

    // The option is about daemons.
    let line = "serve rpc --listen 127.0.0.1:0 --fall-back";
    let output =
        Command::new(env!("CARGO_BIN_EXE_megapipe")).args(line.split_whitespace()).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(2), "{}", text_of(&output));
    assert!(text_of(&output).contains("--fall-back: only --backend service"));
}
