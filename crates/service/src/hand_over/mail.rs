//! Names and messages of the machines as the records between servers have them.
//!
//! Pure: values in, values out.

use std::time::Duration;

use megapipe_shm::record::{AcceptorRef, ConnRef, MessageSubject};

use super::{AcceptorReport, Assignment, ConnectionName, ManagerMessage, TransportReport};
use crate::acceptor::{AcceptorId, AcceptorName, ManagerId};
use crate::balancer::{LentCredit, PickReason, ServiceOffer};

impl From<ServiceOffer> for MessageSubject {
    fn from(ServiceOffer { acceptor, service_time, credits }: ServiceOffer) -> Self {
        Self::Offer { acceptor: acceptor.into(), service_time_ns: service_time, credits }
    }
}

/// The bit of an assignment that needs no claim.
const FINAL: u32 = 1 << 8;

impl From<AcceptorName> for AcceptorRef {
    fn from(AcceptorName { manager, id, enlistment }: AcceptorName) -> Self {
        Self { manager: manager.0, id: id.0, enlistment }
    }
}

impl From<AcceptorRef> for AcceptorName {
    fn from(AcceptorRef { manager, id, enlistment }: AcceptorRef) -> Self {
        Self { manager: ManagerId(manager), id: AcceptorId(id), enlistment }
    }
}

impl From<ConnectionName> for ConnRef {
    fn from(ConnectionName { transport, id, flow_hash }: ConnectionName) -> Self {
        Self { transport, id, flow_hash }
    }
}

impl From<ConnRef> for ConnectionName {
    fn from(ConnRef { transport, id, flow_hash }: ConnRef) -> Self {
        Self { transport, id, flow_hash }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl From<TransportReport> for MessageSubject {
    fn from(report: TransportReport) -> Self {
        match report {
            TransportReport::Unassigned(conn) => Self::Established { conn: conn.into() },
            TransportReport::TakenBack { conn, acceptor } => {
                Self::TakenBack { conn: conn.into(), acceptor: acceptor.into() }
            }
            TransportReport::Reset(conn) => Self::Reset { conn: conn.into() },
        }
    }
}

impl From<AcceptorReport> for MessageSubject {
    fn from(report: AcceptorReport) -> Self {
        let acceptor = report.acceptor().into();
        match report {
            AcceptorReport::Withdrawn(_) => Self::Withdrawn { acceptor },
            AcceptorReport::Answered { service_time, .. } => {
                Self::Answered { acceptor, service_time_ns: nanos(service_time) }
            }
            AcceptorReport::Closed { service_time, .. } => {
                Self::Closed { acceptor, service_time_ns: nanos(service_time) }
            }
        }
    }
}

/// What a connection manager takes of a message, other than membership and acceptors' calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ManagerInput {
    /// Of one of its transport servers.
    Transport(TransportReport),
    /// About an acceptor whose home it is.
    Acceptor(AcceptorReport),
    /// Of another manager.
    Manager(ManagerMessage),
}

impl ManagerInput {
    /// The input of a message; `None`: it is for no manager, or an acceptor's call.
    pub(crate) fn of(subject: MessageSubject) -> Option<Self> {
        use MessageSubject as Says;
        Some(match subject {
            Says::Established { conn } => Self::Transport(TransportReport::Unassigned(conn.into())),
            Says::Reset { conn } => Self::Transport(TransportReport::Reset(conn.into())),
            Says::TakenBack { conn, acceptor } => {
                let (conn, acceptor) = (conn.into(), acceptor.into());
                Self::Transport(TransportReport::TakenBack { conn, acceptor })
            }
            Says::Withdrawn { acceptor } => {
                Self::Acceptor(AcceptorReport::Withdrawn(acceptor.into()))
            }
            Says::Answered { acceptor, service_time_ns } => {
                let service_time = Duration::from_nanos(service_time_ns);
                Self::Acceptor(AcceptorReport::Answered { acceptor: acceptor.into(), service_time })
            }
            Says::Closed { acceptor, service_time_ns } => {
                let service_time = Duration::from_nanos(service_time_ns);
                Self::Acceptor(AcceptorReport::Closed { acceptor: acceptor.into(), service_time })
            }
            Says::Joined { acceptor, .. } => Self::Manager(ManagerMessage::Joined(acceptor.into())),
            Says::Left { acceptor } => Self::Manager(ManagerMessage::Left(acceptor.into())),
            Says::Offer { acceptor, service_time_ns, credits }
            | Says::Granted { acceptor, service_time_ns, credits } => {
                let (acceptor, service_time) = (acceptor.into(), service_time_ns);
                let offer = ServiceOffer { acceptor, service_time, credits };
                Self::Manager(ManagerMessage::Offer(offer))
            }
            Says::Recall { acceptor } => Self::Manager(ManagerMessage::Recall(acceptor.into())),
            Says::Assigned { acceptor, borrower } => {
                let borrower = borrower.map(ManagerId);
                Self::Manager(ManagerMessage::Assigned { acceptor: acceptor.into(), borrower })
            }
            Says::Returned { acceptor, credits, borrower } => {
                let lent = LentCredit { acceptor: acceptor.into(), credits };
                let borrower = ManagerId(borrower);
                Self::Manager(ManagerMessage::Returned { lent, borrower })
            }
            Says::TimedOut { acceptor } => Self::Manager(ManagerMessage::TimedOut(acceptor.into())),
            Says::Request { lender, borrower } => {
                let (lender, borrower) = (ManagerId(lender), ManagerId(borrower));
                Self::Manager(ManagerMessage::Request { lender, borrower })
            }
            Says::Accept { .. }
            | Says::AcceptAgain { .. }
            | Says::Gone { .. }
            | Says::Assign { .. }
            | Says::Refuse { .. } => return None,
        })
    }
}

/// An assignment as a message.
pub(crate) fn encode_assignment(assignment: &Assignment) -> MessageSubject {
    let Assignment { conn, acceptor, is_final, reason } = *assignment;
    let how = reason as u32 | if is_final { FINAL } else { 0 };
    MessageSubject::Assign { conn: conn.into(), acceptor: acceptor.into(), how }
}

/// The assignment of a message.
pub(crate) fn decode_assignment(conn: ConnRef, acceptor: AcceptorRef, how: u32) -> Assignment {
    let reason = PickReason::ALL.get((how & !FINAL) as usize);
    let reason = reason.copied().unwrap_or(PickReason::Hash);
    let is_final = how & FINAL != 0;
    Assignment { conn: conn.into(), acceptor: acceptor.into(), is_final, reason }
}
