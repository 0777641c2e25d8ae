//! The JSON of `megapipe ss`. Fields are only added, never renamed; `docs/SERVICE.md` has them.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use megapipe::ConnInfo;
use megapipe_service::observe::ServiceSocket;
use serde::Serialize;

use super::words::{state_name, timer_name};
use crate::observed::{ObservedService, SocketOwner};

#[derive(Debug, Serialize)]
pub(super) struct SocketsReport<'it> {
    service: &'it Path,
    sees_all: bool,
    sockets: Vec<SocketReport>,
}

#[derive(Debug, Serialize)]
struct SocketReport {
    netid: &'static str,
    state: &'static str,
    recv_q: u32,
    send_q: u32,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    uid: Option<u32>,
    processes: Vec<SocketOwner>,
    shard: u16,
    id: String,
    timer: Option<TimerReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp_info: Option<TcpInfoReport>,
}

/// The timer that expires next.
#[derive(Debug, Serialize)]
struct TimerReport {
    name: &'static str,
    left_us: u64,
    attempts: u8,
}

/// What TCP knows of a connection.
#[derive(Debug, Serialize)]
pub(crate) struct TcpInfoReport {
    rto_us: u64,
    rtt_us: Option<u64>,
    rttvar_us: u64,
    min_rtt_us: Option<u64>,
    mss: u16,
    cwnd_bytes: u32,
    ssthresh_bytes: Option<u32>,
    snd_wnd: u32,
    rcv_wnd: u32,
    bytes_sent: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    segs_retrans: u32,
    unacked_bytes: u32,
    notsent_bytes: u32,
    lost_bytes: u32,
    sacked_bytes: u32,
    out_of_order_bytes: u32,
    receive_buffer_bytes: u32,
    send_buffer_bytes: u32,
    timeouts: u8,
    window_scale: Option<[u8; 2]>,
    timestamps: bool,
    sack: bool,
    ecn: bool,
    fastopen: bool,
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl From<&ConnInfo> for TcpInfoReport {
    fn from(info: &ConnInfo) -> Self {
        Self {
            rto_us: microseconds(info.rto),
            rtt_us: info.srtt.map(microseconds),
            rttvar_us: microseconds(info.rttvar),
            min_rtt_us: info.min_rtt.map(microseconds),
            mss: info.mss,
            cwnd_bytes: info.cwnd,
            ssthresh_bytes: info.ssthresh,
            snd_wnd: info.snd_wnd,
            rcv_wnd: info.rcv_wnd,
            bytes_sent: info.bytes_out,
            bytes_received: info.bytes_in,
            segs_out: info.segments_out,
            segs_in: info.segments_in,
            segs_retrans: info.segments_retransmitted,
            unacked_bytes: info.flight_bytes,
            notsent_bytes: info.unsent_bytes,
            lost_bytes: info.lost_bytes,
            sacked_bytes: info.sacked_bytes,
            out_of_order_bytes: info.out_of_order_bytes,
            receive_buffer_bytes: info.receive_buffer_bytes,
            send_buffer_bytes: info.send_buffer_bytes,
            timeouts: info.timeouts,
            window_scale: info.window_scale.map(|(theirs, ours)| [theirs, ours]),
            timestamps: info.timestamps,
            sack: info.sack,
            ecn: info.ecn,
            fastopen: info.syn_data,
        }
    }
}

pub(super) fn report<'it>(
    observed: &'it ObservedService,
    sockets: &[(u16, &ServiceSocket)],
) -> SocketsReport<'it> {
    let owners = observed.owners();
    let each = sockets.iter().map(|(shard, socket)| SocketReport {
        netid: if socket.is_datagram { "udp" } else { "tcp" },
        state: state_name(socket.state),
        recv_q: socket.receive_queue,
        send_q: socket.send_queue,
        local: socket.local,
        peer: socket.peer,
        uid: socket.uid,
        processes: owners(*shard, socket),
        shard: *shard,
        id: format!("{:x}.{:x}", socket.index, socket.generation),
        timer: socket.timer.as_ref().map(|timer| TimerReport {
            name: timer_name(timer.kind),
            left_us: microseconds(timer.left),
            attempts: timer.attempts,
        }),
        tcp_info: socket.info.as_deref().map(TcpInfoReport::from),
    });
    let sockets = each.collect();
    SocketsReport { service: &observed.path, sees_all: observed.daemon.sees_all, sockets }
}
