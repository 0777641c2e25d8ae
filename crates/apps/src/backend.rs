//! Back end selection of servers and loads: command-line options, and the network that they
//! describe.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
pub use megapipe::Prefixed;
use megapipe::{
    Backend, DriverChoice, DriverReport, LocalNetwork, LoopbackOwner, NetworkError, Placement,
    ServerConfig, ServiceAddress,
};
use siphasher::sip128::SipHasher13;

use crate::limits;
use crate::number::within;
use crate::serve::CpuList;
use crate::threads::allowed_cpus;

/// A back end by the name that the command line uses.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// Linux
    #[default]
    Kernel,
    /// Our own TCP/IP stack in this process, on the link that --link names
    Local,
    /// Our own TCP/IP stack in the daemon megapiped, which many processes share
    Service,
}

/// A placement by the name that the command line uses.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PlacementName {
    /// Inside the channel's own dispatch
    #[default]
    Inline,
    /// On a second thread on the same processor
    Thread,
    /// On a processor of its own
    Core,
}

/// How long a stack of this process polls its link without work.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Spin {
    /// So many microseconds at most.
    Micros(u32),
    /// Without end.
    Always,
}

impl Default for Spin {
    fn default() -> Self {
        Self::Micros(limits::SPIN_US_DEFAULT)
    }
}

impl FromStr for Spin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "always" {
            return Ok(Self::Always);
        }
        let micros = text.parse().ok().filter(|micros| *micros <= limits::SPIN_US_MAX);
        let wanted = || format!("microseconds up to {}, or `always`", limits::SPIN_US_MAX);
        micros.map(Self::Micros).ok_or_else(wanted)
    }
}

/// The options that choose a back end; servers and loads flatten them into their own.
#[derive(Clone, Debug, Default, Args)]
pub struct BackendArgs {
    /// Implementation of TCP and UDP
    #[arg(help_heading = "Back end", long, value_enum, default_value_t)]
    pub backend: BackendName,

    /// The service back end's daemon: the path of its socket
    ///
    /// Without it the path in MEGAPIPE_SERVICE, else /run/megapipe/megapiped.sock.
    #[arg(help_heading = "Back end", long, value_name = "PATH")]
    pub service: Option<PathBuf>,

    /// Use the kernel if the daemon of the service back end gives no session at the start
    ///
    /// A warning names the reason. Without this option it is an error.
    #[arg(help_heading = "Back end", long)]
    pub fall_back: bool,

    /// The local back end's link, such as tap:tap0, memif:/run/memif.sock or xdp:eth0
    #[arg(
        help_heading = "Back end",
        long,
        value_name = "LINK",
        required_if_eq("backend", "local")
    )]
    pub link: Option<String>,

    /// The local back end's address on the link, ADDRESS/BITS; may be given several times
    #[arg(help_heading = "Back end", long, value_name = "ADDRESS/BITS")]
    pub address: Vec<Prefixed>,

    /// The next hop for everything that is not on the link
    #[arg(help_heading = "Back end", long, value_name = "IP")]
    pub gateway: Vec<IpAddr>,

    /// Which TCP/IP has 127.0.0.0/8 and ::1: kernel or stack
    ///
    /// With `stack` they connect the sockets of the local back end's stack with each other. On
    /// --backend service it is an option of megapiped.
    #[arg(help_heading = "Back end", long, value_name = "kernel|stack")]
    pub loopback: Option<LoopbackOwner>,

    /// Largest IP packet in bytes, if smaller than the link's
    #[arg(help_heading = "Back end",
          long, value_name = "BYTES", value_parser = within(576..=u16::MAX))]
    pub mtu: Option<u16>,

    /// Microseconds that the stack polls its link after the last frame before it sleeps, at most
    ///
    /// It sleeps at once where polling is found to cost more CPU time than it saves. `always`: it
    /// never sleeps, for a load generator that has its core for itself. Without it 50.
    #[arg(help_heading = "Back end", long, value_name = "MICROSECONDS|always")]
    pub spin: Option<Spin>,

    /// Where the local back end's stack runs
    #[arg(help_heading = "Back end", long, value_enum, default_value_t)]
    pub placement: PlacementName,

    /// Processors for --placement core, one for each channel in order, such as 2,3
    ///
    /// Without it each stack runs on the processor after its channel's.
    #[arg(help_heading = "Back end", long, value_name = "LIST")]
    pub server_cpus: Option<CpuList>,

    /// A word from which the hash is made that spreads flows over channels
    ///
    /// Two ends of a link that are given the same word, and have as many channels and queues, agree
    /// on each flow's place, so that no frame has to be handed from one channel to another. Without
    /// it the hash is random, and no peer can aim at one channel.
    #[arg(help_heading = "Back end", long, value_name = "WORD")]
    pub steer_key: Option<String>,
}

