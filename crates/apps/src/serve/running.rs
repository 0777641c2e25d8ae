//! A server that runs: brought up channel by channel, stopped in order.
//!
//! Invariants
//! - Every thread that was started is joined, on success, on failure and on drop.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use megapipe::{Address, CpuMask, UnixAddress, Waker};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::args::ServeArgs;
use super::descriptors::Budget;
use super::error::ServeError;
use super::layout::{self, CpuList};
use super::listening::ServerEndpoint;
use super::shard_loop::{self, ChannelReady, ReadySender, ServerControl, ServerPhase, ShardPlan};
use super::signals::Notices;
use super::stats::{self, Columns, Published, ServerTally};
use super::{ServerProperties, ServerShard, ShardSetup};
use crate::backend::{BackendArgs, PlacementName};
use crate::limits;
use crate::result_file;
use crate::threads::{self, allowed_cpus};

/// A server whose channels all listen. Dropping it stops it immediately.
#[derive(Debug)]
pub struct Running {
    addresses: Vec<Address>,
    driver: String,
    why: String,
    columns: Columns,
    control: Arc<ServerControl>,
    published: Vec<Arc<Published>>,
    wakers: Vec<Waker>,
    threads: Vec<JoinHandle<Result<(), ServeError>>>,
    endpoints: Vec<Arc<ServerEndpoint>>,
    pub(crate) notices: Notices,
    /// What `--ready-fd` names.
    pub(crate) ready_file: Option<File>,
}

