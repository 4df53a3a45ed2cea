//! R3: the pages that are checked are enough, and no more than need be.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;

use headwater_protocol::Seqno;
use headwater_timestamp::{InvalidLayout, Layout, SLOTS_MAX};

const MAX: u64 = i64::MAX as u64;

fn seqno(n: u64) -> Seqno {
    Seqno::new(n).unwrap()
}

fn layout(page_entries: u32) -> Layout {
    Layout { shard_slots: 4, page_slots: 8, page_entries }
}

fn scan_pages(page_entries: u32, (lo, head): (u64, u64), from: u64, limit: u32) -> (u64, u64) {
    layout(page_entries).scan_pages((seqno(lo), seqno(head)), seqno(from), limit).into_inner()
}

#[test]
fn validate_refuses_what_is_out_of_bounds() {
    let valid = Layout { shard_slots: 1, page_slots: SLOTS_MAX, page_entries: 1 };
    assert_eq!(valid.validate(), Ok(()));
    assert_eq!(Layout { shard_slots: 0, ..valid }.validate(), Err(InvalidLayout::ShardSlots(0)));
    let beyond = SLOTS_MAX + 1;
    assert_eq!(Layout { shard_slots: beyond, ..valid }.validate(), Err(InvalidLayout::ShardSlots(beyond)));
    assert_eq!(Layout { page_slots: 0, ..valid }.validate(), Err(InvalidLayout::PageSlots(0)));
    assert_eq!(Layout { page_slots: beyond, ..valid }.validate(), Err(InvalidLayout::PageSlots(beyond)));
    assert_eq!(Layout { page_entries: 0, ..valid }.validate(), Err(InvalidLayout::PageEntries));
}

#[test]
fn every_word_has_one_meaning() {
    let layout = Layout { shard_slots: 3, page_slots: 5, page_entries: 10 };
    let names: Vec<String> = (0..200).map(|i| format!("shard {i}")).collect();
    let shards: HashSet<usize> = names.iter().map(|name| layout.shard(name)).collect();
    let pages: HashSet<usize> = names.iter().map(|name| layout.page(name, MAX)).collect();
    assert_eq!((shards.len(), pages.len()), (3, 5), "every slot is used, and only those");
    let header = HashSet::from([layout.epoch(), layout.global()]);
    assert_eq!(header.len(), 2);
    assert!(header.is_disjoint(&shards) && header.is_disjoint(&pages) && shards.is_disjoint(&pages));
    let all = header.iter().chain(&shards).chain(&pages);
    assert!(all.clone().all(|&word| word >= headwater_protocol::regions::BELL_WORDS));
    assert_eq!(all.max(), Some(&(layout.words() - 1)));
}

/// RW and RO may be of different builds: where a name lands is part of what they agree on.
#[test]
fn words_of_a_name_never_change() {
    let layout = Layout { shard_slots: 1 << 20, page_slots: 1 << 20, page_entries: 256 };
    assert_eq!(layout.shard("a/b"), 394766);
    assert_eq!(layout.page("a/b", 0), 1327641);
    assert_eq!(layout.page("a/b", 1), 1327642);
}

#[test]
fn page_words_are_those_of_the_pages() {
    let layout = layout(1);
    for name in ["a", "b", "c", "d"] {
        for start in [0, 1, 7, 8, 1000] {
            for count in 1..20 {
                let pages = start..=start + count - 1;
                let expected: HashSet<usize> = pages.clone().map(|page| layout.page(name, page)).collect();
                let words: Vec<usize> = layout.page_words(name, pages).collect();
                assert_eq!(words.len(), expected.len(), "each once");
                assert_eq!(HashSet::from_iter(words), expected);
            }
        }
        assert_eq!(layout.page_words(name, 0..=MAX).count(), 8);
    }
}

#[test]
fn r3_scan_pages_at_the_edges() {
    // Within the shard: as far as the limit goes, and one further.
    assert_eq!(scan_pages(10, (0, 99), 0, 9), (0, 0));
    assert_eq!(scan_pages(10, (0, 99), 0, 10), (0, 1));
    assert_eq!(scan_pages(10, (0, 99), 35, 0), (3, 3));
    assert_eq!(scan_pages(10, (0, 99), 39, 1), (3, 4));
    // From before the lowest.
    assert_eq!(scan_pages(10, (50, 99), 0, 10), (5, 6));
    // Up to the next append, and no further.
    assert_eq!(scan_pages(10, (0, 98), 0, u32::MAX), (0, 9));
    assert_eq!(scan_pages(10, (0, 99), 0, u32::MAX), (0, 10));
    // From past the head: the next append.
    assert_eq!(scan_pages(10, (0, 98), 99, 5), (9, 9));
    assert_eq!(scan_pages(10, (0, 99), 500, 5), (10, 10));
    assert_eq!(scan_pages(10, (0, 99), MAX, u32::MAX), (10, 10));
    // At the largest seqno nothing follows.
    assert_eq!(scan_pages(1, (0, MAX), MAX, u32::MAX), (MAX, MAX));
    assert_eq!(scan_pages(1, (0, MAX - 1), MAX, 0), (MAX, MAX));
    assert_eq!(scan_pages(1, (0, MAX), 0, u32::MAX), (0, u64::from(u32::MAX)));
    assert_eq!(
        scan_pages(u32::MAX, (0, MAX), MAX, 0),
        (MAX / u64::from(u32::MAX), MAX / u64::from(u32::MAX))
    );
}

