//! Listeners that several sessions and tokens own: how long they live, which sessions get their
//! connections, and what they count for.

use std::sync::Arc;

use megapipe_shm::record::{LISTEN_EXCLUSIVE, ListenSharing};
use megapipe_stack::{CloseReason, ListenerId};

use super::many_sessions::{SIZES, at};
use super::sharing::{attach, call, token};
use super::unaccepted::{UnacceptedWorld, rights_of};
use super::*;
use crate::balancer::RandomSequence;
use crate::descriptors::{PassedDescriptors, ShareToken};
use crate::policy::{QuotaKind, SessionRights, UserAccount};
use crate::remote::encoding::{decode_listener, id_of_listener, listener_id};
use crate::sharing::ListenerOptions;

const PORT: u16 = 80;

/// A session that has the token under the cookie 1.
struct Owner {
    client: RemoteClient,
    id: SessionId,
}

struct ListenerWorld {
    world: UnacceptedWorld,
    token: Arc<ShareToken>,
    listener: ListenerId,
}

fn listen_call(flags: u16) -> SessionCall {
    let sharing = ListenSharing { flags, fast_open: 9, cores: None };
    SessionCall::Listen { local: at(PORT), backlog: 100, sharing, reservation: 0 }
}

/// A session of a user that may pass and make this token.
fn attach_as(
    world: &mut UnacceptedWorld,
    token: &Arc<ShareToken>,
    (user, rights): (u32, Option<&Arc<SessionRights>>),
) -> Owner {
    let passed = Arc::new(PassedDescriptors::new(None));
    passed.keep_token(1, (Arc::clone(token), true)).expect("there is room");
    let (descriptors, key) = (Some(passed), world.us + 1);
    let rights = rights.cloned();
    let limits = SessionLimits { descriptors, key, user, rights, ..SessionLimits::WHOLE_SHARD };
    let (client, id) = world.shard.attach_with(&SIZES, limits);
    Owner { client, id }
}

impl ListenerWorld {
    /// A listener with these flags, and its session.
    fn new(flags: u16) -> (Self, Owner) {
        let (mut world, token) = (UnacceptedWorld::new(64), token());
        let (mut client, id) = attach(&mut world, SIZES.receive_buffers, &token);
        let answer = call(&mut world, &mut client, listen_call(flags));
        let ServerAnswer::Listening { listener } = answer else { panic!("{answer:?}") };
        let listener = listener_id(listener);
        (Self { world, token, listener }, Owner { client, id })
    }

    fn attach(&mut self) -> Owner {
        let (client, id) = attach(&mut self.world, SIZES.receive_buffers, &self.token);
        Owner { client, id }
    }

    fn hold(&mut self, owner: &mut Owner) -> ServerAnswer {
        let listener = id_of_listener(self.listener);
        call(&mut self.world, &mut owner.client, SessionCall::HoldListener { token: 1, listener })
    }

    fn try_adopt(&mut self, owner: &mut Owner) -> Option<(ListenerId, ListenerOptions)> {
        let adopt = SessionCall::AdoptListener { token: 1 };
        match call(&mut self.world, &mut owner.client, adopt) {
            ServerAnswer::Written { chunk } => {
                Some(decode_listener(&owner.client.read_call(chunk)).expect("a listener"))
            }
            ServerAnswer::Refused { .. } => None,
            other => panic!("{other:?}"),
        }
    }

    fn adopt(&mut self, owner: &mut Owner) -> ListenerOptions {
        let (listener, options) = self.try_adopt(owner).expect("the token owns it");
        assert_eq!(listener, self.listener);
        options
    }

    fn close(&mut self, owner: &mut Owner) {
        let listener = id_of_listener(self.listener);
        let close = SessionCall::Unlisten { listener };
        assert_eq!(call(&mut self.world, &mut owner.client, close), ServerAnswer::Done);
    }

    fn detach(&mut self, owner: &Owner) {
        self.world.shard.shard.detach(self.world.now(), owner.id);
        self.world.run(5);
    }

    fn change(&mut self, change: TokenChange) {
        self.world.shard.shard.change_token(self.world.now(), change);
        self.world.run(5);
    }

    fn end_token(&mut self) {
        self.token.end();
        self.change(TokenChange::End(self.token.number()));
    }

