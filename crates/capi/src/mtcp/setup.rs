//! Creates a network from a configuration: `mtcp_init`, the other calls about the whole process,
//! and contexts.
//!
//! `mtcp_init` reads and checks a file; the link is opened with the first context, because programs
//! for mTCP change values in between (`mtcp_setconf`).
//!
//! Invariant: contexts of one configuration share one link, with a shard for each of `num_cores`;
//! `crate::network` keeps it.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::{self, Read};
use std::mem;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use channel::{Backend, Counters, Placement, ServerConfig};
use libc::in_addr_t;
use sockets::Context;

use super::conf::{BUFFER_BYTES_MAX, Conf, ConfValues, Io};
use super::context::{self, Sources, mctx_t, with_context};
use super::tables;
use crate::border::{caught, finish, status};
use crate::error::{CallError, CallFailure, WithCauses, print, set_last};
use crate::limits::{
    MTCP_BUFFERS_MAX, MTCP_BUFFERS_MIN, MTCP_DESCRIPTORS_BESIDE, MTCP_FILE_BYTES_MAX,
};
use crate::network::{self, NetworkOptions, StackChoice};

/// Paths of mTCP's tables, relative to the program's working directory.
const ROUTE_FILE: &str = "config/route.conf";
const ARP_FILE: &str = "config/arp.conf";

/// Variable of the environment: every context prints its counters when it ends.
const STATS_VARIABLE: &str = "MEGAPIPE_STATS";

/// Values that a program may read and change.
#[allow(non_camel_case_types, reason = "the name in C")]
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub struct mtcp_conf {
    /// Contexts, one for each core.
    pub num_cores: c_int,
    /// Connections of a context.
    pub max_concurrency: c_int,
    /// Receive buffers of a context.
    pub max_num_buffers: c_int,
    /// Bytes of a connection's receive buffer.
    pub rcvbuf_size: c_int,
    /// Bytes of a connection's send buffer.
    pub sndbuf_size: c_int,
    /// Seconds in TIME-WAIT.
    pub tcp_timewait: c_int,
    /// Seconds until a silent peer's connection is dropped; -1: never.
    pub tcp_timeout: c_int,
}

/// The process's configuration.
struct MtcpSetup {
    conf: Option<Conf>,
    is_initialised: bool,
    /// The TCP implementation, since the first context.
    carrier: Option<TcpProvider>,
}

/// The TCP implementation of contexts.
#[derive(Debug, Clone)]
enum TcpProvider {
    Kernel,
    Stack(StackChoice),
}

static SETUP: Mutex<MtcpSetup> = Mutex::new(MtcpSetup::NEW);

fn setup() -> MutexGuard<'static, MtcpSetup> {
    // A panicking thread leaves it complete: each field is replaced by one store.
    SETUP.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MtcpSetup {
    const NEW: Self = Self { conf: None, is_initialised: false, carrier: None };

    /// Removes the network of earlier contexts from the table of networks.
    fn forget_network(&mut self) {
        if let Some(TcpProvider::Stack(StackChoice::Local(wanted))) = self.carrier.take() {
            network::forget(&wanted);
        }
    }

    fn conf(&mut self) -> &mut Conf {
        self.conf.get_or_insert_with(|| Conf::new(cores()))
    }
}

/// Cores of the machine, as far as they are numbered.
fn cores() -> c_int {
    // SAFETY: asks for a number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    c_int::try_from(count).unwrap_or(1).max(1)
}

/// Reads the configuration file. Warnings go to standard error, as mTCP's own do: a program that
/// was written for mTCP has no other way to see them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_init(config_file: *const c_char) -> c_int {
    let init = || {
        if config_file.is_null() {
            return Err(CallError::Null("config_file").into());
        }
        // SAFETY: the program promises text that ends with a NUL.
        let path = unsafe { CStr::from_ptr(config_file) };
        init_from(Path::new(OsStr::from_bytes(path.to_bytes())))
    };
    let result = caught(init);
    if let Err(failure) = &result {
        print(format_args!("mtcp_init: {}", WithCauses(failure.why())));
    }
    status("mtcp_init", result)
}

