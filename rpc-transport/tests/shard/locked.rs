//! A limit on locked memory, as NICs have it: without memory for a whole message, it is sent in
//! smaller pieces.

use rpc_transport::device::fault::{FaultPlan, MANA, MLX5};
use rpc_transport::engine::locked_need::channel_bytes;
use rpc_transport::engine::upper::Submission;
use rpc_transport::memory::budget::{MemoryBudget, Reservation};
use rpc_transport::memory::region::Access;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::part::OutPart;
use rpc_transport::message::reply_slot::{PeerSlot, SlotOffer};
use rpc_transport::protocol::link::Lane;

use crate::parts::{KEEP, quiet, region, send, shared, streaming, warm_up, whole};
use crate::world::{End, Options, Pair, pattern, run};

/// The limit on locked memory that systemd and container runtimes set, bytes.
const USUAL_LIMIT: u64 = 8 << 20;
const MIB: usize = 1 << 20;

/// Takes all lockable memory except `left` bytes.
pub(crate) fn squeeze(limit: &MemoryBudget, left: u64) -> Reservation {
    let taken = (limit.limit_bytes() - limit.used_bytes()).saturating_sub(left);
    limit.reserve(taken).unwrap()
}

/// A pair over devices, with a limit for each end.
async fn pair(options: &Options, profile: FaultPlan) -> (Pair, [MemoryBudget; 2]) {
    let limits = [(); 2].map(|()| MemoryBudget::new(64 << 20));
    let plans = limits.each_ref().map(|limit| profile.clone().lock_limit(limit));
    let options = Options { faults: Some(plans), habits: KEEP, ..options.clone() };
    (Pair::with("mem", &options).await, limits)
}

fn profile() -> FaultPlan {
    FaultPlan::new(1).profile(&MLX5).touch_memory_late(3).delay_completions(4)
}

/// Makes a message's tail.
type Tail = fn(from: &End, to: &End, number: u64) -> Vec<OutPart>;

fn bytes(_: &End, _: &End, number: u64) -> Vec<OutPart> {
    vec![shared(pattern(number, MIB))]
}

fn registered(from: &End, _: &End, number: u64) -> Vec<OutPart> {
    vec![whole(region(from, &pattern(number, MIB)))]
}

/// Registered in another domain, like data that came over another connection.
fn registered_elsewhere(_: &End, to: &End, number: u64) -> Vec<OutPart> {
    vec![whole(region(to, &pattern(number, MIB)))]
}

/// In place, copied, and in place again.
fn mixed(from: &End, _: &End, number: u64) -> Vec<OutPart> {
    let bytes = pattern(number, MIB);
    let (first, rest) = bytes.split_at(5_000);
    let (second, third) = rest.split_at(MIB / 2);
    vec![whole(region(from, first)), shared(second.to_vec()), whole(region(from, third))]
}

const KINDS: [(&str, Tail); 4] = [
    ("bytes", bytes),
    ("registered", registered),
    ("registered elsewhere", registered_elsewhere),
    ("mixed", mixed),
];

/// The rest of the limit once the connection is up: nothing, less than a short staging buffer,
/// several of those, a long one, several long ones.
const LEFT: [u64; 5] = [0, 12 << 10, 70 << 10, 300 << 10, 2 << 20];

fn ends(pair: &Pair, is_reply: bool) -> (&End, &End) {
    if is_reply { (&pair.server, &pair.client) } else { (&pair.client, &pair.server) }
}

