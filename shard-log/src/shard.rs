use std::collections::VecDeque;

use bytes::Bytes;
use headwater_protocol::{Entry, Lsn, Seqno, ShardName};
use thiserror::Error;
use xxhash_rust::xxh3::Xxh3;

/// Where a shard begins and ends, at one instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The lowest seqno that is still there.
    pub lo: Seqno,
    /// The largest seqno.
    pub head: Seqno,
    /// LSN of the shard's last change.
    pub lsn: Lsn,
}

/// What a scan found, at one instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scan {
    /// The entries in ascending order, without gaps. They share their bytes with the log.
    pub entries: Vec<Entry>,
    /// Whether a cap cut the answer: there are entries after the last one given.
    pub more: bool,
    /// The shard's bounds at the instant of the scan.
    pub bounds: Bounds,
}

/// A change that does not follow from what came before. Nothing was applied; the log it came from is damaged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum Violation {
    /// An append anywhere but one past the head.
    #[error("append of {seqno} to shard {shard:?}, whose head is {head}")]
    NotNext {
        /// The shard.
        shard: ShardName,
        /// The seqno of the refused entry.
        seqno: Seqno,
        /// The shard's head.
        head: Seqno,
    },
    /// A truncate of a shard that was never written.
    #[error("truncate of shard {shard:?}, which was never written")]
    NeverWritten {
        /// The shard.
        shard: ShardName,
    },
    /// A truncate that would remove the head.
    #[error("truncate below {cut} of shard {shard:?}, whose head is {head}")]
    PastHead {
        /// The shard.
        shard: ShardName,
        /// The refused lowest seqno.
        cut: Seqno,
        /// The shard's head.
        head: Seqno,
    },
}

/// One shard that was written.
///
/// - Its seqnos are the interval `[lo, head]`: `entries[i]` is the entry at `lo + i`.
/// - It is never empty, so it always has a head.
/// - `head` is at most [`Seqno::MAX`].
/// - `lo`, `head` and `lsn` never fall.
///
/// There may be millions of these with one entry each: it has no field that can be had from another.
pub(crate) struct Shard {
    lo: Seqno,
    lsn: Lsn,
    entries: VecDeque<Bytes>,
}

impl Shard {
    /// A shard whose first write is at `seqno`.
    pub(crate) fn new(seqno: Seqno, data: Bytes, lsn: Lsn) -> Shard {
        // Most shards of a large log hold one entry; growing by itself, the queue would begin with four places.
        let mut entries = VecDeque::with_capacity(1);
        entries.push_back(data);
        let shard = Shard { lo: seqno, lsn, entries };
        shard.check();
        shard
    }

    /// Adds the entry at `seqno`, or says what the head is.
    pub(crate) fn append(&mut self, seqno: Seqno, data: Bytes, lsn: Lsn) -> Result<(), Seqno> {
        let head = self.head();
        if head.next() != Some(seqno) {
            return Err(head);
        }
        self.entries.push_back(data);
        self.changed(lsn);
        Ok(())
    }

    /// Takes out the entries below `cut`, or says what the head is. The caller drops them when it holds no lock.
    pub(crate) fn truncate(&mut self, cut: Seqno, lsn: Lsn) -> Result<VecDeque<Bytes>, Seqno> {
        let head = self.head();
        if cut > head {
            return Err(head);
        }
        let removed = self.index(cut);
        let kept = self.entries.len() - removed;
        // A queue that would stay mostly empty is left to the removed entries, and its memory goes with them.
        let removed = if kept * 4 < self.entries.capacity() {
            let kept = self.entries.split_off(removed);
            std::mem::replace(&mut self.entries, kept)
        } else {
            self.entries.drain(..removed).collect()
        };
        self.lo = self.lo.max(cut);
        self.changed(lsn);
        Ok(removed)
    }

    pub(crate) fn bounds(&self) -> Bounds {
        Bounds { lo: self.lo, head: self.head(), lsn: self.lsn }
    }

    pub(crate) fn head_entry(&self) -> Entry {
        self.entry(self.entries.len() - 1)
    }

