//! Messages with tails, for tests of large ones.

use std::sync::Arc;

use rpc_transport::engine::upper::Submission;
use rpc_transport::memory::region::{Access, MemoryRegion};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::part::OutPart;
use rpc_transport::protocol::arena::ArenaConfig;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::link::Lane;

use crate::probe::Habit;
use crate::world::{End, pattern};

pub(crate) const KEEP: [Habit; 2] = [Habit::Keep, Habit::Keep];

pub(crate) fn quiet() -> LinkConfig {
    LinkConfig::default().keep_alive(None)
}

pub(crate) fn send(end: &End, head: &[u8], parts: impl IntoIterator<Item = OutPart>) {
    let mut frame = OutBuf::new();
    frame.extend_from_slice(head);
    for part in parts {
        frame.push_tail(part);
    }
    let submission = Submission { lane: Lane::Small, tag: 0, frame };
    end.with(|probe| probe.outbox.push_back(submission));
}

pub(crate) fn shared(bytes: Vec<u8>) -> OutPart {
    OutPart::shared(Arc::new(bytes))
}

/// Memory whose owner reports when it is dropped, and then panics.
pub(crate) fn owned(len: usize, gone: std::sync::mpsc::Sender<()>) -> OutPart {
    struct Owner(Vec<u8>, std::sync::mpsc::Sender<()>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            let _ = self.1.send(());
            panic!("on purpose");
        }
    }
    OutPart::shared(Arc::new(Owner(pattern(1, len), gone)))
}

/// A region of a domain, filled.
pub(crate) fn region(end: &End, bytes: &[u8]) -> MemoryRegion {
    end.shard.domain().register(bytes.to_vec(), Access::LOCAL).unwrap()
}

pub(crate) fn whole(region: MemoryRegion) -> OutPart {
    let len = region.len() as u64;
    OutPart::region(region, 0, len, None)
}

/// Sends messages until one has passed an arena.
pub(crate) async fn warm_up(from: &End, to: &End) {
    loop {
        send(from, b"warm", [shared(pattern(1, 60_000))]);
        let tail = to.next().await.take_tail().unwrap();
        assert_eq!(tail.to_vec().unwrap(), pattern(1, 60_000));
        if !tail.is_private() {
            return;
        }
    }
}

/// A small arena at both ends, and no limit on streamed bytes.
pub(crate) fn streaming() -> LinkConfig {
    let arena = ArenaConfig::default().arena_chunks(8).max_chunks(8);
    quiet().arena(arena).max_message_bytes(1 << 40).assembly_bytes(1 << 20)
}
