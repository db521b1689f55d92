use super::ConnectivityState::*;
use super::*;

const MS: Duration = Duration::from_millis(1);

fn machine() -> Connectivity {
    Connectivity::new(Some(Backoff::new().jitter(0.0)))
}

fn connected(machine: &mut Connectivity, now: Instant) -> u64 {
    assert!(machine.start(now, true));
    let Step::Connect(epoch) = machine.step(now, true) else { panic!("{machine:?}") };
    assert!(machine.on_connected(epoch, now));
    assert_eq!(machine.step(now, true), Step::Stop);
    epoch
}

#[test]
fn one_attempt_at_a_time_however_many_ask() {
    let (mut machine, now) = (machine(), Instant::now());
    assert!(machine.start(now, true));
    assert!(!machine.start(now, true) && !machine.start(now, false));
    assert_eq!(machine.step(now, true), Step::Connect(1));
    assert!(!machine.start(now, true));
    assert_eq!(machine.state(), Connecting);
}

#[test]
fn no_attempt_during_backoff_or_without_waiters() {
    let (mut machine, now) = (machine(), Instant::now());
    assert!(machine.start(now, true));
    assert_eq!(machine.step(now, true), Step::Connect(1));
    machine.on_failed(1, now, 0);
    assert_eq!(machine.state(), TransientFailure);
    assert_eq!(machine.step(now, true), Step::Sleep(now + 50 * MS));
    assert_eq!(machine.step(now, false), Step::Stop);
    assert!(machine.is_failing(now + 49 * MS) && !machine.is_failing(now + 50 * MS));
    assert!(!machine.start(now + 49 * MS, false), "it would wait in vain");
    assert!(machine.start(now + 50 * MS, false));
    assert_eq!(machine.step(now + 50 * MS, false), Step::Connect(2));
    machine.on_failed(2, now + 50 * MS, 0);
    assert!(machine.is_failing(now + 129 * MS) && !machine.is_failing(now + 130 * MS));
}

#[test]
fn a_backoff_beyond_the_clock_is_one() {
    let backoff = Backoff::new().initial(Duration::MAX).max(Duration::MAX);
    let (mut machine, now) = (Connectivity::new(Some(backoff)), Instant::now());
    assert!(machine.start(now, true));
    assert_eq!(machine.step(now, true), Step::Connect(1));
    machine.on_failed(1, now, 0);
    let later = now + 1_000_000_000 * MS;
    assert!(machine.is_failing(later));
    assert!(matches!(machine.step(later, true), Step::Sleep(at) if at > later));
}

#[test]
fn only_an_immediate_loss_is_a_failure() {
    let (mut machine, mut now) = (machine(), Instant::now());
    let epoch = connected(&mut machine, now);
    now += SETTLED_AFTER;
    assert!(machine.on_lost(epoch, now, 0, Loss::Other));
    assert_eq!(machine.state(), Idle);
    let epoch = connected(&mut machine, now);
    assert!(machine.on_lost(epoch, now, 0, Loss::Other));
    assert_eq!(machine.state(), Idle, "the first in a row");
    for failures in 1..20 {
        let epoch = connected(&mut machine, now);
        assert!(machine.on_lost(epoch, now, 0, Loss::Other));
        assert_eq!(machine.state(), TransientFailure, "the {failures}th in a row");
        let Step::Sleep(at) = ({
            assert!(machine.start(now, true));
            machine.step(now, true)
        }) else {
            panic!("{machine:?}")
        };
        assert_eq!(machine.step(now, false), Step::Sleep(at), "it owes an attempt");
        machine.on_connector_gone(now);
        assert!(at > now);
        now = at;
    }
}

/// Each of many servers that end their connections within a second.
#[test]
fn an_orderly_end_after_service_is_no_failure() {
    let (mut machine, mut now) = (machine(), Instant::now());
    for _ in 0..100 {
        let epoch = connected(&mut machine, now);
        now += MS;
        assert!(machine.on_lost(epoch, now, 0, Loss::InOrder));
        assert_eq!((machine.state(), machine.retry_at(now)), (Idle, None));
    }
    for state in [Idle, TransientFailure] {
        let epoch = connected(&mut machine, now);
        assert!(machine.on_lost(epoch, now, 0, Loss::Other));
        assert_eq!(machine.state(), state, "those before were none");
    }
}

#[test]
fn a_missing_end_point_can_be_wanted_again() {
    let (mut machine, now) = (machine(), Instant::now());
    assert!(machine.start(now, true));
    assert_eq!(machine.step(now, true), Step::Connect(1));
    assert_eq!(machine.retry_at(now), None);
    machine.on_failed(1, now, 0);
    let at = machine.retry_at(now).unwrap();
    assert_eq!(at, now + 50 * MS);
    // The connector waits for a call, which goes as the backoff ends.
    assert_eq!(machine.step(now, true), Step::Sleep(at));
    assert_eq!((machine.start(at, false), machine.retry_at(at)), (false, None));
    assert_eq!(machine.step(at, false), Step::Connect(2));
}

#[test]
fn news_of_an_earlier_epoch_change_nothing() {
    let (mut machine, now) = (machine(), Instant::now());
    let first = connected(&mut machine, now);
    assert!(machine.on_lost(first, now + SETTLED_AFTER, 0, Loss::Other));
    let second = connected(&mut machine, now + SETTLED_AFTER);
    assert!(second > first);
    assert!(!machine.on_lost(first, now + SETTLED_AFTER, 0, Loss::Other));
    machine.on_failed(first, now, 0);
    assert!(!machine.on_connected(first, now) && !machine.on_connected(second, now));
    assert_eq!(machine.state(), Ready);
}

#[test]
fn a_connector_that_vanishes_is_replaced() {
    let (mut machine, now) = (machine(), Instant::now());
    assert!(machine.start(now, true));
    assert_eq!(machine.step(now, true), Step::Connect(1));
    machine.on_connector_gone(now);
    assert!(machine.start(now, false));
    assert_eq!(machine.step(now, false), Step::Connect(2));
    assert!(!machine.on_connected(1, now) && machine.on_connected(2, now));
}

#[test]
fn the_end_of_our_runtime_is_no_failure() {
    let (mut machine, now) = (machine(), Instant::now());
    for _ in 0..5 {
        let epoch = connected(&mut machine, now);
        assert!(machine.on_driver_gone(epoch) && !machine.on_driver_gone(epoch));
        assert_eq!(machine.state(), Idle);
    }
    let epoch = connected(&mut machine, now);
    assert!(machine.on_lost(epoch, now, 0, Loss::Other));
    assert_eq!(machine.state(), Idle, "the first of the server's in a row");
}

#[test]
fn without_a_backoff_what_is_lost_stays_lost() {
    let (mut machine, now) = (Connectivity::new(None), Instant::now());
    let epoch = connected(&mut machine, now);
    assert!(machine.on_lost(epoch, now + SETTLED_AFTER, 0, Loss::Other));
    assert_eq!(machine.state(), Shutdown);
    assert!(!machine.start(now, true));
}
