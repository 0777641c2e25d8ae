//! Plan of a server: creates its channels as [`start`](super::start) does, reports on them, and
//! drops them, for `megapipe info`.
//!
//! Pure except [`plan_server`] itself: the report follows from counts, masks and channel reports.
//!
//! Invariant: all channels exist at the same time, each on a thread of its own, as in a server.

use std::sync::mpsc;
use std::thread;

use megapipe::{Backend, Channel, CpuMask, DriverReport};
use serde::Serialize;

use super::args::ServeArgs;
use super::error::ServeError;
use super::running::{check_counts, cores, masks};
use crate::backend::PlacementName;
use crate::limits;
use crate::reason::reason;
use crate::threads;

/// What the channels of a server would be, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerPlan {
    /// `kernel` or `local`.
    pub backend: &'static str,
    /// The link of our own stack, in words.
    pub link: Option<String>,
    /// Its queues.
    pub queues: Option<usize>,
    /// Our own stack's shards: one for each channel.
    pub shards: Option<u16>,
    /// How a connection finds its channel.
    pub steering: Reasoned,
    /// Where the work of TCP is done.
    pub placement: Reasoned,
    /// Each channel.
    pub channels: Vec<ChannelPlan>,
}

/// A choice by its name, and why it is that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reasoned {
    /// Its name.
    pub name: &'static str,
    /// Why, and what follows from it.
    pub why: String,
}

/// One channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChannelPlan {
    /// Which of the server's channels, from 0.
    pub index: usize,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// The cores whose connections it accepts, if the kernel partitions a listener by core.
    pub takes_cores: Option<String>,
    /// The driver of what is the kernel's.
    pub driver: &'static str,
    /// Where our own stack runs for it: the placement, the shard, the cores.
    pub place: Option<String>,
}

/// Creates the channels that a server with these options would have, and describes them. Opens the
/// link, and blocks until all channels exist.
///
/// # Errors
/// Whatever would keep the server from starting before it listens.
pub fn plan_server(args: &ServeArgs) -> Result<ServerPlan, ServeError> {
    let count = check_counts(args, 0)?;
    let cores = cores(args, count)?;
    let masks = masks(args, &cores);
    args.backend.check_driver(args.driver.into())?;
    args.backend.check_device()?;
    let backend = args.backend.open(args.connections_of_each(count), count)?;
    let reports = reports(args, &backend, &cores)?;
    let channels = reports.into_iter().enumerate().map(|(index, report)| ChannelPlan {
        index,
        core: cores[index],
        takes_cores: takes_cores(&backend, masks.as_deref(), index),
        driver: report.driver.name(),
        place: report.place,
    });
    let channels = channels.collect();
    let (link, queues, shards) = match &backend {
        Backend::Local(network) => {
            (Some(network.description().to_owned()), Some(network.queues()), Some(network.shards()))
        }
        _ => (None, None, None),
    };
    let hash = match &backend {
        Backend::Local(network) if network.is_spread_by_device() => Hash::Device,
        _ if args.backend.steer_key.is_some() => Hash::OursByKey,
        _ => Hash::Ours,
    };
    let steering = match queues.zip(shards) {
        Some((queues, shards)) => steering_of_stack(queues, shards.into(), hash),
        None if matches!(backend, Backend::Service(_)) => steering_of_service(),
        None => steering_of_kernel(count, masks.is_some(), !args.no_partition),
    };
    let placement = match &backend {
        Backend::Service(address) => placement_of_service(&address.path().display()),
        _ => placement(queues.is_some(), args.backend.placement),
    };
    Ok(ServerPlan { backend: backend.name(), link, queues, shards, steering, placement, channels })
}

/// The report of each channel.
fn reports(
    args: &ServeArgs,
    backend: &Backend,
    cores: &[Option<usize>],
) -> Result<Vec<DriverReport>, ServeError> {
    let count = cores.len();
    thread::scope(|scope| {
        // Each thread holds its channel until this has been dropped, with all the others made.
        let mut held = Vec::with_capacity(count);
        let mut reports = Vec::with_capacity(count);
        for (index, core) in cores.iter().enumerate() {
            let config = args.config(backend, count, *core);
            let config = config.placement(args.backend.placement(index));
            let (told, telling) = mpsc::channel();
            let (hold, holding) = mpsc::channel::<()>();
            let trial = move || {
                let channel = Channel::create(config);
                let report = channel.as_ref().map(|channel| channel.report().clone());
                // The receiver is gone only if another channel could not be created.
                let _ =
                    told.send(report.map_err(|error| (reason(error), error.is_configuration())));
                let _ = holding.recv();
                drop(channel);
            };
            let failed = |source| ServeError::resource("a thread for a channel", source);
            threads::spawn_scoped(scope, format!("plan-{index}"), trial).map_err(failed)?;
            held.push(hold);
            let told = telling.recv_timeout(limits::START_DEADLINE);
            let report = told.map_err(|_| ServeError::NotReady { index })?;
            reports.push(report.map_err(|(why, is_usage)| ServeError::Plan {
                index,
                why,
                is_usage,
            })?);
        }
        drop(held);
        Ok(reports)
    })
}

