//! The smallest device that keeps the whole device contract: a loopback inside this process, to
//! copy from when you add a provider (CONTRIBUTING.md). The conformance suite runs on it.
//!
//! ```text
//! cargo run --example toy_device
//! ```

#![allow(unsafe_code, reason = "a device reads and writes registered memory")]

mod device;
mod setup;

use std::error::Error;

use rpc_transport::address::Address;
use rpc_transport::device::{Connector, QpCapacity, RecvWr, SendOp, SendWr, Source};
use rpc_transport::memory::region::BufferPool;

const CAPACITY: QpCapacity =
    QpCapacity { max_send_wr: 4, max_recv_wr: 4, max_inline_bytes: 64, uses_srq: false };

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address: Address = "mem://toy".parse()?;
    let mut listener = setup::listen(address.clone());
    let (client, server) = tokio::join!(
        async {
            let mut outgoing = setup::ToyConnector.resolve(&address).await?;
            let pd = outgoing.device().allocate_pd()?;
            let mut cq = outgoing.device().create_cq(8)?;
            let qp = outgoing.create_qp(&mut *cq, &pd, CAPACITY)?;
            outgoing.connect(b"may I?").await?.attach.run(&mut *cq)?;
            Ok::<_, Box<dyn Error>>((cq, qp))
        },
        async {
            let mut incoming = listener.incoming().await?;
            let pd = incoming.device().allocate_pd()?;
            let mut cq = incoming.device().create_cq(8)?;
            let qp = incoming.create_qp(&mut *cq, &pd, CAPACITY)?;
            let buffer = BufferPool::allocate(&pd, 64, 1)?.take().ok_or("no buffer")?;
            cq.post_recv(qp, RecvWr { wr_id: 1, buffer }).map_err(|(error, _)| error)?;
            incoming.accept(b"yes").await?.attach.run(&mut *cq)?;
            Ok::<_, Box<dyn Error>>(cq)
        },
    );
    let ((mut client, qp), mut server) = (client?, server?);
    let source = Source::Inline(b"hello, toy");
    client.post_send(qp, &mut [SendWr { wr_id: 2, op: SendOp::Send, signaled: true, source }])?;
    for (name, cq) in [("client", &mut client), ("server", &mut server)] {
        let mut completions = Vec::new();
        cq.poll(&mut completions, 1)?;
        println!("{name}: {:?}", completions.pop());
    }
    Ok(())
}
