//! What a running `megapiped` shows to `ss` and `explain`.
//!
//! In: the path of its control socket. Out: [`ObservedService`], which the pure functions of
//! `ss/` and `explain/` turn into text and JSON.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::Args;
use megapipe::ServiceAddress;
use megapipe_apps::backend::SERVICE_VARIABLE;
use megapipe_service::attach::{ServiceObserver, ServiceQueryError};
use megapipe_service::observe::{
    ServiceDaemon, ServiceLinkServer, ServiceListener, ServiceManager, ServiceSession,
    ServiceShard, ServiceSocket, ServiceUser, SocketState,
};
use serde::Serialize;

/// The daemon that is asked.
#[derive(Clone, Debug, Args)]
pub(crate) struct ObservedArgs {
    /// The path of the daemon's control socket
    ///
    /// Without it the path in MEGAPIPE_SERVICE, else /run/megapipe/megapiped.sock.
    #[arg(long, value_name = "PATH")]
    service: Option<PathBuf>,

    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Why a daemon shows nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObserveError {
    #[error(
        "{0}. Only programs on the back end `service` have their connections in a daemon; Linux's \
         `ss` shows those on `kernel`, and those on `local` have their stack in the process"
    )]
    Absent(ServiceQueryError),
    #[error(transparent)]
    Query(ServiceQueryError),
}

impl From<ServiceQueryError> for ObserveError {
    fn from(source: ServiceQueryError) -> Self {
        match source {
            ServiceQueryError::Absent { .. } => Self::Absent(source),
            source => Self::Query(source),
        }
    }
}

/// What a daemon has, as far as this process may see it.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObservedService {
    pub(crate) path: PathBuf,
    pub(crate) daemon: ServiceDaemon,
    pub(crate) shards: Vec<ServiceShard>,
    pub(crate) sessions: Vec<ServiceSession>,
    pub(crate) listeners: Vec<ServiceListener>,
    pub(crate) managers: Vec<ServiceManager>,
    pub(crate) link_servers: Vec<ServiceLinkServer>,
    pub(crate) users: Vec<ServiceUser>,
    /// With the numbers of their shards.
    pub(crate) sockets: Vec<(u16, ServiceSocket)>,
    /// The time since 1970.
    pub(crate) now: Duration,
}

/// Owner of a socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SocketOwner {
    pub(crate) program: String,
    pub(crate) pid: u32,
    /// The key of its session.
    pub(crate) session: u64,
}

impl ObservedArgs {
    fn path(&self) -> PathBuf {
        let by_environment = || std::env::var_os(SERVICE_VARIABLE).filter(|path| !path.is_empty());
        let path = self.service.clone().or_else(|| by_environment().map(PathBuf::from));
        path.unwrap_or_else(|| ServiceAddress::default().path().to_owned())
    }

    /// Asks the daemon for everything but the sockets' TCP_INFO, and for that too if asked to.
    pub(crate) fn observe(&self, with_info: bool) -> Result<ObservedService, ObserveError> {
        let path = self.path();
        let mut observer = ServiceObserver::connect(&path)?;
        let shards = observer.shards()?;
        let sockets = observer.sockets(with_info)?;
        let listeners = observer.listeners()?;
        let managers = observer.managers()?;
        let link_servers = observer.link_servers()?;
        let users = observer.users()?;
        // The last, so that it has the owners of what came before.
        let sessions = observer.sessions()?;
        let daemon = observer.daemon().clone();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(ObservedService {
            path,
            daemon,
            shards,
            sessions,
            listeners,
            managers,
            link_servers,
            users,
            sockets,
            now,
        })
    }
}

impl ObservedService {
    /// The session of a key.
    pub(crate) fn session(&self, key: u64) -> Option<&ServiceSession> {
        self.sessions.iter().find(|session| session.key == key && key != 0)
    }

    /// The owners of each socket, by a map of the sessions: there may be many sockets.
    pub(crate) fn owners(&self) -> impl Fn(u16, &ServiceSocket) -> Vec<SocketOwner> {
        let sessions: HashMap<u64, SocketOwner> = self
            .sessions
            .iter()
            .filter(|session| session.pid != 0)
            .map(|session| {
                let (program, pid) = (session.program.clone(), session.pid);
                (session.key, SocketOwner { program, pid, session: session.key })
            })
            .collect();
        let listeners: HashMap<(u16, u32), Vec<u64>> = self
            .listeners
            .iter()
            .map(|listener| {
                let acceptors = listener.acceptors.iter().map(|it| it.session);
                ((listener.shard, listener.index), acceptors.collect())
            })
            .collect();
        move |shard, socket| {
            let is_listener = socket.state == SocketState::Listen;
            let of_listener = listeners.get(&(shard, socket.index)).filter(|_| is_listener);
            let keys =
                of_listener.map_or_else(|| std::slice::from_ref(&socket.session), Vec::as_slice);
            keys.iter().filter_map(|key| sessions.get(key).cloned()).collect()
        }
    }
}
