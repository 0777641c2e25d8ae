//! Costs for the simulation of the service, measured in this process just before they are used.
//!
//! A short and a kept connection come from two channels on our own stack in one thread
//! (`costs.rs`), messages and wake-ups from two threads on two cores, the connection manager's work
//! from its real code with as many managers as are simulated.

use super::{
    costs::{self, CostError, Extent, TransactionShape},
    message_costs::{MessageCosts, message_costs},
    service::ServiceCosts,
};
use crate::{limits, measure::median, wakes};
use megapipe_apps::serve::CpuList;
use megapipe_service::{
    AcceptorId, AcceptorName, ManagerId,
    balancer::{BalancerConfig, OfferRule, PickReason, ServiceOffer},
    hand_over::{
        AcceptQueue, AcceptorReport, Assignment, ConnectionName, HandOverConfig, ManagerMessage,
        ManagerOutput, OfferTable, TransportReport,
    },
};
use megapipe_stack::Instant as VirtualInstant;
use std::{
    hint::black_box,
    time::{Duration, Instant},
};

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredService {
    pub(crate) short: TransactionShape,
    pub(crate) kept: TransactionShape,
    pub(crate) messages: MessageCosts,
    /// A thread of another core woken, and the answer.
    pub(crate) wake_us: f64,
    pub(crate) frame_ns: f64,
}

/// Work of one connection manager beside others, and of a transport server's table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ManagerCosts {
    pub(crate) pick_ns: f64,
    pub(crate) report_ns: f64,
    pub(crate) offer_ns: f64,
    pub(crate) offer_take_ns: f64,
    pub(crate) table_ns: f64,
}

impl MeasuredService {
    /// Measures all but the managers' work. Takes some seconds.
    ///
    /// # Errors
    /// [`CostError`].
    pub(crate) fn measure(
        here: &CpuList,
        there: &CpuList,
        rounds: usize,
    ) -> Result<Self, CostError> {
        let short = median_shape(false, rounds)?;
        let kept = median_shape(true, rounds)?;
        let messages = message_costs(here, there, rounds)?;
        let wake_us = median(wakes::round_trips_us(here, there, rounds)?);
        let frame_ns = costs::frame_costs(here, there, rounds)?.plain_ns;
        Ok(Self { short, kept, messages, wake_us, frame_ns })
    }

    /// The costs of a service whose connection managers have these.
    pub(crate) fn costs(&self, managers: &ManagerCosts) -> ServiceCosts {
        let ManagerCosts { pick_ns, report_ns, offer_ns, offer_take_ns, table_ns } = *managers;
        let part = |shape: &TransactionShape, share: f64| shape.server_ns * share;
        let program =
            |shape: &TransactionShape| part(shape, 1.0 - shape.input_share - shape.output_share);
        let input = part(&self.short, self.short.input_share);
        let output = part(&self.short, self.short.output_share);
        let waits = self.short.frames_out.round().max(1.0);
        ServiceCosts {
            handshake_ns: (input + output) / 2.0,
            accept_ns: input / 2.0,
            respond_ns: output / 2.0,
            program_ns: program(&self.short),
            kept_in_ns: part(&self.kept, self.kept.input_share),
            kept_out_ns: part(&self.kept, self.kept.output_share),
            kept_program_ns: program(&self.kept),
            client_ns: self.short.load_ns / waits,
            kept_client_ns: self.kept.load_ns,
            frame_ns: self.frame_ns,
            send_ns: self.messages.send_ns,
            take_ns: self.messages.take_ns,
            delay_ns: self.messages.delay_ns(),
            wake_ns: self.wake_us * 1e3 / 2.0,
            pick_ns,
            report_ns,
            offer_ns,
            offer_take_ns,
            table_ns,
        }
    }
}

/// The shape of a connection whose server time is the median of some measurements.
fn median_shape(stays: bool, rounds: usize) -> Result<TransactionShape, CostError> {
    let measure = |_| costs::exchange_shape(1, stays, Extent::default());
    let mut all = (0..rounds.max(1)).map(measure).collect::<Result<Vec<TransactionShape>, _>>()?;
    all.sort_by(|one, other| one.server_ns.total_cmp(&other.server_ns));
    Ok(all[all.len() / 2])
}

