//! Flows of simulated clients, placed on shards by the real steering code.
//!
//! Pure.

use crate::limits;
use megapipe_service::steering::{BindingTable, Steering, SteeringKey, Transport};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Opens flows: each has the next port.
#[derive(Debug)]
pub(crate) struct Flows {
    steering: Steering,
    table: BindingTable,
    opened: u64,
    /// Number of shards that take flows in turn; none: the hash selects.
    in_turn: Option<u16>,
}

impl Flows {
    /// Flows on the shards in turn, as if a device spread them evenly.
    pub(crate) fn in_turn(shards: u16) -> Self {
        Self { in_turn: Some(shards.max(1)), ..Self::new(shards) }
    }

    pub(crate) fn new(shards: u16) -> Self {
        Self {
            steering: Steering::new(&limits::SIMULATED_STEERING_KEY, shards),
            table: BindingTable::new(shards),
            opened: 0,
            in_turn: None,
        }
    }

    /// The shard of the next flow.
    pub(crate) fn open(&mut self) -> u16 {
        let (first, last) = megapipe_service::limits::EPHEMERAL_PORTS;
        let ports = u64::from(last - first) + 1;
        let host = Ipv4Addr::from(limits::SIMULATED_PEERS + (self.opened / ports) as u32);
        let port = first + (self.opened % ports) as u16;
        self.opened += 1;
        if let Some(shards) = self.in_turn {
            return (self.opened % u64::from(shards)) as u16;
        }
        let src = SocketAddr::new(IpAddr::V4(host), port);
        let ends = SteeringKey { src, dst: limits::SIMULATED_SERVER };
        self.steering.shard_of(&self.table, Transport::Tcp, &ends)
    }
}
