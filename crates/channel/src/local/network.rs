//! The network of a process: a link's queues, and a shard for each channel that uses the `local`
//! back end.
//!
//! One shard on one queue has the queue to itself. Any other number shares all queues through a
//! switch, which steers each flow to its shard (`megapipe_service::rx_mux`).
//!
//! Invariant: a shard is given to one channel and never comes back.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use megapipe_link::{Capture, Link, LinkError, LinkSpec, Pcap};
use megapipe_service::layout::{Component, ServerLayout};
use megapipe_service::{
    Frames, RxMuxError, ServerConfig, ServerError, ServiceLinks, split_switch, switch,
};

/// Why a network was not opened.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The description of the link cannot be understood.
    #[error(transparent)]
    Description(#[from] megapipe_link::SpecError),
    /// A setting is out of range, whatever the link.
    #[error(transparent)]
    Settings(#[from] ServerError),
    /// The link cannot be had.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The queues cannot be shared by so many shards.
    #[error(transparent)]
    Switch(#[from] RxMuxError),
    /// The kernel gave no random bytes for the key of the shards' hash.
    #[error("no random bytes for the key that flows are steered by: {0}")]
    NoRandomness(std::io::Error),
}

crate::error_chain::debug_with_causes!(NetworkError);

impl NetworkError {
    /// Whether the description of the link or the settings are at fault, and not this machine.
    #[must_use]
    pub const fn is_configuration(&self) -> bool {
        matches!(
            self,
            Self::Description(_)
                | Self::Settings(_)
                | Self::Link(LinkError::Setting { .. })
                | Self::Switch(RxMuxError::LinkServers { .. })
        )
    }

    /// Whether another program has the link, so that a later attempt may succeed.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::Link(error) if error.is_in_use())
    }

    /// The kernel's number that is nearest.
    #[must_use]
    pub fn raw_os_error(&self) -> i32 {
        match self {
            Self::Link(LinkError::Io { source, .. }) | Self::NoRandomness(source) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Self::Link(LinkError::Unavailable { .. } | LinkError::Gone { .. }) => libc::ENODEV,
            Self::Link(LinkError::InUse { .. }) => libc::EBUSY,
            Self::Description(_)
            | Self::Settings(_)
            | Self::Link(LinkError::Setting { .. })
            | Self::Switch(RxMuxError::LinkServers { .. }) => libc::EINVAL,
            Self::Switch(_) => libc::ENOMEM,
        }
    }
}

/// A link with our addresses on it. A clone refers to the same network; each channel that uses it
/// gets one in its configuration.
///
/// # Examples
/// Two hosts in one process, on the two ends of a link in memory:
/// ```
/// use megapipe::{
///     Accept, Backend, Channel, Config, ConnectOptions, Event, ListenOptions, LocalNetwork,
///     ServerConfig,
/// };
/// use megapipe_link::{Link, PairConfig, pair};
/// use std::time::Duration;
///
/// fn host(link: impl Link + 'static, last: u8) -> Result<Channel, Box<dyn std::error::Error>> {
///     let addresses = vec![([10, 0, 0, last].into(), 24)];
///     let settings = ServerConfig { addresses, ..ServerConfig::default() };
///     let network = LocalNetwork::over(vec![Box::new(link)], settings)?;
///     Ok(Channel::create(Config::default().backend(Backend::Local(network)))?)
/// }
///
/// let (one, other) = pair(&PairConfig::default())?;
/// let (mut client, mut server) = (host(one, 1)?, host(other, 2)?);
/// let address = "10.0.0.2:80".parse()?;
/// let listener = server.listen(&address, &ListenOptions::default(), 0)?;
/// server.accept(listener, Accept::lwsocket(1))?;
/// client.connect(&address, &ConnectOptions::default(), 0)?;
/// // One thread runs both hosts, so neither may block.
/// let done = loop {
///     client.dispatch(Some(Duration::ZERO))?;
///     if let Some(done) = server.dispatch(Some(Duration::ZERO))? {
///         break done;
///     }
/// };
/// assert!(matches!(done.event, Event::Accept(Ok(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LocalNetwork(Arc<NetworkShared>);

struct NetworkShared {
    settings: ServerConfig,
    description: String,
    queues: usize,
    is_spread_by_device: bool,
    shards: u16,
    /// What is left for channels to come, the first shard last; or for a daemon.
    left: Mutex<ServiceLinks>,
}

impl LocalNetwork {
    /// Opens a link by its text form, as in `--link tap:tap0` ([`megapipe_link::LinkSpec`]). A
    /// memif blocks until its peer is there.
    ///
    /// If the environment requests a capture ([`megapipe_link::capture::VARIABLE`]), all queues
    /// record the frames that the stack sends and receives. Faults in the text apply below the
    /// capture: a frame that is lost on the way out is recorded as sent, and one that is lost on
    /// the way in is not recorded.
    ///
    /// # Errors
    /// [`NetworkError`] says what is missing on this machine, or which part of the text is wrong.
    pub fn open(link: &str, settings: ServerConfig) -> Result<Self, NetworkError> {
        Self::open_noting(link, settings, &mut |_| ())
    }

    /// Opens a link as [`LocalNetwork::open`] does. `notice` receives lines for a person: what the
    /// call waits for, if that takes a second, and what the other end of a new device lacks, each
    /// with the remedy.
    ///
    /// # Errors
    /// As [`LocalNetwork::open`].
    pub fn open_noting(
        link: &str,
        settings: ServerConfig,
        notice: &mut dyn FnMut(&str),
    ) -> Result<Self, NetworkError> {
        let spec: LinkSpec = link.parse()?;
        let interface = settings.interface.clone().or_else(|| shared_interface(&spec));
        let settings = ServerConfig { interface, ..settings };
        settings.check()?;
        let queues = megapipe_link::open(&spec, notice)?;
        if let Some(interface) = shared_interface(&spec) {
            for address in foreign_addresses(&settings) {
                notice(&format!(
                    "{address} is no address of this host, and {interface} shares the host's: \
                     nothing can listen there or connect from it; give it to the host by \
                     `ip address add {address}/BITS dev {interface}`"
                ));
            }
        }
        let queues = match Capture::from_environment()? {
            Some(capture) => captured(queues, &capture),
            None => queues,
        };
        Self::over(queues, settings)
    }

    /// Checks, without opening anything, that the device of a link exists. Opening makes a TAP or
    /// TUN device that does not.
    ///
    /// # Errors
    /// [`NetworkError::Description`], [`NetworkError::Link`].
    pub fn check_device(link: &str) -> Result<(), NetworkError> {
        match link.parse::<LinkSpec>()?.missing_device() {
            None => Ok(()),
            Some(device) => {
                let why = format!("there is no interface {device:?}; a server would make it");
                Err(LinkError::Setting { setting: "interface", why }.into())
            }
        }
    }

    /// Creates a network over open queues, with [`ServerConfig::shards`] shards: one for each
    /// channel.
    ///
    /// # Errors
    /// [`NetworkError::Switch`], [`NetworkError::NoRandomness`].
    pub fn over(queues: Vec<Box<dyn Link>>, settings: ServerConfig) -> Result<Self, NetworkError> {
        let mut description = queues.first().map_or_else(String::new, |link| {
            let caps = link.caps();
            let notes: String = caps.notes.iter().map(|note| format!("; {note}")).collect();
            format!("{} of {} bytes MTU{notes}", caps.driver, caps.mtu)
        });
        let count = queues.len();
        let is_spread_by_device = queues.first().is_some_and(|link| link.caps().rss.is_some());
        let of_queues = u16::try_from(count).unwrap_or(u16::MAX);
        let layout = settings.layout.as_ref();
        let of_layout = layout.map(|layout| layout.count(Component::Transport));
        let shards = settings.shards.or(of_layout).unwrap_or(of_queues);
        let link_servers = layout.map_or(0, ServerLayout::separate_links);
        let mut left = if shards == 1 && count == 1 && link_servers == 0 {
            let shards = queues.into_iter().map(Frames::Queue).collect();
            ServiceLinks { shards, servers: Vec::new() }
        } else {
            let counted = |number: usize, what| match number {
                1 => format!("1 {what}"),
                _ => format!("{number} {what}s"),
            };
            let spread = [counted(shards.into(), "shard"), counted(count, "queue")];
            description.push_str(&format!(", {}", spread.join(" over ")));
            let key = settings.steering_key.map_or_else(random_key, Ok)?;
            if link_servers == 0 {
                let links = switch(queues, shards, &key)?;
                let shards = links.into_iter().map(|link| Frames::Shared(Box::new(link))).collect();
                ServiceLinks { shards, servers: Vec::new() }
            } else {
                let by = counted(link_servers.into(), "link server");
                description.push_str(&format!(" of {by}"));
                let (servers, links) = split_switch(queues, (link_servers, shards), &key)?;
                let shards = links.into_iter().map(|link| Frames::Served(Box::new(link))).collect();
                ServiceLinks { shards, servers }
            }
        };
        // Taken from the end: the first first.
        left.shards.reverse();
        let left = Mutex::new(left);
        let queues = count;
        Ok(Self(Arc::new(NetworkShared {
            settings,
            description,
            queues,
            is_spread_by_device,
            shards,
            left,
        })))
    }

    /// Returns our addresses on the link, and 127.0.0.1 and ::1 behind them if loopback is the
    /// stack's. None: they are those of the interface, where the link shares them.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.settings.all_addresses().map(|(address, _)| address)
    }

    /// Returns a description of the link for people.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.0.description
    }

    /// Returns the configuration of each channel's stack.
    #[must_use]
    pub fn settings(&self) -> &ServerConfig {
        &self.0.settings
    }

    /// Changes the configuration of the stacks of channels to come: that of TCP.
    ///
    /// Returns `false`, and changes nothing, if a channel or another configuration uses the
    /// network.
    pub fn change_tcp(&mut self, change: impl FnOnce(&mut megapipe_stack::TcpConfig)) -> bool {
        let shared = Arc::get_mut(&mut self.0);
        shared.map(|shared| change(&mut shared.settings.tcp)).is_some()
    }

    /// Returns whether a channel or another configuration uses the network, too.
    #[must_use]
    pub fn is_named_elsewhere(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns the number of the link's queues. With one queue and one shard, the shard owns the
    /// queue; otherwise a hash assigns each flow to a shard.
    #[must_use]
    pub fn queues(&self) -> usize {
        self.0.queues
    }

    /// Returns whether flows are assigned to shards by the device's hash (RSS), because the device
    /// publishes it, and not by ours.
    #[must_use]
    pub fn is_spread_by_device(&self) -> bool {
        self.0.is_spread_by_device
    }

    /// Returns the number of channels that can use the network; none can where the layout has link
    /// servers apart from the shards: such a network is for a [`Daemon`](crate::Daemon).
    #[must_use]
    pub fn shards(&self) -> u16 {
        self.0.shards
    }

    /// The next shard's frames; `None`: each has its channel, or a daemon's link servers move them.
    pub(crate) fn take(&self) -> Option<Frames> {
        let mut left = self.0.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.servers.is_empty() { left.shards.pop() } else { None }
    }

    /// The frames of all shards, for a daemon; `None`: a channel has some of them.
    pub(crate) fn take_all(&self) -> Option<ServiceLinks> {
        let mut left = self.0.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.shards.len() != usize::from(self.0.shards) {
            return None;
        }
        let (mut shards, servers) =
            (std::mem::take(&mut left.shards), std::mem::take(&mut left.servers));
        shards.reverse();
        Some(ServiceLinks { shards, servers })
    }
}

