//! Large messages over sealed connections: what is written into memory is encrypted, and opened by
//! who reads it.

use std::io::{Read, Seek, SeekFrom};

use rpc_transport::device::fault::{FaultPlan, PROFILES};
use rpc_transport::message::payload::Payload;
use rpc_transport::message::read_error::ReadError;
use rpc_transport::protocol::lock::REKEY_FRAMES;

use super::World;
use super::sealed::Ends;
use super::tap::Tap;
use crate::parts::{region, send, shared, warm_up, whole};
use crate::probe::Habit;
use crate::random::{PrintSeed, Random, variable};
use crate::world::{pattern, run};

/// A tail that has arrived in records.
async fn sealed(ends: &Ends, bytes: &[u8]) -> Payload {
    warm_up(&ends.near, &ends.far).await;
    send(&ends.near, b"head", [shared(bytes.to_vec())]);
    let tail = ends.far.next().await.take_tail().unwrap();
    assert!(!tail.is_private());
    tail
}

#[test]
fn tails_of_all_sizes_travel_in_records() {
    run("record sizes", async {
        let seed = variable("MODEL_SEED").unwrap_or(11);
        let _print = PrintSeed::new(seed);
        let mut random = Random::new(seed);
        let mut world = World::new("tcp").await;
        let ends = Ends::meet(&mut world, None, Habit::Keep).await;
        warm_up(&ends.near, &ends.far).await;
        let mut held = Vec::new();
        for number in 0..120 {
            let limit = random.pick(&[5_000, 70_000, 140_000, 300_000, 1 << 20]);
            let lens = [random.below(limit) as usize + 1, random.below(limit / 2) as usize + 1];
            let bytes = lens.map(|len| pattern(number, len));
            // Memory of the connection's domain is copied, too.
            let parts = [whole(region(&ends.near, &bytes[0])), shared(bytes[1].clone())];
            send(&ends.near, &number.to_le_bytes(), parts);
            let mut message = ends.far.next().await;
            assert_eq!(*message, number.to_le_bytes());
            let tail = message.take_tail().unwrap();
            assert!(tail.to_vec().unwrap() == bytes.concat(), "message {number}");
            held.push((tail, bytes.concat()));
            if random.below(3) == 0 {
                held.clear();
            }
        }
        for (tail, bytes) in held.drain(..) {
            assert!(tail.into_vec().unwrap() == bytes);
        }
        ends.leave().await;
        world.end().await;
    });
}

#[test]
fn records_are_sealed_on_every_kind_of_nic() {
    run("records on nics", async {
        for profile in PROFILES.into_iter().filter(|profile| profile.has_rc) {
            let plan = FaultPlan::new(1).profile(profile);
            let mut world = World::on("mem", 4, Some(plan)).await;
            let ends = Ends::meet(&mut world, None, Habit::Keep).await;
            for (number, len) in (0..).zip([60_000, 70_000, 300_000, 1_000_000].repeat(2)) {
                let bytes = pattern(number, len);
                assert!(sealed(&ends, &bytes).await.to_vec().unwrap() == bytes);
            }
            ends.leave().await;
            world.end().await;
        }
    });
}

#[test]
fn a_tap_reads_no_record() {
    run("tapped records", async {
        let mut world = World::new("tcp").await;
        let tap = Tap::new(world.socket()).await;
        let ends = Ends::meet(&mut world, Some(&tap), Habit::Keep).await;
        let value = pattern(8, 300_000);
        let tail = sealed(&ends, &value).await;
        for at in (0..value.len() - 16).step_by(10_000) {
            assert!(!tap.has_seen(&value[at..at + 16]), "byte {at}");
        }
        drop(tail);
        ends.leave().await;
        tap.end().await;
        world.end().await;
    });
}

/// What each way out of a payload gives.
fn ways_out(payload: &Payload) -> Vec<(&'static str, Result<Vec<u8>, ReadError>)> {
    let len = usize::try_from(payload.len()).unwrap();
    let copied = {
        let mut room = vec![0xee; len];
        let copied = payload.copy_to(0, &mut room);
        assert!(copied.is_ok() || room == vec![0; len], "the buffer is not zeroed");
        copied.map(|()| room)
    };
    let appended = {
        let mut room = b"before".to_vec();
        let appended = payload.append_to(0..payload.len(), &mut room);
        assert!(appended.is_ok() || room == b"before", "something was appended");
        appended.map(|()| room.split_off(6))
    };
    let sent_on = payload.to_parts().map(|parts| {
        let mut room = Vec::new();
        parts.iter().for_each(|part| part.append_to(0..part.len(), &mut room));
        room
    });
    vec![
        ("to_vec", payload.to_vec()),
        ("into_vec", payload.clone().into_vec()),
        ("detach", payload.clone().detach().map(|it| it.as_private_slice().unwrap().to_vec())),
        ("copy_to", copied),
        ("append_to", appended),
        ("to_parts", sent_on),
        ("write_to", written(payload)),
    ]
}

