//! Somebody between the ends who changes the set-up.

use std::net::SocketAddr;

use rpc_transport::address::Address;
use rpc_transport::protocol::handshake::OFFER_BYTES;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{World, accept, client, connect, probes, server};
use crate::probe::{Habit, Probe};
use crate::world::{PATIENCE, run};

/// Forwards one connection, and changes one byte of what a direction sends.
async fn proxy(listener: &TcpListener, to: SocketAddr, from_client: bool, changed: usize) {
    let (mut near, _) = listener.accept().await.unwrap();
    let mut far = TcpStream::connect(to).await.unwrap();
    let (mut near_read, mut near_write) = near.split();
    let (mut far_read, mut far_write) = far.split();
    let copy = async |read: &mut tokio::net::tcp::ReadHalf<'_>,
                      write: &mut tokio::net::tcp::WriteHalf<'_>,
                      changed: Option<usize>| {
        let (mut at, mut bytes) = (0, [0; 4096]);
        while let Ok(len @ 1..) = read.read(&mut bytes).await {
            if let Some(changed) = changed
                && (at..at + len).contains(&changed)
            {
                bytes[changed - at] ^= 1;
            }
            at += len;
            if write.write_all(&bytes[..len]).await.is_err() {
                break;
            }
        }
        let _ = write.shutdown().await;
    };
    let up = copy(&mut near_read, &mut far_write, from_client.then_some(changed));
    let down = copy(&mut far_read, &mut near_write, (!from_client).then_some(changed));
    tokio::join!(up, down);
}

/// Where the private data lies among the first bytes of a direction: found by its magic.
async fn private_data_at(world: &mut World, from_client: bool) -> usize {
    let to = world.socket();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near: Address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let seen = async {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(to).await.unwrap();
        let (mut bytes, mut seen) = (vec![0; 4096], Vec::new());
        let find = |bytes: &[u8]| bytes.windows(4).position(|magic| magic == b"RPCr");
        loop {
            let len = client.read(&mut bytes).await.unwrap();
            seen.extend_from_slice(&bytes[..len]);
            if from_client && let Some(at) = find(&seen) {
                return at;
            }
            far.write_all(&bytes[..len]).await.unwrap();
            if find(&seen).is_some() {
                break;
            }
        }
        seen.clear();
        loop {
            let len = far.read(&mut bytes).await.unwrap();
            seen.extend_from_slice(&bytes[..len]);
            if let Some(at) = find(&seen) {
                return at;
            }
            client.write_all(&bytes[..len]).await.unwrap();
        }
    };
    let (ours, theirs) = (client(), server());
    let connect = connect(&world.near, &near, Probe::new(Habit::Keep), Some(&ours), PATIENCE);
    let probe = Probe::new(Habit::Keep);
    let accept = accept(&world.far, &mut *world.listener, probe, Some(&theirs));
    tokio::select! {
        at = seen => at,
        _ = connect => panic!("connected to a listening tap"),
        () = async { let _ = accept.await; std::future::pending().await } => unreachable!(),
    }
}

#[test]
fn each_changed_byte_of_set_up_is_found() {
    run("changed bytes", async {
        let mut world = World::for_connections("tcp", 64).await;
        for from_client in [true, false] {
            let start = private_data_at(&mut world, from_client).await;
            for byte in 0..OFFER_BYTES {
                world.listen_anew("tcp").await;
                let to = world.socket();
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let near = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
                let [near_probe, far_probe] = probes();
                let records = [near_probe.record(), far_probe.record()];
                let (ours, theirs) = (client(), server());
                let securities = [Some(&ours), Some(&theirs)];
                let meet = world.meet_at(&near, securities, [near_probe, far_probe]);
                let proxied = proxy(&listener, to, from_client, start + byte);
                let (met, ()) = tokio::join!(meet, proxied);
                assert!(met.0.is_err() && met.1.is_err(), "{from_client} {byte}: {met:?}");
                for record in records {
                    assert_eq!(record.events().established, 0, "{from_client} {byte}");
                }
            }
        }
        world.listen_anew("tcp").await;
        world.check_works().await;
        world.end().await;
    });
}
