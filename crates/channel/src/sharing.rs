//! Connections, listeners and datagram sockets with several owners: tokens, which pass them to
//! other processes.
//!
//! Read first: decisions 0055 and 0069; `docs/BACKENDS.md`.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::channel::Channel;
use crate::error::ShareError;
use crate::handle::Handle;

impl<T> Channel<T> {
    /// Shares a connection or a listener of the back end `service`: returns a token, which any
    /// process may [`Channel::adopt`]. The channel keeps what it shares.
    ///
    /// The token is a descriptor: it passes through fork(2), dup(2) and SCM_RIGHTS. Possession of
    /// it is the permission, also for processes of other users. Each byte that arrives goes to the
    /// owner that reads first; bytes that arrived before and that no read was waiting for are the
    /// next reader's. The connection ends when no channel and no token owns it any more: closing
    /// the handle ends one ownership, and so does closing the token's last descriptor. The last end
    /// sends FIN, or RST if bytes are unread.
    ///
    /// A listener ends in the same way: as long as a channel or a token owns it, its port stays
    /// taken and its backlog collects connections. The last end resets those that wait.
    ///
    /// Blocks until the service has answered.
    ///
    /// # Errors
    /// [`ShareError::Backend`] names a back end that cannot share; [`ShareError::Service`]: the
    /// connection is over, or is being established and the service is of an older version, or a
    /// quota is reached; [`ShareError::Misuse`]: it is neither a connection nor a listener of the
    /// service.
    ///
    /// # Examples
    /// ```
    /// use megapipe::{Channel, Config, ConnectOptions};
    ///
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let mut channel = Channel::create(Config::default())?;
    /// let address = listener.local_addr()?.into();
    /// let connection = channel.connect(&address, &ConnectOptions::default(), 0)?;
    /// let refused = channel.share(connection).expect_err("it is the kernel's");
    /// assert!(refused.to_string().contains("kernel"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn share(&mut self, handle: Handle) -> Result<OwnedFd, ShareError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        #[cfg(feature = "local")]
        if self.is_shareable() {
            return self.share_on_service(index, true);
        }
        let _ = index;
        Err(self.cannot_share())
    }

    /// Adopts the connection or the listener that a token stands for: the channel is one more owner
    /// of it. `cookie` is in the completions of the handle. Of a connection that is being
    /// established, [`Event::Connect`](crate::Event::Connect) follows. The token remains, and stays
    /// an owner until its last descriptor is closed. Blocks until the service has answered.
    ///
    /// The channels that own a listener share its connections as those do that listen at one
    /// address, also without [`crate::ListenOptions::share`]. Backlog, Fast Open and the options of
    /// connections are the listener's.
    ///
    /// # Errors
    /// [`ShareError::Known`]: the channel is an owner already; [`ShareError::NotConnected`]: the
    /// attempt to establish the connection has failed; [`ShareError::Service`]: the
    /// descriptor is no token of this service, what it stands for has ended, or a quota is reached.
    /// As [`Channel::share`].
    ///
    /// # Examples
    /// ```
    /// use std::os::fd::AsFd;
    ///
    /// use megapipe::{Channel, Config};
    ///
    /// let mut channel = Channel::create(Config::default())?;
    /// let (reader, _writer) = std::io::pipe()?;
    /// channel.adopt(reader.as_fd(), 0).expect_err("the kernel's connections have no tokens");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adopt(&mut self, token: BorrowedFd<'_>, cookie: u64) -> Result<Handle, ShareError> {
        self.check_fork()?;
        #[cfg(feature = "local")]
        if self.is_shareable() {
            return self.adopt_token_on_service(token, cookie);
        }
        let _ = (token, cookie);
        Err(self.cannot_share())
    }

    fn cannot_share(&self) -> ShareError {
        ShareError::Backend { backend: self.report().backend }
    }
}

/// What a program that forks needs for its child.
#[cfg(feature = "local")]
impl<T> Channel<T> {
    fn is_shareable(&self) -> bool {
        matches!(self.state.config.backend, crate::config::Backend::Service(_))
    }

