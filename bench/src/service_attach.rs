//! Attaching to a daemon: how long it takes, and the memory of an idle session.
//!
//! This process is the application, on the load's cores; the daemon is on the server's.

use crate::{
    idle_memory::resident_bytes,
    layout::{BenchLayout, LayoutError},
    limits,
    measure::median,
    run::Bench,
    server::{RunningServer, ServiceKind, TestedServer},
    shard_idle::{Peer, ShardIdleError, attach},
    stack_link::{StackLink, StackPlacement},
};
use megapipe::{Address, ListenOptions};
use std::{io, net::SocketAddr, path::Path, time::Instant};

/// What attaching cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AttachCost {
    /// From the beginning to the answer of the first call.
    pub(crate) median_ms: f64,
    /// Of one session, at the daemon and here.
    pub(crate) resident_kib: f64,
}

/// Measures a fresh daemon. Blocks for about two seconds.
///
/// # Errors
/// [`ShardIdleError`], or that there is no place to measure in.
pub(crate) fn measure(
    bench: &mut Bench,
) -> Result<Result<AttachCost, ShardIdleError>, LayoutError> {
    let scratch = bench.scratch.path().to_owned();
    let layout = bench.layout(1)?;
    Ok(measure_in(layout, &scratch))
}

fn measure_in(layout: &BenchLayout, scratch: &Path) -> Result<AttachCost, ShardIdleError> {
    let server = TestedServer::Placed(StackLink::Memif, StackPlacement::Service);
    let mut server = RunningServer::start(server, ServiceKind::Rpc, layout, scratch)?;
    let daemon = server.daemon_pid().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    // The daemon begins when its link has a peer; it stays until the end.
    let mut peer = Peer::open(layout, scratch, 1)?;
    peer.await_listener(&Address::from(server.address))?;
    let mut times_ms = Vec::with_capacity(limits::ATTACHES);
    for number in 0..limits::ATTACHES {
        let port = limits::ATTACH_PORT_FIRST + number as u16;
        times_ms.push(attach_and_listen(scratch, SocketAddr::new(server.address.ip(), port))?);
    }
    let resident =
        || Ok::<_, io::Error>(resident_bytes(daemon)? + resident_bytes(std::process::id())?);
    let before = resident()?;
    let mut sessions = Vec::with_capacity(limits::ATTACHED_IDLE);
    for _ in 0..limits::ATTACHED_IDLE {
        sessions.push(attach(scratch)?);
    }
    let added = resident()?.saturating_sub(before);
    server.check()?;
    drop(sessions);
    let resident_kib = added as f64 / limits::ATTACHED_IDLE as f64 / 1024.0;
    Ok(AttachCost { median_ms: median(times_ms), resident_kib })
}

fn attach_and_listen(scratch: &Path, address: SocketAddr) -> Result<f64, ShardIdleError> {
    let start = Instant::now();
    let mut channel = attach(scratch)?;
    let listening = channel.listen(&Address::from(address), &ListenOptions::default(), 0);
    listening.map_err(crate::peer_channel::PeerError::from)?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}
