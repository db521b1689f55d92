//! Set-up is given up at every point where it waits, by either side, and leaves nothing behind.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rpc_transport::connect::schemes;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::memory::region::BufferPool;
use rpc_transport::protocol::config::LinkConfig;

use crate::probe::{Habit, Probe};
use crate::world::{ProbeShard, WIRES, assert_home, fresh_address, run, shard};

const FAR: Duration = Duration::from_secs(3600);

/// Polls a future `polls` times, then drops it. Returns its result, if it completed.
async fn dropped_after<F: Future>(
    polls: u32,
    future: F,
    mut after_each: impl FnMut(),
) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    std::future::poll_fn(|cx: &mut Context<'_>| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let polled = Pin::new(&mut future).poll(cx).map(Some);
        after_each();
        if left == 0 && polled.is_pending() {
            return Poll::Ready(None);
        }
        polled
    })
    .await
}

/// Polls a future more often than an undisturbed set-up has to wait.
async fn some_polls<F: Future>(mut future: Pin<&mut F>) {
    for _ in 0..100 {
        let polled = |cx: &mut Context<'_>| Poll::Ready(future.as_mut().poll(cx).is_ready());
        if std::future::poll_fn(polled).await {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// Waits until a shard has no queue pairs left.
async fn gone(shard: &ProbeShard) {
    while shard.stats().queue_pairs > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until a shard has nothing left at all.
async fn emptied(shard: &ProbeShard, driver: tokio::task::JoinHandle<()>) {
    gone(shard).await;
    shard.shutdown();
    driver.await.unwrap();
    let stats = shard.stats();
    assert_eq!((stats.entries, stats.deadlines, stats.actions), (0, 0, 0));
    assert_eq!(stats.unflushed, 0);
}

/// Connects, with one side dropped after `polls` polls. Returns whether that side had completed by
/// then.
async fn connect_with_one_dropped(wire: &str, client_is_dropped: bool, polls: u32) -> bool {
    let config = LinkConfig::default();
    let listener = schemes::listen(&fresh_address(wire)).await.unwrap();
    let address = listener.local_address();
    let resolved = schemes::resolve(&address).await.unwrap();
    let (client, ours) = shard(resolved.outgoing.device(), &config, 1, PollMode::Event);
    let (server, theirs) = shard(resolved.outgoing.device(), &config, 1, PollMode::Event);
    let (ours, theirs) = (tokio::spawn(ours), tokio::spawn(theirs));
    let (near, far) = (Probe::new(Habit::Keep), Probe::new(Habit::Keep));
    let connect = client.connect(resolved.outgoing, &address, &config, FAR, near);
    // Dropped with its listener, so that no request is left waiting.
    let accept = async {
        let mut listener = listener;
        let incoming = listener.incoming().await.unwrap();
        (server.accept(incoming, &config, far).await, listener)
    };
    let mut pools = Vec::<BufferPool>::new();
    let mut watch = |shard: &ProbeShard| {
        if pools.is_empty() {
            pools = shard.every_pool();
        }
    };
    let done = if client_is_dropped {
        let connect = dropped_after(polls, connect, || watch(&client));
        let mut accept = std::pin::pin!(accept);
        let mut connect = std::pin::pin!(connect);
        let (connected, is_accepted) = tokio::select! {
            connected = &mut connect => (connected, false),
            _ = &mut accept => (connect.await, true),
        };
        match (&connected, is_accepted) {
            (_, true) => {}
            (Some(_), false) => drop(accept.await),
            // The server notices, or loses its peer, or never learns of it, and is then dropped
            // too.
            (None, false) => {
                gone(&client).await;
                some_polls(accept).await;
            }
        }
        if let Some(connected) = &connected {
            client.release(connected.as_ref().unwrap().key);
        }
        connected.is_some()
    } else {
        let accept = dropped_after(polls, accept, || watch(&server));
        let (connected, accepted) = tokio::join!(connect, accept);
        if let Ok(connected) = connected {
            client.release(connected.key);
        }
        accepted.is_some()
    };
    server.shutdown_now();
    emptied(&client, ours).await;
    emptied(&server, theirs).await;
    // The pools belong to the dropped side: both sides have to complete before they count.
    if !pools.is_empty() {
        assert_home(&pools);
    }
    done
}

async fn at_every_point(client_is_dropped: bool) {
    for wire in WIRES {
        let mut polls = 0;
        while !connect_with_one_dropped(wire, client_is_dropped, polls).await {
            polls += 1;
            assert!(polls < 100, "{wire}: set-up does not end");
        }
        assert!(polls > 0, "{wire}: nothing was dropped");
    }
}

#[test]
fn a_connect_dropped_at_any_point_leaves_nothing() {
    run("connect", at_every_point(true));
}

#[test]
fn an_accept_dropped_at_any_point_leaves_nothing() {
    run("accept", at_every_point(false));
}
