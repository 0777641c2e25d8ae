//! TCP Fast Open: data in the SYN, for peers that have shown before that they are where they say.
//!
//! Read first: RFC 7413, above all §4.1.2 (cookies), §4.1.3 (what a client remembers), §5.1 (what
//! limits attackers); Linux's `tcp_fastopen.c` for what real peers do.
//!
//! A listener that allows it ([`Pending`]) takes the data of a SYN with a valid cookie, and may
//! answer it, before the handshake is complete. A client ([`Role::Client`]) sends queued data with
//! its SYN if it knows the peer's cookie ([`Peers`]), and requests a cookie otherwise. With a
//! cookie the SYN is held ([`Role::Held`]) until the application queues its first data, as Linux
//! holds it (TCP_FASTOPEN_CONNECT in tcp(7)). A SYN that is sent again carries neither cookie nor
//! data (§4.1.3), so a path that drops such SYNs costs one timeout.
//!
//! Until our SYN is acknowledged, its data counts as queued and not as in flight: the SYN-ACK says
//! how much of it arrived, and the rest is sent as if it were new.
//!
//! Invariants
//! - `Pending` counts for each listener the connections in [`super::state::FastOpen`], and those
//!   that a RST ended there less than [`RESET_PENDING`] ago: spoofed SYNs whose victims answer with
//!   a RST free no room (§5.1).
//! - Cookies are keyed hashes of both addresses; a server keeps nothing of them.

use alloc::vec::Vec;
use core::net::IpAddr;

use super::connection::{Connection, Role};
use super::isn::{Secret, Use};
use super::state::State;
use super::{Shard, flags::ConnFlags, handshake};
use crate::context::Context;
use crate::flow_table::Flow;
use crate::id::ListenerId;
use crate::limits::{
    FAST_OPEN_BLOCKED, FAST_OPEN_COOKIE_PERIOD, FAST_OPEN_PEERS_MAX, FAST_OPEN_RESET_PENDING,
};
use crate::siphash::Sip;
use crate::time::Instant;
use crate::wire::tcp::{Cookie, OPTIONS_BYTES_MAX};

#[cfg(doc)]
use crate::limits::FAST_OPEN_RESET_PENDING as RESET_PENDING;

/// Where a server's cookies come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Baker<'a> {
    pub(super) secret: &'a Secret,
    pub(super) key: Option<&'a [u8; 16]>,
    pub(super) now: Instant,
}

impl Baker<'_> {
    /// Makes the cookie that a SYN-ACK hands out to the peer of `flow`.
    pub(super) fn make(&self, flow: &Flow) -> Cookie {
        self.of_period(flow, self.period())
    }

    /// Checks a cookie against this period's and the last one's.
    pub(super) fn is_valid(&self, flow: &Flow, cookie: &Cookie) -> bool {
        let current = self.period();
        let periods = [Some(current), current.checked_sub(1)];
        !cookie.is_request()
            && periods.into_iter().flatten().any(|period| self.of_period(flow, period) == *cookie)
    }

    const fn period(&self) -> u64 {
        self.now.as_millis() / FAST_OPEN_COOKIE_PERIOD.as_millis() as u64
    }

    fn of_period(&self, flow: &Flow, period: u64) -> Cookie {
        let bytes = match self.key {
            Some(key) => with_key(key, flow).to_le_bytes(),
            None => {
                let hosts = Flow { local_port: 0, remote_port: 0, ..*flow };
                self.secret.hash(Use::FastOpen, &hosts, period).to_le_bytes()
            }
        };
        Cookie::new(&bytes).unwrap_or_default()
    }
}

