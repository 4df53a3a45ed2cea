use std::fmt;

use serde::{Deserialize, Serialize};

/// A byte position in the write-ahead log, always the exclusive end of something: a record's LSN is that of its end.
///
/// LSNs are multiples of 8 (the log is made of 64-bit words) and are never used twice, not even by a later epoch (E2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lsn(u64);

impl Lsn {
    /// The position before the first record of the first epoch.
    pub const ZERO: Lsn = Lsn(0);

    /// The position `bytes` from the log's origin.
    pub const fn new(bytes: u64) -> Lsn {
        Lsn(bytes)
    }

    /// Bytes from the log's origin.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position `bytes` further on.
    ///
    /// Panics past `u64::MAX`, which at 10 GB/s is 58 years away.
    #[must_use]
    pub const fn advance(self, bytes: u64) -> Lsn {
        match self.0.checked_add(bytes) {
            Some(end) => Lsn(end),
            None => panic!("the log is at its last LSN"),
        }
    }

    /// Bytes from `earlier` to here; 0 if `earlier` is not earlier.
    pub const fn since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
