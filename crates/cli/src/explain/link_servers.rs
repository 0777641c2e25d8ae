//! What `explain` shows of link servers on threads of their own.

use megapipe_service::observe::ServiceLinkServer;
use serde::Serialize;

use super::times::seconds;

/// A link server on a thread of its own.
#[derive(Debug, Serialize)]
pub(super) struct LinkServerExplained {
    pub(super) link_server: u16,
    pub(super) core: Option<u32>,
    /// Queues of the link that it serves.
    pub(super) queues: u32,
    /// CPU time of its thread, which is charged to no session and no shard.
    pub(super) cpu_s: f64,
    pub(super) frames_in: u64,
    pub(super) frames_out: u64,
}

impl LinkServerExplained {
    pub(super) fn of(server: &ServiceLinkServer) -> Self {
        Self {
            link_server: server.number,
            core: server.core,
            queues: server.queues,
            cpu_s: seconds(server.cpu_ns),
            frames_in: server.frames_in,
            frames_out: server.frames_out,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn link_server() -> ServiceLinkServer {
        ServiceLinkServer {
            number: 0,
            core: Some(2),
            queues: 1,
            cpu_ns: 2_500_000_000,
            frames_in: 70,
            frames_out: 60,
        }
    }

    #[test]
    fn link_server_has_its_cpu_time_in_seconds() {
        let server = LinkServerExplained::of(&link_server());
        assert_eq!((server.link_server, server.core, server.queues), (0, Some(2), 1));
        assert_eq!((server.cpu_s, server.frames_in, server.frames_out), (2.5, 70, 60));
    }
}
