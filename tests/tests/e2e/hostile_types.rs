//! Peers that lie about their types: each lie ends its own call, with its reason, and nothing
//! grows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rpc_core::service::{Dispatch, MethodDescriptor};
use rpc_core::{Code, Status};
use rpc_transport::device::Listener;
use tests::changed::new::{CatalogClient, Item};
use tests::changed::{Service, old};
use tests::flow::FlowClient;
use tests::hostile::bytes::{hello_with, link_header, segment, session_header};
use tests::hostile::{Heard, HostilePeer};
use tests::limit;
use tests::scheme::Scheme;
use tests::world::World;

use crate::SERVER;
use crate::hostile_server::listen;

on_every_device! {
    hostile_schemas_end_their_call_alone,
    messages_that_misfit_their_schema_are_refused,
    a_schema_is_known_to_its_connection_alone,
}

/// Resolution, streams, and windows for them.
const FEATURES: u64 = 1 | 1 << 4;
/// Most bytes of a frame's payload here, far below any RECV.
const CHUNK: usize = 2000;
/// The wire's name of the schema.
const SCHEMA: &[u8] = b"rpc-schema";

/// Credits for data frames of a new connection, without the one to ask for more with.
const FIRST_WINDOW: u16 = 7;

/// A peer that speaks the session by hand. It returns the credits of what it has received, and
/// sends no more than it has credits for: a share of shared receives never grows.
struct Liar {
    peer: HostilePeer,
    /// Data frames that it may send.
    window: u16,
    /// Responses that came while it waited for credits.
    early: VecDeque<Said>,
    /// Credits to return: of data frames, and of others.
    data: u16,
    ack: u16,
    messages: u32,
    generation: u32,
}

/// A frame of the session.
struct Said {
    kind: u8,
    status: u8,
    slot: u32,
    generation: u32,
    bytes: Vec<u8>,
}

impl Said {
    fn of(frame: &[u8]) -> Option<Self> {
        // Behind the link's header, and that of a segment.
        let start = if frame[1] & 1 == 1 { 32 } else { 8 };
        let session = frame.get(start..).filter(|session| session.len() >= 16)?;
        let word =
            |at: usize| u32::from_le_bytes(session[at..at + 4].try_into().expect("four bytes"));
        let (kind, status) = (session[0], session[2]);
        Some(Self { kind, status, slot: word(8), generation: word(12), bytes: session.to_vec() })
    }

    #[track_caller]
    fn refused(&self, code: Code, texts: &[&str]) {
        let text = String::from_utf8_lossy(&self.bytes);
        assert_eq!((self.kind, self.status), (3, code.number()), "{text}");
        assert!(texts.iter().any(|part| text.contains(part)), "none of {texts:?} is in {text}");
    }
}

impl Liar {
    fn new(peer: HostilePeer) -> Self {
        let early = VecDeque::new();
        Self { peer, window: FIRST_WINDOW, early, data: 0, ack: 0, messages: 0, generation: 0 }
    }

    async fn to(world: &World) -> Self {
        let peer = HostilePeer::connect(&world.address).await.expect("an honest handshake");
        let mut liar = Self::new(peer);
        liar.say(&hello_with(0, FEATURES, Some((16, 65_536)))).await;
        liar
    }

    /// Sends a message of the session, in segments if it is long.
    async fn say(&mut self, message: &[u8]) {
        if message.len() <= CHUNK {
            return self.send([&link_header(1, 0, 0, 0)[..], message].concat()).await;
        }
        let (number, total) = (self.messages, message.len());
        self.messages += 1;
        for (at, chunk) in message.chunks(CHUNK).enumerate() {
            let offset = at * CHUNK;
            let last = u32::from(offset + chunk.len() == total);
            self.send(segment(number, last, offset as u64, total as u64, chunk)).await;
        }
    }

