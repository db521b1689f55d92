//! Fixtures of the software device.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use rpc_transport::address::HostPort;
use rpc_transport::device::fault::{self, DeviceProfile, FaultPlan, FaultyConnector};
use rpc_transport::device::soft;
use rpc_transport::device::{Connector, Listener};

use crate::fixture::Fixture;

/// A name that no other test on this machine uses.
pub(crate) fn fresh_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// `mem://`.
pub(crate) struct Mem;

impl Fixture for Mem {
    fn listen(&self) -> Box<dyn Listener> {
        soft::listen_mem(&fresh_name()).unwrap()
    }

    fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(soft::MemConnector)
    }

    fn has_precise_events(&self) -> bool {
        true
    }
}

/// `shm://`, within this process.
pub(crate) struct Shm;

impl Fixture for Shm {
    fn listen(&self) -> Box<dyn Listener> {
        soft::listen_shm(&format!("shm://{}", fresh_name()).parse().unwrap()).unwrap()
    }

    fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(soft::ShmConnector::default())
    }

    fn has_precise_events(&self) -> bool {
        true
    }
}

/// `tcp://`, over loopback.
pub(crate) struct Tcp;

impl Fixture for Tcp {
    fn listen(&self) -> Box<dyn Listener> {
        let at = HostPort { host: "127.0.0.1".to_owned(), port: 0 };
        // Binding to a literal address completes at once.
        let bound = pin!(soft::listen_tcp(&at, None)).poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(listener) = bound else { panic!("binding to {at} took time") };
        listener.unwrap()
    }

    fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(soft::TcpConnector)
    }
}

/// `mem://` with faults. WRs are not started late here, since the suite lets one side sleep while
/// the other, having posted, does nothing: `faults` tests that.
pub(crate) struct FaultyMem;

impl FaultyMem {
    fn plan() -> FaultPlan {
        // A fixed seed, so that a failure can be reproduced; other tests try many.
        let plan = FaultPlan::new(0x5eed);
        println!("{plan:?}");
        plan.delay_completions(5).interleave_queues(true).poison_receives(true)
    }
}

impl Fixture for FaultyMem {
    fn listen(&self) -> Box<dyn Listener> {
        fault::listener(Mem.listen(), Self::plan())
    }

    fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(FaultyConnector::new(Mem.connector(), Self::plan()))
    }

    fn is_silent_unarmed(&self) -> bool {
        true
    }

    fn poisons_receives(&self) -> bool {
        true
    }

    fn reorders_queues(&self) -> bool {
        true
    }
}

/// `mem://` with windows that break the rule.
pub(crate) struct OpenWindows;

impl Fixture for OpenWindows {
    fn listen(&self) -> Box<dyn Listener> {
        fault::listener(Mem.listen(), FaultPlan::new(0).open_windows(true))
    }

    fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(FaultyConnector::new(Mem.connector(), FaultPlan::new(0).open_windows(true)))
    }
}

/// `mem://` with the limits of a kind of NIC.
pub(crate) struct As(pub(crate) &'static DeviceProfile);

impl Fixture for As {
    fn listen(&self) -> Box<dyn Listener> {
        fault::listener(Mem.listen(), FaultPlan::new(0).profile(self.0))
    }

    fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(FaultyConnector::new(Mem.connector(), FaultPlan::new(0).profile(self.0)))
    }

    fn has_precise_events(&self) -> bool {
        true
    }
}
