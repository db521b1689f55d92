//! Configuration of a link: the settings of one end, their ranges, and the sizes derived from them.
//!
//! Owns the defaults and the error texts for values out of range. Never changes once a connection
//! is set up.
//!
//! Invariant: after [`LinkConfig::validate`] every derived size ([`LinkConfig::window`],
//! [`LinkConfig::send_queue_budget`]) passes the checks of [`crate::protocol::credit`].

mod isolation;

use std::fmt::Display;
use std::time::Duration;

pub use self::isolation::Isolation;
use crate::protocol::arena::{ArenaConfig, CHUNK_LOG2, CHUNK_NUMBERS, MAX_ARENA_CHUNKS};
use crate::protocol::credit::{
    FIRST_DATA_CREDITS, MAX_WINDOW, MIN_ACK_WINDOW, SendQueueBudget, Window,
};

/// SQ slots for Acks, WRs. More than one only lets an Ack be posted before earlier ones complete.
const ACK_SLOTS: u16 = 4;
/// Most WRs of one message: 7 WRITEs and a SEND.
const MAX_MESSAGE_SLOTS: u16 = 8;
/// Smallest receive buffer, bytes: holds every control frame, and a segment with enough payload to
/// be worth its header.
pub const MIN_RECEIVE_BUFFER_BYTES: u32 = 256;
/// Receive buffers where registering is free, bytes.
const RECEIVE_BUFFER_BYTES: u32 = 8 << 10;
/// Receive buffers where what is registered is locked, bytes: half, as an idle connection has them
/// posted.
const LOCKED_RECEIVE_BUFFER_BYTES: u32 = 4 << 10;
/// Largest receive buffer, bytes.
pub const MAX_RECEIVE_BUFFER_BYTES: u32 = 16 << 20;
/// Largest `max_message_bytes`.
pub const MAX_MESSAGE_BYTES: u64 = 1 << 40;

/// What happens to a message when [`LinkConfig::queued_bytes`] already wait to be sent, and to a
/// call when as many are in flight as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenFull {
    /// It waits: a reply with the handler that made it, a request with its call.
    #[default]
    Wait,
    /// The call fails with `ResourceExhausted`.
    Refuse,
}

/// How much may wait to be sent on a connection, and what happens to more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueLimit {
    /// The limit, bytes.
    pub bytes: u64,
    /// What happens to messages beyond the limit.
    pub when_full: WhenFull,
}

/// The settings of one end of a link. The default works; setters take and return the value.
///
/// ```
/// use std::time::Duration;
/// use rpc_transport::LinkConfig;
///
/// let config = LinkConfig::default().data_credits(128).keep_alive(Some(Duration::from_secs(5)));
/// config.validate()?;
/// # Ok::<(), rpc_transport::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkConfig {
    pub(crate) data_credits: u16,
    pub(crate) ack_credits: u16,
    /// `None`: by the device, see [`LinkConfig::settled`].
    receive_buffer_bytes: Option<u32>,
    pub(crate) max_message_bytes: u64,
    pub(crate) assembly_bytes: u64,
    pub(crate) send_queue_slots: u16,
    pub(crate) bulk_queue_bytes: u32,
    pub(crate) queue_limit: QueueLimit,
    shared_receive_queue: bool,
    pub(crate) arena: ArenaConfig,
    pub(crate) arena_threshold_bytes: u32,
    pub(crate) arena_segment_bytes: u32,
    pub(crate) reply_slot_bytes: u64,
    /// `None`: as the user has said nothing, where a protection domain is shared.
    memory_windows: Option<bool>,
    /// `None`: as the user has said nothing, [`Isolation::Shared`].
    pub(crate) isolation: Option<Isolation>,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) keep_alive_timeout: Duration,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            data_credits: 64,
            ack_credits: 2,
            receive_buffer_bytes: None,
            max_message_bytes: 64 << 20,
            assembly_bytes: 64 << 20,
            send_queue_slots: 64,
            bulk_queue_bytes: 1 << 20,
            queue_limit: QueueLimit { bytes: 16 << 20, when_full: WhenFull::Wait },
            shared_receive_queue: false,
            arena: ArenaConfig::default(),
            arena_threshold_bytes: 16 << 10,
            arena_segment_bytes: 256 << 10,
            reply_slot_bytes: 256 << 20,
            memory_windows: None,
            isolation: None,
            keep_alive: Some(Duration::from_secs(15)),
            keep_alive_timeout: Duration::from_secs(5),
        }
    }
}

