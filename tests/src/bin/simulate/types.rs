//! Three versions of the types of one service, and how each is written and read.
//!
//! Owns the changes that a world has to live with: fields moved, added with a default, renamed with
//! an alias, made wider, made optional, and variants added at the end or moved. What a reader must
//! make of another version's values is not said here but in [`oracle`](crate::oracle).

use crate::oracle::{Kind, Seen, b, c, kind, tag};

pub(crate) mod v1 {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Pair {
        pub(crate) a: u32,
        pub(crate) b: u32,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Parcel {
        pub(crate) key: u32,
        pub(crate) b: u32,
        pub(crate) kind: Kind,
        pub(crate) tag: String,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) enum Kind {
        Plain,
        Boxed { w: u16 },
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Row {
        pub(crate) n: u32,
        pub(crate) value: u64,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) enum Refused {
        NotThere(u32),
    }
}

pub(crate) mod v2 {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Pair {
        pub(crate) b: u32,
        pub(crate) a: u32,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Parcel {
        pub(crate) tag: String,
        pub(crate) key: u32,
        pub(crate) b: u32,
        #[serde(default)]
        pub(crate) c: u64,
        pub(crate) kind: Kind,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) enum Kind {
        Plain,
        Boxed { w: u16 },
        Gift { to: u32 },
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Row {
        pub(crate) value: u64,
        pub(crate) n: u32,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) enum Refused {
        Late,
        NotThere(u32),
    }
}

pub(crate) mod v3 {
    use serde::{Deserialize, Serialize};

    pub(crate) use super::v2::Refused;

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Pair {
        pub(crate) b: u32,
        #[serde(alias = "a")]
        pub(crate) id: u32,
        #[serde(default)]
        pub(crate) note: Option<String>,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Parcel {
        pub(crate) c: Option<u64>,
        #[serde(alias = "key")]
        pub(crate) id: u32,
        pub(crate) b: u64,
        pub(crate) kind: Kind,
        pub(crate) tag: String,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) enum Kind {
        Gift { to: u32 },
        Boxed { w: u16 },
        Plain,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(crate) struct Row {
        pub(crate) value: u64,
        #[serde(alias = "n")]
        pub(crate) number: u64,
    }
}

/// A pair as its writer makes it, and as its reader has it.
pub(crate) trait AsPair {
    fn write(key: u32) -> Self;
    fn read(self) -> (u32, u32);
}

/// The same for parcels.
pub(crate) trait AsParcel {
    fn write(key: u32) -> Self;
    fn read(self) -> Seen;
}

/// The same for items of streams: a number, and a value.
pub(crate) trait AsRow {
    fn write(row: (u32, u64)) -> Self;
    fn read(self) -> (u32, u64);
}

/// The method's own error.
pub(crate) trait AsRefused {
    fn write(key: u32) -> Self;
    /// 0: it is another one.
    fn read(self) -> u32;
}

macro_rules! pairs {
    ($version:ident, $key:ident $(, $more:ident: $value:expr)?) => {
        impl AsPair for $version::Pair {
            fn write(key: u32) -> Self {
                Self { $key: key, b: b(key) $(, $more: $value(key))? }
            }

            fn read(self) -> (u32, u32) {
                (self.$key, self.b)
            }
        }
    };
}

macro_rules! kinds {
    ($version:ident $(, $gift:ident)*) => {
        impl $version::Kind {
            fn write(kind: Kind) -> Self {
                match kind {
                    Kind::Boxed(w) => Self::Boxed { w },
                    $(Kind::$gift(to) => Self::$gift { to },)*
                    _ => Self::Plain,
                }
            }

            fn read(self) -> Kind {
                match self {
                    Self::Plain => Kind::Plain,
                    Self::Boxed { w } => Kind::Boxed(w),
                    $(Self::$gift { to } => Kind::$gift(to),)*
                }
            }
        }
    };
}

macro_rules! refusals {
    ($version:ident) => {
        impl AsRefused for $version::Refused {
            fn write(key: u32) -> Self {
                Self::NotThere(key)
            }

            #[allow(unreachable_patterns, reason = "one version has no other variant")]
            fn read(self) -> u32 {
                match self {
                    Self::NotThere(key) => key,
                    _ => 0,
                }
            }
        }
    };
}

/// A field that is not compared.
fn note(key: u32) -> Option<String> {
    key.is_multiple_of(5).then(|| tag(key))
}

pairs!(v1, a);
pairs!(v2, a);
pairs!(v3, id, note: note);
kinds!(v1);
kinds!(v2, Gift);
kinds!(v3, Gift);
refusals!(v1);
refusals!(v2);

impl AsParcel for v1::Parcel {
    fn write(key: u32) -> Self {
        Self { key, b: b(key), kind: v1::Kind::write(kind(key, 1)), tag: tag(key) }
    }

    fn read(self) -> Seen {
        let Self { key, b, kind, tag } = self;
        Seen { key, b: b.into(), c: None, kind: kind.read(), tag }
    }
}

impl AsParcel for v2::Parcel {
    fn write(key: u32) -> Self {
        let kind = v2::Kind::write(kind(key, 2));
        Self { tag: tag(key), key, b: b(key), c: c(key), kind }
    }

    fn read(self) -> Seen {
        let Self { tag, key, b, c, kind } = self;
        Seen { key, b: b.into(), c: Some(c), kind: kind.read(), tag }
    }
}

impl AsParcel for v3::Parcel {
    fn write(key: u32) -> Self {
        let kind = v3::Kind::write(kind(key, 3));
        Self { c: Some(c(key)), id: key, b: b(key).into(), kind, tag: tag(key) }
    }

    fn read(self) -> Seen {
        let Self { c, id, b, kind, tag } = self;
        Seen { key: id, b, c, kind: kind.read(), tag }
    }
}

impl AsRow for v1::Row {
    fn write((n, value): (u32, u64)) -> Self {
        Self { n, value }
    }

    fn read(self) -> (u32, u64) {
        (self.n, self.value)
    }
}

impl AsRow for v2::Row {
    fn write((n, value): (u32, u64)) -> Self {
        Self { value, n }
    }

    fn read(self) -> (u32, u64) {
        (self.n, self.value)
    }
}

impl AsRow for v3::Row {
    fn write((n, value): (u32, u64)) -> Self {
        Self { value, number: n.into() }
    }

    fn read(self) -> (u32, u64) {
        (u32::try_from(self.number).unwrap_or(u32::MAX), self.value)
    }
}
