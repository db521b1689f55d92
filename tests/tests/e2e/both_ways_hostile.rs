//! Peers that break the rules, or only promises, when both ends call.

use std::sync::Arc;
use std::time::Duration;

use rpc_core::client::ConnectionHandle;
use rpc_core::service::{Dispatch, MethodDescriptor};
use rpc_core::{Code, Context, PollMode, ServerBuilder, Status};
use tests::hostile::bytes::{data, hello, request, session_header, session_of};
use tests::hostile::{Heard, HostilePeer};
use tests::limit::patient_channel;
use tests::scheme::Scheme;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::hostile_server::listen;

on_every_device! {
    a_silent_peer_blocks_only_its_own_calls,
    a_late_answer_is_accepted_once,
    a_vanished_peer_ends_the_calls_to_it,
    a_calling_silent_peer_is_bounded,
    servers_going_away_repeatedly_leave_one_connection,
}

#[rpc_core::service]
trait Bank {
    /// Calls back to the caller.
    async fn pay(&self) -> Result<(), Status>;
    async fn keep(&self);
}

#[rpc_core::service]
trait Payer {
    async fn confirm(&self);
}

struct Teller {
    kept: UnboundedSender<ConnectionHandle>,
    ends: Arc<Notify>,
}

/// Reports that the handler of a payment has gone.
struct ReportsDrop(Arc<Notify>);

impl Drop for ReportsDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Bank for Teller {
    async fn pay(&self) -> Result<(), Status> {
        let _reports = ReportsDrop(Arc::clone(&self.ends));
        let caller = Context::current().connection().expect("in a handler");
        PayerClient::new(caller.channel()).confirm().await
    }
    async fn keep(&self) {
        let _ = self.kept.send(Context::current().connection().expect("in a handler"));
    }
}

struct Honest;

impl Payer for Honest {
    async fn confirm(&self) {}
}

struct Branch {
    address: String,
    kept: UnboundedReceiver<ConnectionHandle>,
    ends: Arc<Notify>,
}

impl Branch {
    async fn open(scheme: Scheme, with: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        let (send, kept) = unbounded_channel();
        let ends = Arc::new(Notify::new());
        let teller = Teller { kept: send, ends: Arc::clone(&ends) };
        let builder =
            tests::device::server().add_service(BankServer::new(teller)).poll_mode(PollMode::Event);
        let server = with(builder).bind(scheme.fresh_address()).await.expect("a fresh address");
        let address = server.local_address().to_string();
        tokio::spawn(server.serve());
        Self { address, kept, ends }
    }

    async fn hostile(&self, max_calls: u32) -> HostilePeer {
        let mut peer = HostilePeer::connect(&self.address).await.expect("an honest handshake");
        peer.send(&data(&hello(max_calls)));
        peer
    }

    /// Checks that other clients are not affected.
    async fn check_honest(&self) {
        let builder = patient_channel().serve(PayerServer::new(Honest));
        let channel = builder.connect(&self.address).await.expect("it serves");
        assert_eq!(BankClient::new(channel).pay().await, Ok(()));
    }
}

fn method(name: &str) -> &'static MethodDescriptor {
    let (kept, ends) = (unbounded_channel().0, Arc::default());
    let server = BankServer::new(Teller { kept, ends });
    let methods = server.descriptor().methods;
    methods.iter().find(|method| method.name == name).expect("it is there")
}

fn ask(name: &str, slot: u32, generation: u32, deadline: Option<u64>) -> Vec<u8> {
    data(&request(slot, generation, method(name), deadline, b""))
}

/// An answer to a call of the server.
fn confirmed(generation: u32) -> Vec<u8> {
    data(&session_header(3, 0x08, 0, 0, 0, generation))
}

/// The next frame of that kind: its status, slot and generation.
async fn next(peer: &mut HostilePeer, kind: u8) -> (u8, u32, u32) {
    loop {
        let Heard::Frame(frame, _) = peer.hear().await else { panic!("the server is gone") };
        if let Some((heard, status, slot)) = session_of(&frame)
            && heard == kind
        {
            let generation = frame[8 + 12..8 + 16].try_into().expect("four bytes");
            return (status, slot, u32::from_le_bytes(generation));
        }
    }
}

const HELLO: u8 = 1;
const REQUEST: u8 = 2;
const RESPONSE: u8 = 3;
const CANCEL: u8 = 4;

