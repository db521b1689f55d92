//! Visits of callers while the driver sleeps, and the end of a connection. No driver runs here: the
//! tests poll, and the shard's clock stands still.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::*;
use crate::address::{Address, HostPort};
use crate::device::soft;
use crate::device::{
    Capabilities, Completion, CompletionKind, CompletionQueue, Connector, Device, DeviceAttributes,
    Listener, PeerIdentity, ProviderError, QpCapacity, QpEvent, QpHandle, Status,
};
use crate::engine::connection::{Connection, ConnectionQp, RecvBuffers, SendBuffers, SendPath};
use crate::engine::poll::spin::{PollMode, Wait};
use crate::engine::upper::{Outside, Sleeper, Submission};
use crate::memory::region::{Access, BufferPool, ProtectionDomain};
use crate::message::outgoing::OutBuf;
use crate::message::part::OutPart;
use crate::message::payload_stream::PayloadStream;
use crate::message::received::Message;
use crate::message::reply_slot::{PeerSlot, SlotOffer};
use crate::protocol::config::LinkConfig;
use crate::protocol::frame::CloseCode;
use crate::protocol::link::{Lane, SubmitError};

mod panics;

/// A protocol that sends what it is given. Its callers wait for messages.
#[derive(Default)]
pub(in crate::engine) struct Simple {
    outbox: Vec<Submission>,
    pub(in crate::engine) received: usize,
    /// Woken by the next message.
    pub(super) waiters: Vec<Waker>,
    pub(in crate::engine) actions: Vec<Option<Waker>>,
    /// Whose waker is taken next.
    pub(super) next_caller: u64,
    /// Callers may sleep beside those in `waiters`.
    pub(super) is_waiting: bool,
    /// The number of the message that makes it panic.
    pub(super) bomb: Option<usize>,
    pub(super) has_streams: bool,
    /// Of the last message.
    stream: Option<PayloadStream>,
    /// Memory for an answer that came with a message.
    slot: std::sync::Mutex<Option<PeerSlot>>,
    /// Another thread gives it back while the connection is pumped.
    gives_back: bool,
}

impl UpperLayer for Simple {
    /// None: work for the driver.
    type Action = Option<Waker>;

    fn on_established(&mut self, _: ConnectionKey, _: &PeerIdentity, _: u64) {}

    fn on_message(&mut self, mut message: Message, _: Revoke<'_>) -> Result<(), Arc<str>> {
        self.received += 1;
        self.stream = message.take_stream();
        if let Some(slot) = message.take_slot() {
            *self.slot.lock().unwrap() = Some(slot);
        }
        assert_ne!(self.bomb, Some(self.received), "a bomb, on purpose");
        self.actions.extend(self.waiters.drain(..).map(Some));
        Ok(())
    }

    fn on_refused(&mut self, _: u64, _: &SubmitError) {}

    fn may_transmit(&self) -> bool {
        if self.gives_back {
            drop(self.slot.lock().unwrap().take());
        }
        !self.outbox.is_empty()
    }

    fn poll_transmit(&mut self) -> Option<Submission> {
        self.outbox.pop()
    }

    fn drain_actions(&mut self, outside: &mut Outside<'_, Option<Waker>>) {
        std::iter::from_fn(|| self.actions.pop()).for_each(|action| outside.run(action));
    }

    fn into_waker(action: Option<Waker>) -> Result<Waker, Option<Waker>> {
        action.ok_or(None)
    }

    fn is_for_callers_alone(&self) -> bool {
        !self.has_streams
    }