/// A regression: two concurrent calls of 1 MiB ended a connection whose process might lock 8 MiB.
#[test]
fn concurrent_large_messages_respect_the_memory_limit() {
    run("locked", async {
        for left in LEFT {
            for (kind, tail) in KINDS {
                for is_reply in [false, true] {
                    let (pair, limits) = pair(&Options::default(), profile()).await;
                    let (from, to) = ends(&pair, is_reply);
                    let parts: Vec<_> = (0..4).map(|number| tail(from, to, number)).collect();
                    let taken = squeeze(&limits[usize::from(is_reply)], left);
                    for parts in parts {
                        send(from, b"large", parts);
                    }
                    for number in 0..4 {
                        let got = to.next().await.take_tail().unwrap();
                        assert!(
                            got.to_vec().unwrap() == pattern(number, MIB),
                            "{kind}, {left} left"
                        );
                    }
                    drop(taken);
                    pair.end().await;
                    assert_eq!(limits.map(|limit| limit.used_bytes()), [0, 0], "{kind}, {left}");
                }
            }
        }
    });
}

/// The receiver cannot lock an arena, and the sender cannot lock anything either.
#[test]
fn large_messages_arrive_without_lockable_memory() {
    run("nothing", async {
        for profile in [profile(), profile().profile(&MANA)] {
            let (pair, limits) = pair(&Options::default(), profile).await;
            let taken = limits.each_ref().map(|limit| squeeze(limit, 0));
            for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
                for number in 0..3 {
                    send(from, &pattern(number, 30_000), [shared(pattern(number, MIB))]);
                }
                for number in 0..3 {
                    let mut message = to.next().await;
                    assert!(*message == pattern(number, 30_000)[..]);
                    assert!(message.take_tail().unwrap().to_vec().unwrap() == pattern(number, MIB));
                }
            }
            drop(taken);
            pair.end().await;
        }
    });
}

/// As many concurrent small frames as the send queue holds, from the few send buffers available.
#[test]
fn concurrent_small_messages_respect_the_memory_limit() {
    run("small", async {
        for profile in [profile(), profile().profile(&MANA)] {
            for left in [0, 9_000, 40_000] {
                let (pair, limits) = pair(&Options::default(), profile.clone()).await;
                let taken = limits.each_ref().map(|limit| squeeze(limit, left));
                for round in 0..20 {
                    for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
                        for number in 0..100 {
                            from.send(&pattern(round + number, 3_000));
                        }
                        for number in 0..100 {
                            assert!(*to.next().await == pattern(round + number, 3_000)[..]);
                        }
                    }
                }
                drop(taken);
                pair.end().await;
            }
        }
    });
}

/// An answer longer than its caller's reassembly limit lies in the caller's slot from end to end,
/// however little memory there is to write it from.
#[test]
fn slot_answers_respect_the_memory_limit() {
    run("slots", async {
        for left in LEFT {
            for (kind, tail) in KINDS {
                let config = quiet().assembly_bytes(100_000);
                let (pair, limits) = pair(&Options::alike(config), profile()).await;
                let (from, to) = (&pair.server, &pair.client);
                let mut asked: Vec<(PeerSlot, Vec<OutPart>)> = Vec::new();
                for number in 0..3 {
                    let slot = to.shard.domain().allocate(MIB, Access::REMOTE_WRITE).unwrap();
                    let mut frame = OutBuf::new();
                    frame.extend_from_slice(b"ask");
                    frame.offer_slot(SlotOffer::new(slot, 0, MIB as u64, None));
                    submit(to, frame);
                    let slot = from.next().await.take_slot().unwrap();
                    asked.push((slot, tail(from, to, number)));
                }
                let taken = squeeze(&limits[1], left);
                for (slot, parts) in asked {
                    let mut frame = OutBuf::new();
                    frame.extend_from_slice(b"answer");
                    for part in parts {
                        frame.push_tail(part);
                    }
                    frame.place_in(slot);
                    submit(from, frame);
                }
                for number in 0..3 {
                    let tail = to.next().await.take_tail().unwrap();
                    assert!(!tail.is_private(), "{kind}: it lies in the slot");
                    assert!(tail.to_vec().unwrap() == pattern(number, MIB), "{kind}, {left} left");
                }
                drop(taken);
                pair.end().await;
            }
        }
    });
}

fn submit(end: &End, frame: OutBuf) {
    let submission = Submission { lane: Lane::Small, tag: 1, frame };
    end.with(|probe| probe.outbox.push_back(submission));
}

