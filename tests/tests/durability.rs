//! A node is killed under load, again and again: what was acknowledged stays, and nobody ever saw what did not.

#![allow(clippy::unwrap_used, reason = "the helpers belong to tests too")]

use std::time::Duration;

use headwater_protocol::{Consistency, Epoch};
use headwater_tests::cluster::{Cluster, PATIENCE, eventually};
use headwater_tests::load::{Load, Progress};
use headwater_tests::snapshot::{Snapshot, snapshot};

const ROUNDS: u64 = 10;

/// Waits until this many more writes are acknowledged and strong reads answered.
async fn work(progress: &Progress, writes: u64, reads: u64) {
    let (committed, read) = (progress.committed() + writes, progress.strong_reads() + reads);
    let look = || {
        let done = progress.committed() >= committed && progress.strong_reads() >= read;
        std::future::ready(done.then_some(()))
    };
    eventually("the clients get on", look).await;
}

/// Everything that `theirs` holds is the same in `ours`, or was truncated there since.
fn assert_part_of(theirs: &Snapshot, ours: &Snapshot) {
    for (shard, entries) in theirs {
        let after = ours.get(shard).unwrap_or_else(|| panic!("{shard} was seen, and is lost"));
        let (lo, head) = (after[0].seqno, after[after.len() - 1].seqno);
        for entry in entries {
            assert!(entry.seqno <= head, "{shard} {} was seen, and is lost", entry.seqno);
            if entry.seqno >= lo {
                assert!(after.contains(entry), "{shard} {} was seen with other bytes", entry.seqno);
            }
        }
    }
}

/// W3, W4, W7, S3, R5, E2, E3: under load and with strong reads on all nodes throughout.
#[tokio::test(flavor = "multi_thread")]
async fn killed_again_and_again_the_rw_loses_nothing_and_nobody_sees_what_is_lost() {
    let mut cluster = Cluster::start(&[("lease", "50ms")], &["shm", "tcp"]).await;
    let mut load = Load::new(3);
    for _ in 0..4 {
        load.writer(&cluster.rw, 300).await;
    }
    for node in cluster.nodes() {
        load.reader(node).await;
    }
    for round in 1..=ROUNDS {
        work(load.progress(), 40, 20).await;
        assert_eq!(cluster.rw.status().await.epoch, Epoch::new(round));
        cluster.rw.kill();
        // With the RW gone: what an RO shows now, it will have shown for good.
        let mut seen = Vec::new();
        for ro in &cluster.ros {
            seen.push(snapshot(&ro.connect().await, Consistency::Eventual, PATIENCE).await.unwrap());
        }
        cluster.rw.start().await;
        let ours = snapshot(&cluster.rw.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
        for theirs in &seen {
            assert_part_of(theirs, &ours);
        }
        cluster.all_attached().await;
    }
    work(load.progress(), 40, 20).await;
    let history = load.stop().await;
    let counts = history.assert_linearizable();
    assert!(counts.committed > 400 && counts.strong_reads > 200, "{counts:?}");
    assert_equal(&cluster).await;
}

/// Nobody writes any more: all nodes hold the same, byte for byte.
async fn assert_equal(cluster: &Cluster) {
    let ours = snapshot(&cluster.rw.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
    for ro in &cluster.ros {
        let theirs = snapshot(&ro.connect().await, Consistency::Strong, PATIENCE).await.unwrap();
        assert!(ours == theirs, "{} differs from the RW", ro.address());
    }
}

/// Both sides go at once: what the RO received ahead of the flush is nowhere afterwards (S3, E2).
#[tokio::test(flavor = "multi_thread")]
async fn killed_together_rw_and_ro_come_back_equal() {
    let mut cluster = Cluster::start(&[("lease", "50ms")], &["shm", "tcp"]).await;
    let mut load = Load::new(2);
    for _ in 0..3 {
        load.writer(&cluster.rw, 1000).await;
    }
    for _ in 0..3 {
        work(load.progress(), 30, 0).await;
        cluster.rw.kill();
        cluster.ros[0].kill();
        cluster.rw.start().await;
        cluster.ros[0].start().await;
        cluster.all_attached().await;
    }
    let history = load.stop().await;
    history.assert_linearizable();
    assert_equal(&cluster).await;
}

/// An idle cluster's RW is killed: a start with nothing to recover is a start like any other.
#[tokio::test(flavor = "multi_thread")]
async fn epochs_grow_and_positions_are_never_given_twice_however_often_it_starts() {
    let mut cluster = Cluster::start(&[("lease", "20ms")], &["shm"]).await;
    let mut before = cluster.rw.status().await;
    for _ in 0..5 {
        cluster.crash_rw().await;
        let after = cluster.rw.status().await;
        assert_eq!(after.epoch, before.epoch.next());
        assert!(after.positions.flushed > before.positions.appended, "{after:?} after {before:?}");
        let caught_up = after.positions.flushed;
        cluster.ros[0].until("it has all of it", |status| status.positions.applied >= caught_up).await;
        before = after;
    }
    let idle = cluster.rw.connect().await;
    assert!(snapshot(&idle, Consistency::Strong, Duration::from_secs(5)).await.unwrap().is_empty());
}
