//! The codes: why a call failed, in one word.

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

            /// What it means, in a few words.
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
    /// The arguments are wrong whatever the state of the service.
    InvalidArgument = 3, "invalid argument";
    /// The deadline passed. The call may have been carried out.
    DeadlineExceeded = 4, "deadline exceeded";
    /// What was asked for does not exist.
    NotFound = 5, "not found";
    /// What should be created exists.
    AlreadyExists = 6, "already exists";
    /// The caller may not do this.
    PermissionDenied = 7, "permission denied";
    /// Something has run out: memory, quota, queue.
    ResourceExhausted = 8, "resource exhausted";
    /// The service is not in the state that the call needs.
    FailedPrecondition = 9, "failed precondition";
    /// A conflict; the caller may start over.
    Aborted = 10, "aborted";
    /// Past the end.
    OutOfRange = 11, "out of range";
    /// There is no such service or method, or not in this form.
    Unimplemented = 12, "unimplemented";
    /// Something that must not happen did.
    Internal = 13, "internal error";
    /// The service cannot be reached now.
    Unavailable = 14, "unavailable";
    /// Data is lost or corrupt.
    DataLoss = 15, "data loss";
    /// The caller is not known.
    Unauthenticated = 16, "unauthenticated";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}
