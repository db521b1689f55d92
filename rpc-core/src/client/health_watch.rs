//! Watches what an end point says of its own health.
//!
//! Invariants:
//! 1. A task that watches ends with its connection.
//! 2. An end point whose health is not known because the task has ended, or was refused, counts as
//!    serving. What it has said of itself holds until [`MOST_FAILURES`] watches in a row say
//!    nothing.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::Channel;
use super::connection::{Connection, WatchHealth};
use super::load::Load;
use super::peer::{Peer, Whom};
use super::shared::Shared;
use super::subchannel::Demand;
use crate::builtin::health::{HealthClient, ServingStatus};
use crate::channel::backoff::Backoff;
use crate::channel::standing::Health;
use crate::runtime::random::random;
use crate::status::{Code, Status};

/// The longest wait for the first answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Watches in a row that say nothing, after which the last word counts no longer.
const MOST_FAILURES: u32 = 3;
/// Waits after a watch that has ended.
const AGAIN: Backoff = Backoff::new().initial(Duration::from_secs(1)).max(Duration::from_secs(60));

/// Watches the health of one service at each end point of a channel.
#[derive(Debug)]
pub(super) struct HealthWatch {
    service: Arc<str>,
}

impl HealthWatch {
    pub(super) fn new(service: String) -> Self {
        Self { service: service.into() }
    }
}

impl WatchHealth for HealthWatch {
    fn start(&self, connection: Arc<Connection>, load: Arc<Load>, home: &Handle) -> AbortHandle {
        let service = Arc::clone(&self.service);
        let known = Known(load);
        let watching = async move {
            let codec = connection.codec;
            let whom = Whom::EndPoint(Arc::clone(&connection));
            let peer = Peer { connection: ArcSwapOption::new(Some(connection)), whom };
            let mut shared = Shared::to_peer(peer, Demand::new(), codec);
            shared.default_timeout = Some(ANSWERS_WITHIN);
            let client = HealthClient::new(Channel { shared: Arc::new(shared) });
            let mut failures = 0;
            loop {
                failures += 1;
                match watch(&client, &service, &known, &mut failures).await {
                    // It says so once, and then serves what it still gets.
                    Ok(Some(ServingStatus::Draining)) => return,
                    Ok(_) => {}
                    Err(_) if known.is_said() && failures < MOST_FAILURES => {}
                    Err(status) => {
                        known.say(Health::Serving);
                        let (server, code) = (client.channel(), status.code());
                        if code != Code::Unavailable {
                            tracing::warn!(?server, service = &*service, %status, "the health of \
                                a server is not known: it counts as serving");
                        }
                        // That does not change while the server runs.
                        if code == Code::Unimplemented {
                            return;
                        }
                    }
                }
                tokio::time::sleep(AGAIN.delay(failures.max(1), random())).await;
            }
        };
        home.spawn(watching).abort_handle()
    }
}

/// Reports the health until the watch ends; gives the last one. With each the count of `failures`
/// begins anew.
async fn watch(
    client: &HealthClient,
    service: &str,
    known: &Known,
    failures: &mut u32,
) -> Result<Option<ServingStatus>, Status> {
    let mut statuses = client.watch(service).await?;
    let mut last = None;
    while let Some(status) = statuses.try_next().await? {
        (last, *failures) = (Some(status), 0);
        known.say(match status {
            ServingStatus::Serving => Health::Serving,
            ServingStatus::Draining => Health::Draining,
            ServingStatus::NotServing => Health::NotServing,
        });
    }
    Ok(last)
}

/// Calls that wait for the first answer are notified, also if the task is dropped.
struct Known(Arc<Load>);

impl Known {
    fn say(&self, health: Health) {
        self.0.set_health(health);
    }

    fn is_said(&self) -> bool {
        self.0.standing().health() != Health::Unknown
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if !self.is_said() {
            self.say(Health::Serving);
        }
    }
}
