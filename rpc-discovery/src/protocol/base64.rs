//! Base64 (RFC 4648, section 4), in which etcd's gateway writes keys and values.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of some bytes.
pub(crate) fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let six = (bits >> (18 - 6 * place)) & 63;
            match place <= three.len() {
                true => text.push(char::from(ALPHABET[six as usize])),
                false => text.push('='),
            }
        }
    }
    text
}

/// The bytes of a text; `None`: it is not base64.
pub(crate) fn decoded(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    let is_padded = text.len().is_multiple_of(4) && text.len() - digits.len() <= 2;
    if !is_padded || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for four in digits.chunks(4) {
        let mut bits = 0_u32;
        for digit in four {
            bits = bits << 6 | value(*digit)?;
        }
        bits <<= 6 * (4 - four.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc_hold() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encoded(bytes.as_bytes()), text);
            assert_eq!(decoded(text).as_deref(), Some(bytes.as_bytes()));
        }
        for text in ["Zg=", "Zg", "Z===", "Zm9v=", "====", "Zm 9", "Zm-_", "Zg==Zg=="] {
            assert_eq!(decoded(text), None, "{text}");
        }
    }

    #[test]
    fn any_bytes_come_back() {
        test_kit::for_seeds(1, 500, |rng| {
            let len = rng.index(40);
            let bytes = rng.bytes(len);
            assert_eq!(decoded(&encoded(&bytes)), Some(bytes));
        });
    }
}
