//! Configuration of a link: the knobs of one end, their ranges, and what is derived from them.
//!
//! Owns the defaults and the words that a person reads when a value is out of range. Never
//! changes once a connection is set up.
//!
//! Invariant: after [`LinkConfig::validate`] every derived size ([`LinkConfig::window`],
//! [`LinkConfig::send_queue_budget`]) passes the checks of [`crate::protocol::credit`].

use std::fmt::Display;
use std::time::Duration;

use crate::protocol::arena::ArenaConfig;
use crate::protocol::credit::{MAX_WINDOW, MIN_ACK_WINDOW, SendQueueBudget, Window};

/// SQ slots for Acks, WRs. More than one only lets Acks leave before earlier ones complete.
const ACK_SLOTS: u16 = 4;
/// Most WRs of one message: 7 WRITEs and a SEND.
const MAX_MESSAGE_SLOTS: u16 = 8;
/// Smallest receive buffer, bytes: holds every control frame and a segment worth its header.
pub const MIN_RECEIVE_BUFFER_BYTES: u32 = 256;
/// Largest receive buffer, bytes.
pub const MAX_RECEIVE_BUFFER_BYTES: u32 = 16 << 20;
/// Largest `max_message_bytes`.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 40;

const _: () = assert!(
    MIN_RECEIVE_BUFFER_BYTES as usize >= 2 * crate::protocol::frame::CONTROL_FRAME_MAX_BYTES
);

/// Who shares a protection domain: the device refuses keys of another domain.
///
/// Only a connection's arenas and reply slots can be written by a peer at all, and their keys are
/// told to that connection's peer alone. But keys travel in clear, and can be guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Isolation {
    /// All connections of a channel, or of a server on one device. A peer that knows key and
    /// address of another connection's arena or slot can write there, and so change payloads on
    /// their way: for peers that trust each other.
    #[default]
    Shared,
    /// Nobody: a domain for each connection. A peer that learned the keys of another connection's
    /// memory could not use them: its own connection ends when it tries. Costs a device object for
    /// each connection, and a copy of what was registered for all of them.
    PerConnection,
}

/// What becomes of a message when [`LinkConfig::queued_bytes`] wait to leave before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenFull {
    /// It waits: a reply with the handler that made it, a request with its call.
    #[default]
    Wait,
    /// Its call fails with `ResourceExhausted`.
    Refuse,
}

/// What may wait to leave on a connection, and what becomes of more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimit {
    /// Bytes.
    pub bytes: u64,
    /// What becomes of more.
    pub when_full: WhenFull,
}

/// The knobs of one end of a link. The default works; setters take and return the value.
///
/// ```
/// use std::time::Duration;
/// use rpc_transport::config::LinkConfig;
///
/// let config = LinkConfig::default().data_credits(128).keep_alive(Some(Duration::from_secs(5)));
/// config.validate()?;
/// # Ok::<(), rpc_transport::config::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkConfig {
    pub(crate) data_credits: u16,
    pub(crate) ack_credits: u16,
    pub(crate) receive_buffer_bytes: u32,
    pub(crate) max_message_bytes: u64,
    pub(crate) assembly_bytes: u64,
    pub(crate) send_queue_slots: u16,
    pub(crate) bulk_queue_bytes: u32,
    pub(crate) queue_limit: QueueLimit,
    pub(crate) arena: ArenaConfig,
    pub(crate) arena_threshold_bytes: u32,
    pub(crate) arena_segment_bytes: u32,
    pub(crate) reply_slot_bytes: u64,
    pub(crate) isolation: Isolation,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) keep_alive_timeout: Duration,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            data_credits: 64,
            ack_credits: 2,
            receive_buffer_bytes: 8 << 10,
            max_message_bytes: 64 << 20,
            assembly_bytes: 64 << 20,
            send_queue_slots: 64,
            bulk_queue_bytes: 1 << 20,
            queue_limit: QueueLimit { bytes: 16 << 20, when_full: WhenFull::Wait },
            arena: ArenaConfig::default(),
            arena_threshold_bytes: 16 << 10,
            arena_segment_bytes: 256 << 10,
            reply_slot_bytes: 256 << 20,
            isolation: Isolation::Shared,
            keep_alive: Some(Duration::from_secs(15)),
            keep_alive_timeout: Duration::from_secs(5),
        }
    }
}

