//! User memory is dropped where its destructor may do anything: call on the same channel, or panic.
//! Each test covers one place where a body ends; all run over every software device.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod world;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use rpc_core::transport::CloseCause;
use rpc_core::{Channel, LinkConfig, PollMode};

use world::*;

#[test]
fn a_request_that_was_sent() {
    everywhere(Options::default, |world| {
        for len in [100_000, 3 << 20] {
            let (data, gone) = world.argument(len);
            let sent = world.near().block_on(async { world.client.put(data).await });
            assert_eq!(sent, Ok(len as u64), "{}", world.name);
            // Messages held back for the device leave with the next one.
            while gone.0.try_recv().is_err() {
                world.check();
            }
        }
        world.check();
    });
}

#[test]
fn a_request_dropped_in_the_link() {
    everywhere(Options::default, |world| {
        let stalled = world.stall();
        let (first, first_gone) = world.argument(LARGE);
        let (second, second_gone) = world.argument(LARGE);
        let (first, second) = (world.client.put(first).start(), world.client.put(second).start());
        drop(second);
        second_gone.wait(&world.name);
        // Part of this one was sent.
        drop(first);
        world.go.send(()).unwrap();
        first_gone.wait(&world.name);
        drop(stalled);
        world.check();
    });
}

#[test]
fn a_request_whose_deadline_passes_in_the_link() {
    everywhere(Options::default, |world| {
        let stalled = world.stall();
        let (first, first_gone) = world.argument(LARGE);
        let (second, second_gone) = world.argument(LARGE);
        let limit = Duration::from_millis(20);
        let first = world.client.put(first).timeout(limit).start();
        let second = world.client.put(second).timeout(limit).start();
        second_gone.wait(&world.name);
        world.go.send(()).unwrap();
        first_gone.wait(&world.name);
        drop((first, second, stalled));
        world.check();
    });
}

fn one_call() -> Options {
    Options { max_calls: 1, ..Options::default() }
}

#[test]
fn a_request_dropped_before_its_slot() {
    everywhere(one_call, |world| {
        let waits = world.client.wait().start();
        expect(&world.begun, &world.name);
        let (data, gone) = world.argument(100_000);
        drop(world.client.put(data).start());
        gone.wait(&world.name);
        drop(waits);
        world.check();
    });
}

#[test]
fn a_deadline_before_the_request_has_a_slot() {
    everywhere(one_call, |world| {
        let waits = world.client.wait().start();
        expect(&world.begun, &world.name);
        let (data, gone) = world.argument(100_000);
        let late = world.client.put(data).timeout(Duration::from_millis(20)).start();
        gone.wait(&world.name);
        drop((late, waits));
        world.check();
    });
}

/// Some wait for a slot, some in the link, one is in flight.
#[test]
fn requests_whose_connection_ends() {
    let impatient = || {
        let silence = Duration::from_millis(100);
        let link = LinkConfig::default().keep_alive(Some(silence)).keep_alive_timeout(silence);
        Options { channel: Channel::builder().link(link), max_calls: 3, by_hand: false }
    };
    everywhere(impatient, |world| {
        let stalled = world.stall();
        let (calls, gone): (Vec<_>, Vec<_>) = (0..4)
            .map(|_| {
                let (data, gone) = world.argument(LARGE);
                (world.client.put(data).start(), gone)
            })
            .unzip();
        let cause = world.near().block_on(world.channel.closed());
        assert!(matches!(cause, CloseCause::PingTimeout(_)), "{}: {cause}", world.name);
        // Unsent calls keep their memory, to be sent again.
        drop(calls);
        for gone in gone {
            gone.wait(&world.name);
        }
        world.go.send(()).unwrap();
        drop(stalled);
    });
}

#[test]
fn a_reply_that_was_sent() {
    everywhere(Options::default, |world| {
        for len in [100_000, 3 << 20] {
            world.replies_are_of(len);
            let reply = world.near().block_on(async { world.client.get().await }).unwrap();
            assert_eq!(reply.len(), len as u64, "{}", world.name);
            drop(reply);
            let gone = expect(&world.gone, &world.name);
            while gone.0.try_recv().is_err() {
                world.check();
            }
        }
        world.check();
    });
}

