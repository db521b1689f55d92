//! The few fields of an X.509 certificate that identities are made of.
//!
//! Reads DER (RFC 5280) without trusting it: every length is checked, nothing recurses and nothing
//! is allocated by a length alone. Signatures, chains and times are verified by rustls, before or
//! after this.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const SAN_DNS: u8 = 0x82;
const SAN_URI: u8 = 0x86;
const SAN_ADDRESS: u8 = 0x87;

/// 2.5.29.15, .17, .19, .37 and 2.5.4.3.
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// 1.3.6.1.5.5.7.3.1 and .2.
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

/// Bit 0 of a key usage, from the left.
const DIGITAL_SIGNATURE: u8 = 0x80;
/// Bits 5 (keyCertSign) and 6 (cRLSign) of a key usage, from the left.
const SIGNS_OTHERS: u8 = 0x04 | 0x02;

/// Names of one certificate, at most.
pub(super) const MAX_NAMES: usize = 256;

/// What every certificate begins with.
pub(super) struct Head<'a> {
    /// The whole name, as DER.
    pub(super) issuer: &'a [u8],
    pub(super) subject: &'a [u8],
    /// The whole `SubjectPublicKeyInfo`.
    pub(super) key: &'a [u8],
    pub(super) not_before: Option<SystemTime>,
    pub(super) not_after: Option<SystemTime>,
    rest: Reader<'a>,
}

/// What a key may do, by an extension that certificates may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum KeyUsage {
    /// It is not said, so everything.
    #[default]
    Unlimited,
    Limited {
        digital_signature: bool,
    },
}

/// What a certificate is for, by an extension that certificates may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Purpose {
    /// It is not said, so everything.
    #[default]
    Unlimited,
    Limited {
        server: bool,
        client: bool,
    },
}

/// The fields.
#[derive(Debug, Default)]
pub(super) struct Fields<'a> {
    pub(super) uris: Vec<&'a str>,
    pub(super) dns: Vec<&'a str>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) common_name: Option<&'a str>,
    /// The whole `SubjectPublicKeyInfo`.
    pub(super) key: &'a [u8],
    pub(super) not_before: Option<SystemTime>,
    pub(super) not_after: Option<SystemTime>,
    /// It may issue certificates.
    pub(super) is_authority: bool,
    /// Its key may sign certificates or revocation lists.
    pub(super) signs_others: bool,
    pub(super) key_usage: KeyUsage,
    pub(super) purpose: Purpose,
    /// It has more than [`MAX_NAMES`], which are left out.
    pub(super) has_more_names: bool,
}

/// A part of the input.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// The next element: its tag, its content, and the whole of it.
    fn any(&mut self) -> Option<(u8, &'a [u8], &'a [u8])> {
        let all = self.0;
        let (&tag, rest) = all.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let len = match first {
            0..=0x7f => usize::from(first),
            0x81..=0x84 => {
                let (bytes, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
                rest = after;
                bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte))
            }
            _ => return None,
        };
        let (content, after) = rest.split_at_checked(len)?;
        self.0 = after;
        Some((tag, content, all.get(..all.len() - after.len())?))
    }

    /// The content of the next element, which has this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.any().filter(|(found, ..)| *found == tag).map(|(_, content, _)| content)
    }

    /// The same, if the next element has this tag.
    fn take_if(&mut self, tag: u8) -> Option<&'a [u8]> {
        if self.0.first() == Some(&tag) { self.take(tag) } else { None }
    }
}

/// The beginning of a certificate; `None` if it is none.
pub(super) fn head(certificate: &[u8]) -> Option<Head<'_>> {
    let mut whole = Reader(Reader(certificate).take(SEQUENCE)?);
    let mut inner = Reader(whole.take(SEQUENCE)?);
    inner.take_if(VERSION);
    inner.take(INTEGER)?;
    inner.take(SEQUENCE)?; // Algorithm of the signature.
    let issuer = inner.take(SEQUENCE)?;
    let mut validity = Reader(inner.take(SEQUENCE)?);
    let (not_before, not_after) = (time(validity.any()?), time(validity.any()?));
    let subject = inner.take(SEQUENCE)?;
    let (tag, _, key) = inner.any()?;
    let key = (tag == SEQUENCE).then_some(key)?;
    Some(Head { issuer, subject, key, not_before, not_after, rest: inner })
}

/// The fields of a certificate; `None` if it is none.
pub(super) fn fields(certificate: &[u8]) -> Option<Fields<'_>> {
    let Head { subject, key, not_before, not_after, rest: mut inner, .. } = head(certificate)?;
    let common_name = common_name(subject);
    let mut fields = Fields { common_name, key, not_before, not_after, ..Fields::default() };
    while !inner.is_at_end() {
        let (tag, content, _) = inner.any()?;
        if tag == EXTENSIONS {
            let mut extensions = Reader(Reader(content).take(SEQUENCE)?);
            while !extensions.is_at_end() {
                extension(extensions.take(SEQUENCE)?, &mut fields)?;
            }
        }
    }
    Some(fields)
}