impl LinkConfig {
    /// Messages that the peer may have unreturned at this end (`D`), credits. Default 64, 1 to
    /// 4095. Each costs a receive buffer; more hide a longer round trip.
    #[must_use]
    pub fn data_credits(mut self, credits: u16) -> Self {
        self.data_credits = credits;
        self
    }

    /// Acks that the peer may have unreturned at this end (`I`), credits. Default 2, 2 to
    /// 4095. There is no reason to raise it but tests.
    #[must_use]
    pub fn ack_credits(mut self, credits: u16) -> Self {
        self.ack_credits = credits;
        self
    }

    /// Size of each receive buffer, bytes. Default 8 KiB, 256 bytes to 16 MiB. Larger messages
    /// travel in segments of the smaller of both ends' size. `D + I + 1` of them are posted per
    /// connection.
    #[must_use]
    pub fn receive_buffer_bytes(mut self, bytes: u32) -> Self {
        self.receive_buffer_bytes = bytes;
        self
    }

    /// Largest message that this end takes, bytes. Default 64 MiB, at least the receive buffer, at
    /// most 1 TiB. The peer refuses to send more, and breaking the limit closes the connection.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: u64) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Longest message that is put together before it is delivered, bytes. Default 64 MiB, at least
    /// the receive buffer. The tail of a longer one, up to [`LinkConfig::max_message_bytes`], is
    /// delivered as a stream that is read while it arrives; a longer head closes the connection.
    #[must_use]
    pub fn assembly_bytes(mut self, bytes: u64) -> Self {
        self.assembly_bytes = bytes;
        self
    }

    /// Send queue slots for messages, WRs. Default 64, 1 to 4095. Fewer than the peer's data
    /// credits bounds what is in flight before it does.
    #[must_use]
    pub fn send_queue_slots(mut self, slots: u16) -> Self {
        self.send_queue_slots = slots;
        self
    }

    /// Bytes of segments that may lie in the send queue at once, so that a small message never
    /// waits behind more. Default 1 MiB, at least 1; two segments are always allowed.
    #[must_use]
    pub fn bulk_queue_bytes(mut self, bytes: u32) -> Self {
        self.bulk_queue_bytes = bytes;
        self
    }

    /// Bytes that may wait to leave on the connection before further messages do what
    /// [`LinkConfig::when_full`] says. Default 16 MiB, 1 byte to 1 TiB; the last that is queued may
    /// be of any length. Small messages wait for small ones only.
    #[must_use]
    pub fn queued_bytes(mut self, bytes: u64) -> Self {
        self.queue_limit.bytes = bytes;
        self
    }

