//! Random worlds of several servers: the hand-overs of all shards, and managers of their own, with
//! the messages between them. No stack and no rings: established connections come from the test,
//! and messages of one server to another keep their order and else come at any time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use megapipe_shm::record::AcceptorRef;

use crate::hand_over::{HandOverSettings, ListenerManager};
use crate::limits::{CLAIM_TIME_DEFAULT, OFFER_EXPIRY_DEFAULT};
use crate::remote::shard::ManagerServer;

const LISTENER: ListenerId = ListenerId { index: 3, generation: 1 };

fn address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 80))
}

/// What a server of the world is.
enum WorldServer {
    Shard(Box<HandOvers>),
    Manager(Box<ManagerServer>),
}

/// An application, with a lane to each shard.
#[derive(Debug, Default)]
struct WorldApp {
    key: u64,
    listens: bool,
    /// By shard: it has left there.
    left: Vec<bool>,
    /// Claims what it is offered.
    runs: bool,
    /// By shard: offers that it has not looked at.
    offers: Vec<VecDeque<(ConnId, Id)>>,
    /// By shard: credit that it gave to the lane, less what came.
    credit: Vec<u32>,
    accepted: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorldConn {
    Unclaimed,
    Owned(usize),
    Over,
}

struct ManagerWorld {
    servers: Vec<WorldServer>,
    /// By sender and receiver.
    mail: BTreeMap<(u16, u16), VecDeque<Message>>,
    apps: Vec<WorldApp>,
    /// By shard: the shard's server.
    shards: Vec<usize>,
    conns: Vec<BTreeMap<u32, WorldConn>>,
    us: u64,
    random: RandomSequence,
}

/// Credit of an acceptor that a message carries to a borrower, or back.
fn lent_credits(message: &Message, (manager, id): (ManagerId, AcceptorId)) -> u32 {
    let is_its = |acceptor: AcceptorRef| acceptor.manager == manager.0 && acceptor.id == id.0;
    match message.subject {
        MessageSubject::Offer { acceptor, credits, .. }
        | MessageSubject::Granted { acceptor, credits, .. }
        | MessageSubject::Returned { acceptor, credits, .. }
            if is_its(acceptor) =>
        {
            credits
        }
        MessageSubject::Assigned { acceptor, borrower: Some(_) } if is_its(acceptor) => 1,
        _ => 0,
    }
}

const fn pool(app: usize) -> PoolId {
    PoolId(app as u16 + 1)
}

impl ManagerWorld {
    fn new(layout: &str, apps: usize, seed: u64) -> Self {
        let wirings = ServerWiring::of_layout(&layout.parse().expect("a layout"));
        let managers = wirings[0].manager_count();
        let mut world = Self {
            servers: Vec::new(),
            mail: BTreeMap::new(),
            apps: Vec::new(),
            shards: Vec::new(),
            conns: Vec::new(),
            us: 1_000,
            random: RandomSequence::new(seed),
        };
        for wiring in wirings {
            let settings = HandOverSettings::default();
            world.servers.push(if wiring.transport().is_some() {
                world.shards.push(world.servers.len());
                world.conns.push(BTreeMap::new());
                WorldServer::Shard(Box::new(HandOvers::new(settings, wiring, seed)))
            } else {
                WorldServer::Manager(Box::new(ManagerServer::without_rings(settings, wiring, seed)))
            });
        }
        for app in 0..apps {
            world.attach(app, managers);
        }
        world
    }

    fn attach(&mut self, app: usize, managers: usize) {
        let lanes = self.shards.len();
        let key = app as u64 + 10;
        let home = ManagerId((app % managers) as u16);
        let limits =
            SessionLimits { key, home, is_on_all_shards: true, ..SessionLimits::WHOLE_SHARD };
        let now = self.now();
        for shard in 0..lanes {
            let hand_overs = self.shard(shard);
            hand_overs.add_session(pool(app), &limits);
            match hand_overs.number_of(LISTENER) {
                Some(number) => hand_overs.join(number, pool(app)),
                None => {
                    hand_overs.begin(now, (LISTENER, address()), &[pool(app)], Vec::new());
                }
            }
        }
        let (offers, credit) = (vec![VecDeque::new(); lanes], vec![0; lanes]);
        let (listens, runs) = (true, true);
        let left = vec![false; lanes];
        self.apps.push(WorldApp { key, listens, left, runs, offers, credit, accepted: 0 });
    }

