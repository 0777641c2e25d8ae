//! Neighbour cache in virtual time: states, rates, floods.

use super::*;
use core::net::Ipv4Addr;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn ip(n: u16) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 | u32::from(n)))
}

fn s(seconds: u64) -> Instant {
    Instant::from_millis(seconds * 1000)
}

fn answer(n: u16, mac: [u8; 6]) -> Claim {
    Claim { ip: ip(n), mac: Some(mac), solicited: true, replaces: true }
}

fn state(cache: &Neighbours, n: u16) -> NeighbourState {
    cache.entries[usize::from(cache.slot_of(ip(n)).unwrap())].state
}

/// A cache that knows neighbour 1 since second 0.
fn known() -> (Neighbours, NeighbourPlace) {
    let mut cache = Neighbours::new(s(0), OWN_MAC);
    assert_eq!(cache.find(s(0), ip(1), true), None);
    assert_eq!(cache.poll_question(s(0)), Some(Question { ip: ip(1), mac: None }));
    assert_eq!(cache.on_claim(s(0), answer(1, MAC)), Heard::Used);
    assert_eq!(cache.poll_decided(), Some((ip(1), true)));
    let place = cache.find(s(0), ip(1), true).unwrap();
    (cache, place)
}

/// Where a frame to `place` goes, which comes from us.
fn link_address(cache: &Neighbours, place: NeighbourPlace) -> Option<[u8; 6]> {
    let link = cache.link(place)?;
    let dst = link.dst();
    assert_eq!(link, AddressWords::new(dst, OWN_MAC));
    Some(dst)
}

/// All decisions so far.
fn decided(cache: &mut Neighbours) -> Vec<(IpAddr, bool)> {
    core::iter::from_fn(|| cache.poll_decided()).collect()
}

#[test]
fn an_answer_makes_a_neighbour_reachable() {
    let (mut cache, place) = known();
    assert_eq!(state(&cache, 1), NeighbourState::Reachable);
    assert_eq!(link_address(&cache, place), Some(MAC));
    assert!(cache.is_fresh(s(29), place));
    assert_eq!(cache.poll_question(s(29)), None);
}

#[test]
fn confirmation_cancels_queued_question() {
    let (mut cache, place) = known();
    assert!(cache.is_fresh(s(31), place));
    cache.on_timeout(s(36));
    assert_eq!(state(&cache, 1), NeighbourState::Probe);
    cache.confirm(s(36), place);
    assert_eq!(state(&cache, 1), NeighbourState::Reachable);
    assert_eq!(cache.poll_question(s(36)), None);
    assert!(cache.is_fresh(s(65), place));
    assert_eq!(state(&cache, 1), NeighbourState::Reachable, "for all of its time");
}

#[test]
fn three_questions_a_second_apart_and_then_failure() {
    let mut cache = Neighbours::new(s(0), OWN_MAC);
    assert_eq!(cache.find(s(0), ip(1), true), None);
    for second in 0..3 {
        cache.on_timeout(s(second));
        assert!(cache.poll_question(s(second)).is_some());
        assert_eq!(cache.poll_question(s(second)), None);
        assert_eq!(cache.find(s(second), ip(1), true), None, "asked again, it is not asked twice");
        assert_eq!(cache.poll_question(s(second)), None);
        assert_eq!(cache.poll_timeout(), Some(s(second + 1)));
    }
    assert!(decided(&mut cache).is_empty());
    cache.on_timeout(s(3));
    assert_eq!(decided(&mut cache), [(ip(1), false)]);
    assert_eq!(cache.poll_timeout(), None);
    assert_eq!(cache.on_claim(s(4), answer(1, MAC)), Heard::Ignored, "no request is pending");
}

#[test]
fn one_that_failed_is_asked_again_a_second_later() {
    let mut cache = Neighbours::new(s(0), OWN_MAC);
    cache.find(s(0), ip(1), true);
    for second in 0..=3 {
        cache.on_timeout(s(second));
        cache.poll_question(s(second));
    }
    assert_eq!(decided(&mut cache).len(), 1);
    // The third question went out at second 2, so that one at 3 is allowed.
    assert_eq!(cache.find(s(3), ip(1), true), None);
    assert!(cache.poll_question(s(3)).is_some());
    assert_eq!(state(&cache, 1), NeighbourState::Incomplete);
}

