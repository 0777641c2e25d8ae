//! What a balancer picks, and what it offers.

use super::*;
use crate::limits::{self, LOAN_MAX};

const ME: ManagerId = ManagerId(3);

fn at(us: u64) -> Instant {
    Instant::from_micros(us)
}

const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn balancer(scheme: Scheme) -> Balancer {
    // Each service time is a sample, and the last one counts.
    let config = BalancerConfig { scheme, window: 1, period: Duration::ZERO, ..Default::default() };
    Balancer::new(ME, config).unwrap()
}

fn tariff(whole: u32) -> Tariff {
    Tariff::from_hundredths(whole * 100).unwrap()
}

fn remote(manager: u16, id: u64) -> AcceptorName {
    AcceptorName { manager: ManagerId(manager), id: AcceptorId(id), enlistment: 0 }
}

/// A local acceptor with this service time.
fn add_local(balancer: &mut Balancer, id: u64, service_us: u64) -> AcceptorName {
    let (name, is_new) = balancer.enlist(AcceptorId(id), u32::MAX).unwrap();
    assert!(is_new);
    balancer.on_service_time(at(0), name, us(service_us));
    name
}

/// Another manager's acceptor and offer.
fn add_offer(balancer: &mut Balancer, now: Instant, manager: u16, service_us: u64) -> AcceptorName {
    let acceptor = remote(manager, 0);
    balancer.on_joined(acceptor);
    let service_time = service_us * 1_000;
    let offer = ServiceOffer { acceptor, service_time, credits: u32::MAX };
    assert_eq!(balancer.on_offer(now, offer), None);
    acceptor
}

/// Share of the connections that each acceptor gets, in the order of `names`.
fn shares(balancer: &mut Balancer, now: Instant, names: &[AcceptorName]) -> Vec<f64> {
    const PICKS: usize = 20_000;
    let mut random = RandomSequence::new(7);
    let mut counts = vec![0_usize; names.len()];
    for _ in 0..PICKS {
        let pick = balancer.pick(now, random.next() as u32, random.next()).unwrap();
        let place = names.iter().position(|&name| name == pick.acceptor);
        counts[place.expect("one of the names")] += 1;
        balancer.on_finished(pick.acceptor);
    }
    counts.into_iter().map(|count| count as f64 / PICKS as f64).collect()
}

#[track_caller]
fn assert_shares(actual: &[f64], expected: &[f64]) {
    let is_close = |(one, other): (&f64, &f64)| (one - other).abs() < 0.02;
    assert!(actual.iter().zip(expected).all(is_close), "{actual:?}, expected {expected:?}");
}

#[test]
fn equal_acceptors_get_equal_shares() {
    let mut balancer = balancer(Scheme::default());
    let names = [1, 2, 3, 4].map(|id| add_local(&mut balancer, id, 100));
    let shares = shares(&mut balancer, at(0), &names);
    assert_shares(&shares, &[0.25; 4]);
}

#[test]
fn local_share_is_inverse_to_service_time() {
    let mut balancer = balancer(Scheme::default());
    let names = [(1, 100), (2, 300)].map(|(id, time)| add_local(&mut balancer, id, time));
    let shares = shares(&mut balancer, at(0), &names);
    assert_shares(&shares, &[0.75, 0.25]);
}

#[test]
fn tournament_ignores_offers_within_the_tariff() {
    let mut balancer = balancer(Scheme::Tournament(tariff(2)));
    let local = add_local(&mut balancer, 1, 100);
    let offers = [5, 6, 7].map(|manager| add_offer(&mut balancer, at(0), manager, 50));
    let names = [local, offers[0], offers[1], offers[2]];
    assert_shares(&shares(&mut balancer, at(0), &names), &[1.0, 0.0, 0.0, 0.0]);
}

#[test]
fn tournament_share_of_local_is_independent_of_managers() {
    // The third round is between 1/300 for the local acceptor and 1/(2 * 50) for the offer.
    for managers in [2, 8, 16] {
        let mut balancer = balancer(Scheme::Tournament(tariff(2)));
        let mut names = vec![add_local(&mut balancer, 1, 300)];
        names.extend((10..10 + managers).map(|it| add_offer(&mut balancer, at(0), it, 50)));
        let shares = shares(&mut balancer, at(0), &names);
        assert_shares(&shares[..1], &[0.25]);
        let each = 0.75 / f64::from(managers);
        assert_shares(&shares[1..], &vec![each; managers.into()]);
    }
}

