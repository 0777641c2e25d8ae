//! The ping-pong server of the MegaPipe report [MP listing 3.1]: whatever arrives goes back.
//!
//! Run with an address and, to pin the channel, a core: `pingpong 127.0.0.1:7000 0`.

use std::error::Error;

use megapipe::{Accept, Channel, Config, Event, ListenOptions};

const READ_BYTES: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:7000".to_owned()).parse()?;
    let mut config = Config::default();
    if let Some(core) = arguments.next() {
        config = config.core(core.parse()?);
    }
    let mut channel = Channel::create(config)?;
    let listener = channel.listen(&address, &ListenOptions::default(), 0)?;
    channel.accept(listener, Accept::lwsocket(u32::MAX).first_read(READ_BYTES))?;
    let address = channel.local_address(listener)?;
    println!("{}listening on {address}", channel.report());
    loop {
        let Some(done) = channel.dispatch(None)? else { continue };
        match done.event {
            Event::Read(Ok(data)) if !data.is_empty() => channel.write(done.handle, data)?,
            Event::Write(Ok(_)) => channel.read(done.handle, READ_BYTES)?,
            // The peer is done, or gone.
            Event::Read(_) | Event::Write(_) => drop(channel.unregister(done.handle)?),
            _ => {}
        }
    }
}
