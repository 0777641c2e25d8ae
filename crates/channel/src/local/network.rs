//! The network of a process: a link's queues, one for each channel that uses the `local` back end.
//!
//! Invariant: a queue is given to one channel and never comes back.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use megapipe_link::{Capture, Link, LinkError, LinkSpec, Pcap};
use megapipe_service::ServerConfig;

/// Why a network was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// The description of the link cannot be understood.
    #[error(transparent)]
    Description(#[from] megapipe_link::SpecError),
    /// The link cannot be had.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// A link and the addresses we have on it. Cloning gives another name for the same network; give
/// one to the configuration of each channel that shall use it.
#[derive(Clone)]
pub struct LocalNetwork(Arc<Shared>);

struct Shared {
    settings: ServerConfig,
    description: String,
    queues: Mutex<Vec<Box<dyn Link>>>,
}

impl LocalNetwork {
    /// Opens a link by its text form, as in `--link tap:tap0` ([`megapipe_link::LinkSpec`]).
    ///
    /// If the environment asks for a capture ([`megapipe_link::capture::VARIABLE`]), all queues
    /// write into it what the stack sends and what reaches it. Faults that the text asks for lie
    /// beneath: a frame that they take from us was sent, and one that they take from the peer
    /// never came.
    ///
    /// # Errors
    /// [`NetworkError`] says what is missing on this machine, or which part of the text is wrong.
    pub fn open(link: &str, settings: ServerConfig) -> Result<Self, NetworkError> {
        let spec: LinkSpec = link.parse()?;
        let interface = settings.interface.clone().or_else(|| shared_interface(&spec));
        let settings = ServerConfig { interface, ..settings };
        let queues = megapipe_link::open(&spec)?;
        let queues = match Capture::from_environment()? {
            Some(capture) => captured(queues, &capture),
            None => queues,
        };
        Ok(Self::over(queues, settings))
    }

    /// Over queues that are open already, one for each channel.
    #[must_use]
    pub fn over(mut queues: Vec<Box<dyn Link>>, settings: ServerConfig) -> Self {
        // Taken from the end: the first queue first.
        queues.reverse();
        let description = queues.last().map_or_else(String::new, |link| {
            let caps = link.caps();
            let notes: String = caps.notes.iter().map(|note| format!("; {note}")).collect();
            format!("{} of {} bytes MTU{notes}", caps.driver, caps.mtu)
        });
        Self(Arc::new(Shared { settings, description, queues: Mutex::new(queues) }))
    }

    /// Our addresses on it.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.settings.addresses.iter().map(|(address, _)| *address)
    }

    /// The link, in words.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.0.description
    }

    pub(crate) fn settings(&self) -> &ServerConfig {
        &self.0.settings
    }

    /// The next queue; `None`: each has its channel.
    pub(crate) fn take_queue(&self) -> Option<Box<dyn Link>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner).pop()
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
