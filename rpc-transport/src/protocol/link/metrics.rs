//! A snapshot of a link's counters, for metrics and tests. Changes nothing.

use super::bulk::landing_zone::LandingZone;
use super::{Lane, Link};
use crate::protocol::arena::{ArenaOwner, ArenaWriter};
use crate::protocol::credit::Counters;

/// A snapshot of a link, for metrics and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkMetrics {
    /// Credits held and owed, free SQ slots.
    pub counters: Counters,
    /// Messages that wait in the urgent lane.
    pub urgent_count: usize,
    /// Messages that wait in the small lane.
    pub small_count: usize,
    /// Messages that wait in the bulk lane, the one being sent not counted.
    pub bulk_count: usize,
    /// Bytes left of the bulk message being sent.
    pub bulk_unsent_bytes: u64,
    /// All other frames wait for the end of a segment whose message was revoked.
    pub is_segment_first: bool,
    /// Data credits of bulk frames not yet returned, as of the last bulk frame.
    pub bulk_credits_out: usize,
    /// Bytes held of a message that is arriving in segments.
    pub assembly_bytes: u64,
    /// Reply slots of this end that the peer may still write.
    pub open_slots: usize,
    /// Chunks of this end's arenas.
    pub landing_chunks: u32,
    /// Chunks of this end's arenas that hold messages.
    pub landing_held: u32,
    /// Chunks of this end's arenas whose release waits for a frame.
    pub landing_releasing: u32,
    /// Chunks in the peer's arenas, as far as this end knows.
    pub peer_chunks: u32,
    /// Chunks in the peer's arenas that it has not asked back.
    pub peer_usable: u32,
    /// Chunks in the peer's arenas that are free to write.
    pub peer_free: u32,
    /// Times that something had to wait because the peer had granted no data credit.
    pub starved_count: u64,
    /// Times that something had to wait because the SQ had no free slot.
    pub queue_full_count: u64,
}

/// What this link ran short of. Counts how often that began, not how long it lasted: the link has
/// no clock.
#[derive(Debug, Default)]
pub(super) struct Shortages {
    starved_count: u64,
    queue_full_count: u64,
    is_starved: bool,
    is_full: bool,
}

impl Shortages {
    /// Something waits to be sent, and this is what there is for it.
    #[inline]
    pub(super) fn look(&mut self, counters: &Counters) {
        let (is_starved, is_full) = (counters.data_credits == 0, counters.data_slots == 0);
        self.starved_count += u64::from(is_starved && !self.is_starved);
        self.queue_full_count += u64::from(is_full && !self.is_full);
        (self.is_starved, self.is_full) = (is_starved, is_full);
    }
}

impl Link {
    /// A snapshot.
    #[must_use]
    pub fn metrics(&self) -> LinkMetrics {
        let owner = self.assembly.landing().map(LandingZone::owner);
        let writer = self.write_path.as_ref().map(|path| path.arenas());
        LinkMetrics {
            counters: self.credits.counters(),
            urgent_count: self.lanes.count(Lane::Urgent),
            small_count: self.lanes.count(Lane::Small),
            bulk_count: self.lanes.count(Lane::Bulk),
            bulk_unsent_bytes: self.segmenter.unsent_bytes() + self.bulk.unsent_bytes(),
            is_segment_first: self.bulk.must_finish(),
            bulk_credits_out: self.bulk.window().credits_out(),
            assembly_bytes: self.assembly.held_bytes(),
            open_slots: self.open_slot_count(),
            landing_chunks: owner.map_or(0, ArenaOwner::chunk_count),
            landing_held: owner.map_or(0, ArenaOwner::held_count),
            landing_releasing: owner.map_or(0, ArenaOwner::releasing_count),
            peer_chunks: writer.map_or(0, ArenaWriter::chunk_count),
            peer_usable: writer.map_or(0, ArenaWriter::usable_count),
            peer_free: writer.map_or(0, ArenaWriter::free_count),
            starved_count: self.shortages.starved_count,
            queue_full_count: self.shortages.queue_full_count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::credit::{Owed, SendQueueMark};

    #[test]
    fn shortage_counts_once_however_often_checked() {
        let mut shortages = Shortages::default();
        let mut look = |data_credits, data_slots| {
            shortages.look(&Counters {
                data_credits,
                data_slots,
                ack_credits: 1,
                owed: Owed::default(),
                local_window: 8,
                remote_window: 8,
                is_asked: false,
                ack_slots: 1,
                unsignaled: 0,
                posted: SendQueueMark::default(),
            });
            (shortages.starved_count, shortages.queue_full_count)
        };
        assert_eq!(look(1, 1), (0, 0));
        assert_eq!(look(0, 1), (1, 0));
        assert_eq!(look(0, 0), (1, 1));
        assert_eq!(look(0, 0), (1, 1));
        assert_eq!(look(5, 0), (1, 1));
        assert_eq!(look(0, 9), (2, 1));
    }
}
