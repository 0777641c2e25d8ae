//! The side of a process that asks a daemon what it has.
//!
//! Invariants
//! - Each answer is waited for [`QUERY_TIME`] at most, and checked before anything of it is used.
//! - A listing ends: each page begins behind the one before, and their number is bounded.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::client::connect_to;
use super::message::{HelloAnswer, RefusalCode};
use crate::limits::{ANSWER_BYTES_MAX, ATTACH_RETRY, ATTACH_TIME, PAGES_READ_MAX, QUERY_TIME};
use crate::message_socket::{MessageWithFds, Reception, receive_up_to, send};
use crate::observe::{
    AnswerBody, AnswerPage, QuerySubject, ServiceDaemon, ServiceLinkServer, ServiceListener,
    ServiceManager, ServiceNetworks, ServiceQuery, ServiceSession, ServiceShard, ServiceSocket,
    ServiceUser,
};
use crate::sleep::wait_readable;

/// Why a daemon's answer was not had.
#[derive(Debug, thiserror::Error)]
pub enum ServiceQueryError {
    /// No daemon listens there, or its socket must not be used.
    #[error("no service at {}: {source}", path.display())]
    Absent {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The daemon has refused.
    #[error("the service at {} refused: {sentence}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// The daemon's sentence.
        sentence: String,
    },
    /// The daemon did not answer in time.
    #[error("the service at {} did not answer within {QUERY_TIME:?}", path.display())]
    Silent {
        /// The path.
        path: PathBuf,
    },
    /// The daemon has ended the connection: it has ended, or the query took too long.
    #[error("the service at {} closed the connection", path.display())]
    Closed {
        /// The path.
        path: PathBuf,
    },
    /// The answer is none of a correct daemon's.
    #[error("the service at {} sent an invalid answer", path.display())]
    Invalid {
        /// The path.
        path: PathBuf,
    },
}

/// A connection to a daemon that only looks.
#[derive(Debug)]
pub struct ServiceObserver {
    path: PathBuf,
    socket: OwnedFd,
    /// The answer to the first query.
    daemon: ServiceDaemon,
}

impl ServiceObserver {
    /// Connects to the daemon that listens at `path`. Waits while too many processes ask it.
    ///
    /// # Errors
    /// [`ServiceQueryError`].
    pub fn connect(path: &Path) -> Result<Self, ServiceQueryError> {
        let deadline = Instant::now() + ATTACH_TIME;
        loop {
            match Self::attempt(path) {
                Err(QueryAttempt::Later(_)) if Instant::now() + ATTACH_RETRY < deadline => {
                    std::thread::sleep(ATTACH_RETRY);
                }
                Err(QueryAttempt::Later(error) | QueryAttempt::Failed(error)) => return Err(error),
                Ok(observer) => return Ok(observer),
            }
        }
    }

    fn attempt(path: &Path) -> Result<Self, QueryAttempt> {
        let absent = |source: io::Error| {
            let is_full = source.kind() == io::ErrorKind::WouldBlock;
            let error = ServiceQueryError::Absent { path: path.to_owned(), source };
            if is_full { QueryAttempt::Later(error) } else { QueryAttempt::Failed(error) }
        };
        let socket = connect_to(path).map_err(absent)?;
        let mut observer = Self { path: path.to_owned(), socket, daemon: ServiceDaemon::default() };
        let page = observer.ask(&ServiceQuery::new(QuerySubject::Daemon, 0))?;
        let AnswerBody::Daemon(daemon) = page.body else {
            return Err(QueryAttempt::Failed(observer.invalid()));
        };
        observer.daemon = daemon;
        Ok(observer)
    }

    /// The daemon, when the connection was made.
    #[must_use]
    pub const fn daemon(&self) -> &ServiceDaemon {
        &self.daemon
    }

    /// All shards.
    ///
    /// # Errors
    /// [`ServiceQueryError`].
    pub fn shards(&mut self) -> Result<Vec<ServiceShard>, ServiceQueryError> {
        let mut shards = Vec::new();
        self.each_page(QuerySubject::Shard, false, |body| {
            if let AnswerBody::Shard(Some(shard)) = body {
                shards.push(*shard);
            }
        })?;
        Ok(shards)
    }

    /// The sessions of all shards that this process may see.
    ///
    /// # Errors
    /// [`ServiceQueryError`].
    pub fn sessions(&mut self) -> Result<Vec<ServiceSession>, ServiceQueryError> {
        let mut sessions = Vec::new();
        self.each_page(QuerySubject::Sessions, false, |body| {
            if let AnswerBody::Sessions(page) = body {
                sessions.extend(page);
            }
        })?;
        Ok(sessions)
    }

    /// The listeners of all shards that this process may see.
    ///
    /// # Errors
    /// [`ServiceQueryError`].
    pub fn listeners(&mut self) -> Result<Vec<ServiceListener>, ServiceQueryError> {
        let mut listeners = Vec::new();
        self.each_page(QuerySubject::Listeners, false, |body| {
            if let AnswerBody::Listeners(page) = body {
                listeners.extend(page);
            }
        })?;
        Ok(listeners)
    }

    /// The sockets of all shards that this process may see, each with the number of its shard.
    ///
    /// # Errors
    /// [`ServiceQueryError`].
    pub fn sockets(
        &mut self,
        with_info: bool,
    ) -> Result<Vec<(u16, ServiceSocket)>, ServiceQueryError> {
        let mut sockets = Vec::new();
        for shard in 0..self.daemon.shards {
            self.each_page_of(shard, QuerySubject::Sockets, with_info, |body| {
                if let AnswerBody::Sockets(page) = body {
                    sockets.extend(page.into_iter().map(|socket| (shard, socket)));
                }
            })?;
        }
        Ok(sockets)
    }

