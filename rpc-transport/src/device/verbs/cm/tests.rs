//! The complete state table; then every order of inputs, legal or not, checked against the
//! invariants.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write;

use super::*;

const STATES: [State; 14] = [
    State::ResolvingAddress,
    State::ResolvingRoute,
    State::Routed,
    State::Connecting,
    State::Completing,
    State::Confirming,
    State::Requested,
    State::Preparing,
    State::Accepting,
    State::Up,
    State::Leaving,
    State::Down,
    State::Listening,
    State::Closed,
];

/// All inputs: every event number that exists and two that do not, each with success and failure
/// status, and every input of the owner, the clock and the calls.
fn inputs() -> Vec<Input> {
    let mut inputs = Vec::new();
    for number in (0..=20).chain([4711, u32::MAX]) {
        for status in [0, -110] {
            let input = Input::Event(Event::from_number(number, status));
            if !inputs.contains(&input) {
                inputs.push(input);
            }
        }
    }
    inputs.extend([Input::Connect, Input::Accept, Input::Reject, Input::Disconnect, Input::Close]);
    inputs.extend([Input::Deadline, Input::Ready, Input::Confirmed, Input::CallFailed]);
    inputs
}

/// All combinations that have an effect; all others are ignored.
const TABLE: &str = "\
ResolvingAddress  AddressResolved   -> ResolvingRoute: ResolveRoute
ResolvingAddress  AddressError      -> Closed: ReportFailure, Destroy
ResolvingAddress  DeviceRemoval     -> Closed: ReportFailure, Destroy
ResolvingAddress  Close             -> Closed: Destroy
ResolvingAddress  Deadline          -> Closed: ReportFailure, Destroy
ResolvingAddress  CallFailed        -> Closed: ReportFailure, Destroy
ResolvingRoute    AddressError      -> Closed: ReportFailure, Destroy
ResolvingRoute    RouteResolved     -> Routed: ReportResolved
ResolvingRoute    RouteError        -> Closed: ReportFailure, Destroy
ResolvingRoute    Unreachable       -> Closed: ReportFailure, Destroy
ResolvingRoute    DeviceRemoval     -> Closed: ReportFailure, Destroy
ResolvingRoute    Close             -> Closed: Destroy
ResolvingRoute    Deadline          -> Closed: ReportFailure, Destroy
ResolvingRoute    CallFailed        -> Closed: ReportFailure, Destroy
Routed            Unreachable       -> Closed: Destroy
Routed            DeviceRemoval     -> Closed: Destroy
Routed            Connect           -> Connecting: SendConnect
Routed            Close             -> Closed: Destroy
Routed            CallFailed        -> Closed: ReportFailure, Destroy
Connecting        ConnectResponse   -> Completing: MakeReady
Connecting        ConnectError      -> Closed: ReportFailure, Destroy
Connecting        Unreachable       -> Closed: ReportFailure, Destroy
Connecting        Rejected          -> Closed: ReportFailure, Destroy
Connecting        Established       -> Up: ReportUp
Connecting        Disconnected      -> Closed: ReportFailure, Destroy
Connecting        DeviceRemoval     -> Closed: ReportFailure, Destroy
Connecting        Close             -> Closed: Destroy
Connecting        Deadline          -> Closed: ReportFailure, Destroy
Connecting        CallFailed        -> Closed: ReportFailure, Destroy
Completing        ConnectError      -> Closed: ReportFailure, Destroy
Completing        Unreachable       -> Closed: ReportFailure, Destroy
Completing        Rejected          -> Closed: ReportFailure, Destroy
Completing        Disconnected      -> Closed: ReportFailure, Destroy
Completing        DeviceRemoval     -> Closed: ReportFailure, Destroy
Completing        Disconnect        -> Closed: ReportFailure, Destroy
Completing        Close             -> Closed: Destroy
Completing        Deadline          -> Closed: ReportFailure, Destroy
Completing        Ready             -> Confirming: Establish
Completing        CallFailed        -> Closed: ReportFailure, Destroy
Confirming        ConnectError      -> Closed: ReportFailure, Destroy
Confirming        Unreachable       -> Closed: ReportFailure, Destroy
Confirming        Rejected          -> Closed: ReportFailure, Destroy
Confirming        Disconnected      -> Closed: ReportFailure, Destroy
Confirming        DeviceRemoval     -> Closed: ReportFailure, Destroy
Confirming        Disconnect        -> Closed: ReportFailure, Destroy
Confirming        Close             -> Closed: Destroy
Confirming        Deadline          -> Closed: ReportFailure, Destroy
Confirming        Confirmed         -> Up: ReportUp
Confirming        CallFailed        -> Closed: ReportFailure, Destroy
Requested         ConnectError      -> Closed: Destroy
Requested         Unreachable       -> Closed: Destroy
Requested         Rejected          -> Closed: Destroy
Requested         Disconnected      -> Closed: Destroy
Requested         DeviceRemoval     -> Closed: Destroy
Requested         Accept            -> Preparing: MakeReady
Requested         Reject            -> Closed: SendReject, Destroy
Requested         Close             -> Closed: SendReject, Destroy
Preparing         ConnectError      -> Closed: ReportFailure, Destroy
Preparing         Unreachable       -> Closed: ReportFailure, Destroy
Preparing         Rejected          -> Closed: ReportFailure, Destroy
Preparing         Disconnected      -> Closed: ReportFailure, Destroy
Preparing         DeviceRemoval     -> Closed: ReportFailure, Destroy
Preparing         Disconnect        -> Closed: SendReject, ReportFailure, Destroy
Preparing         Close             -> Closed: SendReject, Destroy
Preparing         Deadline          -> Closed: SendReject, ReportFailure, Destroy
Preparing         Ready             -> Accepting: SendAccept
Preparing         CallFailed        -> Closed: SendReject, ReportFailure, Destroy
Accepting         ConnectError      -> Closed: ReportFailure, Destroy
Accepting         Unreachable       -> Closed: ReportFailure, Destroy
Accepting         Rejected          -> Closed: ReportFailure, Destroy
Accepting         Established       -> Up: ReportUp
Accepting         Disconnected      -> Closed: SendDisconnect, ReportFailure, Destroy
Accepting         DeviceRemoval     -> Closed: ReportFailure, Destroy
Accepting         Disconnect        -> Closed: SendDisconnect, ReportFailure, Destroy
Accepting         Close             -> Closed: SendDisconnect, Destroy
Accepting         Deadline          -> Closed: SendDisconnect, ReportFailure, Destroy
Accepting         CallFailed        -> Closed: ReportFailure, Destroy
Up                ConnectError      -> Down: SendDisconnect, ReportDisconnected
Up                Unreachable       -> Down: SendDisconnect, ReportDisconnected
Up                Rejected          -> Down: SendDisconnect, ReportDisconnected
Up                Disconnected      -> Down: SendDisconnect, ReportDisconnected
Up                DeviceRemoval     -> Closed: ReportDisconnected, Destroy
Up                Disconnect        -> Leaving: SendDisconnect
Up                Close             -> Closed: SendDisconnect, Destroy
Leaving           Disconnected      -> Down: ReportDisconnected
Leaving           DeviceRemoval     -> Closed: Destroy
Leaving           Close             -> Closed: Destroy
Down              DeviceRemoval     -> Closed: Destroy
Down              Close             -> Closed: Destroy
Listening         ConnectRequest    -> Listening: DeliverRequest
Listening         DeviceRemoval     -> Closed: ReportListenerDead, Destroy
Listening         Close             -> Closed: Destroy
";

