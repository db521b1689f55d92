//! Makes the two versions of a type for each row.

/// A module with a type `Value`, and a service that takes one and that gives one.
macro_rules! version {
    ($version:ident, { $($types:tt)* }, $sample:expr) => {
        #[allow(dead_code, reason = "what only one of the versions has")]
        pub mod $version {
            #[allow(unused_imports, reason = "not all rows have maps")]
            use std::collections::BTreeMap;

            #[allow(unused_imports, reason = "not all rows have structs")]
            use serde::{Deserialize, Serialize};

            $($types)*

            /// The service of both versions.
            #[rpc_core::service]
            pub trait Row {
                async fn take(&self, value: Value) -> String;
                async fn give(&self) -> Value;
            }

            pub struct Shows;

            impl Row for Shows {
                async fn take(&self, value: Value) -> String {
                    format!("{value:?}")
                }
                async fn give(&self) -> Value {
                    sample()
                }
            }

            pub fn sample() -> Value {
                $sample
            }
        }
    };
}

/// What reading a value of the other version gives: its text, or an error with these parts.
#[derive(Debug, Clone, Copy)]
pub enum Read {
    Is(&'static str),
    /// Refused before any handler runs.
    Never(&'static [&'static str]),
    /// Refused because of the value.
    Fails(&'static [&'static str]),
}

/// A test of one row: what the new version reads of the old one, and the other way round.
macro_rules! row {
    (
        $name:ident:
        old $old:tt $old_sample:expr;
        new $new:tt $new_sample:expr;
        new_reads $new_reads:expr;
        old_reads $old_reads:expr;
    ) => {
        mod $name {
            crate::versions::version!(old, $old, $old_sample);
            crate::versions::version!(new, $new, $new_sample);

            #[allow(unused_imports, reason = "not each row has all")]
            use crate::versions::Read::{self, Fails, Is, Never};

            const NEW_READS: Read = $new_reads;
            const OLD_READS: Read = $old_reads;

            #[test]
            fn works() {
                crate::run(async {
                    for channel in crate::channels(|| new::RowServer::new(new::Shows)).await {
                        let client = old::RowClient::new(channel);
                        // Repeatedly: from the second call on the plan is there.
                        for _ in 0..3 {
                            let taken = client.take(old::sample()).await;
                            crate::versions::check_taken(taken, NEW_READS);
                            let given = client.give().await.map(|value| format!("{value:?}"));
                            crate::versions::check_given(given, OLD_READS);
                        }
                    }
                    for channel in crate::channels(|| old::RowServer::new(old::Shows)).await {
                        let client = new::RowClient::new(channel);
                        for _ in 0..3 {
                            let taken = client.take(new::sample()).await;
                            crate::versions::check_taken(taken, OLD_READS);
                            let given = client.give().await.map(|value| format!("{value:?}"));
                            crate::versions::check_given(given, NEW_READS);
                        }
                    }
                });
            }
        }
    };
}

use rpc_core::{Code, Status};
pub(crate) use {row, version};

/// Of an argument.
#[track_caller]
pub fn check_taken(found: Result<String, Status>, expected: Read) {
    check(found, expected, Code::InvalidArgument);
}

/// Of a result.
#[track_caller]
pub fn check_given(found: Result<String, Status>, expected: Read) {
    check(found, expected, Code::DataLoss);
}

#[track_caller]
fn check(found: Result<String, Status>, expected: Read, code_of_value: Code) {
    let (code, parts) = match expected {
        Read::Is(text) => return assert_eq!(found.as_deref(), Ok(text)),
        Read::Never(parts) => (Code::FailedPrecondition, parts),
        Read::Fails(parts) => (code_of_value, parts),
    };
    let status = found.expect_err("it is refused");
    assert_eq!(status.code(), code, "{status}");
    assert!(!status.is_retryable(), "{status}");
    crate::assert_has(&status, parts);
}