    fn take_sleeper(&mut self) -> Sleeper {
        let nobody = if self.is_waiting { Sleeper::Unknown } else { Sleeper::Nobody };
        let found = |waker| Sleeper::Found(self.next_caller, waker);
        self.waiters.pop().map_or(nobody, found)
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _: Instant, _: Revoke<'_>) {}

    fn on_closed(&mut self, _: &CloseCause, _: Revoke<'_>) {
        self.actions.push(None);
    }

    fn on_released(&mut self) {}

    fn is_idle(&self) -> bool {
        true
    }
}

#[derive(Default)]
pub(super) struct Wakes(AtomicUsize);

impl Wakes {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A device that lacks something.
#[derive(Debug)]
struct Lacking(Arc<dyn Device>, DeviceAttributes);

impl Lacking {
    fn of(device: Arc<dyn Device>, lacks: Capabilities) -> Arc<dyn Device> {
        let mut attributes = device.attributes().clone();
        attributes.capabilities = attributes.capabilities.without(lacks);
        Arc::new(Self(device, attributes))
    }
}

impl Device for Lacking {
    fn attributes(&self) -> &DeviceAttributes {
        &self.1
    }

    fn allocate_pd(&self) -> Result<ProtectionDomain, ProviderError> {
        self.0.allocate_pd()
    }

