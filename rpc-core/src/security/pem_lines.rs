//! The lines at which the blocks of a PEM file begin and end.
//!
//! Readers of PEM skip what they do not understand, in silence: a list of revoked certificates that
//! follows another one without a line feed, say. Decodes nothing; rustls does that.
//!
//! Invariants:
//! 1. Each line that looks as if a block began or ended is understood, and each block has a kind
//!    that its reader allows.
//! 2. No error holds a line of the file: it could be one of a key.

/// The kinds of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    Certificate,
    PrivateKey,
    PublicKey,
    RevocationList,
    /// Of the curve of a key, which has them as well. Read by nobody.
    Parameters,
}

impl Block {
    /// A file with the certificate of this end, or with its key, or with both.
    pub(super) const OF_OWN: [Self; 3] = [Self::Certificate, Self::PrivateKey, Self::Parameters];

    fn of(label: &str) -> Option<Self> {
        match label {
            "CERTIFICATE" => Some(Self::Certificate),
            "PRIVATE KEY" | "RSA PRIVATE KEY" | "EC PRIVATE KEY" => Some(Self::PrivateKey),
            "PUBLIC KEY" => Some(Self::PublicKey),
            "X509 CRL" => Some(Self::RevocationList),
            "EC PARAMETERS" => Some(Self::Parameters),
            _ => None,
        }
    }
}

/// Longest name of a block that an error quotes.
const MAX_LABEL: usize = 40;
const ENCRYPTED: &str = "the key in it is encrypted with a password: decrypt it, for example by \
                         `openssl pkey -in FILE -out key.pem`";

/// The number of blocks, without parameters.
///
/// # Errors
/// What is wrong with a line.
pub(super) fn check_lines(pem: &[u8], allowed: &[Block]) -> Result<usize, String> {
    let (mut open, mut count, mut number) = (None, 0, 1);
    for line in pem.split_inclusive(|byte| matches!(byte, b'\n' | b'\r')) {
        let here = number;
        number += usize::from(line.ends_with(b"\n"));
        let line = line.trim_ascii_end();
        if open.is_some() && line.starts_with(b"Proc-Type:") && line.ends_with(b"ENCRYPTED") {
            return Err(ENCRYPTED.to_owned());
        }
        if !is_boundary(line) {
            continue;
        }
        let begins = label(line, b"-----BEGIN ");
        match (open, begins, label(line, b"-----END ")) {
            (None, Some(label), _) => {
                let block = kind(label, allowed)?;
                count += usize::from(block != Block::Parameters);
                open = Some(label);
            }
            (Some(begun), _, Some(label)) if begun == label => open = None,
            (Some(begun), Some(_), _) => {
                return Err(format!("line {here}: a block begins before {begun} has ended"));
            }
            _ => {
                return Err(format!(
                    "line {here}: this BEGIN or END of a block cannot be understood: it must be \
                     alone on its line, as in -----BEGIN CERTIFICATE-----, and fit the one before"
                ));
            }
        }
    }
    match open {
        None => Ok(count),
        Some(label) => Err(format!("the block {label} has no end")),
    }
}

/// Whether a line looks as if a block began or ended, also one that is badly written.
fn is_boundary(line: &[u8]) -> bool {
    let has_dashes = line.windows(4).any(|four| four == b"----");
    let text: Vec<_> =
        line.iter().filter(|byte| **byte != b' ').map(u8::to_ascii_uppercase).collect();
    let has = |what: &[u8]| text.windows(what.len()).any(|part| part == what);
    has_dashes && (has(b"-BEGIN") || has(b"-END"))
}

fn label<'a>(line: &'a [u8], before: &[u8]) -> Option<&'a str> {
    let label = line.strip_prefix(before)?.strip_suffix(b"-----")?;
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b' ' | b'.' | b'#');
    let is_label = !label.is_empty() && label.len() <= MAX_LABEL && label.iter().all(is_plain);
    std::str::from_utf8(label).ok().filter(|_| is_label)
}

fn kind(label: &str, allowed: &[Block]) -> Result<Block, String> {
    match Block::of(label) {
        Some(block) if allowed.contains(&block) => Ok(block),
        _ if label == "ENCRYPTED PRIVATE KEY" && allowed.contains(&Block::PrivateKey) => {
            Err(ENCRYPTED.to_owned())
        }
        _ => Err(format!("a block {label} is in it, which does not belong in this file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &str = "AAAA\n";

    fn block(label: &str) -> String {
        format!("-----BEGIN {label}-----\n{BODY}-----END {label}-----\n")
    }

    #[test]
    fn comments_and_all_line_ends_are_fine() {
        let (one, key) = (block("CERTIFICATE"), block("EC PRIVATE KEY"));
        let text = "Certificate:\n    Data: 3 (0x3) -- begin\n# the end\n";
        for pem in [
            String::new(),
            one.clone(),
            format!("{text}{one}\n{text}{one}{}{key}", block("EC PARAMETERS")),
            one.replace('\n', "\r\n"),
            one.replace("-----\n", "-----  \n"),
            one.trim_end().to_owned(),
        ] {
            let found = check_lines(pem.as_bytes(), &Block::OF_OWN);
            assert_eq!(
                found,
                Ok(pem.matches("AAAA").count() - pem.matches("BEGIN EC PAR").count())
            );
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let (one, list) = (block("CERTIFICATE"), block("X509 CRL"));
        for (pem, says) in [
            (one.trim_end().to_owned() + &one, "line 3: this BEGIN or END"),
            (format!("{one} {one}"), "line 4: this BEGIN or END"),
            (format!("\u{feff}{one}"), "line 1: this BEGIN or END"),
            (one.replace("-----BEGIN", "----BEGIN"), "line 1: this BEGIN or END"),
            (one.replace("-----BEGIN ", "----- BEGIN "), "line 1: this BEGIN or END"),
            (one.replace("BEGIN", "begin"), "line 1: this BEGIN or END"),
            (one.replace("TE-----\n", "TE----\n"), "line 1: this BEGIN or END"),
            (one.replace("END CERT", "END CRET"), "line 3: this BEGIN or END"),
            (one.replace("AAAA\n", "AAAA"), "line 2: this BEGIN or END"),
            (
                one.replace("-----END CERTIFICATE-----\n", "") + &one,
                "line 3: a block begins before",
            ),
            (one.replace("-----BEGIN CERTIFICATE-----\n", ""), "line 2: this BEGIN or END"),
            (one.replace("-----END CERTIFICATE-----\n", ""), "CERTIFICATE has no end"),
            (block("TRUSTED CERTIFICATE"), "a block TRUSTED CERTIFICATE is in it"),
            (list, "a block X509 CRL is in it"),
            (block("ENCRYPTED PRIVATE KEY"), "encrypted with a password"),
            (
                block("RSA PRIVATE KEY").replace("AAAA", "Proc-Type: 4,ENCRYPTED\nAAAA"),
                "encrypted with a password",
            ),
        ] {
            let error = check_lines(pem.as_bytes(), &Block::OF_OWN).unwrap_err();
            assert!(error.contains(says) && !error.contains("AAAA"), "{error}: {pem}");
        }
    }
}