/// Variable of the environment with the path of the daemon's socket.
pub const SERVICE_VARIABLE: &str = "MEGAPIPE_SERVICE";

/// Why the back end cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// An option is missing or has no meaning.
    #[error("{0}")]
    Option(&'static str),
    /// The link cannot be opened.
    #[error("--link {link}: {source}")]
    Link {
        /// As it was given.
        link: String,
        /// What is missing.
        source: NetworkError,
    },
    /// `--server-cpus` names a processor that this process may not run on.
    #[error(
        "--server-cpus: processor {cpu} is not among those that this process may use ({allowed})"
    )]
    ServerCpu {
        /// The processor.
        cpu: usize,
        /// Those that it could have been.
        allowed: String,
    },
    /// An option of the stack is out of range, or contradicts another.
    #[error("--{0}")]
    Setting(String),
}

impl BackendError {
    /// Whether the arguments are at fault, and not this machine.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Option(_) | Self::ServerCpu { .. } | Self::Setting(_) => true,
            Self::Link { source, .. } => source.is_configuration(),
        }
    }
}

/// Writes a warning if the kernel serves a channel in place of the service.
pub(crate) fn warn_of_fall_back(report: &DriverReport) {
    if let Some(why) = &report.fallen_back_from_service {
        notice(&format!("warning: {why}; the kernel serves in place of the service"));
    }
}

/// Shows a person what a link waits for.
fn notice(text: &str) {
    // Standard error that is closed is no reason to fail.
    let _ = writeln!(std::io::stderr(), "megapipe: {text}");
}

impl BackendArgs {
    /// Where the stack of the channel with this index runs.
    #[must_use]
    pub fn placement(&self, index: usize) -> Placement {
        match self.placement {
            PlacementName::Inline => Placement::Inline,
            PlacementName::Thread => Placement::Thread,
            PlacementName::Core => {
                let cpus = self.server_cpus.as_ref().map_or(&[][..], CpuList::as_slice);
                Placement::Core(cpus.get(index).copied())
            }
        }
    }

    /// The daemon of the service back end: by option, by the environment, or the usual one.
    fn service_address(&self) -> ServiceAddress {
        let by_environment = || std::env::var_os(SERVICE_VARIABLE).filter(|path| !path.is_empty());
        let path = self.service.clone().or_else(|| by_environment().map(PathBuf::from));
        path.map_or_else(ServiceAddress::default, ServiceAddress::new)
    }

    /// Opens what the options name, for as many channels as `channels` says, which hold
    /// `connections` each.
    ///
    /// # Errors
    /// [`BackendError`] names the option.
    pub fn open(&self, connections: u32, channels: usize) -> Result<Backend, BackendError> {
        if self.backend != BackendName::Local {
            self.has_nothing_of_a_stack()?;
        }
        if self.service.is_some() && self.backend != BackendName::Service {
            return Err(BackendError::Option("--service: only --backend service has a daemon"));
        }
        if self.fall_back && self.backend != BackendName::Service {
            return Err(BackendError::Option("--fall-back: only --backend service has a daemon"));
        }
        if self.server_cpus.is_some() && self.placement != PlacementName::Core {
            return Err(BackendError::Option("--server-cpus: only --placement core has its own"));
        }
        self.check_server_cpus()?;
        let Some(link) = &self.link else {
            return match self.backend {
                BackendName::Kernel => Ok(Backend::Kernel),
                BackendName::Service => Ok(Backend::Service(self.service_address())),
                BackendName::Local => Err(BackendError::Option("--backend local needs --link")),
            };
        };
        let mut settings = ServerConfig {
            addresses: self.address.iter().map(|it| (it.address, it.prefix_bits)).collect(),
            gateways: self.gateway.clone(),
            loopback: self.loopback.unwrap_or_default(),
            mtu: self.mtu,
            connections: connections.saturating_add(limits::SLOTS_BESIDE_CONNECTIONS),
            shards: Some(u16::try_from(channels).unwrap_or(u16::MAX)),
            steering_key: self.steer_key.as_deref().map(key_of),
            ..ServerConfig::default()
        };
        match self.spin.unwrap_or_default() {
            Spin::Micros(micros) => settings.waits.spin = Duration::from_micros(micros.into()),
            Spin::Always if self.placement == PlacementName::Thread => {
                return Err(BackendError::Option(
                    "--spin always: with --placement thread the program needs the same processor",
                ));
            }
            Spin::Always => settings.waits.never_sleeps = true,
        }
        let network =
            LocalNetwork::open_noting(link, settings, &mut notice).map_err(
                |source| match source {
                    // The settings have their options' names.
                    NetworkError::Settings(error) => BackendError::Setting(error.to_string()),
                    source => BackendError::Link { link: link.clone(), source },
                },
            )?;
        Ok(Backend::Local(network))
    }
}

