//! memif between two processes of ours: echo, and a peer that is killed.
//!
//! The test starts itself again as the client; which part it plays comes by environment.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use megapipe_link::memif::{self, Listener, Memif, MemifSettings};
use megapipe_link::{Link, LinkError, TxMetadata};

const PATIENCE: Duration = Duration::from_secs(20);
const SOCKET: &str = "MEGAPIPE_TEST_MEMIF_SOCKET";

fn settings(socket: &str) -> MemifSettings {
    MemifSettings { ring_size_log2: 7, ..MemifSettings::new(socket, [2, 0, 0, 0, 0, 9]) }
}

/// Not a test of its own: the other process, which echoes frames until its peer is gone.
#[test]
fn echo_client() {
    let Ok(socket) = std::env::var(SOCKET) else {
        eprintln!("skipped: started by the other tests of this file");
        return;
    };
    let mut link = memif::connect(&settings(&socket), PATIENCE).expect("a server").remove(0);
    let deadline = Instant::now() + PATIENCE;
    let mut frames = std::collections::VecDeque::with_capacity(128);
    while Instant::now() < deadline {
        match link.rx_burst(128, &mut |frame, _| frames.push_back(frame.to_vec())) {
            Ok(0) if frames.is_empty() => match link.wait(Some(Duration::from_secs(1))) {
                Ok(_) => {}
                Err(LinkError::Gone { .. }) => return,
                Err(error) => panic!("{error}"),
            },
            Ok(_) => {}
            Err(LinkError::Gone { .. }) => return,
            Err(error) => panic!("{error}"),
        }
        let sent = link.tx_burst(128, &mut |room| {
            let frame = frames.pop_front()?;
            room[..frame.len()].copy_from_slice(&frame);
            Some(TxMetadata { len: frame.len(), ..TxMetadata::default() })
        });
        match sent {
            Ok(_) => {}
            Err(LinkError::Gone { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Killed when dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn joined(name: &str) -> (Other, Memif) {
    let socket = format!("@mp-memif-{}-{name}", std::process::id());
    let mut listener = Listener::bind(&settings(&socket)).expect("listener");
    let program = std::env::current_exe().expect("this test");
    let child = Command::new(program)
        .args(["--exact", "echo_client"])
        .env(SOCKET, &socket)
        .stdout(Stdio::null())
        .spawn()
        .expect("this test again");
    (Other(child), listener.accept(PATIENCE).expect("a client").remove(0))
}

#[test]
fn frames_pass_between_processes_and_back() {
    const COUNT: u32 = 50_000;
    let (mut other, mut link) = joined("echo");
    let (mut sent, mut back) = (0u32, 0u32);
    let deadline = Instant::now() + PATIENCE;
    while back < COUNT {
        assert!(Instant::now() < deadline, "{back} of {COUNT} came back");
        let room = (back + 100).min(COUNT) - sent;
        let filled = link.tx_burst(room as usize, &mut |room| {
            let len = 60 + (sent as usize * 113) % 1_400;
            room[..len].fill(sent as u8);
            room[..4].copy_from_slice(&sent.to_be_bytes());
            sent += 1;
            Some(TxMetadata { len, ..TxMetadata::default() })
        });
        filled.expect("tx_burst");
        let lent = link.rx_burst(64, &mut |frame, _| {
            assert_eq!(frame[..4], back.to_be_bytes());
            assert_eq!(frame.len(), 60 + (back as usize * 113) % 1_400);
            assert!(frame[4..].iter().all(|&byte| byte == back as u8), "frame {back}");
            back += 1;
        });
        if lent.expect("rx_burst") == 0 {
            link.wait(Some(Duration::from_millis(100))).expect("wait");
        }
    }
    drop(link);
    assert!(other.0.wait().expect("the client ends").success(), "the client saw us leave");
}

#[test]
fn a_killed_peer_is_gone() {
    let (other, mut link) = joined("kill");
    drop(other);
    let start = Instant::now();
    loop {
        match link.wait(Some(PATIENCE)) {
            Err(LinkError::Gone { driver }) => break assert_eq!(driver, "memif"),
            Err(error) => panic!("{error}"),
            Ok(_) => assert!(start.elapsed() < PATIENCE, "the loss of the peer was not reported"),
        }
    }
    assert_eq!(link.gone_reason(), Some("the peer closed the control channel"));
}
