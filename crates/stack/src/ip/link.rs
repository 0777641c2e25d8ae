//! Link layer messages: ARP, neighbour discovery and multicast group membership.
//!
//! Read first: RFC 826 and RFC 5227 (ARP), RFC 4861 §7.1 and §7.2, then `neighbour.rs`, which
//! decides what is believed.
//!
//! Invariants
//! - A question for an address of ours is answered to the one who asked, at the link address that
//!   the question came from: an answer needs nothing learnt, and teaches nothing.
//! - A message of neighbour discovery that came over a router is refused by its hop limit.
//! - When a stack starts it says once where its addresses are, so that who knew them elsewhere
//!   finds them (RFC 5227 §2.3, RFC 4861 §7.2.6).
//! - With `external_neighbours` nothing of this is sent or believed.

use core::net::{IpAddr, Ipv6Addr};

use super::Ip;
use super::address::{group_mac, is_unicast, solicited_node};
use super::neighbour::{Claim, Heard, Question};
use crate::counters::Drop;
use crate::frame::Medium;
use crate::limits::ANSWERS_MAX;
use crate::time::Instant;
use crate::wire::{Protocol, arp, checksum, ethernet, extension, ipv6, mld, ndp};

/// The all-nodes group.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// A hop-by-hop options header before ICMPv6: the router alert that says "MLD" (RFC 2711), padded.
const ROUTER_ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];
/// An unknown link address.
const NO_MAC: [u8; 6] = [0; 6];

/// An answer that is to be sent: where an address of ours is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer {
    /// Which address of ours.
    ours: IpAddr,
    /// Sender of the request; `None`: the answer is multicast.
    asker: Option<(IpAddr, [u8; 6])>,
}

/// A message of neighbour discovery, and what came with it.
pub(super) struct Discovery<'a> {
    /// Who sent it; unspecified in duplicate address detection.
    pub src: Ipv6Addr,
    /// To whom.
    pub dst: Ipv6Addr,
    /// The link address that it came from.
    pub src_mac: [u8; 6],
    /// The IPv6 header's hop limit.
    pub hop_limit: u8,
    /// From the ICMPv6 header on; its checksum is right.
    pub message: &'a [u8],
}

impl Ip {
    /// Says where our addresses are.
    pub(super) fn announce(&mut self, now: Instant) {
        if self.external_neighbours || self.medium == Medium::Ip {
            return;
        }
        self.answers.clear();
        for ours in self.addresses.iter() {
            self.answers.push_back(Answer { ours, asker: None });
        }
        if self.addresses.iter().any(|ours| ours.is_ipv6()) {
            self.membership.on_join(now);
        }
    }

    /// Processes a multicast listener query (RFC 3810 §6.2).
    pub(super) fn on_query(&mut self, now: Instant, asked: &Discovery<'_>) -> Result<(), Drop> {
        // From the link itself, or it is not believed.
        if asked.hop_limit != mld::HOP_LIMIT || !asked.src.is_unicast_link_local() {
            return Err(Drop::BadNeighbourMessage);
        }
        let query = mld::Query::parse(asked.message)?;
        if self.external_neighbours || self.medium == Medium::Ip {
            return Err(Drop::IgnoredMessage);
        }
        // The all-nodes group is never reported (§6).
        let is_ours = query.group != ALL_NODES && self.is_group_of_ours(query.group);
        if query.group.is_unspecified() || is_ours {
            self.membership.on_query(now, query.within);
        }
        Ok(())
    }

    /// An ARP message.
    pub(super) fn on_arp(&mut self, now: Instant, bytes: &[u8]) -> Result<(), Drop> {
        let message = arp::Repr::parse(&arp::View::new(bytes)?)?;
        if self.external_neighbours {
            return Err(Drop::BadNeighbourMessage);
        }
        let sender = IpAddr::V4(message.sender_ip);
        let target = IpAddr::V4(message.target_ip);
        let is_probe = message.sender_ip.is_unspecified();
        if !is_probe && (!is_unicast(sender) || self.is_ours(sender)) {
            // Another host claims our address: we keep it and count the claim (RFC 5227 §2.4).
            return Err(Drop::BadNeighbourMessage);
        }
        let is_reply = message.operation == arp::Operation::Reply;
        let claim = Claim {
            ip: sender,
            mac: Some(message.sender_mac),
            solicited: is_reply && self.is_ours(target),
            replaces: true,
        };
        let heard = if is_probe { Heard::Ignored } else { self.neighbours.on_claim(now, claim) };
        if !is_reply && self.is_ours(target) {
            return self.answer(target, Some((sender, message.sender_mac)));
        }
        match heard {
            // A broadcast question between two others is no offence.
            Heard::Ignored if is_reply => Err(Drop::BadNeighbourMessage),
            _ => Ok(()),
        }
    }

