//! Following the log record by record: what the next record must be, given what came before it.
//!
//! Recovery follows the log in segment files, a receiver in its ring; what they demand of a record is the same.

use headwater_protocol::{History, Lsn};

use crate::error::Flaw;
use crate::record::{HEADER_WORDS, Header, Record};

/// A place between two records of a log with a known history.
///
/// - `end` is the end of a verified record (or the log's beginning), `chain` the chained checksum there.
pub(crate) struct Cursor {
    history: History,
    end: Lsn,
    chain: u64,
}

impl Cursor {
    pub(crate) fn new(history: History, end: Lsn, chain: u64) -> Cursor {
        Cursor { history, end, chain }
    }

    pub(crate) fn end(&self) -> Lsn {
        self.end
    }

    pub(crate) fn chain(&self) -> u64 {
        self.chain
    }

    /// Where the next record begins: here, or at the next epoch's start.
    pub(crate) fn next_start(&self) -> Lsn {
        self.history.next_start(self.end)
    }

    /// Checks the next record's header. It is what was written, to the bit, if this succeeds: its chain holds.
    pub(crate) fn header(&self, words: &[u64; HEADER_WORDS]) -> Result<Header, Flaw> {
        let start = self.next_start();
        let epoch = self.history.epoch_at(start).ok_or(Flaw::History)?;
        let header = Header::decode(words, start, epoch.epoch)?;
        if !header.continues(self.chain) {
            return Err(Flaw::Chain);
        }
        if self.history.end_of_epoch_at(start).is_some_and(|end| header.lsn > end) {
            return Err(Flaw::PastEnd);
        }
        Ok(header)
    }

    /// Checks the body that belongs to a header from [`Cursor::header`] and steps past the record.
    pub(crate) fn step(&mut self, header: &Header, body: &[u64]) -> Result<Record, Flaw> {
        let start = self.next_start();
        let record = header.record(body)?;
        let begins = self.history.epoch_at(start).filter(|epoch| epoch.start == start);
        let said = match &record {
            Record::EpochStart(said, ..) => Some(said),
            _ => None,
        };
        if begins != said
            || said.is_some_and(|said| said.previous_end != self.end || said.previous_chain != self.chain)
        {
            return Err(Flaw::History);
        }
        debug_assert!(header.lsn > self.end, "{} > {}", header.lsn, self.end);
        self.end = header.lsn;
        self.chain = header.chain;
        Ok(record)
    }
}