    /// Sends a data frame as soon as there is a credit for it.
    async fn send(&mut self, mut frame: Vec<u8>) {
        while self.window == 0 {
            if let Some(said) = self.next().await {
                self.early.push_back(said);
            }
        }
        self.window -= 1;
        let (data, ack) = (std::mem::take(&mut self.data), std::mem::take(&mut self.ack));
        frame[2..4].copy_from_slice(&data.to_le_bytes());
        frame[4..6].copy_from_slice(&ack.to_le_bytes());
        self.peer.send(&frame);
    }

    /// The next frame of one of these kinds.
    async fn hear(&mut self, kinds: &[u8]) -> Said {
        loop {
            let said = match self.early.pop_front() {
                Some(said) => Some(said),
                None => self.next().await,
            };
            if let Some(said) = said.filter(|said| kinds.contains(&said.kind)) {
                return said;
            }
        }
    }

    /// The next frame, if it is one of the session.
    async fn next(&mut self) -> Option<Said> {
        let Heard::Frame(frame, _) = self.peer.hear().await else { panic!("the other is gone") };
        self.window += u16::from_le_bytes([frame[2], frame[3]]);
        if frame[0] != 1 {
            self.ack += 1;
            return None;
        }
        self.data += 1;
        Said::of(&frame)
    }

    /// Calls a method with these bytes of arguments, and a schema; returns the response.
    async fn call(
        &mut self,
        method: &MethodDescriptor,
        hash: u64,
        schema: Option<&[u8]>,
        arguments: &[u8],
    ) -> Said {
        self.generation += 1;
        let flags = 0x02 | if schema.is_some() { 0x04 } else { 0 };
        let mut message = session_header(2, flags, 1, method.id, 0, self.generation);
        message.extend_from_slice(&hash.to_le_bytes());
        if let Some(schema) = schema {
            let len = |len: usize| u16::try_from(len).expect("it has room").to_le_bytes();
            let name = u8::try_from(SCHEMA.len()).expect("it is short");
            let entry = [&[1, name][..], SCHEMA, &len(schema.len()), schema].concat();
            message.extend_from_slice(&len(entry.len()));
            message.extend_from_slice(&entry);
        }
        message.extend_from_slice(arguments);
        self.say(&message).await;
        self.hear(&[3]).await
    }

    /// Refuses a request because its types differ, with this schema of one's own.
    async fn refuse(&mut self, request: &Said, schema: &[u8]) {
        let details = [&b"signature\n0: other\0"[..], schema].concat();
        let len = u32::try_from(details.len()).expect("it is short");
        let code = Code::FailedPrecondition.number();
        let head = session_header(3, 0x04, code, 0, request.slot, request.generation);
        self.say(&[&head[..], &len.to_le_bytes(), &details, b"other types"].concat()).await;
    }
}

fn store() -> &'static MethodDescriptor {
    let methods = old::CatalogServer::new(Service).descriptor().methods;
    methods.iter().find(|method| method.name == "Catalog.store").expect("it is there")
}

/// Schemas of `Catalog.store`, each with words of the refusal, of which one is there.
fn hostile_schemas() -> Vec<(Vec<u8>, &'static [&'static str])> {
    let text = |text: &str| text.as_bytes().to_vec();
    let deep: String = (0..700).map(|at| format!("#{at} option #{}\n", at + 1)).collect();
    let deep = format!("argument item: #0\n{deep}#700 u8\n");
    let doubling: String = (0..300)
        .map(|at| format!("#{at} struct {{ a: #{next}, b: #{next} }}\n", next = at + 1))
        .collect();
    let doubling = format!(
        "argument item: #301\nresult: #300\n{doubling}#300 u32\n\
         #301 struct {{ id: #300, size: #300, more: #0 }}\n"
    );
    let wide: String = (0..2000).map(|at| format!("f{at}: #1, ")).collect();
    let wide = format!("argument item: #0\nresult: #2\n#0 struct {{ {wide}id: #2 }}\n#1 nothing\n");
    vec![
        (vec![], &["no argument `item`"]),
        (vec![0xff, 0xfe, 0x00], &["no argument `item`"]),
        (text("\u{0}\u{1b}[31m"), &["not a schema"]),
        (text("argument item: #0\n#0 struct { a: #0 }\n"), &["contains another one"]),
        (
            text("argument item: #0\n#0 struct { a: #1 }\n#1 struct { b: #0 }\n"),
            &["contains another one"],
        ),
        (text("argument item: #7\n#0 u8\n"), &["not a schema"]),
        (text("argument item: #4294967295\n#0 u8\n"), &["not a schema"]),
        (text("argument item: #0\n#0 array 18446744073709551615 of #0\n"), &["schema"]),
        (text("version 9\nargument item: #0\n#0 u8\n"), &["its version is"]),
        (text("argument item: #0\nresult: #0\nsent item: #0\n#0 u32\n"), &["no stream"]),
        (text("argument item: #0\nresult: #0\n#0 sequence #0\n"), &["sequence", "struct"]),
        (deep.into_bytes(), &["`u8` at the writer"]),
        (doubling.into_bytes(), &["Catalog.store", ""]),
        (wide.into_bytes(), &["schema", "exceeds", "no argument"]),
        (vec![b'x'; 16_384], &["not a schema"]),
        (vec![b'x'; 60_000], &["exceeds the limit"]),
    ]
}

