//! Where a channel's server runs, and on which core.
//!
//! Read first: architecture, "The picture" (placements); `placed.rs` for what differs afterwards.

use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use megapipe_service::{
    ApartConfig, ApartError, Frames, Server, ServerConfig, start_apart, start_beside,
};

use super::beside::Beside;
use super::lent::LentMemory;
use super::memory::{ChannelMemory, Pools};
use super::placed::{Apart, Placed};
use crate::config::{Config, Placement};
use crate::error::CreateError;
use crate::limits::RESERVE_BYTES_MAX;
use crate::state::State;

/// Makes the server where the configuration wants it, and says in words where that is.
///
/// # Errors
/// [`CreateError`]: what is missing.
pub(super) fn place(
    frames: Frames,
    settings: ServerConfig,
    config: &Config,
    (state, watched): (&State, BorrowedFd<'_>),
) -> Result<(Placed, String), CreateError> {
    let memory = ChannelMemory::new(Rc::clone(&state.receive_pool), Rc::clone(&state.send_pool));
    let own = own_core();
    let spin = settings.waits.spin;
    let (server, place) = match config.placement {
        Placement::Inline => {
            let server = Server::new(frames, &settings, memory, settings.clock.now())
                .map_err(CreateError::Local)?;
            (Placed::Inline(server), "inside dispatch".to_owned())
        }
        Placement::Thread => {
            let place = format!("on a thread beside, {}", on(own));
            (beside((frames, &settings), own, (config, state, watched))?, place)
        }
        Placement::Core(wanted) => {
            let core = wanted.or_else(|| other_core(own));
            let apart = ApartConfig { core, ..apart(config) };
            // On one and the same core, polling would keep the server from running.
            let spin = if core.is_some() && core != own { spin } else { Duration::ZERO };
            let place = format!("on a core of its own, {}", on(core));
            (start((frames, &settings), &apart, (memory, config, spin))?, place)
        }
    };
    let Some(attachment) = server.attachment() else { return Ok((server, place)) };
    attachment.set_core(own.and_then(|core| u32::try_from(core).ok()));
    let place =
        format!("{place}; shard {} of {} {}", attachment.shard(), attachment.shards(), on(own));
    Ok((server, place))
}

fn start(
    (frames, settings): (Frames, &ServerConfig),
    apart: &ApartConfig,
    (memory, config, spin): (ChannelMemory, &Config, Duration),
) -> Result<Placed, CreateError> {
    let session =
        start_apart(frames, settings, apart).map_err(|source| not_started(config, source))?;
    Ok(Placed::Apart(Box::new(Apart::new(session, memory, spin))))
}

/// The server on a thread of its own, on the channel's core.
fn beside(
    (frames, settings): (Frames, &ServerConfig),
    core: Option<usize>,
    (config, state, watched): (&Config, &State, BorrowedFd<'_>),
) -> Result<Placed, CreateError> {
    let (receive, send) = (Rc::clone(&state.receive_pool), Rc::clone(&state.send_pool));
    let pools = Pools { receive, send };
    let failed = |source| not_started(config, source);
    let watched =
        watched.try_clone_to_owned().map_err(|error| failed(ApartError::Thread(error)))?;
    let end =
        start_beside(frames, settings, LentMemory::new(&pools), core, watched).map_err(failed)?;
    // Where they are not pinned to one core, the server's thread may run at the same time.
    let spin = if core.is_some() { settings.waits.spin } else { Duration::ZERO };
    Ok(Placed::Beside(Box::new(Beside::new(end, pools, spin))))
}

fn not_started(config: &Config, source: ApartError) -> CreateError {
    match source {
        ApartError::Server(error) => CreateError::Local(error),
        source => CreateError::Apart { placement: config.placement.name(), source },
    }
}

/// Buffers like the channel's, and as many as it would keep bytes in itself.
fn apart(config: &Config) -> ApartConfig {
    let reserve = (RESERVE_BYTES_MAX / config.buffer_len) as u32;
    ApartConfig {
        core: None,
        receive_bytes: config.buffer_len,
        receive_buffers: u32::from(config.buffer_count) + reserve,
    }
}

/// The cores that a thread may run on.
fn allowed(thread: Option<rustix::thread::Pid>) -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(thread) else { return Vec::new() };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// The core that the calling thread runs on, if it is one.
fn own_core() -> Option<usize> {
    match allowed(None).as_slice() {
        [core] => Some(*core),
        _ => None,
    }
}

/// A core for a server whose channel runs on `own`: the next one that the process may use. Where
/// the channel is not pinned, the kernel finds the server a place.
fn other_core(own: Option<usize>) -> Option<usize> {
    let own = own?;
    let cores = allowed(Some(rustix::process::getpid()));
    let next = cores.iter().find(|core| **core > own).or_else(|| cores.first());
    next.copied()
}

fn on(core: Option<usize>) -> String {
    core.map_or_else(|| "on no core in particular".to_owned(), |core| format!("on core {core}"))
}