impl LinkConfig {
    /// Messages that the peer may send before this end returns credits (`D`), credits. Default 64,
    /// 1 to 4095. Each costs a receive buffer; more hide a longer round trip. A connection starts
    /// with 8 of them, and doubles them whenever the peer has used up more than half, so that a
    /// connection with little work touches few buffers. An idle connection has receive buffers for
    /// these first credits, for the acks and for two more, which is what it locks on a NIC: with 2
    /// credits in all it locks the least, and two messages at a time may be in flight to it.
    #[must_use]
    pub fn data_credits(mut self, credits: u16) -> Self {
        self.data_credits = credits;
        self
    }

    /// Acks that the peer may send before this end returns credits (`I`), credits. Default 2, 2 to
    /// 4095. Only tests have a reason to raise it.
    #[must_use]
    pub fn ack_credits(mut self, credits: u16) -> Self {
        self.ack_credits = credits;
        self
    }

    /// Whether the connections of a server that share a completion queue share one receive queue as
    /// well, where the device has such queues. Default false. Each connection has a fixed share of
    /// it: the receives of its first window, which does not grow. All of them are registered when
    /// the queue is made, for as many connections as it has room for. So it takes less memory than
    /// receives of their own only with many connections, and few
    /// [`data_credits`](LinkConfig::data_credits).
    ///
    /// A peer that breaks the rules can take receives of other connections, which end by that. So
    /// it is for peers that trust each other, and not used with [`Isolation::PerConnection`] or
    /// [`Isolation::PerTenant`], nor by channels.
    #[must_use]
    pub fn shared_receive_queue(mut self, is_shared: bool) -> Self {
        self.shared_receive_queue = is_shared;
        self
    }

    /// Whether connections are to share their receives.
    #[must_use]
    #[doc(hidden)]
    pub fn wants_shared_recvs(&self) -> bool {
        let has_one_domain = matches!(self.isolation, None | Some(Isolation::Shared));
        self.shared_receive_queue && has_one_domain
    }

    /// Size of each receive buffer, bytes. Default 8 KiB, and 4 KiB on a NIC, which locks their
    /// memory; 256 bytes to 16 MiB. Larger messages travel in segments of the smaller of both ends'
    /// size. `D + I + 1` of them are posted per connection, and fewer until the peer needs them:
    /// see [`LinkConfig::data_credits`].
    #[must_use]
    pub fn receive_buffer_bytes(mut self, bytes: u32) -> Self {
        self.receive_buffer_bytes = Some(bytes);
        self
    }

    /// Largest message that this end accepts, bytes. Default 64 MiB, at least the receive buffer,
    /// at most 1 TiB. The peer refuses to send more, and breaking the limit closes the connection.
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

    /// Send queue slots for messages, WRs. Default 64, 1 to 4095. If fewer than the peer's data
    /// credits, they limit the messages in flight before the credits do. Seven more are reserved,
    /// and a NIC rounds the queue up: up to 57 it locks half the memory for it, and streams cost
    /// some percent more instructions.
    #[must_use]
    pub fn send_queue_slots(mut self, slots: u16) -> Self {
        self.send_queue_slots = slots;
        self
    }

    /// Bytes of segments that may be in the send queue at once: a small message never waits behind
    /// more. Default 1 MiB, at least 1; two segments are always allowed.
    #[must_use]
    pub fn bulk_queue_bytes(mut self, bytes: u32) -> Self {
        self.bulk_queue_bytes = bytes;
        self
    }

    /// Memory, in bytes, that messages may hold which wait to be sent on the connection; once they
    /// do, [`LinkConfig::when_full`] applies to further messages. Default 16 MiB, 1 byte to 1 TiB.
    /// A small message holds about 700 bytes, however short it is. The last message queued below
    /// the limit may be of any length. Small messages wait for small ones only.
    #[must_use]
    pub fn queued_bytes(mut self, bytes: u64) -> Self {
        self.queue_limit.bytes = bytes;
        self
    }

