//! The record format: one framed change in the log.
//!
//! Little-endian, aligned to 8 bytes; a record's length is a multiple of 8.
//!
//! | byte | size | field |
//! | --- | --- | --- |
//! | 0 | 4 | bytes of the body, padding not counted |
//! | 4 | 1 | kind |
//! | 5 | 1 | zero |
//! | 6 | 2 | bytes of the shard's name; 0 where there is none |
//! | 8 | 8 | LSN: the position of the record's end |
//! | 16 | 8 | epoch |
//! | 24 | 8 | flushed LSN when the record was appended |
//! | 32 | 8 | XXH3-64 of the body, padding not counted |
//! | 40 | 8 | chain: XXH3-64 of bytes 0 to 39, seeded with the chain of the record before (0 before the first) |
//! | 48 | … | body, then zeros up to a multiple of 8 |
//!
//! | kind | record | body |
//! | --- | --- | --- |
//! | 1 | append | u64 seqno, name, data |
//! | 2 | truncate | u64 cut, name |
//! | 3 | epoch start | u64 start, u64 previous end, u64 previous chain, 16 bytes cluster id, u64 ring bytes |
//! | 4 | close: the log was stopped in order, all before it was flushed | empty |
//! | 5 | reserved for checkpoint marks | |
//!
//! The chain covers the body by its hash, so that it can be computed from 40 bytes under the append lock. The flushed
//! LSN is what tells a damaged middle from a torn tail: a record proves that the log had been durable up to there.

use bytes::Bytes;
use headwater_protocol::limits::{ENTRY_BYTES_MAX, SHARD_NAME_BYTES_MAX};
use headwater_protocol::{Epoch, EpochStart, Lsn, Seqno, ShardName};
use headwater_shard_log::Change;
use uuid::Uuid;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::error::Flaw;

/// Bytes of the log's words: everything in it is a multiple of this.
pub(crate) const WORD_BYTES: usize = size_of::<u64>();

// The header's words, in order. The first holds the body's length, the kind, a zero and the name's length.
const LENGTHS: usize = 0;
const LSN: usize = LENGTHS + 1;
const EPOCH: usize = LSN + 1;
const FLUSHED: usize = EPOCH + 1;
const BODY_HASH: usize = FLUSHED + 1;
const CHAIN: usize = BODY_HASH + 1;
pub(crate) const HEADER_WORDS: usize = CHAIN + 1;

/// The word of a record's header that holds its LSN.
pub(crate) const LSN_WORD: usize = LSN;

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = HEADER_WORDS * WORD_BYTES;
const _: () = assert!(HEADER_BYTES == 48);

const EPOCH_START_WORDS: usize = 7;
pub(crate) const EPOCH_START_BYTES: usize = EPOCH_START_WORDS * WORD_BYTES;

/// Bytes of the largest body: an append of the largest entry to the shard with the longest name.
pub(crate) const BODY_BYTES_MAX: usize = WORD_BYTES + SHARD_NAME_BYTES_MAX + ENTRY_BYTES_MAX;
const _: () = assert!(BODY_BYTES_MAX < u32::MAX as usize && SHARD_NAME_BYTES_MAX <= u16::MAX as usize);

/// Words of a body of that many bytes.
pub(crate) const fn body_words(body_bytes: usize) -> usize {
    body_bytes.div_ceil(WORD_BYTES)
}

/// Bytes in the log of a record with a body of that many bytes.
pub(crate) const fn record_bytes(body_bytes: usize) -> u64 {
    ((HEADER_WORDS + body_words(body_bytes)) * WORD_BYTES) as u64
}

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// An entry was appended to a shard.
    Append = 1,
    /// A shard's entries below a cut were removed.
    Truncate = 2,
    /// An epoch begins.
    EpochStart = 3,
    /// The log was stopped in order.
    Close = 4,
}

impl Kind {
    fn from_code(code: u8) -> Option<Kind> {
        [Kind::Append, Kind::Truncate, Kind::EpochStart, Kind::Close]
            .into_iter()
            .find(|kind| *kind as u8 == code)
    }

    /// Whether a body of this kind can have these lengths.
    fn allows(self, body_bytes: usize, name_bytes: usize) -> bool {
        let named = (1..=SHARD_NAME_BYTES_MAX).contains(&name_bytes);
        match self {
            Kind::Append => named && (WORD_BYTES + name_bytes..=BODY_BYTES_MAX).contains(&body_bytes),
            Kind::Truncate => named && body_bytes == WORD_BYTES + name_bytes,
            Kind::EpochStart => name_bytes == 0 && body_bytes == EPOCH_START_BYTES,
            Kind::Close => name_bytes == 0 && body_bytes == 0,
        }
    }
}