fn init_from(path: &Path) -> Result<(), CallFailure> {
    let mut setup = setup();
    // Of an earlier file only the values count, which the program may have changed since.
    let mut conf = Conf { numbers: setup.conf().numbers, ..Conf::new(cores()) };
    let failed = |reason: String| CallError::File { path: path.display().to_string(), reason };
    let text = text_of(path).map_err(|error| failed(error.to_string()))?;
    conf.read(&text).map_err(|error| failed(error.to_string()))?;
    read_tables(&mut conf)?;
    carrier(&conf)?;
    for warning in mem::take(&mut conf.warnings) {
        print(format_args!("{}: {warning}", path.display()));
    }
    setup.forget_network();
    *setup = MtcpSetup { conf: Some(conf), is_initialised: true, carrier: None };
    Ok(())
}

fn text_of(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MTCP_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MTCP_FILE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    // A comment may be in any encoding.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Routes to the only device follow from the address's prefix and the gateway, and neighbours are
/// found by ARP. So the tables are read and checked, and entries without effect are warned of.
fn read_tables(conf: &mut Conf) -> Result<(), CallFailure> {
    let failed = |path: &str, reason: String| CallError::File { path: path.to_owned(), reason };
    if let Ok(text) = text_of(Path::new(ROUTE_FILE)) {
        let table = tables::routes(&text).map_err(|why| failed(ROUTE_FILE, why.to_string()))?;
        warn_of_count(conf, ROUTE_FILE, (table.stated, table.found));
        // Gateways first: they determine what else is reached.
        let (gateways, others): (Vec<_>, Vec<_>) =
            table.entries.into_iter().partition(|route| route.prefix.1 == 0);
        for route in gateways.into_iter().chain(others) {
            take_route(conf, &route);
        }
    }
    if let Ok(text) = text_of(Path::new(ARP_FILE)) {
        let table = tables::neighbours(&text).map_err(|why| failed(ARP_FILE, why.to_string()))?;
        warn_of_count(conf, ARP_FILE, (table.stated, table.found));
        for neighbour in table.entries {
            let ((prefix, bits), mac) = (neighbour.prefix, neighbour.mac);
            let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
            conf.warnings.push(format!(
                "{ARP_FILE}: {prefix}/{bits} at {mac} has no effect: neighbours are asked \
                 for their address"
            ));
        }
    }
    Ok(())
}

fn warn_of_count(conf: &mut Conf, path: &str, (stated, found): (usize, usize)) {
    if stated < found {
        conf.warn(format_args!("{path}: {stated} entries are stated: what follows is left out"));
    } else if stated > found {
        conf.warn(format_args!("{path}: {stated} entries are stated, there are {found}"));
    }
}

/// `GATEWAY/0 PORT` sets the gateway, if it is not set. A route to a prefix on the link has no
/// effect.
fn take_route(conf: &mut Conf, route: &tables::RouteEntry) {
    let (prefix, bits) = route.prefix;
    let device = &route.device;
    let why = if !conf.has_port(device) {
        "no port has this name"
    } else if bits == 0 && !prefix.is_unspecified() {
        let same_family = |gateway: &IpAddr| gateway.is_ipv4() == prefix.is_ipv4();
        match conf.gateways.iter().find(|gateway| same_family(gateway)) {
            Some(gateway) if *gateway != prefix => "the gateway is another one",
            Some(_) => return,
            None => return conf.gateways.push(prefix),
        }
    } else if is_known_way(conf, route.prefix) {
        return;
    } else {
        "the address and the gateway say what is reached"
    };
    conf.warn(format_args!("{ROUTE_FILE}: {prefix}/{bits} by {device} has no effect: {why}"));
}

/// Whether a prefix is on the link by a local address, or reached by a gateway. Links that share an
/// interface with Linux provide both.
fn is_known_way(conf: &Conf, (prefix, bits): (IpAddr, u8)) -> bool {
    let is_within = |&(address, length): &(IpAddr, u8)| {
        let (one, other, width) = match (address, prefix) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                (one.to_bits().into(), other.to_bits().into(), 32)
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let differs: u128 = one ^ other;
        length <= bits && differs.checked_shr(width - u32::from(length)).unwrap_or(0) == 0
    };
    let by_gateway = conf.gateways.iter().any(|gateway| gateway.is_ipv4() == prefix.is_ipv4());
    conf.addresses.is_empty() || by_gateway || conf.addresses.iter().any(is_within)
}

/// Forgets the configuration. Contexts must be destroyed before, each by its thread.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_destroy() {
    let mut setup = setup();
    setup.forget_network();
    *setup = MtcpSetup::NEW;
}

