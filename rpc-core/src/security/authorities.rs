//! The authorities of a file, and when each of them vouches for others.
//!
//! webpki knows an authority by its name and key alone, not by its dates.
//!
//! Invariant: an authority whose own certificate has ended, or has not begun, vouches for nobody.

use std::ptr;
use std::time::{Duration, SystemTime};

use rpc_transport::protocol::lock::FailureReason;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};

use super::der::{self, date};
use super::known::seconds;
use super::refusal::{Refusal, quoted};

/// The authorities of one file.
pub(super) struct Authorities {
    anchors: Vec<TrustAnchor<'static>>,
    /// In the same order.
    dates: Vec<Dates>,
}

/// When an authority is valid, and its name for messages.
struct Dates {
    name: String,
    /// The first and last second.
    valid: [u64; 2],
}

/// Whether an authority vouches for others at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    /// Within these seconds.
    Valid([u64; 2]),
    NotYet,
    Ended,
}

impl Authorities {
    /// # Errors
    /// What is wrong with one of the certificates.
    pub(super) fn new(certificates: &[CertificateDer<'_>]) -> Result<Self, String> {
        let mut this = Self { anchors: Vec::new(), dates: Vec::new() };
        for certificate in certificates {
            let anchor = webpki::anchor_from_trusted_cert(certificate);
            let anchor = anchor.map_err(|error| error.to_string())?;
            let head = der::head(certificate);
            let dates = head
                .as_ref()
                .and_then(|head| Some([seconds(head.not_before?)?, seconds(head.not_after?)?]));
            let valid = dates.ok_or("its dates cannot be read")?;
            let name = name(anchor.subject.as_ref());
            this.anchors.push(anchor.to_owned());
            this.dates.push(Dates { name, valid });
        }
        Ok(this)
    }

    pub(super) fn anchors(&self) -> &[TrustAnchor<'static>] {
        &self.anchors
    }

    /// Whether one of them has this name, as DER.
    pub(super) fn has_name(&self, name: &[u8]) -> bool {
        self.anchors.iter().any(|anchor| anchor.subject.as_ref() == name)
    }

    /// The number of one of [`anchors`](Self::anchors).
    pub(super) fn number(&self, anchor: &TrustAnchor<'_>) -> Option<usize> {
        self.anchors.iter().position(|it| ptr::addr_eq(it, anchor))
    }

    pub(super) fn standing(&self, number: usize, now: UnixTime) -> Standing {
        let [first, last] = self.dates[number].valid;
        match now.as_secs() {
            now if now < first => Standing::NotYet,
            now if now > last => Standing::Ended,
            _ => Standing::Valid([first, last]),
        }
    }

    /// Why an authority vouches for nobody.
    pub(super) fn refusal(&self, number: usize, now: UnixTime) -> Refusal {
        let text = format!("the peer's certificate is issued by {}", self.text(number, now));
        match self.standing(number, now) {
            Standing::NotYet => {
                let text = format!("{text}: correct the clock of one machine");
                Refusal::new(FailureReason::NotYetValid, text).telling("its CA is not valid yet")
            }
            Standing::Ended | Standing::Valid(_) => {
                let text = format!("{text}: let another authority issue it, or renew this one");
                Refusal::new(FailureReason::Expired, text).telling("its CA has expired")
            }
        }
    }

    /// Those that vouch for nobody now, for a log.
    pub(super) fn idle(&self, now: UnixTime) -> Vec<String> {
        let is_idle = |at: &usize| !matches!(self.standing(*at, now), Standing::Valid(_));
        (0..self.dates.len()).filter(is_idle).map(|at| self.text(at, now)).collect()
    }

    /// # Errors
    /// All of them have ended.
    pub(super) fn check(&self, now: UnixTime) -> Result<(), String> {
        let has_ended = |at| self.standing(at, now) == Standing::Ended;
        if !(0..self.dates.len()).all(has_ended) {
            return Ok(());
        }
        let all = self.idle(now).join("; ");
        Err(format!("it has no authority that is valid now: {all}; renew it, or correct the clock"))
    }

    fn text(&self, number: usize, now: UnixTime) -> String {
        let Dates { name, valid: [first, last] } = &self.dates[number];
        let day = |second: u64| date(SystemTime::UNIX_EPOCH + Duration::from_secs(second));
        let today = day(now.as_secs());
        match self.standing(number, now) {
            Standing::NotYet => {
                format!(
                    "the authority {name}, which begins on {} (this clock says {today})",
                    day(*first)
                )
            }
            Standing::Ended | Standing::Valid(_) => {
                format!(
                    "the authority {name}, which ended on {} (this clock says {today})",
                    day(*last)
                )
            }
        }
    }
}

/// The name of an authority, for messages.
pub(super) fn name(subject: &[u8]) -> String {
    der::common_name(subject).map_or_else(|| "without a common name".to_owned(), quoted)
}
