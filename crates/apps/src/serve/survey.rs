//! What would a server's channels be? Made as [`start`](super::start) makes them, looked at, and
//! dropped: for `megapipe info`, and for whoever wants to know before he serves.
//!
//! Pure but for [`survey`] itself: what is said follows from counts, masks and reports.
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

/// What the channels of a server would be, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Survey {
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
    pub channels: Vec<Surveyed>,
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
pub struct Surveyed {
    /// Which of the server's channels, from 0.
    pub index: usize,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// The cores whose connections it takes, where the kernel partitions a listener by core.
    pub takes_cores: Option<String>,
    /// The driver of what is the kernel's.
    pub driver: &'static str,
    /// Where our own stack runs for it: the placement, the shard, the cores.
    pub place: Option<String>,
}

/// Makes the channels that a server with these options would have, and says what they are. Blocks
/// until each has been made, and opens the link.
///
/// # Errors
/// Whatever would keep the server from starting before it listens.
pub fn survey(args: &ServeArgs) -> Result<Survey, ServeError> {
    let count = check_counts(args, 0)?;
    let cores = cores(args, count)?;
    let masks = masks(args, &cores);
    let backend = args.backend.open(args.connections_of_each(count), count)?;
    let reports = reports(args, &backend, &cores)?;
    let channels = reports.into_iter().enumerate().map(|(index, report)| Surveyed {
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
        None => steering_of_kernel(count, masks.is_some(), !args.no_partition),
    };
    let placement = placement(queues.is_some(), args.backend.placement);
    Ok(Survey { backend: backend.name(), link, queues, shards, steering, placement, channels })
}

/// What each channel says of itself.
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
            scope.spawn(move || {
                let channel = Channel::create(config);
                let report = channel.as_ref().map(|channel| channel.report().clone());
                // Nobody listens only if another channel could not be made.
                let _ =
                    told.send(report.map_err(|error| (reason(error), error.is_configuration())));
                let _ = holding.recv();
                drop(channel);
            });
            held.push(hold);
            let told = telling.recv_timeout(limits::START_DEADLINE);
            let report = told.map_err(|_| ServeError::NotReady { index })?;
            reports.push(report.map_err(|(why, is_usage)| ServeError::Survey {
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

/// By which hash a flow has its place on our own stack.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Hash {
    /// The device's, which it tells.
    Device,
    /// Ours, under a random key.
    Ours,
    /// Ours, under a key that the other end may know.
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
                "the device tells its hash (RSS): each of {shards} shards is at home where the \
                 device puts its flows, over {spread}; what arrives elsewhere is handed over"
            );
            ("hardware", why)
        }
        Hash::Ours | Hash::OursByKey => {
            let key = match hash {
                Hash::OursByKey => "the other end agrees if it is given the same --steer-key",
                _ => "its key is random, so no peer can aim at one shard",
            };
            let why = format!(
                "the link does not tell how it spreads flows over {spread}: our own hash of a \
                 flow's two ends says which of {shards} shards it belongs to, and who meets \
                 another's frame hands it over; {key}"
            );
            ("software", why)
        }
    };
    Reasoned { name, why }
}

fn steering_of_kernel(channels: usize, by_core: bool, partitioned: bool) -> Reasoned {
    let (name, why) = match (channels, by_core, partitioned) {
        (1, ..) => ("none", "one channel takes every connection"),
        (_, true, _) => (
            "core",
            "the interface's hash (RSS) or RPS chooses a core, and a BPF program of the listener \
             the channel of that core",
        ),
        (_, false, true) => (
            "hash",
            "channels are not pinned to cores of their own, so the kernel spreads connections \
             over their listeners by a hash of the addresses",
        ),
        (_, false, false) => {
            ("shared", "--no-partition: one accept queue, and whoever is first takes a connection")
        }
    };
    Reasoned { name, why: why.to_owned() }
}

fn placement(is_local: bool, placement: PlacementName) -> Reasoned {
    let (name, why) = match (is_local, placement) {
        (false, _) => ("kernel", "Linux does TCP, in system calls and interrupts"),
        (true, PlacementName::Inline) => (
            "inline",
            "the stack runs in the channel's own dispatch: nothing is handed over, and nothing \
             is answered while the program computes",
        ),
        (true, PlacementName::Thread) => (
            "thread",
            "the stack runs on a thread beside the channel's, on the same core, and wakes it once \
             for all that it has gathered",
        ),
        (true, PlacementName::Core) => (
            "core",
            "the stack has a core of its own where there is one (--server-cpus, else the next): it \
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
    fn flows_have_their_place_by_the_devices_hash_or_by_ours_unless_nothing_is_shared() {
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
    fn the_kernel_steers_by_core_where_each_channel_has_one() {
        let names = [(1, false, true), (2, true, true), (2, false, true), (2, false, false)]
            .map(|(channels, by_core, split)| steering_of_kernel(channels, by_core, split).name);
        assert_eq!(names, ["none", "core", "hash", "shared"]);
    }

    #[test]
    fn channels_on_the_kernel_are_made_and_told() {
        let args = ServeArgs { channels: Some(1), ..ServeArgs::on(Vec::<Address>::new()) };
        let survey = survey(&args).expect("a channel");
        assert_eq!((survey.backend, survey.placement.name), ("kernel", "kernel"));
        assert_eq!((survey.queues, survey.shards, survey.link), (None, None, None));
        assert_eq!(survey.channels.len(), 1);
        assert!(survey.channels[0].core.is_some() && survey.channels[0].place.is_none());
        let none = ServeArgs { channels: Some(0), ..args };
        assert!(super::survey(&none).is_err());
    }
}