#[test]
fn filtered_share_of_local_falls_with_the_managers() {
    let mut balancer = balancer(Scheme::Filtered(tariff(2)));
    let mut names = vec![add_local(&mut balancer, 1, 300)];
    names.extend((10..18).map(|it| add_offer(&mut balancer, at(0), it, 50)));
    names.push(add_offer(&mut balancer, at(0), 18, 200));
    let shares = shares(&mut balancer, at(0), &names);
    // One round: 1/300 against eight times 1/100; the last offer does not beat the tariff.
    assert_shares(&[shares[0], shares[9]], &[1.0 / 25.0, 0.0]);
}

#[test]
fn unfiltered_takes_slower_offers_too() {
    let mut balancer = balancer(Scheme::Unfiltered(tariff(2)));
    let local = add_local(&mut balancer, 1, 100);
    let offer = add_offer(&mut balancer, at(0), 5, 100);
    assert_shares(&shares(&mut balancer, at(0), &[local, offer]), &[2.0 / 3.0, 1.0 / 3.0]);
}

#[test]
fn naive_ignores_offers_while_it_has_acceptors() {
    let mut balancer = balancer(Scheme::Naive);
    let offer = add_offer(&mut balancer, at(0), 5, 1);
    let local = add_local(&mut balancer, 1, 1_000_000);
    assert_shares(&shares(&mut balancer, at(0), &[local, offer]), &[1.0, 0.0]);
    assert_eq!(balancer.remove(local.id), Some((local, u32::MAX - 20_000)));
    assert_shares(&shares(&mut balancer, at(0), &[offer]), &[1.0]);
}

#[test]
fn offer_stays_admitted_down_to_the_low_water_mark() {
    let mut balancer = balancer(Scheme::Tournament(tariff(2)));
    let local = add_local(&mut balancer, 1, 300);
    let offer = add_offer(&mut balancer, at(0), 5, 100);
    let mut share_at = |service_us: u64| {
        balancer.on_service_time(at(0), local, us(service_us));
        shares(&mut balancer, at(0), &[local, offer])[0]
    };
    assert!(share_at(195) > 0.999, "below the high water mark of 2");
    assert!(share_at(205) < 0.6, "above it");
    assert!(share_at(155) < 0.7, "above the low water mark of 1.5");
    assert!(share_at(145) > 0.999, "below it");
    assert!(share_at(195) > 0.999, "the high mark counts again");
}

#[test]
fn manager_without_acceptors_gives_all_to_others() {
    for scheme in [Scheme::default(), Scheme::Unfiltered(tariff(100)), Scheme::Filtered(tariff(2))]
    {
        let mut balancer = balancer(scheme);
        assert_eq!(balancer.pick(at(0), 0, 0), None);
        let fast = add_offer(&mut balancer, at(0), 5, 100);
        let slow = add_offer(&mut balancer, at(0), 6, 300);
        let shares = shares(&mut balancer, at(0), &[fast, slow]);
        assert_shares(&shares, &[0.75, 0.25]);
    }
}

#[test]
fn expired_offers_leave_members_with_equal_weight() {
    let mut balancer = balancer(Scheme::default());
    let names = [(5, 100), (6, 300)].map(|(it, time)| add_offer(&mut balancer, at(0), it, time));
    let later = at(0) + limits::OFFER_EXPIRY_DEFAULT;
    let pick = balancer.pick(later, 0, 1).unwrap();
    assert_eq!(pick.reason, PickReason::Member);
    assert_shares(&shares(&mut balancer, later, &names), &[0.5, 0.5]);
}

#[test]
fn offer_of_a_left_acceptor_does_not_count() {
    let mut balancer = balancer(Scheme::default());
    let [gone, there] = [5, 6].map(|manager| add_offer(&mut balancer, at(0), manager, 100));
    let acceptors = balancer.acceptors();
    assert_eq!([(); 2].map(|()| balancer.on_left(gone)), [None; 2], "credit that is not counted");
    assert_eq!(balancer.acceptors(), acceptors - 1);
    let offer = ServiceOffer { acceptor: gone, service_time: 1, credits: 5 };
    let returned = LentCredit { acceptor: gone, credits: 5 };
    assert_eq!(balancer.on_offer(at(0), offer), Some(returned));
    assert_shares(&shares(&mut balancer, at(0), &[there]), &[1.0]);
    assert!(!balancer.on_joined(AcceptorName { manager: ME, ..gone }), "its own manager's");
}

