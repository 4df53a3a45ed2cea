use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Lsn;

/// The reign of one RW. It grows by one at each start of an RW; every record, handshake and timestamp carries it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(u64);

impl Epoch {
    /// No epoch yet: what a node holds that has never heard of one.
    pub const NONE: Epoch = Epoch(0);

    /// The epoch of that number.
    pub const fn new(number: u64) -> Epoch {
        Epoch(number)
    }

    /// The epoch's number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The epoch that follows.
    #[must_use]
    pub const fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where an epoch begins and what it continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EpochStart {
    /// The epoch that begins.
    pub epoch: Epoch,
    /// LSN at which its first record (the epoch-start record) begins: past anything the epoch before can have handed out (E2).
    pub start: Lsn,
    /// LSN at which the log of the epochs before it ends.
    pub previous_end: Lsn,
    /// The chained checksum at `previous_end`.
    pub previous_chain: u64,
    /// How long an RO may read strongly under this epoch after the clock that the RW last gave back to it, ms; the next epoch begins when this
    /// has run out everywhere (E3, R6).
    pub lease_ms: u64,
}

/// All epochs of a log, oldest first. With the chained checksum it identifies a history (E1, E2).
///
/// - Epochs, starts and previous ends grow strictly from one to the next (the first epoch starts at its previous end, 0).
/// - `start >= previous_end` for each.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct History(pub Vec<EpochStart>);

impl History {
    /// The newest epoch, if any.
    pub fn current(&self) -> Option<&EpochStart> {
        self.0.last()
    }

    /// Where the record after position `end` begins: `end` itself, or the start of the next epoch where the log
    /// jumps there.
    pub fn next_start(&self, end: Lsn) -> Lsn {
        self.0.iter().find(|e| e.previous_end == end && e.start > end).map_or(end, |e| e.start)
    }

    /// The epoch to which the record beginning at `start` belongs.
    pub fn epoch_at(&self, start: Lsn) -> Option<&EpochStart> {
        self.0.iter().rev().find(|e| e.start <= start)
    }

    /// Where the log of the epoch that contains `start` ends, if a later epoch follows it.
    pub fn end_of_epoch_at(&self, start: Lsn) -> Option<Lsn> {
        self.0.iter().find(|e| e.start > start).map(|e| e.previous_end)
    }
}
