//! Networks that channels with the `local` back end share, and how an `mp_config` selects one.
//!
//! Channels are one per thread, and all that name the same link share one network of the process,
//! each with a shard of it. So networks are kept here, by their options; contexts of mTCP's API use
//! the same table (`mtcp/setup.rs`).
//!
//! Read first: `mp_config_init(3)`; `channel::LocalNetwork`.
//!
//! Invariants
//! - A field that the program has set wins. An unset field comes from the environment, if the
//!   program left the back end to the environment, too.
//! - A network whose shards have all been used is opened anew once their channels are gone.

use std::ffi::{CStr, c_char};
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use channel::{
    Backend, CreateError, DriverReport, LocalNetwork, LoopbackOwner, Placement, Prefixed,
    ServerConfig, ServiceAddress,
};

use crate::abi::{MP_FALL_BACK, MP_LOOPBACK_STACK, mp_backend, mp_config, mp_placement};
use crate::error::{CallError, CallFailure, print};
use crate::limits::{NETWORKS_MAX, SLOTS_BESIDE_CONNECTIONS};

/// The options that a network is opened with.
#[derive(Debug, Clone)]
pub(crate) struct NetworkOptions {
    /// As in link descriptions.
    pub(crate) link: String,
    /// The field or variable that the link comes from, for errors.
    pub(crate) link_named_by: &'static str,
    pub(crate) settings: ServerConfig,
}

impl NetworkOptions {
    /// Whether both describe the same network, whatever their origin.
    fn is_same(&self, other: &Self) -> bool {
        self.link == other.link && self.settings == other.settings
    }
}

/// What does TCP and UDP in place of the kernel.
#[derive(Debug, Clone)]
pub(crate) enum StackChoice {
    /// The stack in this process, on a network.
    Local(Box<NetworkOptions>),
    /// The stack of a daemon.
    Service(ServiceAddress),
}

impl StackChoice {
    /// The daemon at a path, or at the usual one.
    pub(crate) fn at(path: Option<String>) -> Self {
        Self::Service(path.map_or_else(ServiceAddress::default, ServiceAddress::new))
    }

    /// Whether the program chooses where the stack runs.
    pub(crate) const fn has_placement(&self) -> bool {
        matches!(self, Self::Local(_))
    }
}

/// Variable of the environment: the path of the daemon's socket.
pub(crate) const SERVICE_VARIABLE: &str = "MEGAPIPE_SERVICE";

/// The networks of this process, the latest last.
static NETWORKS: Mutex<Vec<(NetworkOptions, LocalNetwork)>> = Mutex::new(Vec::new());

/// A variable of the environment, unless the process runs with raised privileges (AT_SECURE).
pub(crate) fn variable(name: &str) -> Option<String> {
    // SAFETY: takes an integer, and returns one.
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
unsafe fn text(text: *const c_char, name: &'static str) -> Result<Option<String>, CallFailure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller promises a C string.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok("") => Ok(None),
        Ok(text) => Ok(Some(text.to_owned())),
        Err(_) => {
            let shown = text.to_string_lossy();
            Err(CallError::setting(name, shown, "must be text in UTF-8").into())
        }
    }
}

/// The text of a setting with the name of its source: a field of the configuration, or the
/// variable of the environment that stands for it.
struct NamedValue {
    name: &'static str,
    text: String,
}

