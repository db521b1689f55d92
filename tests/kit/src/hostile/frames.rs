//! The bytes of frames, by hand.

/// The link's header: kind, flags, data and ack credits, releases, extents.
#[must_use]
pub fn link_header(kind: u8, flags: u8, data: u16, ack: u16) -> Vec<u8> {
    let [d0, d1] = data.to_le_bytes();
    let [a0, a1] = ack.to_le_bytes();
    vec![kind, flags, d0, d1, a0, a1, 0, 0]
}

/// A Ping that asks for a larger window and enlarges the other side's window, which was used up.
/// `grown`: the number of earlier enlargements. Both windows start with 8 credits and double.
#[must_use]
pub fn widening(grown: u16) -> Vec<u8> {
    let (has_grown, asks, odd) = (1 << 15, 1 << 15, (grown % 2) << 14);
    link_header(4, 0, has_grown | 8 << grown, asks | odd)
}

/// Whether a frame, with its immediate, says that the window of its sender has grown.
#[must_use]
pub fn is_grown(frame: &[u8], imm: Option<u32>) -> bool {
    imm.is_some_and(|imm| imm & 1 << 15 != 0) || frame.get(3).is_some_and(|byte| byte & 1 << 7 != 0)
}

/// A plain data frame around a session frame.
#[must_use]
pub fn data(session: &[u8]) -> Vec<u8> {
    [link_header(1, 0, 0, 0), session.to_vec()].concat()
}

/// A segment of a message.
#[must_use]
pub fn segment(number: u32, bits: u32, offset: u64, total: u64, payload: &[u8]) -> Vec<u8> {
    let mut frame = link_header(1, 1, 0, 0);
    frame.extend_from_slice(&number.to_le_bytes());
    frame.extend_from_slice(&bits.to_le_bytes());
    frame.extend_from_slice(&offset.to_le_bytes());
    frame.extend_from_slice(&total.to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The session's header: kind, flags, codec or status, 0, method, slot, generation.
#[must_use]
pub fn session_header(
    kind: u8,
    flags: u8,
    codec_or_status: u8,
    method: u32,
    slot: u32,
    generation: u32,
) -> Vec<u8> {
    let mut header = vec![kind, flags, codec_or_status, 0];
    for word in [method, slot, generation] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header
}

/// The first session frame of a peer that accepts `max_calls` calls.
#[must_use]
pub fn hello(max_calls: u32) -> Vec<u8> {
    hello_with(max_calls, 0, None)
}

/// A hello with features, and the windows of streams: items and bytes.
#[must_use]
pub fn hello_with(max_calls: u32, features: u64, window: Option<(u32, u32)>) -> Vec<u8> {
    let mut frame = session_header(1, 0, 0, 0, 0, 0);
    frame.extend_from_slice(&1_u16.to_le_bytes());
    frame.extend_from_slice(&1_u16.to_le_bytes());
    frame.extend_from_slice(&max_calls.to_le_bytes());
    frame.extend_from_slice(&features.to_le_bytes());
    for word in window.into_iter().flat_map(|(items, bytes)| [items, bytes]) {
        frame.extend_from_slice(&word.to_le_bytes());
    }
    frame
}

/// A request of a method (its id and the hash of its signature), with a deadline if one is given
/// (µs).
#[must_use]
pub fn request(
    slot: u32,
    generation: u32,
    (method, signature_hash): (u32, u64),
    deadline: Option<u64>,
    body: &[u8],
) -> Vec<u8> {
    let flags = 0x02 | u8::from(deadline.is_some());
    let mut frame = session_header(2, flags, 1, method, slot, generation);
    if let Some(micros) = deadline {
        frame.extend_from_slice(&micros.to_le_bytes());
    }
    frame.extend_from_slice(&signature_hash.to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

/// The kind, status and slot of a session frame in a plain or unsegmented data frame.
#[must_use]
pub fn session_of(frame: &[u8]) -> Option<(u8, u8, u32)> {
    let session = (*frame.first()? == 1 && *frame.get(1)? == 0).then(|| &frame[8..])?;
    let slot = session.get(8..12)?.try_into().ok().map(u32::from_le_bytes)?;
    Some((*session.first()?, *session.get(2)?, slot))
}
