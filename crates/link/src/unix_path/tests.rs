//! What is replaced, what is refused, and what is removed at the end.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Barrier;

use rustix::net::SocketType;

use super::*;

const BACKLOG: i32 = 8;
const KINDS: [SocketType; 2] = [SocketType::STREAM, SocketType::SEQPACKET];

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("mp-path-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).expect("a new folder");
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn socket(kind: SocketType) -> OwnedFd {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket")
}

fn listening(kind: SocketType, path: &Path) -> io::Result<(BoundPath, OwnedFd)> {
    let socket = socket(kind);
    Ok((BoundPath::listen(socket.as_fd(), path, BACKLOG)?, socket))
}

fn refused(kind: SocketType, path: &Path) -> io::Error {
    let error = listening(kind, path).expect_err("the path is taken");
    assert!(error.to_string().contains(&*path.to_string_lossy()), "{error}");
    error
}

#[test]
fn unix_path_keeps_files_that_are_no_sockets() {
    let folder = Folder::new("files");
    let path = folder.path();
    for kind in KINDS {
        std::fs::write(&path, "precious").expect("a file");
        assert_eq!(refused(kind, &path).kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).expect("the file is there"), b"precious");
        std::fs::remove_file(&path).expect("the file is there");

        std::fs::create_dir(&path).expect("a folder");
        assert_eq!(refused(kind, &path).kind(), ErrorKind::AlreadyExists);
        std::fs::remove_dir(&path).expect("the folder is there");

        std::os::unix::fs::symlink("nowhere", &path).expect("a symbolic link");
        assert_eq!(refused(kind, &path).kind(), ErrorKind::AlreadyExists);
        std::fs::remove_file(&path).expect("the link is there");
    }
}

#[test]
fn unix_path_replaces_abandoned_sockets_only() {
    let folder = Folder::new("sockets");
    let path = folder.path();
    for kind in KINDS {
        drop(UnixListener::bind(&path).expect("a path"));
        let (bound, listener) = listening(kind, &path).expect("nothing listens there");
        // A listener of the same type, and of the other one.
        for other in KINDS {
            assert_eq!(refused(other, &path).kind(), ErrorKind::AddrInUse);
        }
        assert!(path.exists());
        drop((bound, listener));
        assert!(!path.exists());
    }
}

#[test]
fn unix_path_of_a_full_listener_is_in_use() {
    let folder = Folder::new("full");
    let path = folder.path();
    let (_bound, listener) = listening(SocketType::STREAM, &path).expect("a free path");
    listen(&listener, 0).expect("a shorter queue");
    let _waiting = UnixStream::connect(&path).expect("room for one");
    assert_eq!(refused(SocketType::STREAM, &path).kind(), ErrorKind::AddrInUse);
}

#[test]
fn unix_path_end_keeps_what_others_put_there() {
    let folder = Folder::new("end");
    let path = folder.path();
    let first = listening(SocketType::STREAM, &path).expect("a free path");
    std::fs::remove_file(&path).expect("the socket is there");
    let second = listening(SocketType::STREAM, &path).expect("a free path");
    drop(first);
    assert!(path.exists(), "the second server's socket is gone");
    std::fs::remove_file(&path).expect("the socket is there");
    std::fs::write(&path, "precious").expect("a file");
    drop(second);
    assert_eq!(std::fs::read(&path).expect("the file is there"), b"precious");
}

#[test]
fn unix_path_of_two_servers_at_once_has_one_winner() {
    let folder = Folder::new("race");
    let path = folder.path();
    for round in 0..100 {
        drop(UnixListener::bind(&path).expect("an abandoned socket"));
        let start = Barrier::new(4);
        let started: Vec<_> = std::thread::scope(|scope| {
            let serve = || {
                start.wait();
                listening(SocketType::STREAM, &path)
            };
            let servers: Vec<_> = (0..4).map(|_| scope.spawn(serve)).collect();
            servers.into_iter().map(|it| it.join().expect("no panic")).collect()
        });
        let winners: Vec<_> = started.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "round {round}");
        UnixStream::connect(&path).expect("the winner listens");
    }
}
