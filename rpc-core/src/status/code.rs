//! Status codes.

use std::fmt;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a call failed: the codes of gRPC, with the same numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Code {
            $($(#[doc = $doc])+ $name = $number,)*
        }

        impl Code {
            /// All codes, in the order of their numbers.
            pub const ALL: [Self; 17] = [$(Self::$name),*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// The code with that number, if there is one.
            #[must_use]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// A short description.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    /// No failure.
    Ok = 0, "ok";
    /// The call was cancelled, usually by the caller.
    Cancelled = 1, "cancelled";
    /// No better code fits.
    Unknown = 2, "unknown error";
    /// The arguments are invalid, whatever the state of the service.
    InvalidArgument = 3, "invalid argument";
    /// The deadline passed. The call may have been executed.
    DeadlineExceeded = 4, "deadline exceeded";
    /// The requested entity does not exist.
    NotFound = 5, "not found";
    /// The entity to be created already exists.
    AlreadyExists = 6, "already exists";
    /// The caller is not allowed to do this.
    PermissionDenied = 7, "permission denied";
    /// A resource is exhausted: memory, quota, queue.
    ResourceExhausted = 8, "resource exhausted";
    /// The service is not in the state that the call requires.
    FailedPrecondition = 9, "failed precondition";
    /// A conflict; the caller can start over.
    Aborted = 10, "aborted";
    /// Past the end of a valid range.
    OutOfRange = 11, "out of range";
    /// The service or method does not exist, or not in this form.
    Unimplemented = 12, "unimplemented";
    /// An internal error: an invariant was violated.
    Internal = 13, "internal error";
    /// The service is currently unreachable.
    Unavailable = 14, "unavailable";
    /// Data was lost or corrupted.
    DataLoss = 15, "data loss";
    /// The caller is not authenticated.
    Unauthenticated = 16, "unauthenticated";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}
