//! Our stack against Linux's programs in network namespaces: over a TAP device, and over packet
//! sockets and AF_XDP on a veth whose address the kernel there shares with us; both directions,
//! IPv4 and IPv6, without and with loss. tshark judges every capture.
//!
//! ```text
//!  Linux: 10.77.0.1, fd77::1                ours: 10.77.0.2, fd77::2 (src/bin/interop.rs)
//!  ping, curl, wrk, ab, nginx, tap0 or      stack, capture, then faults, then the link
//!  libmemcached, redis-cli, mp-far ------>
//!  sockets
//! ```
//!
//! Read first: `host.rs` (the namespaces and our programs in them), `judge.rs` (what is held
//! against a capture).
//!
//! Loss is of frames, in both directions, on our side of the wire: under a namespace of its own
//! this kernel has no netem. With loss the offloads are off, so that a frame is a segment.
//!
//! Some tests also run with the stack in a daemon (`src/bin/daemon.rs`), which captures.
//!
//! `memif.rs` is the exception: no kernel is at the other end of a memif, so both ends are ours.
//!
//! Needs root; otherwise each test says that it was skipped. iperf3 is not used: both its ends
//! speak a protocol of its own, so one of them cannot be ours.

mod breakage;
mod bulk;
mod faults;
mod host;
mod http;
mod judge;
mod kv;
mod load;
mod memif;
mod ping;
mod transfers;

/// A test for each of the functions named, on one wire, if the programs are there.
macro_rules! tests {
    ($wire:ident by $owner:ident in $name:ident: $($part:ident::$test:ident $programs:tt)*) => {
        mod $name {
            use crate::host::{StackOwner, Wire, with_host};
            $(
                #[test]
                fn $test() {
                    let name = concat!(stringify!($name), "::", stringify!($test));
                    let place = (Wire::$wire, StackOwner::$owner);
                    with_host(name, place, &$programs, crate::$part::$test);
                }
            )*
        }
    };
}

tests! { Tap by Program in both_ours:
    memif::our_load_gets_files_from_our_server []
    memif::our_stacks_transfer_among_themselves []
}

/// The same functions on each wire.
macro_rules! tests_on_each_wire {
    ($($all:tt)*) => {
        tests! { Tap by Program in tap: $($all)* }
        tests! { Packet by Program in packet: $($all)* }
        tests! { Xdp by Program in xdp: $($all)* }
    };
}

tests_on_each_wire! {
    breakage::a_client_that_is_killed_takes_nothing_with_it ["curl", "sha256sum"]
    breakage::a_stack_that_comes_back_resets_what_it_does_not_know []
    breakage::a_transfer_outlives_a_link_that_was_cut ["curl", "sha256sum"]
    bulk::what_linux_sends_arrives_whole ["sha256sum"]
    bulk::what_we_send_arrives_whole ["sha256sum"]
    faults::streams_are_whole_whatever_happens_to_frames []
    http::curl_gets_files_ranges_and_several_on_one_connection ["curl", "sha256sum"]
    http::wrk_and_ab_get_small_files ["wrk", "ab"]
    kv::a_client_sets_and_gets_over_both_families []
    kv::libmemcacheds_tools_find_a_cache
        ["memccapable", "memccp", "memccat", "memcexist", "memcrm", "memcping", "memcslap"]
    kv::rediss_tools_find_a_cache ["redis-cli", "redis-benchmark"]
    load::our_load_gets_files_from_nginx ["nginx"]
    ping::linux_is_answered ["ping"]
    transfers::linux_asks_us_for_transfers []
    transfers::we_ask_linux_for_transfers []
}

// Of all those above the ones that differ most from each other, for the time that they take.
tests! { Tap by Daemon in service_tap:
    breakage::a_client_that_is_killed_takes_nothing_with_it ["curl", "sha256sum"]
    breakage::a_stack_that_comes_back_resets_what_it_does_not_know []
    breakage::a_transfer_outlives_a_link_that_was_cut ["curl", "sha256sum"]
    transfers::linux_asks_us_for_transfers []
}

tests! { Packet by Daemon in service_packet:
    http::curl_gets_files_ranges_and_several_on_one_connection ["curl", "sha256sum"]
    http::wrk_and_ab_get_small_files ["wrk", "ab"]
    transfers::we_ask_linux_for_transfers []
}
