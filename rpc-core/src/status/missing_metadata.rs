//! Statuses for missing or malformed metadata.

use super::Status;
use crate::metadata::{Metadata, MetadataError};

impl Metadata {
    /// The value of that name, for a handler or interceptor that requires it.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument), with the name: it is missing, or not
    /// UTF-8.
    pub fn require_text(&self, name: &str) -> Result<&str, Status> {
        let value = self
            .bytes(name)
            .ok_or_else(|| Status::invalid_argument(format!("the metadata {name:?} is missing")))?;
        std::str::from_utf8(value).map_err(|error| {
            let at = error.valid_up_to();
            let text = format!("the metadata {name:?} is not UTF-8, from its byte {at} on");
            Status::invalid_argument(text)
        })
    }
}

impl From<MetadataError> for Status {
    fn from(error: MetadataError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_text_is_named() {
        let mut metadata = Metadata::new();
        metadata.insert("traceparent", "00-ab").unwrap();
        metadata.insert("auth", &b"\xff\0"[..]).unwrap();
        assert_eq!(metadata.require_text("traceparent"), Ok("00-ab"));
        let missing = metadata.require_text("other").unwrap_err();
        assert_eq!(missing.to_string(), "invalid argument: the metadata \"other\" is missing");
        let bytes = metadata.require_text("auth").unwrap_err();
        let text = "invalid argument: the metadata \"auth\" is not UTF-8, from its byte 0 on";
        assert_eq!(bytes.to_string(), text);
    }
}
