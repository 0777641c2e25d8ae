//! Per-connection flags, one bit each.

use core::fmt;

/// A set of flags.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ConnFlags(u32);

macro_rules! flags {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Clone, Copy)]
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "numbers the bits")]
        enum Bit { $($name,)* }

        impl ConnFlags {
            $($(#[$doc])* pub(crate) const $name: Self = Self(1 << Bit::$name as u32);)*
            const NAMES: &'static [(Self, &'static str)] =
                &[$((Self::$name, stringify!($name)),)*];
        }
    };
}

flags! {
    /// Both SYNs carried timestamps.
    TIMESTAMPS,
    /// Both SYNs permitted SACK.
    SACK,
    /// Both SYNs agreed on ECN (RFC 3168 §6.1.1).
    ECN,
    /// A marked packet came, and no CWR since: ECE goes with every ACK.
    ECE_DUE,
    /// The window was reduced for ECE: CWR goes with the next new data.
    CWR_DUE,
    /// An ACK is to be sent at once.
    ACK_NOW,
    /// A SYN or SYN-ACK is to be sent (again).
    SYN_DUE,
    /// A segment before the window is to be sent, to get an ACK: keepalive or window probe.
    PROBE_DUE,
    /// A tail loss probe is to be sent (RFC 8985 §7.3).
    TAIL_PROBE_DUE,
    /// The window is closed, or too small for what Nagle's or the silly window's avoidance would
    /// send: the probe timer runs.
    PERSIST,
    /// The application asked for bytes.
    CREDIT,
    /// The application asked for acknowledgments.
    AWAIT_ACKS,
    /// `Connected` is to be reported.
    CONNECTED,
    /// What `Rare` keeps for the application is to be reported: `Urgent`, `UnsentBelow`.
    RARE_NEWS,
    /// The end of the peer's bytes was reported; of a connection that is over by a RST or an error,
    /// `Broken`.
    END_REPORTED,
    /// [`AppAttachment::Detached`].
    ORPHAN,
    /// [`AppAttachment::InBacklog`].
    WAITS_FOR_ACCEPT,
    /// Small segments are not held back.
    NO_DELAY,
    /// The window scale option was agreed on.
    WINDOW_SCALE,
    /// What the silly window avoidance held back goes now (RFC 9293 §3.8.6.2.1).
    OVERRIDE,
    /// There was no record of what was to be sent: a timer tries again.
    STARVED,
    /// Waits for the next hop's address.
    PARKED,
    /// `rcv_up` holds an urgent pointer that no reader has passed yet.
    RCV_URGENT,
    /// Our FIN was sent once.
    FIN_SENT,
    /// The peer's FIN arrived. Open: bytes before it are missing. Closed: none is missing, and
    /// unread bytes stay readable.
    RCV_FIN,
    /// The application chose the size of the receive buffer.
    FIXED_RECEIVE_BUFFER,
    /// The application chose the size of the send buffer.
    FIXED_SEND_BUFFER,
    /// The ACK is to go without payload: a peer counts only such as duplicates (RFC 5681 §2).
    PURE_ACK,
    /// `close` was called before the handshake was complete.
    CLOSE_LATER,
    /// New data was sent after some had come: an ACK has something to ride on.
    INTERACTIVE,
    /// It is over, and nothing but its record is left.
    RELEASED,
    /// It is among those that are looked at before the next turn's frames leave.
    DIRTY,
}

/// The application's side of a connection: one of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AppAttachment {
    /// An application has it.
    Attached,
    /// It waits in the queue of its listener to be accepted.
    InBacklog,
    /// The application is gone.
    Detached,
}

impl ConnFlags {
    /// [`AppAttachment::Attached`].
    #[inline(always)]
    pub(crate) const fn is_attached(self) -> bool {
        !self.any(Self::ORPHAN.or(Self::WAITS_FOR_ACCEPT))
    }

    /// The application's side is this from now on.
    #[inline(always)]
    pub(crate) const fn set_attachment(&mut self, attachment: AppAttachment) {
        self.clear(Self::ORPHAN.or(Self::WAITS_FOR_ACCEPT));
        match attachment {
            AppAttachment::Attached => {}
            AppAttachment::InBacklog => self.set(Self::WAITS_FOR_ACCEPT),
            AppAttachment::Detached => self.set(Self::ORPHAN),
        }
    }

    pub(crate) const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    pub(crate) const fn any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// Those among `flags` that are so.
    pub(crate) const fn of(self, flags: Self) -> Self {
        Self(self.0 & flags.0)
    }

    pub(crate) const fn set(&mut self, flags: Self) {
        self.0 |= flags.0;
    }

    pub(crate) const fn clear(&mut self, flags: Self) {
        self.0 &= !flags.0;
    }

    pub(crate) const fn put(&mut self, flags: Self, on: bool) {
        if on { self.set(flags) } else { self.clear(flags) }
    }

    /// Clears them, and says whether one was set.
    pub(crate) const fn take(&mut self, flags: Self) -> bool {
        let had = self.any(flags);
        self.clear(flags);
        had
    }

    pub(crate) const fn or(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

impl fmt::Debug for ConnFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(fact, _)| self.has(*fact)).map(|(_, name)| name);
        f.debug_set().entries(names).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachment_is_one_of_three() {
        let mut flags = ConnFlags::SACK;
        assert!(flags.is_attached());
        flags.set_attachment(AppAttachment::InBacklog);
        assert!(flags.has(ConnFlags::WAITS_FOR_ACCEPT) && !flags.is_attached());
        flags.set_attachment(AppAttachment::Detached);
        assert!(flags == ConnFlags::SACK.or(ConnFlags::ORPHAN));
        flags.set_attachment(AppAttachment::Attached);
        assert!(flags == ConnFlags::SACK);
    }
}
