//! Messages for which there is no memory: the beginning of the head is kept, however they are cut.

use super::*;
use crate::memory::budget::MemoryBudget;

/// What a segment carries: bytes in its frame, and bytes that are written into a chunk.
type Carried = (usize, u64);

/// The frames of a message whose head ends in the segment with the index `head_end`, if there is
/// one behind it, and the bytes of that head.
fn frames(carried: &[Carried], head_end: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
    let total = carried.iter().map(|(framed, written)| *framed as u64 + written).sum();
    let (mut offset, mut head, mut list) = (0, Vec::new(), Vec::new());
    let has_tail = head_end + 1 < carried.len();
    for (index, &(framed, written)) in carried.iter().enumerate() {
        let payload = pattern(index as u64, framed);
        let bytes = framed as u64 + written;
        let last = index + 1 == carried.len();
        let is_end = has_tail && index == head_end;
        let segment = Segment { number: 0, last, abort: false, head_end: is_end, offset, total };
        let chunks = extents(&[(u16::try_from(index).unwrap(), 1)]);
        let written = (written > 0).then_some(Written { bytes: written, extents: chunks });
        if !has_tail || index <= head_end {
            head.extend_from_slice(&payload);
        }
        if !has_tail || index < head_end {
            // A new arena is all zeros.
            let written = written.as_ref().map_or(0, |written| written.bytes);
            head.resize(head.len() + usize::try_from(written).unwrap(), 0);
        }
        let blocks = Blocks { segment: Some(segment), written, ..Blocks::default() };
        list.push(frame(Kind::Data, &blocks, &payload));
        offset += bytes;
    }
    (list, head)
}

proptest! {
    /// Regression: nothing was left of a head that the peer had written, and the connection ended.
    #[test]
    fn a_refused_message_keeps_its_beginning(
        carried in prop::collection::vec((1_usize..100, 1..CHUNK, any::<bool>()), 1..8),
        head_end in 0_usize..8,
        budget in 0_u64..20_000,
    ) {
        let last = carried.len() - 1;
        let segment = |(index, (framed, written, is_framed))| {
            if is_framed {
                (framed, 0)
            } else {
                // Only where the head ends, both.
                (if index == head_end && index < last { framed } else { 0 }, written)
            }
        };
        let carried: Vec<Carried> = carried.into_iter().enumerate().map(segment).collect();
        let (frames, head) = frames(&carried, head_end);
        let mut end = owner();
        end.set_memory_budget(MemoryBudget::new(budget));
        let mut delivered = Vec::new();
        for bytes in &frames {
            if let Inbound::Assembled(message) = receive(&mut end, bytes).unwrap() {
                delivered.push(message);
            }
        }
        prop_assert_eq!(delivered.len(), 1);
        let message = &delivered[0];
        let kept = if message.refusal().is_some() { head.len().min(256) } else { head.len() };
        prop_assert_eq!(&message[..], &head[..kept]);
    }
}