/// The stack that a configuration names. `None`: the kernel does TCP and UDP.
///
/// # Safety
/// The texts of `config` are null or C strings.
pub(crate) unsafe fn wanted(config: &mp_config) -> Result<Option<StackChoice>, CallFailure> {
    let by_environment = config.backend == mp_backend::MP_BACKEND_DEFAULT as u32;
    let backend = backend(config)?;
    placement_of_fields(config)?;
    // SAFETY: the caller promises these.
    let link = unsafe { text(config.link, "config->link") }?;
    // SAFETY: the same.
    let addresses = unsafe { text(config.addresses, "config->addresses") }?;
    // SAFETY: the same.
    let gateways = unsafe { text(config.gateways, "config->gateways") }?;
    let flags = config.flags & MP_LOOPBACK_STACK;
    if flags != 0 && backend != mp_backend::MP_BACKEND_LOCAL {
        return Err(CallError::setting("config->flags", "MP_LOOPBACK_STACK", ONLY_LOCAL).into());
    }
    if backend == mp_backend::MP_BACKEND_SERVICE {
        return service(config, link, [addresses, gateways]).map(Some);
    }
    if backend != mp_backend::MP_BACKEND_LOCAL {
        let texts = [
            ("config->link", link),
            ("config->addresses", addresses),
            ("config->gateways", gateways),
        ];
        return match texts.into_iter().find_map(|(name, text)| Some((name, text?))) {
            Some((name, text)) => Err(CallError::setting(name, text, ONLY_LOCAL).into()),
            None => Ok(None),
        };
    }
    let setting = |field: Option<String>, name, variable_name| match field {
        Some(text) => Some(NamedValue { name, text }),
        None if by_environment => {
            variable(variable_name).map(|text| NamedValue { name: variable_name, text })
        }
        None => None,
    };
    let link = setting(link, "config->link", "MEGAPIPE_LINK");
    let addresses = setting(addresses, "config->addresses", "MEGAPIPE_ADDRESS");
    let gateways = setting(gateways, "config->gateways", "MEGAPIPE_GATEWAY");
    let missing = if by_environment { "MEGAPIPE_LINK" } else { "config->link" };
    let link = link.ok_or(CallError::Missing(missing, LINK_NEEDED))?;
    let options = NetworkOptions {
        settings: settings(config, addresses.as_ref(), gateways.as_ref())?,
        link: link.text,
        link_named_by: link.name,
    };
    Ok(Some(StackChoice::Local(Box::new(options))))
}

/// The daemon that a configuration names: by its path, by the environment, or the usual one.
fn service(
    config: &mp_config,
    path: Option<String>,
    [addresses, gateways]: [Option<String>; 2],
) -> Result<StackChoice, CallFailure> {
    for (name, text) in [("config->addresses", addresses), ("config->gateways", gateways)] {
        if let Some(text) = text {
            return Err(CallError::setting(name, text, ONLY_LOCAL).into());
        }
    }
    if config.placement != 0 {
        return Err(CallError::setting("config->placement", config.placement, ONLY_LOCAL).into());
    }
    Ok(StackChoice::at(path.or_else(|| variable(SERVICE_VARIABLE))))
}

const ONLY_LOCAL: &str = "only the local back end has this";
const LINK_NEEDED: &str =
    "the local back end needs a link, such as tap:tap0, packet:eth0, xdp:eth0 or memif:PATH";
const BACKENDS: &str = "must be MP_BACKEND_DEFAULT, MP_BACKEND_KERNEL, MP_BACKEND_LOCAL or \
                        MP_BACKEND_SERVICE";
const PLACEMENTS: &str =
    "must be MP_PLACEMENT_DEFAULT, MP_PLACEMENT_INLINE, MP_PLACEMENT_THREAD or MP_PLACEMENT_CORE";

/// The back end that a configuration chooses, or the environment in its place.
fn backend(config: &mp_config) -> Result<mp_backend, CallFailure> {
    use mp_backend::{MP_BACKEND_DEFAULT, MP_BACKEND_KERNEL, MP_BACKEND_LOCAL, MP_BACKEND_SERVICE};
    let is = |backend: mp_backend| config.backend == backend as u32;
    if is(MP_BACKEND_KERNEL) {
        return match config.placement {
            0 => Ok(MP_BACKEND_KERNEL),
            other => Err(CallError::setting("config->placement", other, ONLY_LOCAL).into()),
        };
    }
    let named = [MP_BACKEND_LOCAL, MP_BACKEND_SERVICE].into_iter().find(|it| is(*it));
    if let Some(backend) = named {
        return Ok(backend);
    }
    if !is(MP_BACKEND_DEFAULT) {
        return Err(CallError::setting("config->backend", config.backend, BACKENDS).into());
    }
    match variable("MEGAPIPE_BACKEND").as_deref() {
        None | Some("kernel") => Ok(MP_BACKEND_KERNEL),
        Some("local") => Ok(MP_BACKEND_LOCAL),
        Some("service") => Ok(MP_BACKEND_SERVICE),
        Some(other) => {
            let allowed = "must be kernel, local or service";
            Err(CallError::setting("MEGAPIPE_BACKEND", other, allowed).into())
        }
    }
}

