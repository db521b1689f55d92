//! An id of the connection manager, and the event channel.
//!
//! Owns every call of librdmacm. Never decides the next step: [`cm`](super::cm) does.
//!
//! Invariants:
//! 1. Ids are created and used on the thread that owns the channel, which also takes its events.
//!    Only a [`Dial`] uses one elsewhere; it comes back, and until then its id is not destroyed.
//!    What destroying one elsewhere ([`DeferredDestroy`]) needs: nobody has the id any more, and
//!    librdmacm waits until the events that were taken of it are acknowledged.
//! 2. An event is copied and acknowledged before anything else happens, so that destroying its id
//!    never waits for an acknowledgement (S10, S21).
#![allow(unsafe_code, reason = "calls librdmacm")]

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem::{MaybeUninit, offset_of};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use super::device::{self, VerbsDevice};
use super::failure::Failure;
use super::ffi::{self, Plain};
use super::id_link::IdKey;
use super::inherited::is_inherited;
use super::queue_pair::{QpGuard, ReadDepths, ReadyTerms, Transition};
use super::reaper::Token;
use super::sockaddr::{self, RawAddress, STORAGE_BYTES};

/// The event channel.
#[derive(Debug)]
pub(super) struct CmChannel(NonNull<ffi::rdma_event_channel>);

// SAFETY: moved once, to the thread that uses it from then on.
unsafe impl Send for CmChannel {}

impl CmChannel {
    /// Opens a non-blocking channel.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: no precondition.
        let raw = ffi::created(|| unsafe { ffi::rdma_create_event_channel() });
        let channel = Self(raw?);
        let flags = rustix::fs::fcntl_getfl(channel.fd())?;
        rustix::fs::fcntl_setfl(channel.fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(channel)
    }

    /// The fd that becomes readable when there is an event.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: a live channel.
        let fd = unsafe { self.0.as_ref().fd };
        // SAFETY: the fd is open as long as the channel, which the borrow stands for.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// The next event, copied and acknowledged (invariant 2); `None` when there is none.
    pub(super) fn next_event(&self) -> io::Result<Option<CmEvent>> {
        let mut event = ptr::null_mut();
        // SAFETY: a live channel; writes to the given pointer.
        let result =
            ffi::cm_result(|| unsafe { ffi::rdma_get_cm_event(self.0.as_ptr(), &raw mut event) });
        if let Err(error) = result {
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the event was just taken and is not acknowledged yet.
        let copied = unsafe { CmEvent::copy(event) };
        // SAFETY: acknowledged once, and not used afterwards.
        unsafe { ffi::rdma_ack_cm_event(event) };
        Ok(Some(copied))
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        // SAFETY: the only owner; its ids are gone (they are dropped before, by their owner).
        unsafe { ffi::rdma_destroy_event_channel(self.0.as_ptr()) }
    }
}

/// An event of the connection manager, as a copy.
#[derive(Debug)]
pub(super) struct CmEvent {
    /// Number of the event (`enum rdma_cm_event_type`).
    pub(super) number: u32,
    /// 0, a negative errno, or a reject reason.
    pub(super) status: i32,
    /// The id that the event concerns; for a connection request, the listener.
    pub(super) key: IdKey,
    /// The new id that a connection request brings.
    pub(super) new_id: Option<CmId>,
    /// Private data of the peer.
    pub(super) private_data: Vec<u8>,
    /// READ depths that the peer of a connection request offers.
    pub(super) depths: ReadDepths,
}

impl CmEvent {
    /// # Safety
    /// `event` came from `rdma_get_cm_event` and is not acknowledged.
    unsafe fn copy(event: *const ffi::rdma_cm_event) -> Self {
        // SAFETY: the caller's promise.
        let number = unsafe { ffi::cm_event_number(event) };
        // SAFETY: as above; every field is an integer, a pointer or a union of such.
        let event = unsafe { &*event };
        let new_id = NonNull::new(event.listen_id).and(NonNull::new(event.id)).map(CmId::wrap);
        let concerned = if event.listen_id.is_null() { event.id } else { event.listen_id };
        // SAFETY: every event of an RC id has connection parameters, zeroed where they have no
        // meaning.
        let param = unsafe { event.param.conn };
        // SAFETY: the event's private data, which lives as long as the event.
        let private_data = unsafe { copy_bytes(param.private_data.cast(), param.private_data_len) };
        // SAFETY: the id of an event is alive until the event is acknowledged.
        let key = unsafe { key_of(concerned) };
        let depths = ReadDepths { own: param.initiator_depth, peer: param.responder_resources };
        Self { number, status: event.status, key, new_id, private_data, depths }
    }
}

/// # Safety
/// `id` is null or alive.
unsafe fn key_of(id: *const ffi::rdma_cm_id) -> IdKey {
    if id.is_null() {
        return IdKey::NONE;
    }
    // SAFETY: the caller's promise; the context is a number that this program has set.
    IdKey::from_context(unsafe { (*id).context })
}

/// # Safety
/// `from` is null or has `len` bytes.
unsafe fn copy_bytes(from: *const u8, len: u8) -> Vec<u8> {
    if from.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(from, usize::from(len)) }.to_vec()
}

