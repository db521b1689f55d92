//! Contract rules 2, 11 and 15: memory, keys, and a peer's access to it.

use std::ptr::NonNull;
use std::sync::Arc;

use rpc_transport::device::{
    Capabilities, CompletionKind, RecvWr, RemoteSlice, SendOp, SendWr, Source, Status,
};
use rpc_transport::memory::owned::OwnedMemory;
use rpc_transport::memory::region::{Access, BufferPool, MemoryRegion};

use crate::fixture::*;

pub(crate) fn rule02_visibility(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let target = pair.server_region(128 * 1024, Access::REMOTE_WRITE, 0);
    let source = region(&pair.client.pd, 128 * 1024, Access::LOCAL, 0);
    for (round, len) in [1, 63, 64, 4096, 4097, 20_000, 65_536, 131_072].into_iter().enumerate() {
        let round = round as u64;
        let bytes = pattern(round, len);
        // SAFETY: no WR names the source now: the previous round has completed.
        unsafe { source.copy_in(0, &bytes) };
        let at = (131_072 - len) as u64;
        let span = Source::Region { region: source.clone(), start: 0, len: len as u64 };
        let mut list =
            [write(1, remote(&target, at), span), send(2, true, Source::Inline(b"look"))];
        pair.client.post(&mut list).unwrap();
        assert_eq!(payload(&pair.next_recv(Server)), b"look");
        let mut seen = vec![0; len];
        target.copy_out(usize::try_from(at).unwrap(), &mut seen);
        assert!(seen == bytes, "{len} bytes were not all there when the SEND arrived");
        assert_eq!(pair.next_sent(Client).wr_id, 1);
        assert_eq!(pair.next_sent(Client).wr_id, 2);
    }
    assert!(pair.server.got.is_empty(), "a WRITE gives the target no completion");
}

/// More than all queues and socket buffers on the way hold at a time.
pub(crate) fn rule02_large_transfers(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let longest = pair.client.device.attributes().max_message_bytes;
    let len = usize::try_from(longest.min(24 << 20)).unwrap();
    let target = pair.server_region(len, Access::REMOTE_READ_WRITE, 0);
    let bytes = pattern(9, len);
    let source = pair.client.pd.register(bytes.clone(), Access::LOCAL).unwrap();
    let mut list =
        [write(1, remote(&target, 0), whole(&source)), send(2, true, Source::Inline(b"all of it"))];
    pair.client.post(&mut list).unwrap();
    assert_eq!(payload(&pair.next_recv(Server)), b"all of it");
    assert!(contents(&target) == bytes);
    pair.next_sent(Client);
    pair.next_sent(Client);
    if pair.client.has(Capabilities::READ) {
        let mut list = [read(3, remote(&target, 0), &pair.client.pd, len)];
        pair.client.post(&mut list).unwrap();
        let done = pair.next_sent(Client);
        assert_eq!(done.wr_id, 3);
        assert!(brought(&done, len) == bytes);
    }
}

/// Checks the bytes that a completed WRITE has written. If a success means only that the bytes are
/// on their way, they arrive soon, or the watchdog fires.
fn assert_written(pair: &Pair, target: &MemoryRegion, expected: &[u8]) {
    while !pair.client.has(Capabilities::REMOTE_ERRORS) && contents(target) != expected {
        std::thread::yield_now();
    }
    assert!(contents(target) == expected);
}

/// Checks the consequences of a refused WRITE: both QPs dead, nothing written.
fn assert_refused(pair: &mut Pair, to: RemoteSlice) {
    let free = pair.client.send_pool.free_count();
    let source = pair.client.filled(&[0xbb; 64]);
    assert_wr_refused(pair, write(1, to, source));
    assert_eq!(pair.client.send_pool.free_count(), free);
}

fn assert_wr_refused(pair: &mut Pair, bad: SendWr<'_>) {
    let what = format!("{bad:?}");
    let mut list = [bad, send(2, true, Source::Inline(b"after"))];
    pair.client.post(&mut list).unwrap();
    let failed = pair.wait_refused(1, |status| status == Status::RemoteAccess);
    assert!(failed.buffer.is_some(), "the buffer comes back: {what}");
    pair.next_behind_refused(2);
    for wr_id in 0..8 {
        let flushed = pair.next_of(Server, true);
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::FlushError));
    }
    pair.wait_error(Client);
    pair.wait_error(Server);
}