/// When a list of revoked certificates was made, and when the next one is due, if it says that.
pub(super) fn list_times(list: &[u8]) -> Option<(SystemTime, Option<SystemTime>)> {
    let mut whole = Reader(Reader(list).take(SEQUENCE)?);
    let mut inner = Reader(whole.take(SEQUENCE)?);
    inner.take_if(INTEGER);
    inner.take(SEQUENCE)?; // Algorithm of the signature.
    inner.take(SEQUENCE)?; // Issuer.
    let made = time(inner.any()?)?;
    let next = match inner.0.first() {
        Some(&(UTC_TIME | GENERALIZED_TIME)) => Some(time(inner.any()?)?),
        _ => None,
    };
    Some((made, next))
}

fn extension<'a>(bytes: &'a [u8], fields: &mut Fields<'a>) -> Option<()> {
    let mut reader = Reader(bytes);
    let id = reader.take(OBJECT_ID)?;
    reader.take_if(BOOLEAN);
    let value = reader.take(OCTET_STRING)?;
    if id == SUBJECT_ALT_NAME {
        let mut names = Reader(Reader(value).take(SEQUENCE)?);
        while !names.is_at_end() {
            let (tag, name, _) = names.any()?;
            let count = fields.uris.len() + fields.dns.len() + fields.addresses.len();
            if count >= MAX_NAMES {
                fields.has_more_names = true;
                break;
            }
            match tag {
                SAN_URI => fields.uris.push(std::str::from_utf8(name).ok()?),
                SAN_DNS => fields.dns.push(std::str::from_utf8(name).ok()?),
                SAN_ADDRESS => fields.addresses.push(match name.len() {
                    4 => <[u8; 4]>::try_from(name).ok()?.into(),
                    _ => <[u8; 16]>::try_from(name).ok()?.into(),
                }),
                _ => {}
            }
        }
    } else if id == BASIC_CONSTRAINTS {
        let mut constraints = Reader(Reader(value).take(SEQUENCE)?);
        let authority = constraints.take_if(BOOLEAN);
        fields.is_authority = authority.is_some_and(|value| value != [0]);
    } else if id == KEY_USAGE {
        let bits = Reader(value).take(BIT_STRING)?;
        let has = |these: u8| bits.get(1).is_some_and(|bits| bits & these != 0);
        fields.signs_others = has(SIGNS_OTHERS);
        fields.key_usage = KeyUsage::Limited { digital_signature: has(DIGITAL_SIGNATURE) };
    } else if id == EXTENDED_KEY_USAGE {
        let (mut server, mut client) = (false, false);
        let mut purposes = Reader(Reader(value).take(SEQUENCE)?);
        while !purposes.is_at_end() {
            let purpose = purposes.take(OBJECT_ID)?;
            server |= purpose == SERVER_AUTH;
            client |= purpose == CLIENT_AUTH;
        }
        fields.purpose = Purpose::Limited { server, client };
    }
    Some(())
}

/// The common name in a name, if it has one that can be read.
pub(super) fn common_name(subject: &[u8]) -> Option<&str> {
    let mut sets = Reader(subject);
    while !sets.is_at_end() {
        let mut set = Reader(sets.take(SET)?);
        while !set.is_at_end() {
            let mut pair = Reader(set.take(SEQUENCE)?);
            if pair.take(OBJECT_ID)? == COMMON_NAME {
                return std::str::from_utf8(pair.any()?.1).ok();
            }
        }
    }
    None
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn time((tag, text, _): (u8, &[u8], &[u8])) -> Option<SystemTime> {
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year = number(year)?;
            (if year < 50 { 2_000 + year } else { 1_900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (number(year)?, rest)
        }
        _ => return None,
    };
    let rest = rest.strip_suffix(b"Z").filter(|rest| rest.len() == 10)?;
    let part = |at: usize| number(rest.get(at..at + 2)?);
    let (month, day) = (part(0)?, part(2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1_970 {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + part(4)? * 3_600 + part(6)? * 60 + part(8)?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
    })
}

/// Days since 1970-01-01. The year begins in March, so that a leap day is the last of its year.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// The day of a time, as `YYYY-MM-DD`.
#[must_use]
pub fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let day = seconds / 86_400;
    let mut year = 1_970 + day / 366;
    while days(year + 1, 1, 1) <= day {
        year += 1;
    }
    let month = (1..=12).rev().find(|month| days(year, *month, 1) <= day).unwrap_or(1);
    format!("{year:04}-{month:02}-{:02}", day - days(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(tag: u8, text: &str) -> Option<u64> {
        let time = time((tag, text.as_bytes(), &[]))?;
        Some(time.duration_since(UNIX_EPOCH).unwrap().as_secs())
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(at(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(at(UTC_TIME, "261127133006Z"), Some(1_795_786_206));
        assert_eq!(at(GENERALIZED_TIME, "20000229235959Z"), Some(951_868_799));
        for bad in ["", "7001010000Z", "70010100000Z", "701301000000Z", "7001010000xxZ"] {
            assert_eq!(at(UTC_TIME, bad), None, "{bad}");
        }
        for (day, text) in [
            (0, "1970-01-01"),
            (30, "1970-01-31"),
            (364, "1970-12-31"),
            (365, "1971-01-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_784, "2026-11-27"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(day * 86_400 + 7)), text);
        }
    }

    #[test]
    fn lengths_beyond_the_input_are_refused() {
        for bad in [&[][..], &[0x30], &[0x30, 0x80], &[0x30, 0x85, 0, 0, 0, 0, 0], &[0x30, 2, 0]] {
            assert!(fields(bad).is_none());
            assert!(Reader(bad).take(SEQUENCE).is_none());
        }
        assert!(fields(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]).is_none());
    }
}
