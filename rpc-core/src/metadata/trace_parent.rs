//! The trace of a call, in W3C's format.

use std::fmt;

use tracing::field::{self, DisplayValue};

use crate::metadata::Metadata;
use crate::runtime::random::random;

/// The name of the metadata with the trace and the parent span of a call.
pub const TRACEPARENT: &str = "traceparent";
/// A W3C `traceparent`: the trace of a call, and its parent span.
///
/// ```
/// use rpc_core::trace::TraceParent;
///
/// let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// let parent = TraceParent::parse(text).unwrap();
/// assert_eq!(parent.span_id, 0xb7ad_6b71_6920_3331);
/// assert_eq!(parent.to_string(), text);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Not 0.
    pub trace_id: u128,
    /// Not 0.
    pub span_id: u64,
    /// Bit 0: the caller records its spans.
    pub flags: u8,
}

impl TraceParent {
    /// Parses the header; `None` if it breaks W3C's rules. From a later version, the known parts
    /// are used.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (known, more) = text.split_at_checked(55)?;
        let mut parts = known.split('-');
        let (version, trace_id) = (hex(parts.next()?, 2)?, hex(parts.next()?, 32)?);
        let (span_id, flags) = (hex(parts.next()?, 16)?, hex(parts.next()?, 2)?);
        let is_known = version == 0 && more.is_empty();
        let is_later = version > 0 && version < 0xff && (more.is_empty() || more.starts_with('-'));
        if parts.next().is_some() || trace_id == 0 || span_id == 0 || !(is_known || is_later) {
            return None;
        }
        let (span_id, flags) = (u64::try_from(span_id).ok()?, u8::try_from(flags).ok()?);
        Some(Self { trace_id, span_id, flags })
    }

    /// The `traceparent` of a request, if it has one.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Option<Self> {
        Self::parse(metadata.text(TRACEPARENT)?)
    }

    /// Starts a new trace.
    pub(crate) fn new() -> Self {
        let trace_id = u128::from(random()) << 64 | u128::from(random().max(1));
        Self { trace_id, span_id: random().max(1), flags: 1 }
    }

    pub(crate) fn trace_text(self) -> DisplayValue<String> {
        field::display(format!("{:032x}", self.trace_id))
    }

    pub(crate) fn span_text(self) -> DisplayValue<String> {
        field::display(format!("{:016x}", self.span_id))
    }

    /// Another span of the same trace.
    pub(crate) fn child(self) -> Self {
        Self { span_id: random().max(1), ..self }
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// Lower-case hexadecimal digits, as W3C requires.
fn hex(digits: &str, count: usize) -> Option<u128> {
    let is_hex = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    (is_hex && digits.len() == count).then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_break_the_rules_are_none() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let whole =
            |version: &str, more: &str| format!("{version}-{trace}-b7ad6b7169203331-00{more}");
        assert!(TraceParent::parse(&whole("00", "")).is_some());
        assert!(TraceParent::parse(&whole("01", "")).is_some());
        assert!(TraceParent::parse(&whole("cc", "-what-the-future-will-be-like")).is_some());
        let zeros = "0".repeat(32);
        let bad = [
            String::new(),
            "00".to_owned(),
            whole("00", "-more"),
            whole("cc", "."),
            whole("ff", ""),
            whole("0g", ""),
            whole("00", "").to_uppercase(),
            whole("00", "").replace(trace, &zeros),
            whole("00", "").replace("b7ad6b7169203331", "0000000000000000"),
            whole("00", "").replace('-', "_"),
            "é".repeat(40),
            "+".repeat(55),
        ];
        for text in bad {
            assert_eq!(TraceParent::parse(&text), None, "{text}");
        }
    }

    #[test]
    fn a_new_trace_can_be_read() {
        for _ in 0..1000 {
            let trace = TraceParent::new();
            assert_eq!(TraceParent::parse(&trace.to_string()), Some(trace));
            let child = trace.child();
            assert!(child.trace_id == trace.trace_id && child.span_id != trace.span_id);
        }
    }
}
