//! Ownership of connections that several processes may have: by sessions, and by tokens.
//!
//! A token stands for what its holder may adopt: the child of a fork, or a process that was passed
//! it. A connection ends when no session and no token owns it. Of the sessions that own it one uses
//! it (`shared_conns.rs`); which one makes no difference here.
//!
//! Pure: names go in, and out comes which objects are over. Connections that one session alone has
//! have no entry, so a program that shares nothing costs nothing.
//!
//! Invariants
//! - An object has an entry exactly while a token or more than one session owns it, or no session.
//! - Each token and session of an entry has the object in its own set, and the other way round.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;

/// Who owns an object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ObjectHolders<S, T> {
    sessions: Vec<S>,
    tokens: BTreeSet<T>,
}

/// What is left of an object after an owner has let go of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnersLeft<S> {
    /// This session, perhaps besides others, and perhaps tokens.
    Session(S),
    /// Tokens alone.
    Tokens,
    /// Nothing: the object is over.
    Nothing,
}

/// Objects of type `O` that sessions `S` and tokens `T` own.
#[derive(Debug)]
pub(super) struct SharedOwnership<O, S, T> {
    objects: HashMap<O, ObjectHolders<S, T>>,
    sessions: HashMap<S, HashSet<O>>,
    tokens: HashMap<T, HashSet<O>>,
}

impl<O, S, T> Default for SharedOwnership<O, S, T> {
    fn default() -> Self {
        Self { objects: HashMap::new(), sessions: HashMap::new(), tokens: HashMap::new() }
    }
}

impl<O: Copy + Eq + Hash, S: Copy + Eq + Hash, T: Copy + Ord + Hash> SharedOwnership<O, S, T> {
    /// Whether nothing is shared.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Whether an object may have other owners than one session.
    pub(super) fn is_shared(&self, object: O) -> bool {
        self.objects.contains_key(&object)
    }

    /// Whether a session is among the owners of a shared object.
    pub(super) fn has_session(&self, object: O, session: S) -> bool {
        self.objects.get(&object).is_some_and(|it| it.sessions.contains(&session))
    }

    /// Whether a session, with its own token, is the only owner of an object that it owns.
    pub(super) fn is_only_owner(&self, object: O, session: S, token: Option<T>) -> bool {
        self.objects.get(&object).is_none_or(|it| {
            it.sessions == [session] && it.tokens.iter().all(|other| Some(*other) == token)
        })
    }

    /// The sessions that own a shared object.
    pub(super) fn sessions(&self, object: O) -> &[S] {
        self.objects.get(&object).map_or(&[], |it| &it.sessions)
    }

    /// The shared objects that a session owns.
    pub(super) fn objects_of(&self, session: S) -> Vec<O> {
        self.sessions.get(&session).into_iter().flatten().copied().collect()
    }

    /// A token that owns an object.
    pub(super) fn token_of(&self, object: O) -> Option<T> {
        self.objects.get(&object)?.tokens.first().copied()
    }

    /// The tokens that own an object.
    pub(super) fn tokens(&self, object: O) -> Vec<T> {
        self.objects.get(&object).into_iter().flat_map(|it| &it.tokens).copied().collect()
    }

    /// Whether a token owns an object.
    pub(super) fn has_token(&self, token: T, object: O) -> bool {
        self.tokens.get(&token).is_some_and(|its| its.contains(&object))
    }

    /// The objects that a token owns.
    pub(super) fn objects_of_token(&self, token: T) -> Vec<O> {
        self.tokens.get(&token).into_iter().flatten().copied().collect()
    }

    /// How many that are.
    pub(super) fn token_len(&self, token: T) -> usize {
        self.tokens.get(&token).map_or(0, HashSet::len)
    }

    /// A token owns an object from now on, beside its present owners: those of its entry, or else
    /// `session`.
    pub(super) fn hold(&mut self, token: T, object: O, session: Option<S>) {
        let entry = self.objects.entry(object).or_insert_with(|| {
            let sessions: Vec<S> = session.into_iter().collect();
            for session in &sessions {
                self.sessions.entry(*session).or_default().insert(object);
            }
            ObjectHolders { sessions, tokens: BTreeSet::new() }
        });
        entry.tokens.insert(token);
        self.tokens.entry(token).or_default().insert(object);
    }