impl BackendArgs {
    /// Refuses a link whose device would be made: a report must not change the machine.
    pub(crate) fn check_device(&self) -> Result<(), BackendError> {
        let Some(link) = &self.link else { return Ok(()) };
        let failed = |source| BackendError::Link { link: link.clone(), source };
        LocalNetwork::check_device(link).map_err(failed)
    }

    /// Refuses a driver that the back end does not have.
    ///
    /// # Errors
    /// [`BackendError::Option`].
    pub(crate) fn check_driver(&self, driver: DriverChoice) -> Result<(), BackendError> {
        let why = match self.backend {
            BackendName::Local => "--driver uring: --backend local takes auto or epoll",
            BackendName::Service => "--driver uring: --backend service takes auto or epoll",
            BackendName::Kernel => return Ok(()),
        };
        if driver == DriverChoice::Uring { Err(BackendError::Option(why)) } else { Ok(()) }
    }

    /// Whether our own stack may have an address: false if the options give it others.
    pub(crate) fn may_have(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        // On Ethernet the stack has a link-local IPv6 address without being given it.
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let has_loopback = self.loopback == Some(LoopbackOwner::Stack);
        self.backend != BackendName::Local
            || self.address.is_empty()
            || (ip.is_loopback() && has_loopback)
            || ip.is_unspecified()
            || is_link_local
            || self.address.iter().any(|own| own.address == ip)
    }

    /// The values of `--address`, for an error.
    pub(crate) fn addresses_given(&self) -> String {
        let given = self.address.iter().map(|own| format!("{}/{}", own.address, own.prefix_bits));
        given.collect::<Vec<_>>().join(", ")
    }

    fn check_server_cpus(&self) -> Result<(), BackendError> {
        let Some(cpus) = &self.server_cpus else { return Ok(()) };
        let allowed = allowed_cpus();
        match cpus.as_slice().iter().find(|cpu| !allowed.contains(cpu)) {
            Some(&cpu) => {
                Err(BackendError::ServerCpu { cpu, allowed: CpuList::from(allowed).to_string() })
            }
            None => Ok(()),
        }
    }

    /// No option asks for what only our own stack has.
    fn has_nothing_of_a_stack(&self) -> Result<(), BackendError> {
        let asked = [
            (
                self.placement != PlacementName::Inline,
                "--placement: only --backend local has a stack to place",
            ),
            (self.link.is_some(), "--link: only --backend local has a link"),
            (!self.address.is_empty(), "--address: only the local back end has its own"),
            (
                !self.gateway.is_empty(),
                "--gateway: the kernel's routes hold without --backend local",
            ),
            (
                self.loopback.is_some(),
                "--loopback: only --backend local has a stack here; megapiped has the option, too",
            ),
            (self.mtu.is_some(), "--mtu: only --backend local has its own"),
            (self.spin.is_some(), "--spin: only --backend local polls a link"),
            (self.steer_key.is_some(), "--steer-key: only --backend local steers by its own hash"),
        ];
        match asked.into_iter().find(|(is_asked, _)| *is_asked) {
            Some((_, why)) => Err(BackendError::Option(why)),
            None => Ok(()),
        }
    }
}

