//! Options of connections, and what holds of connections, listeners and endpoints when they are
//! made: as codes, values and flags of records.

use std::time::Duration;

use megapipe_shm::record::{
    BIND_EXCLUDES, BIND_MAPPED, BIND_SHARED, BIND_SPREADS, CONNECT_FAST_OPEN, CONNECT_HAS_NODELAY,
    CONNECT_NODELAY, CONNECT_RESETS, LISTEN_EXCLUSIVE, LISTEN_REUSE_ADDRESS, LISTEN_REUSE_PORT,
    LISTEN_V6_ONLY,
};
use megapipe_stack::{ConnOption, DatagramOwner, DatagramSharing, Reuse};

use crate::begin::ConnectStart;
use crate::limits::CORES_MAX;
use crate::sharing::Sharing;
use crate::steering::Takes;

/// The value of a duration that is not set: longer than any that is.
const NO_DURATION: u64 = u64::MAX;

fn duration(value: Duration) -> u64 {
    u64::try_from(value.as_micros()).unwrap_or(NO_DURATION - 1).min(NO_DURATION - 1)
}

fn duration_if_any(value: Option<Duration>) -> u64 {
    value.map_or(NO_DURATION, duration)
}

/// An option's code and its value; `None`: it has none.
pub(in crate::remote) fn encode_option(option: ConnOption) -> Option<(u32, u64)> {
    Some(match option {
        ConnOption::NoDelay(on) => (1, on.into()),
        ConnOption::Cork(on) => (2, on.into()),
        ConnOption::More(on) => (3, on.into()),
        ConnOption::KeepaliveIdle(idle) => (4, duration_if_any(idle)),
        ConnOption::KeepaliveInterval(interval) => (5, duration(interval)),
        ConnOption::KeepaliveProbes(probes) => (6, probes.into()),
        ConnOption::UserTimeout(timeout) => (7, duration_if_any(timeout)),
        ConnOption::ReceiveBuffer(bytes) => (8, bytes.into()),
        ConnOption::SendBuffer(bytes) => (9, bytes.into()),
        ConnOption::HopLimit(hops) => (10, hops.into()),
        ConnOption::Dscp(dscp) => (11, dscp.into()),
        ConnOption::ReportUnsentBelow(bytes) => (12, bytes.into()),
        ConnOption::Urgent => (13, 0),
        ConnOption::EndOfRecord => (14, 0),
        ConnOption::QuickAck(on) => (15, on.into()),
        ConnOption::Reuse(reuse) => (16, reuse_flags(reuse).into()),
        ConnOption::FastOpen => (17, 0),
        _ => return None,
    })
}

/// The option that [`encode_option`] has encoded; `None` if it is something else.
pub(in crate::remote) fn decode_option(code: u32, value: u64) -> Option<ConnOption> {
    let on = match value {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    };
    let byte = u8::try_from(value);
    let word = u32::try_from(value);
    let time = (value != NO_DURATION).then(|| Duration::from_micros(value));
    let alone = |option| (value == 0).then_some(option);
    match code {
        1 => on.map(ConnOption::NoDelay),
        2 => on.map(ConnOption::Cork),
        3 => on.map(ConnOption::More),
        4 => Some(ConnOption::KeepaliveIdle(time)),
        5 => time.map(ConnOption::KeepaliveInterval),
        6 => byte.ok().map(ConnOption::KeepaliveProbes),
        7 => Some(ConnOption::UserTimeout(time)),
        8 => word.ok().map(ConnOption::ReceiveBuffer),
        9 => word.ok().map(ConnOption::SendBuffer),
        10 => byte.ok().map(ConnOption::HopLimit),
        11 => byte.ok().map(ConnOption::Dscp),
        12 => word.ok().map(ConnOption::ReportUnsentBelow),
        13 => alone(ConnOption::Urgent),
        14 => alone(ConnOption::EndOfRecord),
        15 => on.map(ConnOption::QuickAck),
        16 => {
            let flags = u16::try_from(value).ok()?;
            let reuse = reuse_of(flags);
            (reuse_flags(reuse) == flags).then_some(ConnOption::Reuse(reuse))
        }
        17 => alone(ConnOption::FastOpen),
        _ => None,
    }
}