pub(crate) fn rule11_bad_access_kills_both_and_writes_nothing(fixture: &dyn Fixture) {
    type Bad = (&'static str, fn(RemoteSlice) -> RemoteSlice);
    let bad: [Bad; 4] = [
        ("another key", |to| RemoteSlice { rkey: to.rkey ^ 0x1000, ..to }),
        ("before the region", |to| RemoteSlice { address: to.address.wrapping_sub(1), ..to }),
        ("past the region", |to| RemoteSlice { address: to.address + 1, ..to }),
        ("an address that wraps", |to| RemoteSlice { address: u64::MAX - 10, ..to }),
    ];
    for (what, spoil) in bad {
        let mut pair = Pair::new(fixture);
        let target = pair.server_region(64, Access::REMOTE_WRITE, 7);
        assert_refused(&mut pair, spoil(remote(&target, 0)));
        assert_eq!(contents(&target), [7; 64], "{what}");
    }
}

pub(crate) fn rule11_s77_bounds_hold_after_good_writes(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let target = pair.server_region(8192, Access::REMOTE_WRITE, 7);
    let source = pair.client.filled(&[1; 64]);
    pair.client.post(&mut [write(0, remote(&target, 8192 - 64), source)]).unwrap();
    pair.next_sent(Client);
    assert_refused(&mut pair, remote(&target, 8192 - 63));
    let mut expected = vec![7; 8192];
    expected[8192 - 64..].fill(1);
    assert_written(&pair, &target, &expected);
}

pub(crate) fn rule11_access_rights(fixture: &dyn Fixture) {
    let cases = [
        (Access::LOCAL, true),
        (Access::REMOTE_READ, true),
        (Access::LOCAL, false),
        (Access::REMOTE_WRITE, false),
    ];
    for (access, is_write) in cases {
        let mut pair = Pair::new(fixture);
        if !is_write && !pair.client.has(Capabilities::READ) {
            continue;
        }
        let target = pair.server_region(64, access, 7);
        let to = remote(&target, 0);
        if is_write {
            assert_refused(&mut pair, to);
        } else {
            let read = read(1, to, &pair.client.pd, 64);
            assert_wr_refused(&mut pair, read);
        }
        assert_eq!(contents(&target), [7; 64]);
    }
}

pub(crate) fn rule11_s79_keys_of_another_domain_or_region(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let other = pair.server.device.allocate_pd().unwrap();
    let foreign = region(&other, 64, Access::REMOTE_WRITE, 7);
    assert_refused(&mut pair, remote(&foreign, 0));
    assert_eq!(contents(&foreign), [7; 64]);

    let mut pair = Pair::new(fixture);
    let target = pair.server_region(64, Access::REMOTE_WRITE, 7);
    if fixture.keys_differ() {
        assert_ne!(target.lkey(), target.rkey());
        let to = RemoteSlice { rkey: target.lkey(), ..remote(&target, 0) };
        assert_refused(&mut pair, to);
        assert_eq!(contents(&target), [7; 64]);
    }
}

pub(crate) fn rule11_deregistered_memory_is_not_written(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let target = pair.server_region(64, Access::REMOTE_WRITE, 7);
    let to = remote(&target, 0);
    let source = pair.client.filled(&[1; 64]);
    pair.client.post(&mut [write(0, to, source)]).unwrap();
    pair.next_sent(Client);
    assert_written(&pair, &target, &[1; 64]);
    drop(target);
    fixture.settle();
    assert_refused(&mut pair, to);
}

pub(crate) fn rule11_local_memory_of_another_domain(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let other = pair.client.device.allocate_pd().unwrap();
    let pool = BufferPool::allocate(&other, 64, 1).unwrap();
    let source = Source::Buffer { buffer: pool.take().unwrap(), start: 0, len: 64 };
    let mut list = [send(1, true, Source::Inline(b"good")), send(2, true, source)];
    pair.client.post(&mut list).unwrap();
    assert_eq!(pair.next_of(Client, false).status, Status::Success);
    let failed = pair.next_of(Client, false);
    let statuses = [Status::LocalProtection, Status::LocalQpOperation];
    assert!(failed.wr_id == 2 && statuses.contains(&failed.status), "{failed:?}");
    pair.wait_error(Client);
    assert_eq!(payload(&pair.next_recv(Server)), b"good");
}

pub(crate) fn rule11_s41_recv_memory_of_another_domain(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { posted: 0, ..Options::default() });
    let other = pair.server.device.allocate_pd().unwrap();
    let pool = BufferPool::allocate(&other, 64, 1).unwrap();
    let (qp, buffer) = (pair.server.qp, pool.take().unwrap());
    // It fails when a message lands, not at the post (S41).
    pair.server.cq.post_recv(qp, RecvWr { wr_id: 4, buffer }).unwrap();
    pair.client.send(1, b"x");
    pair.wait_refused(1, |status| status != Status::Success);
    let failed = pair.next_of(Server, true);
    assert_eq!(failed.wr_id, 4);
    assert!(!matches!(failed.status, Status::Success | Status::FlushError), "{failed:?}");
    assert!(failed.buffer.is_some_and(|buffer| buffer[0] != b'x'), "nothing was written");
}

