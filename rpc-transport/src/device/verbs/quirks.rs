//! What single drivers and transports do differently from others. Pure.
//!
//! Owns one table of facts, decided once when a device is opened. Code asks for a fact by its name,
//! never for a vendor. `docs/verbs.md` has what was seen of each device.

/// Differences that no attribute of a device says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Quirks {
    /// SENDs in ERR are refused (mana, ocrdma), or accepted and forgotten (siw). Another driver
    /// that refuses them is found out when it does (see `queue`).
    pub(super) no_late_sends: bool,
    /// A SEND or WRITE of [`IN_PLACE_BYTES`] or more that is unsignaled leaves from where it lies
    /// after the completions of later ones, too: siw hands its pages to TCP. Signaled ones are
    /// copied.
    pub(super) sends_in_place: bool,
    /// libsiw takes the mapping at offset 0x90000 of a context, which the kernel gives to the queue
    /// that happens to come there, for the error that has the same number (`SIW_INVAL_UOBJ_KEY`,
    /// linux, include/uapi/rdma/siw-abi.h), and refuses the queue. Trying again finds the same
    /// place.
    pub(super) refuses_a_page: bool,
    /// Connecting waits for the peer's TCP in the call itself, two minutes where nobody answers
    /// (siw, `siw_connect`; other iWARP drivers come back at once).
    pub(super) waits_in_connect: bool,
    /// Disconnecting or destroying an id waits until the peer has answered its connect or accept,
    /// or the device has given up (iWARP).
    pub(super) waits_in_destroy: bool,
    /// rdma_cm chooses ports from a space of its own, and the driver binds a TCP socket to one only
    /// when it connects (iWARP; seen on siw). So the port may be taken.
    pub(super) binds_tcp_ports: bool,
    /// The transport is TCP (iWARP): it has no immediates, requires the local buffer of a READ to
    /// allow remote writes, and completes what it has handed to TCP.
    pub(super) goes_over_tcp: bool,
    /// A retransmission starts at the first WR without an acknowledgement and carries out every
    /// bind behind it a second time, which fails (Soft-RoCE, `req_retry`, linux 6.1).
    pub(super) repeats_binds: bool,
}

/// A CQ of these entries that is a context's first object is mapped across that offset: siw makes
/// 2^15 entries of 32 bytes of it, from offset 0 on.
pub(super) const SPACER_ENTRIES: u32 = 1 << 14;

/// From this length on siw sends unsignaled WRs in place: a page.
pub(super) const IN_PLACE_BYTES: u32 = 4096;

impl Quirks {
    /// Those of a vendor's devices. `is_iwarp`: the device's transport is iWARP.
    pub(super) fn of(vendor_id: u32, is_iwarp: bool) -> Self {
        const MICROSOFT: u32 = 0x1414;
        const EMULEX: u32 = 0x10df;
        const SIW: u32 = 0x0062_6d74;
        const SOFT_ROCE: u32 = 0x00ff_ffff;
        let of_transport = Self {
            waits_in_destroy: is_iwarp,
            binds_tcp_ports: is_iwarp,
            goes_over_tcp: is_iwarp,
            ..Self::default()
        };
        match vendor_id {
            MICROSOFT | EMULEX => Self { no_late_sends: true, ..of_transport },
            SIW => Self {
                no_late_sends: true,
                sends_in_place: true,
                refuses_a_page: true,
                waits_in_connect: true,
                ..of_transport
            },
            SOFT_ROCE => Self { repeats_binds: true, ..of_transport },
            _ => of_transport,
        }
    }
}
