//! User-space memory of a channel server per idle connection.
//!
//! The server's resident memory is read from `/proc/PID/status` before and after opening many
//! connections that each did one transaction and then nothing. Before the first reading enough
//! transactions have run to touch every receive buffer, which are the channel's and not a
//! connection's. What the kernel holds for a connection is not counted.

use crate::{
    limits,
    point::{field, kibibytes},
    run::Bench,
    server::{ForcedDriver, RunningServer, ServerStartError, ServiceKind, TestedServer},
};
use megapipe_apps::rpc::protocol::{Lengths, header};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
};

/// The memory could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IdleMemoryError {
    #[error(transparent)]
    Server(#[from] ServerStartError),
    #[error("connecting or reading /proc: {0}")]
    System(#[from] io::Error),
    #[error(
        "{} connections need as many descriptors, and the limit is {limit}",
        limits::IDLE_CONNECTIONS
    )]
    Descriptors { limit: u64 },
}

/// Resident bytes for each idle connection. The bench's layout must be set up. Blocks for some
/// seconds.
pub(crate) fn bytes_per_connection(bench: &mut Bench) -> Result<f64, IdleMemoryError> {
    raise_descriptor_limit()?;
    let scratch_path = bench.scratch.path().to_owned();
    let layout = bench.layout(1).map_err(io::Error::other)?;
    let server = TestedServer::Channel(ForcedDriver::Uring, None);
    let server = RunningServer::start(server, ServiceKind::Rpc, layout, &scratch_path)?;
    let address = server.address;
    let pid = server.pid();
    layout.on_load_side(|| {
        let mut warm = connect(address, limits::IDLE_WARM_CONNECTIONS)?;
        for _ in 0..limits::IDLE_WARM_ROUNDS {
            warm.iter_mut().try_for_each(transact)?;
        }
        let before = resident_bytes(pid)?;
        let mut idle = connect(address, limits::IDLE_CONNECTIONS)?;
        idle.iter_mut().try_for_each(transact)?;
        let after = resident_bytes(pid)?;
        Ok(after.saturating_sub(before) as f64 / limits::IDLE_CONNECTIONS as f64)
    })?
}

fn connect(address: SocketAddr, count: usize) -> io::Result<Vec<TcpStream>> {
    (0..count).map(|_| TcpStream::connect(address)).collect()
}

fn transact(stream: &mut TcpStream) -> io::Result<()> {
    let mut message = [0; 64];
    message[..16].copy_from_slice(&header(Lengths::default(), 0));
    stream.write_all(&message)?;
    stream.read_exact(&mut message)
}

pub(crate) fn resident_bytes(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let resident = field(&status, "VmRSS").map(kibibytes);
    resident.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn raise_descriptor_limit() -> Result<(), IdleMemoryError> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limits::IDLE_CONNECTIONS as u64 + limits::DESCRIPTORS_SPARE;
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        return Err(IdleMemoryError::Descriptors { limit: limit.maximum.unwrap_or(0) });
    }
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).map_err(io::Error::from)?;
    Ok(())
}