/// What is written to a file.
fn written(payload: &Payload) -> Result<Vec<u8>, ReadError> {
    let memory = rustix::fs::memfd_create("records", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = std::fs::File::from(memory);
    let mut at = 0;
    while at < payload.len() {
        match payload.write_to(at, &file) {
            Ok(count) => at += count as u64,
            Err(error) => return Err(error.downcast().unwrap()),
        }
    }
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
    Ok(read)
}

#[test]
fn every_way_out_opens_what_it_gives() {
    run("ways out", async {
        let seed = variable("MODEL_SEED").unwrap_or(3);
        let _print = PrintSeed::new(seed);
        let mut random = Random::new(seed);
        let mut world = World::new("tcp").await;
        let ends = Ends::meet(&mut world, None, Habit::Keep).await;
        let bytes = pattern(9, 600_000);
        let tail = sealed(&ends, &bytes).await;
        assert_eq!(tail.as_private_slice(), None);
        let mut ranges = vec![0..600_000, 0..1, 65_536..131_072, 65_535..65_537, 262_100..262_200];
        ranges.extend((0..30).map(|_| {
            let start = random.below(600_000);
            start..start + random.below(600_001 - start)
        }));
        for range in ranges {
            let part = tail.slice(range.start..range.end);
            let expected = &bytes[range.start as usize..range.end as usize];
            for (name, read) in ways_out(&part) {
                assert!(read.unwrap() == expected, "{name} of {range:?}");
            }
        }
        // Sent on while it is unread, to a peer that shares no key with the sender.
        let others = Ends::meet(&mut world, None, Habit::Keep).await;
        send(&others.near, b"head", tail.to_parts().unwrap());
        let sent_on = others.far.next().await.take_tail().unwrap();
        drop(tail);
        assert!(sent_on.to_vec().unwrap() == bytes);
        drop(sent_on);
        others.leave().await;
        ends.leave().await;
        world.end().await;
    });
}

/// One bit of what is written is changed on the way.
#[test]
fn changed_records_give_nothing_out() {
    run("changed records", async {
        let mut world = World::for_connections("tcp", 64).await;
        for changed in 0..8 {
            world.listen_anew("tcp").await;
            let tap = Tap::new(world.socket()).await;
            let ends = Ends::meet(&mut world, Some(&tap), Habit::Keep).await;
            warm_up(&ends.near, &ends.far).await;
            let mut at = 250_000 / 8 * changed;
            tap.change_writes(move |mut packet| {
                // It begins with a head, and the first of a WRITE with a span.
                let len = packet.len() - 32;
                if at < len {
                    packet[32 + at] ^= 0x10;
                    at = usize::MAX;
                } else if at < usize::MAX {
                    at -= len;
                }
                vec![packet]
            });
            send(&ends.near, b"head", [shared(pattern(2, 250_000))]);
            let tail = ends.far.next().await.take_tail().unwrap();
            for (name, read) in ways_out(&tail) {
                assert_eq!(read.map(drop), Err(ReadError::Forged), "{name} after change {changed}");
            }
            let cause = ends.far.cause().await.to_string();
            assert!(cause.contains("a record failed its check"), "{cause}");
            ends.near.cause().await;
            drop(tail);
            tap.end().await;
            ends.leave().await;
        }
        world.end().await;
    });
}

/// What the old key has sealed is read when both ends have the new one.
#[test]
fn payloads_outlive_the_key_of_their_frame() {
    run("old keys", async {
        let mut world = World::new("tcp").await;
        for frames in [3, 9, 30] {
            let ends = Ends::meet(&mut world, None, Habit::Keep).await;
            // Nothing is under way yet.
            for end in [&ends.near, &ends.far] {
                end.shard.skip_frames(end.key, REKEY_FRAMES - frames);
            }
            let mut held = Vec::new();
            for number in 0..40 {
                let bytes = pattern(number, 100_000);
                send(&ends.near, b"head", [shared(bytes.clone())]);
                let tail = ends.far.next().await.take_tail().unwrap();
                assert!(tail.to_vec().unwrap() == bytes, "message {number}");
                held.push((tail, bytes));
            }
            for (tail, bytes) in held.drain(..) {
                assert!(tail.to_vec().unwrap() == bytes);
            }
            ends.leave().await;
        }
        world.end().await;
    });
}
