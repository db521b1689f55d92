//! The connection manager's thread: takes events and commands, and carries out the actions of the
//! state table.
//!
//! Owns every id, the deadlines, and the reading of asynchronous device events. Decides nothing:
//! [`cm`](super::cm) says what follows from an event.
//!
//! Invariants:
//! 1. A call that fails becomes an input of the table, except where the table says that its failure
//!    changes nothing.
//! 2. The thread sleeps unless there is an event, a command, or a deadline that has passed.
//! 3. No command waits for another: nothing here blocks on a peer. What would, over iWARP, has
//!    threads of its own ([`blocking_pool`](super::blocking_pool)).
//! 4. There is one thread and one event channel per process, started with the first command and
//!    kept.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::device::REQ_PRIVATE_DATA_BYTES;
use crate::log_limit::LogLimit;
use crate::wait::after;

use super::async_events;
use super::blocking_pool::{self, BlockingPool};
use super::cm::{self, Action, Event, Input, State};
use super::cm_id::{CmChannel, CmEvent, CmId, DeferredDestroy, Dial};
use super::conversation::{Conversation, Waiting, ignore, resolve_device};
use super::device::{self, VerbsDevice};
use super::due::Due;
use super::failure::{CONNECT, Failure, RESOLVE_ADDRESS};
use super::id_link::{IdKey, IdLink};
use super::inherited;
use super::options::SetupOptions;
use super::queue_pair::ReadDepths;
use super::reaper::Token;
use super::service::{Answer, Command, Request, Resolved, Service, SetupQp, send_answer};
use super::tcp_port::MOST_PORTS;
use super::workers;

/// Most events taken before commands and deadlines are handled.
const EVENTS_PER_ROUND: usize = 256;
/// Added to the resolve timeout, so that the kernel's own timer fires first: its error is more
/// precise.
const RESOLVE_SLACK: Duration = Duration::from_millis(500);

/// Name of the failed step, for errors.
const READY_QUEUE_PAIR: &str = "ready queue pair";

static REFUSED: LogLimit = LogLimit::new("refused connection requests");

static SERVICE: Mutex<Option<&'static Service>> = Mutex::new(None);

/// The handle to the thread, which is started if necessary (invariant 4).
///
/// # Errors
/// When the machine has no connection manager, or this process may not use it. The next call tries
/// again.
pub(super) fn service() -> io::Result<&'static Service> {
    inherited::check()?;
    let mut service = SERVICE.lock();
    if let Some(service) = *service {
        return Ok(service);
    }
    let channel = CmChannel::open()?;
    let started: &'static Service = Box::leak(Box::new(Service::new()?));
    let thread = std::thread::Builder::new().name("rdma-cm".to_owned());
    thread.spawn(move || Dispatcher::new(started, channel).run())?;
    *service = Some(started);
    Ok(started)
}

/// The thread's state.
struct Dispatcher {
    service: &'static Service,
    conversations: HashMap<IdKey, Conversation>,
    deadlines: Due,
    dials: BlockingPool<Dial>,
    /// Of those dials that are out and have their answer: they have their queue pairs for a moment
    /// more.
    answered: HashMap<IdKey, Token>,
    destroys: BlockingPool<DeferredDestroy>,
    // Declared after the ids, so that they are dropped first.
    channel: CmChannel,
}

impl Dispatcher {
    /// Creates the thread's state.
    fn new(service: &'static Service, channel: CmChannel) -> Self {
        // Connecting and destroying an id wait for a peer. They have threads of their own, as the
        // threads of [`workers`] are few.
        let dials = BlockingPool::new(move |key, dial: Dial| {
            let builder = thread::Builder::new().name("rdma-dial".to_owned());
            blocking_pool::in_thread(builder, dial, move |dial| {
                let outcome = dial.run();
                service.send(Command::Dialed { key, dial, outcome });
            })
        });
        let destroys = BlockingPool::new(move |key, destroy: DeferredDestroy| {
            let builder = thread::Builder::new().name("rdma-destroy".to_owned());
            blocking_pool::in_thread(builder, destroy, move |destroy| {
                drop(destroy);
                service.send(Command::Destroyed { key });
            })
        });
        Self {
            service,
            conversations: HashMap::new(),
            deadlines: Due::default(),
            dials,
            answered: HashMap::new(),
            destroys,
            channel,
        }
    }

