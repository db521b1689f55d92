use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Waker;

use super::*;

fn named(name: &str) -> Context {
    let mut metadata = Metadata::new();
    metadata.insert("name", name.to_owned()).unwrap();
    Context::new().with_metadata(metadata)
}

fn current_name() -> Option<String> {
    let context = Context::try_current()?;
    Some(context.metadata().text("name").unwrap_or_default().to_owned())
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut task::Context::from_waker(Waker::noop()))
}

#[test]
fn a_context_is_current_only_while_polled() {
    let mut yielded = false;
    let mut future = pin!(named("a").scope(std::future::poll_fn(|_| {
        assert_eq!(current_name().as_deref(), Some("a"));
        if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }
    })));
    assert_eq!(current_name(), None);
    assert!(poll(future.as_mut()).is_pending());
    assert_eq!(current_name(), None, "between polls");
    assert!(poll(future.as_mut()).is_ready());
    assert_eq!(current_name(), None);
    assert_eq!(Context::current().deadline(), None);
    assert_eq!(Context::current().method_name(), "");
}

#[test]
fn contexts_nest() {
    let inner = async {
        assert_eq!(current_name().as_deref(), Some("inner"));
    };
    let outer = async {
        assert_eq!(current_name().as_deref(), Some("outer"));
        let mut inner = pin!(named("inner").scope(inner));
        assert!(poll(inner.as_mut()).is_ready());
        assert_eq!(current_name().as_deref(), Some("outer"));
    };
    assert!(poll(pin!(named("outer").scope(outer))).is_ready());
}

#[test]
fn a_panic_puts_the_previous_context_back() {
    let outer = async {
        let mut inner = pin!(named("inner").scope(async { panic!("on purpose") }));
        catch_unwind(AssertUnwindSafe(|| poll(inner.as_mut()))).unwrap_err();
        assert_eq!(current_name().as_deref(), Some("outer"));
    };
    assert!(poll(pin!(named("outer").scope(outer))).is_ready());
    assert_eq!(current_name(), None);
}

#[test]
fn a_context_follows_its_future_to_another_thread() {
    let mut yielded = false;
    let mut future = Box::pin(named("a").scope(std::future::poll_fn(move |_| {
        if std::mem::replace(&mut yielded, true) {
            Poll::Ready(current_name())
        } else {
            Poll::Pending
        }
    })));
    assert!(poll(future.as_mut()).is_pending());
    let there = std::thread::spawn(move || poll(future.as_mut())).join().unwrap();
    assert_eq!(there, Poll::Ready(Some("a".to_owned())));
}

#[test]
fn calls_inherit_the_deadline() {
    let deadline = Instant::now() + Duration::from_secs(60);
    let context = Context::new().with_deadline(Some(deadline));
    let seen = poll(pin!(context.scope(async { Context::current_deadline() })));
    assert_eq!(seen, Poll::Ready(Some(deadline)));
    assert_eq!(Context::current_deadline(), None);
}

#[test]
fn a_past_deadline_leaves_no_time() {
    let context = Context::new().with_deadline(Some(Instant::now()));
    assert_eq!(context.remaining(), Some(Duration::ZERO));
    assert_eq!(Context::new().remaining(), None);
}
