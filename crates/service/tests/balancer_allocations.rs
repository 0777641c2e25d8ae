//! Picks and grants of a balancer allocate nothing, once it has seen its acceptors and managers.
//!
//! The allocator counts for the whole process, so this is a program without the harness of other
//! tests, whose own thread allocates when the machine is slow.

use std::alloc::System;
use std::time::Duration;

use megapipe_service::balancer::{Balancer, BalancerConfig, Scheme, ServiceOffer};
use megapipe_service::{AcceptorId, AcceptorName, ManagerId};
use megapipe_stack::Instant;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const OWN: ManagerId = ManagerId(0);
const OTHER: ManagerId = ManagerId(1);
const ROUNDS: u64 = 1_000;

/// Assigns a connection and grants the credit that another manager requests.
fn pick_and_grant(balancer: &mut Balancer, round: u64) {
    let now = Instant::from_micros(round);
    // Spread over all numbers of 64 bits.
    let random = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let pick = balancer.pick(now, (random >> 32) as u32, random).expect("an acceptor has credit");
    if pick.acceptor.manager == OWN {
        balancer.on_closed(now, pick.acceptor, Duration::from_micros(100));
    }
    balancer.on_request(OTHER);
    let (borrower, offer) = balancer.grant(now, random, true).expect("an acceptor has credit");
    assert_eq!((borrower, offer.credits), (OTHER, 1));
    balancer.on_returned(offer.acceptor, borrower, offer.credits);
}

fn main() {
    for scheme in [Scheme::default(), Scheme::Hash] {
        picks_and_grants_allocate_nothing(scheme);
    }
    // As the harness says it.
    println!("test picks_and_grants_allocate_nothing ... ok");
}

fn picks_and_grants_allocate_nothing(scheme: Scheme) {
    let config = BalancerConfig { scheme, ..BalancerConfig::default() };
    let mut balancer = Balancer::new(OWN, config).expect("valid settings");
    for id in 0..64 {
        balancer.enlist(AcceptorId(id), 1 << 20).expect("room for it");
    }
    let acceptor = AcceptorName { manager: OTHER, id: AcceptorId(0), enlistment: 0 };
    assert!(balancer.on_joined(acceptor));
    let offer = ServiceOffer { acceptor, service_time: 100_000, credits: u32::MAX };
    assert_eq!(balancer.on_offer(Instant::ZERO, offer), None);
    // The account of lent credit, the requests and the candidates get their memory here.
    (0..ROUNDS).for_each(|round| pick_and_grant(&mut balancer, round));
    let watch = Region::new(ALLOCATOR);
    (ROUNDS..2 * ROUNDS).for_each(|round| pick_and_grant(&mut balancer, round));
    let change = watch.change();
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{change:?}");
}
