//! Flows that change hands between this server and the host's kernel.
//!
//! Read first: `megapipe_link::Ownership`, which says what a taken and a released flow are;
//! `megapipe_link::migration`, by which a connection moves.
//!
//! A port is ours as a whole or the kernel's; a connection that moves makes its flow an exception.
//! An exception lasts as long as its connection: [`Server::poll`] looks from time to time whether
//! the kernel still has those that were released, and the stack those that were taken.
//!
//! Invariant: what the link takes and what it leaves changes at once, and only by these calls.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use megapipe_link::migration::{Agreed, Checkpoint, RepairError, Windows};
use megapipe_link::{FlowTuple, LinkError, Transport};
use megapipe_stack::{Chunk, Clocks, Instant, Memory, SeqNum, Snapshot, TcpState};

use crate::descriptors::KeptPort;
use crate::host::Host;
use crate::limits::DRAIN_SHARES_MAX;
use crate::policy::QuotaCharge;
use crate::server::Server;

/// Why a connection of this server's cannot become the kernel's, nor the other way round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotShared {
    /// The link has an address of its own, which the kernel does not have.
    OwnAddress,
    /// The link shares an address, but no interface is configured.
    NoInterface,
    /// The server runs on a thread of its own, and a connection moves within one.
    OtherThread,
    /// The connection's frames come to another shard of the network.
    OtherShard,
}

/// The flow between two addresses, seen from this host.
#[must_use]
pub const fn tcp_flow(local: SocketAddr, remote: SocketAddr) -> FlowTuple {
    FlowTuple {
        transport: Transport::Tcp,
        local: local.ip(),
        local_port: local.port(),
        remote: remote.ip(),
        remote_port: remote.port(),
    }
}

/// What the kernel has to know of a connection that has left the stack, with the bytes that were
/// received and not read.
#[must_use]
pub fn checkpoint_of(snapshot: &Snapshot, unread: Vec<u8>, memory: &impl Memory) -> Checkpoint {
    let mut sent = Vec::with_capacity(snapshot.unacked.iter().map(|it| it.len as usize).sum());
    for chunk in &snapshot.unacked {
        let from = sent.len();
        sent.resize(from + chunk.len as usize, 0);
        memory.copy_out(*chunk, &mut sent[from..]);
    }
    let sent_bytes = snapshot.snd_nxt.since(snapshot.snd_una) as usize;
    let unsent = sent.split_off(sent_bytes.min(sent.len()));
    Checkpoint {
        local: snapshot.local,
        remote: snapshot.remote,
        snd_una: snapshot.snd_una.0,
        rcv_nxt: snapshot.rcv_nxt.0,
        windows: Windows {
            snd_wl1: snapshot.snd_wl1.0,
            snd_wnd: snapshot.snd_wnd,
            snd_wnd_max: snapshot.snd_wnd_max,
            rcv_wnd: snapshot.rcv_wnd,
        },
        agreed: Agreed {
            mss: snapshot.peer_mss,
            window_scale: snapshot.window_scale,
            sack: snapshot.sack,
            timestamp: snapshot.clocks.map(|clocks| clocks.value),
            ecn: snapshot.ecn,
        },
        sent,
        unsent,
        unread,
        nodelay: snapshot.no_delay,
        srtt_us: snapshot.srtt.map_or(0, |srtt| srtt.as_micros() as u32),
    }
}

/// What the stack has to know of a connection of the kernel's, whose unread bytes are elsewhere.
/// `keep` stores bytes that are to be sent.
///
/// # Errors
/// `keep` has no memory. Returns the chunks that it has stored.
pub fn snapshot_of(
    checkpoint: Checkpoint,
    mut keep: impl FnMut(Vec<u8>) -> Option<Chunk>,
) -> Result<Snapshot, Vec<Chunk>> {
    let Checkpoint { windows, agreed, sent, unsent, srtt_us, .. } = checkpoint;
    let snd_una = SeqNum(checkpoint.snd_una);
    let sent_bytes = sent.len() as u32;
    let mut unacked = Vec::new();
    for bytes in [sent, unsent].into_iter().filter(|bytes| !bytes.is_empty()) {
        match keep(bytes) {
            Some(chunk) => unacked.push(chunk),
            None => return Err(unacked),
        }
    }
    Ok(Snapshot {
        local: checkpoint.local,
        remote: checkpoint.remote,
        snd_una,
        snd_nxt: snd_una + sent_bytes,
        snd_wnd: windows.snd_wnd,
        snd_wl1: SeqNum(windows.snd_wl1),
        snd_wnd_max: windows.snd_wnd_max,
        rcv_nxt: SeqNum(checkpoint.rcv_nxt),
        rcv_wnd: windows.rcv_wnd,
        peer_mss: agreed.mss,
        window_scale: agreed.window_scale,
        clocks: agreed.timestamp.map(|value| Clocks { value, recent: None }),
        sack: agreed.sack,
        ecn: agreed.ecn,
        no_delay: checkpoint.nodelay,
        srtt: (srtt_us > 0).then(|| Duration::from_micros(srtt_us.into())),
        unacked,
        unread: Vec::new(),
    })
}