    /// What becomes of a message that finds [`LinkConfig::queued_bytes`] waiting. Default
    /// [`WhenFull::Wait`].
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.queue_limit.when_full = when_full;
        self
    }

    /// What [`LinkConfig::queued_bytes`] and [`LinkConfig::when_full`] say.
    #[must_use]
    pub const fn queue_limit(&self) -> QueueLimit {
        self.queue_limit
    }

    /// The landing zone that this end gives its peer for large messages: see [`ArenaConfig`].
    /// Nothing is allocated before the first large message; by default arenas of 4 MiB are added on
    /// demand up to 64 MiB. `max_chunks` 0 gives none, and large messages then arrive through
    /// receive buffers.
    #[must_use]
    pub fn arena(mut self, arena: ArenaConfig) -> Self {
        self.arena = arena;
        self
    }

    /// Messages of this size and more are written into the peer's arena, bytes. Default 16 KiB;
    /// smaller ones travel through receive buffers, as do all that fit one. In CPU time both ways
    /// cost the same at 10 KiB over shared memory and at 16 KiB over tcp; at 64 KiB the frames cost
    /// 1.8 and 1.4 times as much.
    #[must_use]
    pub fn arena_threshold_bytes(mut self, bytes: u32) -> Self {
        self.arena_threshold_bytes = bytes;
        self
    }

    /// Most bytes that are written into the peer's arena at once. Default 256 KiB, 4 KiB to 1 GiB.
    /// A longer message is written in several segments, and small messages leave between two; over
    /// shared memory, where posting copies, also within one.
    #[must_use]
    pub fn arena_segment_bytes(mut self, bytes: u32) -> Self {
        self.arena_segment_bytes = bytes;
        self
    }

    /// Memory of this end that the peer may write outside of the arenas, as answers that were asked
    /// for in buffers of the caller, bytes. Default 256 MiB, at most 1 TiB; one buffer is always
    /// allowed, and 0 allows none. A buffer whose call was cancelled counts, and stays as it is,
    /// until the peer has proved that it writes it no more: this is the budget of that quarantine.
    /// Answers that are asked for in buffers beyond it come through the arenas, and are copied.
    #[must_use]
    pub fn reply_slot_bytes(mut self, bytes: u64) -> Self {
        self.reply_slot_bytes = bytes;
        self
    }

    /// Who shares a protection domain. Default [`Isolation::Shared`]; where the peers of a server
    /// do not trust each other, [`Isolation::PerConnection`].
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Silence after which the peer is pinged. Default 15 s; `None` never pings, and then a peer
    /// that vanished is found only by sending to it. At least 1 ms.
    ///
    /// A frame of the peer ends the silence, and so do bytes that arrive in the midst of one, and
    /// bytes ahead of the ping that the peer's host takes: a slow link is a live one. A peer that
    /// dies is found after the interval and the timeout, in the midst of a message at the latest
    /// after twice the interval and the timeout.
    #[must_use]
    pub fn keep_alive(mut self, interval: Option<Duration>) -> Self {
        self.keep_alive = interval;
        self
    }

    /// Silence after a ping that ends the connection. Default 5 s, at least 1 ms. This end looks
    /// eight times meanwhile; when it looks late (100 ms and an eighth of the timeout), as it was
    /// stopped or had too much to do, it judges nobody, and the time begins anew.
    #[must_use]
    pub fn keep_alive_timeout(mut self, timeout: Duration) -> Self {
        self.keep_alive_timeout = timeout;
        self
    }

    /// Checks every knob.
    ///
    /// # Errors
    /// [`ConfigError`] for the first one out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mill = Duration::from_millis(1);
        check("data_credits", self.data_credits, 1, MAX_WINDOW, "each costs a receive buffer")?;
        check(
            "ack_credits",
            self.ack_credits,
            MIN_ACK_WINDOW,
            MAX_WINDOW,
            "leave it at its default of 2; with fewer both ends would wait for each other",
        )?;
        check(
            "receive_buffer_bytes",
            self.receive_buffer_bytes,
            MIN_RECEIVE_BUFFER_BYTES,
            MAX_RECEIVE_BUFFER_BYTES,
            "larger messages travel in segments, whatever the buffer",
        )?;
        check(
            "max_message_bytes",
            self.max_message_bytes,
            u64::from(self.receive_buffer_bytes),
            MAX_MESSAGE_BYTES,
            "it is never less than receive_buffer_bytes; use a stream for what has no limit",
        )?;
        check(
            "assembly_bytes",
            self.assembly_bytes,
            u64::from(self.receive_buffer_bytes),
            MAX_MESSAGE_BYTES,
            "it is never less than receive_buffer_bytes; longer messages are streamed",
        )?;
        check(
            "send_queue_slots",
            self.send_queue_slots,
            1,
            MAX_WINDOW,
            "the peer's data credits are a good choice",
        )?;
        check("bulk_queue_bytes", self.bulk_queue_bytes, 1, u32::MAX, "1 MiB suits most links")?;
        check(
            "queued_bytes",
            self.queue_limit.bytes,
            1,
            MAX_MESSAGE_BYTES,
            "16 MiB suits most links",
        )?;
        self.arena.validate()?;
        check(
            "arena_segment_bytes",
            self.arena_segment_bytes,
            4 << 10,
            1 << 30,
            "256 KiB suits most links",
        )?;
        check(
            "reply_slot_bytes",
            self.reply_slot_bytes,
            0,
            MAX_MESSAGE_BYTES,
            "256 MiB suits most links",
        )?;
        if let Some(interval) = self.keep_alive {
            let what = "use None to switch pings off";
            check_time("keep_alive", interval, mill, what)?;
        }
        check_time("keep_alive_timeout", self.keep_alive_timeout, mill, "5 s suits most links")
    }

    /// What this end offers as a receiver: `D` and `I`.
    #[must_use]
    #[doc(hidden)]
    pub const fn window(&self) -> Window {
        Window { data: self.data_credits, ack: self.ack_credits }
    }

    /// The share of the SQ that credits govern; its `sq_len` is what the QP is created with.
    #[must_use]
    #[doc(hidden)]
    pub const fn send_queue_budget(&self) -> SendQueueBudget {
        let interval = self.send_queue_slots / 4;
        SendQueueBudget {
            data_slots: self.send_queue_slots,
            ack_slots: ACK_SLOTS,
            message_slots: message_slots(self.send_queue_slots),
            signal_interval: if interval == 0 { 1 } else { interval },
        }
    }
}

