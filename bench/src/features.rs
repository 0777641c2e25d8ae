//! Table 1 of the mTCP paper, with a row for each of our back ends: how each system reduces the
//! costs of TCP in the kernel.
//!
//! Read first: the mTCP paper, 2.1 and table 1. The paper's rows are its own; ours are held against
//! what a channel starts with by a test, and the page `docs/BENCHMARKING.md` against this file.

use crate::table::TextTable;

/// A system and its features of the paper's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Features {
    system: &'static str,
    /// Whether each core has its own accept queue.
    accept_queue: &'static str,
    /// Whether a connection is handled on the core of its application.
    locality: &'static str,
    /// What a program calls.
    api: &'static str,
    /// How many of a program's requests cross a border together.
    event_handling: &'static str,
    packet_io: &'static str,
    /// What has to be changed in a program.
    application: &'static str,
    /// What has to be changed in the kernel.
    kernel: &'static str,
}

/// In the order of the fields.
const fn features(row: [&'static str; 8]) -> Features {
    let [system, accept_queue, locality, api, event_handling, packet_io, application, kernel] = row;
    Features { system, accept_queue, locality, api, event_handling, packet_io, application, kernel }
}

/// The paper's rows [MT table 1].
const PAPER: [Features; 7] = [
    features([
        "packet I/O (netmap, DPDK …)",
        "no TCP",
        "no TCP",
        "packets",
        "batched",
        "batched",
        "no TCP",
        "a driver",
    ]),
    features([
        "Linux 2.6",
        "shared",
        "no",
        "BSD sockets",
        "system calls",
        "by packet",
        "none",
        "none",
    ]),
    features([
        "Linux 3.9",
        "per core",
        "no",
        "BSD sockets",
        "system calls",
        "by packet",
        "SO_REUSEPORT",
        "none",
    ]),
    features([
        "Affinity-Accept",
        "per core",
        "yes",
        "BSD sockets",
        "system calls",
        "by packet",
        "none",
        "yes",
    ]),
    features([
        "MegaPipe",
        "per core",
        "yes",
        "lwsockets",
        "batched system calls",
        "by packet",
        "completions",
        "yes",
    ]),
    features([
        "FlexSC, VOS",
        "shared",
        "no",
        "BSD sockets",
        "batched system calls",
        "by packet",
        "a new API",
        "yes",
    ]),
    features([
        "mTCP",
        "per core",
        "yes",
        "user-level sockets",
        "batched function calls",
        "batched",
        "mTCP's API",
        "a driver",
    ]),
];

/// This project: `kernel` on the kernel's TCP, `local` on its own.
const OURS: [Features; 3] = [
    features([
        "megapipe, kernel",
        "per core",
        "yes",
        "lwsockets",
        "batched system calls",
        "by packet",
        "completions",
        "none",
    ]),
    features([
        "megapipe, local",
        "per core",
        "yes",
        "lwsockets",
        "batched function calls",
        "batched",
        "completions",
        "none",
    ]),
    features([
        "megapipe, local, sockets",
        "per core",
        "yes",
        "user-level sockets, or mTCP's API",
        "batched function calls",
        "batched",
        "a prefix",
        "none",
    ]),
];

/// The table, the paper's rows first.
pub(crate) fn table() -> TextTable {
    let mut table = TextTable::new(&[
        "system",
        "accept queue",
        "locality",
        "sockets",
        "event handling",
        "packet I/O",
        "application changes",
        "kernel changes",
    ]);
    for it in PAPER.iter().chain(&OURS) {
        let cells = [
            it.system,
            it.accept_queue,
            it.locality,
            it.api,
            it.event_handling,
            it.packet_io,
            it.application,
            it.kernel,
        ];
        table.row(cells.map(str::to_owned));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapipe::{Accept, Backend, Channel, Config, LocalNetwork, ServerConfig};
    use megapipe_link::{PairConfig, pair};
    use megapipe_service::limits::{RX_FRAMES_PER_POLL, TX_FRAMES_PER_POLL};

    #[test]
    fn the_page_has_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/BENCHMARKING.md");
        let page = std::fs::read_to_string(path).unwrap();
        for row in table().rows() {
            let line = format!("| {} |", row.join(" | "));
            assert!(page.contains(&line), "docs/BENCHMARKING.md lacks\n{line}");
        }
    }

    #[test]
    fn our_rows_are_what_a_channel_starts_with() {
        let config = Config::default();
        for ours in OURS {
            assert_eq!(ours.accept_queue == "per core", config.partition, "{}", ours.system);
            assert_eq!(ours.event_handling.starts_with("batched"), config.batch > 1);
            assert_eq!(ours.kernel, "none", "{}: nothing of ours is in the kernel", ours.system);
        }
        assert!(config.lwsockets && Accept::lwsocket(1).count == 1);
    }

    // Packets go in batches.
    const _: () = assert!(RX_FRAMES_PER_POLL > 1 && TX_FRAMES_PER_POLL > 1);

    #[test]
    fn our_own_stack_needs_no_kernel_and_gives_each_shard_a_listener() {
        // Two channels of one network listen at one address, each for itself.
        let (ours, _theirs) = pair(&PairConfig::default()).unwrap();
        let settings = ServerConfig {
            addresses: vec![([10, 0, 0, 1].into(), 24)],
            connections: 16,
            shards: Some(2),
            ..ServerConfig::default()
        };
        let network = LocalNetwork::over(vec![Box::new(ours)], settings).unwrap();
        for _ in 0..2 {
            let backend = Backend::Local(network.clone());
            let mut channel = Channel::create(Config::default().backend(backend)).unwrap();
            let address = "10.0.0.1:80".parse().unwrap();
            channel.listen(&address, &megapipe::ListenOptions::default(), 0).unwrap();
        }
    }
}