/// SipHash of the peer's address and ours, as Linux has it.
fn with_key(key: &[u8; 16], flow: &Flow) -> u64 {
    let hasher = Sip::<2, 4>::new(key);
    match (flow.remote.ipv4(), flow.local.ipv4()) {
        (Some(remote), Some(local)) => {
            let (low, high) =
                (u32::from_le_bytes(remote.octets()), u32::from_le_bytes(local.octets()));
            hasher.and(u64::from(high) << 32 | u64::from(low)).finish()
        }
        _ => [flow.remote, flow.local]
            .into_iter()
            .fold(hasher, |hasher, address| {
                let whole = u128::from_le_bytes(address.ipv6().octets());
                hasher.and(whole as u64).and((whole >> 64) as u64)
            })
            .finish(),
    }
}

/// What a listener lets Fast Open take.
#[derive(Debug, Clone, Copy, Default)]
struct Allowance {
    /// Of the listener that has this place.
    generation: u32,
    /// Connections that may be pending at once; 0: Fast Open is off.
    pending_max: u32,
    pending: u32,
    /// Those among `pending` that a RST ended.
    reset: u32,
    /// When the last of them did.
    reset_at: Option<Instant>,
}

/// Counts the connections that began with a SYN's data and are not established, by listener.
#[derive(Debug)]
pub(crate) struct Pending {
    listeners: Vec<Allowance>,
}

impl Pending {
    pub(crate) fn new(listeners: u32) -> Self {
        Self { listeners: alloc::vec![Allowance::default(); listeners as usize] }
    }

    /// Sets how many connections of a listener may be pending; 0: no Fast Open.
    pub(crate) fn allow(&mut self, id: ListenerId, pending_max: u32) {
        let Some(place) = self.listeners.get_mut(id.index as usize) else { return };
        if place.generation != id.generation {
            *place = Allowance { generation: id.generation, ..Allowance::default() };
        }
        place.pending_max = pending_max;
    }

    /// The listener takes data with SYNs.
    pub(crate) fn is_on(&self, id: ListenerId) -> bool {
        self.of(id).is_some_and(|place| place.pending_max > 0)
    }

    /// Takes room for one more. `false`: there is none now.
    pub(crate) fn begin(&mut self, id: ListenerId, now: Instant) -> bool {
        let Some(place) = self.of_mut(id) else { return false };
        if place.reset_at.is_some_and(|at| now >= at + FAST_OPEN_RESET_PENDING) {
            place.pending = place.pending.saturating_sub(place.reset);
            (place.reset, place.reset_at) = (0, None);
        }
        let may = place.pending < place.pending_max;
        place.pending += u32::from(may);
        may
    }

    /// Counts one more that began elsewhere, also beyond what is allowed.
    pub(crate) fn begin_beyond(&mut self, id: ListenerId) {
        if let Some(place) = self.of_mut(id) {
            place.pending += 1;
        }
    }

    /// The room that [`Pending::begin`] took is not needed.
    pub(crate) fn give_back(&mut self, id: ListenerId) {
        if let Some(place) = self.of_mut(id) {
            place.pending = place.pending.saturating_sub(1);
        }
    }

    /// One is established, or over; `was_reset`: by a RST, which frees no room for a while.
    fn end(&mut self, id: ListenerId, now: Instant, was_reset: bool) {
        let Some(place) = self.of_mut(id) else { return };
        if was_reset {
            place.reset += 1;
            place.reset_at = Some(now);
        } else {
            place.pending = place.pending.saturating_sub(1);
        }
    }

    /// Checks that all pending connections are counted, and no others; `roles`: of all connections.
    #[cfg(any(test, feature = "invariants"))]
    pub(super) fn check(&self, roles: impl Iterator<Item = Role>) {
        let mut left: Vec<u32> = self.listeners.iter().map(|it| it.pending - it.reset).collect();
        for role in roles {
            if let Role::Server(id) = role
                && self.of(id).is_some()
            {
                left[id.index as usize] -= 1;
            }
        }
        assert!(left.iter().all(|left| *left == 0), "pending without a connection: {left:?}");
    }

    fn of(&self, id: ListenerId) -> Option<&Allowance> {
        self.listeners.get(id.index as usize).filter(|it| it.generation == id.generation)
    }

