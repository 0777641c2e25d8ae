//! The states of a connection and the one function that changes them.
//!
//! Read first: RFC 9293 §3.3.2 (the states and the figure), §3.6 (closing), §3.10 (events).
//!
//! Each state is a struct, and what may happen in it is a method that consumes it.
//! [`transition`] is the table of all of them; where a connection ends without a segment (an abort,
//! a timeout), its state is set to `Closed` directly. The table
//! decides the next state and what has to be said or sent; sequence numbers, windows and timers are
//! the business of its callers, who call it only after a segment was found acceptable.
//!
//! A connection in LISTEN, in SYN-RECEIVED from LISTEN, or in TIME-WAIT lives in a record smaller
//! than a connection (`listen.rs`, `time_wait.rs`); the table is the same for them.
//!
//! Invariants
//! - `Closed` is left only by opening.
//! - A state says what was closed: both directions, one, or none ([`State::may_send`],
//!   [`State::may_receive`]).

use crate::error::CloseReason;

/// No connection. `reason` says why there is none any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) reason: CloseReason,
}

/// Waits for a SYN from anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Listen;

/// Sent a SYN, waits for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SynSent;

/// Sent and received a SYN, waits for the ACK of its own. Remembers how it began (MUST-11).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SynReceived {
    pub(crate) passive: bool,
}

/// Received a SYN with data and a valid Fast Open cookie, and waits for the ACK of its own SYN
/// (RFC 7413 §4.2.2). Data flows both ways already; the rest is as in SYN-RECEIVED.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FastOpen;

/// Data flows both ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Established;

/// We closed; the peer has not acknowledged that yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FinWait1;

/// We closed, and the peer knows; it may still send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FinWait2;

/// The peer closed; we may still send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CloseWait;

/// Both closed at once; our FIN is not acknowledged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closing;

/// The peer closed, then we did; our FIN is not acknowledged yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastAck;

/// Everything is over; old segments may still arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeWait;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Closed(Closed),
    Listen(Listen),
    SynSent(SynSent),
    SynReceived(SynReceived),
    FastOpen(FastOpen),
    Established(Established),
    FinWait1(FinWait1),
    FinWait2(FinWait2),
    CloseWait(CloseWait),
    Closing(Closing),
    LastAck(LastAck),
    TimeWait(TimeWait),
}

/// What happened, after everything about sequence numbers was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// `connect`.
    OpenActive,
    /// `listen`.
    OpenPassive,
    /// A SYN without ACK.
    Syn,
    /// The same with a valid Fast Open cookie, for a listener that takes its data at once.
    SynWithCookie,
    /// A SYN that acknowledges ours.
    SynAck,
    /// An ACK of our SYN.
    AckOfSyn,
    /// The peer's FIN, with everything before it.
    Fin,
    /// An ACK of our FIN.
    AckOfFin,
    /// `shutdown` or `close`.
    Close,
    /// `abort`, or data for an application that has closed.
    Abort,
    /// An acceptable RST.
    Reset,
    /// Nothing came for too long, or never will.
    GiveUp(CloseReason),
    /// Two maximum segment lifetimes have passed.
    TwoMsl,
}

/// What follows from a change of state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Nothing,
    SendSyn,
    SendSynAck,
    /// Acknowledge at once.
    SendAck,
    /// FIN after what is queued.
    SendFin,
    /// The same, once established.
    CloseLater,
    /// RST at `snd.nxt`.
    SendReset,
    /// Start (again) the wait for two maximum segment lifetimes; a FIN is acknowledged.
    StartTimeWait,
    /// Back to waiting for a SYN: the record goes without a word to the application.
    Forget,
}

impl SynSent {
    /// RFC 9293 §3.10.7.3, fourth: the handshake is complete.
    const fn on_syn_ack(self) -> Established {
        Established
    }

    /// RFC 9293 §3.5, figure 8: simultaneous open (MUST-10).
    const fn on_syn(self) -> SynReceived {
        SynReceived { passive: false }
    }
}

impl Listen {
    /// RFC 9293 §3.10.7.2, third.
    const fn on_syn(self) -> SynReceived {
        SynReceived { passive: true }
    }

    /// RFC 7413 §4.2.2.
    const fn on_syn_with_cookie(self) -> FastOpen {
        FastOpen
    }
}

impl FastOpen {
    /// RFC 7413 §4.2.2: from now on a connection like any other.
    const fn on_ack_of_syn(self) -> Established {
        Established
    }
}

impl SynReceived {
    /// RFC 9293 §3.10.7.4, fifth.
    const fn on_ack_of_syn(self) -> Established {
        Established
    }

    /// RFC 9293 §3.10.7.4, eighth.
    const fn on_fin(self) -> CloseWait {
        CloseWait
    }

    /// RFC 9293 §3.10.7.4, second: one that listened goes back to that, one that called was
    /// refused.
    const fn on_reset(self) -> (State, Action) {
        if self.passive {
            (State::Listen(Listen), Action::Forget)
        } else {
            closed(CloseReason::Refused)
        }
    }
}

