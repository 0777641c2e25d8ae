//! Who may connect, with what: both sides' rules for the control channel, without any I/O.
//!
//! ```text
//!   client                                server
//!     | <-------------- HELLO ------------- |   versions, limits
//!     | --------------- INIT -------------> |   interface, mode, secret
//!     | <--------------- ACK -------------- |
//!     | -------- ADD_REGION + memfd ------> |   each answered by ACK
//!     | ------- ADD_RING + eventfd -------> |   each answered by ACK
//!     | -------------- CONNECT -----------> |
//!     | <------------ CONNECTED ----------- |   frames may flow
//! ```
//!
//! The client owns the memory: regions and rings are its offer, and the server checks each against
//! its own limits. Either side may say DISCONNECT at any time.
//!
//! Invariants
//! - What [`ServerHandshake::on_message`] let pass is whole: each ring lies inside a region that
//!   was added, aligned for its header, and there are as many rings one way as the other.
//! - The descriptors that come with messages are opaque here (`F`), so the rules are tested
//!   without any.

use super::control::{AddRing, FixedText, Hello, Init, MemifMessage, Name, SECRET_BYTES, VERSION};
use super::refusal::MemifRefusal;
use super::ring::{RING_ALIGNMENT, ring_bytes};
use crate::limits::{
    MEMIF_HANDSHAKE_MESSAGES_MAX, MEMIF_QUEUE_COUNT_MAX, MEMIF_REGION_BYTES_MAX,
    MEMIF_REGION_COUNT_MAX, MEMIF_RING_SIZE_LOG2_MAX, MEMIF_RING_SIZE_LOG2_MIN,
};

/// What both sides have to agree about.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// The interface on the socket.
    pub(super) id: u32,
    /// 0 Ethernet, 1 IP.
    pub(super) mode: u8,
    /// Zeros: none is asked for.
    pub(super) secret: [u8; SECRET_BYTES],
    /// Our own name.
    pub(super) name: Name,
    /// Rings in each direction: wanted by the client, at most taken by the server.
    pub(super) queue_count: u16,
    /// All queues are wanted, or have to be taken: each has a link that waits for its rings.
    pub(super) all_queues: bool,
    /// Ring size, as a power of two: wanted by the client, at most taken by the server.
    pub(super) ring_size_log2: u8,
}

/// A region that a client offers.
#[derive(Debug)]
pub(super) struct RegionOffer<F> {
    /// Its bytes.
    pub(super) bytes: u64,
    /// Its memory.
    pub(super) fd: F,
}

/// A ring that a client offers.
#[derive(Debug)]
pub(super) struct RingOffer<F> {
    /// Where it lies.
    pub(super) ring: AddRing,
    /// What wakes its consumer.
    pub(super) fd: F,
}

/// What the server says next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerReply {
    /// ACK, and go on.
    Ack,
    /// Everything is there: map it, then CONNECTED.
    Connected,
}

/// The server's side of one connection, until it is connected.
#[derive(Debug)]
pub(super) struct ServerHandshake<F> {
    terms: Terms,
    peer: Option<Name>,
    /// What the client has said so far. Each message gets an answer and time for the next one: a
    /// client that never comes to an end would keep all others out.
    message_count: u32,
    /// The regions offered, in order.
    pub(super) regions: Vec<RegionOffer<F>>,
    /// The rings from the client to us, in order.
    pub(super) to_server: Vec<RingOffer<F>>,
    /// The rings from us to the client, in order.
    pub(super) to_client: Vec<RingOffer<F>>,
}

impl<F> ServerHandshake<F> {
    /// A client has connected; [`ServerHandshake::hello`] is to be sent.
    pub(super) fn new(terms: Terms) -> Self {
        Self {
            terms,
            peer: None,
            message_count: 0,
            regions: Vec::new(),
            to_server: Vec::new(),
            to_client: Vec::new(),
        }
    }

    /// The first message.
    pub(super) fn hello(&self) -> MemifMessage {
        // The queue count is at least 1: `MemifSettings` were checked.
        let ring_index_max = self.terms.queue_count.saturating_sub(1);
        MemifMessage::Hello(Hello {
            name: self.terms.name,
            version_min: VERSION,
            version_max: VERSION,
            region_index_max: (MEMIF_REGION_COUNT_MAX - 1) as u16,
            to_client_index_max: ring_index_max,
            to_server_index_max: ring_index_max,
            ring_size_log2_max: self.terms.ring_size_log2,
        })
    }

    /// The client's name; empty until it said one.
    pub(super) fn peer(&self) -> Name {
        self.peer.unwrap_or_else(|| FixedText::new(""))
    }

    /// What we call ourselves.
    pub(super) const fn name(&self) -> Name {
        self.terms.name
    }

    /// Takes the client's next message and says what to answer.
    pub(super) fn on_message(
        &mut self,
        message: MemifMessage,
        fd: Option<F>,
    ) -> Result<ServerReply, MemifRefusal> {
        self.message_count += 1;
        if self.message_count > MEMIF_HANDSHAKE_MESSAGES_MAX {
            return Err(MemifRefusal("too many messages"));
        }
        match message {
            MemifMessage::Ack => Ok(ServerReply::Ack),
            MemifMessage::Init(init) if self.peer.is_none() => self.on_init(&init),
            _ if self.peer.is_none() => Err(MemifRefusal("INIT comes first")),
            MemifMessage::AddRegion { index, bytes } => self.on_region(index, bytes, fd),
            MemifMessage::AddRing(ring) => self.on_ring(ring, fd),
            MemifMessage::Connect { .. } => self.on_connect(),
            MemifMessage::Disconnect { .. } => Err(MemifRefusal("the client disconnected")),
            MemifMessage::Init(_) | MemifMessage::Hello(_) | MemifMessage::Connected { .. } => {
                Err(MemifRefusal("unexpected message"))
            }
        }
    }

