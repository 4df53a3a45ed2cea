use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::limits::SHARD_NAME_BYTES_MAX;

/// A shard's name: 1 to 1,024 bytes of UTF-8. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ShardName(Arc<str>);

/// Why a name is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidName {
    /// It has no bytes.
    #[error("a shard's name must not be empty")]
    Empty,
    /// It has more than [`SHARD_NAME_BYTES_MAX`] bytes.
    #[error("a shard's name has at most {SHARD_NAME_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// It is not UTF-8.
    #[error("a shard's name must be UTF-8: byte {0} is not")]
    NotUtf8(usize),
}

impl ShardName {
    /// Checks `name` and takes a copy.
    pub fn new(name: &str) -> Result<ShardName, InvalidName> {
        match name.len() {
            0 => Err(InvalidName::Empty),
            n if n > SHARD_NAME_BYTES_MAX => Err(InvalidName::TooLong(n)),
            _ => Ok(ShardName(name.into())),
        }
    }

    /// Checks bytes that came from outside and takes a copy.
    pub fn from_bytes(name: &[u8]) -> Result<ShardName, InvalidName> {
        let name = std::str::from_utf8(name).map_err(|e| InvalidName::NotUtf8(e.valid_up_to()))?;
        ShardName::new(name)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ShardName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A version in a shard: 0, 1, 2, …; at most `i64::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seqno(u64);

/// A number past [`Seqno::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a seqno is at most {max}, not {0}", max = i64::MAX)]
pub struct InvalidSeqno(pub u64);

impl Seqno {
    /// The seqno of a shard's first entry.
    pub const ZERO: Seqno = Seqno(0);
    /// The largest seqno.
    pub const MAX: Seqno = Seqno(i64::MAX as u64);

    /// Checks the bound.
    pub const fn new(number: u64) -> Result<Seqno, InvalidSeqno> {
        if number > Self::MAX.0 { Err(InvalidSeqno(number)) } else { Ok(Seqno(number)) }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The seqno after this one, or none after [`Seqno::MAX`].
    pub const fn next(self) -> Option<Seqno> {
        if self.0 == Self::MAX.0 { None } else { Some(Seqno(self.0 + 1)) }
    }
}

impl fmt::Display for Seqno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A seqno and its bytes. Cloning shares the bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The entry's version.
    pub seqno: Seqno,
    /// The entry's bytes; 0 bytes is legal.
    pub data: Bytes,
}
