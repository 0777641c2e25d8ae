//! The plans of the mTCP paper's experiments [MT chapter 5, figures 1 and 2].
//!
//! The paper's systems and ours: Linux is `epoll-shared`, REUSEPORT is `epoll-reuseport`,
//! Multiprocess is `epoll-processes`, MegaPipe is the channel on io_uring, mTCP is the channel on
//! our own stack, which the columns add (`--backend local --link …`, in this suite by default).
//! lighttpd is itself on one core, and nginx and our own web server.

use super::{
    Experiment, IO_URING, MESSAGE_BYTES, PROCESSES, REUSEPORT, SHARED, TrialGroup, URING,
    accept_reset, http, rpc,
};
use crate::{
    files::ServedFileSet, limits, load::LoadPlan, server::ServiceKind, server::TestedServer,
};

impl Experiment {
    /// The groups of an experiment of this suite.
    pub(super) fn mtcp_groups(&self, quick: bool, cores_max: usize) -> Vec<TrialGroup> {
        match self.name {
            "mt-fig1" => vec![self.web(1, ServedFileSet::Sized(MESSAGE_BYTES), Some(1))],
            "mt-fig7a" => self.messages_over_cores(cores_max),
            "mt-fig7b" => self.messages_per_connection(quick),
            "mt-fig7c" => self.message_sizes(quick),
            "mt-fig8" => self.accepts_over_cores(cores_max),
            "mt-table2" => vec![self.crowd()],
            "mt-fairness" => vec![self.bulk_connections()],
            "mt-fig9" => (1..=cores_max).map(|cores| self.static_files(cores)).collect(),
            "mt-fig10" => self.load_over_cores(cores_max),
            "mt-placement" => vec![self.kept(super::CONNECTIONS, MESSAGE_BYTES)],
            _ => self.load_over_sizes(quick, cores_max),
        }
    }

    fn messages_over_cores(&self, cores_max: usize) -> Vec<TrialGroup> {
        let servers = &[SHARED, REUSEPORT, URING];
        let load = rpc(1, MESSAGE_BYTES);
        (1..=cores_max).map(|cores| self.rpc(cores, &load, servers)).collect()
    }

    fn messages_per_connection(&self, quick: bool) -> Vec<TrialGroup> {
        let servers = &[SHARED, REUSEPORT, URING];
        let lengths = if quick { &[1, 8, 64][..] } else { &[1, 2, 4, 8, 16, 32, 64, 128] };
        lengths.iter().map(|&length| self.rpc(1, &rpc(length, MESSAGE_BYTES), servers)).collect()
    }

    fn message_sizes(&self, quick: bool) -> Vec<TrialGroup> {
        let servers = &[SHARED, REUSEPORT, URING];
        let sizes = if quick { &[64, 1024, 8192][..] } else { &[64, 256, 1024, 2048, 4096, 8192] };
        sizes.iter().map(|&size| self.rpc(1, &rpc(1, size), servers)).collect()
    }

    fn accepts_over_cores(&self, cores_max: usize) -> Vec<TrialGroup> {
        let servers = &[SHARED, REUSEPORT, PROCESSES, URING];
        let group = |cores| self.group(cores, ServiceKind::AcceptReset, &accept_reset(), servers);
        (1..=cores_max).map(group).collect()
    }

    /// Enough concurrent connections to fill the accept queue.
    fn crowd(&self) -> TrialGroup {
        let connections = limits::CROWD_CONNECTIONS;
        let load = LoadPlan { connections, with_connect: true, ..rpc(1, MESSAGE_BYTES) };
        self.rpc(1, &load, &[SHARED, REUSEPORT, URING, IO_URING])
    }

    fn bulk_connections(&self) -> TrialGroup {
        let load = LoadPlan {
            connections: limits::FAIR_CONNECTIONS,
            transactions_per_connection: None,
            ..rpc(1, limits::FAIR_RESPONSE_BYTES)
        };
        self.rpc(1, &load, &[SHARED, REUSEPORT, URING])
    }

    fn web(&self, cores: usize, files: ServedFileSet, length: Option<u64>) -> TrialGroup {
        let load = http(files, super::CONNECTIONS, length);
        self.group(cores, ServiceKind::Http(files), &load, &[TestedServer::NGINX, URING])
    }

    /// The paper's own program beside the others: lighttpd, whose one process has one core.
    fn static_files(&self, cores: usize) -> TrialGroup {
        let files = ServedFileSet::SpecWeb;
        let load = http(files, super::CONNECTIONS, Some(6));
        let all = [TestedServer::LIGHTTPD, TestedServer::NGINX, URING];
        let servers = if cores == 1 { &all[..] } else { &all[1..] };
        self.group(cores, ServiceKind::Http(files), &load, servers)
    }

    /// What is not the server's is the load's.
    fn load_over_cores(&self, cores_max: usize) -> Vec<TrialGroup> {
        let files = ServedFileSet::Sized(MESSAGE_BYTES);
        let load = http(files, super::CONNECTIONS, Some(1));
        let group = |cores| self.group(cores, ServiceKind::Http(files), &load, &[URING]);
        (1..=cores_max).rev().map(group).collect()
    }

    fn load_over_sizes(&self, quick: bool, cores_max: usize) -> Vec<TrialGroup> {
        let sizes = if quick { &[64, 1024, 8192][..] } else { &[64, 256, 1024, 2048, 4096, 8192] };
        let group = |&size: &u64| {
            let files = ServedFileSet::Sized(size);
            let load = http(files, super::CONNECTIONS, Some(1));
            self.group(cores_max, ServiceKind::Http(files), &load, &[URING])
        };
        sizes.iter().map(group).collect()
    }
}
