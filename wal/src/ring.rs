//! The ring: the newest bytes of the log in memory, each at its LSN modulo the ring's size.
//!
//! The memory comes from the caller, who may let others read it from afar (S1), and is reached word by word with
//! relaxed atomics only: a word that somebody else writes meanwhile is a stale or a new word, never undefined
//! behaviour. What makes a copy trustworthy comes from the positions ([`Ring`]) or from verification
//! ([`Receiver`](crate::Receiver)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crossbeam::utils::CachePadded;
use headwater_protocol::Lsn;

use crate::error::Overwritten;
use crate::record::{HEADER_WORDS, LSN_WORD, WORD_BYTES};

/// Memory that others may read or write at any time.
pub type Words = Arc<dyn AsRef<[AtomicU64]> + Send + Sync>;

/// Bytes of the smallest ring.
const RING_BYTES_MIN: u64 = 4096;

/// The part of some [`Words`] that is a ring. It places words by LSN and promises nothing about their order.
pub(crate) struct RingMemory {
    words: Words,
    first_word: usize,
    bytes: u64,
}

impl RingMemory {
    /// Panics if the memory is too small or the size no power of two of at least 4,096: both are the caller's choice.
    pub(crate) fn new(words: Words, first_word: usize, bytes: u64) -> RingMemory {
        assert!(bytes.is_power_of_two() && bytes >= RING_BYTES_MIN, "a ring of {bytes} bytes");
        let len = (*words).as_ref().len();
        assert!(
            first_word + bytes as usize / WORD_BYTES <= len,
            "a ring of {bytes} bytes from word {first_word} does not fit into {len} words"
        );
        RingMemory { words, first_word, bytes }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The places of `count` words from `lsn` on: up to the ring's end, then from its beginning.
    fn places(&self, lsn: Lsn, count: usize) -> (&[AtomicU64], &[AtomicU64]) {
        let ring_words = self.bytes as usize / WORD_BYTES;
        debug_assert!(
            lsn.get().is_multiple_of(WORD_BYTES as u64) && count <= ring_words,
            "{count} words at {lsn}"
        );
        let ring = &(*self.words).as_ref()[self.first_word..][..ring_words];
        let first = (lsn.get() % self.bytes) as usize / WORD_BYTES;
        let until_end = count.min(ring_words - first);
        (&ring[first..first + until_end], &ring[..count - until_end])
    }

    pub(crate) fn load(&self, from: Lsn, out: &mut [u64]) {
        let (head, wrapped) = self.places(from, out.len());
        for (to, word) in out.iter_mut().zip(head.iter().chain(wrapped)) {
            *to = word.load(Ordering::Relaxed);
        }
    }

    fn store(&self, at: Lsn, words: &[u64]) {
        let (head, wrapped) = self.places(at, words.len());
        for (word, place) in words.iter().zip(head.iter().chain(wrapped)) {
            place.store(*word, Ordering::Relaxed);
        }
    }
}

/// The RW's side of the ring: one writer, any number of readers.
///
/// - `start <= appended <= reserved`; all are multiples of 8 and only grow; `appended` is always a record's end.
/// - The words of `[max(start, reserved - bytes), appended)` are the log's.
/// - `reserved` grows before the words that it announces are touched, `appended` after: a reader that finds `reserved`
///   no further than a ring past its first word, after copying, copied no word of a later round (S5).
pub struct Ring {
    memory: RingMemory,
    start: Lsn,
    reserved: CachePadded<AtomicU64>,
    appended: CachePadded<AtomicU64>,
}

impl Ring {
    /// An empty ring of `ring_bytes` (a power of two, at least 4,096) in `words` from `first_word` on, for a log that
    /// goes on at `start`.
    ///
    /// Panics if the memory is too small.
    pub fn new(words: Words, first_word: usize, ring_bytes: u64, start: Lsn) -> Ring {
        let at_start = || CachePadded::new(AtomicU64::new(start.get()));
        let memory = RingMemory::new(words, first_word, ring_bytes);
        Ring { memory, start, reserved: at_start(), appended: at_start() }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// The end of what was appended: whoever has seen this LSN can copy the bytes before it.
    pub fn appended(&self) -> Lsn {
        Lsn::new(self.appended.load(Ordering::Acquire))
    }

    /// Copies the log's words from `from` on into `out`, which must end at or before [`Ring::appended`].
    ///
    /// [`Overwritten`] if any of it may have been overwritten meanwhile (S5), or is from before this ring began.
    pub fn copy_out(&self, from: Lsn, out: &mut [u64]) -> Result<(), Overwritten> {
        if from < self.start || (out.len() * WORD_BYTES) as u64 > self.bytes() {
            return Err(Overwritten);
        }
        debug_assert!(
            from.advance((out.len() * WORD_BYTES) as u64) <= self.appended(),
            "read past the end at {from}"
        );
        self.memory.load(from, out);
        // Whoever read a word of a later round must also see that it was reserved: this fence meets the writer's.
        fence(Ordering::Acquire);
        let reserved = Lsn::new(self.reserved.load(Ordering::Relaxed));
        if reserved.since(from) > self.bytes() { Err(Overwritten) } else { Ok(()) }
    }

    /// Writes a record at the end. Only the [`Appender`](crate::Appender), which is one, calls it.
    pub(crate) fn append(&self, header: &[u64; HEADER_WORDS], body: &[u64]) {
        let start = self.appended();
        let end = start.advance(((HEADER_WORDS + body.len()) * WORD_BYTES) as u64);
        debug_assert_eq!(end.get(), header[LSN_WORD], "a record ends where its header says");
        self.reserved.store(end.get(), Ordering::Relaxed);
        fence(Ordering::Release);
        self.memory.store(start, header);
        self.memory.store(start.advance((HEADER_WORDS * WORD_BYTES) as u64), body);
        self.appended.store(end.get(), Ordering::Release);
        self.check();
    }

    /// The last record's end in `(from, from + bytes]`, or the first record's end if it alone is longer. `from` must
    /// be a record's end before [`Ring::appended`], and must not be overwritten meanwhile.
    pub(crate) fn record_end_within(&self, from: Lsn, bytes: u64) -> Lsn {
        let appended = self.appended();
        if appended.since(from) <= bytes {
            return appended;
        }
        let mut end = from;
        loop {
            let mut word = [0];
            self.memory.load(end.advance((LSN_WORD * WORD_BYTES) as u64), &mut word);
            let next = Lsn::new(word[0]);
            debug_assert!(end < next && next <= appended, "{end} < {next} <= {appended}");
            if next.since(from) > bytes {
                return if end > from { end } else { next };
            }
            end = next;
        }
    }

    fn check(&self) {
        let (reserved, appended) =
            (self.reserved.load(Ordering::Relaxed), self.appended.load(Ordering::Relaxed));
        debug_assert!(
            self.start.get() <= appended && appended <= reserved,
            "{} {appended} {reserved}",
            self.start
        );
        debug_assert!(appended.is_multiple_of(WORD_BYTES as u64), "{appended}");
    }
}

#[cfg(test)]
mod tests;
