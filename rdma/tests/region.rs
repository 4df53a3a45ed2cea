//! Regions by themselves.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use common::DEADLINE;
use headwater_rdma::{Access, BELL_WORDS, Export, Region, RegionError};
use rustix::process::{Resource, Rlimit, setrlimit};

#[test]
fn a_region_has_the_words_asked_for_all_zero() {
    for words in [BELL_WORDS, 513, 100_000] {
        let region = Region::create("size", words).unwrap();
        assert_eq!(region.words().len(), words);
        assert_eq!(region.words().as_ptr().addr() % 4096, 0);
        assert!(region.words().iter().all(|word| word.load(Ordering::Relaxed) == 0));
    }
}

/// Where the system has huge pages, large regions lie in them, and are shared like others; where it has none too.
#[test]
fn a_large_region_takes_huge_pages_where_there_are_some() {
    let free = || {
        let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
        std::fs::read_to_string(path).map_or(0, |text| text.trim().parse::<u64>().unwrap())
    };
    let words = (5 << 20) / 8 + 1;
    let before = free();
    let region = Region::create("huge", words).unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (_, ours) = smaps.split_once("memfd:huge").unwrap();
    let page = ours.lines().find_map(|line| line.strip_prefix("KernelPageSize:")).unwrap().trim();
    assert_eq!(page == "2048 kB", before >= 3, "{before} huge pages were free: {page}");
    region.words()[words - 1].store(7, Ordering::SeqCst);

    let export = Export { id: 1, region: region.clone(), access: Access::Write };
    let (_owner, writer) = common::shm(vec![export], vec![]);
    writer.write(1, words - 1, &[8]).unwrap();
    assert_eq!(region.words()[words - 1].load(Ordering::SeqCst), 8);
    assert!(writer.write(1, words, &[8]).is_err());
    drop((writer, _owner, region));
    assert!(before < 3 || free() > before - 3, "they are given back");
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for words in [0, BELL_WORDS - 1, isize::MAX as usize / 8 + 1, usize::MAX] {
        let error = Region::create("size", words).unwrap_err();
        assert!(matches!(error, RegionError::Size { .. }), "{error}");
    }
    let error = Region::create(&"too long a name".repeat(100), 64).unwrap_err();
    assert!(matches!(error, RegionError::Os { .. }), "{error}");
}

#[test]
fn memory_that_the_machine_does_not_have_is_refused() {
    // Should the check be missing, the kernel must not try: it would kill whatever runs on this machine.
    let limit = Rlimit { current: Some(1 << 30), maximum: None };
    setrlimit(Resource::Fsize, limit).unwrap();
    let error = Region::create("large", 1 << 45).unwrap_err();
    assert!(matches!(error, RegionError::Memory { .. }), "{error}");
}

#[test]
fn forked_children_do_not_inherit_it() {
    let _region = Region::create("not-for-children", 64).unwrap();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (_, ours) = maps.split_once("memfd:not-for-children").unwrap();
    let flags = ours.lines().find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
    assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
}

#[test]
fn a_sleeper_sleeps_no_longer_than_asked_and_not_at_all_after_news() {
    let region = Region::create("bell", 64).unwrap();
    let start = Instant::now();
    region.sleep(region.rings(), Duration::from_millis(20));
    assert!(start.elapsed() >= Duration::from_millis(19));

    let seen = region.rings();
    region.ring();
    assert_eq!(region.rings(), seen + 1);
    region.sleep(seen, Duration::MAX);
}

#[test]
fn the_count_of_rings_may_overflow() {
    let region = Region::create("bell", 64).unwrap();
    region.words()[0].store(u64::from(u32::MAX), Ordering::SeqCst);
    let seen = region.rings();
    assert_eq!(seen, u32::MAX);
    region.ring();
    assert_eq!(region.rings(), 0);
    region.sleep(seen, Duration::MAX);
}

#[test]
fn one_ring_wakes_all_who_sleep() {
    let region = Region::create("bell", 64).unwrap();
    let sleepers: Vec<_> = (0..4)
        .map(|_| {
            let region: Arc<Region> = region.clone();
            thread::spawn(move || {
                let start = Instant::now();
                region.sleep(0, DEADLINE);
                start.elapsed()
            })
        })
        .collect();
    common::wait_for("four sleepers", || region.words()[1].load(Ordering::SeqCst) == 4);
    region.ring();
    for sleeper in sleepers {
        assert!(sleeper.join().unwrap() < DEADLINE / 2);
    }
}
