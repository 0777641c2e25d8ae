//! The networks that channels on the `local` back end share, and from the fields of a `mp_config`
//! to one of them.
//!
//! Channels are one per thread, and all that name the same link are on one network of the process,
//! each with a shard of it. So the networks are kept here, by what they were asked for; contexts of
//! mTCP's API ask for theirs in the same way (`mtcp/setup.rs`).
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

use channel::{Backend, CreateError, LocalNetwork, Placement, Prefixed, ServerConfig};

use crate::abi::{mp_backend, mp_config};
use crate::error::{CallError, Failure};
use crate::limits::{NETWORKS_MAX, SLOTS_BESIDE_CONNECTIONS};

/// What a network is opened with: where the same is asked for, it is the same network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// In the words of link descriptions.
    pub(crate) link: String,
    pub(crate) settings: ServerConfig,
}

/// The networks of this process, the latest last.
static NETWORKS: Mutex<Vec<(Wanted, LocalNetwork)>> = Mutex::new(Vec::new());

/// A variable of the environment, unless the process has more rights than who started it.
pub(crate) fn variable(name: &str) -> Option<String> {
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
    let addresses = addresses.or_else(|| environment("MEGAPIPE_ADDRESS"));
    let gateways = gateways.or_else(|| environment("MEGAPIPE_GATEWAY"));
    let channels = number(config.channels, "MEGAPIPE_CHANNELS")?;
    Ok(Some(Wanted {
        link: link.ok_or(CallError::Argument("config->link"))?,
        settings: settings(config, addresses.as_deref(), gateways.as_deref(), channels)?,
    }))
}

/// Where the stack of a channel runs: inside its dispatch, unless the program left the back end to
/// the environment, and that says so.
pub(crate) fn placement(config: &mp_config) -> Result<Placement, Failure> {
    Ok(placement_if_named(config)?.unwrap_or_default())
}

/// Where the environment lets the stack run, if the program left the back end to it.
pub(crate) fn placement_if_named(config: &mp_config) -> Result<Option<Placement>, Failure> {
    let by_environment = config.backend == mp_backend::MP_BACKEND_DEFAULT as u32;
    if by_environment { placement_of_environment() } else { Ok(None) }
}

/// What MEGAPIPE_PLACEMENT says.
pub(crate) fn placement_of_environment() -> Result<Option<Placement>, Failure> {
    let named = |name: String| placement_named(&name);
    let asked = variable("MEGAPIPE_PLACEMENT").map(named);
    asked
        .map(|known| known.ok_or_else(|| CallError::Argument("MEGAPIPE_PLACEMENT").into()))
        .transpose()
}

/// A placement by its name, with whatever core is next where it is to have one of its own.
pub(crate) fn placement_named(name: &str) -> Option<Placement> {
    match name {
        "inline" => Some(Placement::Inline),
        "thread" => Some(Placement::Thread),
        "core" => Some(Placement::Core(None)),
        _ => None,
    }
}

/// What a server starts with, by the fields of a configuration.
fn settings(
    config: &mp_config,
    addresses: Option<&str>,
    gateways: Option<&str>,
    channels: u32,
) -> Result<ServerConfig, Failure> {
    let mut settings = ServerConfig {
        connections: config.max_lwsockets.saturating_add(SLOTS_BESIDE_CONNECTIONS),
        ..ServerConfig::default()
    };
    for part in parts(addresses) {
        let parsed: Prefixed = part.parse().map_err(CallError::Address)?;
        settings.addresses.push((parsed.address, parsed.prefix_bits));
    }
    for part in parts(gateways) {
        let gateway = part.parse().map_err(|_| CallError::Argument("config->gateways"))?;
        settings.gateways.push(gateway);
    }
    if config.mtu > 0 {
        let mtu = u16::try_from(config.mtu).map_err(|_| CallError::Argument("config->mtu"))?;
        settings.mtu = Some(mtu);
    }
    if config.spin_us > 0 {
        settings.waits.spin = Duration::from_micros(config.spin_us.into());
    }
    if channels > 0 {
        let shards = u16::try_from(channels);
        settings.shards = Some(shards.map_err(|_| CallError::Argument("config->channels"))?);
    }
    Ok(settings)
}

/// What stands between the commas of a list.
fn parts(list: Option<&str>) -> impl Iterator<Item = &str> {
    let parts = list.unwrap_or_default().split(',');
    parts.map(str::trim).filter(|part| !part.is_empty())
}

/// What `make` makes on the network that is wanted, which is opened if it is not open yet.
pub(crate) fn on<T>(
    wanted: &Wanted,
    make: impl Fn(Backend) -> Result<T, sockets::CreateError>,
) -> Result<T, Failure> {
    let mut networks = NETWORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let on = |network: &LocalNetwork| make(Backend::Local(network.clone()));
    if let Some(place) = networks.iter().position(|(known, _)| known == wanted) {
        match on(&networks[place].1) {
            Err(sockets::CreateError::Channel(CreateError::NoQueue))
                if !networks[place].1.is_named_elsewhere() =>
            {
                drop(networks.remove(place));
            }
            made => return Ok(made?),
        }
    }
    let link = || wanted.link.clone();
    let network = LocalNetwork::open(&wanted.link, wanted.settings.clone())
        .map_err(|source| CallError::Network { link: link(), source })?;
    let made = on(&network)?;
    if networks.len() == NETWORKS_MAX {
        networks.remove(0);
    }
    networks.push((wanted.clone(), network));
    Ok(made)
}

/// Nobody will ask for this network again; those who are on it keep it.
pub(crate) fn forget(wanted: &Wanted) {
    let mut networks = NETWORKS.lock().unwrap_or_else(PoisonError::into_inner);
    networks.retain(|(known, _)| known != wanted);
}