#[test]
fn the_table_is_this_one() {
    let mut table = String::new();
    for state in STATES {
        for input in inputs() {
            let (next, actions) = step(state, input);
            if next == state && actions.is_empty() {
                continue;
            }
            let input = match input {
                Input::Event(event) => format!("{event:?}"),
                other => format!("{other:?}"),
            };
            let actions: Vec<String> = actions.iter().map(|action| format!("{action:?}")).collect();
            let state = format!("{state:?}");
            writeln!(table, "{state:17} {input:17} -> {next:?}: {}", actions.join(", ")).unwrap();
        }
    }
    assert_eq!(table, TABLE, "the table as it is:\n{table}");
}

/// An id waits neither after the peer has answered nor before it was asked.
#[test]
fn id_waits_for_its_peer_until_an_event() {
    let mut waiting = Vec::new();
    for state in STATES {
        for input in inputs() {
            if waits_for_peer(state, input) {
                waiting.push((state, input));
                assert!(step(state, input).0 == State::Closed || input == Input::Disconnect);
            }
        }
    }
    // The removal of a device does not end an id's wait for its peer.
    let removed = Input::Event(Event::DeviceRemoval);
    let given_up = [Input::Disconnect, Input::Close, Input::Deadline, removed];
    assert_eq!(waiting.len(), 2 * given_up.len());
    for state in [State::Connecting, State::Accepting] {
        assert!(given_up.iter().all(|input| waiting.contains(&(state, *input))), "{state:?}");
    }
}

