//! Tokens that a daemon gives: sockets that stand for connections and endpoints for datagrams, so
//! that another process can own them too.
//!
//! Read first: unix(7) on socketpair(2); SO_COOKIE in socket(7); `attach/control_server/tokens.rs`.
//!
//! The daemon makes the pair, keeps one end and gives the other. It knows a token that comes back
//! by the identity of that other end, which is the same for all its duplicates and which no process
//! can choose. It sees the last close as the end of its own end.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{socket_cookie, socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, getpeername};

use super::message::{GIVEN_TOKEN, RELEASED_MAX, SessionMessage, SharedConn, SharedEndpoint};
use crate::limits::{PASS_TIME, TOKEN_COPIES_MAX, TOKEN_REQUESTS_MAX};
use crate::message_socket::{MessageWithFds, Reception, receive, send};
use crate::policy::{QuotaCharge, QuotaKind, QuotaReached, SessionRights};
use crate::sleep::wait_readable;

/// What a socket is to the kernel, whatever its number is in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SocketIdentity {
    cookie: u64,
    inode: u64,
}

impl SocketIdentity {
    /// `None`: it is no socket.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let cookie = socket_cookie(socket).ok()?;
        Some(Self { cookie, inode: rustix::fs::fstat(socket).ok()?.st_ino })
    }
}

/// Names of the daemon's ends begin with this, behind the NUL of an abstract name.
const TOKEN_NAME: &[u8] = b"megapipe-token-";

/// Names the daemon's end of a token, so that a process which receives the other end can tell it
/// from other sockets ([`is_token`]). No other process can take the name beforehand.
///
/// # Errors
/// As bind(2).
pub(crate) fn name_token(ours: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let random = RandomState::new().hash_one(socket_cookie(ours)?);
    let name = [TOKEN_NAME, format!("{random:016x}").as_bytes()].concat();
    bind(ours, &SocketAddrUnix::new_abstract_name(&name)?)
}

/// Whether a descriptor looks like a token of some daemon. Any process can make a socket that does:
/// what it stands for the daemon knows ([`crate::LaneSet::adopt_token`]).
#[must_use]
pub fn is_token(fd: BorrowedFd<'_>) -> bool {
    if socket_domain(fd) != Ok(AddressFamily::UNIX) || socket_type(fd) != Ok(SocketType::SEQPACKET)
    {
        return false;
    }
    let peer = getpeername(fd).ok().flatten();
    let peer = peer.and_then(|peer| SocketAddrUnix::try_from(peer).ok());
    peer.is_some_and(|it| it.abstract_name().is_some_and(|name| name.starts_with(TOKEN_NAME)))
}

/// Lets go of connections that the holder of a token owns by it alone: for a process that closes
/// what it has inherited, and needs no session for that.
///
/// # Errors
/// As sendmsg(2).
pub fn release_shared(token: BorrowedFd<'_>, conns: &[SharedConn]) -> io::Result<()> {
    conns.chunks(RELEASED_MAX).try_for_each(|conns| {
        let message = SessionMessage::Release { conns: conns.to_vec() };
        send(token, &message.encode(), &[])
    })
}

/// As [`release_shared`], of endpoints for datagrams.
///
/// # Errors
/// As sendmsg(2).
pub fn release_shared_endpoints(
    token: BorrowedFd<'_>,
    endpoints: &[SharedEndpoint],
) -> io::Result<()> {
    endpoints.chunks(RELEASED_MAX).try_for_each(|endpoints| {
        let message = SessionMessage::ReleaseEndpoints { endpoints: endpoints.to_vec() };
        send(token, &message.encode(), &[])
    })
}