#[test]
fn acceptor_without_credit_is_not_picked() {
    let mut balancer = balancer(Scheme::default());
    let (name, _) = balancer.enlist(AcceptorId(1), 2).unwrap();
    assert!(balancer.pick(at(0), 0, 0).is_some_and(|pick| pick.acceptor == name && pick.is_final));
    balancer.on_assigned(name, None);
    assert_eq!(balancer.pick(at(0), 0, 0), None);
    balancer.on_withdrawn(name);
    assert!(balancer.pick(at(0), 0, 0).is_some());
    assert_eq!(balancer.enlist(AcceptorId(1), 1), Some((name, false)));
    assert!(balancer.pick(at(0), 0, 0).is_some());
    // Others are asked instead, even if they are slower.
    let other = add_offer(&mut balancer, at(0), 9, 1_000_000);
    assert_eq!(balancer.pick(at(0), 0, 0).map(|pick| pick.acceptor), Some(other));
}

#[test]
fn pick_is_final_only_with_one_acceptor_in_all() {
    let mut balancer = balancer(Scheme::default());
    let local = add_local(&mut balancer, 1, 100);
    assert!(balancer.pick(at(0), 0, 0).unwrap().is_final);
    let other = remote(5, 0);
    assert!(balancer.on_joined(other) && !balancer.on_joined(other));
    assert!(!balancer.pick(at(0), 0, 0).unwrap().is_final);
    balancer.remove(local.id);
    let pick = balancer.pick(at(0), 0, 0).unwrap();
    assert!(pick.is_final && pick.acceptor == other);
}

#[test]
fn new_acceptor_counts_as_the_best_and_is_not_flooded() {
    let mut balancer = balancer(Scheme::default());
    let old = [(1, 100), (2, 300)].map(|(id, time)| add_local(&mut balancer, id, time));
    let (new, _) = balancer.enlist(AcceptorId(3), u32::MAX).unwrap();
    assert_eq!(balancer.service_time(AcceptorId(3)), Some(100_000));
    let mut random = RandomSequence::new(3);
    let mut count = 0;
    for _ in 0..1_000 {
        let pick = balancer.pick(at(0), 0, random.next()).unwrap();
        count += u32::from(pick.acceptor == new);
    }
    assert_eq!(count, PROBE_CONNECTIONS_MAX);
    balancer.on_service_time(at(0), new, us(100));
    let shares = shares(&mut balancer, at(0), &[old[0], old[1], new]);
    assert_shares(&shares, &[3.0 / 7.0, 1.0 / 7.0, 3.0 / 7.0]);
}

#[test]
fn new_acceptors_alone_are_not_limited() {
    let mut balancer = balancer(Scheme::default());
    let (new, _) = balancer.enlist(AcceptorId(3), u32::MAX).unwrap();
    for _ in 0..100 {
        assert_eq!(balancer.pick(at(0), 0, 0).unwrap().acceptor, new);
    }
    assert_eq!(balancer.offer(at(0), 1), None, "without a service time there is no offer");
}

#[test]
fn enlisted_again_is_another_enlistment() {
    let mut balancer = balancer(Scheme::default());
    let first = add_local(&mut balancer, 1, 100);
    assert!(balancer.on_time_out(first));
    let (second, is_new) = balancer.enlist(AcceptorId(1), 1).unwrap();
    assert!(is_new && second != first && !balancer.on_time_out(first));
    assert_eq!(balancer.name_of(AcceptorId(1)), Some(second));
}

#[test]
fn dropped_acceptor_keeps_its_service_time() {
    let mut balancer = balancer(Scheme::default());
    let slow = add_local(&mut balancer, 1, 1_000);
    add_local(&mut balancer, 2, 1);
    assert!(balancer.on_time_out(slow));
    assert_eq!((balancer.acceptors(), balancer.service_time(slow.id)), (1, None));
    // What it had claimed before goes on.
    balancer.on_service_time(at(0), slow, us(1_000));
    balancer.enlist(slow.id, 1).unwrap();
    assert_eq!(balancer.service_time(slow.id), Some(1_000_000));
    // One that has left begins anew.
    balancer.remove(slow.id);
    balancer.enlist(slow.id, 1).unwrap();
    assert_eq!(balancer.service_time(slow.id), Some(1_000), "that of the best");
}