/// A record with its body laid out and hashed; made before any lock is taken.
#[derive(Debug)]
pub struct Prepared {
    kind: Kind,
    name_bytes: usize,
    body_bytes: usize,
    body_hash: u64,
    body: Vec<u64>,
}

impl Prepared {
    /// Lays out a change. Its data is copied here, so that appending copies whole words.
    ///
    /// The entry must not exceed [`ENTRY_BYTES_MAX`]; whoever accepts it from a client checks that.
    pub fn new(change: &Change) -> Prepared {
        match change {
            Change::Append { shard, seqno, data } => Prepared::named(Kind::Append, *seqno, shard, data),
            Change::Truncate { shard, cut } => Prepared::named(Kind::Truncate, *cut, shard, &[]),
        }
    }

    pub(crate) fn epoch_start(start: &EpochStart, cluster_id: Uuid, ring_bytes: u64) -> Prepared {
        let (id_low, id_high) = bytemuck::cast::<[u8; 16], [u64; 2]>(cluster_id.into_bytes()).into();
        let body = vec![
            start.start.get(),
            start.previous_end.get(),
            start.previous_chain,
            id_low,
            id_high,
            ring_bytes,
            start.lease_ms,
        ];
        Prepared::of(Kind::EpochStart, 0, EPOCH_START_BYTES, body)
    }

    pub(crate) fn close() -> Prepared {
        Prepared::of(Kind::Close, 0, 0, Vec::new())
    }

    fn named(kind: Kind, seqno: Seqno, shard: &ShardName, data: &[u8]) -> Prepared {
        let name = shard.as_str().as_bytes();
        let body_bytes = WORD_BYTES + name.len() + data.len();
        let mut body = vec![0; body_words(body_bytes)];
        body[0] = seqno.get();
        let (name_part, data_part) =
            bytemuck::cast_slice_mut(&mut body[1..])[..name.len() + data.len()].split_at_mut(name.len());
        name_part.copy_from_slice(name);
        data_part.copy_from_slice(data);
        Prepared::of(kind, name.len(), body_bytes, body)
    }

    fn of(kind: Kind, name_bytes: usize, body_bytes: usize, body: Vec<u64>) -> Prepared {
        debug_assert!(
            kind.allows(body_bytes, name_bytes),
            "{kind:?} of {body_bytes} bytes, name {name_bytes}"
        );
        let body_hash = xxh3_64(&bytemuck::cast_slice(&body)[..body_bytes]);
        Prepared { kind, name_bytes, body_bytes, body_hash, body }
    }

    /// Bytes that it takes in the log.
    pub fn log_bytes(&self) -> u64 {
        record_bytes(self.body_bytes)
    }

    pub(crate) fn body(&self) -> &[u64] {
        &self.body
    }

    /// Its header at its place in the log.
    pub(crate) fn header(&self, start: Lsn, epoch: Epoch, flushed: Lsn, previous_chain: u64) -> Header {
        let mut header = Header {
            kind: self.kind,
            body_bytes: self.body_bytes,
            name_bytes: self.name_bytes,
            lsn: start.advance(self.log_bytes()),
            epoch,
            flushed,
            body_hash: self.body_hash,
            chain: 0,
        };
        header.chain = chain_after(&header.encode(), previous_chain);
        header
    }
}

/// The chained checksum after a record with these header words (its own chain does not count).
fn chain_after(words: &[u64; HEADER_WORDS], previous_chain: u64) -> u64 {
    xxh3_64_with_seed(bytemuck::cast_slice(&words[..CHAIN]), previous_chain)
}