/// Reads the current values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getconf(conf: *mut mtcp_conf) -> c_int {
    let get = || {
        if conf.is_null() {
            return Err(CallError::Null("conf").into());
        }
        let numbers = setup().conf().numbers;
        let known = mtcp_conf {
            num_cores: numbers.num_cores,
            max_concurrency: numbers.max_concurrency,
            max_num_buffers: numbers.max_num_buffers,
            rcvbuf_size: numbers.rcvbuf_bytes,
            sndbuf_size: numbers.sndbuf_bytes,
            tcp_timewait: numbers.tcp_timewait_s,
            tcp_timeout: numbers.tcp_timeout_s,
        };
        // SAFETY: the program promises a writable record.
        unsafe { conf.write(known) };
        Ok(())
    };
    status("mtcp_getconf", caught(get))
}

/// Changes the values for later contexts; fields that are 0 stay unchanged. Values of a file read
/// by `mtcp_init` override those set before. The link's values are those of the first context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_setconf(conf: *const mtcp_conf) -> c_int {
    let set = || {
        if conf.is_null() {
            return Err(CallError::Null("conf").into());
        }
        // SAFETY: the program promises a readable record.
        let given = unsafe { conf.read() };
        let mut setup = setup();
        let numbers = &mut setup.conf().numbers;
        *numbers = changed(*numbers, &given)?;
        Ok(())
    };
    status("mtcp_setconf", caught(set))
}

fn changed(numbers: ConfValues, given: &mtcp_conf) -> Result<ConfValues, CallFailure> {
    let change = |now: i32, given: c_int, least: i32, name| match given {
        0 => Ok(now),
        given if given >= least => Ok(given),
        _ => {
            let why = format!("{name} = {given}: must be 0, for no change, or at least {least}");
            Err(CallFailure::from(CallError::Unusable(why)))
        }
    };
    Ok(ConfValues {
        num_cores: change(numbers.num_cores, given.num_cores, 1, "num_cores")?,
        max_concurrency: change(
            numbers.max_concurrency,
            given.max_concurrency,
            1,
            "max_concurrency",
        )?,
        max_num_buffers: change(
            numbers.max_num_buffers,
            given.max_num_buffers,
            1,
            "max_num_buffers",
        )?,
        rcvbuf_bytes: change(numbers.rcvbuf_bytes, given.rcvbuf_size, 64, "rcvbuf_size")?,
        sndbuf_bytes: change(numbers.sndbuf_bytes, given.sndbuf_size, 64, "sndbuf_size")?,
        tcp_timewait_s: change(numbers.tcp_timewait_s, given.tcp_timewait, 1, "tcp_timewait")?,
        tcp_timeout_s: change(numbers.tcp_timeout_s, given.tcp_timeout, -1, "tcp_timeout")?,
    })
}

/// Pins the calling thread to a core.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_core_affinitize(cpu: c_int) -> c_int {
    let pin = || {
        let cpu = usize::try_from(cpu).ok().filter(|&cpu| cpu < libc::CPU_SETSIZE as usize);
        let cpu = cpu.ok_or(CallError::Argument("cpu"))?;
        // SAFETY: a set of zeros is the empty one.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        // SAFETY: the number is within the set.
        unsafe { libc::CPU_SET(cpu, &mut set) };
        // SAFETY: the set is a local of this size.
        match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().into()),
        }
    };
    status("mtcp_core_affinitize", caught(pin))
}

