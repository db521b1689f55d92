//! How much of the next segment may be staged: copied into registered memory and written from
//! there.
//!
//! Owns that number: the engine sets it, and the next segment is cut to it. Never copies.
//!
//! Invariants:
//! 1. A segment has no more bytes that must be staged than there is room for.
//! 2. A message that waits for room holds no credit and keeps no small message waiting.

use super::segmenter::Segmenter;
use crate::message::part::OutPart;
use crate::protocol::link::Link;

/// Which memory is written in place.
#[derive(Debug, Default)]
enum InPlace {
    #[default]
    All,
    /// That of this protection domain.
    Of(u64),
    Nothing,
}

/// The room of one end for staging.
#[derive(Debug, Default)]
pub(in crate::protocol::link) struct Staged {
    in_place: InPlace,
    /// Room for the next segment, bytes.
    room: u64,
    /// Room that the next segment waits for, bytes.
    wanted: Option<u64>,
}

impl Staged {
    fn is_staged(&self, part: &OutPart) -> bool {
        match self.in_place {
            InPlace::All => false,
            InPlace::Of(domain) => part.domain() != Some(domain),
            InPlace::Nothing => true,
        }
    }

    /// Nothing is written in place.
    pub(super) fn stage_all(&mut self) {
        self.in_place = InPlace::Nothing;
    }

    /// How many of the next `bytes` bytes to write may be a segment; `None`: it waits for room.
    /// `frame_room`: bytes of its frame for the end of the head.
    pub(super) fn fit(
        &mut self,
        segmenter: &Segmenter,
        frame_room: usize,
        bytes: u64,
    ) -> Option<u64> {
        self.wanted = None;
        if matches!(self.in_place, InPlace::All) {
            return Some(bytes);
        }
        let (mut staged, mut fit) = (0, 0);
        for part in segmenter.next_parts(frame_room, bytes) {
            let room = self.room.saturating_sub(staged);
            if self.is_staged(&part) {
                staged += part.len();
                fit += part.len().min(room);
            } else if staged <= self.room {
                fit += part.len();
            }
        }
        if staged > 0 && self.room == 0 {
            self.wanted = Some(staged);
            return None;
        }
        Some(fit)
    }

    /// A segment of these parts is sent: it takes the room.
    pub(super) fn on_sent(&mut self, parts: &[OutPart]) {
        if parts.iter().any(|part| self.is_staged(part)) {
            self.room = 0;
        }
    }
}

impl Link {
    /// From now on memory of other domains than this one is written only as far as there is room to
    /// stage it, at first none: see [`Link::wanted_staging`].
    pub fn stage_other_domains(&mut self, domain: u64) {
        if let Some(path) = &mut self.write_path
            && !path.is_sealed
        {
            path.staged.in_place = InPlace::Of(domain);
        }
    }

    /// How many bytes the large message that is next would stage with its next segment, if it waits
    /// for room. Answer with [`Link::set_staging_room`], now or later.
    #[must_use]
    pub fn wanted_staging(&self) -> Option<u64> {
        self.write_path.as_ref().and_then(|path| path.staged.wanted)
    }

    /// There is room to stage `bytes` bytes of one segment, fewer or more than were wanted. Then
    /// transmit.
    pub fn set_staging_room(&mut self, bytes: u64) {
        if let Some(path) = &mut self.write_path {
            (path.staged.room, path.staged.wanted) = (bytes, None);
            self.bulk.unblock();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::device::soft;
    use crate::memory::region::Access;
    use crate::message::outgoing::OutBuf;
    use crate::protocol::link::lanes::Queued;

    /// Bytes of the head beside a segment's other blocks.
    const FRAME_ROOM: usize = 100;

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "slow")]
        fn segment_stages_what_fits_and_sends_everything(
            parts in prop::collection::vec((any::<bool>(), 1_usize..5_000), 1..9),
            head in 0_usize..400,
            rooms in prop::collection::vec(prop_oneof![Just(0_u64), 1_u64..6_000], 1..200),
        ) {
            let domain = soft::mem_device().allocate_pd().unwrap();
            let region = domain.allocate(5_000, Access::LOCAL).unwrap();
            let mut message = OutBuf::new();
            message.extend_from_slice(&vec![1; head]);
            for (in_place, len) in &parts {
                message.push_tail(match in_place {
                    true => OutPart::region(region.clone(), 0, *len as u64, None),
                    false => OutPart::shared(Arc::new(vec![2; *len])),
                });
            }
            let total = message.total_len();
            let mut segmenter = Segmenter::new(1_000, u64::MAX, false);
            segmenter.start(Queued { tag: 1, message });
            let mut staged = Staged { in_place: InPlace::Of(region.domain()), room: 0, wanted: None };
            let mut rooms = rooms.into_iter().chain(std::iter::repeat(700));
            while segmenter.has_work() {
                let bytes = segmenter.writable(FRAME_ROOM, 4_000, 3);
                if bytes == 0 {
                    // The rest of a short head goes in a frame.
                    prop_assert!(segmenter.next(0).is_some());
                    continue;
                }
                let Some(fit) = staged.fit(&segmenter, FRAME_ROOM, bytes) else {
                    prop_assert!(staged.wanted.is_some_and(|wanted| 0 < wanted && wanted <= bytes));
                    prop_assert_eq!(staged.room, 0, "it waits though there is room");
                    staged.room = rooms.next().unwrap();
                    continue;
                };
                prop_assert!(0 < fit && fit <= bytes);
                let room = staged.room;
                let parts = segmenter.next_written(FRAME_ROOM, fit, false).unwrap().parts;
                let lens = |parts: &[OutPart]| parts.iter().map(OutPart::len).sum::<u64>();
                prop_assert_eq!(lens(&parts), fit);
                let copied: Vec<_> =
                    parts.iter().filter(|part| staged.is_staged(part)).cloned().collect();
                prop_assert!(lens(&copied) <= room);
                staged.on_sent(&parts);
                prop_assert_eq!(staged.room, if copied.is_empty() { room } else { 0 });
            }
            prop_assert_eq!(segmenter.unsent_bytes(), 0);
            prop_assert_eq!(segmenter.total(), total);
        }
    }
}
