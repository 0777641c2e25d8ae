//! What the host of a daemon's sessions shows to processes that ask, beside what its shards show.
//!
//! Read first: `observe.rs` of the crate.
//!
//! Invariant: a viewer that does not see all gets only what belongs to its user.

use std::collections::BTreeMap;

use super::ShardHost;
use crate::attach::ClientIdentity;
use crate::limits::USERS_PER_PAGE;
use crate::observe::{
    AnswerBody, AnswerPage, ManagedAcceptor, QuerySubject, ServiceDaemon, ServiceLinkServer,
    ServiceNetworks, ServiceQuery, ServiceShard, ServiceUser, Viewer,
};
use crate::policy::SessionRights;
use crate::remote::show_description;
use crate::rx_mux::LinkServerAccount;

impl ShardHost {
    /// What is answered without a shard: about the daemon, or about a shard that there is not.
    pub(super) fn answer(&self, query: &ServiceQuery, viewer: Viewer) -> AnswerPage {
        AnswerPage::last(match query.subject {
            QuerySubject::Users => return self.users_page(query.from, viewer),
            QuerySubject::Daemon => AnswerBody::Daemon(ServiceDaemon {
                pid: std::process::id(),
                uid: self.admission.own_uid(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                started: self.started,
                // At most 256.
                shards: self.shards.len() as u16,
                managers: self.manager_places.len() as u16,
                link_servers: self.link_servers.len() as u16,
                sessions: u32::try_from(self.sessions.len()).unwrap_or(u32::MAX),
                sessions_begun: self.sessions_begun,
                stray_messages: self.stray_messages,
                layout: self.layout.to_string(),
                sees_all: viewer.sees_all,
            }),
            QuerySubject::Shard => AnswerBody::Shard(None),
            QuerySubject::Sessions => AnswerBody::Sessions(Vec::new()),
            QuerySubject::Listeners => AnswerBody::Listeners(Vec::new()),
            QuerySubject::Sockets => AnswerBody::Sockets(Vec::new()),
            QuerySubject::Networks => AnswerBody::Networks(ServiceNetworks::default()),
            QuerySubject::Manager => AnswerBody::Manager(None),
            QuerySubject::LinkServer => AnswerBody::LinkServer(None),
        })
    }

    /// Users with quotas, from one on.
    fn users_page(&self, from: u64, viewer: Viewer) -> AnswerPage {
        let sessions = self.sessions.values();
        let rights = sessions.filter_map(|it| Some((it.client.uid, it.limits.rights.as_deref()?)));
        let shown = rights.filter(|(uid, _)| u64::from(*uid) >= from && viewer.sees(Some(*uid)));
        // In the order of their numbers, each once.
        let mut users: BTreeMap<u32, &SessionRights> = shown.collect();
        let rest = users.keys().nth(USERS_PER_PAGE).copied();
        if let Some(rest) = rest {
            users.split_off(&rest);
        }
        let user = |(uid, rights): (u32, &SessionRights)| ServiceUser {
            uid,
            quotas: rights.user_quotas(),
        };
        let body = AnswerBody::Users(users.into_iter().map(user).collect());
        AnswerPage { next: rest.map(u64::from), body }
    }

    /// A page of a connection manager, which knows no users: without the listeners whose acceptors
    /// belong to others.
    pub(super) fn manager_page(&self, viewer: Viewer, mut page: AnswerPage) -> AnswerPage {
        if let AnswerBody::Manager(Some(manager)) = &mut page.body {
            let user = |key| self.sessions.get(&key).map(|session| session.client.uid);
            let is_its = |it: &ManagedAcceptor| viewer.sees(user(it.session));
            manager.listeners.retain(|it| viewer.sees_all || it.acceptors.iter().any(is_its));
        }
        page
    }

    /// The page of a link server. Its account names no user: every viewer gets it.
    pub(super) fn link_server_page(
        number: u16,
        core: Option<usize>,
        account: LinkServerAccount,
    ) -> AnswerPage {
        AnswerPage::last(AnswerBody::LinkServer(Some(ServiceLinkServer {
            number,
            core: core.and_then(|core| u32::try_from(core).ok()),
            queues: u32::try_from(account.queues).unwrap_or(u32::MAX),
            cpu_ns: u64::try_from(account.cpu.as_nanos()).unwrap_or(u64::MAX),
            frames_in: account.frames_in,
            frames_out: account.frames_out,
        })))
    }

    /// Adds to a page of a shard what the shard does not know.
    pub(super) fn complete(&self, number: usize, mut page: AnswerPage) -> AnswerPage {
        let (hosted, number) = (&self.shards[number], number as u16);
        match &mut page.body {
            AnswerBody::Shard(Some(shard)) => {
                let core = hosted.core.and_then(|core| u32::try_from(core).ok());
                let link = show_description(&hosted.description).unwrap_or_default();
                let ServiceShard { driver, mtu, notes, addresses, .. } = link;
                let ServiceShard { shares_host_address, tx_checksum, tso, .. } = link;
                (shard.number, shard.core, shard.mtu) = (number, core, mtu);
                (shard.driver, shard.notes, shard.addresses) = (driver, notes, addresses);
                shard.shares_host_address = shares_host_address;
                (shard.tx_checksum, shard.tso) = (tx_checksum, tso);
            }
            AnswerBody::Sessions(sessions) => {
                for session in sessions {
                    session.shard = number;
                    if let Some(known) = self.sessions.get(&session.key) {
                        let ClientIdentity { pid, name, .. } = &known.client;
                        (session.pid, session.program) = (*pid, name.clone());
                        session.attached = known.attached;
                    }
                }
            }
            AnswerBody::Listeners(listeners) => {
                listeners.iter_mut().for_each(|listener| listener.shard = number);
            }
            AnswerBody::Shard(None)
            | AnswerBody::Daemon(_)
            | AnswerBody::Sockets(_)
            | AnswerBody::Users(_)
            | AnswerBody::Manager(_)
            | AnswerBody::LinkServer(_)
            | AnswerBody::Networks(_) => {}
        }
        page
    }
}
