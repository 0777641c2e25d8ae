//! memif against the suite, in both roles; the other end is a memif of ours.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use megapipe_link::conformance::{self, Opened, OtherEnd, TestedLink};
use megapipe_link::memif::{self, Listener, MemifRole, MemifSettings};

use super::counting::allocations;

struct Cable {
    role: MemifRole,
    buffer_bytes: u32,
    mtu: usize,
}

impl TestedLink for Cable {
    fn open(&self) -> Result<Opened, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let socket = format!("@mp-memif-conformance-{}-{number}", std::process::id());
        let settings = MemifSettings {
            ring_size_log2: 8,
            buffer_bytes: self.buffer_bytes,
            mtu: self.mtu,
            ..MemifSettings::new(socket, [2, 0, 0, 0, 0, 7])
        };
        let patience = Duration::from_secs(5);
        let mut listener = Listener::bind(&settings).map_err(|error| error.to_string())?;
        let client = thread::spawn(move || memif::connect(&settings, patience));
        let server = listener.accept(patience).expect("a client").remove(0);
        let client = client.join().expect("no panic").expect("a server").remove(0);
        let (tested, other) = match self.role {
            MemifRole::Server => (server, client),
            MemifRole::Client => (client, server),
        };
        Ok((Box::new(tested), Box::new(OtherEnd(other))))
    }

    fn fills(&self) -> bool {
        true
    }

    fn backlog(&self) -> usize {
        // 1,280 bytes in buffers of 512 take three slots.
        256 / 3
    }

    fn allocations(&self) -> Option<u64> {
        Some(allocations())
    }
}

#[test]
fn the_server_passes() {
    let cable = Cable { role: MemifRole::Server, buffer_bytes: 2048, mtu: 1500 };
    conformance::all(&cable).expect("memif needs nothing of the machine");
}

#[test]
fn the_client_passes() {
    let cable = Cable { role: MemifRole::Client, buffer_bytes: 2048, mtu: 1500 };
    conformance::all(&cable).expect("memif needs nothing of the machine");
}

#[test]
fn both_pass_with_frames_in_chains() {
    for role in [MemifRole::Server, MemifRole::Client] {
        let cable = Cable { role, buffer_bytes: 512, mtu: 4000 };
        conformance::all(&cable).expect("memif needs nothing of the machine");
    }
}
