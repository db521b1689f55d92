//! The only module that uses the bindings crate (`rdma_sys`), so that replacing the crate changes
//! only this file.
//!
//! Owns the names, constants and layouts of libibverbs and librdmacm that this provider uses. Calls
//! no function except where a wrapper below says so.
//!
//! Invariants:
//! 1. Every struct that this provider reads or writes has the size and the field offsets of the C
//!    headers; the assertions below are checked at compile time (numbers of rdma-core 44).
//! 2. A number that the kernel or a library chooses (event, status, opcode) is read as an integer:
//!    a newer library may use more values than the enum in the bindings has.
//! 3. Extended verbs (`*_ex`, `ibv_advise_mr`, ...) are not offered: the bindings find their
//!    dispatch table by a comparison that is never true on 64-bit machines.
#![allow(unsafe_code, reason = "the foreign interface itself")]

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::ptr::NonNull;

pub(super) use rdma_sys::{
    ___ibv_query_port, ibv_access_flags, ibv_ack_async_event, ibv_ack_cq_events, ibv_alloc_pd,
    ibv_async_event, ibv_close_device, ibv_comp_channel, ibv_context, ibv_cq,
    ibv_create_comp_channel, ibv_create_cq, ibv_create_qp, ibv_create_srq, ibv_dealloc_mw,
    ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_comp_channel, ibv_destroy_cq, ibv_destroy_qp,
    ibv_destroy_srq, ibv_device, ibv_device_attr, ibv_device_cap_flags, ibv_fork_init,
    ibv_free_device_list, ibv_get_async_event, ibv_get_cq_event, ibv_get_device_list,
    ibv_get_device_name, ibv_gid, ibv_modify_qp, ibv_mr, ibv_mw, ibv_open_device, ibv_pd,
    ibv_poll_cq, ibv_port_attr, ibv_port_state, ibv_post_recv, ibv_post_send, ibv_post_srq_recv,
    ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_query_device, ibv_query_gid, ibv_query_qp, ibv_recv_wr, ibv_reg_mr_iova2,
    ibv_req_notify_cq, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_srq, ibv_srq_init_attr,
    ibv_transport_type, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wr_opcode, rdma_accept,
    rdma_ack_cm_event, rdma_bind_addr, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_connect,
    rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id,
    rdma_disconnect, rdma_establish, rdma_event_channel, rdma_free_devices, rdma_get_cm_event,
    rdma_get_devices, rdma_init_qp_attr, rdma_listen, rdma_port_space, rdma_reject,
    rdma_resolve_addr, rdma_resolve_route, rdma_set_option,
};

/// Numbers that the bindings lack or hide in enums.
pub(super) mod number {
    /// `RDMA_OPTION_ID`: the level of the options below.
    pub(in super::super) const OPTION_LEVEL_ID: i32 = 0;
    /// `RDMA_OPTION_ID_TOS`: the traffic class, a `u8`.
    pub(in super::super) const OPTION_TOS: i32 = 0;
    /// `RDMA_OPTION_ID_AFONLY`: an IPv6 id accepts no IPv4 peers.
    pub(in super::super) const OPTION_AFONLY: i32 = 2;
    /// `IBV_LINK_LAYER_INFINIBAND`.
    pub(in super::super) const LINK_LAYER_INFINIBAND: u8 = 1;
    /// `IBV_LINK_LAYER_ETHERNET`.
    pub(in super::super) const LINK_LAYER_ETHERNET: u8 = 2;
    /// Bits 21 to 23 of an attribute mask from rdma_ucm: only the kernel uses them.
    pub(in super::super) const KERNEL_ONLY_ATTR_MASK: i32 = 0x00e0_0000;
}

/// Asynchronous events (`enum ibv_event_type`), as numbers (invariant 2).
pub(super) mod async_event {
    pub(in super::super) const CQ_ERR: u32 = 0;
    pub(in super::super) const QP_FATAL: u32 = 1;
    pub(in super::super) const QP_REQ_ERR: u32 = 2;
    pub(in super::super) const QP_ACCESS_ERR: u32 = 3;
    pub(in super::super) const COMM_EST: u32 = 4;
    pub(in super::super) const DEVICE_FATAL: u32 = 8;
    pub(in super::super) const PORT_ACTIVE: u32 = 9;
    pub(in super::super) const PORT_ERR: u32 = 10;
    pub(in super::super) const QP_LAST_WQE_REACHED: u32 = 16;
    pub(in super::super) const GID_CHANGE: u32 = 18;
}

