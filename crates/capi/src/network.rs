//! From the fields of a configuration to the network that channels on the `local` back end share.
//!
//! Channels are one per thread, and all that name the same link are on one network of the process,
//! each with a shard of it. So the networks are kept here, by what they were asked for.
//!
//! Read first: `mp_config_init(3)`; `channel::LocalNetwork`.
//!
//! Invariants
//! - A field that the program has set counts; what it left alone comes from the environment, if the
//!   program left the back end to the environment, too.
//! - A network whose shards have all had their channels is opened anew once those are gone.

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use channel::{Backend, Channel, Config, CreateError, LocalNetwork, Prefixed, ServerConfig};

use crate::abi::{mp_backend, mp_config};
use crate::error::{CallError, Failure};
use crate::limits::{NETWORKS_MAX, SLOTS_BESIDE_CONNECTIONS};

/// What a network was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    link: String,
    addresses: String,
    gateways: String,
    mtu: u32,
    spin_us: u32,
    channels: u32,
    connections: u32,
}

/// The networks of this process, the latest last.
static NETWORKS: Mutex<Vec<(Wanted, LocalNetwork)>> = Mutex::new(Vec::new());

/// A variable of the environment, unless the process has more rights than who started it.
fn variable(name: &str) -> Option<String> {
    // SAFETY: takes an integer, and answers one.
    let has_more_rights = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if has_more_rights {
        return None;
    }
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// A text of the configuration; null is none.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn text(text: *const c_char, name: &'static str) -> Result<Option<String>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises a C string.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok("") => Ok(None),
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => Err(CallError::Argument(name).into()),
    }
}

/// The network that a configuration names. `None`: the kernel does TCP and UDP.
///
/// # Safety
/// The texts of `config` are null or C strings.
pub(crate) unsafe fn wanted(config: &mp_config) -> Result<Option<Wanted>, Failure> {
    let is = |backend: mp_backend| config.backend == backend as u32;
    let by_environment = is(mp_backend::MP_BACKEND_DEFAULT);
    let environment = |name| if by_environment { variable(name) } else { None };
    let is_local = match environment("MEGAPIPE_BACKEND").as_deref() {
        None | Some("kernel") if by_environment => false,
        Some("local") => true,
        Some(_) => return Err(CallError::Argument("MEGAPIPE_BACKEND").into()),
        None if is(mp_backend::MP_BACKEND_KERNEL) => false,
        None if is(mp_backend::MP_BACKEND_LOCAL) => true,
        None => return Err(CallError::Argument("config->backend").into()),
    };
    // SAFETY: the caller promises these.
    let link = unsafe { text(config.link, "config->link") }?;
    // SAFETY: the same.
    let addresses = unsafe { text(config.addresses, "config->addresses") }?;
    // SAFETY: the same.
    let gateways = unsafe { text(config.gateways, "config->gateways") }?;
    if !is_local {
        let is_any = link.is_some() || addresses.is_some() || gateways.is_some();
        return match is_any {
            true => {
                Err(CallError::Argument("config->link, which only the local back end has,").into())
            }
            false => Ok(None),
        };
    }
    let number = |value: u32, name| match (value, environment(name)) {
        (0, Some(text)) => text.parse().map_err(|_| CallError::Argument("MEGAPIPE_CHANNELS")),
        _ => Ok(value),
    };
    let link = link.or_else(|| environment("MEGAPIPE_LINK"));
    Ok(Some(Wanted {
        link: link.ok_or(CallError::Argument("config->link"))?,
        addresses: addresses.or_else(|| environment("MEGAPIPE_ADDRESS")).unwrap_or_default(),
        gateways: gateways.or_else(|| environment("MEGAPIPE_GATEWAY")).unwrap_or_default(),
        mtu: config.mtu,
        spin_us: config.spin_us,
        channels: number(config.channels, "MEGAPIPE_CHANNELS")?,
        connections: config.max_lwsockets,
    }))
}

impl Wanted {
    fn settings(&self) -> Result<ServerConfig, Failure> {
        let parts = |list: &str| -> Vec<String> {
            let parts = list.split(',').map(str::trim).filter(|part| !part.is_empty());
            parts.map(str::to_owned).collect()
        };
        let mut settings = ServerConfig {
            connections: self.connections.saturating_add(SLOTS_BESIDE_CONNECTIONS),
            ..ServerConfig::default()
        };
        for part in parts(&self.addresses) {
            let parsed: Prefixed = part.parse().map_err(CallError::Address)?;
            settings.addresses.push((parsed.address, parsed.prefix_bits));
        }
        for part in parts(&self.gateways) {
            let gateway = part.parse().map_err(|_| CallError::Argument("config->gateways"))?;
            settings.gateways.push(gateway);
        }
        if self.mtu > 0 {
            let mtu = u16::try_from(self.mtu).map_err(|_| CallError::Argument("config->mtu"))?;
            settings.mtu = Some(mtu);
        }
        if self.spin_us > 0 {
            settings.waits.spin = Duration::from_micros(self.spin_us.into());
        }
        if self.channels > 0 {
            let shards = u16::try_from(self.channels);
            settings.shards = Some(shards.map_err(|_| CallError::Argument("config->channels"))?);
        }
        Ok(settings)
    }
}

/// A channel on the network that is wanted, which is opened if it is not open yet.
pub(crate) fn create(config: Config, wanted: &Wanted) -> Result<Channel, Failure> {
    let mut networks = NETWORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let on = |network: &LocalNetwork| {
        Channel::create(config.clone().backend(Backend::Local(network.clone())))
    };
    if let Some(place) = networks.iter().position(|(known, _)| known == wanted) {
        match on(&networks[place].1) {
            Err(CreateError::NoQueue) if !networks[place].1.is_named_elsewhere() => {
                drop(networks.remove(place));
            }
            created => return Ok(created?),
        }
    }
    let network = LocalNetwork::open(&wanted.link, wanted.settings()?)?;
    let created = on(&network)?;
    if networks.len() == NETWORKS_MAX {
        networks.remove(0);
    }
    networks.push((wanted.clone(), network));
    Ok(created)
}
