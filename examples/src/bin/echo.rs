//! Echo server: sends the bytes of each connection back to it.
//!
//! Run with an address, by default `127.0.0.1:7000`; port 0 selects a free port.
//! Read first: README, "In Rust". The cookie of a completion is not used: its handle suffices.

#![forbid(unsafe_code)]

use std::error::Error;

use megapipe::{Accept, Channel, Config, Connection, Event, ListenOptions};

/// Largest number of bytes of one completion.
const READ_BYTES: usize = 16 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".to_owned());
    let mut channel = Channel::create(Config::default())?;
    let listener = channel.listen(&address.parse()?, &ListenOptions::default(), 0)?;
    channel.accept(listener, Accept::lwsocket(u32::MAX))?;
    println!("listening on {}", channel.local_address(listener)?);
    loop {
        let Some(done) = channel.dispatch(None)? else { continue };
        match done.event {
            Event::Accept(Ok(accepted)) => {
                if let Connection::Lwsocket(connection) = accepted.connection {
                    channel.read(connection, READ_BYTES)?;
                }
            }
            // An error of one accept, for example too many open files, ends no other.
            Event::Accept(Err(error)) => eprintln!("accept: {error}"),
            // The next read waits until the peer takes the answer: this bounds the memory of a
            // connection whose peer sends and does not read.
            Event::Read(Ok(data)) if !data.is_empty() => channel.write(done.handle, data)?,
            Event::Write(Ok(_)) => channel.read(done.handle, READ_BYTES)?,
            // The end of the stream, or an error of this connection.
            Event::Read(_) | Event::Write(_) => drop(channel.unregister(done.handle)?),
            _ => {}
        }
    }
}
