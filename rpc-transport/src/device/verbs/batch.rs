//! Send WRs that wait to be posted to the device.
//!
//! Owns the C structs of WRs between
//! [`CompletionQueue::post_send`](crate::device::CompletionQueue::post_send) and `ibv_post_send`:
//! WRs of one QP are linked and posted together with one doorbell (on Soft-RoCE that is one system
//! call). A single inline SEND can skip the batch. Never owns the memory that WRs name; the inline
//! bytes of waiting WRs are copied here, so that the caller may reuse its own at once.
//!
//! Invariants:
//! 1. All WRs of a batch belong to one QP.
//! 2. Pointers between the vectors are written just before the post and used only by it: until then
//!    the vectors may move.
#![allow(unsafe_code, reason = "builds the lists that libibverbs reads")]

use std::fmt;
use std::io;
use std::ptr;

use crate::device::Opcode;

use super::ffi::{self, Bind, Plain, ibv_send_flags, ibv_wr_opcode};
use super::queue_pair::QpGuard;

/// A batch of this many WRs is posted at once, so that the device can start.
const MAX_WRS: usize = 64;

/// Where a WR's bytes lie.
pub(super) enum Bytes<'a> {
    /// There are none.
    None,
    /// In two spans, copied by the push.
    Inline(&'a [u8], &'a [u8]),
    /// In registered memory.
    Memory {
        /// First byte.
        address: u64,
        /// Length, bytes.
        len: u32,
        /// Local key.
        lkey: u32,
    },
    /// None, but a window.
    Window(Bind),
}

/// The device refused some WRs of a batch.
#[derive(Debug)]
pub(super) struct Refused {
    /// How many WRs at the end were not posted.
    pub(super) count: usize,
    /// The device's error.
    pub(super) error: io::Error,
}

/// WRs of one QP, not yet posted.
#[derive(Default)]
pub(super) struct Batch {
    /// Index of the QP, meaningful while there are WRs.
    qp: u32,
    wrs: Vec<ffi::ibv_send_wr>,
    sges: Vec<ffi::ibv_sge>,
    inline: Vec<u8>,
}

// SAFETY: the raw pointers inside are null or stale between posts (invariant 2).
unsafe impl Send for Batch {}

impl Batch {
    /// The QP that the waiting WRs belong to.
    pub(super) fn qp(&self) -> Option<u32> {
        (!self.wrs.is_empty()).then_some(self.qp)
    }

    /// Whether no WRs are waiting.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.wrs.is_empty()
    }

    /// Whether the WRs should be posted before more are added.
    pub(super) fn is_full(&self) -> bool {
        self.wrs.len() >= MAX_WRS
    }

    /// Adds a WR of QP `qp`; any WRs already here must belong to the same one.
    pub(super) fn push(&mut self, qp: u32, key: u64, op: Opcode, signaled: bool, bytes: Bytes<'_>) {
        debug_assert!(self.qp().is_none_or(|held| held == qp));
        self.qp = qp;
        // Filled in place: the struct is large.
        self.wrs.push(ffi::ibv_send_wr::zeroed());
        let Some(wr) = self.wrs.last_mut() else { return };
        wr.wr_id = key;
        wr.num_sge = 1;
        if signaled {
            wr.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        set_operation(wr, op);
        let sge = match bytes {
            Bytes::None => {
                wr.num_sge = 0;
                ffi::ibv_sge { addr: 0, length: 0, lkey: 0 }
            }
            Bytes::Window(bind) => {
                wr.num_sge = 0;
                ffi::set_bind(wr, bind);
                ffi::ibv_sge { addr: 0, length: 0, lkey: 0 }
            }
            Bytes::Memory { address, len, lkey } => {
                ffi::ibv_sge { addr: address, length: len, lkey }
            }
            Bytes::Inline(first, second) => {
                wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
                // An offset for now; `post` turns it into an address.
                let addr = self.inline.len() as u64;
                self.inline.extend_from_slice(first);
                self.inline.extend_from_slice(second);
                // The caller has checked that this is at most the granted inline size.
                let length = u32::try_from(first.len() + second.len()).unwrap_or(u32::MAX);
                ffi::ibv_sge { addr, length, lkey: 0 }
            }
        };
        self.sges.push(sge);
    }

    /// Posts all WRs with one doorbell and empties the batch.
    pub(super) fn post(&mut self, qp: &QpGuard) -> Result<(), Refused> {
        // SAFETY: a live QP, whose ring keeps the memory that its WRs name.
        unsafe { self.post_to(qp.as_ptr()) }
    }

    /// # Safety
    /// A live QP; the memory that the WRs name stays until they are done.
    pub(super) unsafe fn post_to(&mut self, qp: *mut ffi::ibv_qp) -> Result<(), Refused> {
        if self.wrs.is_empty() {
            return Ok(());
        }
        self.link();
        let mut bad = ptr::null_mut();
        // SAFETY: the caller's QP; the list is linked and its spans are valid (invariant 2).
        let returned = unsafe { ffi::ibv_post_send(qp, self.wrs.as_mut_ptr(), &raw mut bad) };
        let result = ffi::verbs_result(returned)
            .map_err(|error| Refused { count: self.wrs.len() - self.index_of(bad), error });
        self.clear();
        result
    }

    fn link(&mut self) {
        let inline = self.inline.as_ptr().expose_provenance() as u64;
        let inline_flag = ibv_send_flags::IBV_SEND_INLINE.0;
        let mut next = ptr::null_mut();
        for (wr, sge) in self.wrs.iter_mut().zip(self.sges.iter_mut()).rev() {
            if wr.send_flags & inline_flag != 0 {
                sge.addr += inline;
            }
            wr.sg_list = ptr::from_mut(sge);
            wr.next = next;
            next = ptr::from_mut(wr);
        }
    }

    /// Index of the WR that the device stopped at; the first if it does not say.
    fn index_of(&self, bad: *const ffi::ibv_send_wr) -> usize {
        self.wrs.iter().position(|wr| ptr::eq(wr, bad)).unwrap_or(0)
    }

    fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.inline.clear();
    }
}