/// Parameters sent to the peer when connecting or accepting.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnParam<'a> {
    pub(super) private_data: &'a [u8],
    pub(super) qp_number: u32,
    pub(super) depths: ReadDepths,
    pub(super) retry_count: u8,
}

impl ConnParam<'_> {
    fn to_c(self) -> ffi::rdma_conn_param {
        let mut param = ffi::rdma_conn_param::zeroed();
        param.private_data = self.private_data.as_ptr().cast();
        // The limits of the device contract are below 256, and the callers check them.
        param.private_data_len = u8::try_from(self.private_data.len()).unwrap_or(0);
        param.initiator_depth = self.depths.own;
        param.responder_resources = self.depths.peer;
        param.retry_count = self.retry_count;
        param.rnr_retry_count = 0;
        param.qp_num = self.qp_number;
        param
    }
}

/// An id. Destroyed on drop; stays on its thread (invariant 1).
pub(super) struct CmId(NonNull<ffi::rdma_cm_id>, Arc<Owned>, PhantomData<*mut ()>);

impl CmId {
    fn wrap(raw: NonNull<ffi::rdma_cm_id>) -> Self {
        Self(raw, Arc::new(Owned(raw)), PhantomData)
    }

    /// Creates an id for a connection-oriented service.
    pub(super) fn create(channel: &CmChannel, key: IdKey) -> io::Result<Self> {
        let mut raw = ptr::null_mut();
        let space = ffi::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: a live channel; writes to the given pointer; the context is a number.
        ffi::cm_result(|| unsafe {
            ffi::rdma_create_id(channel.0.as_ptr(), &raw mut raw, key.to_context(), space)
        })?;
        NonNull::new(raw).map(Self::wrap).ok_or_else(|| io::Error::other("no id"))
    }

    /// Sets the key that the id's events carry. The id of a connection request starts with its
    /// listener's key.
    pub(super) fn set_key(&mut self, key: IdKey) {
        // SAFETY: a live id; librdmacm leaves the context to its user.
        unsafe { (*self.0.as_ptr()).context = key.to_context() };
    }

    /// Starts to look for a device and, where needed, the peer's link-layer address.
    pub(super) fn resolve_address(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let mut from = from.map(RawAddress::from);
        let mut to = RawAddress::from(to);
        let timeout = milliseconds(timeout);
        let from = from.as_mut().map_or(ptr::null_mut(), |from| from.as_mut_ptr().cast());
        // SAFETY: a live id and socket addresses in the kernel's layout, of which the first may be
        // null.
        ffi::cm_result(|| unsafe {
            let to = to.as_mut_ptr().cast();
            ffi::rdma_resolve_addr(self.0.as_ptr(), from, to, timeout)
        })
    }

    /// Sets the traffic class of the connection. Must precede address resolution, or listening.
    pub(super) fn set_traffic_class(&self, mut class: u8) -> io::Result<()> {
        let (level, option) = (ffi::number::OPTION_LEVEL_ID, ffi::number::OPTION_TOS);
        let value = (&raw mut class).cast();
        // SAFETY: a live id, and a byte as the option requires.
        ffi::cm_result(|| unsafe {
            ffi::rdma_set_option(self.0.as_ptr(), level, option, value, size_of::<u8>())
        })
    }

    /// Starts to look for a path.
    pub(super) fn resolve_route(&self, timeout: Duration) -> io::Result<()> {
        // SAFETY: a live id.
        ffi::cm_result(|| unsafe {
            ffi::rdma_resolve_route(self.0.as_ptr(), milliseconds(timeout))
        })
    }