/// Creates the context of a core for the calling thread; null on failure. With the library's own
/// stack it uses one of the link's `num_cores` shards.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_create_context(cpu: c_int) -> mctx_t {
    let create = || -> Result<mctx_t, CallFailure> {
        let (conf, carrier) = {
            let mut setup = setup();
            if !setup.is_initialised {
                return Err(CallError::NotInitialised.into());
            }
            let conf = setup.conf().clone();
            let carrier = match &setup.carrier {
                Some(carrier) => carrier.clone(),
                None => setup.carrier.insert(carrier(&conf)?).clone(),
            };
            (conf, carrier)
        };
        let core = usize::try_from(cpu).ok();
        let core = core.filter(|&core| core < conf.numbers.num_cores as usize);
        let core = core.ok_or(CallError::Argument("cpu"))?;
        let placement = placement(&conf)?;
        let config = |backend| context_config(&conf, backend, placement);
        let has_siblings = conf.numbers.num_cores > 1;
        let context = context::create(core, has_siblings, || match &carrier {
            TcpProvider::Kernel => Ok(Context::create(config(Backend::Kernel))?),
            TcpProvider::Stack(wanted) => {
                network::on_stack(wanted, |backend| Context::create(config(backend)))
            }
        })?;
        if network::variable(STATS_VARIABLE).is_some() || !conf.stat_ports.is_empty() {
            let placement_text = Some(carrier.placement_text(placement));
            with_context(context, |waiting| {
                waiting.placement_text = placement_text;
                Ok(())
            })?;
        }
        Ok(context)
    };
    let result = caught(create);
    if let Err(failure) = &result {
        print(format_args!("mtcp_create_context: {}", WithCauses(failure.why())));
    }
    finish("mtcp_create_context", result)
}

/// Ends a context: its connections and descriptors are closed. Its counters are printed on standard
/// error if `stat_print` or MEGAPIPE_STATS requests it.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_destroy_context(mctx: mctx_t) {
    // A broken context has no counters, and is ended all the same.
    let told = with_context(mctx, |waiting| {
        Ok(waiting.placement_text.take().map(|placement_text| (placement_text, waiting.counted())))
    });
    if let Err(failure) = context::destroy(mctx) {
        return set_last("mtcp_destroy_context", failure.why());
    }
    if let Ok(Some((placement_text, (core, counters)))) = told {
        print(format_args!("context of core {core}, {placement_text}: {}", listed(&counters)));
    }
}

/// Formats counters with their names.
fn listed(counters: &Counters) -> String {
    let parts: Vec<String> =
        counters.iter().map(|(name, count)| format!("{name} {count}")).collect();
    parts.join(", ")
}

/// Makes connections to one server use `num_addr` source addresses in turn, the first of which is
/// `saddr_base` (INADDR_ANY: the first local address). Addresses and port in network order.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_init_rss(
    mctx: mctx_t,
    saddr_base: in_addr_t,
    num_addr: c_int,
    daddr: in_addr_t,
    dport: in_addr_t,
) -> c_int {
    let init = || {
        let count = u32::try_from(num_addr).ok().filter(|&count| count > 0);
        let count = count.ok_or(CallError::Argument("num_addr"))?;
        let port = u16::try_from(dport).map_err(|_| CallError::Argument("dport"))?;
        let to =
            SocketAddr::new(Ipv4Addr::from_bits(u32::from_be(daddr)).into(), u16::from_be(port));
        let first = match u32::from_be(saddr_base) {
            0 => first_address(),
            first => Some(first),
        };
        let sources = match (first, count) {
            // The network chooses the address.
            (_, 1) if saddr_base == 0 => None,
            (Some(first), count) => Some(Sources { to, first, count, next: 0 }),
            (None, _) => return Err(CallError::Argument("saddr_base").into()),
        };
        with_context(mctx, |waiting| {
            waiting.sources = sources;
            Ok(())
        })
    };
    status("mtcp_init_rss", caught(init))
}

