//! Offers and rejects: an accepted message can be encoded to the same bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::handshake::{Features, Offer, Reject};
use rpc_transport::text::is_printable;

fuzz_target!(|data: &[u8]| {
    let own = Offer::new(&LinkConfig::default(), Features::ARENA.with(Features::REPLY_SLOTS), 7);
    for (read, is_request) in [(Offer::from_request(data), true), (Offer::from_reply(data), false)]
    {
        let Ok(peer) = read else { continue };
        let again = match is_request {
            true => Offer::from_request(&peer.to_request()),
            false => Offer::from_reply(&peer.to_reply()),
        };
        assert_eq!(again, Ok(peer));
        let agreed =
            if is_request { own.agree_as_server(&peer) } else { own.agree_as_client(&peer) };
        match agreed {
            Ok(agreed) => {
                assert!(agreed.remote.validate().is_ok());
                assert!(own.features.contains(agreed.features));
                assert!(agreed.features == agreed.features.intersection(peer.features));
            }
            Err(reject) => {
                let said = Reject::from_bytes(&reject.to_bytes()).expect("this side's own words");
                assert_eq!(said.code, reject.code);
            }
        }
    }
    if let Ok(reject) = Reject::from_bytes(data) {
        assert!(is_printable(&reject.to_string()), "{reject:?}");
        assert_eq!(Reject::from_bytes(&reject.to_bytes()), Ok(reject));
    }
});