impl Established {
    /// RFC 9293 §3.10.7.4, eighth.
    const fn on_fin(self) -> CloseWait {
        CloseWait
    }

    /// RFC 9293 §3.10.4.
    const fn on_close(self) -> FinWait1 {
        FinWait1
    }
}

impl FinWait1 {
    /// RFC 9293 §3.10.7.4, fifth.
    const fn on_ack_of_fin(self) -> FinWait2 {
        FinWait2
    }

    /// RFC 9293 §3.10.7.4, eighth: both closed at once.
    const fn on_fin(self) -> Closing {
        Closing
    }
}

impl FinWait2 {
    /// RFC 9293 §3.10.7.4, eighth.
    const fn on_fin(self) -> TimeWait {
        TimeWait
    }
}

impl CloseWait {
    /// RFC 9293 §3.10.4.
    const fn on_close(self) -> LastAck {
        LastAck
    }
}

impl Closing {
    /// RFC 9293 §3.10.7.4, fifth.
    const fn on_ack_of_fin(self) -> TimeWait {
        TimeWait
    }
}

impl LastAck {
    /// RFC 9293 §3.10.7.4, fifth.
    const fn on_ack_of_fin(self) -> Closed {
        Closed { reason: CloseReason::Finished }
    }
}

impl State {
    /// `send` is allowed: data flows, and we have not closed.
    pub(crate) const fn may_send(self) -> bool {
        matches!(self, Self::FastOpen(_) | Self::Established(_) | Self::CloseWait(_))
    }

    /// Bytes of the peer are still to be expected.
    pub(crate) const fn may_receive(self) -> bool {
        matches!(
            self,
            Self::FastOpen(_) | Self::Established(_) | Self::FinWait1(_) | Self::FinWait2(_)
        )
    }

    /// Our FIN is not acknowledged yet.
    pub(crate) const fn owes_fin(self) -> bool {
        matches!(self, Self::FinWait1(_) | Self::Closing(_) | Self::LastAck(_))
    }

    /// The peer's FIN was received.
    pub(crate) const fn peer_has_closed(self) -> bool {
        matches!(self, Self::CloseWait(_) | Self::Closing(_) | Self::LastAck(_) | Self::TimeWait(_))
    }

    /// Data may be in flight, and it is not over (RFC 9293 §3.3.2: "synchronized", without
    /// SYN-RECEIVED). With Fast Open our SYN may not be acknowledged yet.
    pub(crate) const fn is_synchronized(self) -> bool {
        !matches!(self, Self::Closed(_) | Self::Listen(_) | Self::SynSent(_) | Self::SynReceived(_))
    }

    /// Data is in flight before our SYN is acknowledged.
    pub(crate) const fn is_fast_open(self) -> bool {
        matches!(self, Self::FastOpen(_))
    }

    /// It is over.
    pub(crate) const fn is_closed(self) -> bool {
        matches!(self, Self::Closed(_))
    }

    /// The name in RFC 9293.
    #[cfg(test)]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Closed(_) => "CLOSED",
            Self::Listen(_) => "LISTEN",
            Self::SynSent(_) => "SYN-SENT",
            Self::SynReceived(SynReceived { passive: true }) => "SYN-RECEIVED (passive)",
            Self::SynReceived(SynReceived { passive: false }) => "SYN-RECEIVED (active)",
            Self::FastOpen(_) => "SYN-RECEIVED (Fast Open)",
            Self::Established(_) => "ESTABLISHED",
            Self::FinWait1(_) => "FIN-WAIT-1",
            Self::FinWait2(_) => "FIN-WAIT-2",
            Self::CloseWait(_) => "CLOSE-WAIT",
            Self::Closing(_) => "CLOSING",
            Self::LastAck(_) => "LAST-ACK",
            Self::TimeWait(_) => "TIME-WAIT",
        }
    }
}

const fn closed(reason: CloseReason) -> (State, Action) {
    (State::Closed(Closed { reason }), Action::Nothing)
}

/// The next state, and what follows. `None`: that cannot happen there, and changes nothing.
#[must_use]
pub(crate) const fn transition(state: State, input: Input) -> Option<(State, Action)> {
    match input {
        Input::OpenActive
        | Input::OpenPassive
        | Input::Syn
        | Input::SynWithCookie
        | Input::SynAck
        | Input::AckOfSyn => open(state, input),
        Input::Fin | Input::AckOfFin | Input::Close => finish(state, input),
        Input::Abort | Input::Reset | Input::GiveUp(_) | Input::TwoMsl => end(state, input),
    }
}