#[test]
fn acceptor_that_has_answered_is_not_bounded_as_a_new_one() {
    let mut balancer = balancer(Scheme::default());
    add_local(&mut balancer, 1, 1_000_000);
    let (new, _) = balancer.enlist(AcceptorId(2), 1_000).unwrap();
    for _ in 0..PROBE_CONNECTIONS_MAX {
        balancer.on_assigned(new, None);
    }
    let to_new = |balancer: &mut Balancer| {
        let picks = (0..100).filter_map(|random| balancer.pick(at(0), 0, random << 57));
        picks.filter(|pick| pick.acceptor == new).count()
    };
    assert_eq!(to_new(&mut balancer), 0);
    balancer.on_answered(new);
    assert!(to_new(&mut balancer) > 0, "it answers, and holds its connections open");
}

#[test]
fn hash_selects_the_same_acceptor_at_each_manager() {
    let config = || BalancerConfig { scheme: Scheme::Hash, ..BalancerConfig::default() };
    let names = |manager: u16| [remote(manager, 1), remote(manager, 2)];
    let view = |me: u16| {
        let mut balancer = Balancer::new(ManagerId(me), config()).unwrap();
        for manager in [2, 0, 1] {
            for (index, name) in names(manager).into_iter().enumerate() {
                if manager == me {
                    let enlisted = balancer.enlist(name.id, u32::MAX);
                    assert!(enlisted.is_some_and(|(it, _)| it.enlistment as usize == index));
                } else {
                    let enlistment = index as u32;
                    assert!(balancer.on_joined(AcceptorName { enlistment, ..name }));
                }
            }
        }
        balancer
    };
    let mut views = [0, 1, 2].map(view);
    let mut random = RandomSequence::new(1);
    let mut found = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let hash = random.next() as u32;
        let picks = views.each_mut().map(|view| view.pick(at(0), hash, random.next()).unwrap());
        assert!(picks.iter().all(|pick| pick.acceptor == picks[0].acceptor));
        found.insert(picks[0].acceptor);
    }
    assert_eq!(found.len(), 6);
}

#[test]
fn hashed_acceptor_without_credit_is_passed_over() {
    let mut balancer = balancer(Scheme::Hash);
    let (first, _) = balancer.enlist(AcceptorId(1), 0).unwrap();
    let (second, _) = balancer.enlist(AcceptorId(2), 1).unwrap();
    assert_eq!(balancer.pick(at(0), 0, 0).map(|pick| pick.acceptor), Some(second));
    assert_eq!(balancer.pick(at(0), 0, 0), None);
    let other = remote(5, 0);
    balancer.on_joined(other);
    assert_eq!(balancer.pick(at(0), 0, 0).map(|pick| pick.acceptor), Some(other));
    assert_eq!(balancer.remove(first.id), Some((first, 0)));
}

#[test]
fn offer_is_repeated_on_change_or_by_age() {
    let mut balancer = balancer(Scheme::default());
    let name = add_local(&mut balancer, 1, 100);
    let offer = balancer.offer(at(0), 1).unwrap();
    assert_eq!(offer, ServiceOffer { acceptor: name, service_time: 100_000, credits: u32::MAX });
    balancer.on_service_time(at(10), name, us(200));
    assert_eq!(balancer.offer(at(49), 1), None, "the interval has not passed");
    assert_eq!(balancer.offer(at(50), 1).map(|it| it.service_time), Some(200_000));
    balancer.on_service_time(at(60), name, us(209));
    assert_eq!(balancer.offer(at(200), 1), None, "changed by less than 5 %");
    balancer.on_service_time(at(60), name, us(210));
    assert!(balancer.offer(at(200), 1).is_some());
    assert_eq!(balancer.offer(at(10_199), 1), None);
    assert!(balancer.offer(at(10_200), 1).is_some(), "10 ms old");
}