    fn create_cq(&self, min_entries: u32) -> Result<Box<dyn CompletionQueue>, ProviderError> {
        self.0.create_cq(min_entries)
    }
}

/// A shard with one connection, whose QP has a RECV posted.
async fn shard(name: &str) -> (Arc<Shard<Simple>>, ConnectionKey, QpHandle) {
    shard_on(name, Capabilities::NONE).await
}

async fn shard_on(
    name: &str,
    lacks: Capabilities,
) -> (Arc<Shard<Simple>>, ConnectionKey, QpHandle) {
    let _listener = soft::listen_mem(name).unwrap();
    let mut outgoing = soft::MemConnector.resolve(&Address::Mem(name.to_owned())).await.unwrap();
    let device = Lacking::of(Arc::clone(outgoing.device()), lacks);
    let domain = device.allocate_pd().unwrap();
    let shard = Shard::new(device, domain.clone(), 64).unwrap();
    let pool = BufferPool::allocate(&domain, 64, 4).unwrap();
    let mut state = shard.lock();
    let capacity =
        QpCapacity { max_send_wr: 4, max_recv_wr: 4, max_inline_bytes: 0, uses_srq: false };
    let qp = outgoing.create_qp(state.cq(), &domain, capacity).unwrap();
    let send_buffers = SendBuffers::new(&domain, &**shard.device(), 4, 64).unwrap();
    let pipe = ConnectionQp::new(qp, 0, RecvBuffers::of(pool.clone(), 2, true, 0), send_buffers);
    let send_path = SendPath::new(domain, &**shard.device(), &LinkConfig::default());
    let key = state.insert(qp, Connection::new(Simple::default(), send_path, pipe, 1));
    let buffer = pool.take().unwrap();
    let (cq, connection) = state.cq_and_connection(key).unwrap();
    connection.post_recv(cq, buffer).unwrap();
    state.set_mode(PollMode::Busy);
    drop(state);
    (shard, key, qp)
}

/// Puts the shard in the state of a parked driver, without a driver.
pub(super) fn park(shard: &Shard<Simple>) -> Arc<Wakes> {
    let wakes = Arc::new(Wakes::default());
    let mut state = shard.lock();
    state.cq().arm().unwrap();
    assert!(state.park(Waker::from(Arc::clone(&wakes))));
    wakes
}

#[tokio::test]
async fn caller_consuming_armed_event_wakes_the_driver() {
    let (shard, key, qp) = shard("shard-spent").await;
    let wakes = park(&shard);
    // The RECV is flushed: a completion other than the one that the caller waits for.
    shard.lock().cq().modify_to_error(qp).unwrap();
    let waited = shard.with_progress(key, true, |_| (), |_, ()| Progress::Wait);
    assert_eq!(waited, Some(()));
    assert_eq!(wakes.count(), 1);
}

/// A subscriber may wait for an answer on this shard, which the sleeping driver is to bring.
#[tokio::test]
async fn the_driver_is_woken_before_anything_is_logged() {
    let (shard, key, _) = shard("shard-log-last").await;
    let wakes = park(&shard);
    let (at_log, seen) = std::sync::mpsc::channel();
    let driver = Arc::clone(&wakes);
    shard.with(key, |protocol| {
        protocol.actions.push(None);
        crate::user_code::logged(move || at_log.send(driver.count()).unwrap());
    });
    assert_eq!((seen.recv(), wakes.count()), (Ok(1), 1));
}

#[tokio::test]
async fn fruitless_caller_lets_the_driver_sleep() {
    let (shard, key, _) = shard("shard-nothing").await;
    let wakes = park(&shard);
    let waited = shard.with_progress(key, true, |_| (), |_, ()| Progress::Wait);
    assert_eq!(waited, Some(()));
    assert_eq!(wakes.count(), 0);
}

/// Two shards with a connection between them, and its keys.
pub(in crate::engine) async fn pair(name: &str) -> [(Arc<Shard<Simple>>, ConnectionKey); 2] {
    let listener = soft::listen_mem(name).unwrap();
    pair_of(listener, &soft::MemConnector, soft::mem_device(), &LinkConfig::default()).await
}

pub(in crate::engine) async fn tcp_pair() -> [(Arc<Shard<Simple>>, ConnectionKey); 2] {
    let any_port = HostPort { host: "127.0.0.1".to_owned(), port: 0 };
    let listener = soft::listen_tcp(&any_port, None).await.unwrap();
    pair_of(listener, &soft::TcpConnector, soft::tcp_device(), &LinkConfig::default()).await
}

async fn pair_of(
    mut listener: Box<dyn Listener>,
    connector: &dyn Connector,
    device: &Arc<dyn Device>,
    config: &LinkConfig,
) -> [(Arc<Shard<Simple>>, ConnectionKey); 2] {
    let address = listener.local_address();
    let outgoing = connector.resolve(&address).await.unwrap();
    let new = || Shard::new(Arc::clone(device), device.allocate_pd().unwrap(), 1024).unwrap();
    let (client, server): (Arc<Shard<Simple>>, Arc<Shard<Simple>>) = (new(), new());
    let limit = Duration::from_secs(60);
    let (connected, accepted) =
        tokio::join!(client.connect(outgoing, &address, config, limit, Simple::default()), async {
            let incoming = listener.incoming().await.unwrap();
            server.accept(incoming, config, Simple::default()).await
        });
    let keys = (connected.unwrap().key, accepted.unwrap().key);
    [(client, keys.0), (server, keys.1)]
}

pub(in crate::engine) fn send(shard: &Shard<Simple>, key: ConnectionKey) {
    shard.with(key, |protocol| protocol.outbox.push(a_message())).unwrap();
}

/// Sends like a caller that waits for the answer, and leaves polling to others.
pub(in crate::engine) fn send_and_wait(shard: &Shard<Simple>, key: ConnectionKey) {
    let push = |protocol: &mut Simple| protocol.outbox.push(a_message());
    shard.with_progress(key, true, push, |_, ()| Progress::GiveUp).unwrap();
}

fn a_message() -> Submission {
    let mut frame = OutBuf::new();
    frame.extend_from_slice(b"a message");
    Submission { lane: Lane::Small, tag: 0, frame }
}

/// The segment had taken the reader out of the stream, and the end of the connection dropped it
/// with the link.
#[tokio::test]
async fn reader_wakes_though_its_batch_ends_the_connection() {
    let config = LinkConfig::default().keep_alive(None).assembly_bytes(8 << 10);
    let listener = soft::listen_mem("shard-reader").unwrap();
    let pair = pair_of(listener, &soft::MemConnector, soft::mem_device(), &config).await;
    let [(client, connected), (server, accepted)] = pair;
    let poll = |shard: &Shard<Simple>| {
        let mut state = shard.lock();
        state.poll();
        state.leave().run();
    };
    let mut frame = OutBuf::new();
    frame.push_tail(OutPart::shared(Arc::new(vec![7; 40 << 10])));
    let long = Submission { lane: Lane::Small, tag: 0, frame };
    server.with(accepted, |protocol| protocol.outbox.push(long)).unwrap();
    let mut stream = loop {
        poll(&client);
        if let Some(stream) = client.with(connected, |protocol| protocol.stream.take()).unwrap() {
            break stream;
        }
        poll(&server);
    };
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut context = std::task::Context::from_waker(&waker);
    server.close(accepted, CloseReason::new(CloseCode::Normal, "done"));
    while client.close_cause(connected).is_none() {
        while let Poll::Ready(segment) = stream.poll_next(&mut context) {
            segment.expect("the end comes with the last segment").unwrap();
        }
        // All that can leave is there before the next look.
        (0..100).for_each(|_| poll(&server));
        wakes.0.store(0, Ordering::Relaxed);
        poll(&client);
    }
    assert_eq!(wakes.count(), 1);
    assert!(stream.poll_next(&mut context).is_ready());
}

#[tokio::test]
async fn connection_with_unsignaled_sends_ends_once_flushed() {
    let [(client, connected), (server, _)] = pair("shard-unsignaled").await;
    // One of them is signaled, with others behind it.
    for _ in 0..20 {
        send(&client, connected);
    }
    // The server takes them all, the client hears of it: none of them is left to be flushed.
    server.lock().poll();
    client.lock().poll();
    client.fail(connected, &CloseCause::Local);
    for _ in 0..1000 {
        client.lock().poll();
    }
    assert_eq!(client.connection_count(), 0);
}

/// The messages arrive one at a time, and none needs a pump.
#[tokio::test]
async fn credits_are_returned_before_the_driver_sleeps() {
    let [(client, connected), (server, accepted)] = pair("shard-idle-ack").await;
    let owed = || server.link_metrics(accepted).unwrap().counters.owed.data();
    let window = server.link_metrics(accepted).unwrap().counters.local_window;
    while owed() < window.div_ceil(4) {
        send(&client, connected);
        assert_eq!(server.lock().poll(), 1);
    }
    server.lock().send_idle_acks();
    assert_eq!(owed(), 0);
}

#[tokio::test]
async fn payload_writer_spins_once_for_its_reader() {
    let [(client, connected), (server, accepted)] = pair("shard-reader").await;
    client.lock().set_mode(PollMode::Adaptive);
    let mut payload = a_message();
    payload.lane = Lane::Bulk;
    payload.frame.push_tail(OutPart::shared(Arc::new(vec![7; 1 << 20])));
    client.with(connected, |protocol| protocol.outbox.push(payload)).unwrap();
    while server.look(accepted, |protocol| protocol.received).unwrap() == 0 {
        server.lock().poll();
        client.lock().poll();
    }
    let waits = || {
        let began = Instant::now();
        let mut state = client.lock();
        state.on_progress();
        state.on_idle(began);
        state.on_idle(began + Duration::from_micros(100))
    };
    assert_eq!([waits(), waits()], [Wait::Yield, Wait::Park]);
}

/// Neither where the driver polled before, nor where the step woke it.
#[tokio::test]
async fn handshake_step_does_not_restart_polling() {
    let [(client, connected), _server] = pair("shard-handshake").await;
    let mut state = client.lock();
    state.set_mode(PollMode::Adaptive);
    let began = Instant::now();
    let later = began + Duration::from_micros(100);
    let mut step = |is_woken: bool| {
        if is_woken {
            state.on_woken(began);
        } else {
            state.on_idle(began);
        }
        state.mark_dirty_key(connected);
        let _ = state.finish_visit();
        state.on_progress();
        let wait = state.on_idle(later);
        state.on_progress();
        state.connection(connected).unwrap().lock();
        wait
    };
    assert_eq!([false, true].map(&mut step), [Wait::Spin, Wait::Park]);
    assert_eq!(step(false), Wait::Park);
}

#[tokio::test]
async fn only_small_messages_keep_a_connection_fast() {
    let [(client, connected), (server, accepted)] = pair("shard-rest").await;
    let rest = || {
        let ends = [(&client, connected), (&server, accepted)];
        ends.map(|(shard, key)| shard.lock().connection(key).unwrap().is_fast())
    };
    assert_eq!(rest(), [true; 2]);
    for _ in 0..10 {
        send(&client, connected);
        server.lock().poll();
        send(&server, accepted);
        client.lock().poll();
        assert_eq!(rest(), [true; 2]);
    }
    let mut payload = a_message();
    payload.frame.push_tail(OutPart::shared(Arc::new(vec![7; 1 << 20])));
    client.with(connected, |protocol| protocol.outbox.push(payload)).unwrap();
    assert!(!rest()[0], "it was sent in one piece");
    while server.look(accepted, |protocol| protocol.received).unwrap() == 10 {
        server.lock().poll();
        client.lock().poll();
    }
    // What was sent is let go, and what was received.
    for _ in 0..2 {
        send(&server, accepted);
        client.lock().poll();
        send(&client, connected);
        server.lock().poll();
    }
    assert_eq!(rest(), [true; 2]);
    client.close(connected, CloseReason::new(CloseCode::Normal, "that was all"));
    assert!(!rest()[0]);
}

/// The pump had looked for what is given back before, and its Ack looked again: what then waits for
/// a credit was forgotten.
#[tokio::test]
async fn return_during_a_pump_ends_the_fast_path() {
    let [(client, connected), (server, accepted)] = pair("shard-midst").await;
    let region = client.domain().allocate(8192, Access::REMOTE_WRITE).unwrap();
    let mut asks = a_message();
    asks.frame.offer_slot(SlotOffer::new(region, 0, 8000, None));
    client.with(connected, |protocol| protocol.outbox.push(asks)).unwrap();
    server.lock().poll();
    assert!(server.look(accepted, |protocol| protocol.slot.lock().unwrap().is_some()).unwrap());
    for _ in 0..2 {
        send(&server, accepted);
        client.lock().poll();
        send(&client, connected);
        server.lock().poll();
    }
    let credits = || server.link_metrics(accepted).unwrap().counters.data_credits;
    while credits() > 0 {
        send(&server, accepted);
    }
    // So many that an Ack is due, all at once.
    let window = server.link_metrics(accepted).unwrap().counters.local_window;
    (0..window / 2 + 1).for_each(|_| send(&client, connected));
    server.look(accepted, |protocol| protocol.gives_back = true).unwrap();
    assert!(server.lock().connection(accepted).unwrap().is_fast());
    server.lock().poll();
    assert_eq!(credits(), 0);
    assert!(server.look(accepted, |protocol| protocol.slot.lock().unwrap().is_none()).unwrap());
    assert!(!server.lock().connection(accepted).unwrap().is_fast());
    send_and_wait(&server, accepted);
    assert!(server.close_cause(accepted).is_none());
}

/// Its caller has what it waited for, and nobody polls for a while: the runtime of one thread
/// stands still.
#[tokio::test]
async fn write_source_is_released_without_receiver_polls() {
    let [(client, connected), (server, accepted)] = tcp_pair().await;
    let memory = Arc::new(vec![7; 100 << 10]);
    let mut payload = a_message();
    payload.frame.push_tail(OutPart::shared(Arc::clone(&memory)));
    let poll = |shard: &Shard<Simple>| {
        let mut state = shard.lock();
        state.poll();
        state.leave().run();
    };
    // So that there is an arena.
    let mut first = a_message();
    first.frame.push_tail(OutPart::shared(Arc::new(vec![7; 1 << 20])));
    for (number, message) in (1..).zip([first, payload]) {
        server.with(accepted, |protocol| protocol.outbox.push(message)).unwrap();
        while client.look(connected, |protocol| protocol.received).unwrap() < number {
            poll(&server);
            let mut state = client.lock();
            state.poll();
            // A driver or caller flushes after it has polled, before others run.
            state.cq().flush();
            state.leave().run();
        }
    }
    for _ in 0..10_000 {
        poll(&server);
    }
    assert_eq!(Arc::strong_count(&memory), 1, "the sender keeps it");
}

/// A driver that is always busy never gets to acks of its sleep.
#[tokio::test]
async fn due_ack_leaves_alone() {
    for at_once in [1, 2, 5] {
        let [(client, connected), (server, accepted)] = pair(&format!("due-ack-{at_once}")).await;
        let window = server.link_metrics(accepted).unwrap().counters.local_window;
        for _ in 0..4 * window {
            (0..at_once).for_each(|_| send(&client, connected));
            server.lock().poll();
            client.lock().poll();
        }
        let received = server.look(accepted, |protocol| protocol.received).unwrap();
        assert_eq!(received, usize::from(4 * window * at_once), "{at_once} at once");
    }
}

#[tokio::test]
async fn close_is_sent_by_the_visit_requesting_it() {
    let [(client, connected), (server, accepted)] = pair("shard-close").await;
    let is_rung = || {
        let mut state = server.lock();
        let mut fds = [PollFd::from_borrowed_fd(state.cq().event_fd(), PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    };
    server.lock().cq().arm().unwrap();
    assert_eq!(server.lock().poll(), 0);
    assert!(!is_rung());
    client.close(connected, CloseReason::new(CloseCode::Normal, "that was all"));
    assert!(is_rung(), "nobody polls at the client, and the server sleeps");
    server.lock().poll();
    let cause = server.close_cause(accepted).map(|cause| cause.to_string());
    assert!(cause.as_ref().is_some_and(|cause| cause.contains("that was all")), "{cause:?}");
}

/// Between a poll that finds nothing and a look for events anything may arrive.
#[tokio::test]
async fn messages_arriving_with_the_end_are_delivered() {
    let [(client, connected), (server, accepted)] = pair("shard-last-words").await;
    server.lock().poll();
    for _ in 0..3 {
        send(&client, connected);
    }
    let mut state = server.lock();
    let (_, connection) = state.cq_and_connection(accepted).unwrap();
    let handles = (0..16).map(|generation| QpHandle { index: 0, generation });
    let qp = handles.into_iter().find(|qp| connection.is_on(*qp)).expect("its only queue pair");
    state.on_events(QpEvent::Disconnected(qp));
    drop(state);
    assert!(server.close_cause(accepted).is_some());
    assert_eq!(server.with(accepted, |protocol| protocol.received), Some(3));
}

/// On iWARP nothing else shows that the peer has gone while a WR was being sent.
#[tokio::test]
async fn local_send_failure_without_peer_error_means_loss() {
    let name = |number: usize| format!("shard-cut-off-{number}");
    let (untold, told) = (Capabilities::REMOTE_ERRORS, Capabilities::NONE);
    let (send, recv) = (CompletionKind::Send, CompletionKind::Recv);
    let cases = [
        (untold, send, Status::LocalQpOperation, "the peer is gone"),
        (told, send, Status::LocalQpOperation, "a work request failed: LocalQpOperation"),
        // What arrived was too long: nothing was being sent.
        (untold, recv, Status::LocalQpOperation, "a work request failed: LocalQpOperation"),
        (untold, send, Status::LocalProtection, "a work request failed: LocalProtection"),
    ];
    for (number, (lacks, kind, status, cause)) in cases.into_iter().enumerate() {
        let (shard, key, qp) = shard_on(&name(number), lacks).await;
        let mut state = shard.lock();
        let buffer = (kind == recv).then(|| {
            let domain = shard.device().allocate_pd().unwrap();
            BufferPool::allocate(&domain, 64, 1).unwrap().take().unwrap()
        });
        let (wr_id, byte_len, imm) = (0, 0, None);
        let mut failed = Completion { qp, wr_id, kind, status, byte_len, imm, buffer };
        let (cq, connection) = state.cq_and_connection(key).unwrap();
        if kind == send {
            connection.on_send_completion(cq, &failed);
        } else {
            connection.on_recv_completion(cq, Instant::now(), &mut failed, &mut Vec::new());
        }
        let told = connection.cause().expect("it has ended").to_string();
        assert!(told.starts_with(cause), "case {number}: {told}");
        drop(state);
    }
}