    /// Whether a SYN is answered.
    fn is_listening(&mut self) -> bool {
        let conn = self.world.client.connect(at(PORT));
        self.world.client.flush();
        self.world.run(10);
        let mut answered = None;
        while let Some(event) = self.world.client.event() {
            match event {
                RemoteEvent::Event(Event::Connected { conn: of }, _) if of == conn => {
                    answered = Some(true);
                }
                RemoteEvent::Event(Event::Closed { conn: of, reason }, _) if of == conn => {
                    assert_eq!(reason, CloseReason::Refused);
                    answered = Some(false);
                }
                _ => {}
            }
        }
        self.world.client.abort(conn);
        self.world.client.flush();
        self.world.run(10);
        answered.expect("it is answered")
    }

    /// The peer begins a connection.
    fn begin(&mut self) {
        self.world.client.connect(at(PORT));
        self.world.client.flush();
    }

    /// How many of so many new connections two acceptors get, which dispatch often. Each answers.
    fn served_by(&mut self, owners: (&mut Owner, &mut Owner), count: usize) -> (usize, usize) {
        (0..count).for_each(|_| self.begin());
        let (mut one, mut other) = (0, 0);
        for _ in 0..50 {
            self.world.run(2);
            one += owners.0.answer();
            other += owners.1.answer();
        }
        (one, other)
    }

    fn accept(&mut self, owner: &mut Owner, credit: u32) {
        owner.client.accept(self.listener, AcceptorId(1), credit);
        owner.client.flush();
        self.world.run(10);
    }
}

impl Owner {
    /// Answers new connections. Returns how many there were.
    fn answer(&mut self) -> usize {
        let mut count = 0;
        while let Some(event) = self.client.event() {
            if let RemoteEvent::Event(Event::Incoming { conn, .. }, _) = event {
                assert_eq!(self.client.send(conn, b"x"), Ok(1));
                count += 1;
            }
        }
        self.client.flush();
        count
    }

    /// The connections that it has been given since the last call.
    fn accepted(&mut self, world: &mut ListenerWorld) -> Vec<ConnId> {
        let mut all = Vec::new();
        for _ in 0..5 {
            while let Some(event) = self.client.event() {
                if let RemoteEvent::Event(Event::Incoming { conn, .. }, _) = event {
                    all.push(conn);
                }
            }
            self.client.flush();
            world.world.run(10);
        }
        all
    }
}

#[test]
fn listener_lives_until_its_last_owner_ends() {
    let (mut world, mut maker) = ListenerWorld::new(0);
    assert_eq!(world.hold(&mut maker), ServerAnswer::Done);
    world.close(&mut maker);
    assert!(world.is_listening(), "the token owns it");
    world.detach(&maker);
    let waiting = world.world.connect(PORT, 3);
    let mut child = world.attach();
    let options = world.adopt(&mut child);
    assert_eq!((options.address, options.backlog), (at(PORT), 100));
    assert_eq!((options.sharing.fast_open, options.sharing.is_exclusive), (9, false));
    world.accept(&mut child, 10);
    assert_eq!(child.accepted(&mut world).len(), 3, "they have waited");
    world.end_token();
    assert!(world.is_listening(), "a session owns it");
    child.accepted(&mut world);
    assert!(world.try_adopt(&mut child).is_none(), "the token has ended");
    world.close(&mut child);
    assert!(!world.is_listening());
    // Connections that were accepted go on.
    world.world.send_bytes(waiting[0], b"still here");
    assert_eq!(world.world.shard.shard.held_listeners(), 0);
}

#[test]
fn end_of_the_last_token_resets_connections_that_wait() {
    let (mut world, mut maker) = ListenerWorld::new(0);
    world.hold(&mut maker);
    world.detach(&maker);
    let waiting = world.world.connect(PORT, 1)[0];
    world.end_token();
    let event = world.world.client.event();
    let Some(RemoteEvent::Event(Event::Closed { conn, reason }, _)) = event else {
        panic!("{event:?}")
    };
    assert_eq!((conn, reason), (waiting, CloseReason::ResetByPeer));
    assert!(!world.is_listening());
    assert_eq!(world.world.shard.shard.held_listeners(), 0);
}

/// Adoption needs no SO_REUSEPORT.
#[test]
fn acceptors_of_an_exclusive_listener_share_its_connections() {
    let (mut world, mut maker) = ListenerWorld::new(LISTEN_EXCLUSIVE);
    world.hold(&mut maker);
    let mut child = world.attach();
    assert!(world.adopt(&mut child).sharing.is_exclusive);
    let again = call(&mut world.world, &mut child.client, listen_call(0));
    assert!(matches!(again, ServerAnswer::Refused { .. }), "{again:?}");
    for owner in [&mut maker, &mut child] {
        world.accept(owner, 50);
    }
    let (mut by_maker, mut by_child) = (0, 0);
    for _ in 0..20 {
        let (one, other) = world.served_by((&mut maker, &mut child), 2);
        (by_maker, by_child) = (by_maker + one, by_child + other);
    }
    assert_eq!(by_maker + by_child, 40, "each goes to one of them");
    assert!(by_maker > 0 && by_child > 0, "{by_maker} {by_child}");
    // What was offered to an acceptor that ends goes to the other one.
    for _ in 0..4 {
        world.begin();
    }
    world.world.run(4);
    world.detach(&maker);
    assert_eq!(child.accepted(&mut world).len(), 4);
}