    fn now(&self) -> Instant {
        Instant::from_micros(self.us)
    }

    fn shard(&mut self, shard: usize) -> &mut HandOvers {
        match &mut self.servers[self.shards[shard]] {
            WorldServer::Shard(hand_overs) => hand_overs,
            WorldServer::Manager(_) => unreachable!("it is a shard's server"),
        }
    }

    /// The hand-over of the listener at a shard.
    fn number(&mut self, shard: usize) -> Option<HandOverNumber> {
        self.shard(shard).number_of(LISTENER)
    }

    /// Takes what the servers have decided.
    fn collect(&mut self) {
        for server in 0..self.servers.len() {
            loop {
                let next = match &mut self.servers[server] {
                    WorldServer::Shard(hand_overs) => hand_overs.next_mail(),
                    WorldServer::Manager(manager) => manager.hand_overs_mut().next_mail(),
                };
                let Some((to, message)) = next else { break };
                assert_ne!(usize::from(to), server, "{message:?}");
                self.mail.entry((server as u16, to)).or_default().push_back(message);
            }
        }
        for shard in 0..self.shards.len() {
            while let Some(delivery) = self.shard(shard).next_delivery() {
                self.deliver(shard, delivery);
            }
        }
    }

    fn deliver(&mut self, shard: usize, delivery: Delivery) {
        let app_of = |session: PoolId| usize::from(session.0) - 1;
        match delivery {
            Delivery::Offer { session, conn, acceptor, .. } => {
                let app = &mut self.apps[app_of(session)];
                assert!(!app.left[shard], "an offer to a session that has left");
                assert_eq!(self.conns[shard].get(&conn.index), Some(&WorldConn::Unclaimed));
                app.offers[shard].push_back((conn, acceptor));
            }
            Delivery::Assign { session, to } => {
                let app = app_of(session);
                assert!(!self.apps[app].left[shard], "a connection of a session that has left");
                self.own(shard, app, to.conn);
            }
            Delivery::Withdraw { session, conn } => {
                self.apps[app_of(session)].offers[shard].retain(|(other, _)| *other != conn);
            }
            Delivery::Urgent { .. } => {}
            Delivery::Reset { conn } => {
                self.conns[shard].insert(conn.index, WorldConn::Over);
            }
        }
    }

    fn own(&mut self, shard: usize, app: usize, conn: ConnId) {
        let before = self.conns[shard].insert(conn.index, WorldConn::Owned(app));
        assert_eq!(before, Some(WorldConn::Unclaimed), "it has one owner");
        self.apps[app].accepted += 1;
        let credit = &mut self.apps[app].credit[shard];
        *credit = credit.saturating_sub(1);
    }

    fn below(&mut self, count: usize) -> usize {
        (self.random.next() % count.max(1) as u64) as usize
    }

    fn accept(&mut self, app: usize, shard: usize, credit: u32) {
        if !self.apps[app].listens {
            return;
        }
        self.apps[app].credit[shard] += credit;
        let (now, acceptor) = (self.now(), (pool(app), AcceptorId(7)));
        if let Some(number) = self.number(shard) {
            self.shard(shard).accept(now, number, acceptor, credit).expect("there is a place");
        }
        self.collect();
    }

    /// A connection is established, if the stack may report one.
    fn establish(&mut self, shard: usize) -> bool {
        let Some(number) = self.number(shard) else { return false };
        let has_credit = self.shard(shard).of(number).is_some_and(|it| it.free_credit() > 0);
        if has_credit {
            let index = self.conns[shard].len() as u32;
            self.conns[shard].insert(index, WorldConn::Unclaimed);
            let conn = ConnId { index, generation: 1 };
            let now = self.now();
            self.shard(shard).on_established(now, number, conn, 0);
            self.collect();
        }
        has_credit
    }