    /// The users with quotas that this process may see.
    ///
    /// # Errors
    /// [`ServiceQueryError`].
    pub fn users(&mut self) -> Result<Vec<ServiceUser>, ServiceQueryError> {
        let mut users = Vec::new();
        self.each_page_of(0, QuerySubject::Users, false, |body| {
            if let AnswerBody::Users(page) = body {
                users.extend(page);
            }
        })?;
        Ok(users)
    }

    /// All connection managers, with what this process may see of their listeners.
    ///
    /// # Errors
    /// [`ServiceQueryError`].
    pub fn managers(&mut self) -> Result<Vec<ServiceManager>, ServiceQueryError> {
        let mut managers: Vec<ServiceManager> = Vec::new();
        for number in 0..self.daemon.managers {
            self.each_page_of(number, QuerySubject::Manager, false, |body| {
                let AnswerBody::Manager(Some(page)) = body else { return };
                match managers.last_mut() {
                    Some(last) if last.number == page.number => {
                        last.listeners.extend(page.listeners)
                    }
                    _ => managers.push(*page),
                }
            })?;
        }
        Ok(managers)
    }

    /// All link servers on threads of their own.
    ///
    /// # Errors
    /// [`ServiceQueryError`].
    pub fn link_servers(&mut self) -> Result<Vec<ServiceLinkServer>, ServiceQueryError> {
        let mut servers = Vec::new();
        for number in 0..self.daemon.link_servers {
            self.each_page_of(number, QuerySubject::LinkServer, false, |body| {
                if let AnswerBody::LinkServer(server) = body {
                    servers.extend(server);
                }
            })?;
        }
        Ok(servers)
    }

    /// The networks that the stack reaches.
    ///
    /// # Errors
    /// [`ServiceQueryError`].
    pub fn networks(&mut self) -> Result<ServiceNetworks, ServiceQueryError> {
        let mut networks = ServiceNetworks::default();
        self.each_page_of(0, QuerySubject::Networks, false, |body| {
            if let AnswerBody::Networks(of_shard) = body {
                networks = of_shard;
            }
        })?;
        Ok(networks)
    }

    fn each_page(
        &mut self,
        subject: QuerySubject,
        with_info: bool,
        mut each: impl FnMut(AnswerBody),
    ) -> Result<(), ServiceQueryError> {
        for shard in 0..self.daemon.shards {
            self.each_page_of(shard, subject, with_info, &mut each)?;
        }
        Ok(())
    }

    fn each_page_of(
        &mut self,
        shard: u16,
        subject: QuerySubject,
        with_info: bool,
        mut each: impl FnMut(AnswerBody),
    ) -> Result<(), ServiceQueryError> {
        let mut query = ServiceQuery { with_info, ..ServiceQuery::new(subject, shard) };
        for _ in 0..PAGES_READ_MAX {
            let page = self.ask(&query).map_err(|attempt| match attempt {
                QueryAttempt::Later(error) | QueryAttempt::Failed(error) => error,
            })?;
            if page.subject() != subject || page.next.is_some_and(|next| next <= query.from) {
                return Err(self.invalid());
            }
            each(page.body);
            match page.next {
                None => return Ok(()),
                Some(next) => query.from = next,
            }
        }
        Err(self.invalid())
    }

    /// One query and its page.
    fn ask(&self, query: &ServiceQuery) -> Result<AnswerPage, QueryAttempt> {
        match send(self.socket.as_fd(), &query.encode(), &[]) {
            // A daemon that refuses at once has closed its end. Its answer is still to be read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            Err(source) => return Err(QueryAttempt::Failed(self.absent(source))),
            Ok(()) => {}
        }
        let bytes = self.answer()?;
        if let Some(page) = AnswerPage::decode(&bytes) {
            return Ok(page);
        }
        match HelloAnswer::decode(&bytes) {
            Ok(HelloAnswer::Refused(refused)) => {
                let (path, sentence) = (self.path.clone(), refused.sentence);
                let error = ServiceQueryError::Refused { path, sentence };
                Err(match refused.code {
                    RefusalCode::Busy => QueryAttempt::Later(error),
                    _ => QueryAttempt::Failed(error),
                })
            }
            _ => Err(QueryAttempt::Failed(self.invalid())),
        }
    }

    fn answer(&self) -> Result<Vec<u8>, QueryAttempt> {
        let deadline = Instant::now() + QUERY_TIME;
        let path = || self.path.clone();
        loop {
            let received = receive_up_to(self.socket.as_fd(), ANSWER_BYTES_MAX);
            match received.map_err(|source| QueryAttempt::Failed(self.absent(source)))? {
                Reception::Message(MessageWithFds { bytes, fds: _ }) => return Ok(bytes),
                Reception::Nothing => {}
                Reception::Closed => {
                    return Err(QueryAttempt::Failed(ServiceQueryError::Closed { path: path() }));
                }
                Reception::Oversized => return Err(QueryAttempt::Failed(self.invalid())),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                return Err(QueryAttempt::Failed(ServiceQueryError::Silent { path: path() }));
            }
            match wait_readable([Some(self.socket.as_fd())], Some(left)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(QueryAttempt::Failed(self.absent(errno.into()))),
            }
        }
    }

    fn absent(&self, source: io::Error) -> ServiceQueryError {
        ServiceQueryError::Absent { path: self.path.clone(), source }
    }

    fn invalid(&self) -> ServiceQueryError {
        ServiceQueryError::Invalid { path: self.path.clone() }
    }
}

/// An attempt that failed.
enum QueryAttempt {
    /// Another one may succeed.
    Later(ServiceQueryError),
    Failed(ServiceQueryError),
}
