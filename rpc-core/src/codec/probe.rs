//! Finds the shape of a type.
//!
//! The compiler does so by method lookup on [`Probe`] (autoref specialization), not by the type's
//! name. In order of preference: an inherent method, for types that [`Blob`] supports; a trait
//! method, for types that serde supports; and the method of a trait on `&Probe`, for every type.
//! This works only where the type is concrete, which it is in generated code.
//!
//! [`crate::codec::blob`] lists the types that [`Blob`] supports. A method whose error type is
//! [`Status`] is found in the same way: [`StatusShape`].
//!
//! A type that serde does not support has the shape [`Missing`]. So generated code type-checks
//! wherever it names that type, and the only error comes from the check of the type ([`Lacking`]).

use std::fmt;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::codec::blob::{Blob, OwnedBlob, OwnedBytes, PutBlob, TakeBlob, TakeOwnedBlob};
use crate::codec::shape::{Missing, Owned, Plain, StatusShape};
use crate::status::{CallError, Status};

/// Finds the shape of a type; see the module's documentation.
pub struct Probe<T: ?Sized>(PhantomData<fn() -> Box<T>>);

impl<T: ?Sized> Probe<T> {
    /// A probe of `T`.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        Self(PhantomData)
    }

    /// A probe of the type of a value.
    #[inline]
    #[must_use]
    pub fn of(_: &T) -> Self {
        Self(PhantomData)
    }
}

impl<T: ?Sized> Default for Probe<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: ?Sized> fmt::Debug for Probe<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probe")
    }
}

impl<T: PutBlob + ?Sized> Probe<T> {
    /// The shape to encode in.
    #[inline]
    #[must_use]
    pub fn put_shape(&self) -> Blob {
        Blob
    }
}

impl Probe<Vec<u8>> {
    /// Takes the vector, so that it is sent without a copy if it is large.
    #[inline]
    #[must_use]
    pub fn own(&self, bytes: Vec<u8>) -> Owned<OwnedBytes, Blob> {
        Owned(bytes.into(), Blob)
    }
}

impl Probe<Option<Vec<u8>>> {
    /// Takes an optional vector, for the same reason.
    #[inline]
    #[must_use]
    pub fn own(&self, bytes: Option<Vec<u8>>) -> Owned<Option<OwnedBytes>, Blob> {
        Owned(bytes.map(OwnedBytes::from), Blob)
    }
}

impl Probe<Status> {
    /// Whether the type is a [`Status`].
    pub const IS_STATUS: bool = true;

    /// How this error travels to the caller.
    #[inline]
    #[must_use]
    pub fn put_error_shape(&self) -> StatusShape {
        StatusShape
    }

    /// How this error comes from the server.
    #[inline]
    #[must_use]
    pub fn take_error_shape(&self) -> StatusShape {
        StatusShape
    }
}

impl<E> Probe<CallError<E>> {
    /// Whether the type is a [`CallError`]; the macro takes those apart that it recognizes.
    pub const IS_CALL_ERROR: bool = true;
}

impl<'de, T: TakeBlob<'de>> Probe<T> {
    /// The shape to decode in, borrowing.
    #[inline]
    #[must_use]
    pub fn take_shape(&self) -> Blob {
        Blob
    }
}

impl<T: TakeOwnedBlob> Probe<T> {
    /// The shape to decode in, owning.
    #[inline]
    #[must_use]
    pub fn take_owned_shape(&self) -> OwnedBlob {
        OwnedBlob
    }
}

/// [`Probe`]'s methods for types that serde can encode and [`Blob`] does not support.
pub trait ProbePut {
    /// The shape to encode in.
    #[inline]
    fn put_shape(&self) -> Plain {
        Plain
    }

    /// The value itself. Generic, because the macro only sees the name `Vec<u8>`, which may be a
    /// type of the user's.
    #[inline]
    fn own<T>(&self, value: T) -> Owned<T, Plain> {
        Owned(value, Plain)
    }

    /// How this error travels to the caller.
    #[inline]
    fn put_error_shape(&self) -> Plain {
        Plain
    }
}

impl<T: Serialize + ?Sized> ProbePut for Probe<T> {}

/// [`Probe`]'s methods for types that serde can decode and [`Blob`] does not support.
pub trait ProbeTake {
    /// The shape to decode in, borrowing.
    #[inline]
    fn take_shape(&self) -> Plain {
        Plain
    }
}

impl<'de, T: Deserialize<'de>> ProbeTake for Probe<T> {}

/// [`Probe`]'s methods for such types that borrow nothing.
pub trait ProbeTakeOwned {
    /// The shape to decode in, owning.
    #[inline]
    fn take_owned_shape(&self) -> Plain {
        Plain
    }

    /// How this error comes from the server.
    #[inline]
    fn take_error_shape(&self) -> Plain {
        Plain
    }
}

impl<T: DeserializeOwned> ProbeTakeOwned for Probe<T> {}

/// The methods of a reference to a [`Probe`], for all other types.
pub trait ProbeMissing {
    /// No shape to encode in.
    fn put_shape(&self) -> Missing {
        Missing
    }

    /// The value itself.
    fn own<T>(&self, value: T) -> Owned<T, Missing> {
        Owned(value, Missing)
    }

    /// This error cannot be sent to the caller.
    fn put_error_shape(&self) -> Missing {
        Missing
    }

    /// No shape to decode in, borrowing.
    fn take_shape(&self) -> Missing {
        Missing
    }

    /// No shape to decode in, owning.
    fn take_owned_shape(&self) -> Missing {
        Missing
    }

    /// This error cannot be received from the server.
    fn take_error_shape(&self) -> Missing {
        Missing
    }
}

impl<T: ?Sized> ProbeMissing for &Probe<T> {}

impl<T: Serialize + ?Sized> Probe<T> {
    /// serde can encode it.
    pub const SERIALIZES: bool = true;
}

impl<T: PutBlob + ?Sized> Probe<T> {
    /// [`Blob`] can encode it.
    pub const PUTS: bool = true;
}

impl<'de, T: Deserialize<'de>> Probe<T> {
    /// serde can decode it.
    pub const DESERIALIZES: bool = true;
}

impl<'de, T: TakeBlob<'de>> Probe<T> {
    /// [`Blob`] can decode it.
    pub const TAKES: bool = true;
}

impl<T: DeserializeOwned> Probe<T> {
    /// serde can decode it, and it borrows nothing.
    pub const DESERIALIZES_OWNED: bool = true;
}

impl<T: TakeOwnedBlob> Probe<T> {
    /// [`OwnedBlob`] can decode it.
    pub const TAKES_OWNED: bool = true;
}

/// Defaults of [`Probe`]'s constants: the type lacks the ability. The compiler prefers an inherent
/// constant, where the type meets its bounds.
pub trait Lacking {
    /// serde cannot encode it.
    const SERIALIZES: bool = false;
    /// [`Blob`] cannot encode it.
    const PUTS: bool = false;
    /// serde cannot decode it.
    const DESERIALIZES: bool = false;
    /// [`Blob`] cannot decode it.
    const TAKES: bool = false;
    /// serde cannot decode it, or it borrows.
    const DESERIALIZES_OWNED: bool = false;
    /// [`OwnedBlob`] cannot decode it.
    const TAKES_OWNED: bool = false;
    /// Not a [`Status`].
    const IS_STATUS: bool = false;
    /// Not a [`CallError`].
    const IS_CALL_ERROR: bool = false;
}

impl<T: ?Sized> Lacking for Probe<T> {}