/// RFC 9293 §3.10.1 and the handshake in §3.10.7.
const fn open(state: State, input: Input) -> Option<(State, Action)> {
    Some(match (state, input) {
        (State::Closed(_), Input::OpenActive) => (State::SynSent(SynSent), Action::SendSyn),
        (State::Closed(_), Input::OpenPassive) => (State::Listen(Listen), Action::Nothing),
        (State::Listen(listen), Input::Syn) => {
            (State::SynReceived(listen.on_syn()), Action::SendSynAck)
        }
        (State::Listen(listen), Input::SynWithCookie) => {
            (State::FastOpen(listen.on_syn_with_cookie()), Action::SendSynAck)
        }
        (State::SynSent(sent), Input::Syn) => {
            (State::SynReceived(sent.on_syn()), Action::SendSynAck)
        }
        (State::SynSent(sent), Input::SynAck) => {
            (State::Established(sent.on_syn_ack()), Action::SendAck)
        }
        (State::SynReceived(received), Input::AckOfSyn) => {
            (State::Established(received.on_ack_of_syn()), Action::Nothing)
        }
        (State::FastOpen(it), Input::AckOfSyn) => {
            (State::Established(it.on_ack_of_syn()), Action::Nothing)
        }
        // §3.6.1 (MAY-2): a new SYN takes the place of what waits.
        (State::TimeWait(_), Input::Syn) => {
            (State::SynReceived(SynReceived { passive: true }), Action::SendSynAck)
        }
        _ => return None,
    })
}

/// RFC 9293 §3.6 and §3.10.4: both directions end, each with a FIN and its ACK.
const fn finish(state: State, input: Input) -> Option<(State, Action)> {
    Some(match (state, input) {
        (State::SynReceived(it), Input::Fin) => (State::CloseWait(it.on_fin()), Action::SendAck),
        (State::Established(it), Input::Fin) => (State::CloseWait(it.on_fin()), Action::SendAck),
        (State::FinWait1(it), Input::Fin) => (State::Closing(it.on_fin()), Action::SendAck),
        (State::FinWait2(it), Input::Fin) => (State::TimeWait(it.on_fin()), Action::StartTimeWait),
        // The peer did not get our last ACK.
        (State::TimeWait(it), Input::Fin) => (State::TimeWait(it), Action::StartTimeWait),
        (State::FinWait1(it), Input::AckOfFin) => {
            (State::FinWait2(it.on_ack_of_fin()), Action::Nothing)
        }
        (State::Closing(it), Input::AckOfFin) => {
            (State::TimeWait(it.on_ack_of_fin()), Action::StartTimeWait)
        }
        (State::LastAck(it), Input::AckOfFin) => {
            (State::Closed(it.on_ack_of_fin()), Action::Nothing)
        }
        (State::Listen(_), Input::Close) | (State::SynSent(_), Input::Close) => {
            closed(CloseReason::Aborted)
        }
        // The FIN waits until the SYN is acknowledged.
        (State::SynReceived(it), Input::Close) => (State::SynReceived(it), Action::CloseLater),
        (State::FastOpen(it), Input::Close) => (State::FastOpen(it), Action::CloseLater),
        (State::Established(it), Input::Close) => (State::FinWait1(it.on_close()), Action::SendFin),
        (State::CloseWait(it), Input::Close) => (State::LastAck(it.on_close()), Action::SendFin),
        _ => return None,
    })
}

/// RFC 9293 §3.10.5 (ABORT), §3.10.7.4 second (RST), §3.10.8 (timeouts).
const fn end(state: State, input: Input) -> Option<(State, Action)> {
    Some(match (state, input) {
        (State::Closed(_), _) => return None,
        (State::Listen(_) | State::SynSent(_), Input::Abort) => closed(CloseReason::Aborted),
        // §3.10.5: what is as good as over needs no RST.
        (State::Closing(_) | State::LastAck(_) | State::TimeWait(_), Input::Abort) => {
            closed(CloseReason::Aborted)
        }
        (_, Input::Abort) => (closed(CloseReason::Aborted).0, Action::SendReset),
        (State::Listen(_), Input::Reset) => return None,
        (State::SynSent(_), Input::Reset) => closed(CloseReason::Refused),
        (State::SynReceived(received), Input::Reset) => received.on_reset(),
        // RFC 1337: a RST does not cut TIME-WAIT short.
        (State::TimeWait(_), Input::Reset) => return None,
        // §3.10.7.4 lets CLOSING and LAST-ACK end in silence. As in Linux, the application learns
        // that its last bytes, or its FIN, were never acknowledged.
        (_, Input::Reset) => closed(CloseReason::ResetByPeer),
        (State::TimeWait(_), Input::TwoMsl) => closed(CloseReason::Finished),
        (_, Input::TwoMsl) | (State::Listen(_) | State::TimeWait(_), Input::GiveUp(_)) => {
            return None;
        }
        (State::SynReceived(SynReceived { passive: true }), Input::GiveUp(_)) => {
            (State::Listen(Listen), Action::Forget)
        }
        (_, Input::GiveUp(reason)) => closed(reason),
        _ => return None,
    })
}

const _: () = assert!(size_of::<State>() <= 2);

#[cfg(test)]
mod tests;