/// The first local address, if the configuration has one.
fn first_address() -> Option<u32> {
    let mut setup = setup();
    setup.conf().addresses.iter().find_map(|(ip, _)| match ip {
        IpAddr::V4(ip) => Some(ip.to_bits()),
        IpAddr::V6(_) => None,
    })
}

/// The TCP implementation that a configuration chooses.
fn carrier(conf: &Conf) -> Result<TcpProvider, CallFailure> {
    let unusable = |why: &str| CallError::Unusable(why.to_owned());
    let driver = match (conf.io, conf.ports.is_empty()) {
        (Some(Io::Kernel), _) if conf.placement.unwrap_or_default() != Placement::Inline => {
            return Err(unusable("placement: with io = kernel there is no stack to place").into());
        }
        (Some(Io::Kernel), _) => return Ok(TcpProvider::Kernel),
        (Some(Io::Service), _) => return service(conf),
        (Some(Io::Link(driver)), false) => driver,
        (None, false) => "xdp",
        (Some(Io::Link(_)), true) => return Err(unusable("io needs a port").into()),
        (None, true) => {
            let choices = "io: xdp, packet, tap or memif, with a port; or kernel or service";
            return Err(unusable(choices).into());
        }
    };
    let link = format!("{driver}:{}", one_port(conf)?);
    let settings = server_config(conf);
    let options = NetworkOptions { link, link_named_by: "io, port", settings };
    Ok(TcpProvider::Stack(StackChoice::Local(Box::new(options))))
}

/// The only port. There is at least one.
fn one_port(conf: &Conf) -> Result<&str, CallFailure> {
    match conf.ports.as_slice() {
        [port] => Ok(port),
        ports => {
            let ports = ports.join(" ");
            let why = "there can be one port, with as many queues as it has";
            Err(CallError::Unusable(format!("port = {ports}: {why}")).into())
        }
    }
}

