//! Settings of the library: variables of the environment, read once when it is loaded.
//!
//! `megapipe run` checks the same variables with [`PreloadSettings::read`] before it starts a
//! program. The program may clear its environment afterwards; exec restores them
//! (`calls/process.rs`).

use std::env::VarError;
use std::ffi::{CString, c_int};
use std::str::FromStr;

use megapipe::{
    LoopbackOwner, Placement, Prefixed, ServerConfig, ServiceAddress, UnknownLoopbackOwner,
};

use crate::rules::{PathRule, PathSelector};

/// The variables that are restored on exec.
pub const VARIABLES: [&str; 14] = [
    "MEGAPIPE_BACKEND",
    "MEGAPIPE_SERVICE",
    TOKEN,
    "MEGAPIPE_LINK",
    "MEGAPIPE_ADDRESS",
    "MEGAPIPE_GATEWAY",
    LOOPBACK,
    "MEGAPIPE_PLACEMENT",
    "MEGAPIPE_RULES",
    "MEGAPIPE_REPORT",
    "MEGAPIPE_FALL_BACK",
    "MEGAPIPE_REQUIRE",
    NO_FOLLOW,
    SHOW_ADDRESSES,
];

/// Variable that leaves the environment of new programs as it is.
const NO_FOLLOW: &str = "MEGAPIPE_NO_FOLLOW";

/// Variable that adds the stack's addresses to those of getifaddrs(3).
const SHOW_ADDRESSES: &str = "MEGAPIPE_SHOW_ADDRESSES";

/// Variable with the path of the library, by which exec preloads it again.
pub const LIBRARY: &str = "MEGAPIPE_PRELOAD";

/// Variable with the number of a token of the daemon, by which processes attach.
pub const TOKEN: &str = "MEGAPIPE_SESSION_FD";

/// Variable that says which TCP/IP has 127.0.0.0/8 and ::1.
pub const LOOPBACK: &str = "MEGAPIPE_LOOPBACK";

/// Links that a process can have.
const LINKS: [&str; 4] = ["memif:", "tap:", "packet:", "xdp:"];

/// The stack behind the sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreloadBackend {
    /// Linux's TCP, by the library's sockets.
    Kernel,
    /// The stack of this process, on a link.
    Local {
        /// As in `--link`.
        link: String,
        /// The settings of the stack.
        server: Box<ServerConfig>,
    },
    /// The stack of a daemon, which listens at this path.
    Service(ServiceAddress),
}

/// What the kernel serves beside what rules and the stack's reach give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelUse {
    /// Nothing else.
    Reach,
    /// Everything, if the stack cannot start (`--fall-back`).
    FallBack,
    /// TCP sockets by rules only (`--require stack`).
    RulesOnly,
}

/// The settings of a process.
#[derive(Debug, Clone)]
pub struct PreloadSettings {
    /// The stack.
    pub backend: PreloadBackend,
    /// Where it runs.
    pub placement: Placement,
    /// Which sockets belong to it.
    pub selector: PathSelector,
    /// What else the kernel serves.
    pub kernel_use: KernelUse,
    /// Where the report goes: a file's name, or `stderr`.
    pub report: Option<String>,
    /// exec restores the settings in a new environment.
    pub follows: bool,
    /// getifaddrs(3) has the stack's addresses, too.
    pub shows_addresses: bool,
    /// The number of the daemon's token.
    pub(crate) token: Option<c_int>,
    /// What exec restores, as `NAME=value`.
    pub(crate) restored: Vec<CString>,
    /// The path of the library.
    pub(crate) library: Option<String>,
}

/// Why a variable was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} = {value}: {reason}")]
pub struct PreloadSettingError {
    variable: &'static str,
    value: String,
    reason: String,
}

fn wrong(variable: &'static str, value: &str, reason: impl ToString) -> PreloadSettingError {
    PreloadSettingError { variable, value: value.to_owned(), reason: reason.to_string() }
}

