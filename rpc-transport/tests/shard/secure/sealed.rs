//! Connections whose frames are sealed, and somebody on the way who changes them.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rpc_transport::device::SendOp;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::device::fault::{FaultPlan, PROFILES};
use rpc_transport::engine::security::Security;
use rpc_transport::protocol::arena::{Extent, Extents};
use rpc_transport::protocol::credit::Grant;
use rpc_transport::protocol::frame::{
    self, Blocks, CloseCode, CloseReason, Kind, Placed, Segment, SlotBlock, Tags, Written,
};
use rpc_transport::protocol::lock::fake::FakeFactory;
use rpc_transport::protocol::lock::{Protection, REKEY_FRAMES, Sealer, TAG_BYTES};

use super::strangers::RawClient;
use super::tap::Tap;
use super::{World, accept, client, probes, server, why_closed_at_once, with};
use crate::probe::{Habit, Probe};
use crate::random::{PrintSeed, Random, variable};
use crate::raw::Raw;
use crate::world::{End, WIRES, pattern, run};

/// Both ends insist on this.
fn insisting(protection: Protection) -> [Security; 2] {
    let factory = |name| FakeFactory { protection, ..FakeFactory::new(1, name) };
    [with(factory("client")).expecting("server"), with(factory("server"))]
}

/// Both ends insist on sealed frames within the machine, too.
fn sealing_all() -> [Security; 2] {
    let encrypt = Protection::Encrypt;
    let sealing = FakeFactory { protection: encrypt, local: encrypt, ..FakeFactory::new(1, "") };
    let factory = |name: &str| FakeFactory { name: name.to_owned(), ..sealing.clone() };
    [with(factory("client")).expecting("server"), with(factory("server"))]
}

fn sealing() -> [Security; 2] {
    insisting(Protection::Encrypt)
}

/// Two connected ends of a world.
pub(super) struct Ends {
    pub(super) near: End,
    pub(super) far: End,
}

impl Ends {
    pub(super) async fn meet(world: &mut World, tap: Option<&Tap>, habit: Habit) -> Self {
        Self::meet_with(world, tap, habit, &sealing()).await
    }

    async fn meet_with(
        world: &mut World,
        tap: Option<&Tap>,
        habit: Habit,
        [ours, theirs]: &[Security; 2],
    ) -> Self {
        let address = tap.map_or_else(|| world.address.clone(), |tap| tap.address.clone());
        let (near, far) = (Probe::new(Habit::Keep), Probe::new(habit));
        let records = (near.record(), far.record());
        let met = world.meet_at(&address, [Some(ours), Some(theirs)], [near, far]).await;
        let (near, far) = (met.0.unwrap().key, met.1.unwrap().key);
        Self {
            near: End { shard: Arc::clone(&world.near), key: near, record: records.0 },
            far: End { shard: Arc::clone(&world.far), key: far, record: records.1 },
        }
    }

    pub(super) async fn echo(&self, bytes: &[u8]) {
        self.near.send(bytes);
        assert!(*self.near.next().await.to_vec() == *bytes);
    }

    pub(super) async fn leave(self) {
        self.near.leave().await;
        self.far.leave().await;
    }
}

/// The cause at the server of a connection whose client's frames were changed.
async fn broken_cause(ends: Ends, tap: Tap) -> String {
    let cause = ends.far.cause().await;
    assert!(matches!(cause, CloseCause::Protocol(_)), "{cause}");
    assert_eq!(ends.far.events().received, 0, "a changed frame was delivered");
    ends.near.cause().await;
    tap.end().await;
    ends.leave().await;
    cause.to_string()
}

#[test]
fn a_tap_reads_no_sealed_message() {
    run("tap", async {
        for (protection, reads) in [(Protection::Authenticate, true), (Protection::Encrypt, false)]
        {
            let mut world = World::new("tcp").await;
            let tap = Tap::new(world.socket()).await;
            let securities = insisting(protection);
            let ends = Ends::meet_with(&mut world, Some(&tap), Habit::Echo, &securities).await;
            let (key, value) = (b"the key of the put", pattern(5, 300_000));
            ends.echo(key).await;
            ends.echo(&value).await;
            assert_eq!(tap.has_seen(key), reads, "{protection:?}");
            assert_eq!(tap.has_seen(&value[1000..1020]), reads, "{protection:?}");
            assert!(tap.seen_bytes() > 2 * value.len());
            ends.leave().await;
            tap.end().await;
            world.end().await;
        }
    });
}