/// Those of a stack's addresses, at the port, that a listening socket at `bound` stands for: that
/// one, or all of the family. `is_dual`: an IPv6 socket that stands for IPv4 as well.
#[must_use]
pub fn covered(addresses: &[IpAddr], bound: SocketAddr, is_dual: bool) -> Vec<SocketAddr> {
    let covers = |address: &&IpAddr| match bound.ip() {
        // The kernel's loopback goes on beside the stack's.
        _ if address.is_loopback() => false,
        ip if !ip.is_unspecified() => **address == ip,
        ip => address.is_ipv4() == ip.is_ipv4() || is_dual,
    };
    addresses.iter().filter(covers).map(|ip| SocketAddr::new(*ip, bound.port())).collect()
}

/// Checks that a connection can move: only established ones can.
///
/// # Errors
/// [`RepairError::WrongState`] names the state.
pub const fn check_established(state: TcpState) -> Result<(), RepairError> {
    match state {
        TcpState::Established => Ok(()),
        other => Err(RepairError::WrongState(other.name())),
    }
}

impl<M: Memory> Server<M> {
    /// The index of the interface whose address the link shares with the kernel.
    ///
    /// # Errors
    /// [`NotShared`]: no connection can move.
    pub fn shared_interface(&self) -> Result<u32, NotShared> {
        if !self.caps().shares_host_address {
            return Err(NotShared::OwnAddress);
        }
        self.host.as_ref().and_then(|host| host.interface()).ok_or(NotShared::NoInterface)
    }

    /// The same, for a connection that is to come here.
    ///
    /// # Errors
    /// [`NotShared`]: it cannot come here.
    pub fn interface_of(&self, local: SocketAddr, remote: SocketAddr) -> Result<u32, NotShared> {
        let interface = self.shared_interface()?;
        let is_home = self.link.attachment().is_none_or(|place| place.is_home(local, remote));
        if is_home { Ok(interface) } else { Err(NotShared::OtherShard) }
    }

    /// Whether a peer is at an address of ours: then both ends of a connection are in the stack.
    #[must_use]
    pub fn is_own(&self, remote: SocketAddr) -> bool {
        remote.ip().is_loopback() || self.shares(remote)
    }

    /// Whether an address is one of those that the host and the stack have in common.
    pub(crate) fn shares(&self, address: SocketAddr) -> bool {
        let is_shared = |host: &Host| host.shared_addresses().contains(&address.ip());
        self.host.as_ref().is_some_and(is_shared)
    }

    /// Whether there is room to release a flow, before anything changes ([`Server::release`]).
    ///
    /// # Errors
    /// What the link says.
    pub fn check_release(&self, flow: FlowTuple) -> Result<(), LinkError> {
        let Some(host) = &self.host else { return Ok(()) };
        host.check(&self.link, |ownership| ownership.release(flow))
    }

    /// Takes all frames that have arrived, in several polls' shares, so that none of a connection
    /// that is about to leave is lost. What is still at a link server on a thread of its own is not
    /// among them: the peer sends it again.
    ///
    /// # Errors
    /// What the link says.
    pub fn drain(&mut self, now: Instant) -> Result<(), LinkError> {
        for _ in 0..DRAIN_SHARES_MAX {
            if self.receive(now)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// From now on the flow is the kernel's: the link does not take its frames any more. A
    /// component has to be there for them, or the kernel answers with resets.
    ///
    /// # Errors
    /// What the link says; nothing has changed then.
    pub fn release(&mut self, flow: FlowTuple) -> Result<(), LinkError> {
        let Some(host) = &mut self.host else { return Ok(()) };
        host.change(&mut self.link, |ownership| ownership.release(flow))
    }

    /// As [`Server::release`], of a flow that counts for a user as long as its connection lasts.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn release_for(
        &mut self,
        flow: FlowTuple,
        charge: Option<QuotaCharge>,
    ) -> Result<(), LinkError> {
        self.release(flow)?;
        self.charge_moved(flow, charge);
        Ok(())
    }

    fn charge_moved(&mut self, flow: FlowTuple, charge: Option<QuotaCharge>) {
        if let (Some(host), Some(charge)) = (&mut self.host, charge) {
            host.charge_moved(flow, charge);
        }
    }

    /// As [`Server::take`], of a flow that counts for a user as long as it is an exception.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn take_for(
        &mut self,
        flow: FlowTuple,
        charge: Option<QuotaCharge>,
    ) -> Result<(), LinkError> {
        self.take(flow)?;
        self.charge_moved(flow, charge);
        Ok(())
    }