async fn hostile_schemas_end_their_call_alone(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let honest = world.client().await;
    let before = honest.resources().await.expect("the server answers");
    let mut liar = Liar::to(&world).await;
    for (hash, (schema, texts)) in (1..).zip(hostile_schemas()) {
        let said = liar.call(store(), hash, Some(&schema), &[1, 2]).await;
        if said.status != 0 {
            said.refused(Code::FailedPrecondition, texts);
        }
        assert_eq!(honest.add(20, 22).await, Ok(42));
    }
    // Many that are fine, by one peer, each under a hash of its own: more than are kept. An
    // emulated machine takes long for each.
    let count = if scheme.is_rdma() { 1_500 } else { 10_000_u64 };
    for number in 0..count {
        let schema = format!(
            "argument item: #0\nresult: #1\n#0 struct {{ m{number}: #1, id: #1, size: #1 }}\n\
             #1 u32\n"
        );
        let said = liar.call(store(), 1000 + number, Some(schema.as_bytes()), &[9, 7, 3]).await;
        // The answer is the field `id`, which is in the second place.
        assert_eq!((said.status, said.bytes.last()), (0, Some(&7)));
    }
    let after = honest.resources().await.expect("the server answers");
    assert!(after.rss_bytes < before.rss_bytes + (64 << 20), "{before:?} {after:?}");
    // The first of them is forgotten, and the last one is known.
    let said = liar.call(store(), 1000, None, &[9, 7, 3]).await;
    said.refused(Code::FailedPrecondition, &["differ"]);
    let said = liar.call(store(), 999 + count, None, &[9, 7, 3]).await;
    assert_eq!((said.status, said.bytes.last()), (0, Some(&7)));
}