    fn on_init(&mut self, init: &Init) -> Result<ServerReply, MemifRefusal> {
        if init.version != VERSION {
            return Err(MemifRefusal("incompatible version: 2.0 is spoken here"));
        }
        if init.id != self.terms.id {
            return Err(MemifRefusal("no interface with that id"));
        }
        if init.mode != self.terms.mode {
            return Err(MemifRefusal("another mode is spoken here"));
        }
        if !same_secret(&init.secret, &self.terms.secret) {
            return Err(MemifRefusal("wrong secret"));
        }
        self.peer = Some(init.name);
        Ok(ServerReply::Ack)
    }

    fn on_region(
        &mut self,
        index: u16,
        bytes: u64,
        fd: Option<F>,
    ) -> Result<ServerReply, MemifRefusal> {
        let fd = fd.ok_or(MemifRefusal("ADD_REGION without a descriptor"))?;
        if usize::from(index) != self.regions.len() || self.regions.len() == MEMIF_REGION_COUNT_MAX
        {
            return Err(MemifRefusal("invalid region index"));
        }
        if bytes == 0 || bytes > MEMIF_REGION_BYTES_MAX {
            return Err(MemifRefusal("invalid region size"));
        }
        self.regions.push(RegionOffer { bytes, fd });
        Ok(ServerReply::Ack)
    }

    fn on_ring(&mut self, ring: AddRing, fd: Option<F>) -> Result<ServerReply, MemifRefusal> {
        let fd = fd.ok_or(MemifRefusal("ADD_RING without a descriptor"))?;
        if !(MEMIF_RING_SIZE_LOG2_MIN..=self.terms.ring_size_log2).contains(&ring.size_log2) {
            return Err(MemifRefusal("invalid ring size"));
        }
        if ring.private_header_bytes != 0 {
            return Err(MemifRefusal("no private headers are spoken here"));
        }
        let region = self.regions.get(usize::from(ring.region));
        let region = region.ok_or(MemifRefusal("a ring in no region"))?;
        let end = u64::from(ring.offset) + ring_bytes(ring.size_log2) as u64;
        if end > region.bytes || !(ring.offset as usize).is_multiple_of(RING_ALIGNMENT) {
            return Err(MemifRefusal("a ring outside of its region, or misaligned"));
        }
        let rings = if ring.to_server { &mut self.to_server } else { &mut self.to_client };
        if usize::from(ring.index) != rings.len() || ring.index >= self.terms.queue_count {
            return Err(MemifRefusal("invalid ring index"));
        }
        rings.push(RingOffer { ring, fd });
        Ok(ServerReply::Ack)
    }

    fn on_connect(&self) -> Result<ServerReply, MemifRefusal> {
        if self.to_server.is_empty() || self.to_server.len() != self.to_client.len() {
            return Err(MemifRefusal("as many rings are wanted one way as the other"));
        }
        if self.terms.all_queues && self.to_server.len() != usize::from(self.terms.queue_count) {
            return Err(MemifRefusal("as many queues are wanted as there were before"));
        }
        Ok(ServerReply::Connected)
    }
}

/// Compares without telling by its duration where the first difference is.
fn same_secret(one: &[u8; SECRET_BYTES], other: &[u8; SECRET_BYTES]) -> bool {
    one.iter().zip(other).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}

/// What a client may use of what it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AgreedMemory {
    /// Rings in each direction.
    pub(super) queue_count: u16,
    /// Ring size, as a power of two.
    pub(super) ring_size_log2: u8,
}

/// The client's side of HELLO: the smaller of what it wants and what the server takes.
pub(super) fn agree(terms: &Terms, hello: &Hello) -> Result<AgreedMemory, MemifRefusal> {
    if hello.version_min > VERSION || hello.version_max < VERSION {
        return Err(MemifRefusal("incompatible version: 2.0 is spoken here"));
    }
    let index_max = hello.to_client_index_max.min(hello.to_server_index_max);
    let queue_count = terms.queue_count.min(index_max.saturating_add(1)).min(MEMIF_QUEUE_COUNT_MAX);
    if terms.all_queues && queue_count != terms.queue_count {
        return Err(MemifRefusal("the server takes fewer queues than there are links"));
    }
    let ring_size_log2 = terms.ring_size_log2.min(hello.ring_size_log2_max);
    if !(MEMIF_RING_SIZE_LOG2_MIN..=MEMIF_RING_SIZE_LOG2_MAX).contains(&ring_size_log2) {
        return Err(MemifRefusal("the server's largest ring is too small"));
    }
    Ok(AgreedMemory { queue_count, ring_size_log2 })
}

/// The client's answer to HELLO.
pub(super) fn init(terms: &Terms) -> MemifMessage {
    MemifMessage::Init(Init {
        version: VERSION,
        id: terms.id,
        mode: terms.mode,
        secret: terms.secret,
        name: terms.name,
    })
}

/// What is said when a side leaves.
pub(super) fn disconnect(reason: &str) -> MemifMessage {
    MemifMessage::Disconnect { code: 0, reason: FixedText::new(reason) }
}

#[cfg(test)]
mod tests;