/// A C struct that is valid when all its bytes are zero.
///
/// # Safety
/// The type has only integers, raw pointers, `Option`s of function pointers, and arrays and unions
/// of those.
pub(super) unsafe trait Plain: Sized {
    /// All bytes zero, as after `memset`.
    fn zeroed() -> Self {
        // SAFETY: the trait's promise: zero bytes are a valid value.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// A bitwise copy, as a C assignment makes it.
    fn duplicate(&self) -> Self {
        // SAFETY: the trait's promise: nothing is owned, so a copy of the bytes is another value.
        unsafe { std::ptr::read(self) }
    }
}

// SAFETY: integers, raw pointers, and structs, arrays and unions of them, in all of these.
unsafe impl Plain for ibv_device_attr {}
// SAFETY: as above.
unsafe impl Plain for ibv_port_attr {}
// SAFETY: as above.
unsafe impl Plain for ibv_gid {}
// SAFETY: as above.
unsafe impl Plain for ibv_qp_attr {}
// SAFETY: as above.
unsafe impl Plain for ibv_qp_init_attr {}
// SAFETY: as above.
unsafe impl Plain for ibv_srq_init_attr {}
// SAFETY: as above.
unsafe impl Plain for ibv_send_wr {}
// SAFETY: as above.
unsafe impl Plain for ibv_recv_wr {}
// SAFETY: as above.
unsafe impl Plain for rdma_conn_param {}

/// Reports to the kernel's side of an id that its QP has received something (`rdma_notify`), so
/// that it becomes established even if the RTU was lost.
///
/// # Safety
/// `id` is a live id, used by this thread alone.
pub(super) unsafe fn notify_communication_established(id: *mut rdma_cm_id) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { rdma_sys::rdma_notify(id, rdma_sys::ibv_event_type::IBV_EVENT_COMM_EST) }
}

/// The number of an asynchronous event (invariant 2).
pub(super) fn async_event_number(event: &MaybeUninit<ibv_async_event>) -> u32 {
    let event = event.as_ptr();
    // SAFETY: the field lies inside the struct.
    let number = unsafe { &raw const (*event).event_type }.cast::<u32>();
    // SAFETY: 4 aligned bytes that the library wrote; as u32 every value is valid.
    unsafe { number.read() }
}

/// The object of an asynchronous event: a QP, a CQ, or a port number, depending on the event.
pub(super) fn async_event_element(event: &MaybeUninit<ibv_async_event>) -> usize {
    // SAFETY: the union's largest member is a pointer that the library wrote; the struct is
    // zeroed before (see `async_events`), so that a port number leaves no uninitialised byte.
    unsafe { event.as_ptr().cast::<usize>().read() }
}

/// The number of a cm event (invariant 2).
///
/// # Safety
/// `event` came from `rdma_get_cm_event` and has not been acknowledged.
pub(super) unsafe fn cm_event_number(event: *const rdma_cm_event) -> u32 {
    // SAFETY: the field lies inside the struct.
    let number = unsafe { &raw const (*event).event }.cast::<u32>();
    // SAFETY: the caller's promise; as u32 every value is valid.
    unsafe { number.read() }
}

/// Immediate data of a completion, in this machine's byte order.
pub(super) fn immediate(wc: &ibv_wc) -> Option<u32> {
    if wc.wc_flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 == 0 {
        return None;
    }
    // SAFETY: both members of the union are u32.
    let big_endian = unsafe { wc.imm_data_invalidated_rkey_union.imm_data };
    Some(u32::from_be(big_endian))
}

/// Sets immediate data, given in this machine's byte order.
pub(super) fn set_immediate(wr: &mut ibv_send_wr, imm: u32) {
    wr.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
}

/// Sets the remote end of a READ or WRITE.
pub(super) fn set_remote(wr: &mut ibv_send_wr, remote_addr: u64, rkey: u32) {
    wr.wr.rdma = rdma_sys::rdma_t { remote_addr, rkey };
}

/// Allocates a memory window of type 2.
///
/// # Safety
/// A live PD.
pub(super) unsafe fn alloc_window(pd: *mut ibv_pd) -> *mut ibv_mw {
    // SAFETY: the caller's promise. `None` is a driver without windows, which sets errno.
    let window = unsafe { rdma_sys::ibv_alloc_mw(pd, rdma_sys::ibv_mw_type::IBV_MW_TYPE_2) };
    window.unwrap_or(std::ptr::null_mut())
}