    fn of_mut(&mut self, id: ListenerId) -> Option<&mut Allowance> {
        self.listeners.get_mut(id.index as usize).filter(|it| it.generation == id.generation)
    }
}

/// `conn` leaves [`super::state::FastOpen`].
pub(super) fn leave(conn: &Connection, shard: &mut Shard, now: Instant, was_reset: bool) {
    if let Some(rare) = shard.rares.get_mut(conn)
        && let Role::Server(listener) = rare.fast_open
    {
        rare.fast_open = Role::Arrived;
        shard.fast_open.end(listener, now, was_reset);
    }
}

/// What a client remembers of a server (RFC 7413 §4.1.3).
#[derive(Debug, Clone, Copy)]
struct Known {
    remote: IpAddr,
    cookie: Cookie,
    /// MSS that it announced.
    mss: u16,
    /// Its data did not arrive in a SYN that did after it: not before then again.
    blocked_until: Option<Instant>,
}

/// The servers whose cookies a client knows; a new one takes the place of the oldest.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    known: Vec<Known>,
    next: usize,
}

impl Peers {
    /// Fast Open is used: takes the memory for it. To be called by commands only.
    pub(crate) fn want(&mut self) {
        self.known.reserve_exact(FAST_OPEN_PEERS_MAX - self.known.len());
    }

    /// The cookie to send and the MSS to keep to; a request if no cookie is known. `None`: Fast
    /// Open lately lost data on this path.
    pub(super) fn cookie(&self, remote: IpAddr, now: Instant) -> Option<(Cookie, u16)> {
        let Some(known) = self.known.iter().find(|known| known.remote == remote) else {
            return Some((Cookie::REQUEST, 0));
        };
        let is_blocked = known.blocked_until.is_some_and(|until| now < until);
        (!is_blocked).then_some((known.cookie, known.mss))
    }

    /// A server hands out a cookie.
    fn learn(&mut self, remote: IpAddr, cookie: Cookie, mss: u16) {
        if cookie.is_request() {
            return;
        }
        let new = Known { remote, cookie, mss, blocked_until: None };
        if let Some(known) = self.known.iter_mut().find(|known| known.remote == remote) {
            *known = Known { blocked_until: known.blocked_until, ..new };
        } else if self.known.len() < self.known.capacity().min(FAST_OPEN_PEERS_MAX) {
            self.known.push(new);
        } else if let Some(oldest) = self.known.get_mut(self.next) {
            *oldest = new;
            self.next = (self.next + 1) % FAST_OPEN_PEERS_MAX;
        }
    }

    fn block(&mut self, remote: IpAddr, now: Instant) {
        if let Some(known) = self.known.iter_mut().find(|known| known.remote == remote) {
            known.blocked_until = Some(now + FAST_OPEN_BLOCKED);
        }
    }
}

/// Holds the SYN of a new connection if the peer's cookie is known; otherwise it leaves at once.
/// Asked for again, a SYN that is held leaves without data. To be called by commands only.
pub(super) fn request<M>(conn: &mut Connection, shard: &mut Shard, context: &Context<'_, M>) {
    let is_new = matches!(conn.state, State::SynSent(_))
        && conn.flags.has(ConnFlags::SYN_DUE)
        && conn.attempts == 0;
    if !is_new {
        return release_syn(conn, shard, context.now);
    }
    shard.peers.want();
    let remote = conn.ends.remote();
    let role = match shard.peers.cookie(remote, context.now) {
        Some((cookie, mss)) if !cookie.is_request() => {
            conn.flags.clear(ConnFlags::SYN_DUE);
            conn.cold.timers.stop_attending();
            Role::Held {
                room: syn_room(mss, context.base.ip.payload_bytes_max(conn.ends.remote_address())),
            }
        }
        _ => Role::Client { sent: 0 },
    };
    shard.rares.of(conn, context.now).fast_open = role;
}

