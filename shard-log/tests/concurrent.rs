//! Readers beside the one thread that applies.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use headwater_protocol::{Lsn, Seqno, ShardName};
use headwater_shard_log::{Bounds, Change, ShardLog};

fn seqno(n: u64) -> Seqno {
    Seqno::new(n).unwrap()
}

fn name(shard: &str) -> ShardName {
    ShardName::new(shard).unwrap()
}

fn append(shard: &ShardName, n: u64) -> Change {
    Change::Append { shard: shard.clone(), seqno: seqno(n), data: Bytes::copy_from_slice(&n.to_le_bytes()) }
}

fn truncate(shard: &ShardName, cut: u64) -> Change {
    Change::Truncate { shard: shard.clone(), cut: seqno(cut) }
}

/// Sets its flag when dropped, so that a panic on one thread ends the loops of the others.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn every_read_is_of_one_instant() {
    const APPENDS: u64 = 100_000;
    let (log, shard, done) = (ShardLog::new(), name("a"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for reader in 0..2 {
            let (log, done) = (&log, &done);
            scope.spawn(move || {
                let mut last: Option<Bounds> = None;
                let mut check = |bounds: Bounds| {
                    assert!(bounds.lo <= bounds.head);
                    if let Some(last) = last {
                        let grew = bounds.lo >= last.lo && bounds.head >= last.head && bounds.lsn >= last.lsn;
                        assert!(grew, "{last:?} became {bounds:?}");
                    }
                    last = Some(bounds);
                };
                while !done.load(Ordering::SeqCst) {
                    if let Some((entry, bounds)) = log.head("a") {
                        assert_eq!(entry.seqno, bounds.head);
                        assert_eq!(entry.data[..], bounds.head.get().to_le_bytes());
                        check(bounds);
                    }
                    let from = last_lo(log).saturating_sub(2 * reader);
                    if let Some(scan) = log.scan("a", seqno(from), u32::MAX, u32::MAX) {
                        let first = scan.bounds.lo.get().max(from);
                        let seqnos = scan.entries.iter().map(|entry| entry.seqno.get());
                        assert!(seqnos.eq(first..=scan.bounds.head.get()), "not all of {:?}", scan.bounds);
                        assert!(
                            scan.entries
                                .iter()
                                .all(|entry| entry.data[..] == entry.seqno.get().to_le_bytes())
                        );
                        check(scan.bounds);
                    }
                }
            });
        }
        let _done = SetOnDrop(&done);
        let mut lsn = Lsn::ZERO;
        for n in 0..APPENDS {
            lsn = lsn.advance(8);
            log.apply(append(&shard, n), lsn).unwrap();
            if n % 16 == 15 {
                lsn = lsn.advance(8);
                log.apply(truncate(&shard, n - n % 7), lsn).unwrap();
            }
        }
    });
    assert!(log.entries() < 32);
}

fn last_lo(log: &ShardLog) -> u64 {
    log.bounds("a").map_or(0, |bounds| bounds.lo.get())
}

#[test]
fn a_shard_and_its_name_appear_together() {
    const SHARDS: u64 = 30_000;
    let (log, done) = (ShardLog::new(), AtomicBool::new(false));
    let created = AtomicU64::new(0);
    let shard = |n: u64| name(&format!("{n:06}"));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let next = shard(created.load(Ordering::SeqCst));
                if log.head(next.as_str()).is_some() {
                    assert_eq!(log.shards(next.as_str(), None, 1).0, [next], "found, but not listed");
                }
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let next = shard(created.load(Ordering::SeqCst));
                if log.shards(next.as_str(), None, 1).0 == [next.clone()] {
                    assert!(log.head(next.as_str()).is_some(), "listed, but not found");
                }
            }
        });
        let _done = SetOnDrop(&done);
        for n in 0..SHARDS {
            log.apply(append(&shard(n), 0), Lsn::new(8 * n)).unwrap();
            created.store(n + 1, Ordering::SeqCst);
        }
    });
    assert_eq!(log.len() as u64, SHARDS);
}

/// Readers that never leave a shard alone between them do not keep the one thread from applying: under a lock that
/// lets readers pass a waiting writer, not one of these appends is applied within the minute.
#[test]
fn readers_do_not_starve_the_applier() {
    const ENTRIES: u64 = 4_000;
    const APPENDS: u64 = 400;
    let (log, shard, done) = (ShardLog::new(), name("a"), AtomicBool::new(false));
    for n in 0..ENTRIES {
        log.apply(append(&shard, n), Lsn::new(8)).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) && Instant::now() < deadline {
                    log.scan("a", Seqno::ZERO, u32::MAX, u32::MAX);
                }
            });
        }
        let _done = SetOnDrop(&done);
        for n in ENTRIES..ENTRIES + APPENDS {
            log.apply(append(&shard, n), Lsn::new(8)).unwrap();
            assert!(Instant::now() < deadline, "{} of {APPENDS} appends applied", n - ENTRIES);
        }
    });
}