#[test]
fn each_changed_bit_of_a_frame_is_found() {
    run("changed bits", async {
        let mut world = World::for_connections("tcp", 64).await;
        let message = b"a call";
        for bit in 0..(frame::HEADER_BYTES + message.len() + TAG_BYTES) * 8 {
            world.listen_anew("tcp").await;
            let tap = Tap::new(world.socket()).await;
            let ends = Ends::meet(&mut world, Some(&tap), Habit::Keep).await;
            tap.change(move |mut packet| {
                let at = packet.len() - frame::HEADER_BYTES - message.len() - TAG_BYTES;
                packet[at + bit / 8] ^= 1 << (bit % 8);
                vec![packet]
            });
            ends.near.send(message);
            let cause = broken_cause(ends, tap).await;
            let plain = bit == 7;
            let expected = if plain { "a plain frame" } else { "failed its check" };
            assert!(cause.contains(expected), "bit {bit}: {cause}");
        }
        world.end().await;
    });
}

#[test]
fn a_changed_close_is_no_close() {
    run("changed close", async {
        let mut world = World::new("tcp").await;
        let tap = Tap::new(world.socket()).await;
        let ends = Ends::meet(&mut world, Some(&tap), Habit::Keep).await;
        tap.change(|mut packet| {
            if let Some(last) = packet.last_mut() {
                *last ^= 1;
            }
            vec![packet]
        });
        ends.near.shard.close(ends.near.key, CloseReason::new(CloseCode::Normal, "bye"));
        let cause = ends.far.cause().await;
        assert!(cause.to_string().contains("failed its check"), "{cause}");
        tap.end().await;
        ends.leave().await;
        world.end().await;
    });
}

#[test]
fn moved_frames_end_the_connection() {
    run("moved frames", async {
        let mut world = World::for_connections("tcp", 16).await;
        for attack in ["drop", "repeat", "swap"] {
            world.listen_anew("tcp").await;
            let tap = Tap::new(world.socket()).await;
            let ends = Ends::meet(&mut world, Some(&tap), Habit::Keep).await;
            let (mut count, mut kept) = (0, None);
            tap.change(move |packet| {
                count += 1;
                match (attack, count) {
                    ("drop", 1) => Vec::new(),
                    ("repeat", 1) => vec![packet.clone(), packet],
                    ("swap", 1) => {
                        kept = Some(packet);
                        Vec::new()
                    }
                    ("swap", 2) => [packet].into_iter().chain(kept.take()).collect(),
                    _ => vec![packet],
                }
            });
            // Of one length, as a changed length of the stream would be found by other means.
            ends.near.send(b"first");
            ends.near.send(b"other");
            let cause = ends.far.cause().await;
            assert!(cause.to_string().contains("failed its check"), "{attack}: {cause}");
            assert_eq!(ends.far.events().received, u64::from(attack == "repeat"));
            tap.end().await;
            ends.leave().await;
        }
        world.end().await;
    });
}

/// A server's cause about a client that is let in and then does `act`.
async fn provoked(act: impl FnOnce(&mut Raw, &mut Sealer)) -> String {
    let mut world = World::new("tcp").await;
    let (address, [_, theirs]) = (world.address.clone(), sealing());
    let probe = Probe::new(Habit::Echo);
    let record = probe.record();
    let accepting = accept(&world.far, &mut *world.listener, probe, Some(&theirs));
    let unlocking = async {
        let mut client = RawClient::connect_with(&address, "tcp", Protection::Encrypt).await;
        client.send();
        client.receive().await;
        client.link.finish().unwrap();
        client.send();
        while !client.link.is_unlocked() {
            for (imm, frame) in client.raw.bytes_of_frames().await {
                client.link.on_frame(imm, &frame).unwrap();
            }
        }
        client
    };
    let (accepted, RawClient { mut raw, link }) = tokio::join!(accepting, unlocking);
    let end = End { shard: Arc::clone(&world.far), key: accepted.unwrap().key, record };
    let (mut sealer, _opener) = link.sealing().unwrap();
    act(&mut raw, &mut sealer);
    let ending = async {
        let cause = end.cause().await;
        end.leave().await;
        cause
    };
    let cause = tokio::select! {
        cause = ending => cause,
        () = raw.listen() => unreachable!(),
    };
    assert_eq!(end.events().received, 0);
    world.check_works().await;
    world.end().await;
    cause.to_string()
}

#[test]
fn plain_frames_end_a_sealed_connection() {
    run("plain frames", async {
        let grant = Grant { data: 1, ..Grant::default() };
        let reason = CloseReason::new(CloseCode::ShuttingDown, "go away");
        for plain in [
            [&frame::header(Kind::Data, Grant::default())[..], b"call"].concat(),
            frame::header(Kind::Ack, grant).to_vec(),
            frame::header(Kind::Ping, grant).to_vec(),
            frame::close_frame(&reason).to_vec(),
            frame::handshake_header(0, 0).to_vec(),
            frame::unlocked_header().to_vec(),
        ] {
            let cause = provoked(|raw, _| raw.post(SendOp::Send, &plain)).await;
            assert!(cause.contains("a plain frame on a sealed connection"), "{cause}");
        }
        // In clear, with the mark of a sealed one.
        let marked = [&[0x81][..], &[0; 40]].concat();
        let cause = provoked(|raw, _| raw.post(SendOp::Send, &marked)).await;
        assert!(cause.contains("failed its check"), "{cause}");
        let cause = provoked(|raw, _| raw.post(SendOp::Send, &[0x81; 20])).await;
        assert!(cause.contains("cut off"), "{cause}");
    });
}

