//! The rdma_cm conversation of one id as a state table: maps state and input to the next state and
//! the actions to take. A *conversation* is everything that happens on one id, from creation to
//! destruction.
//!
//! Owns the order of the steps from an address to a connection, and from there to the destroyed id.
//! Pure: no device, no clock, no thread; [`step`] is a function of two enums, and
//! [`service`](super::service) carries its actions out.
//!
//! The QP is not attached to the id (`rdma_create_qp` is not used). librdmacm then leaves its state
//! transitions to this program, reports the peer's acceptance as CONNECT_RESPONSE instead of
//! ESTABLISHED, and waits for `rdma_establish`. So no call of librdmacm touches a QP, the CQ's
//! owner alone creates and destroys it, and this program sets every timer and retry count of the
//! QP.
//!
//! Invariants:
//! 1. [`Action::Destroy`] happens exactly once, last, on the way into [`State::Closed`], which is
//!    never left.
//! 2. Each command of the owner (resolve, connect, accept) is answered at most once, and at the
//!    latest when the deadline passes.
//! 3. [`Action::ReportDisconnected`] comes at most once, and only after [`Action::ReportUp`].
//! 4. [`Action::SendDisconnect`] comes at most once, and only when the peer may believe that it is
//!    connected.
//! 5. Input that arrives out of order is ignored or ends the conversation; it never panics.

/// State of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// Active: `rdma_resolve_addr` is in progress.
    ResolvingAddress,
    /// Active: `rdma_resolve_route` is in progress.
    ResolvingRoute,
    /// Active: the device is known and a QP can be created; nothing has been sent to the peer.
    Routed,
    /// Active: the REQ has been sent.
    Connecting,
    /// Active: the REP has arrived; this side's QP is on its way to RTS.
    Completing,
    /// Active: this side's QP is in RTS; the RTU is being sent.
    Confirming,
    /// Passive: a REQ waits for the owner's answer.
    Requested,
    /// Passive: the owner accepts; this side's QP is on its way to RTS.
    Preparing,
    /// Passive: the REP has been sent.
    Accepting,
    /// The connection is established.
    Up,
    /// The owner's QP is in ERR, and no event has reported yet that the peer is gone: on iWARP the
    /// device moves the QP, and its flush may be polled before that event arrives.
    Leaving,
    /// Disconnected; the id waits for the QP to be flushed and destroyed.
    Down,
    /// A listener.
    Listening,
    /// The id is destroyed.
    Closed,
}

/// An event of the kernel's connection manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// The address was resolved to a device.
    AddressResolved,
    /// Resolving failed: there is no device, or nobody answered for the address.
    AddressError,
    /// A path was found.
    RouteResolved,
    /// No path was found.
    RouteError,
    /// A peer requests a connection (on a listener; the event brings a new id).
    ConnectRequest,
    /// The peer has accepted; this program moves the QP.
    ConnectResponse,
    /// Set-up failed midway.
    ConnectError,
    /// The peer's connection manager did not reply, or its neighbour entry changed.
    Unreachable,
    /// The peer's connection manager or its application refused.
    Rejected,
    /// The peer has this side's reply (passive), or the device needs no transitions (iWARP,
    /// active).
    Established,
    /// The peer has disconnected, or its process is gone.
    Disconnected,
    /// The device is being removed.
    DeviceRemoval,
    /// The network device behind the address has changed.
    AddressChange,
    /// The connection's time-wait is over.
    TimewaitExit,
    /// A multicast event, or one that this program does not know.
    Unknown(u32),
}

impl Event {
    /// Translates a number of `enum rdma_cm_event_type`. An event that announces success but has a
    /// failed status becomes the corresponding failure.
    pub(super) fn from_number(number: u32, status: i32) -> Self {
        match (number, status) {
            (0, 0) => Self::AddressResolved,
            (0 | 1, _) => Self::AddressError,
            (2, 0) => Self::RouteResolved,
            (2 | 3, _) => Self::RouteError,
            (4, _) => Self::ConnectRequest,
            (5, 0) => Self::ConnectResponse,
            (9, 0) => Self::Established,
            (5 | 6 | 9, _) => Self::ConnectError,
            (7, _) => Self::Unreachable,
            (8, _) => Self::Rejected,
            (10, _) => Self::Disconnected,
            (11, _) => Self::DeviceRemoval,
            (14, _) => Self::AddressChange,
            (15, _) => Self::TimewaitExit,
            (other, _) => Self::Unknown(other),
        }
    }
}

/// Input of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Input {
    /// An event of the kernel's connection manager.
    Event(Event),
    /// The owner asks to send the REQ.
    Connect,
    /// The owner accepts the REQ.
    Accept,
    /// The owner refuses the REQ.
    Reject,
    /// The owner's QP is in ERR.
    Disconnect,
    /// The owner has dropped the connection.
    Close,
    /// The time limit of the pending step has passed.
    Deadline,
    /// [`Action::MakeReady`] has succeeded.
    Ready,
    /// [`Action::Establish`] has succeeded.
    Confirmed,
    /// An action failed.
    CallFailed,
}