/// A caller that gives up has learned nothing about the peer.
#[test]
fn answer_ends_the_wait_of_a_connect() {
    let mut answers = 0;
    for state in STATES {
        for input in inputs().into_iter().filter(|input| is_answer(state, *input)) {
            answers += 1;
            assert!(state == State::Connecting && step(state, input).0 != state);
            assert!(matches!(input, Input::Event(_)) && !waits_for_peer(state, input));
        }
    }
    assert_eq!(answers, 6);
}

#[test]
fn s20_every_event_number_has_a_meaning() {
    let expected = [
        (0, Event::AddressResolved, Event::AddressError),
        (1, Event::AddressError, Event::AddressError),
        (2, Event::RouteResolved, Event::RouteError),
        (3, Event::RouteError, Event::RouteError),
        (4, Event::ConnectRequest, Event::ConnectRequest),
        (5, Event::ConnectResponse, Event::ConnectError),
        (6, Event::ConnectError, Event::ConnectError),
        (7, Event::Unreachable, Event::Unreachable),
        (8, Event::Rejected, Event::Rejected),
        (9, Event::Established, Event::ConnectError),
        (10, Event::Disconnected, Event::Disconnected),
        (11, Event::DeviceRemoval, Event::DeviceRemoval),
        (12, Event::Unknown(12), Event::Unknown(12)),
        (13, Event::Unknown(13), Event::Unknown(13)),
        (14, Event::AddressChange, Event::AddressChange),
        (15, Event::TimewaitExit, Event::TimewaitExit),
        (16, Event::Unknown(16), Event::Unknown(16)),
        (u32::MAX, Event::Unknown(u32::MAX), Event::Unknown(u32::MAX)),
    ];
    for (number, good, bad) in expected {
        assert_eq!(Event::from_number(number, 0), good);
        assert_eq!(Event::from_number(number, -110), bad);
        assert_eq!(Event::from_number(number, 28), bad);
    }
}

/// Runs inputs through the table; returns the last state and all actions.
fn run(start: State, inputs: &[Input]) -> (State, Vec<Action>) {
    let mut state = start;
    let mut actions = Vec::new();
    for input in inputs {
        let (next, step_actions) = step(state, *input);
        state = next;
        actions.extend_from_slice(step_actions);
    }
    (state, actions)
}

#[test]
fn s02_client_resolves_its_route_before_it_connects() {
    let events = [Event::AddressResolved, Event::RouteResolved].map(Input::Event);
    let (state, actions) = run(State::ResolvingAddress, &events);
    assert_eq!(
        (state, &actions[..]),
        (State::Routed, &[Action::ResolveRoute, Action::ReportResolved][..])
    );
    // A command that comes too early is not mistaken for a connect.
    let (state, actions) = run(State::ResolvingAddress, &[Input::Connect]);
    assert_eq!((state, &actions[..]), (State::ResolvingAddress, &[][..]));
}

#[test]
fn s03_qp_is_ready_before_the_accept_leaves() {
    let inputs = [Input::Accept, Input::Ready, Input::Event(Event::Established)];
    let (state, actions) = run(State::Requested, &inputs);
    assert_eq!(state, State::Up);
    assert_eq!(actions, [Action::MakeReady, Action::SendAccept, Action::ReportUp]);
}

#[test]
fn s15_a_connect_response_is_answered_by_us() {
    let response = Input::Event(Event::ConnectResponse);
    let inputs = [Input::Connect, response, Input::Ready, Input::Confirmed];
    let (state, actions) = run(State::Routed, &inputs);
    assert_eq!(state, State::Up);
    let expected = [Action::SendConnect, Action::MakeReady, Action::Establish, Action::ReportUp];
    assert_eq!(actions, expected);
}

#[test]
fn s16_nothing_waits_for_time_wait() {
    let with = [Input::Disconnect, Input::Event(Event::TimewaitExit), Input::Close];
    let without = [Input::Disconnect, Input::Close];
    assert_eq!(run(State::Up, &with), run(State::Up, &without));
}

#[test]
fn s17_disconnect_before_established_is_answered() {
    let (state, actions) =
        run(State::Up, &[Event::Disconnected, Event::Disconnected].map(Input::Event));
    assert_eq!(state, State::Down);
    assert_eq!(actions, [Action::SendDisconnect, Action::ReportDisconnected]);
    let (state, actions) =
        run(State::Accepting, &[Event::Disconnected, Event::Established].map(Input::Event));
    assert_eq!(state, State::Closed);
    assert_eq!(actions, [Action::SendDisconnect, Action::ReportFailure, Action::Destroy]);
}

