//! Follows a prefix: lists it, watches it, checks the watch, and begins anew when that is over.

use std::sync::Arc;
use std::time::Duration;

use rpc_core::client::resolve::Endpoint;
use rpc_transport::log_limit::LogLimit;
use tokio::time::Instant;

use super::client::{Client, EtcdError};
use crate::http::LineReader;
use crate::protocol::etcd_follow::{Follow, Heard};
use crate::protocol::etcd_messages::{Range, RangeReply, Streamed, WatchReply, check, list, watch};
use crate::protocol::jitter::full_jitter;
use crate::random::random;

static BAD_ENTRIES: LogLimit = LogLimit::new("entries of registries that are left out");
static NO_WATCHES: LogLimit = LogLimit::new("watches that did not begin");

/// The servers below a prefix, whenever they change.
pub(super) struct Follower {
    client: Arc<Client>,
    range: Range,
    follow: Follow,
    check_every: Duration,
    /// The member of a list that is to be watched.
    listed_by: Option<usize>,
    live: Option<Live>,
    /// Lists in a row whose watch ended before it was of use.
    failures: u32,
}

/// An open watch.
struct Live {
    member: usize,
    lines: LineReader,
    check_at: Instant,
}

impl Follower {
    pub(super) fn new(client: Arc<Client>, prefix: String, check_every: Duration) -> Self {
        let (range, follow) = (Range::below(&prefix), Follow::new(prefix));
        Self { client, range, follow, check_every, listed_by: None, live: None, failures: 0 }
    }

    /// The whole set after the next change, or after a check that has confirmed it.
    ///
    /// # Errors
    /// [`EtcdError`]: what the servers are now is not known. The next call tries again.
    pub(super) async fn next(&mut self) -> Result<Vec<Endpoint>, EtcdError> {
        loop {
            let live = match (&mut self.live, self.listed_by) {
                (Some(live), _) => live,
                (None, Some(member)) => {
                    self.listed_by = None;
                    self.watch(member).await;
                    continue;
                }
                (None, None) => {
                    if self.failures > 0 {
                        tokio::time::sleep(full_jitter(self.failures, random())).await;
                    }
                    // Until the watch is of use.
                    self.failures = self.failures.saturating_add(1);
                    let asked = list(&self.range);
                    let listed = self.client.call::<RangeReply>("kv/range", &asked).await;
                    let (member, listed) = listed?;
                    if self.follow.on_list(listed) {
                        tracing::warn!("etcd has been wiped, or restored from a backup");
                    }
                    self.listed_by = Some(member);
                    return Ok(self.servers());
                }
            };
            let heard = tokio::select! {
                line = live.lines.next() => on_line(&mut self.follow, line),
                () = tokio::time::sleep_until(live.check_at) => {
                    live.check_at = Instant::now() + self.check_every;
                    let asked = check(&self.range);
                    let reply = self.client.call_at(live.member, "kv/range", &asked).await;
                    if reply.is_ok() {
                        self.failures = 0;
                    }
                    reply.map(|reply: RangeReply| self.follow.on_check(&reply))
                }
            };
            match heard {
                Ok(Heard::Nothing) => {}
                // The same set again says that it still holds.
                Ok(Heard::Changed | Heard::Confirmed) => {
                    self.failures = 0;
                    return Ok(self.servers());
                }
                Ok(Heard::ListAnew(why)) => {
                    tracing::info!(why, "listing the servers in etcd anew");
                    self.live = None;
                    self.failures = self.failures.max(1);
                }
                Err(error) => {
                    self.client.avoid(live.member);
                    self.live = None;
                    self.failures = self.failures.max(1);
                    return Err(error);
                }
            }
        }
    }

    /// Opens a watch that continues the list at the same member. Without one, lists at intervals
    /// are all that is known.
    async fn watch(&mut self, member: usize) {
        let asked = watch(&self.range, self.follow.watch_from());
        match self.client.stream_at(member, "watch", &asked).await {
            Ok(lines) => {
                let check_at = Instant::now() + self.check_every;
                self.live = Some(Live { member, lines, check_at });
            }
            Err(error) => {
                self.client.avoid(member);
                NO_WATCHES.fault(Instant::now().into_std(), || {
                    tracing::warn!(%error, "the servers in etcd cannot be watched");
                });
            }
        }
    }

    fn servers(&mut self) -> Vec<Endpoint> {
        let (lines, beyond) = self.follow.problems.take();
        for line in lines {
            BAD_ENTRIES.fault(Instant::now().into_std(), || {
                tracing::warn!("an entry in etcd is left out: {line}");
            });
        }
        if beyond > 0 {
            tracing::warn!(beyond, "more entries in etcd are left out");
        }
        self.follow.servers()
    }
}

fn on_line(
    follow: &mut Follow,
    line: Result<Option<Vec<u8>>, crate::http::HttpError>,
) -> Result<Heard, EtcdError> {
    let Some(line) = line.map_err(EtcdError::Unreachable)? else {
        return Ok(Heard::ListAnew("the watch has ended".to_owned()));
    };
    let message: Streamed<WatchReply> =
        serde_json::from_slice(&line).map_err(|error| EtcdError::Malformed(error.to_string()))?;
    match message {
        Streamed { result: Some(reply), .. } => Ok(follow.on_watch(reply)),
        Streamed { error, .. } => {
            let error = error.map(|it| it.to_string()).unwrap_or_default();
            let error = rpc_core::text::printable(&error).to_string();
            Err(EtcdError::Over(format!("the watch has failed: {error}")))
        }
    }
}
