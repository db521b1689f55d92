//! Reply slots: answers that are written straight into the caller's memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::device::fault::FaultPlan;
use rpc_transport::engine::upper::Submission;
use rpc_transport::memory::region::{Access, MemoryRegion};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::reply_slot::{PeerSlot, SlotOffer};
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::link::{Lane, Revoked};

use crate::parts::{KEEP, shared, warm_up};
use crate::world::{End, Options, Pair, WIRES, pattern, run};

/// Reports when it is dropped.
struct Owner(Arc<AtomicBool>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Slot {
    region: MemoryRegion,
    is_free: Arc<AtomicBool>,
}

impl Slot {
    fn new(end: &End, len: usize) -> (Self, SlotOffer) {
        let region = end.shard.domain().allocate(len, Access::REMOTE_WRITE).unwrap();
        let is_free = Arc::<AtomicBool>::default();
        let owner = Arc::new(Owner(Arc::clone(&is_free)));
        let offer = SlotOffer::new(region.clone(), 0, len as u64, Some(owner));
        (Self { region, is_free }, offer)
    }

    fn is_free(&self) -> bool {
        self.is_free.load(Ordering::SeqCst)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.region.len()];
        self.region.copy_out(0, &mut bytes);
        bytes
    }

    /// Waits until the memory has come back.
    async fn freed(&self) {
        while !self.is_free() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

fn submit(end: &End, tag: u64, frame: OutBuf) {
    end.with(|probe| probe.outbox.push_back(Submission { lane: Lane::Small, tag, frame }));
}

fn ask(end: &End, head: &[u8], offer: SlotOffer) {
    let mut frame = OutBuf::new();
    frame.extend_from_slice(head);
    frame.offer_slot(offer);
    submit(end, 1, frame);
}

fn answer(end: &End, tag: u64, slot: PeerSlot, tail: Vec<u8>) {
    let mut frame = OutBuf::new();
    frame.extend_from_slice(b"answer");
    frame.push_tail(shared(tail));
    frame.place_in(slot);
    submit(end, tag, frame);
}

fn open_slots(end: &End) -> usize {
    end.shard.link_metrics(end.key).unwrap().open_slots
}

#[test]
fn an_answer_lands_in_the_callers_memory() {
    run("slot", async {
        for wire in WIRES {
            let pair = Pair::with(wire, &Options { habits: KEEP, ..Options::default() }).await;
            // A small request, one that fills its frame, and one of many segments.
            for (round, head) in [10, 8180, 8192, 100_000].into_iter().enumerate() {
                let (slot, offer) = Slot::new(&pair.client, 500_000);
                ask(&pair.client, &pattern(1, head), offer);
                let mut request = pair.server.next().await;
                assert!(*request == pattern(1, head)[..]);
                let theirs = request.take_slot().expect("a slot came with it");
                assert_eq!(theirs.len(), 500_000);
                let tail = pattern(round as u64, 400_001);
                answer(&pair.server, 1, theirs, tail.clone());
                let mut reply = pair.client.next().await;
                assert_eq!(*reply, *b"answer");
                let payload = reply.take_tail().unwrap();
                assert!(!payload.is_private());
                assert!(payload.to_vec().unwrap() == tail, "{wire}");
                assert!(slot.bytes()[..tail.len()] == tail, "{wire}: it lies in the slot");
                assert!(!slot.is_free(), "a payload lies there");
                drop(payload);
                slot.freed().await;
                assert_eq!(open_slots(&pair.client), 0);
            }
            let landing = pair.client.shard.link_metrics(pair.client.key).unwrap().landing_chunks;
            assert_eq!(landing, 0, "no arena was needed");
            pair.end().await;
        }
    });
}

/// The answer's head takes several frames, its tail many parts, and the receive buffers are small.
#[test]
fn an_answer_of_many_pieces_lands_in_one() {
    run("pieces", async {
        for wire in WIRES {
            for buffer in [256, 1000, 8192] {
                let config = LinkConfig::default().keep_alive(None).receive_buffer_bytes(buffer);
                let options = Options { habits: KEEP, ..Options::alike(config) };
                let pair = Pair::with(wire, &options).await;
                for head in [0, 39, 41, 20_000] {
                    let (slot, offer) = Slot::new(&pair.client, 300_000);
                    ask(&pair.client, &pattern(1, head), offer);
                    let mut request = pair.server.next().await;
                    assert!(*request == pattern(1, head)[..]);
                    let mut frame = OutBuf::new();
                    frame.extend_from_slice(&pattern(2, head));
                    let mut tail = Vec::new();
                    for part in 0..50 {
                        let bytes = pattern(part, 1 + part as usize * 117);
                        tail.extend_from_slice(&bytes);
                        frame.push_tail(shared(bytes));
                    }
                    frame.place_in(request.take_slot().unwrap());
                    submit(&pair.server, 1, frame);
                    let mut reply = pair.client.next().await;
                    assert!(*reply == pattern(2, head)[..]);
                    let payload = reply.take_tail().unwrap();
                    assert!(payload.to_vec().unwrap() == tail, "{wire} {buffer} {head}");
                    assert!(slot.bytes()[..tail.len()] == tail, "{wire}: it lies in the slot");
                    drop(payload);
                    slot.freed().await;
                }
                pair.end().await;
            }
        }
    });
}

/// A caller that gives up a call has to wait for the proof; until then its memory counts.
#[test]
fn peer_writable_memory_stays_within_the_budget() {
    run("budget", async {
        for wire in WIRES {
            let config = LinkConfig::default().keep_alive(None).reply_slot_bytes(8192);
            let options = Options { habits: KEEP, ..Options::alike(config) };
            let pair = Pair::with(wire, &options).await;
            let (quarantined, offer) = Slot::new(&pair.client, 8192);
            ask(&pair.client, b"given up", offer);
            let theirs = pair.server.next().await.take_slot().unwrap();
            let (refused, offer) = Slot::new(&pair.client, 1);
            ask(&pair.client, b"beyond", offer);
            assert!(pair.server.next().await.take_slot().is_none(), "{wire}: beyond the budget");
            refused.freed().await;
            assert!(!quarantined.is_free(), "{wire}: without a proof");
            assert_eq!(open_slots(&pair.client), 1);
            drop(theirs);
            quarantined.freed().await;
            let (_slot, offer) = Slot::new(&pair.client, 8192);
            ask(&pair.client, b"again", offer);
            assert!(pair.server.next().await.take_slot().is_some());
            pair.end().await;
        }
    });
}

#[test]
fn oversized_answer_frees_its_slot() {
    run("too long", async {
        for wire in WIRES {
            let pair = Pair::with(wire, &Options { habits: KEEP, ..Options::default() }).await;
            let (slot, offer) = Slot::new(&pair.client, 4096);
            ask(&pair.client, b"ask", offer);
            let theirs = pair.server.next().await.take_slot().unwrap();
            answer(&pair.server, 1, theirs, pattern(3, 70_000));
            let payload = pair.client.next().await.take_tail().unwrap();
            assert!(payload.to_vec().unwrap() == pattern(3, 70_000));
            slot.freed().await;
            assert!(slot.bytes().iter().all(|byte| *byte == 0));
            drop(payload);
            pair.end().await;
        }
    });
}

#[test]
fn unused_slot_returns_with_its_answerer() {
    run("unused", async {
        for wire in WIRES {
            let pair = Pair::with(wire, &Options { habits: KEEP, ..Options::default() }).await;
            let (slot, offer) = Slot::new(&pair.client, 4096);
            ask(&pair.client, b"ask", offer);
            let mut request = pair.server.next().await;
            for _ in 0..20 {
                pair.client.send(b"other");
                pair.server.next().await;
            }
            assert!(!slot.is_free(), "the answerer may still write it");
            drop(request.take_slot());
            slot.freed().await;
            pair.end().await;
        }
    });
}

/// The device of the answerer reads and writes late; its answer is revoked midway. The memory is
/// returned only after the last WRITE, so that its next user is never overwritten.
#[test]
fn late_write_never_lands_in_returned_memory() {
    run("late", async {
        for seed in 0..30 {
            let plan = FaultPlan::new(seed).touch_memory_late(60).delay_completions(20);
            let options =
                Options { habits: KEEP, faults: Some([plan.clone(), plan]), ..Options::default() };
            let wire = ["mem", "shm", "tcp"][seed as usize % 3];
            let pair = Pair::with(wire, &options).await;
            warm_up(&pair.server, &pair.client).await;
            let (slot, offer) = Slot::new(&pair.client, 1 << 20);
            ask(&pair.client, b"ask", offer);
            let theirs = pair.server.next().await.take_slot().unwrap();
            answer(&pair.server, 77, theirs, pattern(9, 1 << 20));
            // Cancelled while it is being written.
            let taken = pair.server.shard.with_revoke(pair.server.key, |_, revoke| revoke(77));
            if matches!(taken, Some(Revoked::TooLate)) {
                drop(pair.client.next().await);
            }
            slot.freed().await;
            let as_it_came = slot.bytes();
            // Now the memory belongs to another call.
            for _ in 0..50 {
                pair.client.send(b"on");
                pair.server.next().await;
                pair.server.send(b"on");
                pair.client.next().await;
            }
            assert!(slot.bytes() == as_it_came, "{wire}: a late write, seed {seed}");
            assert_eq!(open_slots(&pair.client), 0);
            pair.client.shard.look(pair.client.key, |probe| std::mem::take(&mut probe.inbox));
            pair.end().await;
        }
    });
}

#[test]
fn ended_connection_returns_slots_after_its_qp() {
    run("end", async {
        for wire in WIRES {
            let pair = Pair::with(wire, &Options { habits: KEEP, ..Options::default() }).await;
            let (slot, offer) = Slot::new(&pair.client, 4096);
            ask(&pair.client, b"ask", offer);
            let theirs = pair.server.next().await.take_slot().unwrap();
            pair.client.shard.fail(pair.client.key, &CloseCause::Local);
            pair.client.gone().await;
            slot.freed().await;
            pair.server.gone().await;
            drop(theirs);
            for end in [&pair.client, &pair.server] {
                end.shard.release(end.key);
                end.shard.shutdown();
            }
        }
    });
}
