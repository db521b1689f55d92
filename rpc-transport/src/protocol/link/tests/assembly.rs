//! Messages that arrive in segments, and the memory that they take.

use super::super::bulk::assembly::Outcome;
use super::*;

/// Adds a segment whose bytes are all in its frame.
fn add(
    assembly: &mut Assembly,
    segment: Segment,
    payload: &[u8],
) -> Result<Outcome, ProtocolError> {
    let written = WrittenTo::Nowhere;
    let arrived = Arrived { segment, payload, written, slot: None };
    assembly.on_segment(Instant::now(), arrived, &|_| false)
}

#[test]
fn announced_but_unsent_bytes_cost_no_memory() {
    let mut assembly = Assembly::new(1 << 40, 1 << 40, None);
    let first = Segment {
        number: 0,
        last: false,
        abort: false,
        head_end: false,
        offset: 0,
        total: 1 << 40,
    };
    assert!(add(&mut assembly, first, &[0; 224]).unwrap().message.is_none());
    for at in 1..100 {
        let next = Segment { offset: 224 * at, ..first };
        assert!(add(&mut assembly, next, &[0; 224]).unwrap().message.is_none());
        assert!(assembly.reserved_bytes() as u64 <= 2 * 224 * (at + 1));
    }
}

/// Regression test: messages that were being put together did not count against any budget.
#[test]
fn message_without_memory_keeps_only_its_head() {
    let budget = MemoryBudget::new(1000);
    let mut assembly = Assembly::new(1 << 40, 1 << 40, None);
    assembly.set_budget(budget.clone());
    let segment = |number, offset, head_end, last| Segment {
        number,
        last,
        abort: false,
        head_end,
        offset,
        total: 1600,
    };
    for (number, head_end) in [(0, false), (1, true)] {
        // With a tail, and all in the head.
        let first = segment(number, 0, head_end, false);
        assert!(add(&mut assembly, first, &[1; 400]).unwrap().message.is_none());
        assert!(budget.used_bytes() >= 400, "{budget:?}");
        for at in [400, 800] {
            let next = segment(number, at, false, false);
            assert!(add(&mut assembly, next, &[2; 400]).unwrap().message.is_none());
            assert!(budget.used_bytes() <= 1000 && assembly.reserved_bytes() <= 1000);
        }
        let last = segment(number, 1200, false, true);
        let message = add(&mut assembly, last, &[3; 400]).unwrap().message.unwrap();
        assert_eq!(budget.used_bytes(), 0);
        let refusal = *message.refusal().unwrap();
        assert_eq!((refusal.total_bytes, refusal.reason.limit), (1600, 1000));
        assert_eq!(message.tail_bytes(), if head_end { 1200 } else { 0 });
        assert!(message[..256] == [1; 256] && message.len() <= 400);
    }
    // A message that fits the budget is charged until it is dropped.
    let whole = Segment { total: 900, ..segment(2, 0, false, true) };
    let message = add(&mut assembly, whole, &[4; 900]).unwrap().message.unwrap();
    assert_eq!((message.len(), budget.used_bytes()), (900, 900));
    drop(message);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn ending_connection_returns_arriving_messages() {
    let budget = MemoryBudget::new(1000);
    let mut assembly = Assembly::new(1 << 40, 1 << 40, None);
    assembly.set_budget(budget.clone());
    let first =
        Segment { number: 0, last: false, abort: false, head_end: false, offset: 0, total: 900 };
    assert!(add(&mut assembly, first, &[1; 400]).unwrap().message.is_none());
    assert!(budget.used_bytes() >= 400);
    drop(assembly.take_unfinished());
    assert_eq!(budget.used_bytes(), 0);
}

/// Its sender treats it as delivered once the head was sent, and waits for its reader.
#[test]
fn refused_stream_is_delivered_and_unblocks_its_sender() {
    let landing = LandingZone::new(ArenaConfig::default(), Slots::new(false, 0), Instant::now());
    let mut assembly = Assembly::new(1 << 40, 1000, Some(landing));
    assembly.set_budget(MemoryBudget::new(100));
    let segment = |offset, head_end, last| Segment {
        number: 0,
        last,
        abort: false,
        head_end,
        offset,
        total: 5000,
    };
    let head = add(&mut assembly, segment(0, true, false), &[7; 400]).unwrap();
    assert!(head.message.is_some_and(|message| message.refusal().is_some()));
    assert!(assembly.landing().unwrap().has_returns(), "the sender is notified");
    let rest = add(&mut assembly, segment(400, false, true), &[7; 4600]).unwrap();
    assert!(rest.message.is_none(), "once");
}
