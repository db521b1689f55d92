//! Clients that break the rules of the handshake, or never end it.

use std::sync::Arc;

use rpc_transport::address::Address;
use rpc_transport::device::SendOp;
use rpc_transport::engine::establish::AcceptError;
use rpc_transport::protocol::credit::Grant;
use rpc_transport::protocol::frame::{self, Kind};
use rpc_transport::protocol::handshake::{Features, Offer};
use rpc_transport::protocol::lock::fake::FakeFactory;
use rpc_transport::protocol::lock::{LockedLink, Parameters, Protection, Role, SetUp};
use tokio::task::JoinHandle;

use super::{World, accept, config, server};
use crate::probe::{Habit, Probe};
use crate::raw::Raw;
use crate::world::run;

/// A raw client that keeps to the rules of set-up, and its part of the handshake.
pub(super) struct RawClient {
    pub(super) raw: Raw,
    pub(super) link: LockedLink,
}

impl RawClient {
    async fn connect(address: &Address, scheme: &str) -> Self {
        Self::connect_with(address, scheme, Protection::Authenticate).await
    }

    pub(super) async fn connect_with(
        address: &Address,
        scheme: &str,
        protection: Protection,
    ) -> Self {
        let features = Features::ARENA.with(Features::REPLY_SLOTS).with(Features::SECURE);
        let offer = Offer::new(&config(), features, 7);
        let request = offer.to_request();
        let (raw, reply) = Raw::request(address, &request).await.unwrap();
        let peer = Offer::from_reply(&reply).unwrap();
        let (request, reply) = (&request, &reply);
        let set_up = SetUp { request, reply, scheme, place: "", protection, exchange: None };
        let parameters = Parameters::new(Role::Client, &set_up);
        let factory = FakeFactory { protection, ..FakeFactory::new(1, "client") };
        let link = LockedLink::new(&factory, parameters, None, [&offer, &peer]).unwrap();
        Self { raw, link }
    }

    /// Sends what is due.
    pub(super) fn send(&mut self) {
        while let Some(frame) = self.link.poll_transmit() {
            self.raw.post(SendOp::Send, &frame);
        }
    }

    /// Takes the server's part of the handshake.
    pub(super) async fn receive(&mut self) {
        while !self.link.is_finish_due() {
            for (imm, frame) in self.raw.bytes_of_frames().await {
                self.link.on_frame(imm, &frame).unwrap();
            }
        }
    }
}

/// A server's error about a raw client that does `act` at some point of the handshake, and the last
/// frame that it sends to the client, if any.
async fn provoked(act: impl AsyncFnOnce(&mut RawClient)) -> (AcceptError, Option<Vec<u8>>) {
    let mut world = World::new("tcp").await;
    let (address, theirs) = (world.address.clone(), server());
    let probe = Probe::new(Habit::Echo);
    let record = probe.record();
    let accept = accept(&world.far, &mut *world.listener, probe, Some(&theirs));
    let mut last = None;
    let client = async {
        let mut client = RawClient::connect(&address, "tcp").await;
        act(&mut client).await;
        loop {
            last = client.raw.bytes_of_frames().await.pop().map(|(_, frame)| frame);
        }
    };
    let accepted = tokio::select! {
        accepted = accept => accepted,
        () = client => unreachable!(),
    };
    assert_eq!((record.events().established, record.events().received), (0, 0));
    world.check_works().await;
    world.end().await;
    (accepted.unwrap_err(), last)
}

#[test]
fn a_call_before_unlocked_reaches_nobody() {
    run("early call", async {
        let call = [&frame::header(Kind::Data, Grant::default())[..], b"call"].concat();
        let (error, frame) = provoked(async |client| {
            client.raw.post(SendOp::Send, &call);
        })
        .await;
        assert!(error.to_string().contains("Data frame on a locked connection"), "{error}");
        assert_eq!(frame.unwrap()[0], 6);
        // Between the flights, and behind the last one.
        let (error, frame) = provoked(async |client| {
            client.send();
            client.receive().await;
            client.raw.post(SendOp::Send, &call);
        })
        .await;
        assert!(error.to_string().contains("Data frame on a locked connection"), "{error}");
        assert_eq!(frame.unwrap()[0], 8, "the server has keys, so the reason is sealed");
    });
}

#[test]
fn garbage_at_each_level_ends_the_handshake() {
    run("garbage", async {
        for level in [0, 1, 2, 0xff] {
            let garbage = [&frame::handshake_header(level, 0)[..], &[0x5a; 100]].concat();
            let (error, _) = provoked(async |client| {
                client.raw.post(SendOp::Send, &garbage);
            })
            .await;
            assert!(matches!(error, AcceptError::Handshake(_)), "{error}");
            let (error, _) = provoked(async |client| {
                client.send();
                client.receive().await;
                client.raw.post(SendOp::Send, &garbage);
            })
            .await;
            assert!(matches!(error, AcceptError::Handshake(_)), "{error}");
        }
    });
}

/// More than a window of frames, before the server looks at the first one.
#[test]
fn a_flood_before_unlocked_is_cut_off() {
    run("flood", async {
        let (error, _) = provoked(async |client| {
            for number in 0..11 {
                let frame = [&frame::handshake_header(0, number)[..], &[1, 0, 0xff, 0]].concat();
                client.raw.post(SendOp::Send, &frame);
            }
            client.raw.post(SendOp::Send, &frame::handshake_header(0, 0));
        })
        .await;
        assert!(error.to_string().contains("too many"), "{error}");
    });
}

#[test]
fn silent_clients_leave_room_for_others() {
    run("half open", async {
        const CROWD: u32 = 100;
        let mut world = World::for_connections("tcp", CROWD + 4).await;
        let mut crowd = Vec::new();
        for number in 0..CROWD {
            let probe = Probe::new(Habit::Echo);
            let (shard, address) = (Arc::clone(&world.far), world.address.clone());
            let (incoming, client) =
                tokio::join!(world.listener.incoming(), RawClient::connect_unfinished(address));
            let incoming = incoming.unwrap();
            let accept = tokio::spawn(async move {
                shard.accept_with(incoming, &config(), probe, Some(&server())).await
            });
            let mut client = client.finish().await;
            if number % 2 == 0 {
                client.send();
            }
            crowd.push((client, accept));
        }
        world.check_works().await;
        for (client, accept) in crowd {
            assert!(!accept.is_finished(), "a handshake without its last message ended");
            accept.abort();
            assert!(accept.await.unwrap_err().is_cancelled());
            drop(client);
        }
        world.check_works().await;
        world.end().await;
    });
}

struct Unfinished(JoinHandle<RawClient>);

impl Unfinished {
    async fn finish(self) -> RawClient {
        self.0.await.unwrap()
    }
}

impl RawClient {
    /// Begins to connect.
    async fn connect_unfinished(address: Address) -> Unfinished {
        Unfinished(tokio::spawn(async move { Self::connect(&address, "tcp").await }))
    }
}