impl PreloadSettings {
    /// Reads the settings from variables. `None`: no back end is named, so the library does
    /// nothing.
    ///
    /// # Errors
    /// [`PreloadSettingError`] names the variable and what it may be.
    pub fn read(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, PreloadSettingError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let Some(backend) = variable("MEGAPIPE_BACKEND") else { return Ok(None) };
        let rules = variable("MEGAPIPE_RULES").unwrap_or_default();
        let rules = list(&rules, ';').map(PathRule::from_str).collect::<Result<_, _>>();
        let rules = rules.map_err(|error| {
            let value = variable("MEGAPIPE_RULES").unwrap_or_default();
            wrong("MEGAPIPE_RULES", &value, error)
        })?;
        let (backend, addresses, gateways) = match backend.as_str() {
            "kernel" => (PreloadBackend::Kernel, Vec::new(), Vec::new()),
            "local" => local(&variable)?,
            "service" => service(&variable)?,
            other => {
                return Err(wrong("MEGAPIPE_BACKEND", other, "must be kernel, local or service"));
            }
        };
        let is_linux = backend == PreloadBackend::Kernel;
        let has_loopback = loopback(&variable)? == LoopbackOwner::Stack;
        if has_loopback && is_linux {
            return Err(wrong(LOOPBACK, "stack", "the back end kernel has no stack"));
        }
        let selector = PathSelector { rules, addresses, gateways, has_loopback, is_linux };
        let restored = VARIABLES.iter().chain(&[LIBRARY]).filter_map(|name| {
            let value = variable(name)?;
            CString::new(format!("{name}={value}")).ok()
        });
        Ok(Some(Self {
            backend,
            placement: placement(variable("MEGAPIPE_PLACEMENT"))?,
            selector,
            kernel_use: kernel_use(&variable)?,
            report: variable("MEGAPIPE_REPORT"),
            follows: !is_set(&variable, NO_FOLLOW)?,
            shows_addresses: is_set(&variable, SHOW_ADDRESSES)?,
            token: token(variable(TOKEN))?,
            restored: restored.collect(),
            library: variable(LIBRARY),
        }))
    }
}

impl PreloadSettings {
    /// Reads the settings from the environment of the process.
    ///
    /// # Errors
    /// As [`PreloadSettings::read`]; a value that is not UTF-8 is wrong, too.
    pub fn read_environment() -> Result<Option<Self>, PreloadSettingError> {
        for name in VARIABLES {
            if let Err(VarError::NotUnicode(value)) = std::env::var(name) {
                return Err(wrong(name, &value.to_string_lossy(), "must be UTF-8"));
            }
        }
        Self::read(|name| std::env::var(name).ok())
    }
}

type Addresses = Vec<(std::net::IpAddr, u8)>;

