//! Payloads longer than a receiver assembles: read while they arrive, or refused with an error, and
//! never blocking other calls.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rpc_core::bulk::BulkReader;
use rpc_core::{Bulk, Channel, Code, Codec, LinkConfig, PollMode, Server, Status};
use tokio::io::AsyncReadExt;

#[rpc_core::service]
trait Streams {
    async fn sum(&self, data: BulkReader) -> u64;
    async fn pieces(&self, before: u32, data: BulkReader, after: u32) -> (u32, u64, u32);
    async fn give(&self, len: u32) -> BulkReader;
    async fn give_whole(&self, len: u32) -> Bulk;
    async fn whole(&self, data: Bulk) -> u64;
    async fn vec(&self, data: Vec<u8>) -> u64;
    async fn two(&self, one: BulkReader, two: BulkReader) -> u64;
    async fn ignore(&self, data: BulkReader) -> u64;
    async fn add(&self, a: u64, b: u64) -> u64;
}

struct Service;

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

fn sum_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |sum: u64, byte| sum.rotate_left(1) ^ u64::from(*byte))
}

async fn read_all(reader: &mut BulkReader) -> Vec<u8> {
    let (mut all, mut step) = (Vec::new(), vec![0; 9_999]);
    loop {
        let left = reader.remaining();
        match AsyncReadExt::read(reader, &mut step).await.unwrap() {
            0 => return all,
            count => all.extend_from_slice(&step[..count]),
        }
        assert!(reader.remaining() < left);
    }
}

impl Streams for Service {
    async fn sum(&self, mut data: BulkReader) -> u64 {
        sum_of(&read_all(&mut data).await)
    }

    async fn pieces(&self, before: u32, mut data: BulkReader, after: u32) -> (u32, u64, u32) {
        let mut all = Vec::new();
        while let Some(piece) = data.next_piece().await {
            all.extend_from_slice(&piece.unwrap().to_vec().unwrap());
        }
        (before, sum_of(&all), after)
    }

    async fn give(&self, len: u32) -> BulkReader {
        Bulk::from(pattern(len as usize)).reader()
    }

    async fn give_whole(&self, len: u32) -> Bulk {
        Bulk::from(pattern(len as usize))
    }

    async fn whole(&self, data: Bulk) -> u64 {
        data.len()
    }

    async fn vec(&self, data: Vec<u8>) -> u64 {
        data.len() as u64
    }

    async fn two(&self, one: BulkReader, two: BulkReader) -> u64 {
        one.remaining() + two.remaining()
    }

    async fn ignore(&self, data: BulkReader) -> u64 {
        data.remaining()
    }

    async fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }
}

/// Assembles at most 100 kB.
fn link() -> LinkConfig {
    LinkConfig::default().assembly_bytes(100_000)
}

async fn client(address: &str, codec: Codec) -> StreamsClient {
    let server = Server::builder()
        .add_service(StreamsServer::new(Service))
        .link(link())
        .poll_mode(PollMode::Event)
        .bind(address)
        .await
        .unwrap();
    let address = server.local_address().to_string();
    tokio::spawn(server.serve());
    let builder = Channel::builder().codec(codec).link(link()).poll_mode(PollMode::Event);
    StreamsClient::new(builder.connect(address).await.unwrap())
}

fn run(name: &str, test: impl AsyncFn(StreamsClient)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for codec in [Codec::Bincode, Codec::Postcard] {
        for scheme in ["mem", "shm", "tcp"] {
            let address = match scheme {
                "tcp" => "tcp://127.0.0.1:0".to_owned(),
                scheme => format!("{scheme}://streams-{name}-{codec:?}-{}", std::process::id()),
            };
            runtime.block_on(async {
                let test = async { test(client(&address, codec).await).await };
                let limit = Duration::from_secs(60);
                tokio::time::timeout(limit, test).await.expect("it does not end");
            });
        }
    }
}

#[test]
fn payloads_of_every_length_are_read_alike() {
    run("lengths", async |client| {
        for size in [0, 1, 10_000, 99_000, 100_001, 1 << 20, 9 << 20] {
            let data = Bulk::from(pattern(size));
            let expected = sum_of(&data.to_vec().unwrap());
            assert_eq!(client.sum(data.reader()).await, Ok(expected), "{size} up");
            let pieces = client.pieces(1, data.reader(), 2).await;
            assert_eq!(pieces, Ok((1, expected, 2)), "{size} in pieces");
            let mut back = client.give(u32::try_from(size).unwrap()).await.unwrap();
            assert_eq!(back.is_arriving(), size > 100_000);
            assert!(read_all(&mut back).await == data.to_vec().unwrap(), "{size} down");
        }
    });
}