    /// A session owns an object from now on, which a token owns. Returns whether it may.
    pub(super) fn adopt(&mut self, token: T, object: O, session: S) -> bool {
        if !self.has_token(token, object) {
            return false;
        }
        let Some(entry) = self.objects.get_mut(&object) else { return false };
        if self.sessions.entry(session).or_default().insert(object) {
            entry.sessions.push(session);
        }
        true
    }

    /// A session lets go of a shared object, and so does its own token, by which it was opened.
    pub(super) fn release(&mut self, object: O, session: S, token: Option<T>) -> OwnersLeft<S> {
        if let Some(token) = token {
            self.drop_hold(token, object);
        }
        if let Some(entry) = self.objects.get_mut(&object) {
            entry.sessions.retain(|other| *other != session);
            remove_from(&mut self.sessions, session, object);
        }
        self.left(object)
    }

    /// A token lets go of an object.
    pub(super) fn release_by_token(&mut self, token: T, object: O) -> OwnersLeft<S> {
        self.drop_hold(token, object);
        self.left(object)
    }

    /// A token has ended. Returns the objects that it owned.
    pub(super) fn end_token(&mut self, token: T) -> Vec<(O, OwnersLeft<S>)> {
        let objects = self.objects_of_token(token);
        let left = objects.into_iter().map(|object| (object, self.release_by_token(token, object)));
        let left: Vec<_> = left.collect();
        self.tokens.remove(&token);
        left
    }

    /// An object is over: it has no owners.
    pub(super) fn forget(&mut self, object: O) {
        let Some(entry) = self.objects.remove(&object) else { return };
        for token in entry.tokens {
            remove_from(&mut self.tokens, token, object);
        }
        for session in entry.sessions {
            remove_from(&mut self.sessions, session, object);
        }
    }

    fn drop_hold(&mut self, token: T, object: O) {
        if let Some(entry) = self.objects.get_mut(&object)
            && entry.tokens.remove(&token)
        {
            remove_from(&mut self.tokens, token, object);
        }
    }

    /// Who owns an object now. An entry that is not needed goes.
    fn left(&mut self, object: O) -> OwnersLeft<S> {
        let Some(entry) = self.objects.get(&object) else { return OwnersLeft::Nothing };
        let left = match (entry.sessions.first(), entry.tokens.is_empty()) {
            (Some(session), _) => OwnersLeft::Session(*session),
            (None, false) => OwnersLeft::Tokens,
            (None, true) => OwnersLeft::Nothing,
        };
        if entry.tokens.is_empty() && entry.sessions.len() <= 1 {
            self.forget(object);
        }
        left
    }
}

