//! Devices: one per context of librdmacm, with the limits that the device reports.
//!
//! Owns the list of open devices and their [`DeviceAttributes`](crate::device::DeviceAttributes).
//! Never creates QPs for use, only short-lived ones to find what the device grants.
#![allow(unsafe_code, reason = "asks libibverbs")]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::device::{Capabilities, CompletionQueue, Device, DeviceAttributes, ProviderError};
use crate::memory::region::ProtectionDomain;

use super::completion_channel::CqGuard;
use super::context::{Context, DeviceList};
use super::ffi::{self, Plain, ibv_port_state};
use super::limits;
use super::memory::{PdGuard, VerbsDomain};
use super::queue::VerbsCompletionQueue;
use super::quirks::{Quirks, SPACER_ENTRIES};
use super::wr_key::MAX_WRS;

/// Inline sizes to try, bytes; the first one granted is used. 220 is what an mlx5 SQ entry of 256
/// bytes holds, which is also the most that leaves with its doorbell; more makes every entry of the
/// SQ larger and gains nothing. The others are the limits of irdma (101), bnxt_re (96) and i40iw
/// (48), and powers of two in between.
const INLINE_BYTES: [u32; 6] = [220, 128, 101, 96, 64, 48];

/// A device of libibverbs.
#[derive(Debug)]
pub(super) struct VerbsDevice {
    context: Arc<Context>,
    attributes: DeviceAttributes,
    quirks: Quirks,
    max_reads: u8,
    comp_vectors: i32,
    next_vector: AtomicI32,
    /// Keeps other queues off a page (see `Quirks::refuses_a_page`).
    _spacer: Option<CqGuard>,
}

/// Devices stay open once used, until they are removed, so that their contexts and addresses are
/// stable.
static DEVICES: Mutex<Vec<Arc<VerbsDevice>>> = Mutex::new(Vec::new());

/// All RDMA devices that librdmacm can use and that have RC queue pairs, opened. Empty when the
/// machine has none.
///
/// # Errors
/// [`ProviderError::Resources`]: librdmacm cannot be used, or every device refuses to be queried.
pub fn devices() -> Result<Vec<Arc<dyn Device>>, ProviderError> {
    let list = DeviceList::take().map_err(|error| limits::refused("list RDMA devices", &error))?;
    let opened = list.contexts().into_iter().map(VerbsDevice::of);
    usable(opened.map(|device| Ok(device? as Arc<dyn Device>)))
}