    /// A message arrives. Returns whether there was one.
    fn pass_mail(&mut self) -> bool {
        let full: Vec<_> =
            self.mail.iter().filter(|(_, queue)| !queue.is_empty()).map(|(way, _)| *way).collect();
        if full.is_empty() {
            return false;
        }
        let (from, to) = full[self.below(full.len())];
        let message = self.mail.get_mut(&(from, to)).and_then(VecDeque::pop_front);
        let (message, now) = (message.expect("it is full"), self.now());
        // What arrives is what was sent.
        let message = Message::parse(&message.record()).expect("a message");
        match &mut self.servers[usize::from(to)] {
            WorldServer::Shard(hand_overs) => {
                if let Some(number) = hand_overs.number_of(LISTENER) {
                    hand_overs.on_message(now, number, (from, message.subject));
                }
            }
            WorldServer::Manager(manager) => manager.on_message(now, from, &message),
        }
        self.collect();
        true
    }

    /// An application claims what it was offered over a lane.
    fn dispatch(&mut self, app: usize, shard: usize) {
        while self.apps[app].runs && self.apps[app].listens {
            let Some((conn, acceptor)) = self.apps[app].offers[shard].pop_front() else { return };
            let now = self.now();
            match self.shard(shard).claim(now, pool(app), conn, acceptor) {
                ClaimAnswer::Confirmed(handed) => {
                    assert_eq!(handed.conn, conn);
                    self.own(shard, app, conn);
                }
                ClaimAnswer::Refused => {}
                ClaimAnswer::Repeated => panic!("{conn:?} was claimed before"),
            }
            self.collect();
        }
    }

    fn close_one(&mut self, shard: usize, is_reset: bool) {
        let is_open = |(index, state): (&u32, &WorldConn)| match state {
            WorldConn::Unclaimed => is_reset.then_some(*index),
            WorldConn::Owned(_) => Some(*index),
            WorldConn::Over => None,
        };
        let open: Vec<u32> = self.conns[shard].iter().filter_map(is_open).collect();
        if open.is_empty() {
            return;
        }
        let index = open[self.below(open.len())];
        self.conns[shard].insert(index, WorldConn::Over);
        let (conn, now) = (ConnId { index, generation: 1 }, self.now());
        if let Some(number) = self.number(shard) {
            match is_reset {
                true => self.shard(shard).on_reset(now, number, conn),
                false => self.shard(shard).on_closed(now, number, conn),
            }
        }
        self.collect();
    }

    fn pass_time(&mut self) {
        // Sometimes so much that offers expire.
        let is_long = self.below(8) == 0;
        let time = if is_long { OFFER_EXPIRY_DEFAULT } else { CLAIM_TIME_DEFAULT };
        self.us += time.as_micros() as u64;
        let now = self.now();
        for shard in 0..self.shards.len() {
            let hand_overs = self.shard(shard);
            hand_overs.on_time(now);
            hand_overs.publish_offers(now);
        }
        for server in &mut self.servers {
            if let WorldServer::Manager(manager) = server {
                manager.hand_overs_mut().publish_offers(now);
            }
        }
        self.collect();
    }

    /// An application leaves, lane by lane; messages pass meanwhile.
    fn leave(&mut self, app: usize) {
        self.apps[app].listens = false;
        for shard in (0..self.shards.len()).rev() {
            let now = self.now();
            if let Some(number) = self.number(shard) {
                self.shard(shard).leave(now, number, pool(app));
            }
            self.apps[app].left[shard] = true;
            self.apps[app].offers[shard].clear();
            self.collect();
            for _ in 0..self.below(3) {
                self.pass_mail();
            }
        }
    }

    fn step(&mut self) {
        let (app, shard) = (self.below(self.apps.len()), self.below(self.shards.len()));
        match self.below(12) {
            0..=1 => {
                let credit = 1 + self.below(4) as u32;
                if self.apps[app].credit[shard] < 8 {
                    self.accept(app, shard, credit);
                }
            }
            2..=4 => drop(self.establish(shard)),
            5..=7 => drop(self.pass_mail()),
            8..=9 => self.dispatch(app, shard),
            10 => {
                let is_reset = self.below(4) == 0;
                self.close_one(shard, is_reset);
            }
            _ => self.rare_step(app),
        }
    }