fn local(
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<(PreloadBackend, Addresses, Vec<std::net::IpAddr>), PreloadSettingError> {
    let named = |name| variable(name).unwrap_or_default();
    let link = named("MEGAPIPE_LINK");
    if !LINKS.iter().any(|kind| link.starts_with(kind)) {
        let reason = "the back end local needs a link memif:SOCKET, tap:DEVICE, packet:INTERFACE \
                      or xdp:INTERFACE";
        return Err(wrong("MEGAPIPE_LINK", &link, reason));
    }
    let mut server = ServerConfig::default();
    (server.addresses, server.gateways) = networks(variable)?;
    server.loopback = loopback(variable)?;
    if server.addresses.is_empty() {
        let reason = "the stack needs an address of its own, for example 10.0.0.2/24";
        return Err(wrong("MEGAPIPE_ADDRESS", "", reason));
    }
    server.check().map_err(|error| wrong("MEGAPIPE_ADDRESS", &named("MEGAPIPE_ADDRESS"), error))?;
    let (addresses, gateways) = (server.addresses.clone(), server.gateways.clone());
    Ok((PreloadBackend::Local { link, server: Box::new(server) }, addresses, gateways))
}

/// The daemon, and what its stack reaches: `megapipe run` asks it for that.
fn service(
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<(PreloadBackend, Addresses, Vec<std::net::IpAddr>), PreloadSettingError> {
    let (addresses, gateways) = networks(variable)?;
    if addresses.is_empty() {
        let reason = "the back end service needs the addresses of the daemon's stack here; \
                      `megapipe run` asks the daemon for them";
        return Err(wrong("MEGAPIPE_ADDRESS", "", reason));
    }
    let path = variable("MEGAPIPE_SERVICE");
    let address = path.map_or_else(ServiceAddress::default, ServiceAddress::new);
    Ok((PreloadBackend::Service(address), addresses, gateways))
}

fn kernel_use(
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<KernelUse, PreloadSettingError> {
    const REQUIRE: &str = "MEGAPIPE_REQUIRE";
    let falls_back = falls_back(variable)?;
    match variable(REQUIRE).as_deref() {
        None if falls_back => Ok(KernelUse::FallBack),
        None => Ok(KernelUse::Reach),
        Some("stack") if falls_back => {
            Err(wrong(REQUIRE, "stack", "MEGAPIPE_FALL_BACK (--fall-back) is the contrary"))
        }
        Some("stack") => Ok(KernelUse::RulesOnly),
        Some(other) => Err(wrong(REQUIRE, other, "must be stack")),
    }
}

/// Whether a variable lets sockets go on in the kernel if the stack cannot start.
///
/// # Errors
/// [`PreloadSettingError`] names the variable and what it may be.
pub fn falls_back(variable: impl Fn(&str) -> Option<String>) -> Result<bool, PreloadSettingError> {
    is_set(&|name: &str| variable(name).filter(|value| !value.is_empty()), "MEGAPIPE_FALL_BACK")
}

fn is_set(
    variable: &impl Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<bool, PreloadSettingError> {
    match variable(name).as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(wrong(name, other, "must be 0 or 1")),
    }
}

fn token(named: Option<String>) -> Result<Option<c_int>, PreloadSettingError> {
    let Some(text) = named else { return Ok(None) };
    match text.parse() {
        Ok(0..=2) | Err(_) => {
            Err(wrong(TOKEN, &text, "must be the number of a descriptor from 3 on"))
        }
        Ok(number) => Ok(Some(number)),
    }
}

/// The stack's addresses and gateways.
fn networks(
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<(Addresses, Vec<std::net::IpAddr>), PreloadSettingError> {
    let (mut addresses, mut gateways) = (Vec::new(), Vec::new());
    let text = variable("MEGAPIPE_ADDRESS").unwrap_or_default();
    for part in list(&text, ',') {
        let parsed: Prefixed =
            part.parse().map_err(|error| wrong("MEGAPIPE_ADDRESS", &text, error))?;
        addresses.push((parsed.address, parsed.prefix_bits));
    }
    let text = variable("MEGAPIPE_GATEWAY").unwrap_or_default();
    for part in list(&text, ',') {
        let reason = "must be IP addresses with commas between";
        gateways.push(part.parse().map_err(|_| wrong("MEGAPIPE_GATEWAY", &text, reason))?);
    }
    Ok((addresses, gateways))
}

fn loopback(
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<LoopbackOwner, PreloadSettingError> {
    let Some(name) = variable(LOOPBACK) else { return Ok(LoopbackOwner::default()) };
    name.parse().map_err(|error: UnknownLoopbackOwner| wrong(LOOPBACK, &name, error))
}

/// A program that sleeps or computes expects its kernel to acknowledge meanwhile, so the stack has
/// a thread unless the variable says otherwise.
fn placement(named: Option<String>) -> Result<Placement, PreloadSettingError> {
    match named.as_deref() {
        None | Some("thread") => Ok(Placement::Thread),
        Some("inline") => Ok(Placement::Inline),
        Some("core") => Ok(Placement::Core(None)),
        Some(other) => Err(wrong("MEGAPIPE_PLACEMENT", other, "must be inline, thread or core")),
    }
}

fn list(text: &str, separator: char) -> impl Iterator<Item = &str> {
    text.split(separator).map(str::trim).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<PreloadSettings>, PreloadSettingError> {
        PreloadSettings::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn without_a_backend_the_library_does_nothing() {
        assert!(read(&[("MEGAPIPE_LINK", "tap:x")]).unwrap().is_none());
    }

    #[test]
    fn local_settings_are_read() {
        let settings = read(&[
            ("MEGAPIPE_BACKEND", "local"),
            ("MEGAPIPE_LINK", "memif:/tmp/x,role=server"),
            ("MEGAPIPE_ADDRESS", "10.9.0.1/24, fd00::1/64"),
            ("MEGAPIPE_RULES", "kernel listen *:22; stack listen *:*"),
            (LOOPBACK, "stack"),
        ]);
        let settings = settings.unwrap().unwrap();
        assert_eq!((settings.selector.addresses.len(), settings.selector.rules.len()), (2, 2));
        assert_eq!((settings.placement, settings.restored.len()), (Placement::Thread, 5));
        let PreloadBackend::Local { server, .. } = settings.backend else { panic!() };
        assert_eq!((server.loopback, settings.selector.has_loopback), (LoopbackOwner::Stack, true));
    }

    #[test]
    fn invalid_variable_is_named_with_its_values() {
        let local = ("MEGAPIPE_BACKEND", "local");
        let link = ("MEGAPIPE_LINK", "tap:x");
        for (variables, text) in [
            (
                vec![("MEGAPIPE_BACKEND", "servise")],
                "MEGAPIPE_BACKEND = servise: must be kernel, local or service",
            ),
            (
                vec![("MEGAPIPE_BACKEND", "service")],
                "MEGAPIPE_ADDRESS = : the back end service needs the addresses",
            ),
            (vec![local], "MEGAPIPE_LINK = : the back end local needs a link"),
            (vec![local, ("MEGAPIPE_LINK", "eth0")], "needs a link memif:SOCKET, tap:DEVICE"),
            (vec![local, link], "MEGAPIPE_ADDRESS = : the stack needs an address"),
            (vec![local, link, ("MEGAPIPE_ADDRESS", "10.0.0.2")], "is not ADDRESS/BITS"),
            (
                vec![("MEGAPIPE_BACKEND", "kernel"), ("MEGAPIPE_RULES", "stack listen 80")],
                "\"80\" must be",
            ),
            (
                vec![("MEGAPIPE_BACKEND", "kernel"), ("MEGAPIPE_PLACEMENT", "here")],
                "must be inline, thread or core",
            ),
            (
                vec![("MEGAPIPE_BACKEND", "kernel"), ("MEGAPIPE_FALL_BACK", "yes")],
                "MEGAPIPE_FALL_BACK = yes: must be 0 or 1",
            ),
            (
                vec![("MEGAPIPE_BACKEND", "kernel"), ("MEGAPIPE_REQUIRE", "kernel")],
                "MEGAPIPE_REQUIRE = kernel: must be stack",
            ),
            (
                vec![
                    ("MEGAPIPE_BACKEND", "kernel"),
                    ("MEGAPIPE_REQUIRE", "stack"),
                    ("MEGAPIPE_FALL_BACK", "1"),
                ],
                "is the contrary",
            ),
            (
                vec![local, link, ("MEGAPIPE_ADDRESS", "10.0.0.2/24"), (LOOPBACK, "ours")],
                "MEGAPIPE_LOOPBACK = ours: must be kernel or stack",
            ),
            (
                vec![("MEGAPIPE_BACKEND", "kernel"), (LOOPBACK, "stack")],
                "the back end kernel has no stack",
            ),
        ] {
            let error = read(&variables).expect_err(text).to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