/// The interface of a link that shares it with the kernel.
fn shared_interface(link: &LinkSpec) -> Option<String> {
    match link {
        LinkSpec::Packet(packet) => Some(packet.interface.clone()),
        LinkSpec::Xdp(xdp) => Some(xdp.interface.clone()),
        LinkSpec::Faulty(beneath, _) => shared_interface(beneath),
        LinkSpec::Pair | LinkSpec::Tap(_) | LinkSpec::Memif(_) => None,
    }
}

/// The addresses that the kernel does not have, so that it cannot keep a port there.
fn foreign_addresses(settings: &ServerConfig) -> impl Iterator<Item = IpAddr> + '_ {
    let addresses = settings.addresses.iter().map(|(address, _)| *address);
    addresses.filter(|address| {
        let bound = std::net::UdpSocket::bind((*address, 0));
        bound.is_err_and(|error| error.kind() == std::io::ErrorKind::AddrNotAvailable)
    })
}

fn random_key() -> Result<[u8; 16], NetworkError> {
    let mut key = [0; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    match rustix::rand::getrandom(&mut key, flags) {
        Ok(16) => Ok(key),
        Ok(_) => Err(NetworkError::NoRandomness(std::io::ErrorKind::UnexpectedEof.into())),
        Err(errno) => Err(NetworkError::NoRandomness(errno.into())),
    }
}

fn captured(queues: Vec<Box<dyn Link>>, capture: &Capture) -> Vec<Box<dyn Link>> {
    let wrap = |link| Box::new(Pcap::new(link, capture.clone())) as Box<dyn Link>;
    queues.into_iter().map(wrap).collect()
}

impl fmt::Debug for LocalNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalNetwork({})", self.0.description)
    }
}

impl PartialEq for LocalNetwork {
    /// The same network, not one that looks like it.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LocalNetwork {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_the_host_does_not_have_are_found() {
        let foreign = [IpAddr::from([192, 0, 2, 77]), "2001:db8::77".parse().unwrap()];
        let addresses = [IpAddr::from([127, 0, 0, 1])].into_iter().chain(foreign);
        let addresses = addresses.map(|address| (address, 24)).collect();
        let settings = ServerConfig { addresses, ..ServerConfig::default() };
        let found: Vec<IpAddr> = foreign_addresses(&settings).collect();
        // Without IPv6 in the kernel no socket of it can be made.
        assert!(found.starts_with(&foreign[..1]) && foreign.starts_with(&found), "{found:?}");
    }
}