#[test]
fn peer_leaving_after_the_flush_is_reported() {
    let gone = Input::Event(Event::Disconnected);
    let (state, actions) = run(State::Up, &[Input::Disconnect, gone, gone]);
    assert_eq!(state, State::Down);
    assert_eq!(actions, [Action::SendDisconnect, Action::ReportDisconnected]);
}

#[test]
fn refusal_after_the_flush_is_still_awaited() {
    let (state, actions) = run(State::Connecting, &[Input::Disconnect]);
    assert_eq!((state, &actions[..]), (State::Connecting, &[][..]), "the reason is on its way");
    let (state, actions) = run(state, &[Input::Event(Event::Rejected)]);
    assert_eq!(state, State::Closed);
    assert_eq!(actions, [Action::ReportFailure, Action::Destroy]);
}

/// The history, as far as the invariants depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Ledger {
    /// A command waits for its answer.
    pending: bool,
    owner_gone: bool,
    made_ready: bool,
    ready: bool,
    up: bool,
    disconnect_sent: bool,
    disconnect_reported: bool,
    destroyed: bool,
}

fn check(ledger: &mut Ledger, from: State, input: Input) -> State {
    let (next, actions) = step(from, input);
    let at = format!("{from:?} on {input:?} with {ledger:?}");
    match input {
        Input::Connect if from == State::Routed => ledger.pending = true,
        Input::Accept if from == State::Requested => ledger.pending = true,
        Input::Close => (ledger.owner_gone, ledger.pending) = (true, false),
        Input::Ready => ledger.ready |= ledger.made_ready,
        _ => {}
    }
    if ledger.destroyed {
        assert!(actions.is_empty() && next == State::Closed, "after the end: {at}");
    }
    for (index, action) in actions.iter().enumerate() {
        match action {
            Action::ReportUp | Action::ReportResolved => {
                assert!(ledger.pending, "an answer to nobody: {at}");
                ledger.pending = false;
                ledger.up |= *action == Action::ReportUp;
            }
            Action::ReportFailure => {
                // `CallFailed` is exempt: `ReportResolved` answers the command even if it fails, so
                // its `CallFailed` finds none pending, and the report goes to nobody.
                assert!(ledger.pending || input == Input::CallFailed, "an answer to nobody: {at}");
                ledger.pending = false;
            }
            Action::MakeReady => {
                assert!(!ledger.made_ready, "twice to RTS: {at}");
                ledger.made_ready = true;
            }
            Action::Establish | Action::SendAccept => assert!(ledger.ready, "{at}"),
            Action::SendDisconnect => {
                assert!(!ledger.disconnect_sent, "two disconnects: {at}");
                assert!(ledger.made_ready || ledger.up, "nothing to disconnect: {at}");
                ledger.disconnect_sent = true;
            }
            Action::ReportDisconnected => {
                assert!(ledger.up && !ledger.disconnect_reported, "{at}");
                ledger.disconnect_reported = true;
            }
            Action::Destroy => {
                assert!(index + 1 == actions.len() && next == State::Closed, "{at}");
                ledger.destroyed = true;
            }
            _ => {}
        }
    }
    assert_eq!(next == State::Closed, ledger.destroyed, "closed without the end: {at}");
    next
}

/// All orders of all inputs, of any length, by a search of the finitely many reachable states.
#[test]
fn every_order_of_inputs_keeps_the_invariants() {
    let mut visited = HashSet::new();
    let mut queue = VecDeque::new();
    for start in [State::ResolvingAddress, State::Requested, State::Listening] {
        let pending = start == State::ResolvingAddress;
        queue.push_back((start, Ledger { pending, ..Ledger::default() }));
    }
    let mut steps = 0;
    while let Some((state, ledger)) = queue.pop_front() {
        if !visited.insert((state, ledger)) {
            continue;
        }
        for input in inputs() {
            let mut after = ledger;
            let next = check(&mut after, state, input);
            steps += 1;
            queue.push_back((next, after));
        }
        // Invariant 2: when the deadline passes, a pending command is answered, whatever came
        // before.
        let mut after = ledger;
        check(&mut after, state, Input::Deadline);
        assert!(!after.pending, "{state:?} leaves its owner waiting: {ledger:?}");
        // When the owner has gone, the id is always closed.
        let mut after = ledger;
        assert_eq!(check(&mut after, state, Input::Close), State::Closed);
    }
    let reached: HashSet<State> = visited.iter().map(|(state, _)| *state).collect();
    assert_eq!(reached.len(), STATES.len(), "unreachable states in {steps} steps");
}
