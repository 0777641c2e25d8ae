//! Chat server on two channels: each line of a client goes to all other clients.
//!
//! Two threads accept connections at one address, each with a channel of its own: the first takes
//! those that arrive on the first half of the cores, the second all others. A line crosses to the
//! other thread through a queue, and a `Waker` ends that thread's `dispatch`.
//!
//! Run with an address, by default `127.0.0.1:7000`. Connect by `nc 127.0.0.1 7000`.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use megapipe::{
    Accept, Address, Channel, Config, Connection, CpuMask, Event, Handle, ListenOptions, Payload,
    Waker,
};

const READ_BYTES: usize = 4096;
/// A client that sends a longer line is disconnected.
const LINE_BYTES_MAX: usize = 1024;

type Failure = Box<dyn Error + Send + Sync>;

/// Way to a thread: its queue, and what ends its wait.
struct OtherThread {
    lines: Sender<Arc<[u8]>>,
    waker: Waker,
}

/// Clients of one thread.
struct Room {
    channel: Channel,
    /// Bytes of the line that has not ended yet, by client.
    clients: BTreeMap<Handle, Vec<u8>>,
    other: OtherThread,
    lines: Receiver<Arc<[u8]>>,
}

fn main() -> Result<(), Failure> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".to_owned());
    let address: Address = address.parse()?;
    let (to_second, of_second) = mpsc::channel();
    let (to_first, of_first) = mpsc::channel();
    let (first_waker, second_waker) = (mpsc::sync_channel(1), mpsc::sync_channel(1));
    // A channel belongs to the thread that creates it.
    let second = thread::spawn({
        let ours = second_waker.0;
        let theirs = first_waker.1;
        move || -> Result<(), Failure> {
            // The first thread binds the port; the second joins it.
            let (waker, address) = theirs.recv()?;
            let channel = Channel::create(Config::default())?;
            ours.send(channel.waker())?;
            let other = OtherThread { lines: to_first, waker };
            Room::new(channel, other, of_second).serve(&address)
        }
    });
    let mut channel = Channel::create(Config::default())?;
    let cores = thread::available_parallelism()?.get();
    let mask = CpuMask::cpus(0..cores.div_ceil(2));
    let listener = channel.listen(&address, &ListenOptions::default().cpu_mask(mask), 0)?;
    let address = channel.local_address(listener)?;
    first_waker.0.send((channel.waker(), address.clone()))?;
    let other = OtherThread { lines: to_second, waker: second_waker.1.recv()? };
    channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(READ_BYTES))?;
    println!("listening on {address}");
    Room::new(channel, other, of_first).run()?;
    second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Room {
    fn new(channel: Channel, other: OtherThread, lines: Receiver<Arc<[u8]>>) -> Self {
        Self { channel, clients: BTreeMap::new(), other, lines }
    }

    /// Listens, and runs until an error of the channel.
    fn serve(mut self, address: &Address) -> Result<(), Failure> {
        let listener = self.channel.listen(address, &ListenOptions::default(), 0)?;
        self.channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(READ_BYTES))?;
        self.run()
    }

    fn run(mut self) -> Result<(), Failure> {
        loop {
            let Some(done) = self.channel.dispatch(None)? else { continue };
            match done.event {
                Event::Accept(Ok(accepted)) => {
                    if let Connection::Lwsocket(client) = accepted.connection {
                        self.clients.insert(client, Vec::new());
                    }
                }
                Event::Read(Ok(data)) if !data.is_empty() => self.on_bytes(done.handle, &data)?,
                Event::Read(_) | Event::Write(Err(_)) => self.remove(done.handle),
                // Several lines may share one wake-up.
                Event::Wake => {
                    while let Ok(line) = self.lines.try_recv() {
                        self.send_to_all(None, &line);
                    }
                }
                _ => {}
            }
        }
    }

    /// Sends each complete line to the clients of both threads.
    fn on_bytes(&mut self, client: Handle, bytes: &[u8]) -> Result<(), Failure> {
        let Some(begun) = self.clients.get_mut(&client) else { return Ok(()) };
        begun.extend_from_slice(bytes);
        let end = begun.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = begun.drain(..end).collect();
        if begun.len() > LINE_BYTES_MAX {
            self.remove(client);
            return Ok(());
        }
        if !lines.is_empty() {
            let lines: Arc<[u8]> = lines.into();
            self.send_to_all(Some(client), &lines);
            // The other thread has ended if its queue is closed.
            self.other.lines.send(lines)?;
            self.other.waker.wake();
        }
        Ok(self.channel.read(client, READ_BYTES)?)
    }

    /// Sends lines to all clients of this thread but one. A write is refused where the client does
    /// not read and 1 MiB of its lines waits: the client is removed, and delays no other.
    fn send_to_all(&mut self, except: Option<Handle>, lines: &Arc<[u8]>) {
        let receivers = self.clients.keys().filter(|client| Some(**client) != except);
        let mut refused = Vec::new();
        for &client in receivers {
            let payload = Payload::shared(Arc::clone(lines), 0..lines.len());
            if self.channel.write(client, payload).is_err() {
                refused.push(client);
            }
        }
        refused.into_iter().for_each(|client| self.remove(client));
    }

    fn remove(&mut self, client: Handle) {
        if self.clients.remove(&client).is_some() {
            let _ = self.channel.unregister(client);
        }
    }
}
