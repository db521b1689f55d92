//! One RECV as the device takes it, for a QP's own queue or an SRQ.

use std::ptr;

use crate::device::{PostErrorKind, RecvWr};

use super::ffi::{self, Plain};

/// The span of a RECV's buffer, which must stay until its completion.
pub(super) struct RecvPost(ffi::ibv_sge);

impl RecvPost {
    pub(super) fn of(wr: &RecvWr) -> Self {
        let lkey = wr.buffer.region().lkey();
        let length = u32::try_from(wr.buffer.len()).unwrap_or(u32::MAX);
        Self(ffi::ibv_sge { addr: address(wr.buffer.as_ptr()), length, lkey })
    }

    /// Posts it under this key, by a function of libibverbs that takes a list.
    pub(super) fn post(
        &mut self,
        key: u64,
        post: impl FnOnce(*mut ffi::ibv_recv_wr, *mut *mut ffi::ibv_recv_wr) -> i32,
    ) -> Result<(), PostErrorKind> {
        let mut recv = ffi::ibv_recv_wr::zeroed();
        recv.wr_id = key;
        recv.sg_list = &raw mut self.0;
        recv.num_sge = 1;
        let mut bad = ptr::null_mut();
        let returned = post(&raw mut recv, &raw mut bad);
        let refused = |error: std::io::Error| PostErrorKind::Os(error.raw_os_error().unwrap_or(0));
        ffi::verbs_result(returned).map_err(refused)
    }
}

/// The address as the device sees it.
pub(super) fn address(first: std::ptr::NonNull<u8>) -> u64 {
    first.as_ptr().expose_provenance() as u64
}
