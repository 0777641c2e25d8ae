//! What a client has passed: checked by the control thread, taken by shards.
//!
//! Invariant: a socket that is kept counts for its user until it is closed.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use megapipe_link::migration::{Predecessor, RepairError};
use megapipe_link::{NetworkNamespace, PortReservation, ReservationError, Transport};

use super::message::{PassPurpose, SessionMessage};
use super::share_token::ShareToken;
use crate::limits::{PASSED_MAX, PASSED_SOCKETS_MAX, TOKEN_COPIES_MAX};
use crate::message_socket::send;
use crate::policy::{QuotaCharge, QuotaKind, QuotaReached, SessionRights};

/// Why descriptors were closed that a client has passed.
#[derive(Debug, thiserror::Error)]
pub enum PassRefusal {
    /// The message was cut.
    #[error("a message has more than {PASSED_SOCKETS_MAX} descriptors")]
    Count,
    /// The session keeps as many as it may.
    #[error("{PASSED_MAX} cookies were passed and not forgotten, which is the limit")]
    Full,
    /// A cookie that names another one.
    #[error("the cookie is in use")]
    Cookie,
    /// The quota of the user.
    #[error(transparent)]
    Quota(#[from] QuotaReached),
    /// The kernel does not tell namespaces apart.
    #[error("the daemon cannot compare network namespaces: SO_NETNS_COOKIE needs Linux 5.14")]
    NoNamespace,
    /// The sockets.
    #[error(transparent)]
    Sockets(#[from] ReservationError),
    /// A connection needs one socket.
    #[error("{0} sockets were passed for one connection")]
    NotOne(usize),
    /// The connection.
    #[error(transparent)]
    Connection(#[from] RepairError),
    /// No token of this daemon, or none that is left.
    #[error("it is no token of this daemon, or what it stands for has ended")]
    NotToken,
    /// As many copies as a token may have.
    #[error("processes hold {TOKEN_COPIES_MAX} copies of the token, which is the limit")]
    Copies,
    /// The kernel has made no token.
    #[error("no token can be made: {0}")]
    NoToken(#[from] io::Error),
}

impl PassRefusal {
    /// The kernel's number for what is wrong.
    pub(crate) fn raw_os_error(&self) -> i32 {
        use rustix::io::Errno;
        match self {
            Self::Count | Self::Cookie | Self::NotOne(_) => Errno::INVAL.raw_os_error(),
            Self::NotToken => Errno::BADF.raw_os_error(),
            Self::NoToken(error) => error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            Self::Full | Self::Copies => Errno::NOBUFS.raw_os_error(),
            Self::Quota(_) => Errno::DQUOT.raw_os_error(),
            Self::NoNamespace => Errno::OPNOTSUPP.raw_os_error(),
            Self::Sockets(error) => error.raw_os_error(),
            Self::Connection(error) => error.raw_os_error(),
        }
    }
}

/// What a cookie names.
#[derive(Debug)]
enum PassedSockets {
    Port(Arc<KeptPort>),
    /// Counts for its user, as a port does.
    Connection {
        connection: Predecessor,
        _charge: Option<QuotaCharge>,
    },
    /// And whether the session has made it, so that it lets the token own connections.
    Token(Arc<ShareToken>, bool),
}

/// A reservation that counts for its user.
#[derive(Debug)]
pub(crate) struct KeptPort {
    reservation: PortReservation,
    _charge: Option<QuotaCharge>,
}

impl KeptPort {
    /// The reservation.
    pub(crate) const fn reservation(&self) -> &PortReservation {
        &self.reservation
    }
}

/// The descriptors of a session.
#[derive(Debug)]
pub struct PassedDescriptors {
    namespace: Option<NetworkNamespace>,
    sockets: Mutex<Vec<(u64, PassedSockets)>>,
    refused: AtomicU64,
    /// The control socket, from the beginning of the session on.
    control: OnceLock<OwnedFd>,
}

impl PassedDescriptors {
    /// None, of a client that must be in `namespace`.
    pub(crate) const fn new(namespace: Option<NetworkNamespace>) -> Self {
        Self {
            namespace,
            sockets: Mutex::new(Vec::new()),
            refused: AtomicU64::new(0),
            control: OnceLock::new(),
        }
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<(u64, PassedSockets)>> {
        // A panic cannot leave it half changed.
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks and keeps what was passed. Blocks for some system calls; not for a shard's thread.
    ///
    /// # Errors
    /// [`PassRefusal`], which is counted; all descriptors are closed.
    pub(crate) fn keep(
        &self,
        (cookie, purpose): (u64, PassPurpose),
        fds: Vec<OwnedFd>,
        rights: Option<&SessionRights>,
    ) -> Result<(), PassRefusal> {
        self.try_keep((cookie, purpose), fds, rights).inspect_err(|_| self.note_refused())
    }

    fn try_keep(
        &self,
        (cookie, purpose): (u64, PassPurpose),
        fds: Vec<OwnedFd>,
        rights: Option<&SessionRights>,
    ) -> Result<(), PassRefusal> {
        if fds.len() > PASSED_SOCKETS_MAX {
            return Err(PassRefusal::Count);
        }
        self.check_cookie(cookie)?;
        let count = fds.len() as u32;
        let charge =
            rights.map(|rights| rights.charge(QuotaKind::UserSockets, count)).transpose()?;
        let namespace = self.namespace.ok_or(PassRefusal::NoNamespace)?;
        let port = |reservation: PortReservation, charge| {
            PassedSockets::Port(Arc::new(KeptPort { reservation, _charge: charge }))
        };
        let sockets = match purpose {
            PassPurpose::TcpPort => {
                port(PortReservation::new(Transport::Tcp, fds, namespace)?, charge)
            }
            PassPurpose::UdpPort => {
                port(PortReservation::new(Transport::Udp, fds, namespace)?, charge)
            }
            // Which token it is the control thread knows ([`PassedDescriptors::keep_token`]).
            PassPurpose::Token => return Err(PassRefusal::NotToken),
            PassPurpose::Listener => port(PortReservation::of_listening(fds, namespace)?, charge),
            PassPurpose::Connection => {
                let [socket] =
                    <[OwnedFd; 1]>::try_from(fds).map_err(|fds| PassRefusal::NotOne(fds.len()))?;
                namespace.check(socket.as_fd())?;
                // Nothing of the connection changes here.
                let connection = Predecessor::new(socket).map_err(|(_, error)| error)?;
                PassedSockets::Connection { connection, _charge: charge }
            }
        };
        self.sockets().push((cookie, sockets));
        Ok(())
    }

    fn check_cookie(&self, cookie: u64) -> Result<(), PassRefusal> {
        let is_known = |(other, _): &(u64, _)| *other == cookie;
        match self.sockets() {
            all if all.len() >= PASSED_MAX => Err(PassRefusal::Full),
            all if cookie == 0 || all.iter().any(is_known) => Err(PassRefusal::Cookie),
            _ => Ok(()),
        }
    }

    /// Keeps a token under a cookie, and whether the session has made it.
    ///
    /// # Errors
    /// [`PassRefusal`], which is counted.
    pub(crate) fn keep_token(
        &self,
        cookie: u64,
        (token, is_made): (Arc<ShareToken>, bool),
    ) -> Result<(), PassRefusal> {
        self.check_cookie(cookie).inspect_err(|_| self.note_refused())?;
        self.sockets().push((cookie, PassedSockets::Token(token, is_made)));
        Ok(())
    }

    /// The token that a cookie names.
    pub(crate) fn token(&self, cookie: u64) -> Option<Arc<ShareToken>> {
        self.sockets().iter().find_map(|(other, sockets)| match sockets {
            PassedSockets::Token(token, _) if *other == cookie => Some(Arc::clone(token)),
            _ => None,
        })
    }

    /// The token that a cookie names and that the session has made.
    pub(crate) fn made_token(&self, cookie: u64) -> Option<Arc<ShareToken>> {
        self.sockets().iter().find_map(|(other, sockets)| match sockets {
            PassedSockets::Token(token, true) if *other == cookie => Some(Arc::clone(token)),
            _ => None,
        })
    }

    /// The session begins, with this control socket.
    pub(crate) fn begin(&self, control: OwnedFd) {
        // A session begins once.
        let _ = self.control.set(control);
    }

    /// Gives the client a descriptor, before the answer to its call names the cookie. Does not
    /// block.
    ///
    /// # Errors
    /// As sendmsg(2): `WouldBlock` if the client does not read what it was given before.
    pub(crate) fn give(&self, cookie: u64, fd: BorrowedFd<'_>) -> io::Result<()> {
        let control = self.control.get().ok_or(io::ErrorKind::NotConnected)?;
        send(control.as_fd(), &SessionMessage::Give { cookie }.encode(), &[fd])
    }

    /// Counts descriptors that were refused.
    pub(crate) fn note_refused(&self) {
        // Relaxed: it publishes nothing but itself.
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was.
    pub(crate) fn refused(&self) -> u64 {
        // Relaxed, as above.
        self.refused.load(Ordering::Relaxed)
    }

    /// The reservation that a cookie names.
    pub(crate) fn port(&self, cookie: u64) -> Option<Arc<KeptPort>> {
        self.sockets().iter().find_map(|(other, sockets)| match sockets {
            PassedSockets::Port(port) if *other == cookie => Some(Arc::clone(port)),
            _ => None,
        })
    }

    /// The addresses of the connection that a cookie names: this host's, and the peer's.
    pub(crate) fn connection_ends(&self, cookie: u64) -> Option<(SocketAddr, SocketAddr)> {
        self.sockets().iter().find_map(|(other, sockets)| match sockets {
            PassedSockets::Connection { connection, .. } if *other == cookie => {
                connection.ends().ok()
            }
            _ => None,
        })
    }

    /// Takes out the connection that a cookie names, which it names no longer.
    pub(crate) fn take_connection(&self, cookie: u64) -> Option<Predecessor> {
        let mut sockets = self.sockets();
        let is_it = |(other, sockets): &(u64, PassedSockets)| {
            *other == cookie && matches!(sockets, PassedSockets::Connection { .. })
        };
        let place = sockets.iter().position(is_it)?;
        match sockets.swap_remove(place).1 {
            PassedSockets::Connection { connection, .. } => Some(connection),
            PassedSockets::Port(_) | PassedSockets::Token(..) => None,
        }
    }

    /// The session has ended: forgets all cookies.
    pub(crate) fn forget_all(&self) {
        self.sockets().clear();
    }

    /// Forgets a cookie. What a shard has taken stays.
    pub(crate) fn forget(&self, cookie: u64) {
        self.sockets().retain(|(other, _)| *other != cookie);
    }
}

#[cfg(test)]
mod tests {
    use megapipe_link::bind_port;

    use super::*;
    use crate::policy::{PortGrants, Quotas};

    fn bound() -> OwnedFd {
        bind_port(Transport::Udp, ([127, 0, 0, 1], 0).into(), true).expect("a free port")
    }

    fn table() -> PassedDescriptors {
        PassedDescriptors::new(Some(NetworkNamespace::current().expect("Linux 5.14")))
    }

    fn rights(limit: u32) -> SessionRights {
        SessionRights::new(Arc::default(), Quotas::from_each(|_| limit), PortGrants::All)
    }

    /// UDP needs no privilege.
    fn pass(
        table: &PassedDescriptors,
        cookie: u64,
        fds: Vec<OwnedFd>,
        rights: &SessionRights,
    ) -> Result<(), PassRefusal> {
        table.keep((cookie, PassPurpose::UdpPort), fds, Some(rights))
    }

    #[test]
    fn passed_sockets_are_bounded_and_count_for_their_user() {
        let (table, rights) = (table(), rights(PASSED_MAX as u32 + 1));
        let account = Arc::clone(rights.account());
        let count = || account.count(QuotaKind::UserSockets);
        for cookie in 1..=PASSED_MAX as u64 {
            pass(&table, cookie, vec![bound()], &rights).expect("there is room");
        }
        assert_eq!(count(), PASSED_MAX as u32);
        let full = pass(&table, 99, vec![bound()], &rights).expect_err("one too many");
        assert!(matches!(full, PassRefusal::Full), "{full}");
        table.forget(1);
        assert_eq!(count(), PASSED_MAX as u32 - 1);
        let many = (0..=PASSED_SOCKETS_MAX).map(|_| bound()).collect();
        let refused = pass(&table, 1, many, &rights).expect_err("too many in a message");
        assert!(matches!(refused, PassRefusal::Count), "{refused}");
        let refused = pass(&table, 2, vec![bound()], &rights).expect_err("its cookie is taken");
        assert!(matches!(refused, PassRefusal::Cookie), "{refused}");
        pass(&table, 0, vec![bound()], &rights).expect_err("no name");
        pass(&table, 1, Vec::new(), &rights).expect_err("nothing");
        let three = (0..3).map(|_| bound()).collect();
        let quota = pass(&table, 1, three, &rights).expect_err("beyond the quota");
        assert!(quota.to_string().contains("user.sockets"), "{quota}");
        assert_eq!(table.refused(), 6);
        let taken = table.port(2).expect("it was passed");
        assert!(table.port(1).is_none(), "it was forgotten");
        drop(table);
        assert_eq!(count(), 1, "a shard has it");
        drop(taken);
        assert_eq!(count(), 0);
    }
}