#[test]
fn offer_names_another_acceptor_when_the_first_has_gone() {
    let mut balancer = balancer(Scheme::default());
    let first = add_local(&mut balancer, 1, 100);
    let second = add_local(&mut balancer, 2, 101);
    assert_eq!(balancer.offer(at(0), 1).map(|it| it.acceptor), Some(first));
    assert_eq!(balancer.offer(at(100), 1), None);
    balancer.remove(first.id);
    assert_eq!(balancer.offer(at(100), 1).map(|it| it.acceptor), Some(second));
}

#[test]
fn unconditional_offers_leave_every_interval() {
    let config = BalancerConfig { offer_rule: OfferRule::Always, ..BalancerConfig::default() };
    let mut balancer = Balancer::new(ME, config).unwrap();
    add_local(&mut balancer, 1, 100);
    let count = (0..1_000).filter(|&step| balancer.offer(at(step), 1).is_some()).count();
    assert_eq!(count, 20, "each 50 µs of a millisecond");
}

#[test]
fn connections_measure_prefers_the_acceptor_with_fewer() {
    let config = BalancerConfig { measure: LoadMeasure::Connections, ..BalancerConfig::default() };
    let mut balancer = Balancer::new(ME, config).unwrap();
    let [busy, idle] = [1, 2].map(|id| balancer.enlist(AcceptorId(id), u32::MAX).unwrap().0);
    for _ in 0..3 {
        balancer.on_assigned(busy, None);
    }
    assert_eq!(balancer.service_time(AcceptorId(1)), Some(4_000));
    let offer = balancer.offer(at(0), 1).unwrap();
    assert_eq!(offer, ServiceOffer { acceptor: idle, service_time: 1_000, credits: u32::MAX });
    assert_shares(&shares(&mut balancer, at(0), &[busy, idle]), &[0.2, 0.8]);
}

#[test]
fn acceptors_of_a_manager_are_bounded() {
    let mut balancer = balancer(Scheme::default());
    for id in 0..ACCEPTORS_MAX as u64 {
        assert!(balancer.enlist(AcceptorId(id), 1).is_some());
        assert!(balancer.on_joined(remote(9, id)));
    }
    assert!(balancer.enlist(AcceptorId(u64::MAX), 1).is_none());
    assert!(!balancer.on_joined(remote(9, u64::MAX)));
}

/// An acceptor whose credit is counted, with a service time.
fn add_counted(balancer: &mut Balancer, credit: u32) -> AcceptorName {
    let (name, _) = balancer.enlist(AcceptorId(1), credit).unwrap();
    balancer.on_service_time(at(0), name, us(100));
    name
}

#[test]
fn at_most_half_of_the_credit_is_lent_and_each_once() {
    let mut balancer = balancer(Scheme::default());
    let name = add_counted(&mut balancer, 20);
    let others = [0, 1, 2].map(ManagerId);
    assert_eq!(balancer.offer(at(0), 4).map(|it| it.credits), Some(0), "it goes by `lend`");
    assert_eq!(others.map(|other| balancer.lend(name, other, 4)), [3; 3], "a third of ten");
    assert_eq!((balancer.credit(), balancer.lend(name, others[0], 4)), (11, 0));
    assert_eq!(balancer.offer(at(50), 4), None, "nothing is used");
    (0..2).for_each(|_| balancer.on_assigned(name, Some(others[1])));
    assert_eq!((balancer.credit(), balancer.lent_to(name.id, others[1])), (11, Some(1)));
    assert!(balancer.offer(at(100), 4).is_some(), "it has less than half of its part");
    assert_eq!(others.map(|other| balancer.lend(name, other, 4)), [0, 2, 0]);
    assert_eq!(balancer.credit(), 9);
    balancer.on_returned(name, others[1], 3);
    assert_eq!(balancer.lent_to(name.id, others[1]), Some(0));
}

#[test]
fn little_credit_stays_at_home() {
    let mut balancer = balancer(Scheme::default());
    let name = add_counted(&mut balancer, 1);
    assert!(balancer.offer(at(0), 2).is_some());
    assert_eq!((balancer.lend(name, ManagerId(0), 2), balancer.credit()), (0, 1));
    balancer.enlist(name.id, 1_000);
    assert_eq!(balancer.lend(name, ManagerId(0), 2), LOAN_MAX);
}