async fn messages_that_misfit_their_schema_are_refused(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let honest = world.client().await;
    let mut liar = Liar::to(&world).await;
    let types = [
        "#2 str",
        "#2 sequence #1",
        "#2 map #1 #1",
        "#2 option #2",
        "#2 bytes",
        "#2 char",
        "#2 bool",
        "#2 enum { A: #1, B: #2 }",
        "#2 sequence #2",
        "#2 struct { x: #1, y?: #1 }",
        "#2 u128",
    ];
    let mut hash = 0;
    for kind in types {
        let schema = format!(
            "argument item: #0\nresult: #1\n#0 struct {{ more: #2, id: #1, size: #1 }}\n\
             #1 u32\n{kind}\n"
        );
        // Lengths of 2^64 - 1, a nesting without an end, texts that are none, and no bytes.
        let claim = [&[0xfd][..], &[0xff; 8], &[0; 32]].concat();
        for bytes in [&claim[..], &[1; 1500], &[0xff; 40], &[2, 0xc3, 0x28, 1, 1], &[]] {
            hash += 1;
            let said = liar.call(store(), hash, Some(schema.as_bytes()), bytes).await;
            if said.status == 0 || said.status == Code::FailedPrecondition.number() {
                // The bytes happen to be such a value, or the schema is refused.
                continue;
            }
            said.refused(Code::InvalidArgument, &["Catalog.store"]);
        }
    }
    let fitting = "argument item: #0\nresult: #1\n#0 struct { id: #1, size: #1 }\n#1 u64\n";
    let said = liar.call(store(), 0, Some(fitting.as_bytes()), &[0xfd, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
    said.await.refused(Code::InvalidArgument, &["4294967296 fits no u32"]);
    let said = liar.call(store(), 0, Some(fitting.as_bytes()), &[5, 1, 1]).await;
    said.refused(Code::InvalidArgument, &["Catalog.store"]);
    let said = liar.call(store(), 0, None, &[5, 1]).await;
    assert_eq!((said.status, said.bytes.last()), (0, Some(&5)), "the connection lives");
    assert_eq!(honest.add(20, 22).await, Ok(42));
}

async fn a_schema_is_known_to_its_connection_alone(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let (mut one, mut other) = (Liar::to(&world).await, Liar::to(&world).await);
    let swapped = b"argument item: #0\nresult: #1\n#0 struct { size: #1, id: #1 }\n#1 u32\n";
    let wide = b"argument item: #0\nresult: #1\n#0 struct { id: #1, size: #1 }\n#1 u64\n";
    let answer = |said: Said| (said.status, said.bytes.last().copied());
    assert_eq!(answer(one.call(store(), 7, Some(swapped), &[1, 2]).await), (0, Some(2)));
    // Nobody reads by what another peer has said of this hash.
    let said = other.call(store(), 7, None, &[1, 2]).await;
    said.refused(Code::FailedPrecondition, &["differ"]);
    assert_eq!(answer(other.call(store(), 7, Some(wide), &[1, 2]).await), (0, Some(1)));
    assert_eq!(answer(one.call(store(), 7, None, &[1, 2]).await), (0, Some(2)));
    // A hash with another content from now on: the newest one counts.
    assert_eq!(answer(one.call(store(), 7, Some(wide), &[1, 2]).await), (0, Some(1)));
    assert_eq!(answer(one.call(store(), 7, None, &[1, 2]).await), (0, Some(1)));
}

/// A client, and a server that lies to it.
async fn lied_to(listener: &mut dyn Listener, address: &str) -> (rpc_core::Channel, Liar) {
    let builder = limit::patient_channel().reconnect(None);
    let connect = async { builder.connect(address).await.expect("an honest handshake") };
    let (channel, peer) = tokio::join!(connect, HostilePeer::accept(listener));
    let mut liar = Liar::new(peer);
    liar.say(&hello_with(16, FEATURES, Some((16, 65_536)))).await;
    (channel, liar)
}

fn item() -> Item {
    Item { size: 1, id: 2 }
}

/// Checks the outcome of `Catalog.store`; returns its text.
#[track_caller]
fn check(result: Result<u32, Status>, code: Code) -> String {
    let status = result.expect_err("the server lies");
    assert_eq!(status.code(), code, "{status}");
    assert!(!status.is_retryable() && status.message().len() < 10_000, "{status}");
    status.message().to_owned()
}

const FITTING: &[u8] = b"argument item: #0\nresult: #1\n#0 struct { id: #1, size: #1 }\n#1 u64\n";

#[test]
fn a_server_that_always_refuses_ends_calls() {
    limit::run(async {
        for scheme in [Scheme::Mem, Scheme::ShmName, Scheme::Tcp] {
            let (mut listener, address) = listen(scheme).await;
            let (channel, mut liar) = lied_to(&mut *listener, &address).await;
            let client = CatalogClient::new(channel.clone());
            for _ in 0..3 {
                let call = tokio::spawn(client.store(item()).start());
                for _ in 0..2 {
                    let request = liar.hear(&[2]).await;
                    liar.refuse(&request, FITTING).await;
                }
                check(call.await.expect("no panic"), Code::FailedPrecondition);
            }
            assert!(channel.close_cause().is_none());
        }
    });
}

#[test]
fn hostile_schemas_of_servers_end_calls() {
    limit::run(async {
        let (mut listener, address) = listen(Scheme::Tcp).await;
        let (channel, mut liar) = lied_to(&mut *listener, &address).await;
        let client = CatalogClient::new(channel.clone());
        for (schema, _) in hostile_schemas() {
            let call = client.store(item()).start();
            let request = liar.hear(&[2]).await;
            liar.refuse(&request, &schema).await;
            let result = tokio::select! {
                result = call => result,
                // The client believes that this one can be read.
                request = liar.hear(&[2]) => {
                    liar.refuse(&request, &schema).await;
                    continue;
                }
            };
            check(result, Code::FailedPrecondition);
        }
        assert!(channel.close_cause().is_none());
    });
}

#[test]
fn results_that_misfit_their_schema_are_dataloss() {
    limit::run(async {
        let (mut listener, address) = listen(Scheme::Tcp).await;
        let (channel, mut liar) = lied_to(&mut *listener, &address).await;
        let client = CatalogClient::new(channel.clone());
        let call = tokio::spawn(client.store(item()).start());
        let request = liar.hear(&[2]).await;
        liar.refuse(&request, FITTING).await;
        let mut call = Some(call);
        // 2^32, no bytes, too many bytes, and a length without a value.
        let wide: &[u8] = &[0xfd, 0, 0, 0, 0, 1, 0, 0, 0];
        for (result, words) in [
            (wide, "4294967296 fits no u32"),
            (&[], "Catalog.store"),
            (&[7, 7, 7], "Catalog.store"),
            (&[0xfd, 1], "Catalog.store"),
            (&[0xff; 40], "Catalog.store"),
        ] {
            let call = call.take().unwrap_or_else(|| tokio::spawn(client.store(item()).start()));
            let request = liar.hear(&[2]).await;
            let (slot, generation) = (request.slot, request.generation);
            // Read by the client's schema, with a result.
            let mut head = session_header(3, 0, 0, 0, slot, generation);
            head[3] = 1;
            liar.say(&[&head[..], result].concat()).await;
            let text = check(call.await.expect("no panic"), Code::DataLoss);
            assert!(text.contains(words), "{words} is not in {text}");
        }
        // It says that the types are the same, or nothing, though it has refused them.
        for flags in [0x08, 0] {
            let call = tokio::spawn(client.store(item()).start());
            let request = liar.hear(&[2]).await;
            let head = session_header(3, flags, 0, 0, request.slot, request.generation);
            liar.say(&[&head[..], &[7]].concat()).await;
            let text = check(call.await.expect("no panic"), Code::Internal);
            assert!(text.contains("its answer cannot be read"), "{text}");
        }
        assert!(channel.close_cause().is_none());
    });
}

#[test]
fn a_stream_that_is_never_accepted_stays_unpolled() {
    limit::run(async {
        for scheme in [Scheme::Mem, Scheme::Tcp] {
            let (mut listener, address) = listen(scheme).await;
            let (channel, mut liar) = lied_to(&mut *listener, &address).await;
            let client = FlowClient::new(channel.clone());
            let polled = Arc::new(AtomicUsize::new(0));
            let source = {
                let polled = Arc::clone(&polled);
                futures::stream::repeat_with(move || {
                    polled.fetch_add(1, Ordering::SeqCst);
                    1_u64
                })
            };
            // The hello must have come: until then an end sends nothing that needs it.
            let late = client.observe(1, source).timeout(Duration::from_millis(50)).start();
            let request = liar.hear(&[2]).await;
            let status = late.await.unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert_eq!(polled.load(Ordering::SeqCst), 0, "nothing is sent to who has not accepted");
            // The caller gives up; its proof ends the call.
            let given_up = liar.hear(&[4, 8]).await;
            assert_eq!((given_up.slot, given_up.generation), (request.slot, request.generation));
            assert!(channel.close_cause().is_none());
        }
    });
}
