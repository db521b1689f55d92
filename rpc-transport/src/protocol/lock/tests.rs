mod sealing;

use super::fake::{FakeFactory, FakeIdentity};
use super::*;
use crate::protocol::config::LinkConfig;
use crate::protocol::frame::{handshake_header, unlocked_header};
use crate::protocol::handshake::{Features, Offer};

fn offer() -> Offer {
    let config = LinkConfig::default().receive_buffer_bytes(4096);
    Offer::new(&config, Features::ARENA.with(Features::SECURE), 7)
}

fn set_up<'a>(request: &'a [u8], reply: &'a [u8]) -> SetUp<'a> {
    let (scheme, place, protection) = ("tcp", "", Protection::Authenticate);
    SetUp { request, reply, scheme, place, protection, exchange: None }
}

/// Both ends, by role.
struct Ends {
    client: LockedLink,
    server: LockedLink,
}

impl Ends {
    fn new(client: &FakeFactory, server: &FakeFactory) -> Self {
        let (request, reply) = (offer().to_request(), offer().to_reply());
        let set_up = set_up(&request, &reply);
        Self::with(client, server, [&set_up, &set_up])
    }

    fn with(client: &FakeFactory, server: &FakeFactory, set_ups: [&SetUp<'_>; 2]) -> Self {
        let begin = |factory, role, set_up, name| {
            let parameters = Parameters::new(role, set_up);
            LockedLink::new(factory, parameters, name, [&offer(), &offer()]).unwrap()
        };
        Self {
            client: begin(client, Role::Client, set_ups[0], Some("server")),
            server: begin(server, Role::Server, set_ups[1], None),
        }
    }

    /// Moves frames until neither end has any, and finishes both.
    fn run(&mut self) -> Result<(), HandshakeFailure> {
        loop {
            let (client, server) = (&mut self.client, &mut self.server);
            if client.is_finish_due() {
                client.finish()?;
            } else if server.is_finish_due() {
                server.finish()?;
            } else if let Some(frame) = client.poll_transmit() {
                server.on_frame(None, &frame)?;
            } else if let Some(frame) = server.poll_transmit() {
                client.on_frame(None, &frame)?;
            } else {
                return Ok(());
            }
        }
    }
}

fn known() -> [FakeFactory; 2] {
    [FakeFactory::new(1, "client"), FakeFactory::new(1, "server")]
}

fn ends() -> Ends {
    let [client, server] = known();
    Ends::new(&client, &server)
}

/// All frames of a handshake that succeeds, with whether the client sends them.
fn frames() -> Vec<(bool, Vec<u8>)> {
    let mut ends = ends();
    let mut frames = Vec::new();
    loop {
        let (client, server) = (&mut ends.client, &mut ends.server);
        if client.is_finish_due() {
            client.finish().unwrap();
        } else if let Some(frame) = client.poll_transmit() {
            server.on_frame(None, &frame).unwrap();
            frames.push((true, frame));
        } else if let Some(frame) = server.poll_transmit() {
            client.on_frame(None, &frame).unwrap();
            frames.push((false, frame));
        } else {
            return frames;
        }
    }
}

#[test]
fn known_ends_unlock_each_other() {
    let mut ends = ends();
    ends.run().unwrap();
    assert!(ends.client.is_finished() && !ends.client.is_unlocked());
    let unlocked = ends.server.unlock().unwrap();
    ends.client.on_frame(None, &unlocked).unwrap();
    assert!(ends.client.is_unlocked());
}

#[test]
fn finish_gives_the_peers_identity() {
    let mut ends = ends();
    while !ends.client.is_finish_due() {
        if let Some(frame) = ends.client.poll_transmit() {
            ends.server.on_frame(None, &frame).unwrap();
        }
        if let Some(frame) = ends.server.poll_transmit() {
            ends.client.on_frame(None, &frame).unwrap();
        }
    }
    assert!(ends.client.poll_transmit().is_none(), "invariant 4");
    let secured = ends.client.finish().unwrap();
    let identity = secured.proof.downcast_ref::<FakeIdentity>();
    assert_eq!(identity, Some(&FakeIdentity("server".to_owned())));
    assert!(ends.client.poll_transmit().is_some());
}

#[test]
fn strangers_are_refused_by_reason() {
    let [client, server] = known();
    let stranger = FakeFactory::new(2, "client");
    // The client is the first to check a proof.
    let failure = Ends::new(&stranger, &server).run().unwrap_err();
    assert_eq!(failure.reason, FailureReason::BrokenRule);
    let impostor = FakeFactory::new(1, "impostor");
    let failure = Ends::new(&client, &impostor).run().unwrap_err();
    assert_eq!(failure.reason, FailureReason::WrongName);
    let strict = FakeFactory { denied: vec!["client".to_owned()], ..server };
    let failure = Ends::new(&client, &strict).run().unwrap_err();
    assert_eq!(failure.reason, FailureReason::Denied);
}

#[test]
fn a_denied_client_hears_it_sealed() {
    let [client, server] = known();
    let mut ends = Ends::new(&client, &FakeFactory { denied: vec!["client".to_owned()], ..server });
    let failure = ends.run().unwrap_err();
    let refusal = ends.server.refusal(&failure);
    assert_eq!(refusal[0], 8, "not a Close in clear");
    let heard = ends.client.on_frame(None, &refusal).unwrap_err();
    assert_eq!(heard.reason, FailureReason::DeniedByPeer);
    assert!(heard.text.contains("denied by a rule"), "{heard}");
    assert_eq!(ends.server.refusal(&failure)[0], 6, "invariant 5");
}

/// What a server says once it has keys: final only if it is about the client.
#[test]
fn a_sealed_refusal_has_a_code() {
    for (reason, expected, is_final) in [
        (FailureReason::Denied, FailureReason::DeniedByPeer, true),
        (FailureReason::Expired, FailureReason::CertificateRefusedByPeer, true),
        (FailureReason::NoCertificate, FailureReason::CertificateRefusedByPeer, true),
        (FailureReason::BrokenRule, FailureReason::BrokenRule, false),
        (FailureReason::SetUpChanged, FailureReason::BrokenRule, false),
        (FailureReason::Internal, FailureReason::BrokenRule, false),
    ] {
        let [client, server] = known();
        let denied = vec!["client".to_owned()];
        let mut ends = Ends::new(&client, &FakeFactory { denied, ..server });
        let mut failure = ends.run().unwrap_err();
        failure.reason = reason;
        let refusal = ends.server.refusal(&failure);
        let heard = ends.client.on_frame(None, &refusal).unwrap_err();
        assert_eq!((heard.reason, heard.reason.is_final()), (expected, is_final), "{reason:?}");
        assert!(heard.text.contains("denied by a rule"), "{heard}");
    }
}

/// A bit of the client's last flight that somebody has changed says nothing about the client.
#[test]
fn a_changed_last_flight_is_not_final() {
    let mut ends = ends();
    loop {
        let (client, server) = (&mut ends.client, &mut ends.server);
        if client.is_finish_due() {
            client.finish().unwrap();
            let mut last = client.poll_transmit().unwrap();
            *last.last_mut().unwrap() ^= 1;
            let failure = server.on_frame(None, &last).unwrap_err();
            assert_eq!(failure.reason, FailureReason::BrokenRule);
            let refusal = server.refusal(&failure);
            assert_eq!(refusal[0], 8, "sealed");
            let heard = client.on_frame(None, &refusal).unwrap_err();
            assert_eq!(heard.reason, FailureReason::BrokenRule);
            return;
        } else if let Some(frame) = client.poll_transmit() {
            server.on_frame(None, &frame).unwrap();
        } else if let Some(frame) = server.poll_transmit() {
            client.on_frame(None, &frame).unwrap();
        }
    }
}

#[test]
fn a_failure_before_keys_is_told_in_clear() {
    let mut ends = ends();
    let failure = ends.server.on_frame(None, &[1; 9]).unwrap_err();
    let refusal = ends.server.refusal(&failure);
    assert_eq!(refusal[0], 6);
    let heard = ends.client.on_frame(None, &refusal).unwrap_err();
    assert_eq!(heard.reason, FailureReason::RefusedByPeer);
    assert!(heard.text.contains("unverified: Data frame on a locked connection"), "{heard}");
    assert!(!heard.reason.is_final());
}

#[test]
fn a_changed_set_up_fails_at_both_ends() {
    let [client, server] = known();
    let (request, reply) = (offer().to_request(), offer().to_reply());
    let exchange = Exchange { question: vec![1], answer: vec![2, 3] };
    let other = Exchange { question: vec![1], answer: vec![2, 4] };
    let base = set_up(&request, &reply);
    let auto = SetUp { exchange: Some(&exchange), ..base };
    let check = |ours: &SetUp<'_>, theirs: &SetUp<'_>| {
        let run = Ends::with(&client, &server, [ours, theirs]).run();
        run.map_err(|failure| failure.reason)
    };
    for at in 0..request.len() {
        let mut changed = request;
        changed[at] ^= 1;
        // The length decides where the hashed bytes end.
        let changed = SetUp { request: &changed, ..base };
        assert_eq!(check(&base, &changed), Err(FailureReason::SetUpChanged), "request {at}");
        let mut changed = reply;
        changed[at] ^= 0x80;
        let changed = SetUp { reply: &changed, ..base };
        assert_eq!(check(&changed, &base), Err(FailureReason::SetUpChanged), "reply {at}");
    }
    for changed in [
        SetUp { scheme: "shm", ..auto },
        SetUp { place: "here", ..auto },
        SetUp { exchange: Some(&other), ..auto },
    ] {
        assert_eq!(check(&auto, &changed), Err(FailureReason::SetUpChanged), "{changed:?}");
    }
    assert_eq!(check(&auto, &base), Err(FailureReason::SetUpChanged), "no answer was given");
    assert_eq!(check(&auto, &auto), Ok(()));
    assert_eq!(check(&base, &auto), Ok(()), "a client may know the way");
}

#[test]
fn padding_of_private_data_changes_nothing() {
    let (request, reply) = (offer().to_request(), offer().to_reply());
    let padded = [&request[..], &[0; 141]].concat();
    let own = Parameters::new(Role::Client, &set_up(&request, &reply));
    assert_eq!(own, Parameters::new(Role::Client, &set_up(&padded, &reply)));
}

/// `docs/wire-format.md`, byte by byte.
#[test]
fn golden_vectors_of_the_lock() {
    assert_eq!(handshake_header(1, 0x0203), [7, 1, 3, 2, 0, 0, 0, 0]);
    assert_eq!(unlocked_header(), [8, 0, 0, 0, 0, 0, 0, 0]);
    let bytes = Parameters::new(Role::Server, &set_up(&[1, 2], &[3])).to_bytes();
    assert_eq!(bytes[..8], *b"rpcr\x01\x01\0\0");
    assert_eq!(bytes[8..16], GOLDEN_SET_UP);
    assert_eq!(bytes[40..], [0; 20]);
    let exchange = Exchange { question: vec![1], answer: vec![2] };
    let auto = SetUp { exchange: Some(&exchange), ..set_up(&[1, 2], &[3]) };
    let bytes = Parameters::new(Role::Client, &auto).to_bytes();
    assert_eq!(bytes[6], 1);
    assert_eq!(bytes[40..48], GOLDEN_EXCHANGE);
}

/// `sha256` of `11 00 "rpc-rdma/1 set-up" 02 00 01 02 01 00 03 03 00 "tcp" 00 00 01 00 01`.
const GOLDEN_SET_UP: [u8; 8] = [0x71, 0x6e, 0xca, 0x3d, 0xe2, 0x0c, 0x72, 0x5f];
/// `sha256` of `0f 00 "rpc-rdma/1 auto" 01 00 01 01 00 02`.
const GOLDEN_EXCHANGE: [u8; 8] = [0x94, 0x47, 0x34, 0x24, 0x53, 0x2b, 0x48, 0xb4];

#[test]
fn each_broken_rule_ends_the_handshake() {
    let frames = frames();
    let hello = &frames[0].1;
    let sealed = frames.iter().find(|(from_client, frame)| !from_client && frame[1] == 1);
    let sealed = &sealed.unwrap().1;
    let with = |at: usize, value, frame: &[u8]| {
        let mut frame = frame.to_vec();
        frame[at] = value;
        frame
    };
    for (frame, rule) in [
        (hello[..7].to_vec(), "shorter than its header"),
        (hello[..8].to_vec(), "without bytes"),
        (with(0, 0, hello), "unknown kind 0"),
        (with(0, 1, hello), "Data frame"),
        (with(0, 2, hello), "Ack frame"),
        (with(0, 8, hello), "Unlocked frame"),
        (with(0, 6, hello), "malformed Close"),
        (with(1, 1, hello), "level 1, not 0"),
        (with(1, 9, hello), "level 9, not 0"),
        (with(2, 1, hello), "frame 1 where 0 is due"),
        (with(4, 1, hello), "reserved"),
        (with(7, 1, hello), "reserved"),
        (with(9, 1, hello), "longer than 64 KiB"),
        ([&hello[..], &[1]].concat(), "after the last message"),
        ([&hello[..], &hello[8..]].concat(), "after the last message"),
    ] {
        let failure = ends().server.on_frame(None, &frame).unwrap_err();
        assert_eq!(failure.reason, FailureReason::BrokenRule);
        assert!(failure.told.contains(rule), "{rule}: {failure}");
    }
    let failure = ends().server.on_frame(Some(1), hello).unwrap_err();
    assert!(failure.told.contains("immediate"), "{failure}");
    // Once the server has keys, a repeated frame and one in clear are of the wrong level.
    let mut ends = ends();
    ends.server.on_frame(None, hello).unwrap();
    let failure = ends.server.on_frame(None, hello).unwrap_err();
    assert!(failure.told.contains("level 0, not 1"), "{failure}");
    // A sealed frame before its keys.
    let failure = ends.client.on_frame(None, sealed).unwrap_err();
    assert!(failure.told.contains("level 1, not 0"), "{failure}");
}

#[test]
fn nothing_is_taken_after_the_last_message() {
    let mut ends = ends();
    ends.run().unwrap();
    let frame = [&handshake_header(1, 1)[..], &[0; 20]].concat();
    for end in [&mut ends.client, &mut ends.server] {
        let failure = end.on_frame(None, &frame).unwrap_err();
        assert!(failure.told.contains("Handshake frame on a locked"), "{failure}");
    }
}

#[test]
fn frames_and_bytes_are_bounded_in_each_direction() {
    let mut ends = ends();
    for number in 0..MAX_FRAMES {
        // The beginning of a message of 64 KiB.
        let frame = [&handshake_header(0, number)[..], &[1, 0, 0xff, 0]].concat();
        ends.server.on_frame(None, &frame).unwrap();
    }
    let frame = [&handshake_header(0, MAX_FRAMES)[..], &[0]].concat();
    let failure = ends.server.on_frame(None, &frame).unwrap_err();
    assert!(failure.told.contains("too many handshake frames"), "{failure}");
    let mut ends = self::ends();
    let long = |number, len| {
        [&handshake_header(0, number)[..], &vec![1, 0, 0xff, 0][..]]
            .concat()
            .into_iter()
            .chain(std::iter::repeat_n(0, len))
            .collect::<Vec<u8>>()
    };
    ends.server.on_frame(None, &long(0, 40 << 10)).unwrap();
    let failure = ends.server.on_frame(None, &long(1, 40 << 10)).unwrap_err();
    assert!(failure.told.contains("too many handshake bytes"), "{failure}");
}

#[test]
fn a_long_proof_is_cut_into_frames() {
    let [client, server] = known();
    let long = |factory: FakeFactory, padding| FakeFactory { padding, ..factory };
    let mut ends = Ends::new(&long(client.clone(), 20_000), &long(server.clone(), 20_000));
    ends.run().unwrap();
    assert!(ends.client.is_finished() && ends.server.is_finished());
    // 8 frames of 4 KiB hold less.
    let failure = Ends::new(&client, &long(server, 40_000)).run().unwrap_err();
    assert_eq!(failure.reason, FailureReason::Configuration);
    assert!(failure.text.contains("shorter chain"), "{failure}");
}

#[test]
fn a_changed_byte_never_unlocks() {
    let count = frames().len();
    for which in 0..=count {
        let mut at = 0;
        loop {
            let (mut ends, mut index, mut is_changed) = (ends(), 0, false);
            let mut change = |mut frame: Vec<u8>| {
                if index == which && at < frame.len() {
                    frame[at] ^= 0x10;
                    is_changed = true;
                }
                index += 1;
                frame
            };
            let result = (|| {
                loop {
                    let (client, server) = (&mut ends.client, &mut ends.server);
                    if client.is_finish_due() {
                        client.finish()?;
                    } else if server.is_finish_due() {
                        server.finish()?;
                        client.on_frame(None, &change(server.unlock()?))?;
                        return Ok(());
                    } else if let Some(frame) = client.poll_transmit() {
                        server.on_frame(None, &change(frame))?;
                    } else if let Some(frame) = server.poll_transmit() {
                        client.on_frame(None, &change(frame))?;
                    } else {
                        // A length that was changed: the rest never comes.
                        return Err(HandshakeFailure::new(FailureReason::Internal, "", ""));
                    }
                }
            })();
            if !is_changed {
                break;
            }
            assert!(result.is_err() && !ends.client.is_unlocked(), "frame {which}, byte {at}");
            at += 1;
        }
    }
}