    fn rare_step(&mut self, app: usize) {
        match self.below(4) {
            0 => self.apps[app].runs = !self.apps[app].runs,
            1..=2 => self.pass_time(),
            _ => {
                // One is left at least.
                if self.apps.iter().filter(|app| app.listens).count() > 1 && self.below(8) == 0 {
                    self.leave(app);
                }
            }
        }
    }

    /// The manager of a server that has the listener.
    fn manager_of(&self, server: usize) -> Option<(ManagerId, &ListenerManager)> {
        let hand_overs = match &self.servers[server] {
            WorldServer::Shard(hand_overs) => hand_overs,
            WorldServer::Manager(manager) => manager.hand_overs(),
        };
        let shared = hand_overs.listeners.iter().flatten().next()?;
        Some((hand_overs.wiring.manager()?, shared.manager.as_ref()?))
    }

    /// Each credit that a manager has lent is in one place: with the borrower, or in one message.
    fn check_lent(&self) {
        let none = VecDeque::new();
        for home in 0..self.servers.len() {
            let Some((home_name, manager)) = self.manager_of(home) else { continue };
            for (server, id) in (0..self.servers.len())
                .flat_map(|server| manager.home_ids().map(move |id| (server, id)))
            {
                let wiring = match &self.servers[server] {
                    WorldServer::Shard(hand_overs) => &hand_overs.wiring,
                    WorldServer::Manager(manager) => &manager.hand_overs().wiring,
                };
                let Some(borrower) = wiring.manager().filter(|_| server != home) else { continue };
                let balancer = manager.queue().balancer();
                let Some(lent) = balancer.lent_to(id, borrower) else { continue };
                let there = self.manager_of(server);
                let has = there.map_or(0, |(_, it)| it.queue().balancer().borrowed(home_name, id));
                let mail = |from: usize, to: usize| {
                    self.mail.get(&(from as u16, to as u16)).unwrap_or(&none).iter()
                };
                let both = mail(home, server).chain(mail(server, home));
                let on_the_way: u32 =
                    both.map(|message| lent_credits(message, (home_name, id))).sum();
                assert_eq!(lent, has + on_the_way, "{id:?} of {home_name:?} at {borrower:?}");
            }
        }
    }

    /// No acceptor has got more connections than it wanted, of all managers together.
    fn check_no_debt(&self) {
        for (_, manager) in (0..self.servers.len()).filter_map(|server| self.manager_of(server)) {
            assert!(!manager.has_debt(), "{manager:?}");
        }
    }

    /// Everything runs until nothing happens any more.
    fn settle(&mut self) {
        self.apps.iter_mut().for_each(|app| app.runs = true);
        for _ in 0..20 {
            while self.pass_mail() {}
            for app in 0..self.apps.len() {
                for shard in 0..self.shards.len() {
                    if self.apps[app].listens && self.apps[app].credit[shard] < 4 {
                        self.accept(app, shard, 4);
                    }
                    self.dispatch(app, shard);
                }
            }
            while self.pass_mail() {}
            self.pass_time();
        }
        while self.pass_mail() {}
    }