#[test]
fn adopting_again_counts_once_and_other_tokens_own_nothing() {
    let (mut world, mut maker) = ListenerWorld::new(0);
    let mut stranger = world.attach();
    assert!(world.try_adopt(&mut stranger).is_none(), "nothing is shared");
    assert!(matches!(world.hold(&mut stranger), ServerAnswer::Refused { .. }), "not its own");
    let report = world.world.shard.shard.report();
    let its = report.sessions.iter().find(|(id, _)| *id == stranger.id).expect("it runs").1;
    assert_eq!(its.foreign_names, 1);
    for _ in 0..2 {
        assert_eq!(world.hold(&mut maker), ServerAnswer::Done);
        world.adopt(&mut maker);
        world.adopt(&mut stranger);
    }
    // Another token, which the session has not made.
    let passed = Arc::new(PassedDescriptors::new(None));
    let other = ShareToken::new(9, None).expect("no quota");
    passed.keep_token(1, (other, false)).expect("there is room");
    let limits = SessionLimits { descriptors: Some(passed), key: 99, ..SessionLimits::WHOLE_SHARD };
    let (client, id) = world.world.shard.attach_with(&SIZES, limits);
    let mut holder = Owner { client, id };
    assert!(world.try_adopt(&mut holder).is_none());
    let _ = call(&mut world.world, &mut holder.client, listen_call(0));
    assert!(matches!(world.hold(&mut holder), ServerAnswer::Refused { .. }), "not made by it");
    world.end_token();
    world.close(&mut maker);
    world.close(&mut stranger);
    assert!(world.is_listening(), "the third one has listened there");
    world.detach(&holder);
    assert!(!world.is_listening());
}

#[test]
fn listener_of_tokens_counts_for_the_user_of_one() {
    let mut world = UnacceptedWorld::new(64);
    let [account, other] = [(); 2].map(|()| Arc::<UserAccount>::default());
    let quotas = [(QuotaKind::UserListeners, 1), (QuotaKind::UserPrivateBuffers, 8)];
    let [its, others] = [&account, &other].map(|it| rights_of(it, &quotas));
    let token = ShareToken::new(8, Some(Arc::clone(&its))).expect("no quota");
    let mut maker = attach_as(&mut world, &token, (1, Some(&its)));
    let answer = call(&mut world, &mut maker.client, listen_call(0));
    let ServerAnswer::Listening { listener } = answer else { panic!("{answer:?}") };
    let mut world = ListenerWorld { world, token, listener: listener_id(listener) };
    assert_eq!(world.hold(&mut maker), ServerAnswer::Done);
    let listeners = |account: &Arc<UserAccount>| account.count(QuotaKind::UserListeners);
    let buffers = |account: &Arc<UserAccount>| account.count(QuotaKind::UserPrivateBuffers);
    assert_eq!(listeners(&account), 1);
    world.close(&mut maker);
    assert_eq!(listeners(&account), 1, "by the token");
    let peer = world.world.connect(PORT, 1)[0];
    world.world.send_bytes(peer, b"a request");
    assert_eq!(world.world.private_used(), 1);
    // The same user has no room but for this one.
    let refused = call(
        &mut world.world,
        &mut maker.client,
        SessionCall::Listen {
            local: at(81),
            backlog: 1,
            sharing: ListenSharing::default(),
            reservation: 0,
        },
    );
    assert!(matches!(refused, ServerAnswer::Refused { .. }), "{refused:?}");
    world.adopt(&mut maker);
    assert_eq!(listeners(&account), 1);
    world.detach(&maker);
    assert_eq!(listeners(&account), 1, "by the token again");
    // Another user adopts it, and is refused a second one.
    let shared = Arc::clone(&world.token);
    let mut full = attach_as(&mut world.world, &shared, (2, Some(&others)));
    let listen = SessionCall::Listen {
        local: at(81),
        backlog: 1,
        sharing: ListenSharing::default(),
        reservation: 0,
    };
    let taken = call(&mut world.world, &mut full.client, listen);
    assert!(matches!(taken, ServerAnswer::Listening { .. }), "{taken:?}");
    assert!(world.try_adopt(&mut full).is_none(), "beyond its quota");
    assert_eq!((listeners(&account), listeners(&other)), (1, 1), "it counts as before");
    world.detach(&full);
    let mut child = attach_as(&mut world.world, &shared, (2, Some(&others)));
    world.adopt(&mut child);
    assert_eq!((listeners(&account), listeners(&other)), (0, 1));
    assert_eq!(buffers(&account), 0);
    world.end_token();
    world.detach(&child);
    assert!(!world.is_listening());
    assert_eq!((listeners(&account), listeners(&other)), (0, 0));
    assert_eq!((buffers(&other), world.world.private_used()), (0, 0));
}