    /// As [`Channel::share`], of all connections and datagram sockets that the channel has now (of
    /// the latter, where [`Channel::shared_endpoint_name`] names them): for a child, which
    /// attaches by the token ([`crate::ServiceAddress::with_token`]) and adopts what it uses
    /// ([`Channel::adopt_inherited`]). Until [`Channel::end_withholding`] and
    /// [`Channel::resume`] no connection receives bytes; those that the caller has got and its
    /// program has not read go back by [`Channel::give_back`].
    ///
    /// # Errors
    /// As [`Channel::share`]; nothing is withheld then.
    pub fn share_all(&mut self) -> Result<OwnedFd, ShareError> {
        self.check_fork()?;
        match self.is_shareable() {
            true => self.share_all_on_service(),
            false => Err(self.cannot_share()),
        }
    }

    /// As [`Channel::share`], of a connection whose caller reads ahead: it receives nothing until
    /// [`Channel::resume`]. What the caller has got and its program has not read goes back by
    /// [`Channel::give_back`], after the completions that are on their way.
    ///
    /// # Errors
    /// As [`Channel::share`].
    pub fn share_withheld(&mut self, handle: Handle) -> Result<OwnedFd, ShareError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        match self.is_shareable() {
            true => self.share_on_service(index, false),
            false => Err(self.cannot_share()),
        }
    }

    /// As [`Channel::adopt`], of a connection alone.
    ///
    /// # Errors
    /// As there; a token of a listener is refused as one whose connection has ended.
    pub fn adopt_shared_connection(
        &mut self,
        token: BorrowedFd<'_>,
        cookie: u64,
    ) -> Result<Handle, ShareError> {
        self.check_fork()?;
        match self.is_shareable() {
            true => self.adopt_on_service(cookie, |lanes| lanes.adopt_token(token)),
            false => Err(self.cannot_share()),
        }
    }

    /// Reads are submitted to the service again, but for those that were pending at
    /// [`Channel::share_all`].
    pub fn end_withholding(&mut self) {
        self.set_withholding(false);
    }

    /// Submits the read of a connection again that was pending at [`Channel::share_all`].
    pub fn resume(&mut self, handle: Handle) {
        if let Ok(index) = self.state.find(handle) {
            self.resume_on_service(index);
        }
    }

    /// Takes back what was asked to receive of a shared connection, until [`Channel::resume`].
    /// Completions that are on their way still come.
    ///
    /// # Errors
    /// [`ShareError::Service`]: it is not shared any more, or over.
    pub fn withhold(&mut self, handle: Handle) -> Result<(), ShareError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.withhold_on_service(index)
    }

    /// Gives received bytes of a shared connection back, before those that the channel holds, which
    /// it gives back as well.
    ///
    /// # Errors
    /// [`ShareError::Service`]: the bytes stay this channel's, and are lost for others.
    pub fn give_back(&mut self, handle: Handle, seen: &[u8]) -> Result<(), ShareError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.give_back_to_service(index, seen)
    }

    /// The name of a connection for [`Channel::adopt_inherited`] in a child. `None`: it is none of
    /// the service's.
    #[must_use]
    pub fn shared_name(&mut self, handle: Handle) -> Option<megapipe_service::SharedConn> {
        let index = self.state.find(handle).ok()?;
        self.name_on_service(index)
    }

    /// The names of all connections that the channel has.
    #[must_use]
    pub fn shared_names(&mut self) -> Vec<megapipe_service::SharedConn> {
        self.names_on_service()
    }

    /// Adopts a connection that the token owns by which the channel was attached.
    ///
    /// # Errors
    /// As [`Channel::adopt`].
    pub fn adopt_inherited(
        &mut self,
        name: megapipe_service::SharedConn,
        cookie: u64,
    ) -> Result<Handle, ShareError> {
        self.check_fork()?;
        match self.is_shareable() {
            true => self.adopt_on_service(cookie, |lanes| lanes.adopt_inherited(name)),
            false => Err(self.cannot_share()),
        }
    }

    /// Whether the service shares connections that are being established.
    #[must_use]
    pub fn shares_connecting(&mut self) -> bool {
        self.connecting_is_shared_on_service()
    }

    /// Whether the handle's attempt to connect goes on: [`Event::Connect`](crate::Event::Connect)
    /// follows.
    #[must_use]
    pub fn is_connecting(&self, handle: Handle) -> bool {
        let index = self.state.find(handle);
        index.is_ok_and(|index| crate::local::is_connecting(&self.state, index))
    }

    /// The name of a datagram socket for [`Channel::adopt_inherited_endpoint`] in a child. `None`:
    /// it is none of the service's, or that does not share such sockets.
    #[must_use]
    pub fn shared_endpoint_name(
        &mut self,
        handle: Handle,
    ) -> Option<megapipe_service::SharedEndpoint> {
        let index = self.state.find(handle).ok()?;
        self.endpoint_name_on_service(index)
    }

    /// The names of all datagram sockets that the channel has.
    #[must_use]
    pub fn shared_endpoint_names(&mut self) -> Vec<megapipe_service::SharedEndpoint> {
        self.endpoint_names_on_service()
    }

    /// As [`Channel::adopt_inherited`], of a datagram socket. Its datagrams wait at the service
    /// until they are taken.
    ///
    /// # Errors
    /// As [`Channel::adopt`].
    pub fn adopt_inherited_endpoint(
        &mut self,
        name: megapipe_service::SharedEndpoint,
        cookie: u64,
    ) -> Result<Handle, ShareError> {
        self.check_fork()?;
        match self.is_shareable() {
            true => self.adopt_endpoint_on_service(name, cookie),
            false => Err(self.cannot_share()),
        }
    }

    /// Takes the first datagram that waits at the service for the owners of a shared socket, or a
    /// copy of it; and 1 more than the bytes of the first one that waits then, or 0. The inner
    /// `None`: none waits, and [`crate::Event::DatagramWaits`] reports the next one that arrives.
    /// The outer: no other process has the socket any more, and reads complete as before.
    pub fn take_shared_datagram(
        &mut self,
        handle: Handle,
        keeps: bool,
    ) -> Option<Option<(crate::Datagram, u32)>> {
        self.check_fork().ok()?;
        let index = self.state.find(handle).ok()?;
        self.take_datagram_on_service(index, keeps)
    }

    /// Returns 1 more than the bytes of the first datagram that waits at the service for the owners
    /// of a shared socket, or 0. As [`Channel::take_shared_datagram`], otherwise. `None`: no other
    /// process has the socket any more.
    pub fn await_shared_datagram(&mut self, handle: Handle) -> Option<u32> {
        self.check_fork().ok()?;
        let index = self.state.find(handle).ok()?;
        self.await_datagram_on_service(index)
    }

    /// Makes a token that owns datagram sockets too, for [`Channel::adopt_datagram_sockets`]. Their
    /// datagrams wait at the service from now on, until they are taken; also if this fails for
    /// another one of them ([`Channel::await_shared_datagram`]). Those that the caller has got and
    /// its program has not read go back by [`Channel::give_datagrams_back`].
    ///
    /// # Errors
    /// As [`Channel::share`].
    pub fn share_datagram_sockets(&mut self, handles: &[Handle]) -> Result<OwnedFd, ShareError> {
        self.check_fork()?;
        match self.is_shareable() {
            true => self.share_endpoints_on_service(handles),
            false => Err(self.cannot_share()),
        }
    }

    /// As [`Channel::adopt`], of a token for datagram sockets: those of one program's socket are
    /// two, where it has both families.
    ///
    /// # Errors
    /// As there.
    pub fn adopt_datagram_sockets(
        &mut self,
        token: BorrowedFd<'_>,
    ) -> Result<Vec<crate::local::AdoptedDatagramSocket>, ShareError> {
        self.check_fork()?;
        match self.is_shareable() {
            true => self.adopt_endpoints_on_service(token),
            false => Err(self.cannot_share()),
        }
    }

    /// Gives received datagrams of a shared socket back, oldest first, before those that the
    /// channel holds, which it gives back as well. They wait before others at the service, which
    /// drops those for which it has no room.
    ///
    /// # Errors
    /// [`ShareError::Service`]: those that were not taken are lost.
    pub fn give_datagrams_back(
        &mut self,
        handle: Handle,
        seen: Vec<crate::Datagram>,
    ) -> Result<(), ShareError> {
        self.check_fork()?;
        let index = self.state.find(handle)?;
        self.give_datagrams_back_to_service(index, seen)
    }
}