/// The devices that could be opened. A device that cannot be opened, or has no RC queue pairs
/// (EFA), does not affect the others.
fn usable<T>(
    opened: impl Iterator<Item = Result<T, ProviderError>>,
) -> Result<Vec<T>, ProviderError> {
    let (mut devices, mut refused) = (Vec::new(), None);
    for device in opened {
        match device {
            Ok(device) => devices.push(device),
            Err(error @ ProviderError::Unsupported(_)) => {
                tracing::debug!(%error, "skipping a device");
            }
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if devices.is_empty() => Err(error),
        Some(error) => {
            tracing::warn!(%error, "skipping a device");
            Ok(devices)
        }
        None => Ok(devices),
    }
}

/// The devices opened so far.
pub(super) fn opened() -> Vec<Arc<VerbsDevice>> {
    DEVICES.lock().clone()
}

/// Takes a removed device off the list. It closes when the last of its objects is dropped.
pub(super) fn forget(gone: &Arc<VerbsDevice>) {
    DEVICES.lock().retain(|device| !Arc::ptr_eq(device, gone));
}

impl VerbsDevice {
    /// The device of a context; always the same object for the same context.
    pub(super) fn of(raw: NonNull<ffi::ibv_context>) -> Result<Arc<Self>, ProviderError> {
        let mut devices = DEVICES.lock();
        if let Some(known) = devices.iter().find(|device| device.context.as_ptr() == raw.as_ptr()) {
            return Ok(Arc::clone(known));
        }
        let device = Self::open(raw).map_err(|error| limits::refused("open device", &error))?;
        let device = device.ok_or(ProviderError::Unsupported("an RC queue pair"))?;
        let device = Arc::new(device);
        devices.push(Arc::clone(&device));
        Ok(device)
    }

    /// `None` for a device without RC queue pairs.
    fn open(raw: NonNull<ffi::ibv_context>) -> io::Result<Option<Self>> {
        let context = Arc::new(Context::new(raw)?);
        set_nonblocking(&context)?;
        let limits = query(&context)?;
        let quirks = Quirks::of(limits.vendor_id, is_iwarp(raw));
        // Before all other objects.
        let spacer = spacer(&context, quirks);
        let Some(max_inline_bytes) = max_inline_bytes(&context)? else { return Ok(None) };
        let max_cqe = u32::try_from(limits.max_cqe).unwrap_or(0);
        let max_reads = limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom).clamp(0, 255);
        let max_reads = u8::try_from(max_reads).unwrap_or(0);
        let max_qp_wr = u32::try_from(limits.max_qp_wr).unwrap_or(0);
        let attributes = DeviceAttributes {
            name: context.name().to_owned(),
            scheme: "rdma",
            max_inline_bytes,
            max_message_bytes: max_message_bytes(&context, limits.phys_port_cnt),
            // One slot is reserved for the drain WR (see `queue_pair`).
            max_qp_wr: max_qp_wr.saturating_sub(1).min(MAX_WRS),
            max_cqe: CqGuard::usable_entries(max_cqe),
            max_srq_wr: max_srq_wr(raw, &limits),
            capabilities: capabilities(quirks, max_reads, has_windows(&limits)),
        };
        // SAFETY: the context is open.
        let comp_vectors = unsafe { raw.as_ref().num_comp_vectors }.max(1);
        tracing::debug!(?attributes, "RDMA device opened");
        let next_vector = AtomicI32::new(0);
        Ok(Some(Self {
            context,
            attributes,
            quirks,
            max_reads,
            comp_vectors,
            next_vector,
            _spacer: spacer,
        }))
    }

    /// The open context.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Whether a port has lost its link. Queries the device only if an event has reported the loss.
    pub(super) fn is_down(&self, port: u8) -> bool {
        let is_active = || {
            let asked = query_port(self.context.as_ptr(), port);
            asked.is_ok_and(|port| carries_traffic(port.state))
        };
        self.context.ports().is_down(port, is_active)
    }

    /// What its driver and transport do differently from others.
    pub(super) fn quirks(&self) -> Quirks {
        self.quirks
    }

    /// Most READs that one QP may have in flight in either direction.
    pub(super) fn max_reads(&self) -> u8 {
        self.max_reads
    }
}

impl Device for VerbsDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn allocate_pd(&self) -> Result<ProtectionDomain, ProviderError> {
        let pd = PdGuard::allocate(&self.context);
        let pd = pd.map_err(|error| limits::refused("allocate protection domain", &error))?;
        Ok(ProtectionDomain::new(Arc::new(VerbsDomain::new(Arc::new(pd)))))
    }

    fn create_cq(&self, min_entries: u32) -> Result<Box<dyn CompletionQueue>, ProviderError> {
        if min_entries > self.attributes.max_cqe {
            let (asked, limit) = (u64::from(min_entries), u64::from(self.attributes.max_cqe));
            return Err(ProviderError::Limit { what: "completion queue entries", asked, limit });
        }
        let vector = self.next_vector.fetch_add(1, Ordering::Relaxed) % self.comp_vectors;
        let cq = CqGuard::create(&self.context, min_entries, vector.abs());
        let cq = cq.map_err(|error| limits::refused("create completion queue", &error))?;
        Ok(Box::new(VerbsCompletionQueue::new(Arc::new(cq), &self.attributes, self.quirks)))
    }
}

