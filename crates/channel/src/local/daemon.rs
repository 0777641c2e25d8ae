//! The daemon of the back end `service`: shards on threads of their own, and a control socket.
//!
//! `megapiped` is this with a command line. Read first: `megapipe_service::attach`.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use megapipe_service::attach::ControlServer;
use megapipe_service::policy::ServicePolicy;
use megapipe_service::{RemoteError, ShardHost};

use super::LocalNetwork;

/// Why a daemon did not start, or ended.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// A shard, or a server that it needs, cannot be started.
    #[error("cannot start the shards")]
    Shards(#[source] RemoteError),
    /// A channel of this process uses the network.
    #[error("the network is in use by a channel of this process")]
    NetworkInUse,
    /// The directory of the socket cannot be made.
    #[error("cannot make the directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The control socket cannot be had.
    #[error("cannot listen at {}", path.display())]
    Socket {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// A shard or a server that it needs has ended, or the control socket failed.
    #[error("the daemon has ended")]
    Ended(#[source] io::Error),
}

crate::error_chain::debug_with_causes!(DaemonError);

/// A daemon that serves channels with [`crate::Backend::Service`].
///
/// Dropping it ends all sessions and removes the socket.
///
/// # Examples
/// ```no_run
/// use megapipe::{Daemon, LocalNetwork, ServerConfig};
///
/// let address = ("10.0.0.2".parse()?, 24);
/// let settings = ServerConfig { addresses: vec![address], ..ServerConfig::default() };
/// let network = LocalNetwork::open("tap:tap0", settings)?;
/// let path = "/run/megapipe/megapiped.sock".as_ref();
/// let mut daemon = Daemon::start(&network, path, &[], |line| eprintln!("{line}"))?;
/// let (stop, _stopper) = std::io::pipe()?;
/// daemon.run(std::os::fd::AsFd::as_fd(&stop))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Daemon {
    server: ControlServer<ShardHost>,
}

impl Daemon {
    /// Starts a shard for each of the network's, on the cores of the list as far as it goes, and
    /// listens at `path`. The directory of the path is made if only it is missing. `notice`
    /// receives a line for each client that is refused or breaks the protocol.
    ///
    /// # Errors
    /// [`DaemonError`] names what is missing; nothing is left running.
    pub fn start(
        network: &LocalNetwork,
        path: &Path,
        cores: &[usize],
        notice: impl FnMut(&str) + 'static,
    ) -> Result<Self, DaemonError> {
        let links = network.take_all().ok_or(DaemonError::NetworkInUse)?;
        make_directory(path)?;
        let mut settings = network.settings().clone();
        // Channels ask for it where they want it.
        settings.tcp.nagle = false;
        let host = ShardHost::start(links, &settings, cores, Box::new(notice));
        let host = host.map_err(DaemonError::Shards)?;
        let failed = |source| DaemonError::Socket { path: path.to_owned(), source };
        Ok(Self { server: ControlServer::listen(path, host).map_err(failed)? })
    }

    /// Replaces the policy, which is [`ServicePolicy::default`] at first. Channels, and what they
    /// have, stay; listeners and sockets that they bind from now on follow the new policy.
    pub fn set_policy(&mut self, policy: ServicePolicy) {
        self.server.host().set_policy(policy);
    }

    /// Gives the daemon one end of a pair of sockets (SOCK_SEQPACKET). A process that has the other
    /// end attaches by it, with the daemon's own rights ([`crate::ServiceAddress::with_token`]).
    /// The daemon ends when no process has it, and no channel is attached.
    ///
    /// # Errors
    /// [`DaemonError::Ended`]: the kernel has refused the descriptor.
    pub fn add_token(&mut self, token: OwnedFd) -> Result<(), DaemonError> {
        self.server.add_token(token).map_err(DaemonError::Ended)
    }

    /// Whether [`Daemon::run`] has returned because nothing uses the daemon.
    pub fn has_ended(&mut self) -> bool {
        self.server.has_ended()
    }

    /// Serves until `stop` is readable. May be called again: channels stay attached meanwhile.
    ///
    /// # Errors
    /// [`DaemonError::Ended`]: a shard or a link server has lost its link.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> Result<(), DaemonError> {
        self.server.run(stop).map_err(DaemonError::Ended)
    }
}

/// Makes the last directory of a path, if it is missing.
fn make_directory(path: &Path) -> Result<(), DaemonError> {
    let Some(directory) = path.parent().filter(|it| !it.as_os_str().is_empty()) else {
        return Ok(());
    };
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(DaemonError::Directory { path: directory.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}
