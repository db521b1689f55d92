//! The certificate of a peer, and one around names that were made up: it is refused or read. An
//! identity that peers may have keeps the rules of identities, and no text forges a line of a log.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rpc_core::identity::SpiffeId;
use rpc_core::security::inspect_der;
use rpc_transport::text::is_printable;

const SEQUENCE: u8 = 0x30;
/// 2.5.29.17 and 2.5.4.3, as elements.
const SUBJECT_ALT_NAME: &[u8] = &[0x06, 3, 0x55, 0x1d, 0x11];
const COMMON_NAME: &[u8] = &[0x06, 3, 0x55, 0x04, 0x03];

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // In random bytes hardly any lengths fit those around them.
    let (common_name, names) = bytes.split_at(bytes.iter().position(|b| *b == b'\n').unwrap_or(0));
    let names: Vec<_> = names.split(|byte| *byte == b'\n').filter_map(name).flatten().collect();
    check(&certificate(common_name, &names));
});

fn check(der: &[u8]) {
    let (said, refusal) = inspect_der(der);
    if let Some(text) = &refusal {
        assert!(is_printable(text), "{text:?}");
    }
    let Some(certificate) = said else {
        assert!(refusal.is_some(), "it is no certificate, and would be accepted");
        return;
    };
    assert!(is_printable(&certificate.to_string()), "{certificate}");
    if refusal.is_some() {
        return;
    }
    assert!(!certificate.is_authority(), "{certificate}");
    if let Some(id) = certificate.spiffe() {
        assert!(!id.path().is_empty(), "{id} is a whole trust domain");
        assert_eq!(id.to_string().parse::<SpiffeId>().as_ref(), Ok(id), "an id has one text");
    }
}

/// A name: the kind and the text.
fn name(line: &[u8]) -> Option<Vec<u8>> {
    let (kind, text) = line.split_first()?;
    Some(element(0x80 | kind & 0x0f, &[text]))
}

fn certificate(common_name: &[u8], names: &[u8]) -> Vec<u8> {
    let pair = element(SEQUENCE, &[COMMON_NAME, &element(0x0c, &[common_name])]);
    let subject = element(SEQUENCE, &[&element(0x31, &[&pair])]);
    let time = element(0x17, &[b"260101000000Z"]);
    let validity = element(SEQUENCE, &[&time, &time]);
    let names = element(0x04, &[&element(SEQUENCE, &[names])]);
    let extension = element(SEQUENCE, &[SUBJECT_ALT_NAME, &names]);
    let extensions = element(0xa3, &[&element(SEQUENCE, &[&extension])]);
    let empty = element(SEQUENCE, &[]);
    let number = element(0x02, &[&[1]]);
    let inner = [&number[..], &empty, &empty, &validity, &subject, &empty, &extensions];
    element(SEQUENCE, &[&element(SEQUENCE, &inner)])
}

/// An element of DER around others.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let len = u32::try_from(content.len()).expect("inputs are short").to_be_bytes();
    [&[tag, 0x84][..], &len, &content].concat()
}