#[test]
fn only_a_reader_takes_too_long_payloads() {
    run("refused", async |client| {
        let data = Bulk::from(pattern(1 << 20));
        let refused = [
            client.whole(data.clone()).await.unwrap_err(),
            client.vec(data.to_vec().unwrap()).await.unwrap_err(),
            client.two(data.reader(), data.reader()).await.unwrap_err(),
        ];
        for status in refused {
            assert_limit(&status);
            assert!(status.message().contains("argument"), "{status}");
        }
        let small = Bulk::from(pattern(40_000));
        assert_eq!(client.two(small.reader(), small.reader()).await, Ok(80_000));
        assert_eq!(client.whole(small).await, Ok(40_000));
    });
}

/// A limit of the receiver, unrelated to types.
fn assert_limit(status: &Status) {
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    for word in ["LinkConfig::assembly_bytes`", "the receiver", "`BulkReader`"] {
        assert!(status.message().contains(word), "{status} lacks {word}");
    }
    assert!(!status.message().contains("types of the two ends"), "{status}");
}

#[test]
fn a_too_long_reply_reports_a_limit() {
    run("too-long", async |client| {
        assert_limit(&client.give_whole(1 << 20).await.unwrap_err());
        assert_eq!(client.add(1, 2).await, Ok(3));
    });
}

/// Nothing needs to be assembled there.
#[test]
fn a_slot_may_exceed_assembly_bytes() {
    run("into-slot", async |client| {
        let pool = client.channel().bulk_pool();
        for len in [150_000_u32, 1 << 20, 3_000_001] {
            let slot = pool.slot(len as usize).unwrap();
            let landed = client.give_whole(len).into(slot).await.unwrap();
            assert_eq!(landed.to_vec().unwrap(), pattern(len as usize));
        }
        // A slot that is too small is not used.
        let small = pool.slot(100_000).unwrap();
        assert_limit(&client.give_whole(1 << 20).into(small).await.unwrap_err());
        assert_eq!(client.add(1, 2).await, Ok(3));
    });
}

#[test]
fn a_too_large_reply_names_the_clients_limit() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let server = Server::builder().add_service(StreamsServer::new(Service));
        let address = format!("mem://streams-limit-{}", std::process::id());
        tokio::spawn(server.bind(&address).await.unwrap().serve());
        let link = LinkConfig::default().max_message_bytes(1 << 20);
        let channel = Channel::builder().link(link).connect(&address).await.unwrap();
        let status = StreamsClient::new(channel).give_whole(2 << 20).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        let expected = "Streams.give_whole: the reply of 2097171 bytes exceeds the 1048576 bytes \
                        that the client accepts: raise `max_message_bytes` in the `LinkConfig` of \
                        the client";
        assert_eq!(status.message(), expected);
    });
}

#[test]
fn what_is_not_read_is_in_nobodys_way() {
    run("unread", async |client| {
        let data = Bulk::from(pattern(3 << 20));
        for _ in 0..5 {
            assert_eq!(client.ignore(data.reader()).await, Ok(3 << 20));
            drop(client.give(3 << 20).await.unwrap());
            let kept = client.give(3 << 20).await.unwrap();
            // Small calls pass waiting payloads.
            for a in 0..20 {
                assert_eq!(client.add(a, 1).await, Ok(a + 1));
            }
            drop(kept);
        }
        assert_eq!(client.sum(data.reader()).await, Ok(sum_of(&data.to_vec().unwrap())));
    });
}

#[test]
fn a_reader_sees_an_aborted_payload() {
    run("lost", async |client| {
        let mut cut = client.give(9 << 20).await.unwrap();
        drop(client);
        let mut all = Vec::new();
        let outcome = AsyncReadExt::read_to_end(&mut cut, &mut all).await;
        let complete = all.len() == 9 << 20;
        assert!(outcome.is_err() || complete, "{} bytes and no error", all.len());
        assert!(all == pattern(all.len()));
    });
}

#[test]
fn an_arriving_payload_is_not_forwarded_whole() {
    run("forwarded", async |client| {
        let arriving = client.give(2 << 20).await.unwrap();
        let status = client.sum(arriving).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(client.add(1, 1).await, Ok(2));
    });
}
