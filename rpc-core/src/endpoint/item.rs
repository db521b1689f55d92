//! Checks the items of streams before the session takes them.

use rpc_transport::memory::budget::BudgetExhausted;
use rpc_transport::message::outgoing::OutBuf;

use super::RpcEndpoint;
use super::send_quota::UNCOUNTED_BYTES;
use crate::service::MethodDescriptor;
use crate::session::{RAISE, SendError, StreamId};
use crate::status::Status;

/// Why an item is not sent, and none after it.
#[derive(Debug)]
pub(crate) enum NotTaken {
    /// Nobody reads it.
    Ended(SendError),
    /// It is larger than the peer takes.
    TooLarge(String),
    /// There is no memory for it.
    NoMemory(BudgetExhausted),
}

impl NotTaken {
    /// The status that the stream ends with.
    #[cold]
    pub(crate) fn into_status(self, method: &MethodDescriptor) -> Status {
        let name = method.name;
        match self {
            Self::Ended(error) => Status::cancelled(format!("{name}: {error}")),
            Self::TooLarge(why) => Status::resource_exhausted(format!("{name}: an item {why}")),
            Self::NoMemory(reason) => Status::resource_exhausted(format!(
                "{name}: no memory for an item: {reason}; {RAISE}"
            )),
        }
    }
}

impl RpcEndpoint {
    /// Checks an item's length, and charges a large one to the memory budget until it has left.
    #[inline]
    pub(crate) fn admit_item(&mut self, id: StreamId, item: &mut OutBuf) -> Result<(), NotTaken> {
        let bytes = item.total_len();
        if self.request_passes(0, bytes) {
            return Ok(());
        }
        self.admit_item_slow(id, bytes, item)
    }

    #[cold]
    fn admit_item_slow(
        &mut self,
        id: StreamId,
        bytes: u64,
        item: &mut OutBuf,
    ) -> Result<(), NotTaken> {
        let too_large = match id {
            StreamId::Call(_) => self.request_too_large(0, bytes),
            StreamId::Incoming(_) => self.reply_too_large(bytes),
        };
        if let Some(why) = too_large {
            return Err(NotTaken::TooLarge(why));
        }
        if bytes > UNCOUNTED_BYTES && !item.is_charged() {
            item.charge(self.memory().reserve(bytes).map_err(NotTaken::NoMemory)?);
        }
        Ok(())
    }
}
