//! The tcp wire: a peer that sends arbitrary bytes, before or after a correct set-up. It may end
//! its own connection, and nothing else.
#![no_main]
#![allow(dead_code, unused_imports, reason = "parts of a fixture of the tests")]

#[path = "../../rpc-transport/tests/conformance/fixture.rs"]
mod fixture;
#[path = "../../rpc-transport/tests/hostile_soft/victim.rs"]
mod victim;

use std::cell::RefCell;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rpc_transport::address::{Address, HostPort};
use rpc_transport::device::QpState;
use rpc_transport::device::soft;
use test_kit::Rng;
use test_kit::hostile::kind::{REPLY, REQUEST};
use test_kit::hostile::tcp::{dial, frame, message, read_message};

use self::fixture::readable;
use self::victim::Victim;

/// Honest traffic is checked once in this many runs.
const CHECKED: u64 = 16;

thread_local! {
    static WORLD: RefCell<(u64, Victim)> = RefCell::new((0, new_victim()));
}

fn new_victim() -> Victim {
    let listen = async || {
        let at = HostPort { host: "127.0.0.1".to_owned(), port: 0 };
        soft::listen_tcp(&at, Some(Arc::new(|request| request.to_vec()))).await.expect("a port")
    };
    Victim::new(listen, Arc::new(soft::TcpConnector))
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    WORLD.with_borrow_mut(|(runs, victim)| {
        let Address::Tcp(at) = victim.listener.local_address() else { return };
        let stream = dial(&at.host, at.port);
        match choice % 4 {
            0 => set_up(victim, stream, bytes),
            1 => flow(victim, stream, &frames(bytes), choice & 4 > 0),
            _ => flow(victim, stream, bytes, choice & 4 > 0),
        }
        *runs += 1;
        if runs.is_multiple_of(CHECKED) {
            victim.assert_unharmed();
            victim.assert_listening(&soft::TcpConnector);
        }
    });
});

/// Arbitrary bytes instead of a request: the listener closes, or has a request that is then
/// refused.
fn set_up(victim: &mut Victim, mut stream: TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let Victim { runtime, listener, .. } = victim;
    runtime.block_on(async {
        stream.set_nonblocking(true).expect("a socket option");
        let mut stream = tokio::net::TcpStream::from_std(stream).expect("a socket");
        let mut sink = tokio::io::sink();
        tokio::select! {
            _ = tokio::io::copy(&mut stream, &mut sink) => {}
            _ = async { loop { drop(listener.incoming().await) } } => {}
        }
    });
}

/// Frames whose heads are valid now and then.
fn frames(bytes: &[u8]) -> Vec<u8> {
    let mut rng = Rng::from_bytes(bytes);
    let mut all = Vec::new();
    while rng.has_bytes() {
        let (ack, op, flags) = (rng.below(3), rng.below(12), rng.below(16));
        let len = rng.below(40);
        let body = rng.bytes(usize::try_from(len).expect("small"));
        let small = |number: u64| u8::try_from(number).expect("small");
        all.extend(frame(u32::try_from(ack).expect("small"), small(op), small(flags), &body));
    }
    all
}

/// Bytes after a correct set-up, until this side's end has been noticed.
fn flow(victim: &mut Victim, mut stream: TcpStream, bytes: &[u8], shares: bool) {
    stream.write_all(&message(REQUEST, &[0; 56])).expect("a fresh connection");
    let qp = if shares { victim.accept_shared() } else { victim.accept() };
    assert_eq!(read_message(&mut stream).expect("an answer").0, REPLY);
    for piece in bytes.chunks(1 + bytes.len() / 3) {
        if stream.write_all(piece).is_err() {
            break;
        }
        victim.poll();
    }
    let _ = stream.shutdown(Shutdown::Write);
    let cq = &mut victim.server.cq;
    let mut is_over = false;
    loop {
        cq.poll(&mut victim.completions, 16).expect("the queue lives");
        is_over |= std::iter::from_fn(|| cq.poll_event()).count() > 0;
        if is_over || cq.state(qp) == Some(QpState::Error) {
            break;
        }
        cq.arm().expect("the queue lives");
        let count = cq.poll(&mut victim.completions, 16).expect("the queue lives");
        is_over |= std::iter::from_fn(|| cq.poll_event()).count() > 0;
        if count == 0 && !is_over && cq.state(qp) != Some(QpState::Error) {
            let is_readable = readable(&[cq.event_fd()], Duration::from_secs(10));
            assert!(is_readable, "the queue does not report the end");
            cq.clear_events().expect("the queue lives");
        }
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
}
