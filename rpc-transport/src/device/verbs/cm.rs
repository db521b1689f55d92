//! The rdma_cm conversation of one id, as a table: what comes in, what is to be done about it.
//!
//! Owns the order of the steps from an address to a connection and back to nothing. Pure: no
//! device, no clock, no thread; [`step`] is a function of two enums, and [`service`](super::service)
//! carries its actions out.
//!
//! The QP is not attached to the id (`rdma_create_qp` is not used): librdmacm then leaves its
//! transitions to us, reports the peer's agreement as CONNECT_RESPONSE instead of ESTABLISHED, and
//! waits for `rdma_establish`. So no call of librdmacm touches a QP, which lives and dies with its
//! CQ's owner, and every timer and retry count of the QP is ours to set.
//!
//! Invariants:
//! 1. [`Action::Destroy`] happens exactly once, last, on the way into [`State::Closed`], out of
//!    which nothing leads.
//! 2. Each wish of the owner (resolve, connect, accept) is answered at most once, and answered for
//!    certain when the deadline passes.
//! 3. [`Action::ReportDisconnected`] comes at most once, after [`Action::ReportUp`] only.
//! 4. [`Action::SendDisconnect`] comes at most once, and only when the peer may believe in a
//!    connection.
//! 5. Whatever arrives out of order is ignored or ends the conversation; it never panics.

/// Where a conversation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// Active: `rdma_resolve_addr` is under way.
    ResolvingAddress,
    /// Active: `rdma_resolve_route` is under way.
    ResolvingRoute,
    /// Active: the device is known and a QP can be made; the peer knows nothing yet.
    Routed,
    /// Active: the REQ is out.
    Connecting,
    /// Active: the REP is here, our QP is on its way to RTS.
    Completing,
    /// Passive: a REQ waits for the owner's answer.
    Requested,
    /// Passive: the owner agrees, our QP is on its way to RTS.
    Preparing,
    /// Passive: the REP is out.
    Accepting,
    /// Both sides agree.
    Up,
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
    /// The address has a device.
    AddressResolved,
    /// It has none, or nobody answered for it.
    AddressError,
    /// There is a path.
    RouteResolved,
    /// There is none.
    RouteError,
    /// A peer wants to connect (on a listener; a new id comes with it).
    ConnectRequest,
    /// The peer has accepted; the QP is ours to move.
    ConnectResponse,
    /// Set-up failed on the way.
    ConnectError,
    /// No reply of the peer's connection manager, or its neighbour entry changed.
    Unreachable,
    /// The peer's connection manager or its application refused.
    Rejected,
    /// The peer has our reply (passive), or the device needs no transitions (iWARP, active).
    Established,
    /// The peer has disconnected, or its process is gone.
    Disconnected,
    /// The device goes away.
    DeviceRemoval,
    /// The network device behind the address has changed.
    AddressChange,
    /// The connection's time-wait is over.
    TimewaitExit,
    /// Multicast, or newer than this program.
    Unknown(u32),
}

impl Event {
    /// Every event by the number of `enum rdma_cm_event_type`. An event that announces success with
    /// a failed status is the failure that it hides.
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

/// What a conversation is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Input {
    /// The kernel says.
    Event(Event),
    /// The owner wishes to send the REQ.
    Connect,
    /// The owner wishes to accept the REQ.
    Accept,
    /// The owner refuses the REQ.
    Reject,
    /// The owner's QP is in ERR.
    Disconnect,
    /// The owner is gone.
    Close,
    /// The time for the pending step is over.
    Deadline,
    /// All actions that came with [`Action::MakeReady`] have succeeded.
    Ready,
    /// An action failed.
    CallFailed,
}

/// What is to be done, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// `rdma_resolve_route`.
    ResolveRoute,
    /// Tell the owner the device and the QP's attributes.
    ReportResolved,
    /// `rdma_connect`.
    SendConnect,
    /// Move the QP through RTR to RTS; then [`Input::Ready`].
    MakeReady,
    /// `rdma_establish`: sends the RTU.
    Establish,
    /// `rdma_accept`.
    SendAccept,
    /// `rdma_reject`.
    SendReject,
    /// `rdma_disconnect`. Its failure changes nothing.
    SendDisconnect,
    /// Tell the owner that the connection stands.
    ReportUp,
    /// Tell the owner that its wish cannot be fulfilled.
    ReportFailure,
    /// Tell the CQ's owner that the peer is gone.
    ReportDisconnected,
    /// Hand the new id to the listener's owner.
    DeliverRequest,
    /// Tell the listener's owner that it is dead.
    ReportListenerDead,
    /// `rdma_destroy_id`.
    Destroy,
}

/// The next state, and what to do on the way.
pub(super) type Step = (State, &'static [Action]);

/// The table.
pub(super) fn step(state: State, input: Input) -> Step {
    match state {
        State::ResolvingAddress => resolving_address(input),
        State::ResolvingRoute => resolving_route(input),
        State::Routed => routed(input),
        State::Connecting => connecting(input),
        State::Completing => completing(input),
        State::Requested => requested(input),
        State::Preparing => preparing(input),
        State::Accepting => accepting(input),
        State::Up => up(input),
        State::Down => down(input),
        State::Listening => listening(input),
        State::Closed => (State::Closed, &[]),
    }
}

/// The pending wish cannot be fulfilled.
const FAILED: Step = (State::Closed, &[Action::ReportFailure, Action::Destroy]);
/// The conversation ends while no wish is pending.
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
        // Nobody waits for an answer now; a later wish finds the conversation closed.
        Input::Event(E::DeviceRemoval | E::Unreachable) => ENDED,
        Input::Close => ENDED,
        Input::CallFailed => FAILED,
        _ => (State::Routed, &[]),
    }
}

fn connecting(input: Input) -> Step {
    use Event as E;
    match input {
        Input::Event(E::ConnectResponse) => {
            (State::Completing, &[Action::MakeReady, Action::Establish])
        }
        Input::Event(E::Established) => (State::Up, &[Action::ReportUp]),
        Input::Event(E::Rejected | E::Unreachable | E::ConnectError) => FAILED,
        Input::Event(E::Disconnected | E::DeviceRemoval) => FAILED,
        Input::Deadline | Input::CallFailed | Input::Disconnect => FAILED,
        Input::Close => ENDED,
        _ => (State::Connecting, &[]),
    }
}

fn completing(input: Input) -> Step {
    use Event as E;
    match input {
        Input::Ready => (State::Up, &[Action::ReportUp]),
        Input::Event(E::Rejected | E::Unreachable | E::ConnectError) => FAILED,
        Input::Event(E::Disconnected | E::DeviceRemoval) => FAILED,
        Input::Deadline | Input::CallFailed | Input::Disconnect => FAILED,
        Input::Close => ENDED,
        _ => (State::Completing, &[]),
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
        // The peer may have connected, done its business and left before its RTU was seen.
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
        // Late: the neighbour entry changed, or the other side never got our RTU.
        Input::Event(E::Unreachable | E::Rejected | E::ConnectError) => LOST,
        Input::Event(E::DeviceRemoval) => {
            (State::Closed, &[Action::ReportDisconnected, Action::Destroy])
        }
        Input::Disconnect => (State::Down, &[Action::SendDisconnect]),
        Input::Close => (State::Closed, &[Action::SendDisconnect, Action::Destroy]),
        _ => (State::Up, &[]),
    }
}

fn down(input: Input) -> Step {
    match input {
        // TIMEWAIT_EXIT may come or not (S16): nothing waits for it.
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