    /// What holds when nothing happens any more.
    fn check_end(&mut self) {
        for shard in 0..self.shards.len() {
            let unclaimed =
                self.conns[shard].values().filter(|it| **it == WorldConn::Unclaimed).count();
            assert_eq!(unclaimed, 0, "a connection waits at shard {shard}");
        }
        let mut pooled = BTreeMap::new();
        for server in &self.servers {
            let hand_overs = match server {
                WorldServer::Shard(hand_overs) => hand_overs,
                WorldServer::Manager(manager) => manager.hand_overs(),
            };
            for shared in hand_overs.listeners.iter().flatten() {
                if let Some(manager) = &shared.manager {
                    pooled.extend(manager.pooled(8));
                    let members = manager.queue().balancer().acceptors();
                    let listening = self.apps.iter().filter(|app| app.listens).count();
                    assert_eq!(members, listening, "each manager knows all acceptors");
                }
            }
        }
        let mut lanes: BTreeMap<u64, u32> = BTreeMap::new();
        for shard in 0..self.shards.len() {
            let Some(number) = self.number(shard) else { continue };
            let free: Vec<_> =
                self.shard(shard).of(number).map(|it| it.free_by_member()).unwrap_or_default();
            for (key, free) in free {
                *lanes.entry(key).or_default() += free;
            }
        }
        let listening: BTreeSet<u64> =
            self.apps.iter().filter(|app| app.listens).map(|app| app.key).collect();
        assert_eq!(pooled.keys().copied().collect::<BTreeSet<_>>(), listening);
        assert_eq!(pooled, lanes, "the homes have the credit of all lanes");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(96)
    })]

    #[test]
    fn random_worlds_of_servers_keep_one_owner_and_all_credit(
        layout in prop::sample::select(vec![
            "TS1LS1CM1", "TS2LS2CM2", "TS3LS3CM3", "TS3LS3CM1", "TS3LS3CM2", "TS2LS2+CM1",
            "TS3LS3+CM2",
        ]),
        apps in 1_usize..5,
        seed: u64,
    ) {
        let mut world = ManagerWorld::new(layout, apps, seed);
        for _ in 0..600 {
            world.step();
            world.check_lent();
            world.check_no_debt();
        }
        world.settle();
        world.check_end();
    }
}

#[test]
fn acceptor_at_one_manager_gets_connections_of_all_shards() {
    for layout in ["TS3LS3CM3", "TS3LS3CM1", "TS3LS3+CM1"] {
        let mut world = ManagerWorld::new(layout, 1, 1);
        for shard in 0..3 {
            world.accept(0, shard, 10);
        }
        while world.pass_mail() {}
        for shard in 0..3 {
            for _ in 0..10 {
                assert!(world.establish(shard), "{layout}: the lane has credit");
            }
        }
        while world.pass_mail() {}
        (0..3).for_each(|shard| world.dispatch(0, shard));
        assert_eq!(world.apps[0].accepted, 30, "{layout}");
        assert!(!world.establish(0), "{layout}: it has no credit left");
    }
}

#[test]
fn shard_without_acceptors_of_its_own_gives_its_connections_to_others() {
    let mut world = ManagerWorld::new("TS2LS2CM2", 1, 1);
    world.accept(0, 0, 4);
    world.accept(0, 1, 4);
    while world.pass_mail() {}
    assert!(world.establish(1));
    world.dispatch(0, 1);
    while world.pass_mail() {}
    assert_eq!(world.apps[0].accepted, 1);
    let counters = world.shard(1).counters();
    assert_eq!((counters.queue.local, counters.queue.remote), (0, 1));
}

/// The servers' managers that have the listener.
fn managers_with_listener(world: &ManagerWorld) -> Vec<usize> {
    let has_it = |server: &WorldServer| match server {
        WorldServer::Manager(manager) => manager.hand_overs().listeners.iter().any(Option::is_some),
        WorldServer::Shard(_) => false,
    };
    (0..world.servers.len()).filter(|server| has_it(&world.servers[*server])).collect()
}

#[test]
fn taken_back_connection_waits_at_a_manager_that_had_forgotten_the_listener() {
    let mut world = ManagerWorld::new("TS2LS2+CM2", 2, 1);
    // The second application has enlisted, and takes none.
    for (app, credit) in [(0, 8), (1, 0)] {
        (0..2).for_each(|shard| world.accept(app, shard, credit));
    }
    while world.pass_mail() {}
    // The first is offered connections of both shards, and claims none.
    for shard in 0..2 {
        assert!(world.establish(shard));
        while world.pass_mail() {}
        assert_eq!(world.apps[0].offers[shard].len(), 1);
    }
    world.leave(1);
    while world.pass_mail() {}
    // The manager of the second shard has acceptors neither of its own nor elsewhere any more.
    world.us += CLAIM_TIME_DEFAULT.as_micros() as u64;
    let now = world.now();
    assert!(world.shard(0).on_time(now));
    world.collect();
    while world.pass_mail() {}
    assert_eq!(managers_with_listener(&world), [2]);
    world.pass_time();
    world.settle();
    world.check_end();
}