    /// What happens to a message when [`LinkConfig::queued_bytes`] already wait. Default
    /// [`WhenFull::Wait`].
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.queue_limit.when_full = when_full;
        self
    }

    /// The values of [`LinkConfig::queued_bytes`] and [`LinkConfig::when_full`].
    #[must_use]
    pub const fn queue_limit(&self) -> QueueLimit {
        self.queue_limit
    }

    /// The landing zone that this end gives its peer for large messages: see [`ArenaConfig`].
    /// Nothing is allocated before the first large message; by default arenas of 4 MiB are added on
    /// demand up to 64 MiB. With `max_chunks` 0 there are none, and large messages then arrive
    /// through receive buffers.
    #[must_use]
    pub fn arena(mut self, arena: ArenaConfig) -> Self {
        self.arena = arena;
        self
    }

    /// Messages of this size and more are written into the peer's arena, bytes. Default 16 KiB;
    /// smaller ones are sent in frames through receive buffers, as is every message that fits one
    /// frame. The default is about where both cost the same CPU time (`docs/performance.md`).
    #[must_use]
    pub fn arena_threshold_bytes(mut self, bytes: u32) -> Self {
        self.arena_threshold_bytes = bytes;
        self
    }

    /// Most bytes that are written into the peer's arena at once. Default 256 KiB, 4 KiB to 1 GiB.
    /// A longer message is written in several segments, and small messages are sent between two of
    /// them; over shared memory, where posting copies, also within one, and a segment has up to
    /// four times as much where other large messages wait and no small ones are being sent.
    #[must_use]
    pub fn arena_segment_bytes(mut self, bytes: u32) -> Self {
        self.arena_segment_bytes = bytes;
        self
    }

    /// Memory of this end that the peer may write outside of the arenas, bytes: the buffers of
    /// callers that asked for a reply in their own buffer. Default 256 MiB, at most 1 TiB; one
    /// buffer is always allowed, and 0 allows none. The buffer of a cancelled call is in
    /// quarantine: it stays allocated and counts until the peer has confirmed that it will not
    /// write it again. Replies beyond this limit come through the arenas and are copied.
    #[must_use]
    pub fn reply_slot_bytes(mut self, bytes: u64) -> Self {
        self.reply_slot_bytes = bytes;
        self
    }

    /// Time without a sign of life after which the peer is pinged. Default 15 s, at least 1 ms.
    /// With `None` there are no Pings, and a peer that vanished is found only by sending to it.
    ///
    /// Signs of life are a frame of the peer, bytes of a frame that is still arriving, and bytes
    /// ahead of the Ping that the peer's host accepts: a slow link is a live one. A peer that dies
    /// is found after the interval plus the timeout; if it dies during a message, after at most
    /// twice the interval plus the timeout.
    #[must_use]
    pub fn keep_alive(mut self, interval: Option<Duration>) -> Self {
        self.keep_alive = interval;
        self
    }

    /// Time without a sign of life after a Ping that ends the connection. Default 5 s, at least
    /// 1 ms. This end checks eight times in that time. If a check is late by more than 100 ms plus
    /// an eighth of the timeout, because this process was stopped or overloaded, the time starts
    /// again.
    ///
    /// This end cannot see whether the peer's process is hung, stopped, or gets no CPU. What is
    /// promised is this: a peer whose driver answers within the timeout is never given up. On hosts
    /// where a process may wait longer than that, such as a server with thousands of busy
    /// connections on two cores that others use as well, raise the timeout. Processes that die are
    /// found without it, as the system closes their connections.
    #[must_use]
    pub fn keep_alive_timeout(mut self, timeout: Duration) -> Self {
        self.keep_alive_timeout = timeout;
        self
    }

    /// Checks every setting.
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
            self.receive_buffer(),
            MIN_RECEIVE_BUFFER_BYTES,
            MAX_RECEIVE_BUFFER_BYTES,
            "larger messages are sent in segments, whatever the buffer size",
        )?;
        check(
            "max_message_bytes",
            self.max_message_bytes,
            u64::from(self.receive_buffer()),
            MAX_MESSAGE_BYTES,
            "it is at least receive_buffer_bytes; use a stream for data without a limit",
        )?;
        check(
            "assembly_bytes",
            self.assembly_bytes,
            u64::from(self.receive_buffer()),
            MAX_MESSAGE_BYTES,
            "it is at least receive_buffer_bytes; longer messages are streamed",
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
            let what = "use None to disable pings";
            check_time("keep_alive", interval, mill, what)?;
        }
        check_time("keep_alive_timeout", self.keep_alive_timeout, mill, "5 s suits most links")
    }

    /// Checks what a connection with a handshake of identities needs beyond
    /// [`LinkConfig::validate`].
    ///
    /// # Errors
    /// [`ConfigError`] for the first setting out of range.
    pub fn validate_secure(&self) -> Result<(), ConfigError> {
        check_secure(self.window(), self.receive_buffer())?;
        check(
            "arena_segment_bytes with TLS",
            self.arena_segment_bytes,
            4 << 10,
            256 << 10,
            "256 KiB suits most links",
        )?;
        check(
            "shared_receive_queue with TLS",
            self.shared_receive_queue,
            false,
            false,
            "an unknown peer could take the receives of known ones",
        )
    }

    /// This configuration with what depends on the device: whether it locks the memory that is
    /// registered, and whether it has memory windows (`Some`) and they are used by default. The
    /// handshake sends settled values, and both ends count with them.
    #[must_use]
    #[doc(hidden)]
    pub fn settled(&self, locks_memory: bool, windows_by_default: Option<bool>) -> Self {
        let default = if locks_memory { LOCKED_RECEIVE_BUFFER_BYTES } else { RECEIVE_BUFFER_BYTES };
        self.clone()
            .receive_buffer_bytes(self.receive_buffer_bytes.unwrap_or(default))
            .memory_windows(windows_by_default.is_some_and(|binds| self.binds_windows(binds)))
    }

    /// Size of each receive buffer, bytes; where that is not settled, the larger default.
    pub(crate) const fn receive_buffer(&self) -> u32 {
        match self.receive_buffer_bytes {
            Some(bytes) => bytes,
            None => RECEIVE_BUFFER_BYTES,
        }
    }

    /// The window that this end offers as a receiver, once it has grown: `D` and `I`.
    #[must_use]
    #[doc(hidden)]
    pub const fn window(&self) -> Window {
        Window { data: self.data_credits, ack: self.ack_credits }
    }

    /// The same when a connection starts.
    #[must_use]
    #[doc(hidden)]
    pub const fn first_window(&self) -> Window {
        self.window().first()
    }

    /// The part of the SQ that credits govern; the QP is created with its `sq_len`.
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

