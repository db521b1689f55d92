//! Starts calls of this end.
//!
//! Owns the checks of a request before it enters the session: its size, and room in the queue.

use std::cell::Cell;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::WhenFull;

use super::RpcEndpoint;
use crate::session::{CallHead, CallId, CallOptions, StartError};
use crate::stats::counts::Timed;

/// Why a request is not sent.
pub(crate) enum Refused {
    Start(StartError),
    TooLarge(String),
    QueueFull,
}

impl RpcEndpoint {
    /// Starts a call, and takes its body. Sets when it was sent, if it is timed and was not counted
    /// before.
    ///
    /// # Errors
    /// Why the call was not started. `body` still has the request.
    #[inline]
    pub(crate) fn start(
        &mut self,
        head: &CallHead,
        options: &CallOptions,
        body: &mut Option<OutBuf>,
        began: &Cell<Option<Timed>>,
    ) -> Result<CallId, Box<Refused>> {
        let bytes = body.as_ref().map_or(0, OutBuf::total_len);
        if !self.request_passes(options.metadata_bytes(), bytes) {
            self.check_request_slow(options, bytes)?;
        }
        let started = self.session.start_from(head, options, body, None);
        let call = started.map_err(|error| Box::new(Refused::Start(error)))?;
        if !options.is_counted {
            began.set(self.counts.on_start(head.method_index, bytes));
        }
        Ok(call)
    }

    /// Slow path: a large request, or one that finds the queue full.
    #[cold]
    fn check_request_slow(
        &mut self,
        options: &CallOptions,
        bytes: u64,
    ) -> Result<(), Box<Refused>> {
        if let Some(why) = self.request_too_large(options.metadata_bytes(), bytes) {
            return Err(Box::new(Refused::TooLarge(why)));
        }
        if !self.quota.admit(bytes) {
            if options.when_full == WhenFull::Refuse {
                return Err(Box::new(Refused::QueueFull));
            }
            // The request is queued all the same: its call waits.
            self.quota.count(bytes);
        }
        Ok(())
    }
}
