//! Processes that ask what the daemon has: they send queries in place of a HELLO.
//!
//! Read first: `observe.rs` of the crate; `query_pace.rs` for the bounds.
//!
//! Invariant: nothing here waits for a shard. The host hands over pages when they are there.

use std::os::fd::AsFd;
use std::time::Instant;

use megapipe_link::PeerProcess;

use super::{ClientState, ControlServer, SessionHost, refuse};
use crate::attach::message::{RefusalCode, Refused};
use crate::message_socket::send;
use crate::observe::{AnswerPage, QUERY_VERSIONS, ServiceQuery, Viewer};

/// Where a process that asks stands.
#[derive(Debug, Clone, Copy)]
pub(super) enum QueryStage {
    /// It has its last page.
    Answered,
    /// Its query waits for its turn.
    Waiting(ServiceQuery),
    /// The host makes the page, for this version.
    Asked(u16),
}

impl<H: SessionHost> ControlServer<H> {
    /// The first message of a client is a query.
    pub(super) fn begin_queries(&mut self, key: u64, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let uid = client.process.uid;
        let viewer = Viewer { uid, sees_all: self.host.sees_all(uid) };
        self.handshakes.end(key);
        if let Err(limit) = self.pace.begin(key, (uid, viewer.sees_all), Instant::now()) {
            refuse(&client.socket, &Refused::new(RefusalCode::Busy, &limit.to_string()));
            return self.drop_client(key, None);
        }
        client.state = ClientState::InQuery(viewer, QueryStage::Answered);
        self.on_query(key, bytes);
    }

    /// A process that asks has sent a message.
    pub(super) fn on_query(&mut self, key: u64, bytes: &[u8]) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let ClientState::InQuery(_, stage) = &mut client.state else { return };
        let Some(query) = ServiceQuery::decode(bytes) else {
            return self.drop_client(key, Some("its query is invalid"));
        };
        if query.version().is_none() {
            let ((oldest, newest), (ours_oldest, ours_newest)) = (query.versions, QUERY_VERSIONS);
            let sentence = format!(
                "the program speaks versions {oldest} to {newest} of queries, this daemon \
                 {ours_oldest} to {ours_newest}"
            );
            refuse(&client.socket, &Refused::new(RefusalCode::Version, &sentence));
            return self.drop_client(key, None);
        }
        if !matches!(stage, QueryStage::Answered) || !self.pace.wait(key) {
            return self.drop_client(key, Some("it asked again before it had its answer"));
        }
        *stage = QueryStage::Waiting(query);
        self.ask_due(Instant::now());
    }

    /// Asks the host for the pages that may be made now.
    pub(super) fn ask_due(&mut self, now: Instant) {
        while let Some(key) = self.pace.next_due(now) {
            let Some(client) = self.clients.get_mut(&key) else { continue };
            let ClientState::InQuery(viewer, stage) = &mut client.state else { continue };
            let QueryStage::Waiting(query) = *stage else { continue };
            // It was checked when it came.
            let Some(version) = query.version() else { continue };
            *stage = QueryStage::Asked(version);
            self.host.ask(key, &query, *viewer);
        }
    }

    /// Sends the pages that the host has made.
    pub(super) fn send_pages(&mut self) {
        while let Some((key, page)) = self.host.next_page() {
            self.send_page(key, &page);
        }
    }

    fn send_page(&mut self, key: u64, page: &AnswerPage) {
        // One that is gone, or whose time is over, gets none.
        let Some(client) = self.clients.get_mut(&key) else { return };
        let ClientState::InQuery(_, stage) = &mut client.state else { return };
        let QueryStage::Asked(version) = *stage else { return };
        *stage = QueryStage::Answered;
        // A page that does not fit the socket has a reader that does not read the one before.
        if send(client.socket.as_fd(), &page.encode(version), &[]).is_err() {
            self.drop_client(key, None);
        }
    }

    /// Drops processes that ask for too long.
    pub(super) fn drop_expired_queries(&mut self, now: Instant) {
        while let Some(key) = self.pace.next_expired(now) {
            let pid = self.clients.get(&key).map(|client| &client.process);
            if let Some(PeerProcess { pid, uid, .. }) = pid {
                let line = format!("process {pid} of user {uid} asked for longer than it may");
                self.host.notice(&line);
            }
            self.drop_client(key, None);
        }
    }
}