/// Keeps queues off the page that the device refuses. Without it only the queue at that page is
/// refused.
fn spacer(context: &Arc<Context>, quirks: Quirks) -> Option<CqGuard> {
    if !quirks.refuses_a_page {
        return None;
    }
    let spacer = CqGuard::create(context, SPACER_ENTRIES, 0);
    let text = "cannot reserve the page that this device rejects: a later queue may fail";
    let log = |error: &io::Error| tracing::warn!(device = context.name(), %error, "{text}");
    spacer.inspect_err(log).ok()
}

/// Makes the event fd non-blocking, since asynchronous events are read until there are none (S63).
fn set_nonblocking(context: &Context) -> io::Result<()> {
    let fd = async_fd(context);
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(())
}

/// The fd of a context's asynchronous events.
pub(super) fn async_fd(context: &Context) -> std::os::fd::BorrowedFd<'_> {
    // SAFETY: the context is open as long as `context` lives.
    let fd = unsafe { (*context.as_ptr()).async_fd };
    // SAFETY: the fd is open as long as the context, which the borrow stands for.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

fn query(context: &Context) -> io::Result<ffi::ibv_device_attr> {
    let mut attributes = ffi::ibv_device_attr::zeroed();
    // SAFETY: an open context; the call fills the struct, whose layout `ffi` asserts.
    let returned = unsafe { ffi::ibv_query_device(context.as_ptr(), &raw mut attributes) };
    ffi::verbs_result(returned)?;
    Ok(attributes)
}

/// Whether a port in this state carries traffic. IBV_PORT_ACTIVE_DEFER counts: the port has lost
/// its link, and delays reporting that.
pub(super) fn carries_traffic(state: ibv_port_state::Type) -> bool {
    [ibv_port_state::IBV_PORT_ACTIVE, ibv_port_state::IBV_PORT_ACTIVE_DEFER].contains(&state)
}

/// One port's attributes.
pub(super) fn query_port(
    context: *mut ffi::ibv_context,
    port: u8,
) -> io::Result<ffi::ibv_port_attr> {
    // Zeroed, since an old library fills only the older part of the struct.
    let mut attributes = ffi::ibv_port_attr::zeroed();
    // SAFETY: an open context by this module's callers; the call fills at most the struct.
    let returned = unsafe { ffi::___ibv_query_port(context, port, &raw mut attributes) };
    ffi::verbs_result(returned)?;
    Ok(attributes)
}

/// The smallest limit of all ports, since a QP may use any of them.
fn max_message_bytes(context: &Context, ports: u8) -> u64 {
    let limits = (1..=ports).filter_map(|port| query_port(context.as_ptr(), port).ok());
    limits.map(|port| u64::from(port.max_msg_sz)).min().unwrap_or(1 << 31)
}

/// Whether it has memory windows that belong to one QP.
fn has_windows(limits: &ffi::ibv_device_attr) -> bool {
    let type_2b = ffi::ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    limits.max_mw > 0 && limits.device_cap_flags & type_2b != 0
}

fn capabilities(quirks: Quirks, max_reads: u8, has_windows: bool) -> Capabilities {
    let late_sends = match quirks.no_late_sends {
        true => Capabilities::NONE,
        false => Capabilities::FLUSHES_LATE_SENDS,
    };
    let all = Capabilities::REGISTER_REMOTE.with(Capabilities::EMPTY_SEND).with(late_sends);
    if quirks.goes_over_tcp {
        return all;
    }
    let infiniband = all
        .with(Capabilities::IMMEDIATE)
        .with(Capabilities::WRITE_WITH_IMM)
        .with(Capabilities::REMOTE_ERRORS);
    let windows = match (has_windows, quirks.repeats_binds) {
        (false, _) => Capabilities::NONE,
        (true, true) => Capabilities::WINDOWS,
        (true, false) => Capabilities::WINDOWS.with(Capabilities::BINDS_ONCE),
    };
    let reads = if max_reads > 0 { Capabilities::READ } else { Capabilities::NONE };
    infiniband.with(reads).with(windows)
}