#[test]
fn immediates_end_a_sealed_connection() {
    run("immediates", async {
        let cause = provoked(|raw, sealer| {
            let mut ack = vec![0; frame::HEADER_BYTES + TAG_BYTES];
            let grant = Grant { data: 1, ..Grant::default() };
            ack[..8].copy_from_slice(&frame::header(Kind::Ack, grant));
            sealer.seal(&mut ack).unwrap();
            raw.post(SendOp::SendWithImm(grant.to_imm()), &ack);
        })
        .await;
        assert!(cause.contains("immediate data"), "{cause}");
    });
}

/// Blocks that name memory which was not offered, or records that cannot be.
#[test]
fn frames_that_name_wrong_memory_end_the_connection() {
    run("memory", async {
        let segment =
            Segment { number: 0, last: true, abort: false, head_end: true, offset: 0, total: 4096 };
        let extents = Extents::from_slice(&[Extent { first: 0, count: 1 }]).unwrap();
        let slot = SlotBlock { slot: 0, rkey: 1, address: 4096, len: 4096 };
        let message = Blocks { segment: Some(segment), ..Blocks::default() };
        let placed = Some(Placed { slot: 0, bytes: 4096 });
        let written = |bytes, epoch| {
            let tags = Some(Box::new(Tags { epoch, first: 0, tags: vec![[0; TAG_BYTES]; 1] }));
            Blocks { written: Some(Written { bytes, extents }), tags, ..message.clone() }
        };
        let untold = Blocks { tags: None, ..written(4096, 0) };
        for (blocks, rule) in [
            (Blocks { slot: Some(slot), ..Blocks::default() }, "SLOT block without"),
            (Blocks { placed, ..message.clone() }, "PLACED block without"),
            (written(4096, 0), "chunk"),
            (written(4096, 1), "records of key 1 in a frame of key 0"),
            (written(300_000, 0), "which names 4 records at most"),
            (untold, "cut off"),
        ] {
            let cause = provoked(|raw, sealer| {
                let mut frame = blocks.to_prefix(Kind::Data, Grant::default()).to_vec();
                frame.extend_from_slice(&[0; TAG_BYTES]);
                sealer.seal(&mut frame).unwrap();
                raw.post(SendOp::Send, &frame);
            })
            .await;
            assert!(cause.contains(rule), "{rule}: {cause}");
        }
    });
}

#[test]
fn keys_change_under_traffic() {
    run("rekey", async {
        let mut world = World::new("tcp").await;
        for border in 1..4 {
            let ends = Ends::meet(&mut world, None, Habit::Echo).await;
            ends.echo(b"before").await;
            // The server has acknowledged nothing else, so nothing is under way.
            for end in [&ends.near, &ends.far] {
                end.shard.skip_frames(end.key, border * REKEY_FRAMES - 9);
            }
            for number in 0..40_u8 {
                ends.echo(&[number; 30]).await;
            }
            ends.echo(&pattern(border, 500_000)).await;
            ends.leave().await;
        }
        world.end().await;
    });
}

/// Both ends count alone.
#[test]
fn an_end_that_miscounts_is_refused() {
    run("miscounts", async {
        for wire in WIRES {
            let mut world = World::new(wire).await;
            let ends = Ends::meet_with(&mut world, None, Habit::Keep, &sealing_all()).await;
            ends.near.shard.skip_frames(ends.near.key, REKEY_FRAMES);
            ends.near.send(b"call");
            let cause = ends.far.cause().await;
            assert!(cause.to_string().contains("failed its check"), "{wire}: {cause}");
            ends.leave().await;
            world.end().await;
        }
    });
}

/// Whether these bytes lie in memory that this process shares with others.
fn is_shared(bytes: &[u8]) -> bool {
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().any(|mapping| {
        let mut fields = mapping.split_ascii_whitespace();
        let (Some(range), Some(access)) = (fields.next(), fields.next()) else { return false };
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|address| u64::from_str_radix(address, 16).unwrap());
        let mut content = vec![0; usize::try_from(to - from).unwrap()];
        access.ends_with('s')
            && memory.read_exact_at(&mut content, from).is_ok()
            && content.windows(bytes.len()).any(|found| found == bytes)
    })
}

