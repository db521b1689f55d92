//! Translates completion statuses of libibverbs to [`Status`] (S55). Pure.

use crate::device::Status;

/// Translates `enum ibv_wc_status`.
pub(super) fn from_number(status: u32) -> Status {
    match status {
        0 => Status::Success,
        1 => Status::LocalLength,
        2 => Status::LocalQpOperation,
        4 => Status::LocalProtection,
        5 => Status::FlushError,
        7 => Status::BadResponse,
        8 => Status::LocalAccess,
        9 => Status::RemoteInvalidRequest,
        10 => Status::RemoteAccess,
        11 => Status::RemoteOperation,
        12 => Status::RetryExceeded,
        13 => Status::RnrRetryExceeded,
        other => Status::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s55_every_status_has_a_name_or_keeps_its_number() {
        let named = [0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13];
        for number in 0..=30 {
            let status = from_number(number);
            assert_eq!(status == Status::Other(number), !named.contains(&number), "{number}");
        }
        assert_eq!(from_number(u32::MAX), Status::Other(u32::MAX));
    }
}
