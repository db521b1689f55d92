//! When posts to a tcp wire are written.

use std::os::unix::net::UnixStream;

use super::*;
use crate::device::soft::landing::Landing;
use crate::device::soft::packet::Head;

fn pair() -> (TcpWire, TcpWire) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (TcpWire::new(ours.into()), TcpWire::new(theirs.into()))
}

/// Packets of at most 4 KiB, discarded.
#[derive(Default)]
struct Taker {
    to: Vec<u8>,
    packets: usize,
}

impl TakePackets for Taker {
    fn has_room(&self) -> bool {
        true
    }

    fn begin(&mut self, _: Head, _: Extension) -> Result<Landing, Refusal> {
        self.to.resize(4096, 0);
        Ok(NonNull::from(&mut self.to[..]).cast())
    }

    fn finish(&mut self, _: Head, _: Extension) -> Result<(), Refusal> {
        self.packets += 1;
        Ok(())
    }
}

fn post(wire: &mut TcpWire, bytes: &[u8]) {
    let piece = Piece { base: NonNull::from(bytes).cast(), len: bytes.len() };
    let whole = Flags::FIRST.with(Flags::LAST);
    wire.send_copied(Op::Send, whole, Extension::None, [piece, Piece::EMPTY]).unwrap();
}

#[test]
fn only_small_posts_wait_while_bytes_are_pending() {
    let (mut ours, mut theirs) = pair();
    post(&mut ours, &[1; 64]);
    assert!(!ours.may_wait(), "nothing is on its way, so nobody will answer");
    ours.flush();
    post(&mut ours, &[2; 64]);
    assert!(ours.may_wait(), "the peer has not said that it has accepted the first");
    for _ in 0..8 {
        post(&mut ours, &[3; 4096]);
    }
    assert!(!ours.may_wait(), "32 KiB are worth a system call of their own");
    ours.flush();

    let mut taker = Taker::default();
    theirs.receive(&mut taker).unwrap();
    assert_eq!(taker.packets, 10);
    // An answer carries the acknowledgement.
    post(&mut theirs, &[4; 64]);
    theirs.flush();
    ours.receive(&mut taker).unwrap();
    post(&mut ours, &[5; 64]);
    assert!(!ours.may_wait(), "all of the above has been accepted");
}

#[test]
fn wire_keeps_no_bytes_read_directly() {
    let mut kept = Vec::new();
    for _ in 0..3 {
        let (mut ours, mut theirs) = pair();
        post(&mut ours, &[1; 64]);
        ours.flush();
        theirs.receive(&mut Taker::default()).unwrap();
        let scratch = SCRATCH.take();
        assert_eq!((scratch.len(), theirs.leftover.capacity()), (SCRATCH_BYTES, 0));
        kept.push(scratch.as_ptr());
        SCRATCH.set(scratch);
    }
    assert_eq!(kept, [kept[0]; 3], "one for all wires of a thread");
}
