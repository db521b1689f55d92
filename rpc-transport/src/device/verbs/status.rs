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
    fn s55_unnamed_status_keeps_its_number() {
        // As `enum ibv_wc_status` has them.
        let named = [
            (0, Status::Success),
            (1, Status::LocalLength),
            (2, Status::LocalQpOperation),
            (4, Status::LocalProtection),
            (5, Status::FlushError),
            (7, Status::BadResponse),
            (8, Status::LocalAccess),
            (9, Status::RemoteInvalidRequest),
            (10, Status::RemoteAccess),
            (11, Status::RemoteOperation),
            (12, Status::RetryExceeded),
            (13, Status::RnrRetryExceeded),
        ];
        for number in (0..=30).chain([u32::MAX]) {
            let name = named.iter().find(|(named, _)| *named == number).map(|(_, status)| *status);
            assert_eq!(from_number(number), name.unwrap_or(Status::Other(number)), "{number}");
        }
    }
}
