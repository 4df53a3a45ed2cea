use std::ops::RangeInclusive;

use headwater_protocol::Seqno;
use headwater_protocol::regions::BELL_WORDS;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Slots that shards or pages can have at most: 16 Mi, which are 128 MiB.
pub const SLOTS_MAX: u32 = 16 << 20;

/// Word index of the epoch whose timestamps the table holds (R6).
const EPOCH: usize = BELL_WORDS;
/// Word index of the global timestamp.
const GLOBAL: usize = EPOCH + 1;
/// Word index of the first shard slot.
const SHARDS: usize = GLOBAL + 1;

/// Seed of the hash of a shard's name for its pages, so that shards which share a slot do not also share their pages'.
const PAGE_SEED: u64 = 1;

/// Where the words of the timestamp table lie, the same on both sides: the RW sends it in the handshake.
///
/// All numbers are indexes of 64-bit words within the region:
///
/// | words | what |
/// | --- | --- |
/// | 0 to [`BELL_WORDS`] | the transport's |
/// | 1 | epoch |
/// | 1 | global timestamp |
/// | `shard_slots` | timestamps of shards, by hash of the name |
/// | `page_slots` | timestamps of pages, by hash of the name, a shard's pages one after the other |
///
/// A timestamp is the LSN of the last change that is stamped there, or a later one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layout {
    /// Slots that shards share; 1 to [`SLOTS_MAX`].
    pub shard_slots: u32,
    /// Slots that pages share; 1 to [`SLOTS_MAX`].
    pub page_slots: u32,
    /// Seqnos of a page; at least 1.
    pub page_entries: u32,
}

/// Why a layout is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum InvalidLayout {
    /// `shard_slots` is out of bounds.
    #[error("shard_slots must be 1 to {SLOTS_MAX}, not {0}")]
    ShardSlots(u32),
    /// `page_slots` is out of bounds.
    #[error("page_slots must be 1 to {SLOTS_MAX}, not {0}")]
    PageSlots(u32),
    /// `page_entries` is 0.
    #[error("page_entries must be at least 1")]
    PageEntries,
}

impl Layout {
    /// Checks the bounds. A layout from a file or a peer must be checked before anything else is asked of it.
    pub fn validate(&self) -> Result<(), InvalidLayout> {
        let slots = 1..=SLOTS_MAX;
        if !slots.contains(&self.shard_slots) {
            Err(InvalidLayout::ShardSlots(self.shard_slots))
        } else if !slots.contains(&self.page_slots) {
            Err(InvalidLayout::PageSlots(self.page_slots))
        } else if self.page_entries == 0 {
            Err(InvalidLayout::PageEntries)
        } else {
            Ok(())
        }
    }

    /// Words of the whole region.
    pub fn words(&self) -> usize {
        self.pages() + self.page_slots as usize
    }

    /// The word that holds the number of the epoch whose timestamps these are (R6).
    pub fn epoch(&self) -> usize {
        EPOCH
    }

    /// The word of the global timestamp: the LSN of the last change of all.
    pub fn global(&self) -> usize {
        GLOBAL
    }

    /// The word of a shard's timestamp, which it may share (R4).
    pub fn shard(&self, shard: &str) -> usize {
        SHARDS + slot(xxh3_64(shard.as_bytes()), self.shard_slots)
    }

    /// The word of the timestamp of a shard's page, which it may share (R4). Pages that follow one another have words
    /// that follow one another (after the last comes the first).
    pub fn page(&self, shard: &str, page: u64) -> usize {
        self.pages() + slot(self.page_base(shard) + page % u64::from(self.page_slots), self.page_slots)
    }

    /// The words of a run of a shard's pages, each word once however many pages there are.
    pub fn page_words(&self, shard: &str, pages: RangeInclusive<u64>) -> impl Iterator<Item = usize> {
        let layout = *self;
        let base = self.page_base(shard) + pages.start() % u64::from(self.page_slots);
        let count = (pages.end() - pages.start() + 1).min(u64::from(self.page_slots));
        (base..base + count).map(move |n| layout.pages() + slot(n, layout.page_slots))
    }

    /// The page of a shard's seqno.
    pub fn page_of(&self, seqno: Seqno) -> u64 {
        seqno.get() / u64::from(self.page_entries)
    }

    /// The pages that a scan can touch, by the RO's own `(lo, head)` (R3): if none of them was stamped past what the
    /// RO has applied, no change that it lacks changes the scan's entries or whether there are more.
    ///
    /// They are those of `[max(from, lo), min(max(from, lo) + limit, head + 1)]`. The scan's first entry is in it (a
    /// truncate that removes any of the answer removes the first), and, where the limit does not cut the answer, so is
    /// the next append. A scan from past the head is empty until somebody appends `head + 1`, so the low end is at
    /// most that. Nothing follows [`Seqno::MAX`].
    pub fn scan_pages(&self, bounds: (Seqno, Seqno), from: Seqno, limit: u32) -> RangeInclusive<u64> {
        let (lo, head) = bounds;
        debug_assert!(lo <= head, "a shard's bounds are [{lo}, {head}]");
        let next = head.next().unwrap_or(head);
        let first = from.max(lo).min(next);
        let last = Seqno::new(first.get() + u64::from(limit)).map_or(next, |last| last.min(next));
        self.page_of(first)..=self.page_of(last)
    }

    /// The pages that a read of the head can touch: those of `[head, head + 1]` (R3).
    pub fn head_pages(&self, head: Seqno) -> RangeInclusive<u64> {
        self.page_of(head)..=self.page_of(head.next().unwrap_or(head))
    }

    /// The word of the first page slot.
    fn pages(&self) -> usize {
        SHARDS + self.shard_slots as usize
    }

    /// The slot of a shard's page 0.
    fn page_base(&self, shard: &str) -> u64 {
        xxh3_64_with_seed(shard.as_bytes(), PAGE_SEED) % u64::from(self.page_slots)
    }
}

fn slot(n: u64, slots: u32) -> usize {
    (n % u64::from(slots)) as usize
}