#[test]
fn manager_apart_keeps_nothing_of_a_listener_that_has_ended() {
    let mut world = ManagerWorld::new("TS2LS2+CM1", 1, 1);
    world.accept(0, 0, 1);
    while world.pass_mail() {}
    assert!(world.establish(0));
    while world.pass_mail() {}
    // One that waits, as the acceptor's lane has been given credit that its home does not know.
    let number = world.number(0).expect("it is shared");
    let (conn, now) = (ConnId { index: 9, generation: 1 }, world.now());
    world.conns[0].insert(9, WorldConn::Unclaimed);
    world.shard(0).on_established(now, number, conn, 0);
    world.collect();
    while world.pass_mail() {}
    world.leave(0);
    while world.pass_mail() {}
    assert_eq!(managers_with_listener(&world), [2], "a connection waits there");
    let unclaimed = world.shard(0).end(LISTENER);
    assert_eq!(unclaimed, [conn]);
    world.collect();
    while world.pass_mail() {}
    assert_eq!(managers_with_listener(&world), [] as [usize; 0]);
}

#[test]
fn transport_server_knows_an_acceptor_before_its_first_connection() {
    let mut world = ManagerWorld::new("TS2LS2+CM2", 2, 1);
    // A connection waits at the manager of the first shard.
    let number = world.number(0).expect("it is shared");
    let (conn, now) = (ConnId { index: 0, generation: 1 }, world.now());
    world.conns[0].insert(0, WorldConn::Unclaimed);
    world.shard(0).on_established(now, number, conn, 0);
    world.collect();
    while world.pass_mail() {}
    // An acceptor enlists at the other manager.
    world.accept(1, 1, 1);
    while world.pass_mail() {}
    world.dispatch(1, 0);
    assert_eq!(world.apps[1].accepted, 1);
}

#[test]
fn manager_apart_shows_its_acceptors_and_their_shares() {
    let mut world = ManagerWorld::new("TS2LS2+CM1", 2, 1);
    for shard in 0..2 {
        (0..2).for_each(|app| world.accept(app, shard, 8));
    }
    while world.pass_mail() {}
    for shard in 0..2 {
        (0..6).for_each(|_| assert!(world.establish(shard)));
    }
    while world.pass_mail() {}
    // The second application claims nothing, and is dropped.
    (0..2).for_each(|shard| world.dispatch(0, shard));
    world.apps[1].runs = false;
    world.pass_time();
    while world.pass_mail() {}
    let now = world.now();
    let WorldServer::Manager(manager) = &world.servers[2] else { panic!("it is apart") };
    let page = manager.page(now, 0);
    let AnswerBody::Manager(Some(shown)) = page.body else { panic!("{page:?}") };
    assert_eq!((shown.number, shown.shard, page.next), (0, None, None));
    let [listener] = &shown.listeners[..] else { panic!("{shown:?}") };
    assert_eq!((listener.local, listener.acceptor_count), (Some(address()), 1));
    let [first, second] = &listener.acceptors[..] else { panic!("{listener:?}") };
    assert_eq!((first.session, second.session), (10, 11));
    assert!(first.is_enlisted && !second.is_enlisted, "{listener:?}");
    assert_eq!((first.take_backs, listener.dropped), (0, 1));
    assert!(second.take_backs > 0 && second.take_backs == second.assigned, "{second:?}");
    let all = first.assigned + second.assigned;
    assert_eq!(all, listener.assigned + listener.assigned_elsewhere);
    assert_eq!(all, 12 + second.take_backs, "those taken back are assigned again");
    let later = manager.page(now, 1);
    let AnswerBody::Manager(Some(none)) = later.body else { panic!("{later:?}") };
    assert_eq!((none.listeners.len(), later.next), (0, None));
}
