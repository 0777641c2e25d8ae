//! Neighbour of measured programs at a daemon: an honest one, and hostile ones.
//!
//! Each kind takes all of the daemon and of the core that it gets: it never sleeps. The honest one
//! exchanges messages with itself over the daemon. The hostile ones do without end what no correct
//! program does, over the client library's own rings and bell.
//!
//! Invariant: a neighbour ends with an error when the daemon ends its session, so that no run
//! measures the absence of a neighbour.

use super::loop_client::{AfterAnswer, LoopClient, LoopEvent};
use crate::{
    accept_reset::AcceptError, answer_server::AnswerServer, limits, peer_channel::PeerError,
};
use megapipe::{Address, Backend, Config, ServiceAddress};
use megapipe_link::LinkError;
use megapipe_service::{
    AcceptorId, ConnectStart, LaneSet, SessionSizes,
    attach::{AttachError, attach},
    limits as service_limits,
};
use megapipe_stack::ListenerId;
use rustix::{
    io::Errno,
    net::{SendFlags, send},
};
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// A port at which nothing listens.
const CLOSED_PORT: u16 = 9;
/// Doorbells between two looks at the session.
const RINGS_PER_LOOK: u32 = 1_024;

/// What a neighbour does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum NeighbourKind {
    /// Exchanges messages with itself
    Honest,
    /// Submits operations of listeners that it does not have
    Operations,
    /// Rings the daemon's doorbell
    Doorbells,
    /// Fills its ring of events, reads none of them, and rings the doorbell
    Unread,
}

/// Options of `megapipe bench neighbour`.
#[derive(Clone, Debug, clap::Args)]
pub struct NeighbourArgs {
    /// Address of an honest one's server
    server: SocketAddr,
    /// What it does
    kind: NeighbourKind,
    /// The only back end that there is for it
    #[arg(long, value_parser = ["service"])]
    backend: String,
    /// Path of the daemon's socket
    #[arg(long)]
    service: PathBuf,
}

/// Why a neighbour has ended.
#[derive(Debug, thiserror::Error)]
pub enum NeighbourError {
    /// Its server failed.
    #[error(transparent)]
    Server(#[from] AcceptError),
    /// Its client failed.
    #[error(transparent)]
    Client(#[from] PeerError),
    /// The daemon gives it no session.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The daemon has ended its session.
    #[error("the session has ended: {0}")]
    Ended(#[from] LinkError),
    /// The doorbell cannot be rung.
    #[error("ringing the daemon: {0}")]
    Ring(#[from] io::Error),
    /// A message was not exchanged.
    #[error("an exchange with itself failed: {0}")]
    Exchange(String),
}

impl NeighbourKind {
    /// As the command line has it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Honest => "honest",
            Self::Operations => "operations",
            Self::Doorbells => "doorbells",
            Self::Unread => "unread",
        }
    }
}

/// Keeps the daemon busy until a signal ends the process. Blocks.
pub(crate) fn run(args: &NeighbourArgs) -> Result<(), NeighbourError> {
    let NeighbourArgs { server, kind, service, .. } = args;
    match kind {
        NeighbourKind::Honest => exchange(*server, service),
        NeighbourKind::Operations => submit(&mut hostile_session(service)?, *server),
        NeighbourKind::Doorbells => ring(&mut hostile_session(service)?, *server),
        NeighbourKind::Unread => {
            let mut session = hostile_session(service)?;
            for _ in 0..limits::HOSTILE_OPERATIONS {
                let closed = SocketAddr::new(server.ip(), CLOSED_PORT);
                // A refusal is one more event that it does not read.
                let _ = session.connect_as(closed, None, ConnectStart::default());
            }
            session.flush();
            ring(&mut session, *server)
        }
    }
}

/// The daemon's scene waits for this text of each program.
fn print_ready(server: SocketAddr) {
    println!("listening on {server}");
}

fn exchange(server: SocketAddr, service: &Path) -> Result<(), NeighbourError> {
    let config = || {
        let backend = Backend::Service(ServiceAddress::new(service));
        Config::default().backend(backend).max_lwsockets(4 * limits::NEIGHBOUR_CONNECTIONS)
    };
    let mut own = AnswerServer::open(config(), &Address::from(server))?;
    let mut client = LoopClient::open(config(), 4 * limits::NEIGHBOUR_CONNECTIONS)?;
    let places = limits::NEIGHBOUR_CONNECTIONS as usize;
    client.add(places, server, AfterAnswer::Ask);
    (0..places).for_each(|place| client.start(place));
    let mut is_ready = false;
    loop {
        own.poll(Some(Duration::ZERO))?;
        for outcome in client.poll(Duration::ZERO)? {
            if let LoopEvent::Failed(why) = outcome.event {
                return Err(NeighbourError::Exchange(why));
            }
            if !std::mem::replace(&mut is_ready, true) {
                print_ready(server);
            }
        }
    }
}

/// A session with a large ring of operations and the smallest ring of events.
fn hostile_session(service: &Path) -> Result<LaneSet, NeighbourError> {
    let sizes = SessionSizes { ops: service_limits::SESSION_OPS.1, ..SessionSizes::LEAST };
    Ok(attach(service, "hostile", &sizes)?)
}

fn submit(session: &mut LaneSet, server: SocketAddr) -> Result<(), NeighbourError> {
    let foreign = ListenerId { index: u32::MAX, generation: u32::MAX };
    let mut is_ready = false;
    loop {
        // It waits only where its ring is full.
        for _ in 0..limits::HOSTILE_OPERATIONS {
            session.accept(foreign, AcceptorId(0), 1);
        }
        session.flush();
        session.check()?;
        if !std::mem::replace(&mut is_ready, true) {
            print_ready(server);
        }
    }
}

fn ring(session: &mut LaneSet, server: SocketAddr) -> Result<(), NeighbourError> {
    let mut is_ready = false;
    loop {
        for _ in 0..RINGS_PER_LOOK {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(session.wait_fd(), &[1], flags) {
                // Full of rings that the daemon has not taken.
                Ok(_) | Err(Errno::AGAIN) => {}
                Err(errno) => return Err(NeighbourError::Ring(errno.into())),
            }
        }
        session.check()?;
        if !std::mem::replace(&mut is_ready, true) {
            print_ready(server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn kinds_have_the_names_that_the_command_line_takes() {
        for kind in NeighbourKind::value_variants() {
            assert_eq!(NeighbourKind::from_str(kind.name(), false), Ok(*kind));
        }
    }

    #[test]
    fn hostile_session_overfills_its_events_but_not_its_operations() {
        let (ops, events) = (service_limits::SESSION_OPS.1, service_limits::SESSION_EVENTS.0);
        assert!(events < limits::HOSTILE_OPERATIONS && limits::HOSTILE_OPERATIONS < ops);
        let sizes = SessionSizes { ops, ..SessionSizes::LEAST };
        assert_eq!(sizes.check(), Ok(()));
    }
}
