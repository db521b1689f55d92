//! A CQ, its completion channel, and the one fd that becomes readable for everything that the CQ's
//! owner waits for.
//!
//! Owns the CQ as an object of the device, and counts its events. Never interprets a completion.
//!
//! Invariants:
//! 1. The event fd is an epoll set over the completion channel and the mailbox's eventfd: readable
//!    when either is.
//! 2. Every CQ event that was taken is acknowledged, exactly once, before the CQ is destroyed:
//!    `ibv_destroy_cq` waits until the numbers are equal, so one acknowledgement too many makes it
//!    hang as well (S57).
//! 3. The device's CQ is half as large again as the capacity offered, so that the provider can post
//!    one drain WR per QP without overflow.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::epoll;

use super::context::Context;
use super::ffi;
use super::inherited::is_inherited;
use super::mailbox::Mailbox;
use super::reaper;

/// Events are acknowledged in batches of this many, since each call takes a lock.
const ACK_BATCH: u32 = 64;

/// A CQ of the device.
pub(super) struct CqGuard {
    raw: NonNull<ffi::ibv_cq>,
    channel: NonNull<ffi::ibv_comp_channel>,
    events: OwnedFd,
    /// Events taken and not acknowledged.
    unacked: AtomicU32,
    entries: u32,
    capacity: u32,
    mailbox: Arc<Mailbox>,
    context: Arc<Context>,
}

// SAFETY: libibverbs is thread-safe; the pointers are only passed to it.
unsafe impl Send for CqGuard {}
// SAFETY: as above.
unsafe impl Sync for CqGuard {}

impl CqGuard {
    /// Creates a CQ for at least `min_entries` completions.
    pub(super) fn create(
        context: &Arc<Context>,
        min_entries: u32,
        vector: i32,
    ) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::new()?);
        let channel = Channel::create(context)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&events, channel.fd(), data, epoll::EventFlags::IN)?;
        epoll::add(&events, mailbox.bell(), data, epoll::EventFlags::IN)?;
        let wanted = min_entries.max(1).saturating_add(min_entries.div_ceil(2));
        let wanted = i32::try_from(wanted).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: open context and live channel; no user context.
        let raw = ffi::created(|| unsafe {
            ffi::ibv_create_cq(
                context.as_ptr(),
                wanted,
                ptr::null_mut(),
                channel.0.as_ptr(),
                vector,
            )
        })?;
        // SAFETY: a live CQ; the field is set at creation.
        let granted = u32::try_from(unsafe { raw.as_ref().cqe }).unwrap_or(0);
        context.register_cq(raw, &mailbox);
        Ok(Self {
            raw,
            channel: channel.into_raw(),
            events,
            unacked: AtomicU32::new(0),
            entries: granted.max(min_entries),
            capacity: Self::usable_entries(granted).max(min_entries),
            mailbox,
            context: Arc::clone(context),
        })
    }

    /// The capacity offered to users of a device CQ of `entries` (invariant 3).
    pub(super) fn usable_entries(entries: u32) -> u32 {
        entries / 3 * 2
    }

    /// The CQ.
    pub(super) fn as_ptr(&self) -> *mut ffi::ibv_cq {
        self.raw.as_ptr()
    }

    /// Completions that fit, not counting drain WRs.
    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Completions that the device's CQ holds, with drain WRs.
    pub(super) fn entries(&self) -> u32 {
        self.entries
    }

    /// The device.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Where other threads leave messages for the owner.
    pub(super) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// The event fd (invariant 1).
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Asks for an event at the next completion, solicited or not.
    pub(super) fn arm(&self) -> io::Result<()> {
        // SAFETY: a live CQ.
        ffi::verbs_result(unsafe { ffi::ibv_req_notify_cq(self.as_ptr(), 0) })
    }

    /// Takes all pending events, so that the fd is unreadable until the next one.
    pub(super) fn clear_events(&self) -> io::Result<()> {
        self.mailbox.silence();
        loop {
            let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: a live non-blocking channel; writes to the two given pointers.
            let returned =
                unsafe { ffi::ibv_get_cq_event(self.channel.as_ptr(), &raw mut cq, &raw mut user) };
            if returned != 0 {
                let error = io::Error::last_os_error();
                return match error.kind() {
                    io::ErrorKind::WouldBlock => Ok(()),
                    io::ErrorKind::Interrupted => continue,
                    _ => Err(error),
                };
            }
            if self.unacked.fetch_add(1, Ordering::Relaxed) + 1 >= ACK_BATCH {
                self.ack();
            }
        }
    }

    /// Takes up to `wcs.len()` completions. Returns how many.
    pub(super) fn poll(&self, wcs: &mut [MaybeUninit<ffi::ibv_wc>]) -> Result<usize, i32> {
        let room = i32::try_from(wcs.len()).unwrap_or(i32::MAX);
        // SAFETY: a live CQ, and room for `room` completions.
        let count = unsafe { ffi::ibv_poll_cq(self.as_ptr(), room, wcs.as_mut_ptr().cast()) };
        usize::try_from(count).map_err(|_| count)
    }

    fn ack(&self) {
        let count = self.unacked.swap(0, Ordering::Relaxed);
        if count > 0 {
            // SAFETY: a live CQ; invariant 2: each event is counted once.
            unsafe { ffi::ibv_ack_cq_events(self.as_ptr(), count) };
        }
    }
}

impl Drop for CqGuard {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        self.context.unregister_cq(self.raw);
        self.ack();
        let dead = RawCq(self.raw, self.channel, Arc::clone(&self.context));
        reaper::dispose(move || dead.destroy());
    }
}

impl fmt::Debug for CqGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqGuard({}, {} entries)", self.context.name(), self.capacity)
    }
}

struct RawCq(NonNull<ffi::ibv_cq>, NonNull<ffi::ibv_comp_channel>, Arc<Context>);

// SAFETY: as for `CqGuard`.
unsafe impl Send for RawCq {}

impl RawCq {
    fn destroy(self) {
        // SAFETY: the guard was the only owner, its QPs hold its `Arc` and are gone.
        let returned = unsafe { ffi::ibv_destroy_cq(self.0.as_ptr()) };
        if let Err(error) = ffi::verbs_result(returned) {
            tracing::error!(device = self.2.name(), %error, "completion queue leaked");
            return;
        }
        drop(Channel(self.1));
    }
}

/// A completion channel without its CQ.
struct Channel(NonNull<ffi::ibv_comp_channel>);

impl Channel {
    fn create(context: &Context) -> io::Result<Self> {
        // SAFETY: the context is open.
        let raw = ffi::created(|| unsafe { ffi::ibv_create_comp_channel(context.as_ptr()) });
        let channel = Self(raw?);
        let flags = rustix::fs::fcntl_getfl(channel.fd())?;
        rustix::fs::fcntl_setfl(channel.fd(), flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: a live channel.
        let fd = unsafe { self.0.as_ref().fd };
        // SAFETY: the fd is open as long as the channel, which the borrow stands for.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn into_raw(self) -> NonNull<ffi::ibv_comp_channel> {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if is_inherited() {
            return;
        }
        // SAFETY: the only owner, and no CQ uses it.
        let returned = unsafe { ffi::ibv_destroy_comp_channel(self.0.as_ptr()) };
        if let Err(error) = ffi::verbs_result(returned) {
            tracing::error!(%error, "completion channel leaked");
        }
    }
}