/// A window to bind, and what it opens.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bind {
    pub(super) window: *mut ibv_mw,
    pub(super) region: *mut ibv_mr,
    /// The key that it has from then on.
    pub(super) rkey: u32,
    pub(super) address: u64,
    pub(super) len: u64,
}

/// Sets the window of a bind, which peers may write.
pub(super) fn set_bind(wr: &mut ibv_send_wr, bind: Bind) {
    let Bind { window: mw, region: mr, rkey, address: addr, len: length } = bind;
    let mw_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    let bind_info = rdma_sys::ibv_mw_bind_info { mr, addr, length, mw_access_flags };
    wr.bind_mw_tso_union.bind_mw = rdma_sys::bind_mw_t { mw, rkey, bind_info };
}

/// The raw bytes of a GID.
pub(super) fn gid_bytes(gid: &ibv_gid) -> [u8; 16] {
    // SAFETY: both members of the union are 16 plain bytes.
    unsafe { gid.raw }
}

/// The result of a librdmacm call that returns -1 and sets errno.
pub(super) fn cm_result(call: impl FnOnce() -> i32) -> io::Result<()> {
    clear_errno();
    if call() == 0 { Ok(()) } else { Err(last_error()) }
}

/// The result of a call that returns an object, or null and sets errno.
pub(super) fn created<T>(create: impl FnOnce() -> *mut T) -> io::Result<NonNull<T>> {
    clear_errno();
    NonNull::new(create()).ok_or_else(last_error)
}

/// Call it before a call that may fail: libsiw refuses without setting errno, and the value of an
/// earlier call would be mistaken for the reason.
fn clear_errno() {
    // SAFETY: no precondition; the address of this thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; valid as long as the thread lives, and private to it.
    unsafe { *errno = 0 };
}

/// The error of errno, or one saying that errno is unset (which would read "Success").
fn last_error() -> io::Error {
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(0) {
        return io::Error::other("refused by the device's user-space driver without a reason");
    }
    error
}

/// The result of a libibverbs call that returns an errno. Some drivers return it negated.
pub(super) fn verbs_result(returned: i32) -> io::Result<()> {
    if returned == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(returned.checked_abs().unwrap_or(i32::MAX)))
    }
}

// Invariant 1. The numbers are those that a C compiler prints for the headers of rdma-core 44.
#[cfg(target_pointer_width = "64")]
macro_rules! layout {
    ($($type:ident: $size:literal { $($($field:ident).+ = $offset:literal),* $(,)? })*) => {
        $(
            const _: () = assert!(size_of::<$type>() == $size);
            $(const _: () = assert!(offset_of!($type, $($field).+) == $offset);)*
        )*
    };
}