async fn a_silent_peer_blocks_only_its_own_calls(scheme: Scheme) {
    let branch = Branch::open(scheme, |builder| builder).await;
    let mut peer = branch.hostile(1).await;
    next(&mut peer, HELLO).await;
    // The second payment waits for the only call that the peer accepts.
    for slot in 0..2 {
        peer.send(&ask("Bank.pay", slot, 1, Some(2_000_000)));
    }
    assert_eq!(next(&mut peer, REQUEST).await, (1, 0, 1));
    let late = Code::DeadlineExceeded.number();
    for _ in 0..2 {
        assert_eq!(next(&mut peer, RESPONSE).await.0, late);
    }
    branch.check_honest().await;
}

async fn a_late_answer_is_accepted_once(scheme: Scheme) {
    let branch = Branch::open(scheme, |builder| builder).await;
    let mut peer = branch.hostile(1).await;
    peer.send(&ask("Bank.pay", 0, 1, None));
    assert_eq!(next(&mut peer, REQUEST).await, (1, 0, 1));
    // The payment is cancelled, and with it the call back.
    peer.send(&data(&session_header(CANCEL, 0, 0, 0, 0, 1)));
    assert_eq!(next(&mut peer, CANCEL).await, (0, 0, 1));
    peer.send(&ask("Bank.pay", 1, 1, None));
    peer.send(&confirmed(1));
    // Now that slot is free.
    let (_, slot, generation) = next(&mut peer, REQUEST).await;
    assert_eq!((slot, generation), (0, 2));
    peer.send(&confirmed(2));
    assert_eq!(next(&mut peer, RESPONSE).await, (0, 1, 1));
    peer.send(&confirmed(2));
    peer.hear_to_the_end().await;
    branch.check_honest().await;
}

async fn a_vanished_peer_ends_the_calls_to_it(scheme: Scheme) {
    let mut branch = Branch::open(scheme, |builder| builder).await;
    let mut peer = branch.hostile(16).await;
    peer.send(&ask("Bank.keep", 0, 1, None));
    let kept = branch.kept.recv().await.expect("it serves");
    let payer = PayerClient::new(kept.channel());
    let call = payer.confirm().start();
    next(&mut peer, REQUEST).await;
    drop(peer);
    let status = call.await.expect_err("nobody answers");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    kept.channel().closed().await;
    assert!(kept.close_cause().is_some());
    branch.check_honest().await;
}

async fn a_calling_silent_peer_is_bounded(scheme: Scheme) {
    const CALLS: u32 = 4;
    let few = |builder: ServerBuilder| builder.max_calls_per_connection(CALLS);
    let branch = Branch::open(scheme, few).await;
    let mut peer = branch.hostile(1).await;
    for slot in 0..CALLS {
        peer.send(&ask("Bank.pay", slot, 1, None));
    }
    // One call back, however many payments.
    assert_eq!(next(&mut peer, REQUEST).await, (1, 0, 1));
    // And no more payments than the peer announced.
    peer.send(&ask("Bank.pay", CALLS, 1, None));
    for frame in peer.hear_to_the_end().await {
        assert_ne!(session_of(&frame).map(|(kind, ..)| kind), Some(REQUEST));
    }
    branch.ends.notified().await;
    branch.check_honest().await;
}

async fn servers_going_away_repeatedly_leave_one_connection(scheme: Scheme) {
    let (mut listener, address) = listen(scheme).await;
    let go_away = data(&session_header(10, 0, 0, 0, 0, 0));
    let builder = patient_channel().serve(PayerServer::new(Honest)).wait_for_ready(true);
    let channel = builder.connect_lazy(&address).expect("an address");
    channel.kick();
    let mut before: Option<HostilePeer> = None;
    for turn in 0..3 {
        let mut server = HostilePeer::accept(&mut *listener).await;
        server.send(&data(&hello(16)));
        next(&mut server, HELLO).await;
        if turn > 0 {
            // The call for which the connection was made.
            let (_, _, generation) = next(&mut server, REQUEST).await;
            server.send(&confirmed(generation));
        }
        server.send(&go_away);
        // It is answered, and the channel makes another connection when it needs one.
        assert_eq!(next(&mut server, 10).await.0, 0);
        let call =
            BankClient::new(channel.clone()).keep().timeout(Duration::from_secs(3600)).start();
        tokio::spawn(call);
        if let Some(mut before) = before.replace(server) {
            before.hear_to_the_end().await;
        }
    }
    // The last one is still open, since its server may call.
    let mut last = before.expect("three");
    let payer = PayerServer::new(Honest);
    let confirm = &payer.descriptor().methods[0];
    last.send(&data(&request(0, 1, confirm, None, b"")));
    assert_eq!(next(&mut last, RESPONSE).await, (0, 0, 1));
}