/// A key from a word.
fn key_of(word: &str) -> [u8; 16] {
    SipHasher13::new().hash(word.as_bytes()).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_key_and_another_word_another() {
        assert_eq!(key_of("blue"), key_of("blue"));
        assert_ne!(key_of("blue"), key_of("green"));
    }

    #[test]
    fn each_channels_stack_has_the_processor_of_its_place_in_the_list() {
        let cpus = Some("3,5".parse().unwrap());
        let core = BackendArgs {
            placement: PlacementName::Core,
            server_cpus: cpus,
            ..BackendArgs::default()
        };
        let places = [Some(3), Some(5), None].map(Placement::Core);
        assert_eq!([0, 1, 2].map(|index| core.placement(index)), places);
        assert_eq!(BackendArgs::default().placement(1), Placement::Inline);
    }

    #[test]
    fn default_spin_matches_the_option() {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            backend: BackendArgs,
        }
        use clap::{CommandFactory as _, Parser as _};
        let command = Program::command();
        let spin = command.get_arguments().find(|arg| arg.get_id() == "spin").unwrap();
        let said = spin.get_long_help().unwrap().to_string();
        assert!(said.ends_with(&format!("Without it {}.", limits::SPIN_US_DEFAULT)), "{said}");
        let parsed = |args: &[&str]| Program::try_parse_from(args).unwrap().backend.spin;
        assert_eq!((parsed(&["p"]), parsed(&["p", "--spin", "0"])), (None, Some(Spin::Micros(0))));
        assert_eq!(parsed(&["p", "--spin", "always"]), Some(Spin::Always));
        for wrong in ["1000001", "-1", "never", ""] {
            let error = Program::try_parse_from(["p", &format!("--spin={wrong}")]).err();
            let text = error.expect("it is refused").to_string();
            assert!(text.contains("microseconds up to 1000000, or `always`"), "{text}");
        }
    }

    #[test]
    fn stack_may_have_given_link_local_and_its_loopback_addresses() {
        let may_have = |args: &BackendArgs, ip: &str| args.may_have(ip.parse().unwrap());
        let address = vec!["10.0.0.1/8".parse().unwrap()];
        let backend = BackendName::Local;
        let local = BackendArgs { backend, address, ..BackendArgs::default() };
        for ip in ["10.0.0.1", "::ffff:10.0.0.1", "0.0.0.0", "::", "fe80::1"] {
            assert!(may_have(&local, ip), "{ip}");
        }
        for ip in ["10.0.0.2", "fd00::1", "127.0.0.1", "::1"] {
            assert!(!may_have(&local, ip), "{ip}");
        }
        let with_loopback = BackendArgs { loopback: Some(LoopbackOwner::Stack), ..local };
        assert!(may_have(&with_loopback, "127.0.0.1") && may_have(&with_loopback, "::1"));
        assert!(!may_have(&with_loopback, "10.0.0.2"));
    }

    #[test]
    fn options_that_contradict_each_other_are_named() {
        let kernel = BackendArgs::default();
        assert_eq!(kernel.open(1, 1).unwrap(), Backend::Kernel);
        let link = BackendArgs { link: Some("pair".into()), ..BackendArgs::default() };
        assert!(link.open(1, 1).unwrap_err().to_string().starts_with("--link"));
        let address = vec!["10.0.0.1/8".parse().unwrap()];
        let with_address = BackendArgs { address, ..BackendArgs::default() };
        assert!(with_address.open(1, 1).unwrap_err().to_string().starts_with("--address"));
        let gateway = vec!["10.0.0.1".parse().unwrap()];
        let gateway = BackendArgs { gateway, ..BackendArgs::default() };
        assert!(gateway.open(1, 1).unwrap_err().to_string().starts_with("--gateway"));
        let mtu = BackendArgs { mtu: Some(1500), ..BackendArgs::default() };
        assert!(mtu.open(1, 1).unwrap_err().to_string().starts_with("--mtu"));
        // Also one that is the default.
        let spin = BackendArgs { spin: Some(Spin::default()), ..BackendArgs::default() };
        assert!(spin.open(1, 1).unwrap_err().to_string().starts_with("--spin"));
        let polls = BackendArgs {
            backend: BackendName::Local,
            link: Some("pair".into()),
            placement: PlacementName::Thread,
            spin: Some(Spin::Always),
            ..BackendArgs::default()
        };
        assert!(polls.open(1, 1).unwrap_err().to_string().starts_with("--spin always"));
        let key = BackendArgs { steer_key: Some("blue".to_owned()), ..BackendArgs::default() };
        assert!(key.open(1, 1).unwrap_err().to_string().starts_with("--steer-key"));
        let service = BackendArgs { service: Some("/tmp/x".into()), ..BackendArgs::default() };
        assert!(service.open(1, 1).unwrap_err().to_string().starts_with("--service"));
        let service = BackendArgs { backend: BackendName::Service, ..service };
        let address = ServiceAddress::new("/tmp/x");
        assert_eq!(service.open(1, 1).unwrap(), Backend::Service(address));
        let link = BackendArgs { link: Some("pair".into()), ..service };
        assert!(link.open(1, 1).unwrap_err().to_string().starts_with("--link"));
        let core = BackendArgs { placement: PlacementName::Core, ..BackendArgs::default() };
        assert!(core.open(1, 1).unwrap_err().to_string().starts_with("--placement"));
        let cpus = Some("1".parse().unwrap());
        let cpus = BackendArgs { server_cpus: cpus, ..BackendArgs::default() };
        assert!(cpus.open(1, 1).unwrap_err().to_string().starts_with("--server-cpus"));
        let local = BackendArgs { backend: BackendName::Local, ..BackendArgs::default() };
        assert!(local.open(1, 1).unwrap_err().to_string().contains("needs --link"));
    }
}
