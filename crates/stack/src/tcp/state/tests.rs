//! The table of states and events, whole, and the figure that it makes: both are kept in `docs/`,
//! and a change of one is a change of the other.

use core::fmt::Write;

use super::*;

const STATES: [State; 13] = [
    State::Closed(Closed { reason: CloseReason::Finished }),
    State::Listen(Listen),
    State::SynSent(SynSent),
    State::SynReceived(SynReceived { passive: true }),
    State::SynReceived(SynReceived { passive: false }),
    State::FastOpen(FastOpen),
    State::Established(Established),
    State::FinWait1(FinWait1),
    State::FinWait2(FinWait2),
    State::CloseWait(CloseWait),
    State::Closing(Closing),
    State::LastAck(LastAck),
    State::TimeWait(TimeWait),
];

const INPUTS: [Input; 13] = [
    Input::OpenActive,
    Input::OpenPassive,
    Input::Syn,
    Input::SynWithCookie,
    Input::SynAck,
    Input::AckOfSyn,
    Input::Fin,
    Input::AckOfFin,
    Input::Close,
    Input::Abort,
    Input::Reset,
    Input::GiveUp(CloseReason::TimedOut),
    Input::TwoMsl,
];

/// What the state is called in the table: CLOSED with its reason.
fn name(state: State) -> String {
    match state {
        State::Closed(closed) => format!("CLOSED ({:?})", closed.reason),
        state => state.name().into(),
    }
}

fn table() -> String {
    let mut text = String::from("state; event; next state; action\n");
    for state in STATES {
        for input in INPUTS {
            let (next, action) = match transition(state, input) {
                Some((next, action)) => (name(next), format!("{action:?}")),
                None => ("-".into(), "-".into()),
            };
            writeln!(text, "{}; {input:?}; {next}; {action}", state.name()).unwrap();
        }
    }
    text
}

fn dot() -> String {
    let mut text = String::from("digraph tcp {\n  node [shape=box];\n");
    for state in STATES {
        for input in INPUTS {
            let Some((next, action)) = transition(state, input) else { continue };
            // What ends a connection from anywhere would hide the rest.
            if matches!(input, Input::Abort | Input::Reset | Input::GiveUp(_)) {
                continue;
            }
            let (from, to) = (state.name(), next.name());
            writeln!(text, "  \"{from}\" -> \"{to}\" [label=\"{input:?} / {action:?}\"];").unwrap();
        }
    }
    text.push_str("}\n");
    text
}

/// Compares with the file in `docs/`, or writes it where `MEGAPIPE_WRITE_SNAPSHOTS` is set.
fn assert_kept(file: &str, text: &str) {
    let path = format!("{}/../../docs/{file}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("MEGAPIPE_WRITE_SNAPSHOTS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "{file} is out of date: run with MEGAPIPE_WRITE_SNAPSHOTS=1");
}

#[test]
fn the_table_in_docs_is_this_one() {
    assert_kept("tcp-states.csv", &table());
}

#[test]
fn the_graph_in_docs_is_this_one() {
    assert_kept("tcp-states.dot", &dot());
}

#[test]
fn every_state_can_be_reached_and_left() {
    let mut reached = vec![STATES[0]];
    let mut index = 0;
    while index < reached.len() {
        for input in INPUTS {
            if let Some((next, _)) = transition(reached[index], input)
                && !reached.iter().any(|known| known.name() == next.name())
            {
                reached.push(next);
            }
        }
        index += 1;
    }
    for state in STATES {
        assert!(reached.iter().any(|known| known.name() == state.name()), "{}", state.name());
        let leaves = INPUTS.iter().any(|input| {
            transition(state, *input).is_some_and(|(next, _)| next.name() != state.name())
        });
        assert!(leaves, "{}", state.name());
    }
}

#[test]
fn what_a_state_allows_follows_from_what_was_closed() {
    for state in STATES.iter().filter(|state| state.is_synchronized()) {
        let closes = transition(*state, Input::Close).is_some();
        assert_eq!(state.may_send(), closes, "{}: who may send may close", state.name());
        assert!(!(state.may_receive() && state.peer_has_closed()), "{}", state.name());
        assert!(!(state.may_send() && state.owes_fin()), "{}", state.name());
        let ends = transition(*state, Input::AckOfFin).is_some();
        assert_eq!(state.owes_fin(), ends, "{}", state.name());
    }
}
