//! Random lives of handles against a model, and a long churn.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::config::Config;
use crate::handle::GENERATION_MASK;

fn state() -> State {
    State::new(Config::default().buffer_count(4)).expect("a small pool")
}

/// One step of a random life. Numbers choose among what is there.
#[derive(Debug, Clone, Copy)]
enum Step {
    Allocate,
    Register(RawFd),
    Retire(usize),
    Release(usize),
    /// As after `to_fd`: released without `retire`.
    Move(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        Just(Step::Allocate),
        (0..5).prop_map(Step::Register),
        any::<usize>().prop_map(Step::Retire),
        any::<usize>().prop_map(Step::Release),
        any::<usize>().prop_map(Step::Move),
    ];
    prop::collection::vec(step, 0..300)
}

/// What is to be true of handles, counted apart from `State`.
#[derive(Default)]
struct Model {
    uses: HashMap<u32, u32>,
    live: Vec<(u32, Handle)>,
    retired: Vec<u32>,
    ended: HashSet<Handle>,
}

impl Model {
    fn begin(&mut self, index: u32, handle: Handle) {
        let uses = self.uses.entry(handle.number()).or_default();
        assert_eq!(handle.generation(), *uses & GENERATION_MASK);
        *uses += 1;
        assert!(!self.ended.contains(&handle), "{handle:?} names another thing");
        self.live.push((index, handle));
    }

    fn end(&mut self, which: usize) -> Option<u32> {
        if self.live.is_empty() {
            return None;
        }
        let (index, handle) = self.live.swap_remove(which % self.live.len());
        self.ended.insert(handle);
        Some(index)
    }

    fn step(&mut self, state: &mut State, step: Step) {
        match step {
            Step::Register(fd) if state.is_fd_registered(fd) => {}
            Step::Allocate | Step::Register(_) => {
                let index = state.allocate(Kind::Tcp, 0).expect("there is room");
                if let Step::Register(fd) = step {
                    state.number_by_fd(index, fd);
                }
                self.begin(index, state.handle(index));
            }
            Step::Retire(which) => {
                let Some(index) = self.end(which) else { return };
                state.retire(index);
                self.retired.push(index);
            }
            Step::Release(which) if !self.retired.is_empty() => {
                state.release(self.retired.swap_remove(which % self.retired.len()));
            }
            Step::Release(_) => {}
            Step::Move(which) => {
                let Some(index) = self.end(which) else { return };
                state.slot(index).phase = SlotPhase::Moving;
                state.release(index);
            }
        }
    }
}

proptest! {
    #[test]
    fn handles_name_one_thing_for_ever(steps in steps()) {
        let mut state = state();
        let mut model = Model::default();
        for step in steps {
            model.step(&mut state, step);
            for &(index, handle) in &model.live {
                prop_assert_eq!(state.find(handle), Ok(index));
            }
            for &handle in &model.ended {
                prop_assert_eq!(state.find(handle), Err(Misuse::StaleHandle));
            }
        }
    }
}

/// 1,000,000 handles, or as many as `MEGAPIPE_HANDLES` says; each number's generations only grow,
/// so that a handle is repeated after 2^21 uses of its number at the earliest.
#[test]
fn generations_grow_in_a_churn_of_handles() {
    let count = std::env::var("MEGAPIPE_HANDLES").ok().and_then(|count| count.parse().ok());
    let mut state = state();
    let mut uses: HashMap<u32, u32> = HashMap::new();
    let mut live = Vec::new();
    let mut random = 0x9e37_79b9_u32;
    for _ in 0..count.unwrap_or(1_000_000_u32) {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let index = state.allocate(Kind::Tcp, 0).expect("there is room");
        let fd = (random >> 8) as RawFd % 8;
        if random.is_multiple_of(4) && !state.is_fd_registered(fd) {
            state.number_by_fd(index, fd);
        }
        let handle = state.handle(index);
        let uses = uses.entry(handle.number()).or_default();
        assert_eq!(handle.generation(), *uses & GENERATION_MASK, "{handle:?}");
        *uses += 1;
        live.push(index);
        if live.len() > 16 {
            let left = live.swap_remove(random as usize % live.len());
            state.retire(left);
            state.release(left);
        }
    }
}

#[test]
fn handle_repeats_after_2_to_the_21_uses_of_its_number() {
    let mut state = state();
    let mut use_once = || {
        let index = state.allocate(Kind::Tcp, 0).expect("there is room");
        let handle = state.handle(index);
        state.retire(index);
        state.release(index);
        handle
    };
    let first = use_once();
    for uses in 1..=GENERATION_MASK {
        assert_ne!(use_once(), first, "after {uses} uses");
    }
    assert_eq!(use_once(), first);
}