/// Memory that may be registered repeatedly, since nobody writes it.
fn lent(bytes: &Arc<Vec<u8>>) -> OwnedMemory {
    let base = NonNull::new(bytes.as_ptr().cast_mut()).unwrap();
    // SAFETY: the owner keeps the bytes in place; neither tests nor devices write them.
    unsafe { OwnedMemory::from_raw_shared(base, bytes.len(), Box::new(Arc::clone(bytes))) }
}

/// Memory that is registered twice has two keys each, and one registration ends without the other.
pub(crate) fn rule11_s77_memory_may_be_registered_twice(fixture: &dyn Fixture) {
    let bytes = Arc::new(pattern(6, 5_000));
    let mut pair = Pair::new(fixture);
    let target = pair.server_region(5_000, Access::REMOTE_WRITE, 0);
    let pd = pair.client.pd.clone();
    let [first, second] = [(), ()].map(|()| pd.register(lent(&bytes), Access::LOCAL).unwrap());
    assert_ne!(first.lkey(), second.lkey());
    drop(first);
    fixture.settle();
    pair.client.post(&mut [write(1, remote(&target, 0), whole(&second))]).unwrap();
    pair.next_sent(Client);
    assert_written(&pair, &target, &bytes);

    let (reads, registers) = (Capabilities::READ, Capabilities::REGISTER_REMOTE);
    if !pair.client.has(reads) || !pair.server.has(registers) {
        return;
    }
    let pd = pair.server.pd.clone();
    let register = |()| pd.register(lent(&bytes), Access::REMOTE_READ).unwrap();
    let [first, second] = [(), ()].map(register);
    assert_ne!(first.rkey(), second.rkey());
    let (revoked, len) = (remote(&first, 0), bytes.len());
    for region in [&first, &second] {
        pair.client.post(&mut [read(2, remote(region, 0), &pair.client.pd, len)]).unwrap();
        assert!(brought(&pair.next_sent(Client), len) == *bytes);
    }
    drop(first);
    fixture.settle();
    pair.client.post(&mut [read(3, remote(&second, 0), &pair.client.pd, len)]).unwrap();
    assert!(brought(&pair.next_sent(Client), len) == *bytes, "the other was not revoked");
    let refused = read(1, revoked, &pair.client.pd, len);
    assert_wr_refused(&mut pair, refused);
}

pub(crate) fn rule11_user_memory(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let source = pair.client.pd.register(pattern(1, 10_000), Access::LOCAL).unwrap();
    let target = pair.server_region(10_000, Access::REMOTE_WRITE, 0);
    pair.client.post(&mut [write(1, remote(&target, 0), whole(&source))]).unwrap();
    pair.next_sent(Client);
    assert_written(&pair, &target, &pattern(1, 10_000));

    let registered = pair.server.pd.register(vec![0; 10_000], Access::REMOTE_WRITE);
    if pair.server.has(Capabilities::REGISTER_REMOTE) {
        let target = registered.unwrap();
        pair.client.post(&mut [write(2, remote(&target, 0), whole(&source))]).unwrap();
        pair.next_sent(Client);
        assert_written(&pair, &target, &pattern(1, 10_000));
    } else {
        assert!(registered.is_err());
    }
}

