//! Readers of streams are woken by what arrives, and by the end.

use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Wake};

use super::*;

/// The reader of a stream whose segment comes with a DONE of no slot: it was taken out of the
/// stream, and never woken.
#[test]
fn reader_learns_of_end_by_a_broken_segment() {
    struct Counts(AtomicU32);
    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let config = config().assembly_bytes(1000);
    let offer = Offer::new(&config, Features::ARENA.with(Features::REPLY_SLOTS), 7);
    let agreed = offer.agree_as_server(&offer).unwrap();
    let mut end = Link::new(&config, &agreed, Instant::now()).unwrap();
    let segment = |offset, head_end, done: Vec<u32>| {
        let (last, abort, total) = (false, false, 5000);
        let segment = Segment { number: 0, last, abort, head_end, offset, total };
        frame(Kind::Data, &Blocks { segment: Some(segment), done, ..Blocks::default() }, &[7; 200])
    };
    let Inbound::Assembled(mut message) = receive(&mut end, &segment(0, true, Vec::new())).unwrap()
    else {
        panic!("a stream is delivered with its head");
    };
    let mut stream = message.take_stream().unwrap();
    let counts = Arc::new(Counts(0.into()));
    let waker = Waker::from(Arc::clone(&counts));
    let mut context = Context::from_waker(&waker);
    assert!(stream.poll_next(&mut context).is_pending());
    let error = refused(&mut end, &segment(200, false, vec![99]));
    assert_eq!(error, ProtocolError::UnknownSlot(99));
    // What the engine does at the end of a run, and at that of a connection.
    std::iter::from_fn(|| end.take_reader()).for_each(Waker::wake);
    end.abandon_messages();
    std::iter::from_fn(|| end.take_reader()).for_each(Waker::wake);
    drop(end.take_unfinished());
    drop(end);
    assert_ne!(counts.0.load(Ordering::Relaxed), 0, "it waits for ever");
}