impl ArenaConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// [`ConfigError`] for the first one out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let (min, max) = (*CHUNK_LOG2.start(), *CHUNK_LOG2.end());
        check("log2_chunk", self.log2_chunk, min, max, "16 is 64 KiB")?;
        let advice = "more arenas are added on demand";
        check("arena_chunks", self.arena_chunks, 1, MAX_ARENA_CHUNKS, advice)?;
        let advice = "use larger chunks";
        check("max_chunks", self.max_chunks, 0, CHUNK_NUMBERS, advice)
    }
}

/// WRs of the largest message: WRITEs and the SEND after them. At most half of the queue, so
/// that two fit; 1 means that large messages are not sent by WRITE.
const fn message_slots(queue_slots: u16) -> u16 {
    match queue_slots / 2 {
        0 | 1 => 1,
        half if half < MAX_MESSAGE_SLOTS => half,
        _ => MAX_MESSAGE_SLOTS,
    }
}

/// A setting is out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, allowed is {allowed}; {advice}")]
pub struct ConfigError {
    /// The setting.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// The allowed range.
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
    let allowed = if min == max { min.to_string() } else { format!("{min} to {max}") };
    Err(ConfigError { field, value: value.to_string(), allowed, advice })
}

/// The sizes that both ends of a locked connection must offer.
pub(crate) fn check_secure(window: Window, receive_buffer_bytes: u32) -> Result<(), ConfigError> {
    let (first, most) = (FIRST_DATA_CREDITS, MAX_WINDOW);
    check("data_credits with TLS", window.data, first, most, "the handshake takes up to 8 frames")?;
    let (min, max) = (4 << 10, 64 << 10);
    let advice = "8 KiB suits most links";
    check("receive_buffer_bytes with TLS", receive_buffer_bytes, min, max, advice)
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
    fn invalid_setting_names_value_range_and_advice() {
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
