//! Fixture of the example device, for people who add one.

use std::sync::Arc;

use rpc_transport::address::Address;
use rpc_transport::device::{Connector, Listener};

use crate::fixture::Fixture;
use crate::setup;
use crate::soft::fresh_name;

pub(crate) struct Toy;

impl Fixture for Toy {
    fn listen(&self) -> Box<dyn Listener> {
        setup::listen(Address::Mem(fresh_name()))
    }

    fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(setup::ToyConnector)
    }

    fn has_precise_events(&self) -> bool {
        true
    }
}
