//! The shm wire: a peer that writes arbitrary bytes into the shared memory. It may end its own
//! connection, and nothing else.
#![no_main]
#![allow(dead_code, unused_imports, reason = "parts of a fixture of the tests")]

#[path = "../../rpc-transport/tests/conformance/fixture.rs"]
mod fixture;
#[path = "../../rpc-transport/tests/hostile_soft/victim.rs"]
mod victim;

use std::cell::RefCell;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use rpc_transport::address::Address;
use rpc_transport::device::soft;
use rpc_transport::device::{QpHandle, QpState, Source};
use rpc_transport::memory::region::{Access, MemoryRegion};
use test_kit::Rng;
use test_kit::hostile::shm::word::{ACCEPTED, ARMED, NAK};
use test_kit::hostile::shm::{SEGMENT_BYTES, Wire};
use test_kit::hostile::span;

use self::fixture::{contents, send};
use self::victim::Victim;

/// Honest traffic is checked once in this many runs.
const CHECKED: u64 = 16;

thread_local! {
    static WORLD: RefCell<(u64, Victim, MemoryRegion)> = RefCell::new(new_world());
}

fn new_world() -> (u64, Victim, MemoryRegion) {
    let address: Address = format!("shm://fuzz-{}", std::process::id()).parse().expect("good");
    let listen = async || soft::listen_shm(&address).expect("a name");
    let victim = Victim::new(listen, Arc::new(soft::ShmConnector::default()));
    let readable = victim.region(Access::REMOTE_READ);
    (0, victim, readable)
}

fuzz_target!(|data: &[u8]| {
    WORLD.with_borrow_mut(|(runs, victim, region)| {
        let asked = Wire::ask(&victim.listener.local_address().to_string());
        let mut rng = Rng::from_bytes(data);
        let shares = rng.chance(50);
        let qp = if shares { victim.accept_shared() } else { victim.accept() };
        let mut wire = asked.wire();
        while rng.has_bytes() {
            step(victim, &mut wire, qp, region, &mut rng);
        }
        for _ in 0..4 {
            victim.poll();
        }
        if shares {
            // Only a drained QP has given back all that it took (rule 22).
            victim.server.cq.modify_to_error(qp).expect("it is there");
            victim.wait_drained(qp);
        }
        victim.server.cq.destroy_qp(qp).expect("it is there");
        victim.poll();
        if shares {
            victim.assert_all_recvs_there(qp);
        }
        victim.completions.clear();
        *runs += 1;
        if runs.is_multiple_of(CHECKED) {
            assert!(contents(region).iter().all(|byte| *byte == 7), "it may only be read");
            victim.assert_unharmed();
        }
    });
});

fn step(victim: &mut Victim, wire: &mut Wire, qp: QpHandle, region: &MemoryRegion, rng: &mut Rng) {
    match rng.below(8) {
        // Arbitrary bytes at arbitrary places.
        0 => {
            let at = rng.index(SEGMENT_BYTES - 16);
            let bytes = rng.bytes(16);
            wire.own.put(at, &bytes);
        }
        1 => {
            let at = rng.pick(&[ACCEPTED, ACCEPTED + 1, NAK, ARMED]);
            wire.own.put(at, &[rng.byte()]);
        }
        2 => {
            // It may be full: nobody accepts.
            if victim.state(qp) == QpState::ReadyToSend {
                let mut wr = [send(1, true, Source::Inline(b"x"))];
                let _ = victim.server.cq.post_send(qp, &mut wr);
                victim.server.cq.flush();
            }
        }
        3 => victim.poll(),
        // Packets that name real memory.
        4 => {
            let (address, len) = (region.remote_address(rng.below(5000)), rng.below(5000));
            let mut body = span(address, region.rkey(), rng.byte().into(), len);
            let more = rng.index(40);
            body.extend(rng.bytes(more));
            let (op, flags) = (rng.byte() % 12, rng.byte() % 16);
            wire.send(op, flags, &body);
        }
        // Packets that begin correctly.
        _ => {
            let len = rng.index(120);
            let body = rng.bytes(len);
            let claimed = if rng.chance(80) { len } else { rng.index(0x1_0000) };
            let (op, flags) = (rng.byte() % 12, rng.byte() % 16);
            wire.packet(op, flags, claimed, &body);
        }
    }
}