#[test]
fn r3_head_pages_at_the_edges() {
    let head_pages = |head| layout(10).head_pages(seqno(head)).into_inner();
    assert_eq!(head_pages(0), (0, 0));
    assert_eq!(head_pages(8), (0, 0));
    assert_eq!(head_pages(9), (0, 1));
    assert_eq!(head_pages(10), (1, 1));
    assert_eq!(layout(1).head_pages(Seqno::MAX).into_inner(), (MAX, MAX));
}

/// A shard's bounds, and what the RW may do next.
#[derive(Clone, Copy)]
struct Bounds {
    lo: u64,
    head: u64,
}

impl Bounds {
    /// A scan's entries, and whether there are more.
    fn scan(self, from: u64, limit: u32) -> (Vec<u64>, bool) {
        let all = (self.lo.max(from)..=self.head).collect::<Vec<_>>();
        let given = all.iter().copied().take(limit as usize).collect::<Vec<_>>();
        let more = given.len() < all.len();
        (given, more)
    }

    /// Every operation that the RW can carry out next: the bounds it leaves and the seqnos whose pages it stamps.
    fn operations(self) -> Vec<(Bounds, std::ops::Range<u64>)> {
        let truncates = (self.lo + 1..=self.head).map(|cut| (Bounds { lo: cut, ..self }, self.lo..cut));
        let append =
            (self.head < MAX).then(|| self.head + 1).map(|head| (Bounds { head, ..self }, head..head + 1));
        truncates.chain(append).collect()
    }
}

/// Walks every run of at most `steps` operations from `bounds`, as long as none stamps a page that `checked` holds,
/// and calls `unseen` with each state that it comes to: what an RO would take for fresh.
fn walk(
    layout: Layout,
    bounds: Bounds,
    checked: &std::ops::RangeInclusive<u64>,
    steps: u32,
    unseen: &impl Fn(Bounds),
) {
    unseen(bounds);
    if steps == 0 {
        return;
    }
    for (next, stamped) in bounds.operations() {
        if !stamped.map(|n| layout.page_of(seqno(n))).any(|page| checked.contains(&page)) {
            walk(layout, next, checked, steps - 1, unseen);
        }
    }
}

fn all_bounds() -> impl Iterator<Item = Bounds> {
    let small = (0..6).flat_map(|lo| (lo..lo + 6).map(move |head| Bounds { lo, head }));
    let last = (MAX - 6..=MAX).flat_map(|lo| (lo..=MAX).map(move |head| Bounds { lo, head }));
    small.chain(last)
}

#[test]
fn r3_no_operation_changes_a_scan_without_stamping_one_of_its_pages() {
    for page_entries in [1, 2, 3, 5] {
        let layout = layout(page_entries);
        for bounds in all_bounds() {
            let (near, far) = (bounds.lo.saturating_sub(3), bounds.head.saturating_add(4).min(MAX));
            for from in (near..=far).chain([0, MAX]) {
                for limit in [0, 1, 2, 3, 5, 8, u32::MAX] {
                    let pages = layout.scan_pages((seqno(bounds.lo), seqno(bounds.head)), seqno(from), limit);
                    let answer = bounds.scan(from, limit);
                    walk(layout, bounds, &pages, 3, &|state| {
                        assert_eq!(
                            state.scan(from, limit),
                            answer,
                            "scan({from}, {limit}) with pages {pages:?} of {page_entries}: [{}, {}] became [{}, {}]",
                            bounds.lo,
                            bounds.head,
                            state.lo,
                            state.head,
                        );
                    });
                }
            }
        }
    }
}

#[test]
fn r3_no_operation_changes_the_head_without_stamping_one_of_its_pages() {
    for page_entries in [1, 2, 3, 5] {
        let layout = layout(page_entries);
        for bounds in all_bounds() {
            let pages = layout.head_pages(seqno(bounds.head));
            walk(layout, bounds, &pages, 3, &|state| assert_eq!(state.head, bounds.head));
        }
    }
}
