use proptest::prelude::*;

use super::*;

fn offer() -> Offer {
    Offer {
        versions: Versions { min: 1, max: 2 },
        features: Features::ACK_IMMEDIATE.with(Features::ARENA),
        window: Window { data: 0x0040, ack: 2 },
        receive_buffer_bytes: 8192,
        max_message_bytes: 64 << 20,
        assembly_bytes: 0x0012_3456_789a,
        nonce: 0x1112_1314_1516_1718,
        arena: Some(ArenaDescriptor {
            address: 0x2122_2324_2526_2728,
            rkey: 0x3132_3334,
            log2_chunk: 16,
            chunks: 64,
        }),
    }
}

/// `docs/wire-format.md`, byte by byte.
fn golden_request() -> Vec<u8> {
    [
        &b"RPCr"[..],
        &[55, 1, 2, 1],
        &[3, 0],
        &[64, 0],
        &[2, 0],
        &[64, 0],
        &[0, 0x20, 0, 0],
        &[0x34, 0x33, 0x32, 0x31],
        &[0, 0, 0, 4, 0, 0, 0, 0],
        &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11],
        &[0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21],
        &[16],
        &[0x9a, 0x78, 0x56, 0x34, 0x12, 0],
    ]
    .concat()
}

fn golden_reject() -> Vec<u8> {
    [&b"RPCr"[..], &[15, 3, 2, 2], &[3, 0], &[4], b"full"].concat()
}

fn padded(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(len, 0);
    bytes
}

#[test]
fn golden_vectors_are_written_and_read() {
    assert_eq!(offer().to_request().to_vec(), padded(&golden_request(), OFFER_BYTES));
    let mut reply = golden_request();
    reply[5] = 2;
    assert_eq!(offer().to_reply().to_vec(), padded(&reply, OFFER_BYTES));
    let request = padded(&golden_request(), REQ_PRIVATE_DATA_BYTES);
    assert_eq!(Offer::from_request(&request), Ok(offer()));
    assert_eq!(Offer::from_reply(&padded(&reply, REP_PRIVATE_DATA_BYTES)), Ok(offer()));
    let reject = Reject::new(RejectCode::Busy, "full");
    assert_eq!(reject.to_bytes(), golden_reject());
    assert_eq!(Reject::from_bytes(&padded(&golden_reject(), REJ_PRIVATE_DATA_BYTES)), Ok(reject));
}

#[test]
fn every_truncation_is_refused() {
    let (request, reject) = (golden_request(), golden_reject());
    for len in 0..request.len() {
        let error = Offer::from_request(&request[..len]).unwrap_err();
        assert!(matches!(error, HandshakeError::Truncated { .. }), "{len}: {error}");
    }
    for len in 0..reject.len() {
        let error = Reject::from_bytes(&reject[..len]).unwrap_err();
        assert!(matches!(error, HandshakeError::Truncated { .. }), "{len}: {error}");
    }
}

