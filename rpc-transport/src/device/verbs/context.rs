//! An open device, as librdmacm returns it.
//!
//! Owns the reference that keeps the context open, and the registry of the recipients of
//! asynchronous events. Never opens a context itself: every `ibv_open_device` creates a new
//! context, and objects of different contexts cannot be combined (S26).
//!
//! Invariants:
//! 1. The context stays open as long as this object: it holds a reference of `rdma_get_devices`.
//! 2. A CQ is registered here from its creation, a QP from when its CQ's owner knows it, until just
//!    before it is destroyed.
#![allow(unsafe_code, reason = "holds a context of libibverbs")]

use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once, Weak};

use parking_lot::Mutex;

use crate::device::QpHandle;

use super::ffi;
use super::id_link::IdKey;
use super::inherited::{self, is_inherited};
use super::mailbox::Mailbox;
use super::ports::Ports;

/// The list of `rdma_get_devices`; while it exists, every context in it stays open.
pub(super) struct DeviceList {
    list: NonNull<*mut ffi::ibv_context>,
    len: usize,
}

// SAFETY: the list is never written, and librdmacm's calls are thread-safe.
unsafe impl Send for DeviceList {}
// SAFETY: as above.
unsafe impl Sync for DeviceList {}

impl DeviceList {
    /// All devices that librdmacm can open.
    pub(super) fn take() -> io::Result<Self> {
        inherited::check()?;
        prepare_for_fork();
        let mut len = 0;
        // SAFETY: writes the length to the given pointer.
        let list = ffi::created(|| unsafe { ffi::rdma_get_devices(&raw mut len) })?;
        Ok(Self { list, len: usize::try_from(len).unwrap_or(0) })
    }

    /// The contexts.
    pub(super) fn contexts(&self) -> Vec<NonNull<ffi::ibv_context>> {
        // SAFETY: `rdma_get_devices` returned `len` entries, freed only on drop.
        let contexts = unsafe { std::slice::from_raw_parts(self.list.as_ptr(), self.len) };
        contexts.iter().filter_map(|context| NonNull::new(*context)).collect()
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        // SAFETY: the list came from `rdma_get_devices` and is freed once.
        unsafe { ffi::rdma_free_devices(self.list.as_ptr()) }
    }
}

/// Keeps a forked child process from taking over pages that are registered with a device. Must run
/// before the first registration. Kernels from 5.13 on do this themselves, and the call does
/// nothing.
fn prepare_for_fork() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: no precondition.
        let returned = unsafe { ffi::ibv_fork_init() };
        if let Err(error) = ffi::verbs_result(returned) {
            tracing::warn!(%error, "forking this process may corrupt registered memory");
        }
    });
}

/// The recipient of an asynchronous event of a QP.
#[derive(Debug, Clone)]
pub(super) struct QpTarget {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) handle: QpHandle,
    pub(super) id: IdKey,
    /// The QP takes no more RECVs of its SRQ.
    pub(super) is_last: Arc<AtomicBool>,
}

/// An open device.
pub(super) struct Context {
    raw: NonNull<ffi::ibv_context>,
    name: String,
    qps: Mutex<HashMap<usize, QpTarget>>,
    cqs: Mutex<HashMap<usize, Weak<Mailbox>>>,
    ports: Ports,
    _pin: DeviceList,
}

// SAFETY: libibverbs is thread-safe, and the registries are locked.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Wraps a context of librdmacm. `None` when librdmacm has closed it in the meantime.
    pub(super) fn new(raw: NonNull<ffi::ibv_context>) -> io::Result<Self> {
        let pin = DeviceList::take()?;
        if !pin.contexts().contains(&raw) {
            return Err(io::Error::from_raw_os_error(NO_SUCH_DEVICE));
        }
        let name = device_name(raw);
        let (qps, cqs, ports) = (Mutex::default(), Mutex::default(), Ports::default());
        Ok(Self { raw, name, qps, cqs, ports, _pin: pin })
    }

    /// The context.
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_context {
        self.raw.as_ptr()
    }

    /// The device's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The known states of its ports.
    pub(super) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Registers a QP (invariant 2).
    pub(super) fn register_qp(&self, qp: NonNull<ffi::ibv_qp>, target: QpTarget) {
        self.qps.lock().insert(qp.addr().get(), target);
    }

    /// Unregisters a QP.
    pub(super) fn unregister_qp(&self, qp: NonNull<ffi::ibv_qp>) {
        self.qps.lock().remove(&qp.addr().get());
    }

    /// The recipient of events of the QP at this address.
    pub(super) fn qp_target(&self, address: usize) -> Option<QpTarget> {
        self.qps.lock().get(&address).cloned()
    }

    /// Registers a CQ (invariant 2).
    pub(super) fn register_cq(&self, cq: NonNull<ffi::ibv_cq>, mailbox: &Arc<Mailbox>) {
        self.cqs.lock().insert(cq.addr().get(), Arc::downgrade(mailbox));
    }

    /// Unregisters a CQ.
    pub(super) fn unregister_cq(&self, cq: NonNull<ffi::ibv_cq>) {
        self.cqs.lock().remove(&cq.addr().get());
    }

    /// The mailbox of the CQ at this address.
    pub(super) fn cq_mailbox(&self, address: usize) -> Option<Arc<Mailbox>> {
        self.cqs.lock().get(&address).and_then(Weak::upgrade)
    }

    /// Declares all CQs dead.
    pub(super) fn fail_all(&self, reason: &str) {
        for mailbox in self.cqs.lock().values().filter_map(Weak::upgrade) {
            mailbox.kill(reason.to_owned());
        }
    }
}

/// ENODEV.
const NO_SUCH_DEVICE: i32 = 19;

fn device_name(context: NonNull<ffi::ibv_context>) -> String {
    // SAFETY: an open context names its device, which lives as long as the library.
    let device = unsafe { context.as_ref().device };
    // SAFETY: as above; returns a C string inside the device.
    let name = unsafe { ffi::ibv_get_device_name(device) };
    if name.is_null() {
        return "unnamed".to_owned();
    }
    // SAFETY: a NUL-terminated string that lives as long as the device.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context({})", self.name)
    }
}