    /// Binds to a local address; a wildcard address means all devices.
    pub(super) fn bind(&self, at: SocketAddr) -> io::Result<()> {
        if at.is_ipv6() && at.ip().is_unspecified() {
            self.accept_both_families()?;
        }
        let mut at = RawAddress::from(at);
        // SAFETY: a live id and a socket address in the kernel's layout.
        ffi::cm_result(|| unsafe { ffi::rdma_bind_addr(self.0.as_ptr(), at.as_mut_ptr().cast()) })
    }

    fn accept_both_families(&self) -> io::Result<()> {
        let mut only_v6 = 0_i32;
        let level = ffi::number::OPTION_LEVEL_ID;
        let option = ffi::number::OPTION_AFONLY;
        let value = (&raw mut only_v6).cast();
        // SAFETY: a live id, and an int as the option requires.
        ffi::cm_result(|| unsafe {
            ffi::rdma_set_option(self.0.as_ptr(), level, option, value, size_of::<i32>())
        })
    }

    /// Starts to listen.
    pub(super) fn listen(&self, backlog: u16) -> io::Result<()> {
        // SAFETY: a live id.
        ffi::cm_result(|| unsafe { ffi::rdma_listen(self.0.as_ptr(), i32::from(backlog)) })
    }

    /// Sends the REQ.
    pub(super) fn connect(&self, param: ConnParam<'_>) -> io::Result<()> {
        let mut param = param.to_c();
        // SAFETY: a live id; the private data outlives the call, which copies it.
        ffi::cm_result(|| unsafe { ffi::rdma_connect(self.0.as_ptr(), &raw mut param) })
    }

    /// The work of [`CmId::connect`], for another thread.
    pub(super) fn dial(&self, param: ConnParam<'_>, qp: Arc<QpGuard>) -> Dial {
        let private_data = param.private_data.to_vec();
        let param = ConnParam { private_data: &[], ..param };
        Dial { id: Arc::clone(&self.1), _qp: qp, private_data, param }
    }

    /// Has the id destroyed elsewhere. `None` while a [`Dial`] has it, too.
    pub(super) fn deferred_destroy(self) -> Option<DeferredDestroy> {
        DeferredDestroy::of(self.1)
    }

    /// Sends the RTU.
    pub(super) fn establish(&self) -> io::Result<()> {
        // SAFETY: a live id without a QP of its own.
        ffi::cm_result(|| unsafe { ffi::rdma_establish(self.0.as_ptr()) })
    }

    /// Sends the REP.
    pub(super) fn accept(&self, param: ConnParam<'_>) -> io::Result<()> {
        let mut param = param.to_c();
        // SAFETY: a live id; the private data outlives the call, which copies it.
        ffi::cm_result(|| unsafe { ffi::rdma_accept(self.0.as_ptr(), &raw mut param) })
    }

    /// Sends a REJ.
    pub(super) fn reject(&self, private_data: &[u8]) -> io::Result<()> {
        let len = u8::try_from(private_data.len()).unwrap_or(0);
        let data = private_data.as_ptr().cast();
        // SAFETY: a live id; the private data outlives the call, which copies it.
        ffi::cm_result(|| unsafe { ffi::rdma_reject(self.0.as_ptr(), data, len) })
    }