    /// At most `limit` entries from `from` on, and no more than `bytes_max` bytes of data unless the first alone
    /// has more.
    pub(crate) fn scan(&self, from: Seqno, limit: u32, bytes_max: u32) -> Scan {
        let first = self.index(from);
        let end = self.entries.len().min(first.saturating_add(limit as usize));
        let mut entries = Vec::new();
        let mut bytes = 0;
        for i in first..end {
            bytes += self.entries[i].len();
            if bytes > bytes_max as usize && !entries.is_empty() {
                break;
            }
            entries.push(self.entry(i));
        }
        let more = first + entries.len() < self.entries.len();
        Scan { entries, more, bounds: self.bounds() }
    }

    /// A digest of the shard named `name`: its name, `lo`, and every entry's bytes. Each part's length goes before
    /// it, so that no two states run into the same bytes; the entries' seqnos follow from `lo` and their order.
    pub(crate) fn digest(&self, name: &str) -> u64 {
        let mut digest = Xxh3::new();
        let mut part = |bytes: &[u8]| {
            digest.update(&(bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        part(name.as_bytes());
        part(&self.lo.get().to_le_bytes());
        self.entries.iter().for_each(|data| part(data));
        digest.digest()
    }

    fn head(&self) -> Seqno {
        self.seqno(self.entries.len() - 1)
    }

    /// The seqno of `entries[i]`.
    fn seqno(&self, i: usize) -> Seqno {
        Seqno::new(self.lo.get() + i as u64).expect("no entry was accepted past the largest seqno")
    }

    fn entry(&self, i: usize) -> Entry {
        Entry { seqno: self.seqno(i), data: self.entries[i].clone() }
    }

    /// The place in `entries` of the first seqno that is at least `seqno`: the number of entries below it.
    fn index(&self, seqno: Seqno) -> usize {
        let below = seqno.get().saturating_sub(self.lo.get());
        usize::try_from(below).map_or(self.entries.len(), |below| below.min(self.entries.len()))
    }

    fn changed(&mut self, lsn: Lsn) {
        debug_assert!(lsn >= self.lsn, "a change at LSN {lsn} after one at {}", self.lsn);
        self.lsn = lsn;
        self.check();
    }

    fn check(&self) {
        debug_assert!(!self.entries.is_empty(), "a written shard is never empty");
        debug_assert!(
            self.entries.len() as u64 - 1 <= Seqno::MAX.get() - self.lo.get(),
            "{} entries from {} on pass the largest seqno",
            self.entries.len(),
            self.lo
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seqno(n: u64) -> Seqno {
        Seqno::new(n).unwrap()
    }

    fn filled(n: u64) -> Shard {
        let mut shard = Shard::new(Seqno::ZERO, Bytes::new(), Lsn::ZERO);
        for i in 1..n {
            shard.append(seqno(i), Bytes::new(), Lsn::ZERO).unwrap();
        }
        shard
    }

    #[test]
    fn stays_small() {
        assert!(size_of::<Shard>() <= 48);
        assert_eq!(Shard::new(Seqno::ZERO, Bytes::new(), Lsn::ZERO).entries.capacity(), 1);
    }

    #[test]
    fn big_truncates_release_memory() {
        let mut shard = filled(10_000);
        let removed = shard.truncate(seqno(9_998), Lsn::ZERO).unwrap();
        assert_eq!(removed.len(), 9_998);
        assert!(shard.entries.capacity() < 16, "{}", shard.entries.capacity());
    }

    #[test]
    fn many_small_truncates_release_memory_too() {
        let mut shard = filled(10_000);
        for cut in 1..=9_998 {
            assert_eq!(shard.truncate(seqno(cut), Lsn::ZERO).unwrap().len(), 1);
        }
        assert!(shard.entries.capacity() < 16, "{}", shard.entries.capacity());
    }

    #[test]
    fn digest_tells_where_an_entry_ends() {
        let digest = |first: &'static [u8], second: &'static [u8]| {
            let mut shard = Shard::new(Seqno::ZERO, first.into(), Lsn::ZERO);
            shard.append(seqno(1), second.into(), Lsn::ZERO).unwrap();
            shard.digest("s")
        };
        assert_ne!(digest(b"ab", b"c"), digest(b"a", b"bc"));
    }
}
