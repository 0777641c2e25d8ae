//! Quotas: what a channel, or all channels of a user, may have at once.

use std::fmt;

/// Quotas with their keys in the policy file and their values without one.
macro_rules! quota_kinds {
    ($(
        $(#[doc = $doc:literal])*
        $kind:ident = $scope:literal . $name:literal, $limit:literal;
    )*) => {
        /// What is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum QuotaKind { $($(#[doc = $doc])* $kind,)* }

        impl QuotaKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Scope and name in the policy file.
            #[must_use]
            pub const fn key(self) -> (&'static str, &'static str) {
                match self { $(Self::$kind => ($scope, $name),)* }
            }

            /// What is counted, in sentences.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self { $(Self::$kind => concat!($($doc),*),)* }
            }

            /// The limit without a policy file.
            #[must_use]
            pub const fn default_limit(self) -> u32 {
                match self { $(Self::$kind => $limit,)* }
            }
        }
    };
}

quota_kinds! {
    /// Connections of a channel.
    ChannelConnections = "channel"."connections", 16_384;
    /// Connections that a channel has begun and that are not established.
    ChannelConnecting = "channel"."connecting", 4_096;
    /// Connections that wait at a listener of a channel to be accepted: its largest backlog.
    ChannelWaiting = "channel"."waiting", 4_096;
    /// Listeners of a channel.
    ChannelListeners = "channel"."listeners", 64;
    /// Endpoints for datagrams of a channel.
    ChannelEndpoints = "channel"."endpoints", 256;
    /// Channels of a user.
    UserChannels = "user"."channels", 256;
    /// Shared memory of a user's channels in MiB, of those included that have ended and still send.
    UserMemory = "user"."memory_mib", 4_096;
    /// Channels of a user that have ended and still send.
    UserEndedChannels = "user"."ended_channels", 64;
    /// Connections of all channels of a user.
    UserConnections = "user"."connections", 24_576;
    /// Connections that all channels of a user have begun and that are not established.
    UserConnecting = "user"."connecting", 8_192;
    /// Listeners of all channels of a user. One at all shards counts once.
    UserListeners = "user"."listeners", 128;
    /// Endpoints for datagrams of all channels of a user.
    UserEndpoints = "user"."endpoints", 512;
    /// Connections that a user begins in a second, with as many at once after a pause.
    UserConnectsPerSecond = "user"."connects_per_second", 20_000;
    /// Kernel sockets of a user's programs that the daemon keeps, as reservations of ports.
    UserSockets = "user"."sockets", 512;
    /// Tokens that a user's processes hold, each of which stands for connections that they share.
    UserTokens = "user"."tokens", 128;
    /// Connections of a user that have moved between the kernel and the stack, and live on.
    UserMovedConnections = "user"."moved_connections", 64;
    /// Chunks of a channel that wait in the stack to be sent and acknowledged. Each write is one or
    /// more; beyond the quota, a connection has one at a time.
    ChannelChunks = "channel"."chunks", 8_192;
    /// Chunks of all channels of a user that wait in the stack to be sent and acknowledged.
    UserChunks = "user"."chunks", 32_768;
    /// Connections that a channel has begun to one address and port, of which each takes one of
    /// the stack's ports there. A shard has an equal part of the quota, as it has of the ports.
    ChannelDestinationPorts = "channel"."ports_per_destination", 12_288;
    /// Connections that all channels of a user have begun to one address and port.
    UserDestinationPorts = "user"."ports_per_destination", 14_336;
    /// Private buffers of 2 KiB on a shard, which has 4,096: bytes that arrived at the listeners of
    /// a channel before a program accepted their connection. Beyond the quota, they are dropped and
    /// the peer sends them again.
    ChannelPrivateBuffers = "channel"."private_buffers", 2_048;
    /// Private buffers on a shard, of the listeners of all channels of a user.
    UserPrivateBuffers = "user"."private_buffers", 3_072;
    /// Events that wait in the daemon for a channel that does not read, or that has no receive
    /// buffer for them, beside 512 on each shard. Beyond the quota, the channel is ended.
    ChannelWaitingEvents = "channel"."waiting_events", 131_072;
    /// Events that wait in the daemon for all channels of a user.
    UserWaitingEvents = "user"."waiting_events", 524_288;
    /// Connections that wait at the listeners of all channels of a user on a shard, beside those
    /// that it may have. Beyond them a shard takes none of the user's listeners.
    UserWaiting = "user"."waiting", 8_192;
}

impl fmt::Display for QuotaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scope, name) = self.key();
        write!(f, "{scope}.{name}")
    }
}

/// A value for each kind of quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas<T>([T; QuotaKind::ALL.len()]);

impl<T> Quotas<T> {
    /// The values that a function has for each kind.
    #[must_use]
    pub fn from_each(mut value: impl FnMut(QuotaKind) -> T) -> Self {
        Self(std::array::from_fn(|place| value(QuotaKind::ALL[place])))
    }

    /// The value of a kind.
    #[must_use]
    pub const fn get(&self, kind: QuotaKind) -> &T {
        &self.0[kind as usize]
    }

    /// Sets the value of a kind.
    pub fn set(&mut self, kind: QuotaKind, value: T) {
        self.0[kind as usize] = value;
    }
}

impl<T: Default> Default for Quotas<T> {
    fn default() -> Self {
        Self::from_each(|_| T::default())
    }
}

/// Bits of a limit in the number that names a reached quota.
const LIMIT_BITS: u32 = 24;

/// A quota has no room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the quota {kind} of the service is reached (limit {limit})")]
pub struct QuotaReached {
    /// Which.
    pub kind: QuotaKind,
    /// Its limit.
    pub limit: u32,
}

impl QuotaReached {
    /// A number that names it in a record: the quota, and the limit as far as it fits.
    pub(crate) const fn code(self) -> u32 {
        let most = (1 << LIMIT_BITS) - 1;
        let limit = if self.limit < most { self.limit } else { most };
        ((self.kind as u32) << LIMIT_BITS) | limit
    }

    /// What that number names; `None`: nothing.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        let kind = QuotaKind::ALL.get((code >> LIMIT_BITS) as usize)?;
        Some(Self { kind: *kind, limit: code & ((1 << LIMIT_BITS) - 1) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_places_and_have_distinct_keys() {
        let mut keys = std::collections::BTreeSet::new();
        for (place, kind) in QuotaKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, place);
            let description = kind.description();
            assert!(description.starts_with(' ') && description.ends_with('.'), "{description}");
            assert!(keys.insert(kind.to_string()), "{kind}");
        }
        let reached = QuotaReached { kind: QuotaKind::UserListeners, limit: 9 };
        assert_eq!(QuotaReached::from_code(reached.code()), Some(reached));
        let most = QuotaReached { limit: u32::MAX, ..reached };
        assert_eq!(QuotaReached::from_code(most.code()).map(|it| it.kind), Some(reached.kind));
        assert_eq!(QuotaReached::from_code(u32::MAX), None);
        assert!(reached.to_string().contains("user.listeners of the service is reached (limit 9)"));
    }
}
