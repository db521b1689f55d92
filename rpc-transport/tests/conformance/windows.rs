//! Rule 23: memory windows, whose keys are valid on one queue pair.

use rpc_transport::device::{
    Capabilities, PostErrorKind, ProviderError, RemoteSlice, SendOp, SendWr, Source, Status,
};
use rpc_transport::memory::region::{Access, MemoryRegion, MemoryWindow, ProtectionDomain};

use crate::fixture::*;

const BYTES: usize = 8192;

/// A pair whose server has such windows; `None` on a device that has none, of which
/// [`rule23_a_device_without_windows_says_so`] takes care.
fn pair(fixture: &dyn Fixture, pd: Option<&ProtectionDomain>) -> Option<Pair> {
    let pair = Pair::in_domain(fixture, Options::default(), pd.cloned());
    pair.server.has(Capabilities::WINDOWS).then_some(pair)
}

fn region_and_window(pd: &ProtectionDomain) -> (MemoryRegion, MemoryWindow) {
    let region = region(pd, BYTES, Access::WINDOWS, 7);
    let window = pd.window(&region).unwrap();
    assert!(window.region().is_same(&region));
    (region, window)
}

fn bind(wr_id: u64, signaled: bool, window: &MemoryWindow) -> SendWr<'static> {
    SendWr { wr_id, op: SendOp::Bind, signaled, source: Source::Window(window.clone()) }
}

fn through(window: &MemoryWindow, offset: u64) -> RemoteSlice {
    RemoteSlice { address: window.region().remote_address(offset), rkey: window.rkey() }
}

/// Binds a window of a new region to the server's queue pair, and notifies the client.
fn bound(pair: &mut Pair) -> (MemoryRegion, MemoryWindow) {
    let (region, window) = region_and_window(&pair.server.pd);
    let told = send(101, true, Source::Inline(b"bound"));
    pair.server.post(&mut [bind(100, false, &window), told]).unwrap();
    assert_eq!(payload(&pair.next_recv(Client)), b"bound");
    assert_eq!(pair.next_sent(Server).wr_id, 101);
    (region, window)
}

/// The client writes 64 bytes, which arrive.
fn write_through(pair: &mut Pair, wr_id: u64, to: RemoteSlice) {
    let source = pair.client.filled(&[wr_id as u8; 64]);
    pair.client.post(&mut [write(wr_id, to, source)]).unwrap();
    assert_eq!(pair.next_sent(Client).wr_id, wr_id);
}

/// A WR of the client is refused, and its region stays as it was.
fn assert_refused(pair: &mut Pair, bad: SendWr<'_>, region: &MemoryRegion, before: &[u8]) {
    pair.client.post(&mut [bad]).unwrap();
    pair.wait_refused(1, |status| status == Status::RemoteAccess);
    pair.wait_error(Server);
    assert!(contents(region) == before, "it was written");
}

fn assert_write_refused(pair: &mut Pair, to: RemoteSlice, region: &MemoryRegion, before: &[u8]) {
    let source = pair.client.filled(&[0xbb; 64]);
    assert_refused(pair, write(1, to, source), region, before);
}

pub(crate) fn rule23_a_window_opens_its_region_to_its_peer(fixture: &dyn Fixture) {
    let Some(mut pair) = pair(fixture, None) else { return };
    let (region, window) = bound(&mut pair);
    assert_ne!(window.rkey(), region.rkey());
    let mut expected = vec![7; BYTES];
    for (wr_id, at) in [(2, 0), (3, 64), (4, BYTES - 64)] {
        write_through(&mut pair, wr_id, through(&window, at as u64));
        expected[at..at + 64].fill(wr_id as u8);
        assert!(contents(&region) == expected, "at {at}");
    }
    // Several at once, and a signaled bind is done in its turn.
    let (second, its_window) = region_and_window(&pair.server.pd);
    pair.server.post(&mut [bind(5, true, &its_window)]).unwrap();
    assert_eq!(pair.next_sent(Server).wr_id, 5);
    write_through(&mut pair, 6, through(&its_window, 0));
    assert!(contents(&second)[..64] == [6; 64]);
    write_through(&mut pair, 7, through(&window, 0));
    assert!(contents(&region)[..64] == [7; 64]);
}

pub(crate) fn rule23_other_queue_pairs_refuse_its_key(fixture: &dyn Fixture) {
    let Some(mut owner) = pair(fixture, None) else { return };
    let (region, window) = bound(&mut owner);
    let Some(mut thief) = pair(fixture, Some(&owner.server.pd)) else { return };
    // The domain is theirs both: what is not in a window is open to both.
    let shared = region_of(&owner, Access::REMOTE_WRITE);
    write_through(&mut thief, 9, remote(&shared, 0));
    assert_write_refused(&mut thief, through(&window, 0), &region, &[7; BYTES]);
    write_through(&mut owner, 3, through(&window, 0));
    assert!(contents(&region)[..64] == [3; 64]);
}

fn region_of(pair: &Pair, access: Access) -> MemoryRegion {
    region(&pair.server.pd, BYTES, access, 7)
}

pub(crate) fn rule23_an_unbound_window_opens_nothing(fixture: &dyn Fixture) {
    let Some(mut pair) = pair(fixture, None) else { return };
    let (region, window) = region_and_window(&pair.server.pd);
    assert_write_refused(&mut pair, through(&window, 0), &region, &[7; BYTES]);
}