/// Starts a server and returns as soon as every channel listens.
///
/// The factory is called once per channel, on that channel's thread.
///
/// # Errors
/// Whatever keeps a channel from being created, from listening, or its shard from being made;
/// then nothing is left running.
pub fn start<S, F>(
    args: &ServeArgs,
    server: ServerProperties,
    factory: F,
) -> Result<Running, ServeError>
where
    S: ServerShard + 'static,
    F: Fn(ShardSetup<'_>) -> Result<S, ServeError> + Send + Sync + 'static,
{
    start_threads(args, server, move |plan: &ShardPlan, ready: &ReadySender| {
        shard_loop::run(plan, &factory, ready)
    })
}

/// As [`start`], for threads that belong to the server from start to end. `life` is called on each
/// thread once, and reports once: that it is ready, or why not.
///
/// # Errors
/// As [`start`].
pub(crate) fn start_threads<L>(
    args: &ServeArgs,
    server: ServerProperties,
    life: L,
) -> Result<Running, ServeError>
where
    L: Fn(&ShardPlan, &ReadySender) -> Result<(), ServeError> + Send + Sync + 'static,
{
    // Before the server opens anything, so that the number is not a descriptor of its own.
    let ready_file = args.ready_fd.map(open_ready_file).transpose()?;
    let addresses = args.addresses(server);
    let count = check_counts(args, addresses.len())?;
    args.backend.check_driver(args.driver.into())?;
    addresses.iter().try_for_each(check_listen_address)?;
    addresses.iter().try_for_each(|address| check_on_link(&args.backend, address))?;
    if let Some(path) = &args.json {
        let failed = |source| ServeError::argument(format!("--json {}", path.display()), source);
        result_file::check(path).map_err(failed)?;
    }
    let cores = cores(args, count)?;
    let masks = masks(args, &cores);
    raise_descriptor_limit();
    let budget = Budget::new(descriptor_limit(), open_descriptors(), count, addresses.len());
    let endpoints: Result<Vec<_>, _> = addresses
        .into_iter()
        .map(|address| ServerEndpoint::new(address, !args.no_partition, args.backlog).map(Arc::new))
        .collect();
    let backend = args.backend.open(args.connections_of_each(count), count)?;
    let endpoints = endpoints?;
    let notices = Notices::new().map_err(|source| ServeError::resource("a socket pair", source))?;
    let mut running = Running {
        addresses: Vec::new(),
        driver: String::new(),
        why: String::new(),
        columns: Columns {
            statuses: server.has_statuses,
            wakeups: args.backend.placement != PlacementName::Inline,
        },
        control: Arc::default(),
        published: (0..count).map(|_| Arc::default()).collect(),
        wakers: Vec::with_capacity(count),
        threads: Vec::with_capacity(count),
        endpoints,
        notices,
        ready_file,
    };
    let life = Arc::new(life);
    for (index, core) in cores.into_iter().enumerate() {
        let plan = ShardPlan {
            index,
            count,
            config: args.config(&backend, count, core).placement(args.backend.placement(index)),
            mask: masks.as_ref().map(|masks| masks[index]),
            backlog: args.backlog,
            connections_max: args.connections_of_each(count),
            files_per_connection: server.files_per_connection,
            budget,
            drain: Duration::from_secs(args.drain.into()),
            endpoints: running.endpoints.clone(),
            control: Arc::clone(&running.control),
            published: Arc::clone(&running.published[index]),
        };
        let ready = running.spawn(server, plan, Arc::clone(&life))?;
        running.admit(index, &ready)?;
    }
    Ok(running)
}

impl Running {
    /// Where the server listens, with the ports that it was given.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Back end and driver of its channels, in a few words.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Why its channels have this driver.
    #[must_use]
    pub fn why(&self) -> &str {
        &self.why
    }

    /// What its live view shows.
    pub(crate) const fn columns(&self) -> Columns {
        self.columns
    }

    /// The number of its channels.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.published.len()
    }

    /// What each channel has done, as of its last tick.
    #[must_use]
    pub fn tallies(&self) -> Vec<ServerTally> {
        self.published.iter().map(|published| published.load()).collect()
    }

    /// Drains, waits for the end, and returns what all channels did together.
    ///
    /// # Errors
    /// The first error of a channel, or that its thread panicked.
    pub fn stop(mut self) -> Result<ServerTally, ServeError> {
        self.begin(ServerPhase::Drain);
        self.join()?;
        Ok(stats::sum(&self.tallies()))
    }

    /// Goes on to `phase` and returns at once.
    pub(crate) fn begin(&self, phase: ServerPhase) {
        self.control.advance(phase);
        self.wakers.iter().for_each(Waker::wake);
    }

    /// The first signal drains, the second stops.
    pub(crate) fn on_signal(&self) {
        match self.control.phase() {
            ServerPhase::Serve => self.begin(ServerPhase::Drain),
            ServerPhase::Drain | ServerPhase::Stop => self.begin(ServerPhase::Stop),
        }
    }

    /// Waits for all threads; the first error counts.
    pub(crate) fn join(&mut self) -> Result<(), ServeError> {
        let ends =
            self.threads.drain(..).enumerate().map(|(index, thread)| {
                thread.join().unwrap_or(Err(ServeError::Panicked { index }))
            });
        // Collected first, so that one channel's error does not leave another's thread behind.
        let ends: Vec<_> = ends.collect();
        ends.into_iter().collect()
    }

    fn spawn<L>(
        &mut self,
        server: ServerProperties,
        plan: ShardPlan,
        life: Arc<L>,
    ) -> Result<Receiver<Result<ChannelReady, ServeError>>, ServeError>
    where
        L: Fn(&ShardPlan, &ReadySender) -> Result<(), ServeError> + Send + Sync + 'static,
    {
        let (sender, receiver) = mpsc::channel();
        let thread = |source| ServeError::resource("a thread for a channel", source);
        let end_notice = self.notices.end_notice().map_err(thread)?;
        let name = format!("{}-{}", server.name, plan.index);
        let body = move || {
            let _end_notice = end_notice;
            life(&plan, &sender)
        };
        self.threads.push(threads::spawn(name, body).map_err(thread)?);
        Ok(receiver)
    }

    /// Waits until the channel with this index listens. The first one's addresses, with the ports
    /// that it was given, are where the others listen too.
    fn admit(
        &mut self,
        index: usize,
        ready: &Receiver<Result<ChannelReady, ServeError>>,
    ) -> Result<(), ServeError> {
        let ready = match ready.recv_timeout(limits::START_DEADLINE) {
            Ok(ready) => ready?,
            Err(mpsc::RecvTimeoutError::Timeout) => return Err(ServeError::NotReady { index }),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(ServeError::Panicked { index });
            }
        };
        self.wakers.push(ready.waker);
        if index == 0 {
            for (endpoint, address) in self.endpoints.iter_mut().zip(&ready.addresses) {
                if matches!(**endpoint, ServerEndpoint::Partitioned(_)) {
                    *endpoint = Arc::new(ServerEndpoint::Partitioned(address.clone()));
                }
            }
            self.addresses = ready.addresses;
            self.driver = ready.driver;
            self.why = ready.why;
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.begin(ServerPhase::Stop);
        // An error here has no one to go to; `stop` is how to learn it.
        let _ = self.join();
    }
}

