//! Chains that are kept.

use rustls::pki_types::CertificateDer;

use super::*;

#[test]
fn equal_chains_are_kept_once() {
    let kept = Kept::default();
    let chain = |number: u32| {
        let one = number.to_be_bytes().to_vec();
        [CertificateDer::from(one), CertificateDer::from(vec![7; 10])]
    };
    let first = kept.keep(&chain(1));
    assert!(Arc::ptr_eq(&first, &kept.keep(&chain(1))));
    assert_eq!(first.0, [vec![0, 0, 0, 1], vec![7; 10]]);
    // The same bytes cut elsewhere are another chain.
    let joined = [CertificateDer::from([&[0, 0, 0, 1][..], &[7; 10]].concat())];
    assert_ne!(first, kept.keep(&joined));
    // Those that nobody has any more go.
    for number in 2..1_000 {
        kept.keep(&chain(number));
    }
    assert!(kept.0.lock().len() < 10, "{kept:?}");
    assert!(Arc::ptr_eq(&first, &kept.keep(&chain(1))));
}
