//! File server: a client sends the name of a file and a newline, and receives the file.
//!
//! Run with a folder and an address: `file_server . 127.0.0.1:7000`. A client:
//! `echo README.md | nc 127.0.0.1 7000`.
//!
//! One thread serves all clients, and reads of files do not stop it: disk files are handles of the
//! channel, as connections are. Of each file one block is in memory.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Component, Path, PathBuf};

use megapipe::{
    Accept, Channel, Completion, Config, Connection, Disconnect, Event, Handle, ListenOptions,
    OpenOptions, SubmitError,
};

const BLOCK_BYTES: usize = 64 << 10;
/// Longest name that a client may send.
const NAME_BYTES_MAX: usize = 1024;

/// What one client is doing.
#[derive(Default)]
struct FileClient {
    /// The name, as far as it has arrived.
    name: Vec<u8>,
    transfer: Option<FileTransfer>,
}

struct FileTransfer {
    file: Handle,
    /// Position of the next block.
    offset: u64,
}

struct FileServer {
    channel: Channel,
    root: PathBuf,
    clients: BTreeMap<Handle, FileClient>,
    /// The client of each open file.
    readers: BTreeMap<Handle, Handle>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let root = arguments.next().unwrap_or_else(|| ".".to_owned());
    let root = std::fs::canonicalize(&root).map_err(|error| format!("folder {root}: {error}"))?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:7000".to_owned());
    let mut channel = Channel::create(Config::default())?;
    let listener = channel.listen(&address.parse()?, &ListenOptions::default(), 0)?;
    channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(NAME_BYTES_MAX))?;
    println!("listening on {}", channel.local_address(listener)?);
    let (clients, readers) = (BTreeMap::new(), BTreeMap::new());
    let mut server = FileServer { channel, root, clients, readers };
    loop {
        let Some(done) = server.channel.dispatch(None)? else { continue };
        server.on_completion(done)?;
    }
}

impl FileServer {
    fn on_completion(&mut self, done: Completion) -> Result<(), SubmitError> {
        let reader = self.readers.get(&done.handle).copied();
        match (done.event, reader) {
            (Event::Accept(Ok(accepted)), _) => {
                if let Connection::Lwsocket(client) = accepted.connection {
                    self.clients.insert(client, FileClient::default());
                }
            }
            (Event::Open(Ok(())), Some(_)) => self.channel.read_at(done.handle, 0, BLOCK_BYTES)?,
            // The next block is read when the client has taken this one (`Event::Write`).
            (Event::Read(Ok(block)), Some(client)) if !block.is_empty() => {
                if let Some(transfer) = self.transfer(client) {
                    transfer.offset += block.len() as u64;
                }
                self.channel.write(client, block)?;
            }
            // The end of the file: the client receives the end of the stream after the bytes.
            (Event::Read(Ok(_)), Some(client)) => {
                self.channel.disconnect(client, Disconnect::Both)?;
            }
            (Event::Open(Err(_)), Some(client)) => self.refuse(client, "no such file\n")?,
            // A part of the file was sent: a clean end would pass for the whole file.
            (Event::Read(Err(_)), Some(client)) => {
                self.channel.disconnect(client, Disconnect::Reset)?;
            }
            (Event::Read(Ok(bytes)), None) if !bytes.is_empty() => {
                self.on_name(done.handle, &bytes)?;
            }
            (Event::Write(Ok(_)), _) => {
                if let Some(FileTransfer { file, offset }) = self.transfer(done.handle) {
                    let (file, offset) = (*file, *offset);
                    self.channel.read_at(file, offset, BLOCK_BYTES)?;
                }
            }
            (Event::Read(_) | Event::Write(_) | Event::Disconnect(_), None) => {
                self.remove(done.handle);
            }
            _ => {}
        }
        Ok(())
    }

    fn transfer(&mut self, client: Handle) -> Option<&mut FileTransfer> {
        self.clients.get_mut(&client)?.transfer.as_mut()
    }

    /// Opens the file when its name is complete.
    fn on_name(&mut self, handle: Handle, bytes: &[u8]) -> Result<(), SubmitError> {
        let Some(client) = self.clients.get_mut(&handle) else { return Ok(()) };
        client.name.extend_from_slice(bytes);
        let Some(end) = client.name.iter().position(|&byte| byte == b'\n') else {
            if client.name.len() > NAME_BYTES_MAX {
                return self.refuse(handle, "the name is too long\n");
            }
            return self.channel.read(handle, NAME_BYTES_MAX);
        };
        let name =
            std::str::from_utf8(&client.name[..end]).ok().and_then(|it| inside(&self.root, it));
        let Some(path) = name else { return self.refuse(handle, "no such file\n") };
        let file = self.channel.open(&path, &OpenOptions::read(), 0)?;
        client.transfer = Some(FileTransfer { file, offset: 0 });
        self.readers.insert(file, handle);
        Ok(())
    }

    fn refuse(&mut self, client: Handle, why: &'static str) -> Result<(), SubmitError> {
        self.channel.write(client, why)?;
        self.channel.disconnect(client, Disconnect::Both)
    }

    /// Closes a client and its file.
    fn remove(&mut self, handle: Handle) {
        let Some(client) = self.clients.remove(&handle) else { return };
        if let Some(transfer) = client.transfer {
            self.readers.remove(&transfer.file);
            let _ = self.channel.unregister(transfer.file);
        }
        let _ = self.channel.unregister(handle);
    }
}

/// The path of a file below the folder; `None` for names that lead out of it, also by a link.
fn inside(root: &Path, name: &str) -> Option<PathBuf> {
    let name = Path::new(name.trim_end_matches('\r'));
    let is_plain = name.components().all(|part| matches!(part, Component::Normal(_)));
    let path = std::fs::canonicalize(root.join(name)).ok()?;
    (is_plain && path.starts_with(root) && path.is_file()).then_some(path)
}