/// Processes of one user may read what two others share.
#[test]
fn shared_memory_has_no_sealed_message() {
    run("shared memory", async {
        for (securities, reads) in [(sealing(), true), (sealing_all(), false)] {
            let mut world = World::new("shm").await;
            let ends = Ends::meet_with(&mut world, None, Habit::Echo, &securities).await;
            let (key, value) = (format!("the key of {reads}"), pattern(6, 300_000));
            ends.echo(key.as_bytes()).await;
            assert_eq!(is_shared(key.as_bytes()), reads);
            ends.echo(&value).await;
            assert_eq!(is_shared(&value[299_000..299_040]), reads);
            ends.leave().await;
            world.end().await;
        }
        // Both ends have to say so.
        for wire in ["mem", "shm"] {
            let mut world = World::new(wire).await;
            for [ours, theirs] in [[&sealing_all()[0], &server()], [&client(), &sealing_all()[1]]] {
                let (near, far) = world.meet([Some(ours), Some(theirs)], probes()).await;
                assert!(near.is_err() && far.is_err(), "{near:?} {far:?}");
            }
            world.check_works().await;
            world.end().await;
        }
    });
}

#[test]
fn sealed_messages_of_all_sizes_come_back() {
    run("sizes", async {
        let seed = variable("MODEL_SEED").unwrap_or(7);
        let _print = PrintSeed::new(seed);
        let mut random = Random::new(seed);
        let mut world = World::new("tcp").await;
        let ends = Ends::meet(&mut world, None, Habit::Echo).await;
        let limits = [65, 1025, 9000, 70_000, (1 << 20) + 1];
        // The longest frames among them.
        let mut lens: Vec<_> = (0..60).map(|less| (8 << 10) + 8 - less).collect();
        lens.extend((0..150).map(|_| {
            let limit = random.pick(&limits);
            random.below(limit) as usize
        }));
        for (number, len) in (0..).zip(lens) {
            ends.echo(&pattern(number, len)).await;
        }
        ends.leave().await;
        world.end().await;
    });
}

/// On devices that read memory in place and take little inline.
#[test]
fn frames_are_sealed_on_every_kind_of_nic() {
    run("nics", async {
        for profile in PROFILES.into_iter().filter(|profile| profile.has_rc) {
            let plan = FaultPlan::new(1).profile(profile);
            let mut world = World::on("mem", 4, Some(plan)).await;
            let ends = Ends::meet(&mut world, None, Habit::Echo).await;
            for (number, len) in (0..).zip([0, 1, 60, 64, 300, 1025, 9000, 300_000].repeat(9)) {
                ends.echo(&pattern(number, len)).await;
            }
            let name = &ends.near.shard.device().attributes().name;
            assert!(name.contains(profile.driver), "{name}");
            ends.leave().await;
            world.end().await;
        }
    });
}

#[test]
fn sealed_frames_may_come_right_behind_unlocked() {
    run("sealed late frames", async {
        let mut world = World::new("tcp").await;
        let [near, mut far] = probes();
        let record = near.record();
        for number in 0..7_u8 {
            far.send(&[number; 40]);
        }
        let [ours, theirs] = sealing();
        let (near, far) = world.meet([Some(&ours), Some(&theirs)], [near, far]).await;
        let end = End { shard: Arc::clone(&world.near), key: near.unwrap().key, record };
        for number in 0..7_u8 {
            assert_eq!(*end.next().await.to_vec(), [number; 40]);
        }
        world.far.release(far.unwrap().key);
        end.leave().await;
        world.end().await;
    });
}

#[test]
fn a_sealed_close_right_away_says_why() {
    run("sealed close", async {
        for _ in 0..30 {
            let [ours, theirs] = sealing();
            let why = why_closed_at_once("tcp", &ours, &theirs).await;
            assert!(why.contains("ShuttingDown: for the night"), "{why}");
        }
    });
}

#[test]
fn both_ends_must_say_the_same_level() {
    run("levels", async {
        let mut world = World::new("tcp").await;
        for (ours, theirs) in [(&sealing()[0], &server()), (&client(), &sealing()[1])] {
            let (near, far) = world.meet([Some(ours), Some(theirs)], probes()).await;
            assert!(near.is_err() && far.is_err(), "{near:?} {far:?}");
        }
        world.check_works().await;
        world.end().await;
        // Among processes of one machine there is but one level.
        for wire in ["mem", "shm"] {
            let mut world = World::new(wire).await;
            let securities = [sealing()[0].clone(), server()];
            let ends = Ends::meet_with(&mut world, None, Habit::Echo, &securities).await;
            ends.echo(b"call").await;
            ends.leave().await;
            world.end().await;
        }
    });
}