/// Makes another token for what the holder of a token owns by it, for a child of its own. Only one
/// process may hold the token: the answer comes over it.
///
/// # Errors
/// The daemon's sentence, with the number of the kernel's that is nearest; `TimedOut`.
pub fn copy_token(token: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const COOKIE: u64 = 1;
    send(token, &SessionMessage::Token { cookie: COOKIE }.encode(), &[])?;
    let deadline = Instant::now() + PASS_TIME;
    loop {
        match receive(token)? {
            Reception::Message(MessageWithFds { bytes, mut fds }) => {
                match SessionMessage::decode(&bytes) {
                    Some(SessionMessage::Give { cookie }) if cookie == COOKIE | GIVEN_TOKEN => {
                        return fds.pop().ok_or_else(|| io::ErrorKind::InvalidData.into());
                    }
                    Some(SessionMessage::NotPassed { errno, .. }) => {
                        return Err(io::Error::from_raw_os_error(errno));
                    }
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                }
            }
            Reception::Nothing => {}
            Reception::Closed => return Err(io::ErrorKind::ConnectionReset.into()),
            Reception::Oversized => return Err(io::ErrorKind::InvalidData.into()),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match wait_readable([Some(token)], Some(left)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A token that a session has made, with its copies.
#[derive(Debug, Default)]
struct TokenFamily {
    /// Requests of their holders that shards have not carried out.
    under_way: AtomicU32,
}

/// What the holder of a token asks for over it, until all shards have carried it out.
#[derive(Debug)]
pub struct TokenRequest {
    /// The token.
    pub(crate) token: Arc<ShareToken>,
}

impl Drop for TokenRequest {
    fn drop(&mut self) {
        // Relaxed: it publishes nothing but itself.
        self.token.family.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A token, as shards know it.
#[derive(Debug)]
pub struct ShareToken {
    number: u64,
    has_ended: AtomicBool,
    family: Arc<TokenFamily>,
    /// Of the session that it was made for: what no session owns counts for its user.
    rights: Option<Arc<SessionRights>>,
    /// Counts for the user until no shard knows the token.
    _charge: Option<QuotaCharge>,
}

impl ShareToken {
    /// A token of this number, which counts for its user.
    ///
    /// # Errors
    /// The quota `user.tokens`.
    pub(crate) fn new(
        number: u64,
        rights: Option<Arc<SessionRights>>,
    ) -> Result<Arc<Self>, QuotaReached> {
        let charge = rights.as_ref().map(|its| its.charge(QuotaKind::UserTokens, 1)).transpose()?;
        let (has_ended, family) = (AtomicBool::new(false), Arc::default());
        Ok(Arc::new(Self { number, has_ended, family, rights, _charge: charge }))
    }

    /// A copy of this number, which counts for the same user. `None`: there are as many as may be.
    ///
    /// # Errors
    /// The quota `user.tokens`.
    pub(crate) fn copy(&self, number: u64) -> Result<Option<Arc<Self>>, QuotaReached> {
        if Arc::strong_count(&self.family) > TOKEN_COPIES_MAX {
            return Ok(None);
        }
        let rights = self.rights.clone();
        let charge = rights.as_ref().map(|its| its.charge(QuotaKind::UserTokens, 1)).transpose()?;
        let (has_ended, family) = (AtomicBool::new(false), Arc::clone(&self.family));
        Ok(Some(Arc::new(Self { number, has_ended, family, rights, _charge: charge })))
    }

    /// Its holder asks for something over it. `None`: so much is under way that it asks without
    /// end.
    pub(crate) fn begin_request(self: &Arc<Self>) -> Option<Arc<TokenRequest>> {
        // Relaxed: only the control thread adds, and what is left of a bound is not exact.
        if self.family.under_way.load(Ordering::Relaxed) >= TOKEN_REQUESTS_MAX {
            return None;
        }
        self.family.under_way.fetch_add(1, Ordering::Relaxed);
        Some(Arc::new(TokenRequest { token: Arc::clone(self) }))
    }

    /// Its number in the daemon, which no other token has.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) const fn rights(&self) -> Option<&Arc<SessionRights>> {
        self.rights.as_ref()
    }

    /// No process holds it any more. Shards are informed afterwards.
    pub(crate) fn end(&self) {
        // Release: pairs with `has_ended`, see there.
        self.has_ended.store(true, Ordering::Release);
    }

    /// Whether no process holds it. A shard that reads `false` after it has noted the token gets
    /// the request that ends it later.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{SocketFlags, socketpair};

    use super::*;

    #[test]
    fn tokens_are_told_from_other_sockets() {
        let pair = |kind| {
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a pair")
        };
        let (ours, theirs) = pair(SocketType::SEQPACKET);
        assert!(!is_token(theirs.as_fd()), "it has no name");
        name_token(ours.as_fd()).expect("a free name");
        assert!(is_token(theirs.as_fd()) && is_token(theirs.try_clone().unwrap().as_fd()));
        assert!(!is_token(ours.as_fd()), "it is the daemon's end");
        let (ours, theirs) = pair(SocketType::STREAM);
        name_token(ours.as_fd()).expect("a free name");
        assert!(!is_token(theirs.as_fd()), "no daemon makes one of these");
        let (reader, _writer) = io::pipe().expect("a pipe");
        assert!(!is_token(reader.as_fd()));
    }
}
