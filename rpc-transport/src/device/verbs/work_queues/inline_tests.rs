//! Both paths of an inline SEND give the device the same WRs: the one without a batch, and the
//! general one.
#![allow(unsafe_code, reason = "plays the device that posts go to")]

use std::cell::RefCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;

use super::*;
use crate::device::verbs::batch::{Refused, post_inline_to};
use crate::device::verbs::ffi;

const HANDLE: QpHandle = QpHandle { index: 3, generation: 5 };
const MAX_INLINE: u32 = 16;

/// A WR as the device received it, with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    key: u64,
    opcode: u32,
    flags: u32,
    /// One span for each SGE.
    spans: Vec<Vec<u8>>,
}

thread_local! {
    /// The WRs that the device received, one list per post.
    static POSTS: RefCell<Vec<Vec<Seen>>> = const { RefCell::new(Vec::new()) };
    static REFUSES: RefCell<bool> = const { RefCell::new(false) };
}

unsafe extern "C" fn record(
    _: *mut ffi::ibv_qp,
    mut wr: *mut ffi::ibv_send_wr,
    bad: *mut *mut ffi::ibv_send_wr,
) -> c_int {
    if REFUSES.with_borrow(|refuses| *refuses) {
        // SAFETY: `ibv_post_send(3)`: the pointer receives the first WR that was refused.
        unsafe { *bad = wr };
        return 12;
    }
    let mut list = Vec::new();
    while !wr.is_null() {
        // SAFETY: `ibv_post_send(3)`: a list of WRs, alive until this returns.
        let next = unsafe { &*wr };
        let count = usize::try_from(next.num_sge).unwrap();
        let sges = match count {
            0 => &[],
            // SAFETY: as above: it has this many SGEs.
            count => unsafe { std::slice::from_raw_parts(next.sg_list, count) },
        };
        let spans = sges.iter().map(|sge| {
            let first = std::ptr::with_exposed_provenance(usize::try_from(sge.addr).unwrap());
            // SAFETY: as above: the bytes of inline SGEs are there until this returns.
            unsafe { std::slice::from_raw_parts(first, sge.length as usize) }.to_vec()
        });
        let spans = spans.collect();
        list.push(Seen { key: next.wr_id, opcode: next.opcode, flags: next.send_flags, spans });
        wr = next.next;
    }
    POSTS.with_borrow_mut(|posts| posts.push(list));
    0
}

/// Calls `with` with a QP of a device that records posts; also returns the recorded posts.
fn posted<R>(with: impl FnOnce(*mut ffi::ibv_qp) -> R) -> (R, Vec<Vec<Seen>>) {
    let mut context = MaybeUninit::<ffi::ibv_context>::zeroed();
    let mut qp = MaybeUninit::<ffi::ibv_qp>::zeroed();
    let (context, qp) = (context.as_mut_ptr(), qp.as_mut_ptr());
    // SAFETY: allocated memory; zero is a valid value of all fields that `ibv_post_send` reads.
    let ops = unsafe { &mut (*context).ops };
    ops.post_send = Some(record);
    // SAFETY: as above.
    unsafe { (*qp).context = context };
    let result = with(qp);
    (result, POSTS.take())
}

/// The initial state of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    NotConnected,
    Ready,
    Full,
    /// The device has refused something.
    Broken,
    Failed,
}

const LIMIT: u32 = 3;

fn queues(start: Start) -> WorkQueues {
    let capacity = QpCapacity {
        max_send_wr: LIMIT,
        max_recv_wr: 1,
        max_inline_bytes: MAX_INLINE,
        uses_srq: false,
    };
    let (all, quirks) = (Capabilities::NONE, Quirks::default());
    let mut queues = WorkQueues::new(HANDLE, capacity, MAX_INLINE, 1 << 20, all, quirks);
    if start == Start::NotConnected {
        return queues;
    }
    queues.establish(&mut VecDeque::new());
    let before = if start == Start::Full { LIMIT } else { 1 };
    for wr_id in 0..u64::from(before) {
        let mut wr = SendWr { wr_id, op: SendOp::Send, signaled: false, source: Source::Empty };
        queues.post_send(&mut wr, &mut Batch::default()).unwrap();
    }
    match start {
        Start::Broken => queues.strand(1),
        Start::Failed => drop(queues.enter_error()),
        _ => {}
    }
    queues
}

/// Like [`CompletionQueue::post_send`](crate::device::CompletionQueue::post_send), with a flush.
fn in_batch(
    queues: &mut WorkQueues,
    (wr_id, signaled, bytes): (u64, bool, &[u8]),
    qp: *mut ffi::ibv_qp,
) -> Result<Result<(), Refused>, PostErrorKind> {
    let mut batch = Batch::default();
    let mut wr = SendWr { wr_id, op: SendOp::Send, signaled, source: Source::Inline(bytes) };
    queues.post_send(&mut wr, &mut batch)?;
    // SAFETY: a live QP, and no WR names memory.
    Ok(unsafe { batch.post_to(qp) })
}

/// The consequences of a post: the queues' record after it, and after the device's report.
fn reported(mut queues: WorkQueues, posts: &[Vec<Seen>], refused: Option<usize>) -> String {
    let (mut text, mut out) = (format!("{queues:?}"), VecDeque::new());
    if let Some(count) = refused {
        queues.strand(count);
    }
    queues.deliver_stranded(&mut out);
    for seen in posts.iter().flatten() {
        let key = WrKey::decode(seen.key).unwrap();
        let done = Outcome { status: Status::Success, byte_len: 4, imm: None, is_write: false };
        text += &format!("{} {out:?}", queues.complete(key, done, &mut out));
    }
    format!("{text} {queues:?} {out:?}")
}

#[test]
fn inline_send_is_equal_with_and_without_batch() {
    let bytes: [u8; MAX_INLINE as usize + 1] = *b"0123456789abcdefg";
    let starts = [Start::NotConnected, Start::Ready, Start::Full, Start::Broken, Start::Failed];
    let mut alone = 0;
    for start in starts {
        for (len, signaled, refuses) in (0..=bytes.len())
            .flat_map(|len| [(len, false, false), (len, true, false), (len, true, true)])
        {
            let case = (start, len, signaled, refuses);
            let wr = (7, signaled, &bytes[..len]);
            REFUSES.set(refuses);
            let mut general = queues(start);
            let (result, posts) = posted(|qp| in_batch(&mut general, wr, qp));
            let mut fast = queues(start);
            let (fast_result, fast_posts) = posted(|qp| match fast.hold_small(7, signaled, len) {
                Some(key) => {
                    alone += 1;
                    // SAFETY: a live QP.
                    Ok(unsafe { post_inline_to(qp, key, signaled, wr.2) })
                }
                None => in_batch(&mut fast, wr, qp),
            });
            assert_eq!(fast_posts, posts, "{case:?}");
            assert_eq!(format!("{fast_result:?}"), format!("{result:?}"), "{case:?}");
            let refused = result.ok().and_then(|posted| posted.err()).map(|refused| refused.count);
            assert_eq!(
                reported(fast, &posts, refused),
                reported(general, &posts, refused),
                "{case:?}"
            );
        }
    }
    // Every length, on queues that have room.
    assert_eq!(alone, 3 * MAX_INLINE, "the way without a batch is taken where it may be");
}