#[test]
fn corrupted_offer_parses_or_gives_named_error() {
    let request = padded(&golden_request(), REQ_PRIVATE_DATA_BYTES);
    let reject = padded(&golden_reject(), REJ_PRIVATE_DATA_BYTES);
    for (at, value) in (0..REJ_PRIVATE_DATA_BYTES).flat_map(|at| (0..=255).map(move |v| (at, v))) {
        let mut reject = reject.clone();
        reject[at] = value;
        if let Err(error) = Reject::from_bytes(&reject) {
            assert!(!error.to_string().is_empty());
        }
        if at < request.len() {
            let mut request = request.clone();
            request[at] = value;
            let read = Offer::from_request(&request);
            let verdict = read.map(|peer| offer().agree_as_server(&peer).map(|_| ()));
            if let Err(error) = verdict {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn each_broken_rule_has_its_error() {
    use HandshakeError as E;
    let with = |at: usize, value| {
        let mut bytes = padded(&golden_request(), REQ_PRIVATE_DATA_BYTES);
        bytes[at] = value;
        bytes
    };
    for (bytes, error) in [
        (with(0, b'X'), E::BadMagic),
        (vec![b'X'], E::BadMagic),
        (vec![], E::Truncated { len: 0, need: 55 }),
        (with(4, 54), E::BadLength { named: 54, need: 55 }),
        (with(4, 57), E::Truncated { len: 56, need: 57 }),
        (with(5, 2), E::WrongKind { found: 2, expected: 1 }),
        (with(6, 0), E::BadVersions(Versions { min: 1, max: 0 })),
        (with(7, 0), E::BadVersions(Versions { min: 0, max: 2 })),
        (with(55, 1), E::TrailingBytes(55)),
    ] {
        assert_eq!(Offer::from_request(&bytes), Err(error));
    }
    let reject = |at: usize, value| {
        let mut bytes = golden_reject();
        bytes[at] = value;
        Reject::from_bytes(&bytes).unwrap_err()
    };
    assert_eq!(reject(10, 5), E::BadText);
    assert_eq!(reject(11, 0xff), E::BadText);
    assert_eq!(reject(4, 10), E::BadLength { named: 10, need: 11 });
}

#[test]
fn fields_of_a_later_version_are_skipped() {
    let mut bytes = padded(&golden_request(), REP_PRIVATE_DATA_BYTES);
    bytes[5] = 2;
    bytes[4] = 59;
    bytes[55..59].fill(0xf0);
    assert_eq!(Offer::from_reply(&bytes), Ok(offer()));
}

#[test]
fn a_bad_value_is_refused_by_its_name() {
    type Change = fn(&mut Offer);
    let cases: [(Change, &str); 9] = [
        (|offer| offer.window.data = 0, "data_credits is 0, allowed is 1 to 4095"),
        (|offer| offer.window.data = 4096, "data_credits is 4096"),
        (|offer| offer.window.ack = 1, "ack_credits is 1, allowed is 2 to 4095"),
        (|offer| offer.receive_buffer_bytes = 255, "receive_buffer_bytes is 255"),
        (|offer| offer.receive_buffer_bytes = u32::MAX, "receive_buffer_bytes is 4294967295"),
        (|offer| offer.max_message_bytes = 8191, "max_message_bytes is 8191"),
        (|offer| offer.max_message_bytes = u64::MAX, "max_message_bytes is"),
        (|offer| offer.arena.as_mut().unwrap().log2_chunk = 63, "log2"),
        (|offer| offer.arena.as_mut().unwrap().chunks = 4097, "arena chunks is 4097"),
    ];
    for (change, part) in cases {
        let mut bad = offer();
        change(&mut bad);
        let read = Offer::from_request(&bad.to_request()).unwrap();
        let reject = offer().agree_as_server(&read).unwrap_err();
        assert_eq!(reject.code, RejectCode::BadConfig);
        assert!(reject.text.contains(part), "{reject}");
    }
}

fn with_versions(min: u8, max: u8) -> Offer {
    Offer { versions: Versions { min, max }, ..offer() }
}

#[test]
fn version_is_the_highest_common_one() {
    for ((min, max), (peer_min, peer_max), version) in [
        ((1, 1), (1, 1), Some(1)),
        ((1, 3), (1, 2), Some(2)),
        ((1, 3), (3, 9), Some(3)),
        ((2, 3), (1, 1), None),
        ((1, 1), (2, 3), None),
        ((4, 5), (1, 3), None),
    ] {
        let (server, client) = (with_versions(min, max), with_versions(peer_min, peer_max));
        let agreed = server.agree_as_server(&client);
        assert_eq!(agreed.as_ref().ok().map(|agreed| agreed.version), version);
        assert_eq!(client.agree_as_client(&server).ok().map(|agreed| agreed.version), version);
    }
}

#[test]
fn a_version_mismatch_reaches_the_client_in_words() {
    let reject = with_versions(2, 3).agree_as_server(&with_versions(1, 1)).unwrap_err();
    let read = Reject::from_bytes(&padded(&reject.to_bytes(), REJ_PRIVATE_DATA_BYTES)).unwrap();
    assert_eq!(read.code, RejectCode::VersionMismatch);
    assert_eq!(
        read.text,
        "the server speaks versions 2 to 3, this client 1 to 1; update the older one"
    );
    assert_eq!(with_versions(1, 1).agree_as_client(&with_versions(2, 3)), Err(reject));
}

#[test]
fn features_are_intersected() {
    let other = Offer { features: Features::ARENA.with(Features::CRC32C), ..offer() };
    let agreed = offer().agree_as_server(&other).unwrap();
    assert_eq!(agreed.features, Features::ARENA);
    assert!(!agreed.features.contains(Features::ACK_IMMEDIATE));
    // An unknown feature bit of a later version is ignored.
    let later = Offer { features: Features(0x8000), ..offer() };
    assert_eq!(offer().agree_as_server(&later).unwrap().features, Features::NONE);
}

#[test]
fn longest_reject_fits_and_keeps_whole_characters() {
    let reject = Reject::new(RejectCode::Application, "ß".repeat(80));
    let bytes = reject.to_bytes();
    assert!(bytes.len() <= REJ_PRIVATE_DATA_BYTES);
    assert_eq!(Reject::from_bytes(&bytes).unwrap().text, "ß".repeat(50));
    let longest = with_versions(254, 255).agree_as_server(&with_versions(252, 253)).unwrap_err();
    assert!(longest.text.len() <= REJECT_TEXT_MAX_BYTES);
}

#[test]
fn a_reject_is_shown_as_printable_text() {
    let reject = Reject::new(RejectCode::Application, "no\n\u{1b}[2J\u{202e}");
    let read = Reject::from_bytes(&reject.to_bytes()).unwrap();
    assert_eq!(read.text, reject.text);
    let shown = r"refused by the application: no\n\u{1b}[2J\u{202e}";
    assert_eq!(read.to_string(), shown);
    assert_eq!(Reject::new(RejectCode::Busy, "").to_string(), "busy");
}

#[test]
fn every_reject_code_survives_the_wire() {
    for code in 0..=u16::MAX {
        assert_eq!(RejectCode::from_wire(code).to_wire(), code);
    }
    let shown = Reject::new(RejectCode::Busy, "64 of 64 connections").to_string();
    assert_eq!(shown, "busy: 64 of 64 connections");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _refused = Offer::from_request(&bytes).is_err();
        for (at, byte) in bytes.iter_mut().zip(MAGIC) {
            *at = byte;
        }
        if let Ok(peer) = Offer::from_request(&bytes) {
            let _refused = offer().agree_as_server(&peer).is_err();
        }
        let _refused = Offer::from_reply(&bytes).is_err();
        let _refused = Reject::from_bytes(&bytes).is_err();
    }

    #[test]
    fn every_offer_survives_the_wire(
        data in any::<u16>(),
        ack in any::<u16>(),
        buffer in any::<u32>(),
        max in any::<u64>(),
        nonce in any::<u64>(),
        features in any::<u16>(),
    ) {
        let sent = Offer {
            window: Window { data, ack },
            receive_buffer_bytes: buffer,
            max_message_bytes: max,
            nonce,
            features: Features(features),
            ..offer()
        };
        prop_assert_eq!(Offer::from_reply(&sent.to_reply()), Ok(sent));
    }
}

fn secure_offer() -> Offer {
    Offer { features: Features::ARENA.with(Features::SECURE), arena: None, ..offer() }
}

#[test]
fn a_secure_server_refuses_plain_offers() {
    let plain = Offer { features: Features::ARENA, ..secure_offer() };
    let reject = secure_offer().agree_as_server(&plain).unwrap_err();
    assert_eq!(reject.code, RejectCode::Application);
    assert!(reject.text.contains("requires TLS"), "{reject}");
    assert!(reject.text.len() <= REJECT_TEXT_MAX_BYTES);
    let agreed = secure_offer().agree_as_server(&secure_offer()).unwrap();
    assert!(agreed.features.contains(Features::SECURE));
    // A server without TLS answers without the bit, and the client then gives up.
    let agreed = secure_offer().agree_as_client(&plain).unwrap();
    assert!(!agreed.features.contains(Features::SECURE));
}

#[test]
fn sizes_of_secure_offers_are_checked() {
    let with = |change: fn(&mut Offer)| {
        let mut peer = secure_offer();
        change(&mut peer);
        let reject = secure_offer().agree_as_server(&peer).unwrap_err();
        assert_eq!(secure_offer().agree_as_client(&peer), Err(reject.clone()));
        assert_eq!(reject.code, RejectCode::BadConfig);
        assert!(reject.text.len() <= REJECT_TEXT_MAX_BYTES, "{reject}");
        reject.text
    };
    let text = with(|peer| peer.window.data = 7);
    assert_eq!(text, "offered data_credits with TLS is 7, allowed is 8 to 4095");
    let text = with(|peer| peer.receive_buffer_bytes = 4095);
    assert_eq!(text, "offered receive_buffer_bytes with TLS is 4095, allowed is 4096 to 65536");
    let text = with(|peer| peer.arena = offer().arena);
    assert_eq!(text, "offered arena at set-up with TLS is 1, allowed is 0");
}