#[test]
fn holding_in_a_loop_owns_one_listener() {
    let (mut world, mut maker) = ListenerWorld::new(0);
    for _ in 0..100 {
        assert_eq!(world.hold(&mut maker), ServerAnswer::Done);
    }
    assert_eq!(world.world.shard.shard.held_listeners(), 1);
    world.close(&mut maker);
    world.end_token();
    assert!(!world.is_listening());
    let late = world.hold(&mut maker);
    assert!(matches!(late, ServerAnswer::Refused { .. }), "{late:?}");
}

/// What a world does with its sessions and tokens, in a random order.
#[test]
fn listener_lives_exactly_as_long_as_an_owner() {
    for seed in 0..40 {
        let mut random = RandomSequence::new(seed);
        let mut below = |count: usize| (random.next() % count as u64) as usize;
        let flags = if below(2) == 0 { LISTEN_EXCLUSIVE } else { 0 };
        let (mut world, maker) = ListenerWorld::new(flags);
        // Each session, and whether it owns the listener.
        let mut owners = vec![(maker, true)];
        let mut tokens: Vec<Arc<ShareToken>> = Vec::new();
        let mut is_held = false;
        for step in 0..60 {
            let place = if owners.is_empty() { 0 } else { below(owners.len()) };
            match below(8) {
                0 | 1 if owners.len() < 5 => owners.push((world.attach(), false)),
                2 if owners.get(place).is_some_and(|(_, owns)| *owns) => {
                    let held = world.hold(&mut owners[place].0);
                    if held == ServerAnswer::Done && !is_held {
                        is_held = true;
                        tokens.push(Arc::clone(&world.token));
                    }
                }
                3 | 4 if !owners.is_empty() => {
                    let adopted = world.try_adopt(&mut owners[place].0).is_some();
                    assert_eq!(adopted, is_held, "{seed}, step {step}");
                    owners[place].1 |= adopted;
                }
                5 if !owners.is_empty() => {
                    world.close(&mut owners[place].0);
                    owners[place].1 = false;
                }
                6 if !owners.is_empty() => {
                    let (owner, _) = owners.swap_remove(place);
                    world.detach(&owner);
                }
                7 if !tokens.is_empty() => {
                    let which = below(tokens.len());
                    if below(2) == 0 && tokens.len() < 4 {
                        let copy = tokens[which].copy(100 + step).expect("no quota");
                        let copy = copy.expect("there is room");
                        let request = tokens[which].begin_request().expect("there is room");
                        world.change(TokenChange::Copy(request, Arc::clone(&copy)));
                        tokens.push(copy);
                    } else {
                        let gone = tokens.swap_remove(which);
                        gone.end();
                        is_held &= gone.number() != world.token.number();
                        world.change(TokenChange::End(gone.number()));
                        if gone.number() == world.token.number() {
                            world.token = ShareToken::new(1_000 + step, None).expect("no quota");
                            owners.clear_with(&mut world);
                        }
                    }
                }
                _ => {}
            }
            let lives = !tokens.is_empty() || owners.iter().any(|(_, owns)| *owns);
            assert_eq!(world.is_listening(), lives, "{seed}, step {step}: {}", tokens.len());
            if !lives {
                break;
            }
        }
        owners.clear_with(&mut world);
        for token in tokens {
            token.end();
            world.change(TokenChange::End(token.number()));
        }
        assert!(!world.is_listening(), "{seed}");
        assert_eq!(world.world.shard.shard.held_listeners(), 0, "{seed}");
    }
}

/// Sessions that end together.
trait ClearWith {
    fn clear_with(&mut self, world: &mut ListenerWorld);
}

impl ClearWith for Vec<(Owner, bool)> {
    fn clear_with(&mut self, world: &mut ListenerWorld) {
        for (owner, _) in self.drain(..) {
            world.detach(&owner);
        }
    }
}