pub(crate) fn rule15_s59_handles_dropped_while_in_use(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { posted: 0, ..Options::default() });
    let target = pair.server_region(64 * 1024, Access::REMOTE_WRITE, 0);
    // The only handles of the source region, of a pool and of a PD go away while WRs name them.
    let source = pair.client.pd.register(pattern(5, 64 * 1024), Access::LOCAL).unwrap();
    let pool = BufferPool::allocate(&pair.server.pd, 4096, 2).unwrap();
    let qp = pair.server.qp;
    for wr_id in 0..2 {
        let buffer = pool.take().unwrap();
        pair.server.cq.post_recv(qp, RecvWr { wr_id, buffer }).unwrap();
    }
    drop(pool);
    let len = source.len() as u64;
    let span = Source::Region { region: source, start: 0, len };
    let mut list = [write(1, remote(&target, 0), span), send(2, true, Source::Inline(b"x"))];
    pair.client.post(&mut list).unwrap();
    let device = pair.client.device.clone();
    pair.client.pd = device.allocate_pd().unwrap();
    drop(device);
    assert_eq!(payload(&pair.next_recv(Server)), b"x");
    assert_eq!(contents(&target), pattern(5, 64 * 1024));
    pair.next_sent(Client);
    pair.next_sent(Client);
}

pub(crate) fn rule15_destroying_with_work_outstanding(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let target = pair.server_region(256 * 1024, Access::REMOTE_WRITE, 0);
    let source = region(&pair.client.pd, 256 * 1024, Access::LOCAL, 3);
    let buffers: Vec<_> = (0..6).map(|_| pair.client.filled(&[9; 4096])).collect();
    pair.client.post(&mut [write(1, remote(&target, 0), whole(&source))]).unwrap();
    for source in buffers {
        pair.client.post(&mut [send(2, false, source)]).unwrap();
    }
    let qp = pair.client.qp;
    pair.client.cq.destroy_qp(qp).unwrap();
    fixture.settle();
    let home = |pool: &BufferPool| pool.free_count() == pool.count() as usize;
    assert!(home(&pair.client.send_pool), "send buffers are released");
    assert!(home(&pair.client.recv_pool), "RECV buffers are released");
    pair.wait("the disconnect", |pair| pair.server.is_disconnected());
    let qp = pair.server.qp;
    pair.server.cq.destroy_qp(qp).unwrap();
    pair.server.got.clear();
    fixture.settle();
    assert!(home(&pair.server.recv_pool));
}

pub(crate) fn s40_s48_only_send_and_immediate_consume_recvs(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let target = pair.server_region(4096, Access::REMOTE_READ_WRITE, 0);
    let data = region(&pair.client.pd, 64, Access::LOCAL, 9);
    pair.client.post(&mut [write(1, remote(&target, 0), whole(&data))]).unwrap();
    pair.next_sent(Client);
    if pair.client.has(Capabilities::READ) {
        let mut list = [read(2, remote(&target, 0), &pair.client.pd, 64)];
        pair.client.post(&mut list).unwrap();
        pair.next_sent(Client);
    }
    pair.client.send(3, b"x");
    assert_eq!(pair.next_recv(Server).wr_id, 0, "neither WRITE nor READ took a RECV");
}

pub(crate) fn s47_send_with_imm(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    if !pair.client.has(Capabilities::IMMEDIATE) {
        return;
    }
    for (imm, len) in [(0, 3), (0x0102_0304, 100), (u32::MAX, 4096)] {
        let bytes = pattern(u64::from(imm), len);
        let source = pair.client.filled(&bytes);
        let op = SendOp::SendWithImm(imm);
        pair.client.post(&mut [SendWr { wr_id: 1, op, signaled: true, source }]).unwrap();
        let received = pair.next_recv(Server);
        assert_eq!((received.kind, received.imm), (CompletionKind::Recv, Some(imm)));
        assert_eq!(payload(&received), bytes);
        pair.next_sent(Client);
    }
    pair.client.send(2, b"plain");
    assert_eq!(pair.next_recv(Server).imm, None);
}