/// Most RECVs of an SRQ. None over iWARP: one that is empty has no RNR to tell it, and ends the
/// stream.
pub(super) fn max_srq_wr(context: NonNull<ffi::ibv_context>, limits: &ffi::ibv_device_attr) -> u32 {
    if limits.max_srq <= 0 || is_iwarp(context) {
        return 0;
    }
    u32::try_from(limits.max_srq_wr).unwrap_or(0).min(MAX_WRS)
}

/// Whether an open context's device is an iWARP one.
pub(super) fn is_iwarp(context: NonNull<ffi::ibv_context>) -> bool {
    // SAFETY: an open context, by this module's callers, names its device.
    let device = unsafe { context.as_ref().device };
    // SAFETY: the device lives as long as the library.
    let transport = unsafe { (*device).transport_type };
    transport == ffi::ibv_transport_type::IBV_TRANSPORT_IWARP
}

/// The largest inline size that a QP is granted, found by trial: no attribute reports it (S33).
/// `None` for a device without RC QPs.
fn max_inline_bytes(context: &Arc<Context>) -> io::Result<Option<u32>> {
    let pd = PdGuard::allocate(context)?;
    let cq = CqGuard::create(context, 2, 0)?;
    match try_qp(&pd, &cq, 0) {
        Err(error) if means_unsupported(&error) => return Ok(None),
        granted => granted?,
    };
    let is_granted = |bytes: &u32| try_qp(&pd, &cq, *bytes).is_ok_and(|granted| granted >= *bytes);
    Ok(Some(INLINE_BYTES.into_iter().find(is_granted).unwrap_or(0)))
}

/// Whether an error of creating a QP means that the device lacks this kind, instead of that a
/// resource has run out.
fn means_unsupported(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS))
}

/// Creates a small QP for a moment; returns the inline bytes granted.
fn try_qp(pd: &PdGuard, cq: &CqGuard, max_inline_data: u32) -> io::Result<u32> {
    let mut attributes = ffi::ibv_qp_init_attr::zeroed();
    attributes.send_cq = cq.as_ptr();
    attributes.recv_cq = cq.as_ptr();
    attributes.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
    attributes.cap = ffi::ibv_qp_cap {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data,
    };
    // SAFETY: live PD and CQ of one context, and a filled-in struct.
    let qp = ffi::created(|| unsafe { ffi::ibv_create_qp(pd.as_ptr(), &raw mut attributes) })?;
    // SAFETY: the QP was created above and nobody else knows it.
    let destroyed = ffi::verbs_result(unsafe { ffi::ibv_destroy_qp(qp.as_ptr()) });
    if let Err(error) = destroyed {
        tracing::error!(%error, "a trial queue pair could not be destroyed");
    }
    Ok(attributes.cap.max_inline_data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_without_rc_is_skipped() {
        let no_rc = || Err(ProviderError::Unsupported("an RC queue pair"));
        let broken = || Err(limits::refused("open device", &io::Error::from_raw_os_error(5)));
        assert_eq!(usable([no_rc(), Ok(1), no_rc(), Ok(2)].into_iter()).unwrap(), [1, 2]);
        assert_eq!(usable([broken(), Ok(1)].into_iter()).unwrap(), [1]);
        assert_eq!(usable::<u8>([no_rc()].into_iter()).unwrap(), []);
        assert!(usable::<u8>([no_rc(), broken()].into_iter()).is_err());
    }

    #[test]
    fn refusal_for_memory_does_not_mean_no_rc() {
        for (errno, means_none) in [(22, true), (95, true), (38, true), (12, false), (24, false)] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(means_unsupported(&error), means_none, "{error}");
        }
    }
}
