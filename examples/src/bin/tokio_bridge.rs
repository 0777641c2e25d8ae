//! A channel inside a tokio program: one task drives the channel, other tasks use it by messages.
//!
//! Run with an address, by default `127.0.0.1:7000`. An echo server runs on the channel, and a task
//! prints once a second how many bytes it has echoed.
//!
//! A channel sleeps in a foreign event loop in three steps: `park` reports whether there is work
//! and until when to sleep at most; the loop waits until a descriptor of the channel is readable;
//! `dispatch` without a time-out then returns the completions.

#![forbid(unsafe_code)]

use std::cell::Cell;
use std::error::Error;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use megapipe::{Accept, Channel, Config, Connection, Event, ListenOptions, Park};
use tokio::io::unix::AsyncFd;
use tokio::task::LocalSet;

const READ_BYTES: usize = 16 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:7000".to_owned());
    let address = address.parse()?;
    // A channel belongs to one thread, and so do the tasks that use it.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = LocalSet::new();
    let echoed = Rc::new(Cell::new(0));
    tasks.spawn_local(report(Rc::clone(&echoed)));
    tasks.block_on(&runtime, async move {
        let mut channel = Channel::create(Config::default())?;
        let listener = channel.listen(&address, &ListenOptions::default(), 0)?;
        channel.accept(listener, Accept::lwsocket(u32::MAX))?;
        println!("listening on {}", channel.local_address(listener)?);
        serve(channel, &echoed).await
    })
}

/// Prints the number of echoed bytes once a second, if it has changed.
async fn report(echoed: Rc<Cell<u64>>) {
    let mut before = 0;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if echoed.get() != before {
            before = echoed.get();
            println!("{before} bytes echoed");
        }
    }
}

async fn serve(mut channel: Channel, echoed: &Cell<u64>) -> Result<(), Box<dyn Error>> {
    // The descriptors are the same for the life of the channel. tokio watches duplicates, since it
    // owns what it watches.
    let mut watched = Vec::new();
    for descriptor in channel.descriptors() {
        #[expect(deprecated, reason = "sound for an owned descriptor; its successor is unsafe")]
        watched.push(AsyncFd::new(descriptor.try_clone_to_owned()?)?);
    }
    loop {
        while let Some(done) = channel.dispatch(Some(Duration::ZERO))? {
            match done.event {
                Event::Accept(Ok(accepted)) => {
                    if let Connection::Lwsocket(connection) = accepted.connection {
                        channel.read(connection, READ_BYTES)?;
                    }
                }
                Event::Read(Ok(data)) if !data.is_empty() => {
                    echoed.set(echoed.get() + data.len() as u64);
                    channel.write(done.handle, data)?;
                }
                Event::Write(Ok(_)) => channel.read(done.handle, READ_BYTES)?,
                Event::Read(_) | Event::Write(_) => drop(channel.unregister(done.handle)?),
                _ => {}
            }
        }
        match channel.park()? {
            // Other tasks run between two batches of completions.
            Park::Work => tokio::task::yield_now().await,
            Park::Until(None) => readable(&watched).await?,
            Park::Until(Some(timeout)) => {
                // Elapsed time is no error: a timer of the channel is due.
                let _ = tokio::time::timeout(timeout, readable(&watched)).await;
            }
        }
    }
}

/// Waits until one of the descriptors is readable.
async fn readable(watched: &[AsyncFd<OwnedFd>]) -> std::io::Result<()> {
    std::future::poll_fn(|context| {
        for fd in watched {
            if let std::task::Poll::Ready(ready) = fd.poll_read_ready(context) {
                ready?.clear_ready();
                return std::task::Poll::Ready(Ok(()));
            }
        }
        std::task::Poll::Pending
    })
    .await
}
