//! Peers of the mem wire, which are threads of this process.

use std::sync::Arc;
use std::time::Duration;

use rpc_transport::device::soft;

use crate::fixture::*;
use crate::victim::Victim;

/// Both ends hold both doorbells, so one that is kept must not keep the other end's CQ awake.
#[test]
fn destroyed_queue_pair_leaves_the_epoll_set() {
    let _watchdog = Watchdog::start("a dead bell");
    let listen = async || soft::listen_mem("hostile-watched").unwrap();
    let mut victim = Victim::new(listen, Arc::new(soft::MemConnector));
    assert_eq!(victim.watched(), 2, "its own bell and the queue pair's");
    let qp = victim.honest_qp;
    victim.server.cq.destroy_qp(qp).unwrap();
    assert_eq!(victim.watched(), 1, "the dead bell is still watched");
    // It also rings as it is destroyed.
    victim.honest.cq.modify_to_error(victim.honest.qp).unwrap();
    victim.server.cq.clear_events().unwrap();
    victim.server.cq.arm().unwrap();
    assert!(!readable(&[victim.server.cq.event_fd()], Duration::ZERO), "a dead bell wakes");
}