fn takes_cores(backend: &Backend, masks: Option<&[CpuMask]>, index: usize) -> Option<String> {
    let is_kernel = matches!(backend, Backend::Kernel);
    masks.filter(|_| is_kernel).and_then(|masks| masks.get(index)).map(ToString::to_string)
}

/// The hash that assigns flows to shards on our own stack.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Hash {
    /// The device's, which it reports.
    Device,
    /// The library's, with a random key.
    Ours,
    /// The library's, with a key that the other end may know.
    OursByKey,
}

fn steering_of_stack(queues: usize, shards: usize, hash: Hash) -> Reasoned {
    let spread = counted(queues, "queue");
    let (name, why) = match hash {
        _ if (queues, shards) == (1, 1) => {
            ("none", "one shard has the link's one queue to itself".to_owned())
        }
        Hash::Device => {
            let why = format!(
                "the device reports its hash (RSS): each of {shards} shards owns the flows that \
                 the device steers to its queue, over {spread}; other frames are forwarded"
            );
            ("hardware", why)
        }
        Hash::Ours | Hash::OursByKey => {
            let key = match hash {
                Hash::OursByKey => "the other end computes the same if it has the same --steer-key",
                _ => "its key is random, so no peer can target one shard",
            };
            let why = format!(
                "the link does not report how it spreads flows over {spread}: a hash of a flow's \
                 addresses and ports selects one of {shards} shards, and a shard forwards \
                 frames of other shards; {key}"
            );
            ("software", why)
        }
    };
    Reasoned { name, why }
}

fn steering_of_service() -> Reasoned {
    let why = "each channel is a session of one of the daemon's shards, and gets the connections \
               of that shard";
    Reasoned { name: "service", why: why.to_owned() }
}

fn placement_of_service(path: &dyn std::fmt::Display) -> Reasoned {
    let why = format!("the stack runs in the daemon at {path}, on cores of its own");
    Reasoned { name: "service", why }
}

fn steering_of_kernel(channels: usize, by_core: bool, partitioned: bool) -> Reasoned {
    let (name, why) = match (channels, by_core, partitioned) {
        (1, ..) => ("none", "one channel accepts every connection"),
        (_, true, _) => (
            "core",
            "the interface's hash (RSS) or RPS selects a core, and a BPF program of the listener \
             selects the channel of that core",
        ),
        (_, false, true) => (
            "hash",
            "channels are not pinned to separate cores, so the kernel distributes connections \
             over their listeners by a hash of the addresses",
        ),
        (_, false, false) => {
            ("shared", "--no-partition: one accept queue, and the first free channel accepts")
        }
    };
    Reasoned { name, why: why.to_owned() }
}

fn placement(is_local: bool, placement: PlacementName) -> Reasoned {
    let (name, why) = match (is_local, placement) {
        (false, _) => ("kernel", "Linux does TCP, in system calls and interrupts"),
        (true, PlacementName::Inline) => (
            "inline",
            "the stack runs in the channel's dispatch: without a queue between threads, but no \
             segment is processed while the program computes",
        ),
        (true, PlacementName::Thread) => (
            "thread",
            "the stack runs on a second thread on the channel's core, and wakes the channel once \
             for a batch of events",
        ),
        (true, PlacementName::Core) => (
            "core",
            "the stack has its own core if there is one (--server-cpus, else the next): it \
             polls while there is work, and sleeps when there is none",
        ),
    };
    Reasoned { name, why: why.to_owned() }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapipe::Address;

    #[test]
    fn flows_are_steered_by_the_device_or_by_software() {
        for hash in [Hash::Device, Hash::Ours, Hash::OursByKey] {
            assert_eq!(steering_of_stack(1, 1, hash).name, "none");
        }
        for (queues, shards) in [(1, 2), (2, 2), (4, 1)] {
            let steering = steering_of_stack(queues, shards, Hash::Ours);
            assert_eq!(steering.name, "software");
            assert!(steering.why.contains(&format!("{shards} shards")), "{}", steering.why);
            assert!(steering.why.contains("random"), "{}", steering.why);
            assert_eq!(steering_of_stack(queues, shards, Hash::Device).name, "hardware");
        }
        assert!(steering_of_stack(2, 2, Hash::OursByKey).why.contains("--steer-key"));
    }

    #[test]
    fn kernel_steers_by_core_if_each_channel_has_one() {
        let names = [(1, false, true), (2, true, true), (2, false, true), (2, false, false)]
            .map(|(channels, by_core, split)| steering_of_kernel(channels, by_core, split).name);
        assert_eq!(names, ["none", "core", "hash", "shared"]);
    }

    #[test]
    fn kernel_channels_are_created_and_reported() {
        let args = ServeArgs { channels: Some(1), ..ServeArgs::on(Vec::<Address>::new()) };
        let plan = plan_server(&args).expect("a channel");
        assert_eq!((plan.backend, plan.placement.name), ("kernel", "kernel"));
        assert_eq!((plan.queues, plan.shards, plan.link), (None, None, None));
        assert_eq!(plan.channels.len(), 1);
        assert!(plan.channels[0].core.is_some() && plan.channels[0].place.is_none());
        let none = ServeArgs { channels: Some(0), ..args };
        assert!(plan_server(&none).is_err());
    }
}