/// Actions to carry out, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// `rdma_resolve_route`.
    ResolveRoute,
    /// Report the device and the QP's attributes to the owner.
    ReportResolved,
    /// `rdma_connect`.
    SendConnect,
    /// Have a worker move the QP through RTR to RTS, which takes time; then [`Input::Ready`] or
    /// [`Input::CallFailed`].
    MakeReady,
    /// `rdma_establish`: sends the RTU; then [`Input::Confirmed`].
    Establish,
    /// `rdma_accept`.
    SendAccept,
    /// `rdma_reject`.
    SendReject,
    /// `rdma_disconnect`. If it fails, nothing changes.
    SendDisconnect,
    /// Report to the owner that the connection is established.
    ReportUp,
    /// Report to the owner that its command has failed.
    ReportFailure,
    /// Report to the CQ's owner that the peer is gone.
    ReportDisconnected,
    /// Hand the new id to the listener's owner.
    DeliverRequest,
    /// Report to the listener's owner that the listener is dead.
    ReportListenerDead,
    /// `rdma_destroy_id`.
    Destroy,
}

/// The next state, and the actions to take on the way.
pub(super) type Step = (State, &'static [Action]);

/// The state table.
pub(super) fn step(state: State, input: Input) -> Step {
    match state {
        State::ResolvingAddress => resolving_address(input),
        State::ResolvingRoute => resolving_route(input),
        State::Routed => routed(input),
        State::Connecting => connecting(input),
        State::Completing => completing(input),
        State::Confirming => confirming(input),
        State::Requested => requested(input),
        State::Preparing => preparing(input),
        State::Accepting => accepting(input),
        State::Up => up(input),
        State::Leaving => leaving(input),
        State::Down => down(input),
        State::Listening => listening(input),
        State::Closed => (State::Closed, &[]),
    }
}

/// Whether an id that this input ends still waits for its peer. Over iWARP the kernel then blocks
/// the thread that destroys or disconnects the id, until the peer answers or the device gives up
/// (linux, iwcm.c, `IWCM_F_CONNECT_WAIT`). The removal of a device does not end that wait.
pub(super) fn waits_for_peer(state: State, input: Input) -> bool {
    matches!(state, State::Connecting | State::Accepting)
        && matches!(
            input,
            Input::Deadline | Input::Close | Input::Disconnect | Input::Event(Event::DeviceRemoval)
        )
}

/// Whether an input means that the peer or the device has answered a connect: a call that waits for
/// the answer then returns.
pub(super) fn is_answer(state: State, input: Input) -> bool {
    use Event as E;
    state == State::Connecting
        && matches!(
            input,
            Input::Event(
                E::Established
                    | E::ConnectResponse
                    | E::Rejected
                    | E::Unreachable
                    | E::ConnectError
                    | E::Disconnected
            )
        )
}

/// The pending command has failed.
const FAILED: Step = (State::Closed, &[Action::ReportFailure, Action::Destroy]);
/// The conversation ends while no command is pending.
const ENDED: Step = (State::Closed, &[Action::Destroy]);

fn resolving_address(input: Input) -> Step {
    use Event as E;
    match input {
        Input::Event(E::AddressResolved) => (State::ResolvingRoute, &[Action::ResolveRoute]),
        Input::Event(E::AddressError | E::DeviceRemoval) => FAILED,
        Input::Deadline | Input::CallFailed => FAILED,
        Input::Close => ENDED,
        _ => (State::ResolvingAddress, &[]),
    }
}

fn resolving_route(input: Input) -> Step {
    use Event as E;
    match input {
        Input::Event(E::RouteResolved) => (State::Routed, &[Action::ReportResolved]),
        Input::Event(E::RouteError | E::AddressError | E::Unreachable | E::DeviceRemoval) => FAILED,
        Input::Deadline | Input::CallFailed => FAILED,
        Input::Close => ENDED,
        _ => (State::ResolvingRoute, &[]),
    }
}

fn routed(input: Input) -> Step {
    use Event as E;
    match input {
        Input::Connect => (State::Connecting, &[Action::SendConnect]),
        // No command is pending now; a later one finds the conversation closed.
        Input::Event(E::DeviceRemoval | E::Unreachable) => ENDED,
        Input::Close => ENDED,
        Input::CallFailed => FAILED,
        _ => (State::Routed, &[]),
    }
}

fn connecting(input: Input) -> Step {
    use Event as E;
    match input {
        Input::Event(E::ConnectResponse) => (State::Completing, &[Action::MakeReady]),
        Input::Event(E::Established) => (State::Up, &[Action::ReportUp]),
        Input::Event(E::Rejected | E::Unreachable | E::ConnectError) => FAILED,
        Input::Event(E::Disconnected | E::DeviceRemoval) => FAILED,
        Input::Deadline | Input::CallFailed => FAILED,
        Input::Close => ENDED,
        // Not `Disconnect`: an iWARP device fails the QP of a refused connection, and its flush may
        // be polled before the event that carries the reason.
        _ => (State::Connecting, &[]),
    }
}

fn completing(input: Input) -> Step {
    use Event as E;
    match input {
        Input::Ready => (State::Confirming, &[Action::Establish]),
        Input::Event(E::Rejected | E::Unreachable | E::ConnectError) => FAILED,
        Input::Event(E::Disconnected | E::DeviceRemoval) => FAILED,
        Input::Deadline | Input::CallFailed | Input::Disconnect => FAILED,
        Input::Close => ENDED,
        _ => (State::Completing, &[]),
    }
}

fn confirming(input: Input) -> Step {
    match input {
        Input::Confirmed => (State::Up, &[Action::ReportUp]),
        // As in `Completing`; the QP is in RTS already.
        Input::Ready => (State::Confirming, &[]),
        other => match completing(other) {
            (State::Completing, none) => (State::Confirming, none),
            ended => ended,
        },
    }
}

fn requested(input: Input) -> Step {
    use Event as E;
    match input {
        Input::Accept => (State::Preparing, &[Action::MakeReady]),
        Input::Reject | Input::Close => (State::Closed, &[Action::SendReject, Action::Destroy]),
        Input::Event(E::Rejected | E::Unreachable | E::ConnectError) => ENDED,
        Input::Event(E::Disconnected | E::DeviceRemoval) => ENDED,
        _ => (State::Requested, &[]),
    }
}

fn preparing(input: Input) -> Step {
    use Event as E;
    match input {
        Input::Ready => (State::Accepting, &[Action::SendAccept]),
        Input::Event(E::Rejected | E::Unreachable | E::ConnectError) => FAILED,
        Input::Event(E::Disconnected | E::DeviceRemoval) => FAILED,
        Input::CallFailed | Input::Deadline | Input::Disconnect => {
            (State::Closed, &[Action::SendReject, Action::ReportFailure, Action::Destroy])
        }
        Input::Close => (State::Closed, &[Action::SendReject, Action::Destroy]),
        _ => (State::Preparing, &[]),
    }
}

fn accepting(input: Input) -> Step {
    use Event as E;
    match input {
        Input::Event(E::Established) => (State::Up, &[Action::ReportUp]),
        Input::Event(E::Rejected | E::Unreachable | E::ConnectError) => FAILED,
        Input::Event(E::DeviceRemoval) => FAILED,
        // The peer may have connected, finished and left before this side saw its RTU.
        Input::Event(E::Disconnected) => {
            (State::Closed, &[Action::SendDisconnect, Action::ReportFailure, Action::Destroy])
        }
        Input::CallFailed => FAILED,
        Input::Deadline | Input::Disconnect => {
            (State::Closed, &[Action::SendDisconnect, Action::ReportFailure, Action::Destroy])
        }
        Input::Close => (State::Closed, &[Action::SendDisconnect, Action::Destroy]),
        _ => (State::Accepting, &[]),
    }
}

fn up(input: Input) -> Step {
    use Event as E;
    const LOST: Step = (State::Down, &[Action::SendDisconnect, Action::ReportDisconnected]);
    match input {
        // A client's QP stays in RTS until it disconnects too (S17).
        Input::Event(E::Disconnected) => LOST,
        // Late events: the neighbour entry changed, or the peer never received this side's RTU.
        Input::Event(E::Unreachable | E::Rejected | E::ConnectError) => LOST,
        Input::Event(E::DeviceRemoval) => {
            (State::Closed, &[Action::ReportDisconnected, Action::Destroy])
        }
        Input::Disconnect => (State::Leaving, &[Action::SendDisconnect]),
        Input::Close => (State::Closed, &[Action::SendDisconnect, Action::Destroy]),
        _ => (State::Up, &[]),
    }
}

fn leaving(input: Input) -> Step {
    match input {
        Input::Event(Event::Disconnected) => (State::Down, &[Action::ReportDisconnected]),
        other => match down(other) {
            (State::Down, none) => (State::Leaving, none),
            ended => ended,
        },
    }
}

fn down(input: Input) -> Step {
    match input {
        // TIMEWAIT_EXIT may or may not come (S16), so nothing waits for it.
        Input::Close | Input::Event(Event::DeviceRemoval) => ENDED,
        _ => (State::Down, &[]),
    }
}

fn listening(input: Input) -> Step {
    match input {
        Input::Event(Event::ConnectRequest) => (State::Listening, &[Action::DeliverRequest]),
        Input::Event(Event::DeviceRemoval) => {
            (State::Closed, &[Action::ReportListenerDead, Action::Destroy])
        }
        Input::Close => ENDED,
        _ => (State::Listening, &[]),
    }
}

#[cfg(test)]
mod tests;
