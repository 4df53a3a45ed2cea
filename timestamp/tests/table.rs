//! R4 and R5: a slot that is shared says enough for each of those who share it, and only grows.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use headwater_protocol::{Epoch, Lsn, Seqno};
use headwater_timestamp::{Layout, Table};
use proptest::prelude::*;

type Memory = Arc<Vec<AtomicU64>>;

fn seqno(n: u64) -> Seqno {
    Seqno::new(n).unwrap()
}

fn table(layout: Layout, recovered: u64) -> (Table, Memory) {
    let memory: Memory = Arc::new((0..layout.words()).map(|_| AtomicU64::new(0)).collect());
    (Table::new(memory.clone(), layout, Epoch::new(3), Lsn::new(recovered)), memory)
}

fn read(memory: &Memory, word: usize) -> u64 {
    memory[word].load(Ordering::Acquire)
}

#[test]
fn r5_every_word_is_at_least_the_recovered_lsn() {
    let layout = Layout { shard_slots: 5, page_slots: 7, page_entries: 10 };
    let (table, memory) = table(layout, 800);
    assert_eq!(read(&memory, layout.epoch()), 3);
    assert_eq!(table.global(), Lsn::new(800));
    assert!((layout.global()..layout.words()).all(|word| read(&memory, word) == 800));
    assert!((0..layout.epoch()).all(|word| read(&memory, word) == 0), "the transport's words are left alone");
}

#[test]
fn r5_memory_of_an_earlier_epoch_does_not_fall() {
    let layout = Layout { shard_slots: 1, page_slots: 1, page_entries: 1 };
    let (first, memory) = table(layout, 0);
    first.stamp_append("a", Seqno::ZERO, Lsn::new(900));
    let second = Table::new(memory.clone(), layout, Epoch::new(4), Lsn::new(800));
    assert_eq!(second.global(), Lsn::new(800));
    assert_eq!(read(&memory, layout.shard("a")), 900);
    assert_eq!(read(&memory, layout.epoch()), 4);
}

#[test]
fn stamps_stay_with_their_shard_and_pages() {
    let layout = Layout { shard_slots: 1 << 16, page_slots: 1 << 16, page_entries: 10 };
    let (table, memory) = table(layout, 8);
    table.stamp_append("a", seqno(25), Lsn::new(16));
    table.stamp_truncate("a", seqno(0)..seqno(20), Lsn::new(24));
    table.stamp_truncate("a", seqno(20)..seqno(20), Lsn::new(32));
    let pages: Vec<u64> = (0..4).map(|page| read(&memory, layout.page("a", page))).collect();
    assert_eq!(pages, [24, 24, 16, 8]);
    assert_eq!(read(&memory, layout.shard("a")), 32);
    assert_eq!((read(&memory, layout.shard("b")), read(&memory, layout.page("b", 0))), (8, 8));
    assert_eq!(table.global(), Lsn::new(8), "stamped by itself");
}

#[test]
fn a_truncate_of_everything_ends() {
    let layout = Layout { shard_slots: 1, page_slots: 1000, page_entries: 1 };
    let (table, memory) = table(layout, 0);
    table.stamp_truncate("a", Seqno::ZERO..Seqno::MAX, Lsn::new(8));
    assert!((0..1000).all(|page| read(&memory, layout.page("a", page)) == 8));
}

#[test]
fn a_smaller_stamp_changes_nothing() {
    let layout = Layout { shard_slots: 1, page_slots: 1, page_entries: 1 };
    let (table, memory) = table(layout, 0);
    for lsn in [24, 16].map(Lsn::new) {
        table.stamp_append("a", Seqno::ZERO, lsn);
        table.stamp_truncate("a", Seqno::ZERO..seqno(1), lsn);
        table.stamp_global(lsn);
    }
    assert!((layout.global()..layout.words()).all(|word| read(&memory, word) == 24));
}

#[test]
fn words_only_grow_however_many_stamp() {
    const THREADS: u64 = 4;
    const STAMPS: u64 = 20_000;
    let layout = Layout { shard_slots: 1, page_slots: 1, page_entries: 1 };
    let (table, memory) = table(layout, 0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stampers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let table = &table;
                scope.spawn(move || {
                    for i in 0..STAMPS {
                        // Up and down, and not last at the largest.
                        let lsn = Lsn::new(i * 7919 % STAMPS * THREADS + thread);
                        table.stamp_append("a", Seqno::ZERO, lsn);
                        table.stamp_global(lsn);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut last = [0; 3];
            while !done.load(Ordering::Relaxed) {
                let now =
                    [layout.global(), layout.shard("a"), layout.page("a", 0)].map(|word| read(&memory, word));
                assert!(now.iter().zip(&last).all(|(now, last)| now >= last), "{last:?} became {now:?}");
                last = now;
            }
        });
        stampers.into_iter().for_each(|stamper| stamper.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    for word in [layout.global(), layout.shard("a"), layout.page("a", 0)] {
        assert_eq!(read(&memory, word), THREADS * STAMPS - 1);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Append { shard: usize, seqno: u64 },
    Truncate { shard: usize, lo: u64, removed: u64 },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..4usize, 0..40u64).prop_map(|(shard, seqno)| Op::Append { shard, seqno }),
        (0..4usize, 0..20u64, 0..20u64).prop_map(|(shard, lo, removed)| Op::Truncate { shard, lo, removed }),
    ]
}

proptest! {
    #[test]
    fn r4_few_slots_are_still_right(
        shard_slots in 1..4u32,
        page_slots in 1..5u32,
        page_entries in 1..4u32,
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let layout = Layout { shard_slots, page_slots, page_entries };
        let (table, memory) = table(layout, 8);
        let names = ["a", "b", "c", "d"];
        let mut shards = BTreeMap::new();
        let mut pages = BTreeMap::new();
        let mut before: Vec<u64> = vec![0; layout.words()];
        for (i, op) in ops.into_iter().enumerate() {
            let lsn = 16 + 8 * i as u64;
            match op {
                Op::Append { shard, seqno: n } => {
                    table.stamp_append(names[shard], seqno(n), Lsn::new(lsn));
                    shards.insert(names[shard], lsn);
                    pages.insert((names[shard], n / u64::from(page_entries)), lsn);
                }
                Op::Truncate { shard, lo, removed } => {
                    table.stamp_truncate(names[shard], seqno(lo)..seqno(lo + removed), Lsn::new(lsn));
                    shards.insert(names[shard], lsn);
                    for n in lo..lo + removed {
                        pages.insert((names[shard], n / u64::from(page_entries)), lsn);
                    }
                }
            }
            table.stamp_global(Lsn::new(lsn));
            prop_assert_eq!(table.global(), Lsn::new(lsn));
            for (name, &stamped) in &shards {
                prop_assert!(read(&memory, layout.shard(name)) >= stamped);
            }
            for (&(name, page), &stamped) in &pages {
                prop_assert!(read(&memory, layout.page(name, page)) >= stamped);
            }
            let after: Vec<u64> = (0..layout.words()).map(|word| read(&memory, word)).collect();
            prop_assert!(before.iter().zip(&after).all(|(before, after)| after >= before));
            before = after;
        }
    }
}