#[test]
fn a_stale_neighbour_is_used_and_then_probed() {
    let (mut cache, place) = known();
    assert!(cache.is_fresh(s(31), place), "used as it is");
    assert_eq!(state(&cache, 1), NeighbourState::Delay);
    cache.on_timeout(s(31));
    assert_eq!(cache.poll_timeout(), Some(s(36)));
    for second in 36..39 {
        cache.on_timeout(s(second));
        let question = Question { ip: ip(1), mac: Some(MAC) };
        assert_eq!(cache.poll_question(s(second)), Some(question));
        assert!(cache.is_fresh(s(second), place));
    }
    cache.on_timeout(s(39));
    assert!(!cache.is_fresh(s(39), place));
    assert_eq!(cache.find(s(40), ip(1), true), None, "the request is broadcast");
    assert_eq!(cache.poll_question(s(40)), Some(Question { ip: ip(1), mac: None }));
}

#[test]
fn a_transport_that_makes_progress_spares_the_probes() {
    let (mut cache, place) = known();
    assert!(cache.is_fresh(s(31), place));
    cache.confirm(s(32), place);
    cache.on_timeout(s(36));
    assert_eq!(cache.poll_question(s(36)), None);
    assert_eq!(state(&cache, 1), NeighbourState::Reachable);
}

#[test]
fn a_probe_that_is_answered_ends_the_probing() {
    let (mut cache, place) = known();
    assert!(cache.is_fresh(s(31), place));
    cache.on_timeout(s(36));
    assert!(cache.poll_question(s(36)).is_some());
    let same = Claim { ip: ip(1), mac: None, solicited: true, replaces: false };
    assert_eq!(cache.on_claim(s(36), same), Heard::Used);
    assert_eq!(state(&cache, 1), NeighbourState::Reachable);
    cache.on_timeout(s(37));
    assert_eq!(cache.poll_question(s(37)), None);
}

#[test]
fn neighbour_cache_ignores_unsolicited_claims() {
    let mut cache = Neighbours::new(s(0), OWN_MAC);
    for n in 0..5000 {
        assert_eq!(cache.on_claim(s(0), answer(n, MAC)), Heard::Ignored);
    }
    assert!(cache.order.is_empty());
}

#[test]
fn a_second_answer_does_not_replace_the_first_at_once() {
    let (mut cache, place) = known();
    assert_eq!(cache.on_claim(Instant::from_millis(500), answer(1, OTHER_MAC)), Heard::Ignored);
    assert_eq!(link_address(&cache, place), Some(MAC));
    let moved = Claim { solicited: false, ..answer(1, OTHER_MAC) };
    assert_eq!(cache.on_claim(s(2), moved), Heard::Used, "a host that moved says so");
    assert_eq!(link_address(&cache, place), Some(OTHER_MAC));
    assert_eq!(state(&cache, 1), NeighbourState::Stale, "and is checked");
    assert!(cache.is_fresh(s(2), place));
}

#[test]
fn a_claim_that_does_not_replace_only_raises_doubt() {
    let (mut cache, place) = known();
    let doubt = Claim { replaces: false, ..answer(1, OTHER_MAC) };
    assert_eq!(cache.on_claim(s(5), doubt), Heard::Ignored);
    assert_eq!(link_address(&cache, place), Some(MAC));
    assert_eq!(state(&cache, 1), NeighbourState::Stale);
}

#[test]
fn unsolicited_answer_does_not_refresh_stale_neighbour() {
    let (mut cache, place) = known();
    assert!(cache.is_fresh(s(31), place));
    cache.on_claim(s(31), answer(1, MAC));
    assert_eq!(state(&cache, 1), NeighbourState::Delay);
}

