//! The RO's side of the ring: records verified out of memory that the RW writes from afar.

use headwater_protocol::{Epoch, History, Lsn};

use crate::cursor::Cursor;
use crate::error::{Flaw, Unverified};
use crate::record::{HEADER_BYTES, HEADER_WORDS, Record, body_words, record_bytes};
use crate::ring::{RingMemory, Words};

/// A record that was received and verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// What it says.
    pub record: Record,
    /// Where it begins.
    pub start: Lsn,
    /// Where it ends: its LSN.
    pub end: Lsn,
    /// The epoch that wrote it.
    pub epoch: Epoch,
    /// The chained checksum after it.
    pub chain: u64,
}

/// Reads records out of an RO's ring in order, believing nothing but the records (S2).
///
/// - Every record that it gives continues the one before by position, epoch and chained checksum.
/// - Bytes are copied out first and verified then, so what is given cannot change any more (S5).
pub struct Receiver {
    memory: RingMemory,
    cursor: Cursor,
    /// The record being looked at; grows to the largest record, which the ring bounds.
    body: Vec<u64>,
}

impl Receiver {
    /// Continues after `position`, where the chained checksum is `chain` ([`Lsn::ZERO`] and 0 for an empty RO), in a
    /// log with that history. A record's bytes lie at LSN mod `ring_bytes` from word `first_word` on.
    ///
    /// Panics if the memory is too small for a ring of that size, or the size is no power of two of at least 4,096.
    pub fn new(
        words: Words,
        first_word: usize,
        ring_bytes: u64,
        history: History,
        position: Lsn,
        chain: u64,
    ) -> Receiver {
        Receiver {
            memory: RingMemory::new(words, first_word, ring_bytes),
            cursor: Cursor::new(history, position, chain),
            body: Vec::new(),
        }
    }

    /// The next record, if all its bytes are below `tail` and it verifies. None: it is not there yet.
    ///
    /// [`Unverified`]: bytes below `tail` are not the next record (torn, stale, overwritten, or of another epoch).
    /// Nothing was taken; ask again later, or have the bytes from [`Receiver::received`] on written again.
    pub fn next(&mut self, tail: Lsn) -> Result<Option<Received>, Unverified> {
        let start = self.cursor.next_start();
        if tail.since(start) < HEADER_BYTES as u64 {
            return Ok(None);
        }
        let unverified = |what| Unverified { at: start, what };
        let mut words = [0; HEADER_WORDS];
        self.memory.load(start, &mut words);
        let header = self.cursor.header(&words).map_err(unverified)?;
        if record_bytes(header.body_bytes) > self.memory.bytes() {
            return Err(unverified(Flaw::Length(header.body_bytes as u64)));
        }
        if header.lsn > tail {
            return Ok(None);
        }
        self.body.resize(body_words(header.body_bytes), 0);
        self.memory.load(start.advance(HEADER_BYTES as u64), &mut self.body);
        let record = self.cursor.step(&header, &self.body).map_err(unverified)?;
        Ok(Some(Received { record, start, end: header.lsn, epoch: header.epoch, chain: header.chain }))
    }

    /// Where the next record begins: the end of the last one, or, where the log jumps there, the next epoch's start.
    pub fn received(&self) -> Lsn {
        self.cursor.next_start()
    }

    /// The chained checksum after the last record.
    pub fn chain(&self) -> u64 {
        self.cursor.chain()
    }
}