pub(crate) fn rule23_an_ended_window_opens_nothing(fixture: &dyn Fixture) {
    let Some(mut pair) = pair(fixture, None) else { return };
    let (region, window) = bound(&mut pair);
    let to = through(&window, 0);
    write_through(&mut pair, 3, to);
    let before = contents(&region);
    drop(window);
    fixture.settle();
    assert_write_refused(&mut pair, to, &region, &before);
}

pub(crate) fn rule23_the_key_of_the_region_opens_nothing(fixture: &dyn Fixture) {
    let Some(mut pair) = pair(fixture, None) else { return };
    let (region, _window) = bound(&mut pair);
    assert_write_refused(&mut pair, remote(&region, 0), &region, &[7; BYTES]);
}

pub(crate) fn rule23_a_window_has_bounds_and_is_never_read(fixture: &dyn Fixture) {
    for at in [BYTES as u64 - 63, BYTES as u64, 0_u64.wrapping_sub(1)] {
        let Some(mut pair) = pair(fixture, None) else { return };
        let (region, window) = bound(&mut pair);
        write_through(&mut pair, 3, through(&window, 0));
        let before = contents(&region);
        assert_write_refused(&mut pair, through(&window, at), &region, &before);
    }
    let Some(mut pair) = pair(fixture, None) else { return };
    if pair.client.has(Capabilities::READ) {
        let (region, window) = bound(&mut pair);
        let read = read(1, through(&window, 0), &pair.client.pd, 64);
        assert_refused(&mut pair, read, &region, &[7; BYTES]);
    }
}

pub(crate) fn rule23_a_wrong_bind_fails_its_queue_pair(fixture: &dyn Fixture) {
    let Some(mut twice) = pair(fixture, None) else { return };
    let (_region, window) = bound(&mut twice);
    twice.server.post(&mut [bind(1, true, &window)]).unwrap();
    let failed = twice.next_of(Server, false);
    assert!(failed.wr_id == 1 && failed.status != Status::Success, "{failed:?}");
    twice.wait_error(Server);

    let Some(mut foreign) = pair(fixture, None) else { return };
    let other = foreign.server.device.allocate_pd().unwrap();
    let (region, window) = region_and_window(&other);
    foreign.server.post(&mut [bind(1, true, &window)]).unwrap();
    let failed = foreign.next_of(Server, false);
    assert!(failed.wr_id == 1 && failed.status != Status::Success, "{failed:?}");
    foreign.wait_error(Server);
    assert!(contents(&region) == [7; BYTES]);
}

pub(crate) fn rule23_what_cannot_be_bound_is_refused(fixture: &dyn Fixture) {
    let Some(mut pair) = pair(fixture, None) else { return };
    let (_region, window) = region_and_window(&pair.server.pd);
    for access in [Access::LOCAL, Access::REMOTE_WRITE] {
        let region = region_of(&pair, access);
        let refused = pair.server.pd.window(&region);
        assert!(matches!(refused, Err(ProviderError::Unsupported(_))), "{access:?}");
    }
    let foreign = pair.server.device.allocate_pd().unwrap();
    assert!(foreign.window(window.region()).is_err(), "a region of another domain");
    let source = Source::Window(window);
    for (op, source) in [(SendOp::Bind, Source::Empty), (SendOp::Send, source)] {
        let refused = pair.server.post(&mut [SendWr { wr_id: 1, op, signaled: true, source }]);
        assert_eq!(refused.unwrap_err().kind, PostErrorKind::Unsupported);
    }
}

/// The window outlives its queue pair, and the key does not.
pub(crate) fn rule23_a_window_ends_with_its_queue_pair(fixture: &dyn Fixture) {
    let Some(mut owner) = pair(fixture, None) else { return };
    let (region, window) = bound(&mut owner);
    let pd = owner.server.pd.clone();
    let qp = owner.server.qp;
    owner.server.cq.destroy_qp(qp).unwrap();
    fixture.settle();
    let Some(mut thief) = pair(fixture, Some(&pd)) else { return };
    assert_write_refused(&mut thief, through(&window, 0), &region, &[7; BYTES]);
    drop((owner, window, region));
    fixture.settle();
}

/// With binds that were never polled.
pub(crate) fn rule23_windows_go_with_work_outstanding(fixture: &dyn Fixture) {
    let Some(mut pair) = pair(fixture, None) else { return };
    let windows: Vec<_> = (0..4).map(|_| region_and_window(&pair.server.pd)).collect();
    for (wr_id, (_, window)) in (0..).zip(&windows) {
        pair.server.post(&mut [bind(wr_id, wr_id % 2 == 0, window)]).unwrap();
    }
    let regions: Vec<_> = windows.into_iter().map(|(region, _)| region).collect();
    let qp = pair.server.qp;
    pair.server.cq.destroy_qp(qp).unwrap();
    drop(regions);
    fixture.settle();
}

pub(crate) fn rule23_a_device_without_windows_says_so(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let attributes = pair.server.device.attributes();
    if attributes.capabilities.contains(Capabilities::WINDOWS) {
        return;
    }
    let region = region_of(&pair, Access::LOCAL);
    assert!(matches!(pair.server.pd.window(&region), Err(ProviderError::Unsupported(_))));
    let wr = SendWr { wr_id: 1, op: SendOp::Bind, signaled: true, source: Source::Empty };
    let refused = pair.server.post(&mut [wr]).unwrap_err();
    assert_eq!(refused.kind, PostErrorKind::Unsupported);
}
