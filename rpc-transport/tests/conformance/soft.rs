//! Fixtures of the software device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rpc_transport::provider::{Connector, Listener};
use rpc_transport::soft;

use crate::fixture::Fixture;

/// A name that no other test of this machine uses.
fn fresh_name() -> String {
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