/// Whether the kernel serves if a daemon gives no session: by a flag of the configuration, or by
/// the environment, if the program left the back end to it.
pub(crate) fn falls_back(config: &mp_config) -> Result<bool, CallFailure> {
    const NAME: &str = "MEGAPIPE_FALL_BACK";
    if config.flags & MP_FALL_BACK != 0 {
        return Ok(true);
    }
    let by_environment = config.backend == mp_backend::MP_BACKEND_DEFAULT as u32;
    match variable(NAME).filter(|_| by_environment).as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(CallError::setting(NAME, other, "must be 0 or 1").into()),
    }
}

/// Prints a line if the kernel serves in place of a daemon.
pub(crate) fn note_fall_back(report: &DriverReport) {
    if let Some(why) = &report.fallen_back_from_service {
        print(format_args!("warning: {why}; the kernel serves in place of the service"));
    }
}

/// Where the stack of a channel runs: inside its dispatch, unless a field of the configuration or
/// the environment says otherwise.
pub(crate) fn placement(config: &mp_config) -> Result<Placement, CallFailure> {
    Ok(placement_if_named(config)?.unwrap_or_default())
}

/// The placement that a field of the configuration sets, else the environment, if the program left
/// the back end to it.
pub(crate) fn placement_if_named(config: &mp_config) -> Result<Option<Placement>, CallFailure> {
    let by_environment = config.backend == mp_backend::MP_BACKEND_DEFAULT as u32;
    match placement_of_fields(config)? {
        None if by_environment => placement_of_environment(),
        named => Ok(named),
    }
}

/// The placement that the fields of the configuration set, if any.
fn placement_of_fields(config: &mp_config) -> Result<Option<Placement>, CallFailure> {
    let is = |placement: mp_placement| config.placement == placement as u32;
    let core = match config.server_core {
        -1 => None,
        core => Some(usize::try_from(core).map_err(|_| {
            CallError::setting("config->server_core", core, "must be a core's number, or -1")
        })?),
    };
    if is(mp_placement::MP_PLACEMENT_CORE) {
        return Ok(Some(Placement::Core(core)));
    }
    // A program that was compiled before the field existed has 0.
    if core.is_some_and(|core| core > 0) {
        let allowed = "only MP_PLACEMENT_CORE has a core of its own";
        return Err(CallError::setting("config->server_core", config.server_core, allowed).into());
    }
    match config.placement {
        _ if is(mp_placement::MP_PLACEMENT_DEFAULT) => Ok(None),
        _ if is(mp_placement::MP_PLACEMENT_INLINE) => Ok(Some(Placement::Inline)),
        _ if is(mp_placement::MP_PLACEMENT_THREAD) => Ok(Some(Placement::Thread)),
        other => Err(CallError::setting("config->placement", other, PLACEMENTS).into()),
    }
}

/// The value of MEGAPIPE_PLACEMENT.
pub(crate) fn placement_of_environment() -> Result<Option<Placement>, CallFailure> {
    let Some(name) = variable("MEGAPIPE_PLACEMENT") else { return Ok(None) };
    let wrong =
        || CallError::setting("MEGAPIPE_PLACEMENT", &name, "must be inline, thread or core");
    Ok(Some(placement_named(&name).ok_or_else(wrong)?))
}

/// A placement by its name; `core` takes the next core.
pub(crate) fn placement_named(name: &str) -> Option<Placement> {
    match name {
        "inline" => Some(Placement::Inline),
        "thread" => Some(Placement::Thread),
        "core" => Some(Placement::Core(None)),
        _ => None,
    }
}

/// The server's settings by the fields of a configuration.
fn settings(
    config: &mp_config,
    addresses: Option<&NamedValue>,
    gateways: Option<&NamedValue>,
) -> Result<ServerConfig, CallFailure> {
    let mut settings = ServerConfig {
        connections: config.max_lwsockets.saturating_add(SLOTS_BESIDE_CONNECTIONS),
        ..ServerConfig::default()
    };
    for (name, part) in parts(addresses) {
        let parsed: Result<Prefixed, _> = part.parse();
        let parsed = parsed.map_err(|source| CallError::Address { name, source })?;
        settings.addresses.push((parsed.address, parsed.prefix_bits));
    }
    for (name, part) in parts(gateways) {
        let wrong = |_| CallError::setting(name, part, "must be IP addresses with commas between");
        settings.gateways.push(part.parse().map_err(wrong)?);
    }
    if config.mtu > 0 {
        let wrong = |_| CallError::setting("config->mtu", config.mtu, "must be at most 65535");
        settings.mtu = Some(u16::try_from(config.mtu).map_err(wrong)?);
    }
    if config.spin_us > 0 {
        settings.waits.spin = Duration::from_micros(config.spin_us.into());
    }
    settings.loopback = loopback(config)?;
    settings.shards = shards(config)?;
    Ok(settings)
}