/// A record's header, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) body_bytes: usize,
    pub(crate) name_bytes: usize,
    pub(crate) lsn: Lsn,
    pub(crate) epoch: Epoch,
    pub(crate) flushed: Lsn,
    pub(crate) body_hash: u64,
    pub(crate) chain: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u64; HEADER_WORDS] {
        let mut words = [0; HEADER_WORDS];
        words[LENGTHS] = self.body_bytes as u64 | (self.kind as u64) << 32 | (self.name_bytes as u64) << 48;
        words[LSN] = self.lsn.get();
        words[EPOCH] = self.epoch.get();
        words[FLUSHED] = self.flushed.get();
        words[BODY_HASH] = self.body_hash;
        words[CHAIN] = self.chain;
        words
    }

    /// Decodes the header of a record that begins at `start`, and checks all that a header alone can show. Nothing
    /// is believed of it yet: that takes the chain ([`Header::continues`]) or the body.
    pub(crate) fn decode(words: &[u64; HEADER_WORDS], start: Lsn, epoch: Epoch) -> Result<Header, Flaw> {
        if words.iter().all(|word| *word == 0) {
            return Err(Flaw::Zeros);
        }
        let [b0, b1, b2, b3, kind, zero, n0, n1] = words[LENGTHS].to_le_bytes();
        let body_bytes = u32::from_le_bytes([b0, b1, b2, b3]) as usize;
        let name_bytes = usize::from(u16::from_le_bytes([n0, n1]));
        let kind = Kind::from_code(kind).ok_or(Flaw::Kind(kind))?;
        if zero != 0 {
            return Err(Flaw::NotZero);
        }
        if !kind.allows(body_bytes, name_bytes) {
            return Err(Flaw::Length(body_bytes as u64));
        }
        let header = Header {
            kind,
            body_bytes,
            name_bytes,
            lsn: Lsn::new(words[LSN]),
            epoch: Epoch::new(words[EPOCH]),
            flushed: Lsn::new(words[FLUSHED]),
            body_hash: words[BODY_HASH],
            chain: words[CHAIN],
        };
        if start.get().checked_add(record_bytes(body_bytes)) != Some(words[LSN]) {
            return Err(Flaw::Lsn(header.lsn));
        }
        if header.epoch != epoch {
            return Err(Flaw::Epoch { found: header.epoch, expected: epoch });
        }
        if header.flushed > start {
            return Err(Flaw::Flushed(header.flushed));
        }
        Ok(header)
    }

    /// Whether its chain continues that of the record before it: then every bit of the header is what was written.
    pub(crate) fn continues(&self, previous_chain: u64) -> bool {
        self.chain == chain_after(&self.encode(), previous_chain)
    }

    /// Checks the body's hash and padding, and gives its bytes without the padding.
    pub(crate) fn verify<'a>(&self, body: &'a [u64]) -> Result<&'a [u8], Flaw> {
        let (bytes, padding) = bytemuck::cast_slice::<u64, u8>(body).split_at(self.body_bytes);
        if xxh3_64(bytes) != self.body_hash {
            return Err(Flaw::Body);
        }
        if padding.iter().any(|byte| *byte != 0) {
            return Err(Flaw::NotZero);
        }
        Ok(bytes)
    }

    /// Verifies the body and reads what it says. The data is a copy of exactly its own size.
    pub(crate) fn record(&self, body: &[u64]) -> Result<Record, Flaw> {
        let bytes = self.verify(body)?;
        match self.kind {
            Kind::Close => Ok(Record::Close),
            Kind::EpochStart => {
                let body: &[u64; EPOCH_START_WORDS] = body.try_into().map_err(|_| Flaw::Content)?;
                let [start, previous_end, previous_chain, id_low, id_high, ring_bytes, lease_ms] = *body;
                let start = EpochStart {
                    epoch: self.epoch,
                    start: Lsn::new(start),
                    previous_end: Lsn::new(previous_end),
                    previous_chain,
                    lease_ms,
                };
                let cluster_id = Uuid::from_bytes(bytemuck::cast([id_low, id_high]));
                Ok(Record::EpochStart(start, cluster_id, ring_bytes))
            }
            Kind::Append | Kind::Truncate => {
                let (name, data) = bytes[WORD_BYTES..].split_at(self.name_bytes);
                let seqno = Seqno::new(body[0]).map_err(|_| Flaw::Content)?;
                let shard = ShardName::from_bytes(name).map_err(|_| Flaw::Content)?;
                Ok(Record::Change(if self.kind == Kind::Append {
                    Change::Append { shard, seqno, data: Bytes::copy_from_slice(data) }
                } else {
                    Change::Truncate { shard, cut: seqno }
                }))
            }
        }
    }

    pub(crate) fn info(&self) -> RecordInfo {
        RecordInfo {
            kind: self.kind,
            start: Lsn::new(self.lsn.get() - record_bytes(self.body_bytes)),
            end: self.lsn,
            epoch: self.epoch,
            flushed: self.flushed,
            chain: self.chain,
        }
    }
}

/// A record, read back and verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A change of a shard.
    Change(Change),
    /// An epoch begins; with the cluster's id and the size of the RW's ring in bytes, which bounds how far the epoch's
    /// log can reach past what was flushed (E2).
    EpochStart(EpochStart, Uuid, u64),
    /// The log was stopped in order.
    Close,
}

/// Where a record lies in the log and what its header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordInfo {
    /// What it is.
    pub kind: Kind,
    /// Where it begins.
    pub start: Lsn,
    /// Where it ends: its LSN.
    pub end: Lsn,
    /// The epoch that wrote it.
    pub epoch: Epoch,
    /// The flushed LSN when it was appended.
    pub flushed: Lsn,
    /// The chained checksum after it.
    pub chain: u64,
}

#[cfg(test)]
mod tests;