/// An object leaves an owner's set, which goes with its last one.
fn remove_from<K: Eq + Hash, O: Eq + Hash>(sets: &mut HashMap<K, HashSet<O>>, owner: K, object: O) {
    let Some(its) = sets.get_mut(&owner) else { return };
    its.remove(&object);
    if its.is_empty() {
        sets.remove(&owner);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use super::*;

    type Process = u8;
    type Token = u8;
    type Object = u8;

    const PROCESSES: u8 = 3;
    const OBJECTS: u8 = 2;
    /// Names no token of a process.
    const OTHER_TOKEN: Token = PROCESSES;

    /// What Linux does with descriptors: an object lives as long as a process or a descriptor in
    /// flight has it. A process has at most one token, which has its number.
    #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        /// By process: the objects of its session.
        sessions: [BTreeSet<Object>; PROCESSES as usize],
        /// By process: the objects of its token.
        tokens: [Option<BTreeSet<Object>>; PROCESSES as usize],
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Step {
        /// A process forks: a token for all that it has, which another process holds.
        Fork(Process, Process),
        /// A process shares one object, and passes the token on.
        Share(Process, Object, Process),
        /// The holder of a token adopts an object.
        Adopt(Process, Object),
        /// A process closes an object, whatever it has it by.
        Close(Process, Object),
        /// A process dies.
        Die(Process),
    }

    impl World {
        fn owners(&self, object: Object) -> usize {
            let sessions = self.sessions.iter().filter(|its| its.contains(&object)).count();
            sessions + self.tokens.iter().flatten().filter(|its| its.contains(&object)).count()
        }

        fn token(&self, process: Process) -> Option<&BTreeSet<Object>> {
            self.tokens[process as usize].as_ref()
        }

        /// What a process can reach.
        fn reach(&self, process: Process) -> BTreeSet<Object> {
            let by_token = self.token(process).into_iter().flatten();
            self.sessions[process as usize].iter().chain(by_token).copied().collect()
        }

        fn steps(&self) -> Vec<Step> {
            let mut steps = Vec::new();
            for process in 0..PROCESSES {
                steps.push(Step::Die(process));
                for other in (0..PROCESSES).filter(|it| *it != process) {
                    if self.token(other).is_none() {
                        steps.push(Step::Fork(process, other));
                        let its = self.sessions[process as usize].iter();
                        steps.extend(its.map(|object| Step::Share(process, *object, other)));
                    }
                }
                steps.extend(self.reach(process).iter().map(|it| Step::Close(process, *it)));
                let by_token = self.token(process).into_iter().flatten();
                steps.extend(by_token.map(|object| Step::Adopt(process, *object)));
            }
            steps
        }

        /// Returns the objects that the step ends.
        fn take(&mut self, step: Step) -> BTreeSet<Object> {
            let before: Vec<Object> = (0..OBJECTS).filter(|it| self.owners(*it) > 0).collect();
            match step {
                Step::Fork(from, to) => self.tokens[to as usize] = Some(self.reach(from)),
                Step::Share(_, object, to) => {
                    self.tokens[to as usize] = Some(BTreeSet::from([object]));
                }
                Step::Adopt(process, object) => {
                    self.sessions[process as usize].insert(object);
                }
                Step::Close(process, object) => {
                    self.sessions[process as usize].remove(&object);
                    if let Some(its) = &mut self.tokens[process as usize] {
                        its.remove(&object);
                    }
                }
                Step::Die(process) => {
                    self.sessions[process as usize].clear();
                    self.tokens[process as usize] = None;
                }
            }
            before.into_iter().filter(|object| self.owners(*object) == 0).collect()
        }
    }

    /// The machine, with the sessions' plain objects beside it, as a shard has them.
    #[derive(Debug)]
    struct Machine {
        shared: SharedOwnership<Object, Process, Token>,
        plain: BTreeSet<(Process, Object)>,
    }

    impl Machine {
        /// The machine in the state of a world.
        fn of(world: &World) -> Self {
            let mut machine = Self { shared: SharedOwnership::default(), plain: BTreeSet::new() };
            for object in 0..OBJECTS {
                let all = |has: &dyn Fn(Process) -> bool| -> Vec<Process> {
                    (0..PROCESSES).filter(|process| has(*process)).collect()
                };
                let sessions = all(&|it| world.sessions[it as usize].contains(&object));
                let tokens = all(&|it| world.token(it).is_some_and(|its| its.contains(&object)));
                match (&sessions[..], &tokens[..]) {
                    ([], []) => {}
                    ([one], []) => drop(machine.plain.insert((*one, object))),
                    _ => {
                        machine.shared.hold(OTHER_TOKEN, object, sessions.first().copied());
                        for session in &sessions {
                            assert!(machine.shared.adopt(OTHER_TOKEN, object, *session));
                        }
                        tokens.iter().for_each(|token| machine.shared.hold(*token, object, None));
                    }
                }
            }
            // What has passed the objects on is gone.
            machine.shared.end_token(OTHER_TOKEN);
            machine
        }

        fn release(&mut self, process: Process, object: Object, token: Option<Token>) -> bool {
            if !self.shared.is_shared(object) {
                return self.plain.remove(&(process, object));
            }
            let left = self.shared.release(object, process, token);
            self.settle(object, left)
        }

        /// An object without an entry is a plain one of its session again.
        fn settle(&mut self, object: Object, left: OwnersLeft<Process>) -> bool {
            if let OwnersLeft::Session(session) = left
                && !self.shared.is_shared(object)
            {
                self.plain.insert((session, object));
            }
            left == OwnersLeft::Nothing
        }

        fn take(&mut self, world: &World, step: Step) -> BTreeSet<Object> {
            let mut ended = BTreeSet::new();
            match step {
                Step::Fork(from, to) => {
                    for object in world.reach(from) {
                        let is_plain = self.plain.remove(&(from, object));
                        self.shared.hold(to, object, is_plain.then_some(from));
                    }
                }
                Step::Share(from, object, to) => {
                    let is_plain = self.plain.remove(&(from, object));
                    self.shared.hold(to, object, is_plain.then_some(from));
                }
                Step::Adopt(process, object) => {
                    assert!(self.shared.adopt(process, object, process));
                }
                Step::Close(process, object) => {
                    if self.release(process, object, Some(process)) {
                        ended.insert(object);
                    }
                }
                Step::Die(process) => {
                    let plain: Vec<_> = self.plain.iter().copied().collect();
                    let its = plain.into_iter().filter(|(of, _)| *of == process);
                    let mut objects: Vec<_> = its.map(|(_, object)| object).collect();
                    objects.extend(self.shared.objects_of(process));
                    for object in objects {
                        if self.release(process, object, None) {
                            ended.insert(object);
                        }
                    }
                    for (object, left) in self.shared.end_token(process) {
                        if self.settle(object, left) {
                            ended.insert(object);
                        }
                    }
                }
            }
            ended
        }

        fn check(&self, world: &World) {
            for object in 0..OBJECTS {
                let entry = self.shared.objects.get(&object);
                let plain = self.plain.iter().filter(|(_, it)| *it == object).count();
                let (sessions, tokens) =
                    entry.map_or((plain, 0), |it| (it.sessions.len(), it.tokens.len()));
                assert!(entry.is_none() || plain == 0, "{object} is one of both");
                assert_eq!(sessions + tokens, world.owners(object), "{object}: {self:?} {world:?}");
                assert!(entry.is_none_or(|_| tokens > 0 || sessions != 1), "{self:?}");
            }
            for process in 0..PROCESSES {
                let shared: BTreeSet<_> = self.shared.objects_of(process).into_iter().collect();
                let has = |(of, _): &&(Process, Object)| *of == process;
                let plain = self.plain.iter().filter(has).map(|(_, object)| *object);
                let all: BTreeSet<_> = shared.into_iter().chain(plain).collect();
                assert_eq!(all, world.sessions[process as usize], "{process}: {self:?}");
                let its: BTreeSet<_> = self.shared.objects_of_token(process).into_iter().collect();
                let expected = world.token(process).cloned().unwrap_or_default();
                assert_eq!(its, expected, "token {process}: {self:?} {world:?}");
            }
        }
    }

    /// Every state that two objects and three processes can get to, and every step from it: fork,
    /// share, adopt, close and death in each order.
    #[test]
    fn ownership_follows_descriptors_in_every_order() {
        let mut first = World {
            sessions: std::array::from_fn(|_| BTreeSet::new()),
            tokens: std::array::from_fn(|_| None),
        };
        first.sessions[0] = (0..OBJECTS).collect();
        let mut seen = BTreeSet::from([first.clone()]);
        let mut queue = VecDeque::from([first]);
        let mut steps = 0_u32;
        while let Some(world) = queue.pop_front() {
            Machine::of(&world).check(&world);
            for step in world.steps() {
                steps += 1;
                let (mut machine, mut next) = (Machine::of(&world), world.clone());
                let ended = machine.take(&world, step);
                let expected = next.take(step);
                assert_eq!(ended, expected, "{step:?} in {world:?}");
                machine.check(&next);
                if seen.insert(next.clone()) {
                    queue.push_back(next);
                }
            }
        }
        assert!(seen.len() > 1_000 && steps > 10_000, "{} states, {steps} steps", seen.len());
    }

    #[test]
    fn adoption_needs_a_token_that_owns_the_object() {
        let mut shared = SharedOwnership::<Object, Process, Token>::default();
        shared.hold(1, 7, Some(0));
        assert!(!shared.adopt(2, 7, 5) && !shared.adopt(1, 8, 5));
        assert!(shared.adopt(1, 7, 5) && shared.adopt(1, 7, 5), "again, without effect");
        assert_eq!(shared.sessions(7), [0, 5]);
        shared.forget(7);
        assert!(!shared.adopt(1, 7, 6) && shared.is_empty(), "it is over");
        assert_eq!(shared.end_token(1), []);
        assert_eq!(shared.release(7, 5, Some(1)), OwnersLeft::Nothing);
    }
}