pub(crate) fn s49_write_with_imm_leaves_the_recv_buffer(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { posted: 0, ..Options::default() });
    if !pair.client.has(Capabilities::WRITE_WITH_IMM) {
        return;
    }
    const UNTOUCHED: u8 = 0xa5;
    let target = pair.server_region(64 * 1024, Access::REMOTE_WRITE, 0);
    let qp = pair.server.qp;
    for wr_id in 0..3 {
        let mut buffer = pair.server.recv_pool.take().unwrap();
        buffer.fill(UNTOUCHED);
        pair.server.cq.post_recv(qp, RecvWr { wr_id, buffer }).unwrap();
    }
    for (round, len) in [10, 4096, 64 * 1024].into_iter().enumerate() {
        let source = pair.client.pd.register(pattern(8, len), Access::LOCAL).unwrap();
        let op = SendOp::WriteWithImm(remote(&target, 0), 77);
        let source = whole(&source);
        pair.client.post(&mut [SendWr { wr_id: 1, op, signaled: true, source }]).unwrap();
        let received = pair.next_recv(Server);
        assert_eq!((received.kind, received.imm), (CompletionKind::RecvWrite, Some(77)));
        assert_eq!((received.wr_id, received.byte_len as usize), (round as u64, len));
        let buffer = received.buffer.as_ref().expect("its buffer comes back");
        // Filled by a device that poisons unread buffers, or unchanged.
        let first = buffer[0];
        assert!(first == UNTOUCHED || fixture.poisons_receives(), "{first:#x} was written");
        assert!(buffer.iter().all(|byte| *byte == first), "the RECV's buffer was written");
        assert_eq!(&contents(&target)[..len], pattern(8, len));
        pair.next_sent(Client);
    }
}

pub(crate) fn s49_s75_write_with_imm_needs_a_recv(fixture: &dyn Fixture) {
    let mut pair = Pair::with(fixture, Options { posted: 0, ..Options::default() });
    if !pair.client.has(Capabilities::WRITE_WITH_IMM) {
        return;
    }
    let target = pair.server_region(64, Access::REMOTE_WRITE, 0);
    let source = pair.client.filled(&[1; 64]);
    let op = SendOp::WriteWithImm(remote(&target, 0), 1);
    pair.client.post(&mut [SendWr { wr_id: 1, op, signaled: true, source }]).unwrap();
    assert_eq!(pair.next_of(Client, false).status, Status::RnrRetryExceeded);
}

pub(crate) fn s50_read(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    if !pair.client.has(Capabilities::READ) {
        return;
    }
    let bytes = pattern(4, 200_000);
    let source = pair.server_region(200_000, Access::REMOTE_READ, 0);
    // SAFETY: no WR names the region yet.
    unsafe { source.copy_in(0, &bytes) };
    for (start, len) in [(0, 1), (5, 64), (100, 4096), (1, 70_000), (0, 200_000)] {
        let mut list = [
            read(1, remote(&source, start), &pair.client.pd, len),
            send(2, true, Source::Inline(b"after the read")),
        ];
        pair.client.post(&mut list).unwrap();
        let done = pair.next_sent(Client);
        assert_eq!(done.wr_id, 1);
        let start = usize::try_from(start).unwrap();
        assert!(brought(&done, len) == &bytes[start..start + len], "{len} bytes from {start}");
        assert_eq!(pair.next_sent(Client).wr_id, 2);
        drop(pair.next_recv(Server));
        pair.server.post_recv(0);
    }
}

pub(crate) fn s50_many_reads_at_once(fixture: &dyn Fixture) {
    let options = Options { sends: 64, ..Options::default() };
    let mut pair = Pair::with(fixture, options);
    if !pair.client.has(Capabilities::READ) {
        return;
    }
    let source = pair.server_region(64 * 1000, Access::REMOTE_READ, 0);
    // SAFETY: no WR names the region yet.
    unsafe { source.copy_in(0, &pattern(2, 64_000)) };
    for i in 0..64 {
        let mut list = [read(i, remote(&source, i * 1000), &pair.client.pd, 1000)];
        pair.client.post(&mut list).unwrap();
    }
    for i in 0..64 {
        let done = pair.next_sent(Client);
        assert_eq!(done.wr_id, i as u64);
        assert!(brought(&done, 1000) == &pattern(2, 64_000)[i * 1000..][..1000]);
    }
}

pub(crate) fn s68_one_sided_operations_complete_only_locally(fixture: &dyn Fixture) {
    let mut pair = Pair::new(fixture);
    let target = pair.server_region(4096, Access::REMOTE_WRITE, 0);
    for wr_id in 0..10 {
        let source = pair.client.filled(&[wr_id as u8; 4096]);
        pair.client.post(&mut [write(wr_id, remote(&target, 0), source)]).unwrap();
        assert_eq!(pair.next_sent(Client).wr_id, wr_id);
    }
    pair.pump();
    assert!(pair.server.got.is_empty());
    assert_written(&pair, &target, &[9; 4096]);
}