const fn flag(is_set: bool, flag: u16) -> u16 {
    if is_set { flag } else { 0 }
}

const fn reuse_flags(reuse: Reuse) -> u16 {
    flag(reuse.address, LISTEN_REUSE_ADDRESS)
        | flag(reuse.port, LISTEN_REUSE_PORT)
        | flag(reuse.v6_only, LISTEN_V6_ONLY)
}

const fn reuse_of(flags: u16) -> Reuse {
    Reuse {
        address: flags & LISTEN_REUSE_ADDRESS != 0,
        port: flags & LISTEN_REUSE_PORT != 0,
        v6_only: flags & LISTEN_V6_ONLY != 0,
    }
}

/// The flags of a listener, and the cores that it takes, as the call buffer has them.
pub(in crate::remote) fn encode_sharing(sharing: &Sharing) -> (u16, Option<Vec<u8>>) {
    let flags = flag(sharing.is_exclusive, LISTEN_EXCLUSIVE) | reuse_flags(sharing.reuse);
    let cores = match &sharing.takes {
        Takes::Cores(cores) => Some(cores.iter().flat_map(|core| core.to_ne_bytes()).collect()),
        Takes::Rest => None,
    };
    (flags, cores)
}

/// What [`encode_sharing`] has encoded; `None` if the cores are something else.
pub(in crate::remote) fn decode_sharing(
    flags: u16,
    fast_open: u32,
    cores: Option<&[u8]>,
) -> Option<Sharing> {
    let takes = match cores {
        None => Takes::Rest,
        Some(bytes) => {
            let (words, []) = bytes.as_chunks() else { return None };
            let cores: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
            // In ascending order, so that there are at most as many as numbers.
            if !cores.is_sorted_by(|one, next| one < next)
                || cores.last().is_some_and(|last| *last >= CORES_MAX)
            {
                return None;
            }
            Takes::Cores(cores)
        }
    };
    let is_exclusive = flags & LISTEN_EXCLUSIVE != 0;
    Some(Sharing { takes, is_exclusive, reuse: reuse_of(flags), fast_open })
}

/// The flags of a connection that begins.
pub(in crate::remote) fn encode_begin(begin: ConnectStart) -> u16 {
    flag(begin.nodelay.is_some(), CONNECT_HAS_NODELAY)
        | flag(begin.nodelay == Some(true), CONNECT_NODELAY)
        | flag(begin.fast_open, CONNECT_FAST_OPEN)
        | flag(begin.resets_on_close, CONNECT_RESETS)
}

/// What [`encode_begin`] has encoded; `None` if it is something else.
pub(in crate::remote) fn decode_begin(flags: u16) -> Option<ConnectStart> {
    let nodelay = (flags & CONNECT_HAS_NODELAY != 0).then_some(flags & CONNECT_NODELAY != 0);
    let begin = ConnectStart {
        nodelay,
        fast_open: flags & CONNECT_FAST_OPEN != 0,
        resets_on_close: flags & CONNECT_RESETS != 0,
    };
    (encode_begin(begin) == flags).then_some(begin)
}

/// The flags of an endpoint. Its owner is known to the server.
pub(in crate::remote) const fn encode_bind(sharing: DatagramSharing) -> u16 {
    flag(sharing.is_shared, BIND_SHARED)
        | flag(sharing.spreads, BIND_SPREADS)
        | flag(sharing.is_mapped, BIND_MAPPED)
        | flag(sharing.excludes_others, BIND_EXCLUDES)
}

/// What [`encode_bind`] has encoded.
pub(in crate::remote) fn decode_bind(flags: u16) -> DatagramSharing {
    DatagramSharing {
        is_shared: flags & BIND_SHARED != 0,
        spreads: flags & BIND_SPREADS != 0,
        is_mapped: flags & BIND_MAPPED != 0,
        excludes_others: flags & BIND_EXCLUDES != 0,
        owner: DatagramOwner::default(),
    }
}
