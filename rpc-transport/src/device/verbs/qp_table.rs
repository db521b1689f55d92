//! The QPs of a CQ, by handle and by the keys of their WRs.
//!
//! Invariant: a slot whose QP was taken out has another generation, so no earlier handle or key
//! finds the slot's next QP.

use crate::device::QpHandle;

use super::wr_key::{MAX_QPS, WrKey};

pub(super) struct QpTable<Q> {
    slots: Vec<Slot<Q>>,
    free: Vec<u32>,
}

struct Slot<Q> {
    generation: u32,
    qp: Option<Box<Q>>,
}

impl<Q> QpTable<Q> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// The handle that the next QP will have; `None` when there are [`MAX_QPS`].
    pub(super) fn vacant(&self) -> Option<QpHandle> {
        let next = u32::try_from(self.slots.len()).ok().filter(|next| *next < MAX_QPS);
        let index = self.free.last().copied().or(next)?;
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation);
        Some(QpHandle { index, generation })
    }

    /// Adds a QP under the handle that [`QpTable::vacant`] gave last.
    pub(super) fn insert(&mut self, handle: QpHandle, qp: Q) {
        debug_assert_eq!(self.vacant(), Some(handle));
        let qp = Some(Box::new(qp));
        match self.free.pop() {
            Some(index) => self.slots[index as usize].qp = qp,
            None => self.slots.push(Slot { generation: handle.generation, qp }),
        }
    }

    pub(super) fn get(&self, handle: QpHandle) -> Option<&Q> {
        let slot = self.slots.get(handle.index as usize)?;
        slot.qp.as_deref().filter(|_| slot.generation == handle.generation)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, handle: QpHandle) -> Option<&mut Q> {
        let slot = self.slots.get_mut(handle.index as usize)?;
        if slot.generation != handle.generation {
            return None;
        }
        slot.qp.as_deref_mut()
    }

    /// The QP that a WR was posted on.
    #[inline]
    pub(super) fn of_key(&mut self, key: WrKey) -> Option<&mut Q> {
        let slot = self.slots.get_mut(key.qp as usize)?;
        if !key.is_of(slot.generation) {
            return None;
        }
        slot.qp.as_deref_mut()
    }

    /// The QP that has this index now.
    pub(super) fn at(&mut self, index: u32) -> Option<(QpHandle, &mut Q)> {
        let slot = self.slots.get_mut(index as usize)?;
        let handle = QpHandle { index, generation: slot.generation };
        Some((handle, slot.qp.as_deref_mut()?))
    }

    pub(super) fn take(&mut self, handle: QpHandle) -> Option<Box<Q>> {
        let slot = self.slots.get_mut(handle.index as usize)?;
        if slot.generation != handle.generation {
            return None;
        }
        let qp = slot.qp.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(handle.index);
        Some(qp)
    }

    pub(super) fn handles(&self) -> Vec<QpHandle> {
        let slots = self.slots.iter().zip(0..);
        let taken = slots.filter(|(slot, _)| slot.qp.is_some());
        taken.map(|(slot, index)| QpHandle { index, generation: slot.generation }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_handle_never_finds_the_next_qp() {
        let mut table = QpTable::new();
        let first = table.vacant().unwrap();
        table.insert(first, "first");
        assert_eq!(table.take(first).as_deref(), Some(&"first"));
        let second = table.vacant().unwrap();
        assert_eq!(second.index, first.index, "its place is used again");
        table.insert(second, "second");
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.take(first), None);
        assert_eq!(table.get(second), Some(&"second"));
        assert_eq!(table.at(second.index), Some((second, &mut "second")));
        assert_eq!(table.handles(), [second]);
    }
}