mod watch {
    use std::sync::Arc;

    use super::*;

    async fn in_time<F: Future>(future: F) -> F::Output {
        tokio::time::timeout(Duration::from_secs(60), future).await.expect("a change was missed")
    }

    #[tokio::test]
    async fn says_of_changes_of_its_shard_since_the_last_call() {
        let (log, a, b) = (ShardLog::new(), name("a"), name("b"));
        log.apply(append(&b, 0), Lsn::new(8)).unwrap();
        let mut watch = log.watch(&a);
        let mut other = log.watch(&b);
        let pending = async |watch: &mut headwater_shard_log::Watch| {
            tokio::select! {
                biased;
                () = watch.changed() => false,
                () = std::future::ready(()) => true,
            }
        };
        assert!(pending(&mut watch).await, "nothing happened yet");
        log.apply(append(&a, 0), Lsn::new(16)).unwrap();
        log.apply(append(&a, 1), Lsn::new(24)).unwrap();
        in_time(watch.changed()).await;
        assert!(pending(&mut watch).await, "both changes were told");
        log.apply(truncate(&a, 1), Lsn::new(32)).unwrap();
        in_time(watch.changed()).await;
        assert!(log.apply(append(&a, 9), Lsn::new(40)).is_err());
        assert!(pending(&mut watch).await, "a refused change is none");
        assert!(pending(&mut other).await, "the other shard did not change since");
    }

    #[tokio::test]
    async fn two_watches_of_a_shard_are_two() {
        let (log, a) = (ShardLog::new(), name("a"));
        let mut first = log.watch(&a);
        let second = log.watch(&a);
        drop(second);
        log.apply(append(&a, 0), Lsn::new(8)).unwrap();
        in_time(first.changed()).await;
        drop(first);
        let mut third = log.watch(&a);
        log.apply(append(&a, 1), Lsn::new(16)).unwrap();
        in_time(third.changed()).await;
    }

    /// A reader that subscribes, reads, waits and reads again gets every entry, however the applier runs beside it.
    #[test]
    fn misses_nothing() {
        const ENTRIES: u64 = 4_000;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let (log, shard) = (Arc::new(ShardLog::new()), name("a"));
        let told = Arc::new(AtomicU64::new(0));
        let followers: Vec<_> = (0..3)
            .map(|_| {
                let (log, shard, told) = (log.clone(), shard.clone(), told.clone());
                runtime.spawn(async move {
                    let mut watch = log.watch(&shard);
                    let mut next = 0;
                    while next < ENTRIES {
                        let scan = log.scan(shard.as_str(), seqno(next), u32::MAX, u32::MAX);
                        let entries = scan.map_or(Vec::new(), |scan| scan.entries);
                        for entry in &entries {
                            assert_eq!(entry.seqno, seqno(next));
                            next += 1;
                        }
                        told.fetch_max(next, Ordering::SeqCst);
                        if entries.is_empty() {
                            watch.changed().await;
                        }
                    }
                })
            })
            .collect();
        runtime.block_on(in_time(async {
            for n in 0..ENTRIES {
                log.apply(append(&shard, n), Lsn::new(8 * n)).unwrap();
                // Lets them catch up every time, so that each change is one that they wait for.
                while told.load(Ordering::SeqCst) <= n {
                    tokio::task::yield_now().await;
                }
            }
            for follower in followers {
                follower.await.unwrap();
            }
        }));
    }

    /// Watches that come and go while their shard changes: registration and change race every time.
    #[test]
    fn a_new_watch_misses_nothing() {
        const ROUNDS: u64 = 20_000;
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let (log, shard) = (Arc::new(ShardLog::new()), name("a"));
        let seen = Arc::new(AtomicU64::new(0));
        let follower = {
            let (log, shard, seen) = (log.clone(), shard.clone(), seen.clone());
            runtime.spawn(async move {
                for n in 0..ROUNDS {
                    let mut watch = log.watch(&shard);
                    while log.bounds("a").is_none_or(|bounds| bounds.head < seqno(n)) {
                        watch.changed().await;
                    }
                    seen.store(n + 1, Ordering::SeqCst);
                }
            })
        };
        runtime.block_on(in_time(async {
            for n in 0..ROUNDS {
                log.apply(append(&shard, n), Lsn::new(8 * n)).unwrap();
                while seen.load(Ordering::SeqCst) <= n {
                    tokio::task::yield_now().await;
                }
            }
            follower.await.unwrap();
        }));
    }
}