    /// A message of neighbour discovery.
    pub(super) fn on_discovery(
        &mut self,
        now: Instant,
        discovery: &Discovery<'_>,
    ) -> Result<(), Drop> {
        if discovery.hop_limit != ndp::HOP_LIMIT || self.external_neighbours {
            return Err(Drop::BadNeighbourMessage);
        }
        match ndp::Repr::parse(&ndp::View::new(discovery.message)?)? {
            ndp::Repr::Solicitation { target, source_mac } => {
                self.on_solicitation(now, discovery, target, source_mac)
            }
            ndp::Repr::Advertisement { target, target_mac, solicited, replaces, .. } => {
                // "If the destination is a group, the Solicited flag is zero" (§7.1.2).
                if (discovery.dst.is_multicast() && solicited) || self.is_ours(target.into()) {
                    return Err(Drop::BadNeighbourMessage);
                }
                let claim = Claim { ip: target.into(), mac: target_mac, solicited, replaces };
                match self.neighbours.on_claim(now, claim) {
                    Heard::Used => Ok(()),
                    Heard::Ignored => Err(Drop::BadNeighbourMessage),
                }
            }
        }
    }

    /// Processes a solicitation for `target` (RFC 4861 §7.2.3).
    fn on_solicitation(
        &mut self,
        now: Instant,
        discovery: &Discovery<'_>,
        target: Ipv6Addr,
        source_mac: Option<[u8; 6]>,
    ) -> Result<(), Drop> {
        let src = discovery.src;
        if src.is_unspecified() {
            // Duplicate address detection (§7.1.1, RFC 4862 §5.4.3): the answer is multicast.
            if discovery.dst != solicited_node(target) || source_mac.is_some() {
                return Err(Drop::BadNeighbourMessage);
            }
            return if self.is_ours(target.into()) {
                self.answer(target.into(), None)
            } else {
                Ok(())
            };
        }
        if let Some(mac) = source_mac {
            let claim = Claim { ip: src.into(), mac: Some(mac), solicited: false, replaces: true };
            self.neighbours.on_claim(now, claim);
        }
        if !self.is_ours(target.into()) {
            return Ok(());
        }
        let mac = source_mac.unwrap_or(discovery.src_mac);
        self.answer(target.into(), Some((src.into(), mac)))
    }

    fn answer(&mut self, ours: IpAddr, asker: Option<(IpAddr, [u8; 6])>) -> Result<(), Drop> {
        if self.answers.len() == ANSWERS_MAX {
            return Err(Drop::QueueFull);
        }
        self.answers.push_back(Answer { ours, asker });
        Ok(())
    }

    /// Writes the next message to the link; its length in bytes.
    pub(super) fn poll_link(&mut self, now: Instant, frame: &mut [u8]) -> Option<usize> {
        let Medium::Ethernet(mac) = self.medium else { return None };
        if let Some(answer) = self.answers.pop_front() {
            return Some(self.write_answer(frame, mac, answer));
        }
        if self.external_neighbours {
            return None;
        }
        if let Some(reason) = self.membership.poll(now) {
            return self.write_report(frame, reason);
        }
        let question = self.neighbours.poll_question(now)?;
        self.write_question(frame, mac, question)
    }

    fn write_answer(&self, frame: &mut [u8], mac: [u8; 6], answer: Answer) -> usize {
        match answer.ours {
            IpAddr::V4(ours) => {
                let told = answer.asker.and_then(|(ip, mac)| match ip {
                    IpAddr::V4(ip) => Some((ip, mac)),
                    IpAddr::V6(_) => None,
                });
                let (operation, target_ip, target_mac, dst) = match told {
                    Some((ip, mac)) => (arp::Operation::Reply, ip, mac, mac),
                    // An announcement is a request without an answer (RFC 5227 §2.3).
                    None => (arp::Operation::Request, ours, NO_MAC, ethernet::BROADCAST),
                };
                let message = arp::Repr {
                    operation,
                    sender_mac: mac,
                    sender_ip: ours,
                    target_mac,
                    target_ip,
                };
                self.write_arp(frame, dst, &message)
            }
            IpAddr::V6(ours) => {
                let asker = answer.asker.and_then(|(ip, mac)| match ip {
                    IpAddr::V6(ip) => Some((ip, mac)),
                    IpAddr::V4(_) => None,
                });
                let (dst, dst_mac) = asker.unwrap_or((ALL_NODES, group_mac(ALL_NODES)));
                let message = ndp::Repr::Advertisement {
                    target: ours,
                    target_mac: Some(mac),
                    router: false,
                    solicited: asker.is_some(),
                    replaces: true,
                };
                self.write_discovery(frame, (ours, dst, dst_mac), &message)
            }
        }
    }

