//! Memory windows of type 2B: guards that deallocate on drop, and what binds them.
//!
//! Owns the window and the choice of its key. The contract is rule 23 of the device contract.
//!
//! Invariants:
//! 1. A window is deallocated before its region is deregistered, which holds the domain, and before
//!    the QP that it is bound to is destroyed: Soft-RoCE refuses the one, and waits in the other.
//! 2. Its pointer is used only while it is in `raw`.
#![allow(unsafe_code, reason = "allocates and deallocates windows of a device")]

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::lock::Mutex;
use crate::memory::region::MemoryWindow;

use super::super::ffi::{self, Bind};
use super::super::inherited::is_inherited;
use super::super::reaper;
use super::{MrGuard, PdGuard};

/// A window of a device.
#[derive(Debug)]
pub(in crate::device::verbs) struct VerbsWindow(Arc<Guard>);

impl VerbsWindow {
    /// Allocates a window, and chooses the key that it will have.
    pub(super) fn allocate(pd: &Arc<PdGuard>) -> io::Result<Self> {
        // SAFETY: a live PD.
        let raw = ffi::created(|| unsafe { ffi::alloc_window(pd.as_ptr()) })?;
        // SAFETY: just allocated.
        let rkey = fresh_key(unsafe { raw.as_ref().rkey });
        let raw = Mutex::new(Some(RawWindow { raw, pd: Arc::clone(pd) }));
        Ok(Self(Arc::new(Guard { raw, rkey })))
    }

    /// The key that it has once it is bound.
    pub(super) fn rkey(&self) -> u32 {
        self.0.rkey
    }

    /// What binds this window; `None` if it is not of this provider, or its QP is gone.
    pub(in crate::device::verbs) fn bind(window: &MemoryWindow) -> Option<Bind> {
        let region = window.region();
        let mr = region.registration().downcast_ref::<MrGuard>()?;
        let this = window.grant().downcast_ref::<Self>()?;
        let raw = this.0.raw.lock().as_ref()?.raw.as_ptr();
        Some(Bind {
            window: raw,
            region: mr.as_ptr(),
            rkey: window.rkey(),
            address: region.remote_address(0),
            len: region.len() as u64,
        })
    }
}

/// The windows that were bound to a QP.
#[derive(Debug, Default)]
pub(in crate::device::verbs) struct BoundWindows(Vec<Weak<Guard>>);

impl BoundWindows {
    /// Another one. Few live at a time, and those that are gone are forgotten here.
    pub(in crate::device::verbs) fn add(&mut self, window: &MemoryWindow) {
        self.0.retain(|guard| guard.strong_count() > 0);
        if let Some(VerbsWindow(guard)) = window.grant().downcast_ref() {
            self.0.push(Arc::downgrade(guard));
        }
    }

    /// Ends all of them. Jobs for the reaper that come after find them deallocated.
    pub(in crate::device::verbs) fn end(&mut self) {
        self.0.drain(..).filter_map(|guard| guard.upgrade()).for_each(|guard| guard.end());
    }
}

#[derive(Debug)]
struct Guard {
    raw: Mutex<Option<RawWindow>>,
    rkey: u32,
}

impl Guard {
    fn end(&self) {
        let taken = self.raw.lock().take();
        if let Some(window) = taken {
            reaper::dispose(move || window.deallocate());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !is_inherited() {
            self.end();
        }
    }
}

#[derive(Debug)]
struct RawWindow {
    raw: NonNull<ffi::ibv_mw>,
    pd: Arc<PdGuard>,
}

// SAFETY: libibverbs is thread-safe; the pointer is only passed to it.
unsafe impl Send for RawWindow {}

impl RawWindow {
    fn deallocate(self) {
        // SAFETY: the only owner, which is gone with this call.
        let returned = unsafe { ffi::ibv_dealloc_mw(self.raw.as_ptr()) };
        if let Err(error) = ffi::verbs_result(returned) {
            tracing::error!(device = self.pd.context().name(), %error, "memory window leaked");
        }
    }
}

/// The key of a window that had the key `unbound`. Its owner chooses the low byte, which must be
/// another one (Soft-RoCE refuses the bind otherwise), at random: one thing more to guess.
fn fresh_key(unbound: u32) -> u32 {
    let random = RandomState::new().hash_one(unbound);
    let step = u8::try_from(random % 255).unwrap_or(0) + 1;
    let [high @ .., low] = unbound.to_be_bytes();
    let [a, b, c] = high;
    u32::from_be_bytes([a, b, c, low.wrapping_add(step)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_key_differs_in_its_low_byte() {
        for unbound in [0, 0x0012_34ff, u32::MAX] {
            for _ in 0..1000 {
                let key = fresh_key(unbound);
                assert_eq!(key & !0xff, unbound & !0xff);
                assert_ne!(key, unbound);
            }
        }
    }
}