#[test]
fn streams_need_no_memory_that_is_not_there() {
    run("streams", async {
        for left in LEFT {
            for is_reply in [false, true] {
                let (pair, limits) = pair(&Options::alike(streaming()), profile()).await;
                let (from, to) = ends(&pair, is_reply);
                let taken = squeeze(&limits[usize::from(is_reply)], left);
                send(from, b"long", (0..4).map(|part| shared(pattern(part, MIB))));
                let mut stream = to.next().await.take_stream().unwrap();
                let mut read = Vec::new();
                while let Some(segment) = stream.next().await {
                    read.extend(segment.unwrap().to_vec().unwrap());
                }
                let sent: Vec<_> = (0..4).map(|part| pattern(part, MIB)).collect();
                assert!(read == sent.concat(), "{left} left");
                drop((stream, taken));
                pair.end().await;
            }
        }
    });
}

/// Memory that is returned later is used: data sent in small pieces goes in long ones again.
#[test]
fn staging_grows_once_memory_returns() {
    run("back", async {
        let (pair, limits) = pair(&Options::default(), profile()).await;
        let (from, to) = (&pair.client, &pair.server);
        let taken = squeeze(&limits[0], 0);
        let pass = async |count: u64| {
            for number in 0..count {
                send(from, b"large", [shared(pattern(number, MIB))]);
            }
            for number in 0..count {
                assert!(
                    to.next().await.take_tail().unwrap().to_vec().unwrap() == pattern(number, MIB)
                );
            }
        };
        warm_up(from, to).await;
        pass(2).await;
        drop(taken);
        let before = limits[0].used_bytes();
        // Until it has grown as far as a steady load requires.
        while limits[0].used_bytes() < before + (512 << 10) {
            pass(4).await;
        }
        let mut grown = 0;
        while grown != limits[0].used_bytes() {
            grown = limits[0].used_bytes();
            pass(4).await;
        }
        assert!(grown <= before + (3 << 20), "{grown} bytes are locked after {before}");
        pair.end().await;
    });
}

/// The need computed in advance is the device's charge, and a process that may lock exactly that
/// much has connections that carry everything.
#[test]
fn computed_need_equals_the_charge_and_suffices() {
    run("need", async {
        let configs = [
            quiet(),
            quiet().data_credits(7).receive_buffer_bytes(1 << 12),
            quiet().data_credits(300).send_queue_slots(200).receive_buffer_bytes(20_000),
        ];
        for config in configs {
            let need = channel_bytes(&config);
            let limits = [(); 2].map(|()| MemoryBudget::new(need));
            let faults = Some(limits.each_ref().map(|limit| profile().lock_limit(limit)));
            let options = Options { habits: KEEP, faults, ..Options::alike(config) };
            let pair = Pair::with("mem", &options).await;
            assert_eq!(limits.each_ref().map(MemoryBudget::used_bytes), [need; 2]);
            for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
                send(from, b"large", [shared(pattern(1, MIB))]);
                assert!(to.next().await.take_tail().unwrap().to_vec().unwrap() == pattern(1, MIB));
            }
            pair.end().await;
        }
    });
}

/// An established connection keeps within its part of the usual limit.
#[test]
fn usual_limit_suffices_for_two_ends() {
    run("usual", async {
        let limit = MemoryBudget::new(USUAL_LIMIT);
        let plan = profile().lock_limit(&limit);
        let faults = Some([plan.clone(), plan]);
        let pair = Pair::with("mem", &Options { habits: KEEP, faults, ..Options::default() }).await;
        for _ in 0..3 {
            for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
                for number in 0..6 {
                    send(from, b"large", [shared(pattern(number, MIB))]);
                }
                for number in 0..6 {
                    assert!(
                        to.next().await.take_tail().unwrap().to_vec().unwrap()
                            == pattern(number, MIB)
                    );
                }
            }
        }
        pair.end().await;
        assert_eq!(limit.used_bytes(), 0);
    });
}