/// The daemon that a configuration names: by its port, by the environment, or the usual one.
fn service(conf: &Conf) -> Result<TcpProvider, CallFailure> {
    let others = [
        ("address", !conf.addresses.is_empty()),
        ("gateway", !conf.gateways.is_empty()),
        ("mtu", conf.mtu.is_some()),
        ("placement", conf.placement.is_some()),
    ];
    if let Some((key, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
        let why = format!("{key}: with io = service the daemon chooses it");
        return Err(CallError::Unusable(why).into());
    }
    let path = match conf.ports.is_empty() {
        true => network::variable(network::SERVICE_VARIABLE),
        false => Some(one_port(conf)?.to_owned()),
    };
    Ok(TcpProvider::Stack(StackChoice::at(path)))
}

impl TcpProvider {
    /// Description for readers of the counters.
    fn placement_text(&self, placement: Placement) -> String {
        match self {
            Self::Kernel => "TCP by Linux".to_owned(),
            Self::Stack(StackChoice::Local(wanted)) => {
                format!("our own stack on {}, placement {}", wanted.link, placement.name())
            }
            Self::Stack(StackChoice::Service(address)) => {
                format!("our own stack in the service at {}", address.path().display())
            }
        }
    }
}

/// The placement of contexts' stacks.
fn placement(conf: &Conf) -> Result<Placement, CallFailure> {
    if matches!(conf.io, Some(Io::Kernel | Io::Service)) {
        // The environment's value concerns only a stack in this process.
        return Ok(Placement::Inline);
    }
    match conf.placement {
        Some(placement) => Ok(placement),
        None => Ok(network::placement_of_environment()?.unwrap_or_default()),
    }
}

fn server_config(conf: &Conf) -> ServerConfig {
    let numbers = &conf.numbers;
    let mut config = ServerConfig {
        addresses: conf.addresses.clone(),
        gateways: conf.gateways.clone(),
        mtu: conf.mtu,
        connections: descriptors(numbers),
        shards: Some(u16::try_from(numbers.num_cores).unwrap_or(1)),
        ..ServerConfig::default()
    };
    let tcp = &mut config.tcp;
    // Buffers have the size that the program sets, and do not grow.
    tcp.receive_buffer = numbers.rcvbuf_bytes as u32;
    tcp.receive_buffer_max = tcp.receive_buffer;
    // Twice the size, as SO_SNDBUF in Linux: a write stays in the buffer until its last byte is
    // acknowledged, and a program that writes as much as mTCP's buffer holds would otherwise have
    // nothing to send until then.
    let send_buffer = numbers.sndbuf_bytes.saturating_mul(2).min(BUFFER_BYTES_MAX);
    tcp.send_buffer = send_buffer as u32;
    tcp.send_buffer_max = tcp.send_buffer;
    // TIME-WAIT lasts two segment lifetimes (RFC 9293 §3.6.1).
    tcp.msl = Duration::from_secs(numbers.tcp_timewait_s as u64) / 2;
    // Keepalive: a peer that is silent this long is probed, and its connection dropped without an
    // answer.
    let timeout = u64::try_from(numbers.tcp_timeout_s).ok().map(Duration::from_secs);
    let timeout = timeout.filter(|timeout| !timeout.is_zero());
    tcp.user_timeout = timeout;
    tcp.keepalive_idle = timeout;
    config
}

/// Most descriptors: connections, listeners, sets and pipes.
fn descriptors(numbers: &ConfValues) -> u32 {
    let wanted = (numbers.max_concurrency as u32).saturating_add(MTCP_DESCRIPTORS_BESIDE);
    wanted.min(sockets::limits::DESCRIPTORS_MAX)
}

fn context_config(conf: &Conf, backend: Backend, placement: Placement) -> sockets::Config {
    let numbers = &conf.numbers;
    let connections = descriptors(numbers);
    let buffers = u16::try_from(numbers.max_num_buffers).unwrap_or(u16::MAX);
    let buffers = buffers.clamp(MTCP_BUFFERS_MIN, MTCP_BUFFERS_MAX);
    let channel = channel::Config::default()
        .backend(backend)
        .placement(placement)
        .max_lwsockets(connections)
        .buffer_count(1 << buffers.ilog2());
    // Some programs take 0 for no descriptor. mTCP reuses closed descriptors last, and programs
    // expect descriptors below `max_concurrency`.
    sockets::Config::default()
        .channel(channel)
        .descriptors(connections)
        .first_descriptor(1)
        .rest_below(numbers.max_concurrency)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setconf_changes_only_valid_nonzero_fields() {
        let before = Conf::new(4).numbers;
        let given = mtcp_conf { num_cores: 2, tcp_timeout: -1, ..mtcp_conf::default() };
        let after = changed(before, &given).unwrap();
        assert_eq!(after, ConfValues { num_cores: 2, tcp_timeout_s: -1, ..before });
        let small = mtcp_conf { rcvbuf_size: 63, ..mtcp_conf::default() };
        assert_eq!(changed(before, &small).unwrap_err().why().errno(), libc::EINVAL);
    }

    #[test]
    fn route_sets_a_gateway_or_is_warned_of() {
        let with = |text: &str, routes: &str| {
            let mut conf = Conf::new(1);
            conf.read(text).unwrap();
            for route in tables::routes(routes).unwrap().entries {
                take_route(&mut conf, &route);
            }
            (conf.gateways.iter().map(IpAddr::to_string).collect(), conf.warnings)
        };
        let told = |(_, warnings): (Vec<String>, Vec<String>)| warnings.join("; ");
        let tap = "io = tap\nport = tap0\naddress = 10.0.0.2/24\n";
        let gateway = with(tap, "ROUTES 2\n10.0.0.1/24 tap0\n10.0.0.10/0 tap0\n");
        assert_eq!(gateway, (vec!["10.0.0.10".to_owned()], vec![]));
        let own = format!("{tap}gateway = 10.0.0.9\n");
        assert_eq!(told(with(&own, "ROUTES 1\n10.0.0.9/0 tap0\n")), "");
        assert_eq!(told(with(&own, "ROUTES 2\n10.9.0.0/16 tap0\n0.0.0.0/0 tap0\n")), "");
        let other = told(with(&own, "ROUTES 1\n10.0.0.10/0 tap0\n"));
        assert!(other.ends_with("10.0.0.10/0 by tap0 has no effect: the gateway is another one"));
        for beyond in ["10.0.1.1/24", "10.0.0.0/16", "0.0.0.0/0", "fd00::/64"] {
            let warned = told(with(tap, &format!("ROUTES 1\n{beyond} tap0\n")));
            assert!(warned.contains("the address and the gateway say what is reached"), "{beyond}");
        }
        assert_eq!(told(with("port = eth0", "ROUTES 1\n10.0.1.1/24 eth0\n")), "");
        assert!(told(with(tap, "ROUTES 1\n10.0.0.1/24 dpdk0\n")).contains("no port has this name"));
        let memif = "io = memif\nport = /tmp/s,role=client\naddress = 10.0.0.2/24\n";
        assert_eq!(told(with(memif, "ROUTES 1\n10.0.0.0/25 /tmp/s\n")), "");
    }

    #[test]
    fn carrier_is_kernel_link_or_daemon() {
        let with = |text: &str| -> Result<Option<String>, String> {
            let mut conf = Conf::new(1);
            conf.read(text).unwrap();
            match carrier(&conf).map_err(|failure| failure.why().to_string())? {
                TcpProvider::Kernel => Ok(None),
                TcpProvider::Stack(StackChoice::Local(options)) => Ok(Some(options.link)),
                TcpProvider::Stack(StackChoice::Service(address)) => {
                    Ok(Some(format!("service at {}", address.path().display())))
                }
            }
        };
        assert_eq!(with("io = kernel"), Ok(None));
        assert_eq!(with("io = tap\nport = tap0"), Ok(Some("tap:tap0".to_owned())));
        assert_eq!(with("io = dpdk\nport = eth0"), Ok(Some("xdp:eth0".to_owned())));
        assert_eq!(with("port = eth0"), Ok(Some("xdp:eth0".to_owned())));
        assert_eq!(with("io = kernel\nplacement = inline"), Ok(None));
        let placed = "io = kernel\nplacement = thread";
        for wrong in ["", "io = tap", placed] {
            assert!(with(wrong).is_err(), "{wrong}");
        }
        assert!(with("io = xdp\nport = a b").unwrap_err().contains("port = a b: there can be one"));
        assert_eq!(with("io = service\nport = /tmp/s"), Ok(Some("service at /tmp/s".to_owned())));
        for key in ["address = 10.0.0.2/24", "gateway = 10.0.0.1", "mtu = 1400", "placement = core"]
        {
            let error = with(&format!("io = service\nport = /tmp/s\n{key}")).unwrap_err();
            let name = key.split(' ').next().unwrap();
            assert!(error.contains(&format!("{name}: with io = service")), "{error}");
        }
        assert!(with("io = service\nport = a b").unwrap_err().contains("there can be one port"));
    }

    #[test]
    fn stack_uses_the_programs_values() {
        let mut conf = Conf::new(2);
        conf.read("rcvbuf = 4096\nsndbuf = 2048\ntcp_timewait = 3\ntcp_timeout = -1").unwrap();
        let config = server_config(&conf);
        assert_eq!((config.tcp.receive_buffer, config.tcp.send_buffer_max), (4096, 4096));
        assert_eq!(config.tcp.msl, Duration::from_millis(1500));
        assert_eq!((config.tcp.user_timeout, config.shards), (None, Some(2)));
        conf.numbers.max_num_buffers = 1000;
        let context = context_config(&conf, Backend::Kernel, Placement::Inline);
        assert_eq!(context.channel.buffer_count, 512, "the power of two below");
    }
}