/// WRs of the largest message: WRITEs and the SEND behind them. In a short queue large messages
/// leave two others room, or are not written.
const fn message_slots(queue_slots: u16) -> u16 {
    match queue_slots / 2 {
        0 | 1 => 1,
        half if half < MAX_MESSAGE_SLOTS => half,
        _ => MAX_MESSAGE_SLOTS,
    }
}

/// A knob out of range: which, its value, what is allowed, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, allowed is {allowed}; {advice}")]
pub struct ConfigError {
    /// The knob.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// The range.
    pub allowed: String,
    /// What to do.
    pub advice: &'static str,
}

pub(crate) fn check<T: PartialOrd + Display>(
    field: &'static str,
    value: T,
    min: T,
    max: T,
    advice: &'static str,
) -> Result<(), ConfigError> {
    if value >= min && value <= max {
        return Ok(());
    }
    let allowed = format!("{min} to {max}");
    Err(ConfigError { field, value: value.to_string(), allowed, advice })
}

fn check_time(
    field: &'static str,
    value: Duration,
    min: Duration,
    advice: &'static str,
) -> Result<(), ConfigError> {
    if value >= min {
        return Ok(());
    }
    let (value, allowed) = (format!("{value:?}"), format!("{min:?} or more"));
    Err(ConfigError { field, value, allowed, advice })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid() {
        LinkConfig::default().validate().unwrap();
    }

    #[test]
    fn every_knob_out_of_range_is_named_with_value_range_and_advice() {
        let base = LinkConfig::default;
        for (config, parts) in [
            (base().data_credits(0), ["data_credits is 0", "1 to 4095", "receive buffer"]),
            (base().data_credits(4096), ["data_credits is 4096", "1 to 4095", "receive buffer"]),
            (base().ack_credits(1), ["ack_credits is 1", "2 to 4095", "default of 2"]),
            (base().ack_credits(4096), ["ack_credits is 4096", "2 to 4095", "default of 2"]),
            (
                base().receive_buffer_bytes(255),
                ["receive_buffer_bytes is 255", "256 to 16777216", "segments"],
            ),
            (
                base().max_message_bytes(8191),
                ["max_message_bytes is 8191", "8192 to 1099511627776", "stream"],
            ),
            (
                base().assembly_bytes(1),
                ["assembly_bytes is 1", "8192 to 1099511627776", "streamed"],
            ),
            (base().send_queue_slots(0), ["send_queue_slots is 0", "1 to 4095", "data credits"]),
            (base().bulk_queue_bytes(0), ["bulk_queue_bytes is 0", "1 to", "1 MiB"]),
            (base().queued_bytes(0), ["queued_bytes is 0", "1 to 1099511627776", "16 MiB"]),
            (
                base().arena_segment_bytes(4095),
                ["arena_segment_bytes is 4095", "4096 to 1073741824", "256 KiB"],
            ),
            (
                base().reply_slot_bytes(MAX_MESSAGE_BYTES + 1),
                ["reply_slot_bytes is 1099511627777", "0 to 1099511627776", "256 MiB"],
            ),
            (
                base().arena(ArenaConfig { log2_chunk: 11, ..ArenaConfig::default() }),
                ["log2_chunk is 11", "12 to 26", "64 KiB"],
            ),
            (base().keep_alive(Some(Duration::ZERO)), ["keep_alive is 0ns", "1ms or more", "None"]),
            (
                base().keep_alive_timeout(Duration::ZERO),
                ["keep_alive_timeout is 0ns", "1ms or more", "5 s"],
            ),
        ] {
            let error = config.validate().unwrap_err().to_string();
            for part in parts {
                assert!(error.contains(part), "{error} lacks {part}");
            }
        }
    }

    #[test]
    fn the_budget_of_a_valid_config_is_valid() {
        for slots in [1, 2, 3, 64, 4095] {
            LinkConfig::default().send_queue_slots(slots).send_queue_budget().validate().unwrap();
        }
    }
}