#[test]
fn offer_competes_with_the_credit_that_it_lends() {
    for scheme in [Scheme::Tournament(tariff(2)), Scheme::Unfiltered(tariff(2))] {
        let mut balancer = balancer(scheme);
        let own = add_local(&mut balancer, 1, 1_000_000);
        let other = remote(5, 0);
        balancer.on_joined(other);
        let offer = ServiceOffer { acceptor: other, service_time: 1_000, credits: 2 };
        assert_eq!(balancer.on_offer(at(0), offer), None);
        assert_eq!(balancer.borrowed(other.manager, other.id), 2);
        let picks = [0; 3].map(|random| balancer.pick(at(0), 0, u64::MAX - random).unwrap());
        let picked = picks.map(|pick| (pick.acceptor, pick.is_lent));
        assert_eq!(picked, [(other, true), (other, true), (own, false)]);
        // Another offer lends more.
        let offer = ServiceOffer { credits: 3, ..offer };
        assert_eq!(balancer.on_offer(at(1), offer), None);
        assert_eq!(balancer.borrowed(other.manager, other.id), 3);
        let returned = Some(LentCredit { acceptor: other, credits: 3 });
        assert_eq!((balancer.on_left(other), balancer.on_left(other)), (returned, None));
    }
}

#[test]
fn lent_credit_returns_when_its_offer_expires_or_is_replaced() {
    let mut balancer = balancer(Scheme::default());
    let names = [0, 1].map(|id| remote(5, id));
    names.iter().for_each(|name| assert!(balancer.on_joined(*name)));
    let offer = |place: usize| ServiceOffer { acceptor: names[place], service_time: 9, credits: 4 };
    let lent = |place: usize| Some(LentCredit { acceptor: names[place], credits: 4 });
    assert_eq!(balancer.on_offer(at(0), offer(0)), None);
    assert_eq!(balancer.on_offer(at(0), offer(1)), lent(0));
    let expiry = BalancerConfig::default().expiry;
    assert_eq!(balancer.next_expiry(), Some(at(0) + expiry));
    assert_eq!(balancer.expire_offer(at(0) + expiry - us(1)), None);
    assert_eq!(balancer.expire_offer(at(0) + expiry), lent(1));
    assert_eq!((balancer.expire_offer(at(0) + expiry), balancer.next_expiry()), (None, None));
    // Without credit lent, a pick names any member, and the connection has to wait for credit.
    let pick = balancer.pick(at(0) + expiry, 0, 0).unwrap();
    assert_eq!((pick.reason, pick.is_lent, pick.has_credit), (PickReason::Member, false, false));
}

#[test]
fn credit_is_requested_of_each_manager_until_it_lends_some() {
    let mut balancer = balancer(Scheme::default());
    assert_eq!(balancer.request(), None, "no other manager has acceptors");
    let [first, second] = [5, 6].map(|manager| remote(manager, 0));
    assert!(balancer.on_joined(first) && balancer.on_joined(second));
    let requested = [0; 3].map(|_| balancer.request());
    assert_eq!(requested, [Some(first.manager), Some(second.manager), None]);
    // An offer without credit answers no request; one with credit does.
    let offer = ServiceOffer { acceptor: second, service_time: 9, credits: 0 };
    assert_eq!((balancer.on_offer(at(0), offer), balancer.request()), (None, None));
    let pick = balancer.pick(at(0), 0, 0).unwrap();
    assert!(!pick.has_credit);
    let offer = ServiceOffer { credits: 1, ..offer };
    assert_eq!(balancer.on_offer(at(0), offer), None);
    let pick = balancer.pick(at(0), 0, 0).unwrap();
    assert!(pick.acceptor == second && pick.is_lent && pick.has_credit);
    assert_eq!([0; 2].map(|_| balancer.request()), [Some(second.manager), None]);
    // What was lent with an acceptor that has left does not help, so there is another request.
    let offer = ServiceOffer { acceptor: remote(5, 7), service_time: 9, credits: 3 };
    assert!(balancer.on_offer(at(0), offer).is_some());
    assert_eq!([0; 2].map(|_| balancer.request()), [Some(first.manager), None]);
}

#[test]
fn scheme_without_others_requests_no_credit() {
    for (scheme, expected) in [(Scheme::Hash, None), (Scheme::Naive, None)] {
        let mut balancer = balancer(scheme);
        balancer.enlist(AcceptorId(1), 0);
        assert!(balancer.on_joined(remote(5, 0)));
        assert_eq!(balancer.request(), expected);
    }
}