#[cfg(target_pointer_width = "64")]
layout! {
    ibv_wc: 48 {
        wr_id = 0, status = 8, opcode = 12, vendor_err = 16, byte_len = 20,
        imm_data_invalidated_rkey_union = 24, qp_num = 28, wc_flags = 36,
    }
    ibv_send_wr: 128 {
        wr_id = 0, next = 8, sg_list = 16, num_sge = 24, opcode = 28, send_flags = 32,
        imm_data_invalidated_rkey_union = 36, wr = 40, bind_mw_tso_union = 80,
    }
    ibv_recv_wr: 32 { wr_id = 0, next = 8, sg_list = 16, num_sge = 24 }
    ibv_sge: 16 { addr = 0, length = 8, lkey = 12 }
    ibv_async_event: 16 { element = 0, event_type = 8 }
    rdma_cm_event: 80 { id = 0, listen_id = 8, event = 16, status = 20, param = 24 }
    rdma_conn_param: 24 {
        private_data = 0, private_data_len = 8, responder_resources = 9, initiator_depth = 10,
        flow_control = 11, retry_count = 12, rnr_retry_count = 13, srq = 14, qp_num = 16,
    }
    rdma_cm_id: 416 {
        verbs = 0, channel = 8, context = 16, qp = 24, route.addr.src_addr_union = 32,
        route.addr.dst_addr_union = 160, port_num = 348,
    }
    rdma_event_channel: 4 { fd = 0 }
    ibv_comp_channel: 16 { context = 0, fd = 8 }
    ibv_context: 328 { device = 0, ops = 8, async_fd = 268, num_comp_vectors = 272 }
    ibv_device: 664 { transport_type = 20, name = 24 }
    ibv_device_attr: 232 {
        vendor_id = 96,
        max_qp_wr = 112, device_cap_flags = 116, max_cqe = 132, max_qp_rd_atom = 144,
        max_qp_init_rd_atom = 156, max_mw = 176,
        max_srq = 212, max_srq_wr = 216,
        phys_port_cnt = 227,
    }
    ibv_port_attr: 52 { gid_tbl_len = 12, max_msg_sz = 20, link_layer = 46 }
    ibv_qp: 160 { qp_num = 52 }
    ibv_cq: 128 { cqe = 28 }
    ibv_srq: 128 { context = 0 }
    ibv_mr: 48 { lkey = 36, rkey = 40 }
    ibv_mw: 32 { rkey = 16 }
    ibv_pd: 16 { context = 0 }
    ibv_gid: 16 {}
    ibv_qp_cap: 20 { max_send_wr = 0, max_recv_wr = 4, max_inline_data = 16 }
    ibv_srq_init_attr: 24 { attr.max_wr = 8, attr.max_sge = 12, attr.srq_limit = 16 }
    ibv_qp_init_attr: 64 { send_cq = 8, recv_cq = 16, srq = 24, cap = 32, qp_type = 52, sq_sig_all = 56 }
    ibv_qp_attr: 144 {
        qp_state = 0, qp_access_flags = 32, ah_attr = 56, max_rd_atomic = 126,
        max_dest_rd_atomic = 127, min_rnr_timer = 128, timeout = 130, retry_cnt = 131,
        rnr_retry = 132,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_event_is_read_as_a_number() {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        let words = event.as_mut_ptr().cast::<[u32; 4]>();
        // SAFETY: the struct has 16 bytes, and its number at byte 8, as asserted above.
        unsafe { (*words)[2] = 4711 };
        // SAFETY: the first 8 bytes of the struct.
        unsafe { event.as_mut_ptr().cast::<usize>().write(0xabcd) };
        assert_eq!(async_event_number(&event), 4711);
        assert_eq!(async_event_element(&event), 0xabcd);
    }

    #[test]
    fn immediate_is_big_endian_and_needs_its_flag() {
        let mut wr = ibv_send_wr::zeroed();
        set_immediate(&mut wr, 0x0102_0304);
        // SAFETY: both members of the union are u32.
        let raw = unsafe { wr.imm_data_invalidated_rkey_union.imm_data };
        assert_eq!(raw.to_ne_bytes(), [1, 2, 3, 4]);
        // SAFETY: integers and a union of integers.
        let mut wc: ibv_wc = unsafe { MaybeUninit::zeroed().assume_init() };
        wc.imm_data_invalidated_rkey_union.imm_data = raw;
        assert_eq!(immediate(&wc), None);
        // Soft-RoCE sets the GRH bit as well, so the flag must be tested, not compared.
        wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0 | ibv_wc_flags::IBV_WC_GRH.0;
        assert_eq!(immediate(&wc), Some(0x0102_0304));
    }

    #[test]
    fn failure_without_errno_is_given_none() {
        let sets = |errno: i32| {
            // SAFETY: the address of this thread's errno.
            let mine = unsafe { libc::__errno_location() };
            // SAFETY: as above.
            unsafe { *mine = errno };
        };
        let creates = |errno: Option<i32>| {
            created(|| {
                errno.map(sets);
                std::ptr::null_mut::<u8>()
            })
        };
        let calls = |errno: Option<i32>| {
            cm_result(|| {
                errno.map(sets);
                -1
            })
        };
        assert_eq!(creates(Some(12)).unwrap_err().raw_os_error(), Some(12));
        assert_eq!(calls(Some(13)).unwrap_err().raw_os_error(), Some(13));
        // A value left by an earlier call is not the reason.
        for error in [creates(None).unwrap_err(), calls(None).unwrap_err()] {
            assert_eq!(error.raw_os_error(), None);
            assert!(error.to_string().contains("without a reason"), "{error}");
            sets(14);
        }
        let mut object = 0_u8;
        assert_eq!(created(|| &raw mut object).unwrap().as_ptr(), &raw mut object);
        assert!(cm_result(|| 0).is_ok());
    }

    #[test]
    fn errno_is_found_whatever_its_sign() {
        for returned in [12, -12] {
            assert_eq!(verbs_result(returned).unwrap_err().raw_os_error(), Some(12));
        }
        assert!(verbs_result(0).is_ok());
        assert!(verbs_result(i32::MIN).is_err());
    }
}
