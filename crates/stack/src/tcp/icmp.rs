//! ICMP errors about segments of ours.
//!
//! Read first: RFC 9293 §3.9.2.2; RFC 5927 §4 (only what is in flight can be the matter); RFC 5461
//! (soft errors); RFC 1191, RFC 8201.

use super::connection::Connection;
use super::handshake::mss_of;
use super::mss_search::AGAIN_AFTER;
use super::state::{Input, State};
use super::{Found, Shard, Tcp};
use crate::context::Context;
use crate::counters::Drop;
use crate::error::CloseReason;
use crate::flow_table::Flow;
use crate::ip::{IcmpError, IcmpErrorKind, Unreachable};
use crate::memory::Memory;

impl Tcp {
    /// An ICMP error about a segment.
    pub(crate) fn on_icmp_error<M: Memory>(
        &mut self,
        context: &mut Context<'_, M>,
        error: &IcmpError,
    ) {
        let flow = Flow {
            local: error.local.ip().into(),
            remote: error.remote.ip().into(),
            local_port: error.local.port(),
            remote_port: error.remote.port(),
        };
        match self.find(self.shard.flows.hash(&flow), &flow) {
            Some(Found::Connection(index)) => {
                let conn = &mut self.connections[index as usize];
                on_error(conn, &mut self.shard, context, error);
                self.schedule(context, index);
            }
            Some(Found::HalfOpen(index)) => {
                // MUST-54: the SYN-ACK is all that can be the matter. Its retries decide.
                if self.half_open.get(index).iss != error.seq {
                    context.base.counters.drop(Drop::BadIcmpError);
                }
            }
            Some(Found::TimeWait(_)) | None => context.base.counters.drop(Drop::BadIcmpError),
        }
    }
}

fn on_error<M: Memory>(
    conn: &mut Connection,
    shard: &mut Shard,
    context: &mut Context<'_, M>,
    error: &IcmpError,
) {
    // MUST-54: the quoted segment is in flight.
    if !error.seq.within(conn.send.una, conn.send.flight()) {
        return context.base.counters.drop(Drop::BadIcmpError);
    }
    match error.kind {
        IcmpErrorKind::FragmentationNeeded { mtu } => on_too_big(conn, shard, context, mtu),
        // SHLD-26, but RFC 5461 §4.1: once data flowed, a forged error is likelier than a port
        // that vanished; retransmissions decide.
        IcmpErrorKind::Unreachable(Unreachable::Protocol | Unreachable::Port) => {
            if let State::SynSent(_) | State::SynReceived(_) = conn.state {
                super::close::apply(conn, shard, context, Input::GiveUp(CloseReason::Refused));
            }
        }
        // MUST-56, SHLD-25: soft errors. While a SYN is unanswered they are reported (RFC 5461
        // §4.2 would give up; Linux and this stack retry).
        IcmpErrorKind::Unreachable(_)
        | IcmpErrorKind::TimeExceeded
        | IcmpErrorKind::ParameterProblem => shard.rares.of(conn, context.now).soft_error = true,
    }
}

/// RFC 1191 §6.4, RFC 8201 §5.2: smaller segments from now on, and those in flight again.
fn on_too_big<M>(conn: &mut Connection, shard: &mut Shard, context: &mut Context<'_, M>, mtu: u16) {
    if !context.base.config.tcp.path_mtu_discovery {
        return context.base.counters.drop(Drop::BadIcmpError);
    }
    // Other connections to the same host need not find out for themselves.
    context.base.ip.learn_path_mtu(context.now, conn.ends.remote(), mtu);
    let mss =
        conn.mss_within(mss_of(context.base.ip.payload_bytes_max(conn.ends.remote_address())));
    if mss >= conn.mss || !conn.state.is_synchronized() {
        return;
    }
    conn.mss = mss;
    shard.rares.of(conn, context.now).search.begin(context.now, AGAIN_AFTER);
    conn.cold.recovery.on_packet_too_big(&mut shard.records, context.now, u32::from(mss));
}