    /// Runs until the process ends.
    fn run(mut self) {
        let mut commands = Vec::new();
        loop {
            let with_news = self.sleep();
            self.service.take(&mut commands);
            for command in commands.drain(..) {
                self.on_command(command);
            }
            self.take_events();
            self.run_deadlines();
            for device in with_news {
                self.take_device_events(&device);
            }
        }
    }

    /// Waits for something to do (invariant 2). Returns the devices that have asynchronous events.
    fn sleep(&self) -> Vec<Arc<VerbsDevice>> {
        let devices = device::opened();
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.service.bell(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.channel.fd(), PollFlags::IN),
        ];
        fds.extend(devices.iter().map(|device| {
            PollFd::from_borrowed_fd(device::async_fd(device.context()), PollFlags::IN)
        }));
        let wait = self.deadlines.next().map(|at| {
            // Rounded up, so that the thread does not wake just before the deadline.
            let rest = at.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            let tv_sec = i64::try_from(rest.as_secs()).unwrap_or(i64::MAX);
            Timespec { tv_sec, tv_nsec: i64::from(rest.subsec_nanos()) }
        });
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Out of memory: the next round tries again.
            Err(error) => {
                tracing::warn!(%error, "poll failed on the connection manager's thread");
                std::thread::yield_now();
            }
        }
        let has_news: Vec<bool> = fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        devices
            .into_iter()
            .zip(has_news)
            .filter_map(|(device, news)| news.then_some(device))
            .collect()
    }

    fn take_events(&mut self) {
        for _ in 0..EVENTS_PER_ROUND {
            match self.channel.next_event() {
                Ok(Some(event)) => self.on_event(event),
                Ok(None) => return,
                Err(error) => {
                    tracing::warn!(%error, "no event from the connection manager");
                    return;
                }
            }
        }
    }

    fn take_device_events(&mut self, device: &Arc<VerbsDevice>) {
        match async_events::drain(device.context()) {
            Ok(established) => {
                for key in established {
                    // The QP has received something before the connection was reported as
                    // established: the RTU may be lost.
                    let Some(conversation) = self.conversations.get(&key) else { continue };
                    if conversation.state == State::Accepting {
                        ignore("notify", conversation.id.notify_established());
                    }
                }
            }
            Err(error) => {
                tracing::warn!(device = device.context().name(), %error, "device removed");
                // Otherwise its fd would stay readable and the thread would never sleep (invariant
                // 2).
                device::forget(device);
            }
        }
    }

    fn on_event(&mut self, event: CmEvent) {
        let kind = Event::from_number(event.number, event.status);
        tracing::trace!(?event, ?kind, "connection manager event");
        if let Event::Unknown(number) = kind {
            tracing::debug!(number, "unknown event of the connection manager ignored");
        }
        let CmEvent { key, new_id, private_data, depths, status, .. } = event;
        if let Some(id) = new_id {
            self.on_request(key, id, private_data, depths);
            return;
        }
        let Some(conversation) = self.conversations.get_mut(&key) else { return };
        if kind == Event::ConnectResponse || kind == Event::Established {
            conversation.reply = private_data;
        } else {
            conversation.failure = Some(Failure::Event { event: kind, status, private_data });
        }
        self.input(key, Input::Event(kind));
        // The event was ignored, so it must not appear as the cause of a later failure.
        if let Some(conversation) = self.conversations.get_mut(&key) {
            conversation.failure = None;
        }
    }

    /// A REQ has arrived: gives the new id a key and a conversation. If its listener is gone or its
    /// queue is full, dropping the [`IdLink`] created here refuses the peer.
    fn on_request(&mut self, listener: IdKey, id: CmId, data: Vec<u8>, depths: ReadDepths) {
        let Some(parent) = self.conversations.get(&listener) else { return };
        let (_, actions) = cm::step(parent.state, Input::Event(Event::ConnectRequest));
        let Waiting::Listener(requests) = &parent.waiting else { return };
        if !actions.contains(&Action::DeliverRequest) {
            return;
        }
        if self.destroys.is_overloaded() {
            REFUSED.fault(Instant::now(), || {
                tracing::warn!("connection request refused: too many peers do not complete theirs");
            });
            return;
        }
        let (requests, options) = (requests.clone(), Arc::clone(&parent.options));
        let mut id = id;
        let key = IdKey::fresh();
        id.set_key(key);
        let resolved = resolve_device(&id, &options);
        let mut conversation = Conversation::new(id, State::Requested, options);
        let device = resolved.as_ref().ok().map(|resolved| Arc::clone(&resolved.device));
        conversation.set_offer(depths, device);
        self.conversations.insert(key, conversation);
        let link = IdLink::new(self.service, key);
        let mut private_data = data;
        private_data.resize(REQ_PRIVATE_DATA_BYTES, 0);
        let request = match resolved {
            Ok(resolved) => Request { link, resolved, private_data },
            Err(failure) => {
                tracing::warn!(?failure, "a connection request arrived on an unusable device");
                return;
            }
        };
        match requests.try_send(Ok(request)) {
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => {
                REFUSED.fault(Instant::now(), || {
                    tracing::warn!(
                        "connection request refused: too many are waiting to be accepted"
                    );
                });
            }
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Resolve { key, from, to, options, answer } => {
                self.start_resolving(key, from, to, options, answer);
            }
            Command::Listen { key, at, options, requests, answer } => {
                // Sending fails only if the caller has given up; the caller then closes the id.
                send_answer(answer, self.start_listening(key, at, options, requests));
            }
            Command::Connect { key, qp, private_data, answer } => {
                self.request(key, Input::Connect, qp, private_data, answer);
            }
            Command::Accept { key, qp, private_data, answer } => {
                self.request(key, Input::Accept, qp, private_data, answer);
            }
            Command::Reject { key, private_data, done } => {
                if let Some(conversation) = self.conversations.get_mut(&key) {
                    conversation.private_data = private_data;
                }
                self.input(key, Input::Reject);
                // Fails only if the caller has stopped waiting.
                send_answer(done, ());
            }
            Command::Ready { key, outcome } => match outcome {
                Ok(()) => self.input(key, Input::Ready),
                Err(error) => self.call_failed(key, READY_QUEUE_PAIR, error),
            },
            Command::Dialed { key, dial, outcome } => {
                if let Err(error) = outcome {
                    self.call_failed(key, CONNECT, error);
                }
                // If its conversation has ended meanwhile, the peer has been asked for nobody.
                self.destroy_elsewhere(key, dial.deferred_destroy());
                // Behind its queue pair, which has taken its own if nobody else has it.
                self.answered.remove(&key);
                for (key, error) in self.dials.on_done(key) {
                    self.call_failed(key, CONNECT, error);
                }
            }
            Command::Destroyed { key } => {
                // Those that have failed are destroyed.
                let _ = self.destroys.on_done(key);
            }
            Command::Disconnect { key } => self.input(key, Input::Disconnect),
            Command::Close { key, token } => {
                self.input(key, Input::Close);
                drop(token);
            }
        }
    }

    fn start_resolving(
        &mut self,
        key: IdKey,
        from: Option<SocketAddr>,
        to: SocketAddr,
        options: Arc<SetupOptions>,
        answer: Answer<Resolved>,
    ) {
        let id = match CmId::create(&self.channel, key) {
            Ok(id) => id,
            Err(error) => {
                // Fails only if the caller has stopped waiting.
                send_answer(answer, Err(Failure::Call { what: "create connection id", error }));
                return;
            }
        };
        let class = options.traffic_class.map_or(Ok(()), |class| id.set_traffic_class(class));
        let started = class.and_then(|()| id.resolve_address(from, to, options.resolve_timeout));
        let mut conversation = Conversation::new(id, State::ResolvingAddress, options);
        conversation.waiting = Waiting::Resolve(answer);
        self.conversations.insert(key, conversation);
        match started {
            Ok(()) => self.set_deadline(key),
            Err(error) => self.call_failed(key, RESOLVE_ADDRESS, error),
        }
    }

    fn start_listening(
        &mut self,
        key: IdKey,
        at: SocketAddr,
        options: Arc<SetupOptions>,
        requests: mpsc::Sender<Result<Request, Failure>>,
    ) -> Result<SocketAddr, Failure> {
        let id = self.listening_id(key, at, &options)?;
        let bound = id.local_address().unwrap_or(at);
        let mut conversation = Conversation::new(id, State::Listening, options);
        conversation.waiting = Waiting::Listener(requests);
        self.conversations.insert(key, conversation);
        Ok(bound)
    }

    fn listening_id(
        &self,
        key: IdKey,
        at: SocketAddr,
        options: &SetupOptions,
    ) -> Result<CmId, Failure> {
        let failed = |what| move |error| Failure::Call { what, error };
        let mut tries = 0;
        loop {
            let id = CmId::create(&self.channel, key).map_err(failed("create connection id"))?;
            if let Some(class) = options.traffic_class {
                id.set_traffic_class(class).map_err(failed("set the traffic class"))?;
            }
            if let Err(error) = id.bind(at) {
                let error = self.why_not_bound(key, at, error);
                return Err(Failure::Call { what: "bind", error });
            }
            tries += 1;
            match id.listen(options.backlog) {
                // Over software iWARP a port that the system chose may be one that TCP has given to
                // another socket.
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse
                        && at.port() == 0
                        && tries < MOST_PORTS => {}
                listening => return listening.map(|()| id).map_err(failed("listen")),
            }
        }
    }

    /// Explains a failed bind. The kernel also reports an address as not available when its port is
    /// taken by a listener of the other kind (wildcard or specific); in that case binding to the
    /// address with port 0 succeeds.
    fn why_not_bound(&self, key: IdKey, at: SocketAddr, error: io::Error) -> io::Error {
        if error.kind() != io::ErrorKind::AddrNotAvailable || at.port() == 0 {
            return error;
        }
        let any_port = SocketAddr::new(at.ip(), 0);
        let bound = CmId::create(&self.channel, key).and_then(|id| id.bind(any_port));
        if bound.is_ok() { io::ErrorKind::AddrInUse.into() } else { error }
    }

    fn request(
        &mut self,
        key: IdKey,
        input: Input,
        qp: SetupQp,
        private_data: Vec<u8>,
        answer: Answer<Vec<u8>>,
    ) {
        let Some(conversation) = self.conversations.get_mut(&key) else {
            // Fails only if the caller has stopped waiting.
            send_answer(answer, Err(Failure::Gone));
            return;
        };
        conversation.qp = Some(qp);
        conversation.private_data = private_data;
        conversation.waiting = Waiting::Outcome(answer);
        self.input(key, input);
    }

    fn run_deadlines(&mut self) {
        let now = Instant::now();
        while let Some(key) = self.deadlines.pop(now) {
            let Some(conversation) = self.conversations.get_mut(&key) else { continue };
            if let Some((_, limit)) = conversation.deadline {
                conversation.failure = Some(Failure::Deadline(limit));
                self.input(key, Input::Deadline);
            }
        }
    }

    fn call_failed(&mut self, key: IdKey, what: &'static str, error: io::Error) {
        if let Some(conversation) = self.conversations.get_mut(&key) {
            conversation.failure = Some(Failure::Call { what, error });
        }
        self.input(key, Input::CallFailed);
    }

    /// Feeds an input to the table and carries out its actions, and repeats this with the inputs
    /// that they produce.
    fn input(&mut self, key: IdKey, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let Some(conversation) = self.conversations.get_mut(&key) else { return };
            if cm::is_answer(conversation.state, input) && self.dials.is_running(key) {
                self.answered.insert(key, Token::take());
            }
            let (next, actions) = cm::step(conversation.state, input);
            let is_kept =
                cm::waits_for_peer(conversation.state, input) && conversation.waits_in_destroy();
            if next != conversation.state {
                tracing::trace!(?key, from = ?conversation.state, ?input, ?next, ?actions);
                conversation.state = next;
                self.set_deadline(key);
            }
            if let Some(follow_up) = self.carry_out(key, actions, is_kept) {
                inputs.push_back(follow_up);
            }
        }
    }

    /// `is_kept`: disconnecting or destroying the id waits until the peer answers.
    fn carry_out(&mut self, key: IdKey, actions: &[Action], is_kept: bool) -> Option<Input> {
        for action in actions {
            if *action == Action::Destroy {
                let conversation = self.conversations.remove(&key)?;
                self.deadlines.set(key, None);
                // A queued connect has asked no peer yet.
                let was_queued = self.dials.cancel(key);
                if is_kept && !was_queued {
                    self.destroy_elsewhere(key, conversation.id.deferred_destroy());
                }
                // Otherwise dropping the conversation destroys the id.
                return None;
            }
            if *action == Action::SendDisconnect && is_kept {
                // Destroying the id disconnects it, and comes next.
                continue;
            }
            let conversation = self.conversations.get_mut(&key)?;
            let carried_out = match action {
                Action::MakeReady => make_ready(self.service, key, conversation),
                Action::SendConnect if conversation.waits_in_connect() => {
                    let to = conversation.id.peer_address().map(|peer| peer.ip());
                    let dial = conversation.dial();
                    let added = dial.and_then(|dial| self.dials.add(key, to, dial));
                    added.map_err(|error| (CONNECT, error))
                }
                _ => conversation.carry_out(*action),
            };
            if let Err((what, error)) = carried_out {
                conversation.failure = Some(Failure::Call { what, error });
                return Some(Input::CallFailed);
            }
        }
        actions.contains(&Action::Establish).then_some(Input::Confirmed)
    }

    /// Has an id destroyed elsewhere.
    fn destroy_elsewhere(&mut self, key: IdKey, destroy: Option<DeferredDestroy>) {
        let Some(destroy) = destroy else { return };
        if let Err(error) = self.destroys.add(key, None, destroy) {
            tracing::warn!(%error, "no thread for an id whose peer is silent: it was destroyed here");
        }
    }

    fn set_deadline(&mut self, key: IdKey) {
        let Some(conversation) = self.conversations.get_mut(&key) else { return };
        let options = &conversation.options;
        let limit = match conversation.state {
            State::ResolvingAddress | State::ResolvingRoute => {
                Some(options.resolve_timeout.saturating_add(RESOLVE_SLACK))
            }
            State::Connecting | State::Completing | State::Confirming => {
                Some(options.connect_timeout)
            }
            State::Preparing | State::Accepting => Some(options.accept_timeout),
            _ => None,
        };
        let due = limit.map(|limit| (after(Instant::now(), limit), limit));
        conversation.deadline = due;
        self.deadlines.set(key, due.map(|(at, _)| at));
    }
}

/// Has a worker move the QP to RTS: this thread does not wait for the device.
fn make_ready(
    service: &'static Service,
    key: IdKey,
    conversation: &Conversation,
) -> Result<(), (&'static str, io::Error)> {
    let work = conversation.to_make_ready();
    let (qp, transitions) = work.map_err(|error| (READY_QUEUE_PAIR, error))?;
    workers::run(move || {
        let outcome = transitions.iter().try_for_each(|transition| qp.modify(transition));
        service.send(Command::Ready { key, outcome });
    });
    Ok(())
}