/// Which TCP/IP has 127.0.0.0/8 and ::1: by a flag of the configuration, or by the environment, if
/// the program left the back end to it.
fn loopback(config: &mp_config) -> Result<LoopbackOwner, CallFailure> {
    const NAME: &str = "MEGAPIPE_LOOPBACK";
    if config.flags & MP_LOOPBACK_STACK != 0 {
        return Ok(LoopbackOwner::Stack);
    }
    let by_environment = config.backend == mp_backend::MP_BACKEND_DEFAULT as u32;
    let Some(name) = variable(NAME).filter(|_| by_environment) else {
        return Ok(LoopbackOwner::Kernel);
    };
    name.parse().map_err(|_| CallError::setting(NAME, &name, "must be kernel or stack").into())
}

/// Number of channels that will share the link; `None`: one for each of its queues.
fn shards(config: &mp_config) -> Result<Option<u16>, CallFailure> {
    const ALLOWED: &str = "must be 0 to 65535";
    let wrong = |name, value: &dyn Display| CallError::setting(name, value, ALLOWED);
    let by_environment = config.backend == mp_backend::MP_BACKEND_DEFAULT as u32;
    let text = match config.channels {
        0 if by_environment => variable("MEGAPIPE_CHANNELS"),
        _ => None,
    };
    let count: u16 = match text {
        Some(text) => text.parse().map_err(|_| wrong("MEGAPIPE_CHANNELS", &text))?,
        None => u16::try_from(config.channels)
            .map_err(|_| wrong("config->channels", &config.channels))?,
    };
    Ok((count > 0).then_some(count))
}

/// The items of a comma-separated list, each with the list's name.
fn parts(list: Option<&NamedValue>) -> impl Iterator<Item = (&'static str, &str)> {
    let parts = list.map(|list| list.text.split(',').map(|part| (list.name, part.trim())));
    parts.into_iter().flatten().filter(|(_, part)| !part.is_empty())
}

/// Runs `make` on the stack that was chosen.
pub(crate) fn on_stack<T>(
    wanted: &StackChoice,
    make: impl Fn(Backend) -> Result<T, sockets::CreateError>,
) -> Result<T, CallFailure> {
    match wanted {
        StackChoice::Local(options) => on(options, make),
        StackChoice::Service(address) => Ok(make(Backend::Service(address.clone()))?),
    }
}

/// Runs `make` on the network with these options, which is opened if it is not open yet.
pub(crate) fn on<T>(
    wanted: &NetworkOptions,
    make: impl Fn(Backend) -> Result<T, sockets::CreateError>,
) -> Result<T, CallFailure> {
    let mut networks = NETWORKS.lock().unwrap_or_else(PoisonError::into_inner);
    let on = |network: &LocalNetwork| make(Backend::Local(network.clone()));
    if let Some(place) = networks.iter().position(|(known, _)| known.is_same(wanted)) {
        match on(&networks[place].1) {
            Err(sockets::CreateError::Channel(CreateError::NoQueue))
                if !networks[place].1.is_named_elsewhere() =>
            {
                drop(networks.remove(place));
            }
            made => return Ok(made?),
        }
    }
    let mut notice = |text: &str| print(format_args!("{text}"));
    let network = LocalNetwork::open_noting(&wanted.link, wanted.settings.clone(), &mut notice);
    let network = network.map_err(|source| CallError::Network {
        name: wanted.link_named_by,
        link: wanted.link.clone(),
        source: Box::new(source),
    })?;
    let made = on(&network)?;
    if networks.len() == NETWORKS_MAX {
        networks.remove(0);
    }
    networks.push((wanted.clone(), network));
    Ok(made)
}

/// Removes a network from the table; channels that use it keep it.
pub(crate) fn forget(wanted: &NetworkOptions) {
    let mut networks = NETWORKS.lock().unwrap_or_else(PoisonError::into_inner);
    networks.retain(|(known, _)| !known.is_same(wanted));
}
