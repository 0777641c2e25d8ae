//! What went wrong between a load and its server, counted by kind.

use megapipe::OpError;
use serde::Serialize;

/// Why a connection or a transaction failed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum TransactionFault {
    /// No process listens on the port.
    Refused,
    /// The server reset the connection.
    Reset,
    /// The server ended the connection before it had answered.
    Closed,
    /// No connection, or no answer, within the time allowed.
    TimedOut,
    /// No local port, descriptor or memory was free: the load's own machine is at its limit.
    Exhausted(Exhausted),
    /// The response was wrong.
    WrongResponse,
    /// The server is unreachable: no route, or its address was not resolved.
    Unreachable,
    /// Anything else that the kernel reported.
    Other,
}

/// What the load's own machine has run out of.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// Local ports towards the server: many are in TIME-WAIT, most likely.
    Ports,
    /// File descriptors or slots for lwsockets.
    Descriptors,
    /// Memory or buffers.
    Memory,
}

impl From<OpError> for TransactionFault {
    fn from(error: OpError) -> Self {
        match error {
            OpError::Refused => Self::Refused,
            OpError::Reset | OpError::BrokenPipe | OpError::Aborted => Self::Reset,
            OpError::TimedOut => Self::TimedOut,
            OpError::AddressNotAvailable | OpError::AddressInUse => {
                Self::Exhausted(Exhausted::Ports)
            }
            OpError::NoDescriptors | OpError::TableFull => Self::Exhausted(Exhausted::Descriptors),
            OpError::NoBuffers | OpError::NoMemory => Self::Exhausted(Exhausted::Memory),
            OpError::HostUnreachable | OpError::NetworkUnreachable => Self::Unreachable,
            _ => Self::Other,
        }
    }
}

/// How often each kind of fault happened.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    /// Connections refused by the server.
    pub refused: u64,
    /// Connections reset by the server.
    pub reset: u64,
    /// Connections that the server ended before it answered.
    pub closed: u64,
    /// Connections or answers that did not come in time.
    pub timed_out: u64,
    /// Connections that found no local port free.
    pub no_ports: u64,
    /// Connections that found no descriptor free.
    pub no_descriptors: u64,
    /// Operations that found no memory free.
    pub no_memory: u64,
    /// Wrong responses.
    pub wrong_response: u64,
    /// Everything else.
    pub other: u64,
    /// Connections that found no way to the server, or lost it.
    pub unreachable: u64,
}

impl FaultCounts {
    /// Counts one.
    pub const fn count(&mut self, fault: TransactionFault) {
        let counter = match fault {
            TransactionFault::Refused => &mut self.refused,
            TransactionFault::Reset => &mut self.reset,
            TransactionFault::Closed => &mut self.closed,
            TransactionFault::TimedOut => &mut self.timed_out,
            TransactionFault::Exhausted(Exhausted::Ports) => &mut self.no_ports,
            TransactionFault::Exhausted(Exhausted::Descriptors) => &mut self.no_descriptors,
            TransactionFault::Exhausted(Exhausted::Memory) => &mut self.no_memory,
            TransactionFault::WrongResponse => &mut self.wrong_response,
            TransactionFault::Unreachable => &mut self.unreachable,
            TransactionFault::Other => &mut self.other,
        };
        *counter += 1;
    }

    /// Each kind with its name, as tables and people write it.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("refused", self.refused),
            ("reset", self.reset),
            ("closed early", self.closed),
            ("timed out", self.timed_out),
            ("no local port", self.no_ports),
            ("no descriptor", self.no_descriptors),
            ("no memory", self.no_memory),
            ("wrong response", self.wrong_response),
            ("unreachable", self.unreachable),
            ("other", self.other),
        ]
    }

    /// Those that happened, as "3 refused, 1 reset".
    pub(super) fn listed(&self) -> String {
        let happened = self.named().into_iter().filter(|(_, count)| *count > 0);
        let listed: Vec<String> = happened.map(|(name, count)| format!("{count} {name}")).collect();
        listed.join(", ")
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.named().iter().map(|&(_, count)| count).sum()
    }

    /// Adds what another thread counted.
    pub const fn add(&mut self, other: &Self) {
        self.refused += other.refused;
        self.reset += other.reset;
        self.closed += other.closed;
        self.timed_out += other.timed_out;
        self.no_ports += other.no_ports;
        self.no_descriptors += other.no_descriptors;
        self.no_memory += other.no_memory;
        self.wrong_response += other.wrong_response;
        self.unreachable += other.unreachable;
        self.other += other.other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [TransactionFault; 10] = [
        TransactionFault::Refused,
        TransactionFault::Reset,
        TransactionFault::Closed,
        TransactionFault::TimedOut,
        TransactionFault::Exhausted(Exhausted::Ports),
        TransactionFault::Exhausted(Exhausted::Descriptors),
        TransactionFault::Exhausted(Exhausted::Memory),
        TransactionFault::WrongResponse,
        TransactionFault::Unreachable,
        TransactionFault::Other,
    ];

    #[test]
    fn every_kind_has_a_counter_of_its_own_under_the_same_place() {
        for (place, &fault) in ALL.iter().enumerate() {
            let mut faults = FaultCounts::default();
            faults.count(fault);
            assert_eq!(faults.named()[place].1, 1, "{fault:?}");
            assert_eq!(faults.total(), 1);
            faults.add(&faults.clone());
            assert_eq!(faults.total(), 2, "{fault:?} is added");
        }
    }

    #[test]
    fn kernel_errors_are_distinguished() {
        assert_eq!(TransactionFault::from(OpError::Refused), TransactionFault::Refused);
        assert_eq!(TransactionFault::from(OpError::BrokenPipe), TransactionFault::Reset);
        assert_eq!(
            TransactionFault::from(OpError::AddressNotAvailable),
            TransactionFault::Exhausted(Exhausted::Ports)
        );
        assert_eq!(TransactionFault::from(OpError::HostUnreachable), TransactionFault::Unreachable);
        assert_eq!(
            TransactionFault::from(OpError::NetworkUnreachable),
            TransactionFault::Unreachable
        );
        assert_eq!(TransactionFault::from(OpError::Os(99)), TransactionFault::Other);
    }
}