    /// `None`: we have no address of that family to ask from.
    fn write_question(&self, frame: &mut [u8], mac: [u8; 6], question: Question) -> Option<usize> {
        let src = self.addresses.source_for(question.ip, question.ip)?;
        match (src, question.ip) {
            (IpAddr::V4(sender_ip), IpAddr::V4(target_ip)) => {
                let message = arp::Repr {
                    operation: arp::Operation::Request,
                    sender_mac: mac,
                    sender_ip,
                    target_mac: NO_MAC,
                    target_ip,
                };
                let dst = question.mac.unwrap_or(ethernet::BROADCAST);
                Some(self.write_arp(frame, dst, &message))
            }
            (IpAddr::V6(src), IpAddr::V6(target)) => {
                let message = ndp::Repr::Solicitation { target, source_mac: Some(mac) };
                let group = solicited_node(target);
                let (dst, dst_mac) =
                    question.mac.map_or_else(|| (group, group_mac(group)), |mac| (target, mac));
                Some(self.write_discovery(frame, (src, dst, dst_mac), &message))
            }
            _ => None,
        }
    }

    /// Says which groups we hear. `None`: none.
    fn write_report(&self, frame: &mut [u8], reason: mld::Reason) -> Option<usize> {
        let src = self.addresses.iter().find_map(|ours| match ours {
            IpAddr::V6(ours) if ours.is_unicast_link_local() => Some(ours),
            _ => None,
        })?;
        // Two addresses may have one group: it is named twice, which says nothing else.
        let groups = self.addresses.iter().filter_map(|ours| match ours {
            IpAddr::V6(ours) => Some(solicited_node(ours)),
            IpAddr::V4(_) => None,
        });
        let len = mld::report_bytes(groups.clone().count());
        let dst = mld::ALL_ROUTERS;
        let at = self.write_link_header(frame, group_mac(dst), ethernet::IPV6);
        let header = ipv6::Repr {
            src,
            dst,
            next_header: extension::HOP_BY_HOP,
            hop_limit: mld::HOP_LIMIT,
            dscp: 0,
            ecn: crate::wire::Ecn::NotEct,
            payload_bytes: ROUTER_ALERT.len() + len,
        };
        header.emit(&mut frame[at..]);
        let at = at + ipv6::HEADER_BYTES;
        frame[at..at + ROUTER_ALERT.len()].copy_from_slice(&ROUTER_ALERT);
        let at = at + ROUTER_ALERT.len();
        let number = Protocol::Icmp6.number();
        let pseudo_header = checksum::pseudo_header(src.into(), dst.into(), number, len);
        mld::emit_report(&mut frame[at..at + len], reason, groups, pseudo_header);
        Some(at + len)
    }

    fn write_arp(&self, frame: &mut [u8], dst: [u8; 6], message: &arp::Repr) -> usize {
        let at = self.write_link_header(frame, dst, ethernet::ARP);
        message.emit(&mut frame[at..]);
        at + message.header_bytes()
    }

    /// Writes a message to (source, destination, link address of that).
    fn write_discovery(
        &self,
        frame: &mut [u8],
        (src, dst, dst_mac): (Ipv6Addr, Ipv6Addr, [u8; 6]),
        message: &ndp::Repr,
    ) -> usize {
        let at = self.write_link_header(frame, dst_mac, ethernet::IPV6);
        let header = ipv6::Repr {
            src,
            dst,
            next_header: Protocol::Icmp6.number(),
            hop_limit: ndp::HOP_LIMIT,
            dscp: 0,
            ecn: crate::wire::Ecn::NotEct,
            payload_bytes: message.header_bytes(),
        };
        header.emit(&mut frame[at..]);
        let number = Protocol::Icmp6.number();
        let pseudo_header =
            checksum::pseudo_header(src.into(), dst.into(), number, message.header_bytes());
        message.emit(&mut frame[at + ipv6::HEADER_BYTES..], pseudo_header);
        at + ipv6::HEADER_BYTES + message.header_bytes()
    }

    /// Writes the link's header; its length in bytes.
    #[inline]
    pub(super) fn write_link_header(
        &self,
        frame: &mut [u8],
        dst: [u8; 6],
        ethertype: u16,
    ) -> usize {
        let Medium::Ethernet(src) = self.medium else { return 0 };
        let header = ethernet::Repr { dst, src, vlan: self.vlan, ethertype };
        header.emit(frame);
        header.header_bytes()
    }

    /// Whether a frame to `dst` is for us: our address, broadcast, or a group that we joined.
    #[inline]
    pub(super) fn takes_link_address(&self, dst: [u8; 6]) -> bool {
        match self.medium {
            Medium::Ip => true,
            Medium::Ethernet(mac) => {
                // Which groups, the IP destination says exactly.
                dst == mac || dst == ethernet::BROADCAST || dst[..2] == [0x33, 0x33]
            }
        }
    }

    /// We are in the IPv6 group `dst`: all nodes, or one that is asked for an address of ours.
    pub(super) fn is_group_of_ours(&self, dst: Ipv6Addr) -> bool {
        dst == ALL_NODES
            || self.addresses.iter().any(|ours| match ours {
                IpAddr::V6(ours) => solicited_node(ours) == dst,
                IpAddr::V4(_) => false,
            })
    }
}
