//! Asynchronous events of a device: failures that no completion reports.
//!
//! Owns reading a context's event queue and choosing the recipient of each event. Never handles an
//! event: the owner of the CQ does.
//!
//! Invariants:
//! 1. Events are read until there are none, and each is acknowledged at once: destroying a QP or CQ
//!    waits for the acknowledgement of its events.
//! 2. An event number that this program does not know is logged and ignored.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use crate::device::QpEvent;

use super::context::Context;
use super::ffi::{self, async_event as number};
use super::id_link::IdKey;

/// Reads all events. Returns the ids of QPs that have received something before their connection
/// was reported as established.
///
/// # Errors
/// When no more events can come: the device is gone. Its CQs have been notified by then.
pub(super) fn drain(context: &Context) -> io::Result<Vec<IdKey>> {
    let mut established = Vec::new();
    loop {
        // Zeroed, since a port event fills only a part of its union.
        let mut event = MaybeUninit::zeroed();
        // SAFETY: an open non-blocking context; fills the struct.
        let returned = unsafe { ffi::ibv_get_async_event(context.as_ptr(), event.as_mut_ptr()) };
        if returned != 0 {
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return Ok(established),
                io::ErrorKind::Interrupted => continue,
                _ => {
                    context.fail_all(&format!("cannot read asynchronous events ({error})"));
                    return Err(error);
                }
            }
        }
        let number = ffi::async_event_number(&event);
        let element = ffi::async_event_element(&event);
        established.extend(dispatch(context, number, element));
        // SAFETY: taken above, acknowledged once (invariant 1).
        unsafe { ffi::ibv_ack_async_event(event.as_mut_ptr()) };
    }
}

fn dispatch(context: &Context, number: u32, element: usize) -> Option<IdKey> {
    let device = context.name();
    match number {
        number::CQ_ERR => {
            tracing::error!(device, "completion queue overrun or broken");
            if let Some(mailbox) = context.cq_mailbox(element) {
                mailbox
                    .kill("the device reports an overrun or a broken completion queue".to_owned());
            }
        }
        number::QP_FATAL | number::QP_REQ_ERR | number::QP_ACCESS_ERR => {
            tracing::warn!(device, number, "queue pair broken");
            if let Some(target) = context.qp_target(element) {
                target.mailbox.put(QpEvent::Fatal(target.handle, number));
            }
        }
        number::COMM_EST => return context.qp_target(element).map(|target| target.id),
        number::DEVICE_FATAL => {
            tracing::error!(device, "device failed");
            context.fail_all("the device has failed");
        }
        number::PORT_ERR => {
            tracing::warn!(device, port = element, "port down");
            set_port(context, element, false);
        }
        number::PORT_ACTIVE => {
            tracing::info!(device, port = element, "port up");
            set_port(context, element, true);
        }
        // No address is cached: each connect and each bind looks up the current ones.
        number::GID_CHANGE => tracing::info!(device, port = element, "addresses changed"),
        // Of one that uses an SRQ. Many devices never raise it (see `queue::shared`).
        number::QP_LAST_WQE_REACHED => {
            if let Some(target) = context.qp_target(element) {
                target.is_last.store(true, Ordering::Release);
            }
        }
        other => tracing::debug!(device, number = other, "asynchronous event ignored"),
    }
    None
}

/// A number out of the range of ports counts as no port.
fn set_port(context: &Context, port: usize, is_up: bool) {
    context.ports().set(u8::try_from(port).unwrap_or(u8::MAX), is_up);
}
