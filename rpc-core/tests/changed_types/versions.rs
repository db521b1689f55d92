//! Makes the two versions of a type for each row.

/// A module with a type `Value`, and a service that takes one and that gives one.
macro_rules! version {
    ($version:ident, { $($types:tt)* }, $sample:expr) => {
        #[allow(dead_code, reason = "what only one of the versions has")]
        pub mod $version {
            #[allow(unused_imports, reason = "not all rows have maps")]
            use std::collections::BTreeMap;

            use futures::StreamExt;
            use rpc_core::Status;
            use rpc_core::stream::{Stream, Streaming};
            #[allow(unused_imports, reason = "not all rows have structs")]
            use serde::{Deserialize, Serialize};

            $($types)*

            /// The service of both versions.
            #[rpc_core::service]
            pub trait Row {
                async fn take(&self, value: Value) -> String;
                async fn give(&self) -> Value;
                async fn take_all(&self, values: Streaming<Value>) -> Result<String, Status>;
                fn give_all(&self) -> impl Stream<Item = Value>;
                fn show_all(
                    &self,
                    values: Streaming<Value>,
                ) -> impl Stream<Item = Result<String, Status>>;
            }

            pub struct Shows;

            impl Row for Shows {
                async fn take(&self, value: Value) -> String {
                    format!("{value:?}")
                }
                async fn give(&self) -> Value {
                    sample()
                }
                async fn take_all(&self, mut values: Streaming<Value>) -> Result<String, Status> {
                    let mut last = String::new();
                    while let Some(value) = values.try_next().await? {
                        last = format!("{value:?}");
                    }
                    Ok(last)
                }
                fn give_all(&self) -> impl Stream<Item = Value> {
                    futures::stream::iter([sample(), sample(), sample()])
                }
                fn show_all(
                    &self,
                    values: Streaming<Value>,
                ) -> impl Stream<Item = Result<String, Status>> {
                    values.map(|value| value.map(|value| format!("{value:?}")))
                }
            }

            /// The last item of a stream, and that there are as many as expected.
            async fn last<T, E>(
                stream: Result<impl Stream<Item = Result<T, E>>, Status>,
            ) -> Result<T, Status>
            where
                Status: From<E>,
            {
                let items = stream?.collect::<Vec<_>>().await;
                let mut items = items.into_iter().collect::<Result<Vec<_>, _>>()?;
                assert_eq!(items.len(), 3);
                Ok(items.pop().unwrap())
            }

            /// What each kind of call gives: of those that take values, and of those that give.
            pub async fn all_calls(
                client: &RowClient,
            ) -> (Vec<Result<String, Status>>, Vec<Result<String, Status>>) {
                let samples = || futures::stream::repeat_with(sample).take(3);
                let taken = vec![
                    client.take(sample()).await,
                    client.take_all(samples()).await.map_err(Status::from),
                    last(client.show_all(samples()).await).await,
                ];
                let shown = |value: Value| format!("{value:?}");
                let given = vec![
                    client.give().await.map(shown),
                    last(client.give_all().await).await.map(shown),
                ];
                (taken, given)
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
                crate::versions::check_verdicts::<old::RowClient, new::RowClient>(
                    NEW_READS, OLD_READS,
                );
                crate::run(async {
                    for channel in crate::channels(|| new::RowServer::new(new::Shows)).await {
                        let client = old::RowClient::new(channel);
                        // Repeatedly: from the second call on the plan is there.
                        for _ in 0..3 {
                            let calls = old::all_calls(&client).await;
                            crate::versions::check_all(calls, NEW_READS, OLD_READS);
                        }
                    }
                    for channel in crate::channels(|| old::RowServer::new(old::Shows)).await {
                        let client = new::RowClient::new(channel);
                        for _ in 0..3 {
                            let calls = new::all_calls(&client).await;
                            crate::versions::check_all(calls, OLD_READS, NEW_READS);
                        }
                    }
                });
            }
        }
    };
}

use rpc_core::service::Described;
use rpc_core::{Code, Status};
use rpc_schema::changes::{Outcome, changes};
use rpc_schema::services::{Kind, Method, Services};
pub(crate) use {row, version};

/// The types of a version, as `rpcctl schema save` keeps them.
fn services<S: Described>() -> Services {
    let mut services = Services::default();
    for method in S::service().methods {
        let name = method.name.rsplit('.').next().unwrap();
        let kind = match name {
            "take_all" => Kind::SentItems,
            "give_all" => Kind::Items,
            "show_all" => Kind::BothStreams,
            _ => Kind::Unary,
        };
        let schema = method.types().expect("described").clone();
        let signature = method.signature.to_owned();
        services.add("Row", name, Method { kind, signature, schema }).unwrap();
    }
    services
}

/// Checks that what `rpcctl schema diff` says of the versions is what calls do.
#[track_caller]
pub fn check_verdicts<Old: Described, New: Described>(new_reads: Read, old_reads: Read) {
    for change in changes(&services::<Old>(), &services::<New>()) {
        let is_read_by_server =
            !change.method.ends_with("give") && !change.method.ends_with("give_all");
        let (by_old_client, by_new_client) = match is_read_by_server {
            true => (new_reads, old_reads),
            false => (old_reads, new_reads),
        };
        for (outcome, read) in
            [(&change.old_client, by_old_client), (&change.new_client, by_new_client)]
        {
            assert!(agrees(outcome, read), "{read:?} of {change}");
        }
    }
}

/// Whether all calls break, or only values decide. One value of an enum says nothing of the other
/// variants, which are a break, too.
fn agrees(outcome: &Outcome, read: Read) -> bool {
    let is_of_variant = || outcome.problems.iter().all(|it| it.path.contains("::"));
    match read {
        Read::Never(_) => !outcome.works(),
        Read::Is(_) | Read::Fails(_) => outcome.works() || is_of_variant(),
    }
}

/// What several calls have returned.
type Found = Vec<Result<String, Status>>;

/// Checks what calls that take values and calls that give values have returned.
#[track_caller]
pub fn check_all((taken, given): (Found, Found), taken_is: Read, given_is: Read) {
    for found in taken {
        check(found, taken_is, Code::InvalidArgument);
    }
    for found in given {
        check(found, given_is, Code::DataLoss);
    }
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