    /// Sends a DREQ, or answers one.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        // SAFETY: a live id.
        ffi::cm_result(|| unsafe { ffi::rdma_disconnect(self.0.as_ptr()) })
    }

    /// Reports to the kernel that the QP has received something, in case the RTU was lost.
    pub(super) fn notify_established(&self) -> io::Result<()> {
        // SAFETY: a live id, used by this thread alone.
        ffi::cm_result(|| unsafe { ffi::notify_communication_established(self.0.as_ptr()) })
    }

    /// The device, once known.
    pub(super) fn device(&self) -> Option<NonNull<ffi::ibv_context>> {
        // SAFETY: a live id.
        NonNull::new(unsafe { self.0.as_ref().verbs })
    }

    /// The attributes that move the QP to INIT.
    pub(super) fn init_transition(&self, allows_reads: bool) -> io::Result<Transition> {
        // SAFETY: a live id, used by this thread alone.
        unsafe { Transition::to_init(self.0.as_ptr(), allows_reads) }
    }

    /// The transitions that move the QP through RTR to RTS.
    pub(super) fn ready_transitions(&self, terms: ReadyTerms) -> io::Result<[Transition; 3]> {
        let id = self.0.as_ptr();
        let link_layer = self.link_layer();
        let depths = terms.read_depths;
        // INIT once more, since the attributes may have changed (librdmacm does this too). SAFETY:
        // a live id, used by this thread alone.
        let init = unsafe { Transition::to_init(id, terms.allows_reads) }?;
        // SAFETY: as above.
        let rtr = unsafe { Transition::to_rtr(id, depths.map(|depths| depths.peer), link_layer) }?;
        // SAFETY: as above.
        let rts = unsafe { Transition::to_rts(id, depths.map(|depths| depths.own), terms.timers) }?;
        Ok([init, rtr, rts])
    }

    /// The device's port, once the device is known.
    pub(super) fn port(&self) -> u8 {
        // SAFETY: a live id.
        unsafe { self.0.as_ref().port_num }
    }

    fn link_layer(&self) -> u8 {
        let port = self.port();
        let port = self.device().map(|context| device::query_port(context.as_ptr(), port));
        port.and_then(Result::ok).map_or(0, |port| port.link_layer)
    }

    /// The device object of this id.
    pub(super) fn open_device(&self) -> Result<Arc<VerbsDevice>, Failure> {
        let none = || Failure::Device("the connection manager found no device".to_owned());
        VerbsDevice::of(self.device().ok_or_else(none)?)
            .map_err(|error| Failure::Device(format!("the RDMA device cannot be used: {error}")))
    }

    /// The local address.
    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.address_at(offset_of!(ffi::rdma_cm_id, route.addr.src_addr_union))
    }

    /// The peer's address.
    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        self.address_at(offset_of!(ffi::rdma_cm_id, route.addr.dst_addr_union))
    }

    fn address_at(&self, offset: usize) -> Option<SocketAddr> {
        // SAFETY: the offset of a field of the id.
        let from = unsafe { self.0.as_ptr().cast::<u8>().add(offset) };
        let mut raw = MaybeUninit::<[u8; STORAGE_BYTES]>::uninit();
        // SAFETY: the field has the size of a sockaddr_storage and is zeroed when the id is made.
        unsafe { raw.as_mut_ptr().copy_from_nonoverlapping(from.cast(), 1) };
        // SAFETY: written by the line above.
        sockaddr::parse(&unsafe { raw.assume_init() })
    }
}

/// Owns the id: destroyed on drop.
struct Owned(NonNull<ffi::rdma_cm_id>);

// SAFETY: librdmacm's calls are thread-safe, and the kernel serializes the calls of one id.
// `rdma_destroy_id` waits for the acknowledgement of the events that were taken (rdma-core,
// librdmacm/cma.c), which comes after the last use of the id that they bring. Invariant 1 restricts
// where it is dropped.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

/// A REQ that another thread sends, since the call waits for the peer.
pub(super) struct Dial {
    id: Arc<Owned>,
    /// Held here, since destroying it would wait for the call, and so block the thread that
    /// destroys all objects.
    _qp: Arc<QpGuard>,
    private_data: Vec<u8>,
    param: ConnParam<'static>,
}

impl Dial {
    /// Sends the REQ, and waits as long as the device does. Then this returns to the channel's
    /// thread (invariant 1).
    pub(super) fn run(&self) -> io::Result<()> {
        let mut param = ConnParam { private_data: &self.private_data, ..self.param }.to_c();
        // SAFETY: the id lives; the private data outlives the call, which copies it.
        ffi::cm_result(|| unsafe { ffi::rdma_connect(self.id.0.as_ptr(), &raw mut param) })
    }
}

impl Dial {
    /// Has the id destroyed elsewhere. `None` while its conversation goes on.
    pub(super) fn deferred_destroy(self) -> Option<DeferredDestroy> {
        DeferredDestroy::of(self.id)
    }
}

/// An id without an owner whose peer has not answered. Dropping this destroys the id, which waits
/// for the peer.
pub(super) struct DeferredDestroy {
    _id: Owned,
    /// Dropped after the id.
    _token: Token,
}

impl DeferredDestroy {
    fn of(id: Arc<Owned>) -> Option<Self> {
        Arc::into_inner(id).map(|id| Self { _id: id, _token: Token::take() })
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dial({:?})", self.id.0)
    }
}

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

impl Drop for Owned {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        // SAFETY: the only owner; librdmacm waits for events that are not acknowledged yet, which
        // the channel's thread does at once (invariant 2).
        let result = ffi::cm_result(|| unsafe { ffi::rdma_destroy_id(self.0.as_ptr()) });
        if let Err(error) = result {
            tracing::error!(%error, "connection id leaked");
        }
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CmId({:?})", self.0)
    }
}