#[test]
fn requested_credit_is_lent_in_the_order_of_the_requests() {
    let mut balancer = balancer(Scheme::default());
    let [first, second] = [0, 1].map(ManagerId);
    [first, second, first].into_iter().for_each(|borrower| balancer.on_request(borrower));
    assert_eq!(balancer.grant(at(0), 0, false), None, "there is no acceptor");
    let (name, _) = balancer.enlist(AcceptorId(1), 5).unwrap();
    let offer = |credits| ServiceOffer { acceptor: name, service_time: 0, credits };
    assert_eq!(balancer.grant(at(0), 0, true), Some((first, offer(1))), "it is needed here too");
    assert_eq!(balancer.grant(at(0), 0, false), Some((second, offer(2))), "half of the rest");
    assert_eq!(balancer.grant(at(0), 0, false), None, "each request once");
    assert_eq!((balancer.credit(), balancer.lent_to(name.id, second)), (2, Some(2)));
    assert_eq!((balancer.recall(), balancer.recall()), (Some(name), None));
    balancer.keep_private(name.id);
    balancer.on_request(first);
    assert_eq!(balancer.grant(at(0), 0, false), None, "no other manager knows it");
    let (shared, _) = balancer.enlist(AcceptorId(2), 1 << 31).unwrap();
    let granted = balancer.grant(at(0), 0, true).map(|(_, offer)| (offer.acceptor, offer.credits));
    assert_eq!((granted, balancer.credit()), (Some((shared, u32::MAX)), (1 << 31) + 2));
}

#[test]
fn new_acceptor_of_another_manager_gets_connections_on_lent_credit() {
    let mut balancer = balancer(Scheme::default());
    let names = [5, 6].map(|manager| remote(manager, 0));
    for acceptor in names {
        balancer.on_joined(acceptor);
        let offer = ServiceOffer { acceptor, service_time: 0, credits: u32::MAX };
        assert_eq!(balancer.on_offer(at(0), offer), None);
    }
    let pick = balancer.pick(at(0), 0, 1).unwrap();
    assert!(pick.reason == PickReason::Member && pick.has_credit && !pick.is_lent);
    assert_shares(&shares(&mut balancer, at(0), &names), &[0.5, 0.5]);
    // It takes no part in rounds of service times.
    let own = add_local(&mut balancer, 1, 1_000_000);
    assert_shares(&shares(&mut balancer, at(0), &[own]), &[1.0]);
}

/// The acceptor that a draw among a list of all candidates selects.
fn drawn_from_list(balancer: &Balancer, random: u64) -> Option<AcceptorName> {
    let mut candidates: Vec<Candidate> = balancer.candidates().collect();
    candidates.retain(|it| !balancer.private.contains(&balancer.local[it.index].name.id));
    let index = select(candidates.iter().map(|it| it.weight), random)?;
    Some(balancer.local[candidates[index].index].name)
}

#[test]
fn grant_draws_by_weight_among_shared_acceptors_with_credit() {
    let mut balancer = balancer(Scheme::default());
    let names = [1, 2, 3, 4, 5].map(|id| {
        let (name, _) = balancer.enlist(AcceptorId(id), if id == 4 { 0 } else { 1 << 20 }).unwrap();
        balancer.on_service_time(at(0), name, us(100 * id));
        name
    });
    balancer.keep_private(AcceptorId(2));
    let mut random = RandomSequence::new(7);
    let mut counts = [0_u32; 5];
    for _ in 0..20_000 {
        let number = random.next();
        balancer.on_request(ManagerId(0));
        let expected = drawn_from_list(&balancer, number);
        let (_, offer) = balancer.grant(at(0), number, true).unwrap();
        assert_eq!(Some(offer.acceptor), expected);
        counts[names.iter().position(|name| *name == offer.acceptor).unwrap()] += 1;
    }
    // Inverse to the service times: 1 to 1/3 to 1/5, and nothing of what is private or has none.
    let shares = counts.map(|count| f64::from(count) / 20_000.0);
    assert_shares(&shares, &[15.0 / 23.0, 0.0, 5.0 / 23.0, 0.0, 3.0 / 23.0]);
}