/// Opens what `--ready-fd` names a second time, by its number: the descriptor stays its owner's.
fn open_ready_file(fd: u32) -> Result<File, ServeError> {
    let opened = OpenOptions::new().append(true).open(format!("/proc/self/fd/{fd}"));
    opened.map_err(|source| {
        let why = format!("no descriptor of a pipe or file that can be written: {source}");
        ServeError::argument(format!("--ready-fd {fd}"), io::Error::new(source.kind(), why))
    })
}

/// Refuses addresses that no server can listen on.
fn check_listen_address(address: &Address) -> Result<(), ServeError> {
    let refused = |kind, why: &str| {
        let source = io::Error::new(kind, why);
        Err(ServeError::argument(format!("--listen {address}"), source))
    };
    match address {
        Address::Inet(inet) if is_group(inet.ip()) => refused(
            io::ErrorKind::InvalidInput,
            "a multicast or broadcast address has no listeners",
        ),
        Address::Unix(UnixAddress::Path(path)) => match path.symlink_metadata() {
            Ok(found) if !found.file_type().is_socket() => {
                let why = "the file exists and is not a socket; it is left as it is";
                refused(io::ErrorKind::AlreadyExists, why)
            }
            Err(_) if !parent(path).is_dir() => {
                refused(io::ErrorKind::NotFound, "the directory of the socket does not exist")
            }
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Refuses addresses that the options do not give to our own stack.
fn check_on_link(backend: &BackendArgs, address: &Address) -> Result<(), ServeError> {
    match address {
        Address::Inet(inet) if !backend.may_have(inet.ip()) => {
            let why = format!("the stack has only --address {}", backend.addresses_given());
            let source = io::Error::new(io::ErrorKind::InvalidInput, why);
            Err(ServeError::argument(format!("--listen {address}"), source))
        }
        _ => Ok(()),
    }
}

/// Whether no single host has this address.
fn is_group(ip: IpAddr) -> bool {
    ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST)
}

/// The directory of a file.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

pub(super) fn check_counts(args: &ServeArgs, listeners: usize) -> Result<usize, ServeError> {
    let count = args.channel_count()?;
    if listeners > limits::LISTENERS_MAX {
        return Err(ServeError::Listeners { asked: listeners, max: limits::LISTENERS_MAX });
    }
    Ok(count)
}

/// The processor of each channel.
pub(super) fn cores(args: &ServeArgs, count: usize) -> Result<Vec<Option<usize>>, ServeError> {
    if !args.pinned() {
        return Ok(vec![None; count]);
    }
    let allowed = allowed_cpus();
    let wanted = args.cpus.as_ref().map_or(allowed.as_slice(), CpuList::as_slice);
    if let Some(&cpu) = wanted.iter().find(|cpu| !allowed.contains(cpu)) {
        let allowed = CpuList::from(allowed).to_string();
        return Err(ServeError::Cpu { cpu, allowed });
    }
    Ok(layout::place(count, wanted))
}

/// The processors whose connections each channel accepts, if connections are assigned by processor.
pub(super) fn masks(args: &ServeArgs, cores: &[Option<usize>]) -> Option<Vec<CpuMask>> {
    if args.no_partition || cores.len() < 2 {
        return None;
    }
    let cores: Option<Vec<usize>> = cores.iter().copied().collect();
    let masks = layout::partition(&cores?, &online_cpus())?;
    Some(masks.into_iter().map(CpuMask::cpus).collect())
}

/// The processors of this machine; those that this process may use, if the machine does not list
/// them.
fn online_cpus() -> Vec<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    text.trim().parse::<CpuList>().map_or_else(|_| allowed_cpus(), |list| list.as_slice().to_vec())
}

/// Allows this process as many descriptors as it may allow itself: tables of lwsockets count
/// against the limit too.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Refused only if the limit was lowered meanwhile; then the lower one holds.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// As many descriptors as this process may have.
fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// The number of its threads; `None` if `/proc` does not show it.
fn open_descriptors() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64)
}