/// Posts one inline SEND without a batch. The caller has checked its length, and that no WR held
/// back must be posted before it.
#[inline]
pub(super) fn post_inline(
    qp: &QpGuard,
    key: u64,
    signaled: bool,
    bytes: &[u8],
) -> Result<(), Refused> {
    // SAFETY: a live QP.
    unsafe { post_inline_to(qp.as_ptr(), key, signaled, bytes) }
}

/// # Safety
/// A live QP.
#[inline]
pub(super) unsafe fn post_inline_to(
    qp: *mut ffi::ibv_qp,
    key: u64,
    signaled: bool,
    bytes: &[u8],
) -> Result<(), Refused> {
    let addr = bytes.as_ptr().expose_provenance() as u64;
    // At most the granted inline size.
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    let mut sge = ffi::ibv_sge { addr, length, lkey: 0 };
    let mut wr = ffi::ibv_send_wr::zeroed();
    wr.wr_id = key;
    wr.sg_list = &raw mut sge;
    wr.num_sge = 1;
    wr.opcode = ibv_wr_opcode::IBV_WR_SEND;
    wr.send_flags = ibv_send_flags::IBV_SEND_INLINE.0;
    if signaled {
        wr.send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    let mut bad = ptr::null_mut();
    // SAFETY: the caller's QP; one WR with one span, which is read before the call returns, as it
    // is inline.
    let returned = unsafe { ffi::ibv_post_send(qp, &raw mut wr, &raw mut bad) };
    ffi::verbs_result(returned).map_err(|error| Refused { count: 1, error })
}

fn set_operation(wr: &mut ffi::ibv_send_wr, op: Opcode) {
    match op {
        Opcode::Send => wr.opcode = ibv_wr_opcode::IBV_WR_SEND,
        Opcode::SendWithImm(imm) => {
            wr.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            ffi::set_immediate(wr, imm);
        }
        Opcode::Write(to) => {
            wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            ffi::set_remote(wr, to.address, to.rkey);
        }
        Opcode::WriteWithImm(to, imm) => {
            wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
            ffi::set_remote(wr, to.address, to.rkey);
            ffi::set_immediate(wr, imm);
        }
        Opcode::Read(from) => {
            wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
            ffi::set_remote(wr, from.address, from.rkey);
        }
        Opcode::Bind => wr.opcode = ibv_wr_opcode::IBV_WR_BIND_MW,
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} WRs, {} inline bytes)", self.wrs.len(), self.inline.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::RemoteSlice;

    #[test]
    fn batch_is_one_linked_list_in_post_order() {
        let mut batch = Batch::default();
        let to = RemoteSlice { address: 0x1000, rkey: 7 };
        let memory = Bytes::Memory { address: 0xabc0, len: 9, lkey: 3 };
        batch.push(5, 1, Opcode::Write(to), false, memory);
        for key in 2..40 {
            // Enough inline bytes to make the vector move between pushes.
            let bytes = [u8::try_from(key).unwrap(); 100];
            batch.push(
                5,
                key,
                Opcode::SendWithImm(9),
                true,
                Bytes::Inline(&bytes[..30], &bytes[30..]),
            );
        }
        batch.push(5, 40, Opcode::Send, true, Bytes::None);
        assert_eq!(batch.qp(), Some(5));
        batch.link();
        let mut seen = Vec::new();
        let mut next: *const ffi::ibv_send_wr = batch.wrs.as_ptr();
        while !next.is_null() {
            // SAFETY: the list was just linked and nothing has moved since.
            let wr = unsafe { &*next };
            // SAFETY: as above.
            let sge = unsafe { &*wr.sg_list };
            seen.push(wr.wr_id);
            if wr.send_flags & ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
                let at = sge.addr - batch.inline.as_ptr().addr() as u64;
                let at = usize::try_from(at).unwrap();
                let expected = [u8::try_from(wr.wr_id).unwrap(); 100];
                assert_eq!(&batch.inline[at..at + sge.length as usize], expected);
            }
            next = wr.next;
        }
        assert_eq!(seen, (1..=40).collect::<Vec<_>>());
        assert_eq!((batch.sges[0].addr, batch.sges[0].length, batch.sges[0].lkey), (0xabc0, 9, 3));
        assert_eq!(batch.wrs[0].send_flags, 0);
        assert_eq!(batch.wrs[39].num_sge, 0);
        // SAFETY: the last member written to the union.
        let remote = unsafe { batch.wrs[0].wr.rdma };
        assert_eq!((remote.remote_addr, remote.rkey), (0x1000, 7));
        assert_eq!(batch.index_of(&raw const batch.wrs[7]), 7);
        assert_eq!(batch.index_of(ptr::null()), 0, "nothing is claimed to be posted");
        batch.clear();
        assert_eq!(batch.qp(), None);
    }
}