/// Lets a SYN that is held leave, with what is queued.
pub(super) fn release_syn(conn: &mut Connection, shard: &mut Shard, now: Instant) {
    let Some(rare) = shard.rares.get_mut(conn) else { return };
    let Role::Held { .. } = rare.fast_open else { return };
    rare.fast_open = Role::Client { sent: 0 };
    if matches!(conn.state, State::SynSent(_)) {
        conn.flags.set(ConnFlags::SYN_DUE);
        conn.cold.timers.attend_after_ms(now, shard.syn_wait_ms);
    }
}

/// Bytes that our SYN may carry with a cookie, if the peer announced `mss` before.
pub(super) fn syn_room(mss: u16, segment_bytes: u16) -> u16 {
    // Without the room of all options, for what may be added on the way.
    mss.min(handshake::mss_of(segment_bytes)).saturating_sub(OPTIONS_BYTES_MAX as u16)
}

/// Bytes of data that our SYN carried; the SYN-ACK may acknowledge some of them.
pub(super) fn sent_with_syn(conn: &Connection, shard: &Shard) -> u32 {
    match shard.rares.get(conn).map(|rare| rare.fast_open) {
        Some(Role::Client { sent }) => u32::from(sent),
        _ => 0,
    }
}

/// A client takes in what a SYN-ACK says of Fast Open: a cookie, and how many bytes of its SYN's
/// data arrived. `offered`: the cookie and the MSS of the SYN-ACK.
pub(super) fn on_syn_ack(
    conn: &Connection,
    shard: &mut Shard,
    now: Instant,
    offered: (Option<Cookie>, u16),
    acknowledged: u32,
) {
    let remote = conn.ends.remote();
    let Some(rare) = shard.rares.get_mut(conn) else { return };
    let Role::Client { sent } = rare.fast_open else { return };
    rare.fast_open = if acknowledged > 0 { Role::Arrived } else { Role::None };
    if let (Some(cookie), mss) = offered {
        shard.peers.learn(remote, cookie, mss);
    }
    // §4.1.3.1: the SYN with data was lost, and the one without came through.
    if sent > 0 && acknowledged == 0 && conn.attempts > 0 {
        shard.peers.block(remote, now);
    }
}

/// A repetition of the SYN that began this connection: the peer does not have our SYN-ACK.
pub(super) fn repeats_syn(conn: &Connection, seq: crate::seq::SeqNum) -> bool {
    // Nothing but the SYN's data has come: everything else acknowledges our SYN.
    conn.state.is_fast_open()
        && !conn.flags.has(ConnFlags::RCV_FIN)
        && seq + 1 + conn.cold.accounting.bytes_in() as u32 == conn.receive.nxt
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    /// What Linux answers with this key: the cookie in its own tests of Fast Open.
    #[test]
    fn fast_open_cookie_of_a_key_is_linuxs() {
        let words = [0xa1a1_a1a1_u32, 0xb2b2_b2b2, 0xc3c3_c3c3, 0xd4d4_d4d4];
        let mut key = [0; 16];
        for (place, word) in key.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        let flow = Flow {
            local: Ipv4Addr::new(192, 168, 0, 1).into(),
            remote: Ipv4Addr::new(192, 0, 2, 1).into(),
            local_port: 8080,
            remote_port: 5555,
        };
        let secret = Secret::new(&[1; 16]);
        let now = Instant::from_millis(1);
        let baker = Baker { secret: &secret, key: Some(&key), now };
        let cookie = baker.make(&flow);
        assert_eq!(cookie.bytes(), [0x30, 0x21, 0xb9, 0xd8, 0x89, 0x01, 0x7e, 0xeb]);
        let years = Instant::from_millis(1 << 40);
        assert!(Baker { now: years, ..baker }.is_valid(&flow, &cookie));
        let other = Flow { remote: Ipv6Addr::LOCALHOST.into(), ..flow };
        assert!(!baker.is_valid(&other, &cookie));
        assert!(!Baker { key: None, ..baker }.is_valid(&flow, &cookie));
    }
}