#[test]
fn a_flood_of_destinations_keeps_those_that_answered() {
    let (mut cache, place) = known();
    let mut questions = 0;
    for n in 2..20_000 {
        assert_eq!(cache.find(s(1), ip(n), true), None);
        questions += usize::from(cache.poll_question(s(1)).is_some());
        assert!(cache.order.len() <= NEIGHBOURS_MAX);
        assert!(cache.unanswered.len() <= UNANSWERED_MAX);
        assert!(cache.questions.len() <= UNANSWERED_MAX);
        cache.poll_decided();
    }
    assert!(cache.is_fresh(s(1), place), "resolved entries are not evicted for unresolved ones");
    assert!(questions <= SOLICITATIONS_PER_S as usize);
    let of_neighbours = cache.entries.len() - 1;
    assert!(of_neighbours <= UNANSWERED_MAX + 2);
}

#[test]
fn a_full_table_forgets_the_one_unused_for_longest() {
    let mut cache = Neighbours::new(s(0), OWN_MAC);
    for n in 0..NEIGHBOURS_MAX as u16 {
        let now = s(u64::from(n));
        assert_eq!(cache.find(now, ip(n), true), None);
        assert!(cache.poll_question(now).is_some());
        assert_eq!(cache.on_claim(now, answer(n, MAC)), Heard::Used);
    }
    let now = s(5000);
    let oldest = cache.find(now, ip(0), true).expect("used now, so no more the oldest");
    assert_eq!(cache.find(now, ip(60_000), true), None);
    assert!(cache.is_fresh(now, oldest));
    assert_eq!(cache.slot_of(ip(1)), None);
    assert_eq!(cache.order.len(), NEIGHBOURS_MAX);
}

#[test]
fn other_routes_make_every_place_stale_and_leave_the_neighbours_known() {
    let mut cache = Neighbours::new(s(0), OWN_MAC);
    assert!(cache.set(s(0), ip(1), MAC));
    let (place, shared) = (cache.find(s(0), ip(1), false).unwrap(), cache.without_address());
    assert!(cache.is_fresh(s(0), place) && cache.is_fresh(s(0), shared));
    cache.outdate();
    assert!(!cache.is_fresh(s(0), place) && !cache.is_fresh(s(0), shared));
    let again = cache.find(s(0), ip(1), false).unwrap();
    assert!(cache.is_fresh(s(0), again) && cache.is_fresh(s(0), cache.without_address()));
    assert_eq!(link_address(&cache, again), Some(MAC));
}

#[test]
fn a_place_is_worth_nothing_after_its_neighbour_was_removed() {
    let (mut cache, place) = known();
    cache.remove(ip(1));
    assert!(!cache.is_fresh(s(1), place));
    cache.find(s(1), ip(2), true);
    cache.poll_question(s(1));
    cache.on_claim(s(1), answer(2, OTHER_MAC));
    assert!(!cache.is_fresh(s(1), place), "its slot was reused");
}

#[test]
fn permanent_neighbour_ignores_claims() {
    let mut cache = Neighbours::new(s(0), OWN_MAC);
    cache.find(s(0), ip(1), true);
    assert!(cache.set(s(0), ip(1), MAC));
    assert_eq!(decided(&mut cache), [(ip(1), true)]);
    assert_eq!(cache.poll_question(s(0)), None);
    assert_eq!(cache.on_claim(s(9), answer(1, OTHER_MAC)), Heard::Ignored);
    let place = cache.find(s(10_000), ip(1), true).unwrap();
    assert_eq!(link_address(&cache, place), Some(MAC));
    for n in 2..=NEIGHBOURS_MAX as u16 {
        assert!(cache.set(s(0), ip(n), MAC));
    }
    assert!(!cache.set(s(0), ip(60_000), MAC), "full of permanent ones");
    assert_eq!(cache.find(s(0), ip(60_000), true), None);
}

#[test]
fn over_the_rate_questions_wait_and_are_not_lost() {
    let mut cache = Neighbours::new(s(0), OWN_MAC);
    let mut now = s(0);
    for n in 0..SOLICITATIONS_PER_S as u16 {
        cache.find(now, ip(n), true);
        assert!(cache.poll_question(now).is_some());
        cache.on_claim(now, answer(n, MAC));
    }
    cache.find(now, ip(60_000), true);
    assert_eq!(cache.poll_question(now), None);
    let next = cache.poll_timeout().unwrap();
    assert!(next > now);
    now = next;
    cache.on_timeout(now);
    assert_eq!(cache.poll_question(now).unwrap().ip, ip(60_000));
}
