//! Information about connections: their state, and which local ports they have.

use std::collections::BTreeSet;

use megapipe_stack::{ConnInfo, Holder, Reuse, TcpState};

use super::bytes::{ValueReader, ValueWriter};

/// The states by their codes.
const STATES: [TcpState; 9] = [
    TcpState::Closed,
    TcpState::SynSent,
    TcpState::SynReceived,
    TcpState::Established,
    TcpState::FinWait1,
    TcpState::FinWait2,
    TcpState::CloseWait,
    TcpState::Closing,
    TcpState::LastAck,
];

pub(crate) fn encode_info(info: &ConnInfo) -> Vec<u8> {
    let mut to = ValueWriter::default();
    let state = STATES.iter().position(|state| *state == info.state);
    to.u8(state.unwrap_or(0) as u8);
    to.option(info.srtt, ValueWriter::duration);
    to.duration(info.rttvar);
    to.duration(info.rto);
    to.option(info.min_rtt, ValueWriter::duration);
    to.option(info.ssthresh, ValueWriter::u32);
    to.u16(info.mss);
    for value in [
        info.cwnd,
        info.snd_wnd,
        info.snd_wnd_max,
        info.rcv_wnd,
        info.flight_bytes,
        info.queued_bytes,
        info.queued_chunks,
        info.unsent_bytes,
        info.lost_bytes,
        info.sacked_bytes,
        info.unread_bytes,
        info.out_of_order_bytes,
        info.receive_buffer_bytes,
        info.send_buffer_bytes,
        info.segments_in,
        info.segments_out,
        info.segments_retransmitted,
        info.urgent_bytes,
    ] {
        to.u32(value);
    }
    to.u64(info.bytes_in);
    to.u64(info.bytes_out);
    to.u8(info.timeouts);
    to.option(info.window_scale, |to, (theirs, ours)| {
        to.u8(theirs);
        to.u8(ours);
    });
    for value in [info.timestamps, info.sack, info.ecn, info.soft_error, info.syn_data] {
        to.bool(value);
    }
    to.option(info.syn_room, ValueWriter::u32);
    to.into_bytes()
}

/// What [`encode_info`] has written; `None` if it is something else.
pub(crate) fn decode_info(bytes: &[u8]) -> Option<ConnInfo> {
    let mut from = ValueReader::new(bytes);
    let mut info = ConnInfo::default();
    info.state = *STATES.get(usize::from(from.u8()?))?;
    info.srtt = from.option(ValueReader::duration)?;
    info.rttvar = from.duration()?;
    info.rto = from.duration()?;
    info.min_rtt = from.option(ValueReader::duration)?;
    info.ssthresh = from.option(ValueReader::u32)?;
    info.mss = from.u16()?;
    info.cwnd = from.u32()?;
    info.snd_wnd = from.u32()?;
    info.snd_wnd_max = from.u32()?;
    info.rcv_wnd = from.u32()?;
    info.flight_bytes = from.u32()?;
    info.queued_bytes = from.u32()?;
    info.queued_chunks = from.u32()?;
    info.unsent_bytes = from.u32()?;
    info.lost_bytes = from.u32()?;
    info.sacked_bytes = from.u32()?;
    info.unread_bytes = from.u32()?;
    info.out_of_order_bytes = from.u32()?;
    info.receive_buffer_bytes = from.u32()?;
    info.send_buffer_bytes = from.u32()?;
    info.segments_in = from.u32()?;
    info.segments_out = from.u32()?;
    info.segments_retransmitted = from.u32()?;
    info.urgent_bytes = from.u32()?;
    info.bytes_in = from.u64()?;
    info.bytes_out = from.u64()?;
    info.timeouts = from.u8()?;
    info.window_scale = from.option(|from| Some((from.u8()?, from.u8()?)))?;
    info.timestamps = from.bool()?;
    info.sack = from.bool()?;
    info.ecn = from.bool()?;
    info.soft_error = from.bool()?;
    info.syn_data = from.bool()?;
    info.syn_room = from.option(ValueReader::u32)?;
    from.end(info)
}

pub(in crate::remote) fn encode_holders(holders: &BTreeSet<Holder>) -> Vec<u8> {
    let mut to = ValueWriter::default();
    for Holder { port, ip, reuse } in holders {
        to.u16(*port);
        to.ip(*ip);
        let Reuse { address, port, v6_only } = *reuse;
        [address, port, v6_only].into_iter().for_each(|value| to.bool(value));
    }
    to.into_bytes()
}

/// What [`encode_holders`] has written; `None` if it is something else.
pub(in crate::remote) fn decode_holders(bytes: &[u8]) -> Option<BTreeSet<Holder>> {
    let mut from = ValueReader::new(bytes);
    let mut holders = BTreeSet::new();
    while !from.is_at_end() {
        let (port, ip) = (from.u16()?, from.ip()?);
        let reuse = Reuse { address: from.bool()?, port: from.bool()?, v6_only: from.bool()? };
        let holder = Holder { port, ip, reuse };
        // In the set's order, each once.
        if holders.last() >= Some(&holder) {
            return None;
        }
        holders.insert(holder);
    }
    Some(holders)
}