fn by_hand() -> Options {
    Options { by_hand: true, ..Options::default() }
}

#[test]
fn replies_cancelled_in_the_link() {
    everywhere(by_hand, |world| {
        world.replies_are_of(LARGE);
        let calls: Vec<_> = {
            let _runtime = world.near().enter();
            (0..3).map(|_| world.client.get().start()).collect()
        };
        let gone: Vec<_> = calls.iter().map(|_| expect(&world.gone, &world.name)).collect();
        calls.iter().for_each(|_| expect(&world.begun, &world.name));
        drop(calls);
        world.check();
        for gone in gone {
            gone.wait(&world.name);
        }
        world.check();
    });
}

#[test]
fn replies_whose_connection_ends() {
    everywhere(by_hand, |world| {
        world.replies_are_of(LARGE);
        let calls: Vec<_> = {
            let _runtime = world.near().enter();
            (0..3).map(|_| world.client.get().start()).collect()
        };
        let gone: Vec<_> = calls.iter().map(|_| expect(&world.gone, &world.name)).collect();
        calls.iter().for_each(|_| expect(&world.begun, &world.name));
        // With it the driver of the client ends, and its queue pair.
        drop(world.near.take());
        drop(calls);
        for gone in gone {
            gone.wait(&world.name);
        }
        world.check_owners();
    });
}

#[test]
fn a_reply_whose_caller_is_gone() {
    everywhere(Options::default, |world| {
        world.replies_are_of(100_000);
        let late = world.client.late().start();
        let gone = expect(&world.gone, &world.name);
        expect(&world.begun, &world.name);
        drop(late);
        // Behind the cancel.
        world.check();
        world.go.send(()).unwrap();
        gone.wait(&world.name);
        world.check();
    });
}

#[test]
fn a_reply_longer_than_the_caller_accepts() {
    let modest = || {
        let link = LinkConfig::default().keep_alive(None).max_message_bytes(1 << 20);
        Options { channel: Channel::builder().link(link), ..Options::default() }
    };
    everywhere(modest, |world| {
        world.replies_are_of(2 << 20);
        let reply = world.near().block_on(async { world.client.get().await.map(|_| ()) });
        assert_eq!(reply.unwrap_err().code(), rpc_core::Code::ResourceExhausted, "{}", world.name);
        expect(&world.gone, &world.name).wait(&world.name);
        world.check();
    });
}

/// A user-defined waker, which calls back or panics in every possible way.
struct Busy {
    client: SinkClient,
    panics: bool,
    woken: Sender<()>,
}

impl Busy {
    fn act(&self) {
        let _ = self.woken.send(());
        assert!(!self.panics, "on purpose");
        drop(self.client.ping().start());
    }
}

impl Wake for Busy {
    fn wake(self: Arc<Self>) {
        self.act();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        drop(self.client.ping().start());
    }
}

#[test]
fn wakers_that_panic_or_call_back() {
    let _watchdog = Watchdog::start();
    for scheme in ["mem", "shm", "tcp"] {
        for panics in [false, true] {
            // Otherwise the caller polls, and is woken by its own poll.
            let options = Options {
                channel: Channel::builder().poll_mode(PollMode::Event),
                ..Options::default()
            };
            let world = World::new(scheme, Habit::Calls, Kind::Owned, options);
            let _runtime = world.near().enter();
            let (woken, is_woken) = channel();
            let client = world.client.clone();
            let waker = || {
                Waker::from(Arc::new(Busy { client: client.clone(), panics, woken: woken.clone() }))
            };
            let mut stalled = Box::pin(world.client.stall().start());
            expect(&world.begun, &world.name);
            for _ in 0..2 {
                // The second replaces the first.
                let polled = stalled.as_mut().poll(&mut TaskContext::from_waker(&waker()));
                assert!(polled.is_pending());
            }
            world.go.send(()).unwrap();
            expect(&is_woken, &world.name);
            assert_eq!(world.near().block_on(stalled), Ok(true), "{}", world.name);
            // Dropped with its call.
            let mut call = pin!(world.client.wait().start());
            assert!(matches!(
                call.as_mut().poll(&mut TaskContext::from_waker(&waker())),
                Poll::Pending
            ));
            expect(&world.begun, &world.name);
            world.check();
        }
    }
}