const fn acceptor(manager: u16) -> AcceptorName {
    AcceptorName { manager: ManagerId(manager), id: AcceptorId(manager as u64), enlistment: 0 }
}

const fn conn(id: u64) -> ConnectionName {
    ConnectionName { transport: 0, id, flow_hash: id as u32 }
}

/// A manager with one acceptor, and as many others that have sent offers.
fn manager(managers: u16) -> AcceptQueue {
    let balancer = BalancerConfig { offer_rule: OfferRule::Always, ..BalancerConfig::default() };
    let hand_over = HandOverConfig::default();
    let mut queue = AcceptQueue::new(ManagerId(0), &hand_over, balancer).expect("valid settings");
    let (mut out, now) = (Vec::new(), VirtualInstant::from_nanos(0));
    queue.enlist(now, AcceptorId(0), u32::MAX, 0, &mut out).expect("one acceptor");
    for other in 1..managers {
        queue.on_message(now, ManagerMessage::Joined(acceptor(other)), 0, &mut out);
        let offer =
            ServiceOffer { acceptor: acceptor(other), service_time: 10_000, credits: u32::MAX };
        queue.on_message(now, ManagerMessage::Offer(offer), 0, &mut out);
    }
    queue
}

/// Nanoseconds of a call: the median of rounds.
fn time(mut call: impl FnMut(u64)) -> f64 {
    let mut number = 0;
    let round = |_| {
        let start = Instant::now();
        for _ in 0..limits::MANAGER_CALLS {
            number += 1;
            call(number);
        }
        start.elapsed().as_nanos() as f64 / f64::from(limits::MANAGER_CALLS)
    };
    median((0..limits::MANAGER_ROUNDS).map(round))
}

/// Measures one manager of `managers`, in some milliseconds.
pub(crate) fn manager_costs(managers: u16) -> ManagerCosts {
    let mut queue = manager(managers);
    let mut out: Vec<ManagerOutput> = Vec::new();
    let at = |number: u64| VirtualInstant::from_micros(number * 50);
    let service_time = Duration::from_micros(10);
    let own = acceptor(0);
    let report_ns = time(|number| {
        out.clear();
        let closed = AcceptorReport::Closed { acceptor: own, service_time };
        queue.on_acceptor(at(number), closed, number, &mut out);
    });
    let pick_ns = time(|number| {
        out.clear();
        let now = VirtualInstant::from_nanos(number);
        let report = TransportReport::Unassigned(conn(number));
        queue.on_transport(now, report, number.wrapping_mul(0x9e37_79b9_7f4a_7c15), &mut out);
        black_box(&out);
    });
    let offer_ns = time(|number| {
        out.clear();
        queue.publish_offer(at(number), managers, &mut out);
        black_box(&out);
    });
    let from = acceptor(managers.saturating_sub(1).max(1));
    let offer_take_ns = time(|number| {
        out.clear();
        let offer = ServiceOffer { acceptor: from, service_time: number, credits: u32::MAX };
        queue.on_message(at(number), ManagerMessage::Offer(offer), 0, &mut out);
    });
    ManagerCosts { pick_ns, report_ns, offer_ns, offer_take_ns, table_ns: table_costs() }
}

/// One of the four changes that a connection makes in a table of offers.
fn table_costs() -> f64 {
    let mut table = OfferTable::new(&HandOverConfig::default()).expect("default settings");
    // Some others are open, as on a server at work.
    for id in 0..limits::TABLE_OPEN {
        table.on_established(conn(id << 32));
    }
    let all = time(|number| {
        let (now, conn, own) = (VirtualInstant::from_micros(number), conn(number), acceptor(0));
        black_box(table.on_established(conn));
        let assignment =
            Assignment { conn, acceptor: own, is_final: false, reason: PickReason::Local };
        let _ = black_box(table.assign(now, assignment));
        black_box(table.claim(conn, own));
        black_box(table.on_closed(now, number));
    });
    all / 4.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_work_is_measured_for_any_number_of_managers() {
        for managers in [1, 2, 8] {
            let costs = manager_costs(managers);
            let ManagerCosts { pick_ns, report_ns, offer_ns, offer_take_ns, table_ns } = costs;
            for ns in [pick_ns, report_ns, offer_ns, offer_take_ns, table_ns] {
                assert!(ns > 0.1 && ns < 1e6, "{managers}: {costs:?}");
            }
        }
    }
}