    /// From now on the flow is ours: the link takes its frames, and the kernel is silent.
    ///
    /// # Errors
    /// What the link says; nothing has changed then.
    pub fn take(&mut self, flow: FlowTuple) -> Result<(), LinkError> {
        let local = SocketAddr::new(flow.local, flow.local_port);
        let remote = SocketAddr::new(flow.remote, flow.remote_port);
        if !self.link.arrives_here(local, remote) {
            let why = "its segments arrive at another shard".to_owned();
            return Err(LinkError::Setting { setting: "flow", why });
        }
        let Some(host) = &mut self.host else { return Ok(()) };
        host.change(&mut self.link, |ownership| ownership.take(flow))
    }

    /// The flow is no exception any more: its port decides.
    ///
    /// # Errors
    /// What the link says; nothing has changed then.
    pub fn forget(&mut self, flow: &FlowTuple) -> Result<(), LinkError> {
        let Some(host) = &mut self.host else { return Ok(()) };
        host.change(&mut self.link, |ownership| {
            ownership.forget(flow);
            Ok(())
        })
    }

    /// The addresses of the host that its listening socket at `bound` stands for: that one, or all
    /// of the family. `is_dual`: an IPv6 socket that stands for IPv4 as well. Empty: none of ours.
    #[must_use]
    pub fn covered(&self, bound: SocketAddr, is_dual: bool) -> Vec<SocketAddr> {
        let addresses = self.host.as_ref().map_or(&[][..], Host::shared_addresses);
        covered(addresses, bound, is_dual)
    }

    /// From now on TCP ports of the host are kept silent by a socket of the program's own, which is
    /// deaf to the link's interface: [`Server::listen`] may take them.
    ///
    /// # Errors
    /// What the link says; nothing has changed then.
    pub fn hold_elsewhere(&mut self, ports: &[SocketAddr]) -> Result<(), LinkError> {
        let Some(host) = &mut self.host else { return Ok(()) };
        host.change(&mut self.link, |ownership| {
            ports.iter().try_for_each(|port| ownership.hold_elsewhere(Transport::Tcp, *port))
        })
    }

    /// From now on the sockets of a client keep a TCP port of the host silent: [`Server::listen`]
    /// may take it.
    ///
    /// # Errors
    /// What the link says; nothing has changed then.
    pub(crate) fn reserve_port(&mut self, kept: &Arc<KeptPort>) -> Result<(), LinkError> {
        let Some(host) = &mut self.host else { return Ok(()) };
        host.reserve(&mut self.link, kept)
    }

    /// The listener that these sockets are for is gone. They stay while the port has connections.
    pub(crate) fn leave_reservation(&mut self, kept: &Arc<KeptPort>) {
        if let Some(host) = &mut self.host {
            host.leave_reservation(kept);
        }
    }

    /// The listener of listening sockets of a program is gone: the kernel serves their port again,
    /// unless another listener has it.
    pub(crate) fn give_back_reserved(&mut self, now: Instant, kept: &Arc<KeptPort>) {
        let port = kept.reservation().address().port();
        let left = self.host.as_ref().map_or_else(Vec::new, |host| host.left_at(port));
        // If the link does not let go of the port, the next look tries again.
        if !left.is_empty()
            && self.give_back(now, &left).is_ok()
            && let Some(host) = &mut self.host
        {
            host.drop_reservations(port);
        }
    }

    /// Gives such ports back, after [`Server::unlisten`]. Connections on them stay, each by its own
    /// flow, as far as there is room for single flows; those beyond it are reset. How many.
    ///
    /// # Errors
    /// What the link says; the ports stay ours then.
    pub fn give_back(&mut self, now: Instant, ports: &[SocketAddr]) -> Result<usize, LinkError> {
        let Some(host) = &mut self.host else { return Ok(0) };
        let Some(port) = ports.first().map(|port| port.port()) else { return Ok(0) };
        let (stack, memory) = self.transport.parts();
        let staying = stack.connections_at(port);
        let mut beyond = Vec::new();
        host.change(&mut self.link, |ownership| {
            ports.iter().for_each(|port| ownership.hold_again(Transport::Tcp, *port));
            ownership.tcp_ports.remove(port..=port)?;
            for (conn, local, remote) in staying {
                if ownership.take(tcp_flow(local, remote)).is_err() {
                    beyond.push(conn);
                }
            }
            Ok(())
        })?;
        for conn in &beyond {
            // It was there a moment ago.
            let _ = stack.abort(now, *conn, memory);
        }
        Ok(beyond.len())
    }
}
