//! What a call must return: written apart from the product, as pure functions of the call's key and
//! the versions of both ends.
//!
//! Invariant: nothing here encodes or decodes, or compares types. Each rule of
//! `docs/changing-types.md` that the service's versions use is written down by hand.

use rpc_core::Code;

use crate::chance::mix;

const MAGIC: u32 = 0x5a5a_1234;

/// What a method does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Get,
    Put,
    Parcel,
    Store,
    Note,
    Upload,
    List,
    Both,
    Blob,
}

/// A parcel as its reader has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) key: u32,
    pub(crate) b: u64,
    /// Version 1 has none.
    pub(crate) c: Option<u64>,
    pub(crate) kind: Kind,
    pub(crate) tag: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Boxed(u16),
    /// Version 1 has none.
    Gift(u32),
}

/// What a caller was given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Nothing,
    Number(u32),
    Pair(u32, u32),
    /// The method's own error.
    Refused(u32),
    Parcel(Seen),
    Bytes(Vec<u8>),
    /// Items, and how their stream failed.
    Rows(Vec<(u32, u64)>, Option<(Code, String)>),
    Failed(Code, String),
}

/// What the rules say of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    /// The call ended with an error that is documented for it.
    Unreadable,
    Wrong(String),
    /// The product could not read what it has written itself.
    Undecoded(String),
    /// Items out of order, or missing.
    Items(String),
    Failed(Code, String),
}

/// The version of the client that made a call.
pub(crate) fn writer_of(key: u32) -> u8 {
    (key & 3).to_le_bytes()[0]
}

pub(crate) fn b(key: u32) -> u32 {
    key ^ MAGIC
}

pub(crate) fn c(key: u32) -> u64 {
    mix(u64::from(key)) | 1
}

pub(crate) fn tag(key: u32) -> String {
    format!("t{}", c(key) % 1000)
}

/// What a writer of this version writes.
pub(crate) fn kind(key: u32, writer: u8) -> Kind {
    match c(key) >> 40 & 7 {
        0..=2 => Kind::Boxed((c(key) >> 16 & 0xffff) as u16),
        3 if writer > 1 => Kind::Gift(key),
        _ => Kind::Plain,
    }
}

/// Whether the method ends with its own error.
pub(crate) fn is_refused(key: u32) -> bool {
    c(key) >> 30 & 15 == 5
}

/// Whether the handler panics, in a world in which handlers do.
pub(crate) fn panics(key: u32) -> bool {
    c(key) >> 20 & 63 == 9
}

/// A payload: of the caller, and (`is_reply`) of the handler.
pub(crate) fn blob(key: u32, is_reply: bool) -> Vec<u8> {
    let word = if is_reply { !c(key) } else { c(key) };
    let longest = [100, 8 << 10, 40 << 10, 300 << 10][(word >> 45 & 3) as usize];
    let len = mix(word) % longest;
    (0..len).map(|at| mix(word ^ at >> 3).to_le_bytes()[at as usize & 7]).collect()
}

pub(crate) fn rows(key: u32) -> Vec<(u32, u64)> {
    let count = match c(key) >> 50 & 31 {
        30 | 31 => 40 + (c(key) >> 8 & 255),
        count => count & 7,
    };
    (0..count).map(|n| (n as u32, c(key) >> 33 & 0xffff | n << 16)).collect()
}

/// A parcel that `writer` has written, at a reader. `None`: the reader lacks its variant.
pub(crate) fn read(key: u32, writer: u8, reader: u8) -> Option<Seen> {
    let written = (writer > 1).then(|| c(key));
    let c = match reader {
        1 => None,
        2 => Some(written.unwrap_or(0)),
        _ => written,
    };
    let kind = kind(key, writer);
    let is_readable = reader > 1 || !matches!(kind, Kind::Gift(_));
    is_readable.then(|| Seen { key, b: b(key).into(), c, kind, tag: tag(key) })
}

/// What the rules say of an answer to a call that ran on servers of these versions. `has_old`: a
/// server of version 1 may have refused it.
pub(crate) fn judge(task: Task, key: u32, ran: &[u8], has_old: bool, answer: Answer) -> Verdict {
    let reader = writer_of(key);
    let wrong = || Verdict::Wrong(format!("{answer:?}; it ran on {ran:?}"));
    let verdict = |is_right: bool| if is_right { Verdict::Right } else { wrong() };
    let unreadable = |may: bool| if may { Verdict::Unreadable } else { wrong() };
    match (task, &answer) {
        (_, Answer::Failed(Code::Internal, text)) if text.contains("panicked") => {
            unreadable(panics(key))
        }
        (_, Answer::Failed(Code::Internal, text)) => Verdict::Undecoded(text.clone()),
        (_, Answer::Failed(Code::DataLoss, _)) => {
            let may = task == Task::Parcel && ran.iter().any(|w| read(key, *w, reader).is_none());
            unreadable(may)
        }
        (_, Answer::Failed(Code::InvalidArgument, _)) => {
            let may = task == Task::Store && has_old && read(key, reader, 1).is_none();
            unreadable(may)
        }
        (_, Answer::Failed(code, text)) => Verdict::Failed(*code, text.clone()),
        (Task::Get, Answer::Refused(it)) => verdict(is_refused(key) && *it == key),
        (Task::Get, Answer::Pair(a, it)) => verdict(!is_refused(key) && *a == key && *it == b(key)),
        (Task::Put | Task::Store, Answer::Number(it)) => verdict(*it == key.wrapping_add(1)),
        (Task::Blob, Answer::Bytes(it)) if *it == blob(key, true) => Verdict::Right,
        (Task::Blob, Answer::Bytes(it)) => {
            Verdict::Wrong(format!("{} bytes, others than {}", it.len(), blob(key, true).len()))
        }
        (Task::Note, Answer::Nothing) => Verdict::Right,
        (Task::Parcel, Answer::Parcel(seen)) => {
            let may = ran.iter().any(|writer| read(key, *writer, reader).as_ref() == Some(seen));
            verdict(may)
        }
        (Task::Upload, Answer::Number(it)) => {
            let all = rows(key).len() as u32;
            let text = || format!("the server has read {it} of {all} items");
            if *it == all { Verdict::Right } else { Verdict::Items(text()) }
        }
        (Task::List | Task::Both, Answer::Rows(got, end)) => of_rows(key, got, end.as_ref()),
        _ => verdict(false),
    }
}

fn of_rows(key: u32, got: &[(u32, u64)], end: Option<&(Code, String)>) -> Verdict {
    let all = rows(key);
    if !all.starts_with(got) {
        return Verdict::Items(format!("items {got:?} instead of {all:?}"));
    }
    match end {
        Some((Code::Internal, text)) if text.contains("panicked") && panics(key) => {
            Verdict::Unreadable
        }
        Some((Code::Internal | Code::DataLoss, text)) => Verdict::Undecoded(text.clone()),
        Some((code, text)) => Verdict::Failed(*code, text.clone()),
        None if got.len() < all.len() => {
            Verdict::Items(format!("the stream ended after {} of {} items", got.len(), all.len()))
        }
        None => Verdict::Right,
    }
}
